/* SPDX-License-Identifier: BSD-3-Clause */
/* The exact packing (pack.h). A tree of u units grows from its root; an edge (x, y) may carry
 * min(u, capacity, slack) of them, where slack = min over sets X with x inside, y outside of
 * capacity(leaving X) - need(X) of the units still to pack: one flow to y from all roots and x.
 * If that is less than u, the rest of the units returns to the root's need with the capacity
 * that the tree's edges reserve for it, which keeps the rest feasible: sets that hold the whole
 * tree lose nothing, others regain an edge.
 *
 * A first attempt takes a whole tree at once, along the edges with most to spare, and checks
 * all cuts once: a few flows instead of one per edge. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/cuts.h"
#include "topo/pack.h"

struct exact {
    struct bny_pack *p;
    struct bny_cuts cuts;
    int64_t *cap; /* [nedges] remaining */
    int *out_first, *out;
    uint8_t *blocked; /* [nedges] for the current tree: a set without slack holds only the
                         edge's tail */
    uint8_t *mark;    /* [n + 1] */
    int *members;     /* ranks of the current tree in order of joining */
    int misses;       /* consecutive failures of whole trees: the next attempts are skipped */
};

static void set_cap(struct exact *x, int e, int64_t cap)
{
    x->cap[e] = cap;
    bny_cuts_cap(&x->cuts, e, cap);
}

static void set_need(struct exact *x, int r, int64_t need)
{
    bny_cuts_need(&x->cuts, r, need);
    bny_flow_set(&x->cuts.flow, x->cuts.feed[r], need);
}

/* Units that edge e may carry for the current tree, at most `units`. */
static int64_t slack(struct exact *x, int e, int64_t units)
{
    const struct bny_pack_edge *edge = &x->p->edges[e];
    struct bny_cuts *c = &x->cuts;
    int64_t most = x->cap[e] < units ? x->cap[e] : units, flow;

    bny_flow_set(&c->flow, c->feed[edge->from], BNY_FLOW_INF);
    bny_flow_reset(&c->flow);
    bny_flow_set(&c->flow, c->feed[edge->from], c->need[edge->from]);
    flow = bny_flow_run(&c->flow, c->source, edge->to, c->total + most) - c->total;
    if (flow <= 0) {
        bny_flow_side(&c->flow, c->source, x->mark);
        for (int i = 0; i < x->p->nedges; i++)
            if (x->mark[x->p->edges[i].from] && !x->mark[x->p->edges[i].to])
                x->blocked[i] = 1;
    }
    return flow < most ? flow : most;
}

/* The edge with most capacity among those that leave the tree from its earliest member that has
 * one. */
static int greedy_edge(const struct exact *x, const struct bny_pack_tree *t, int nmembers,
                       int *from)
{
    for (; *from < nmembers; ++*from) {
        int v = x->members[*from], best = -1;

        for (int i = x->out_first[v]; i < x->out_first[v + 1]; i++) {
            int e = x->out[i], y = x->p->edges[e].to;

            if (y != t->root && t->edge[y] < 0 && x->cap[e] >= t->units &&
                (best < 0 || x->cap[e] > x->cap[best]))
                best = e;
        }
        if (best >= 0)
            return best;
    }
    return -1;
}

/* 1 if a whole tree of t->units was packed, and the rest stays feasible. */
static int try_whole(struct exact *x, struct bny_pack_tree *t)
{
    int n = 1, from = 0, e, ok;

    x->members[0] = t->root;
    while (n < x->p->n && (e = greedy_edge(x, t, n, &from)) >= 0) {
        t->edge[x->p->edges[e].to] = e;
        set_cap(x, e, x->cap[e] - t->units);
        x->members[n++] = x->p->edges[e].to;
    }
    ok = n == x->p->n && bny_cuts_violated(&x->cuts, 0, x->mark) == x->p->n;
    for (int v = 0; v < x->p->n; v++)
        bny_flow_set(&x->cuts.flow, x->cuts.feed[v], x->cuts.need[v]);
    for (int v = 0; v < x->p->n && !ok; v++)
        if (t->edge[v] >= 0) {
            set_cap(x, t->edge[v], x->cap[t->edge[v]] + t->units);
            t->edge[v] = -1;
        }
    return ok;
}

/* The edge that takes most of the tree's units, the first that takes all; -1: the packing does
 * not exist. */
static int next_edge(struct exact *x, const struct bny_pack_tree *t, int nmembers,
                     int64_t *units)
{
    int best = -1;

    *units = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int k = 0; k < nmembers; k++) {
            int v = x->members[k];

            for (int i = x->out_first[v]; i < x->out_first[v + 1]; i++) {
                int e = x->out[i], y = x->p->edges[e].to;
                int64_t got;

                if (y == t->root || t->edge[y] >= 0 || x->blocked[e] || x->cap[e] <= *units ||
                    (pass == 0) != (x->cap[e] >= t->units))
                    continue;
                got = slack(x, e, t->units);
                if (got > *units) {
                    *units = got;
                    best = e;
                }
                if (got == t->units)
                    return e;
            }
        }
    return best;
}

static void pack_exact_shrink(struct exact *x, struct bny_pack_tree *t, int64_t units)
{
    int64_t back = t->units - units;

    for (int v = 0; v < x->p->n; v++)
        if (t->edge[v] >= 0)
            set_cap(x, t->edge[v], x->cap[t->edge[v]] + back);
    set_need(x, t->root, x->cuts.need[t->root] + back);
    t->units = units;
}

static int pack_exact_grow(struct exact *x, struct bny_pack_tree *t)
{
    memset(x->blocked, 0, (size_t)x->p->nedges);
    x->members[0] = t->root;
    for (int n = 1; n < x->p->n; n++) {
        int64_t units;
        int e = next_edge(x, t, n, &units);

        if (e < 0)
            return bny_fail(BANYAN_ENOTSUP, "no packing: %lld units of root %d lack an edge",
                            (long long)t->units, t->root);
        if (units < t->units)
            pack_exact_shrink(x, t, units);
        set_cap(x, e, x->cap[e] - units);
        t->edge[x->p->edges[e].to] = e;
        x->members[n] = x->p->edges[e].to;
    }
    x->p->exact_trees++;
    return 0;
}

static int pack_root(struct exact *x, int r)
{
    while (x->cuts.need[r] > 0) {
        struct bny_pack_tree *t = bny_pack_tree(x->p, r, x->cuts.need[r]);
        int e;

        if (!t)
            return bny_fail(BANYAN_ENOMEM, "no memory for a tree of %d ranks", x->p->n);
        set_need(x, r, 0);
        if (x->misses < 3 || x->misses % 8 == 0) {
            if (try_whole(x, t)) {
                x->misses = 0;
                continue;
            }
        }
        x->misses++;
        e = pack_exact_grow(x, t);
        if (e)
            return e;
    }
    return 0;
}

static int pack_exact_prepare(struct exact *x)
{
    struct bny_pack *p = x->p;
    size_t n = (size_t)p->n, m = (size_t)p->nedges;
    int e;

    x->cap = malloc((m + 1) * sizeof *x->cap);
    x->out_first = calloc(n + 2, sizeof *x->out_first);
    x->out = malloc((m + 1) * sizeof *x->out);
    x->blocked = malloc(m + 1);
    x->mark = malloc(n + 1);
    x->members = malloc(n * sizeof *x->members);
    if (!x->cap || !x->out_first || !x->out || !x->blocked || !x->mark || !x->members)
        return bny_fail(BANYAN_ENOMEM, "no memory to pack trees of %d ranks", p->n);
    for (int v = 0; v < p->n; v++)
        x->members[v] = v;
    e = bny_cuts_init(&x->cuts, p->n, p->nedges, p->n, x->members);
    for (int i = 0; i < p->nedges && !e; i++) {
        e = bny_cuts_link(&x->cuts, p->edges[i].from, p->edges[i].to, p->edges[i].cap);
        x->cap[i] = p->edges[i].cap;
        x->out_first[p->edges[i].from + 2]++;
    }
    for (int v = 0; v < p->n; v++)
        x->out_first[v + 2] += x->out_first[v + 1];
    for (int i = 0; i < p->nedges; i++)
        x->out[x->out_first[p->edges[i].from + 1]++] = i;
    for (int v = 0; v < p->n && !e; v++)
        set_need(x, v, p->need[v]);
    return e;
}

int bny_pack_exact(struct bny_pack *p)
{
    struct exact x = { .p = p };
    int e = pack_exact_prepare(&x);

    for (int r = 0; r < p->n && !e; r++)
        e = pack_root(&x, r);
    bny_cuts_free(&x.cuts);
    free(x.cap);
    free(x.out_first);
    free(x.out);
    free(x.blocked);
    free(x.mark);
    free(x.members);
    return e;
}
