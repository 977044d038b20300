/* SPDX-License-Identifier: BSD-3-Clause */
/* One call of any collective: made from a seed, the same on all ranks, run in any way the API
 * offers, and checked against the model byte for byte. */
#ifndef BNY_TESTS_MP_CALL_H
#define BNY_TESTS_MP_CALL_H

#include "tests/mp/image.h"
#include "tests/mp/model.h"

enum coll {
    C_ALLREDUCE,
    C_REDUCE,
    C_BROADCAST,
    C_REDUCE_SCATTER,
    C_REDUCE_SCATTERV,
    C_ALLGATHER,
    C_ALLGATHERV,
    C_GATHER,
    C_GATHERV,
    C_SCATTER,
    C_SCATTERV,
    C_ALLTOALL,
    C_ALLTOALLV,
    C_BARRIER,
    C_SCAN,
    C_EXSCAN,
    C_SENDRECV,
    C_COUNT
};
enum call_mode { MODE_BLOCKING, MODE_WAIT, MODE_TEST, MODE_GROUP, MODE_COUNT };

struct call {
    enum coll coll;
    enum banyan_dtype dtype;
    enum model_op op;
    size_t count; /* elements; the unit of v-variants' counts */
    int root, in_place;
    enum call_mode mode;
    const char *schedule; /* NULL: the communicator's */
    uint32_t tag;
    size_t chunk_bytes;
    int deterministic; /* < 0: the communicator's */
    char codec[48];    /* an exact one; "": the communicator's */
    uint64_t seed;     /* of the data, v-counts and displacements */
    int shift;         /* SENDRECV: to rank + shift */
    /* Local, may differ by rank. */
    size_t misalign[2];
    struct image_pool *pool; /* NULL: malloc */
};

const char *call_name(enum coll c);
int call_reduces(enum coll c);
/* May this collective be called with this op and type? */
int call_fits(enum coll c, enum model_op op, enum banyan_dtype dtype);
/* A random call; local choices from local_seed. max_bytes bounds the largest buffer. */
void call_random(struct call *c, int n, size_t max_bytes, uint64_t seed, uint64_t local_seed);
/* The three parts of call_check, for several calls at a time. Buffers with input; takes the
 * call, borrows comm. */
struct bound *call_open(const struct test *t, struct banyan_comm *comm, const struct call *c);
/* Blocking with rq NULL, else makes rq[0] and for SENDRECV rq[1]. What the library returns. */
int call_issue(struct bound *b, struct banyan_request **rq);
/* Checks results and all other bytes, frees b. rc: of the call; 1: refused. */
int call_close(const struct test *t, struct bound *b, int rc);
/* The same where ranks may die: frees b without a look at it where rc is another error, which
 * is returned. */
int call_close_any(const struct test *t, struct bound *b, int rc);
/* Runs and checks it. Returns 0, or 1 when the library refused (-ENOTSUP) the schedule or codec
 * that was asked for and left every byte alone. */
int call_check(const struct test *t, struct banyan_comm *comm, const struct call *c);
/* Runs it where ranks may die: checks it when it succeeds. Returns 0, or the library's error,
 * but not -ENOTSUP. */
int call_try(const struct test *t, struct banyan_comm *comm, const struct call *c);
/* Two communicators of the same ranks give the same bits, plain and with codecs. */
void call_same_bits(const struct test *t, struct banyan_comm *a, struct banyan_comm *b);

#endif
