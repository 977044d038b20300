/* SPDX-License-Identifier: BSD-3-Clause */
/* What a lossy codec owes when ranks die: sums of topk with residuals, of integers, so that the
 * law of residuals holds to the last bit. Ranks are killed between the beginning and the end of
 * a sum; the others undo it, shrink, and take it again. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "tests/mp/call.h"

#define COUNT  (1u << 18)
#define STEPS  12
#define DEATHS 2

struct debt { /* the residual that a rank begins a step with */
    double norm2;
    uint32_t step, zero;
};

struct owing {
    struct test *t;
    struct banyan_codec_state *st;
    float *in, *out, *before;        /* before: the residual that a sum begins with */
    int32_t *sums;                   /* [2][COUNT] */
    struct debt debts[MP_RANKS_MAX]; /* as the members said */
    int members[MP_RANKS_MAX], n;    /* as numbered at the start */
    int undone;                      /* sums that had begun here */
};

static void *die_soon(void *arg)
{
    usleep(*(const uint32_t *)arg);
    raise(SIGKILL);
    return NULL;
}

/* Integers that differ by rank and step; a few are large. */
static void fill(struct owing *o, uint32_t step)
{
    uint64_t s = model_mix(o->t->seed + step, (uint64_t)o->t->rank);

    for (size_t i = 0; i < COUNT; i++) {
        uint64_t r = bny_rng_next(&s);

        o->in[i] = (float)((int)(r % 17) - 8) * (r >> 32 & 63 ? 1.0f : 40.0f);
    }
}

static double norm2_of(const float *e)
{
    double sum = 0;

    for (size_t i = 0; i < COUNT; i++)
        sum += (double)e[i] * (double)e[i];
    return sum;
}

/* What rank r owed, as it wrote it down for this test before it told the others. */
static struct debt *book(struct test *t, int r)
{
    return (struct debt *)(void *)t->shared->blob[r];
}

/* Everybody says how much it owes, then sums. Returns 0 or the first error. */
static int sum(struct owing *o, uint32_t step, uint32_t *at)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    const float *e = banyan_codec_state_residual(o->st);
    struct debt mine = { norm2_of(e), step, 0 }, all[MP_RANKS_MAX];
    int rc;

    CHECK_OK(o->t, banyan_codec_state_step(o->st, at));
    memcpy(o->before, e, COUNT * sizeof *e);
    fill(o, step);
    CHECK(o->t, step < sizeof o->t->shared->blob[0] / sizeof mine, "a victim lives");
    book(o->t, o->t->rank)[step] = mine;
    rc = banyan_allgather(&mine, all, sizeof mine, BANYAN_U8, o->t->comm, NULL);
    if (rc)
        return rc;
    for (int i = 0; i < o->n; i++)
        o->debts[o->members[i]] = all[i];
    opts.codec = "topk:delta=0.02,force=1";
    opts.codec_state = o->st;
    return banyan_allreduce(o->in, o->out, COUNT, BANYAN_F32, BANYAN_SUM, o->t->comm, &opts);
}

/* inputs + old residuals = result + new residuals, of those who are in it. A death is an error.
 */
static int check_law(struct owing *o)
{
    const float *e = banyan_codec_state_residual(o->st);
    int32_t *old = o->sums, *new = o->sums + COUNT;
    size_t waits = 0;
    int rc;

    for (size_t i = 0; i < COUNT; i++) {
        old[i] = (int32_t)(o->in[i] + o->before[i]);
        new[i] = (int32_t)e[i];
        waits += e[i] != 0;
    }
    CHECK(o->t, waits > COUNT / 2, "%zu of %u residuals are not 0", waits, COUNT);
    rc = banyan_allreduce(o->sums, o->sums, 2 * (size_t)COUNT, BANYAN_I32, BANYAN_SUM,
                          o->t->comm, NULL);
    for (size_t i = 0; rc == 0 && i < COUNT; i++)
        CHECK(o->t, (double)old[i] == (double)o->out[i] + new[i],
              "at %zu: %d went in, %g came out and %d are left", i, old[i], (double)o->out[i],
              new[i]);
    return rc;
}

/* On with those who are left; what the dead owed is told, as they said it last. */
static void leave_behind(struct owing *o, uint32_t step)
{
    struct test *t = o->t;
    const struct debt *d;
    struct banyan_comm *next;
    int rc, left[MP_RANKS_MAX], n;

    do {
        CHECK_OK(t, banyan_comm_shrink(t->comm, &next));
        n = banyan_comm_count(next);
        banyan_comm_destroy(t->comm);
        t->comm = next;
        rc = banyan_allgather(&t->rank, left, 1, BANYAN_I32, next, NULL);
    } while (rc == -BANYAN_ERANKDEAD);
    CHECK_OK(t, rc);
    for (int i = 0, k = 0; i < o->n; i++) {
        int r = o->members[i];

        if (k < n && left[k] == r) {
            k++;
            continue;
        }
        d = &o->debts[r];
        printf("note: rank %d's residual, of norm^2 %.0f, is lost\n", r, d->norm2);
        CHECK(t, d->step + 1 >= step && !memcmp(d, &book(t, r)[d->step], sizeof *d),
              "rank %d owed %g in step %u, and %g was told in %u", r, book(t, r)[d->step].norm2,
              d->step, d->norm2, step);
    }
    memcpy(o->members, left, sizeof left);
    o->n = n;
}

/* One sum, until it went well with all. */
static void one_step(struct owing *o, uint32_t step)
{
    struct test *t = o->t;

    for (;;) {
        uint32_t at, now;
        uint64_t well;
        int dead, rc;

        rc = sum(o, step, &at);
        if (rc == 0)
            rc = check_law(o);
        well = rc == 0;
        CHECK(t, rc == 0 || rc == -BANYAN_ERANKDEAD, "returned %d (%s)", rc,
              banyan_last_error());
        dead = banyan_comm_agree(t->comm, &well, NULL, 0);
        CHECK(t, dead >= 0, "banyan_comm_agree returned %d (%s)", dead, banyan_last_error());
        if (well && dead == 0)
            return;
        CHECK_OK(t, banyan_codec_state_step(o->st, &now));
        o->undone += now != at;
        CHECK_OK(t, banyan_codec_state_undo(o->st, at));
        CHECK(t, !memcmp(o->before, banyan_codec_state_residual(o->st), COUNT * sizeof(float)),
              "other residuals than before");
        leave_behind(o, step);
    }
}

/* Ranks are killed 0 to 4 ms behind the beginning of a sum. value[r][0]: sums undone. */
static int residuals_of_the_dead(struct test *t)
{
    struct owing o = { .t = t, .n = t->n };
    uint64_t s = t->seed;
    static uint32_t us;
    pthread_t thread;

    o.in = case_malloc(COUNT * sizeof *o.in);
    o.out = case_malloc(COUNT * sizeof *o.out);
    o.before = case_malloc(COUNT * sizeof *o.before);
    o.sums = case_malloc(2 * COUNT * sizeof *o.sums);
    for (int r = 0; r < t->n; r++)
        o.members[r] = r;
    CHECK_OK(t, banyan_codec_state_create(&o.st, COUNT, 1));
    CHECK_OK(t, banyan_codec_state_keep_undo(o.st, 1));
    /* A victim's thread may come late. */
    for (uint32_t step = 0; step < STEPS || o.n > t->n - DEATHS; step++) {
        int victim = step % 4 == 3 ? (int)(step / 4) : -1;

        us = (uint32_t)bny_rng_below(&s, 4000);
        if (victim < DEATHS && victim == t->rank)
            CHECK(t, pthread_create(&thread, NULL, die_soon, &us) == 0, "a thread");
        one_step(&o, step);
    }
    atomic_store(&t->shared->value[t->rank][0], (uint64_t)o.undone);
    CHECK(t, o.n == t->n - DEATHS, "%d members", o.n);
    banyan_codec_state_free(o.st);
    free(o.in);
    free(o.out);
    free(o.before);
    free(o.sums);
    return 0;
}

const struct mp_case cases_residuals[] = {
    { "residuals_of_the_dead", residuals_of_the_dead, CASE_NO_THREADS }, { NULL, NULL, 0 }
};
