/* SPDX-License-Identifier: BSD-3-Clause */
/* The programs and plans that a communicator keeps: between the choice (select.c) and their
 * memory (programs.c). */
#ifndef BNY_COLLECTIVES_PROGRAM_CACHE_H
#define BNY_COLLECTIVES_PROGRAM_CACHE_H

#include "base/err.h"
#include "collectives/plan/plan.h"

#define BNY_PLAN_SLOTS 64 /* direct mapped */
#define BNY_SET_SLOTS                                                                          \
    8 /* and behind them, those of calls with participation sets, which may                    \
         change with every step: they drive out nobody else's plans */

struct bny_plan_slot {
    int valid;
    struct bny_call call; /* as bny_plan_get() saw it */
    struct bny_plan plan;
};

struct bny_plans {
    struct bny_plan_slot slots[BNY_PLAN_SLOTS + BNY_SET_SLOTS];
    struct bny_kept_program *kept;
    size_t nkept, nsets, bytes; /* nsets: of these, of participation sets */
    int starved;                /* see bny_plans_starve() */
};

/* Those of the scope, made at first use. NULL, with a sentence: no memory. */
struct bny_plans *bny_plans_of(struct bny_scope *s);
/* There is no memory to look at one of the candidates: no plan is made then, as this rank's
 * choice would not be that of the others. Returns -BANYAN_ENOMEM. */
static inline int bny_plans_starve(const struct bny_scope *s)
{
    if (s->plans)
        s->plans->starved = 1;
    return bny_fail(BANYAN_ENOMEM, "no memory for a plan");
}
/* Where the plan of a call is kept, if it is. */
struct bny_plan_slot *bny_plan_slot(struct bny_plans *plans, const struct bny_call *call);

/* The program of this schedule for this rank, made at its first use and kept until others are
 * used more: the plan that is made of it holds it. 0 or an error; -BANYAN_ENOTSUP when the
 * schedule cannot serve the collective. coalesce: as for bny_compile. */
int bny_program_get(struct bny_scope *s, const struct bny_call *call, const char *schedule,
                    int coalesce, struct bny_kept_program **out);
/* Takes part in holding it; bny_plan_drop() gives it back. */
void bny_plan_hold(struct bny_plan *plan, struct bny_kept_program *k);

#endif
