/* SPDX-License-Identifier: BSD-3-Clause */
/* The way of sequences: starts the children of a list one after another, and ends when the last
 * one has. */
#include "collectives/sequence/sequence.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct bny_list *list_of(const struct bny_codec *codec)
{
    return codec && codec->ops->linear ? &bny_list_linear : &bny_list_hierarchical;
}

/* The call's codec may have been refused. */
static const struct bny_list *list_of_plan(const struct bny_plan *plan)
{
    return plan->weighs && !strcmp(plan->schedule, bny_list_weighed.name)
               ? &bny_list_weighed
               : list_of(plan->codec);
}

/* ---- life ---- */

static int sequence_init(struct bny_op *op)
{
    struct bny_sequence *s = bny_sequence_of(op);

    if (!s)
        s = op->of_way[BNY_WAY_SEQUENCE] = calloc(1, sizeof *s);
    if (!s)
        return bny_fail(BANYAN_ENOMEM, "no memory for an operation");
    s->list = list_of_plan(&op->plan);
    s->inner = 0;
    s->n = s->list->init(op);
    if (s->n < 0)
        return s->n;
    BNY_ASSERT(s->n <= BNY_SEQUENCE_MAX);
    op->numbers = (uint32_t)(s->n + s->inner);
    return 0;
}

static void sequence_free(struct bny_op *op)
{
    struct bny_sequence *s = bny_sequence_of(op);

    for (int i = 0; i < BNY_SEQUENCE_MAX; i++)
        bny_child_free(&s->children[i], op);
    bny_list_linear.free(op);
    free(s);
    op->of_way[BNY_WAY_SEQUENCE] = NULL;
}

static int sequence_start(struct bny_op *op)
{
    struct bny_sequence *s = bny_sequence_of(op);

    s->next = 0;
    s->beside = 0;
    s->is_told = 0;
    for (int i = 0; i < s->n; i++)
        s->children[i].runs = 0;
    return s->list->start ? s->list->start(op) : 0;
}

/* After a failure a child may still be closing; it completes its parent when it has. */
static int sequence_end(struct bny_op *op, int result)
{
    const struct bny_sequence *s = bny_sequence_of(op);

    if (s->list->end)
        s->list->end(op);
    for (int i = 0; i < s->n; i++)
        if (bny_child_is_busy(&s->children[i]))
            return BNY_AGAIN;
    return 0;
}

static unsigned sequence_pending(const struct bny_op *op, int r)
{
    const struct bny_sequence *s = bny_sequence_of(op);

    for (int i = 0; i < s->n; i++)
        if (bny_child_waits_on(&s->children[i], r))
            return BNY_PENDING_WAITS;
    return 0;
}

/* ---- going on ---- */

void bny_sequence_call(const struct bny_call *parent, struct bny_call *call)
{
    memset(call, 0, sizeof *call);
    call->collective = BNY_ALLREDUCE;
    call->is_child = BNY_CHILD;
    call->root = -1;
    call->tag = parent->tag;
    call->chunk_bytes = parent->chunk_bytes;
}

/* The child that is to begin does, if there is anything to do in its place. 0, BNY_AGAIN: not
 * yet, or an error. */
static int start_next(struct bny_op *op)
{
    struct bny_sequence *s = bny_sequence_of(op);
    struct bny_child *child = &s->children[s->next];
    struct bny_call call;
    int rc;

    bny_sequence_call(&op->call, &call);
    rc = s->list->next(op, s->next, &call);
    if (rc < 0)
        return rc;
    s->beside |= (unsigned)(rc == BNY_SEQUENCE_BESIDE) << s->next;
    s->next++;
    if (rc == BNY_SEQUENCE_NOTHING)
        return 0;
    rc = bny_child_init(child, op, &call);
    if (rc == -BANYAN_ENOTSUP) { /* the schedule that was asked for does not serve a part */
        bny_call_set_schedule(&call, "auto");
        rc = bny_child_init(child, op, &call);
    }
    return rc ? rc : bny_child_start(child, op, (uint32_t)s->next);
}

/* Are the children done for which the next child, or the end, waits? 0 also where one has
 * failed: then the communicator has failed, which ends this operation, too. */
static int may_go_on(const struct bny_sequence *s)
{
    for (int i = 0; i < s->next; i++) {
        const struct bny_child *c = &s->children[i];

        if (bny_child_is_busy(c) ? s->next == s->n || !(s->beside >> i & 1)
                                 : c->runs && c->op.result)
            return 0;
    }
    return 1;
}

static void sequence_fail(struct bny_op *op, int rc)
{
    const struct bny_codec *codec = op->plan.codec;

    bny_sequence_of(op)->is_told = 1;
    if (!bny_comm_has_failed(op->comm))
        bny_report(op->comm->world, op->comm, BNY_CAUSE_RESET, (enum banyan_error) - rc,
                   op->comm->world->rank, "rank %d: %s%s%s%s", op->comm->rank,
                   codec ? "codec " : "", codec ? codec->spec : "", codec ? ": " : "",
                   bny_why(rc));
}

static int sequence_advance(struct bny_op *op)
{
    struct bny_sequence *s = bny_sequence_of(op);
    int moved = 0, rc = 0;

    while (rc == 0 && !s->is_told && bny_op_is_active(op) && !bny_comm_has_failed(op->comm) &&
           may_go_on(s)) {
        int is_over = s->next == s->n;

        rc = !is_over ? start_next(op) : s->list->finish ? s->list->finish(op) : 0;
        moved |= rc != BNY_AGAIN;
        if (rc == 0 && is_over)
            bny_op_complete(op, 0);
    }
    if (rc && rc != BNY_AGAIN)
        sequence_fail(op, rc);
    return moved;
}

/* ---- choice ---- */

static const char *sequence_cannot(const struct bny_scope *s, const struct bny_call *call)
{
    return list_of(call->codec) == &bny_list_linear ? NULL : bny_hierarchical_cannot(s, call);
}

static double sequence_seconds(struct bny_scope *s, const struct bny_call *call, double most,
                               char *schedule)
{
    const struct bny_list *list = list_of(call->codec);

    snprintf(schedule, BNY_NAME_MAX, "%s", list->name);
    return list->seconds(s, call);
}

/* A codec that is weighed: the same list as for raw data, where that is one. */
static int plan_weighed(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    struct bny_plan cheapest = { .hash = 0 };
    struct bny_call raw = *call;
    int rc;

    if (!bny_weighed_can(s, call))
        return -BANYAN_ENOTSUP;
    raw.codec = NULL;
    rc = bny_plan_cheapest(s, &raw, &cheapest);
    if (rc)
        return rc;
    plan->predicted_s = cheapest.predicted_s;
    snprintf(plan->schedule, sizeof plan->schedule, "%s",
             cheapest.way == BNY_WAY_SEQUENCE ? bny_list_hierarchical.name
                                              : bny_list_weighed.name);
    return 0;
}

/* Its children have plans of their own. */
static int sequence_plan(struct bny_scope *s, const struct bny_call *call,
                         struct bny_plan *plan)
{
    int rc = plan->weighs ? plan_weighed(s, call, plan) : 0;

    if (rc)
        return rc;
    plan->chunk_bytes = call->chunk_bytes ? call->chunk_bytes : s->chunk_bytes;
    return 0;
}

const struct bny_way bny_way_sequence = {
    .traits = BNY_WAY_WEIGHS,
    .cannot = sequence_cannot,
    .seconds = sequence_seconds,
    .plan = sequence_plan,
    .init = sequence_init,
    .start = sequence_start,
    .advance = sequence_advance,
    .end = sequence_end,
    .pending = sequence_pending,
    .free = sequence_free,
};
