/* SPDX-License-Identifier: BSD-3-Clause */
/* Rows as bytes, and which elements of a row travel. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "training/rows_code.h"

Test(rows_code, f32_is_exact)
{
    float x[5] = { 0, -1.5f, FLT_MAX, FLT_MIN, 3e-45f }, y[5];
    unsigned char wire[64];

    cr_assert_eq(bny_row_encode(wire, x, 5, 32) - wire, 20);
    cr_assert_eq(bny_row_bytes(5, 32), 20);
    cr_assert_eq(bny_row_decode(y, wire, 5, 32) - wire, 20);
    cr_assert_eq(memcmp(x, y, sizeof x), 0);
}

/* Within half a step of max / 127, the largest exactly (to a rounding), whatever their size. */
Test(rows_code, int8_is_within_half_a_step)
{
    static const float sizes[] = { 1e-35f, 1e-30f, 1e-3f, 1, 7.3f, 1e20f, 1e38f };
    uint64_t state = 20261122;

    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (size_t n = 1; n <= 40; n += 13) {
            float x[40], y[40], most = 0;
            unsigned char wire[64];

            for (size_t i = 0; i < n; i++) {
                x[i] = sizes[s] * (float)(2 * bny_rng_unit(&state) - 1);
                most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
            }
            cr_assert_eq((size_t)(bny_row_encode(wire, x, n, 8) - wire), n + 4);
            cr_assert_eq(bny_row_bytes(n, 8), n + 4);
            bny_row_decode(y, wire, n, 8);
            for (size_t i = 0; i < n; i++)
                cr_assert(fabsf(x[i] - y[i]) <= most / 253, "%g became %g, of %g", (double)x[i],
                          (double)y[i], (double)most);
        }
}

Test(rows_code, int8_of_zeros_and_of_the_smallest)
{
    float x[3] = { 0, 0, 0 }, y[3] = { 1, 1, 1 };
    unsigned char wire[16];

    for (int k = 0; k < 2; k++) {
        x[1] = k ? 3e-45f : 0;
        bny_row_encode(wire, x, 3, 8);
        bny_row_decode(y, wire, 3, 8);
        for (int i = 0; i < 3; i++)
            cr_assert(fabsf(y[i]) <= 1e-38f, "%g", (double)y[i]);
    }
}

/* k of n, ascending, all alike often, the same by the same key. */
Test(rows_code, places_are_chosen_evenly)
{
    enum { N = 24, K = 6, KEYS = 20000 };
    int count[N] = { 0 };
    uint32_t places[N], again[N];

    for (uint64_t key = 0; key < KEYS; key++) {
        bny_row_choose(key * 977, N, K, places);
        bny_row_choose(key * 977, N, K, again);
        cr_assert_eq(memcmp(places, again, K * sizeof *places), 0);
        for (int i = 0; i < K; i++) {
            cr_assert(places[i] < N && (i == 0 || places[i] > places[i - 1]), "key %d",
                      (int)key);
            count[places[i]]++;
        }
    }
    for (int i = 0; i < N; i++) /* 5000 each; five sigma are 306 */
        cr_assert(abs(count[i] - KEYS * K / N) < 306, "place %d: %d times", i, count[i]);
    bny_row_choose(1, N, N, places);
    for (uint32_t i = 0; i < N; i++)
        cr_assert_eq(places[i], i);
}
