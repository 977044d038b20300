/* SPDX-License-Identifier: BSD-3-Clause */
/* Ordered and lazy gradients of methods.h: who sends follows the rules as written in their
 * definitions, the sum is that of the gradients as last sent, silence sends nothing, states go
 * on bit by bit, and what must fail says why. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/methods.h"
#include "base/rng.h"
#include "tests/mp/case.h"

#define RULES     (BANYAN_LAZY_CHB + 1)
#define N         200
#define RANKS_MAX 16

/* Rank m's loss is the sum of a_m / 2 s_i (theta_i - c_mi)^2, c_m random, a_m = (1.3^m + 1)^2,
 * s_i from 0.01 to 1: plain descent takes hundreds of steps. */
struct quadratic {
    double a, all; /* all: of all ranks together */
    float c[N], theta[N], grad[N], sum[N];
};

static void begin(const struct test *t, struct quadratic *q)
{
    uint64_t s = t->seed + 77 * (uint64_t)t->rank;

    memset(q, 0, sizeof *q);
    q->a = pow(pow(1.3, t->rank) + 1, 2);
    for (int m = 0; m < t->n; m++)
        q->all += pow(pow(1.3, m) + 1, 2);
    for (int i = 0; i < N; i++)
        q->c[i] = (float)(bny_rng_unit(&s) - 0.5);
}

static void gradient(struct quadratic *q)
{
    for (int i = 0; i < N; i++)
        q->grad[i] =
            (float)(q->a * (0.01 + (double)i / N) * ((double)q->theta[i] - (double)q->c[i]));
}

static struct banyan_lazy_config config(const struct quadratic *q, enum banyan_lazy_rule rule)
{
    struct banyan_lazy_config cfg = BANYAN_LAZY_CONFIG_INIT;

    cfg.rule = rule;
    cfg.alpha = 1 / q->all;
    return cfg;
}

static struct banyan_lazy_stats stats(const struct test *t, const struct banyan_lazy *lazy)
{
    struct banyan_lazy_stats s = { .size = sizeof s };

    CHECK_OK(t, banyan_lazy_stats(lazy, &s));
    return s;
}

/* ---- rules ---- */

struct step { /* of a rank */
    double norm, sent;
};

/* Must rank m send, by the definitions in methods.h? norms: of all ranks. */
static int should_send(const struct step *all, int n, int m, enum banyan_lazy_rule rule,
                       double rhs)
{
    int ahead = 0;

    if (rule == BANYAN_LAZY_LAG || rule == BANYAN_LAZY_CHB)
        return all[m].norm * n > rhs;
    for (int r = 0; r < n; r++)
        ahead += all[r].norm > all[m].norm || (all[r].norm == all[m].norm && r < m);
    for (int stop = 0; stop <= ahead; stop++) { /* would the stop come before m's turn? */
        double largest = 0, rest = 0;
        int left = 0;

        for (int r = 0; r < n; r++) {
            int place = 0;

            for (int k = 0; k < n; k++)
                place += all[k].norm > all[r].norm || (all[k].norm == all[r].norm && k < r);
            if (place < stop)
                continue;
            left++;
            rest += all[r].norm;
            largest = all[r].norm > largest ? all[r].norm : largest;
        }
        if ((rule == BANYAN_LAZY_ORDERED_R1 ? left * largest : rest) <= rhs)
            return 0;
    }
    return 1;
}

/* The sum is that of what each rank sent last, and who sent is who should. */
static void check_step(struct test *t, const struct quadratic *q,
                       const struct banyan_lazy *lazy, enum banyan_lazy_rule rule,
                       uint64_t own_before, float *sent, int free)
{
    struct banyan_lazy_stats s = stats(t, lazy);
    struct step mine = { .norm = s.norm, .sent = (double)(s.own - own_before) }, all[RANKS_MAX];
    double want[N], uploads = 0;

    CHECK_OK(t, banyan_allgather(&mine, all, 2, BANYAN_F64, t->comm, NULL));
    for (int r = 0; r < t->n; r++) {
        uploads += all[r].sent;
        if (free)
            CHECK(t, (int)all[r].sent == should_send(all, t->n, r, rule, s.rhs),
                  "rule %d, step %llu: rank %d %s, norm %g of rhs %g", (int)rule,
                  (unsigned long long)s.steps, r, all[r].sent > 0 ? "sent" : "was silent",
                  all[r].norm, s.rhs);
        else
            CHECK(t, all[r].sent == 1, "rule %d: rank %d silent in its warm-up", (int)rule, r);
    }
    CHECK(t, (double)s.latest == uploads, "%llu uploads, %g ranks sent",
          (unsigned long long)s.latest, uploads);
    if (mine.sent > 0)
        memcpy(sent, q->grad, sizeof q->grad);
    for (int i = 0; i < N; i++)
        want[i] = (double)sent[i];
    CHECK_OK(t, banyan_allreduce(want, want, N, BANYAN_F64, BANYAN_SUM, t->comm, NULL));
    for (int i = 0; i < N; i++)
        CHECK(t, fabs(want[i] - (double)q->sum[i]) <= 1e-5 * (1 + fabs(want[i])),
              "rule %d, element %d: %g, the ranks have sent %g", (int)rule, i,
              (double)q->sum[i], want[i]);
}

static int lazy_rules(struct test *t)
{
    for (int rule = 0; rule < RULES; rule++) {
        struct quadratic q;
        struct banyan_lazy_config cfg;
        struct banyan_lazy *lazy;
        float sent[N] = { 0 };
        struct banyan_lazy_stats s;

        begin(t, &q);
        cfg = config(&q, (enum banyan_lazy_rule)rule);
        CHECK_OK(t, banyan_lazy_create(&lazy, t->comm, N, &cfg));
        for (int k = 0; k < 60; k++) {
            int warmup = rule == BANYAN_LAZY_LAG ? 10 : 1;
            uint64_t own = stats(t, lazy).own;

            gradient(&q);
            CHECK_OK(t, banyan_lazy_exchange(lazy, q.grad, q.sum));
            check_step(t, &q, lazy, (enum banyan_lazy_rule)rule, own, sent,
                       rule != BANYAN_LAZY_ALL && k >= warmup);
            CHECK_OK(t, banyan_lazy_descend(lazy, q.theta));
            case_check_agree(t, t->comm, case_hash(q.theta, sizeof q.theta), "parameters");
        }
        s = stats(t, lazy);
        if (rule != BANYAN_LAZY_ALL && t->n > 2)
            CHECK(t, s.uploads < 60 * (uint64_t)t->n * 3 / 4, "rule %d saved little: %llu",
                  rule, (unsigned long long)s.uploads);
        banyan_lazy_free(lazy);
    }
    return 0;
}

/* A gradient that stays is sent once. In silent steps nothing travels but norms; a rank that is
 * silent alone sends nothing of its gradient. */
static int lazy_silence(struct test *t)
{
    struct quadratic q;
    struct banyan_lazy_config cfg;
    struct banyan_lazy *lazy;
    struct banyan_lazy_stats s, before;

    begin(t, &q);
    cfg = config(&q, BANYAN_LAZY_ORDERED_R2);
    CHECK_OK(t, banyan_lazy_create(&lazy, t->comm, N, &cfg));
    gradient(&q);
    for (int k = 0; k < 5; k++) {
        CHECK_OK(t, banyan_lazy_exchange(lazy, q.grad, q.sum));
        CHECK_OK(t, banyan_lazy_moved(lazy, 0));
    }
    s = stats(t, lazy);
    CHECK(t, s.uploads == (uint64_t)t->n && s.silent == 4 && s.own == 1, "%llu uploads, %llu",
          (unsigned long long)s.uploads, (unsigned long long)s.silent);
    before = s;
    if (t->rank == t->n - 1)
        for (int i = 0; i < N; i++)
            q.grad[i] += 1;
    CHECK_OK(t, banyan_lazy_exchange(lazy, q.grad, q.sum));
    s = stats(t, lazy);
    CHECK(t, s.latest == 1 && s.own == before.own + (t->rank == t->n - 1),
          "%llu uploads for the news of one rank", (unsigned long long)s.latest);
    if (t->n > 1 && t->rank == t->n - 1)
        CHECK(t, s.upload_bytes >= before.upload_bytes + N * 4, "its bytes were not counted");
    if (t->rank != t->n - 1 && t->n == 2)
        CHECK(t, s.upload_bytes == before.upload_bytes, "a silent rank sent %llu bytes",
              (unsigned long long)(s.upload_bytes - before.upload_bytes));
    CHECK_OK(t, banyan_lazy_moved(lazy, 0));
    before = s;
    CHECK_OK(t, banyan_lazy_exchange(lazy, q.grad, NULL));
    s = stats(t, lazy);
    CHECK(t, s.latest == 0 && s.upload_bytes == before.upload_bytes, "silence took %llu bytes",
          (unsigned long long)(s.upload_bytes - before.upload_bytes));
    banyan_lazy_free(lazy);
    return 0;
}

/* What a codec loses is news of later steps: a gradient that stays arrives whole. */
static int lazy_codec(struct test *t)
{
    static const char *const codecs[] = { "topk:delta=0.05,force=1", "int4:force=1",
                                          "powersgd:rank=1,force=1" };

    for (int k = 0; k < 3; k++) {
        struct quadratic q;
        struct banyan_lazy_config cfg;
        struct banyan_lazy *lazy;
        double want[N], worst = 0, size = 0;

        begin(t, &q);
        cfg = config(&q, BANYAN_LAZY_ORDERED_R1);
        cfg.codec = codecs[k];
        CHECK_OK(t, banyan_lazy_create(&lazy, t->comm, N, &cfg));
        gradient(&q);
        for (int step = 0; step < 200; step++) {
            CHECK_OK(t, banyan_lazy_exchange(lazy, q.grad, q.sum));
            CHECK_OK(t, banyan_lazy_moved(lazy, 0));
        }
        case_check_agree(t, t->comm, case_hash(q.sum, sizeof q.sum), codecs[k]);
        for (int i = 0; i < N; i++)
            want[i] = (double)q.grad[i];
        CHECK_OK(t, banyan_allreduce(want, want, N, BANYAN_F64, BANYAN_SUM, t->comm, NULL));
        for (int i = 0; i < N; i++) {
            worst = fmax(worst, fabs(want[i] - (double)q.sum[i]));
            size = fmax(size, fabs(want[i]));
        }
        CHECK(t, worst < 1e-4 * size, "%s: %g of %g is missing", codecs[k], worst, size);
        banyan_lazy_free(lazy);
    }
    return 0;
}

/* ---- states ---- */

static void steps(struct test *t, struct quadratic *q, struct banyan_lazy *lazy, int n)
{
    while (n--) {
        gradient(q);
        CHECK_OK(t, banyan_lazy_exchange(lazy, q->grad, q->sum));
        CHECK_OK(t, banyan_lazy_descend(lazy, q->theta));
    }
}

static int lazy_states(struct test *t)
{
    for (int k = 0; k < 2 * RULES; k++) {
        enum banyan_lazy_rule rule = (enum banyan_lazy_rule)(k / 2);
        struct quadratic q, r;
        struct banyan_lazy_config cfg;
        struct banyan_lazy *a, *b;
        struct banyan_lazy_stats sa, sb;
        size_t bytes;
        char *saved;

        begin(t, &q);
        cfg = config(&q, rule);
        cfg.codec = k % 2 ? "topk:delta=0.1,force=1" : NULL;
        CHECK_OK(t, banyan_lazy_create(&a, t->comm, N, &cfg));
        CHECK_OK(t, banyan_lazy_create(&b, t->comm, N, &cfg));
        steps(t, &q, a, 23);
        bytes = banyan_lazy_bytes(a);
        saved = case_malloc(bytes);
        CHECK_RC(t, -BANYAN_EINVAL, banyan_lazy_save(a, saved, bytes - 1));
        CHECK_OK(t, banyan_lazy_save(a, saved, bytes));
        r = q;
        steps(t, &q, a, 20);
        CHECK_OK(t, banyan_lazy_load(b, saved, bytes));
        steps(t, &r, b, 20);
        CHECK(t, !memcmp(q.theta, r.theta, sizeof q.theta), "rule %d: another way was taken",
              k);
        sa = stats(t, a);
        sb = stats(t, b);
        CHECK(t, sa.uploads == sb.uploads && sa.own == sb.own && sa.silent == sb.silent,
              "rule %d: %llu and %llu uploads", k, (unsigned long long)sa.uploads,
              (unsigned long long)sb.uploads);
        saved[bytes / 2] ^= 4;
        CHECK_RC(t, -BANYAN_EINVAL, banyan_lazy_load(b, saved, bytes));
        saved[bytes / 2] ^= 4;
        CHECK_RC(t, -BANYAN_EINVAL, banyan_lazy_load(b, saved, bytes - 8));
        banyan_lazy_free(b);
        cfg.history = 3;
        CHECK_OK(t, banyan_lazy_create(&b, t->comm, N, &cfg));
        CHECK_RC(t, -BANYAN_EINVAL, banyan_lazy_load(b, saved, bytes));
        CHECK_HAS(t, banyan_last_error(), "other settings");
        banyan_lazy_free(b);
        banyan_lazy_free(a);
        free(saved);
    }
    return 0;
}

/* ---- errors ---- */

static void differs(struct test *t, struct banyan_lazy_config cfg, size_t count,
                    const char *what)
{
    struct banyan_lazy *lazy;
    char rank[80];

    snprintf(rank, sizeof rank, "%s is another one at rank %d", what, t->n - 1);
    CHECK_RC(t, -BANYAN_EMISMATCH, banyan_lazy_create(&lazy, t->comm, count, &cfg));
    CHECK_HAS(t, banyan_last_error(), rank);
    CHECK(t, !lazy, "an object was made");
}

static int lazy_settings(struct test *t)
{
    int last = t->rank == t->n - 1;
    struct quadratic q;
    struct banyan_lazy_config good, bad;
    struct banyan_lazy *lazy;

    begin(t, &q);
    good = config(&q, BANYAN_LAZY_LAG);
    for (int k = 0; k < 5; k++) {
        bad = good;
        bad.alpha = k == 0 ? 0 : k == 1 ? NAN : good.alpha;
        bad.xi = k == 2 ? -1 : good.xi;
        bad.history = k == 3 ? 5000 : 0;
        bad.rule = k == 4 ? RULES : good.rule;
        CHECK_RC(t, -BANYAN_EINVAL, banyan_lazy_create(&lazy, t->comm, N, &bad));
    }
    CHECK_RC(t, -BANYAN_EINVAL, banyan_lazy_create(&lazy, t->comm, N, NULL));
    CHECK_HAS(t, banyan_last_error(), "alpha");
    if (t->n < 2)
        return 0;
    bad = good;
    bad.alpha *= last ? 2 : 1;
    differs(t, bad, N, "alpha");
    bad = good;
    bad.codec = last ? "int8" : NULL;
    differs(t, bad, N, "codec");
    differs(t, good, last ? N + 1 : N, "count");
    bad = good; /* one rank's own mistake ends the call everywhere */
    bad.alpha = last ? -1 : good.alpha;
    CHECK_RC(t, -BANYAN_EINVAL, banyan_lazy_create(&lazy, t->comm, N, &bad));
    CHECK_HAS(t, banyan_last_error(), last ? "alpha is -1" : "failed");
    case_check_works(t, t->comm);
    return 0;
}

static int lazy_errors(struct test *t)
{
    int last = t->rank == t->n - 1;
    struct quadratic q;
    struct banyan_lazy_config cfg;
    struct banyan_lazy *lazy, *other;
    char rank[32], *saved;
    float keep;

    begin(t, &q);
    cfg = config(&q, BANYAN_LAZY_ORDERED_R2);
    CHECK_OK(t, banyan_lazy_create(&lazy, t->comm, N, &cfg));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_lazy_descend(lazy, q.theta));
    CHECK_HAS(t, banyan_last_error(), "banyan_lazy_exchange before");
    steps(t, &q, lazy, 3);
    gradient(&q);
    keep = q.grad[5];
    q.grad[5] = last ? NAN : keep;
    CHECK_RC(t, -BANYAN_EINVAL, banyan_lazy_exchange(lazy, q.grad, q.sum));
    snprintf(rank, sizeof rank, "rank %d", t->n - 1);
    CHECK_HAS(t, banyan_last_error(), rank);
    if (last)
        CHECK_HAS(t, banyan_last_error(), "at element 5");
    q.grad[5] = keep; /* nothing has changed */
    CHECK(t, stats(t, lazy).steps == 3, "the step counts");
    steps(t, &q, lazy, 3);
    CHECK_OK(t, banyan_lazy_exchange(lazy, q.grad, q.sum));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_lazy_exchange(lazy, q.grad, q.sum));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_lazy_moved(lazy, -1));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_lazy_moved(lazy, NAN));
    CHECK_OK(t, banyan_lazy_moved(lazy, last && t->n > 1 ? 5000 : 1));
    if (t->n > 1) {
        CHECK_RC(t, -BANYAN_EMISMATCH, banyan_lazy_exchange(lazy, q.grad, q.sum));
        CHECK_HAS(t, banyan_last_error(), rank);
        CHECK_OK(t, banyan_lazy_create(&other, t->comm, N, &cfg));
        steps(t, &q, other, 1);
        saved = case_malloc(banyan_lazy_bytes(other));
        CHECK_OK(t, banyan_lazy_save(other, saved, banyan_lazy_bytes(other)));
        steps(t, &q, other, 1);
        if (last) /* of an earlier moment */
            CHECK_OK(t, banyan_lazy_load(other, saved, banyan_lazy_bytes(other)));
        CHECK_RC(t, -BANYAN_EMISMATCH, banyan_lazy_exchange(other, q.grad, q.sum));
        CHECK_HAS(t, banyan_last_error(), "is at step 1, rank 0 at 2");
        banyan_lazy_free(other);
        free(saved);
    }
    banyan_lazy_free(lazy);
    banyan_lazy_free(NULL);
    case_check_works(t, t->comm);
    return 0;
}

const struct mp_case cases_lazy[] = {
    { "lazy_rules", lazy_rules, 0 },
    { "lazy_silence", lazy_silence, 0 },
    { "lazy_codec", lazy_codec, 0 },
    { "lazy_states", lazy_states, 0 },
    { "lazy_settings", lazy_settings, 0 },
    { "lazy_errors", lazy_errors, 0 },
    { 0 },
};
