/* SPDX-License-Identifier: BSD-3-Clause */
/* training.h and methods.h: a model's tensors between ranks, Accordion, outer, shared
 * masks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/methods.h"
#include "base/rng.h"
#include "tests/mp/case.h"
#include "tests/mp/small_model.h"

static void fill(struct model *m, uint64_t seed, double size)
{
    for (int i = 0; i < ELEMENTS; i++)
        m->x[i] = (float)((bny_rng_unit(&seed) - 0.5) * size);
}

/* One of the three objects, behind one face. */
struct object {
    struct banyan_accordion *accordion;
    struct banyan_outer *outer;
    struct banyan_shared_mask *mask;
};

/* Registration that differs at the last rank: told to all, with the tensor and the rank. */
static int tensors_agree(struct test *t)
{
    static const int64_t other_shape[] = { 50, 40 };
    struct model m;
    int last = t->rank == t->n - 1;
    char rank[32];

    snprintf(rank, sizeof rank, "rank %d", t->n - 1);
    for (int what = 0; what < 4; what++) {
        struct banyan_shared_mask *mask = NULL;
        size_t n = TENSORS;

        model_init(&m);
        if (last && what == 0)
            m.tensors[2].shape = other_shape;
        if (last && what == 1) {
            struct banyan_tensor keep = m.tensors[0];

            m.tensors[0] = m.tensors[1];
            m.tensors[1] = keep;
        }
        if (last && what == 2)
            n--;
        if (last && what == 3)
            m.tensors[1].name = "q";
        CHECK_RC(t, -BANYAN_EMISMATCH,
                 banyan_shared_mask_create(&mask, t->comm, m.tensors, n, NULL));
        CHECK(t, !mask, "an object was made");
        CHECK_HAS(t, banyan_last_error(), rank);
        CHECK_HAS(t, banyan_last_error(), what == 0 || what == 2 ? "c" : what == 1 ? "a" : "b");
        if (what == 0)
            CHECK_HAS(t, banyan_last_error(), "[50,40]");
        case_check_works(t, t->comm);
    }
    for (int kind = 0; kind < 3; kind++) { /* wrong at the last rank alone */
        struct object o = { NULL, NULL, NULL };
        int rc;

        model_init(&m);
        m.tensors[1].grad = last ? NULL : m.x + 3;
        rc = kind == 0   ? banyan_accordion_create(&o.accordion, t->comm, m.tensors, 3, NULL)
             : kind == 1 ? banyan_outer_create(&o.outer, t->comm, m.tensors, 3, NULL)
                         : banyan_shared_mask_create(&o.mask, t->comm, m.tensors, 3, NULL);
        CHECK_RC(t, -BANYAN_EINVAL, rc);
        CHECK_HAS(t, banyan_last_error(), last ? "tensor b" : rank);
        case_check_works(t, t->comm);
    }
    model_init(&m);
    m.tensors[2].name = "a";
    CHECK_RC(t, -BANYAN_EINVAL,
             banyan_shared_mask_create(&(struct banyan_shared_mask *){ NULL }, t->comm,
                                       m.tensors, TENSORS, NULL));
    CHECK_HAS(t, banyan_last_error(), "two tensors are called a");
    return 0;
}

/* ---- Accordion ---- */

struct scripted {
    double size, rate; /* of tensor c's gradients; learning rate */
    int much;          /* expected of c after the step's decision */
};

/* The decision table, an interval of one step: nothing before, alike, half as much less, zero,
 * from zero, a drop of the rate. */
static int accordion_table(struct test *t)
{
    static const struct scripted script[] = {
        { 1.00, 1, 0 }, /* nothing before: critical */
        { 1.00, 1, 1 },   { 1.49, 1, 1 },   { 1.00, 1, 1 },   { 1.51, 1, 0 },
        { 1.51, 1, 1 },   { 0.70, 1, 0 },   { 0.00, 1, 0 },   { 0.00, 1, 0 }, /* from 0 to 0 */
        { 1.00, 1, 0 },   { 1.00, 1, 1 },   { 1.00, 0.8, 1 }, /* no drop: within 0.7 */
        { 1.00, 0.1, 0 }, { 1.00, 0.1, 1 },
    };
    struct banyan_accordion_config cfg;
    struct banyan_accordion *a;
    struct model m;

    model_init(&m);
    cfg = (struct banyan_accordion_config)BANYAN_ACCORDION_CONFIG_INIT;
    cfg.interval = 1;
    CHECK_OK(t, banyan_accordion_create(&a, t->comm, m.tensors, TENSORS, &cfg));
    for (size_t s = 0; s < sizeof script / sizeof script[0]; s++) {
        int before = banyan_accordion_level(a, 2), rc;

        for (int i = 0; i < ELEMENTS; i++) /* what other ranks have does not matter */
            m.x[i] = (float)(t->rank == 0 ? script[s].size : (double)t->rank * (double)s);
        for (size_t i = 0; i < TENSORS; i++)
            CHECK_OK(t, banyan_accordion_observe(a, i));
        rc = banyan_accordion_step(a, script[s].rate);
        CHECK(t, banyan_accordion_level(a, 2) == script[s].much, "step %zu", s);
        CHECK(t, rc == (before != script[s].much), "step %zu: %d changes", s, rc);
        CHECK(t, banyan_accordion_level(a, 0) == 0, "a small tensor is controlled");
        CHECK(
            t,
            !strcmp(banyan_accordion_codec(a, 2), script[s].much ? "topk:delta=0.01" : "none"),
            "step %zu", s);
    }
    CHECK_RC(t, -BANYAN_EINVAL, banyan_accordion_step(a, NAN));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_accordion_observe(a, TENSORS));
    banyan_accordion_free(a);
    return 0;
}

/* Only the window's gradients count, summed before the norm: +1 and -1 are nothing. */
static int accordion_window(struct test *t)
{
    struct banyan_accordion_config cfg;
    struct banyan_accordion *a;
    struct model m;

    model_init(&m);
    cfg = (struct banyan_accordion_config)BANYAN_ACCORDION_CONFIG_INIT;
    cfg.interval = 4;
    cfg.window = 2;
    CHECK_OK(t, banyan_accordion_create(&a, t->comm, m.tensors, TENSORS, &cfg));
    for (int step = 0; step < 12; step++) {
        /* sums in the window: 2, 2, 0 */
        double size = step % 4 < 2 ? 100 * step : step == 11 ? -1 : 1;

        for (int i = 0; i < ELEMENTS; i++)
            m.x[i] = (float)size;
        CHECK_OK(t, banyan_accordion_observe(a, 2));
        CHECK(t, banyan_accordion_step(a, 1) >= 0, "step %d", step);
        CHECK(t, banyan_accordion_level(a, 2) == (step >= 7 && step < 11), "step %d", step);
    }
    banyan_accordion_free(a);
    return 0;
}

/* The batch grows once the whole model's norm settles, and stays. */
static int accordion_batch(struct test *t)
{
    struct banyan_accordion_config cfg;
    struct banyan_accordion *a;
    struct model m;

    model_init(&m);
    cfg = (struct banyan_accordion_config)BANYAN_ACCORDION_CONFIG_INIT;
    cfg.interval = 1;
    cfg.accumulate = 8;
    CHECK_OK(t, banyan_accordion_create(&a, t->comm, m.tensors, TENSORS, &cfg));
    for (int step = 0; step < 6; step++) {
        double size = step < 2 ? 1 + 3 * step : step == 4 ? 100 : 4;
        int rc;

        for (int i = 0; i < ELEMENTS; i++)
            m.x[i] = (float)size;
        for (size_t i = 0; i < TENSORS; i++)
            CHECK_OK(t, banyan_accordion_observe(a, i));
        rc = banyan_accordion_step(a, step == 5 ? 0.1 : 1);
        CHECK(t, rc == (step == 2), "step %d: %d", step, rc);
        CHECK(t, banyan_accordion_accumulate(a) == (step < 2 ? 1 : 8), "step %d", step);
    }
    banyan_accordion_free(a);
    return 0;
}

/* A rank with another rate, another number of steps, other settings; a NaN at rank 0. */
static int accordion_disagrees(struct test *t)
{
    struct banyan_accordion_config cfg;
    int last = t->rank == t->n - 1;
    struct model m;

    model_init(&m);
    for (int what = 0; what < 6; what++) {
        struct banyan_accordion *a;
        char want[64];
        int rc;

        cfg = (struct banyan_accordion_config)BANYAN_ACCORDION_CONFIG_INIT;
        cfg.interval = what == 2 && last ? 3 : 2;
        cfg.eta = what == 1 && last ? 0.4 : 0.5;
        cfg.rate_drop = what == 4 && last ? 0.6 : 0.7;
        cfg.window = what == 5 && last ? 1 : 2;
        CHECK_OK(t, banyan_accordion_create(&a, t->comm, m.tensors, TENSORS, &cfg));
        for (int i = 0; i < ELEMENTS; i++)
            m.x[i] = what == 3 && t->rank == 0 && i == 1000 ? (float)NAN : 1;
        CHECK_OK(t, banyan_accordion_observe(a, 2));
        for (int k = 1; k < cfg.interval; k++)
            CHECK_OK(t, banyan_accordion_step(a, 1));
        rc = banyan_accordion_step(a, what == 0 && last ? 0.9 : 1);
        snprintf(want, sizeof want, what == 3 ? "tensor c at rank 0" : "rank %d", t->n - 1);
        CHECK_RC(t, what == 3 ? -BANYAN_EINVAL : -BANYAN_EMISMATCH, rc);
        CHECK_HAS(t, banyan_last_error(), want);
        banyan_accordion_free(a);
        case_check_works(t, t->comm);
    }
    return 0;
}

/* ---- states ---- */

static void object_make(struct test *t, struct object *o, struct model *m, int kind)
{
    memset(o, 0, sizeof *o);
    if (kind == 0) {
        struct banyan_accordion_config cfg = BANYAN_ACCORDION_CONFIG_INIT;

        cfg.interval = 3;
        CHECK_OK(t, banyan_accordion_create(&o->accordion, t->comm, m->tensors, TENSORS, &cfg));
    } else if (kind < 5) {
        struct banyan_outer_config cfg = BANYAN_OUTER_CONFIG_INIT;

        cfg.period = 3;
        cfg.fragments = kind == 2 ? 1 : kind;
        cfg.delay = kind - 1;
        cfg.warm_up = 2;
        cfg.adaptive = kind == 2;
        cfg.momentum = kind == 1 ? 0 : .9;
        cfg.residual = kind == 3 ? .95 : 1;
        cfg.weighted = kind == 4;
        cfg.rules = kind > 2 ? "c=topk:delta=0.1,force=1" : NULL;
        CHECK_OK(t, banyan_outer_create(&o->outer, t->comm, m->tensors, TENSORS, &cfg));
    } else {
        struct banyan_shared_mask_config cfg = BANYAN_SHARED_MASK_CONFIG_INIT;

        cfg.order = (enum banyan_mask_order)(kind - 5);
        cfg.block = 7;
        CHECK_OK(t, banyan_shared_mask_create(&o->mask, t->comm, m->tensors, TENSORS, &cfg));
    }
}

static void object_step(struct test *t, struct object *o, struct model *m, int step)
{
    uint64_t seed = t->seed + (uint64_t)(step * 100 + t->rank);
    struct model noise;

    fill(&noise, seed, 1 + step % 4);
    for (int i = 0; i < ELEMENTS; i++)
        m->x[i] = o->outer ? m->x[i] + noise.x[i] : noise.x[i];
    if (o->accordion) {
        CHECK_OK(t, banyan_accordion_observe(o->accordion, 2));
        CHECK(t, banyan_accordion_step(o->accordion, 1) >= 0, "step %d", step);
        m->x[0] = (float)banyan_accordion_level(o->accordion, 2);
    } else if (o->outer) {
        CHECK(t, banyan_outer_step(o->outer, 3.0 / (1 + step), t->rank) >= 0, "step %d", step);
    } else {
        CHECK_OK(t, banyan_shared_mask_step(o->mask));
    }
}

static size_t object_save(struct test *t, struct object *o, void **buf)
{
    size_t bytes;

    if (o->outer)
        CHECK_OK(t, banyan_outer_settle(o->outer));
    bytes = o->accordion ? banyan_accordion_bytes(o->accordion)
            : o->outer   ? banyan_outer_bytes(o->outer)
                         : banyan_shared_mask_bytes(o->mask);
    *buf = case_malloc(bytes);
    CHECK_RC(t, -BANYAN_EINVAL,
             o->accordion ? banyan_accordion_save(o->accordion, *buf, bytes - 1)
             : o->outer   ? banyan_outer_save(o->outer, *buf, bytes - 1)
                          : banyan_shared_mask_save(o->mask, *buf, bytes - 1));
    CHECK_OK(t, o->accordion ? banyan_accordion_save(o->accordion, *buf, bytes)
                : o->outer   ? banyan_outer_save(o->outer, *buf, bytes)
                             : banyan_shared_mask_save(o->mask, *buf, bytes));
    return bytes;
}

static int object_load(struct object *o, const void *buf, size_t bytes)
{
    return o->accordion ? banyan_accordion_load(o->accordion, buf, bytes)
           : o->outer   ? banyan_outer_load(o->outer, buf, bytes)
                        : banyan_shared_mask_load(o->mask, buf, bytes);
}

static void object_free(struct object *o)
{
    banyan_accordion_free(o->accordion);
    banyan_outer_free(o->outer);
    banyan_shared_mask_free(o->mask);
}

/* Saved in the middle, loaded into a new object: the same bits from there on. Damaged states
 * are refused. */
static int training_states(struct test *t)
{
    for (int kind = 0; kind < 7; kind++) {
        struct model *m = case_malloc(2 * sizeof *m);
        struct object first, second;
        size_t bytes;
        char *buf;

        model_init(&m[0]);
        model_init(&m[1]);
        object_make(t, &first, &m[0], kind);
        for (int step = 0; step < 8; step++)
            object_step(t, &first, &m[0], step);
        bytes = object_save(t, &first, (void **)&buf);
        object_make(t, &second, &m[1], kind);
        memcpy(m[1].x, m[0].x, sizeof m[0].x);
        buf[bytes / 2] ^= 1;
        CHECK_RC(t, -BANYAN_EINVAL, object_load(&second, buf, bytes));
        buf[bytes / 2] ^= 1;
        CHECK_RC(t, -BANYAN_EINVAL, object_load(&second, buf, bytes - 8));
        CHECK_OK(t, object_load(&second, buf, bytes));
        for (int step = 8; step < 20; step++) {
            object_step(t, &first, &m[0], step);
            object_step(t, &second, &m[1], step);
            CHECK(t, !memcmp(m[0].x, m[1].x, sizeof m[0].x), "object %d, step %d", kind, step);
        }
        object_free(&first);
        object_free(&second);
        free(buf);
        free(m);
    }
    return 0;
}

/* A steady step allocates nothing: of any rank, the calmest of some. */
static int training_quiet(struct test *t)
{
    for (int kind = 0; kind < 7; kind++) {
        unsigned long before = case_allocations(), fewest = ~0ul;
        struct object o;
        struct model m;

        model_init(&m);
        object_make(t, &o, &m, kind);
        CHECK(t, case_allocations() > before, "the counter does not count");
        for (int step = 0; step < 12; step++)
            object_step(t, &o, &m, step);
        for (int round = 0; round < 6; round++) { /* now and then a peer's bytes come early */
            before = case_allocations();
            for (int step = 12; step < 24; step++)
                object_step(t, &o, &m, step);
            if (case_allocations() - before < fewest)
                fewest = case_allocations() - before;
        }
        CHECK(t, fewest == 0, "object %d: %lu allocations in 12 steps", kind, fewest);
        object_free(&o);
    }
    return 0;
}

/* ---- shared masks ---- */

/* What travelled and what waits is all there was; the band visits everything; wire bytes. */
static int mask_conserves(struct test *t)
{
    for (int order = 0; order < 2; order++) {
        struct banyan_shared_mask_config cfg;
        struct banyan_shared_mask *mask;
        static double given[ELEMENTS], got[ELEMENTS];
        int seen[ELEMENTS] = { 0 };
        struct model m;

        model_init(&m);
        memset(given, 0, sizeof given);
        memset(got, 0, sizeof got);
        cfg = (struct banyan_shared_mask_config)BANYAN_SHARED_MASK_CONFIG_INIT;
        cfg.order = (enum banyan_mask_order)order;
        cfg.block = 10;
        cfg.delta = 0.05;
        cfg.seed = t->seed;
        CHECK_OK(t, banyan_shared_mask_create(&mask, t->comm, m.tensors, TENSORS, &cfg));
        for (int step = 0; step < 60; step++) {
            int sent = 0;

            fill(&m, t->seed + (uint64_t)(step * 16 + t->rank), 1);
            for (int i = 0; i < ELEMENTS && step < 40; i++)
                given[i] += (double)m.x[i];
            for (int i = 0; i < ELEMENTS && step >= 40; i++)
                m.x[i] = 0; /* lets the memory run dry */
            CHECK_OK(t, banyan_shared_mask_step(mask));
            case_check_agree(t, t->comm, case_hash(m.x, sizeof m.x), "masked gradients");
            for (int i = 0; i < ELEMENTS; i++) {
                sent += m.x[i] != 0;
                seen[i] |= m.x[i] != 0;
                got[i] += (double)m.x[i] * t->n;
            }
            CHECK(t, sent <= 110, "%d of %d elements travelled", sent, ELEMENTS);
        }
        CHECK_OK(
            t, banyan_allreduce(given, given, ELEMENTS, BANYAN_F64, BANYAN_SUM, t->comm, NULL));
        for (int i = 0; i < ELEMENTS && order == BANYAN_MASK_BAND; i++) {
            CHECK(t, seen[i], "element %d never travelled", i);
            CHECK(t, fabs(given[i] - got[i]) < 1e-3, "element %d: %g of %g came", i, got[i],
                  given[i]);
        }
        banyan_shared_mask_free(mask);
    }
    return 0;
}

static int mask_nonfinite(struct test *t)
{
    struct banyan_shared_mask_config cfg;
    struct banyan_shared_mask *mask;
    struct model m;

    model_init(&m);
    cfg = (struct banyan_shared_mask_config)BANYAN_SHARED_MASK_CONFIG_INIT;
    cfg.delta = 1;
    CHECK_OK(t, banyan_shared_mask_create(&mask, t->comm, m.tensors, TENSORS, &cfg));
    fill(&m, t->seed, 1);
    if (t->rank == t->n - 1)
        m.x[50] = NAN;
    CHECK_RC(t, -BANYAN_EINVAL, banyan_shared_mask_step(mask));
    CHECK_HAS(t, banyan_last_error(), "tensor c at rank");
    case_check_works(t, t->comm);
    banyan_shared_mask_free(mask);
    return 0;
}

const struct mp_case cases_training[] = {
    { "tensors_agree", tensors_agree, 0 },
    { "accordion_table", accordion_table, 0 },
    { "accordion_window", accordion_window, 0 },
    { "accordion_batch", accordion_batch, 0 },
    { "accordion_disagrees", accordion_disagrees, 0 },
    { "training_states", training_states, 0 },
    { "training_quiet", training_quiet, CASE_NO_THREADS },
    { "mask_conserves", mask_conserves, 0 },
    { "mask_nonfinite", mask_nonfinite, 0 },
    { NULL, NULL, 0 },
};
