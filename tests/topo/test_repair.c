/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of repair: after a lost link, NIC or rank the plan is one for the graph that is
 * left, certified on it, within 1 % of its bound; most trees stay as they were; what cannot be
 * repaired is said in one sentence. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "banyan/banyan.h"
#include "topo/repair.h"

static struct bny_graph *make(const char *text)
{
    struct bny_graph *g = NULL;

    cr_assert_eq(bny_graph_make(&g, text), 0, "%s: %s", text, banyan_last_error());
    return g;
}

struct outcome {
    struct bny_repair report;
    struct bny_ratio time, bound;
    int trees;
};

static struct outcome repair(const char *builder, const char *topo, const char *loss,
                             enum bny_forest_use use, int root)
{
    struct bny_graph *before = make(topo), *after;
    struct bny_forest *f, *r = NULL;
    struct outcome o;
    char text[80], why[256] = "";
    int new_root = -1;

    snprintf(text, sizeof text, "%s!%s", topo, loss);
    after = make(text);
    if (use == BNY_FOREST_ROOTED)
        for (int v = 0; v < after->nranks; v++)
            if (!strcmp(after->nodes[after->rank_node[v]].name,
                        before->nodes[before->rank_node[root]].name))
                new_root = v;
    cr_assert_eq(bny_graph_builder_find(builder)->build(&f, before, use, root, NULL), 0);
    cr_assert_eq(bny_forest_repair(&r, f, before, after, use, root, &o.report), 0, "%s: %s",
                 text, banyan_last_error());
    cr_assert_eq(bny_forest_recheck(r, after, use, new_root, why, sizeof why), 0, "%s: %s",
                 text, why);
    o.time = r->claim.time;
    o.bound = r->claim.bound;
    o.trees = r->ntrees;
    cr_assert_leq(bny_ratio_value(o.time), 1.01 * bny_ratio_value(o.bound), "%s", text);
    bny_forest_free(f);
    bny_forest_free(r);
    bny_graph_free(before);
    bny_graph_free(after);
    return o;
}

/* A8 of the design: 64/21 of the torus with a dead link, 320 GB/s of two A100 boxes with a dead
 * NIC, 99 % of each. */
Test(repair, degraded_graphs_keep_99_per_cent_of_their_bound)
{
    struct outcome o = repair("packed", "torus:8x8", "dead=0-1", BNY_FOREST_SCATTERED, -1);

    cr_assert_eq(bny_ratio_cmp(o.bound, bny_ratio_of(21, 64)), 0);
    cr_assert_gt(o.report.kept, 0);
    cr_assert_eq(o.report.planned, 0);
    o = repair("packed", "dgx-a100:2", "dead=gpu0.0-ib", BNY_FOREST_SCATTERED, -1);
    cr_assert_eq(bny_ratio_cmp(o.bound, bny_ratio_of(1, 320)), 0);
    o = repair("packed", "dgx-a100:4", "dead=gpu0.0-ib", BNY_FOREST_SCATTERED, -1);
    cr_assert_eq(bny_ratio_cmp(o.bound, bny_ratio_of(3, 700)), 0);
    cr_assert_gt(o.report.kept, o.report.mended);
}

Test(repair, links_nics_ranks_and_switches_may_go)
{
    repair("packed", "torus:8x8", "dead=9", BNY_FOREST_SCATTERED, -1);
    repair("packed", "torus:8x8", "dead=0-1", BNY_FOREST_ALLREDUCE, -1);
    repair("packed", "torus:8x8", "slow=0-1/2", BNY_FOREST_ALLREDUCE, -1);
    repair("packed", "torus:8x8", "dead=0-1", BNY_FOREST_ROOTED, 5);
    repair("packed", "torus:8x8", "dead=3", BNY_FOREST_ROOTED, 5);
    repair("packed", "dgx-a100:4", "dead=gpu0.3", BNY_FOREST_ALLREDUCE, -1);
    repair("packed", "fattree:64,over=2", "dead=s1.0", BNY_FOREST_SCATTERED, -1);
    repair("packed", "mi250:2", "dead=3", BNY_FOREST_SCATTERED, -1);
    repair("joint", "star:4x100+4x25", "dead=2", BNY_FOREST_ALLREDUCE, -1);
    repair("joint", "mesh:4x4", "dead=0-1", BNY_FOREST_ALLREDUCE, -1);
    repair("joint", "torus:4x4", "dead=0-1", BNY_FOREST_ALLREDUCE, -1);
}

Test(repair, most_trees_of_256_ranks_stay)
{
    struct outcome o =
        repair("packed", "dgx-h100:32", "dead=gpu0.0-ib", BNY_FOREST_SCATTERED, -1);

    cr_assert_eq(o.report.planned, 0);
    cr_assert_gt(o.report.kept, 4 * o.report.mended);
    o = repair("packed", "torus:16x16", "dead=0-1", BNY_FOREST_SCATTERED, -1);
    cr_assert_eq(o.report.planned, 0);
    cr_assert_gt(o.report.kept, 0);
}

Test(repair, a_lost_root_and_foreign_graphs_are_refused)
{
    struct bny_graph *g = make("torus:4x4"), *without = make("torus:4x4!dead=3"),
                     *other = make("star:9");
    struct bny_forest *f, *r;

    cr_assert_eq(bny_graph_builder_find("packed")->build(&f, g, BNY_FOREST_ROOTED, 3, NULL), 0);
    cr_assert_eq(bny_forest_repair(&r, f, g, without, BNY_FOREST_ROOTED, 3, NULL),
                 -BANYAN_EINVAL);
    cr_assert(strstr(banyan_last_error(), "root 3"), "%s", banyan_last_error());
    cr_assert_null(r);
    cr_assert_eq(bny_forest_repair(&r, f, other, other, BNY_FOREST_ROOTED, 3, NULL),
                 -BANYAN_EINVAL);
    bny_forest_free(f);
    bny_graph_free(g);
    bny_graph_free(without);
    bny_graph_free(other);
}
