/* SPDX-License-Identifier: BSD-3-Clause */
/* Where an operation of the engine begins and ends: its steps are prepared, its memory is
 * announced to the peers that send bulk (READY, with a window where they may put), windows are
 * closed again. In between chunks live: engine.c. */
#include <string.h>

#include "collectives/engine.h"

#define CLOSE_NS                                                                               \
    1000000000u /* for a peer that is in the middle of a put; normally that takes microseconds \
                 */

size_t bny_engine_chunk(const struct bny_op *op, const struct bny_step_state *st, uint32_t c)
{
    size_t at = (size_t)c * op->chunk_elems;
    size_t left = st->count - at;

    return left < op->chunk_elems ? left : op->chunk_elems;
}

int bny_engine_placeable(const struct bny_op *op, const struct bny_step *s,
                         const struct bny_ep *ep)
{
    return (s->flags & BNY_STEP_PLACE) && !op->steps[s - op->program->steps].encodes &&
           !op->call.vector && op->program->contiguous && (ep->ops->caps & BNY_TP_PUT);
}

void bny_engine_header(const struct bny_op *op, struct bny_hdr *h, const struct bny_step *s,
                       uint32_t c)
{
    h->comm = op->comm->id;
    h->seq = op->seq;
    h->step = (uint16_t)s->ordinal;
    h->kind = BNY_MSG_DATA;
    h->chan = s->chan;
    h->chunk = c;
    h->sig = op->sig;
    h->started = op->comm->next_seq;
    h->crc = 0;
}

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

static void step_prepare(struct bny_op *op, const struct bny_step *s, struct bny_step_state *st)
{
    const struct bny_block *b = &op->blocks[s->block];

    memset(st, 0, sizeof *st);
    st->twin = UINT32_MAX;
    st->src = operand(b, s->src);
    st->dst = (char *)operand(b, s->dst);
    st->pos = b->pos;
    for (uint32_t i = 0; i < s->nblocks; i++)
        st->count += b[i].count;
    st->nchunks =
        st->count ? (uint32_t)((st->count + op->chunk_elems - 1) / op->chunk_elems) : 1;
}

/* The longest that a chunk of n elements may be. */
static size_t wire_len(const struct bny_op *op, const struct bny_step_state *st, size_t n)
{
    return st->encodes ? bny_coded_most(op, n) : n * op->esz;
}

/* The last addition to a block and the first message that passes its sum on, when nothing
 * happens in between: the addition can store its result at the peer as well. */
static void twins_prepare(struct bny_op *op)
{
    const struct bny_program *p = op->program;

    for (uint32_t j = 0; j < p->nsteps; j++) {
        const struct bny_step *f = &p->steps[j];
        uint32_t last = UINT32_MAX;
        if (!bny_is_send(f) || f->src != BNY_OUT || f->peer == op->comm->rank ||
            !bny_engine_placeable(op, f, op->comm->peers[f->peer].ep) ||
            !op->comm->peers[f->peer].ep->ops->put_map)
            continue;
        for (uint32_t i = 0; i < j; i++) {
            const struct bny_step *s = &p->steps[i];
            if (bny_is_send(s) || s->dst != BNY_OUT || s->block >= f->block + f->nblocks ||
                f->block >= s->block + s->nblocks || (s->kind == BNY_KEEP && s->src == BNY_OUT))
                continue; /* writes none of these blocks */
            last = s->kind == BNY_RECV_ADD && s->block == f->block && s->nblocks == f->nblocks
                       ? i
                       : UINT32_MAX; /* somebody else's result, or a part of it */
        }
        if (last != UINT32_MAX && op->steps[last].twin == UINT32_MAX)
            op->steps[last].twin = j;
    }
}

/* Which peers must hear READY, because bulk will come from them. */
static void ready_prepare(struct bny_op *op)
{
    const struct bny_program *p = op->program;

    memset(op->peers, 0, sizeof *op->peers * (size_t)op->comm->n);
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const struct bny_step *s = &p->steps[i];
        struct bny_ep *ep;
        if ((s->kind != BNY_RECV_ADD && s->kind != BNY_RECV_COPY) || s->peer == op->comm->rank)
            continue;
        ep = op->comm->peers[s->peer].ep;
        /* The sender may find it bulk where we do not (it may read us, we not it): announce
         * from 4 KiB on. */
        if (wire_len(op, &op->steps[i], bny_engine_chunk(op, &op->steps[i], 0)) <=
            (ep->ops->caps & BNY_TP_DESC ? 4096 : ep->eager_max))
            continue;
        if (bny_engine_placeable(op, s, ep))
            op->peers[s->peer].window_open = 1; /* wanted; opened in bny_engine_announce */
        if (bny_engine_placeable(op, s, ep) || !(ep->ops->caps & BNY_TP_DESC))
            op->peers[s->peer].ready_wanted = 1;
    }
}

int bny_engine_start(struct bny_op *op)
{
    const struct bny_program *p = op->program;
    int rc;

    for (uint32_t i = 0; i < p->nsteps; i++)
        step_prepare(op, &p->steps[i], &op->steps[i]);
    rc = op->plan.codec ? bny_coded_start(op) : 0;
    if (rc)
        return rc;
    if (!op->plan.codec && op->call.redop.kind != BANYAN_AVG &&
        bny_redop_twice(&op->call.redop, op->call.dtype))
        twins_prepare(op);
    ready_prepare(op);
    op->steps_left = p->nsteps;
    op->tile_of = NULL;
    op->start_ns = op->plan.pace_s > 0 || op->plan.step_s > 0 ? bny_now_ns() : 0;
    op->open_first = 0;
    op->sends_in_flight = 0;
    op->dirty = 1;
    return 0;
}

/* The whole output of the operation, as peers may put into it. */
static size_t output_bytes(const struct bny_op *op)
{
    const struct bny_block *last = &op->blocks[op->program->nblocks - 1];

    return (last->pos + last->count) * op->esz;
}

int bny_engine_announce(struct bny_op *op)
{
    static const struct bny_step control = { .chan = 0 };
    int moved = 0;

    for (int r = 0; r < op->comm->n; r++) {
        struct bny_op_peer *pr = &op->peers[r];
        struct bny_ep *ep = op->comm->peers[r].ep;
        struct bny_hdr h;
        int rc;
        if (!pr->ready_wanted || pr->ready_sent)
            continue;
        if (pr->window_open && !pr->ours.bytes) {
            rc = ep->ops->window_open(ep, op->out, output_bytes(op), &pr->ours);
            if (rc != 0) { /* no window: the peer sends by another way */
                memset(&pr->ours, 0, sizeof pr->ours);
                pr->window_open = 0;
            }
        }
        bny_engine_header(op, &h, &control, 0);
        h.kind = BNY_MSG_READY;
        h.len = h.codec_len_raw = sizeof pr->ours;
        rc = ep->ops->eager(ep, &h, &pr->ours);
        if (rc == 0) {
            pr->ready_sent = 1;
            moved = 1;
        } else if (rc == BNY_AGAIN) { /* no event tells when there is room again */
            op->dirty = 1;
        }
    }
    return moved;
}

void bny_engine_announced(struct bny_op *op, int from, struct bny_msg *msg)
{
    struct bny_op_peer *pr = &op->peers[from];

    if (msg->hdr.len == sizeof pr->theirs && msg->data) {
        memcpy(&pr->theirs, msg->data, sizeof pr->theirs);
        if (pr->theirs.bytes < output_bytes(op))
            memset(&pr->theirs, 0, sizeof pr->theirs);
    }
    pr->ready_seen = 1;
    bny_msg_release(op->comm->world, msg);
}

/* A peer that was stopped (SIGSTOP, a debugger) in the middle of a put keeps its hold on our
 * memory for as long as it is stopped. No call may wait that long: a failed operation gives up
 * after CLOSE_NS. The window is closed by then, so what may still come, should the peer go on,
 * is the rest of that one chunk. */
static int gives_up(struct bny_op *op, int r)
{
    if (!op->result)
        return 0;
    if (!op->close_ns)
        op->close_ns = bny_now_ns() + CLOSE_NS;
    if (!bny_deadline_passed(op->close_ns))
        return 0;
    bny_warn("rank %d stands still while it writes into the receive buffer of this failed "
             "operation: do not use that "
             "memory again before rank %d has ended",
             r, r);
    return 1;
}

int bny_engine_close(struct bny_op *op)
{
    int rc = 0;

    for (int r = 0; r < op->comm->n; r++) {
        struct bny_op_peer *pr = &op->peers[r];
        struct bny_ep *ep = op->comm->peers[r].ep;
        if (!pr->ours.bytes)
            continue;
        if (op->result && ep->ops->fence)
            ep->ops->fence(ep);
        if (ep->ops->window_close(ep, &pr->ours) == BNY_AGAIN && !gives_up(op, r))
            rc = BNY_AGAIN;
        else
            memset(&pr->ours, 0, sizeof pr->ours);
    }
    return rc;
}

void bny_engine_drop(struct bny_op *op)
{
    struct bny_world *w = op->comm->world;

    for (uint32_t i = 0; i < op->program->nsteps; i++)
        while (op->steps[i].arrived) {
            struct bny_msg *msg = op->steps[i].arrived;
            op->steps[i].arrived = msg->next;
            bny_msg_release(w, msg);
        }
    for (struct bny_cookie *ck = op->cookies, *next; ck;
         ck = next) { /* the transport returns them later */
        next = ck->next;
        ck->op = NULL;
    }
    op->cookies = NULL;
    op->sends_in_flight = 0;
}
