/* SPDX-License-Identifier: BSD-3-Clause */
/* Buckets of gradients: whatever the order, the parts, the sizes and the settings, the sum is
 * what the ranks put in; and what one of them does wrong is told to all. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "banyan/training.h"
#include "base/rng.h"
#include "tests/mp/case.h"
#include "tests/mp/model.h"

#define TENSORS_MAX 40

struct net { /* a model's gradients */
    struct banyan_tensor at[TENSORS_MAX];
    char name[TENSORS_MAX][40];
    int64_t shape[TENSORS_MAX][8];
    size_t count[TENSORS_MAX], n, bytes;
    char *memory;
};

/* Where tensor i lies: the same order as the tensors, some with a gap before them. */
static void net_place(struct net *m, uint64_t *s)
{
    size_t at = 0, place[TENSORS_MAX];

    for (size_t i = 0; i < m->n; i++) {
        size_t esz = banyan_dtype_bytes(m->at[i].dtype);
        at += bny_rng_below(s, 3) ? 0 : 64 * bny_rng_below(s, 3);
        at = (at + esz - 1) & ~(esz - 1);
        place[i] = at;
        at += m->count[i] * esz;
    }
    m->bytes = at + 64;
    m->memory = case_malloc(m->bytes);
    memset(m->memory, 0, m->bytes);
    for (size_t i = 0; i < m->n; i++)
        m->at[i].grad = m->memory + place[i];
}

static void net_tensor(struct net *m, size_t i, enum banyan_dtype dtype, uint64_t *s)
{
    static const int64_t lengths[] = { 1, 2, 3, 7, 16, 33, 100, 257 };
    int ndim = (int)bny_rng_below(s, 4);

    snprintf(m->name[i], sizeof m->name[i], "layer%zu.%s", i / 2, i % 2 ? "bias" : "weight");
    m->count[i] = 1;
    for (int d = 0; d < ndim; d++) {
        m->shape[i][d] = lengths[bny_rng_below(s, d == 2 ? 4 : 8)];
        m->count[i] *= (size_t)m->shape[i][d];
    }
    m->at[i] = (struct banyan_tensor){
        .name = m->name[i], .dtype = dtype, .ndim = ndim, .shape = m->shape[i]
    };
}

static void net_make(struct net *m, size_t n, int mixed, uint64_t *s)
{
    static const enum banyan_dtype types[] = { BANYAN_F32, BANYAN_F64, BANYAN_F16,
                                               BANYAN_BF16 };

    memset(m, 0, sizeof *m);
    m->n = n;
    for (size_t i = 0; i < n; i++)
        net_tensor(m, i, mixed ? types[bny_rng_below(s, 4)] : BANYAN_F32, s);
    net_place(m, s);
}

static void net_free(struct net *m)
{
    free(m->memory);
}

/* Small whole numbers: their sums are exact in all types. */
static double value(uint64_t key, size_t tensor, size_t i, int rank)
{
    uint64_t x = model_mix(model_mix(key, tensor * 1000003 + i), (uint64_t)rank);

    return (double)(x % 9) - 4;
}

/* Numbers of any size, for codecs. */
static void fill_gauss(struct net *m, uint64_t key, int rank)
{
    for (size_t i = 0; i < m->n; i++)
        model_gauss(m->at[i].grad, m->count[i], m->at[i].dtype,
                    model_mix(model_mix(key, i), (uint64_t)rank));
}

static uint64_t net_hash(const struct net *m)
{
    uint64_t h = 0;

    for (size_t i = 0; i < m->n; i++)
        h = model_mix(
            h, case_hash(m->at[i].grad, m->count[i] * banyan_dtype_bytes(m->at[i].dtype)));
    return h;
}

static void shuffle(size_t *order, size_t n, uint64_t *s)
{
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t i = n; i > 1; i--) {
        size_t j = bny_rng_below(s, i), x = order[j];
        order[j] = order[i - 1];
        order[i - 1] = x;
    }
}

/* Marks it whole, or in parts in any order. */
static void mark(struct test *t, struct banyan_buckets *b, const struct net *m, size_t i,
                 uint64_t *s)
{
    size_t count = m->count[i], cuts[5] = { 0, 0, 0, 0, count }, order[4];

    if (bny_rng_below(s, 3)) {
        CHECK_OK(t, banyan_buckets_ready(b, i));
        return;
    }
    for (int k = 1; k < 4; k++)
        cuts[k] = cuts[k - 1] + bny_rng_below(s, count - cuts[k - 1] + 1);
    shuffle(order, 4, s);
    for (int k = 0; k < 4; k++)
        CHECK_OK(t, banyan_buckets_ready_part(b, i, cuts[order[k]],
                                              cuts[order[k] + 1] - cuts[order[k]]));
}

static void mark_all(struct test *t, struct banyan_buckets *b, const struct net *m, uint64_t *s)
{
    size_t order[TENSORS_MAX];

    shuffle(order, m->n, s);
    for (size_t k = 0; k < m->n; k++)
        mark(t, b, m, order[k], s);
}

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

    banyan_buckets_config_default(cfg);
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

static double eps_of(enum banyan_dtype dtype)
{
    return dtype == BANYAN_F64   ? 0x1p-51
           : dtype == BANYAN_F32 ? 0x1p-22
           : dtype == BANYAN_F16 ? 0x1p-10
                                 : 0x1p-7;
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
                        want += value(key + (uint64_t)k, i, e, r);
            if (cfg->op == BANYAN_AVG)
                want /= t->n;
            CHECK(t, fabs(got - want) <= eps_of(m->at[i].dtype) * fabs(want),
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
    double squares[TENSORS_MAX] = { 0 };
    size_t order[TENSORS_MAX];

    memset(m->memory, 0, m->bytes);
    for (int k = 0; k < cfg->accumulate; k++) {
        shuffle(order, m->n, own);
        for (size_t j = 0; j < m->n; j++) {
            size_t i = order[j];
            if (!marks(cfg, key, i, k, t->rank))
                continue;
            for (size_t e = 0; e < m->count[i]; e++)
                model_set(m->at[i].grad, e, m->at[i].dtype,
                          model_get(m->at[i].grad, e, m->at[i].dtype) +
                              value(key + (uint64_t)k, i, e, t->rank));
            if (k == cfg->accumulate - 1) {
                squares[i] = 0;
                for (size_t e = 0; e < m->count[i]; e++)
                    squares[i] += pow(model_get(m->at[i].grad, e, m->at[i].dtype), 2);
            }
            mark(t, b, m, i, own);
            if (bny_rng_below(own, 4) == 0)
                CHECK_OK(t, banyan_buckets_progress(b));
        }
        for (size_t i = 0; k == cfg->accumulate - 1 && i < m->n; i++)
            for (size_t e = 0; e < m->count[i] && !marks(cfg, key, i, k, t->rank); e++)
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

static struct banyan_buckets *with_codecs(struct test *t, struct net *m,
                                          struct banyan_comm *comm, size_t bucket_bytes,
                                          uint64_t *s)
{
    struct banyan_buckets_config cfg;
    struct banyan_buckets *b;

    net_make(m, 9, 0, s);
    for (size_t i = 0; i < 9; i += 2) { /* weights that a matrix codec likes */
        m->shape[i][0] = 60 + (int64_t)i;
        m->shape[i][1] = 40;
        m->at[i].ndim = 2;
        m->count[i] = (size_t)(60 + i) * 40;
    }
    net_free(m);
    net_place(m, s);
    banyan_buckets_config_default(&cfg);
    cfg.bucket_bytes = bucket_bytes;
    cfg.first_bytes = bucket_bytes / 2 + 1;
    cfg.deterministic = 1;
    cfg.op = BANYAN_SUM;
    cfg.seed = t->seed;
    cfg.rules = "layer0.weight=topk:delta=0.05,force=1; layer1.weight=int8:random=1,force=1;"
                "layer2.weight=powersgd:rank=2,force=1; layer3.weight=onebit:force=1;*=none";
    CHECK_OK(t, banyan_buckets_create(&b, comm, m->at, m->n, &cfg));
    return b;
}

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

    b = with_codecs(t, &m, t->comm, 5000, &s);
    for (size_t i = 0; i < m.n; i++)
        lost[i] = calloc(m.count[i], sizeof(double));
    for (int step = 0; step < 24; step++) {
        uint64_t key = bny_rng_next(&s);
        fill_gauss(&m, key, t->rank);
        mark_all(t, b, &m, &own);
        CHECK_OK(t, banyan_buckets_wait(b));
        case_check_agree(t, t->comm, net_hash(&m), "gradients");
        for (size_t i = 0; i < m.n; i++)
            account(t, &m, key, i, lost[i]);
        if (step % 2) {
            size_t i = 2 * bny_rng_below(&s, 5);
            const char *codec = codecs[bny_rng_below(&s, 7)];
            CHECK_OK(t, banyan_buckets_set_codec(b, i, codec));
            CHECK(t, !strcmp(banyan_buckets_codec(b, i), codec ? codec : "none"), "%s",
                  banyan_buckets_codec(b, i));
        }
    }
    for (size_t i = 0; i < m.n; i++) {
        const float *rest = banyan_buckets_residual(b, i);
        float *sum = case_malloc(m.count[i] * 4);
        memset(sum, 0, m.count[i] * 4);
        if (rest)
            CHECK_OK(t, banyan_allreduce(rest, sum, m.count[i], BANYAN_F32, BANYAN_SUM, t->comm,
                                         NULL));
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

/* ---- saved in the middle of a run ---- */

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
        fill_gauss(m, t->seed + (uint64_t)step, t->rank);
        mark_all(t, b, m, own);
        CHECK_OK(t, banyan_buckets_wait(b));
        hash[step] = net_hash(m);
    }
}

static int resume(struct test *t)
{
    uint64_t whole[16], halves[16], own = model_mix(t->seed, (uint64_t)t->rank), s = t->seed;
    struct banyan_buckets_stats st = { .size = sizeof st };
    struct banyan_buckets *b;
    size_t bytes, first;
    struct net m;
    char *saved;

    b = with_codecs(t, &m, t->comm, 1 << 20, &s);
    run_steps(t, b, &m, 0, 16, whole, &own);
    banyan_buckets_free(b);
    net_free(&m);
    for (int at = 0; at < 10; at += 3) { /* before the first step, too */
        b = with_codecs(t, &m, t->comm, 1 << 20, (s = t->seed, &s));
        run_steps(t, b, &m, 0, at, halves, &own);
        bytes = banyan_buckets_bytes(b);
        saved = case_malloc(bytes);
        CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_save(b, saved, bytes - 1));
        CHECK_OK(t, banyan_buckets_save(b, saved, bytes));
        CHECK_OK(t, banyan_buckets_stats(b, &st));
        first = st.buckets;
        banyan_buckets_free(b);
        net_free(&m);
        b = with_codecs(t, &m, t->comm, at % 2 ? 1 : 5000, (s = t->seed, &s));
        saved[bytes / 2] ^= 4;
        CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_load(b, saved, bytes));
        saved[bytes / 2] ^= 4;
        CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_load(b, saved, bytes - 1));
        CHECK_OK(t, banyan_buckets_load(b, saved, bytes));
        CHECK_OK(t, banyan_buckets_stats(b, &st));
        CHECK(t, st.steps == (uint64_t)at && st.buckets > first - (at % 2 == 0),
              "%llu steps, %llu buckets", (unsigned long long)st.steps,
              (unsigned long long)st.buckets);
        run_steps(t, b, &m, at, 16, halves, &own);
        for (int step = 0; step < 16; step++)
            CHECK(t, whole[step] == halves[step], "saved at %d: step %d differs", at, step);
        free(saved);
        banyan_buckets_free(b);
        net_free(&m);
    }
    return 0;
}

/* ---- what one rank does wrong ---- */

static void right_step(struct test *t, struct banyan_buckets *b, struct net *m,
                       const struct banyan_buckets_config *cfg, uint64_t *own)
{
    for (size_t i = 0; i < m->n; i++)
        for (size_t e = 0; e < m->count[i]; e++)
            model_set(m->at[i].grad, e, m->at[i].dtype, value(t->seed, i, e, t->rank));
    mark_all(t, b, m, own);
    CHECK_OK(t, banyan_buckets_wait(b));
    check_sums(t, m, cfg, t->seed);
}

static void check_told(struct test *t, struct banyan_buckets *b, const char *what)
{
    char who[32];

    snprintf(who, sizeof who, "rank %d ", t->n - 1);
    CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_wait(b));
    CHECK_HAS(t, banyan_last_error(), who);
    CHECK_HAS(t, banyan_last_error(), "layer1.weight");
    CHECK_HAS(t, banyan_last_error(), what);
}

/* The last rank does it to layer1.weight (tensor 2); all hear of it, and go on. */
static int wrong(struct test *t)
{
    uint64_t s = t->seed, own = model_mix(t->seed, (uint64_t)t->rank);
    int guilty = t->rank == t->n - 1;
    struct banyan_buckets_config cfg;
    struct banyan_buckets *b;
    struct net m;

    net_make(&m, 7, 1, &s);
    m.shape[2][0] = 300;
    m.at[2].ndim = 1;
    m.count[2] = 300;
    net_free(&m);
    net_place(&m, &s);
    banyan_buckets_config_default(&cfg);
    cfg.check_nan = 1;
    cfg.bucket_bytes = 700;
    CHECK_OK(t, banyan_buckets_create(&b, t->comm, m.at, m.n, &cfg));
    for (int round = 0; round < 3; round++) {
        /* Never. */
        for (size_t i = 0; i < m.n; i++)
            if (!guilty || i != 2)
                CHECK_OK(t, banyan_buckets_ready(b, i));
        check_told(t, b, "did not mark");
        right_step(t, b, &m, &cfg, &own);
        /* In part, with a hole. */
        for (size_t i = 0; i < m.n; i++)
            if (!guilty || i != 2)
                CHECK_OK(t, banyan_buckets_ready(b, i));
        if (guilty) {
            CHECK_OK(t, banyan_buckets_ready_part(b, 2, 100, 20));
            CHECK_OK(t, banyan_buckets_ready_part(b, 2, 0, 50));
            CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_ready_part(b, 2, 299, 2));
        }
        check_told(t, b, "part");
        right_step(t, b, &m, &cfg, &own);
        /* Twice: whole, and some of it. */
        for (size_t i = 0; i < m.n; i++)
            CHECK_OK(t, banyan_buckets_ready(b, i));
        if (guilty) {
            CHECK_RC(t, -BANYAN_EINVAL,
                     round ? banyan_buckets_ready(b, 2)
                           : banyan_buckets_ready_part(b, 2, 299, 1));
            CHECK_HAS(t, banyan_last_error(), "layer1.weight");
        }
        check_told(t, b, "more than once");
        right_step(t, b, &m, &cfg, &own);
        /* Not a number. */
        memset(m.memory, 0, m.bytes);
        if (guilty)
            model_set(m.at[2].grad, 299, m.at[2].dtype, round ? NAN : -INFINITY);
        mark_all(t, b, &m, &own);
        check_told(t, b, "NaN");
        right_step(t, b, &m, &cfg, &own);
    }
    CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_ready(b, 7));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_ready(NULL, 0));
    CHECK_OK(t, banyan_buckets_ready(b, 6));
    CHECK_RC(t, -BANYAN_EBUSY, banyan_buckets_set_codec(b, 0, "int8"));
    CHECK_RC(t, -BANYAN_EBUSY, banyan_buckets_set_accumulate(b, 2));
    CHECK_RC(t, -BANYAN_EBUSY, banyan_buckets_save(b, m.memory, 1));
    for (size_t i = 0; i < 6; i++)
        CHECK_OK(t, banyan_buckets_ready(b, i));
    CHECK_OK(t, banyan_buckets_wait(b));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_set_codec(b, 2, "int9"));
    CHECK_HAS(t, banyan_last_error(), "layer1.weight");
    right_step(t, b, &m, &cfg, &own);
    CHECK_OK(t, banyan_buckets_set_accumulate(b, guilty ? 1 : 2));
    if (!guilty)
        CHECK_OK(t, banyan_buckets_wait(b));
    mark_all(t, b, &m, &own);
    if (t->n > 1)
        CHECK_RC(t, -BANYAN_EMISMATCH, banyan_buckets_wait(b));
    banyan_buckets_free(b);
    net_free(&m);
    return 0;
}

/* Made otherwise at the last rank than at the others. */
static int unlike(struct test *t)
{
    int odd = t->rank == t->n - 1 && t->n > 1;

    for (int what = 0; what < 7; what++) {
        static const char *const says[] = { "layer1.weight", "layer1.bias", "layer1.bias",
                                            "bucket_bytes",  "rules",       "accumulate",
                                            "seed" };
        struct banyan_buckets_config cfg;
        struct banyan_buckets *b = NULL;
        struct banyan_tensor x;
        uint64_t s = t->seed;
        struct net m;
        int rc;

        net_make(&m, 8, 0, &s);
        banyan_buckets_config_default(&cfg);
        if (odd && what == 0) {
            m.at[2].ndim = 1;
            m.shape[2][0] = 12345;
        }
        if (odd && what == 1) {
            x = m.at[3];
            m.at[3] = m.at[4];
            m.at[4] = x;
        }
        if (odd && what == 2)
            m.at[3].dtype = BANYAN_BF16;
        cfg.bucket_bytes += odd && what == 3;
        cfg.rules = odd && what == 4 ? "layer2.bias=@ring" : NULL;
        cfg.accumulate += odd && what == 5;
        cfg.seed += odd && what == 6;
        rc = banyan_buckets_create(&b, t->comm, m.at, m.n, &cfg);
        CHECK(t, rc == (t->n > 1 ? -BANYAN_EMISMATCH : 0), "%d: returned %d", what, rc);
        if (t->n > 1) {
            CHECK_HAS(t, banyan_last_error(), says[what]);
            CHECK(t, !b, "buckets in spite of it");
        }
        banyan_buckets_free(b);
        net_free(&m);
    }
    case_check_works(t, t->comm);
    return 0;
}

/* A controller that decides otherwise at one rank. */
static int codecs_unlike(struct test *t)
{
    uint64_t s = t->seed, own = model_mix(t->seed, (uint64_t)t->rank);
    struct banyan_buckets *b;
    struct net m;
    int rc = 0;

    b = with_codecs(t, &m, t->comm, 5000, &s);
    fill_gauss(&m, t->seed, t->rank);
    mark_all(t, b, &m, &own);
    CHECK_OK(t, banyan_buckets_wait(b));
    if (t->rank == t->n - 1)
        CHECK_OK(t, banyan_buckets_set_codec(b, 0, *t->arg ? t->arg : NULL));
    for (size_t i = 0; i < m.n && rc == 0; i++)
        rc = banyan_buckets_ready(b, i);
    if (rc == 0)
        rc = banyan_buckets_wait(b);
    CHECK(t, rc == -BANYAN_EMISMATCH, "returned %d", rc);
    CHECK_HAS(t, banyan_last_error(), "tensor layer");
    CHECK_RC(t, -BANYAN_EMISMATCH, banyan_buckets_ready(b, 0));
    banyan_buckets_free(b);
    net_free(&m);
    return 0;
}

static void wait_to_be_killed(struct test *t)
{
    atomic_store(&t->shared->marker[t->rank], 1);
    for (;;)
        pause();
}

/* The last rank is killed in its step 5; the others say so, and what they were at. */
static int dies(struct test *t)
{
    uint64_t s = t->seed, own = model_mix(t->seed, (uint64_t)t->rank);
    struct banyan_buckets *b;
    char who[32];
    struct net m;
    int rc = 0;

    b = with_codecs(t, &m, t->comm, 5000, &s);
    for (int step = 0; step < 6 && rc == 0; step++) {
        fill_gauss(&m, t->seed + (uint64_t)step, t->rank);
        for (size_t i = 0; i < m.n && rc == 0; i++) {
            if (step == 5 && i == 4 && t->rank == t->n - 1)
                wait_to_be_killed(t);
            rc = banyan_buckets_ready(b, i);
        }
        if (rc == 0)
            rc = banyan_buckets_wait(b);
    }
    (void)own;
    CHECK(t, rc == -BANYAN_ERANKDEAD, "returned %d", rc);
    snprintf(who, sizeof who, "rank %d", t->n - 1);
    CHECK_HAS(t, banyan_last_error(), who);
    CHECK_HAS(t, banyan_last_error(), "tensor");
    CHECK_RC(t, -BANYAN_ERANKDEAD, banyan_buckets_wait(b));
    banyan_buckets_free(b);
    net_free(&m);
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

    b = with_codecs(t, &m, t->comm, 5000, &s);
    for (int step = 0; step < 20 * WINDOW; step++) {
        fill_gauss(&m, t->seed + (uint64_t)step % 20, t->rank);
        mark_all(t, b, &m, &own);
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

/* What tensors sent is what the communicator sent. */
static int bytes(struct test *t)
{
    uint64_t s = t->seed, own = model_mix(t->seed, (uint64_t)t->rank), sum = 0;
    struct banyan_buckets_stats st = { .size = sizeof st };
    struct banyan_stats was = { .size = sizeof was }, is = { .size = sizeof is };
    struct banyan_buckets *b;
    struct net m;

    b = with_codecs(t, &m, t->comm, 5000, &s);
    for (int step = 0; step < 4; step++) {
        CHECK_OK(t, banyan_barrier(t->comm, NULL));
        CHECK_OK(t, banyan_comm_stats(t->comm, &was));
        fill_gauss(&m, t->seed + (uint64_t)step, t->rank);
        mark_all(t, b, &m, &own);
        CHECK_OK(t, banyan_buckets_wait(b));
    }
    CHECK_OK(t, banyan_comm_stats(t->comm, &is));
    CHECK_OK(t, banyan_buckets_stats(b, &st));
    for (size_t i = 0; i < m.n; i++) {
        struct banyan_buckets_tensor_stats one = { .size = sizeof one };
        CHECK_OK(t, banyan_buckets_tensor_stats(b, i, &one));
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

/* Freed in the middle of a step, at all ranks alike. */
static int free_early(struct test *t)
{
    uint64_t s = t->seed;
    struct banyan_buckets *b;
    struct net m;

    b = with_codecs(t, &m, t->comm, 500, &s);
    fill_gauss(&m, t->seed, t->rank);
    for (size_t i = m.n; i-- > 3;)
        CHECK_OK(t, banyan_buckets_ready(b, i));
    banyan_buckets_free(b);
    banyan_buckets_free(NULL);
    case_check_works(t, t->comm);
    net_free(&m);
    return 0;
}

const struct mp_case cases_buckets[] = {
    { "buckets", product, CASE_OWN_INIT },
    { "buckets_law", law, 0 },
    { "buckets_resume", resume, 0 },
    { "buckets_wrong", wrong, 0 },
    { "buckets_unlike", unlike, 0 },
    { "buckets_codecs", codecs_unlike, CASE_FAILS },
    { "buckets_dies", dies, CASE_FAILS | CASE_NO_THREADS },
    { "buckets_quiet", quiet, CASE_NO_THREADS },
    { "buckets_bytes", bytes, CASE_NO_THREADS },
    { "buckets_free", free_early, 0 },
    { 0 },
};
