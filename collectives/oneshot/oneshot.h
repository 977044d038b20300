/* SPDX-License-Identifier: BSD-3-Clause */
/* The one-shot exchange: what a world keeps for it. */
#ifndef BNY_COLLECTIVES_ONESHOT_H
#define BNY_COLLECTIVES_ONESHOT_H

struct bny_world;
void bny_boards_free(struct bny_world *w);

#endif
