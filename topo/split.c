/* SPDX-License-Identifier: BSD-3-Clause */
/* Removal of switches (split.h). Switch by switch, arriving capacity is joined with leaving
 * capacity. Usually an even spread over all pairs preserves every cut, confirmed by one check
 * of all cuts: first between equal positions of different hosts (rails), then between different
 * hosts, then between any two different neighbours. If none does, pairs are split off one by
 * one (split_exact.c). */
#include "topo/split.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

#define MOST_PAIRS 300000

static int split_no_memory(const struct bny_graph *g)
{
    return bny_fail(BANYAN_ENOMEM, "no memory to remove the switches of %s", g->name);
}

int64_t bny_split_feed(const struct bny_split *s, int v)
{
    return s->g->nodes[v].rank >= 0 ? s->need[s->g->nodes[v].rank] : 0;
}

/* SIZE_MAX: it is elsewhere. */
static size_t index_of(const struct bny_split *s, const struct bny_pack_edge *e)
{
    return s->edges && e >= s->edges && e < s->edges + s->nedges ? (size_t)(e - s->edges)
                                                                 : SIZE_MAX;
}

int bny_split_edge(struct bny_split *s, int from, int to, int64_t cap,
                   const struct bny_pack_edge *a, const struct bny_pack_edge *b)
{
    struct bny_pack_edge *e;
    int n = a->nlinks + (b ? b->nlinks : 0), *links;

    if (s->nedges == s->edges_cap) {
        int more = s->edges_cap ? 2 * s->edges_cap : 256, *arc;
        size_t ia = index_of(s, a), ib = index_of(s, b);

        e = realloc(s->edges, (size_t)more * sizeof *e);
        if (e)
            s->edges = e;
        arc = realloc(s->arc, (size_t)more * sizeof *arc);
        if (arc)
            s->arc = arc;
        if (!e || !arc)
            return split_no_memory(s->g);
        s->edges_cap = more;
        a = ia == SIZE_MAX ? a : s->edges + ia;
        b = ib == SIZE_MAX ? b : s->edges + ib;
    }
    links = malloc((size_t)n * sizeof *links);
    if (!links)
        return split_no_memory(s->g);
    memcpy(links, a->links, (size_t)a->nlinks * sizeof *links);
    if (b)
        memcpy(links + a->nlinks, b->links, (size_t)b->nlinks * sizeof *links);
    s->arc[s->nedges] = bny_flow_arc(&s->flow, from, to, cap);
    if (s->arc[s->nedges] < 0) {
        free(links);
        return -BANYAN_ENOMEM;
    }
    s->edges[s->nedges] = (struct bny_pack_edge){ from, to, cap, n, links };
    return s->nedges++;
}

static void pop_edge(struct bny_split *s)
{
    free(s->edges[--s->nedges].links);
    bny_flow_pop(&s->flow);
}

void bny_split_cap(struct bny_split *s, int e, int64_t cap)
{
    s->edges[e].cap = cap;
    bny_flow_set(&s->flow, s->arc[e], cap);
}

/* 1 if the cut condition (cuts.h) holds for every set of nodes without at least one rank. */
static int feasible(struct bny_split *s)
{
    const struct bny_graph *g = s->g;
    int r = 0;

    for (; r < g->nranks; r++) {
        int v = g->rank_node[r];

        bny_flow_reset(&s->flow);
        if (bny_flow_run(&s->flow, g->nnodes, v, s->total) < s->total)
            break;
        bny_flow_set(&s->flow, s->feed[v], BNY_FLOW_INF);
    }
    for (int i = 0; i < g->nranks; i++)
        bny_flow_set(&s->flow, s->feed[g->rank_node[i]], s->need[i]);
    return r == g->nranks;
}

/* Index of a rank among those of its host, or -1. */
static int place_in_host(const struct bny_graph *g, int v)
{
    int host = g->nodes[v].host, place = 0;

    if (g->nodes[v].rank < 0 || host < 0)
        return -1;
    for (int r = 0; r < g->nodes[v].rank; r++)
        place += g->nodes[g->rank_node[r]].host == host;
    return place;
}

enum pairing { RAILS, HOSTS, ANY, PAIRINGS };

struct ports { /* edges at one switch */
    int nin, nout, *in, *out, *in_place, *out_place;
};

static int allowed(const struct bny_split *s, const struct ports *p, int i, int o,
                   enum pairing how)
{
    const struct bny_node *nodes = s->g->nodes;
    int u = s->edges[p->in[i]].from, t = s->edges[p->out[o]].to;
    int other_host = nodes[u].host != nodes[t].host || nodes[u].host < 0;

    if (u == t)
        return 0;
    if (how == RAILS)
        return other_host && p->in_place[i] >= 0 && p->in_place[i] == p->out_place[o];
    return how == ANY || other_host;
}

/* Largest flow between ports with at most `most` units per pair; the flow stays in f. */
static int64_t join_flow(const struct bny_split *s, const struct ports *p, struct bny_flow *f,
                         int64_t most, int first)
{
    for (int a = first; a < f->m; a += 2)
        bny_flow_set(f, a, most);
    bny_flow_reset(f);
    return bny_flow_run(f, p->nin + p->nout, p->nin + p->nout + 1, BNY_FLOW_INF);
}

/* The flow of value `best` with the fewest units per pair. */
static void even_out(const struct bny_split *s, const struct ports *p, struct bny_flow *f,
                     int64_t best, int first)
{
    int64_t less = 0, enough = 1;

    while (join_flow(s, p, f, enough, first) < best) {
        less = enough;
        enough *= 2;
    }
    while (enough - less > 1) {
        int64_t middle = less + (enough - less) / 2;

        if (join_flow(s, p, f, middle, first) < best)
            less = middle;
        else
            enough = middle;
    }
    join_flow(s, p, f, less,
              first); /* the last unit only if needed: no pair gets much less than others */
    for (int a = first; a < f->m; a += 2)
        f->arcs[a].cap += enough - less;
    bny_flow_run(f, p->nin + p->nout, p->nin + p->nout + 1, BNY_FLOW_INF);
}

/* 1 if every neighbouring switch loses as much capacity in as out, so that splitting remains
 * possible there. */
static int balanced(const struct bny_split *s, const struct ports *p, const struct bny_flow *f)
{
    for (int i = 0; i < p->nin; i++) {
        int u = s->edges[p->in[i]].from;
        int64_t lost = 0;

        if (s->g->nodes[u].rank >= 0)
            continue;
        for (int k = 0; k < p->nin; k++)
            if (s->edges[p->in[k]].from == u)
                lost += f->arcs[2 * k].cap;
        for (int o = 0; o < p->nout; o++)
            if (s->edges[p->out[o]].to == u)
                lost -= f->arcs[2 * (p->nin + o)].cap;
        if (lost)
            return 0;
    }
    return 1;
}

static int joined_edges(struct bny_split *s, const struct ports *p, const struct bny_flow *f,
                        int first)
{
    for (int a = first; a < f->m; a += 2) {
        int in = p->in[f->arcs[a ^ 1].to], out = p->out[f->arcs[a].to - p->nin], e;
        int64_t units = f->arcs[a ^ 1].cap;

        if (!units)
            continue;
        e = bny_split_edge(s, s->edges[in].from, s->edges[out].to, units, &s->edges[in],
                           &s->edges[out]);
        if (e < 0)
            return e;
    }
    return 0;
}

/* Removes the old edges. */
static void drop_ports(struct bny_split *s, const struct ports *p)
{
    for (int i = 0; i < p->nin; i++)
        bny_split_cap(s, p->in[i], 0);
    for (int o = 0; o < p->nout; o++)
        bny_split_cap(s, p->out[o], 0);
}

/* Joins the ports as evenly as possible with the largest flow. 1: done (if checked, every cut
 * is preserved); 0: failed, undone. */
static int spread(struct bny_split *s, const struct ports *p, enum pairing how, int check)
{
    struct bny_flow f;
    int first = 2 * (p->nin + p->nout), e, had = s->nedges, any = 0;
    int64_t best;

    e = bny_flow_init(&f, p->nin + p->nout + 2, p->nin * 8 + p->nout);
    for (int i = 0; i < p->nin && !e; i++)
        bny_flow_arc(&f, p->nin + p->nout, i, s->edges[p->in[i]].cap);
    for (int o = 0; o < p->nout && !e; o++)
        e = bny_flow_arc(&f, p->nin + o, p->nin + p->nout + 1, s->edges[p->out[o]].cap) < 0
                ? -BANYAN_ENOMEM
                : 0;
    for (int i = 0; i < p->nin && !e; i++)
        for (int d = 1; d <= p->nout && !e;
             d++) { /* starts at the next port, so that the flow favours no port */
            int o = (i + d) % p->nout;

            if (!allowed(s, p, i, o, how))
                continue;
            if (f.m > 2 * MOST_PAIRS || bny_flow_arc(&f, i, p->nin + o, 0) < 0)
                e = -BANYAN_ENOTSUP;
            any = 1;
        }
    if (e || !any) {
        bny_flow_free(&f);
        return e == -BANYAN_ENOMEM ? e : 0;
    }
    best = join_flow(s, p, &f, BNY_FLOW_INF, first);
    even_out(s, p, &f, best, first);
    if (check && !balanced(s, p, &f)) {
        bny_flow_free(&f);
        return 0;
    }
    e = joined_edges(s, p, &f, first);
    bny_flow_free(&f);
    if (!check) {
        drop_ports(s, p);
        return e ? e : 1;
    }
    for (int i = 0; i < p->nin; i++)
        bny_flow_set(&s->flow, s->arc[p->in[i]], 0);
    for (int o = 0; o < p->nout; o++)
        bny_flow_set(&s->flow, s->arc[p->out[o]], 0);
    if (!e && feasible(s)) {
        drop_ports(s, p);
        return 1;
    }
    while (s->nedges > had)
        pop_edge(s);
    for (int i = 0; i < p->nin; i++)
        bny_split_cap(s, p->in[i], s->edges[p->in[i]].cap);
    for (int o = 0; o < p->nout; o++)
        bny_split_cap(s, p->out[o], s->edges[p->out[o]].cap);
    return e;
}

static int remove_switch(struct bny_split *s, int w, int check)
{
    struct ports p = { 0 };
    size_t n = (size_t)s->nedges + 1;
    int done = 0;

    p.in = malloc(4 * n * sizeof *p.in);
    if (!p.in)
        return split_no_memory(s->g);
    p.out = p.in + n;
    p.in_place = p.out + n;
    p.out_place = p.in_place + n;
    for (int e = 0; e < s->nedges; e++) {
        if (s->edges[e].cap && s->edges[e].to == w) {
            p.in_place[p.nin] = place_in_host(s->g, s->edges[e].from);
            p.in[p.nin++] = e;
        } else if (s->edges[e].cap && s->edges[e].from == w) {
            p.out_place[p.nout] = place_in_host(s->g, s->edges[e].to);
            p.out[p.nout++] = e;
        }
    }
    for (int how = RAILS; how < PAIRINGS && !done; how++)
        done = p.nin && p.nout ? spread(s, &p, (enum pairing)how, check) : 1;
    free(p.in);
    return done < 0 ? done : done ? 0 : bny_split_exact(s, w);
}

static int split_start(struct bny_split *s, const int64_t *cap, int reversed)
{
    const struct bny_graph *g = s->g;
    int e = bny_flow_init(&s->flow, g->nnodes + 2, 4 * g->nlinks + 2 * g->nnodes);

    s->feed = malloc((size_t)g->nnodes * sizeof *s->feed);
    s->drain = malloc((size_t)g->nnodes * sizeof *s->drain);
    if (!s->feed || !s->drain)
        e = split_no_memory(g);
    for (int v = 0; v < g->nnodes && !e; v++) {
        s->feed[v] = bny_flow_arc(&s->flow, g->nnodes, v, bny_split_feed(s, v));
        s->drain[v] = bny_flow_arc(&s->flow, v, g->nnodes + 1, 0);
        s->total += bny_split_feed(s, v);
    }
    for (int l = 0; l < g->nlinks && !e; l++) {
        const struct bny_link *k = &g->links[l];
        struct bny_pack_edge one = { .nlinks = 1, .links = &l };

        if (!cap[l])
            continue;
        e = bny_split_edge(s, reversed ? k->to : k->from, reversed ? k->from : k->to, cap[l],
                           &one, NULL);
        e = e < 0 ? e : 0;
    }
    return e;
}

static void split_finish(struct bny_split *s)
{
    for (int i = 0; i < s->nedges; i++)
        free(s->edges[i].links);
    free(s->edges);
    free(s->arc);
    free(s->feed);
    free(s->drain);
    bny_flow_free(&s->flow);
}

/* check 0: spreads at every switch and checks the cuts once at the end; 1 if they hold. check
 * 1: at each switch. */
static int attempt(struct bny_split *s, const int64_t *cap, int reversed, int check)
{
    const struct bny_graph *g = s->g;
    int e = split_start(s, cap, reversed);

    if (!e && check && !feasible(s))
        e = bny_fail(BANYAN_ENOTSUP, "%s has not the capacity for these trees", g->name);
    for (int v = 0; v < g->nnodes && !e; v++)
        if (g->nodes[v].rank < 0)
            e = remove_switch(s, v, check);
    return e ? e : check ? 1 : feasible(s);
}

int bny_split(struct bny_pack *p, const struct bny_graph *g, const int64_t *cap, int reversed,
              int quick)
{
    struct bny_split s = { .g = g, .need = p->need };
    int e = attempt(&s, cap, reversed, 0);

    if (quick && !e)
        e = -BANYAN_ENOTSUP;
    if (!quick && (!e || e == -BANYAN_ENOTSUP)) {
        split_finish(&s);
        s = (struct bny_split){ .g = g, .need = p->need };
        e = attempt(&s, cap, reversed, 1);
    }
    e = e > 0 ? 0 : e;
    for (int i = 0; i < s.nedges && !e; i++)
        if (s.edges[i].cap) {
            e = bny_pack_edge(p, g->nodes[s.edges[i].from].rank, g->nodes[s.edges[i].to].rank,
                              s.edges[i].cap, s.edges[i].nlinks, s.edges[i].links);
            e = e < 0 ? e : 0;
        }
    split_finish(&s);
    return e;
}
