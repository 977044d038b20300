/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks that end or sleep at random moments, one to three of them: whatever happens, those who
 * are left name the same first cause and the same dead, and can agree on what comes next. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "collectives/world/comm.h"
#include "tests/mp/case.h"
#include "tests/mp/cutter.h"

/* ---- the fault of a run ---- */

struct fault {
    char kind[16], place[16];
    int nvictims, victims[3];
    uint32_t gap_us[3]; /* behind the moment of the place */
    uint64_t s;
};

static int is_kind(const struct fault *f, const char *kind)
{
    return !strcmp(f->kind, kind);
}

static int at_place(const struct fault *f, const char *place)
{
    return !strcmp(f->place, place);
}

/* The same on all ranks, by the seed. soak.c excuses the same victims. */
static void fault_plan(const struct test *t, struct fault *f)
{
    uint32_t most = 100000;

    memset(f, 0, sizeof *f);
    CHECK(t, sscanf(t->arg, "%15s %15s", f->kind, f->place) == 2, "'%s'", t->arg);
    f->s = t->seed;
    f->nvictims = is_kind(f, "double") ? 2 : is_kind(f, "triple") ? 3 : 1;
    if (at_place(f, "init") || at_place(f, "finalize"))
        most = 20000;
    for (int i = 0; i < f->nvictims; i++) {
        int again;

        do {
            again = 0;
            f->victims[i] = (int)bny_rng_below(&f->s, (uint64_t)t->n);
            for (int k = 0; k < i; k++)
                again |= f->victims[k] == f->victims[i];
        } while (again);
        f->gap_us[i] = (uint32_t)bny_rng_below(&f->s, most);
    }
}

static int victim_number(const struct fault *f, int rank)
{
    for (int i = 0; i < f->nvictims; i++)
        if (f->victims[i] == rank)
            return i;
    return -1;
}

struct sentence { /* of one victim */
    struct test *t;
    struct fault f;
    uint32_t delay_us;
    pthread_t thread;
};

static void note_time(struct test *t)
{
    uint64_t zero = 0;

    atomic_compare_exchange_strong(&t->shared->signal_ns, &zero, bny_now_ns());
}

static void *carry_out(void *arg)
{
    struct sentence *s = arg;

    usleep(s->delay_us);
    note_time(s->t);
    if (is_kind(&s->f, "exit"))
        _exit(3);
    if (is_kind(&s->f, "abort"))
        abort();
    if (is_kind(&s->f, "stop"))
        raise(SIGSTOP); /* the harness ends it */
    raise(SIGKILL);
    return NULL;
}

static void condemn(struct sentence *s, struct test *t, const struct fault *f)
{
    int i = victim_number(f, t->rank);

    if (i < 0)
        return;
    s->t = t;
    s->f = *f;
    s->delay_us = f->gap_us[i];
    CHECK(t, pthread_create(&s->thread, NULL, carry_out, s) == 0, "a thread");
    pthread_detach(s->thread);
}

/* ---- what is done meanwhile ---- */

/* Calls until one fails; the victims' time runs from the second on. */
static int work_until(struct test *t, const struct fault *f, struct sentence *s)
{
    size_t bytes = at_place(f, "chunk") ? 16u << 20 : 64;
    unsigned char *buf = case_malloc(bytes);
    int rc = 0;

    memset(buf, 1, bytes);
    if (at_place(f, "first"))
        condemn(s, t, f);
    while (rc == 0) {
        rc = banyan_allreduce(buf, buf, bytes / 4, BANYAN_U32, BANYAN_MAX, t->comm, NULL);
        if (atomic_fetch_add(&t->shared->marker[t->rank], 1) == 1 && !at_place(f, "first"))
            condemn(s, t, f);
        if (at_place(f, "between"))
            usleep(2000 + 1000 * (unsigned)t->rank);
    }
    free(buf);
    return rc;
}

static uint64_t mask_of(const int *ranks, int n)
{
    uint64_t mask = 0;

    for (int i = 0; i < n && i < MP_RANKS_MAX; i++)
        mask |= (uint64_t)1 << ranks[i];
    return mask;
}

static uint64_t victims_mask(const struct fault *f)
{
    return is_kind(f, "stop") ? 0 : mask_of(f->victims, f->nvictims);
}

/* All survivors wrote the same into value[][which]. */
static void check_alike(struct test *t, const struct fault *f, int which, const char *what)
{
    uint64_t mine = atomic_load(&t->shared->value[t->rank][which]);

    for (int r = 0; r < t->n; r++) {
        uint64_t theirs = atomic_load(&t->shared->value[r][which]);

        CHECK(t, victim_number(f, r) >= 0 || theirs == mine, "%s: %llx here, %llx at rank %d",
              what, (unsigned long long)mine, (unsigned long long)theirs, r);
    }
}

/* Agrees: bit 8 + r is cleared by rank r. Returns the mask of the dead. */
static uint64_t agree_on(struct test *t, uint64_t *bits)
{
    int dead[MP_RANKS_MAX], n;

    *bits = ~((uint64_t)1 << (8 + t->rank));
    n = banyan_comm_agree(t->comm, bits, dead, MP_RANKS_MAX);
    CHECK(t, n >= 0, "banyan_comm_agree returned %d (%s)", n, banyan_strerror(n));
    return mask_of(dead, n);
}

static void survivors_agree(struct test *t, const struct fault *f)
{
    uint64_t end = bny_deadline_in(8 * mp_patience()), dead = 0, bits;
    int ranks[MP_RANKS_MAX];

    do { /* those who were to die later than the first have done so */
        dead = mask_of(ranks, banyan_comm_failed(t->comm, ranks, MP_RANKS_MAX));
        usleep(1000);
    } while (dead != victims_mask(f) && !bny_deadline_passed(end));
    CHECK(t, dead == victims_mask(f), "dead are %llx, not %llx", (unsigned long long)dead,
          (unsigned long long)victims_mask(f));
    if (is_kind(f, "stop")) /* it would have to wait for the sleeper */
        return;
    for (int round = 0; round < 3; round++) {
        CHECK(t, agree_on(t, &bits) == dead, "other dead");
        for (int r = 0; r < t->n; r++)
            CHECK(t, (bits >> (8 + r) & 1) == (victim_number(f, r) >= 0), "bits %llx",
                  (unsigned long long)bits);
    }
}

/* Some sleep in the middle of work, less than anybody waits. */
static void *wake_later(void *arg)
{
    struct sentence *s = arg;
    pid_t me = getpid(), child = fork();
    int status;

    if (child == 0) {
        usleep(s->delay_us);
        kill(me, SIGSTOP);
        usleep(300000);
        kill(me, SIGCONT);
        _exit(0);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return NULL;
}

static int sleep_and_wake(struct test *t, const struct fault *f)
{
    struct sentence s = { .t = t, .delay_us = f->gap_us[0] };
    uint64_t until;
    uint32_t x = 1, go_on = 1;

    if (victim_number(f, t->rank) >= 0)
        CHECK(t, pthread_create(&s.thread, NULL, wake_later, &s) == 0, "a thread");
    until = bny_deadline_in(0.6);
    while (go_on) {
        x = 1;
        CHECK_OK(t, banyan_allreduce(&x, &x, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL));
        CHECK(t, x == (uint32_t)t->n, "%u ranks", x);
        go_on = !bny_deadline_passed(until);
        CHECK_OK(t, banyan_allreduce(&go_on, &go_on, 1, BANYAN_U32, BANYAN_MAX, t->comm, NULL));
    }
    if (victim_number(f, t->rank) >= 0)
        pthread_join(s.thread, NULL);
    CHECK(t, banyan_comm_failed(t->comm, NULL, 0) == 0, "somebody is dead");
    CHECK_OK(t, banyan_comm_finalize(t->comm));
    t->comm = NULL;
    return 0;
}

struct vandal {
    struct test *t;
    struct bny_world *world;
    uint64_t s;
    int data, control; /* connections that were reset */
    atomic_int stop;
    pthread_t thread;
};

static void *vandal_main(void *arg)
{
    struct vandal *v = arg;
    unsigned data = (unsigned)bny_rng_below(&v->s, 100), control = data;

    while (!atomic_load(&v->stop)) {
        usleep((useconds_t)bny_rng_below(&v->s, 20000));
        if (bny_rng_below(&v->s, 4))
            v->data += cutter_data(v->world, data++);
        else
            v->control += cutter_control(v->world, control++);
    }
    return NULL;
}

/* Connections of one rank are reset in the middle of work, of data and of control: it goes on,
 * and nobody is to blame. */
static int resets_at_one(struct test *t, const struct fault *f)
{
    struct vandal v = { .t = t, .world = t->comm->world, .s = f->s };
    size_t n = at_place(f, "chunk") ? 1u << 20 : 16;
    uint32_t *x = case_malloc(n * sizeof *x), go_on = 1;
    struct banyan_stats stats = { .size = sizeof stats };
    int is_vandal = victim_number(f, t->rank) >= 0;
    uint64_t until, sums[2];

    if (!at_place(f, "first"))
        CHECK_OK(t, banyan_barrier(t->comm, NULL));
    if (is_vandal)
        CHECK(t, pthread_create(&v.thread, NULL, vandal_main, &v) == 0, "a thread");
    until = bny_deadline_in(0.6);
    for (uint32_t i = 0; go_on; i++) {
        for (size_t k = 0; k < n; k++)
            x[k] = i + (uint32_t)k;
        CHECK_OK(t, banyan_allreduce(x, x, n, BANYAN_U32, BANYAN_SUM, t->comm, NULL));
        for (size_t k = 0; k < n; k++)
            CHECK(t, x[k] == (i + (uint32_t)k) * (uint32_t)t->n, "%u at %zu", x[k], k);
        if (at_place(f, "between"))
            usleep(2000 + 1000 * (unsigned)t->rank);
        go_on = !bny_deadline_passed(until);
        CHECK_OK(t, banyan_allreduce(&go_on, &go_on, 1, BANYAN_U32, BANYAN_MAX, t->comm, NULL));
    }
    if (is_vandal) {
        atomic_store(&v.stop, 1);
        pthread_join(v.thread, NULL);
        CHECK(t, v.control > 0, "no control link was reset");
        CHECK(t, v.data > 0 || strcmp(t->transport, "tcp") != 0, "no connection was reset");
    }
    CHECK_OK(t, banyan_comm_stats(t->comm, &stats));
    sums[0] = (uint64_t)v.data;
    sums[1] = stats.replaced;
    CHECK_OK(t, banyan_allreduce(sums, sums, 2, BANYAN_U64, BANYAN_SUM, t->comm, NULL));
    CHECK(t, sums[0] == 0 || sums[1] > 0, "nothing was replaced");
    if (is_vandal)
        printf("note: %d resets of data, %d of control, %llu replaced by all\n", v.data,
               v.control, (unsigned long long)sums[1]);
    CHECK_RC(t, 0, banyan_async_error(t->comm, NULL, NULL, 0));
    CHECK(t, banyan_comm_failed(t->comm, NULL, 0) == 0, "somebody is dead");
    CHECK_OK(t, banyan_comm_finalize(t->comm));
    t->comm = NULL;
    free(x);
    return 0;
}

/* Nobody hangs: that is all that init and finalize promise while ranks end in them. */
static int fault_at_the_edge(struct test *t, const struct fault *f, struct sentence *s)
{
    struct banyan_config cfg = case_config(t);
    int rc;

    cfg.init_timeout_s = 10 * mp_patience();
    cfg.op_timeout_s = 10 * mp_patience();
    mp_shared_barrier(t->shared, t->n);
    if (at_place(f, "init"))
        condemn(s, t, f);
    rc = case_init(t, &cfg, &t->comm);
    if (rc == 0 && at_place(f, "init"))
        rc = work_until(t, f, s);
    if (at_place(f, "init")) {
        CHECK(t, rc != 0, "init and work with a dead rank");
        if (t->comm)
            banyan_comm_destroy(t->comm);
    } else {
        CHECK_OK(t, rc);
        CHECK_OK(t, banyan_barrier(t->comm, NULL));
        mp_shared_barrier(t->shared, t->n);
        condemn(s, t, f);
        usleep((unsigned)bny_rng_below(&s->f.s, 15000));
        banyan_comm_finalize(t->comm);
        if (victim_number(f, t->rank) >= 0)
            usleep(30000);
    }
    t->comm = NULL;
    return 0;
}

/* value[r]: 0 code, 1 rank blamed, 2 its words, 3 ns from the first end to the error. arg: the
 * fault (kill, double, triple, exit, abort, stop, stopcont, reset) and the place (init, first,
 * chunk, between, finalize). */
static int survive(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct sentence s = { 0 };
    struct fault f;
    char text[512] = "";
    int rc, blamed = -2;

    fault_plan(t, &f);
    s.f = f;
    if (at_place(&f, "init") || at_place(&f, "finalize"))
        return fault_at_the_edge(t, &f, &s);
    cfg.op_timeout_s = (is_kind(&f, "stop") ? 2 : 30) * mp_patience();
    CHECK_OK(t, case_init(t, &cfg, &t->comm));
    if (is_kind(&f, "stopcont"))
        return sleep_and_wake(t, &f);
    if (is_kind(&f, "reset"))
        return resets_at_one(t, &f);
    rc = work_until(t, &f, &s);
    atomic_store(&t->shared->value[t->rank][3],
                 bny_now_ns() - atomic_load(&t->shared->signal_ns));
    CHECK(t, rc == (is_kind(&f, "stop") ? -BANYAN_ETIMEDOUT : -BANYAN_ERANKDEAD), "returned %d",
          rc);
    CHECK_RC(t, rc, banyan_async_error(t->comm, &blamed, text, sizeof text));
    if (is_kind(&f, "stop"))
        CHECK_HAS(t, text, "does not answer");
    CHECK(t, victim_number(&f, blamed) >= 0, "rank %d is blamed: %s", blamed, text);
    atomic_store(&t->shared->value[t->rank][0], (uint64_t)-rc);
    atomic_store(&t->shared->value[t->rank][1], (uint64_t)blamed);
    atomic_store(&t->shared->value[t->rank][2], case_hash(text, strlen(text)));
    survivors_agree(t, &f);
    mp_shared_barrier(t->shared, t->n - f.nvictims);
    check_alike(t, &f, 0, "codes");
    check_alike(t, &f, 1, "ranks blamed");
    check_alike(t, &f, 2, "words");
    mp_shared_barrier(t->shared, t->n - f.nvictims);
    banyan_comm_destroy(t->comm);
    t->comm = NULL;
    return 0;
}

/* ---- revoke, agree ---- */

/* One rank gives up; the others, who wait for it, come out, and all agree. */
static int revoked(struct test *t)
{
    uint64_t bits = ~(uint64_t)0;
    uint32_t x = 1;
    int rc;

    CHECK(t, banyan_comm_failed(t->comm, NULL, 0) == 0, "nobody is dead");
    CHECK(t, banyan_comm_agree(t->comm, NULL, NULL, 0) == 0, "%s", banyan_last_error());
    if (t->rank == t->n - 1)
        CHECK_OK(t, banyan_comm_revoke(t->comm, "its loss is no number"));
    do
        rc = banyan_allreduce(&x, &x, 1, BANYAN_U32, BANYAN_MAX, t->comm, NULL);
    while (rc == 0);
    CHECK_RC(t, -BANYAN_EABORTED, rc);
    CHECK_HAS(t, banyan_last_error(), "no number");
    for (int i = 0; i < 5; i++) {
        bits = t->rank == 0 ? ~(uint64_t)0 << i : ~(uint64_t)0;
        CHECK(t, banyan_comm_agree(t->comm, &bits, NULL, 0) == 0, "%s", banyan_last_error());
        CHECK(t, bits == ~(uint64_t)0 << i, "bits %llx", (unsigned long long)bits);
    }
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_agree(t->comm, &bits, NULL, 3));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_failed(t->comm, NULL, -1));
    return 0;
}

/* A member that lives and does not come: an error at all, which names it; and at itself. Two
 * halves agree beside each other meanwhile. */
static int agree_without_one(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *half;
    uint64_t bits = ~(uint64_t)0;
    char name[32];

    cfg.op_timeout_s = 1.5;
    CHECK_OK(t, case_init(t, &cfg, &t->comm));
    CHECK_OK(t, banyan_comm_split(t->comm, t->rank % 2, 0, &half));
    for (int i = 0; i < 20; i++) {
        bits = ~((uint64_t)1 << t->rank);
        CHECK(t, banyan_comm_agree(half, &bits, NULL, 0) == 0, "%s", banyan_last_error());
        for (int r = 0; r < t->n; r++)
            CHECK(t, (bits >> r & 1) == (r % 2 != t->rank % 2), "bits %llx",
                  (unsigned long long)bits);
    }
    if (t->rank == 1)
        usleep(4500000);
    CHECK_RC(t, -BANYAN_ETIMEDOUT, banyan_comm_agree(t->comm, &bits, NULL, 0));
    snprintf(name, sizeof name, "rank %d", 1);
    CHECK_HAS(t, banyan_last_error(), name);
    CHECK(t, banyan_comm_agree(t->comm, &bits, NULL, 0) == 0, "%s", banyan_last_error());
    CHECK_OK(t, banyan_comm_finalize(half));
    CHECK_OK(t, banyan_comm_finalize(t->comm));
    t->comm = NULL;
    return 0;
}

/* A rank that only computes is no obstacle: others learn of a death at once, and what they
 * decide includes it. value[r][3]: ns to the error. */
static int computes_meanwhile(struct test *t)
{
    uint64_t end = bny_deadline_in(1.5);
    volatile double x = 1;
    int blamed = -2, rc = 0, ranks[2];
    uint32_t y = 0;

    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    mp_shared_barrier(t->shared, t->n);
    if (t->rank == t->n - 1) {
        note_time(t);
        raise(SIGKILL);
    }
    while (t->rank == 0 && !bny_deadline_passed(end))
        x = x * 1.000001;
    while (rc == 0)
        rc = banyan_allreduce(&y, &y, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL);
    atomic_store(&t->shared->value[t->rank][3],
                 bny_now_ns() - atomic_load(&t->shared->signal_ns));
    CHECK_RC(t, -BANYAN_ERANKDEAD, rc);
    CHECK_RC(t, rc, banyan_async_error(t->comm, &blamed, NULL, 0));
    CHECK(t, blamed == t->n - 1, "rank %d is blamed", blamed);
    CHECK(t, banyan_comm_failed(t->comm, ranks, 2) == 1 && ranks[0] == t->n - 1, "the dead");
    mp_shared_barrier(t->shared, t->n - 1);
    return 0;
}

/* One rank computes, all others wait, first for each other: the one that computes is to blame,
 * by name. */
static int late_one_is_blamed(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    int late = (int)(t->seed % (uint64_t)t->n), blamed = -2;
    uint64_t end;
    size_t bytes = 1 << 20;
    unsigned char *buf = case_malloc(bytes);
    char text[512], name[48];

    cfg.op_timeout_s = 0.7;
    memset(buf, 1, bytes);
    CHECK_OK(t, case_init(t, &cfg, &t->comm));
    for (int i = 0; i < 5; i++)
        CHECK_OK(t, banyan_allreduce(buf, buf, bytes, BANYAN_U8, BANYAN_MAX, t->comm, NULL));
    end = bny_deadline_in(1.5);
    while (t->rank == late && !bny_deadline_passed(end))
        ;
    CHECK_RC(t, -BANYAN_ETIMEDOUT,
             banyan_allreduce(buf, buf, bytes, BANYAN_U8, BANYAN_MAX, t->comm, NULL));
    CHECK_RC(t, -BANYAN_ETIMEDOUT, banyan_async_error(t->comm, &blamed, text, sizeof text));
    CHECK(t, blamed == late, "rank %d is blamed: %s", blamed, text);
    snprintf(name, sizeof name, "rank %d (pid ", late);
    CHECK_HAS(t, text, name);
    CHECK_HAS(t, text, "has not called it");
    mp_shared_barrier(t->shared, t->n);
    free(buf);
    return 0;
}

const struct mp_case cases_survive[] = {
    { "survive", survive, CASE_OWN_INIT | CASE_NO_THREADS },
    { "revoke", revoked, CASE_FAILS },
    { "late_one_is_blamed", late_one_is_blamed, CASE_OWN_INIT | CASE_FAILS | CASE_NO_THREADS },
    { "agree_without_one", agree_without_one, CASE_OWN_INIT },
    { "computes_meanwhile", computes_meanwhile, CASE_FAILS | CASE_NO_THREADS },
    { 0 },
};
