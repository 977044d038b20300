/* SPDX-License-Identifier: BSD-3-Clause */
/* Double binary tree (Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth
 * broadcast, reduction and scan", Parallel Computing 2009, sections 3 and 4). Two trees carry
 * half the data each; below the common root are two in-order binary trees over the other m =
 * n-1 ranks, numbered 1..m from the root. Rank i's height is its lowest set bit: odd ranks are
 * leaves. The second tree is the first one mirrored (m even) or rotated by one (m odd), so that
 * an inner rank of one is a leaf in the other: every port moves at most 2 S each way in an
 * allreduce, S in a broadcast or reduce.
 *
 * Steps per phase: h, the height of the taller tree, at most L + 1, L = ceil(log2 n). A step is
 * the height of the subtree below; the paper's two-colouring of edges is not needed, as ports
 * are full duplex and queue. Pipelined in the best number of chunks:
 *   allreduce  (sqrt(4 L alpha) + sqrt(2 S beta))^2 + S gamma
 *   rooted     (sqrt(2 L alpha) + sqrt(S beta))^2 + S gamma */
#include "topo/build.h"

#include <math.h>

#include "base/err.h"

/* Parent of i in the in-order tree over 1..m; 0 above its top. */
static int in_order_parent(int i, int m)
{
    int bit = i & -i, up = (i ^ bit) | (bit << 1);

    return up <= m ? up : i ^ bit;
}

/* Position of rank v (1..m) in the second tree, and back: a mirror or a shift. */
static int to_second(int v, int m)
{
    if (m % 2 == 0)
        return m + 1 - v;
    return v == 1 ? m : v - 1;
}

static int from_second(int i, int m)
{
    if (m % 2 == 0)
        return m + 1 - i;
    return i == m ? 1 : i + 1;
}

/* A rank's step is the height of its subtree: walks up from every rank and raises it. */
static void set_steps(struct bny_tree *tree, int n)
{
    for (int v = 0; v < n; v++) {
        uint32_t height = 0;

        for (int u = v; u != tree->root; u = tree->parent[u], height++)
            if (tree->step[u] < height)
                tree->step[u] = height;
    }
}

static int double_binary_tree_build(struct bny_forest **out, int n, enum bny_forest_use use,
                                    int root)
{
    int at = use == BNY_FOREST_ROOTED ? root : 0, m = n - 1;
    struct bny_forest *f;

    *out = NULL;
    if (use == BNY_FOREST_SCATTERED)
        return bny_fail(BANYAN_ENOTSUP, "double_binary_tree has no scattered forest; use ring");
    f = bny_forest_alloc("double_binary_tree", n, 2);
    if (!f)
        return bny_forest_no_memory("double_binary_tree", n);
    for (int t = 0; t < 2; t++) {
        struct bny_tree *tree = &f->trees[t];

        tree->root = at;
        tree->pipeline = (uint32_t)t;
        for (int v = 1; v < n; v++) {
            int i = t ? to_second(v, m) : v, up = in_order_parent(i, m);

            tree->parent[(v + at) % n] = ((t && up ? from_second(up, m) : up) + at) % n;
        }
        set_steps(tree, n);
    }
    return bny_forest_finish(out, f);
}

static double double_binary_tree_cost(int n, enum bny_forest_use use, double bytes,
                                      double alpha, double beta, double gamma)
{
    double phases = use == BNY_FOREST_ALLREDUCE ? 2 : 1;
    double root = sqrt(phases * 2 * bny_log2_ceil(n) * alpha) + sqrt(phases * bytes * beta);

    return n == 1 ? 0 : root * root + bytes * gamma;
}

const struct bny_builder_ops bny_build_double_binary_tree = {
    .name = "double_binary_tree",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_ROOTED,
    .build = double_binary_tree_build,
    .cost = double_binary_tree_cost,
};
