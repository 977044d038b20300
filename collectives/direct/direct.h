/* SPDX-License-Identifier: BSD-3-Clause */
/* The way of short operations: each rank gives its contribution to every rank that needs it
 * (bny_call_sends), and combines what it gets in the order of the ranks. All ranks associate
 * alike, so that their bits agree and do not depend on the size. A carrier brings the
 * contributions: cells of shared memory (cells.c), eager messages (messages.c), or nothing
 * where no other rank takes part (alone.c). */
#ifndef BNY_COLLECTIVES_DIRECT_H
#define BNY_COLLECTIVES_DIRECT_H

#include "collectives/area/cells.h"
#include "collectives/local/local.h"
#include "collectives/op/op.h"

#define BNY_DIRECT_RANKS_MAX 64

/* A carrier of an operation. Its members are those of a way (plan/way.h) unless their comments
 * say more; all but the first four may be NULL. */
struct bny_carrier {
    unsigned traits; /* enum bny_way_traits of its operations, beside the way's */
    const char *(*cannot)(const struct bny_scope *s, const struct bny_call *call);
    double (*seconds)(const struct bny_scope *s, const struct bny_call *call);
    /* Gives this rank's contribution to the others, as far as it can now. 1: something moved.
     * is_given: all of it is on its way. */
    int (*give)(struct bny_op *op);
    int (*start)(struct bny_op *op);
    int (*try_now)(struct bny_op *op, uint32_t seq, int tries);
    /* Called when all is given, where contributions come without messages. 1: something moved.
     */
    int (*look)(struct bny_op *op);
    void (*combine)(struct bny_op *op); /* everything has come; NULL: there is nothing to do */
    void (*message)(struct bny_op *op, int from, struct bny_msg *msg);
    int (*end)(struct bny_op *op, int result);
    unsigned (*pending)(const struct bny_op *op, int r);
};

#define BNY_CARRIER_EXTERN(symbol) extern const struct bny_carrier bny_carrier_##symbol;
BNY_CARRIERS(BNY_CARRIER_EXTERN)
#undef BNY_CARRIER_EXTERN

struct bny_direct { /* the way's state of an operation */
    const struct bny_carrier *carrier;
    size_t bytes;       /* of a contribution */
    int missing;        /* contributions that have not come */
    uint8_t is_given;   /* ours is on its way to all who need it */
    uint8_t has_failed; /* it is reported */
    /* ---- messages ---- */
    int sent;        /* peers served so far */
    const char *own; /* our own operand: the user's, or in: */
    char *tile;
    size_t tile_cap;
    /* ---- cells ---- */
    struct bny_link link; /* of the communicator's, in order */
    struct bny_op *op;
    struct bny_cell_key key;
    size_t part, all;             /* bytes from part to part; what a rank shows */
    int next;                     /* all ranks before it have shown what we need */
    const struct bny_cell *lacks; /* its cell, once we have looked */
    uint8_t is_early; /* it has been shown before its start, under the same number */
    /* ---- messages ---- */
    struct bny_msg *of[]; /* [n] held */
};

static inline struct bny_direct *bny_direct_of(const struct bny_op *op)
{
    return op->of_way[BNY_WAY_DIRECT];
}

/* Does each rank get a part of its own? */
static inline int bny_direct_has_parts(int collective)
{
    return collective == BNY_ALLTOALL || collective == BNY_SCATTER ||
           collective == BNY_REDUCE_SCATTER;
}

/* This rank's contribution for rank `to`, or the part that it keeps where that is itself. */
static inline const char *bny_direct_payload(const struct bny_op *op, int to)
{
    if (op->call.collective == BNY_BROADCAST)
        return op->out;
    if (bny_direct_has_parts(op->call.collective))
        return bny_in_at(op->in, (size_t)to * bny_direct_of(op)->bytes);
    return op->in;
}

/* ---- combining: inline, as the carrier's `from` is to be ---- */

/* Rank r's contribution to this rank; of a sum, this rank's own, too. The result is written to
 * op->out while they are read, so of ranks other than 0 and 1 its own operand lies elsewhere.
 */
typedef const char *bny_direct_from(const struct bny_op *op, int r);

static inline void bny_direct_sum(struct bny_op *op, bny_direct_from *from)
{
    const struct bny_call *call = &op->call;
    const char *acc = NULL;

    for (int r = 0; r < op->comm->n; r++) {
        if (!bny_call_takes_part(call, r))
            continue;
        if (acc)
            bny_local_reduce(&call->redop, call->dtype, op->out, acc, from(op, r), call->count);
        acc = acc ? op->out : from(op, r);
    }
    if (acc != op->out) /* one rank alone takes part */
        bny_local_copy(op->out, acc, bny_direct_of(op)->bytes);
    if (bny_call_averages(call))
        bny_divide(op->out, op->out, call->count, call->dtype,
                   bny_call_parts(call, op->comm->n));
}

/* allgather, gather, alltoall */
static inline void bny_direct_blocks(struct bny_op *op, bny_direct_from *from)
{
    size_t bytes = bny_direct_of(op)->bytes;

    for (int r = 0; r < op->comm->n; r++) {
        char *at = bny_out_at(op->out, (size_t)r * bytes);

        if (r == op->comm->rank) /* it may be there */
            bny_local_copy(at, bny_direct_payload(op, r), bytes);
        else
            bny_local_place(at, from(op, r), bytes);
    }
}

/* Everything has come. */
static inline void bny_direct_combine(struct bny_op *op, bny_direct_from *from)
{
    int me = op->comm->rank, root = op->call.root;

    switch (op->call.collective) {
    case BNY_BARRIER: break;
    case BNY_REDUCE:
        if (me == root)
            bny_direct_sum(op, from);
        break;
    case BNY_ALLREDUCE:
    case BNY_REDUCE_SCATTER: bny_direct_sum(op, from); break;
    case BNY_BROADCAST:
    case BNY_SCATTER:
        if (me != root)
            bny_local_place(op->out, from(op, root), bny_direct_of(op)->bytes);
        else if (op->call.collective == BNY_SCATTER)
            bny_local_copy(op->out, bny_direct_payload(op, me), bny_direct_of(op)->bytes);
        break;
    case BNY_GATHER:
        if (me == root)
            bny_direct_blocks(op, from);
        break;
    default: bny_direct_blocks(op, from);
    }
}

#endif
