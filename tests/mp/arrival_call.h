/* SPDX-License-Identifier: BSD-3-Clause */
/* One reduction in order of arrival: made from a seed, the same on all ranks, and checked
 * against the model of those who are said to have contributed. */
#ifndef BNY_TESTS_MP_ARRIVAL_CALL_H
#define BNY_TESTS_MP_ARRIVAL_CALL_H

#include "tests/mp/case.h"
#include "tests/mp/model.h"

struct arrival_call {
    int reduce, root, in_place, at_least;
    int is_coded; /* by a codec that changes no bit */
    enum banyan_dtype dtype;
    enum model_op op;
    size_t count, chunk_bytes;
    uint64_t seed;
};

void arrival_random(struct arrival_call *c, int n, uint64_t seed);
/* As the functions of call.h. */
struct arrived *arrival_open(const struct test *t, struct banyan_comm *comm,
                             const struct arrival_call *c);
/* The input as it was, for another start; it is there after arrival_open. */
void arrival_fill(struct arrived *a);
int arrival_issue(struct arrived *a, struct banyan_request **rq);
/* rc: of the call. Where it is 0 checks the result, with the other ranks, frees a and returns
 * 0, or the error of comparing with them; else only frees it and returns rc. */
int arrival_close(const struct test *t, struct arrived *a, int rc);

#endif
