/* SPDX-License-Identifier: BSD-3-Clause */
/* The inner loops of compress/, one table per instruction set. reduce_scalar.c is the
 * definition; every other table gives the same bits for any input, NaN included, any n and
 * any alignment.
 *
 * NaN: an addition, product or scaling whose result is NaN gives the one canonical quiet NaN
 * (f32 7fc00000, f64 7ff8000000000000, f16 7e00, bf16 7fc0), because a processor's own
 * choice depends on operand order, and operand order differs between ranks. min and max give
 * one operand's bits unchanged; -0 < +0; two NaN: a's. Conversions keep sign and top payload
 * bits and set the quiet bit, as F16C does. */
#ifndef BNY_COMPRESS_KERNELS_KERNELS_H
#define BNY_COMPRESS_KERNELS_KERNELS_H

#include <stddef.h>

#include "base/counts.h"
#include "compress/reduce.h"

/* f32 <-> two-byte floats, little endian, any alignment; arrays do not overlap but for dst
 * == acc. */
struct bny_half_kernels {
    void (*encode)(void *wire, const float *src, size_t n);
    void (*decode)(float *dst, const void *wire, size_t n);
    void (*decode_add)(float *dst, const float *acc, const void *wire, size_t n);
};

struct bny_kernels {
    char name[8];
    bny_reduce_fn reduce[BNY_DTYPE_COUNT][BNY_OP_COUNT];             /* NULL: not defined */
    bny_reduce2_fn sum2[BNY_DTYPE_COUNT];                            /* NULL: not offered */
    bny_reduce_many_fn sum4[BNY_DTYPE_COUNT], sum8[BNY_DTYPE_COUNT]; /* NULL: the same */
    /* Floats; f32, f16 and bf16 are multiplied by (float)scalar in f32. dst may be src. */
    void (*scale[BNY_DTYPE_COUNT])(void *dst, const void *src, size_t n, double scalar);
    struct bny_half_kernels f16, bf16;
};

extern const struct bny_kernels bny_kernels_scalar, bny_kernels_avx2, bny_kernels_avx512,
    bny_kernels_neon;

/* Products of complex numbers, for all tables: gcc 12 makes vectors of them with fused
 * operations, where it has these, though they are switched off. */
void bny_prod_c64(void *dst, const void *a, const void *b, size_t n);
void bny_prod_c128(void *dst, const void *a, const void *b, size_t n);

/* The best table for a set of bny_cpu_flags. Pure; any thread. */
const struct bny_kernels *bny_kernels_for(unsigned cpu_flags);
/* The best table of this machine (bny_cpu_flags(), asked once). Any thread. */
const struct bny_kernels *bny_kernels(void);

#endif
