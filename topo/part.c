/* SPDX-License-Identifier: BSD-3-Clause */
/* A forest for part of the ranks: made for the ranks in a participation set alone; the others
 * are then added to its trees in the broadcast.
 *
 * The number of ranks with the result doubles with each step: of h holders, the i-th serves the
 * (h + i)-th rank. Trees begin with different holders, so that with m trees a set of m ranks
 * shares the work of serving the others evenly. */
#include <stdlib.h>
#include <string.h>

#include "topo/build.h"

/* Ranks in and out of the set, in order. */
struct sides {
    int *in, *out; /* [n] */
    int nin, nout;
};

/* The reduction, and the broadcast inside the set. Returns the last time step of the latter. */
static uint32_t map_tree(struct bny_tree *to, const struct bny_tree *from,
                         const struct bny_forest *f, const struct sides *s)
{
    uint32_t last = 0;

    to->root = s->in[from->root];
    to->weight_num = from->weight_num;
    to->weight_den = from->weight_den;
    to->pipeline = from->pipeline;
    for (int i = 0; i < f->nranks; i++) {
        int v = s->in[i], down = from->down_parent ? from->down_parent[i] : from->parent[i];

        if (i == from->root)
            continue;
        to->parent[v] = s->in[from->parent[i]];
        to->step[v] = from->step[i];
        if (!to->down_parent)
            continue;
        to->down_parent[v] = s->in[down];
        to->down_step[v] =
            from->down_parent ? from->down_step[i] : f->nsteps - 1 - from->step[i];
        if (to->down_step[v] >= last)
            last = to->down_step[v] + 1;
    }
    return last;
}

/* Tree t serves the ranks outside the set from time step `at` on. */
static void hang(struct bny_tree *tree, int t, uint32_t at, const struct sides *s)
{
    int holders = s->nin;

    for (; holders < s->nin + s->nout; holders *= 2, at++)
        for (int i = 0; i < holders && holders + i < s->nin + s->nout; i++) {
            int from =
                    i < s->nin ? s->in[(i + t) % s->nin] : s->out[(i - s->nin + t) % s->nout],
                to = s->out[(holders + i - s->nin + t) % s->nout];

            tree->down_parent[to] = from;
            tree->down_step[to] = at;
        }
}

static int add_down(struct bny_tree *tree, int n)
{
    tree->down_parent = malloc((size_t)n * sizeof *tree->down_parent);
    tree->down_step = calloc((size_t)n, sizeof *tree->down_step);
    if (!tree->down_parent || !tree->down_step)
        return -1;
    for (int v = 0; v < n; v++)
        tree->down_parent[v] = -1;
    return 0;
}

/* Makes a tree of `to`; 0 or -1: no memory. */
static int make_tree(struct bny_forest *to, int t, const struct bny_forest *f,
                     const struct sides *s)
{
    struct bny_tree *tree = &to->trees[t];
    int root = s->in[f->trees[t].root];
    uint32_t at;

    if (to->sink < 0 && add_down(tree, to->nranks))
        return -1;
    at = map_tree(tree, &f->trees[t], f, s);
    if (to->sink < 0)
        hang(tree, t, at, s);
    if (to->sink < 0 || to->sink == root)
        return 0;
    if (add_down(tree, to->nranks))
        return -1;
    tree->down_parent[to->sink] = root;
    return 0;
}

int bny_forest_part(struct bny_forest **out, const struct bny_forest *f, int n,
                    const uint8_t *present, int sink)
{
    struct bny_forest *to = bny_forest_alloc(f->name, n, f->ntrees);
    struct sides s = { .in = malloc(2 * (size_t)n * sizeof *s.in) };
    int failed = !to || !s.in;

    *out = NULL;
    s.out = s.in + n;
    if (!failed) {
        to->sink = sink;
        to->present = malloc((size_t)n);
        failed = !to->present;
    }
    for (int v = 0; v < n && !failed; v++) {
        to->present[v] = present[v] != 0;
        *(present[v] ? &s.in[s.nin++] : &s.out[s.nout++]) = v;
    }
    for (int t = 0; t < f->ntrees && !failed; t++)
        failed = make_tree(to, t, f, &s) != 0;
    free(s.in);
    if (failed) {
        bny_forest_free(to);
        return bny_forest_no_memory(f->name, n);
    }
    return bny_forest_finish(out, to);
}
