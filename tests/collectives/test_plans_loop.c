/* SPDX-License-Identifier: BSD-3-Clause */
/* Plans for a graph, run: every rank in one thread over the loop transport. A grid of ranks,
 * counts, types, in and out of place; a thousand runs under random delays and reordering.
 * BANYAN_TEST_SEED repeats a run. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "collectives/api/job.h"
#include "collectives/progress/progress.h"
#include "transport/loop/loop.h"

#define MAX_N 32

struct job {
    int n;
    struct bny_loop_fabric *fabric;
    struct banyan_comm *comm[MAX_N];
    char *in[MAX_N], *out[MAX_N];
    uint64_t rng;
};

static const struct {
    const char *topology;
    int n;
} grid[] = { { "ring:2", 2 },      { "star:2x4+1x1", 3 },
             { "ring:5", 5 },      { "random:7,degree=2", 7 },
             { "dgx-1", 8 },       { "mesh:3x4", 12 },
             { "mi250:1", 16 },    { "ring:17", 17 },
             { "hypercube:5", 32 } };
static const char *const schedules[] = { "multitree", "packed", "joint" };
static const enum banyan_dtype types[] = { BANYAN_I32, BANYAN_F32, BANYAN_BF16 };

static uint64_t seed_of_run(void)
{
    const char *text = getenv("BANYAN_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : 20261121;

    fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
    return seed;
}

static void open_job(struct job *j, int n, const char *topology,
                     const struct bny_loop_faults *faults, uint64_t seed)
{
    struct banyan_config cfg = BANYAN_CONFIG_INIT;

    cfg.topology = topology;
    *j = (struct job){ .n = n, .rng = seed, .fabric = bny_loop_fabric_create(n, faults) };
    cr_assert_not_null(j->fabric);
    for (int r = 0; r < n; r++)
        cr_assert_eq(bny_comm_loop(&j->comm[r], j->fabric, n, r, &cfg), 0, "%s: %s", topology,
                     banyan_last_error());
}

static void close_job(struct job *j)
{
    for (int r = 0; r < j->n; r++) {
        j->comm[r]->world->orderly = 0; /* no farewell: one thread cannot wait for itself */
        banyan_comm_destroy(j->comm[r]);
    }
    bny_loop_fabric_destroy(j->fabric);
}

/* Whole numbers so small that every type holds their sums. */
static void put(char *to, enum banyan_dtype type, int value)
{
    int32_t i = value;
    float f = (float)value;

    if (type == BANYAN_I32)
        memcpy(to, &i, 4);
    else if (type == BANYAN_F32)
        memcpy(to, &f, 4);
    else
        memcpy(to, (char *)&f + 2, 2); /* little endian: the upper half */
}

static void finish(struct job *j, struct banyan_request **req, const char *what)
{
    int left = j->n;

    for (long turn = 0; left > 0; turn++) {
        int r = (int)bny_rng_below(&j->rng, (uint64_t)j->n), done = 0;

        cr_assert_lt(turn, 5000000, "%s: stuck", what);
        if (!req[r]) {
            banyan_progress(j->comm[r]);
            continue;
        }
        cr_assert_eq(banyan_test(req[r], &done), 0, "%s: rank %d: %s", what, r,
                     banyan_last_error());
        if (done) {
            cr_assert_eq(banyan_request_free(req[r]), 0);
            req[r] = NULL;
            left--;
        }
    }
}

static void allreduce(struct job *j, size_t count, enum banyan_dtype type, int in_place,
                      const struct banyan_opts *opts)
{
    size_t size = banyan_dtype_bytes(type), bytes = count * size;
    struct banyan_request *req[MAX_N];
    int *sum = calloc(count + 1, sizeof *sum);
    char *want = malloc(bytes + 1), what[160];

    snprintf(what, sizeof what, "%s of %zu %s on %d ranks%s", opts->schedule, count,
             banyan_dtype_name(type), j->n, in_place ? ", in place" : "");
    for (int r = 0; r < j->n; r++) {
        j->in[r] = malloc(bytes + 1);
        j->out[r] = in_place ? j->in[r] : malloc(bytes + 1);
        for (size_t i = 0; i < count; i++) {
            int v = (int)bny_rng_below(&j->rng, 7) - 3;

            sum[i] += v;
            put(j->in[r] + i * size, type, v);
        }
        cr_assert_eq(banyan_allreduce_init(j->in[r], j->out[r], count, type, BANYAN_SUM,
                                           j->comm[r], opts, &req[r]),
                     0, "%s: %s", what, banyan_last_error());
    }
    for (int r = 0; r < j->n; r++)
        cr_assert_eq(banyan_start(req[r]), 0, "%s: %s", what, banyan_last_error());
    finish(j, req, what);
    for (size_t i = 0; i < count; i++)
        put(want + i * size, type, sum[i]);
    for (int r = 0; r < j->n; r++) {
        cr_assert_eq(memcmp(j->out[r], want, bytes), 0, "%s: rank %d has another sum", what, r);
        if (!in_place)
            free(j->out[r]);
        free(j->in[r]);
    }
    free(sum);
    free(want);
}

Test(plans_loop, grid_of_ranks_counts_and_types, .timeout = 240)
{
    uint64_t seed = seed_of_run();

    for (size_t g = 0; g < sizeof grid / sizeof grid[0]; g++) {
        size_t n = (size_t)grid[g].n,
               counts[] = { 0, 1, n - 1, n, n + 1, 4093, ((1 << 20) + 3) / 4 };
        struct banyan_opts opts = BANYAN_OPTS_INIT;
        struct job j;

        open_job(&j, grid[g].n, grid[g].topology, NULL, seed + g);
        for (size_t s = 0; s < 3; s++)
            for (size_t t = 0; t < 3; t++)
                for (size_t k = 0; k < (n > 8 ? 6 : 7); k++) {
                    opts.schedule = schedules[s];
                    allreduce(&j, counts[k], types[t], (int)(k + t) % 2, &opts);
                    if (k < 6)
                        allreduce(&j, counts[k], types[t], (int)(k + t + 1) % 2, &opts);
                }
        close_job(&j);
    }
}

/* Messages of different lanes overtake each other, and rings are short; nothing waits for ever.
 */
Test(plans_loop, a_thousand_runs_under_random_delays, .timeout = 240)
{
    static const char *const topologies[] = { "torus:3x3", "star:4x4+4x1", "mesh:2x3",
                                              "ring:5" };
    static const int ranks[] = { 9, 8, 6, 5 };
    uint64_t seed = seed_of_run();

    for (int run = 0; run < 250; run++)
        for (size_t t = 0; t < 4; t++) {
            struct bny_loop_faults f = {
                .seed = ++seed, .reorder = 0.3, .delay_polls_max = 12, .queue_max = 4
            };
            struct banyan_opts opts = BANYAN_OPTS_INIT;
            struct job j;

            open_job(&j, ranks[t], topologies[t], &f, seed);
            opts.schedule = schedules[run % 3];
            opts.chunk_bytes = 64; /* many chunks on the way */
            allreduce(&j, 409, BANYAN_I32, run % 2, &opts);
            close_job(&j);
        }
}
