/* SPDX-License-Identifier: BSD-3-Clause */
/* Forests by name or from files, and what they load on links, for the subcommands of
 * banyan_topo. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "collectives/program/msccl.h"
#include "collectives/program/program.h"
#include "tools/topo.h"
#include "topo/bound.h"
#include "topo/plan_file.h"
#include "topo/route.h"

int topo_plan_load(struct bny_plan_file *plan, const char *name)
{
    if (access(name, F_OK) != 0) {
        *plan = (struct bny_plan_file){ 0 };
        return bny_fail(BANYAN_EINVAL,
                        "\"%.200s\" is neither a builder such as packed, multitree or ring, "
                        "nor a plan's file",
                        name);
    }
    if (topo_is_xml(name)) {
        *plan = (struct bny_plan_file){ 0 };
        return bny_fail(BANYAN_EINVAL,
                        "an algorithm in MSCCL XML has no trees: verify and draw "
                        "read it");
    }
    return bny_plan_load(plan, name);
}

static int from_file(struct bny_forest **f, const struct bny_graph *g,
                     const struct topo_opts *o)
{
    struct bny_plan_file plan;
    int e = topo_plan_load(&plan, o->schedule);

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
    const char *own = o->joint && o->use == BNY_FOREST_ALLREDUCE ? "joint" : "packed";
    const char *name = o->schedule && strcmp(o->schedule, "auto") != 0 ? o->schedule : own;
    const struct bny_graph_builder_ops *on_graph = bny_graph_builder_find(name);
    const struct bny_builder_ops *core = bny_builder_find(name);
    struct bny_build_opts opts = { .k = o->trees,
                                   .height_cap = o->height,
                                   .seconds = o->seconds };
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
    return e == -BANYAN_ENOTSUP
               ? bny_fail(BANYAN_ENOTSUP, "%s has no forest for this use of %s", name, g->name)
               : e;
}

static void topo_forest_add(double *load, const struct bny_route *r, double share)
{
    for (int i = 0; i < r->nlinks; i++)
        load[r->links[i]] += share;
}

int topo_loads(double *load, const struct bny_forest *f, const struct bny_graph *g,
               enum bny_forest_use use)
{
    double *down = calloc((size_t)g->nlinks + 1, sizeof *down);

    if (!down)
        return bny_fail(BANYAN_ENOMEM, "no memory for the loads of %d links", g->nlinks);
    memset(load, 0, (size_t)g->nlinks * sizeof *load);
    for (int t = 0; t < f->ntrees; t++)
        for (int v = 0; v < f->nranks; v++) {
            double share = (double)f->trees[t].weight_num / f->trees[t].weight_den;

            topo_forest_add(load, &f->trees[t].up[v], share);
            topo_forest_add(down, &f->trees[t].down[v], share);
        }
    for (int l = 0; l < g->nlinks; l++)
        load[l] = use == BNY_FOREST_ALLREDUCE ? load[l] + down[l]
                  : load[l] > down[l]         ? load[l]
                                              : down[l];
    free(down);
    return 0;
}

int topo_is_xml(const char *path)
{
    size_t n = strlen(path);

    return n > 4 && !strcmp(path + n - 4, ".xml");
}

/* Messages of an imported algorithm take the router's ways. */
int topo_program_loads(double *load, const struct bny_program_set *set,
                       const struct bny_graph *g)
{
    struct bny_router *router = bny_router_create(g, BNY_ROUTE_AUTO, 0);
    struct bny_ways ways = { 0 };
    int e = router ? 0 : bny_fail(BANYAN_ENOMEM, "no memory for routes");

    if (!e && g->nranks != set->n)
        e = bny_fail(BANYAN_EINVAL, "it is for %d ranks, %s has %d", set->n, g->name,
                     g->nranks);

    for (int r = 0; r < set->n && !e; r++)
        for (uint32_t i = 0; i < set->p[r]->nsteps && !e; i++) {
            const struct bny_program *p = set->p[r];
            const struct bny_step *s = &p->steps[i];
            double share = 0;

            if (s->kind != BNY_SEND && s->kind != BNY_FORWARD)
                continue;
            for (uint32_t b = s->block; b < s->block + s->nblocks; b++)
                share += p->weight_num ? (double)p->weight_num[b] / p->weight_den[b]
                                       : 1.0 / p->nblocks;
            e = bny_router_ways(router, r, s->peer, &ways);
            for (int w = 0; w < ways.nparts && !e; w++)
                for (int l = ways.first[w]; l < ways.first[w + 1]; l++)
                    load[ways.links[l]] += share * ways.share[w];
        }
    free(ways.links);
    bny_router_destroy(router);
    return e;
}

static int prove(int *slots, const struct bny_forest *f, enum bny_collective c, int most)
{
    struct bny_program_set set = { .collective = c, .n = f->nranks };
    char why[256];
    int e;

    set.p = calloc((size_t)set.n, sizeof *set.p);
    e = set.p ? bny_compile_all(set.p, f, c, 1)
              : bny_fail(BANYAN_ENOMEM, "no memory for programs");
    if (!e && bny_program_set_prove(&set, most, why, sizeof why) != 0)
        e = bny_fail(BANYAN_EINVAL, "its programs are wrong: %s", why);
    *slots = !e && set.slots > *slots ? set.slots : *slots;
    bny_program_set_free(&set);
    return e;
}

int topo_prove(int *slots, const struct bny_forest *f, enum bny_forest_use use, int most)
{
    static const enum bny_collective both[3][2] = { { BNY_ALLREDUCE, BNY_ALLREDUCE },
                                                    { BNY_REDUCE_SCATTER, BNY_ALLGATHER },
                                                    { BNY_REDUCE, BNY_BROADCAST } };
    int u = use == BNY_FOREST_ALLREDUCE ? 0 : use == BNY_FOREST_SCATTERED ? 1 : 2, e = 0;

    *slots = -1;
    if (f->nranks > TOPO_PROVE_RANKS_MAX)
        return 0;
    for (int i = 0; i < (u ? 2 : 1) && !e; i++)
        e = prove(slots, f, both[u][i], most);
    return e;
}
