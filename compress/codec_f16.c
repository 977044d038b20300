/* SPDX-License-Identifier: BSD-3-Clause */
/* IEEE half precision (binary16) on the wire, 2 bytes an element.
 *
 * Wire: n little-endian halves, no header. Rounded to nearest even: |x - decoded| <= 2^-11
 * |x| for 2^-14 <= |x| < 65520, at most 2^-25 below; from 65520 on infinity. NaN keeps its
 * sign and top payload bits, quiet. */
#include "base/err.h"
#include "compress/codecs.h"
#include "compress/feedback.h"
#include "compress/kernels/kernels.h"

static size_t f16_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return 2 * n;
}

static long f16_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                       size_t n)
{
    const struct bny_half_kernels *k = &bny_kernels_for(e->cpu_flags)->f16;

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
        "codec f16: a peer's message for %zu elements has %zu bytes, not two an element", n,
        len);
}

static int f16_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                      size_t n)
{
    const struct bny_kernels *k = bny_kernels_for(d->cpu_flags);
    int rc = check_len(len, n);

    if (rc)
        return rc;
    k->f16.decode(dst, wire, n);
    if (d->scale != 1)
        k->scale[BANYAN_F32](dst, dst, n, d->scale);
    return 0;
}

static int f16_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                          const void *wire, size_t len, size_t n)
{
    int rc = check_len(len, n);

    if (rc == 0)
        bny_kernels_for(d->cpu_flags)->f16.decode_add(dst, acc, wire, n);
    return rc;
}

const struct bny_codec_ops bny_codec_f16 = {
    .name = "f16",
    .family = BNY_CODEC_BLOCK,
    .flags = BNY_CODEC_FIXED,
    .doc = "IEEE half precision, 2 bytes an element",
    .encode_ns = 0.9,
    .decode_ns = 0.6,
    .bound = f16_bound,
    .encode = f16_encode,
    .decode = f16_decode,
    .decode_add = f16_decode_add,
};
