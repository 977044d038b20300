/* SPDX-License-Identifier: BSD-3-Clause */
/* A count sketch of a vector (Charikar, Chen, Farach-Colton, ICALP 2002), by blocks: a row maps
 * BNY_SKETCH_BLOCK neighbouring elements to as many neighbouring cells, each by a sign. */
#ifndef BNY_METHODS_SKETCH_TABLE_H
#define BNY_METHODS_SKETCH_TABLE_H

#include <stddef.h>
#include <stdint.h>

#define BNY_SKETCH_BLOCK 16
#define BNY_SKETCH_ROWS  9 /* the most; odd */

struct bny_sketch_shape {
    int rows;    /* odd */
    size_t cols; /* BNY_SKETCH_BLOCK or more */
    uint64_t seed;
};

/* Adds elements [at, at + n) of a vector, which are x, to table[rows * cols]. */
void bny_sketch_add(const struct bny_sketch_shape *shape, float *table, const float *x,
                    size_t at, size_t n);
/* out[n]: the medians of what the rows say of elements [0, n). */
void bny_sketch_estimate(const struct bny_sketch_shape *shape, const float *table, float *out,
                         size_t n);
/* The cells of an element become zero. */
void bny_sketch_clear(const struct bny_sketch_shape *shape, float *table, size_t element);

#endif
