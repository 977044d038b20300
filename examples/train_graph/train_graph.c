/* SPDX-License-Identifier: BSD-3-Clause */
/* Full-batch training of two graph convolutions over a graph that is cut into parts, one a
 * rank. In each epoch ranks send each other the hidden features of nodes that have neighbours
 * elsewhere, and their gradients back, by banyan_rows_* of banyan/training.h: all of them,
 * those that changed, or a part that grows. The gradients of the weights are summed by an
 * allreduce.
 *
 *     train_graph -P 4
 *     train_graph -P 4 --exchange cached --bits 8
 *     train_graph -P 4 --exchange variable --first 32 --slope 2
 *     banyan_run -n 4 train_graph --mixed */
#include <banyan/training.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gcn.h"
#include "job.h"

struct options {
    int nlocal, nodes, hidden, epochs, mixed;
    double inside, outside, noise, rate;
    uint64_t seed;
    struct banyan_rows_config rows;
};

struct trainer {
    struct options opt;
    struct banyan_comm *comm;
    int rank, ranks;
    struct graph graph;
    struct part part;
    struct gcn gcn;
    struct banyan_rows *forward, *back, *exact; /* exact: dense, to count what is right */
    float *came;         /* [part.sends][hidden] gradients that others send back */
    float *grad, *m, *v; /* [gcn.n] Adam's */
    int64_t trained;     /* nodes, of all ranks */
    double loss, accuracy, step_s;
};

/* Adam (Kingma and Ba, ICLR 2015): the same on all ranks. */
static void adam(struct trainer *t, int epoch)
{
    double c1 = 1 - pow(0.9, epoch + 1), c2 = 1 - pow(0.999, epoch + 1);

    for (size_t i = 0; i < t->gcn.n; i++) {
        float g = t->grad[i];

        t->m[i] += 0.1f * (g - t->m[i]);
        t->v[i] += 0.001f * (g * g - t->v[i]);
        t->gcn.param[i] -=
            (float)(t->opt.rate * ((double)t->m[i] / c1) / (sqrt((double)t->v[i] / c2) + 1e-8));
    }
}

/* Loss of all training nodes; counts of all nodes to test. */
static int total(struct trainer *t, double *loss, int64_t *counts)
{
    int rc = banyan_allreduce(loss, loss, 1, BANYAN_F64, BANYAN_SUM, t->comm, NULL);

    *loss /= (double)t->trained;
    return rc < 0 ? rc
                  : banyan_allreduce(counts, counts, 2, BANYAN_I64, BANYAN_SUM, t->comm, NULL);
}

static int epoch(struct trainer *t, int number)
{
    int64_t counts[2] = { 0, 0 };
    double loss = 0, start = job_now();
    int rc;

    memset(t->grad, 0, t->gcn.n * sizeof *t->grad);
    gcn_first(&t->gcn);
    rc = banyan_rows_exchange(t->forward, t->gcn.h, t->gcn.remote);
    if (rc < 0)
        return rc;
    gcn_second(&t->gcn, &loss, counts);
    gcn_back_second(&t->gcn, 1.0f / (float)t->trained, t->grad);
    rc = banyan_rows_exchange(t->back, t->gcn.dremote, t->came);
    if (rc < 0)
        return rc;
    gcn_add(&t->gcn, t->came);
    gcn_back_first(&t->gcn, t->grad);
    rc = banyan_allreduce(t->grad, t->grad, t->gcn.n, BANYAN_F32, BANYAN_SUM, t->comm, NULL);
    if (rc == 0)
        rc = total(t, &loss, counts);
    if (rc < 0)
        return rc;
    adam(t, number);
    t->step_s += job_now() - start;
    rc = banyan_rows_adapt(t->forward, loss);
    if (rc == 0)
        rc = banyan_rows_adapt(t->back, loss);
    if (t->rank == 0 && (number + 1) % 20 == 0)
        printf("%5d  %8.5f  %6.2f%%\n", number + 1, loss,
               100 * (double)counts[1] / (double)counts[0]);
    return rc;
}

/* Loss and accuracy by what features are, whatever training sent of them. */
static int judge(struct trainer *t)
{
    int64_t counts[2] = { 0, 0 };
    int rc;

    t->loss = 0;
    gcn_first(&t->gcn);
    rc = banyan_rows_exchange(t->exact, t->gcn.h, t->gcn.remote);
    if (rc < 0)
        return rc;
    gcn_second(&t->gcn, &t->loss, counts);
    rc = total(t, &t->loss, counts);
    t->accuracy = (double)counts[1] / (double)counts[0];
    return rc;
}

/* Sums over both exchanges and all ranks. */
static int result(struct trainer *t)
{
    static const char *const modes[] = { "dense", "cached", "variable" };
    struct banyan_rows_stats s[2] = { { .size = sizeof s[0] }, { .size = sizeof s[0] } };
    uint64_t sums[4];
    int same, rc = banyan_rows_stats(t->forward, &s[0]);

    if (rc == 0)
        rc = banyan_rows_stats(t->back, &s[1]);
    sums[0] = s[0].rows + s[1].rows;
    sums[1] = s[0].sent + s[1].sent;
    sums[2] = s[0].bytes + s[1].bytes;
    sums[3] = s[0].dense_bytes + s[1].dense_bytes;
    if (rc == 0)
        rc = banyan_allreduce(sums, sums, 4, BANYAN_U64, BANYAN_SUM, t->comm, NULL);
    if (rc == 0)
        rc = job_same(t->comm, t->gcn.param, t->gcn.n, &same);
    if (rc < 0)
        return rc;
    if (t->rank == 0)
        printf("result ranks=%d epochs=%d exchange=%s bits=%d loss=%.6f accuracy=%.4f "
               "identical=%d rows=%llu sent=%llu bytes=%llu dense_bytes=%llu threshold=%.4f "
               "ratio=%.3f seconds=%.4f seed=%llu\n",
               t->ranks, t->opt.epochs, modes[t->opt.rows.mode], t->opt.rows.bits, t->loss,
               t->accuracy, same, (unsigned long long)sums[0], (unsigned long long)sums[1],
               (unsigned long long)sums[2], (unsigned long long)sums[3], s[0].threshold,
               s[0].ratio, t->step_s, (unsigned long long)t->opt.seed);
    return same ? 0 : -BANYAN_EMISMATCH;
}

/* The same lists forward and, swapped, back: what comes back are rows of the halo. */
static int exchanges(struct trainer *t)
{
    struct banyan_rows_config dense = t->opt.rows;
    struct banyan_rows_plan plan = {
        .size = sizeof plan,
        .name = "hidden",
        .width = (size_t)t->opt.hidden,
        .rows = (size_t)t->part.own,
        .send_counts = t->part.send_counts,
        .send_rows = t->part.send_rows,
        .recv_counts = t->part.recv_counts,
    };
    uint32_t *all = malloc(((size_t)t->part.halo + 1) * sizeof *all);
    int rc = all ? 0 : -BANYAN_ENOMEM;

    dense.mode = BANYAN_ROWS_DENSE;
    dense.bits = 32;
    if (rc == 0)
        rc = banyan_rows_create(&t->forward, t->comm, &plan, &t->opt.rows);
    if (rc == 0)
        rc = banyan_rows_create(&t->exact, t->comm, &plan, &dense);
    for (int k = 0; k < t->part.halo && rc == 0; k++)
        all[k] = (uint32_t)k;
    plan.name = "hidden's gradient";
    plan.rows = (size_t)t->part.halo;
    plan.send_counts = t->part.recv_counts;
    plan.send_rows = all;
    plan.recv_counts = t->part.send_counts;
    if (rc == 0)
        rc = banyan_rows_create(&t->back, t->comm, &plan, &t->opt.rows);
    free(all);
    return rc;
}

static int train(struct trainer *t)
{
    int rc = exchanges(t);

    t->trained = 0;
    for (int v = 0; v < t->graph.n; v++)
        t->trained += t->graph.train[v];
    if (t->rank == 0)
        printf("%d ranks, %d nodes, %d edges, %lld to learn from, %d in rank 0's halo\n"
               "epoch      loss   tested\n",
               t->ranks, t->graph.n, t->graph.first[t->graph.n] / 2, (long long)t->trained,
               t->part.halo);
    for (int k = 0; k < t->opt.epochs && rc == 0; k++)
        rc = epoch(t, k);
    if (rc == 0)
        rc = judge(t);
    if (rc == 0)
        rc = result(t);
    if (rc < 0)
        fprintf(stderr, "train_graph: rank %d: %s\n", t->rank, banyan_last_error());
    return rc < 0;
}

static int run(struct trainer *t)
{
    const struct options *o = &t->opt;
    int rc = 1;

    t->rank = banyan_comm_rank(t->comm);
    t->ranks = banyan_comm_count(t->comm);
    if (graph_make(&t->graph, o->nodes, o->inside, o->outside, o->noise, o->mixed, o->seed) ==
            0 &&
        part_make(&t->part, &t->graph, t->rank, t->ranks) == 0 &&
        gcn_init(&t->gcn, &t->graph, &t->part, o->hidden, o->seed) == 0) {
        t->grad = calloc(t->gcn.n, sizeof *t->grad);
        t->m = calloc(t->gcn.n, sizeof *t->m);
        t->v = calloc(t->gcn.n, sizeof *t->v);
        t->came = calloc(t->part.sends * (size_t)o->hidden + 1, sizeof *t->came);
    }
    if (t->grad && t->m && t->v && t->came)
        rc = train(t);
    else
        fprintf(stderr, "train_graph: no memory for %d nodes\n", o->nodes);
    banyan_rows_free(t->forward);
    banyan_rows_free(t->back);
    banyan_rows_free(t->exact);
    gcn_free(&t->gcn);
    part_free(&t->part);
    graph_free(&t->graph);
    free(t->came);
    free(t->grad);
    free(t->m);
    free(t->v);
    return rc;
}

static double number(const char *option, const char *text, double lo, double hi)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || !(v >= lo && v <= hi)) {
        fprintf(stderr, "train_graph: --%s wants a number from %g to %g, got %s\n", option, lo,
                hi, text);
        exit(2);
    }
    return v;
}

static enum banyan_rows_mode mode_named(const char *name)
{
    static const char *const modes[] = { "dense", "cached", "variable" };

    for (int k = 0; k < 3; k++)
        if (!strcmp(modes[k], name))
            return (enum banyan_rows_mode)k;
    fprintf(stderr, "train_graph: --exchange is dense, cached or variable, got %s\n", name);
    exit(2);
}

static const char usage[] =
    "usage: train_graph [-P RANKS] [--exchange dense|cached|variable] [--bits 32|8]\n"
    "    [--epochs N] [--nodes N] [--hidden WIDTH] [--rate R] [--seed N] [--mixed]\n"
    "    [--inside DEGREE] [--outside DEGREE] [--noise SIGMA]\n"
    "    cached: [--threshold T] [--least T] [--most T]; variable: [--first RATIO] [--slope "
    "A]\n"
    "Without -P it joins the launcher's job. --mixed: nodes of a rank are of all "
    "communities.\n";

static const struct option longs[] = {
    { "ranks", 1, NULL, 'P' },     { "exchange", 1, NULL, 'x' }, { "bits", 1, NULL, 'b' },
    { "epochs", 1, NULL, 'e' },    { "nodes", 1, NULL, 'n' },    { "hidden", 1, NULL, 'w' },
    { "rate", 1, NULL, 'r' },      { "seed", 1, NULL, 's' },     { "mixed", 0, NULL, 'm' },
    { "inside", 1, NULL, 'i' },    { "outside", 1, NULL, 'o' },  { "noise", 1, NULL, 'z' },
    { "threshold", 1, NULL, 't' }, { "least", 1, NULL, 'l' },    { "most", 1, NULL, 'u' },
    { "first", 1, NULL, 'f' },     { "slope", 1, NULL, 'a' },    { "help", 0, NULL, 'h' },
    { NULL, 0, NULL, 0 },
};

static void parse(struct options *o, int argc, char **argv)
{
    int c;

    *o = (struct options){ .nodes = 2000,
                           .hidden = 64,
                           .epochs = 200,
                           .inside = 6,
                           .outside = 6,
                           .noise = 2.5,
                           .rate = 0.01,
                           .seed = 1 };
    o->rows = (struct banyan_rows_config)BANYAN_ROWS_CONFIG_INIT;
    while ((c = getopt_long(argc, argv, "P:h", longs, NULL)) != -1) {
        switch (c) {
        case 'P': o->nlocal = (int)number("ranks", optarg, 1, 512); break;
        case 'x': o->rows.mode = mode_named(optarg); break;
        case 'b': o->rows.bits = (int)number("bits", optarg, 8, 32); break;
        case 'e': o->epochs = (int)number("epochs", optarg, 1, 100000); break;
        case 'n': o->nodes = (int)number("nodes", optarg, 64, 20000); break;
        case 'w': o->hidden = (int)number("hidden", optarg, 1, 1024); break;
        case 'r': o->rate = number("rate", optarg, 1e-9, 10); break;
        case 's': o->seed = (uint64_t)number("seed", optarg, 0, 1 << 30); break;
        case 'm': o->mixed = 1; break;
        case 'i': o->inside = number("inside", optarg, 0, 1000); break;
        case 'o': o->outside = number("outside", optarg, 0, 1000); break;
        case 'z': o->noise = number("noise", optarg, 0, 1000); break;
        case 't': o->rows.threshold = number("threshold", optarg, 0, 1e3); break;
        case 'l': o->rows.least = number("least", optarg, 0, 1e3); break;
        case 'u': o->rows.most = number("most", optarg, 0, 1e3); break;
        case 'f': o->rows.first = number("first", optarg, 1, 1e6); break;
        case 'a': o->rows.slope = number("slope", optarg, 0, 1e6); break;
        default: fputs(usage, c == 'h' ? stdout : stderr); exit(c == 'h' ? 0 : 2);
        }
    }
    if (optind < argc) {
        fprintf(stderr, "train_graph: no such argument: %s\n%s", argv[optind], usage);
        exit(2);
    }
    o->rows.steps = (uint64_t)o->epochs;
    o->rows.seed = o->seed;
}

int main(int argc, char **argv)
{
    struct trainer *t = calloc(1, sizeof *t);
    static pid_t children[JOB_RANKS_MAX];
    int rc;

    if (!t)
        return 1;
    parse(&t->opt, argc, argv);
    rc = job_join(&t->comm, t->opt.nlocal, children);
    if (rc < 0)
        fprintf(stderr, "train_graph: cannot join: %s\n", banyan_last_error());
    else
        rc = run(t);
    rc = job_leave(t->comm, children, "train_graph", rc);
    free(t);
    return rc;
}
