/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of the predictor: a step worked out by hand, to the byte; more speed never costs;
 * leaving out what bounds a step helps most. BANYAN_TEST_SEED repeats a run. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "tools/predict.h"

TestSuite(predict, .timeout = 120);

#define MOST 30

static uint64_t test_seed(void)
{
    const char *text = getenv("BANYAN_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);

    fprintf(stderr, "# BANYAN_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static struct bny_graph *switch_of(int n, double Bps)
{
    struct bny_graph *g;
    char text[32];

    snprintf(text, sizeof text, "star:%d", n);
    cr_assert_eq(bny_graph_make(&g, text), 0, "%s", banyan_last_error());
    g->unit_Bps = Bps;
    return g;
}

static struct predicted step_of(const struct predict_world *w, const char *codec,
                                const char *schedule, uint64_t bucket)
{
    struct predict_setting s = { codec, schedule, bucket, 1 << 17 };
    struct predicted p;

    cr_assert_eq(predict_step(&p, w, &s, WITHOUT_NOTHING, NULL), 0, "%s", banyan_last_error());
    return p;
}

#define NAME(text) ((char *)(uintptr_t)(text))

/* One tensor of 4 n blocks of 1000 elements, a ring of n ranks: 2 (n - 1) messages of a block
 * one after the other, n - 1 of which are added at 0.05 ns a byte; before it the computing, and
 * the verdict's message beside it. Work costs nothing here, so the time is alpha and beta. */
Test(predict, one_bucket_on_a_ring_by_hand)
{
    struct bny_profile_tensor tensor = { NAME("w"), BANYAN_F32,   0,
                                         0.02,      NAME("none"), NAME("auto") };
    struct bny_profile profile = {
        .ranks = 1, .steps = 1, .compute_s = 0.02, .n = 1, .tensors = &tensor
    };

    for (int n = 2; n <= 8; n++) {
        double rate = 12.5e6, alpha = 1e-4, block = 4000, want;
        struct predict_world w = { .profile = &profile,
                                   .graph = switch_of(n, rate),
                                   .link_Bps = rate,
                                   .alpha_s = alpha,
                                   .slower = 1,
                                   .compute_slower = 1,
                                   .has_thread = 1 };
        struct predicted p;

        tensor.count = (uint64_t)(1000 * n);
        p = step_of(&w, "none", "ring_uni", 1 << 20);
        want = 0.02 + 2 * (n - 1) * (alpha + block / (rate * PREDICT_WIRE_SHARE)) +
               (n - 1) * 0.05e-9 * block;
        cr_assert_str_eq(p.schedule, "ring_uni");
        /* The verdict's 24 bytes to each peer may go first. */
        cr_assert_geq(p.step_s, want * (1 - 1e-9), "%d ranks: %g, not %g", n, p.step_s, want);
        cr_assert_leq(p.step_s, want + 24.0 * 2 * n / (rate * PREDICT_WIRE_SHARE) + alpha,
                      "%d ranks: %g, not %g", n, p.step_s, want);
        cr_assert_eq(p.wire_bytes, (uint64_t)(2 * (n - 1) * block + 24 * (n - 1)));
        cr_assert_eq(p.buckets, 1);
        bny_graph_free(w.graph);
    }
}

Test(predict, a_rank_alone_computes)
{
    struct bny_profile_tensor tensor = { NAME("w"), BANYAN_F32,   1 << 20,
                                         0.01,      NAME("none"), NAME("auto") };
    struct bny_profile profile = { .compute_s = 0.03, .n = 1, .tensors = &tensor };
    struct predict_world w = {
        .profile = &profile, .graph = switch_of(2, 1e9), .slower = 1, .compute_slower = 2
    };

    cr_assert_geq(step_of(&w, "none", "auto", 1 << 20).step_s, 0.06);
    cr_assert_float_eq(step_of(&w, "none", "auto", 1 << 20).compute_s, 0.06, 1e-9);
    bny_graph_free(w.graph);
}

/* ---- random models ---- */

static char *const codecs[] = { NAME("none"), NAME("int8"), NAME("topk:delta=0.01"),
                                NAME("lossless:force=1"), NAME("powersgd:rank=2") };

static void random_profile(struct bny_profile *p, struct bny_profile_tensor *t, uint64_t *s)
{
    double at = 0.001 * (double)bny_rng_below(s, 20);

    *p = (struct bny_profile){ .ranks = 1, .steps = 1, .tensors = t };
    p->n = 1 + bny_rng_below(s, MOST - 1);
    for (size_t i = 0; i < p->n; i++) {
        t[i] = (struct bny_profile_tensor){ .name = NAME("t"),
                                            .dtype = BANYAN_F32,
                                            .count = 1 + bny_rng_below(s, 200000),
                                            .ready_s = at,
                                            .codec = codecs[bny_rng_below(s, 5)],
                                            .schedule = NAME("auto") };
        at += 1e-4 * (double)bny_rng_below(s, 50);
    }
    p->compute_s = at;
}

static void random_world(struct predict_world *w, const struct bny_profile *p, double rate,
                         uint64_t *s)
{
    *w = (struct predict_world){ .profile = p,
                                 .graph = switch_of(2 + (int)bny_rng_below(s, 7), rate),
                                 .link_Bps = rate,
                                 .alpha_s = 3e-5,
                                 .message_s = 8e-6,
                                 .byte_s = 0.3e-9,
                                 .slower = 1 + (double)bny_rng_below(s, 3),
                                 .compute_slower = 1,
                                 .has_thread = (int)bny_rng_below(s, 2),
                                 .codec_from = 1 + bny_rng_below(s, 50000),
                                 .force = (int)bny_rng_below(s, 2) };
}

/* The plans stay as they are (link_Bps), so that nothing but the wire changes. Queues may serve
 * in another order then, which can cost a little. */
Test(predict, a_faster_wire_never_costs)
{
    static const uint64_t sizes[] = { 1 << 14, 1 << 17, 1 << 20, 1 << 24 };
    struct bny_profile_tensor t[MOST];
    uint64_t s = test_seed();

    for (int round = 0; round < 25; round++) {
        uint64_t bucket = sizes[bny_rng_below(&s, 4)];
        const char *codec = bny_rng_below(&s, 2) ? "profile" : codecs[bny_rng_below(&s, 5)];
        struct bny_profile p;
        struct predict_world w;
        double before = INFINITY;

        random_profile(&p, t, &s);
        random_world(&w, &p, 1e7, &s);
        for (double rate = 1e7; rate < 2e10; rate *= 5) {
            struct predicted got;

            w.graph->unit_Bps = rate;
            got = step_of(&w, codec, "auto", bucket);
            cr_assert_leq(got.step_s, before * 1.02, "round %d: %g s at %g B/s, %g before",
                          round, got.step_s, rate, before);
            cr_assert_geq(got.step_s, got.compute_s * (1 - 1e-9));
            cr_assert(got.buckets >= 1 && got.wire_share <= 1 + 1e-9);
            before = got.step_s;
        }
        bny_graph_free(w.graph);
    }
}

Test(predict, what_is_left_out_costs_nothing)
{
    struct bny_profile_tensor t[MOST];
    uint64_t s = test_seed();

    for (int round = 0; round < 10; round++) {
        struct predict_setting set = { codecs[bny_rng_below(&s, 3)], "auto", 1 << 18, 1 << 17 };
        struct predicted all, less;
        struct bny_profile p;
        struct predict_world w;

        random_profile(&p, t, &s);
        random_world(&w, &p, 1e7, &s);
        cr_assert_eq(predict_step(&all, &w, &set, WITHOUT_NOTHING, NULL), 0);
        for (int k = 1; k < NWITHOUT; k++) {
            cr_assert_eq(predict_step(&less, &w, &set, (enum predict_without)k, NULL), 0);
            /* Without latency or work queues serve in another order, which may cost a little
             * (Graham's anomalies); without a wire there are no queues. */
            if (k == WITHOUT_WIRE)
                cr_assert_leq(less.step_s, all.step_s * (1 + 1e-9));
            cr_assert_geq(less.step_s, all.compute_s * (1 - 1e-9));
        }
        bny_graph_free(w.graph);
    }
}

Test(predict, names_what_cannot_be)
{
    struct bny_profile_tensor tensor = { NAME("w"), BANYAN_F32,   1000,
                                         0,         NAME("none"), NAME("auto") };
    struct bny_profile profile = { .n = 1, .tensors = &tensor };
    struct predict_world w = {
        .profile = &profile, .graph = switch_of(3, 1e9), .slower = 1, .compute_slower = 1
    };
    struct predict_setting s = { "int9", "auto", 1 << 20, 1 << 17 };
    struct predicted p;

    cr_assert_eq(predict_step(&p, &w, &s, WITHOUT_NOTHING, NULL), -BANYAN_EINVAL);
    cr_assert(strstr(banyan_last_error(), "int9"), "%s", banyan_last_error());
    s = (struct predict_setting){ "none", "swing", 1 << 20, 1 << 17 }; /* wants a torus */
    cr_assert_lt(predict_step(&p, &w, &s, WITHOUT_NOTHING, NULL), 0);
    cr_assert(strstr(banyan_last_error(), "swing"), "%s", banyan_last_error());
    s.schedule = "auto";
    cr_assert_eq(predict_step(&p, &w, &s, WITHOUT_NOTHING, "/nowhere/at/all"), -BANYAN_ESYSTEM);
    bny_graph_free(w.graph);
}
