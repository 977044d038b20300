/* SPDX-License-Identifier: BSD-3-Clause */
/* What buckets of gradients cost, and what they hide:
 *   banyan_run -n 2 train_buckets [--tensors 64] [--bytes 4096] [--steps 200] [--gap 0]
 *                                 [--bucket 1048576] [--rules TEXT] [--compute US] [--thread]
 *                                 [--mapped]
 * A step is timed between two barriers, on rank 0; medians, and the 10th and 90th of a hundred.
 *   calls    one blocking allreduce a tensor, after all of backward
 *   bare     the buckets' own reductions and nothing else: their requests started, then waited
 *            for (without a codec only)
 *   buckets  a mark a tensor while backward runs, and a wait. "own" is what a step takes beyond
 *            bare, by tensor; hidden is the share of the time in flight in which backward ran
 * --gap: bytes between gradients: 0, and buckets are reduced where they lie; more, and they are
 * copied. --mapped: gradients in memory of banyan_mem_alloc, which peers of the same host map.
 * --compute: backward of a tensor takes so many microseconds (it spins). */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/training.h"
#include "base/clock.h"

struct options {
    size_t tensors, bytes, gap, bucket;
    int steps, thread, mapped;
    double compute_us;
    const char *rules;
};

struct bench {
    struct options o;
    struct banyan_comm *comm;
    struct banyan_tensor *tensors;
    struct banyan_buckets *b;
    struct banyan_request **bare;
    size_t nbare;
    double *us; /* [steps] */
};

static void die(const char *what)
{
    fprintf(stderr, "train_buckets: %s: %s\n", what, banyan_last_error());
    exit(1);
}

static void ok(int rc, const char *what)
{
    if (rc < 0)
        die(what);
}

static void spin(double us)
{
    uint64_t end = bny_now_ns() + (uint64_t)(us * 1000);

    while (us > 0 && bny_now_ns() < end)
        ;
}

/* ---- the model ---- */

/* Never given back: the process ends with its last use. */
static void *memory_of(struct bench *x, size_t bytes, int mapped)
{
    void *at = mapped ? NULL : calloc(1, bytes);

    if (mapped)
        ok(banyan_mem_alloc(x->comm, bytes, &at), "memory");
    if (!at)
        die("no memory");
    return at;
}

static void make_tensors(struct bench *x)
{
    size_t n = x->o.tensors, count = x->o.bytes / 4 ? x->o.bytes / 4 : 1;
    size_t stride = count * 4 + x->o.gap;
    int64_t *shape = malloc(sizeof *shape);
    char *memory = memory_of(x, n * stride, x->o.mapped), *names = calloc(n, 32);

    x->tensors = calloc(n, sizeof *x->tensors);
    if (!shape || !names || !x->tensors)
        die("no memory");
    *shape = (int64_t)count;
    for (size_t i = 0; i < n; i++) {
        snprintf(names + 32 * i, 32, "layer%zu.weight", i);
        x->tensors[i] = (struct banyan_tensor){
            .name = names + 32 * i, .dtype = BANYAN_F32, .ndim = 1, .shape = shape
        };
        x->tensors[i].grad = memory + i * stride;
        for (size_t e = 0; e < count; e++)
            ((float *)x->tensors[i].grad)[e] = (float)((e * 37 + i) % 101) - 50;
    }
}

/* ---- three ways of a step ---- */

static void step_calls(struct bench *x)
{
    struct banyan_opts none = BANYAN_OPTS_INIT;

    none.codec = "none";
    for (size_t i = x->o.tensors; i-- > 0;)
        spin(x->o.compute_us);
    for (size_t i = x->o.tensors; i-- > 0;)
        ok(banyan_allreduce(x->tensors[i].grad, x->tensors[i].grad,
                            (size_t)x->tensors[i].shape[0], BANYAN_F32, BANYAN_AVG, x->comm,
                            &none),
           "allreduce");
}

static void step_bare(struct bench *x)
{
    for (size_t j = 0; j < x->nbare; j++)
        ok(banyan_start(x->bare[j]), "start");
    ok(banyan_wait_all(x->bare, x->nbare, -1), "wait");
}

static void step_buckets(struct bench *x)
{
    for (size_t i = x->o.tensors; i-- > 0;) {
        spin(x->o.compute_us);
        ok(banyan_buckets_ready(x->b, i), "ready");
    }
    ok(banyan_buckets_wait(x->b), "wait");
}

/* Requests of the sizes that the buckets have. */
static void make_bare(struct bench *x)
{
    struct banyan_buckets_stats st = { .size = sizeof st };
    size_t *count;

    ok(banyan_buckets_stats(x->b, &st), "stats");
    count = calloc(st.buckets, sizeof *count);
    x->bare = calloc(st.buckets, sizeof(struct banyan_request *));
    if (!count || !x->bare)
        die("no memory");
    for (size_t i = 0; i < x->o.tensors; i++) {
        struct banyan_buckets_tensor_stats one = { .size = sizeof one };
        ok(banyan_buckets_tensor_stats(x->b, i, &one), "stats");
        count[one.bucket] += (size_t)x->tensors[i].shape[0];
    }
    for (size_t j = 0; j < st.buckets; j++) {
        void *memory;
        if (!count[j])
            continue; /* a further piece of a large one: counted with the first */
        memory = memory_of(x, count[j] * 4, x->o.gap > 0 || x->o.mapped); /* as theirs is */
        ok(banyan_allreduce_init(memory, memory, count[j], BANYAN_F32, BANYAN_AVG, x->comm,
                                 NULL, &x->bare[x->nbare++]),
           "request");
    }
    free(count);
}

/* ---- timing ---- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median, in microseconds. */
static double measure(struct bench *x, const char *name, void (*step)(struct bench *))
{
    int warm = x->o.steps / 10 + 3;

    for (int k = -warm; k < x->o.steps; k++) {
        uint64_t t0;
        ok(banyan_barrier(x->comm, NULL), "barrier");
        t0 = bny_now_ns();
        step(x);
        if (k >= 0)
            x->us[k] = (double)(bny_now_ns() - t0) * 1e-3;
    }
    qsort(x->us, (size_t)x->o.steps, sizeof *x->us, by_size);
    if (banyan_comm_rank(x->comm) == 0)
        printf("%-8s %10.1f us a step  (10th %.1f, 90th %.1f)", name, x->us[x->o.steps / 2],
               x->us[x->o.steps / 10], x->us[x->o.steps * 9 / 10]);
    return x->us[x->o.steps / 2];
}

static void report(struct bench *x)
{
    struct banyan_buckets_stats before = { .size = sizeof before }, st = { .size = sizeof st };
    int is_root = banyan_comm_rank(x->comm) == 0;
    double bare = 0, buckets, flight;

    measure(x, "calls", step_calls);
    if (is_root)
        printf("\n");
    step_buckets(x); /* cuts by the order seen */
    if (!x->o.rules) {
        make_bare(x);
        bare = measure(x, "bare", step_bare);
        if (is_root)
            printf("\n");
    }
    ok(banyan_buckets_stats(x->b, &before), "stats");
    buckets = measure(x, "buckets", step_buckets);
    ok(banyan_buckets_stats(x->b, &st), "stats");
    if (!is_root)
        return;
    flight = st.hidden_s_sum - before.hidden_s_sum + st.exposed_s_sum - before.exposed_s_sum;
    if (bare > 0 && x->o.compute_us <= 0)
        printf("  own: %.3f us a tensor", (buckets - bare) / (double)x->o.tensors);
    printf("\n%zu tensors of %zu bytes, %llu buckets, %llu wire bytes a step, hidden %.1f %%\n",
           x->o.tensors, x->o.bytes, (unsigned long long)st.buckets,
           (unsigned long long)st.wire_bytes,
           flight > 0 ? 100 * (st.hidden_s_sum - before.hidden_s_sum) / flight : 0);
}

static void read_options(struct options *o, int argc, char **argv)
{
    static const struct option names[] = {
        { "tensors", required_argument, NULL, 't' }, { "bytes", required_argument, NULL, 'b' },
        { "steps", required_argument, NULL, 's' },   { "gap", required_argument, NULL, 'g' },
        { "bucket", required_argument, NULL, 'u' },  { "rules", required_argument, NULL, 'r' },
        { "compute", required_argument, NULL, 'c' }, { "thread", no_argument, NULL, 'p' },
        { "mapped", no_argument, NULL, 'm' },        { NULL, 0, NULL, 0 },
    };
    int c;

    *o = (struct options){ .tensors = 64, .bytes = 4096, .steps = 200, .bucket = 1 << 20 };
    while ((c = getopt_long(argc, argv, "", names, NULL)) != -1)
        switch (c) {
        case 't': o->tensors = strtoull(optarg, NULL, 0); break;
        case 'b': o->bytes = strtoull(optarg, NULL, 0); break;
        case 's': o->steps = atoi(optarg); break;
        case 'g': o->gap = strtoull(optarg, NULL, 0) / 4 * 4; break;
        case 'u': o->bucket = strtoull(optarg, NULL, 0); break;
        case 'r': o->rules = optarg; break;
        case 'c': o->compute_us = atof(optarg); break;
        case 'p': o->thread = 1; break;
        case 'm': o->mapped = 1; break;
        default: exit(2);
        }
    if (o->tensors < 1 || o->steps < 10 || o->bucket < 1) {
        fprintf(stderr, "train_buckets: --tensors from 1, --steps from 10, --bucket from 1\n");
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct banyan_buckets_config cfg;
    struct banyan_config comm_cfg;
    struct bench x = { .comm = NULL };

    read_options(&x.o, argc, argv);
    comm_cfg = (struct banyan_config)BANYAN_CONFIG_INIT;
    comm_cfg.progress_thread = x.o.thread;
    ok(banyan_comm_init_env(&x.comm, &comm_cfg), "init");
    x.us = calloc((size_t)x.o.steps, sizeof *x.us);
    if (!x.us)
        die("no memory");
    make_tensors(&x);
    cfg = (struct banyan_buckets_config)BANYAN_BUCKETS_CONFIG_INIT;
    cfg.bucket_bytes = x.o.bucket;
    cfg.rules = x.o.rules;
    cfg.progress = !x.o.thread;
    ok(banyan_buckets_create(&x.b, x.comm, x.tensors, x.o.tensors, &cfg), "buckets");
    report(&x);
    banyan_buckets_free(x.b);
    for (size_t j = 0; j < x.nbare; j++)
        banyan_request_free(x.bare[j]);
    ok(banyan_comm_finalize(x.comm), "finalize");
    return 0;
}
