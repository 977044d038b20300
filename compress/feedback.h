/* SPDX-License-Identifier: BSD-3-Clause */
/* Error feedback for codecs whose kernels do not fuse it, and the frame for codecs with
 * independent groups. */
#ifndef BNY_COMPRESS_FEEDBACK_H
#define BNY_COMPRESS_FEEDBACK_H

#include "compress/codec.h"

/* Two-byte floats with a residual: v tile by tile, encoded, decoded, subtracted. If the encoded
 * value is not finite the residual is 0: infinity is not corrected later. */
void bny_feedback_half(const struct bny_enc *e, void *wire, const void *src, size_t n,
                       void (*encode)(void *wire, const float *src, size_t n),
                       void (*decode)(float *dst, const void *wire, size_t n));

/* The unit of an unbiased code if there is a residual. Q(v), unbiased, may be longer than v by
 * any factor, and the part that it omits longer than v: residuals would grow until f32
 * overflows. a Q(v) contracts, with a = <v, E Q> / E |Q|^2, which minimises the expected |v - a
 * Q|^2, |v|^2 - <v, E Q>^2 / E |Q|^2 (Beznosikov, Horvath, Richtarik, Safaryan: "On Biased
 * Compression for Distributed Learning", JMLR 2023, lemma 8). along, squares: <v, E Q> and E
 * |Q|^2 in any unit; nothing is drawn if squares is 0. */
float bny_shrunk(float unit, double along, double squares);

#define BNY_GROUP_MAX 4096

/* A codec with groups of elements, each encoded independently. Wire: `scales` f32 for each
 * group, all of them; then the groups' codes. */
struct bny_groups {
    size_t size;     /* elements, at most BNY_GROUP_MAX; 0: the codec's parameter "block" */
    unsigned scales; /* 1 or 2 */
    int negative;    /* scales may be below 0 */
    /* Bytes of m elements' codes. */
    size_t (*bytes)(const struct bny_codec *c, size_t m);
    /* v[m] is finite, |v| < 2^60; v[0] is element e->index of the tensor. Scales are finite. */
    void (*encode)(const struct bny_enc *e, float *scales, void *codes, const float *v,
                   size_t m);
    /* scales are finite; codes are untrusted: any of them decodes to something. */
    void (*decode)(const struct bny_dec *d, float *out, const float *scales, const void *codes,
                   size_t m);
};

/* Like the members of struct bny_codec_ops. */
size_t bny_groups_bytes(const struct bny_groups *g, const struct bny_codec *c, size_t n);
long bny_groups_encode(const struct bny_groups *g, const struct bny_enc *e, void *wire,
                       const void *src, size_t n);
int bny_groups_decode(const struct bny_groups *g, const struct bny_dec *d, void *dst,
                      const void *wire, size_t len, size_t n);
int bny_groups_decode_add(const struct bny_groups *g, const struct bny_dec *d, float *dst,
                          const float *acc, const void *wire, size_t len, size_t n);
/* Checks length and scales of an untrusted message. */
int bny_groups_check(const struct bny_groups *g, const struct bny_codec *c, const void *wire,
                     size_t len, size_t n);

#endif
