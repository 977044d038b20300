/* SPDX-License-Identifier: BSD-3-Clause */
/* What a job computes that loses ranks and gets new ones (cases_trouble.c), a step at a time:
 * rounds of calls over several communicators (mix.h), with codec states that go back where a
 * step failed, an object store that lives on without the dead, and a rank that revokes a
 * communicator now and then. Which of these a job has is drawn from its seed. */
#ifndef BNY_TESTS_MP_TROUBLE_WORK_H
#define BNY_TESTS_MP_TROUBLE_WORK_H

#include <stdatomic.h>

#include "tests/mp/case.h"
#include "tests/mp/fate.h"

#define WORK_OP_S 20 /* deadline of operations */

struct work_place { /* the same at all members, but slow */
    struct banyan_comm *comm;
    uint32_t members; /* as the harness numbers them, a bit each */
    uint32_t step;
    uint32_t round;      /* of agreement, never twice the same */
    atomic_int *slow_us; /* this rank sleeps so long before what it does */
    struct fate *fate;
};

struct work *work_make(struct test *t);
void work_free(struct work *w, int finalize);
/* 0, or the first error of a call, with everything revoked. */
int work_step(struct work *w, const struct work_place *at);
/* Where this rank does not come to a step that others may be in. */
void work_miss(struct work *w);
/* All know whether the step went well with all who live, and how many are gone: keeps what came
 * of it, or goes back. */
void work_settle(struct work *w, int well, int dead);
/* A communicator of those who live. comm is not freed. */
int work_shrink(struct work *w, struct banyan_comm *comm, struct banyan_comm **next);
/* Frees all that belongs to the world of the present communicator. */
void work_leave(struct work *w);
/* Rank root of comm tells those who are fresh what it has; all others, too, must be settled. */
int work_hand_over(struct work *w, struct banyan_comm *comm, int root, int fresh);

#endif
