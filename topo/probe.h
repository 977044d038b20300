/* SPDX-License-Identifier: BSD-3-Clause */
/* A cluster graph by measurement, if none is given (after PLink, MLSys 2020; own recipe): every
 * pair once in a round-robin tournament; clusters by gaps between the latencies; the joint
 * sending rate of a cluster's ranks, by doubling their number until the sum no longer grows.
 * Pairs alone cannot reveal a shared bottleneck. All decisions are functions of the
 * measurements, so ranks with the same times decide alike. */
#ifndef BNY_TOPO_PROBE_H
#define BNY_TOPO_PROBE_H

#include <stdio.h>

#include "topo/graph.h"

#define BNY_PROBE_RANKS_MAX  2048
#define BNY_PROBE_LEVELS_MAX 4

struct bny_probe_fabric {
    int n;
    const int *host; /* [n] machine of each rank, or NULL: each on its own */
    /* Runs all pairs a[i], b[i] (ranks, each in one pair at most) at the same time: a message
     * of `bytes` from a to b and one from b to a; pingpong: the second after the first.
     * seconds[i]: for one message, the same numbers at every rank. 0 or an error. */
    int (*run)(void *ctx, const int *a, const int *b, int npairs, size_t bytes, int pingpong,
               double *seconds);
    void *ctx;
    size_t small, middle,
        large; /* message sizes: latency; the two whose difference gives the rate */
};

struct bny_probe_stats {
    double min, median, p95;
};

/* One level of clusters, the finest first. The last one contains all ranks. */
struct bny_probe_level {
    int nclusters;
    int *cluster;       /* [n] cluster of each rank */
    double *border_Bps; /* [nclusters] joint rate out of and into it; 0 for the last level */
    struct bny_probe_stats alpha; /* seconds, of pairs that first meet at this level */
};

struct bny_probe {
    int n, nlevels;
    struct bny_probe_level level[BNY_PROBE_LEVELS_MAX];
    double *alpha, *Bps; /* [n x n] of pairs */
    double *port_Bps;    /* [n] best rate of each rank */
    const int *host;     /* the fabric's */
};

/* Returns 0 or an error; in both cases bny_probe_free frees *out. */
int bny_probe_run(struct bny_probe **out, const struct bny_probe_fabric *f);
void bny_probe_free(struct bny_probe *p); /* takes NULL */
/* A tree of switches with the measured capacities, rounded so that similar ones are equal.
 * Frozen. */
int bny_probe_graph(struct bny_graph **out, const struct bny_probe *p);
/* The statistics, as one more member of the graph's JSON (bny_graph_save): , "probe": {...} */
int bny_probe_json(const struct bny_probe *p, FILE *f);

/* Round r of a tournament of n ranks: pairs into a[], b[] (n / 2 at most). Returns their
 * number. Every pair meets once in rounds 0 .. n - 2 (n - 1 for odd n). */
int bny_probe_round(int n, int r, int *a, int *b);
/* Levels of clusters from a symmetric [n x n] matrix of latencies: fills in nlevels and
 * level[].cluster, nclusters. 0 or -BANYAN_ENOMEM. */
int bny_probe_cluster(struct bny_probe *p);

#endif
