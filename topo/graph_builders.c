/* SPDX-License-Identifier: BSD-3-Clause */
/* The registry of builders that use the graph: one line each. */
#include <string.h>

#include "topo/build_graph.h"

const struct bny_graph_builder_ops *const bny_graph_builders[] = {
    &bny_build_multitree,
    &bny_build_multitree_reference,
    &bny_build_packed,
    &bny_build_joint,
    &bny_build_torus_bucket,
    &bny_build_swing,
    &bny_build_swing_uni,
    &bny_build_ordered_ring,
    &bny_build_ordered_ring_uni,
    &bny_build_hierarchical,
    NULL,
};

const struct bny_graph_builder_ops *bny_graph_builder_find(const char *name)
{
    for (int i = 0; bny_graph_builders[i]; i++)
        if (!strcmp(bny_graph_builders[i]->name, name))
            return bny_graph_builders[i];
    return NULL;
}
