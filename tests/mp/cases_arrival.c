/* SPDX-License-Identifier: BSD-3-Clause */
/* Reductions in order of arrival: results against the model of those who are said to have
 * contributed, over random calls, lateness, types and numbers of ranks that count. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "tests/mp/arrival_call.h"

/* One of four is late, by up to 3 ms. */
static void be_late(uint64_t *s)
{
    struct timespec ts = { .tv_nsec = (long)bny_rng_below(s, 3000000) };

    if (bny_rng_below(s, 4) == 0)
        nanosleep(&ts, NULL);
}

enum manner { BLOCKING, REQUEST_TWICE, IN_GROUP, MANNERS };

static void one(struct test *t, const struct arrival_call *c, enum manner manner, uint64_t *own)
{
    struct arrived *a = arrival_open(t, t->comm, c);
    struct banyan_request *rq = NULL;
    uint32_t other = 1;

    if (manner == BLOCKING) {
        be_late(own);
        CHECK_OK(t, arrival_issue(a, NULL));
    } else if (manner == REQUEST_TWICE) {
        CHECK_OK(t, arrival_issue(a, &rq));
        for (int i = 0; i < 2; i++) {
            arrival_fill(a);
            be_late(own);
            CHECK_OK(t, banyan_start(rq));
            CHECK_OK(t, banyan_wait(rq, -1));
        }
    } else {
        be_late(own);
        CHECK_OK(t, banyan_group_start());
        CHECK_OK(t, arrival_issue(a, NULL));
        CHECK_OK(t, banyan_allreduce(&other, &other, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL));
        CHECK_OK(t, banyan_group_end());
        CHECK(t, other == (uint32_t)t->n, "the other call of the group: %u", other);
    }
    CHECK_OK(t, banyan_request_free(rq));
    CHECK_OK(t, arrival_close(t, a, 0));
}

/* arg: calls. */
static int arrival(struct test *t)
{
    int calls = *t->arg ? atoi(t->arg) : 150;
    uint64_t s = t->seed, own = model_mix(t->seed, (uint64_t)t->rank + 77);

    for (int i = 0; i < calls; i++) {
        struct arrival_call c;

        arrival_random(&c, t->n, bny_rng_next(&s));
        one(t, &c, (enum manner)bny_rng_below(&s, MANNERS), &own);
    }
    case_check_works(t, t->comm);
    return 0;
}

/* What it cannot do it refuses, on all ranks alike, and says why. */
static int arrival_refused(struct test *t)
{
    struct banyan_reduce_opts inputs = BANYAN_REDUCE_OPTS_INIT;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    float x[8] = { 0 }, y[64];
    uint8_t set[MP_RANKS_MAX] = { 1 };

    o.schedule = "arrival";
    o.deterministic = 1;
    CHECK_RC(t, -BANYAN_ENOTSUP,
             banyan_allreduce(x, y, 8, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    CHECK_HAS(t, banyan_last_error(), "deterministic");
    o.deterministic = -1;
    o.reduce = &inputs;
    inputs.participants = set;
    CHECK_RC(t, -BANYAN_ENOTSUP,
             banyan_allreduce(x, y, 8, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    CHECK_HAS(t, banyan_last_error(), "participation");
    inputs.participants = NULL;
    CHECK_RC(t, -BANYAN_EINVAL, banyan_allgather(x, y, 8, BANYAN_F32, t->comm, &o));
    CHECK_HAS(t, banyan_last_error(), "allgather takes all inputs");
    o.reduce = NULL;
    CHECK_RC(t, -BANYAN_ENOTSUP, banyan_allgather(x, y, 8, BANYAN_F32, t->comm, &o));
    CHECK_HAS(t, banyan_last_error(), "allreduce and reduce");
    o.codec = "powersgd";
    CHECK_RC(t, -BANYAN_ENOTSUP,
             banyan_allreduce(x, y, 8, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    CHECK_HAS(t, banyan_last_error(), "linear codecs");
    o.codec = NULL;
    o.reduce = &inputs;
    inputs.at_least = t->n + 1;
    CHECK_RC(t, -BANYAN_EINVAL, banyan_allreduce(x, y, 8, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    CHECK_HAS(t, banyan_last_error(), "at_least");
    inputs.at_least = 1;
    o.schedule = "ring";
    CHECK_RC(t, -BANYAN_EINVAL, banyan_allreduce(x, y, 8, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    CHECK_HAS(t, banyan_last_error(), "arrival");
    inputs.at_least = 0;
    o.schedule = "auto";
    memset(set, 9, sizeof set);
    inputs.contributors = set;
    CHECK_OK(t, banyan_allreduce(x, y, 8, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    for (int r = 0; r < t->n; r++)
        CHECK(t, set[r] == 1, "contributors[%d] of a call of all is %u", r, set[r]);
    case_check_works(t, t->comm);
    return 0;
}

/* arg: who is late. It comes when all others have their results, which it is not in, and gets
 * the same: of more calls than results are kept for it. */
static int arrival_late(struct test *t)
{
    enum { CALLS = 3, COUNT = 200000 };
    struct banyan_reduce_opts inputs = BANYAN_REDUCE_OPTS_INIT;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    uint32_t *x = case_malloc(COUNT * 4);
    int late = atoi(t->arg), want = t->n * (t->n + 1) / 2 - (late + 1);
    uint8_t in_sum[MP_RANKS_MAX];

    o.schedule = "arrival";
    o.reduce = &inputs;
    inputs.at_least = t->n - 1;
    inputs.contributors = in_sum;
    if (t->rank == late)
        while (atomic_load(&t->shared->value[0][0]) < (uint64_t)(t->n - 1)) {
            struct timespec ts = { .tv_nsec = 100000 };
            nanosleep(&ts, NULL); /* it calls nothing of the library */
        }
    for (int i = 0; i < CALLS; i++) {
        for (size_t k = 0; k < COUNT; k++)
            x[k] = (uint32_t)(t->rank + 1);
        CHECK_OK(t, banyan_allreduce(x, x, COUNT, BANYAN_U32, BANYAN_SUM, t->comm, &o));
        for (int r = 0; r < t->n; r++)
            CHECK(t, in_sum[r] == (r != late), "call %d: contributors[%d] is %u", i, r,
                  in_sum[r]);
        for (size_t k = 0; k < COUNT; k++)
            CHECK(t, x[k] == (uint32_t)want, "call %d: element %zu is %u, not %d", i, k, x[k],
                  want);
    }
    if (t->rank != late)
        atomic_fetch_add(&t->shared->value[0][0], 1);
    free(x);
    return 0;
}

/* ---- schedule auto ---- */

enum { AUTO_COUNT = 250000 };

struct auto_run {
    struct test *t;
    uint32_t *x;
    int late, calls; /* who; -1: nobody */
    uint64_t asked, by_arrival;
};

static void take_counts(struct auto_run *a)
{
    struct banyan_stats s = { .size = sizeof s };

    CHECK_OK(a->t, banyan_comm_stats(a->t->comm, &s));
    a->asked = s.sums_asked;
    a->by_arrival = s.sums_by_arrival;
}

static void fill(struct auto_run *a, uint32_t *x)
{
    for (size_t k = 0; k < AUTO_COUNT; k++)
        x[k] = (uint32_t)(a->t->rank + 1) * (uint32_t)(k + (size_t)a->calls);
}

static void check_sum(struct auto_run *a, const uint32_t *x, int call, size_t count)
{
    uint32_t all = (uint32_t)(a->t->n * (a->t->n + 1) / 2);

    for (size_t k = 0; k < count; k++)
        CHECK(a->t, x[k] == all * (uint32_t)(k + (size_t)call),
              "call %d: element %zu is %u, not %u", call, k, x[k],
              all * (uint32_t)(k + (size_t)call));
}

/* Eight sums. How many of them asked who was late, and how many ran in order of arrival, is
 * added to a; all ranks must say the same. */
static void eight(struct auto_run *a, const struct banyan_opts *o)
{
    uint64_t was[2] = { a->asked, a->by_arrival };
    struct timespec late = { .tv_nsec = 200000000 };

    for (int i = 0; i < 8; i++, a->calls++) {
        fill(a, a->x);
        if (a->late == a->t->rank)
            nanosleep(&late, NULL);
        CHECK_OK(a->t, banyan_allreduce(a->x, a->x, AUTO_COUNT, BANYAN_U32, BANYAN_SUM,
                                        a->t->comm, o));
        check_sum(a, a->x, a->calls, AUTO_COUNT);
    }
    take_counts(a);
    case_check_agree(a->t, a->t->comm, a->asked * 1000003 + a->by_arrival, "counts of sums");
    a->asked -= was[0];
    a->by_arrival -= was[1];
}

/* Runs eights until they are as wanted: this many of the next eight ran in order of arrival. */
static void until(struct auto_run *a, uint64_t by_arrival, int most, const char *what)
{
    int i = 0;

    do {
        take_counts(a);
        eight(a, NULL);
    } while (a->by_arrival != by_arrival && ++i < most);
    CHECK(a->t, a->by_arrival == by_arrival, "%s: %d of 8 sums in order of arrival", what,
          (int)a->by_arrival);
    CHECK(a->t, a->asked == (by_arrival ? 8 : 1) || by_arrival == 0, "%s: %d of 8 sums asked",
          what, (int)a->asked);
}

/* arg: who is late for a while. Others of the machine may make ranks late, too, so that only
 * changes are checked, and how fast they come when all is as it seems is test_lateness. */
static int arrival_auto(struct test *t)
{
    struct auto_run a = { .t = t, .x = case_malloc(AUTO_COUNT * 4), .late = -1 };
    struct banyan_opts o = BANYAN_OPTS_INIT;

    until(&a, 0, 100, "nobody was late");
    a.late = atoi(t->arg);
    until(&a, 8, 5, "somebody was late");
    o.deterministic = 1; /* demanded: never */
    take_counts(&a);
    eight(&a, &o);
    CHECK(t, !a.asked && !a.by_arrival, "deterministic: %d asked", (int)a.asked);
    o.deterministic = -1;
    for (int i = 0; i < 2; i++) {
        o.schedule = i ? "ring" : "static";
        take_counts(&a);
        eight(&a, &o);
        CHECK(t, !a.asked && !a.by_arrival, "%s: %d asked", o.schedule, (int)a.asked);
    }
    a.late = -1;
    until(&a, 0, 100, "nobody is late any more");
    free(a.x);
    case_check_works(t, t->comm);
    return 0;
}

/* The others have begun when the late rank hears of them, however slow the machine makes them;
 * then it waits. Where it only slept, a coordinator that the machine held up as long saw nobody
 * late.
 */
static void come_late(struct auto_run *a)
{
    struct timespec late = { .tv_nsec = 300000000 };
    uint32_t word = 0;

    for (int r = 0; r < a->t->n && a->late == a->t->rank; r++)
        if (r != a->late)
            CHECK_OK(a->t, banyan_recv(&word, 1, BANYAN_U32, r, a->t->comm, NULL));
    if (a->late == a->t->rank)
        nanosleep(&late, NULL);
}

static void tell_late(struct auto_run *a, struct banyan_request *begun)
{
    uint32_t word = 1;
    int done;

    CHECK_OK(a->t, banyan_test(begun, &done));
    CHECK_OK(a->t, banyan_send(&word, 1, BANYAN_U32, a->late, a->t->comm, NULL));
}

/* arg: who is late. Many sums are begun before any has ended, so that how later ones are run is
 * not known when they begin. Each is of a length of its own. Which coordinator serves is the
 * first two ranks' race, and only one that was there sees who is late: a few more rounds make
 * it sure. */
static int arrival_ahead(struct test *t)
{
    enum { CALLS = 40, ROUNDS = 3, ROUNDS_MAX = 20 };
    struct auto_run a = { .t = t, .late = atoi(t->arg) };
    struct banyan_request *rq[CALLS];
    uint32_t *x = case_malloc((size_t)CALLS * AUTO_COUNT * 4);

    for (int i = 0; i < CALLS; i++)
        CHECK_OK(t, banyan_allreduce_init(x + (size_t)i * AUTO_COUNT,
                                          x + (size_t)i * AUTO_COUNT, AUTO_COUNT - (size_t)i,
                                          BANYAN_U32, BANYAN_SUM, t->comm, NULL, &rq[i]));
    for (int round = 0; round < ROUNDS || (!a.by_arrival && round < ROUNDS_MAX); round++) {
        for (a.calls = 0; a.calls < CALLS; a.calls++)
            fill(&a, x + (size_t)a.calls * AUTO_COUNT);
        come_late(&a);
        for (int i = 0; i < CALLS; i++)
            CHECK_OK(t, banyan_start(rq[i]));
        if (a.late != t->rank)
            tell_late(&a, rq[0]);
        for (int i = CALLS; i-- > 0;)
            CHECK_OK(t, banyan_wait(rq[i], -1));
        for (int i = 0; i < CALLS; i++)
            check_sum(&a, x + (size_t)i * AUTO_COUNT, i, AUTO_COUNT - (size_t)i);
        take_counts(&a);
        case_check_agree(t, t->comm, a.asked * 1000003 + a.by_arrival, "counts of sums");
        CHECK(t, a.asked >= (uint64_t)(5 * (round + 1)), "%d asked", (int)a.asked);
    }
    CHECK(t, a.by_arrival >= 1, "none in order of arrival");
    for (int i = 0; i < CALLS; i++)
        CHECK_OK(t, banyan_request_free(rq[i]));
    free(x);
    return 0;
}

const struct mp_case cases_arrival[] = {
    { "arrival_auto", arrival_auto, 0 }, { "arrival_ahead", arrival_ahead, 0 },
    { "arrival", arrival, 0 },           { "arrival_refused", arrival_refused, 0 },
    { "arrival_late", arrival_late, 0 }, { 0 },
};
