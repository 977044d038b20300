/* SPDX-License-Identifier: BSD-3-Clause */
/* Paths through a graph: shortest ones, dimension order on grids, equal splits. */
#ifndef BNY_TOPO_ROUTE_H
#define BNY_TOPO_ROUTE_H

#include "topo/forest.h"
#include "topo/graph.h"

/* Copies nlinks links. 0 or -BANYAN_ENOMEM (no sentence). */
int bny_route_set(struct bny_route *r, const int *links, int nlinks);
/* Reverses the path; every link must have a reverse. */
void bny_route_reverse(struct bny_route *r, const struct bny_graph *g);

/* Adds the routes that a forest lacks, dimension by dimension on grids, else by fewest links. 0
 * or -BANYAN_ENOMEM. */
int bny_forest_route(struct bny_forest *f, const struct bny_graph *g);

/* 1 if every link has a reverse of the same capacity. */
int bny_graph_is_symmetric(const struct bny_graph *g);

#define BNY_GRID_DIMS_MAX 8

/* A graph of ranks alone with the links of a grid in row-major order of ranks. */
struct bny_grid {
    int ndims;
    int dim[BNY_GRID_DIMS_MAX]; /* [0] is the slowest */
    int wraps;                  /* 1: torus, 0: mesh */
};
/* Detects whether g is a torus or a mesh (with more than one rank), from its links alone.
 * Returns 1 or 0. If several shapes fit, selects the one with the fewest dimensions. */
int bny_grid_of(struct bny_grid *out, const struct bny_graph *g);

/* The rank `by` (-1 or 1) steps along dimension d from rank r, or -1 past the edge of a mesh.
 */
int bny_grid_beside(const struct bny_grid *grid, int r, int d, int by);

enum bny_routing {
    BNY_ROUTE_PLAN,       /* the forest's routes; AUTO for missing ones */
    BNY_ROUTE_AUTO,       /* DIMENSIONS on grids, else SHORTEST */
    BNY_ROUTE_DIMENSIONS, /* last dimension first, the shorter way round; half-way ties are
                             split evenly */
    BNY_ROUTE_SHORTEST,   /* fewest links, the first in order of links */
    BNY_ROUTE_ECMP,  /* one of the paths with the fewest links, by a hash of (from, to, seed) at
                        each node */
    BNY_ROUTE_SPLIT, /* all paths with the fewest links, split evenly at each node, at most
                        BNY_ROUTE_PARTS_MAX */
};
#define BNY_ROUTE_PARTS_MAX 16

/* The paths from one rank to another: part i carries share[i] of the data over links[first[i]
 * .. first[i+1]). */
struct bny_ways {
    int nparts, first[BNY_ROUTE_PARTS_MAX + 1];
    double share[BNY_ROUTE_PARTS_MAX];
    int *links, cap;
};
struct bny_router;
/* A router caches distances; NULL: no memory. The graph must outlive it. */
struct bny_router *bny_router_create(const struct bny_graph *g, enum bny_routing kind,
                                     uint64_t seed);
void bny_router_destroy(struct bny_router *r); /* takes NULL */
/* Fills ways (grown as needed; free(ways->links) at the end). Returns 0, -BANYAN_ENOMEM, or
 * -BANYAN_EINVAL (DIMENSIONS on a graph that is not a grid). */
int bny_router_ways(struct bny_router *r, int from_rank, int to_rank, struct bny_ways *ways);

#endif
