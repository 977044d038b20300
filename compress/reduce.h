/* SPDX-License-Identifier: BSD-3-Clause */
/* Element-wise reduction of two arrays. Scalar code defines the result; every instruction set
 * gives the same bits (the library is compiled with -ffp-contract=off). */
#ifndef BNY_COMPRESS_REDUCE_H
#define BNY_COMPRESS_REDUCE_H

#include <stddef.h>

#include "banyan/banyan.h"

/* dst[i] = a[i] (op) b[i], n elements; any alignment. dst may be a or b (exactly, not shifted).
 * f16, bf16: added in f32, rounded once to nearest even; NaN stays NaN (quiet).
 * AVG reduces as SUM (the division is bny_scale's). min/max: see enum banyan_op_kind. */
typedef void (*bny_reduce_fn)(void *dst, const void *a, const void *b, size_t n);

/* The function for a type and built-in op, for a set of bny_cpu_flags; NULL if the op is not
 * defined for the type (bitwise on floats). Pure; any thread. */
bny_reduce_fn bny_reduce_get(enum banyan_dtype dtype, enum banyan_op_kind op,
                             unsigned cpu_flags);

/* dst[i] = a[i] (op) b[i] and copy[i] = the same (copy: other memory, e.g. a peer's mapped
 * window). For SUM of f32, f64, f16, bf16; NULL for others (then: reduce and memcpy). */
typedef void (*bny_reduce2_fn)(void *dst, void *copy, const void *a, const void *b, size_t n);
bny_reduce2_fn bny_reduce2_get(enum banyan_dtype dtype, enum banyan_op_kind op,
                               unsigned cpu_flags);

/* dst[i] = in[0][i] + in[1][i] + ..., from the first on: the bits of sequential additions. For
 * 4 or 8 arrays; dst may be one of them. For SUM of f32 and f64; else NULL. */
typedef void (*bny_reduce_many_fn)(void *dst, const void *const in[], size_t n);
bny_reduce_many_fn bny_reduce_many_get(enum banyan_dtype dtype, enum banyan_op_kind op,
                                       int arrays, unsigned cpu_flags);

/* dst[i] = src[i] / divisor (floats: multiplied in f32/f64 by 1/divisor, rounded once;
 * integers: truncated division). For AVG. dst may be src. */
void bny_divide(void *dst, const void *src, size_t n, enum banyan_dtype dtype, int divisor);
/* 1 / divisor to nearest: the factor for decoded averages. */
float bny_reciprocal(int divisor);
/* dst[i] = src[i] * scalar, floats only. For premul-sum. dst may be src. */
void bny_scale(void *dst, const void *src, size_t n, enum banyan_dtype dtype, double scalar);

#endif
