/* SPDX-License-Identifier: BSD-3-Clause */
/* Repair (repair.h). Only forests with the same edges in both directions are mended, on
 * symmetric graphs; others are planned anew, which takes some hundredths of a second for
 * hundreds of ranks. Loads are counted in units of the weights' common denominator, in one
 * direction; the other is its mirror. */
#include "topo/repair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "topo/build_graph.h"
#include "topo/route.h"

struct mending {
    const struct bny_forest *old;
    const struct bny_graph *before, *after;
    struct bny_forest *f;
    int *node, *link; /* of before -> of after, or -1 */
    int64_t *room;    /* [links of after] units that still fit */
    int64_t unit;     /* of weight 1 */
    int64_t *units;   /* [trees of f] */
    int *from;        /* [trees of f] tree of old */
    uint8_t *joined;  /* [ranks] of the current tree: connected to its root */
    int *queue, *via; /* [nodes] search */
    int64_t *width;   /* [nodes] least room on the path to the searching rank */
    struct bny_repair report;
};

static int repair_no_memory(void)
{
    return bny_fail(BANYAN_ENOMEM, "no memory to repair a forest");
}

static int match_nodes(struct mending *m)
{
    for (int v = 0; v < m->before->nnodes; v++) {
        const struct bny_node *a = &m->before->nodes[v];

        m->node[v] = -1;
        for (int i = 0; i < m->after->nnodes && m->node[v] < 0; i++) {
            int w = v - i >= 0
                        ? v - i
                        : m->after->nnodes - i; /* nodes before a lost one keep their index */

            if (w < m->after->nnodes && !strcmp(a->name, m->after->nodes[w].name))
                m->node[v] = w;
        }
        if (m->node[v] >= 0 && (a->rank >= 0) != (m->after->nodes[m->node[v]].rank >= 0))
            return bny_fail(BANYAN_EINVAL, "node %s of %s is of another kind in %s", a->name,
                            m->before->name, m->after->name);
    }
    return 0;
}

static void match_links(struct mending *m)
{
    const struct bny_graph *g = m->after;

    for (int l = 0; l < m->before->nlinks; l++) {
        int from = m->node[m->before->links[l].from], to = m->node[m->before->links[l].to];

        m->link[l] = -1;
        for (int i = from < 0 ? 0 : g->out_first[from]; from >= 0 && i < g->out_first[from + 1];
             i++)
            if (g->links[g->out[i]].to == to)
                m->link[l] = g->out[i];
    }
}

static int new_rank(const struct mending *m, int r)
{
    int v = r < 0 ? -1 : m->node[m->before->rank_node[r]];

    return v < 0 ? -1 : m->after->nodes[v].rank;
}

/* Takes the trees whose roots remain, with their shares in proportion. */
static int take_over_trees(struct mending *m)
{
    struct bny_ratio left = bny_ratio_of(0, 1);
    int n = 0;

    for (int t = 0; t < m->old->ntrees; t++)
        if (new_rank(m, m->old->trees[t].root) >= 0) {
            left = bny_ratio_add(
                left, bny_ratio_of(m->old->trees[t].weight_num, m->old->trees[t].weight_den));
            n++;
        }
    if (!n || !bny_ratio_ok(left))
        return bny_fail(BANYAN_ENOTSUP, "no tree of %s keeps its root", m->old->name);
    m->f = bny_forest_alloc(m->old->name, m->after->nranks, n);
    m->units = malloc((size_t)n * sizeof *m->units);
    m->from = malloc((size_t)n * sizeof *m->from);
    if (!m->f || !m->units || !m->from)
        return repair_no_memory();
    n = 0;
    for (int t = 0; t < m->old->ntrees; t++) {
        const struct bny_tree *old = &m->old->trees[t];
        struct bny_ratio w =
            bny_ratio_div(bny_ratio_of(old->weight_num, old->weight_den), left);

        if (new_rank(m, old->root) < 0)
            continue;
        if (w.num > UINT32_MAX || w.den > UINT32_MAX)
            return bny_fail(BANYAN_ENOTSUP, "the weights of %s do not fit in 32 bits",
                            m->old->name);
        m->from[n] = t;
        m->f->trees[n].root = new_rank(m, old->root);
        m->f->trees[n].pipeline = old->pipeline;
        m->f->trees[n].weight_num = (uint32_t)w.num;
        m->f->trees[n++].weight_den = (uint32_t)w.den;
    }
    return 0;
}

/* Sets room to the capacity of each link within `time`. */
static int repair_make_room(struct mending *m, struct bny_ratio time)
{
    int64_t unit = 1;

    for (int t = 0; t < m->f->ntrees; t++) {
        struct bny_ratio r = bny_ratio_of(unit, m->f->trees[t].weight_den);

        if (__builtin_mul_overflow(r.num, (int64_t)m->f->trees[t].weight_den, &unit) ||
            unit > INT64_C(1) << 40)
            return bny_fail(BANYAN_ENOTSUP, "the weights of %s have no common denominator",
                            m->old->name);
    }
    for (int64_t fine = 840; fine > 1;
         fine--) /* units that divide well, so that trees can be split evenly */
        if (unit * fine <= UINT32_MAX) {
            unit *= fine;
            break;
        }
    m->unit = unit;
    for (int t = 0; t < m->f->ntrees; t++)
        m->units[t] = unit / m->f->trees[t].weight_den * m->f->trees[t].weight_num;
    for (int l = 0; l < m->after->nlinks; l++) {
        struct bny_ratio r =
            bny_ratio_mul(bny_ratio_mul(time, bny_ratio_of(m->after->links[l].cap, 1)),
                          bny_ratio_of(unit, 1));

        if (!bny_ratio_ok(r))
            return bny_fail(BANYAN_ENOTSUP, "the capacities of %s are too uneven",
                            m->after->name);
        m->room[l] = r.num / r.den;
    }
    return 0;
}

/* Copies edges that still exist and fit; omits the others. Routes are those away from the
 * root. */
static int copy_edges(struct mending *m, int t)
{
    const struct bny_tree *old = &m->old->trees[m->from[t]];
    struct bny_tree *tree = &m->f->trees[t];
    int whole = 1;

    tree->down = calloc((size_t)m->f->nranks, sizeof *tree->down);
    if (!tree->down)
        return repair_no_memory();
    for (int v = 0; v < m->old->nranks; v++) {
        int to = new_rank(m, v), from = new_rank(m, old->parent[v]), fits = from >= 0;
        const struct bny_route *r = &old->down[v];

        if (to < 0 || v == old->root)
            continue;
        for (int i = 0; i < r->nlinks && fits; i++)
            fits = m->link[r->links[i]] >= 0 && m->room[m->link[r->links[i]]] >= m->units[t];
        whole &= fits;
        if (!fits)
            continue;
        if (bny_route_set(&tree->down[to], r->links, r->nlinks))
            return repair_no_memory();
        for (int i = 0; i < r->nlinks; i++) {
            tree->down[to].links[i] = m->link[r->links[i]];
            m->room[tree->down[to].links[i]] -= m->units[t];
        }
        tree->parent[to] = from;
    }
    m->report.kept += whole;
    m->report.mended += !whole;
    return 0;
}

/* joined[v]: 1 if v has a path to the root, else 0. */
static void mark_joined(struct mending *m, const struct bny_tree *tree)
{
    int n = m->f->nranks;

    memset(m->joined, 2, (size_t)n);
    m->joined[tree->root] = 1;
    for (int v = 0; v < n; v++) {
        int top = v;

        while (m->joined[top] == 2 && tree->parent[top] >= 0)
            top = tree->parent[top];
        if (m->joined[top] == 2)
            m->joined[top] = 0;
        for (int u = v, is = m->joined[top]; m->joined[u] == 2; u = tree->parent[u])
            m->joined[u] = (uint8_t)is;
    }
}

/* Tree t keeps `units`; a copy of it at the end takes the rest. */
static int split_tree(struct mending *m, int t, int64_t units)
{
    int n = m->f->ntrees, ranks = m->f->nranks;
    struct bny_tree *trees = realloc(m->f->trees, (size_t)(n + 1) * sizeof *trees), *copy;
    int64_t *all;

    if (trees)
        m->f->trees = trees;
    all = realloc(m->units, (size_t)(n + 1) * sizeof *all);
    if (all)
        m->units = all;
    if (!trees || !all)
        return repair_no_memory();
    copy = &trees[n];
    *copy = (struct bny_tree){ .root = trees[t].root, .pipeline = trees[t].pipeline };
    m->f->ntrees++;
    m->units[n] = m->units[t] - units;
    m->units[t] = units;
    copy->parent = malloc((size_t)ranks * sizeof *copy->parent);
    copy->step = calloc((size_t)ranks, sizeof *copy->step);
    copy->down = calloc((size_t)ranks, sizeof *copy->down);
    if (!copy->parent || !copy->step || !copy->down)
        return repair_no_memory();
    memcpy(copy->parent, trees[t].parent, (size_t)ranks * sizeof *copy->parent);
    for (int v = 0; v < ranks; v++)
        if (bny_route_set(&copy->down[v], trees[t].down[v].links, trees[t].down[v].nlinks))
            return repair_no_memory();
    return 0;
}

/* Searches from rank y backwards through switches for the joined rank with the most room on the
 * path, and sets *room. */
static int search(struct mending *m, int y, int64_t *room)
{
    const struct bny_graph *g = m->after;
    int head = 0, tail = 0, best = -1;

    *room = 0;
    for (int v = 0; v < g->nnodes; v++)
        m->via[v] = -1;
    m->queue[tail++] = g->rank_node[y];
    m->width[g->rank_node[y]] = INT64_MAX;
    while (head < tail) {
        int v = m->queue[head++];

        for (int i = g->in_first[v]; i < g->in_first[v + 1]; i++) {
            int l = g->in[i], u = g->links[l].from, rank = g->nodes[u].rank;

            if (m->room[l] <= 0 || m->via[u] >= 0 || rank == y)
                continue;
            m->via[u] = l;
            m->width[u] = m->room[l] < m->width[v] ? m->room[l] : m->width[v];
            if (rank < 0)
                m->queue[tail++] = u;
            else if (m->joined[rank] == 1 && m->width[u] > *room) {
                *room = m->width[u];
                best = u;
            }
        }
    }
    return best;
}

/* Joins rank y of tree t, with a part of the tree's units if there is less room. Returns 1:
 * joined, 0, or an error. */
static int attach(struct mending *m, int t, int y)
{
    const struct bny_graph *g = m->after;
    int hops = 0, links[64], e = 0;
    int64_t room;
    int best = search(m, y, &room);

    if (best < 0)
        return 0;
    for (int v = best; v != g->rank_node[y] && hops < 64; v = g->links[m->via[v]].to)
        links[hops++] = m->via[v];
    if (hops == 64)
        return 0;
    if (room < m->units[t])
        e = split_tree(m, t, room);
    if (!e && bny_route_set(&m->f->trees[t].down[y], links, hops))
        e = repair_no_memory();
    for (int i = 0; i < hops && !e; i++)
        m->room[links[i]] -= m->units[t];
    m->f->trees[t].parent[y] = g->nodes[best].rank;
    return e ? e : 1;
}

/* Ranks without a path to the root release their children, which may find one. Returns their
 * number. */
static int let_go(struct mending *m, int t)
{
    struct bny_tree *tree = &m->f->trees[t];
    int n = 0;

    for (int v = 0; v < m->f->nranks; v++)
        if (tree->parent[v] >= 0 && tree->parent[tree->parent[v]] < 0 &&
            tree->parent[v] != tree->root) {
            for (int i = 0; i < tree->down[v].nlinks; i++)
                m->room[tree->down[v].links[i]] += m->units[t];
            tree->down[v].nlinks = 0;
            m->queue[n++] = v;
        }
    for (int i = 0; i < n; i++)
        tree->parent[m->queue[i]] = -1;
    return n;
}

/* Returns 1: every rank is connected again, 0: there is no room, or an error. */
static int mend(struct mending *m, int t)
{
    for (;;) {
        int lost = 0, found = 0;

        mark_joined(m, &m->f->trees[t]);
        for (int v = 0; v < m->f->nranks && !found; v++)
            if (v != m->f->trees[t].root && m->f->trees[t].parent[v] < 0) {
                lost = 1;
                found = attach(m, t, v);
            }
        if (found < 0 || !lost)
            return found < 0 ? found : 1;
        if (!found && !let_go(m, t))
            return 0;
    }
}

static int by_root(const void *a, const void *b)
{
    const struct bny_tree *x = a, *y = b;

    return x->root != y->root
               ? (x->root > y->root) - (x->root < y->root)
               : (x->weight_num < y->weight_num) - (x->weight_num > y->weight_num);
}

/* Sets weights of split trees, and sorts trees by their roots. */
static void repair_settle(struct mending *m)
{
    for (int t = 0; t < m->f->ntrees; t++) {
        struct bny_ratio w = bny_ratio_of(m->units[t], m->unit);

        m->f->trees[t].weight_num = (uint32_t)w.num;
        m->f->trees[t].weight_den = (uint32_t)w.den;
    }
    qsort(m->f->trees, (size_t)m->f->ntrees, sizeof *m->f->trees, by_root);
}

static int mirror(struct bny_forest *f, const struct bny_graph *g)
{
    uint32_t most = 0;

    for (int t = 0; t < f->ntrees; t++) {
        struct bny_tree *tree = &f->trees[t];

        tree->up = calloc((size_t)f->nranks, sizeof *tree->up);
        if (!tree->up)
            return repair_no_memory();
        for (int v = 0; v < f->nranks; v++) {
            uint32_t depth = 0;

            for (int u = v; tree->parent[u] >= 0; u = tree->parent[u])
                depth++;
            tree->step[v] = depth;
            most = depth > most ? depth : most;
            if (bny_route_set(&tree->up[v], tree->down[v].links, tree->down[v].nlinks))
                return repair_no_memory();
            bny_route_reverse(&tree->up[v], g);
        }
    }
    for (int t = 0; t < f->ntrees; t++)
        for (int v = 0; v < f->nranks; v++)
            f->trees[t].step[v] = v == f->trees[t].root ? 0 : most - f->trees[t].step[v];
    f->nsteps = most;
    return 0;
}

/* Takes over the trees that fit, mends the rest. Returns 0 with m->f certified, or an error
 * (-BANYAN_ENOTSUP: mending fails). */
static int mend_all(struct mending *m, enum bny_forest_use use, int root)
{
    struct bny_bound b;
    int e = use == BNY_FOREST_ROOTED ? bny_bound_rooted(&b, m->after, root, 0)
                                     : bny_bound_allgather(&b, m->after);

    if (e)
        return e;
    match_links(m);
    e = take_over_trees(m);
    if (!e)
        e = repair_make_room(m, bny_ratio_mul(b.value, bny_ratio_of(1009, 1000)));
    bny_bound_free(&b);
    for (int t = 0; !e && t < m->f->ntrees; t++)
        e = copy_edges(m, t);
    for (int t = 0; !e && t < m->f->ntrees; t++) {
        e = mend(m, t);
        e = e == 0 ? bny_fail(BANYAN_ENOTSUP, "tree %d finds no room", t) : e > 0 ? 0 : e;
    }
    if (!e)
        repair_settle(m);
    if (!e)
        e = mirror(m->f, m->after);
    if (!e)
        e = bny_forest_certify(m->f, m->after, use, root,
                               m->old->claim.cut_kind != BNY_CUT_OUT_IN);
    return e;
}

static int plan_anew(struct mending *m, enum bny_forest_use use, int root)
{
    int joint = use == BNY_FOREST_ALLREDUCE && m->old->claim.cut_kind != BNY_CUT_OUT_IN;
    const struct bny_graph_builder_ops *b = joint ? &bny_build_joint : &bny_build_packed;
    int e;

    bny_forest_free(m->f);
    m->f = NULL;
    e = b->build(&m->f, m->after, use, root, NULL);
    m->report = (struct bny_repair){ .planned = e ? 0 : m->f->ntrees };
    return e;
}

static int can_mend(const struct mending *m)
{
    for (int t = 0; t < m->old->ntrees; t++)
        if (m->old->trees[t].down_parent || !m->old->trees[t].down)
            return 0;
    return bny_graph_is_symmetric(m->after);
}

static int good(const struct bny_forest *f)
{
    return bny_ratio_value(f->claim.time) <= 1.01 * bny_ratio_value(f->claim.bound);
}

int bny_forest_repair(struct bny_forest **out, const struct bny_forest *f,
                      const struct bny_graph *before, const struct bny_graph *after,
                      enum bny_forest_use use, int root, struct bny_repair *report)
{
    struct mending m = { .old = f, .before = before, .after = after };
    uint64_t since = bny_now_ns();
    size_t nodes = (size_t)(before->nnodes > after->nnodes ? before->nnodes : after->nnodes);
    int e;

    *out = NULL;
    if (f->nranks != before->nranks)
        return bny_fail(BANYAN_EINVAL, "forest %s of %d ranks is none for %s", f->name,
                        f->nranks, before->name);
    m.node = malloc(nodes * sizeof *m.node);
    m.link = malloc((size_t)(before->nlinks + 1) * sizeof *m.link);
    m.room = malloc((size_t)(after->nlinks + 1) * sizeof *m.room);
    m.joined = malloc((size_t)after->nranks);
    m.queue = malloc(nodes * sizeof *m.queue);
    m.via = malloc(nodes * sizeof *m.via);
    m.width = malloc(nodes * sizeof *m.width);
    e = m.width && m.node && m.link && m.room && m.joined && m.queue && m.via
            ? match_nodes(&m)
            : repair_no_memory();
    if (!e && use == BNY_FOREST_ROOTED) {
        int r = root >= 0 && root < before->nranks ? new_rank(&m, root) : -1;

        e = r < 0 ? bny_fail(BANYAN_EINVAL, "root %d is not among the ranks of %s", root,
                             after->name)
                  : 0;
        root = r;
    }
    if (!e) {
        e = can_mend(&m) ? mend_all(&m, use, root) : -BANYAN_ENOTSUP;
        if (e == -BANYAN_ENOTSUP || (!e && !good(m.f)))
            e = plan_anew(&m, use, root);
    }
    m.report.seconds = (double)(bny_now_ns() - since) * 1e-9;
    if (report)
        *report = m.report;
    free(m.node);
    free(m.link);
    free(m.room);
    free(m.units);
    free(m.from);
    free(m.joined);
    free(m.queue);
    free(m.via);
    free(m.width);
    if (e)
        bny_forest_free(m.f);
    else
        *out = m.f;
    return e;
}
