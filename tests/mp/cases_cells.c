/* SPDX-License-Identifier: BSD-3-Clause */
/* Short operations in cells of shared memory: ranks that run ahead, and ranks that differ. Many
 * in flight: cases_in_flight.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "tests/mp/call.h"

/* Blocking calls in which one rank need not wait for the others: it runs ahead as far as there
 * are cells, and what it showed stays until all have read it. */
static int cells_ahead(struct test *t)
{
    uint64_t s = t->seed, own = model_mix(t->seed, (uint64_t)t->rank + 1);
    struct banyan_opts o = BANYAN_OPTS_INIT;
    uint32_t buf[2000], all[4000];
    int n = t->n, root = 0;

    o.schedule = "direct:cells";
    for (uint32_t i = 0; i < 3000; i++) {
        size_t count = 1 + bny_rng_below(&s, i % 7 ? 50 : 4000 / (size_t)n);

        if (bny_rng_below(&s, 40) == 0)
            root = (int)bny_rng_below(&s, (uint64_t)n);
        for (volatile uint64_t k = bny_rng_below(&own, 300); k; k--)
            ;
        for (size_t e = 0; e < count; e++)
            buf[e] =
                t->rank == root || i % 3 == 1 ? i + (uint32_t)e * 7 + (uint32_t)t->rank : 0;
        if (i % 3 == 0) {
            CHECK_OK(t, banyan_broadcast(buf, count, BANYAN_U32, root, t->comm, &o));
            for (size_t e = 0; e < count; e++)
                CHECK(t, buf[e] == i + (uint32_t)e * 7 + (uint32_t)root, "call %u", i);
        } else if (i % 3 == 1) {
            CHECK_OK(t, banyan_gather(buf, all, count, BANYAN_U32, root, t->comm, &o));
            for (size_t e = 0; t->rank == root && e < count * (size_t)n; e++)
                CHECK(t, all[e] == i + (uint32_t)(e % count) * 7 + (uint32_t)(e / count),
                      "call %u", i);
        } else {
            for (size_t e = 0; e < count * (size_t)n; e++)
                all[e] = i * 3 + (uint32_t)e;
            CHECK_OK(t, banyan_scatter(all, buf, count, BANYAN_U32, root, t->comm, &o));
            for (size_t e = 0; e < count; e++)
                CHECK(t, buf[e] == i * 3 + (uint32_t)(e + count * (size_t)t->rank), "call %u",
                      i);
        }
    }
    return 0;
}

/* The last rank calls something else: the error names both. arg: what differs. */
static int cells_differs(struct test *t)
{
    static char buf[1 << 13];
    struct banyan_opts o = BANYAN_OPTS_INIT;
    size_t count = 100;
    enum banyan_dtype type = BANYAN_F32;
    banyan_op op = BANYAN_SUM;
    int other = t->rank == t->n - 1, rc;

    o.schedule = "direct:cells";
    CHECK_OK(t, banyan_allreduce(buf, buf, count, type, op, t->comm, &o));
    case_meet(t, t->comm);
    if (!strcmp(t->arg, "roots")) { /* both complete; the next operation shows it */
        rc = banyan_broadcast(buf, 1, type, other ? t->rank : 0, t->comm, &o);
        for (int i = 0; i < 3 && rc == 0; i++)
            rc = banyan_barrier(t->comm, NULL);
        CHECK(t, rc == -BANYAN_EMISMATCH, "returned %d (%s)", rc, banyan_strerror(rc));
        CHECK_HAS(t, banyan_last_error(), "broadcast");
        return 0;
    }
    if (other && !strcmp(t->arg, "count"))
        count++;
    if (other && !strcmp(t->arg, "type"))
        type = BANYAN_I32;
    if (other && !strcmp(t->arg, "op"))
        op = BANYAN_MAX;
    if (other && !strcmp(t->arg, "tag"))
        o.tag = 7;
    if (other && !strcmp(t->arg, "schedule"))
        o.schedule = "star";
    if (other && !strcmp(t->arg, "barrier"))
        rc = banyan_barrier(t->comm, NULL);
    else
        rc = other && !strcmp(t->arg, "collective")
                 ? banyan_allgather(buf, buf + 4096, 10, BANYAN_U8, t->comm, NULL)
                 : banyan_allreduce(buf, buf, count, type, op, t->comm, &o);
    CHECK(t, rc == -BANYAN_EMISMATCH, "%s: returned %d (%s)", t->arg, rc, banyan_strerror(rc));
    CHECK_HAS(t, banyan_last_error(), "rank");
    return 0;
}

const struct mp_case cases_cells[] = {
    { "cells_ahead", cells_ahead, 0 },
    { "cells_differs", cells_differs, CASE_FAILS },
    { NULL, NULL, 0 },
};
