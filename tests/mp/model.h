/* SPDX-License-Identifier: BSD-3-Clause */
/* The local model: every rank can compute every rank's input and the right result from the seed
 * alone. Written for reading, one element at a time, and shares no code with the library. */
#ifndef BNY_TESTS_MP_MODEL_H
#define BNY_TESTS_MP_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "base/counts.h"
#include "banyan/banyan.h"

/* Built-in kinds keep their numbers. */
enum model_op {
    M_PREMUL = BNY_OP_COUNT, /* scalar of rank r: model_scalar(r) */
    M_MIX,                   /* user, commutative: on u32, x + y modulo 2^31 - 1 */
    M_MATRIX, /* user, not commutative: 2x2 matrices of u32, 16 bytes each, as BANYAN_U8 */
    M_AFFINE, /* user, not commutative: x -> a x + b, applied in rank order; { a, b, 1 } of u32
               */
    M_OP_COUNT
};

/* Elements of dtype that belong together: 16, 12 or 1. */
size_t model_unit(enum model_op op);
/* May this op be used with this type? */
int model_op_fits(enum model_op op, enum banyan_dtype dtype);
double model_scalar(int rank);
/* Makes the banyan operation (this rank's, for M_PREMUL); *made = 1 when it must be freed. */
int model_op_create(enum model_op op, int rank, banyan_op *out, int *made);

/* Elements [first, first + n) of rank's input stream, n and first multiples of the unit. Floats
 * are chosen so that sums and products of up to 16 ranks are exact, with NaN among them for min
 * and max. */
void model_fill(void *dst, size_t first, size_t n, enum banyan_dtype dtype, enum model_op op,
                int rank, uint64_t seed);
/* acc = acc (op) next rank's input. */
void model_add(void *acc, const void *in, size_t n, enum banyan_dtype dtype, enum model_op op);
/* What one rank's own input contributes before any adding (premul), and what ends it (avg). */
void model_begin(void *acc, size_t n, enum banyan_dtype dtype, enum model_op op, int rank);
void model_end(void *acc, size_t n, enum banyan_dtype dtype, enum model_op op, int nranks);
/* Elements [first, first+n) of the reduction of ranks [0, nranks), in order; divisor is for
 * avg. */
void model_reduce(void *dst, size_t first, size_t n, enum banyan_dtype dtype, enum model_op op,
                  int nranks, int divisor, uint64_t seed);
/* Index of the first wrong element, or n. Averages of floats may differ by one unit in the last
 * place, NaNs in their payload. */
size_t model_compare(const void *got, const void *want, size_t n, enum banyan_dtype dtype,
                     enum model_op op);
/* Any bits, for collectives that only move data. */
void model_bytes(void *dst, size_t bytes, uint64_t key);
/* Normal deviates, rounded to the float type. */
void model_gauss(void *dst, size_t n, enum banyan_dtype dtype, uint64_t key);
/* Any float type to double. */
double model_get(const void *p, size_t i, enum banyan_dtype dtype);
void model_set(void *p, size_t i, enum banyan_dtype dtype, double v);
uint64_t model_mix(uint64_t a, uint64_t b);

#endif
