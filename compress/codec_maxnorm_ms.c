/* SPDX-License-Identifier: BSD-3-Clause */
/* maxnorm with two scales (MaxNorm-MultiScale, arXiv 2109.12497): an element that is small on
 * every rank gets steps 2^fine times smaller, in the same field.
 *
 * Stages: MAX of one f32; AND of one bit per element, set if the rank's |v| is small enough for
 * the fine scale; SUM of fields. |sum - decoded| < nranks * max / s, and 2^fine times less for
 * fine elements; unbiased. */
#include <math.h>

#include "base/err.h"
#include "compress/codecs.h"
#include "compress/fields.h"
#include "compress/kernels/code.h"

enum { WIDTH, FINE };

#define TILE 1024 /* a multiple of 32 */

struct work {
    float max;
    int32_t limit;
    unsigned width;
    uint8_t bits[]; /* fine elements */
};

static int ms_check(const struct bny_codec *c)
{
    int width = (int)c->param[WIDTH];

    if (width == 4 || width == 8 || width == 16)
        return 0;
    return bny_fail(BANYAN_EINVAL, "codec maxnorm_ms: width=%d must be 4, 8 or 16", width);
}

static int ms_nstages(const struct bny_codec *c)
{
    return 3;
}

static size_t ms_work(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return sizeof(struct work) + (n + 31) / 32 * 4;
}

static size_t ms_code(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return 4 + bny_fields_bytes((unsigned)c->param[WIDTH],
                                n); /* bits, in whole words, are never more */
}

/* The rank's integers at..at + n: first multiplies fine elements by a power of two, which is
 * exact. */
static void quantise(const struct bny_linear *l, const struct work *w, int32_t *q, size_t at,
                     size_t n)
{
    const struct bny_linear_kernels *k = bny_linear_kernels_for(l->cpu_flags);
    struct bny_rand key = bny_rand_key(l->seed, l->step, (uint32_t)l->rank);
    float v[TILE], factor = w->max > 0 ? (float)w->limit / w->max : 0;
    struct bny_values from = { v, NULL, 0 };

    bny_code_kernels_for(l->cpu_flags)
        ->compensate(v, l->src + at, l->ef ? l->ef + at : NULL, l->ef_scale, n);
    k->scale_marked(v, w->bits + at / 8, n, ldexpf(1, (int)l->codec->param[FINE]));
    k->round_random(q, &from, n, factor, w->limit, key, (uint32_t)at);
}

/* Back. */
static void expand(const struct bny_linear *l, const struct work *w, float *out,
                   const int32_t *q, size_t at, size_t n, float scale)
{
    const struct bny_linear_kernels *k = bny_linear_kernels_for(l->cpu_flags);

    k->expand_integers(out, q, n, (double)w->max / w->limit * (double)scale);
    k->scale_marked(out, w->bits + at / 8, n, ldexpf(1, -(int)l->codec->param[FINE]));
}

static int ms_contribute(struct bny_linear *l, int k, struct bny_stage *s)
{
    struct work *w = l->work;
    struct bny_values v;
    int32_t q[TILE];
    int rc;

    if (k == 0) {
        w->width = (unsigned)l->codec->param[WIDTH];
        w->limit = ((1 << w->width) - 1) / 2 / l->nranks;
        if (w->limit < (l->ef ? 2 : 1)) /* as maxnorm */
            return bny_fail(
                BANYAN_ENOTSUP,
                "codec %s: sums of %d ranks%s overflow fields of %u bits; give it a larger "
                "width",
                l->codec->spec, l->nranks, l->ef ? ", with residuals," : "", w->width);
        bny_linear_max(l, s);
        return 0;
    }
    if (k == 1) {
        if ((rc = bny_linear_max_got(l, &w->max)) != 0)
            return rc;
        if (w->max < 0x1p-100f)
            w->max = 0; /* the factor must be finite */
        v = bny_linear_from(l, 0);
        bny_linear_kernels_for(l->cpu_flags)
            ->mark(l->code, &v, l->n, ldexpf(w->max, -(int)l->codec->param[FINE]));
        *s = (struct bny_stage){ BANYAN_U8, BANYAN_BAND, (l->n + 7) / 8 };
        return 0;
    }
    memcpy(w->bits, l->code, (l->n + 7) / 8); /* the rest of the last word is unused */
    for (size_t at = 0; at < l->n; at += TILE) {
        size_t m = l->n - at < TILE ? l->n - at : TILE;

        quantise(l, w, q, at, m);
        bny_fields_put(bny_linear_kernels_for(l->cpu_flags), l->code, w->width, at, q, m,
                       w->limit);
    }
    *s = bny_fields_stage(w->width, l->n);
    return 0;
}

static int ms_finish(struct bny_linear *l)
{
    const struct bny_code_kernels *code = bny_code_kernels_for(l->cpu_flags);
    const struct work *w = l->work;
    float v[TILE], back[TILE];
    int32_t q[TILE];

    for (size_t at = 0; at < l->n; at += TILE) {
        size_t m = l->n - at < TILE ? l->n - at : TILE;

        if (l->ef) {
            quantise(l, w, q, at, m);
            expand(l, w, back, q, at, m, 1);
            code->compensate(v, l->src + at, l->ef + at, l->ef_scale, m);
            code->residual(l->ef + at, v, back, m);
        }
        bny_fields_get(bny_linear_kernels_for(l->cpu_flags), q, l->code, w->width, at, m,
                       w->limit, l->nranks);
        expand(l, w, l->dst + at, q, at, m, l->scale);
    }
    return 0;
}

static const struct bny_linear_ops ms_linear = {
    .nstages = ms_nstages,
    .keep_bytes = bny_linear_no_bytes,
    .work_bytes = ms_work,
    .code_bytes = ms_code,
    .contribute = ms_contribute,
    .finish = ms_finish,
};

const struct bny_codec_ops bny_codec_maxnorm_ms = {
    .name = "maxnorm_ms",
    .family = BNY_CODEC_LINEAR,
    .flags = BNY_CODEC_UNBIASED,
    .doc = "maxnorm with a second, finer scale for small elements (arXiv 2109.12497)",
    .params = {
        [WIDTH] = { "width", 8, 4, 16, 1, "bits of a field: 4, 8 or 16" },
        [FINE] = { "fine", 4, 1, 16, 1, "the fine steps are 2^fine times smaller" },
    },
    .encode_ns = 3,
    .decode_ns = 3,
    .check = ms_check,
    .linear = &ms_linear,
};
