/* SPDX-License-Identifier: BSD-3-Clause */
/* How many uploads it takes to train by ordered and lazy gradients (methods/ordered.c): the
 * logistic regression of LAG's authors (Chen, Giannakis, Sun and Yin, NeurIPS 2018, section 4),
 * one worker a rank, until the loss is --gap above the optimum.
 *
 *     train_lazy -P 9 --rule r2 [--seed 1] [--homogeneous] [--gap 1e-6] [--codec C] ...
 *
 * Worker m has 7 samples of 50 normal deviates with random labels, scaled such that its loss,
 * the sum of log(1 + exp(-y x.theta)) + lambda/2 |theta|^2, has the smoothness constant
 * L_m = (1.3^m + 1)^2, m = 0, 1, ...; with --homogeneous all have 4. Steps are along the sum of
 * gradients, alpha = 1 / sum of L_m. The numbers to compare with give the L_m and the gap;
 * samples, dimension and lambda (0.03) are chosen here such that plain descent takes about as
 * many uploads as theirs. The last line is "result name=value ...". Counts depend on
 * the seed, not on timing. perf/train_lazy.py makes the table. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/methods.h"
#include "base/clock.h"
#include "base/rng.h"
#include "tools/local_ranks.h"

struct options {
    int nlocal, homogeneous, samples, dim;
    uint64_t seed;
    long max_steps;
    double gap, lambda, xi;
    const char *rule, *codec;
};

struct problem {
    int workers, samples, dim;
    double lambda, smooth; /* smooth: sum of L_m */
    double *x;             /* [workers][samples][dim], each row times its label */
};

#define RULES (BANYAN_LAZY_CHB + 1)
static const char *const rules[RULES] = { "gd", "r1", "r2", "lag", "chb" };

static void *get(size_t bytes)
{
    void *p = calloc(1, bytes);

    if (!p) {
        fprintf(stderr, "train_lazy: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

static void check(int rc)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "train_lazy: %s\n", banyan_last_error());
    exit(1);
}

/* ---- the problem ---- */

static double normal(uint64_t *s)
{
    double u = bny_rng_unit(s), v = bny_rng_unit(s);

    return sqrt(-2 * log(1 - u)) * cos(2 * M_PI * v);
}

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* The largest eigenvalue of x^T x, by power iteration. */
static double largest(const double *x, int samples, int dim)
{
    double *v = get(2 * (size_t)dim * sizeof *v), *w = v + dim, length = 1;

    for (int i = 0; i < dim; i++)
        v[i] = 1 + 0.01 * i;
    for (int k = 0; k < 3000; k++) {
        length = sqrt(dot(v, v, dim));
        for (int i = 0; i < dim; i++) {
            v[i] /= length;
            w[i] = 0;
        }
        for (int s = 0; s < samples; s++) {
            double a = dot(x + (size_t)s * (size_t)dim, v, dim);

            for (int i = 0; i < dim; i++)
                w[i] += a * x[(size_t)s * (size_t)dim + (size_t)i];
        }
        memcpy(v, w, (size_t)dim * sizeof *v);
    }
    length = sqrt(dot(v, v, dim));
    free(v);
    return length;
}

static void make_problem(struct problem *p, const struct options *o, int workers)
{
    size_t part = (size_t)o->samples * (size_t)o->dim;
    uint64_t s = o->seed * 0x9e3779b97f4a7c15u + 1;

    *p = (struct problem){
        .workers = workers, .samples = o->samples, .dim = o->dim, .lambda = o->lambda
    };
    p->x = get((size_t)workers * part * sizeof *p->x);
    for (int m = 0; m < workers; m++) {
        double *x = p->x + (size_t)m * part, root = pow(1.3, m) + 1, scale;
        double smooth = o->homogeneous ? 4 : root * root;

        for (int i = 0; i < o->samples; i++) {
            double label = bny_rng_below(&s, 2) ? 1 : -1;

            for (int j = 0; j < o->dim; j++)
                x[i * o->dim + j] = label * normal(&s);
        }
        scale = sqrt(4 * (smooth - o->lambda) / largest(x, o->samples, o->dim));
        for (size_t i = 0; i < part; i++)
            x[i] *= scale;
        p->smooth += smooth;
    }
}

/* The loss of workers [first, end) and, where not NULL, its gradient and Hessian. */
static double loss(const struct problem *p, int first, int end, const double *theta,
                   double *grad, double *hess)
{
    int d = p->dim;
    double sum = (end - first) * p->lambda / 2 * dot(theta, theta, d);

    for (int j = 0; grad && j < d; j++)
        grad[j] = (end - first) * p->lambda * theta[j];
    for (int j = 0; hess && j < d * d; j++)
        hess[j] = j / d == j % d ? (end - first) * p->lambda : 0;
    for (int i = first * p->samples; i < end * p->samples; i++) {
        const double *x = p->x + (size_t)i * (size_t)d;
        double z = dot(x, theta, d), q = 1 / (1 + exp(z));

        sum += z > 0 ? log1p(exp(-z)) : log1p(exp(z)) - z;
        for (int j = 0; grad && j < d; j++)
            grad[j] -= q * x[j];
        for (int j = 0; hess && j < d; j++)
            for (int k = 0; k < d; k++)
                hess[j * d + k] += q * (1 - q) * x[j] * x[k];
    }
    return sum;
}

/* b = a^-1 b for a positive definite a, which is lost. */
static void solve(double *a, double *b, int d)
{
    for (int j = 0; j < d; j++) { /* a = l l^T */
        for (int k = 0; k < j; k++)
            for (int i = j; i < d; i++)
                a[i * d + j] -= a[i * d + k] * a[j * d + k];
        a[j * d + j] = sqrt(a[j * d + j]);
        for (int i = j + 1; i < d; i++)
            a[i * d + j] /= a[j * d + j];
    }
    for (int i = 0; i < d; i++)
        b[i] = (b[i] - dot(a + i * d, b, i)) / a[i * d + i];
    for (int i = d; i-- > 0; b[i] /= a[i * d + i])
        for (int k = i + 1; k < d; k++)
            b[i] -= a[k * d + i] * b[k];
}

/* The least loss, by Newton's method with halved steps. */
static double least(const struct problem *p)
{
    size_t d = (size_t)p->dim;
    double *theta = get((3 * d + d * d) * sizeof *theta), *grad = theta + d, *next = grad + d,
           *hess = next + d, best = loss(p, 0, p->workers, theta, NULL, NULL);

    for (int k = 0; k < 200; k++) {
        double step = 1, there = best;

        loss(p, 0, p->workers, theta, grad, hess);
        solve(hess, grad, p->dim);
        for (; step > 1e-9; step /= 2) {
            for (size_t j = 0; j < d; j++)
                next[j] = theta[j] - step * grad[j];
            there = loss(p, 0, p->workers, next, NULL, NULL);
            if (there < best)
                break;
        }
        if (!(there < best))
            break;
        best = there;
        memcpy(theta, next, d * sizeof *theta);
    }
    free(theta);
    return best;
}

/* ---- training ---- */

static enum banyan_lazy_rule rule_of(const char *name)
{
    for (int r = 0; r < RULES; r++)
        if (!strcmp(rules[r], name))
            return (enum banyan_lazy_rule)r;
    fprintf(stderr, "train_lazy: --rule %s: there are gd, r1, r2, lag, chb\n", name);
    exit(2);
}

struct outcome {
    double gap, seconds;
    long steps;
};

static struct outcome train(const struct options *o, const struct problem *p,
                            struct banyan_comm *comm, struct banyan_lazy *lazy)
{
    size_t d = (size_t)p->dim;
    int rank = banyan_comm_rank(comm);
    double *at = get(2 * d * sizeof *at), *g = at + d, target = least(p);
    float *theta = get(2 * d * sizeof *theta), *grad = theta + d;
    struct outcome out = { .gap = INFINITY };
    uint64_t start = bny_now_ns();

    for (;; out.steps++) {
        for (size_t j = 0; j < d; j++)
            at[j] = (double)theta[j];
        /* every rank has all data, so all stop alike; that is no part of the method */
        out.gap = loss(p, 0, p->workers, at, NULL, NULL) - target;
        if (!(out.gap > o->gap) || out.steps >= o->max_steps)
            break;
        loss(p, rank, rank + 1, at, g, NULL);
        for (size_t j = 0; j < d; j++)
            grad[j] = (float)g[j];
        check(banyan_lazy_exchange(lazy, grad, NULL));
        check(banyan_lazy_descend(lazy, theta));
    }
    out.seconds = (double)(bny_now_ns() - start) * 1e-9;
    free(at);
    free(theta);
    return out;
}

static void print(const struct options *o, struct banyan_comm *comm,
                  const struct banyan_lazy *lazy, const struct outcome *out)
{
    struct banyan_lazy_stats s = { .size = sizeof s };
    uint64_t bytes[2];

    check(banyan_lazy_stats(lazy, &s));
    bytes[0] = s.norms_bytes;
    bytes[1] = s.upload_bytes;
    check(banyan_allreduce(bytes, bytes, 2, BANYAN_U64, BANYAN_SUM, comm, NULL));
    if (banyan_comm_rank(comm) == 0)
        printf("result rule=%s seed=%llu homogeneous=%d ranks=%d steps=%ld uploads=%llu "
               "silent=%llu gap=%.3e norms_bytes=%llu upload_bytes=%llu seconds=%.3f\n",
               o->rule, (unsigned long long)o->seed, o->homogeneous, banyan_comm_count(comm),
               out->steps, (unsigned long long)s.uploads, (unsigned long long)s.silent,
               out->gap, (unsigned long long)bytes[0], (unsigned long long)bytes[1],
               out->seconds);
}

static int run(const struct options *o)
{
    struct banyan_lazy_config cfg;
    struct banyan_comm *comm;
    struct banyan_lazy *lazy;
    struct problem p;
    struct outcome out;

    check(banyan_comm_init_env(&comm, NULL));
    make_problem(&p, o, banyan_comm_count(comm));
    cfg = (struct banyan_lazy_config)BANYAN_LAZY_CONFIG_INIT;
    cfg.rule = rule_of(o->rule);
    cfg.alpha = 1 / p.smooth;
    cfg.xi = o->xi;
    cfg.codec = o->codec;
    cfg.seed = o->seed;
    check(banyan_lazy_create(&lazy, comm, (size_t)p.dim, &cfg));
    out = train(o, &p, comm, lazy);
    print(o, comm, lazy, &out);
    banyan_lazy_free(lazy);
    free(p.x);
    check(banyan_comm_finalize(comm));
    return !(out.gap <= o->gap);
}

/* ---- command line ---- */

static double number(const char *name, const char *text, double low, double high)
{
    char *end;
    double x = strtod(text, &end);

    if (end == text || *end || !(x >= low && x <= high)) {
        fprintf(stderr, "train_lazy: --%s %s: a number from %g to %g\n", name, text, low, high);
        exit(2);
    }
    return x;
}

static const struct option names[] = {
    { "rule", 1, NULL, 'r' },  { "seed", 1, NULL, 's' },  { "homogeneous", 0, NULL, 'h' },
    { "gap", 1, NULL, 'g' },   { "steps", 1, NULL, 'n' }, { "samples", 1, NULL, 'm' },
    { "dim", 1, NULL, 'd' },   { "xi", 1, NULL, 'x' },    { "lambda", 1, NULL, 'l' },
    { "codec", 1, NULL, 'c' }, { NULL, 0, NULL, 0 },
};

static void parse(struct options *o, int argc, char **argv)
{
    int c;

    while ((c = getopt_long(argc, argv, "P:", names, NULL)) != -1)
        switch (c) {
        case 'P': o->nlocal = (int)number("P", optarg, 1, 512); break;
        case 'r': o->rule = optarg; break;
        case 's': o->seed = (uint64_t)number("seed", optarg, 0, 1e15); break;
        case 'h': o->homogeneous = 1; break;
        case 'g': o->gap = number("gap", optarg, 1e-12, 1e9); break;
        case 'n': o->max_steps = (long)number("steps", optarg, 0, 1e9); break;
        case 'm': o->samples = (int)number("samples", optarg, 1, 10000); break;
        case 'd': o->dim = (int)number("dim", optarg, 1, 2000); break;
        case 'x': o->xi = number("xi", optarg, 0, 1e6); break;
        case 'l': o->lambda = number("lambda", optarg, 1e-12, 1e3); break;
        case 'c': o->codec = optarg; break;
        default:
            fprintf(stderr,
                    "usage: train_lazy [-P RANKS] [--rule gd|r1|r2|lag|chb] [--seed N] "
                    "[--homogeneous] [--gap G]\n       [--steps MOST] [--samples N] [--dim N] "
                    "[--xi X] [--lambda L] [--codec C]\n");
            exit(2);
        }
    if (optind < argc) {
        fprintf(stderr, "train_lazy: no such argument: %s\n", argv[optind]);
        exit(2);
    }
    rule_of(o->rule);
}

int main(int argc, char **argv)
{
    struct options o = { .seed = 1,
                         .gap = 1e-6,
                         .lambda = 0.03,
                         .xi = 0.1,
                         .samples = 7,
                         .dim = 50,
                         .max_steps = 100000,
                         .rule = "r2" };

    parse(&o, argc, argv);
    if (o.nlocal && !getenv("BANYAN_RANK")) { /* else: one of the ranks that -P started */
        struct bny_local_ranks job = { .tool = "train_lazy",
                                       .exe = "/proc/self/exe",
                                       .nranks = o.nlocal };

        return bny_local_ranks_run(&job, argv);
    }
    return run(&o);
}
