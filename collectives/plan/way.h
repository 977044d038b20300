/* SPDX-License-Identifier: BSD-3-Clause */
/* A way to run an operation: one row of the table of ways. A row has two halves. The first
 * takes part in the choice of a plan (select.c), which is a loop over the rows and knows none
 * of them by name. The second runs the operation; the life of an operation (op.c) is the same
 * for all ways, and each way's state is its own (bny_op.of_way[]).
 *
 * The functions of the choice are pure: they depend on the call and on what all ranks agreed on
 * when the communicator was made, so that all ranks choose alike. The functions that run an
 * operation are called with the world's lock held.
 *
 * The comments of the members say when each is called.
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
    BNY_WAY_LOCAL = 1 << 0,   /* calls in which no other rank takes part run this way, without a
                               * codec */
    BNY_WAY_AMONG = 1 << 1,   /* it also serves children of some of the ranks (call->among) */
    BNY_WAY_BY_NAME = 1 << 2, /* schedule "auto" does not choose it */
    BNY_WAY_SHARES = 1 << 3,  /* ranks share the copying of a root's vector: schedules in which
                               * the root copies it once for each peer are not considered
                               * beside it */
    BNY_WAY_FAMILY = 1 << 4,  /* it has many schedules: all names that are no way's are its */
    BNY_WAY_SENDS = 1 << 5,   /* pending() says SENDS: its messages are its own, not those of
                               * operations below it */
    BNY_WAY_LOOKS = 1 << 6,   /* pending() says MESSAGE: a wait looks at these ranks alone */
    BNY_WAY_POLLED = 1 << 7,  /* peers write into memory and send no message: a wait calls
                               * advance often */
    BNY_WAY_LATE = 1 << 8,    /* it goes on without ranks that are late: it waits for none of
                               * them until it does, and says whose inputs count */
    BNY_WAY_WEIGHS = 1 << 9,  /* it decides when a call runs whether its codec pays */
};

/* An operation's business with a rank, as flags. */
enum bny_pending_flags {
    BNY_PENDING_WAITS = 1,   /* it needs something of the rank, or has something for it that has
                              * not been handed over yet */
    BNY_PENDING_SENDS = 2,   /* messages for the rank are a part of it, sent or not */
    BNY_PENDING_MESSAGE = 4, /* a message of the rank is all that is missing from it */
    BNY_PENDING_UNSENT = 8,  /* it has something to send, to whatever rank */
};

/* Notices to an operation. */
enum bny_notice {
    BNY_NOTICE_SENT,     /* memory that a transport borrowed for a step (op/op_cookie.h) is the
                          * operation's again */
    BNY_NOTICE_NUMBER,   /* point to point: another number; what both ends announced is void */
    BNY_NOTICE_ANNOUNCE, /* point to point: it is to announce itself */
    BNY_NOTICE_CREDIT,   /* point to point: it may send now */
};

struct bny_way {
    unsigned traits; /* enum bny_way_traits */

    /* ---- the choice ---- */

    /* Why it cannot serve the call: a sentence for the user; NULL: it can. */
    const char *(*cannot)(const struct bny_scope *s, const struct bny_call *call);
    /* Predicted seconds of a call that it can serve. INFINITY: other ways are faster, as
     * measured, or it has nothing cheaper than `most`. A way that has several schedules writes
     * the name of its cheapest one to `schedule`. */
    double (*seconds)(struct bny_scope *s, const struct bny_call *call, double most,
                      char *schedule);
    /* Completes the plan, which has its schedule, codec and, where it was chosen by its price,
     * predicted_s. Returns 0; -BANYAN_ENOTSUP: the schedule, which the user named, cannot serve
     * this call; or another error. May be NULL.
     * The way with BNY_WAY_LATE also gets the complete plans of other ways (plan->way), for
     * calls that it can serve. It may take one over, to run it as a part of its own: it adds
     * what it needs, and sets plan->way to its own.
     * The way with BNY_WAY_WEIGHS gets calls whose codec nobody insists on (plan->weighs),
     * sets the schedule, and returns -BANYAN_ENOTSUP if they are to be weighed here and now. */
    int (*plan)(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan);

    /* ---- running ---- */

    /* Makes tables for a plan, in of_way[], which are kept for the next operation with this
     * plan: it is called again for that one. Sets op->numbers. 0 or an error. May be NULL. */
    int (*init)(struct bny_op *op);
    /* The operation has its number, and messages may come from now on; but it is not active
     * yet: no child may start, and it may not be marked runnable. 0 or an error: then it has
     * not begun. */
    int (*start)(struct bny_op *op);
    /* A blocking call, where nothing else of its communicator is under way: runs it, with the
     * next number of a collective, if that takes `tries` looks at most. 1: it is complete; 0:
     * it has yet to start; BNY_AGAIN: the message that op->expected says will complete it. May
     * be NULL. */
    int (*try_now)(struct bny_op *op, uint32_t seq, int tries);
    /* Called whenever something may have changed (bny_op_mark_runnable). Ends by
     * bny_op_complete(). Tells an error once, by bny_op_send_failed() or bny_report(): the
     * communicator's failure then ends the operation. 1: made progress. */
    int (*advance)(struct bny_op *op);
    /* A message of a peer with the operation's signature. Takes msg. NULL: it gets none, they
     * are released. */
    void (*message)(struct bny_op *op, int from, struct bny_msg *msg);
    /* May be NULL where it lends no memory and serves no point to point. */
    void (*notify)(struct bny_op *op, enum bny_notice what, uint32_t step);
    /* The operation ends with result, 0 or the error: releases messages, gives up cookies.
     * Returns 0, or BNY_AGAIN while peers may still write into its memory: it is called again
     * when the operation is runnable. Idempotent. May be NULL. */
    int (*end)(struct bny_op *op, int result);
    /* enum bny_pending_flags, of rank r. */
    unsigned (*pending)(const struct bny_op *op, int r);
    /* Frees of_way[] and what it holds, and makes it NULL. Called where that is not NULL.
     * op->comm NULL: its communicator, and all devices, are gone. */
    void (*free)(struct bny_op *op);
};

/* The reason why most ways other than programs cannot serve a call, as a sentence. NULL: they
 * can. */
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
