/* SPDX-License-Identifier: BSD-3-Clause */
/* The sparse codecs: conservation with the residual over many steps and parameter switches,
 * thresholds that keep what they promise, messages in every form and size, and foreign messages
 * that do no harm. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "compress/sparse.h"
#include "tests/compress/samples.h"

#define SEED  0x5eed0020
#define GUARD 64

TestSuite(sparse, .timeout = 60);

/* A tensor of one rank: what the caller of a codec owns. */
struct tensor {
    const struct bny_codec *codec;
    size_t n, chunk;
    float *ef, *more;
    void *track;
    uint32_t step, nsum, rank;
};

static const struct bny_codec *parse(const char *spec)
{
    const struct bny_codec *c;

    cr_assert_eq(bny_codec_parse(&c, spec), 0, "%s", banyan_last_error());
    return c;
}

static struct tensor tensor_new(const char *spec, size_t n, size_t chunk)
{
    struct tensor t = { .codec = parse(spec), .n = n, .chunk = chunk, .nsum = 1 };

    t.ef = calloc(n + 1, sizeof(float));
    t.more = calloc(3 * n + 1, sizeof(float));
    t.track = calloc(1, 1 << 16);
    return t;
}

static void tensor_free(struct tensor *t)
{
    free(t->ef);
    free(t->more);
    free(t->track);
}

/* One operation: encodes src chunk by chunk (cap: bytes for each; 0: the bound) and decodes to
 * out. Returns bytes. */
static size_t operate(struct tensor *t, float *out, const float *src, size_t cap)
{
    const struct bny_codec_ops *ops = t->codec->ops;
    size_t nchunks = (t->n + t->chunk - 1) / t->chunk, total = 0;
    size_t bound = ops->bound(t->codec, t->chunk, BANYAN_F32), room = cap ? cap : bound;
    char *wire = malloc(room), *stats = calloc(nchunks + 1, ops->stats_bytes + 1);

    cr_assert_leq(ops->track_bytes, (size_t)1 << 16);
    if (ops->begin)
        ops->begin(t->codec, t->track, t->step);
    for (size_t i = 0; i < nchunks; i++) {
        size_t at = i * t->chunk, m = t->n - at < t->chunk ? t->n - at : t->chunk;
        struct bny_enc e = { .codec = t->codec,
                             .cpu_flags = bny_cpu_flags(),
                             .ef = t->ef ? t->ef + at : NULL,
                             .ef_scale = 1,
                             .more = t->more ? t->more + at : NULL,
                             .more_stride = t->n,
                             .seed = SEED,
                             .step = t->step,
                             .rank = t->rank,
                             .nsum = t->nsum,
                             .index = at,
                             .track = t->track,
                             .stats = stats + i * ops->stats_bytes };
        struct bny_dec d = { .codec = t->codec,
                             .cpu_flags = bny_cpu_flags(),
                             .scale = 1,
                             .seed = SEED,
                             .step = t->step,
                             .rank = t->rank,
                             .index = at };
        long len = ops->encode(&e, wire, room, src + at, m);

        cr_assert(len >= 0 && (size_t)len <= room, "%s: %ld of %zu bytes", t->codec->spec, len,
                  room);
        cr_assert_eq(ops->decode(&d, out + at, wire, (size_t)len, m), 0, "%s",
                     banyan_last_error());
        total += (size_t)len;
    }
    if (ops->end)
        ops->end(t->codec, t->track, stats, nchunks);
    t->step++;
    free(wire);
    free(stats);
    return total;
}

static size_t nonzeros(const float *x, size_t n)
{
    size_t k = 0;

    for (size_t i = 0; i < n; i++)
        k += x[i] != 0;
    return k;
}

struct spec {
    char text[48];
};

ParameterizedTestParameters(sparse, residual_conserves_the_sum)
{
    static struct spec specs[] = { { "topk" },
                                   { "topk:delta=0.001" },
                                   { "topk:delta=0.1,reselect=1" },
                                   { "topk:reselect=1" },
                                   { "sidco" },
                                   { "sidco:fit=0,stages=3" },
                                   { "adacomp:bin=50" },
                                   { "wangni" },
                                   { "dgc:momentum=0" } };

    return cr_make_param_array(struct spec, specs, sizeof specs / sizeof specs[0]);
}

/* Over 300 steps with chunks, tight capacities and other parameters for a while: decoded sums
 * to inputs - residual. */
ParameterizedTest(struct spec *spec, sparse, residual_conserves_the_sum)
{
    size_t n = 5000;
    struct tensor t = tensor_new(spec->text, n, 2048);
    const struct bny_codec *first = t.codec, *other = parse("topk:delta=0.03");
    double *in = calloc(n, sizeof *in), *out = calloc(n, sizeof *out), worst = 0, size = 0;
    float *x = malloc(4 * n), *y = malloc(4 * n);
    uint64_t rng = SEED;

    for (int step = 0; step < 300; step++) {
        if (step % 50 == 0) { /* another codec finds no statistics, as in state.h */
            t.codec = step / 50 % 3 == 2 ? other : first;
            memset(t.track, 0, 1 << 16);
        }
        t.nsum = step % 7 == 6 ? 4 : 1;
        samples(x, n, (enum family)(step / 20 % FAMILIES), 1, &rng);
        operate(&t, y, x, step % 5 == 4 ? 64 + bny_rng_below(&rng, 200) : 0);
        for (size_t i = 0; i < n; i++) {
            in[i] += (double)x[i];
            out[i] += (double)y[i];
            size += fabs((double)x[i]);
        }
    }
    for (size_t i = 0; i < n; i++)
        worst = fmax(worst, fabs(in[i] - out[i] - (double)t.ef[i]));
    cr_expect_lt(worst, 1e-4 * size / (double)n, "%s: %g of %g, seed %#x", spec->text, worst,
                 size / (double)n, SEED);
    tensor_free(&t);
    free(in);
    free(out);
    free(x);
    free(y);
}

/* DGC against its definition: what is sent is the velocity, and momentum restarts there. */
Test(sparse, dgc_is_momentum_and_velocity)
{
    size_t n = 3000, sent = 0;
    float *x = malloc(4 * n), *y = malloc(4 * n), *u = calloc(n, 4), *v = calloc(n, 4);
    uint64_t rng = SEED;

    for (int nesterov = 0; nesterov < 2; nesterov++) {
        struct tensor t =
            tensor_new(nesterov ? "dgc:delta=0.01,nesterov=1" : "dgc:delta=0.01", n, 1024);
        float m = (float)bny_codec_get(t.codec, "momentum");

        memset(u, 0, 4 * n);
        memset(v, 0, 4 * n);
        for (int step = 0; step < 50; step++) {
            samples(x, n, LAPLACE, 1, &rng);
            operate(&t, y, x, step % 5 == 4 ? 100 : 0);
            for (size_t i = 0; i < n; i++) {
                u[i] = nesterov ? (u[i] + x[i]) * m : m * u[i] + x[i];
                v[i] = (nesterov ? u[i] + x[i] : u[i]) + v[i];
                cr_assert(y[i] == 0 || y[i] == v[i], "step %d element %zu: %g, not %g", step, i,
                          (double)y[i], (double)v[i]);
                sent += y[i] != 0;
                if (y[i] != 0)
                    u[i] = v[i] = 0;
                cr_assert(t.ef[i] == v[i] && t.more[i] == u[i], "step %d element %zu", step, i);
            }
        }
        tensor_free(&t);
    }
    cr_expect(sent > 2 * 50 * 15, "%zu", sent);
    free(x);
    free(y);
    free(u);
    free(v);
}

Test(sparse, dgc_warms_up)
{
    size_t n = 100000;
    struct tensor t = tensor_new("dgc:warmup=40", n, n);
    const double want[] = { 0.25, 0.0625, 0.0156, 0.0039, 0.001 };
    float *x = malloc(4 * n), *y = malloc(4 * n);
    uint64_t rng = SEED;

    for (int step = 0; step < 50; step++) {
        double ratio;

        samples(x, n, LAPLACE, 1, &rng);
        operate(&t, y, x, 0);
        ratio = (double)nonzeros(y, n) / ((double)n * want[step / 10]);
        cr_expect(step % 10 < 4 || (ratio > 0.5 && ratio < 2), "step %d: %.2f of %g, seed %#x",
                  step, ratio, want[step / 10], SEED);
    }
    tensor_free(&t);
    free(x);
    free(y);
}

Test(sparse, sidco_keeps_what_was_asked)
{
    const enum family families[] = { LAPLACE, GPD, STUDENT3, GAUSS, DGAMMA_HALF };
    size_t n = 1 << 20;
    float *x = malloc(4 * n), *y = malloc(4 * n);
    uint64_t rng = SEED;

    for (size_t f = 0; f < 5; f++) {
        samples(x, n, families[f], 1e-3, &rng);
        for (int k = 0; k < 6; k++) {
            double delta = k % 3 == 0 ? 0.1 : k % 3 == 1 ? 0.01 : 0.001, ratio;
            char spec[48];
            struct tensor t;

            snprintf(spec, sizeof spec, "sidco:delta=%g,stages=%d", delta, 2 + k / 3);
            t = tensor_new(spec, n, n);
            free(t.ef);
            t.ef = NULL;
            operate(&t, y, x, 0);
            ratio = (double)nonzeros(y, n) / (delta * (double)n);
            cr_expect(ratio > 0.8 && ratio < 1.25, "%s on %s: %.3f, seed %#x", spec,
                      family_name(families[f]), ratio, SEED);
            tensor_free(&t);
        }
    }
    free(x);
    free(y);
}

/* With a residual no distribution that is fitted holds: values pile up below the threshold.
 * What is sent is right nevertheless, from the first operation on and in the long run. */
Test(sparse, sidco_keeps_what_was_asked_with_a_residual)
{
    const size_t n = 1 << 15;
    const char *scale = getenv("BANYAN_TEST_SCALE");
    const int steps = (int)(100 * (scale ? atof(scale) : 1)) + 40;
    float *x = malloc(4 * n), *y = malloc(4 * n);

    for (int k = 0; k < 12; k++) {
        double delta = k / 2 % 3 == 0 ? 0.1 : k / 2 % 3 == 1 ? 0.01 : 0.001, sum = 0;
        enum family family = k < 6 ? LAPLACE : GAUSS;
        uint64_t rng = SEED + (uint64_t)k;
        struct tensor t;
        char spec[48];

        snprintf(spec, sizeof spec, "sidco:fit=%d,delta=%g", k % 2, delta);
        t = tensor_new(spec, n, n);
        for (int step = 0; step < steps; step++) {
            double ratio;

            samples(x, n, family, 1, &rng);
            operate(&t, y, x, 0);
            ratio = (double)nonzeros(y, n) / (delta * (double)n);
            cr_assert(ratio > 0.5 && ratio < 2, "%s on %s: step %d %.3f, seed %#x", spec,
                      family_name(family), step, ratio, SEED);
            sum += ratio / steps;
        }
        cr_assert(sum > 0.8 && sum < 1.25, "%s on %s: %.3f, seed %#x", spec,
                  family_name(family), sum, SEED);
        tensor_free(&t);
    }
    free(x);
    free(y);
}

static int descending(const void *a, const void *b)
{
    float x = fabsf(*(const float *)a), y = fabsf(*(const float *)b);

    return (x < y) - (x > y);
}

/* Of equal magnitudes as many are kept as there is room for. */
Test(sparse, the_first_topk_of_a_tensor_is_that_of_a_sort)
{
    size_t n = 70000, k = 1400;
    float *x = malloc(4 * n), *y = malloc(4 * n), *sorted = malloc(4 * n);
    uint64_t rng = SEED;

    for (int round = 0; round < 7; round++) {
        struct tensor t = tensor_new("topk:delta=0.02", n, n);
        float least;

        samples(x, n, (enum family)round, 1, &rng);
        for (size_t i = 0; round == 6 && i < n; i++)
            x[i] = i % 50 ? 1 : -1; /* nothing but ties */
        memcpy(sorted, x, 4 * n);
        qsort(sorted, n, 4, descending);
        operate(&t, y, x, 0);
        least = fabsf(sorted[k - 1]);
        for (size_t i = 0; i < n; i++)
            cr_assert(y[i] == (fabsf(x[i]) > least ? x[i] : 0) ||
                          (fabsf(x[i]) == least && y[i] == x[i]),
                      "round %d, element %zu of %g: %g, seed %#x", round, i, (double)x[i],
                      (double)y[i], SEED);
        cr_assert_geq(nonzeros(y, n), k, "round %d, seed %#x", round, SEED);
        tensor_free(&t);
    }
    free(x);
    free(y);
    free(sorted);
}

Test(sparse, wangni_is_unbiased)
{
    enum { REPEATS = 4096 };
    size_t n = 100;
    struct tensor t = tensor_new("wangni:delta=0.2", n, n);
    double sum[100] = { 0 }, var[100] = { 0 }, kept = 0;
    float x[100], y[100];
    uint64_t rng = SEED;

    free(t.ef);
    t.ef = NULL;
    samples(x, n, LAPLACE, 1, &rng);
    for (int r = 0; r < REPEATS; r++) {
        operate(&t, y, x, 0);
        kept += (double)nonzeros(y, n);
        for (size_t i = 0; i < n; i++) {
            sum[i] += (double)y[i];
            var[i] += (double)((y[i] - x[i]) * (y[i] - x[i]));
        }
    }
    for (size_t i = 0; i < n; i++)
        cr_expect(fabs(sum[i] / REPEATS - (double)x[i]) <=
                      5 * sqrt(var[i] / REPEATS / REPEATS) + 1e-6,
                  "element %zu seed %#x", i, SEED);
    cr_expect(fabs(kept / REPEATS - 20) < 2, "%g kept", kept / REPEATS);
    tensor_free(&t);
}

Test(sparse, adacomp_sends_what_another_gradient_would_make_large)
{
    struct tensor t = tensor_new("adacomp:bin=50", 1000, 1000);
    float x[1000], y[1000], v[1000], ef[1000] = { 0 };
    uint64_t rng = SEED;

    for (int step = 0; step < 20; step++) {
        samples(x, 1000, LAPLACE, 1, &rng);
        operate(&t, y, x, 0);
        for (size_t b = 0; b < 1000; b += 50) {
            float most = 0;

            for (size_t i = b; i < b + 50; i++)
                most = fmaxf(most, fabsf(v[i] = x[i] + ef[i]));
            for (size_t i = b; i < b + 50; i++) {
                float want = fabsf(v[i] + x[i]) >= most ? v[i] : 0;

                cr_assert(y[i] == want, "step %d element %zu: %g, not %g", step, i,
                          (double)y[i], (double)want);
                ef[i] = v[i] - y[i];
            }
        }
    }
    tensor_free(&t);
}

/* Acceptance: bytes <= (1 - sparsity) * size * 1.03. */
Test(sparse, zero_blocks_are_left_out)
{
    const struct bny_codec *c = parse("blocksparse");
    size_t n = 100 * 256 + 100;
    uint16_t *x = calloc(n + 1, 2), *y = malloc(2 * n);
    char *wire = malloc(2 * n);
    uint64_t rng = SEED;

    for (int percent = 0; percent <= 100; percent += 10) {
        struct bny_enc e = { .codec = c, .dtype = BANYAN_BF16, .ef_scale = 1, .nsum = 1 };
        struct bny_dec d = { .codec = c, .dtype = BANYAN_BF16, .scale = 1 };
        size_t there = 0;
        long len;

        memset(x, 0, 2 * n);
        for (size_t b = 0; b < n; b += 256)
            if ((int)(b / 256 % 100) >= percent) {
                x[b] = 0x8000; /* -0 is not nothing */
                there += n - b < 256 ? n - b : 256;
                for (size_t i = b + 1; i < b + 256 && i < n; i++)
                    x[i] = (uint16_t)bny_rng_next(&rng);
            }
        len = c->ops->encode(&e, wire, 2 * n, x, n);
        if (percent == 0) {
            cr_expect_eq(len, -BANYAN_ENOTSUP);
            continue;
        }
        cr_expect(len > 0 && (double)len <= 1.03 * 2 * (double)there + 16, "%d %%: %ld bytes",
                  percent, len);
        cr_assert_eq(c->ops->decode(&d, y, wire, (size_t)len, n), 0);
        cr_expect_eq(memcmp(x, y, 2 * n), 0, "%d %%", percent);
        for (long cut = 0; cut < len; cut += 97)
            cr_assert_eq(c->ops->decode(&d, y, wire, (size_t)cut, n), -BANYAN_EPROTO);
        wire[0] ^= 1;
        cr_expect_eq(c->ops->decode(&d, y, wire, (size_t)len, n), -BANYAN_EPROTO);
    }
    free(x);
    free(y);
    free(wire);
}

/* As many bits as the spread asks, and no larger error than was allowed. */
Test(sparse, adaptive_bits_follow_the_spread)
{
    size_t n = 20000, last = 0;
    float *x = malloc(4 * n), *y = malloc(4 * n);
    const char *specs[] = { "adaq:error=0.3", "adaq:error=0.1", "adaq", "adaq:error=0.01" };
    uint64_t rng = SEED;

    samples(x, n, LAPLACE, 1e-3, &rng);
    for (size_t k = 0; k < 4; k++) {
        struct tensor t = tensor_new(specs[k], n, n);
        double error = 0, square = 0;
        size_t bytes = operate(&t, y, x, 0);

        for (size_t i = 0; i < n; i++) {
            error += pow((double)y[i] - (double)x[i], 2);
            square += pow((double)x[i], 2);
            cr_assert(fabsf(x[i] - y[i] - t.ef[i]) <= 1e-9f);
        }
        cr_expect(k == 3 || sqrt(error / square) < 1.02 * bny_codec_get(t.codec, "error"),
                  "%s: %g", specs[k], sqrt(error / square));
        cr_expect(bytes > last, "%s: %zu bytes", specs[k], bytes);
        last = bytes;
        tensor_free(&t);
    }
    free(x);
    free(y);
}

/* A chunk of one element, which these codecs send sooner or later, in a message of the bound.
 * sidco does not: what it fits says that nothing is ever far above the mean. */
Test(sparse, a_single_element_does_not_wait_for_ever)
{
    for (size_t i = 0; bny_codecs[i]; i++) {
        float x = 1, out, sum = 0;
        struct tensor t;

        if (bny_codecs[i]->family != BNY_CODEC_SPARSE || !strcmp(bny_codecs[i]->name, "sidco"))
            continue;
        t = tensor_new(bny_codecs[i]->name, 1, 1);
        for (int step = 0; step < 200; step++) {
            operate(&t, &out, &x, 0);
            sum += fabsf(out);
        }
        cr_expect_gt(sum, 0, "%s: nothing came of 200 operations", bny_codecs[i]->name);
        tensor_free(&t);
    }
}

/* Acceptance: with 20 % drift of the scale each step, from the fourth call on. No residual: the
 * family stays itself. */
Test(sparse, tracked_threshold_keeps_what_was_asked)
{
    const enum family families[] = { LAPLACE, GPD, STUDENT3, GAUSS, DGAMMA_HALF };
    size_t n = 262144;
    float *x = malloc(4 * n), *y = malloc(4 * n);

    for (size_t f = 0; f < 5; f++)
        for (int d = 0; d < 2; d++) {
            double delta = d ? 0.001 : 0.01, low = d ? 0.7 : 0.9, high = d ? 1.4 : 1.1,
                   scale = 1e-3;
            struct tensor t = tensor_new(d ? "topk:delta=0.001" : "topk:delta=0.01", n, 65536);
            uint64_t rng = SEED + f;

            free(t.ef);
            t.ef = NULL;
            for (int step = 0; step < 12; step++) {
                double ratio;

                samples(x, n, families[f], scale, &rng);
                operate(&t, y, x, 0);
                ratio = (double)nonzeros(y, n) / (delta * (double)n);
                cr_expect(step < 4 || (ratio > low && ratio < high),
                          "%s delta %g step %d: %.3f, seed %#x", family_name(families[f]),
                          delta, step, ratio, SEED);
                scale *= exp(0.2 * gauss(&rng));
            }
            tensor_free(&t);
        }
    free(x);
    free(y);
}

Test(sparse, kth_largest_is_that_of_a_sort)
{
    float x[3000], sorted[3000], ef[3000];
    uint64_t rng = SEED;

    for (int round = 0; round < 200; round++) {
        size_t n = 1 + bny_rng_below(&rng, 3000), k = 1 + bny_rng_below(&rng, n);
        struct bny_enc e = { .ef = round % 2 ? ef : NULL, .ef_scale = 0.5f };
        uint32_t got, want;

        samples(x, n, (enum family)(round % FAMILIES),
                ldexp(1, (int)bny_rng_below(&rng, 60) - 30), &rng);
        samples(ef, n, LAPLACE, 1e-3, &rng);
        for (size_t i = 0; i < n; i++)
            sorted[i] = fabsf(bny_sparse_value(&e, x, i));
        qsort(sorted, n, 4, descending);
        got = bny_kth_largest(&e, x, n, k);
        memcpy(&want, &sorted[k - 1], 4);
        cr_assert_eq(got, want, "round %d n %zu k %zu seed %#x", round, n, k, SEED);
    }
}

/* Owners' sums: from nothing to everything, at every instruction set; the same bits and in the
 * shortest form. */
Test(sparse, sums_travel_without_loss)
{
    const unsigned flags[] = { 0, BNY_CPU_AVX2, BNY_CPU_AVX2 | BNY_CPU_AVX512 };
    const double density[] = { 0, 1e-4, 0.01, 0.05, 0.07, 0.3, 0.9, 0.99, 1 };
    const struct bny_codec *c = parse("topk");
    size_t sizes[] = { 0, 1, 7, 65, 4095, 4097, 65536, 65537, 150001 };
    char *wire = malloc(4 * 150001 + 64 + GUARD);
    float *x = malloc(4 * 150001), *y = malloc(4 * 150001 + GUARD);
    uint64_t rng = SEED;

    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (size_t k = 0; k < sizeof density / sizeof density[0]; k++) {
            size_t n = sizes[s], bound = c->ops->bound(c, n, BANYAN_F32), nz;
            struct bny_enc e = { .codec = c,
                                 .cpu_flags = flags[k % 3] & bny_cpu_flags(),
                                 .ef_scale = 1,
                                 .nsum = 3 };
            struct bny_dec d = { .codec = c,
                                 .cpu_flags = flags[s % 3] & bny_cpu_flags(),
                                 .scale = 1 };
            double best;
            long len;

            for (size_t i = 0; i < n; i++)
                x[i] = bny_rng_unit(&rng) < density[k] ? (float)bny_rng_unit(&rng) - 0.5f : 0;
            nz = nonzeros(x, n);
            memset(wire + bound, 0xa5, GUARD);
            memset((char *)y + 4 * n, 0xa5, GUARD);
            len = c->ops->encode(&e, wire, bound, x, n);
            cr_assert(len >= 0 && (size_t)len <= bound, "n %zu: %ld", n, len);
            best = fmin(4.0 * (double)n,
                        4.0 * (double)nz + fmin(2.0 * (double)nz, (double)n / 8 + 2));
            cr_expect((double)len <= best + 4 * (double)((n + 65535) / 65536) + 4,
                      "n %zu, %zu kept: %ld bytes", n, nz, len);
            cr_assert_eq(c->ops->decode(&d, y, wire, (size_t)len, n), 0, "%s",
                         banyan_last_error());
            cr_assert(n == 0 || !memcmp(x, y, 4 * n), "n %zu density %g seed %#x", n,
                      density[k], SEED);
            for (size_t i = 0; i < n; i++)
                y[i] = 1;
            cr_assert_eq(c->ops->decode_add(&d, y, y, wire, (size_t)len, n), 0);
            for (size_t i = 0; i < n; i++)
                cr_assert(y[i] == 1 + x[i], "n %zu element %zu", n, i);
            for (size_t i = 0; i < GUARD; i++)
                cr_assert(wire[bound + i] == (char)0xa5 &&
                          ((char *)y)[4 * n + i] == (char)0xa5);
        }
    free(wire);
    free(x);
    free(y);
}

Test(sparse, not_finite_is_declined_and_the_residual_is_unchanged)
{
    const struct bny_codec *c = parse("topk");
    float x[100], ef[100], before[100];
    uint64_t rng = SEED;
    char wire[1000];

    for (int bad = 0; bad < 3; bad++)
        for (uint32_t nsum = 1; nsum < 3; nsum++) {
            struct bny_enc e = {
                .codec = c, .cpu_flags = bny_cpu_flags(), .ef = ef, .ef_scale = 1, .nsum = nsum
            };

            samples(x, 100, LAPLACE, 1, &rng);
            samples(ef, 100, LAPLACE, 1, &rng);
            x[57] = bad == 0 ? NAN : bad == 1 ? INFINITY : -INFINITY;
            memcpy(before, ef, sizeof ef);
            cr_expect_eq(c->ops->encode(&e, wire, sizeof wire, x, 100), -BANYAN_ENOTSUP);
            cr_expect_arr_eq(ef, before, sizeof ef);
        }
}

Test(sparse, foreign_messages_do_no_harm)
{
    const struct bny_codec *c = parse("topk:delta=0.2");
    uint64_t rng = SEED;
    size_t refused = 0;

    for (int round = 0; round < 4000; round++) {
        size_t n = 1 + bny_rng_below(&rng, round % 50 ? 300 : 70000),
               bound = c->ops->bound(c, n, BANYAN_F32), cut;
        struct bny_enc e = {
            .codec = c, .cpu_flags = bny_cpu_flags(), .ef_scale = 1, .nsum = 1u + round % 2
        };
        struct bny_dec d = { .codec = c,
                             .cpu_flags = bny_cpu_flags(),
                             .scale = round % 5 ? 1 : 0.5f };
        float *x = malloc(4 * n), *y = malloc(4 * n);
        char *wire = malloc(bound), *bad;
        long len;
        int rc;

        samples(x, n, GAUSS, 1, &rng);
        for (size_t i = 0; round % 4 == 1 && i < n; i++)
            x[i] = i % 7 ? 0 : x[i];
        len = c->ops->encode(&e, wire, bound, x, n);
        cr_assert(len >= 0);
        cut = round % 3 == 0 ? bny_rng_below(&rng, (uint64_t)len + 1) : (size_t)len;
        bad = malloc(cut + 1);
        memcpy(bad, wire, cut);
        for (uint64_t flips = 1 + bny_rng_below(&rng, 3); cut && flips; flips--)
            bad[bny_rng_below(&rng, bny_rng_below(&rng, 2) ? cut
                                    : cut < 12             ? cut
                                               : 12)] ^= (char)(1u << bny_rng_below(&rng, 8));
        for (size_t i = 0; i < n; i++)
            y[i] = 7;
        rc = round % 2 ? c->ops->decode(&d, y, bad, cut, n)
                       : c->ops->decode_add(&d, y, y, bad, cut, n);
        refused += rc != 0;
        for (size_t i = 0; rc && i < n; i++)
            cr_assert_eq(y[i], 7, "round %d seed %#x", round, SEED);
        free(x);
        free(y);
        free(wire);
        free(bad);
    }
    cr_expect(refused > 1000, "%zu", refused);
}
