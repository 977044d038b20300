/* SPDX-License-Identifier: BSD-3-Clause */
/* Encoding threads: a job's bytes are those of a call; operations with 0, 1 and 2 of them end
 * with the same bits, results and residuals, and ones that fail leave no thread behind in
 * anybody's memory. BANYAN_TEST_SEED repeats a run. */
#include <math.h>
#include <sched.h>

#include "base/cpu.h"
#include "collectives/local/workers.h"
#include "tests/collectives/coded_rig.h"

#define JOBS  64
#define ELEMS 5000

static void job_fill(struct bny_job *job, const struct bny_codec *codec, float *src, float *ef,
                     char *wire, size_t cap)
{
    memset(job, 0, sizeof *job);
    atomic_init(&job->state, BNY_JOB_NONE);
    job->what = BNY_JOB_ENCODE;
    job->encode.enc = (struct bny_enc){ .codec = codec,
                                        .cpu_flags = bny_cpu_flags(),
                                        .dtype = BANYAN_F32,
                                        .ef = ef,
                                        .ef_scale = 1,
                                        .seed = 3,
                                        .step = 4,
                                        .rank = 1,
                                        .nsum = 1 };
    job->encode.wire = wire;
    job->encode.cap = cap;
    job->encode.src = src;
    job->encode.n = ELEMS;
}

/* Nothing is taken back here: threads do it all, or the test times out. */
Test(ahead, threads_encode_what_a_call_does, .timeout = 60)
{
    static struct bny_job job[JOBS];
    const struct bny_codec *codec;
    struct bny_workers *w;
    uint64_t rng = seed_of_run();

    cr_assert_eq(bny_codec_parse(&codec, "int4"), 0);
    for (int threads = 1; threads <= 2; threads++) {
        size_t cap = bny_message_bound(codec, ELEMS, BANYAN_F32, 0);
        float *src = malloc(JOBS * ELEMS * 4), *ef = calloc(JOBS * ELEMS, 4),
              *same = calloc(ELEMS, 4);
        char *wire = malloc(JOBS * cap), *want = malloc(cap);

        for (size_t i = 0; i < JOBS * ELEMS; i++)
            src[i] = (float)bny_rng_unit(&rng) - 0.5f;
        cr_assert_eq(bny_workers_start(&w, threads), 0, "%s", banyan_last_error());
        for (size_t j = 0; j < JOBS; j++) {
            job_fill(&job[j], codec, src + j * ELEMS, ef + j * ELEMS, wire + j * cap, cap);
            bny_job_give(w, &job[j]);
        }
        for (size_t j = 0; j < JOBS; j++) {
            struct bny_job here;

            while (bny_job_state(&job[j]) != BNY_JOB_DONE)
                sched_yield();
            cr_assert(job[j].thread >= 1 && job[j].thread <= (uint32_t)threads);
            cr_assert_eq(bny_job_take_back(w, &job[j]), 0);
            memset(same, 0, ELEMS * 4);
            job_fill(&here, codec, src + j * ELEMS, same, want, cap);
            bny_job_run(&here, 0);
            cr_assert_eq(job[j].result, here.result);
            cr_assert_eq(memcmp(wire + j * cap, want, (size_t)here.result), 0);
            cr_assert_eq(memcmp(ef + j * ELEMS, same, ELEMS * 4), 0);
        }
        bny_workers_stop(w);
        free(src);
        free(ef);
        free(same);
        free(wire);
        free(want);
    }
}

/* Each job is done once, by a thread or by whoever took it back. */
Test(ahead, jobs_can_be_taken_back, .timeout = 60)
{
    static struct bny_job job[JOBS];
    static float src[ELEMS];
    const struct bny_codec *codec;
    struct bny_workers *w;
    size_t cap;
    char *wire;

    cr_assert_eq(bny_codec_parse(&codec, "int8"), 0);
    cap = bny_message_bound(codec, ELEMS, BANYAN_F32, 0);
    wire = malloc(JOBS * cap);
    cr_assert_eq(bny_workers_start(&w, 2), 0);
    for (int round = 0; round < 50; round++) {
        for (size_t j = 0; j < JOBS; j++) {
            job_fill(&job[j], codec, src, NULL, wire + j * cap, cap);
            bny_job_give(w, &job[j]);
        }
        for (size_t k = 0; k < JOBS; k++) { /* the first, the last, the second, ... */
            size_t j = k % 2 ? JOBS - 1 - k / 2 : k / 2;

            if (bny_job_take_back(w, &job[j]))
                bny_job_run(&job[j], 0);
            while (bny_job_state(&job[j]) != BNY_JOB_DONE)
                sched_yield();
            cr_assert_gt(job[j].result, 0);
        }
    }
    bny_workers_stop(w);
    free(wire);
}

Test(ahead, how_many_threads)
{
    cr_expect_eq(bny_workers_count(0, 1), 0);
    cr_expect_eq(bny_workers_count(3, 4), 3);
    cr_expect_eq(bny_workers_count(1000, 1), BNY_WORKERS_MAX);
    cr_expect_eq(bny_workers_count(-1, 1 << 20), 0, "more ranks than CPUs: none");
    cr_expect_leq(bny_workers_count(-1, 1), 2);
}

struct outcome {
    uint64_t hash;
    int rc;
};

static uint64_t mix(uint64_t h, const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ ((const unsigned char *)p)[i]) * 0x100000001b3u;
    return h;
}

static void with_threads(const char *threads, int n, const struct bny_loop_faults *faults,
                         const char *codec, const char *forest, struct outcome *o)
{
    struct rig g;

    setenv("BANYAN_ENCODE_THREADS", threads, 1);
    rig_open(&g, n, 60001, faults);
    o->hash = 0xcbf29ce484222325u;
    for (int step = 0; step < 4; step++) {
        g.rng = seed_of_run() + (uint64_t)step; /* drive() draws too */
        fill(&g);
        if (step == 2)
            g.in[0][33000] = NAN; /* a chunk that is declined */
        o->rc = allreduce(&g, codec, forest, step == 1 ? 0 : 16384, BANYAN_SUM, 1, step == 3);
        o->hash = mix(o->hash, g.out[0], 4 * g.count);
        for (int r = 0; r < n; r++)
            o->hash = mix(o->hash, banyan_codec_state_residual(g.state[r]), 4 * g.count);
    }
    for (int r = 0; r < n; r++) {
        cr_assert_eq(g.comm[r]->world->jobs_out, 0);
        cr_assert_eq(g.comm[r]->world->workers != NULL,
                     strcmp(threads, "0") != 0 && o->rc == 0);
    }
    rig_close(&g);
    unsetenv("BANYAN_ENCODE_THREADS");
}

Test(ahead, threads_change_no_bit, .timeout = 200)
{
    static const char *const forests[] = { NULL, "ring", "double_binary_tree", "host_ring" };
    struct bny_loop_faults f = { .seed = seed_of_run(),
                                 .loss = 0.05,
                                 .duplicate = 0.05,
                                 .reorder = 0.1,
                                 .delay_polls_max = 4,
                                 .queue_max = 4 };

    fprintf(stderr, "seed %llu\n", (unsigned long long)f.seed);
    for (size_t i = 0; bny_codecs[i]; i++)
        for (size_t k = 0; k < 4; k++) {
            struct outcome none, one, two;

            if (k > 0 && k != 1 + i % 3)
                continue;
            if (bny_codecs[i]->family == BNY_CODEC_LINEAR ||
                bny_codecs[i]->family == BNY_CODEC_RAW)
                continue;
            with_threads("0", k == 3 ? 4 : 3, NULL, bny_codecs[i]->name, forests[k], &none);
            with_threads("1", k == 3 ? 4 : 3, k == 1 ? &f : NULL, bny_codecs[i]->name,
                         forests[k], &one);
            with_threads("2", k == 3 ? 4 : 3, k == 2 ? &f : NULL, bny_codecs[i]->name,
                         forests[k], &two);
            cr_assert_eq(none.rc, one.rc);
            cr_assert_eq(none.hash, one.hash, "%s %s: one thread", bny_codecs[i]->name,
                         forests[k] ? forests[k] : "auto");
            cr_assert_eq(none.hash, two.hash, "%s %s: two threads", bny_codecs[i]->name,
                         forests[k] ? forests[k] : "auto");
        }
}

/* Ranks abort at every stage of an operation: its memory may go at once. */
Test(ahead, a_failed_operation_is_left_alone, .timeout = 120)
{
    setenv("BANYAN_ENCODE_THREADS", "2", 1);
    for (int after = 0; after < 60; after++) {
        struct banyan_opts o = BANYAN_OPTS_INIT;
        struct rig g;

        rig_open(&g, 3, 200000, NULL);
        fill(&g);
        o.codec = after % 2 ? "int8" : "topk";
        o.chunk_bytes = 32768;
        for (int r = 0; r < g.n; r++) {
            o.codec_state = g.state[r];
            cr_assert_eq(banyan_allreduce_init(g.in[r], g.out[r], g.count, BANYAN_F32,
                                               BANYAN_SUM, g.comm[r], &o, &g.req[r]),
                         0);
            cr_assert_eq(banyan_start(g.req[r]), 0);
        }
        for (int turn = 0; turn < after; turn++)
            banyan_progress(g.comm[turn % g.n]);
        for (int r = 0; r < g.n; r++)
            banyan_abort(g.comm[r], "enough");
        for (int r = 0; r < g.n; r++) {
            for (int d = 0; !d;)
                banyan_test(g.req[r], &d);
            cr_assert_eq(g.comm[r]->world->jobs_out, 0);
            memset(g.in[r], 0xff, 4 * g.count);
            cr_assert_eq(banyan_request_free(g.req[r]), 0);
            cr_assert_eq(banyan_codec_state_reset(g.state[r]), 0);
        }
        rig_close(&g);
    }
    unsetenv("BANYAN_ENCODE_THREADS");
}
