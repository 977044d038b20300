/* SPDX-License-Identifier: BSD-3-Clause */
/* Rings. Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
 * workstations", J. Parallel Distrib. Comput. 2009.
 *
 * ring_uni: tree r is the path r+1, r+2, ..., r: n - 1 steps a phase, one message of S/n a step
 *   and rank. 2(n-1) alpha + 2(n-1)/n S beta + (n-1)/n S gamma.
 * ring, allreduce: the same in both directions, half the data each: 2n trees, tree d*n + r runs
 *   in direction d. Two messages of S/(2n) a step: bytes as above, 4(n-1) alpha; uses both
 *   directions of every link of a physical ring.
 * ring, scattered: a forest of one tree a rank cannot split its data, so tree r is two arms
 *   that meet at r: floor(n/2) steps, two messages of S/n each. For even n the longer arm
 *   alternates with r, so both directions carry the same.
 *   (n-1) alpha + (n-1)/n S beta + (n-1)/n S gamma. */
#include "topo/build.h"

#include "base/err.h"

/* Builds an arm of `len` ranks that ends at the root; dir +1: data flows to higher ranks. */
static void lay_arm(struct bny_tree *tree, int n, int root, int dir, int len)
{
    for (int dist = 1; dist <= len; dist++) {
        int v = ((root - dir * dist) % n + n) % n;

        tree->parent[v] = ((v + dir) % n + n) % n;
        tree->step[v] = (uint32_t)(len - dist);
    }
}

static int build_scattered(struct bny_forest **out, int n)
{
    struct bny_forest *f = bny_forest_alloc("ring", n, n);

    if (!f)
        return bny_forest_no_memory("ring", n);
    for (int r = 0; r < n; r++) {
        int longer = n / 2, shorter = n - 1 - longer;

        f->trees[r].root = r;
        lay_arm(&f->trees[r], n, r, 1, r & 1 ? shorter : longer);
        lay_arm(&f->trees[r], n, r, -1, r & 1 ? longer : shorter);
    }
    return bny_forest_finish(out, f);
}

static int ring_build(struct bny_forest **out, int n, enum bny_forest_use use, int root)
{
    struct bny_forest *f;

    *out = NULL;
    if (use == BNY_FOREST_SCATTERED)
        return build_scattered(out, n);
    if (use != BNY_FOREST_ALLREDUCE)
        return bny_fail(BANYAN_ENOTSUP, "the ring has no rooted forest; use star or binomial");
    f = bny_forest_alloc("ring", n, 2 * n);
    if (!f)
        return bny_forest_no_memory("ring", n);
    for (int t = 0; t < 2 * n; t++) {
        f->trees[t].root = t % n;
        f->trees[t].pipeline = (uint32_t)(t / n);
        lay_arm(&f->trees[t], n, t % n, t < n ? 1 : -1, n - 1);
    }
    return bny_forest_finish(out, f);
}

static int ring_uni_build(struct bny_forest **out, int n, enum bny_forest_use use, int root)
{
    struct bny_forest *f;

    *out = NULL;
    if (use == BNY_FOREST_ROOTED)
        return bny_fail(BANYAN_ENOTSUP, "the ring has no rooted forest; use star or binomial");
    f = bny_forest_alloc("ring_uni", n, n);
    if (!f)
        return bny_forest_no_memory("ring_uni", n);
    for (int r = 0; r < n; r++) {
        f->trees[r].root = r;
        lay_arm(&f->trees[r], n, r, 1, n - 1);
    }
    return bny_forest_finish(out, f);
}

static double uni_cost(int n, enum bny_forest_use use, double bytes, double alpha, double beta,
                       double gamma)
{
    double phases = use == BNY_FOREST_ALLREDUCE ? 2 : 1, share = bytes * (n - 1) / n;

    return phases * ((n - 1) * alpha + share * beta) + share * gamma;
}

static double ring_cost(int n, enum bny_forest_use use, double bytes, double alpha, double beta,
                        double gamma)
{
    double per_step = use == BNY_FOREST_ALLREDUCE ? 2 * alpha : alpha;

    return uni_cost(n, use, bytes, per_step, beta, gamma);
}

const struct bny_builder_ops bny_build_ring = {
    .name = "ring",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED,
    .traits = BNY_BUILDER_NEIGHBOURS,
    .build = ring_build,
    .cost = ring_cost,
};

const struct bny_builder_ops bny_build_ring_uni = {
    .name = "ring_uni",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED,
    .traits = BNY_BUILDER_NEIGHBOURS,
    .build = ring_uni_build,
    .cost = uni_cost,
};
