/* SPDX-License-Identifier: BSD-3-Clause */
/* Common parts of builders that use the graph: one table each (build_*.c), routes, and the
 * final step for a forest. Only the registry and the builders include this. */
#ifndef BNY_TOPO_BUILD_GRAPH_H
#define BNY_TOPO_BUILD_GRAPH_H

#include "topo/bound.h"
#include "topo/build.h"
#include "topo/route.h"

extern const struct bny_graph_builder_ops bny_build_multitree, bny_build_multitree_reference,
    bny_build_packed, bny_build_joint, bny_build_torus_bucket, bny_build_swing,
    bny_build_swing_uni, bny_build_ordered_ring, bny_build_ordered_ring_uni,
    bny_build_hierarchical;

/* Sets nsteps and missing routes, certifies the forest and returns it in *out. Returns 0, or an
 * error: the forest is then freed. */
int bny_graph_forest_finish(struct bny_forest **out, struct bny_forest *f,
                            const struct bny_graph *g, enum bny_forest_use use, int root);

/* order[nranks]: ranks in a ring by location (build_ordered_ring.c). Returns 0 or
 * -BANYAN_ENOMEM. */
int bny_ring_order(const struct bny_graph *g, int *order);

#endif
