/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks that die, stop, abort or fork: what the others see, when, and at what cost. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
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
    while (rc == 0) {
        rc = work_once(t, work, buf, bytes, &s);
        atomic_fetch_add(&t->shared->marker[t->rank], 1);
    }
    end = bny_now_ns();
    sent = atomic_load(&t->shared->signal_ns);
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

/* A deadline of one wait: rank 0 waits for ranks that come only afterwards. */
static int deadline(struct test *t)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    uint32_t x = 1;
    int rc;

    opts.timeout_s = 0.3;
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
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

    /* The main thread of this rank is inside its call, or about to be. */
    while (atomic_load(&t->shared->marker[t->rank]) == 0)
        ;
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

const struct mp_case cases_failures[] = {
    { "codec_refuses", codec_refuses, CASE_FAILS },
    { "until_death", until_death, CASE_FAILS | CASE_NO_THREADS },
    { "until_stopped", until_stopped, CASE_OWN_INIT | CASE_FAILS | CASE_NO_THREADS },
    { "deadline", deadline, CASE_FAILS },
    { "abort_other_thread", abort_other_thread, CASE_FAILS },
    { "abort_one_of_two", abort_one_of_two, 0 },
    { "abort_and_end", abort_and_end, CASE_FAILS | CASE_NO_THREADS },
    { "fork_child", fork_child, CASE_NO_THREADS },
    { "leave_early", leave_early, CASE_FAILS },
    { 0 },
};
