/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks that die, stop, abort or fork: what the others see, when, and at what cost. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memcheck.h"
#include "base/rng.h"
#include "collectives/progress/progress.h"
#include "collectives/world/comm.h"
#include "tests/mp/call.h"

static double cpu_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* The communicator has failed with `code` and stays so; no call hangs. */
static void check_stays_failed(struct test *t, struct banyan_comm *comm, int code)
{
    struct banyan_request *rq = NULL;
    struct banyan_comm *dup = NULL;
    uint32_t x = 1;
    int rc;

    CHECK_RC(t, code, banyan_barrier(comm, NULL));
    CHECK(t, banyan_last_error()[0], "no sentence");
    CHECK_RC(t, code, banyan_allreduce(&x, &x, 1, BANYAN_U32, BANYAN_SUM, comm, NULL));
    CHECK_RC(t, code, banyan_async_error(comm, NULL, NULL, 0));
    CHECK_RC(t, code, banyan_comm_dup(comm, &dup));
    rc = banyan_allreduce_init(&x, &x, 1, BANYAN_U32, BANYAN_SUM, comm, NULL, &rq);
    if (rc == 0) {
        rc = banyan_start(rq);
        if (rc == 0)
            rc = banyan_wait(rq, 10);
        banyan_request_free(rq);
    }
    CHECK(t, rc == code, "a persistent request returned %d", rc);
}

/* ---- death ---- */
enum work { WORK_LARGE, WORK_SMALL, WORK_MIXED };

static int work_once(struct test *t, enum work work, unsigned char *buf, size_t bytes,
                     uint64_t *s)
{
    size_t n = bytes / (size_t)t->n;

    if (work == WORK_LARGE)
        return banyan_allreduce(buf, buf, bytes / 4, BANYAN_U32, BANYAN_SUM, t->comm, NULL);
    if (work == WORK_SMALL)
        return banyan_allreduce(buf, buf, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL);
    switch (bny_rng_below(s, 5)) {
    case 0: return banyan_alltoall(buf, buf, n / 64, BANYAN_U8, t->comm, NULL);
    case 1:
        return banyan_broadcast(buf, bytes, BANYAN_U8, (int)bny_rng_below(s, (uint64_t)t->n),
                                t->comm, NULL);
    case 2:
        return banyan_allgather(buf + (size_t)t->rank * (n / 64), buf, n / 64, BANYAN_U8,
                                t->comm, NULL);
    case 3: return banyan_barrier(t->comm, NULL);
    default:
        return banyan_reduce(buf, buf, bytes / 4, BANYAN_U32, BANYAN_MAX, 0, t->comm, NULL);
    }
}

/* A child of the victim that outlives it, as a data loader does: it holds whatever of the
 * library's descriptors it was left. Rank (victim + 1) % n ends it. */
static void leave_child(struct test *t, int victim)
{
    pid_t pid;

    if (t->rank != victim)
        return;
    pid = fork();
    CHECK(t, pid >= 0, "fork");
    if (pid == 0) {
        alarm(60);
        pause();
        _exit(0);
    }
    atomic_store(&t->shared->value[victim][0], (uint64_t)pid);
}

static void end_child(struct test *t, int victim)
{
    pid_t pid = (pid_t)atomic_load(&t->shared->value[victim][0]);

    if (t->rank == (victim + 1) % t->n && pid > 0)
        kill(pid, SIGKILL);
}

/* The victim is killed by the harness (struct mp_signal) once its marker, the number of rounds,
 * is high enough. value[0]: nanoseconds from the signal to the error, [1]: the blamed rank,
 * [2]: the code. */
static int until_death(struct test *t)
{
    enum work work = strstr(t->arg, "small")   ? WORK_SMALL
                     : strstr(t->arg, "mixed") ? WORK_MIXED
                                               : WORK_LARGE;
    size_t bytes = 64u << 20;
    int victim = atoi(t->arg), rc = 0, blamed = -2;
    unsigned char *buf = case_malloc(bytes);
    char text[512] = "", name[32];
    uint64_t s = t->seed, end, sent;

    memset(buf, 1, bytes);
    if (strstr(t->arg, "child")) {
        CHECK_OK(t, work_once(t, work, buf, bytes, &s)); /* connections are made by now */
        leave_child(t, victim);
    }
    while (rc == 0) {
        rc = work_once(t, work, buf, bytes, &s);
        atomic_fetch_add(&t->shared->marker[t->rank], 1);
    }
    end = bny_now_ns();
    sent = atomic_load(&t->shared->signal_ns);
    end_child(t, victim);
    CHECK(t, rc == -BANYAN_ERANKDEAD, "%s returned %d (%s)", t->arg, rc, banyan_strerror(rc));
    snprintf(name, sizeof name, "rank %d", victim);
    CHECK_HAS(t, banyan_last_error(), name);
    CHECK_RC(t, rc, banyan_async_error(t->comm, &blamed, text, sizeof text));
    CHECK(t, blamed == victim, "rank %d is blamed ('%s'), %d was killed", blamed, text, victim);
    CHECK_HAS(t, text, name);
    CHECK(t, sent != 0 && end > sent, "an error before anybody was killed");
    atomic_store(&t->shared->value[t->rank][0], end - sent);
    check_stays_failed(t, t->comm, rc);
    CHECK_OK(t, banyan_comm_finalize(t->comm)); /* only destroys it */
    t->comm = NULL;
    free(buf);
    return 0;
}

/* ---- one that comes late ---- */

static atomic_int words;

static void count_words(void *ctx, enum banyan_log_level level, const char *line)
{
    if (level == BANYAN_LOG_WARN && strstr(line, "barrier (operation") &&
        strstr(line, "has not ended after 10 s") &&
        strstr(line, "has not called it, and last") && strstr(line, ctx))
        atomic_fetch_add(&words, 1);
}

/* The last rank computes until it is told that the others wait for it. The first of them and
 * the last say so, once, and nothing fails. */
static int early_word(struct test *t)
{
    int last = t->n - 1;
    char who[40];

    atomic_store(&t->shared->value[t->rank][0], (uint64_t)getpid());
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    snprintf(who, sizeof who, "rank %d (pid %d on ", last,
             (int)atomic_load(&t->shared->value[last][0]));
    banyan_set_log(count_words, who, BANYAN_LOG_INFO);
    while (t->rank == last && !atomic_load(&words))
        usleep(10000);
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    banyan_set_log(NULL, NULL, BANYAN_LOG_WARN);
    CHECK(t, words == (t->rank == 0 || t->rank == last), "%d words", words);
    return 0;
}

#define LASTING 200 /* more than agreements that a rank keeps */

static void count_lasting(void *ctx, enum banyan_log_level level, const char *line)
{
    (void)ctx;
    if (level == BANYAN_LOG_WARN && strstr(line, "allreduce (operation") &&
        strstr(line, "has not ended after 10 s"))
        atomic_fetch_add(&words, 1);
}

/* The same with many operations in flight: their ranks warn of the oldest, and no job fails of
 * the warnings. */
static int early_words(struct test *t)
{
    struct banyan_request *rq[LASTING];
    uint32_t x[LASTING];
    int last = t->n - 1;

    banyan_set_log(count_lasting, NULL, BANYAN_LOG_INFO);
    for (int i = 0; i < LASTING; i++) {
        x[i] = (uint32_t)i;
        CHECK_OK(t, banyan_allreduce_init(&x[i], &x[i], 1, BANYAN_U32, BANYAN_SUM, t->comm,
                                          NULL, &rq[i]));
    }
    while (t->rank == last && !atomic_load(&words))
        usleep(10000);
    for (int i = 0; i < LASTING; i++)
        CHECK_OK(t, banyan_start(rq[i]));
    CHECK_OK(t, banyan_wait_all(rq, LASTING, -1));
    banyan_set_log(NULL, NULL, BANYAN_LOG_WARN);
    for (int i = 0; i < LASTING; i++) {
        CHECK(t, x[i] == (uint32_t)(i * t->n), "sum %d is %u", i, x[i]);
        banyan_request_free(rq[i]);
    }
    CHECK(t, words <= 3, "%d words", words);
    return 0;
}

/* ---- one that computes ---- */

static void count_warnings(void *ctx, enum banyan_log_level level, const char *line)
{
    (void)ctx;
    if (level <= BANYAN_LOG_WARN)
        fprintf(stderr, "said: %s\n", line);
    atomic_fetch_add(&words, level <= BANYAN_LOG_WARN);
}

/* The last rank calls nothing for arg seconds (times BANYAN_TEST_SCALE), while the others send
 * it more than all buffers on the way hold: no connection is lost or replaced, nobody is
 * thought dead, nothing is wrong.
 */
static int computes(struct test *t)
{
    enum { COUNT = 8 << 20 };
    struct banyan_stats s = { .size = sizeof s };
    const char *scale = getenv("BANYAN_TEST_SCALE");
    double seconds = atof(t->arg) * (scale ? atof(scale) : 1);
    uint64_t until = bny_now_ns() + (uint64_t)(seconds * 1e9);
    uint32_t *x = case_malloc(sizeof *x * COUNT), *all = NULL;
    int root = t->n - 1, ranks[MP_RANKS_MAX];

    if (t->rank == root)
        all = case_malloc(sizeof *x * COUNT * (size_t)t->n);
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    banyan_set_log(count_warnings, NULL, BANYAN_LOG_WARN);
    for (size_t i = 0; i < COUNT; i++)
        x[i] = (uint32_t)i * 7u + (uint32_t)t->rank;
    while (t->rank == root && bny_now_ns() < until)
        usleep(10000); /* to the library it computes */
    CHECK_OK(t, banyan_gather(x, all, COUNT, BANYAN_U32, root, t->comm, NULL));
    for (size_t i = 0; i < (size_t)t->n * COUNT && all; i++)
        CHECK(t, all[i] == (uint32_t)(i % COUNT) * 7u + (uint32_t)(i / COUNT), "element %zu",
              i);
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    banyan_set_log(NULL, NULL, BANYAN_LOG_WARN);
    CHECK_OK(t, banyan_comm_stats(t->comm, &s));
    CHECK(t, s.replaced == 0, "%llu connections were replaced", (unsigned long long)s.replaced);
    CHECK(t, atomic_load(&words) == 0, "%d warnings", atomic_load(&words));
    CHECK(t, banyan_comm_failed(t->comm, ranks, MP_RANKS_MAX) == 0, "somebody is dead");
    free(all);
    free(x);
    return 0;
}

/* ---- a stopped rank ---- */
static int until_stopped(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    uint64_t begin = 0, wall;
    double cpu = 0;
    uint32_t *x = case_malloc(1 << 20);
    int rc = 0;

    memset(x, 0, 1 << 20);
    cfg.op_timeout_s = 2;
    CHECK_OK(t, case_init(t, &cfg, &t->comm));
    while (rc == 0) {
        begin = bny_now_ns();
        cpu = cpu_seconds();
        rc = banyan_allreduce(x, x, 1 << 18, BANYAN_U32, BANYAN_MAX, t->comm, NULL);
        atomic_fetch_add(&t->shared->marker[t->rank], 1);
    }
    wall = bny_now_ns() - begin;
    cpu = cpu_seconds() - cpu;
    CHECK(t, rc == -BANYAN_ETIMEDOUT, "returned %d (%s)", rc, banyan_strerror(rc));
    CHECK_HAS(t, banyan_last_error(), "rank");
    CHECK(t, wall > 1000000000u, "%g s is before the deadline", (double)wall * 1e-9);
    /* Waiting must not cost a CPU: the spin budget is a small part of two seconds. */
    CHECK(t, cpu < 0.6 * (double)wall * 1e-9, "%g s of CPU time in %g s of waiting", cpu,
          (double)wall * 1e-9);
    printf("note: %.3f s CPU in %.3f s of waiting; %s\n", cpu, (double)wall * 1e-9,
           banyan_last_error());
    check_stays_failed(t, t->comm, rc);
    free(x);
    return 0;
}

/* Rank 0 ends, whoever else does: with all, with none, and with an operation in flight. */
static int finalize_within(struct test *t)
{
    struct banyan_request *rq = NULL;
    struct banyan_comm *comm[3];
    uint32_t x = 1;
    int rc;

    for (int i = 0; i < 3; i++)
        CHECK_OK(t, banyan_comm_dup(t->comm, &comm[i]));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_finalize_within(comm[0], 0));
    CHECK_OK(t, banyan_comm_finalize_within(comm[0], CASE_NEVER_S));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_finalize_within(comm[0], 1));
    if (t->rank == 0) {
        rc = banyan_comm_finalize_within(comm[1], 0.1);
        CHECK(t, rc == -BANYAN_ETIMEDOUT, "returned %d (%s)", rc, banyan_strerror(rc));
        CHECK_HAS(t, banyan_last_error(), "barrier");
        CHECK_OK(t,
                 banyan_allreduce_init(&x, &x, 1, BANYAN_U32, BANYAN_SUM, comm[2], NULL, &rq));
        CHECK_OK(t, banyan_start(rq));
        CHECK_RC(t, -BANYAN_EABORTED, banyan_comm_finalize_within(comm[2], CASE_NEVER_S));
        CHECK_RC(t, -BANYAN_EINVAL, banyan_request_free(rq)); /* with its communicator */
    }
    case_done(t, 1);
    case_await_done(t, 1, -1);
    if (t->rank)
        for (int i = 1; i < 3; i++)
            CHECK_OK(t, banyan_comm_destroy(comm[i]));
    return 0;
}

/* A deadline of one wait: rank 0 waits for ranks that come only afterwards. */
static int deadline(struct test *t)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    uint32_t x = 1;
    int rc;

    opts.timeout_s = 0.3;
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    case_meet(t, t->comm);
    if (t->rank == 0) {
        rc = banyan_allreduce(&x, &x, 1, BANYAN_U32, BANYAN_SUM, t->comm, &opts);
        CHECK(t, rc == -BANYAN_ETIMEDOUT, "returned %d (%s)", rc, banyan_strerror(rc));
        CHECK_HAS(t, banyan_last_error(), "allreduce");
        atomic_store(&t->shared->marker[0], 1);
    } else {
        while (atomic_load(&t->shared->marker[0]) == 0)
            usleep(1000);
        /* This one may find all it needs; what comes after it fails everywhere. */
        do
            rc = banyan_allreduce(&x, &x, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL);
        while (rc == 0);
        CHECK(t, rc == -BANYAN_ETIMEDOUT, "returned %d (%s)", rc, banyan_strerror(rc));
    }
    check_stays_failed(t, t->comm, -BANYAN_ETIMEDOUT);
    return 0;
}

/* ---- abort ---- */
static void *abort_main(void *arg)
{
    struct test *t = arg;

    /* All are out of the barrier; the main thread of this rank is inside its call, or about to
     * be. */
    for (int r = 0; r < t->n; r++)
        while (atomic_load(&t->shared->marker[r]) == 0)
            sched_yield();
    if (banyan_abort(t->comm, "the cooling failed") != 0)
        abort();
    return NULL;
}

static int abort_other_thread(struct test *t)
{
    size_t n = strstr(t->arg, "large") ? 4 << 20 : 1;
    uint32_t *x = case_malloc(n * 4);
    int rc = 0, waits = t->rank != t->n - 1;
    pthread_t thread;

    memset(x, 0, n * 4);
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    case_meet(t, t->comm);
    if (t->rank == 0)
        pthread_create(&thread, NULL, abort_main, t);
    atomic_store(&t->shared->marker[t->rank], 1);
    /* The last rank is no part of it until it hears of the failure. */
    while (!waits && banyan_async_error(t->comm, NULL, NULL, 0) == 0)
        banyan_progress(t->comm);
    rc = banyan_allreduce(x, x, n, BANYAN_U32, BANYAN_SUM, t->comm, NULL);
    CHECK(t, rc == -BANYAN_EABORTED, "returned %d (%s)", rc, banyan_strerror(rc));
    CHECK_HAS(t, banyan_last_error(), "the cooling failed");
    CHECK_HAS(t, banyan_last_error(), "rank 0");
    if (t->rank == 0)
        pthread_join(thread, NULL);
    check_stays_failed(t, t->comm, -BANYAN_EABORTED);
    CHECK_OK(t, banyan_abort(t->comm, "again")); /* always returns; the first cause stays */
    check_stays_failed(t, t->comm, -BANYAN_EABORTED);
    free(x);
    return 0;
}

/* A failure of one communicator leaves its sister alone. */
static int abort_one_of_two(struct test *t)
{
    struct banyan_comm *dup;
    uint32_t x = 1;
    int rc;

    CHECK_OK(t, banyan_comm_dup(t->comm, &dup));
    case_check_works(t, dup);
    mp_shared_barrier(t->shared, t->n); /* all are out of it */
    if (t->rank == t->n - 1)
        CHECK_OK(t, banyan_abort(dup, "only this one"));
    do
        rc = banyan_allreduce(&x, &x, 1, BANYAN_U32, BANYAN_MAX, dup, NULL);
    while (rc == 0);
    CHECK(t, rc == -BANYAN_EABORTED, "returned %d (%s)", rc, banyan_strerror(rc));
    CHECK_HAS(t, banyan_last_error(), "only this one");
    for (int i = 0; i < 100; i++)
        case_check_works(t, t->comm);
    banyan_comm_destroy(dup);
    case_check_works(t, t->comm);
    return 0;
}

/* Who aborts need not wait for the others: they hear the reason all the same. */
static int abort_and_end(struct test *t)
{
    uint32_t x = 1;
    int rc;

    case_check_works(t, t->comm);
    mp_shared_barrier(t->shared, t->n); /* all are out of it */
    if (t->rank == t->n - 1) {
        CHECK_OK(t, banyan_abort(t->comm, "the cooling failed"));
        if (strstr(t->arg, "exit"))
            _exit(0);
        banyan_comm_destroy(t->comm);
        t->comm = NULL;
        return 0;
    }
    do
        rc = banyan_allreduce(&x, &x, 1, BANYAN_U32, BANYAN_MAX, t->comm, NULL);
    while (rc == 0);
    CHECK(t, rc == -BANYAN_EABORTED, "returned %d (%s)", rc, banyan_last_error());
    CHECK_HAS(t, banyan_last_error(), "the cooling failed");
    check_stays_failed(t, t->comm, rc);
    return 0;
}

/* ---- fork ---- */
static int forked_child(struct banyan_comm *comm)
{
    struct banyan_request *rq;
    struct banyan_comm *dup;
    uint32_t x = 1;

    if (banyan_allreduce(&x, &x, 1, BANYAN_U32, BANYAN_SUM, comm, NULL) != -BANYAN_EFORK)
        return 1;
    if (!case_has(banyan_last_error(), "fork"))
        return 2;
    if (banyan_barrier(comm, NULL) != -BANYAN_EFORK)
        return 3;
    if (banyan_comm_dup(comm, &dup) != -BANYAN_EFORK)
        return 4;
    if (banyan_allreduce_init(&x, &x, 1, BANYAN_U32, BANYAN_SUM, comm, NULL, &rq) !=
        -BANYAN_EFORK)
        return 5;
    if (banyan_progress(comm) != -BANYAN_EFORK)
        return 6;
    if (banyan_comm_finalize(comm) != -BANYAN_EFORK)
        return 7;
    return 0;
}

static int fork_child(struct test *t)
{
    int status;
    pid_t pid;

    case_check_works(t, t->comm);
    pid = fork();
    CHECK(t, pid >= 0, "fork");
    if (pid == 0)
        _exit(forked_child(t->comm));
    CHECK(t, waitpid(pid, &status, 0) == pid, "waitpid");
    CHECK(t, WIFEXITED(status) && WEXITSTATUS(status) == 0,
          "the child's call number %d is wrong", WEXITSTATUS(status));
    for (int i = 0; i < 10; i++)
        case_check_works(t, t->comm);
    return 0;
}

/* Another thread of the parent holds the world's lock, in a user operation, at the fork. */
struct locker {
    struct test *t;
    pthread_t thread;
    atomic_int inside, go;
};

static void holding_op(void *ctx, const void *in, void *inout, size_t n,
                       enum banyan_dtype dtype)
{
    struct locker *l = ctx;

    for (size_t i = 0; i < n; i++)
        ((uint32_t *)inout)[i] += ((const uint32_t *)in)[i];
    atomic_store(&l->inside, 1);
    while (!atomic_load(&l->go))
        usleep(1000);
}

static void *locker_main(void *arg)
{
    struct locker *l = arg;
    uint32_t x = 1, y = 0;
    banyan_op op;

    CHECK_OK(l->t, banyan_op_create_user(holding_op, l, 0, 0, 1, &op));
    CHECK_OK(l->t, banyan_allreduce(&x, &y, 1, BANYAN_U32, op, l->t->comm, NULL));
    CHECK(l->t, y == (uint32_t)l->t->n, "sum %u", y);
    CHECK_OK(l->t, banyan_op_free(op));
    return NULL;
}

/* *last: the call; 1: it did something else than refuse. */
#define FORKED(call)                                                                           \
    do {                                                                                       \
        *last = #call;                                                                         \
        if ((call) != -BANYAN_EFORK || !case_has(banyan_last_error(), "fork"))                 \
            return 1;                                                                          \
    } while (0)

static int forked_blocking(struct banyan_comm *c, const char **last)
{
    uint32_t x[MP_RANKS_MAX] = { 0 }, y[MP_RANKS_MAX];
    size_t n[MP_RANKS_MAX] = { 0 };

    FORKED(banyan_allreduce(x, y, 1, BANYAN_U32, BANYAN_SUM, c, NULL));
    FORKED(banyan_reduce(x, y, 1, BANYAN_U32, BANYAN_SUM, 0, c, NULL));
    FORKED(banyan_broadcast(x, 1, BANYAN_U32, 0, c, NULL));
    FORKED(banyan_reduce_scatter(x, y, 1, BANYAN_U32, BANYAN_SUM, c, NULL));
    FORKED(banyan_reduce_scatterv(x, y, n, BANYAN_U32, BANYAN_SUM, c, NULL));
    FORKED(banyan_allgather(x, y, 1, BANYAN_U32, c, NULL));
    FORKED(banyan_allgatherv(x, y, n, NULL, BANYAN_U32, c, NULL));
    FORKED(banyan_gather(x, y, 1, BANYAN_U32, 0, c, NULL));
    FORKED(banyan_gatherv(x, 0, y, n, NULL, BANYAN_U32, 0, c, NULL));
    FORKED(banyan_scatter(x, y, 1, BANYAN_U32, 0, c, NULL));
    FORKED(banyan_scatterv(x, n, NULL, y, 0, BANYAN_U32, 0, c, NULL));
    FORKED(banyan_alltoall(x, y, 1, BANYAN_U32, c, NULL));
    FORKED(banyan_alltoallv(x, n, NULL, y, n, NULL, BANYAN_U32, c, NULL));
    FORKED(banyan_barrier(c, NULL));
    FORKED(banyan_scan(x, y, 1, BANYAN_U32, BANYAN_SUM, c, NULL));
    FORKED(banyan_exscan(x, y, 1, BANYAN_U32, BANYAN_SUM, c, NULL));
    FORKED(banyan_send(x, 1, BANYAN_U32, 0, c, NULL));
    FORKED(banyan_recv(x, 1, BANYAN_U32, 0, c, NULL));
    FORKED(banyan_sendrecv(x, 1, BANYAN_U32, 0, y, 1, BANYAN_U32, 0, c, NULL));
    return 0;
}

static int forked_inits(struct banyan_comm *c, const char **last)
{
    uint32_t x[MP_RANKS_MAX] = { 0 }, y[MP_RANKS_MAX];
    size_t n[MP_RANKS_MAX] = { 0 };
    struct banyan_request *q;

    FORKED(banyan_allreduce_init(x, y, 1, BANYAN_U32, BANYAN_SUM, c, NULL, &q));
    FORKED(banyan_reduce_init(x, y, 1, BANYAN_U32, BANYAN_SUM, 0, c, NULL, &q));
    FORKED(banyan_broadcast_init(x, 1, BANYAN_U32, 0, c, NULL, &q));
    FORKED(banyan_reduce_scatter_init(x, y, 1, BANYAN_U32, BANYAN_SUM, c, NULL, &q));
    FORKED(banyan_reduce_scatterv_init(x, y, n, BANYAN_U32, BANYAN_SUM, c, NULL, &q));
    FORKED(banyan_allgather_init(x, y, 1, BANYAN_U32, c, NULL, &q));
    FORKED(banyan_allgatherv_init(x, y, n, NULL, BANYAN_U32, c, NULL, &q));
    FORKED(banyan_gather_init(x, y, 1, BANYAN_U32, 0, c, NULL, &q));
    FORKED(banyan_gatherv_init(x, 0, y, n, NULL, BANYAN_U32, 0, c, NULL, &q));
    FORKED(banyan_scatter_init(x, y, 1, BANYAN_U32, 0, c, NULL, &q));
    FORKED(banyan_scatterv_init(x, n, NULL, y, 0, BANYAN_U32, 0, c, NULL, &q));
    FORKED(banyan_alltoall_init(x, y, 1, BANYAN_U32, c, NULL, &q));
    FORKED(banyan_alltoallv_init(x, n, NULL, y, n, NULL, BANYAN_U32, c, NULL, &q));
    FORKED(banyan_barrier_init(c, NULL, &q));
    FORKED(banyan_scan_init(x, y, 1, BANYAN_U32, BANYAN_SUM, c, NULL, &q));
    FORKED(banyan_exscan_init(x, y, 1, BANYAN_U32, BANYAN_SUM, c, NULL, &q));
    FORKED(banyan_send_init(x, 1, BANYAN_U32, 0, c, NULL, &q));
    FORKED(banyan_recv_init(x, 1, BANYAN_U32, 0, c, NULL, &q));
    return 0;
}

static int forked_others(struct banyan_comm *c, struct banyan_request *q, const char **last)
{
    struct banyan_stats stats = { .size = sizeof stats };
    struct banyan_comm *out;
    char text[200];
    size_t which;
    void *mem;
    int done;

    FORKED(banyan_abort(c, "a child may not"));
    FORKED(banyan_comm_init_test(c, &done));
    FORKED(banyan_comm_dup(c, &out));
    FORKED(banyan_comm_split(c, 0, 0, &out));
    FORKED(banyan_comm_finalize(c));
    FORKED(banyan_comm_rank(c));
    FORKED(banyan_comm_count(c));
    FORKED(banyan_async_error(c, &done, text, sizeof text));
    FORKED(banyan_comm_stats(c, &stats));
    FORKED(banyan_comm_plan(c, "allreduce", 1, BANYAN_F32, text, sizeof text));
    FORKED(banyan_mem_alloc(c, 64, &mem));
    FORKED(banyan_mem_free(c, text));
    FORKED(banyan_mem_register(c, text, sizeof text, -1, 0));
    FORKED(banyan_mem_deregister(c, text));
    FORKED(banyan_progress(c));
    FORKED(banyan_progress_fd(c));
    FORKED(banyan_start(q));
    FORKED(banyan_test(q, &done));
    FORKED(banyan_wait(q, 1));
    FORKED(banyan_wait_all(&q, 1, 1));
    FORKED(banyan_wait_any(&q, 1, 1, &which));
    FORKED(banyan_request_free(q));
    FORKED(banyan_group_end());
    *last = "banyan_comm_destroy";
    banyan_comm_destroy(c);
    return 0;
}
#undef FORKED

/* last: in memory that is shared with the child, and so is the program's text. */
static int fork_locked(struct test *t)
{
    struct locker l = { .t = t };
    struct banyan_request *rq;
    const char **last =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status;
    pid_t pid;

    CHECK(t, last != MAP_FAILED, "mmap");
    CHECK_OK(t, banyan_barrier_init(t->comm, NULL, &rq));
    CHECK_OK(t, banyan_group_start());
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    CHECK(t, pthread_create(&l.thread, NULL, locker_main, &l) == 0, "a thread");
    while (!atomic_load(&l.inside))
        usleep(1000);
    pid = fork();
    CHECK(t, pid >= 0, "fork");
    if (pid == 0) {
        alarm(10);
        _exit(forked_blocking(t->comm, last) || forked_inits(t->comm, last) ||
              forked_others(t->comm, rq, last));
    }
    CHECK(t, waitpid(pid, &status, 0) == pid, "waitpid");
    CHECK(t, status == 0, "the child ended with status %x after %s", status, *last);
    atomic_store(&l.go, 1);
    pthread_join(l.thread, NULL);
    CHECK_OK(t, banyan_group_end());
    CHECK_OK(t, banyan_request_free(rq));
    for (int i = 0; i < 10; i++)
        case_check_works(t, t->comm);
    munmap(last, 4096);
    return 0;
}

/* Threads of the parent are in and out of the process's locks; each child makes communicators,
 * states and operations of its own. */
static atomic_int busy_stop;

static int use_all(struct banyan_config *cfg)
{
    struct banyan_codec_state *st;
    struct banyan_comm *comm;
    struct banyan_request *rq;
    float x = 1;
    banyan_op op;

    if (banyan_comm_init(&comm, NULL, 1, 0, cfg) != 0)
        return 1;
    if (banyan_op_create_premul_sum(2, &op) != 0)
        return 2;
    if (banyan_allreduce_init(&x, &x, 1, BANYAN_F32, op, comm, NULL, &rq) != 0)
        return 3;
    if (banyan_codec_state_create(&st, 1, 1) != 0)
        return 4;
    banyan_codec_state_free(st);
    if (banyan_request_free(rq) != 0 || banyan_op_free(op) != 0)
        return 5;
    return banyan_comm_finalize(comm) == 0 ? 0 : 6;
}

/* No init and no request: they look for libraries, and glibc's list of those may be half
 * changed in a child. */
static void *busy_main(void *arg)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    struct banyan_comm *comm = arg;
    struct banyan_codec_state *st;
    float x = 1;
    banyan_op op;

    opts.codec = "int8";
    while (!atomic_load(&busy_stop))
        if (banyan_codec_state_create(&st, 1, 1) == 0 &&
            banyan_op_create_premul_sum(2, &op) == 0 &&
            banyan_allreduce(&x, &x, 1, BANYAN_F32, BANYAN_SUM, comm, &opts) == 0) {
            banyan_codec_state_free(st);
            banyan_op_free(op);
        }
    return NULL;
}

static int fork_busy(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm[3];
    pthread_t busy[3];
    int status, rc = 0;

#if BNY_ADDRESS_SANITIZER
    return case_skip("AddressSanitizer's own locks are not made anew in a child of fork");
#endif
    cfg.transport = "loop";
    cfg.codec = "int8";
    for (int i = 0; i < 3; i++)
        CHECK_OK(t, banyan_comm_init(&comm[i], NULL, 1, 0, &cfg));
    for (int i = 0; i < 3; i++)
        CHECK(t, pthread_create(&busy[i], NULL, busy_main, comm[i]) == 0, "a thread");
    for (int i = 0; i < 200; i++) {
        pid_t pid = fork();
        CHECK(t, pid >= 0, "fork");
        if (pid == 0) {
            alarm(10);
            for (int k = 0; k < 3; k++)
                rc = rc ? rc : use_all(&cfg);
            _exit(rc);
        }
        CHECK(t, waitpid(pid, &status, 0) == pid, "waitpid");
        CHECK(t, status == 0, "child %d ended with status %x", i, status);
    }
    atomic_store(&busy_stop, 1);
    for (int i = 0; i < 3; i++) {
        pthread_join(busy[i], NULL);
        CHECK_OK(t, banyan_comm_finalize(comm[i]));
    }
    return 0;
}

/* A rank that leaves in order is no failure for those who do not need it; one that is needed
 * is. */
static int leave_early(struct test *t)
{
    uint32_t x = 1;
    int rc, blamed = -2;

    case_check_works(t, t->comm);
    if (t->rank == t->n - 1) {
        banyan_comm_destroy(t->comm);
        t->comm = NULL;
        mp_shared_barrier(t->shared, t->n);
        return 0;
    }
    rc = banyan_allreduce(&x, &x, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL);
    CHECK(t, rc == -BANYAN_ERANKDEAD, "returned %d (%s)", rc, banyan_strerror(rc));
    CHECK_RC(t, rc, banyan_async_error(t->comm, &blamed, NULL, 0));
    CHECK(t, blamed == t->n - 1, "rank %d is blamed", blamed);
    mp_shared_barrier(t->shared, t->n);
    return 0;
}

static int knows_of_its_end(const struct test *t, int rank)
{
    struct bny_control *c = t->comm->world->control;

    return bny_control_left(c, rank) || bny_control_logged(c);
}

/* arg "send N destroy", "broadcast N exit": rank 0 has sent, and left. The others come later,
 * or are still at it: what it sent is theirs, whatever they know of its end by then. */
static int sender_left(struct test *t)
{
    uint64_t deadline = bny_deadline_in(30 * mp_patience());
    char what[16], how[16];
    uint32_t *x;
    size_t n;
    int rc;

    CHECK(t, sscanf(t->arg, "%15s %zu %15s", what, &n, how) == 3, "argument");
    x = case_malloc(n * sizeof *x);
    for (int tag = 0; tag < 2; tag++) { /* connections of all lanes */
        CHECK_OK(t, banyan_broadcast(x, 1, BANYAN_U32, 0, t->comm, NULL));
        CHECK_OK(t, banyan_barrier(t->comm, NULL));
    }
    for (size_t i = 0; i < n; i++)
        x[i] = t->rank ? 0 : (uint32_t)i * 7 + 1;
    mp_shared_barrier(t->shared, t->n);
    if (n > 1000 || t->rank == 0)
        ; /* long ones are not sent before their receiver comes */
    else
        while (!knows_of_its_end(t, 0)) {
            CHECK(t, !bny_deadline_passed(deadline), "rank 0 does not end");
            sched_yield();
        }
    rc = *what == 'b'   ? banyan_broadcast(x, n, BANYAN_U32, 0, t->comm, NULL)
         : t->rank == 0 ? banyan_send(x, n, BANYAN_U32, 1, t->comm, NULL)
         : t->rank == 1 ? banyan_recv(x, n, BANYAN_U32, 0, t->comm, NULL)
                        : 0;
    CHECK(t, rc == 0, "%d (%s)", rc, banyan_last_error());
    if (t->rank == 0 && !strcmp(how, "exit"))
        _exit(0);
    for (size_t i = 0; i < n && (*what == 'b' || t->rank < 2); i++)
        CHECK(t, x[i] == (uint32_t)i * 7 + 1, "%zu: %u", i, x[i]);
    free(x);
    return 0;
}

/* Nobody is in a call that waits: who asks is told, all the same. arg "idle": nobody was in one
 * since init. */
static int told_by_asking(struct test *t)
{
    int blamed = -2, rc = 0;
    char text[200] = "";

    if (strcmp(t->arg, "idle") != 0)
        case_check_works(t, t->comm);
    mp_shared_barrier(t->shared, t->n);
    if (t->rank == t->n - 1)
        CHECK_OK(t, banyan_abort(t->comm, "the cooling failed"));
    for (int i = 0; i < 10000 && rc == 0; i++) {
        rc = banyan_async_error(t->comm, &blamed, text, sizeof text);
        usleep(1000);
    }
    CHECK(t, rc == -BANYAN_EABORTED, "returned %d (%s)", rc, banyan_strerror(rc));
    CHECK(t, blamed == t->n - 1, "rank %d is blamed", blamed);
    CHECK_HAS(t, text, "the cooling failed");
    mp_shared_barrier(t->shared, t->n);
    return 0;
}

struct watch {
    struct banyan_comm *comm;
    _Atomic int end;
    int first; /* error */
};

static void *watch_main(void *arg)
{
    struct watch *w = arg;

    while (!atomic_load(&w->end)) {
        int rc = banyan_async_error(w->comm, NULL, NULL, 0);

        w->first = w->first ? w->first : rc;
    }
    return NULL;
}

/* A thread asks while others of its process make communicators, use and end them. */
static int asked_to_the_end(struct test *t)
{
    for (int i = 0; i < 50; i++) {
        struct watch w = { 0 };
        pthread_t thread;

        CHECK_OK(t, banyan_comm_dup(t->comm, &w.comm));
        CHECK(t, pthread_create(&thread, NULL, watch_main, &w) == 0, "no thread");
        case_check_works(t, w.comm);
        CHECK_OK(t, banyan_comm_finalize(w.comm));
        if (i % 2)
            usleep(1000);
        atomic_store(&w.end, 1);
        pthread_join(thread, NULL);
        CHECK(t, w.first == 0 || w.first == -BANYAN_EINVAL, "%d", w.first);
    }
    return 0;
}

static void die(int signal)
{
    (void)signal;
    kill(getpid(), SIGKILL);
}

/* arg: who dies while all leave, and after how many microseconds of that. The others return 0,
 * or whose death they heard of; value[0]: how long that took, [1]: what finalize returned. */
static int dies_while_leaving(struct test *t)
{
    struct itimerval after = { .it_value = { 0 } };
    int victim = 0, delay = 0, rc;
    char name[32];

    CHECK(t, sscanf(t->arg, "%d %d", &victim, &delay) == 2, "%s", t->arg);
    case_check_works(t, t->comm);
    mp_shared_barrier(t->shared, t->n);
    if (t->rank == victim) {
        after.it_value.tv_usec = delay + 1;
        signal(SIGALRM, die);
        setitimer(ITIMER_REAL, &after, NULL);
    }
    rc = banyan_comm_finalize(t->comm);
    t->comm = NULL;
    atomic_store(&t->shared->value[t->rank][1], (uint64_t)-rc);
    snprintf(name, sizeof name, "rank %d ", victim);
    CHECK(t, rc == 0 || rc == -BANYAN_ERANKDEAD, "finalize returned %d (%s)", rc,
          banyan_last_error());
    if (rc)
        CHECK_HAS(t, banyan_last_error(), name);
    return 0;
}

/* ---- given up while it is finalized, by another thread, to the last moment ---- */

static void *abort_until_it_is_gone(void *arg)
{
    struct banyan_comm *comm = arg;

    while (banyan_abort(comm, "a test") == 0)
        sched_yield();
    return NULL;
}

/* Each rank in its turn, while others are in finalize, or have not come to it. */
static int finalize_aborted(struct test *t)
{
    uint64_t s = t->seed + (uint64_t)t->rank;
    struct banyan_config cfg = case_config(t);
    struct banyan_id id;

    cfg.op_timeout_s = CASE_NEVER_S;
    for (int i = 0; i < 12; i++) {
        int aborts = i % t->n == t->rank, rc;
        struct banyan_comm *comm;
        pthread_t thread;

        if (t->rank == 0)
            CHECK_OK(t, banyan_id_create(&id));
        if (t->rank == 0)
            memcpy(t->shared->blob[0], &id, sizeof id);
        mp_shared_barrier(t->shared, t->n);
        memcpy(&id, t->shared->blob[0], sizeof id);
        CHECK_OK(t, banyan_comm_init(&comm, &id, t->n, t->rank, &cfg));
        case_check_works(t, comm);
        mp_shared_barrier(t->shared, t->n);
        if (i % 2 && t->rank == (i + 1) % t->n)
            usleep(20000);
        if (aborts)
            CHECK(t, pthread_create(&thread, NULL, abort_until_it_is_gone, comm) == 0, "no");
        usleep((useconds_t)bny_rng_below(&s, 300));
        rc = banyan_comm_finalize(comm);
        CHECK(t, rc == 0 || rc == -BANYAN_EABORTED, "%d (%s)", rc, banyan_last_error());
        if (aborts)
            pthread_join(thread, NULL);
        mp_shared_barrier(t->shared, t->n);
    }
    return 0;
}

/* ---- a codec that finds only from the ranks' values that it cannot encode them ---- */
static int codec_refuses(struct test *t)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    size_t count = 10000;
    float *x = case_malloc(count * sizeof *x);
    int rc;

    for (size_t i = 0; i < count; i++)
        x[i] = 1e30f;
    opts.codec = t->arg;
    rc = banyan_allreduce(x, x, count, BANYAN_F32, BANYAN_SUM, t->comm, &opts);
    CHECK(t, rc == -BANYAN_ENOTSUP, "returned %d (%s)", rc, banyan_strerror(rc));
    CHECK_HAS(t, banyan_last_error(), "codec");
    check_stays_failed(t, t->comm, rc);
    free(x);
    return 0;
}

/* ---- who left in order is waited for later ---- */

static void look_for(struct banyan_comm *comm, uint64_t ns)
{
    uint64_t begin = bny_now_ns();

    while (bny_now_ns() - begin < ns)
        bny_world_poll(comm->world);
}

/* Rank 0 leaves behind a failure that concerns another communicator, when nobody waits for it.
 * What begins later and needs it is told, soon. arg: 1: data connections were used. */
static int left_behind(struct test *t)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *world, *given_up, *kept;
    char why[256] = "";
    int blamed = -1, rc;
    uint32_t x = 1;

    opts.timeout_s = 30;
    CHECK_OK(t, case_init(t, &cfg, &world));
    CHECK_OK(t, banyan_comm_dup(world, &given_up));
    CHECK_OK(t, banyan_comm_dup(world, &kept));
    if (atoi(t->arg))
        case_check_works(t, kept);
    mp_shared_barrier(t->shared, t->n);
    if (t->rank == 1)
        CHECK_OK(t, banyan_comm_revoke(given_up, "a test"));
    while (banyan_barrier(given_up, NULL) == 0)
        ;
    mp_shared_barrier(t->shared, t->n);
    if (t->rank == 0) {
        banyan_comm_destroy(given_up);
        banyan_comm_destroy(kept);
        banyan_comm_destroy(world);
        mp_shared_barrier(t->shared, t->n);
        mp_shared_barrier(t->shared, t->n);
        return 0;
    }
    mp_shared_barrier(t->shared, t->n);
    look_for(world, 200000000);
    rc = t->rank == 1 ? banyan_recv(&x, 1, BANYAN_U32, 0, kept, &opts)
                      : banyan_broadcast(&x, 1, BANYAN_U32, 0, kept, &opts);
    CHECK(t, rc == -BANYAN_ERANKDEAD, "returned %d (%s)", rc, banyan_last_error());
    CHECK_RC(t, -BANYAN_ERANKDEAD, banyan_async_error(kept, &blamed, why, sizeof why));
    CHECK(t, blamed == 0, "%d is blamed: %s", blamed, why);
    mp_shared_barrier(t->shared, t->n);
    banyan_comm_destroy(given_up);
    banyan_comm_destroy(kept);
    banyan_comm_destroy(world);
    return 0;
}

const struct mp_case cases_failures[] = {
    { "left_behind", left_behind, CASE_OWN_INIT | CASE_FAILS | CASE_NO_THREADS },
    { "codec_refuses", codec_refuses, CASE_FAILS },
    { "until_death", until_death, CASE_FAILS | CASE_NO_THREADS },
    { "early_word", early_word, CASE_NO_THREADS },
    { "computes", computes, CASE_NO_THREADS },
    { "until_stopped", until_stopped, CASE_OWN_INIT | CASE_FAILS | CASE_NO_THREADS },
    { "finalize_within", finalize_within, CASE_FAILS },
    { "early_words", early_words, CASE_NO_THREADS },
    { "deadline", deadline, CASE_FAILS },
    { "abort_other_thread", abort_other_thread, CASE_FAILS },
    { "abort_one_of_two", abort_one_of_two, 0 },
    { "abort_and_end", abort_and_end, CASE_FAILS | CASE_NO_THREADS },
    { "fork_child", fork_child, CASE_NO_THREADS },
    { "fork_locked", fork_locked, CASE_NO_THREADS },
    { "fork_busy", fork_busy, CASE_NO_THREADS },
    { "sender_left", sender_left, CASE_FAILS | CASE_NO_THREADS },
    { "leave_early", leave_early, CASE_FAILS },
    { "told_by_asking", told_by_asking, CASE_FAILS },
    { "asked_to_the_end", asked_to_the_end, 0 },
    { "dies_while_leaving", dies_while_leaving, CASE_FAILS },
    { "finalize_aborted", finalize_aborted, CASE_OWN_INIT | CASE_NO_THREADS },
    { 0 },
};
