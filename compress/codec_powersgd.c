/* SPDX-License-Identifier: BSD-3-Clause */
/* Low rank (PowerSGD, NeurIPS 2019): the tensor is a matrix M, rows x cols, and what travels are factors of rank r, which
 * are summed. Each rank's M includes its residual.
 *
 * One-sided (epfml's newer form): with B orthonormal, A = M B is summed and M is taken as A B^T; A, made orthonormal, is
 * the other side's B in the next operation. One stage of 4 r rows or 4 r cols bytes.
 * classic=1: P = M Q is summed and made orthonormal, Q = M^T P is summed, M is taken as P Q^T. Two stages.
 * Both start warm from the operation before. A matrix that is too small to gain is summed as it is.
 *
 * Factors are equal on all ranks, so everything here that works on sums is plain C with a fixed order of additions. */
#include <math.h>

#include "compress/codecs.h"
#include "compress/fields.h"
#include "compress/kernels/code.h"

enum { RANK, CLASSIC };

#define MAX_RANK 32
#define TILE     256

struct keep {
    uint32_t made, side; /* side 0: columns' factor is B */
    float factor[];      /* cols x r, then rows x r */
};

static size_t rank_of(const struct bny_codec *c, int64_t rows, int64_t cols)
{
    size_t r = (size_t)c->param[RANK], least = (size_t)(rows < cols ? rows : cols);

    return r < least ? r : least;
}

static int is_dense(const struct bny_codec *c, int64_t rows, int64_t cols)
{
    return (size_t)(rows + cols) * rank_of(c, rows, cols) >= (size_t)(rows * cols);
}

static size_t factor_bytes(const struct bny_codec *c, int64_t rows, int64_t cols)
{
    return (size_t)(rows + cols) * rank_of(c, rows, cols) * 4;
}

static size_t powersgd_keep(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return is_dense(c, rows, cols) ? 0 : sizeof(struct keep) + factor_bytes(c, rows, cols);
}

/* The rank's own factor; and a place for keep where there is no state. */
static size_t powersgd_work(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return is_dense(c, rows, cols) ? 0 : 2 * factor_bytes(c, rows, cols) + sizeof(struct keep);
}

static size_t powersgd_code(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return is_dense(c, rows, cols) ? 4 * n : factor_bytes(c, rows, cols);
}

static int powersgd_nstages(const struct bny_codec *c)
{
    return c->param[CLASSIC] != 0 ? 2 : 1;
}

/* ---- small matrices, element (i, k) of an m x r factor at f[i * r + k] ---- */

static double dot(const float *f, size_t m, size_t r, size_t a, size_t b)
{
    double sum = 0;

    for (size_t i = 0; i < m; i++)
        sum += (double)f[i * r + a] * (double)f[i * r + b];
    return sum;
}

static void draw(float *f, size_t m, size_t r, size_t k, struct bny_rand key)
{
    for (size_t i = 0; i < m; i++)
        f[i * r + k] = (float)bny_rand_at(key, (uint32_t)(i * r + k)) * 0x1p-31f - 1;
}

/* Column k orthogonal to those before, twice, and of length 1; 0: nothing was left of it. */
static int straighten(float *f, size_t m, size_t r, size_t k)
{
    double before = sqrt(dot(f, m, r, k, k)), after;

    if (!(before > 1e-30))
        return 0;
    for (int pass = 0; pass < 2; pass++) {
        double inverse;

        for (size_t j = 0; j < k; j++) {
            double along = dot(f, m, r, j, k);

            for (size_t i = 0; i < m; i++)
                f[i * r + k] -= (float)along * f[i * r + j];
        }
        after = sqrt(dot(f, m, r, k, k));
        if (!(after > 1e-6 * before))
            return 0;
        inverse = 1 / after;
        for (size_t i = 0; i < m; i++)
            f[i * r + k] = (float)(f[i * r + k] * inverse);
        before = 1;
    }
    return 1;
}

/* Modified Gram-Schmidt, twice. A column that vanishes is drawn anew, or it would stay zero for ever. */
static void orthonormalise(const struct bny_linear *l, float *f, size_t m, size_t r)
{
    for (size_t k = 0; k < r; k++)
        for (uint32_t tries = 0; !straighten(f, m, r, k) && tries < 4; tries++)
            draw(f, m, r, k, bny_rand_key(l->seed, l->step, tries + 1));
}

/* ---- products with V = src + ef_scale * ef ---- */

/* Columns at..at + n of row i. */
static void row_part(const struct bny_linear *l, float *v, int64_t i, size_t at, size_t n)
{
    size_t from = (size_t)(i * l->cols) + at;

    bny_code_kernels_for(l->cpu_flags)->compensate(v, l->src + from, l->ef ? l->ef + from : NULL, l->ef_scale, n);
}

#define INLINE static inline __attribute__((always_inline))

/* out (rows x r) = V b, b: cols x r. */
INLINE void right_r(const struct bny_linear *l, float *out, const float *b, size_t r)
{
    size_t cols = (size_t)l->cols;
    float v[TILE];

    for (int64_t i = 0; i < l->rows; i++) {
        float sum[MAX_RANK] = { 0 };

        for (size_t at = 0; at < cols; at += TILE) {
            size_t n = cols - at < TILE ? cols - at : TILE;
            float part[MAX_RANK] = { 0 };

            row_part(l, v, i, at, n);
            for (size_t j = 0; j < n; j++)
                for (size_t k = 0; k < r; k++)
                    part[k] += v[j] * b[(at + j) * r + k];
            for (size_t k = 0; k < r; k++)
                sum[k] += part[k];
        }
        memcpy(out + (size_t)i * r, sum, 4 * r);
    }
}

/* out (cols x r) = V^T b, b: rows x r. */
INLINE void left_r(const struct bny_linear *l, float *out, const float *b, size_t r)
{
    size_t cols = (size_t)l->cols;
    float v[TILE];

    memset(out, 0, 4 * cols * r);
    for (int64_t i = 0; i < l->rows; i++)
        for (size_t at = 0; at < cols; at += TILE) {
            size_t n = cols - at < TILE ? cols - at : TILE;

            row_part(l, v, i, at, n);
            for (size_t j = 0; j < n; j++)
                for (size_t k = 0; k < r; k++)
                    out[(at + j) * r + k] += v[j] * b[(size_t)i * r + k];
        }
}

/* (p q^T)(i, at..at + n), p: rows x r, q: cols x r. */
INLINE void outer_r(float *out, const float *p, const float *q, int64_t i, size_t at, size_t n, size_t r)
{
    for (size_t j = 0; j < n; j++) {
        float sum = 0;

        for (size_t k = 0; k < r; k++)
            sum += p[(size_t)i * r + k] * q[(at + j) * r + k];
        out[j] = sum;
    }
}

/* The usual ranks get loops of their own. */
#define BY_RANK(r, call)                   \
    do {                                   \
        if ((r) == 1)                      \
            call(1);                       \
        else if ((r) == 2)                 \
            call(2);                       \
        else if ((r) == 4)                 \
            call(4);                       \
        else if ((r) == 8)                 \
            call(8);                       \
        else                               \
            call(r);                       \
    } while (0)

static void right(const struct bny_linear *l, float *out, const float *b, size_t r)
{
#define CALL(R) right_r(l, out, b, R)
    BY_RANK(r, CALL);
#undef CALL
}

static void left(const struct bny_linear *l, float *out, const float *b, size_t r)
{
#define CALL(R) left_r(l, out, b, R)
    BY_RANK(r, CALL);
#undef CALL
}

static void outer(float *out, const float *p, const float *q, int64_t i, size_t at, size_t n, size_t r)
{
#define CALL(R) outer_r(out, p, q, i, at, n, R)
    BY_RANK(r, CALL);
#undef CALL
}

/* ---- the operation ---- */

static struct keep *keep_of(const struct bny_linear *l)
{
    return l->keep ? l->keep : (struct keep *)((char *)l->work + factor_bytes(l->codec, l->rows, l->cols));
}

static void first_factors(const struct bny_linear *l, struct keep *k, size_t r)
{
    if (l->keep && k->made)
        return;
    k->made = 1;
    k->side = 0;
    for (size_t i = 0; i < r; i++)
        draw(k->factor, (size_t)l->cols, r, i, bny_rand_key(l->seed, l->step, 0));
}

static int powersgd_contribute(struct bny_linear *l, int stage, struct bny_stage *s)
{
    size_t r = rank_of(l->codec, l->rows, l->cols), count;
    int classic = l->codec->param[CLASSIC] != 0;
    struct keep *k = keep_of(l);
    float *rows_factor = k->factor + (size_t)l->cols * r;

    if (is_dense(l->codec, l->rows, l->cols)) {
        for (size_t i = 0; stage == 0 && i < l->n; i++)
            ((float *)l->code)[i] = bny_linear_value(l, i);
        *s = (struct bny_stage){ BANYAN_F32, BANYAN_SUM, stage ? 0 : l->n };
        return 0;
    }
    count = (size_t)l->rows * r;
    if (stage == 1) { /* code: the sum of P */
        memcpy(rows_factor, l->code, 4 * count);
        orthonormalise(l, rows_factor, (size_t)l->rows, r);
        left(l, l->work, rows_factor, r);
        count = (size_t)l->cols * r;
    } else {
        first_factors(l, k, r);
        if (!classic && k->side) {
            orthonormalise(l, rows_factor, (size_t)l->rows, r);
            left(l, l->work, rows_factor, r);
            count = (size_t)l->cols * r;
        } else {
            if (!classic)
                orthonormalise(l, k->factor, (size_t)l->cols, r);
            right(l, l->work, k->factor, r);
        }
    }
    memcpy(l->code, l->work, 4 * count);
    bny_linear_poison(l);
    *s = (struct bny_stage){ BANYAN_F32, BANYAN_SUM, count };
    return 0;
}

/* ef = V - own, dst = scale * sum, from factors. */
static void expand(struct bny_linear *l, const float *p, const float *q, const float *own_p, const float *own_q, size_t r)
{
    size_t cols = (size_t)l->cols;
    float v[TILE], m[TILE];

    for (int64_t i = 0; i < l->rows; i++)
        for (size_t at = 0; at < cols; at += TILE) {
            size_t n = cols - at < TILE ? cols - at : TILE, from = (size_t)i * cols + at;

            if (l->ef) {
                row_part(l, v, i, at, n);
                outer(m, own_p, own_q, i, at, n, r);
                for (size_t j = 0; j < n; j++)
                    l->ef[from + j] = v[j] - m[j];
            }
            outer(m, p, q, i, at, n, r);
            for (size_t j = 0; j < n; j++)
                l->dst[from + j] = m[j] * l->scale;
        }
}

static int powersgd_finish(struct bny_linear *l)
{
    size_t r = rank_of(l->codec, l->rows, l->cols), sum_rows;
    struct keep *k = keep_of(l);
    float *cols_factor = k->factor, *rows_factor = k->factor + (size_t)l->cols * r;
    int to_cols = l->codec->param[CLASSIC] != 0, dense = is_dense(l->codec, l->rows, l->cols), rc;

    if (!dense && !to_cols)
        to_cols = (int)k->side; /* the sum is the columns' factor */
    sum_rows = (size_t)(to_cols ? l->cols : l->rows);
    if ((rc = bny_linear_poisoned(l, l->code, dense ? 4 * l->n : 4 * sum_rows * r)) != 0) {
        if (!dense)
            k->made = 0;
        return rc;
    }
    if (dense) {
        for (size_t i = 0; i < l->n; i++) {
            l->dst[i] = ((float *)l->code)[i] * l->scale;
            if (l->ef)
                l->ef[i] = 0;
        }
        return 0;
    }
    if (to_cols)
        expand(l, rows_factor, l->code, rows_factor, l->work, r);
    else
        expand(l, l->code, cols_factor, l->work, cols_factor, r);
    memcpy(to_cols ? cols_factor : rows_factor, l->code, 4 * sum_rows * r);
    k->side = !to_cols;
    if (l->codec->param[CLASSIC] != 0)
        k->side = 0;
    return 0;
}

static const struct bny_linear_ops powersgd_linear = {
    .nstages = powersgd_nstages,
    .keep_bytes = powersgd_keep,
    .work_bytes = powersgd_work,
    .code_bytes = powersgd_code,
    .contribute = powersgd_contribute,
    .finish = powersgd_finish,
};

const struct bny_codec_ops bny_codec_powersgd = {
    .name = "powersgd",
    .family = BNY_CODEC_LINEAR,
    .flags = BNY_CODEC_FEEDBACK,
    .doc = "low-rank factors with a warm start (PowerSGD, NeurIPS 2019)",
    .params = {
        [RANK] = { "rank", 4, 1, MAX_RANK, 1, "of the factors" },
        [CLASSIC] = { "classic", 0, 0, 1, 1, "two stages an operation instead of one side at a time" },
    },
    .linear = &powersgd_linear,
};
