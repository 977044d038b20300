/* SPDX-License-Identifier: BSD-3-Clause */
/* Common parts of the builders of packed forests: number of trees, and their capacity. */
#ifndef BNY_TOPO_PACKED_H
#define BNY_TOPO_PACKED_H

#include "topo/bound.h"
#include "topo/pack.h"

/* Capacities for packing trees. */
struct bny_plan_size {
    int64_t *need; /* [nranks] */
    int64_t *cap;  /* [nlinks] */
    int64_t k;     /* units of each root */
    double gap;    /* upper bound of largest load / optimum - 1 */
};

/* k units of each root (of `root` alone if >= 0) in the least capacities floor(U cap): bound is
 * the known optimum in shards (a root: in S). Returns 0 or an error; bny_plan_size_free. */
int bny_plan_size_k(struct bny_plan_size *s, const struct bny_graph *g, struct bny_ratio bound,
                    int root, int reversed, int64_t k);
/* The fewest units up to `most` whose gap is at most 1/1000, else the number that makes the
 * optimum exact. */
int bny_plan_size_free_k(struct bny_plan_size *s, const struct bny_graph *g,
                         struct bny_ratio bound, int root, int reversed, int most);
void bny_plan_size_free(struct bny_plan_size *s);

#endif
