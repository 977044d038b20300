/* SPDX-License-Identifier: BSD-3-Clause */
/* Graphs for gossip, by name, and their rounds. */
#include "methods/gossip_graph.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "base/err.h"
#include "base/rng.h"

enum { RANKS_MAX = 1024, SWAPS = 20 /* an edge of a random graph */, TRIES = 100 };

static const char usage[] =
    "ring, torus:AxB[xC...], hypercube, exponential, random[:degree=D,seed=S] or complete";

static int append(struct bny_gossip_graph *g, int low, int high)
{
    struct bny_gossip_edge *more;

    if (!(g->edges & (g->edges - 1))) { /* room for the next power of two */
        more = realloc(g->edge, (g->edges ? 2 * g->edges : 1) * sizeof *more);
        if (!more)
            return bny_fail(BANYAN_ENOMEM, "no memory for a graph of %zu edges", g->edges);
        g->edge = more;
    }
    g->edge[g->edges++] = (struct bny_gossip_edge){ low, high, -1 };
    return 0;
}

static int joined(const struct bny_gossip_graph *g, int a, int b)
{
    for (size_t e = 0; e < g->edges; e++)
        if ((g->edge[e].low == a && g->edge[e].high == b) ||
            (g->edge[e].low == b && g->edge[e].high == a))
            return 1;
    return a == b;
}

/* An edge that is there already, or from a rank to itself, is none. */
static int gossip_graph_add(struct bny_gossip_graph *g, int a, int b)
{
    return joined(g, a, b) ? 0 : append(g, a < b ? a : b, a < b ? b : a);
}

/* Ranks at each of the distances from each rank, around a circle. */
static int circulant(struct bny_gossip_graph *g, const int *distance, int n)
{
    int rc = 0;

    for (int k = 0; k < n; k++)
        for (int r = 0; r < g->n && rc == 0; r++)
            rc = gossip_graph_add(g, r, (r + distance[k]) % g->n);
    return rc;
}

static int torus(struct bny_gossip_graph *g, const char *args)
{
    int stride = 1, rc = 0;
    const char *at = args;
    long long ranks = 1;
    char *end;

    while (rc == 0 && *at) {
        long dim = strtol(at, &end, 10);

        if (end == at || dim < 1 || dim > RANKS_MAX || (*end && (*end != 'x' || !end[1])) ||
            (ranks *= dim) > g->n)
            break;
        for (int r = 0; r < g->n && rc == 0; r++) {
            int here = r / stride % (int)dim, next = (here + 1) % (int)dim;

            rc = gossip_graph_add(g, r, (r + (next - here) * stride) % g->n);
        }
        stride *= (int)dim;
        at = end + (*end == 'x');
    }
    if (rc == 0 && (*at || ranks != g->n))
        rc = bny_fail(BANYAN_EINVAL,
                      "graph torus:%s: wants dimensions whose product is the %d "
                      "ranks, as torus:AxB",
                      args, g->n);
    return rc;
}

static int hypercube(struct bny_gossip_graph *g)
{
    int rc = 0;

    if (g->n & (g->n - 1))
        return bny_fail(BANYAN_EINVAL, "graph hypercube: %d ranks are no power of two", g->n);
    for (int bit = 1; bit < g->n; bit <<= 1)
        for (int r = 0; r < g->n && rc == 0; r++)
            rc = gossip_graph_add(g, r, r ^ bit);
    return rc;
}

static int exponential(struct bny_gossip_graph *g)
{
    int distance[32], n = 0;

    for (int d = 1; d < g->n; d *= 2)
        distance[n++] = d;
    return circulant(g, distance, n);
}

/* Is it in one piece? reached[n] is scratch. */
static int gossip_graph_connected(const struct bny_gossip_graph *g, char *reached)
{
    int more = 1, left = g->n;

    memset(reached, 0, (size_t)g->n);
    reached[0] = 1;
    while (more) {
        more = 0;
        for (size_t e = 0; e < g->edges; e++)
            if (reached[g->edge[e].low] != reached[g->edge[e].high])
                more = reached[g->edge[e].low] = reached[g->edge[e].high] = 1;
    }
    for (int r = 0; r < g->n; r++)
        left -= reached[r];
    return left == 0;
}

/* Two edges a-b and c-d become a-d and c-b, where these are new: degrees stay. */
static void swap_ends(struct bny_gossip_graph *g, uint64_t *rng)
{
    struct bny_gossip_edge *x = &g->edge[bny_rng_below(rng, g->edges)],
                           *y = &g->edge[bny_rng_below(rng, g->edges)];
    int a = x->low, b = x->high, turn = (int)bny_rng_below(rng, 2), c = turn ? y->high : y->low,
        d = turn ? y->low : y->high;

    if (x == y || joined(g, a, d) || joined(g, c, b))
        return;
    *x = (struct bny_gossip_edge){ a < d ? a : d, a < d ? d : a, -1 };
    *y = (struct bny_gossip_edge){ c < b ? c : b, c < b ? b : c, -1 };
}

/* A regular graph is mixed until it is random, and in one piece. */
static int random_regular(struct bny_gossip_graph *g, const char *args)
{
    int degree = 3, seed = 1, distance[64], n = 0, rc, used = 0, all = 0;
    char *reached;
    uint64_t rng;

    if (*args && (sscanf(args, "degree=%d%n,seed=%d%n", &degree, &used, &seed, &all) < 1 ||
                  args[all ? all : used]))
        return bny_fail(BANYAN_EINVAL, "graph random:%s: wants degree=D,seed=S", args);
    if (degree < 2 || degree > 64 || degree >= g->n || degree * g->n % 2)
        return bny_fail(BANYAN_EINVAL,
                        "graph random: degree %d with %d ranks; 2 to 64, less than the ranks, "
                        "and their product even",
                        degree, g->n);
    if (degree % 2)
        distance[n++] = g->n / 2;
    for (int d = 1; d <= degree / 2; d++)
        distance[n++] = d;
    rc = circulant(g, distance, n);
    reached = malloc((size_t)g->n);
    if (rc == 0 && !reached)
        rc = bny_fail(BANYAN_ENOMEM, "no memory for a graph of %d ranks", g->n);
    rng = (uint64_t)seed;
    for (int i = 0; i < TRIES && rc == 0; i++) {
        for (size_t k = 0; k < SWAPS * g->edges; k++)
            swap_ends(g, &rng);
        if (gossip_graph_connected(g, reached))
            break;
        if (i == TRIES - 1)
            rc = bny_fail(BANYAN_EINVAL, "graph random:%s: not connected in %d tries", args,
                          TRIES);
    }
    free(reached);
    return rc;
}

/* Everybody with everybody, in the order of a tournament (the circle method), which the colours
 * then have too: as many rounds as ranks, one fewer where these are even. */
static int gossip_graph_complete(struct bny_gossip_graph *g)
{
    int seats = g->n + g->n % 2, turn = seats - 1, rc = 0;

    for (int round = 0; round < turn && g->n > 1; round++)
        for (int k = 0; k < seats / 2 && rc == 0; k++) {
            int a = k ? (round + k) % turn : seats - 1, b = (round + turn - k) % turn;

            if (a < g->n && b < g->n)
                rc = append(g, a < b ? a : b, a < b ? b : a);
        }
    return rc;
}

/* ---- rounds ---- */

/* at[rank * most + colour]: its edge of that colour, or -1. */
struct colouring {
    struct bny_gossip_graph *g;
    int *at, most;
    int *path; /* [ranks] edges */
};

static int other(const struct bny_gossip_edge *e, int rank)
{
    return e->low == rank ? e->high : e->low;
}

static void paint(struct colouring *c, int e, int colour)
{
    struct bny_gossip_edge *x = &c->g->edge[e];

    x->colour = colour;
    c->at[x->low * c->most + colour] = e;
    c->at[x->high * c->most + colour] = e;
}

/* The path from v by colours a, b, a, ... : if it does not end at u its colours change places,
 * and a is free at v. Returns whether. */
static int flip(struct colouring *c, int v, int u, int a, int b)
{
    int n = 0, here = v, colour = a, e;

    while ((e = c->at[here * c->most + colour]) >= 0) {
        c->path[n++] = e;
        here = other(&c->g->edge[e], here);
        colour = colour == a ? b : a;
    }
    if (here == u)
        return 0;
    for (int k = 0; k < n; k++) {
        struct bny_gossip_edge *x = &c->g->edge[c->path[k]];

        c->at[x->low * c->most + x->colour] = c->at[x->high * c->most + x->colour] = -1;
    }
    for (int k = 0; k < n; k++)
        paint(c, c->path[k], c->g->edge[c->path[k]].colour == a ? b : a);
    return 1;
}

/* A colour below `palette` that is free at both ends, or becomes so by a flip. */
static int colour_below(struct colouring *c, int e, int palette)
{
    int u = c->g->edge[e].low, v = c->g->edge[e].high;
    const int *at_u = c->at + u * c->most, *at_v = c->at + v * c->most;

    for (int a = 0; a < palette; a++)
        if (at_u[a] < 0 && at_v[a] < 0) {
            paint(c, e, a);
            return 1;
        }
    for (int a = 0; a < palette; a++)
        for (int b = 0; b < palette; b++)
            if (at_u[a] < 0 && at_v[b] < 0 && flip(c, v, u, a, b)) {
                paint(c, e, a);
                return 1;
            }
    return 0;
}

/* As few colours as it takes: the degree's number always does in a bipartite graph (Koenig),
 * the double of it in any. */
static void colour_edge(struct colouring *c, int e)
{
    int palette = c->g->degree;

    while (!colour_below(c, e, palette))
        palette++;
}

static int colour_all(struct bny_gossip_graph *g, size_t ranks)
{
    struct colouring c = { .g = g };
    int *degrees = calloc(ranks, sizeof *degrees), rc = 0;

    for (size_t e = 0; e < g->edges && degrees; e++) {
        degrees[g->edge[e].low]++;
        degrees[g->edge[e].high]++;
    }
    for (int r = 0; r < g->n && degrees; r++)
        g->degree = degrees[r] > g->degree ? degrees[r] : g->degree;
    c.most = 2 * g->degree; /* at an edge's ends at most 2 (degree - 1) colours are taken */
    c.at = malloc((ranks * (size_t)c.most + 1) * sizeof *c.at);
    c.path = malloc(ranks * sizeof *c.path);
    if (degrees && c.at && c.path) {
        for (int i = 0; i < g->n * c.most; i++)
            c.at[i] = -1;
        for (size_t e = 0; e < g->edges; e++)
            colour_edge(&c, (int)e);
        for (size_t e = 0; e < g->edges; e++)
            g->colours = g->edge[e].colour >= g->colours ? g->edge[e].colour + 1 : g->colours;
    }
    if (!c.at || !c.path || !degrees)
        rc = bny_fail(BANYAN_ENOMEM, "no memory for the rounds of %d ranks", g->n);
    free(c.at);
    free(c.path);
    free(degrees);
    return rc;
}

/* ---- names ---- */

/* Is it `kind`, or `kind:number` of what these ranks are? */
static int is(const char *name, const char *kind, int number)
{
    size_t len = strlen(kind);
    char *end;

    if (strncmp(name, kind, len) || (name[len] && name[len] != ':'))
        return 0;
    return !name[len] || (strtol(name + len + 1, &end, 10) == number && !*end);
}

static int log2_of(int n)
{
    int d = 0;

    while (n >> (d + 1))
        d++;
    return d;
}

static int edges(struct bny_gossip_graph *g, const char *name)
{
    static const int one = 1;

    if (is(name, "ring", g->n))
        return circulant(g, &one, 1);
    if (!strncmp(name, "torus:", 6))
        return torus(g, name + 6);
    if (is(name, "hypercube", log2_of(g->n)))
        return hypercube(g);
    if (is(name, "exponential", g->n))
        return exponential(g);
    if (!strncmp(name, "random", 6) && (!name[6] || name[6] == ':'))
        return random_regular(g, name + 6 + (name[6] == ':'));
    if (is(name, "complete", g->n))
        return gossip_graph_complete(g);
    return bny_fail(BANYAN_EINVAL, "no graph of %d ranks is called %s; there are %s", g->n,
                    name, usage);
}

int bny_gossip_graph_make(struct bny_gossip_graph *out, const char *name, int n)
{
    int rc;

    memset(out, 0, sizeof *out);
    out->n = n;
    if (n < 1 || n > RANKS_MAX)
        return bny_fail(BANYAN_EINVAL, "gossip of %d ranks; 1 to %d", n, RANKS_MAX);
    rc = edges(out, name);
    if (rc == 0)
        rc = colour_all(out, (size_t)n);
    if (rc < 0)
        bny_gossip_graph_free(out);
    return rc;
}

void bny_gossip_graph_free(struct bny_gossip_graph *g)
{
    free(g->edge);
    memset(g, 0, sizeof *g);
}
