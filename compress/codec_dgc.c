/* SPDX-License-Identifier: BSD-3-Clause */
/* Deep gradient compression (ICLR 2018): top-k of the velocity. u = m u + g and v = v + u for
 * each element; the largest v are sent, and u and v restart from 0 there. v is the residual, u
 * a further float per element. The fraction sent falls in five steps over the first `warmup`
 * operations. The paper clips each rank's gradient at 1/sqrt(ranks) of the threshold for all:
 * that is the caller's, before the codec sees it.
 *
 * Wire: sparse.h. Without state it is topk. */
#include "compress/codecs.h"

#include <math.h>

#include "compress/sparse.h"

enum { DELTA, MOMENTUM, NESTEROV, WARMUP, RESELECT };

#define RUNGS 5 /* 25 %, 6 %, 1.6 %, 0.4 %, 0.1 % */

static double delta_at(const struct bny_codec *c, uint32_t step)
{
    double warmup = c->param[WARMUP];

    if ((double)step >= warmup)
        return c->param[DELTA];
    return fmin(pow(c->param[DELTA], (floor((double)step * (RUNGS - 1) / warmup) + 1) / RUNGS),
                0.5);
}

/* The increment of the velocity, and u's next value. */
static float dgc_push(const struct bny_enc *e, float g, float u, float *next)
{
    float m = (float)e->codec->param[MOMENTUM];

    *next = e->codec->param[NESTEROV] != 0 ? (u + g) * m : m * u + g;
    return e->codec->param[NESTEROV] != 0 ? *next + g : *next;
}

/* Not finite, or so large that sums may not be. */
static uint32_t too_large(float v)
{
    uint32_t bits;

    memcpy(&bits, &v, sizeof bits);
    return (bits & 0x7fffffff) >= (127u + 96) << 23;
}

static int declined(const struct bny_enc *e, const void *src, size_t n)
{
    uint32_t bad = 0;

    for (size_t i = 0; i < n; i++) {
        float u, add = dgc_push(e, bny_f32_at(src, i), e->more[i], &u);

        bad |= too_large(add + e->ef_scale * e->ef[i]) | too_large(u);
    }
    return bad != 0;
}

static long dgc_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                       size_t n)
{
    double delta = delta_at(e->codec, e->step);
    struct bny_enc plain = *e;
    long len;

    if (e->nsum > 1 && e->codec->param[RESELECT] == 0)
        return bny_sparse_all(e, wire, cap, src, n);
    if (!e->more || !e->ef || e->nsum > 1)
        return bny_track_encode(e, delta, wire, cap, src, n);
    if (declined(e, src, n))
        return -BANYAN_ENOTSUP;
    for (size_t i = 0; i < n; i++) {
        float add = dgc_push(e, bny_f32_at(src, i), e->more[i], &e->more[i]);

        e->ef[i] = add + e->ef_scale * e->ef[i];
    }
    plain.ef = NULL;
    len = bny_track_encode(&plain, delta, wire, cap, e->ef, n);
    bny_sparse_clear(e, e->ef, e->more, wire, (size_t)len, n);
    return len;
}

const struct bny_codec_ops bny_codec_dgc = {
    .name = "dgc",
    .family = BNY_CODEC_SPARSE,
    .flags = BNY_CODEC_FEEDBACK | BNY_CODEC_TRACKED,
    .doc = "top-k with momentum correction and warm-up (deep gradient compression, ICLR 2018)",
    .encode_ns = 1.5,
    .decode_ns = 0.2,
    .params = {
        [DELTA] = { "delta", 0.001, 1e-6, 0.5, 0, "part of the elements that is sent" },
        [MOMENTUM] = { "momentum", 0.9, 0, 0.9999, 0, "of the optimiser, which must "
"have none itself" },
        [NESTEROV] = { "nesterov", 0, 0, 1, 1, "Nesterov's momentum" },
        [WARMUP] = { "warmup", 0, 0, 1e9, 1, "operations until the part sent "
"has fallen to delta" },
        [RESELECT] = { "reselect", 0, 0, 1, 1, "owners send the largest "
"elements of sums only" },
    },
    .bound = bny_sparse_bound,
    .encode = dgc_encode,
    .decode = bny_sparse_decode,
    .decode_add = bny_sparse_decode_add,
    .track_bytes = sizeof(struct bny_track),
    .stats_bytes = sizeof(struct bny_track_stats),
    .elem_floats = 1,
    .end = bny_track_end,
    .track_ok = bny_track_ok,
};
