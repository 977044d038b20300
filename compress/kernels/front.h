/* SPDX-License-Identifier: BSD-3-Clause */
/* Tables for moving the lanes of a vector whose bits are set, for processors without an
 * instruction for it. */
#ifndef BNY_COMPRESS_KERNELS_FRONT_H
#define BNY_COMPRESS_KERNELS_FRONT_H

#include <stdint.h>

/* The numbers of the set bits, to the front: a byte each of an 8-byte word, looked up (2 KiB,
 * in L1 while it is used). */
#define ROW1(f, b) f(b), f(b + 1), f(b + 2), f(b + 3), f(b + 4), f(b + 5), f(b + 6), f(b + 7)
#define ROW(f, b)  ROW1(f, b), ROW1(f, b + 8), ROW1(f, b + 16), ROW1(f, b + 24)
#define TABLE_OF(f)                                                                            \
    {                                                                                          \
        ROW(f, 0), ROW(f, 32), ROW(f, 64), ROW(f, 96), ROW(f, 128), ROW(f, 160), ROW(f, 192),  \
            ROW(f, 224)                                                                        \
    }
#define COUNT(b, j)                                                                            \
    (((b)&1) * ((j) > 0) + ((b) >> 1 & 1) * ((j) > 1) + ((b) >> 2 & 1) * ((j) > 2) +           \
     ((b) >> 3 & 1) * ((j) > 3) + ((b) >> 4 & 1) * ((j) > 4) + ((b) >> 5 & 1) * ((j) > 5) +    \
     ((b) >> 6 & 1) * ((j) > 6))
#define PUT(b, j) ((uint64_t)((b) >> (j)&1) * (j) << 8 * COUNT(b, j))
#define FRONT(b)                                                                               \
    (PUT(b, 1) | PUT(b, 2) | PUT(b, 3) | PUT(b, 4) | PUT(b, 5) | PUT(b, 6) | PUT(b, 7))
static const uint64_t front[256] = TABLE_OF(FRONT);

/* The inverse: byte j is the number of set bits below bit j. */
#define BACK(b)                                                                                \
    ((uint64_t)COUNT(b, 1) << 8 | (uint64_t)COUNT(b, 2) << 16 | (uint64_t)COUNT(b, 3) << 24 |  \
     (uint64_t)COUNT(b, 4) << 32 | (uint64_t)COUNT(b, 5) << 40 | (uint64_t)COUNT(b, 6) << 48 | \
     (uint64_t)COUNT(b, 7) << 56)

#endif
