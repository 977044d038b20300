/* SPDX-License-Identifier: BSD-3-Clause */
/* One f16 or bf16 <-> f32, in plain C without branches. f16 is bit-identical to F16C
 * (vcvtph2ps, and vcvtps2ph with round to nearest even) for every input. The subnormal f16
 * use one f32 addition, so the processor must be in its default rounding mode, as for every
 * sum of this library. */
#ifndef BNY_COMPRESS_KERNELS_HALF_H
#define BNY_COMPRESS_KERNELS_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t f32_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float f32_from_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff;
    uint32_t normal = (mag << 13) + ((127u - 15) << 23);
    /* 2^-14 (1 + m/1024) - 2^-14 = m 2^-24, exactly. */
    uint32_t subnormal = f32_bits(f32_from_bits((113u << 23) + (mag << 13)) - 0x1p-14f);
    uint32_t special = 0x7f800000 | mag << 13 | (mag > 0x7c00 ? 0x400000u : 0);

    return f32_from_bits(sign | (mag >= 0x7c00 ? special : mag >= 0x400 ? normal : subnormal));
}

static inline uint16_t f16_from_f32(float x)
{
    uint32_t u = f32_bits(x), sign = u >> 16 & 0x8000, mag = u & 0x7fffffff;
    /* Adds just under half a unit of the last place, and the rest when that place is odd; a
     * carry moves into the exponent and, from 65520 on, makes infinity's bits. */
    uint32_t normal = (mag - ((127u - 15) << 23) + 0xfff + (mag >> 13 & 1)) >> 13;
    /* 0.5 has an f32 unit of 2^-24, f16's smallest number: the addition rounds. */
    uint32_t subnormal = f32_bits(f32_from_bits(mag) + 0.5f) - (126u << 23);
    uint32_t nan = 0x7e00 | (mag >> 13 & 0x3ff);
    uint32_t small = mag < (113u << 23) ? subnormal : normal;
    uint32_t finite = mag >= (143u << 23) ? 0x7c00 : small;

    return (uint16_t)(sign | (mag > 0x7f800000 ? nan : finite));
}

/* Exact; a signalling NaN stays one until it is used. */
static inline float bf16_to_f32(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t bf16_from_f32(float x)
{
    uint32_t u = f32_bits(x);
    uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;

    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? u >> 16 | 0x40 : rounded);
}

#endif
