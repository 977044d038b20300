/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_topo simulate, compare: what a schedule, or each of several, takes on a graph
 * (topo/simulate.h), beside what the cut bound allows. The forest's own routes are taken, or
 * for schedules that know no graph the shortest ones; links serve earlier steps first. --tcp:
 * as sockets have it, and banyan_sim: switches choose the way of each pair, by hash where there
 * are several, links serve what comes first, and each 1448 bytes have the headers of a frame.
 */
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

static int sim_opts(struct bny_sim_opts *s, const struct bny_graph *g, struct bny_forest *f,
                    const struct topo_opts *o)
{
    *s = (struct bny_sim_opts){ .bytes = (double)o->bytes,
                                .lockstep = o->lockstep,
                                .chunks = chunks_of(f, o, o->chunk ? o->chunk : CHUNK),
                                .slots = o->slots,
                                .order = BNY_SIM_PRIORITY };
    return o->tcp ? as_tcp(s, g, f, o) : 0;
}

static int simulate(struct bny_sim_result *r, const struct bny_graph *g, struct bny_forest *f,
                    const struct topo_opts *o)
{
    struct bny_sim_opts s;
    int e = sim_opts(&s, g, f, o);

    return e ? e : bny_sim_forest(r, g, f, phases_of(o), &s);
}

/* ---- the time-line ---- */

struct message {
    double began_s, ended_s;
    uint32_t id;
    int from, track;
};

static int by_sender(const void *a, const void *b)
{
    const struct message *x = a, *y = b;

    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return (x->began_s > y->began_s) - (x->began_s < y->began_s);
}

/* Messages of a rank at the same time get tracks of their own. */
static void set_tracks(struct message *m, uint32_t n, double *ends)
{
    int tracks = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (i == 0 || m[i].from != m[i - 1].from)
            tracks = 0;
        while (m[i].track < tracks && ends[m[i].track] > m[i].began_s + 1e-12)
            m[i].track++;
        tracks += m[i].track == tracks;
        ends[m[i].track] = m[i].ended_s;
    }
}

static void put_messages(FILE *to, const struct bny_sim_job *job, const struct message *m,
                         uint32_t n)
{
    fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", to);
    for (int r = 0; r < job->nranks; r++)
        fprintf(to,
                "%s\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":"
                "\"rank %d\"}}",
                r ? "," : "", r, r);
    for (uint32_t i = 0; i < n; i++) {
        const struct bny_transfer *t = &job->transfers[m[i].id];

        fprintf(
            to,
            ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"to %d, step %u\",\"ts\":%.3f,"
            "\"dur\":%.3f,\"args\":{\"bytes\":%.0f,\"adds\":%d,\"channel\":%d}}",
            t->from, m[i].track, t->to, t->step, 1e6 * m[i].began_s,
            1e6 * (m[i].ended_s - m[i].began_s), t->bytes, t->adds, t->channel);
    }
    fputs("\n]}\n", to);
}

/* --trace: each message from its first chunk to its last. */
static int write_trace(const struct bny_graph *g, struct bny_forest *f,
                       const struct topo_opts *o)
{
    struct topo_opts out = *o;
    struct bny_sim_result r = { 0 };
    struct message *m = NULL;
    struct bny_sim_opts s;
    struct bny_sim_job job;
    double *ends = NULL;
    FILE *to = NULL;
    int e = sim_opts(&s, g, f, o);

    s.spans = 1;
    bny_sim_job_init(&job, g->nranks);
    e = e ? e : bny_sim_job_forest(&job, f, phases_of(o), &s);
    e = e ? e : bny_sim_run(&r, g, &job, &s);
    if (!e) {
        uint32_t n = 0;

        m = calloc((size_t)job.n + 1, sizeof *m);
        ends = calloc((size_t)job.n + 1, sizeof *ends);
        e = m && ends ? 0 : bny_fail(BANYAN_ENOMEM, "no memory for a trace");
        for (uint32_t i = 0; !e && i < job.n; i++)
            if (job.transfers[i].from != job.transfers[i].to)
                m[n++] = (struct message){ r.spans[i].began_s, r.spans[i].ended_s, i,
                                           job.transfers[i].from, 0 };
        out.output = o->predict.trace;
        if (!e && (to = topo_open(&out))) {
            qsort(m, n, sizeof *m, by_sender);
            set_tracks(m, n, ends);
            put_messages(to, &job, m, n);
        }
    }
    e = e ? topo_failed(NULL) : !to || topo_close(to, &out);
    free(m);
    free(ends);
    bny_sim_result_free(&r);
    bny_sim_job_free(&job);
    return e;
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

/* The i-th schedule by name; NULL: there are no more. */
static const char *schedule_at(size_t i)
{
    static const char *const core[] = { "ring",     "halving", "bine", "double_binary_tree",
                                        "binomial", "star" };
    size_t ngraph = 0;

    while (bny_graph_builders[ngraph])
        ngraph++;
    return i < ngraph                                ? bny_graph_builders[i]->name
           : i - ngraph < sizeof core / sizeof *core ? core[i - ngraph]
                                                     : NULL;
}

/* auto: the builder whose forest is predicted to take least; those that have none for this
 * graph do not count. */
static int build_best(struct bny_forest **best, const struct bny_graph *g,
                      const struct topo_opts *o)
{
    double least = INFINITY;
    int e = 0;

    for (size_t i = 0; e != -BANYAN_ENOMEM && schedule_at(i); i++) {
        struct bny_forest *f = NULL;
        struct bny_sim_result r = { 0 };

        e = build_named(&f, g, schedule_at(i), o);
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
    if (to && !e && o->predict.trace)
        e = write_trace(g, f, o);
    bny_sim_result_free(&r);
    bny_forest_free(f);
    bny_graph_free(g);
    return e || !to;
}

const struct topo_command topo_simulate = {
    .name = "simulate",
    .options = "tscrbkHCSnLNoJT",
    .usage = "predicts the time of a schedule; --trace FILE has its messages",
    .run = topo_simulate_run,
};

/* ---- compare ---- */

struct compared {
    const char *name;
    struct bny_sim_result r;
    int trees;
};

static int by_time(const void *a, const void *b)
{
    const struct compared *x = a, *y = b;

    return (x->r.seconds > y->r.seconds) - (x->r.seconds < y->r.seconds);
}

static void print_compared(FILE *to, const struct bny_graph *g, const struct compared *row,
                           size_t n, const struct topo_opts *o)
{
    fprintf(to, "%s, %d ranks, %llu bytes\n", g->name, g->nranks, (unsigned long long)o->bytes);
    fprintf(to, "%-20s %12s %8s %12s %13s %6s %9s\n", "schedule", "time [us]", "GB/s",
            "above bound", "busiest link", "trees", "messages");
    for (size_t i = 0; i < n; i++) {
        const struct bny_sim_result *r = &row[i].r;
        char gap[32] = "-";

        if (r->bound_s > 0)
            snprintf(gap, sizeof gap, "%.1f %%", 100 * (r->seconds / r->bound_s - 1));
        fprintf(to, "%-20s %12.6g %8.4g %12s %11.1f %% %6d %9llu\n", row[i].name,
                1e6 * r->seconds, r->seconds > 0 ? 1e-9 * (double)o->bytes / r->seconds : 0,
                gap, 100 * r->utilisation, row[i].trees, (unsigned long long)r->messages);
    }
}

/* One schedule's row. 0, 1: it has no forest for this (said, where it was asked for), or -1: it
 * failed (said). */
static int compare_one(struct compared *row, FILE *to, const struct bny_graph *g,
                       const struct topo_opts *o)
{
    struct bny_forest *f = NULL;
    int e = build_named(&f, g, row->name, o);

    if (e == -BANYAN_ENOTSUP && !o->nargs)
        return 1;
    if (!e)
        e = simulate(&row->r, g, f, o);
    if (!e)
        e = right_bound(&row->r, g, o);
    if (e) {
        bny_forest_free(f);
        topo_failed(row->name);
        return -1;
    }
    row->trees = f->ntrees;
    if (o->json)
        print_row(to, g, f, &row->r, o);
    bny_sim_result_free(&row->r); /* the numbers stay */
    bny_forest_free(f);
    return 0;
}

static int topo_compare_run(const struct topo_opts *o)
{
    struct compared *rows;
    struct bny_graph *g;
    size_t n = 0, most = 64 + (size_t)o->nargs;
    FILE *to;
    int e;

    if (topo_graph(&g, o))
        return topo_failed(NULL);
    e = topo_root_missing(o, g);
    rows = calloc(most, sizeof *rows);
    to = e || !rows ? NULL : topo_open(o);
    for (size_t i = 0; to && e >= 0 && n < most; i++) {
        rows[n].name = !o->nargs ? schedule_at(i) : i < (size_t)o->nargs ? o->args[i] : NULL;
        if (!rows[n].name)
            break;
        e = compare_one(&rows[n], to, g, o);
        n += e == 0;
    }
    if (to && e >= 0 && !o->json) {
        qsort(rows, n, sizeof *rows, by_time);
        print_compared(to, g, rows, n, o);
    }
    if (to)
        e = topo_close(to, o) || e < 0;
    free(rows);
    bny_graph_free(g);
    return to ? e : e ? e : 1;
}

const struct topo_command topo_compare = {
    .name = "compare",
    .options = "tcrbkHCSnLNoJ",
    .usage = "[SCHEDULE...]: predicts the times of these, or of all, in one table",
    .run = topo_compare_run,
};
