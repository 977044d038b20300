/* SPDX-License-Identifier: BSD-3-Clause */
/* Jobs: each kind gives the same bits when a thread does it, when its giver takes it back, and
 * as the function that it stands for. */
#include <criterion/criterion.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/err.h"
#include "base/rng.h"
#include "collectives/local/local.h"
#include "collectives/local/workers.h"

#define JOBS  200
#define ELEMS 1500
#define BYTES (ELEMS * 4)

static struct bny_job jobs[JOBS];
static float src[ELEMS], more[ELEMS];
static char got[JOBS][2 * BYTES], want[2 * BYTES];

/* All jobs are given to `threads` workers; every third is asked back. 0 threads: done here. */
static void do_all(int threads)
{
    struct bny_workers *w = NULL;
    int by_threads = 0;

    if (threads)
        cr_assert_eq(bny_workers_start(&w, threads), 0, "%s", banyan_last_error());
    for (int j = 0; j < JOBS && w; j++)
        bny_job_give(w, &jobs[j]);
    for (int j = 0; j < JOBS; j++)
        if (!w || (j % 3 == 0 && bny_job_take_back(w, &jobs[j])))
            bny_job_run(&jobs[j], 0);
    for (int j = 0; j < JOBS; j++) {
        while (bny_job_state(&jobs[j]) != BNY_JOB_DONE)
            sched_yield();
        by_threads += jobs[j].thread != 0;
        cr_assert_leq(jobs[j].thread, (uint32_t)threads);
    }
    cr_assert(threads ? by_threads >= JOBS / 2 : by_threads == 0);
    bny_workers_stop(w);
}

static void make(enum bny_job_what what)
{
    memset(jobs, 0, sizeof jobs);
    memset(got, 0x5a, sizeof got);
    memset(want, 0x5a, sizeof want);
    for (int j = 0; j < JOBS; j++) {
        atomic_init(&jobs[j].state, BNY_JOB_NONE);
        jobs[j].what = what;
    }
}

static void check(const char *what, long result, int threads)
{
    for (int j = 0; j < JOBS; j++) {
        cr_assert_eq(jobs[j].result, result, "%s, %d threads: %ld", what, threads,
                     jobs[j].result);
        cr_assert_eq(memcmp(got[j], want, sizeof want), 0, "%s, %d threads, job %d", what,
                     threads, j);
    }
}

static int flip(void *dst, const void *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((char *)dst)[i] = (char)~((const char *)from)[i];
    return 0;
}

static int refuse(void *dst, const void *from, size_t bytes)
{
    return bny_fail(BANYAN_ESYSTEM, "no copy of %zu bytes today", bytes);
}

static const struct bny_mem_kind flips = { .name = "flips", .copy = flip },
                                 refuses = { .name = "refuses", .copy = refuse };

static void numbers(void)
{
    uint64_t rng = 5;

    for (int i = 0; i < ELEMS; i++) {
        src[i] = (float)bny_rng_unit(&rng) - 0.5f;
        more[i] = (float)bny_rng_unit(&rng);
    }
}

TestSuite(jobs, .init = numbers, .timeout = 60);

static void copies(const struct bny_mem_kind *kind, int threads)
{
    make(BNY_JOB_COPY);
    for (int j = 0; j < JOBS; j++) {
        jobs[j].copy.kind = kind;
        jobs[j].copy.dst = got[j];
        jobs[j].copy.src = src;
        jobs[j].copy.bytes = BYTES;
    }
    do_all(threads);
}

Test(jobs, copies)
{
    for (int threads = 0; threads <= 2; threads++) {
        copies(NULL, threads);
        bny_local_copy(want, src, BYTES);
        check("copy", 0, threads);
        copies(&flips, threads);
        flip(want, src, BYTES);
        check("copy of a kind", 0, threads);
    }
}

Test(jobs, errors_bring_their_sentence)
{
    copies(&refuses, 2);
    for (int j = 0; j < JOBS; j++) {
        cr_assert_eq(jobs[j].result, -BANYAN_ESYSTEM);
        cr_assert_not_null(strstr(jobs[j].text, "no copy of 6000 bytes today"));
    }
}

Test(jobs, reductions)
{
    static const banyan_op ops[] = { BANYAN_SUM, BANYAN_MAX, BANYAN_PROD };

    for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++)
        for (int threads = 0; threads <= 2; threads++) {
            struct bny_redop op;

            cr_assert_eq(bny_redop_get(&op, ops[k], BANYAN_F32), 0);
            make(BNY_JOB_REDUCE);
            for (int j = 0; j < JOBS; j++) {
                jobs[j].reduce.op = &op;
                jobs[j].reduce.dtype = BANYAN_F32;
                jobs[j].reduce.dst = got[j];
                jobs[j].reduce.a = src;
                jobs[j].reduce.b = more;
                jobs[j].reduce.n = ELEMS;
            }
            do_all(threads);
            bny_local_reduce(&op, BANYAN_F32, want, src, more, ELEMS);
            check(bny_redop_name(op.wire), 0, threads);
        }
}

Test(jobs, codes_and_back)
{
    static const char *const specs[] = { "f16", "int8", "int4" };
    static char wire[2 * BYTES];

    for (size_t k = 0; k < sizeof specs / sizeof specs[0]; k++)
        for (int threads = 0; threads <= 2; threads++) {
            const struct bny_codec *codec;
            struct bny_enc enc;
            struct bny_dec dec;
            size_t cap;
            long len;

            cr_assert_eq(bny_codec_parse(&codec, specs[k]), 0);
            cap = bny_message_bound(codec, ELEMS, BANYAN_F32, 0);
            cr_assert_leq(cap, sizeof wire);
            enc = (struct bny_enc){ .codec = codec,
                                    .cpu_flags = bny_cpu_flags(),
                                    .dtype = BANYAN_F32,
                                    .ef_scale = 1,
                                    .nsum = 1 };
            dec = (struct bny_dec){
                .codec = codec, .cpu_flags = bny_cpu_flags(), .dtype = BANYAN_F32, .scale = 1
            };
            make(BNY_JOB_ENCODE);
            for (int j = 0; j < JOBS; j++) {
                jobs[j].encode.enc = enc;
                jobs[j].encode.wire = got[j];
                jobs[j].encode.cap = cap;
                jobs[j].encode.src = src;
                jobs[j].encode.n = ELEMS;
            }
            do_all(threads);
            len = bny_message_encode(&enc, want, cap, src, ELEMS, 0);
            cr_assert_gt(len, 0, "%s", banyan_last_error());
            check(specs[k], len, threads);
            memcpy(wire, want, (size_t)len);
            make(BNY_JOB_DECODE);
            for (int j = 0; j < JOBS; j++) {
                jobs[j].decode.dec = dec;
                jobs[j].decode.dst = got[j];
                jobs[j].decode.wire = wire;
                jobs[j].decode.len = (size_t)len;
                jobs[j].decode.n = ELEMS;
            }
            do_all(threads);
            cr_assert_eq(bny_message_decode(&dec, want, wire, (size_t)len, ELEMS), 0, "%s",
                         banyan_last_error());
            check(specs[k], 0, threads);
        }
}
