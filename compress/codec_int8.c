/* SPDX-License-Identifier: BSD-3-Clause */
/* 8-bit integers with a scale for each block, as in every quantised allreduce since QSGD's
 * relatives of 2017; symmetric, so that zeros stay zeros and sums stay centred.
 *
 * Wire: ceil(n / block) f32 scales, little endian; n bytes, two's complement. scale = absmax /
 * 127, decoded = scale * code. Rounded to nearest even: |x - decoded| <= absmax (1/254 +
 * 2^-22), the second term being f32's own rounding; blocks with absmax below 2^-110 become
 * zeros. random=1: rounded up with the probability of the fraction, unbiased, |x - decoded| <=
 * absmax (1/127 + 2^-22). Blocks with absmax from 2^127 on, infinities and NaN are not encoded
 * (raw). Decoding rejects a scale that is negative or not finite; all other bytes decode to
 * numbers. */
#include "compress/block.h"
#include "compress/codecs.h"

static const struct bny_block_layout layout = { .format = BNY_INT8, .bits = 8, .random = 1 };

static size_t int8_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return bny_block_bytes(&layout, c, n);
}

static long int8_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                        size_t n)
{
    return bny_block_encode(&layout, e, wire, src, n);
}

static int int8_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                       size_t n)
{
    return bny_block_decode(&layout, d, dst, wire, len, n);
}

static int int8_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                           const void *wire, size_t len, size_t n)
{
    return bny_block_decode_add(&layout, d, dst, acc, wire, len, n);
}

const struct bny_codec_ops bny_codec_int8 = {
    .name = "int8",
    .family = BNY_CODEC_BLOCK,
    .flags = BNY_CODEC_FIXED,
    .doc = "8-bit integers, a scale for each block",
    .recommended = 1,
    .encode_ns = 1.0,
    .decode_ns = 0.5,
    .nmse = 1.0e-4,
    .max = 1.0 / 254 + 0x1p-22,
    .params = {
        { "block", 256, 16, 65536, 1, "elements that share a scale, even" },
        { "random", 0, 0, 1, 1, "1: stochastic rounding, unbiased" },
    },
    .check = bny_block_check,
    .bound = int8_bound,
    .encode = int8_encode,
    .decode = int8_decode,
    .decode_add = int8_decode_add,
};
