/* SPDX-License-Identifier: BSD-3-Clause */
/* What a waiter does in its turns. With more ranks than CPUs it looks at the control plane once
 * in many turns, each of which may be milliseconds; when something was decided it looks in the
 * next. Where a yield costs the time slice of another program the waiter sleeps instead. The
 * progress hook drives what peers may wait for, and no descriptor tells of that. */
#include <criterion/criterion.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "collectives/api/job.h"
#include "collectives/progress/progress.h"

#define TICK_US 1000 /* longer than two looks at the control plane are apart */
#define BLOB    64

static const uint8_t secret[32] = "a secret of the tests, 32 bytes", job[8] = "waiting";

static void connect_two(struct bny_control *c[2])
{
    uint8_t blobs[2 * BLOB], same_host[2] = { 1, 1 };
    uint64_t end = bny_deadline_in(20);

    for (int r = 0; r < 2; r++) {
        cr_assert_eq(bny_control_create(&c[r], r, 2, secret, job, "lo", ""), 0, "%s",
                     banyan_last_error());
        cr_assert_gt(bny_control_address(c[r], blobs + r * BLOB, BLOB), 0);
    }
    for (int r = 0; r < 2; r++)
        cr_assert_eq(bny_control_connect(c[r], blobs, BLOB, same_host), 0);
    while (!bny_control_ready(c[0]) || !bny_control_ready(c[1])) {
        cr_assert_not(bny_deadline_passed(end));
        bny_control_hear(c[0]);
        bny_control_hear(c[1]);
    }
}

/* As their threads do it. */
static void decide(struct bny_control *c[2])
{
    struct bny_failure f = {
        .cause = BNY_CAUSE_ABORT, .code = BANYAN_EABORTED, .blamed = 1, .text = "a test"
    };
    uint64_t end = bny_deadline_in(20);

    bny_control_report(c[1], &f);
    while (!bny_control_hear(c[0])) {
        cr_assert_not(bny_deadline_passed(end));
        bny_control_hear(c[1]);
    }
}

Test(wait, a_decision_is_looked_at_in_the_next_turn, .timeout = 60)
{
    struct bny_world *w = bny_world_new(2, 0);
    struct bny_control *c[2];
    struct bny_waiter wt;
    uint64_t before;

    connect_two(c);
    w->control = c[0];
    w->oversubscribed = 1;
    w->spin_us = -1;
    bny_wait_init(&wt);
    usleep(TICK_US);
    before = w->tick_ns;
    bny_wait_turn(&wt, w, NULL);
    cr_assert_eq(w->tick_ns, before, "it looks at every turn");
    decide(c);
    usleep(TICK_US);
    bny_wait_turn(&wt, w, NULL);
    cr_assert_neq(w->tick_ns, before, "it was not looked at");
    cr_assert_not(bny_control_told(w->control));
    bny_control_destroy(c[1]);
    bny_world_free(w);
}

/* ---- other programs on the CPUs ---- */

static int is_virtual;
static uint64_t virtual_ns, yield_costs_ns, nyields;

int __real_clock_gettime(clockid_t clock, struct timespec *ts);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ts);
int __real_sched_yield(void);
int __wrap_sched_yield(void);
int __real_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *ts, const sigset_t *mask);
int __wrap_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *ts, const sigset_t *mask);
/* What a compiler's checks of array bounds make of it. */
int __wrap___ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *ts,
                       const sigset_t *mask, size_t bytes);

int __wrap_clock_gettime(clockid_t clock, struct timespec *ts)
{
    if (!is_virtual)
        return __real_clock_gettime(clock, ts);
    virtual_ns += 20;
    ts->tv_sec = (time_t)(virtual_ns / 1000000000u);
    ts->tv_nsec = (long)(virtual_ns % 1000000000u);
    return 0;
}

int __wrap_sched_yield(void)
{
    if (!is_virtual)
        return __real_sched_yield();
    nyields++;
    virtual_ns += yield_costs_ns;
    return 0;
}

int __wrap_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *ts, const sigset_t *mask)
{
    if (!is_virtual)
        return __real_ppoll(fds, n, ts, mask);
    virtual_ns += (uint64_t)ts->tv_nsec;
    return 0;
}

int __wrap___ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *ts,
                       const sigset_t *mask, size_t bytes)
{
    return __wrap_ppoll(fds, n, ts, mask);
}

/* Sleeps and yields of so many turns of one wait that finds nothing. */
static uint64_t turns(struct bny_world *w, int n, uint64_t cost, uint64_t *slept)
{
    uint64_t before = nyields, sleeps = atomic_load(&w->sleeps);
    struct bny_waiter wt;

    yield_costs_ns = cost;
    bny_wait_init(&wt);
    for (int i = 0; i < n; i++)
        bny_wait_turn(&wt, w, NULL);
    *slept = atomic_load(&w->sleeps) - sleeps;
    return nyields - before;
}

static struct bny_world *virtual_world(int oversubscribed)
{
    struct bny_world *w = bny_world_new(2, 0);

    w->oversubscribed = oversubscribed;
    w->spin_us = -1;
    is_virtual = 1;
    virtual_ns = 1000000000u;
    return w;
}

#define SLICE_NS 4000000u
#define CHEAP_NS 500u

Test(wait, a_waiter_sleeps_where_a_yield_costs_a_time_slice, .timeout = 60)
{
    for (int shared = 0; shared <= 1; shared++) {
        struct bny_world *w = virtual_world(shared);
        uint64_t slept, yielded = turns(w, 1000, SLICE_NS, &slept);

        /* At first, and when it tries again: seven times until that is rare. */
        cr_expect_leq(yielded, 40, "shared %d: it yielded %d times", shared, (int)yielded);
        cr_expect_geq(slept, 100, "shared %d: it slept %d times", shared, (int)slept);
        /* The next wait knows it from the first turn on. */
        yielded = turns(w, 20, SLICE_NS, &slept);
        cr_expect_leq(yielded, 1, "shared %d: it yielded %d times", shared, (int)yielded);
        cr_expect_geq(slept, 10);
        bny_world_free(w);
    }
}

Test(wait, a_waiter_tries_again_once_the_other_programs_have_ended, .timeout = 60)
{
    for (int shared = 0; shared <= 1; shared++) {
        struct bny_world *w = virtual_world(shared);
        uint64_t slept;

        turns(w, 1000, SLICE_NS, &slept);
        virtual_ns += 200000000u; /* longer than trials are apart */
        turns(w, 100, CHEAP_NS, &slept);
        cr_expect_eq(slept, 0, "shared %d: it slept %d times", shared, (int)slept);
        bny_world_free(w);
    }
}

Test(wait, trials_of_dear_yields_become_rare, .timeout = 60)
{
    struct bny_world *w = virtual_world(0);
    uint64_t slept, yielded;

    turns(w, 1000, SLICE_NS, &slept); /* until they are as rare as they become */
    yielded = 0;
    for (uint64_t end = virtual_ns + 1000000000u; virtual_ns < end;)
        yielded += turns(w, 10, SLICE_NS, &slept);
    cr_expect_leq(yielded, 11, "%d trials within a second", (int)yielded);
    cr_expect_geq(yielded, 5, "%d trials within a second", (int)yielded);
    bny_world_free(w);
}

Test(wait, one_dear_yield_among_cheap_ones_changes_nothing, .timeout = 60)
{
    struct bny_world *w = virtual_world(1);
    uint64_t slept;

    for (int i = 0; i < 100; i++) {
        turns(w, 1, SLICE_NS, &slept);
        cr_expect_eq(slept, 0);
        cr_expect_eq(turns(w, 20, CHEAP_NS, &slept), 20);
        cr_expect_eq(slept, 0);
    }
    bny_world_free(w);
}

Test(wait, a_thread_beside_the_starter_leaves_it_the_cpu, .timeout = 60)
{
    struct bny_world *w = virtual_world(0);
    struct bny_waiter wt;
    uint64_t yielded = nyields, sleeps;

    bny_wait_init(&wt);
    wt.aside = 1;
    for (int i = 0; i < 100; i++)
        bny_wait_turn(&wt, w, NULL);
    cr_expect_eq(atomic_load(&w->sleeps), 100, "it spun where nothing had come");
    bny_wait_found(&wt, w);
    for (int i = 0; i < 10; i++)
        bny_wait_turn(&wt, w, NULL);
    cr_expect_eq(atomic_load(&w->sleeps), 100, "it slept though the answer may be near");
    for (int i = 0; i < 1000; i++)
        bny_wait_turn(&wt, w, NULL);
    cr_expect_gt(atomic_load(&w->sleeps), 1000, "it spun on");
    sleeps = atomic_load(&w->sleeps);
    atomic_fetch_add(&w->waiters, 1);
    for (int i = 0; i < 10; i++)
        bny_wait_turn(&wt, w, NULL);
    cr_expect_eq(atomic_load(&w->sleeps), sleeps, "it armed the descriptors");
    cr_expect_eq(nyields, yielded, "it yielded");
    bny_world_free(w);
}

/* ---- the progress hook ---- */

static uint64_t ncalls;

static void hook(void *unused)
{
    ncalls++;
}

/* Calls of the hook in so many waits of so many turns each that find nothing. */
static uint64_t calls(struct bny_world *w, int waits, int n, uint64_t cost)
{
    struct banyan_comm comm = { .world = w, .progress_hook = hook };
    struct bny_waiter wt;

    ncalls = 0;
    yield_costs_ns = cost;
    for (int i = 0; i < waits; i++) {
        bny_wait_init(&wt);
        for (int k = 0; k < n; k++)
            bny_wait_turn(&wt, w, &comm);
    }
    return ncalls;
}

#define LONG 30000 /* turns: a wait that has spun and yielded would sleep */

Test(wait, each_turn_calls_an_urgent_hook, .timeout = 60)
{
    for (int k = 0; k < 4; k++) {
        struct bny_world *w = virtual_world(k & 1);
        struct banyan_comm comm = { .world = w, .progress_hook = hook };
        uint64_t cost = k & 2 ? SLICE_NS : CHEAP_NS, before = nyields, got;

        atomic_store(&w->hook_urgent, 1);
        got = calls(w, 1, LONG, cost);
        cr_expect_eq(got, LONG, "case %d: %d calls", k, (int)got);
        got = calls(w, 1000, 1, cost);
        cr_expect_eq(got, 1000, "case %d: %d calls in short waits", k, (int)got);
        cr_expect_eq(atomic_load(&w->sleeps), 0, "case %d: it slept", k);
        if (!w->oversubscribed) /* in each of which nothing would call the hook */
            cr_expect_eq(nyields - before, 0, "case %d: it yielded", k);
        ncalls = 0;
        bny_wait_skipped(&comm);
        cr_expect_eq(ncalls, 1, "case %d: not behind a call without a turn", k);
        bny_world_free(w);
    }
}

Test(wait, most_turns_of_a_long_wait_call_a_hook, .timeout = 60)
{
    struct bny_world *w = virtual_world(0);
    uint64_t got = calls(w, 1, LONG, CHEAP_NS);

    cr_expect_geq(got, LONG - 10, "%d calls", (int)got);
    cr_expect_eq(atomic_load(&w->sleeps), 0, "it slept");
    /* A call takes as long as a short wait. */
    got = calls(w, 1600, 1, CHEAP_NS);
    cr_expect(got >= 90 && got <= 110, "%d calls in short waits", (int)got);
    bny_world_free(w);
}

Test(wait, yields_of_shared_cpus_call_a_hook_once_in_a_while, .timeout = 60)
{
    struct bny_world *w = virtual_world(1);
    uint64_t got = calls(w, 1, 800, CHEAP_NS);

    cr_expect_eq(got, 100, "%d calls", (int)got);
    cr_expect_eq(atomic_load(&w->sleeps), 0, "it slept");
    calls(w, 1, LONG, CHEAP_NS);
    cr_expect_gt(atomic_load(&w->sleeps), 0, "it kept the CPU");
    bny_world_free(w);
}
