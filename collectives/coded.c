/* SPDX-License-Identifier: BSD-3-Clause */
/* The part of a chunk's life that a codec sees: encoded into send memory, decoded out of
 * receive memory, encoded again by the owner, who keeps the decode of what it sends.
 *
 * A rank encodes each element at most once an operation (codec.h has the law of error feedback
 * that follows), but for exact codecs, which have nothing to lose. Encoding changes residuals,
 * so it is not done twice for one chunk: what is encoded and finds no room waits in st->pend.
 *
 * A chunk that the codec declines travels raw, as a message of kind RAW straight from the
 * operation's memory: slots need not have room for it. On the way up it is what the step would
 * have encoded, without its residual, which waits; on the way down it is the final value. */
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/crc32c.h"
#include "collectives/internal.h"
#include "collectives/plan/topology.h"
#include "collectives/trace.h"
#include "collectives/workers.h"

#define SMALL_BYTES                                                                            \
    4096 /* messages up to this are encoded into the operation's memory: they go eagerly */

static const struct bny_codec *codec_of(const struct bny_op *op)
{
    return op->plan.codec;
}

static int is_exact(const struct bny_op *op)
{
    return codec_of(op)->ops->family == BNY_CODEC_EXACT;
}

static size_t bound(const struct bny_op *op, size_t n)
{
    return bny_message_bound(codec_of(op), n, op->call.dtype, 0);
}

size_t bny_coded_most(const struct bny_op *op, size_t n)
{
    return bny_message_bound(codec_of(op), n, op->call.dtype, 1);
}

static size_t stride(const struct bny_op *op)
{
    return (bound(op, op->chunk_elems) + 63) & ~(size_t)63;
}

/* The place of a chunk in the tensor. Exact codecs have no use for it, and ranks may not know
 * it (v-variants). */
static uint64_t index_of(const struct bny_op *op, const struct bny_step_state *st, uint32_t c)
{
    return (is_exact(op) ? 0 : st->pos) + (uint64_t)c * op->chunk_elems;
}

void bny_coded_inputs(const struct bny_op *op, const struct bny_step_state *st, uint32_t c,
                      uint32_t rank, struct bny_enc *e)
{
    const struct banyan_codec_state *state = op->lent;

    *e = (struct bny_enc){ .codec = codec_of(op),
                           .cpu_flags = bny_cpu_flags(),
                           .dtype = op->call.dtype,
                           .ef_scale = 1,
                           .step = op->codec_step,
                           .rank = rank,
                           .nsum = st->nsum,
                           .index = index_of(op, st, c) };
    if (state)
        e->seed = state->seed;
    if (state && !st->is_union) {
        e->ef = state->ef + e->index;
        e->track = state->track;
        e->stats =
            op->nencodings ? op->stats + (st->stats_at + c) * e->codec->ops->stats_bytes : NULL;
        if (state->planes > 1) {
            e->more = e->ef + state->count;
            e->more_stride = state->count;
        }
    }
}

/* Owners encode as the rank n: an element has one owner, which those further down need not
 * know. */
static long encode(const struct bny_op *op, const struct bny_step_state *st, uint32_t c,
                   uint32_t rank, void *wire, size_t cap, const void *src, size_t n)
{
    uint64_t t0 = bny_trace_clock(op);
    struct bny_enc e;
    long len;

    bny_coded_inputs(op, st, c, rank, &e);
    len = bny_message_encode(&e, wire, cap, src, n, op->comm->world->codec_crc);
    bny_trace(op, st, BNY_TRACE_ENCODE, c, t0, len > 0 ? (size_t)len : 0);
    return len;
}

static struct bny_dec decoder(const struct bny_op *op, const struct bny_step_state *st,
                              uint32_t c, int from, int is_result)
{
    return (struct bny_dec){ .codec = codec_of(op),
                             .cpu_flags = bny_cpu_flags(),
                             .dtype = op->call.dtype,
                             .scale = is_result && bny_call_averages(&op->call) && !is_exact(op)
                                          ? 1.0f / (float)op->comm->n
                                          : 1,
                             .seed = op->lent ? op->lent->seed : 0,
                             .step = op->codec_step,
                             .rank = (uint32_t)(is_result ? op->comm->n : from),
                             .index = index_of(op, st, c),
                             .need_crc = op->comm->world->codec_crc };
}

/* ---- start ---- */

/* Inside a host of a schedule of hosts nothing is encoded. Both ends see it alike. */
static int is_raw_step(const struct bny_op *op, const struct bny_step *s)
{
    return s->peer >= 0 && op->plan.raw_in_host &&
           bny_topology_same_host(&op->comm->scope, op->comm->rank, s->peer);
}

static int is_forward(const struct bny_op *op, uint32_t i)
{
    const struct bny_step *s = &op->program->steps[i];

    return s->kind == BNY_FORWARD && s->from != UINT32_MAX && op->steps[i].encodes;
}

/* Which steps deal in encoded chunks. Sums that a block's SEND has in it: its own and those
 * added before. */
static void mark_steps(struct bny_op *op)
{
    const struct bny_program *p = op->program;
    int reduces = bny_call_row(&op->call)->averages;

    for (uint32_t b = 0; b < p->nblocks; b++)
        op->blocks[b].added = op->blocks[b].thinned = 0;
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const struct bny_step *s = &p->steps[i];
        struct bny_step_state *st = &op->steps[i];
        st->encodes = s->kind != BNY_KEEP && !is_raw_step(op, s);
        st->nsum = 1;
        if (reduces && s->kind == BNY_KEEP)
            st->nsum = (uint32_t)op->comm->n;
        if (reduces && s->kind == BNY_SEND)
            st->nsum += op->blocks[s->block].added;
        op->blocks[s->block].added += s->kind == BNY_RECV_ADD;
    }
    for (uint32_t i = 0; i < p->nsteps; i++)
        if (is_forward(op, i) && p->steps[p->steps[i].from].kind == BNY_KEEP)
            op->steps[p->steps[i].from].encodes = 1;
}

/* Sparse codecs: what a rank adds to the sums of others must be as sparse as theirs, or every
 * sum is dense. Where a block has an encoded RECV_ADD, the first one makes our own part sparse
 * (with its residual), and the sum of sparse parts then travels as it is. With reselect=1 sums
 * are selected from again instead, with the residual. */
static void mark_thinning(struct bny_op *op)
{
    const struct bny_program *p = op->program;

    if (codec_of(op)->ops->family != BNY_CODEC_SPARSE ||
        bny_codec_get(codec_of(op), "reselect") == 1)
        return;
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const struct bny_step *s = &p->steps[i];
        struct bny_block *b = &op->blocks[s->block];
        int sends = (s->kind == BNY_SEND || s->kind == BNY_KEEP) && op->steps[i].nsum > 1;
        if (s->kind == BNY_RECV_ADD && op->steps[i].encodes) {
            op->steps[i].thins = !b->thinned;
            b->thinned = 1;
        } else if (sends && b->thinned) {
            op->steps[i].is_union = 1;
        } else if (sends) {
            op->steps[i].nsum = 1; /* a host's raw sum: selected from as one contribution */
        }
    }
}

static int makes_statistics(const struct bny_op *op, uint32_t i)
{
    const struct bny_step_state *st = &op->steps[i];
    unsigned kind = op->program->steps[i].kind;

    return st->encodes && !st->is_union && (kind == BNY_SEND || kind == BNY_KEEP || st->thins);
}

/* Steps that encode, in order of their place in the tensor (blocks are), take the numbers of
 * their chunks. */
static int number_encodings(struct bny_op *op)
{
    const struct bny_program *p = op->program;
    size_t bytes = op->lent ? codec_of(op)->ops->stats_bytes : 0;
    int rc;

    op->nencodings = 0;
    if (!bytes)
        return 0;
    for (uint32_t b = 0; b < p->nblocks; b++)
        op->blocks[b].encodings = 0;
    for (uint32_t i = 0; i < p->nsteps; i++)
        if (makes_statistics(op, i))
            op->blocks[p->steps[i].block].encodings += op->steps[i].nchunks;
    for (uint32_t b = 0; b < p->nblocks; b++) {
        size_t count = op->blocks[b].encodings;
        op->blocks[b].encodings = op->nencodings;
        op->nencodings += count;
    }
    for (uint32_t i = 0; i < p->nsteps; i++) {
        struct bny_block *b = &op->blocks[p->steps[i].block];
        if (!makes_statistics(op, i))
            continue;
        op->steps[i].stats_at = b->encodings;
        b->encodings += op->steps[i].nchunks;
    }
    rc = bny_grow(&op->stats, &op->stats_cap, op->nencodings * bytes, 1,
                  "statistics of a codec");
    if (rc == 0 && op->nencodings)
        memset(op->stats, 0, op->nencodings * bytes);
    return rc;
}

static size_t carve(size_t *at, size_t bytes)
{
    size_t place = *at;

    *at += (bytes + 63) & ~(size_t)63;
    return place;
}

/* Hands out op->coded; base NULL: only counts. Returns bytes. */
static size_t lay_out(struct bny_op *op, char *base)
{
    const struct bny_program *p = op->program;
    size_t at = 0, place, lens;

    for (uint32_t i = 0; i < p->nsteps; i++) {
        op->steps[i].coded = NULL;
        op->steps[i].jobs = NULL;
    }
    for (uint32_t i = 0; i < p->nsteps; i++) {
        struct bny_step_state *st = &op->steps[i], *from;
        if (p->steps[i].kind == BNY_SEND && st->encodes) {
            place = carve(&at, SMALL_BYTES);
            st->pend = base ? base + place : NULL;
        }
        if (op->workers && p->steps[i].kind == BNY_SEND && st->encodes &&
            bound(op, bny_engine_chunk(op, st, 0)) > SMALL_BYTES) {
            place = carve(&at, sizeof *st->jobs * BNY_AHEAD);
            st->jobs = base ? (struct bny_job *)(void *)(base + place) : NULL;
        }
        from = is_forward(op, i) ? &op->steps[p->steps[i].from] : NULL;
        if (!from || from->coded)
            continue;
        place = carve(&at, stride(op) * from->nchunks);
        lens = carve(&at, sizeof(uint32_t) * from->nchunks);
        from->coded = (char *)op; /* has been counted */
        if (!base)
            continue;
        from->coded = base + place;
        from->coded_len = (uint32_t *)(void *)(base + lens);
        for (uint32_t c = 0; c < from->nchunks; c++)
            from->coded_len[c] = BNY_LEN_RAW; /* as a step that is not encoded leaves it */
    }
    return at;
}

static int lend_state(struct bny_op *op)
{
    struct banyan_codec_state *state = op->call.state;
    int rc;

    op->codec_step = op->seq;
    op->lent = NULL;
    if (!state || is_exact(op))
        return 0;
    rc = bny_state_begin(state, codec_of(op), 1, (int64_t)state->count);
    if (rc)
        return rc;
    op->lent = state;
    op->codec_step = state->step;
    return 0;
}

void bny_coded_free(struct bny_op *op)
{
    bny_device_forgets(&op->coded_tp, op->coded);
    free(op->coded);
    op->coded = NULL;
    op->coded_cap = 0;
}

int bny_coded_start(struct bny_op *op)
{
    size_t need;
    int rc = lend_state(op);

    if (rc)
        return rc;
    mark_steps(op);
    mark_thinning(op);
    op->workers = bny_ahead_workers(op->comm->world);
    need = lay_out(op, NULL);
    if (need > op->coded_cap) {
        bny_coded_free(op);
        op->coded = malloc(need);
        op->coded_cap = op->coded ? need : 0;
        if (op->coded) /* chunks that are kept go out by reference */
            op->coded_tp = bny_device_learns(op->comm->world, op->coded, need);
        else
            rc = bny_fail(BANYAN_ENOMEM, "no memory for %zu bytes of encoded chunks", need);
    }
    if (rc == 0) {
        lay_out(op, op->coded);
        bny_ahead_prepare(op);
        rc = number_encodings(op);
    }
    if (rc)
        bny_coded_end(op, rc);
    return rc;
}

void bny_coded_end(struct bny_op *op, int result)
{
    struct banyan_codec_state *state = op->lent;

    bny_ahead_stop(op);
    if (!state)
        return;
    op->lent = NULL;
    if (result == 0 && op->nencodings && codec_of(op)->ops->end)
        codec_of(op)->ops->end(codec_of(op), state->track, op->stats, op->nencodings);
    bny_state_end(state);
}

/* ---- encode and send ---- */

/* The chunk as it is, from where it lies. */
static int send_raw(struct bny_op *op, uint32_t index, struct bny_hdr *h, const char *ptr,
                    size_t n)
{
    uint32_t len = (uint32_t)(n * op->esz);

    h->kind = BNY_MSG_RAW;
    h->crc = op->comm->world->codec_crc ? bny_crc32c(0, ptr, len) : 0;
    return bny_engine_send(op, index, h, ptr, len, 0);
}

static int send_small(struct bny_op *op, struct bny_ep *ep, struct bny_step_state *st,
                      struct bny_hdr *h, const char *src, size_t n)
{
    int rc;

    if (!st->pend_len) {
        long len =
            encode(op, st, h->chunk, (uint32_t)op->comm->rank, st->pend, bound(op, n), src, n);
        if (len < 0)
            return (int)len;
        st->pend_len = (uint32_t)len;
    }
    h->len = st->pend_len;
    h->codec_len_raw = (uint32_t)(n * op->esz);
    rc = ep->ops->eager(ep, h, st->pend);
    if (rc == 0)
        st->pend_len = 0;
    return rc == 0 ? 1 : rc;
}

/* Straight into the transport's memory. */
static int send_reserved(struct bny_op *op, uint32_t index, struct bny_ep *ep,
                         struct bny_step_state *st, struct bny_hdr *h, const char *src,
                         size_t n)
{
    const struct bny_step *s = &op->program->steps[index];
    size_t most = bound(op, n);
    struct bny_slot slot;
    long len;
    int rc;

    if (most > ep->eager_max && !op->peers[s->peer].ready_seen &&
        !(ep->ops->caps & BNY_TP_DESC))
        return BNY_AGAIN;
    if (st->jobs)
        return bny_ahead_send(op, index, h, most);
    rc = ep->ops->reserve(ep, (uint32_t)most, &slot);
    if (rc != 0)
        return rc;
    len = encode(op, st, h->chunk, (uint32_t)op->comm->rank, slot.mem, most, src, n);
    if (len < 0) {
        ep->ops->cancel(ep, &slot);
        return (int)len;
    }
    h->len = (uint32_t)len;
    h->codec_len_raw = (uint32_t)(n * op->esz);
    rc = ep->ops->commit(ep, &slot, h);
    return rc == 0 ? 1 : rc;
}

int bny_coded_send(struct bny_op *op, uint32_t index, struct bny_hdr *h)
{
    const struct bny_step *s = &op->program->steps[index];
    struct bny_ep *ep = op->comm->peers[s->peer].ep;
    struct bny_step_state *st = &op->steps[index];
    uint32_t c = h->chunk;
    size_t n = bny_engine_chunk(op, st, c), at = (size_t)c * op->chunk_elems * op->esz;
    int rc;

    if (n == 0)
        return bny_engine_send(op, index, h, st->src, 0, 0);
    if (is_forward(op, index)) {
        const struct bny_step_state *from = &op->steps[s->from];
        if (from->coded_len[c] == BNY_LEN_RAW)
            return send_raw(op, index, h, from->dst + at, n);
        return bny_engine_send(op, index, h, from->coded + stride(op) * c, from->coded_len[c],
                               0);
    }
    if (st->raw_next != c + 1) {
        size_t most = bound(op, n);
        rc = most <= SMALL_BYTES && most <= ep->eager_max
                 ? send_small(op, ep, st, h, st->src + at, n)
                 : send_reserved(op, index, ep, st, h, st->src + at, n);
        if (rc != -BANYAN_ENOTSUP)
            return rc;
        st->raw_next = c + 1;
    }
    return send_raw(op, index, h, st->src + at, n);
}

/* ---- receive and decode ---- */

int bny_coded_fits(const struct bny_op *op, const struct bny_step_state *st,
                   const struct bny_hdr *h, size_t n)
{
    if (n == 0)
        return h->kind == BNY_MSG_DATA && h->len == 0;
    if (h->kind == BNY_MSG_RAW)
        return h->len == n * op->esz;
    return h->kind == BNY_MSG_DATA && h->len > sizeof(struct bny_coded_hdr) &&
           h->len <= bound(op, n);
}

static int reduce_exact(struct bny_op *op, const struct bny_step *s, struct bny_step_state *st,
                        const struct bny_dec *d, const void *wire, size_t len, size_t base,
                        size_t n)
{
    int rc = bny_grow(&op->decoded, &op->decoded_cap, op->chunk_elems * op->esz, 1,
                      "a decoded chunk");

    if (rc == 0)
        rc = bny_message_decode(d, op->decoded, wire, len, n);
    if (rc)
        return rc;
    if (s->flags & BNY_STEP_REV)
        bny_redop_run(&op->call.redop, op->call.dtype, st->dst + base, op->decoded,
                      st->src + base, n);
    else
        bny_redop_run(&op->call.redop, op->call.dtype, st->dst + base, st->src + base,
                      op->decoded, n);
    return 0;
}

/* Our own part of a sum, sparse: *out = decode(encode(src)). A part that the codec declines
 * stays as it is. dst is not written before the peer's message has been checked. */
static int thin(struct bny_op *op, struct bny_step_state *st, uint32_t c, const char *src,
                size_t n, const float **out)
{
    struct bny_dec d = decoder(op, st, c, op->comm->rank, 0);
    size_t at = (bound(op, n) + 63) & ~(size_t)63;
    int rc = bny_grow(&op->decoded, &op->decoded_cap, at + n * op->esz, 1, "a sparse part");
    long len;

    if (rc)
        return rc;
    len = encode(op, st, c, (uint32_t)op->comm->rank, op->decoded, at, src, n);
    *out = (const float *)(const void *)(len == -BANYAN_ENOTSUP ? src : op->decoded + at);
    if (len < 0)
        return len == -BANYAN_ENOTSUP ? 0 : (int)len;
    return bny_message_decode(&d, op->decoded + at, op->decoded, (size_t)len, n);
}

int bny_coded_apply(struct bny_op *op, const struct bny_step *s, struct bny_step_state *st,
                    const void *wire, size_t len, uint32_t c, size_t n)
{
    struct bny_dec d = decoder(op, st, c, s->peer, s->kind == BNY_RECV_COPY);
    size_t base = (size_t)c * op->chunk_elems * op->esz;
    const float *acc;
    int rc;

    if (s->kind == BNY_RECV_COPY)
        rc = bny_message_decode(&d, st->dst + base, wire, len, n);
    else if (is_exact(op))
        return reduce_exact(op, s, st, &d, wire, len, base, n);
    else {
        acc = (const float *)(st->src + base);
        rc = st->thins ? thin(op, st, c, st->src + base, n, &acc) : 0;
        return rc ? rc
                  : bny_message_decode_add(&d, (float *)(st->dst + base), acc, wire, len, n);
    }
    if (rc == 0 && st->coded) {
        memcpy(st->coded + stride(op) * c, wire, len);
        st->coded_len[c] = (uint32_t)len;
    }
    return rc;
}

/* ---- the owner ---- */

static void keep_raw(struct bny_op *op, char *dst, const char *src, size_t n)
{
    if (bny_call_averages(&op->call)) {
        bny_divide(dst, src, n, op->call.dtype, op->comm->n);
        src = dst;
    }
    if (src != dst && n)
        memmove(dst, src, n * op->esz);
}

int bny_coded_keep(struct bny_op *op, struct bny_step_state *st, uint32_t c)
{
    size_t n = bny_engine_chunk(op, st, c), base = (size_t)c * op->chunk_elems * op->esz;
    struct bny_dec d = decoder(op, st, c, op->comm->rank, 1);
    char *wire = st->coded + stride(op) * c, *dst = st->dst + base;
    const char *src = st->src + base;
    long len;

    if (n == 0)
        return 0;
    if (is_exact(op)) { /* the result's own bits travel */
        keep_raw(op, dst, src, n);
        src = dst;
    }
    len = encode(op, st, c, (uint32_t)op->comm->n, wire, bound(op, n), src, n);
    if (len == -BANYAN_ENOTSUP) {
        if (!is_exact(op))
            keep_raw(op, dst, src, n);
        st->coded_len[c] = BNY_LEN_RAW;
        return 0;
    }
    if (len < 0)
        return (int)len;
    st->coded_len[c] = (uint32_t)len;
    return is_exact(op) ? 0 : bny_message_decode(&d, dst, wire, (size_t)len, n);
}
