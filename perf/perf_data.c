/* SPDX-License-Identifier: BSD-3-Clause */
/* Patterns and verification. Everything works on tiles of TILE elements, typed bytes first,
 * then doubles (float types) or 64-bit integers. */
#include "perf/perf_data.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "perf/perf.h"

#define TILE  1024
#define TABLE 65536 /* samples of a distribution; elements pick one by hash */

static int map_file(struct perf_data_spec *spec, const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &st) != 0 || st.st_size < 4) {
        fprintf(stderr, "banyan_perf: --data file=%s: %s\n", path,
                fd < 0 ? strerror(errno) : "fewer than 4 bytes, no f32 value");
        if (fd >= 0)
            close(fd);
        return -1;
    }
    spec->file_elems = (size_t)st.st_size / 4;
    spec->file = mmap(NULL, spec->file_elems * 4, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (spec->file == MAP_FAILED) {
        fprintf(stderr, "banyan_perf: --data file=%s: mmap: %s\n", path, strerror(errno));
        return -1;
    }
    return 0;
}

int perf_data_parse(struct perf_data_spec *spec, const char *text)
{
    static const char *const names[] = { "random", "gauss", "laplace" };
    char *end;

    for (int i = 0; i < 3; i++)
        if (!strcmp(text, names[i])) {
            spec->kind = (enum perf_data_kind)i;
            return 0;
        }
    if (!strncmp(text, "sparse=", 7)) {
        spec->kind = PERF_SPARSE;
        spec->p = strtod(text + 7, &end);
        if (end != text + 7 && !*end && spec->p >= 0 && spec->p <= 1)
            return 0;
    } else if (!strncmp(text, "file=", 5)) {
        spec->kind = PERF_FILE;
        return map_file(spec, text + 5);
    }
    fprintf(stderr,
            "banyan_perf: --data %s: use random, gauss, laplace, sparse=P (0 to 1) or "
            "file=PATH\n",
            text);
    return -1;
}

/* --- types
 * ------------------------------------------------------------------------------------- */

static int is_float(enum banyan_dtype t)
{
    return t <= BANYAN_BF16;
}

static int is_unsigned(enum banyan_dtype t)
{
    return t == BANYAN_U8 || t == BANYAN_U32 || t == BANYAN_U64;
}

/* Unit roundoff of a float type. */
static double unit_of(enum banyan_dtype t)
{
    return t == BANYAN_F64   ? 0x1p-53
           : t == BANYAN_F32 ? 0x1p-24
           : t == BANYAN_F16 ? 0x1p-11
                             : 0x1p-8;
}

static uint16_t f16_bits(double x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs(x);
    int e;

    if (a != a)
        return 0x7e00;
    if (a >= 65520)
        return sign | 0x7c00;
    if (a <
        0x1p-14) /* subnormal: units of 2^-24; rounding up to 2^-14 carries into the exponent */
        return sign | (uint16_t)nearbyint(a * 0x1p24);
    frexp(a, &e);
    return sign | (uint16_t)(((e + 13) << 10) + (int)nearbyint(ldexp(a, 11 - e)));
}

static double f16_value(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    double a = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);

    return h & 0x8000 ? -a : a;
}

static uint16_t bf16_bits(double x)
{
    float f = (float)x;
    uint32_t u;

    memcpy(&u, &f, 4);
    if (f != f)
        return 0x7fc0;
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static double bf16_value(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;

    memcpy(&f, &u, 4);
    return f;
}

static void store_real(enum banyan_dtype t, void *dst, const double *x, size_t n)
{
    for (size_t i = 0; t == BANYAN_F32 && i < n; i++)
        ((float *)dst)[i] = (float)x[i];
    for (size_t i = 0; t == BANYAN_F64 && i < n; i++)
        ((double *)dst)[i] = x[i];
    for (size_t i = 0; t == BANYAN_F16 && i < n; i++)
        ((uint16_t *)dst)[i] = f16_bits(x[i]);
    for (size_t i = 0; t == BANYAN_BF16 && i < n; i++)
        ((uint16_t *)dst)[i] = bf16_bits(x[i]);
}

static void load_real(enum banyan_dtype t, double *x, const void *src, size_t n)
{
    for (size_t i = 0; t == BANYAN_F32 && i < n; i++)
        x[i] = ((const float *)src)[i];
    for (size_t i = 0; t == BANYAN_F64 && i < n; i++)
        x[i] = ((const double *)src)[i];
    for (size_t i = 0; t == BANYAN_F16 && i < n; i++)
        x[i] = f16_value(((const uint16_t *)src)[i]);
    for (size_t i = 0; t == BANYAN_BF16 && i < n; i++)
        x[i] = bf16_value(((const uint16_t *)src)[i]);
}

static void store_int(enum banyan_dtype t, void *dst, const int64_t *x, size_t n)
{
    size_t bytes = banyan_dtype_bytes(t);

    for (size_t i = 0; i < n; i++) /* little endian: the low bytes come first */
        memcpy((char *)dst + i * bytes, &x[i], bytes);
}

static int64_t load_int(enum banyan_dtype t, const void *src, size_t i)
{
    switch (t) {
    case BANYAN_I8: return ((const int8_t *)src)[i];
    case BANYAN_U8: return ((const uint8_t *)src)[i];
    case BANYAN_I32: return ((const int32_t *)src)[i];
    case BANYAN_U32: return ((const uint32_t *)src)[i];
    default: return ((const int64_t *)src)[i];
    }
}

/* --- values
 * -------------------------------------------------------------------------------------- */

static uint64_t hash(const struct perf_values *v, int rank, size_t i)
{
    uint64_t state = v->seed + ((uint64_t)rank << 48) + i * 0x9e3779b97f4a7c15u;

    return bny_rng_next(&state);
}

/* Largest |value| of PERF_RANDOM such that no partial sum leaves what the type holds exactly;
 * *active: ranks that contribute (types of few bits cannot take any number). */
static int64_t value_limit(const struct perf_values *v, int *active)
{
    int64_t room;

    switch (v->dtype) {
    case BANYAN_F16: room = 2048; break;
    case BANYAN_BF16: room = 256; break;
    case BANYAN_I8: room = 127; break;
    case BANYAN_U8: room = 255; break;
    default: room = 1 << 24; break;
    }
    *active = v->nranks;
    if (!v->reduces)
        return room;
    if (v->op == PERF_MULSUM)
        room /= 2;
    if (v->op != BANYAN_SUM && v->op != BANYAN_AVG && v->op != PERF_MULSUM)
        return room < 1000 ? room : 1000;
    if (v->nranks > room)
        *active = (int)room;
    room /= *active;
    return room < 1000 ? room : 1000;
}

static int bitwise(const struct perf_values *v)
{
    return v->reduces && v->op >= BANYAN_BAND && v->op <= BANYAN_BXOR;
}

/* PERF_RANDOM as whole numbers; for integer types also what every other pattern becomes. */
static void make_int(const struct perf_values *v, int rank, size_t first, size_t n, int64_t *x)
{
    int active;
    int64_t m = value_limit(v, &active);
    int64_t low = is_unsigned(v->dtype) ? 0 : -m;

    for (size_t i = 0; i < n; i++) {
        uint64_t h = hash(v, rank, first + i);

        if (bitwise(v) || (!v->reduces && !is_float(v->dtype)))
            x[i] = (int64_t)h;
        else if (v->reduces && v->op == BANYAN_PROD)
            x[i] = (h & 7) == 0 && rank < 6 ? 2 : (h & 56) == 0 && low < 0 ? -1 : 1;
        else
            x[i] =
                rank < active ? low + (int64_t)((h >> 32) * (uint64_t)(m - low + 1) >> 32) : 0;
    }
}

/* Samples of the standard normal and Laplace distributions. */
static float normal_table[TABLE], laplace_table[TABLE];

static void make_tables(void)
{
    uint64_t normal = 77, laplace = 77;

    for (int i = 0; i < TABLE; i++) {
        double u = 1 - bny_rng_unit(&normal), w = bny_rng_unit(&normal);

        normal_table[i] = (float)(sqrt(-2 * log(u)) * cos(2 * M_PI * w));
        u = 1 - bny_rng_unit(&laplace);
        laplace_table[i] = (float)(bny_rng_unit(&laplace) < 0.5 ? log(u) : -log(u));
    }
}

/* Ranks may be threads: made once, before anybody reads. */
static const float *samples(enum perf_data_kind kind)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_tables);
    return kind == PERF_LAPLACE ? laplace_table : normal_table;
}

static void make_real(const struct perf_values *v, int rank, size_t first, size_t n, double *x)
{
    const struct perf_data_spec *s = v->spec;
    const float *table =
        s->kind == PERF_RANDOM || s->kind == PERF_FILE ? NULL : samples(s->kind);

    for (size_t i = 0; i < n; i++) {
        uint64_t h = hash(v, rank, first + i);

        if (s->kind == PERF_FILE)
            x[i] = s->file[((size_t)rank * v->count + first + i) % s->file_elems];
        else if (s->kind == PERF_SPARSE && (double)(h >> 16 & 0xffffffff) * 0x1p-32 >= s->p)
            x[i] = 0;
        else if (table)
            x[i] = table[h & (TABLE - 1)];
        else
            x[i] = (double)(int64_t)h * 0x1p-63;
    }
}

/* PERF_RANDOM without a lossy codec: sums are exact. */
static int whole_numbers(const struct perf_values *v)
{
    return !is_float(v->dtype) || (v->spec->kind == PERF_RANDOM && !v->codec.lossy);
}

static void make_tile(const struct perf_values *v, int rank, size_t first, size_t n, void *dst)
{
    int64_t whole[TILE];
    double real[TILE];

    if (whole_numbers(v))
        make_int(v, rank, first, n, whole);
    else
        make_real(v, rank, first, n, real);
    if (!is_float(v->dtype)) {
        store_int(v->dtype, dst, whole, n);
        return;
    }
    for (size_t i = 0; whole_numbers(v) && i < n; i++)
        real[i] = (double)whole[i];
    store_real(v->dtype, dst, real, n);
}

void perf_values_fill(const struct perf_values *v, int rank, size_t first, size_t n, void *dst)
{
    size_t bytes = banyan_dtype_bytes(v->dtype);

    for (size_t i = 0; i < n; i += TILE)
        make_tile(v, rank, first + i, n - i < TILE ? n - i : TILE, (char *)dst + i * bytes);
}

/* --- checks
 * ------------------------------------------------------------------------------------ */

static int64_t combine_int(unsigned op, int64_t a, int64_t b, int is_u)
{
    switch (op) {
    case BANYAN_MIN: return (is_u ? (uint64_t)b < (uint64_t)a : b < a) ? b : a;
    case BANYAN_MAX: return (is_u ? (uint64_t)b > (uint64_t)a : b > a) ? b : a;
    case BANYAN_PROD: return (int64_t)((uint64_t)a * (uint64_t)b);
    case BANYAN_BAND: return a & b;
    case BANYAN_BOR: return a | b;
    case BANYAN_BXOR: return a ^ b;
    default: return (int64_t)((uint64_t)a + (uint64_t)b);
    }
}

static double combine_real(unsigned op, double a, double b)
{
    switch (op) {
    case BANYAN_MIN: return b < a ? b : a;
    case BANYAN_MAX: return b > a ? b : a;
    case BANYAN_PROD: return a * b;
    default: return a + b;
    }
}

static void count_wrong(struct perf_check *out, double err, double ref, double bound)
{
    /* Written so that a NaN is wrong. */
    if (!(err <= bound))
        out->wrong++;
    if (!(err <= out->max_abs_err))
        out->max_abs_err = err;
    out->err2 += err * err;
    out->ref2 += ref * ref;
}

static void check_int(const struct perf_values *v, size_t first, size_t n, const void *got,
                      struct perf_check *out)
{
    int64_t acc[TILE], want[1];
    char tile[TILE * 8];
    size_t bytes = banyan_dtype_bytes(v->dtype);

    for (int r = 0; r < v->nranks; r++) {
        make_tile(v, r, first, n, tile);
        for (size_t i = 0; i < n; i++) {
            int64_t x = load_int(v->dtype, tile, i);
            acc[i] = r ? combine_int(v->op, acc[i], x, is_unsigned(v->dtype)) : x;
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (v->op == BANYAN_AVG)
            acc[i] /= v->nranks;
        store_int(v->dtype, want, &acc[i], 1);
        if (memcmp(want, (const char *)got + i * bytes, bytes) != 0)
            count_wrong(
                out,
                fabs((double)load_int(v->dtype, want, 0) - (double)load_int(v->dtype, got, i)),
                1, -1);
    }
}

/* The largest |value| of a rank; what lies outside of it costs the bound its tightness only. */
static double largest(const struct perf_values *v)
{
    const struct perf_data_spec *s = v->spec;
    const float *table = s->kind == PERF_FILE ? s->file : samples(s->kind);
    size_t n = s->kind == PERF_FILE ? s->file_elems : TABLE;
    static _Thread_local const float *of;
    static _Thread_local double found;
    double most = v->op == PERF_MULSUM ? 2 : 1;

    if (s->kind == PERF_RANDOM)
        return most;
    if (of != table) {
        found = 0;
        for (size_t i = 0; i < n; i++)
            if (fabs(table[i]) > found)
                found = fabs(table[i]);
        of = table;
    }
    return most * found;
}

/* The codec's part of a bound, for a sum over so many ranks (0: values that are only moved).
 * Each quantisation meets what those before it have left wrong, and old residuals. */
static double codec_bound(const struct perf_values *v, int nranks, double magnitude)
{
    const struct perf_codec_error *e = &v->codec;
    double grows, one, largest_sum;

    if (!e->lossy)
        return 0;
    if (!e->is_bound)
        return DBL_MAX; /* not a NaN, not infinite */
    largest_sum = (nranks ? nranks : 1) * largest(v);
    one = e->relative * magnitude + e->of_largest * largest_sum;
    grows = pow(1 + e->relative + e->of_largest, nranks < 64 ? nranks : 64);
    return fmin(e->of_sum * largest_sum,
                (nranks ? nranks + 2 : 1) * grows * one * (e->feeds ? 3 : 1));
}

/* How far a correct result may lie from the exact one: every addition rounds relative to the
 * sum of magnitudes at most; every quantisation (one per rank, one of the result, one to spare)
 * as well. */
static double bound_of(const struct perf_values *v, double expect, double magnitude)
{
    double u = unit_of(v->dtype), n = v->nranks, bound = 0;

    if (v->op == BANYAN_MIN || v->op == BANYAN_MAX)
        return 0;
    if (!whole_numbers(v)) {
        bound =
            v->op == BANYAN_PROD ? 2 * (n + 1) * u * fabs(expect) : 2 * (n + 1) * u * magnitude;
        bound += codec_bound(v, v->nranks, magnitude);
        if (v->codec.lossy || v->dtype == BANYAN_F16)
            bound += (n + 2) * 0x1p-24;
    }
    return v->op == BANYAN_AVG ? bound + 2 * u * fabs(expect) : bound;
}

static void check_real(const struct perf_values *v, size_t first, size_t n, const void *got,
                       struct perf_check *out)
{
    double acc[TILE], mag[TILE], x[TILE];
    double scale = v->op == BANYAN_AVG ? v->nranks : 1;
    char tile[TILE * 8];

    for (int r = 0; r < v->nranks; r++) {
        make_tile(v, r, first, n, tile);
        load_real(v->dtype, x, tile, n);
        for (size_t i = 0; i < n; i++) {
            if (v->op == PERF_MULSUM)
                x[i] *= perf_mulsum_scalar(r);
            acc[i] = r ? combine_real(v->op, acc[i], x[i]) : x[i];
            mag[i] = r ? mag[i] + fabs(x[i]) : fabs(x[i]);
        }
    }
    load_real(v->dtype, x, got, n);
    for (size_t i = 0; i < n; i++) {
        double expect = acc[i] / scale;

        count_wrong(out, fabs(x[i] - expect), expect, bound_of(v, expect, mag[i] / scale));
    }
}

/* Moved by a lossy codec. */
static void check_decoded(const struct perf_values *v, size_t n, const void *sent,
                          const void *got, struct perf_check *out)
{
    double x[TILE], y[TILE];

    load_real(v->dtype, x, sent, n);
    load_real(v->dtype, y, got, n);
    for (size_t i = 0; i < n; i++)
        count_wrong(out, fabs(y[i] - x[i]), x[i], codec_bound(v, 0, fabs(x[i])) + 0x1p-24);
}

static void check_copy(const struct perf_values *v, int rank, size_t first, size_t n,
                       const void *got, struct perf_check *out)
{
    char tile[TILE * 8];
    size_t bytes = banyan_dtype_bytes(v->dtype);

    make_tile(v, rank, first, n, tile);
    if (v->codec.lossy) {
        check_decoded(v, n, tile, got, out);
        return;
    }
    if (memcmp(tile, got, n * bytes) == 0)
        return;
    for (size_t i = 0; i < n; i++)
        out->wrong += memcmp(tile + i * bytes, (const char *)got + i * bytes, bytes) != 0;
}

void perf_values_check(const struct perf_values *v, const struct perf_case *pc,
                       const struct perf_call *call, struct perf_check *out)
{
    size_t bytes = banyan_dtype_bytes(v->dtype), total;
    int blocks = pc->recv_blocks(call);

    for (int b = 0; b < blocks; b++) {
        struct perf_source from = pc->source(call, b);
        const char *at = (const char *)call->recv + (size_t)b * call->count * bytes;

        for (size_t i = 0; i < call->count; i += TILE) {
            size_t n = call->count - i < TILE ? call->count - i : TILE;

            if (from.src != PERF_REDUCED)
                check_copy(v, from.src, from.offset + i, n, at + i * bytes, out);
            else if (is_float(v->dtype))
                check_real(v, from.offset + i, n, at + i * bytes, out);
            else
                check_int(v, from.offset + i, n, at + i * bytes, out);
        }
    }
    total = (size_t)blocks * call->count * bytes;
    for (size_t i = 0; i < total; i++)
        out->hash = (out->hash ^ ((const unsigned char *)call->recv)[i]) * 0x100000001b3u;
}
