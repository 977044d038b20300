/* SPDX-License-Identifier: BSD-3-Clause */
/* The largest elements, by a threshold that is tracked from one operation to the next
 * (sparse.h), so that one pass selects; the residual keeps the others. Without state, and in a
 * tensor's first operation, the threshold is exact.
 *
 * Wire: sparse.h. Error: unsent elements, |v| <= threshold; the residual keeps them. Owners
 * send the sum of the received parts without loss, or with reselect=1 its largest elements, as
 * Ok-Topk (PPoPP 2022) does; on binomial trees, where each hop is an owner, that is gTop-k
 * (ICDCS 2019). */
#include "compress/codecs.h"
#include "compress/sparse.h"

enum { DELTA, RESELECT };

static long topk_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                        size_t n)
{
    if (e->nsum > 1 && e->codec->param[RESELECT] == 0)
        return bny_sparse_all(e, wire, cap, src, n);
    return bny_track_encode(e, e->codec->param[DELTA], wire, cap, src, n);
}

const struct bny_codec_ops bny_codec_topk = {
    .name = "topk",
    .family = BNY_CODEC_SPARSE,
    .flags = BNY_CODEC_FEEDBACK | BNY_CODEC_TRACKED,
    .doc = "the largest elements, by a tracked threshold; others wait in the residual",
    .recommended = 1,
    .encode_ns = 0.9,
    .decode_ns = 0.2,
    .params = {
        [DELTA] = { "delta", 0.01, 1e-6, 0.5, 0, "part of the elements that is sent" },
        [RESELECT] = { "reselect", 0, 0, 1, 1, "owners send the largest "
"elements of sums only" },
    },
    .bound = bny_sparse_bound,
    .encode = topk_encode,
    .decode = bny_sparse_decode,
    .decode_add = bny_sparse_decode_add,
    .track_bytes = sizeof(struct bny_track),
    .stats_bytes = sizeof(struct bny_track_stats),
    .end = bny_track_end,
    .track_ok = bny_track_ok,
};
