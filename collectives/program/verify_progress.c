/* SPDX-License-Identifier: BSD-3-Clause */
/* V4: no deadlock under bounded buffers. Each step is cut into slots + 2 chunks, so that a step
 * does not fit into the buffers of a channel; chunks of a channel travel in order of (ordinal,
 * chunk). A chunk starts when the overlapping chunks of its dependencies are complete, the ones
 * before it in its step and channel too, and a buffer is free; with 0 slots send and receive
 * happen together. A step that can run stays possible until it runs, so one greedy run decides:
 * if it ends before the programs do, every run ends there. */
#include <stdlib.h>
#include <string.h>

#include "collectives/program/verify.h"
#include "transport/wire.h"

#define NONE UINT32_MAX

struct lane {                  /* one channel of one direction between two ranks */
    uint64_t sent, received;   /* chunks */
    uint32_t sender, receiver; /* steps at the head */
    uint32_t last;             /* while building: the lane's last send step */
};

struct state {     /* of a step; together, as they are looked at together */
    uint32_t lane; /* or NONE */
    uint32_t next; /* step of the lane on the same side */
    uint32_t done; /* chunks complete */
    uint32_t
        first_waiter; /* start of its own in waiters; they end where the next step's begin */
    int32_t rank;
    uint32_t queued;
};

struct flow {
    const struct bny_proof *v;
    uint64_t slots, nchunks;
    struct lane *lanes; /* [n * n * BNY_CHANNELS] */
    struct state *at;   /* [nsteps + 1] */
    uint32_t *waiters;  /* steps that depend on others */
    uint32_t *queue; /* [nsteps] steps to look at again, the latest first: what woke them is at
                        hand */
    uint32_t queue_len;
};

static void look_again(struct flow *f, uint32_t g)
{
    if (g == NONE || f->at[g].queued)
        return;
    f->at[g].queued = 1;
    f->queue[f->queue_len++] = g;
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
    int r = f->at[g].rank;
    const struct bny_program *p = f->v->p[r];
    const struct bny_step *s = bny_proof_step(f->v, r, g);

    for (uint32_t k = 0; k < s->ndeps; k++) {
        uint32_t d = p->deps[s->dep + k];

        if (f->at[f->v->base[r] + d].done < needed(f, s, &p->steps[d], f->at[g].done))
            return 0;
    }
    return 1;
}

static void complete_chunk(struct flow *f, uint32_t g)
{
    struct lane *l = f->at[g].lane == NONE ? NULL : &f->lanes[f->at[g].lane];

    f->at[g].done++;
    for (uint32_t k = f->at[g].first_waiter; k < f->at[g + 1].first_waiter; k++)
        look_again(f, f->waiters[k]);
    if (!l)
        return;
    if (bny_step_is_recv(bny_proof_step(f->v, f->at[g].rank, g))) {
        l->received++;
        if (f->at[g].done == f->nchunks)
            l->receiver = f->at[g].next;
    } else {
        l->sent++;
        if (f->at[g].done == f->nchunks)
            l->sender = f->at[g].next;
    }
    look_again(f, l->sender);
    look_again(f, l->receiver);
}

/* Does one chunk of g if it can; returns 1 if it did. */
static int verify_progress_advance(struct flow *f, uint32_t g)
{
    struct lane *l = f->at[g].lane == NONE ? NULL : &f->lanes[f->at[g].lane];

    if (f->at[g].done == f->nchunks || !deps_done(f, g))
        return 0;
    if (!l) {
        complete_chunk(f, g);
        return 1;
    }
    if (f->slots == 0) {
        uint32_t other = f->v->match[g];

        if ((l->sender != g && l->receiver != g) ||
            (l->sender != other && l->receiver != other) ||
            f->at[other].done != f->at[g].done || !deps_done(f, other))
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
        if (deps_done(f, g)) /* what it waits for wakes the others */
            look_again(f, g);
    while (f->queue_len) {
        uint32_t g = f->queue[--f->queue_len];

        f->at[g].queued = 0;
        while (verify_progress_advance(f, g))
            ;
    }
    for (uint32_t g = 0; g < v->nsteps; g++)
        if (f->at[g].done < f->nchunks)
            return bny_proof_fail(v,
                                  "rank %d waits for ever at step %u chunk %u, with %llu "
                                  "slots",
                                  f->at[g].rank, g - v->base[f->at[g].rank], f->at[g].done,
                                  (unsigned long long)f->slots);
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

            f->at[g].rank = r;
            if (s->peer < 0 || bny_step_is_recv(s))
                continue;
            f->at[g].lane = (uint32_t)((r * v->n + s->peer) * BNY_CHANNELS + s->chan);
            f->at[v->match[g]].lane = f->at[g].lane;
            l = &f->lanes[f->at[g].lane];
            if (l->last == NONE) {
                l->sender = g;
                l->receiver = v->match[g];
            } else {
                f->at[l->last].next = g;
                f->at[v->match[l->last]].next = v->match[g];
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
                        f->at[d + 1].first_waiter++;
                    else
                        f->waiters[--f->at[d + 1].first_waiter] = v->base[r] + i;
                }
            }
        if (pass == 0)
            for (uint32_t g = 0; g < v->nsteps; g++)
                f->at[g + 1].first_waiter += f->at[g].first_waiter;
    }
    /* The second pass left the start of g's waiters in the place of g + 1. */
    for (uint32_t g = 0; g < v->nsteps; g++)
        f->at[g].first_waiter = f->at[g + 1].first_waiter;
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
    f.at = calloc(steps, sizeof *f.at);
    f.waiters = malloc(ndeps * sizeof *f.waiters);
    f.queue = malloc(steps * sizeof *f.queue);
    if (f.lanes && f.at && f.waiters && f.queue) {
        for (size_t g = 0; g < steps; g++)
            f.at[g].lane = f.at[g].next = NONE;
        build_lanes(&f);
        build_waiters(&f);
        f.at[v->nsteps].first_waiter = (uint32_t)(ndeps - 1);
        e = simulate(&f);
    } else {
        e = bny_proof_no_memory(v);
    }
    free(f.lanes);
    free(f.at);
    free(f.waiters);
    free(f.queue);
    return e;
}
