/* SPDX-License-Identifier: BSD-3-Clause */
/* Programs: release, and the writer that completes them (writer.h). */
#include "collectives/program/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "collectives/program/writer.h"

void bny_program_free(struct bny_program *p)
{
    if (!p)
        return;
    free(p->present);
    free(p->weight_num);
    free(p->weight_den);
    free(p->owned_first);
    free(p->steps);
    free(p->deps);
    free(p->user_first);
    free(p->users);
    free(p->recv_first);
    free(p->recv_of);
    free(p);
}

void bny_writer_init(struct bny_writer *w, const char *schedule, enum bny_collective c,
                     int nranks, int rank, int root, uint32_t nblocks, int split)
{
    struct bny_program *p = calloc(1, sizeof *p);

    memset(w, 0, sizeof *w);
    w->p = p;
    w->failed = !p;
    if (!p)
        return;
    p->collective = c;
    p->rank = rank;
    p->nranks = nranks;
    p->root = root;
    snprintf(p->schedule, sizeof p->schedule, "%s", schedule);
    p->nblocks = nblocks;
    p->contiguous = split;
    if (!split)
        return;
    p->weight_num = malloc(nblocks * sizeof *p->weight_num);
    p->weight_den = malloc(nblocks * sizeof *p->weight_den);
    if (!p->weight_num || !p->weight_den) {
        w->failed = 1;
        return;
    }
    for (uint32_t b = 0; b < nblocks; b++) {
        p->weight_num[b] = 1;
        p->weight_den[b] = nblocks;
    }
}

void bny_writer_reserve(struct bny_writer *w, uint32_t steps)
{
    struct bny_step *room =
        w->failed || steps <= w->cap ? NULL : realloc(w->p->steps, steps * sizeof *room);

    if (!room) /* then they are found one by one */
        return;
    w->p->steps = room;
    w->cap = steps;
}

uint32_t bny_writer_add(struct bny_writer *w, const struct bny_step *step)
{
    struct bny_program *p = w->p;

    if (w->failed)
        return 0;
    if (p->nsteps == w->cap) {
        uint32_t cap = w->cap ? 2 * w->cap : 16;
        struct bny_step *steps = realloc(p->steps, cap * sizeof *steps);

        if (!steps) {
            w->failed = 1;
            return 0;
        }
        p->steps = steps;
        w->cap = cap;
    }
    p->steps[p->nsteps] = *step;
    p->uses_scratch |= step->src == BNY_SCRATCH || step->dst == BNY_SCRATCH;
    p->uses_scratch2 |= step->src == BNY_SCRATCH2 || step->dst == BNY_SCRATCH2;
    return p->nsteps++;
}

uint32_t bny_writer_step(struct bny_writer *w, enum bny_step_kind kind, int peer,
                         enum bny_space src, enum bny_space dst, uint32_t block, unsigned flags)
{
    struct bny_step step = {
        .kind = (uint8_t)kind,
        .src = (uint8_t)src,
        .dst = (uint8_t)dst,
        .flags = (uint8_t)flags,
        .code = kind == BNY_KEEP ? BNY_CODE_NONE : BNY_CODE_UP,
        .peer = peer,
        .block = block,
        .nblocks = 1,
        .from = UINT32_MAX,
    };

    return bny_writer_add(w, &step);
}

void bny_writer_after(struct bny_writer *w, uint32_t step, uint32_t on)
{
    uint32_t(*extra)[2];

    if (w->failed)
        return;
    extra = realloc(w->extra, (w->nextra + 1) * sizeof *extra);
    if (!extra) {
        w->failed = 1;
        return;
    }
    w->extra = extra;
    extra[w->nextra][0] = step;
    extra[w->nextra][1] = on;
    w->nextra++;
}

/* ---- dependencies ----
 * A cell is one block of one memory; IN and OUT are one memory, because a call may pass the
 * same pointer. For each cell: its last writer, and its readers since. A reader waits for the
 * writer. A writer waits for those readers, which themselves wait for the writer before; when
 * there is none, for that writer.
 */
#define NONE UINT32_MAX

struct reader {
    uint32_t step, next;
};

struct cells {
    uint32_t *writer;    /* [3 * nblocks] step or NONE */
    uint32_t *readers;   /* [3 * nblocks] head of a list in pool, or NONE */
    uint32_t *stamp;     /* [nsteps] last step that took this one as dependency, plus 1 */
    struct reader *pool; /* grows */
    uint32_t npool, pool_cap;
    uint32_t *deps; /* grows */
    uint32_t ndeps, deps_cap;
};

static int add_dep(struct cells *c, uint32_t step, uint32_t on)
{
    if (on == NONE || on == step || c->stamp[on] == step + 1)
        return 0;
    if (c->ndeps == c->deps_cap) {
        uint32_t cap = c->deps_cap ? 2 * c->deps_cap : 32;
        uint32_t *deps = realloc(c->deps, cap * sizeof *deps);

        if (!deps)
            return -1;
        c->deps = deps;
        c->deps_cap = cap;
    }
    c->stamp[on] = step + 1;
    c->deps[c->ndeps++] = on;
    return 0;
}

static int add_reader(struct cells *c, uint32_t cell, uint32_t step)
{
    if (c->npool == c->pool_cap) {
        uint32_t cap = c->pool_cap ? 2 * c->pool_cap : 64;
        struct reader *pool = realloc(c->pool, cap * sizeof *pool);

        if (!pool)
            return -1;
        c->pool = pool;
        c->pool_cap = cap;
    }
    c->pool[c->npool] = (struct reader){ step, c->readers[cell] };
    c->readers[cell] = c->npool++;
    return 0;
}

static uint32_t program_cell_of(uint8_t space, uint32_t block, uint32_t nblocks)
{
    uint32_t memory = space == BNY_SCRATCH ? 1 : space == BNY_SCRATCH2 ? 2 : 0;

    return memory * nblocks + block;
}

static int depend_on_memory(struct cells *c, const struct bny_program *p, uint32_t i)
{
    const struct bny_step *s = &p->steps[i];
    int failed = 0;

    for (uint32_t b = s->block; b < s->block + s->nblocks; b++) {
        if (s->src != BNY_NOWHERE) {
            uint32_t cell = program_cell_of(s->src, b, p->nblocks);

            failed |= add_dep(c, i, c->writer[cell]);
            failed |= add_reader(c, cell, i);
        }
        if (s->dst != BNY_NOWHERE) {
            uint32_t cell = program_cell_of(s->dst, b, p->nblocks), nreaders = 0;

            for (uint32_t r = c->readers[cell]; r != NONE; r = c->pool[r].next) {
                nreaders += c->pool[r].step != i;
                failed |= add_dep(c, i, c->pool[r].step);
            }
            if (!nreaders)
                failed |= add_dep(c, i, c->writer[cell]);
            c->writer[cell] = i;
            c->readers[cell] = NONE;
        }
        if (failed)
            return -1;
    }
    return 0;
}

/* Step i waits for step d through others, in blocks [low, end) all the way. skip: a direct
 * dependency not to look at. Deep only in chains of additions, wide only where several steps
 * read one cell. */
static int reaches(const struct bny_program *p, const uint32_t *deps, uint32_t i, uint32_t d,
                   uint32_t low, uint32_t end, int skip)
{
    const struct bny_step *s = &p->steps[i];

    for (uint32_t k = 0; k < s->ndeps; k++) {
        uint32_t e = deps[s->dep + k];
        const struct bny_step *t = &p->steps[e];

        if (e == d && !skip)
            return 1;
        if (e > d && t->block <= low && t->block + t->nblocks >= end &&
            reaches(p, deps, e, d, low, end, 0))
            return 1;
    }
    return 0;
}

/* Removes dependencies that others imply; they come from steps that read one memory and write
 * another. */
static void prune(struct cells *c, const struct bny_program *p, struct bny_step *s, uint32_t i)
{
    uint32_t k = 0;

    while (s->ndeps > 1 && k < s->ndeps) {
        uint32_t *dep = &c->deps[s->dep + k];
        const struct bny_step *d = &p->steps[*dep];
        uint32_t low = d->block > s->block ? d->block : s->block;
        uint32_t d_end = d->block + d->nblocks, s_end = s->block + s->nblocks;
        uint32_t end = d_end < s_end ? d_end : s_end;

        if (low < end && reaches(p, c->deps, i, *dep, low, end, 1))
            *dep = c->deps[s->dep + --s->ndeps];
        else
            k++;
    }
    c->ndeps = s->dep + s->ndeps;
}

static int set_deps(struct bny_writer *w, struct cells *c)
{
    struct bny_program *p = w->p;

    for (uint32_t i = 0; i < p->nsteps; i++) {
        struct bny_step *s = &p->steps[i];

        s->dep = c->ndeps;
        if (depend_on_memory(c, p, i))
            return -1;
        s->ndeps = c->ndeps - s->dep;
        prune(c, p, s, i);
        for (uint32_t x = 0; x < w->nextra; x++)
            if (w->extra[x][0] == i && add_dep(c, i, w->extra[x][1]))
                return -1;
        s->ndeps = c->ndeps - s->dep;
    }
    p->deps = c->deps;
    p->ndeps = c->ndeps;
    c->deps = NULL;
    return 0;
}

static int derive_deps(struct bny_writer *w)
{
    struct bny_program *p = w->p;
    size_t ncells = (size_t)3 * p->nblocks + 1;
    struct cells c = {
        .writer = malloc(ncells * sizeof *c.writer),
        .readers = malloc(ncells * sizeof *c.readers),
        .stamp = calloc(p->nsteps + 1, sizeof *c.stamp),
    };
    int e = -1;

    if (c.writer && c.readers && c.stamp) {
        memset(c.writer, 0xff, ncells * sizeof *c.writer);
        memset(c.readers, 0xff, ncells * sizeof *c.readers);
        e = set_deps(w, &c);
    }
    free(c.writer);
    free(c.readers);
    free(c.stamp);
    free(c.pool);
    free(c.deps);
    return e;
}

/* ---- ordinals and the receive index ---- */

static int is_recv(const struct bny_step *s)
{
    return s->kind == BNY_RECV_ADD || s->kind == BNY_RECV_COPY;
}

static int number_messages(struct bny_program *p)
{
    size_t n = (size_t)p->nranks;
    uint32_t *sent = calloc(n, sizeof *sent), *received = calloc(n, sizeof *received);
    int full = -1;

    p->recv_first = calloc(n + 1, sizeof *p->recv_first);
    p->recv_of = calloc(p->nsteps + 1, sizeof *p->recv_of);
    if (!sent || !received || !p->recv_first || !p->recv_of) {
        free(sent);
        free(received);
        return bny_fail(BANYAN_ENOMEM, "no memory for a collective's program");
    }
    for (uint32_t i = 0; i < p->nsteps; i++) {
        struct bny_step *s = &p->steps[i];

        if (s->peer < 0)
            continue;
        s->ordinal = is_recv(s) ? received[s->peer]++ : sent[s->peer]++;
        if (s->ordinal >= BNY_MESSAGES_MAX)
            full = s->peer;
    }
    for (size_t r = 0; r < n; r++)
        p->recv_first[r + 1] = p->recv_first[r] + received[r];
    for (uint32_t i = 0; i < p->nsteps; i++)
        if (is_recv(&p->steps[i]))
            p->recv_of[p->recv_first[p->steps[i].peer] + p->steps[i].ordinal] = i;
    free(sent);
    free(received);
    return full < 0 ? 0
                    : bny_fail(BANYAN_ENOTSUP,
                               "%s has more than %u messages between ranks %d and %d, which "
                               "their headers cannot number; use a schedule of fewer trees",
                               p->schedule, BNY_MESSAGES_MAX, p->rank, full);
}

/* The dependencies the other way round. */
static int index_users(struct bny_program *p)
{
    if (!p->ndeps)
        return 0;
    p->user_first = calloc((size_t)p->nsteps + 2, sizeof *p->user_first);
    p->users = malloc(p->ndeps * sizeof *p->users);
    if (!p->user_first || !p->users)
        return -1;
    for (uint32_t i = 0; i < p->nsteps;
         i++) /* counts, two places up: the fill moves them down */
        for (uint32_t k = 0; k < p->steps[i].ndeps; k++)
            p->user_first[p->deps[p->steps[i].dep + k] + 2]++;
    for (uint32_t i = 2; i <= p->nsteps; i++)
        p->user_first[i] += p->user_first[i - 1];
    for (uint32_t i = 0; i < p->nsteps; i++)
        for (uint32_t k = 0; k < p->steps[i].ndeps; k++)
            p->users[p->user_first[p->deps[p->steps[i].dep + k] + 1]++] = i;
    return 0;
}

int bny_writer_finish(struct bny_writer *w, struct bny_program **out)
{
    struct bny_program *p = w->p;
    int rc = 0;

    *out = NULL;
    if (!w->failed && (derive_deps(w) || index_users(p)))
        w->failed = 1;
    if (!w->failed)
        rc = number_messages(p);
    free(w->extra);
    w->extra = NULL;
    w->p = NULL;
    if (w->failed) {
        bny_program_free(p);
        return bny_fail(BANYAN_ENOMEM, "no memory for a collective's program");
    }
    if (rc) {
        bny_program_free(p);
        return rc;
    }
    *out = p;
    return 0;
}
