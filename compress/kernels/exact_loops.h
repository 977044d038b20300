/* SPDX-License-Identifier: BSD-3-Clause */
/* The lossless codec's loops in plain C: whole functions for exact_scalar.c, tails and what the
 * compiler vectorises well for the others. */
#include <string.h>

#include "compress/kernels/exact.h"

static inline uint64_t load64(const void *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static inline void store64(void *p, uint64_t v)
{
    memcpy(p, &v, sizeof v);
}

/* Elements at..m. */
static inline void split2_from(size_t at, uint8_t *symbols, void *rest, const void *src,
                               size_t m)
{
    uint8_t *low = rest;

    for (size_t i = at; i < m; i++) {
        uint16_t x;

        memcpy(&x, (const char *)src + 2 * i, 2);
        symbols[i] = (uint8_t)(x >> 7);
        low[i] = (uint8_t)(x << 1 | x >> 15);
    }
}

static inline void join2_from(size_t at, void *dst, const uint8_t *symbols, const void *rest,
                              size_t m)
{
    const uint8_t *low = rest;

    for (size_t i = at; i < m; i++) {
        uint32_t r = (uint32_t)symbols[i] << 8 | low[i];
        uint16_t x = (uint16_t)(r >> 1 | r << 15);

        memcpy((char *)dst + 2 * i, &x, 2);
    }
}

static inline void split4_from(size_t at, uint8_t *symbols, void *rest, const void *src,
                               size_t m)
{
    uint8_t *low = rest, *mid = low + 2 * m;

    for (size_t i = at; i < m; i++) {
        uint32_t x, r;
        uint16_t l;

        memcpy(&x, (const char *)src + 4 * i, 4);
        r = x << 1 | x >> 31;
        l = (uint16_t)r;
        memcpy(low + 2 * i, &l, 2);
        mid[i] = (uint8_t)(r >> 16);
        symbols[i] = (uint8_t)(r >> 24);
    }
}

static inline void join4_from(size_t at, void *dst, const uint8_t *symbols, const void *rest,
                              size_t m)
{
    const uint8_t *low = rest, *mid = low + 2 * m;

    for (size_t i = at; i < m; i++) {
        uint32_t x, r;
        uint16_t l;

        memcpy(&l, low + 2 * i, 2);
        r = (uint32_t)symbols[i] << 24 | (uint32_t)mid[i] << 16 | l;
        x = r >> 1 | r << 31;
        memcpy((char *)dst + 4 * i, &x, 4);
    }
}

static void split8(uint8_t *symbols, void *rest, const void *src, size_t m)
{
    uint8_t *low = rest, *mid = low + 4 * m, *high = mid + 2 * m;

    for (size_t i = 0; i < m; i++) {
        uint64_t x = load64((const char *)src + 8 * i), r = x << 1 | x >> 63;
        uint32_t l = (uint32_t)r;
        uint16_t d = (uint16_t)(r >> 32);

        memcpy(low + 4 * i, &l, 4);
        memcpy(mid + 2 * i, &d, 2);
        high[i] = (uint8_t)(r >> 48);
        symbols[i] = (uint8_t)(r >> 56);
    }
}

static void join8(void *dst, const uint8_t *symbols, const void *rest, size_t m)
{
    const uint8_t *low = rest, *mid = low + 4 * m, *high = mid + 2 * m;

    for (size_t i = 0; i < m; i++) {
        uint64_t r;
        uint32_t l;
        uint16_t d;

        memcpy(&l, low + 4 * i, 4);
        memcpy(&d, mid + 2 * i, 2);
        r = (uint64_t)symbols[i] << 56 | (uint64_t)high[i] << 48 | (uint64_t)d << 32 | l;
        store64((char *)dst + 8 * i, r >> 1 | r << 63);
    }
}

static size_t count(const void *planes, size_t m, unsigned width)
{
    const char *p = planes;
    size_t n = 0;

    for (size_t at = 0; at < m; at += 64, p += 8 * width) {
        uint64_t all = ~(uint64_t)0;

        for (unsigned k = 0; k < width; k++)
            all &= load64(p + 8 * k);
        n += (size_t)__builtin_popcountll(all);
    }
    return n;
}

static unsigned choose(unsigned *base, const uint8_t *symbols, size_t m, unsigned plain)
{
    /* below[s]: samples less than s; one lap more, for windows that wrap. */
    uint16_t hist[256] = { 0 }, below[256 + 128] = { 0 };
    size_t stride = m > BNY_EXACT_SAMPLE ? m / BNY_EXACT_SAMPLE : 1;
    unsigned samples = 0, best = plain, cost = plain;

    for (size_t i = stride / 2; i < m; i += stride, samples++)
        hist[symbols[i]]++;
    for (unsigned s = 0; s < 255 + 128; s++)
        below[s + 1] = (uint16_t)(below[s] + hist[s & 255]);
    cost *= samples;
    for (unsigned width = 1; width < plain; width++) {
        unsigned span = (1u << width) - 1;
        uint16_t most = 0;

        for (unsigned s = 0; s < 256; s++) {
            uint16_t in = (uint16_t)(below[s + span] - below[s]);

            most = in > most ? in : most;
        }
        if (width * samples + plain * (samples - most) >= cost)
            continue;
        cost = width * samples + plain * (samples - most);
        best = width;
        for (unsigned s = 0; s < 256; s++)
            if ((uint16_t)(below[s + span] - below[s]) == most) {
                *base = s;
                break;
            }
    }
    return best;
}

#define SQUEEZE(lg, type)                                                                      \
    static inline size_t squeeze_from##lg(size_t at, size_t n, void *out, uint64_t *mask,      \
                                          const void *src, size_t m)                           \
    {                                                                                          \
        for (; at < m; at += 64) {                                                             \
            size_t end = m - at < 64 ? m - at : 64;                                            \
            uint64_t bits = 0;                                                                 \
                                                                                               \
            for (size_t i = 0; i < end; i++) {                                                 \
                type x;                                                                        \
                                                                                               \
                memcpy(&x, (const char *)src + sizeof x * (at + i), sizeof x);                 \
                memcpy((char *)out + sizeof x * n, &x, sizeof x);                              \
                bits |= (uint64_t)(x != 0) << i;                                               \
                n += x != 0;                                                                   \
            }                                                                                  \
            mask[at / 64] = bits;                                                              \
        }                                                                                      \
        return n;                                                                              \
    }                                                                                          \
    static inline void spread_from##lg(size_t at, size_t n, void *dst, const uint64_t *mask,   \
                                       const void *src, size_t m)                              \
    {                                                                                          \
        for (; at < m; at++) {                                                                 \
            type there = (type)(mask[at / 64] >> at % 64 & 1), x;                              \
                                                                                               \
            memcpy(&x, (const char *)src + sizeof x * n, sizeof x);                            \
            x = (type)(x & (type)(0 - there));                                                 \
            memcpy((char *)dst + sizeof x * at, &x, sizeof x);                                 \
            n += there;                                                                        \
        }                                                                                      \
    }                                                                                          \
    static __attribute__((unused))                                                             \
    size_t squeeze_plain##lg(void *out, uint64_t *mask, const void *src, size_t m)             \
    {                                                                                          \
        return squeeze_from##lg(0, 0, out, mask, src, m);                                      \
    }                                                                                          \
    static __attribute__((unused)) void spread_plain##lg(void *dst, const uint64_t *mask,      \
                                                         const void *src, size_t m)            \
    {                                                                                          \
        spread_from##lg(0, 0, dst, mask, src, m);                                              \
    }
SQUEEZE(1, uint16_t)
SQUEEZE(2, uint32_t)
SQUEEZE(3, uint64_t)
#undef SQUEEZE
