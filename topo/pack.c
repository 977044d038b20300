/* SPDX-License-Identifier: BSD-3-Clause */
/* Packings: memory, and the packing by levels (pack.h; the balanced level-by-level trees of
 * "Efficient direct-connect topologies for collective communications", arXiv 2202.03356, for
 * any capacities and roots). Each rank y considers all roots at once: root r may use an edge
 * (x, y) if x comes before y in the order of r, which is by distance, then by rank counted from
 * r. One flow from roots to edges selects all units of all roots. Since parents come earlier in
 * the order, any selection at every rank makes trees, and ranks do not depend on each other. */
#include "topo/pack.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/maxflow.h"

static int pack_no_memory(const struct bny_pack *p)
{
    return bny_fail(BANYAN_ENOMEM, "no memory to pack trees of %d ranks", p->n);
}

int bny_pack_init(struct bny_pack *p, int n)
{
    memset(p, 0, sizeof *p);
    p->n = n;
    p->need = calloc((size_t)n, sizeof *p->need);
    return p->need ? 0 : pack_no_memory(p);
}

static void drop_trees(struct bny_pack *p, int keep)
{
    while (p->ntrees > keep)
        free(p->trees[--p->ntrees].edge);
}

void bny_pack_free(struct bny_pack *p)
{
    for (int e = 0; e < p->nedges; e++)
        free(p->edges[e].links);
    free(p->edges);
    drop_trees(p, 0);
    free(p->trees);
    free(p->need);
    memset(p, 0, sizeof *p);
}

int bny_pack_edge(struct bny_pack *p, int from, int to, int64_t cap, int nlinks,
                  const int *links)
{
    struct bny_pack_edge *e;

    if (p->nedges == p->edges_cap) {
        int more = p->edges_cap ? 2 * p->edges_cap : 64;

        e = realloc(p->edges, (size_t)more * sizeof *e);
        if (!e)
            return pack_no_memory(p);
        p->edges = e;
        p->edges_cap = more;
    }
    e = &p->edges[p->nedges];
    *e = (struct bny_pack_edge){ from, to, cap, nlinks,
                                 malloc((size_t)(nlinks ? nlinks : 1) * sizeof *links) };
    if (!e->links)
        return pack_no_memory(p);
    memcpy(e->links, links, (size_t)nlinks * sizeof *links);
    return p->nedges++;
}

struct bny_pack_tree *bny_pack_tree(struct bny_pack *p, int root, int64_t units)
{
    struct bny_pack_tree *t;

    if (p->ntrees == p->trees_cap) {
        int more = p->trees_cap ? 2 * p->trees_cap : 64;

        t = realloc(p->trees, (size_t)more * sizeof *t);
        if (!t)
            return NULL;
        p->trees = t;
        p->trees_cap = more;
    }
    t = &p->trees[p->ntrees];
    t->root = root;
    t->units = units;
    t->edge = malloc((size_t)p->n * sizeof *t->edge);
    if (!t->edge)
        return NULL;
    for (int v = 0; v < p->n; v++)
        t->edge[v] = -1;
    p->ntrees++;
    return t;
}

struct levels {
    struct bny_pack *p;
    int *rank_of;       /* [n * n] row r: position of each rank in the order of root r */
    int *dist_of;       /* [n * n] row r: its distance */
    int *in_first, *in; /* edges that enter each rank */
};

/* Order of root r: breadth first; within a level by (v - r) mod n, so that orders differ
 * between roots. */
static void order(struct levels *lv, int r, const int *out_first, const int *out, int *queue)
{
    struct bny_pack *p = lv->p;
    int *dist = lv->dist_of + (size_t)r * (size_t)p->n;
    int *place = lv->rank_of + (size_t)r * (size_t)p->n, head = 0, tail = 0, next = 0;

    for (int v = 0; v < p->n; v++)
        dist[v] = -1;
    dist[r] = 0;
    queue[tail++] = r;
    while (head < tail) {
        int v = queue[head++];

        for (int i = out_first[v]; i < out_first[v + 1]; i++) {
            int w = p->edges[out[i]].to;

            if (p->edges[out[i]].cap > 0 && dist[w] < 0) {
                dist[w] = dist[v] + 1;
                queue[tail++] = w;
            }
        }
    }
    for (int d = 0; next < tail; d++)
        for (int i = 0; i < p->n; i++)
            if (dist[i < p->n - r ? r + i : r + i - p->n] == d)
                place[i < p->n - r ? r + i : r + i - p->n] = next++;
    for (int v = 0; v < p->n; v++)
        if (dist[v] < 0)
            dist[v] = place[v] = p->n;
}

/* first[v] .. first[v + 1] of list: edges by their end (`to` when in, else `from`). */
static void index_edges(const struct bny_pack *p, int in, int *first, int *list)
{
    memset(first, 0, (size_t)(p->n + 1) * sizeof *first);
    for (int e = 0; e < p->nedges; e++)
        first[(in ? p->edges[e].to : p->edges[e].from) + 1]++;
    for (int v = 0; v < p->n; v++)
        first[v + 1] += first[v];
    for (int e = p->nedges - 1; e >= 0; e--) {
        int v = in ? p->edges[e].to : p->edges[e].from;

        list[--first[v + 1]] = e;
    }
    for (int v = 0; v < p->n; v++)
        first[v] = first[v + 1];
    first[p->n] = p->nedges;
}

/* Every root's units at rank y, as (edge, units) pairs in got; 0 if the edges do not
 * suffice. */
struct choice {
    int edge;
    int64_t units;
};

struct choices {
    int n, cap;
    struct choice *of;
    int *first; /* [ranks * (roots + 1)] index of the first choice of (y, r) */
};

static int pack_keep(struct choices *c, int edge, int64_t units)
{
    if (c->n == c->cap) {
        int more = c->cap ? 2 * c->cap : 1024;
        struct choice *of = realloc(c->of, (size_t)more * sizeof *of);

        if (!of)
            return bny_fail(BANYAN_ENOMEM, "no memory for %d edges of trees", more);
        c->of = of;
        c->cap = more;
    }
    c->of[c->n++] = (struct choice){ edge, units };
    return 0;
}

/* One flow: source -> root (its need) -> edge (if from a rank nearer to the root, or, with
 * `order`, earlier in the root's order) -> sink (capacity). */
static int pack_choose(const struct levels *lv, int y, struct choices *c, int by_order)
{
    const struct bny_pack *p = lv->p;
    int lo = lv->in_first[y], nin = lv->in_first[y + 1] - lo, s = p->n + nin, t = s + 1, e,
        *arc;
    int64_t total = 0;
    struct bny_flow f;

    e = bny_flow_init(&f, t + 1, p->n + nin + p->n * 4);
    if (e)
        return e;
    for (int i = 0; i < nin; i++)
        bny_flow_arc(&f, p->n + i, t, p->edges[lv->in[lo + i]].cap);
    for (int r = 0; r < p->n; r++) {
        const int *place = (by_order ? lv->rank_of : lv->dist_of) + (size_t)r * (size_t)p->n;

        if (r == y || !p->need[r])
            continue;
        total += p->need[r];
        bny_flow_arc(&f, s, r, p->need[r]);
        for (int i = 0; i < nin; i++)
            if (place[p->edges[lv->in[lo + i]].from] < place[y] &&
                bny_flow_arc(&f, r, p->n + i, p->need[r]) < 0)
                e = -BANYAN_ENOMEM;
    }
    if (!e && bny_flow_run(&f, s, t, total) < total)
        e = -BANYAN_ENOTSUP;
    arc = f.first;
    for (int r = 0; r < p->n && !e; r++) {
        c->first[(size_t)y * (size_t)(p->n + 1) + (size_t)r] = c->n;
        for (int a = arc[r]; a >= 0 && r != y && !e; a = f.arcs[a].next)
            if (a % 2 == 0 && f.arcs[a ^ 1].cap > 0)
                e = pack_keep(c, lv->in[lo + f.arcs[a].to - p->n], f.arcs[a ^ 1].cap);
    }
    c->first[(size_t)y * (size_t)(p->n + 1) + (size_t)p->n] = c->n;
    bny_flow_free(&f);
    return e;
}

static int choose_either(const struct levels *lv, int y, struct choices *c)
{
    int e = pack_choose(lv, y, c, 0);

    return e == -BANYAN_ENOTSUP ? pack_choose(lv, y, c, 1) : e;
}

/* Root r's units 0 .. need-1 are split wherever some rank changes its edge. */
static int make_trees(struct levels *lv, const struct choices *c, int r, int *at, int64_t *left)
{
    struct bny_pack *p = lv->p;

    for (int y = 0; y < p->n; y++) {
        at[y] = c->first[(size_t)y * (size_t)(p->n + 1) + (size_t)r];
        left[y] = y == r ? INT64_MAX : c->of[at[y]].units;
    }
    for (int64_t done = 0; done < p->need[r];) {
        int64_t units = p->need[r] - done;
        struct bny_pack_tree *t;

        for (int y = 0; y < p->n; y++)
            units = left[y] < units ? left[y] : units;
        t = bny_pack_tree(p, r, units);
        if (!t)
            return pack_no_memory(p);
        for (int y = 0; y < p->n; y++) {
            if (y == r)
                continue;
            t->edge[y] = c->of[at[y]].edge;
            left[y] -= units;
            if (!left[y] && done + units < p->need[r])
                left[y] = c->of[++at[y]].units;
        }
        done += units;
    }
    return 0;
}

int bny_pack_levels(struct bny_pack *p)
{
    size_t n = (size_t)p->n, m = (size_t)p->nedges;
    struct levels lv = { .p = p };
    struct choices c = { .first = malloc(n * (n + 1) * sizeof *c.first) };
    int *out_first = malloc((n + 1) * sizeof *out_first), *out = malloc((m + 1) * sizeof *out);
    int *dist = malloc(n * sizeof *dist), *queue = malloc(n * sizeof *queue), e = 0,
        had = p->ntrees;
    int64_t *left = malloc(n * sizeof *left);

    lv.rank_of = malloc(n * n * sizeof *lv.rank_of);
    lv.dist_of = malloc(n * n * sizeof *lv.dist_of);
    lv.in_first = malloc((n + 1) * sizeof *lv.in_first);
    lv.in = malloc((m + 1) * sizeof *lv.in);
    if (!c.first || !out_first || !out || !dist || !queue || !left || !lv.rank_of ||
        !lv.dist_of || !lv.in_first || !lv.in)
        e = pack_no_memory(p);
    if (!e) {
        index_edges(p, 1, lv.in_first, lv.in);
        index_edges(p, 0, out_first, out);
    }
    for (int r = 0; r < p->n && !e; r++)
        order(&lv, r, out_first, out, queue);
    for (int y = 0; y < p->n && !e; y++)
        e = choose_either(&lv, y, &c);
    for (int r = 0; r < p->n && !e; r++)
        e = make_trees(&lv, &c, r, dist, left);
    if (e)
        drop_trees(p, had);
    free(c.first);
    free(c.of);
    free(out_first);
    free(out);
    free(dist);
    free(queue);
    free(left);
    free(lv.rank_of);
    free(lv.dist_of);
    free(lv.in_first);
    free(lv.in);
    return e == -BANYAN_ENOTSUP ? bny_fail(BANYAN_ENOTSUP, "no packing by levels") : e;
}
