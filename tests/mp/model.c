/* SPDX-License-Identifier: BSD-3-Clause */
/* Inputs and right results of every collective, from the seed. */
#include "tests/mp/model.h"

#include <math.h>
#include <string.h>

#include "base/counts.h"
#include "base/rng.h"

#define MIX_PRIME 2147483647u

uint64_t model_mix(uint64_t a, uint64_t b)
{
    uint64_t s = a * 0xd6e8feb86659fd93u + b;

    return bny_rng_next(&s);
}

/* ---- float types ---- */
static double half_to_double(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 0    ? ldexp(m, -24)
               : e == 31 ? (m ? NAN : INFINITY)
                         : ldexp(1024 + m, e - 25);

    return h >> 15 ? -v : v;
}

/* To nearest even, through the units of the last place. */
static uint16_t double_to_half(double v)
{
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    double a = fabs(v);
    int e;

    if (isnan(v))
        return 0x7e00;
    if (a >= 65520)
        return sign | 0x7c00;
    if (a < 0x1p-14)
        return (uint16_t)(sign + (uint16_t)nearbyint(ldexp(a, 24)));
    frexp(a, &e); /* a = m 2^e, m in [0.5, 1) */
    return (uint16_t)(sign + ((e + 13) << 10) + (int)nearbyint(ldexp(a, 11 - e)));
}

static float bits_to_float(uint32_t b)
{
    float f;

    memcpy(&f, &b, sizeof f);
    return f;
}

static uint16_t float_to_bf16(float f)
{
    uint32_t b;

    memcpy(&b, &f, sizeof b);
    if (isnan(f))
        return (uint16_t)(b >> 16 | 0x40);
    return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

/* Of one byte: m bits of mantissa, the exponent's bias, the largest number; e5m2 has
 * infinities. */
static double f8_to_double(uint8_t c, int m, int bias, int most)
{
    int magnitude = c & 0x7f, e = magnitude >> m, low = magnitude & ((1 << m) - 1);
    double v = e == 0 ? ldexp(low, 1 - bias - m) : ldexp((1 << m) + low, e - bias - m);

    if (magnitude > most)
        v = m == 2 && magnitude == most + 1 ? INFINITY : NAN;
    return c >> 7 ? -v : v;
}

static uint8_t double_to_f8(double v, int m, int bias, int most)
{
    uint8_t sign = signbit(v) ? 0x80 : 0;
    double a = fabs(v), code;
    int e;

    if (isnan(v))
        return m == 2 ? 0x7e : 0x7f;
    if (isinf(v))
        return sign | (uint8_t)(m == 2 ? most + 1 : most);
    frexp(a, &e);               /* a = f 2^e, f in [0.5, 1) */
    if (a < ldexp(1, 1 - bias)) /* subnormal, or 0 */
        code = nearbyint(ldexp(a, m + bias - 1));
    else
        code = ldexp(e + bias - 2, m) + nearbyint(ldexp(a, m + 1 - e));
    return sign | (uint8_t)(code > most ? most : code);
}

double model_get(const void *p, size_t i, enum banyan_dtype dtype)
{
    switch (dtype) {
    case BANYAN_F8E4M3: return f8_to_double(((const uint8_t *)p)[i], 3, 7, 0x7e);
    case BANYAN_F8E5M2: return f8_to_double(((const uint8_t *)p)[i], 2, 15, 0x7b);
    case BANYAN_F64: return ((const double *)p)[i];
    case BANYAN_F16: return half_to_double(((const uint16_t *)p)[i]);
    case BANYAN_BF16: return bits_to_float((uint32_t)((const uint16_t *)p)[i] << 16);
    default: return ((const float *)p)[i];
    }
}

void model_set(void *p, size_t i, enum banyan_dtype dtype, double v)
{
    switch (dtype) {
    case BANYAN_F8E4M3: ((uint8_t *)p)[i] = double_to_f8(v, 3, 7, 0x7e); break;
    case BANYAN_F8E5M2: ((uint8_t *)p)[i] = double_to_f8(v, 2, 15, 0x7b); break;
    case BANYAN_F64: ((double *)p)[i] = v; break;
    case BANYAN_F16: ((uint16_t *)p)[i] = double_to_half(v); break;
    case BANYAN_BF16: ((uint16_t *)p)[i] = float_to_bf16((float)v); break;
    default: ((float *)p)[i] = (float)v; break;
    }
}

static int is_f8(enum banyan_dtype dtype)
{
    return dtype == BANYAN_F8E4M3 || dtype == BANYAN_F8E5M2;
}

static int is_float(enum banyan_dtype dtype)
{
    return dtype <= BANYAN_BF16 || is_f8(dtype);
}

/* The type of a complex number's parts, else dtype. */
static enum banyan_dtype part_of(enum banyan_dtype dtype)
{
    return dtype == BANYAN_C64 ? BANYAN_F32 : dtype == BANYAN_C128 ? BANYAN_F64 : dtype;
}

/* ---- operations ---- */
size_t model_unit(enum model_op op)
{
    return op == M_MATRIX ? 16 : op == M_AFFINE ? 12 : 1;
}

int model_op_fits(enum model_op op, enum banyan_dtype dtype)
{
    if (part_of(dtype) != dtype)
        return (int)op == BANYAN_SUM || (int)op == BANYAN_AVG || (int)op == BANYAN_PROD;
    switch ((int)op) {
    case BANYAN_AVG: return dtype != BANYAN_BOOL;
    case BANYAN_BAND:
    case BANYAN_BOR:
    case BANYAN_BXOR: return !is_float(dtype);
    case M_PREMUL: return dtype <= BANYAN_BF16;
    case M_MIX: return dtype == BANYAN_U32;
    case M_MATRIX:
    case M_AFFINE: return dtype == BANYAN_U8;
    default: return 1;
    }
}

double model_scalar(int rank)
{
    static const double scalars[] = { 0.5, 2, -1, 1 };

    return scalars[rank & 3];
}

static void mix_one(uint32_t *acc, uint32_t in)
{
    *acc = (uint32_t)(((uint64_t)*acc % MIX_PRIME + in % MIX_PRIME) % MIX_PRIME);
}

/* out = a b; out may be either. */
static void matrix_one(uint32_t *out, const uint32_t *a, const uint32_t *b)
{
    uint32_t c[4] = { a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3],
                      a[2] * b[0] + a[3] * b[2], a[2] * b[1] + a[3] * b[3] };

    memcpy(out, c, sizeof c);
}

/* First a, then b: x -> b.a (a.a x + a.b) + b.b. The third word counts the maps that were
 * composed. */
static void affine_one(uint32_t *out, const uint32_t *a, const uint32_t *b)
{
    uint32_t c[3] = { a[0] * b[0], b[0] * a[1] + b[1], a[2] + b[2] };

    memcpy(out, c, sizeof c);
}

static void mix_fn(void *ctx, const void *in, void *inout, size_t n, enum banyan_dtype dtype)
{
    for (size_t i = 0; i < n; i++)
        mix_one((uint32_t *)inout + i, ((const uint32_t *)in)[i]);
}

static void matrix_fn(void *ctx, const void *in, void *inout, size_t n, enum banyan_dtype dtype)
{
    /* The alignment that was asked for must be kept: trap otherwise. */
    if (((uintptr_t)in | (uintptr_t)inout) & 15)
        __builtin_trap();
    for (size_t i = 0; i < n; i++)
        matrix_one((uint32_t *)inout + 4 * i, (const uint32_t *)in + 4 * i,
                   (uint32_t *)inout + 4 * i);
}

static void affine_fn(void *ctx, const void *in, void *inout, size_t n, enum banyan_dtype dtype)
{
    if (((uintptr_t)in | (uintptr_t)inout) & 3)
        __builtin_trap();
    for (size_t i = 0; i < n; i++)
        affine_one((uint32_t *)inout + 3 * i, (const uint32_t *)in + 3 * i,
                   (uint32_t *)inout + 3 * i);
}

int model_op_create(enum model_op op, int rank, banyan_op *out, int *made)
{
    *made = (int)op >= BNY_OP_COUNT;
    switch ((int)op) {
    case M_PREMUL: return banyan_op_create_premul_sum(model_scalar(rank), out);
    case M_MIX: return banyan_op_create_user(mix_fn, NULL, 0, 4, 1, out);
    case M_MATRIX: return banyan_op_create_user(matrix_fn, NULL, 16, 16, 0, out);
    case M_AFFINE: return banyan_op_create_user(affine_fn, NULL, 12, 4, 0, out);
    default: *out = (banyan_op)op; return 0;
    }
}

/* ---- inputs ---- */
static double float_value(uint64_t h, enum model_op op)
{
    static const double factors[] = { 1, -1, 2, 0.5, 1, -2, 1, -0.5 };

    if ((int)op == BANYAN_PROD)
        return factors[h & 7];
    if (((int)op == BANYAN_MIN || (int)op == BANYAN_MAX) && (h >> 32) % 5 == 0)
        return h >> 40 & 1 ? NAN : INFINITY;
    return (double)(h % 17) - 8;
}

/* Sums and products of 16 ranks have two bits, which are exact. */
static double f8_value(uint64_t h, enum model_op op, int rank)
{
    static const double values[] = { -1, 0, 1 };

    if ((int)op == BANYAN_PROD)
        return h & 1 ? 1 : -1;
    return rank % 4 ? 0 : values[h % 3];
}

static void put_int(void *dst, size_t i, enum banyan_dtype dtype, uint64_t v)
{
    switch (banyan_dtype_bytes(dtype)) {
    case 1: ((uint8_t *)dst)[i] = (uint8_t)v; break;
    case 2: ((uint16_t *)dst)[i] = (uint16_t)v; break;
    case 4: ((uint32_t *)dst)[i] = (uint32_t)v; break;
    default: ((uint64_t *)dst)[i] = v; break;
    }
}

static void fill_opaque(void *dst, size_t first, size_t n, enum model_op op, uint64_t key)
{
    size_t words = model_unit(op) / 4;
    uint32_t *out = dst;

    for (size_t i = 0; i < n / 4; i++) {
        out[i] = (uint32_t)model_mix(key, first / 4 + i);
        if (op == M_AFFINE && i % words == 2)
            out[i] = 1;
    }
}

void model_fill(void *dst, size_t first, size_t n, enum banyan_dtype dtype, enum model_op op,
                int rank, uint64_t seed)
{
    uint64_t key = model_mix(seed, (uint64_t)rank + 1);

    if (model_unit(op) > 1) {
        fill_opaque(dst, first, n, op, key);
        return;
    }
    if (part_of(dtype) != dtype) {
        model_fill(dst, 2 * first, 2 * n, part_of(dtype), op, rank, seed);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t h = model_mix(key, first + i);
        if (is_f8(dtype) && (int)op != BANYAN_MIN && (int)op != BANYAN_MAX)
            model_set(dst, i, dtype, f8_value(h, op, rank));
        else if (dtype == BANYAN_BOOL)
            put_int(dst, i, dtype, h & 1);
        else if (is_float(dtype))
            model_set(dst, i, dtype, float_value(h, op));
        else
            put_int(dst, i, dtype, h);
    }
}

void model_bytes(void *dst, size_t bytes, uint64_t key)
{
    unsigned char *p = dst;
    uint64_t w;

    for (size_t i = 0; i < bytes; i += 8) {
        w = model_mix(key, i);
        memcpy(p + i, &w, bytes - i < 8 ? bytes - i : 8);
    }
}

void model_gauss(void *dst, size_t n, enum banyan_dtype dtype, uint64_t key)
{
    uint64_t s = key;

    for (size_t i = 0; i < n; i++) {
        double u = 1 - bny_rng_unit(&s), v = bny_rng_unit(&s);
        model_set(dst, i, dtype, sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    }
}

/* ---- reduction ---- */
static double float_op(double a, double b, enum model_op op)
{
    switch ((int)op) {
    case BANYAN_MIN: return isnan(a) ? b : isnan(b) ? a : a < b ? a : b;
    case BANYAN_MAX: return isnan(a) ? b : isnan(b) ? a : a > b ? a : b;
    case BANYAN_PROD: return a * b;
    default: return a + b;
    }
}

static uint64_t int_op(uint64_t a, uint64_t b, int is_signed, enum model_op op)
{
    int less = is_signed ? (int64_t)a < (int64_t)b : a < b;

    switch ((int)op) {
    case BANYAN_MIN: return less ? a : b;
    case BANYAN_MAX: return less ? b : a;
    case BANYAN_PROD: return a * b;
    case BANYAN_BAND: return a & b;
    case BANYAN_BOR: return a | b;
    case BANYAN_BXOR: return a ^ b;
    default: return a + b;
    }
}

static uint64_t bool_op(uint64_t a, uint64_t b, enum model_op op)
{
    switch ((int)op) {
    case BANYAN_MIN:
    case BANYAN_PROD:
    case BANYAN_BAND: return a && b;
    case BANYAN_BXOR: return !a != !b;
    default: return a || b;
    }
}

static void complex_product(void *acc, const void *in, size_t n, enum banyan_dtype part)
{
    for (size_t i = 0; i < 2 * n; i += 2) {
        double a = model_get(acc, i, part), b = model_get(acc, i + 1, part);
        double c = model_get(in, i, part), d = model_get(in, i + 1, part);

        model_set(acc, i, part, a * c - b * d);
        model_set(acc, i + 1, part, a * d + b * c);
    }
}

/* Sign- or zero-extended. */
static uint64_t get_int(const void *p, size_t i, enum banyan_dtype dtype)
{
    switch (dtype) {
    case BANYAN_I8: return (uint64_t)(int64_t)((const int8_t *)p)[i];
    case BANYAN_U8:
    case BANYAN_BOOL: return ((const uint8_t *)p)[i];
    case BANYAN_I16: return (uint64_t)(int64_t)((const int16_t *)p)[i];
    case BANYAN_U16: return ((const uint16_t *)p)[i];
    case BANYAN_I32: return (uint64_t)(int64_t)((const int32_t *)p)[i];
    case BANYAN_U32: return ((const uint32_t *)p)[i];
    default: return ((const uint64_t *)p)[i];
    }
}

static int is_signed_int(enum banyan_dtype dtype)
{
    return dtype == BANYAN_I8 || dtype == BANYAN_I16 || dtype == BANYAN_I32 ||
           dtype == BANYAN_I64;
}

void model_add(void *acc, const void *in, size_t n, enum banyan_dtype dtype, enum model_op op)
{
    size_t words = model_unit(op) / 4;

    switch ((int)op) {
    case M_MIX:
        for (size_t i = 0; i < n; i++)
            mix_one((uint32_t *)acc + i, ((const uint32_t *)in)[i]);
        return;
    case M_MATRIX:
    case M_AFFINE:
        for (size_t i = 0; i < n / 4; i += words)
            (op == M_MATRIX ? matrix_one : affine_one)((uint32_t *)acc + i, (uint32_t *)acc + i,
                                                       (const uint32_t *)in + i);
        return;
    default: break;
    }
    if (part_of(dtype) != dtype) {
        if ((int)op == BANYAN_PROD)
            complex_product(acc, in, n, part_of(dtype));
        else
            model_add(acc, in, 2 * n, part_of(dtype), op);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (dtype == BANYAN_BOOL)
            put_int(acc, i, dtype, bool_op(get_int(acc, i, dtype), get_int(in, i, dtype), op));
        else if (is_float(dtype))
            model_set(acc, i, dtype,
                      float_op(model_get(acc, i, dtype), model_get(in, i, dtype), op));
        else
            put_int(acc, i, dtype,
                    int_op(get_int(acc, i, dtype), get_int(in, i, dtype), is_signed_int(dtype),
                           op));
    }
}

void model_begin(void *acc, size_t n, enum banyan_dtype dtype, enum model_op op, int rank)
{
    if (op != M_PREMUL)
        return;
    for (size_t i = 0; i < n; i++)
        model_set(acc, i, dtype, model_get(acc, i, dtype) * model_scalar(rank));
}

void model_end(void *acc, size_t n, enum banyan_dtype dtype, enum model_op op, int nranks)
{
    if ((int)op != BANYAN_AVG)
        return;
    if (part_of(dtype) != dtype) {
        model_end(acc, 2 * n, part_of(dtype), op, nranks);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (is_float(dtype))
            model_set(acc, i, dtype, model_get(acc, i, dtype) / nranks);
        else if (is_signed_int(dtype))
            put_int(acc, i, dtype, (uint64_t)((int64_t)get_int(acc, i, dtype) / nranks));
        else
            put_int(acc, i, dtype, get_int(acc, i, dtype) / (uint64_t)nranks);
    }
}

#define PIECE 4080 /* bytes; a multiple of 8, 12 and 16 */

void model_reduce(void *dst, size_t first, size_t n, enum banyan_dtype dtype, enum model_op op,
                  int nranks, int divisor, uint64_t seed)
{
    size_t elem = banyan_dtype_bytes(dtype), piece = PIECE / elem;
    _Alignas(16) unsigned char in[PIECE], acc[PIECE];

    for (size_t i = 0; i < n; i += piece) {
        size_t len = n - i < piece ? n - i : piece;
        model_fill(acc, first + i, len, dtype, op, 0, seed);
        model_begin(acc, len, dtype, op, 0);
        for (int r = 1; r < nranks; r++) {
            model_fill(in, first + i, len, dtype, op, r, seed);
            model_begin(in, len, dtype, op, r);
            model_add(acc, in, len, dtype, op);
        }
        model_end(acc, len, dtype, op, divisor);
        memcpy((unsigned char *)dst + i * elem, acc, len * elem);
    }
}

static int close_enough(double got, double want, enum banyan_dtype dtype)
{
    double ulp = dtype == BANYAN_F64      ? 0x1p-52
                 : dtype == BANYAN_F32    ? 0x1p-23
                 : dtype == BANYAN_F16    ? 0x1p-10
                 : dtype == BANYAN_F8E4M3 ? 0x1p-3
                 : dtype == BANYAN_F8E5M2 ? 0x1p-2
                                          : 0x1p-7;

    return (isnan(got) && isnan(want)) || got == want || fabs(got - want) <= ulp * fabs(want);
}

size_t model_compare(const void *got, const void *want, size_t n, enum banyan_dtype dtype,
                     enum model_op op)
{
    size_t elem = banyan_dtype_bytes(dtype);

    if (!memcmp(got, want, n * elem))
        return n;
    if (part_of(dtype) != dtype)
        return model_compare(got, want, 2 * n, part_of(dtype), op) / 2;
    for (size_t i = 0; i < n; i++) {
        const unsigned char *g = (const unsigned char *)got + i * elem;
        const unsigned char *w = (const unsigned char *)want + i * elem;
        _Alignas(8) unsigned char ga[8], wa[8]; /* complex ones are compared by parts */
        memcpy(ga, g, elem);
        memcpy(wa, w, elem);
        if (memcmp(ga, wa, elem) == 0)
            continue;
        if (!is_float(dtype))
            return i;
        double x = model_get(ga, 0, dtype), y = model_get(wa, 0, dtype);
        if ((int)op == BANYAN_AVG ? !close_enough(x, y, dtype)
                                  : !(isnan(x) && isnan(y)) && x != y)
            return i;
    }
    return n;
}
