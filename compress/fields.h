/* SPDX-License-Identifier: BSD-3-Clause */
/* Common parts of linear codecs: integers that are summed in narrow fields, and small helpers.
 * An integer q, |q| <= limit, is sent as q + limit in a field of 4, 8, 16 or 32 bits, large
 * enough for the sum over all ranks; so sums of bytes (U8) or words (U32) never carry into the
 * next field. */
#ifndef BNY_COMPRESS_FIELDS_H
#define BNY_COMPRESS_FIELDS_H

#include <string.h>

#include "compress/kernels/linear_kernels.h"
#include "compress/linear.h"

/* The smallest width for limit and the number of ranks; 0: none is large enough. */
unsigned bny_fields_width(uint64_t limit, int nranks);
size_t bny_fields_bytes(unsigned width, size_t n);
/* The sum of n fields. */
struct bny_stage bny_fields_stage(unsigned width, size_t n);
/* Elements at..at + n; at is even. */
void bny_fields_put(const struct bny_linear_kernels *k, void *code, unsigned width, size_t at,
                    const int32_t *q, size_t n, int32_t limit);
/* Sums of nranks integers. */
void bny_fields_get(const struct bny_linear_kernels *k, int32_t *q, const void *code,
                    unsigned width, size_t at, size_t n, int32_t limit, int nranks);

/* src[i] + ef_scale * ef[i]; src is the user's and may have any alignment. */
static inline float bny_linear_value(const struct bny_linear *l, size_t i)
{
    float x;

    memcpy(&x, (const char *)l->src + 4 * i, sizeof x);
    return l->ef ? x + l->ef_scale * l->ef[i] : x;
}

/* dst[i] = sum * scale, with any alignment of dst. */
static inline void bny_linear_result(const struct bny_linear *l, size_t i, float sum)
{
    sum *= l->scale;
    memcpy((char *)l->dst + 4 * i, &sum, sizeof sum);
}

/* The same from element `at` on, for the kernels. */
static inline struct bny_values bny_linear_from(const struct bny_linear *l, size_t at)
{
    return (struct bny_values){ l->src + at, l->ef ? l->ef + at : NULL, l->ef_scale };
}

/* A stage: the largest |v| of all ranks; infinity if a value is not finite. */
void bny_linear_max(struct bny_linear *l, struct bny_stage *s);
/* Its result, checked: -BANYAN_ENOTSUP on all ranks alike if it is 2^63 or more. */
int bny_linear_max_got(const struct bny_linear *l, float *max);

/* Sums of f32: a rank with a value that is not finite makes code's first element NaN, and so
 * the sum's; then all ranks alike get -BANYAN_ENOTSUP and keep their residuals. */
void bny_linear_poison(struct bny_linear *l);
int bny_linear_poisoned(const struct bny_linear *l, const void *sum, size_t bytes);

/* A tensor that is too small for its codec: stage 0 sums it uncompressed, further stages are
 * empty. */
void bny_linear_dense(const struct bny_linear *l, int stage, struct bny_stage *s);
int bny_linear_dense_finish(struct bny_linear *l);

size_t bny_linear_no_bytes(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols);

#endif
