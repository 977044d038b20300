/* SPDX-License-Identifier: BSD-3-Clause */
/* bfloat16 (the upper half of an f32) on the wire, 2 bytes an element.
 *
 * Wire: n little-endian values, no header. Rounded to nearest even: |x - decoded| <= 2^-8
 * |x| (half a unit of the 8-bit significand: 2^-9 of the binade's upper end) down to f32's
 * smallest normal number 2^-126, at most 2^-134 below; infinity from (2 - 2^-8) 2^127 on.
 * NaN keeps its sign and top payload bits, quiet. */
#include "base/err.h"
#include "compress/codecs.h"
#include "compress/kernels/kernels.h"

static size_t bf16_bound(size_t n)
{
    return 2 * n;
}

static size_t bf16_encode(void *wire, const float *src, size_t n)
{
    bny_kernels()->bf16.encode(wire, src, n);
    return 2 * n;
}

static int check_len(size_t len, size_t n)
{
    if (len % 2 == 0 && len / 2 == n)
        return 0;
    return bny_fail(
        BANYAN_EPROTO,
        "codec bf16: a peer's message for %zu elements has %zu bytes, not two an element", n,
        len);
}

static int bf16_decode(float *dst, const void *wire, size_t len, size_t n)
{
    int rc = check_len(len, n);

    if (rc == 0)
        bny_kernels()->bf16.decode(dst, wire, n);
    return rc;
}

static int bf16_decode_add(float *dst, const float *acc, const void *wire, size_t len, size_t n)
{
    int rc = check_len(len, n);

    if (rc == 0)
        bny_kernels()->bf16.decode_add(dst, acc, wire, n);
    return rc;
}

const struct bny_codec_ops bny_codec_bf16 = {
    .name = "bf16",
    .family = BNY_CODEC_BLOCK,
    .bound = bf16_bound,
    .encode = bf16_encode,
    .decode = bf16_decode,
    .decode_add = bf16_decode_add,
};
