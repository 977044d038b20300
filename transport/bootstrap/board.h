/* SPDX-License-Identifier: BSD-3-Clause */
/* The board of banyan_run --restart: memory that it shares with the ranks it starts and with
 * nobody else (a memfd that they inherit: kill -9 leaves nothing). Members of the job post ids
 * there by which restarted ranks join; these say that they wait. Each rank writes to its own
 * slot alone, so that one killed while it writes hurts no other; the launcher clears its slot.
 * Functions take NULL (no board) where they return nothing or a number. Any thread. */
#ifndef BNY_BOOTSTRAP_BOARD_H
#define BNY_BOOTSTRAP_BOARD_H

#include "transport/bootstrap/bootstrap.h"

struct bny_board;

/* ---- ranks ---- */

/* The one that this process inherited; NULL: none. */
struct bny_board *bny_board_get(void);
/* This rank's latest id; those who wait wake. */
void bny_board_post(struct bny_board *b, const struct bny_id *id);
/* It is of no use any more. */
void bny_board_unpost(struct bny_board *b, const struct bny_id *id);
/* This rank waits, or does not. */
void bny_board_set_waiting(struct bny_board *b, int waits);
int bny_board_waiting(struct bny_board *b); /* how many do */
/* The number of the latest post; 0: there is none. */
uint32_t bny_board_latest(struct bny_board *b);
/* Waits for a post that is not *post, and sets it. 0, or -BANYAN_ERANKDEAD: all ranks that are
 * left wait, so that nobody is there to post one. */
int bny_board_await(struct bny_board *b, uint32_t *post, struct bny_id *id);

/* ---- the launcher ---- */

/* fd: for the ranks to inherit (FD_CLOEXEC is set), BANYAN_BOARD_FD names it. NULL after
 * bny_fail(). */
struct bny_board *bny_board_make(int nranks, int *fd);
/* Rank r runs (or will again), or has ended for good; what it had posted goes. */
void bny_board_set_alive(struct bny_board *b, int r, int alive);
void bny_board_free(struct bny_board *b);

#endif
