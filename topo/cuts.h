/* SPDX-License-Identifier: BSD-3-Clause */
/* The cut condition of Edmonds' branching theorem, asked of a network with roots: every set X
 * of nodes that leaves out at least one terminal must have links of at least as much capacity
 * leaving it as the roots in X demand. */
#ifndef BNY_TOPO_CUTS_H
#define BNY_TOPO_CUTS_H

#include "topo/graph.h"
#include "topo/maxflow.h"

struct bny_cuts {
    struct bny_flow flow;
    int source;         /* node of flow that feeds the roots */
    int nterms, nlinks; /* terminals; links that were added */
    int *term, *feed;   /* [nterms] node; arc source -> node */
    int *link;          /* [nlinks] arc of link l */
    int64_t *need;      /* [nterms] demand of the root at this terminal */
    int64_t total;      /* of need */
};

/* Terminals 0..nterms-1 stand at nodes term[]; demands and capacities are 0. 0 or
 * -BANYAN_ENOMEM. */
int bny_cuts_init(struct bny_cuts *c, int nodes, int nlinks, int nterms, const int *term);
void bny_cuts_free(struct bny_cuts *c);
/* Adds the next link. 0 or -BANYAN_ENOMEM. */
int bny_cuts_link(struct bny_cuts *c, int from, int to, int64_t cap);
void bny_cuts_need(struct bny_cuts *c, int t, int64_t need);
void bny_cuts_cap(struct bny_cuts *c, int l, int64_t cap);
/* The first terminal from `first` on that some violated X leaves out, X in mark[nodes]; or
 * nterms when there is none. A set that leaves out an earlier terminal is not looked at: ask
 * with first = 0 once, and go on from the answer after demands fell or capacities grew. */
int bny_cuts_violated(struct bny_cuts *c, int first, uint8_t *mark);
/* The compute nodes and links of a graph, links turned round when `reversed`; all capacities
 * and demands 0. */
int bny_cuts_of_graph(struct bny_cuts *c, const struct bny_graph *g, int reversed);

/* Greatest common divisor of all capacities. */
int64_t bny_graph_common_cap(const struct bny_graph *g);
/* Capacity leaving (arriving at, when reversed) the set of nodes with cut[v] & mask; ranks in
 * that set. */
int64_t bny_cut_out(const struct bny_graph *g, const uint8_t *cut, int mask, int reversed);
int bny_cut_ranks(const struct bny_graph *g, const uint8_t *cut, int mask);
/* The smallest cut between the rank `root`, inside, and some other rank: capacity leaving it
 * (arriving, when reversed). 0 or an error. */
int bny_cut_from(const struct bny_graph *g, int root, int reversed, int64_t *value,
                 uint8_t *cut);

#endif
