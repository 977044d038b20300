/* SPDX-License-Identifier: BSD-3-Clause */
/* Every inner loop, and the table of them; included once by each reduce_<isa>.c, which is
 * compiled for that instruction set. The including file has defined before:
 *   LANES                  elements in a vector of f32
 *   vf                     that vector
 *   vf_load_T(p), vf_store_T(p, v)   for T in f32, f16, bf16; any alignment, converting
 *   vf_store_canon_T(p, v) for T in f16, bf16: the same, but NaN become T's canonical NaN
 *   vf_canon(v)            the same in f32
 *   vf_add, vf_mul, vf_set1
 *   stream_line(d, s)      copies 64 bytes past the caches; d is 64-aligned, s any
 *   stream_end()           orders those copies before later stores
 *   STREAM_FROM            bytes from which sum2 uses them; SIZE_MAX: never
 *   ENCODE_BF16            defined: encode_bf16() is there already
 *   KERNELS, KERNELS_NAME  the table's symbol and name
 * The two-byte floats use those vectors; for the other types the compiler makes vectors of
 * the plain loops, which give the same bits by definition. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "compress/kernels/f8.h"
#include "compress/kernels/kernels.h"

#define INLINE static inline __attribute__((always_inline))

/* dst is a or b exactly, or apart from both: no iteration reads what another one wrote. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define UNROLLED    _Pragma("clang loop unroll(full)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#define UNROLLED    _Pragma("GCC unroll 8")
#endif

/* Elements at any address, of arrays of any type. */
#define ELEM(type, name) typedef type name##_at __attribute__((aligned(1), may_alias))
ELEM(float, f32);
ELEM(double, f64);
ELEM(int8_t, i8);
ELEM(uint8_t, u8);
ELEM(uint16_t, u16);
ELEM(int16_t, i16);
ELEM(int32_t, i32);
ELEM(uint32_t, u32);
ELEM(int64_t, i64);
ELEM(uint64_t, u64);
#undef ELEM

INLINE float sum_one_f32(float x, float y)
{
    float r = x + y;

    return r != r ? NAN : r;
}

INLINE float prod_one_f32(float x, float y)
{
    float r = x * y;

    return r != r ? NAN : r;
}

INLINE double sum_one_f64(double x, double y)
{
    double r = x + y;

    return r != r ? (double)NAN : r;
}

INLINE double prod_one_f64(double x, double y)
{
    double r = x * y;

    return r != r ? (double)NAN : r;
}

#define LOOP(name, elem, expr)                                                                 \
    static void name(void *dst, const void *a, const void *b, size_t n)                        \
    {                                                                                          \
        elem##_at *d = dst;                                                                    \
        const elem##_at *pa = a, *pb = b;                                                      \
                                                                                               \
        INDEPENDENT                                                                            \
        for (size_t i = 0; i < n; i++) {                                                       \
            elem##_at x = pa[i], y = pb[i];                                                    \
            d[i] = expr;                                                                       \
        }                                                                                      \
    }
LOOP(sum_f32, f32, sum_one_f32(x, y))
LOOP(sum_f64, f64, sum_one_f64(x, y))
LOOP(prod_f32, f32, prod_one_f32(x, y))
LOOP(prod_f64, f64, prod_one_f64(x, y))

/* clang-format takes x * y for a declaration. */
/* clang-format off */

/* Integers: sum and product modulo 2^bits are the same for both signs. */
LOOP(sum_8, u8, (uint8_t)(x + y))
LOOP(sum_16, u16, (uint16_t)(x + y))
LOOP(sum_32, u32, x + y)
LOOP(sum_64, u64, x + y)
LOOP(prod_8, u8, (uint8_t)(x * y))
LOOP(prod_16, u16, (uint16_t)(1u * x * y))
LOOP(prod_32, u32, x * y)
LOOP(prod_64, u64, x * y)
LOOP(min_i8, i8, x < y ? x : y)
LOOP(min_u8, u8, x < y ? x : y)
LOOP(min_i16, i16, x < y ? x : y)
LOOP(min_u16, u16, x < y ? x : y)
LOOP(min_i32, i32, x < y ? x : y)
LOOP(min_u32, u32, x < y ? x : y)
LOOP(min_i64, i64, x < y ? x : y)
LOOP(min_u64, u64, x < y ? x : y)
LOOP(max_i8, i8, x > y ? x : y)
LOOP(max_u8, u8, x > y ? x : y)
LOOP(max_i16, i16, x > y ? x : y)
LOOP(max_u16, u16, x > y ? x : y)
LOOP(max_i32, i32, x > y ? x : y)
LOOP(max_u32, u32, x > y ? x : y)
LOOP(max_i64, i64, x > y ? x : y)
LOOP(max_u64, u64, x > y ? x : y)
LOOP(band_8, u8, x & y)
LOOP(band_16, u16, x & y)
LOOP(band_32, u32, x & y)
LOOP(band_64, u64, x & y)
LOOP(bor_8, u8, x | y)
LOOP(bor_16, u16, x | y)
LOOP(bor_32, u32, x | y)
LOOP(bor_64, u64, x | y)
LOOP(bxor_8, u8, x ^ y)
LOOP(bxor_16, u16, x ^ y)
LOOP(bxor_32, u32, x ^ y)
LOOP(bxor_64, u64, x ^ y)
LOOP(or_bool, u8, (x | y) != 0)
LOOP(and_bool, u8, (x != 0) & (y != 0))
LOOP(xor_bool, u8, (x != 0) ^ (y != 0))
LOOP(sum_f8e4m3, u8, f8_from_f32(f8_to_f32(x, F8E4M3) + f8_to_f32(y, F8E4M3), F8E4M3))
LOOP(sum_f8e5m2, u8, f8_from_f32(f8_to_f32(x, F8E5M2) + f8_to_f32(y, F8E5M2), F8E5M2))
LOOP(prod_f8e4m3, u8, f8_from_f32(f8_to_f32(x, F8E4M3) * f8_to_f32(y, F8E4M3), F8E4M3))
LOOP(prod_f8e5m2, u8, f8_from_f32(f8_to_f32(x, F8E5M2) * f8_to_f32(y, F8E5M2), F8E5M2))
/* clang-format on */
#undef LOOP

/* Minimum and maximum of floats compare integers: the key is monotonic in the value, with -0
 * just below +0; a NaN (above `inf` without its sign) gets `loser`, the key that never wins. sx
 * is 0 or, for a set sign bit, -1. Branches in place of this arithmetic were up to five times
 * slower. */
#define KEY_LOOP(name, bits, inf, loser, wins)                                                 \
    static void name(void *dst, const void *a, const void *b, size_t n)                        \
    {                                                                                          \
        u##bits##_at *d = dst;                                                                 \
        const u##bits##_at *pa = a, *pb = b;                                                   \
                                                                                               \
        INDEPENDENT                                                                            \
        for (size_t i = 0; i < n; i++) {                                                       \
            uint##bits##_t x = pa[i], y = pb[i];                                               \
            int##bits##_t mx = x & INT##bits##_MAX, my = y & INT##bits##_MAX;                  \
            int##bits##_t sx = (int##bits##_t)x >> (bits - 1);                                 \
            int##bits##_t sy = (int##bits##_t)y >> (bits - 1);                                 \
            int##bits##_t kx = mx > (inf) ? (loser) : sx ^ mx;                                 \
            int##bits##_t ky = my > (inf) ? (loser) : sy ^ my;                                 \
                                                                                               \
            d[i] = kx wins ky ? x : y;                                                         \
        }                                                                                      \
    }
/* clang-format off */
KEY_LOOP(min_f32, 32, 0x7f800000, INT32_MAX, <=)
KEY_LOOP(max_f32, 32, 0x7f800000, INT32_MIN, >=)
KEY_LOOP(min_f64, 64, 0x7ff0000000000000, INT64_MAX, <=)
KEY_LOOP(max_f64, 64, 0x7ff0000000000000, INT64_MIN, >=)
KEY_LOOP(min_f16, 16, 0x7c00, INT16_MAX, <=)
KEY_LOOP(max_f16, 16, 0x7c00, INT16_MIN, >=)
KEY_LOOP(min_bf16, 16, 0x7f80, INT16_MAX, <=)
KEY_LOOP(max_bf16, 16, 0x7f80, INT16_MIN, >=)
KEY_LOOP(min_f8e4m3, 8, 0x7e, INT8_MAX, <=)
KEY_LOOP(max_f8e4m3, 8, 0x7e, INT8_MIN, >=)
KEY_LOOP(min_f8e5m2, 8, 0x7c, INT8_MAX, <=)
KEY_LOOP(max_f8e5m2, 8, 0x7c, INT8_MIN, >=)
/* clang-format on */
#undef KEY_LOOP

/* Both destinations in one pass. `copy` is other memory than dst, a and b. */
#define LOOP2(name, elem, expr)                                                                \
    static void name(void *dst, void *copy, const void *a, const void *b, size_t n)            \
    {                                                                                          \
        elem##_at *d = dst, *c = copy;                                                         \
        const elem##_at *pa = a, *pb = b;                                                      \
                                                                                               \
        INDEPENDENT                                                                            \
        for (size_t i = 0; i < n; i++) {                                                       \
            elem##_at x = pa[i], y = pb[i];                                                    \
            d[i] = c[i] = expr;                                                                \
        }                                                                                      \
    }
LOOP2(plain2_f32, f32, sum_one_f32(x, y))
LOOP2(plain2_f64, f64, sum_one_f64(x, y))
#undef LOOP2

/* Several arrays in one pass, from the first on. A NaN stays one whatever is added to it, so
 * that the last addition alone makes it the canonical one. */
#define LOOPS(name, elem, last)                                                                \
    static void name##4(void *dst, const void *const in[], size_t n)                           \
    {                                                                                          \
        elem##_at *d = dst;                                                                    \
        const elem##_at *a = in[0], *b = in[1], *e = in[2], *f = in[3];                        \
                                                                                               \
        INDEPENDENT                                                                            \
        for (size_t i = 0; i < n; i++)                                                         \
            d[i] = last(a[i] + b[i] + e[i], f[i]);                                             \
    }                                                                                          \
    static void name##8(void *dst, const void *const in[], size_t n)                           \
    {                                                                                          \
        elem##_at *d = dst;                                                                    \
        const elem##_at *a = in[0], *b = in[1], *e = in[2], *f = in[3], *g = in[4],            \
                        *h = in[5], *k = in[6], *l = in[7];                                    \
                                                                                               \
        INDEPENDENT                                                                            \
        for (size_t i = 0; i < n; i++)                                                         \
            d[i] = last(a[i] + b[i] + e[i] + f[i] + g[i] + h[i] + k[i], l[i]);                 \
    }
LOOPS(sums_f32_, f32, sum_one_f32)
LOOPS(sums_f64_, f64, sum_one_f64)
#undef LOOPS

static void scale_f32(void *dst, const void *src, size_t n, double scalar)
{
    f32_at *d = dst;
    const f32_at *s = src;
    float factor = (float)scalar;

    INDEPENDENT
    for (size_t i = 0; i < n; i++)
        d[i] = prod_one_f32(s[i], factor);
}

static void scale_f64(void *dst, const void *src, size_t n, double scalar)
{
    f64_at *d = dst;
    const f64_at *s = src;

    INDEPENDENT
    for (size_t i = 0; i < n; i++)
        d[i] = prod_one_f64(s[i], scalar);
}

#define SCALE_F8(T, format)                                                                    \
    static void scale_##T(void *dst, const void *src, size_t n, double scalar)                 \
    {                                                                                          \
        u8_at *d = dst;                                                                        \
        const u8_at *s = src;                                                                  \
        float factor = (float)scalar;                                                          \
                                                                                               \
        INDEPENDENT                                                                            \
        for (size_t i = 0; i < n; i++)                                                         \
            d[i] = f8_from_f32(f8_to_f32(s[i], format) * factor, format);                      \
    }
SCALE_F8(f8e4m3, F8E4M3)
SCALE_F8(f8e5m2, F8E5M2)
#undef SCALE_F8

/* Complex numbers: sums and scalings are those of their parts. Products: kernels.h. */
#define COMPLEX(T, part)                                                                       \
    static void sum_##T(void *dst, const void *a, const void *b, size_t n)                     \
    {                                                                                          \
        sum_##part(dst, a, b, 2 * n);                                                          \
    }                                                                                          \
    static void scale_##T(void *dst, const void *src, size_t n, double scalar)                 \
    {                                                                                          \
        scale_##part(dst, src, 2 * n, scalar);                                                 \
    }
COMPLEX(c64, f32)
COMPLEX(c128, f64)
#undef COMPLEX

/* One vector of LANES elements: d (and c) = x (op) y. A step ignores what it does not need. */
typedef void (*step_fn)(unsigned char *d, unsigned char *c, const unsigned char *x,
                        const unsigned char *y, vf factor);

#define STEPS(T)                                                                               \
    INLINE void step_sum_##T(unsigned char *d, unsigned char *c, const unsigned char *x,       \
                             const unsigned char *y, vf factor)                                \
    {                                                                                          \
        vf_store_canon_##T(d, vf_add(vf_load_##T(x), vf_load_##T(y)));                         \
    }                                                                                          \
    INLINE void step_sum2_##T(unsigned char *d, unsigned char *c, const unsigned char *x,      \
                              const unsigned char *y, vf factor)                               \
    {                                                                                          \
        vf r = vf_add(vf_load_##T(x), vf_load_##T(y));                                         \
                                                                                               \
        vf_store_canon_##T(d, r);                                                              \
        vf_store_canon_##T(c, r);                                                              \
    }                                                                                          \
    INLINE void step_prod_##T(unsigned char *d, unsigned char *c, const unsigned char *x,      \
                              const unsigned char *y, vf factor)                               \
    {                                                                                          \
        vf_store_canon_##T(d, vf_mul(vf_load_##T(x), vf_load_##T(y)));                         \
    }                                                                                          \
    INLINE void step_scale_##T(unsigned char *d, unsigned char *c, const unsigned char *x,     \
                               const unsigned char *y, vf factor)                              \
    {                                                                                          \
        vf_store_canon_##T(d, vf_mul(vf_load_##T(x), factor));                                 \
    }                                                                                          \
    INLINE void step_encode_##T(unsigned char *d, unsigned char *c, const unsigned char *x,    \
                                const unsigned char *y, vf factor)                             \
    {                                                                                          \
        vf_store_##T(d, vf_load_f32(x));                                                       \
    }                                                                                          \
    INLINE void step_decode_##T(unsigned char *d, unsigned char *c, const unsigned char *x,    \
                                const unsigned char *y, vf factor)                             \
    {                                                                                          \
        vf_store_f32(d, vf_load_##T(x));                                                       \
    }                                                                                          \
    INLINE void step_decode_add_##T(unsigned char *d, unsigned char *c,                        \
                                    const unsigned char *x, const unsigned char *y, vf factor) \
    {                                                                                          \
        vf_store_f32(d, vf_canon(vf_add(vf_load_f32(x), vf_load_##T(y))));                     \
    }
STEPS(f16)
STEPS(bf16)
#undef STEPS

/* Applies step to n elements; ?bytes: of one element of each array, 0 where there is none.
 * The last, incomplete vector goes through zeroed buffers, so that its elements meet the
 * same instructions. */
INLINE void run(step_fn step, size_t n, vf factor, unsigned char *d, size_t dbytes,
                unsigned char *c, size_t cbytes, const unsigned char *x, size_t xbytes,
                const unsigned char *y, size_t ybytes)
{
    unsigned char td[4 * LANES], tc[4 * LANES], tx[4 * LANES] = { 0 }, ty[4 * LANES] = { 0 };
    size_t i;

    for (i = 0; i + LANES <= n; i += LANES) {
        step(d, c, x, y, factor);
        d += LANES * dbytes;
        c += LANES * cbytes;
        x += LANES * xbytes;
        y += LANES * ybytes;
    }
    if (i == n)
        return;
    memcpy(tx, x, (n - i) * xbytes);
    if (ybytes)
        memcpy(ty, y, (n - i) * ybytes);
    step(td, tc, tx, ty, factor);
    memcpy(d, td, (n - i) * dbytes);
    if (cbytes)
        memcpy(c, tc, (n - i) * cbytes);
}

#define HALF(T)                                                                                \
    static void sum_##T(void *dst, const void *a, const void *b, size_t n)                     \
    {                                                                                          \
        run(step_sum_##T, n, vf_set1(0), dst, 2, dst, 0, a, 2, b, 2);                          \
    }                                                                                          \
    static void plain2_##T(void *dst, void *copy, const void *a, const void *b, size_t n)      \
    {                                                                                          \
        run(step_sum2_##T, n, vf_set1(0), dst, 2, copy, 2, a, 2, b, 2);                        \
    }                                                                                          \
    static void prod_##T(void *dst, const void *a, const void *b, size_t n)                    \
    {                                                                                          \
        run(step_prod_##T, n, vf_set1(0), dst, 2, dst, 0, a, 2, b, 2);                         \
    }                                                                                          \
    static void scale_##T(void *dst, const void *src, size_t n, double scalar)                 \
    {                                                                                          \
        run(step_scale_##T, n, vf_set1((float)scalar), dst, 2, dst, 0, src, 2, src, 0);        \
    }                                                                                          \
    static void decode_##T(float *dst, const void *wire, size_t n)                             \
    {                                                                                          \
        run(step_decode_##T, n, vf_set1(0), (void *)dst, 4, (void *)dst, 0, wire, 2, wire, 0); \
    }                                                                                          \
    static void decode_add_##T(float *dst, const float *acc, const void *wire, size_t n)       \
    {                                                                                          \
        run(step_decode_add_##T, n, vf_set1(0), (void *)dst, 4, (void *)dst, 0,                \
            (const void *)acc, 4, wire, 2);                                                    \
    }
HALF(f16)
HALF(bf16)
#undef HALF

/* Several arrays in one pass, as that many sums of two: what is between them is rounded to T
 * and stays in registers. No sum is a NaN that rounding could spoil: the low bits of its
 * payload are those of a T, which are zero. */
#define HALF_SUMS(T, K)                                                                        \
    INLINE void step_sums_##T##_##K(unsigned char *d, const unsigned char *const in[])         \
    {                                                                                          \
        vf r = vf_add(vf_load_##T(in[0]), vf_load_##T(in[1]));                                 \
                                                                                               \
        UNROLLED                                                                               \
        for (int k = 2; k < K; k++)                                                            \
            r = vf_add(vf_round_##T(r), vf_load_##T(in[k]));                                   \
        vf_store_canon_##T(d, r);                                                              \
    }                                                                                          \
    static void sums_##T##_##K(void *dst, const void *const arrays[], size_t n)                \
    {                                                                                          \
        unsigned char *d = dst, t[K][2 * LANES] = { 0 };                                       \
        const unsigned char *in[K];                                                            \
        size_t i;                                                                              \
                                                                                               \
        UNROLLED                                                                               \
        for (int k = 0; k < K; k++)                                                            \
            in[k] = arrays[k];                                                                 \
        for (i = 0; i + LANES <= n; i += LANES) {                                              \
            step_sums_##T##_##K(d, in);                                                        \
            d += 2 * LANES;                                                                    \
            UNROLLED                                                                           \
            for (int k = 0; k < K; k++)                                                        \
                in[k] += 2 * LANES;                                                            \
        }                                                                                      \
        if (i == n)                                                                            \
            return;                                                                            \
        for (int k = 0; k < K; k++) {                                                          \
            memcpy(t[k], in[k], (n - i) * 2);                                                  \
            in[k] = t[k];                                                                      \
        }                                                                                      \
        step_sums_##T##_##K(t[0], in);                                                         \
        memcpy(d, t[0], (n - i) * 2);                                                          \
    }
HALF_SUMS(f16, 4)
HALF_SUMS(f16, 8)
HALF_SUMS(bf16, 4)
HALF_SUMS(bf16, 8)
#undef HALF_SUMS

#define ENCODE(T)                                                                              \
    static void encode_##T(void *wire, const float *src, size_t n)                             \
    {                                                                                          \
        run(step_encode_##T, n, vf_set1(0), wire, 2, wire, 0, (const void *)src, 4,            \
            (const void *)src, 0);                                                             \
    }
ENCODE(f16)
#ifndef ENCODE_BF16
ENCODE(bf16)
#endif
#undef ENCODE

/* As memcpy, past the caches. */
static void stream_copy(unsigned char *d, const unsigned char *s, size_t bytes)
{
    size_t head = (64 - ((uintptr_t)d & 63)) & 63;

    if (head > bytes)
        head = bytes;
    memcpy(d, s, head);
    d += head;
    s += head;
    for (bytes -= head; bytes >= 64; bytes -= 64) {
        stream_line(d, s);
        d += 64;
        s += 64;
    }
    memcpy(d, s, bytes);
}

#define STREAM_BLOCK 4096 /* bytes: dst's part is still in the L1 cache when it is copied */

/* Large arrays: dst's part is written back from the caches anyway, but reading copy's lines
 * in order to overwrite them, and evicting others for them, can be saved. */
INLINE void sum2(bny_reduce2_fn plain, bny_reduce_fn sum, unsigned char *d, unsigned char *c,
                 const unsigned char *a, const unsigned char *b, size_t n, size_t elem_bytes)
{
    size_t left = n * elem_bytes;

    if (left < STREAM_FROM) {
        plain(d, c, a, b, n);
        return;
    }
    while (left > 0) {
        size_t bytes = left < STREAM_BLOCK ? left : STREAM_BLOCK;

        sum(d, a, b, bytes / elem_bytes);
        stream_copy(c, d, bytes);
        d += bytes;
        c += bytes;
        a += bytes;
        b += bytes;
        left -= bytes;
    }
    stream_end();
}

#define SUM2(T, elem_bytes)                                                                    \
    static void sum2_##T(void *dst, void *copy, const void *a, const void *b, size_t n)        \
    {                                                                                          \
        sum2(plain2_##T, sum_##T, dst, copy, a, b, n, elem_bytes);                             \
    }
SUM2(f32, 4)
SUM2(f64, 8)
SUM2(f16, 2)
SUM2(bf16, 2)
#undef SUM2

#define FLOAT_OPS(T)                                                                           \
    {                                                                                          \
        [BANYAN_SUM] = sum_##T, [BANYAN_AVG] = sum_##T, [BANYAN_MIN] = min_##T,                \
        [BANYAN_MAX] = max_##T, [BANYAN_PROD] = prod_##T,                                      \
    }
#define INT_OPS(T, bits)                                                                       \
    {                                                                                          \
        [BANYAN_SUM] = sum_##bits, [BANYAN_AVG] = sum_##bits, [BANYAN_MIN] = min_##T,          \
        [BANYAN_MAX] = max_##T, [BANYAN_PROD] = prod_##bits, [BANYAN_BAND] = band_##bits,      \
        [BANYAN_BOR] = bor_##bits, [BANYAN_BXOR] = bxor_##bits,                                \
    }
#define COMPLEX_OPS(T)                                                                         \
    {                                                                                          \
        [BANYAN_SUM] = sum_##T, [BANYAN_AVG] = sum_##T, [BANYAN_PROD] = bny_prod_##T,          \
    }
const struct bny_kernels KERNELS = {
    .name = KERNELS_NAME,
    .reduce = {
        [BANYAN_F32] = FLOAT_OPS(f32),
        [BANYAN_F64] = FLOAT_OPS(f64),
        [BANYAN_F16] = FLOAT_OPS(f16),
        [BANYAN_BF16] = FLOAT_OPS(bf16),
        [BANYAN_I8] = INT_OPS(i8, 8),
        [BANYAN_U8] = INT_OPS(u8, 8),
        [BANYAN_I32] = INT_OPS(i32, 32),
        [BANYAN_U32] = INT_OPS(u32, 32),
        [BANYAN_I64] = INT_OPS(i64, 64),
        [BANYAN_U64] = INT_OPS(u64, 64),
        [BANYAN_BOOL] = {
            [BANYAN_SUM] = or_bool, [BANYAN_MAX] = or_bool, [BANYAN_BOR] = or_bool,
            [BANYAN_PROD] = and_bool, [BANYAN_MIN] = and_bool, [BANYAN_BAND] = and_bool,
            [BANYAN_BXOR] = xor_bool,
        },
        [BANYAN_I16] = INT_OPS(i16, 16),
        [BANYAN_U16] = INT_OPS(u16, 16),
        [BANYAN_C64] = COMPLEX_OPS(c64),
        [BANYAN_C128] = COMPLEX_OPS(c128),
        [BANYAN_F8E4M3] = FLOAT_OPS(f8e4m3),
        [BANYAN_F8E5M2] = FLOAT_OPS(f8e5m2),
    },
    .sum2 = {
        [BANYAN_F32] = sum2_f32,
        [BANYAN_F64] = sum2_f64,
        [BANYAN_F16] = sum2_f16,
        [BANYAN_BF16] = sum2_bf16,
    },
    .sum4 = {
        [BANYAN_F32] = sums_f32_4,
        [BANYAN_F64] = sums_f64_4,
        [BANYAN_F16] = sums_f16_4,
        [BANYAN_BF16] = sums_bf16_4,
    },
    .sum8 = {
        [BANYAN_F32] = sums_f32_8,
        [BANYAN_F64] = sums_f64_8,
        [BANYAN_F16] = sums_f16_8,
        [BANYAN_BF16] = sums_bf16_8,
    },
    .scale = {
        [BANYAN_F32] = scale_f32,
        [BANYAN_F64] = scale_f64,
        [BANYAN_F16] = scale_f16,
        [BANYAN_BF16] = scale_bf16,
        [BANYAN_C64] = scale_c64,
        [BANYAN_C128] = scale_c128,
        [BANYAN_F8E4M3] = scale_f8e4m3,
        [BANYAN_F8E5M2] = scale_f8e5m2,
    },
    .f16 = { .encode = encode_f16, .decode = decode_f16, .decode_add = decode_add_f16 },
    .bf16 = { .encode = encode_bf16, .decode = decode_bf16, .decode_add = decode_add_bf16 },
};
#undef FLOAT_OPS
#undef INT_OPS
#undef COMPLEX_OPS
