/* SPDX-License-Identifier: BSD-3-Clause */
/* train_graph: a graph of communities (a stochastic block model), with noisy features, and the
 * part of it that a rank has. */
#ifndef GRAPH_H
#define GRAPH_H

#include <stddef.h>
#include <stdint.h>

enum { FEATURES = 32, CLASSES = 8 };

struct graph {
    int n;                /* nodes */
    int *first, *to;      /* neighbours of v: to[first[v] .. first[v + 1]), ascending */
    int *label;           /* [n] */
    unsigned char *train; /* [n] 1: its label is learnt from; 0: it is tested */
    float *x;             /* [n][FEATURES] */
};

/* The same for the same seed. inside, outside: mean numbers of neighbours in a node's community
 * and in the others. Nodes are numbered by community, as a partitioner would, or mixed. Returns
 * 0 or -1. */
int graph_make(struct graph *g, int n, double inside, double outside, double noise, int mixed,
               uint64_t seed);
void graph_free(struct graph *g);

/* The nodes of a rank, and those of other ranks that are their neighbours: its halo, in order
 * of number, and so of ranks. Columns of `to` are own nodes, then the halo. */
struct part {
    int begin, end, own, halo; /* own nodes are begin .. end - 1 */
    int *node;                 /* [halo] */
    int *first, *to;           /* of own nodes, themselves among their neighbours */
    float *weight;             /* of each of to: 1 / sqrt((degree + 1) (its degree + 1)) */
    size_t *send_counts, *recv_counts; /* [ranks] rows of own nodes to each, of the halo */
    uint32_t *send_rows;               /* own nodes that are in other ranks' halos */
    size_t sends;
};
int part_make(struct part *p, const struct graph *g, int rank, int ranks);
void part_free(struct part *p);

#endif
