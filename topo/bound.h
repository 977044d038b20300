/* SPDX-License-Identifier: BSD-3-Clause */
/* Lower bounds on collectives over a cluster graph, each with the cut that proves it
 * (ForestColl, arXiv 2402.06787, for allgather and its
 * attainability). Exact rationals.
 *
 * Values are times in units of S / (graph.unit_Bps): S bytes is the whole vector (n shards of
 * S/n for allgather and reduce-scatter). bny_bound.shard is the same in units of a shard, i.e.
 * 1/x* = max |X & compute| / B+(X). */
#ifndef BNY_TOPO_BOUND_H
#define BNY_TOPO_BOUND_H

#include "topo/dual.h"
#include "topo/forest.h"
#include "topo/graph.h"

enum bny_cut_kind {
    BNY_CUT_NONE,
    BNY_CUT_OUT,    /* |X & compute| shards must leave X: allgather */
    BNY_CUT_IN,     /* the same arriving, on the reversed graph: reduce-scatter */
    BNY_CUT_OUT_IN, /* allreduce as reduce-scatter then allgather, the sum of both: bit 0 of
                       cut[v] is the set of BNY_CUT_OUT, bit 1 that of BNY_CUT_IN; one set
                       serves both if no node has bit 1 */
    BNY_CUT_SPLIT,  /* allreduce, any roots: S must cross out of X and S into X: max(1/B+(X),
                       1/B-(X)) */
    BNY_CUT_PORTS,  /* allreduce, any roots: 2(n-1) S enters the compute nodes: 2(n-1) / sum
                       B-(v); cut is all ones */
    BNY_CUT_LP,     /* the dual of the joint linear program: cut alone proves nothing (.dual) */
    BNY_CUT_ROOT_OUT, /* broadcast: S must leave X, which holds the root: 1/B+(X) */
    BNY_CUT_ROOT_IN,  /* reduce: S must arrive in X, which holds the root: 1/B-(X) */
    BNY_CUT_PARTS /* allreduce, any roots: cut[v] is 0 or one of k parts 1..k, each with ranks;
                   * every tree enters k-1 parts (and leaves k-1) in each direction: 2(k-1) /
                   * the lesser of sum B-(part), sum B+(part) */
};

struct bny_bound {
    struct bny_ratio value, shard;
    enum bny_cut_kind kind;
    uint8_t *cut; /* [nnodes]; bny_bound_free */
    int cut_nodes;
    struct bny_dual *dual; /* BNY_CUT_LP: dual.h; else NULL */
};
void bny_bound_free(struct bny_bound *b); /* frees what it points at */

/* The exact bounds. Return 0, -BANYAN_ENOMEM, or -BANYAN_ENOTSUP (numbers too large for 64
 * bits). */
int bny_bound_allgather(struct bny_bound *out, const struct bny_graph *g);
int bny_bound_reduce_scatter(struct bny_bound *out, const struct bny_graph *g);
int bny_bound_rooted(struct bny_bound *out, const struct bny_graph *g, int root,
                     int reduce); /* broadcast, reduce */
/* Reduce-scatter + allgather, one after the other: the sum of both. */
int bny_bound_rs_ag(struct bny_bound *out, const struct bny_graph *g);
/* Allreduce proper: phases overlap, roots anywhere. */
int bny_bound_allreduce(struct bny_bound *out, const struct bny_graph *g);
/* The bounds of BNY_CUT_PORTS and BNY_CUT_PARTS (0: none). */
struct bny_ratio bny_bound_ports(const struct bny_graph *g);
struct bny_ratio bny_bound_parts(const struct bny_graph *g, const uint8_t *part);

/* Computes the loads of a forest (with paths) on the links for one use, sets claim.time, and
 * claim.bound and cut from the matching bound (the joint one for ALLREDUCE if `joint`). Returns
 * 0 or an error. */
int bny_forest_certify(struct bny_forest *f, const struct bny_graph *g, enum bny_forest_use use,
                       int root, int joint);
/* Recomputes both from forest, paths and cut alone in O(trees x ranks + links), without
 * trusting the claim. Returns 0, or -BANYAN_EINVAL with the first disagreement in why. */
int bny_forest_recheck(const struct bny_forest *f, const struct bny_graph *g,
                       enum bny_forest_use use, int root, char *why, size_t why_cap);

/* Builders that use the graph. */
struct bny_build_opts {
    int k; /* trees per root (packed), sub-chunks per shard (multitree); 0: the builder's choice
            */
    int height_cap; /* largest height of a tree; 0: none */
    int seconds;    /* soft limit on the time to build; 0: none */
    int quick;      /* low trees: no long search for them if there are many ranks */
};
struct bny_graph_builder_ops {
    char name[24];
    unsigned uses; /* enum bny_forest_use */
    /* Like bny_builder_ops.build. The forest has paths and a claim (certified). opts may be
     * NULL. */
    int (*build)(struct bny_forest **out, const struct bny_graph *g, enum bny_forest_use use,
                 int root, const struct bny_build_opts *opts);
};
/* NULL-terminated: topo/build_graph.h */
extern const struct bny_graph_builder_ops *const bny_graph_builders[];
const struct bny_graph_builder_ops *bny_graph_builder_find(const char *name);

#endif
