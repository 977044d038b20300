/* SPDX-License-Identifier: BSD-3-Clause */
/* The life of a chunk: encode, send, receive, decode-and-add, pass on. The only file that sees
 * steps, codecs and transports together. Functions stand in the order a chunk meets them.
 *
 * Nothing here blocks: bny_engine_advance() makes one pass over the open steps of an operation,
 * each of which may move one chunk. Passing over all steps chunk by chunk, instead of step by
 * step, keeps a chunk in the cache from its first addition to its last send.
 *
 * Ways a chunk can leave (bny_engine_send), by size and by what the transport can do:
 *   eager    copied into the transport's ring; needs nothing of the peer
 *   put      straight to its final place at the peer, after the peer's READY with its window
 *   send     by reference: the peer pulls it (descriptor), or the network card reads it
 *   reserve  copied or encoded into lent send memory
 * Bulk to a peer that has not announced the operation (READY) waits, unless the transport only
 * posts a descriptor. */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "collectives/engine.h"
#include "collectives/trace.h"

#define TILE_BYTES                                                                             \
    (128u << 10) /* pulled at a time when it is added: stays in the first-level cache's reach  \
                  */
#define BORROWED_MAX                                                                           \
    2 /* chunks of a peer's link at once, by age: one on its way, one behind it */

/* Payload that is better not copied through the eager ring. On a transport that posts
 * descriptors that begins where zero copy pays; elsewhere where eager ends. */
static int is_bulk(const struct bny_ep *ep, size_t len)
{
    return len > ep->eager_max || ((ep->ops->caps & BNY_TP_DESC) && len >= ep->zcopy_min);
}

/* A put is our work, a descriptor the receiver's. In a broadcast the root has nothing else to
 * do, and neither have the receivers: they share the copying. In other collectives all are
 * busy, and a put finds the chunk in our cache. */
static int root_puts(const struct bny_op *op, uint32_t chunk)
{
    uint32_t n = (uint32_t)op->comm->n;

    return op->call.collective != BNY_BROADCAST || chunk % n == n - 1;
}

/* ---- encode and send ---- */

int bny_engine_send(struct bny_op *op, uint32_t index, struct bny_hdr *h, const char *ptr,
                    uint32_t len, uint64_t put_offset)
{
    const struct bny_step *s = &op->program->steps[index];
    struct bny_ep *ep = op->comm->peers[s->peer].ep;
    struct bny_op_peer *pr = &op->peers[s->peer];
    struct bny_cookie *ck;
    struct bny_slot slot;
    int rc;

    h->len = h->codec_len_raw = len;
    if (!is_bulk(ep, len)) {
        rc = ep->ops->eager(ep, h, ptr);
        return rc == 0 ? 1 : rc;
    }
    if (!pr->ready_seen && (bny_engine_placeable(op, s, ep) || !(ep->ops->caps & BNY_TP_DESC)))
        return BNY_AGAIN;
    if (bny_engine_placeable(op, s, ep) && pr->theirs.bytes && root_puts(op, h->chunk)) {
        h->kind = BNY_MSG_PUT;
        h->len = 0;
        if (ep->ops->caps & BNY_TP_PUT_SYNC) {
            if (op->steps[index].stored > h->chunk)
                ptr = NULL; /* add_twice() has put it there */
            rc = ep->ops->put(ep, h, ptr, len, &pr->theirs, put_offset, NULL);
            return rc == 0 ? 1 : rc;
        }
        ck = bny_cookie_take(op->comm->world, op, index);
        if (!ck)
            return -BANYAN_ENOMEM;
        rc = ep->ops->put(ep, h, ptr, len, &pr->theirs, put_offset, ck);
        if (rc != 0)
            bny_cookie_give(op->comm->world, ck);
        if (rc != -BANYAN_ENOTSUP)
            return rc == 0 ? 2 : rc;
        h->kind = BNY_MSG_DATA; /* this memory is not registered: as any other message */
        h->len = len;
    }
    if (len >= ep->zcopy_min || len > ep->slot_max) {
        ck = bny_cookie_take(op->comm->world, op, index);
        if (!ck)
            return -BANYAN_ENOMEM;
        rc = ep->ops->send(ep, h, ptr, ck);
        if (rc != 0)
            bny_cookie_give(op->comm->world, ck);
        if (rc != -BANYAN_ENOTSUP || len > ep->slot_max)
            return rc == 0 ? 2 : rc;
    }
    rc = ep->ops->reserve(ep, len, &slot);
    if (rc != 0)
        return rc;
    memcpy(slot.mem, ptr, len);
    ep->tp->copied_bytes += len;
    rc = ep->ops->commit(ep, &slot, h);
    return rc == 0 ? 1 : rc;
}

static void trace_send(const struct bny_op *op, struct bny_step_state *st, uint32_t c, int rc,
                       uint64_t t0, size_t bytes)
{
    if (rc == BNY_AGAIN && st->awaits)
        return;
    if (rc == BNY_AGAIN) {
        st->credit_ns = st->credit_ns ? st->credit_ns : t0;
        return;
    }
    if (st->credit_ns)
        bny_trace_add(op, st, BNY_TRACE_CREDIT, c, st->credit_ns, t0, 0);
    st->credit_ns = 0;
    if (rc > 0)
        bny_trace(op, st, BNY_TRACE_POST, c, t0, bytes);
}

static int send_chunk(struct bny_op *op, uint32_t index, uint32_t c)
{
    const struct bny_step *s = &op->program->steps[index];
    struct bny_step_state *st = &op->steps[index];
    size_t at = (size_t)c * op->chunk_elems, n = bny_engine_chunk(op, st, c);
    uint64_t t0 = bny_trace_clock(op);
    struct bny_hdr h;
    int rc;

    bny_engine_header(op, &h, s, c);
    if (st->encodes)
        rc = bny_coded_send(op, index, &h);
    else
        rc = bny_engine_send(op, index, &h, st->src + at * op->esz, (uint32_t)(n * op->esz),
                             (st->pos + at) * op->esz);
    if (rc == 2) {
        op->sends_in_flight++;
        op->peers[s->peer].borrowed++;
    }
    if (__builtin_expect(t0 != 0, 0))
        trace_send(op, st, c, rc, t0, h.kind == BNY_MSG_PUT ? n * op->esz : h.len);
    return rc;
}

/* ---- receive, decode and add ---- */

static int grow_tile(struct bny_op *op, size_t bytes)
{
    if (op->tile_cap >= bytes)
        return 0;
    free(op->tile);
    op->tile = malloc(bytes);
    op->tile_cap = op->tile ? bytes : 0;
    return op->tile ? 0 : bny_fail(BANYAN_ENOMEM, "no memory for a tile of %zu bytes", bytes);
}

static void add(struct bny_op *op, const struct bny_step *s, struct bny_step_state *st,
                size_t byte_off, const void *in, size_t bytes)
{
    size_t n = bytes / op->esz;
    char *dst = st->dst + byte_off;
    const char *src = st->src + byte_off;

    if (s->flags & BNY_STEP_REV)
        bny_redop_run(&op->call.redop, op->call.dtype, dst, in, src, n);
    else
        bny_redop_run(&op->call.redop, op->call.dtype, dst, src, in, n);
}

/* Adds, and stores the sums in the next rank's window too, where that is memory we can reach.
 * 1: done. */
static int add_twice(struct bny_op *op, const struct bny_step *s, struct bny_step_state *st,
                     size_t byte_off, const void *in, size_t bytes)
{
    const struct bny_step *f;
    struct bny_step_state *tw;
    struct bny_op_peer *pr;
    struct bny_ep *ep;
    const void *src = st->src + byte_off;
    void *there;

    if (st->twin == UINT32_MAX)
        return 0;
    f = &op->program->steps[st->twin];
    tw = &op->steps[st->twin];
    if (tw->stored < tw->posted)
        tw->stored = tw->posted;
    if (tw->stored !=
        st->done) /* a chunk before it was added without being stored, and still must be sent */
        return 0;
    pr = &op->peers[f->peer];
    ep = op->comm->peers[f->peer].ep;
    if (!pr->theirs.bytes || !is_bulk(ep, bytes))
        return 0;
    there = ep->ops->put_map(ep, &pr->theirs, st->pos * op->esz + byte_off, (uint32_t)bytes);
    if (!there)
        return 0;
    bny_redop_twice(&op->call.redop, op->call.dtype)(
        st->dst + byte_off, there, s->flags & BNY_STEP_REV ? in : src,
        s->flags & BNY_STEP_REV ? src : in, bytes / op->esz);
    ep->ops->put_unmap(ep);
    tw->stored = st->done + 1;
    return 1;
}

/* Brings the whole payload into op->tile. 1 when it is there, 0 not yet, or an error. */
static int pull_to_tile(struct bny_op *op, struct bny_step_state *st, struct bny_msg *msg)
{
    const void *ptr;
    int rc;

    if (op->tile_of && op->tile_of != st)
        return 0; /* another message is half in it */
    rc = grow_tile(op, msg->hdr.len);
    if (rc)
        return rc;
    op->tile_of = st;
    while (st->view_off < msg->hdr.len) {
        long got = msg->ep->ops->view(msg, st->view_off, msg->hdr.len - st->view_off,
                                      op->tile + st->view_off, &ptr);
        if (got == BNY_AGAIN)
            return 0;
        if (got < 0)
            return (int)got;
        st->view_off += (uint32_t)got;
    }
    op->tile_of = NULL;
    return 1;
}

/* Raw payload that is still in the transport: views it tile by tile, and adds or places each
 * tile while it is hot. */
static int apply_viewed(struct bny_op *op, const struct bny_step *s, struct bny_step_state *st,
                        struct bny_msg *msg, size_t base)
{
    while (st->view_off < msg->hdr.len) {
        uint32_t want = msg->hdr.len - st->view_off;
        void *dst = NULL;
        const void *ptr;
        long got;
        if (s->kind == BNY_RECV_COPY)
            dst = st->dst + base + st->view_off;
        else if (want > TILE_BYTES)
            want = TILE_BYTES;
        got = msg->ep->ops->view(msg, st->view_off, want, dst, &ptr);
        if (got == BNY_AGAIN)
            return 0;
        if (got < 0)
            return (int)got;
        if (s->kind == BNY_RECV_ADD)
            add(op, s, st, base + st->view_off, ptr, (size_t)got);
        st->view_off += (uint32_t)got;
    }
    return 1;
}

/* A chunk that its codec declined: what must be known before it is used as it is. */
static int take_raw(struct bny_op *op, struct bny_step_state *st, const struct bny_msg *msg,
                    const void *data, uint32_t c)
{
    if (op->comm->world->codec_crc &&
        (!data || bny_crc32c(0, data, msg->hdr.len) != msg->hdr.crc))
        return bny_fail(BANYAN_EPROTO, "a raw chunk fails its checksum");
    if (st->coded)
        st->coded_len[c] = BNY_LEN_RAW;
    return 0;
}

/* Applies the message at the head of the step's queue, which is chunk st->done. 1 done, 0 not
 * all of it has arrived, or an error. */
static int apply_data(struct bny_op *op, const struct bny_step *s, struct bny_step_state *st)
{
    struct bny_msg *msg = st->arrived;
    uint32_t c = st->done;
    size_t n = bny_engine_chunk(op, st, c), base = (size_t)c * op->chunk_elems * op->esz;
    const void *data = msg->data;
    int coded = st->encodes && msg->hdr.kind == BNY_MSG_DATA, rc;

    if (msg->hdr.kind == BNY_MSG_PUT || msg->hdr.len == 0)
        return 1;
    if (bny_msg_is_draining(msg))
        return 0;
    if (!data && (coded || op->call.redop.elem_bytes ||
                  (msg->hdr.kind == BNY_MSG_RAW &&
                   op->comm->world->codec_crc))) { /* needs the message in one piece */
        rc = pull_to_tile(op, st, msg);
        if (rc != 1)
            return rc;
        data = op->tile;
    }
    if (coded) {
        uint64_t t0 = bny_trace_clock(op);
        bny_trace(op, st, BNY_TRACE_ARRIVE, c, t0, msg->hdr.len);
        rc = bny_coded_apply(op, s, st, data, msg->hdr.len, c, n);
        bny_trace(op, st, BNY_TRACE_DECODE, c, t0, n * op->esz);
        return rc == 0 ? 1 : rc;
    }
    if (msg->hdr.kind == BNY_MSG_RAW) {
        rc = take_raw(op, st, msg, data, c);
        if (rc)
            return rc;
    }
    if (!data)
        return apply_viewed(op, s, st, msg, base);
    if (s->kind == BNY_RECV_COPY) {
        memcpy(st->dst + base, data, msg->hdr.len);
        if (msg->ep)
            msg->ep->tp->copied_bytes += msg->hdr.len;
        return 1;
    }
    if (!add_twice(op, s, st, base, data, msg->hdr.len))
        add(op, s, st, base, data, msg->hdr.len);
    return 1;
}

static int apply(struct bny_op *op, const struct bny_step *s, struct bny_step_state *st)
{
    const struct bny_hdr *h = &st->arrived->hdr;
    uint64_t t0 = bny_trace_clock(op);
    uint32_t c = st->done, before = st->view_off;
    int rc = apply_data(op, s, st);

    if (__builtin_expect(t0 == 0, 1) || (st->encodes && h->kind == BNY_MSG_DATA) || rc < 0)
        return rc; /* what is encoded was noted where it was decoded */
    if (rc == 1)
        bny_trace(op, st, BNY_TRACE_ARRIVE, c, st->view_off > before ? bny_now_ns() : t0,
                  h->len);
    if (h->len && (rc == 1 || st->view_off > before)) /* put: nothing is left to do */
        bny_trace(op, st, BNY_TRACE_DECODE, c, t0,
                  st->view_off > before ? st->view_off - before : h->len);
    return rc;
}

/* The block is fully reduced here: finish it (AVG), and with a lossy codec keep what everybody
 * else will decode. */
static int keep_chunk(struct bny_op *op, struct bny_step_state *st, uint32_t c)
{
    size_t n = bny_engine_chunk(op, st, c), base = (size_t)c * op->chunk_elems * op->esz;
    const char *src = st->src + base;
    char *dst = st->dst + base;

    if (st->encodes)
        return bny_coded_keep(op, st, c);
    if (bny_averages(op)) {
        bny_divide(dst, src, n, op->call.dtype, op->comm->n);
        src = dst;
    }
    if (src != dst && n)
        memmove(dst, src, n * op->esz);
    return 0;
}

/* ---- order ---- */

static void step_done(struct bny_op *op, struct bny_step_state *st)
{
    if (++st->done == st->nchunks)
        op->steps_left--;
}

/* The latest chunk posted was copied: its memory is free already. */
static void sent_at_once(struct bny_op *op, struct bny_step_state *st)
{
    if (st->done + 1 == st->posted)
        step_done(op, st);
    else
        st->early++; /* what depends on chunks before it still has to wait: bny_engine_sent */
}

void bny_engine_sent(struct bny_op *op, uint32_t step)
{
    struct bny_step_state *st = &op->steps[step];

    st->done++;
    if (st->done + st->early == st->posted) {
        st->done += st->early;
        st->early = 0;
    }
    if (st->done == st->nchunks)
        op->steps_left--;
    op->sends_in_flight--;
    op->peers[op->program->steps[step].peer].borrowed--;
    op->dirty = 1;
}

static void fail_step(struct bny_op *op, const struct bny_step *s, uint32_t chunk, int rc)
{
    struct bny_world *w = op->comm->world;
    int world_rank = s->peer >= 0 ? op->comm->peers[s->peer].world_rank : w->rank;

    /* A peer's true death is told by the transport and the control plane; that it left is less
     * than any cause that made it leave, which we may be about to hear. */
    if (rc == -BANYAN_ERANKDEAD && w->control)
        bny_control_progress(w->control);
    bny_report(w, rc == -BANYAN_ERANKDEAD ? NULL : op->comm,
               rc == -BANYAN_ERANKDEAD ? BNY_CAUSE_LEFT : BNY_CAUSE_RESET,
               (enum banyan_error) - rc, world_rank,
               "%s: chunk %u of message %u with rank %d failed: %s",
               bny_collective_name(op->call.collective), chunk, s->ordinal, s->peer,
               *banyan_last_error() ? banyan_last_error() : banyan_strerror(rc));
}

/* Moves at most one chunk of a step. 1: moved, 0: not now. */
static int advance_step(struct bny_op *op, uint32_t i)
{
    const struct bny_step *s = &op->program->steps[i];
    struct bny_step_state *st = &op->steps[i];
    struct bny_msg *msg;
    int rc;

    if (bny_is_send(s)) {
        if (!bny_engine_may_send(op, i))
            return 0;
        rc = send_chunk(op, i, st->posted);
        if (rc == BNY_AGAIN) {
            op->dirty = 1;
            return 0;
        }
        if (rc < 0) {
            fail_step(op, s, st->posted, rc);
            return 0;
        }
        st->posted++;
        if (rc == 1)
            sent_at_once(op, st);
        return 1;
    }
    if (st->done == st->nchunks)
        return 0;
    if (s->kind == BNY_KEEP) {
        if (!bny_engine_is_ready(op, i, st->done))
            return 0;
        rc = keep_chunk(op, st, st->done);
        if (rc < 0) {
            fail_step(op, s, st->done, rc);
            return 0;
        }
        step_done(op, st);
        return 1;
    }
    if (!st->arrived || st->arrived->hdr.chunk != st->done ||
        !bny_engine_is_ready(op, i, st->done))
        return 0;
    rc = apply(op, s, st);
    if (rc < 0) {
        fail_step(op, s, st->done, rc);
        return 0;
    }
    if (rc == 0) { /* the rest is still arriving: no event will tell */
        op->dirty = 1;
        return 0;
    }
    msg = st->arrived;
    st->arrived = msg->next;
    st->view_off = 0;
    bny_msg_release(op->comm->world, msg);
    step_done(op, st);
    return 1;
}

/* Oldest chunk first, of equal ones the earlier step, for each peer; and only as many as keep
 * its link busy, so that what becomes ready later can still overtake. In order of steps alone
 * the far ends of trees starve while all chunks pass the near ones. */
static int send_by_chunk(struct bny_op *op)
{
    const struct bny_program *p = op->program;
    int moved = 0;

    for (int r = 0; r < op->comm->n; r++)
        op->peers[r].candidate = UINT32_MAX;
    for (uint32_t i = op->open_first; i < p->nsteps; i++) {
        struct bny_op_peer *pr;

        if (!bny_is_send(&p->steps[i]))
            continue;
        pr = &op->peers[p->steps[i].peer];
        if (pr->borrowed < BORROWED_MAX &&
            (pr->candidate == UINT32_MAX ||
             op->steps[i].posted < op->steps[pr->candidate].posted) &&
            bny_engine_may_send(op, i))
            pr->candidate = i;
    }
    for (int r = 0; r < op->comm->n && !atomic_load(&op->comm->failed); r++)
        if (op->peers[r].candidate != UINT32_MAX)
            moved |= advance_step(op, op->peers[r].candidate);
    return moved;
}

int bny_engine_advance(struct bny_op *op)
{
    const struct bny_program *p = op->program;
    int moved = bny_engine_announce(op);

    while (op->open_first < p->nsteps &&
           op->steps[op->open_first].done == op->steps[op->open_first].nchunks)
        op->open_first++;
    for (uint32_t i = op->open_first; i < p->nsteps && !atomic_load(&op->comm->failed); i++)
        if (!op->plan.by_chunk || !bny_is_send(&p->steps[i]))
            moved |= advance_step(op, i);
    if (op->plan.by_chunk)
        moved |= send_by_chunk(op);
    if (op->steps_left == 0)
        bny_op_complete(op, 0);
    return moved;
}

/* ---- messages ---- */

/* Is this the oldest unfinished receive from its peer on its channel? Then it may hold
 * transport memory. */
static int is_oldest(const struct bny_op *op, int from, uint32_t index)
{
    const struct bny_program *p = op->program;

    for (uint32_t k = p->recv_first[from]; k < p->recv_first[from + 1]; k++) {
        uint32_t i = p->recv_of[k];
        if (i == index)
            return 1;
        if (p->steps[i].chan == p->steps[index].chan &&
            op->steps[i].done < op->steps[i].nchunks)
            return 0;
    }
    return 0;
}

static int message_fits(struct bny_op *op, int from, const struct bny_msg *msg, uint32_t *index)
{
    const struct bny_program *p = op->program;
    const struct bny_hdr *h = &msg->hdr;
    struct bny_step_state *st;
    size_t n;

    if (p->recv_first[from] + h->step >= p->recv_first[from + 1])
        return 0;
    *index = p->recv_of[p->recv_first[from] + h->step];
    st = &op->steps[*index];
    if (h->chunk >= st->nchunks || h->chunk < st->done)
        return 0;
    n = bny_engine_chunk(op, st, h->chunk);
    if (st->encodes)
        return bny_coded_fits(op, st, h, n);
    if (h->kind == BNY_MSG_PUT)
        return h->len == 0 && op->peers[from].window_open;
    return h->kind == BNY_MSG_DATA && h->len == n * op->esz;
}

void bny_engine_message(struct bny_op *op, int from, struct bny_msg *msg)
{
    struct bny_step_state *st;
    struct bny_msg **at;
    uint32_t index;
    int held = 0;

    op->dirty = 1;
    if (msg->hdr.kind == BNY_MSG_READY) {
        bny_engine_announced(op, from, msg);
        return;
    }
    if (!message_fits(op, from, msg, &index)) {
        bny_mismatch_chunk(op, from, msg);
        bny_msg_release(op->comm->world, msg);
        return;
    }
    st = &op->steps[index];
    if (msg->data || msg->hdr.kind == BNY_MSG_PUT || msg->hdr.len == 0)
        bny_trace(op, st, BNY_TRACE_ARRIVE, msg->hdr.chunk, bny_trace_clock(op), msg->hdr.len);
    /* The rest of the one before may have come with this one, which else would have to be
     * copied aside. */
    while (st->view_off && !st->arrived->descriptor && advance_step(op, index))
        ;
    /* A descriptor waits for the pass over all steps: what it brings should be sent on while it
     * is in the cache, before the next one is added. Others are used at once, if it is their
     * turn: their memory is lent. */
    if (!msg->descriptor && !st->arrived && msg->hdr.chunk == st->done) {
        msg->next = NULL;
        st->arrived = msg;
        while (advance_step(op, index))
            ;
        if (st->arrived != msg)
            return;
        st->arrived = NULL;
        if (st->view_off) { /* half used: stays where it is */
            st->arrived = msg;
            return;
        }
    }
    for (at = &st->arrived; *at && (*at)->hdr.chunk < msg->hdr.chunk; at = &(*at)->next)
        held++;
    if (*at && (*at)->hdr.chunk == msg->hdr.chunk) {
        bny_msg_release(op->comm->world, msg); /* a peer that repeats itself */
        return;
    }
    if (held || msg->hdr.len <= 4096 || !is_oldest(op, from, index) || !msg->data) {
        msg = bny_msg_spill(op->comm->world, msg);
        if (!msg) {
            bny_report(op->comm->world, op->comm, BNY_CAUSE_RESET, BANYAN_ENOMEM,
                       op->comm->world->rank, "rank %d: no memory to hold a message",
                       op->comm->rank);
            return;
        }
    }
    msg->next = *at;
    *at = msg;
}
