/* SPDX-License-Identifier: BSD-3-Clause */
/* Where an operation's data lies: the table that a program's blocks index, filled in for each
 * call. */
#include "collectives/engine/engine.h"

#include "collectives/local/local.h"

/* Where a block ends whose share of the call ends at `share`: in proportion, on cache lines
 * where there is enough of it. */
static size_t edge_of(const struct bny_op *op, double share, uint32_t nblocks)
{
    size_t quantum = bny_redop_quantum(&op->call.redop);
    size_t units = op->call.count / quantum, edge = (size_t)(share * (double)units + 0.5);

    if (edge > units)
        edge = units;
    if (quantum == 1 && units >= 64 * (size_t)nblocks * 16)
        edge &= ~(size_t)63;
    return edge * quantum;
}

/* The call's count, split by the blocks' weights. */
static void fill_weighted(struct bny_op *op)
{
    const struct bny_program *p = bny_engine_of(op)->program;
    size_t at = 0;
    double share = 0;

    for (uint32_t b = 0; b < p->nblocks; b++) {
        struct bny_block *k = &bny_engine_of(op)->blocks[b];
        size_t end;

        share += (double)p->weight_num[b] / p->weight_den[b];
        end = b + 1 == p->nblocks ? op->call.count : edge_of(op, share, p->nblocks);
        k->count = end - at;
        k->pos = at;
        k->in = op->in ? op->in + at * op->esz : NULL;
        k->out = op->out ? op->out + at * op->esz : NULL;
        at = end;
    }
}

/* A rank's part, which its first block holds whole, into its blocks by their weights. */
static void cut_part(struct bny_op *op, uint32_t r)
{
    const struct bny_program *p = bny_engine_of(op)->program;
    uint32_t first = p->owned_first[r], end = p->owned_first[r + 1];
    struct bny_block *blocks = bny_engine_of(op)->blocks, whole = blocks[first];
    size_t quantum = bny_redop_quantum(&op->call.redop), units = whole.count / quantum, at = 0;
    double share = 0;

    for (uint32_t b = first; b < end; b++) {
        size_t edge;

        share += (double)p->weight_num[b] / p->weight_den[b] * p->nranks;
        edge = b + 1 == end ? units : (size_t)(share * (double)units + 0.5);
        edge = (edge > units ? units : edge) * quantum;
        if (b + 1 == end)
            edge = whole.count;
        blocks[b] = (struct bny_block){ .count = edge - at,
                                        .pos = whole.pos + at,
                                        .in = whole.in ? whole.in + at * op->esz : NULL,
                                        .out = whole.out ? whole.out + at * op->esz : NULL };
        at = edge;
    }
}

/* Where the parts of a buffer begin, one after the other, in elements. */
struct parts {
    const struct bny_call *call;
    const size_t *counts, *displs;
    size_t at;
};

/* Where rank r's begins; called for r = 0, 1, ... */
static size_t next_part(struct parts *p, int r)
{
    size_t at = p->displs ? p->displs[r] : p->at;

    p->at += bny_part_count(p->call, p->counts, r);
    return at;
}

/* Blocks 0..n-1 of ranks 0..n-1. `whole_in` / `whole_out`: that side has all blocks; else only
 * this rank's own. */
static void fill_parts(struct bny_op *op, int whole_in, int whole_out)
{
    struct bny_engine *e = bny_engine_of(op);
    const struct bny_call *c = &op->call;
    const size_t *counts = c->scounts ? c->scounts : c->rcounts;
    struct parts in = { c, c->scounts, c->sdispls, 0 }, out = { c, c->rcounts, c->rdispls, 0 };
    size_t pos = 0;

    for (int r = 0; r < op->comm->n; r++) {
        struct bny_block *k = &e->blocks[bny_owned_first(e->program, (uint32_t)r)];
        size_t in_at = next_part(&in, r), out_at = next_part(&out, r);
        int own = r == op->comm->rank;

        k->count = bny_part_count(c, counts, r);
        if (c->vector && !counts) /* gatherv, scatterv away from the root: only its own */
            k->count = own ? c->count : 0;
        k->pos = pos;
        pos += k->count;
        k->in = k->out = NULL;
        if (whole_in || own)
            k->in = bny_in_at(op->in, whole_in ? in_at * op->esz : 0);
        if (whole_out || own)
            k->out = bny_out_at(op->out, whole_out ? out_at * op->esz : 0);
        if (e->program->owned_first)
            cut_part(op, (uint32_t)r);
    }
}

static void fill_alltoall(struct bny_op *op)
{
    struct bny_block *blocks = bny_engine_of(op)->blocks;
    const struct bny_call *c = &op->call;
    struct parts in = { c, c->scounts, c->sdispls, 0 }, out = { c, c->rcounts, c->rdispls, 0 };
    int n = op->comm->n, me = op->comm->rank;

    for (int r = 0; r < n; r++) {
        blocks[r] = (struct bny_block){ .count = bny_part_count(c, c->scounts, r),
                                        .in = bny_in_at(op->in, next_part(&in, r) * op->esz) };
        blocks[n + r] =
            (struct bny_block){ .count = bny_part_count(c, c->rcounts, r),
                                .out = bny_out_at(op->out, next_part(&out, r) * op->esz) };
    }
    /* the own block: KEEP copies it from IN to OUT, whichever of the two rows the program names
     */
    blocks[me].out = blocks[n + me].out;
    blocks[n + me].in = blocks[me].in;
}

static size_t fill_blocks(struct bny_op *op)
{
    struct bny_engine *e = bny_engine_of(op);
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
        e->blocks[0] =
            (struct bny_block){ .count = op->call.count, .in = op->in, .out = op->out };
        break;
    default: fill_weighted(op); break;
    }
    for (uint32_t b = 0; b < e->program->nblocks; b++)
        total += e->blocks[b].count;
    return total;
}

int bny_engine_operands(struct bny_op *op)
{
    struct bny_engine *e = bny_engine_of(op);
    size_t at = 0, total = fill_blocks(op);
    int rc = 0;

    if (e->program->uses_scratch)
        rc = bny_grow(&e->scratch, &e->scratch_cap, total * op->esz + 64, 1, "partial sums");
    if (rc == 0 && e->program->uses_scratch2)
        rc = bny_grow(&e->scratch2, &e->scratch2_cap, total * op->esz + 64, 1, "partial sums");
    for (uint32_t b = 0; rc == 0 && b < e->program->nblocks; b++) {
        e->blocks[b].scratch = e->scratch ? e->scratch + at : NULL;
        e->blocks[b].scratch2 = e->scratch2 ? e->scratch2 + at : NULL;
        at += e->blocks[b].count * op->esz;
    }
    return rc;
}
