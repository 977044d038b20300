/* SPDX-License-Identifier: BSD-3-Clause */
/* Every collective and every schedule, all ranks in one thread over the loop transport, with
 * seeded loss, duplication, reordering, delay and short queues: results are exact, ranks agree
 * bit for bit, nothing is written outside the buffers, inputs stay as they were.
 * BANYAN_TEST_SEED repeats a run. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "collectives/api/job.h"
#include "collectives/progress/progress.h"
#include "collectives/plan/topology.h"
#include "compress/linear.h"
#include "transport/loop/loop.h"

#define MAX_N 9
#define GUARD 64

struct rig {
    int n;
    struct bny_loop_fabric *fabric;
    struct banyan_comm *comm[MAX_N];
    struct banyan_request *req[MAX_N];
    char *in[MAX_N], *out[MAX_N], *was[MAX_N], *raw[MAX_N][2];
    size_t in_bytes, out_bytes;
    uint64_t rng;
};

static uint64_t seed_of_run(void)
{
    const char *text = getenv("BANYAN_TEST_SEED");

    return text ? strtoull(text, NULL, 0) : 12345;
}

static void rig_open_on(struct rig *g, int n, const struct bny_loop_faults *faults,
                        const char *topology)
{
    struct banyan_config cfg = BANYAN_CONFIG_INIT;

    cfg.topology = topology;
    memset(g, 0, sizeof *g);
    g->n = n;
    g->rng = faults ? faults->seed : 1;
    g->fabric = bny_loop_fabric_create(n, faults);
    cr_assert_not_null(g->fabric);
    for (int r = 0; r < n; r++)
        cr_assert_eq(bny_comm_loop(&g->comm[r], g->fabric, n, r, &cfg), 0, "%s",
                     banyan_last_error());
}

static void rig_open(struct rig *g, int n, const struct bny_loop_faults *faults)
{
    rig_open_on(g, n, faults, NULL);
}

static void rig_close(struct rig *g)
{
    for (int r = 0; r < g->n; r++) {
        g->comm[r]->world->orderly = 0; /* no farewell: one thread cannot wait for itself */
        banyan_comm_destroy(g->comm[r]);
    }
    bny_loop_fabric_destroy(g->fabric);
}

static void buffers(struct rig *g, size_t in_bytes, size_t out_bytes, int in_place)
{
    g->in_bytes = in_bytes;
    g->out_bytes = out_bytes;
    for (int r = 0; r < g->n; r++) {
        size_t off = bny_rng_below(&g->rng, 16);
        size_t big = (in_bytes > out_bytes ? in_bytes : out_bytes) + 2 * GUARD + 16;
        char *a = malloc(big), *b = in_place ? a : malloc(big);
        memset(a, 0x5a, big);
        memset(b, 0x5a, big);
        g->in[r] = a + GUARD + off;
        g->out[r] = b + GUARD + off;
        g->was[r] = malloc(in_bytes + 1);
        g->raw[r][0] = a;
        g->raw[r][1] = in_place ? NULL : b;
    }
}

static void fill_i32(struct rig *g, size_t elems)
{
    for (int r = 0; r < g->n; r++) {
        for (size_t i = 0; i < elems; i++) {
            int32_t v = (int32_t)bny_rng_below(&g->rng, 2000) - 1000;
            memcpy(g->in[r] + 4 * i, &v, 4);
        }
        memcpy(g->was[r], g->in[r], g->in_bytes);
    }
}

static int32_t at(const char *base, size_t i)
{
    int32_t v;

    memcpy(&v, base + 4 * i, 4);
    return v;
}

static void check_guards(struct rig *g, const char *what)
{
    for (int r = 0; r < g->n; r++)
        for (int i = 1; i <= 32; i++) {
            cr_assert_eq(g->out[r][-i], 0x5a, "%s: rank %d wrote before its output", what, r);
            cr_assert_eq(
                g->out[r][(g->out[r] == g->in[r] && g->in_bytes > g->out_bytes ? g->in_bytes
                                                                               : g->out_bytes) +
                          (size_t)i - 1],
                0x5a, "%s: rank %d wrote behind its output", what, r);
        }
}

static void release(struct rig *g)
{
    for (int r = 0; r < g->n; r++) {
        free(g->was[r]);
        free(g->raw[r][0]);
        free(g->raw[r][1]);
    }
}

/* Starts all ranks in a seeded order, progresses them in another, until all are done. */
static void drive(struct rig *g, const char *what)
{
    int order[MAX_N], done[MAX_N] = { 0 }, left = g->n;

    for (int r = 0; r < g->n; r++)
        order[r] = r;
    for (int r = g->n - 1; r > 0; r--) {
        int k = (int)bny_rng_below(&g->rng, (uint64_t)r + 1), t = order[r];
        order[r] = order[k];
        order[k] = t;
    }
    for (int r = 0; r < g->n; r++)
        cr_assert_eq(banyan_start(g->req[order[r]]), 0, "%s: %s", what, banyan_last_error());
    for (long turn = 0; left > 0; turn++) {
        int r = (int)bny_rng_below(&g->rng, (uint64_t)g->n), d = 0, rc;
        cr_assert_lt(turn, 3000000, "%s: stuck", what);
        if (done[r]) {
            banyan_progress(g->comm[r]);
            continue;
        }
        rc = banyan_test(g->req[r], &d);
        cr_assert_eq(rc, 0, "%s: rank %d: %s", what, r, banyan_last_error());
        if (d) {
            done[r] = 1;
            left--;
        }
    }
    for (int r = 0; r < g->n; r++) {
        cr_assert_eq(banyan_request_free(g->req[r]), 0);
        g->req[r] = NULL;
    }
}

static void allreduce_case(struct rig *g, size_t count, int in_place,
                           const struct banyan_opts *opts)
{
    char what[128];

    snprintf(what, sizeof what, "allreduce n=%d count=%zu in_place=%d schedule=%s", g->n, count,
             in_place, opts->schedule ? opts->schedule : "auto");
    buffers(g, 4 * count, 4 * count, in_place);
    fill_i32(g, count);
    for (int r = 0; r < g->n; r++) {
        int rc = banyan_allreduce_init(g->in[r], g->out[r], count, BANYAN_I32, BANYAN_SUM,
                                       g->comm[r], opts, &g->req[r]);
        if (rc == -BANYAN_ENOTSUP && opts->schedule) { /* not a schedule for such n or size */
            release(g);
            return;
        }
        cr_assert_eq(rc, 0, "%s: %s", what, banyan_last_error());
    }
    drive(g, what);
    for (size_t i = 0; i < count; i++) {
        int32_t sum = 0;
        for (int r = 0; r < g->n; r++)
            sum += at(g->was[r], i);
        for (int r = 0; r < g->n; r++)
            cr_assert_eq(at(g->out[r], i), sum, "%s: rank %d element %zu is %d, expected %d",
                         what, r, i, at(g->out[r], i), sum);
    }
    for (int r = 0; r < g->n && !in_place; r++)
        cr_assert_eq(memcmp(g->in[r], g->was[r], g->in_bytes), 0, "%s: rank %d: input changed",
                     what, r);
    check_guards(g, what);
    release(g);
}

static void all_schedules(const struct bny_loop_faults *faults, size_t big)
{
    for (int n = 1; n <= MAX_N; n++) {
        struct rig g;
        struct banyan_opts opts = BANYAN_OPTS_INIT;
        rig_open(&g, n, faults);
        for (size_t i = 0; banyan_schedule_name(i); i++) {
            const size_t counts[] = { 0, 1, (size_t)n - 1, (size_t)n + 1, 1021, big };
            opts.schedule = banyan_schedule_name(i);
            opts.chunk_bytes = 4096;
            for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++)
                for (int in_place = 0; in_place < 2; in_place++)
                    allreduce_case(&g, counts[k], in_place, &opts);
        }
        rig_close(&g);
    }
}

Test(engine_loop, allreduce_every_schedule)
{
    all_schedules(NULL, 70003);
}

Test(engine_loop, allreduce_every_schedule_under_faults)
{
    struct bny_loop_faults f = { .seed = seed_of_run(),
                                 .loss = 0.1,
                                 .duplicate = 0.1,
                                 .reorder = 0.2,
                                 .delay_polls_max = 5,
                                 .queue_max = 4 };

    fprintf(stderr, "seed %llu\n", (unsigned long long)f.seed);
    all_schedules(&f, 9001);
}

/* Rank r's part of a call of any collective with blocks of `count`. */
static int request_of(struct rig *g, enum bny_collective c, size_t count, int root, int r)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    const void *s = g->in[r];
    void *d = g->out[r];
    struct banyan_comm *m = g->comm[r];
    struct banyan_request **q = &g->req[r];

    o.chunk_bytes = 4096;
    if (c == BNY_BROADCAST)
        memcpy(d, s, 4 * count);
    switch (c) {
    case BNY_ALLREDUCE:
        return banyan_allreduce_init(s, d, count, BANYAN_I32, BANYAN_SUM, m, &o, q);
    case BNY_REDUCE:
        return banyan_reduce_init(s, d, count, BANYAN_I32, BANYAN_SUM, root, m, &o, q);
    case BNY_BROADCAST: return banyan_broadcast_init(d, count, BANYAN_I32, root, m, &o, q);
    case BNY_REDUCE_SCATTER:
        return banyan_reduce_scatter_init(s, d, count, BANYAN_I32, BANYAN_SUM, m, &o, q);
    case BNY_ALLGATHER: return banyan_allgather_init(s, d, count, BANYAN_I32, m, &o, q);
    case BNY_GATHER: return banyan_gather_init(s, d, count, BANYAN_I32, root, m, &o, q);
    case BNY_SCATTER: return banyan_scatter_init(s, d, count, BANYAN_I32, root, m, &o, q);
    case BNY_ALLTOALL: return banyan_alltoall_init(s, d, count, BANYAN_I32, m, &o, q);
    case BNY_BARRIER: return banyan_barrier_init(m, &o, q);
    case BNY_SCAN: return banyan_scan_init(s, d, count, BANYAN_I32, BANYAN_SUM, m, &o, q);
    default: return banyan_exscan_init(s, d, count, BANYAN_I32, BANYAN_SUM, m, &o, q);
    }
}

/* Element i of rank r's result. */
static int32_t expected(const struct rig *g, enum bny_collective c, size_t count, int root,
                        int r, size_t i)
{
    int last = c == BNY_SCAN ? r : c == BNY_EXSCAN ? r - 1 : g->n - 1;
    size_t b = count ? i / count : 0, k = count ? i % count : 0;
    int32_t sum = 0;

    switch (c) {
    case BNY_BROADCAST: return at(g->was[root], i);
    case BNY_ALLGATHER:
    case BNY_GATHER: return at(g->was[b], k);
    case BNY_ALLTOALL: return at(g->was[b], (size_t)r * count + k);
    case BNY_SCATTER: return at(g->was[root], (size_t)r * count + i);
    case BNY_REDUCE_SCATTER: i += (size_t)r * count; break;
    default: break;
    }
    for (int q = 0; q <= last; q++)
        sum += at(g->was[q], i);
    return sum;
}

/* Has rank r a result? */
static int has_result(enum bny_collective c, int root, int r)
{
    if (c == BNY_REDUCE || c == BNY_GATHER)
        return r == root;
    return c != BNY_BARRIER && (c != BNY_EXSCAN || r > 0);
}

/* One random call of any collective. */
static void random_call(struct rig *g)
{
    enum bny_collective c = (enum bny_collective)bny_rng_below(&g->rng, BNY_EXSCAN + 1);
    size_t count =
        bny_rng_below(&g->rng, 3) ? bny_rng_below(&g->rng, 50) : bny_rng_below(&g->rng, 20000);
    size_t n = (size_t)g->n;
    int root = (int)bny_rng_below(&g->rng, n);
    size_t in =
        c == BNY_REDUCE_SCATTER || c == BNY_ALLTOALL || c == BNY_SCATTER ? n * count : count;
    size_t out = c == BNY_ALLGATHER || c == BNY_ALLTOALL || c == BNY_GATHER ? n * count : count;
    char what[128];

    snprintf(what, sizeof what, "%s n=%d count=%zu root=%d", bny_collective_name(c), g->n,
             count, root);
    buffers(g, 4 * in, 4 * out, 0);
    fill_i32(g, in);
    for (int r = 0; r < g->n; r++)
        cr_assert_eq(request_of(g, c, count, root, r), 0, "%s: %s", what, banyan_last_error());
    drive(g, what);
    for (int r = 0; r < g->n; r++)
        for (size_t i = 0; i < out && has_result(c, root, r); i++) {
            int32_t expect = expected(g, c, count, root, r, i), got = at(g->out[r], i);

            cr_assert_eq(got, expect, "%s: rank %d element %zu is %d, expected %d", what, r, i,
                         got, expect);
        }
    for (int r = 0; r < g->n; r++)
        cr_assert_eq(memcmp(g->in[r], g->was[r], g->in_bytes), 0, "%s: rank %d: input changed",
                     what, r);
    check_guards(g, what);
    release(g);
}

Test(engine_loop, random_calls_under_faults)
{
    struct bny_loop_faults f = { .seed = seed_of_run() + 7,
                                 .loss = 0.05,
                                 .duplicate = 0.05,
                                 .reorder = 0.2,
                                 .delay_polls_max = 3,
                                 .queue_max = 8 };

    fprintf(stderr, "seed %llu\n", (unsigned long long)f.seed);
    for (int n = 2; n <= MAX_N; n++) {
        struct rig g;
        f.seed += (uint64_t)n;
        rig_open(&g, n, &f);
        for (int i = 0; i < 60; i++)
            random_call(&g);
        rig_close(&g);
    }
}

/* Graphs of these ranks, or of hosts with two ranks each. */
static const struct {
    const char *topology;
    int n;
} networks[] = { { "torus:3x3", 9 },    { "mesh:2x3", 6 },     { "ring:5", 5 },
                 { "star:4x4+4x1", 8 }, { "dgx-1", 8 },        { "leafspine:2x4,over=2", 8 },
                 { "ring:4", 8 },       { "star:1x4+2x1", 6 }, { "mesh:2x2", 7 } };

/* Every schedule that looks at the network, and whatever auto takes, with messages lost and
 * late. */
Test(engine_loop, schedules_of_networks_under_faults)
{
    struct bny_loop_faults f = { .seed = seed_of_run() + 99,
                                 .loss = 0.05,
                                 .duplicate = 0.05,
                                 .reorder = 0.2,
                                 .delay_polls_max = 3,
                                 .queue_max = 4 };

    fprintf(stderr, "seed %llu\n", (unsigned long long)f.seed);
    for (size_t t = 0; t < sizeof networks / sizeof networks[0]; t++) {
        const size_t counts[] = { 0, 1, (size_t)networks[t].n + 1, 4093 };
        struct banyan_opts opts = BANYAN_OPTS_INIT;
        struct rig g;

        rig_open_on(&g, networks[t].n, &f, networks[t].topology);
        opts.chunk_bytes = 4096;
        for (size_t i = 0; bny_topology_schedule_name(i); i++)
            for (size_t k = 0; k < 4; k++) {
                opts.schedule = bny_topology_schedule_name(i);
                allreduce_case(&g, counts[k], (int)(k % 2), &opts);
            }
        if (networks[t].n == 9) { /* under a cap on the height */
            opts.schedule = "packed_h3";
            for (size_t k = 0; k < 4; k++)
                allreduce_case(&g, counts[k], 0, &opts);
        }
        for (int i = 0; i < 15; i++)
            random_call(&g);
        rig_close(&g);
    }
}

static struct bny_plan plan_of(struct banyan_comm *c, size_t bytes, const char *schedule)
{
    struct bny_call call = { .collective = BNY_ALLREDUCE,
                             .dtype = BANYAN_F32,
                             .count = bytes / 4,
                             .root = -1,
                             .timeout_s = -1 };
    struct bny_plan plan, said;

    bny_call_set_schedule(&call, schedule);
    cr_assert_eq(bny_redop_get(&call.redop, BANYAN_SUM, call.dtype), 0);
    cr_assert_eq(bny_plan_get(&c->scope, &call, &plan), 0, "%s", banyan_last_error());
    said = plan;
    bny_plan_drop(&plan);
    return said;
}

/* Size by size all ranks choose the same, never what is predicted to take longer than an
 * exactly packed forest; the highest trees that are worth their latency grow with the message.
 */
Test(engine_loop, auto_weighs_height_against_load)
{
    static const struct {
        const char *topology;
        int n;
    } of[] = { { "ring:9", 9 }, { "mesh:3x3", 9 }, { "star:4x4+4x1", 8 }, { "torus:3x3", 9 } };

    for (size_t t = 0; t < sizeof of / sizeof of[0]; t++) {
        int before = 0;
        struct rig g;

        rig_open_on(&g, of[t].n, NULL, of[t].topology);
        for (size_t bytes = 1 << 10; bytes <= 64 << 20; bytes *= 4) {
            struct bny_plan a = plan_of(g.comm[0], bytes, ""),
                            packed = plan_of(g.comm[0], bytes, "packed");
            int height = 0;

            for (int r = 1; r < g.n; r++) {
                struct bny_plan b = plan_of(g.comm[r], bytes, "");

                cr_assert(!strcmp(a.schedule, b.schedule) && a.chunk_bytes == b.chunk_bytes &&
                              a.hash == b.hash,
                          "%s, %zu bytes: %s and %s", of[t].topology, bytes, a.schedule,
                          b.schedule);
            }
            cr_log_info("%s, %zu bytes: %s, %.3g s (packed %.3g)", of[t].topology, bytes,
                        a.schedule, a.predicted_s, packed.predicted_s);
            if (bytes >= 4096)
                cr_assert_leq(a.predicted_s, packed.predicted_s, "%s, %zu bytes: %s",
                              of[t].topology, bytes, a.schedule);
            if (sscanf(a.schedule, "packed_h%d", &height) == 1) {
                cr_assert_geq(height, before, "%s, %zu bytes: %s", of[t].topology, bytes,
                              a.schedule);
                before = height;
            }
        }
        rig_close(&g);
    }
}

Test(engine_loop, a_topology_of_another_size_is_refused)
{
    struct bny_loop_fabric *fabric = bny_loop_fabric_create(6, NULL);
    struct banyan_comm *comm = NULL;
    struct banyan_config cfg = BANYAN_CONFIG_INIT;

    cfg.topology = "torus:3x3";
    cr_assert_eq(bny_comm_loop(&comm, fabric, 6, 0, &cfg), -BANYAN_EINVAL);
    cr_assert_not_null(strstr(banyan_last_error(), "is for 9 ranks; this job has 6"), "%s",
                       banyan_last_error());
    bny_loop_fabric_destroy(fabric);
}

Test(engine_loop, codecs_round_once_and_ranks_agree)
{
    const char *const names[] = { "f16:force=1", "bf16:force=1" };
    const double bound[] = { 0x1p-10, 0x1p-7 };

    for (int n = 2; n <= 5; n++)
        for (int k = 0; k < 2; k++) {
            struct rig g;
            struct banyan_opts o = BANYAN_OPTS_INIT;
            size_t count = 30011;
            rig_open(&g, n, NULL);
            o.codec = names[k];
            buffers(&g, 4 * count, 4 * count, 0);
            for (int r = 0; r < n; r++)
                for (size_t i = 0; i < count; i++) {
                    float v = (float)(1.0 + bny_rng_unit(&g.rng));
                    memcpy(g.in[r] + 4 * i, &v, 4);
                }
            for (int r = 0; r < n; r++)
                cr_assert_eq(banyan_allreduce_init(g.in[r], g.out[r], count, BANYAN_F32,
                                                   BANYAN_SUM, g.comm[r], &o, &g.req[r]),
                             0, "%s", banyan_last_error());
            drive(&g, names[k]);
            for (size_t i = 0; i < count; i++) {
                double sum = 0;
                float got, x;
                for (int r = 0; r < n; r++) {
                    memcpy(&x, g.in[r] + 4 * i, 4);
                    sum += x;
                }
                memcpy(&got, g.out[0] + 4 * i, 4);
                cr_assert(got > sum * (1 - bound[k] * 2) && got < sum * (1 + bound[k] * 2),
                          "%s n=%d element %zu: %g for %g", names[k], n, i, (double)got, sum);
            }
            for (int r = 1; r < n; r++)
                cr_assert_eq(memcmp(g.out[0], g.out[r], 4 * count), 0,
                             "%s: ranks 0 and %d differ", names[k], r);
            release(&g);
            rig_close(&g);
        }
}

Test(engine_loop, mismatched_count_fails_on_both_sides)
{
    struct rig g;
    int32_t a[8] = { 0 }, b[8] = { 0 };
    int d = 0, rc = 0;

    rig_open(&g, 2, NULL);
    cr_assert_eq(
        banyan_allreduce_init(a, a, 4, BANYAN_I32, BANYAN_SUM, g.comm[0], NULL, &g.req[0]), 0);
    cr_assert_eq(
        banyan_allreduce_init(b, b, 8, BANYAN_I32, BANYAN_SUM, g.comm[1], NULL, &g.req[1]), 0);
    cr_assert_eq(banyan_start(g.req[0]), 0);
    cr_assert_eq(banyan_start(g.req[1]), 0);
    for (int r = 0; r < 2; r++) {
        d = 0;
        for (int i = 0; i < 1000 && !d; i++)
            rc = banyan_test(g.req[r], &d);
        cr_assert(d);
        cr_assert_eq(rc, -BANYAN_EMISMATCH);
        cr_assert_not_null(
            strstr(banyan_last_error(), "rank 0 called allreduce(count 4, i32, sum)"));
        cr_assert_not_null(
            strstr(banyan_last_error(), "rank 1 called allreduce(count 8, i32, sum)"));
        cr_assert_eq(banyan_barrier(g.comm[r], NULL), -BANYAN_EMISMATCH);
        cr_assert_eq(banyan_request_free(g.req[r]), 0);
    }
    rig_close(&g);
}

/* A program's "for ever" may be infinity, or a number that does not fit into nanoseconds. */
Test(engine_loop, endless_deadlines_never_pass)
{
    static const double endless[] = { INFINITY, 1e300, 1e12, 0 };

    for (size_t i = 0; i < sizeof endless / sizeof endless[0]; i++) {
        struct banyan_opts opts = BANYAN_OPTS_INIT;
        int32_t a[2] = { 1, 2 };
        struct rig g;
        int d = 0;

        opts.timeout_s = endless[i];
        rig_open(&g, 2, NULL);
        for (int r = 0; r < 2; r++)
            cr_assert_eq(banyan_allreduce_init(&a[r], &a[r], 1, BANYAN_I32, BANYAN_SUM,
                                               g.comm[r], &opts, &g.req[r]),
                         0);
        cr_assert_eq(banyan_start(g.req[0]), 0);
        for (int k = 0; k < 3; k++) {
            bny_world_lock(g.comm[0]->world);
            bny_world_tick(g.comm[0]->world); /* the first one sets the deadline */
            bny_world_unlock(g.comm[0]->world);
            bny_failure_adopt(g.comm[0]->world);
        }
        cr_assert_eq(banyan_test(g.req[0], &d), 0, "timeout %g: %s", endless[i],
                     banyan_last_error());
        cr_assert_eq(d, 0);
        cr_assert_eq(banyan_start(g.req[1]), 0);
        for (int r = 0; r < 2; r++) {
            for (int k = d = 0; k < 1000 && !d; k++)
                cr_assert_eq(banyan_test(g.req[r], &d), 0, "timeout %g: %s", endless[i],
                             banyan_last_error());
            cr_assert(d && a[r] == 3);
            cr_assert_eq(banyan_request_free(g.req[r]), 0);
        }
        rig_close(&g);
    }
}

static int refusals;

static int refuse(struct bny_linear *l, int k, struct bny_stage *s)
{
    refusals++;
    return bny_fail(BANYAN_ENOTSUP, "stage %d of %zu elements is refused", k, l->n);
}

/* Whoever waits looks at the failures of others only between turns that move nothing. */
Test(engine_loop, a_stage_that_fails_is_not_tried_again)
{
    struct bny_linear_ops linear;
    struct bny_codec_ops ops;
    struct bny_codec codec;
    float a[4096] = { 0 };
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    struct rig g;
    int d = 0;

    opts.codec = "powersgd:force=1";
    rig_open(&g, 2, NULL);
    cr_assert_eq(
        banyan_allreduce_init(a, a, 4096, BANYAN_F32, BANYAN_SUM, g.comm[0], &opts, &g.req[0]),
        0);
    codec = *g.req[0]->op.plan.codec;
    ops = *codec.ops;
    linear = *ops.linear;
    linear.contribute = refuse;
    ops.linear = &linear;
    codec.ops = &ops;
    g.req[0]->op.plan.codec = &codec;
    refusals = 0;
    cr_assert_eq(banyan_start(g.req[0]), 0);
    for (int i = 0; i < 3;
         i++) /* before the failure is known: with a control plane that takes a while */
    {
        bny_world_lock(g.comm[0]->world);
        cr_assert_eq(bny_op_advance(&g.req[0]->op), 0);
        bny_world_unlock(g.comm[0]->world);
    }
    cr_assert_eq(refusals, 1);
    cr_assert_eq(banyan_test(g.req[0], &d), -BANYAN_ENOTSUP);
    cr_assert_eq(d, 1);
    cr_assert_not_null(strstr(banyan_last_error(), "is refused"));
    cr_assert_eq(banyan_request_free(g.req[0]), 0);
    rig_close(&g);
}

Test(engine_loop, a_wait_that_always_finds_something_looks_at_deadlines)
{
    struct bny_waiter wt;
    struct rig g;

    rig_open(&g, 2, NULL);
    bny_wait_init(&wt);
    cr_assert_eq(g.comm[0]->world->tick_ns, 0);
    for (int i = 0; i < 1000; i++)
        bny_wait_found(&wt, g.comm[0]->world);
    cr_assert_neq(g.comm[0]->world->tick_ns, 0);
    rig_close(&g);
}

Test(engine_loop, displacements_beyond_memory_are_refused)
{
    size_t counts[2] = { 1, 1 }, displs[2] = { 0, SIZE_MAX / 4 }, unused[2] = { 0, 1 };
    int32_t a[4] = { 0 }, b[4] = { 0 };
    struct rig g;

    rig_open(&g, 2, NULL);
    cr_assert_eq(
        banyan_allgatherv_init(a, b, counts, displs, BANYAN_I32, g.comm[0], NULL, &g.req[0]),
        -BANYAN_EINVAL);
    cr_assert_not_null(strstr(banyan_last_error(), "displs"));
    cr_assert_eq(banyan_alltoallv_init(a, counts, NULL, b, counts, displs, BANYAN_I32,
                                       g.comm[0], NULL, &g.req[0]),
                 -BANYAN_EINVAL);
    counts[1] = 0; /* what is at no element's place is not looked at */
    cr_assert_eq(
        banyan_allgatherv_init(a, b, counts, displs, BANYAN_I32, g.comm[0], NULL, &g.req[0]),
        0);
    cr_assert_eq(banyan_request_free(g.req[0]), 0);
    cr_assert_eq(banyan_alltoallv_init(a, counts, unused, b, counts, NULL, BANYAN_I32,
                                       g.comm[0], NULL, &g.req[0]),
                 0);
    cr_assert_eq(banyan_request_free(g.req[0]), 0);
    rig_close(&g);
}

/* The sentence tells the time that the wait allowed, not the operation's own. */
Test(engine_loop, a_wait_tells_its_own_deadline)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    struct rig g;
    int32_t a = 1;

    opts.timeout_s = 300;
    rig_open(&g, 2, NULL);
    cr_assert_eq(
        banyan_allreduce_init(&a, &a, 1, BANYAN_I32, BANYAN_SUM, g.comm[0], &opts, &g.req[0]),
        0);
    cr_assert_eq(banyan_start(g.req[0]), 0);
    cr_assert_eq(banyan_wait(g.req[0], 0.3), -BANYAN_ETIMEDOUT);
    cr_assert(strstr(banyan_last_error(), ", 0."), "%s", banyan_last_error());
    cr_assert_eq(banyan_request_free(g.req[0]), 0);
    rig_close(&g);
}
