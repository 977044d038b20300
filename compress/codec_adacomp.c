/* SPDX-License-Identifier: BSD-3-Clause */
/* AdaComp (AAAI 2018): in each bin, selects elements that would be among the largest if the
 * latest gradient came once more. With v = g + e (gradient and residual): v is sent if |v + g|
 * >= the bin's largest |v|. No threshold to track, nothing to tune but the bin.
 *
 * Wire: sparse.h; values are uncompressed (the paper also makes them ternary). The residual
 * keeps the rest. */
#include <math.h>

#include "compress/codecs.h"
#include "compress/sparse.h"

enum { BIN };

/* Elements at..end of a segment that begins at `from`. */
static void put_bin(const struct bny_enc *e, struct bny_sparse *s, const void *src, size_t from,
                    size_t at, size_t end)
{
    float most = 0;

    for (size_t i = at; i < end; i++)
        most = fmaxf(most, fabsf(bny_sparse_value(e, src, i)));
    for (size_t i = at; i < end; i++) {
        float v = bny_sparse_value(e, src, i);
        int kept = most > 0 && fabsf(v + bny_f32_at(src, i)) >= most && v != 0 &&
                   bny_sparse_keep(s, i - from, v);

        if (e->ef)
            e->ef[i] = kept ? 0 : v;
    }
}

static long adacomp_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                           size_t n)
{
    struct bny_sparse s = bny_sparse_start(wire, cap, n);
    size_t bin = (size_t)e->codec->param[BIN];

    if (e->nsum > 1)
        return bny_sparse_all(e, wire, cap, src, n);
    if (!isfinite(bny_code_kernels_for(e->cpu_flags)->l1(src, e->ef, e->ef_scale, n)))
        return -BANYAN_ENOTSUP;
    for (size_t from = 0; from < n; from += BNY_SPARSE_SEGMENT) {
        size_t end = n - from < BNY_SPARSE_SEGMENT ? n : from + BNY_SPARSE_SEGMENT;

        bny_sparse_open(&s, end - from);
        for (size_t at = from; at < end; at += bin)
            put_bin(e, &s, src, from, at, end - at < bin ? end : at + bin);
        bny_sparse_close(&s);
    }
    return (long)s.at;
}

const struct bny_codec_ops bny_codec_adacomp = {
    .name = "adacomp",
    .family = BNY_CODEC_SPARSE,
    .flags = BNY_CODEC_FEEDBACK,
    .doc = "the locally largest elements of each bin (AdaComp, AAAI 2018)",
    .encode_ns = 2,
    .decode_ns = 1,
    .params = {
        [BIN] = { "bin", 500, 8, 65536, 1, "elements of a bin: 50 for "
"convolutions, 500 otherwise" },
    },
    .bound = bny_sparse_bound,
    .encode = adacomp_encode,
    .decode = bny_sparse_decode,
    .decode_add = bny_sparse_decode_add,
};
