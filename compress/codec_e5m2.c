/* SPDX-License-Identifier: BSD-3-Clause */
/* FP8 E5M2 (Micikevicius et al., FP8 Formats for Deep Learning, 2022; OCP OFP8) with an f32
 * scale for each block: 2 bits of mantissa over 30 binades.
 *
 * Wire: ceil(n / block) f32 scales; n bytes: sign, 5 bits of exponent (bias 15), 2 of mantissa.
 * scale = absmax / 57344, in units of which |x - decoded| <= 2^-3 |x| (1 + 2^-20) from 2^-14 on
 * and <= 2^-17 below; to nearest even. The codes of infinity and NaN are never written and
 * decode as +-65536 (1 + m/4). Small, large and foreign values as in int8. */
#include "compress/block.h"
#include "compress/codecs.h"

static const struct bny_block_layout layout = { .format = BNY_E5M2, .bits = 8, .random = -1 };

static size_t e5m2_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return bny_block_bytes(&layout, c, n);
}

static long e5m2_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                        size_t n)
{
    return bny_block_encode(&layout, e, wire, src, n);
}

static int e5m2_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                       size_t n)
{
    return bny_block_decode(&layout, d, dst, wire, len, n);
}

static int e5m2_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                           const void *wire, size_t len, size_t n)
{
    return bny_block_decode_add(&layout, d, dst, acc, wire, len, n);
}

const struct bny_codec_ops bny_codec_e5m2 = {
    .name = "e5m2",
    .family = BNY_CODEC_BLOCK,
    .flags = BNY_CODEC_FIXED,
    .doc = "FP8 E5M2, a scale for each block",
    .encode_ns = 1.1,
    .decode_ns = 0.6,
    .params = {
        { "block", 256, 16, 65536, 1, "elements that share a scale, even" },
    },
    .check = bny_block_check,
    .bound = e5m2_bound,
    .encode = e5m2_encode,
    .decode = e5m2_decode,
    .decode_add = e5m2_decode_add,
};
