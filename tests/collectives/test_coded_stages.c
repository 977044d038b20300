/* SPDX-License-Identifier: BSD-3-Clause */
/* Codecs that sum in several stages (as PowerSGD does), inside collectives over the loop
 * transport. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "collectives/api/job.h"
#include "collectives/progress/progress.h"
#include "compress/linear.h"
#include "tests/collectives/coded_rig.h"

/* Sums halves of the vector in one stage each, rounded to multiples of 1/8 with the rest in the
 * residual; the second stage's code depends on the sum of the first. */
static int halves_nstages(const struct bny_codec *c)
{
    return 3;
}

static size_t halves_keep(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return 8;
}

static size_t halves_bytes(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    return 4 * n;
}

static int halves_contribute(struct bny_linear *l, int k, struct bny_stage *s)
{
    size_t half = l->n / 2, at = k == 0 ? 0 : half, n = k == 0 ? half : l->n - half;
    float *code = l->code, *first = l->work;

    *s = (struct bny_stage){ .dtype = BANYAN_F32, .op = BANYAN_SUM, .count = k == 1 ? 0 : n };
    if (k == 1)
        return 0; /* a stage with nothing to do */
    if (k == 2)
        memcpy(first, code, 4 * half);
    for (size_t i = 0; i < n; i++) {
        float v = l->src[at + i] + (l->ef ? l->ef[at + i] : 0);
        code[i] = rintf(v * 8) / 8;
        if (l->ef)
            l->ef[at + i] = v - code[i];
    }
    return 0;
}

static int halves_finish(struct bny_linear *l)
{
    size_t half = l->n / 2;

    for (size_t i = 0; i < l->n; i++)
        l->dst[i] =
            l->scale * (i < half ? ((float *)l->work)[i] : ((float *)l->code)[i - half]);
    if (l->keep)
        ++*(uint64_t *)l->keep;
    return 0;
}

static const struct bny_linear_ops halves_linear = {
    .nstages = halves_nstages,
    .keep_bytes = halves_keep,
    .work_bytes = halves_bytes,
    .code_bytes = halves_bytes,
    .contribute = halves_contribute,
    .finish = halves_finish,
};
static const struct bny_codec_ops halves = {
    .name = "test_halves",
    .family = BNY_CODEC_LINEAR,
    .flags = BNY_CODEC_FEEDBACK,
    .doc = "a test's",
    .linear = &halves_linear,
};

Test(coded, stages_keep_the_law, .timeout = 60)
{
    cr_assert_eq(bny_codec_add(&halves), 0);
    cr_assert_eq(bny_codec_add(&halves), -BANYAN_EINVAL);
    for (int n = 1; n <= 5; n++)
        coded_law("test_halves", n == 1 ? "test_halves" : "bf16", n, 3001);
    for (size_t i = 0; bny_codecs[i]; i++)
        if (bny_codecs[i]->family == BNY_CODEC_LINEAR &&
            (bny_codecs[i]->flags & BNY_CODEC_FEEDBACK) && bny_codecs[i]->elem_floats == 0)
            coded_law(bny_codecs[i]->name, bny_codecs[i]->name, 3, 2500);
}

/* Many in flight, with others between them, started in another order of time on each rank,
 * under faults. */
Test(coded, stages_of_many_operations_in_flight, .timeout = 120)
{
    enum { OPS = 12, N = 4 };
    struct bny_loop_faults f = faults_of_run();
    static float x[N][OPS][700];
    struct banyan_request *req[N][OPS];
    int done[N][OPS] = { { 0 } }, left = N * OPS;
    struct rig g;

    cr_assert_eq(bny_codec_add(&halves), 0);
    rig_open(&g, N, 1, &f);
    for (int r = 0; r < N; r++)
        for (int k = 0; k < OPS; k++) {
            struct banyan_opts o = BANYAN_OPTS_INIT;
            o.codec = k % 3 == 2 ? "none" : "test_halves";
            for (int i = 0; i < 700; i++)
                x[r][k][i] = (float)(r + k + i);
            cr_assert_eq(banyan_allreduce_init(x[r][k], x[r][k], 700, BANYAN_F32, BANYAN_SUM,
                                               g.comm[r], &o, &req[r][k]),
                         0);
        }
    for (int r = 0; r < N; r++)
        for (int k = 0; k < OPS; k++) {
            cr_assert_eq(banyan_start(req[r][k]), 0);
            if (k % 4 == r % 4)
                for (int t = 0; t < 50; t++)
                    banyan_progress(g.comm[r]);
        }
    for (long turn = 0; left; turn++) {
        int r = (int)bny_rng_below(&g.rng, N), k = (int)bny_rng_below(&g.rng, OPS), d = 0;
        cr_assert_lt(turn, 3000000, "stuck");
        if (done[r][k]) {
            banyan_progress(g.comm[r]);
            continue;
        }
        cr_assert_eq(banyan_test(req[r][k], &d), 0, "%s", banyan_last_error());
        done[r][k] = d;
        left -= d;
    }
    for (int r = 0; r < N; r++)
        for (int k = 0; k < OPS; k++) {
            for (int i = 0; i < 700; i++)
                cr_assert_float_eq(x[r][k][i], (float)(N * (k + i) + 6), 0,
                                   "rank %d operation %d element %d: %g", r, k, i,
                                   (double)x[r][k][i]);
            banyan_request_free(req[r][k]);
        }
    rig_close(&g);
}

Test(coded, a_failure_ends_an_operation_and_its_stage)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    struct rig g;
    int d = 0, rc = 0;

    cr_assert_eq(bny_codec_add(&halves), 0);
    rig_open(&g, 2, 100000, NULL);
    o.codec = "test_halves";
    o.codec_state = g.state[0];
    cr_assert_eq(banyan_allreduce_init(g.in[0], g.out[0], g.count, BANYAN_F32, BANYAN_SUM,
                                       g.comm[0], &o, &g.req[0]),
                 0);
    cr_assert_eq(banyan_start(g.req[0]), 0);
    for (int i = 0; i < 10; i++)
        cr_assert_eq(banyan_test(g.req[0], &d), 0);
    cr_assert_eq(d, 0);
    cr_assert_eq(banyan_abort(g.comm[0], "test"), 0);
    for (int i = 0; i < 1000 && !d; i++)
        rc = banyan_test(g.req[0], &d);
    cr_assert(d);
    cr_assert_eq(rc, -BANYAN_EABORTED, "%d", rc);
    cr_assert_eq(g.state[0]->busy, 0);
    cr_assert_eq(banyan_request_free(g.req[0]), 0);
    rig_close(&g);
}
