/* SPDX-License-Identifier: BSD-3-Clause */
/* When a chunk of a step may move: its dependencies, and the pace of a plan for a graph. */
#include "collectives/engine/engine.h"

/* Are the elements [lo, hi) (contiguous coordinates) of chunk c ready in all steps this one
 * depends on? */
int bny_engine_is_ready(const struct bny_op *op, uint32_t i, uint32_t c)
{
    const struct bny_engine *e = bny_engine_of(op);
    const struct bny_program *p = e->program;
    const struct bny_step *s = &p->steps[i];
    const struct bny_step_state *st = &e->steps[i];
    size_t lo = st->pos + (size_t)c * op->chunk_elems, hi = lo + bny_engine_chunk(op, st, c);

    for (uint32_t k = 0; k < s->ndeps; k++) {
        uint32_t d = p->deps[s->dep + k];
        const struct bny_step *ds = &p->steps[d];
        const struct bny_step_state *dst = &e->steps[d];
        size_t dlo = dst->pos, dhi = dst->pos + dst->count, covered;
        if (dst->done == dst->nchunks)
            continue;
        if (bny_is_send(ds) && ds->peer != op->comm->rank && op->comm->peers[ds->peer].ep &&
            (op->comm->peers[ds->peer].ep->ops->caps & BNY_TP_UNORDERED))
            return 0; /* sends may complete out of order: only all of them says something */
        if (ds->block == s->block && ds->nblocks == s->nblocks) {
            if (dst->done > c)
                continue;
            return 0;
        }
        if (!p->contiguous)
            return 0;
        if (hi <= dlo || lo >= dhi)
            continue;
        covered = dlo + (size_t)dst->done * op->chunk_elems;
        if (covered < (hi < dhi ? hi : dhi))
            return 0;
    }
    return 1;
}

/* A plan for a graph counts on each edge carrying its share at an even rate. A rank that has
 * all its data at once would else fill the queues that others' results must pass, and then fall
 * idle. So chunk c of k waits for c/k of the predicted time; and the first ones, a little, for
 * CTS of all, so that they go in the order of steps. None needs a barrier. */
static int too_early(struct bny_op *op, const struct bny_step_state *st)
{
    const struct bny_engine *e = bny_engine_of(op);
    double wait = op->plan.pace_s * st->posted / st->nchunks;
    uint64_t due, *first = &op->comm->world->due_ns;

    if (e->cts_missing && wait < op->plan.cts_wait_s)
        wait = op->plan.cts_wait_s;
    due = e->start_ns + (uint64_t)(wait * 1e9);
    if (wait <= 0 || bny_now_ns() >= due)
        return 0;
    bny_op_mark_runnable(op); /* no event tells when it is time */
    if (!*first || due < *first)
        *first = due;
    return 1;
}

enum bny_may bny_engine_may_send(struct bny_op *op, uint32_t i)
{
    const struct bny_engine *e = bny_engine_of(op);
    const struct bny_step_state *st = &e->steps[i];

    if (st->posted == st->nchunks || !bny_engine_is_ready(op, i, st->posted))
        return BNY_MAY_NOT;
    return e->start_ns && too_early(op, st) ? BNY_MAY_LATER : BNY_MAY;
}

void bny_engine_wake_users(struct bny_op *op, uint32_t i)
{
    struct bny_engine *e = bny_engine_of(op);
    const struct bny_program *p = e->program;

    if (!p->user_first)
        return;
    for (uint32_t k = p->user_first[i]; k < p->user_first[i + 1]; k++)
        e->ready[p->users[k] / 64] |= 1ull << (p->users[k] % 64);
}
