/* SPDX-License-Identifier: BSD-3-Clause */
/* EDEN (Vargaftik, Ben Basat, Portnoy, Mendelson, Ben-Itzhak, Mitzenmacher: EDEN:
 * Communication-Efficient and Robust Distributed Mean Estimation for Federated Learning, ICML
 * 2022; 1 bit is DRIVE, NeurIPS 2021): groups of 1024 are rotated (random signs,
 * Walsh-Hadamard, twice), after which their elements are nearly normal; each goes to the
 * nearest of the 2^b Lloyd-Max points of the normal distribution; the scale makes the estimate
 * unbiased over rotations. One round of signs and Hadamard is too few: at 1 bit the mean of a
 * group's largest element was 3 % too large.
 *
 * Wire: an f32 for each group of 1024, |v|^2 / <c, R v>; then 1024 codes of b bits
 * (kernels/code.h: pack), 0 the lowest point. A last group of m < 1024 is filled with zeros,
 * or, where that is not longer, its scale is 0 and its m elements follow as they are. Squared
 * error of a group, in units of |v|^2, about pi/2 - 1 (1 bit), .133, .036, .0096 (4 bits).
 * Rotations follow from (seed, step, rank, index). Values from 2^60 on are not encoded (raw); a
 * foreign scale that is negative or not finite is refused. */
#include <math.h>
#include <string.h>

#include "compress/codecs.h"
#include "compress/feedback.h"
#include "compress/kernels/code.h"

/* The upper half of each set of points; the lower half mirrors it. */
static const float points[5][8] = {
    { 0 },
    { 0.7978846f },
    { 0.4527800f, 1.5104176f },
    { 0.2450942f, 0.7560053f, 1.3439093f, 2.1519457f },
    { 0.1283950f, 0.3880483f, 0.6567591f, 0.9423403f, 1.2562312f, 1.6180465f, 2.0690172f,
      2.7326358f },
};

/* Is a group of m sent uncompressed? If its m floats are not longer than the codes of a whole
 * group. */
static int is_plain(const struct bny_codec *c, size_t m)
{
    return 4 * m <= bny_packed_bytes((unsigned)c->param[0], BNY_FWHT);
}

static size_t eden_bytes(const struct bny_codec *c, size_t m)
{
    return is_plain(c, m) ? 4 * m : bny_packed_bytes((unsigned)c->param[0], BNY_FWHT);
}

static void eden_encode_group(const struct bny_enc *e, float *scales, void *codes,
                              const float *v, size_t m)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(e->cpu_flags);
    unsigned b = (unsigned)e->codec->param[0], half = 1u << (b - 1);
    float x[BNY_FWHT] = { 0 }, to_unit, edge[8];
    double dot = 0, norm2 = 0, norm;
    uint8_t code[BNY_FWHT];

    scales[0] = 0;
    if (is_plain(e->codec, m)) {
        memcpy(codes, v, 4 * m);
        return;
    }
    k->flip(x, v, bny_rand_key(e->seed, e->step, e->rank), (uint32_t)e->index, m);
    k->fwht(x);
    k->flip(x, x, bny_rand_key(~e->seed, e->step, e->rank), (uint32_t)e->index, BNY_FWHT);
    k->fwht(x);
    for (size_t i = 0; i < BNY_FWHT; i++)
        norm2 += (double)x[i] * (double)x[i];
    norm = sqrt(norm2);
    to_unit = norm > 0x1p-90 ? (float)(32 / norm) : 0; /* sqrt(1024) / |v| */
    for (unsigned j = 0; j + 1 < half; j++)
        edge[j] = (points[b][j] + points[b][j + 1]) / 2;
    for (size_t i = 0; i < BNY_FWHT; i++) {
        float t = fabsf(x[i]) * to_unit;
        unsigned q = 0;

        for (unsigned j = 0; j + 1 < half; j++)
            q += t > edge[j];
        dot += (double)points[b][q] * (double)fabsf(x[i]);
        code[i] = (uint8_t)(x[i] < 0 ? half - 1 - q : half + q);
    }
    if (to_unit > 0)
        scales[0] = (float)(norm2 / dot);
    k->pack[b](codes, code, BNY_FWHT);
}

static void eden_decode_group(const struct bny_dec *d, float *out, const float *scales,
                              const void *codes, size_t m)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(d->cpu_flags);
    unsigned b = (unsigned)d->codec->param[0], half = 1u << (b - 1);
    float x[BNY_FWHT], value[16];
    uint8_t code[BNY_FWHT];

    if (is_plain(d->codec, m)) {
        memcpy(out, codes, 4 * m);
        return;
    }
    for (unsigned j = 0; j < half; j++) {
        value[half + j] = points[b][j] * scales[0];
        value[half - 1 - j] = -points[b][j] * scales[0];
    }
    k->unpack[b](code, codes, BNY_FWHT);
    for (size_t i = 0; i < BNY_FWHT; i++)
        x[i] = value[code[i]];
    k->fwht(x);
    k->flip(x, x, bny_rand_key(~d->seed, d->step, d->rank), (uint32_t)d->index, BNY_FWHT);
    k->fwht(x);
    k->flip(out, x, bny_rand_key(d->seed, d->step, d->rank), (uint32_t)d->index, m);
}

static const struct bny_groups groups = { .size = BNY_FWHT,
                                          .scales = 1,
                                          .bytes = eden_bytes,
                                          .encode = eden_encode_group,
                                          .decode = eden_decode_group };

static size_t eden_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return bny_groups_bytes(&groups, c, n);
}

static long eden_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                        size_t n)
{
    return bny_groups_encode(&groups, e, wire, src, n);
}

static int eden_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                       size_t n)
{
    return bny_groups_decode(&groups, d, dst, wire, len, n);
}

static int eden_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                           const void *wire, size_t len, size_t n)
{
    return bny_groups_decode_add(&groups, d, dst, acc, wire, len, n);
}

const struct bny_codec_ops bny_codec_eden = {
    .name = "eden",
    .family = BNY_CODEC_BLOCK,
    .flags = BNY_CODEC_FIXED | BNY_CODEC_UNBIASED,
    .doc = "EDEN: random rotation, 1 to 4 bits, unbiased (Vargaftik et al., 2022)",
    .encode_ns = 3.0,
    .decode_ns = 3.0,
    .params = {
        { .name = "bits", .def = 4, .min = 1, .max = 4, .integer = 1, .doc = "of an element" },
    },
    .bound = eden_bound,
    .encode = eden_encode,
    .decode = eden_decode,
    .decode_add = eden_decode_add,
};
