/* SPDX-License-Identifier: BSD-3-Clause */
/* MXFP8 of the OCP Microscaling Formats specification 1.0 (2023): E4M3 elements, a power of two
 * for each 32.
 *
 * Wire: ceil(n / 32) bytes, the scale's exponent + 127 (E8M0); n bytes as in e4m3. scale =
 * 2^(floor(log2 absmax) - 8), at least 2^-126, in units of which |x| < 512; |x - decoded| <=
 * 2^-4 |x| from 2^-6 to 464, <= 2^-10 below, < 64 above, where codes saturate at 448. Blocks
 * with absmax from 2^127 on, infinities and NaN are not encoded (raw). A foreign scale byte of
 * 255 (NaN) is refused; 0 decodes as 1. */
#include "compress/block.h"
#include "compress/codecs.h"

static const struct bny_block_layout layout = {
    .format = BNY_E4M3, .bits = 8, .mx = 1, .block = 32, .random = -1
};

static size_t mxfp8_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return bny_block_bytes(&layout, c, n);
}

static long mxfp8_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                         size_t n)
{
    return bny_block_encode(&layout, e, wire, src, n);
}

static int mxfp8_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                        size_t n)
{
    return bny_block_decode(&layout, d, dst, wire, len, n);
}

static int mxfp8_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                            const void *wire, size_t len, size_t n)
{
    return bny_block_decode_add(&layout, d, dst, acc, wire, len, n);
}

const struct bny_codec_ops bny_codec_mxfp8 = {
    .name = "mxfp8",
    .family = BNY_CODEC_BLOCK,
    .flags = BNY_CODEC_FIXED,
    .doc = "OCP MXFP8: E4M3, a power of two for 32 elements",
    .encode_ns = 1.2,
    .decode_ns = 0.6,
    .bound = mxfp8_bound,
    .encode = mxfp8_encode,
    .decode = mxfp8_decode,
    .decode_add = mxfp8_decode_add,
};
