/* SPDX-License-Identifier: BSD-3-Clause */
/* Where an operation of the engine begins and ends: its steps are prepared, its memory is
 * announced to the peers that send bulk (READY, with a window where they may put), windows are
 * closed again. In between chunks live: chunk.c. */
#include <stdlib.h>
#include <string.h>

#include "collectives/engine/coded.h"

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

static int init(struct bny_op *op)
{
    struct bny_engine *e = bny_engine_of(op);
    const struct bny_program *p = op->plan.program;
    int rc;

    if (!e)
        e = op->of_path[BNY_PATH_ENGINE] = calloc(1, sizeof *e);
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
    free(e->writers);
    free(e->peers);
    free(e->scratch);
    free(e->scratch2);
    free(e->tile);
    free(e);
    op->of_path[BNY_PATH_ENGINE] = NULL;
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
    st->twin = UINT32_MAX;
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
    return bny_coded_travels(op, i) ? bny_coded_most(op, n) : n * op->esz;
}

/* The send passes on what lies in OUT, and could be stored at its peer by whoever makes it. */
static int may_be_stored(const struct bny_op *op, uint32_t i)
{
    const struct bny_step *s = &bny_engine_of(op)->program->steps[i];

    return bny_is_send(s) && s->src == BNY_OUT && s->peer != op->comm->rank &&
           bny_engine_placeable(op, i) && op->comm->peers[s->peer].ep->ops->put_map;
}

/* The last addition to a block and the first message that passes its sum on, when nothing
 * happens in between: the addition can store its result at the peer as well. One pass in
 * program order, which remembers of each block the last step that wrote it (1 + its index). */
static int twins_prepare(struct bny_op *op)
{
    struct bny_engine *e = bny_engine_of(op);
    const struct bny_program *p = e->program;
    int rc = bny_grow(&e->writers, &e->writers_cap, p->nblocks, sizeof *e->writers, "blocks");

    if (rc)
        return rc;
    memset(e->writers, 0, p->nblocks * sizeof *e->writers);
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const struct bny_step *s = &p->steps[i], *w;
        uint32_t last = 0;

        if (may_be_stored(op, i)) {
            for (uint32_t b = s->block; b < s->block + s->nblocks; b++)
                last = e->writers[b] > last ? e->writers[b] : last;
            w = last ? &p->steps[last - 1] : NULL;
            if (w && w->kind == BNY_RECV_ADD && w->block == s->block &&
                w->nblocks == s->nblocks && e->steps[last - 1].twin == UINT32_MAX)
                e->steps[last - 1].twin = i;
        } else if (!bny_is_send(s) && s->dst == BNY_OUT &&
                   !(s->kind == BNY_KEEP && s->src == BNY_OUT)) {
            for (uint32_t b = s->block; b < s->block + s->nblocks; b++)
                e->writers[b] = i + 1;
        }
    }
    return 0;
}

/* Must the peer say READY before the step's first chunk goes? */
static int awaits(const struct bny_op *op, uint32_t i)
{
    const struct bny_engine *e = bny_engine_of(op);
    const struct bny_step *s = &e->program->steps[i];

    return bny_is_send(s) && s->peer != op->comm->rank &&
           bny_xfer_needs_ready(op->comm->peers[s->peer].ep,
                                wire_len(op, i, bny_engine_chunk(op, &e->steps[i], 0)),
                                bny_engine_placeable(op, i));
}

static void unheard_prepare(struct bny_op *op)
{
    struct bny_engine *e = bny_engine_of(op);
    const struct bny_program *p = e->program;

    e->unheard = 0;
    for (uint32_t i = 0; op->plan.ready_s > 0 && i < p->nsteps; i++) {
        uint8_t *is_awaited =
            p->steps[i].peer < 0 ? NULL : &e->peers[p->steps[i].peer].is_awaited;

        if (!is_awaited || *is_awaited || !awaits(op, i))
            continue;
        *is_awaited = 1;
        e->unheard++;
    }
}

/* Which peers must hear READY, because bulk will come from them. */
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
        e->unannounced += !x->ready_wanted;
        x->ready_wanted = 1;
    }
}

static int start(struct bny_op *op)
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
    else if (bny_call_row(&op->call)->reduces && op->call.redop.kind != BANYAN_AVG &&
             bny_redop_twice(&op->call.redop, op->call.dtype))
        rc = twins_prepare(op);
    if (rc)
        return rc;
    ready_prepare(op);
    unheard_prepare(op);
    memset(e->ready, 0xff, (p->nsteps + 63) / 64 * sizeof *e->ready);
    if (p->nsteps % 64)
        e->ready[p->nsteps / 64] = (1ull << (p->nsteps % 64)) - 1;
    e->steps_left = p->nsteps;
    e->tile_of = NULL;
    e->start_ns = op->plan.pace_s > 0 || e->unheard ? bny_now_ns() : 0;
    e->close_ns = 0;
    return 0;
}

/* ---- READY ---- */

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

        if (!x->ready_wanted || x->ready_sent)
            continue;
        BNY_ASSERT(r != op->comm->rank);
        rc = bny_xfer_announce(op, op->comm->peers[r].ep, x, op->out, output_bytes(op));
        if (rc == BNY_AGAIN) { /* no event tells when there is room again */
            bny_op_stir(op);
            continue;
        }
        e->unannounced--;
        moved = 1;
        if (rc < 0) {
            x->ready_sent = 1; /* not again: the failure ends the operation */
            bny_op_send_failed(op, r, rc, "saying that it is ready failed");
        }
    }
    return moved;
}

void bny_engine_park(struct bny_op *op, uint32_t i)
{
    struct bny_engine *e = bny_engine_of(op);
    struct bny_engine_peer *pr = &e->peers[e->program->steps[i].peer];

    if (e->steps[i].is_parked)
        return;
    e->steps[i].is_parked = 1;
    e->steps[i].parked = pr->parked;
    pr->parked = i + 1;
}

static void unpark(struct bny_op *op, int peer)
{
    struct bny_engine *e = bny_engine_of(op);
    struct bny_engine_peer *pr = &e->peers[peer];

    while (pr->parked) {
        uint32_t i = pr->parked - 1;
        pr->parked = e->steps[i].parked;
        e->steps[i].is_parked = 0;
        bny_engine_rouse(op, i);
    }
}

void bny_engine_announced(struct bny_op *op, int from, struct bny_msg *msg)
{
    struct bny_engine *e = bny_engine_of(op);

    e->unheard -= e->peers[from].is_awaited;
    e->peers[from].is_awaited = 0;
    bny_xfer_announced(&e->peers[from].xfer, msg, output_bytes(op));
    unpark(op, from);
    bny_msg_release(&op->comm->world->held, msg);
}

/* Point to point: one step, one peer. */
static void changed(struct bny_op *op, enum bny_change change)
{
    struct bny_engine *e = bny_engine_of(op);
    struct bny_xfer *x = &e->peers[op->call.root].xfer;

    if (change == BNY_CHANGE_NUMBER) {
        e->unannounced += x->ready_sent;
        x->ready_sent = x->ready_seen = 0;
        memset(&x->theirs, 0, sizeof x->theirs);
    }
    if (op->match.announce && !x->ready_wanted) { /* may have come with another number */
        x->ready_wanted = 1;
        e->unannounced++;
    }
    unpark(op, op->call.root);
    bny_op_stir(op);
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
            bny_op_stir(op);
            rc = BNY_AGAIN;
        }
    return rc;
}

static void drop(struct bny_op *op, int result)
{
    struct bny_engine *e = bny_engine_of(op);

    for (uint32_t i = 0; result && i < e->program->nsteps; i++)
        bny_msg_list_release(&op->comm->world->held, &e->steps[i].arrived);
    if (result)
        bny_cookies_drop(op); /* the transport returns them later */
    if (e->is_coded)
        bny_coded_end(op, result);
}

/* ---- who is waited for ---- */

static int waits_on(const struct bny_op *op, int r)
{
    const struct bny_engine *e = bny_engine_of(op);
    const struct bny_program *p = e->program;

    for (uint32_t i = 0; r != op->comm->rank && i < p->nsteps; i++)
        if (p->steps[i].peer == r && e->steps[i].done < e->steps[i].nchunks &&
            bny_msg_list_is_empty(&e->steps[i].arrived))
            return 1;
    return 0;
}

static int sends_to(const struct bny_op *op, int r)
{
    const struct bny_program *p = bny_engine_of(op)->program;

    for (uint32_t i = 0; i < p->nsteps; i++)
        if (p->steps[i].peer == r && bny_is_send(&p->steps[i]))
            return 1;
    return 0;
}

const struct bny_path_ops bny_path_engine = {
    .init = init,
    .start = start,
    .advance = bny_engine_advance,
    .message = bny_engine_message,
    .sent = bny_engine_sent,
    .changed = changed,
    .drop = drop,
    .close = close_windows,
    .waits_on = waits_on,
    .sends_to = sends_to,
    .free = engine_free,
};
