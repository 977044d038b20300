/* SPDX-License-Identifier: BSD-3-Clause */
/* The one-shot exchange: a path for small messages. */
#ifndef BNY_COLLECTIVES_ONESHOT_H
#define BNY_COLLECTIVES_ONESHOT_H

#include "collectives/plan/way.h"

struct bny_world;
void bny_boards_free(struct bny_world *w);

#endif
