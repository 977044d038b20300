/* SPDX-License-Identifier: BSD-3-Clause */
/* Low rank (PowerSGD, NeurIPS 2019): the tensor is a matrix M, rows x cols, and ranks sum
 * factors of rank r. Each rank's M includes its residual.
 *
 * One-sided (epfml's newer form): with B orthonormal, A = M B is summed and M becomes A B^T; A,
 * made orthonormal, is the other side's B in the next operation. One stage of 4 r rows or 4 r
 * cols bytes. classic=1: P = M Q is summed and made orthonormal, Q = M^T P is summed, M becomes
 * P Q^T. Two stages. Both start warm from the operation before. A matrix that is too small to
 * gain is summed uncompressed.
 *
 * Wire: factors of f32, column after column, each contiguous: r * rows or r * cols of them per
 * stage. The error is the part outside any matrix of rank r; the residual keeps it. Factors are
 * equal on all ranks, so all computation on sums has a fixed order of additions. */
#include <math.h>

#include "compress/codecs.h"
#include "compress/fields.h"

enum { RANK, CLASSIC };

#define MAX_RANK 32

struct keep {
    uint32_t made, side; /* side 0: columns' factor is B */
    float factor[];      /* of the columns' side, cols x r; then of the rows' */
};

static size_t rank_of(const struct bny_codec *c, int64_t rows, int64_t cols)
{
    size_t r = (size_t)c->param[RANK], least = (size_t)(rows < cols ? rows : cols);

    return r < least ? r : least;
}

static int powersgd_is_dense(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return (size_t)(rows + cols) * rank_of(c, rows, cols) >= (size_t)(rows * cols);
}

static size_t factor_bytes(const struct bny_codec *c, int64_t rows, int64_t cols)
{
    return (size_t)(rows + cols) * rank_of(c, rows, cols) * 4;
}

static size_t powersgd_keep(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return powersgd_is_dense(c, 0, rows, cols)
               ? 0
               : sizeof(struct keep) + factor_bytes(c, rows, cols);
}

/* The rank's own factor; and space for keep if there is no state. */
static size_t powersgd_work(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return powersgd_is_dense(c, 0, rows, cols)
               ? 0
               : 2 * factor_bytes(c, rows, cols) + sizeof(struct keep);
}

static size_t powersgd_code(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return powersgd_is_dense(c, 0, rows, cols) ? 4 * n : factor_bytes(c, rows, cols);
}

static int powersgd_nstages(const struct bny_codec *c)
{
    return c->param[CLASSIC] != 0 ? 2 : 1;
}

/* ---- factors: column k of one with m rows at f[k * m] ---- */

/* In 8 partial sums, which the processor adds in parallel; their order is fixed. */
static double dot(const float *a, const float *b, size_t m)
{
    double part[8] = { 0 };
    size_t i = 0;

    for (; i + 8 <= m; i += 8)
        for (size_t j = 0; j < 8; j++)
            part[j] += (double)a[i + j] * (double)b[i + j];
    for (; i < m; i++)
        part[0] += (double)a[i] * (double)b[i];
    return ((part[0] + part[4]) + (part[2] + part[6])) +
           ((part[1] + part[5]) + (part[3] + part[7]));
}

static void powersgd_draw(float *column, size_t m, size_t k, struct bny_rand key)
{
    for (size_t i = 0; i < m; i++)
        column[i] = (float)bny_rand_at(key, (uint32_t)(k * m + i)) * 0x1p-31f - 1;
}

/* Makes column k orthogonal to those before, twice, and of length 1; 0: nothing was left of
 * it. */
static int straighten(float *f, size_t m, size_t k)
{
    float *column = f + k * m;
    double before = sqrt(dot(column, column, m)), after;

    if (!(before > 1e-30))
        return 0;
    for (int pass = 0; pass < 2; pass++) {
        double inverse;

        for (size_t j = 0; j < k; j++) {
            float along = (float)dot(f + j * m, column, m);

            for (size_t i = 0; i < m; i++)
                column[i] -= along * f[j * m + i];
        }
        after = sqrt(dot(column, column, m));
        if (!(after > 1e-6 * before))
            return 0;
        inverse = 1 / after;
        for (size_t i = 0; i < m; i++)
            column[i] = (float)(column[i] * inverse);
        before = 1;
    }
    return 1;
}

/* Modified Gram-Schmidt, twice. A column that vanishes is redrawn, as it would stay zero for
 * ever. */
static void orthonormalise(const struct bny_linear *l, float *f, size_t m, size_t r)
{
    for (size_t k = 0; k < r; k++)
        for (uint32_t tries = 0; !straighten(f, m, k) && tries < 4; tries++)
            powersgd_draw(f + k * m, m, k, bny_rand_key(l->seed, l->step, tries + 1));
}

/* ---- the operation ---- */

static struct keep *keep_of(const struct bny_linear *l)
{
    return l->keep
               ? l->keep
               : (struct keep *)((char *)l->work + factor_bytes(l->codec, l->rows, l->cols));
}

static void first_factors(const struct bny_linear *l, struct keep *k, size_t r)
{
    if (l->keep && k->made)
        return;
    k->made = 1;
    k->side = 0;
    for (size_t i = 0; i < r; i++)
        powersgd_draw(k->factor + i * (size_t)l->cols, (size_t)l->cols, i,
                      bny_rand_key(l->seed, l->step, 0));
}

/* The factor of the rows' side (code: the sum of P, in the second stage), orthonormal, times
 * the matrix. */
static size_t times_rows(struct bny_linear *l, float *factor, size_t r)
{
    struct bny_values v = bny_linear_from(l, 0);
    size_t rows = (size_t)l->rows, cols = (size_t)l->cols;

    orthonormalise(l, factor, rows, r);
    bny_linear_kernels_for(l->cpu_flags)->left(l->work, factor, &v, rows, cols, r);
    return cols * r;
}

static size_t times_cols(struct bny_linear *l, float *factor, size_t r, int straight)
{
    struct bny_values v = bny_linear_from(l, 0);
    size_t rows = (size_t)l->rows, cols = (size_t)l->cols;

    if (straight)
        orthonormalise(l, factor, cols, r);
    bny_linear_kernels_for(l->cpu_flags)->right(l->work, factor, &v, rows, cols, r);
    return rows * r;
}

/* A value that is not finite makes the rank's factor, and the sum, not finite (0 times infinity
 * is NaN). */
static int powersgd_contribute(struct bny_linear *l, int stage, struct bny_stage *s)
{
    size_t r = rank_of(l->codec, l->rows, l->cols), count;
    int classic = l->codec->param[CLASSIC] != 0, rc;
    struct keep *k = keep_of(l);
    float *rows_factor;

    if (powersgd_is_dense(l->codec, l->n, l->rows, l->cols)) {
        bny_linear_dense(l, stage, s);
        return 0;
    }
    rows_factor = k->factor + (size_t)l->cols * r;
    if (stage == 1) {
        count = (size_t)l->rows * r;
        if ((rc = bny_linear_poisoned(l, l->code, 4 * count)) != 0) {
            k->made = 0;
            return rc;
        }
        memcpy(rows_factor, l->code, 4 * count);
        count = times_rows(l, rows_factor, r);
    } else {
        first_factors(l, k, r);
        count = !classic && k->side ? times_rows(l, rows_factor, r)
                                    : times_cols(l, k->factor, r, !classic);
    }
    memcpy(l->code, l->work, 4 * count);
    *s = (struct bny_stage){ BANYAN_F32, BANYAN_SUM, count };
    return 0;
}

static int powersgd_finish(struct bny_linear *l)
{
    size_t r = rank_of(l->codec, l->rows, l->cols), rows = (size_t)l->rows,
           cols = (size_t)l->cols, count;
    int classic = l->codec->param[CLASSIC] != 0, to_cols, rc;
    struct bny_values v = bny_linear_from(l, 0);
    struct bny_factors sum, own;
    struct keep *k = keep_of(l);
    float *rows_factor;

    if (powersgd_is_dense(l->codec, l->n, l->rows, l->cols))
        return bny_linear_dense_finish(l);
    rows_factor = k->factor + cols * r;
    to_cols = classic || k->side; /* the sum is the columns' factor */
    count = (to_cols ? cols : rows) * r;
    if ((rc = bny_linear_poisoned(l, l->code, 4 * count)) != 0) {
        k->made = 0;
        return rc;
    }
    sum = to_cols ? (struct bny_factors){ rows_factor, l->code }
                  : (struct bny_factors){ l->code, k->factor };
    own = to_cols ? (struct bny_factors){ rows_factor, l->work }
                  : (struct bny_factors){ l->work, k->factor };
    bny_linear_kernels_for(l->cpu_flags)
        ->expand(l->dst, l->ef, &v, &sum, &own, rows, cols, r, l->scale);
    memcpy(to_cols ? k->factor : rows_factor, l->code, 4 * count);
    k->side = !classic && !to_cols;
    return 0;
}

static const struct bny_linear_ops powersgd_linear = {
    .nstages = powersgd_nstages,
    .keep_bytes = powersgd_keep,
    .work_bytes = powersgd_work,
    .code_bytes = powersgd_code,
    .is_dense = powersgd_is_dense,
    .contribute = powersgd_contribute,
    .finish = powersgd_finish,
};

const struct bny_codec_ops bny_codec_powersgd = {
    .name = "powersgd",
    .family = BNY_CODEC_LINEAR,
    .flags = BNY_CODEC_FEEDBACK,
    .doc = "low-rank factors with a warm start (PowerSGD, NeurIPS 2019)",
    .recommended = 1,
    .encode_ns = 1.2,
    .decode_ns = 1.8,
    .params = {
        [RANK] = { "rank", 4, 1, MAX_RANK, 1, "of the factors" },
        [CLASSIC] = { "classic", 0, 0, 1, 1, "two stages an operation instead of "
"one side at a time" },
    },
    .linear = &powersgd_linear,
};
