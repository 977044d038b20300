/* SPDX-License-Identifier: BSD-3-Clause */
/* For aarch64, linked statically with nothing but the loops, run under qemu-user: the NEON
 * tables give the scalar tables' bits. */
#include <stdio.h>
#include <stdlib.h>

#include "compress/kernels/kernels.h"
#include "tests/compress/code_compare.h"

#define HALVES 70000

/* Two-byte floats: every code, and floats of any bits. 0, or 1 when something differs. */
static int compare_half(const struct bny_half_kernels *want, const struct bny_half_kernels *got,
                        const char *name)
{
    static float x[HALVES], y[2][HALVES], sum[2][HALVES];
    static uint16_t h[HALVES], wire[2][HALVES];
    uint64_t rng = SEED;

    for (size_t i = 0; i < HALVES; i++) {
        x[i] = f32_from_bits((uint32_t)bny_rng_next(&rng));
        h[i] = (uint16_t)i;
    }
    for (size_t n = HALVES - 9; n <= HALVES; n++) {
        for (int t = 0; t < 2; t++) {
            const struct bny_half_kernels *k = t ? got : want;

            k->encode(wire[t], x, n);
            k->decode(y[t], h, n);
            k->decode_add(sum[t], x, h, n);
        }
        if (memcmp(wire[0], wire[1], sizeof wire[0]) || memcmp(y[0], y[1], sizeof y[0]) ||
            memcmp(sum[0], sum[1], sizeof sum[0])) {
            printf("%s differs from scalar: n %zu seed %#x\n", name, n, SEED);
            return 1;
        }
    }
    return 0;
}

int main(void)
{
    const char *bad = code_compare(&bny_code_scalar, &bny_code_neon);

    if (bad)
        printf("%s\n", bad);
    if (bad || compare_half(&bny_kernels_scalar.f16, &bny_kernels_neon.f16, "f16") ||
        compare_half(&bny_kernels_scalar.bf16, &bny_kernels_neon.bf16, "bf16"))
        return 1;
    printf("neon: as scalar\n");
    return 0;
}
