/* SPDX-License-Identifier: BSD-3-Clause */
/* Graphs for gossip: degrees, pieces, and rounds in which every rank has one partner at most.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "methods/gossip_graph.h"

#include "banyan/banyan.h"

/* Degrees [n] and whether all are reached from rank 0; each pair once, each colour once a rank.
 */
static int connected(const struct bny_gossip_graph *g, int *degree)
{
    int reached = 1, more = 1;
    char *at = calloc((size_t)g->n, 1), *busy = calloc((size_t)(g->n * g->colours) + 1, 1);

    memset(degree, 0, (size_t)g->n * sizeof *degree);
    for (size_t e = 0; e < g->edges; e++) {
        int a = g->edge[e].low, b = g->edge[e].high, c = g->edge[e].colour;

        cr_assert(0 <= a && a < b && b < g->n, "edge %d-%d", a, b);
        cr_assert(0 <= c && c < g->colours, "edge %d-%d: colour %d", a, b, c);
        cr_assert(!busy[a * g->colours + c] && !busy[b * g->colours + c],
                  "edge %d-%d: colour %d is taken", a, b, c);
        busy[a * g->colours + c] = busy[b * g->colours + c] = 1;
        degree[a]++;
        degree[b]++;
        for (size_t f = 0; f < e; f++)
            cr_assert(g->edge[f].low != a || g->edge[f].high != b, "edge %d-%d twice", a, b);
    }
    at[0] = 1;
    while (more) {
        more = 0;
        for (size_t e = 0; e < g->edges; e++)
            if (at[g->edge[e].low] != at[g->edge[e].high])
                more = at[g->edge[e].low] = at[g->edge[e].high] = 1;
    }
    for (int r = 1; r < g->n; r++)
        reached += at[r];
    free(at);
    free(busy);
    return reached == g->n;
}

/* more: rounds beyond the degree, at most. */
static void check(const char *name, int n, int want_degree, int more)
{
    struct bny_gossip_graph g;
    int *degree = calloc((size_t)n, sizeof *degree);

    cr_assert_eq(bny_gossip_graph_make(&g, name, n), 0, "%s of %d: %s", name, n,
                 banyan_last_error());
    cr_assert(connected(&g, degree), "%s of %d is not connected", name, n);
    for (int r = 0; r < n; r++)
        cr_assert_eq(degree[r], want_degree, "%s of %d: rank %d has degree %d", name, n, r,
                     degree[r]);
    cr_assert_eq(g.degree, want_degree);
    cr_assert_leq(g.colours, want_degree + more, "%s of %d: %d rounds", name, n, g.colours);
    bny_gossip_graph_free(&g);
    free(degree);
}

Test(gossip_graph, rings)
{
    check("ring", 1, 0, 0);
    check("ring", 2, 1, 0);
    for (int n = 3; n <= 65; n++)
        check("ring", n, 2, n % 2);
    check("ring:8", 8, 2, 0);
}

Test(gossip_graph, tori_and_cubes)
{
    check("torus:4x2", 8, 3, 0);
    check("torus:4x4", 16, 4, 0);
    check("torus:3x3", 9, 4, 2);
    check("torus:3x5x4", 60, 6, 2);
    check("torus:6x6x2", 72, 5, 0);
    check("torus:1", 1, 0, 0);
    for (int d = 0; d <= 7; d++)
        check("hypercube", 1 << d, d, 0);
}

Test(gossip_graph, others)
{
    check("exponential", 2, 1, 0);
    check("exponential", 8, 5, 2); /* 1, 2, 4 on both sides, 4 once */
    check("exponential", 16, 7, 2);
    check("exponential", 7, 6, 2);
    for (int n = 2; n <= 24; n++)
        check("complete", n, n - 1, n % 2);
    check("random", 8, 3, 2);
    check("random:degree=4,seed=7", 33, 4, 2);
    check("random:degree=7", 8, 7, 2);
    check("random:degree=2,seed=3", 20, 2, 2);
}

/* Different seeds, different graphs; the same seed, the same. */
Test(gossip_graph, random_ones_go_by_the_seed)
{
    struct bny_gossip_graph g[3];
    static const char *const names[] = { "random:degree=4,seed=1", "random:degree=4,seed=1",
                                         "random:degree=4,seed=2" };

    for (int k = 0; k < 3; k++)
        cr_assert_eq(bny_gossip_graph_make(&g[k], names[k], 40), 0);
    cr_assert_eq(memcmp(g[0].edge, g[1].edge, g[0].edges * sizeof *g[0].edge), 0);
    cr_assert_neq(memcmp(g[0].edge, g[2].edge, g[0].edges * sizeof *g[0].edge), 0);
    for (int k = 0; k < 3; k++)
        bny_gossip_graph_free(&g[k]);
}

Test(gossip_graph, what_cannot_be_is_told)
{
    static const struct {
        const char *name;
        int n;
        const char *says;
    } wrong[] = {
        { "rind", 4, "no graph of 4 ranks is called rind" },
        { "ring:9", 8, "no graph of 8 ranks" },
        { "torus:3x3", 8, "product is the 8 ranks" },
        { "torus:3x", 3, "product" },
        { "torus:", 1, "" },
        { "torus:-2x-4", 8, "product" },
        { "hypercube", 6, "no power of two" },
        { "random:degree=3", 5, "even" },
        { "random:degree=8", 8, "less than the ranks" },
        { "random:degree=3x", 8, "wants degree=D,seed=S" },
        { "random:degree=3,seed=1,", 8, "wants degree=D,seed=S" },
        { "random:seed=1", 8, "wants degree=D,seed=S" },
        { "", 3, "no graph" },
        { "ring", 1025, "1 to 1024" },
    };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct bny_gossip_graph g;
        int rc = bny_gossip_graph_make(&g, wrong[i].name, wrong[i].n);

        if (!*wrong[i].says) { /* a torus of no dimension is one rank */
            cr_assert_eq(rc, 0);
            bny_gossip_graph_free(&g);
            continue;
        }
        cr_assert_eq(rc, -BANYAN_EINVAL, "%s of %d", wrong[i].name, wrong[i].n);
        cr_assert(strstr(banyan_last_error(), wrong[i].says), "'%s' lacks '%s'",
                  banyan_last_error(), wrong[i].says);
    }
}
