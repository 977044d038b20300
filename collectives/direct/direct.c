/* SPDX-License-Identifier: BSD-3-Clause */
/* The direct exchange, whatever carries it: the choice of a carrier, and an operation's course.
 */

#include "collectives/direct/direct.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "collectives/plan/schedules.h"

#define CARRIER(symbol) { "direct:" #symbol, &bny_carrier_##symbol },
static const struct {
    const char *schedule;
    const struct bny_carrier *carrier;
} carriers[] = { BNY_CARRIERS(CARRIER) };
#define NCARRIERS (sizeof carriers / sizeof carriers[0])

/* ---- choice ---- */

/* The last is the one that serves most, if any. */
static const char *direct_cannot(const struct bny_scope *s, const struct bny_call *call)
{
    const char *why = NULL;

    for (size_t i = 0; i < NCARRIERS; i++) {
        why = carriers[i].carrier->cannot(s, call);
        if (!why)
            return NULL;
    }
    return why;
}

/* Writes the cheapest carrier's schedule, where one can serve the call. */
static double direct_seconds(struct bny_scope *s, const struct bny_call *call, double most,
                             char *schedule)
{
    double least = INFINITY;
    int found = 0;

    for (size_t i = 0; i < NCARRIERS; i++) {
        const struct bny_carrier *c = carriers[i].carrier;
        double t;

        if (c->cannot(s, call))
            continue;
        t = c->seconds(s, call);
        if (!found || t < least) {
            least = t;
            snprintf(schedule, BNY_NAME_MAX, "%s", carriers[i].schedule);
        }
        found = 1;
    }
    return least;
}

static const struct bny_carrier *find_carrier(const char *schedule)
{
    for (size_t i = 0; i < NCARRIERS; i++)
        if (!strcmp(carriers[i].schedule, schedule))
            return carriers[i].carrier;
    return NULL;
}

/* A message to oneself has the plan of its receiving end, which is a program's. */
static int direct_plan(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    const struct bny_carrier *c = find_carrier(plan->schedule);

    if (call->collective == BNY_SENDRECV) {
        snprintf(plan->schedule, sizeof plan->schedule, "sendrecv");
        return bny_schedules_plan(s, call, plan);
    }
    if (c && c->cannot(s, call))
        return -BANYAN_ENOTSUP;
    if (!c)
        direct_seconds(s, call, INFINITY, plan->schedule);
    plan->chunk_bytes = s->eager_max;
    return 0;
}

/* ---- an operation ---- */

static int direct_init(struct bny_op *op)
{
    struct bny_direct *s = bny_direct_of(op);
    size_t n = (size_t)op->comm->n;

    if (!s)
        s = op->of_way[BNY_WAY_DIRECT] = calloc(1, sizeof *s + n * sizeof s->of[0]);
    if (!s)
        return bny_fail(BANYAN_ENOMEM, "no memory for an operation");
    s->carrier = op->call.collective == BNY_SENDRECV ? &bny_carrier_alone
                                                     : find_carrier(op->plan.schedule);
    s->bytes = op->call.collective == BNY_BARRIER ? 0 : op->call.count * op->esz;
    s->op = op;
    op->traits |= s->carrier->traits;
    return s->carrier == &bny_carrier_messages && bny_call_row(&op->call)->reduces
               ? bny_grow(&s->tile, &s->tile_cap, s->bytes, 1, "a small operation")
               : 0;
}

static void direct_free(struct bny_op *op)
{
    struct bny_direct *s = bny_direct_of(op);

    free(s->tile);
    free(s);
    op->of_way[BNY_WAY_DIRECT] = NULL;
}

static int direct_start(struct bny_op *op)
{
    struct bny_direct *s = bny_direct_of(op);

    s->missing = s->sent = s->next = 0;
    s->is_given = s->is_early;
    s->is_early = s->has_failed = 0;
    for (int r = 0; r < op->comm->n; r++) {
        s->of[r] = NULL;
        s->missing += bny_call_sends(&op->call, r, op->comm->rank);
    }
    return s->carrier->start ? s->carrier->start(op) : 0;
}

static int direct_try_now(struct bny_op *op, uint32_t seq, int tries)
{
    const struct bny_carrier *c = bny_direct_of(op)->carrier;

    return c->try_now && c->try_now(op, seq, tries);
}

static int direct_advance(struct bny_op *op)
{
    struct bny_direct *s = bny_direct_of(op);
    int moved = s->is_given ? 0 : s->carrier->give(op);

    if (s->is_given && s->missing && s->carrier->look)
        moved |= s->carrier->look(op);
    if (s->is_given && !s->missing) {
        if (s->carrier->combine)
            s->carrier->combine(op);
        bny_op_complete(op, 0);
        return 1;
    }
    if (s->carrier->look || !s->is_given)
        bny_op_mark_runnable(op);
    return moved;
}

static void direct_message(struct bny_op *op, int from, struct bny_msg *msg)
{
    const struct bny_carrier *c = bny_direct_of(op)->carrier;

    if (c->message)
        c->message(op, from, msg);
    else
        bny_msg_release(&op->comm->world->held, msg);
}

static int direct_end(struct bny_op *op, int result)
{
    const struct bny_carrier *c = bny_direct_of(op)->carrier;

    return c->end ? c->end(op, result) : 0;
}

static unsigned direct_pending(const struct bny_op *op, int r)
{
    const struct bny_direct *s = bny_direct_of(op);
    unsigned flags = s->is_given ? 0 : BNY_PENDING_UNSENT;

    return s->carrier->pending ? flags | s->carrier->pending(op, r) : flags;
}

const struct bny_way bny_way_direct = {
    .traits = BNY_WAY_LOCAL,
    .cannot = direct_cannot,
    .seconds = direct_seconds,
    .plan = direct_plan,
    .init = direct_init,
    .start = direct_start,
    .try_now = direct_try_now,
    .advance = direct_advance,
    .message = direct_message,
    .end = direct_end,
    .pending = direct_pending,
    .free = direct_free,
};
