/* SPDX-License-Identifier: BSD-3-Clause */
/* bfloat16 (the upper half of an f32) on the wire, 2 bytes an element.
 *
 * Wire: n little-endian values, no header. Rounded to nearest even: |x - decoded| <= 2^-8
 * |x| (half a unit of the 8-bit significand: 2^-9 of the binade's upper end) down to f32's
 * smallest normal number 2^-126, at most 2^-134 below; infinity from (2 - 2^-8) 2^127 on.
 * NaN keeps its sign and top payload bits, quiet. */
#include "base/err.h"
#include "compress/codecs.h"
#include "compress/feedback.h"
#include "compress/kernels/kernels.h"

static size_t bf16_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return 2 * n;
}

static long bf16_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                        size_t n)
{
    const struct bny_half_kernels *k = &bny_kernels_for(e->cpu_flags)->bf16;

    if (e->ef)
        bny_feedback_half(e, wire, src, n, k->encode, k->decode);
    else
        k->encode(wire, src, n);
    return (long)(2 * n);
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

static int bf16_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                       size_t n)
{
    const struct bny_kernels *k = bny_kernels_for(d->cpu_flags);
    int rc = check_len(len, n);

    if (rc)
        return rc;
    k->bf16.decode(dst, wire, n);
    if (d->scale != 1)
        k->scale[BANYAN_F32](dst, dst, n, d->scale);
    return 0;
}

static int bf16_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                           const void *wire, size_t len, size_t n)
{
    int rc = check_len(len, n);

    if (rc == 0)
        bny_kernels_for(d->cpu_flags)->bf16.decode_add(dst, acc, wire, n);
    return rc;
}

const struct bny_codec_ops bny_codec_bf16 = {
    .name = "bf16",
    .family = BNY_CODEC_BLOCK,
    .flags = BNY_CODEC_FIXED,
    .doc = "bfloat16, 2 bytes an element",
    .recommended = 1,
    .encode_ns = 0.8,
    .decode_ns = 0.6,
    .nmse = 2.8e-6,
    .max = 0x1.02p-8,
    .bound = bf16_bound,
    .encode = bf16_encode,
    .decode = bf16_decode,
    .decode_add = bf16_decode_add,
};
