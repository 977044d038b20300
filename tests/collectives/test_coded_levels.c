/* SPDX-License-Identifier: BSD-3-Clause */
/* Codecs that differ by direction ("levels:up=...,down=..."), inside collectives over the loop
 * transport: ranks end with the same bits, nothing that a residual should keep is lost, a raw
 * direction carries the bytes of raw data, and a result that is encoded once has half the
 * error. */
#include <math.h>

#include "compress/speed.h"
#include "tests/collectives/coded_rig.h"

static const char *const specs[] = {
    "levels:up=raw,down=int8",  "levels:up=int8,down=raw",      "levels:up=int8,down=int4",
    "levels:up=bf16,down=int8", "levels:up=int4,down=lossless", "levels:up=lossless,down=int8",
    "levels:net=int8",          "levels:up=e4m3,down=eden",     "levels:up=lossless,down=raw",
    "levels:net=topk"
};
#define NSPECS (sizeof specs / sizeof *specs)

static const char *const forests[] = {
    NULL, "star", "ring", "double_binary_tree", "binomial", "host_ring", "host_star"
};
#define NFORESTS (sizeof forests / sizeof *forests)

Test(coded_levels, ranks_agree_on_every_forest, .timeout = 120)
{
    for (int n = 2; n <= 6; n++) {
        struct rig g;

        rig_open(&g, n, 20011, NULL);
        fill(&g);
        for (size_t i = 0; i < NSPECS * NFORESTS; i++)
            for (int k = 0; k < 4; k++)
                allreduce(&g, specs[i % NSPECS], forests[i / NSPECS], k & 1 ? 8192 : 0,
                          (banyan_op)(k & 2 ? BANYAN_AVG : BANYAN_SUM), k & 1, k == 3);
        rig_close(&g);
    }
}

Test(coded_levels, ranks_agree_under_faults, .timeout = 120)
{
    struct bny_loop_faults f = faults_of_run();
    struct rig g;

    fprintf(stderr, "seed %llu\n", (unsigned long long)f.seed);
    rig_open(&g, 4, 9001, &f);
    fill(&g);
    for (size_t i = 0; i < NSPECS * NFORESTS; i++)
        allreduce(&g, specs[i % NSPECS], forests[i / NSPECS], 4096, BANYAN_SUM, 1, 0);
    rig_close(&g);
}

Test(coded_levels, nothing_is_lost, .timeout = 120)
{
    coded_law("levels:up=raw,down=int8", "levels:up=int8,down=raw", 4, 2500);
    coded_law("levels:up=int4,down=int8", "bf16", 3, 2500);
    coded_law("levels:up=lossless,down=int4", "levels:up=int8,down=lossless", 5, 2500);
}

Test(coded_levels, nothing_is_lost_within_a_budget, .timeout = 120)
{
    coded_law("auto:nmse=1e-3,feedback=1", "auto:like=int8,feedback=1", 4, 2500);
}

Test(coded_levels, what_a_codec_declines_travels_raw)
{
    struct rig g;

    rig_open(&g, 4, 90000, NULL);
    for (size_t i = 0; i < NSPECS * NFORESTS; i++) {
        fill(&g);
        g.in[1][77] = INFINITY;
        g.in[2][60000] = NAN;
        allreduce(&g, specs[i % NSPECS], forests[i / NSPECS], 0, BANYAN_AVG, (int)(i % 2), 0);
        cr_assert(isnan(g.out[0][60000]), "%s: NaN became %g", specs[i % NSPECS],
                  (double)g.out[0][60000]);
        cr_assert(!isfinite(g.out[0][77]) && isfinite(g.out[0][30000]), "%s",
                  specs[i % NSPECS]);
    }
    rig_close(&g);
}

/* Raw both ways, and exact codecs: the bits of no codec. */
Test(coded_levels, exact_directions_change_no_bit)
{
    static const char *const exact[] = { "levels:up=raw,down=raw",
                                         "levels:up=lossless,down=raw",
                                         "levels:up=raw,down=lossless", "levels:net=lossless" };
    struct rig g;
    float *want;

    rig_open(&g, 4, 50000, NULL);
    want = malloc(4 * g.count);
    fill(&g);
    for (size_t i = 0; i < NFORESTS * sizeof exact / sizeof *exact; i++) {
        const char *forest = forests[i % NFORESTS] ? forests[i % NFORESTS] : "ring";

        cr_assert_eq(allreduce(&g, "none", forest, 0, BANYAN_AVG, 0, 0), 0);
        memcpy(want, g.out[0], 4 * g.count);
        cr_assert_eq(allreduce(&g, exact[i / NFORESTS], forest, 0, BANYAN_AVG, 1, 0), 0);
        cr_expect_eq(memcmp(want, g.out[0], 4 * g.count), 0, "%s on %s", exact[i / NFORESTS],
                     forest);
    }
    free(want);
    rig_close(&g);
}

/* ---- bytes and error ---- */

struct outcome {
    double bytes, nmse;
};

static struct outcome outcome_of(int n, const char *codec)
{
    struct banyan_stats before = { .size = sizeof before }, after = before;
    struct outcome o = { 0, 0 };
    double energy = 0;
    struct rig g;

    rig_open(&g, n, 120000, NULL);
    rig_part(&g);
    fill(&g);
    banyan_comm_stats(g.comm[0], &before);
    cr_assert_eq(allreduce(&g, codec, "star", 0, BANYAN_SUM, 0, 0), 0);
    banyan_comm_stats(g.comm[0], &after);
    for (size_t i = 0; i < g.count; i++) {
        double sum = 0;

        for (int r = 0; r < n; r++)
            sum += (double)g.in[r][i];
        o.nmse += ((double)g.out[0][i] - sum) * ((double)g.out[0][i] - sum);
        energy += sum * sum;
    }
    o.nmse /= energy;
    o.bytes = (double)(after.wire_bytes - before.wire_bytes) / (4.0 * (double)g.count);
    rig_close(&g);
    return o;
}

Test(coded_levels, a_raw_direction_costs_its_bytes_and_no_error)
{
    for (int n = 2; n <= 5; n++) {
        double share = (n - 1.0) / n;
        struct outcome both = outcome_of(n, "int8"),
                       up = outcome_of(n, "levels:up=int8,down=raw"),
                       down = outcome_of(n, "levels:up=raw,down=int8");

        cr_expect_float_eq(both.bytes, share * 2 * .254, .03, "%d: %g vectors", n, both.bytes);
        cr_expect_float_eq(up.bytes, share * 1.254, .03, "%d: %g vectors", n, up.bytes);
        cr_expect_float_eq(down.bytes, share * 1.254, .03, "%d: %g vectors", n, down.bytes);
        cr_expect_leq(down.nmse, .8 * both.nmse, "%d: %g, both ways %g", n, down.nmse,
                      both.nmse);
        cr_expect_leq(up.nmse, .6 * both.nmse, "%d: %g, both ways %g", n, up.nmse, both.nmse);
    }
}

/* A call in which data goes one way takes that way's codec. */
Test(coded_levels, a_call_of_one_direction_takes_its_codec)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    struct rig g;

    rig_open(&g, 3, 3000, NULL);
    for (int up = 0; up < 2; up++) {
        const char *codecs[2] = { NULL, NULL };

        o.codec = up ? "levels:up=int8,down=raw" : "levels:up=raw,down=int8";
        cr_assert_eq(banyan_reduce_init(g.in[0], g.out[0], 3000, BANYAN_F32, BANYAN_SUM, 0,
                                        g.comm[0], &o, &g.req[0]),
                     0);
        cr_assert_eq(
            banyan_broadcast_init(g.in[0], 3000, BANYAN_F32, 0, g.comm[0], &o, &g.req[1]), 0);
        for (int i = 0; i < 2; i++) {
            const struct bny_codec *c = g.req[i]->op.plan.codec;

            codecs[i] = c ? c->spec : NULL;
            cr_assert_eq(banyan_request_free(g.req[i]), 0);
        }
        cr_expect_eq(codecs[up], NULL);
        cr_assert_not_null(codecs[!up]);
        cr_expect_str_eq(codecs[!up], "levels:up=int8,down=int8");
    }
    o.codec = "levels:net=int8";
    o.schedule = "arrival";
    cr_expect_eq(banyan_allreduce_init(g.in[0], g.out[0], 3000, BANYAN_F32, BANYAN_SUM,
                                       g.comm[0], &o, &g.req[0]),
                 -BANYAN_ENOTSUP);
    cr_expect_not_null(strstr(banyan_last_error(), "one codec"), "%s", banyan_last_error());
    rig_close(&g);
}

/* ---- budgets ---- */

/* The codec of rank 0's plan; "none"; or the error that is told. */
static const char *codec_of(struct rig *g, const struct banyan_opts *o, enum banyan_dtype dtype)
{
    static char text[400];
    int rc = banyan_allreduce_init(g->in[0], g->out[0], g->count / 2, dtype, BANYAN_SUM,
                                   g->comm[0], o, &g->req[0]);
    const struct bny_codec *c;

    if (rc) {
        snprintf(text, sizeof text, "%s", banyan_last_error());
        return text;
    }
    c = g->req[0]->op.plan.codec;
    cr_assert_eq(banyan_request_free(g->req[0]), 0);
    return c ? c->spec : "none";
}

static void count_told(void *ctx, enum banyan_log_level level, const char *line)
{
    *(int *)ctx += level == BANYAN_LOG_WARN && strstr(line, "keeps this budget") != NULL;
}

/* What a budget allows depends on the call: where nothing that loses serves it, what does not.
 */
Test(coded_levels, a_budget_is_a_permission)
{
    struct banyan_opts o = BANYAN_OPTS_INIT, other;
    struct rig g;
    int told = 0;

    rig_open(&g, 4, 60000, NULL);
    rig_part(&g);
    g.comm[0]->scope.link_Bps = 12.5e6;
    o.codec = "auto:like=int8";
    cr_expect_str_eq(codec_of(&g, &o, BANYAN_F32), "levels:up=int8,down=int8");
    cr_expect_str_eq(codec_of(&g, &o, BANYAN_F64), "levels:up=lossless,down=lossless");
    cr_expect_str_eq(codec_of(&g, &o, BANYAN_I32), "none");
    other = o;
    other.deterministic = 1;
    cr_expect_str_eq(codec_of(&g, &other, BANYAN_F32), "levels:up=lossless,down=lossless");
    other = o;
    other.codec = "auto:max=0,from=raw+int8";
    banyan_set_log(count_told, &told, BANYAN_LOG_WARN);
    for (int i = 0; i < 2; i++)
        cr_expect_str_eq(codec_of(&g, &other, BANYAN_F32), "none");
    banyan_set_log(NULL, NULL, BANYAN_LOG_WARN);
    cr_expect_eq(told, 1, "raw data is told %d times", told);
    other.codec = "auto:max=0,from=raw+int8,force=1";
    cr_expect_not_null(
        strstr(codec_of(&g, &other, BANYAN_F32), "none of its codecs keeps this budget"));
    other = o;
    other.schedule = "ring";
    cr_expect_not_null(strstr(codec_of(&g, &other, BANYAN_F32), "(use schedule auto)"));
    other.schedule = "star";
    cr_expect_not_null(strstr(codec_of(&g, &other, BANYAN_F64), "lossless"));
    rig_close(&g);
}

Test(coded_levels, a_budget_keeps_residuals_where_it_says_so)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    struct rig g;

    rig_open(&g, 4, 60000, NULL);
    rig_part(&g);
    g.comm[0]->scope.link_Bps = 12.5e6;
    cr_assert_eq(banyan_codec_state_free(g.state[0]), 0);
    cr_assert_eq(banyan_codec_state_create(&g.state[0], 30000, 99), 0);
    o.codec = "auto:nmse=1e-4,feedback=1";
    cr_expect_not_null(strstr(codec_of(&g, &o, BANYAN_F32), "pass a codec_state"));
    o.codec_state = g.state[0];
    cr_expect_str_eq(codec_of(&g, &o, BANYAN_F32), "levels:up=int4,down=int4");
    o.codec = "auto:nmse=1e-4";
    cr_expect_not_null(strstr(codec_of(&g, &o, BANYAN_F32), "add feedback=1"));
    rig_close(&g);
}
