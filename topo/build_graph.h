/* SPDX-License-Identifier: BSD-3-Clause */
/* Common parts of builders that use the graph: one table each (build_*.c), routes, and the
 * final step for a forest. Only the registry and the builders include this. */
#ifndef BNY_TOPO_BUILD_GRAPH_H
#define BNY_TOPO_BUILD_GRAPH_H

#include "topo/bound.h"
#include "topo/build.h"
#include "topo/route.h"

/* The list of builders that look at the graph: one row each, the table that its file defines.
 */
#define BNY_GRAPH_BUILDERS(ROW)                                                                \
    ROW(bny_build_multitree)                                                                   \
    ROW(bny_build_multitree_reference)                                                         \
    ROW(bny_build_packed)                                                                      \
    ROW(bny_build_joint)                                                                       \
    ROW(bny_build_torus_bucket)                                                                \
    ROW(bny_build_swing)                                                                       \
    ROW(bny_build_swing_uni)                                                                   \
    ROW(bny_build_ordered_ring)                                                                \
    ROW(bny_build_ordered_ring_uni)                                                            \
    ROW(bny_build_blueconnect)

#define BNY_GRAPH_BUILDER_DECLARED(table) extern const struct bny_graph_builder_ops table;
BNY_GRAPH_BUILDERS(BNY_GRAPH_BUILDER_DECLARED)
#undef BNY_GRAPH_BUILDER_DECLARED

/* Sets nsteps and missing routes, certifies the forest and returns it in *out. Returns 0, or an
 * error: the forest is then freed. */
int bny_graph_forest_finish(struct bny_forest **out, struct bny_forest *f,
                            const struct bny_graph *g, enum bny_forest_use use, int root);

/* order[nranks]: ranks in a ring by location (build_ordered_ring.c). Returns 0 or
 * -BANYAN_ENOMEM. */
int bny_ring_order(const struct bny_graph *g, int *order);

#endif
