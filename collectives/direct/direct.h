/* SPDX-License-Identifier: BSD-3-Clause */
/* The direct exchange: each rank gives its contribution to every rank that needs it
 * (bny_call_sends), and combines what it gets in the order of the ranks. All ranks associate
 * alike, so that their bits agree and do not depend on the size. A carrier brings the
 * contributions: cells of shared memory (cells.c) or eager messages (messages.c).
 * This is what carriers share. */
#ifndef BNY_COLLECTIVES_DIRECT_H
#define BNY_COLLECTIVES_DIRECT_H

#include "collectives/local/local.h"
#include "collectives/op/op.h"

/* Does each rank get a part of its own? */
static inline int bny_direct_has_parts(int collective)
{
    return collective == BNY_ALLTOALL || collective == BNY_SCATTER ||
           collective == BNY_REDUCE_SCATTER;
}

/* Bytes that a rank gives to one other. */
static inline size_t bny_direct_bytes(const struct bny_op *op)
{
    return op->call.collective == BNY_BARRIER ? 0 : op->call.count * op->esz;
}

/* What this rank gives to rank `to`, or keeps where that is itself. */
static inline const char *bny_direct_payload(const struct bny_op *op, int to)
{
    if (op->call.collective == BNY_BROADCAST)
        return op->out;
    if (bny_direct_has_parts(op->call.collective))
        return bny_in_at(op->in, (size_t)to * bny_direct_bytes(op));
    return op->in;
}

/* Does this rank give anything to anybody? */
static inline int bny_direct_gives(const struct bny_op *op)
{
    switch (op->call.collective) {
    case BNY_BARRIER: return 0;
    case BNY_BROADCAST:
    case BNY_SCATTER: return op->comm->rank == op->call.root;
    case BNY_GATHER: return op->comm->rank != op->call.root;
    default: return 1;
    }
}

/* What rank r gave to this one; of a sum, of this rank, too. The result is written to op->out
 * while they are read, so of ranks other than 0 and 1 its own operand lies elsewhere. */
typedef const char *bny_direct_from(const struct bny_op *op, int r);

static inline void bny_direct_sum(struct bny_op *op, bny_direct_from *from)
{
    const struct bny_call *call = &op->call;
    const char *acc = from(op, 0);

    for (int r = 1; r < op->comm->n; r++) {
        bny_local_reduce(&call->redop, call->dtype, op->out, acc, from(op, r), call->count);
        acc = op->out;
    }
    if (bny_call_averages(call))
        bny_divide(op->out, op->out, call->count, call->dtype, op->comm->n);
}

/* Where not all ranks take part. */
static inline void bny_direct_sum_of_set(struct bny_op *op, bny_direct_from *from)
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
        bny_local_copy(op->out, acc, bny_direct_bytes(op));
    if (bny_call_averages(call))
        bny_divide(op->out, op->out, call->count, call->dtype,
                   bny_call_parts(call, op->comm->n));
}

/* Everything has come. */
static inline void bny_direct_combine(struct bny_op *op, bny_direct_from *from)
{
    int me = op->comm->rank, root = op->call.root;
    size_t bytes = bny_direct_bytes(op);

    switch (op->call.collective) {
    case BNY_BARRIER: return;
    case BNY_REDUCE:
        if (me != root)
            return;
        __attribute__((fallthrough));
    case BNY_ALLREDUCE:
    case BNY_REDUCE_SCATTER:
        if (op->call.has_set)
            bny_direct_sum_of_set(op, from);
        else
            bny_direct_sum(op, from);
        return;
    case BNY_BROADCAST:
    case BNY_SCATTER:
        if (me != root)
            bny_local_place(op->out, from(op, root), bytes);
        else if (op->call.collective == BNY_SCATTER)
            bny_local_copy(op->out, bny_direct_payload(op, me), bytes);
        return;
    case BNY_GATHER:
        if (me != root)
            return;
        break;
    default: break;
    }
    for (int r = 0; r < op->comm->n; r++) { /* allgather, gather, alltoall */
        char *at = bny_out_at(op->out, (size_t)r * bytes);

        if (r == me) /* it may be there */
            bny_local_copy(at, bny_direct_payload(op, me), bytes);
        else
            bny_local_place(at, from(op, r), bytes);
    }
}

#endif
