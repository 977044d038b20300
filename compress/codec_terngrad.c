/* SPDX-License-Identifier: BSD-3-Clause */
/* TernGrad (Wen, Xu, Yan, Wu, Wang, Chen, Li: TernGrad: Ternary Gradients to Reduce
 * Communication in Distributed Deep Learning, NIPS 2017): s = largest |v| of a group; an
 * element becomes sign * s with probability |v| / s, else 0.
 *
 * Wire: an f32 s for each group; then 2 bits per element: 0 for -s, 1 for 0, 2 for s, lowest
 * bits first. Exact in the mean; variance |v| (s - |v|). clip=c first limits v to c standard
 * deviations of the group (the paper trains with 2.5), which biases limited elements and lowers
 * s. With a residual the wire has a smaller s (feedback.h: bny_shrunk). Values from 2^60 on are
 * not encoded (raw); an untrusted s that is negative or not finite is rejected, a code of 3
 * decodes as 2s. */
#include <math.h>

#include "compress/codecs.h"
#include "compress/feedback.h"
#include "compress/kernels/code.h"

static size_t terngrad_bytes(const struct bny_codec *c, size_t m)
{
    return bny_packed_bytes(2, m);
}

/* Expectations of <v, q> and |q|^2, q being the random code, over s^2. */
static double along(const float *v, float s, size_t m)
{
    double sum = 0;

    for (size_t i = 0; i < m && s > 0; i++)
        sum += fabs((double)v[i] / (double)s) * fmin(fabs((double)v[i] / (double)s), 1);
    return sum;
}

static double squares(const float *v, float s, size_t m)
{
    double sum = 0;

    for (size_t i = 0; i < m && s > 0; i++)
        sum += fmin(fabs((double)v[i] / (double)s), 1);
    return sum;
}

static void terngrad_encode_group(const struct bny_enc *e, float *scales, void *codes,
                                  const float *v, size_t m)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(e->cpu_flags);
    uint32_t random[BNY_GROUP_MAX];
    uint8_t code[BNY_GROUP_MAX];
    struct bny_moments mo;
    float s, inv;

    k->moments(&mo, v, m);
    s = mo.max;
    if (e->codec->param[1] > 0) {
        double sum = 0, n = (double)m, variance;

        for (size_t i = 0; i < m; i++)
            sum += (double)v[i];
        variance = mo.sum2 / n - sum / n * (sum / n);
        s = fminf(s, (float)(e->codec->param[1] * sqrt(variance > 0 ? variance : 0)));
        if (e->ef) /* for equal values, all of which the residual would keep, the deviation is 0
                    */
            s = fmaxf(s, (float)sqrt(mo.sum2 / n));
    }
    s = s > 0x1p-120f ? s : 0;
    inv = s > 0 ? 1 / s : 0;
    k->random(random, bny_rand_key(e->seed, e->step, e->rank), (uint32_t)e->index, m);
    for (size_t i = 0; i < m; i++) {
        int on = (float)(random[i] >> 8) * 0x1p-24f < fabsf(v[i]) * inv;

        code[i] = (uint8_t)(1 + (v[i] < 0 ? -on : on));
    }
    scales[0] = e->ef ? bny_shrunk(s, along(v, s, m), squares(v, s, m)) : s;
    k->pack[2](codes, code, m);
}

static void terngrad_decode_group(const struct bny_dec *d, float *out, const float *scales,
                                  const void *codes, size_t m)
{
    uint8_t code[BNY_GROUP_MAX];

    bny_code_kernels_for(d->cpu_flags)->unpack[2](code, codes, m);
    for (size_t i = 0; i < m; i++)
        out[i] = (float)((int)code[i] - 1) * scales[0];
}

static const struct bny_groups groups = { .scales = 1,
                                          .bytes = terngrad_bytes,
                                          .encode = terngrad_encode_group,
                                          .decode = terngrad_decode_group };

static size_t terngrad_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return bny_groups_bytes(&groups, c, n);
}

static long terngrad_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                            size_t n)
{
    return bny_groups_encode(&groups, e, wire, src, n);
}

static int terngrad_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                           size_t n)
{
    return bny_groups_decode(&groups, d, dst, wire, len, n);
}

static int terngrad_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                               const void *wire, size_t len, size_t n)
{
    return bny_groups_decode_add(&groups, d, dst, acc, wire, len, n);
}

const struct bny_codec_ops bny_codec_terngrad = {
    .name = "terngrad",
    .family = BNY_CODEC_BLOCK,
    .flags = BNY_CODEC_FIXED | BNY_CODEC_UNBIASED,
    .doc = "TernGrad: -s, 0 or s at random (Wen et al., 2017)",
    .encode_ns = 1.5,
    .decode_ns = 0.6,
    .params = {
        { "block", 1024, 64, BNY_GROUP_MAX, 1, "elements of a group" },
        { "clip", 0, 0, 100, 0, "standard deviations; 0: no clipping" },
    },
    .bound = terngrad_bound,
    .encode = terngrad_encode,
    .decode = terngrad_decode,
    .decode_add = terngrad_decode_add,
};
