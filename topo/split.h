/* SPDX-License-Identifier: BSD-3-Clause */
/* Removal of switches: converts a graph with whole capacities to a multigraph of ranks in which
 * the same trees can be packed; each edge represents a path through switches (Mader's splitting
 * off, as in ForestColl). */
#ifndef BNY_TOPO_SPLIT_H
#define BNY_TOPO_SPLIT_H

#include "topo/graph.h"
#include "topo/maxflow.h"
#include "topo/pack.h"

/* The network during the removal: edges between nodes of the graph, and one flow network for
 * all checks. */
struct bny_split {
    const struct bny_graph *g;
    int nedges, edges_cap;
    struct bny_pack_edge *edges; /* from, to: nodes */
    const int64_t *need;         /* [nranks] */
    int64_t total;
    struct bny_flow flow; /* nodes, source = nnodes, sink = nnodes + 1 */
    int *arc;             /* [edges_cap] arc of edge e */
    int *feed, *drain;    /* [nnodes] arcs source -> v (need at ranks), v -> sink */
};

/* p: initialised for g->nranks, needs set, no edges. cap: [nlinks] whole capacities, 0 for
 * none. `reversed` reverses links; routes in p still list them in order of travel in the
 * requested network. quick: gives up (-BANYAN_ENOTSUP) if even spreads do not work at once.
 * Returns 0, -BANYAN_ENOTSUP if the needs cannot be met or survive no splitting (switches with
 * more capacity out than in), -BANYAN_ENOMEM. */
int bny_split(struct bny_pack *p, const struct bny_graph *g, const int64_t *cap, int reversed,
              int quick);

/* Between split.c and split_exact.c */
int64_t bny_split_feed(const struct bny_split *s, int v); /* need at ranks, else 0 */
int bny_split_edge(
    struct bny_split *s, int from, int to, int64_t cap, const struct bny_pack_edge *a,
    const struct bny_pack_edge *b); /* with the links of a, then of b (may be NULL) */
void bny_split_cap(struct bny_split *s, int e, int64_t cap);
/* Splits off all edges at w, pair by pair as far as every cut is preserved. */
int bny_split_exact(struct bny_split *s, int w);

#endif
