/* SPDX-License-Identifier: BSD-3-Clause */
/* The part of a chunk's life that a codec sees: encoded into send memory, decoded out of
 * receive memory, encoded again by the owner, who keeps the decode of what it sends.
 *
 * A rank encodes each element at most once an operation (codec.h has the law of error feedback
 * that follows), but for exact codecs, which have nothing to lose. Encoding changes residuals,
 * so it is not done twice for one chunk: what is encoded and finds no room waits in the step's
 * `pend`.
 *
 * A chunk that the codec declines travels raw, as a message of kind RAW straight from the
 * operation's memory: slots need not have room for it. On the way up it is what the step would
 * have encoded, without its residual, which waits; on the way down it is the final value. */
#include "collectives/engine/coded.h"

#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/crc32c.h"
#include "base/fpmode.h"
#include "collectives/local/local.h"
#include "collectives/local/workers.h"

/* Messages up to this are encoded into the operation's memory: they go eagerly. */
#define SMALL_BYTES 4096
#define PAGE        4096u

static int is_exact(const struct bny_codec *codec)
{
    return codec->ops->family == BNY_CODEC_EXACT;
}

static struct bny_coded *coded_of(const struct bny_op *op)
{
    return bny_engine_of(op)->coded;
}

static size_t bound(const struct bny_op *op, uint32_t i, size_t n)
{
    return bny_message_bound(bny_coded_codec(op, i), n, op->call.dtype, 0);
}

size_t bny_coded_most(const struct bny_op *op, uint32_t i, size_t n)
{
    return bny_message_bound(bny_coded_codec(op, i), n, op->call.dtype, 1);
}

static size_t stride(const struct bny_op *op, uint32_t i)
{
    return (bound(op, i, op->chunk_elems) + 63) & ~(size_t)63;
}

/* The place of a chunk in the tensor. Exact codecs have no use for it, and ranks may not know
 * it (v-variants). */
static uint64_t index_of(const struct bny_op *op, uint32_t i, uint32_t c)
{
    return (is_exact(bny_coded_codec(op, i))
                ? 0
                : op->call.tensor_at + bny_engine_of(op)->steps[i].pos) +
           (uint64_t)c * op->chunk_elems;
}

void bny_coded_inputs(const struct bny_op *op, uint32_t i, uint32_t c, uint32_t rank,
                      struct bny_enc *e)
{
    const struct bny_coded *k = coded_of(op);
    const struct bny_coded_step *cs = &k->steps[i];
    const struct banyan_codec_state *state = k->lent;

    *e = (struct bny_enc){ .codec = bny_coded_codec(op, i),
                           .cpu_flags = bny_cpu_flags(),
                           .dtype = op->call.dtype,
                           .ef_scale = 1,
                           .step = k->codec_step,
                           .rank = rank,
                           .nsum = cs->nsum,
                           .index = index_of(op, i, c) };
    if (state)
        e->seed = state->seed;
    if (state && !cs->is_union && !is_exact(e->codec)) {
        BNY_ASSERT(e->index < state->count);
        e->ef = state->ef + e->index;
        e->track = state->track;
        e->stats =
            k->nencodings ? k->stats + (cs->stats_at + c) * e->codec->ops->stats_bytes : NULL;
        if (state->planes > 1) {
            e->more = e->ef + state->count;
            e->more_stride = state->count;
        }
    }
}

/* Owners encode as the rank n: an element has one owner, which those further down need not
 * know. */
static long coded_encode(const struct bny_op *op, uint32_t i, uint32_t c, uint32_t rank,
                         void *wire, size_t cap, const void *src, size_t n)
{
    uint64_t t0 = bny_trace_clock(op);
    struct bny_enc e;
    long len;

    bny_coded_inputs(op, i, c, rank, &e);
    len = bny_message_encode(&e, wire, cap, src, n, op->comm->world->codec_crc);
    BNY_ASSERT(len < 0 || (size_t)len <= cap);
    bny_trace(op, i, BNY_TRACE_ENCODE, c, t0, len > 0 ? (size_t)len : 0);
    return len;
}

static struct bny_dec decoder(const struct bny_op *op, uint32_t i, uint32_t c, int from,
                              int is_result)
{
    const struct bny_coded *k = coded_of(op);
    const struct bny_codec *codec = bny_coded_codec(op, i);

    return (struct bny_dec){ .codec = codec,
                             .cpu_flags = bny_cpu_flags(),
                             .dtype = op->call.dtype,
                             .scale =
                                 is_result && bny_call_averages(&op->call) && !is_exact(codec)
                                     ? bny_reciprocal(bny_call_parts(&op->call, op->comm->n))
                                     : 1,
                             .seed = k->lent ? k->lent->seed : 0,
                             .step = k->codec_step,
                             .rank = (uint32_t)(is_result ? op->comm->n : from),
                             .index = index_of(op, i, c),
                             .need_crc = op->comm->world->codec_crc };
}

/* ---- start ---- */

static int is_forward(const struct bny_op *op, uint32_t i)
{
    const struct bny_step *s = &bny_engine_of(op)->program->steps[i];

    return s->kind == BNY_FORWARD && s->from != UINT32_MAX && bny_coded_step(op, i)->travels;
}

/* Which steps deal in encoded chunks. Sums that a block's SEND has in it: its own and those
 * added before. */
static void mark_steps(struct bny_op *op)
{
    const struct bny_program *p = bny_engine_of(op)->program;
    struct bny_coded *k = coded_of(op);
    int reduces = bny_call_row(&op->call)->averages;

    memset(k->blocks, 0, p->nblocks * sizeof *k->blocks);
    memset(k->steps, 0, p->nsteps * sizeof *k->steps);
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const struct bny_step *s = &p->steps[i];
        struct bny_coded_step *cs = &k->steps[i];
        cs->travels = bny_coded_codec(op, i) != NULL;
        cs->nsum = 1;
        if (reduces && s->kind == BNY_KEEP)
            cs->nsum = (uint32_t)bny_call_parts(&op->call, op->comm->n);
        if (reduces && s->kind == BNY_SEND)
            cs->nsum += k->blocks[s->block].added;
        k->blocks[s->block].added += s->kind == BNY_RECV_ADD;
    }
}

/* Sparse codecs: what a rank adds to the sums of others must be as sparse as theirs, or every
 * sum is dense. Where a block has an encoded RECV_ADD, the first one makes our own part sparse
 * (with its residual), and the sum of sparse parts then travels as it is. With reselect=1 sums
 * are selected from again instead, with the residual. */
static void mark_thinning(struct bny_op *op)
{
    const struct bny_program *p = bny_engine_of(op)->program;
    const struct bny_codec *codec = op->plan.codec;
    struct bny_coded *k = coded_of(op);

    if (codec->ops->family != BNY_CODEC_SPARSE || bny_codec_get(codec, "reselect") == 1)
        return;
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const struct bny_step *s = &p->steps[i];
        struct bny_coded_block *b = &k->blocks[s->block];
        struct bny_coded_step *cs = &k->steps[i];
        int sends = (s->kind == BNY_SEND || s->kind == BNY_KEEP) && cs->nsum > 1;
        if (s->kind == BNY_RECV_ADD && cs->travels) {
            cs->thins = !b->thinned;
            b->thinned = 1;
        } else if (sends && b->thinned) {
            cs->is_union = 1;
        } else if (sends) {
            cs->nsum = 1; /* a host's raw sum: selected from as one contribution */
        }
    }
}

static int makes_statistics(const struct bny_op *op, uint32_t i)
{
    const struct bny_coded_step *cs = bny_coded_step(op, i);
    unsigned kind = bny_engine_of(op)->program->steps[i].kind;

    return cs->travels && !cs->is_union && (kind == BNY_SEND || kind == BNY_KEEP || cs->thins);
}

/* Steps that encode, in order of their place in the tensor (blocks are), take the numbers of
 * their chunks. */
static int number_encodings(struct bny_op *op)
{
    const struct bny_engine *e = bny_engine_of(op);
    const struct bny_program *p = e->program;
    struct bny_coded *k = e->coded;
    size_t bytes = k->lent ? op->plan.codec->ops->stats_bytes : 0;
    int rc;

    k->nencodings = 0;
    if (!bytes)
        return 0;
    for (uint32_t i = 0; i < p->nsteps; i++)
        if (makes_statistics(op, i))
            k->blocks[p->steps[i].block].encodings += e->steps[i].nchunks;
    for (uint32_t b = 0; b < p->nblocks; b++) {
        size_t count = k->blocks[b].encodings;
        k->blocks[b].encodings = k->nencodings;
        k->nencodings += count;
    }
    for (uint32_t i = 0; i < p->nsteps; i++) {
        struct bny_coded_block *b = &k->blocks[p->steps[i].block];
        if (!makes_statistics(op, i))
            continue;
        k->steps[i].stats_at = b->encodings;
        b->encodings += e->steps[i].nchunks;
    }
    rc = bny_grow(&k->stats, &k->stats_cap, k->nencodings * bytes, 1, "statistics of a codec");
    if (rc == 0 && k->nencodings)
        memset(k->stats, 0, k->nencodings * bytes);
    return rc;
}

static size_t carve(size_t *at, size_t bytes)
{
    size_t place = *at;

    *at += (bytes + 63) & ~(size_t)63;
    return place;
}

/* Memory of a SEND that is encoded. */
static void lay_out_send(struct bny_op *op, uint32_t i, size_t *at, char *base)
{
    struct bny_coded_step *cs = bny_coded_step(op, i);
    size_t place = carve(at, SMALL_BYTES);

    cs->pend = base ? base + place : NULL;
    cs->jobs = NULL;
    if (!coded_of(op)->workers ||
        bound(op, i, bny_engine_chunk(op, &bny_engine_of(op)->steps[i], 0)) <= SMALL_BYTES)
        return;
    place = carve(at, sizeof *cs->jobs * BNY_AHEAD);
    cs->jobs = base ? (struct bny_job *)(void *)(base + place) : NULL;
}

/* Memory of a step whose chunks are forwarded. */
static void lay_out_kept(struct bny_op *op, uint32_t i, size_t *at, char *base)
{
    struct bny_coded_step *cs = bny_coded_step(op, i);
    uint32_t nchunks = bny_engine_of(op)->steps[i].nchunks;
    size_t place = carve(at, stride(op, i) * nchunks),
           lens = carve(at, sizeof(uint32_t) * nchunks);

    cs->kept = (char *)op; /* has been counted */
    if (!base)
        return;
    cs->kept = base + place;
    cs->kept_len = (uint32_t *)(void *)(base + lens);
    for (uint32_t c = 0; c < nchunks; c++)
        cs->kept_len[c] = BNY_LEN_RAW; /* as a step that is not encoded leaves it */
}

/* Hands out the codec's memory; base NULL: only counts. Returns bytes. */
static size_t lay_out(struct bny_op *op, char *base)
{
    const struct bny_program *p = bny_engine_of(op)->program;
    size_t at = 0;

    for (uint32_t i = 0; i < p->nsteps; i++)
        bny_coded_step(op, i)->kept = NULL;
    for (uint32_t i = 0; i < p->nsteps; i++) {
        if (p->steps[i].kind == BNY_SEND && bny_coded_step(op, i)->travels)
            lay_out_send(op, i, &at, base);
        if (is_forward(op, i) && !bny_coded_step(op, p->steps[i].from)->kept)
            lay_out_kept(op, p->steps[i].from, &at, base);
    }
    return at;
}

static int lend_state(struct bny_op *op)
{
    struct banyan_codec_state *state = op->call.state;
    struct bny_coded *k = coded_of(op);
    int rc;

    k->codec_step = bny_op_seq(op);
    k->lent = NULL;
    if (!state || is_exact(op->plan.codec))
        return 0;
    rc = op->call.is_child == BNY_CHILD_CODED
             ? 0 /* the parent has */
             : bny_state_begin(state, op->plan.codec, 1, (int64_t)state->count,
                               bny_call_takes_part(&op->call, op->comm->rank));
    if (rc)
        return rc;
    k->lent = state;
    k->codec_step = state->step;
    return 0;
}

static void memory_free(struct bny_coded *k)
{
    bny_xfer_deregister(&k->memory_tp, k->memory);
    free(k->memory);
    k->memory = NULL;
    k->memory_cap = 0;
}

void bny_coded_free(struct bny_engine *e, int has_devices)
{
    struct bny_coded *k = e->coded;

    e->coded = NULL;
    if (!k)
        return;
    if (!has_devices)
        k->memory_tp = NULL;
    memory_free(k);
    free(k->steps);
    free(k->blocks);
    free(k->decoded);
    free(k->stats);
    free(k);
}

static int grow_memory(struct bny_op *op, size_t need)
{
    struct bny_coded *k = coded_of(op);

    if (need <= k->memory_cap)
        return 0;
    memory_free(k);
    need = (need + PAGE - 1) & ~(size_t)(PAGE - 1);
    k->memory = aligned_alloc(PAGE, need); /* some devices are given whole pages only */
    if (!k->memory)
        return bny_fail(BANYAN_ENOMEM, "no memory for %zu bytes of encoded chunks", need);
    k->memory_cap = need;
    /* chunks that are kept go out by reference */
    k->memory_tp = bny_xfer_register(op->comm->world, k->memory, need);
    return 0;
}

static int grow_tables(struct bny_engine *e)
{
    struct bny_coded *k = e->coded ? e->coded : calloc(1, sizeof *k);
    int rc;

    if (!k)
        return bny_fail(BANYAN_ENOMEM, "no memory for an operation");
    e->coded = k;
    rc = bny_grow(&k->steps, &k->steps_cap, (size_t)e->program->nsteps + 1, sizeof *k->steps,
                  "steps");
    return rc ? rc
              : bny_grow(&k->blocks, &k->blocks_cap, e->program->nblocks, sizeof *k->blocks,
                         "blocks");
}

int bny_coded_start(struct bny_op *op)
{
    struct bny_engine *e = bny_engine_of(op);
    int rc = grow_tables(e);

    if (rc == 0)
        rc = lend_state(op);
    if (rc)
        return rc;
    e->is_coded = 1;
    mark_steps(op);
    mark_thinning(op);
    e->coded->workers = bny_ahead_workers(op->comm->world);
    rc = grow_memory(op, lay_out(op, NULL));
    if (rc == 0) {
        lay_out(op, e->coded->memory);
        bny_ahead_prepare(op);
        rc = number_encodings(op);
    }
    if (rc)
        bny_coded_end(op, rc);
    return rc;
}

void bny_coded_end(struct bny_op *op, int result)
{
    const struct bny_codec *codec = op->plan.codec;
    struct bny_coded *k = coded_of(op);
    struct banyan_codec_state *state = k->lent;

    bny_ahead_stop(op);
    if (!state)
        return;
    k->lent = NULL;
    if (result == 0 && k->nencodings && codec->ops->end) {
        BNY_FIXED_FP_MODE;
        codec->ops->end(codec, state->track, k->stats, k->nencodings);
    }
    if (op->call.is_child != BNY_CHILD_CODED)
        bny_state_end(state);
}

/* ---- encode and send ---- */

/* The chunk as it is, from where it lies. */
static int send_raw(struct bny_op *op, uint32_t i, struct bny_hdr *h, const char *ptr, size_t n)
{
    uint32_t len = (uint32_t)(n * op->esz);

    h->kind = BNY_MSG_RAW;
    h->crc = op->comm->world->codec_crc ? bny_crc32c(0, ptr, len) : 0;
    return bny_engine_send(op, i, h, ptr, len, 0);
}

static int send_small(struct bny_op *op, uint32_t i, struct bny_ep *ep, struct bny_hdr *h,
                      const char *src, size_t n)
{
    struct bny_coded_step *cs = bny_coded_step(op, i);
    int rc;

    if (!cs->pend_len) {
        long len = coded_encode(op, i, h->chunk, (uint32_t)op->comm->rank, cs->pend,
                                bound(op, i, n), src, n);
        if (len < 0)
            return (int)len;
        cs->pend_len = (uint32_t)len;
    }
    h->len = cs->pend_len;
    h->codec_len_raw = (uint32_t)(n * op->esz);
    rc = ep->ops->eager(ep, h, cs->pend);
    if (rc == 0)
        cs->pend_len = 0;
    return rc == 0 ? 1 : rc;
}

/* Straight into the transport's memory. */
static int send_reserved(struct bny_op *op, uint32_t i, struct bny_ep *ep, struct bny_hdr *h,
                         const char *src, size_t n)
{
    const struct bny_engine *e = bny_engine_of(op);
    size_t most = bound(op, i, n);
    struct bny_slot slot;
    long len;
    int rc;

    if (most > ep->eager_max && !(ep->ops->caps & BNY_TP_DESC) &&
        !e->peers[e->program->steps[i].peer].xfer.cts_seen)
        return BNY_WAITS_FOR_CTS;
    if (e->coded->steps[i].jobs)
        return bny_ahead_send(op, i, h, most);
    rc = ep->ops->reserve(ep, (uint32_t)most, &slot);
    if (rc != 0)
        return rc;
    len = coded_encode(op, i, h->chunk, (uint32_t)op->comm->rank, slot.mem, most, src, n);
    if (len < 0) {
        ep->ops->cancel(ep, &slot);
        return (int)len;
    }
    h->len = (uint32_t)len;
    h->codec_len_raw = (uint32_t)(n * op->esz);
    rc = ep->ops->commit(ep, &slot, h);
    return rc == 0 ? 1 : rc;
}

int bny_coded_send(struct bny_op *op, uint32_t i, struct bny_hdr *h)
{
    const struct bny_engine *e = bny_engine_of(op);
    const struct bny_step *s = &e->program->steps[i];
    struct bny_ep *ep = op->comm->peers[s->peer].ep;
    const struct bny_step_state *st = &e->steps[i];
    struct bny_coded_step *cs = bny_coded_step(op, i);
    uint32_t c = h->chunk;
    size_t n = bny_engine_chunk(op, st, c), at = (size_t)c * op->chunk_elems * op->esz;
    int rc;

    if (n == 0)
        return bny_engine_send(op, i, h, st->src, 0, 0);
    if (is_forward(op, i)) {
        const struct bny_coded_step *from = &e->coded->steps[s->from];
        if (from->kept_len[c] == BNY_LEN_RAW)
            return send_raw(op, i, h, e->steps[s->from].dst + at, n);
        return bny_engine_send(op, i, h, from->kept + stride(op, i) * c, from->kept_len[c], 0);
    }
    if (cs->raw_next != c + 1) {
        size_t most = bound(op, i, n);
        rc = most <= SMALL_BYTES && most <= ep->eager_max
                 ? send_small(op, i, ep, h, st->src + at, n)
                 : send_reserved(op, i, ep, h, st->src + at, n);
        if (rc != -BANYAN_ENOTSUP)
            return rc;
        cs->raw_next = c + 1;
    }
    return send_raw(op, i, h, st->src + at, n);
}

/* ---- receive and decode ---- */

int bny_coded_fits(const struct bny_op *op, uint32_t i, const struct bny_hdr *h, size_t n)
{
    if (n == 0)
        return h->kind == BNY_MSG_DATA && h->len == 0;
    if (h->kind == BNY_MSG_RAW)
        return h->len == n * op->esz;
    return h->kind == BNY_MSG_DATA && h->len > sizeof(struct bny_coded_hdr) &&
           h->len <= bound(op, i, n);
}

int bny_coded_declined(struct bny_op *op, uint32_t i, const struct bny_msg *msg,
                       const void *data, uint32_t c)
{
    struct bny_coded_step *cs = bny_coded_step(op, i);

    if (op->comm->world->codec_crc &&
        (!data || bny_crc32c(0, data, msg->hdr.len) != msg->hdr.crc))
        return bny_fail(BANYAN_EPROTO, "a raw chunk fails its checksum");
    if (cs->kept)
        cs->kept_len[c] = BNY_LEN_RAW;
    return 0;
}

static int reduce_exact(struct bny_op *op, uint32_t i, const struct bny_dec *d,
                        const void *wire, size_t len, size_t base, size_t n)
{
    const struct bny_engine *e = bny_engine_of(op);
    const struct bny_step_state *st = &e->steps[i];
    struct bny_coded *k = e->coded;
    int rc =
        bny_grow(&k->decoded, &k->decoded_cap, op->chunk_elems * op->esz, 1, "a decoded chunk");

    if (rc == 0)
        rc = bny_message_decode(d, k->decoded, wire, len, n);
    if (rc)
        return rc;
    if (e->program->steps[i].flags & BNY_STEP_REV)
        bny_local_reduce(&op->call.redop, op->call.dtype, st->dst + base, k->decoded,
                         st->src + base, n);
    else
        bny_local_reduce(&op->call.redop, op->call.dtype, st->dst + base, st->src + base,
                         k->decoded, n);
    return 0;
}

/* Our own part of a sum, sparse: *out = decode(encode(src)). A part that the codec declines
 * stays as it is. dst is not written before the peer's message has been checked. */
static int thin(struct bny_op *op, uint32_t i, uint32_t c, const char *src, size_t n,
                const float **out)
{
    struct bny_coded *k = coded_of(op);
    struct bny_dec d = decoder(op, i, c, op->comm->rank, 0);
    size_t at = (bound(op, i, n) + 63) & ~(size_t)63;
    int rc = bny_grow(&k->decoded, &k->decoded_cap, at + n * op->esz, 1, "a sparse part");
    long len;

    if (rc)
        return rc;
    len = coded_encode(op, i, c, (uint32_t)op->comm->rank, k->decoded, at, src, n);
    *out = (const float *)(const void *)(len == -BANYAN_ENOTSUP ? src : k->decoded + at);
    if (len < 0)
        return len == -BANYAN_ENOTSUP ? 0 : (int)len;
    return bny_message_decode(&d, k->decoded + at, k->decoded, (size_t)len, n);
}

int bny_coded_apply(struct bny_op *op, uint32_t i, const void *wire, size_t len, uint32_t c,
                    size_t n)
{
    const struct bny_engine *e = bny_engine_of(op);
    const struct bny_step *s = &e->program->steps[i];
    const struct bny_step_state *st = &e->steps[i];
    struct bny_coded_step *cs = bny_coded_step(op, i);
    struct bny_dec d = decoder(op, i, c, s->peer, s->kind == BNY_RECV_COPY);
    size_t base = (size_t)c * op->chunk_elems * op->esz;
    const float *acc;
    int rc;

    if (s->kind != BNY_RECV_COPY && is_exact(d.codec))
        return reduce_exact(op, i, &d, wire, len, base, n);
    if (s->kind != BNY_RECV_COPY) {
        acc = (const float *)(const void *)(st->src + base);
        rc = cs->thins ? thin(op, i, c, st->src + base, n, &acc) : 0;
        return rc ? rc
                  : bny_message_decode_add(&d, (float *)(void *)(st->dst + base), acc, wire,
                                           len, n);
    }
    rc = bny_message_decode(&d, st->dst + base, wire, len, n);
    if (rc == 0 && cs->kept) {
        BNY_ASSERT(len <= stride(op, i));
        bny_local_place(cs->kept + stride(op, i) * c, wire, len);
        cs->kept_len[c] = (uint32_t)len;
    }
    return rc;
}

/* ---- the owner ---- */

int bny_coded_keep(struct bny_op *op, uint32_t i, uint32_t c)
{
    const struct bny_step_state *st = &bny_engine_of(op)->steps[i];
    struct bny_coded_step *cs = bny_coded_step(op, i);
    size_t n = bny_engine_chunk(op, st, c), base = (size_t)c * op->chunk_elems * op->esz;
    struct bny_dec d = decoder(op, i, c, op->comm->rank, 1);
    char *wire = cs->kept + stride(op, i) * c, *dst = st->dst + base;
    const char *src = st->src + base;
    int averages = bny_call_averages(&op->call), parts = bny_call_parts(&op->call, op->comm->n),
        exact = is_exact(d.codec);
    long len;

    if (n == 0)
        return 0;
    if (exact) { /* the result's own bits travel */
        bny_local_finish(averages, op->call.dtype, dst, src, n, parts);
        src = dst;
    }
    len = coded_encode(op, i, c, (uint32_t)op->comm->n, wire, bound(op, i, n), src, n);
    if (len == -BANYAN_ENOTSUP) {
        if (!exact)
            bny_local_finish(averages, op->call.dtype, dst, src, n, parts);
        cs->kept_len[c] = BNY_LEN_RAW;
        return 0;
    }
    if (len < 0)
        return (int)len;
    cs->kept_len[c] = (uint32_t)len;
    return exact ? 0 : bny_message_decode(&d, dst, wire, (size_t)len, n);
}
