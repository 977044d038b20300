/* SPDX-License-Identifier: BSD-3-Clause */
/* FP8 E4M3 (Micikevicius et al., FP8 Formats for Deep Learning, 2022; OCP OFP8) with an f32
 * scale for each block: small elements of a block keep three bits of mantissa, which int8
 * loses.
 *
 * Wire: ceil(n / block) f32 scales; n bytes: sign, 4 bits of exponent (bias 7), 3 of mantissa.
 * scale = absmax / 448, in units of which |x - decoded| <= 2^-4 |x| (1 + 2^-20) from 2^-6 on
 * and <= 2^-10 below; to nearest even. The codes 7f and ff (NaN in OCP) are never written and
 * decode as +-480. Small, large and untrusted values as in int8. */
#include "compress/block.h"
#include "compress/codecs.h"

static const struct bny_block_layout layout = { .format = BNY_E4M3, .bits = 8, .random = -1 };

static size_t e4m3_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return bny_block_bytes(&layout, c, n);
}

static long e4m3_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                        size_t n)
{
    return bny_block_encode(&layout, e, wire, src, n);
}

static int e4m3_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                       size_t n)
{
    return bny_block_decode(&layout, d, dst, wire, len, n);
}

static int e4m3_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                           const void *wire, size_t len, size_t n)
{
    return bny_block_decode_add(&layout, d, dst, acc, wire, len, n);
}

const struct bny_codec_ops bny_codec_e4m3 = {
    .name = "e4m3",
    .family = BNY_CODEC_BLOCK,
    .flags = BNY_CODEC_FIXED,
    .doc = "FP8 E4M3, a scale for each block",
    .encode_ns = 1.1,
    .decode_ns = 0.6,
    .nmse = 6.8e-4,
    .max = 0x1.0001p-4,
    .params = {
        { "block", 256, 16, 65536, 1, "elements that share a scale, even" },
    },
    .check = bny_block_check,
    .bound = e4m3_bound,
    .encode = e4m3_encode,
    .decode = e4m3_decode,
    .decode_add = e4m3_decode_add,
};
