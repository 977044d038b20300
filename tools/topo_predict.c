/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_topo predict: what a training step takes on so many ranks, for each codec, size of
 * buckets and schedule, from a profile of one rank (banyan_buckets_profile) and a network;
 * which setting is best, and what bounds it. The model is in tools/predict.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "base/err.h"
#include "base/param.h"
#include "collectives/plan/topology_made.h"
#include "tools/predict.h"
#include "tools/topo.h"
#include "topo/plan_file.h"

/* Fitted to steps that perf/predict.py measured on two CPUs of an AMD EPYC, sockets over shaped
 * veth links: what a message and a byte cost the CPU at either end. Messages that a call finds
 * are handled one after the other; most of those for a progress thread wake it up. */
#define MESSAGE_S      8e-6
#define MESSAGE_WAKE_S 24e-6
#define BYTE_S         0.3e-9
#define ALPHA_US       30 /* as the library counts for links that somebody named */
#define LIST_MAX       32
#define RANKS_MAX      512 /* each rank's program is made */

struct list {
    size_t n;
    char *text; /* what the items point into */
    const char *at[LIST_MAX];
};

struct wish {
    struct bny_profile profile;
    struct list codecs, schedules;
    size_t nranks, nrates, nbuckets;
    int ranks[LIST_MAX];
    double rates[LIST_MAX]; /* bytes a second; 0: as the graph has them */
    uint64_t buckets[LIST_MAX];
    uint64_t from;
    double alpha_s, burst_s;
    int cores, has_thread;
};

struct row {
    struct predict_setting setting;
    struct predicted p;
};

/* ---- what was asked for ---- */

static int topo_predict_wrong(const char *option, const char *wants, const char *got)
{
    fprintf(stderr, "banyan_topo: --%s wants %s, got %s\n", option, wants, got);
    return 2;
}

static int topo_predict_split(struct list *l, const char *text, const char *between,
                              const char *option)
{
    char *save = NULL;

    l->text = strdup(text);
    if (!l->text)
        return topo_failed("no memory");
    for (char *s = strtok_r(l->text, between, &save); s; s = strtok_r(NULL, between, &save)) {
        while (*s == ' ')
            s++;
        if (l->n == LIST_MAX)
            return topo_predict_wrong(option, "at most 32 of them", text);
        l->at[l->n++] = s;
    }
    return l->n ? 0 : topo_predict_wrong(option, "one or more", "nothing");
}

static int read_ranks(struct wish *w, const char *text)
{
    struct list l = { 0 };
    int e = topo_predict_split(&l, text, ",", "ranks");

    for (size_t i = 0; i < l.n && !e; i++) {
        char *end;
        long n = strtol(l.at[i], &end, 10);
        if (*end || end == l.at[i] || n < 1 || n > RANKS_MAX)
            e = topo_predict_wrong("ranks", "numbers from 1 to 512", text);
        w->ranks[w->nranks++] = (int)n;
    }
    free(l.text);
    return e;
}

/* "100Mbit", "1Gbit": bits a second, in powers of ten. */
static int read_rate(const char *text, double *Bps)
{
    static const struct {
        const char *name;
        double bits;
    } units[] = { { "kbit", 1e3 }, { "Mbit", 1e6 }, { "Gbit", 1e9 }, { "Tbit", 1e12 } };
    char *end;
    double v = strtod(text, &end);

    for (size_t i = 0; end != text && i < sizeof units / sizeof units[0]; i++)
        if (!strcmp(end, units[i].name) && v * units[i].bits >= 1e3 &&
            v * units[i].bits < 1e15) {
            *Bps = v * units[i].bits / 8;
            return 0;
        }
    return topo_predict_wrong("rate", "rates such as 100Mbit or 25Gbit", text);
}

static int read_rates(struct wish *w, const char *text)
{
    struct list l = { 0 };
    int e = topo_predict_split(&l, text, ",", "rate");

    for (size_t i = 0; i < l.n && !e; i++)
        e = read_rate(l.at[i], &w->rates[w->nrates++]);
    free(l.text);
    return e;
}

static int read_buckets(struct wish *w, const char *text)
{
    struct list l = { 0 };
    int e = topo_predict_split(&l, text, ",", "bucket");

    for (size_t i = 0; i < l.n && !e; i++)
        if (bny_parse_size(l.at[i], &w->buckets[w->nbuckets++]) || !w->buckets[i] ||
            w->buckets[i] > (uint64_t)1 << 40)
            e = topo_predict_wrong("bucket", "sizes such as 256K,1M", text);
    free(l.text);
    return e;
}

/* Before anything is predicted, so that a mistyped name costs no time. */
static int check_codecs(const struct wish *w)
{
    for (size_t i = 0; i < w->codecs.n; i++) {
        const struct bny_codec *c;
        if (strcmp(w->codecs.at[i], "profile") != 0 && bny_codec_parse(&c, w->codecs.at[i]))
            return topo_failed("--codec");
    }
    for (size_t i = 0; i < w->profile.n; i++) {
        const struct bny_codec *c;
        if (bny_codec_parse(&c, w->profile.tensors[i].codec))
            return topo_failed(w->profile.tensors[i].name);
    }
    for (size_t i = 0; i < w->schedules.n; i++)
        if (!bny_schedule_known(w->schedules.at[i])) {
            fprintf(stderr, "banyan_topo: --schedule %s is unknown; there are %s\n",
                    w->schedules.at[i], bny_schedule_list());
            return 2;
        }
    return 0;
}

static int read_profile(struct bny_profile *p, const struct topo_opts *o)
{
    char *text;
    size_t len = 0;
    int rc;

    if (o->nargs != 1) {
        fprintf(stderr, "banyan_topo: predict wants one PROFILE, the file that "
                        "banyan_buckets_profile() wrote; see banyan_topo --help\n");
        return 2;
    }
    text = bny_file_read(o->args[0], BNY_PROFILE_BYTES_MAX, &len);
    rc = text ? bny_profile_parse(p, text, len, o->args[0]) : -1;
    free(text);
    return rc ? topo_failed(NULL) : 0;
}

/* NULL: 0, or what *out has. */
static int read_time(const char *option, const char *wants, const char *text, double unit_s,
                     double *out)
{
    char *end;
    double v;

    if (!text)
        return 0;
    v = strtod(text, &end);
    if (end == text || *end || !(v >= 0 && v <= 1e9))
        return topo_predict_wrong(option, wants, text);
    *out = unit_s * v;
    return 0;
}

static int read_numbers(struct wish *w, const struct topo_predict_opts *o)
{
    int e = 0;

    w->alpha_s = 1e-6 * ALPHA_US;
    if (o->from && bny_parse_size(o->from, &w->from))
        e = topo_predict_wrong("from", "a number of elements such as 16K", o->from);
    if (!e)
        e = read_time("latency", "microseconds", o->latency, 1e-6, &w->alpha_s);
    if (!e)
        e = read_time("burst", "milliseconds", o->burst, 1e-3, &w->burst_s);
    if (!e && o->progress && strcmp(o->progress, "thread") != 0 &&
        strcmp(o->progress, "calls") != 0)
        e = topo_predict_wrong("progress", "thread or calls", o->progress);
    w->has_thread = o->progress ? !strcmp(o->progress, "thread") : !w->profile.progress;
    w->cores = o->cores;
    return e;
}

static int read_wish(struct wish *w, const struct topo_opts *o)
{
    const struct topo_predict_opts *p = &o->predict;
    int e = read_profile(&w->profile, o);

    w->from = 16384;
    if (!e)
        e = topo_predict_split(&w->codecs,
                               p->codecs ? p->codecs : "none;bf16;int8;int4;topk:delta=0.01",
                               ";", "codec");
    if (!e)
        e = topo_predict_split(&w->schedules, o->schedule ? o->schedule : "auto", ",",
                               "schedule");
    if (!e && p->ranks)
        e = read_ranks(w, p->ranks);
    if (!e && p->rates)
        e = read_rates(w, p->rates);
    if (!e && p->buckets)
        e = read_buckets(w, p->buckets);
    if (!e)
        e = read_numbers(w, p);
    if (!e)
        e = check_codecs(w);
    if (!e && !p->buckets) {
        static const uint64_t usual[] = { 128 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20 };
        w->nbuckets = sizeof usual / sizeof usual[0];
        memcpy(w->buckets, usual, sizeof usual);
    }
    if (!e && !o->topo && (!w->nranks || !w->nrates)) {
        fprintf(stderr, "banyan_topo: predict wants --ranks N and --rate RATE (ranks on one "
                        "switch), or --topo TOPO\n");
        e = 2;
    }
    return e;
}

/* ---- the network ---- */

/* So that the slowest link has this rate. */
static void set_rate(struct bny_graph *g, double Bps)
{
    int64_t least = g->nlinks ? g->links[0].cap : 1;

    for (int l = 1; l < g->nlinks; l++)
        least = g->links[l].cap < least ? g->links[l].cap : least;
    g->unit_Bps = Bps / (double)least;
}

/* Sets what BANYAN_TOPO would set, so that the library chooses the same schedules. */
static int load_topology(struct predict_world *x, const char *topo, double Bps)
{
    int n = x->graph->nranks, rc = bny_topology_load(&x->topology, topo, "auto");
    int *host_of = calloc((size_t)n, sizeof *host_of);

    if (rc == 0 && !host_of)
        rc = bny_fail(BANYAN_ENOMEM, "no memory for %d ranks", n);
    for (int r = 0; host_of && r < n; r++)
        host_of[r] = r;
    if (rc == 0)
        rc = bny_topology_settle(x->topology, host_of, n);
    if (rc == 0 && Bps > 0 && x->topology->graph)
        set_rate(x->topology->graph, Bps);
    free(host_of);
    return rc;
}

static int make_world(struct predict_world *x, const struct wish *w, const struct topo_opts *o,
                      int ranks, double Bps)
{
    double shared;
    char star[32];
    int rc;

    snprintf(star, sizeof star, "star:%d", ranks);
    *x = (struct predict_world){ .profile = &w->profile,
                                 .link_Bps = o->topo ? 0 : Bps,
                                 .alpha_s = w->alpha_s,
                                 .burst_s = w->burst_s,
                                 .message_s = w->has_thread ? MESSAGE_WAKE_S : MESSAGE_S,
                                 .byte_s = BYTE_S,
                                 .has_thread = w->has_thread,
                                 .codec_from = w->from,
                                 .force = o->predict.force };
    rc = bny_graph_make(&x->graph, o->topo ? o->topo : star);
    if (rc == 0 && ranks && x->graph->nranks != ranks)
        rc = bny_fail(BANYAN_EINVAL, "--ranks %d: %s has %d ranks; leave one of them out",
                      ranks, x->graph->name, x->graph->nranks);
    if (rc == 0 && x->graph->nranks > RANKS_MAX)
        rc = bny_fail(BANYAN_EINVAL, "%s has %d ranks; steps are predicted for %d at most",
                      x->graph->name, x->graph->nranks, RANKS_MAX);
    if (rc == 0 && Bps > 0)
        set_rate(x->graph, Bps);
    if (rc == 0 && o->topo)
        rc = load_topology(x, o->topo, Bps);
    if (rc)
        return rc;
    shared = w->cores ? (double)x->graph->nranks / w->cores : 1;
    x->slower = shared > 1 ? shared : 1;
    x->compute_slower = o->predict.accelerated ? 1 : x->slower;
    return 0;
}

static void free_world(struct predict_world *x)
{
    bny_topology_free(x->topology);
    bny_graph_free(x->graph);
}

/* ---- what is told ---- */

static const char *const without_names[NWITHOUT] = { "compute", "wire", "latency", "work" };

struct advice {
    const char *bound; /* of without_names */
    double without[NWITHOUT];
};

/* The bottleneck is the resource whose removal saves most time; if none saves much, it is
 * compute. */
static int advise(struct advice *a, const struct predict_world *x, const struct row *best)
{
    double gain = 0.03 * best->p.step_s;
    int rc = 0;

    *a = (struct advice){ .bound = without_names[0] };
    a->without[0] = best->p.step_s;
    for (int k = 1; k < NWITHOUT && rc == 0; k++) {
        struct predicted p;

        rc = predict_step(&p, x, &best->setting, (enum predict_without)k, NULL);
        a->without[k] = p.step_s;
        if (rc == 0 && best->p.step_s - p.step_s > gain) {
            gain = best->p.step_s - p.step_s;
            a->bound = without_names[k];
        }
    }
    return rc;
}

static void json_row(FILE *to, const struct predict_world *x, double Bps, const struct row *r,
                     const struct advice *a)
{
    fputs("{\"topo\":", to);
    topo_json_text(to, x->graph->name);
    fprintf(to, ",\"ranks\":%d,\"rate_bps\":", x->graph->nranks);
    if (Bps > 0)
        fprintf(to, "%.9g", 8 * Bps);
    else
        fputs("null", to);
    fputs(",\"codec\":", to);
    topo_json_text(to, r->setting.codec);
    fprintf(to,
            ",\"bucket_bytes\":%llu,\"asked\":", (unsigned long long)r->setting.bucket_bytes);
    topo_json_text(to, r->setting.schedule);
    fputs(",\"schedule\":", to);
    topo_json_text(to, r->p.schedule);
    fprintf(to,
            ",\"step_s\":%.9g,\"compute_s\":%.9g,\"work_s\":%.9g,\"wire_share\":%.4g,"
            "\"wire_bytes\":%llu,\"buckets\":%zu,\"refused\":%zu,\"best\":%s",
            r->p.step_s, r->p.compute_s, r->p.work_s, r->p.wire_share,
            (unsigned long long)r->p.wire_bytes, r->p.buckets, r->p.refused,
            a ? "true" : "false");
    if (a)
        fprintf(to,
                ",\"bound_by\":\"%s\",\"without_wire_s\":%.9g,\"without_latency_s\":%.9g,"
                "\"without_work_s\":%.9g",
                a->bound, a->without[WITHOUT_WIRE], a->without[WITHOUT_LATENCY],
                a->without[WITHOUT_WORK]);
    fputs("}\n", to);
}

static void print_rows(FILE *to, const struct predict_world *x, double Bps,
                       const struct row *rows, size_t n)
{
    fprintf(to, "%s, %d ranks", x->graph->name, x->graph->nranks);
    if (Bps > 0)
        fprintf(to, ", %.6g Mbit/s", 8e-6 * Bps);
    fprintf(to, "\n%-20s %10s %-16s %10s %10s %6s %10s %8s\n", "codec", "bucket", "schedule",
            "step ms", "exposed", "wire", "MB sent", "buckets");
    for (size_t i = 0; i < n; i++) {
        const struct predicted *p = &rows[i].p;
        fprintf(to, "%-20s %9lluK %-16s %10.3f %10.3f %5.0f%% %10.3f %8zu%s\n",
                rows[i].setting.codec, (unsigned long long)rows[i].setting.bucket_bytes >> 10,
                p->schedule, 1e3 * p->step_s, 1e3 * fmax(0, p->step_s - p->compute_s),
                100 * p->wire_share, 1e-6 * (double)p->wire_bytes, p->buckets,
                p->refused ? "  codec refused" : "");
    }
}

static const struct row *plain_best(const struct row *rows, size_t n)
{
    const struct row *best = NULL;

    for (size_t i = 0; i < n; i++)
        if (!strcmp(rows[i].setting.codec, "none") &&
            (!best || rows[i].p.step_s < best->p.step_s))
            best = &rows[i];
    return best;
}

static void print_advice(FILE *to, const struct row *rows, size_t n, const struct row *best,
                         const struct advice *a)
{
    const struct row *plain = plain_best(rows, n);

    fprintf(to, "best: codec %s, buckets of %lluK, schedule %s: %.3f ms a step",
            best->setting.codec, (unsigned long long)best->setting.bucket_bytes >> 10,
            best->setting.schedule, 1e3 * best->p.step_s);
    if (plain && plain != best)
        fprintf(to, ", %.2f times as fast as the best without a codec",
                plain->p.step_s / best->p.step_s);
    fprintf(to,
            "\nwhy: bound by %s; %.3f ms is computing; without the wire it would take %.3f ms, "
            "without latency %.3f, without encoding and copying %.3f\n\n",
            a->bound, 1e3 * best->p.compute_s, 1e3 * a->without[WITHOUT_WIRE],
            1e3 * a->without[WITHOUT_LATENCY], 1e3 * a->without[WITHOUT_WORK]);
}

/* ---- a network ---- */

static int predict_all(struct row *rows, const struct predict_world *x, const struct wish *w)
{
    size_t k = 0;
    int rc = 0;

    for (size_t c = 0; c < w->codecs.n; c++)
        for (size_t b = 0; b < w->nbuckets; b++)
            for (size_t s = 0; s < w->schedules.n && rc == 0; s++, k++) {
                rows[k].setting =
                    (struct predict_setting){ w->codecs.at[c], w->schedules.at[s],
                                              w->buckets[b], w->profile.first_bytes };
                rc = predict_step(&rows[k].p, x, &rows[k].setting, WITHOUT_NOTHING, NULL);
            }
    return rc;
}

/* Of equal ones the first: codecs and sizes stand in the user's order. */
static const struct row *best_of(const struct row *rows, size_t n)
{
    const struct row *best = rows;

    for (size_t i = 1; i < n; i++)
        if (rows[i].p.step_s < best->p.step_s * (1 - 1e-6))
            best = &rows[i];
    return best;
}

static int predict_on(FILE *to, const struct wish *w, const struct topo_opts *o, int ranks,
                      double Bps)
{
    size_t n = w->codecs.n * w->nbuckets * w->schedules.n;
    struct row *rows = calloc(n, sizeof *rows);
    const struct row *best = NULL;
    struct predict_world x;
    struct predicted again;
    struct advice a;
    int rc = make_world(&x, w, o, ranks, Bps);

    if (rc == 0 && !rows)
        rc = bny_fail(BANYAN_ENOMEM, "no memory for %zu settings", n);
    if (rc == 0)
        rc = predict_all(rows, &x, w);
    if (rc == 0) {
        best = best_of(rows, n);
        rc = advise(&a, &x, best);
    }
    if (rc == 0 && o->predict.trace)
        rc = predict_step(&again, &x, &best->setting, WITHOUT_NOTHING, o->predict.trace);
    if (rc == 0 && !o->json) {
        print_rows(to, &x, Bps, rows, n);
        print_advice(to, rows, n, best, &a);
    }
    for (size_t i = 0; rc == 0 && o->json && i < n; i++)
        json_row(to, &x, Bps, &rows[i], &rows[i] == best ? &a : NULL);
    free(rows);
    free_world(&x);
    return rc;
}

static int topo_predict_run(const struct topo_opts *o)
{
    struct wish w = { 0 };
    FILE *to = NULL;
    int e = read_wish(&w, o), rc = 0;

    if (!e && !(to = topo_open(o)))
        e = 1;
    for (size_t n = 0; !e && n < (w.nranks ? w.nranks : 1); n++)
        for (size_t r = 0; rc == 0 && r < (w.nrates ? w.nrates : 1); r++)
            rc = predict_on(to, &w, o, w.nranks ? w.ranks[n] : 0, w.nrates ? w.rates[r] : 0);
    if (rc)
        e = topo_failed(NULL);
    if (to)
        e |= topo_close(to, o);
    bny_profile_free(&w.profile);
    free(w.codecs.text);
    free(w.schedules.text);
    return e;
}

const struct topo_command topo_predict = {
    .name = "predict",
    .options = "tsoJRDBWTPAFEUXQ",
    .usage = "predicts the time of a training step from a profile",
    .run = topo_predict_run,
};
