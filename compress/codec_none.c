/* SPDX-License-Identifier: BSD-3-Clause */
/* No compression. Wire: the elements' own bytes, which the engine itself moves and reduces for
 * every type, so the functions are NULL. */
#include "compress/codecs.h"

const struct bny_codec_ops bny_codec_none = {
    .name = "none",
    .family = BNY_CODEC_RAW,
    .doc = "no compression",
    .recommended = 1,
};
