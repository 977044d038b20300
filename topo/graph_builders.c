/* SPDX-License-Identifier: BSD-3-Clause */
/* Builders that look at the graph, by name and number: build_graph.h lists them. */
#include <string.h>

#include "topo/build_graph.h"

#define ENTRY(table) &table,
const struct bny_graph_builder_ops *const bny_graph_builders[] = { BNY_GRAPH_BUILDERS(ENTRY)
                                                                       NULL };
#undef ENTRY

const struct bny_graph_builder_ops *bny_graph_builder_find(const char *name)
{
    for (int i = 0; bny_graph_builders[i]; i++)
        if (!strcmp(bny_graph_builders[i]->name, name))
            return bny_graph_builders[i];
    return NULL;
}
