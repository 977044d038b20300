/* SPDX-License-Identifier: BSD-3-Clause */
/* Two-dimensional bucket: rings over the b groups of a grid a x b, then inside a group
 * (Barnett, Littlefield, Payne and van de Geijn, "Global combine on mesh architectures with
 * wormhole routing", IPPS 1993; Jain and Sabharwal, "Optimal bucket algorithms for large MPI
 * collectives on torus interconnects", ICS 2010, without its mirrored copies). a is the largest
 * divisor of n with a*a <= n, b = n/a; rank = j*a + i. Tree r = (i, j) first runs round the
 * ring of equal i towards group j, then round group j towards i. Roots of one group are
 * consecutive, so all trees that share an edge in a step are one message: (b-1) of S/b, then
 * (a-1) of S/n.
 *
 *   allreduce  2 (a+b-2) alpha + 2 (n-1)/n S beta + (n-1)/n S gamma
 *   scattered  half of it
 * Composite n only. */
#include "topo/build.h"

#include "base/err.h"

static int factor(int n)
{
    int a = 1;

    for (int d = 2; d * d <= n; d++)
        if (n % d == 0)
            a = d;
    return a;
}

static int bucket_build(struct bny_forest **out, int n, enum bny_forest_use use, int root)
{
    int a = factor(n), b = n / a;
    struct bny_forest *f;

    *out = NULL;
    if (use == BNY_FOREST_ROOTED)
        return bny_fail(BANYAN_ENOTSUP, "bucket has no rooted forest; use binomial");
    if (a == 1)
        return bny_fail(BANYAN_ENOTSUP,
                        "bucket needs a composite number of ranks, not %d; use "
                        "ring",
                        n);
    f = bny_forest_alloc("bucket", n, n);
    if (!f)
        return bny_forest_no_memory("bucket", n);
    for (int r = 0; r < n; r++) {
        struct bny_tree *tree = &f->trees[r];

        tree->root = r;
        for (int v = 0; v < n; v++) {
            int i = v % a, j = v / a, ri = r % a, rj = r / a;

            if (j != rj) {
                tree->parent[v] = (j + 1) % b * a + i;
                tree->step[v] = (uint32_t)((j - rj - 1 + b) % b);
            } else if (i != ri) {
                tree->parent[v] = j * a + (i + 1) % a;
                tree->step[v] = (uint32_t)(b - 1 + (i - ri - 1 + a) % a);
            }
        }
    }
    return bny_forest_finish(out, f);
}

static double bucket_cost(int n, enum bny_forest_use use, double bytes, double alpha,
                          double beta, double gamma)
{
    int a = factor(n), b = n / a;
    double share = bytes * (n - 1) / n;

    return (use == BNY_FOREST_ALLREDUCE ? 2 : 1) * ((a + b - 2) * alpha + share * beta) +
           share * gamma;
}

const struct bny_builder_ops bny_build_bucket = {
    .name = "bucket",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED,
    .build = bucket_build,
    .cost = bucket_cost,
};
