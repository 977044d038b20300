/* SPDX-License-Identifier: BSD-3-Clause */
/* Floats of one byte as numbers (OCP 8-bit floating point): 4 bits of exponent and 3 of
 * mantissa without infinities, or 5 and 2. The scalar definition; every step is exact or rounds
 * to nearest even. */
#ifndef BNY_COMPRESS_KERNELS_F8_H
#define BNY_COMPRESS_KERNELS_F8_H

#include <stdint.h>
#include <string.h>

struct f8_format {
    int mantissa; /* bits */
    int bias;     /* of the exponent */
    uint8_t most; /* the largest finite number */
    uint8_t nan; /* the canonical NaN; larger magnitudes than most, but for infinity, are NaN */
    uint8_t inf; /* infinity; 0: none */
};
#define F8E4M3 ((struct f8_format){ 3, 7, 0x7e, 0x7f, 0 })
#define F8E5M2 ((struct f8_format){ 2, 15, 0x7b, 0x7e, 0x7c })

static inline float f8_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline __attribute__((always_inline)) float f8_to_f32(uint8_t c, struct f8_format f)
{
    uint32_t magnitude = c & 0x7fu, sign = (uint32_t)(c & 0x80) << 24;
    uint32_t up = (uint32_t)(127 + 127 - f.bias) << 23; /* 2^(127 - bias) */
    float r = f8_bits(magnitude << (23 - f.mantissa)) * f8_bits(up);

    if (magnitude > f.most)
        r = f8_bits(f.inf && magnitude == f.inf ? 0x7f800000 : 0x7fc00000);
    return sign ? -r : r;
}

/* A finite number beyond the largest becomes that. */
static inline __attribute__((always_inline)) uint8_t f8_from_f32(float x, struct f8_format f)
{
    uint32_t bits, magnitude, code, least = (uint32_t)(128 - f.bias) << 23;
    uint32_t unit = (uint32_t)(127 + 23 + 1 - f.bias - f.mantissa) << 23;

    memcpy(&bits, &x, sizeof bits);
    magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return f.nan;
    if (magnitude < least) { /* subnormal: the last bit of the sum is the last of the code */
        float sum = f8_bits(magnitude) + f8_bits(unit);

        memcpy(&code, &sum, sizeof code);
        code -= unit;
    } else {
        uint32_t drop = (uint32_t)(23 - f.mantissa);

        code = magnitude + (1u << (drop - 1)) - 1 + (magnitude >> drop & 1);
        code = (code >> drop) - ((uint32_t)(127 - f.bias) << f.mantissa);
        if (code > f.most)
            code = magnitude == 0x7f800000 && f.inf ? f.inf : f.most;
    }
    return (uint8_t)(code | (bits >> 24 & 0x80));
}

#endif
