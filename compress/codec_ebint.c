/* SPDX-License-Identifier: BSD-3-Clause */
/* Integers with a bounded error that can be summed, after hZCCL (SC 2024): q = v / (2 bound)
 * rounded to nearest; ranks agree on the largest |q|, and so on the narrowest field (fields.h)
 * that holds every sum.
 *
 * Stages: MAX of one f32 (with rel: determines the bound); SUM of fields. |v - decoded| <=
 * bound for each rank's part (plus rounding in f32), so |sum - decoded| <= nranks * bound. Sums
 * are exact in code space. */
#include <math.h>

#include "base/err.h"
#include "compress/codecs.h"
#include "compress/fields.h"

enum { BOUND, REL };

#define TILE 1024

struct work {
    double step; /* 2 bound */
    int32_t limit;
    unsigned width;
};

static int ebint_nstages(const struct bny_codec *c)
{
    return 2;
}

static size_t ebint_work(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return sizeof(struct work);
}

static size_t ebint_code(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return 4 + 4 * n;
}

static void quantise(const struct bny_linear *l, const struct work *w, int32_t *q, size_t at,
                     size_t n)
{
    struct bny_values v = bny_linear_from(l, at);

    bny_linear_kernels_for(l->cpu_flags)
        ->round_nearest(q, &v, n, w->step > 0 ? 1 / w->step : 0);
}

static int ebint_contribute(struct bny_linear *l, int k, struct bny_stage *s)
{
    struct work *w = l->work;
    double rel = l->codec->param[REL], most;
    int32_t q[TILE];
    float max;
    int rc;

    if (k == 0) {
        bny_linear_max(l, s);
        return 0;
    }
    if ((rc = bny_linear_max_got(l, &max)) != 0)
        return rc;
    w->step = 2 * (rel > 0 ? rel * (double)max : l->codec->param[BOUND]);
    most = w->step > 0 ? rint((double)max / w->step) : 0;
    w->width = most < 0x1p31 ? bny_fields_width((uint64_t)most, l->nranks) : 0;
    if (!w->width)
        return bny_fail(BANYAN_ENOTSUP,
                        "codec %s: with values up to %g, sums of %d ranks overflow 32 bits; "
                        "give it a larger "
                        "bound, or rel",
                        l->codec->spec, (double)max, l->nranks);
    w->limit = (int32_t)most;
    for (size_t at = 0; at < l->n; at += TILE) {
        size_t m = l->n - at < TILE ? l->n - at : TILE;

        quantise(l, w, q, at, m);
        bny_fields_put(bny_linear_kernels_for(l->cpu_flags), l->code, w->width, at, q, m,
                       w->limit);
    }
    *s = bny_fields_stage(w->width, l->n);
    return 0;
}

static int ebint_finish(struct bny_linear *l)
{
    const struct bny_linear_kernels *k = bny_linear_kernels_for(l->cpu_flags);
    const struct work *w = l->work;
    int32_t q[TILE];

    for (size_t at = 0; at < l->n; at += TILE) {
        size_t m = l->n - at < TILE ? l->n - at : TILE;

        if (l->ef) {
            struct bny_values v = bny_linear_from(l, at);

            quantise(l, w, q, at, m);
            k->residual_integers(l->ef + at, &v, q, m, w->step);
        }
        bny_fields_get(k, q, l->code, w->width, at, m, w->limit, l->nranks);
        k->expand_integers(l->dst + at, q, m, w->step * (double)l->scale);
    }
    return 0;
}

static const struct bny_linear_ops ebint_linear = {
    .nstages = ebint_nstages,
    .keep_bytes = bny_linear_no_bytes,
    .work_bytes = ebint_work,
    .code_bytes = ebint_code,
    .contribute = ebint_contribute,
    .finish = ebint_finish,
};

const struct bny_codec_ops bny_codec_ebint = {
    .name = "ebint",
    .family = BNY_CODEC_LINEAR,
    .doc = "integers with a bounded error, summed as they are (after hZCCL, SC 2024)",
    .encode_ns = 1.2,
    .decode_ns = 1.2,
    .wire_bytes = 2, /* the widest fields, which the bound has room for, are rare */
    .params = {
        [BOUND] = { "bound", 1e-4, 1e-30, 1e30, 0, "largest error of an element on each rank" },
        [REL] = { "rel", 0, 0, 0.5, 0, "instead: the bound as part of the "
"largest value of all ranks" },
    },
    .linear = &ebint_linear,
};
