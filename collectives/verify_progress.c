/* SPDX-License-Identifier: BSD-3-Clause */
/* V4: no deadlock under bounded buffers. Each step is cut into slots + 2 chunks, so that a step
 * does not fit into the buffers of a channel; chunks of a channel travel in order of (ordinal,
 * chunk). A chunk starts when the overlapping chunks of its dependencies are complete, the ones
 * before it in its step and channel too, and a buffer is free; with 0 slots send and receive
 * happen together. What can happen stays possible until it does, so one greedy run decides: if
 * it ends before the programs do, every run ends there. */
#include <stdlib.h>
#include <string.h>

#include "collectives/verify.h"
#include "transport/wire.h"

#define NONE UINT32_MAX

struct lane { /* one channel of one direction between two ranks */
    uint64_t sent, received;    /* chunks */
    uint32_t sender, receiver;  /* steps at the head */
    uint32_t last;              /* while building: the lane's last send step */
};

struct flow {
    const struct bny_proof *v;
    uint64_t slots, nchunks;
    struct lane *lanes; /* [n * n * BNY_CHANNELS] */
    int32_t *rank;      /* [nsteps] */
    uint32_t *lane;     /* [nsteps] or NONE */
    uint32_t *next;     /* [nsteps] next step of the lane on the same side */
    uint32_t *done;     /* [nsteps] chunks complete */
    uint32_t *first_waiter; /* [nsteps + 1] start of g's in waiters */
    uint32_t *waiters;      /* steps that depend on g */
    uint32_t *queue;    /* steps to look at again; a ring of nsteps + 1 */
    uint8_t *queued;
    uint32_t head, tail;
};

static void look_again(struct flow *f, uint32_t g)
{
    if (g == NONE || f->queued[g])
        return;
    f->queued[g] = 1;
    f->queue[f->tail] = g;
    f->tail = (f->tail + 1) % (f->v->nsteps + 1);
}

/* Chunks of dependency d that must be complete before chunk c of step s: all up to the last one
 * that overlaps. Positions are in units of a block's nchunks-th part. */
static uint64_t needed(const struct flow *f, const struct bny_step *s, const struct bny_step *d,
                       uint64_t c)
{
    uint64_t low = s->block * f->nchunks + s->nblocks * c, high = low + s->nblocks;
    uint64_t from = d->block * f->nchunks, upto;

    if (s->block == d->block && s->nblocks == d->nblocks) /* as nearly always */
        return c + 1;
    if (high <= from || low >= from + d->nblocks * f->nchunks)
        return 0;
    upto = (high - from + d->nblocks - 1) / d->nblocks;
    return upto < f->nchunks ? upto : f->nchunks;
}

static int deps_done(const struct flow *f, uint32_t g)
{
    int r = f->rank[g];
    const struct bny_program *p = f->v->p[r];
    const struct bny_step *s = bny_proof_step(f->v, r, g);

    for (uint32_t k = 0; k < s->ndeps; k++) {
        uint32_t d = p->deps[s->dep + k];

        if (f->done[f->v->base[r] + d] < needed(f, s, &p->steps[d], f->done[g]))
            return 0;
    }
    return 1;
}

static void complete_chunk(struct flow *f, uint32_t g)
{
    struct lane *l = f->lane[g] == NONE ? NULL : &f->lanes[f->lane[g]];

    f->done[g]++;
    for (uint32_t k = f->first_waiter[g]; k < f->first_waiter[g + 1]; k++)
        look_again(f, f->waiters[k]);
    if (!l)
        return;
    if (bny_step_is_recv(bny_proof_step(f->v, f->rank[g], g))) {
        l->received++;
        if (f->done[g] == f->nchunks)
            l->receiver = f->next[g];
    } else {
        l->sent++;
        if (f->done[g] == f->nchunks)
            l->sender = f->next[g];
    }
    look_again(f, l->sender);
    look_again(f, l->receiver);
}

/* Does one chunk of g if it can; returns 1 if it did. */
static int advance(struct flow *f, uint32_t g)
{
    struct lane *l = f->lane[g] == NONE ? NULL : &f->lanes[f->lane[g]];

    if (f->done[g] == f->nchunks || !deps_done(f, g))
        return 0;
    if (!l) {
        complete_chunk(f, g);
        return 1;
    }
    if (f->slots == 0) {
        uint32_t other = f->v->match[g];

        if ((l->sender != g && l->receiver != g) ||
            (l->sender != other && l->receiver != other) ||
            f->done[other] != f->done[g] || !deps_done(f, other))
            return 0;
        complete_chunk(f, g);
        complete_chunk(f, other);
        return 1;
    }
    if (l->sender == g ? l->sent - l->received >= f->slots
                       : l->receiver != g || l->received >= l->sent)
        return 0;
    complete_chunk(f, g);
    return 1;
}

static int simulate(struct flow *f)
{
    const struct bny_proof *v = f->v;

    for (uint32_t g = 0; g < v->nsteps; g++)
        look_again(f, g);
    while (f->head != f->tail) {
        uint32_t g = f->queue[f->head];

        f->head = (f->head + 1) % (v->nsteps + 1);
        f->queued[g] = 0;
        while (advance(f, g))
            ;
    }
    for (uint32_t g = 0; g < v->nsteps; g++)
        if (f->done[g] < f->nchunks)
            return bny_proof_fail(v, "rank %d waits for ever at step %u chunk %u, with %llu "
                                  "slots", f->rank[g], g - v->base[f->rank[g]], f->done[g], (unsigned long long)f->slots);
    return 0;
}

static void build_lanes(struct flow *f)
{
    const struct bny_proof *v = f->v;
    size_t nlanes = (size_t)v->n * (size_t)v->n * BNY_CHANNELS;

    for (size_t l = 0; l < nlanes; l++)
        f->lanes[l] = (struct lane){ .sender = NONE, .receiver = NONE, .last = NONE };
    for (int r = 0; r < v->n; r++)
        for (uint32_t g = v->base[r]; g < v->base[r + 1]; g++) {
            const struct bny_step *s = bny_proof_step(v, r, g);
            struct lane *l;

            f->rank[g] = r;
            if (s->peer < 0 || bny_step_is_recv(s))
                continue;
            f->lane[g] = (uint32_t)((r * v->n + s->peer) * BNY_CHANNELS + s->chan);
            f->lane[v->match[g]] = f->lane[g];
            l = &f->lanes[f->lane[g]];
            if (l->last == NONE) {
                l->sender = g;
                l->receiver = v->match[g];
            } else {
                f->next[l->last] = g;
                f->next[v->match[l->last]] = v->match[g];
            }
            l->last = g;
        }
}

static void build_waiters(struct flow *f)
{
    const struct bny_proof *v = f->v;

    for (int pass = 0; pass < 2; pass++) {
        for (int r = 0; r < v->n; r++)
            for (uint32_t i = 0; i < v->p[r]->nsteps; i++) {
                const struct bny_step *s = &v->p[r]->steps[i];

                for (uint32_t k = 0; k < s->ndeps; k++) {
                    uint32_t d = v->base[r] + v->p[r]->deps[s->dep + k];

                    if (pass == 0)
                        f->first_waiter[d + 1]++;
                    else
                        f->waiters[--f->first_waiter[d + 1]] = v->base[r] + i;
                }
            }
        if (pass == 0)
            for (uint32_t g = 0; g < v->nsteps; g++)
                f->first_waiter[g + 1] += f->first_waiter[g];
    }
    /* The second pass left the start of g's waiters in first_waiter[g + 1]. */
    memmove(f->first_waiter, f->first_waiter + 1, v->nsteps * sizeof *f->first_waiter);
}

int bny_prove_progress(const struct bny_proof *v, int slots)
{
    size_t steps = (size_t)v->nsteps + 2, ndeps = 1;
    struct flow f = { .v = v, .slots = (uint64_t)slots, .nchunks = (uint64_t)slots + 2 };
    int e;

    for (int r = 0; r < v->n; r++)
        for (uint32_t i = 0; i < v->p[r]->nsteps; i++)
            ndeps += v->p[r]->steps[i].ndeps;
    f.lanes = malloc((size_t)v->n * (size_t)v->n * BNY_CHANNELS * sizeof *f.lanes);
    f.rank = malloc(steps * sizeof *f.rank);
    f.lane = malloc(steps * sizeof *f.lane);
    f.next = malloc(steps * sizeof *f.next);
    f.done = calloc(steps, sizeof *f.done);
    f.first_waiter = calloc(steps, sizeof *f.first_waiter);
    f.waiters = malloc(ndeps * sizeof *f.waiters);
    f.queue = malloc(steps * sizeof *f.queue);
    f.queued = calloc(steps, 1);
    if (f.lanes && f.rank && f.lane && f.next && f.done && f.first_waiter && f.waiters &&
        f.queue && f.queued) {
        memset(f.lane, 0xff, steps * sizeof *f.lane);
        memset(f.next, 0xff, steps * sizeof *f.next);
        build_lanes(&f);
        build_waiters(&f);
        f.first_waiter[v->nsteps] = (uint32_t)(ndeps - 1);
        e = simulate(&f);
    } else {
        e = bny_proof_no_memory(v);
    }
    free(f.lanes);
    free(f.rank);
    free(f.lane);
    free(f.next);
    free(f.done);
    free(f.first_waiter);
    free(f.waiters);
    free(f.queue);
    free(f.queued);
    return e;
}
