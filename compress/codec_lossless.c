/* SPDX-License-Identifier: BSD-3-Clause */
/* Floats without loss: exponents of gradients have few values, so each gets a short code; sign
 * and mantissa are unchanged. After ZipCCL (arXiv 2604.27844), with a window of symbols chosen
 * for each group from a sample instead of fixed statistics.
 *
 * Wire: for each group of 4096 elements (the last may be shorter)
 *     u8 base, u8 width, u16 escapes     width 1..7; 8: plain symbols; 9: all bits zero,
 *                                        nothing follows
 *     with 128 added to width: a mask    u64 for 64 elements; bit 0: zero and omitted
 *     the rest of each element           kernels/exact.h
 *     codes                              8 * width bytes for 64 elements; width 8: a byte per
 *                                        element
 *     escaped symbols                    a byte each
 * Every bit of every element is restored. Declines if it saves less than 1/32. */
#include <string.h>

#include "base/err.h"
#include "compress/codecs.h"
#include "compress/kernels/exact.h"

#define GROUP BNY_EXACT_GROUP
#define PLAIN 8
#define ZERO  9
/* Number of elements after which a chunk without savings is given up. */
#define EARLY (16 * (size_t)GROUP)

#define MASKED 128

struct head {
    uint8_t base, width;
    uint16_t escapes;
};

/* A group; data read from a message is a copy that nobody changes. */
struct group {
    struct head h;
    size_t m, kept; /* elements; those in the message */
    uint64_t mask[GROUP / 64];
};

static unsigned log2_bytes(enum banyan_dtype dtype)
{
    return dtype == BANYAN_F64 ? 3 : dtype == BANYAN_F32 ? 2 : 1;
}

static size_t code_bytes(size_t m, unsigned width)
{
    return width == PLAIN ? m : (m + 63) / 64 * 8 * width;
}

static size_t lossless_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return n << log2_bytes(dtype);
}

static int is_zero(const char *p, size_t bytes)
{
    return bytes == 0 || (*p == 0 && memcmp(p, p + 1, bytes - 1) == 0);
}

/* Does omitting zeros pay for the mask? If one in sixteen of a sample is zero. */
static int many_zeros(const char *src, size_t m, unsigned lg)
{
    size_t stride = m > BNY_EXACT_SAMPLE ? m / BNY_EXACT_SAMPLE : 1, zeros = 0, samples = 0;

    for (size_t i = stride / 2; i < m; i += stride, samples++) {
        const char *p = src + (i << lg);
        uint64_t x = 0;

        if (lg == 1)
            memcpy(&x, p, 2);
        else if (lg == 2)
            memcpy(&x, p, 4);
        else
            memcpy(&x, p, 8);
        zeros += x == 0;
    }
    return 16 * zeros > samples;
}

/* Writes m elements behind the header, and completes it. Returns bytes; 0: more than cap. */
static size_t put_elements(const struct bny_exact_kernels *k, struct head *h, char *p,
                           size_t cap, const void *src, size_t m, unsigned lg)
{
    uint8_t symbols[GROUP + 64], escapes[GROUP + 64];
    size_t rest = (m << lg) - m, n = 0;
    unsigned base = 0, width;

    if (cap < rest + m)
        return 0;
    k->split[lg](symbols, p, src, m);
    width = k->choose(&base, symbols, m, PLAIN);
    if (code_bytes(m, width) >= m)
        width = PLAIN;
    p += rest;
    if (width != PLAIN) {
        memset(symbols + m, (int)base, (size_t)-m % 64);
        n = k->pack(p, escapes, symbols, m, base, width);
    }
    if (n && code_bytes(m, width) + n >= m)
        width = PLAIN, n = 0;
    if (width == PLAIN)
        memcpy(p, symbols, m);
    else
        memcpy(p + code_bytes(m, width), escapes, n);
    *h =
        (struct head){ .base = (uint8_t)base, .width = (uint8_t)width, .escapes = (uint16_t)n };
    return rest + code_bytes(m, width) + n;
}

/* One group. Returns its bytes; 0: more than cap. */
static size_t put_group(const struct bny_exact_kernels *k, char *wire, size_t cap,
                        const char *src, size_t m, unsigned lg)
{
    uint64_t mask[GROUP / 64], kept[GROUP + 16];
    struct head h = { .width = ZERO };
    size_t bytes, front = sizeof h, left = m;
    const void *from = src;

    if (cap < sizeof h + GROUP / 8)
        return 0;
    if (is_zero(src, m << lg)) {
        memcpy(wire, &h, sizeof h);
        return sizeof h;
    }
    if (many_zeros(src, m, lg)) {
        left = k->squeeze[lg](kept, mask, src, m);
        from = kept;
        memcpy(wire + front, mask, (m + 63) / 64 * 8);
        front += (m + 63) / 64 * 8;
    }
    bytes = put_elements(k, &h, wire + front, cap - front, from, left, lg);
    if (!bytes)
        return 0;
    h.width |= front > sizeof h ? MASKED : 0;
    memcpy(wire, &h, sizeof h);
    return front + bytes;
}

static long lossless_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                            size_t n)
{
    const struct bny_exact_kernels *k = bny_exact_for(e->cpu_flags);
    unsigned lg = log2_bytes(e->dtype);
    size_t out = 0;

    for (size_t at = 0; at < n; at += GROUP) {
        size_t m = n - at < GROUP ? n - at : GROUP;
        size_t len =
            put_group(k, (char *)wire + out, cap - out, (const char *)src + (at << lg), m, lg);

        out += len;
        if (!len || (at + m == EARLY && out > (EARLY << lg) / 32 * 31))
            return -BANYAN_ENOTSUP;
    }
    return out <= (n << lg) / 32 * 31 ? (long)out : -BANYAN_ENOTSUP;
}

static int lossless_wrong(const char *what, size_t at, size_t n)
{
    return bny_fail(BANYAN_EPROTO,
                    "codec lossless: a peer's message for %zu elements %s at element %zu", n,
                    what, at);
}

/* Bytes before the rest of the elements. */
static size_t front_bytes(const struct group *g)
{
    return sizeof g->h + (g->h.width & MASKED ? (g->m + 63) / 64 * 8 : 0);
}

static size_t group_bytes(const struct group *g, unsigned lg)
{
    unsigned width = g->h.width & ~MASKED;

    if (width == ZERO)
        return sizeof g->h;
    return front_bytes(g) + (g->kept << lg) - g->kept + code_bytes(g->kept, width) +
           g->h.escapes;
}

/* The group at wire, if it fits in len bytes. */
static int get_head(struct group *g, const char *wire, size_t len, size_t m, unsigned lg,
                    size_t at, size_t n)
{
    unsigned width;

    g->m = g->kept = m;
    if (len < sizeof g->h)
        return lossless_wrong("ends", at, n);
    memcpy(&g->h, wire, sizeof g->h);
    width = g->h.width & ~MASKED;
    if (width < 1 || width > ZERO || g->h.width == (ZERO | MASKED))
        return lossless_wrong("has no such code width", at, n);
    if (len < front_bytes(g))
        return lossless_wrong("ends", at, n);
    if (g->h.width & MASKED) {
        size_t words = (m + 63) / 64;

        memcpy(g->mask, wire + sizeof g->h, 8 * words);
        if (m % 64 && g->mask[words - 1] >> m % 64)
            return lossless_wrong("keeps elements behind its end", at, n);
        g->kept = 0;
        for (size_t i = 0; i < words; i++)
            g->kept += (size_t)__builtin_popcountll(g->mask[i]);
    }
    if (len < group_bytes(g, lg))
        return lossless_wrong("ends", at, n);
    return 0;
}

static void get_group(const struct bny_exact_kernels *k, char *dst, const struct group *g,
                      const char *wire, unsigned lg)
{
    const char *rest = wire + front_bytes(g), *codes = rest + (g->kept << lg) - g->kept;
    unsigned width = g->h.width & ~MASKED;
    uint8_t symbols[GROUP + 64];
    uint64_t kept[GROUP + 16];
    void *to = g->h.width & MASKED ? (void *)kept : dst;

    if (width == ZERO) {
        memset(dst, 0, g->m << lg);
        return;
    }
    if (width == PLAIN) {
        k->join[lg](to, (const uint8_t *)codes, rest, g->kept);
    } else {
        k->unpack(symbols, codes, (const uint8_t *)codes + code_bytes(g->kept, width),
                  g->h.escapes, g->kept, g->h.base, width);
        k->join[lg](to, symbols, rest, g->kept);
    }
    if (to == kept) {
        memset((char *)kept + (g->kept << lg), 0, (size_t)16 << lg);
        k->spread[lg](dst, g->mask, kept, g->m);
    }
}

static int lossless_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                           size_t n)
{
    const struct bny_exact_kernels *k = bny_exact_for(d->cpu_flags);
    unsigned lg = log2_bytes(d->dtype);
    const char *p = wire;
    struct group g;
    size_t used = 0;

    for (size_t at = 0; at < n; at += GROUP) {
        int rc = get_head(&g, p + used, len - used, n - at < GROUP ? n - at : GROUP, lg, at, n);
        const char *codes;
        unsigned width;

        if (rc)
            return rc;
        width = g.h.width & ~MASKED;
        codes = p + used + front_bytes(&g) + (g.kept << lg) - g.kept;
        if (g.h.escapes != (width < PLAIN ? k->count(codes, g.kept, width) : 0))
            return lossless_wrong("has a wrong number of escapes", at, n);
        used += group_bytes(&g, lg);
    }
    if (used != len)
        return lossless_wrong("goes on", n, n);
    used = 0;
    for (size_t at = 0; at < n; at += GROUP) {
        if (get_head(&g, p + used, len - used, n - at < GROUP ? n - at : GROUP, lg, at, n) != 0)
            break; /* a peer has changed it meanwhile */
        get_group(k, (char *)dst + (at << lg), &g, p + used, lg);
        used += group_bytes(&g, lg);
    }
    return 0;
}

const struct bny_codec_ops bny_codec_lossless = {
    .name = "lossless",
    .family = BNY_CODEC_EXACT,
    .dtypes = 1 << BANYAN_F32 | 1 << BANYAN_F64 | 1 << BANYAN_F16 | 1 << BANYAN_BF16,
    .doc = "every bit back: short codes for exponents, after ZipCCL (arXiv 2604.27844)",
    .recommended = 1,
    .encode_ns = 1.2,
    .decode_ns = 1.2,
    .bound = lossless_bound,
    .encode = lossless_encode,
    .decode = lossless_decode,
};
