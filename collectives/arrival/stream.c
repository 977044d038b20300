/* SPDX-License-Identifier: BSD-3-Clause */
/* Chunks of an arrival reduction: a rank sends chunks of its sum up to its parent, and chunks
 * of the result down.
 *
 * A rank can add a chunk as soon as it arrives, in any order, because it has memory for the
 * whole sum. So no chunk waits for another one to arrive, and no tree blocks for want of
 * buffers. A chunk waits in two cases only. If this rank is in the middle of the same chunk of
 * another child, it finishes that first. A chunk of the result waits until the transport has
 * given back this rank's own chunk, which may lie where the result goes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/arrival/arrival.h"
#include "base/crc32c.h"
#include "collectives/local/local.h"

#define TILE_BYTES (128u << 10) /* as in the engine */
/* | the number of a feed; other cookies are chunks of this rank's sum. */
#define FEED_COOKIE 0x80000000u

static const struct bny_xfer peer_is_ready = { .cts_seen = 1 }; /* both ranks have arrived */

static size_t offset_of(const struct bny_op *op, uint32_t c)
{
    return (size_t)c * op->chunk_elems * op->esz;
}

/* ---- sending ---- */

/* Reports an error of a call once, as the communicator fails some time later. A coordinator (no
 * `a`) reports each. */
static void stream_failed(struct bny_op *op, int with, int rc, const char *what)
{
    struct bny_arrival *a = bny_arrival_of(op);

    if (!a || !a->is_reported)
        bny_op_send_failed(op, with, rc, what);
    if (a)
        a->is_reported = 1;
}

/* 1: the transport took it; 2: and borrows the memory; 0: it cannot now. */
static int send_to(struct bny_op *op, int to, struct bny_hdr *h, const char *ptr, size_t bytes,
                   uint32_t cookie)
{
    struct bny_xfer_send x = { .op = op,
                               .ep = op->comm->peers[to].ep,
                               .peer = &peer_is_ready,
                               .step = cookie,
                               .ptr = ptr,
                               .len = (uint32_t)bytes };
    int rc = bny_xfer_send(&x, h);

    if (rc > 0)
        op->wire_bytes += bytes;
    if (rc == BNY_AGAIN)
        bny_op_mark_runnable(op);
    else if (rc < 0)
        stream_failed(op, to, rc, "");
    return rc > 0 ? rc : 0;
}

static int send_set(struct bny_op *op, int to, enum bny_arrival_step step, uint32_t seq,
                    const uint64_t *set)
{
    struct bny_ep *ep = op->comm->peers[to].ep;
    struct bny_hdr h;
    int rc;

    bny_op_header(op, &h, BNY_MSG_DATA);
    h.seq = seq;
    h.step = step;
    h.len = h.codec_len_raw = (uint32_t)bny_arrival_set_bytes(op);
    rc = ep->ops->eager(ep, &h, set);
    if (rc == BNY_AGAIN)
        bny_op_mark_runnable(op);
    else if (rc < 0)
        stream_failed(op, to, rc, "");
    return rc == 0;
}

/* Sends a chunk raw, which the codec declined. */
static int send_declined(struct bny_op *op, int to, struct bny_hdr *h, const char *ptr,
                         uint32_t cookie)
{
    size_t bytes = bny_arrival_chunk(op, h->chunk) * op->esz;

    h->kind = BNY_MSG_RAW;
    h->crc = op->comm->world->codec_crc ? bny_crc32c(0, ptr, bytes) : 0;
    return send_to(op, to, h, ptr, bytes, cookie);
}

/* Sends a chunk of `from`. Returns as send_to. */
static int send_kept(struct bny_op *op, int to, struct bny_hdr *h, const struct bny_kept *from,
                     uint32_t cookie)
{
    uint32_t c = h->chunk;
    const char *raw = from->raw + from->raw_stride * c;

    if (!from->len)
        return send_to(op, to, h, raw, bny_arrival_chunk(op, c) * op->esz, cookie);
    if (from->len[c] == BNY_ARRIVAL_RAW)
        return send_declined(op, to, h, raw, cookie);
    return send_to(op, to, h, from->coded + from->coded_stride * c, from->len[c], cookie);
}

/* As send_kept; more: the next chunk follows at once, unless it has to be encoded first. */
static int send_joined(struct bny_op *op, int to, struct bny_hdr *h,
                       const struct bny_kept *from, uint32_t cookie, int more)
{
    struct bny_tp *tp = op->comm->peers[to].ep->tp;
    int rc;

    tp->more = more && !op->plan.codec;
    rc = send_kept(op, to, h, from, cookie);
    tp->more = 0;
    return rc;
}

int bny_feed_advance(struct bny_op *op, struct bny_feed *feed, uint32_t cookie, uint32_t seq,
                     const struct bny_kept *result, const uint8_t *have, const uint64_t *set)
{
    uint32_t nchunks = bny_arrival_chunks(op);
    struct bny_hdr h;
    int moved = 0, rc;

    while (feed->next < nchunks && have[feed->next]) {
        bny_op_header(op, &h, BNY_MSG_DATA);
        h.seq = seq;
        h.step = BNY_ARRIVAL_DOWN;
        h.chunk = feed->next;
        rc = send_joined(op, feed->to, &h, result, FEED_COOKIE | cookie,
                         feed->next + 1 < nchunks ? have[feed->next + 1] : set != NULL);
        if (!rc)
            return moved;
        feed->borrowed += rc == 2;
        feed->next++;
        moved = 1;
    }
    if (set && !feed->set_sent && send_set(op, feed->to, BNY_ARRIVAL_DOWN_SET, seq, set)) {
        feed->set_sent = 1;
        moved = 1;
    }
    return moved;
}

static void mark_freed(struct bny_arrival *a, uint32_t c)
{
    if (!a->is_freed[c])
        a->up_freed++;
    a->is_freed[c] = 1;
}

/* What this rank sends: raw is its sum, or the result. */
static struct bny_kept kept_of(const struct bny_op *op, const char *raw)
{
    const struct bny_arrival_coded *k = &bny_arrival_of(op)->coded;

    return (struct bny_kept){ .raw = raw,
                              .coded = k->wire,
                              .raw_stride = op->chunk_elems * op->esz,
                              .coded_stride = k->stride,
                              .len = op->plan.codec ? k->len : NULL };
}

static int send_up(struct bny_op *op)
{
    struct bny_arrival *a = bny_arrival_of(op);
    struct bny_kept sum = kept_of(op, a->nchildren ? a->acc : op->in);
    struct bny_hdr h;
    int moved = 0, rc;

    if (a->parent < 0 || a->is_reported ||
        (a->coordinator && !a->up_next && bny_coordinator_has_priority(a->coordinator)))
        return 0;
    while (a->up_next < a->nchunks && a->added[a->up_next] == a->nchildren) {
        uint32_t c = a->up_next;

        bny_op_header(op, &h, BNY_MSG_DATA);
        h.step = BNY_ARRIVAL_UP;
        h.chunk = c;
        rc = op->plan.codec ? bny_arrival_encode(op, c) : 0;
        if (rc < 0) {
            stream_failed(op, -1, rc, "a chunk could not be encoded");
            return moved;
        }
        rc = send_joined(op, a->parent, &h, &sum, c,
                         c + 1 < a->nchunks ? a->added[c + 1] == a->nchildren
                                            : a->nsets == a->nchildren);
        if (!rc)
            return moved;
        if (rc == 1)
            mark_freed(a, c);
        a->up_next++;
        moved = 1;
    }
    if (!a->up_set_sent && a->nsets == a->nchildren &&
        send_set(op, a->parent, BNY_ARRIVAL_UP_SET, bny_op_seq(op), a->set)) {
        a->up_set_sent = 1;
        moved = 1;
    }
    return moved;
}

void bny_stream_sent(struct bny_op *op, uint32_t cookie)
{
    struct bny_arrival *a = bny_arrival_of(op);

    if (cookie & FEED_COOKIE)
        a->feeds[cookie & ~FEED_COOKIE].borrowed--;
    else
        mark_freed(a, cookie);
    bny_op_mark_runnable(op);
}

/* ---- what has arrived ---- */

static int set_count(const struct bny_op *op, const uint64_t *set)
{
    int count = 0;

    for (size_t i = 0; i < bny_arrival_set_bytes(op) / 8; i++)
        count += __builtin_popcountll(set[i]);
    return count;
}

static int has_strangers(const struct bny_op *op, const uint64_t *set)
{
    int rest = op->comm->n % 64;

    return rest && set[op->comm->n / 64] >> rest;
}

static void keep_set(const struct bny_arrival *a)
{
    if (a->coordinator)
        bny_coordinator_keep_set(a->coordinator);
    if (a->feeder)
        bny_coordinator_keep_set(a->feeder);
}

/* The top's set: with the sets of all children it has to have every slot's input. */
static void top_set(struct bny_op *op)
{
    struct bny_arrival *a = bny_arrival_of(op);

    if (a->parent != BNY_NO_PARENT || a->nsets < a->nchildren || a->has_result_set)
        return;
    if (set_count(op, a->set) != a->slots) {
        bny_arrival_wrong(op, op->comm->rank, "a sum lacks an input");
        return;
    }
    a->has_result_set = 1;
    keep_set(a);
}

/* Adds a child's set. An input in the sums of two children would count twice. */
static void child_set(struct bny_op *op, struct bny_source *s, const uint64_t *set)
{
    struct bny_arrival *a = bny_arrival_of(op);
    uint64_t both = 0;

    for (size_t i = 0; i < bny_arrival_set_bytes(op) / 8; i++) {
        both |= a->set[i] & set[i];
        a->set[i] |= set[i];
    }
    if (both || !set_count(op, set))
        bny_arrival_wrong(op, s->rank, "its sum has an input that is in another sum");
    s->has_set = 1;
    a->nsets++;
}

static void result_set(struct bny_op *op, struct bny_source *s, const uint64_t *set)
{
    struct bny_arrival *a = bny_arrival_of(op);
    int me = op->comm->rank, is_in = set[me / 64] >> me % 64 & 1;
    int slots = a->has_slot ? a->slots : bny_arrival_slots(&op->call, op->comm->n);

    if (set_count(op, set) != slots || is_in != a->has_slot)
        bny_arrival_wrong(op, s->rank, "its result is not that of the inputs that count");
    memcpy(a->set, set, bny_arrival_set_bytes(op));
    s->has_set = a->has_result_set = 1;
    keep_set(a);
}

/* May rank `from` send the result? The first rank of a chain does not know the top. */
static int may_have_result(const struct bny_arrival *a, int from)
{
    if (a->late)
        return from == a->late_from;
    if (!a->is_chain)
        return from == a->parent;
    return a->parent != BNY_NO_PARENT &&
           (a->nchildren == 0 || (a->nknown && from == a->children[0].rank));
}

/* In a chain the result goes from the top to slot 0, which is the coordinator's own rank, and
 * from there up the chain. */
static void feed_chain(struct bny_arrival *a)
{
    int to = a->parent == BNY_NO_PARENT ? a->server : a->parent;

    if (a->is_chain && a->nfeeds < a->feeds_due && to >= 0)
        a->feeds[a->nfeeds++] = (struct bny_feed){ .to = to };
}

/* The source that the message belongs to; NULL: this rank expects no such message. */
static struct bny_source *source_of(struct bny_op *op, int from, unsigned step)
{
    struct bny_arrival *a = bny_arrival_of(op);
    struct bny_source *s = &a->result;

    if (step == BNY_ARRIVAL_DOWN || step == BNY_ARRIVAL_DOWN_SET) {
        if (s->rank < 0 && op->call.collective == BNY_ALLREDUCE && may_have_result(a, from))
            s->rank = from;
        return s->rank == from ? s : NULL;
    }
    for (int i = 0; i < a->nknown; i++)
        if (a->children[i].rank == from)
            return &a->children[i];
    if (a->nknown == a->nchildren || !a->has_slot)
        return NULL;
    s = &a->children[a->nknown];
    s->rank = from;
    if (op->call.collective == BNY_ALLREDUCE && !a->is_chain)
        a->feeds[a->nfeeds++] = (struct bny_feed){ .to = from };
    a->nknown++;
    return s;
}

/* Is this message expected now? */
static int takes(const struct bny_op *op, const struct bny_source *s, const struct bny_hdr *h)
{
    if (h->step == BNY_ARRIVAL_UP_SET || h->step == BNY_ARRIVAL_DOWN_SET)
        return h->kind == BNY_MSG_DATA && !s->has_set && h->len == bny_arrival_set_bytes(op);
    if (h->chunk >= bny_arrival_of(op)->nchunks || s->seen[h->chunk])
        return 0;
    if (op->plan.codec)
        return bny_arrival_coded_fits(op, h, bny_arrival_chunk(op, h->chunk));
    return h->kind == BNY_MSG_DATA && h->len == bny_arrival_chunk(op, h->chunk) * op->esz;
}

static void take_set(struct bny_op *op, struct bny_source *s, struct bny_msg *msg)
{
    struct bny_buffer_pool *pool = &op->comm->world->held;
    size_t bytes = bny_arrival_set_bytes(op);
    uint64_t set[BNY_ARRIVAL_RANKS_MAX / 64];

    if (!msg->data)
        msg = bny_msg_hold(pool, msg);
    if (!msg || !msg->data) {
        bny_arrival_wrong(op, s->rank, "its short message did not arrive in one piece");
        if (msg)
            bny_msg_release(pool, msg);
        return;
    }
    memcpy(set, msg->data, bytes);
    if (has_strangers(op, set))
        bny_arrival_wrong(op, s->rank, "its sum has inputs of ranks that do not exist");
    else if (msg->hdr.step == BNY_ARRIVAL_UP_SET)
        child_set(op, s, set);
    else
        result_set(op, s, set);
    bny_msg_release(pool, msg);
}

void bny_stream_message(struct bny_op *op, int from, struct bny_msg *msg)
{
    struct bny_source *s = source_of(op, from, msg->hdr.step);

    if (!s || !takes(op, s, &msg->hdr)) {
        bny_arrival_wrong(op, from, "it sent a message that is not expected");
        bny_msg_release(&op->comm->world->held, msg);
        return;
    }
    if (msg->hdr.step == BNY_ARRIVAL_UP_SET || msg->hdr.step == BNY_ARRIVAL_DOWN_SET) {
        take_set(op, s, msg);
        return;
    }
    s->seen[msg->hdr.chunk] = 1;
    bny_msg_list_push_back(&s->arrived, msg);
}

/* ---- adding ---- */

static void mark_result(struct bny_op *op, uint32_t c)
{
    struct bny_arrival *a = bny_arrival_of(op);

    a->have[c] = 1;
    a->nhave++;
    if (a->coordinator)
        bny_coordinator_keep(a->coordinator, c);
    if (a->feeder)
        bny_coordinator_keep(a->feeder, c);
}

void bny_stream_added(struct bny_op *op, uint32_t c)
{
    struct bny_arrival *a = bny_arrival_of(op);
    size_t off = offset_of(op, c);

    if (a->parent != BNY_NO_PARENT)
        return;
    if (op->plan.codec && op->call.collective == BNY_ALLREDUCE) {
        int rc = bny_arrival_encode_result(op, c);
        if (rc < 0) {
            stream_failed(op, -1, rc, "a chunk of the result could not be encoded");
            return;
        }
        mark_result(op, c);
        return;
    }
    bny_local_finish(bny_call_averages(&op->call), op->call.dtype, a->acc + off,
                     (a->nchildren ? a->acc : op->in) + off, bny_arrival_chunk(op, c),
                     a->slots);
    mark_result(op, c);
}

static void stream_add(struct bny_op *op, uint32_t c, size_t at, const void *data, size_t bytes)
{
    struct bny_arrival *a = bny_arrival_of(op);
    size_t off = offset_of(op, c) + at;

    bny_local_reduce(&op->call.redop, op->call.dtype, a->acc + off,
                     (a->added[c] ? a->acc : op->in) + off, data, bytes / op->esz);
}

/* May this rank apply the source's first message now? */
static int may_apply(const struct bny_op *op, const struct bny_source *s)
{
    const struct bny_arrival *a = bny_arrival_of(op);
    uint32_t c = s->arrived.first->hdr.chunk;

    if (bny_msg_is_draining(s->arrived.first))
        return 0;
    if (s == &a->result)
        return a->late || a->is_freed[c];
    for (int i = 0; i < a->nknown; i++)
        if (&a->children[i] != s && a->children[i].view_off &&
            a->children[i].arrived.first->hdr.chunk == c)
            return 0;
    return 1;
}

/* Copies the whole message into the tile. 1: done, 0: not yet, or an error. */
static int to_tile(struct bny_source *s, struct bny_msg *msg)
{
    int rc = bny_grow(&s->tile, &s->tile_cap, msg->hdr.len, 1, "a tile");
    const void *ptr;

    while (rc == 0 && s->view_off < msg->hdr.len) {
        long got = msg->ep->ops->view(msg, s->view_off, msg->hdr.len - s->view_off,
                                      s->tile + s->view_off, &ptr);
        if (got == BNY_AGAIN)
            return 0;
        if (got < 0)
            return (int)got;
        s->view_off += (uint32_t)got;
    }
    return rc ? rc : 1;
}

/* Applies a message tile by tile: places a result, or adds a sum while it is in the cache. */
static int apply_viewed(struct bny_op *op, struct bny_source *s, struct bny_msg *msg)
{
    int is_result = s == &bny_arrival_of(op)->result;
    uint32_t c = msg->hdr.chunk;

    while (s->view_off < msg->hdr.len) {
        uint32_t want = msg->hdr.len - s->view_off;
        const void *ptr;
        long got;

        if (!is_result && want > TILE_BYTES)
            want = TILE_BYTES;
        got = msg->ep->ops->view(msg, s->view_off, want,
                                 is_result ? op->out + offset_of(op, c) + s->view_off : NULL,
                                 &ptr);
        if (got == BNY_AGAIN)
            return 0;
        if (got < 0)
            return (int)got;
        if (!is_result)
            stream_add(op, c, s->view_off, ptr, (size_t)got);
        s->view_off += (uint32_t)got;
    }
    return 1;
}

/* Applies a message. 1: all of it, 0: not yet, or an error. */
static int stream_apply(struct bny_op *op, struct bny_source *s, struct bny_msg *msg)
{
    int is_result = s == &bny_arrival_of(op)->result;
    const void *data = msg->data;

    if (!data && ((!is_result && op->call.redop.elem_bytes) || op->plan.codec)) {
        int rc = to_tile(s, msg);
        if (rc != 1)
            return rc;
        data = s->tile;
    }
    if (op->plan.codec) {
        int rc = bny_arrival_apply_coded(op, s->rank, is_result, &msg->hdr, data);
        return rc < 0 ? rc : 1;
    }
    if (!data)
        return apply_viewed(op, s, msg);
    if (is_result)
        bny_local_place(op->out + offset_of(op, msg->hdr.chunk), data, msg->hdr.len);
    else
        stream_add(op, msg->hdr.chunk, 0, data, msg->hdr.len);
    return 1;
}

static int apply_all(struct bny_op *op, struct bny_source *s)
{
    struct bny_arrival *a = bny_arrival_of(op);
    int moved = 0;

    while (s->arrived.first && may_apply(op, s)) {
        struct bny_msg *msg = s->arrived.first;
        uint32_t c = msg->hdr.chunk, before = s->view_off;
        int rc = stream_apply(op, s, msg);

        moved |= rc == 1 || s->view_off != before;
        if (rc < 0) {
            char what[64];

            snprintf(what, sizeof what, "chunk %u of rank %d failed", c, s->rank);
            stream_failed(op, s->rank, rc, what);
        }
        if (rc == 0) /* its rest is on the way, and no event follows when it arrives */
            bny_op_mark_runnable(op);
        if (rc != 1)
            break;
        s->view_off = 0;
        bny_msg_list_pop_front(&s->arrived);
        bny_msg_release(&op->comm->world->held, msg);
        s->left--;
        if (s == &a->result)
            mark_result(op, c);
        else if (++a->added[c] == a->nchildren)
            bny_stream_added(op, c);
    }
    return moved;
}

/* ---- progress ---- */

int bny_stream_advance(struct bny_op *op)
{
    struct bny_arrival *a = bny_arrival_of(op);
    struct bny_kept result = kept_of(op, a->acc);
    int moved = 0;

    for (int i = 0; i < a->nknown; i++)
        moved |= apply_all(op, &a->children[i]);
    moved |= apply_all(op, &a->result);
    if (a->has_slot) {
        top_set(op);
        feed_chain(a);
        moved |= send_up(op);
    }
    for (int i = 0; i < a->nfeeds; i++)
        moved |= bny_feed_advance(op, &a->feeds[i], (uint32_t)i, bny_op_seq(op), &result,
                                  a->have, a->has_result_set ? a->set : NULL);
    return moved;
}

int bny_stream_is_done(const struct bny_op *op)
{
    const struct bny_arrival *a = bny_arrival_of(op);
    int wants = bny_arrival_wants_result(op), is_top = a->parent == BNY_NO_PARENT;

    if (a->late && !wants)
        return 1;
    if ((wants || is_top) && (a->nhave < a->nchunks || !a->has_result_set))
        return 0;
    if (a->is_last)
        return 0;
    if (a->late)
        return 1;
    if (!a->has_slot || (!is_top && (a->up_freed < a->nchunks || !a->up_set_sent)))
        return 0;
    if (a->nfeeds < a->feeds_due)
        return 0;
    for (int i = 0; i < a->nfeeds; i++)
        if (a->feeds[i].next < a->nchunks || a->feeds[i].borrowed || !a->feeds[i].set_sent)
            return 0;
    return 1;
}

void bny_source_free(struct bny_source *s)
{
    free(s->seen);
    free(s->tile);
    *s = (struct bny_source){ .rank = -1 };
}
