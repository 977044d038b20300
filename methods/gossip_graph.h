/* SPDX-License-Identifier: BSD-3-Clause */
/* The pairs that gossip, and when: an undirected graph of the ranks, its edges coloured so that
 * those of one colour are disjoint pairs. A round is a colour. Every rank makes the same. */
#ifndef BNY_METHODS_GOSSIP_GRAPH_H
#define BNY_METHODS_GOSSIP_GRAPH_H

#include <stddef.h>

struct bny_gossip_graph {
    int n;        /* ranks */
    int degree;   /* the largest */
    int colours;  /* degree where the graph is bipartite; else that or one or two more */
    size_t edges; /* [edges]: both ends, the lower first, and the colour */
    struct bny_gossip_edge {
        int low, high, colour;
    } * edge;
};

/* name: ring[:N], torus:AxB[xC...], hypercube[:D], exponential, random[:degree=D,seed=S],
 * complete; as the generators of topo/ are called, of n ranks. 0; -BANYAN_EINVAL: no such name,
 * or none of n ranks; -BANYAN_ENOMEM. */
int bny_gossip_graph_make(struct bny_gossip_graph *out, const char *name, int n);
void bny_gossip_graph_free(struct bny_gossip_graph *g);

#endif
