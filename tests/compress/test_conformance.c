/* SPDX-License-Identifier: BSD-3-Clause */
/* What every codec of the registry promises, with the parameters worth a test: sizes, the same
 * bits on every instruction set, conservation by residuals, refusal of foreign messages, raw
 * instead of what a format cannot hold; and for those that have them error bounds and exact
 * means. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/cpu.h"
#include "base/rng.h"
#include "compress/codec.h"

#define SEED  0x5eed0032
#define N_MAX 70000
#define GUARD 64

TestSuite(conformance, .timeout = 120);

/* Beside every codec's defaults. Those of one codec stand together: the test of residuals
 * switches among them. */
static const char *const specs[] = {
    "int8:block=16",     "int8:block=1000",       "int8:random=1",
    "int4:block=32",     "int4:random=1",         "e4m3:block=64",
    "e5m2:block=64",     "onebit:block=256",      "qsgd:levels=1",
    "qsgd:levels=2",     "qsgd:levels=127,max=1", "qsgd:levels=63,block=100",
    "qsgd:levels=3",     "qsgd:levels=1,max=1",   "wangni:delta=0.01",
    "terngrad:block=64", "terngrad:clip=2.5",     "eden:bits=1",
    "eden:bits=2",       "eden:bits=3",
};

struct spec {
    char text[32];
};

static struct spec all[128];

static size_t list_specs(void)
{
    size_t n = 0;

    for (size_t i = 0; bny_codecs[i] && n < 100; i++) {
        size_t len = strlen(bny_codecs[i]->name);

        if (!bny_codecs[i]->encode)
            continue;
        snprintf(all[n++].text, sizeof all[0].text, "%s", bny_codecs[i]->name);
        for (size_t j = 0; j < sizeof specs / sizeof specs[0]; j++)
            if (!strncmp(specs[j], bny_codecs[i]->name, len) && specs[j][len] == ':')
                snprintf(all[n++].text, sizeof all[0].text, "%s", specs[j]);
    }
    return n;
}

static struct criterion_test_params every_spec(void)
{
    return cr_make_param_array(struct spec, all, list_specs());
}

static const struct bny_codec *codec(const char *text)
{
    const struct bny_codec *c = NULL;

    cr_assert_eq(bny_codec_parse(&c, text), 0, "%s: %s", text, banyan_last_error());
    return c;
}

static struct bny_enc encoder(const struct bny_codec *c, unsigned flags, uint32_t step)
{
    return (struct bny_enc){ .codec = c,
                             .cpu_flags = flags,
                             .dtype = BANYAN_F32,
                             .ef_scale = 1,
                             .seed = SEED,
                             .step = step,
                             .rank = 3,
                             .nsum = 1,
                             .index = 1024 };
}

static struct bny_dec decoder(const struct bny_codec *c, unsigned flags, uint32_t step)
{
    return (struct bny_dec){ .codec = c,
                             .cpu_flags = flags,
                             .dtype = BANYAN_F32,
                             .scale = 1,
                             .seed = SEED,
                             .step = step,
                             .rank = 3,
                             .index = 1024 };
}

/* Laplace, as gradients are nearly. */
static void laplace(float *x, size_t n, double scale, uint64_t *rng)
{
    for (size_t i = 0; i < n; i++) {
        double u = bny_rng_unit(rng) - 0.5;

        x[i] = (float)(scale * (u < 0 ? log(1e-12 - 2 * u) : -log(1e-12 + 2 * u)));
    }
}

static const size_t sizes[] = { 0,    1,    2,    15,   16,   17,   31,   32,
                                33,   63,   64,   65,   255,  256,  257,  1000,
                                1023, 1024, 1025, 4095, 4096, 4097, N_MAX };
#define NSIZES (sizeof sizes / sizeof sizes[0])

/* Encodes and decodes with the given processor flags; everything that comes out, one after
 * another. */
static size_t outputs(unsigned char *out, const struct bny_codec *c, unsigned flags,
                      const float *x, const float *ef, size_t n)
{
    size_t bound = (bny_message_bound(c, n, BANYAN_F32, 1) + 63) & ~(size_t)63, room = 4 * n;
    struct bny_enc e = encoder(c, flags, 7);
    struct bny_dec d = decoder(c, flags, 7);
    unsigned char *decoded = out + bound, *added = decoded + room, *left = added + room;
    long len;

    memset(out, 0, bound + 3 * room);
    memcpy(left, ef, room);
    if (e.codec->ops->family != BNY_CODEC_EXACT) {
        e.ef = (float *)(void *)left;
        e.ef_scale = 0.5f;
    }
    len = bny_message_encode(&e, out, bound, x, n, 1);
    cr_assert(len > 0 && (size_t)len <= bound, "%s n %zu: %ld", c->spec, n, len);
    memset(out + len, 0, bound - (size_t)len); /* was scratch */
    cr_assert_eq(bny_message_decode(&d, decoded, out, (size_t)len, n), 0, "%s",
                 banyan_last_error());
    if (c->ops->decode_add)
        cr_assert_eq(bny_message_decode_add(&d, (float *)(void *)added, x, out, (size_t)len, n),
                     0);
    return bound + 3 * room;
}

ParameterizedTestParameters(conformance, every_instruction_set_gives_the_same_bytes)
{
    return every_spec();
}

ParameterizedTest(struct spec *s, conformance, every_instruction_set_gives_the_same_bytes)
{
    static const unsigned levels[] = { BNY_CPU_AVX2, BNY_CPU_AVX2 | BNY_CPU_AVX512,
                                       BNY_CPU_NEON };
    const struct bny_codec *c = codec(s->text);
    uint64_t rng = SEED;
    float *x = malloc(8 * N_MAX), *ef = x + N_MAX;
    /* bound() is at most 4 n + 64, rounded so that what follows is aligned. */
    size_t room = 17 * (size_t)N_MAX + 1024;
    unsigned char *want = malloc(2 * room), *got = want + room;

    laplace(x, N_MAX, 1e-3, &rng);
    laplace(ef, N_MAX, 1e-3, &rng);
    memset(x + 300, 0, 4 * 300);
    x[5000] = 1e9f;
    for (size_t i = 0; i < NSIZES; i++) {
        size_t n = sizes[i], bytes = outputs(want, c, 0, x, ef, n);

        for (size_t l = 0; l < 3; l++) {
            if ((bny_cpu_flags() & levels[l]) != levels[l])
                continue;
            cr_assert_eq(outputs(got, c, levels[l], x, ef, n), bytes);
            cr_assert(!memcmp(want, got, bytes), "%s n %zu flags %u: other bytes than scalar",
                      s->text, n, levels[l]);
        }
    }
    free(want);
    free(x);
}

/* Largest error that the documents allow for x in a block with this largest value. */
static double bound_of(const char *name, double x, double max)
{
    double a = fabs(x);

    if (!strncmp(name, "int8:random", 11))
        return max * (1 / 127.0 + 0x1p-22);
    if (!strncmp(name, "int4:random", 11))
        return max * (1 / 7.0 + 0x1p-22);
    if (!strncmp(name, "int8", 4))
        return max * (1 / 254.0 + 0x1p-22);
    if (!strncmp(name, "int4", 4))
        return max * (1 / 14.0 + 0x1p-22);
    if (!strncmp(name, "e4m3", 4))
        return fmax(0x1p-4 * a * (1 + 0x1p-20), 0x1p-10 * max / 448 * (1 + 0x1p-20));
    if (!strncmp(name, "e5m2", 4))
        return fmax(0x1p-3 * a * (1 + 0x1p-20), 0x1p-17 * max / 57344 * (1 + 0x1p-20));
    if (!strncmp(name, "mxfp8", 5)) {
        double unit = ldexp(1, ilogb(max) - 8);
        return a >= 464 * unit ? 64 * unit : fmax(0x1p-4 * a, 0x1p-10 * unit);
    }
    if (!strncmp(name, "mxfp4", 5)) {
        double unit = ldexp(1, ilogb(max) - 2);
        return a > 6 * unit ? 2 * unit : fmax(0.25 * a, 0.25 * unit);
    }
    if (!strncmp(name, "natural", 7))
        return a;
    if (!strncmp(name, "terngrad", 8))
        return max;
    return INFINITY;
}

ParameterizedTestParameters(conformance, errors_are_within_the_documented_bound)
{
    return every_spec();
}

ParameterizedTest(struct spec *s, conformance, errors_are_within_the_documented_bound)
{
    const struct bny_codec *c = codec(s->text);
    size_t n = 20000, bound = bny_message_bound(c, n, BANYAN_F32, 1);
    size_t block = !strncmp(s->text, "mx", 2)         ? 32
                   : isnan(bny_codec_get(c, "block")) ? 4096
                                                      : (size_t)bny_codec_get(c, "block");
    float *x = malloc(8 * n), *y = x + n;
    unsigned char *wire = malloc(bound);
    struct bny_enc e = encoder(c, bny_cpu_flags(), 1);
    struct bny_dec d = decoder(c, bny_cpu_flags(), 1);
    uint64_t rng = SEED;

    for (double scale = 1e-20; scale < 1e16; scale *= 1e7) {
        long len;

        laplace(x, n, scale, &rng);
        len = bny_message_encode(&e, wire, bound, x, n, 0);
        cr_assert(len > 0);
        cr_assert_eq(bny_message_decode(&d, y, wire, (size_t)len, n), 0);
        for (size_t at = 0; at < n; at += block) {
            size_t end = at + block < n ? at + block : n;
            double max = 0;

            for (size_t i = at; i < end; i++)
                max = fmax(max, fabs((double)x[i]));
            for (size_t i = at; i < end; i++)
                if (fabs((double)x[i] - (double)y[i]) > bound_of(s->text, (double)x[i], max))
                    cr_assert_fail("%s: %a became %a, block maximum %a, seed %#x", s->text,
                                   (double)x[i], (double)y[i], max, SEED);
        }
    }
    free(wire);
    free(x);
}

ParameterizedTestParameters(conformance, unbiased_means_the_mean_is_exact)
{
    return every_spec();
}

/* Also int8 and int4 with random=1, whose codecs as such are not unbiased; not terngrad with
 * clipping. */
ParameterizedTest(struct spec *s, conformance, unbiased_means_the_mean_is_exact)
{
    enum { N = 1100, REPEATS = 4096 };
    const struct bny_codec *c = codec(s->text);
    static double sum[N], square[N];
    static float x[N], y[N];
    static unsigned char wire[4 * N + 256];
    uint64_t rng = SEED;
    double chi2 = 0, used = 0, far = 0;

    if ((!(c->ops->flags & BNY_CODEC_UNBIASED) && !strstr(s->text, "random=1")) ||
        strstr(s->text, "clip"))
        return;
    laplace(x, N, 1, &rng);
    for (uint32_t t = 0; t < REPEATS; t++) {
        struct bny_enc e = encoder(c, bny_cpu_flags(), t);
        struct bny_dec d = decoder(c, bny_cpu_flags(), t);
        long len = bny_message_encode(&e, wire, sizeof wire, x, N, 0);

        cr_assert(len > 0);
        cr_assert_eq(bny_message_decode(&d, y, wire, (size_t)len, N), 0);
        for (int i = 0; i < N; i++) {
            sum[i] += (double)y[i];
            square[i] += (double)y[i] * (double)y[i];
            far = fmax(far, fabs((double)y[i] - (double)x[i]));
        }
    }
    for (int i = 0; i < N; i++) {
        double mean = sum[i] / REPEATS, variance = fmax(square[i] / REPEATS - mean * mean, 0);
        double off = fabs(mean - (double)x[i]), sigma = sqrt(variance / REPEATS);

        /* What is drawn with a probability below 25 / REPEATS may not have been drawn, and is
         * in no sigma. */
        if (off > 5 * sigma + 25 * far / REPEATS)
            cr_assert_fail("%s: the mean of %g is %g, sigma %g, seed %#x", s->text,
                           (double)x[i], mean, sigma, SEED);
        if (sigma > far / REPEATS * 6) {
            chi2 += off * off / (sigma * sigma);
            used++;
        }
    }
    /* Mean 1, standard deviation sqrt(2 / used) for one element. */
    cr_expect_leq(chi2 / used, 1 + 6 * sqrt(2 / used), "%s: chi2 %g of %g", s->text, chi2,
                  used);
}

ParameterizedTestParameters(conformance, nothing_is_lost_with_a_residual)
{
    return every_spec();
}

/* The law of codec.h over 1000 steps; parameters change every 97. */
ParameterizedTest(struct spec *s, conformance, nothing_is_lost_with_a_residual)
{
    enum { N = 700 };
    const struct bny_codec *c = codec(s->text), *used[128];
    static double in[N], out[N];
    static float x[N], y[N], ef[N];
    static unsigned char wire[4 * N + 256];
    size_t count = 0, total = list_specs();
    uint32_t steps = 1000;
    double scale = 0;
    uint64_t rng = SEED;

    if (c->ops->family == BNY_CODEC_EXACT)
        return;
    for (size_t i = 0; i < total; i++)
        if (codec(all[i].text)->ops == c->ops)
            used[count++] = codec(all[i].text);
    for (uint32_t t = 0; t < steps; t++) {
        const struct bny_codec *now = t < 97 ? c : used[t / 97 % count];
        struct bny_enc e = encoder(now, bny_cpu_flags(), t);
        struct bny_dec d = decoder(now, bny_cpu_flags(), t);
        long len;

        laplace(x, N, t % 200 == 50 ? 10 : 1, &rng);
        e.ef = ef;
        len = bny_message_encode(&e, wire, sizeof wire, x, N, 1);
        cr_assert(len > 0, "%s", now->spec);
        cr_assert_eq(bny_message_decode(&d, y, wire, (size_t)len, N), 0);
        for (int i = 0; i < N; i++) {
            in[i] += (double)x[i];
            out[i] += (double)y[i];
            scale += fabs((double)x[i]) / N;
        }
    }
    for (int i = 0; i < N; i++)
        if (fabs(out[i] + (double)ef[i] - in[i]) > 1e-4 * scale)
            cr_assert_fail("%s element %d: in %g, out %g, residual %g", s->text, i, in[i],
                           out[i], (double)ef[i]);
}

ParameterizedTestParameters(conformance, residuals_stay_bounded)
{
    return every_spec();
}

/* What a residual must bear: like gradients; one large element among small ones; all equal;
 * nothing but a few. */
static void hard(float *x, size_t n, int kind, uint64_t *rng)
{
    size_t drawn = kind == 2 ? 0 : kind == 3 ? (n + 96) / 97 : n;

    laplace(x, drawn, kind == 1 ? 1e-3 : 1, rng);
    for (size_t i = n; i-- > 0 && kind >= 2;)
        x[i] = kind == 2 ? 1 : i % 97 ? 0 : x[i / 97];
    if (kind == 1)
        x[n / 3] = 1;
}

/* Every codec contracts where it has a residual, which so has an end. (One large element among
 * N small ones is sent by signs in as many steps.) Builds that look for mistakes are ten times
 * slower. */
ParameterizedTest(struct spec *s, conformance, residuals_stay_bounded)
{
    enum { N = 1500, STEPS = BNY_CHECKS ? 250 : 1000 };
    const struct bny_codec *c = codec(s->text);
    static float x[N], y[N], ef[N];
    static unsigned char wire[4 * N + 256];
    uint64_t rng = SEED;

    if (c->ops->family == BNY_CODEC_EXACT)
        return;
    for (int kind = 0; kind < 4; kind++) {
        double worst = 0, input = 0;

        memset(ef, 0, sizeof ef);
        for (uint32_t t = 0; t < STEPS; t++) {
            struct bny_enc e = encoder(c, bny_cpu_flags(), t);
            struct bny_dec d = decoder(c, bny_cpu_flags(), t);
            double left = 0, in = 0;
            long len;

            hard(x, N, kind, &rng);
            e.ef = ef;
            len = bny_message_encode(&e, wire, sizeof wire, x, N, 0);
            cr_assert(len > 0);
            cr_assert_eq(bny_message_decode(&d, y, wire, (size_t)len, N), 0);
            for (int i = 0; i < N; i++) {
                left += (double)ef[i] * (double)ef[i];
                in += (double)x[i] * (double)x[i];
            }
            worst = fmax(worst, left);
            input = fmax(input, in);
        }
        cr_expect(sqrt(worst) <= N * sqrt(input), "%s, input %d of length %g: a residual of %g",
                  s->text, kind, sqrt(input), sqrt(worst));
    }
}

ParameterizedTestParameters(conformance, foreign_messages_are_refused_or_decode_inside)
{
    return every_spec();
}

/* Each wrong length, and each bit flipped, of messages for several n; memory ends where the
 * message does, which the address sanitizer watches. */
static void attack(const struct bny_codec *c, size_t n, uint64_t *rng)
{
    size_t bound = bny_message_bound(c, n, BANYAN_F32, 1);
    unsigned char *wire = malloc(bound), *bad;
    float x[300], y[300 + 2 * GUARD], before[300 + 2 * GUARD];
    struct bny_dec d = decoder(c, bny_cpu_flags(), 1);

    laplace(x, n, 1, rng);
    memset(before, 0x5a, sizeof before);
    memcpy(y, before, sizeof y);
    for (int crc = 0; crc < 2; crc++) {
        struct bny_enc e = encoder(c, bny_cpu_flags(), 1);
        long len = bny_message_encode(&e, wire, bound, x, n, crc);

        cr_assert(len > 0);
        d.need_crc = crc; /* else a flag lost on the way takes the checksum with it */
        for (size_t cut = 0; cut < (size_t)len; cut++) {
            bad = malloc(cut + 1);
            memcpy(bad, wire, cut);
            cr_expect_eq(bny_message_decode(&d, y + GUARD, bad, cut, n), -BANYAN_EPROTO,
                         "%s cut %zu", c->spec, cut);
            cr_expect_eq(bny_message_decode_add(&d, y + GUARD, y + GUARD, bad, cut, n),
                         -BANYAN_EPROTO);
            free(bad);
        }
        bad = calloc(1, (size_t)len + 7);
        memcpy(bad, wire, (size_t)len);
        cr_expect_eq(bny_message_decode(&d, y + GUARD, bad, (size_t)len + 7, n),
                     -BANYAN_EPROTO);
        cr_expect_eq(memcmp(y, before, sizeof y), 0,
                     "%s: a refused message changed the destination", c->spec);
        free(bad);
        bad = malloc((size_t)len);
        for (int t = 0; t < 2000; t++) {
            size_t bit = t < 256 ? (size_t)t : bny_rng_below(rng, 8 * (uint64_t)len);
            int rc;

            memcpy(bad, wire, (size_t)len);
            bad[bit / 8] ^= (unsigned char)(1 << bit % 8);
            rc = bny_message_decode(&d, y + GUARD, bad, (size_t)len, n);
            cr_expect(rc == 0 || rc == -BANYAN_EPROTO);
            if (crc && rc == 0)
                cr_assert_fail("%s: bit %zu turned, not noticed", c->spec, bit);
            if (rc)
                cr_assert(!memcmp(y, before, sizeof y), "%s: bit %zu", c->spec, bit);
            else
                memset(y + GUARD, 0x5a, 4 * n);
        }
        cr_expect_eq(memcmp(y, before, sizeof y), 0, "%s wrote outside", c->spec);
        free(bad);
    }
    free(wire);
}

ParameterizedTest(struct spec *s, conformance, foreign_messages_are_refused_or_decode_inside)
{
    uint64_t rng = SEED;

    attack(codec(s->text), 1, &rng);
    attack(codec(s->text), 67, &rng);
    attack(codec(s->text), 300, &rng);
}

ParameterizedTestParameters(conformance, what_is_not_finite_travels_raw)
{
    return every_spec();
}

ParameterizedTest(struct spec *s, conformance, what_is_not_finite_travels_raw)
{
    enum { N = 5000 };
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    const struct bny_codec *c = codec(s->text);
    static float x[N], y[N], ef[N], before[N];
    static unsigned char wire[4 * N + 1000];
    uint64_t rng = SEED;
    struct bny_coded_hdr h;

    if (c->ops->family == BNY_CODEC_EXACT || !strcmp(c->ops->name, "f16") ||
        !strcmp(c->ops->name, "bf16"))
        return; /* they hold them */
    for (int t = 0; t < 12; t++) {
        size_t at = t < 3   ? 0
                    : t < 6 ? N - 1
                            : bny_rng_below(&rng, N),
               bound = bny_message_bound(c, N, BANYAN_F32, 0);
        size_t cap =
            bound < sizeof h + 4 * N ? bound : sizeof h + 4 * N - 1; /* no room for raw */
        struct bny_enc e = encoder(c, bny_cpu_flags(), 1);
        struct bny_dec d = decoder(c, bny_cpu_flags(), 1);
        long len;

        laplace(x, N, 1, &rng);
        laplace(ef, N, 0.1, &rng);
        memcpy(before, ef, sizeof ef);
        x[at] = bad[t % 3];
        e.ef = ef;
        if (bound < sizeof h + 4 * N) /* no room for raw */
            cr_assert_eq(bny_message_encode(&e, wire, cap, x, N, 0), -BANYAN_ENOTSUP, "%s: %g",
                         s->text, (double)x[at]);
        cr_assert(!memcmp(ef, before, sizeof ef), "%s: the residual changed", s->text);
        len = bny_message_encode(&e, wire, sizeof wire, x, N, 1);
        cr_assert_eq(len, (long)sizeof h + 4 * N);
        memcpy(&h, wire, sizeof h);
        cr_assert_eq(h.flags, BNY_CODED_RAW | BNY_CODED_CRC | BNY_CODED_NONFINITE);
        cr_assert_eq(bny_message_decode(&d, y, wire, (size_t)len, N), 0);
        for (size_t i = 0; i < N; i++)
            if (i != at)
                cr_assert(y[i] == x[i] &&
                          ef[i] == before[i]); /* residuals wait for a better day */
        cr_assert(isnan(x[at]) ? isnan(y[at]) : y[at] == x[at]);
    }
}
