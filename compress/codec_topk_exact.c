/* SPDX-License-Identifier: BSD-3-Clause */
/* Exactly the k largest elements of each chunk, by a radix histogram of their magnitudes: the
 * reference for thresholds. Slow: four passes.
 *
 * Wire: sparse.h. k is delta * n rounded, at least 1; the first of equal magnitudes. The
 * residual keeps the rest. */
#include <math.h>

#include "compress/codecs.h"
#include "compress/sparse.h"

enum { DELTA, RESELECT };

static uint32_t magnitude(float v)
{
    uint32_t bits;

    memcpy(&bits, &v, sizeof bits);
    return bits & 0x7fffffff;
}

static long topk_exact_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                              size_t n)
{
    struct bny_sparse s = bny_sparse_start(wire, cap, n);
    size_t k = (size_t)(e->codec->param[DELTA] * (double)n + 0.5), ties;
    uint32_t least;

    if (e->nsum > 1 && e->codec->param[RESELECT] == 0)
        return bny_sparse_all(e, wire, cap, src, n);
    if (!isfinite(bny_code_kernels_for(e->cpu_flags)->l1(src, e->ef, e->ef_scale, n)))
        return -BANYAN_ENOTSUP;
    if (n == 0)
        return 0;
    ties = k = k ? k : 1;
    least = bny_kth_largest(e, src, n, k);
    for (size_t i = 0; i < n; i++)
        ties -= magnitude(bny_sparse_value(e, src, i)) > least;
    if (least == 0)
        ties = 0;
    for (size_t at = 0; at < n; at += BNY_SPARSE_SEGMENT) {
        size_t m = n - at < BNY_SPARSE_SEGMENT ? n - at : BNY_SPARSE_SEGMENT;

        bny_sparse_open(&s, m);
        for (size_t i = 0; i < m; i++) {
            float v = bny_sparse_value(e, src, at + i);
            uint32_t bits = magnitude(v);
            int tie = bits == least && ties > 0, kept = 0;

            if (bits > least || tie) {
                ties -= (size_t)tie;
                kept = bny_sparse_keep(&s, i, v);
            }
            if (e->ef)
                e->ef[at + i] = kept ? 0 : v;
        }
        bny_sparse_close(&s);
    }
    return (long)s.at;
}

const struct bny_codec_ops bny_codec_topk_exact = {
    .name = "topk_exact",
    .family = BNY_CODEC_SPARSE,
    .flags = BNY_CODEC_FEEDBACK,
    .doc = "exactly the k largest elements of each chunk: the oracle of the others, slow",
    .params = {
        [DELTA] = { "delta", 0.01, 1e-6, 0.5, 0, "part of the elements that is sent" },
        [RESELECT] = { "reselect", 0, 0, 1, 1, "owners send the largest "
"elements of sums only" },
    },
    .bound = bny_sparse_bound,
    .encode = topk_exact_encode,
    .decode = bny_sparse_decode,
    .decode_add = bny_sparse_decode_add,
};
