/* SPDX-License-Identifier: BSD-3-Clause */
/* The loops of linear_kernels.h; included once by each linear_<isa>.c, which has defined LANES,
 * TABLE and TABLE_NAME. Products with tall factors go through the matrix once for 4 columns of
 * the factor: with so few, memory is what they wait for. */
#include "compress/kernels/linear_kernels.h"

#include "compress/kernels/code_base.h"

#define DOT_LANES 16
#define DOTS      (DOT_LANES / LANES)
#define COLUMNS   4 /* of a factor, at a time */
#define ROWS      8 /* of the matrix, at a time, in left() */

/* Calls fn with K columns, K known to the compiler, for all r of them; k is the first. */
#define FOR_COLUMNS(r, k, fn)                                                                  \
    do {                                                                                       \
        size_t k = 0;                                                                          \
                                                                                               \
        for (; k + 4 <= (r); k += 4)                                                           \
            fn(4);                                                                             \
        for (; k + 2 <= (r); k += 2)                                                           \
            fn(2);                                                                             \
        for (; k < (r); k++)                                                                   \
            fn(1);                                                                             \
    } while (0)

INLINE struct bny_values row_of(const struct bny_values *v, size_t at, int with_ef)
{
    return (struct bny_values){ v->src + at, with_ef ? v->ef + at : NULL, v->s };
}

/* ---- right ---- */

INLINE void dot_step(vf acc[COLUMNS][DOTS], const struct bny_values *v, const float *q,
                     size_t stride, size_t j, size_t columns)
{
    for (size_t d = 0; d < DOTS; d++) {
        vf x = vf_value(v->src, v->ef, vf_set1(v->s), j + d * LANES);

        for (size_t k = 0; k < columns; k++)
            acc[k][d] += x * vf_load(q + k * stride + j + d * LANES);
    }
}

INLINE float lanes_halved(const vf acc[DOTS])
{
    float lane[DOT_LANES];

    memcpy(lane, acc, sizeof lane);
    for (int half = DOT_LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            lane[j] += lane[j + half];
    return lane[0];
}

/* A row's dot products with some columns; out: one rows apart. */
INLINE void dots(float *out, size_t rows, const struct bny_values *v, const float *q,
                 size_t cols, size_t columns)
{
    vf acc[COLUMNS][DOTS] = { { { 0 } } };
    size_t j = 0;

    for (; j + DOT_LANES <= cols; j += DOT_LANES)
        dot_step(acc, v, q, cols, j, columns);
    if (j < cols) {
        float src[DOT_LANES] = { 0 }, ef[DOT_LANES] = { 0 }, tail[COLUMNS * DOT_LANES] = { 0 };
        struct bny_values rest = { src, v->ef ? ef : NULL, v->s };

        memcpy(src, v->src + j, 4 * (cols - j));
        if (v->ef)
            memcpy(ef, v->ef + j, 4 * (cols - j));
        for (size_t k = 0; k < columns; k++)
            memcpy(tail + k * DOT_LANES, q + k * cols + j, 4 * (cols - j));
        dot_step(acc, &rest, tail, DOT_LANES, 0, columns);
    }
    for (size_t k = 0; k < columns; k++)
        ((f32_at *)out)[k * rows] = lanes_halved(acc[k]);
}

INLINE void right_of(float *p, const float *q, const struct bny_values *v, size_t rows,
                     size_t cols, size_t r, int with_ef)
{
    for (size_t i = 0; i < rows; i++) {
        struct bny_values row = row_of(v, i * cols, with_ef);
#define DOTS_OF(K) dots(p + k * rows + i, rows, &row, q + k * cols, cols, K)
        FOR_COLUMNS(r, k, DOTS_OF);
#undef DOTS_OF
    }
}

static void right(float *p, const float *q, const struct bny_values *v, size_t rows,
                  size_t cols, size_t r)
{
    if (v->ef)
        right_of(p, q, v, rows, cols, r, 1);
    else
        right_of(p, q, v, rows, cols, r, 0);
}

/* ---- left ---- */

/* Some rows times their elements of some columns of p, added to q from column j to the end. */
INLINE void rank_update(float *q, const struct bny_values *v, const f32_at *p, size_t rows,
                        size_t cols, size_t nrows, size_t columns)
{
    float b[ROWS][COLUMNS];
    size_t j = 0;

    for (size_t i = 0; i < nrows; i++)
        for (size_t k = 0; k < columns; k++)
            b[i][k] = p[k * rows + i];
    for (; j + 2 * LANES <= cols; j += 2 * LANES) {
        vf acc[COLUMNS][2];

        for (size_t k = 0; k < columns; k++)
            for (size_t d = 0; d < 2; d++)
                acc[k][d] = vf_load(q + k * cols + j + d * LANES);
        for (size_t i = 0; i < nrows; i++) {
            vf x = vf_value(v->src, v->ef, vf_set1(v->s), i * cols + j);
            vf y = vf_value(v->src, v->ef, vf_set1(v->s), i * cols + j + LANES);

            for (size_t k = 0; k < columns; k++) {
                acc[k][0] += x * b[i][k];
                acc[k][1] += y * b[i][k];
            }
        }
        for (size_t k = 0; k < columns; k++)
            for (size_t d = 0; d < 2; d++)
                vf_store(q + k * cols + j + d * LANES, acc[k][d]);
    }
    for (; j < cols; j++)
        for (size_t i = 0; i < nrows; i++)
            for (size_t k = 0; k < columns; k++)
                ((f32_at *)q)[k * cols + j] +=
                    value(v->src, v->ef, v->s, i * cols + j) * b[i][k];
}

INLINE void left_of(float *q, const float *p, const struct bny_values *v, size_t rows,
                    size_t cols, size_t r, int with_ef)
{
    size_t i = 0;

    memset(q, 0, 4 * cols * r);
    for (; i + ROWS <= rows; i += ROWS) {
        struct bny_values part = row_of(v, i * cols, with_ef);
#define UPDATE(K) rank_update(q + k * cols, &part, p + k * rows + i, rows, cols, ROWS, K)
        FOR_COLUMNS(r, k, UPDATE);
#undef UPDATE
    }
    for (; i < rows; i++) {
        struct bny_values part = row_of(v, i * cols, with_ef);
#define UPDATE(K) rank_update(q + k * cols, &part, p + k * rows + i, rows, cols, 1, K)
        FOR_COLUMNS(r, k, UPDATE);
#undef UPDATE
    }
}

static void left(float *q, const float *p, const struct bny_values *v, size_t rows, size_t cols,
                 size_t r)
{
    if (v->ef)
        left_of(q, p, v, rows, cols, r, 1);
    else
        left_of(q, p, v, rows, cols, r, 0);
}

/* ---- expand ---- */

/* A row of a product: p its r elements, `rows` apart. */
struct outer {
    const f32_at *p;
    const float *q;
    size_t rows, cols;
};

INLINE vf outer_vector(const struct outer *o, size_t j, size_t r)
{
    vf sum = o->p[0] * vf_load(o->q + j);

    for (size_t k = 1; k < r; k++)
        sum += o->p[k * o->rows] * vf_load(o->q + k * o->cols + j);
    return sum;
}

INLINE float outer_one(const struct outer *o, size_t j, size_t r)
{
    const f32_at *q = o->q;
    float sum = o->p[0] * q[j];

    for (size_t k = 1; k < r; k++)
        sum += o->p[k * o->rows] * q[k * o->cols + j];
    return sum;
}

INLINE void expand_row(f32_at *dst, f32_at *ef, const struct bny_values *v,
                       const struct outer *sum, const struct outer *own, size_t cols, size_t r,
                       float scale)
{
    size_t j = 0;

    for (; j + LANES <= cols; j += LANES) {
        if (ef)
            vf_store(ef + j,
                     vf_value(v->src, v->ef, vf_set1(v->s), j) - outer_vector(own, j, r));
        vf_store(dst + j, outer_vector(sum, j, r) * scale);
    }
    for (; j < cols; j++) {
        if (ef)
            ef[j] = value(v->src, v->ef, v->s, j) - outer_one(own, j, r);
        dst[j] = outer_one(sum, j, r) * scale;
    }
}

INLINE void expand_r(float *dst, float *ef, const struct bny_values *v,
                     const struct bny_factors *sum, const struct bny_factors *own, size_t rows,
                     size_t cols, size_t r, float scale)
{
    for (size_t i = 0; i < rows; i++) {
        struct outer s = { sum->p + i, sum->q, rows, cols },
                     o = { own->p + i, own->q, rows, cols };
        struct bny_values row = row_of(v, i * cols, ef != NULL);

        expand_row(dst + i * cols, ef ? ef + i * cols : NULL, &row, &s, &o, cols, r, scale);
    }
}

static void expand(float *dst, float *ef, const struct bny_values *v,
                   const struct bny_factors *sum, const struct bny_factors *own, size_t rows,
                   size_t cols, size_t r, float scale)
{
#define EXPAND(R, EF) expand_r(dst, EF, v, sum, own, rows, cols, R, scale)
    if (ef && r == 1)
        EXPAND(1, ef);
    else if (ef && r == 2)
        EXPAND(2, ef);
    else if (ef && r == 4)
        EXPAND(4, ef);
    else if (ef && r == 8)
        EXPAND(8, ef);
    else if (ef)
        EXPAND(r, ef);
    else if (r == 4)
        EXPAND(4, NULL);
    else
        EXPAND(r, NULL);
#undef EXPAND
}

/* ---- integers ---- */

INLINE void round_random_of(int32_t *restrict q, const f32_at *src, const f32_at *ef, float s,
                            size_t n, float factor, int32_t limit, struct bny_rand key,
                            uint32_t index)
{
    INDEPENDENT
    for (size_t i = 0; i < n; i++) {
        float x = value(src, ef, s, i) * factor;
        int32_t whole = (int32_t)x;
        float part;

        whole -= (float)whole > x;
        part = x - (float)whole; /* exact */
        whole += (float)(int32_t)(bny_rand_at(key, index + (uint32_t)i) >> 8) * 0x1p-24f < part;
        whole = whole > limit ? limit : whole;
        q[i] = whole < -limit ? -limit : whole;
    }
}

static void round_random(int32_t *q, const struct bny_values *v, size_t n, float factor,
                         int32_t limit, struct bny_rand key, uint32_t index)
{
    if (v->ef)
        round_random_of(q, v->src, v->ef, v->s, n, factor, limit, key, index);
    else
        round_random_of(q, v->src, NULL, 0, n, factor, limit, key, index);
}

INLINE void round_nearest_of(int32_t *restrict q, const f32_at *src, const f32_at *ef, float s,
                             size_t n, double factor)
{
    const double shift = 0x1.8p52; /* whose last bit is 1 */

    INDEPENDENT
    for (size_t i = 0; i < n; i++)
        q[i] = (int32_t)((double)value(src, ef, s, i) * factor + shift - shift);
}

static void round_nearest(int32_t *q, const struct bny_values *v, size_t n, double factor)
{
    if (v->ef)
        round_nearest_of(q, v->src, v->ef, v->s, n, factor);
    else
        round_nearest_of(q, v->src, NULL, 0, n, factor);
}

static void expand_integers(float *dst, const int32_t *q, size_t n, double unit)
{
    f32_at *d = dst;

    INDEPENDENT
    for (size_t i = 0; i < n; i++)
        d[i] = (float)(q[i] * unit);
}

static void residual_integers(float *ef, const struct bny_values *v, const int32_t *q, size_t n,
                              double unit)
{
    f32_at *e = ef;
    const f32_at *x = v->src;
    float s = v->s;

    INDEPENDENT
    for (size_t i = 0; i < n; i++)
        e[i] = x[i] + s * e[i] - (float)(q[i] * unit);
}

#define FIELDS(BITS, TYPE)                                                                     \
    static void put##BITS(void *code, const int32_t *q, size_t n, int32_t limit)               \
    {                                                                                          \
        TYPE *out = code;                                                                      \
                                                                                               \
        INDEPENDENT                                                                            \
        for (size_t i = 0; i < n; i++)                                                         \
            out[i] = (TYPE)(q[i] + limit);                                                     \
    }                                                                                          \
    GETTER(BITS, TYPE)
#define GETTER(BITS, TYPE)                                                                     \
    static void get##BITS(int32_t *q, const void *code, size_t n, uint32_t bias)               \
    {                                                                                          \
        const TYPE *in = code;                                                                 \
                                                                                               \
        INDEPENDENT                                                                            \
        for (size_t i = 0; i < n; i++)                                                         \
            q[i] = (int32_t)(in[i] - bias);                                                    \
    }
FIELDS(8, u8_at)
FIELDS(16, u16_at)
GETTER(32, u32_at)
#undef FIELDS
#undef GETTER

/* ---- marks ---- */

#define WORD 32 /* elements */

INLINE void mark_of(u32_at *word, const f32_at *src, const f32_at *ef, float s, size_t n,
                    float most)
{
    for (size_t at = 0; at < n; at += WORD) {
        size_t m = n - at < WORD ? n - at : WORD;
        uint32_t small[WORD] = { 0 }, bits = 0;

        if (m == WORD)
            for (size_t j = 0; j < WORD; j++)
                small[j] = fabsf(value(src, ef, s, at + j)) <= most;
        else
            for (size_t j = 0; j < m; j++)
                small[j] = fabsf(value(src, ef, s, at + j)) <= most;
        for (size_t j = 0; j < WORD; j++)
            bits |= small[j] << j;
        word[at / WORD] = bits;
    }
}

static void mark(void *bits, const struct bny_values *v, size_t n, float most)
{
    if (v->ef)
        mark_of(bits, v->src, v->ef, v->s, n, most);
    else
        mark_of(bits, v->src, NULL, 0, n, most);
}

typedef uint32_t vu __attribute__((vector_size(4 * LANES)));

/* Lane i: all ones where bit i is set. */
INLINE vi vi_marked(uint32_t bits)
{
    vu lane;

    for (uint32_t j = 0; j < LANES; j++)
        lane[j] = 31 - j;
    return (vi)(((vu){ 0 } + bits) << lane) >> 31;
}

static void scale_marked(float *x, const void *bits, size_t n, float factor)
{
    const u32_at *word = bits;
    f32_at *f = x;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        vi on = vi_marked(word[i / WORD] >> i % WORD);

        vf_store(f + i,
                 vf_load(f + i) * (vf)(((vi)vf_set1(factor) & on) | ((vi)vf_set1(1) & ~on)));
    }
    for (; i < n; i++)
        f[i] *= word[i / WORD] >> i % WORD & 1 ? factor : 1;
}

/* ---- count sketch ---- */

#define BLOCK BNY_SKETCH_BLOCK

/* Where a block lies in each row. Tables are larger than caches and places random, so they are
 * asked for ahead. */
struct spots {
    size_t at[BNY_SKETCH_ROWS];
    uint32_t signs[BNY_SKETCH_ROWS];
};

#define AHEAD 4 /* blocks; a power of two */

INLINE void find_spots(struct spots *s, const float *table, const struct bny_sketch *k,
                       size_t block, uint32_t rows)
{
    for (uint32_t row = 0; row < rows; row++) {
        uint64_t h = bny_rand_at(k->key[row], 2 * (uint32_t)block);

        s->at[row] = row * k->cells + (size_t)(h * (k->cells - BLOCK + 1) >> 32);
        s->signs[row] = bny_rand_at(k->key[row], 2 * (uint32_t)block + 1);
        for (size_t i = 0; i < BLOCK; i += 16)
            __builtin_prefetch(table + s->at[row] + i);
        __builtin_prefetch(table + s->at[row] + BLOCK - 1);
    }
}

INLINE vf vf_turned(vf v, uint32_t signs)
{
    return (vf)((vi)v ^ (vi_marked(signs) & INT32_MIN));
}

static void sketch(float *table, const struct bny_sketch *k, const struct bny_values *v,
                   size_t n)
{
    struct spots ring[AHEAD];

    for (size_t b = 0; b < AHEAD; b++)
        find_spots(&ring[b], table, k, b, k->rows);
    for (size_t b = 0; b * BLOCK < n; b++) {
        size_t m = n - b * BLOCK < BLOCK ? n - b * BLOCK : BLOCK;
        struct spots *s = &ring[b % AHEAD];
        float x[BLOCK] = { 0 };

        for (size_t i = 0; i < m; i++)
            x[i] = value(v->src, v->ef, v->s, b * BLOCK + i);
        for (uint32_t row = 0; row < k->rows; row++) {
            float *cell = table + s->at[row];

            for (size_t i = 0; i < BLOCK; i += LANES)
                vf_store(cell + i,
                         vf_load(cell + i) + vf_turned(vf_load(x + i), s->signs[row] >> i));
        }
        find_spots(s, table, k, b + AHEAD, k->rows);
    }
}

INLINE void vf_order(vf *a, vf *b)
{
    vi less = *a < *b, x = (vi)*a, y = (vi)*b;

    *a = (vf)((x & less) | (y & ~less));
    *b = (vf)((y & less) | (x & ~less));
}

/* The largest ones go to the end, one after the other, until the middle is reached. */
INLINE vf median(vf *x, uint32_t rows)
{
    uint32_t middle = rows / 2;

    for (uint32_t last = rows - 1; last + 1 > rows - 1 - middle && last > 0; last--)
        for (uint32_t i = 0; i < last; i++)
            vf_order(&x[i], &x[i + 1]);
    return rows % 2 ? x[middle] : (x[middle - 1] + x[middle]) * 0.5f;
}

INLINE void estimate_rows(float *out, const float *table, const struct bny_sketch *k, size_t n,
                          uint32_t rows)
{
    struct spots ring[AHEAD];

    for (size_t b = 0; b < AHEAD; b++)
        find_spots(&ring[b], table, k, b, rows);
    for (size_t b = 0; b * BLOCK < n; b++) {
        size_t m = n - b * BLOCK < BLOCK ? n - b * BLOCK : BLOCK;
        struct spots *s = &ring[b % AHEAD];
        float found[BLOCK];

        for (size_t i = 0; i < BLOCK; i += LANES) {
            vf x[BNY_SKETCH_ROWS];

            for (uint32_t row = 0; row < rows; row++)
                x[row] = vf_turned(vf_load(table + s->at[row] + i), s->signs[row] >> i);
            vf_store(found + i, median(x, rows));
        }
        memcpy(out + b * BLOCK, found, 4 * m);
        find_spots(s, table, k, b + AHEAD, rows);
    }
}

static void estimate(float *out, const float *table, const struct bny_sketch *k, size_t n)
{
    if (k->rows == 5)
        estimate_rows(out, table, k, n, 5);
    else if (k->rows == 3)
        estimate_rows(out, table, k, n, 3);
    else
        estimate_rows(out, table, k, n, k->rows);
}

const struct bny_linear_kernels TABLE = {
    .name = TABLE_NAME,
    .right = right,
    .left = left,
    .expand = expand,
    .round_random = round_random,
    .round_nearest = round_nearest,
    .expand_integers = expand_integers,
    .residual_integers = residual_integers,
    .mark = mark,
    .scale_marked = scale_marked,
    .sketch = sketch,
    .estimate = estimate,
    .put8 = put8,
    .put16 = put16,
    .get8 = get8,
    .get16 = get16,
    .get32 = get32,
};
