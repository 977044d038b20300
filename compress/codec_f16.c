/* SPDX-License-Identifier: BSD-3-Clause */
/* IEEE half precision (binary16) on the wire, 2 bytes an element.
 *
 * Wire: n little-endian halfs, no header. Rounded to nearest even: |x - decoded| <= 2^-11
 * |x| for 2^-14 <= |x| < 65520, at most 2^-25 below; from 65520 on infinity. NaN keeps its
 * sign and top payload bits, quiet. */
#include "base/err.h"
#include "compress/codecs.h"
#include "compress/kernels/kernels.h"

static size_t f16_bound(size_t n)
{
    return 2 * n;
}

static size_t f16_encode(void *wire, const float *src, size_t n)
{
    bny_kernels()->f16.encode(wire, src, n);
    return 2 * n;
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

static int f16_decode(float *dst, const void *wire, size_t len, size_t n)
{
    int rc = check_len(len, n);

    if (rc == 0)
        bny_kernels()->f16.decode(dst, wire, n);
    return rc;
}

static int f16_decode_add(float *dst, const float *acc, const void *wire, size_t len, size_t n)
{
    int rc = check_len(len, n);

    if (rc == 0)
        bny_kernels()->f16.decode_add(dst, acc, wire, n);
    return rc;
}

const struct bny_codec_ops bny_codec_f16 = {
    .name = "f16",
    .family = BNY_CODEC_BLOCK,
    .bound = f16_bound,
    .encode = f16_encode,
    .decode = f16_decode,
    .decode_add = f16_decode_add,
};
