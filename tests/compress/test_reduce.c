/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of compress/reduce.h: the scalar loops compute what the header says, and every
 * other instruction set gives the same bits for any bytes, length, alignment and permitted
 * overlap, and touches nothing else. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "base/cpu.h"
#include "base/rng.h"
#include "compress/kernels/half.h"
#include "compress/kernels/kernels.h"
#include "compress/reduce.h"

#define SEED  0x5eed0002
#define GUARD 64
#define N_MAX 130
#define ARRAY (GUARD + (N_MAX + 4) * 16 + GUARD)

TestSuite(reduce, .timeout = 60);

static const size_t elem_bytes[] = { 4, 8, 2, 2, 1, 1, 4, 4, 8, 8, 1, 2, 2, 8, 16, 1, 1 };

/* Random bytes in which every float type meets NaN, infinities, zeros and subnormal numbers
 * often. */
static void fill(unsigned char *p, size_t bytes, uint64_t *rng)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (unsigned char)bny_rng_next(rng);
    for (size_t i = 0; i + 8 <= bytes; i += 2) {
        static const uint16_t special[] = { 0x7fff, 0xffff, 0x7ff0, 0xfff0, 0x7f80,
                                            0xff80, 0x7c00, 0xfc00, 0x7c01, 0x7f81,
                                            0x0000, 0x8000, 0x0001, 0x807f };
        uint16_t top = special[bny_rng_below(rng, sizeof special / sizeof special[0])];

        if (bny_rng_below(rng, 4) == 0) {
            memset(p + i, bny_rng_below(rng, 2) ? 0 : p[i], 6);
            memcpy(p + i + 6, &top, 2);
        }
    }
}

struct level {
    char name[8];
    unsigned flags;
};

ParameterizedTestParameters(reduce, isa_gives_the_scalar_bits)
{
    static struct level levels[] = { { "avx2", BNY_CPU_AVX2 },
                                     { "avx512", BNY_CPU_AVX2 | BNY_CPU_AVX512 } };

    return cr_make_param_array(struct level, levels, 2);
}

/* want and got start equal; dst may be one of the operands (which: 0 neither, 1 a, 2 b). */
static void compare_reduce(const struct level *level, int t, int op, size_t n, size_t offset,
                           int which, uint64_t *rng)
{
    unsigned char mem[2][3][ARRAY];
    bny_reduce_fn fn[2] = { bny_reduce_get((enum banyan_dtype)t, (enum banyan_op_kind)op, 0),
                            bny_reduce_get((enum banyan_dtype)t, (enum banyan_op_kind)op,
                                           level->flags) };

    fill(mem[0][0], sizeof mem[0], rng);
    memcpy(mem[1], mem[0], sizeof mem[0]);
    for (int k = 0; k < 2; k++) {
        unsigned char *dst = mem[k][0] + GUARD + offset, *a = mem[k][1] + GUARD + offset;
        unsigned char *b = mem[k][2] + GUARD;

        fn[k](which == 1 ? a : which == 2 ? b : dst, a, b, n);
    }
    if (memcmp(mem[0], mem[1], sizeof mem[0]))
        cr_assert_fail("%s differs from scalar: type %d op %d n %zu offset %zu dst %d seed %#x",
                       level->name, t, op, n, offset, which, SEED);
}

ParameterizedTest(struct level *level, reduce, isa_gives_the_scalar_bits)
{
    uint64_t rng = SEED;

    if ((bny_cpu_flags() & level->flags) != level->flags)
        cr_skip_test("this machine lacks the instruction set");
    for (int t = 0; t < BNY_DTYPE_COUNT; t++)
        for (int op = 0; op < BNY_OP_COUNT; op++) {
            if (!bny_reduce_get((enum banyan_dtype)t, (enum banyan_op_kind)op, 0))
                continue;
            for (size_t n = 0; n <= N_MAX; n++)
                for (size_t off = 0; off < 5; off++) /* elements, then one byte */
                    compare_reduce(level, t, op, n, off < 4 ? off * elem_bytes[t] : 1,
                                   (int)((n + off) % 3), &rng);
        }
}

/* sum2 on n elements must be sum and a copy, at both sides of the switch to streaming
 * stores. */
static void compare_sum2(const struct level *level, int t, size_t n, size_t offset,
                         uint64_t *rng)
{
    size_t bytes = n * elem_bytes[t], room = GUARD + 8 + bytes + GUARD;
    unsigned char *mem = malloc(5 * room), *a = mem, *b = mem + room, *want = mem + 2 * room;
    unsigned char *dst = mem + 3 * room, *copy = mem + 4 * room;
    bny_reduce2_fn fn = bny_reduce2_get((enum banyan_dtype)t, BANYAN_SUM, level->flags);

    fill(mem, 3 * room < 4096 ? 3 * room : 4096, rng);
    for (size_t i = 4096; i < 3 * room; i += 4096)
        memcpy(mem + i, mem, 3 * room - i < 4096 ? 3 * room - i : 4096);
    memcpy(dst, want, room);
    memcpy(copy, want, room);
    bny_reduce_get((enum banyan_dtype)t, BANYAN_SUM, 0)(want + GUARD, a + 8, b, n);
    if (n % 2) { /* in place */
        memcpy(dst + GUARD, a + 8, bytes);
        fn(dst + GUARD, copy + GUARD, dst + GUARD, b, n);
    } else {
        fn(dst + GUARD, copy + GUARD, a + 8, b, n);
    }
    if (memcmp(dst, want, room) || memcmp(copy, want, room))
        cr_assert_fail("%s sum2: type %d n %zu seed %#x", level->name, t, n, SEED);
    /* The same with the copy elsewhere in its cache line. */
    memcpy(copy + GUARD, want + GUARD, offset);
    memset(copy + GUARD + offset, 0, bytes);
    fn(dst + GUARD, copy + GUARD + offset, a + 8, b, n);
    if (memcmp(copy + GUARD + offset, want + GUARD, bytes))
        cr_assert_fail("%s sum2: type %d n %zu copy at %zu seed %#x", level->name, t, n, offset,
                       SEED);
    free(mem);
}

ParameterizedTestParameters(reduce, sum2_is_sum_and_copy)
{
    static struct level levels[] = { { "scalar", 0 },
                                     { "avx2", BNY_CPU_AVX2 },
                                     { "avx512", BNY_CPU_AVX2 | BNY_CPU_AVX512 } };

    return cr_make_param_array(struct level, levels, 3);
}

ParameterizedTest(struct level *level, reduce, sum2_is_sum_and_copy)
{
    uint64_t rng = SEED;

    if ((bny_cpu_flags() & level->flags) != level->flags)
        cr_skip_test("this machine lacks the instruction set");
    for (int t = BANYAN_F32; t <= BANYAN_BF16; t++) {
        for (size_t n = 0; n <= N_MAX; n++)
            compare_sum2(level, t, n, n % 8, &rng);
        compare_sum2(level, t, ((size_t)2 << 20) / elem_bytes[t] - 1, 1, &rng);
        compare_sum2(level, t, ((size_t)2 << 20) / elem_bytes[t] + 37, 3, &rng);
    }
}

/* Sums of several arrays must have the bits of one addition after the other, in place, too. */
static void compare_many(const struct level *level, int t, int arrays, size_t n, size_t offset,
                         uint64_t *rng)
{
    unsigned char mem[8][ARRAY], want[ARRAY], got[ARRAY];
    const void *in[8];
    bny_reduce_fn sum = bny_reduce_get((enum banyan_dtype)t, BANYAN_SUM, 0);
    int into = (int)(n % 9);

    fill(mem[0], sizeof mem, rng);
    for (int i = 0; i < arrays; i++)
        in[i] = mem[i] + GUARD + (i % 2 ? offset : 0);
    memcpy(want, into < arrays ? mem[into] : mem[0], ARRAY);
    memcpy(got, want, ARRAY);
    if (into < arrays)
        in[into] = got + GUARD + (into % 2 ? offset : 0);
    {
        unsigned char *to = want + GUARD + (into < arrays && into % 2 ? offset : 0);
        unsigned char acc[ARRAY];

        memcpy(acc, in[0], n * elem_bytes[t]);
        for (int i = 1; i < arrays; i++)
            sum(acc, acc, in[i], n);
        memcpy(to, acc, n * elem_bytes[t]);
        bny_reduce_many_get((enum banyan_dtype)t, BANYAN_SUM, arrays,
                            level->flags)(got + (to - want), in, n);
    }
    if (memcmp(want, got, ARRAY))
        cr_assert_fail("%s sum of %d: type %d n %zu offset %zu into %d seed %#x", level->name,
                       arrays, t, n, offset, into, SEED);
}

ParameterizedTestParameters(reduce, sums_of_several_arrays_are_sums_of_two)
{
    static struct level levels[] = { { "scalar", 0 },
                                     { "avx2", BNY_CPU_AVX2 },
                                     { "avx512", BNY_CPU_AVX2 | BNY_CPU_AVX512 } };

    return cr_make_param_array(struct level, levels, 3);
}

ParameterizedTest(struct level *level, reduce, sums_of_several_arrays_are_sums_of_two)
{
    uint64_t rng = SEED;

    if ((bny_cpu_flags() & level->flags) != level->flags)
        cr_skip_test("this machine lacks the instruction set");
    for (int t = 0; t < BNY_DTYPE_COUNT; t++)
        for (int arrays = 4; arrays <= 8; arrays += 4) {
            int has = t <= BANYAN_BF16;

            cr_expect_eq(bny_reduce_many_get((enum banyan_dtype)t, BANYAN_SUM, arrays,
                                             level->flags) != NULL,
                         has, "type %d", t);
            for (size_t n = 0; n <= N_MAX && has; n++)
                compare_many(level, t, arrays, n, n % 5, &rng);
        }
    cr_expect(bny_reduce_many_get(BANYAN_F32, BANYAN_MAX, 8, level->flags) == NULL);
    cr_expect(bny_reduce_many_get(BANYAN_F32, BANYAN_SUM, 3, level->flags) == NULL);
}

Test(reduce, table_has_exactly_the_defined_functions)
{
    for (int t = 0; t < BNY_DTYPE_COUNT; t++) {
        enum banyan_dtype dtype = (enum banyan_dtype)t;
        int is_float = dtype <= BANYAN_BF16, is_f8 = dtype >= BANYAN_F8E4M3;
        int is_complex = dtype == BANYAN_C64 || dtype == BANYAN_C128;

        for (int op = 0; op < BNY_OP_COUNT; op++) {
            int bitwise = op >= BANYAN_BAND, orders = op == BANYAN_MIN || op == BANYAN_MAX;
            int has = bny_reduce_get(dtype, (enum banyan_op_kind)op, ~0u) != NULL;

            cr_expect_eq(has,
                         !((is_float || is_f8 || is_complex) && bitwise) &&
                             !(is_complex && orders) &&
                             !(dtype == BANYAN_BOOL && op == BANYAN_AVG),
                         "type %d op %d", t, op);
        }
        if (dtype != BANYAN_BOOL)
            cr_expect(bny_reduce_get(dtype, BANYAN_AVG, 0) ==
                      bny_reduce_get(dtype, BANYAN_SUM, 0));
        cr_expect_eq(bny_reduce2_get(dtype, BANYAN_SUM, 0) != NULL, is_float);
        cr_expect(bny_reduce2_get(dtype, BANYAN_MAX, 0) == NULL);
    }
    cr_expect(bny_reduce_get(BNY_DTYPE_COUNT, BANYAN_SUM, 0) == NULL);
    cr_expect(bny_reduce_get(BANYAN_F32, BNY_OP_COUNT, 0) == NULL);
    cr_expect(bny_reduce2_get(BNY_DTYPE_COUNT, BANYAN_SUM, 0) == NULL);
}

/* Holds every operand and result of the integer types, but for the product's upper bits. */
__extension__ typedef __int128 wide;
__extension__ typedef unsigned __int128 uwide;

static wide int_oracle(int op, wide x, wide y)
{
    switch (op) {
    case BANYAN_MIN: return x < y ? x : y;
    case BANYAN_MAX: return x > y ? x : y;
    case BANYAN_PROD: return (wide)((uwide)x * (uwide)y);
    case BANYAN_BAND: return x & y;
    case BANYAN_BOR: return x | y;
    case BANYAN_BXOR: return x ^ y;
    default: return x + y;
    }
}

#define CHECK_INT(dtype, type)                                                                 \
    for (int op = 0; op < BNY_OP_COUNT; op++)                                                  \
        for (int i = 0; i < 500; i++) {                                                        \
            type x, y, got;                                                                    \
                                                                                               \
            fill((unsigned char *)&x, sizeof x, &rng);                                         \
            fill((unsigned char *)&y, sizeof y, &rng);                                         \
            bny_reduce_get(dtype, (enum banyan_op_kind)op, 0)(&got, &x, &y, 1);                \
            if (got != (type)int_oracle(op, x, y))                                             \
                cr_assert_fail(#type " op %d: %lld, %lld gave %lld", op, (long long)x,         \
                               (long long)y, (long long)got);                                  \
        }

Test(reduce, integers_are_exact_and_wrap)
{
    uint64_t rng = SEED;

    CHECK_INT(BANYAN_I8, int8_t)
    CHECK_INT(BANYAN_U8, uint8_t)
    CHECK_INT(BANYAN_I16, int16_t)
    CHECK_INT(BANYAN_U16, uint16_t)
    CHECK_INT(BANYAN_I32, int32_t)
    CHECK_INT(BANYAN_U32, uint32_t)
    CHECK_INT(BANYAN_I64, int64_t)
    CHECK_INT(BANYAN_U64, uint64_t)
}

/* x rounded once to a format of `digits` significant bits with exponents in [emin, emax]:
 * the definition. */
static double round_to(double x, int digits, int emin, int emax)
{
    int e;
    double unit, r;

    if (isnan(x) || isinf(x) || x == 0)
        return x;
    e = ilogb(x) < emin ? emin : ilogb(x);
    unit = ldexp(1, e - digits + 1);
    r = nearbyint(x / unit) * unit;
    return fabs(r) >= ldexp(1, emax + 1) ? copysign(INFINITY, x) : r;
}

static void check_half_sum(enum banyan_dtype dtype, uint16_t x, uint16_t y)
{
    int is_f16 = dtype == BANYAN_F16;
    float fx = is_f16 ? f16_to_f32(x) : bf16_to_f32(x),
          fy = is_f16 ? f16_to_f32(y) : bf16_to_f32(y);
    double sum = (double)fx + fy;
    double want = is_f16 ? round_to(sum, 11, -14, 15) : round_to(sum, 8, -126, 127);
    uint16_t r;
    float got;

    bny_reduce_get(dtype, BANYAN_SUM, 0)(&r, &x, &y, 1);
    got = is_f16 ? f16_to_f32(r) : bf16_to_f32(r);
    if (isnan(want) ? r != (is_f16 ? 0x7e00 : 0x7fc0)
                    : (got != want || !signbit(got) != !signbit(want)))
        cr_assert_fail("type %d: %04x + %04x gave %04x (%a), not %a", dtype, x, y, r,
                       (double)got, want);
}

static const struct small_float {
    enum banyan_dtype dtype;
    int mantissa, bias, most, nan; /* bits, -, codes */
} small_floats[] = { { BANYAN_F8E4M3, 3, 7, 0x7e, 0x7f },
                     { BANYAN_F8E5M2, 2, 15, 0x7b, 0x7e } };

static double small_value(const struct small_float *f, int c)
{
    int m = c & 0x7f, e = m >> f->mantissa, low = m & ((1 << f->mantissa) - 1);
    double v = ldexp((e ? 1 << f->mantissa : 0) + low, (e ? e : 1) - f->bias - f->mantissa);

    if (m > f->most)
        v = f->mantissa == 2 && m == f->most + 1 ? INFINITY : NAN;
    return c & 0x80 ? -v : v;
}

/* The nearest number: of two the one with an even code, of none that is near enough the
 * largest. */
static int small_code(const struct small_float *f, double v)
{
    int best = 0;

    if (isnan(v))
        return f->nan;
    if (isinf(v) && f->mantissa == 2)
        return f->most + 1 + (v < 0 ? 0x80 : 0);
    for (int c = 1; c <= f->most; c++) {
        double gain = fabs(fabs(v) - small_value(f, best)) - fabs(fabs(v) - small_value(f, c));

        if (gain > 0 || (gain == 0 && c % 2 == 0))
            best = c;
    }
    return best + (signbit(v) ? 0x80 : 0);
}

Test(reduce, floats_of_one_byte_are_rounded_once)
{
    for (size_t k = 0; k < 2; k++)
        for (int i = 0; i < 256 * 256; i++) {
            const struct small_float *f = &small_floats[k];
            uint8_t x = (uint8_t)(i & 255), y = (uint8_t)(i >> 8), sum, product;
            double vx = small_value(f, x), vy = small_value(f, y);

            bny_reduce_get(f->dtype, BANYAN_SUM, 0)(&sum, &x, &y, 1);
            bny_reduce_get(f->dtype, BANYAN_PROD, 0)(&product, &x, &y, 1);
            if (sum != small_code(f, vx + vy) || product != small_code(f, vx * vy))
                cr_assert_fail("type %d: %02x and %02x gave %02x and %02x, not %02x and %02x",
                               f->dtype, x, y, sum, product, small_code(f, vx + vy),
                               small_code(f, vx * vy));
        }
}

Test(reduce, floats_of_one_byte_are_scaled)
{
    for (size_t k = 0; k < 2; k++)
        for (int c = 0; c < 256; c++) {
            const struct small_float *f = &small_floats[k];
            uint8_t x = (uint8_t)c, got;

            bny_divide(&got, &x, 1, f->dtype, 4);
            cr_expect_eq(got, small_code(f, small_value(f, c) / 4), "type %d code %02x",
                         f->dtype, c);
        }
}

Test(reduce, truth_values)
{
    static const uint8_t values[] = { 0, 1, 2, 0x80, 0xff };

    for (int i = 0; i < 25; i++) {
        uint8_t x = values[i / 5], y = values[i % 5], got[BNY_OP_COUNT];

        for (int op = 0; op < BNY_OP_COUNT; op++)
            if (op != BANYAN_AVG)
                bny_reduce_get(BANYAN_BOOL, (enum banyan_op_kind)op, 0)(&got[op], &x, &y, 1);
        cr_expect(got[BANYAN_SUM] == (x || y) && got[BANYAN_MAX] == (x || y) &&
                  got[BANYAN_BOR] == (x || y));
        cr_expect(got[BANYAN_PROD] == (x && y) && got[BANYAN_MIN] == (x && y) &&
                  got[BANYAN_BAND] == (x && y));
        cr_expect(got[BANYAN_BXOR] == (!x != !y));
    }
}

Test(reduce, complex_numbers)
{
    const float a[] = { 1, 2, 3, -4, INFINITY, 0 }, b[] = { 5, -6, 0.5, 2, 1, 0 };
    const double c[] = { 1, 2, 3, -4 }, d[] = { 5, -6, 0.5, 2 };
    float sum[6], product[6], mean[2];
    double product128[4];

    bny_reduce_get(BANYAN_C64, BANYAN_SUM, 0)(sum, a, b, 3);
    bny_reduce_get(BANYAN_C64, BANYAN_PROD, 0)(product, a, b, 3);
    cr_expect(sum[0] == 6 && sum[1] == -4 && sum[2] == 3.5f && sum[3] == -2);
    cr_expect(product[0] == 17 && product[1] == 4 && product[2] == 9.5f && product[3] == 4);
    cr_expect(isnan(product[5]) && !signbit(product[5])); /* inf * 0: the canonical NaN */
    bny_reduce_get(BANYAN_C128, BANYAN_PROD, 0)(product128, c, d, 2);
    cr_expect(product128[0] == 17 && product128[1] == 4 && product128[2] == 9.5 &&
              product128[3] == 4);
    bny_divide(mean, a, 1, BANYAN_C64, 4);
    cr_expect(mean[0] == 0.25f && mean[1] == 0.5f);
}

/* f16: f32 has more than 2 * 11 + 2 bits, so a sum in f32 rounded to f16 is the exact sum
 * rounded once. A double holds any sum of two f16 exactly. bf16 operands can lie 2^250
 * apart; the double is then inexact, but only where the f32 sum is its larger operand too. */
Test(reduce, half_sums_are_the_exact_sum_rounded_once)
{
    uint64_t rng = SEED;

    for (int i = 0; i < 300000; i++) {
        uint16_t x = (uint16_t)bny_rng_next(&rng), y = (uint16_t)bny_rng_next(&rng);

        check_half_sum(BANYAN_F16, x, y);
        check_half_sum(BANYAN_BF16, x, y);
        /* Near each other: cancellation and carries. */
        y = (uint16_t)(x ^ (bny_rng_next(&rng) & 0x87ff));
        check_half_sum(BANYAN_F16, x, y);
        check_half_sum(BANYAN_BF16, x, y);
    }
}

static float reduce_one(enum banyan_op_kind op, float x, float y)
{
    float r;

    bny_reduce_get(BANYAN_F32, op, 0)(&r, &x, &y, 1);
    return r;
}

Test(reduce, min_and_max_prefer_numbers_and_order_zeros)
{
    static const float v[] = { -INFINITY, -3, -0x1p-140f, -0.0f, 0.0f, 0x1p-140f, 3, INFINITY };

    for (int i = 0; i < 8; i++) {
        for (int j = 0; j < 8; j++) {
            float lo = reduce_one(BANYAN_MIN, v[i], v[j]),
                  hi = reduce_one(BANYAN_MAX, v[i], v[j]);

            cr_expect_eq(f32_bits(lo), f32_bits(v[i < j ? i : j]), "min %d %d", i, j);
            cr_expect_eq(f32_bits(hi), f32_bits(v[i > j ? i : j]), "max %d %d", i, j);
        }
        cr_expect_eq(f32_bits(reduce_one(BANYAN_MIN, v[i], NAN)), f32_bits(v[i]));
        cr_expect_eq(f32_bits(reduce_one(BANYAN_MAX, v[i], NAN)), f32_bits(v[i]));
        cr_expect_eq(f32_bits(reduce_one(BANYAN_MIN, -NAN, v[i])), f32_bits(v[i]));
        cr_expect_eq(f32_bits(reduce_one(BANYAN_MAX, -NAN, v[i])), f32_bits(v[i]));
    }
    cr_expect(isnan(reduce_one(BANYAN_MIN, NAN, -NAN)));
    cr_expect(isnan(reduce_one(BANYAN_MAX, NAN, -NAN)));
}

/* min and max of the other float types agree with those of their f64 values. */
Test(reduce, min_and_max_agree_between_float_types)
{
    uint64_t rng = SEED;

    for (int i = 0; i < 100000; i++) {
        uint16_t h[2] = { (uint16_t)bny_rng_next(&rng), (uint16_t)bny_rng_next(&rng) }, r[2];

        for (int op = BANYAN_MIN; op <= BANYAN_MAX; op++) {
            double d[3];
            float x[2] = { f16_to_f32(h[0]), f16_to_f32(h[1]) }, got;

            bny_reduce_get(BANYAN_F16, (enum banyan_op_kind)op, 0)(r, h, h + 1, 1);
            got = f16_to_f32(r[0]);
            d[0] = x[0];
            d[1] = x[1];
            bny_reduce_get(BANYAN_F64, (enum banyan_op_kind)op, 0)(d + 2, d, d + 1, 1);
            if (isnan(d[2]) ? !isnan(got) : got != d[2] || !signbit(got) != !signbit(d[2]))
                cr_assert_fail("op %d of f16 %04x %04x gave %04x", op, h[0], h[1], r[0]);
            x[0] = bf16_to_f32(h[0]);
            x[1] = bf16_to_f32(h[1]);
            bny_reduce_get(BANYAN_BF16, (enum banyan_op_kind)op, 0)(r, h, h + 1, 1);
            got = bf16_to_f32(r[0]);
            if (f32_bits(got) != f32_bits(reduce_one((enum banyan_op_kind)op, x[0], x[1])))
                cr_assert_fail("op %d of bf16 %04x %04x gave %04x", op, h[0], h[1], r[0]);
        }
    }
}

Test(reduce, f32_and_f64_arithmetic_is_ieee_and_nan_is_canonical)
{
    double x[] = { 1e308, -0.0, INFINITY, 0x1p-1074, 3 },
           y[] = { 1e308, -0.0, -INFINITY, 0x1p-1074, NAN };
    uint64_t sum[5], prod[5];
    double want_sum[] = { INFINITY, -0.0, NAN, 0x1p-1073, NAN };
    double want_prod[] = { INFINITY, 0.0, -INFINITY, 0, NAN };

    bny_reduce_get(BANYAN_F64, BANYAN_SUM, 0)(sum, x, y, 5);
    bny_reduce_get(BANYAN_F64, BANYAN_PROD, 0)(prod, x, y, 5);
    cr_expect_arr_eq(sum, want_sum, sizeof sum);
    cr_expect_arr_eq(prod, want_prod, sizeof prod);
    cr_expect_eq(f32_bits(reduce_one(BANYAN_SUM, -NAN, NAN)), 0x7fc00000);
    cr_expect_eq(f32_bits(reduce_one(BANYAN_PROD, f32_from_bits(0xff812345), 0)), 0x7fc00000);
    cr_expect_eq(f32_bits(reduce_one(BANYAN_SUM, 0x1.fffffep127f, 0x1p103f)), 0x7f800000);
}

Test(reduce, divide_truncates_integers_and_multiplies_floats)
{
    int8_t i8[] = { 7, -7, 127, -128 }, i8_want[] = { 3, -3, 63, -64 };
    uint8_t u8[] = { 255, 1, 200, 0 }, u8_want[] = { 127, 0, 100, 0 };
    int32_t i32[] = { INT32_MIN, -9 }, i32_want[] = { INT32_MIN / 10, 0 };
    uint32_t u32[] = { UINT32_MAX, 9 }, u32_want[] = { UINT32_MAX / 10, 0 };
    int64_t i64[] = { INT64_MIN, -9 }, i64_want[] = { INT64_MIN / 10, 0 };
    uint64_t u64[] = { UINT64_MAX, 19 }, u64_want[] = { UINT64_MAX / 10, 1 };
    float f32[] = { 10, 1 }, f32_want[] = { 10 * (1.0f / 3), 1.0f / 3 };
    double f64[] = { 10, 1 }, f64_want[] = { 10 * (1.0 / 3), 1.0 / 3 };
    uint16_t f16[] = { f16_from_f32(10), 0x7c01 };
    uint16_t bf16[] = { bf16_from_f32(10), 0xff81 };

    bny_divide(i8, i8, 4, BANYAN_I8, 2);
    bny_divide(u8, u8, 4, BANYAN_U8, 2);
    bny_divide(i32, i32, 2, BANYAN_I32, 10);
    bny_divide(u32, u32, 2, BANYAN_U32, 10);
    bny_divide(i64, i64, 2, BANYAN_I64, 10);
    bny_divide(u64, u64, 2, BANYAN_U64, 10);
    bny_divide(f32, f32, 2, BANYAN_F32, 3);
    bny_divide(f64, f64, 2, BANYAN_F64, 3);
    bny_divide(f16, f16, 2, BANYAN_F16, 3);
    bny_divide(bf16, bf16, 2, BANYAN_BF16, 3);
    cr_expect_arr_eq(i8, i8_want, sizeof i8);
    cr_expect_arr_eq(u8, u8_want, sizeof u8);
    cr_expect_arr_eq(i32, i32_want, sizeof i32);
    cr_expect_arr_eq(u32, u32_want, sizeof u32);
    cr_expect_arr_eq(i64, i64_want, sizeof i64);
    cr_expect_arr_eq(u64, u64_want, sizeof u64);
    cr_expect_arr_eq(f32, f32_want, sizeof f32);
    cr_expect_arr_eq(f64, f64_want, sizeof f64);
    cr_expect_eq(f16[0], f16_from_f32(10 * (1.0f / 3)));
    cr_expect_eq(bf16[0], bf16_from_f32(10 * (1.0f / 3)));
    cr_expect_eq(f16[1], 0x7e00);
    cr_expect_eq(bf16[1], 0x7fc0);
    i8[0] = -128;
    bny_divide(i8, i8, 1, BANYAN_I8, 200); /* a divisor that int8_t cannot hold */
    cr_expect_eq(i8[0], 0);
}

Test(reduce, scale_gives_the_same_bits_on_every_isa)
{
    uint64_t rng = SEED;
    unsigned levels[] = { 0, BNY_CPU_AVX2, BNY_CPU_AVX2 | BNY_CPU_AVX512 };

    for (int t = BANYAN_F32; t <= BANYAN_BF16; t++)
        for (size_t n = 0; n <= N_MAX; n++) {
            unsigned char src[ARRAY], want[ARRAY], got[ARRAY];
            double scalar = ldexp(bny_rng_unit(&rng) - 0.5, (int)bny_rng_below(&rng, 40) - 20);

            fill(src, sizeof src, &rng);
            memcpy(want, src, sizeof src);
            bny_kernels_scalar.scale[t](want + GUARD, src + GUARD + n % 9, n, scalar);
            for (int l = 0; l < 3; l++) {
                if ((bny_cpu_flags() & levels[l]) != levels[l])
                    continue;
                memcpy(got, src, sizeof src);
                bny_kernels_for(levels[l])->scale[t](got + GUARD, src + GUARD + n % 9, n,
                                                     scalar);
                if (memcmp(got, want, sizeof got))
                    cr_assert_fail("scale: type %d n %zu level %d seed %#x", t, n, l, SEED);
            }
        }
}
