/* SPDX-License-Identifier: BSD-3-Clause */
/* A character-level language model, data-parallel: every rank computes the gradient of its
 * sequences, a method of banyan's training layer exchanges them while backward still runs.
 *
 *     train_text -P 4
 *     train_text -P 4 --controller accordion --codec topk:delta=0.001
 *     banyan_run -n 4 train_text --log run.json --checkpoint run
 *     mpirun -n 4 train_text */
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "method.h"
#include "text.h"
#include "transformer.h"

/* Of OpenBLAS alone. */
void openblas_set_num_threads(int n) __attribute__((weak));

struct options {
    const char *text, *log, *folder;
    int nlocal, steps, batch, every, save_every, resume, stop;
    float rate, drop, clip;
    uint64_t seed;
    struct shape shape;
    struct method_options method;
};

struct trainer {
    struct options opt;
    struct banyan_comm *comm;
    int rank, nranks;
    struct text text;
    struct transformer model;
    struct banyan_tensor *tensors;
    float *moment1, *moment2, *keep; /* Adam; parameters put aside */
    struct method *method;
    int step, last_micro;       /* 1: in the last micro-step of a step */
    double seconds, exchange_s; /* of steps; of these, in the method's functions */
    uint64_t wire;              /* bytes that this rank sent in steps */
    double loss_sum;            /* of the steps since the last report */
    int loss_steps;
    uint64_t kept_n; /* floats of the model that a checkpoint is of */
    FILE *log;
};

static uint64_t random_at(uint64_t seed, uint64_t a, uint64_t b)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + a * 0xbf58476d1ce4e5b9u + b * 0x94d049bb133111ebu;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t wire_now(const struct trainer *t)
{
    struct banyan_stats s = { .size = sizeof s };

    return banyan_comm_stats(t->comm, &s) == 0 ? s.wire_bytes : 0;
}

/* Sequences of a step: of seed, step and number alone, so that n ranks learn from what one rank
 * would, and a run that goes on from a checkpoint from the same. */
static void draw(const struct trainer *t, uint64_t seed, int step, size_t first, size_t n,
                 unsigned char *in, unsigned char *want)
{
    int context = t->model.shape.context;

    for (int b = 0; b < t->model.batch; b++) {
        uint64_t number = (uint64_t)(b * t->nranks + t->rank);
        size_t at = first + (size_t)(random_at(seed, (uint64_t)step, number) %
                                     (uint64_t)(n - (size_t)context - 1));

        memcpy(in + b * context, t->text.at + at, (size_t)context);
        memcpy(want + b * context, t->text.at + at + 1, (size_t)context);
    }
}

static float rate_at(const struct options *o, int step)
{
    return o->rate * (step >= o->steps - o->steps / 4 ? o->drop : 1);
}

static int ready(void *ctx, int parameter)
{
    struct trainer *t = ctx;
    double start = job_now();
    const struct parameter *p = &t->model.parameter[parameter];
    float share = 1.0f / (float)(t->nranks * method_accumulate(t->method));
    int rc;

    for (size_t i = 0; i < p->count && t->last_micro; i++)
        t->model.grad[p->at + i] *= share;
    rc = method_ready(t->method, (size_t)parameter);
    t->exchange_s += job_now() - start;
    return rc;
}

/* Adam (Kingma and Ba 2015). Gradients longer than clip are shortened to it. Returns the
 * squared length of the step. */
static double adam(struct trainer *t, float rate)
{
    const float keep1 = 0.9f, keep2 = 0.99f;
    float correct1 = 1 / (1 - powf(keep1, (float)t->step + 1)), scale = 1;
    float correct2 = 1 / (1 - powf(keep2, (float)t->step + 1));
    double length = 0, squared = 0;

    for (size_t i = 0; i < t->model.n; i++)
        length += (double)t->model.grad[i] * (double)t->model.grad[i];
    if (sqrt(length) > (double)t->opt.clip)
        scale = t->opt.clip / (float)sqrt(length);
    for (size_t i = 0; i < t->model.n; i++) {
        float g = t->model.grad[i] * scale, d;

        t->moment1[i] = keep1 * t->moment1[i] + (1 - keep1) * g;
        t->moment2[i] = keep2 * t->moment2[i] + (1 - keep2) * g * g;
        d = rate * t->moment1[i] * correct1 / (sqrtf(t->moment2[i] * correct2) + 1e-8f);
        t->model.param[i] -= d;
        squared += (double)d * (double)d;
    }
    return squared;
}

static int step(struct trainer *t)
{
    size_t chars = (size_t)t->model.batch * (size_t)t->model.shape.context;
    unsigned char *in = malloc(2 * chars), *want = in + chars;
    int micro_steps = method_accumulate(t->method), rc = 0;
    double start = job_now(), before, loss = 0;
    uint64_t wire = wire_now(t);

    memset(t->model.grad, 0, t->model.n * sizeof(float));
    for (int micro = 0; micro < micro_steps && in && rc == 0; micro++) {
        t->last_micro = micro == micro_steps - 1;
        draw(t, t->opt.seed + (uint64_t)micro * 7919, t->step, 0, t->text.ntrain, in, want);
        loss += (double)transformer_forward(&t->model, in, want) / micro_steps;
        rc = transformer_backward(&t->model, in, want, ready, t);
        before = job_now();
        if (rc == 0)
            rc = method_reduce(t->method);
        t->exchange_s += job_now() - before;
    }
    free(in);
    if (rc == 0) {
        double squared = adam(t, rate_at(&t->opt, t->step));

        before = job_now();
        rc = method_stepped(t->method, squared, loss, (double)rate_at(&t->opt, t->step + 1));
        t->exchange_s += job_now() - before;
    }
    t->step++;
    t->seconds += job_now() - start;
    t->wire += wire_now(t) - wire;
    t->loss_sum += loss;
    t->loss_steps++;
    return rc;
}

/* What is under way belongs to the steps, and would else end in what is not counted. */
static int settle(struct trainer *t)
{
    double start = job_now();
    uint64_t wire = wire_now(t);
    int rc = method_settle(t->method);

    t->seconds += job_now() - start;
    t->exchange_s += job_now() - start;
    t->wire += wire_now(t) - wire;
    return rc;
}

/* Mean loss of all ranks on text that nobody learns from; of local SGD with the mean of all
 * ranks' parameters. */
static int test_loss(struct trainer *t, double *out)
{
    size_t chars = (size_t)t->model.batch * (size_t)t->model.shape.context;
    size_t bytes = t->model.n * sizeof(float);
    unsigned char *in = malloc(2 * chars), *want = in + chars;
    enum { ROUNDS = 8 };
    double sum = 0;
    int rc = 0, local = method_is_local(t->method);

    if (local) {
        memcpy(t->keep, t->model.param, bytes);
        rc = banyan_allreduce(t->model.param, t->model.param, t->model.n, BANYAN_F32,
                              BANYAN_AVG, t->comm, NULL);
    }
    for (int k = 0; k < ROUNDS && in; k++) {
        draw(t, 4711, k, t->text.ntrain, t->text.n - t->text.ntrain, in, want);
        sum += (double)transformer_forward(&t->model, in, want) / ROUNDS;
    }
    free(in);
    if (local)
        memcpy(t->model.param, t->keep, bytes);
    *out = sum;
    return rc < 0 ? rc : banyan_allreduce(out, out, 1, BANYAN_F64, BANYAN_AVG, t->comm, NULL);
}

/* What all ranks sent, the slowest one's seconds, the mean loss. */
static int gather(struct trainer *t, uint64_t *wire, double *seconds, double *loss)
{
    int rc = banyan_allreduce(&t->wire, wire, 1, BANYAN_U64, BANYAN_SUM, t->comm, NULL);

    *loss = t->loss_steps ? t->loss_sum / t->loss_steps : 0;
    if (rc == 0)
        rc = banyan_allreduce(&t->seconds, seconds, 1, BANYAN_F64, BANYAN_MAX, t->comm, NULL);
    if (rc == 0)
        rc = banyan_allreduce(loss, loss, 1, BANYAN_F64, BANYAN_AVG, t->comm, NULL);
    return rc;
}

static int report(struct trainer *t, double *test)
{
    double seconds, loss;
    uint64_t wire;
    char text[256];
    int rc = settle(t);

    if (rc == 0)
        rc = test_loss(t, test);
    if (rc == 0)
        rc = gather(t, &wire, &seconds, &loss);
    if (rc == 0)
        rc = method_describe(t->method, text, sizeof text);
    t->loss_sum = 0;
    t->loss_steps = 0;
    if (rc < 0 || t->rank != 0)
        return rc;
    printf("%6d  %8.4f  %8.4f  %9.2f  %14llu  %s\n", t->step, loss, *test, seconds,
           (unsigned long long)wire, text);
    fflush(stdout);
    if (t->log) {
        fprintf(t->log,
                "{\"step\": %d, \"loss\": %.6f, \"test_loss\": %.6f, \"seconds\": %.4f, "
                "\"exchange_s\": %.4f, \"wire_bytes\": %llu, \"name\": \"%s\", \"codec\": "
                "\"%s\", \"detail\": \"%s\"}\n",
                t->step, loss, *test, seconds, t->exchange_s, (unsigned long long)wire,
                t->opt.method.name, t->opt.method.codec ? t->opt.method.codec : "none", text);
        fflush(t->log);
    }
    return rc;
}

/* ---- checkpoints ---- */

/* All but the method's state. */
static int parts_of(struct trainer *t, struct job_part *parts)
{
    size_t n = t->model.n * sizeof(float);
    const struct job_part list[] = {
        { &t->kept_n, sizeof t->kept_n },
        { &t->step, sizeof t->step },
        { &t->seconds, sizeof t->seconds },
        { &t->wire, sizeof t->wire },
        { &t->loss_sum, sizeof t->loss_sum },
        { &t->loss_steps, sizeof t->loss_steps },
        { t->model.param, n },
        { t->moment1, n },
        { t->moment2, n },
    };

    memcpy(parts, list, sizeof list);
    return (int)(sizeof list / sizeof list[0]);
}

static int save(struct trainer *t)
{
    struct job_part parts[16];
    int rc = method_settle(t->method), n = parts_of(t, parts);
    size_t bytes = method_bytes(t->method);
    void *state = malloc(bytes + 1);

    t->kept_n = t->model.n;
    if (rc == 0 && state)
        rc = method_save(t->method, state, bytes);
    parts[n] = (struct job_part){ state, bytes };
    if (rc == 0)
        rc = state ? job_write(t->opt.folder, t->comm, parts, n + 1) : -1;
    free(state);
    return rc;
}

static int resume(struct trainer *t)
{
    struct job_part parts[16];
    int64_t v[2];
    size_t bytes;
    void *state;
    int rc = job_read(t->opt.folder, t->comm, parts, parts_of(t, parts), &state, &bytes);

    if (rc == 0 && t->kept_n != t->model.n) {
        fprintf(stderr, "train_text: rank %d: %s is no checkpoint of this model\n", t->rank,
                t->opt.folder);
        rc = -1;
    }
    if (rc == 0)
        rc = method_load(t->method, state, bytes);
    free(state);
    v[0] = t->step;
    v[1] = -t->step;
    if (rc == 0)
        rc = banyan_allreduce(v, v, 2, BANYAN_I64, BANYAN_MAX, t->comm, NULL);
    if (rc == 0 && v[0] != -v[1]) {
        fprintf(stderr, "train_text: rank %d: its checkpoint is of step %d, others' are not\n",
                t->rank, t->step);
        return -1;
    }
    return rc;
}

/* ---- the run ---- */

static int learn(struct trainer *t, double *test)
{
    const struct options *o = &t->opt;
    int rc = o->resume ? resume(t) : 0, until = o->stop ? o->stop : o->steps;

    if (rc == 0 && t->rank == 0)
        printf("%d ranks, %zu characters, %zu parameters, %d sequences of %d a step, seed "
               "%llu, %s\n  step      loss  test loss    seconds      wire bytes\n",
               t->nranks, t->text.n, t->model.n, t->opt.batch, o->shape.context,
               (unsigned long long)o->seed, o->method.name);
    while (rc == 0 && t->step < until) {
        rc = step(t);
        if (rc == 0 && t->rank == 0)
            job_bar(t->step, o->steps, t->loss_sum / t->loss_steps, t->seconds);
        if (rc == 0 && t->step % o->every == 0 && t->step < until)
            rc = report(t, test);
        if (rc == 0 && o->folder && (t->step % o->save_every == 0 || t->step == until))
            rc = save(t);
    }
    if (rc == 0 && t->step == o->steps)
        rc = method_finish(t->method);
    return rc == 0 ? report(t, test) : rc;
}

static int result(struct trainer *t, double test)
{
    double seconds, loss, exchange = t->exchange_s;
    uint64_t wire;
    char text[256];
    int same, rc = job_same(t->comm, t->model.param, t->model.n, &same);

    if (rc == 0)
        rc = gather(t, &wire, &seconds, &loss);
    if (rc == 0)
        rc = banyan_allreduce(&exchange, &exchange, 1, BANYAN_F64, BANYAN_MAX, t->comm, NULL);
    if (rc == 0)
        rc = method_describe(t->method, text, sizeof text);
    if (rc < 0)
        return rc;
    if (t->rank == 0)
        printf("result ranks=%d steps=%d loss=%.6f seconds=%.4f exchange_s=%.4f "
               "wire_bytes=%llu identical=%d seed=%llu controller=%s codec=%s %s\n",
               t->nranks, t->step, test, seconds, exchange, (unsigned long long)wire, same,
               (unsigned long long)t->opt.seed, t->opt.method.name,
               t->opt.method.codec ? t->opt.method.codec : "none", text);
    if (!same && t->step == t->opt.steps) {
        fprintf(stderr, "train_text: rank %d: the ranks' models differ\n", t->rank);
        return -1;
    }
    return 0;
}

static int prepare(struct trainer *t)
{
    struct method_model model;
    struct transformer *m = &t->model;

    if (t->opt.batch % t->nranks) {
        fprintf(stderr,
                "train_text: --batch %d cannot be shared by %d ranks; take a multiple\n",
                t->opt.batch, t->nranks);
        return -1;
    }
    if (text_load(&t->text, t->opt.text) != 0)
        return -1;
    if (t->text.n - t->text.ntrain < (size_t)t->opt.shape.context + 2) {
        fprintf(stderr, "train_text: %s has only %zu characters\n", t->opt.text, t->text.n);
        return -1;
    }
    t->opt.shape.vocab = t->text.vocab;
    if (transformer_init(m, &t->opt.shape, t->opt.batch / t->nranks, t->opt.seed) != 0)
        return -1;
    t->tensors = calloc((size_t)m->nparameters, sizeof *t->tensors);
    t->moment1 = calloc(m->n, sizeof(float));
    t->moment2 = calloc(m->n, sizeof(float));
    t->keep = malloc(m->n * sizeof(float));
    if (!t->tensors || !t->moment1 || !t->moment2 || !t->keep)
        return -1;
    for (int i = 0; i < m->nparameters; i++)
        t->tensors[i] =
            (struct banyan_tensor){ m->parameter[i].name, BANYAN_F32, m->parameter[i].ndim,
                                    m->parameter[i].dims, m->grad + m->parameter[i].at };
    model =
        (struct method_model){ t->tensors, (size_t)m->nparameters, m->n, m->param, m->grad };
    /* Adam moves each parameter by about the rate, and gradients are about 1 long. */
    t->opt.method.alpha = (double)t->opt.rate * sqrt((double)m->n);
    return method_create(&t->method, t->comm, &model, &t->opt.method);
}

static int run(struct trainer *t)
{
    double test = 0;
    int rc;

    t->rank = banyan_comm_rank(t->comm);
    t->nranks = banyan_comm_count(t->comm);
    if (t->opt.log && t->rank == 0) {
        t->log = fopen(t->opt.log, t->opt.resume ? "a" : "w");
        if (!t->log)
            perror(t->opt.log);
    }
    rc = t->opt.log && t->rank == 0 && !t->log ? -1 : prepare(t);
    if (rc == 0)
        rc = learn(t, &test);
    if (rc == 0)
        rc = result(t, test);
    if (rc < 0)
        fprintf(stderr, "train_text: rank %d: %s\n", t->rank, banyan_last_error());
    method_free(t->method);
    transformer_free(&t->model);
    free(t->tensors);
    free(t->moment1);
    free(t->moment2);
    free(t->keep);
    free(t->text.at);
    if (t->log)
        fclose(t->log);
    return rc != 0;
}

/* ---- options ---- */

static double number(const char *option, const char *text, double lo, double hi)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || !(v >= lo && v <= hi)) {
        fprintf(stderr, "train_text: %s wants a number from %g to %g, got %s\n", option, lo, hi,
                text);
        exit(2);
    }
    return v;
}

static const char usage[] =
    "usage: train_text [-P RANKS] [--controller NAME] [--codec NAME[:PARAM=VALUE,...]]\n"
    "    [--text FILE|FOLDER] [--steps N] [--batch SEQUENCES] [--rate R] [--drop PART]\n"
    "    [--clip LENGTH] [--seed N] [--context N] [--width N] [--layers N] [--heads N]\n"
    "    [--log FILE] [--every STEPS] [--checkpoint FOLDER [--save-every STEPS] [--resume]\n"
    "    [--stop STEP]]\n"
    "    accordion: [--little CODEC] [--interval STEPS] [--accumulate N]\n"
    "    stale: [--delay STEPS] [--k RANKS [--late]]; buckets: [--rules TEXT]\n"
    "    [--profile FILE];\n"
    "    shared-mask: [--block N]\n"
    "    sketch: [--sketch sgd|adam] [--cells PART] [--sketch-rows N] [--delta PART]\n"
    "    gossip: [--graph NAME] [--low-rank R, 0: whole] [--iterations N] [--rounds N]\n"
    "    local: [--local fixed|adaptive|overlapped|diloco|streaming|sparseloco]\n"
    "        [--period STEPS]\n"
    "    lgc: [--lgc ring|server] [--phases DENSE,TRAIN] [--gate C]; with shared-mask:\n"
    "    [--delta PART]; ordered, lag, chb: [--xi X]; buckets: [--bucket BYTES]\n"
    "Without -P it joins the launcher's job. --batch is of all ranks together. --codec serves\n"
    "tensors from 1024 elements on, even where the library's cost model would refuse\n"
    "(BANYAN_CODEC_FORCE=0: ask it). Controllers: ";

enum {
    TEXT = 256,
    RATE,
    DROP,
    CLIP,
    CONTEXT,
    WIDTH,
    LAYERS,
    HEADS,
    LOG,
    EVERY,
    FOLDER,
    SAVE_EVERY,
    RESUME,
    STOP
};

static const struct option longs[] = {
    { "ranks", 1, NULL, 'P' },
    { "codec", 1, NULL, 'c' },
    { "steps", 1, NULL, 'n' },
    { "batch", 1, NULL, 'b' },
    { "seed", 1, NULL, 's' },
    { "text", 1, NULL, TEXT },
    { "rate", 1, NULL, RATE },
    { "drop", 1, NULL, DROP },
    { "clip", 1, NULL, CLIP },
    { "context", 1, NULL, CONTEXT },
    { "width", 1, NULL, WIDTH },
    { "layers", 1, NULL, LAYERS },
    { "heads", 1, NULL, HEADS },
    { "log", 1, NULL, LOG },
    { "every", 1, NULL, EVERY },
    { "checkpoint", 1, NULL, FOLDER },
    { "save-every", 1, NULL, SAVE_EVERY },
    { "resume", 0, NULL, RESUME },
    { "stop", 1, NULL, STOP },
    METHOD_LONG_OPTIONS,
    { "help", 0, NULL, 'h' },
    { NULL, 0, NULL, 0 },
};

static void parse(struct options *o, int argc, char **argv)
{
    int c;

    *o = (struct options){ .text = "/usr/share/common-licenses",
                           .steps = 400,
                           .batch = 16,
                           .every = 50,
                           .save_every = 100,
                           .rate = 0.002f,
                           .drop = 0.1f,
                           .clip = 1,
                           .seed = 1,
                           .shape = { 0, 64, 128, 4, 4 },
                           .method = METHOD_OPTIONS_INIT };
    o->method.name = "buckets";
    while ((c = getopt_long(argc, argv, "P:c:n:b:s:h", longs, NULL)) != -1) {
        switch (c) {
        case 'P': o->nlocal = (int)number("-P", optarg, 1, JOB_RANKS_MAX); break;
        case 'n': o->steps = (int)number("--steps", optarg, 1, 1e7); break;
        case 'b': o->batch = (int)number("--batch", optarg, 1, 1e5); break;
        case 's': o->seed = (uint64_t)number("--seed", optarg, 0, 1e9); break;
        case TEXT: o->text = optarg; break;
        case RATE: o->rate = (float)number("--rate", optarg, 1e-9, 10); break;
        case DROP: o->drop = (float)number("--drop", optarg, 1e-6, 1); break;
        case CLIP: o->clip = (float)number("--clip", optarg, 1e-6, 1e9); break;
        case CONTEXT: o->shape.context = (int)number("--context", optarg, 2, 4096); break;
        case WIDTH: o->shape.width = (int)number("--width", optarg, 1, 8192); break;
        case LAYERS: o->shape.layers = (int)number("--layers", optarg, 1, 200); break;
        case HEADS: o->shape.heads = (int)number("--heads", optarg, 1, 256); break;
        case LOG: o->log = optarg; break;
        case EVERY: o->every = (int)number("--every", optarg, 1, 1e7); break;
        case FOLDER: o->folder = optarg; break;
        case SAVE_EVERY: o->save_every = (int)number("--save-every", optarg, 1, 1e7); break;
        case RESUME: o->resume = 1; break;
        case STOP: o->stop = (int)number("--stop", optarg, 1, 1e7); break;
        case 'c': o->method.codec = optarg; break;
        default:
            if (!method_option(&o->method, c, optarg, "train_text")) {
                fprintf(c == 'h' ? stdout : stderr, "%s%s.\n", usage, method_names());
                exit(c == 'h' ? 0 : 2);
            }
        }
    }
    if (optind < argc || o->shape.width % o->shape.heads || (o->resume && !o->folder)) {
        fprintf(stderr, "train_text: %s\n",
                optind < argc             ? "an argument too many"
                : o->resume && !o->folder ? "--resume needs --checkpoint"
                                          : "--width must be a multiple of --heads");
        exit(2);
    }
    o->method.rate = (double)o->rate;
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
    /* Ranks of one host share memory: no codec pays there. And each has a core at most. */
    setenv("BANYAN_CODEC_FORCE", "1", 0);
    if (openblas_set_num_threads)
        openblas_set_num_threads(1);
    rc = job_join(&t->comm, t->opt.nlocal, children);
    if (rc < 0)
        fprintf(stderr, "train_text: cannot join: %s\n", banyan_last_error());
    else
        rc = run(t);
    rc = job_leave(t->comm, children, "train_text", rc);
    free(t);
    return rc;
}
