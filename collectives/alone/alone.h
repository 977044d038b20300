/* SPDX-License-Identifier: BSD-3-Clause */
/* Paths of operations without a peer. */
#ifndef BNY_COLLECTIVES_ALONE_H
#define BNY_COLLECTIVES_ALONE_H

#include "collectives/op/path.h"

extern const struct bny_path_ops bny_path_alone, bny_path_self;

#endif
