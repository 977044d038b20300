/* SPDX-License-Identifier: BSD-3-Clause */
/* Survivors go on: ranks die one after the other, two at a time, in an operation or while the
 * others shrink; what is left works, and gives the bits that a communicator of the same ranks
 * gives which no death has touched. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/mp/call.h"

#define WORK_ELEMS (1u << 17)

/* ---- dying ---- */

static void on_alarm(int signo)
{
    kill(getpid(), signo == SIGALRM ? SIGKILL : signo);
}

/* Dies so many microseconds from now, wherever it is by then. */
static void die_in(uint64_t us)
{
    struct itimerval at = { .it_value = { .tv_sec = (time_t)(us / 1000000),
                                          .tv_usec = (suseconds_t)(us % 1000000) } };

    if (us == 0)
        kill(getpid(), SIGKILL);
    signal(SIGALRM, on_alarm);
    setitimer(ITIMER_REAL, &at, NULL);
}

/* ---- what survivors must get ---- */

/* World ranks of the members, in order; or the error of an operation. */
static int members_of(const struct test *t, struct banyan_comm *comm, int32_t *members)
{
    int32_t me = t->rank;

    return banyan_allgather(&me, members, 1, BANYAN_I32, comm, NULL);
}

/* ---- one wave of deaths ---- */

struct wave {
    int alive[MP_RANKS_MAX], n; /* world ranks before it */
    int left[MP_RANKS_MAX], nleft;
    uint32_t victims; /* bits by world rank */
    uint64_t die_us;  /* of this rank, where it is one */
};

/* The same on all ranks, but die_us. */
static void draw_wave(const struct test *t, struct wave *w, uint64_t *s)
{
    int most = w->n - 1 < 3 ? w->n - 1 : 3, n = 1 + (int)bny_rng_below(s, (uint64_t)most);
    uint64_t first = bny_rng_below(s, 20000);

    w->victims = 0;
    while (n > 0) {
        int r = w->alive[bny_rng_below(s, (uint64_t)w->n)];
        uint64_t gap = bny_rng_below(s, 4) ? bny_rng_below(s, 60000) : 0;

        if (w->victims >> r & 1)
            continue;
        w->victims |= 1u << r;
        if (r == t->rank)
            w->die_us = first + gap;
        n--;
    }
    w->nleft = 0;
    for (int i = 0; i < w->n; i++)
        if (!(w->victims >> w->alive[i] & 1))
            w->left[w->nleft++] = w->alive[i];
}

/* Operations until one fails. */
static int until_failure(struct test *t, struct banyan_comm *comm, uint32_t *x)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0; i++) {
        size_t count = i % 3 ? 16 : WORK_ELEMS;
        rc = banyan_allreduce(x, x, count, BANYAN_U32, BANYAN_MAX, comm, NULL);
    }
    CHECK(t, rc == -BANYAN_ERANKDEAD, "returned %d (%s)", rc, banyan_strerror(rc));
    return rc;
}

/* Shrinks until no victim is left; *comm becomes what is. */
static void shrink_to(struct test *t, struct banyan_comm **comm, const struct wave *w,
                      uint32_t *x)
{
    int32_t members[MP_RANKS_MAX] = { 0 };
    int n = 0, same = 0;

    for (int round = 0; !same; round++) {
        struct banyan_comm *next;
        int dead[MP_RANKS_MAX], ndead, before = banyan_comm_count(*comm);

        CHECK(t, round <= w->n, "%d rounds", round);
        CHECK_OK(t, banyan_comm_shrink(*comm, &next));
        ndead = banyan_comm_failed(*comm, dead, MP_RANKS_MAX);
        CHECK(t, ndead >= 0 && ndead <= before - w->nleft, "%d of %d are dead", ndead, before);
        CHECK(t, banyan_comm_count(next) <= before, "%d ranks of %d", banyan_comm_count(next),
              before);
        banyan_comm_destroy(*comm);
        *comm = next;
        n = banyan_comm_count(next);
        CHECK(t, n >= w->nleft && n <= w->n, "%d ranks, %d must be left", n, w->nleft);
        if (n == w->nleft && members_of(t, next, members) == 0)
            same = 1;
        else
            until_failure(t, next, x);
    }
    for (int i = 0; i < n; i++)
        CHECK(t, members[i] == w->left[i], "rank %d is world rank %d, not %d", i, members[i],
              w->left[i]);
}

static void exercise(struct test *t, struct banyan_comm *comm, uint64_t seed)
{
    for (uint64_t i = 0; i < 8; i++) {
        struct call c;

        call_random(&c, banyan_comm_count(comm), 1 << 16, model_mix(seed, i),
                    model_mix(seed + i, (uint64_t)t->rank));
        call_check(t, comm, &c);
    }
}

static void one_wave(struct test *t, struct banyan_comm **comm, struct wave *w, uint32_t *x)
{
    struct banyan_comm *ref;
    int dies = w->victims >> t->rank & 1;

    CHECK_OK(t, banyan_comm_split(*comm, dies, 0, &ref));
    case_meet(t, *comm);
    if (dies)
        die_in(w->die_us);
    until_failure(t, *comm, x);
    shrink_to(t, comm, w, x);
    CHECK(t, !dies, "a victim is a survivor");
    exercise(t, *comm, t->seed + w->victims);
    call_same_bits(t, *comm, ref);
    CHECK_OK(t, banyan_comm_finalize(ref));
}

/* arg: how many ranks are to be left. */
static int shrink_waves(struct test *t)
{
    uint32_t *x = case_malloc(WORK_ELEMS * sizeof *x);
    struct wave w = { .n = t->n };
    uint64_t s = t->seed;
    int least = atoi(t->arg);

    memset(x, 0, WORK_ELEMS * sizeof *x);
    for (int r = 0; r < t->n; r++)
        w.alive[r] = r;
    while (w.n > least) {
        draw_wave(t, &w, &s);
        one_wave(t, &t->comm, &w, x);
        memcpy(w.alive, w.left, sizeof w.left);
        w.n = w.nleft;
    }
    free(x);
    return 0; /* the worker finalizes t->comm: without a failure */
}

/* Nobody died: as a dup; and who still computes on the old one is told. */
static int shrink_whole(struct test *t)
{
    struct banyan_comm *next;
    uint32_t x = 1;
    int rc = 0;

    while (t->rank && rc == 0)
        rc = banyan_allreduce(&x, &x, 1, BANYAN_U32, BANYAN_MAX, t->comm, NULL);
    CHECK(t, rc == (t->rank ? -BANYAN_EABORTED : 0), "returned %d", rc);
    CHECK_OK(t, banyan_comm_shrink(t->comm, &next));
    CHECK(t, banyan_comm_failed(t->comm, NULL, 0) == 0, "nobody is dead");
    CHECK(t, banyan_comm_count(next) == t->n && banyan_comm_rank(next) == t->rank,
          "rank %d of %d", banyan_comm_rank(next), banyan_comm_count(next));
    banyan_comm_destroy(t->comm);
    t->comm = next;
    exercise(t, next, t->seed);
    return 0;
}

/* Many communicators are given up one after the other, and then a rank dies: it is missed as
 * the first would have been. arg: how many. */
static int shrink_often(struct test *t)
{
    int times = atoi(t->arg), last = t->rank == t->n - 1;
    struct banyan_comm *next;
    uint32_t x = 1;

    for (int i = 0; i <= times; i++) {
        if (i == times && last)
            die_in(0);
        if (i == times) {
            CHECK_RC(t, -BANYAN_ERANKDEAD,
                     banyan_allreduce(&x, &x, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL));
            CHECK_HAS(t, banyan_last_error(), "rank");
        }
        CHECK_OK(t, banyan_comm_shrink(t->comm, &next));
        CHECK(t, banyan_comm_count(next) == t->n - (i == times), "%d ranks",
              banyan_comm_count(next));
        banyan_comm_destroy(t->comm);
        t->comm = next;
    }
    exercise(t, next, t->seed);
    return 0;
}

/* ---- several communicators ---- */

#define GROUPS 6

/* GROUPS sets of ranks by the seed, two ranks at least, nobody in all of them but by chance. */
static void draw_groups(const struct test *t, uint32_t *groups)
{
    uint64_t s = t->seed;

    for (int g = 0; g < GROUPS; g++)
        do
            groups[g] = (uint32_t)bny_rng_below(&s, (uint64_t)1 << t->n);
        while (__builtin_popcount(groups[g]) < 2);
}

/* This rank's communicators, in an order of its own. Returns how many; which: of the groups. */
static int make_groups(struct test *t, const uint32_t *groups, struct banyan_comm **comms,
                       int *which)
{
    uint64_t s = model_mix(t->seed, (uint64_t)t->rank + 1);
    int mine = 0;

    for (int g = 0; g < GROUPS; g++) {
        int ranks[MP_RANKS_MAX], n = 0, at;

        if (!(groups[g] >> t->rank & 1))
            continue;
        for (int r = 0; r < t->n; r++)
            if (groups[g] >> r & 1)
                ranks[n++] = r;
        at = (int)bny_rng_below(&s, (uint64_t)mine + 1);
        memmove(&comms[at + 1], &comms[at], (size_t)(mine - at) * sizeof *comms);
        memmove(&which[at + 1], &which[at], (size_t)(mine - at) * sizeof *which);
        which[at] = g;
        mine++;
        CHECK_OK(t, banyan_comm_create_group(t->comm, ranks, n, g, &comms[at]));
    }
    return mine;
}

/* The members as numbered in the parent; 0 where a victim was still alive as they agreed. */
static uint32_t members_left(struct test *t, struct banyan_comm *comm)
{
    int32_t members[MP_RANKS_MAX] = { 0 };
    uint32_t mask = 0;

    if (members_of(t, comm, members) != 0)
        return 0;
    for (int i = 0; i < banyan_comm_count(comm); i++)
        mask |= 1u << members[i];
    return mask;
}

/* Shrinks all that are not yet what they have to be, until all are. */
static void shrink_groups(struct test *t, const uint32_t *groups, struct banyan_comm **comms,
                          const int *which, int mine, uint32_t victims)
{
    struct banyan_comm *next[GROUPS];

    CHECK_OK(t, banyan_comm_shrink_many(comms, mine, next));
    for (int i = 0; i < mine; i++) {
        banyan_comm_destroy(comms[i]);
        comms[i] = next[i];
    }
    /* By number, as all do: one is an operation, and a shrink where that found a late death. */
    for (int g = 0; g < GROUPS; g++) {
        uint32_t left = groups[g] & ~victims;

        for (int i = 0; i < mine; i++) {
            if (which[i] != g)
                continue;
            for (int round = 0; members_left(t, comms[i]) != left; round++) {
                CHECK(t, round < t->n, "group %x is not %x", groups[g], left);
                CHECK_OK(t, banyan_comm_shrink_many(&comms[i], 1, &next[0]));
                banyan_comm_destroy(comms[i]);
                comms[i] = next[0];
            }
            exercise(t, comms[i], t->seed + (uint64_t)g);
        }
    }
}

/* Each rank is in some of several communicators and shrinks them in its own order. arg: how
 * many die. */
static int shrink_crosswise(struct test *t)
{
    struct banyan_comm *comms[GROUPS + 1], *none;
    int which[GROUPS + 1], mine, deaths = atoi(t->arg);
    uint32_t groups[GROUPS], victims = 0;
    uint64_t s = t->seed + 1;

    draw_groups(t, groups);
    while (__builtin_popcount(victims) < deaths)
        victims |= 1u << bny_rng_below(&s, (uint64_t)t->n);
    mine = make_groups(t, groups, comms, which);
    mp_shared_barrier(t->shared, t->n);
    if (victims >> t->rank & 1)
        die_in(bny_rng_below(&s, 3000));
    while (victims >> t->rank & 1)
        usleep(1000);
    usleep((unsigned)model_mix(t->seed, (uint64_t)t->rank) % 5000);
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_shrink_many(comms, 0, &none));
    if (mine > 0)
        shrink_groups(t, groups, comms, which, mine, victims);
    mp_shared_barrier(t->shared, t->n - deaths); /* who ends without a farewell is dead */
    for (int i = 0; i < mine; i++)
        banyan_comm_destroy(comms[i]);
    if (deaths == 0) /* the parent, which nobody shrank, works on */
        exercise(t, t->comm, t->seed);
    mp_shared_barrier(t->shared, t->n - deaths);
    return 0;
}

/* Two ranks shrink two communicators one after the other, each in another order: neither can
 * come, and both hear who did not. */
static int shrink_crossed(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *pair[2], *next[2], *twice[2];

    cfg.op_timeout_s = 0.7;
    CHECK_OK(t, case_init(t, &cfg, &t->comm));
    for (int i = 0; i < 2; i++)
        CHECK_OK(t, banyan_comm_dup(t->comm, &pair[i]));
    twice[0] = twice[1] = pair[0];
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_shrink_many(twice, 2, next));
    CHECK_OK(t, banyan_barrier(pair[0], NULL));
    CHECK_RC(t, -BANYAN_ETIMEDOUT, banyan_comm_shrink(pair[t->rank], &next[0]));
    CHECK_HAS(t, banyan_last_error(), t->rank ? "rank 0 did not call" : "rank 1 did not call");
    for (int i = 0; i < 2; i++)
        banyan_comm_destroy(pair[i]);
    return 0;
}

/* ---- who lives, and does not come ---- */

#define SLEEP_S 10

static void sleep_soundly(void)
{
    pid_t me = getpid(), child = fork();
    int status;

    if (child == 0) {
        kill(me, SIGSTOP);
        sleep(SLEEP_S);
        kill(me, SIGCONT);
        _exit(0);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
}

/* Of those who are left out: each hears that it is. */
static void wakes_up(struct test *t)
{
    uint32_t x = 1;
    struct banyan_comm *next;
    int rc;

    sleep_soundly();
    rc = banyan_allreduce(&x, &x, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL);
    CHECK(t, rc == 0 || rc == -BANYAN_ETIMEDOUT || rc == -BANYAN_EABORTED, "returned %d (%s)",
          rc, banyan_last_error());
    rc = banyan_comm_shrink(t->comm, &next);
    CHECK(t, rc == -BANYAN_ERANKDEAD, "shrink returned %d (%s)", rc, banyan_last_error());
    CHECK_HAS(t, banyan_last_error(), "was left out");
    rc = banyan_barrier(t->comm, NULL);
    CHECK(t, rc == -BANYAN_ETIMEDOUT || rc == -BANYAN_EABORTED, "barrier returned %d", rc);
}

/* Ranks are stopped (a digit of arg each), an operation misses its deadline, and those who are
 * left shrink: without the stopped, where they are most; else with nobody. */
static int shrink_sleepers(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    int32_t members[MP_RANKS_MAX] = { 0 };
    struct banyan_comm *next;
    int blamed = -1, first = t->arg[0] - '0', asleep = (int)strlen(t->arg), rc;
    int goes_on = 2 * asleep < t->n || (2 * asleep == t->n && first != 0);
    uint32_t x = 1;

    cfg.op_timeout_s = 2.5;
    CHECK_OK(t, case_init(t, &cfg, &t->comm));
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    mp_shared_barrier(t->shared, t->n);
    if (strchr(t->arg, '0' + t->rank)) {
        if (goes_on)
            wakes_up(t);
        else
            sleep_soundly();
        mp_shared_barrier(t->shared, t->n);
        return 0;
    }
    rc = banyan_allreduce(&x, &x, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL);
    CHECK(t, rc == -BANYAN_ETIMEDOUT, "returned %d (%s)", rc, banyan_last_error());
    banyan_async_error(t->comm, &blamed, NULL, 0);
    CHECK(t, blamed == first, "rank %d is blamed", blamed);
    rc = banyan_comm_shrink(t->comm, &next);
    CHECK(t, rc == (goes_on ? 0 : -BANYAN_ETIMEDOUT), "shrink returned %d (%s)", rc,
          banyan_last_error());
    if (goes_on) {
        CHECK(t, banyan_comm_count(next) == t->n - asleep, "%d members",
              banyan_comm_count(next));
        CHECK_OK(t, members_of(t, next, members));
        for (int r = 0, k = 0; r < t->n; r++)
            if (!strchr(t->arg, '0' + r))
                CHECK(t, members[k++] == r, "rank %d is missing", r);
        exercise(t, next, t->seed);
    }
    mp_shared_barrier(t->shared, t->n); /* they are awake, and out */
    if (goes_on) {
        exercise(t, next, t->seed + 1);
        mp_shared_barrier(t->shared, t->n - asleep);
        banyan_comm_destroy(next);
    }
    return 0;
}

/* ---- a second death while survivors agree, shrink or grow ---- */

/* All who get as far as this in round i found the same. */
static void check_alike(struct test *t, int i, uint64_t mine)
{
    _Atomic uint64_t *all = (_Atomic uint64_t *)(void *)t->shared->blob[1];
    uint64_t theirs = 0;

    CHECK(t, i < (int)(sizeof t->shared->blob[1] / sizeof *all), "round %d", i);
    if (!atomic_compare_exchange_strong(&all[i], &theirs, mine))
        CHECK(t, theirs == mine, "round %d: %llx here, %llx at another", i,
              (unsigned long long)mine, (unsigned long long)theirs);
}

/* How many members of comm are dead, as all agree. */
static int agree_alike(struct test *t, struct banyan_comm *comm, int i)
{
    int dead[MP_RANKS_MAX], n;
    uint64_t mask = 0;

    n = banyan_comm_agree(comm, NULL, dead, MP_RANKS_MAX);
    CHECK(t, n >= 0, "banyan_comm_agree returned %d (%s)", n, banyan_strerror(n));
    for (int k = 0; k < n; k++)
        mask |= 1u << dead[k];
    check_alike(t, i, mask << 1 | 1);
    return n;
}

static void shrink_alike(struct test *t, struct banyan_comm **comm, int i)
{
    struct banyan_comm *next;

    CHECK_OK(t, banyan_comm_shrink(*comm, &next));
    check_alike(t, i, (uint64_t)banyan_comm_count(next));
    banyan_comm_destroy(*comm);
    *comm = next;
}

/* By one who does not come. */
static void grow_in_vain(struct test *t, struct banyan_comm *comm)
{
    int makes = banyan_comm_rank(comm) == 0, rc = 0;
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *next;
    struct banyan_id id;

    cfg.init_timeout_s = 0.02;
    cfg.op_timeout_s = 20;
    if (makes)
        rc = banyan_comm_grow_id(comm, &id);
    CHECK(t, rc == 0 || rc == -BANYAN_ERANKDEAD, "banyan_comm_grow_id returned %d", rc);
    rc = banyan_comm_grow(comm, makes && rc == 0 ? &id : NULL, 1, &cfg, &next);
    CHECK(t, rc == -BANYAN_ETIMEDOUT || rc == -BANYAN_ERANKDEAD || rc == -BANYAN_EINVAL,
          "banyan_comm_grow returned %d (%s)", rc, banyan_strerror(rc));
}

/* Two die, the second 0 to 100 ms behind the first, while all do nothing else than that. arg:
 * agree, shrink or grow. */
static int second_death(struct test *t)
{
    uint64_t s = t->seed, first = bny_rng_below(&s, 5000), gap = bny_rng_below(&s, 100000);
    int a = (int)bny_rng_below(&s, (uint64_t)t->n), b = a, n = t->n, i = 0;
    int32_t members[MP_RANKS_MAX] = { 0 };

    while (b == a)
        b = (int)bny_rng_below(&s, (uint64_t)t->n);
    mp_shared_barrier(t->shared, t->n);
    if (t->rank == a || t->rank == b)
        die_in(first + (t->rank == b ? gap : 0));
    while (n > t->n - 2) {
        int dead;

        if (*t->arg == 'g')
            grow_in_vain(t, t->comm);
        dead = *t->arg == 's' ? 1 : agree_alike(t, t->comm, i++);
        if (*t->arg == 'a')
            n = t->n - dead;
        else if (dead)
            shrink_alike(t, &t->comm, i++);
        if (*t->arg != 'a')
            n = banyan_comm_count(t->comm);
        usleep(*t->arg == 's' ? 1000 : 300);
    }
    CHECK(t, t->rank != a && t->rank != b, "a victim is a survivor");
    if (*t->arg == 'a')
        shrink_alike(t, &t->comm, i);
    CHECK_OK(t, members_of(t, t->comm, members));
    for (int r = 0, k = 0; r < t->n; r++)
        if (r != a && r != b)
            CHECK(t, members[k++] == r, "rank %d is missing", r);
    exercise(t, t->comm, t->seed);
    CHECK_OK(t, banyan_comm_finalize(t->comm));
    t->comm = NULL;
    return 0;
}

const struct mp_case cases_shrink[] = {
    { "shrink_waves", shrink_waves, CASE_NO_THREADS },
    { "shrink_whole", shrink_whole, 0 },
    { "shrink_often", shrink_often, CASE_NO_THREADS },
    { "shrink_crosswise", shrink_crosswise, CASE_NO_THREADS | CASE_FAILS },
    { "shrink_crossed", shrink_crossed, CASE_OWN_INIT },
    { "shrink_sleepers", shrink_sleepers, CASE_OWN_INIT | CASE_NO_THREADS | CASE_FAILS },
    { "second_death", second_death, CASE_NO_THREADS | CASE_FAILS },
    { NULL, NULL, 0 }
};
