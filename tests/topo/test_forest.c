/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of forests: every builder's forest passes the check for every n and use that it
 * accepts; steps follow the closed forms; the check refuses broken forests; costs are sane. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "banyan/banyan.h"
#include "topo/forest.h"

#define MAX_RANKS 64

static const enum bny_forest_use uses[] = {
    BNY_FOREST_ALLREDUCE,
    BNY_FOREST_SCATTERED,
    BNY_FOREST_ROOTED,
};

static int log2_ceil(int n)
{
    int l = 0;

    while ((1 << l) < n)
        l++;
    return l;
}

/* Whether a builder of such use may refuse n. */
static int may_refuse(const char *name, enum bny_forest_use use, int n)
{
    int composite = 0;

    for (int d = 2; d * d <= n; d++)
        composite |= n % d == 0;
    if (!strcmp(name, "bucket"))
        return !composite;
    return (!strcmp(name, "halving") || !strcmp(name, "bine")) && use == BNY_FOREST_SCATTERED &&
           (n & (n - 1));
}

static void check_builder(const struct bny_builder_ops *b, int n, enum bny_forest_use use,
                          int root)
{
    struct bny_forest *f = NULL;
    char why[256] = "";
    int e = b->build(&f, n, use, root);

    if (!(b->uses & use) || may_refuse(b->name, use, n)) {
        cr_assert_eq(e, -BANYAN_ENOTSUP, "%s n=%d use=%d answered %d", b->name, n, use, e);
        cr_assert_null(f);
        return;
    }
    cr_assert_eq(e, 0, "%s n=%d use=%d: %s", b->name, n, use, banyan_last_error());
    e = bny_forest_check(f, use, root, why, sizeof why);
    cr_assert_eq(e, 0, "%s n=%d use=%d root=%d: %s", b->name, n, use, root, why);
    bny_forest_free(f);
}

Test(forest, every_builder_passes_the_check_for_1_to_64_ranks)
{
    for (int i = 0; bny_builders[i]; i++)
        for (int n = 1; n <= MAX_RANKS; n++)
            for (int u = 0; u < 3; u++)
                for (int root = 0; root < (uses[u] == BNY_FOREST_ROOTED ? n : 1); root++)
                    check_builder(bny_builders[i], n, uses[u], root);
}

Test(forest, registry_finds_every_builder_by_its_name)
{
    for (int i = 0; bny_builders[i]; i++)
        cr_assert_eq(bny_builder_find(bny_builders[i]->name), bny_builders[i]);
    cr_assert_null(bny_builder_find("no such builder"));
}

static uint32_t steps_of(const char *name, int n, enum bny_forest_use use, int *ntrees)
{
    struct bny_forest *f;
    uint32_t steps;

    cr_assert_eq(bny_builder_find(name)->build(&f, n, use, 0), 0);
    steps = f->nsteps;
    *ntrees = f->ntrees;
    bny_forest_free(f);
    return steps;
}

Test(forest, steps_and_trees_follow_the_closed_forms)
{
    int trees;

    for (int n = 1; n <= MAX_RANKS; n++) {
        int p = 1 << (log2_ceil(n + 1) - 1), fold = p != n;
        uint32_t steps = (uint32_t)(n - 1);

        cr_assert_eq(steps_of("ring", n, BNY_FOREST_ALLREDUCE, &trees), steps);
        cr_assert_eq(trees, 2 * n);
        cr_assert_eq(steps_of("ring", n, BNY_FOREST_SCATTERED, &trees), (uint32_t)n / 2);
        cr_assert_eq(trees, n);
        cr_assert_eq(steps_of("ring_uni", n, BNY_FOREST_SCATTERED, &trees), steps);
        cr_assert_eq(steps_of("halving", n, BNY_FOREST_ALLREDUCE, &trees),
                     (uint32_t)(log2_ceil(p) + fold), "n=%d", n);
        cr_assert_eq(trees, p);
        cr_assert_eq(steps_of("binomial", n, BNY_FOREST_ALLREDUCE, &trees),
                     (uint32_t)log2_ceil(n));
        cr_assert_eq(steps_of("star", n, BNY_FOREST_ALLREDUCE, &trees), n > 1);
        cr_assert_eq(trees, n);
        cr_assert_leq(steps_of("double_binary_tree", n, BNY_FOREST_ALLREDUCE, &trees),
                      (uint32_t)log2_ceil(n) + 1, "n=%d", n);
        cr_assert_eq(trees, 2);
    }
    cr_assert_eq(steps_of("bucket", 12, BNY_FOREST_ALLREDUCE, &trees), 3 + 4 - 2);
    cr_assert_eq(steps_of("bucket", 64, BNY_FOREST_SCATTERED, &trees), 8 + 8 - 2);
}

/* Two trees at full bandwidth: no rank but the root is inner in both. */
Test(forest, double_binary_tree_has_disjoint_inner_ranks)
{
    for (int n = 2; n <= MAX_RANKS; n++) {
        struct bny_forest *f;
        int children[2][MAX_RANKS] = { { 0 } };

        cr_assert_eq(
            bny_builder_find("double_binary_tree")->build(&f, n, BNY_FOREST_ROOTED, n / 3), 0);
        for (int t = 0; t < 2; t++)
            for (int v = 0; v < n; v++)
                if (v != f->trees[t].root)
                    children[t][f->trees[t].parent[v]]++;
        for (int v = 0; v < n; v++) {
            cr_assert(children[0][v] <= 2 && children[1][v] <= 2);
            cr_assert(v == n / 3 || !children[0][v] || !children[1][v], "n=%d rank %d", n, v);
        }
        bny_forest_free(f);
    }
}

static void expect_refused(struct bny_forest *f, enum bny_forest_use use, const char *what)
{
    char why[128] = "";

    cr_assert_eq(bny_forest_check(f, use, 0, why, sizeof why), -BANYAN_EINVAL, "%s accepted",
                 what);
    cr_assert_neq(why[0], 0);
}

Test(forest, check_refuses_broken_forests)
{
    struct bny_forest *f;
    struct bny_tree *t;

    cr_assert_eq(bny_builder_find("ring_uni")->build(&f, 6, BNY_FOREST_SCATTERED, 0), 0);
    t = &f->trees[2];
#define REFUSED(lvalue, bad, what)                                                             \
    do {                                                                                       \
        __typeof__(lvalue) good = lvalue;                                                      \
        lvalue = bad;                                                                          \
        expect_refused(f, BNY_FOREST_SCATTERED, what);                                         \
        lvalue = good;                                                                         \
    } while (0)
    REFUSED(t->root, 3, "another root");
    REFUSED(t->root, 6, "a root out of range");
    REFUSED(t->parent[2], 1, "a root with a parent");
    REFUSED(t->parent[4], -1, "an orphan");
    REFUSED(t->parent[4], 6, "a parent out of range");
    REFUSED(t->parent[5], 4, "a cycle");
    REFUSED(t->parent[4], 4, "a rank that is its own parent");
    REFUSED(t->step[3], 4, "a child's step at its parent's");
    REFUSED(t->step[1], 7, "a step out of range");
    REFUSED(f->nsteps, 6, "too many steps");
    REFUSED(t->weight_num, 2, "weights that sum to more than one");
    REFUSED(t->weight_num, 0, "no weight");
    REFUSED(t->weight_den, 0, "a weight over zero");
    REFUSED(f->ntrees, 5, "a missing tree");
    expect_refused(f, BNY_FOREST_ROOTED, "many roots");
    cr_assert_eq(bny_forest_check(f, BNY_FOREST_SCATTERED, 0, NULL, 0), 0);
    cr_assert_eq(bny_forest_check(f, BNY_FOREST_ALLREDUCE, 0, NULL, 0), 0);
    bny_forest_free(f);
}

Test(forest, weights_of_unequal_trees_sum_exactly)
{
    struct bny_forest *f = bny_forest_alloc("test", 1, 3);

    f->trees[0].weight_den = 2;
    expect_refused(f, BNY_FOREST_ALLREDUCE, "1/2 + 1/3 + 1/3");
    f->trees[1].weight_den = 6;
    cr_assert_eq(bny_forest_check(f, BNY_FOREST_ALLREDUCE, 0, NULL, 0), 0);
    f->trees[1].weight_den = 4294967291u;
    f->trees[2].weight_den = 4294967279u;
    expect_refused(f, BNY_FOREST_ALLREDUCE, "weights beyond 64 bits");
    bny_forest_free(f);
}

Test(forest, costs_are_finite_rise_with_bytes_and_vanish_for_one_rank)
{
    for (int i = 0; bny_builders[i]; i++)
        for (int u = 0; u < 3; u++) {
            const struct bny_builder_ops *b = bny_builders[i];

            if (!(b->uses & uses[u]))
                continue;
            cr_assert_eq(b->cost(1, uses[u], 1e6, 1e-6, 1e-9, 1e-10), 0, "%s", b->name);
            for (int n = 2; n <= MAX_RANKS; n++) {
                double small = b->cost(n, uses[u], 4, 1e-6, 1e-9, 1e-10);
                double large = b->cost(n, uses[u], 4e6, 1e-6, 1e-9, 1e-10);

                cr_assert(small >= 1e-6 && small < large && large < 1, "%s n=%d: %g %g",
                          b->name, n, small, large);
            }
        }
}

Test(forest, free_takes_null)
{
    bny_forest_free(NULL);
}
