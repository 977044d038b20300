/* SPDX-License-Identifier: BSD-3-Clause */
/* The family of heights and loads (pareto.h). */
#include "topo/pareto.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "topo/build_graph.h"

int bny_forest_height(const struct bny_forest *f, int down)
{
    int most = 0;

    for (int t = 0; t < f->ntrees; t++) {
        const struct bny_tree *tree = &f->trees[t];
        const int *parent = down && tree->down_parent ? tree->down_parent : tree->parent;

        for (int v = 0; v < f->nranks; v++) {
            int depth = 0;

            for (int u = v; parent[u] >= 0; u = parent[u])
                depth++;
            most = depth > most ? depth : most;
        }
    }
    return most;
}

static int64_t slowest(const struct bny_forest *f, const struct bny_graph *g)
{
    int64_t least = INT64_MAX;

    for (int t = 0; t < f->ntrees; t++)
        for (int v = 0; v < f->nranks; v++) {
            const struct bny_route *r = &f->trees[t].up[v];

            for (int i = 0; i < r->nlinks; i++)
                if (g->links[r->links[i]].cap < least)
                    least = g->links[r->links[i]].cap;
        }
    return least;
}

double bny_forest_seconds(const struct bny_forest *f, const struct bny_graph *g,
                          enum bny_forest_use use, double bytes, double chunk_bytes,
                          double alpha_s)
{
    double share = 0, hops = 0, chunk, fill;

    if (f->nranks == 1)
        return 0;
    for (int t = 0; t < f->ntrees; t++) {
        double w = (double)f->trees[t].weight_num / f->trees[t].weight_den;

        share = w > share ? w : share;
    }
    chunk = share * bytes < chunk_bytes ? share * bytes : chunk_bytes;
    fill = chunk / ((double)slowest(f, g) * g->unit_Bps);
    for (int phase = use == BNY_FOREST_ALLREDUCE ? 0 : 1; phase < 2; phase++) {
        int h = bny_forest_height(f, phase);

        hops += h * alpha_s + (h - 1) * fill;
    }
    return hops + bytes * bny_ratio_value(f->claim.time) / g->unit_Bps;
}

static int heights(const struct bny_forest *f)
{
    return bny_forest_height(f, 0) + bny_forest_height(f, 1);
}

/* Takes f; frees it if a member is as low and as fast, frees the last member if f is better
 * than it. */
static void pareto_add(struct bny_pareto *p, struct bny_forest *f)
{
    for (int i = 0; i < p->n; i++)
        if (heights(p->forest[i]) <= heights(f) &&
            bny_ratio_cmp(p->forest[i]->claim.time, f->claim.time) <= 0) {
            bny_forest_free(f);
            return;
        }
    while (p->n && bny_ratio_cmp(f->claim.time, p->forest[p->n - 1]->claim.time) <= 0 &&
           heights(f) <= heights(p->forest[p->n - 1]))
        bny_forest_free(p->forest[--p->n]);
    if (p->n == BNY_PARETO_MAX)
        bny_forest_free(f);
    else
        p->forest[p->n++] = f;
}

int bny_pareto_build(struct bny_pareto *out, const struct bny_graph *g, enum bny_forest_use use,
                     int root, int seconds)
{
    uint64_t deadline = bny_deadline_in(seconds);
    const struct bny_graph_builder_ops *best =
        use == BNY_FOREST_ALLREDUCE ? &bny_build_joint : &bny_build_packed;
    struct bny_build_opts opts = { 0 };
    struct bny_forest *f;
    int e;

    memset(out, 0, sizeof *out);
    e = best->build(&f, g, use, root, NULL);
    if (e)
        return e;
    opts.height_cap = (int)f->nsteps;
    pareto_add(out, f);
    while (!e && opts.height_cap > 1 && !bny_deadline_passed(deadline)) {
        opts.height_cap = opts.height_cap > 4 ? opts.height_cap * 3 / 4 : opts.height_cap - 1;
        e = bny_build_packed.build(&f, g, use, root, &opts);
        if (e)
            break;
        if ((int)f->nsteps < opts.height_cap)
            opts.height_cap = (int)f->nsteps;
        if (use == BNY_FOREST_ALLREDUCE)
            e = bny_forest_certify(f, g, use, -1, 1);
        if (e)
            bny_forest_free(f);
        else
            pareto_add(out, f);
    }
    if (e == -BANYAN_ENOTSUP)
        return 0; /* no lower trees */
    if (e)
        bny_pareto_free(out);
    return e;
}

void bny_pareto_free(struct bny_pareto *p)
{
    while (p->n)
        bny_forest_free(p->forest[--p->n]);
}

const struct bny_forest *bny_pareto_choose(const struct bny_pareto *p,
                                           const struct bny_graph *g, enum bny_forest_use use,
                                           double bytes, double chunk_bytes, double alpha_s)
{
    const struct bny_forest *best = NULL;
    double least = 0;

    for (int i = 0; i < p->n; i++) {
        double s = bny_forest_seconds(p->forest[i], g, use, bytes, chunk_bytes, alpha_s);

        if (!best || s < least) {
            least = s;
            best = p->forest[i];
        }
    }
    return best;
}
