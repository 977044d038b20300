/* SPDX-License-Identifier: BSD-3-Clause */
/* Blocks with scales, for the codecs whose formats differ only in kernels/code_block.h. */
#include "compress/block.h"

#include <string.h>

#include "base/err.h"

static size_t block_of(const struct bny_block_layout *l, const struct bny_codec *c)
{
    return l->block ? l->block : (size_t)c->param[0];
}

static size_t scales_bytes(const struct bny_block_layout *l, size_t n, size_t block)
{
    return (n / block + (n % block != 0)) * (l->mx ? 1 : 4);
}

size_t bny_block_bytes(const struct bny_block_layout *l, const struct bny_codec *c, size_t n)
{
    size_t block = block_of(l, c);

    /* Each block's codes fill whole bytes, as blocks are even. */
    return scales_bytes(l, n, block) + (l->bits == 8 ? n : n / 2 + n % 2);
}

static const struct bny_format_kernels *kernels(const struct bny_block_layout *l,
                                                unsigned cpu_flags)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(cpu_flags);

    return l->mx ? &k->mx[l->format] : &k->format[l->format];
}

long bny_block_encode(const struct bny_block_layout *l, const struct bny_enc *e, void *wire,
                      const void *src, size_t n)
{
    size_t block = block_of(l, e->codec);
    struct bny_quant q = {
        .src = src, .ef = e->ef, .s = e->ef_scale, .index = (uint32_t)e->index
    };

    if (n == 0)
        return 0;
    if (l->random >= 0 && e->codec->param[l->random] != 0) {
        q.random = 1;
        q.key = bny_rand_key(e->seed, e->step, e->rank);
    }
    if (kernels(l, e->cpu_flags)
            ->encode(wire, (char *)wire + scales_bytes(l, n, block), &q, n, block))
        return -BANYAN_ENOTSUP; /* the message sends it raw */
    return (long)bny_block_bytes(l, e->codec, n);
}

/* Refuses scales that no encoder writes: negative, infinite or NaN ones would corrupt whole
 * blocks. */
static int scales_ok(const struct bny_block_layout *l, const void *wire, size_t bytes)
{
    const unsigned char *p = wire;
    int bad = 0;

    if (l->mx) {
        for (size_t i = 0; i < bytes; i++)
            bad |= p[i] == 255;
        return !bad;
    }
    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t bits;

        memcpy(&bits, p + i, 4);
        bad |= bits >= BNY_F32_INF;
    }
    return !bad;
}

static int block_check(const struct bny_block_layout *l, const struct bny_codec *c,
                       const void *wire, size_t len, size_t n)
{
    size_t want = bny_block_bytes(l, c, n);

    if (len != want)
        return bny_fail(BANYAN_EPROTO,
                        "codec %s: a peer's message for %zu elements has %zu bytes, not %zu",
                        c->ops->name, n, len, want);
    if (n && !scales_ok(l, wire, scales_bytes(l, n, block_of(l, c))))
        return bny_fail(BANYAN_EPROTO,
                        "codec %s: a peer's message has a scale that is negative or not finite",
                        c->ops->name);
    return 0;
}

int bny_block_decode(const struct bny_block_layout *l, const struct bny_dec *d, void *dst,
                     const void *wire, size_t len, size_t n)
{
    size_t block = block_of(l, d->codec);
    int rc = block_check(l, d->codec, wire, len, n);

    if (rc == 0 && n)
        kernels(l, d->cpu_flags)
            ->decode(dst, wire, (const char *)wire + scales_bytes(l, n, block), n, block,
                     d->scale);
    return rc;
}

int bny_block_decode_add(const struct bny_block_layout *l, const struct bny_dec *d, float *dst,
                         const float *acc, const void *wire, size_t len, size_t n)
{
    size_t block = block_of(l, d->codec);
    int rc = block_check(l, d->codec, wire, len, n);

    if (rc == 0 && n)
        kernels(l, d->cpu_flags)
            ->decode_add(dst, acc, wire, (const char *)wire + scales_bytes(l, n, block), n,
                         block);
    return rc;
}

int bny_block_check(const struct bny_codec *c)
{
    if ((unsigned)c->param[0] % 2 == 0)
        return 0;
    return bny_fail(BANYAN_EINVAL, "codec %s: block=%g must be even", c->ops->name,
                    c->param[0]);
}
