/* SPDX-License-Identifier: BSD-3-Clause */
/* IEEE half precision (binary16) on the wire, 2 bytes an element.
 *
 * Wire: n little-endian halfs, no header. Rounded to nearest even: |x - decoded| <= 2^-11
 * |x| for 2^-14 <= |x| < 65520, at most 2^-25 below; from 65520 on infinity. NaN keeps its
 * sign and top payload bits, quiet. */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "compress/codecs.h"
#include "compress/kernels/kernels.h"

#define TILE 512 /* elements that the feedback loop holds on the stack */

static size_t f16_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return 2 * n;
}

static long f16_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                       size_t n)
{
    const struct bny_half_kernels *k = &bny_kernels_for(e->cpu_flags)->f16;
    float v[TILE], back[TILE];

    if (!e->ef) {
        k->encode(wire, src, n);
        return (long)(2 * n);
    }
    for (size_t at = 0; at < n; at += TILE) {
        size_t m = n - at < TILE ? n - at : TILE;
        char *out = (char *)wire + 2 * at;

        memcpy(v, (const char *)src + 4 * at, 4 * m);
        for (size_t i = 0; i < m; i++)
            v[i] += e->ef_scale * e->ef[at + i];
        k->encode(out, v, m);
        k->decode(back, out, m);
        for (size_t i = 0; i < m; i++) /* what became infinite is not made good later */
            e->ef[at + i] = isfinite(back[i]) ? v[i] - back[i] : 0;
    }
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

static int f16_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len, size_t n)
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
    .bound = f16_bound,
    .encode = f16_encode,
    .decode = f16_decode,
    .decode_add = f16_decode_add,
};
