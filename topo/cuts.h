/* SPDX-License-Identifier: BSD-3-Clause */
/* The cut condition of Edmonds' branching theorem for a network with roots: for every set X of
 * nodes without at least one terminal, the links leaving X must have at least the capacity that
 * the roots in X demand. */
#ifndef BNY_TOPO_CUTS_H
#define BNY_TOPO_CUTS_H

#include "topo/graph.h"
#include "topo/maxflow.h"

struct bny_cuts {
    struct bny_flow flow;
    int source;         /* node of flow that supplies the roots */
    int nterms, nlinks; /* terminals; links added so far */
    int *term, *feed;   /* [nterms] node; arc source -> node */
    int *link;          /* [nlinks] arc of link l */
    int64_t *need;      /* [nterms] demand of the root at this terminal */
    int64_t total;      /* of need */
};

/* Terminals 0..nterms-1 are at nodes term[]; demands and capacities are 0. Returns 0 or
 * -BANYAN_ENOMEM. */
int bny_cuts_init(struct bny_cuts *c, int nodes, int nlinks, int nterms, const int *term);
void bny_cuts_free(struct bny_cuts *c);
/* Adds the next link. Returns 0 or -BANYAN_ENOMEM. */
int bny_cuts_link(struct bny_cuts *c, int from, int to, int64_t cap);
void bny_cuts_need(struct bny_cuts *c, int t, int64_t need);
void bny_cuts_cap(struct bny_cuts *c, int l, int64_t cap);
/* The first terminal from `first` on that is outside some violated set X, X in mark[nodes]; or
 * nterms if there is none. Sets without an earlier terminal are not checked: call with first =
 * 0 once, and continue from the result after demands fell or capacities grew. */
int bny_cuts_violated(struct bny_cuts *c, int first, uint8_t *mark);
/* The compute nodes and links of a graph, links reversed if `reversed`; all capacities and
 * demands 0. */
int bny_cuts_of_graph(struct bny_cuts *c, const struct bny_graph *g, int reversed);

/* Greatest common divisor of all capacities. */
int64_t bny_graph_common_cap(const struct bny_graph *g);
/* Capacity leaving (arriving at, if reversed) the set of nodes with cut[v] & mask; ranks in
 * that set. */
int64_t bny_cut_out(const struct bny_graph *g, const uint8_t *cut, int mask, int reversed);
int bny_cut_ranks(const struct bny_graph *g, const uint8_t *cut, int mask);
/* The smallest cut between the rank `root`, inside, and some other rank: capacity leaving it
 * (arriving, if reversed). Returns 0 or an error. */
int bny_cut_from(const struct bny_graph *g, int root, int reversed, int64_t *value,
                 uint8_t *cut);

#endif
