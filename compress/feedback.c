/* SPDX-License-Identifier: BSD-3-Clause */
/* The loops of feedback.h: tile by tile, so that intermediate values stay in the L1 cache. */
#include "compress/feedback.h"

#include <string.h>

#include "base/err.h"
#include "compress/kernels/code.h"
#include "compress/kernels/kernels.h"

#define TILE 512 /* elements */
/* Bits of 2^60: norms of BNY_GROUP_MAX such elements are finite. */
#define TOO_LARGE (187u << 23)

void bny_feedback_half(const struct bny_enc *e, void *wire, const void *src, size_t n,
                       void (*encode)(void *wire, const float *src, size_t n),
                       void (*decode)(float *dst, const void *wire, size_t n))
{
    const struct bny_code_kernels *k = bny_code_kernels_for(e->cpu_flags);
    float v[TILE], back[TILE];

    for (size_t at = 0; at < n; at += TILE) {
        size_t m = n - at < TILE ? n - at : TILE;
        char *out = (char *)wire + 2 * at;

        k->compensate(v, (const char *)src + 4 * at, e->ef + at, e->ef_scale, m);
        encode(out, v, m);
        decode(back, out, m);
        k->residual(e->ef + at, v, back, m);
    }
}

float bny_shrunk(float unit, double along, double squares)
{
    return squares > 0 ? (float)((double)unit * (along / squares)) : unit;
}

static size_t size_of(const struct bny_groups *g, const struct bny_codec *c)
{
    return g->size ? g->size : (size_t)bny_codec_get(c, "block");
}

static size_t scales_bytes(const struct bny_groups *g, size_t n, size_t size)
{
    return (n / size + (n % size != 0)) * 4 * g->scales;
}

size_t bny_groups_bytes(const struct bny_groups *g, const struct bny_codec *c, size_t n)
{
    size_t size = size_of(g, c), tail = n % size;

    return scales_bytes(g, n, size) + n / size * g->bytes(c, size) +
           (tail ? g->bytes(c, tail) : 0);
}

long bny_groups_encode(const struct bny_groups *g, const struct bny_enc *e, void *wire,
                       const void *src, size_t n)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(e->cpu_flags);
    size_t size = size_of(g, e->codec), step = g->bytes(e->codec, size);
    char *scales = wire, *codes;
    struct bny_dec d = { .codec = e->codec,
                         .cpu_flags = e->cpu_flags,
                         .scale = 1,
                         .seed = e->seed,
                         .step = e->step,
                         .rank = e->rank };
    float v[BNY_GROUP_MAX], back[BNY_GROUP_MAX], scale[2];
    struct bny_enc here = *e;

    if (n == 0)
        return 0;
    codes = scales + scales_bytes(g, n, size);
    /* First, because a chunk that is not encoded keeps its residual. */
    if (k->absmax(src, e->ef, e->ef_scale, n) >= TOO_LARGE)
        return -BANYAN_ENOTSUP;
    for (size_t at = 0; at < n; at += size) {
        size_t m = n - at < size ? n - at : size;

        k->compensate(v, (const char *)src + 4 * at, e->ef ? e->ef + at : NULL, e->ef_scale, m);
        d.index = here.index = e->index + at;
        g->encode(&here, scale, codes, v, m);
        if (e->ef) {
            g->decode(&d, back, scale, codes, m);
            k->residual(e->ef + at, v, back, m);
        }
        memcpy(scales, scale, 4 * g->scales);
        scales += 4 * g->scales;
        codes += step;
    }
    return (long)bny_groups_bytes(g, e->codec, n);
}

int bny_groups_check(const struct bny_groups *g, const struct bny_codec *c, const void *wire,
                     size_t len, size_t n)
{
    size_t want = bny_groups_bytes(g, c, n), bytes = scales_bytes(g, n, size_of(g, c));
    int bad = 0;

    if (len != want)
        return bny_fail(BANYAN_EPROTO,
                        "codec %s: a peer's message for %zu elements has %zu bytes, not %zu",
                        c->ops->name, n, len, want);
    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t bits;

        memcpy(&bits, (const char *)wire + i, 4);
        bad |= (g->negative ? bits & 0x7fffffff : bits) >= BNY_F32_INF;
    }
    if (!bad)
        return 0;
    return bny_fail(BANYAN_EPROTO,
                    "codec %s: a peer's message has a scale that is %snot finite", c->ops->name,
                    g->negative ? "" : "negative or ");
}

static int feedback_decode(const struct bny_groups *g, const struct bny_dec *d, float *dst,
                           const float *acc, const void *wire, size_t len, size_t n)
{
    const struct bny_kernels *k = bny_kernels_for(d->cpu_flags);
    size_t size = size_of(g, d->codec), step = g->bytes(d->codec, size);
    const char *scales = wire, *codes;
    struct bny_dec here = *d;
    float out[BNY_GROUP_MAX], scale[2];
    int rc = bny_groups_check(g, d->codec, wire, len, n);

    if (rc || n == 0)
        return rc;
    codes = scales + scales_bytes(g, n, size);
    for (size_t at = 0; at < n; at += size) {
        size_t m = n - at < size ? n - at : size;
        char *to = (char *)dst + 4 * at;

        here.index = d->index + at;
        memcpy(scale, scales, 4 * g->scales);
        g->decode(&here, out, scale, codes, m);
        if (acc)
            k->reduce[BANYAN_F32][BANYAN_SUM](to, (const char *)acc + 4 * at, out, m);
        else if (d->scale != 1)
            k->scale[BANYAN_F32](to, out, m, (double)d->scale);
        else
            memcpy(to, out, 4 * m);
        scales += 4 * g->scales;
        codes += step;
    }
    return 0;
}

int bny_groups_decode(const struct bny_groups *g, const struct bny_dec *d, void *dst,
                      const void *wire, size_t len, size_t n)
{
    return feedback_decode(g, d, dst, NULL, wire, len, n);
}

int bny_groups_decode_add(const struct bny_groups *g, const struct bny_dec *d, float *dst,
                          const float *acc, const void *wire, size_t len, size_t n)
{
    return feedback_decode(g, d, dst, acc, wire, len, n);
}
