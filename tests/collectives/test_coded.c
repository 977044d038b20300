/* SPDX-License-Identifier: BSD-3-Clause */
/* Codecs inside collectives, all ranks in one thread over the loop transport: for every codec
 * of the registry, ranks end with the same bits, nothing that a residual should keep is lost,
 * exact codecs change no bit, and what a codec declines travels raw. BANYAN_TEST_SEED repeats a
 * run. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "base/rng.h"
#include "collectives/api/job.h"
#include "collectives/progress/progress.h"
#include "compress/linear.h"
#include "tests/collectives/coded_rig.h"

static const char *const forests[] = { NULL,       "ring",      "halving", "double_binary_tree",
                                       "binomial", "host_ring", "arrival" };
#define NFORESTS (sizeof forests / sizeof forests[0])

Test(coded, ranks_agree_on_every_forest, .timeout = 120)
{
    for (int n = 2; n <= 5; n++) {
        struct rig g;
        rig_open(&g, n, 30011, NULL);
        fill(&g);
        for (size_t i = 0; bny_codecs[i]; i++)
            for (size_t f = 0; f < NFORESTS; f++)
                for (int k = 0; k < 4 && !coded_is_linear(i); k++)
                    allreduce(&g, bny_codecs[i]->name, forests[f], k & 1 ? 8192 : 0,
                              (banyan_op)(k & 2 ? BANYAN_AVG : BANYAN_SUM), k & 1, k == 3);
        rig_close(&g);
    }
}

Test(coded, ranks_agree_under_faults, .timeout = 120)
{
    struct bny_loop_faults f = faults_of_run();

    fprintf(stderr, "seed %llu\n", (unsigned long long)f.seed);
    for (int n = 2; n <= 4; n++) {
        struct rig g;
        rig_open(&g, n, 9001, &f);
        fill(&g);
        for (size_t i = 0; bny_codecs[i]; i++)
            for (size_t s = 0; s < NFORESTS && !coded_is_linear(i); s++)
                allreduce(&g, bny_codecs[i]->name, forests[s], 4096, BANYAN_SUM, 1, 0);
        rig_close(&g);
    }
}

void coded_law(const char *codec, const char *other, int n, size_t count)
{
    struct rig g;
    double *sent = calloc(count, sizeof *sent), *got = calloc(count, sizeof *got), worst = 0,
           size = 0;

    rig_open(&g, n, count, NULL);
    for (int step = 0; step < 120; step++) {
        banyan_op op = step % 3 ? BANYAN_SUM : BANYAN_AVG;
        const char *forest = forests[(size_t)(step / 5) % NFORESTS];
        fill(&g);
        for (int r = 0; r < n; r++)
            for (size_t i = 0; i < count; i++)
                sent[i] += (double)g.in[r][i];
        if (allreduce(&g, step % 10 < 5 ? codec : other, forest, step % 2 ? 4096 : 0, op, 1,
                      step % 4 == 0))
            cr_assert_eq(allreduce(&g, codec, NULL, 0, op, 1, 0), 0);
        for (size_t i = 0; i < count; i++)
            got[i] += (double)g.out[0][i] * (op == BANYAN_AVG ? n : 1);
    }
    for (size_t i = 0; i < count; i++) {
        double left = 0;
        for (int r = 0; r < n; r++)
            left += (double)banyan_codec_state_residual(g.state[r])[i];
        worst = fmax(worst, fabs(sent[i] - got[i] - left));
        size = fmax(size, fabs(sent[i]));
    }
    cr_assert(worst <= 1e-4 * size, "%s, %s on %d ranks: %g of %g is lost", codec, other, n,
              worst, size);
    rig_close(&g);
    free(sent);
    free(got);
}

static int keeps_law(size_t i)
{
    return !coded_is_linear(i) && (bny_codecs[i]->flags & BNY_CODEC_FEEDBACK) &&
           bny_codecs[i]->elem_floats == 0;
}

Test(coded, nothing_is_lost, .timeout = 240)
{
    coded_law("bf16", "f16", 3, 2500);
    for (size_t i = 0; bny_codecs[i]; i++)
        if (keeps_law(i)) {
            coded_law(bny_codecs[i]->name, bny_codecs[i]->name, 2, 2500);
            coded_law(bny_codecs[i]->name, "bf16", 5, 2500);
        }
}

static void others_keep_the_law(const char *codec, const char *schedule)
{
    enum { N = 3 };
    struct rig g;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    size_t count = 3000, block = count / N;
    double sent[3000] = { 0 }, got[3000] = { 0 };

    rig_open(&g, N, count, NULL);
    o.codec = codec;
    o.schedule = schedule;
    o.chunk_bytes = 1024;
    for (int step = 0; step < 20; step++) {
        fill(&g);
        for (int r = 0; r < N; r++) {
            o.codec_state = g.state[r];
            for (size_t k = 0; k < count; k++)
                sent[k] += (double)g.in[r][k];
            cr_assert_eq(banyan_reduce_scatter_init(g.in[r], g.out[r], block, BANYAN_F32,
                                                    BANYAN_SUM, g.comm[r], &o, &g.req[r]),
                         0, "%s", banyan_last_error());
        }
        cr_assert_eq(drive(&g, "reduce_scatter"), 0);
        for (size_t k = 0; k < count; k++)
            got[k] += (double)g.out[k / block][k % block];
    }
    for (size_t k = 0; k < count; k++) {
        for (int r = 0; r < N; r++)
            got[k] += (double)banyan_codec_state_residual(g.state[r])[k];
        cr_assert(fabs(sent[k] - got[k]) < 1e-3, "%s: element %zu: %g, not %g", o.codec, k,
                  got[k], sent[k]);
    }
    for (int c = 0; c < 2; c++) { /* broadcast and allgather: all ranks hold the same */
        for (int r = 0; r < N; r++) {
            o.codec_state = NULL;
            memcpy(g.out[r], g.in[c ? r : 1], 4 * count);
            cr_assert_eq(c ? banyan_allgather_init(g.in[r], g.out[r], block, BANYAN_F32,
                                                   g.comm[r], &o, &g.req[r])
                           : banyan_broadcast_init(g.out[r], count, BANYAN_F32, 1, g.comm[r],
                                                   &o, &g.req[r]),
                         0);
        }
        cr_assert_eq(drive(&g, "broadcast or allgather"), 0);
        for (int r = 1; r < N; r++)
            cr_assert_eq(memcmp(g.out[0], g.out[r], 4 * count), 0, "%s: ranks differ", o.codec);
    }
    rig_close(&g);
}

Test(coded, reduce_scatter_and_others_keep_the_law)
{
    for (size_t i = 0; bny_codecs[i]; i++)
        if (keeps_law(i) || !strcmp(bny_codecs[i]->name, "bf16")) {
            others_keep_the_law(bny_codecs[i]->name, "star");
            others_keep_the_law(bny_codecs[i]->name, "host_star");
        }
}

/* What a rank sends of a sparse sum is no more than the elements of all (6 bytes each), whoever
 * owns it. */
Test(coded, sums_of_sparse_parts_stay_sparse)
{
    static const char *const codecs[] = { "topk:delta=0.01", "topk:delta=0.01,reselect=1",
                                          "sidco:delta=0.01" };

    for (size_t i = 0; i < 2 * sizeof codecs / sizeof codecs[0]; i++)
        for (int n = 2; n <= 5; n++) {
            const char *codec = codecs[i / 2], *schedule = i % 2 ? "arrival" : NULL;
            struct banyan_stats before = { .size = sizeof before }, after = before;
            struct rig g;
            rig_open(&g, n, 100000, NULL);
            rig_part(&g);
            for (int step = 0; step < 6; step++) {
                fill(&g);
                banyan_comm_stats(g.comm[0], &before);
                cr_assert_eq(allreduce(&g, codec, schedule, 0, BANYAN_SUM, 1, 0), 0);
            }
            banyan_comm_stats(g.comm[0], &after);
            cr_expect_gt(after.wire_bytes, before.wire_bytes);
            cr_expect_lt(after.wire_bytes - before.wire_bytes, 4 * g.count / 10 * (size_t)n / 2,
                         "%s on %d ranks, %s: %zu bytes of %zu", codec, n,
                         schedule ? schedule : "auto",
                         (size_t)(after.wire_bytes - before.wire_bytes), 4 * g.count);
            rig_close(&g);
        }
}

/* Sparse operations, element by element and step by step: the result is the sum of what ranks
 * and owners did send (their inputs and residuals before, without their residuals after). With
 * owners that select again, what travels comes to stay below Ok-Topk's 6k words, k the elements
 * asked for, wherever they lie (thresholds settle within some thirty steps, in which owners of
 * clusters send up to 7.3k); what they reject is back in a residual. */
static void sparse_steps(const char *codec, int n, int is_clustered)
{
    enum { COUNT = 96000, STEPS = 40 };
    size_t k = COUNT / 100, most = 0;
    struct rig g;
    double *left = calloc(COUNT, sizeof *left);

    rig_open(&g, n, COUNT, NULL);
    rig_part(&g);
    for (int step = 0; step < STEPS; step++) {
        struct banyan_stats before[MAX_N], after = { .size = sizeof after };
        fill(&g);
        for (int r = 0; r < n; r++) {
            before[r] = (struct banyan_stats){ .size = sizeof before[r] };
            banyan_comm_stats(g.comm[r], &before[r]);
            for (size_t i = 0; i < COUNT; i++) {
                g.in[r][i] *= is_clustered && i > COUNT / 8 ? 0.01f : 1;
                left[i] += (double)g.in[r][i];
            }
        }
        cr_assert_eq(allreduce(&g, codec, NULL, 8192, BANYAN_SUM, 1, 0), 0);
        for (size_t i = 0; i < COUNT; i++) {
            double now = 0;
            for (int r = 0; r < n; r++)
                now += (double)banyan_codec_state_residual(g.state[r])[i];
            cr_assert(fabs(left[i] - now - (double)g.out[0][i]) <= 2e-5 * (1 + fabs(left[i])),
                      "%s, %d ranks, step %d, element %zu: %g, not %g", codec, n, step, i,
                      (double)g.out[0][i], left[i] - now);
            left[i] = now;
        }
        for (int r = 0; r < n && step > 35; r++) {
            banyan_comm_stats(g.comm[r], &after);
            if (after.wire_bytes - before[r].wire_bytes > most)
                most = (size_t)(after.wire_bytes - before[r].wire_bytes);
        }
    }
    cr_expect(!strstr(codec, "reselect=1") || most <= 6 * k * 4,
              "%s, %d ranks, %s: %zu bytes, 6k words are %zu", codec, n,
              is_clustered ? "clustered" : "uniform", most, 6 * k * 4);
    rig_close(&g);
    free(left);
}

Test(coded, sparse_results_are_the_sum_of_what_was_sent, .timeout = 200)
{
    static const char *const codecs[] = { "topk:delta=0.01", "topk:delta=0.01,reselect=1" };

    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++)
        for (int n = 2; n <= 5; n += n == 3 ? 2 : 1) {
            sparse_steps(codecs[i], n, 0);
            sparse_steps(codecs[i], n, 1);
        }
}

Test(coded, what_a_codec_declines_travels_raw)
{
    struct rig g;

    for (size_t i = 0; bny_codecs[i]; i++) {
        if (coded_is_linear(i))
            continue;
        rig_open(&g, 4, 90000, NULL);
        for (int state = 0; state < 2; state++) {
            fill(&g);
            g.in[1][77] = INFINITY;
            g.in[2][60000] = NAN;
            for (size_t f = 0; f < NFORESTS; f++) {
                allreduce(&g, bny_codecs[i]->name, forests[f], 0, BANYAN_AVG, state, 0);
                cr_assert(isnan(g.out[0][60000]), "%s: NaN became %g", bny_codecs[i]->name,
                          (double)g.out[0][60000]);
                cr_assert(!isfinite(g.out[0][77]), "%s: infinity became %g",
                          bny_codecs[i]->name, (double)g.out[0][77]);
                cr_assert(isfinite(g.out[0][30000]) &&
                              isfinite(banyan_codec_state_residual(g.state[1])[77]),
                          "%s", bny_codecs[i]->name);
            }
        }
        rig_close(&g);
    }
}

/* Exact codecs: the bits of raw, for every type, operation, collective and schedule. */
static void exact_one(struct rig *g, const char *codec, enum banyan_dtype dtype,
                      const char *schedule, banyan_op op)
{
    struct banyan_reduce_opts inputs = BANYAN_REDUCE_OPTS_INIT;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    size_t bytes = banyan_dtype_bytes(dtype) * g->count;
    char *want[MAX_N];

    if (!strcmp(schedule, "arrival") && op == BANYAN_AVG)
        return; /* no two runs need add in the same order */
    o.schedule = schedule;
    o.reduce = &inputs;
    inputs.at_least =
        !strcmp(schedule, "arrival") ? g->n : 0; /* in order of arrival for sure */
    o.chunk_bytes = 4096;
    for (int pass = 0; pass < 2; pass++) {
        o.codec = pass ? codec : "none";
        for (int r = 0; r < g->n; r++) {
            int rc = banyan_allreduce_init(g->in[r], g->out[r], g->count, dtype, op, g->comm[r],
                                           &o, &g->req[r]);
            if (rc == -BANYAN_ENOTSUP && r == 0 && pass == 0)
                return;
            cr_assert_eq(rc, 0, "%s: %s", codec, banyan_last_error());
        }
        cr_assert_eq(drive(g, codec), 0, "%s %s %s: %s", codec, banyan_dtype_name(dtype),
                     schedule, banyan_last_error());
        for (int r = 0; r < g->n; r++) {
            if (pass == 0) {
                want[r] = malloc(bytes);
                memcpy(want[r], g->out[r], bytes);
                memset(g->out[r], 0x55, bytes);
                continue;
            }
            cr_assert_eq(memcmp(want[r], g->out[r], bytes), 0,
                         "%s %s %s: rank %d differs from raw", codec, banyan_dtype_name(dtype),
                         schedule ? schedule : "auto", r);
            free(want[r]);
        }
    }
}

Test(coded, exact_codecs_change_no_bit, .timeout = 120)
{
    for (int n = 2; n <= 5; n++) {
        struct rig g;
        rig_open(&g, n, 5003, NULL);
        for (size_t i = 0; bny_codecs[i]; i++)
            for (int d = 0; d < BNY_DTYPE_COUNT && bny_codecs[i]->family == BNY_CODEC_EXACT;
                 d++)
                for (size_t s = 0; banyan_schedule_name(s); s++) {
                    if (!((bny_codecs[i]->dtypes ? bny_codecs[i]->dtypes : 1) >> d & 1) ||
                        banyan_dtype_bytes((enum banyan_dtype)d) > 4)
                        continue;
                    fill(&g);
                    exact_one(&g, bny_codecs[i]->name, (enum banyan_dtype)d,
                              banyan_schedule_name(s), BANYAN_MAX);
                    exact_one(&g, bny_codecs[i]->name, (enum banyan_dtype)d,
                              banyan_schedule_name(s),
                              d == BANYAN_BOOL ? BANYAN_SUM : BANYAN_AVG);
                }
        rig_close(&g);
    }
}

Test(coded, checksums_and_seeds)
{
    struct rig g;

    setenv("BANYAN_CODEC_CRC", "1", 1);
    rig_open(&g, 3, 20000, NULL);
    unsetenv("BANYAN_CODEC_CRC");
    fill(&g);
    cr_assert_eq(g.comm[0]->world->codec_crc, 1);
    for (size_t i = 0; bny_codecs[i]; i++)
        if (!coded_is_linear(i))
            allreduce(&g, bny_codecs[i]->name, NULL, 0, BANYAN_SUM, 1, 0);
    g.in[0][5] = NAN;
    cr_assert_eq(allreduce(&g, "int8", NULL, 0, BANYAN_SUM, 1, 0), 0);
    rig_close(&g);
}

Test(coded, states_used_differently_are_found)
{
    struct rig g;
    struct banyan_opts o = BANYAN_OPTS_INIT;

    rig_open(&g, 2, 20000, NULL);
    g.state[1]->step = 3;
    o.codec = "bf16";
    for (int r = 0; r < 2; r++) {
        o.codec_state = g.state[r];
        cr_assert_eq(banyan_allreduce_init(g.in[r], g.out[r], g.count, BANYAN_F32, BANYAN_SUM,
                                           g.comm[r], &o, &g.req[r]),
                     0);
    }
    cr_assert_eq(drive(&g, "steps differ"), -BANYAN_EPROTO, "%s", banyan_last_error());
    cr_assert(strstr(banyan_last_error(), "of step") &&
                  strstr(banyan_last_error(), "chunk 0 of message"),
              "%s", banyan_last_error());
    rig_close(&g);
}

Test(coded, a_state_serves_one_operation)
{
    struct rig g;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    struct banyan_request *second;

    rig_open(&g, 2, 20000, NULL);
    o.codec = "bf16";
    for (int r = 0; r < 2; r++) {
        o.codec_state = g.state[r];
        cr_assert_eq(banyan_allreduce_init(g.in[r], g.out[r], g.count, BANYAN_F32, BANYAN_SUM,
                                           g.comm[r], &o, &g.req[r]),
                     0);
    }
    o.codec_state = g.state[0];
    cr_assert_eq(banyan_allreduce_init(g.in[0], g.in[0], g.count, BANYAN_F32, BANYAN_SUM,
                                       g.comm[0], &o, &second),
                 0);
    cr_assert_eq(banyan_start(g.req[0]), 0);
    cr_assert_eq(banyan_start(second), -BANYAN_EBUSY);
    cr_assert_eq(banyan_codec_state_reset(g.state[0]), -BANYAN_EBUSY);
    cr_assert_eq(banyan_codec_state_free(g.state[0]), -BANYAN_EBUSY);
    for (int d = 0; !d;) {
        d = bny_op_is_done(&g.req[0]->op);
        if (!bny_op_is_done(&g.req[1]->op) && atomic_load(&g.req[1]->op.state) == BNY_OP_IDLE)
            cr_assert_eq(banyan_start(g.req[1]), 0);
        banyan_progress(g.comm[0]);
        banyan_progress(g.comm[1]);
    }
    for (int r = 0; r < 2; r++) {
        int d = 0;
        while (!d)
            cr_assert_eq(banyan_test(g.req[r], &d), 0);
        banyan_request_free(g.req[r]);
    }
    cr_assert_eq(banyan_codec_state_reset(g.state[0]), 0);
    o.codec_state = g.state[0];
    cr_assert_eq(
        banyan_allreduce(g.in[0], g.in[0], g.count - 1, BANYAN_F32, BANYAN_SUM, g.comm[0], &o),
        -BANYAN_EINVAL);
    banyan_request_free(second);
    rig_close(&g);
}

static size_t tenths_bound(void *ctx, size_t n)
{
    return 2 * n;
}

static long tenths_encode(void *ctx, void *wire, size_t cap, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int16_t q;
        if (!(fabsf(src[i]) < 1000))
            return -1;
        q = (int16_t)lrintf(src[i] * 10);
        memcpy((char *)wire + 2 * i, &q, 2);
    }
    return (long)(2 * n);
}

static int tenths_decode(void *ctx, float *dst, const void *wire, size_t len, size_t n)
{
    for (size_t i = 0; len == 2 * n && i < n; i++) {
        int16_t q;
        memcpy(&q, (const char *)wire + 2 * i, 2);
        dst[i] = (float)q / 10;
    }
    return len != 2 * n;
}

Test(coded, a_codec_of_the_programs_own, .timeout = 60)
{
    const struct banyan_codec c = { sizeof c,     "tenths",      NULL,
                                    tenths_bound, tenths_encode, tenths_decode };
    struct banyan_codec bad = c;

    cr_assert_eq(banyan_codec_register(&c), 0, "%s", banyan_last_error());
    cr_assert_eq(banyan_codec_register(&c), -BANYAN_EINVAL);
    bad.name = "a:b";
    cr_assert_eq(banyan_codec_register(&bad), -BANYAN_EINVAL);
    bad.name = "x";
    bad.decode = NULL;
    cr_assert_eq(banyan_codec_register(&bad), -BANYAN_EINVAL);
    coded_law("tenths", "bf16", 3, 2500);
    cr_assert_eq(coded_lie(bny_codec_find("tenths"), "star", TRUNCATE, 0, 1), 1);
}
