/* SPDX-License-Identifier: BSD-3-Clause */
/* Jobs of the simulator: transfers with dependencies, and the conversion of a forest to a
 * job. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/simulate.h"

void bny_sim_job_init(struct bny_sim_job *job, int nranks)
{
    memset(job, 0, sizeof *job);
    job->nranks = nranks;
}

void bny_sim_job_free(struct bny_sim_job *job)
{
    free(job->transfers);
    free(job->deps);
    memset(job, 0, sizeof *job);
}

/* Ensures room for one more. */
static int sim_job_grow(void **array, uint32_t *cap, uint32_t used, size_t size)
{
    uint32_t more = *cap ? 2 * *cap : 256;
    void *p;

    if (used < *cap)
        return 0;
    p = more > *cap ? reallocarray(*array, more, size) : NULL;
    if (!p)
        return -1;
    *array = p;
    *cap = more;
    return 0;
}

uint32_t bny_sim_add(struct bny_sim_job *job, const struct bny_transfer *t)
{
    if (job->failed ||
        sim_job_grow((void **)&job->transfers, &job->cap, job->n, sizeof *job->transfers)) {
        job->failed = 1;
        return 0;
    }
    job->transfers[job->n] = *t;
    return job->n++;
}

void bny_sim_after(struct bny_sim_job *job, uint32_t later, uint32_t earlier)
{
    if (job->failed ||
        sim_job_grow((void **)&job->deps, &job->deps_cap, job->ndeps, sizeof *job->deps)) {
        job->failed = 1;
        return;
    }
    job->deps[job->ndeps][0] = later;
    job->deps[job->ndeps++][1] = earlier;
}

/* ---- forests ------------------------------------------------------------------------------
 */

struct edge { /* one tree's edge in one phase */
    uint32_t step;
    int from, to;
    uint32_t tree, child;
    int spreads;
};

struct plan {
    struct bny_sim_job *job;
    const struct bny_forest *f;
    const struct bny_sim_opts *opts;
    unsigned phases;
    struct edge *edges;
    size_t nedges;
    uint32_t *of[2]; /* [ntrees * nranks] the transfer of an edge, by phase and child */
    uint32_t *sum;   /* [ntrees] the root has everything; only if both phases run */
};

static const int *spread_parents(const struct bny_tree *tree)
{
    return tree->down_parent ? tree->down_parent : tree->parent;
}

static uint32_t spread_step(const struct bny_forest *f, const struct bny_tree *tree, int v)
{
    return tree->down_step ? tree->down_step[v] : f->nsteps - 1 - tree->step[v];
}

static void list_edges(struct plan *p)
{
    const struct bny_forest *f = p->f;
    uint32_t first_spread = p->phases & BNY_SIM_REDUCE ? f->nsteps : 0;

    for (int t = 0; t < f->ntrees; t++) {
        const struct bny_tree *tree = &f->trees[t];

        for (int v = 0; v < f->nranks; v++) {
            struct edge e = { .tree = (uint32_t)t, .child = (uint32_t)v };

            if (v == tree->root)
                continue;
            if (p->phases & BNY_SIM_REDUCE) {
                e.step = tree->step[v];
                e.from = v;
                e.to = tree->parent[v];
                p->edges[p->nedges++] = e;
            }
            if (p->phases & BNY_SIM_SPREAD) {
                e.step = first_spread + spread_step(f, tree, v);
                e.from = spread_parents(tree)[v];
                e.to = v;
                e.spreads = 1;
                p->edges[p->nedges++] = e;
            }
        }
    }
}

#define ORDER(a, b)                                                                            \
    if ((a) != (b))                                                                            \
    return (a) < (b) ? -1 : 1

static int by_message(const void *x, const void *y)
{
    const struct edge *a = x, *b = y;

    ORDER(a->step, b->step);
    ORDER(a->from, b->from);
    ORDER(a->to, b->to);
    ORDER(a->spreads, b->spreads);
    ORDER(a->tree, b->tree);
    return 0;
}

static const struct bny_route *route_of(const struct plan *p, const struct edge *e)
{
    const struct bny_tree *tree = &p->f->trees[e->tree];
    const struct bny_route *routes = e->spreads ? tree->down : tree->up;

    return routes && p->opts->routing == BNY_ROUTE_PLAN ? &routes[e->child] : NULL;
}

static int same_way(const struct bny_route *a, const struct bny_route *b)
{
    if (!a || !b)
        return a == b;
    return a->nlinks == b->nlinks &&
           !memcmp(a->links, b->links, (size_t)a->nlinks * sizeof *a->links);
}

static int joins(const struct plan *p, const struct edge *a, const struct edge *b, double bytes)
{
    return !p->opts->separate && (p->opts->joined <= 0 || bytes <= p->opts->joined) &&
           a->step == b->step && a->from == b->from && a->to == b->to &&
           a->spreads == b->spreads && same_way(route_of(p, a), route_of(p, b));
}

static void add_transfers(struct plan *p)
{
    size_t n = (size_t)p->f->nranks;

    qsort(p->edges, p->nedges, sizeof *p->edges, by_message);
    for (size_t i = 0; i < p->nedges; i++) {
        const struct edge *e = &p->edges[i];
        const struct bny_tree *tree = &p->f->trees[e->tree];
        double bytes = p->opts->bytes * tree->weight_num / tree->weight_den;
        uint32_t id;

        if (i && !p->job->failed &&
            joins(p, &p->edges[i - 1], e, p->job->transfers[p->job->n - 1].bytes + bytes)) {
            id = p->job->n - 1;
            p->job->transfers[id].bytes += bytes;
        } else {
            struct bny_transfer t = { .from = e->from,
                                      .to = e->to,
                                      .step = e->step,
                                      .adds = !e->spreads,
                                      .channel = (int)(tree->pipeline % 4),
                                      .bytes = bytes,
                                      .route = route_of(p, e) };

            id = bny_sim_add(p->job, &t);
        }
        p->of[e->spreads][e->tree * n + e->child] = id;
    }
}

/* A transfer that carries several trees waits for all of them. */
static void add_deps(struct plan *p)
{
    const struct bny_forest *f = p->f;
    int both = p->phases == (BNY_SIM_REDUCE | BNY_SIM_SPREAD);

    for (int t = 0; t < f->ntrees; t++) {
        const struct bny_tree *tree = &f->trees[t];
        size_t row = (size_t)t * (size_t)f->nranks;
        struct bny_transfer sum = { .from = tree->root,
                                    .to = tree->root,
                                    .step = f->nsteps - 1 };

        if (both)
            p->sum[t] = bny_sim_add(p->job, &sum);
        for (int v = 0; v < f->nranks; v++) {
            int up = tree->parent[v], down = spread_parents(tree)[v];

            if (v == tree->root)
                continue;
            if (p->phases & BNY_SIM_REDUCE && up != tree->root)
                bny_sim_after(p->job, p->of[0][row + (size_t)up], p->of[0][row + (size_t)v]);
            else if (both)
                bny_sim_after(p->job, p->sum[t], p->of[0][row + (size_t)v]);
            if (p->phases & BNY_SIM_SPREAD && down != tree->root)
                bny_sim_after(p->job, p->of[1][row + (size_t)v], p->of[1][row + (size_t)down]);
            else if (both)
                bny_sim_after(p->job, p->of[1][row + (size_t)v], p->sum[t]);
        }
    }
}

int bny_sim_job_forest(struct bny_sim_job *job, const struct bny_forest *f, unsigned phases,
                       const struct bny_sim_opts *opts)
{
    size_t cells = (size_t)f->ntrees * (size_t)f->nranks;
    struct plan p = { .job = job, .f = f, .opts = opts, .phases = phases };

    if (f->nranks != job->nranks)
        return bny_fail(BANYAN_EINVAL, "forest %s is for %d ranks, the graph has %d", f->name,
                        f->nranks, job->nranks);
    p.edges = malloc(2 * cells * sizeof *p.edges);
    p.of[0] = malloc(cells * sizeof *p.of[0]);
    p.of[1] = malloc(cells * sizeof *p.of[1]);
    p.sum = malloc((size_t)f->ntrees * sizeof *p.sum);
    if (p.edges && p.of[0] && p.of[1] && p.sum && f->nsteps) {
        list_edges(&p);
        add_transfers(&p);
        if (!job->failed)
            add_deps(&p);
    } else {
        job->failed |= f->nsteps > 0;
    }
    free(p.edges);
    free(p.of[0]);
    free(p.of[1]);
    free(p.sum);
    return job->failed ? bny_fail(BANYAN_ENOMEM, "no memory to simulate forest %s", f->name)
                       : 0;
}

int bny_sim_forest(struct bny_sim_result *out, const struct bny_graph *g,
                   const struct bny_forest *f, unsigned phases, const struct bny_sim_opts *opts)
{
    struct bny_sim_job job;
    int e;

    memset(out, 0, sizeof *out);
    bny_sim_job_init(&job, g->nranks);
    e = bny_sim_job_forest(&job, f, phases, opts);
    if (!e)
        e = bny_sim_run(out, g, &job, opts);
    if (!e && f->claim.bound.den)
        out->bound_s = bny_ratio_value(f->claim.bound) * opts->bytes / g->unit_Bps;
    bny_sim_job_free(&job);
    return e;
}

int bny_sim_forest_closed(struct bny_sim_closed *out, const struct bny_graph *g,
                          const struct bny_forest *f, unsigned phases,
                          const struct bny_sim_opts *opts)
{
    struct bny_sim_job job;
    int e;

    bny_sim_job_init(&job, g->nranks);
    e = bny_sim_job_forest(&job, f, phases, opts);
    if (!e)
        e = bny_sim_run_closed(out, g, &job, opts);
    bny_sim_job_free(&job);
    return e;
}
