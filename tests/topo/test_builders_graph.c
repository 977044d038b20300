/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of builders that look at the graph, and of those with patterns of their own: on
 * every graph of the list a forest that passes the check, with routes that lead where they say
 * and a claim that can be checked again; its programs are proven. Builders refuse what they
 * cannot serve with a reason. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "collectives/program/program.h"
#include "topo/bound.h"
#include "topo/route.h"

static const char *const topos[] = {
    "torus:4x4",   "torus:3x5",    "torus:2x4x4",
    "torus:8x8",   "mesh:4x4",     "mesh:3x3",
    "ring:2",      "ring:7",       "ring:8",
    "hypercube:3", "star:1",       "star:5",
    "fattree:16",  "bigraph:4x8",  "dgx-a100:2",
    "dgx-1",       "star:2x4+3x1", "leafspine:4x4,over=2",
};

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

static void check_routes(const struct bny_graph *g, const struct bny_forest *f)
{
    for (int t = 0; t < f->ntrees; t++)
        for (int v = 0; v < f->nranks; v++) {
            const struct bny_tree *tree = &f->trees[t];
            int down = tree->down_parent ? tree->down_parent[v] : tree->parent[v];

            if (v == tree->root)
                continue;
            for (int d = 0; d < 2; d++) {
                const struct bny_route *r = d ? &tree->down[v] : &tree->up[v];
                int at = g->rank_node[d ? down : v];

                for (int i = 0; i < r->nlinks; i++) {
                    cr_assert_eq(g->links[r->links[i]].from, at, "%s on %s", f->name, g->name);
                    at = g->links[r->links[i]].to;
                }
                cr_assert_eq(at, g->rank_node[d ? v : tree->parent[v]], "%s on %s", f->name,
                             g->name);
            }
        }
}

static void prove(const struct bny_forest *f, enum bny_collective c, const char *topo)
{
    struct bny_program **p = calloc((size_t)f->nranks, sizeof *p);
    char why[256] = "";

    for (int coalesce = 0; coalesce < 2; coalesce++) {
        for (int r = 0; r < f->nranks; r++)
            cr_assert_eq(bny_compile(&p[r], f, c, r, coalesce), 0, "%s", banyan_last_error());
        for (int slots = 0; slots < 5; slots += 4)
            cr_assert_eq(bny_program_verify(p, f->nranks, slots, why, sizeof why), 0,
                         "%s of %s on %s: %s", bny_collective_name(c), f->name, topo, why);
        for (int r = 0; r < f->nranks; r++)
            bny_program_free(p[r]);
    }
    free(p);
}

static int check_use(const struct bny_graph_builder_ops *b, const struct bny_graph *g,
                     enum bny_forest_use use, int root, const struct bny_build_opts *opts)
{
    struct bny_forest *f = NULL;
    char why[256] = "";
    int e = b->build(&f, g, use, root, opts);

    if (e == -BANYAN_ENOTSUP) {
        cr_assert_null(f);
        cr_assert_neq(banyan_last_error()[0], 0);
        return 0;
    }
    cr_assert_eq(e, 0, "%s on %s: %s", b->name, g->name, banyan_last_error());
    cr_assert(b->uses & use);
    cr_assert_eq(bny_forest_check(f, use, root, why, sizeof why), 0, "%s on %s: %s", b->name,
                 g->name, why);
    check_routes(g, f);
    if (f->claim.time.den && g->nranks > 1) {
        cr_assert_eq(bny_forest_recheck(f, g, use, root, why, sizeof why), 0, "%s on %s: %s",
                     b->name, g->name, why);
        cr_assert_geq(bny_ratio_cmp(f->claim.time, f->claim.bound), 0);
    }
    if (f->ntrees <= 256 && (!small_scale() || g->nranks <= 16)) {
        if (use == BNY_FOREST_ALLREDUCE)
            prove(f, BNY_ALLREDUCE, g->name);
        if (use == BNY_FOREST_SCATTERED &&
            f->ntrees == g->nranks) { /* programs want one a rank */
            prove(f, BNY_REDUCE_SCATTER, g->name);
            prove(f, BNY_ALLGATHER, g->name);
        }
        if (use == BNY_FOREST_ROOTED) {
            prove(f, BNY_REDUCE, g->name);
            prove(f, BNY_BROADCAST, g->name);
        }
    }
    bny_forest_free(f);
    return 1;
}

Test(builders_graph, every_forest_is_checked_routed_claimed_and_proven)
{
    const enum bny_forest_use uses[] = { BNY_FOREST_ALLREDUCE, BNY_FOREST_SCATTERED,
                                         BNY_FOREST_ROOTED };

    const struct bny_build_opts one = { .k = 1 };

    for (int b = 0; bny_graph_builders[b]; b++) {
        int made = 0;

        for (size_t i = 0; i < sizeof topos / sizeof *topos; i++) {
            struct bny_graph *g = graph(topos[i]);

            for (int u = 0; u < 3; u++)
                made += check_use(bny_graph_builders[b], g, uses[u], g->nranks * 2 / 3, NULL);
            check_use(bny_graph_builders[b], g, BNY_FOREST_SCATTERED, 0, &one);
            bny_graph_free(g);
        }
        cr_assert_geq(made, 4, "%s", bny_graph_builders[b]->name);
    }
}

Test(builders_graph, registry_finds_every_builder_by_its_name)
{
    for (int i = 0; bny_graph_builders[i]; i++) {
        cr_assert_eq(bny_graph_builder_find(bny_graph_builders[i]->name),
                     bny_graph_builders[i]);
        cr_assert_null(bny_builder_find(bny_graph_builders[i]->name),
                       "two builders have one name");
    }
    cr_assert_null(bny_graph_builder_find("no such builder"));
}

/* Mirrored buckets are optimal on tori of one size: their claim is the bound. */
Test(builders_graph, mirrored_buckets_reach_the_bound_on_square_tori)
{
    static const char *const square[] = { "torus:4x4", "torus:6x6", "torus:3x3", "torus:4x4x4",
                                          "ring:9" };

    for (int i = 0; i < 5; i++) {
        struct bny_graph *g = graph(square[i]);
        struct bny_forest *f;

        cr_assert_eq(
            bny_graph_builder_find("torus_bucket")->build(&f, g, BNY_FOREST_ALLREDUCE, 0, NULL),
            0);
        cr_assert_eq(bny_ratio_cmp(f->claim.time, f->claim.bound), 0, "%s", square[i]);
        bny_forest_free(f);
        bny_graph_free(g);
    }
}

/* All hops of the ordered ring are between neighbours where the grid has a cycle. */
Test(builders_graph, ordered_ring_goes_from_neighbour_to_neighbour)
{
    static const char *const even[] = { "torus:4x4", "mesh:4x6",  "mesh:5x4",
                                        "mesh:4x5",  "torus:4x3", "mesh:2x2" };

    for (int i = 0; i < 6; i++) {
        struct bny_graph *g = graph(even[i]);
        struct bny_forest *f;

        cr_assert_eq(
            bny_graph_builder_find("ordered_ring")->build(&f, g, BNY_FOREST_ALLREDUCE, 0, NULL),
            0);
        for (int t = 0; t < f->ntrees; t++)
            for (int v = 0; v < f->nranks; v++)
                cr_assert(v == f->trees[t].root || f->trees[t].up[v].nlinks == 1, "%s rank %d",
                          even[i], v);
        bny_forest_free(f);
        bny_graph_free(g);
    }
}

static int messages_of(const char *name, int n, enum bny_forest_use use, enum bny_collective c,
                       int rank)
{
    struct bny_forest *f;
    struct bny_program *p;
    int messages = 0;

    cr_assert_eq(bny_builder_find(name)->build(&f, n, use, 0), 0);
    cr_assert_eq(bny_compile(&p, f, c, rank, 1), 0);
    for (uint32_t i = 0; i < p->nsteps; i++)
        messages += p->steps[i].kind == BNY_SEND || p->steps[i].kind == BNY_FORWARD;
    bny_program_free(p);
    bny_forest_free(f);
    return messages;
}

Test(builders_graph, log_step_patterns_send_as_few_messages_as_they_say)
{
    for (int n = 2, l = 1; n <= 64; n *= 2, l++)
        for (int r = 0; r < n; r++) {
            cr_assert_eq(messages_of("bine", n, BNY_FOREST_ALLREDUCE, BNY_ALLREDUCE, r), 2 * l,
                         "n=%d", n);
            cr_assert_eq(messages_of("pat", n, BNY_FOREST_ALLREDUCE, BNY_ALLREDUCE, r), 2 * l,
                         "n=%d", n);
            cr_assert_leq(messages_of("bine", n, BNY_FOREST_SCATTERED, BNY_ALLGATHER, r),
                          2 * l - (l > 0), "n=%d", n);
        }
    for (int n = 3, d = 1; n <= 81; n *= 3, d++)
        for (int r = 0; r < n; r++)
            cr_assert_eq(messages_of("trivance", n, BNY_FOREST_ALLREDUCE, BNY_ALLREDUCE, r),
                         4 * d, "n=%d", n);
}

/* Bine's partners are at most n/3 away, halving's n/2. */
Test(builders_graph, bine_partners_are_nearer)
{
    for (int n = 8; n <= 64; n *= 2) {
        struct bny_forest *f;
        int far = 0;

        cr_assert_eq(bny_builder_find("bine")->build(&f, n, BNY_FOREST_ALLREDUCE, 0), 0);
        for (int t = 0; t < f->ntrees; t++)
            for (int v = 0; v < n; v++) {
                int d = v == f->trees[t].root ? 0 : abs(v - f->trees[t].parent[v]);

                d = d > n / 2 ? n - d : d;
                far = d > far ? d : far;
            }
        cr_assert(far <= n / 3 + 1 && far >= n / 4, "n=%d: %d", n, far);
        bny_forest_free(f);
    }
}

/* ---- routes -------------------------------------------------------------------------------
 */

Test(builders_graph, grids_are_found_and_others_are_not)
{
    static const struct {
        const char *topo;
        int ndims, wraps;
    } all[] = { { "torus:4x6", 2, 1 }, { "mesh:3x5", 2, 0 },  { "torus:3x4x5", 3, 1 },
                { "ring:5", 1, 1 },    { "torus:2x4", 2, 1 }, { "hypercube:4", 2, 1 },
                { "star:4", 0, 0 },    { "dgx-1", 0, 0 } };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct bny_graph *g = graph(all[i].topo);
        struct bny_grid grid;
        int is = bny_grid_of(&grid, g);

        cr_assert_eq(is, all[i].ndims > 0, "%s", all[i].topo);
        if (is && strcmp(all[i].topo, "hypercube:4"))
            cr_assert(grid.ndims == all[i].ndims && grid.wraps == all[i].wraps, "%s: %d dims",
                      all[i].topo, grid.ndims);
        bny_graph_free(g);
    }
}

Test(builders_graph, ways_split_evenly_and_lead_home)
{
    static const char *const some[] = { "torus:4x4", "torus:8x8", "fattree:16",
                                        "leafspine:4x4,over=2", "dgx-a100:2" };

    for (int i = 0; i < 5; i++) {
        struct bny_graph *g = graph(some[i]);

        for (enum bny_routing kind = BNY_ROUTE_AUTO; kind <= BNY_ROUTE_SPLIT; kind++) {
            struct bny_router *r = bny_router_create(g, kind, 3);
            struct bny_ways w = { 0 };

            for (int from = 0; from < g->nranks; from++)
                for (int to = 0; to < g->nranks; to++) {
                    double sum = 0;
                    int e = from == to ? 1 : bny_router_ways(r, from, to, &w);

                    if (kind == BNY_ROUTE_DIMENSIONS && i > 1 && from != to)
                        cr_assert_eq(e, -BANYAN_EINVAL);
                    for (int p = 0; !e && p < w.nparts; p++) {
                        int at = g->rank_node[from];

                        for (int k = w.first[p]; k < w.first[p + 1]; k++) {
                            cr_assert_eq(g->links[w.links[k]].from, at, "%s", some[i]);
                            at = g->links[w.links[k]].to;
                        }
                        cr_assert_eq(at, g->rank_node[to]);
                        sum += w.share[p];
                    }
                    cr_assert(e || (sum > 1 - 1e-12 && sum < 1 + 1e-12), "%s: %g", some[i],
                              sum);
                }
            free(w.links);
            bny_router_destroy(r);
        }
        bny_graph_free(g);
    }
}
