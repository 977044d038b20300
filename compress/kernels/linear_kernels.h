/* SPDX-License-Identifier: BSD-3-Clause */
/* Inner loops of the linear codecs, one table per instruction set. As in code.h, the scalar
 * table is the definition and every other one gives the same bits; arrays may lie at any
 * address and do not overlap unless a line says so. */
#ifndef BNY_COMPRESS_KERNELS_LINEAR_KERNELS_H
#define BNY_COMPRESS_KERNELS_LINEAR_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "compress/kernels/code.h"

/* v[i] = src[i] + s * ef[i], each rounded to f32; src[i] where ef is NULL. */
struct bny_values {
    const float *src, *ef;
    float s;
};

/* Factors of a matrix of rows x cols, rank r: column k of one is contiguous, p[k * rows + i]
 * and q[k * cols + j]. */
struct bny_factors {
    const float *p, *q;
};

#define BNY_SKETCH_BLOCK 32 /* elements that lie side by side in a table's row */
#define BNY_SKETCH_ROWS  9

/* A count sketch: rows of `cells` (at least BLOCK) f32. Block b of the tensor starts in row i's
 * cell bny_rand_at(key[i], 2 b) of 2^32 * (cells - BLOCK + 1); its element j has the opposite
 * sign where bit j of bny_rand_at(key[i], 2 b + 1) is set. */
struct bny_sketch {
    uint32_t rows;
    size_t cells;
    struct bny_rand key[BNY_SKETCH_ROWS];
};

struct bny_linear_kernels {
    char name[8];
    /* p[k * rows + i] = sum over j of V(i, j) q[k * cols + j]: in 16 lanes, column j to lane j
     * % 16, in order of j; then lanes 0..7 and 8..15 are added, and so on by halves. */
    void (*right)(float *p, const float *q, const struct bny_values *v, size_t rows,
                  size_t cols, size_t r);
    /* q[k * cols + j] = sum over i of V(i, j) p[k * rows + i], in order of i. */
    void (*left)(float *q, const float *p, const struct bny_values *v, size_t rows, size_t cols,
                 size_t r);
    /* ef = V - own (ef NULL: not), then dst = sum * scale; an element of a product is added up
     * in order of k. dst may be v->src, ef is v->ef. */
    void (*expand)(float *dst, float *ef, const struct bny_values *v,
                   const struct bny_factors *sum, const struct bny_factors *own, size_t rows,
                   size_t cols, size_t r, float scale);

    /* q[i] = v[i] * factor, rounded up or down at random, by 24 bits of bny_rand_at(key, index
     * + i); within +-limit. |v| * factor is below 2^31. */
    void (*round_random)(int32_t *q, const struct bny_values *v, size_t n, float factor,
                         int32_t limit, struct bny_rand key, uint32_t index);
    /* q[i] = v[i] * factor, rounded to nearest; below 2^31. */
    void (*round_nearest)(int32_t *q, const struct bny_values *v, size_t n, double factor);
    /* dst[i] = q[i] * unit, and ef[i] = v[i] - q[i] * unit, the product in f64, rounded to f32.
     * ef is v->ef. */
    void (*expand_integers)(float *dst, const int32_t *q, size_t n, double unit);
    void (*residual_integers)(float *ef, const struct bny_values *v, const int32_t *q, size_t n,
                              double unit);
    /* Bit i: |v[i]| <= most. Writes whole words of 32, the rest 0. */
    void (*mark)(void *bits, const struct bny_values *v, size_t n, float most);
    /* x[i] *= factor where bit i is set. Reads whole words of bits. */
    void (*scale_marked)(float *x, const void *bits, size_t n, float factor);
    /* Adds v to a table, block after block; and what it says of n elements: the median over the
     * rows, with an even number the mean of the two in the middle. The table is finite. */
    void (*sketch)(float *table, const struct bny_sketch *k, const struct bny_values *v,
                   size_t n);
    void (*estimate)(float *out, const float *table, const struct bny_sketch *k, size_t n);
    /* Fields of 8, 16 or 32 bits: q[i] + limit; and field - bias. */
    void (*put8)(void *code, const int32_t *q, size_t n, int32_t limit);
    void (*put16)(void *code, const int32_t *q, size_t n, int32_t limit);
    void (*get8)(int32_t *q, const void *code, size_t n, uint32_t bias);
    void (*get16)(int32_t *q, const void *code, size_t n, uint32_t bias);
    void (*get32)(int32_t *q, const void *code, size_t n, uint32_t bias);
};

extern const struct bny_linear_kernels bny_linear_scalar, bny_linear_avx2, bny_linear_avx512;

/* The best table for a set of bny_cpu_flags. Pure; any thread. */
const struct bny_linear_kernels *bny_linear_kernels_for(unsigned cpu_flags);

#endif
