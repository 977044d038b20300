/* SPDX-License-Identifier: BSD-3-Clause */
/* Packing trees into a directed multigraph of ranks (no switches) with whole capacities:
 * need[r] units of spanning trees away from each root r, such that no edge carries more units
 * than its capacity. Edmonds ("Edge-disjoint branchings", 1973): possible exactly if the edges
 * leaving every proper set of nodes have at least the capacity that the set's roots need. */
#ifndef BNY_TOPO_PACK_H
#define BNY_TOPO_PACK_H

#include <stdint.h>

#include "topo/forest.h"
#include "topo/graph.h"

struct bny_pack_edge {
    int from, to;
    int64_t cap;
    int nlinks, *links; /* its path in the graph, in order of travel */
};

struct bny_pack_tree {
    int root;
    int64_t units;
    int *edge; /* [n] the edge that enters v; -1 at the root */
};

struct bny_pack {
    int n, nedges, edges_cap, ntrees, trees_cap;
    struct bny_pack_edge *edges;
    int64_t *need; /* [n] */
    struct bny_pack_tree *trees;
    int exact_trees; /* trees that needed the exact construction: for diagnosis */
};

int bny_pack_init(struct bny_pack *p, int n); /* 0 or -BANYAN_ENOMEM */
void bny_pack_free(struct bny_pack *p);
/* Copies links. Returns the index or -BANYAN_ENOMEM. */
int bny_pack_edge(struct bny_pack *p, int from, int to, int64_t cap, int nlinks,
                  const int *links);
/* Adds a tree of `units` from root, edge[] all -1; NULL: no memory. */
struct bny_pack_tree *bny_pack_tree(struct bny_pack *p, int root, int64_t units);

/* By levels: every edge of a tree leads to a rank later in an order by distance from its root,
 * so that each rank selects its edges independently, by one flow. Trees have the least height;
 * this does not find every feasible packing. Returns 0 with the trees, -BANYAN_ENOTSUP (none of
 * that form; p is unchanged), -BANYAN_ENOMEM. */
int bny_pack_levels(struct bny_pack *p);
/* Always finds the trees if they exist: tree by tree, edge by edge, each with one flow that
 * proves the rest feasible (Bang-Jensen, Frank and Jackson 1995 with multiplicities).
 * Returns 0, -BANYAN_ENOTSUP if they do not exist,
 * -BANYAN_ENOMEM. */
int bny_pack_exact(struct bny_pack *p);

enum bny_pack_how {
    BNY_PACK_ANY,    /* by levels, else exactly */
    BNY_PACK_LEVELS, /* low trees or -BANYAN_ENOTSUP */
    BNY_PACK_QUICK   /* the same, if one even spread removes each switch */
};
/* Packs need[r] units of each rank r into the links' capacities cap[] (reversed: trees towards
 * the roots), after removal of the switches. Initialises p; call bny_pack_free in any case.
 * Returns 0 or an error. */
int bny_pack_graph(struct bny_pack *p, const struct bny_graph *g, const int64_t *cap,
                   const int64_t *need, int reversed, enum bny_pack_how how);
/* The forest of a packing: each tree's weight is its units over all units. `up`: a packing of
 * the reversed graph whose roots have the same shares; trees of both are split to common
 * weights; NULL: the edges of down backwards (symmetric graphs). With routes; not certified.
 * Returns 0, -BANYAN_ENOTSUP (weights beyond 32 bits), -BANYAN_ENOMEM. */
int bny_pack_forest(struct bny_forest **out, const char *name, const struct bny_graph *g,
                    const struct bny_pack *down, const struct bny_pack *up);

#endif
