/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_topo probe: measures the cluster on the ranks of a job (banyan_run -n 4 banyan_topo
 * probe -o cluster.json). All ranks take part and decide alike; rank 0 tells. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "banyan/banyan.h"
#include "base/clock.h"
#include "base/err.h"
#include "tools/topo.h"
#include "topo/import.h"
#include "topo/probe.h"

enum {
    SMALL = 8,
    MIDDLE = 64 << 10,
    LARGE = 4 << 20,
    PINGPONGS = 51,
    REPEATS_MAX = 7,
    WARMUP = 2,
    BLOCKS = 3,
    HOST_BYTES = 128
};

/* About so long is the exchange of a large message: slow links have smaller ones. */
#define EXCHANGE_S 0.1
#define PAIR_S     1.5 /* and so long all repetitions of it */

struct job {
    struct banyan_comm *comm;
    struct banyan_opts opts;
    int rank, n, repeats;
    unsigned char *out, *in; /* [LARGE] */
    double *all;             /* [n] */
};

static int topo_probe_by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;

    return (a > b) - (a < b);
}

static int topo_probe_exchange(struct job *j, int peer, size_t bytes)
{
    int e = banyan_group_start(), end;

    if (!e)
        e = banyan_send(j->out, bytes, BANYAN_U8, peer, j->comm, &j->opts);
    if (!e)
        e = banyan_recv(j->in, bytes, BANYAN_U8, peer, j->comm, &j->opts);
    end = banyan_group_end();
    return e ? e : end;
}

static int ping(struct job *j, int peer, size_t bytes, int first)
{
    int e = first ? banyan_send(j->out, bytes, BANYAN_U8, peer, j->comm, &j->opts)
                  : banyan_recv(j->in, bytes, BANYAN_U8, peer, j->comm, &j->opts);

    if (e)
        return e;
    return first ? banyan_recv(j->in, bytes, BANYAN_U8, peer, j->comm, &j->opts)
                 : banyan_send(j->out, bytes, BANYAN_U8, peer, j->comm, &j->opts);
}

/* The time of one message between this rank and peer: the best of some medians, since what
 * disturbs a whole block of repetitions (another process on this core) only ever adds. */
static int topo_probe_measure(struct job *j, int peer, size_t bytes, int pingpong,
                              double *seconds)
{
    double t[PINGPONGS];
    int n = pingpong ? PINGPONGS : j->repeats, e = 0;

    *seconds = 0;
    for (int block = 0; block < BLOCKS && !e; block++) {
        for (int i = -WARMUP; i < n && !e; i++) {
            uint64_t start = bny_now_ns();
            e = pingpong ? ping(j, peer, bytes, j->rank < peer)
                         : topo_probe_exchange(j, peer, bytes);
            if (i >= 0)
                t[i] = (double)(bny_now_ns() - start) / (pingpong ? 2e9 : 1e9);
        }
        if (e)
            break;
        qsort(t, (size_t)n, sizeof *t, topo_probe_by_value);
        if (!block || t[n / 2] < *seconds)
            *seconds = t[n / 2];
    }
    return e;
}

/* Everybody learns everybody's time; a pair's is that of its first rank. */
static int topo_probe_run(void *ctx, const int *a, const int *b, int npairs, size_t bytes,
                          int pingpong, double *seconds)
{
    struct job *j = ctx;
    double mine = 0;
    int peer = -1, e;

    for (int i = 0; i < npairs; i++)
        if (a[i] == j->rank || b[i] == j->rank)
            peer = a[i] == j->rank ? b[i] : a[i];
    e = banyan_barrier(j->comm, &j->opts);
    if (!e && peer >= 0)
        e = topo_probe_measure(j, peer, bytes, pingpong, &mine);
    if (!e)
        e = banyan_allgather(&mine, j->all, 1, BANYAN_F64, j->comm, &j->opts);
    for (int i = 0; i < npairs && !e; i++)
        seconds[i] = j->all[a[i]];
    return e;
}

/* host[r]: the number of its machine, by first appearance of the name. */
static int hosts(struct job *j, int *host)
{
    char *names = calloc((size_t)j->n, HOST_BYTES), mine[HOST_BYTES] = "";
    int e, next = 0;

    if (!names)
        return bny_fail(BANYAN_ENOMEM, "no memory for the names of %d hosts", j->n);
    gethostname(mine, 64);
    if (readlink("/proc/self/ns/net", mine + 65, sizeof mine - 66) <
        0) /* a container is a machine of its own */
        mine[65] = 0;
    e = banyan_allgather(mine, names, HOST_BYTES, BANYAN_U8, j->comm, &j->opts);
    for (int r = 0; r < j->n && !e; r++) {
        host[r] = -1;
        for (int o = 0; o < r && host[r] < 0; o++)
            if (!memcmp(names + o * HOST_BYTES, names + r * HOST_BYTES, HOST_BYTES))
                host[r] = host[o];
        host[r] = host[r] < 0 ? next++ : host[r];
    }
    free(names);
    return e;
}

/* Message sizes and repetitions by the slowest pair of neighbours in the list: a gigabit link
 * may have 4 MiB, 25 Mbit/s not. */
static int choose_sizes(struct job *j, struct bny_probe_fabric *f)
{
    int peer = (j->rank ^ 1) < j->n ? j->rank ^ 1 : -1, e = 0;
    double took = 0, slowest;

    for (int i = 0; i < 3 && !e;
         i++) { /* the last one counts: shaped links let the first bytes pass */
        uint64_t start;

        e = banyan_barrier(j->comm, &j->opts);
        start = bny_now_ns();
        if (!e && peer >= 0)
            e = topo_probe_exchange(j, peer, MIDDLE);
        took = peer >= 0 ? (double)(bny_now_ns() - start) / 1e9 : 0;
    }
    if (!e)
        e = banyan_allreduce(&took, &slowest, 1, BANYAN_F64, BANYAN_MAX, j->comm, &j->opts);
    if (e)
        return e;
    f->large = LARGE;
    while (f->large > 4 * MIDDLE && slowest * (double)(f->large / MIDDLE) > EXCHANGE_S)
        f->large /= 2;
    j->repeats =
        (int)(PAIR_S / BLOCKS / (slowest * (double)(f->large / MIDDLE) + 1e-6)) - WARMUP;
    j->repeats = j->repeats < 3 ? 3 : j->repeats > REPEATS_MAX ? REPEATS_MAX : j->repeats;
    return 0;
}

static void summary(FILE *f, const struct bny_probe *p, const struct bny_graph *g)
{
    for (int l = 0; l < p->nlevels; l++) {
        const struct bny_probe_level *k = &p->level[l];
        fprintf(f, "level %d: %d cluster%s, latency %.3g us (median; 95 %%: %.3g)", l,
                k->nclusters, k->nclusters == 1 ? "" : "s", k->alpha.median * 1e6,
                k->alpha.p95 * 1e6);
        for (int c = 0; c < k->nclusters && l < p->nlevels - 1; c++)
            fprintf(f, "%s %.3g", c ? "," : ", GB/s out of each:", k->border_Bps[c] / 1e9);
        fprintf(f, "\n");
    }
    fprintf(f, "graph: %d ranks, %d nodes, %d links; -o FILE writes it\n", g->nranks, g->nnodes,
            g->nlinks);
}

static int topo_probe_tell(const struct topo_opts *o, const struct bny_probe *p,
                           const struct bny_graph *g)
{
    char *extra = NULL;
    size_t len;
    FILE *m = open_memstream(&extra, &len), *f = m ? topo_open(o) : NULL;
    int e = m ? bny_probe_json(p, m) : -BANYAN_ENOMEM;

    if (m)
        fclose(m);
    if (f && !e && (o->output || o->json))
        e = bny_graph_save(g, f, extra);
    else if (f && !e)
        summary(f, p, g);
    free(extra);
    if (f && topo_close(f, o))
        e = e ? e : -BANYAN_ESYSTEM;
    return f ? e : -BANYAN_ESYSTEM;
}

static int probe(struct job *j, const struct topo_opts *o)
{
    int *host = calloc((size_t)j->n, sizeof *host), e;
    struct bny_probe_fabric f = { .n = j->n,
                                  .host = host,
                                  .run = topo_probe_run,
                                  .ctx = j,
                                  .small = SMALL,
                                  .middle = MIDDLE,
                                  .large = LARGE };
    struct bny_probe *p = NULL;
    struct bny_graph *g = NULL;

    j->out = calloc(1, LARGE);
    j->in = calloc(1, LARGE);
    j->all = calloc((size_t)j->n, sizeof *j->all);
    e = host && j->out && j->in && j->all ? hosts(j, host)
                                          : bny_fail(BANYAN_ENOMEM, "no memory for buffers");
    if (!e)
        e = choose_sizes(j, &f);
    if (!e)
        e = bny_probe_run(&p, &f);
    if (!e)
        e = bny_probe_graph(&g, p);
    if (!e && j->rank == 0)
        e = topo_probe_tell(o, p, g);
    bny_graph_free(g);
    bny_probe_free(p);
    free(host);
    free(j->out);
    free(j->in);
    free(j->all);
    return e;
}

static int run_command(const struct topo_opts *o)
{
    struct job j = { .opts = BANYAN_OPTS_INIT };
    int e;

    if (o->nargs)
        return topo_failed_args(o);
    j.opts.timeout_s = 60;
    if (banyan_comm_init_env(&j.comm, NULL) < 0)
        return topo_failed("probe");
    j.rank = banyan_comm_rank(j.comm);
    j.n = banyan_comm_count(j.comm);
    e = j.n > 1
            ? probe(&j, o)
            : bny_fail(BANYAN_EINVAL,
                       "one rank has nobody to measure with; start several: banyan_run -n 4 "
                       "banyan_topo probe, or mpirun");
    if (e) {
        topo_failed("probe");
        banyan_comm_destroy(j.comm);
        return 1;
    }
    if (banyan_comm_finalize(j.comm) < 0)
        return topo_failed("probe");
    return 0;
}

const struct topo_command topo_probe = { "probe", "oJ",
                                         "measures the cluster on the ranks of a job (under "
                                         "banyan_run, mpirun ...); -o FILE writes its graph",
                                         run_command };
