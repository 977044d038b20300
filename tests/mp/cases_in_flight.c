/* SPDX-License-Identifier: BSD-3-Clause */
/* Many calls in flight, on two communicators by turns: all are started, each rank waits for
 * them from a random one on, and every byte is checked. The case's arg names the calls that are
 * drawn. */
#include <string.h>

#include "base/rng.h"
#include "tests/mp/call.h"

#define FLIGHT_MAX 160
#define COUNTS_MAX 17

static const struct kind {
    const char *name;
    unsigned colls;           /* 1 << enum coll */
    const char *schedules[4]; /* one is drawn; NULL: the communicator's */
    int flight, rounds;
    int shifts[2];       /* 1 << bytes of a call at most: of most calls, of one in eight */
    size_t pool;         /* bytes of banyan_mem_alloc that a buffer may lie in; 0: all malloc */
    int takes_order;     /* deterministic is drawn, too */
    size_t most, ncount; /* bytes of a call; 0: as call_random() draws them, else of: */
    size_t counts[COUNTS_MAX];
} kinds[] = {
    /* more than there are cells, on each communicator; a little longer than what fits */
    { .name = "cells",
      .colls = ~(1u << C_SENDRECV),
      .schedules = { "direct:cells", "direct:cells", "direct:messages", NULL },
      .flight = FLIGHT_MAX,
      .rounds = 6,
      .shifts = { 16, 16 },
      .takes_order = 1,
      .most = 17000,
      .ncount = 13,
      .counts = { 0, 1, 47, 48, 49, 63, 64, 65, 240, 241, 1000, 4096, 16384 } },
    /* more than entries and slices of an area */
    { .name = "sums",
      .colls = 1u << C_ALLREDUCE,
      .schedules = { "pipeline", "pipeline", "pipeline", "auto" },
      .flight = 24,
      .rounds = 6,
      .shifts = { 21, 21 },
      .pool = (1 << 21) + 4096,
      .takes_order = 1,
      .most = 1 << 21,
      .ncount = 17,
      .counts = { 1, 2, 15, 16, 512, 1023, 1024, 4096, 8192, 8193, 16384, 32768, 40000, 65536,
                  131072, 262144, 300001 } },
    { .name = "passes",
      .colls = 1u << C_ALLGATHER | 1u << C_ALLTOALL | 1u << C_REDUCE_SCATTER |
               1u << C_ALLREDUCE | 1u << C_REDUCE | 1u << C_BROADCAST | 1u << C_GATHER |
               1u << C_SCATTER,
      .schedules = { "pipeline", "pipeline", "pipeline", NULL },
      .flight = 7, /* more than slices */
      .rounds = 25,
      .shifts = { 18, 21 },
      .pool = (1 << 21) + 4096,
      .takes_order = 1 },
    { .name = "hosts",
      .colls = 1u << C_ALLREDUCE,
      .schedules = { "hierarchical", "hierarchical", "hierarchical", "auto" },
      .flight = 9, /* more than slices */
      .rounds = 12,
      .shifts = { 17, 21 } },
};

static const struct kind *kind_of(const struct test *t)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(t->arg, kinds[i].name))
            return &kinds[i];
    CHECK(t, 0, "no calls \"%s\"", t->arg);
    return NULL;
}

/* s is the same on all ranks, own is this rank's. */
static void flight_draw(const struct kind *k, struct call *c, int n, uint64_t *s, uint64_t *own)
{
    size_t unit, most, count;

    do
        call_random(c, n, (size_t)1 << k->shifts[bny_rng_below(s, 8) == 0], bny_rng_next(s),
                    bny_rng_next(own));
    while (!(k->colls & 1u << c->coll));
    c->schedule = k->schedules[bny_rng_below(s, 4)];
    if (bny_rng_below(s, 8) == 0)
        c->chunk_bytes = 20000;
    if (k->takes_order)
        c->deterministic = (int)bny_rng_below(s, 3) - 1;
    if (!k->ncount)
        return;
    unit = model_unit(c->op);
    most = k->most / banyan_dtype_bytes(c->dtype) / unit;
    count = k->counts[bny_rng_below(s, k->ncount)];
    if (bny_rng_below(s, 3) == 0)
        count = count * (size_t)n + bny_rng_below(s, 5);
    c->count = count % (most + 1) * unit;
}

struct flight {
    struct call call;
    struct bound *bound;
    struct banyan_request *rq[2];
    struct image_pool pool;
    int rc;
};

/* The result of a call in place took its input's place: such a call runs once. */
static void start_and_wait(const struct test *t, struct flight *f, int n, int turn, int from)
{
    for (int i = 0; i < n; i++)
        if (f[i].rc == 0 && !(turn && f[i].call.in_place))
            CHECK_OK(t, banyan_start(f[i].rq[0]));
    for (int i = 0; i < n; i++) {
        struct flight *x = &f[(from + i) % n];

        if (x->rc == 0 && !(turn && x->call.in_place))
            CHECK_OK(t, banyan_wait(x->rq[0], -1));
    }
}

static int many_in_flight(struct test *t)
{
    const struct kind *k = kind_of(t);
    uint64_t s = t->seed, own = model_mix(t->seed, (uint64_t)t->rank + 1);
    struct flight f[FLIGHT_MAX];
    struct banyan_comm *other;
    int refused = 0, all = 0;

    CHECK_OK(t, banyan_comm_dup(t->comm, &other));
    for (int i = 0; k->pool && i < k->flight; i++)
        image_pool_make(t, t->comm, &f[i].pool, IMAGE_BANYAN, k->pool);
    for (int round = 0; round < k->rounds; round++) {
        int n = 1 + (int)bny_rng_below(&s, (uint64_t)k->flight);
        int turns = 1 + (int)bny_rng_below(&s, 2);

        for (int i = 0; i < n; i++) {
            struct call *c = &f[i].call;

            flight_draw(k, c, t->n, &s, &own);
            if (turns == 1 && c->coll == C_ALLREDUCE) /* ranks need not do alike */
                c->in_place = (int)bny_rng_below(&own, 2);
            c->pool = k->pool && bny_rng_below(&own, 3) ? &f[i].pool : NULL;
            f[i].bound = call_open(t, bny_rng_below(&s, 2) ? other : t->comm, c);
            memset(f[i].rq, 0, sizeof f[i].rq);
            f[i].rc = call_issue(f[i].bound, f[i].rq);
            all += f[i].rc == 0;
        }
        for (int turn = 0; turn < turns; turn++)
            start_and_wait(t, f, n, turn, (int)bny_rng_below(&own, (uint64_t)n));
        for (int i = 0; i < n; i++) {
            if (f[i].rc == 0)
                CHECK_OK(t, banyan_request_free(f[i].rq[0]));
            refused += call_close(t, f[i].bound, f[i].rc);
        }
    }
    CHECK(t, all > refused, "%d calls, %d refused", all, refused);
    for (int i = 0; k->pool && i < k->flight; i++)
        image_pool_free(t, t->comm, &f[i].pool);
    CHECK_OK(t, banyan_comm_finalize(other));
    case_check_works(t, t->comm);
    return 0;
}

const struct mp_case cases_in_flight[] = {
    { "many_in_flight", many_in_flight, 0 },
    { NULL, NULL, 0 },
};
