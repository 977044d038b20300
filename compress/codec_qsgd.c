/* SPDX-License-Identifier: BSD-3-Clause */
/* QSGD (Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD: Communication-Efficient SGD via Gradient
 * Quantization and Encoding, NIPS 2017): per group, |v| / norm in units of 1/s, rounded up or
 * down at random so that the mean is exact.
 *
 * Wire: an f32 for each group, norm / s; then level + s of each element, 0..2s, packed in b =
 * ceil(log2(2 s + 1)) bits (kernels/code.h: pack). The norm is Euclidean, or with max=1 the
 * largest |v|. |x - decoded| < norm / s; variance of a group of d at most min(d / s^2, sqrt(d)
 * / s) norm^2 for the Euclidean. With a residual the wire has a smaller scale (feedback.h:
 * bny_shrunk). Values from 2^60 on are not encoded (raw); an untrusted scale that is negative
 * or not finite is rejected. */
#include <math.h>

#include "compress/codecs.h"
#include "compress/feedback.h"
#include "compress/kernels/code.h"

/* Bits that hold 0..2s. */
static unsigned width(const struct bny_codec *c)
{
    unsigned top = 2 * (unsigned)c->param[0], b = 0;

    while (top >> b)
        b++;
    return b;
}

static size_t qsgd_bytes(const struct bny_codec *c, size_t m)
{
    return bny_packed_bytes(width(c), m);
}

static void qsgd_encode_group(const struct bny_enc *e, float *scales, void *codes,
                              const float *v, size_t m)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(e->cpu_flags);
    float s = (float)e->codec->param[0], inv;
    uint32_t random[BNY_GROUP_MAX];
    uint8_t level[BNY_GROUP_MAX];
    struct bny_moments mo;
    double along = 0, squares = 0; /* expected of <v, q> and |q|^2, in units of the scale */

    k->moments(&mo, v, m);
    scales[0] = (e->codec->param[2] != 0 ? mo.max : (float)sqrt(mo.sum2)) / s;
    /* The squares of a small group underflow: its maximum is also a norm, and its scale must
     * have an inverse. */
    if (!(scales[0] > 0x1p-60f))
        scales[0] = mo.max > 0x1p-120f ? mo.max : 0;
    inv = scales[0] > 0 ? 1 / scales[0] : 0;
    k->random(random, bny_rand_key(e->seed, e->step, e->rank), (uint32_t)e->index, m);
    for (size_t i = 0; i < m; i++) {
        float t = fabsf(v[i]) * inv, u = (float)(random[i] >> 8) * 0x1p-24f;
        int q = (int)((t < s ? t : s) + u);

        q = q < (int)s ? q : (int)s;
        level[i] = (uint8_t)((int)s + (v[i] < 0 ? -q : q));
        t = t < s ? t : s;
        along += (double)t * (double)t;
        squares += (double)floorf(t) * (double)floorf(t) +
                   (double)(t - floorf(t)) * (2 * (double)floorf(t) + 1);
    }
    if (e->ef)
        scales[0] = bny_shrunk(scales[0], along, squares);
    k->pack[width(e->codec)](codes, level, m);
}

static void qsgd_decode_group(const struct bny_dec *d, float *out, const float *scales,
                              const void *codes, size_t m)
{
    uint8_t level[BNY_GROUP_MAX];
    int s = (int)d->codec->param[0];

    bny_code_kernels_for(d->cpu_flags)->unpack[width(d->codec)](level, codes, m);
    for (size_t i = 0; i < m; i++)
        out[i] = (float)((int)level[i] - s) * scales[0];
}

static const struct bny_groups groups = {
    .scales = 1, .bytes = qsgd_bytes, .encode = qsgd_encode_group, .decode = qsgd_decode_group
};

static size_t qsgd_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return bny_groups_bytes(&groups, c, n);
}

static long qsgd_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                        size_t n)
{
    return bny_groups_encode(&groups, e, wire, src, n);
}

static int qsgd_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                       size_t n)
{
    return bny_groups_decode(&groups, d, dst, wire, len, n);
}

static int qsgd_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                           const void *wire, size_t len, size_t n)
{
    return bny_groups_decode_add(&groups, d, dst, acc, wire, len, n);
}

const struct bny_codec_ops bny_codec_qsgd = {
    .name = "qsgd",
    .family = BNY_CODEC_BLOCK,
    .flags = BNY_CODEC_FIXED | BNY_CODEC_UNBIASED,
    .doc = "QSGD: random rounding to s levels of the norm (Alistarh et al., 2017)",
    .encode_ns = 1.5,
    .decode_ns = 0.6,
    .params = {
        { "levels", 15, 1, 127, 1, "s, on each side of 0" },
        { "block", 512, 64, BNY_GROUP_MAX, 1, "elements of a group" },
        { "max", 0, 0, 1, 1, "1: maximum norm instead of Euclid's" },
    },
    .bound = qsgd_bound,
    .encode = qsgd_encode,
    .decode = qsgd_decode,
    .decode_add = qsgd_decode_add,
};
