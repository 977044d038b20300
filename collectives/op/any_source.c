/* SPDX-License-Identifier: BSD-3-Clause */
/* A receive from any rank (BANYAN_ANY_SOURCE). It has no number and waits for no rank until a
 * message with its tag is here that no other receive awaits, or the question of a rank that
 * waits to send one (a probe: mismatch.c). Then it becomes the next receive from that rank. */
#include "base/err.h"
#include "collectives/op/op.h"

static const struct bny_way any_source;

/* The next rank that has something for it, by turns; -1: none. */
static int any_find(struct bny_op *op)
{
    struct banyan_comm *c = op->comm;

    for (int i = 1; i <= c->n; i++) {
        int r = (c->any_latest + i) % c->n;

        if (bny_match_next(c->match, r, op->call.tag)) {
            c->any_latest = r;
            return r;
        }
    }
    return -1;
}

static int become_receive(struct bny_op *op, int peer)
{
    struct bny_call call = op->call;
    int rc;

    call.root = peer;
    rc = bny_op_init(op, op->comm, &call);
    op->is_any_source = 1;
    op->planned = 0; /* the next call, or start, is of any rank again */
    if (rc == 0)
        rc = bny_match_open_p2p(op->comm->match, &op->match, peer, call.tag, 0,
                                call.count * op->esz);
    return rc ? rc : op->way->start(op);
}

static int any_advance(struct bny_op *op)
{
    struct banyan_comm *c = op->comm;
    int peer = any_find(op), rc;

    if (peer < 0)
        return 0;
    rc = become_receive(op, peer);
    c->any_sources -= op->way != &any_source; /* else its end counts */
    bny_any_source_wake(c);
    if (rc)
        bny_report(c->world, c, BNY_CAUSE_RESET, (enum banyan_error) - rc, c->world->rank,
                   "rank %d: %s", c->rank, bny_why(rc));
    else
        bny_op_take_early(op);
    return 1;
}

static int any_start(struct bny_op *op)
{
    op->comm->any_sources++;
    return 0;
}

static int any_end(struct bny_op *op, int result)
{
    op->comm->any_sources--;
    return 0;
}

static unsigned any_pending(const struct bny_op *op, int r)
{
    return 0;
}

static const struct bny_way any_source = {
    .start = any_start, .advance = any_advance, .end = any_end, .pending = any_pending
};

void bny_any_source_init(struct bny_op *op)
{
    op->call.root = BANYAN_ANY_SOURCE;
    op->ways = op->comm->scope.ways;
    op->way = &any_source;
    op->traits = 0;
    op->numbers = 0;
    op->match = (struct bny_receiver){ 0 };
    op->is_any_source = op->planned = 1;
}

void bny_any_source_wake(struct banyan_comm *c)
{
    for (struct bny_op *op = c->active_first; op; op = op->next)
        if (op->way == &any_source && bny_op_is_active(op))
            bny_op_mark_runnable(op);
}
