/* SPDX-License-Identifier: BSD-3-Clause */
/* Data-parallel training on real handwritten digits. Every rank computes the gradient of its
 * share of each batch; one allreduce adds them up; every rank takes the same step. n ranks
 * therefore follow the path of one rank, to rounding. train_digits -P 4        banyan_run -n 4
 * train_digits        mpirun -n 4 train_digits */
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

#include "digits.h"

#ifndef DIGITS_CSV
#define DIGITS_CSV "examples/train_digits/digits.csv"
#endif

struct options {
    int epochs, batch, nlocal;
    uint64_t seed;
    float rate;
    const char *data;
};

struct trainer {
    struct options opt;
    struct banyan_comm *comm;
    int rank, nranks;
    struct image *images;
    int ntrain, ntest; /* images[0..ntrain) train, the rest test */
    int *order;        /* of the training images, the same on all ranks */
    struct network net, velocity;
    /* What one step's allreduce carries: the gradient's sum, and the loss beside it. */
    struct {
        struct network grad;
        float loss;
    } sum;
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
        int j = (int)digits_random(state, (uint64_t)i + 1), keep = order[i];

        order[i] = order[j];
        order[j] = keep;
    }
}

/* The file is sorted by writer; the test images are a fifth of everybody's, the same whatever
 * the seed. */
static void mix(struct image *images, int n)
{
    uint64_t state = 0;

    for (int i = n - 1; i > 0; i--) {
        int j = (int)digits_random(&state, (uint64_t)i + 1);
        struct image keep = images[i];

        images[i] = images[j];
        images[j] = keep;
    }
}

/* One batch: n images of which this rank takes every nranks-th. */
static int step(struct trainer *t, const int *batch, int n, double *loss)
{
    double start = now_s(), before;
    int rc;

    memset(&t->sum, 0, sizeof t->sum);
    for (int i = t->rank; i < n; i += t->nranks)
        t->sum.loss += network_gradient(&t->net, &t->images[batch[i]], &t->sum.grad);
    before = now_s();
    rc = banyan_allreduce(&t->sum, &t->sum, sizeof t->sum / sizeof(float), BANYAN_F32,
                          BANYAN_SUM, t->comm, NULL);
    t->comm_s += now_s() - before;
    if (rc < 0)
        return rc;
    network_step(&t->net, &t->velocity, &t->sum.grad, 1.0f / (float)n, t->opt.rate);
    t->step_s += now_s() - start;
    *loss += (double)t->sum.loss;
    return 0;
}

/* Right answers among [first, first + n), each rank counting its share. */
static int accuracy(struct trainer *t, int first, int n, double *out)
{
    int64_t right = 0;
    int rc;

    for (int i = first + t->rank; i < first + n; i += t->nranks)
        right += network_predict(&t->net, &t->images[i]) == t->images[i].label;
    rc = banyan_allreduce(&right, &right, 1, BANYAN_I64, BANYAN_SUM, t->comm, NULL);
    *out = (double)right / n;
    return rc;
}

/* All ranks must hold the same bits: compares a checksum's smallest and largest value. */
static int same_everywhere(struct trainer *t, int *same)
{
    uint64_t sum = 0, v[2];
    const uint32_t *word = (const uint32_t *)&t->net;
    int rc;

    for (size_t i = 0; i < sizeof t->net / 4; i++)
        sum = sum * 1099511628211u + word[i];
    v[0] = sum;
    v[1] = ~sum;
    rc = banyan_allreduce(v, v, 2, BANYAN_U64, BANYAN_MAX, t->comm, NULL);
    *same = v[0] == ~v[1];
    return rc;
}

static int train(struct trainer *t)
{
    uint64_t state = t->opt.seed;
    double train_acc = 0, test_acc = 0, loss = 0, total_step = 0, total_comm = 0;
    int steps = 0, rc = 0, same = 0;

    if (t->rank == 0)
        printf("%d ranks, %d training and %d test images, %zu parameters, batch %d\n"
               "epoch      loss  train acc  test acc  step us  communication\n",
               t->nranks, t->ntrain, t->ntest, sizeof t->net / sizeof(float), t->opt.batch);
    for (int epoch = 1; epoch <= t->opt.epochs && rc == 0; epoch++) {
        int n = 0;

        loss = t->step_s = t->comm_s = 0;
        shuffle(t->order, t->ntrain, &state);
        for (int at = 0; at < t->ntrain && rc == 0; at += t->opt.batch, n++)
            rc = step(t, t->order + at,
                      t->ntrain - at < t->opt.batch ? t->ntrain - at : t->opt.batch, &loss);
        if (rc == 0)
            rc = accuracy(t, 0, t->ntrain, &train_acc);
        if (rc == 0)
            rc = accuracy(t, t->ntrain, t->ntest, &test_acc);
        loss /= t->ntrain;
        steps += n;
        total_step += t->step_s;
        total_comm += t->comm_s;
        if (rc == 0 && t->rank == 0) {
            printf("%5d  %8.6f  %8.2f%%  %7.2f%%  %7.1f  %12.1f%%\n", epoch, loss,
                   100 * train_acc, 100 * test_acc, t->step_s / n * 1e6,
                   100 * t->comm_s / t->step_s);
            fflush(stdout);
        }
    }
    if (rc == 0)
        rc = same_everywhere(t, &same);
    if (rc < 0) {
        fprintf(stderr, "train_digits: rank %d: %s\n", t->rank, banyan_last_error());
        return 1;
    }
    if (t->rank == 0)
        printf("result ranks=%d epochs=%d loss=%.6f train_accuracy=%.4f test_accuracy=%.4f "
               "step_us=%.1f comm_share=%.3f identical=%d\n",
               t->nranks, t->opt.epochs, loss, train_acc, test_acc, total_step / steps * 1e6,
               total_comm / total_step, same);
    if (!same || test_acc < 0.9) {
        if (t->rank == 0)
            fprintf(stderr, "train_digits: %s\n",
                    same ? "the test accuracy is below 0.9" : "the ranks' networks differ");
        return 1;
    }
    return 0;
}

static int run(struct trainer *t)
{
    int n = digits_load(t->opt.data, &t->images), rc;

    if (n < 10) {
        if (n >= 0)
            fprintf(stderr, "train_digits: %s has only %d images\n", t->opt.data, n);
        return 1;
    }
    t->rank = banyan_comm_rank(t->comm);
    t->nranks = banyan_comm_count(t->comm);
    t->ntest = n / 5;
    t->ntrain = n - t->ntest;
    t->order = malloc((size_t)t->ntrain * sizeof *t->order);
    if (!t->order)
        return 1;
    for (int i = 0; i < t->ntrain; i++)
        t->order[i] = i;
    mix(t->images, n);
    network_init(&t->net, t->opt.seed);
    rc = train(t);
    free(t->order);
    free(t->images);
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

static void parse(struct options *o, int argc, char **argv)
{
    static const struct option longs[] = {
        { "epochs", required_argument, NULL, 'e' },
        { "batch", required_argument, NULL, 'b' },
        { "ranks", required_argument, NULL, 'P' },
        { "seed", required_argument, NULL, 's' },
        { "data", required_argument, NULL, 'd' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    int c;

    *o = (struct options){
        .epochs = 20, .batch = 64, .seed = 1, .rate = 0.1f, .data = DIGITS_CSV
    };
    while ((c = getopt_long(argc, argv, "e:b:P:s:d:h", longs, NULL)) != -1) {
        switch (c) {
        case 'e': o->epochs = number("--epochs", optarg, 1, 100000); break;
        case 'b': o->batch = number("--batch", optarg, 1, 100000); break;
        case 'P': o->nlocal = number("-P", optarg, 1, 512); break;
        case 's': o->seed = (uint64_t)number("--seed", optarg, 0, 1 << 30); break;
        case 'd': o->data = optarg; break;
        default:
            printf("usage: train_digits [-P RANKS] [--epochs N] [--batch N] [--seed N] "
                   "[--data FILE]\nWithout -P it joins the launcher's job.\n");
            exit(c == 'h' ? 0 : 2);
        }
    }
}

int main(int argc, char **argv)
{
    struct trainer *t = calloc(1, sizeof *t);
    pid_t child[512] = { 0 };
    int rc;

    if (!t)
        return 1;
    parse(&t->opt, argc, argv);
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
