/* SPDX-License-Identifier: BSD-3-Clause */
/* One pass over a gradient: its squares, and whether all of it is finite. */
#include <math.h>
#include <string.h>

#include "training/buckets.h"

#define LANES 8 /* sums beside each other: the compiler makes one register of them */

/* Gradients lie anywhere. */
typedef float __attribute__((aligned(1), may_alias)) any_f32;
typedef double __attribute__((aligned(1), may_alias)) any_f64;
typedef uint16_t __attribute__((aligned(1), may_alias)) any_u16;

static float of_half(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, rest = h & 1023;
    uint32_t bits = sign | (exponent + 112) << 23 | rest << 13;
    float f;

    if (exponent == 0)
        return (sign ? -1.0f : 1.0f) * (float)rest * 0x1p-24f;
    if (exponent == 31)
        bits = sign | 0x7f800000 | rest << 13;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float of_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static double sum_of(const double lane[LANES])
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* No f32 has a square that f64 cannot hold: the sum is finite when all are. */
static double squares_f32(const any_f32 *x, size_t n)
{
    double lane[LANES] = { 0 };
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES; k++)
            lane[k] += (double)x[i + k] * (double)x[i + k];
    for (; i < n; i++)
        lane[i % LANES] += (double)x[i] * (double)x[i];
    return sum_of(lane);
}

static double squares_f64(const any_f64 *x, size_t n, int *finite)
{
    double lane[LANES] = { 0 };

    for (size_t i = 0; i < n; i++) {
        lane[i % LANES] += x[i] * x[i];
        *finite &= isfinite(x[i]) != 0;
    }
    return sum_of(lane);
}

static double squares_16(const any_u16 *x, size_t n, float (*value)(uint16_t))
{
    double lane[LANES] = { 0 };

    for (size_t i = 0; i < n; i++) {
        double v = (double)value(x[i]);
        lane[i % LANES] += v * v;
    }
    return sum_of(lane);
}

int bny_squares(const void *x, enum banyan_dtype dtype, size_t n, double *sum)
{
    int finite = 1;

    switch (dtype) {
    case BANYAN_F64: *sum = squares_f64(x, n, &finite); return finite;
    case BANYAN_F16: *sum = squares_16(x, n, of_half); break;
    case BANYAN_BF16: *sum = squares_16(x, n, of_bf16); break;
    default: *sum = squares_f32(x, n); break;
    }
    return isfinite(*sum) != 0;
}
