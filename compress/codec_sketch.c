/* SPDX-License-Identifier: BSD-3-Clause */
/* Count sketch with top-k recovery (SketchedSGD, NeurIPS 2019). Ranks sum small tables in which
 * each element has a place, with a random sign, in each of a few rows; the median of its places
 * estimates an element of the sum. Then the exact values of the largest estimates are summed.
 * Places are hashed by contiguous blocks of 32 elements: one hash and a few vectors per block
 * and row.
 *
 * With k elements much larger than the rest and c cells per row, an element is taken for one of
 * them if most of its places collide with theirs: with probability about (k / c)^((rows + 1) /
 * 2). So request several times as many as matter. A tensor shorter than its table is summed
 * uncompressed.
 *
 * Wire: SUM of the f32 table, row after row; SUM of f32 values of the elements found, in order
 * of index. Found elements are exact, the residual keeps the rest. */
#include <math.h>

#include "compress/codecs.h"
#include "compress/fields.h"
#include "compress/kernels/code.h"
#include "compress/sparse.h"

enum { DELTA, RATIO, ROWS };

#define LEAST_CELLS (4 * BNY_SKETCH_BLOCK)
#define SAMPLE      16384 /* estimates sampled to predict the largest */

static size_t found(const struct bny_codec *c, size_t n)
{
    size_t k = (size_t)(c->param[DELTA] * (double)n + 0.5);

    return n && !k ? 1 : k;
}

static size_t row_cells(const struct bny_codec *c, size_t n)
{
    size_t cells = (size_t)(c->param[RATIO] * (double)n / c->param[ROWS] + 0.5);

    return cells < LEAST_CELLS ? LEAST_CELLS : cells;
}

static size_t table_count(const struct bny_codec *c, size_t n)
{
    return row_cells(c, n) * (size_t)c->param[ROWS];
}

static int is_dense(const struct bny_codec *c, size_t n)
{
    return table_count(c, n) + found(c, n) >= n;
}

static int sketch_is_dense(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return is_dense(c, n);
}

static int sketch_nstages(const struct bny_codec *c)
{
    return 2;
}

struct room { /* memory of an operation */
    float *estimates;
    uint32_t *place; /* of the elements found */
    uint32_t *index; /* of candidates */
    float *value;
    size_t cap; /* candidates */
};

/* Elements that kernels may write past an array. */
#define SLACK 16

static size_t candidate_cap(const struct bny_codec *c, size_t n)
{
    return 4 * found(c, n) + n / 512 + SAMPLE;
}

static struct room room_of(const struct bny_linear *l)
{
    size_t k = found(l->codec, l->n), cap = candidate_cap(l->codec, l->n);
    float *work = l->work;
    uint32_t *places = (uint32_t *)(void *)(work + l->n);

    return (struct room){ work, places, places + k, (float *)(void *)(places + k + cap + SLACK),
                          cap };
}

static size_t sketch_work(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return is_dense(c, n) ? 0 : 4 * (n + found(c, n) + 2 * (candidate_cap(c, n) + SLACK));
}

static size_t sketch_code(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    size_t table = table_count(c, n), k = found(c, n);

    return is_dense(c, n) ? 4 * n : 4 * (table > k ? table : k);
}

static struct bny_sketch shape_of(const struct bny_linear *l)
{
    struct bny_sketch k = { .rows = (uint32_t)l->codec->param[ROWS],
                            .cells = row_cells(l->codec, l->n) };

    for (uint32_t row = 0; row < k.rows; row++)
        k.key[row] = bny_rand_key(l->seed, l->step, row);
    return k;
}

static float float_of(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, 4);
    return x;
}

/* Elements that may be among the k largest, including all that are: those above a value that,
 * by a sample, at least 2 k exceed. 0: try all. */
static size_t candidates(const struct bny_linear *l, const struct room *w, size_t k)
{
    const struct bny_enc plain = { .ef_scale = 1 };
    size_t stride = l->n / SAMPLE + 1, m = l->n / stride, rank = 2 * m * k / l->n + 8, kept;
    struct bny_selection sel;
    float eta;

    if (rank >= m || m > w->cap)
        return 0;
    for (size_t i = 0; i < m; i++)
        w->value[i] = w->estimates[i * stride];
    eta = float_of(bny_kth_largest(&plain, w->value, m, rank));
    kept = bny_code_kernels_for(l->cpu_flags)
               ->select32(w->index, w->value, w->cap, w->estimates, NULL, 1, l->n, eta, &sel);
    return sel.over >= k && sel.over <= w->cap ? kept : 0;
}

/* Places of the k largest estimates, the first of equals. The same on all ranks. */
static void sketch_choose(const struct bny_linear *l, const struct room *w, size_t k)
{
    const struct bny_enc plain = { .ef_scale = 1 };
    size_t some = candidates(l, w, k), n = some ? some : l->n, ties = k, count = 0;
    const float *from = some ? w->value : w->estimates;
    float least = float_of(bny_kth_largest(&plain, from, n, k));

    for (size_t i = 0; i < n; i++)
        ties -= fabsf(from[i]) > least;
    for (size_t i = 0; i < n && count < k; i++) {
        float x = fabsf(from[i]);

        if (x > least || (x == least && ties > 0)) {
            ties -= x == least;
            w->place[count++] = some ? w->index[i] : (uint32_t)i;
        }
    }
}

/* A value that is not finite makes its cells, and the sum of the tables, not finite. */
static int sketch_contribute(struct bny_linear *l, int stage, struct bny_stage *s)
{
    const struct bny_linear_kernels *kernels = bny_linear_kernels_for(l->cpu_flags);
    size_t table = table_count(l->codec, l->n), k = found(l->codec, l->n);
    struct bny_values v = bny_linear_from(l, 0);
    struct bny_sketch shape = shape_of(l);
    struct room w = room_of(l);
    float *code = l->code;
    int rc;

    if (is_dense(l->codec, l->n)) {
        bny_linear_dense(l, stage, s);
        return 0;
    }
    if (stage == 0) {
        memset(code, 0, 4 * table);
        kernels->sketch(code, &shape, &v, l->n);
        *s = (struct bny_stage){ BANYAN_F32, BANYAN_SUM, table };
        return 0;
    }
    if ((rc = bny_linear_poisoned(l, code, 4 * table)) != 0)
        return rc;
    kernels->estimate(w.estimates, code, &shape, l->n);
    sketch_choose(l, &w, k);
    for (size_t j = 0; j < k; j++)
        code[j] = bny_linear_value(l, w.place[j]);
    *s = (struct bny_stage){ BANYAN_F32, BANYAN_SUM, k };
    return 0;
}

static int sketch_finish(struct bny_linear *l)
{
    const uint32_t *place = room_of(l).place;
    size_t k = found(l->codec, l->n);
    const float *code = l->code;
    int rc;

    if (is_dense(l->codec, l->n))
        return bny_linear_dense_finish(l);
    if ((rc = bny_linear_poisoned(l, code, 4 * k)) != 0)
        return rc;
    if (l->ef)
        bny_code_kernels_for(l->cpu_flags)->compensate(l->ef, l->src, l->ef, l->ef_scale, l->n);
    for (size_t j = 0; l->ef && j < k; j++)
        l->ef[place[j]] = 0;
    memset(l->dst, 0, 4 * l->n);
    for (size_t j = 0; j < k; j++)
        bny_linear_result(l, place[j], code[j]);
    return 0;
}

static const struct bny_linear_ops sketch_linear = {
    .nstages = sketch_nstages,
    .keep_bytes = bny_linear_no_bytes,
    .work_bytes = sketch_work,
    .code_bytes = sketch_code,
    .is_dense = sketch_is_dense,
    .contribute = sketch_contribute,
    .finish = sketch_finish,
};

const struct bny_codec_ops bny_codec_sketch = {
    .name = "sketch",
    .family = BNY_CODEC_LINEAR,
    .flags = BNY_CODEC_FEEDBACK,
    .doc = "count sketch with recovery of the largest elements (SketchedSGD, NeurIPS 2019)",
    .encode_ns = 3,
    .decode_ns = 4,
    .params = {
        [DELTA] = { "delta", 0.001, 1e-6, 0.5, 0, "part of the elements that is recovered" },
        [RATIO] = { "ratio", 0.1, 1e-5, 1, 0, "cells of the table for an element" },
        [ROWS] = { "rows", 5, 1, BNY_SKETCH_ROWS, 1, "of the table" },
    },
    .linear = &sketch_linear,
};
