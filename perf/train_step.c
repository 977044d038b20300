/* SPDX-License-Identifier: BSD-3-Clause */
/* A training step of given tensors and times, for perf/predict.py: forward and backward sleep
 * (or spin) for as long as they are said to take, so that a rank computes as one that has a
 * machine of its own, however few CPUs the ranks share; gradients, buckets, codecs and the
 * network are real.
 *   banyan_run -n 2 train_step --tensors 8x1024,4x65536 [--forward US] [--backward US]
 *                              [--steps 30] [--bucket BYTES] [--first BYTES] [--rules TEXT]
 *                              [--spin] [--thread] [--profile FILE] [--log FILE]
 * --tensors: in order of registration, N x elements (f32). Backward goes from the last to the
 * first, and takes of each as long as its share of the elements. --thread: the communicator
 * has a progress thread. --profile: rank 0 writes what banyan_buckets_profile says. A line of
 * rank 0: `result` and the median, 10th and 90th of a hundred of the steps in seconds. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "banyan/training.h"
#include "base/clock.h"
#include "base/rng.h"

struct options {
    const char *tensors, *rules, *profile, *log;
    double forward_us, backward_us;
    int steps, spins, thread;
    size_t bucket, first;
};

struct trainer {
    struct options o;
    struct banyan_comm *comm;
    struct banyan_buckets *b;
    struct banyan_tensor *tensors;
    int64_t *shape;
    char (*names)[48];
    float *gradients, *fresh; /* what buckets reduce; what backward leaves there */
    size_t n, elements;
};

static void die(const char *what)
{
    fprintf(stderr, "train_step: %s: %s\n", what, banyan_last_error());
    exit(1);
}

static void ok(int rc, const char *what)
{
    if (rc < 0)
        die(what);
}

static void *memory(size_t n, size_t size)
{
    void *at = calloc(n, size);

    if (!at) {
        fprintf(stderr, "train_step: no memory\n");
        exit(1);
    }
    return at;
}

static void compute(const struct trainer *x, double us)
{
    uint64_t ns = bny_now_ns() + (uint64_t)(1e3 * us);
    struct timespec t = { .tv_sec = (time_t)(ns / 1000000000u),
                          .tv_nsec = (long)(ns % 1000000000u) };

    if (x->o.spins)
        while (bny_now_ns() < ns)
            ;
    else
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
            ;
}

/* ---- the model ---- */

/* "8x1024,65536" */
static size_t read_tensors(struct trainer *x, const char *text, int is_counted)
{
    size_t n = 0;

    for (const char *s = text; *s;) {
        char *end;
        unsigned long long times = 1, count = strtoull(s, &end, 0);

        if (*end == 'x') {
            times = count;
            count = strtoull(end + 1, &end, 0);
        }
        if (!count || !times || times > 100000 || count > 1u << 28 || (*end && *end != ',')) {
            fprintf(stderr, "train_step: --tensors wants a list such as 8x1024,65536\n");
            exit(2);
        }
        for (; times; times--, n++)
            if (is_counted)
                x->shape[n] = (int64_t)count;
        s = *end ? end + 1 : end;
    }
    return n;
}

/* Values as gradients have them: a few large, many small. */
static void make_model(struct trainer *x)
{
    uint64_t seed = 7 + (uint64_t)banyan_comm_rank(x->comm);
    size_t at = 0;

    x->n = read_tensors(x, x->o.tensors, 0);
    x->shape = memory(x->n + 1, sizeof *x->shape);
    x->names = memory(x->n + 1, sizeof *x->names);
    x->tensors = memory(x->n + 1, sizeof *x->tensors);
    read_tensors(x, x->o.tensors, 1);
    for (size_t i = 0; i < x->n; i++)
        x->elements += (size_t)x->shape[i];
    x->gradients = memory(x->elements + 1, sizeof *x->gradients);
    x->fresh = memory(x->elements + 1, sizeof *x->fresh);
    for (size_t e = 0; e < x->elements; e++) {
        double u = (double)(bny_rng_next(&seed) >> 11) * 0x1p-53 - 0.5;
        x->fresh[e] = (float)(0.01 * u * u * u);
    }
    for (size_t i = 0; i < x->n; i++) {
        snprintf(x->names[i], sizeof x->names[i], "layer%zu.weight", i);
        x->tensors[i] = (struct banyan_tensor){ .name = x->names[i],
                                                .dtype = BANYAN_F32,
                                                .ndim = 1,
                                                .shape = &x->shape[i],
                                                .grad = x->gradients + at };
        at += (size_t)x->shape[i];
    }
}

/* ---- steps ---- */

static void step(struct trainer *x)
{
    compute(x, x->o.forward_us);
    for (size_t i = x->n; i-- > 0;) {
        size_t from = (size_t)((float *)x->tensors[i].grad - x->gradients);

        compute(x, x->o.backward_us * (double)x->shape[i] / (double)x->elements);
        memcpy(x->tensors[i].grad, x->fresh + from, (size_t)x->shape[i] * sizeof *x->fresh);
        ok(banyan_buckets_ready(x->b, i), "ready");
    }
    ok(banyan_buckets_wait(x->b), "wait");
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void write_log(const struct trainer *x, const double *s)
{
    FILE *f = x->o.log ? fopen(x->o.log, "w") : NULL;

    if (x->o.log && !f)
        fprintf(stderr, "train_step: cannot write %s\n", x->o.log);
    for (int k = 0; f && k < x->o.steps; k++)
        fprintf(f, "%.9f\n", s[k]);
    if (f)
        fclose(f);
}

static void train(struct trainer *x)
{
    struct banyan_buckets_stats st = { .size = sizeof st };
    double *s = memory((size_t)x->o.steps, sizeof *s);
    uint64_t before;

    for (int k = 0; k < 3; k++)
        step(x);
    ok(banyan_barrier(x->comm, NULL), "barrier");
    before = bny_now_ns();
    for (int k = 0; k < x->o.steps; k++) {
        uint64_t now;
        step(x);
        now = bny_now_ns();
        s[k] = 1e-9 * (double)(now - before);
        before = now;
    }
    ok(banyan_buckets_stats(x->b, &st), "stats");
    if (banyan_comm_rank(x->comm) == 0) {
        write_log(x, s);
        qsort(s, (size_t)x->o.steps, sizeof *s, by_size);
        printf("result step_s=%.6f p10=%.6f p90=%.6f buckets=%llu wire_bytes=%llu\n",
               s[x->o.steps / 2], s[x->o.steps / 10], s[x->o.steps * 9 / 10],
               (unsigned long long)st.buckets, (unsigned long long)st.wire_bytes);
        if (x->o.profile)
            ok(banyan_buckets_profile(x->b, x->o.profile), "profile");
    }
    free(s);
}

static void read_options(struct options *o, int argc, char **argv)
{
    static const struct option names[] = {
        { "tensors", required_argument, NULL, 't' },
        { "forward", required_argument, NULL, 'f' },
        { "backward", required_argument, NULL, 'b' },
        { "steps", required_argument, NULL, 's' },
        { "bucket", required_argument, NULL, 'u' },
        { "first", required_argument, NULL, '1' },
        { "rules", required_argument, NULL, 'r' },
        { "profile", required_argument, NULL, 'p' },
        { "log", required_argument, NULL, 'l' },
        { "spin", no_argument, NULL, 'S' },
        { "thread", no_argument, NULL, 'T' },
        { NULL, 0, NULL, 0 },
    };
    int c;

    *o = (struct options){ .steps = 30, .bucket = 1 << 20, .first = 128 << 10 };
    while ((c = getopt_long(argc, argv, "", names, NULL)) != -1)
        switch (c) {
        case 't': o->tensors = optarg; break;
        case 'f': o->forward_us = atof(optarg); break;
        case 'b': o->backward_us = atof(optarg); break;
        case 's': o->steps = atoi(optarg); break;
        case 'u': o->bucket = strtoull(optarg, NULL, 0); break;
        case '1': o->first = strtoull(optarg, NULL, 0); break;
        case 'r': o->rules = optarg; break;
        case 'p': o->profile = optarg; break;
        case 'l': o->log = optarg; break;
        case 'S': o->spins = 1; break;
        case 'T': o->thread = 1; break;
        default: exit(2);
        }
    if (!o->tensors || o->steps < 2 || !(o->forward_us >= 0) || !(o->backward_us >= 0)) {
        fprintf(stderr, "train_step: --tensors is needed, --steps from 2, times from 0\n");
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct banyan_buckets_config cfg;
    struct banyan_config comm_cfg;
    struct trainer x = { .comm = NULL };

    read_options(&x.o, argc, argv);
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0); /* else a sleep is 50 us longer than it should */
    comm_cfg = (struct banyan_config)BANYAN_CONFIG_INIT;
    comm_cfg.progress_thread = x.o.thread;
    ok(banyan_comm_init_env(&x.comm, &comm_cfg), "init");
    make_model(&x);
    cfg = (struct banyan_buckets_config)BANYAN_BUCKETS_CONFIG_INIT;
    cfg.bucket_bytes = x.o.bucket;
    cfg.first_bytes = x.o.first;
    cfg.rules = x.o.rules;
    cfg.progress = !x.o.thread;
    cfg.profile = x.o.steps;
    ok(banyan_buckets_create(&x.b, x.comm, x.tensors, x.n, &cfg), "buckets");
    train(&x);
    banyan_buckets_free(x.b);
    ok(banyan_comm_finalize(x.comm), "finalize");
    free(x.fresh);
    free(x.gradients);
    free(x.tensors);
    free(x.names);
    free(x.shape);
    return 0;
}
