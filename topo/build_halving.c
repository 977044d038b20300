/* SPDX-License-Identifier: BSD-3-Clause */
/* Recursive halving and doubling (Rabenseifner, ICCS 2004; Thakur et al., IJHPCA 2005, section
 * 4.5). Among p = 2^L ranks, tree r's edge v -> v ^ 2^h, h the highest bit in which v and r
 * differ, runs in step L-1-h: in step k a rank sends one message for all trees, S/2^(k+1),
 * blocks of consecutive roots.
 *
 * If n is not a power of two: p is the largest one below; rank p+i hangs below rank i in all p
 * trees and runs one step before the others (whole vector, the fold of the papers).
 *
 *   allreduce  2 L alpha + 2 (p-1)/p S beta + (p-1)/p S gamma; fold: + 2 (alpha + S beta) + S
 *              gamma
 *   scattered  half of it, powers of two only (a folded rank would own no block) */
#include "topo/build.h"

#include "base/err.h"

static int halving_build(struct bny_forest **out, int n, enum bny_forest_use use, int root)
{
    struct bny_forest *f;
    int p = 1, levels = 0, fold;

    *out = NULL;
    while (p <= n / 2) {
        p *= 2;
        levels++;
    }
    fold = p != n;
    if (use == BNY_FOREST_ROOTED)
        return bny_fail(BANYAN_ENOTSUP, "halving has no rooted forest; use binomial");
    if (use == BNY_FOREST_SCATTERED && fold)
        return bny_fail(BANYAN_ENOTSUP,
                        "halving scatters over a power of two of ranks, not "
                        "%d; use ring or star",
                        n);
    f = bny_forest_alloc("halving", n, p);
    if (!f)
        return bny_forest_no_memory("halving", n);
    for (int r = 0; r < p; r++) {
        struct bny_tree *tree = &f->trees[r];

        tree->root = r;
        for (int v = 0; v < p; v++) {
            int h = v == r ? 0 : 31 - __builtin_clz((unsigned)(v ^ r));

            if (v == r)
                continue;
            tree->parent[v] = v ^ (1 << h);
            tree->step[v] = (uint32_t)(fold + levels - 1 - h);
        }
        for (int v = p; v < n; v++)
            tree->parent[v] = v - p;
    }
    return bny_forest_finish(out, f);
}

static double halving_cost(int n, enum bny_forest_use use, double bytes, double alpha,
                           double beta, double gamma)
{
    int p = 1, levels = 0, phases = use == BNY_FOREST_ALLREDUCE ? 2 : 1;
    double share, seconds;

    while (p <= n / 2) {
        p *= 2;
        levels++;
    }
    share = bytes * (p - 1) / p;
    seconds = phases * (levels * alpha + share * beta) + share * gamma;
    return p == n ? seconds : seconds + phases * (alpha + bytes * beta) + bytes * gamma;
}

const struct bny_builder_ops bny_build_halving = {
    .name = "halving",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED,
    .build = halving_build,
    .cost = halving_cost,
};
