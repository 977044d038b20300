/* SPDX-License-Identifier: BSD-3-Clause */
/* One call with a codec that may lose something: made from a seed, and judged by what every
 * codec promises. Ranks hold the same bits; with a state, sum of inputs + old residuals =
 * result + new residuals, element by element. Without one, codecs that only round keep their
 * bound. */
#ifndef BNY_TESTS_MP_LOSSY_H
#define BNY_TESTS_MP_LOSSY_H

#include "tests/mp/case.h"

struct lossy_call {
    int coll; /* enum coll: one that codecs serve */
    banyan_op op;
    size_t count; /* of the tensor: all ranks' blocks together */
    int root;
    char codec[80];       /* "": the communicator's */
    const char *schedule; /* NULL: the communicator's */
    size_t chunk_bytes;
    int shaped;
    uint64_t seed;
    struct banyan_codec_state *state; /* of count elements; NULL: none */
};

/* Elements of the tensors: 0 small, 1 of a few chunks, 2 of many; multiples of 1 to 8. */
size_t lossy_count(int which);
void lossy_random(struct lossy_call *c, int which, int n, uint64_t seed);
/* As the functions of call.h. lossy_begin, behind open, and close are collective: they add up
 * residuals. Both return the library's error where that fails, or 0. */
struct lossy *lossy_open(const struct test *t, struct banyan_comm *comm,
                         const struct lossy_call *c);
int lossy_begin(struct lossy *y);
int lossy_issue(struct lossy *y, struct banyan_request **rq);
/* rc: of the call. 1: refused (-ENOTSUP). Another error is returned, and nothing looked at. */
int lossy_close(const struct test *t, struct lossy *y, int rc);

#endif
