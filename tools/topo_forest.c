/* SPDX-License-Identifier: BSD-3-Clause */
/* Forests by name or from files, and what they load on links, for the subcommands of banyan_topo. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tools/topo.h"
#include "topo/bound.h"
#include "topo/plan.h"
#include "topo/route.h"

static int from_file(struct bny_forest **f, const struct bny_graph *g, const struct topo_opts *o)
{
    struct bny_plan_file plan;
    int e = bny_plan_load(&plan, o->schedule);

    if (!e)
        e = bny_plan_fits(&plan, g, o->schedule);
    if (!e) {
        *f = plan.forest;
        plan.forest = NULL;
    }
    bny_plan_close(&plan);
    return e;
}

int topo_forest(struct bny_forest **f, const struct bny_graph *g, const struct topo_opts *o)
{
    const char *name = o->schedule && strcmp(o->schedule, "auto") != 0 ? o->schedule : "multitree";
    const struct bny_graph_builder_ops *on_graph = bny_graph_builder_find(name);
    const struct bny_builder_ops *core = bny_builder_find(name);
    struct bny_build_opts opts = { .k = o->trees, .height_cap = o->height, .seconds = o->seconds };
    int root = o->use == BNY_FOREST_ROOTED ? o->root : -1, e;

    *f = NULL;
    if (on_graph)
        e = on_graph->build(f, g, o->use, root, &opts);
    else if (core)
        e = core->build(f, g->nranks, o->use, root);
    else
        e = from_file(f, g, o);
    if (!e)
        e = bny_forest_route(*f, g);
    if (e) {
        bny_forest_free(*f);
        *f = NULL;
    }
    return e == -BANYAN_ENOTSUP ? bny_fail(BANYAN_ENOTSUP, "%s has no forest for this use of %s", name, g->name) : e;
}

static void add(double *load, const struct bny_route *r, double share)
{
    for (int i = 0; i < r->nlinks; i++)
        load[r->links[i]] += share;
}

int topo_loads(double *load, const struct bny_forest *f, const struct bny_graph *g, enum bny_forest_use use)
{
    double *down = calloc((size_t)g->nlinks + 1, sizeof *down);

    if (!down)
        return bny_fail(BANYAN_ENOMEM, "no memory for the loads of %d links", g->nlinks);
    memset(load, 0, (size_t)g->nlinks * sizeof *load);
    for (int t = 0; t < f->ntrees; t++)
        for (int v = 0; v < f->nranks; v++) {
            double share = (double)f->trees[t].weight_num / f->trees[t].weight_den;

            add(load, &f->trees[t].up[v], share);
            add(down, &f->trees[t].down[v], share);
        }
    for (int l = 0; l < g->nlinks; l++)
        load[l] = use == BNY_FOREST_ALLREDUCE ? load[l] + down[l] : load[l] > down[l] ? load[l] : down[l];
    free(down);
    return 0;
}
