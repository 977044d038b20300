/* SPDX-License-Identifier: BSD-3-Clause */
/* A family of forests for one use, from low and loaded to high and optimal; the message size
 * selects one. */
#ifndef BNY_TOPO_PARETO_H
#define BNY_TOPO_PARETO_H

#include "topo/bound.h"

#define BNY_PARETO_MAX 16

struct bny_pareto {
    int n;
    struct bny_forest *forest[BNY_PARETO_MAX]; /* heights fall, times grow */
};

/* Builds the family: packed (ALLREDUCE: joint first), then packed under falling caps on the
 * height. Members that are worse than another in height and time are omitted. seconds: soft
 * limit, 0: none. Returns 0 or an error; bny_pareto_free. */
int bny_pareto_build(struct bny_pareto *out, const struct bny_graph *g, enum bny_forest_use use,
                     int root, int seconds);
void bny_pareto_free(struct bny_pareto *p);

/* Largest number of edges from a leaf to its root (down: from the root to a leaf). */
int bny_forest_height(const struct bny_forest *f, int down);
/* Seconds for `bytes` in chunks of chunk_bytes, alpha_s per hop: every phase pays height hops
 * of alpha, (height - 1) chunks over its slowest link, and the bytes over the fullest link:
 *   sum over phases of h alpha + (h - 1) min(chunk, largest share) / slowest + bytes * time
 * phases: SCATTERED and ROOTED one, ALLREDUCE two. The forest has routes and a claim for g. */
double bny_forest_seconds(const struct bny_forest *f, const struct bny_graph *g,
                          enum bny_forest_use use, double bytes, double chunk_bytes,
                          double alpha_s);
/* The member with the least bny_forest_seconds. */
const struct bny_forest *bny_pareto_choose(const struct bny_pareto *p,
                                           const struct bny_graph *g, enum bny_forest_use use,
                                           double bytes, double chunk_bytes, double alpha_s);

#endif
