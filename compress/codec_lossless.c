/* SPDX-License-Identifier: BSD-3-Clause */
/* Floats without loss: exponents of gradients take few values, so each is a short code; sign and
 * mantissa travel as they are. After ZipCCL (arXiv 2604.27844), with a window of symbols chosen for
 * each group from a sample instead of fixed statistics.
 *
 * Wire: for each group of 4096 elements (the last may be shorter)
 *     u8 base, u8 width, u16 escapes     width 1..7; 8: plain symbols; 9: all bits zero, nothing follows
 *     the rest of each element           kernels/exact.h
 *     codes                              8 * width bytes for 64 elements; width 8: a byte an element
 *     escaped symbols                    a byte each
 * Every bit of every element comes back. Declined when it saves less than 1/32. */
#include <string.h>

#include "base/err.h"
#include "compress/codecs.h"
#include "compress/kernels/exact.h"

#define GROUP BNY_EXACT_GROUP
#define PLAIN 8
#define ZERO  9
#define EARLY (16 * (size_t)GROUP) /* elements after which a chunk that saves nothing is given up */

struct head {
    uint8_t base, width;
    uint16_t escapes;
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

/* One group. Returns its bytes; 0: more than cap. */
static size_t put_group(const struct bny_exact_kernels *k, char *wire, size_t cap, const char *src,
                        size_t m, unsigned lg)
{
    uint8_t symbols[GROUP], escapes[GROUP];
    size_t rest = (m << lg) - m, n = 0;
    unsigned base = 0, width;
    struct head h;
    char *p = wire + sizeof h;

    if (is_zero(src, m << lg)) {
        h = (struct head){ .width = ZERO };
        if (cap < sizeof h)
            return 0;
        memcpy(wire, &h, sizeof h);
        return sizeof h;
    }
    if (cap < sizeof h + rest + m)
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
    h = (struct head){ .base = (uint8_t)base, .width = (uint8_t)width, .escapes = (uint16_t)n };
    memcpy(wire, &h, sizeof h);
    return sizeof h + rest + code_bytes(m, width) + n;
}

static long lossless_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src, size_t n)
{
    const struct bny_exact_kernels *k = bny_exact_for(e->cpu_flags);
    unsigned lg = log2_bytes(e->dtype);
    size_t out = 0;

    for (size_t at = 0; at < n; at += GROUP) {
        size_t m = n - at < GROUP ? n - at : GROUP;
        size_t len = put_group(k, (char *)wire + out, cap - out, (const char *)src + (at << lg), m, lg);

        out += len;
        if (!len || (at + m == EARLY && out > (EARLY << lg) / 32 * 31))
            return -BANYAN_ENOTSUP;
    }
    return out <= (n << lg) / 32 * 31 ? (long)out : -BANYAN_ENOTSUP;
}

static int wrong(const char *what, size_t at, size_t n)
{
    return bny_fail(BANYAN_EPROTO, "codec lossless: a peer's message for %zu elements %s at element %zu", n, what,
                    at);
}

static size_t group_bytes(const struct head *h, size_t m, unsigned lg)
{
    if (h->width == ZERO)
        return sizeof *h;
    return sizeof *h + (m << lg) - m + code_bytes(m, h->width) + h->escapes;
}

/* The group's header, when the group lies in len bytes. */
static int get_head(struct head *h, const char *wire, size_t len, size_t m, unsigned lg, size_t at, size_t n)
{
    if (len < sizeof *h)
        return wrong("ends", at, n);
    memcpy(h, wire, sizeof *h);
    if (h->width < 1 || h->width > ZERO)
        return wrong("has no such code width", at, n);
    if (len < group_bytes(h, m, lg))
        return wrong("ends", at, n);
    return 0;
}

static void get_group(const struct bny_exact_kernels *k, char *dst, const struct head *h, const char *wire,
                      size_t m, unsigned lg)
{
    const char *rest = wire + sizeof *h, *codes = rest + (m << lg) - m;
    uint8_t symbols[GROUP];

    if (h->width == ZERO) {
        memset(dst, 0, m << lg);
    } else if (h->width == PLAIN) {
        k->join[lg](dst, (const uint8_t *)codes, rest, m);
    } else {
        k->unpack(symbols, codes, (const uint8_t *)codes + code_bytes(m, h->width), h->escapes, m,
                  h->base, h->width);
        k->join[lg](dst, symbols, rest, m);
    }
}

static int lossless_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len, size_t n)
{
    const struct bny_exact_kernels *k = bny_exact_for(d->cpu_flags);
    unsigned lg = log2_bytes(d->dtype);
    const char *p = wire;
    struct head h;
    size_t used = 0;

    for (size_t at = 0; at < n; at += GROUP) {
        size_t m = n - at < GROUP ? n - at : GROUP;
        int rc = get_head(&h, p + used, len - used, m, lg, at, n);

        if (rc)
            return rc;
        if (h.width < PLAIN && h.escapes != k->count(p + used + sizeof h + (m << lg) - m, m, h.width))
            return wrong("has a wrong number of escapes", at, n);
        if (h.width >= PLAIN && h.escapes)
            return wrong("has escapes without codes", at, n);
        used += group_bytes(&h, m, lg);
    }
    if (used != len)
        return wrong("goes on", n, n);
    used = 0;
    for (size_t at = 0; at < n; at += GROUP) {
        size_t m = n - at < GROUP ? n - at : GROUP;

        if (get_head(&h, p + used, len - used, m, lg, at, n) != 0)
            break; /* a peer has changed it meanwhile */
        get_group(k, (char *)dst + (at << lg), &h, p + used, m, lg);
        used += group_bytes(&h, m, lg);
    }
    return 0;
}

const struct bny_codec_ops bny_codec_lossless = {
    .name = "lossless",
    .family = BNY_CODEC_EXACT,
    .dtypes = 1 << BANYAN_F32 | 1 << BANYAN_F64 | 1 << BANYAN_F16 | 1 << BANYAN_BF16,
    .doc = "every bit back: short codes for exponents, after ZipCCL (arXiv 2604.27844)",
    .bound = lossless_bound,
    .encode = lossless_encode,
    .decode = lossless_decode,
};
