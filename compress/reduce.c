/* SPDX-License-Identifier: BSD-3-Clause */
/* Element-wise reduction: selects the inner loop for a type, an op and an instruction set. */
#include "compress/reduce.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/counts.h"
#include "base/fpmode.h"
#include "compress/kernels/kernels.h"

static int is_builtin(enum banyan_dtype dtype, enum banyan_op_kind op)
{
    return (unsigned)dtype < BNY_DTYPE_COUNT && (unsigned)op < BNY_OP_COUNT;
}

bny_reduce_fn bny_reduce_get(enum banyan_dtype dtype, enum banyan_op_kind op,
                             unsigned cpu_flags)
{
    return is_builtin(dtype, op) ? bny_kernels_for(cpu_flags)->reduce[dtype][op] : NULL;
}

bny_reduce2_fn bny_reduce2_get(enum banyan_dtype dtype, enum banyan_op_kind op,
                               unsigned cpu_flags)
{
    if (!is_builtin(dtype, op) || (op != BANYAN_SUM && op != BANYAN_AVG))
        return NULL;
    return bny_kernels_for(cpu_flags)->sum2[dtype];
}

bny_reduce_many_fn bny_reduce_many_get(enum banyan_dtype dtype, enum banyan_op_kind op,
                                       int arrays, unsigned cpu_flags)
{
    const struct bny_kernels *k = bny_kernels_for(cpu_flags);

    if (!is_builtin(dtype, op) || (op != BANYAN_SUM && op != BANYAN_AVG))
        return NULL;
    return arrays == 4 ? k->sum4[dtype] : arrays == 8 ? k->sum8[dtype] : NULL;
}

/* Division has no vector instruction: plain loops. wide is the type of the division, at least
 * an int, so that a divisor above the element's range (i8 on 200 ranks) is correct. */
#define DIVIDE(elem, wide)                                                                     \
    static void divide_##elem(void *dst, const void *src, size_t n, int divisor)               \
    {                                                                                          \
        unsigned char *d = dst;                                                                \
        const unsigned char *s = src;                                                          \
                                                                                               \
        for (size_t i = 0; i < n; i++) {                                                       \
            elem x;                                                                            \
                                                                                               \
            memcpy(&x, s + i * sizeof x, sizeof x);                                            \
            x = (elem)(x / (wide)divisor);                                                     \
            memcpy(d + i * sizeof x, &x, sizeof x);                                            \
        }                                                                                      \
    }
DIVIDE(int8_t, int)
DIVIDE(uint8_t, int)
DIVIDE(int16_t, int)
DIVIDE(uint16_t, int)
DIVIDE(int32_t, int)
DIVIDE(uint32_t, uint32_t)
DIVIDE(int64_t, int64_t)
DIVIDE(uint64_t, uint64_t)
#undef DIVIDE

static void scale(void *dst, const void *src, size_t n, enum banyan_dtype dtype, double scalar)
{
    assert((unsigned)dtype < BNY_DTYPE_COUNT && bny_kernels()->scale[dtype]);
    bny_kernels()->scale[dtype](dst, src, n, scalar);
}

/* volatile: the compiler ignores modes, and might divide before or after. */
float bny_reciprocal(int divisor)
{
    BNY_FIXED_FP_MODE;
    volatile int d = divisor;
    volatile float r = 1.0f / (float)d;

    return r;
}

static void multiply_by_reciprocal(void *dst, const void *src, size_t n,
                                   enum banyan_dtype dtype, int divisor)
{
    BNY_FIXED_FP_MODE;
    volatile int d = divisor;
    volatile double r = 1.0 / d;

    scale(dst, src, n, dtype, r);
}

void bny_divide(void *dst, const void *src, size_t n, enum banyan_dtype dtype, int divisor)
{
    assert(divisor > 0);
    switch (dtype) {
    case BANYAN_I8: divide_int8_t(dst, src, n, divisor); break;
    case BANYAN_U8: divide_uint8_t(dst, src, n, divisor); break;
    case BANYAN_I16: divide_int16_t(dst, src, n, divisor); break;
    case BANYAN_U16: divide_uint16_t(dst, src, n, divisor); break;
    case BANYAN_I32: divide_int32_t(dst, src, n, divisor); break;
    case BANYAN_U32: divide_uint32_t(dst, src, n, divisor); break;
    case BANYAN_I64: divide_int64_t(dst, src, n, divisor); break;
    case BANYAN_U64: divide_uint64_t(dst, src, n, divisor); break;
    default: multiply_by_reciprocal(dst, src, n, dtype, divisor); break;
    }
}

void bny_scale(void *dst, const void *src, size_t n, enum banyan_dtype dtype, double scalar)
{
    BNY_FIXED_FP_MODE;

    scale(dst, src, n, dtype, scalar);
}
