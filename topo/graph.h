/* SPDX-License-Identifier: BSD-3-Clause */
/* The cluster graph: compute nodes (one rank each), switches and NICs, joined by directed links
 * with capacity and latency. Made by a generator ("torus:8x8"), read from a file, or measured;
 * then frozen. */
#ifndef BNY_TOPO_GRAPH_H
#define BNY_TOPO_GRAPH_H

#include <stddef.h>
#include <stdint.h>

#include "topo/ratio.h"

enum bny_node_kind { BNY_NODE_COMPUTE, BNY_NODE_SWITCH, BNY_NODE_NIC };

struct bny_node {
    enum bny_node_kind kind;
    int rank;      /* COMPUTE: 0..nranks-1, each once; others -1 */
    int host;      /* ranks and NICs of one machine share a number; -1: none (switches) */
    int x, y, z;   /* position for drawing; all 0 if the source has none */
    char name[40]; /* unique, for users and files */
};

struct bny_link {
    int from, to;   /* node indexes, different */
    int64_t cap;    /* > 0, in units of graph.unit; parallel links are merged by adding */
    int64_t lat_ns; /* >= 0 */
    int64_t lanes;  /* parallel unit links that were merged here, >= 1 */
};

struct bny_graph {
    char name[64];
    double unit_Bps; /* bytes per second of capacity 1; 1e9 for the generators */
    int nnodes, nlinks, nranks;
    struct bny_node *nodes;
    struct bny_link *links;
    int *rank_node; /* [nranks] */
    /* After bny_graph_freeze: links leaving node v are out[out_first[v] .. out_first[v+1]), in
     * the order of their addition; the same for arriving ones. reverse[l]: the link of opposite
     * direction, or -1. */
    int *out_first, *out, *in_first, *in, *reverse;
    int nodes_cap, links_cap;
    int *pairs, pairs_cap; /* (from, to) -> link, open addressing; graph.c's own */
};

struct bny_graph *bny_graph_alloc(const char *name); /* NULL on no memory */
void bny_graph_free(struct bny_graph *g);            /* takes NULL */
/* Adds a node; returns its index, or -BANYAN_ENOMEM. name NULL: derived from kind and index. */
int bny_graph_node(struct bny_graph *g, enum bny_node_kind kind, int host, const char *name);
/* Adds capacity from -> to. Returns the link's index, -BANYAN_EINVAL (self-loop, cap <= 0),
 * -BANYAN_ENOMEM. */
int bny_graph_link(struct bny_graph *g, int from, int to, int64_t cap, int64_t lat_ns);
int bny_graph_both(struct bny_graph *g, int a, int b, int64_t cap,
                   int64_t lat_ns); /* both directions */
/* Numbers ranks that have no number in order of nodes; builds the indexes; checks: every rank
 * reaches every other, ranks are dense, capacities positive. Returns 0, or -BANYAN_EINVAL with
 * the first reason as the thread's error. */
int bny_graph_freeze(struct bny_graph *g);

/* A graph from text: "KIND:ARGS" of a generator, or the path of a file (the format is detected
 * from the content: own JSON, edge list, GraphML, NCCL topology XML, hwloc XML, ibnetdiscover).
 * Frozen. Returns 0, or an error with file, line and cause. */
int bny_graph_make(struct bny_graph **out, const char *text);

struct bny_generator {
    char name[16];     /* "torus" */
    const char *usage; /* "torus:AxB[xC...]  k-dimensional torus, one rank a router, links of
                          capacity 1" */
    int (*make)(struct bny_graph *g, const char *args);
};
/* NULL-terminated: topo/gen_*.c */
extern const struct bny_generator *const bny_generators[];

#endif
