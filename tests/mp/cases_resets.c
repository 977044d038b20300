/* SPDX-License-Identifier: BSD-3-Clause */
/* Data connections of tcp that are reset under a running job: nobody notices but the counter.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "collectives/world/comm.h"
#include "tests/mp/call.h"
#include "tests/support/cut.h"
#include "transport/tcp/tcp.h"

struct cutter {
    struct test *t;
    struct bny_world *world;
    atomic_int stop;
    unsigned cuts;
};

/* One connection of this rank, each in turn; of those that come in only where the kernel ends
 * them as a network does, with what they have received left to be read. */
static void cut_one(struct cutter *k, struct tcp_tp *tp, unsigned turn)
{
    struct tcp_ep *e = tp->eps[turn / (2 * TCP_LANES) % (unsigned)tp->tp.nranks];
    unsigned lane = turn / 2 % TCP_LANES;
    struct tcp_conn *c = !e ? NULL : turn % 2 ? e->in[lane] : &e->out[lane];

    if (c && c->state == TCP_OPEN && c->fd >= 0)
        k->cuts += (c->outgoing ? cut(c->fd) : cut_kill(c->fd)) == 0;
}

static void *cutter_main(void *arg)
{
    struct cutter *k = arg;
    uint64_t s = k->t->seed + (uint64_t)k->t->rank;

    for (unsigned turn = 0; !atomic_load(&k->stop); turn++) {
        usleep(500 + (useconds_t)bny_rng_below(&s, 6000));
        bny_world_lock(k->world);
        for (int i = 0; i < k->world->ntps; i++)
            if (!strcmp(k->world->tps[i]->ops->name, "tcp"))
                cut_one(k, (struct tcp_tp *)k->world->tps[i], turn);
        bny_world_unlock(k->world);
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

const struct mp_case cases_resets[] = {
    { "resets", resets, CASE_NO_THREADS },
    { 0 },
};
