/* SPDX-License-Identifier: BSD-3-Clause */
/* Binomial tree (Thakur, Rabenseifner and Gropp, "Optimization of collective communication
 * operations in MPICH", IJHPCA 2005, section 3). Rank v, counted from the root, sends in the
 * step of its lowest set bit to v without that bit. L = ceil(log2 n) steps a phase. A parent
 * adds contiguous ranges of ranks in rising order, so rooted at 0 it keeps the order of
 * operations that do not commute.
 *
 *   allreduce  2 L (alpha + S beta) + L S gamma (the root's port carries S in every step), root
 *     0
 *   rooted     L (alpha + S beta + S gamma) */
#include "topo/build.h"

#include "base/err.h"

static int binomial_build(struct bny_forest **out, int n, enum bny_forest_use use, int root)
{
    struct bny_forest *f;
    int at = use == BNY_FOREST_ROOTED ? root : 0;

    *out = NULL;
    if (use == BNY_FOREST_SCATTERED)
        return bny_fail(BANYAN_ENOTSUP, "binomial has no scattered forest; use star");
    f = bny_forest_alloc("binomial", n, 1);
    if (!f)
        return bny_forest_no_memory("binomial", n);
    f->trees[0].root = at;
    for (int v = 1; v < n; v++) {
        int rank = (v + at) % n;

        f->trees[0].parent[rank] = ((v & (v - 1)) + at) % n;
        f->trees[0].step[rank] = (uint32_t)__builtin_ctz((unsigned)v);
    }
    return bny_forest_finish(out, f);
}

static double binomial_cost(int n, enum bny_forest_use use, double bytes, double alpha,
                            double beta, double gamma)
{
    return bny_log2_ceil(n) *
           ((use == BNY_FOREST_ALLREDUCE ? 2 : 1) * (alpha + bytes * beta) + bytes * gamma);
}

const struct bny_builder_ops bny_build_binomial = {
    .name = "binomial",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_ROOTED,
    .build = binomial_build,
    .cost = binomial_cost,
};
