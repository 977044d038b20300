/* SPDX-License-Identifier: BSD-3-Clause */
/* Measures codecs and their inner loops beside memcpy: every sample of a loop follows a sample
 * of memcpy over as many f32, and medians of both are compared, so that what else the machine
 * does touches both alike. GB/s count f32 input. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/rng.h"
#include "compress/codec.h"
#include "compress/kernels/code.h"
#include "compress/kernels/kernels.h"
#include "compress/linear.h"
#include "tools/codec_opts.h"

/* 128 KiB an array: the second-level cache holds a loop's arrays. */
#define CACHE_ELEMS (32u << 10)
#define DRAM_ELEMS  (16u << 20)
/* Elements that a sparse codec gets at a time, as in an operation. */
#define CHUNK      (32u << 10)
#define CHUNKS_MAX 4096
#define WARM       6 /* operations until a threshold is tracked */

static struct codec_opts opt = { .reps = 31 };
static size_t printed; /* rows so far */

/* Memory of the loops: arrays of n f32 each. */
struct arrays {
    size_t n;
    float *src, *ef, *acc, *dst;
    unsigned char *wire;
    size_t wire_len;
    enum banyan_dtype dtype;  /* of src, for exact codecs */
    float *more;              /* further floats an element that a codec keeps */
    void *track, *stats;      /* what it knows of the tensor; of one operation */
    size_t len[CHUNKS_MAX];   /* of a message each */
    struct bny_linear linear; /* of linear codecs: what lasts from one operation to the next */
    float eta[3];             /* thresholds that keep 10 %, 1 %, .1 % of Laplace data */
};

struct target {
    const struct bny_kernels *k;
    const struct bny_code_kernels *ck;
    const struct bny_codec *codec;
    unsigned flags;
};

typedef void (*loop_fn)(const struct target *t, struct arrays *a);

/* Elements, of whatever type, and how many at a time. */
static size_t elements(const struct arrays *a)
{
    return 4 * a->n / banyan_dtype_bytes(a->dtype);
}

static size_t chunk_of(const struct target *t, const struct arrays *a)
{
    return t->codec->ops->family == BNY_CODEC_SPARSE && elements(a) > CHUNK ? CHUNK
                                                                            : elements(a);
}

static size_t wire_stride(const struct target *t, const struct arrays *a)
{
    return (t->codec->ops->bound(t->codec, chunk_of(t, a), a->dtype) + 63) & ~(size_t)63;
}

static void encode_with(const struct target *t, struct arrays *a, float *ef, const float *src)
{
    const struct bny_codec_ops *ops = t->codec->ops;
    struct bny_enc e = { .codec = t->codec,
                         .cpu_flags = t->flags,
                         .dtype = a->dtype,
                         .ef_scale = 1,
                         .seed = 1,
                         .step = 1,
                         .nsum = 1,
                         .more_stride = a->n,
                         .track = a->track };
    size_t step = chunk_of(t, a), esz = banyan_dtype_bytes(a->dtype), n = elements(a), c = 0;

    a->wire_len = 0;
    if (a->stats)
        memset(a->stats, 0, ops->stats_bytes * ((n + step - 1) / step));
    for (size_t at = 0; at < n; at += step, c++) {
        size_t m = n - at < step ? n - at : step;
        long len;

        e.index = at;
        e.ef = ef ? ef + at : NULL;
        e.more = a->more ? a->more + at : NULL;
        e.stats = a->stats ? (char *)a->stats + c * ops->stats_bytes : NULL;
        len = ops->encode(&e, a->wire + c * wire_stride(t, a),
                          ops->bound(t->codec, m, a->dtype), (const char *)src + at * esz, m);
        a->len[c] = len > 0 ? (size_t)len : 0;
        a->wire_len += a->len[c];
    }
    if (a->stats && ops->end)
        ops->end(t->codec, a->track, a->stats, c);
}

static void decode_with(const struct target *t, struct arrays *a, int add)
{
    size_t step = chunk_of(t, a), esz = banyan_dtype_bytes(a->dtype), n = elements(a), c = 0;
    struct bny_dec d = { .codec = t->codec,
                         .cpu_flags = t->flags,
                         .dtype = a->dtype,
                         .scale = 1,
                         .seed = 1,
                         .step = 1 };

    for (size_t at = 0; at < n; at += step, c++) {
        size_t m = n - at < step ? n - at : step;
        const unsigned char *wire = a->wire + c * wire_stride(t, a);

        d.index = at;
        if (add)
            t->codec->ops->decode_add(&d, a->dst + at, a->acc + at, wire, a->len[c], m);
        else
            t->codec->ops->decode(&d, (char *)a->dst + at * esz, wire, a->len[c], m);
    }
}

static void do_encode(const struct target *t, struct arrays *a)
{
    encode_with(t, a, NULL, a->src);
}

static void do_encode_ef(const struct target *t, struct arrays *a)
{
    encode_with(t, a, a->ef, a->src);
}

static void do_decode(const struct target *t, struct arrays *a)
{
    decode_with(t, a, 0);
}

static void do_decode_add(const struct target *t, struct arrays *a)
{
    decode_with(t, a, 1);
}

/* The owner of a block: adds what came, encodes the sum. */
static void do_owner(const struct target *t, struct arrays *a)
{
    do_decode_add(t, a);
    encode_with(t, a, NULL, a->dst);
}

static void do_absmax(const struct target *t, struct arrays *a)
{
    a->dst[0] = (float)t->ck->absmax(a->src, NULL, 0, a->n);
}

static void do_moments(const struct target *t, struct arrays *a)
{
    struct bny_moments m;

    t->ck->moments(&m, a->src, a->n);
    a->dst[0] = m.max;
}

static void do_select(const struct target *t, struct arrays *a, float eta, float *ef)
{
    struct bny_selection sel;

    a->wire_len = t->ck->select32(a->wire, a->dst, a->n, a->src, ef, 1, a->n, eta, &sel) * 8;
}

static void do_select_10(const struct target *t, struct arrays *a)
{
    do_select(t, a, a->eta[0], NULL);
}

static void do_select_1(const struct target *t, struct arrays *a)
{
    do_select(t, a, a->eta[1], NULL);
}

static void do_select_01(const struct target *t, struct arrays *a)
{
    do_select(t, a, a->eta[2], NULL);
}

/* The residual would grow from repetition to repetition; half of it is like a gradient's. */
static void do_select_ef(const struct target *t, struct arrays *a)
{
    struct bny_selection sel;

    a->wire_len = t->ck->select32(a->wire, a->dst, a->n, a->src, a->ef, 0.5f, a->n,
                                  1.6f * a->eta[1], &sel) *
                  8;
}

static void do_pack(const struct target *t, struct arrays *a)
{
    t->ck->pack[3](a->wire, (const uint8_t *)a->src, a->n);
}

static void do_unpack(const struct target *t, struct arrays *a)
{
    t->ck->unpack[3]((uint8_t *)a->dst, a->wire, a->n);
}

static void do_fwht(const struct target *t, struct arrays *a)
{
    for (size_t i = 0; i + BNY_FWHT <= a->n; i += BNY_FWHT)
        t->ck->fwht(a->ef + i);
}

static void do_flip(const struct target *t, struct arrays *a)
{
    t->ck->flip(a->dst, a->src, (struct bny_rand){ 1, 2 }, 0, a->n);
}

static void do_sum(const struct target *t, struct arrays *a)
{
    t->k->reduce[BANYAN_F32][BANYAN_SUM](a->dst, a->src, a->acc, a->n);
}

/* All that one rank computes for an operation of a linear codec, whose sums are its own codes.
 */
static void operate(struct arrays *a, float *ef, void *keep)
{
    const struct bny_linear_ops *ops = a->linear.codec->ops->linear;
    struct bny_stage s;

    a->linear.ef = ef;
    a->linear.keep = keep;
    a->wire_len = 0;
    for (int k = 0; k < ops->nstages(a->linear.codec); k++) {
        if (ops->contribute(&a->linear, k, &s) != 0) {
            fprintf(stderr, "banyan_codec: %s\n", banyan_last_error());
            exit(1);
        }
        a->wire_len += s.count * banyan_dtype_bytes(s.dtype);
    }
    ops->finish(&a->linear);
    a->linear.step++;
}

static void do_operation(const struct target *t, struct arrays *a)
{
    operate(a, NULL, a->linear.keep);
}

static void do_operation_ef(const struct target *t, struct arrays *a)
{
    operate(a, a->ef, a->linear.keep);
}

struct loop {
    const char *name;
    loop_fn fn;
};

static const struct loop codec_loops[] = {
    { "encode", do_encode },         { "encode_ef", do_encode_ef }, { "decode", do_decode },
    { "decode_add", do_decode_add }, { "owner", do_owner },
};

static const struct loop exact_loops[] = { { "encode", do_encode }, { "decode", do_decode } };
static const struct loop exact_bf16_loops[] = { { "encode_bf16", do_encode },
                                                { "decode_bf16", do_decode } };
static const struct loop exact_zeros_loops[] = { { "encode_zeros", do_encode },
                                                 { "decode_zeros", do_decode } };

static const struct loop linear_loops[] = { { "operation", do_operation },
                                            { "operation_ef", do_operation_ef } };

static const struct loop plain_loops[] = {
    { "sum", do_sum },
    { "absmax", do_absmax },
    { "moments", do_moments },
    { "select_10%", do_select_10 },
    { "select_1%", do_select_1 },
    { "select_.1%", do_select_01 },
    { "select_ef_1%", do_select_ef },
    { "pack3", do_pack },
    { "unpack3", do_unpack },
    { "hadamard", do_fwht },
    { "flip", do_flip },
};

static int banyan_codec_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Seconds of one call each, medians: out[0] of memcpy, out[1] of the loop. */
static void banyan_codec_measure(double out[2], loop_fn fn, const struct target *t,
                                 struct arrays *a)
{
    int calls = a->n > 1u << 20 ? 1 : 8,
        reps = a->n > 1u << 20 ? (int)opt.reps / 4 + 3 : (int)opt.reps;
    double *s = calloc(2 * (size_t)reps, sizeof *s);

    fn(t, a);
    for (int r = 0; s && r < reps; r++) {
        uint64_t t0 = bny_now_ns(), t1, t2;

        for (int i = 0; i < calls; i++)
            memcpy(a->dst, a->src, 4 * a->n);
        t1 = bny_now_ns();
        for (int i = 0; i < calls; i++)
            fn(t, a);
        t2 = bny_now_ns();
        s[r] = (double)(t1 - t0) * 1e-9 / calls;
        s[reps + r] = (double)(t2 - t1) * 1e-9 / calls;
    }
    for (int w = 0; s && w < 2; w++) {
        qsort(s + w * reps, (size_t)reps, sizeof *s, banyan_codec_by_value);
        out[w] = s[w * reps + reps / 2];
    }
    free(s);
}

/* |x - decoded|_2 / |x|_2, without a residual. */
static double relative_error(const struct target *t, struct arrays *a)
{
    double err = 0, all = 0;

    if (t->codec->ops->linear) {
        do_operation(t, a);
    } else {
        do_encode(t, a);
        do_decode(t, a);
    }
    for (size_t i = 0; i < a->n; i++) {
        double e = (double)a->src[i] - (double)a->dst[i];

        err += e * e;
        all += (double)a->src[i] * (double)a->src[i];
    }
    return sqrt(err / all);
}

static void row(const char *codec, const char *kernel, const char *isa, const char *where,
                const double time[2], const struct arrays *a, double ratio, double error)
{
    double bytes = 4.0 * (double)a->n * 1e-9, gbps = bytes / time[1], copy = bytes / time[0];

    printed++;
    if (opt.json) {
        printf("{\"codec\":\"%s\",\"kernel\":\"%s\",\"isa\":\"%s\",\"where\":\"%s\",\"GBps\":%."
               "3f,\"memcpy_GBps\":%.3f,"
               "\"times_memcpy\":%.3f,\"compression_ratio\":%.3f,\"rel_err\":%.3e}\n",
               codec, kernel, isa, where, gbps, copy, time[1] / time[0], ratio, error);
    } else {
        printf("%-14s %-13s %-7s %-5s %9.2f %9.2f %9.2f", codec, kernel, isa, where, gbps, copy,
               time[1] / time[0]);
        if (ratio > 0)
            printf(" %9.2f %10.2e", ratio, error);
        printf("\n");
    }
    fflush(stdout);
}

static void run_loops(const struct target *t, struct arrays *a, const struct loop *loops,
                      size_t count, const char *where, double ratio, double error)
{
    for (size_t i = 0; i < count; i++) {
        double time[2] = { 1, 1 };

        if (opt.kernel && !strstr(loops[i].name, opt.kernel))
            continue;
        if (t->codec) {
            memset(a->ef, 0, 4 * a->n);
            if (a->track)
                memset(a->track, 0, t->codec->ops->track_bytes);
            for (int k = 0; t->codec->ops->encode && k < (a->track ? WARM : 1); k++)
                do_encode(t, a);
        } else {
            memcpy(a->ef, a->acc, 4 * a->n);
        }
        banyan_codec_measure(time, loops[i].fn, t, a);
        row(t->codec ? t->codec->spec : "-", loops[i].name, t->k->name, where, time, a, ratio,
            error);
    }
}

static void laplace(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        double u = bny_rng_unit(&seed) - 0.5;

        x[i] = i < 1u << 20 ? (float)(1e-3 * (u < 0 ? log(1e-12 - 2 * u) : -log(1e-12 + 2 * u)))
                            : x[i - (1u << 20)];
    }
}

/* 0, or 1 without memory. */
static int banyan_codec_allocate(struct arrays *a, size_t n)
{
    size_t bytes = 4 * n + 4096;

    a->n = n;
    a->src = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    a->ef = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    a->acc = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    a->dst = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    a->wire = aligned_alloc(4096, (bytes + n / 256 + 8191) & ~(size_t)4095);
    if (!a->src || !a->ef || !a->acc || !a->dst || !a->wire)
        return 1;
    laplace(a->src, n, 1);
    laplace(a->acc, n, 2);
    memset(a->ef, 0, 4 * n);
    memset(a->dst, 0, 4 * n);
    memset(a->wire, 0, bytes);
    a->dtype = BANYAN_F32;
    for (int i = 0; i < 3; i++)
        a->eta[i] = 1e-3f * 2.302585f * (float)(i + 1);
    return 0;
}

static void banyan_codec_release(struct arrays *a)
{
    free(a->src);
    free(a->ef);
    free(a->acc);
    free(a->dst);
    free(a->wire);
}

/* A square matrix, or twice as wide as high: elements of the largest power of 4, or of 2, that
 * a->n has room for. */
static void run_linear(const struct target *t, struct arrays *a, const char *where)
{
    const struct bny_linear_ops *ops = t->codec->ops->linear;
    size_t n = a->n;
    int64_t rows = 1, cols;
    double ratio, error;

    while (rows * rows * 4 <= (int64_t)n)
        rows *= 2;
    cols = rows * rows * 2 <= (int64_t)n ? 2 * rows : rows;
    a->n = (size_t)(rows * cols);
    a->linear =
        (struct bny_linear){ .codec = t->codec,
                             .cpu_flags = t->flags,
                             .nranks = 1,
                             .seed = 1,
                             .src = a->src,
                             .dst = a->dst,
                             .n = a->n,
                             .rows = rows,
                             .cols = cols,
                             .scale = 1,
                             .ef_scale = 1,
                             .keep =
                                 calloc(1, ops->keep_bytes(t->codec, a->n, rows, cols) + 64),
                             .work = malloc(ops->work_bytes(t->codec, a->n, rows, cols) + 64),
                             .code = malloc(ops->code_bytes(t->codec, a->n, rows, cols) + 64) };
    if (a->linear.keep && a->linear.work && a->linear.code) {
        error = relative_error(t, a);
        ratio = 4.0 * (double)a->n / (double)a->wire_len;
        run_loops(t, a, linear_loops, sizeof linear_loops / sizeof linear_loops[0], where,
                  ratio, error);
    }
    free(a->linear.keep);
    free(a->linear.work);
    free(a->linear.code);
    a->n = n;
}

static double ratio_of(const struct arrays *a)
{
    return 4.0 * (double)a->n / (double)(a->wire_len ? a->wire_len : 1);
}

/* Whole blocks of 256 zeros, three of four, and half of the others' elements: what skips zeros
 * has something to do. */
static void make_zeros(float *x, const float *src, size_t n)
{
    uint64_t seed = 3;

    for (size_t at = 0; at < n; at += 256) {
        int empty = bny_rng_below(&seed, 4) != 0;

        for (size_t i = at; i < n && i < at + 256; i++)
            x[i] = empty || bny_rng_below(&seed, 2) ? 0 : src[i];
    }
}

/* f32 as they are, as twice as many bf16 and with zeros. A distribution that a codec declines
 * has no row. */
static void run_exact(struct target *t, struct arrays *a, const char *where)
{
    const struct bny_half_kernels *half = &bny_kernels_for(t->flags)->bf16;
    float *src = a->src, *other = malloc(4 * a->n);

    do_encode(t, a);
    if (a->wire_len)
        run_loops(t, a, exact_loops, 2, where, ratio_of(a), 0);
    if (!other)
        return;
    a->src = other;
    make_zeros(other, src, a->n);
    do_encode(t, a);
    if (a->wire_len)
        run_loops(t, a, exact_zeros_loops, 2, where, ratio_of(a), 0);
    if (t->codec->ops->dtypes >> BANYAN_BF16 & 1) {
        half->encode(other, src, a->n);
        half->encode((char *)other + 2 * a->n, a->acc, a->n);
        a->dtype = BANYAN_BF16;
        do_encode(t, a);
        if (a->wire_len)
            run_loops(t, a, exact_bf16_loops, 2, where, ratio_of(a), 0);
        a->dtype = BANYAN_F32;
    }
    a->src = src;
    free(other);
}

/* With what a codec knows of a tensor after some operations. The residual's last state is
 * measured: full. */
static void run_sparse(struct target *t, struct arrays *a, const char *where)
{
    const struct bny_codec_ops *ops = t->codec->ops;
    size_t chunks = (a->n + CHUNK - 1) / CHUNK;
    double error;

    if (chunks > CHUNKS_MAX)
        return;
    a->track = ops->track_bytes ? calloc(1, ops->track_bytes) : NULL;
    a->stats = ops->stats_bytes ? calloc(chunks, ops->stats_bytes) : NULL;
    a->more = ops->elem_floats ? calloc(a->n, 4 * ops->elem_floats) : NULL;
    for (int i = 0; i < WARM; i++)
        do_encode(t, a);
    error = relative_error(t, a);
    run_loops(t, a, codec_loops, 4, where, ratio_of(a), error);
    free(a->track);
    free(a->stats);
    free(a->more);
    a->track = a->stats = NULL;
    a->more = NULL;
}

static void run_codec(struct target *t, struct arrays *a, const char *spec, const char *where)
{
    double ratio, error;

    memset(a->ef, 0, 4 * a->n);
    if (bny_codec_parse(&t->codec, spec) != 0) {
        fprintf(stderr, "banyan_codec: %s\n", banyan_last_error());
        exit(2);
    }
    if (t->codec->ops->linear) {
        run_linear(t, a, where);
        return;
    }
    if (t->codec->ops->family == BNY_CODEC_EXACT)
        run_exact(t, a, where);
    if (t->codec->ops->family == BNY_CODEC_SPARSE)
        run_sparse(t, a, where);
    if (t->codec->ops->family != BNY_CODEC_BLOCK)
        return;
    error = relative_error(t, a);
    ratio = ratio_of(a);
    run_loops(t, a, codec_loops, sizeof codec_loops / sizeof codec_loops[0], where, ratio,
              error);
}

static void run_isa(unsigned flags, struct arrays *a, const char *where)
{
    struct target t = { .k = bny_kernels_for(flags),
                        .ck = bny_code_kernels_for(flags),
                        .flags = flags };

    if (opt.isa && strcmp(opt.isa, t.ck->name))
        return;
    if (!opt.codec)
        run_loops(&t, a, plain_loops, sizeof plain_loops / sizeof plain_loops[0], where, 0, 0);
    if (opt.codec) {
        run_codec(&t, a, opt.codec, where);
        return;
    }
    for (size_t i = 1; bny_codecs[i]; i++)
        run_codec(&t, a, bny_codecs[i]->name, where);
    run_codec(&t, a, "int8:random=1", where);
}

static int run_where(const char *where, size_t usual)
{
    static struct arrays a;
    size_t n = opt.elems ? (size_t)opt.elems : usual;

    if (opt.where && strcmp(opt.where, where))
        return 0;
    if (banyan_codec_allocate(&a, n)) {
        fprintf(stderr, "banyan_codec: no memory for arrays of %zu elements\n", n);
        return 1;
    }
    for (size_t l = 0; l < CODEC_LEVELS; l++)
        if ((bny_cpu_flags() & codec_levels[l]) == codec_levels[l])
            run_isa(codec_levels[l], &a, where);
    banyan_codec_release(&a);
    return 0;
}

int main(int argc, char **argv)
{
    int e = codec_opts_parse(&opt, argc, argv);

    if (e)
        return e < 0 ? 0 : e;
    if (!opt.json)
        printf("%-14s %-13s %-7s %-5s %9s %9s %9s %9s %10s\n", "codec", "kernel", "isa",
               "where", "GB/s", "memcpy", "x memcpy", "ratio", "rel err");
    e = run_where("cache", CACHE_ELEMS) || run_where("dram", DRAM_ELEMS);
    if (!e && !printed)
        return opt.kernel ? codec_bad("no loop has in its name --kernel ", opt.kernel)
                          : codec_bad("no loop to measure in --codec ", opt.codec);
    return e;
}
