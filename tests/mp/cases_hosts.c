/* SPDX-License-Identifier: BSD-3-Clause */
/* Sums of several hosts by schedule hierarchical (test_hosts.py puts ranks into network
 * namespaces): all types and operations, ranks that differ, die, stay away or give up. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/counts.h"
#include "base/rng.h"
#include "tests/mp/call.h"

#define SUMS 150

/* Short ones and those in order of ranks are refused. */
static void draw(struct call *c, int n, uint64_t *s, uint64_t *own)
{
    do
        call_random(c, n, 1 << (bny_rng_below(s, 8) ? 17 : 21), bny_rng_next(s),
                    bny_rng_next(own));
    while (!call_fits(C_ALLREDUCE, c->op, c->dtype));
    c->coll = C_ALLREDUCE;
    c->schedule = "hierarchical";
}

static void each_type(struct test *t, uint64_t *s, uint64_t *own)
{
    int refused = 0, all = 0;

    for (int type = 0; type < BNY_DTYPE_COUNT; type++)
        for (int op = 0; op < M_OP_COUNT; op++)
            for (int in_place = 0; in_place < 2; in_place++) {
                struct call c;

                if (!call_fits(C_ALLREDUCE, (enum model_op)op, (enum banyan_dtype)type))
                    continue;
                draw(&c, t->n, s, own);
                c.dtype = (enum banyan_dtype)type;
                c.op = (enum model_op)op;
                c.count = (1 + bny_rng_below(s, in_place ? 9000 : 90)) * (size_t)t->n *
                          model_unit(c.op);
                c.in_place = in_place;
                refused += call_check(t, t->comm, &c);
                all++;
            }
    CHECK(t, all > 100 && refused < all / 4, "%d calls, %d refused", all, refused);
}

static int hosts(struct test *t)
{
    uint64_t s = t->seed, own = model_mix(t->seed, (uint64_t)t->rank + 1);
    struct call c;
    int refused = 0;

    each_type(t, &s, &own);
    for (int i = 0; i < 5; i++) { /* hosts add in an order of their own */
        draw(&c, t->n, &s, &own);
        c.deterministic = 1;
        CHECK(t, call_check(t, t->comm, &c) == 1, "in order of ranks");
    }
    for (int i = 0; i < SUMS; i++) {
        draw(&c, t->n, &s, &own);
        refused += call_check(t, t->comm, &c);
    }
    CHECK(t, refused < SUMS / 2, "%d of %d refused", refused, SUMS);
    return 0;
}

/* arg: which rank calls something else, and what differs. */
static int hosts_differ(struct test *t)
{
    static float buf[200001];
    struct banyan_opts o = BANYAN_OPTS_INIT;
    size_t count = 200000;
    int other = t->rank == atoi(t->arg), first, rc;

    o.schedule = "hierarchical";
    first = banyan_allreduce(buf, buf, count, BANYAN_F32, BANYAN_SUM, t->comm, &o);
    if (other && strstr(t->arg, "count"))
        count++;
    if (other && strstr(t->arg, "schedule"))
        o.schedule = "host_ring";
    rc = other && strstr(t->arg, "collective")
             ? banyan_alltoall(buf, buf, 8, BANYAN_F32, t->comm, NULL)
             : banyan_allreduce(
                   buf, buf, count, other && strstr(t->arg, "type") ? BANYAN_I32 : BANYAN_F32,
                   other && strstr(t->arg, "op") ? BANYAN_MAX : BANYAN_SUM, t->comm, &o);
    CHECK(t, rc == -BANYAN_EMISMATCH, "%s: returned %d (%s)", t->arg, rc, banyan_strerror(rc));
    CHECK_HAS(t, banyan_last_error(), "rank");
    CHECK_HAS(t, banyan_last_error(), "count 200000");
    /* Others may have gone on when the last one was not through the first one yet. */
    CHECK(t, first == 0 || first == rc, "the first returned %d", first);
    return 0;
}

/* Sums from that one up to that one, until one fails; the first error. */
static int until_error(struct test *t, struct banyan_comm *comm, int from, int to)
{
    static float in[300000], out[300000];
    struct banyan_opts o = BANYAN_OPTS_INIT;
    int rc = 0;

    o.schedule = "hierarchical";
    for (int i = from; rc == 0 && i < to; i++) {
        size_t count = i % 3 ? 300000 : 1000;

        for (size_t k = 0; k < count; k++)
            in[k] = (float)(t->rank + i % 10);
        rc = banyan_allreduce(in, out, count, BANYAN_F32, BANYAN_SUM, comm, &o);
        for (size_t k = 0; rc == 0 && k < count; k += 97)
            CHECK(t, (int)out[k] == t->n * (t->n - 1) / 2 + t->n * (i % 10), "sum %d", i);
    }
    return rc;
}

/* arg: who dies, after so many sums. The others hear of it and go on without it, on hosts that
 * have not as many ranks each. */
static int hosts_die(struct test *t)
{
    struct banyan_comm *left;
    float x = 1, y = 0;
    int victim = 0, sums = 0, rc;

    sscanf(t->arg, "%d %d", &victim, &sums);
    rc = until_error(t, t->comm, 0, t->rank == victim ? sums : 100000);
    if (t->rank == victim)
        _exit(0);
    CHECK(t, rc == -BANYAN_ERANKDEAD, "returned %d (%s)", rc, banyan_strerror(rc));
    CHECK_OK(t, banyan_comm_shrink(t->comm, &left));
    CHECK(t, banyan_comm_count(left) == t->n - 1, "%d ranks left", banyan_comm_count(left));
    for (int i = 0; i < 20; i++) {
        CHECK_OK(t, banyan_allreduce(&x, &y, 1, BANYAN_F32, BANYAN_SUM, left, NULL));
        CHECK(t, (int)y == t->n - 1, "sum %g", (double)y);
    }
    CHECK_OK(t, banyan_comm_finalize(left));
    return 0;
}

/* arg: who gives the communicator up, or (late) stays away for longer than sums may take. */
static int hosts_end(struct test *t)
{
    int who = atoi(t->arg), late = strstr(t->arg, "late") != NULL, rc, want;
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm;

    cfg.op_timeout_s = late ? 1 : 60;
    CHECK_OK(t, case_init(t, &cfg, &comm));
    rc = until_error(t, comm, 0, t->rank == who ? 20 : 100000);
    if (t->rank == who) {
        CHECK_OK(t, rc);
        if (late)
            sleep(3); /* no memory is shared with the others, whose deadline is 1 s */
        else
            CHECK_OK(t, banyan_comm_revoke(comm, "enough"));
        rc = until_error(t, comm, 20, 100000);
    }
    want = late ? -BANYAN_ETIMEDOUT : -BANYAN_EABORTED;
    CHECK(t, rc == want, "returned %d (%s)", rc, banyan_strerror(rc));
    banyan_comm_destroy(comm);
    return 0;
}

const struct mp_case cases_hosts[] = {
    { "hosts", hosts, 0 },
    { "hosts_differ", hosts_differ, CASE_FAILS },
    { "hosts_die", hosts_die, CASE_FAILS },
    { "hosts_end", hosts_end, CASE_OWN_INIT | CASE_FAILS },
    { NULL, NULL, 0 },
};
