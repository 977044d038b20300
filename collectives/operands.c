/* SPDX-License-Identifier: BSD-3-Clause */
/* Where an operation's data lies: the table that a program's blocks index, filled in for each
 * call, and private copies for the calls that need one. */
#include <stdlib.h>
#include <string.h>

#include "collectives/internal.h"

/* ---- tables ---- */

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

/* Elements of block b of the call that this program splits by weights: [0, count) in
 * proportion, on cache lines where there is enough of it. */
static size_t weighted_edge(const struct bny_op *op, uint32_t b)
{
    const struct bny_program *p = op->program;
    size_t quantum = bny_redop_quantum(&op->call.redop);
    size_t units = op->call.count / quantum, edge;
    double at = 0;

    if (b == p->nblocks)
        return op->call.count;
    for (uint32_t i = 0; i < b; i++)
        at += (double)p->weight_num[i] / p->weight_den[i];
    edge = (size_t)(at * (double)units + 0.5);
    if (edge > units)
        edge = units;
    if (quantum == 1 && units >= 64 * (size_t)p->nblocks * 16)
        edge &= ~(size_t)63;
    return edge * quantum;
}

/* Displacement and count of rank r's block on the send or receive side, in elements. */
static size_t part_count(const struct bny_call *call, const size_t *counts, int r)
{
    return counts ? counts[r] : call->count;
}

static size_t part_at(const struct bny_call *call, const size_t *counts, const size_t *displs,
                      int r)
{
    size_t at = 0;

    if (displs)
        return displs[r];
    if (!counts)
        return (size_t)r * call->count;
    for (int i = 0; i < r; i++)
        at += counts[i];
    return at;
}

static void fill_weighted(struct bny_op *op)
{
    const struct bny_program *p = op->program;

    for (uint32_t b = 0; b < p->nblocks; b++) {
        struct bny_block *k = &op->blocks[b];
        size_t at = weighted_edge(op, b);
        k->count = weighted_edge(op, b + 1) - at;
        k->pos = at;
        k->in = op->in + at * op->esz;
        k->out = op->out + at * op->esz;
    }
}

/* A rank's part, which its first block holds whole, into its blocks by their weights. */
static void cut_part(struct bny_op *op, uint32_t r)
{
    const struct bny_program *p = op->program;
    uint32_t first = p->owned_first[r], end = p->owned_first[r + 1];
    struct bny_block whole = op->blocks[first];
    size_t quantum = bny_redop_quantum(&op->call.redop), units = whole.count / quantum, at = 0;
    double share = 0;

    for (uint32_t b = first; b < end; b++) {
        size_t edge;

        share += (double)p->weight_num[b] / p->weight_den[b] * p->nranks;
        edge = b + 1 == end ? units : (size_t)(share * (double)units + 0.5);
        edge = (edge > units ? units : edge) * quantum;
        if (b + 1 == end)
            edge = whole.count;
        op->blocks[b] =
            (struct bny_block){ .count = edge - at,
                                .pos = whole.pos + at,
                                .in = whole.in ? whole.in + at * op->esz : NULL,
                                .out = whole.out ? whole.out + at * op->esz : NULL };
        at = edge;
    }
}

/* Blocks 0..n-1 of ranks 0..n-1. `whole_in` / `whole_out`: that side has all blocks; else only
 * this rank's own. */
static void fill_parts(struct bny_op *op, int whole_in, int whole_out)
{
    const struct bny_call *c = &op->call;
    size_t pos = 0;

    for (int r = 0; r < op->comm->n; r++) {
        struct bny_block *k = &op->blocks[bny_owned_first(op->program, (uint32_t)r)];
        const size_t *counts = c->scounts ? c->scounts : c->rcounts;
        int own = r == op->comm->rank;
        k->count = part_count(c, counts, r);
        if (c->vector &&
            !counts) /* gatherv, scatterv away from the root: only the own count is known */
            k->count = own ? c->count : 0;
        k->pos = pos;
        pos += k->count;
        k->in = k->out = NULL;
        if (whole_in)
            k->in = op->in + part_at(c, c->scounts, c->sdispls, r) * op->esz;
        else if (own)
            k->in = op->in;
        if (whole_out)
            k->out = op->out + part_at(c, c->rcounts, c->rdispls, r) * op->esz;
        else if (own)
            k->out = op->out;
        if (op->program->owned_first)
            cut_part(op, (uint32_t)r);
    }
}

static void fill_alltoall(struct bny_op *op)
{
    const struct bny_call *c = &op->call;
    int n = op->comm->n;

    for (int r = 0; r < n; r++) {
        struct bny_block *in = &op->blocks[r], *out = &op->blocks[n + r];
        *in = (struct bny_block){ .count = part_count(c, c->scounts, r) };
        *out = (struct bny_block){ .count = part_count(c, c->rcounts, r) };
        in->in = op->in + part_at(c, c->scounts, c->sdispls, r) * op->esz;
        out->out = op->out + part_at(c, c->rcounts, c->rdispls, r) * op->esz;
    }
    /* the own block: KEEP copies it from IN to OUT, whichever of the two rows the program names
     */
    op->blocks[op->comm->rank].out = op->blocks[n + op->comm->rank].out;
    op->blocks[n + op->comm->rank].in = op->blocks[op->comm->rank].in;
}

static size_t fill_blocks(struct bny_op *op)
{
    int root = op->call.root == op->comm->rank;
    size_t total = 0;

    switch (op->call.collective) {
    case BNY_REDUCE_SCATTER: fill_parts(op, 1, 0); break;
    case BNY_ALLGATHER: fill_parts(op, 0, 1); break;
    case BNY_GATHER: fill_parts(op, 0, root); break;
    case BNY_SCATTER: fill_parts(op, root, 0); break;
    case BNY_ALLTOALL: fill_alltoall(op); break;
    case BNY_BARRIER:
    case BNY_SENDRECV:
        op->blocks[0] =
            (struct bny_block){ .count = op->call.count, .in = op->in, .out = op->out };
        break;
    default: fill_weighted(op); break;
    }
    for (uint32_t b = 0; b < op->program->nblocks; b++)
        total += op->blocks[b].count;
    return total;
}

int bny_operands_fill(struct bny_op *op)
{
    size_t at = 0, total = fill_blocks(op);
    int rc = 0;

    if (op->program->uses_scratch)
        rc = bny_grow(&op->scratch, &op->scratch_cap, total * op->esz + 64, 1, "partial sums");
    if (rc == 0 && op->program->uses_scratch2)
        rc =
            bny_grow(&op->scratch2, &op->scratch2_cap, total * op->esz + 64, 1, "partial sums");
    for (uint32_t b = 0; rc == 0 && b < op->program->nblocks; b++) {
        op->blocks[b].scratch = op->scratch ? op->scratch + at : NULL;
        op->blocks[b].scratch2 = op->scratch2 ? op->scratch2 + at : NULL;
        at += op->blocks[b].count * op->esz;
    }
    return rc;
}

/* ---- staging: calls that run on a private copy ---- */

static size_t input_elems(const struct bny_op *op)
{
    const struct bny_call *c = &op->call;

    switch (c->collective) {
    case BNY_ALLTOALL: return c->count * (size_t)op->comm->n;
    case BNY_REDUCE_SCATTER:
        return part_at(c, c->scounts, NULL, op->comm->n - 1) +
               part_count(c, c->scounts, op->comm->n - 1);
    default: return c->count;
    }
}

/* Sets where the tables point: the user's buffers, or private copies. premul sums scale into a
 * copy; an in-place all-to-all sends from one; an ordered reduce_scatter is an allreduce into
 * one. */
int bny_operands_stage(struct bny_op *op)
{
    const struct bny_call *c = &op->call;
    int premul = c->redop.wire == 0xfd;
    int inplace_a2a = c->collective == BNY_ALLTOALL && c->sendbuf == c->recvbuf && !c->vector;
    size_t elems;
    int rc;

    op->in = c->sendbuf;
    op->out = c->recvbuf;
    if (!premul && !inplace_a2a && !c->via_allreduce)
        return 0;
    elems = input_elems(op);
    rc = bny_grow(&op->staging, &op->staging_cap, elems * op->esz + 64, 1,
                  "a private copy of the input");
    if (rc)
        return rc;
    if (premul)
        bny_scale(op->staging, c->sendbuf, elems, c->dtype, c->redop.scalar);
    else if (inplace_a2a && elems)
        memcpy(op->staging, c->sendbuf, elems * op->esz);
    if (premul || inplace_a2a)
        op->in = op->staging;
    if (c->via_allreduce)
        op->out = op->staging;
    return 0;
}
