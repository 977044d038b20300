/* SPDX-License-Identifier: BSD-3-Clause */
/* What happens to the process of a rank at moments that are drawn from the seed of the job:
 * it dies, ends, sleeps, is slow, loses connections, finds no descriptor or no memory, or gives
 * its communicator up. */
#ifndef BNY_TESTS_MP_FATE_H
#define BNY_TESTS_MP_FATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "tests/mp/case.h"

struct banyan_comm;
struct bny_world;

/* STARVE: no memory at the n-th allocation of a call that is drawn; ABORT: banyan_abort. */
enum trouble { KILL, EXIT, STOP, SLOW, RESET, NO_FD, NO_MEMORY, STARVE, ABORT, TROUBLES };
enum fate_call { FATE_AGREE, FATE_SHRINK, FATE_GROW, FATE_GROUP, FATE_CALLS };

struct fate {
    struct test *t;
    int n; /* troubles of this rank */
    struct {
        enum trouble kind;
        uint32_t after_us, lasts_us;
    } at[3];
    int in_init;     /* the time runs from before init */
    int in_finalize; /* only from there on, and in the first 5 ms; an abort 0.8 */
    int begun;
    atomic_int slow_us, over;
    _Atomic(struct bny_world *) world; /* whose connections are reset; locked below */
    struct banyan_comm *comm;          /* that is given up; locked, too */
    atomic_int starves_in;             /* 1 + the next call that is to find no memory */
    long starves_at, starves_for;      /* from its n-th allocation on */
    pthread_mutex_t lock;
    pthread_t thread;
};

/* Troubles of the job by its seed: one to three, of ranks that may be the same, sometimes two
 * deaths within 100 ms; of so many first members one is left. t->arg: only these kinds; "":
 * all. */
void fate_draw(struct test *t, int members, struct fate *f);
/* May it find that it lacks something, and end? */
int fate_may_end(const struct fate *f);
void fate_begin(struct fate *f);
void fate_end(struct fate *f);
/* Around the calls that may be chosen to find no memory. */
void fate_enter(struct fate *f, enum fate_call call);
void fate_leave(struct fate *f, enum fate_call call);
/* From now on no descriptor is to be had in this process. */
void fate_use_up_descriptors(void);

#endif
