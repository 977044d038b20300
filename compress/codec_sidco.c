/* SPDX-License-Identifier: BSD-3-Clause */
/* SIDCo (MLSys 2021): a threshold from fitted distributions. |v| is modelled as exponential or
 * generalised Pareto; after the first stage, which keeps a quarter, each stage fits the
 * excesses over the threshold before it.
 *
 * The paper chooses the number of stages every five operations by what they kept. Residuals
 * end all fits: values pile up below the last threshold, and nothing lies far above it. So each
 * stage starts from what the one before really kept, and stages go on, with a secant once one
 * kept too few, until the number is right to a fifth. The next operation starts from that
 * threshold, as a multiple of mean |v|: mostly it needs no fit at all.
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
#define ALLOWED 0.2
#define MOST    10 /* stages */

/* The thresholds of operations so far: 0: none yet. */
struct control {
    double over_mean; /* of the latest, in units of mean |v| */
};

struct count {
    double eta, mean; /* times elements */
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

/* So many stages, whatever they keep. */
static double staged(const struct bny_enc *e, const void *src, size_t n, int stages)
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

/* A threshold, and how many are over it. */
struct tried {
    double eta;
    size_t over;
};

/* Between one that keeps too many and one that keeps too few, by the logarithms of both. */
static double secant(const struct tried *low, const struct tried *high, double want)
{
    double many = (double)low->over, few = high->over ? (double)high->over : .5;
    double part = log(many / want) / log(many / few);

    return low->eta + (high->eta - low->eta) * (part > .05 ? part < .95 ? part : .95 : .05);
}

/* Stages from what the one before kept, until the number is right. start: where to look first;
 * 0: at a fit. */
static double searched(const struct bny_enc *e, const void *src, size_t n, double start)
{
    double want = e->codec->param[DELTA] * (double)n, eta = start;
    struct tried low = { 0, n }, high = { 0, 0 };

    for (int i = 0; i < MOST; i++) {
        double sum, sum2, next = 0, r;
        size_t over = excesses(e, src, n, eta, &sum, &sum2);

        if (eta == 0)
            over = n; /* zeros count */
        else if (fabs((double)over - want) <= fmax(ALLOWED * want, .5))
            break;
        r = want / (double)over;
        if (r < 1) {
            low = (struct tried){ eta, over };
            next = eta + quantile((int)e->codec->param[FIT], sum / (double)over,
                                  sum2 / (double)over, i ? r : fmax(r, FIRST));
        } else {
            high = (struct tried){ eta, over };
        }
        if (high.eta > 0 && !(next > low.eta && next < high.eta))
            next = secant(&low, &high, want);
        if (!(next > 0) || next == eta)
            break;
        eta = next;
    }
    return eta;
}

static double threshold(const struct bny_enc *e, const void *src, size_t n, double start)
{
    int stages = (int)e->codec->param[STAGES];

    return stages ? staged(e, src, n, stages) : searched(e, src, n, start);
}

/* Below the largest |v|: equal values fit no tail, and all would stay in the residual for
 * ever. */
static float below_largest(const struct bny_enc *e, const void *src, size_t n, double eta)
{
    uint32_t most = bny_code_kernels_for(e->cpu_flags)->absmax(src, e->ef, e->ef_scale, n);

    return fminf((float)fmin(eta, 3e38), most ? f32_from_bits(most - 1) : 0);
}

static long sidco_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                         size_t n)
{
    const struct control *t = e->track;
    struct bny_selection sel = { 0 };
    struct count *c = e->stats;
    double eta = 0, all;

    if (e->nsum > 1 && e->codec->param[RESELECT] == 0)
        return bny_sparse_all(e, wire, cap, src, n);
    all = bny_code_kernels_for(e->cpu_flags)->l1(src, e->ef, e->ef_scale, n);
    if (!isfinite(all))
        return -BANYAN_ENOTSUP;
    if (n)
        eta = threshold(e, src, n, t && e->nsum == 1 ? t->over_mean * all / (double)n : 0);
    if (c && e->nsum == 1)
        *c = (struct count){ eta * (double)n, all };
    return bny_sparse_over(e, wire, cap, src, n, below_largest(e, src, n, eta), &sel);
}

static void sidco_end(const struct bny_codec *codec, void *track, const void *stats,
                      size_t nchunks)
{
    const struct count *c = stats;
    struct control *t = track;
    double eta = 0, mean = 0;

    for (size_t i = 0; i < nchunks; i++) {
        eta += c[i].eta;
        mean += c[i].mean;
    }
    if (codec->param[STAGES] == 0 && mean > 0 && isfinite(eta / mean))
        t->over_mean = eta / mean;
}

static int sidco_ok(const void *track)
{
    struct control t;

    memcpy(&t, track, sizeof t);
    return t.over_mean >= 0 && isfinite(t.over_mean);
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
        [STAGES] = { "stages", 0, 0, 3, 1, "fits in a row; 0: until the part is right" },
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
