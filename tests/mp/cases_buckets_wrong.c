/* SPDX-License-Identifier: BSD-3-Clause */
/* What one rank does wrong with buckets: all ranks are told, with tensor and rank, nobody
 * hangs, and what can go on goes on. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/mp/model.h"
#include "tests/mp/net.h"

/* The last rank does it, and all are told. */
struct scene {
    struct banyan_buckets *b;
    struct net m;
    uint64_t own;
    int guilty;
};

#define VICTIM 2 /* the tensor: layer1.weight, of 300 elements */

static void right_step(struct test *t, struct scene *x)
{
    struct net *m = &x->m;

    for (size_t i = 0; i < m->n; i++)
        for (size_t e = 0; e < m->count[i]; e++)
            model_set(m->at[i].grad, e, m->at[i].dtype, net_value(t->seed, i, e, t->rank));
    net_mark_all(t, x->b, m, &x->own);
    CHECK_OK(t, banyan_buckets_wait(x->b));
    for (size_t i = 0; i < m->n; i++)
        for (size_t e = 0; e < m->count[i]; e++) {
            double want = 0, got = model_get(m->at[i].grad, e, m->at[i].dtype);
            for (int r = 0; r < t->n; r++)
                want += net_value(t->seed, i, e, r) / t->n;
            CHECK(t, fabs(got - want) <= 0.01, "%s, element %zu: %g, not %g", m->name[i], e,
                  got, want);
        }
}

/* All ranks hear what the last one did. */
static void told(struct test *t, struct scene *x, const char *what)
{
    char who[32];

    snprintf(who, sizeof who, "rank %d ", t->n - 1);
    CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_wait(x->b));
    CHECK_HAS(t, banyan_last_error(), who);
    CHECK_HAS(t, banyan_last_error(), "layer1.weight");
    CHECK_HAS(t, banyan_last_error(), what);
    right_step(t, x);
}

static void mark_but_victim(struct test *t, struct scene *x)
{
    for (size_t i = 0; i < x->m.n; i++)
        if (!x->guilty || i != VICTIM)
            CHECK_OK(t, banyan_buckets_ready(x->b, i));
}

static void mark_a_part(struct test *t, struct scene *x)
{
    if (!x->guilty)
        return;
    CHECK_OK(t, banyan_buckets_ready_part(x->b, VICTIM, 100, 20)); /* and a hole */
    CHECK_OK(t, banyan_buckets_ready_part(x->b, VICTIM, 0, 50));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_ready_part(x->b, VICTIM, 299, 2));
}

static void mark_again(struct test *t, struct scene *x, int whole)
{
    for (size_t i = 0; i < x->m.n; i++)
        CHECK_OK(t, banyan_buckets_ready(x->b, i));
    if (!x->guilty)
        return;
    CHECK_RC(t, -BANYAN_EINVAL,
             whole ? banyan_buckets_ready(x->b, VICTIM)
                   : banyan_buckets_ready_part(x->b, VICTIM, 299, 1));
    CHECK_HAS(t, banyan_last_error(), "layer1.weight");
}

static void mark_a_part_again(struct test *t, struct scene *x)
{
    static const size_t part[][2] = { { 10, 10 }, { 40, 10 }, { 20, 10 }, { 0, 10 } };
    static const size_t again[][2] = { { 9, 1 }, { 29, 12 }, { 49, 1 }, { 0, 60 }, { 0, 300 } };

    for (size_t i = 0; i < x->m.n; i++)
        if (i != VICTIM)
            CHECK_OK(t, banyan_buckets_ready(x->b, i));
    for (int k = 0; k < 4; k++)
        CHECK_OK(t, banyan_buckets_ready_part(x->b, VICTIM, part[k][0], part[k][1]));
    for (int k = 0; x->guilty && k < 5; k++)
        CHECK_RC(t, -BANYAN_EINVAL,
                 banyan_buckets_ready_part(x->b, VICTIM, again[k][0], again[k][1]));
    CHECK_OK(t, banyan_buckets_ready_part(x->b, VICTIM, 30, 10));
    CHECK_OK(t, banyan_buckets_ready_part(x->b, VICTIM, 50, 250));
}

static void set_up(struct test *t, struct scene *x)
{
    struct banyan_buckets_config cfg;
    uint64_t s = t->seed;

    x->own = model_mix(t->seed, (uint64_t)t->rank);
    x->guilty = t->rank == t->n - 1;
    net_make(&x->m, 7, 1, &s);
    x->m.shape[VICTIM][0] = 300;
    x->m.at[VICTIM].ndim = 1;
    x->m.count[VICTIM] = 300;
    net_free(&x->m);
    net_place(&x->m, &s);
    cfg = (struct banyan_buckets_config)BANYAN_BUCKETS_CONFIG_INIT;
    cfg.check_nan = 1;
    cfg.bucket_bytes = 700;
    CHECK_OK(t, banyan_buckets_create(&x->b, t->comm, x->m.at, x->m.n, &cfg));
}

static int wrong(struct test *t)
{
    struct scene x;

    set_up(t, &x);
    for (int round = 0; round < 3; round++) {
        mark_but_victim(t, &x);
        told(t, &x, "did not mark");
        mark_but_victim(t, &x);
        mark_a_part(t, &x);
        told(t, &x, "part");
        mark_again(t, &x, round > 0);
        told(t, &x, "more than once");
        mark_a_part_again(t, &x);
        told(t, &x, "more than once");
        memset(x.m.memory, 0, x.m.bytes);
        if (x.guilty)
            model_set(x.m.at[VICTIM].grad, 299, x.m.at[VICTIM].dtype, round ? NAN : -INFINITY);
        net_mark_all(t, x.b, &x.m, &x.own);
        told(t, &x, "NaN");
    }
    banyan_buckets_free(x.b);
    net_free(&x.m);
    return 0;
}

/* What is refused changes nothing. */
static int refused(struct test *t)
{
    struct scene x;
    char byte;

    set_up(t, &x);
    CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_ready(x.b, 7));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_ready(NULL, 0));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_wait(NULL));
    CHECK_OK(t, banyan_buckets_ready(x.b, 6));
    CHECK_RC(t, -BANYAN_EBUSY, banyan_buckets_set_codec(x.b, 0, "int8"));
    CHECK_RC(t, -BANYAN_EBUSY, banyan_buckets_set_accumulate(x.b, 2));
    CHECK_RC(t, -BANYAN_EBUSY, banyan_buckets_scale_residuals(x.b, 2));
    CHECK_RC(t, -BANYAN_EBUSY, banyan_buckets_save(x.b, &byte, 1));
    CHECK_RC(t, -BANYAN_EBUSY, banyan_buckets_load(x.b, &byte, 1));
    for (size_t i = 0; i < 6; i++)
        CHECK_OK(t, banyan_buckets_ready(x.b, i));
    CHECK_OK(t, banyan_buckets_wait(x.b));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_set_codec(x.b, VICTIM, "int9"));
    CHECK_HAS(t, banyan_last_error(), "layer1.weight");
    CHECK(t, !strcmp(banyan_buckets_codec(x.b, VICTIM), "none"), "it has a codec");
    CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_set_accumulate(x.b, 0));
    right_step(t, &x);
    CHECK_OK(t, banyan_buckets_set_accumulate(x.b, x.guilty ? 1 : 2));
    if (!x.guilty)
        CHECK_OK(t, banyan_buckets_wait(x.b));
    net_mark_all(t, x.b, &x.m, &x.own);
    CHECK_RC(t, t->n > 1 ? -BANYAN_EMISMATCH : 0, banyan_buckets_wait(x.b));
    banyan_buckets_free(x.b);
    net_free(&x.m);
    return 0;
}

/* Settings that cannot be, at all ranks alike. */
static int settings(struct test *t)
{
    static const struct {
        const char *rules, *says;
        int code;
    } bad[] = {
        { "*=int8;layer", "character 8", BANYAN_EINVAL },
        { "*=int8:block=7", "layer2.bias", BANYAN_EINVAL },
        { "layer1.bias=int8:force=1", "layer1.bias", BANYAN_ENOTSUP },
        { "layer1.*=lossless@warp", "layer1.bias", BANYAN_EINVAL },
    };
    struct banyan_buckets_config cfg;
    struct banyan_buckets *b = NULL;
    uint64_t s = t->seed;
    struct net m;

    net_make(&m, 6, 0, &s);
    m.at[3].dtype = BANYAN_F64; /* layer1.bias; no lossy codec takes it */
    net_free(&m);
    net_place(&m, &s);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cfg = (struct banyan_buckets_config)BANYAN_BUCKETS_CONFIG_INIT;
        cfg.rules = bad[i].rules;
        CHECK_RC(t, -bad[i].code, banyan_buckets_create(&b, t->comm, m.at, m.n, &cfg));
        CHECK_HAS(t, banyan_last_error(), bad[i].says);
        CHECK(t, !b, "buckets in spite of it");
    }
    for (int i = 0; i < 6; i++) {
        cfg = (struct banyan_buckets_config)BANYAN_BUCKETS_CONFIG_INIT;
        cfg.size = i == 0 ? 0 : cfg.size;
        cfg.bucket_bytes = i == 1 ? 0 : cfg.bucket_bytes;
        cfg.first_bytes = i == 2 ? 0 : cfg.first_bytes;
        cfg.op = i == 3 ? BANYAN_MAX : cfg.op;
        cfg.accumulate = i == 4 ? 0 : cfg.accumulate;
        cfg.unused = i == 5 ? (enum banyan_unused)7 : cfg.unused;
        CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_create(&b, t->comm, m.at, m.n, &cfg));
    }
    m.at[2].dtype = BANYAN_I32;
    CHECK_RC(t, -BANYAN_EINVAL, banyan_buckets_create(&b, t->comm, m.at, m.n, NULL));
    CHECK_HAS(t, banyan_last_error(), "layer1.weight");
    m.at[2].dtype = BANYAN_F32;
    CHECK_OK(t, banyan_buckets_create(&b, t->comm, m.at, m.n, NULL));
    CHECK_RC(t, -BANYAN_ENOTSUP, banyan_buckets_set_codec(b, 3, "topk:force=1"));
    CHECK_HAS(t, banyan_last_error(), "layer1.bias");
    CHECK(t, !strcmp(banyan_buckets_codec(b, 3), "none"), "it has a codec");
    for (size_t i = 0; i < m.n; i++)
        CHECK_OK(t, banyan_buckets_ready(b, i));
    CHECK_OK(t, banyan_buckets_wait(b));
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
        cfg = (struct banyan_buckets_config)BANYAN_BUCKETS_CONFIG_INIT;
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

    b = net_with_codecs(t, &m, t->comm, 5000, &s);
    net_gauss(&m, t->seed, t->rank);
    net_mark_all(t, b, &m, &own);
    CHECK_OK(t, banyan_buckets_wait(b));
    case_meet(t, t->comm);
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

    b = net_with_codecs(t, &m, t->comm, 5000, &s);
    for (int step = 0; step < 6 && rc == 0; step++) {
        net_gauss(&m, t->seed + (uint64_t)step, t->rank);
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

/* A rank that can do no more tells the others, which would wait for it. */
static int starves(struct test *t)
{
    struct scene x;
    char who[32];
    int rc;

    set_up(t, &x);
    right_step(t, &x);
    mark_but_victim(t, &x);
    mp_shared_barrier(t->shared, t->n); /* else who marks late hears of it there */
    if (x.guilty) {                     /* parts that touch nothing need memory */
        case_starve(1);
        rc = 0;
        for (size_t at = 1; at < 300 && rc == 0; at += 2)
            rc = banyan_buckets_ready_part(x.b, VICTIM, at, 1);
        case_starve(0);
        CHECK(t, rc == -BANYAN_ENOMEM, "returned %d", rc);
        CHECK_RC(t, -BANYAN_ENOMEM, banyan_buckets_wait(x.b));
    } else {
        CHECK_RC(t, -BANYAN_EABORTED, banyan_buckets_wait(x.b));
        snprintf(who, sizeof who, "rank %d", t->n - 1);
        CHECK_HAS(t, banyan_last_error(), who);
    }
    CHECK_HAS(t, banyan_last_error(), "layer1.weight");
    CHECK_HAS(t, banyan_last_error(), "no memory");
    banyan_buckets_free(x.b);
    net_free(&x.m);
    return 0;
}

/* Freed in the middle of a step, at all ranks alike. */
static int free_early(struct test *t)
{
    uint64_t s = t->seed;
    struct banyan_buckets *b;
    struct net m;

    b = net_with_codecs(t, &m, t->comm, 500, &s);
    net_gauss(&m, t->seed, t->rank);
    for (size_t i = m.n; i-- > 3;)
        CHECK_OK(t, banyan_buckets_ready(b, i));
    banyan_buckets_free(b);
    banyan_buckets_free(NULL);
    case_check_works(t, t->comm);
    net_free(&m);
    return 0;
}

const struct mp_case cases_buckets_wrong[] = {
    { "buckets_wrong", wrong, 0 },
    { "buckets_refused", refused, 0 },
    { "buckets_settings", settings, 0 },
    { "buckets_unlike", unlike, 0 },
    { "buckets_codecs", codecs_unlike, CASE_FAILS },
    { "buckets_dies", dies, CASE_FAILS | CASE_NO_THREADS },
    { "buckets_starves", starves, CASE_FAILS | CASE_NO_THREADS },
    { "buckets_free", free_early, 0 },
    { 0 },
};
