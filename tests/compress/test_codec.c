/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of compress/codec.h, for every codec of the registry, and the error bounds and
 * conversions of f16 and bf16, bit for bit on every instruction set. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "compress/codec.h"
#include "compress/kernels/half.h"
#include "compress/kernels/kernels.h"

/* With its parameters' defaults. */
static struct bny_codec plain(const struct bny_codec_ops *ops)
{
    const struct bny_codec *c = NULL;

    cr_assert_eq(bny_codec_parse(&c, ops->name), 0);
    return *c;
}

static size_t bound_of(const struct bny_codec_ops *ops, size_t n)
{
    struct bny_codec c = plain(ops);

    return ops->bound(&c, n, BANYAN_F32);
}

static size_t enc(const struct bny_codec_ops *ops, void *wire, const float *src, size_t n)
{
    struct bny_codec c = plain(ops);
    struct bny_enc e = { .codec = &c, .cpu_flags = bny_cpu_flags(), .nsum = 1, .ef_scale = 1 };

    return (size_t)ops->encode(&e, wire, bound_of(ops, n), src, n);
}

static int dec(const struct bny_codec_ops *ops, float *dst, const void *wire, size_t len,
               size_t n)
{
    struct bny_codec c = plain(ops);
    struct bny_dec d = { .codec = &c, .cpu_flags = bny_cpu_flags(), .scale = 1 };

    return ops->decode(&d, dst, wire, len, n);
}

static int dec_add(const struct bny_codec_ops *ops, float *dst, const float *acc,
                   const void *wire, size_t len, size_t n)
{
    struct bny_codec c = plain(ops);
    struct bny_dec d = { .codec = &c, .cpu_flags = bny_cpu_flags(), .scale = 1 };

    return ops->decode_add(&d, dst, acc, wire, len, n);
}

#define SEED  0x5eed0003
#define GUARD 64
#define N_MAX 130

TestSuite(codec, .timeout = 60);

/* Ranks compare the text. */
Test(codec, parameters_are_what_the_canonical_text_says)
{
    static const char *const same[][2] = {
        { "topk:delta=0.0100000000000000080", "topk" }, /* its default */
        { "topk:delta=0.02", "topk:delta=2e-2" },
        { "topk:delta=0.030000000000001", "topk:delta=0.03" },
        { "int8:force=1,block=64.000000000001", "int8:block=64,force=1" },
    };

    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        const struct bny_codec *a = NULL, *b = NULL, *c = NULL;

        cr_assert_eq(bny_codec_parse(&a, same[i][0]), 0, "%s", same[i][0]);
        cr_assert_eq(bny_codec_parse(&b, same[i][1]), 0, "%s", same[i][1]);
        cr_assert_eq(bny_codec_parse(&c, a->spec), 0, "%s", a->spec);
        cr_assert(a == b && a == c, "%s: %s and %s", same[i][0], a->spec, b->spec);
    }
}

Test(codec, a_parameter_is_given_once)
{
    static const char *const twice[][2] = {
        { "topk:delta=.1,delta=.2", "delta" },
        { "topk:delta=.1,delta=.1", "delta" },
        { "topk:delta=.1,reselect=1,delta=.2", "delta" },
        { "int8:block=64,block=64", "block" },
        { "int8:force=1,block=64,force=1", "force" },
    };

    for (size_t i = 0; i < sizeof twice / sizeof *twice; i++) {
        const struct bny_codec *c = NULL;

        cr_assert_eq(bny_codec_parse(&c, twice[i][0]), -BANYAN_EINVAL, "%s", twice[i][0]);
        cr_assert(strstr(banyan_last_error(), twice[i][1]), "%s", banyan_last_error());
        cr_assert(strstr(banyan_last_error(), "twice"), "%s", banyan_last_error());
    }
}

/* "levels": the canonical text, and what is refused with the sentence that says what to write.
 */
Test(codec, codecs_of_two_directions)
{
    static const struct {
        const char *text, *spec;
    } good[] = { { "levels:up=raw,down=int8", "levels:up=raw,down=int8" },
                 { "levels:down=int8", "levels:up=raw,down=int8" },
                 { "levels:host=raw,net=int8", "levels:up=int8,down=int8" },
                 { "levels:down=int4,up=none,force=1", "levels:up=raw,down=int4,force=1" },
                 { "levels:net=topk", "levels:up=topk,down=topk" },
                 { "levels:up=raw", "none" } };
    static const struct {
        const char *text, *says;
    } bad[] = { { "levels", "write up=CODEC and down=CODEC" },
                { "levels:wan=int8", "\"wan\" is unknown" },
                { "levels:dwon=int8", "did you mean down?" },
                { "levels:up=int9", "there are:" },
                { "levels:up", "wants the name of a codec" },
                { "levels:up=topk:delta=0.1", "without parameters" },
                { "levels:up=levels", "of one direction" },
                { "levels:up=powersgd", "name it alone" },
                { "levels:up=topk,down=int8", "write net=topk" },
                { "levels:host=int8,net=int8", "leave host=int8 out" },
                { "levels:net=int8,up=raw", "either net=" },
                { "levels:up=raw,up=int8", "given twice" },
                { "levels:net=int8,force=2", "force wants 1" } };
    const struct bny_codec *c, *again;

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cr_assert_eq(bny_codec_parse(&c, good[i].text), 0, "%s", banyan_last_error());
        cr_expect_str_eq(c->spec, good[i].spec);
        cr_assert_eq(bny_codec_parse(&again, c->spec), 0, "%s", banyan_last_error());
        cr_expect_eq(c, again);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_eq(bny_codec_parse(&c, bad[i].text), -BANYAN_EINVAL, "%s", bad[i].text);
        cr_expect_not_null(strstr(banyan_last_error(), bad[i].says), "%s: %s", bad[i].text,
                           banyan_last_error());
    }
}

/* "auto": what a call may lose. */
Test(codec, budgets)
{
    static const struct {
        const char *text, *spec;
        double nmse, max;
        int npairs;
    } good[] = {
        { "auto", "auto:max=0", INFINITY, 0, 22 },
        { "auto:max=1e-2", "auto:max=0.01", INFINITY, .01, 22 },
        { "auto:nmse=2e-4,max=.01", "auto:max=0.01,nmse=0.0002", 2e-4, .01, 22 },
        { "auto:like=int8", "auto:nmse=0.0002", 2e-4, INFINITY, 22 },
        { "auto:max=.1,from=raw+int8,force=1", "auto:max=0.1,from=raw+int8,force=1", INFINITY,
          .1, 3 },
        { "auto:nmse=1e-3,feedback=1", "auto:nmse=0.001,feedback=1", 1e-3, INFINITY, 22 },
        { "auto:nmse=1e-3,from=raw+lossless+bf16+e4m3+int8+int4,feedback=1,force=1",
          "auto:nmse=0.001,from=raw+lossless+bf16+e4m3+int8+int4,feedback=1,force=1", 1e-3,
          INFINITY, 33 },
    };
    static const struct {
        const char *text, *says;
    } bad[] = {
        { "auto:mx=1", "did you mean max?" },
        { "auto:int8", "write max=, nmse= or like=CODEC" },
        { "auto:max", "has no value" },
        { "auto:max=-1", "wants a number" },
        { "auto:max=1e-2x", "wants a number" },
        { "auto:nmse=nan", "wants a number" },
        { "auto:like=topk", "nothing bounds what topk loses" },
        { "auto:like=int8,nmse=1", "give one of both" },
        { "auto:max=1,from=int8+sign", "nothing bounds what sign loses" },
        { "auto:max=1,from=", "1 to 6 names" },
        { "auto:max=1,from=int8+int9", "there are:" },
        { "auto:max=1,from=auto", "no codec to choose" },
        { "auto:max=1,max=2", "given twice" },
        { "auto:max=1,from=int8:block=02560000000000000000000000000000000000000000000000000"
          "0000000000000000000000000000000000000000000",
          "without parameters" },
        { "auto:max=1,from=bf16+int8:block=64", "from= wants names of codecs" },
        { "auto:like=int8:block=64", "like= wants the name of a codec" },
        { "auto:like=topk", "like= takes raw" },
        { "auto:max=1,from=int8+bf16+int8", "int8 twice" },
        { "auto:max=1,from=raw+int8+none", "none twice" },
        { "auto:max=1,feedback=1", "write nmse=" },
        { "auto:from=raw+int8", "from= names no budget" },
        { "auto:feedback=1,force=1", "feedback= names no budget" },
        { "auto:max=1,feedback=yes", "feedback wants 1" },
        { "levels:up=auto", "of one direction" }
    };
    const struct bny_codec *c, *again;

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cr_assert_eq(bny_codec_parse(&c, good[i].text), 0, "%s", banyan_last_error());
        cr_expect_str_eq(c->spec, good[i].spec);
        cr_assert_not_null(c->budget);
        cr_expect_eq(c->budget->nmse, good[i].nmse, "%s: %g", c->spec, c->budget->nmse);
        cr_expect_eq(c->budget->max, good[i].max, "%s: %g", c->spec, c->budget->max);
        cr_expect_eq(c->budget->npairs, good[i].npairs, "%s: %d", c->spec, c->budget->npairs);
        for (int k = 0; k < c->budget->npairs; k++)
            cr_expect_eq(c->budget->pairs[k]->force, c->force);
        cr_assert_eq(bny_codec_parse(&again, c->spec), 0, "%s", banyan_last_error());
        cr_expect_eq(c, again);
    }
    cr_assert_eq(bny_codec_parse(&c, "auto:max=1,from=raw"), 0);
    cr_expect_str_eq(c->spec, "none");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_eq(bny_codec_parse(&c, bad[i].text), -BANYAN_EINVAL, "%s", bad[i].text);
        cr_expect_not_null(strstr(banyan_last_error(), bad[i].says), "%s: %s", bad[i].text,
                           banyan_last_error());
    }
}

Test(codec, the_old_name_of_an_option_is_refused_with_the_option)
{
    const struct bny_codec *c = NULL;

    cr_assert_eq(bny_codec_parse(&c, "gtopk:delta=0.1"), -BANYAN_EINVAL);
    cr_assert(strstr(banyan_last_error(), "topk:reselect=1"), "%s", banyan_last_error());
    cr_assert_null(c);
}

Test(codec, registry_starts_with_none_and_finds_by_name)
{
    cr_assert_str_eq(bny_codecs[0]->name, "none");
    cr_expect_eq(bny_codecs[0]->family, BNY_CODEC_RAW);
    cr_expect(!bny_codecs[0]->encode && !bny_codecs[0]->decode && !bny_codecs[0]->decode_add);
    for (size_t i = 0; bny_codecs[i]; i++) {
        const struct bny_codec_ops *c = bny_codecs[i];

        cr_expect(bny_codec_find(c->name) == c, "%s", c->name);
        cr_expect(c->doc != NULL, "%s", c->name);
        cr_expect(c->family == BNY_CODEC_RAW || (c->encode_ns > 0 && c->decode_ns > 0),
                  "%s: the cost model has no speed", c->name);
        if (c->family == BNY_CODEC_LINEAR)
            cr_expect(c->linear != NULL, "%s", c->name);
        else if (c->family != BNY_CODEC_RAW)
            cr_expect(c->bound && c->encode && c->decode &&
                          (c->decode_add || c->family == BNY_CODEC_EXACT),
                      "%s", c->name);
    }
    cr_expect(bny_codec_find("no such codec") == NULL);
}

/* One parameter for each codec whose messages have one length; test_conformance.c has the
 * promises of all. */
struct index {
    size_t i;
};

static struct index indexes[64];

static struct criterion_test_params all_codecs(void)
{
    size_t n = 0;

    for (size_t i = 0; bny_codecs[i] && n < 64; i++)
        if (bny_codecs[i]->encode && (bny_codecs[i]->flags & BNY_CODEC_FIXED))
            indexes[n++].i = i;
    return cr_make_param_array(struct index, indexes, n);
}

/* Those that hold NaN and infinities. */
static struct criterion_test_params half_codecs(void)
{
    size_t n = 0;

    for (size_t i = 0; bny_codecs[i] && n < 64; i++)
        if (!strcmp(bny_codecs[i]->name, "f16") || !strcmp(bny_codecs[i]->name, "bf16"))
            indexes[n++].i = i;
    return cr_make_param_array(struct index, indexes, n);
}

static float random_value(uint64_t *rng)
{
    return (float)ldexp(bny_rng_unit(rng) - 0.5, (int)bny_rng_below(rng, 40) - 20);
}

ParameterizedTestParameters(codec, bound_is_exact_and_nothing_else_is_written)
{
    return all_codecs();
}

ParameterizedTest(struct index *p, codec, bound_is_exact_and_nothing_else_is_written)
{
    const struct bny_codec_ops *c = bny_codecs[p->i];
    uint64_t rng = SEED;

    for (size_t n = 0; n <= N_MAX; n++) {
        unsigned char src[N_MAX * 4 + 1], dst[N_MAX * 4 + 1 + 2 * GUARD], before[sizeof dst];
        size_t bound = bound_of(c, n), odd = n % 2, len;
        unsigned char *wire = malloc(bound + 1 + 2 * GUARD);

        for (size_t i = 0; i < n; i++) {
            float v = random_value(&rng);

            memcpy(src + odd + 4 * i, &v, 4);
        }
        memset(wire, 0xa5, bound + 1 + 2 * GUARD);
        len = enc(c, wire + GUARD + odd, (const void *)(src + odd), n);
        cr_assert_eq(len, bound, "%s n %zu", c->name, n);
        for (size_t i = 0; i < GUARD; i++)
            if (wire[i] != 0xa5 || wire[GUARD + odd + bound + i] != 0xa5)
                cr_assert_fail("%s wrote outside its wire, n %zu", c->name, n);
        memset(dst, 0x5a, sizeof dst);
        memcpy(before, dst, sizeof dst);
        cr_assert_eq(dec(c, (void *)(dst + GUARD + odd), wire + GUARD + odd, len, n), 0);
        if (memcmp(dst, before, GUARD + odd) ||
            memcmp(dst + GUARD + odd + 4 * n, before, GUARD))
            cr_assert_fail("%s wrote outside dst, n %zu", c->name, n);
        free(wire);
    }
}

ParameterizedTestParameters(codec, wrong_length_is_eproto_and_dst_is_unchanged)
{
    return all_codecs();
}

ParameterizedTest(struct index *p, codec, wrong_length_is_eproto_and_dst_is_unchanged)
{
    const struct bny_codec_ops *c = bny_codecs[p->i];
    float src[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, dst[8], before[8];
    size_t len = bound_of(c, 8);
    unsigned char *wire = calloc(1, 2 * len + 8);
    size_t wrong[] = { 0, 1, len / 2, len - 1, len + 1, len + 2, 2 * len, SIZE_MAX };

    enc(c, wire, src, 8);
    memset(dst, 0x5a, sizeof dst);
    memcpy(before, dst, sizeof dst);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cr_expect_eq(dec(c, dst, wire, wrong[i], 8), -BANYAN_EPROTO, "%zu bytes", wrong[i]);
        cr_expect_eq(dec_add(c, dst, src, wire, wrong[i], 8), -BANYAN_EPROTO, "%zu bytes",
                     wrong[i]);
        cr_expect_arr_eq(dst, before, sizeof dst);
    }
    cr_expect(strstr(banyan_last_error(), c->name) != NULL, "%s", banyan_last_error());
    cr_expect_eq(dec(c, dst, wire, 2, 0), -BANYAN_EPROTO);
    cr_expect_eq(dec(c, NULL, NULL, 0, 0), 0);
    cr_expect_eq(dec_add(c, NULL, NULL, NULL, 0, 0), 0);
    cr_expect_eq(enc(c, NULL, NULL, 0), bound_of(c, 0));
    free(wire);
}

ParameterizedTestParameters(codec, decode_add_is_decode_and_add_in_place_too)
{
    return all_codecs();
}

ParameterizedTest(struct index *p, codec, decode_add_is_decode_and_add_in_place_too)
{
    const struct bny_codec_ops *c = bny_codecs[p->i];
    uint64_t rng = SEED;
    float src[N_MAX], acc[N_MAX], decoded[N_MAX], want[N_MAX], got[N_MAX];
    size_t n = N_MAX - 1, len = bound_of(c, n);
    unsigned char *wire = malloc(len);

    for (size_t i = 0; i < n; i++) {
        src[i] = random_value(&rng);
        acc[i] = random_value(&rng);
    }
    enc(c, wire, src, n);
    cr_assert_eq(dec(c, decoded, wire, len, n), 0);
    for (size_t i = 0; i < n; i++)
        want[i] = acc[i] + decoded[i];
    cr_assert_eq(dec_add(c, got, acc, wire, len, n), 0);
    cr_expect_arr_eq(got, want, n * sizeof(float));
    cr_assert_eq(dec_add(c, acc, acc, wire, len, n), 0);
    cr_expect_arr_eq(acc, want, n * sizeof(float));
    free(wire);
}

ParameterizedTestParameters(codec, encoding_decoded_values_changes_nothing)
{
    return half_codecs();
}

ParameterizedTest(struct index *p, codec, encoding_decoded_values_changes_nothing)
{
    const struct bny_codec_ops *c = bny_codecs[p->i];
    uint64_t rng = SEED;
    size_t n = 100000, len = bound_of(c, n);
    float *x = malloc(n * sizeof *x);
    unsigned char *wire = malloc(2 * len);

    for (size_t i = 0; i < n; i++)
        x[i] = f32_from_bits((uint32_t)bny_rng_next(&rng)); /* NaN and infinities among them */
    enc(c, wire, x, n);
    cr_assert_eq(dec(c, x, wire, len, n), 0);
    enc(c, wire + len, x, n);
    cr_expect_eq(memcmp(wire, wire + len, len), 0, "%s seed %#x", c->name, SEED);
    free(wire);
    free(x);
}

ParameterizedTestParameters(codec, nan_stays_nan_and_too_large_is_infinity)
{
    return half_codecs();
}

ParameterizedTest(struct index *p, codec, nan_stays_nan_and_too_large_is_infinity)
{
    const struct bny_codec_ops *c = bny_codecs[p->i];
    float src[8] = { NAN,
                     -NAN,
                     f32_from_bits(0x7f800001),
                     INFINITY,
                     -INFINITY,
                     0x1.fffffep127f,
                     -0x1.fffffep127f,
                     -0.0f };
    float dst[8];
    unsigned char *wire = malloc(bound_of(c, 8));

    enc(c, wire, src, 8);
    cr_assert_eq(dec(c, dst, wire, bound_of(c, 8), 8), 0);
    for (int i = 0; i < 3; i++)
        cr_expect(isnan(dst[i]), "%d", i);
    cr_expect(dst[3] == INFINITY && dst[4] == -INFINITY);
    cr_expect(dst[5] == INFINITY && dst[6] == -INFINITY);
    cr_expect_eq(f32_bits(dst[7]), 0x80000000);
    free(wire);
}

static float round_trip(const char *codec, float x)
{
    const struct bny_codec_ops *c = bny_codec_find(codec);
    unsigned char wire[2];
    float y = 0;

    enc(c, wire, &x, 1);
    dec(c, &y, wire, 2, 1);
    return y;
}

Test(codec, f16_error_is_within_its_bound)
{
    uint64_t rng = SEED;

    for (int i = 0; i < 1000000; i++) {
        double x = (float)ldexp(bny_rng_unit(&rng) * 2 - 1, (int)bny_rng_below(&rng, 45) - 28);
        double bound = fabs(x) >= 0x1p-14 ? 0x1p-11 * fabs(x) : 0x1p-25;
        double error = fabs(x - (double)round_trip("f16", (float)x));

        if (fabs(x) < 65520 && error > bound)
            cr_assert_fail("f16: %a is off by %a", x, error);
    }
    cr_expect_eq(round_trip("f16", 65519.996f), 65504);
    cr_expect_eq(round_trip("f16", 65520), INFINITY);
    cr_expect_eq(round_trip("f16", 0x1p-25f), 0); /* a tie, to even */
    cr_expect_eq(round_trip("f16", 0x1.000002p-25f), 0x1p-24f);
}

Test(codec, bf16_error_is_within_its_bound)
{
    uint64_t rng = SEED;

    for (int i = 0; i < 1000000; i++) {
        float x = f32_from_bits((uint32_t)bny_rng_next(&rng));
        double bound = fabsf(x) >= 0x1p-126f ? 0x1p-8 * fabs((double)x) : 0x1p-134;
        double error = fabs((double)x - (double)round_trip("bf16", x));

        if (fabsf(x) < 0x1.ffp127f && error > bound)
            cr_assert_fail("bf16: %a is off by %a", (double)x, error);
    }
    cr_expect_eq(round_trip("bf16", 0x1.fefffep127f), 0x1.fep127f);
    cr_expect_eq(round_trip("bf16", 0x1.ffp127f), INFINITY);
    cr_expect_eq(round_trip("bf16", 0x1.01p0f), 1); /* a tie, to even */
    cr_expect_eq(round_trip("bf16", 0x1.010002p0f), 0x1.02p0f);
}

/* Every two-byte value converted exactly: against ldexp, not against another implementation. */
Test(codec, every_half_decodes_exactly)
{
    for (unsigned h = 0; h < 0x10000; h++) {
        int sign = h & 0x8000 ? -1 : 1, e = h >> 10 & 31;
        double want = sign * ldexp((h & 0x3ff) + (e ? 0x400 : 0), (e ? e : 1) - 25);
        float got = f16_to_f32((uint16_t)h);

        if (e == 31) {
            uint32_t m = h & 0x3ff;
            uint32_t bits = (h & 0x8000) << 16 | 0x7f800000 | m << 13 | (m ? 0x400000 : 0);

            cr_assert(f32_bits(got) == bits, "%04x", h);
        } else if ((double)got != want || !signbit(got) != !(h & 0x8000)) {
            cr_assert_fail("f16 %04x gave %a, not %a", h, (double)got, want);
        }
        if (f32_bits(bf16_to_f32((uint16_t)h)) != h << 16)
            cr_assert_fail("bf16 %04x", h);
    }
}

struct level {
    char name[8];
    unsigned flags;
};

ParameterizedTestParameters(codec, isa_gives_the_scalar_bits)
{
    static struct level levels[] = { { "avx2", BNY_CPU_AVX2 },
                                     { "avx512", BNY_CPU_AVX2 | BNY_CPU_AVX512 } };

    return cr_make_param_array(struct level, levels, 2);
}

static void compare_half(const struct bny_half_kernels *want,
                         const struct bny_half_kernels *got, const float *x, const uint16_t *h,
                         size_t n, size_t shift, const char *what)
{
    size_t room = 4 * n + 2 * GUARD;
    unsigned char *w = malloc(2 * room), *g = w + room;
    const unsigned char *src = (const unsigned char *)x + shift,
                        *wire = (const unsigned char *)h + shift;

    for (int step = 0; step < 3; step++) {
        memset(w, 0xa5, 2 * room);
        for (int k = 0; k < 2; k++) {
            const struct bny_half_kernels *half = k ? got : want;
            unsigned char *out = (k ? g : w) + GUARD - shift;

            if (step == 0)
                half->encode(out, (const void *)src, n);
            else if (step == 1)
                half->decode((void *)out, wire, n);
            else
                half->decode_add((void *)out, (const void *)src, wire, n);
        }
        if (memcmp(w, g, room))
            cr_assert_fail("%s differs from scalar: step %d n %zu shift %zu seed %#x", what,
                           step, n, shift, SEED);
    }
    free(w);
}

/* The vector conversions of f16 are the processor's own: this is also the proof that half.h
 * equals them. */
ParameterizedTest(struct level *level, codec, isa_gives_the_scalar_bits)
{
    uint64_t rng = SEED;
    size_t n = 0x40000 + 200000;
    float *x = calloc(n + 2, sizeof *x); /* two more: the arrays are used shifted by bytes */
    uint16_t *h = calloc(n + 2, sizeof *h);
    const struct bny_kernels *scalar = &bny_kernels_scalar, *k = bny_kernels_for(level->flags);

    if ((bny_cpu_flags() & level->flags) != level->flags)
        cr_skip_test("this machine lacks the instruction set");
    cr_assert_str_eq(k->name, level->name);
    for (size_t i = 0; i < n; i++) {
        h[i] = (uint16_t)i;
        x[i] = f32_from_bits((uint32_t)bny_rng_next(&rng));
        /* Each half, the middle between it and the next, and both neighbours of that middle. */
        if (i < 0x40000)
            x[i] = f32_from_bits(f32_bits(f16_to_f32((uint16_t)i)) +
                                 (i >> 16 ? 0xffe + (uint32_t)(i >> 16) : 0));
        else if (i % 2)
            x[i] = f32_from_bits((f32_bits(x[i]) & 0xffff0000) + 0x7fff + i / 2 % 3);
    }
    for (size_t shift = 0; shift < 4; shift++) {
        compare_half(&scalar->f16, &k->f16, x, h, n, shift, "f16");
        compare_half(&scalar->bf16, &k->bf16, x, h, n, shift, "bf16");
    }
    for (size_t m = 1; m <= N_MAX; m++) {
        compare_half(&scalar->f16, &k->f16, x + m * 97, h + m * 97, m, m % 4, "f16");
        compare_half(&scalar->bf16, &k->bf16, x + m * 97, h + m * 97, m, m % 4, "bf16");
    }
    free(x);
    free(h);
}
