/* SPDX-License-Identifier: BSD-3-Clause */
/* int8 and int4 with shorter codes: most integers of a block with one scale are small, so those
 * near zero get short codes and the others an escape, with the loops and the selection of the
 * lossless codec (kernels/exact.h), for each 4096 elements. After NCCLZ's entropy stage (arXiv
 * 2605.12396); they decode to the same values as int8 and int4.
 *
 * Wire: for each group of 4096 elements (the last may be shorter)
 *     u8 base, u8 width, u16 escapes     width = 8 or 4: codes as in int8 and int4
 *     f32 scales                         one per block
 *     codes                              8 * width bytes for 64; int4's symbols are its halves
 *                                        of bytes, low half first
 *     escaped symbols                    8 or 4 bits each, low half first */
#include <string.h>

#include "base/err.h"
#include "compress/codecs.h"
#include "compress/kernels/code.h"
#include "compress/kernels/exact.h"

enum { BLOCK, RANDOM };

#define GROUP BNY_EXACT_GROUP

struct head {
    uint8_t base, width;
    uint16_t escapes;
};

/* A group's parts; in bytes. */
struct group {
    size_t m, symbols, scales, plain;
};

static unsigned bits_of(const struct bny_codec *c)
{
    return c->ops == &bny_codec_int4z ? 4 : 8;
}

static const struct bny_format_kernels *format(const struct bny_codec *c, unsigned cpu_flags)
{
    return &bny_code_kernels_for(cpu_flags)->format[bits_of(c) == 4 ? BNY_INT4 : BNY_INT8];
}

static struct group group_at(const struct bny_codec *c, size_t at, size_t n)
{
    size_t m = n - at < GROUP ? n - at : GROUP, block = (size_t)c->param[BLOCK];
    size_t plain = bits_of(c) == 4 ? (m + 1) / 2 : m;

    return (struct group){ m, bits_of(c) == 4 ? 2 * plain : plain, (m + block - 1) / block * 4,
                           plain };
}

static size_t code_bytes(const struct bny_codec *c, const struct group *g, const struct head *h)
{
    size_t escapes = h->escapes;

    if (h->width == bits_of(c))
        return g->plain;
    return (g->symbols + 63) / 64 * 8 * h->width +
           (bits_of(c) == 4 ? (escapes + 1) / 2 : escapes);
}

static int intz_check(const struct bny_codec *c)
{
    unsigned block = (unsigned)c->param[BLOCK];

    if ((block & (block - 1)) == 0)
        return 0;
    return bny_fail(BANYAN_EINVAL, "codec %s: block=%u must be a power of two", c->ops->name,
                    block);
}

static size_t intz_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    size_t groups = (n + GROUP - 1) / GROUP, block = (size_t)c->param[BLOCK];

    return 4 * groups + (n + block - 1) / block * 4 + (bits_of(c) == 4 ? (n + 1) / 2 : n);
}

/* Bytes <-> their halves. */
static void halve(uint8_t *out, const uint8_t *in, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        out[2 * i] = in[i] & 15;
        out[2 * i + 1] = in[i] >> 4;
    }
}

static void intz_join(uint8_t *out, const uint8_t *in, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)((in[2 * i] & 15) | in[2 * i + 1] << 4);
}

/* Encodes a group's codes. Returns their bytes. */
static size_t put_codes(const struct bny_enc *e, struct head *h, char *p, const uint8_t *codes,
                        const struct group *g)
{
    const struct bny_exact_kernels *k = bny_exact_for(e->cpu_flags);
    uint8_t halves[GROUP + 64], escapes[GROUP + 64], *symbols = halves;
    unsigned plain = bits_of(e->codec), base = 0, width;
    size_t planes, count;

    if (plain == 4)
        halve(halves, codes, g->plain);
    else
        memcpy(halves, codes, g->plain);
    width = k->choose(&base, symbols, g->symbols, plain);
    *h = (struct head){ .base = (uint8_t)base, .width = (uint8_t)width };
    planes = (g->symbols + 63) / 64 * 8 * width;
    if (width < plain && planes < g->plain) {
        memset(symbols + g->symbols, (int)base, (size_t)-g->symbols % 64);
        count = k->pack(p, escapes, symbols, g->symbols, base, width);
        h->escapes = (uint16_t)count;
        if (code_bytes(e->codec, g, h) < g->plain) {
            if (plain == 4) {
                escapes[count] = 0;
                intz_join((uint8_t *)p + planes, escapes, (count + 1) / 2);
            } else {
                memcpy(p + planes, escapes, count);
            }
            return code_bytes(e->codec, g, h);
        }
    }
    *h = (struct head){ .width = (uint8_t)plain };
    memcpy(p, codes, g->plain);
    return g->plain;
}

static long intz_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                        size_t n)
{
    struct bny_quant q = { .s = e->ef_scale,
                           .random = e->codec->param[RANDOM] != 0,
                           .key = bny_rand_key(e->seed, e->step, e->rank) };
    const struct bny_format_kernels *f = format(e->codec, e->cpu_flags);
    uint8_t codes[GROUP];
    char *p = wire;

    /* Nothing may change if a later group declines. */
    if (bny_code_kernels_for(e->cpu_flags)->absmax(src, e->ef, e->ef_scale, n) >= (127u + 127)
                                                                                      << 23)
        return -BANYAN_ENOTSUP;
    for (size_t at = 0; at < n; at += GROUP) {
        struct group g = group_at(e->codec, at, n);
        struct head h;
        size_t bytes;

        q.src = (const char *)src + 4 * at;
        q.ef = e->ef ? e->ef + at : NULL;
        q.index = (uint32_t)(e->index + at);
        if (f->encode(p + sizeof h, codes, &q, g.m, (size_t)e->codec->param[BLOCK]) != 0)
            return -BANYAN_ENOTSUP;
        bytes = put_codes(e, &h, p + sizeof h + g.scales, codes, &g);
        memcpy(p, &h, sizeof h);
        p += sizeof h + g.scales + bytes;
    }
    return p - (char *)wire;
}

static int intz_wrong(const struct bny_codec *c, const char *what, size_t at, size_t n)
{
    return bny_fail(BANYAN_EPROTO,
                    "codec %s: a peer's message for %zu elements %s at element %zu",
                    c->ops->name, n, what, at);
}

/* The group's header, if the group fits in len bytes. */
static int get_head(const struct bny_codec *c, struct head *h, const struct group *g,
                    const char *p, size_t len, size_t at, size_t n)
{
    if (len < sizeof *h)
        return intz_wrong(c, "ends", at, n);
    memcpy(h, p, sizeof *h);
    if (h->width < 1 || h->width > bits_of(c) || (h->width == bits_of(c) && h->escapes))
        return intz_wrong(c, "has no such code width", at, n);
    if (len < sizeof *h + g->scales + code_bytes(c, g, h))
        return intz_wrong(c, "ends", at, n);
    return 0;
}

static int scales_ok(const char *p, size_t bytes)
{
    int bad = 0;

    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t bits;

        memcpy(&bits, p + i, 4);
        bad |= bits >= BNY_F32_INF;
    }
    return !bad;
}

static int check(const struct bny_dec *d, const char *p, size_t len, size_t n)
{
    const struct bny_exact_kernels *k = bny_exact_for(d->cpu_flags);
    size_t used = 0;

    for (size_t at = 0; at < n; at += GROUP) {
        struct group g = group_at(d->codec, at, n);
        struct head h = { 0 };
        int rc = get_head(d->codec, &h, &g, p + used, len - used, at, n);

        if (rc)
            return rc;
        used += sizeof h;
        if (!scales_ok(p + used, g.scales))
            return intz_wrong(d->codec, "has a scale that is negative or not finite", at, n);
        if (h.width < bits_of(d->codec) &&
            h.escapes != k->count(p + used + g.scales, g.symbols, h.width))
            return intz_wrong(d->codec, "has a wrong number of escapes", at, n);
        used += g.scales + code_bytes(d->codec, &g, &h);
    }
    return used == len ? 0 : intz_wrong(d->codec, "goes on", n, n);
}

/* Codes as in int8 and int4. */
static void get_codes(const struct bny_dec *d, uint8_t *codes, const struct head *h,
                      const struct group *g, const char *p)
{
    const struct bny_exact_kernels *k = bny_exact_for(d->cpu_flags);
    uint8_t symbols[GROUP + 64], halves[GROUP + 64];
    size_t planes = (g->symbols + 63) / 64 * 8 * h->width, escapes = h->escapes;
    const uint8_t *from = (const uint8_t *)p + planes;

    if (h->width == bits_of(d->codec)) {
        memcpy(codes, p, g->plain);
        return;
    }
    if (bits_of(d->codec) == 8) {
        k->unpack(symbols, p, from, escapes, g->symbols, h->base, h->width);
        memcpy(codes, symbols, g->plain);
        return;
    }
    if (escapes > GROUP)
        escapes = GROUP;
    halve(halves, from, (escapes + 1) / 2);
    k->unpack(symbols, p, halves, escapes, g->symbols, h->base, h->width);
    intz_join(codes, symbols, g->plain);
}

/* Checked. acc NULL: decode. */
static void intz_apply(const struct bny_dec *d, char *dst, const char *acc, const char *p,
                       size_t len, size_t n)
{
    const struct bny_format_kernels *f = format(d->codec, d->cpu_flags);
    size_t used = 0, block = (size_t)d->codec->param[BLOCK];
    uint8_t codes[GROUP];

    for (size_t at = 0; at < n; at += GROUP) {
        struct group g = group_at(d->codec, at, n);
        struct head h = { 0 };

        if (get_head(d->codec, &h, &g, p + used, len - used, at, n) != 0)
            return; /* a peer has changed it meanwhile */
        used += sizeof h;
        get_codes(d, codes, &h, &g, p + used + g.scales);
        if (acc)
            f->decode_add(dst + 4 * at, acc + 4 * at, p + used, codes, g.m, block);
        else
            f->decode(dst + 4 * at, p + used, codes, g.m, block, d->scale);
        used += g.scales + code_bytes(d->codec, &g, &h);
    }
}

static int intz_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                       size_t n)
{
    int rc = check(d, wire, len, n);

    if (rc == 0)
        intz_apply(d, dst, NULL, wire, len, n);
    return rc;
}

static int intz_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                           const void *wire, size_t len, size_t n)
{
    int rc = check(d, wire, len, n);

    if (rc == 0)
        intz_apply(d, (char *)dst, (const char *)acc, wire, len, n);
    return rc;
}

const struct bny_codec_ops bny_codec_int8z = {
    .name = "int8z",
    .family = BNY_CODEC_BLOCK,
    .doc = "int8 with short codes for small integers",
    .encode_ns = 2,
    .decode_ns = 1,
    .params = {
        [BLOCK] = { "block", 1024, 16, GROUP, 1, "elements that share a "
"scale, a power of two" },
        [RANDOM] = { "random", 0, 0, 1, 1, "1: stochastic rounding, unbiased" },
    },
    .check = intz_check,
    .bound = intz_bound,
    .encode = intz_encode,
    .decode = intz_decode,
    .decode_add = intz_decode_add,
};

const struct bny_codec_ops bny_codec_int4z = {
    .name = "int4z",
    .family = BNY_CODEC_BLOCK,
    .flags = BNY_CODEC_FEEDBACK,
    .doc = "int4 with short codes for small integers",
    .encode_ns = 2,
    .decode_ns = 1,
    .params = {
        [BLOCK] = { "block", 256, 16, GROUP, 1, "elements that share a scale, a power of two" },
        [RANDOM] = { "random", 0, 0, 1, 1, "1: stochastic rounding, unbiased" },
    },
    .check = intz_check,
    .bound = intz_bound,
    .encode = intz_encode,
    .decode = intz_decode,
    .decode_add = intz_decode_add,
};
