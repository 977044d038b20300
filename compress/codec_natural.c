/* SPDX-License-Identifier: BSD-3-Clause */
/* Natural compression (Horvath, Ho, Horvath, Sahu, Canini, Richtarik: Natural Compression for
 * Distributed Deep Learning, 2019): rounds each element to one of the two adjacent powers of
 * two, at random so that the mean is exact; variance at most x^2 / 8.
 *
 * Wire: an f32 power of two for each group of 4096, 2^ceil(log2 absmax); a byte per element:
 * sign in bit 7, k in the lower bits: 0 for 0, else scale * 2^(k - 127). Values below the
 * smallest of these powers (or below 2^-126) become 0 or that power at random, also exact in
 * the mean. Values from 2^60 on are not encoded (raw); an untrusted scale that is negative or
 * not finite is rejected. */
#include "compress/codecs.h"
#include "compress/feedback.h"
#include "compress/kernels/code.h"
#include "compress/kernels/half.h"

static size_t natural_bytes(const struct bny_codec *c, size_t m)
{
    return m;
}

/* Exponent field of k = 1 below a scale with field top. */
static int lowest(int top)
{
    return top > 127 ? top - 126 : 1;
}

static void natural_encode_group(const struct bny_enc *e, float *scales, void *codes,
                                 const float *v, size_t m)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(e->cpu_flags);
    uint32_t random[BNY_GROUP_MAX], max = k->absmax(v, NULL, 0, m),
                                    top = (max + 0x7fffff) >> 23;
    int low = lowest((int)(top ? top : 1));
    float unit = f32_from_bits((uint32_t)low << 23);
    uint8_t *out = codes;

    top = top ? top : 1;
    scales[0] = f32_from_bits(top << 23);
    k->random(random, bny_rand_key(e->seed, e->step, e->rank), (uint32_t)e->index, m);
    for (size_t i = 0; i < m; i++) {
        uint32_t u = f32_bits(v[i]), mag = u & 0x7fffffff, r = random[i] >> 9;
        int field = (int)((mag + r) >> 23); /* the mantissa is the probability of a carry */

        if (mag < (uint32_t)low << 23)
            field = (float)r * 0x1p-23f * unit < f32_from_bits(mag) ? low : 0;
        out[i] = (uint8_t)((field ? field - (int)top + 127 : 0) | (int)(u >> 31 << 7));
    }
}

static void natural_decode_group(const struct bny_dec *d, float *out, const float *scales,
                                 const void *codes, size_t m)
{
    const uint8_t *in = codes;
    int top = (int)(f32_bits(scales[0]) >> 23);

    for (size_t i = 0; i < m; i++) {
        int k = in[i] & 127, field = top + k - 127;
        uint32_t mag = k && field > 0 ? (uint32_t)field << 23 : 0;

        out[i] = f32_from_bits(mag | (uint32_t)(in[i] & 128) << 24);
    }
}

static const struct bny_groups groups = { .size = 4096,
                                          .scales = 1,
                                          .bytes = natural_bytes,
                                          .encode = natural_encode_group,
                                          .decode = natural_decode_group };

static size_t natural_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return bny_groups_bytes(&groups, c, n);
}

static long natural_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                           size_t n)
{
    return bny_groups_encode(&groups, e, wire, src, n);
}

static int natural_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                          size_t n)
{
    return bny_groups_decode(&groups, d, dst, wire, len, n);
}

static int natural_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                              const void *wire, size_t len, size_t n)
{
    return bny_groups_decode_add(&groups, d, dst, acc, wire, len, n);
}

const struct bny_codec_ops bny_codec_natural = {
    .name = "natural",
    .family = BNY_CODEC_BLOCK,
    .flags = BNY_CODEC_FIXED | BNY_CODEC_UNBIASED,
    .doc = "natural compression: random rounding to powers of two (Horvath et al., 2019)",
    .encode_ns = 1.3,
    .decode_ns = 0.6,
    .bound = natural_bound,
    .encode = natural_encode,
    .decode = natural_decode,
    .decode_add = natural_decode_add,
};
