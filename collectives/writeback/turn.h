/* SPDX-License-Identifier: BSD-3-Clause */
/* A pass takes its turn: it is queued for a place in an area, gets one once the ranks know each
 * other's areas, runs there, and leaves. */
#ifndef BNY_COLLECTIVES_TURN_H
#define BNY_COLLECTIVES_TURN_H

#include "collectives/writeback/area.h"

struct bny_turn {
    struct bny_pass pass;
    struct bny_link link; /* of the queue for a place */
    struct bny_writeback *area;
    uint64_t counted; /* of pass.handed */
    uint8_t has_areas, has_place, failed;
};

/* Takes its turn in this area of the communicator. The pass has its ranks, its shape, the
 * operation's element and number; the caller sets kind, buffers, count and calls, and cuts it.
 * 0 or -BANYAN_ENOMEM. */
int bny_turn_start(struct bny_op *op, struct bny_turn *t, enum bny_area which,
                   struct bny_pass_peer *peers);
/* Are the ranks' areas known? 1, or 0: not yet. */
int bny_turn_meet(struct bny_op *op, struct bny_turn *t);
/* Has it a place? 1, or 0: not yet. The caller begins the pass, once. */
int bny_turn_take_place(struct bny_op *op, struct bny_turn *t);
/* Goes on, in its place, if it has one. 1: the pass is done, and has left; *moved. */
int bny_turn_go(struct bny_op *op, struct bny_turn *t, int *moved);
/* Gives up its place, or its place in the queue. Idempotent. */
void bny_turn_leave(const struct bny_op *op, struct bny_turn *t);
/* Does it need something of rank r of the communicator? */
int bny_turn_waits_on(const struct bny_turn *t, int r);

#endif
