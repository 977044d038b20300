/* SPDX-License-Identifier: BSD-3-Clause */
/* Cost and savings of a codec, as constants that are the same on all ranks: the choice of plans
 * uses them. */
#ifndef BNY_COMPRESS_SPEED_H
#define BNY_COMPRESS_SPEED_H

#include "compress/codec.h"

struct bny_codec_speed {
    double encode_s, decode_s, add_s; /* seconds an element, one core, data from memory; add:
                                       * decoded and added */
    double wire_bytes;                /* expected bytes per element */
};
/* c NULL: raw data. */
struct bny_codec_speed bny_codec_speed(const struct bny_codec *c, enum banyan_dtype dtype);

/* What one encoding loses (bny_codec_ops); INFINITY: unknown. c NULL: raw data. */
void bny_codec_loss(const struct bny_codec *c, double *nmse, double *max);

#endif
