/* SPDX-License-Identifier: BSD-3-Clause */
/* maxnorm with two scales (MaxNorm-MultiScale, arXiv 2109.12497): an element that is small on every rank gets steps that
 * are 2^fine times smaller, in the same field.
 *
 * Stages: MAX of one f32; AND of a bit an element, set where the rank's |v| is small enough for the fine scale; SUM of
 * fields. |sum - decoded| < nranks * max / s, and 2^fine times less for fine elements; unbiased. */
#include <math.h>

#include "base/err.h"
#include "compress/codecs.h"
#include "compress/fields.h"
#include "compress/kernels/code.h"

enum { WIDTH, FINE };

#define TILE 1024 /* a multiple of 8 */

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
    return sizeof(struct work) + (n + 7) / 8;
}

static size_t ms_code(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return 4 + bny_fields_bytes((unsigned)c->param[WIDTH], n);
}

/* What takes v to integers and back, for coarse and for fine elements. */
struct units {
    double factor[2], unit[2];
};

static struct units units_of(const struct bny_linear *l, const struct work *w)
{
    double fine = ldexp(1, (int)l->codec->param[FINE]), coarse = (double)w->max / w->limit;

    if (coarse == 0)
        return (struct units){ { 0, 0 }, { 0, 0 } };
    return (struct units){ { 1 / coarse, fine / coarse }, { coarse, coarse / fine } };
}

static int is_fine(const struct work *w, size_t i)
{
    return w->bits[i / 8] >> i % 8 & 1;
}

static void mark(struct bny_linear *l, const struct work *w)
{
    double most = (double)w->max * ldexp(1, -(int)l->codec->param[FINE]);
    uint8_t *bits = l->code;

    memset(bits, 0, (l->n + 7) / 8);
    for (size_t i = 0; i < l->n; i++)
        if (fabs((double)bny_linear_value(l, i)) <= most)
            bits[i / 8] |= (uint8_t)(1u << i % 8);
}

static void quantise(const struct bny_linear *l, const struct work *w, const struct units *to, int32_t *q, size_t at,
                     size_t n)
{
    struct bny_rand key = bny_rand_key(l->seed, l->step, (uint32_t)l->rank);

    for (size_t i = 0; i < n; i++) {
        double x = (double)bny_linear_value(l, at + i) * to->factor[is_fine(w, at + i)];
        double y = x + (double)bny_rand_at(key, (uint32_t)(at + i)) * 0x1p-32;
        int32_t whole = (int32_t)y;

        whole -= whole > y;
        q[i] = whole > w->limit ? w->limit : whole;
    }
}

static int ms_contribute(struct bny_linear *l, int k, struct bny_stage *s)
{
    struct work *w = l->work;
    struct units to;
    int32_t q[TILE];
    int rc;

    if (k == 0) {
        w->width = (unsigned)l->codec->param[WIDTH];
        w->limit = ((1 << w->width) - 1) / 2 / l->nranks;
        if (w->limit == 0)
            return bny_fail(BANYAN_ENOTSUP, "codec %s: sums of %d ranks overflow fields of %u bits; give it a larger width",
                            l->codec->spec, l->nranks, w->width);
        bny_linear_max(l, s);
        return 0;
    }
    if (k == 1) {
        if ((rc = bny_linear_max_got(l, &w->max)) != 0)
            return rc;
        mark(l, w);
        *s = (struct bny_stage){ BANYAN_U8, BANYAN_BAND, (l->n + 7) / 8 };
        return 0;
    }
    memcpy(w->bits, l->code, (l->n + 7) / 8);
    to = units_of(l, w);
    for (size_t at = 0; at < l->n; at += TILE) {
        size_t m = l->n - at < TILE ? l->n - at : TILE;

        quantise(l, w, &to, q, at, m);
        bny_fields_put(bny_linear_kernels_for(l->cpu_flags), l->code, w->width, at, q, m, w->limit);
    }
    *s = bny_fields_stage(w->width, l->n);
    return 0;
}

static int ms_finish(struct bny_linear *l)
{
    const struct work *w = l->work;
    struct units to = units_of(l, w);
    int32_t own[TILE], sum[TILE];

    for (size_t at = 0; at < l->n; at += TILE) {
        size_t m = l->n - at < TILE ? l->n - at : TILE;

        if (l->ef)
            quantise(l, w, &to, own, at, m);
        bny_fields_get(bny_linear_kernels_for(l->cpu_flags), sum, l->code, w->width, at, m, w->limit, l->nranks);
        for (size_t i = 0; i < m; i++) {
            double unit = to.unit[is_fine(w, at + i)];

            if (l->ef)
                l->ef[at + i] = bny_linear_value(l, at + i) - (float)(own[i] * unit);
            l->dst[at + i] = (float)(sum[i] * unit * (double)l->scale);
        }
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
    .check = ms_check,
    .linear = &ms_linear,
};
