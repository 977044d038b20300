/* SPDX-License-Identifier: BSD-3-Clause */
/* MultiTree (Huang, Majumder, Kim, Muzahid, Yum and Kim, "Communication algorithm-architecture
 * co-design for distributed deep learning", ISCA 2021): one spanning tree per rank, grown at
 * the same time. In each time step every tree in turn takes one edge that still has capacity;
 * only ranks that a tree had before the step send in it.
 *
 * Differences from the paper:
 *   - a link carries its capacity in trees per step, in units of the smallest link: a link of
 *     300 next to links of 25 carries 12 edges per step, and fractions carry over to the next
 *     step;
 *   - several trees per root (sub-chunks) and a bound on the height: a rank may be at most (cap
 *     - the root's eccentricity) below its distance from the root, so that the tree can always
 *     be completed;
 *   - through switches the nearest rank is taken (breadth first).
 * BNY_MULTITREE_REFERENCE is the published code: depth first through switches, and a step ends
 * as soon as the last tree of a round finds no edge, even if others could. This order costs
 * steps on meshes (8x8: 33 instead of 32).
 *
 * A parent that failed in a step fails for the rest of it, since capacities only shrink and
 * trees only grow: so each tree keeps a cursor. A parent whose neighbours are all in the tree
 * is dropped. 32 x 32 torus: well below 2 s. */
#include "topo/multitree.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/route.h"

struct sprout {      /* a growing tree */
    int root, slack; /* slack: how much deeper than its distance a rank may be */
    int nmembers;
    int *active, nactive, snapshot,
        cursor; /* members that may still have children, in order of joining */
};

struct growth {
    const struct bny_graph *g;
    struct bny_multitree *m;
    unsigned flags;
    int ntrees, n, growing;
    const int *first; /* links by sender: list[first[v] .. first[v + 1]) */
    int *list;
    uint8_t *leaf;       /* [nnodes] 1: a switch with ranks below it */
    int joined_leaves;   /* links connect some switches that have ranks */
    int through_leaves;  /* may the search pass such a switch? two passes per step */
    int64_t *left, unit; /* [nlinks] edges that a link can still carry in this step */
    struct sprout *trees;
    uint8_t *member;               /* [ntrees * n] */
    int *depth;                    /* [ntrees * n] */
    int16_t *dist;                 /* [n * n] edges between ranks; NULL without height cap */
    int *queue, *via, *stamp, now; /* [nnodes] the search through switches */
    int *path, *hops; /* path pool in order of growth; hops[i]: the path's length */
    size_t npath, path_cap;
    int *path_at; /* [ntrees * n] */
};

static int far_end(const struct growth *w, int link)
{
    return w->flags & BNY_MULTITREE_REVERSED ? w->g->links[link].from : w->g->links[link].to;
}

static int near_end(const struct growth *w, int link)
{
    return w->flags & BNY_MULTITREE_REVERSED ? w->g->links[link].to : w->g->links[link].from;
}

/* May tree t take node v, a rank, as child of rank `parent`? */
static int wants(const struct growth *w, int t, int parent, int v)
{
    int r = w->g->nodes[v].rank;
    size_t row = (size_t)t * (size_t)w->n;

    if (w->member[row + (size_t)r])
        return 0;
    return !w->dist ||
           w->depth[row + (size_t)parent] + 1 <=
               w->dist[(size_t)w->trees[t].root * (size_t)w->n + (size_t)r] + w->trees[t].slack;
}

/* May the search continue from u to another switch? Not from a switch that has ranks other than
 * `origin`'s: otherwise the links of a BiGraph fill with detours. */
static int may_pass(const struct growth *w, int u, int origin)
{
    return w->through_leaves || !w->leaf[u] || near_end(w, w->via[u]) == origin;
}

/* Breadth first over switches from rank `parent`. Returns the child's node, -1: none in this
 * step, -2: none will ever come, as all neighbours are ranks of the tree. via[v]: the link by
 * which v was reached. */
static int nearest(struct growth *w, int t, int parent)
{
    const struct bny_graph *g = w->g;
    int head = 0, tail = 0, alive = 0, origin = g->rank_node[parent];

    w->queue[tail++] = origin;
    w->stamp[origin] = ++w->now;
    while (head < tail) {
        int u = w->queue[head++];

        for (int i = w->first[u]; i < w->first[u + 1]; i++) {
            int l = w->list[i], v = far_end(w, l),
                is_rank = g->nodes[v].kind == BNY_NODE_COMPUTE;

            if (w->stamp[v] == w->now)
                continue;
            alive |=
                !is_rank || !w->member[(size_t)t * (size_t)w->n + (size_t)g->nodes[v].rank];
            if (w->left[l] <= 0 ||
                (is_rank ? !wants(w, t, parent, v) : u != origin && !may_pass(w, u, origin)))
                continue;
            w->via[v] = l;
            if (is_rank)
                return v;
            w->stamp[v] = w->now;
            w->queue[tail++] = v;
        }
    }
    return alive ? -1 : -2;
}

/* As published: ranks below a switch first, then its neighbour switches, depth first; only the
 * first switch with ranks is passed. */
static int below_switch(struct growth *w, int t, int parent, int u, int own)
{
    const struct bny_graph *g = w->g;

    w->stamp[u] = w->now;
    for (int ranks = 1; ranks >= 0; ranks--)
        for (int i = w->first[u]; i < w->first[u + 1]; i++) {
            int l = w->list[i], v = far_end(w, l);

            if ((g->nodes[v].kind == BNY_NODE_COMPUTE) != ranks || w->left[l] <= 0 ||
                w->stamp[v] == w->now || (ranks ? !wants(w, t, parent, v) : w->leaf[u] && !own))
                continue;
            w->via[v] = l;
            if (!ranks)
                v = below_switch(w, t, parent, v, u == g->rank_node[parent]);
            if (v >= 0)
                return v;
        }
    return -1;
}

static int next_child(struct growth *w, int t, int parent)
{
    const struct bny_graph *g = w->g;
    int u = g->rank_node[parent], direct = 1;

    for (int i = w->first[u]; i < w->first[u + 1]; i++)
        direct &= g->nodes[far_end(w, w->list[i])].kind == BNY_NODE_COMPUTE;
    if (direct || !(w->flags & BNY_MULTITREE_REFERENCE))
        return nearest(w, t, parent);
    w->now++;
    return below_switch(w, t, parent, u, 1);
}

/* Records the links from parent to node v, and consumes their capacity. */
static int take_path(struct growth *w, size_t cell, int parent, int v)
{
    int from = w->g->rank_node[parent], hops = 0,
        reversed = (w->flags & BNY_MULTITREE_REVERSED) != 0;

    for (int u = v; u != from; hops++)
        u = reversed ? w->g->links[w->via[u]].to : w->g->links[w->via[u]].from;
    if (w->npath + (size_t)hops > w->path_cap) {
        size_t cap = 2 * w->path_cap + (size_t)hops;
        int *more = reallocarray(w->path, cap, sizeof *more);

        if (!more)
            return -BANYAN_ENOMEM;
        w->path = more;
        w->path_cap = cap;
    }
    for (int u = v, i = 0; u != from; i++) {
        int l = w->via[u];

        w->left[l]--;
        w->path[w->npath + (size_t)(reversed ? i : hops - 1 - i)] = l;
        u = reversed ? w->g->links[l].to : w->g->links[l].from;
    }
    w->path_at[cell] = (int)w->npath;
    w->hops[cell] = hops;
    w->npath += (size_t)hops;
    return 0;
}

/* Adds one edge to tree t. Returns 1, 0: none in this step, -BANYAN_ENOMEM. */
static int add_edge(struct growth *w, int t)
{
    struct sprout *s = &w->trees[t];
    size_t row = (size_t)t * (size_t)w->n;

    for (; s->cursor < s->snapshot; s->cursor++) {
        int parent = s->active[s->cursor], v, child;

        if (parent < 0)
            continue;
        v = next_child(w, t, parent);
        if (v == -2)
            s->active[s->cursor] = -1;
        if (v < 0)
            continue;
        child = w->g->nodes[v].rank;
        if (take_path(w, row + (size_t)child, parent, v))
            return -BANYAN_ENOMEM;
        w->member[row + (size_t)child] = 1;
        w->depth[row + (size_t)child] = w->depth[row + (size_t)parent] + 1;
        w->m->parent[row + (size_t)child] = parent;
        w->m->when[row + (size_t)child] = w->m->nsteps;
        s->active[s->nactive++] = child;
        w->growing -= ++s->nmembers == w->n;
        return 1;
    }
    return 0;
}

/* Edges that each link can carry in step `step`: the part of (step + 1) cap / unit not yet
 * used. */
static void refill(struct growth *w, int64_t step)
{
    for (int l = 0; l < w->g->nlinks; l++) {
        int64_t cap = w->g->links[l].cap, whole = cap / w->unit, part = cap % w->unit;

        w->left[l] = whole + (part ? (step % w->unit + 1) * part / w->unit -
                                         step % w->unit * part / w->unit
                                   : 0);
    }
    for (int t = 0; t < w->ntrees; t++) {
        struct sprout *s = &w->trees[t];
        int kept = 0;

        for (int i = 0; i < s->nactive; i++)
            if (s->active[i] >= 0)
                s->active[kept++] = s->active[i];
        s->nactive = s->snapshot = kept;
        s->cursor = 0;
    }
}

/* Rounds over all trees until none (as published: until not the last one) finds an edge. 0 or
 * -BANYAN_ENOMEM. */
static int grow_rounds(struct growth *w)
{
    int added, last;

    do {
        added = last = 0;
        for (int t = 0; t < w->ntrees && w->growing; t++) {
            last = w->trees[t].nmembers < w->n ? add_edge(w, t) : 0;
            if (last < 0)
                return last;
            added += last;
        }
    } while (w->growing && (w->flags & BNY_MULTITREE_REFERENCE ? last : added));
    return 0;
}

static int grow_step(struct growth *w)
{
    int e;

    refill(w, w->m->nsteps);
    w->through_leaves = 0;
    e = grow_rounds(w);
    if (!e && w->joined_leaves && w->growing && !(w->flags & BNY_MULTITREE_REFERENCE)) {
        w->through_leaves = 1;
        for (int t = 0; t < w->ntrees; t++)
            w->trees[t].cursor = 0;
        e = grow_rounds(w);
    }
    w->m->nsteps++;
    return e;
}

/* Number of edges between all ranks, for the height cap: ranks without another rank in between
 * are neighbours. */
static int set_distances(struct growth *w)
{
    const struct bny_graph *g = w->g;
    size_t n = (size_t)w->n;
    uint8_t *near = calloc(n, n);
    int *queue = malloc(n * sizeof *queue);

    w->dist = malloc(n * n * sizeof *w->dist);
    if (!near || !queue || !w->dist) {
        free(near);
        free(queue);
        return -BANYAN_ENOMEM;
    }
    for (int r = 0; r < w->n; r++) {
        int head = 0, tail = 0;

        w->queue[tail++] = g->rank_node[r];
        w->stamp[g->rank_node[r]] = ++w->now;
        while (head < tail) {
            int u = w->queue[head++];

            for (int i = w->first[u]; i < w->first[u + 1]; i++) {
                int v = far_end(w, w->list[i]);

                if (w->stamp[v] == w->now)
                    continue;
                w->stamp[v] = w->now;
                if (g->nodes[v].kind == BNY_NODE_COMPUTE)
                    near[(size_t)r * n + (size_t)g->nodes[v].rank] = 1;
                else
                    w->queue[tail++] = v;
            }
        }
    }
    memset(w->dist, 0xff, n * n * sizeof *w->dist);
    for (size_t r = 0; r < n; r++) {
        int head = 0, tail = 0;

        queue[tail++] = (int)r;
        w->dist[r * n + r] = 0;
        while (head < tail) {
            size_t u = (size_t)queue[head++];

            for (size_t v = 0; v < n; v++)
                if (near[u * n + v] && w->dist[r * n + v] < 0) {
                    w->dist[r * n + v] = (int16_t)(w->dist[r * n + u] + 1);
                    queue[tail++] = (int)v;
                }
        }
    }
    free(near);
    free(queue);
    return 0;
}

static int set_slack(struct growth *w, int height_cap)
{
    for (int t = 0; t < w->ntrees; t++) {
        const int16_t *row = w->dist + (size_t)w->trees[t].root * (size_t)w->n;
        int far = 0;

        for (int v = 0; v < w->n; v++)
            far = row[v] > far ? row[v] : far;
        if (far > height_cap)
            return bny_fail(
                BANYAN_EINVAL,
                "no tree over graph %s has height %d or less: rank %d is %d edges from "
                "the farthest; raise the height cap",
                w->g->name, height_cap, w->trees[t].root, far);
        w->trees[t].slack = height_cap - far;
    }
    return 0;
}

/* On grids the published order of neighbours: slowest dimension first, downwards before
 * upwards; elsewhere the order of links. */
static int order_links(struct growth *w)
{
    const struct bny_graph *g = w->g;
    int reversed = (w->flags & BNY_MULTITREE_REVERSED) != 0;
    struct bny_grid grid;

    w->first = reversed ? g->in_first : g->out_first;
    w->list = malloc(((size_t)g->nlinks + 1) * sizeof *w->list);
    if (!w->list)
        return -BANYAN_ENOMEM;
    memcpy(w->list, reversed ? g->in : g->out, (size_t)g->nlinks * sizeof *w->list);
    if (!bny_grid_of(&grid, g))
        return 0;
    for (int r = 0; r < w->n; r++) {
        int u = g->rank_node[r], at = w->first[u];

        for (int d = 0; d < grid.ndims; d++)
            for (int by = -1; by <= 1; by += 2) {
                int beside = bny_grid_beside(&grid, r, d, by), i = at;

                while (beside >= 0 && i < w->first[u + 1] &&
                       far_end(w, w->list[i]) != g->rank_node[beside])
                    i++;
                if (beside >= 0 && i < w->first[u + 1]) {
                    int l = w->list[i];

                    w->list[i] = w->list[at];
                    w->list[at++] = l;
                }
            }
    }
    return 0;
}

static void find_leaves(struct growth *w)
{
    const struct bny_graph *g = w->g;

    for (int l = 0; l < g->nlinks; l++)
        if (g->nodes[far_end(w, l)].kind == BNY_NODE_COMPUTE &&
            g->nodes[near_end(w, l)].kind != BNY_NODE_COMPUTE)
            w->leaf[near_end(w, l)] = 1;
    for (int l = 0; l < g->nlinks; l++)
        w->joined_leaves |= w->leaf[near_end(w, l)] && w->leaf[far_end(w, l)];
}

static int multitree_prepare(struct growth *w, const int *roots)
{
    size_t n = (size_t)w->n, cells = (size_t)w->ntrees * n, nodes = (size_t)w->g->nnodes;

    w->left = malloc(((size_t)w->g->nlinks + 1) * sizeof *w->left);
    w->trees = calloc((size_t)w->ntrees, sizeof *w->trees);
    w->member = calloc(cells, 1);
    w->depth = calloc(cells, sizeof *w->depth);
    w->queue = malloc(nodes * sizeof *w->queue);
    w->via = malloc(nodes * sizeof *w->via);
    w->stamp = calloc(nodes, sizeof *w->stamp);
    w->leaf = calloc(nodes, 1);
    w->hops = calloc(cells, sizeof *w->hops);
    w->path_at = calloc(cells, sizeof *w->path_at);
    w->m->parent = malloc(cells * sizeof *w->m->parent);
    w->m->when = calloc(cells, sizeof *w->m->when);
    if (!w->left || !w->trees || !w->member || !w->depth || !w->queue || !w->via || !w->stamp ||
        !w->leaf || !w->hops || !w->path_at || !w->m->parent || !w->m->when)
        return -BANYAN_ENOMEM;
    memset(w->m->parent, 0xff, cells * sizeof *w->m->parent);
    find_leaves(w);
    if (order_links(w))
        return -BANYAN_ENOMEM;
    w->unit = INT64_MAX;
    for (int l = 0; l < w->g->nlinks; l++)
        w->unit = w->g->links[l].cap < w->unit ? w->g->links[l].cap : w->unit;
    for (int t = 0; t < w->ntrees; t++) {
        struct sprout *s = &w->trees[t];

        s->active = malloc(n * sizeof *s->active);
        if (!s->active)
            return -BANYAN_ENOMEM;
        s->root = s->active[0] = roots[t];
        s->nactive = s->nmembers = 1;
        w->member[(size_t)t * n + (size_t)roots[t]] = 1;
    }
    w->growing = w->n > 1 ? w->ntrees : 0;
    return 0;
}

/* Paths are in the pool in order of growth; sorts them by (tree, rank) for the result. */
static int order_paths(struct growth *w)
{
    size_t cells = (size_t)w->ntrees * (size_t)w->n, at = 0;

    w->m->first = malloc((cells + 1) * sizeof *w->m->first);
    w->m->links = malloc((w->npath + 1) * sizeof *w->m->links);
    if (!w->m->first || !w->m->links)
        return -BANYAN_ENOMEM;
    for (size_t i = 0; i < cells; i++) {
        w->m->first[i] = (int)at;
        if (w->hops[i])
            memcpy(w->m->links + at, w->path + w->path_at[i],
                   (size_t)w->hops[i] * sizeof *w->path);
        at += (size_t)w->hops[i];
    }
    w->m->first[cells] = (int)at;
    return 0;
}

static void multitree_finish(struct growth *w)
{
    for (int t = 0; w->trees && t < w->ntrees; t++)
        free(w->trees[t].active);
    free(w->trees);
    free(w->left);
    free(w->list);
    free(w->leaf);
    free(w->member);
    free(w->depth);
    free(w->dist);
    free(w->queue);
    free(w->via);
    free(w->stamp);
    free(w->path);
    free(w->hops);
    free(w->path_at);
}

int bny_multitree_grow(struct bny_multitree *out, const struct bny_graph *g, const int *roots,
                       int ntrees, int height_cap, unsigned flags)
{
    struct growth w = { .g = g, .m = out, .flags = flags, .ntrees = ntrees, .n = g->nranks };
    int e;

    memset(out, 0, sizeof *out);
    out->nranks = g->nranks;
    out->ntrees = ntrees;
    e = multitree_prepare(&w, roots);
    if (!e && height_cap)
        e = set_distances(&w);
    if (!e && height_cap)
        e = set_slack(&w, height_cap);
    while (!e && w.growing)
        e = grow_step(&w);
    if (!e)
        e = order_paths(&w);
    multitree_finish(&w);
    if (e == -BANYAN_ENOMEM)
        bny_fail(BANYAN_ENOMEM, "no memory for %d trees over %d ranks", ntrees, g->nranks);
    return e;
}

void bny_multitree_free(struct bny_multitree *m)
{
    free(m->parent);
    free(m->when);
    free(m->first);
    free(m->links);
    memset(m, 0, sizeof *m);
}
