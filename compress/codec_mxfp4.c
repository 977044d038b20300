/* SPDX-License-Identifier: BSD-3-Clause */
/* MXFP4 of the OCP Microscaling Formats specification 1.0 (2023): E2M1 elements (0, .5, 1, 1.5,
 * 2, 3, 4, 6 and their negatives), a power of two for each 32.
 *
 * Wire: ceil(n / 32) bytes, the scale's exponent + 127 (E8M0); 16 bytes for a block: byte j has
 * element j in its low half, element j + 16 in its high half (a shorter last block of m: j +
 * ceil(m / 2)). scale = 2^(floor(log2 absmax) - 2), at least 2^-126, in units of which |x| < 8;
 * |x - decoded| <= |x| / 4 from 1 to 6, <= 1/4 below, < 2 above, where codes saturate at 6.
 * Large and foreign values as in mxfp8. */
#include "compress/block.h"
#include "compress/codecs.h"

static const struct bny_block_layout layout = {
    .format = BNY_E2M1, .bits = 4, .mx = 1, .block = 32, .random = -1
};

static size_t mxfp4_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return bny_block_bytes(&layout, c, n);
}

static long mxfp4_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                         size_t n)
{
    return bny_block_encode(&layout, e, wire, src, n);
}

static int mxfp4_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                        size_t n)
{
    return bny_block_decode(&layout, d, dst, wire, len, n);
}

static int mxfp4_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                            const void *wire, size_t len, size_t n)
{
    return bny_block_decode_add(&layout, d, dst, acc, wire, len, n);
}

const struct bny_codec_ops bny_codec_mxfp4 = {
    .name = "mxfp4",
    .family = BNY_CODEC_BLOCK,
    .flags = BNY_CODEC_FIXED | BNY_CODEC_FEEDBACK,
    .doc = "OCP MXFP4: E2M1, a power of two for 32 elements",
    .encode_ns = 1.3,
    .decode_ns = 0.6,
    .bound = mxfp4_bound,
    .encode = mxfp4_encode,
    .decode = mxfp4_decode,
    .decode_add = mxfp4_decode_add,
};
