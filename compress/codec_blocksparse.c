/* SPDX-License-Identifier: BSD-3-Clause */
/* Omits all-zero blocks, after OmniReduce (SIGCOMM 2021). Lossless: it omits only blocks whose
 * every bit is 0, so any type, operation and forest works.
 *
 * Wire: (blocks + 7) / 8 bytes, bit i of byte j for block 8 j + i; the other blocks, one after
 * another. The last block may be shorter. Declines if no block is zero. */
#include <string.h>

#include "base/counts.h"
#include "base/err.h"
#include "compress/codecs.h"

enum { BLOCK };

static size_t bitmap_bytes(const struct bny_codec *c, size_t n)
{
    size_t block = (size_t)c->param[BLOCK];

    return ((n + block - 1) / block + 7) / 8;
}

static size_t blocksparse_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return n * banyan_dtype_bytes(dtype);
}

static int is_zero(const char *p, size_t bytes)
{
    return *p == 0 && memcmp(p, p + 1, bytes - 1) == 0;
}

static long blocksparse_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                               size_t n)
{
    size_t bytes = n * banyan_dtype_bytes(e->dtype), out = bitmap_bytes(e->codec, n);
    size_t block = (size_t)e->codec->param[BLOCK] * banyan_dtype_bytes(e->dtype);
    uint8_t *bits = wire;

    if (cap > bytes)
        cap = bytes;
    if (n == 0)
        return 0;
    if (out > cap)
        return -BANYAN_ENOTSUP;
    memset(bits, 0, out);
    for (size_t at = 0, b = 0; at < bytes; at += block, b++) {
        size_t m = bytes - at < block ? bytes - at : block;

        if (is_zero((const char *)src + at, m))
            continue;
        if (cap - out < m)
            return -BANYAN_ENOTSUP;
        bits[b / 8] |= (uint8_t)(1u << b % 8);
        memcpy((char *)wire + out, (const char *)src + at, m);
        out += m;
    }
    return (long)out;
}

static int blocksparse_wrong(size_t len, size_t n)
{
    return bny_fail(
        BANYAN_EPROTO,
        "codec blocksparse: a peer's message for %zu elements has %zu bytes, which is not what "
        "its bitmap says",
        n, len);
}

static int blocksparse_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                              size_t n)
{
    size_t bytes = n * banyan_dtype_bytes(d->dtype), used = bitmap_bytes(d->codec, n);
    size_t block = (size_t)d->codec->param[BLOCK] * banyan_dtype_bytes(d->dtype);
    const uint8_t *bits = wire;

    if (len < used)
        return blocksparse_wrong(len, n);
    for (size_t at = 0, b = 0; at < bytes; at += block, b++)
        if (bits[b / 8] >> b % 8 & 1)
            used += bytes - at < block ? bytes - at : block;
    if (used != len)
        return blocksparse_wrong(len, n);
    if (n && (bytes + block - 1) / block % 8 != 0 &&
        bits[bitmap_bytes(d->codec, n) - 1] >> (bytes + block - 1) / block % 8)
        return blocksparse_wrong(len, n);
    used = bitmap_bytes(d->codec, n);
    for (size_t at = 0, b = 0; at < bytes; at += block, b++) {
        size_t m = bytes - at < block ? bytes - at : block;

        /* A peer may still write to the bitmap: never read past the end. */
        if ((bits[b / 8] >> b % 8 & 1) == 0 || len - used < m) {
            memset((char *)dst + at, 0, m);
            continue;
        }
        memcpy((char *)dst + at, (const char *)wire + used, m);
        used += m;
    }
    return 0;
}

const struct bny_codec_ops bny_codec_blocksparse = {
    .name = "blocksparse",
    .family = BNY_CODEC_EXACT,
    .dtypes = (1u << BNY_DTYPE_COUNT) - 1,
    .doc = "leaves out blocks of zeros, without loss (OmniReduce, SIGCOMM 2021)",
    .encode_ns = 2,
    .decode_ns = 1,
    .params = {
        [BLOCK] = { "block", 256, 8, 65536, 1, "elements of a block" },
    },
    .bound = blocksparse_bound,
    .encode = blocksparse_encode,
    .decode = blocksparse_decode,
};
