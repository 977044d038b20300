/* SPDX-License-Identifier: BSD-3-Clause */
/* Unbiased sparsification (Wangni et al., NeurIPS 2018): element v is sent with probability p =
 * min(lambda |v|, 1), as v / p. lambda makes the expected fraction delta; if p saturates, two
 * rounds give the rest its share. An element's random choice depends on seed, step, rank and
 * index.
 *
 * Wire: sparse.h. E[decoded] = v, variance v^2 (1 / p - 1). Meant for use without residual;
 * with one smaller values are sent (feedback.h: bny_shrunk). */
#include <math.h>

#include "compress/codecs.h"
#include "compress/feedback.h"
#include "compress/sparse.h"

enum { DELTA };

/* lambda for about delta n expected elements. */
static double lambda_for(const struct bny_enc *e, const void *src, size_t n, double l1)
{
    double want = e->codec->param[DELTA] * (double)n, lambda = l1 > 0 ? want / l1 : 0;

    for (int round = 0; round < 2 && lambda > 0; round++) {
        double sure = 0, rest = 0;

        for (size_t i = 0; i < n; i++) {
            double p = lambda * fabs((double)bny_sparse_value(e, src, i));

            if (p >= 1)
                sure++;
            else
                rest += p;
        }
        if (rest <= 0 || want <= sure)
            break;
        lambda *= fmax((want - sure) / rest, 1);
    }
    return lambda;
}

/* The factor of a value over its probability. */
static float wangni_shrink(const struct bny_enc *e, const void *src, size_t n, double lambda)
{
    double along = 0, squares = 0;

    for (size_t i = 0; i < n && e->ef; i++) {
        double v = (double)bny_sparse_value(e, src, i), p = fmin(lambda * fabs(v), 1);

        along += v * v;
        squares += p > 0 ? v * v / p : 0;
    }
    return bny_shrunk(1, along, squares);
}

static void put_segment(const struct bny_enc *e, struct bny_sparse *s, const void *src,
                        size_t from, size_t m, double lambda, float shrunk)
{
    struct bny_rand key = bny_rand_key(e->seed, e->step, e->rank);

    bny_sparse_open(s, m);
    for (size_t i = from; i < from + m; i++) {
        float v = bny_sparse_value(e, src, i), out;
        double p = fmin(lambda * fabs((double)v), 1);
        int kept = v != 0 && (double)bny_rand_at(key, (uint32_t)(e->index + i)) < p * 0x1p32;

        out = kept ? (float)((double)v / p * (double)shrunk) : 0;
        kept = kept && bny_sparse_keep(s, i - from, out);
        if (e->ef)
            e->ef[i] = kept ? v - out : v;
    }
    bny_sparse_close(s);
}

static long wangni_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                          size_t n)
{
    struct bny_sparse s = bny_sparse_start(wire, cap, n);
    double l1 = bny_code_kernels_for(e->cpu_flags)->l1(src, e->ef, e->ef_scale, n), lambda;
    float shrunk;

    if (e->nsum > 1)
        return bny_sparse_all(e, wire, cap, src, n);
    if (!(l1 < 0x1p96)) /* v / p is at most l1 / delta n */
        return -BANYAN_ENOTSUP;
    lambda = lambda_for(e, src, n, l1);
    shrunk = wangni_shrink(e, src, n, lambda);
    for (size_t from = 0; from < n; from += BNY_SPARSE_SEGMENT)
        put_segment(e, &s, src, from,
                    n - from < BNY_SPARSE_SEGMENT ? n - from : BNY_SPARSE_SEGMENT, lambda,
                    shrunk);
    return (long)s.at;
}

const struct bny_codec_ops bny_codec_wangni = {
    .name = "wangni",
    .family = BNY_CODEC_SPARSE,
    .flags = BNY_CODEC_UNBIASED,
    .doc = "random elements, the larger the likelier, unbiased (Wangni et al., NeurIPS 2018)",
    .encode_ns = 2,
    .decode_ns = 1,
    .params = {
        [DELTA] = { "delta", 0.05, 1e-6, 0.5, 0, "part of the elements that is sent" },
    },
    .bound = bny_sparse_bound,
    .encode = wangni_encode,
    .decode = bny_sparse_decode,
    .decode_add = bny_sparse_decode_add,
};
