/* SPDX-License-Identifier: BSD-3-Clause */
/* Codecs that are weighed when a call runs (sequence/weighed.c): by what any rank has measured
 * all ranks decide alike, also where calls overlap. Ranks of one process; what they measure is
 * written by the test. BANYAN_TEST_SEED repeats a run. */
#include <math.h>

#include "collectives/plan/topology.h"
#include "collectives/sequence/sequence.h"
#include "tests/collectives/coded_rig.h"

#define COUNT 60000 /* 240 kB */

static void open_unforced(struct rig *g, int n)
{
    rig_open(g, n, COUNT, NULL);
    for (int r = 0; r < n; r++)
        g->comm[r]->scope.codec_force = 0;
    fill(g);
}

/* What ranks know: rank 0 of a port's rate, and the last rank of how long calls took, of which
 * 240 kB are the third size. 0: nothing. */
static void tell(struct rig *g, const char *codec, double Bps, double raw_s, double coded_s)
{
    struct bny_call call = { .collective = BNY_ALLREDUCE, .dtype = BANYAN_F32 };

    if (codec)
        cr_assert_eq(bny_codec_parse(&call.codec, codec), 0);
    for (int r = 0; r < g->n; r++)
        for (int i = 0; i < BNY_SAMPLES; i++) {
            struct bny_port *p = &g->comm[r]->world->port;
            struct bny_weighing *w = codec ? bny_weighing_of(g->comm[r], &call) : NULL;

            for (int k = 0; k < 2; k++) {
                double s = k ? coded_s : raw_s;

                p->rates[k].of[i] = r == 0 ? Bps : 0;
                p->rates[k].n = 2 * (Bps > 0);
                p->coded[k].of[i] = 0;
                if (w)
                    w->speeds[k][2].of[i] = r == g->n - 1 && s > 0 ? 4 * COUNT / s : 0;
                if (w)
                    w->speeds[k][2].n = 2 * (s > 0);
            }
        }
}

/* Of all ranks together. */
static uint64_t took(struct rig *g, const char *codec, double Bps, double raw_s, double coded_s,
                     int state)
{
    uint64_t sum = 0;

    for (int r = 0; r < g->n; r++) {
        struct banyan_stats s = { .size = sizeof s };

        banyan_comm_stats(g->comm[r], &s);
        sum -= s.wire_bytes;
    }
    tell(g, strcmp(codec, "none") ? codec : NULL, Bps, raw_s, coded_s);
    cr_assert_eq(allreduce(g, codec, NULL, 0, BANYAN_SUM, state, 0), 0);
    for (int r = 0; r < g->n; r++) {
        struct banyan_stats s = { .size = sizeof s };

        banyan_comm_stats(g->comm[r], &s);
        sum += s.wire_bytes;
    }
    return sum;
}

/* The same where no call was tried. */
static uint64_t bytes_of(struct rig *g, const char *codec, double Bps, int state)
{
    return took(g, codec, Bps, 0, 0, state);
}

Test(weighed, by_what_any_rank_has_measured, .timeout = 60)
{
    for (int n = 3; n <= 6; n++) {
        struct rig g;
        uint64_t raw;

        open_unforced(&g, n);
        raw = bytes_of(&g, "none", 0, 0);
        /* calls 0, 1, 2 and 4 ask */
        cr_expect_gt(bytes_of(&g, "int4", 0, 1), raw * 9 / 10, "nothing is measured");
        cr_expect_lt(bytes_of(&g, "int4", 12.5e6, 1), raw * 9 / 10, "a slow link");
        cr_expect_gt(bytes_of(&g, "int4", 1e12, 1), raw * 9 / 10, "a fast link");
        cr_expect_gt(bytes_of(&g, "int4", 12.5e6, 1), raw * 9 / 10, "it does not ask");
        cr_expect_gt(took(&g, "int4", 12.5e6, .02, .4, 1), raw * 9 / 10,
                     "coded data took 20 times as long as raw data");
        rig_close(&g);
    }
}

static void expect_told(struct rig *g, const char *codec, const char *now, double seconds)
{
    struct bny_call call = { .collective = BNY_ALLREDUCE,
                             .dtype = BANYAN_F32,
                             .count = g->count };
    struct bny_plan plan = { .schedule = "weighed" };
    const char *told;

    cr_assert_eq(bny_codec_parse(&call.codec, codec), 0);
    told = bny_weighed_tell(g->comm[0], &call, &plan);
    cr_expect_str_eq(told, now);
    cr_expect_float_eq(plan.predicted_s, seconds, 1e-3 * seconds, "%g", plan.predicted_s);
}

/* What was measured counts, whatever the model says: here that int4 gains. Calls run the other
 * way at each turn where both take about the same, else at every one of several. */
Test(weighed, by_what_calls_took, .timeout = 60)
{
    static const struct {
        double raw_s, coded_s;
        int coded, every;
    } cases[] = { { .1, .19, 0, 4 }, { .1, .055, 1, 4 },  { .1, .099, 0, 1 },
                  { .1, .09, 1, 1 }, { .1, .001, 1, 32 }, { .001, .1, 0, 396 } };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig g;
        uint64_t raw;
        int turns = 0, last = cases[i].every == 32 ? 27 * 32 : 3 * 32;

        open_unforced(&g, 4);
        raw = bytes_of(&g, "none", 0, 0);
        for (int k = 0; k <= last; k++) { /* 0, 1, 2, 4, 8, 16, 32, 64, 96 ... are turns */
            int is_turn = !(k & (k - 1)) || k % 32 == 0, coded = cases[i].coded,
                other = is_turn && ++turns % cases[i].every == 0;
            uint64_t bytes = took(&g, "int4", 12.5e6, cases[i].raw_s, cases[i].coded_s, 0);

            cr_expect_eq(bytes < raw * 9 / 10, coded ^ other,
                         "call %d: raw %g s, coded %g s: %d of %d bytes", k, cases[i].raw_s,
                         cases[i].coded_s, (int)bytes, (int)raw);
        }
        expect_told(&g, "int4", cases[i].coded ? "int4" : "raw data",
                    cases[i].coded ? cases[i].coded_s : cases[i].raw_s);
        rig_close(&g);
    }
}

/* Sizes have turns of their own: those of a step with an even number of calls do not all go to
 * the same calls. */
Test(weighed, each_size_has_turns, .timeout = 60)
{
    struct rig g;
    uint64_t raw;

    open_unforced(&g, 3);
    raw = bytes_of(&g, "none", 0, 0);
    for (int k = 0; k <= 32; k++) {
        int is_turn = !(k & (k - 1)) || k % 32 == 0;
        uint64_t bytes;

        g.count = COUNT / 4;
        took(&g, "int4", 12.5e6, .1, .09, 0);
        g.count = COUNT;
        bytes = took(&g, "int4", 12.5e6, .1, .09, 0);
        cr_expect_eq(bytes >= raw * 9 / 10, is_turn, "call %d: %d of %d bytes", k, (int)bytes,
                     (int)raw);
    }
    rig_close(&g);
}

/* A host for each rank. */
static void apart(struct rig *g, struct bny_topology **t)
{
    int host_of[MAX_N];

    for (int r = 0; r < g->n; r++)
        host_of[r] = r;
    cr_assert_eq(bny_topology_load(t, "", "auto"), 0);
    cr_assert_eq(bny_topology_settle(*t, host_of, g->n), 0);
    for (int r = 0; r < g->n; r++) {
        g->comm[r]->scope.topology = *t;
        g->comm[r]->scope.near = 0;
    }
}

/* A budget: the codecs are chosen when the call runs, at the rate that all ranks agreed on, and
 * what breaks the budget is not. */
Test(weighed, codecs_within_a_budget, .timeout = 60)
{
    static const struct {
        const char *codec;
        double Bps, least, most;
    } cases[] = { { "auto:like=int8", 12.5e6, .2, .35 },
                  { "auto:nmse=.1", 12.5e6, .1, .2 },
                  { "auto:max=1e-6", 12.5e6, .6, .95 },
                  { "auto:like=int8,from=raw+int8", 2.5e9, .55, .75 },
                  { "auto:like=int8", 1e12, .95, 1.05 } };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int n = 3; n <= 4; n++) {
            struct rig g;
            struct bny_topology *t;
            double raw, part;

            open_unforced(&g, n);
            apart(&g, &t);
            raw = (double)bytes_of(&g, "none", 0, 0);
            bytes_of(&g, cases[i].codec, 0, 0);
            part = (double)bytes_of(&g, cases[i].codec, cases[i].Bps, 0) / raw;
            cr_expect(part >= cases[i].least && part <= cases[i].most,
                      "%s at %g B/s: %g of the raw bytes", cases[i].codec, cases[i].Bps, part);
            rig_part(&g);
            bny_topology_free(t);
            rig_close(&g);
        }
}

static void count_told(void *ctx, enum banyan_log_level level, const char *line)
{
    *(int *)ctx += level == BANYAN_LOG_WARN && strstr(line, "keeps this budget") != NULL;
}

Test(weighed, a_budget_that_no_codec_keeps_is_told, .timeout = 60)
{
    struct bny_topology *t;
    struct rig g;
    int told = 0;

    open_unforced(&g, 3);
    apart(&g, &t);
    banyan_set_log(count_told, &told, BANYAN_LOG_WARN);
    for (int i = 0; i < 3; i++)
        bytes_of(&g, "auto:max=1e-6,from=raw+int8", 12.5e6, 0);
    banyan_set_log(NULL, NULL, BANYAN_LOG_WARN);
    cr_expect_eq(told, 1, "%d times", told);
    rig_part(&g);
    bny_topology_free(t);
    rig_close(&g);
}

#define LONG       300000 /* elements, 1.2 MB: of up to 4 ranks each has 256 KiB of them */
#define LONG_SIZE  5      /* bny_weighing_size() of it */
#define LONG_RAW_S .1

/* Raw data and the codec took as long; a mixture took mixed_s, or was not tried. */
static void tell_mixed(struct rig *g, double mixed_s)
{
    struct bny_call call = { .collective = BNY_ALLREDUCE, .dtype = BANYAN_F32 };

    cr_assert_eq(bny_codec_parse(&call.codec, "int4"), 0);
    tell(g, "int4", 12.5e6, 0, 0);
    for (int r = 0; r < g->n; r++) {
        struct bny_weighing *w = bny_weighing_of(g->comm[r], &call);

        for (int k = 0; k < 3; k++) {
            double s = k < 2 ? LONG_RAW_S : mixed_s;

            for (int i = 0; i < BNY_SAMPLES; i++)
                w->speeds[k][LONG_SIZE].of[i] = s > 0 ? 4 * LONG / s : 0;
            w->speeds[k][LONG_SIZE].n = 2 * (s > 0);
        }
    }
}

/* Sum over ranks and elements, in f64, of what should be the same before and behind: inputs and
 * residuals. The result counts once. */
static double in_all(const struct rig *g, int is_result)
{
    double sum = 0;

    for (int r = 0; r < g->n; r++) {
        const float *kept = banyan_codec_state_residual(g->state[r]);

        for (size_t i = 0; i < g->count; i++) {
            sum += kept ? (double)kept[i] * (1 + (double)(i % 5)) : 0;
            if (!is_result || r == 0)
                sum += (double)(is_result ? g->out[r][i] : g->in[r][i]) * (1 + (double)(i % 5));
        }
    }
    return sum;
}

/* Of a call whose wire is as busy as its cores about half has the codec: it takes about half of
 * the bytes, and nothing is lost. One that was tried and gained nothing is not kept; shorter
 * sums do not mix. */
Test(weighed, a_part_has_the_codec_where_both_take_as_long, .timeout = 120)
{
    static const struct {
        double mixed_s, least, most, predicted_s;
        const char *told;
    } cases[] = { { 0, .4, .6, LONG_RAW_S * 9 / 16, "int4 on 9/16, raw data beside" },
                  { .06, .4, .6, .06, "int4 on 9/16, raw data beside" },
                  { .11, .99, 1.01, LONG_RAW_S, "raw data" } };

    for (int n = 3; n <= 4; n++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct bny_topology *t;
            struct rig g;
            double raw, part = 0, before;

            rig_open(&g, n, LONG, NULL);
            for (int r = 0; r < n; r++)
                g.comm[r]->scope.codec_force = 0;
            apart(&g, &t);
            fill(&g);
            raw = (double)bytes_of(&g, "none", 0, 0);
            for (int k = 0; k < 8; k++) { /* 0, 1, 2 and 4 ask, and may run another way */
                struct banyan_stats s = { .size = sizeof s };
                uint64_t sum = 0;

                tell_mixed(&g, cases[i].mixed_s);
                for (int r = 0; r < n; r++, sum -= s.wire_bytes)
                    banyan_comm_stats(g.comm[r], &s);
                before = in_all(&g, 0);
                cr_assert_eq(allreduce(&g, "int4", NULL, 0, BANYAN_SUM, 1, k % 2), 0);
                cr_expect(fabs(in_all(&g, 1) - before) < 1e-5 * LONG, "call %d: %g, %g", k,
                          in_all(&g, 1), before);
                for (int r = 0; r < n; r++, sum += s.wire_bytes)
                    banyan_comm_stats(g.comm[r], &s);
                part = (double)sum / raw;
            }
            cr_expect(part >= cases[i].least && part <= cases[i].most, "%d ranks, %g s: %g", n,
                      cases[i].mixed_s, part);
            expect_told(&g, "int4", cases[i].told, cases[i].predicted_s);
            rig_part(&g);
            bny_topology_free(t);
            rig_close(&g);
        }
}

/* The devices' word counts for the first call alone. */
Test(weighed, by_what_devices_say_until_one_is_measured, .timeout = 60)
{
    struct rig g;
    uint64_t raw;

    open_unforced(&g, 4);
    raw = bytes_of(&g, "none", 0, 0);
    for (int r = 0; r < 4; r++)
        g.comm[r]->scope.device_Bps = 12.5e6;
    cr_expect_lt(bytes_of(&g, "int4", 0, 0), raw * 9 / 10);
    cr_expect_gt(bytes_of(&g, "int4", 0, 0), raw * 9 / 10);
    rig_close(&g);
}

/* The user's word, and calls that insist. */
Test(weighed, not_where_somebody_has_said_it, .timeout = 60)
{
    struct rig g;
    uint64_t raw;

    open_unforced(&g, 4);
    raw = bytes_of(&g, "none", 0, 0);
    cr_expect_lt(bytes_of(&g, "int4:force=1", 1e12, 0), raw * 9 / 10);
    for (int r = 0; r < 4; r++)
        g.comm[r]->scope.link_Bps = 12.5e6;
    cr_expect_lt(bytes_of(&g, "int8", 1e12, 0), raw * 9 / 10);
    for (struct bny_weighing *w = g.comm[0]->weighings; w; w = w->next)
        cr_expect_eq(w->begun, 0);
    rig_close(&g);
}

#define FLIGHT 12

/* Ranks start calls when the calls before are under way, one in so many turns, and those that
 * do not ask wait for one that does. */
static void overlap(struct rig *g, const char *codec, uint64_t pause)
{
    float *out[MAX_N][FLIGHT];
    struct banyan_request *rq[MAX_N][FLIGHT];
    struct banyan_opts o = BANYAN_OPTS_INIT;
    int begun[MAX_N] = { 0 }, done[MAX_N] = { 0 }, left = g->n * FLIGHT;

    o.codec = codec;
    for (int r = 0; r < g->n; r++)
        for (int i = 0; i < FLIGHT; i++) {
            out[r][i] = calloc(COUNT, sizeof(float));
            cr_assert_eq(banyan_allreduce_init(g->in[r], out[r][i], COUNT, BANYAN_F32,
                                               BANYAN_SUM, g->comm[r], &o, &rq[r][i]),
                         0, "%s", banyan_last_error());
        }
    for (long turn = 0; left > 0; turn++) {
        int r = (int)bny_rng_below(&g->rng, (uint64_t)g->n), d = 0;

        cr_assert_lt(turn, 3000000, "stuck");
        if (begun[r] < FLIGHT && bny_rng_below(&g->rng, pause) == 0)
            cr_assert_eq(banyan_start(rq[r][begun[r]++]), 0, "%s", banyan_last_error());
        if (done[r] == begun[r]) {
            banyan_progress(g->comm[r]);
            continue;
        }
        cr_assert_eq(banyan_test(rq[r][done[r]], &d), 0, "%s", banyan_last_error());
        done[r] += d != 0;
        left -= d != 0;
    }
    for (int r = 0; r < g->n; r++)
        for (int i = 0; i < FLIGHT; i++) {
            cr_assert_eq(memcmp(out[0][i], out[r][i], COUNT * sizeof(float)), 0,
                         "call %d: ranks 0 and %d differ", i, r);
            cr_assert_eq(banyan_request_free(rq[r][i]), 0);
        }
    for (int r = 0; r < g->n; r++)
        for (int i = 0; i < FLIGHT; i++)
            free(out[r][i]);
}

Test(weighed, calls_that_overlap_decide_alike, .timeout = 120)
{
    for (int n = 3; n <= 6; n++)
        for (int k = 0; k < 3; k++) {
            struct rig g;

            open_unforced(&g, n);
            tell(&g, NULL, k == 0 ? 0 : k == 1 ? 12.5e6 : 1e12, 0, 0);
            for (int i = 0; i < 4; i++)
                overlap(&g, "int8", 20);
            rig_close(&g);
        }
}

#define SPEED 4 /* bytes a second, of raw calls as told */

/* A period of 1000 s, in which calls of 1000 bytes ran: raw ones, a trial with the codec. */
static void period(struct rig *g, struct bny_weighing *w, int nraw, int ntrials)
{
    struct banyan_comm *c = g->comm[0];

    for (int i = 0; i < nraw + ntrials; i++) {
        bny_port_begin(c);
        bny_port_runs(c, w, i >= nraw, 1000, i >= nraw);
    }
    c->world->port.begun_ns -= 1000000000000;
    for (int i = 0; i < nraw + ntrials; i++)
        bny_port_done(c, 0);
}

static void expect_latest(const struct bny_samples *s, unsigned n, double speed)
{
    cr_assert_eq(s->n, n, "%u samples, not %u", s->n, n);
    cr_expect_float_eq(s->of[(n - 1) % BNY_SAMPLES], speed, .05 * speed, "%g, not %g",
                       s->of[(n - 1) % BNY_SAMPLES], speed);
}

/* Calls that overlap share the seconds of a period, whatever their kinds are. */
Test(weighed, a_trial_beside_other_calls_is_measured, .timeout = 60)
{
    struct bny_call call = { .collective = BNY_ALLREDUCE, .dtype = BANYAN_F32 };
    struct bny_samples *raw, *coded;
    struct bny_weighing *w, *other;
    struct rig g;

    open_unforced(&g, 3);
    cr_assert_eq(bny_codec_parse(&call.codec, "int8"), 0);
    w = bny_weighing_of(g.comm[0], &call);
    raw = &w->speeds[0][0];
    coded = &w->speeds[1][0];
    period(&g, w, 1, 1); /* nothing is known: 2000 bytes in 1000 s */
    expect_latest(raw, 1, 2);
    expect_latest(coded, 1, 2);
    *raw = *coded = (struct bny_samples){ .of = { SPEED, SPEED }, .n = 2 };
    period(&g, w, 3, 1); /* 750 s of raw calls */
    expect_latest(raw, 2, SPEED);
    expect_latest(coded, 3, 4);
    period(&g, w, 2, 1);
    expect_latest(coded, 4, 2);
    period(&g, w, 8, 1); /* raw calls were faster than usual */
    expect_latest(coded, 5, 32);
    period(&g, w, 8, 0);
    expect_latest(raw, 3, 8);

    call.dtype = BANYAN_F64; /* both are known: each one's part */
    other = bny_weighing_of(g.comm[0], &call);
    *raw = (struct bny_samples){ .of = { SPEED, SPEED }, .n = 2 };
    other->speeds[0][0] = (struct bny_samples){ .of = { 1, 1 }, .n = 2 };
    bny_port_begin(g.comm[0]);
    bny_port_runs(g.comm[0], other, 0, 1500, 0);
    period(&g, w, 2, 0);
    cr_expect_eq(raw->n, 2, "the period goes on");
    bny_port_done(g.comm[0], 0);
    expect_latest(raw, 3, SPEED * 2);
    expect_latest(&other->speeds[0][0], 3, 2);
    rig_close(&g);
}

/* Of the first 12 calls 5 are trials: raw, beside 7 that are coded. */
Test(weighed, trials_that_always_overlap_are_measured, .timeout = 60)
{
    struct bny_call call = { .collective = BNY_ALLREDUCE, .dtype = BANYAN_F32 };
    struct rig g;

    open_unforced(&g, 3);
    tell(&g, "int8", 12.5e6, .1, .09);
    overlap(&g, "int8", 1);
    cr_assert_eq(bny_codec_parse(&call.codec, "int8"), 0);
    for (int r = 0; r < 3; r++)
        cr_expect_gt(bny_weighing_find(g.comm[r], &call)->speeds[0][2].n, 2, "rank %d", r);
    rig_close(&g);
}

static int remembered(const struct banyan_comm *c)
{
    int n = 0;

    for (const struct bny_weighing *w = c->weighings; w; w = w->next)
        n++;
    return n;
}

static struct bny_call with_delta(int i)
{
    struct bny_call call = { .collective = BNY_ALLREDUCE, .dtype = BANYAN_F32 };
    char codec[40];

    snprintf(codec, sizeof codec, "topk:delta=%g", .001 * (i + 1));
    cr_assert_eq(bny_codec_parse(&call.codec, codec), 0);
    return call;
}

/* A program that changes a parameter at each step. A call that is under way keeps what it uses.
 */
Test(weighed, a_communicator_remembers_so_many_codecs, .timeout = 60)
{
    struct bny_call first = with_delta(0), second = with_delta(1);
    struct banyan_opts o = BANYAN_OPTS_INIT;
    struct banyan_request *rq[3];
    int left = 3, d;
    struct rig g;

    open_unforced(&g, 3);
    tell(&g, NULL, 12.5e6, 0, 0);
    o.codec = first.codec->spec;
    for (int r = 0; r < 3; r++) {
        cr_assert_eq(banyan_allreduce_init(g.in[r], g.out[r], COUNT, BANYAN_F32, BANYAN_SUM,
                                           g.comm[r], &o, &rq[r]),
                     0);
        cr_assert_eq(banyan_start(rq[r]), 0);
        for (int i = 1; i < 100; i++) {
            struct bny_call call = with_delta(i);

            cr_assert_not_null(bny_weighing_of(g.comm[r], &call));
            cr_assert_not_null(bny_weighing_of(g.comm[r], &second), "it is used all the time");
        }
        cr_expect_null(bny_weighing_find(g.comm[r], &first));
        cr_expect_not_null(bny_weighing_find(g.comm[r], &second));
        cr_expect_eq(remembered(g.comm[r]), BNY_WEIGHINGS + 1, "the call keeps its own");
    }
    for (int r = 0; left > 0; r = (r + 1) % 3)
        if (rq[r]) {
            cr_assert_eq(banyan_test(rq[r], (d = 0, &d)), 0, "%s", banyan_last_error());
            if (d)
                banyan_request_free(rq[r]), rq[r] = NULL, left--;
        }
    for (int r = 0; r < 3; r++) {
        cr_expect_eq(remembered(g.comm[r]), BNY_WEIGHINGS);
        cr_expect_arr_eq(g.out[r], g.out[0], 4 * COUNT);
    }
    rig_close(&g);
}

/* It is lent from the start of a call, whether the codec is used or not. */
Test(weighed, a_state_is_lent_to_one_call, .timeout = 60)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    struct banyan_request *rq[2];
    struct rig g;

    open_unforced(&g, 4);
    o.codec = "int8";
    o.codec_state = g.state[0];
    for (int i = 0; i < 2; i++)
        cr_assert_eq(banyan_allreduce_init(g.in[0], g.out[0], COUNT, BANYAN_F32, BANYAN_SUM,
                                           g.comm[0], &o, &rq[i]),
                     0);
    cr_assert_eq(banyan_start(rq[0]), 0);
    cr_assert_eq(banyan_start(rq[1]), -BANYAN_EBUSY);
    banyan_request_free(rq[1]);
    rig_close(&g);
    cr_assert_eq(banyan_request_free(rq[0]), -BANYAN_EINVAL, "its communicator is gone");
}

/* Stages of a linear codec that is weighed are the same as where it is forced: results, and
 * what the states keep from one call to the next. */
Test(weighed, linear_codecs, .timeout = 60)
{
    static const char *const codecs[] = { "powersgd", "powersgd:classic=1", "randomk",
                                          "sketch" };

    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++)
        for (int n = 3; n <= 5; n += 2) {
            struct rig weighed, forced;
            struct bny_topology *t;
            char text[64];
            uint64_t raw;

            snprintf(text, sizeof text, "%s%cforce=1", codecs[i], i == 1 ? ',' : ':');
            open_unforced(&weighed, n);
            apart(&weighed, &t);
            open_unforced(&forced, n);
            raw = bytes_of(&weighed, "none", 0, 0);
            bytes_of(&forced, "none", 0, 0);
            for (int k = 0; k < 3; k++) {
                cr_expect_lt(bytes_of(&weighed, codecs[i], 12.5e6, 1), raw / 2, "%s", text);
                cr_assert_eq(allreduce(&forced, text, NULL, 0, BANYAN_SUM, 1, 0), 0);
                for (int r = 0; r < n; r++)
                    cr_expect_arr_eq(weighed.out[r], forced.out[r], 4 * COUNT,
                                     "%s, rank %d, call %d", text, r, k);
            }
            bytes_of(&weighed, codecs[i], 0, 1); /* raw: the state is free again */
            rig_part(&weighed);
            bny_topology_free(t);
            rig_close(&weighed);
            rig_close(&forced);
        }
}
