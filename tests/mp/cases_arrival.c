/* SPDX-License-Identifier: BSD-3-Clause */
/* Reductions in order of arrival: results against the model of those who are said to have
 * contributed, over random calls, lateness, types and numbers of ranks that count. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "tests/mp/case.h"
#include "tests/mp/model.h"

#define RANKS_MAX 64

/* One call; the same on all ranks. */
struct arrival {
    int reduce, root, in_place, at_least;
    int is_coded; /* by a codec that changes no bit */
    int mode;     /* 0: blocking, 1: a request, twice, 2: in a group with another call */
    enum banyan_dtype dtype;
    enum model_op op;
    size_t count, chunk_bytes;
    uint64_t seed;
};

static void draw(struct arrival *c, int n, uint64_t *s)
{
    static const size_t counts[] = { 0, 1, 3, 17, 240, 1000, 4096, 9000, 70000, 300000 };
    size_t unit;

    memset(c, 0, sizeof *c);
    do {
        c->dtype = (enum banyan_dtype)bny_rng_below(s, BANYAN_DTYPE_COUNT);
        c->op = (enum model_op)bny_rng_below(s, M_MATRIX);
    } while (!model_op_fits(c->op, c->dtype));
    unit = model_unit(c->op);
    c->reduce = (int)bny_rng_below(s, 2);
    c->root = (int)bny_rng_below(s, (uint64_t)n);
    c->in_place = (int)bny_rng_below(s, 2);
    c->at_least = (int)bny_rng_below(s, 3) ? 0 : 1 + (int)bny_rng_below(s, (uint64_t)n);
    c->count = counts[bny_rng_below(s, sizeof counts / sizeof counts[0])] / unit * unit;
    c->chunk_bytes = bny_rng_below(s, 2) ? 8192 : 0;
    c->mode = (int)bny_rng_below(s, 3);
    c->is_coded = bny_rng_below(s, 3) == 0;
    c->seed = bny_rng_next(s);
}

static void model_of(void *dst, const struct arrival *c, const uint8_t *in_sum, int n)
{
    size_t esz = banyan_dtype_bytes(c->dtype);
    void *in = case_malloc(c->count * esz + 1);
    int m = 0;

    for (int r = 0; r < n; r++) {
        if (!in_sum[r])
            continue;
        model_fill(m ? in : dst, 0, c->count, c->dtype, c->op, r, c->seed);
        model_begin(m ? in : dst, c->count, c->dtype, c->op, r);
        if (m++)
            model_add(dst, in, c->count, c->dtype, c->op);
    }
    model_end(dst, c->count, c->dtype, c->op, m);
    free(in);
}

/* One of four is late, by up to 3 ms. */
static void be_late(uint64_t *s)
{
    struct timespec ts = { .tv_nsec = (long)bny_rng_below(s, 3000000) };

    if (bny_rng_below(s, 4) == 0)
        nanosleep(&ts, NULL);
}

static void run(struct test *t, const struct arrival *c, void *in, void *out, banyan_op op,
                uint8_t *in_sum, uint64_t *own)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    struct banyan_request *rq = NULL;
    uint32_t other = 1;

    o.schedule = "arrival";
    o.at_least = c->at_least;
    o.contributors = in_sum;
    o.chunk_bytes = c->chunk_bytes;
    o.codec = c->is_coded ? "blocksparse:force=1" : "none";
    for (int i = 0; i < (c->mode == 1 ? 2 : 1); i++) {
        memset(in_sum, 7, (size_t)t->n);
        model_fill(in, 0, c->count, c->dtype, c->op, t->rank, c->seed);
        be_late(own);
        if (c->mode == 2)
            CHECK_OK(t, banyan_group_start());
        if (c->mode != 1 && c->reduce)
            CHECK_OK(t, banyan_reduce(in, out, c->count, c->dtype, op, c->root, t->comm, &o));
        if (c->mode != 1 && !c->reduce)
            CHECK_OK(t, banyan_allreduce(in, out, c->count, c->dtype, op, t->comm, &o));
        if (c->mode == 1 && !rq)
            CHECK_OK(t, c->reduce ? banyan_reduce_init(in, out, c->count, c->dtype, op, c->root,
                                                       t->comm, &o, &rq)
                                  : banyan_allreduce_init(in, out, c->count, c->dtype, op,
                                                          t->comm, &o, &rq));
        if (rq) {
            CHECK_OK(t, banyan_start(rq));
            CHECK_OK(t, banyan_wait(rq, -1));
        }
        if (c->mode == 2) {
            CHECK_OK(
                t, banyan_allreduce(&other, &other, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL));
            CHECK_OK(t, banyan_group_end());
            CHECK(t, other == (uint32_t)t->n, "the other call of the group: %u", other);
        }
    }
    CHECK_OK(t, banyan_request_free(rq));
}

static void check_contributors(struct test *t, const struct arrival *c, const uint8_t *in_sum)
{
    int want = c->at_least ? c->at_least : t->n, m = 0;

    for (int r = 0; r < t->n; r++) {
        CHECK(t, in_sum[r] <= 1, "contributors[%d] is %u", r, in_sum[r]);
        m += in_sum[r];
    }
    if (!c->reduce || c->root == t->rank) /* of results that must wait for too many: all */
        CHECK(t, m == want || m == t->n, "%d of %d contributed, not %d", m, t->n, want);
    if (c->reduce && c->root == t->rank)
        CHECK(t, in_sum[t->rank], "the root did not contribute");
    if (!c->reduce)
        case_check_agree(t, t->comm, case_hash(in_sum, (size_t)t->n), "contributors");
}

static void one(struct test *t, const struct arrival *c, uint64_t *own)
{
    size_t bytes = c->count * banyan_dtype_bytes(c->dtype), bad;
    char *in = case_malloc(bytes + 1), *out = case_malloc(bytes + 1),
         *want = case_malloc(bytes + 1);
    int gets = !c->reduce || c->root == t->rank, made;
    uint8_t in_sum[RANKS_MAX];
    banyan_op op;

    memset(out, 0x5a, bytes + 1);
    CHECK_OK(t, model_op_create(c->op, t->rank, &op, &made));
    run(t, c, c->in_place && gets ? out : in, gets ? out : NULL, op, in_sum, own);
    check_contributors(t, c, in_sum);
    if (gets) {
        model_of(want, c, in_sum, t->n);
        bad = model_compare(out, want, c->count, c->dtype, c->op);
        CHECK(t, bad == c->count,
              "%s of %zu %s, op %d, at least %d of %d, mode %d, in place %d, coded %d: element "
              "%zu",
              c->reduce ? "reduce" : "allreduce", c->count, banyan_dtype_name(c->dtype),
              (int)c->op, c->at_least, t->n, c->mode, c->in_place, c->is_coded, bad);
    }
    if (!c->reduce)
        case_check_agree(t, t->comm, case_hash(out, bytes), "arrival");
    CHECK(t, out[bytes] == 0x5a, "written behind the result");
    if (made)
        CHECK_OK(t, banyan_op_free(op));
    free(in);
    free(out);
    free(want);
}

/* arg: calls. */
static int arrival(struct test *t)
{
    int calls = *t->arg ? atoi(t->arg) : 150;
    uint64_t s = t->seed, own = model_mix(t->seed, (uint64_t)t->rank + 77);

    for (int i = 0; i < calls; i++) {
        struct arrival c;

        draw(&c, t->n, &s);
        one(t, &c, &own);
    }
    case_check_works(t, t->comm);
    return 0;
}

/* What it cannot do it refuses, on all ranks alike, and says why. */
static int arrival_refused(struct test *t)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    float x[8] = { 0 }, y[64];
    uint8_t set[RANKS_MAX] = { 1 };

    o.schedule = "arrival";
    o.deterministic = 1;
    CHECK_RC(t, -BANYAN_ENOTSUP,
             banyan_allreduce(x, y, 8, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    CHECK_HAS(t, banyan_last_error(), "deterministic");
    o.deterministic = -1;
    o.participants = set;
    CHECK_RC(t, -BANYAN_ENOTSUP,
             banyan_allreduce(x, y, 8, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    CHECK_HAS(t, banyan_last_error(), "participation");
    o.participants = NULL;
    CHECK_RC(t, -BANYAN_ENOTSUP, banyan_allgather(x, y, 8, BANYAN_F32, t->comm, &o));
    CHECK_HAS(t, banyan_last_error(), "allreduce and reduce");
    o.codec = "powersgd";
    CHECK_RC(t, -BANYAN_ENOTSUP,
             banyan_allreduce(x, y, 8, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    CHECK_HAS(t, banyan_last_error(), "linear codecs");
    o.codec = NULL;
    o.at_least = t->n + 1;
    CHECK_RC(t, -BANYAN_EINVAL, banyan_allreduce(x, y, 8, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    CHECK_HAS(t, banyan_last_error(), "at_least");
    o.at_least = 1;
    o.schedule = "ring";
    CHECK_RC(t, -BANYAN_EINVAL, banyan_allreduce(x, y, 8, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    CHECK_HAS(t, banyan_last_error(), "arrival");
    o.at_least = 0;
    o.schedule = "auto";
    memset(set, 9, sizeof set);
    o.contributors = set;
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
    struct banyan_opts o = BANYAN_OPTS_INIT;
    uint32_t *x = case_malloc(COUNT * 4);
    int late = atoi(t->arg), want = t->n * (t->n + 1) / 2 - (late + 1);
    uint8_t in_sum[RANKS_MAX];

    o.schedule = "arrival";
    o.at_least = t->n - 1;
    o.contributors = in_sum;
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

/* arg: who is late. Many sums are begun before any has ended, so that how later ones are run is
 * not known when they begin. Each is of a length of its own. */
static int arrival_ahead(struct test *t)
{
    enum { CALLS = 40 };
    struct auto_run a = { .t = t, .late = atoi(t->arg) };
    struct timespec late = { .tv_nsec = 300000000 };
    struct banyan_request *rq[CALLS];
    uint32_t *x = case_malloc((size_t)CALLS * AUTO_COUNT * 4);

    for (int i = 0; i < CALLS; i++)
        CHECK_OK(t, banyan_allreduce_init(x + (size_t)i * AUTO_COUNT,
                                          x + (size_t)i * AUTO_COUNT, AUTO_COUNT - (size_t)i,
                                          BANYAN_U32, BANYAN_SUM, t->comm, NULL, &rq[i]));
    for (int round = 0; round < 3; round++) {
        for (a.calls = 0; a.calls < CALLS; a.calls++)
            fill(&a, x + (size_t)a.calls * AUTO_COUNT);
        if (a.late == t->rank)
            nanosleep(&late, NULL);
        for (int i = 0; i < CALLS; i++)
            CHECK_OK(t, banyan_start(rq[i]));
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
