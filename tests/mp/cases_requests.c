/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests, several in flight, groups, point to point, and the ways to make progress. */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/mp/case.h"
#include "tests/mp/model.h"

static int persistent(struct test *t)
{
    uint32_t x[4] = { 0 }, y[4], n = (uint32_t)t->n;
    struct banyan_request *rq;

    CHECK_OK(t, banyan_allreduce_init(x, y, 4, BANYAN_U32, BANYAN_SUM, t->comm, NULL, &rq));
    for (uint32_t i = 0; i < 1000; i++) {
        for (uint32_t k = 0; k < 4; k++)
            x[k] = i + k + (uint32_t)t->rank;
        CHECK_OK(t, banyan_start(rq));
        CHECK_OK(t, banyan_wait(rq, -1));
        for (uint32_t k = 0; k < 4; k++)
            CHECK(t, y[k] == n * (i + k) + n * (n - 1) / 2, "round %u: %u", i, y[k]);
    }
    CHECK_OK(t, banyan_start(rq)); /* active until a wait has said that it is complete */
    CHECK_RC(t, -BANYAN_EBUSY, banyan_start(rq));
    CHECK_RC(t, -BANYAN_EBUSY, banyan_request_free(rq));
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    CHECK_RC(t, -BANYAN_EBUSY, banyan_start(rq));
    CHECK_RC(t, -BANYAN_EBUSY, banyan_request_free(rq));
    CHECK_OK(t, banyan_wait(rq, -1));
    CHECK_OK(t, banyan_request_free(rq));
    return 0;
}

/* A request tells what its own operation sent, whatever else is in flight. */
static int request_stats(struct test *t)
{
    static const size_t counts[] = { 10, 3000, 300000 };
    struct banyan_request_stats st[3], none = { .size = 0 };
    struct banyan_stats was = { .size = sizeof was }, is = { .size = sizeof is };
    struct banyan_request *rq[3];
    uint64_t sum = 0, before;
    uint32_t *x[3];

    for (int i = 0; i < 3; i++) {
        x[i] = case_malloc(counts[i] * 4);
        memset(x[i], 0, counts[i] * 4);
        st[i].size = sizeof st[i];
        CHECK_OK(t, banyan_allreduce_init(x[i], x[i], counts[i], BANYAN_U32, BANYAN_SUM,
                                          t->comm, NULL, &rq[i]));
        if (i == 1)
            continue;
        CHECK_OK(t, banyan_request_stats(rq[i], &st[i]));
        CHECK(t, !st[i].wire_bytes && !st[i].start_ns && !st[i].end_ns, "before the first");
    }
    CHECK_RC(t, -BANYAN_EINVAL, banyan_request_stats(rq[0], &none));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_request_stats(rq[0], NULL));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_request_stats(NULL, &st[0]));
    for (int round = 0; round < 3; round++) {
        CHECK_OK(t, banyan_barrier(t->comm, NULL));
        CHECK_OK(t, banyan_comm_stats(t->comm, &was));
        before = bny_now_ns();
        for (int i = 0; i < 3; i++)
            CHECK_OK(t, banyan_start(rq[i]));
        for (int i = 2; i >= 0; i--)
            CHECK_OK(t, banyan_wait(rq[i], -1));
        CHECK_OK(t, banyan_comm_stats(t->comm, &is));
        sum = 0;
        for (int i = 0; i < 3; i++) {
            CHECK_OK(t, banyan_request_stats(rq[i], &st[i]));
            sum += st[i].wire_bytes;
            if (i == 1 && round == 0) {
                CHECK(t, !st[i].start_ns && !st[i].end_ns, "times that nobody asked for");
                continue;
            }
            CHECK(t,
                  before <= st[i].start_ns && st[i].start_ns <= st[i].end_ns &&
                      st[i].end_ns <= bny_now_ns(),
                  "times of request %d", i);
        }
        CHECK(t, t->n == 1 ? !sum : st[2].wire_bytes > st[1].wire_bytes, "%llu bytes",
              (unsigned long long)sum);
        /* The communicator counts READYs beside. */
        CHECK(t,
              is.wire_bytes - was.wire_bytes >= sum &&
                  is.wire_bytes - was.wire_bytes <= sum + 4000,
              "%llu bytes of requests, %llu of the communicator", (unsigned long long)sum,
              (unsigned long long)(is.wire_bytes - was.wire_bytes));
    }
    for (int i = 0; i < 3; i++) {
        CHECK_OK(t, banyan_request_free(rq[i]));
        free(x[i]);
    }
    return 0;
}

static int persistent_large(struct test *t)
{
    size_t n = 300007;
    uint32_t *x = case_malloc(n * 4);
    struct banyan_request *rq[2];

    CHECK_OK(t, banyan_allreduce_init(x, x, n, BANYAN_U32, BANYAN_SUM, t->comm, NULL, &rq[0]));
    CHECK_OK(t, banyan_broadcast_init(x, n, BANYAN_U32, t->n - 1, t->comm, NULL, &rq[1]));
    for (uint32_t i = 0; i < 20; i++) {
        for (uint32_t k = 0; k < n; k++)
            x[k] = k * 7 + i + (uint32_t)t->rank;
        CHECK_OK(t, banyan_start(rq[0]));
        CHECK_OK(t, banyan_wait(rq[0], -1));
        for (uint32_t k = 0; k < n; k++)
            CHECK(t, x[k] == (uint32_t)t->n * (k * 7 + i) + (uint32_t)(t->n * (t->n - 1) / 2),
                  "round %u element %u", i, k);
        if (t->rank != t->n - 1)
            memset(x, 0, n * 4);
        CHECK_OK(t, banyan_start(rq[1]));
        CHECK_OK(t, banyan_wait(rq[1], 30));
        CHECK(t,
              x[n - 1] == (uint32_t)t->n * ((uint32_t)(n - 1) * 7 + i) +
                              (uint32_t)(t->n * (t->n - 1) / 2),
              "round %u broadcast", i);
    }
    CHECK_OK(t, banyan_request_free(rq[0]));
    CHECK_OK(t, banyan_request_free(rq[1]));
    free(x);
    return 0;
}

/* What a caller does wrong with requests is refused and leaves them usable. Rank 0 starts first
 * for certain. */
static int request_busy(struct test *t)
{
    uint32_t x = 1, y = 0;
    struct banyan_request *rq;
    size_t index;

    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    CHECK_OK(t, banyan_allreduce_init(&x, &y, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL, &rq));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_wait_any(&rq, 1, 1, &index));
    if (t->rank != 0)
        while (atomic_load(&t->shared->marker[0]) == 0)
            banyan_progress(t->comm);
    CHECK_OK(t, banyan_start(rq));
    if (t->rank == 0) {
        int done;
        CHECK_OK(t, banyan_test(rq, &done));
        CHECK(t, !done, "complete without the other ranks");
        CHECK_RC(t, -BANYAN_EBUSY, banyan_start(rq));
        CHECK_RC(t, -BANYAN_EBUSY, banyan_request_free(rq));
        atomic_store(&t->shared->marker[0], 1);
    }
    CHECK_OK(t, banyan_wait(rq, -1));
    CHECK(t, y == (uint32_t)t->n, "%u", y);
    /* One that is complete, and that nobody has waited for, is as busy as one in flight: else
     * ranks that got there sooner would run one more operation than the others. */
    for (int i = 0; i < 100; i++) {
        CHECK_OK(t, banyan_start(rq));
        CHECK_OK(t, banyan_barrier(t->comm, NULL));
        CHECK_RC(t, -BANYAN_EBUSY, banyan_start(rq));
        CHECK_OK(t, banyan_wait(rq, -1));
    }
    CHECK_OK(t, banyan_request_free(rq));
    CHECK_OK(t, banyan_request_free(NULL));
    return 0;
}

#define FLIGHT 6
struct flight {
    struct banyan_comm *comm;
    struct banyan_request *rq;
    uint32_t *in, *out;
    size_t n;
    int kind;
};

static void flight_init(struct test *t, struct flight *f, uint64_t *s)
{
    static const size_t counts[] = { 1, 100, 5000, 300000 };

    f->n = counts[bny_rng_below(s, 4)];
    f->kind = (int)bny_rng_below(s, 3);
    f->in = case_malloc(f->n * 4);
    f->out = case_malloc(f->n * 4 * (size_t)t->n);
    if (f->kind == 0)
        CHECK_OK(t, banyan_allreduce_init(f->in, f->out, f->n, BANYAN_U32, BANYAN_SUM, f->comm,
                                          NULL, &f->rq));
    else if (f->kind == 1)
        CHECK_OK(t,
                 banyan_allgather_init(f->in, f->out, f->n, BANYAN_U32, f->comm, NULL, &f->rq));
    else
        CHECK_OK(t, banyan_broadcast_init(f->out, f->n, BANYAN_U32, t->n / 2, f->comm, NULL,
                                          &f->rq));
}

static uint32_t flight_value(size_t i, int rank, uint32_t round)
{
    return (uint32_t)i * 2654435761u + (uint32_t)rank * 17 + round;
}

static void flight_start(struct test *t, struct flight *f, uint32_t round)
{
    for (size_t i = 0; i < f->n; i++) {
        f->in[i] = flight_value(i, t->rank, round);
        if (f->kind == 2)
            f->out[i] = t->rank == t->n / 2 ? f->in[i] : 0;
    }
    CHECK_OK(t, banyan_start(f->rq));
}

static void flight_check(struct test *t, const struct flight *f, uint32_t round)
{
    for (size_t i = 0; i < f->n; i++) {
        uint32_t sum = 0;
        for (int r = 0; r < t->n; r++) {
            sum += flight_value(i, r, round);
            CHECK(t, f->kind != 1 || f->out[(size_t)r * f->n + i] == flight_value(i, r, round),
                  "allgather element %zu of rank %d", i, r);
        }
        CHECK(t, f->kind != 0 || f->out[i] == sum, "allreduce element %zu", i);
        CHECK(t, f->kind != 2 || f->out[i] == flight_value(i, t->n / 2, round), "broadcast %zu",
              i);
    }
}

/* Completes all of them by wait_all, wait_any or test, as the local seed says. */
static void flight_land(struct test *t, struct flight *f, uint64_t *local)
{
    struct banyan_request *rq[FLIGHT];
    uint64_t how = bny_rng_below(local, 3);
    int done;

    for (int i = 0; i < FLIGHT; i++)
        rq[i] = f[i].rq;
    if (how == 0)
        CHECK_OK(t, banyan_wait_all(rq, FLIGHT, 30));
    for (int i = 0; i < FLIGHT && how == 1; i++) {
        size_t index = FLIGHT;
        CHECK_OK(t, banyan_wait_any(rq, FLIGHT, 30, &index));
        CHECK(t, index < FLIGHT, "index %zu", index);
    }
    if (how == 1) {
        size_t index;
        CHECK_RC(t, -BANYAN_EINVAL, banyan_wait_any(rq, FLIGHT, 30, &index));
    }
    for (int left = how == 2 ? FLIGHT : 0; left > 0;)
        for (int i = 0; i < FLIGHT; i++) {
            if (!rq[i])
                continue;
            CHECK_OK(t, banyan_test(rq[i], &done));
            if (done) {
                rq[i] = NULL;
                left--;
            }
        }
}

/* Operations of several communicators, started in another order on every rank. */
static int in_flight(struct test *t)
{
    struct flight f[FLIGHT];
    uint64_t s = t->seed, local = model_mix(t->seed, (uint64_t)t->rank + 1);

    for (int i = 0; i < FLIGHT; i++) {
        CHECK_OK(t, banyan_comm_dup(t->comm, &f[i].comm));
        flight_init(t, &f[i], &s);
    }
    for (uint32_t round = 0; round < 12; round++) {
        int order[FLIGHT];
        for (int i = 0; i < FLIGHT; i++) {
            int j = (int)bny_rng_below(&local, (uint64_t)i + 1);
            order[i] = order[j];
            order[j] = i;
        }
        for (int i = 0; i < FLIGHT; i++)
            flight_start(t, &f[order[i]], round);
        flight_land(t, f, &local);
        for (int i = 0; i < FLIGHT; i++)
            flight_check(t, &f[i], round);
    }
    for (int i = 0; i < FLIGHT; i++) {
        CHECK_OK(t, banyan_request_free(f[i].rq));
        CHECK_OK(t, banyan_comm_finalize(f[i].comm));
        free(f[i].in);
        free(f[i].out);
    }
    return 0;
}

/* Several on one communicator, in the same order everywhere, completed in any. */
static int in_flight_one_comm(struct test *t)
{
    struct flight f[FLIGHT];
    uint64_t s = t->seed, local = model_mix(t->seed, (uint64_t)t->rank + 1);

    for (int i = 0; i < FLIGHT; i++) {
        f[i].comm = t->comm;
        flight_init(t, &f[i], &s);
    }
    for (uint32_t round = 0; round < 12; round++) {
        for (int i = 0; i < FLIGHT; i++)
            flight_start(t, &f[i], round);
        flight_land(t, f, &local);
        for (int i = 0; i < FLIGHT; i++)
            flight_check(t, &f[i], round);
    }
    for (int i = 0; i < FLIGHT; i++) {
        CHECK_OK(t, banyan_request_free(f[i].rq));
        free(f[i].in);
        free(f[i].out);
    }
    return 0;
}

/* Far more at a time than a transport has room for, of every short collective, on two
 * communicators that ranks start in another order each. */
#define CROWD       1200
#define CROWD_KINDS 5
struct crowded {
    struct banyan_request *rq;
    uint32_t in[8], out[8];
    int kind; /* 0, 1: allreduce of 4 and of 16 B; allgather, alltoall, barrier */
};

static int crowd_init(struct crowded *c, struct banyan_comm *comm)
{
    switch (c->kind) {
    case 0:
    case 1:
        return banyan_allreduce_init(c->in, c->out, c->kind ? 4 : 1, BANYAN_U32, BANYAN_SUM,
                                     comm, NULL, &c->rq);
    case 2: return banyan_allgather_init(c->in, c->out, 1, BANYAN_U32, comm, NULL, &c->rq);
    case 3: return banyan_alltoall_init(c->in, c->out, 2, BANYAN_U32, comm, NULL, &c->rq);
    default: return banyan_barrier_init(comm, NULL, &c->rq);
    }
}

static void crowd_check(struct test *t, const struct crowded *c, uint32_t i)
{
    uint32_t n = (uint32_t)t->n;

    for (uint32_t k = 0; k < (c->kind == 1 ? 4u : 1u) && c->kind < 2; k++)
        CHECK(t, c->out[k] == n * (i + k) + n * (n - 1) / 2 * 1000, "allreduce %u: %u", i,
              c->out[k]);
    for (uint32_t r = 0; r < n; r++) {
        CHECK(t, c->kind != 2 || c->out[r] == i + r * 1000, "allgather %u of %u", i, r);
        CHECK(t, c->kind != 3 || c->out[2 * r] == i + 2 * (uint32_t)t->rank + r * 1000,
              "alltoall %u of %u", i, r);
    }
}

static void crowd_run(struct test *t, struct banyan_comm *other, int kind)
{
    struct crowded *all = case_malloc(CROWD * sizeof *all);
    struct banyan_request **rq = case_malloc(CROWD * sizeof(struct banyan_request *));
    int first = other != t->comm && t->rank % 2 ? CROWD / 2 : 0;

    for (uint32_t i = 0; i < CROWD; i++) {
        all[i].kind = kind < CROWD_KINDS ? kind : (int)i % CROWD_KINDS;
        for (uint32_t k = 0; k < 8; k++)
            all[i].in[k] = i + k + (uint32_t)t->rank * 1000;
        CHECK_OK(t, crowd_init(&all[i], i < CROWD / 2 ? t->comm : other));
        rq[i] = all[i].rq;
    }
    for (int i = 0; i < CROWD; i++)
        CHECK_OK(t, banyan_start(rq[(i + first) % CROWD]));
    CHECK_OK(t, banyan_wait_all(rq, CROWD, 20));
    for (uint32_t i = 0; i < CROWD; i++) {
        crowd_check(t, &all[i], i);
        CHECK_OK(t, banyan_request_free(rq[i]));
    }
    free(rq);
    free(all);
}

static int crowd(struct test *t)
{
    struct banyan_comm *other;

    CHECK(t, t->n <= 4, "%d ranks", t->n);
    CHECK_OK(t, banyan_comm_dup(t->comm, &other));
    crowd_run(t, t->comm, 0); /* as a program that has one communicator */
    for (int kind = 0; kind <= CROWD_KINDS; kind++)
        crowd_run(t, other, kind);
    CHECK_OK(t, banyan_comm_finalize(other));
    return 0;
}

/* Everybody sends to everybody in one group, itself included; then a nested one with a
 * collective. */
static int groups(struct test *t)
{
    static const size_t counts[] = { 1, 1000, 100000 };
    size_t n = (size_t)t->n;
    uint32_t sum = 0, one = 1;

    for (size_t k = 0; k < 3; k++) {
        size_t c = counts[k];
        uint32_t *out = case_malloc(n * c * 4), *in = case_malloc(n * c * 4);
        for (size_t p = 0; p < n; p++)
            for (size_t i = 0; i < c; i++)
                out[p * c + i] = flight_value(i, t->rank, (uint32_t)p * 1000);
        CHECK_OK(t, banyan_group_start());
        for (int p = 0; p < t->n; p++) {
            if (p == 1)
                CHECK_OK(t, banyan_group_start());
            CHECK_OK(t, banyan_send(out + (size_t)p * c, c, BANYAN_U32, p, t->comm, NULL));
            CHECK_OK(t, banyan_recv(in + (size_t)p * c, c, BANYAN_U32, p, t->comm, NULL));
            if (p == 1) {
                CHECK_OK(
                    t, banyan_allreduce(&one, &sum, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL));
                CHECK_OK(t, banyan_group_end());
            }
        }
        CHECK_OK(t, banyan_group_end());
        for (size_t p = 0; p < n; p++)
            for (size_t i = 0; i < c; i++)
                CHECK(t, in[p * c + i] == flight_value(i, (int)p, (uint32_t)t->rank * 1000),
                      "element %zu from rank %zu", i, p);
        CHECK(t, t->n == 1 || sum == (uint32_t)t->n, "the allreduce in the group gave %u", sum);
        free(in);
        free(out);
    }
    CHECK_OK(t, banyan_group_start());
    CHECK_OK(t, banyan_group_end());
    CHECK_RC(t, -BANYAN_EINVAL, banyan_group_end());
    case_check_works(t, t->comm);
    return 0;
}

/* Tags choose the message; among equal tags order decides. */
static int tags(struct test *t)
{
    enum { MESSAGES = 9 };
    int next = (t->rank + 1) % t->n, prev = (t->rank + t->n - 1) % t->n;
    static const size_t counts[] = { 1, 3000, 60000 };
    uint32_t *out[MESSAGES], *in[MESSAGES];
    struct banyan_request *rq[2 * MESSAGES];
    struct banyan_opts opts = BANYAN_OPTS_INIT;

    for (int m = 0; m < MESSAGES; m++) {
        size_t c = counts[m % 3];
        out[m] = case_malloc(c * 4);
        in[m] = case_malloc(c * 4);
        for (size_t i = 0; i < c; i++)
            out[m][i] = flight_value(i, t->rank, (uint32_t)m);
        opts.tag = (uint32_t)m % 3;
        CHECK_OK(t, banyan_send_init(out[m], c, BANYAN_U32, next, t->comm, &opts, &rq[m]));
        CHECK_OK(
            t, banyan_recv_init(in[m], c, BANYAN_U32, prev, t->comm, &opts, &rq[MESSAGES + m]));
    }
    for (int m = 0; m < MESSAGES; m++)
        CHECK_OK(t, banyan_start(rq[m]));
    /* Tag 2 first, then 1, then 0; the k-th of a tag stays the k-th. */
    for (int tag = 2; tag >= 0; tag--)
        for (int m = tag; m < MESSAGES; m += 3)
            CHECK_OK(t, banyan_start(rq[MESSAGES + m]));
    CHECK_OK(t, banyan_wait_all(rq, 2 * MESSAGES, 30));
    for (int m = 0; m < MESSAGES; m++) {
        for (size_t i = 0; i < counts[m % 3]; i++)
            CHECK(t, in[m][i] == flight_value(i, prev, (uint32_t)m), "message %d element %zu",
                  m, i);
        CHECK_OK(t, banyan_request_free(rq[m]));
        CHECK_OK(t, banyan_request_free(rq[MESSAGES + m]));
        free(in[m]);
        free(out[m]);
    }
    return 0;
}

/* "A send may return before the receiver has called": a small one must, for this to end. */
static int send_before_recv(struct test *t)
{
    uint32_t x = 100 + (uint32_t)t->rank, y = 0;
    int next = (t->rank + 1) % t->n, prev = (t->rank + t->n - 1) % t->n;

    for (int i = 0; i < 100; i++) {
        if (t->rank == 0) {
            CHECK_OK(t, banyan_send(&x, 1, BANYAN_U32, next, t->comm, NULL));
            CHECK_OK(t, banyan_recv(&y, 1, BANYAN_U32, prev, t->comm, NULL));
        } else {
            CHECK_OK(t, banyan_recv(&y, 1, BANYAN_U32, prev, t->comm, NULL));
            CHECK_OK(t, banyan_send(&x, 1, BANYAN_U32, next, t->comm, NULL));
        }
        CHECK(t, y == 100 + (uint32_t)prev, "%u", y);
    }
    return 0;
}

/* ---- progress ---- */
static void hook(void *ctx)
{
    atomic_fetch_add((_Atomic uint32_t *)ctx, 1);
}

/* Wait loops call the hook: the others come only after rank 0's was called. */
static int progress_hook(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm;

    cfg.progress_hook = hook;
    cfg.progress_hook_ctx = &t->shared->marker[t->rank];
    CHECK_OK(t, case_init(t, &cfg, &comm));
    CHECK_OK(t, banyan_barrier(comm, NULL));
    mp_shared_barrier(t->shared, t->n);
    atomic_store(&t->shared->marker[t->rank], 0);
    mp_shared_barrier(t->shared, t->n);
    while (t->rank != 0 && atomic_load(&t->shared->marker[0]) == 0)
        ;
    case_check_works(t, comm);
    CHECK_OK(t, banyan_comm_finalize(comm));
    return 0;
}

/* Rank 1 starts and calls nothing more until rank 0 is through: its thread does the work. */
static int progress_thread(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm;
    struct banyan_request *rq;
    size_t n = 1000003;
    uint32_t *x = case_malloc(n * 4);

    cfg.progress_thread = 1;
    CHECK_OK(t, case_init(t, &cfg, &comm));
    CHECK_OK(t, banyan_allreduce_init(x, x, n, BANYAN_U32, BANYAN_SUM, comm, NULL, &rq));
    for (uint32_t round = 1; round <= 5; round++) {
        for (size_t i = 0; i < n; i++)
            x[i] = flight_value(i, t->rank, round);
        CHECK_OK(t, banyan_start(rq));
        while (t->rank == 1 && atomic_load(&t->shared->marker[0]) < round)
            ;
        CHECK_OK(t, banyan_wait(rq, 30));
        if (t->rank == 0)
            atomic_store(&t->shared->marker[0], round);
        for (size_t i = 0; i < n; i += 1009) {
            uint32_t sum = 0;
            for (int r = 0; r < t->n; r++)
                sum += flight_value(i, r, round);
            CHECK(t, x[i] == sum, "round %u element %zu", round, i);
        }
    }
    CHECK_OK(t, banyan_request_free(rq));
    CHECK_OK(t, banyan_comm_finalize(comm));
    free(x);
    return 0;
}

/* Messages to oneself while the progress thread keeps those that come early from others. */
static int self_beside_early(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    struct banyan_comm *comm;
    uint32_t x, y;

    cfg.progress_thread = 1;
    CHECK_OK(t, case_init(t, &cfg, &comm));
    for (uint32_t round = 0; round < 10; round++) {
        for (uint32_t i = 0; i < 400; i++) {
            x = round * 400 + i;
            opts.tag = t->rank ? i : 0;
            CHECK_OK(t, banyan_send(&x, 1, BANYAN_U32, 0, comm, &opts));
            if (t->rank)
                continue;
            CHECK_OK(t, banyan_recv(&y, 1, BANYAN_U32, 0, comm, &opts));
            CHECK(t, y == x, "received %u, not %u", y, x);
        }
        for (int r = 1; t->rank == 0 && r < t->n; r++)
            for (opts.tag = 0; opts.tag < 400; opts.tag++) {
                CHECK_OK(t, banyan_recv(&y, 1, BANYAN_U32, r, comm, &opts));
                CHECK(t, y == round * 400 + opts.tag, "received %u", y);
            }
    }
    CHECK_OK(t, banyan_comm_finalize(comm));
    return 0;
}

/* A collective that has returned needs nothing more of this rank: what it sends is under way,
 * even when the connection had to be made first. The root calls nothing before the others are
 * through. */
static int leaves_nothing(struct test *t)
{
    uint32_t x[2500], first = t->rank == 0 ? 7 : 0;

    for (uint32_t i = 0; i < 2500; i++)
        x[i] = t->rank == 0 ? i : 0;
    CHECK_OK(t, banyan_broadcast(&first, 1, BANYAN_U32, 0, t->comm, NULL));
    mp_shared_barrier(t->shared, t->n);
    CHECK_OK(t, banyan_broadcast(x, 2500, BANYAN_U32, 0, t->comm, NULL));
    mp_shared_barrier(t->shared, t->n);
    CHECK(t, first == 7 && x[2499] == 2499, "%u, %u", first, x[2499]);
    return 0;
}

/* It was readable, and is not after banyan_progress: nothing is due. A rank that loses its CPU
 * in between may find that something is, again. */
static void check_quiet(const struct test *t, struct pollfd *p, const char *when)
{
    int tries = 0;

    CHECK(t, poll(p, 1, (int)(5000 * mp_patience())) == 1, "%s: never due", when);
    do
        CHECK(t, banyan_progress(t->comm) >= 0 && tries++ < 1000, "%s: always due", when);
    while (poll(p, 1, 0) != 0);
}

/* Quiet while nothing is to be done, also of an operation that lacks a rank; then told. */
static void wait_quietly(struct test *t, struct pollfd *p)
{
    struct banyan_request *rq;
    uint32_t x = 1;
    int done = 0;

    check_quiet(t, p, "idle");
    CHECK_OK(t, banyan_allreduce_init(&x, &x, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL, &rq));
    if (t->rank == 0)
        mp_shared_barrier(t->shared, t->n);
    CHECK_OK(t, banyan_start(rq));
    if (t->rank != 0) {
        check_quiet(t, p, "an operation that waits");
        mp_shared_barrier(t->shared, t->n);
    }
    for (;;) {
        CHECK_OK(t, banyan_test(rq, &done));
        if (done)
            break;
        CHECK(t, poll(p, 1, (int)(5000 * mp_patience())) == 1 && banyan_progress(t->comm) >= 0,
              "slept although the operation was not done");
    }
    CHECK(t, x == (uint32_t)t->n, "sum %u", x);
    CHECK_OK(t, banyan_request_free(rq));
}

/* An event loop on the descriptor: it never sleeps through work, and does not spin. */
static int progress_fd(struct test *t)
{
    size_t n = 200003;
    uint32_t *x = case_malloc(n * 4);
    struct banyan_request *rq;
    struct pollfd p = { .events = POLLIN };

    p.fd = banyan_progress_fd(t->comm);
    if (p.fd == -BANYAN_ENOTSUP)
        return case_skip("%s has no descriptor: %s", t->transport, banyan_last_error());
    CHECK(t, p.fd >= 0, "banyan_progress_fd returned %d", p.fd);
    CHECK(t, banyan_progress_fd(t->comm) == p.fd, "another descriptor");
    for (int round = 0; round < 20; round++)
        wait_quietly(t, &p);
    for (int round = 0; round < 20; round++) {
        size_t count = round & 1 ? n : 1;
        int done = 0;
        for (size_t i = 0; i < count; i++)
            x[i] = 1;
        CHECK_OK(
            t, banyan_allreduce_init(x, x, count, BANYAN_U32, BANYAN_SUM, t->comm, NULL, &rq));
        CHECK_OK(t, banyan_start(rq));
        for (;;) {
            CHECK(t, banyan_progress(t->comm) >= 0, "progress");
            CHECK_OK(t, banyan_test(rq, &done));
            if (done)
                break;
            CHECK(t, poll(&p, 1, 5000) == 1, "slept 5 s although the operation was not done");
        }
        CHECK(t, x[0] == (uint32_t)t->n && x[count - 1] == (uint32_t)t->n, "sum %u", x[0]);
        CHECK_OK(t, banyan_request_free(rq));
    }
    free(x);
    return 0;
}

/* ---- receives from any rank ---- */

#define ANY_MOST 300000u

static uint32_t any_value(int from, int k, size_t i)
{
    return (uint32_t)from * 1000003u + (uint32_t)k * 101u + (uint32_t)i;
}

/* Message k of each rank: short, copied, long; the last is of no elements. */
static size_t any_count(int k)
{
    static const size_t counts[] = { 1, 20, 5000, ANY_MOST, 3, 0 };

    return counts[k % 6];
}

static void any_sends(struct test *t, int to, int messages, uint32_t *buf)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;

    opts.tag = 7;
    for (int k = 0; k < messages; k++) {
        for (size_t i = 0; i < any_count(k); i++)
            buf[i] = any_value(t->rank, k, i);
        CHECK_OK(t, banyan_send(buf, any_count(k), BANYAN_U32, to, t->comm, &opts));
    }
}

/* Of each rank in its order, each once. */
static void any_took(struct test *t, int from, const uint32_t *x, size_t bytes, int *next)
{
    int k = next[from]++;

    CHECK(t, bytes == any_count(k) * 4, "message %d of rank %d: %zu bytes", k, from, bytes);
    for (size_t i = 0; i < any_count(k); i++)
        CHECK(t, x[i] == any_value(from, k, i), "message %d of rank %d, element %zu: %u", k,
              from, i, x[i]);
}

static int any_source(struct test *t)
{
    enum { MESSAGES = 18 };
    uint32_t *x = case_malloc(ANY_MOST * 4), *y = case_malloc(ANY_MOST * 4);
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    int next[MP_RANKS_MAX] = { 0 }, from = -1, here, turns = MESSAGES * (t->n - 1);
    struct banyan_request *rq;
    size_t bytes = 0;

    opts.tag = 7;
    CHECK_RC(t, -BANYAN_EINVAL,
             banyan_send(x, 1, BANYAN_U32, BANYAN_ANY_SOURCE, t->comm, &opts));
    CHECK(t, banyan_probe(t->comm, t->rank, 8, &from, &bytes) == 0 && from == -1, "a message");
    if (t->rank)
        any_sends(t, 0, MESSAGES, x);
    for (int i = 0; t->rank == 0 && i < turns; i++) {
        while (!(here = banyan_probe(t->comm, BANYAN_ANY_SOURCE, 7, &from, &bytes)))
            ;
        CHECK(t, here == 1 && from > 0 && from < t->n, "probe %d, source %d", here, from);
        CHECK(t, banyan_probe(t->comm, from, 7, &from, &bytes) == 1, "probe of rank %d", from);
        if (i % 3 == 0) { /* of that one */
            CHECK_OK(t, banyan_recv(x, bytes / 4, BANYAN_U32, from, t->comm, &opts));
        } else {
            CHECK_OK(t, banyan_recv_init(x, bytes / 4, BANYAN_U32,
                                         i % 3 == 1 ? BANYAN_ANY_SOURCE : from, t->comm, &opts,
                                         &rq));
            CHECK_RC(t, -BANYAN_EINVAL, banyan_request_source(rq, NULL));
            CHECK_OK(t, banyan_start(rq));
            CHECK_OK(t, banyan_wait(rq, -1));
            from = banyan_request_source(rq, &bytes);
            CHECK_OK(t, banyan_request_free(rq));
        }
        any_took(t, from, x, bytes, next);
    }
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    free(x);
    free(y);
    return 0;
}

/* Receives wait before anything is sent; one request, again and again, and several beside each
 * other, and beside one of a certain rank, which has its own tag. */
static int any_source_first(struct test *t)
{
    enum { ROUNDS = 20, SEVERAL = 3 };
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    struct banyan_request *rq[SEVERAL], *own;
    uint32_t x[SEVERAL], y = 0, seen = 0, all = 0;
    int n = t->n;

    for (int i = 0; i < SEVERAL; i++)
        CHECK_OK(t, banyan_recv_init(&x[i], 1, BANYAN_U32, BANYAN_ANY_SOURCE, t->comm, &opts,
                                     &rq[i]));
    opts.tag = 1;
    CHECK_OK(t, banyan_recv_init(&y, 1, BANYAN_U32, (t->rank + 1) % n, t->comm, &opts, &own));
    opts.tag = 0;
    for (uint32_t k = 0; k < ROUNDS; k++) {
        uint32_t mine = k * 16 + (uint32_t)t->rank;

        for (int i = 0; i < SEVERAL; i++)
            CHECK_OK(t, banyan_start(rq[i]));
        CHECK_OK(t, banyan_start(own));
        CHECK_RC(t, -BANYAN_EBUSY, banyan_comm_finalize(t->comm));
        CHECK_OK(t, banyan_barrier(t->comm, NULL));
        for (int i = 0; i < SEVERAL; i++) /* three go to each rank */
            CHECK_OK(t, banyan_send(&mine, 1, BANYAN_U32, (t->rank + i) % n, t->comm, &opts));
        opts.tag = 1;
        CHECK_OK(t, banyan_send(&mine, 1, BANYAN_U32, (t->rank + n - 1) % n, t->comm, &opts));
        opts.tag = 0;
        CHECK_OK(t, banyan_wait_all(rq, SEVERAL, -1));
        CHECK_OK(t, banyan_wait(own, -1));
        CHECK(t, y == k * 16 + (uint32_t)((t->rank + 1) % n), "round %u: %u", k, y);
        for (int i = 0; i < SEVERAL; i++) {
            int from = banyan_request_source(rq[i], NULL);

            CHECK(t, from >= 0 && x[i] == k * 16 + (uint32_t)from, "round %u: %u of %d", k,
                  x[i], from);
            seen += 1u << from;
        }
        for (int i = 0; i < SEVERAL; i++)
            all += 1u << (t->rank - i + 3 * n) % n;
    }
    CHECK(t, seen == all, "%x, not %x", seen, all);
    for (int i = 0; i < SEVERAL; i++)
        CHECK_OK(t, banyan_request_free(rq[i]));
    return banyan_request_free(own);
}

/* Nobody sends: the deadline says what it waits for, and blames nobody. */
static int any_source_never(struct test *t)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    int blamed = 0;
    uint32_t x;

    opts.timeout_s = 0.2;
    if (t->rank == 0) {
        CHECK_RC(t, -BANYAN_ETIMEDOUT,
                 banyan_recv(&x, 1, BANYAN_U32, BANYAN_ANY_SOURCE, t->comm, &opts));
        CHECK_HAS(t, banyan_last_error(), "a message from any rank");
        banyan_async_error(t->comm, &blamed, NULL, 0);
        CHECK(t, blamed == -1, "rank %d is blamed", blamed);
    }
    case_done(t, 1);
    case_await_done(t, 1, -1);
    return 0;
}

/* ---- completion functions ---- */

struct completion {
    struct test *t;
    struct banyan_request *rq;
    uint32_t x[1000];
    size_t count;
    atomic_int calls;
    atomic_int ended; /* calls that are through with this struct */
    int until;        /* it is started again until it was called so often */
    int frees;        /* it frees the request then */
    int order;        /* of its last call among all */
    int rc;
};
static atomic_int completions;

static void completed(void *ctx, struct banyan_request *rq, int rc)
{
    struct completion *c = ctx;
    struct test *t = c->t;
    int done = 0;

    CHECK(t, rq == c->rq, "another request");
    c->order = atomic_fetch_add(&completions, 1);
    c->calls++;
    c->rc = rc;
    CHECK_RC(t, rc, banyan_test(rq, &done));
    CHECK(t, done, "a test inside it says that it is not complete");
    CHECK_RC(t, -BANYAN_EBUSY, banyan_wait(rq, -1));
    CHECK_RC(t, -BANYAN_EBUSY, banyan_wait_for(rq, 1, &done));
    CHECK_RC(t, -BANYAN_EBUSY, banyan_barrier(t->comm, NULL));
    CHECK_RC(t, -BANYAN_EBUSY, banyan_group_start());
    CHECK_RC(t, -BANYAN_EBUSY, banyan_comm_destroy(t->comm));
    CHECK_HAS(t, banyan_last_error(), "completion function");
    if (rc == 0 && c->calls < c->until)
        CHECK_OK(t, banyan_start(rq));
    else if (rc && !c->frees) /* it does not start again, and can be freed */
        CHECK(t, banyan_start(rq) == rc, "a failed communicator starts it again");
    else if (c->frees)
        CHECK_OK(t, banyan_request_free(rq));
    c->ended++;
}

static void completion_init(struct test *t, struct completion *c, size_t count)
{
    *c = (struct completion){ .t = t, .count = count, .until = 1 };
    for (size_t i = 0; i < count; i++)
        c->x[i] = 1;
    CHECK_OK(t, banyan_allreduce_init(c->x, c->x, count, BANYAN_U32, BANYAN_SUM, t->comm, NULL,
                                      &c->rq));
    CHECK_OK(t, banyan_request_on_done(c->rq, completed, c));
}

/* Progress by whatever turns up until it was called so often, and has returned: another rank's
 * thread may be in it. */
static void completion_await(struct test *t, const struct completion *c, int calls)
{
    uint64_t end = bny_now_ns() + (uint64_t)(mp_patience() * 20e9);

    while (c->ended < calls && bny_now_ns() < end)
        CHECK(t, banyan_progress(t->comm) >= 0, "progress");
    CHECK(t, c->ended == calls, "called %d times of %d", c->ended, calls);
}

/* Called once an operation, by whoever makes progress; starts itself again, and frees itself.
 */
static int on_done(struct test *t)
{
    struct completion c[4];
    uint32_t power = 1;
    int done = 0;

    completion_init(t, &c[0], 1000);
    for (int i = 0; i < 50; i++) {
        CHECK_OK(t, banyan_start(c[0].rq));
        completion_await(t, &c[0], i + 1);
        if (t->threads) /* another rank's thread may be in it: when it is out of it, only */
            CHECK_OK(t, banyan_wait(c[0].rq, -1));
    }
    CHECK_OK(t, banyan_start(c[0].rq)); /* a wait returns behind it */
    CHECK_OK(t, banyan_wait(c[0].rq, -1));
    CHECK(t, c[0].calls == 51, "a wait returned before the function");
    CHECK_OK(t, banyan_start(c[0].rq));
    for (int i = 0; i < 1000000 && !done; i++)
        CHECK_OK(t, banyan_wait_for(c[0].rq, 0.01, &done));
    CHECK(t, done && c[0].calls == 52, "called %d times", c[0].calls);
    CHECK_OK(t, banyan_start(c[0].rq));
    CHECK_OK(t, banyan_barrier(t->comm, NULL)); /* a blocking call makes progress, too */
    completion_await(t, &c[0], 53);
    if (t->threads)
        CHECK_OK(t, banyan_wait(c[0].rq, -1));
    CHECK_OK(t, banyan_request_on_done(c[0].rq, NULL, NULL));
    CHECK_OK(t, banyan_start(c[0].rq));
    CHECK_OK(t, banyan_wait(c[0].rq, -1));
    CHECK(t, c[0].calls == 53, "called when it was unset");
    CHECK_OK(t, banyan_request_free(c[0].rq));

    completion_init(t, &c[1], 3);
    c[1].until = 10;
    c[1].frees = 1;
    CHECK_OK(t, banyan_start(c[1].rq));
    completion_await(t, &c[1], 10);
    for (int i = 0; i < 10; i++)
        power *= (uint32_t)t->n;
    CHECK(t, c[1].x[2] == power, "sum of sums %u, not %u", c[1].x[2], power);

    completion_init(t, &c[1], 3); /* for once: gone behind the function, or the wait */
    CHECK_OK(t, banyan_start_once(c[1].rq));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_wait(c[1].rq, -1)); /* it may be gone */
    completion_await(t, &c[1], 1);
    completion_init(t, &c[1], 3);
    CHECK_OK(t, banyan_request_on_done(c[1].rq, NULL, NULL));
    CHECK_OK(t, banyan_start_once(c[1].rq));
    CHECK_OK(t, banyan_wait(c[1].rq, -1));
    CHECK(t, c[1].x[0] == (uint32_t)t->n, "sum %u", c[1].x[0]);
    CHECK_RC(t, -BANYAN_EINVAL, banyan_wait(c[1].rq, -1));

    for (int i = 2; i < 4; i++) {
        completion_init(t, &c[i], 10);
        CHECK_OK(t, banyan_start(c[i].rq));
    }
    CHECK_OK(t, banyan_wait_all((struct banyan_request *[]){ c[2].rq, c[3].rq }, 2, -1));
    for (int i = 2; i < 4; i++) {
        CHECK(t, c[i].calls == 1 && c[i].x[9] == (uint32_t)t->n, "request %d", i);
        CHECK_OK(t, banyan_request_free(c[i].rq));
    }
    return 0;
}

/* A failure is told, too; and the end of the communicator, where the request is left. */
static int on_done_fails(struct test *t)
{
    struct completion c[2];
    int done = 0;

    completion_init(t, &c[0], 1000);
    completion_init(t, &c[1], 1000);
    c[1].frees = 1;
    if (t->rank == 0) { /* the others do not come */
        CHECK_OK(t, banyan_start(c[0].rq));
        CHECK_OK(t, banyan_wait_for(c[0].rq, 0.01, &done));
        CHECK(t, !done && !c[0].calls, "complete without the others");
        CHECK_RC(t, -BANYAN_EBUSY, banyan_request_on_done(c[0].rq, NULL, NULL));
        CHECK_OK(t, banyan_start(c[1].rq));
    }
    case_done(t, 1);
    case_await_done(t, 1, -1);
    if (t->rank == 1)
        CHECK_OK(t, banyan_abort(t->comm, "enough"));
    if (t->rank == 0) {
        CHECK_RC(t, -BANYAN_EABORTED, banyan_wait(c[0].rq, -1));
        CHECK(t, c[0].calls == 1 && c[0].rc == -BANYAN_EABORTED, "%d calls, %d", c[0].calls,
              c[0].rc);
        completion_await(t, &c[1], 1);
    } else {
        CHECK_OK(t, banyan_request_free(c[1].rq));
    }
    CHECK_OK(t, banyan_request_free(c[0].rq));
    return 0;
}

struct user {
    struct test *t;
    pthread_mutex_t *mutex;
    size_t *begun; /* operations, guarded by it */
    int rounds, which;
};

/* The mutex keeps the order of starts alike on all ranks: a thread has every second one. */
static void *user_main(void *arg)
{
    struct user *u = arg;
    struct test *t = u->t;
    uint32_t x = 0;
    struct banyan_request *rq;

    for (int i = 0; i < u->rounds; i++) {
        int done = 0;

        x = (uint32_t)(i + 1);
        pthread_mutex_lock(u->mutex);
        while (*u->begun % 2 != (size_t)u->which) {
            pthread_mutex_unlock(u->mutex);
            banyan_progress(t->comm);
            pthread_mutex_lock(u->mutex);
        }
        CHECK_OK(t,
                 banyan_allreduce_init(&x, &x, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL, &rq));
        CHECK_OK(t, banyan_start(rq));
        ++*u->begun;
        pthread_mutex_unlock(u->mutex);
        while (!done)
            CHECK_OK(t, banyan_wait_for(rq, 0.001, &done));
        CHECK(t, x == (uint32_t)t->n * (uint32_t)(i + 1), "thread %d, round %d: %u", u->which,
              i, x);
        CHECK_OK(t, banyan_request_free(rq));
    }
    return NULL;
}

static int two_threads(struct test *t)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    size_t begun = 0;
    struct user u[2];
    pthread_t thread;

    for (int i = 0; i < 2; i++)
        u[i] = (struct user){ t, &mutex, &begun, 200, i };
    CHECK(t, pthread_create(&thread, NULL, user_main, &u[1]) == 0, "no thread");
    user_main(&u[0]);
    pthread_join(thread, NULL);
    return 0;
}

static int stats(struct test *t)
{
    struct banyan_stats a = { .size = sizeof a }, b = { .size = sizeof b };
    struct banyan_stats older = { .size = offsetof(struct banyan_stats, replaced),
                                  .replaced = 77 };
    size_t bytes = 1 << 20;
    unsigned char *x = case_malloc(bytes);
    char line[256] = "";

    memset(x, t->rank, bytes);
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    CHECK_OK(t, banyan_comm_stats(t->comm, &a));
    for (int i = 0; i < 10; i++)
        CHECK_OK(t, banyan_allreduce(x, x, bytes, BANYAN_U8, BANYAN_MAX, t->comm, NULL));
    CHECK_OK(t, banyan_comm_stats(t->comm, &b));
    CHECK(t, b.ops - a.ops == 10, "%llu operations", (unsigned long long)(b.ops - a.ops));
    /* Any allreduce moves at least (n-1)/n of the data out of each rank, and no good one 4
     * times it. */
    CHECK(t,
          b.wire_bytes - a.wire_bytes >= 10 * bytes * (size_t)(t->n - 1) / (size_t)t->n &&
              b.wire_bytes - a.wire_bytes <= 10 * 4 * bytes * (size_t)t->n,
          "%llu bytes", (unsigned long long)(b.wire_bytes - a.wire_bytes));
    CHECK(t, t->n == 1 || b.messages > a.messages, "no message");
    CHECK(t, b.replaced == 0 && b.moved == 0, "nothing broke, and %llu were replaced",
          (unsigned long long)b.replaced);
    CHECK_OK(t, banyan_comm_stats(t->comm, &older));
    CHECK(t, older.ops == b.ops && older.replaced == 77, "a caller that knows less gets more");
    CHECK_OK(t, banyan_comm_plan(t->comm, "allreduce", 1000, BANYAN_F32, line, sizeof line));
    CHECK_HAS(t, line, t->n == 1 ? "transport none" : t->transport);
    CHECK(t, line[0] && !strchr(line, '\n'), "plan '%s'", line);
    CHECK_RC(t, -BANYAN_EINVAL,
             banyan_comm_plan(t->comm, "allrecude", 1, BANYAN_F32, line, sizeof line));
    free(x);
    return 0;
}

struct asker {
    struct test *t;
    uint64_t sent; /* what the calls before it sent at least */
    int asked, behind;
};

/* Runs while its own thread drives the communicator. */
static void asking_op(void *ctx, const void *in, void *inout, size_t n, enum banyan_dtype dt)
{
    struct banyan_stats s = { .size = sizeof s };
    struct asker *a = ctx;

    for (size_t i = 0; i < n; i++)
        ((uint32_t *)inout)[i] += ((const uint32_t *)in)[i];
    CHECK_OK(a->t, banyan_comm_stats(a->t->comm, &s));
    a->asked++;
    a->behind += s.wire_bytes < a->sent;
}

/* Counters leave out no call that has returned, whoever drives the communicator just then. */
static int stats_inside(struct test *t)
{
    enum { CALLS = 2000, EACH = 50 };
    struct banyan_stats a = { .size = sizeof a }, b = { .size = sizeof b };
    struct asker asker = { .t = t };
    uint32_t x = 1, y = 0;
    banyan_op op;

    CHECK_OK(t, banyan_op_create_user(asking_op, &asker, 0, 0, 1, &op));
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    CHECK_OK(t, banyan_comm_stats(t->comm, &a));
    for (int i = 0; i < CALLS; i++) {
        CHECK_OK(t, banyan_allreduce(&x, &y, 1, BANYAN_U32, i % EACH ? BANYAN_SUM : op, t->comm,
                                     NULL));
        CHECK(t, y == (uint32_t)t->n, "sum %u", y);
        /* Each of n ranks' word leaves it at least once. */
        asker.sent = a.wire_bytes + (uint64_t)(i + 1) * sizeof x;
    }
    CHECK_OK(t, banyan_comm_stats(t->comm, &b));
    CHECK(t, b.wire_bytes >= asker.sent, "%llu bytes", (unsigned long long)b.wire_bytes);
    CHECK(t, asker.asked > 0 && asker.behind == 0, "%d of %d answers left out earlier calls",
          asker.behind, asker.asked);
    return banyan_op_free(op);
}

/* What any thread may ask at any time, while another one drives the communicator. */
struct looker {
    const struct test *t;
    atomic_int stop;
};

static void *look_main(void *arg)
{
    struct looker *l = arg;
    struct banyan_stats s = { .size = sizeof s }, last = { 0 };
    char text[64];
    int blamed;

    while (!atomic_load(&l->stop)) {
        CHECK_OK(l->t, banyan_comm_stats(l->t->comm, &s));
        CHECK(l->t, s.ops >= last.ops && s.messages >= last.messages, "counters went back");
        last = s;
        CHECK(l->t,
              banyan_comm_rank(l->t->comm) == l->t->rank &&
                  banyan_comm_count(l->t->comm) == l->t->n,
              "rank or count");
        CHECK_OK(l->t, banyan_async_error(l->t->comm, &blamed, text, sizeof text));
    }
    return NULL;
}

static int any_thread_looks(struct test *t)
{
    struct looker l = { .t = t };
    pthread_t thread;

    pthread_create(&thread, NULL, look_main, &l);
    for (int i = 0; i < 200; i++)
        case_check_works(t, t->comm);
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    atomic_store(&l.stop, 1);
    pthread_join(thread, NULL);
    return 0;
}

/* Rank 0 queues groups, each longer by one call, whose memory it does not find at first: then
 * nothing of it has begun, and it tries again. The others take no part in that. */
static int group_lacks(struct test *t)
{
    enum { CALLS = 40, N = 5000 };
    uint32_t *x = case_malloc(CALLS * N * sizeof *x);
    size_t counts[MP_RANKS_MAX];
    int lacked = 0;

    for (int r = 0; r < t->n; r++)
        counts[r] = N / (size_t)t->n;
    for (int calls = 1; calls <= CALLS; calls++) {
        int rc = 0, begun;

        for (int tries = 0; tries == 0 || rc == -BANYAN_ENOMEM; tries++) {
            CHECK(t, tries < 2, "it lacks memory that is there");
            for (size_t i = 0; i < CALLS * N; i++)
                x[i] = (uint32_t)i;
            if (t->rank == 0 && tries == 0)
                case_starve_after(calls % 3, 1);
            rc = banyan_group_start();
            begun = rc == 0;
            for (int i = 0; i < calls; i++) {
                uint32_t *buf = x + i * N;
                int rc2 = i % 2 ? banyan_allreduce(buf, buf, (size_t)(N - i), BANYAN_U32,
                                                   BANYAN_SUM, t->comm, NULL)
                                : banyan_allgatherv(buf + (size_t)t->rank * counts[0], buf,
                                                    counts, NULL, BANYAN_U32, t->comm, NULL);
                rc = rc ? rc : rc2;
            }
            case_starve_after(0, 0);
            if (begun)
                CHECK_RC(t, rc, banyan_group_end());
            lacked += rc == -BANYAN_ENOMEM;
        }
        CHECK_OK(t, rc);
        for (int i = 1; i < calls; i += 2)
            for (size_t k = 0; k < (size_t)(N - i); k++)
                CHECK(t, x[i * N + (int)k] == (uint32_t)t->n * (uint32_t)(i * N + (int)k),
                      "call %d, element %zu", i, k);
    }
    CHECK(t, lacked > 5 || t->rank, "it lacked memory %d times", lacked);
    free(x);
    return 0;
}

/* The first time that rank 0 names a codec it finds no memory for that: the group does not run
 * there, and is tried again. */
static int group_lacks_codec(struct test *t)
{
    static float x[5000];
    static uint32_t y[700];
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    char codec[64];
    int lacked = 0;

    opts.codec = codec;
    for (int i = 1; i <= 20; i++) {
        int rc = -BANYAN_ENOMEM;

        snprintf(codec, sizeof codec, "%s:delta=0.%03d,force=1", i % 2 ? "topk" : "randomk", i);
        for (int tries = 0; rc == -BANYAN_ENOMEM; tries++) {
            int rc2;

            CHECK(t, tries < 2, "it lacks memory that is there");
            for (size_t k = 0; k < 700; k++)
                y[k] = (uint32_t)k;
            CHECK_OK(t, banyan_group_start());
            if (t->rank == 0 && tries == 0)
                case_starve_after(0, 1);
            rc = banyan_allreduce(x, x, 5000, BANYAN_F32, BANYAN_SUM, t->comm, &opts);
            case_starve_after(0, 0);
            rc2 = banyan_allreduce(y, y, 700, BANYAN_U32, BANYAN_SUM, t->comm, NULL);
            rc = rc ? rc : rc2;
            CHECK_RC(t, rc, banyan_group_end());
            lacked += rc == -BANYAN_ENOMEM;
        }
        CHECK_OK(t, rc);
        for (size_t k = 0; k < 700; k++)
            CHECK(t, y[k] == (uint32_t)t->n * (uint32_t)k, "element %zu", k);
    }
    CHECK(t, lacked == 20 || t->rank, "it lacked memory %d times", lacked);
    return 0;
}

/* A group, the calls of which need memory for their numbers when they begin: two sums by a
 * linear codec, which takes several, a plain sum, and two messages of one tag. */
static int starts_of_group(struct test *t, struct banyan_comm *comm, long starve_after)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    static float x[2][840];
    static uint32_t y[700], z[2][2000], got[2][2000];
    int to = (t->rank + 1) % t->n, from = (t->rank + t->n - 1) % t->n, rc;

    opts.codec = "randomk:delta=0.2,force=1";
    for (uint32_t k = 0; k < 2000; k++) {
        z[0][k] = (uint32_t)t->rank * 10000 + k;
        z[1][k] = ~z[0][k];
        y[k % 700] = k % 700;
    }
    CHECK_OK(t, banyan_group_start());
    for (int i = 0; i < 2; i++) {
        CHECK_OK(t, banyan_allreduce(x[i], x[i], 840, BANYAN_F32, BANYAN_SUM, comm, &opts));
        CHECK_OK(t, banyan_send(z[i], 2000, BANYAN_U32, to, comm, NULL));
        CHECK_OK(t, banyan_recv(got[i], 2000, BANYAN_U32, from, comm, NULL));
    }
    CHECK_OK(t, banyan_allreduce(y, y, 700, BANYAN_U32, BANYAN_SUM, comm, NULL));
    if (t->rank == 0 && starve_after >= 0)
        case_starve_after(starve_after, 1);
    rc = banyan_group_end();
    case_starve_after(0, 0);
    for (uint32_t k = 0; k < 2000 && rc == 0; k++) {
        CHECK(t, got[0][k] == (uint32_t)from * 10000 + k && got[1][k] == ~got[0][k],
              "message: element %u: %u, %u", k, got[0][k], got[1][k]);
        CHECK(t, y[k % 700] == (uint32_t)t->n * (k % 700), "sum: element %u", k);
    }
    return rc;
}

/* Rank 0 lacks memory once, while its group begins. The others have begun it: the communicator
 * fails for want of memory at rank 0, or everything is right; and no rank takes one call for
 * another. */
static int group_lacks_start(struct test *t)
{
    int lacked = 0;

    for (long after = 0; after < 12; after++) {
        struct banyan_comm *comm;
        int rc, code, blamed = -1;

        CHECK_OK(t, banyan_comm_dup(t->comm, &comm));
        rc = starts_of_group(t, comm, after);
        if (rc) {
            code = banyan_async_error(comm, &blamed, NULL, 0);
            CHECK(t, rc == -BANYAN_ENOMEM && code == rc && blamed == 0,
                  "after %ld: %d (%s), the communicator %d, rank %d to blame", after, rc,
                  banyan_last_error(), code, blamed);
            lacked++;
        }
        banyan_comm_destroy(comm);
        mp_shared_barrier(t->shared, t->n);
    }
    CHECK(t, lacked > 2 || t->rank, "it lacked memory %d times", lacked);
    return 0;
}

/* Rank 0 finds no memory, once, for what it receives by: that comes a moment later. With a
 * world of its own each time, as buffers are kept. */
static int receiver_lacks(struct test *t)
{
    enum { N = 100000 };
    static uint32_t x[3][N], y[3][N];
    static const size_t counts[3] = { 10, N, 2000 };
    int lacked = 0;

    for (uint32_t k = 0; k < N; k++)
        x[0][k] = x[1][k] = x[2][k] = k * 7;
    for (long after = 0; after < 8; after++) {
        struct banyan_config cfg = case_config(t);
        struct banyan_request *rq[3];
        struct banyan_comm *comm;
        struct banyan_id id;
        int rc = 0, rc2;

        cfg.op_timeout_s = CASE_NEVER_S;
        if (t->rank == 0) {
            CHECK_OK(t, banyan_id_create(&id));
            memcpy(t->shared->blob[0], &id, sizeof id);
        }
        mp_shared_barrier(t->shared, t->n);
        memcpy(&id, t->shared->blob[0], sizeof id);
        CHECK_OK(t, banyan_comm_init(&comm, &id, t->n, t->rank, &cfg));
        for (int i = 0; i < 3; i++) {
            CHECK_OK(
                t, t->rank
                       ? banyan_send_init(x[i], counts[i], BANYAN_U32, 0, comm, NULL, &rq[i])
                       : banyan_recv_init(y[i], counts[i], BANYAN_U32, 1, comm, NULL, &rq[i]));
            if (t->rank == 0)
                CHECK_OK(t, banyan_start(rq[i]));
        }
        if (t->rank == 0)
            case_starve_after(after, 1);
        mp_shared_barrier(t->shared, t->n);
        for (int i = 0; i < 3; i++) {
            rc2 = t->rank ? banyan_start(rq[i]) : 0;
            rc2 = rc2 ? rc2 : banyan_wait(rq[i], -1);
            rc = rc ? rc : rc2;
        }
        case_starve_after(0, 0);
        CHECK(t, rc == 0 || rc == -BANYAN_ENOMEM, "after %ld: %d (%s)", after, rc,
              banyan_last_error());
        lacked += rc != 0;
        for (int i = 0; i < 3; i++)
            for (size_t k = 0; k < counts[i] && rc == 0 && t->rank == 0; k++)
                CHECK(t, y[i][k] == k * 7, "message %d: element %zu", i, k);
        mp_shared_barrier(t->shared, t->n);
        for (int i = 0; i < 3; i++)
            CHECK_OK(t, banyan_request_free(rq[i]));
        banyan_comm_destroy(comm);
    }
    printf("note: it lacked memory %d times\n", lacked);
    return 0;
}

/* Rank 0 finds no memory for its private copy when a request begins, and the others' data come
 * behind that: they are of the same operation, and no mismatch. */
static int begin_lacks(struct test *t)
{
    enum { N = 300 };
    static uint32_t x[MP_RANKS_MAX * N];
    struct banyan_request *rq;
    struct banyan_comm *comm;
    int rc, blamed = -1;

    CHECK_OK(t, banyan_comm_dup(t->comm, &comm));
    CHECK_OK(t, banyan_alltoall_init(x, x, N, BANYAN_U32, comm, NULL, &rq));
    if (t->rank == 0) {
        case_starve_after(0, 1);
        rc = banyan_start(rq);
        case_starve_after(0, 0);
        CHECK(t, rc == -BANYAN_ENOMEM, "start returned %d (%s)", rc, banyan_last_error());
    }
    mp_shared_barrier(t->shared, t->n);
    if (t->rank)
        CHECK_OK(t, banyan_start(rq));
    CHECK_OK(t, banyan_barrier(t->comm, NULL)); /* rank 0 looks at what has come */
    rc = t->rank ? banyan_wait(rq, -1) : -BANYAN_ENOMEM;
    CHECK(t, rc == -BANYAN_ENOMEM, "wait returned %d (%s)", rc, banyan_last_error());
    rc = banyan_barrier(comm, NULL);
    CHECK(t, rc == -BANYAN_ENOMEM, "barrier returned %d (%s)", rc, banyan_last_error());
    banyan_async_error(comm, &blamed, NULL, 0);
    CHECK(t, blamed == 0, "rank %d is blamed", blamed);
    CHECK_OK(t, banyan_request_free(rq));
    banyan_comm_destroy(comm);
    return 0;
}

const struct mp_case cases_requests[] = {
    { "begin_lacks", begin_lacks, CASE_NO_THREADS },
    { "receiver_lacks", receiver_lacks, CASE_OWN_INIT | CASE_NO_THREADS },
    { "group_lacks", group_lacks, CASE_NO_THREADS },
    { "group_lacks_codec", group_lacks_codec, CASE_NO_THREADS },
    { "group_lacks_start", group_lacks_start, CASE_NO_THREADS | CASE_FAILS },
    { "request_stats", request_stats, CASE_NO_THREADS },
    { "persistent", persistent, 0 },
    { "persistent_large", persistent_large, 0 },
    { "request_busy", request_busy, 0 },
    { "in_flight", in_flight, 0 },
    { "in_flight_one_comm", in_flight_one_comm, 0 },
    { "crowd", crowd, 0 },
    { "groups", groups, 0 },
    { "tags", tags, 0 },
    { "send_before_recv", send_before_recv, 0 },
    { "progress_hook", progress_hook, CASE_OWN_INIT },
    { "self_beside_early", self_beside_early, CASE_OWN_INIT },
    { "progress_thread", progress_thread, CASE_OWN_INIT },
    { "leaves_nothing", leaves_nothing, 0 },
    { "progress_fd", progress_fd, 0 },
    { "stats", stats, 0 },
    { "stats_inside", stats_inside, 0 },
    { "any_thread_looks", any_thread_looks, 0 },
    { "any_source", any_source, 0 },
    { "any_source_first", any_source_first, 0 },
    { "any_source_never", any_source_never, CASE_FAILS },
    { "on_done", on_done, 0 },
    { "on_done_fails", on_done_fails, CASE_FAILS },
    { "two_threads", two_threads, 0 },
    { 0 },
};
