/* SPDX-License-Identifier: BSD-3-Clause */
/* Rows as bytes. On the wire: f32, little endian; or a scale in f32, then int8 each. */
#include "training/rows_code.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"

size_t bny_row_bytes(size_t n, int bits)
{
    return bits == 32 ? n * sizeof(float) : n + sizeof(float);
}

unsigned char *bny_row_encode(unsigned char *wire, const float *x, size_t n, int bits)
{
    float most = 0, scale, inverse;

    if (bits == 32) {
        memcpy(wire, x, n * sizeof *x);
        return wire + n * sizeof *x;
    }
    for (size_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    scale = most / 127;
    inverse = scale > 0 ? 1 / scale : 0;
    if (!isfinite(inverse)) /* so small that 1 / scale is beyond f32: zeros */
        scale = inverse = 0;
    memcpy(wire, &scale, sizeof scale);
    wire += sizeof scale;
    for (size_t i = 0; i < n; i++)
        *wire++ = (unsigned char)(signed char)lrintf(fmaxf(-127, fminf(127, x[i] * inverse)));
    return wire;
}

const unsigned char *bny_row_decode(float *x, const unsigned char *wire, size_t n, int bits)
{
    float scale;

    if (bits == 32) {
        memcpy(x, wire, n * sizeof *x);
        return wire + n * sizeof *x;
    }
    memcpy(&scale, wire, sizeof scale);
    wire += sizeof scale;
    for (size_t i = 0; i < n; i++)
        x[i] = scale * (float)(signed char)*wire++;
    return wire;
}

void bny_row_choose(uint64_t key, size_t n, size_t k, uint32_t *places)
{
    size_t left = k; /* Knuth, TAOCP 3.4.2, algorithm S */

    bny_rng_next(&key);
    for (size_t i = 0; i < n && left; i++)
        if (bny_rng_below(&key, n - i) < left)
            places[k - left--] = (uint32_t)i;
}
