/* SPDX-License-Identifier: BSD-3-Clause */
/* Loops over values: absolute maximum, moments, residuals, gather and scatter, random numbers,
 * Hadamard. Part of code_loops.h. */

INLINE uint32_t absmax_of(const f32_at *src, const f32_at *ef, float s, size_t n)
{
    uint32_t max = 0;

    INDEPENDENT
    for (size_t i = 0; i < n; i++) {
        uint32_t u = f32_bits(value(src, ef, s, i)) & ABS_BITS;

        max = u > max ? u : max;
    }
    return max > BNY_F32_INF ? BNY_F32_INF + 1 : max; /* a NaN's payload is the processor's */
}

static uint32_t absmax(const void *src, const void *ef, float s, size_t n)
{
    return ef ? absmax_of(src, ef, s, n) : absmax_of(src, NULL, s, n);
}

static void compensate(void *out, const void *src, const void *ef, float s, size_t n)
{
    f32_at *o = out;
    const f32_at *x = src, *e = ef;

    if (!ef) {
        if (n && out != src)
            memcpy(out, src, 4 * n);
        return;
    }
    INDEPENDENT
    for (size_t i = 0; i < n; i++)
        o[i] = canon(x[i] + s * e[i]);
}

static void residual(void *ef, const void *v, const void *back, size_t n)
{
    f32_at *e = ef;
    const f32_at *x = v, *y = back;

    INDEPENDENT
    for (size_t i = 0; i < n; i++)
        e[i] = (f32_bits(y[i]) & ABS_BITS) < BNY_F32_INF ? canon(x[i] - y[i]) : 0;
}

/* State of moments(). The largest value and the count need no order: two vectors are
 * enough. */
struct moment_sums {
    vf sum[VECTORS], sum2[VECTORS];
    vi max[2], finite[2];
};

INLINE void moments_step(const f32_at *x, struct moment_sums *m)
{
    for (int k = 0; k < VECTORS; k++) {
        vi a = (vi)vf_load(x + k * LANES) & ABS_BITS;
        vi finite = a < (int)BNY_F32_INF;
        vf v;

        a &= finite;
        v = (vf)a;
        m->sum[k] += v;
        m->sum2[k] += v * v;
        m->max[k % 2] = vi_max(m->max[k % 2], a);
        m->finite[k % 2] += finite; /* -1 each */
    }
}

static void moments(struct bny_moments *out, const void *src, size_t n)
{
    const f32_at *x = src;
    struct moment_sums m = { 0 };

    *out = (struct bny_moments){ 0 };
    for (size_t at = 0; at < n; at += BNY_SUM_SPAN) {
        size_t len = n - at < BNY_SUM_SPAN ? n - at : BNY_SUM_SPAN, i;
        vi count;

        for (int k = 0; k < VECTORS; k++)
            m.sum[k] = m.sum2[k] = (vf){ 0 };
        m.finite[0] = m.finite[1] = (vi){ 0 };
        for (i = 0; i + STEP <= len; i += STEP)
            moments_step(x + at + i, &m);
        if (i < len) {
            float tail[STEP] = { 0 };

            memcpy(tail, x + at + i, 4 * (len - i));
            moments_step(tail, &m);
            i += STEP;
        }
        out->sum += lanes_sum(m.sum);
        out->sum2 += lanes_sum(m.sum2);
        out->nonfinite += (uint32_t)i;
        count = m.finite[0] + m.finite[1];
        for (int j = 0; j < LANES; j++)
            out->nonfinite += (uint32_t)count[j];
    }
    for (int j = 0; j < LANES; j++)
        out->max = fmaxf(out->max, f32_from_bits((uint32_t)vi_max(m.max[0], m.max[1])[j]));
}

INLINE double l1_of(const f32_at *x, const f32_at *e, float s, size_t n)
{
    double sum = 0;

    for (size_t at = 0; at < n; at += BNY_SUM_SPAN) {
        size_t len = n - at < BNY_SUM_SPAN ? n - at : BNY_SUM_SPAN, i;
        vf acc[VECTORS] = { { 0 } };
        float tail[STEP] = { 0 };

        for (i = at; i + STEP <= at + len; i += STEP)
            for (int k = 0; k < VECTORS; k++)
                acc[k] += vf_abs(vf_value(x, e, vf_set1(s), i + k * LANES));
        for (size_t j = i; j < at + len; j++)
            tail[j - i] = fabsf(value(x, e, s, j));
        for (int k = 0; k < VECTORS; k++)
            acc[k] += vf_load(tail + k * LANES);
        sum += lanes_sum(acc);
    }
    return sum != sum ? (double)NAN : sum;
}

static double l1(const void *src, const void *ef, float s, size_t n)
{
    return ef ? l1_of(src, ef, s, n) : l1_of(src, NULL, s, n);
}

#define SPARSE(bits)                                                                           \
    static int indexes_ok##bits(const void *idx, size_t k, size_t n)                           \
    {                                                                                          \
        const u##bits##_at *p = idx;                                                           \
        unsigned bad = 0;                                                                      \
                                                                                               \
        if (k > n)                                                                             \
            return 0;                                                                          \
        for (size_t j = 1; j < k; j++)                                                         \
            bad |= p[j - 1] >= p[j];                                                           \
        return !bad && (k == 0 || p[k - 1] < n);                                               \
    }                                                                                          \
    static void scatter##bits(void *dst, const void *idx, const void *val, size_t k)           \
    {                                                                                          \
        f32_at *d = dst;                                                                       \
        const u##bits##_at *p = idx;                                                           \
        const f32_at *x = val;                                                                 \
                                                                                               \
        for (size_t j = 0; j < k; j++)                                                         \
            d[p[j]] = x[j];                                                                    \
    }                                                                                          \
    static void scatter_add##bits(void *dst, const void *idx, const void *val, size_t k)       \
    {                                                                                          \
        f32_at *d = dst;                                                                       \
        const u##bits##_at *p = idx;                                                           \
        const f32_at *x = val;                                                                 \
                                                                                               \
        for (size_t j = 0; j < k; j++)                                                         \
            d[p[j]] = canon(d[p[j]] + x[j]);                                                   \
    }
SPARSE(16)
SPARSE(32)
#undef SPARSE

static void gather32(void *val, const void *src, const void *idx, size_t k)
{
    f32_at *v = val;
    const f32_at *x = src;
    const u32_at *p = idx;

    for (size_t j = 0; j < k; j++)
        v[j] = x[p[j]];
}

static void flip(void *out, const void *src, struct bny_rand key, uint32_t index, size_t n)
{
    u32_at *o = out;
    const u32_at *x = src;

    INDEPENDENT
    for (size_t i = 0; i < n; i++)
        o[i] = x[i] ^ bny_rand_at(key, index + (uint32_t)i) << 31;
}

static void random_bits(uint32_t *out, struct bny_rand key, uint32_t index, size_t n)
{
    INDEPENDENT
    for (size_t i = 0; i < n; i++)
        out[i] = bny_rand_at(key, index + (uint32_t)i);
}

/* One stage: pairs h apart. */
INLINE void fwht_stage(float *x, size_t h)
{
    for (size_t i = 0; i < BNY_FWHT; i += 2 * h) {
        INDEPENDENT
        for (size_t j = i; j < i + h; j++) {
            float a = x[j], b = x[j + h];

            x[j] = a + b;
            x[j + h] = a - b;
        }
    }
}

#ifndef FWHT
static void fwht(void *data)
{
    float x[BNY_FWHT];

    memcpy(x, data, sizeof x);
    fwht_stage(x, 512);
    fwht_stage(x, 256);
    fwht_stage(x, 128);
    fwht_stage(x, 64);
    fwht_stage(x, 32);
    fwht_stage(x, 16);
    fwht_stage(x, 8);
    fwht_stage(x, 4);
    fwht_stage(x, 2);
    fwht_stage(x, 1);
    for (size_t i = 0; i < BNY_FWHT; i++)
        x[i] *= 0x1p-5f;
    memcpy(data, x, sizeof x);
}
#endif
