/* SPDX-License-Identifier: BSD-3-Clause */
/* The cluster graph (graph.h): building, indexes, checks, copies without a link. */
#include "topo/graph.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

struct bny_graph *bny_graph_alloc(const char *name)
{
    struct bny_graph *g = calloc(1, sizeof *g);

    if (!g)
        return NULL;
    snprintf(g->name, sizeof g->name, "%s", name);
    g->unit_Bps = 1e9;
    return g;
}

static void drop_indexes(struct bny_graph *g)
{
    free(g->rank_node);
    free(g->out_first);
    free(g->out);
    free(g->in_first);
    free(g->in);
    free(g->reverse);
    g->rank_node = g->out_first = g->out = g->in_first = g->in = g->reverse = NULL;
}

void bny_graph_free(struct bny_graph *g)
{
    if (!g)
        return;
    drop_indexes(g);
    free(g->nodes);
    free(g->links);
    free(g->pairs);
    free(g);
}

/* Ensures room for one more element. Returns 0 or -BANYAN_ENOMEM. */
static int graph_grow(void **array, int *cap, int used, size_t size)
{
    int more = *cap ? *cap * 2 : 64;
    void *p;

    if (used < *cap)
        return 0;
    p = reallocarray(*array, (size_t)more, size);
    if (!p)
        return bny_fail(BANYAN_ENOMEM, "no memory for a graph of %d nodes or links", more);
    *array = p;
    *cap = more;
    return 0;
}

int bny_graph_node(struct bny_graph *g, enum bny_node_kind kind, int host, const char *name)
{
    static const char *const kinds[] = { "r", "s", "nic" };
    int e = graph_grow((void **)&g->nodes, &g->nodes_cap, g->nnodes, sizeof *g->nodes);
    struct bny_node *v;

    if (e < 0)
        return e;
    v = &g->nodes[g->nnodes];
    *v = (struct bny_node){ .kind = kind, .rank = -1, .host = host };
    if (name)
        snprintf(v->name, sizeof v->name, "%s", name);
    else
        snprintf(v->name, sizeof v->name, "%s%d", kinds[kind], g->nnodes);
    return g->nnodes++;
}

/* Position of (from, to) in the table of pairs, or the free place for it. */
static int *pair_slot(const struct bny_graph *g, int from, int to)
{
    uint64_t h = ((uint64_t)from << 32 | (uint32_t)to) * UINT64_C(0x9e3779b97f4a7c15);
    int i = (int)(h >> 40) & (g->pairs_cap - 1);

    while (g->pairs[i] >= 0 &&
           (g->links[g->pairs[i]].from != from || g->links[g->pairs[i]].to != to))
        i = (i + 1) & (g->pairs_cap - 1);
    return &g->pairs[i];
}

/* Keeps the table at most half full. */
static int pairs_grow(struct bny_graph *g)
{
    int cap = g->pairs_cap ? g->pairs_cap * 2 : 256, *p;

    if (2 * (g->nlinks + 1) <= g->pairs_cap)
        return 0;
    p = malloc((size_t)cap * sizeof *p);
    if (!p)
        return bny_fail(BANYAN_ENOMEM, "no memory for a graph of %d links", g->nlinks);
    free(g->pairs);
    g->pairs = p;
    g->pairs_cap = cap;
    memset(p, 0xff, (size_t)cap * sizeof *p);
    for (int l = 0; l < g->nlinks; l++)
        *pair_slot(g, g->links[l].from, g->links[l].to) = l;
    return 0;
}

int bny_graph_link(struct bny_graph *g, int from, int to, int64_t cap, int64_t lat_ns)
{
    int e, *slot;

    if (from < 0 || from >= g->nnodes || to < 0 || to >= g->nnodes)
        return bny_fail(BANYAN_EINVAL, "a link joins nodes %d and %d, but there are %d nodes",
                        from, to, g->nnodes);
    if (from == to)
        return bny_fail(BANYAN_EINVAL, "node %s has a link to itself", g->nodes[from].name);
    if (cap <= 0 || lat_ns < 0)
        return bny_fail(BANYAN_EINVAL,
                        "link %s -> %s: capacity %" PRId64 " and latency %" PRId64
                        " ns; it needs a capacity above 0 and a latency of 0 or more",
                        g->nodes[from].name, g->nodes[to].name, cap, lat_ns);
    e = pairs_grow(g);
    if (!e)
        e = graph_grow((void **)&g->links, &g->links_cap, g->nlinks, sizeof *g->links);
    if (e)
        return e;
    slot = pair_slot(g, from, to);
    if (*slot < 0) {
        g->links[g->nlinks] = (struct bny_link){ from, to, cap, lat_ns, 1 };
        *slot = g->nlinks++;
        return *slot;
    }
    if (g->links[*slot].cap > INT64_MAX - cap)
        return bny_fail(BANYAN_EINVAL, "the capacities of the parallel links %s -> %s overflow",
                        g->nodes[from].name, g->nodes[to].name);
    g->links[*slot].cap += cap;
    g->links[*slot].lanes++;
    if (g->links[*slot].lat_ns > lat_ns)
        g->links[*slot].lat_ns = lat_ns;
    return *slot;
}

int bny_graph_both(struct bny_graph *g, int a, int b, int64_t cap, int64_t lat_ns)
{
    int l = bny_graph_link(g, a, b, cap, lat_ns);
    int r = l < 0 ? l : bny_graph_link(g, b, a, cap, lat_ns);

    return r < 0 ? r : l;
}

/* Assigns the smallest free numbers to ranks without one, in order of nodes. */
static int number_ranks(struct bny_graph *g)
{
    int next = 0;

    g->nranks = 0;
    for (int v = 0; v < g->nnodes; v++)
        g->nranks += g->nodes[v].kind == BNY_NODE_COMPUTE;
    if (!g->nranks)
        return bny_fail(BANYAN_EINVAL, "graph %s has no compute node, so no rank", g->name);
    g->rank_node = malloc((size_t)g->nranks * sizeof *g->rank_node);
    if (!g->rank_node)
        return bny_fail(BANYAN_ENOMEM, "no memory for %d ranks", g->nranks);
    memset(g->rank_node, 0xff, (size_t)g->nranks * sizeof *g->rank_node);
    for (int v = 0; v < g->nnodes; v++) {
        int r = g->nodes[v].rank;
        if (r == -1)
            continue;
        if (g->nodes[v].kind != BNY_NODE_COMPUTE)
            return bny_fail(BANYAN_EINVAL, "node %s is no compute node but has rank %d",
                            g->nodes[v].name, r);
        if (r < 0 || r >= g->nranks)
            return bny_fail(BANYAN_EINVAL,
                            "node %s has rank %d; the %d compute nodes have ranks "
                            "0 to %d",
                            g->nodes[v].name, r, g->nranks, g->nranks - 1);
        if (g->rank_node[r] >= 0)
            return bny_fail(BANYAN_EINVAL, "rank %d is given to both %s and %s", r,
                            g->nodes[g->rank_node[r]].name, g->nodes[v].name);
        g->rank_node[r] = v;
    }
    for (int v = 0; v < g->nnodes; v++) {
        if (g->nodes[v].kind != BNY_NODE_COMPUTE || g->nodes[v].rank >= 0)
            continue;
        while (g->rank_node[next] >= 0)
            next++;
        g->rank_node[next] = v;
        g->nodes[v].rank = next;
    }
    return 0;
}

/* Counting sort of link indexes by one end. */
static int index_links(const struct bny_graph *g, int by_to, int **first, int **list)
{
    int *f = calloc((size_t)g->nnodes + 2, sizeof *f);
    int *l = malloc(((size_t)g->nlinks + 1) * sizeof *l);

    *first = f;
    *list = l;
    if (!f || !l)
        return bny_fail(BANYAN_ENOMEM, "no memory for a graph of %d links", g->nlinks);
    for (int i = 0; i < g->nlinks; i++)
        f[(by_to ? g->links[i].to : g->links[i].from) + 2]++;
    for (int v = 0; v < g->nnodes; v++)
        f[v + 2] += f[v + 1];
    for (int i = 0; i < g->nlinks; i++)
        l[f[(by_to ? g->links[i].to : g->links[i].from) + 1]++] = i;
    return 0;
}

/* The first rank that is unreachable from rank 0 (backward: cannot reach it), -1: none, or
 * -BANYAN_ENOMEM. */
static int unreached(const struct bny_graph *g, int backward)
{
    const int *first = backward ? g->in_first : g->out_first;
    const int *list = backward ? g->in : g->out;
    char *seen = calloc((size_t)g->nnodes, 1);
    int *queue = malloc((size_t)g->nnodes * sizeof *queue), head = 0, tail = 0, bad = -1;

    if (!seen || !queue) {
        free(seen);
        free(queue);
        return bny_fail(BANYAN_ENOMEM, "no memory for a graph of %d nodes", g->nnodes);
    }
    queue[tail++] = g->rank_node[0];
    seen[g->rank_node[0]] = 1;
    while (head < tail) {
        int v = queue[head++];
        for (int i = first[v]; i < first[v + 1]; i++) {
            int w = backward ? g->links[list[i]].from : g->links[list[i]].to;
            if (!seen[w])
                queue[tail++] = w;
            seen[w] = 1;
        }
    }
    for (int r = g->nranks - 1; r >= 0; r--)
        bad = seen[g->rank_node[r]] ? bad : r;
    free(seen);
    free(queue);
    return bad;
}

static int check_connected(const struct bny_graph *g)
{
    int forth = unreached(g, 0), back = forth == -1 ? unreached(g, 1) : -1;

    if (forth < -1 || back < -1)
        return -BANYAN_ENOMEM;
    if (forth >= 0)
        return bny_fail(BANYAN_EINVAL,
                        "graph %s is disconnected: no way from rank 0 (%s) to rank "
                        "%d (%s)",
                        g->name, g->nodes[g->rank_node[0]].name, forth,
                        g->nodes[g->rank_node[forth]].name);
    if (back >= 0)
        return bny_fail(BANYAN_EINVAL,
                        "graph %s is disconnected: no way from rank %d (%s) to rank "
                        "0 (%s)",
                        g->name, back, g->nodes[g->rank_node[back]].name,
                        g->nodes[g->rank_node[0]].name);
    return 0;
}

int bny_graph_freeze(struct bny_graph *g)
{
    int e;

    drop_indexes(g);
    e = number_ranks(g);
    if (!e)
        e = index_links(g, 0, &g->out_first, &g->out);
    if (!e)
        e = index_links(g, 1, &g->in_first, &g->in);
    if (!e) {
        g->reverse = malloc(((size_t)g->nlinks + 1) * sizeof *g->reverse);
        if (!g->reverse)
            e = bny_fail(BANYAN_ENOMEM, "no memory for a graph of %d links", g->nlinks);
    }
    for (int l = 0; !e && l < g->nlinks; l++)
        g->reverse[l] = *pair_slot(g, g->links[l].to, g->links[l].from);
    if (!e)
        e = check_connected(g);
    if (e)
        drop_indexes(g);
    return e;
}
