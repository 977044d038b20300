/* SPDX-License-Identifier: BSD-3-Clause */
/* The final step for forests made for a graph (build_graph.h). */
#include "topo/build_graph.h"

#include <stdlib.h>

#include "base/err.h"

/* Missing routes of one direction: the router's first path. */
static int route_missing(struct bny_forest *f, struct bny_router *router, int down)
{
    struct bny_ways ways = { 0 };
    int e = 0;

    for (int t = 0; t < f->ntrees && !e; t++) {
        struct bny_tree *tree = &f->trees[t];
        struct bny_route *routes = down ? tree->down : tree->up;

        if (routes)
            continue;
        routes = calloc((size_t)f->nranks, sizeof *routes);
        if (down)
            tree->down = routes;
        else
            tree->up = routes;
        for (int v = 0; v < f->nranks && routes && !e; v++) {
            int p = down && tree->down_parent ? tree->down_parent[v] : tree->parent[v];

            if (p < 0)
                continue;
            e = bny_router_ways(router, down ? p : v, down ? v : p, &ways);
            if (!e)
                e = bny_route_set(&routes[v], ways.links, ways.first[1]);
        }
        e = routes ? e : -BANYAN_ENOMEM;
    }
    free(ways.links);
    return e;
}

int bny_forest_route(struct bny_forest *f, const struct bny_graph *g)
{
    struct bny_router *router = bny_router_create(g, BNY_ROUTE_AUTO, 0);
    int e = router ? route_missing(f, router, 0) : -BANYAN_ENOMEM;

    if (!e)
        e = route_missing(f, router, 1);
    bny_router_destroy(router);
    return e == -BANYAN_ENOMEM ? bny_forest_no_memory(f->name, f->nranks) : e;
}

int bny_graph_forest_finish(struct bny_forest **out, struct bny_forest *f,
                            const struct bny_graph *g, enum bny_forest_use use, int root)
{
    int e = bny_forest_route(f, g);

    if (!e)
        e = bny_forest_finish(out, f);
    if (!e)
        e = bny_forest_certify(f, g, use, root, 0);
    if (e == -BANYAN_ENOTSUP) /* numbers beyond 64 bits: a plan without a claim */
        e = 0;
    if (e) {
        bny_forest_free(f);
        *out = NULL;
    }
    return e;
}
