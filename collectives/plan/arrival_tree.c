/* SPDX-License-Identifier: BSD-3-Clause */
/* Shapes of trees whose slots fill in order. */
#include "collectives/plan/arrival_tree.h"

int bny_arrival_tree_depth_max(int slots)
{
    int depth = 0;

    while ((1ll << (depth + 1)) - 1 <= slots)
        depth++;
    return depth;
}

/* Node k (in order, from 0) of a full binary tree: its parent, or -1. The height of a node is
 * the number of ones that k ends with. */
static int node_parent(int k, int nodes)
{
    int span = 1, up;

    while (k & span)
        span *= 2;
    up = k & 2 * span ? k - span : k + span;
    return span * 2 > nodes ? -1 : up;
}

/* In order: chain, node, chain, node, ... chain. Node k is slot at(k). Every chain flows to its
 * end, which came last, and from there into the leaf beside it: the nodes of even number are
 * leaves. */
void bny_arrival_tree_parents(int slots, int depth, int *parent)
{
    int nodes, chains, longer, least;

    if (depth <= 0) {
        for (int s = 0; s < slots; s++)
            parent[s] = depth == BNY_SHAPE_STAR ? 0 : s + 1;
        if (slots > 0)
            parent[depth == BNY_SHAPE_STAR ? 0 : slots - 1] = BNY_SHAPE_TOP;
        return;
    }
    chains = 1 << depth;
    nodes = chains - 1;
    least = (slots - nodes) / chains;
    longer = (slots - nodes) % chains; /* the first ones have one more */
    for (int k = 0, s = 0; k < chains; k++) {
        int len = least + (k < longer), leaf = k % 2 ? k - 1 : k, up;

        for (int i = 0; i < len; i++)
            parent[s + i] = s + i + 1;
        if (len) /* a chain behind its leaf ends far from it */
            parent[s + len - 1] = leaf == k ? s + len : s - 1;
        s += len;
        if (k == nodes)
            break;
        up = node_parent(k, nodes);
        if (up < 0)
            parent[s] = BNY_SHAPE_TOP;
        else /* slots of nodes: those before, and the chains before them */
            parent[s] = up + (up + 1) * least + (up + 1 < longer ? up + 1 : longer);
        s++;
    }
}

int bny_arrival_tree_below(int slots, int *parent, int slot)
{
    enum { IN = -2, OUT = -3 }; /* what is known of those that were passed */
    int below = 0;

    parent[slot] = IN;
    for (int s = 0; s < slots; s++) {
        int at = s, what;

        while (parent[at] >= 0)
            at = parent[at];
        what = parent[at] == IN ? IN : OUT;
        below += what == IN;
        for (at = s; parent[at] >= 0;) {
            int up = parent[at];

            parent[at] = what;
            at = up;
        }
        parent[at] = what;
    }
    return below;
}

double bny_arrival_tree_seconds(int slots, int depth, double bytes, double chunk, double alpha,
                                double beta)
{
    double hop, hops;

    if (depth == BNY_SHAPE_STAR)
        return alpha + (slots - 1) * bytes * beta;
    hop = alpha + (bytes < chunk ? bytes : chunk) * beta;
    if (depth == 0)
        return (slots - 1) * hop + bytes * beta;
    hops = depth + (double)(slots - (1 << depth) + 1) / (1 << depth);
    return hops * hop + 2 * bytes * beta;
}

int bny_arrival_tree_choose(int slots, double bytes, double chunk, double alpha_s, double beta)
{
    int best = BNY_SHAPE_STAR, most = bny_arrival_tree_depth_max(slots);
    double least = bny_arrival_tree_seconds(slots, best, bytes, chunk, alpha_s, beta);

    for (int depth = 0; depth <= most; depth++) {
        double t = bny_arrival_tree_seconds(slots, depth, bytes, chunk, alpha_s, beta);

        if (t < least) {
            least = t;
            best = depth;
        }
    }
    return best;
}
