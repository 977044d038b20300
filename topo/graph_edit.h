/* SPDX-License-Identifier: BSD-3-Clause */
/* Changes to a frozen graph, as text: dead and slow links, dead nodes. */
#ifndef BNY_TOPO_GRAPH_EDIT_H
#define BNY_TOPO_GRAPH_EDIT_H

#include "topo/graph.h"

/* The node of that name, or of that rank when the text is a number and no node is named so; -1:
 * none. */
int bny_graph_find_node(const struct bny_graph *g, const char *text, size_t len);
/* Applies "!dead=A-B", "!dead=A" and "!slow=A-B/F" in order and replaces *g by the result,
 * frozen, its name with the text appended. A, B: names of nodes or ranks. A link is dead or
 * slow in both directions; a slow one has 1/F of its capacity (all capacities are multiplied by
 * F, and the unit divided, where that is no whole number). The ranks that are left keep their
 * order when one dies. 0, or an error; then *g is as it was. */
int bny_graph_edit(struct bny_graph **g, const char *text);

/* The same network for some of its ranks: ranks[i] becomes rank i of n, the others' nodes only
 * pass on what crosses them. Frozen; NULL with the reason as the thread's error. */
struct bny_graph *bny_graph_subset(const struct bny_graph *g, const int *ranks, int n);

/* Places all nodes of a frozen graph for drawing. 0 or -BANYAN_ENOMEM. */
int bny_graph_layout(struct bny_graph *g);

#endif
