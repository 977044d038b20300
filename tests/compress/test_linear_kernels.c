/* SPDX-License-Identifier: BSD-3-Clause */
/* The linear codecs' loops: the scalar ones compute what kernels/linear.h says, by other means;
 * every instruction set gives their bits for any shape and alignment, and writes nothing else.
 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "compress/kernels/linear_kernels.h"
#include "tests/compress/samples.h"

#define SEED  0x5eed0041
#define MAX   6000
#define GUARD 16

TestSuite(linear_kernels, .timeout = 60);

struct level {
    char name[8];
    unsigned flags;
};

/* What a loop reads, and what it writes: a copy each for two tables. */
static float src[MAX + 1], ef[MAX + 1], factor[MAX + 1], other[MAX + 1];
static float out[2][MAX + 2 * GUARD], out2[2][MAX + 2 * GUARD];
static int32_t whole[MAX + 1];

static void prepare(uint64_t *rng, int kind)
{
    samples(src, MAX, kind ? GAUSS : LAPLACE, 1, rng);
    samples(ef, MAX, GAUSS, 0.5, rng);
    samples(factor, MAX, GAUSS, 1, rng);
    samples(other, MAX, GAUSS, 1, rng);
    for (size_t i = 0; i < MAX; i++)
        whole[i] = (int32_t)bny_rng_below(rng, 201) - 100;
    for (int w = 0; w < 2; w++)
        for (size_t i = 0; i < MAX + 2 * GUARD; i++)
            out[w][i] = out2[w][i] = i >= GUARD && i < GUARD + MAX ? ef[i - GUARD] : (float)i;
}

static void matrices(const struct bny_linear_kernels *k, int w, const struct bny_values *v,
                     size_t rows, size_t cols, size_t r, int which)
{
    struct bny_factors sum = { factor + 1, other }, own = { other + 1, factor };

    if (which == 0)
        k->right(out[w] + GUARD, factor, v, rows, cols, r);
    else if (which == 1)
        k->left(out[w] + GUARD, factor, v, rows, cols, r);
    else if (v->ef)
        k->expand(out[w] + GUARD, out2[w] + GUARD,
                  &(struct bny_values){ v->src, out2[w] + GUARD, v->s }, &sum, &own, rows, cols,
                  r, 0.25f);
    else
        k->expand(out[w] + GUARD, NULL, v, &sum, &own, rows, cols, r, 1);
}

/* The i-th of the other loops; 0: there is none. */
static int vectors(const struct bny_linear_kernels *k, int w, const struct bny_values *v,
                   size_t n, int i)
{
    struct bny_sketch s = { .rows = 1 + (uint32_t)n % 5, .cells = 100 + n % 37 };
    float *o = out[w] + GUARD;

    for (uint32_t row = 0; row < s.rows; row++)
        s.key[row] = bny_rand_key(SEED, 1, row);
    switch (i) {
    case 0:
        k->round_random((int32_t *)(void *)o, v, n, 20, 50, bny_rand_key(1, 2, 3), 0xfffffff0u);
        return 1;
    case 1: k->round_nearest((int32_t *)(void *)o, v, n, 1e6); return 1;
    case 2: k->expand_integers(o, whole, n, 0.1); return 1;
    case 3:
        k->residual_integers(o, &(struct bny_values){ v->src, o, v->s }, whole, n, 0.1);
        return 1;
    case 4: k->put8(o, whole, n, 100); return 1;
    case 5: k->put16(o, whole, n, 100); return 1;
    case 6: k->get8((int32_t *)(void *)o, src, n, 1000); return 1;
    case 7: k->get16((int32_t *)(void *)o, src, n, 1000); return 1;
    case 8: k->get32((int32_t *)(void *)o, src, n, 1000); return 1;
    case 9: k->mark(o, v, n, 0.4f); return 1;
    case 10: k->scale_marked(o, src, n, 16); return 1;
    case 11: k->sketch(o, &s, v, n); return 1;
    case 12: k->estimate(o, src, &s, n); return 1;
    default: return 0;
    }
}

static void same(const char *what, size_t a, size_t b, size_t c, int ef_too)
{
    cr_assert(
        !memcmp(out[0], out[1], sizeof out[0]) && !memcmp(out2[0], out2[1], sizeof out2[0]),
        "%s: %zu, %zu, %zu, residual %d: other bits, seed %#x", what, a, b, c, ef_too, SEED);
    for (int i = 0; i < GUARD; i++)
        cr_assert(out[1][i] == (float)i && out[1][GUARD + MAX + i] == (float)(GUARD + MAX + i),
                  "%s: wrote outside", what);
}

ParameterizedTestParameters(linear_kernels, isa_gives_the_scalar_bits)
{
    static struct level levels[] = { { "avx2", BNY_CPU_AVX2 },
                                     { "avx512", BNY_CPU_AVX2 | BNY_CPU_AVX512 } };

    return cr_make_param_array(struct level, levels, 2);
}

ParameterizedTest(struct level *level, linear_kernels, isa_gives_the_scalar_bits)
{
    static const size_t shapes[][2] = { { 1, 1 },   { 3, 15 },  { 8, 16 }, { 17, 33 },
                                        { 9, 100 }, { 70, 31 }, { 40, 64 } };
    static const size_t ranks[] = { 1, 2, 3, 4, 7, 8 },
                        counts[] = { 0, 1, 5, 16, 31, 32, 33, 1000, 1024 };
    const struct bny_linear_kernels *k = bny_linear_kernels_for(level->flags);
    uint64_t rng = SEED;

    if ((bny_cpu_flags() & level->flags) != level->flags)
        cr_skip_test("this machine lacks the instruction set");
    cr_assert_str_eq(k->name, level->name);
    for (int with = 0; with < 2; with++) {
        struct bny_values v = { src + with, with ? ef : NULL, 0.75f };

        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            for (size_t r = 0; r < 6; r++)
                for (int which = 0; which < 3; which++) {
                    prepare(&rng, which);
                    matrices(&bny_linear_scalar, 0, &v, shapes[s][0], shapes[s][1], ranks[r],
                             which);
                    matrices(k, 1, &v, shapes[s][0], shapes[s][1], ranks[r], which);
                    same("matrix", shapes[s][0], shapes[s][1], ranks[r], with);
                }
        for (size_t n = 0; n < sizeof counts / sizeof counts[0]; n++)
            for (int i = 0;; i++) {
                prepare(&rng, i % 2);
                if (!vectors(&bny_linear_scalar, 0, &v, counts[n], i))
                    break;
                vectors(k, 1, &v, counts[n], i);
                same("vector", counts[n], (size_t)i, 0, with);
            }
    }
}

Test(linear_kernels, products_are_those_of_the_matrix)
{
    const size_t rows = 50, cols = 77, r = 5;
    const struct bny_linear_kernels *k = &bny_linear_scalar;
    struct bny_values v = { src, ef, 0.75f };
    uint64_t rng = SEED;

    prepare(&rng, 0);
    k->right(out[0], factor, &v, rows, cols, r);
    k->left(out[1], factor, &v, rows, cols, r);
    for (size_t c = 0; c < r; c++) {
        for (size_t i = 0; i < rows; i++) {
            double sum = 0;

            for (size_t j = 0; j < cols; j++)
                sum += ((double)src[i * cols + j] + 0.75 * (double)ef[i * cols + j]) *
                       (double)factor[c * cols + j];
            cr_assert(fabs(sum - (double)out[0][c * rows + i]) < 1e-4,
                      "right %zu %zu: %g, not %g", i, c, (double)out[0][c * rows + i], sum);
        }
        for (size_t j = 0; j < cols; j++) {
            double sum = 0;

            for (size_t i = 0; i < rows; i++)
                sum += ((double)src[i * cols + j] + 0.75 * (double)ef[i * cols + j]) *
                       (double)factor[c * rows + i];
            cr_assert(fabs(sum - (double)out[1][c * cols + j]) < 1e-4,
                      "left %zu %zu: %g, not %g", j, c, (double)out[1][c * cols + j], sum);
        }
    }
}

Test(linear_kernels, integers_fields_and_marks)
{
    const struct bny_linear_kernels *k = &bny_linear_scalar;
    struct bny_values v = { src, ef, 0.75f };
    int32_t q[1000], back[1000];
    uint16_t fields[1000];
    uint32_t bits[32];
    uint64_t rng = SEED;

    prepare(&rng, 0);
    k->round_random(q, &v, 1000, 20, 50, bny_rand_key(1, 2, 3), 7);
    k->mark(bits, &v, 1000, 0.4f);
    for (size_t i = 0; i < 1000; i++) {
        double x = (double)(src[i] + 0.75f * ef[i]);

        cr_assert(fabs((double)q[i] - fmax(-50, fmin(50, 20 * x))) < 1.001,
                  "element %zu: %d of %g", i, q[i], x);
        cr_assert_eq(bits[i / 32] >> i % 32 & 1, fabs(x) <= 0.4f, "element %zu: %g", i, x);
    }
    k->put16(fields, q, 1000, 50);
    k->get16(back, fields, 1000, 50);
    cr_assert_arr_eq(q, back, sizeof q);
    k->round_nearest(q, &v, 1000, 1000);
    for (size_t i = 0; i < 1000; i++)
        cr_assert_eq(q[i], (int32_t)rint((double)(src[i] + 0.75f * ef[i]) * 1000),
                     "element %zu", i);
}

/* Without collisions every row says what was put in; the median of an odd and of an even number
 * of rows. */
Test(linear_kernels, sketch_of_one_block_is_exact)
{
    for (uint32_t rows = 1; rows <= BNY_SKETCH_ROWS; rows++) {
        struct bny_sketch s = { .rows = rows, .cells = 200 };
        static float table[BNY_SKETCH_ROWS * 200];
        float found[32], x[9], lone[1];
        struct bny_values v = { src, NULL, 0 };
        uint64_t rng = SEED;

        prepare(&rng, 0);
        for (uint32_t row = 0; row < rows; row++)
            s.key[row] = bny_rand_key(SEED, 3, row);
        memset(table, 0, sizeof table);
        bny_linear_scalar.sketch(table, &s, &v, 32);
        bny_linear_scalar.estimate(found, table, &s, 32);
        cr_assert_arr_eq(found, src, sizeof found, "%u rows", rows);
        for (uint32_t row = 0; row < rows;
             row++) { /* the rows disagree about element 0: values 0, 1, 4, 9, ... */
            uint64_t h = bny_rand_at(s.key[row], 0);
            float sign = bny_rand_at(s.key[row], 1) & 1 ? -1 : 1;

            x[row] = (float)((row * 4 % rows) * (row * 4 % rows));
            table[row * 200 + (h * 169 >> 32)] = sign * x[row];
        }
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t j = i + 1; j < rows; j++)
                if (x[j] < x[i]) {
                    float t = x[i];

                    x[i] = x[j];
                    x[j] = t;
                }
        bny_linear_scalar.estimate(lone, table, &s, 1);
        cr_assert_float_eq(lone[0],
                           rows % 2 ? x[rows / 2] : (x[rows / 2 - 1] + x[rows / 2]) / 2, 1e-6,
                           "%u rows", rows);
    }
}
