/* SPDX-License-Identifier: BSD-3-Clause */
/* A forest: weighted spanning trees over the ranks. Independent of sizes: defines the sender
 * and receiver of each edge, not the amount. Reduce-scatter runs its trees towards the roots,
 * allgather away from them, allreduce does both. */
#ifndef BNY_TOPO_FOREST_H
#define BNY_TOPO_FOREST_H

#include <stddef.h>
#include <stdint.h>

#include "topo/ratio.h"

struct bny_graph;
struct bny_dual;

struct bny_route { /* the links of a graph on one edge of a tree, in order of travel */
    int nlinks;
    int *links;
};

struct bny_tree {
    int root;
    uint32_t weight_num, weight_den; /* share of the data that this tree carries */
    uint32_t pipeline; /* trees of different pipelines do not share wire channels (compile.c:
                          chan) */
    int *parent;       /* [nranks]; parent[root] = -1 */
    uint32_t *step; /* [nranks] reduce direction: time step of the edge v -> parent[v], from 0;
                     * a child's edge has a smaller step than its parent's edge. The broadcast
                     * direction runs the steps backwards: nsteps - 1 - step. */
    /* Broadcast direction, if it is not the same edges backwards (packings of asymmetric
     * graphs, joint allreduce plans): down_parent[v] sends to v at down_step[v], which grows
     * away from the root, from 0. NULL: as above. */
    int *down_parent;
    uint32_t *down_step;
    /* The links of the graph on each edge: up[v] from v to parent[v], down[v] from the
     * broadcast parent to v. NULL if the forest was made without a graph. [nranks]; the root's
     * are empty. */
    struct bny_route *up, *down;
};

/* The builder's claim, in units of S (the whole vector) / capacity 1 of the graph, and the cut
 * that bounds any improvement; bound.h has the formulas. */
struct bny_claim {
    struct bny_ratio time;  /* largest load of a link / its capacity, reduce and broadcast
                               together for ALLREDUCE */
    struct bny_ratio bound; /* what the cut proves */
    int cut_kind;           /* enum bny_cut_kind */
    uint8_t *cut;           /* [nnodes of the graph] 1: in X; NULL: no certificate */
    int cut_nodes;
    struct bny_dual *dual; /* with BNY_CUT_LP: topo/dual.h; else NULL */
};

struct bny_forest {
    char name[32];
    int nranks, ntrees;
    uint32_t nsteps; /* 1 + the largest step of any edge (0 for one rank) */
    struct bny_tree *trees;
    /* A forest for part of the ranks (bny_forest_part), for sums that not all ranks contribute
     * to: [nranks] 1: the rank is in the trees. The others have no parent and no children in
     * the reduction; in the broadcast each of them has a parent or, with a sink, only the sink
     * has. NULL: all ranks are in the trees. */
    uint8_t *present;
    int sink;     /* a part's: the only rank that gets the result; -1: all ranks do */
    int *host_of; /* [nranks] ranks of one host, whose edges are memory; NULL: nothing is known
                   */
    struct bny_claim claim; /* all zero if the builder makes no claim */
};

/* Uses of a builder's forest. */
enum bny_forest_use {
    BNY_FOREST_ALLREDUCE = 1 << 0, /* any roots */
    BNY_FOREST_SCATTERED =
        1 << 1, /* the trees in order of their roots, one or more per rank, each rank's weights
                   1/nranks together: reduce_scatter and allgather */
    BNY_FOREST_ROOTED = 1 << 2, /* all trees rooted at `root`: broadcast and reduce */
};

/* Facts for the choice of a builder, besides its cost. */
enum bny_builder_trait {
    BNY_BUILDER_DIRECT =
        1 << 0, /* every pair of ranks with a common block communicates at once */
    BNY_BUILDER_NEIGHBOURS =
        1 << 1, /* ranks communicate only with their neighbours in rank order */
    BNY_BUILDER_ORDERED = 1 << 2, /* adds in rank order: chosen if that is required */
};

struct bny_builder_ops {
    char name[24];
    unsigned uses;   /* enum bny_forest_use that build() accepts for some n */
    unsigned traits; /* enum bny_builder_trait */
    /* Builds a forest for one use; root only for ROOTED (else ignored). Returns 0 and *out
     * (bny_forest_free), or -BANYAN_ENOTSUP if this builder has none for this n (halving's
     * SCATTERED needs a power of two), or -BANYAN_ENOMEM. Pure; any thread. */
    int (*build)(struct bny_forest **out, int nranks, enum bny_forest_use use, int root);
    /* Predicted seconds for S bytes on a uniform full mesh, the closed form of the file's top
     * comment. */
    double (*cost)(int nranks, enum bny_forest_use use, double bytes, double alpha_s,
                   double beta_s_per_byte, double gamma_s_per_byte);
};

/* NULL-terminated; build.h lists them. */
extern const struct bny_builder_ops *const bny_builders[];
const struct bny_builder_ops *bny_builder_find(const char *name);

/* Allocates an empty forest with parent = -1, step = 0, weights 1/ntrees. NULL on no memory. */
struct bny_forest *bny_forest_alloc(const char *name, int nranks, int ntrees);
void bny_forest_free(struct bny_forest *f); /* takes NULL */
/* Largest number of edges from a leaf to its root (down: from the root to a leaf). */
int bny_forest_height(const struct bny_forest *f, int down);

/* Extends the forest f of the m ranks in a set to all n ranks: rank i of f is the i-th rank
 * with present[i] = 1. In the broadcast the others get the result from those in the set and
 * from each other, in ceil(log2(n / m)) more steps: if at least half of the ranks are in the
 * set, the others send nothing. sink >= 0: f is ROOTED, and only this rank gets the result,
 * from the root unless it is the root. Returns 0, -BANYAN_ENOMEM. */
int bny_forest_part(struct bny_forest **out, const struct bny_forest *f, int n,
                    const uint8_t *present, int sink);

/* Checks the forest itself: every tree spans all ranks once and has no cycle, steps grow
 * towards the root, weights sum to one exactly (rational), use's conditions hold. Returns 0, or
 * -BANYAN_EINVAL with the first violation in why. */
int bny_forest_check(const struct bny_forest *f, enum bny_forest_use use, int root, char *why,
                     size_t why_cap);

#endif
