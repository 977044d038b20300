/* SPDX-License-Identifier: BSD-3-Clause */
/* The codecs' tables, one a file: read by registry.c alone. */
#ifndef BNY_COMPRESS_CODECS_H
#define BNY_COMPRESS_CODECS_H

#include "compress/codec.h"

extern const struct bny_codec_ops bny_codec_none, bny_codec_f16, bny_codec_bf16;
extern const struct bny_codec_ops bny_codec_lossless;

#endif
