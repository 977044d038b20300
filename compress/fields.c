/* SPDX-License-Identifier: BSD-3-Clause */
/* Integers in narrow fields, and the largest value of all ranks. */
#include "compress/fields.h"

#include <math.h>

#include "base/err.h"
#include "compress/kernels/code.h"

unsigned bny_fields_width(uint64_t limit, int nranks)
{
    for (unsigned width = 4; width <= 32; width *= 2)
        if (2 * limit * (uint64_t)nranks <= ((uint64_t)1 << width) - 1)
            return width;
    return 0;
}

size_t bny_fields_bytes(unsigned width, size_t n)
{
    return width == 4 ? (n + 1) / 2 : width == 8 ? n : width == 16 ? (n + 1) / 2 * 4 : 4 * n;
}

struct bny_stage bny_fields_stage(unsigned width, size_t n)
{
    size_t bytes = bny_fields_bytes(width, n);

    return width <= 8 ? (struct bny_stage){ BANYAN_U8, BANYAN_SUM, bytes }
                      : (struct bny_stage){ BANYAN_U32, BANYAN_SUM, bytes / 4 };
}

void bny_fields_put(const struct bny_linear_kernels *k, void *code, unsigned width, size_t at,
                    const int32_t *q, size_t n, int32_t limit)
{
    unsigned char *out = (unsigned char *)code + at * width / 8;

    if (width == 4) {
        for (size_t i = 0; i < n; i += 2)
            out[i / 2] = (uint8_t)((q[i] + limit) | (i + 1 < n ? q[i + 1] + limit : 0) << 4);
    } else if (width == 8) {
        k->put8(out, q, n, limit);
    } else if (width == 16) {
        k->put16(out, q, n, limit);
        if (n % 2)
            memset(out + 2 * n, 0, 2);
    } else {
        uint32_t *words = (uint32_t *)(void *)out;

        for (size_t i = 0; i < n; i++)
            words[i] = (uint32_t)q[i] + (uint32_t)limit;
    }
}

void bny_fields_get(const struct bny_linear_kernels *k, int32_t *q, const void *code,
                    unsigned width, size_t at, size_t n, int32_t limit, int nranks)
{
    const unsigned char *in = (const unsigned char *)code + at * width / 8;
    uint32_t bias =
        (uint32_t)limit * (uint32_t)nranks; /* below 2^31: the width is large enough */

    if (width == 4)
        for (size_t i = 0; i < n; i++)
            q[i] = (int32_t)((in[i / 2] >> (i % 2 ? 4 : 0) & 15) - bias);
    else if (width == 8)
        k->get8(q, in, n, bias);
    else if (width == 16)
        k->get16(q, in, n, bias);
    else
        k->get32(q, in, n, bias);
}

void bny_linear_max(struct bny_linear *l, struct bny_stage *s)
{
    uint32_t bits =
        bny_code_kernels_for(l->cpu_flags)->absmax(l->src, l->ef, l->ef_scale, l->n);

    if (bits > BNY_F32_INF)
        bits = BNY_F32_INF; /* MAX would lose a NaN */
    memcpy(l->code, &bits, 4);
    *s = (struct bny_stage){ BANYAN_F32, BANYAN_MAX, 1 };
}

int bny_linear_max_got(const struct bny_linear *l, float *max)
{
    memcpy(max, l->code, 4);
    if (*max < 0x1p63f)
        return 0;
    return bny_fail(BANYAN_ENOTSUP,
                    "codec %s: a rank has values that are not finite or exceed 2^63",
                    l->codec->ops->name);
}

void bny_linear_poison(struct bny_linear *l)
{
    const float nan = NAN;

    if (l->n && bny_code_kernels_for(l->cpu_flags)->absmax(l->src, l->ef, l->ef_scale, l->n) >=
                    BNY_F32_INF)
        memcpy(l->code, &nan, 4);
}

int bny_linear_poisoned(const struct bny_linear *l, const void *sum, size_t bytes)
{
    if (bny_code_kernels_for(l->cpu_flags)->absmax(sum, NULL, 1, bytes / 4) < BNY_F32_INF)
        return 0;
    return bny_fail(BANYAN_ENOTSUP,
                    "codec %s: a rank has values that are not finite, or their sum is not",
                    l->codec->ops->name);
}

void bny_linear_dense(const struct bny_linear *l, int stage, struct bny_stage *s)
{
    if (stage == 0)
        bny_code_kernels_for(l->cpu_flags)
            ->compensate(l->code, l->src, l->ef, l->ef_scale, l->n);
    *s = (struct bny_stage){ BANYAN_F32, BANYAN_SUM, stage ? 0 : l->n };
}

int bny_linear_dense_finish(struct bny_linear *l)
{
    const float *code = l->code;
    int rc = bny_linear_poisoned(l, code, 4 * l->n);

    if (rc)
        return rc;
    for (size_t i = 0; i < l->n; i++)
        bny_linear_result(l, i, code[i]);
    if (l->ef && l->n)
        memset(l->ef, 0, 4 * l->n);
    return 0;
}

size_t bny_linear_no_bytes(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return 0;
}
