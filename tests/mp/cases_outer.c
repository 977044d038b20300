/* SPDX-License-Identifier: BSD-3-Clause */
/* Outer of training.h: its formula beside a twin in f64, the methods that its settings make,
 * codecs by tensor, weights, and ranks that die or join. */
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "tests/mp/case.h"
#include "tests/mp/small_model.h"

/* Local SGD: no momentum, one fragment. */
static struct banyan_outer_config plain(int period, int delay)
{
    struct banyan_outer_config cfg = BANYAN_OUTER_CONFIG_INIT;

    cfg.period = period;
    cfg.delay = delay;
    cfg.fragments = 1;
    cfg.momentum = 0;
    cfg.rate = 1;
    return cfg;
}

static void add(struct model *m, float x)
{
    for (int i = 0; i < ELEMENTS; i++)
        m->x[i] += x;
}

/* ---- local SGD ---- */

/* After a period all have the mean of what ranks would have had; between, their own. */
static int outer_local_sgd(struct test *t)
{
    struct banyan_outer_config cfg = plain(4, 0);
    struct banyan_outer *o;
    struct model m;
    double want = 5;

    model_init(&m);
    add(&m, t->rank ? -1 : 5);
    cfg.warm_up = 3;
    CHECK_OK(t, banyan_outer_create(&o, t->comm, m.tensors, TENSORS, &cfg));
    CHECK(t, m.x[100] == 5, "not rank 0's parameters: %g", (double)m.x[100]);
    for (int step = 0; step < 20; step++) {
        int due = step < 3 || (step - 2) % 4 == 0, rc;

        add(&m, (float)(t->rank + 1));
        rc = banyan_outer_step(o, 1, 0);
        want += (double)(t->n + 1) / 2;
        CHECK(t, rc == due, "step %d: %d", step, rc);
        CHECK(t, !due || fabs((double)m.x[ELEMENTS - 1] - want) < 1e-3,
              "step %d: %g instead of %g", step, (double)m.x[ELEMENTS - 1], want);
    }
    CHECK_OK(t, banyan_outer_finish(o));
    CHECK(t, fabs((double)m.x[0] - want) < 1e-3, "at the end %g instead of %g", (double)m.x[0],
          want);
    case_check_agree(t, t->comm, case_hash(m.x, sizeof m.x), "parameters");
    banyan_outer_free(o);
    return 0;
}

/* Nothing that a rank learnt is lost, and at the end all have the same. */
static int outer_overlapped(struct test *t)
{
    struct banyan_outer_config cfg = plain(3, 3);
    struct banyan_outer *o;
    double want = 0;
    int taken = 0;
    struct model m;

    model_init(&m);
    CHECK_OK(t, banyan_outer_create(&o, t->comm, m.tensors, TENSORS, &cfg));
    for (int step = 0; step < 17; step++) {
        int rc;

        add(&m, (float)(t->rank + 1));
        want += (double)(t->n + 1) / 2;
        rc = banyan_outer_step(o, 1, 0);
        CHECK(t, rc == (step > 3 && step % 3 == 2), "step %d: %d", step, rc);
        taken += rc;
    }
    CHECK(t, taken == 4, "%d averages", taken);
    CHECK_RC(t, -BANYAN_EBUSY, banyan_outer_save(o, m.x, sizeof m.x));
    CHECK_OK(t, banyan_outer_finish(o));
    CHECK(t, fabs((double)m.x[17] - want) < 1e-3, "%g instead of %g", (double)m.x[17], want);
    case_check_agree(t, t->comm, case_hash(m.x, sizeof m.x), "parameters");
    banyan_outer_free(o);
    return 0;
}

/* As the loss falls, averages come more often. */
static int outer_adaptive(struct test *t)
{
    static const double losses[] = { 4, 4, 1, 1, 0.04, 0.04, 16 };
    static const int periods[] = { 10, 10, 5, 5, 1, 1, 10 };
    struct banyan_outer_config cfg = plain(10, 0);
    struct banyan_outer *o;
    struct model m;

    model_init(&m);
    cfg.adaptive = 1;
    CHECK_OK(t, banyan_outer_create(&o, t->comm, m.tensors, TENSORS, &cfg));
    for (int k = 0; k < 7; k++) {
        int steps = banyan_outer_period(o);

        for (int s = 1; s <= steps; s++) /* ranks' losses differ; their mean decides */
            CHECK_RC(t, s == steps,
                     banyan_outer_step(o, losses[k] * 2 * t->rank / (t->n - 1), 0));
        CHECK(t, banyan_outer_period(o) == periods[k], "after %d: %d", k,
              banyan_outer_period(o));
    }
    banyan_outer_free(o);
    return 0;
}

/* ---- the formula ---- */

/* What a rank learns of element i in a step: any function that all can compute. */
static float learnt(uint64_t seed, int rank, int step, int i)
{
    uint64_t s = seed + (uint64_t)(rank * 100003 + step * 1009 + i);

    return (float)(bny_rng_unit(&s) - .3);
}

struct twin {
    double x[MP_RANKS_MAX], sent[MP_RANKS_MAX], theta, m, g;
    int flying;
};

/* One element of all ranks, in f64, after training.h. since: steps since its fragment's latest
 * start, this one included. */
static void twin_step(struct twin *w, const struct test *t, const struct banyan_outer_config *c,
                      int since, int due)
{
    if (w->flying && (due || since >= c->delay)) {
        w->m = c->momentum * w->m + w->g;
        w->theta += c->rate * (w->g + c->momentum * w->m);
        for (int r = 0; r < t->n; r++)
            w->x[r] += c->merge * (w->theta - w->sent[r]);
        w->flying = 0;
    }
    if (!due)
        return;
    w->g = 0;
    for (int r = 0; r < t->n; r++) {
        w->sent[r] = w->x[r];
        w->g += (w->x[r] - w->theta) / t->n;
    }
    w->flying = 1;
    if (c->delay == 0)
        twin_step(w, t, c, 0, 0);
}

/* Elements 0 (tensor a), 3 (b) and 2003 (c) beside twins: a and b are one fragment, c is the
 * other, which is due first. */
static void beside_twins(struct test *t, const struct banyan_outer_config *cfg)
{
    static const int probes[3] = { 0, 3, ELEMENTS - 1 };
    struct twin twins[3];
    struct banyan_outer *o;
    struct model m;
    int since[2] = { 0, cfg->fragments == 1 ? 0 : cfg->period / 2 };

    memset(twins, 0, sizeof twins);
    model_init(&m);
    CHECK_OK(t, banyan_outer_create(&o, t->comm, m.tensors, TENSORS, cfg));
    for (int step = 0; step < 40; step++) {
        for (int i = 0; i < ELEMENTS; i++)
            m.x[i] += learnt(t->seed, t->rank, step, i);
        for (int k = 0; k < 3; k++)
            for (int r = 0; r < t->n; r++)
                twins[k].x[r] += (double)learnt(t->seed, r, step, probes[k]);
        CHECK(t, banyan_outer_step(o, 1, 0) >= 0, "step %d", step);
        for (int f = 0; f < 2; f++) {
            int due = ++since[f] >= cfg->period;

            for (int k = f ? 2 : 0; k < (f ? 3 : 2); k++)
                twin_step(&twins[k], t, cfg, since[f], due);
            since[f] = due ? 0 : since[f];
        }
        for (int k = 0; k < 3; k++)
            CHECK(t, fabs((double)m.x[probes[k]] - twins[k].x[t->rank]) < 1e-4,
                  "step %d, element %d: %g instead of %g (%d fragments, delay %d)", step,
                  probes[k], (double)m.x[probes[k]], twins[k].x[t->rank], cfg->fragments,
                  cfg->delay);
    }
    banyan_outer_free(o);
}

static int outer_formula(struct test *t)
{
    for (int way = 0; way < 6; way++) {
        struct banyan_outer_config cfg = BANYAN_OUTER_CONFIG_INIT;

        cfg.period = 6;
        cfg.fragments = way % 2 ? 2 : 1;
        cfg.delay = way / 2 == 0 ? 0 : way / 2 == 1 ? 1 : 6;
        cfg.merge = way == 3 ? .5 : 1;
        beside_twins(t, &cfg);
    }
    return 0;
}

/* ---- codecs ---- */

/* A codec of low rank sees the matrix, not the model as one row: what ranks learn of rank 1 it
 * keeps. (One state for all tensors was 85 % short here.) */
static int outer_powersgd(struct test *t)
{
    struct banyan_outer_config cfg = plain(1, 0);
    struct banyan_outer *o;
    struct model m;
    double short_of = 0, whole = 0;

    model_init(&m);
    cfg.rules = "c=powersgd:rank=1,force=1";
    CHECK_OK(t, banyan_outer_create(&o, t->comm, m.tensors, TENSORS, &cfg));
    for (int step = 0; step < 12; step++) {
        for (int i = 0; i < 4; i++)
            m.x[i] += 1;
        for (int i = 0; i < 2000; i++)
            m.x[4 + i] += (float)((1 + i / 50) * (1 + i % 50 * .1) * (t->rank + 1));
        CHECK_RC(t, 1, banyan_outer_step(o, 1, 0));
    }
    for (int i = 0; i < 2000; i++) {
        double want = 12 * (1 + i / 50) * (1 + i % 50 * .1) * (t->n + 1) / 2;

        short_of += fabs(want - (double)m.x[4 + i]);
        whole += want;
    }
    CHECK(t, short_of < .02 * whole, "%g of %g is missing", short_of, whole);
    CHECK(t, fabsf(m.x[0] - 12) < 1e-4f, "tensor a has %g", (double)m.x[0]);
    banyan_outer_free(o);
    return 0;
}

/* A value that is not finite is told with tensor and rank; once it is gone all goes on, and
 * what was learnt meanwhile is in the next average. */
static int outer_nonfinite(struct test *t)
{
    struct banyan_outer_config cfg = plain(2, 0);
    struct banyan_outer *o;
    struct model m;

    model_init(&m);
    cfg.rules = "c=topk:delta=0.5,force=1";
    CHECK_OK(t, banyan_outer_create(&o, t->comm, m.tensors, TENSORS, &cfg));
    add(&m, (float)(t->rank + 1));
    CHECK_RC(t, 0, banyan_outer_step(o, 1, 0));
    if (t->rank == 1)
        m.x[3] = (float)INFINITY;
    CHECK_RC(t, -BANYAN_EINVAL, banyan_outer_step(o, 1, 0));
    CHECK_HAS(t, banyan_last_error(), "rank 1");
    CHECK_HAS(t, banyan_last_error(), "tensor b");
    if (t->rank == 1)
        m.x[3] = 2;
    for (int step = 0; step < 16; step++) /* what top-k left out comes */
        CHECK_RC(t, step % 2, banyan_outer_step(o, 1, 0));
    CHECK_OK(t, banyan_outer_finish(o));
    for (int i = 0; i < ELEMENTS; i++)
        CHECK(t, fabs((double)m.x[i] - (t->n + 1) / 2.) < 1e-4, "element %d is %g", i,
              (double)m.x[i]);
    banyan_outer_free(o);
    return 0;
}

/* ---- weights ---- */

/* Rank r's steps have weight r / 3: rank 0 only receives. The rule fits the weight, which a
 * codec must not touch. A failed average loses no weight. */
static int outer_weights(struct test *t)
{
    struct banyan_outer_config cfg = plain(3, 1);
    struct banyan_outer *o;
    struct model m;
    double sum = 0, want = 0, before;

    for (int r = 0; r < t->n; r++) {
        sum += r;
        want += r * (r + 1.);
    }
    model_init(&m);
    cfg.weighted = 1;
    cfg.rules = "*:<2=bf16:force=1";
    CHECK_OK(t, banyan_outer_create(&o, t->comm, m.tensors, TENSORS, &cfg));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_outer_step(o, 1, -1));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_outer_step(o, 1, (double)NAN));
    for (int step = 0; step < 3; step++) {
        add(&m, (float)(t->rank + 1));
        CHECK_RC(t, 0, banyan_outer_step(o, 1, t->rank / 3.));
    }
    CHECK_RC(t, 1, banyan_outer_step(o, 1, 0));
    want *= 3 / sum;
    CHECK(t, fabs((double)m.x[7] - want) < 1e-4, "%g instead of %g", (double)m.x[7], want);
    if (t->rank == 1)
        m.x[3] = (float)INFINITY;
    for (int step = 1; step < 3; step++)
        CHECK_RC(t, 0, banyan_outer_step(o, 1, t->rank == 0 ? 100 : 0));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_outer_step(o, 1, 0));
    m.x[3] = 0;
    before = (double)m.x[7];
    add(&m, t->rank ? 1 : 2);
    for (int step = 0; step < 4; step++)
        CHECK_RC(t, step == 2, banyan_outer_step(o, 1, step || !t->rank ? 0 : 100));
    want = before + (t->n > 1 ? (2 * 200. + 100 * (t->n - 1)) / (100. * (t->n + 1)) : 2);
    CHECK(t, fabs((double)m.x[7] - want) < 1e-4, "%g instead of %g", (double)m.x[7], want);
    banyan_outer_free(o);
    return 0;
}

/* Where nobody has any weight nothing is lost. Averages in warm-up do not bring fragments
 * together: two of a period of 4 are due two steps apart. */
static int outer_nobody(struct test *t)
{
    struct banyan_outer_config cfg = plain(4, 0);
    struct banyan_outer *o;
    struct model m;

    model_init(&m);
    cfg.weighted = 1;
    cfg.fragments = 2;
    cfg.warm_up = 3;
    CHECK_OK(t, banyan_outer_create(&o, t->comm, m.tensors, TENSORS, &cfg));
    for (int step = 0; step < 12; step++) {
        int rc;

        add(&m, 1);
        rc = banyan_outer_step(o, 1, step < 8 ? 0 : 1);
        CHECK(t, rc == (step < 3 || step % 2 == 0), "step %d: %d", step, rc);
        CHECK(t, fabs((double)m.x[9] - (step + 1)) < 1e-4, "step %d: %g", step, (double)m.x[9]);
    }
    banyan_outer_free(o);
    return 0;
}

/* ---- ranks die, and join ---- */

/* The last rank dies in the middle of an average: the others go on, and lose nothing. */
static int outer_survives(struct test *t)
{
    struct banyan_outer_config cfg = plain(3, 2);
    struct banyan_comm *left = NULL;
    struct banyan_outer *o;
    struct model m;
    int rc = 0, step;
    double mine = 0, all = 0;

    model_init(&m);
    cfg.rules = "c=topk:delta=0.2,force=1";
    CHECK_OK(t, banyan_outer_create(&o, t->comm, m.tensors, TENSORS, &cfg));
    for (step = 0; step < 60 && rc >= 0; step++) {
        if (step == 17 && t->rank == t->n - 1)
            kill(getpid(), SIGKILL);
        if (t->rank < t->n - 1)
            add(&m, (float)(t->rank + 1));
        mine += t->rank + 1;
        rc = banyan_outer_step(o, 1, 0);
    }
    CHECK(t, rc == -BANYAN_ERANKDEAD, "step %d: %d", step, rc);
    CHECK_OK(t, banyan_comm_shrink(t->comm, &left));
    CHECK_OK(t, banyan_outer_move(o, left));
    CHECK_OK(t, banyan_outer_finish(o));
    CHECK_OK(t, banyan_allreduce(&mine, &all, 1, BANYAN_F64, BANYAN_SUM, left, NULL));
    case_check_agree(t, left, case_hash(m.x, sizeof m.x), "parameters");
    /* a and b have no codec: averages of n ranks before the death, of the others since */
    CHECK(t, m.x[0] > 0 && (double)m.x[0] <= all / (t->n - 1) + 1e-3, "%g", (double)m.x[0]);
    banyan_outer_free(o);
    CHECK_OK(t, banyan_comm_destroy(left));
    return 0;
}

/* Ranks 0 to n - 2 begin; then the last joins, and has what they agree on. */
static int outer_grows(struct test *t)
{
    struct banyan_outer_config cfg = BANYAN_OUTER_CONFIG_INIT;
    struct banyan_comm *few = NULL;
    struct banyan_outer *o = NULL;
    int is_new = t->rank == t->n - 1;
    struct model m;

    model_init(&m);
    cfg.period = 4;
    cfg.codec = "int8:force=1";
    CHECK_OK(t, banyan_comm_split(t->comm, is_new ? -1 : 0, t->rank, &few));
    if (!is_new) {
        CHECK_OK(t, banyan_outer_create(&o, few, m.tensors, TENSORS, &cfg));
        for (int step = 0; step < 14; step++) {
            add(&m, (float)(t->rank + 1));
            CHECK(t, banyan_outer_step(o, 1, 0) >= 0, "step %d", step);
        }
        CHECK_OK(t, banyan_outer_move(o, t->comm));
        CHECK_OK(t, banyan_comm_destroy(few));
    } else {
        CHECK_OK(t, banyan_outer_create(&o, t->comm, m.tensors, TENSORS, &cfg));
        CHECK(t, m.x[0] > 1, "the new rank has %g", (double)m.x[0]);
    }
    for (int step = 0; step < 9; step++)
        CHECK(t, banyan_outer_step(o, 1, 0) >= 0, "step %d", step);
    CHECK_OK(t, banyan_outer_finish(o));
    case_check_agree(t, t->comm, case_hash(m.x, sizeof m.x), "parameters");
    banyan_outer_free(o);
    return 0;
}

const struct mp_case cases_outer[] = {
    { "outer_local_sgd", outer_local_sgd, 0 },
    { "outer_overlapped", outer_overlapped, 0 },
    { "outer_adaptive", outer_adaptive, 0 },
    { "outer_formula", outer_formula, 0 },
    { "outer_powersgd", outer_powersgd, 0 },
    { "outer_nonfinite", outer_nonfinite, 0 },
    { "outer_weights", outer_weights, 0 },
    { "outer_nobody", outer_nobody, 0 },
    { "outer_survives", outer_survives, CASE_FAILS },
    { "outer_grows", outer_grows, 0 },
    { NULL, NULL, 0 },
};
