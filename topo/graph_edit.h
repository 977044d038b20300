/* SPDX-License-Identifier: BSD-3-Clause */
/* Textual changes to a frozen graph: dead and slow links, dead nodes. */
#ifndef BNY_TOPO_GRAPH_EDIT_H
#define BNY_TOPO_GRAPH_EDIT_H

#include "topo/graph.h"

/* The node of that name, or of that rank if the text is a number and no node has that name; -1:
 * none. */
int bny_graph_find_node(const struct bny_graph *g, const char *text, size_t len);
/* Applies "!dead=A-B", "!dead=A" and "!slow=A-B/F" in order and replaces *g by the result,
 * frozen, with the text appended to its name. A, B: names of nodes or ranks. A link is dead or
 * slow in both directions; a slow one has 1/F of its capacity (if that is not a whole number
 * all capacities are multiplied by F, and the unit divided). The remaining ranks keep their
 * order if one dies. Returns 0, or an error; then *g is unchanged. */
int bny_graph_edit(struct bny_graph **g, const char *text);

/* The same network for some of its ranks: ranks[i] becomes rank i of n, the others' nodes only
 * forward. Frozen; NULL with the reason as the thread's error. */
struct bny_graph *bny_graph_subset(const struct bny_graph *g, const int *ranks, int n);

/* Assigns drawing positions to all nodes of a frozen graph. Returns 0 or -BANYAN_ENOMEM. */
int bny_graph_layout(struct bny_graph *g);

#endif
