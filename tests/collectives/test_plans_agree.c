/* SPDX-License-Identifier: BSD-3-Clause */
/* Every rank chooses a call's plan by itself, and all must choose alike: random calls, each
 * rank with its own counts, displacements, placement and buffers, on ranks of one process,
 * whose plans and signatures are compared. Nothing runs. BANYAN_TEST_SEED repeats a run. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "base/rng.h"
#include "collectives/api/job.h"
#include "collectives/progress/progress.h"
#include "transport/loop/loop.h"

#define MAX_N 8
#define CALLS 20000
#define BYTES ((size_t)8 << 20)

struct job {
    int n;
    struct bny_loop_fabric *fabric;
    struct banyan_comm *comm[MAX_N];
    uint64_t rng;
    char *memory;
};

/* What all ranks have in common. */
struct drawn {
    enum bny_collective collective;
    int vector, root;
    size_t count;
    enum banyan_dtype dtype;
    banyan_op op;
    struct banyan_opts opts;
};

static uint64_t seed_of_run(void)
{
    const char *text = getenv("BANYAN_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : 20261122;

    fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
    return seed;
}

static uint64_t draw(struct job *j, uint64_t n)
{
    return bny_rng_below(&j->rng, n);
}

static void set(const char *name, int on)
{
    if (on)
        setenv(name, "1", 1);
    else
        unsetenv(name);
}

static void open_job(struct job *j, int n, const char *topology, uint64_t seed)
{
    struct banyan_config cfg;

    *j = (struct job){ .n = n, .rng = seed, .fabric = bny_loop_fabric_create(n, NULL) };
    cr_assert_not_null(j->fabric);
    j->memory = malloc(BYTES);
    cr_assert_not_null(j->memory);
    set("BANYAN_LINK_GBPS", draw(j, 2) == 0);
    set("BANYAN_CODEC_FORCE", draw(j, 4) == 0);
    cfg = (struct banyan_config)BANYAN_CONFIG_INIT;
    cfg.topology = topology;
    if (draw(j, 2))
        cfg.chunk_bytes = 8192;
    cfg.deterministic = draw(j, 4) == 0;
    if (draw(j, 3) == 0)
        cfg.codec = draw(j, 2) ? "lossless" : draw(j, 2) ? "int8" : "auto:like=int8";
    for (int r = 0; r < n; r++)
        cr_assert_eq(bny_comm_loop(&j->comm[r], j->fabric, n, r, &cfg), 0, "%s",
                     banyan_last_error());
}

static void close_job(struct job *j)
{
    for (int r = 0; r < j->n; r++) {
        j->comm[r]->world->orderly = 0;
        banyan_comm_destroy(j->comm[r]);
    }
    bny_loop_fabric_destroy(j->fabric);
    free(j->memory);
}

static size_t draw_count(struct job *j, size_t most)
{
    switch (draw(j, 5)) {
    case 0: return draw(j, 3);
    case 1: return draw(j, 200);
    case 2: return draw(j, 20000) % most;
    default: return draw(j, most);
    }
}

static void draw_call(struct job *j, struct drawn *d, char codec[64])
{
    static const size_t chunks[] = { 0, 0, 0, 4096, 131072 };
    static const char *const several[] = { "levels:up=raw,down=int8",
                                           "levels:up=int8,down=raw,force=1", "auto:max=1e-2",
                                           "auto:nmse=3e-2,from=raw+e4m3+int4,force=1" };
    size_t ncodecs = 0, nschedules = 0;

    while (banyan_codec_name(ncodecs))
        ncodecs++;
    while (banyan_schedule_name(nschedules))
        nschedules++;
    memset(d, 0, sizeof *d);
    d->opts = (struct banyan_opts)BANYAN_OPTS_INIT;
    d->collective = (enum bny_collective)draw(j, BNY_COLLECTIVE_COUNT);
    d->vector = d->collective == BNY_REDUCE_SCATTER || d->collective == BNY_ALLGATHER ||
                        d->collective == BNY_GATHER || d->collective == BNY_SCATTER ||
                        d->collective == BNY_ALLTOALL
                    ? (int)draw(j, 3) > 0
                    : 0;
    d->root = (int)draw(j, (uint64_t)j->n);
    d->dtype = draw(j, 2) ? BANYAN_F32 : (enum banyan_dtype)draw(j, BNY_DTYPE_COUNT);
    d->op = (banyan_op)draw(j, 4);
    d->count = draw_count(j, BYTES / 8 / (size_t)j->n);
    if (draw(j, 2)) {
        snprintf(codec, 64, "%s%s", banyan_codec_name(1 + draw(j, ncodecs - 1)),
                 draw(j, 2) ? ":force=1" : "");
        if (draw(j, 4) == 0)
            snprintf(codec, 64, "%s", several[draw(j, 4)]);
        d->opts.codec = codec;
    }
    if (draw(j, 3) == 0)
        d->opts.schedule = banyan_schedule_name(draw(j, nschedules));
    d->opts.chunk_bytes = chunks[draw(j, sizeof chunks / sizeof chunks[0])];
    d->opts.deterministic = (int)draw(j, 8) == 0 ? (int)draw(j, 2) : -1;
    d->opts.tag = (uint32_t)draw(j, 2);
}

/* Counts by rank: all alike where the collective says so, else of this rank alone. */
static void draw_counts(struct job *j, const struct drawn *d, size_t *counts, uint64_t *s)
{
    int even = bny_rng_below(s, 3) == 0;

    for (int r = 0; r < j->n; r++)
        counts[r] = even ? d->count : bny_rng_below(s, 3) ? bny_rng_below(s, d->count + 1) : 0;
}

/* Rank r's request, with what is its own affair drawn anew. */
static int make(struct job *j, const struct drawn *d, int r, uint64_t common,
                struct banyan_request **req)
{
    struct banyan_comm *c = j->comm[r];
    char *a = j->memory + draw(j, 64), *b = j->memory + BYTES / 2 + draw(j, 64);
    size_t counts[MAX_N], other[MAX_N], displs[MAX_N] = { 0 }, *at = draw(j, 2) ? displs : NULL;
    uint64_t s = common, own = bny_rng_next(&j->rng);
    const struct banyan_opts *o = &d->opts;

    draw_counts(j, d, counts, &s);
    draw_counts(j, d, other, &own);
    other[r] = counts[r];
    switch (d->collective) {
    case BNY_ALLREDUCE:
        return banyan_allreduce_init(draw(j, 2) ? a : b, b, d->count, d->dtype, d->op, c, o,
                                     req);
    case BNY_REDUCE:
        return banyan_reduce_init(a, b, d->count, d->dtype, d->op, d->root, c, o, req);
    case BNY_BROADCAST: return banyan_broadcast_init(a, d->count, d->dtype, d->root, c, o, req);
    case BNY_REDUCE_SCATTER:
        return d->vector
                   ? banyan_reduce_scatterv_init(a, b, counts, d->dtype, d->op, c, o, req)
                   : banyan_reduce_scatter_init(a, b, d->count, d->dtype, d->op, c, o, req);
    case BNY_ALLGATHER:
        return d->vector ? banyan_allgatherv_init(a, b, counts, at, d->dtype, c, o, req)
                         : banyan_allgather_init(a, b, d->count, d->dtype, c, o, req);
    case BNY_GATHER:
        return d->vector ? banyan_gatherv_init(a, counts[r], b, r == d->root ? counts : NULL,
                                               at, d->dtype, d->root, c, o, req)
                         : banyan_gather_init(a, b, d->count, d->dtype, d->root, c, o, req);
    case BNY_SCATTER:
        return d->vector ? banyan_scatterv_init(a, r == d->root ? counts : NULL, at, b,
                                                counts[r], d->dtype, d->root, c, o, req)
                         : banyan_scatter_init(a, b, d->count, d->dtype, d->root, c, o, req);
    case BNY_ALLTOALL:
        return d->vector
                   ? banyan_alltoallv_init(a, counts, at, b, other, NULL, d->dtype, c, o, req)
                   : banyan_alltoall_init(draw(j, 2) ? a : b, b, d->count, d->dtype, c, o, req);
    case BNY_BARRIER: return banyan_barrier_init(c, o, req);
    case BNY_SCAN: return banyan_scan_init(a, b, d->count, d->dtype, d->op, c, o, req);
    case BNY_EXSCAN: return banyan_exscan_init(a, b, d->count, d->dtype, d->op, c, o, req);
    default:
        return r % 2 ? banyan_recv_init(a, d->count, d->dtype, (r + j->n - 1) % j->n, c, o, req)
                     : banyan_send_init(a, d->count, d->dtype, (r + 1) % j->n, c, o, req);
    }
}

static void compare(const struct drawn *d, const struct bny_op *x, const struct bny_op *y,
                    int r)
{
    char what[256];

    snprintf(
        what, sizeof what,
        "%s%s of %zu %s, codec %s, schedule %s, chunk %zu, deterministic %d: ranks 0 and %d",
        bny_collective_name(d->collective), d->vector ? " (v)" : "", d->count,
        banyan_dtype_name(d->dtype), d->opts.codec ? d->opts.codec : "-",
        d->opts.schedule ? d->opts.schedule : "-", d->opts.chunk_bytes, d->opts.deterministic,
        r);
    cr_assert_eq(x->plan.way, y->plan.way, "%s: path %d, %d", what, x->plan.way, y->plan.way);
    cr_assert_str_eq(x->plan.schedule, y->plan.schedule, "%s: schedule %s, %s", what,
                     x->plan.schedule, y->plan.schedule);
    cr_assert_eq(x->plan.codec, y->plan.codec, "%s: codec %s, %s", what,
                 x->plan.codec ? x->plan.codec->spec : "none",
                 y->plan.codec ? y->plan.codec->spec : "none");
    cr_assert_eq(x->plan.chunk_bytes, y->plan.chunk_bytes, "%s: chunk %zu, %zu", what,
                 x->plan.chunk_bytes, y->plan.chunk_bytes);
    cr_assert_eq(x->chunk_elems, y->chunk_elems, "%s: chunk %zu, %zu elements", what,
                 x->chunk_elems, y->chunk_elems);
    cr_assert_eq(memcmp(&x->sig, &y->sig, sizeof x->sig), 0, "%s: other signatures", what);
}

static void compare_ranks(struct job *j)
{
    struct banyan_request *req[MAX_N] = { NULL };
    struct drawn d;
    char codec[64];
    uint64_t common;
    int rc[MAX_N] = { 0 };

    draw_call(j, &d, codec);
    common = bny_rng_next(&j->rng);
    for (int r = 0; r < j->n; r++) {
        rc[r] = make(j, &d, r, common, &req[r]);
        cr_assert_eq(rc[r], rc[0], "%s: rank 0 gets %d, rank %d %d: %s",
                     bny_collective_name(d.collective), rc[0], r, rc[r], banyan_last_error());
    }
    for (int r = 0; r < j->n && rc[0] == 0; r++) {
        compare(&d, &req[0]->op, &req[r]->op, r);
        if (r)
            cr_assert_eq(banyan_request_free(req[r]), 0);
    }
    if (rc[0] == 0)
        cr_assert_eq(banyan_request_free(req[0]), 0);
}

Test(plans_agree, nothing_of_a_rank_alone_enters_its_plan, .timeout = 300)
{
    static const struct {
        int n;
        const char *topology;
    } jobs[] = { { 2, NULL }, { 3, NULL },     { 4, NULL },       { 7, NULL },
                 { 8, NULL }, { 4, "ring:4" }, { 6, "mesh:2x3" }, { 8, "torus:2x4" } };
    uint64_t seed = seed_of_run();

    for (size_t round = 0; round < 24; round++) {
        struct job j;

        open_job(&j, jobs[round % 8].n, jobs[round % 8].topology, seed + round);
        for (int i = 0; i < CALLS / 24; i++)
            compare_ranks(&j);
        close_job(&j);
    }
}
