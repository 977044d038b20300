/* SPDX-License-Identifier: BSD-3-Clause */
/* Eager messages of the direct exchange: what a world keeps for it. */
#ifndef BNY_COLLECTIVES_MESSAGES_H
#define BNY_COLLECTIVES_MESSAGES_H

struct bny_world;
void bny_boards_free(struct bny_world *w);

#endif
