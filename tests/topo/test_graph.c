/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of graphs: parallel links merge, ranks are dense, indexes and reverses agree with
 * the links, broken graphs are refused with a sentence; generators have the sizes and degrees
 * of their definitions. */
#include <criterion/criterion.h>
#include <string.h>

#include "banyan/banyan.h"
#include "topo/bound.h"
#include "topo/graph_edit.h"

static struct bny_graph *make(const char *text)
{
    struct bny_graph *g;
    int e = bny_graph_make(&g, text);

    cr_assert_eq(e, 0, "%s: %s", text, banyan_last_error());
    return g;
}

static void check_indexes(const struct bny_graph *g)
{
    for (int v = 0; v < g->nnodes; v++) {
        for (int i = g->out_first[v]; i < g->out_first[v + 1]; i++)
            cr_assert_eq(g->links[g->out[i]].from, v);
        for (int i = g->in_first[v]; i < g->in_first[v + 1]; i++)
            cr_assert_eq(g->links[g->in[i]].to, v);
    }
    cr_assert_eq(g->out_first[g->nnodes], g->nlinks);
    cr_assert_eq(g->in_first[g->nnodes], g->nlinks);
    for (int l = 0; l < g->nlinks; l++) {
        const struct bny_link *back = g->reverse[l] < 0 ? NULL : &g->links[g->reverse[l]];
        cr_assert(!back || (back->from == g->links[l].to && back->to == g->links[l].from));
    }
    for (int r = 0; r < g->nranks; r++)
        cr_assert_eq(g->nodes[g->rank_node[r]].rank, r);
}

Test(graph, parallel_links_merge_and_directions_are_separate)
{
    struct bny_graph *g = bny_graph_alloc("hand");
    int a = bny_graph_node(g, BNY_NODE_COMPUTE, 0, "a");
    int b = bny_graph_node(g, BNY_NODE_COMPUTE, 0, NULL);
    int l = bny_graph_link(g, a, b, 3, 10);

    g->nodes[b].rank = 0;
    cr_assert_eq(bny_graph_link(g, a, b, 4, 5), l);
    cr_assert_eq(bny_graph_link(g, b, a, 1, 7), 1);
    cr_assert_eq(bny_graph_freeze(g), 0, "%s", banyan_last_error());
    cr_assert(g->nlinks == 2 && g->links[l].cap == 7 && g->links[l].lanes == 2);
    cr_assert(g->links[l].lat_ns == 5 && g->links[1].lanes == 1);
    cr_assert(g->reverse[0] == 1 && g->reverse[1] == 0);
    cr_assert(g->rank_node[0] == b && g->rank_node[1] == a, "given ranks are kept");
    check_indexes(g);
    bny_graph_free(g);
}

Test(graph, refuses_what_is_no_link)
{
    struct bny_graph *g = bny_graph_alloc("hand");
    int a = bny_graph_node(g, BNY_NODE_COMPUTE, 0, NULL);
    int b = bny_graph_node(g, BNY_NODE_COMPUTE, 0, NULL);

    cr_assert_eq(bny_graph_link(g, a, a, 1, 0), -BANYAN_EINVAL);
    cr_assert_eq(bny_graph_link(g, a, b, 0, 0), -BANYAN_EINVAL);
    cr_assert_eq(bny_graph_link(g, a, b, -5, 0), -BANYAN_EINVAL);
    cr_assert_eq(bny_graph_link(g, a, b, 1, -1), -BANYAN_EINVAL);
    cr_assert_eq(bny_graph_link(g, a, 2, 1, 0), -BANYAN_EINVAL);
    bny_graph_link(g, a, b, INT64_MAX, 0);
    cr_assert_eq(bny_graph_link(g, a, b, 1, 0), -BANYAN_EINVAL, "capacity overflowed");
    bny_graph_free(g);
}

Test(graph, refuses_what_is_no_cluster)
{
    struct bny_graph *g = bny_graph_alloc("hand");
    int s = bny_graph_node(g, BNY_NODE_SWITCH, -1, "hub"), a, b;

    cr_assert_eq(bny_graph_freeze(g), -BANYAN_EINVAL, "no ranks");
    a = bny_graph_node(g, BNY_NODE_COMPUTE, 0, "anna");
    b = bny_graph_node(g, BNY_NODE_COMPUTE, 1, "bert");
    bny_graph_both(g, a, s, 1, 0);
    bny_graph_link(g, s, b, 1, 0);
    cr_assert_eq(bny_graph_freeze(g), -BANYAN_EINVAL, "one way only");
    cr_assert(strstr(banyan_last_error(), "bert"), "%s", banyan_last_error());
    bny_graph_link(g, b, s, 1, 0);
    cr_assert_eq(bny_graph_freeze(g), 0, "%s", banyan_last_error());
    g->nodes[a].rank = g->nodes[b].rank = 1;
    cr_assert_eq(bny_graph_freeze(g), -BANYAN_EINVAL, "a rank twice");
    g->nodes[a].rank = 7;
    cr_assert_eq(bny_graph_freeze(g), -BANYAN_EINVAL, "a gap in the ranks");
    g->nodes[a].rank = 0;
    g->nodes[s].rank = 1;
    cr_assert_eq(bny_graph_freeze(g), -BANYAN_EINVAL, "a switch with a rank");
    bny_graph_free(g);
}

static const struct {
    char text[32];
    int ranks, nodes;
    int64_t degree, all; /* capacity into a rank, of all links */
} sizes[] = {
    { "torus:4x4", 16, 16, 4, 64 },
    { "torus:8x8", 64, 64, 4, 256 },
    { "torus:4x4x4", 64, 64, 6, 384 },
    { "torus:2x3", 6, 6, 4, 24 },
    { "torus:5", 5, 5, 2, 10 },
    { "hypercube:4", 16, 16, 4, 64 },
    { "hypercube:10", 1024, 1024, 10, 10240 },
    { "ring:8", 8, 8, 2, 16 },
    { "ring:2", 2, 2, 1, 2 },
    { "star:6x7", 6, 7, 7, 84 },
    { "fattree:64", 64, 80, 1, 256 },
    { "fattree:16", 16, 24, 1, 64 },
    { "fattree:64,over=4", 64, 74, 1, 160 },
    { "fattree:64,over=8", 64, 73, 1, 144 },
    { "fattree:27,levels=3", 27, 54, 1, 162 },
    { "bigraph:4x8", 32, 40, 1, 96 },
    { "bigraph:4x16", 64, 80, 1, 256 },
    { "dgx-1", 8, 8, 6, 48 },
    { "dgx-a100:1", 8, 9, 300, 4800 },
    { "dgx-a100:2", 16, 19, 325, 10400 },
    { "ring:3", 3, 3, 2, 6 },
    { "random:32", 32, 32, 4, 128 },
    { "random:50,degree=7,seed=9", 50, 50, 7, 350 },
    { "leafspine:4x8,over=4", 32, 38, 1, 80 },
    { "leafspine:8x8,spines=2", 64, 74, 1, 256 },
    { "dragonfly:9x4x2", 72, 108, 1, 144 + 108 + 72 },
    { "dgx-h100:16", 128, 145, 500, 128000 },
};

Test(graph, generators_have_the_sizes_of_their_definitions)
{
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct bny_graph *g = make(sizes[i].text);
        int64_t all = 0;
        check_indexes(g);
        cr_assert_eq(g->nranks, sizes[i].ranks, "%s: %d", sizes[i].text, g->nranks);
        cr_assert_eq(g->nnodes, sizes[i].nodes, "%s: %d", sizes[i].text, g->nnodes);
        for (int r = 0; r < g->nranks; r++) {
            int64_t in = 0;
            for (int k = g->in_first[g->rank_node[r]]; k < g->in_first[g->rank_node[r] + 1];
                 k++)
                in += g->links[g->in[k]].cap;
            cr_assert_eq(in, sizes[i].degree, "%s rank %d: %d", sizes[i].text, r, (int)in);
        }
        for (int l = 0; l < g->nlinks; l++) {
            all += g->links[l].cap;
            cr_assert_geq(g->reverse[l], 0);
            cr_assert_eq(g->links[l].cap, g->links[g->reverse[l]].cap);
        }
        cr_assert_eq(all, sizes[i].all, "%s: %d", sizes[i].text, (int)all);
        bny_graph_free(g);
    }
}

Test(graph, generators_refuse_bad_arguments)
{
    static const char *const bad[] = {
        "",
        "torus",
        "torus:",
        "torus:0x4",
        "torus:4x",
        "torus:4y4",
        "torus:-4x4",
        "torus: 4",
        "torus:4x4 ",
        "torus:999999999999999999999",
        "torus:65536x2",
        "mesh:x",
        "ring:0",
        "hypercube:17",
        "hypercube:x",
        "star:",
        "star:4x0",
        "star:4x1+",
        "star:4x1x1",
        "fattree:63",
        "fattree:64,over=3",
        "fattree:64,over=",
        "fattree:64,x=1",
        "fattree:64,levels=0",
        "bigraph:4",
        "bigraph:4x7",
        "dgx-1:3",
        "dgx-a100:0",
        "dgx-a100:",
        "nonsense:4x4",
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct bny_graph *g;
        cr_assert_lt(bny_graph_make(&g, bad[i]), 0, "\"%s\" accepted", bad[i]);
        cr_assert_null(g);
    }
}

Test(graph, random_graphs_follow_their_seed)
{
    struct bny_graph *a = make("random:40,seed=3"), *b = make("random:40,seed=3"),
                     *c = make("random:40,seed=4");
    int same = 1;

    cr_assert_eq(a->nlinks, b->nlinks);
    cr_assert_eq(memcmp(a->links, b->links, (size_t)a->nlinks * sizeof *a->links), 0);
    for (int l = 0; l < a->nlinks; l++)
        same &= a->links[l].to == c->links[l].to;
    cr_assert(!same, "two seeds, one graph");
    bny_graph_free(a);
    bny_graph_free(b);
    bny_graph_free(c);
}

static int64_t cap_between(const struct bny_graph *g, const char *a, const char *b)
{
    for (int l = 0; l < g->nlinks; l++)
        if (!strcmp(g->nodes[g->links[l].from].name, a) &&
            !strcmp(g->nodes[g->links[l].to].name, b))
            return g->links[l].cap;
    return 0;
}

Test(graph, boxes_have_their_wires)
{
    struct bny_graph *g = make("mi250:2");

    cr_assert(g->nranks == 32 && g->nnodes == 33);
    cr_assert_eq(cap_between(g, "gpu0.0", "gpu0.1"), 200, "two dies of a package");
    cr_assert_eq(cap_between(g, "gpu1.8", "gpu1.12"), 100);
    cr_assert_eq(cap_between(g, "gpu1.2", "gpu1.9"), 50);
    cr_assert_eq(cap_between(g, "gpu1.2", "ib"), 16);
    bny_graph_free(g);
    g = make("mi250:2,dies=8");
    cr_assert(g->nranks == 16 && g->nodes[8].host == 1);
    bny_graph_free(g);
    g = make("dgx-1");
    cr_assert_eq(cap_between(g, "gpu0.3", "gpu0.0"), 2);
    cr_assert(g->unit_Bps > 24e9);
    bny_graph_free(g);
}

Test(graph, changes_kill_and_slow_links_and_nodes)
{
    struct bny_graph *g = make("torus:4x4!dead=0-1");

    cr_assert(g->nranks == 16 && g->nlinks == 62 && !cap_between(g, "r0", "r1"));
    cr_assert_str_eq(g->name, "torus:4x4!dead=0-1");
    bny_graph_free(g);
    g = make("torus:4x4!dead=r0-r1!dead=5!slow=r2-r3/2");
    cr_assert(g->nranks == 15 && g->nlinks == 62 - 8);
    cr_assert(cap_between(g, "r2", "r3") == 1 && cap_between(g, "r3", "r2") == 1);
    cr_assert(cap_between(g, "r4", "r8") == 2 && g->unit_Bps == 5e8);
    cr_assert(g->rank_node[5] == 5 && !strcmp(g->nodes[5].name, "r6"));
    check_indexes(g);
    bny_graph_free(g);
    g = make("dgx-a100:2!dead=gpu0.3-ib!slow=gpu1.0-ib/5");
    cr_assert(!cap_between(g, "gpu0.3", "ib") && cap_between(g, "ib", "gpu1.0") == 5);
    cr_assert(cap_between(g, "gpu0.3", "nvs0") == 300 && g->unit_Bps == 1e9);
    bny_graph_free(g);
}

Test(graph, refuses_bad_changes)
{
    static const char *const bad[] = {
        "torus:4x4!",
        "torus:4x4!dead=",
        "torus:4x4!dead=0-2",
        "torus:4x4!dead=16",
        "torus:4x4!slow=0-1",
        "torus:4x4!slow=0-1/",
        "torus:4x4!slow=0-1/0",
        "torus:4x4!slow=0-1/2x",
        "torus:4x4!slow=0-1/-2",
        "torus:4x4!fast=0-1",
        "ring:3!dead=0-1!dead=1-2",
        "ring:4!dead=0!dead=1!dead=2!dead=3",
        "torus:4x4!slow=0/2-1",
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct bny_graph *g;
        cr_assert_lt(bny_graph_make(&g, bad[i]), 0, "\"%s\" accepted", bad[i]);
        cr_assert_null(g);
    }
}

/* One row of a torus: each rank still has its four links, two of them by way of ranks that are
 * not there. */
Test(graph, some_of_its_ranks_keep_the_whole_network)
{
    static const int row[] = { 7, 5, 4, 6 };
    struct bny_graph *g = make("torus:4x4"), *h = bny_graph_subset(g, row, 4);
    struct bny_bound b;

    cr_assert_not_null(h, "%s", banyan_last_error());
    check_indexes(h);
    cr_assert_eq(h->nranks, 4);
    for (int r = 0; r < 4; r++)
        cr_assert_eq(h->rank_node[r], g->rank_node[row[r]]);
    cr_assert_eq(bny_bound_allgather(&b, h), 0, "%s", banyan_last_error());
    cr_assert_eq(bny_ratio_cmp(b.value, bny_ratio_of(3, 16)), 0, "%lld/%lld",
                 (long long)b.value.num, (long long)b.value.den);
    bny_bound_free(&b);
    bny_graph_free(h);
    bny_graph_free(g);
}
