/* SPDX-License-Identifier: BSD-3-Clause */
/* A way to run an operation: one row of the table of ways. A row has two halves. The first
 * takes part in the choice of a plan (select.c), which is a loop over the rows and knows none
 * of them by name. The second runs the operation; the life of an operation (op.c) is the same
 * for all ways, and each way's state is its own (bny_op.of_way[]).
 *
 * The functions of the choice are pure: they depend on the call and on what all ranks agreed on
 * when the communicator was made, so that all ranks choose alike. The functions that run an
 * operation are called with the world's lock held:
 *
 *   init     makes tables for a plan, which are kept for the next operation with this plan
 *   start    the operation has its number; messages may come from now on
 *   advance  is called whenever something may have changed (bny_op_stir); at the end it calls
 *            bny_op_complete()
 *   message  one message of a peer with the operation's signature
 *   drop     the operation ends: releases messages, gives up cookies; result 0 or the error
 *   close    may it be forgotten? BNY_AGAIN while peers may still write into its memory
 *
 * A new way is a folder and one row of BNY_WAYS. */
#ifndef BNY_COLLECTIVES_WAY_H
#define BNY_COLLECTIVES_WAY_H

#include <stddef.h>
#include <stdint.h>

#include "collectives/plan/plan.h"
#include "collectives/plan/scope.h"

struct bny_msg;
struct bny_op;

enum bny_way_traits {
    BNY_WAY_LOCAL = 1 << 0,   /* no other rank takes part: what it can serve runs this way,
                               * without a codec */
    BNY_WAY_SOLE = 1 << 1,    /* what it can serve runs this way */
    BNY_WAY_BY_NAME = 1 << 2, /* schedule "auto" does not choose it */
    BNY_WAY_SHARES = 1 << 3,  /* ranks share the copying of a root's vector: schedules in which
                               * the root copies it once for each peer are not considered
                               * beside it */
    BNY_WAY_FAMILY = 1 << 4,  /* it has many schedules: all names that are no way's are its */
};

struct bny_way {
    unsigned traits; /* enum bny_way_traits */

    /* ---- the choice ---- */

    /* Why it cannot serve the call: a sentence for the user; NULL: it can. NULL function: it
     * serves no user's call. */
    const char *(*cannot)(const struct bny_scope *s, const struct bny_call *call);
    /* Predicted seconds of a call that it can serve. INFINITY: other ways are faster, as
     * measured, or it has nothing cheaper than `most`. A family writes the name of its cheapest
     * schedule to `schedule`. NULL function: for LOCAL and SOLE. */
    double (*seconds)(struct bny_scope *s, const struct bny_call *call, double most,
                      char *schedule);
    /* Completes the plan, which has its schedule, codec and, where it was chosen by its price,
     * predicted_s. Returns 0; -BANYAN_ENOTSUP: the schedule, which the user named, cannot serve
     * this call; or another error. May be NULL. */
    int (*plan)(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan);
    /* A complete plan of another way: does this one take it over, to run it as a part of its
     * own? Then it writes to the plan what it needs, and returns 1. May be NULL. */
    int (*adopt)(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan);

    /* ---- running ---- */

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
     * announce itself; or it has credit now: enum bny_change. May be NULL. */
    void (*changed)(struct bny_op *op, unsigned change);
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
    /* Frees of_way[] and what it holds. Called where that is not NULL. op->comm NULL: its
     * communicator, and all devices, are gone. */
    void (*free)(struct bny_op *op);
};

/* What most ways other than programs lack. NULL: nothing. */
static inline const char *bny_call_beyond_plain(const struct bny_call *call)
{
    if (call->vector)
        return "it needs the same count on all ranks";
    if (call->codec)
        return "it takes no codec";
    return call->first ? "it waits for all ranks; at_least needs schedule arrival" : NULL;
}

#define BNY_WAY_EXTERN(id, symbol, name) extern const struct bny_way bny_way_##symbol;
BNY_WAYS(BNY_WAY_EXTERN)
#undef BNY_WAY_EXTERN

extern const struct bny_way *const bny_ways[BNY_WAY_COUNT]; /* api/ways.c */

#endif
