/* SPDX-License-Identifier: BSD-3-Clause */
/* Removal of switches: a graph with whole capacities becomes a multigraph of ranks in which the
 * same trees can be packed, each edge standing for a path through switches (Mader's splitting
 * off, as ForestColl applies it; schedules.md 2.2 of the design). */
#ifndef BNY_TOPO_SPLIT_H
#define BNY_TOPO_SPLIT_H

#include "topo/graph.h"
#include "topo/maxflow.h"
#include "topo/pack.h"

/* The network while switches go: edges between nodes of the graph, and one flow network for all
 * questions. */
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
 * none. Links turned round when `reversed`; routes in p still name them in order of travel in
 * the network asked for. quick: gives up (-BANYAN_ENOTSUP) where
 * even spreads do not do at once. 0, -BANYAN_ENOTSUP when the needs cannot be met or survive no
 * splitting (switches with more capacity out than in), -BANYAN_ENOMEM. */
int bny_split(struct bny_pack *p, const struct bny_graph *g, const int64_t *cap, int reversed,
              int quick);

/* Between split.c and split_exact.c */
int64_t bny_split_feed(const struct bny_split *s, int v); /* need at ranks, else 0 */
int bny_split_edge(
    struct bny_split *s, int from, int to, int64_t cap, const struct bny_pack_edge *a,
    const struct bny_pack_edge *b); /* with the links of a, then of b (may be NULL) */
void bny_split_cap(struct bny_split *s, int e, int64_t cap);
/* Splits all edges at w off, pair by pair as far as each keeps every cut. */
int bny_split_exact(struct bny_split *s, int w);

#endif
