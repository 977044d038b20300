/* SPDX-License-Identifier: BSD-3-Clause */
/* PAT, "parallel aggregated trees" (Jeaugey, arXiv 2506.20252; NCCL 2.23): allgather over
 * binomial trees for any n, the far dimensions first, so that a rank sends one block far away
 * and many blocks near; the reduce-scatter is the same backwards. Tree r's rank v sends over
 * the lowest bit of (v - r) mod n, in the step of that bit.
 *
 * A message has n / 2^(s+1) strided blocks in step s. A scattered forest's blocks are fixed, so
 * each is a message of its own: the paper's aggregation needs a copy into a buffer, which
 * programs do not have. An allreduce over a power of two orders its trees by reversed bits, and
 * each message is one range.
 *
 *   allreduce  2 L alpha (powers of two; else 2 (n-1) alpha) + 2 (n-1)/n S beta + (n-1)/n S
 *              gamma
 *   scattered  (n-1) alpha in L steps + (n-1)/n S beta + (n-1)/n S gamma */
#include "topo/build.h"

#include "base/err.h"

static int reversed(int v, int bits)
{
    int r = 0;

    for (int i = 0; i < bits; i++)
        r |= (v >> i & 1) << (bits - 1 - i);
    return r;
}

static int pat_build(struct bny_forest **out, int n, enum bny_forest_use use, int root)
{
    int bits = bny_log2_ceil(n), joined = use == BNY_FOREST_ALLREDUCE && (n & (n - 1)) == 0;
    struct bny_forest *f;

    *out = NULL;
    if (use == BNY_FOREST_ROOTED)
        return bny_fail(BANYAN_ENOTSUP, "pat has no rooted forest; use binomial");
    f = bny_forest_alloc("pat", n, n);
    if (!f)
        return bny_forest_no_memory("pat", n);
    for (int t = 0; t < n; t++) {
        struct bny_tree *tree = &f->trees[t];

        tree->root = joined ? reversed(t, bits) : t;
        for (int d = 1; d < n; d++) {
            int v = (tree->root + d) % n;

            tree->parent[v] = (tree->root + (d & (d - 1))) % n;
            tree->step[v] = (uint32_t)__builtin_ctz((unsigned)d);
        }
    }
    return bny_forest_finish(out, f);
}

static double pat_cost(int n, enum bny_forest_use use, double bytes, double alpha, double beta,
                       double gamma)
{
    int all = use == BNY_FOREST_ALLREDUCE, joined = all && (n & (n - 1)) == 0;
    double share = bytes * (n - 1) / n, messages = joined ? bny_log2_ceil(n) : n - 1;

    return (all ? 2 : 1) * (messages * alpha + share * beta) + share * gamma;
}

const struct bny_builder_ops bny_build_pat = {
    .name = "pat",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED,
    .build = pat_build,
    .cost = pat_cost,
};
