/* SPDX-License-Identifier: BSD-3-Clause */
/* Direct networks: every rank is a router. Torus, mesh, hypercube, ring; links of capacity 1.
 */

#include "base/err.h"
#include "topo/gen.h"

/* Position of rank r of a grid: dimensions 0 (slowest) .. n-1 (fastest). Up to three dimensions
 * are x, y, z; more are laid out as adjacent blocks. */
static void direct_place(struct bny_node *v, const int *dim, int n, int r)
{
    int c[BNY_GEN_DIMS_MAX] = { 0 }, block = 0, blocks_y = 0;

    for (int d = n - 1; d >= 0; d--) {
        c[d] = r % dim[d];
        r /= dim[d];
    }
    v->x = c[n - 1];
    v->y = n > 1 ? c[n - 2] : 0;
    v->z = n > 2 ? c[n - 3] : 0;
    for (int d = 0; d < n - 3; d++) {
        if (d % 2)
            blocks_y = blocks_y * dim[d] + c[d];
        else
            block = block * dim[d] + c[d];
    }
    if (n > 3) {
        v->x += block * (dim[n - 1] + 1);
        v->y += blocks_y * (dim[n - 2] + 1);
    }
}

/* Ranks of the grid in row-major order, then the links: by rank, dimension from the fastest,
 * upwards. A wrap link is a separate cable, so a dimension of size 2 has two. */
static int grid(struct bny_graph *g, const int *dim, int n, int wrap)
{
    int ranks = 1, stride = 1;

    for (int d = 0; d < n; d++)
        ranks *= dim[d];
    for (int r = 0; r < ranks; r++) {
        int v = bny_gen_rank(g, r, 0, 0, 0);
        if (v < 0)
            return v;
        direct_place(&g->nodes[v], dim, n, r);
    }
    for (int r = 0; r < ranks; r++) {
        stride = 1;
        for (int d = n - 1; d >= 0; stride *= dim[d--]) {
            int c = r / stride % dim[d], e = 0;
            if (c + 1 < dim[d])
                e = bny_graph_both(g, r, r + stride, 1, BNY_GEN_LAT_ROUTER);
            else if (wrap && dim[d] > 1)
                e = bny_graph_both(g, r, r - c * stride, 1, BNY_GEN_LAT_ROUTER);
            if (e < 0)
                return e;
        }
    }
    return 0;
}

static int make_torus(struct bny_graph *g, const char *args)
{
    int dim[BNY_GEN_DIMS_MAX],
        n = bny_gen_dims(dim, BNY_GEN_DIMS_MAX, args, bny_gen_torus.usage);

    return n < 0 ? n : grid(g, dim, n, 1);
}

static int make_mesh(struct bny_graph *g, const char *args)
{
    int dim[BNY_GEN_DIMS_MAX],
        n = bny_gen_dims(dim, BNY_GEN_DIMS_MAX, args, bny_gen_mesh.usage);

    return n < 0 ? n : grid(g, dim, n, 0);
}

static int make_ring(struct bny_graph *g, const char *args)
{
    int n, e = bny_gen_dims(&n, 1, args, bny_gen_ring.usage);

    if (e < 0)
        return e;
    for (int r = 0; r < n; r++) {
        /* Drawn as a flat rectangle: there on one row, back on the other. */
        int v = bny_gen_rank(g, r, r < (n + 1) / 2 ? r : n - 1 - r, r >= (n + 1) / 2, 0);
        if (v < 0)
            return v;
    }
    for (int r = 0; r < n - (n == 2); r++) {
        e = n > 1 ? bny_graph_both(g, r, (r + 1) % n, 1, BNY_GEN_LAT_ROUTER) : 0;
        if (e < 0)
            return e;
    }
    return 0;
}

/* Drawn as a square of Gray-coded halves, so that most links are short. */
static int make_hypercube(struct bny_graph *g, const char *args)
{
    int n, e = bny_gen_dims(&n, 1, args, bny_gen_hypercube.usage), low;

    if (e < 0)
        return e;
    if (n > 16)
        return bny_fail(BANYAN_EINVAL,
                        "hypercube:%d has 2^%d ranks; 16 dimensions are the most", n, n);
    low = (n + 1) / 2;
    for (int r = 0; r < 1 << n; r++) {
        int gray_x = 0, gray_y = 0, v;
        for (int b = r & ((1 << low) - 1); b; b >>= 1)
            gray_x ^= b;
        for (int b = r >> low; b; b >>= 1)
            gray_y ^= b;
        v = bny_gen_rank(g, r, gray_x, gray_y, 0);
        if (v < 0)
            return v;
    }
    for (int r = 0; r < 1 << n; r++)
        for (int d = 0; d < n; d++)
            if (!(r >> d & 1) &&
                (e = bny_graph_both(g, r, r | 1 << d, 1, BNY_GEN_LAT_ROUTER)) < 0)
                return e;
    return 0;
}

const struct bny_generator bny_gen_torus = {
    "torus", "torus:AxB[xC...]  k-dimensional torus, one rank a router, links of capacity 1",
    make_torus
};
const struct bny_generator bny_gen_mesh = { "mesh",
                                            "mesh:AxB[xC...]  the torus without its wrap links",
                                            make_mesh };
const struct bny_generator bny_gen_ring = { "ring",
                                            "ring:N  N ranks in a circle, links of capacity 1",
                                            make_ring };
const struct bny_generator bny_gen_hypercube = { "hypercube",
                                                 "hypercube:D  2^D ranks, a link for each bit",
                                                 make_hypercube };
