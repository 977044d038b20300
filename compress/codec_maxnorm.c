/* SPDX-License-Identifier: BSD-3-Clause */
/* QSGD with a norm that all ranks share (QSGD-MaxNorm, arXiv 2109.12497): integers that can be
 * summed. Ranks first agree on the largest |v|; then v becomes q = v s / max, rounded up or
 * down at random, and integers are summed in fields.h's fields. s = 2^bits - 1 or, with bits=0,
 * as many as the field holds for this number of ranks. An element's random choice depends on
 * seed, step, rank and index.
 *
 * Stages: MAX of one f32; SUM of fields. |sum - decoded| < nranks * max / s; unbiased, variance
 * at most (max / s)^2 / 4 per rank. If all are below 2^-100, nothing is sent (the residual
 * keeps it). */
#include <math.h>

#include "base/err.h"
#include "compress/codecs.h"
#include "compress/fields.h"
#include "compress/kernels/code.h"

enum { WIDTH, BITS };

#define TILE 1024

struct work {
    float max;
    int32_t limit;
    unsigned width;
};

static int maxnorm_check(const struct bny_codec *c)
{
    int width = (int)c->param[WIDTH];

    if (width == 4 || width == 8 || width == 16 || width == 32)
        return 0;
    return bny_fail(BANYAN_EINVAL, "codec maxnorm: width=%d must be 4, 8, 16 or 32", width);
}

static int maxnorm_nstages(const struct bny_codec *c)
{
    return 2;
}

static size_t maxnorm_work(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return sizeof(struct work);
}

static size_t maxnorm_code(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return 4 + bny_fields_bytes((unsigned)c->param[WIDTH], n);
}

/* The rank's integers at..at + n. */
static void quantise(const struct bny_linear *l, const struct work *w, int32_t *q, size_t at,
                     size_t n)
{
    struct bny_rand key = bny_rand_key(l->seed, l->step, (uint32_t)l->rank);
    float factor = w->max > 0 ? (float)w->limit / w->max : 0;
    struct bny_values v = bny_linear_from(l, at);

    bny_linear_kernels_for(l->cpu_flags)
        ->round_random(q, &v, n, factor, w->limit, key, (uint32_t)at);
}

static int limit_for(const struct bny_linear *l, struct work *w)
{
    uint64_t most = ((uint64_t)1 << w->width) - 1, limit = most / 2 / (uint64_t)l->nranks;
    int bits = (int)l->codec->param[BITS];

    if (bits)
        limit = ((uint64_t)1 << bits) - 1;
    if (limit > (1 << 23))
        limit = 1 << 23;
    /* A unit as large as the largest value may omit as much as there is: the residual would
     * grow without bound. */
    if (limit < (l->ef ? 2 : 1) || 2 * limit * (uint64_t)l->nranks > most)
        return bny_fail(
            BANYAN_ENOTSUP,
            "codec %s: sums of %d ranks%s overflow fields of %u bits, or leave a rank too few; "
            "give it a larger width or other bits",
            l->codec->spec, l->nranks, l->ef ? ", with residuals," : "", w->width);
    w->limit = (int32_t)limit;
    return 0;
}

static int maxnorm_contribute(struct bny_linear *l, int k, struct bny_stage *s)
{
    struct work *w = l->work;
    int32_t q[TILE];
    int rc;

    if (k == 0) {
        w->width = (unsigned)l->codec->param[WIDTH];
        if ((rc = limit_for(l, w)) != 0)
            return rc;
        bny_linear_max(l, s);
        return 0;
    }
    if ((rc = bny_linear_max_got(l, &w->max)) != 0)
        return rc;
    if (w->max < 0x1p-100f)
        w->max = 0; /* the factor must be finite */
    for (size_t at = 0; at < l->n; at += TILE) {
        size_t m = l->n - at < TILE ? l->n - at : TILE;

        quantise(l, w, q, at, m);
        bny_fields_put(bny_linear_kernels_for(l->cpu_flags), l->code, w->width, at, q, m,
                       w->limit);
    }
    *s = bny_fields_stage(w->width, l->n);
    return 0;
}

static int maxnorm_finish(struct bny_linear *l)
{
    const struct bny_linear_kernels *k = bny_linear_kernels_for(l->cpu_flags);
    const struct work *w = l->work;
    double unit = (double)w->max / w->limit;
    int32_t q[TILE];

    for (size_t at = 0; at < l->n; at += TILE) {
        size_t m = l->n - at < TILE ? l->n - at : TILE;

        if (l->ef) {
            struct bny_values v = bny_linear_from(l, at);

            quantise(l, w, q, at, m);
            k->residual_integers(l->ef + at, &v, q, m, unit);
        }
        bny_fields_get(k, q, l->code, w->width, at, m, w->limit, l->nranks);
        k->expand_integers(l->dst + at, q, m, unit * (double)l->scale);
    }
    return 0;
}

static const struct bny_linear_ops maxnorm_linear = {
    .nstages = maxnorm_nstages,
    .keep_bytes = bny_linear_no_bytes,
    .work_bytes = maxnorm_work,
    .code_bytes = maxnorm_code,
    .contribute = maxnorm_contribute,
    .finish = maxnorm_finish,
};

const struct bny_codec_ops bny_codec_maxnorm = {
    .name = "maxnorm",
    .family = BNY_CODEC_LINEAR,
    .flags = BNY_CODEC_UNBIASED,
    .doc = "integers with a shared norm, summed as they are (QSGD-MaxNorm, arXiv 2109.12497)",
    .encode_ns = 1.8,
    .decode_ns = 1.8,
    .params = {
        [WIDTH] = { "width", 8, 4, 32, 1, "bits of a field: 4, 8, 16 or 32" },
        [BITS] = { "bits", 0, 0, 23, 1, "of a rank's integer without sign; 0: as many as fit" },
    },
    .check = maxnorm_check,
    .linear = &maxnorm_linear,
};
