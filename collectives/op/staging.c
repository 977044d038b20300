/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls that run on a private copy: sums that are scaled first, an all-to-all in place, a
 * reduce_scatter in order of ranks, an even allgatherv whose blocks lie apart, and buffers that
 * are not in ordinary memory. */
#include <stdlib.h>

#include "collectives/local/local.h"
#include "collectives/local/memory_kind.h"
#include "collectives/op/op.h"

int bny_grow(void *pp, size_t *cap, size_t need, size_t unit, const char *what)
{
    void **p = pp, *q;

    if (*cap >= need)
        return 0;
    q = realloc(*p, need * unit);
    if (!q)
        return bny_fail(BANYAN_ENOMEM, "no memory for %s: %zu bytes", what, need * unit);
    *p = q;
    *cap = need;
    return 0;
}

size_t bny_part_count(const struct bny_call *call, const size_t *counts, int r)
{
    return counts ? counts[r] : call->count;
}

/* Elements from the buffer's begin to the end of its last part. */
static size_t extent(const struct bny_op *op, const size_t *counts, const size_t *displs)
{
    const struct bny_call *c = &op->call;
    size_t end = 0, at = 0;

    if (!counts)
        return c->count * (size_t)op->comm->n;
    for (int r = 0; r < op->comm->n; r++) {
        size_t from = displs ? displs[r] : at;
        end = counts[r] && from + counts[r] > end ? from + counts[r] : end;
        at += counts[r];
    }
    return end;
}

static size_t input_elems(const struct bny_op *op)
{
    const struct bny_call *c = &op->call;

    if (!bny_call_takes_part(c, op->comm->rank))
        return 0;
    switch (c->collective) {
    case BNY_ALLTOALL:
    case BNY_REDUCE_SCATTER: return extent(op, c->scounts, c->sdispls);
    case BNY_SCATTER: return c->root == op->comm->rank ? extent(op, c->scounts, c->sdispls) : 0;
    case BNY_ALLGATHER: return c->vector ? c->rcounts[op->comm->rank] : c->count;
    case BNY_BARRIER: return 0;
    case BNY_SENDRECV: return c->is_send ? c->count : 0;
    default: return c->count;
    }
}

static size_t output_elems(const struct bny_op *op)
{
    const struct bny_call *c = &op->call;
    int is_root = c->root == op->comm->rank;

    switch (c->collective) {
    case BNY_ALLTOALL:
    case BNY_ALLGATHER: return extent(op, c->rcounts, c->rdispls);
    case BNY_GATHER: return is_root ? extent(op, c->rcounts, c->rdispls) : 0;
    case BNY_REDUCE: return is_root ? c->count : 0;
    case BNY_REDUCE_SCATTER: return c->vector ? c->scounts[op->comm->rank] : c->count;
    case BNY_BARRIER: return 0;
    case BNY_SENDRECV: return c->is_send ? 0 : c->count;
    default: return c->count;
    }
}

void bny_op_use(struct bny_op *op, struct bny_tp *tp)
{
    if (op->is_used || op->call.via_allreduce || op->call.spread)
        return;
    op->is_used = 1;
    if (op->out) /* the longer one first: the other may be in it */
        tp->ops->use(tp, op->out, output_elems(op) * op->esz);
    if (op->in)
        tp->ops->use(tp, (void *)(uintptr_t)op->in, input_elems(op) * op->esz);
}

/* ---- other kinds of memory ---- */

/* Does the call write all of the output? */
static int fills_output(const struct bny_call *c)
{
    switch (c->collective) {
    case BNY_ALLREDUCE:
    case BNY_REDUCE:
    case BNY_REDUCE_SCATTER:
    case BNY_SCAN: return 1;
    case BNY_ALLGATHER:
    case BNY_ALLTOALL: return !c->vector;
    default: return 0;
    }
}

/* Where the user's buffers are in memory that only its kind can copy: op->in and op->out become
 * private copies. The output is copied too where the call need not write all of it. */
static int stage_kinds(struct bny_op *op)
{
    const struct bny_call *c = &op->call;
    const struct bny_mem_kind *in, *out;
    size_t in_bytes = input_elems(op) * op->esz,
           out_bytes = (c->via_allreduce || c->spread ? 0 : output_elems(op)) * op->esz;
    int same = c->sendbuf == c->recvbuf && c->collective != BNY_ALLTOALL,
        rc = bny_mem_kind_of(&in, c->sendbuf);
    size_t at;

    op->staged_out = 0;
    if (rc == 0)
        rc = bny_mem_kind_of(&out, c->recvbuf);
    if (rc)
        return rc;
    op->out_kind = out;
    if (in->direct && out->direct)
        return 0;
    if (same && out_bytes > in_bytes)
        in_bytes = out_bytes; /* in place: one copy, of all that either is */
    at = (in_bytes + 63) & ~(size_t)63;
    rc = bny_grow(&op->foreign, &op->foreign_cap, at + out_bytes + 64, 1,
                  "a copy of a buffer in other memory");
    if (rc == 0 && !in->direct && in_bytes) {
        rc = in->copy(op->foreign, c->sendbuf, in_bytes);
        op->in = op->foreign;
    }
    if (rc == 0 && !out->direct && out_bytes) {
        op->out = same ? op->foreign : op->foreign + at;
        if (!same && !fills_output(c))
            rc = out->copy(op->out, c->recvbuf, out_bytes);
        op->staged_out = out_bytes;
    }
    return rc;
}

/* ---- staging ---- */

/* premul sums scale into a copy; an in-place all-to-all sends from one; an ordered
 * reduce_scatter is an allreduce into one; so is an even allgatherv whose blocks lie apart. */
int bny_op_stage(struct bny_op *op)
{
    const struct bny_call *c = &op->call;
    int premul = c->redop.wire == 0xfd, inplace_a2a, rc = 0;
    size_t elems;

    op->in = c->sendbuf;
    op->out = c->recvbuf;
    if (bny_mem_has_others())
        rc = stage_kinds(op);
    inplace_a2a = c->collective == BNY_ALLTOALL && op->in == op->out && !c->vector;
    if (rc || (!premul && !inplace_a2a && !c->via_allreduce && !c->spread))
        return rc;
    elems = c->spread ? output_elems(op) : input_elems(op);
    rc = bny_grow(&op->staging, &op->staging_cap, elems * op->esz + 64, 1,
                  "a private copy of the input");
    if (rc)
        return rc;
    if (premul)
        bny_scale(op->staging, op->in, elems, c->dtype, c->redop.scalar);
    else if (inplace_a2a)
        bny_local_place(op->staging, op->in, elems * op->esz);
    if (premul || inplace_a2a)
        op->in = op->staging;
    if (c->via_allreduce || c->spread)
        op->out = op->staging;
    return 0;
}

static int spread_blocks(const struct bny_op *op, const struct bny_mem_kind *to)
{
    const struct bny_call *c = &op->call;
    size_t bytes = c->count * op->esz;
    int rc = 0;

    for (int r = 0; r < op->comm->n && rc == 0 && bytes; r++)
        rc = to->copy((char *)c->recvbuf + c->spread[r] * op->esz,
                      op->staging + (size_t)r * bytes, bytes);
    return rc;
}

int bny_op_unstage(struct bny_op *op)
{
    const struct bny_call *c = &op->call;
    const struct bny_mem_kind *out = op->out_kind; /* a driver may come meanwhile, or fail */

    if (c->via_allreduce && c->own_count)
        return out->copy(c->recvbuf, op->staging + c->own_at * op->esz, c->own_count * op->esz);
    if (c->spread)
        return spread_blocks(op, out);
    return out->direct || !op->staged_out ? 0 : out->copy(c->recvbuf, op->out, op->staged_out);
}
