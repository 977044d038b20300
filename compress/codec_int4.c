/* SPDX-License-Identifier: BSD-3-Clause */
/* 4-bit integers -7..7 with a scale for each block. Loses so much that training needs a
 * residual.
 *
 * Wire: ceil(n / block) f32 scales; ceil(m / 2) bytes for each block of m elements: byte j has
 * element j in its low half and element j + ceil(m / 2) in its high half, each plus 8 (0 if
 * there is none). scale = absmax / 7. |x - decoded| <= absmax (1/14 + 2^-22) to nearest, twice
 * that with random=1. Small, large and untrusted values as in int8. */
#include "compress/block.h"
#include "compress/codecs.h"

static const struct bny_block_layout layout = { .format = BNY_INT4, .bits = 4, .random = 1 };

static size_t int4_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return bny_block_bytes(&layout, c, n);
}

static long int4_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                        size_t n)
{
    return bny_block_encode(&layout, e, wire, src, n);
}

static int int4_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                       size_t n)
{
    return bny_block_decode(&layout, d, dst, wire, len, n);
}

static int int4_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                           const void *wire, size_t len, size_t n)
{
    return bny_block_decode_add(&layout, d, dst, acc, wire, len, n);
}

const struct bny_codec_ops bny_codec_int4 = {
    .name = "int4",
    .family = BNY_CODEC_BLOCK,
    .flags = BNY_CODEC_FIXED | BNY_CODEC_FEEDBACK,
    .doc = "4-bit integers, a scale for each block",
    .recommended = 1,
    .encode_ns = 1.0,
    .decode_ns = 0.55,
    .nmse = 3.2e-2,
    .max = 1.0 / 14 + 0x1p-22,
    .params = {
        { "block", 256, 16, 65536, 1, "elements that share a scale, even" },
        { "random", 0, 0, 1, 1, "1: stochastic rounding, unbiased" },
    },
    .check = bny_block_check,
    .bound = int4_bound,
    .encode = int4_encode,
    .decode = int4_decode,
    .decode_add = int4_decode_add,
};
