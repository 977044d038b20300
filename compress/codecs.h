/* SPDX-License-Identifier: BSD-3-Clause */
/* The codecs' tables, one per file: only registry.c uses them. */
#ifndef BNY_COMPRESS_CODECS_H
#define BNY_COMPRESS_CODECS_H

#include "compress/codec.h"

extern const struct bny_codec_ops bny_codec_none, bny_codec_f16, bny_codec_bf16;
extern const struct bny_codec_ops bny_codec_lossless, bny_codec_topk, bny_codec_gtopk,
    bny_codec_topk_exact, bny_codec_sidco, bny_codec_dgc, bny_codec_adacomp, bny_codec_wangni,
    bny_codec_blocksparse, bny_codec_adaq;
extern const struct bny_codec_ops bny_codec_randomk, bny_codec_maxnorm, bny_codec_maxnorm_ms,
    bny_codec_ebint, bny_codec_powersgd, bny_codec_sketch, bny_codec_int8z, bny_codec_int4z;
extern const struct bny_codec_ops bny_codec_int8, bny_codec_int4, bny_codec_e4m3,
    bny_codec_e5m2, bny_codec_mxfp8, bny_codec_mxfp4, bny_codec_sign, bny_codec_onebit,
    bny_codec_qsgd, bny_codec_terngrad, bny_codec_natural, bny_codec_eden;

#endif
