/* SPDX-License-Identifier: BSD-3-Clause */
/* Blocking calls that are like one before but for their buffers, or for one thing more, by
 * turns with others: api/call_cache.c takes over what was checked before, and must see each
 * difference. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/mp/call.h"
#include "collectives/api/job.h"
#include "collectives/progress/progress.h"

#define KEPT 4 /* calls that are made again */

/* ---- calls of all kinds ---- */

/* One of the calls before, with other data, and often with one other thing. s is the same on
 * all ranks. */
static void alter(struct call *c, int n, uint64_t *s)
{
    size_t unit = model_unit(c->op);

    c->seed = bny_rng_next(s);
    switch (bny_rng_below(s, 12)) {
    case 0: c->count = bny_rng_below(s, 300) * unit; break;
    case 1: c->root = (int)bny_rng_below(s, (uint64_t)n); break;
    case 2: c->tag = (uint32_t)bny_rng_below(s, 3); break;
    case 3: c->shift = (int)bny_rng_below(s, (uint64_t)n); break;
    case 4: c->deterministic = (int)bny_rng_below(s, 3) - 1; break;
    case 5: c->mode = (enum call_mode)bny_rng_below(s, MODE_COUNT); break;
    case 6: c->schedule = bny_rng_below(s, 2) ? "auto" : NULL; break;
    case 7: c->chunk_bytes = bny_rng_below(s, 2) ? 4096 : 0; break;
    case 8: strcpy(c->codec, bny_rng_below(s, 2) ? "none" : ""); break;
    default: break;
    }
}

static int again(struct test *t)
{
    uint64_t s = t->seed, own = model_mix(t->seed, (uint64_t)t->rank + 1);
    struct banyan_comm *comm[2] = { t->comm };
    struct call kept[KEPT];
    int calls = atoi(t->arg), refused = 0;

    CHECK_OK(t, banyan_comm_dup(t->comm, &comm[1]));
    for (int i = 0; i < calls; i++) {
        struct call *c = &kept[bny_rng_below(&s, KEPT)];

        if (i < KEPT || bny_rng_below(&s, 8) == 0) {
            c = &kept[i % KEPT];
            call_random(c, t->n, 4096, bny_rng_next(&s), bny_rng_next(&own));
            c->mode = MODE_BLOCKING;
            c->schedule = NULL;
            c->chunk_bytes = 0;
        } else {
            alter(c, t->n, &s);
        }
        c->misalign[0] = bny_rng_below(&own, 2) ? bny_rng_below(&own, 64) : 0;
        refused += call_check(t, comm[bny_rng_below(&s, 4) == 0], c);
    }
    CHECK(t, refused < calls / 2, "%d of %d calls were refused", refused, calls);
    CHECK_OK(t, banyan_comm_finalize(comm[1]));
    return 0;
}

/* ---- pairs ---- */

static uint8_t value(uint64_t round, int from, size_t at)
{
    return (uint8_t)(model_mix(round, (uint64_t)from) + 7 * at + (at >> 8));
}

/* banyan_sendrecv beside banyan_send and banyan_recv: counts and types of their own, any
 * distance, the same pair again and again, one rank late. */
static int pairs(struct test *t)
{
    static const size_t sizes[] = {
        0, 1, 8, 64, 1000, 4096, 4104, 16384, 70000, 131072, 200000
    };
    enum { LONGEST = 200000 };
    uint8_t *out = case_malloc(LONGEST + 8), *in = case_malloc(LONGEST + 8);
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    uint64_t s = t->seed;
    size_t bytes = 0;
    int shift = 0, rounds = atoi(t->arg);

    for (int i = 0; i < rounds; i++) {
        int to, from, how = (int)(model_mix((uint64_t)i, (uint64_t)t->rank + 99) % 4);

        if (bny_rng_below(&s, 4) == 0)
            bytes = sizes[bny_rng_below(&s, sizeof sizes / sizeof *sizes)];
        if (bny_rng_below(&s, 8) == 0)
            shift = (int)bny_rng_below(&s, (uint64_t)t->n);
        if (bny_rng_below(&s, 8) == 0)
            opts.tag = (uint32_t)bny_rng_below(&s, 3);
        to = (t->rank + shift) % t->n;
        from = (t->rank - shift + t->n) % t->n;
        for (size_t k = 0; k < bytes; k++)
            out[k] = value((uint64_t)i, t->rank, k);
        memset(in, 0xee, bytes + 8);
        if (how == 0)
            CHECK_OK(t, banyan_group_start());
        if (how <= 1 && (how == 0 || shift))
            CHECK_OK(t, banyan_sendrecv(out, bytes, BANYAN_U8, to, in, bytes, BANYAN_U8, from,
                                        t->comm, &opts));
        else
            CHECK_OK(t, banyan_sendrecv(out, bytes, BANYAN_U8, to, in, bytes, BANYAN_U8, from,
                                        t->comm, opts.tag ? &opts : NULL));
        if (how == 0)
            CHECK_OK(t, banyan_group_end());
        for (size_t k = 0; k < bytes; k++)
            CHECK(t, in[k] == value((uint64_t)i, from, k), "round %d, byte %zu of %zu from %d",
                  i, k, bytes, from);
        CHECK(t, in[bytes] == 0xee, "round %d: written beyond", i);
    }
    free(out);
    free(in);
    return 0;
}

/* ---- what is wrong with a call that was right before ---- */

/* Once right, then wrong, and right again, which needs no other rank to agree. */
#define WRONG(call, word)                                                                      \
    do {                                                                                       \
        CHECK_RC(t, -BANYAN_EINVAL, call);                                                     \
        CHECK_HAS(t, banyan_last_error(), word);                                               \
        check_right(t);                                                                        \
    } while (0)

static void check_right(struct test *t)
{
    float x = (float)t->rank, sum = 0, all[MP_RANKS_MAX];
    int next = (t->rank + 1) % t->n, before = (t->rank + t->n - 1) % t->n;

    for (int i = 0; i < 2; i++) {
        CHECK_OK(t, banyan_allreduce(&x, &sum, 1, BANYAN_F32, BANYAN_SUM, t->comm, NULL));
        CHECK(t, sum == (float)(t->n * (t->n - 1) / 2), "%g", (double)sum);
        CHECK_OK(t, banyan_gather(&x, all, 1, BANYAN_F32, 0, t->comm, NULL));
        CHECK_OK(t, banyan_sendrecv(&x, 1, BANYAN_F32, next, &sum, 1, BANYAN_F32, before,
                                    t->comm, NULL));
        CHECK(t, sum == (float)before, "%g", (double)sum);
    }
}

static int again_wrong(struct test *t)
{
    float x = 1, y = 0;
    struct banyan_reduce_opts inputs = BANYAN_REDUCE_OPTS_INIT;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    struct banyan_comm *c = t->comm;
    int next = (t->rank + 1) % t->n;

    check_right(t);
    WRONG(banyan_allreduce(NULL, &y, 1, BANYAN_F32, BANYAN_SUM, c, NULL), "sendbuf");
    WRONG(banyan_allreduce(&x, NULL, 1, BANYAN_F32, BANYAN_SUM, c, NULL), "recvbuf");
    WRONG(
        banyan_allreduce(&x, &y, 1, (enum banyan_dtype)(256 + BANYAN_F32), BANYAN_SUM, c, NULL),
        "dtype");
    WRONG(banyan_allreduce(&x, &y, 1, BANYAN_F32, 256 + BANYAN_SUM, c, NULL), "op");
    WRONG(banyan_gather(NULL, &y, 1, BANYAN_F32, 0, c, NULL), "sendbuf");
    if (t->rank == 0)
        CHECK_RC(t, -BANYAN_EINVAL, banyan_gather(&x, NULL, 1, BANYAN_F32, 0, c, NULL));
    WRONG(banyan_gather(&x, &y, 1, BANYAN_F32, t->n, c, NULL), "root");
    WRONG(banyan_sendrecv(NULL, 1, BANYAN_F32, next, &y, 1, BANYAN_F32, next, c, NULL),
          "sendbuf");
    WRONG(banyan_sendrecv(&x, 1, BANYAN_F32, next, NULL, 1, BANYAN_F32, next, c, NULL),
          "recvbuf");
    WRONG(banyan_sendrecv(&x, 1, BANYAN_F32, -1, &y, 1, BANYAN_F32, next, c, NULL), "peer");
    WRONG(banyan_sendrecv(&x, 1, BANYAN_F32, next, &y, 1, BANYAN_F32, t->n, c, NULL), "peer");
    WRONG(banyan_sendrecv(&x, SIZE_MAX, BANYAN_F32, next, &y, 1, BANYAN_F32, next, c, NULL),
          "count");
    o.timeout_s = NAN;
    WRONG(banyan_allreduce(&x, &y, 1, BANYAN_F32, BANYAN_SUM, c, &o), "timeout_s");
    o.timeout_s = -1;
    o.schedule = "nosuch";
    WRONG(banyan_allreduce(&x, &y, 1, BANYAN_F32, BANYAN_SUM, c, &o), "schedule");
    o.schedule = NULL;
    o.size = 3;
    WRONG(banyan_allreduce(&x, &y, 1, BANYAN_F32, BANYAN_SUM, c, &o), "opts");
    o.size = sizeof o;
    inputs.at_least = 1;
    o.reduce = &inputs;
    WRONG(banyan_allreduce(&x, &y, 1, BANYAN_F32, BANYAN_SUM, c, &o), "at_least");
    WRONG(banyan_allreduce(&x, &y, 1, BANYAN_F32, BANYAN_SUM, NULL, NULL), "comm");
    return 0;
}

/* ---- other threads, communicators that are gone, deadlines ---- */

static void *other_thread(void *arg)
{
    struct test other = *(struct test *)arg;

    for (int i = 0; i < 50; i++)
        check_right(&other);
    return NULL;
}

static int again_elsewhere(struct test *t)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    struct test in_child = *t;
    float x = 1, y = 0;
    pthread_t thread;
    int rc;

    for (int i = 0; i < 20; i++) { /* new ones, often at the address of the one before */
        CHECK_OK(t, banyan_comm_dup(t->comm, &in_child.comm));
        check_right(&in_child);
        CHECK_OK(t, banyan_comm_finalize(in_child.comm));
        CHECK_RC(t, -BANYAN_EINVAL,
                 banyan_allreduce(&x, &y, 1, BANYAN_F32, BANYAN_SUM, in_child.comm, NULL));
    }
    CHECK_OK(t, banyan_comm_dup(t->comm, &in_child.comm));
    CHECK(t, pthread_create(&thread, NULL, other_thread, &in_child) == 0, "no thread");
    for (int i = 0; i < 50; i++)
        check_right(t);
    pthread_join(thread, NULL);
    CHECK_OK(t, banyan_comm_finalize(in_child.comm));
    check_right(t);
    case_meet(t, t->comm);
    o.timeout_s = 0.4; /* of this call, and not the one before's */
    if (t->rank == 0)
        CHECK_RC(t, -BANYAN_ETIMEDOUT,
                 banyan_allreduce(&x, &y, 1, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    mp_shared_barrier(t->shared, t->n);
    for (int i = 0; i < 3; i++) { /* what rank 0 said may be there */
        while ((rc = banyan_allreduce(&x, &y, 1, BANYAN_F32, BANYAN_SUM, t->comm, NULL)) == 0)
            ;
        CHECK(t, rc == -BANYAN_ETIMEDOUT, "%d (%s)", rc, banyan_last_error());
        rc = banyan_sendrecv(&x, 1, BANYAN_F32, 0, &y, 1, BANYAN_F32, 0, t->comm, NULL);
        CHECK(t, rc == -BANYAN_ETIMEDOUT, "%d (%s)", rc, banyan_last_error());
    }
    return 0;
}

/* All have agreed that the communicator failed while this rank computed: a call that waits for
 * nobody may complete yet, and the next one says so. */
static int told_without_waiting(struct test *t)
{
    float x = (float)t->rank, y;
    int from = (t->rank + t->n - 1) % t->n, to = (t->rank + 1) % t->n, rc = 0;

    for (int i = 0; i < 3; i++)
        CHECK_OK(t, banyan_broadcast(&x, 1, BANYAN_F32, 0, t->comm, NULL));
    CHECK_OK(t, banyan_sendrecv(&x, 1, BANYAN_F32, to, &y, 1, BANYAN_F32, from, t->comm, NULL));
    mp_shared_barrier(t->shared, t->n);
    if (t->rank == t->n - 1)
        CHECK_OK(t, banyan_comm_revoke(t->comm, "a test"));
    mp_shared_barrier(t->shared, t->n);
    case_await_told(t->comm);
    for (int i = 0; i < 2 && rc == 0; i++)
        rc = !strcmp(t->arg, "broadcast")
                 ? banyan_broadcast(&x, 1, BANYAN_F32, t->rank, t->comm, NULL)
                 : banyan_send(&x, 1, BANYAN_F32, to, t->comm, NULL);
    CHECK(t, rc == -BANYAN_EABORTED, "%d (%s)", rc, banyan_last_error());
    return 0;
}

/* Rank 0 sends, and gives the communicator up. The others, which come late, get what is there
 * already; then they are told. Not of threads: who waits makes the others' progress, and they
 * hear in it. */
static int complete_behind_a_failure(struct test *t)
{
    uint32_t x = 7, y = 0;

    for (int i = 0; i < 3; i++)
        CHECK_OK(t, banyan_broadcast(&x, 1, BANYAN_U32, 0, t->comm, NULL));
    case_meet(t, t->comm);
    mp_shared_barrier(t->shared, t->n); /* nobody is in that one's progress, and hears there */
    x = t->rank ? 0 : 9;
    if (t->rank == 0) {
        CHECK_OK(t, banyan_broadcast(&x, 1, BANYAN_U32, 0, t->comm, NULL));
        CHECK_OK(t, banyan_comm_revoke(t->comm, "a test"));
    }
    mp_shared_barrier(t->shared, t->n);
    case_await_told(t->comm);
    if (t->rank) {
        CHECK_OK(t, banyan_broadcast(&x, 1, BANYAN_U32, 0, t->comm, NULL));
        CHECK(t, x == 9, "%u", x);
    }
    CHECK_RC(t, -BANYAN_EABORTED,
             banyan_allreduce(&x, &y, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL));
    return 0;
}

/* The first turn in which this rank waits lasts until the others are through, have given the
 * communicator up, and this rank's control thread knows. */
static void sleep_in_a_turn(void *ctx)
{
    struct test *t = ctx;

    if (atomic_load(&t->shared->marker[t->rank]))
        return;
    atomic_store(&t->shared->marker[t->rank], 1);
    case_await_done(t, 1, t->rank);
    while (!bny_control_told(t->comm->world->control))
        usleep(1000);
}

/* All but rank 1 are through a call, and give the communicator up. Rank 1 waits in it, with all
 * there that it lacks, and is told by its next call. arg: elements of a broadcast, but one; 0:
 * a barrier. */
static int complete_while_it_waits(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    static uint32_t x[4096], y;
    int late = t->rank == 1, n = atoi(t->arg); /* 0: a barrier */

    cfg.op_timeout_s = CASE_NEVER_S;
    cfg.progress_hook = late ? sleep_in_a_turn : NULL;
    cfg.progress_hook_ctx = t;
    atomic_store(&t->shared->marker[t->rank], 1); /* not in these */
    CHECK_OK(t, case_init(t, &cfg, &t->comm));
    for (int i = 0; i < 3; i++)
        CHECK_OK(t, banyan_barrier(t->comm, NULL));
    mp_shared_barrier(t->shared, t->n);
    atomic_store(&t->shared->marker[t->rank], 0);
    mp_shared_barrier(t->shared, t->n);
    while (!late && !atomic_load(&t->shared->marker[1])) /* it has begun, and lacks the rest */
        usleep(200);
    x[n] = t->rank ? 0 : 9;
    CHECK_OK(t, n ? banyan_broadcast(x, (size_t)n + 1, BANYAN_U32, 0, t->comm, NULL)
                  : banyan_barrier(t->comm, NULL));
    CHECK(t, !n || x[n] == 9, "%u", x[n]);
    case_done(t, 1);
    if (t->rank == 0) {
        case_await_done(t, 1, 1);
        CHECK_OK(t, banyan_comm_revoke(t->comm, "a test"));
    }
    if (!late)
        case_await_done(t, 1, -1);
    CHECK_RC(t, -BANYAN_EABORTED,
             banyan_allreduce(x, &y, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL));
    return 0;
}

static void tick(struct bny_world *w)
{
    bny_world_lock(w);
    bny_world_tick(w);
    bny_world_unlock(w);
}

/* Rank 1 has no CPU from before the others' part of its call to behind its deadline: it ticks
 * then, with all there that it lacks. */
static int overdue_while_it_sleeps(struct test *t)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    struct banyan_request *r;
    uint64_t deadline;
    float x = 3;

    opts.timeout_s = .1;
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    if (t->rank != 1) {
        case_await_done(t, 1, 0);
        CHECK_OK(t, banyan_send(&x, 1, BANYAN_F32, 1, t->comm, NULL));
        case_done(t, 2);
        CHECK_OK(t, banyan_barrier(t->comm, NULL));
        return 0;
    }
    CHECK_OK(t, banyan_recv_init(&x, 1, BANYAN_F32, 0, t->comm, &opts, &r));
    CHECK_OK(t, banyan_start(r));
    tick(t->comm->world); /* the time begins */
    deadline = bny_deadline_in(.2);
    case_done(t, 1);
    case_await_done(t, 2, 1);
    while (!bny_deadline_passed(deadline))
        usleep(1000);
    tick(t->comm->world);
    CHECK_OK(t, banyan_wait(r, -1));
    CHECK_OK(t, banyan_request_free(r));
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    return 0;
}

/* Late calls of rank 0, each by an entrance of its own. */
static int late_call(struct test *t)
{
    float x = 1, y[8] = { 0 };
    struct banyan_request *r;
    int rc, peer = (t->rank + 1) % t->n;

    if (!strcmp(t->arg, "pair"))
        return banyan_sendrecv(&x, 1, BANYAN_F32, peer, y, 1, BANYAN_F32, peer, t->comm, NULL);
    if (!strcmp(t->arg, "send"))
        return banyan_send(&x, 1, BANYAN_F32, peer, t->comm, NULL);
    if (!strcmp(t->arg, "barrier"))
        return banyan_barrier(t->comm, NULL);
    if (!strcmp(t->arg, "group")) {
        CHECK_OK(t, banyan_group_start());
        CHECK_OK(t, banyan_send(&x, 1, BANYAN_F32, peer, t->comm, NULL));
        CHECK_OK(t, banyan_send(&x, 1, BANYAN_F32, peer, t->comm, NULL));
        return banyan_group_end();
    }
    if (strcmp(t->arg, "request") != 0)
        return banyan_allreduce(&x, y, 1, BANYAN_F32, BANYAN_SUM, t->comm, NULL);
    CHECK_OK(t, banyan_allreduce_init(&x, y, 1, BANYAN_F32, BANYAN_SUM, t->comm, NULL, &r));
    rc = banyan_start(r);
    rc = rc ? rc : banyan_wait(r, -1);
    CHECK_OK(t, banyan_request_free(r));
    return rc;
}

/* An operation has failed at rank 0 by its deadline, as the others did not come, and all know
 * of it: it fails at those who come late, though all that they need is there. */
static int late_behind_a_deadline(struct test *t)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    uint64_t end = bny_deadline_in(20 * mp_patience());
    float x = 1, y = 0;
    int rc;

    for (int i = 0; i < 3; i++) {
        CHECK_OK(t, banyan_allreduce(&x, &y, 1, BANYAN_F32, BANYAN_SUM, t->comm, NULL));
        CHECK_OK(t, banyan_barrier(t->comm, NULL));
    }
    case_meet(t, t->comm);
    mp_shared_barrier(t->shared, t->n);
    o.timeout_s = 0.2;
    if (t->rank == 0)
        CHECK_RC(t, -BANYAN_ETIMEDOUT,
                 !strcmp(t->arg, "barrier")
                     ? banyan_barrier(t->comm, &o)
                     : banyan_allreduce(&x, &y, 1, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    while (!bny_control_logged(t->comm->world->control))
        CHECK(t, !bny_deadline_passed(end), "rank %d does not hear of it", t->rank);
    rc = late_call(t);
    CHECK(t, rc == -BANYAN_ETIMEDOUT, "%d (%s)", rc, banyan_last_error());
    return 0;
}

const struct mp_case cases_again[] = {
    { "again", again, 0 },
    { "pairs", pairs, 0 },
    { "again_wrong", again_wrong, 0 },
    { "again_elsewhere", again_elsewhere, CASE_FAILS },
    { "told_without_waiting", told_without_waiting, CASE_FAILS },
    { "complete_behind", complete_behind_a_failure, CASE_FAILS | CASE_NO_THREADS },
    { "complete_while", complete_while_it_waits, CASE_OWN_INIT | CASE_FAILS | CASE_NO_THREADS },
    { "overdue_while", overdue_while_it_sleeps, CASE_NO_THREADS },
    { "late_behind_a_deadline", late_behind_a_deadline, CASE_FAILS | CASE_NO_THREADS },
    { NULL, NULL, 0 }
};
