/* SPDX-License-Identifier: BSD-3-Clause */
/* Data-parallel training on real handwritten digits, or of a larger network on examples that a
 * random one has labelled. Every rank computes the gradient of its share of each batch; an
 * allreduce adds them up; every rank takes the same step. n ranks therefore follow the path of
 * one rank, to rounding, unless --codec loses something.
 *
 *     train_digits -P 4
 *     train_digits -P 4 --model teacher --codec topk:delta=0.01
 *     train_digits -P 4 --model teacher --controller accordion --codec topk:delta=0.0005
 *     banyan_run -n 4 train_digits
 *     mpirun -n 4 train_digits */
#include <banyan/banyan.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "method.h"
#include "controlled.h"
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
    const char *data, *codec, *log;
    struct method_options method; /* name NULL: exchange.h */
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
    struct controlled controlled;
    float *velocity,
        *grad;  /* [net.n]; behind the gradient lies the loss, which travels with it */
    float rate; /* of the present epoch */
    double step_s, comm_s; /* of the present epoch */
    FILE *log;
};

/* Momentum SGD. A codec that has the momentum in it (dgc) gets none from us. */
static void update(struct trainer *t, int n)
{
    int codecs = t->opt.codec && !strncmp(t->opt.codec, "dgc", 3);
    size_t coded = t->controlled.method ? t->controlled.coded : t->ex.coded;
    float scale = 1.0f / (float)n;

    for (size_t i = 0; i < t->net.n; i++) {
        float momentum = codecs && i < coded ? 0 : t->opt.momentum;

        t->velocity[i] = momentum * t->velocity[i] + t->grad[i] * scale;
        t->net.param[i] -= t->rate * t->velocity[i];
    }
}

/* One batch: n examples of which this rank takes every nranks-th. */
static int step(struct trainer *t, const int *batch, int n, double *loss)
{
    double start = job_now(), before;
    int rc;

    memset(t->grad, 0, (t->net.n + 1) * sizeof(float));
    for (int i = t->rank; i < n; i += t->nranks)
        t->grad[t->net.n] += network_gradient(&t->net, &t->all[batch[i]], t->grad);
    before = job_now();
    rc = exchange_sum_coded(&t->ex, t->grad);
    if (rc == 0)
        rc = exchange_sum_rest(&t->ex, t->grad, t->net.n);
    t->comm_s += job_now() - before;
    if (rc < 0)
        return rc;
    update(t, n);
    t->step_s += job_now() - start;
    *loss += (double)t->grad[t->net.n];
    return 0;
}

/* The same with a method of the training layer, which may ask for several batches a step: then
 * the rate grows with them. n: examples of all these. */
static int controlled_step(struct trainer *t, const int *batch, int n, double *loss)
{
    int micro_steps = method_accumulate(t->controlled.method), rc = 0;
    float rate = t->rate;
    double start = job_now(), own = 0, before;

    memset(t->grad, 0, (t->net.n + 1) * sizeof(float));
    for (int m = 0; m < micro_steps && rc == 0; m++) {
        int end = (m + 1) * t->opt.batch < n ? (m + 1) * t->opt.batch : n;

        for (int i = m * t->opt.batch + t->rank; i < end; i += t->nranks)
            own += (double)network_gradient(&t->net, &t->all[batch[i]], t->grad);
        before = job_now();
        rc = controlled_reduce(&t->controlled, m == micro_steps - 1, 1.0f / (float)n);
        t->comm_s += job_now() - before;
    }
    if (rc < 0)
        return rc;
    controlled_before(&t->controlled, &t->net);
    t->rate *= (float)micro_steps;
    update(t, 1);
    t->rate = rate;
    before = job_now();
    rc = controlled_after(&t->controlled, &t->net, own * t->nranks / n, (double)rate);
    t->comm_s += job_now() - before;
    t->step_s += job_now() - start;
    *loss += own;
    return rc;
}

/* Parameters of methods that let ranks go apart: their mean, for as long as accuracy is
 * counted.
 */
static int together(struct trainer *t, float *aside)
{
    if (!t->controlled.method || !method_is_local(t->controlled.method))
        return 0;
    memcpy(aside, t->net.param, t->net.n * sizeof(float));
    return banyan_allreduce(t->net.param, t->net.param, t->net.n, BANYAN_F32, BANYAN_AVG,
                            t->comm, NULL);
}

static void apart(struct trainer *t, const float *aside)
{
    if (t->controlled.method && method_is_local(t->controlled.method))
        memcpy(t->net.param, aside, t->net.n * sizeof(float));
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

/* Bytes a step of the rank that sent most, for the encoded matrices or, with a controller, for
 * everything; and what an allreduce of that in f32 sends at least. */
static int wire(struct trainer *t, int steps, double *sent, double *raw)
{
    uint64_t most = t->controlled.method ? t->controlled.wire : t->ex.wire_bytes;
    size_t elements = t->controlled.method ? t->net.n : t->ex.coded;
    int rc = banyan_allreduce(&most, &most, 1, BANYAN_U64, BANYAN_MAX, t->comm, NULL);

    *sent = (double)most / steps;
    *raw = 8.0 * (double)elements * (t->nranks - 1) / t->nranks;
    return rc;
}

/* Where training stands. */
struct progress {
    int epoch, steps, same;
    double loss, train_accuracy, test_accuracy, step_s, comm_s, wire_bytes, raw_bytes;
    uint64_t wire_all; /* of all steps and ranks; a controller's */
    char detail[256];  /* what the controller says of itself */
};

/* One pass over the examples. A batch of all of them keeps their order, so that each rank has
 * the same ones in each. Returns what the library does; *n: steps. */
static int pass(struct trainer *t, uint64_t *state, double *loss, int *n)
{
    int rc = 0;

    if (t->opt.batch < t->ntrain)
        shuffle(t->order, t->ntrain, state);
    for (int at = 0; at < t->ntrain && rc == 0; *n += 1) {
        struct method *m = t->controlled.method;
        int take = t->opt.batch * (m ? method_accumulate(m) : 1), left = t->ntrain - at;

        take = left < take ? left : take;
        rc = (m ? controlled_step : step)(t, t->order + at, take, loss);
        at += take;
    }
    if (t->controlled.method && rc == 0) {
        double start = job_now();

        rc = controlled_settle(&t->controlled);
        t->comm_s += job_now() - start;
        t->step_s += job_now() - start;
    }
    return rc;
}

static int count(struct trainer *t, struct progress *p)
{
    float *aside = malloc(t->net.n * sizeof(float));
    int rc = aside ? together(t, aside) : -BANYAN_ENOMEM;

    if (rc == 0)
        rc = accuracy(t, 0, t->ntrain, &p->train_accuracy);
    if (rc == 0)
        rc = accuracy(t, t->ntrain, t->ntest, &p->test_accuracy);
    if (aside)
        apart(t, aside);
    free(aside);
    if (rc < 0 || !t->controlled.method)
        return rc;
    rc = banyan_allreduce(&t->controlled.wire, &p->wire_all, 1, BANYAN_U64, BANYAN_SUM, t->comm,
                          NULL);
    if (rc == 0)
        rc = banyan_allreduce(&p->loss, &p->loss, 1, BANYAN_F64, BANYAN_SUM, t->comm, NULL);
    return rc < 0 ? rc : method_describe(t->controlled.method, p->detail, sizeof p->detail);
}

static void say_epoch(const struct trainer *t, const struct progress *p, int n)
{
    printf("%5d  %8.6f  %8.2f%%  %7.2f%%  %7.1f  %12.1f%%  %s\n", p->epoch, p->loss,
           100 * p->train_accuracy, 100 * p->test_accuracy, t->step_s / n * 1e6,
           100 * t->comm_s / t->step_s, p->detail);
    fflush(stdout);
    job_bar(p->epoch, t->opt.epochs, p->loss, p->step_s);
    if (t->log)
        fprintf(t->log,
                "{\"epoch\": %d, \"step\": %d, \"loss\": %.6f, \"test_accuracy\": %.4f, "
                "\"seconds\": %.4f, \"wire_bytes\": %llu, \"name\": \"%s\", \"codec\": "
                "\"%s\", \"detail\": \"%s\"}\n",
                p->epoch, p->steps, p->loss, p->test_accuracy, p->step_s,
                (unsigned long long)p->wire_all,
                t->opt.method.name ? t->opt.method.name : "exchange",
                t->opt.codec ? t->opt.codec : "none", p->detail);
}

static int epoch(struct trainer *t, struct progress *p, uint64_t *state)
{
    float part = t->opt.epochs > 1 ? (float)p->epoch++ / (float)(t->opt.epochs - 1) : 0;
    float rate = t->opt.rate * (1 - part * (1 - t->opt.decay));
    int n = 0, rc = t->rate == rate ? 0 : exchange_rate_changes(&t->ex, t->rate, rate);

    t->rate = rate;
    p->loss = t->step_s = t->comm_s = 0;
    if (rc == 0)
        rc = pass(t, state, &p->loss, &n);
    p->steps += n;
    p->step_s += t->step_s;
    p->comm_s += t->comm_s;
    if (rc == 0)
        rc = count(t, p);
    p->loss /= t->ntrain;
    if (rc == 0 && t->rank == 0)
        say_epoch(t, p, n);
    return rc;
}

static void say_result(const struct trainer *t, const struct progress *p)
{
    printf("result ranks=%d epochs=%d loss=%.6f train_accuracy=%.4f test_accuracy=%.4f "
           "step_us=%.1f comm_share=%.3f identical=%d model=%s seed=%llu codec=%s feedback=%d "
           "wire_bytes=%.0f raw_bytes=%.0f steps=%d controller=%s wire_all=%llu seconds=%.4f "
           "%s\n",
           t->nranks, t->opt.epochs, p->loss, p->train_accuracy, p->test_accuracy,
           p->step_s / p->steps * 1e6, p->comm_s / p->step_s, p->same, t->opt.model->name,
           (unsigned long long)t->opt.seed, t->opt.codec ? t->opt.codec : "-", t->opt.feedback,
           p->wire_bytes, p->raw_bytes, p->steps,
           t->opt.method.name ? t->opt.method.name : "none", (unsigned long long)p->wire_all,
           p->step_s, p->detail);
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
    if (rc == 0 && t->controlled.method)
        rc = method_finish(t->controlled.method);
    if (rc == 0)
        rc = wire(t, p.steps, &p.wire_bytes, &p.raw_bytes);
    if (rc == 0)
        rc = job_same(t->comm, t->net.param, t->net.n, &p.same);
    if (rc < 0) {
        fprintf(stderr, "train_digits: rank %d: %s\n", t->rank, banyan_last_error());
        return 1;
    }
    if (t->rank == 0)
        say_result(t, &p);
    if (!p.same || (t->opt.model == models && !t->opt.codec && !t->opt.method.name &&
                    p.test_accuracy < 0.9)) {
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
    if (t->opt.log && t->rank == 0 && !(t->log = fopen(t->opt.log, "w"))) {
        perror(t->opt.log);
        return 1;
    }
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
    else if ((t->opt.method.name
                  ? controlled_init(&t->controlled, t->comm, &t->net, t->grad, &t->opt.method)
                  : exchange_init(&t->ex, t->comm, &t->net, t->opt.codec, t->opt.feedback,
                                  t->opt.seed)) < 0)
        fprintf(stderr, "train_digits: rank %d: %s\n", t->rank, banyan_last_error());
    else
        rc = train(t);
    exchange_free(&t->ex);
    controlled_free(&t->controlled);
    if (t->log)
        fclose(t->log);
    free(t->velocity);
    free(t->grad);
    free(t->net.param);
    free(t->order);
    free(t->all);
    return rc;
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
    "    [--codec NAME[:PARAM=VALUE,...] [--no-feedback]] [--log FILE] [--controller NAME "
    "...]\n"
    "    accordion: [--little CODEC] [--interval STEPS] [--accumulate N]\n"
    "    stale: [--delay STEPS] [--k RANKS [--late]]; buckets: [--rules TEXT]\n"
    "    [--profile FILE];\n"
    "    shared-mask: [--block N]\n"
    "    sketch: [--sketch sgd|adam] [--cells PART] [--sketch-rows N] [--delta PART]\n"
    "    gossip: [--graph NAME] [--low-rank R, 0: whole] [--iterations N] [--rounds N]\n"
    "    local: [--local fixed|adaptive|overlapped|diloco|streaming|sparseloco]\n"
    "        [--period STEPS]\n"
    "    lgc: [--lgc ring|server] [--phases DENSE,TRAIN] [--gate C]; with shared-mask:\n"
    "    [--delta PART]; ordered, lag, chb: [--xi X]\n"
    "Without -P it joins the launcher's job. --codec encodes the gradients of matrices from "
    "1024\n"
    "elements on, even where the library's cost model would refuse (BANYAN_CODEC_FORCE=0: ask\n"
    "it), with error feedback unless --no-feedback; --codec none sends them apart and raw.\n"
    "The momentum is 0.9; of shared-mask, which is late, 0.5, of sketch, which has its own, "
    "0.\n"
    "Controllers: ";

enum {
    OPT_RATE = 256,
    OPT_DECAY,
    OPT_MOMENTUM,
    OPT_HIDDEN,
    OPT_EXAMPLES,
    OPT_NO_FEEDBACK,
    OPT_LOG
};

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
    { "log", required_argument, NULL, OPT_LOG },
    METHOD_LONG_OPTIONS,
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
                           .momentum = -1,
                           .examples = 4000,
                           .feedback = 1,
                           .data = DIGITS_CSV,
                           .method = METHOD_OPTIONS_INIT };
    o->method.name = NULL;
    o->method.dense_steps = 50; /* 460 steps are all there are by default */
    o->method.train_steps = 100;
    while ((c = getopt_long(argc, argv, "e:b:P:s:d:m:c:h", longs, NULL)) != -1) {
        switch (c) {
        case 'e': o->epochs = number("--epochs", optarg, 1, 100000); break;
        case 'b': o->batch = number("--batch", optarg, 1, 100000); break;
        case 'P': o->nlocal = number("-P", optarg, 1, 512); break;
        case 's': o->seed = (uint64_t)number("--seed", optarg, 0, 1 << 30); break;
        case 'd': o->data = optarg; break;
        case 'm': o->model = model_named(optarg); break;
        case 'c': o->codec = o->method.codec = optarg; break;
        case OPT_LOG: o->log = optarg; break;
        case OPT_RATE: o->rate = fraction("--rate", optarg, 1e-6, 10); break;
        case OPT_DECAY: o->decay = fraction("--decay", optarg, 1e-3, 1); break;
        case OPT_MOMENTUM: o->momentum = fraction("--momentum", optarg, 0, 0.999); break;
        case OPT_HIDDEN: o->hidden = number("--hidden", optarg, 1, WIDTH_MAX); break;
        case OPT_EXAMPLES: o->examples = number("--examples", optarg, 100, 1 << 20); break;
        case OPT_NO_FEEDBACK: o->feedback = 0; break;
        default:
            if (!method_option(&o->method, c, optarg, "train_digits")) {
                fprintf(c == 'h' ? stdout : stderr, "%s%s.\n", usage, method_names());
                exit(c == 'h' ? 0 : 2);
            }
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
    o->momentum = o->momentum >= 0 ? o->momentum : method_momentum(o->method.name);
    o->method.rate = (double)o->rate;
    if (o->method.name &&
        strcmp(o->method.name, "chb") != 0) /* whose rule has momentum in it */
        o->method.alpha = (double)(o->rate / (1 - o->momentum));
    o->method.seed = o->seed;
}

int main(int argc, char **argv)
{
    struct trainer *t = calloc(1, sizeof *t);
    static pid_t children[JOB_RANKS_MAX];
    int rc;

    if (!t)
        return 1;
    parse(&t->opt, argc, argv);
    if (t->opt.codec)
        setenv("BANYAN_CODEC_FORCE", "1",
               0); /* ranks of one host share memory: no codec pays there */
    rc = job_join(&t->comm, t->opt.nlocal, children);
    if (rc < 0)
        fprintf(stderr, "train_digits: cannot join: %s\n", banyan_last_error());
    else
        rc = run(t);
    rc = job_leave(t->comm, children, "train_digits", rc);
    free(t);
    return rc;
}
