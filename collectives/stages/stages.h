/* SPDX-License-Identifier: BSD-3-Clause */
/* Operations of linear codecs: a path that runs one operation after another. */
#ifndef BNY_COLLECTIVES_STAGES_H
#define BNY_COLLECTIVES_STAGES_H

#include "collectives/op/path.h"

extern const struct bny_path_ops bny_path_stages;

#endif
