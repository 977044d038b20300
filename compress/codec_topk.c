/* SPDX-License-Identifier: BSD-3-Clause */
/* The largest elements, by a threshold that is tracked from one operation to the next (sparse.h), so that one
 * pass selects; the others wait in the residual. Without state, and in a tensor's first operation, the threshold is
 * exact.
 *
 * Wire: sparse.h. Error: what is not sent, |v| <= threshold; it stays in the residual. Owners send the sum of what they
 * received without loss, or with reselect=1 its largest elements, as Ok-Topk (PPoPP 2022) and gTop-k (ICDCS 2019) do. */
#include <math.h>

#include "compress/codecs.h"
#include "compress/sparse.h"

enum { DELTA, RESELECT };

static long topk_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src, size_t n)
{
    struct bny_selection sel = { 0 };
    double l1;
    float eta;
    long len;

    if (e->nsum > 1 && e->codec->param[RESELECT] == 0)
        return bny_sparse_all(e, wire, cap, src, n);
    l1 = bny_code_kernels_for(e->cpu_flags)->l1(src, e->ef, e->ef_scale, n);
    if (!isfinite(l1))
        return -BANYAN_ENOTSUP;
    eta = n ? bny_track_eta(e, e->codec->param[DELTA], l1, src, n) : 0;
    len = bny_sparse_over(e, wire, cap, src, n, eta, &sel);
    bny_track_note(e, l1, eta, &sel, n);
    return len;
}

static void topk_end(const struct bny_codec *c, void *track, const void *stats, size_t nchunks)
{
    bny_track_end(track, stats, nchunks, c->param[DELTA]);
}

const struct bny_codec_ops bny_codec_topk = {
    .name = "topk",
    .family = BNY_CODEC_SPARSE,
    .flags = BNY_CODEC_FEEDBACK | BNY_CODEC_TRACKED,
    .doc = "the largest elements, by a tracked threshold; others wait in the residual",
    .params = {
        [DELTA] = { "delta", 0.01, 1e-6, 0.5, 0, "part of the elements that is sent" },
        [RESELECT] = { "reselect", 0, 0, 1, 1, "owners send the largest elements of sums only" },
    },
    .bound = bny_sparse_bound,
    .encode = topk_encode,
    .decode = bny_sparse_decode,
    .decode_add = bny_sparse_decode_add,
    .track_bytes = sizeof(struct bny_track),
    .stats_bytes = sizeof(struct bny_track_stats),
    .end = topk_end,
};
