/* SPDX-License-Identifier: BSD-3-Clause */
/* Codecs: f32 chunk <-> wire bytes. Pure functions, one codec a file, listed in registry.c. */
#ifndef BNY_COMPRESS_CODEC_H
#define BNY_COMPRESS_CODEC_H

#include <stddef.h>
#include <stdint.h>

enum bny_codec_family {
    BNY_CODEC_RAW,   /* "none": the engine moves the bytes itself and calls nothing here */
    BNY_CODEC_BLOCK, /* fixed rate: bound(n) is exact; star forest, KEEP at the owner */
};

struct bny_codec_ops {
    char name[16];
    enum bny_codec_family family;
    /* Wire bytes for n elements: exact for BLOCK. */
    size_t (*bound)(size_t n);
    /* Encodes src[n] (any alignment) to wire[cap >= bound(n)]; returns bytes written. Values that the wire
     * format cannot hold become +-infinity; NaN stays NaN. Any thread, no allocation. */
    size_t (*encode)(void *wire, const float *src, size_t n);
    /* dst[i] = decoded[i]. wire is foreign input: returns 0, or -BANYAN_EPROTO when len is not that of n
     * elements; dst is unchanged then. */
    int (*decode)(float *dst, const void *wire, size_t len, size_t n);
    /* dst[i] = acc[i] + decoded[i]; dst may be acc. As decode otherwise. */
    int (*decode_add)(float *dst, const float *acc, const void *wire, size_t len, size_t n);
};

/* NULL-terminated; the first is "none" with NULL functions. */
extern const struct bny_codec_ops *const bny_codecs[];
const struct bny_codec_ops *bny_codec_find(const char *name);

#endif
