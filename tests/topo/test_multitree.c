/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of MultiTree: the published step counts in reference mode, the lock-step optima in
 * fixed mode; no link carries more in a step than it can; routes join what they say;
 * capacities, sub-chunks, height caps, graphs that are not the same backwards. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "topo/multitree.h"

/* Smaller cases where the machine or a sanitizer is slow. */
static int small_scale(void)
{
    const char *scale = getenv("BANYAN_TEST_SCALE");

    return scale && atof(scale) < 1;
}

static struct bny_graph *graph(const char *text)
{
    struct bny_graph *g;
    int e = bny_graph_make(&g, text);

    cr_assert_eq(e, 0, "%s: %s", text, banyan_last_error());
    return g;
}

static struct bny_forest *forest(const struct bny_graph *g, const char *name,
                                 enum bny_forest_use use, int root,
                                 const struct bny_build_opts *opts)
{
    struct bny_forest *f;
    char why[256] = "";
    int e = bny_graph_builder_find(name)->build(&f, g, use, root, opts);

    cr_assert_eq(e, 0, "%s on %s: %s", name, g->name, banyan_last_error());
    e = bny_forest_check(f, use, root, why, sizeof why);
    cr_assert_eq(e, 0, "%s on %s: %s", name, g->name, why);
    return f;
}

struct expected {
    const char *topo;
    uint32_t steps;
    int large;
};

static void check_steps(const char *name, const struct expected *x)
{
    struct bny_graph *g;
    struct bny_multitree m;
    int *roots;

    if (x->large && small_scale())
        return;
    g = graph(x->topo);
    roots = malloc((size_t)g->nranks * sizeof *roots);
    for (int r = 0; r < g->nranks; r++)
        roots[r] = r;
    cr_assert_eq(bny_multitree_grow(&m, g, roots, g->nranks, 0,
                                    strcmp(name, "multitree") ? BNY_MULTITREE_REFERENCE : 0),
                 0);
    cr_assert_eq(m.nsteps, x->steps, "%s on %s takes %u steps, not %u", name, x->topo, m.nsteps,
                 x->steps);
    bny_multitree_free(&m);
    free(roots);
    bny_graph_free(g);
}

Test(multitree, reference_takes_the_published_steps)
{
    static const struct expected all[] = {
        { "torus:4x4", 5, 0 },   { "torus:8x8", 17, 0 },   { "mesh:4x4", 10, 0 },
        { "mesh:8x8", 33, 0 },   { "bigraph:4x8", 31, 0 }, { "bigraph:4x16", 63, 0 },
        { "fattree:16", 15, 0 }, { "fattree:64", 63, 0 },
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_steps("multitree_reference", &all[i]);
}

Test(multitree, fixed_reaches_the_lock_step_optimum)
{
    static const struct expected all[] = {
        { "torus:4x4", 5, 0 },        { "torus:8x8", 17, 0 },    { "mesh:4x4", 8, 0 },
        { "mesh:8x8", 32, 0 },        { "torus:16x16", 64, 0 },  { "torus:32x32", 256, 1 },
        { "mesh:16x16", 128, 0 },     { "torus:4x4x4", 12, 0 },  { "torus:8x8x8", 86, 1 },
        { "torus:10x10x10", 167, 1 }, { "hypercube:4", 5, 0 },   { "hypercube:10", 104, 1 },
        { "bigraph:4x8", 31, 0 },     { "bigraph:4x16", 63, 0 }, { "fattree:16", 15, 0 },
        { "fattree:64", 63, 0 },
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_steps("multitree", &all[i]);
}

/* ---- forests ------------------------------------------------------------------------------
 */

static const int *down_parents(const struct bny_tree *t)
{
    return t->down_parent ? t->down_parent : t->parent;
}

/* Routes lead from rank to rank over links that follow one another. */
static void check_route(const struct bny_graph *g, const struct bny_route *r, int from, int to)
{
    int at = g->rank_node[from];

    cr_assert_gt(r->nlinks, 0);
    for (int i = 0; i < r->nlinks; i++) {
        cr_assert_eq(g->links[r->links[i]].from, at);
        at = g->links[r->links[i]].to;
    }
    cr_assert_eq(at, g->rank_node[to]);
}

static void check_routes(const struct bny_graph *g, const struct bny_forest *f)
{
    for (int t = 0; t < f->ntrees; t++) {
        const struct bny_tree *tree = &f->trees[t];

        for (int v = 0; v < f->nranks; v++) {
            if (v == tree->root)
                continue;
            check_route(g, &tree->up[v], v, tree->parent[v]);
            check_route(g, &tree->down[v], down_parents(tree)[v], v);
        }
    }
}

/* The most edges that a link carries in one step of one direction, per unit of capacity. */
static int crowd(const struct bny_graph *g, const struct bny_forest *f, int down, int64_t unit)
{
    int *load = calloc((size_t)g->nlinks * f->nsteps, sizeof *load), most = 0;

    for (int t = 0; t < f->ntrees; t++)
        for (int v = 0; v < f->nranks; v++) {
            const struct bny_tree *tree = &f->trees[t];
            const struct bny_route *r = down ? &tree->down[v] : &tree->up[v];
            uint32_t step = down && tree->down_step ? tree->down_step[v] : tree->step[v];

            for (int i = 0; i < r->nlinks; i++) {
                int64_t cap = g->links[r->links[i]].cap / unit;
                int *cell = &load[(size_t)step * (size_t)g->nlinks + (size_t)r->links[i]];

                ++*cell;
                if ((*cell + cap - 1) / cap > most)
                    most = (int)((*cell + cap - 1) / cap);
            }
        }
    free(load);
    return most;
}

static int height(const struct bny_forest *f)
{
    int most = 0;

    for (int t = 0; t < f->ntrees; t++)
        for (int v = 0; v < f->nranks; v++) {
            int h = 0;

            for (int u = v; u != f->trees[t].root; u = f->trees[t].parent[u])
                h++;
            most = h > most ? h : most;
        }
    return most;
}

Test(multitree, no_link_carries_more_in_a_step_than_it_can)
{
    static const struct {
        const char *topo;
        int unit;
    } all[] = { { "torus:4x4", 1 },  { "mesh:4x8", 1 },    { "torus:2x3x4", 1 },
                { "fattree:16", 1 }, { "bigraph:4x8", 1 }, { "dgx-a100:2", 25 },
                { "ring:7", 1 } };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct bny_graph *g = graph(all[i].topo);
        const enum bny_forest_use uses[] = { BNY_FOREST_ALLREDUCE, BNY_FOREST_SCATTERED };

        for (int u = 0; u < 2; u++)
            for (int reference = 0; reference < 2; reference++) {
                struct bny_forest *f = forest(
                    g, reference ? "multitree_reference" : "multitree", uses[u], 0, NULL);

                check_routes(g, f);
                cr_assert_eq(crowd(g, f, 0, all[i].unit), 1, "%s", g->name);
                cr_assert_eq(crowd(g, f, 1, all[i].unit), 1, "%s", g->name);
                bny_forest_free(f);
            }
        bny_graph_free(g);
    }
}

/* Whole shards on a 4 x 4 torus take 5 steps where 3.75 would do; cut in k they come near. */
Test(multitree, sub_chunks_come_near_the_fluid_bound)
{
    struct bny_graph *g = graph("torus:4x4");
    double steps = 5;

    for (int k = 2; k <= 16; k *= 2) {
        struct bny_build_opts opts = { .k = k };
        struct bny_forest *f = forest(g, "multitree", BNY_FOREST_ALLREDUCE, 0, &opts);

        steps = (double)f->nsteps / k;
        cr_assert_eq(f->ntrees, 16 * k);
        cr_assert(steps >= 3.75 && steps <= 4.5, "k=%d: %g", k, steps);
        bny_forest_free(f);
    }
    cr_assert_leq(steps, 3.75 * 1.08);
    bny_graph_free(g);
}

Test(multitree, height_cap_holds_and_says_when_it_cannot)
{
    struct bny_graph *g = graph("torus:6x6");
    struct bny_build_opts opts = { .height_cap = 5 };
    struct bny_forest *f = NULL;

    cr_assert_eq(
        bny_graph_builder_find("multitree")->build(&f, g, BNY_FOREST_ALLREDUCE, 0, &opts),
        -BANYAN_EINVAL);
    cr_assert_null(f);
    cr_assert(strstr(banyan_last_error(), "height"));
    for (opts.height_cap = 6; opts.height_cap < 9; opts.height_cap++) {
        f = forest(g, "multitree", BNY_FOREST_ALLREDUCE, 0, &opts);
        cr_assert_leq(height(f), opts.height_cap);
        bny_forest_free(f);
    }
    bny_graph_free(g);
}

Test(multitree, rooted_forests_use_every_link_of_the_root)
{
    struct bny_graph *g = graph("torus:4x4");

    for (int root = 0; root < 16; root += 5) {
        struct bny_forest *f = forest(g, "multitree", BNY_FOREST_ROOTED, root, NULL);

        cr_assert_eq(f->ntrees, 4);
        cr_assert_leq(f->nsteps, 16);
        check_routes(g, f);
        bny_forest_free(f);
    }
    bny_graph_free(g);
}

/* A one-way ring: reducing cannot run the broadcast's edges backwards. */
Test(multitree, graphs_that_are_not_the_same_backwards_get_two_forests)
{
    struct bny_graph *g = bny_graph_alloc("one-way");
    struct bny_forest *f;

    for (int r = 0; r < 5; r++)
        cr_assert_eq(bny_graph_node(g, BNY_NODE_COMPUTE, r, NULL), r);
    for (int r = 0; r < 5; r++)
        bny_graph_link(g, r, (r + 1) % 5, 1 + r % 2, 0);
    cr_assert_eq(bny_graph_freeze(g), 0);
    f = forest(g, "multitree", BNY_FOREST_ALLREDUCE, 0, NULL);
    check_routes(g, f);
    for (int t = 0; t < 5; t++)
        for (int v = 0; v < 5; v++)
            if (v != t) {
                cr_assert_eq(f->trees[t].parent[v], (v + 1) % 5);
                cr_assert_eq(f->trees[t].down_parent[v], (v + 4) % 5);
            }
    bny_forest_free(f);
    bny_graph_free(g);
}

Test(multitree, one_rank_is_a_forest_of_no_edges)
{
    struct bny_graph *g = graph("star:1");
    struct bny_forest *f = forest(g, "multitree", BNY_FOREST_ALLREDUCE, 0, NULL);

    cr_assert_eq(f->nsteps, 0);
    bny_forest_free(f);
    bny_graph_free(g);
}
