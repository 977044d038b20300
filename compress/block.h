/* SPDX-License-Identifier: BSD-3-Clause */
/* The common part of codecs with shared scales: blocks of equal length, the last one shorter;
 * the wire has all scales first, then the blocks' codes, so both parts are uniform. */
#ifndef BNY_COMPRESS_BLOCK_H
#define BNY_COMPRESS_BLOCK_H

#include "compress/codec.h"
#include "compress/kernels/code.h"

struct bny_block_layout {
    enum bny_format format;
    unsigned bits;  /* per code: 8 or 4 */
    int mx;         /* scales are E8M0, one byte, not f32 */
    unsigned block; /* elements; 0: the codec's parameter 0 */
    int random;     /* index of the parameter for stochastic rounding; -1: none */
};

size_t bny_block_bytes(const struct bny_block_layout *l, const struct bny_codec *c, size_t n);
/* Like the members of struct bny_codec_ops. */
long bny_block_encode(const struct bny_block_layout *l, const struct bny_enc *e, void *wire,
                      const void *src, size_t n);
int bny_block_decode(const struct bny_block_layout *l, const struct bny_dec *d, void *dst,
                     const void *wire, size_t len, size_t n);
int bny_block_decode_add(const struct bny_block_layout *l, const struct bny_dec *d, float *dst,
                         const float *acc, const void *wire, size_t len, size_t n);
/* A parameter "block" must be even. */
int bny_block_check(const struct bny_codec *c);

#endif
