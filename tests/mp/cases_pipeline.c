/* SPDX-License-Identifier: BSD-3-Clause */
/* Write-back allreduces and other passes: ranks that are ahead of others, and ranks that
 * differ. Many in flight: cases_in_flight.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "collectives/world/comm.h"
#include "collectives/pipeline/pass.h"
#include "tests/mp/call.h"

/* ---- ranks that do not wait for each other ---- */

#define RACES     400
#define RACE_MOST 30000u

/* Blocking broadcasts, gathers and reductions of all roots, in which most ranks need nothing of
 * most others: some sleep now and then, so that others are many operations ahead. */
static int race(struct test *t)
{
    static uint32_t in[RACE_MOST], out[RACE_MOST * 8];
    uint64_t s = t->seed, own = model_mix(t->seed, (uint64_t)t->rank + 1);
    struct banyan_opts o = BANYAN_OPTS_INIT;
    uint32_t n = (uint32_t)t->n, me = (uint32_t)t->rank;

    CHECK(t, n <= 8, "%u ranks", n);
    o.schedule = "pipeline";
    for (uint32_t round = 0; round < RACES; round++) {
        size_t count = 1 + bny_rng_below(&s, bny_rng_below(&s, 8) ? 600 : RACE_MOST);
        int root = (int)bny_rng_below(&s, 3) ? (int)(round % n) : (int)bny_rng_below(&s, n),
            what = (int)bny_rng_below(&s, 3), gets = t->rank == root;
        uint32_t base = (uint32_t)bny_rng_next(&s);

        if (bny_rng_below(&own, 40) == 0)
            usleep(5000);
        for (size_t i = 0; i < count; i++)
            in[i] = base + (uint32_t)i + me;
        if (what == 0) {
            CHECK_OK(t, banyan_broadcast(in, count, BANYAN_U32, root, t->comm, &o));
            for (size_t i = 0; i < count; i++)
                CHECK(t, in[i] == base + (uint32_t)i + (uint32_t)root, "round %u", round);
        } else if (what == 1) {
            CHECK_OK(t, banyan_gather(in, out, count, BANYAN_U32, root, t->comm, &o));
            for (size_t i = 0; gets && i < count * n; i++)
                CHECK(t, out[i] == base + (uint32_t)(i % count + i / count), "round %u", round);
        } else {
            CHECK_OK(t,
                     banyan_reduce(in, out, count, BANYAN_U32, BANYAN_SUM, root, t->comm, &o));
            for (size_t i = 0; gets && i < count; i++)
                CHECK(t, out[i] == n * (base + (uint32_t)i) + n * (n - 1) / 2, "round %u",
                      round);
        }
    }
    return 0;
}

/* The last rank calls something else: the error names both. arg: what differs. */
static int exchange_differs(struct test *t)
{
    static char in[1 << 19], out[1 << 19];
    struct banyan_opts o = BANYAN_OPTS_INIT;
    size_t count = 20000;
    int other = t->rank == t->n - 1, rc;

    o.schedule = "pipeline";
    CHECK_OK(t, banyan_alltoall(in, out, count, BANYAN_F32, t->comm, &o));
    case_meet(t, t->comm);
    if (other && !strcmp(t->arg, "count"))
        count--;
    if (other && !strcmp(t->arg, "chunk"))
        o.chunk_bytes = 8192;
    if (!strcmp(t->arg, "op"))
        rc = banyan_reduce_scatter(in, out, count, BANYAN_F32, other ? BANYAN_MAX : BANYAN_SUM,
                                   t->comm, &o);
    else if (other && !strcmp(t->arg, "collective"))
        rc = banyan_allgather(in, out, count, BANYAN_F32, t->comm, &o);
    else
        rc = banyan_alltoall(in, out, count, BANYAN_F32, t->comm, &o);
    CHECK(t, rc == -BANYAN_EMISMATCH, "%s: returned %d (%s)", t->arg, rc, banyan_strerror(rc));
    CHECK_HAS(t, banyan_last_error(), "rank");
    return 0;
}

/* Rank 0 gives a block and sleeps before it looks who has taken it, while all others take that
 * and those of further roots. Which needs as many operations as have counts side by side. */
#define AHEAD (BNY_AREA_ENTRIES + 4)

static int ahead(struct test *t)
{
    static uint32_t buf[AHEAD][5000];
    struct banyan_request *rq[AHEAD];
    struct banyan_opts o = BANYAN_OPTS_INIT;

    o.schedule = "pipeline";
    for (int k = 0; k < AHEAD; k++) {
        int root = k ? 1 + (k - 1) % (t->n - 1) : 0;

        memset(buf[k], t->rank == root ? k + 1 : 0, sizeof buf[k]);
        CHECK_OK(t, banyan_broadcast_init(buf[k], 5000, BANYAN_U32, root, t->comm, &o, &rq[k]));
    }
    CHECK_OK(t, banyan_allreduce(NULL, NULL, 0, BANYAN_U32, BANYAN_SUM, t->comm, &o));
    for (int k = 0; k < AHEAD; k++) {
        int root = k ? 1 + (k - 1) % (t->n - 1) : 0;

        CHECK_OK(t, banyan_start(rq[k]));
        if (t->rank != root)
            CHECK_OK(t, banyan_wait(rq[k], -1));
        else if (k == 0)
            usleep(100000);
    }
    for (int k = 0; k < AHEAD; k++) {
        CHECK_OK(t, banyan_wait(rq[k], -1));
        CHECK(t, buf[k][4999] == 0x01010101u * (uint32_t)(k + 1), "operation %d", k);
        CHECK_OK(t, banyan_request_free(rq[k]));
    }
    case_check_works(t, t->comm);
    return 0;
}

/* All call the same but for one thing. arg: what. */
static int roots_differ(struct test *t)
{
    static char in[1 << 19], out[1 << 22];
    struct banyan_opts o = BANYAN_OPTS_INIT;
    size_t count = 20000;
    int other = t->rank == t->n - 1, rc, root;

    o.schedule = "pipeline";
    CHECK_OK(t, banyan_broadcast(in, count, BANYAN_F32, 1, t->comm, &o));
    case_meet(t, t->comm);
    root = other && !strcmp(t->arg, "root") ? t->n - 1 : 0;
    if (other && !strcmp(t->arg, "count"))
        count--;
    if (!strcmp(t->arg, "op"))
        rc = banyan_reduce(in, out, count, BANYAN_F32, other ? BANYAN_MAX : BANYAN_SUM, root,
                           t->comm, &o);
    else if (other && !strcmp(t->arg, "collective"))
        rc = banyan_gather(in, out, count, BANYAN_F32, root, t->comm, &o);
    else
        rc = banyan_broadcast(in, count, BANYAN_F32, root, t->comm, &o);
    for (int i = 0; i < 20 && rc == 0; i++) /* who needed nothing of the other is told later */
        rc = t->n % 2 ? banyan_barrier(t->comm, NULL)
                      : banyan_allreduce(in, in, 5000, BANYAN_F32, BANYAN_SUM, t->comm, &o);
    CHECK(t, rc == -BANYAN_EMISMATCH, "%s: returned %d (%s)", t->arg, rc, banyan_strerror(rc));
    CHECK_HAS(t, banyan_last_error(), "rank");
    return 0;
}

/* The last rank calls something else: the error names both. arg: what differs. */
static int pipeline_differs(struct test *t)
{
    static char buf[1 << 20];
    struct banyan_opts o = BANYAN_OPTS_INIT;
    size_t count = 100000;
    enum banyan_dtype type = BANYAN_F32;
    banyan_op op = BANYAN_SUM;
    int other = t->rank == t->n - 1, rc;

    o.schedule = "pipeline";
    CHECK_OK(t, banyan_allreduce(buf, buf, count, type, op, t->comm, &o));
    case_meet(t, t->comm);
    if (other && !strcmp(t->arg, "count"))
        count++;
    if (other && !strcmp(t->arg, "type"))
        type = BANYAN_I32;
    if (other && !strcmp(t->arg, "op"))
        op = BANYAN_MAX;
    if (other && !strcmp(t->arg, "chunk"))
        o.chunk_bytes = 8192;
    if (other && !strcmp(t->arg, "schedule"))
        o.schedule = "star";
    rc = other && !strcmp(t->arg, "collective")
             ? banyan_broadcast(buf, count * 4, BANYAN_U8, 0, t->comm, NULL)
             : banyan_allreduce(buf, buf, count, type, op, t->comm, &o);
    CHECK(t, rc == -BANYAN_EMISMATCH, "%s: returned %d (%s)", t->arg, rc, banyan_strerror(rc));
    CHECK_HAS(t, banyan_last_error(), "rank");
    return 0;
}

/* ---- gathers into the root's memory ---- */

#define GATHER_ROUNDS 24
#define GATHER_MOST   (2u << 20) /* bytes of a block */

/* As if each rank had a CPU of its own; before the first pass. arg "mem": roots' memory is
 * banyan's, else the kernel copies there (BANYAN_CMA=0: nobody does). */
static int gathers(struct test *t)
{
    uint64_t s = t->seed;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    uint32_t *in = malloc(GATHER_MOST), *out = malloc(GATHER_MOST * (size_t)t->n + 64);
    uint32_t *shared = NULL;

    t->comm->scope.oversubscribed = 0;
    CHECK(t, in && out, "no memory");
    if (!strcmp(t->arg, "mem"))
        CHECK_OK(t,
                 banyan_mem_alloc(t->comm, GATHER_MOST * (size_t)t->n + 64, (void **)&shared));
    o.schedule = "pipeline";
    for (uint32_t round = 0; round < GATHER_ROUNDS; round++) {
        size_t count = 1 + bny_rng_below(&s, GATHER_MOST / 4 >> bny_rng_below(&s, 4));
        int root = (int)bny_rng_below(&s, (uint64_t)t->n), in_place = bny_rng_below(&s, 3) == 0;
        uint32_t base = (uint32_t)bny_rng_next(&s), shift = bny_rng_below(&s, 2) ? 3 : 0;
        uint32_t *to = (shared && bny_rng_below(&s, 4) ? shared : out) + shift, *from = in;

        if (in_place && t->rank == root)
            from = to + count * (size_t)root;
        memset(to - shift, 0xa5, (count * (size_t)t->n + shift + 1) * 4);
        for (size_t i = 0; i < count; i++)
            from[i] = base + (uint32_t)i + (uint32_t)t->rank;
        CHECK_OK(t, banyan_gather(from, to, count, BANYAN_U32, root, t->comm, &o));
        if (t->rank != root)
            continue;
        for (size_t i = 0; i < count * (size_t)t->n; i++)
            CHECK(t, to[i] == base + (uint32_t)(i % count + i / count), "round %u", round);
        CHECK(t, (!shift || to[-1] == 0xa5a5a5a5) && to[count * (size_t)t->n] == 0xa5a5a5a5,
              "round %u: a byte beside its place", round);
    }
    case_check_works(t, t->comm);
    if (shared)
        CHECK_OK(t, banyan_mem_free(t->comm, shared));
    free(in);
    free(out);
    return 0;
}

/* Roots and givers come in any order, and often at the same moment. */
#define MEETINGS 4000

static int gather_meets(struct test *t)
{
    enum { COUNT = 6000 };
    struct banyan_opts o = BANYAN_OPTS_INIT;
    uint32_t in[COUNT], *out;

    t->comm->scope.oversubscribed = 0;
    CHECK_OK(t, banyan_mem_alloc(t->comm, sizeof in * (size_t)t->n, (void **)&out));
    o.schedule = "pipeline";
    for (uint32_t round = 0; round < MEETINGS; round++) {
        int root = (int)(round / 64 % (uint32_t)t->n);

        for (int r = 0; r < t->n; r++)
            out[r * COUNT] = out[r * COUNT + COUNT - 1] = ~0u;
        in[0] = in[COUNT - 1] = round + (uint32_t)t->rank;
        CHECK_OK(t, banyan_gather(in, out, COUNT, BANYAN_U32, root, t->comm, &o));
        for (int r = 0; r < t->n && t->rank == root; r++)
            CHECK(t,
                  out[r * COUNT] == round + (uint32_t)r &&
                      out[r * COUNT + COUNT - 1] == round + (uint32_t)r,
                  "round %u: block of rank %d", round, r);
        CHECK_OK(t, banyan_barrier(t->comm, NULL));
    }
    CHECK_OK(t, banyan_mem_free(t->comm, out));
    return 0;
}

/* The last rank comes when the root has given up: what it has is the user's again, and nobody
 * writes there. */
static int gather_given_up(struct test *t)
{
    size_t count = GATHER_MOST / 4;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    uint32_t *in = calloc(count, 4), *out = calloc(count * (size_t)t->n, 4);
    int late = t->rank == t->n - 1, root = t->rank == 0, rc;

    t->comm->scope.oversubscribed = 0;
    CHECK(t, in && out, "no memory");
    o.schedule = "pipeline";
    CHECK_OK(t, banyan_gather(in, out, count, BANYAN_U32, 0, t->comm, &o));
    case_meet(t, t->comm);
    memset(in, 0x11, count * 4);
    o.timeout_s = .3;
    if (late)
        case_await_done(t, 1, t->rank);
    rc = banyan_gather(in, out, count, BANYAN_U32, 0, t->comm, &o);
    case_done(t, 1);
    CHECK(t, (!root && !late) || rc < 0, "returned %d", rc);
    if (root) {
        memset(out, 0x22, count * (size_t)t->n * 4);
        case_await_done(t, 1, t->rank); /* the last one, too, has come and gone */
        for (size_t i = 0; i < count * (size_t)t->n; i++)
            CHECK(t, out[i] == 0x22222222, "%zu: %#x", i, out[i]);
    }
    free(in);
    free(out);
    return 0;
}

const struct mp_case cases_pipeline[] = {
    { "pipeline_differs", pipeline_differs, CASE_FAILS },
    { "exchange_differs", exchange_differs, CASE_FAILS },
    { "race", race, 0 },
    { "ahead", ahead, 0 },
    { "roots_differ", roots_differ, CASE_FAILS },
    { "gathers", gathers, 0 },
    { "gather_meets", gather_meets, 0 },
    { "gather_given_up", gather_given_up, CASE_FAILS },
    { NULL, NULL, 0 },
};
