/* SPDX-License-Identifier: BSD-3-Clause */
/* The board of banyan_run --restart: a memfd that the launcher shares with the ranks it starts
 * and with no other process (kill -9 leaves nothing behind). Members of the job post ids there,
 * by which restarted ranks join; restarted ranks mark themselves as waiting. A rank writes only
 * its own slot, so its death while writing harms no other rank; the launcher clears its slot.
 * Functions that return nothing or a number take NULL (no board). Any thread. */
#ifndef BNY_BOOTSTRAP_BOARD_H
#define BNY_BOOTSTRAP_BOARD_H

#include "transport/bootstrap/bootstrap.h"

struct bny_board;

/* ---- ranks ---- */

/* The board that this process inherited; NULL: none. */
struct bny_board *bny_board_get(void);
/* Posts this rank's latest id and wakes the waiting ranks. */
void bny_board_post(struct bny_board *b, const struct bny_id *id);
/* Withdraws the post. */
void bny_board_unpost(struct bny_board *b, const struct bny_id *id);
/* Marks this rank as waiting or not. */
void bny_board_set_waiting(struct bny_board *b, int waits);
int bny_board_waiting(struct bny_board *b); /* number of waiting ranks */
/* The number of the latest post; 0: there is none. */
uint32_t bny_board_latest(struct bny_board *b);
/* Waits for a post other than *post, and sets it. Returns 0, or -BANYAN_ERANKDEAD: all
 * remaining ranks wait, so none can post. */
int bny_board_await(struct bny_board *b, uint32_t *post, struct bny_id *id);

/* ---- the launcher ---- */

/* fd: for the ranks to inherit (FD_CLOEXEC is set); BANYAN_BOARD_FD names it. Returns NULL
 * after bny_fail(). */
struct bny_board *bny_board_make(int nranks, int *fd);
/* Rank r runs (or will again), or has ended for good; clears its post. */
void bny_board_set_alive(struct bny_board *b, int r, int alive);
void bny_board_free(struct bny_board *b);

#endif
