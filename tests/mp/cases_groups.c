/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_comm_create_group: by members only, while others compute, are dead, or make groups of
 * their own. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/mp/call.h"

/* An allreduce of the numbers that the members have in the parent. */
static void check_group(const struct test *t, struct banyan_comm *group, const int *ranks,
                        int n)
{
    uint32_t x = 1u << t->rank, all = 0, want = 0;

    CHECK(t, banyan_comm_count(group) == n, "%d ranks, not %d", banyan_comm_count(group), n);
    CHECK(t, ranks[banyan_comm_rank(group)] == t->rank, "rank %d is another's",
          banyan_comm_rank(group));
    for (int i = 0; i < n; i++)
        want |= 1u << ranks[i];
    CHECK_OK(t, banyan_allreduce(&x, &all, 1, BANYAN_U32, BANYAN_SUM, group, NULL));
    CHECK(t, all == want, "%x, not %x", all, want);
}

/* Every other rank from above, again and again; the rest does something else. */
static int groups_alone(struct test *t)
{
    struct banyan_comm *group[3];
    int ranks[MP_RANKS_MAX], n = 0;

    for (int r = t->n - 1; r >= 0; r -= 2)
        ranks[n++] = r;
    if ((t->n - 1 - t->rank) % 2) {
        usleep(200000);
    } else {
        for (int i = 0; i < 3; i++)
            CHECK_OK(t, banyan_comm_create_group(t->comm, ranks, n, i / 2, &group[i]));
        for (int i = 0; i < 3; i++)
            check_group(t, group[i], ranks, n);
        for (int i = 0; i < 3; i++)
            CHECK_OK(t, banyan_comm_finalize(group[i]));
    }
    case_check_works(t, t->comm);
    return 0;
}

/* ---- two at once ---- */

struct maker {
    struct test *t;
    int ranks[MP_RANKS_MAX], n, tag, rounds;
};

static void *make_some(void *arg)
{
    struct maker *m = arg;

    for (int i = 0; i < m->rounds; i++) {
        struct banyan_comm *group;

        CHECK_OK(m->t, banyan_comm_create_group(m->t->comm, m->ranks, m->n, m->tag, &group));
        check_group(m->t, group, m->ranks, m->n);
        banyan_comm_destroy(group);
    }
    return NULL;
}

/* All but the first, and all but the last; by two threads where a rank is in both. */
static int groups_crossing(struct test *t)
{
    struct maker m[2] = { { .t = t, .tag = 5, .rounds = 20 }, { .t = t, .rounds = 20 } };
    pthread_t thread;
    int both = t->rank > 0 && t->rank < t->n - 1;

    for (int r = 0; r < t->n; r++) {
        if (r > 0)
            m[0].ranks[m[0].n++] = r;
        if (r < t->n - 1)
            m[1].ranks[m[1].n++] = r;
    }
    if (both)
        CHECK_OK(t, pthread_create(&thread, NULL, make_some, &m[0]));
    make_some(&m[both || t->rank == 0]);
    if (both)
        pthread_join(thread, NULL);
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    return 0;
}

/* ---- deaths ---- */

/* The last rank dies, which is no member; then the first, which is one, while the others make
 * the group. */
static int groups_and_deaths(struct test *t)
{
    struct banyan_comm *group = NULL;
    int ranks[MP_RANKS_MAX], n = t->n - 1, rc = 0;
    char text[300];

    for (int r = 0; r < n; r++)
        ranks[r] = n - 1 - r;
    if (t->rank == n)
        kill(getpid(), SIGKILL);
    while (rc == 0)
        rc = banyan_barrier(t->comm, NULL);
    CHECK(t, rc == -BANYAN_ERANKDEAD, "returned %d", rc);
    CHECK_OK(t, banyan_comm_create_group(t->comm, ranks, n, 0, &group));
    check_group(t, group, ranks, n);
    CHECK_OK(t, banyan_barrier(group, NULL));
    mp_shared_barrier(t->shared, n);
    banyan_comm_destroy(group);
    if (t->rank == 0) {
        usleep(20000); /* the others make the next one, mostly */
        kill(getpid(), SIGKILL);
    }
    CHECK_RC(t, -BANYAN_ERANKDEAD, banyan_comm_create_group(t->comm, ranks, n, 0, &group));
    snprintf(text, sizeof text, "%s", banyan_last_error());
    CHECK_HAS(t, text, "rank 0 died or left");
    CHECK(t, !group, "there is one");
    for (int r = 1; r < n; r++)
        ranks[r - 1] = r;
    CHECK_OK(t, banyan_comm_create_group(t->comm, ranks, n - 1, 0, &group));
    check_group(t, group, ranks, n - 1);
    banyan_comm_destroy(group);
    return 0;
}

/* ---- those that do not come, and what is wrong ---- */

static int groups_late(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm, *group;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    int ranks[MP_RANKS_MAX], within = t->n % 2; /* a limit of the call's own */

    cfg.op_timeout_s = within ? CASE_NEVER_S : 1;
    o.timeout_s = CASE_NEVER_S;
    CHECK_OK(t, case_init(t, &cfg, &comm));
    for (int r = 0; r < t->n; r++)
        ranks[r] = r;
    if (t->rank != 1) {
        CHECK_RC(t, -BANYAN_ETIMEDOUT,
                 within ? banyan_comm_create_group_within(comm, ranks, t->n, 3, 1, &group)
                        : banyan_comm_create_group(comm, ranks, t->n, 3, &group));
        CHECK_HAS(t, banyan_last_error(), "rank 1 did not call it with these ranks");
        case_done(t, 1);
    } else {
        case_await_done(t, 1, t->rank);
    }
    CHECK_OK(t, banyan_barrier(comm, &o)); /* that is no failure of comm */
    CHECK_OK(t, banyan_comm_finalize(comm));
    return 0;
}

/* A rank stands still while others make a group without it, and goes on as if nothing had been.
 */
static int groups_stopped(struct test *t)
{
    int ranks[MP_RANKS_MAX], n = 0;
    struct banyan_comm *group;

    atomic_store(&t->shared->value[t->rank][0], (uint64_t)getpid());
    for (int r = 0; r < t->n; r++)
        if (r != 1)
            ranks[n++] = r;
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    mp_shared_barrier(t->shared, t->n);
    if (t->rank == 1) {
        kill(getpid(), SIGSTOP);
    } else {
        usleep(100000); /* it has stopped */
        for (int i = 0; i < 2; i++) {
            CHECK_OK(t, banyan_comm_create_group(t->comm, ranks, n, 0, &group));
            check_group(t, group, ranks, n);
            CHECK_OK(t, banyan_comm_finalize(group));
        }
        if (t->rank == 0)
            kill((pid_t)atomic_load(&t->shared->value[1][0]), SIGCONT);
    }
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    usleep(200000); /* all was heard that is under way */
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    CHECK(t, banyan_comm_failed(t->comm, NULL, 0) == 0, "somebody is gone");
    return 0;
}

/* Who will not come gives comm up, and those who wait for it go on long before their deadline.
 * A group of a communicator that was given up is made as ever. */
static int groups_revoked(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm, *group;
    int ranks[MP_RANKS_MAX];
    uint64_t bits = 1;

    cfg.op_timeout_s = CASE_NEVER_S;
    CHECK_OK(t, case_init(t, &cfg, &comm));
    for (int r = 0; r < t->n; r++)
        ranks[r] = r;
    if (t->rank == 1) {
        usleep(200000);
        CHECK_OK(t, banyan_comm_revoke(comm, "a test"));
    } else {
        CHECK_RC(t, -BANYAN_ETIMEDOUT, banyan_comm_create_group(comm, ranks, t->n, 3, &group));
        CHECK_HAS(t, banyan_last_error(), "rank 1 did not call it with these ranks");
    }
    CHECK(t, banyan_comm_agree(comm, &bits, NULL, 0) == 0, "%s", banyan_last_error());
    CHECK_OK(t, banyan_comm_create_group(comm, ranks, t->n, 4, &group));
    check_group(t, group, ranks, t->n);
    CHECK_OK(t, banyan_comm_finalize(group));
    banyan_comm_destroy(comm);
    return 0;
}

/* As that, where the communicator was given up before others called it, and no call has told
 * them. Who was told may make groups of it. */
static int groups_revoked_before(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm, *group;
    int ranks[MP_RANKS_MAX], code;

    cfg.op_timeout_s = CASE_NEVER_S;
    CHECK_OK(t, case_init(t, &cfg, &comm));
    for (int r = 0; r < t->n; r++)
        ranks[r] = r;
    mp_shared_barrier(t->shared, t->n);
    if (t->rank == 1)
        CHECK_OK(t, banyan_comm_revoke(comm, "a test"));
    if (t->rank != 1)
        case_await_told(comm);
    if (t->rank != 1)
        CHECK_RC(t, -BANYAN_ETIMEDOUT, banyan_comm_create_group(comm, ranks, t->n, 3, &group));
    while ((code = banyan_barrier(comm, NULL)) == 0)
        ;
    CHECK(t, code == -BANYAN_EABORTED, "%d (%s)", code, banyan_last_error());
    CHECK_OK(t, banyan_comm_create_group(comm, ranks, t->n, 4, &group));
    check_group(t, group, ranks, t->n);
    CHECK_OK(t, banyan_comm_finalize(group));
    banyan_comm_destroy(comm);
    return 0;
}

static int groups_wrong(struct test *t)
{
    struct banyan_comm *group;
    int twice[2] = { t->rank, t->rank }, beyond[2] = { t->rank, t->n }, other = !t->rank;

    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_create_group(t->comm, NULL, 1, 0, &group));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_create_group(t->comm, twice, 0, 0, &group));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_create_group(t->comm, twice, 1, 0, NULL));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_create_group(t->comm, twice, 2, 0, &group));
    CHECK_HAS(t, banyan_last_error(), "twice");
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_create_group(t->comm, beyond, 2, 0, &group));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_comm_create_group(t->comm, &other, 1, 0, &group));
    CHECK_HAS(t, banyan_last_error(), "only members");
    CHECK_OK(t, banyan_comm_create_group(t->comm, twice, 1, 0, &group));
    CHECK(t, banyan_comm_count(group) == 1, "alone");
    CHECK_OK(t, banyan_comm_finalize(group));
    return 0;
}

const struct mp_case cases_groups[] = {
    { "groups_alone", groups_alone, 0 },
    { "groups_crossing", groups_crossing, 0 },
    { "groups_and_deaths", groups_and_deaths, CASE_NO_THREADS | CASE_FAILS },
    { "groups_late", groups_late, CASE_OWN_INIT },
    { "groups_stopped", groups_stopped, CASE_NO_THREADS },
    { "groups_revoked", groups_revoked, CASE_OWN_INIT },
    { "groups_revoked_before", groups_revoked_before, CASE_OWN_INIT },
    { "groups_wrong", groups_wrong, 0 },
    { NULL, NULL, 0 }
};
