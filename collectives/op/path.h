/* SPDX-License-Identifier: BSD-3-Clause */
/* A path: one way to run an operation. The life of an operation (op.c) is the same on all of
 * them and knows none of them; a path is one table, and its state is its own
 * (bny_op.of_path[]). All members are called with the world's lock held; those marked "may be
 * NULL" may be.
 *
 *   init     for a plan: makes tables, which are kept for the next operation with this plan
 *   start    the operation has its number; messages may come from now on
 *   advance  whenever something may have changed (bny_op_stir); at the end it calls
 *            bny_op_complete()
 *   message  one message of a peer with the operation's signature
 *   drop     it ends: releases messages, gives up cookies; result 0 or the error
 *   close    may it be forgotten? BNY_AGAIN while peers may still write into its memory */
#ifndef BNY_COLLECTIVES_PATH_H
#define BNY_COLLECTIVES_PATH_H

#include <stddef.h>
#include <stdint.h>

#include "collectives/match/match.h"
#include "collectives/plan/plan.h"
#include "transport/transport.h"

struct bny_op;

struct bny_path_ops {
    /* 0 or an error. May be NULL. */
    int (*init)(struct bny_op *op);
    /* How many numbers of operations it takes beside its own. May be NULL: none. */
    uint32_t (*numbers)(const struct bny_op *op);
    /* 0 or an error: then the operation has not begun. */
    int (*start)(struct bny_op *op);
    /* A blocking call, where nothing else of its communicator is under way: runs it, with the
     * next number of a collective, if that takes `tries` looks at most. 1: it is complete, 0:
     * it has yet to start, as any. May be NULL. */
    int (*quick)(struct bny_op *op, uint32_t seq, int tries);
    /* 1: made progress. */
    int (*advance)(struct bny_op *op);
    /* The same where peers write into memory and send no message: waiting calls it often. NULL:
     * messages bring it on. */
    int (*poll)(struct bny_op *op);
    /* Takes msg. NULL: it gets none, they are released. */
    void (*message)(struct bny_op *op, int from, struct bny_msg *msg);
    /* Memory that a transport borrowed (op/cookie.h) is the operation's again. May be NULL when
     * it lends none. */
    void (*sent)(struct bny_op *op, uint32_t step);
    /* Point to point: another number, so that what both ends announced is void; or it is to
     * announce itself; or it has credit now. May be NULL. */
    void (*changed)(struct bny_op *op, enum bny_change change);
    /* Idempotent. May be NULL. */
    void (*drop)(struct bny_op *op, int result);
    /* 0 or BNY_AGAIN: it is called again, when it is stirred. May be NULL. */
    int (*close)(struct bny_op *op);
    /* Does it need something of rank r, or has something for r not been handed over yet? */
    int (*waits_on)(const struct bny_op *op, int r);
    /* Are messages for rank r a part of it? May be NULL: they are its children's. */
    int (*sends_to)(const struct bny_op *op, int r);
    /* Is a message of rank r all that is missing from r? Then waiting looks at the endpoints of
     * such ranks alone. May be NULL: it looks at all transports. */
    int (*lacks)(const struct bny_op *op, int r);
    /* Has it sent all that it has to send? With `lacks` only. */
    int (*has_sent)(const struct bny_op *op);
    /* A detached operation is over: frees it. May be NULL. */
    void (*done)(struct bny_op *op);
    /* Frees of_path[] and what it holds. Called where that is not NULL. op->comm NULL: its
     * communicator, and all devices, are gone. */
    void (*free)(struct bny_op *op);
};

#endif
