/* SPDX-License-Identifier: BSD-3-Clause */
/* Trivance (arXiv 2602.17254, 2026): in each step a rank exchanges with two ranks, as far up as
 * down, so ceil(log3 n) steps suffice if each host has two ports. As a forest: the distance
 * from the root is written in balanced ternary, and a step removes one digit.
 *
 * n = 3^L, allreduce: the lowest digit first, so most bytes go to the nearest ranks (S/3 to
 * each side at distance 1, S/9 at distance 3: every step loads the links of a ring equally);
 * the order of the trees makes a message one range of blocks. Any other n, and scattered
 * forests: the highest digit first, which leaves a smaller distance for any n; the blocks of a
 * message are consecutive around the circle. This is the bandwidth version; for small data the
 * log2 exchanges of recursive_doubling are as good, since ranks here associate sums alike and
 * lossy codecs stay possible.
 *
 * D = ceil(log3 n):
 *   allreduce  4 D alpha + 2 (n-1)/n S beta + (n-1)/n S gamma (two messages per step)
 *   scattered  half of it
 *   rooted     D steps, 2 D (alpha + S beta + S gamma) at the root's port */
#include "topo/build.h"

#include <stdlib.h>

#include "base/err.h"
#include "topo/butterfly.h"

static int digits_of(int n)
{
    int d = 0;

    for (long reach = 0, power = 1; reach < n / 2; power *= 3, d++)
        reach += power;
    return d;
}

static long power3(int d)
{
    long p = 1;

    while (d-- > 0)
        p *= 3;
    return p;
}

/* The tree for any n: v's parent is v without the highest digit of its distance from the
 * root. */
static void far_tree(struct bny_tree *tree, int n, int root, int digits)
{
    tree->root = root;
    for (int v = 0; v < n; v++) {
        int d = (v - root + n) % n, s = digits - 1, by;

        if (v == root)
            continue;
        d = d > n / 2 ? d - n : d;
        while (abs(d) <= (power3(s) - 1) / 2) /* the range of the digits below s */
            s--;
        by = (int)power3(s) * (d > 0 ? -1 : 1);
        tree->parent[v] = ((v + by) % n + n) % n;
        tree->step[v] = (uint32_t)(digits - 1 - s);
    }
}

static int near_peer(const void *ctx, int v, int step, int k)
{
    const int *n = ctx;
    int by = (int)(power3(step) % *n);

    return (v + (k ? *n - by : by)) % *n;
}

static int build_near(struct bny_forest *f, int n, int digits)
{
    struct bny_butterfly pattern = { n, digits, 2, near_peer, &n };
    int *roots = malloc((size_t)n * sizeof *roots);
    int e = roots && !bny_butterfly_order(&pattern, roots) ? 0 : -BANYAN_ENOMEM;

    for (int t = 0; t < n && !e; t++)
        e = bny_butterfly_tree(&pattern, &f->trees[t], roots[t], 0);
    free(roots);
    return e;
}

static int trivance_build(struct bny_forest **out, int n, enum bny_forest_use use, int root)
{
    int digits = digits_of(n), rooted = use == BNY_FOREST_ROOTED;
    struct bny_forest *f = bny_forest_alloc("trivance", n, rooted ? 1 : n);

    *out = NULL;
    if (!f)
        return bny_forest_no_memory("trivance", n);
    if (use == BNY_FOREST_ALLREDUCE && n > 1 && power3(digits) == n) {
        if (build_near(f, n, digits)) {
            bny_forest_free(f);
            return bny_forest_no_memory("trivance", n);
        }
        return bny_forest_finish(out, f);
    }
    for (int t = 0; t < f->ntrees; t++)
        far_tree(&f->trees[t], n, rooted ? root : t, digits);
    return bny_forest_finish(out, f);
}

static double trivance_cost(int n, enum bny_forest_use use, double bytes, double alpha,
                            double beta, double gamma)
{
    double share = bytes * (n - 1) / n;

    if (use == BNY_FOREST_ROOTED)
        return 2 * digits_of(n) * (alpha + bytes * (beta + gamma));
    return (use == BNY_FOREST_ALLREDUCE ? 2 : 1) * (2 * digits_of(n) * alpha + share * beta) +
           share * gamma;
}

const struct bny_builder_ops bny_build_trivance = {
    .name = "trivance",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED | BNY_FOREST_ROOTED,
    .build = trivance_build,
    .cost = trivance_cost,
};
