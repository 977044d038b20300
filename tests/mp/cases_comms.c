/* SPDX-License-Identifier: BSD-3-Clause */
/* Communicators: dup, split, non-blocking init, the caller's own all-gather, many
 * communicators. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/rng.h"
#include "collectives/api/job.h"
#include "collectives/progress/progress.h"
#include "tests/mp/call.h"

/* The world ranks of comm's members are members[0..n), in order. */
static void check_members(struct test *t, struct banyan_comm *comm, const int *members, int n)
{
    int32_t me = t->rank, all[MP_RANKS_MAX];

    CHECK(t, banyan_comm_count(comm) == n, "%d ranks, not %d", banyan_comm_count(comm), n);
    CHECK_OK(t, banyan_allgather(&me, all, 1, BANYAN_I32, comm, NULL));
    for (int i = 0; i < n; i++)
        CHECK(t, all[i] == members[i], "rank %d is world rank %d, not %d", i, all[i],
              members[i]);
    CHECK(t, members[banyan_comm_rank(comm)] == t->rank, "own rank %d", banyan_comm_rank(comm));
    case_check_works(t, comm);
}

/* Random calls, so that large messages go through it too. */
static void exercise(struct test *t, struct banyan_comm *comm, uint64_t seed)
{
    for (uint64_t i = 0; i < 12; i++) {
        struct call c;
        call_random(&c, banyan_comm_count(comm), 1 << 17, model_mix(seed, i),
                    model_mix(seed + i, (uint64_t)t->rank));
        call_check(t, comm, &c);
    }
}

static int split(struct test *t)
{
    struct banyan_comm *half, *quarter, *none, *reversed;
    int members[MP_RANKS_MAX], n = 0;

    for (int r = t->rank & 1; r < t->n; r += 2)
        members[n++] = r;
    CHECK_OK(t, banyan_comm_split(t->comm, t->rank & 1, 0, &half));
    check_members(t, half, members, n);
    exercise(t, half, t->seed + (uint64_t)(t->rank & 1));

    for (int r = 0; r < t->n; r++)
        members[r] = t->n - 1 - r;
    CHECK_OK(t, banyan_comm_split(t->comm, 7, -t->rank, &reversed));
    check_members(t, reversed, members, t->n);
    exercise(t, reversed, t->seed);

    /* A split of a split: the halves of the halves. */
    n = 0;
    for (int r = t->rank & 3; r < t->n; r += 4)
        members[n++] = r;
    CHECK_OK(t, banyan_comm_split(half, t->rank >> 1 & 1, 0, &quarter));
    check_members(t, quarter, members, n);
    exercise(t, quarter, t->seed + (uint64_t)(t->rank & 3));

    none = half;
    n = 0;
    for (int r = 1; r < t->n; r++)
        members[n++] = r;
    CHECK_OK(t, banyan_comm_split(t->comm, t->rank == 0 ? -1 : 0, 0, &none));
    CHECK(t, (none == NULL) == (t->rank == 0), "a negative color gives no communicator");
    if (none) {
        check_members(t, none, members, n);
        CHECK_OK(t, banyan_comm_finalize(none));
    }
    CHECK_OK(t, banyan_comm_finalize(half)); /* before its own child */
    exercise(t, quarter, t->seed + (uint64_t)(t->rank & 3) + 99);
    CHECK_OK(t, banyan_comm_finalize(quarter));
    CHECK_OK(t, banyan_comm_finalize(reversed));
    exercise(t, t->comm, t->seed);
    return 0;
}

static void sum_by(struct test *t, struct banyan_comm *comm, const char *schedule)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    static int32_t in[40000], out[40000];
    int32_t n = banyan_comm_count(comm), me = banyan_comm_rank(comm);
    int wrong = 0;

    opts.schedule = schedule;
    for (int32_t i = 0; i < 40000; i++)
        in[i] = i * (me + 1);
    CHECK_OK(t, banyan_allreduce(in, out, 40000, BANYAN_I32, BANYAN_SUM, comm, &opts));
    for (int32_t i = 0; i < 40000; i++)
        wrong += out[i] != i * (n * (n + 1) / 2);
    CHECK(t, wrong == 0, "%s: %d wrong sums", schedule, wrong);
}

/* Parts of odd sizes: a part may be cut into a block a tree. */
static void scatter_by(struct test *t, struct banyan_comm *comm, const char *schedule,
                       size_t count)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    static int32_t whole[8 * 5003], part[5003];
    size_t n = (size_t)banyan_comm_count(comm), me = (size_t)banyan_comm_rank(comm);
    int wrong = 0;

    opts.schedule = schedule;
    opts.chunk_bytes = 4096;
    for (size_t i = 0; i < n * count; i++)
        whole[i] = (int32_t)(i * (me + 1));
    CHECK_OK(t, banyan_reduce_scatter(whole, part, count, BANYAN_I32, BANYAN_SUM, comm, &opts));
    for (size_t i = 0; i < count; i++)
        wrong += part[i] != (int32_t)((me * count + i) * (n * (n + 1) / 2));
    memset(whole, 0, sizeof whole);
    CHECK_OK(t, banyan_allgather(part, whole, count, BANYAN_I32, comm, &opts));
    for (size_t i = 0; i < n * count; i++)
        wrong += whole[i] != (int32_t)(i * (n * (n + 1) / 2));
    CHECK(t, wrong == 0, "%s, parts of %zu: %d wrong elements", schedule, count, wrong);
}

/* A communicator of some ranks, or in another order, has plans for the same network. */
static int split_network(struct test *t)
{
    static const char *const schedules[] = { "packed", "multitree", "ordered_ring", "joint",
                                             "packed_h4" };
    struct banyan_comm *half, *reversed;
    char plan[400];

    CHECK_OK(t, banyan_comm_split(t->comm, t->rank % 3 == 0, 0, &half));
    CHECK_OK(t, banyan_comm_split(t->comm, 7, -t->rank, &reversed));
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
        sum_by(t, half, schedules[i]);
        sum_by(t, reversed, schedules[i]);
        sum_by(t, t->comm, schedules[i]);
    }
    for (int i = 0; i < 2; i++) {
        scatter_by(t, t->comm, schedules[i], 5003);
        scatter_by(t, t->comm, schedules[i], 1);
        scatter_by(t, half, schedules[i], 1025);
        scatter_by(t, reversed, schedules[i], 3);
    }
    CHECK_OK(t, banyan_comm_plan(half, "allreduce", 1 << 22, BANYAN_F32, plan, sizeof plan));
    exercise(t, half, t->seed + (uint64_t)(t->rank % 3 == 0));
    exercise(t, reversed, t->seed);
    CHECK_OK(t, banyan_comm_finalize(half));
    CHECK_OK(t, banyan_comm_finalize(reversed));
    return 0;
}

static int plan_is(struct test *t, struct banyan_comm *comm, size_t count, const char *schedule)
{
    char plan[400];

    CHECK_OK(t, banyan_comm_plan(comm, "allreduce", count, BANYAN_F32, plan, sizeof plan));
    return strstr(plan, schedule) != NULL;
}

/* arg: ranks of a host, several hosts. What ranks of one host have for themselves is as fast as
 * a job of one host. */
static int split_hosts(struct test *t)
{
    int h = atoi(t->arg), host = t->rank / h, members[MP_RANKS_MAX];
    struct banyan_comm *near, *rail, *most;

    CHECK_OK(t, banyan_comm_split(t->comm, BANYAN_SPLIT_HOST, 0, &near));
    CHECK_OK(t, banyan_comm_split(t->comm, t->rank % h, 0, &rail));
    CHECK_OK(t, banyan_comm_split(t->comm, t->rank == t->n - 1, 0, &most));
    for (int i = 0; i < h; i++)
        members[i] = host * h + i;
    CHECK(t, plan_is(t, near, 1 << 18, "pipeline"), "ranks of a host");
    CHECK(t,
          !plan_is(t, t->comm, 1 << 18, "pipeline") && !plan_is(t, rail, 1 << 18, "pipeline"),
          "hosts");
    CHECK(t, t->rank == t->n - 1 || !plan_is(t, most, 1 << 18, "pipeline"), "more than a host");
    if (t->n == 2 * h) /* less crosses hosts than round a ring of all ranks */
        CHECK(t, plan_is(t, t->comm, 1 << 21, h > 2 ? "schedule hierarchical" : "host_ring"),
              "two hosts");
    for (uint64_t i = 0; i < 3; i++) {
        check_members(t, near, members, h);
        exercise(t, near, t->seed + i + 100 * (uint64_t)host);
        exercise(t, rail, t->seed + i + 100 * (uint64_t)(t->rank % h));
        exercise(t, most, t->seed + i + (t->rank == t->n - 1));
        exercise(t, t->comm, t->seed + i);
    }
    CHECK_OK(t, banyan_comm_finalize(most));
    CHECK_OK(t, banyan_comm_finalize(rail));
    CHECK_OK(t, banyan_comm_finalize(near));
    return 0;
}

static int dup(struct test *t)
{
    struct banyan_comm *d[8];

    for (int i = 0; i < 8; i++)
        CHECK_OK(t, banyan_comm_dup(i ? d[i - 1] : t->comm, &d[i]));
    for (int i = 7; i >= 0; i--)
        exercise(t, d[i], t->seed + (uint64_t)i);
    for (int i = 0; i < 8; i++) {
        CHECK_OK(t, banyan_comm_finalize(d[i]));
        case_check_works(t, t->comm);
    }
    /* Made and freed again and again. */
    for (int i = 0; i < 100; i++) {
        CHECK_OK(t, banyan_comm_dup(t->comm, &d[0]));
        case_check_works(t, d[0]);
        CHECK_OK(t, banyan_comm_finalize(d[0]));
    }
    return 0;
}

/* Different calls on overlapping communicators, without any order between them but each one's
 * own. */
static int overlapping(struct test *t)
{
    struct banyan_comm *row, *col;
    int w = t->n > 3 ? 2 : 1;

    CHECK_OK(t, banyan_comm_split(t->comm, t->rank / w, t->rank, &row));
    CHECK_OK(t, banyan_comm_split(t->comm, t->rank % w, t->rank, &col));
    for (int i = 0; i < 20; i++) {
        case_check_works(t, row);
        case_check_works(t, col);
        exercise(t, i & 1 ? row : col, t->seed + (uint64_t)i);
        case_check_works(t, t->comm);
    }
    CHECK_OK(t, banyan_comm_finalize(row));
    CHECK_OK(t, banyan_comm_finalize(col));
    return 0;
}

/* ---- ids ---- */
#define SLOTS 48

static void check_distinct(struct test *t, struct banyan_comm *const *comm, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i && comm[i]; k++)
            CHECK(t, !comm[k] || comm[k]->id != comm[i]->id, "slots %d and %d: id %08x", k, i,
                  comm[i]->id);
}

/* Calls on all of them at the same time, started and waited for in an order of this rank's own:
 * a message taken for another communicator's would give a wrong sum. */
static void check_apart(struct test *t, struct banyan_comm *const *comm, int n, uint64_t *own)
{
    struct banyan_request *rq[SLOTS] = { NULL };
    uint32_t x[SLOTS], y[SLOTS];
    int order[SLOTS];

    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n; i++) {
            int at = (int)bny_rng_below(own, (uint64_t)i + 1);
            order[i] = order[at];
            order[at] = i;
        }
        for (int k = 0; k < n; k++) {
            int i = order[k];
            if (!comm[i])
                continue;
            if (pass) {
                CHECK_OK(t, banyan_wait(rq[i], -1));
                CHECK(t, y[i] == x[i] * (uint32_t)banyan_comm_count(comm[i]),
                      "slot %d: sum %u of %d times %u", i, y[i], banyan_comm_count(comm[i]),
                      x[i]);
                CHECK_OK(t, banyan_request_free(rq[i]));
                continue;
            }
            x[i] = (uint32_t)i * 1009 + 1;
            CHECK_OK(t, banyan_allreduce_init(&x[i], &y[i], 1, BANYAN_U32, BANYAN_SUM, comm[i],
                                              NULL, &rq[i]));
            CHECK_OK(t, banyan_start(rq[i]));
        }
    }
}

/* Random trees of splits. What to do is drawn alike on all ranks, by slot; the members of a
 * slot's communicator, of which there may be several side by side, split and finalize it
 * together. */
static int ids(struct test *t)
{
    struct banyan_comm *comm[SLOTS] = { t->comm };
    uint64_t s = t->seed, own = t->seed + 977 * (uint64_t)(t->rank + 1);

    for (int round = 0; round < 600; round++) {
        int from = (int)bny_rng_below(&s, SLOTS), to = 1 + (int)bny_rng_below(&s, SLOTS - 1);
        int ways = 1 + (int)bny_rng_below(&s, 3), all = (int)bny_rng_below(&s, 2);
        uint64_t mine = s ^ (uint64_t)t->rank * 0x9e3779b97f4a7c15u;

        if (from == to)
            continue;
        if (comm[to])
            CHECK_OK(t, banyan_comm_finalize(comm[to]));
        comm[to] = NULL;
        if (comm[from])
            CHECK_OK(t, banyan_comm_split(comm[from],
                                          (int)bny_rng_below(&mine, (uint64_t)ways + 1) - !all,
                                          (int)bny_rng_below(&mine, 5), &comm[to]));
        check_distinct(t, comm, SLOTS);
        if (round % 20 == 19)
            check_apart(t, comm, SLOTS, &own);
    }
    for (int i = 1; i < SLOTS; i++)
        if (comm[i])
            CHECK_OK(t, banyan_comm_finalize(comm[i]));
    return 0;
}

/* A communicator of the world and one of another parent, so many splits apart that a hash of
 * parent and number made them the same. */
static int ids_of_two_parents(struct test *t)
{
    struct banyan_comm *comm[4] = { t->comm }, *c;
    uint64_t own = t->seed;

    for (int number = 2; number <= 3303; number++) {
        int from = number == 1158;
        CHECK_OK(t, banyan_comm_dup(comm[from], &c));
        CHECK(t, c->id != comm[0]->id && (!comm[1] || c->id != comm[1]->id), "id %08x", c->id);
        if (number == 622)
            comm[1] = c;
        else if (number == 1158)
            comm[2] = c;
        else if (number == 3303)
            comm[3] = c;
        else
            CHECK_OK(t, banyan_comm_finalize(c));
    }
    check_distinct(t, comm, 4);
    check_apart(t, comm, 4, &own);
    for (int i = 1; i < 4; i++)
        CHECK_OK(t, banyan_comm_finalize(comm[i]));
    return 0;
}

/* Each rank may give seven ids only: they begin anew, and none is given that somebody still
 * uses, be it only another rank than the one that gives it. */
static int ids_again(struct test *t)
{
    struct banyan_comm *comm[8] = { t->comm }, *kept, *none = t->comm;
    uint64_t s = t->seed, own = t->seed + (uint64_t)t->rank;
    uint32_t id;

    t->comm->world->comm_id_bits = 3;
    CHECK_OK(t, banyan_comm_dup(t->comm, &kept));
    id = kept->id;
    if (t->rank == 0)
        banyan_comm_destroy(kept);
    for (int round = 0; round < 100; round++) {
        int at = 1 + (int)bny_rng_below(&s, 5);
        if (comm[at])
            CHECK_OK(t, banyan_comm_finalize(comm[at]));
        CHECK_OK(t, banyan_comm_split(t->comm, 0, t->rank, &comm[at]));
        CHECK(t, t->n == 1 || comm[at]->id != id, "id %08x is in use at other ranks", id);
        check_distinct(t, comm, 8);
        if (round % 10 == 9)
            check_apart(t, comm, 8, &own);
    }
    if (t->rank > 0)
        banyan_comm_destroy(kept);
    for (int i = 1; i < 7; i++)
        if (!comm[i])
            CHECK_OK(t, banyan_comm_split(t->comm, 0, t->rank, &comm[i]));
    check_apart(t, comm, 7, &own);
    CHECK_RC(t, -BANYAN_ENOMEM, banyan_comm_dup(t->comm, &none));
    CHECK_HAS(t, banyan_last_error(), "rank 0");
    CHECK(t, none == NULL, "a communicator in spite of the error");
    for (int i = 1; i < 7; i++)
        CHECK_OK(t, banyan_comm_finalize(comm[i]));
    case_check_works(t, t->comm);
    return 0;
}

static int init_nonblocking(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *first, *comm;
    struct banyan_id id;
    int done = 0;

    /* The id of the second job goes over the first. */
    CHECK_OK(t, case_init(t, NULL, &first));
    memset(&id, 0, sizeof id);
    if (t->rank == 0)
        CHECK_OK(t, banyan_id_create(&id));
    CHECK_OK(t, banyan_broadcast(id.bytes, sizeof id.bytes, BANYAN_U8, 0, first, NULL));
    CHECK_OK(t, banyan_comm_init_start(&comm, &id, t->n, t->rank, &cfg));
    while (!done) {
        CHECK_OK(t, banyan_comm_init_test(comm, &done));
        sched_yield();
    }
    CHECK(t, banyan_comm_rank(comm) == t->rank && banyan_comm_count(comm) == t->n,
          "rank %d of %d", banyan_comm_rank(comm), banyan_comm_count(comm));
    exercise(t, comm, t->seed);
    exercise(t, first, t->seed);
    CHECK_OK(t, banyan_comm_finalize(first));
    exercise(t, comm, t->seed + 1);
    CHECK_OK(t, banyan_comm_finalize(comm));
    return 0;
}

static int shared_allgather(void *ctx, const void *in, void *out, size_t bytes)
{
    struct test *t = ctx;

    if (bytes > sizeof t->shared->blob[0])
        return -1;
    memcpy(t->shared->blob[t->rank], in, bytes);
    mp_shared_barrier(t->shared, t->n);
    for (int r = 0; r < t->n; r++)
        memcpy((unsigned char *)out + (size_t)r * bytes, t->shared->blob[r], bytes);
    mp_shared_barrier(t->shared, t->n);
    return 0;
}

static int init_allgather(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm;

    cfg.allgather = shared_allgather;
    cfg.allgather_ctx = t;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(t, banyan_comm_init(&comm, NULL, t->n, t->rank, &cfg));
        exercise(t, comm, t->seed + (uint64_t)i);
        CHECK_OK(t, banyan_comm_finalize(comm));
    }
    return 0;
}

/* The same process joins one job after another. */
static int init_again(struct test *t)
{
    struct banyan_comm *comm[2];
    struct banyan_config cfg = case_config(t);

    CHECK_OK(t, case_init(t, NULL, &comm[0]));
    for (int i = 0; i < 5; i++) {
        struct banyan_id id = { { 0 } };
        if (t->rank == 0)
            CHECK_OK(t, banyan_id_create(&id));
        CHECK_OK(t, banyan_broadcast(id.bytes, sizeof id.bytes, BANYAN_U8, 0, comm[0], NULL));
        CHECK_OK(t, banyan_comm_init(&comm[1], &id, t->n, t->rank, &cfg));
        case_check_works(t, comm[1]);
        CHECK_OK(t, banyan_comm_finalize(comm[0]));
        comm[0] = comm[1];
    }
    exercise(t, comm[0], t->seed);
    CHECK_OK(t, banyan_comm_finalize(comm[0]));
    return 0;
}

/* Only a part of it was destroyed, and all ranks finalized the whole: the first that ends has
 * not died. */
static int part_destroyed(struct test *t)
{
    struct banyan_comm *comm, *part;
    struct banyan_request *req;
    uint64_t end;
    int rc;

    CHECK_OK(t, case_init(t, NULL, &comm));
    CHECK_OK(t, banyan_comm_split(comm, t->rank % 2, 0, &part));
    case_check_works(t, part);
    banyan_comm_destroy(part);
    if (t->rank == 0) {
        CHECK_OK(t, banyan_comm_finalize(comm));
        mp_shared_barrier(t->shared, t->n);
        return 0;
    }
    CHECK_OK(t, banyan_barrier_init(comm, NULL, &req));
    CHECK_OK(t, banyan_start(req));
    mp_shared_barrier(t->shared, t->n); /* rank 0 is gone */
    CHECK_OK(t, banyan_wait(req, 10));
    CHECK_OK(t, banyan_request_free(req));
    end = bny_now_ns() + 200000000u; /* a death is known in a fraction of it */
    do {
        banyan_progress(comm);
        rc = banyan_async_error(comm, NULL, NULL, 0);
        CHECK(t, rc == 0, "%d (%s)", rc, banyan_strerror(rc));
    } while (bny_now_ns() < end);
    banyan_comm_destroy(comm);
    return 0;
}

static void nap(int ms)
{
    struct timespec ts = { .tv_nsec = ms * 1000000l };

    nanosleep(&ts, NULL);
}

struct holder {
    struct test *t;
    struct banyan_comm *comm;
};

/* Rank 2 has said its part of the split, and looks at nothing more before it knows that the
 * communicator was given up. */
static void *hold(void *arg)
{
    struct holder *h = arg;
    struct bny_world *w = h->comm->world;
    struct bny_failure f;
    int begun = 0;

    while (!begun) {
        bny_world_lock(w);
        begun = h->comm->active_first != NULL;
        bny_world_unlock(w);
        nap(1);
    }
    nap(100); /* it is sent */
    bny_world_lock(w);
    atomic_store(&h->t->shared->value[2][0], 1);
    while (!bny_control_failure_of(w->control, h->comm->id, &f))
        nap(1);
    bny_comm_set_failure(h->comm, &f); /* as if the others' parts were still on their way */
    bny_world_unlock(w);
    return NULL;
}

static void await_value(struct test *t, int rank)
{
    while (!atomic_load(&t->shared->value[rank][0]))
        nap(1);
}

/* A communicator fails while it is split, behind the split at some ranks and before it at
 * another: who has the new one is not left waiting in it. */
static int split_half_made(struct test *t)
{
    struct banyan_comm *comm, *child = NULL;
    struct holder h = { .t = t };
    int32_t x = 1;
    pthread_t thread;
    int rc;

    CHECK_OK(t, banyan_comm_dup(t->comm, &comm));
    case_check_works(t, comm);
    h.comm = comm;
    if (t->rank == 2)
        CHECK(t, pthread_create(&thread, NULL, hold, &h) == 0, "a thread");
    if (t->rank == 0)
        await_value(t, 2);
    rc = banyan_comm_dup(comm, &child);
    CHECK(t, rc == (t->rank == 2 ? -BANYAN_EABORTED : 0), "%d (%s)", rc, banyan_last_error());
    if (t->rank == 1)
        atomic_store(&t->shared->value[1][0], 1);
    if (t->rank == 0) {
        await_value(t, 1);
        CHECK_OK(t, banyan_comm_revoke(comm, "a test"));
    }
    if (t->rank == 2)
        pthread_join(thread, NULL);
    if (t->rank < 2) {
        CHECK_RC(t, -BANYAN_EABORTED,
                 banyan_allreduce(&x, &x, 1, BANYAN_I32, BANYAN_SUM, child, NULL));
        CHECK_HAS(t, banyan_last_error(), "does not have this communicator");
    }
    mp_shared_barrier(t->shared, t->n);
    banyan_comm_destroy(child);
    banyan_comm_destroy(comm);
    return 0;
}

const struct mp_case cases_comms[] = {
    { "split", split, 0 },
    { "split_network", split_network, 0 },
    { "split_hosts", split_hosts, 0 },
    { "dup", dup, 0 },
    { "ids", ids, 0 },
    { "ids_of_two_parents", ids_of_two_parents, 0 },
    { "ids_again", ids_again, CASE_NO_THREADS },
    { "overlapping", overlapping, 0 },
    { "init_nonblocking", init_nonblocking, CASE_OWN_INIT },
    { "init_allgather", init_allgather, CASE_OWN_INIT },
    { "init_again", init_again, CASE_OWN_INIT },
    { "part_destroyed", part_destroyed, CASE_OWN_INIT },
    { "split_half_made", split_half_made, CASE_NO_THREADS },
    { 0 },
};
