/* SPDX-License-Identifier: BSD-3-Clause */
/* Integers with as many bits as the data's spread requires, chosen for each chunk: the fewest
 * from 2 to 8 for which the expected relative error (root mean square) stays below `error`.
 * With the step D = largest / (2^(bits-1) - 1) of a block, a rounding error has the variance
 * D^2 / 12; so the ratio of blocks' largest elements to the mean square decides. The idea is
 * that of AQG's mean-to-deviation ratio; the rule is our own.
 *
 * Wire: u8 bits, three bytes 0, f32 largest |v| of each block of 256 elements, then codes v / D
 * + 2^(bits-1), packed (kernels/code.h). |v - decoded| <= D / 2 (1 + 2^-20). */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "compress/codecs.h"
#include "compress/kernels/code.h"
#include "compress/kernels/kernels.h"

enum { ERROR };

#define BLOCK 256
#define TILE  4096 /* elements encoded at a time: whole blocks, whole bytes of any packing */
#define LEAST 0x1p-100f /* smaller blocks are sent as zeros: 1 / D must be finite */

static size_t blocks(size_t n)
{
    return (n + BLOCK - 1) / BLOCK;
}

static size_t message_bytes(unsigned bits, size_t n)
{
    return 4 + 4 * blocks(n) + bny_packed_bytes(bits, n);
}

static size_t adaq_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    size_t most = 0;

    /* Not always that of 8 bits: packed codes of odd widths are padded to groups of eight. */
    for (unsigned bits = 2; bits <= 8; bits++)
        if (message_bytes(bits, n) > most)
            most = message_bytes(bits, n);
    return most;
}

/* The bits; 0: not finite. Writes the blocks' largest |v|. */
static unsigned adaq_choose(const struct bny_enc *e, char *largest, const char *src, size_t n)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(e->cpu_flags);
    double error = e->codec->param[ERROR], step2 = 0, square = 0;

    for (size_t b = 0; b < blocks(n); b++) {
        size_t at = b * BLOCK, m = n - at < BLOCK ? n - at : BLOCK;
        const float *ef = e->ef ? e->ef + at : NULL;
        uint32_t most = k->absmax(src + 4 * at, ef, e->ef_scale, m);
        float v[BLOCK], top;

        if (most >= (127u + 63) << 23)
            return 0;
        memcpy(&top, &most, sizeof top);
        top = top < LEAST ? 0 : top;
        memcpy(largest + 4 * b, &top, 4);
        k->compensate(v, src + 4 * at, ef, e->ef_scale, m);
        for (size_t i = 0; i < m; i++)
            square += (double)v[i] * (double)v[i];
        step2 += (double)m * (double)top * (double)top;
    }
    for (unsigned bits = 2; bits < 8; bits++) {
        double levels = (double)((1 << (bits - 1)) - 1);

        if (step2 / (12 * levels * levels) <= error * error * square)
            return bits;
    }
    return 8;
}

static float step_of(const char *largest, size_t block, unsigned bits)
{
    float top;

    memcpy(&top, largest + 4 * block, 4);
    return top / (float)((1 << (bits - 1)) - 1);
}

static long adaq_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                        size_t n)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(e->cpu_flags);
    char *largest = (char *)wire + 4, *out = largest + 4 * blocks(n);
    unsigned bits = adaq_choose(e, largest, src, n);
    uint8_t codes[TILE], head[4] = { (uint8_t)bits };
    float v[TILE];

    if (!bits)
        return -BANYAN_ENOTSUP;
    memcpy(wire, head, 4);
    for (size_t at = 0; at < n; at += TILE) {
        size_t m = n - at < TILE ? n - at : TILE;
        float *ef = e->ef ? e->ef + at : NULL;

        k->compensate(v, (const char *)src + 4 * at, ef, e->ef_scale, m);
        for (size_t i = 0; i < m; i++) {
            float d = step_of(largest, (at + i) / BLOCK, bits);
            int code = d > 0 ? (int)rintf(v[i] / d) : 0;

            codes[i] = (uint8_t)(code + (1 << (bits - 1)));
            if (ef)
                ef[i] = v[i] - (float)code * d;
        }
        k->pack[bits](out + bny_packed_bytes(bits, at), codes, m);
    }
    return (long)message_bytes(bits, n);
}

/* The bits of an untrusted message; < 0: invalid. */
static int adaq_check(const void *wire, size_t len, size_t n)
{
    uint8_t head[4] = { 0 };

    if (len >= 4)
        memcpy(head, wire, 4);
    if (head[0] < 2 || head[0] > 8 || len != message_bytes(head[0], n))
        return bny_fail(
            BANYAN_EPROTO,
            "codec adaq: a peer's message for %zu elements has %zu bytes of %u bits an element",
            n, len, head[0]);
    return head[0];
}

/* dst = (acc +) factor * decoded. */
static void adaq_unpack(const struct bny_dec *d, char *dst, const char *acc, const char *wire,
                        unsigned bits, size_t n, float factor)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(d->cpu_flags);
    const char *largest = wire + 4, *in = largest + 4 * blocks(n);
    uint8_t codes[TILE];
    float v[TILE];

    for (size_t at = 0; at < n; at += TILE) {
        size_t m = n - at < TILE ? n - at : TILE;

        k->unpack[bits](codes, in + bny_packed_bytes(bits, at), m);
        for (size_t i = 0; i < m; i++)
            v[i] = (float)(codes[i] - (1 << (bits - 1))) *
                   step_of(largest, (at + i) / BLOCK, bits);
        if (factor != 1)
            bny_kernels_for(d->cpu_flags)->scale[BANYAN_F32](v, v, m, (double)factor);
        if (acc)
            bny_kernels_for(d->cpu_flags)
                ->reduce[BANYAN_F32][BANYAN_SUM](dst + 4 * at, acc + 4 * at, v, m);
        else
            memcpy(dst + 4 * at, v, 4 * m);
    }
}

static int adaq_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                       size_t n)
{
    int bits = len == 0 && n == 0 ? 2 : adaq_check(wire, len, n);

    if (bits < 0)
        return bits;
    adaq_unpack(d, dst, NULL, wire, (unsigned)bits, n, d->scale);
    return 0;
}

static int adaq_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                           const void *wire, size_t len, size_t n)
{
    int bits = len == 0 && n == 0 ? 2 : adaq_check(wire, len, n);

    if (bits < 0)
        return bits;
    adaq_unpack(d, (char *)dst, (const char *)acc, wire, (unsigned)bits, n, 1);
    return 0;
}

const struct bny_codec_ops bny_codec_adaq = {
    .name = "adaq",
    .family = BNY_CODEC_BLOCK,
    .doc = "integers of 2 to 8 bits, as the data's spread asks",
    .encode_ns = 2,
    .decode_ns = 1,
    .params = {
        [ERROR] = { "error", 0.05, 0.001, 1, 0, "relative error (root mean "
"square) to stay below" },
    },
    .bound = adaq_bound,
    .encode = adaq_encode,
    .decode = adaq_decode,
    .decode_add = adaq_decode_add,
};
