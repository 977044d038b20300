/* SPDX-License-Identifier: BSD-3-Clause */
/* Sums of several hosts, with as many ranks on each, as a list of three operations:
 *   ask     where a codec is weighed: an exchange of what is measured (weighed.c), beside first
 *   first   a reduce_scatter of each host's ranks: each adds its part of the vector
 *   rail    an allreduce of the ranks of the same place on each host, of their part
 *   last    an allgather of each host's ranks: each gives its part to the others
 * The rest of the vector behind the parts, a few elements, is an allreduce of all ranks beside
 * them (rest).
 *
 * A codec is the rail's: what stays in a host is raw, and so is the rest. So a rank encodes the
 * elements of its own part, once each, and their residuals are those of these elements in the
 * tensor's state.
 *
 * Places in shared memory are given in the order in which operations start, which has to be the
 * same at all ranks (pipeline/). First parts start with their sums; a last part waits until
 * those of all older sums have started. */
#include <math.h>

#include "collectives/plan/cost.h"
#include "collectives/sequence/sequence.h"

enum { REST, ASK, FIRST, RAIL, LAST, CHILDREN };

/* Elements of each rank's part. */
static size_t part_of(const struct bny_scope *s, const struct bny_call *call)
{
    size_t quantum = bny_redop_quantum(&call->redop),
           units = call->count / quantum / (size_t)s->near;

    return (units >= 1024 ? units & ~(size_t)63 : units) * quantum;
}

/* A child's own members: all but its buffers, and those that all children share. codec: the
 * parent's, or NULL. */
static void describe_child(const struct bny_scope *s, const struct bny_call *parent,
                           const struct bny_codec *codec, int i, struct bny_call *call)
{
    static const char schedules[CHILDREN][BNY_NAME_MAX] = { "static", "static", "pipeline",
                                                            "static", "pipeline" };
    size_t part = part_of(s, parent);

    call->dtype = parent->dtype;
    call->redop = parent->redop;
    call->codec = i == RAIL ? codec : NULL;
    call->is_child = call->codec ? BNY_CHILD_CODED : BNY_CHILD;
    call->count = i == REST ? parent->count - part * (size_t)s->near : part;
    call->among = i == REST ? BNY_AMONG_ALL : i == RAIL ? BNY_AMONG_RAIL : BNY_AMONG_HOST;
    call->collective = i == FIRST  ? BNY_REDUCE_SCATTER
                       : i == LAST ? BNY_ALLGATHER
                                   : BNY_ALLREDUCE;
    bny_call_set_schedule(call, schedules[i]);
}

/* ---- choice ---- */

/* The child of a call, as it is planned. */
static struct bny_call child_of(const struct bny_scope *s, const struct bny_call *parent, int i)
{
    struct bny_call call;

    bny_sequence_call(parent, &call);
    describe_child(s, parent, parent->codec, i, &call);
    return call;
}

const char *bny_hierarchical_cannot(const struct bny_scope *s, const struct bny_call *call)
{
    struct bny_call first, raw = *call;
    const char *why;

    if (call->collective != BNY_ALLREDUCE)
        return "it serves allreduce alone";
    if (s->near < 2)
        return "it needs several hosts, with as many ranks on each and two at least";
    raw.codec = NULL; /* it is the rail's */
    why = bny_call_beyond_plain(&raw);
    if (why)
        return why;
    if (call->has_set)
        return "it takes no participation set";
    if (call->is_child)
        return "it is no child of another operation";
    if (bny_call_is_ordered(call))
        return "it adds by hosts, not in the order of ranks";
    if (bny_topology_beta(s) > 0) /* no model of a graph prices it */
        return "the links' speeds are given, and no model of them prices it";
    first = child_of(s, call, FIRST);
    return first.count ? bny_plan_cannot(s, &first)
                       : "there is less than an element for each rank of a host";
}

/* Where both passes pay in a job of one host. Two ranks of a host gain nothing: the engine's
 * chunks cross hosts while others are added. */
static double hierarchical_seconds(struct bny_scope *s, const struct bny_call *call)
{
    double sum = s->near > 2 ? 0 : INFINITY;

    for (int i = FIRST; i < CHILDREN && sum < INFINITY; i++) {
        struct bny_call child = child_of(s, call, i);

        sum += bny_plan_seconds(s, &child);
    }
    return sum;
}

/* ---- running ---- */

static int hierarchical_init(struct bny_op *op)
{
    return CHILDREN;
}

/* Have the last parts of all older sums started? */
static int is_turn(const struct bny_op *op)
{
    const struct bny_op *o = op->comm->active_first;

    while (o != op &&
           (o->way != op->way || bny_sequence_of(o)->list != &bny_list_hierarchical ||
            bny_sequence_of(o)->next > LAST))
        o = o->next;
    return o == op;
}

/* Younger sums that wait for this sum's last part have their turn. */
static void wake_younger(struct bny_op *op)
{
    for (struct bny_op *o = op->next; o; o = o->next)
        if (o->way == op->way)
            bny_op_mark_runnable(o);
}

static int hierarchical_next(struct bny_op *op, int i, struct bny_call *call)
{
    const struct bny_scope *s = &op->comm->scope;
    size_t at;
    int rc;

    if (i == ASK) {
        bny_sequence_of(op)->asked = ASK;
        rc = bny_weighed_ask(op, call);
        return rc == BNY_SEQUENCE_CHILD ? BNY_SEQUENCE_BESIDE : rc;
    }
    describe_child(s, &op->call, op->plan.codec, i, call);
    if (i == REST && !call->count)
        return BNY_SEQUENCE_NOTHING;
    if (i == FIRST)
        bny_weighed_begin(op);
    if (i == LAST && !is_turn(op))
        return BNY_AGAIN;
    if (i == LAST)
        wake_younger(op);
    if (i == RAIL && (rc = bny_weighed_codec(op, call)) != 0)
        return rc;
    at = i == REST ? op->call.count - call->count
                   : call->count * (size_t)bny_scope_place(s, s->rank);
    call->sendbuf = i == FIRST  ? op->in
                    : i == REST ? op->in + at * op->esz
                                : op->out + at * op->esz;
    call->recvbuf = i == LAST ? op->out : op->out + at * op->esz;
    call->tensor_at = at;
    return i == REST ? BNY_SEQUENCE_BESIDE : BNY_SEQUENCE_CHILD;
}

/* What is measured of a call are all its parts, and not the rail alone: rails that share a port
 * end one after the other. */
static int hierarchical_finish(struct bny_op *op)
{
    bny_weighed_done(op, 0);
    return 0;
}

const struct bny_list bny_list_hierarchical = {
    .name = "hierarchical",
    .seconds = hierarchical_seconds,
    .init = hierarchical_init,
    .start = bny_weighed_start,
    .next = hierarchical_next,
    .finish = hierarchical_finish,
    .end = bny_weighed_end,
};
