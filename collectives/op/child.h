/* SPDX-License-Identifier: BSD-3-Clause */
/* A child: an operation that is a part of another one, its parent, under one of the numbers
 * that the parent took beside its own when it started. So children match between ranks whatever
 * else is in flight when their turn comes. A child is active in the communicator's list beside
 * its parent, which has the deadline. A failure of the communicator ends both, the parent last:
 * peers may be writing into the child's memory until it has closed. */
#ifndef BNY_COLLECTIVES_CHILD_H
#define BNY_COLLECTIVES_CHILD_H

#include "collectives/op/op.h"

struct bny_child {
    struct bny_op op;
    int runs; /* it has begun since its parent did */
};

/* Plans the child's call, of which a copy is kept. Its signature is the parent's, so that a
 * rank that differs is told of what its program called: so it is planned before each start, as
 * the parent's tag may differ. 0 or an error. */
int bny_child_init(struct bny_child *c, const struct bny_op *parent, struct bny_call *call);
/* Starts it, from the parent's advance(), under the nth number behind the parent's: 1 is the
 * first. 0 or an error. */
int bny_child_start(struct bny_child *c, struct bny_op *parent, uint32_t nth);
/* Also after a failure, while it closes: it completes its parent when it has. */
static inline int bny_child_is_busy(const struct bny_child *c)
{
    return c->runs && !bny_op_is_done(&c->op);
}
static inline int bny_child_waits_on(const struct bny_child *c, int r)
{
    return bny_child_is_busy(c) && bny_op_waits_on(&c->op, r);
}
/* parent->comm NULL: the communicator is gone. */
void bny_child_free(struct bny_child *c, const struct bny_op *parent);

#endif
