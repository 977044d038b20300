/* SPDX-License-Identifier: BSD-3-Clause */
/* Count sketches: linear, right on average, exact for what does not collide, and within the
 * bound of the paper for what does. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "methods/sketch_table.h"

enum { N = 3000 };
static float x[N], y[N], table[9 * 4096], other[9 * 4096];

static void noise(float *out, uint64_t seed)
{
    for (int i = 0; i < N; i++)
        out[i] = (float)(2 * bny_rng_unit(&seed) - 1);
}

/* Whole numbers, so that sums are exact: two vectors' tables add up to that of their sum, and
 * parts make the whole, wherever they are cut. */
Test(sketch_table, adds_up)
{
    const struct bny_sketch_shape s = { 5, 200, 7 };
    float both[N];

    noise(x, 1);
    noise(y, 2);
    for (int i = 0; i < N; i++) {
        x[i] = rintf(100 * x[i]);
        y[i] = rintf(100 * y[i]);
        both[i] = x[i] + y[i];
    }
    bny_sketch_add(&s, table, x, 0, 1234);
    bny_sketch_add(&s, table, x + 1234, 1234, 3);
    bny_sketch_add(&s, table, x + 1237, 1237, N - 1237);
    bny_sketch_add(&s, table, y, 0, N);
    bny_sketch_add(&s, other, both, 0, N);
    cr_assert_eq(memcmp(table, other, sizeof table), 0);
    cr_assert_neq(table[77], 0);
}

/* One element alone is exact; cleared it is gone, and so is nothing else's. */
Test(sketch_table, one_element_is_exact)
{
    const struct bny_sketch_shape s = { 3, 64, 1 };

    for (size_t e = 0; e < 300; e += 7) {
        float value = 2.5f;
        int nonzero = 0;

        memset(table, 0, sizeof table);
        bny_sketch_add(&s, table, &value, e, 1);
        for (int c = 0; c < 3 * 64; c++)
            nonzero += table[c] != 0;
        cr_assert_eq(nonzero, 3, "element %zu lies in %d cells", e, nonzero);
        bny_sketch_estimate(&s, table, y, 300);
        cr_assert_eq(y[e], value, "element %zu: %g", e, (double)y[e]);
        bny_sketch_clear(&s, table, e);
        for (int c = 0; c < 3 * 64; c++)
            cr_assert_eq(table[c], 0, "cell %d is left", c);
    }
}

/* One row: the mean of estimates over seeds is the element. */
Test(sketch_table, is_right_on_average)
{
    enum { SEEDS = 4000 };
    double sum[20] = { 0 };

    noise(x, 3);
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        const struct bny_sketch_shape s = { 1, 40, seed };

        memset(table, 0, 40 * sizeof *table);
        bny_sketch_add(&s, table, x, 0, 400);
        bny_sketch_estimate(&s, table, y, 400);
        for (int i = 0; i < 20; i++)
            sum[i] += (double)y[i * 17];
    }
    for (int i = 0; i < 20; i++) /* 400 / 3 / 25 squared a table: 2.3 sigma / sqrt(SEEDS) */
        cr_assert(fabs(sum[i] / SEEDS - (double)x[i * 17]) < 0.2, "element %d: %g, not %g",
                  i * 17, sum[i] / SEEDS, (double)x[i * 17]);
}

/* Charikar, Chen, Farach-Colton: an estimate is off by more than sqrt(3 / cols) |x| in less
 * than half of the rows' ways, so with many rows hardly ever; large elements are found. */
Test(sketch_table, finds_what_is_large)
{
    const struct bny_sketch_shape s = { 9, 400, 11 };
    double length = 0;
    int off = 0;

    noise(x, 4);
    for (int k = 0; k < 20; k++)
        x[k * 149 + 3] = k % 2 ? 40.f + (float)k : -40.f - (float)k;
    for (int i = 0; i < N; i++)
        length += (double)x[i] * (double)x[i];
    bny_sketch_add(&s, table, x, 0, N);
    bny_sketch_estimate(&s, table, y, N);
    for (int i = 0; i < N; i++)
        off += fabs((double)(y[i] - x[i])) > sqrt(3 * length / 400);
    cr_assert(off < N / 50, "%d of %d estimates are off", off, N);
    for (int k = 0; k < 20; k++)
        cr_assert(fabsf(y[k * 149 + 3] - x[k * 149 + 3]) < 10, "element %d: %g, not %g",
                  k * 149 + 3, (double)y[k * 149 + 3], (double)x[k * 149 + 3]);
}
