/* SPDX-License-Identifier: BSD-3-Clause */
/* Inner loops of the lossless codec and of the entropy stage. An element, rotated left by one
 * bit, is a symbol (its upper byte: the exponent, or for f16 exponent and three mantissa bits,
 * for f64 the exponent's upper part) and the rest, whose last bit is the sign. exact_scalar.c
 * is the definition; every table gives the same bytes. */
#ifndef BNY_COMPRESS_KERNELS_EXACT_H
#define BNY_COMPRESS_KERNELS_EXACT_H

#include <stddef.h>
#include <stdint.h>

#define BNY_EXACT_GROUP  4096 /* elements that share a window of symbols */
#define BNY_EXACT_SAMPLE 128  /* of them, looked at to choose the window */

struct bny_exact_kernels {
    /* By log2 of the element's bytes (1, 2, 3). rest[m * (bytes - 1)]: for 2 bytes u8[m]; for 4
     * u16[m], u8[m]; for 8 u32[m], u16[m], u8[m], least significant first. */
    void (*split[4])(uint8_t *symbols, void *rest, const void *src, size_t m);
    void (*join[4])(void *dst, const uint8_t *symbols, const void *rest, size_t m);
    /* Symbol s has the code min(s - base mod 256, 2^width - 1), width 1..7; the highest is the
     * escape, whose symbol goes to escapes. Codes of 64 symbols are `width` u64, bit i of word
     * k being bit k of code i. symbols[] is readable, and counts, up to the next multiple of
     * 64; escapes has room for as many. Returns the number of escapes. */
    size_t (*pack)(void *planes, uint8_t *escapes, const uint8_t *symbols, size_t m,
                   unsigned base, unsigned width);
    /* Writes symbols up to the next multiple of 64. Reads as many escapes as count() says, and
     * no more than room, whatever the planes. */
    void (*unpack)(uint8_t *symbols, const void *planes, const uint8_t *escapes, size_t room,
                   size_t m, unsigned base, unsigned width);
    /* Elements with a bit set, by log2 of the bytes as above, m <= BNY_EXACT_GROUP: out gets
     * them one after another and mask their places, bit i of word k for element 64 k + i, whole
     * words. out has room for m + 16. Returns their number. */
    size_t (*squeeze[4])(void *out, uint64_t *mask, const void *src, size_t m);
    /* The inverse; src is readable 16 elements behind its last. */
    void (*spread[4])(void *dst, const uint64_t *mask, const void *src, size_t m);
    size_t (*count)(const void *planes, size_t m, unsigned width);
    /* The base and width (below `plain`; plain: no code is shorter) with the fewest bits for m
     * symbols that have `plain` bits, 4 or 8, each, guessed from a sample. */
    unsigned (*choose)(unsigned *base, const uint8_t *symbols, size_t m, unsigned plain);
};

extern const struct bny_exact_kernels bny_exact_scalar, bny_exact_avx2, bny_exact_avx512;

/* The best table for a set of bny_cpu_flags. */
const struct bny_exact_kernels *bny_exact_for(unsigned cpu_flags);

#endif
