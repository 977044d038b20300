/* SPDX-License-Identifier: BSD-3-Clause */
/* packed: trees that reach the cut bound (ForestColl, arXiv 2402.06787, with own methods for
 * each step). Every root's share is k equal units; capacities
 * are floor(U cap) for the least U at which all cuts carry the units, and pack.h finds the
 * trees. With as many units as the bound's denominator the packing is exactly optimal; fewer
 * units within a thousandth of that give fewer trees.
 *
 * With a cap on the height, only trees by levels are tried, in growing capacities.
 *
 * Scattered and allreduce: trees of all roots; on asymmetric graphs the trees of the reducing
 * direction are packed separately. Rooted: all trees from one root (Edmonds). */
#include "topo/packed.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/build_graph.h"
#include "topo/cuts.h"

#define FEW_UNITS 16
#define GOOD_GAP  1e-3
#define FEW_RANKS 32 /* a search among so few is quick */

void bny_plan_size_free(struct bny_plan_size *s)
{
    free(s->need);
    free(s->cap);
    memset(s, 0, sizeof *s);
}

static int64_t floor_mul(int64_t cap, struct bny_ratio u)
{
    __extension__ typedef __int128 wide;

    return (int64_t)((wide)cap * u.num / u.den);
}

/* The least U above u at which the cut's capacity reaches `units`. */
static struct bny_ratio raise(const struct bny_graph *g, const uint8_t *cut, int reversed,
                              struct bny_ratio u, int64_t units)
{
    for (;;) {
        struct bny_ratio next = { 1, 0 };
        int64_t sum = 0;

        for (int l = 0; l < g->nlinks; l++) {
            int from = cut[g->links[l].from], to = cut[g->links[l].to];
            struct bny_ratio here;

            if (reversed ? !to || from : !from || to)
                continue;
            sum += floor_mul(g->links[l].cap, u);
            here = bny_ratio_of(floor_mul(g->links[l].cap, u) + 1, g->links[l].cap);
            if (!next.den || bny_ratio_cmp(here, next) < 0)
                next = here;
        }
        if (sum >= units || !next.den)
            return u;
        u = next;
    }
}

static int alloc_size(struct bny_plan_size *s, const struct bny_graph *g, int root, int64_t k)
{
    memset(s, 0, sizeof *s);
    s->k = k;
    s->need = calloc((size_t)g->nranks, sizeof *s->need);
    s->cap = calloc((size_t)g->nlinks + 1, sizeof *s->cap);
    if (!s->need || !s->cap) {
        bny_plan_size_free(s);
        return bny_fail(BANYAN_ENOMEM, "no memory to plan trees on %s", g->name);
    }
    for (int r = 0; r < g->nranks; r++)
        s->need[r] = root < 0 || r == root ? k : 0;
    return 0;
}

static int find_u(struct bny_plan_size *s, const struct bny_graph *g, struct bny_cuts *c,
                  uint8_t *mark, struct bny_ratio *u, int reversed)
{
    for (int t = 0;;) {
        int64_t units = 0;

        for (int l = 0; l < g->nlinks; l++) {
            s->cap[l] = floor_mul(g->links[l].cap, *u);
            bny_cuts_cap(c, l, s->cap[l]);
        }
        t = bny_cuts_violated(c, t, mark);
        if (t == g->nranks)
            return 0;
        for (int r = 0; r < g->nranks; r++)
            units += mark[g->rank_node[r]] ? s->need[r] : 0;
        *u = raise(g, mark, reversed, *u, units);
        if (!bny_ratio_ok(*u))
            return bny_fail(BANYAN_ENOTSUP,
                            "the capacities of %s are too uneven to plan in 64 bits", g->name);
    }
}

int bny_plan_size_k(struct bny_plan_size *s, const struct bny_graph *g, struct bny_ratio bound,
                    int root, int reversed, int64_t k)
{
    struct bny_ratio u = bny_ratio_mul(bound, bny_ratio_of(k, 1)), first = u;
    uint8_t *mark = malloc((size_t)g->nnodes + 1);
    struct bny_cuts c;
    int e = alloc_size(s, g, root, k);

    if (!e && !bny_ratio_ok(u))
        e = bny_fail(BANYAN_ENOTSUP, "the bound of %s is too uneven to plan in 64 bits",
                     g->name);
    if (!e && !mark)
        e = bny_fail(BANYAN_ENOMEM, "no memory to plan trees on %s", g->name);
    if (!e)
        e = bny_cuts_of_graph(&c, g, reversed);
    if (!e) {
        for (int r = 0; r < g->nranks; r++)
            bny_cuts_need(&c, r, s->need[r]);
        e = find_u(s, g, &c, mark, &u, reversed);
        bny_cuts_free(&c);
        s->gap = bny_ratio_value(u) / bny_ratio_value(first) - 1;
    }
    free(mark);
    if (e)
        bny_plan_size_free(s);
    return e;
}

int bny_plan_size_free_k(struct bny_plan_size *s, const struct bny_graph *g,
                         struct bny_ratio bound, int root, int reversed, int most)
{
    struct bny_ratio whole = bny_ratio_mul(bound, bny_ratio_of(bny_graph_common_cap(g), 1));

    for (int64_t k = 1; k <= most && k < whole.den; k++) {
        int e = bny_plan_size_k(s, g, bound, root, reversed, k);

        if (e || s->gap <= GOOD_GAP)
            return e;
        bny_plan_size_free(s);
    }
    return bny_plan_size_k(s, g, bound, root, reversed, whole.den);
}

/* `stretch` >= 1: factor above the optimum that the links may carry, for low trees (levels). */
struct wish {
    int root, k; /* -1: all roots; 0: the fewest units near the optimum */
    struct bny_ratio stretch;
    enum bny_pack_how how;
};

static int pack_one_way(struct bny_pack *p, const struct bny_graph *g, const struct wish *w,
                        int reversed)
{
    struct bny_bound b;
    struct bny_plan_size s = { 0 };
    struct bny_ratio time;
    int e;

    memset(p, 0, sizeof *p);
    if (w->root >= 0)
        e = bny_bound_rooted(&b, g, w->root, reversed);
    else
        e = reversed ? bny_bound_reduce_scatter(&b, g) : bny_bound_allgather(&b, g);
    if (e)
        return e;
    time = bny_ratio_mul(w->root < 0 ? b.shard : b.value, w->stretch);
    bny_bound_free(&b);
    if (w->k > 0)
        e = bny_plan_size_k(&s, g, time, w->root, reversed, w->k);
    else
        e = bny_plan_size_free_k(&s, g, time, w->root, reversed, FEW_UNITS);
    if (!e)
        e = bny_pack_graph(p, g, s.cap, s.need, reversed, w->how);
    bny_plan_size_free(&s);
    return e;
}

static int one_rank(struct bny_forest **out)
{
    struct bny_forest *f = bny_forest_alloc("packed", 1, 1);

    return f ? bny_forest_finish(out, f) : bny_forest_no_memory("packed", 1);
}

static int build_one(struct bny_forest **out, const struct bny_graph *g,
                     enum bny_forest_use use, const struct wish *w)
{
    int same = bny_graph_is_symmetric(g), e;
    struct bny_pack down, up = { 0 };

    e = pack_one_way(&down, g, w, 0);
    if (!e && !same)
        e = pack_one_way(&up, g, w, 1);
    if (!e)
        e = bny_pack_forest(out, "packed", g, &down, same ? NULL : &up);
    bny_pack_free(&down);
    bny_pack_free(&up);
    if (!e)
        e = bny_forest_certify(*out, g, use, w->root, 0);
    if (e) {
        bny_forest_free(*out);
        *out = NULL;
    }
    return e;
}

/* Packings of growing load until one is low enough; steps count the height. */
static int build_low(struct bny_forest **out, const struct bny_graph *g,
                     enum bny_forest_use use, struct wish *w, int cap, int quick)
{
    static const struct bny_ratio stretch[] = { { 1, 1 },  { 21, 20 }, { 6, 5 }, { 3, 2 },
                                                { 2, 1 },  { 3, 1 },   { 4, 1 }, { 8, 1 },
                                                { 16, 1 }, { 32, 1 } };

    w->how = quick && g->nranks > FEW_RANKS ? BNY_PACK_QUICK : BNY_PACK_LEVELS;
    for (size_t i = 0; i < sizeof stretch / sizeof stretch[0]; i++) {
        int e;

        w->stretch = stretch[i];
        e = build_one(out, g, use, w);
        if (e && e != -BANYAN_ENOTSUP)
            return e;
        if (!e && (int)(*out)->nsteps <= cap)
            return 0;
        bny_forest_free(*out);
        *out = NULL;
    }
    return bny_fail(BANYAN_ENOTSUP, "found no packed trees of height %d on %s", cap, g->name);
}

/* Below switches with one port per rank a ring ordered by location is such a packing, too, and
 * found at once. */
static int build_ring(struct bny_forest **out, const struct bny_graph *g,
                      enum bny_forest_use use)
{
    int e = bny_build_ordered_ring.build(out, g, use, -1, NULL);

    if (!e)
        e = bny_forest_certify(*out, g, use, -1, 0);
    if (!e && bny_ratio_cmp((*out)->claim.time, (*out)->claim.bound) == 0) {
        strcpy((*out)->name, "packed");
        return 0;
    }
    bny_forest_free(*out);
    *out = NULL;
    return e ? e : -BANYAN_ENOTSUP;
}

static int build_free(struct bny_forest **out, const struct bny_graph *g,
                      enum bny_forest_use use, struct wish *w)
{
    int e;

    w->how = BNY_PACK_QUICK;
    e = build_one(out, g, use, w);
    if (e != -BANYAN_ENOTSUP)
        return e;
    if (w->root < 0 && !w->k && build_ring(out, g, use) == 0)
        return 0;
    w->how = BNY_PACK_ANY;
    return build_one(out, g, use, w);
}

static int packed_build(struct bny_forest **out, const struct bny_graph *g,
                        enum bny_forest_use use, int root, const struct bny_build_opts *opts)
{
    struct wish w = { .root = use == BNY_FOREST_ROOTED ? root : -1,
                      .k = opts ? opts->k : 0,
                      .stretch = { 1, 1 } };
    int e;

    *out = NULL;
    if (g->nranks == 1)
        return one_rank(out);
    e = build_free(out, g, use, &w);
    if (!opts || !opts->height_cap)
        return e;
    if (!e && (int)(*out)->nsteps <= opts->height_cap)
        return 0;
    bny_forest_free(*out);
    *out = NULL;
    return e && e != -BANYAN_ENOTSUP
               ? e
               : build_low(out, g, use, &w, opts->height_cap, opts->quick);
}

const struct bny_graph_builder_ops bny_build_packed = {
    .name = "packed",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED | BNY_FOREST_ROOTED,
    .build = packed_build,
};
