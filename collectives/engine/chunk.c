/* SPDX-License-Identifier: BSD-3-Clause */
/* The life of a chunk: encode, send, receive, decode-and-add, pass on. Functions stand in the
 * order a chunk meets them.
 *
 * Nothing here blocks: bny_engine_advance() makes one pass over the steps that may be able to
 * move, each of which may move one chunk. Passing over all of them chunk by chunk, instead of
 * step by step, keeps a chunk in the cache from its first addition to its last send. A step
 * that cannot move is not looked at again before something happens that it waits for: a
 * message, a chunk of a step that it depends on, its peer's CTS, or time. */
#include <stdio.h>

#include "collectives/engine/coded.h"
#include "collectives/local/local.h"

/* Pulled at a time when it is added: stays in the first-level cache's reach. */
#define TILE_BYTES (128u << 10)

/* ---- encode and send ---- */

/* A put is our work, a descriptor the receiver's. In a broadcast the root has nothing else to
 * do, and neither have the receivers: they share the copying. In other collectives all are
 * busy, and a put finds the chunk in our cache. */
static int root_puts(const struct bny_op *op, uint32_t chunk)
{
    uint32_t n = (uint32_t)op->comm->n;

    return op->call.collective != BNY_BROADCAST || chunk % n == n - 1;
}

static void chunk_header(const struct bny_op *op, struct bny_hdr *h, const struct bny_step *s,
                         uint32_t c)
{
    bny_op_header(op, h, BNY_MSG_DATA);
    h->step = (uint16_t)(h->step + s->ordinal); /* point to point: 0 */
    h->chan = s->chan;
    h->chunk = c;
}

int bny_engine_send(struct bny_op *op, uint32_t i, struct bny_hdr *h, const char *ptr,
                    uint32_t len, uint64_t put_offset)
{
    const struct bny_engine *e = bny_engine_of(op);
    const struct bny_step *s = &e->program->steps[i];
    struct bny_xfer_send x = { .op = op,
                               .ep = op->comm->peers[s->peer].ep,
                               .peer = &e->peers[s->peer].xfer,
                               .step = i,
                               .ptr = ptr,
                               .len = len,
                               .placeable = bny_engine_placeable(op, i),
                               .offset = put_offset,
                               .prefers_put = root_puts(op, h->chunk) };

    return bny_xfer_send(&x, h);
}

static void trace_send(const struct bny_op *op, uint32_t i, uint32_t c, int rc, uint64_t t0,
                       size_t bytes)
{
    struct bny_step_state *st = &bny_engine_of(op)->steps[i];

    if (rc == BNY_AGAIN && bny_coded_awaits(op, i))
        return;
    if (rc == BNY_AGAIN || rc == BNY_WAITS_FOR_CTS) {
        st->credit_ns = st->credit_ns ? st->credit_ns : t0;
        return;
    }
    if (st->credit_ns)
        bny_trace_add(op, i, BNY_TRACE_CREDIT, c, st->credit_ns, t0, 0);
    st->credit_ns = 0;
    if (rc > 0)
        bny_trace(op, i, BNY_TRACE_POST, c, t0, bytes);
}

static int send_chunk(struct bny_op *op, uint32_t i, uint32_t c)
{
    struct bny_engine *e = bny_engine_of(op);
    const struct bny_step *s = &e->program->steps[i];
    struct bny_step_state *st = &e->steps[i];
    size_t at = (size_t)c * op->chunk_elems, n = bny_engine_chunk(op, st, c);
    uint64_t t0 = bny_trace_clock(op);
    struct bny_hdr h;
    int rc;

    chunk_header(op, &h, s, c);
    if (bny_coded_travels(op, i))
        rc = bny_coded_send(op, i, &h);
    else
        rc = bny_engine_send(op, i, &h, bny_in_at(st->src, at * op->esz),
                             (uint32_t)(n * op->esz), (st->pos + at) * op->esz);
    if (rc > 0)
        op->wire_bytes += h.kind == BNY_MSG_PUT ? n * op->esz : h.len;
    if (__builtin_expect(t0 != 0, 0))
        trace_send(op, i, c, rc, t0, h.kind == BNY_MSG_PUT ? n * op->esz : h.len);
    return rc;
}

/* ---- receive, decode and add ---- */

static void chunk_add(struct bny_op *op, const struct bny_step *s,
                      const struct bny_step_state *st, size_t byte_off, const void *in,
                      size_t bytes)
{
    size_t n = bytes / op->esz;
    char *dst = st->dst + byte_off;
    const char *src = st->src + byte_off;

    if (s->flags & BNY_STEP_REV)
        bny_local_reduce(&op->call.redop, op->call.dtype, dst, in, src, n);
    else
        bny_local_reduce(&op->call.redop, op->call.dtype, dst, src, in, n);
}

/* Payload in memory that is to be touched goes by pieces that stay in the first-level cache,
 * with what is added to them or not. */
#define ADD_PIECE   4096u
#define PLACE_PIECE 16384u

static void add_and_touch(struct bny_op *op, const struct bny_step *s,
                          const struct bny_step_state *st, size_t byte_off, struct bny_msg *msg)
{
    const char *in = msg->data;
    size_t len = msg->hdr.len;

    if (op->call.redop.user) { /* its elements may be of any length */
        chunk_add(op, s, st, byte_off, in, len);
        return;
    }
    for (size_t at = 0; at < len; at += ADD_PIECE) {
        size_t n = len - at < ADD_PIECE ? len - at : ADD_PIECE;

        chunk_add(op, s, st, byte_off + at, in + at, n);
        bny_touch(in + at, n);
    }
    msg->touch = 0;
}

static void place_and_touch(char *dst, struct bny_msg *msg)
{
    const char *in = msg->data;
    size_t len = msg->hdr.len;

    for (size_t at = 0; at < len; at += PLACE_PIECE) {
        size_t n = len - at < PLACE_PIECE ? len - at : PLACE_PIECE;

        bny_local_place(dst + at, in + at, n);
        bny_touch(in + at, n);
    }
    msg->touch = 0;
}

/* Brings the whole payload into e->tile. 1 when it is there, 0 not yet, or an error. */
static int pull_to_tile(struct bny_op *op, struct bny_step_state *st, struct bny_msg *msg)
{
    struct bny_engine *e = bny_engine_of(op);
    const void *ptr;
    int rc;

    if (e->tile_of && e->tile_of != st)
        return 0; /* another message is half in it */
    if (st->view_off == 0) {
        rc = bny_grow(&e->tile, &e->tile_cap, msg->hdr.len, 1, "a tile");
        if (rc)
            return rc;
    }
    e->tile_of = st;
    while (st->view_off < msg->hdr.len) {
        long got = msg->ep->ops->view(msg, st->view_off, msg->hdr.len - st->view_off,
                                      e->tile + st->view_off, &ptr);
        if (got == BNY_AGAIN) {
            if (!st->view_off) /* the message may be taken back, and the tile is others' */
                e->tile_of = NULL;
            return 0;
        }
        if (got < 0)
            return (int)got;
        st->view_off += (uint32_t)got;
    }
    e->tile_of = NULL;
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
            chunk_add(op, s, st, base + st->view_off, ptr, (size_t)got);
        st->view_off += (uint32_t)got;
    }
    return 1;
}

/* A codec, a user's element and a checksum need the message in one piece. */
static int needs_whole(const struct bny_op *op, const struct bny_msg *msg, int coded)
{
    return coded || op->call.redop.elem_bytes ||
           (msg->hdr.kind == BNY_MSG_RAW && op->comm->world->codec_crc);
}

static int apply_coded(struct bny_op *op, uint32_t i, const void *data, uint32_t len)
{
    struct bny_step_state *st = &bny_engine_of(op)->steps[i];
    uint64_t t0 = bny_trace_clock(op);
    uint32_t c = st->done;
    size_t n = bny_engine_chunk(op, st, c);
    int rc;

    bny_trace(op, i, BNY_TRACE_ARRIVE, c, t0, len);
    rc = bny_coded_apply(op, i, data, len, c, n);
    bny_trace(op, i, BNY_TRACE_DECODE, c, t0, n * op->esz);
    return rc == 0 ? 1 : rc;
}

/* Applies the message at the head of the step's queue, which is chunk st->done. 1 done, 0 not
 * all of it has arrived, or an error. */
static int apply_data(struct bny_op *op, uint32_t i)
{
    struct bny_engine *e = bny_engine_of(op);
    const struct bny_step *s = &e->program->steps[i];
    struct bny_step_state *st = &e->steps[i];
    struct bny_msg *msg = st->arrived.first;
    size_t base = (size_t)st->done * op->chunk_elems * op->esz;
    const void *data = msg->data;
    int coded = bny_coded_travels(op, i) && msg->hdr.kind == BNY_MSG_DATA, rc;

    if (msg->hdr.kind == BNY_MSG_PUT || msg->hdr.len == 0)
        return 1;
    if (bny_msg_is_draining(msg))
        return 0;
    if (!data && needs_whole(op, msg, coded)) {
        rc = pull_to_tile(op, st, msg);
        if (rc != 1)
            return rc;
        data = e->tile;
    }
    if (coded)
        return apply_coded(op, i, data, msg->hdr.len);
    if (msg->hdr.kind == BNY_MSG_RAW) {
        rc = bny_coded_declined(op, i, msg, data, st->done);
        if (rc)
            return rc;
    }
    if (!data)
        return apply_viewed(op, s, st, msg, base);
    if (s->kind == BNY_RECV_COPY) {
        if (msg->touch)
            place_and_touch(st->dst + base, msg);
        else
            bny_local_place(st->dst + base, data, msg->hdr.len);
        if (msg->ep)
            bny_counter_add(&msg->ep->tp->copied_bytes, msg->hdr.len);
        return 1;
    }
    if (msg->touch)
        add_and_touch(op, s, st, base, msg);
    else
        chunk_add(op, s, st, base, data, msg->hdr.len);
    return 1;
}

static int chunk_apply(struct bny_op *op, uint32_t i)
{
    struct bny_step_state *st = &bny_engine_of(op)->steps[i];
    const struct bny_hdr *h = &st->arrived.first->hdr;
    uint64_t t0 = bny_trace_clock(op);
    uint32_t c = st->done, before = st->view_off;
    int rc = apply_data(op, i);

    if (__builtin_expect(t0 == 0, 1) || rc < 0 ||
        (bny_coded_travels(op, i) && h->kind == BNY_MSG_DATA))
        return rc; /* what is encoded was noted where it was decoded */
    if (rc == 1)
        bny_trace(op, i, BNY_TRACE_ARRIVE, c, st->view_off > before ? bny_now_ns() : t0,
                  h->len);
    if (h->len && (rc == 1 || st->view_off > before)) /* put: nothing is left to do */
        bny_trace(op, i, BNY_TRACE_DECODE, c, t0,
                  st->view_off > before ? st->view_off - before : h->len);
    return rc;
}

/* The block is fully reduced here: finish it (AVG), and with a lossy codec keep what everybody
 * else will decode. */
static int keep_chunk(struct bny_op *op, uint32_t i, uint32_t c)
{
    const struct bny_step_state *st = &bny_engine_of(op)->steps[i];
    size_t n = bny_engine_chunk(op, st, c), base = (size_t)c * op->chunk_elems * op->esz;

    if (bny_coded_travels(op, i))
        return bny_coded_keep(op, i, c);
    bny_local_finish(bny_call_averages(&op->call), op->call.dtype, bny_out_at(st->dst, base),
                     bny_in_at(st->src, base), n, bny_call_parts(&op->call, op->comm->n));
    return 0;
}

/* ---- order ---- */

/* `chunks` more of step i are done: what depends on them may move. */
static void step_done(struct bny_op *op, uint32_t i, uint32_t chunks)
{
    struct bny_engine *e = bny_engine_of(op);
    struct bny_step_state *st = &e->steps[i];

    BNY_ASSERT(st->done + chunks <= st->nchunks);
    st->done += chunks;
    if (st->done == st->nchunks)
        e->steps_left--;
    bny_engine_wake_users(op, i);
}

/* The latest chunk posted was copied: its memory is free already. A chunk that depends on
 * chunks before it still has to wait. */
static void sent_at_once(struct bny_op *op, uint32_t i)
{
    struct bny_step_state *st = &bny_engine_of(op)->steps[i];

    if (st->done + 1 == st->posted)
        step_done(op, i, 1);
    else
        st->early++;
}

void bny_engine_sent(struct bny_op *op, uint32_t i)
{
    struct bny_engine *e = bny_engine_of(op);
    struct bny_step_state *st = &e->steps[i];
    uint32_t more = 1;

    BNY_ASSERT(st->done + st->early < st->posted && st->posted <= st->nchunks);
    if (st->done + 1 + st->early == st->posted) {
        more += st->early;
        st->early = 0;
    }
    bny_engine_wake_step(op, i);
    step_done(op, i, more);
}

static int fail_step(struct bny_op *op, uint32_t i, uint32_t chunk, int rc)
{
    const struct bny_step *s = &bny_engine_of(op)->program->steps[i];
    char what[96];

    snprintf(what, sizeof what, "chunk %u of message %u with rank %d failed", chunk, s->ordinal,
             s->peer);
    bny_op_send_failed(op, s->peer, rc, what);
    return 0;
}

/* Result of advance_step() for a step that did not move. */
#define STUCK 0    /* until something wakes it */
#define AGAIN (-1) /* no event tells when it can: it stays roused */

static int advance_send(struct bny_op *op, uint32_t i)
{
    struct bny_engine *e = bny_engine_of(op);
    struct bny_step_state *st = &e->steps[i];
    enum bny_may may = bny_engine_may_send(op, i);
    int rc;

    if (may != BNY_MAY)
        return may == BNY_MAY_LATER ? AGAIN : STUCK;
    rc = send_chunk(op, i, st->posted);
    if (rc == BNY_AGAIN)
        return AGAIN;
    if (rc == BNY_WAITS_FOR_CTS) {
        bny_engine_park(op, i);
        return STUCK;
    }
    if (rc < 0)
        return fail_step(op, i, st->posted, rc);
    st->posted++;
    BNY_ASSERT(st->posted <= st->nchunks);
    if (rc == 1)
        sent_at_once(op, i);
    return 1;
}

static int advance_receive(struct bny_op *op, uint32_t i)
{
    struct bny_step_state *st = &bny_engine_of(op)->steps[i];
    const struct bny_msg *msg = st->arrived.first;
    int rc;

    if (!msg || msg->hdr.chunk != st->done || !bny_engine_is_ready(op, i, st->done))
        return STUCK;
    rc = chunk_apply(op, i);
    if (rc < 0)
        return fail_step(op, i, st->done, rc);
    if (rc == 0) /* the rest is still arriving: no event will tell */
        return AGAIN;
    st->view_off = 0;
    bny_msg_release(&op->comm->world->held, bny_msg_list_pop_front(&st->arrived));
    step_done(op, i, 1);
    return 1;
}

/* Moves at most one chunk of a step. 1: moved, STUCK or AGAIN. */
static int advance_step(struct bny_op *op, uint32_t i)
{
    struct bny_engine *e = bny_engine_of(op);
    struct bny_step_state *st = &e->steps[i];
    int rc;

    if (bny_is_send(&e->program->steps[i])) {
        rc = advance_send(op, i);
    } else if (st->done == st->nchunks) {
        rc = STUCK;
    } else if (e->program->steps[i].kind != BNY_KEEP) {
        rc = advance_receive(op, i);
    } else if (!bny_engine_is_ready(op, i, st->done)) {
        rc = STUCK;
    } else {
        rc = keep_chunk(op, i, st->done);
        if (rc < 0)
            return fail_step(op, i, st->done, rc);
        step_done(op, i, 1);
        rc = 1;
    }
    if (rc == AGAIN)
        bny_op_mark_runnable(op);
    return rc;
}

/* The next roused step from `from` on; UINT32_MAX: none. */
static uint32_t next_ready(const struct bny_engine *e, uint32_t from)
{
    uint32_t words = (e->program->nsteps + 63) / 64, w = from / 64;
    uint64_t bits = w < words ? e->ready[w] & ~0ull << (from % 64) : 0;

    while (!bits && ++w < words)
        bits = e->ready[w];
    return bits ? w * 64 + (uint32_t)__builtin_ctzll(bits) : UINT32_MAX;
}

/* One look at a roused step. 1: moved. It may wake itself by what it does. */
static int chunk_look_at(struct bny_op *op, uint32_t i)
{
    struct bny_engine *e = bny_engine_of(op);
    int rc;

    e->ready[i / 64] &= ~(1ull << (i % 64));
    rc = advance_step(op, i);
    if (rc != STUCK)
        e->ready[i / 64] |= 1ull << (i % 64);
    return rc == 1;
}

int bny_engine_advance(struct bny_op *op)
{
    struct bny_engine *e = bny_engine_of(op);
    int moved = e->unannounced ? bny_engine_announce(op) : 0;

    for (uint32_t i = next_ready(e, 0); i != UINT32_MAX && !bny_comm_has_failed(op->comm);
         i = next_ready(e, i + 1))
        moved |= chunk_look_at(op, i);
    if (e->steps_left == 0)
        bny_op_complete(op, 0);
    return moved;
}

/* ---- messages ---- */

/* Is this the oldest unfinished receive from its peer on its channel? Then it may hold
 * transport memory. */
static int is_oldest(const struct bny_engine *e, int from, uint32_t index)
{
    const struct bny_program *p = e->program;

    for (uint32_t k = p->recv_first[from]; k < p->recv_first[from + 1]; k++) {
        uint32_t i = p->recv_of[k];
        if (i == index)
            return 1;
        if (p->steps[i].chan == p->steps[index].chan && e->steps[i].done < e->steps[i].nchunks)
            return 0;
    }
    return 0;
}

static int message_fits(const struct bny_op *op, int from, const struct bny_msg *msg,
                        uint32_t *index)
{
    const struct bny_engine *e = bny_engine_of(op);
    const struct bny_program *p = e->program;
    const struct bny_hdr *h = &msg->hdr;
    const struct bny_step_state *st;
    size_t n;

    if (p->recv_first[from] + h->step >= p->recv_first[from + 1])
        return 0;
    *index = p->recv_of[p->recv_first[from] + h->step];
    st = &e->steps[*index];
    if (h->chunk >= st->nchunks || h->chunk < st->done)
        return 0;
    n = bny_engine_chunk(op, st, h->chunk);
    if (bny_coded_travels(op, *index))
        return bny_coded_fits(op, *index, h, n);
    if (h->kind == BNY_MSG_PUT)
        return h->len == 0 && e->peers[from].xfer.window_wanted;
    return h->kind == BNY_MSG_DATA && h->len == n * op->esz;
}

/* Counts of its own that differ from a peer's: a message's chunk says how many elements were
 * sent, if it is the last one, or at least. */
static int report_counts(struct bny_op *op, int from, const struct bny_hdr *h)
{
    const struct bny_engine *e = bny_engine_of(op);
    const struct bny_program *p = e->program;
    size_t elems = h->len / op->esz, sent = h->chunk * op->chunk_elems + elems;
    uint32_t i;

    if (p->recv_first[from] + h->step >= p->recv_first[from + 1] || h->kind != BNY_MSG_DATA)
        return 0;
    i = p->recv_of[p->recv_first[from] + h->step];
    if (bny_coded_travels(op, i) || sent == e->steps[i].count)
        return 0;
    bny_report(op->comm->world, op->comm, BNY_CAUSE_MISMATCH, BANYAN_EMISMATCH,
               op->comm->peers[from].world_rank,
               "operation %u: %s: rank %d sent %s%zu %s to rank %d, which expects %zu: counts "
               "differ between the two",
               bny_op_seq(op), bny_call_name(&op->call), from,
               elems < op->chunk_elems ? "" : "at least ", sent,
               banyan_dtype_name(op->call.dtype), op->comm->rank, e->steps[i].count);
    return 1;
}

static void does_not_fit(struct bny_op *op, int from, struct bny_msg *msg)
{
    const struct bny_hdr *h = &msg->hdr;

    if (!report_counts(op, from, h))
        bny_report(op->comm->world, op->comm, BNY_CAUSE_MISMATCH, BANYAN_EMISMATCH,
                   op->comm->peers[from].world_rank,
                   "rank %d sent %u bytes as chunk %u of message %u of %s, which rank %d does "
                   "not expect: counts per rank, or BANYAN_* settings, differ between the two",
                   from, h->len, h->chunk, h->step, bny_call_name(&op->call), op->comm->rank);
    bny_msg_release(&op->comm->world->held, msg);
}

/* A descriptor waits for the pass over all steps: what it brings should be sent on while it is
 * in the cache, before the next one is added. Others are used at once, if it is their turn:
 * their memory is lent. 1: msg is used up, or stays where it is, half used. */
static int use_at_once(struct bny_op *op, uint32_t i, struct bny_msg *msg)
{
    struct bny_step_state *st = &bny_engine_of(op)->steps[i];

    if (msg->descriptor || !bny_msg_list_is_empty(&st->arrived) || msg->hdr.chunk != st->done)
        return 0;
    bny_msg_list_push_back(&st->arrived, msg);
    while (advance_step(op, i) == 1)
        ;
    if (st->arrived.first != msg || st->view_off)
        return 1;
    bny_msg_list_init(&st->arrived);
    return 0;
}

/* In order of chunks; copied to the heap where the transport needs its memory back. */
static void chunk_enqueue(struct bny_op *op, int from, uint32_t i, struct bny_msg *msg)
{
    struct bny_engine *e = bny_engine_of(op);
    struct bny_msg_list *list = &e->steps[i].arrived;
    struct bny_buffer_pool *pool = &op->comm->world->held;
    struct bny_msg *before = NULL, *at = list->first;

    if (at && list->last->hdr.chunk < msg->hdr.chunk) {
        before = list->last;
        at = NULL;
    }
    for (; at && at->hdr.chunk < msg->hdr.chunk; at = at->next)
        before = at;
    if (at && at->hdr.chunk == msg->hdr.chunk) {
        bny_msg_release(pool, msg); /* a peer that repeats itself */
        return;
    }
    if (before || msg->hdr.len <= 4096 || !is_oldest(e, from, i) || !msg->data) {
        msg = bny_msg_hold(pool, msg);
        if (!msg) {
            bny_report(op->comm->world, op->comm, BNY_CAUSE_RESET, BANYAN_ENOMEM,
                       op->comm->world->rank, "rank %d: no memory to hold a message",
                       op->comm->rank);
            return;
        }
    }
    bny_msg_list_insert(list, before, msg);
}

void bny_engine_message(struct bny_op *op, int from, struct bny_msg *msg)
{
    struct bny_step_state *st;
    uint32_t i;

    bny_op_mark_runnable(op);
    if (msg->hdr.kind == BNY_MSG_CTS) {
        bny_engine_announced(op, from, msg);
        return;
    }
    if (!message_fits(op, from, msg, &i)) {
        does_not_fit(op, from, msg);
        return;
    }
    st = &bny_engine_of(op)->steps[i];
    if (msg->data || msg->hdr.kind == BNY_MSG_PUT || msg->hdr.len == 0)
        bny_trace(op, i, BNY_TRACE_ARRIVE, msg->hdr.chunk, bny_trace_clock(op), msg->hdr.len);
    /* The rest of the one before may have come with this one, which else would have to be
     * copied aside. */
    while (st->view_off && !st->arrived.first->descriptor && advance_step(op, i) == 1)
        ;
    bny_engine_wake_step(op, i);
    if (!use_at_once(op, i, msg))
        chunk_enqueue(op, from, i, msg);
}
