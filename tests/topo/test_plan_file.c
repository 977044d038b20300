/* SPDX-License-Identifier: BSD-3-Clause */
/* Plan files: what is saved is loaded again; files that are wrong are refused with file and
 * place; bytes that somebody changed at random never do harm. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "base/rng.h"
#include "topo/plan_file.h"

static char *text_of(const struct bny_forest *f, enum bny_forest_use use, int root, size_t *len)
{
    char *text = NULL;
    FILE *to = open_memstream(&text, len);

    cr_assert_eq(bny_plan_write(to, f, use, root, NULL), 0);
    fclose(to);
    return text;
}

static void same(const struct bny_forest *a, const struct bny_forest *b)
{
    cr_assert(a->nranks == b->nranks && a->ntrees == b->ntrees && a->nsteps == b->nsteps);
    cr_assert_str_eq(a->name, b->name);
    for (int t = 0; t < a->ntrees; t++) {
        const struct bny_tree *x = &a->trees[t], *y = &b->trees[t];
        size_t bytes = (size_t)a->nranks * sizeof *x->parent;

        cr_assert(x->root == y->root && x->pipeline == y->pipeline);
        cr_assert_eq((uint64_t)x->weight_num * y->weight_den,
                     (uint64_t)y->weight_num * x->weight_den);
        cr_assert_eq(memcmp(x->parent, y->parent, bytes), 0);
        cr_assert_eq(memcmp(x->step, y->step, bytes), 0);
        cr_assert_eq(!x->down_parent, !y->down_parent);
        if (x->down_parent) {
            cr_assert_eq(memcmp(x->down_parent, y->down_parent, bytes), 0);
            cr_assert_eq(memcmp(x->down_step, y->down_step, bytes), 0);
        }
    }
}

Test(plan_file, what_is_saved_is_loaded)
{
    static const struct {
        enum bny_forest_use use;
        int root;
    } uses[] = { { BNY_FOREST_ALLREDUCE, -1 },
                 { BNY_FOREST_SCATTERED, -1 },
                 { BNY_FOREST_ROOTED, 2 } };

    for (int b = 0; bny_builders[b]; b++)
        for (int u = 0; u < 3; u++)
            for (int n = 1; n <= 17; n += 4) {
                struct bny_plan_file back;
                struct bny_forest *f;
                char *text;
                size_t len;
                int root = uses[u].root < n ? uses[u].root : 0;

                if (!(bny_builders[b]->uses & uses[u].use) ||
                    bny_builders[b]->build(&f, n, uses[u].use, root) != 0)
                    continue;
                text = text_of(f, uses[u].use, root, &len);
                cr_assert_eq(bny_plan_parse(&back, text, len, "memory"), 0, "%s",
                             banyan_last_error());
                cr_assert(back.use == uses[u].use &&
                          back.root == (uses[u].use == BNY_FOREST_ROOTED ? root : -1));
                same(f, back.forest);
                bny_plan_close(&back);
                bny_forest_free(f);
                free(text);
            }
}

/* Three ranks: sums along 2 -> 1 -> 0, results along 0 -> 2 -> 1 in one of two trees. */
#define HEAD                                                                                   \
    "{ \"banyan_plan\": 1, \"use\": \"allreduce\", \"ranks\": 3, \"steps\": 2, \"name\": "     \
    "\"x\", \"trees\": ["
#define T0                                                                                     \
    "{ \"root\": 0, \"weight\": \"1/4\", \"parent\": [-1,0,1], \"step\": [0,1,0], "            \
    "\"down_parent\": [-1,2,0], \"down_step\": [0,1,0] }"
#define T1   "{ \"root\": 1, \"weight\": \"3/4\", \"parent\": [1,-1,1], \"step\": [0,0,0] }"
#define GOOD HEAD T0 "," T1 "] }"

Test(plan_file, directions_and_weights_may_differ)
{
    struct bny_plan_file p;
    size_t len;
    char *text;

    cr_assert_eq(bny_plan_parse(&p, GOOD, strlen(GOOD), "memory"), 0, "%s",
                 banyan_last_error());
    cr_assert_eq(p.forest->trees[0].down_parent[1], 2);
    cr_assert_eq(p.forest->trees[1].weight_num, 3);
    cr_assert_null(p.forest->trees[1].down_parent);
    text = text_of(p.forest, p.use, -1, &len);
    bny_plan_close(&p);
    cr_assert_eq(bny_plan_parse(&p, text, len, "memory"), 0, "%s", banyan_last_error());
    cr_assert_eq(p.forest->trees[0].down_step[1], 1);
    bny_plan_close(&p);
    free(text);
}

Test(plan_file, wrong_files_are_refused_with_file_and_place)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        { "", "no JSON" },
        { "{ \"banyan_plan\": 1,\n  \"use\" }", "f.json: line 2" },
        { "[]", "this is no plan" },
        { "{ \"banyan_plan\": 2 }", "version 2" },
        { "{ \"banyan_plan\": 1, \"use\": \"all\" }", "use:" },
        { "{ \"banyan_plan\": 1, \"use\": \"allreduce\", \"ranks\": 0 }", "ranks" },
        { "{ \"banyan_plan\": 1, \"use\": \"allreduce\", \"ranks\": 1e99 }", "ranks" },
        { "{ \"banyan_plan\": 1, \"use\": \"allreduce\", \"ranks\": 60000, \"trees\": [{},{}] "
          "}",
          "trees[0].parent" },
        { "{ \"banyan_plan\": 1, \"use\": \"rooted\", \"ranks\": 3, \"root\": 3 }", "root" },
        { HEAD "] }", "trees" },
        { HEAD "{ \"root\": 3, \"weight\": \"1\", \"parent\": [-1,0,1], \"step\": [0,1,0] }] }",
          "trees[0].root" },
        { HEAD "{ \"root\": 0, \"weight\": 1, \"parent\": [-1,0,1], \"step\": [0,1,0] }] }",
          "trees[0].weight" },
        { HEAD "{ \"root\": 0, \"weight\": \"1\", \"parent\": [-1,0,3], \"step\": [0,1,0] }] }",
          "trees[0].parent[2]" },
        { HEAD "{ \"root\": 0, \"weight\": \"1\", \"parent\": [-1,0,1], \"step\": [0,1] }] }",
          "trees[0].step" },
        { HEAD "{ \"root\": 0, \"weight\": \"1\", \"parent\": [-1,2,1], \"step\": [0,1,0] }] }",
          "not below" },
        { HEAD
          "{ \"root\": 0, \"weight\": \"1/2\", \"parent\": [-1,0,1], \"step\": [0,1,0] }] }",
          "weights sum" },
        { HEAD "{ \"root\": 0, \"weight\": \"1\", \"parent\": [-1,0,1], \"step\": [0,1,0], "
               "\"up\": [1,2] }] }",
          "trees[0].up" },
        { HEAD "{ \"root\": 0, \"weight\": \"1\", \"parent\": [-1,0,1], \"step\": [0,1,0], "
               "\"up\": [[],[-1],2] }] }",
          "trees[0].up[1]" },
        { HEAD "{ \"root\": 0, \"weight\": \"1\", \"parent\": [-1,0,1], \"step\": [0,1,0], "
               "\"down_parent\": [-1,2,1], \"down_step\": [0,1,0] }] }",
          "not above" },
        { HEAD T0 "," T1 "], \"claim\": { \"time\": \"1\", \"bound\": \"1\" } }", "claim" },
        { HEAD T0 "," T1
                  "], \"topology\": { \"name\": \"a\", \"hash\": \"12\", \"nodes\": 3 } }",
          "topology" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct bny_plan_file p;

        cr_assert_eq(bny_plan_parse(&p, cases[i].text, strlen(cases[i].text), "f.json"),
                     -BANYAN_EINVAL, "%zu", i);
        cr_assert_null(p.forest);
        cr_assert_not_null(strstr(banyan_last_error(), "f.json"), "%s", banyan_last_error());
        cr_assert_not_null(strstr(banyan_last_error(), cases[i].why), "%zu: %s", i,
                           banyan_last_error());
    }
}

Test(plan_file, what_is_no_file_is_refused)
{
    struct bny_plan_file p;

    cr_assert_eq(bny_plan_load(&p, "/nonexistent/plan.json"), -BANYAN_EINVAL);
    cr_assert_not_null(strstr(banyan_last_error(), "/nonexistent/plan.json"));
    cr_assert_eq(bny_plan_load(&p, "/dev/zero"), -BANYAN_EINVAL);
    cr_assert_not_null(strstr(banyan_last_error(), "no regular file"));
}

/* A file that names no topology is taken for any; its routes are not believed for that. */
Test(plan_file, routes_without_a_topology_are_checked)
{
    static const struct {
        const char *up, *down, *why;
    } cases[] = {
        { "\"up\": [[],%d,%d]", "", NULL },
        { "\"up\": [[],60000000,%d]", "", "trees[0].up[1]" },
        { "\"up\": [[],[],%d]", "", "trees[0].up[1]" },
        { "\"up\": [[],%d,%d]", ", \"down\": [[],0,60000000]", "trees[0].down[" },
    };
    struct bny_graph *g;
    int down1 = -1, down2 = -1;

    cr_assert_eq(bny_graph_make(&g, "ring:3"), 0);
    for (int l = 0; l < g->nlinks; l++) {
        if (g->links[l].from == g->rank_node[1] && g->links[l].to == g->rank_node[0])
            down1 = l;
        if (g->links[l].from == g->rank_node[2] && g->links[l].to == g->rank_node[1])
            down2 = l;
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[600], up[100];
        struct bny_plan_file p;
        int rc;

        snprintf(up, sizeof up, cases[i].up, strstr(cases[i].up, "%d,%d") ? down1 : down2,
                 down2);
        snprintf(
            text, sizeof text,
            HEAD
            "{ \"root\": 0, \"weight\": \"1\", \"parent\": [-1,0,1], \"step\": [0,1,0], %s%s }"
            "] }",
            up, cases[i].down);
        cr_assert_eq(bny_plan_parse(&p, text, strlen(text), "f.json"), 0, "%s",
                     banyan_last_error());
        rc = bny_plan_fits(&p, g, "f.json");
        cr_assert_eq(rc, cases[i].why ? -BANYAN_EINVAL : 0, "%zu: %s", i, banyan_last_error());
        if (rc)
            cr_assert_not_null(strstr(banyan_last_error(), cases[i].why), "%zu: %s", i,
                               banyan_last_error());
        bny_plan_close(&p);
    }
    bny_graph_free(g);
}

/* Nothing to assert about the answer but that a forest comes only with it, and is sound. */
Test(plan_file, changed_bytes_do_no_harm)
{
    static const char tokens[] = "{}[],:\"-0123456789.eE\\ nulltrue";
    uint64_t rng = 7;
    char text[sizeof GOOD];
    int accepted = 0;

    for (int i = 0; i < 20000; i++) {
        struct bny_plan_file p;
        int changes = 1 + (int)bny_rng_below(&rng, 4);
        size_t len = sizeof GOOD - 1;

        memcpy(text, GOOD, sizeof GOOD);
        for (int k = 0; k < changes; k++)
            text[bny_rng_below(&rng, len)] = tokens[bny_rng_below(&rng, sizeof tokens - 1)];
        if (bny_rng_below(&rng, 4) == 0)
            len = bny_rng_below(&rng, len);
        if (bny_plan_parse(&p, text, len, "memory") != 0) {
            cr_assert_null(p.forest);
            continue;
        }
        cr_assert_eq(bny_forest_check(p.forest, p.use, p.root, NULL, 0), 0);
        bny_plan_close(&p);
        accepted++;
    }
    cr_assert_gt(accepted, 0);
}
