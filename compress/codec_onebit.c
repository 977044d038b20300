/* SPDX-License-Identifier: BSD-3-Clause */
/* 1-bit SGD (Seide, Fu, Droppo, Li, Yu: 1-Bit Stochastic Gradient Descent, Interspeech 2014):
 * the signs, and the mean of the elements of each sign, per group of `block`, for which the
 * paper has columns. Needs a residual.
 *
 * Wire: for each group two f32, the mean of the elements >= 0 and of those < 0; then ceil(m /
 * 8) bytes for each group of m, bit i set if element i has its sign bit set, lowest first.
 * Optimal reconstruction with two points: the group's squared error is the sum of both sides'
 * variances. Values from 2^60 on are not encoded (raw); untrusted means that are not finite are
 * rejected. */
#include <math.h>

#include "compress/codecs.h"
#include "compress/feedback.h"
#include "compress/kernels/code.h"

static size_t onebit_bytes(const struct bny_codec *c, size_t m)
{
    return bny_packed_bytes(1, m);
}

static void onebit_encode_group(const struct bny_enc *e, float *scales, void *codes,
                                const float *v, size_t m)
{
    double pos = 0, neg = 0;
    size_t negatives = 0;

    for (size_t i = 0; i < m; i++) {
        int negative = signbit(v[i]) != 0;

        pos += negative ? 0 : (double)v[i];
        neg += negative ? (double)v[i] : 0;
        negatives += (size_t)negative;
    }
    scales[0] = negatives < m ? (float)(pos / (double)(m - negatives)) : 0;
    scales[1] = negatives ? (float)(neg / (double)negatives) : 0;
    bny_code_kernels_for(e->cpu_flags)->sign_encode(codes, v, NULL, 0, m, 0, 0);
}

static void onebit_decode_group(const struct bny_dec *d, float *out, const float *scales,
                                const void *codes, size_t m)
{
    bny_code_kernels_for(d->cpu_flags)->sign_decode(out, codes, m, scales[0], scales[1]);
}

static const struct bny_groups groups = { .scales = 2,
                                          .negative = 1,
                                          .bytes = onebit_bytes,
                                          .encode = onebit_encode_group,
                                          .decode = onebit_decode_group };

static size_t onebit_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return bny_groups_bytes(&groups, c, n);
}

static long onebit_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                          size_t n)
{
    return bny_groups_encode(&groups, e, wire, src, n);
}

static int onebit_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                         size_t n)
{
    return bny_groups_decode(&groups, d, dst, wire, len, n);
}

static int onebit_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                             const void *wire, size_t len, size_t n)
{
    return bny_groups_decode_add(&groups, d, dst, acc, wire, len, n);
}

const struct bny_codec_ops bny_codec_onebit = {
    .name = "onebit",
    .family = BNY_CODEC_BLOCK,
    .flags = BNY_CODEC_FIXED | BNY_CODEC_FEEDBACK,
    .doc = "1-bit SGD: signs and two means a group (Seide et al., 2014)",
    .encode_ns = 1.2,
    .decode_ns = 0.5,
    .params = {
        { .name = "block", .def = 4096, .min = 64, .max = BNY_GROUP_MAX, .integer = 1,
          .doc = "elements that share two means" },
    },
    .bound = onebit_bound,
    .encode = onebit_encode,
    .decode = onebit_decode,
    .decode_add = onebit_decode_add,
};
