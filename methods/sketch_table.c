/* SPDX-License-Identifier: BSD-3-Clause */
/* Count sketches: adding, estimating, clearing. */
#include "methods/sketch_table.h"

#include <string.h>

#include "base/rng.h"

/* Of a row and a block: where its cells begin, and the signs of its elements, a bit each. */
struct place {
    size_t col;
    uint32_t minus;
};

static struct place sketch_table_place_of(const struct bny_sketch_shape *s, int row,
                                          size_t block)
{
    uint64_t state = s->seed * 0x9e3779b97f4a7c15u + (uint64_t)(row + 1) * 0xbf58476d1ce4e5b9u;

    bny_rng_next(&state);
    state += (uint64_t)block * 0x94d049bb133111ebu;
    return (struct place){ bny_rng_below(&state, s->cols - BNY_SKETCH_BLOCK + 1),
                           (uint32_t)bny_rng_next(&state) };
}

void bny_sketch_add(const struct bny_sketch_shape *s, float *table, const float *x, size_t at,
                    size_t n)
{
    for (size_t done = 0; done < n;) {
        size_t block = (at + done) / BNY_SKETCH_BLOCK, in = (at + done) % BNY_SKETCH_BLOCK;
        size_t len = BNY_SKETCH_BLOCK - in < n - done ? BNY_SKETCH_BLOCK - in : n - done;

        for (int row = 0; row < s->rows; row++) {
            struct place p = sketch_table_place_of(s, row, block);
            float *cell = table + (size_t)row * s->cols + p.col + in;

            for (size_t i = 0; i < len; i++)
                cell[i] += p.minus >> (in + i) & 1 ? -x[done + i] : x[done + i];
        }
        done += len;
    }
}

static float median(float *v, int n)
{
    for (int i = 1; i < n; i++) { /* insertion: n is at most BNY_SKETCH_ROWS */
        float x = v[i];
        int k = i;

        for (; k > 0 && v[k - 1] > x; k--)
            v[k] = v[k - 1];
        v[k] = x;
    }
    return v[n / 2];
}

void bny_sketch_estimate(const struct bny_sketch_shape *s, const float *table, float *out,
                         size_t n)
{
    for (size_t at = 0; at < n; at += BNY_SKETCH_BLOCK) {
        size_t len = n - at < BNY_SKETCH_BLOCK ? n - at : BNY_SKETCH_BLOCK;
        float said[BNY_SKETCH_BLOCK][BNY_SKETCH_ROWS];

        for (int row = 0; row < s->rows; row++) {
            struct place p = sketch_table_place_of(s, row, at / BNY_SKETCH_BLOCK);
            const float *cell = table + (size_t)row * s->cols + p.col;

            for (size_t i = 0; i < len; i++)
                said[i][row] = p.minus >> i & 1 ? -cell[i] : cell[i];
        }
        for (size_t i = 0; i < len; i++)
            out[at + i] = median(said[i], s->rows);
    }
}

void bny_sketch_clear(const struct bny_sketch_shape *s, float *table, size_t element)
{
    for (int row = 0; row < s->rows; row++) {
        struct place p = sketch_table_place_of(s, row, element / BNY_SKETCH_BLOCK);

        table[(size_t)row * s->cols + p.col + element % BNY_SKETCH_BLOCK] = 0;
    }
}
