/* SPDX-License-Identifier: BSD-3-Clause */
/* Data connections of tcp that are reset under a running job: nobody notices but the counter.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "collectives/world/comm.h"
#include "tests/mp/call.h"
#include "tests/mp/cutter.h"
#include "transport/tcp/tcp.h"

struct cutter {
    struct test *t;
    struct bny_world *world;
    atomic_int stop;
    unsigned cuts;
};

static void *cutter_main(void *arg)
{
    struct cutter *k = arg;
    uint64_t s = k->t->seed + (uint64_t)k->t->rank;

    for (unsigned turn = 0; !atomic_load(&k->stop); turn++) {
        usleep(500 + (useconds_t)bny_rng_below(&s, 6000));
        k->cuts += (unsigned)cutter_data(k->world, turn);
    }
    return NULL;
}

/* arg: calls. */
static int resets(struct test *t)
{
    struct cutter k = { .t = t, .world = t->comm->world };
    struct banyan_stats s = { .size = sizeof s };
    int calls = atoi(t->arg);
    uint64_t common = t->seed, local = t->seed + 1000u * (uint64_t)(t->rank + 1), sum = 0;
    pthread_t thread;

    CHECK(t, pthread_create(&thread, NULL, cutter_main, &k) == 0, "no thread");
    for (int i = 0; i < calls; i++) {
        struct call c;

        call_random(&c, t->n, i % 3 ? 100000 : 4u << 20, bny_rng_next(&common),
                    bny_rng_next(&local));
        call_check(t, t->comm, &c);
    }
    atomic_store(&k.stop, 1);
    pthread_join(thread, NULL);
    case_check_works(t, t->comm);
    CHECK_OK(t, banyan_comm_stats(t->comm, &s));
    sum = s.replaced;
    CHECK_OK(t, banyan_allreduce(&sum, &sum, 1, BANYAN_U64, BANYAN_SUM, t->comm, NULL));
    CHECK(t, sum > 0, "nothing was replaced");
    printf("note: %u resets, %llu connections replaced by all\n", k.cuts,
           (unsigned long long)sum);
    return 0;
}

/* Rank 0 loses its connections when it has no descriptor for others: it says so, long before
 * the deadline. */
static int resets_no_descriptors(struct test *t)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    uint64_t sum = 1;
    struct rlimit limit;
    int blamed = -1, rc;

    opts.timeout_s = CASE_NEVER_S;
    for (int i = 0; i < 3; i++)
        case_check_works(t, t->comm);
    mp_shared_barrier(t->shared, t->n);
    if (t->rank == 0) {
        struct bny_world *w = t->comm->world;
        int cuts = 0;

        bny_world_lock(w);
        for (unsigned turn = 0; turn < 2 * TCP_LANES * (unsigned)t->n; turn += 2)
            cuts += cutter_data_locked(w, turn);
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = 3; /* also those that are closed now cannot be had again */
        setrlimit(RLIMIT_NOFILE, &limit);
        bny_world_unlock(w);
        CHECK(t, cuts > 0, "no connection to cut");
    }
    mp_shared_barrier(t->shared, t->n);
    do
        rc = banyan_allreduce(&sum, &sum, 1, BANYAN_U64, BANYAN_MAX, t->comm, &opts);
    while (rc == 0);
    CHECK(t, rc == -BANYAN_ESYSTEM, "returned %d (%s)", rc, banyan_last_error());
    CHECK_RC(t, -BANYAN_ESYSTEM, banyan_async_error(t->comm, &blamed, NULL, 0));
    CHECK(t, blamed == 0, "%d is blamed", blamed);
    mp_shared_barrier(t->shared, t->n);
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max; /* a sanitizer looks for leaks in files of /proc */
    setrlimit(RLIMIT_NOFILE, &limit);
    return 0;
}

const struct mp_case cases_resets[] = {
    { "resets_no_descriptors", resets_no_descriptors, CASE_FAILS | CASE_NO_THREADS },
    { "resets", resets, CASE_NO_THREADS },
    { 0 },
};
