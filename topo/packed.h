/* SPDX-License-Identifier: BSD-3-Clause */
/* What the builders of packed forests share: how many trees, and in how much capacity. */
#ifndef BNY_TOPO_PACKED_H
#define BNY_TOPO_PACKED_H

#include "topo/bound.h"
#include "topo/pack.h"

/* Capacities in which trees are to be packed. */
struct bny_plan_size {
    int64_t *need; /* [nranks] */
    int64_t *cap;  /* [nlinks] */
    int64_t k;     /* units of each root */
    double gap;    /* largest load / optimum - 1, at most */
};

/* k units of each root (of `root` alone when >= 0) in the least capacities floor(U cap): bound
 * is the known optimum in shards (a root: in S). 0 or an error; bny_plan_size_free. */
int bny_plan_size_k(struct bny_plan_size *s, const struct bny_graph *g, struct bny_ratio bound,
                    int root, int reversed, int64_t k);
/* The fewest units up to `most` whose gap is at most 1/1000, else as many as make the optimum
 * exact. */
int bny_plan_size_free_k(struct bny_plan_size *s, const struct bny_graph *g,
                         struct bny_ratio bound, int root, int reversed, int most);
void bny_plan_size_free(struct bny_plan_size *s);

#endif
