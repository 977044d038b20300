/* SPDX-License-Identifier: BSD-3-Clause */
/* Bine trees (De Sensi et al., "Bine trees: enhancing collective operations by optimizing
 * communication locality", SC'25, arXiv 2508.17311): the patterns of binomial trees and
 * butterflies with the distances 1, -1, 3, -5, 11 ... (sums of powers of -2) instead of powers
 * of two, upwards from even ranks and downwards from odd ones. A partner is at most n/3 away
 * instead of n/2, so fewer bytes cross the upper links of an oversubscribed network.
 *
 * Allreduce takes near partners first, when most bytes move; the order of the trees makes each
 * message one range of blocks. Scattered forests cannot order their trees: they take far
 * partners first, and the blocks of a message are consecutive around the circle of ranks. p is
 * the largest power of two below n; rank p+i hangs below rank i, one step before the others.
 *
 *   allreduce  2 L alpha + 2 (p-1)/p S beta + (p-1)/p S gamma; fold: + 2 (alpha + S beta) + S
 *              gamma
 *   scattered  half of it, and one more message per step if a range wraps; powers of two only
 *   rooted     L (alpha + S beta + S gamma) */
#include "topo/build.h"

#include <stdlib.h>

#include "base/err.h"
#include "topo/butterfly.h"

struct bine {
    int p, levels;
    int far_first;
};

static struct bine bine_of(int n)
{
    struct bine b = { .p = 1 };

    for (; b.p <= n / 2; b.p *= 2)
        b.levels++;
    return b;
}

static int peer(const void *ctx, int v, int step, int k)
{
    const struct bine *b = ctx;

    return bny_negabinary_peer(v, b->p, b->far_first ? b->levels - 1 - step : step);
}

/* One tree counted from `root`: built at 0, then moved. */
static int build_rooted(struct bny_forest *f, const struct bny_butterfly *pattern, int n,
                        int root, int fold)
{
    struct bny_tree at0 = { .parent = malloc((size_t)n * sizeof(int)),
                            .step = calloc((size_t)n, sizeof(uint32_t)) };
    struct bny_tree *tree = &f->trees[0];
    int e =
        at0.parent && at0.step ? bny_butterfly_tree(pattern, &at0, 0, fold) : -BANYAN_ENOMEM;

    tree->root = root;
    for (int v = 1; v < n && !e; v++) {
        int at = (v + root) % n, up = v < pattern->nranks ? at0.parent[v] : v - pattern->nranks;

        tree->parent[at] = (up + root) % n;
        tree->step[at] = v < pattern->nranks ? at0.step[v] : 0;
    }
    free(at0.parent);
    free(at0.step);
    return e;
}

static int build_butterfly(struct bny_forest *f, const struct bny_butterfly *pattern, int n,
                           int fold, int ordered)
{
    int p = pattern->nranks, *roots = malloc((size_t)p * sizeof *roots);
    int e = roots && !bny_butterfly_order(pattern, roots) ? 0 : -BANYAN_ENOMEM;

    for (int t = 0; t < p && !e; t++) {
        e = bny_butterfly_tree(pattern, &f->trees[t], ordered ? roots[t] : t, fold);
        for (int v = p; v < n; v++)
            f->trees[t].parent[v] = v - p;
    }
    free(roots);
    return e;
}

static int bine_build(struct bny_forest **out, int n, enum bny_forest_use use, int root)
{
    struct bine bine = bine_of(n);
    struct bny_butterfly pattern = { bine.p, bine.levels, 1, peer, &bine };
    int fold = bine.p != n, e;
    struct bny_forest *f;

    *out = NULL;
    if (use == BNY_FOREST_SCATTERED && fold)
        return bny_fail(BANYAN_ENOTSUP,
                        "bine scatters over a power of two of ranks, not %d; use ring "
                        "or star",
                        n);
    bine.far_first = use == BNY_FOREST_SCATTERED;
    f = bny_forest_alloc("bine", n, use == BNY_FOREST_ROOTED ? 1 : bine.p);
    if (!f)
        return bny_forest_no_memory("bine", n);
    if (use == BNY_FOREST_ROOTED)
        e = build_rooted(f, &pattern, n, root, fold);
    else
        e = build_butterfly(f, &pattern, n, fold, use == BNY_FOREST_ALLREDUCE);
    if (e) {
        bny_forest_free(f);
        return bny_forest_no_memory("bine", n);
    }
    return bny_forest_finish(out, f);
}

static double bine_cost(int n, enum bny_forest_use use, double bytes, double alpha, double beta,
                        double gamma)
{
    struct bine b = bine_of(n);
    int phases = use == BNY_FOREST_ALLREDUCE ? 2 : 1, fold = b.p != n;
    double share = bytes * (b.p - 1) / b.p, seconds;

    if (use == BNY_FOREST_ROOTED)
        return bny_log2_ceil(n) * (alpha + bytes * (beta + gamma));
    seconds = phases * (b.levels * alpha + share * beta) + share * gamma;
    if (use == BNY_FOREST_SCATTERED && b.levels > 1)
        seconds += (b.levels - 1) * alpha;
    return fold ? seconds + phases * (alpha + bytes * beta) + bytes * gamma : seconds;
}

const struct bny_builder_ops bny_build_bine = {
    .name = "bine",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED | BNY_FOREST_ROOTED,
    .build = bine_build,
    .cost = bine_cost,
};
