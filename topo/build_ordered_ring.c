/* SPDX-License-Identifier: BSD-3-Clause */
/* ordered_ring, ordered_ring_uni: the rings of build_ring.c through ranks ordered by location
 * instead of number. On a torus or mesh with an even dimension a Hamiltonian cycle of
 * neighbours: along a comb whose spine is the first column, extended dimension by dimension.
 * Elsewhere the order in which a depth-first walk over switches meets the ranks, those of one
 * host together: so a ring crosses the uplinks of each leaf switch once in each direction.
 *
 *   allreduce  2 (n-1) alpha + 2 (n-1)/n S / B (ordered_ring: half of it in each direction) */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/build_graph.h"

/* Snake order of a grid: rank at position i of a Hamiltonian path that reverses in each line.
 */
static int snake(const struct bny_grid *g, int i)
{
    int rank = 0, stride = 1, at[BNY_GRID_DIMS_MAX];

    for (int d = g->ndims - 1; d >= 0; i /= g->dim[d--])
        at[d] = i % g->dim[d];
    /* A line runs backwards if the number of lines before it is odd. */
    for (int d = 1, line = at[0]; d < g->ndims; d++) {
        int c = at[d];

        at[d] = line % 2 ? g->dim[d] - 1 - c : c;
        line = line * g->dim[d] + c;
    }
    for (int d = g->ndims - 1; d >= 0; stride *= g->dim[d--])
        rank += at[d] * stride;
    return rank;
}

/* Two-dimensional meshes close the cycle with a comb: out along row 0, back and forth through
 * the other rows' columns. Needs an even number of columns (or of rows, transposed). */
static int comb(int rows, int cols, int i)
{
    int teeth = i - cols, r, c;

    if (i < cols)
        return i; /* row 0 */
    c = cols - 1 - teeth / (rows - 1);
    r = teeth % (rows - 1);
    r = (cols - 1 - c) % 2 ? rows - 1 - r : 1 + r;
    return r * cols + c;
}

static void grid_order(const struct bny_grid *g, int n, int *order)
{
    int rows = g->dim[0], cols = g->ndims == 2 ? g->dim[1] : 0;

    for (int i = 0; i < n; i++) {
        if (g->ndims == 2 && cols % 2 == 0 && rows > 1)
            order[i] = comb(rows, cols, i);
        else if (g->ndims == 2 && rows % 2 == 0 && cols > 1)
            order[i] = comb(cols, rows, i) % rows * cols + comb(cols, rows, i) / rows;
        else
            order[i] = snake(g, i);
    }
}

struct walk {
    const struct bny_graph *g;
    uint8_t *seen; /* [nnodes] */
    int *order, n;
};

static void ordered_ring_meet(struct walk *w, int node)
{
    int r = w->g->nodes[node].rank, host = w->g->nodes[node].host;

    if (w->seen[node])
        return;
    w->seen[node] = 1;
    w->order[w->n++] = r;
    for (int v = 0; v < w->g->nnodes && host >= 0; v++)
        if (w->g->nodes[v].kind == BNY_NODE_COMPUTE && w->g->nodes[v].host == host &&
            !w->seen[v]) {
            w->seen[v] = 1;
            w->order[w->n++] = w->g->nodes[v].rank;
        }
}

/* Explicit stack: graphs may be deep. A node's ranks come before its switches. */
static int walk_order(const struct bny_graph *g, int *order)
{
    struct walk w = { g, calloc((size_t)g->nnodes, 1), order, 0 };
    uint8_t *done = calloc((size_t)g->nnodes, 1);
    int *stack = malloc(((size_t)g->nlinks + 1) * sizeof *stack), top = 0;

    if (!w.seen || !done || !stack) {
        free(w.seen);
        free(done);
        free(stack);
        return -BANYAN_ENOMEM;
    }
    stack[top++] = g->rank_node[0];
    while (top) {
        int u = stack[--top];

        if (done[u])
            continue;
        done[u] = 1;
        if (g->nodes[u].kind == BNY_NODE_COMPUTE)
            ordered_ring_meet(&w, u);
        for (int i = g->out_first[u]; i < g->out_first[u + 1]; i++) {
            int v = g->links[g->out[i]].to;

            if (g->nodes[u].kind != BNY_NODE_COMPUTE && g->nodes[v].kind == BNY_NODE_COMPUTE)
                ordered_ring_meet(&w, v);
        }
        for (int i = g->out_first[u + 1] - 1; i >= g->out_first[u]; i--)
            if (!done[g->links[g->out[i]].to])
                stack[top++] = g->links[g->out[i]].to;
    }
    free(w.seen);
    free(done);
    free(stack);
    return 0;
}

int bny_ring_order(const struct bny_graph *g, int *order)
{
    struct bny_grid grid;

    if (!bny_grid_of(&grid, g))
        return walk_order(g, order);
    grid_order(&grid, g->nranks, order);
    return 0;
}

/* The core ring with ranks filled in. For scattered use tree r must be rank r's. */
static int rename_ranks(struct bny_forest **out, const struct bny_forest *ring,
                        const int *order, const char *name, int scattered)
{
    int n = ring->nranks;
    struct bny_forest *f = bny_forest_alloc(name, n, ring->ntrees);

    if (!f)
        return bny_forest_no_memory(name, n);
    for (int t = 0; t < ring->ntrees; t++) {
        const struct bny_tree *from = &ring->trees[t];
        struct bny_tree *to = &f->trees[scattered ? order[from->root] : t];

        to->root = order[from->root];
        to->pipeline = from->pipeline;
        for (int v = 0; v < n; v++) {
            to->parent[order[v]] = from->parent[v] < 0 ? -1 : order[from->parent[v]];
            to->step[order[v]] = from->step[v];
        }
    }
    *out = f;
    return 0;
}

static int build_as(struct bny_forest **out, const struct bny_graph *g, enum bny_forest_use use,
                    const char *name, const struct bny_builder_ops *core)
{
    int *order = malloc((size_t)g->nranks * sizeof *order), e;
    struct bny_forest *ring = NULL, *f = NULL;

    *out = NULL;
    e = order && !bny_ring_order(g, order) ? core->build(&ring, g->nranks, use, 0)
                                           : bny_forest_no_memory(name, g->nranks);
    if (!e)
        e = rename_ranks(&f, ring, order, name, use == BNY_FOREST_SCATTERED);
    bny_forest_free(ring);
    free(order);
    return e ? e : bny_graph_forest_finish(out, f, g, use, 0);
}

static int ordered_ring_build(struct bny_forest **out, const struct bny_graph *g,
                              enum bny_forest_use use, int root,
                              const struct bny_build_opts *opts)
{
    return build_as(out, g, use, "ordered_ring", &bny_build_ring);
}

static int uni_build(struct bny_forest **out, const struct bny_graph *g,
                     enum bny_forest_use use, int root, const struct bny_build_opts *opts)
{
    return build_as(out, g, use, "ordered_ring_uni", &bny_build_ring_uni);
}

const struct bny_graph_builder_ops bny_build_ordered_ring = {
    .name = "ordered_ring",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED,
    .build = ordered_ring_build,
};

const struct bny_graph_builder_ops bny_build_ordered_ring_uni = {
    .name = "ordered_ring_uni",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED,
    .build = uni_build,
};
