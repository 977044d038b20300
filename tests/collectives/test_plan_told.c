/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_comm_plan against the plans of requests: every collective, codec and type. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/counts.h"
#include "collectives/api/job.h"
#include "transport/loop/loop.h"

static char in[1], out[1]; /* requests that are never started */

static int request(struct banyan_request **rq, enum bny_collective which, size_t n,
                   enum banyan_dtype d, struct banyan_comm *c)
{
    switch (which) {
    case BNY_ALLREDUCE: return banyan_allreduce_init(in, out, n, d, BANYAN_SUM, c, NULL, rq);
    case BNY_REDUCE: return banyan_reduce_init(in, out, n, d, BANYAN_SUM, 0, c, NULL, rq);
    case BNY_BROADCAST: return banyan_broadcast_init(in, n, d, 0, c, NULL, rq);
    case BNY_REDUCE_SCATTER:
        return banyan_reduce_scatter_init(in, out, n, d, BANYAN_SUM, c, NULL, rq);
    case BNY_ALLGATHER: return banyan_allgather_init(in, out, n, d, c, NULL, rq);
    case BNY_GATHER: return banyan_gather_init(in, out, n, d, 0, c, NULL, rq);
    case BNY_SCATTER: return banyan_scatter_init(in, out, n, d, 0, c, NULL, rq);
    case BNY_ALLTOALL: return banyan_alltoall_init(in, out, n, d, c, NULL, rq);
    case BNY_BARRIER: return banyan_barrier_init(c, NULL, rq);
    case BNY_SCAN: return banyan_scan_init(in, out, n, d, BANYAN_SUM, c, NULL, rq);
    case BNY_EXSCAN: return banyan_exscan_init(in, out, n, d, BANYAN_SUM, c, NULL, rq);
    default: return banyan_recv_init(out, n, d, 0, c, NULL, rq);
    }
}

static void compare(struct banyan_comm *c, enum bny_collective which, size_t n,
                    enum banyan_dtype d, const char *codec)
{
    const char *name = bny_collective_name(which);
    char want[2][160], got[400];
    struct banyan_request *rq;
    const struct bny_plan *plan;

    cr_assert_eq(request(&rq, which, n, d, c), 0, "%s: %s", name, banyan_last_error());
    plan = &rq->op.plan;
    snprintf(want[0], sizeof want[0], "schedule %s,", plan->schedule);
    snprintf(want[1], sizeof want[1], "chunk %zu, codec %s%c", plan->chunk_bytes,
             plan->codec ? plan->codec->spec : "none",
             plan->refused_s > 0 || plan->weighs ? ' ' : ',');
    cr_assert_eq(banyan_comm_plan(c, name, n, d, got, sizeof got), 0, "%s: %s", name,
                 banyan_last_error());
    for (int i = 0; i < 2; i++)
        cr_expect(strstr(got, want[i]),
                  "%s of %zu %s, %d ranks, codec %s%s: the request has %s, told is %s", name, n,
                  banyan_dtype_name(d), c->n, codec, c->scope.deterministic ? ", in order" : "",
                  want[i], got);
    cr_assert_eq(banyan_request_free(rq), 0);
}

static void compare_all(int n, const char *codec, int deterministic)
{
    static const size_t counts[] = { 1, 1000, 100000 };
    struct bny_loop_fabric *fabric = bny_loop_fabric_create(n, NULL);
    struct banyan_config cfg = BANYAN_CONFIG_INIT;
    struct banyan_comm *c;

    cfg.codec = codec;
    cfg.deterministic = deterministic;
    cr_assert_eq(bny_comm_loop(&c, fabric, n, n - 1, &cfg), 0, "%s", banyan_last_error());
    for (int which = 0; which < BNY_COLLECTIVE_COUNT; which++)
        for (int d = 0; d < BNY_DTYPE_COUNT; d++)
            for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++)
                compare(c, (enum bny_collective)which, counts[k], (enum banyan_dtype)d, codec);
    c->world->orderly = 0; /* no farewell: the others are not there */
    banyan_comm_destroy(c);
    bny_loop_fabric_destroy(fabric);
}

Test(plan_told, is_that_of_the_call)
{
    static const int ranks[] = { 1, 2, 5 };
    const char *name;
    char codec[48];

    for (int i = 0; i < 3; i++)
        for (size_t k = 0; (name = banyan_codec_name(k)); k++)
            for (int how = 0; how < 4; how++) { /* insisting, in order of ranks */
                snprintf(codec, sizeof codec, "%s%s", name, how & 1 ? ":force=1" : "");
                compare_all(ranks[i], codec, how >> 1);
            }
}

/* With a codec: the codecs of both directions, what is lost, and a core's part of the time. */
Test(plan_told, what_a_codec_does)
{
    static const struct {
        const char *codec, *says;
    } cases[] = { { "levels:up=raw,down=int8,force=1",
                    ", host raw, net up raw, down int8, nmse 0.0001, max 0.00394, cpu " },
                  { "auto:like=int8,from=int8,force=1",
                    ", host raw, net up int8, down int8, nmse 0.00015, max 0.00787, cpu " },
                  { "topk:force=1", ", host raw, net up topk, down topk, cpu " },
                  { "none", " us" } };
    struct bny_loop_fabric *fabric = bny_loop_fabric_create(4, NULL);
    char text[500];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct banyan_config cfg = BANYAN_CONFIG_INIT;
        struct banyan_comm *c;
        const char *at;

        cfg.codec = cases[i].codec;
        cfg.schedule = "host_star";
        cr_assert_eq(bny_comm_loop(&c, fabric, 4, 3, &cfg), 0, "%s", banyan_last_error());
        cr_assert_eq(banyan_comm_plan(c, "allreduce", 1 << 20, BANYAN_F32, text, sizeof text),
                     0);
        at = strstr(text, cases[i].says);
        cr_expect_not_null(at, "%s: %s", cases[i].codec, text);
        cr_expect(i < 3 || !strcmp(at, " us"), "%s", text);
        c->world->orderly = 0;
        banyan_comm_destroy(c);
    }
    bny_loop_fabric_destroy(fabric);
}
