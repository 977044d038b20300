/* SPDX-License-Identifier: BSD-3-Clause */
/* The lossless codec's loops in plain C: the definition. */
#include "compress/kernels/exact_loops.h"

static void split2(uint8_t *symbols, void *rest, const void *src, size_t m)
{
    split2_from(0, symbols, rest, src, m);
}

static void join2(void *dst, const uint8_t *symbols, const void *rest, size_t m)
{
    join2_from(0, dst, symbols, rest, m);
}

static void split4(uint8_t *symbols, void *rest, const void *src, size_t m)
{
    split4_from(0, symbols, rest, src, m);
}

static void join4(void *dst, const uint8_t *symbols, const void *rest, size_t m)
{
    join4_from(0, dst, symbols, rest, m);
}

static size_t pack(void *planes, uint8_t *escapes, const uint8_t *symbols, size_t m,
                   unsigned base, unsigned width)
{
    unsigned last = (1u << width) - 1;
    char *p = planes;
    size_t n = 0;

    for (size_t at = 0; at < m; at += 64, p += 8 * width) {
        uint64_t word[8] = { 0 };

        for (unsigned i = 0; i < 64; i++) {
            unsigned c = (symbols[at + i] - base) & 255;

            if (c >= last) {
                escapes[n++] = symbols[at + i];
                c = last;
            }
            for (unsigned k = 0; k < width; k++)
                word[k] |= (uint64_t)(c >> k & 1) << i;
        }
        memcpy(p, word, 8 * width);
    }
    return n;
}

static void unpack(uint8_t *symbols, const void *planes, const uint8_t *escapes, size_t room,
                   size_t m, unsigned base, unsigned width)
{
    unsigned last = (1u << width) - 1;
    const uint8_t *end = escapes + room;
    const char *p = planes;

    for (size_t at = 0; at < m; at += 64, p += 8 * width)
        for (unsigned i = 0; i < 64; i++) {
            unsigned c = 0;

            for (unsigned k = 0; k < width; k++)
                c |= (unsigned)(load64(p + 8 * k) >> i & 1) << k;
            symbols[at + i] = c == last && escapes < end ? *escapes++ : (uint8_t)(c + base);
        }
}

const struct bny_exact_kernels bny_exact_scalar = {
    .split = { NULL, split2, split4, split8 },
    .join = { NULL, join2, join4, join8 },
    .pack = pack,
    .unpack = unpack,
    .squeeze = { NULL, squeeze_plain1, squeeze_plain2, squeeze_plain3 },
    .spread = { NULL, spread_plain1, spread_plain2, spread_plain3 },
    .count = count,
    .choose = choose,
};
