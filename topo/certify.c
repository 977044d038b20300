/* SPDX-License-Identifier: BSD-3-Clause */
/* The loads of a forest on the links of a graph, and the proof that little less would do
 * (bound.h). Weights become whole numbers over their least
 * common denominator, so nothing is rounded.
 *
 * SCATTERED and ROOTED forests serve a collective in each direction: the claim is the slower
 * one's, against the larger of the two bounds. An ALLREDUCE forest with 1/n of the data rooted
 * at each rank, certified without `joint`, is a reduce-scatter and an allgather one after the
 * other: its time is the sum of both directions' largest loads. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "topo/bound.h"
#include "topo/cuts.h"
#include "topo/route.h"

#define LOAD_MAX (INT64_MAX / 2) /* of a direction: both together fit, too */

struct loads {
    int64_t unit;       /* loads are multiples of 1/unit of S */
    int64_t *up, *down; /* [nlinks] */
};

static int certify_bad(char *why, size_t cap, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int certify_bad(char *why, size_t cap, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    bny_vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (why && cap)
        snprintf(why, cap, "%s", text);
    return bny_fail(BANYAN_EINVAL, "forest: %s", text);
}

static int common_unit(const struct bny_forest *f, int64_t *unit, char *why, size_t cap)
{
    *unit = 1;
    for (int t = 0; t < f->ntrees; t++) {
        struct bny_ratio r = bny_ratio_of(*unit, f->trees[t].weight_den);

        if (__builtin_mul_overflow(r.num, (int64_t)f->trees[t].weight_den, unit) ||
            *unit > INT64_C(1) << 50)
            return certify_bad(
                why, cap, "weights up to tree %d have no common denominator below 2^50", t);
    }
    return 0;
}

/* Adds a route from node `from` to node `to`, backwards if `back`. */
static int add_route(const struct bny_graph *g, const struct bny_route *r, int from, int to,
                     int back, int64_t share, int64_t *load, const char **what)
{
    int at = back ? to : from, end = back ? from : to;

    *what = "does not go from link to link";
    for (int i = 0; i < r->nlinks; i++) {
        int l = r->links[i], use = l;

        if (l < 0 || l >= g->nlinks || g->links[l].from != at)
            return -1;
        at = g->links[l].to;
        if (back)
            use = g->reverse[l];
        if (use < 0) {
            *what = "crosses a link that has no reverse";
            return -1;
        }
        if (load[use] > LOAD_MAX - share) { /* a cyclic route: shares alone sum to 1 */
            *what = "crosses a link too often";
            return -1;
        }
        load[use] += share;
    }
    *what = "ends elsewhere";
    return at == end ? 0 : -1;
}

static int add_edge(const struct bny_forest *f, const struct bny_graph *g, int t, int v,
                    int64_t share, struct loads *ld, char *why, size_t cap)
{
    const struct bny_tree *tree = &f->trees[t];
    int p = tree->parent[v], q = tree->down_parent ? tree->down_parent[v] : p;
    int a = g->rank_node[v], b = g->rank_node[p], c = g->rank_node[q];
    const char *what;

    if (add_route(g, &tree->up[v], a, b, 0, share, ld->up, &what))
        return certify_bad(why, cap, "tree %d: the path from rank %d to its parent %d %s", t, v,
                           p, what);
    if (tree->down ? add_route(g, &tree->down[v], c, a, 0, share, ld->down, &what)
                   : add_route(g, &tree->up[v], c, a, 1, share, ld->down, &what))
        return certify_bad(why, cap, "tree %d: the path from rank %d down to rank %d %s", t, q,
                           v, what);
    return 0;
}

static void loads_free(struct loads *ld)
{
    free(ld->up);
    free(ld->down);
}

static int loads_of(struct loads *ld, const struct bny_forest *f, const struct bny_graph *g,
                    char *why, size_t cap)
{
    int e;

    memset(ld, 0, sizeof *ld);
    if (f->nranks != g->nranks)
        return certify_bad(why, cap, "it has %d ranks, %s has %d", f->nranks, g->name,
                           g->nranks);
    e = common_unit(f, &ld->unit, why, cap);
    if (e)
        return e;
    ld->up = calloc((size_t)g->nlinks + 1, sizeof *ld->up);
    ld->down = calloc((size_t)g->nlinks + 1, sizeof *ld->down);
    if (!ld->up || !ld->down) {
        loads_free(ld);
        return bny_fail(BANYAN_ENOMEM, "no memory for the loads of %d links", g->nlinks);
    }
    for (int t = 0; t < f->ntrees && !e; t++) {
        const struct bny_tree *tree = &f->trees[t];
        int64_t share = ld->unit / tree->weight_den * tree->weight_num;

        if (f->nranks > 1 && (!tree->up || (tree->down_parent && !tree->down)))
            e = certify_bad(why, cap, "tree %d has no paths through the graph", t);
        for (int v = 0; v < f->nranks && !e; v++)
            if (v != tree->root)
                e = add_edge(f, g, t, v, share, ld, why, cap);
    }
    if (e)
        loads_free(ld);
    return e;
}

/* Largest (a + b) / capacity; b may be NULL. */
static struct bny_ratio largest(const struct bny_graph *g, const int64_t *a, const int64_t *b,
                                int64_t unit)
{
    struct bny_ratio most = bny_ratio_of(0, 1);

    for (int l = 0; l < g->nlinks; l++) {
        struct bny_ratio r = bny_ratio_of(a[l] + (b ? b[l] : 0), g->links[l].cap);

        if (bny_ratio_cmp(r, most) > 0)
            most = r;
    }
    return bny_ratio_div(most, bny_ratio_of(unit, 1));
}

/* 1 if each rank roots 1/n of the data. */
static int even_roots(const struct bny_forest *f, int64_t unit)
{
    int64_t *sum = calloc((size_t)f->nranks, sizeof *sum);
    int even = sum != NULL;

    for (int t = 0; sum && t < f->ntrees; t++)
        sum[f->trees[t].root] += unit / f->trees[t].weight_den * f->trees[t].weight_num;
    for (int r = 0; sum && r < f->nranks; r++)
        even &= unit % f->nranks == 0 && sum[r] == unit / f->nranks;
    free(sum);
    return even;
}

static struct bny_ratio time_of(const struct loads *ld, const struct bny_graph *g,
                                enum bny_forest_use use, int apart)
{
    struct bny_ratio up = largest(g, ld->up, NULL, ld->unit),
                     down = largest(g, ld->down, NULL, ld->unit);

    if (use == BNY_FOREST_ALLREDUCE)
        return apart ? bny_ratio_add(up, down) : largest(g, ld->up, ld->down, ld->unit);
    return bny_ratio_cmp(up, down) > 0 ? up : down;
}

static int bound_for(struct bny_bound *b, const struct bny_graph *g, enum bny_forest_use use,
                     int root, int apart)
{
    struct bny_bound other;
    int e;

    if (use == BNY_FOREST_ALLREDUCE)
        return apart ? bny_bound_rs_ag(b, g) : bny_bound_allreduce(b, g);
    e = use == BNY_FOREST_ROOTED ? bny_bound_rooted(b, g, root, 0) : bny_bound_allgather(b, g);
    if (e || bny_graph_is_symmetric(g))
        return e;
    e = use == BNY_FOREST_ROOTED ? bny_bound_rooted(&other, g, root, 1)
                                 : bny_bound_reduce_scatter(&other, g);
    if (e) {
        bny_bound_free(b);
        return e;
    }
    if (bny_ratio_cmp(other.value, b->value) > 0) {
        bny_bound_free(b);
        *b = other;
    } else {
        bny_bound_free(&other);
    }
    return 0;
}

int bny_forest_certify(struct bny_forest *f, const struct bny_graph *g, enum bny_forest_use use,
                       int root, int joint)
{
    struct loads ld;
    struct bny_bound b;
    int e = loads_of(&ld, f, g, NULL, 0), apart;

    if (e)
        return e;
    apart = !joint && even_roots(f, ld.unit);
    e = bound_for(&b, g, use, root, apart);
    if (!e) {
        f->claim.time = time_of(&ld, g, use, apart);
        free(f->claim.cut);
        bny_dual_free(f->claim.dual);
        f->claim.bound = b.value;
        f->claim.cut_kind = (int)b.kind;
        f->claim.cut = b.cut;
        f->claim.cut_nodes = b.cut_nodes;
        f->claim.dual = b.dual;
        if (!bny_ratio_ok(f->claim.time))
            e = bny_fail(BANYAN_ENOTSUP, "the loads of forest %s do not fit in 64 bits",
                         f->name);
    }
    loads_free(&ld);
    return e;
}

/* Ratio demand / capacity of one direction's cut; {1, 0} if the cut proves nothing. */
static struct bny_ratio one_cut(const struct bny_graph *g, const uint8_t *cut, int mask,
                                int reversed)
{
    int ranks = bny_cut_ranks(g, cut, mask);
    int64_t cap = bny_cut_out(g, cut, mask, reversed);

    return ranks == 0 || ranks == g->nranks || cap <= 0 ? (struct bny_ratio){ 1, 0 }
                                                        : bny_ratio_of(ranks, cap);
}

/* The bit of the set that bounds reduce-scatter (BNY_CUT_OUT_IN). */
static int in_bit(const struct bny_claim *c)
{
    for (int v = 0; v < c->cut_nodes; v++)
        if (c->cut[v] & 2)
            return 2;
    return 1;
}

static struct bny_ratio split_value(const struct bny_graph *g, const uint8_t *cut)
{
    struct bny_ratio out = one_cut(g, cut, 1, 0), in = one_cut(g, cut, 1, 1);
    int64_t a, b;

    if (!bny_ratio_ok(out) || !bny_ratio_ok(in))
        return (struct bny_ratio){ 1, 0 };
    a = bny_cut_out(g, cut, 1, 0);
    b = bny_cut_out(g, cut, 1, 1);
    return bny_ratio_of(1, a < b ? a : b);
}

/* The bound that the claim's cut proves on this graph, from the cut alone. */
static struct bny_ratio proven(const struct bny_claim *c, const struct bny_graph *g, int root)
{
    struct bny_ratio n = bny_ratio_of(g->nranks, 1), none = { 1, 0 };

    if (c->cut_kind != BNY_CUT_NONE && (!c->cut || c->cut_nodes != g->nnodes))
        return none;
    switch ((enum bny_cut_kind)c->cut_kind) {
    case BNY_CUT_NONE: return bny_ratio_of(0, 1);
    case BNY_CUT_OUT: return bny_ratio_div(one_cut(g, c->cut, 0xff, 0), n);
    case BNY_CUT_IN: return bny_ratio_div(one_cut(g, c->cut, 0xff, 1), n);
    case BNY_CUT_OUT_IN:
        return bny_ratio_div(
            bny_ratio_add(one_cut(g, c->cut, 1, 0), one_cut(g, c->cut, in_bit(c), 1)), n);
    case BNY_CUT_SPLIT: return split_value(g, c->cut);
    case BNY_CUT_PORTS: return bny_bound_ports(g);
    case BNY_CUT_PARTS: return bny_bound_parts(g, c->cut);
    case BNY_CUT_LP: return c->dual ? bny_dual_value(c->dual, g) : none;
    case BNY_CUT_ROOT_OUT:
    case BNY_CUT_ROOT_IN:
        if (root < 0 || root >= g->nranks || !c->cut[g->rank_node[root]] ||
            bny_cut_ranks(g, c->cut, 0xff) == g->nranks)
            return none;
        return bny_ratio_of(1, bny_cut_out(g, c->cut, 0xff, c->cut_kind == BNY_CUT_ROOT_IN));
    }
    return none;
}

static int fits(int kind, enum bny_forest_use use)
{
    switch (use) {
    case BNY_FOREST_ROOTED: return kind == BNY_CUT_ROOT_OUT || kind == BNY_CUT_ROOT_IN;
    case BNY_FOREST_SCATTERED: return kind == BNY_CUT_OUT || kind == BNY_CUT_IN;
    case BNY_FOREST_ALLREDUCE:
        return kind == BNY_CUT_OUT_IN || kind == BNY_CUT_SPLIT || kind == BNY_CUT_PORTS ||
               kind == BNY_CUT_PARTS || kind == BNY_CUT_LP;
    }
    return 0;
}

int bny_forest_recheck(const struct bny_forest *f, const struct bny_graph *g,
                       enum bny_forest_use use, int root, char *why, size_t why_cap)
{
    const struct bny_claim *c = &f->claim;
    struct bny_ratio time, bound;
    struct loads ld;
    char text[2][48];
    int e = bny_forest_check(f, use, root, why, why_cap), even;

    if (!e)
        e = loads_of(&ld, f, g, why, why_cap);
    if (e)
        return e;
    even = even_roots(f, ld.unit);
    time = time_of(&ld, g, use, c->cut_kind == BNY_CUT_OUT_IN);
    loads_free(&ld);
    if (c->cut_kind != BNY_CUT_NONE && !fits(c->cut_kind, use))
        return certify_bad(why, why_cap, "a cut of kind %d proves nothing for this use",
                           c->cut_kind);
    if ((c->cut_kind == BNY_CUT_OUT_IN || use == BNY_FOREST_SCATTERED) && !even)
        return certify_bad(
            why, why_cap,
            "its cut counts 1/%d of the data rooted at each rank, which is not so", f->nranks);
    if (!bny_ratio_ok(c->time) || c->time.num < 0 || bny_ratio_cmp(time, c->time))
        return certify_bad(why, why_cap, "the links take %s, the claim says %s",
                           bny_ratio_text(time, text[0], 48),
                           bny_ratio_text(c->time, text[1], 48));
    bound = proven(c, g, root);
    if (!bny_ratio_ok(bound))
        return certify_bad(why, why_cap, "its cut is not one of %s", g->name);
    if (!bny_ratio_ok(c->bound) || bny_ratio_cmp(bound, c->bound))
        return certify_bad(why, why_cap, "the cut proves %s, the claim says %s",
                           bny_ratio_text(bound, text[0], 48),
                           bny_ratio_text(c->bound, text[1], 48));
    return 0;
}
