/* SPDX-License-Identifier: BSD-3-Clause */
/* SIDCo (MLSys 2021): a threshold from fitted distributions. |v| is modelled as exponential or
 * generalised Pareto; after the first stage, which keeps a quarter, each stage fits the
 * excesses over the threshold before it. A controller changes the number of stages every five
 * operations while the number kept is off by more than a fifth.
 *
 * Wire: sparse.h. The residual keeps the rest. */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "compress/codecs.h"
#include "compress/kernels/half.h"
#include "compress/sparse.h"

enum { DELTA, FIT, STAGES, RESELECT };
enum { EXPONENTIAL, PARETO };

#define FIRST   0.25 /* fraction that the first of several stages keeps */
#define PERIOD  5    /* operations between the controller's decisions */
#define ALLOWED 0.2

struct control {
    int32_t stages, direction; /* 0: not started */
    uint32_t calls;
    double kept, asked; /* in this period */
    double deviation;   /* of the period before; < 0: none */
};

struct count {
    double kept, asked;
};

/* The threshold of a fraction r of the tail, from mean and mean square of the excesses. */
static double quantile(int fit, double mean, double square, double r)
{
    double variance = square - mean * mean, ratio = mean * mean / variance;
    double shape = (ratio - 1) / 2, scale = mean * (ratio + 1) / 2;

    if (fit == EXPONENTIAL || !(variance > 0) || fabs(shape) < 1e-6)
        return -mean * log(r);
    return scale * (1 - pow(r, shape)) / shape;
}

/* Sum and sum of squares of |v| - eta over those above; their number. */
static size_t excesses(const struct bny_enc *e, const void *src, size_t n, double eta,
                       double *sum, double *sum2)
{
    size_t over = 0;

    *sum = *sum2 = 0;
    for (size_t i = 0; i < n; i++) {
        double y = fabs((double)bny_sparse_value(e, src, i)) - eta;

        if (y > 0) {
            over++;
            *sum += y;
            *sum2 += y * y;
        }
    }
    return over;
}

static double threshold(const struct bny_enc *e, const void *src, size_t n, int stages)
{
    double delta = e->codec->param[DELTA], eta = 0;
    double first = stages > 1 && delta < FIRST ? FIRST : delta;
    double rest = stages > 1 ? pow(delta / first, 1.0 / (stages - 1)) : 1;

    for (int i = 0; i < stages; i++) {
        double sum, sum2, r = i ? rest : first;
        size_t over = excesses(e, src, n, eta, &sum, &sum2);

        if (i == 0)
            over = n; /* zeros count */
        if (over == 0 || r >= 1)
            break;
        eta += quantile((int)e->codec->param[FIT], sum / (double)over, sum2 / (double)over, r);
    }
    return eta;
}

/* Below the largest |v|: equal values fit no tail, and all would stay in the residual for
 * ever. */
static float below_largest(const struct bny_enc *e, const void *src, size_t n, double eta)
{
    uint32_t most = bny_code_kernels_for(e->cpu_flags)->absmax(src, e->ef, e->ef_scale, n);

    return fminf((float)fmin(eta, 3e38), most ? f32_from_bits(most - 1) : 0);
}

static int stages_of(const struct bny_enc *e)
{
    const struct control *t = e->track;
    int fixed = (int)e->codec->param[STAGES];

    return fixed ? fixed : t && t->stages ? t->stages : 2;
}

static long sidco_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                         size_t n)
{
    struct bny_selection sel = { 0 };
    struct count *c = e->stats;
    double eta;
    long len;

    if (e->nsum > 1 && e->codec->param[RESELECT] == 0)
        return bny_sparse_all(e, wire, cap, src, n);
    if (!isfinite(bny_code_kernels_for(e->cpu_flags)->l1(src, e->ef, e->ef_scale, n)))
        return -BANYAN_ENOTSUP;
    eta = n ? threshold(e, src, n, stages_of(e)) : 0;
    len = bny_sparse_over(e, wire, cap, src, n, below_largest(e, src, n, eta), &sel);
    if (c && e->nsum == 1)
        *c = (struct count){ (double)sel.over, e->codec->param[DELTA] * (double)n };
    return len;
}

static void sidco_end(const struct bny_codec *codec, void *track, const void *stats,
                      size_t nchunks)
{
    const struct count *c = stats;
    struct control *t = track;
    double deviation;

    if (t->stages == 0)
        *t = (struct control){ .stages = 2, .direction = 1, .deviation = -1 };
    for (size_t i = 0; i < nchunks; i++) {
        t->kept += c[i].kept;
        t->asked += c[i].asked;
    }
    if (++t->calls < PERIOD || t->asked <= 0)
        return;
    deviation = fabs(t->kept / t->asked - 1);
    if (deviation > ALLOWED) {
        if (t->deviation >= 0 && deviation > t->deviation)
            t->direction = -t->direction;
        if (t->stages + t->direction < 1 || t->stages + t->direction > 3)
            t->direction = -t->direction;
        t->stages += t->direction;
    }
    t->deviation = deviation;
    t->kept = t->asked = 0;
    t->calls = 0;
}

static int sidco_ok(const void *track)
{
    struct control t;

    memcpy(&t, track, sizeof t);
    if (t.stages < 0 || t.stages > 3 || !isfinite(t.kept) || t.kept < 0 || !isfinite(t.asked) ||
        t.asked < 0 || !isfinite(t.deviation))
        return 0;
    return t.direction == 1 || t.direction == -1 || (t.stages == 0 && t.direction == 0);
}

const struct bny_codec_ops bny_codec_sidco = {
    .name = "sidco",
    .family = BNY_CODEC_SPARSE,
    .flags = BNY_CODEC_FEEDBACK | BNY_CODEC_TRACKED,
    .doc = "the largest elements, by a threshold from fitted tails (SIDCo, MLSys 2021)",
    .encode_ns = 1.2,
    .decode_ns = 0.2,
    .params = {
        [DELTA] = { "delta", 0.01, 1e-6, 0.5, 0, "part of the elements that is sent" },
        [FIT] = { "fit", PARETO, 0, 1, 1, "0: exponential, 1: generalised Pareto" },
        [STAGES] = { "stages", 0, 0, 3, 1, "fits one after another; 0: a controller chooses" },
        [RESELECT] = { "reselect", 0, 0, 1, 1, "owners send the largest "
"elements of sums only" },
    },
    .bound = bny_sparse_bound,
    .encode = sidco_encode,
    .decode = bny_sparse_decode,
    .decode_add = bny_sparse_decode_add,
    .track_bytes = sizeof(struct control),
    .stats_bytes = sizeof(struct count),
    .end = sidco_end,
    .track_ok = sidco_ok,
};
