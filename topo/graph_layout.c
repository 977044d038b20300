/* SPDX-License-Identifier: BSD-3-Clause */
/* Positions for drawing graphs whose source has none (graph_edit.h): ranks in a row with the
 * switches in layers above them, each over the middle of the nodes below it; a square of ranks
 * if there are no switches. */
#include <stdlib.h>

#include "base/err.h"
#include "topo/graph_edit.h"

/* layer[v]: links from the nearest rank, -1: unreachable; queue: [nnodes] by layer. Returns the
 * number of nodes in it. */
static int layers(const struct bny_graph *g, int *layer, int *queue)
{
    int head = 0, tail = 0;

    for (int v = 0; v < g->nnodes; v++)
        layer[v] = -1;
    for (int r = 0; r < g->nranks; r++) {
        queue[tail++] = g->rank_node[r];
        layer[g->rank_node[r]] = 0;
    }
    while (head < tail) {
        int v = queue[head++];
        for (int i = g->out_first[v]; i < g->out_first[v + 1]; i++) {
            int w = g->links[g->out[i]].to;
            if (layer[w] < 0) {
                layer[w] = layer[v] + 1;
                queue[tail++] = w;
            }
        }
    }
    return tail;
}

/* The mean position of the neighbours one layer below, in the order of the queue, so that they
 * have theirs. */
static int middle(const struct bny_graph *g, const int *layer, int v)
{
    int64_t sum = 0;
    int n = 0;

    for (int i = g->in_first[v]; i < g->in_first[v + 1]; i++) {
        int w = g->links[g->in[i]].from;
        if (layer[w] == layer[v] - 1) {
            sum += g->nodes[w].x;
            n++;
        }
    }
    return n ? (int)(sum / n) : 0;
}

int bny_graph_layout(struct bny_graph *g)
{
    int *layer = malloc(2 * (size_t)g->nnodes * sizeof *layer), side = 1, reached, last = 0;
    int *queue = layer ? layer + g->nnodes : NULL;

    if (!layer)
        return bny_fail(BANYAN_ENOMEM, "no memory to place %d nodes", g->nnodes);
    while (side * side < g->nranks)
        side++;
    if (g->nranks < g->nnodes)
        side = g->nranks;
    reached = layers(g, layer, queue);
    for (int r = 0; r < g->nranks; r++) {
        g->nodes[g->rank_node[r]].x = r % side;
        g->nodes[g->rank_node[r]].y = r / side;
    }
    for (int i = g->nranks; i < reached; i++) {
        struct bny_node *v = &g->nodes[queue[i]];
        int x = middle(g, layer, queue[i]), beside = layer[queue[i]] == layer[queue[i - 1]];
        /* Nodes with the same position are placed next to each other. */
        v->x = last = beside && x <= last ? last + 1 : x;
        v->y = -layer[queue[i]];
    }
    free(layer);
    return 0;
}
