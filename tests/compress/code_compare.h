/* SPDX-License-Identifier: BSD-3-Clause */
/* Every loop of two tables of kernels/code.h on the same inputs. Knows neither Criterion nor
 * the library, so that a program for another processor can include it. */
#ifndef BNY_TESTS_CODE_COMPARE_H
#define BNY_TESTS_CODE_COMPARE_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "compress/kernels/code.h"
#include "compress/kernels/half.h"

#define SEED  0x5eed0031
#define N_MAX 9000
#define GUARD 64

/* What each run writes, and a copy of it for the other table. */
struct arena {
    unsigned char out[4 * N_MAX + 2 * GUARD], out2[4 * N_MAX + 2 * GUARD],
        ef[4 * N_MAX + 2 * GUARD];
    double result[8];
};

/* Kinds of data: finite of one scale, many scales, any bits. */
static void fill(float *x, size_t n, int kind, uint64_t *rng)
{
    for (size_t i = 0; i < n; i++) {
        double u = bny_rng_unit(rng) - 0.5;

        if (kind == 0)
            x[i] = (float)(u < 0 ? log(1e-9 - 2 * u) : -log(1e-9 + 2 * u)); /* Laplace */
        else if (kind == 1)
            x[i] =
                bny_rng_below(rng, 5) ? (float)ldexp(u, (int)bny_rng_below(rng, 250) - 135) : 0;
        else
            x[i] = f32_from_bits((uint32_t)bny_rng_next(rng));
    }
}

/* The i-th loop of a table; 0 when there is no such loop. x, y: inputs; small: a threshold;
 * wire: finite scales and codes before. */
static int apply(const struct bny_code_kernels *k, int i, struct arena *a, const void *x,
                 const void *y, size_t n, size_t shift, int finite)
{
    unsigned char *out = a->out + GUARD - shift, *out2 = a->out2 + GUARD - shift,
                  *ef = a->ef + GUARD - shift;
    struct bny_rand key = bny_rand_key(7, 8, 9);
    struct bny_selection sel;
    struct bny_moments m;
    struct bny_quant q = { .src = x, .ef = ef, .s = 0.75f, .key = key, .index = 0xffffff00u };
    static const size_t blocks[] = { 32, 256, 16, 1000 };
    size_t block = blocks[n % 4];

    switch (i) {
    case 0: a->result[0] = k->absmax(x, NULL, 0, n); return 1;
    case 1: a->result[0] = k->absmax(x, ef, 0.75f, n); return 1;
    case 2: k->compensate(out, x, ef, 0.75f, n); return 1;
    case 3: k->residual(ef, x, y, n); return 1;
    case 4:
        k->moments(&m, x, n);
        a->result[0] = m.sum, a->result[1] = m.sum2, a->result[2] = (double)m.max,
        a->result[3] = m.nonfinite;
        return 1;
    case 5:
    case 6:
    case 7:
    case 8:
    case 9:
    case 10: {
        size_t cap = i < 7 ? n : n / 8 + 3;
        float eta = i == 9 || i == 10 ? -1 : 1.5f;

        if (cap > n)
            cap = n;
        a->result[0] = (double)(i % 2 ? k->select16 : k->select32)(
            out, out2, cap, x, i < 8 ? NULL : ef, 0.75f, n, eta, &sel);
        a->result[1] = (double)sel.over, a->result[2] = sel.excess, a->result[3] = sel.sum;
        /* What lies behind the kept entries is nobody's business, up to cap. */
        size_t kept = (size_t)a->result[0], width = i % 2 ? 2 : 4;

        if (kept > cap)
            kept = cap;
        memset(out + width * kept, 0, width * (cap - kept));
        memset(out2 + 4 * kept, 0, 4 * (cap - kept));
        return 1;
    }
    case 11: k->flip(out, x, key, 0xfffffff0u, n); return 1;
    case 12: k->random((uint32_t *)(void *)(a->out + GUARD), key, 0xfffffff0u, n); return 1;
    case 13: a->result[0] = k->l1(x, NULL, 0, n); return 1;
    case 14: a->result[0] = k->l1(x, ef, 0.75f, n); return 1;
    case 15: k->sign_encode(out, x, NULL, 0, n, 1, -1); return 1;
    case 16: k->sign_encode(out, x, ef, 0.75f, n, 1.25f, -0.5f); return 1;
    case 17: k->sign_decode(out, x, n, 1.25f, -0.5f); return 1;
    case 18: k->sign_decode_add(out, y, x, n, 1.25f, -0.5f); return 1;
    case 19:
        if (n < BNY_FWHT || !finite)
            return 1;
        memcpy(out, x, 4 * BNY_FWHT);
        k->fwht(out);
        return 1;
    default: break;
    }
    i -= 20;
    if (i < 16) { /* packing, all widths */
        unsigned b = (unsigned)i / 2 + 1;
        uint8_t codes[N_MAX];

        for (size_t j = 0; j < n; j++)
            codes[j] = ((const uint8_t *)x)[j] & ((1u << b) - 1);
        if (i % 2)
            k->pack[b](out, codes, n);
        else
            k->unpack[b](out, x, n);
        return 1;
    }
    i -= 16;
    if (i < 7 * 4) {
        int f = i / 4 < 5 ? i / 4 : i / 4 == 5 ? BNY_E4M3 : BNY_E2M1;
        const struct bny_format_kernels *fk = i / 4 < 5 ? &k->format[f] : &k->mx[f];

        q.random = i % 4 == 1;
        switch (i % 4) {
        case 0:
        case 1:
            if (!finite && n % 2)
                q.ef = NULL;
            a->result[0] = fk->encode(out, out2, &q, n, block);
            if (a->result[0] < 0) { /* contents are open, but for the residual */
                memset(a->out, 0, sizeof a->out);
                memset(a->out2, 0, sizeof a->out2);
            }
            return 1;
        case 2: {
            float scale[N_MAX / 16 + 1];

            for (size_t j = 0; j <= n / block; j++) {
                memcpy(scale + j, (const char *)y + 4 * j, 4);
                if (!(fabsf(scale[j]) < INFINITY) || i / 4 >= 5)
                    scale[j] = i / 4 >= 5 ? 0 : 1;
            }
            fk->decode(out, scale, x, n, block, n % 3 ? 1 : 0.25f);
            fk->decode_add(out2, y, scale, x, n, block);
            return 1;
        }
        default: return 1;
        }
    }
    return 0;
}

/* NULL, or what differs. */
static const char *code_compare_one(const struct bny_code_kernels *base,
                                    const struct bny_code_kernels *k, size_t n, size_t shift,
                                    int kind, uint64_t *rng)
{
    static struct arena start, want, got;
    static float x[N_MAX + 4], y[N_MAX + 4];
    static char text[200];

    /* At their odd addresses, so that finite numbers are finite there. */
    fill(x, n + 2, kind, rng);
    memmove((char *)x + shift, x, 4 * n);
    fill(y, n + 2, kind, rng);
    memmove((char *)y + shift, y, 4 * n);
    memset(&start, 0xa5, sizeof start);
    memset(start.result, 0, sizeof start.result);
    fill((float *)(void *)start.ef, sizeof start.ef / 4, kind == 2 ? 0 : kind, rng);
    memmove(start.ef + GUARD - shift, start.ef + GUARD, 4 * n);
    for (int i = 0;; i++) {
        want = got = start;
        if (!apply(base, i, &want, (char *)x + shift, (char *)y + shift, n, shift, kind < 2))
            break;
        apply(k, i, &got, (char *)x + shift, (char *)y + shift, n, shift, kind < 2);
        if (memcmp(&want, &got, sizeof want))
            return snprintf(text, sizeof text,
                            "%s loop %d differs from scalar: n %zu shift %zu kind %d seed %#x",
                            k->name, i, n, shift, kind, SEED),
                   text;
        if (memcmp(want.out, start.out, GUARD - 4) ||
            memcmp(want.ef + GUARD + 4 * n, start.ef + GUARD + 4 * n, GUARD))
            if (want.result[0] >= 0)
                return snprintf(text, sizeof text,
                                "loop %d wrote outside its arrays: n %zu shift %zu", i, n,
                                shift),
                       text;
    }
    return NULL;
}

/* NULL, or what differs: all kinds of data, lengths and alignments. */
static const char *code_compare(const struct bny_code_kernels *base,
                                const struct bny_code_kernels *k)
{
    const char *bad = NULL;
    uint64_t rng = SEED;

    for (int kind = 0; kind < 3; kind++) {
        for (size_t n = 0; n <= 300 && !bad; n += n < 70 ? 1 : 7)
            bad = code_compare_one(base, k, n, n % 4, kind, &rng);
        for (size_t shift = 0; shift < 4 && !bad; shift++)
            bad = code_compare_one(base, k, N_MAX - shift * 97, shift, kind, &rng);
    }
    return bad;
}

#endif
