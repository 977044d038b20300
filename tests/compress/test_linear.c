/* SPDX-License-Identifier: BSD-3-Clause */
/* The linear codecs: ranks' states side by side in one process, codes summed as the library
 * would. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "compress/fields.h"
#include "compress/reduce.h"
#include "tests/compress/samples.h"

#define SEED  0x5eed0030
#define RANKS 17

TestSuite(linear, .timeout = 60);

struct job {
    const struct bny_codec *codec;
    int nranks;
    size_t n;
    int64_t rows, cols;
    uint32_t step;
    float *src[RANKS], *dst[RANKS], *ef[RANKS];
    void *keep[RANKS];
    size_t bytes; /* of the latest operation's stages, one rank's */
};

static const struct bny_codec *parse(const char *spec)
{
    const struct bny_codec *c;

    cr_assert_eq(bny_codec_parse(&c, spec), 0, "%s", banyan_last_error());
    return c;
}

static struct job job_new(const char *spec, int nranks, int64_t rows, int64_t cols)
{
    struct job j = { .codec = parse(spec),
                     .nranks = nranks,
                     .n = (size_t)(rows * cols),
                     .rows = rows,
                     .cols = cols };

    for (int r = 0; r < nranks; r++) {
        j.src[r] = calloc(j.n + 1, 4);
        j.dst[r] = calloc(j.n + 1, 4);
        j.ef[r] = calloc(j.n + 1, 4);
        j.keep[r] = calloc(1, j.codec->ops->linear->keep_bytes(j.codec, j.n, rows, cols) + 1);
    }
    return j;
}

static void job_free(struct job *j)
{
    for (int r = 0; r < j->nranks; r++) {
        free(j->src[r]);
        free(j->dst[r]);
        free(j->ef[r]);
        free(j->keep[r]);
    }
}

/* Codes of all ranks become their sum (or whatever the stage's operation is). */
static void reduce(struct bny_linear *l, int nranks, const struct bny_stage *s)
{
    bny_reduce_fn fn = bny_reduce_get(s->dtype, s->op, bny_cpu_flags());

    for (int r = 1; r < nranks; r++)
        fn(l[0].code, l[0].code, l[r].code, s->count);
    for (int r = 1; r < nranks; r++)
        memcpy(l[r].code, l[0].code, s->count * banyan_dtype_bytes(s->dtype));
}

/* One operation, in place on even ranks. Returns what all ranks answer. */
static int operate(struct job *j)
{
    const struct bny_linear_ops *ops = j->codec->ops->linear;
    size_t code = ops->code_bytes(j->codec, j->n, j->rows, j->cols);
    size_t work = ops->work_bytes(j->codec, j->n, j->rows, j->cols);
    struct bny_linear l[RANKS] = { 0 };
    int rc = 0;

    j->bytes = 0;
    for (int r = 0; r < j->nranks; r++) {
        l[r] = (struct bny_linear){ .codec = j->codec,
                                    .cpu_flags = r % 2 ? 0 : bny_cpu_flags(),
                                    .rank = r,
                                    .nranks = j->nranks,
                                    .seed = SEED,
                                    .step = j->step,
                                    .src = j->src[r],
                                    .dst = r % 2 ? j->dst[r] : j->src[r],
                                    .n = j->n,
                                    .rows = j->rows,
                                    .cols = j->cols,
                                    .scale = 1,
                                    .ef = j->ef[r],
                                    .ef_scale = 1,
                                    .keep = j->keep[r],
                                    .work = calloc(1, work + 1),
                                    .code = malloc(code + 1) };
        memset(l[r].code, 0xa5, code + 1);
    }
    for (int k = 0; k < ops->nstages(j->codec) && rc == 0; k++) {
        struct bny_stage s = { 0 }, first = { 0 };

        for (int r = 0; r < j->nranks; r++) {
            int answer = ops->contribute(&l[r], k, &s);

            if (r == 0) {
                rc = answer;
                first = s;
            }
            cr_assert_eq(answer, rc, "rank %d stage %d: %d", r, k, answer);
            cr_assert(s.count == first.count && s.dtype == first.dtype && s.op == first.op,
                      "rank %d stage %d", r, k);
            cr_assert_leq(s.count * banyan_dtype_bytes(s.dtype), code, "rank %d stage %d", r,
                          k);
        }
        if (rc == 0 && first.count)
            reduce(l, j->nranks, &first);
        j->bytes += first.count * banyan_dtype_bytes(first.dtype);
    }
    for (int r = 0; r < j->nranks; r++) {
        int answer = rc ? rc : ops->finish(&l[r]);

        if (r == 0 && rc == 0)
            rc = answer;
        cr_assert_eq(answer, rc, "rank %d: %d", r, answer);
        cr_assert_eq(((unsigned char *)l[r].code)[code], 0xa5, "%s wrote past its code",
                     j->codec->spec);
        if (r % 2 == 0 && rc == 0)
            memcpy(j->dst[r], j->src[r], 4 * j->n);
        cr_assert(rc || !memcmp(j->dst[r], j->dst[0], 4 * j->n), "%s: rank %d has other bits",
                  j->codec->spec, r);
        free(l[r].work);
        free(l[r].code);
    }
    j->step++;
    return rc;
}

static void no_feedback(struct job *j)
{
    for (int r = 0; r < j->nranks; r++) {
        free(j->ef[r]);
        j->ef[r] = NULL;
    }
}

struct spec {
    char text[48];
};

static struct spec specs[] = { { "randomk" },
                               { "randomk:delta=0.3,block=7" },
                               { "randomk:unbiased=1" },
                               { "maxnorm" },
                               { "maxnorm:width=16,bits=4" },
                               { "maxnorm:width=16,bits=2" },
                               { "maxnorm:width=32" },
                               { "maxnorm_ms" },
                               { "ebint:bound=0.01" },
                               { "ebint:rel=0.01" },
                               { "powersgd:rank=1" },
                               { "powersgd:rank=2,classic=1" },
                               { "powersgd:rank=3" },
                               { "powersgd:rank=8,classic=1" },
                               { "sketch" },
                               { "sketch:delta=0.1,ratio=0.5,rows=5" } };

ParameterizedTestParameters(linear, residuals_conserve_the_sum_and_ranks_agree)
{
    return cr_make_param_array(struct spec, specs, sizeof specs / sizeof specs[0]);
}

ParameterizedTest(struct spec *spec, linear, residuals_conserve_the_sum_and_ranks_agree)
{
    const int ranks[] = { 1, 2, 3, 7 };
    for (int w = 0; w < 4; w++) {
        int steps = ranks[w] == 3 ? 300 : 40;
        struct job j = job_new(spec->text, ranks[w], 37, 53);
        double *in = calloc(j.n, sizeof *in), worst = 0, size = 0, waits = 0;
        uint64_t rng = SEED;

        for (int step = 0; step < steps; step++) {
            for (int r = 0; r < j.nranks; r++)
                samples(j.src[r], j.n, (enum family)(step % 4), 1, &rng);
            for (int r = 0; r < j.nranks; r++)
                for (size_t i = 0; i < j.n; i++) {
                    in[i] += (double)j.src[r][i];
                    size += fabs((double)j.src[r][i]);
                }
            cr_assert_eq(operate(&j), 0, "%s", banyan_last_error());
            for (size_t i = 0; i < j.n; i++)
                in[i] -= (double)j.dst[0][i];
        }
        for (size_t i = 0; i < j.n; i++) {
            for (int r = 0; r < j.nranks; r++) {
                in[i] -= (double)j.ef[r][i];
                waits += fabs((double)j.ef[r][i]);
            }
            worst = fmax(worst, fabs(in[i]));
        }
        cr_expect_lt(worst, 1e-4 * size / (double)j.n + 1e-5, "%s, %d ranks: %g, seed %#x",
                     spec->text, ranks[w], worst, SEED);
        cr_expect_leq(waits, size, "%s, %d ranks: %g waits of %g", spec->text, ranks[w], waits,
                      size);
        job_free(&j);
        free(in);
    }
}

/* A unit that is the largest value leaves out as much as there is. */
Test(linear, fields_too_narrow_for_a_residual_are_refused)
{
    static const char *const texts[] = { "maxnorm:width=8,bits=1", "maxnorm_ms:width=4" };

    for (int i = 0; i < 2; i++) {
        struct job j = job_new(texts[i], 4, 5, 5);

        cr_expect_eq(operate(&j), -BANYAN_ENOTSUP, "%s", texts[i]);
        cr_expect(strstr(banyan_last_error(), "residual"), "%s", banyan_last_error());
        no_feedback(&j);
        cr_expect_eq(operate(&j), 0, "%s: %s", texts[i], banyan_last_error());
        job_free(&j);
    }
}

ParameterizedTestParameters(linear, zeros_tiny_tensors_and_not_finite)
{
    return cr_make_param_array(struct spec, specs, sizeof specs / sizeof specs[0]);
}

ParameterizedTest(struct spec *spec, linear, zeros_tiny_tensors_and_not_finite)
{
    const int64_t shapes[][2] = {
        { 0, 5 }, { 1, 1 }, { 1, 7 }, { 64, 1 }, { 31, 2 }, { 64, 65 }
    };

    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (int bad = 0; bad < 3; bad++) {
            struct job j = job_new(spec->text, 3, shapes[k][0], shapes[k][1]);

            if (bad && j.n)
                j.src[1][j.n / 2] = bad == 1 ? NAN : INFINITY;
            cr_expect_eq(operate(&j), bad && j.n ? -BANYAN_ENOTSUP : 0, "%s %d x %d: %s",
                         spec->text, (int)shapes[k][0], (int)shapes[k][1], banyan_last_error());
            for (size_t i = 0; i < j.n; i++)
                cr_assert(j.ef[1][i] == 0 && (bad || j.dst[0][i] == 0), "%s element %zu",
                          spec->text, i);
            job_free(&j);
        }
}

ParameterizedTestParameters(linear, tensors_may_lie_at_any_address)
{
    return cr_make_param_array(struct spec, specs, sizeof specs / sizeof specs[0]);
}

/* The same bits as aligned ones; UBSan says where a float is read as if it were aligned. */
ParameterizedTest(struct spec *spec, linear, tensors_may_lie_at_any_address)
{
    struct job even = job_new(spec->text, 3, 37, 53), odd = job_new(spec->text, 3, 37, 53);
    char *src[3], *dst[3];
    uint64_t rng = SEED;

    for (int r = 0; r < 3; r++) {
        samples(even.src[r], even.n, GAUSS, 1, &rng);
        free(odd.src[r]);
        free(odd.dst[r]);
        src[r] = malloc(4 * odd.n + 4);
        dst[r] = malloc(4 * odd.n + 4);
        odd.src[r] = (void *)(src[r] + 1 + r);
        odd.dst[r] = (void *)(dst[r] + 3 - r);
        memcpy(src[r] + 1 + r, even.src[r], 4 * odd.n);
    }
    cr_assert_eq(operate(&even), 0, "%s", banyan_last_error());
    cr_assert_eq(operate(&odd), 0, "%s", banyan_last_error());
    for (int r = 0; r < 3; r++) {
        cr_assert(!memcmp(dst[r] + 3 - r, even.dst[r], 4 * odd.n), "%s: rank %d has other bits",
                  spec->text, r);
        cr_assert(!memcmp(odd.ef[r], even.ef[r], 4 * odd.n), "%s: rank %d keeps other bits",
                  spec->text, r);
        free(src[r]);
        free(dst[r]);
        odd.src[r] = odd.dst[r] = NULL;
    }
    job_free(&even);
    job_free(&odd);
}

/* Acceptance: the sum of codes decodes to the sum of decoded codes, exactly. */
Test(linear, integers_are_summed_exactly)
{
    const char *exact[] = { "maxnorm", "maxnorm:width=16", "maxnorm:width=16,bits=7",
                            "ebint:bound=0.01", "maxnorm_ms" };
    uint64_t rng = SEED;

    for (size_t k = 0; k < 5; k++)
        for (int w = 1; w <= RANKS; w += 4) {
            struct job j = job_new(exact[k], w, 1, 1001);
            double want[1001] = { 0 };
            float most = 0;

            for (int r = 0; r < w; r++) {
                samples(j.src[r], j.n, LAPLACE, 1, &rng);
                for (size_t i = 0; i < j.n; i++) {
                    want[i] += (double)j.src[r][i];
                    most = fmaxf(most, fabsf(j.src[r][i]));
                }
            }
            cr_assert_eq(operate(&j), 0, "%s", banyan_last_error());
            for (size_t i = 0; i < j.n; i++) {
                for (int r = 0; r < w; r++)
                    want[i] -= (double)j.ef[r][i]; /* what each rank's own code decodes to */
                cr_assert(fabs(want[i] - (double)j.dst[0][i]) <= 1e-6 * (double)most * w,
                          "%s %d ranks element %zu: %g, not %g", exact[k], w, i,
                          (double)j.dst[0][i], want[i]);
            }
            job_free(&j);
        }
}

Test(linear, overflow_is_refused_and_bounds_hold)
{
    struct job j = job_new("maxnorm:bits=4", 8, 1, 500); /* 2 * 15 * 8 = 240 */
    uint64_t rng = SEED;

    cr_expect_eq(operate(&j), 0);
    job_free(&j);
    j = job_new("maxnorm:bits=4", 9, 1, 500); /* 270 > 255 */
    cr_expect_eq(operate(&j), -BANYAN_ENOTSUP);
    cr_expect(strstr(banyan_last_error(), "9 ranks") != NULL, "%s", banyan_last_error());
    job_free(&j);
    j = job_new("ebint:bound=1e-9", 4, 1, 500);
    j.src[2][7] = 1000;
    cr_expect_eq(operate(&j), -BANYAN_ENOTSUP);
    job_free(&j);
    j = job_new("ebint:bound=0.001", 4, 1, 500);
    for (int r = 0; r < 4; r++)
        samples(j.src[r], j.n, GAUSS, 1, &rng);
    cr_expect_eq(operate(&j), 0);
    for (int r = 0; r < 4; r++)
        for (size_t i = 0; i < j.n; i++)
            cr_assert(fabsf(j.ef[r][i]) <= 0.001f * 1.001f, "rank %d element %zu: %g", r, i,
                      (double)j.ef[r][i]);
    cr_expect_eq(j.bytes, 4 + 2 * 500, "%zu bytes", j.bytes); /* 16-bit fields */
    job_free(&j);
}

Test(linear, random_rounding_is_unbiased)
{
    enum { REPEATS = 4096 };
    const char *unbiased[] = { "maxnorm", "maxnorm_ms", "maxnorm:width=4",
                               "randomk:unbiased=1,block=4,delta=0.25" };

    for (size_t k = 0; k < 4; k++) {
        struct job j = job_new(unbiased[k], 3, 1, 64);
        double sum[64] = { 0 }, var[64] = { 0 }, want[64] = { 0 };
        float src[3][64];
        uint64_t rng = SEED;

        no_feedback(&j);
        for (int r = 0; r < 3; r++) {
            samples(src[r], 64, LAPLACE, 1, &rng);
            for (size_t i = 0; i < 64; i++)
                want[i] += (double)src[r][i];
        }
        for (int n = 0; n < REPEATS; n++) {
            for (int r = 0; r < 3; r++)
                memcpy(j.src[r], src[r], sizeof src[r]);
            cr_assert_eq(operate(&j), 0);
            for (size_t i = 0; i < 64; i++) {
                sum[i] += (double)j.dst[0][i];
                var[i] += pow((double)j.dst[0][i] - want[i], 2);
            }
        }
        for (size_t i = 0; i < 64; i++)
            cr_expect(fabs(sum[i] / REPEATS - want[i]) <= 5 * sqrt(var[i]) / REPEATS + 1e-6,
                      "%s element %zu: %g, not %g, seed %#x", unbiased[k], i, sum[i] / REPEATS,
                      want[i], SEED);
        job_free(&j);
    }
}

/* ---- PowerSGD ---- */

/* Sum of the ranks' matrices, of rank r: products of random factors, each weaker than the one
 * before. */
static void low_rank(struct job *j, int r, uint64_t *rng)
{
    for (int w = 0; w < j->nranks; w++)
        memset(j->src[w], 0, 4 * j->n);
    for (int k = 0; k < r; k++) {
        float p[200], q[200];

        samples(p, (size_t)j->rows, GAUSS, 1, rng);
        samples(q, (size_t)j->cols, GAUSS, pow(0.7, k), rng);
        for (int w = 0; w < j->nranks; w++)
            for (size_t i = 0; i < j->n; i++)
                j->src[w][i] +=
                    p[i / (size_t)j->cols] * q[i % (size_t)j->cols] * (float)(w + 1);
    }
}

static double total_of(const struct job *j, double *m)
{
    double square = 0;

    for (size_t i = 0; i < j->n; i++) {
        m[i] = 0;
        for (int r = 0; r < j->nranks; r++)
            m[i] += (double)j->src[r][i];
        square += m[i] * m[i];
    }
    return square;
}

static double error_of(const struct job *j, const double *m)
{
    double e = 0;

    for (size_t i = 0; i < j->n; i++)
        e += pow((double)j->dst[0][i] - m[i], 2);
    return e;
}

/* Acceptance: rank(M) <= r is met to 1e-5 after two calls, for every number of ranks; bytes are
 * those of the factors. */
Test(linear, powersgd_finds_a_matrix_of_its_rank)
{
    for (int classic = 0; classic < 2; classic++)
        for (int r = 1; r <= 8; r *= 2)
            for (int w = 1; w <= 8; w += w < 3 ? 1 : 5) {
                char spec[48];
                struct job j;
                double *m, square = 1, error = 1;
                size_t bytes = 0;
                uint64_t rng = SEED;

                snprintf(spec, sizeof spec, "powersgd:rank=%d,classic=%d", r, classic);
                j = job_new(spec, w, 90, 70);
                m = malloc(j.n * sizeof *m);
                no_feedback(&j);
                for (int call = 0; call < 2; call++) {
                    rng = SEED;
                    low_rank(&j, r, &rng);
                    square = total_of(&j, m);
                    cr_assert_eq(operate(&j), 0);
                    error = error_of(&j, m);
                    bytes += j.bytes;
                }
                cr_expect_lt(sqrt(error / square), 1e-5, "%s, %d ranks: %g, seed %#x", spec, w,
                             sqrt(error / square), SEED);
                cr_expect_eq(bytes, (size_t)(4 * r * (90 + 70) * (classic ? 2 : 1)), "%s: %zu",
                             spec, bytes);
                free(m);
                job_free(&j);
            }
}

/* The sum of squares that the best matrix of rank r leaves over: eigenvalues of M^T M by
 * Jacobi's rotations. */
static double best_rank(const double *m, size_t rows, size_t cols, size_t r)
{
    double *a = calloc(cols * cols, sizeof *a), left = 0;

    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++)
            for (size_t k = 0; k < cols; k++)
                a[j * cols + k] += m[i * cols + j] * m[i * cols + k];
    for (int sweep = 0; sweep < 12; sweep++)
        for (size_t p = 0; p < cols; p++)
            for (size_t q = p + 1; q < cols; q++) {
                double apq = a[p * cols + q],
                       theta = (a[q * cols + q] - a[p * cols + p]) / (2 * apq), t, c, s;

                if (fabs(apq) < 1e-300)
                    continue;
                t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1));
                c = 1 / sqrt(t * t + 1);
                s = t * c;
                for (size_t k = 0; k < cols; k++) {
                    double x = a[k * cols + p], y = a[k * cols + q];

                    a[k * cols + p] = c * x - s * y;
                    a[k * cols + q] = s * x + c * y;
                }
                for (size_t k = 0; k < cols; k++) {
                    double x = a[p * cols + k], y = a[q * cols + k];

                    a[p * cols + k] = c * x - s * y;
                    a[q * cols + k] = s * x + c * y;
                }
            }
    for (size_t i = 0; i < cols; i++) {
        size_t larger = 0;

        for (size_t k = 0; k < cols; k++)
            larger += a[k * cols + k] > a[i * cols + i];
        left += larger >= r ? a[i * cols + i] : 0;
    }
    free(a);
    return left;
}

/* Acceptance: within 5 % of the best after ten calls on one matrix. */
Test(linear, powersgd_comes_near_the_best)
{
    for (int classic = 0; classic < 2; classic++)
        for (int r = 1; r <= 4; r *= 2) {
            struct job j;
            double *m, best, error = 0;
            char spec[48];

            snprintf(spec, sizeof spec, "powersgd:rank=%d,classic=%d", r, classic);
            j = job_new(spec, 2, 60, 40);
            m = malloc(j.n * sizeof *m);
            no_feedback(&j);
            for (int call = 0; call < 10; call++) {
                uint64_t rng = SEED;

                low_rank(&j, 6, &rng);
                for (size_t i = 0; i < j.n; i++)
                    j.src[0][i] += (float)gauss(&rng);
                total_of(&j, m);
                cr_assert_eq(operate(&j), 0);
                error = error_of(&j, m);
            }
            best = best_rank(m, 60, 40, (size_t)r);
            cr_expect(sqrt(error) < 1.05 * sqrt(best) && error > 0.999 * best,
                      "%s: %g, best %g, seed %#x", spec, sqrt(error), sqrt(best), SEED);
            free(m);
            job_free(&j);
        }
}

Test(linear, sketch_finds_the_large_elements)
{
    struct job j = job_new("sketch:delta=0.004", 4, 100, 1000);
    size_t hits = 0;
    uint64_t rng = SEED;

    for (int r = 0; r < 4; r++) {
        samples(j.src[r], j.n, GAUSS, 0.01, &rng);
        for (size_t i = 0; i < 100; i++)
            j.src[r][i * 997] += i % 2 ? 1 : -1;
    }
    cr_assert_eq(operate(&j), 0);
    for (size_t i = 0; i < 100; i++)
        hits += fabsf(j.dst[0][i * 997]) > 3;
    cr_expect_geq(hits, 95, "%zu, seed %#x", hits, SEED);
    job_free(&j);
}
