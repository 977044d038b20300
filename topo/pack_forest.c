/* SPDX-License-Identifier: BSD-3-Clause */
/* From a graph to packed trees, and from packed trees to a forest (pack.h). */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/build.h"
#include "topo/pack.h"
#include "topo/route.h"
#include "topo/split.h"

int bny_pack_graph(struct bny_pack *p, const struct bny_graph *g, const int64_t *cap,
                   const int64_t *need, int reversed, enum bny_pack_how how)
{
    int e = bny_pack_init(p, g->nranks);

    if (e)
        return e;
    memcpy(p->need, need, (size_t)g->nranks * sizeof *need);
    e = bny_split(p, g, cap, reversed, how == BNY_PACK_QUICK);
    if (!e)
        e = bny_pack_levels(p);
    return e == -BANYAN_ENOTSUP && p->nedges && how == BNY_PACK_ANY ? bny_pack_exact(p) : e;
}

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;

        a = b;
        b = r;
    }
    return a;
}

static int64_t all_units(const struct bny_pack *p)
{
    int64_t sum = 0;

    for (int r = 0; r < p->n; r++)
        sum += p->need[r];
    return sum;
}

/* One direction of a tree: parents, routes, depths. */
static int pack_forest_fill(const struct bny_pack *p, const struct bny_pack_tree *from,
                            int *parent, uint32_t *depth, struct bny_route *route,
                            int backwards)
{
    for (int v = 0; v < p->n; v++) {
        const struct bny_pack_edge *e = from->edge[v] < 0 ? NULL : &p->edges[from->edge[v]];

        parent[v] = e ? e->from : -1;
        depth[v] = UINT32_MAX;
        if (!e)
            continue;
        if (bny_route_set(&route[v], e->links, e->nlinks))
            return -BANYAN_ENOMEM;
        for (int i = 0; backwards && i < e->nlinks / 2; i++) {
            int l = route[v].links[i];

            route[v].links[i] = route[v].links[e->nlinks - 1 - i];
            route[v].links[e->nlinks - 1 - i] = l;
        }
    }
    depth[from->root] = 0;
    for (int v = 0; v < p->n; v++) {
        int top = v, way = 0;

        for (; depth[top] == UINT32_MAX; way++)
            top = parent[top];
        for (int u = v; depth[u] == UINT32_MAX; u = parent[u])
            depth[u] = depth[top] + (uint32_t)way--;
    }
    return 0;
}

static int fill_tree(struct bny_tree *t, const struct bny_graph *g, const struct bny_pack *down,
                     const struct bny_pack_tree *d, const struct bny_pack *up,
                     const struct bny_pack_tree *u)
{
    size_t n = (size_t)g->nranks;
    int e;

    t->root = d->root;
    t->up = calloc(n, sizeof *t->up);
    t->down = calloc(n, sizeof *t->down);
    if (up) {
        t->down_parent = malloc(n * sizeof *t->down_parent);
        t->down_step = malloc(n * sizeof *t->down_step);
    }
    if (!t->up || !t->down || (up && (!t->down_parent || !t->down_step)))
        return -BANYAN_ENOMEM;
    e = up ? pack_forest_fill(down, d, t->down_parent, t->down_step, t->down, 0)
           : pack_forest_fill(down, d, t->parent, t->step, t->down, 0);
    if (!e && up)
        e = pack_forest_fill(up, u, t->parent, t->step, t->up, 1);
    for (int v = 0; v < g->nranks && !e && !up; v++)
        if (t->parent[v] >= 0) {
            e = bny_route_set(&t->up[v], t->down[v].links, t->down[v].nlinks);
            if (!e)
                bny_route_reverse(&t->up[v], g);
        }
    return e;
}

/* Converts depths to steps: towards the root the last step is the root's, away from it the
 * first. */
static void set_steps(struct bny_forest *f)
{
    uint32_t most = 0;

    for (int t = 0; t < f->ntrees; t++)
        for (int v = 0; v < f->nranks; v++) {
            const struct bny_tree *tree = &f->trees[t];

            most = tree->step[v] > most ? tree->step[v] : most;
            if (tree->down_step && tree->down_step[v] > most)
                most = tree->down_step[v];
        }
    for (int t = 0; t < f->ntrees; t++)
        for (int v = 0; v < f->nranks; v++) {
            struct bny_tree *tree = &f->trees[t];

            if (v == tree->root) {
                tree->step[v] = 0;
                continue;
            }
            tree->step[v] = most - tree->step[v];
            if (tree->down_step)
                tree->down_step[v]--;
        }
}

static int next_of(const struct bny_pack *p, int root, int t)
{
    while (t < p->ntrees && p->trees[t].root != root)
        t++;
    return t;
}

/* Visits every piece of every root: tree of down, tree of up, units of 1/unit. f NULL: counts
 * only. */
static int64_t pieces(struct bny_forest *f, const struct bny_graph *g,
                      const struct bny_pack *down, const struct bny_pack *up, int64_t unit,
                      int *error)
{
    int64_t of_down = unit / all_units(down), of_up = up ? unit / all_units(up) : 0, n = 0;

    for (int r = 0; r < g->nranks && !*error; r++) {
        int d = next_of(down, r, 0), u = up ? next_of(up, r, 0) : 0;
        int64_t left_d = 0, left_u = 0;

        while (d < down->ntrees && (!up || u < up->ntrees) && !*error) {
            int64_t w;

            left_d = left_d ? left_d : down->trees[d].units * of_down;
            left_u = !up ? left_d : left_u ? left_u : up->trees[u].units * of_up;
            w = left_d < left_u ? left_d : left_u;
            if (f) {
                struct bny_tree *t = &f->trees[n];
                int64_t common = gcd(w, unit);

                t->weight_num = (uint32_t)(w / common);
                t->weight_den = (uint32_t)(unit / common);
                if (unit / common > UINT32_MAX)
                    *error = bny_fail(BANYAN_ENOTSUP, "the weights of %s do not fit in 32 bits",
                                      f->name);
                else if (fill_tree(t, g, down, &down->trees[d], up, up ? &up->trees[u] : NULL))
                    *error = bny_forest_no_memory(f->name, f->nranks);
            }
            n++;
            left_d -= w;
            left_u = up ? left_u - w : 0;
            if (!left_d)
                d = next_of(down, r, d + 1);
            if (up && !left_u)
                u = next_of(up, r, u + 1);
        }
    }
    return n;
}

int bny_pack_forest(struct bny_forest **out, const char *name, const struct bny_graph *g,
                    const struct bny_pack *down, const struct bny_pack *up)
{
    int64_t a = all_units(down), b = up ? all_units(up) : a, unit, n;
    struct bny_forest *f;
    int e = 0;

    *out = NULL;
    if (__builtin_mul_overflow(a / gcd(a, b), b, &unit) || unit > INT64_C(1) << 50)
        return bny_fail(BANYAN_ENOTSUP, "the weights of %s on %s have no common denominator",
                        name, g->name);
    n = pieces(NULL, g, down, up, unit, &e);
    f = n > 0 && n < INT32_MAX ? bny_forest_alloc(name, g->nranks, (int)n) : NULL;
    if (!f)
        return bny_forest_no_memory(name, g->nranks);
    pieces(f, g, down, up, unit, &e);
    if (e) {
        bny_forest_free(f);
        return e;
    }
    set_steps(f);
    return bny_forest_finish(out, f);
}
