/* SPDX-License-Identifier: BSD-3-Clause */
/* Star: every rank sends its part of block r directly to r, which adds all parts and sends the
 * sum back (direct reduce-scatter and allgather, "two-shot"). One step per phase, so each value
 * is added once at one place: this suits block codecs, as each value is quantised exactly twice
 * for any n.
 *
 *   allreduce  2(n-1) alpha + 2(n-1)/n S beta + (n-1)/n S gamma, 2 steps; tree r is rooted at r
 *   scattered  half of it
 *   rooted     one tree, (n-1) (alpha + S beta + S gamma) at the root's port */
#include "topo/build.h"

static int star_build(struct bny_forest **out, int n, enum bny_forest_use use, int root)
{
    int rooted = use == BNY_FOREST_ROOTED;
    struct bny_forest *f = bny_forest_alloc("star", n, rooted ? 1 : n);

    *out = NULL;
    if (!f)
        return bny_forest_no_memory("star", n);
    for (int t = 0; t < f->ntrees; t++) {
        struct bny_tree *tree = &f->trees[t];

        tree->root = rooted ? root : t;
        for (int v = 0; v < n; v++)
            if (v != tree->root)
                tree->parent[v] = tree->root;
    }
    return bny_forest_finish(out, f);
}

static double star_cost(int n, enum bny_forest_use use, double bytes, double alpha, double beta,
                        double gamma)
{
    double share = bytes * (n - 1) / n;

    if (use == BNY_FOREST_ROOTED)
        return (n - 1) * (alpha + bytes * beta + bytes * gamma);
    return (use == BNY_FOREST_ALLREDUCE ? 2 : 1) * ((n - 1) * alpha + share * beta) +
           share * gamma;
}

const struct bny_builder_ops bny_build_star = {
    .name = "star",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED | BNY_FOREST_ROOTED,
    .traits = BNY_BUILDER_DIRECT,
    .build = star_build,
    .cost = star_cost,
};
