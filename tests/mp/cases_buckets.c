/* SPDX-License-Identifier: BSD-3-Clause */
/* Buckets of gradients: whatever the order, the parts, the sizes and the settings, the sum is
 * what the ranks put in. Codecs, saved states and costs, too. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/mp/model.h"
#include "tests/mp/net.h"

/* ---- the product of features, by seed ---- */

static const char *const rules_of[] = {
    NULL,
    "*.bias=none@ring; *:>=500=@binomial",
    "layer1.*=lossless:force=1; layer3.weight=blocksparse:force=1; *.bias:<1=int8",
    "*:>=1000:<100000=lossless:force=1@ring;*=",
};

static void random_config(struct banyan_buckets_config *cfg, uint64_t *s)
{
    static const size_t bytes[] = { 1, 100, 4096, 50000, 1 << 20 };

    *cfg = (struct banyan_buckets_config)BANYAN_BUCKETS_CONFIG_INIT;
    cfg->bucket_bytes = bytes[bny_rng_below(s, 5)];
    cfg->first_bytes = bytes[bny_rng_below(s, 5)];
    cfg->op = bny_rng_below(s, 2) ? BANYAN_SUM : BANYAN_AVG;
    cfg->accumulate = 1 + (int)bny_rng_below(s, 3);
    cfg->unused = bny_rng_below(s, 2) ? BANYAN_UNUSED_ZERO : BANYAN_UNUSED_ERROR;
    cfg->deterministic = (int)bny_rng_below(s, 3) - 1;
    cfg->rules = rules_of[bny_rng_below(s, sizeof rules_of / sizeof rules_of[0])];
    if (cfg->rules && strchr(cfg->rules, '@') && cfg->deterministic == 1)
        cfg->deterministic = 0; /* not every schedule has the canonical order */
    cfg->check_nan = (int)bny_rng_below(s, 2);
    cfg->norms = (int)bny_rng_below(s, 2);
    cfg->progress = (int)bny_rng_below(s, 4) != 0;
}

/* Does rank r mark tensor i in this micro-step? In the last one at least, where all must. */
static int marks(const struct banyan_buckets_config *cfg, uint64_t key, size_t i, int micro,
                 int r)
{
    uint64_t x = model_mix(model_mix(key, i * 16 + (size_t)micro), (uint64_t)r);

    if (cfg->unused == BANYAN_UNUSED_ERROR && micro == cfg->accumulate - 1)
        return 1;
    return x % 4 != 0;
}

static void check_sums(struct test *t, const struct net *m,
                       const struct banyan_buckets_config *cfg, uint64_t key)
{
    for (size_t i = 0; i < m->n; i++)
        for (size_t e = 0; e < m->count[i]; e++) {
            double want = 0, got = model_get(m->at[i].grad, e, m->at[i].dtype);
            for (int r = 0; r < t->n; r++)
                for (int k = 0; k < cfg->accumulate; k++)
                    if (marks(cfg, key, i, k, r))
                        want += net_value(key + (uint64_t)k, i, e, r);
            if (cfg->op == BANYAN_AVG)
                want /= t->n;
            CHECK(t, fabs(got - want) <= net_eps(m->at[i].dtype) * fabs(want),
                  "%s (%s, %zu elements), element %zu: %.17g, not %.17g", m->name[i],
                  banyan_dtype_name(m->at[i].dtype), m->count[i], e, got, want);
        }
}

/* The norms that a step's statistics have, of this rank's own gradients. */
static void check_norms(struct test *t, struct banyan_buckets *b, const double *squares,
                        size_t n, int has_norms)
{
    for (size_t i = 0; i < n; i++) {
        struct banyan_buckets_tensor_stats st = { .size = sizeof st };
        double want = has_norms ? sqrt(squares[i]) : 0;
        CHECK_OK(t, banyan_buckets_tensor_stats(b, i, &st));
        CHECK(t, fabs(st.norm - want) <= 1e-9 * want, "tensor %zu: norm %g, not %g", i, st.norm,
              want);
    }
}

static void product_step(struct test *t, struct banyan_buckets *b, struct net *m,
                         const struct banyan_buckets_config *cfg, uint64_t key, uint64_t *own)
{
    double squares[NET_MOST] = { 0 };
    int used[NET_MOST] = { 0 };
    size_t order[NET_MOST];

    for (size_t i = 0; i < m->n; i++) { /* what nobody marks counts as zeros all the same */
        for (int k = 0; k < cfg->accumulate; k++)
            used[i] |= marks(cfg, key, i, k, t->rank);
        for (size_t e = 0; e < m->count[i]; e++)
            model_set(m->at[i].grad, e, m->at[i].dtype, used[i] ? 0 : 5);
    }
    for (int k = 0; k < cfg->accumulate; k++) {
        net_shuffle(order, m->n, own);
        for (size_t j = 0; j < m->n; j++) {
            size_t i = order[j];
            if (!marks(cfg, key, i, k, t->rank))
                continue;
            for (size_t e = 0; e < m->count[i]; e++)
                model_set(m->at[i].grad, e, m->at[i].dtype,
                          model_get(m->at[i].grad, e, m->at[i].dtype) +
                              net_value(key + (uint64_t)k, i, e, t->rank));
            if (k == cfg->accumulate - 1) {
                squares[i] = 0;
                for (size_t e = 0; e < m->count[i]; e++)
                    squares[i] += pow(model_get(m->at[i].grad, e, m->at[i].dtype), 2);
            }
            net_mark(t, b, m, i, own);
            if (bny_rng_below(own, 4) == 0)
                CHECK_OK(t, banyan_buckets_progress(b));
        }
        for (size_t i = 0; k == cfg->accumulate - 1 && i < m->n; i++)
            for (size_t e = 0; e < m->count[i] && used[i] && !marks(cfg, key, i, k, t->rank);
                 e++)
                squares[i] += pow(model_get(m->at[i].grad, e, m->at[i].dtype), 2);
        CHECK(t, banyan_buckets_micro(b) == k, "micro-step %d of %d", banyan_buckets_micro(b),
              k);
        CHECK_OK(t, banyan_buckets_wait(b));
    }
    CHECK(t, banyan_buckets_micro(b) == 0, "micro-step %d", banyan_buckets_micro(b));
    check_sums(t, m, cfg, key);
    check_norms(t, b, squares, m->n, cfg->norms || cfg->check_nan);
}

static int product(struct test *t)
{
    struct banyan_config comm_cfg = case_config(t);
    uint64_t s = t->seed, own = model_mix(t->seed, (uint64_t)t->rank);
    int rounds = *t->arg ? atoi(t->arg) : 6;
    struct banyan_comm *comm;

    comm_cfg.progress_thread = (int)(s % 2);
    CHECK_OK(t, case_init(t, &comm_cfg, &comm));
    for (int round = 0; round < rounds; round++) {
        struct banyan_buckets_config cfg;
        struct banyan_buckets *b;
        struct net m;

        random_config(&cfg, &s);
        net_make(&m, bny_rng_below(&s, 20), cfg.rules == NULL, &s);
        CHECK_OK(t, banyan_buckets_create(&b, comm, m.at, m.n, &cfg));
        for (int step = 0; step < 4; step++) {
            uint64_t key = bny_rng_next(&s);
            product_step(t, b, &m, &cfg, key, &own);
            case_check_agree(t, comm, net_hash(&m), "gradients");
        }
        banyan_buckets_free(b);
        net_free(&m);
    }
    CHECK_OK(t, banyan_comm_finalize(comm));
    return 0;
}

/* ---- codecs ---- */

/* lost += what all ranks put in, then - what came out. */
static void account(struct test *t, const struct net *m, uint64_t key, size_t i, double *lost)
{
    float *in = case_malloc(m->count[i] * 4);

    for (int r = 0; r < t->n; r++) {
        model_gauss(in, m->count[i], BANYAN_F32, model_mix(model_mix(key, i), (uint64_t)r));
        for (size_t e = 0; e < m->count[i]; e++)
            lost[e] += (double)in[e];
    }
    for (size_t e = 0; e < m->count[i]; e++)
        lost[e] -= (double)((const float *)m->at[i].grad)[e];
    free(in);
}

/* Everything that went in came out or is in a residual, also where a controller changes codecs
 * on the way, to none and back. */
static int law(struct test *t)
{
    static const char *const codecs[] = { "topk:delta=0.02,force=1",
                                          "topk:delta=0.2,force=1",
                                          "powersgd:rank=1,force=1",
                                          "none",
                                          "int4:force=1",
                                          NULL,
                                          "powersgd:rank=4,force=1" };
    uint64_t s = t->seed, own = model_mix(t->seed, (uint64_t)t->rank);
    double *lost[9];
    struct banyan_buckets *b;
    struct net m;

    b = net_with_codecs(t, &m, t->comm, 5000, &s);
    for (size_t i = 0; i < m.n; i++)
        lost[i] = calloc(m.count[i], sizeof(double));
    for (int step = 0; step < 24; step++) {
        uint64_t key = bny_rng_next(&s);
        net_gauss(&m, key, t->rank);
        net_mark_all(t, b, &m, &own);
        CHECK_OK(t, banyan_buckets_wait(b));
        case_check_agree(t, t->comm, net_hash(&m), "gradients");
        for (size_t i = 0; i < m.n; i++)
            account(t, &m, key, i, lost[i]);
        if (step % 2) {
            size_t i = 2 * bny_rng_below(&s, 5);
            const char *codec = codecs[bny_rng_below(&s, 7)];
            int rc = banyan_buckets_set_codec(b, i, codec);
            int is_column = m.count[i] == (size_t)m.shape[i][0];

            /* A column has no shorter product of two matrices. */
            CHECK(t, rc == 0 || (rc == -BANYAN_ENOTSUP && is_column && strstr(codec, "power")),
                  "%s for tensor %zu: %d (%s)", codec, i, rc, banyan_last_error());
            CHECK(t, rc || !strcmp(banyan_buckets_codec(b, i), codec ? codec : "none"), "%s",
                  banyan_buckets_codec(b, i));
        }
    }
    for (size_t i = 0; i < m.n; i++) {
        const float *rest = banyan_buckets_residual(b, i);
        float *sum = case_malloc(m.count[i] * 4);
        memset(sum, 0, m.count[i] * 4);
        if (rest)
            CHECK_OK(t, banyan_allreduce(rest, sum, m.count[i], BANYAN_F32, BANYAN_SUM, t->comm,
                                         &case_exact));
        for (size_t e = 0; e < m.count[i] && t->n > 1; e++)
            CHECK(t, fabs(lost[i][e] - (double)sum[e]) < 1e-3, "%s, element %zu: %g and %g",
                  m.name[i], e, lost[i][e], (double)sum[e]);
        free(sum);
        free(lost[i]);
    }
    banyan_buckets_free(b);
    net_free(&m);
    return 0;
}

/* Old residuals times the factor, and nothing else, is what a step without gradients has. */
static int scale(struct test *t)
{
    uint64_t s = t->seed, own = model_mix(t->seed, (uint64_t)t->rank);
    struct banyan_opts plain = BANYAN_OPTS_INIT;
    struct banyan_buckets *b;
    double was = 0, is = 0;
    struct net m;
    float *sum;

    plain.codec = "none";
    b = net_with_codecs(t, &m, t->comm, 5000, &s);
    sum = case_malloc(m.count[0] * 4);
    net_gauss(&m, t->seed, t->rank);
    net_mark_all(t, b, &m, &own);
    CHECK_OK(t, banyan_buckets_wait(b));
    CHECK(t, !banyan_buckets_residual(b, 1), "a residual of a tensor without a codec");
    for (int after = 0; after < 2; after++) {
        CHECK_OK(t, banyan_allreduce(banyan_buckets_residual(b, 0), sum, m.count[0], BANYAN_F32,
                                     BANYAN_SUM, t->comm, &plain));
        for (size_t e = 0; e < m.count[0]; e++) {
            was += after ? 0 : (double)sum[e];
            is += after ? (double)sum[e] + (double)((float *)m.at[0].grad)[e] : 0;
        }
        if (after)
            break;
        CHECK_OK(t, banyan_buckets_scale_residuals(b, 0.75));
        memset(m.memory, 0, m.bytes);
        net_mark_all(t, b, &m, &own);
        CHECK_OK(t, banyan_buckets_wait(b));
    }
    CHECK(t, t->n == 1 || fabs(was) > 1, "no residual");
    CHECK(t, fabs(is - 0.75 * was) < 1e-3 * (1 + fabs(was)), "%g, not 0.75 of %g", is, was);
    /* Without a codec, all of it is sent. */
    CHECK_OK(t, banyan_buckets_set_codec(b, 0, "none"));
    CHECK_OK(t, banyan_buckets_scale_residuals(b, 2));
    memset(m.memory, 0, m.bytes);
    net_mark_all(t, b, &m, &own);
    CHECK_OK(t, banyan_buckets_wait(b));
    CHECK(t, !banyan_buckets_residual(b, 0), "a residual is left");
    for (size_t e = 0; e < m.count[0]; e++)
        CHECK(t, fabsf(((float *)m.at[0].grad)[e] - 2 * sum[e]) < 1e-4f, "element %zu: %g, %g",
              e, (double)((float *)m.at[0].grad)[e], 2 * (double)sum[e]);
    free(sum);
    banyan_buckets_free(b);
    net_free(&m);
    return 0;
}

/* ---- saved in the middle of a run ---- */

#define STEPS 16

static void run_steps(struct test *t, struct banyan_buckets *b, struct net *m, int from, int to,
                      uint64_t *hash, uint64_t *own)
{
    for (int step = from; step < to; step++) {
        if (step == 5)
            CHECK_OK(t, banyan_buckets_set_codec(b, 0, "topk:delta=0.3,force=1"));
        if (step == 8)
            CHECK_OK(t, banyan_buckets_set_codec(b, 1, "int8:force=1"));
        if (step % 4 == 3)
            CHECK_OK(t, banyan_buckets_scale_residuals(b, 2.0));
        net_gauss(m, t->seed + (uint64_t)step, t->rank);
        net_mark_all(t, b, m, own);
        CHECK_OK(t, banyan_buckets_wait(b));
        hash[step] = net_hash(m);
        if (step == 2) /* its residual is sent by the next step, saved or not */
            CHECK_OK(t, banyan_buckets_set_codec(b, 4, NULL));
        if (step == 6)
            CHECK_OK(t, banyan_buckets_set_codec(b, 4, "powersgd:rank=1,force=1"));
    }
}

static void buckets_of(struct test *t, const struct banyan_buckets *b, const struct net *m,
                       uint64_t *out)
{
    struct banyan_buckets_tensor_stats st = { .size = sizeof st };

    for (size_t i = 0; i < m->n; i++) {
        CHECK_OK(t, banyan_buckets_tensor_stats(b, i, &st));
        out[i] = st.bucket;
    }
}

static char *save(struct test *t, const struct banyan_buckets *b, size_t *bytes)
{
    char *saved;

    *bytes = banyan_buckets_bytes(b);
    saved = case_malloc(*bytes);
    CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_save(b, saved, *bytes - 1));
    CHECK_OK(t, banyan_buckets_save(b, saved, *bytes));
    return saved;
}

static void load(struct test *t, struct banyan_buckets *b, char *saved, size_t bytes)
{
    saved[bytes / 2] ^= 4;
    CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_load(b, saved, bytes));
    saved[bytes / 2] ^= 4;
    CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_load(b, saved, bytes - 1));
    CHECK_OK(t, banyan_buckets_load(b, saved, bytes));
}

/* Saved at step `at`, loaded into buckets of bucket_bytes; they were of 1 MiB. */
static void resume_at(struct test *t, int at, size_t bucket_bytes, const uint64_t *whole)
{
    uint64_t own = model_mix(t->seed, (uint64_t)t->rank), s = t->seed, halves[STEPS];
    struct banyan_buckets_stats was = { .size = sizeof was }, is = { .size = sizeof is };
    uint64_t buckets[2][NET_MOST];
    struct banyan_buckets *b;
    struct net m;
    size_t bytes;
    char *saved;

    b = net_with_codecs(t, &m, t->comm, 1 << 20, &s);
    run_steps(t, b, &m, 0, at, halves, &own);
    buckets_of(t, b, &m, buckets[0]);
    saved = save(t, b, &bytes);
    CHECK_OK(t, banyan_buckets_stats(b, &was));
    banyan_buckets_free(b);
    net_free(&m);
    b = net_with_codecs(t, &m, t->comm, bucket_bytes, (s = t->seed, &s));
    load(t, b, saved, bytes);
    CHECK_OK(t, banyan_buckets_stats(b, &is));
    CHECK(t, is.steps == (uint64_t)at && is.wire_bytes_sum == was.wire_bytes_sum,
          "counters: %llu steps", (unsigned long long)is.steps);
    CHECK(t, bucket_bytes != 1 || is.buckets > was.buckets, "%llu buckets, %llu before",
          (unsigned long long)is.buckets, (unsigned long long)was.buckets);
    run_steps(t, b, &m, at, at + 1, halves, &own);
    buckets_of(t, b, &m, buckets[1]);
    for (size_t i = 0; i < m.n; i++)
        CHECK(t, !at || bucket_bytes != 1 << 20 || buckets[0][i] == buckets[1][i],
              "%s was in bucket %llu, not %llu", m.name[i], (unsigned long long)buckets[0][i],
              (unsigned long long)buckets[1][i]);
    run_steps(t, b, &m, at + 1, STEPS, halves, &own);
    for (int step = 0; step < STEPS; step++)
        CHECK(t, whole[step] == halves[step], "saved at %d: step %d differs", at, step);
    free(saved);
    banyan_buckets_free(b);
    net_free(&m);
}

static int resume(struct test *t)
{
    uint64_t whole[STEPS], own = model_mix(t->seed, (uint64_t)t->rank), s = t->seed;
    struct banyan_buckets *b;
    struct net m;

    b = net_with_codecs(t, &m, t->comm, 1 << 20, &s);
    run_steps(t, b, &m, 0, STEPS, whole, &own);
    banyan_buckets_free(b);
    net_free(&m);
    resume_at(t, 0, 5000, whole); /* before the first step, too */
    resume_at(t, 3, 1, whole);
    resume_at(t, 6, 1 << 20, whole);
    resume_at(t, 9, 5000, whole);
    return 0;
}

/* ---- a steady step ---- */

#define WINDOW 10

/* Pools of messages that come early grow for a while; what a step itself allocates would show
 * in every window of steps. */
static int quiet(struct test *t)
{
    uint64_t s = t->seed, own = model_mix(t->seed, (uint64_t)t->rank);
    struct banyan_buckets_stats st = { .size = sizeof st };
    unsigned long before = case_allocations(), fewest = ~0ul, n;
    struct banyan_buckets *b;
    struct net m;

    b = net_with_codecs(t, &m, t->comm, 5000, &s);
    for (int step = 0; step < 20 * WINDOW; step++) {
        net_gauss(&m, t->seed + (uint64_t)step % 20, t->rank);
        net_mark_all(t, b, &m, &own);
        CHECK_OK(t, banyan_buckets_wait(b));
        if (step % WINDOW == WINDOW - 1) {
            n = case_allocations() - before;
            CHECK(t, n > 0 || step > WINDOW, "the counter does not count");
            fewest = n < fewest ? n : fewest;
            before = case_allocations();
        }
    }
    CHECK(t, fewest == 0, "%lu allocations in %d steps, or more", fewest, WINDOW);
    CHECK_OK(t, banyan_buckets_stats(b, &st));
    CHECK(t, st.steps == 20 * WINDOW, "%llu steps", (unsigned long long)st.steps);
    CHECK(t, (st.wire_bytes > 0) == (t->n > 1), "%llu bytes",
          (unsigned long long)st.wire_bytes);
    CHECK(t, st.wire_bytes_sum >= st.wire_bytes, "fewer bytes in all");
    banyan_buckets_free(b);
    net_free(&m);
    return 0;
}

/* What tensors sent is what the communicator sent; no time is counted twice. */
static int bytes(struct test *t)
{
    uint64_t s = t->seed, own = model_mix(t->seed, (uint64_t)t->rank), sum = 0;
    struct banyan_buckets_stats st = { .size = sizeof st };
    struct banyan_stats was = { .size = sizeof was }, is = { .size = sizeof is };
    uint64_t began;
    double took = 0;
    struct banyan_buckets *b;
    struct net m;

    b = net_with_codecs(t, &m, t->comm, 5000, &s);
    for (int step = 0; step < 4; step++) {
        CHECK_OK(t, banyan_barrier(t->comm, NULL));
        CHECK_OK(t, banyan_comm_stats(t->comm, &was));
        net_gauss(&m, t->seed + (uint64_t)step, t->rank);
        began = bny_now_ns();
        net_mark_all(t, b, &m, &own);
        CHECK_OK(t, banyan_buckets_wait(b));
        took = (double)(bny_now_ns() - began) * 1e-9;
    }
    CHECK_OK(t, banyan_comm_stats(t->comm, &is));
    CHECK_OK(t, banyan_buckets_stats(b, &st));
    CHECK(t, st.exposed_s > 0 && st.hidden_s >= 0 && st.hidden_s + st.exposed_s <= took,
          "%g s hidden, %g exposed, of %g", st.hidden_s, st.exposed_s, took);
    CHECK(t, st.exposed_s_sum >= st.exposed_s && st.hidden_s_sum >= st.hidden_s, "sums");
    for (size_t i = 0; i < m.n; i++) {
        struct banyan_buckets_tensor_stats one = { .size = sizeof one };
        CHECK_OK(t, banyan_buckets_tensor_stats(b, i, &one));
        CHECK(
            t, one.hidden_s >= 0 && one.exposed_s >= 0 && one.hidden_s + one.exposed_s <= took,
            "%s: %g s hidden, %g exposed, of %g", m.name[i], one.hidden_s, one.exposed_s, took);
        CHECK(t, one.bucket < st.buckets, "bucket %llu", (unsigned long long)one.bucket);
        CHECK(t, t->n == 1 || one.wire_bytes > 0 || t->rank > 0, "%s sent nothing", m.name[i]);
        sum += one.wire_bytes;
    }
    CHECK(t, sum <= st.wire_bytes && st.wire_bytes <= sum + m.n + 24 * (uint64_t)t->n,
          "%llu and %llu bytes", (unsigned long long)sum, (unsigned long long)st.wire_bytes);
    /* Beside payload the communicator counts READYs, and the barrier's messages. */
    CHECK(t,
          is.wire_bytes - was.wire_bytes >= st.wire_bytes &&
              is.wire_bytes - was.wire_bytes <= st.wire_bytes + 20000,
          "the communicator sent %llu, the buckets %llu",
          (unsigned long long)(is.wire_bytes - was.wire_bytes),
          (unsigned long long)st.wire_bytes);
    banyan_buckets_free(b);
    net_free(&m);
    return 0;
}

const struct mp_case cases_buckets[] = {
    { "buckets", product, CASE_OWN_INIT },
    { "buckets_law", law, 0 },
    { "buckets_scale", scale, 0 },
    { "buckets_resume", resume, 0 },
    { "buckets_quiet", quiet, CASE_NO_THREADS },
    { "buckets_bytes", bytes, CASE_NO_THREADS },
    { 0 },
};
