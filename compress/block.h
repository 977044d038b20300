/* SPDX-License-Identifier: BSD-3-Clause */
/* What the codecs with shared scales have in common: blocks of equal length, the last one
 * shorter; the wire has all scales first, then the blocks' codes, so that both halves are one
 * run of equal things. */
#ifndef BNY_COMPRESS_BLOCK_H
#define BNY_COMPRESS_BLOCK_H

#include "compress/codec.h"
#include "compress/kernels/code.h"

struct bny_block_layout {
    enum bny_format format;
    unsigned bits;  /* of a code: 8 or 4 */
    int mx;         /* scales are E8M0, one byte, not f32 */
    unsigned block; /* elements; 0: the codec's parameter 0 */
    int random;     /* index of the parameter that asks for stochastic rounding; -1: none */
};

size_t bny_block_bytes(const struct bny_block_layout *l, const struct bny_codec *c, size_t n);
/* As the members of struct bny_codec_ops. */
long bny_block_encode(const struct bny_block_layout *l, const struct bny_enc *e, void *wire,
                      const void *src, size_t n);
int bny_block_decode(const struct bny_block_layout *l, const struct bny_dec *d, void *dst,
                     const void *wire, size_t len, size_t n);
int bny_block_decode_add(const struct bny_block_layout *l, const struct bny_dec *d, float *dst,
                         const float *acc, const void *wire, size_t len, size_t n);
/* A parameter "block" must be even. */
int bny_block_check(const struct bny_codec *c);

#endif
