/* SPDX-License-Identifier: BSD-3-Clause */
/* Newcomers join a job that runs, and the same again after every death: a grown communicator
 * gives the bits of a fresh one of as many ranks; where something is wrong with a newcomer, or
 * somebody dies meanwhile, all members get the same error and work on. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "collectives/world/comm.h"
#include "tests/mp/call.h"

#define ELEMS (1u << 15)

/* ---- ids between processes, numbered from 1 ---- */

static void publish(struct test *t, uint32_t number, const struct banyan_id *id)
{
    memcpy(t->shared->blob[0] + (size_t)(number % 100) * sizeof *id, id, sizeof *id);
    atomic_store(&t->shared->value[0][0], number);
}

static struct banyan_id await(struct test *t, uint32_t number)
{
    struct banyan_id id;

    while (atomic_load(&t->shared->value[0][0]) < number)
        usleep(200);
    memcpy(&id, t->shared->blob[0] + (size_t)(number % 100) * sizeof id, sizeof id);
    return id;
}

/* The ranks below n make a communicator, the number-th id being theirs. */
static void begin(struct test *t, uint32_t number, int n, int rank, struct banyan_comm **comm)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_id id;

    if (rank == 0) {
        CHECK_OK(t, banyan_id_create(&id));
        publish(t, number, &id);
    } else {
        id = await(t, number);
    }
    CHECK_OK(t, banyan_comm_init(comm, &id, n, rank, &cfg));
}

static int grow(struct test *t, struct banyan_comm *comm, uint32_t number, int newcomers,
                const struct banyan_config *cfg, struct banyan_comm **next)
{
    int makes = (int)number % banyan_comm_count(comm) == banyan_comm_rank(comm);
    struct banyan_id id;

    if (makes) {
        CHECK_OK(t, banyan_comm_grow_id(comm, &id));
        publish(t, number, &id);
    }
    return banyan_comm_grow(comm, makes ? &id : NULL, newcomers, cfg, next);
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

/* Sums until one fails, for the death of rank `dead`. All give the same number, that of this
 * life: what an earlier one left on its way would show. */
static void until_failure(struct test *t, struct banyan_comm *comm, uint32_t life, int dead)
{
    uint32_t *x = case_malloc(ELEMS * sizeof *x), n = (uint32_t)banyan_comm_count(comm);
    int rc = 0, blamed = -2;

    for (uint32_t i = 0; rc == 0; i++) {
        size_t count = i % 3 ? 16 : ELEMS;

        for (size_t k = 0; k < count; k++)
            x[k] = life;
        rc = banyan_allreduce(x, x, count, BANYAN_U32, BANYAN_SUM, comm, NULL);
        for (size_t k = 0; rc == 0 && k < count; k++)
            CHECK(t, x[k] == n * life, "%u at %zu in life %u of %u ranks", x[k], k, life, n);
    }
    CHECK_RC(t, -BANYAN_ERANKDEAD, rc);
    CHECK_RC(t, rc, banyan_async_error(comm, &blamed, NULL, 0));
    CHECK(t, blamed == dead, "rank %d is blamed, not %d", blamed, dead);
    free(x);
}

/* What a call returned and said: calls after it may say something else. */
struct said {
    char text[512];
};

static struct said said(int rc)
{
    struct said s;

    snprintf(s.text, sizeof s.text, "%d %s", rc, rc ? banyan_last_error() : "");
    return s;
}

/* All members got the same, and say the same. */
static void check_same(struct test *t, struct banyan_comm *comm, const struct said *s)
{
    const char *text = s->text;

    case_check_agree(t, comm, case_hash(text, strlen(text)), text);
}

/* ---- it works ---- */

static int grow_steps(struct test *t)
{
    int size[3] = { t->n / 2, t->n / 2 + 1, t->n }, rank = t->rank;
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm = NULL, *next, *fresh;

    if (rank < size[0])
        begin(t, 1, size[0], rank, &comm);
    for (int k = 1; k < 3; k++) {
        uint32_t number = (uint32_t)k + 1;

        if (rank >= size[k])
            continue;
        if (rank < size[k - 1]) {
            exercise(t, comm, t->seed + number);
            CHECK_OK(t, grow(t, comm, number, size[k] - size[k - 1], &cfg, &next));
            CHECK(t, banyan_comm_rank(next) == banyan_comm_rank(comm), "rank %d was %d",
                  banyan_comm_rank(next), banyan_comm_rank(comm));
            exercise(t, next, t->seed);
            exercise(t, comm, t->seed); /* the old one works on */
            CHECK_OK(t, banyan_comm_finalize(comm));
        } else {
            struct banyan_id id = await(t, number);

            CHECK_OK(t, banyan_comm_join(&next, &id, &cfg));
            CHECK(t, banyan_comm_rank(next) >= size[k - 1], "rank %d", banyan_comm_rank(next));
            exercise(t, next, t->seed);
        }
        CHECK(t, banyan_comm_count(next) == size[k], "%d ranks", banyan_comm_count(next));
        comm = next;
    }
    begin(t, 9, t->n, banyan_comm_rank(comm), &fresh);
    call_same_bits(t, comm, fresh);
    CHECK_OK(t, banyan_comm_finalize(fresh));
    CHECK_OK(t, banyan_comm_finalize(comm));
    return 0;
}

/* ---- it is refused ---- */

enum refusal { OTHER_CODEC, OTHER_TOPOLOGY, STRANGER, OTHER_JOB, RIGHT, REFUSALS };

static const int member_gets[REFUSALS] = { -BANYAN_ECONFIG, -BANYAN_ECONFIG, -BANYAN_ETIMEDOUT,
                                           -BANYAN_ETIMEDOUT, 0 };
static const int newcomer_gets[REFUSALS] = { -BANYAN_ECONFIG, -BANYAN_ECONFIG, -BANYAN_EPROTO,
                                             -BANYAN_EPROTO, 0 };
static const char *const says[REFUSALS] = { "codec=int8", "topology=", "0 of 1 newcomers",
                                            "0 of 1 newcomers", "" };

static void refused_newcomer(struct test *t, enum refusal k, struct banyan_comm **out)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_id id = await(t, k + 2u);

    if (k == OTHER_CODEC)
        cfg.codec = "int8";
    if (k == OTHER_TOPOLOGY)
        cfg.topology = "torus:2x2";
    if (k == STRANGER)
        id.bytes[30] ^= 1; /* in the secret */
    if (k == OTHER_JOB)
        id.bytes[60] ^= 1;
    CHECK_RC(t, newcomer_gets[k], banyan_comm_join(out, &id, &cfg));
    if (k == RIGHT)
        return;
    CHECK(t, !*out, "a communicator");
    while (atomic_load(&t->shared->marker[1]) < k + 1u)
        usleep(500);
    id = await(t, k + 2u);
    CHECK_RC(t, -BANYAN_ERANKDEAD, banyan_comm_join(out, &id, &cfg));
    CHECK_HAS(t, banyan_last_error(), "nobody listens");
    atomic_store(&t->shared->marker[2], k + 1u);
}

static void refused_member(struct test *t, enum refusal k, struct banyan_comm *comm,
                           struct banyan_comm **next)
{
    struct banyan_config cfg = case_config(t);
    struct said s;

    while (atomic_load(&t->shared->marker[2]) < k)
        usleep(500);
    if (member_gets[k] == -BANYAN_ETIMEDOUT)
        cfg.init_timeout_s = 2;
    CHECK_RC(t, member_gets[k], grow(t, comm, k + 2u, 1, &cfg, next));
    if (k == RIGHT)
        return;
    s = said(member_gets[k]);
    CHECK(t, !*next, "a communicator");
    CHECK_HAS(t, s.text, says[k]);
    check_same(t, comm, &s);
    atomic_store(&t->shared->marker[1], k + 1u);
}

/* What the members themselves do wrong. */
static void wrong_calls(struct test *t, struct banyan_comm *comm)
{
    int rank = banyan_comm_rank(comm);
    struct banyan_id id, used = await(t, OTHER_CODEC + 2u);
    struct banyan_comm *next;

    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_grow(comm, rank ? NULL : &used, 1, NULL, &next));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_grow(comm, NULL, 1, NULL, &next));
    CHECK_OK(t, banyan_comm_grow_id(comm, &id));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_grow(comm, &id, 1, NULL, &next));
    CHECK_HAS(t, banyan_last_error(), "3 ranks gave one");
    CHECK_OK(t, banyan_comm_grow_id(comm, &id)); /* which nobody uses: ends with comm */
    CHECK_RC(t, -BANYAN_EMISMATCH,
             banyan_comm_grow(comm, rank ? NULL : &id, 1 + (rank == 2), NULL, &next));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_grow(comm, NULL, 0, NULL, &next));
    CHECK_OK(t, banyan_comm_grow_id(comm, &id));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_join(&next, NULL, NULL));
    case_check_works(t, comm);
}

static int grow_refused(struct test *t)
{
    struct banyan_comm *comm, *next = NULL;
    int newcomer = t->rank == t->n - 1;

    if (!newcomer)
        begin(t, 1, t->n - 1, t->rank, &comm);
    for (enum refusal k = OTHER_CODEC; k < REFUSALS; k++) {
        if (newcomer)
            refused_newcomer(t, k, &next);
        else
            refused_member(t, k, comm, &next);
    }
    exercise(t, next, t->seed);
    if (!newcomer) {
        wrong_calls(t, comm);
        CHECK_OK(t, banyan_comm_finalize(comm));
    }
    CHECK_OK(t, banyan_comm_finalize(next));
    return 0;
}

/* ---- deaths ---- */

static void on_alarm(int signo)
{
    kill(getpid(), signo == SIGALRM ? SIGKILL : signo);
}

static void die_in(uint64_t us)
{
    struct itimerval at = { .it_value = { .tv_usec = (suseconds_t)(us ? us : 1) } };

    signal(SIGALRM, on_alarm);
    setitimer(ITIMER_REAL, &at, NULL);
}

/* The last rank's place, where process follows on process: each joins, and is killed so many
 * microseconds later. */
static void one_life(struct test *t, uint32_t number, uint64_t us, int joined_first)
{
    pid_t parent = getpid(), pid = fork();
    int status;

    if (pid == 0) {
        struct banyan_config cfg = case_config(t);
        struct banyan_id id;
        struct banyan_comm *comm;
        int rc;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(9);
        id = await(t, number);
        if (!joined_first)
            die_in(us);
        rc = banyan_comm_join(&comm, &id, &cfg);
        if (rc)
            _exit(3); /* too late in the members' eyes */
        if (joined_first)
            die_in(us);
        until_failure(t, comm, number, -2); /* its own */
        _exit(4);
    }
    CHECK(t, waitpid(pid, &status, 0) == pid, "waitpid");
    CHECK(t,
          (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
              (!joined_first && WIFEXITED(status) && WEXITSTATUS(status) == 3),
          "the newcomer ended with %x", status);
}

/* A growth by one who may be killed meanwhile: 0, or an error that is the same at all, and the
 * communicator works on. */
static int grow_or_not(struct test *t, struct banyan_comm *comm, uint32_t number,
                       struct banyan_comm **next)
{
    struct banyan_config cfg = case_config(t);
    struct said what;
    int rc;

    cfg.init_timeout_s = 1;
    rc = grow(t, comm, number, 1, &cfg, next);
    what = said(rc);
    CHECK(t, rc == 0 || rc == -BANYAN_ERANKDEAD || rc == -BANYAN_ETIMEDOUT, "%d: %s", rc,
          banyan_last_error());
    check_same(t, comm, &what);
    return rc;
}

/* It joins, works, is killed, in every fourth life while it joins; the others shrink; again.
 * arg: how often. value[0][1], [2]: how many were killed in a growth, and of those, before they
 * were in. */
static int grow_again(struct test *t)
{
    int lives = atoi(t->arg), newcomer = t->rank == t->n - 1;
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm, *next;
    uint64_t s = t->seed;

    if (!newcomer)
        begin(t, 1, t->n - 1, t->rank, &comm);
    for (uint32_t k = 2; k < 2u + (uint32_t)lives; k++) {
        int in_growth = k % 4 == 0, rc;
        uint64_t us = bny_rng_below(&s, in_growth ? 12000 : 20000);

        if (newcomer) {
            one_life(t, k, us, !in_growth);
            continue;
        }
        if (in_growth) {
            rc = grow_or_not(t, comm, k, &next);
            atomic_fetch_add(&t->shared->value[t->rank][1], 1);
            atomic_fetch_add(&t->shared->value[t->rank][2], rc != 0);
            if (rc)
                continue;
        } else {
            CHECK_OK(t, grow(t, comm, k, 1, &cfg, &next));
        }
        CHECK_OK(t, banyan_comm_finalize(comm));
        until_failure(t, next, k, t->n - 1);
        CHECK_OK(t, banyan_comm_shrink(next, &comm));
        CHECK(t, banyan_comm_count(comm) == t->n - 1, "%d ranks", banyan_comm_count(comm));
        banyan_comm_destroy(next);
        case_check_works(t, comm);
    }
    if (!newcomer)
        CHECK_OK(t, banyan_comm_finalize(comm));
    if (t->rank == 0)
        printf("note: %d lives, %d ended while they joined, %d of these were not in\n", lives,
               (int)atomic_load(&t->shared->value[0][1]),
               (int)atomic_load(&t->shared->value[0][2]));
    return 0;
}

/* The newcomer is killed at any moment of joining. arg: how often. */
static int grow_newcomer_dies(struct test *t)
{
    int lives = atoi(t->arg), newcomer = t->rank == t->n - 1;
    struct banyan_comm *comm, *next;
    uint64_t s = t->seed;

    if (!newcomer)
        begin(t, 1, t->n - 1, t->rank, &comm);
    for (uint32_t k = 2; k < 2u + (uint32_t)lives; k++) {
        uint64_t us = bny_rng_below(&s, 25000);

        if (newcomer) {
            one_life(t, k, us, 0);
            continue;
        }
        if (grow_or_not(t, comm, k, &next) == 0) {
            until_failure(t, next, k, t->n - 1);
            banyan_comm_destroy(next);
        }
        case_check_works(t, comm);
    }
    if (!newcomer)
        CHECK_OK(t, banyan_comm_finalize(comm));
    return 0;
}

/* What is left grows once more, by the newcomer that the first growth may have taken. */
static void after_death(struct test *t, struct banyan_comm *comm, struct banyan_comm *first,
                        int rc, int victim)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *left, *next;
    struct said what = said(rc);

    if (rc == 0) { /* all who live are in it, the newcomer too */
        until_failure(t, first, 1, victim);
        CHECK_OK(t, banyan_comm_shrink(first, &left));
        CHECK(t, banyan_comm_count(left) == t->n - 1, "%d ranks", banyan_comm_count(left));
        exercise(t, left, t->seed);
        banyan_comm_destroy(first);
        CHECK_OK(t, banyan_comm_finalize(left));
    }
    if (comm) {
        CHECK_OK(t, banyan_comm_shrink(comm, &left));
        check_same(t, left, &what);
        banyan_comm_destroy(comm);
        CHECK_OK(t, grow(t, left, 3, 1, &cfg, &next));
        banyan_comm_destroy(left);
    } else {
        struct banyan_id id = await(t, 3);

        CHECK_OK(t, banyan_comm_join(&next, &id, &cfg));
    }
    CHECK(t, banyan_comm_count(next) == t->n - 1, "%d ranks", banyan_comm_count(next));
    exercise(t, next, t->seed);
    CHECK_OK(t, banyan_comm_finalize(next));
}

/* A member is killed at any moment of a growth. arg: which one; 2 made the id, 0 is the root
 * where the new world meets. */
static int grow_member_dies(struct test *t)
{
    int victim = atoi(t->arg), newcomer = t->rank == t->n - 1, rc;
    uint64_t s = t->seed, us = bny_rng_below(&s, 30000);
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm = NULL, *next = NULL;

    if (newcomer) {
        struct banyan_id id = await(t, 2);

        rc = banyan_comm_join(&next, &id, &cfg);
    } else {
        struct banyan_id id;

        begin(t, 1, t->n - 1, t->rank, &comm);
        if (t->rank == 2) {
            CHECK_OK(t, banyan_comm_grow_id(comm, &id));
            publish(t, 2, &id);
        }
        mp_shared_barrier(t->shared, t->n - 1); /* nobody dies before */
        if (t->rank == victim)
            die_in(us);
        rc = banyan_comm_grow(comm, t->rank == 2 ? &id : NULL, 1, &cfg, &next);
    }
    if (rc && !next)
        CHECK(t, rc == -BANYAN_ERANKDEAD, "%d: %s", rc, banyan_last_error());
    if (t->rank == victim)
        until_failure(t, next ? next : comm, 1, -2); /* its own death ends it */
    after_death(t, comm, next, rc, victim);
    return 0;
}

/* Nobody comes, and rank 1 finds no memory at the n-th allocation, for each n: no member takes
 * that for a success, all but rank 1, which may know better, say the same, and nobody waits
 * for a deadline (of twice op_timeout_s) but that of newcomers. That one has passed before the
 * others hear that rank 1 takes no part any more: they say so all the same. */
static int grow_starved(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    _Atomic uint64_t *said = &t->shared->value[0][1];

    cfg.op_timeout_s = CASE_NEVER_S;
    for (int nth = 0; nth < 24; nth++) {
        struct banyan_comm *comm, *next;
        struct banyan_id id;
        int rc;

        if (t->rank == 0) {
            CHECK_OK(t, banyan_id_create(&id));
            publish(t, (uint32_t)nth + 1, &id);
        }
        id = await(t, (uint32_t)nth + 1);
        cfg.init_timeout_s = 20 * mp_patience();
        CHECK_OK(t, banyan_comm_init(&comm, &id, t->n, t->rank, &cfg));
        CHECK_OK(t, banyan_barrier(comm, NULL));
        cfg.init_timeout_s = 0.001;
        if (t->rank == 0)
            CHECK_OK(t, banyan_comm_grow_id(comm, &id));
        mp_shared_barrier(t->shared, t->n);
        if (t->rank == 1)
            case_starve_after(nth, 1);
        rc = banyan_comm_grow(comm, t->rank ? NULL : &id, 1, &cfg, &next);
        if (t->rank == 1)
            case_starve_after(0, 0);
        CHECK(t, rc < 0 && !next, "%d: %d, %p", nth, rc, (void *)next);
        if (t->rank == 0)
            atomic_store(said, (uint64_t)-rc);
        mp_shared_barrier(t->shared, t->n);
        CHECK(t, t->rank == 1 || atomic_load(said) == (uint64_t)-rc,
              "%d: %d here, -%llu at rank 0", nth, rc, (unsigned long long)atomic_load(said));
        if (t->rank == 1 && bny_control_out(comm->world->control))
            CHECK(t, atomic_load(said) == BANYAN_ERANKDEAD, "%d: -%llu at rank 0", nth,
                  (unsigned long long)atomic_load(said));
        mp_shared_barrier(t->shared, t->n);
        banyan_comm_destroy(comm);
    }
    return 0;
}

/* The last rank leaves in order, and the others grow: all hear who left, in the same words. */
static int grow_left(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm, *next;
    struct said s;

    cfg.op_timeout_s = CASE_NEVER_S;
    begin(t, 1, t->n, t->rank, &comm);
    CHECK_OK(t, banyan_barrier(comm, NULL));
    mp_shared_barrier(t->shared, t->n);
    if (t->rank < t->n - 1) {
        s = said(grow(t, comm, (uint32_t)t->n, 1, &cfg, &next));
        CHECK_HAS(t, s.text, "has left, and banyan_comm_grow waits for it");
        atomic_store(&t->shared->value[t->rank][1], case_hash(s.text, strlen(s.text)));
        CHECK_RC(t, -BANYAN_ERANKDEAD, banyan_barrier(comm, NULL));
    }
    banyan_comm_destroy(comm);
    mp_shared_barrier(t->shared, t->n);
    CHECK(t,
          t->rank == t->n - 1 || atomic_load(&t->shared->value[t->rank][1]) ==
                                     atomic_load(&t->shared->value[0][1]),
          "rank 0 heard something else");
    return 0;
}

const struct mp_case cases_grow[] = {
    { "grow_steps", grow_steps, CASE_OWN_INIT | CASE_NO_THREADS },
    { "grow_refused", grow_refused, CASE_OWN_INIT | CASE_NO_THREADS },
    { "grow_again", grow_again, CASE_OWN_INIT | CASE_NO_THREADS },
    { "grow_newcomer_dies", grow_newcomer_dies, CASE_OWN_INIT | CASE_NO_THREADS },
    { "grow_member_dies", grow_member_dies, CASE_OWN_INIT | CASE_NO_THREADS },
    { "grow_starved", grow_starved, CASE_OWN_INIT | CASE_NO_THREADS },
    { "grow_left", grow_left, CASE_OWN_INIT | CASE_NO_THREADS },
    { NULL, NULL, 0 }
};
