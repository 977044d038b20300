/* SPDX-License-Identifier: BSD-3-Clause */
/* The codec's part of an arrival reduction. Each rank decodes its children's chunks, adds, and
 * encodes its sum once. The top encodes the result; all other ranks forward its bytes and
 * decode the same. So a rank encodes an element at most once, and the law of error feedback
 * (compress/codec.h) holds for the ranks whose inputs count. A late rank encodes nothing, and
 * its residuals stay.
 *
 * Sparse codecs work as in the engine. A rank that adds makes its own part sparse first, with
 * its residual, and sends the sum of sparse parts as it is. With reselect=1 it selects from the
 * sum instead. A chunk that the codec declines travels raw (BNY_MSG_RAW). */
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/crc32c.h"
#include "base/fpmode.h"
#include "collectives/arrival/arrival.h"
#include "collectives/local/local.h"

static const struct bny_codec *codec_of(const struct bny_op *op)
{
    return op->plan.codec;
}

static int is_exact(const struct bny_op *op)
{
    return codec_of(op)->ops->family == BNY_CODEC_EXACT;
}

static struct bny_arrival_coded *coded_of(const struct bny_op *op)
{
    return &bny_arrival_of(op)->coded;
}

static size_t bound(const struct bny_op *op, size_t n)
{
    return bny_message_bound(codec_of(op), n, op->call.dtype, 0);
}

static char *wire_of(const struct bny_op *op, uint32_t c)
{
    return coded_of(op)->wire + coded_of(op)->stride * c;
}

static size_t offset_of(const struct bny_op *op, uint32_t c)
{
    return (size_t)c * op->chunk_elems * op->esz;
}

/* Chunk c of this rank's sum, as it is now. */
static const char *sum_of(const struct bny_op *op, uint32_t c)
{
    const struct bny_arrival *a = bny_arrival_of(op);

    return (a->nchildren ? a->acc : op->in) + offset_of(op, c);
}

/* ---- life ---- */

int bny_arrival_coded_init(struct bny_op *op)
{
    struct bny_arrival_coded *k = coded_of(op);
    size_t n = bny_arrival_of(op)->nchunks;
    int rc;

    if (!codec_of(op))
        return 0;
    k->stride = (bound(op, op->chunk_elems) + 63) & ~(size_t)63;
    rc = bny_grow(&k->wire, &k->wire_cap, n * k->stride + 64, 1, "encoded chunks");
    if (rc == 0)
        rc = bny_grow(&k->len, &k->len_cap, n + 1, sizeof *k->len, "encoded chunks");
    if (rc == 0)
        rc = bny_grow(&k->stats, &k->stats_cap, n * codec_of(op)->ops->stats_bytes + 64, 1,
                      "statistics of a codec");
    if (rc == 0 && (is_exact(op) || codec_of(op)->ops->family == BNY_CODEC_SPARSE))
        rc = bny_grow(&k->part, &k->part_cap, k->stride + op->chunk_elems * op->esz, 1,
                      "a decoded chunk");
    return rc;
}

void bny_arrival_coded_start(struct bny_op *op)
{
    struct bny_arrival_coded *k = coded_of(op);
    size_t n = bny_arrival_of(op)->nchunks;

    k->lent = k->held = NULL;
    k->nsum = 1;
    k->sparsifies = 0;
    k->nencodings = 0;
    k->step = bny_op_seq(op);
    if (!codec_of(op))
        return;
    memset(k->len, 0, n * sizeof *k->len);
    if (!op->call.state || is_exact(op))
        return;
    memset(k->stats, 0, n * codec_of(op)->ops->stats_bytes);
    k->held = op->call.state; /* no other operation may use it; its use here is not known yet */
    k->held->busy = 1;
}

void bny_arrival_coded_release(struct bny_op *op)
{
    struct bny_arrival_coded *k = coded_of(op);

    if (k->held)
        k->held->busy = 0;
    k->held = NULL;
}

static int arrival_coded_lend(struct bny_op *op, int takes_part)
{
    struct bny_arrival_coded *k = coded_of(op);
    struct banyan_codec_state *state = k->held;
    int rc;

    if (!state)
        return 0;
    bny_arrival_coded_release(op);
    rc = bny_state_begin(state, codec_of(op), 1, (int64_t)state->count, takes_part);
    if (rc)
        return rc;
    k->lent = state;
    k->step = state->step;
    return 0;
}

int bny_arrival_coded_takes_part(struct bny_op *op, int nsum)
{
    struct bny_arrival_coded *k = coded_of(op);
    struct bny_arrival *a = bny_arrival_of(op);
    int encodes;

    if (!codec_of(op))
        return 0;
    k->nsum = (uint32_t)nsum;
    k->sparsifies = nsum > 1 && codec_of(op)->ops->family == BNY_CODEC_SPARSE &&
                    bny_codec_get(codec_of(op), "reselect") != 1;
    encodes =
        a->parent != BNY_NO_PARENT || op->call.collective == BNY_ALLREDUCE || k->sparsifies;
    k->nencodings = encodes ? a->nchunks : 0;
    return arrival_coded_lend(op, 1);
}

int bny_arrival_coded_is_late(struct bny_op *op)
{
    return codec_of(op) ? arrival_coded_lend(op, 0) : 0;
}

void bny_arrival_coded_end(struct bny_op *op, int result)
{
    struct bny_arrival_coded *k = coded_of(op);
    const struct bny_codec_ops *ops;

    if (k->held)
        arrival_coded_lend(
            op, 0); /* it failed before its slot: the states of all ranks count the step */
    if (!k->lent)
        return;
    ops = codec_of(op)->ops;
    if (result == 0 && k->nencodings && ops->end) {
        BNY_FIXED_FP_MODE;
        ops->end(codec_of(op), k->lent->track, k->stats, k->nencodings);
    }
    bny_state_end(k->lent);
    k->lent = NULL;
}

void bny_arrival_coded_free(struct bny_arrival_coded *k)
{
    free(k->wire);
    free(k->len);
    free(k->stats);
    free(k->part);
}

/* ---- encode ---- */

/* has_state: with residuals and statistics. */
static long arrival_coded_encode(const struct bny_op *op, uint32_t c, uint32_t rank,
                                 uint32_t nsum, int has_state, void *wire, const void *src)
{
    const struct bny_arrival_coded *k = coded_of(op);
    struct banyan_codec_state *state = k->lent;
    size_t n = bny_arrival_chunk(op, c);
    struct bny_enc e = { .codec = codec_of(op),
                         .cpu_flags = bny_cpu_flags(),
                         .dtype = op->call.dtype,
                         .ef_scale = 1,
                         .step = k->step,
                         .rank = rank,
                         .nsum = nsum,
                         .index = (uint64_t)c * op->chunk_elems };

    if (state)
        e.seed = state->seed;
    if (state && has_state) {
        BNY_ASSERT(e.index + n <= state->count);
        e.ef = state->ef + e.index;
        e.track = state->track;
        e.stats = e.codec->ops->stats_bytes ? k->stats + c * e.codec->ops->stats_bytes : NULL;
        e.more = state->planes > 1 ? e.ef + state->count : NULL;
        e.more_stride = state->count;
    }
    return bny_message_encode(&e, wire, bound(op, n), src, n, op->comm->world->codec_crc);
}

static struct bny_dec decoder(const struct bny_op *op, uint32_t c, int from, int is_result)
{
    const struct bny_arrival_coded *k = coded_of(op);
    const struct bny_arrival *a = bny_arrival_of(op);
    int slots = a->has_slot ? a->slots : bny_arrival_slots(&op->call, op->comm->n);
    int divides = is_result && bny_call_averages(&op->call) && !is_exact(op);

    return (struct bny_dec){ .codec = codec_of(op),
                             .cpu_flags = bny_cpu_flags(),
                             .dtype = op->call.dtype,
                             .scale = divides ? bny_reciprocal(slots) : 1,
                             .seed = k->lent ? k->lent->seed : 0,
                             .step = k->step,
                             .rank = (uint32_t)(is_result ? op->comm->n : from),
                             .index = (uint64_t)c * op->chunk_elems,
                             .need_crc = op->comm->world->codec_crc };
}

int bny_arrival_encode(struct bny_op *op, uint32_t c)
{
    struct bny_arrival_coded *k = coded_of(op);
    long len;

    if (k->len[c])
        return 0;
    len = arrival_coded_encode(op, c, (uint32_t)op->comm->rank, k->nsum, !k->sparsifies,
                               wire_of(op, c), sum_of(op, c));
    if (len < 0 && len != -BANYAN_ENOTSUP)
        return (int)len;
    k->len[c] = len < 0 ? BNY_ARRIVAL_RAW : (uint32_t)len;
    return 0;
}

int bny_arrival_encode_result(struct bny_op *op, uint32_t c)
{
    struct bny_arrival_coded *k = coded_of(op);
    size_t n = bny_arrival_chunk(op, c);
    int averages = bny_call_averages(&op->call), slots = bny_arrival_of(op)->slots;
    char *dst = op->out + offset_of(op, c);
    struct bny_dec d = decoder(op, c, op->comm->rank, 1);
    const char *src = sum_of(op, c);
    long len;

    if (is_exact(op)) { /* the bits of the result travel */
        bny_local_finish(averages, op->call.dtype, dst, src, n, slots);
        src = dst;
    }
    len = arrival_coded_encode(op, c, (uint32_t)op->comm->n, k->nsum, !k->sparsifies,
                               wire_of(op, c), src);
    if (len < 0 && len != -BANYAN_ENOTSUP)
        return (int)len;
    k->len[c] = len < 0 ? BNY_ARRIVAL_RAW : (uint32_t)len;
    if (is_exact(op))
        return 0;
    if (len > 0)
        return bny_message_decode(&d, dst, wire_of(op, c), (size_t)len, n);
    bny_local_finish(averages, op->call.dtype, dst, src, n, slots);
    return 0;
}

/* ---- decode ---- */

int bny_arrival_coded_fits(const struct bny_op *op, const struct bny_hdr *h, size_t n)
{
    if (h->kind == BNY_MSG_RAW)
        return h->len == n * op->esz;
    return h->kind == BNY_MSG_DATA && h->len > sizeof(struct bny_coded_hdr) &&
           h->len <= bound(op, n);
}

/* Makes this rank's own part of a sum sparse: *out = decode(encode(in)), or the part itself if
 * the codec declines. */
static int sparsify_own(struct bny_op *op, uint32_t c, const char **out)
{
    struct bny_arrival_coded *k = coded_of(op);
    struct bny_dec d = decoder(op, c, op->comm->rank, 0);
    const char *in = op->in + offset_of(op, c);
    long len = arrival_coded_encode(op, c, (uint32_t)op->comm->rank, 1, 1, k->part, in);

    *out = len == -BANYAN_ENOTSUP ? in : k->part + k->stride;
    if (len < 0)
        return len == -BANYAN_ENOTSUP ? 0 : (int)len;
    return bny_message_decode(&d, k->part + k->stride, k->part, (size_t)len,
                              bny_arrival_chunk(op, c));
}

static int add_coded(struct bny_op *op, int from, uint32_t c, const void *wire, size_t len)
{
    struct bny_arrival *a = bny_arrival_of(op);
    struct bny_arrival_coded *k = coded_of(op);
    struct bny_dec d = decoder(op, c, from, 0);
    const char *with = (a->added[c] ? a->acc : op->in) + offset_of(op, c);
    char *dst = a->acc + offset_of(op, c);
    size_t n = bny_arrival_chunk(op, c);
    int rc = 0;

    if (!is_exact(op)) {
        if (k->sparsifies && !a->added[c])
            rc = sparsify_own(op, c, &with);
        return rc ? rc
                  : bny_message_decode_add(&d, (float *)(void *)dst,
                                           (const float *)(const void *)with, wire, len, n);
    }
    rc = bny_message_decode(&d, k->part, wire, len, n);
    if (rc == 0)
        bny_local_reduce(&op->call.redop, op->call.dtype, dst, with, k->part, n);
    return rc;
}

static int place_coded(struct bny_op *op, int from, uint32_t c, const void *wire, size_t len)
{
    struct bny_dec d = decoder(op, c, from, 1);
    int rc =
        bny_message_decode(&d, op->out + offset_of(op, c), wire, len, bny_arrival_chunk(op, c));

    if (rc == 0) {
        bny_local_place(wire_of(op, c), wire, len);
        coded_of(op)->len[c] = (uint32_t)len;
    }
    return rc;
}

int bny_arrival_apply_coded(struct bny_op *op, int from, int is_result, const struct bny_hdr *h,
                            const void *data)
{
    struct bny_arrival *a = bny_arrival_of(op);
    size_t off = offset_of(op, h->chunk);
    int rc;

    if (h->kind == BNY_MSG_DATA)
        rc = is_result ? place_coded(op, from, h->chunk, data, h->len)
                       : add_coded(op, from, h->chunk, data, h->len);
    else if (op->comm->world->codec_crc && bny_crc32c(0, data, h->len) != h->crc)
        rc = bny_fail(BANYAN_EPROTO, "a raw chunk fails its checksum");
    else
        rc = 0;
    if (rc || h->kind == BNY_MSG_DATA)
        return rc;
    if (is_result) {
        bny_local_place(op->out + off, data, h->len);
        coded_of(op)->len[h->chunk] = BNY_ARRIVAL_RAW;
    } else {
        bny_local_reduce(&op->call.redop, op->call.dtype, a->acc + off,
                         (a->added[h->chunk] ? a->acc : op->in) + off, data, h->len / op->esz);
    }
    return 0;
}
