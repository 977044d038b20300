/* SPDX-License-Identifier: BSD-3-Clause */
/* The lossless codec: every bit back for any bits, the promised ratios, the same message from
 * every instruction set, and no foreign message that harms. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "compress/codec.h"
#include "compress/kernels/half.h"

#define SEED  0x5eed0010
#define N     20000
#define GUARD 64

TestSuite(lossless, .timeout = 60);

static const enum banyan_dtype dtypes[] = { BANYAN_F32, BANYAN_F64, BANYAN_F16, BANYAN_BF16 };
static const unsigned levels[] = { 0, BNY_CPU_AVX2, BNY_CPU_AVX2 | BNY_CPU_AVX512 };

static const struct bny_codec *codec(void)
{
    const struct bny_codec *c;

    cr_assert_eq(bny_codec_parse(&c, "lossless"), 0);
    return c;
}

static long enc(enum banyan_dtype dtype, unsigned flags, void *wire, size_t cap,
                const void *src, size_t n)
{
    struct bny_enc e = {
        .codec = codec(), .cpu_flags = flags, .dtype = dtype, .ef_scale = 1, .nsum = 1
    };

    return e.codec->ops->encode(&e, wire, cap, src, n);
}

static int dec(enum banyan_dtype dtype, unsigned flags, void *dst, const void *wire, size_t len,
               size_t n)
{
    struct bny_dec d = { .codec = codec(), .cpu_flags = flags, .dtype = dtype, .scale = 1 };

    return d.codec->ops->decode(&d, dst, wire, len, n);
}

/* Gaussian, Laplace, Laplace with few and with many zeros. */
static double value(uint64_t *rng, int dist)
{
    double u = 1 - bny_rng_unit(rng), w = bny_rng_unit(rng);

    if (dist == 0)
        return sqrt(-2 * log(u)) * cos(6.283185307179586 * w);
    if ((dist == 2 && bny_rng_below(rng, 25) == 0) || (dist == 3 && bny_rng_below(rng, 10) < 3))
        return 0;
    return w < 0.5 ? log(u) : -log(u);
}

static void put(enum banyan_dtype dtype, void *dst, size_t i, double v)
{
    float f = (float)v;
    uint16_t h = dtype == BANYAN_F16 ? f16_from_f32(f) : bf16_from_f32(f);

    if (dtype == BANYAN_F64)
        memcpy((char *)dst + 8 * i, &v, 8);
    else if (dtype == BANYAN_F32)
        memcpy((char *)dst + 4 * i, &f, 4);
    else
        memcpy((char *)dst + 2 * i, &h, 2);
}

/* Everything a float can be, in runs: noise around some scale, zeros, constants, random bits.
 */
static void fill_mixed(enum banyan_dtype dtype, unsigned char *dst, size_t n, uint64_t *rng)
{
    size_t es = banyan_dtype_bytes(dtype), i = 0;

    while (i < n) {
        size_t run = 1 + bny_rng_below(rng, bny_rng_below(rng, 2) ? 9000 : 100);
        unsigned kind = (unsigned)bny_rng_below(rng, 8);
        int scale = (int)bny_rng_below(rng, 40) - 30;

        for (; run && i < n; run--, i++)
            if (kind == 0)
                memset(dst + es * i, 0, es);
            else if (kind == 1)
                for (size_t b = 0; b < es; b++)
                    dst[es * i + b] = (unsigned char)bny_rng_next(rng);
            else if (kind == 2)
                put(dtype, dst, i, bny_rng_below(rng, 2) ? NAN : -INFINITY);
            else
                put(dtype, dst, i, ldexp(value(rng, (int)kind % 4), scale));
    }
}

/* One chunk on every instruction set, src at an odd address. */
static void round_trip(enum banyan_dtype dtype, const unsigned char *src, size_t n,
                       size_t *declined)
{
    size_t bytes = n * banyan_dtype_bytes(dtype);
    unsigned char *wire = malloc(bytes + 2 * GUARD), *first = malloc(bytes + 1),
                  *dst = malloc(bytes + 2 * GUARD);
    long want = 0;

    for (size_t l = 0; l < 3; l++) {
        long len;

        if ((levels[l] & bny_cpu_flags()) != levels[l])
            continue;
        memset(wire, 0xa5, bytes + 2 * GUARD);
        len = enc(dtype, levels[l], wire + GUARD - 1, bytes, src, n);
        for (size_t g = 0; g < GUARD - 1; g++)
            cr_assert(wire[g] == 0xa5 && wire[GUARD + bytes + g] == 0xa5, "type %d n %zu",
                      dtype, n);
        if (l == 0)
            want = len;
        cr_assert_eq(len, want, "type %d n %zu level %zu: %ld bytes, scalar %ld", dtype, n, l,
                     len, want);
        if (len < 0) {
            cr_assert_eq(len, -BANYAN_ENOTSUP);
            ++*declined;
            continue;
        }
        if (l == 0 && len)
            memcpy(first, wire + GUARD - 1, (size_t)len);
        cr_assert(len == 0 || !memcmp(first, wire + GUARD - 1, (size_t)len),
                  "type %d n %zu level %zu", dtype, n, l);
        memset(dst, 0x5a, bytes + 2 * GUARD);
        cr_assert_eq(dec(dtype, levels[l], dst + GUARD + 1, wire + GUARD - 1, (size_t)len, n),
                     0);
        cr_assert(bytes == 0 || !memcmp(dst + GUARD + 1, src, bytes), "type %d n %zu level %zu",
                  dtype, n, l);
        for (size_t g = 0; g < GUARD - 1; g++)
            cr_assert(dst[g] == 0x5a && dst[GUARD + 1 + bytes + g] == 0x5a, "type %d n %zu",
                      dtype, n);
    }
    free(wire);
    free(first);
    free(dst);
}

Test(lossless, any_bits_come_back_and_instruction_sets_agree)
{
    uint64_t rng = SEED;
    size_t declined = 0, rounds = 0;
    unsigned char *src = malloc(N * 8 + 1);

    for (size_t t = 0; t < 4; t++)
        for (size_t n = 0; n <= 12000;
             n += n < 140 ? 1 : 1 + bny_rng_below(&rng, 900), rounds++) {
            fill_mixed(dtypes[t], src + 1, n, &rng);
            round_trip(dtypes[t], src + 1, n, &declined);
        }
    /* Below a few hundred elements there is nothing to gain. */
    cr_expect(declined + 300 < 3 * rounds, "%zu of %zu were declined, seed %#x", declined,
              3 * rounds, SEED);
    free(src);
}

Test(lossless, gradients_shrink_as_promised)
{
    const double promised[] = {
        [BANYAN_F32] = 1.15, [BANYAN_F64] = 1.1, [BANYAN_F16] = 1.12, [BANYAN_BF16] = 1.3
    };
    const char *name[] = { "Gauss", "Laplace", "Laplace with 4 % zeros", "with 30 % zeros" };
    uint64_t rng = SEED;
    unsigned char *src = malloc(65536 * 8), *wire = malloc(65536 * 8);

    for (size_t t = 0; t < 4; t++)
        for (int dist = 0; dist < 4; dist++) {
            size_t bytes = 65536 * banyan_dtype_bytes(dtypes[t]);
            long len;

            for (size_t i = 0; i < 65536; i++)
                put(dtypes[t], src, i, 1e-3 * value(&rng, dist));
            len = enc(dtypes[t], bny_cpu_flags(), wire, bytes, src, 65536);
            cr_expect(len > 0 && (double)bytes / (double)len >= promised[dtypes[t]],
                      "%s, type %d: %zu -> %ld bytes, seed %#x", name[dist], dtypes[t], bytes,
                      len, SEED);
        }
    free(src);
    free(wire);
}

Test(lossless, noise_is_declined_and_zeros_are_not)
{
    uint64_t rng = SEED;
    unsigned char *src = calloc(1, 200000 * 4), *wire = malloc(200000 * 4);

    cr_expect_eq(enc(BANYAN_F32, bny_cpu_flags(), wire, 800000, src, 200000),
                 4 * ((200000 + 4095) / 4096));
    for (size_t i = 0; i < 800000; i++)
        src[i] = (unsigned char)bny_rng_next(&rng);
    cr_expect_eq(enc(BANYAN_F32, bny_cpu_flags(), wire, 800000, src, 200000), -BANYAN_ENOTSUP);
    cr_expect_eq(enc(BANYAN_BF16, bny_cpu_flags(), wire, 20000, src, 10000), -BANYAN_ENOTSUP);
    free(src);
    free(wire);
}

/* Truncated, extended and flipped messages: refused with dst unchanged, or decoded inside dst.
 * Exact heap sizes let the address sanitizer watch the rest. */
Test(lossless, foreign_messages_do_no_harm)
{
    uint64_t rng = SEED;
    size_t refused = 0;

    for (int round = 0; round < 3000; round++) {
        enum banyan_dtype dtype = dtypes[bny_rng_below(&rng, 4)];
        size_t n = 1 + bny_rng_below(&rng, round % 8 ? 300 : 9000),
               bytes = n * banyan_dtype_bytes(dtype);
        unsigned char *src = malloc(bytes), *wire = malloc(bytes), *bad,
                      *dst = malloc(bytes + GUARD);
        size_t cut;
        long len;

        for (size_t i = 0; i < n; i++)
            put(dtype, src, i, value(&rng, round % 4));
        len = enc(dtype, bny_cpu_flags(), wire, bytes, src, n);
        cut = len < 0 ? bytes : (size_t)len;
        cut = round % 3 == 0 ? bny_rng_below(&rng, cut + 1) : cut;
        bad = malloc(cut + 1);
        memcpy(bad, wire, cut);
        for (uint64_t flips = bny_rng_below(&rng, 4); cut && flips; flips--)
            bad[bny_rng_below(&rng, bny_rng_below(&rng, 2) ? cut
                                    : cut < 8              ? cut
                                                           : 8)] ^=
                (unsigned char)(1u << bny_rng_below(&rng, 8));
        memset(dst, 0x5a, bytes + GUARD);
        if (dec(dtype, levels[round % 2] & bny_cpu_flags(), dst, bad, cut, n) != 0) {
            refused++;
            for (size_t i = 0; i < bytes; i++)
                cr_assert_eq(dst[i], 0x5a, "round %d seed %#x", round, SEED);
        }
        for (size_t i = 0; i < GUARD; i++)
            cr_assert_eq(dst[bytes + i], 0x5a, "round %d seed %#x", round, SEED);
        free(src);
        free(wire);
        free(bad);
        free(dst);
    }
    cr_expect(refused > 1000, "%zu", refused);
}

/* int8z and int4z decode to what int8 and int4 decode to, from fewer bytes. */
Test(lossless, short_codes_change_no_value)
{
    const char *pairs[][2] = { { "int8:block=1024", "int8z" },
                               { "int4", "int4z" },
                               { "int4:block=64", "int4z:block=64" },
                               { "int8:block=256,random=1", "int8z:block=256,random=1" } };
    size_t sizes[] = { 0, 1, 2, 63, 64, 65, 255, 4095, 4096, 4097, 50001 }, n;
    float *x = malloc(4 * 50001), *y[2] = { malloc(4 * 50001), malloc(4 * 50001) },
          *ef = calloc(2, 4 * 50001);
    char *wire = malloc(4 * 50001 + 64);
    uint64_t rng = SEED;

    for (size_t p = 0; p < 4; p++)
        for (int dist = 0; dist < 3; dist++)
            for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
                long len[2];

                n = sizes[s];
                for (size_t i = 0; i < n; i++)
                    x[i] = (float)value(&rng, dist);
                memset(ef, 0, 8 * 50001);
                for (size_t k = 0; k < 2; k++) {
                    const struct bny_codec *c;
                    struct bny_enc e = { .cpu_flags = levels[(s + k) % 3] & bny_cpu_flags(),
                                         .ef = ef + k * 50001,
                                         .ef_scale = 1,
                                         .nsum = 1,
                                         .index = 77 };
                    struct bny_dec d = { .cpu_flags = levels[s % 3] & bny_cpu_flags(),
                                         .scale = 1 };

                    cr_assert_eq(bny_codec_parse(&c, pairs[p][k]), 0, "%s",
                                 banyan_last_error());
                    e.codec = d.codec = c;
                    len[k] = c->ops->encode(&e, wire, c->ops->bound(c, n, BANYAN_F32), x, n);
                    cr_assert(len[k] >= 0 && (size_t)len[k] <= c->ops->bound(c, n, BANYAN_F32));
                    cr_assert_eq(c->ops->decode(&d, y[k], wire, (size_t)len[k], n), 0, "%s",
                                 banyan_last_error());
                }
                cr_assert(n == 0 || !memcmp(y[0], y[1], 4 * n), "%s n %zu", pairs[p][1], n);
                cr_assert(n == 0 || !memcmp(ef, ef + 50001, 4 * n), "%s n %zu", pairs[p][1], n);
                if (n == 50001 && dist)
                    cr_expect_gt((double)len[0] / (double)len[1],
                                 p == 1   ? 1.2
                                 : p == 2 ? 1.08
                                          : 1.05,
                                 "%s: %ld -> %ld bytes", pairs[p][1], len[0], len[1]);
            }
    free(x);
    free(y[0]);
    free(y[1]);
    free(ef);
    free(wire);
}
