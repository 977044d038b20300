/* SPDX-License-Identifier: BSD-3-Clause */
/* Where an operation of the engine begins and ends: its steps are prepared, its memory is
 * announced to the peers that send bulk (CTS, with a window where they may put), windows are
 * closed again. In between chunks live: chunk.c. */
#include <stdlib.h>
#include <string.h>

#include "collectives/engine/coded.h"
#include "collectives/plan/schedules.h"

/* For a peer that is in the middle of a put; normally that takes microseconds. */
#define CLOSE_NS 1000000000u

int bny_engine_placeable(const struct bny_op *op, uint32_t i)
{
    const struct bny_program *p = bny_engine_of(op)->program;
    const struct bny_step *s = &p->steps[i];

    return (s->flags & BNY_STEP_PLACE) && !op->call.vector && p->contiguous &&
           !bny_coded_travels(op, i) && bny_xfer_may_place(op->comm->peers[s->peer].ep);
}

/* ---- init ---- */

static int open_init(struct bny_op *op)
{
    struct bny_engine *e = bny_engine_of(op);
    const struct bny_program *p = op->plan.program;
    int rc;

    if (!e)
        e = op->of_way[BNY_WAY_PROGRAM] = calloc(1, sizeof *e);
    if (e && !e->peers)
        e->peers = calloc((size_t)op->comm->n, sizeof *e->peers);
    if (!e || !e->peers)
        return bny_fail(BANYAN_ENOMEM, "no memory for an operation");
    e->program = p;
    /* a rank that neither has an input nor gets the result has no steps */
    rc = bny_grow(&e->steps, &e->steps_cap, (size_t)p->nsteps + 1, sizeof *e->steps, "steps");
    if (rc == 0)
        rc = bny_grow(&e->ready, &e->ready_cap, p->nsteps / 64 + 1, sizeof *e->ready, "steps");
    if (rc == 0)
        rc = bny_grow(&e->blocks, &e->blocks_cap, p->nblocks, sizeof *e->blocks, "blocks");
    return rc;
}

static void engine_free(struct bny_op *op)
{
    struct bny_engine *e = bny_engine_of(op);

    bny_coded_free(e, op->comm != NULL);
    free(e->steps);
    free(e->ready);
    free(e->blocks);
    free(e->peers);
    free(e->scratch);
    free(e->scratch2);
    free(e->tile);
    free(e);
    op->of_way[BNY_WAY_PROGRAM] = NULL;
}

/* ---- start ---- */

static const char *operand(const struct bny_block *b, unsigned space)
{
    switch (space) {
    case BNY_IN: return b->in;
    case BNY_OUT: return b->out;
    case BNY_SCRATCH: return b->scratch;
    case BNY_SCRATCH2: return b->scratch2;
    default: return NULL;
    }
}

static void step_prepare(const struct bny_op *op, uint32_t i)
{
    struct bny_engine *e = bny_engine_of(op);
    const struct bny_step *s = &e->program->steps[i];
    const struct bny_block *b = &e->blocks[s->block];
    struct bny_step_state *st = &e->steps[i];

    memset(st, 0, sizeof *st);
    st->src = operand(b, s->src);
    st->dst = (char *)operand(b, s->dst);
    st->pos = b->pos;
    for (uint32_t k = 0; k < s->nblocks; k++)
        st->count += b[k].count;
    st->nchunks =
        st->count ? (uint32_t)((st->count + op->chunk_elems - 1) / op->chunk_elems) : 1;
}

/* The longest that a chunk of n elements may be. */
static size_t wire_len(const struct bny_op *op, uint32_t i, size_t n)
{
    return bny_coded_travels(op, i) ? bny_coded_most(op, i, n) : n * op->esz;
}

/* Must the peer say CTS before the step's first chunk goes? */
static int awaits(const struct bny_op *op, uint32_t i)
{
    const struct bny_engine *e = bny_engine_of(op);
    const struct bny_step *s = &e->program->steps[i];

    return bny_is_send(s) && s->peer != op->comm->rank &&
           bny_xfer_needs_cts(op->comm->peers[s->peer].ep,
                              wire_len(op, i, bny_engine_chunk(op, &e->steps[i], 0)),
                              bny_engine_placeable(op, i));
}

static void unheard_prepare(struct bny_op *op)
{
    struct bny_engine *e = bny_engine_of(op);
    const struct bny_program *p = e->program;

    e->cts_missing = 0;
    for (uint32_t i = 0; op->plan.cts_wait_s > 0 && i < p->nsteps; i++) {
        uint8_t *is_awaited =
            p->steps[i].peer < 0 ? NULL : &e->peers[p->steps[i].peer].is_awaited;

        if (!is_awaited || *is_awaited || !awaits(op, i))
            continue;
        *is_awaited = 1;
        e->cts_missing++;
    }
}

/* Which peers must hear CTS, because bulk will come from them. */
static void ready_prepare(struct bny_op *op)
{
    struct bny_engine *e = bny_engine_of(op);
    const struct bny_program *p = e->program;

    memset(e->peers, 0, sizeof *e->peers * (size_t)op->comm->n);
    e->unannounced = 0;
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const struct bny_step *s = &p->steps[i];
        int placeable;
        struct bny_xfer *x;
        size_t most;

        if ((s->kind != BNY_RECV_ADD && s->kind != BNY_RECV_COPY) || s->peer == op->comm->rank)
            continue;
        x = &e->peers[s->peer].xfer;
        placeable = bny_engine_placeable(op, i);
        most = wire_len(op, i, bny_engine_chunk(op, &e->steps[i], 0));
        if (!op->match.announce &&
            !(op->call.collective == BNY_SENDRECV && e->steps[i].nchunks > 1) &&
            !bny_xfer_announces(op->comm->peers[s->peer].ep, most, placeable))
            continue;
        x->window_wanted |= placeable && most > 4096;
        e->unannounced += !x->cts_wanted;
        x->cts_wanted = 1;
    }
}

static int open_start(struct bny_op *op)
{
    struct bny_engine *e = bny_engine_of(op);
    const struct bny_program *p = e->program;
    int rc = bny_engine_operands(op);

    if (rc)
        return rc;
    for (uint32_t i = 0; i < p->nsteps; i++)
        step_prepare(op, i);
    e->is_coded = 0;
    if (op->plan.codec)
        rc = bny_coded_start(op);
    if (rc)
        return rc;
    ready_prepare(op);
    unheard_prepare(op);
    memset(e->ready, 0xff, (p->nsteps + 63) / 64 * sizeof *e->ready);
    if (p->nsteps % 64)
        e->ready[p->nsteps / 64] = (1ull << (p->nsteps % 64)) - 1;
    e->steps_left = p->nsteps;
    e->tile_of = NULL;
    e->start_ns = op->plan.pace_s > 0 || e->cts_missing ? bny_now_ns() : 0;
    e->close_ns = 0;
    return 0;
}

/* ---- CTS ---- */

/* The whole output of the operation, as peers may put into it. */
static size_t output_bytes(const struct bny_op *op)
{
    const struct bny_engine *e = bny_engine_of(op);
    const struct bny_block *last = &e->blocks[e->program->nblocks - 1];

    return (last->pos + last->count) * op->esz;
}

int bny_engine_announce(struct bny_op *op)
{
    struct bny_engine *e = bny_engine_of(op);
    int moved = 0;

    for (int r = 0; r < op->comm->n && e->unannounced; r++) {
        struct bny_xfer *x = &e->peers[r].xfer;
        int rc;

        if (!x->cts_wanted || x->cts_sent)
            continue;
        BNY_ASSERT(r != op->comm->rank);
        rc = bny_xfer_announce(op, op->comm->peers[r].ep, x, op->out, output_bytes(op));
        if (rc == BNY_AGAIN) { /* no event tells when there is room again */
            bny_op_mark_runnable(op);
            continue;
        }
        e->unannounced--;
        moved = 1;
        if (rc < 0) {
            x->cts_sent = 1; /* not again: the failure ends the operation */
            bny_op_send_failed(op, r, rc, "saying that it is ready failed");
        }
    }
    return moved;
}

void bny_engine_park(struct bny_op *op, uint32_t i)
{
    struct bny_engine *e = bny_engine_of(op);
    struct bny_engine_peer *pr = &e->peers[e->program->steps[i].peer];

    if (e->steps[i].waits_for_cts)
        return;
    e->steps[i].waits_for_cts = 1;
    e->steps[i].waiting_cts = pr->waiting_cts;
    pr->waiting_cts = i + 1;
}

static void unpark(struct bny_op *op, int peer)
{
    struct bny_engine *e = bny_engine_of(op);
    struct bny_engine_peer *pr = &e->peers[peer];

    while (pr->waiting_cts) {
        uint32_t i = pr->waiting_cts - 1;
        pr->waiting_cts = e->steps[i].waiting_cts;
        e->steps[i].waits_for_cts = 0;
        bny_engine_wake_step(op, i);
    }
}

void bny_engine_announced(struct bny_op *op, int from, struct bny_msg *msg)
{
    struct bny_engine *e = bny_engine_of(op);

    e->cts_missing -= e->peers[from].is_awaited;
    e->peers[from].is_awaited = 0;
    bny_xfer_announced(&e->peers[from].xfer, msg, output_bytes(op));
    unpark(op, from);
    bny_msg_release(&op->comm->world->held, msg);
}

/* Point to point: one step, one peer. */
static void open_changed(struct bny_op *op, enum bny_notice change)
{
    struct bny_engine *e = bny_engine_of(op);
    struct bny_xfer *x = &e->peers[op->call.root].xfer;

    if (change == BNY_NOTICE_NUMBER) {
        e->unannounced += x->cts_sent;
        x->cts_sent = x->cts_seen = 0;
        memset(&x->theirs, 0, sizeof x->theirs);
    }
    if (op->match.announce && !x->cts_wanted) { /* may have come with another number */
        x->cts_wanted = 1;
        e->unannounced++;
    }
    unpark(op, op->call.root);
    bny_op_mark_runnable(op);
}

static void open_notify(struct bny_op *op, enum bny_notice what, uint32_t step)
{
    if (what == BNY_NOTICE_SENT)
        bny_engine_sent(op, step);
    else
        open_changed(op, what);
}

/* ---- the end ---- */

/* A peer that was stopped (SIGSTOP, a debugger) in the middle of a put keeps its hold on our
 * memory for as long as it is stopped. No call may wait that long: a failed operation gives up
 * after CLOSE_NS. The window is closed by then, so what may still come, should the peer go on,
 * is the rest of that one chunk. */
static int gives_up(struct bny_op *op, int r)
{
    struct bny_engine *e = bny_engine_of(op);

    if (!op->result)
        return 0;
    if (!e->close_ns)
        e->close_ns = bny_now_ns() + CLOSE_NS;
    if (!bny_deadline_passed(e->close_ns))
        return 0;
    bny_warn("rank %d stands still while it writes into the receive buffer of this failed "
             "operation: do not use that memory again before rank %d has ended",
             r, r);
    memset(&e->peers[r].xfer.ours, 0, sizeof e->peers[r].xfer.ours);
    return 1;
}

static int close_windows(struct bny_op *op)
{
    int rc = 0;

    for (int r = 0; r < op->comm->n; r++)
        if (bny_xfer_close(op->comm->peers[r].ep, &bny_engine_of(op)->peers[r].xfer,
                           op->result != 0) == BNY_AGAIN &&
            !gives_up(op, r)) {
            bny_op_mark_runnable(op);
            rc = BNY_AGAIN;
        }
    return rc;
}

static int open_end(struct bny_op *op, int result)
{
    struct bny_engine *e = bny_engine_of(op);

    for (uint32_t i = 0; result && i < e->program->nsteps; i++)
        bny_msg_list_release(&op->comm->world->held, &e->steps[i].arrived);
    if (result)
        bny_cookies_drop(op); /* the transport returns them later */
    if (e->is_coded)
        bny_coded_end(op, result);
    return close_windows(op);
}

/* ---- the ranks that it waits for ---- */

static unsigned open_pending(const struct bny_op *op, int r)
{
    const struct bny_engine *e = bny_engine_of(op);
    const struct bny_program *p = e->program;
    unsigned flags = 0;

    for (uint32_t i = 0; i < p->nsteps; i++) {
        if (p->steps[i].peer != r)
            continue;
        if (bny_is_send(&p->steps[i]))
            flags |= BNY_PENDING_SENDS;
        if (r != op->comm->rank && e->steps[i].done < e->steps[i].nchunks &&
            bny_msg_list_is_empty(&e->steps[i].arrived))
            flags |= BNY_PENDING_WAITS;
    }
    return flags;
}

const struct bny_way bny_way_program = {
    .traits = BNY_WAY_FAMILY | BNY_WAY_SENDS | BNY_WAY_AMONG,
    .cannot = bny_schedules_cannot,
    .seconds = bny_schedules_seconds,
    .plan = bny_schedules_plan,
    .init = open_init,
    .start = open_start,
    .try_now = bny_short_try,
    .advance = bny_engine_advance,
    .message = bny_engine_message,
    .notify = open_notify,
    .end = open_end,
    .pending = open_pending,
    .free = engine_free,
};
