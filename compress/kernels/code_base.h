/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by the files that include code_loops.h: elements at any address, and vectors of LANES
 * floats in the compiler's own vector types, which give IEEE results on every processor. The
 * including file has defined LANES (4, 8 or 16) and vf_signs(v)         sign bits of the lanes,
 * lane 0 lowest vf_pick(bits, a, b) lane i is b where bit i is set, else a vf_pick_sign(v, a,
 * b)  lane i is b where v's sign is set, else a vi_min, vi_max      signed vi_widen(p),
 * vi_narrow(p, v)   LANES bytes to and from lanes; the lanes' low bytes vf_e4m3(c), vf_e2m1(c)
 * values of codes plane_get(c, p)     bit p of 64 bytes as one word, byte 0 lowest plane_put(c,
 * w, p)  c[i] |= bit i of w, shifted to p, 64 bytes keep16, keep32      one vector's kept
 * elements, to the front (code_select.h) */
#ifndef BNY_COMPRESS_KERNELS_CODE_BASE_H
#define BNY_COMPRESS_KERNELS_CODE_BASE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "compress/kernels/code.h"
#include "compress/kernels/half.h"

#define INLINE static inline __attribute__((always_inline))

/* No iteration reads what another one wrote. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Elements at any address, of arrays of any type. */
typedef float f32_at __attribute__((aligned(1), may_alias));
typedef uint8_t u8_at __attribute__((may_alias));
typedef int8_t i8_at __attribute__((may_alias));
typedef uint16_t u16_at __attribute__((aligned(1), may_alias));
typedef uint32_t u32_at __attribute__((aligned(1), may_alias));
typedef uint64_t u64_at __attribute__((aligned(1), may_alias));

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef float vf_at __attribute__((vector_size(4 * LANES), aligned(1), may_alias));

#define STEP     32             /* lanes of a sum, and elements of a loop's step */
#define VECTORS  (STEP / LANES) /* that hold them */
#define ABS_BITS 0x7fffffff

INLINE vf vf_load(const void *p)
{
    return *(const vf_at *)p;
}

INLINE void vf_store(void *p, vf v)
{
    *(vf_at *)p = v;
}

INLINE vf vf_set1(float x)
{
    return x - (vf){ 0 };
}

INLINE vf vf_abs(vf v)
{
    return (vf)((vi)v & ABS_BITS);
}

INLINE vf vf_and(vf v, vi mask)
{
    return (vf)((vi)v & mask);
}

INLINE float canon(float r)
{
    return r != r ? NAN : r;
}

/* v of element i. */
INLINE float value(const f32_at *src, const f32_at *ef, float s, size_t i)
{
    return ef ? src[i] + s * ef[i] : src[i];
}

INLINE vf vf_value(const f32_at *src, const f32_at *ef, vf s, size_t i)
{
    return ef ? vf_load(src + i) + s * vf_load(ef + i) : vf_load(src + i);
}

/* Values of codes with m bits of mantissa, exponent bias b, sign in bit s; no infinities. */
INLINE vf vf_minifloat(vi c, int m, int b, int s)
{
    vi mag = c & ((1 << s) - 1), tiny = mag < 1 << m;
    vi norm = (mag << (23 - m)) + ((127 - b) << 23);
    /* The code as a mantissa of the smallest exponent, less that exponent's power: exact, and
     * never subnormal. */
    vf sub = (vf)((mag << (23 - m)) + ((128 - b) << 23)) - (vf)((vi){ 0 } + ((128 - b) << 23));

    return (vf)((norm & ~tiny) | ((vi)sub & tiny) | ((c & 1 << s) << (31 - s)));
}

/* The lanes in order. */
INLINE double lanes_sum(const vf acc[VECTORS])
{
    float lane[STEP];
    double sum = 0;

    memcpy(lane, acc, sizeof lane);
    for (int j = 0; j < STEP; j++)
        sum += (double)lane[j];
    return sum;
}

#endif
