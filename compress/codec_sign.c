/* SPDX-License-Identifier: BSD-3-Clause */
/* Signs times the mean of absolute values, with a residual: EF-signSGD (Karimireddy, Rebjock,
 * Stich, Jaggi: Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML
 * 2019), per group of 4096.
 *
 * Wire: an f32 for each group, the mean of |v|; then ceil(m / 8) bytes for each group of m, bit
 * i set if element i has its sign bit set, lowest first. decoded = +-scale; the group's squared
 * error is sum v^2 - (sum |v|)^2 / m. Requires a residual. Groups whose sum of |v| is not
 * finite are not encoded (raw); an untrusted scale that is negative or not finite is
 * rejected. */
#include "compress/codecs.h"
#include "compress/feedback.h"
#include "compress/kernels/code.h"

#define GROUP BNY_GROUP_MAX

static size_t bytes(const struct bny_codec *c, size_t m)
{
    return bny_packed_bytes(1, m);
}

/* For the layout; the loops here are fused. */
static const struct bny_groups groups = { .size = GROUP, .scales = 1, .bytes = bytes };

typedef float f32_at __attribute__((aligned(1), may_alias));

static size_t sign_count(size_t n)
{
    return n / GROUP + (n % GROUP != 0);
}

static size_t sign_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return bny_groups_bytes(&groups, c, n);
}

static long sign_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                        size_t n)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(e->cpu_flags);
    f32_at *scales = wire;
    const f32_at *x = src;
    char *codes;

    if (n == 0)
        return 0;
    codes = (char *)(scales + sign_count(n));
    /* All scales before any residual: a chunk that is not encoded keeps its residual. */
    for (size_t at = 0, g = 0; at < n; at += GROUP, g++) {
        size_t m = n - at < GROUP ? n - at : GROUP;
        double sum = k->l1(x + at, e->ef ? e->ef + at : NULL, e->ef_scale, m);

        if (!(sum < 0x1p126))
            return -BANYAN_ENOTSUP;
        scales[g] = (float)(sum / (double)m);
    }
    for (size_t at = 0, g = 0; at < n; at += GROUP, g++) {
        size_t m = n - at < GROUP ? n - at : GROUP;

        k->sign_encode(codes + at / 8, x + at, e->ef ? e->ef + at : NULL, e->ef_scale, m,
                       scales[g], -scales[g]);
    }
    return (long)bny_groups_bytes(&groups, e->codec, n);
}

static int decode(const struct bny_dec *d, float *dst, const float *acc, const void *wire,
                  size_t len, size_t n)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(d->cpu_flags);
    const f32_at *scales = wire;
    const char *codes;
    int rc = bny_groups_check(&groups, d->codec, wire, len, n);

    if (rc || n == 0)
        return rc;
    codes = (const char *)(scales + sign_count(n));
    for (size_t at = 0, g = 0; at < n; at += GROUP, g++) {
        size_t m = n - at < GROUP ? n - at : GROUP;
        float s = acc ? scales[g] : scales[g] * d->scale;

        if (acc)
            k->sign_decode_add((f32_at *)dst + at, (const f32_at *)acc + at, codes + at / 8, m,
                               s, -s);
        else
            k->sign_decode((f32_at *)dst + at, codes + at / 8, m, s, -s);
    }
    return 0;
}

static int sign_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                       size_t n)
{
    return decode(d, dst, NULL, wire, len, n);
}

static int sign_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                           const void *wire, size_t len, size_t n)
{
    return decode(d, dst, acc, wire, len, n);
}

const struct bny_codec_ops bny_codec_sign = {
    .name = "sign",
    .family = BNY_CODEC_BLOCK,
    .flags = BNY_CODEC_FIXED | BNY_CODEC_FEEDBACK,
    .doc = "signs times the mean |v| of 4096 (EF-signSGD, Karimireddy et al., 2019)",
    .encode_ns = 0.8,
    .decode_ns = 0.4,
    .bound = sign_bound,
    .encode = sign_encode,
    .decode = sign_decode,
    .decode_add = sign_decode_add,
};
