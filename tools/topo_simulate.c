/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_topo simulate: what a schedule takes on a graph (topo/simulate.h), beside what the cut
 * bound allows. The forest's own routes are taken, or for schedules that know no graph the
 * shortest ones; links serve earlier steps first. --tcp: as sockets have it, and banyan_sim:
 * switches choose the way of each pair, by hash where there are several, links serve what comes
 * first, and each 1448 bytes have the headers of a frame. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "banyan/banyan.h"
#include "collectives/plan/cost.h"
#include "collectives/plan/topology_made.h"
#include "tools/topo.h"
#include "topo/bound.h"
#include "topo/route.h"
#include "topo/simulate.h"

#define CHUNK      (64u << 10)
#define CHUNKS_MAX 4000000         /* in one simulation: some seconds */
#define TCP_HEADER (1526.0 / 1448) /* of Ethernet, IPv4 and TCP, with a preamble and a gap */

static unsigned phases_of(const struct topo_opts *o)
{
    switch (o->collective) {
    case TOPO_REDUCE_SCATTER:
    case TOPO_REDUCE: return BNY_SIM_REDUCE;
    case TOPO_ALLGATHER:
    case TOPO_BROADCAST: return BNY_SIM_SPREAD;
    default: return BNY_SIM_REDUCE | BNY_SIM_SPREAD;
    }
}

/* A forest with routes and, where numbers allow, a certificate. */
static int build_named(struct bny_forest **f, const struct bny_graph *g, const char *name,
                       const struct topo_opts *o)
{
    struct topo_opts named = *o;
    int e;

    named.schedule = name;
    e = topo_forest(f, g, &named);
    if (!e && !(*f)->claim.bound.den)
        e = bny_forest_certify(*f, g, o->use, o->root, 0);
    if (e == -BANYAN_ENOTSUP && *f)
        e = 0;
    if (e) {
        bny_forest_free(*f);
        *f = NULL;
    }
    return e;
}

/* The tree with most data is cut in chunks of about so many bytes, and the others in as many.
 */
static int chunks_of(const struct bny_forest *f, const struct topo_opts *o, uint64_t chunk)
{
    double most = 0, chunks, edges = 2.0 * f->ntrees * f->nranks;

    for (int t = 0; t < f->ntrees; t++)
        most = fmax(most, (double)f->trees[t].weight_num / f->trees[t].weight_den);
    chunks = ceil(most * (double)o->bytes / (double)(chunk ? chunk : 1));
    chunks = fmin(chunks, CHUNKS_MAX / edges);
    return o->lockstep || chunks < 1 ? 1 : (int)chunks;
}

/* As the library sends over sockets, and in its chunks where none are asked for. */
static int as_tcp(struct bny_sim_opts *s, const struct bny_graph *g, struct bny_forest *f,
                  const struct topo_opts *o)
{
    uint64_t chunk = o->chunk;
    struct bny_topology_cost k;
    struct bny_grid grid;
    int e = bny_topology_set_cost(&k, f, g, o->use);

    if (e)
        return e;
    if (!chunk)
        chunk = bny_topology_chunk(&k, (double)o->bytes, BNY_NETWORK_ALPHA_S);
    s->chunks = chunks_of(f, o, chunk);
    s->separate = !bny_topology_joins(&k, (double)o->bytes, chunk);
    s->joined = (double)chunk;
    s->slots = 0;
    s->order = BNY_SIM_FIFO;
    s->routing = bny_grid_of(&grid, g) ? BNY_ROUTE_DIMENSIONS : BNY_ROUTE_ECMP;
    s->seed = 1; /* banyan_sim's */
    s->header = TCP_HEADER;
    s->alpha_s = BNY_SIM_TCP_ALPHA_S;
    s->send_s = BNY_SIM_TCP_SEND_S;
    s->recv_s = BNY_SIM_TCP_RECV_S;
    s->copy_s_per_byte = BNY_SIM_TCP_COPY_S_PER_BYTE;
    return 0;
}

static int simulate(struct bny_sim_result *r, const struct bny_graph *g, struct bny_forest *f,
                    const struct topo_opts *o)
{
    struct bny_sim_opts s = { .bytes = (double)o->bytes,
                              .lockstep = o->lockstep,
                              .chunks = chunks_of(f, o, o->chunk ? o->chunk : CHUNK),
                              .slots = o->slots,
                              .order = BNY_SIM_PRIORITY };
    int e = o->tcp ? as_tcp(&s, g, f, o) : 0;

    return e ? e : bny_sim_forest(r, g, f, phases_of(o), &s);
}

/* A certificate for reduce-scatter followed by allgather does not bind an allreduce whose
 * phases overlap: where that shows, the bound of any allreduce is taken. */
static int right_bound(struct bny_sim_result *r, const struct bny_graph *g,
                       const struct topo_opts *o)
{
    struct bny_bound b;
    int e;

    if (o->use != BNY_FOREST_ALLREDUCE || r->bound_s <= r->seconds)
        return 0;
    e = bny_bound_allreduce(&b, g);
    if (e)
        return e;
    r->bound_s = bny_ratio_value(b.value) * (double)o->bytes / g->unit_Bps;
    bny_bound_free(&b);
    return 0;
}

/* auto: the builder whose forest is predicted to take least; those that have none for this
 * graph do not count. */
static int build_best(struct bny_forest **best, const struct bny_graph *g,
                      const struct topo_opts *o)
{
    static const char *const core[] = { "ring",     "halving", "bine", "double_binary_tree",
                                        "binomial", "star" };
    double least = INFINITY;
    int e = 0;

    for (size_t i = 0; e != -BANYAN_ENOMEM; i++) {
        size_t ngraph = 0;
        struct bny_forest *f = NULL;
        struct bny_sim_result r = { 0 };

        while (bny_graph_builders[ngraph])
            ngraph++;
        if (i == ngraph + sizeof core / sizeof *core)
            break;
        e = build_named(&f, g, i < ngraph ? bny_graph_builders[i]->name : core[i - ngraph], o);
        if (!e)
            e = simulate(&r, g, f, o);
        if (!e && r.seconds < least) {
            struct bny_forest *worse = *best;

            least = r.seconds;
            *best = f;
            f = worse;
        }
        bny_sim_result_free(&r);
        bny_forest_free(f);
    }
    return *best ? 0 : e;
}

static void print_row(FILE *to, const struct bny_graph *g, const struct bny_forest *f,
                      const struct bny_sim_result *r, const struct topo_opts *o)
{
    double gap = r->bound_s > 0 ? r->seconds / r->bound_s - 1 : 0;

    if (o->json) {
        fprintf(to, "{\"topo\":");
        topo_json_text(to, g->name);
        fprintf(to, ",\"ranks\":%d,\"schedule\":", g->nranks);
        topo_json_text(to, f->name);
        fprintf(to, ",\"bytes\":%llu,\"time_us\":%.6g,\"algbw_GBps\":%.6g,\"bound_us\":",
                (unsigned long long)o->bytes, 1e6 * r->seconds,
                r->seconds > 0 ? 1e-9 * (double)o->bytes / r->seconds : 0);
        if (r->bound_s > 0)
            fprintf(to, "%.6g,\"gap\":%.4g", 1e6 * r->bound_s, gap);
        else
            fprintf(to, "null,\"gap\":null");
        fprintf(to,
                ",\"utilisation\":%.4g,\"max_queue\":%d,\"messages\":%llu,\"events\":%llu}\n",
                r->utilisation, r->max_queue, (unsigned long long)r->messages,
                (unsigned long long)r->events);
        return;
    }
    fprintf(to, "%s, %d ranks, %s, %llu bytes: %.6g us, %.6g GB/s", g->name, g->nranks, f->name,
            (unsigned long long)o->bytes, 1e6 * r->seconds,
            r->seconds > 0 ? 1e-9 * (double)o->bytes / r->seconds : 0);
    if (r->bound_s > 0)
        fprintf(to, "; the bound is %.6g us, %.2f %% less", 1e6 * r->bound_s,
                100 * (1 - r->bound_s / r->seconds));
    fprintf(to,
            "\nbusiest link %.1f %% used, at most %d chunks waiting at a link, %llu messages\n",
            100 * r->utilisation, r->max_queue, (unsigned long long)r->messages);
}

static int topo_simulate_run(const struct topo_opts *o)
{
    struct bny_sim_result r = { 0 };
    struct bny_forest *f = NULL;
    struct bny_graph *g;
    FILE *to = NULL;
    int e;

    if (o->nargs)
        return topo_failed_args(o);
    if (topo_graph(&g, o))
        return topo_failed(NULL);
    e = topo_root_missing(o, g);
    if (e) {
        bny_graph_free(g);
        return e;
    }
    if (!o->schedule || !strcmp(o->schedule, "auto"))
        e = build_best(&f, g, o);
    else
        e = build_named(&f, g, o->schedule, o);
    if (!e)
        e = simulate(&r, g, f, o);
    if (!e)
        e = right_bound(&r, g, o);
    if (e)
        e = topo_failed(NULL);
    else if ((to = topo_open(o)))
        print_row(to, g, f, &r, o);
    if (to)
        e = topo_close(to, o);
    bny_sim_result_free(&r);
    bny_forest_free(f);
    bny_graph_free(g);
    return e || !to;
}

const struct topo_command topo_simulate = {
    .name = "simulate",
    .options = "tscrbkHCSnLNoJ",
    .usage = "predicts the time of a schedule",
    .run = topo_simulate_run,
};
