/* SPDX-License-Identifier: BSD-3-Clause */
/* Maximum flow in a directed network of integer capacities (Dinic), and the one question of
 * bounds and packings: does every cut carry the demand of its roots? Not thread safe per
 * object; any number of objects. */
#ifndef BNY_TOPO_MAXFLOW_H
#define BNY_TOPO_MAXFLOW_H

#include <stdint.h>

#define BNY_FLOW_INF (INT64_MAX / 8)

struct bny_arc {
    int to, next; /* next arc of the same tail; -1 ends */
    int64_t cap;  /* residual */
};

struct bny_flow {
    int n, m, arcs_cap; /* nodes; arcs, twice the links: arc a runs against a ^ 1 */
    struct bny_arc *arcs;
    int64_t *full;             /* [m] capacities before any flow */
    int *first;                /* [n] */
    int *level, *iter, *queue; /* [n] scratch */
};

/* Initial room for `links` arcs; it grows as needed. Returns 0 or -BANYAN_ENOMEM. */
int bny_flow_init(struct bny_flow *f, int nodes, int links);
void bny_flow_free(struct bny_flow *f);
/* Index of the new arc (even), or -BANYAN_ENOMEM. */
int bny_flow_arc(struct bny_flow *f, int from, int to, int64_t cap);
/* Removes the last added arc. */
void bny_flow_pop(struct bny_flow *f);
/* Changes a capacity; takes effect with the next bny_flow_reset. */
void bny_flow_set(struct bny_flow *f, int arc, int64_t cap);
void bny_flow_reset(struct bny_flow *f);
/* Sends up to `limit` more from s to t through the residual capacities; returns the amount. */
int64_t bny_flow_run(struct bny_flow *f, int s, int t, int64_t limit);
/* mark[v] = 1 for the nodes that s still reaches, else 0: after a run below its limit s's side
 * of the smallest cut. */
void bny_flow_side(struct bny_flow *f, int s, uint8_t *mark);

#endif
