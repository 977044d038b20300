/* SPDX-License-Identifier: BSD-3-Clause */
/* The list of codecs: one row each, the table that its file defines. */
#ifndef BNY_COMPRESS_CODECS_H
#define BNY_COMPRESS_CODECS_H

#include "compress/codec.h"

#define BNY_CODECS(ROW)                                                                        \
    ROW(bny_codec_none)                                                                        \
    ROW(bny_codec_f16)                                                                         \
    ROW(bny_codec_bf16)                                                                        \
    ROW(bny_codec_lossless)                                                                    \
    ROW(bny_codec_topk)                                                                        \
    ROW(bny_codec_sidco)                                                                       \
    ROW(bny_codec_dgc)                                                                         \
    ROW(bny_codec_adacomp)                                                                     \
    ROW(bny_codec_wangni)                                                                      \
    ROW(bny_codec_blocksparse)                                                                 \
    ROW(bny_codec_adaq)                                                                        \
    ROW(bny_codec_int8z)                                                                       \
    ROW(bny_codec_int4z)                                                                       \
    ROW(bny_codec_randomk)                                                                     \
    ROW(bny_codec_maxnorm)                                                                     \
    ROW(bny_codec_maxnorm_ms)                                                                  \
    ROW(bny_codec_ebint)                                                                       \
    ROW(bny_codec_powersgd)                                                                    \
    ROW(bny_codec_sketch)                                                                      \
    ROW(bny_codec_int8)                                                                        \
    ROW(bny_codec_int4)                                                                        \
    ROW(bny_codec_e4m3)                                                                        \
    ROW(bny_codec_e5m2)                                                                        \
    ROW(bny_codec_mxfp8)                                                                       \
    ROW(bny_codec_mxfp4)                                                                       \
    ROW(bny_codec_sign)                                                                        \
    ROW(bny_codec_onebit)                                                                      \
    ROW(bny_codec_qsgd)                                                                        \
    ROW(bny_codec_terngrad)                                                                    \
    ROW(bny_codec_natural)                                                                     \
    ROW(bny_codec_eden)

#define BNY_CODEC_DECLARED(table) extern const struct bny_codec_ops table;
BNY_CODECS(BNY_CODEC_DECLARED)
#undef BNY_CODEC_DECLARED

#endif
