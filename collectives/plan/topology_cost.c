/* SPDX-License-Identifier: BSD-3-Clause */
/* The costs of schedules on the graph that was given (topology.h): loads of links, time to fill
 * pipelines, chunks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "collectives/plan/program_cache.h"
#include "collectives/plan/shared.h"
#include "collectives/plan/topology_made.h"
#include "topo/route.h"
#include "topo/simulate.h"

#define ROUNDS_MAX 32 /* of a direct program whose cost is looked at */
/* Payload of what a link carries: headers of TCP, IP and Ethernet in 1514 bytes. */
#define WIRE_SHARE 0.955
/* Work of both ends of a message. */
#define MESSAGE_S (BNY_SIM_TCP_SEND_S + BNY_SIM_TCP_RECV_S)

static int height(const struct bny_tree *tree, const int *parent, int n, int *depth)
{
    int most = 0;

    memset(depth, 0xff, (size_t)n * sizeof *depth);
    depth[tree->root] = 0;
    for (int v = 0; v < n; v++) {
        int at = v, d = 0;

        while (depth[at] < 0) {
            at = parent[at];
            d++;
        }
        d += depth[at];
        most = d > most ? d : most;
        for (at = v; depth[at] < 0; at = parent[at])
            depth[at] = d--;
    }
    return most;
}

static void add_load(const struct bny_graph *g, const struct bny_route *r, double share,
                     double *load, double *slowest)
{
    for (int i = 0; i < r->nlinks; i++) {
        double cap = (double)g->links[r->links[i]].cap;

        load[r->links[i]] += share;
        if (*slowest <= 0 || cap < *slowest)
            *slowest = cap;
    }
}

/* The most that one rank sends to, both ways. seen [nranks]: scratch. */
static int most_peers(const struct bny_forest *f, int *seen)
{
    int most = 0;

    memset(seen, 0xff, (size_t)f->nranks * sizeof *seen);
    for (int v = 0; v < f->nranks; v++) {
        int peers = 0;

        for (int t = 0; t < f->ntrees; t++) {
            int to = f->trees[t].parent[v];

            if (to >= 0 && seen[to] != v) {
                seen[to] = v;
                peers++;
            }
        }
        most = peers > most ? peers : most;
    }
    return most;
}

/* ---- what messages cost their ranks ---- */

/* Counts what it holds; keys are not 0. */
struct key_set {
    uint64_t *keys;
    size_t cap;
};

/* 1: it was not there. */
static int key_add(struct key_set *set, uint64_t key)
{
    size_t i = (key * UINT64_C(0x9e3779b97f4a7c15) >> 24) & (set->cap - 1);

    while (set->keys[i] && set->keys[i] != key)
        i = (i + 1) & (set->cap - 1);
    if (set->keys[i])
        return 0;
    set->keys[i] = key;
    return 1;
}

struct handled { /* by a rank */
    double share;
    int messages, joined;
};

static void topology_cost_handle(struct handled *of, struct key_set *set, uint64_t step,
                                 int from, int to, double share)
{
    int is_new = key_add(set, (step << 48 | (uint64_t)from << 24 | (uint64_t)to) + 1);

    of[from].share += share;
    of[to].share += share;
    of[from].messages++;
    of[to].messages++;
    of[from].joined += is_new;
    of[to].joined += is_new;
}

static int set_traffic(struct bny_topology_cost *k, const struct bny_forest *f, int both)
{
    struct handled *of = calloc((size_t)f->nranks, sizeof *of);
    struct key_set set = { .cap = 64 };
    size_t edges = (size_t)f->ntrees * (size_t)f->nranks;

    while (set.cap < 2 * edges)
        set.cap *= 2;
    set.keys = calloc(set.cap, sizeof *set.keys);
    for (int t = 0; of && set.keys && t < f->ntrees; t++) {
        const struct bny_tree *tree = &f->trees[t];

        for (int v = 0; v < f->nranks; v++)
            if (tree->parent[v] >= 0)
                topology_cost_handle(of, &set, tree->step[v], v, tree->parent[v],
                                     (double)tree->weight_num / tree->weight_den);
    }
    for (int v = 0; of && set.keys && v < f->nranks; v++) { /* the way back is as long */
        k->traffic = fmax(k->traffic, (both ? 2 : 1) * of[v].share);
        k->messages = of[v].messages > k->messages ? of[v].messages : k->messages;
        k->joined = of[v].joined > k->joined ? of[v].joined : k->joined;
    }
    k->messages *= both ? 2 : 1;
    k->joined *= both ? 2 : 1;
    free(set.keys);
    free(of);
    return set.keys && of ? 0 : bny_fail(BANYAN_ENOMEM, "no memory to count messages");
}

/* ---- time steps ---- */

#define STEP_LOADS_MAX (1u << 24) /* 128 MiB, for as long as it takes */

/* Seconds for each byte of the vector: of each time step what its fullest link takes. The way
 * back is as long. Of too many steps: as if they did not wait for each other. */
static int set_by_steps(struct bny_topology_cost *k, const struct bny_forest *f,
                        const struct bny_graph *g, int both)
{
    size_t nlinks = (size_t)g->nlinks, cells = f->nsteps * nlinks;
    double *load = cells <= STEP_LOADS_MAX ? calloc(cells + 1, sizeof *load) : NULL,
           ignored = 0;

    k->by_steps = k->per_byte;
    if (cells > STEP_LOADS_MAX)
        return 0;
    if (!load)
        return bny_fail(BANYAN_ENOMEM, "no memory for the loads of links");
    for (int t = 0; t < f->ntrees; t++) {
        const struct bny_tree *tree = &f->trees[t];
        double share = (double)tree->weight_num / tree->weight_den;

        for (int v = 0; v < f->nranks; v++)
            if (tree->parent[v] >= 0)
                add_load(g, &tree->up[v], share, load + tree->step[v] * nlinks, &ignored);
    }
    k->by_steps = 0;
    for (size_t s = 0; s < f->nsteps; s++) {
        double most = 0;

        for (size_t l = 0; l < nlinks; l++)
            most = fmax(most, load[s * nlinks + l] / (double)g->links[l].cap);
        k->by_steps += (both ? 2 : 1) * most / g->unit_Bps / WIRE_SHARE;
    }
    free(load);
    return 0;
}

int bny_topology_set_cost(struct bny_topology_cost *k, struct bny_forest *f,
                          const struct bny_graph *g, enum bny_forest_use use)
{
    int both = use == BNY_FOREST_ALLREDUCE, up = 0, down = 0;
    double *load = calloc(2 * (size_t)g->nlinks + 1, sizeof *load), slowest = 0, most = 0,
           largest = 0;
    double *other = load ? load + (both ? 0 : g->nlinks)
                         : NULL; /* phases meet on the links of an allreduce */
    int *depth = calloc((size_t)f->nranks, sizeof *depth);
    int e = load && depth ? bny_forest_route(f, g)
                          : bny_fail(BANYAN_ENOMEM, "no memory for the loads of links");

    for (int t = 0; t < f->ntrees && !e; t++) {
        const struct bny_tree *tree = &f->trees[t];
        double share = (double)tree->weight_num / tree->weight_den;
        int h = height(tree, tree->parent, f->nranks, depth);
        int d = tree->down_parent ? height(tree, tree->down_parent, f->nranks, depth) : h;

        largest = share > largest ? share : largest;
        up = h > up ? h : up;
        down = d > down ? d : down;
        for (int v = 0; v < f->nranks; v++) {
            add_load(g, &tree->up[v], share, load, &slowest);
            add_load(g, &tree->down[v], share, other, &slowest);
        }
    }
    *k = (struct bny_topology_cost){ .largest = largest,
                                     .link_Bps = slowest * g->unit_Bps,
                                     .hops = both        ? up + down
                                             : up > down ? up
                                                         : down,
                                     .steps = (int)f->nsteps * (both ? 2 : 1) };
    for (int l = 0; l < g->nlinks && !e; l++) {
        double carried = load[l] > other[l] ? load[l] : other[l];
        double s = carried / ((double)g->links[l].cap * g->unit_Bps) / WIRE_SHARE;

        k->per_byte = s > k->per_byte ? s : k->per_byte;
        most = carried > most ? carried : most;
    }
    k->carried = most;
    k->peers = e ? 0 : most_peers(f, depth);
    e = e ? e : set_traffic(k, f, both);
    e = e ? e : set_by_steps(k, f, g, both);
    free(load);
    free(depth);
    return e;
}

size_t bny_topology_chunk(const struct bny_topology_cost *k, double bytes, double alpha_s)
{
    /* Time of chunk size c: carried * bytes / c messages of alpha, and hops - 1 chunks of c /
     * rate to fill. */
    double c =
        k->hops > 1 ? sqrt(k->carried * bytes * alpha_s * k->link_Bps / (k->hops - 1)) : 262144;
    double part = k->largest * bytes;

    c = c < 4096 ? 4096 : c > 262144 ? 262144 : c;
    if (part > c) { /* into equal ones: a rest costs as much as a whole one */
        size_t even = (size_t)ceil(part / round(part / c));

        return (even + 127) & ~(size_t)63; /* parts are of whole elements */
    }
    return (size_t)c & ~(size_t)1023;
}

int bny_topology_joins(const struct bny_topology_cost *k, double bytes, size_t chunk)
{
    return k->largest * bytes <= (double)chunk;
}

double bny_topology_seconds(const struct bny_topology_cost *k, double bytes, size_t chunk,
                            double alpha_s, double scale)
{
    double c = fmax(fmin((double)chunk, k->largest * bytes), 1);
    double messages = fmax(bny_topology_joins(k, bytes, chunk) ? k->joined : k->messages,
                           k->traffic * bytes / (double)chunk);
    double work =
        scale * (messages * MESSAGE_S / 2 + k->traffic * bytes * BNY_SIM_TCP_COPY_S_PER_BYTE);
    int in_turn = bny_topology_joins(k, bytes, chunk) && k->steps <= k->hops;
    double wire = bytes * (in_turn ? k->by_steps : k->per_byte);

    /* Where each step waits for the one before it, links stand idle while ranks work. */
    return (in_turn ? wire + work : fmax(wire, work)) +
           (k->hops > 1 ? k->hops - 1 : 0) * c / k->link_Bps +
           k->hops * (alpha_s + scale * MESSAGE_S);
}

#define CROWD_RANKS 256 /* with more of them */
#define CROWD_PEERS 64

int bny_topology_crowded(const struct bny_scope *s, enum bny_collective coll,
                         const char *schedule, int root)
{
    struct bny_topology_cost k;

    return s->n > CROWD_RANKS && bny_topology_cost(&k, s, coll, schedule, root) == 0 &&
           k.peers > CROWD_PEERS;
}

/* ---- where ways meet ---- */

#define SIMULATED_RANKS_MAX 64
#define SIMULATED_BYTES_MIN (64u << 10)
#define SIMULATED_MESSAGES  20000 /* about; longer chunks where there are more */
#define ECMP_SEED           1     /* any: nobody knows the switches' own */

static unsigned phases_of(enum bny_collective coll)
{
    switch (coll) {
    case BNY_REDUCE:
    case BNY_REDUCE_SCATTER: return BNY_SIM_REDUCE;
    case BNY_ALLREDUCE: return BNY_SIM_REDUCE | BNY_SIM_SPREAD;
    default: return BNY_SIM_SPREAD;
    }
}

/* -1: the simulator cannot say; 0: for want of memory. */
static double simulate(const struct bny_made *m, const struct bny_graph *g,
                       enum bny_collective coll, double bytes, size_t chunk, double alpha_s,
                       double scale)
{
    struct bny_grid grid;
    struct bny_sim_opts o = { .bytes = bytes,
                              .alpha_s = alpha_s,
                              .send_s = scale * BNY_SIM_TCP_SEND_S,
                              .recv_s = scale * BNY_SIM_TCP_RECV_S,
                              .copy_s_per_byte = scale * BNY_SIM_TCP_COPY_S_PER_BYTE,
                              .header = 1 / WIRE_SHARE,
                              .separate = !bny_topology_joins(&m->cost, bytes, chunk),
                              .order = BNY_SIM_FIFO,
                              .routing =
                                  bny_grid_of(&grid, g) ? BNY_ROUTE_DIMENSIONS : BNY_ROUTE_ECMP,
                              .seed = ECMP_SEED };
    double edges = 2.0 * m->forest->ntrees * m->forest->nranks,
           chunks = ceil(m->cost.largest * bytes / (double)(chunk ? chunk : 1));
    struct bny_sim_result r;
    int rc;

    chunks = fmin(chunks, SIMULATED_MESSAGES / edges);
    o.chunks = chunks < 1 ? 1 : (int)chunks;
    rc = bny_sim_forest(&r, g, m->forest, phases_of(coll), &o);
    if (rc)
        return rc == -BANYAN_ENOMEM ? 0 : -1;
    bny_sim_result_free(&r);
    return r.seconds;
}

int bny_topology_simulates(const struct bny_scope *s, double bytes)
{
    const struct bny_topology *t = bny_topology_of(s);

    return t && t->graph && !t->grouped && bytes >= SIMULATED_BYTES_MIN &&
           bytes <= ldexp(1, BNY_SIMULATED_MAX - 1) && t->graph->nranks <= SIMULATED_RANKS_MAX;
}

double bny_topology_simulated(const struct bny_scope *s, enum bny_collective coll,
                              const char *schedule, int root, double bytes, size_t chunk,
                              double alpha_s, double scale)
{
    struct bny_topology *t = bny_topology_of(s);
    int k = (int)ceil(log2(bytes));
    struct bny_made *m;

    if (!bny_topology_simulates(s, bytes) ||
        bny_topology_make(&m, s, schedule, coll, root) != 0 || !m->forest ||
        m->forest->nranks != t->graph->nranks)
        return 0;
    if (m->simulated[k] == 0) {
        struct bny_simulated q = { phases_of(coll), ldexp(1, k), (double)chunk, alpha_s, 0 };

        if (!bny_shared_simulated(t, m, &q)) {
            q.seconds = simulate(m, t->graph, coll, ldexp(1, k), chunk, alpha_s, scale);
            if (q.seconds != 0)
                bny_shared_say(t, m, &q);
        }
        m->simulated[k] = q.seconds;
    }
    if (m->simulated[k] == 0)
        bny_plans_starve(s);
    return m->simulated[k] > 0 ? m->simulated[k] * ldexp(bytes, -k) : 0;
}

double bny_topology_beta(const struct bny_scope *s)
{
    const struct bny_topology *t = bny_topology_of(s);
    const struct bny_graph *g = t ? t->graph : NULL;
    double least = 0;

    for (int r = 0; g && r < g->nranks; r++) {
        double port = 0;

        for (int i = g->out_first[g->rank_node[r]]; i < g->out_first[g->rank_node[r] + 1]; i++)
            port += (double)g->links[g->out[i]].cap;
        least = least > 0 && least < port ? least : port;
    }
    return least > 0 ? 1 / (least * g->unit_Bps * WIRE_SHARE) : 0;
}

/* Adds what the sends of one rank load on the links in round after round: its k-th send belongs
 * to round k. */
static int add_rounds(double *load, int *nrounds, const struct bny_program *p,
                      const struct bny_graph *g, struct bny_router *router)
{
    struct bny_ways ways = { 0 };
    int round = 0, e = 0;

    for (uint32_t i = 0; i < p->nsteps && !e; i++) {
        const struct bny_step *s = &p->steps[i];
        double share = 0;

        if ((s->kind != BNY_SEND && s->kind != BNY_FORWARD) || round == ROUNDS_MAX)
            continue;
        for (uint32_t b = s->block; b < s->block + s->nblocks; b++)
            share +=
                p->weight_num ? (double)p->weight_num[b] / p->weight_den[b] : 1.0 / p->nblocks;
        e = bny_router_ways(router, p->rank, s->peer, &ways);
        for (int w = 0; w < ways.nparts && !e; w++)
            for (int l = ways.first[w]; l < ways.first[w + 1]; l++)
                load[round * g->nlinks + ways.links[l]] += share * ways.share[w];
        round++;
    }
    *nrounds = round > *nrounds ? round : *nrounds;
    free(ways.links);
    return e;
}

/* Fills d's steps and per_byte. */
static int direct_rounds(struct bny_topology_cost *d, const struct bny_direct_ops *ops,
                         enum bny_collective coll, const struct bny_graph *g)
{
    double *load = calloc((size_t)ROUNDS_MAX * (size_t)g->nlinks + 1, sizeof *load);
    struct bny_router *router = bny_router_create(g, BNY_ROUTE_AUTO, 0);
    int e = load && router ? 0 : -BANYAN_ENOMEM;

    for (int r = 0; r < g->nranks && !e; r++) {
        struct bny_program *p;

        e = ops->build(&p, coll, g->nranks, r, -1);
        if (!e) {
            e = add_rounds(load, &d->steps, p, g, router);
            bny_program_free(p);
        }
    }
    for (int k = 0; k < d->steps && !e; k++) {
        double most = 0;

        for (int l = 0; l < g->nlinks; l++)
            most = fmax(most, load[k * g->nlinks + l] /
                                  ((double)g->links[l].cap * g->unit_Bps) / WIRE_SHARE);
        d->per_byte += most;
    }
    free(load);
    bny_router_destroy(router);
    return e;
}

double bny_topology_direct_seconds(const struct bny_scope *s, enum bny_collective coll,
                                   const struct bny_direct_ops *ops, double bytes,
                                   double alpha_s)
{
    struct bny_topology *t = bny_topology_of(s);
    struct bny_direct_cost *d;

    if (!t || !t->graph || t->grouped || coll != BNY_ALLREDUCE ||
        t->graph->nranks > BNY_AUTO_RANKS_MAX)
        return 0;
    for (d = t->directs; d < t->directs + BNY_DIRECTS_MAX && d->ops && d->ops != ops; d++)
        ;
    if (d == t->directs + BNY_DIRECTS_MAX)
        return 0;
    if (!d->ops) {
        struct bny_made m = { .root = -1 }; /* under a use that no forest has */

        snprintf(m.schedule, sizeof m.schedule, "%s", ops->name);
        if (!bny_shared_find(t, &m)) {
            m.rc = direct_rounds(&m.cost, ops, coll, t->graph);
            if (m.rc == -BANYAN_ENOMEM) {
                bny_plans_starve(s);
                return 0;
            }
            bny_shared_tell(t, &m, 0);
        }
        *d = (struct bny_direct_cost){ ops, m.rc, m.cost.steps, m.cost.per_byte };
    }
    return d->rc ? 0 : d->rounds * alpha_s + d->per_byte * bytes;
}

int bny_topology_cost(struct bny_topology_cost *out, const struct bny_scope *s,
                      enum bny_collective coll, const char *schedule, int root)
{
    struct bny_topology *t = bny_topology_of(s);
    struct bny_made *m;
    int rc;

    if (!t || !t->graph)
        return -BANYAN_ENOTSUP;
    if (t->grouped && bny_builder_find(schedule)) /* it knows nothing of hosts */
        return -BANYAN_ENOTSUP;
    rc = bny_topology_make(&m, s, schedule, coll, root);
    if (rc == 0)
        *out = m->cost;
    return rc;
}
