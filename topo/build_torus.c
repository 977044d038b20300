/* SPDX-License-Identifier: BSD-3-Clause */
/* Forests for tori, each in mirrored copies so that all links of a rank work at once. The
 * copies carry equal shares; copy c begins with dimension c/2 and runs upwards (even c) or
 * downwards (odd c).
 *
 * torus_bucket (Jain and Sabharwal, "Optimal bucket algorithms for large MPI collectives on
 * torus interconnects", ICS 2010): in every copy rings run through one dimension after the
 * other, so a rank sends to neighbours alone. With all dimensions of one size every link
 * carries the same in every step: the load is the cut bound 2 (n-1) / (n 2k), k dimensions. On
 * a mesh the wrap-around goes back over the line.
 *   allreduce  2 sum(p_i - 1) alpha + 2 (n-1) S / (2k n B)
 *
 * swing, swing_uni (De Sensi, Bonato, Saam and Hoefler, "Swing: short-cutting rings for higher
 * bandwidth allreduce", NSDI 2024, bandwidth version): the dimensions alternate, each with
 * Swing's distances 1, -1, 3, -5 ...; sizes are powers of two. swing_uni is one copy.
 *   allreduce  2 log2(n) alpha + about 1.1 to 1.2 times the bucket's time on 2-d tori */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/build_graph.h"
#include "topo/butterfly.h"

struct copy {
    const struct bny_grid *grid;
    int first, down; /* the dimension to begin with; 1: mirrored */
    int dim_of[64],
        turn_of[64]; /* Swing: [step] dimension, and the number of its earlier turns */
};

static int stride_of(const struct bny_grid *g, int d)
{
    int stride = 1;

    for (int i = g->ndims - 1; i > d; i--)
        stride *= g->dim[i];
    return stride;
}

/* Towards the root: the ring of the first dimension, in the copy's order, in which v and the
 * root differ. */
static void bucket_tree(struct bny_tree *tree, const struct copy *c, int n, int root)
{
    const struct bny_grid *g = c->grid;

    tree->root = root;
    for (int v = 0; v < n; v++) {
        int before = 0;

        for (int i = 0; i < g->ndims; i++) {
            int d = (c->first + i) % g->ndims, stride = stride_of(g, d), p = g->dim[d];
            int at = v / stride % p, to = root / stride % p, by = c->down ? p - 1 : 1;

            if (at != to) {
                int left = c->down ? (at - to + p) % p : (to - at + p) % p; /* hops to go */

                tree->parent[v] = v + ((at + by) % p - at) * stride;
                tree->step[v] = (uint32_t)(before + p - 1 - left);
                break;
            }
            before += p - 1;
        }
    }
}

static int swing_peer(const void *ctx, int v, int step, int k)
{
    const struct copy *c = ctx;
    int d = c->dim_of[step], stride = stride_of(c->grid, d), p = c->grid->dim[d];
    int at = v / stride % p, to;

    /* Mirrored about rank 0, so that even and odd ranks swap directions. */
    if (c->down)
        to = (p - bny_negabinary_peer((p - at) % p, p, c->turn_of[step])) % p;
    else
        to = bny_negabinary_peer(at, p, c->turn_of[step]);
    return v + (to - at) * stride;
}

/* Dimensions with fewer steps drop out when they are done. Returns 0 or -1: not a power of
 * two. */
static int swing_steps(struct copy *c)
{
    int left[BNY_GRID_DIMS_MAX], turns[BNY_GRID_DIMS_MAX] = { 0 }, n = 0, more = 1;

    for (int d = 0; d < c->grid->ndims; d++) {
        if (c->grid->dim[d] & (c->grid->dim[d] - 1))
            return -1;
        left[d] = bny_log2_ceil(c->grid->dim[d]);
    }
    while (more) {
        more = 0;
        for (int i = 0; i < c->grid->ndims; i++) {
            int d = (c->first + i) % c->grid->ndims;

            if (left[d]-- <= 0)
                continue;
            c->dim_of[n] = d;
            c->turn_of[n++] = turns[d]++;
            more = 1;
        }
    }
    return n;
}

static int swing_copy(struct bny_forest *f, struct copy *c, int copy, int n, int ordered)
{
    struct bny_butterfly pattern = { n, swing_steps(c), 1, swing_peer, c };
    int *roots = malloc((size_t)n * sizeof *roots);
    int e = roots && !bny_butterfly_order(&pattern, roots) ? 0 : -BANYAN_ENOMEM;

    for (int t = 0; t < n && !e; t++)
        e = bny_butterfly_tree(&pattern, &f->trees[copy * n + t], ordered ? roots[t] : t, 0);
    free(roots);
    return e;
}

/* Checks the graph for a builder of this file; copies: how many the use allows. */
static int torus_prepare(struct bny_grid *grid, int *copies, const char *name,
                         const struct bny_graph *g, enum bny_forest_use use)
{
    if (use == BNY_FOREST_ROOTED)
        return bny_fail(BANYAN_ENOTSUP, "%s has no rooted forest; use multitree", name);
    if (!bny_grid_of(grid, g))
        return bny_fail(BANYAN_ENOTSUP,
                        "%s needs a torus or a mesh, which graph %s is not; use "
                        "multitree",
                        name, g->name);

    *copies = use == BNY_FOREST_ALLREDUCE ? 2 * grid->ndims : 1;
    return 0;
}

static int torus_make(struct bny_forest **out, const struct bny_graph *g,
                      enum bny_forest_use use, const char *name, const struct bny_grid *grid,
                      int copies, int swings)
{
    int n = g->nranks, e = 0;
    struct bny_forest *f = bny_forest_alloc(name, n, copies * n);

    if (!f)
        return bny_forest_no_memory(name, n);
    for (int i = 0; i < copies && !e; i++) {
        /* the first dimension is the fastest one */
        struct copy c = { .grid = grid,
                          .first = (grid->ndims - 1 + i / 2) % grid->ndims,
                          .down = i % 2 };

        for (int t = 0; t < n; t++) {
            f->trees[i * n + t].pipeline = (uint32_t)i;
            if (!swings)
                bucket_tree(&f->trees[i * n + t], &c, n, t);
        }
        if (swings)
            e = swing_copy(f, &c, i, n, use == BNY_FOREST_ALLREDUCE);
    }
    if (e) {
        bny_forest_free(f);
        return bny_forest_no_memory(name, n);
    }
    return bny_graph_forest_finish(out, f, g, use, 0);
}

static int bucket_build(struct bny_forest **out, const struct bny_graph *g,
                        enum bny_forest_use use, int root, const struct bny_build_opts *opts)
{
    struct bny_grid grid;
    int copies = 1, e = torus_prepare(&grid, &copies, "torus_bucket", g, use);

    *out = NULL;
    return e ? e : torus_make(out, g, use, "torus_bucket", &grid, copies, 0);
}

static int swing_as(struct bny_forest **out, const struct bny_graph *g, enum bny_forest_use use,
                    const char *name, int one)
{
    struct bny_grid grid;
    int copies = 1, e = torus_prepare(&grid, &copies, name, g, use);
    struct copy c = { .grid = &grid };

    *out = NULL;
    if (!e && swing_steps(&c) < 0)
        e = bny_fail(BANYAN_ENOTSUP,
                     "%s needs dimensions that are powers of two; use torus_bucket", name);
    return e ? e : torus_make(out, g, use, name, &grid, one ? 1 : copies, 1);
}

static int swing_build(struct bny_forest **out, const struct bny_graph *g,
                       enum bny_forest_use use, int root, const struct bny_build_opts *opts)
{
    return swing_as(out, g, use, "swing", 0);
}

static int swing_uni_build(struct bny_forest **out, const struct bny_graph *g,
                           enum bny_forest_use use, int root, const struct bny_build_opts *opts)
{
    return swing_as(out, g, use, "swing_uni", 1);
}

const struct bny_graph_builder_ops bny_build_torus_bucket = {
    .name = "torus_bucket",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED,
    .build = bucket_build,
};

const struct bny_graph_builder_ops bny_build_swing = {
    .name = "swing",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED,
    .build = swing_build,
};

const struct bny_graph_builder_ops bny_build_swing_uni = {
    .name = "swing_uni",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED,
    .build = swing_uni_build,
};
