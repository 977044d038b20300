/* SPDX-License-Identifier: BSD-3-Clause */
/* Paths through a graph (route.h). */
#include "topo/route.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

int bny_route_set(struct bny_route *r, const int *links, int nlinks)
{
    free(r->links);
    r->links = NULL;
    r->nlinks = 0;
    if (nlinks == 0)
        return 0;
    r->links = malloc((size_t)nlinks * sizeof *r->links);
    if (!r->links)
        return -BANYAN_ENOMEM;
    memcpy(r->links, links, (size_t)nlinks * sizeof *r->links);
    r->nlinks = nlinks;
    return 0;
}

void bny_route_reverse(struct bny_route *r, const struct bny_graph *g)
{
    for (int i = 0, j = r->nlinks - 1; i <= j; i++, j--) {
        int first = r->links[i];

        r->links[i] = g->reverse[r->links[j]];
        r->links[j] = g->reverse[first];
    }
}

int bny_graph_is_symmetric(const struct bny_graph *g)
{
    for (int l = 0; l < g->nlinks; l++)
        if (g->reverse[l] < 0 || g->links[g->reverse[l]].cap != g->links[l].cap)
            return 0;
    return 1;
}

/* ---- grids --------------------------------------------------------------------------------
 */

static int link_between(const struct bny_graph *g, int from, int to)
{
    for (int i = g->out_first[from]; i < g->out_first[from + 1]; i++)
        if (g->links[g->out[i]].to == to)
            return g->out[i];
    return -1;
}

int bny_grid_beside(const struct bny_grid *grid, int r, int d, int by)
{
    int stride = 1, c;

    for (int i = grid->ndims - 1; i > d; i--)
        stride *= grid->dim[i];
    c = r / stride % grid->dim[d];
    if (!grid->wraps && (c + by < 0 || c + by >= grid->dim[d]))
        return -1;
    return r + ((c + by + grid->dim[d]) % grid->dim[d] - c) * stride;
}

static int fits(const struct bny_graph *g, const struct bny_grid *grid)
{
    for (int r = 0; r < g->nranks; r++) {
        int v = g->rank_node[r], degree = 0;

        for (int d = 0; d < grid->ndims; d++) {
            int up = bny_grid_beside(grid, r, d, 1), down = bny_grid_beside(grid, r, d, -1);

            if (up >= 0 && link_between(g, v, g->rank_node[up]) < 0)
                return 0;
            degree += (up >= 0) + (down >= 0 && down != up);
        }
        if (g->out_first[v + 1] - g->out_first[v] != degree)
            return 0;
    }
    return 1;
}

/* Tries all factorisations of `left` into `todo` more factors. */
static int fits_with(const struct bny_graph *g, struct bny_grid *grid, int left, int todo)
{
    if (todo == 1) {
        if (left < 2)
            return 0;
        grid->dim[grid->ndims++] = left;
        for (grid->wraps = 1; grid->wraps >= 0; grid->wraps--)
            if (fits(g, grid))
                return 1;
        grid->ndims--;
        return 0;
    }
    for (int f = 2; f <= left / 2; f++) {
        if (left % f)
            continue;
        grid->dim[grid->ndims++] = f;
        if (fits_with(g, grid, left / f, todo - 1))
            return 1;
        grid->ndims--;
    }
    return 0;
}

int bny_grid_of(struct bny_grid *out, const struct bny_graph *g)
{
    memset(out, 0, sizeof *out);
    if (g->nranks < 2 || g->nnodes != g->nranks)
        return 0;
    for (int dims = 1; dims <= BNY_GRID_DIMS_MAX; dims++)
        if (fits_with(g, out, g->nranks, dims))
            return 1;
    return 0;
}

/* ---- routers ------------------------------------------------------------------------------
 */

struct bny_router {
    const struct bny_graph *g;
    enum bny_routing kind;
    uint64_t seed;
    struct bny_grid grid;
    int64_t cap_max;
    int **hops; /* [nranks] NULL or [nnodes]: links to that rank, -1: unreachable */
    int64_t **
        price; /* [nranks] besides hops: among paths with the fewest links, prefers wide ones */
    int *queue; /* [nnodes] */
};

void bny_router_destroy(struct bny_router *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->g->nranks; i++) {
        if (r->hops)
            free(r->hops[i]);
        if (r->price)
            free(r->price[i]);
    }
    free(r->hops);
    free(r->price);
    free(r->queue);
    free(r);
}

struct bny_router *bny_router_create(const struct bny_graph *g, enum bny_routing kind,
                                     uint64_t seed)
{
    struct bny_router *r = calloc(1, sizeof *r);

    if (!r)
        return NULL;
    r->g = g;
    r->seed = seed;
    r->hops = calloc((size_t)g->nranks, sizeof *r->hops);
    r->price = calloc((size_t)g->nranks, sizeof *r->price);
    r->queue = malloc((size_t)g->nnodes * sizeof *r->queue);
    if (!r->hops || !r->price || !r->queue) {
        bny_router_destroy(r);
        return NULL;
    }
    for (int l = 0; l < g->nlinks; l++)
        r->cap_max = g->links[l].cap > r->cap_max ? g->links[l].cap : r->cap_max;
    r->kind = kind;
    if (kind == BNY_ROUTE_AUTO || kind == BNY_ROUTE_PLAN)
        r->kind = bny_grid_of(&r->grid, g) ? BNY_ROUTE_DIMENSIONS : BNY_ROUTE_SHORTEST;
    else if (kind == BNY_ROUTE_DIMENSIONS && !bny_grid_of(&r->grid, g))
        r->grid.ndims = 0;
    return r;
}

/* A link's part of the price of a path: narrow links cost more. */
static int64_t price_of(const struct bny_router *r, int link)
{
    double ratio = (double)r->cap_max / (double)r->g->links[link].cap;

    return (int64_t)(1000 * (ratio < 1e9 ? ratio : 1e9));
}

/* Breadth first, backwards from rank `to`; nodes leave the queue in order of hops, so the price
 * of nearer ones is final. */
static int route_measure(struct bny_router *r, int to)
{
    const struct bny_graph *g = r->g;
    int *hops = malloc((size_t)g->nnodes * sizeof *hops), head = 0, tail = 0;
    int64_t *price = malloc((size_t)g->nnodes * sizeof *price);

    if (!hops || !price) {
        free(hops);
        free(price);
        return -BANYAN_ENOMEM;
    }
    memset(hops, 0xff, (size_t)g->nnodes * sizeof *hops);
    hops[g->rank_node[to]] = 0;
    price[g->rank_node[to]] = 0;
    r->queue[tail++] = g->rank_node[to];
    while (head < tail) {
        int v = r->queue[head++];

        for (int i = g->in_first[v]; i < g->in_first[v + 1]; i++) {
            int l = g->in[i], u = g->links[l].from;
            int64_t sum = price[v] + price_of(r, l);

            if (hops[u] < 0) {
                hops[u] = hops[v] + 1;
                price[u] = sum;
                r->queue[tail++] = u;
            } else if (hops[u] == hops[v] + 1 && sum < price[u]) {
                price[u] = sum;
            }
        }
    }
    r->hops[to] = hops;
    r->price[to] = price;
    return 0;
}

static int on_way(const struct bny_router *r, int to, int link)
{
    int u = r->g->links[link].from, v = r->g->links[link].to;

    return r->hops[to][v] >= 0 && r->hops[to][u] == r->hops[to][v] + 1 &&
           r->price[to][u] == r->price[to][v] + price_of(r, link);
}

static int push_link(struct bny_ways *w, int at, int link)
{
    if (at == w->cap) {
        int cap = w->cap ? 2 * w->cap : 64,
            *more = reallocarray(w->links, (size_t)cap, sizeof *more);

        if (!more)
            return -BANYAN_ENOMEM;
        w->links = more;
        w->cap = cap;
    }
    w->links[at] = link;
    return 0;
}

static uint64_t route_mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* One path with the fewest links; a hash of (from, to, seed, node) decides between several. */
static int one_way(struct bny_router *r, int from, int to, int hashed, struct bny_ways *w)
{
    const struct bny_graph *g = r->g;
    uint64_t flow = route_mix(route_mix((uint64_t)from << 32 | (uint32_t)to) ^ r->seed);
    int at = 0;

    for (int u = g->rank_node[from]; u != g->rank_node[to]; at++) {
        int n = 0, pick, chosen = -1;

        for (int i = g->out_first[u]; i < g->out_first[u + 1]; i++)
            n += on_way(r, to, g->out[i]);
        pick = hashed ? (int)(route_mix(flow ^ (uint64_t)u) % (uint64_t)n) : 0;
        for (int i = g->out_first[u]; i < g->out_first[u + 1] && chosen < 0; i++)
            if (on_way(r, to, g->out[i]) && pick-- == 0)
                chosen = g->out[i];
        if (push_link(w, at, chosen))
            return -BANYAN_ENOMEM;
        u = g->links[chosen].to;
    }
    w->nparts = 1;
    w->share[0] = 1;
    w->first[0] = 0;
    w->first[1] = at;
    return 0;
}

/* All paths with the fewest links below (from node u, with `share` of the data), depth first.
 * `head` is the begin of the unfinished part, `at` its end. */
static int split_ways(struct bny_router *r, int u, int to, double share, int at,
                      struct bny_ways *w)
{
    const struct bny_graph *g = r->g;
    int n = 0, taken = 0, head = w->first[w->nparts];

    if (u == g->rank_node[to]) {
        w->share[w->nparts++] = share;
        w->first[w->nparts] = at;
        return 0;
    }
    for (int i = g->out_first[u]; i < g->out_first[u + 1]; i++)
        n += on_way(r, to, g->out[i]);
    if (n > BNY_ROUTE_PARTS_MAX - w->nparts)
        n = BNY_ROUTE_PARTS_MAX - w->nparts;
    for (int i = g->out_first[u]; i < g->out_first[u + 1] && taken < n; i++) {
        int prefix = at - head, start = w->first[w->nparts];

        if (!on_way(r, to, g->out[i]) || w->nparts == BNY_ROUTE_PARTS_MAX)
            continue;
        for (int j = 0; taken && j < prefix; j++)
            if (push_link(w, start + j, w->links[head + j]))
                return -BANYAN_ENOMEM;
        taken++;
        if (push_link(w, start + prefix, g->out[i]) ||
            split_ways(r, g->links[g->out[i]].to, to, share / n, start + prefix + 1, w))
            return -BANYAN_ENOMEM;
    }
    return 0;
}

/* Distributes the share that did not fit in a full table evenly over the parts. */
static void normalise(struct bny_ways *w)
{
    double sum = 0;

    for (int i = 0; i < w->nparts; i++)
        sum += w->share[i];
    for (int i = 0; i < w->nparts; i++)
        w->share[i] /= sum;
}

/* Dimension order: last dimension first. dirs: for dimension d, bit d chooses the upward way on
 * a tie. */
static int route_walk(struct bny_router *r, int from, int to, unsigned ups, int at,
                      struct bny_ways *w)
{
    const struct bny_grid *grid = &r->grid;
    int stride = 1, here = from;

    for (int d = grid->ndims - 1; d >= 0; stride *= grid->dim[d--]) {
        int size = grid->dim[d];
        int by = to / stride % size - from / stride % size, dir = by > 0 ? 1 : -1;

        if (grid->wraps && 2 * abs(by) > size)
            by = dir > 0 ? by - size : by + size;
        else if (grid->wraps && 2 * abs(by) == size)
            by = ups >> d & 1 ? abs(by) : -abs(by);
        dir = by > 0 ? 1 : -1;
        for (; by; by -= dir) {
            int next = bny_grid_beside(grid, here, d, dir);

            if (push_link(w, at++,
                          link_between(r->g, r->g->rank_node[here], r->g->rank_node[next])))
                return -BANYAN_ENOMEM;
            here = next;
        }
    }
    return at;
}

static int dimension_ways(struct bny_router *r, int from, int to, struct bny_ways *w)
{
    const struct bny_grid *grid = &r->grid;
    unsigned ties = 0, ups = 0;
    int stride = 1, nties;

    if (!grid->ndims)
        return bny_fail(BANYAN_EINVAL,
                        "graph %s is no torus or mesh: it has no dimension order; "
                        "route by shortest, ecmp or split",
                        r->g->name);
    for (int d = grid->ndims - 1; d >= 0; stride *= grid->dim[d--]) {
        int by = abs(to / stride % grid->dim[d] - from / stride % grid->dim[d]);

        if (grid->wraps && by && 2 * by == grid->dim[d] && grid->dim[d] > 2)
            ties |= 1u << d;
    }
    nties = __builtin_popcount(ties);
    for (w->nparts = 0; w->nparts < BNY_ROUTE_PARTS_MAX;) {
        int at = route_walk(r, from, to, ups, w->first[w->nparts], w);

        if (at < 0)
            return at;
        w->share[w->nparts++] = 1.0 / (nties > 4 ? BNY_ROUTE_PARTS_MAX : 1 << nties);
        w->first[w->nparts] = at;
        ups = (ups - ties) & ties; /* the next subset of the ties */
        if (!ups)
            break;
    }
    return 0;
}

int bny_router_ways(struct bny_router *r, int from_rank, int to_rank, struct bny_ways *ways)
{
    int e;

    ways->nparts = 0;
    ways->first[0] = 0;
    if (r->kind == BNY_ROUTE_DIMENSIONS)
        return dimension_ways(r, from_rank, to_rank, ways);
    e = r->hops[to_rank] ? 0 : route_measure(r, to_rank);
    if (e)
        return e;
    if (r->kind != BNY_ROUTE_SPLIT)
        return one_way(r, from_rank, to_rank, r->kind == BNY_ROUTE_ECMP, ways);
    e = split_ways(r, r->g->rank_node[from_rank], to_rank, 1, 0, ways);
    normalise(ways);
    return e;
}
