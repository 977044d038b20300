/* SPDX-License-Identifier: BSD-3-Clause */
/* Count sketch with top-k recovery (SketchedSGD, NeurIPS 2019). Ranks sum small tables in which each element has a
 * place, with a random sign, in each of a few rows; the median of its places estimates an element of the sum. Then the
 * exact values of the largest estimates are summed. Places are hashed by blocks of 32 elements, in an order within the
 * block that is hashed too: one hash a block and row.
 *
 * With k elements much larger than the rest and c cells a row, an element is taken for one of them where most of its places
 * collide with theirs: about (k / c)^((rows + 1) / 2). So ask for several times what matters.
 *
 * Stages: SUM of the f32 table; SUM of f32 values of the elements found. The rest waits in the residual. */
#include <math.h>

#include "compress/codecs.h"
#include "compress/fields.h"
#include "compress/kernels/code.h"
#include "compress/sparse.h"

enum { DELTA, RATIO, ROWS };

#define BLOCK    32
#define MAX_ROWS 9

static size_t found(const struct bny_codec *c, size_t n)
{
    size_t k = (size_t)(c->param[DELTA] * (double)n + 0.5);

    return n && !k ? 1 : k;
}

/* Blocks of a row of the table. */
static size_t row_blocks(const struct bny_codec *c, size_t n)
{
    size_t b = (size_t)(c->param[RATIO] * (double)n / c->param[ROWS] / BLOCK + 0.5);

    return b ? b : 1;
}

static size_t table_count(const struct bny_codec *c, size_t n)
{
    return n ? row_blocks(c, n) * BLOCK * (size_t)c->param[ROWS] : 0;
}

static int sketch_nstages(const struct bny_codec *c)
{
    return 2;
}

/* Estimates; places of the elements found. */
static size_t sketch_work(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return 4 * n + 4 * found(c, n);
}

static size_t sketch_code(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    size_t table = table_count(c, n), k = found(c, n);

    return 4 * (table > k ? table : k);
}

/* Where block b of the tensor lies in a row: its place, the order within, and signs. */
struct spot {
    size_t at;
    uint32_t order, signs;
};

static struct spot spot_of(const struct bny_linear *l, uint32_t row, size_t block, size_t blocks)
{
    struct bny_rand key = bny_rand_key(l->seed, l->step, row);
    uint32_t h = bny_rand_at(key, (uint32_t)block * 2), signs = bny_rand_at(key, (uint32_t)block * 2 + 1);
    size_t at = (size_t)((uint64_t)h * blocks >> 32) * BLOCK;

    return (struct spot){ at + row * blocks * BLOCK, signs % BLOCK, (signs ^ h) * 0x9e3779b1u };
}

static void fill(const struct bny_linear *l, float *table)
{
    uint32_t rows = (uint32_t)l->codec->param[ROWS];
    size_t blocks = row_blocks(l->codec, l->n);

    memset(table, 0, 4 * table_count(l->codec, l->n));
    for (size_t b = 0; b * BLOCK < l->n; b++) {
        size_t m = l->n - b * BLOCK < BLOCK ? l->n - b * BLOCK : BLOCK;
        float v[BLOCK];

        for (size_t i = 0; i < m; i++)
            v[i] = bny_linear_value(l, b * BLOCK + i);
        for (uint32_t row = 0; row < rows; row++) {
            struct spot s = spot_of(l, row, b, blocks);

            for (size_t i = 0; i < m; i++)
                table[s.at + (i ^ s.order)] += s.signs >> i & 1 ? -v[i] : v[i];
        }
    }
}

static float median(float *x, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        for (uint32_t j = i; j > 0 && x[j] < x[j - 1]; j--) {
            float t = x[j];

            x[j] = x[j - 1];
            x[j - 1] = t;
        }
    return n % 2 ? x[n / 2] : 0.5f * (x[n / 2 - 1] + x[n / 2]);
}

static void estimate(const struct bny_linear *l, float *out, const float *table)
{
    uint32_t rows = (uint32_t)l->codec->param[ROWS];
    size_t blocks = row_blocks(l->codec, l->n);
    struct spot s[MAX_ROWS];

    for (size_t b = 0; b * BLOCK < l->n; b++) {
        size_t m = l->n - b * BLOCK < BLOCK ? l->n - b * BLOCK : BLOCK;

        for (uint32_t row = 0; row < rows; row++)
            s[row] = spot_of(l, row, b, blocks);
        for (size_t i = 0; i < m; i++) {
            float x[MAX_ROWS] = { 0 };

            for (uint32_t row = 0; row < rows; row++) {
                float cell = table[s[row].at + (i ^ s[row].order)];

                x[row] = s[row].signs >> i & 1 ? -cell : cell;
            }
            out[b * BLOCK + i] = median(x, rows);
        }
    }
}

/* The k largest estimates, of equals the first. */
static void choose(uint32_t *place, const float *estimates, size_t n, size_t k)
{
    const struct bny_enc plain = { .ef_scale = 1 };
    uint32_t least = bny_kth_largest(&plain, estimates, n, k), bits;
    size_t ties = k, count = 0;

    for (size_t i = 0; i < n; i++) {
        memcpy(&bits, &estimates[i], 4);
        ties -= (bits & 0x7fffffff) > least;
    }
    for (size_t i = 0; i < n; i++) {
        memcpy(&bits, &estimates[i], 4);
        bits &= 0x7fffffff;
        if (bits > least || (bits == least && ties > 0)) {
            ties -= bits == least;
            place[count++] = (uint32_t)i;
        }
    }
}

static int sketch_contribute(struct bny_linear *l, int stage, struct bny_stage *s)
{
    size_t table = table_count(l->codec, l->n), k = found(l->codec, l->n);
    float *code = l->code, *estimates = l->work;
    uint32_t *place = (uint32_t *)(void *)(estimates + l->n);
    int rc;

    if (l->n == 0) {
        *s = (struct bny_stage){ BANYAN_F32, BANYAN_SUM, 0 };
        return 0;
    }
    if (stage == 0) {
        fill(l, code);
        bny_linear_poison(l);
        *s = (struct bny_stage){ BANYAN_F32, BANYAN_SUM, table };
        return 0;
    }
    if ((rc = bny_linear_poisoned(l, code, 4 * table)) != 0)
        return rc;
    estimate(l, estimates, code);
    choose(place, estimates, l->n, k);
    for (size_t j = 0; j < k; j++)
        code[j] = bny_linear_value(l, place[j]);
    *s = (struct bny_stage){ BANYAN_F32, BANYAN_SUM, k };
    return 0;
}

static int sketch_finish(struct bny_linear *l)
{
    const uint32_t *place = (const uint32_t *)(const void *)((const float *)l->work + l->n);
    size_t k = found(l->codec, l->n);
    const float *code = l->code;
    int rc = bny_linear_poisoned(l, code, 4 * k);

    if (rc)
        return rc;
    for (size_t i = 0; l->ef && i < l->n; i++)
        l->ef[i] = bny_linear_value(l, i);
    for (size_t j = 0; l->ef && j < k; j++)
        l->ef[place[j]] = 0;
    if (l->n)
        memset(l->dst, 0, 4 * l->n);
    for (size_t j = 0; j < k; j++)
        l->dst[place[j]] = code[j] * l->scale;
    return 0;
}

static const struct bny_linear_ops sketch_linear = {
    .nstages = sketch_nstages,
    .keep_bytes = bny_linear_no_bytes,
    .work_bytes = sketch_work,
    .code_bytes = sketch_code,
    .contribute = sketch_contribute,
    .finish = sketch_finish,
};

const struct bny_codec_ops bny_codec_sketch = {
    .name = "sketch",
    .family = BNY_CODEC_LINEAR,
    .flags = BNY_CODEC_FEEDBACK,
    .doc = "count sketch with recovery of the largest elements (SketchedSGD, NeurIPS 2019)",
    .params = {
        [DELTA] = { "delta", 0.001, 1e-6, 0.5, 0, "part of the elements that is recovered" },
        [RATIO] = { "ratio", 0.1, 1e-5, 1, 0, "cells of the table for an element" },
        [ROWS] = { "rows", 5, 1, MAX_ROWS, 1, "of the table" },
    },
    .linear = &sketch_linear,
};
