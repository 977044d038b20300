/* SPDX-License-Identifier: BSD-3-Clause */
/* Links, and how long a segment takes. Links serve segments in the order in which their first
 * bytes come to them: one begins when it is there and the link is free, and its bytes follow
 * each other through (cut-through). So it takes its share of a link when it comes there, and
 * not when it is sent: a packet that waits for a port keeps no other from the links behind it.
 * Without a graph a host has one port of each direction, and what joins the ports is never
 * busy. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simulator/sim.h"
#include "topo/graph.h"
#include "topo/route.h"

#define LOCAL_BPS 5e9 /* between ranks of one host */
#define LOCAL_NS  5000u

struct link {
    double ns_per_byte;
    uint64_t latency_ns, free_ns;
};

static int nhosts;
static struct link *links; /* of the graph; or outgoing, then incoming ports */
static struct link *local; /* a host's loopback */
static struct bny_graph *graph;
static struct bny_router *router;
static struct bny_ways ways;
static unsigned char *cut; /* [from * nhosts + to] */

static struct link link_of(double Bps, uint64_t latency_ns)
{
    return (struct link){ .ns_per_byte = 1e9 / Bps, .latency_ns = latency_ns };
}

int sim_net_open(int n, double link_Bps, uint64_t latency_ns, const char *text)
{
    struct bny_grid grid;

    nhosts = n;
    cut = calloc((size_t)n * (size_t)n, 1);
    local = calloc((size_t)n, sizeof *local);
    if (text && bny_graph_make(&graph, text) != 0)
        return -1;
    if (graph && graph->nranks != n) {
        fprintf(stderr, "banyan_sim: %s is for %d ranks, not for %d\n", text, graph->nranks, n);
        return -1;
    }
    links = calloc(graph ? (size_t)graph->nlinks : 2 * (size_t)n, sizeof *links);
    if (graph)
        router = bny_router_create(
            graph, bny_grid_of(&grid, graph) ? BNY_ROUTE_DIMENSIONS : BNY_ROUTE_ECMP, 1);
    if (!cut || !local || !links || (graph && !router)) {
        fprintf(stderr, "banyan_sim: no memory for %d hosts\n", n);
        return -1;
    }
    for (int h = 0; h < n; h++)
        local[h] = link_of(LOCAL_BPS, LOCAL_NS);
    for (int i = 0; graph && i < graph->nlinks; i++)
        links[i] = link_of((double)graph->links[i].cap * graph->unit_Bps,
                           (uint64_t)graph->links[i].lat_ns);
    for (int i = 0; !graph && i < 2 * n; i++)
        links[i] = link_of(link_Bps, latency_ns / 2);
    return 0;
}

int sim_net_nhosts(void)
{
    return nhosts;
}

/* The links from one host to another; returns their number. */
static int way(int from, int to, struct link **out, int max)
{
    int n = 0;

    if (from == to) {
        out[n++] = &local[from];
    } else if (!graph) {
        out[n++] = &links[from];
        out[n++] = &links[nhosts + to];
    } else if (bny_router_ways(router, from, to, &ways) == 0) {
        for (int i = ways.first[0]; i < ways.first[1] && n < max; i++)
            out[n++] = &links[ways.links[i]];
    }
    return n;
}

/* ---- segments on their way ---- */

struct segment {
    void (*fn)(void *a, uint64_t b);
    void *a;
    uint64_t b, tail_ns; /* tail: when its last byte is at the link */
    size_t bytes;
    int n, at;
    struct link *on[];
};

static void comes(void *a, uint64_t b);

/* Its first byte is at its next link. */
static void passes(struct segment *s, uint64_t head_ns)
{
    struct link *l = s->on[s->at++];
    uint64_t begin = head_ns > l->free_ns ? head_ns : l->free_ns,
             end = begin + (uint64_t)((double)s->bytes * l->ns_per_byte);

    l->free_ns = end;
    end = end > s->tail_ns ? end : s->tail_ns; /* no byte leaves before it came */
    s->tail_ns = end + l->latency_ns;
    if (s->at < s->n) {
        sim_at(begin + l->latency_ns, comes, s, 0);
        return;
    }
    sim_at(s->tail_ns, s->fn, s->a, s->b);
    free(s);
}

static void comes(void *a, uint64_t b)
{
    (void)b;
    passes(a, sim_now);
}

void sim_net_send(int from, int to, size_t bytes, void (*fn)(void *a, uint64_t b), void *a,
                  uint64_t b)
{
    struct link *on[64];
    int n = way(from, to, on, 64);
    struct segment *s = malloc(sizeof *s + (size_t)n * sizeof on[0]);

    if (!s)
        sim_no_memory();
    *s = (struct segment){ .fn = fn, .a = a, .b = b, .bytes = bytes, .n = n };
    memcpy(s->on, on, (size_t)n * sizeof on[0]);
    s->tail_ns = sim_time();
    if (n > 0) {
        passes(s, s->tail_ns);
        return;
    }
    sim_at(s->tail_ns, fn, a, b); /* no way is known: as if it took no time */
    free(s);
}

uint64_t sim_net_latency(int from, int to)
{
    struct link *on[64];
    int n = way(from, to, on, 64);
    uint64_t ns = 0;

    for (int i = 0; i < n; i++)
        ns += on[i]->latency_ns;
    return ns;
}

void sim_net_cut(int from, int to, int is_cut)
{
    unsigned char *c = &cut[(size_t)from * (size_t)nhosts + (size_t)to];

    *c = (unsigned char)(is_cut != 0);
}

int sim_net_is_cut(int from, int to)
{
    return cut[(size_t)from * (size_t)nhosts + (size_t)to];
}
