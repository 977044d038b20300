/* SPDX-License-Identifier: BSD-3-Clause */
/* Data-parallel training on real handwritten digits, or of a larger network on examples that a
 * random one has labelled. Every rank computes the gradient of its share of each batch; an
 * allreduce adds them up; every rank takes the same step. n ranks therefore follow the path of
 * one rank, to rounding, unless --codec loses something.
 *
 *     train_digits -P 4
 *     train_digits -P 4 --model teacher --codec topk:delta=0.01
 *     banyan_run -n 4 train_digits
 *     mpirun -n 4 train_digits */
#include <banyan/banyan.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "data.h"
#include "exchange.h"
#include "network.h"

#ifndef DIGITS_CSV
#define DIGITS_CSV "examples/train_digits/digits.csv"
#endif

struct model {
    const char *name;
    int inputs, hidden[LAYERS_MAX - 1], epochs, batch;
    float rate, decay;
};

/* The second is small enough for a minute and large enough that heavy compression shows. */
static const struct model models[] = {
    { "digits", INPUTS, { 32 }, 20, 64, 0.1f, 1 },
    { "teacher", TEACHER_INPUTS, { 256, 256 }, 40, 128, 0.05f, 0.1f },
};

struct options {
    const struct model *model;
    int epochs, batch, nlocal, examples, hidden, feedback;
    uint64_t seed;
    float rate,
        decay; /* decay: the last epoch's rate as a part of the first's; linear between */
    float momentum;
    const char *data, *codec;
};

struct trainer {
    struct options opt;
    struct banyan_comm *comm;
    int rank, nranks;
    struct example *all;
    int ntrain, ntest; /* all[0..ntrain) train, the rest test */
    int *order;        /* of the training examples, the same on all ranks */
    struct network net;
    struct exchange ex;
    float *velocity,
        *grad;  /* [net.n]; behind the gradient lies the loss, which travels with it */
    float rate; /* of the present epoch */
    double step_s, comm_s; /* of the present epoch */
};

static double now_s(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void shuffle(int *order, int n, uint64_t *state)
{
    for (int i = n - 1; i > 0; i--) {
        int j = (int)random_below(state, (uint64_t)i + 1), keep = order[i];

        order[i] = order[j];
        order[j] = keep;
    }
}

/* The file is sorted by writer; the test images are a fifth of everybody's, the same whatever
 * the seed. */
static void mix(struct example *all, int n)
{
    uint64_t state = 0;

    for (int i = n - 1; i > 0; i--) {
        int j = (int)random_below(&state, (uint64_t)i + 1);
        struct example keep = all[i];

        all[i] = all[j];
        all[j] = keep;
    }
}

/* Momentum SGD. A codec that has the momentum in it (dgc) gets none from us. */
static void update(struct trainer *t, int n)
{
    int codecs = t->opt.codec && !strncmp(t->opt.codec, "dgc", 3);
    float scale = 1.0f / (float)n;

    for (size_t i = 0; i < t->net.n; i++) {
        float momentum = codecs && i < t->ex.coded ? 0 : t->opt.momentum;

        t->velocity[i] = momentum * t->velocity[i] + t->grad[i] * scale;
        t->net.param[i] -= t->rate * t->velocity[i];
    }
}

/* One batch: n examples of which this rank takes every nranks-th. */
static int step(struct trainer *t, const int *batch, int n, double *loss)
{
    double start = now_s(), before;
    int rc;

    memset(t->grad, 0, (t->net.n + 1) * sizeof(float));
    for (int i = t->rank; i < n; i += t->nranks)
        t->grad[t->net.n] += network_gradient(&t->net, &t->all[batch[i]], t->grad);
    before = now_s();
    rc = exchange_sum(&t->ex, t->grad, t->net.n);
    t->comm_s += now_s() - before;
    if (rc < 0)
        return rc;
    update(t, n);
    t->step_s += now_s() - start;
    *loss += (double)t->grad[t->net.n];
    return 0;
}

/* Right answers among [first, first + n), each rank counting its share. */
static int accuracy(struct trainer *t, int first, int n, double *out)
{
    int64_t right = 0;
    int rc;

    for (int i = first + t->rank; i < first + n; i += t->nranks)
        right += network_predict(&t->net, &t->all[i]) == t->all[i].label;
    rc = banyan_allreduce(&right, &right, 1, BANYAN_I64, BANYAN_SUM, t->comm, NULL);
    *out = (double)right / n;
    return rc;
}

/* All ranks must hold the same bits: compares a checksum's smallest and largest value. */
static int same_everywhere(struct trainer *t, int *same)
{
    uint64_t sum = 0, v[2];
    const uint32_t *word = (const uint32_t *)t->net.param;
    int rc;

    for (size_t i = 0; i < t->net.n; i++)
        sum = sum * 1099511628211u + word[i];
    v[0] = sum;
    v[1] = ~sum;
    rc = banyan_allreduce(v, v, 2, BANYAN_U64, BANYAN_MAX, t->comm, NULL);
    *same = v[0] == ~v[1];
    return rc;
}

/* Bytes a step of the rank that sent most for the encoded matrices, and what an allreduce of
 * them in f32 sends at least. */
static int wire(struct trainer *t, int steps, double *sent, double *raw)
{
    uint64_t most = t->ex.wire_bytes;
    int rc = banyan_allreduce(&most, &most, 1, BANYAN_U64, BANYAN_MAX, t->comm, NULL);

    *sent = (double)most / steps;
    *raw = 8.0 * (double)t->ex.coded * (t->nranks - 1) / t->nranks;
    return rc;
}

/* Where training stands. */
struct progress {
    int epoch, steps, same;
    double loss, train_accuracy, test_accuracy, step_s, comm_s, wire_bytes, raw_bytes;
};

static int epoch(struct trainer *t, struct progress *p, uint64_t *state)
{
    float part = t->opt.epochs > 1 ? (float)p->epoch++ / (float)(t->opt.epochs - 1) : 0;
    float rate = t->opt.rate * (1 - part * (1 - t->opt.decay));
    int n = 0, rc = t->rate == rate ? 0 : exchange_rate_changes(&t->ex, t->rate, rate);

    t->rate = rate;
    p->loss = t->step_s = t->comm_s = 0;
    shuffle(t->order, t->ntrain, state);
    for (int at = 0; at < t->ntrain && rc == 0; at += t->opt.batch, n++)
        rc = step(t, t->order + at,
                  t->ntrain - at < t->opt.batch ? t->ntrain - at : t->opt.batch, &p->loss);
    if (rc == 0)
        rc = accuracy(t, 0, t->ntrain, &p->train_accuracy);
    if (rc == 0)
        rc = accuracy(t, t->ntrain, t->ntest, &p->test_accuracy);
    p->loss /= t->ntrain;
    p->steps += n;
    p->step_s += t->step_s;
    p->comm_s += t->comm_s;
    if (rc == 0 && t->rank == 0) {
        printf("%5d  %8.6f  %8.2f%%  %7.2f%%  %7.1f  %12.1f%%\n", p->epoch, p->loss,
               100 * p->train_accuracy, 100 * p->test_accuracy, t->step_s / n * 1e6,
               100 * t->comm_s / t->step_s);
        fflush(stdout);
    }
    return rc;
}

static void say_result(const struct trainer *t, const struct progress *p)
{
    printf("result ranks=%d epochs=%d loss=%.6f train_accuracy=%.4f test_accuracy=%.4f "
           "step_us=%.1f comm_share=%.3f identical=%d model=%s seed=%llu codec=%s feedback=%d "
           "wire_bytes=%.0f raw_bytes=%.0f\n",
           t->nranks, t->opt.epochs, p->loss, p->train_accuracy, p->test_accuracy,
           p->step_s / p->steps * 1e6, p->comm_s / p->step_s, p->same, t->opt.model->name,
           (unsigned long long)t->opt.seed, t->opt.codec ? t->opt.codec : "-", t->opt.feedback,
           p->wire_bytes, p->raw_bytes);
}

static int train(struct trainer *t)
{
    struct progress p = { 0 };
    uint64_t state = t->opt.seed;
    int rc = 0;

    if (t->rank == 0)
        printf(
            "%d ranks, %d training and %d test examples, %zu parameters, batch %d, seed %llu\n"
            "epoch      loss  train acc  test acc  step us  communication\n",
            t->nranks, t->ntrain, t->ntest, t->net.n, t->opt.batch,
            (unsigned long long)t->opt.seed);
    t->rate = t->opt.rate;
    while (p.epoch < t->opt.epochs && rc == 0)
        rc = epoch(t, &p, &state);
    if (rc == 0)
        rc = wire(t, p.steps, &p.wire_bytes, &p.raw_bytes);
    if (rc == 0)
        rc = same_everywhere(t, &p.same);
    if (rc < 0) {
        fprintf(stderr, "train_digits: rank %d: %s\n", t->rank, banyan_last_error());
        return 1;
    }
    if (t->rank == 0)
        say_result(t, &p);
    if (!p.same || (t->opt.model == models && !t->opt.codec && p.test_accuracy < 0.9)) {
        if (t->rank == 0)
            fprintf(stderr, "train_digits: %s\n",
                    p.same ? "the test accuracy is below 0.9" : "the ranks' networks differ");
        return 1;
    }
    return 0;
}

/* The examples, the first ones to learn from. Returns their number or -1 after a message. */
static int load(struct trainer *t)
{
    int n, digits = t->opt.model == models;

    n = digits ? digits_load(t->opt.data, &t->all)
               : teacher_make(t->opt.examples + t->opt.examples / 2, t->opt.seed, &t->all);
    if (n >= 0 && n < 10) {
        fprintf(stderr, "train_digits: %s has only %d images\n", t->opt.data, n);
        return -1;
    }
    if (digits && n > 0)
        mix(t->all, n);
    t->ntest = digits ? n / 5 : n / 3;
    t->ntrain = n - t->ntest;
    return n;
}

static void make_network(struct trainer *t)
{
    const struct model *m = t->opt.model;
    struct network *net = &t->net;

    net->width[0] = m->inputs;
    while (net->nlayers < LAYERS_MAX - 1 && m->hidden[net->nlayers]) {
        net->width[net->nlayers + 1] = t->opt.hidden ? t->opt.hidden : m->hidden[net->nlayers];
        net->nlayers++;
    }
    net->width[++net->nlayers] = CLASSES;
}

static int run(struct trainer *t)
{
    int rc = 1;

    t->rank = banyan_comm_rank(t->comm);
    t->nranks = banyan_comm_count(t->comm);
    make_network(t);
    if (load(t) < 0)
        return 1;
    t->order = malloc((size_t)t->ntrain * sizeof *t->order);
    for (int i = 0; t->order && i < t->ntrain; i++)
        t->order[i] = i;
    if (network_init(&t->net, t->opt.seed) == 0) {
        t->velocity = calloc(t->net.n, sizeof(float));
        t->grad = calloc(t->net.n + 1, sizeof(float));
    }
    if (!t->order || !t->velocity || !t->grad)
        fprintf(stderr, "train_digits: no memory for %d examples and %zu parameters\n",
                t->ntrain, t->net.n);
    else if (exchange_init(&t->ex, t->comm, &t->net, t->opt.codec, t->opt.feedback,
                           t->opt.seed) < 0)
        fprintf(stderr, "train_digits: rank %d: %s\n", t->rank, banyan_last_error());
    else
        rc = train(t);
    exchange_free(&t->ex);
    free(t->velocity);
    free(t->grad);
    free(t->net.param);
    free(t->order);
    free(t->all);
    return rc;
}

/* -P n: this process becomes rank 0; its children, made before it joins, the others. */
static int start_local(struct trainer *t, pid_t *child)
{
    struct banyan_id id;
    pid_t parent = getpid();
    int n = t->opt.nlocal;

    if (banyan_id_create(&id) < 0)
        return -1;
    for (int r = 1; r < n; r++) {
        child[r] = fork();
        if (child[r] < 0) {
            perror("train_digits: fork");
            return -1;
        }
        if (child[r] > 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        memset(child, 0, (size_t)n * sizeof *child);
        return banyan_comm_init(&t->comm, &id, n, r, NULL);
    }
    return banyan_comm_init(&t->comm, &id, n, 0, NULL);
}

static int number(const char *option, const char *text, int lo, int hi)
{
    char *end;
    long v = strtol(text, &end, 10);

    if (end == text || *end || v < lo || v > hi) {
        fprintf(stderr, "train_digits: %s wants a number from %d to %d, got %s\n", option, lo,
                hi, text);
        exit(2);
    }
    return (int)v;
}

static float fraction(const char *option, const char *text, double lo, double hi)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || !(v >= lo && v <= hi)) {
        fprintf(stderr, "train_digits: %s wants a number from %g to %g, got %s\n", option, lo,
                hi, text);
        exit(2);
    }
    return (float)v;
}

static const struct model *model_named(const char *name)
{
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        if (!strcmp(models[i].name, name))
            return &models[i];
    fprintf(stderr, "train_digits: --model is digits or teacher, got %s\n", name);
    exit(2);
}

static const char usage[] =
    "usage: train_digits [-P RANKS] [--model digits|teacher] [--epochs N] [--batch N] [--seed "
    "N]\n"
    "    [--rate R] [--decay PART] [--momentum M] [--hidden WIDTH] [--examples N] [--data "
    "FILE]\n"
    "    [--codec NAME[:PARAM=VALUE,...] [--no-feedback]]\n"
    "Without -P it joins the launcher's job. --codec encodes the gradients of matrices from "
    "1024\n"
    "elements on, even where the library's cost model would refuse (BANYAN_CODEC_FORCE=0: ask\n"
    "it), with error feedback unless --no-feedback; --codec none sends them apart and raw.\n";

enum { OPT_RATE = 256, OPT_DECAY, OPT_MOMENTUM, OPT_HIDDEN, OPT_EXAMPLES, OPT_NO_FEEDBACK };

static const struct option longs[] = {
    { "epochs", required_argument, NULL, 'e' },
    { "batch", required_argument, NULL, 'b' },
    { "ranks", required_argument, NULL, 'P' },
    { "seed", required_argument, NULL, 's' },
    { "data", required_argument, NULL, 'd' },
    { "model", required_argument, NULL, 'm' },
    { "codec", required_argument, NULL, 'c' },
    { "rate", required_argument, NULL, OPT_RATE },
    { "decay", required_argument, NULL, OPT_DECAY },
    { "momentum", required_argument, NULL, OPT_MOMENTUM },
    { "hidden", required_argument, NULL, OPT_HIDDEN },
    { "examples", required_argument, NULL, OPT_EXAMPLES },
    { "no-feedback", no_argument, NULL, OPT_NO_FEEDBACK },
    { "help", no_argument, NULL, 'h' },
    { NULL, 0, NULL, 0 },
};

static void parse(struct options *o, int argc, char **argv)
{
    int c;

    *o = (struct options){ .model = models,
                           .seed = 1,
                           .rate = -1,
                           .decay = -1,
                           .momentum = 0.9f,
                           .examples = 4000,
                           .feedback = 1,
                           .data = DIGITS_CSV };
    while ((c = getopt_long(argc, argv, "e:b:P:s:d:m:c:h", longs, NULL)) != -1) {
        switch (c) {
        case 'e': o->epochs = number("--epochs", optarg, 1, 100000); break;
        case 'b': o->batch = number("--batch", optarg, 1, 100000); break;
        case 'P': o->nlocal = number("-P", optarg, 1, 512); break;
        case 's': o->seed = (uint64_t)number("--seed", optarg, 0, 1 << 30); break;
        case 'd': o->data = optarg; break;
        case 'm': o->model = model_named(optarg); break;
        case 'c': o->codec = optarg; break;
        case OPT_RATE: o->rate = fraction("--rate", optarg, 1e-6, 10); break;
        case OPT_DECAY: o->decay = fraction("--decay", optarg, 1e-3, 1); break;
        case OPT_MOMENTUM: o->momentum = fraction("--momentum", optarg, 0, 0.999); break;
        case OPT_HIDDEN: o->hidden = number("--hidden", optarg, 1, WIDTH_MAX); break;
        case OPT_EXAMPLES: o->examples = number("--examples", optarg, 100, 1 << 20); break;
        case OPT_NO_FEEDBACK: o->feedback = 0; break;
        default: fputs(usage, c == 'h' ? stdout : stderr); exit(c == 'h' ? 0 : 2);
        }
    }
    if (optind < argc) {
        fprintf(stderr, "train_digits: no such argument: %s\n%s", argv[optind], usage);
        exit(2);
    }
    o->epochs = o->epochs ? o->epochs : o->model->epochs;
    o->batch = o->batch ? o->batch : o->model->batch;
    o->rate = o->rate > 0 ? o->rate : o->model->rate;
    o->decay = o->decay > 0 ? o->decay : o->model->decay;
}

int main(int argc, char **argv)
{
    struct trainer *t = calloc(1, sizeof *t);
    pid_t child[512] = { 0 };
    int rc;

    if (!t)
        return 1;
    parse(&t->opt, argc, argv);
    if (t->opt.codec)
        setenv("BANYAN_CODEC_FORCE", "1",
               0); /* ranks of one host share memory: no codec pays there */
    rc = t->opt.nlocal ? start_local(t, child) : banyan_comm_init_env(&t->comm, NULL);
    if (rc == 0)
        rc = run(t);
    else
        fprintf(stderr, "train_digits: cannot join: %s\n", banyan_last_error());
    if (rc == 0 && banyan_comm_finalize(t->comm) < 0) {
        fprintf(stderr, "train_digits: %s\n", banyan_last_error());
        rc = 1;
    } else if (rc != 0) {
        banyan_comm_destroy(t->comm);
    }
    for (int r = 1; r < 512 && child[r]; r++) {
        int status;

        if (waitpid(child[r], &status, 0) != child[r] || status != 0)
            rc = rc ? rc : 1;
    }
    free(t);
    return rc != 0;
}
