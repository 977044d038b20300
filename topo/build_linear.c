/* SPDX-License-Identifier: BSD-3-Clause */
/* Linear: one star whose root adds all others in rank order. Rooted at 0 the association is
 * ((x0 o x1) o x2) o ... for any size: the canonical one of deterministic mode, and correct for
 * operations that do not commute. A reduce to another root uses the direct program
 * linear_reduce, since a star at that root would add its own operand first.
 *
 *   allreduce  2(n-1) (alpha + S beta) + (n-1) S gamma at rank 0's port, 2 steps
 *   rooted     (n-1) (alpha + S beta + S gamma) */
#include "topo/build.h"

#include "base/err.h"

static int linear_build(struct bny_forest **out, int n, enum bny_forest_use use, int root)
{
    struct bny_forest *f;

    *out = NULL;
    if (use == BNY_FOREST_SCATTERED)
        return bny_fail(BANYAN_ENOTSUP, "linear has no scattered forest; use star");
    f = bny_forest_alloc("linear", n, 1);
    if (!f)
        return bny_forest_no_memory("linear", n);
    f->trees[0].root = use == BNY_FOREST_ROOTED ? root : 0;
    for (int v = 0; v < n; v++)
        if (v != f->trees[0].root)
            f->trees[0].parent[v] = f->trees[0].root;
    return bny_forest_finish(out, f);
}

static double linear_cost(int n, enum bny_forest_use use, double bytes, double alpha,
                          double beta, double gamma)
{
    return (n - 1) *
           ((use == BNY_FOREST_ALLREDUCE ? 2 : 1) * (alpha + bytes * beta) + bytes * gamma);
}

const struct bny_builder_ops bny_build_linear = {
    .name = "linear",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_ROOTED,
    .traits = BNY_BUILDER_ORDERED,
    .build = linear_build,
    .cost = linear_cost,
};
