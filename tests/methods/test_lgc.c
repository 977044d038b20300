/* SPDX-License-Identifier: BSD-3-Clause */
/* LGC on one rank: its selection against sorting, its autoencoder's gradients against finite
 * differences, settings and modules that are wrong. Jobs of several ranks: tests/mp/test_lgc.c;
 * a second autoencoder: test_lgc_numpy.py. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/methods.h"
#include "base/rng.h"
#include "tests/support/mp.h"
#include "methods/lgc/lgc.h"

#ifdef BNY_HAVE_LGC
#define HAVE_LGC 1
#else
#define HAVE_LGC 0
#endif

static void need_lgc(void)
{
    if (!HAVE_LGC)
        cr_skip_test("built without oneDNN (libdnnl-dev)");
}

/* ---- selection ---- */
static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

/* Of kinds 0 to 3: any values, few different ones, zeros among few, denormals. */
static float draw_kind(int kind, uint64_t *state)
{
    double u = 2 * bny_rng_unit(state) - 1;

    switch (kind) {
    case 0: return (float)(u * exp(10 * bny_rng_unit(state)));
    case 1: return (float)((int)(u * 3));
    case 2: return u > .9 ? (float)u : 0;
    default: return (float)(u * 1e-41);
    }
}

static void check_select(const float *x, size_t n, size_t k)
{
    static uint32_t histogram[2048];
    float *sorted = malloc((n + 1) * sizeof *sorted);
    uint32_t *index = malloc((k + 1) * sizeof *index);
    size_t ties = 0, taken = 0, last = n;

    for (size_t i = 0; i < n; i++)
        sorted[i] = fabsf(x[i]);
    qsort(sorted, n, sizeof *sorted, descending);
    index[k] = 77;
    bny_lgc_select(x, n, k, index, histogram);
    cr_assert_eq(index[k], 77, "written past its end");
    for (size_t i = 0; i < k; i++) {
        cr_assert(index[i] < n && (i == 0 || index[i] > index[i - 1]), "not ascending");
        cr_assert_geq(fabsf(x[index[i]]), sorted[k - 1], "n %zu, k %zu: %g is too small", n, k,
                      (double)x[index[i]]);
        taken += fabsf(x[index[i]]) == sorted[k - 1];
        last = fabsf(x[index[i]]) == sorted[k - 1] ? index[i] : last;
    }
    for (size_t i = 0; i <= last && i < n && k > 0; i++)
        ties += fabsf(x[i]) == sorted[k - 1];
    cr_assert(k == 0 || ties == taken, "of equal ones not the first");
    free(sorted);
    free(index);
}

Test(lgc, selection_is_that_of_sorting)
{
    uint64_t state = mp_seed();

    for (int round = 0; round < 400; round++) {
        size_t n = 1 + bny_rng_below(&state, round % 7 ? 300 : 5000);
        float *x = malloc(n * sizeof *x);

        for (size_t i = 0; i < n; i++)
            x[i] = draw_kind(round % 4, &state);
        check_select(x, n, bny_rng_below(&state, n + 1));
        check_select(x, n, n);
        check_select(x, n, 1);
        free(x);
    }
}

/* ---- gradients ---- */
struct check {
    const struct bny_lgc_net_ops *ops;
    struct bny_lgc_net *net;
    float *x, *news, *y, *kept, *direction;
    size_t count; /* of weights */
};

static double loss_of(struct check *c)
{
    double loss;

    cr_assert_eq(c->ops->gradients(c->net, c->x, c->news, 1, c->y, &loss), 0, "%s",
                 c->net->text);
    return loss;
}

static double loss_at(struct check *c, double h)
{
    for (size_t i = 0; i < c->count; i++)
        c->net->weights[i] = (float)(c->kept[i] + h * c->direction[i]);
    cr_assert_eq(c->ops->pack(c->net), 0);
    return loss_of(c);
}

/* Along a direction in the weights [first, end): half the gradient's own, half at random, so
 * that both are seen. A long step meets leaky ReLUs that cross zero, each a kink; a short one
 * drowns in rounding (the loss is summed in f64 from f32 values). One of three must agree. */
static void check_range(struct check *c, size_t first, size_t end, uint64_t *state)
{
    double loss = loss_of(c), slope = 0, gg = 0, error = INFINITY;

    memset(c->direction, 0, c->count * sizeof *c->direction);
    for (size_t i = first; i < end; i++)
        gg += (double)c->net->gradient[i] * c->net->gradient[i];
    cr_assert_gt(gg, 0, "weights %zu to %zu have no gradient", first, end);
    for (size_t i = first; i < end; i++) {
        double random = (2 * bny_rng_unit(state) - 1) / sqrt((double)(end - first));

        c->direction[i] = (float)(c->net->gradient[i] / sqrt(gg) + random);
        slope += (double)c->direction[i] * c->net->gradient[i];
    }
    for (double h = 1e-3; h > 5e-5; h /= 4)
        error = fmin(error, fabs((loss_at(c, h) - loss_at(c, -h)) / (2 * h) - slope));
    loss_at(c, 0);
    cr_expect_lt(error, .08 * fabs(slope),
                 "weights %zu to %zu: slope %g, differences are off by %g (loss %g)", first,
                 end, slope, error, loss);
}

static void check_gradients(int server)
{
    /* Ends of the layers' weights: encoder, then one decoder. */
    static const size_t layers[] = { 0,      192,    256,    24832,  24960,  123264, 123520,
                                     172672, 172736, 172992, 172996, 173380, 173412, 179556,
                                     179620, 204196, 204324, 216612, 216644, 216676 };
    struct bny_lgc_net_conf conf = { .mu = 64,
                                     .ranks = 3,
                                     .decoders = server ? 3 : 1,
                                     .trains = 1,
                                     .threads = 1,
                                     .rate = .001,
                                     .lambda_rec = .5,
                                     .lambda_similar = 4, /* to be seen beside the rest */
                                     .seed = 5 };
    struct check c = { 0 };
    uint64_t state = mp_seed();
    char text[BNY_LGC_TEXT] = "";
    size_t n = conf.mu * 3;

    cr_assert_eq(bny_lgc_net_load(&c.ops, NULL), 0, "%s", banyan_last_error());
    cr_assert_eq(c.ops->create(&c.net, &conf, text), 0, "%s", text);
    c.count = c.net->nweights;
    cr_assert_eq(c.net->nencoder, 172996);
    cr_assert_eq(c.count, server ? 172996 + 3 * 43682 : 172996 + 43681);
    c.x = malloc(n * sizeof *c.x);
    c.news = server ? calloc(n, sizeof *c.news) : NULL;
    c.y = malloc(conf.mu * sizeof *c.y);
    c.kept = malloc(c.count * sizeof *c.kept);
    c.direction = malloc(c.count * sizeof *c.direction);
    for (size_t i = 0; i < n; i++) {
        c.x[i] = (float)(4 * bny_rng_unit(&state) - 2);
        if (server && i % 7 == 0)
            c.news[i] = c.x[i];
    }
    for (size_t i = 0; i < c.count; i++) /* codes of some size, unlike each other */
        c.net->weights[i] *= i < c.net->nencoder ? 3 : 1.5f;
    memcpy(c.kept, c.net->weights, c.count * sizeof *c.kept);
    cr_assert_eq(c.ops->pack(c.net), 0);
    for (size_t i = 1; i < sizeof layers / sizeof layers[0]; i++)
        check_range(&c, layers[i - 1], layers[i], &state);
    check_range(&c, 216676, c.count, &state); /* the rest of the decoders */
    check_range(&c, 0, c.count, &state);
    c.ops->destroy(c.net);
    free(c.x);
    free(c.news);
    free(c.y);
    free(c.kept);
    free(c.direction);
}

Test(lgc, gradients_are_those_of_finite_differences_with_one_decoder)
{
    need_lgc();
    check_gradients(0);
}

Test(lgc, gradients_are_those_of_finite_differences_with_innovations)
{
    need_lgc();
    check_gradients(1);
}

Test(lgc, a_seed_gives_the_same_weights)
{
    struct bny_lgc_net_conf conf = {
        .mu = 16, .ranks = 1, .decoders = 1, .threads = 1, .seed = 5
    };
    const struct bny_lgc_net_ops *ops;
    struct bny_lgc_net *net[3];
    char text[BNY_LGC_TEXT] = "";

    need_lgc();
    cr_assert_eq(bny_lgc_net_load(&ops, NULL), 0, "%s", banyan_last_error());
    for (int i = 0; i < 3; i++) {
        conf.seed += i == 2;
        cr_assert_eq(ops->create(&net[i], &conf, text), 0, "%s", text);
    }
    cr_expect(!memcmp(net[0]->weights, net[1]->weights, net[0]->nweights * sizeof(float)));
    cr_expect(memcmp(net[0]->weights, net[2]->weights, net[0]->nweights * sizeof(float)));
    for (int i = 0; i < 3; i++)
        ops->destroy(net[i]);
}

/* ---- settings ---- */
static const int64_t shape[] = { 40, 50 };
static float gradient[4][2000];

static int try_create(const struct banyan_lgc_config *cfg, size_t n)
{
    static const char *const names[] = { "a.w", "b.w", "c.w", "d.w" };
    struct banyan_tensor t[4];
    struct banyan_comm *comm;
    struct banyan_lgc *lgc;
    int rc;

    for (size_t i = 0; i < 4; i++)
        t[i] = (struct banyan_tensor){ names[i], BANYAN_F32, 2, shape, gradient[i] };
    cr_assert_eq(banyan_comm_init_env(&comm, NULL), 0, "%s", banyan_last_error());
    rc = banyan_lgc_create(&lgc, comm, t, n, cfg);
    cr_expect_eq(rc == 0, lgc != NULL, "an object with an error, or none without");
    banyan_lgc_free(lgc);
    banyan_comm_destroy(comm);
    return rc;
}

#define REFUSED(setting, value, sentence)                                                      \
    do {                                                                                       \
        struct banyan_lgc_config bad = BANYAN_LGC_CONFIG_INIT;                                 \
        bad.setting = (value);                                                                 \
        cr_expect_eq(try_create(&bad, 4), -BANYAN_EINVAL, "%s was taken", #setting);           \
        cr_expect(strstr(banyan_last_error(), sentence), "%s", banyan_last_error());           \
    } while (0)

Test(lgc, wrong_settings_are_named)
{
    REFUSED(size, 12, "BANYAN_LGC_CONFIG_INIT");
    REFUSED(instance, 7, "instance");
    REFUSED(optimiser, 7, "optimiser");
    REFUSED(root, 1, "root");
    REFUSED(root, -1, "root");
    REFUSED(threads, 0, "threads");
    REFUSED(train_steps, 0, "train_steps");
    REFUSED(delta, 0, "delta");
    REFUSED(delta, 1.5, "delta");
    REFUSED(delta, NAN, "delta");
    REFUSED(delta_innovation, .5, "delta_innovation");
    REFUSED(gate, 3, "gate");
    REFUSED(gate, NAN, "gate");
    REFUSED(gate_every, 0, "gate_every");
    REFUSED(learning_rate, 0, "learning_rate");
    REFUSED(lambda_reconstruction, -1, "lambda_reconstruction");
    REFUSED(lambda_similarity, INFINITY, "lambda_similarity");
    REFUSED(dense, "a.w,nothing*", "nothing*");
    REFUSED(topk, "?.b", "?.b");
    REFUSED(dense, "*", "left for the autoencoder");
    REFUSED(dense_below, 5000, "left for the autoencoder");
}

Test(lgc, wrong_arguments_are_refused)
{
    struct banyan_lgc_stats s = { .size = sizeof s };
    struct banyan_lgc *lgc;
    struct banyan_comm *comm;

    cr_expect_eq(banyan_lgc_create(&lgc, NULL, NULL, 0, NULL), -BANYAN_EINVAL);
    cr_expect_eq(banyan_lgc_step(NULL), -BANYAN_EINVAL);
    cr_expect_eq(banyan_lgc_get_stats(NULL, &s), -BANYAN_EINVAL);
    cr_expect_eq(banyan_lgc_bytes(NULL), 0);
    cr_expect_eq(banyan_lgc_save(NULL, &s, sizeof s), -BANYAN_EINVAL);
    cr_expect_eq(banyan_lgc_load(NULL, &s, sizeof s), -BANYAN_EINVAL);
    banyan_lgc_free(NULL);
    cr_assert_eq(banyan_comm_init_env(&comm, NULL), 0, "%s", banyan_last_error());
    cr_expect_eq(banyan_lgc_create(NULL, comm, NULL, 0, NULL), -BANYAN_EINVAL);
    cr_expect_eq(banyan_lgc_create(&lgc, comm, NULL, 3, NULL), -BANYAN_EINVAL);
    cr_expect_eq(banyan_lgc_create(&lgc, comm, NULL, 0, NULL), -BANYAN_EINVAL);
    banyan_comm_destroy(comm);
}

/* By default the first tensor is dense and the last top-k: two of four are encoded. */
Test(lgc, defaults_leave_the_middle)
{
    struct banyan_lgc_config cfg;

    need_lgc();
    cr_expect_eq(try_create(NULL, 4), 0, "%s", banyan_last_error());
    cr_expect_eq(try_create(NULL, 2), -BANYAN_EINVAL, "a first and a last one");
    cfg = (struct banyan_lgc_config)BANYAN_LGC_CONFIG_INIT;
    cr_expect_eq(cfg.dense_steps, 200);
    cr_expect_eq(cfg.train_steps, 300);
    cr_expect_eq(cfg.gate, .5);
    cfg.dense = cfg.topk = "";
    cr_expect_eq(try_create(&cfg, 1), 0, "%s", banyan_last_error());
    cfg.dense = "a.w,b*";
    cfg.topk = "[bc].w";
    cr_expect_eq(try_create(&cfg, 4), 0, "%s", banyan_last_error());
    cr_expect_eq(try_create(&cfg, 3), -BANYAN_EINVAL, "nothing is left to encode");
}

Test(lgc, a_missing_module_is_told_with_its_package)
{
    struct banyan_lgc_config cfg = BANYAN_LGC_CONFIG_INIT;

    cfg.module = "/nowhere/libbanyan-lgc.so";
    cr_expect_eq(try_create(&cfg, 4), -BANYAN_ENOTSUP);
    cr_expect(strstr(banyan_last_error(), "libdnnl-dev"), "%s", banyan_last_error());
    cr_expect(strstr(banyan_last_error(), "/nowhere"), "%s", banyan_last_error());
    if (!HAVE_LGC)
        cr_expect_eq(try_create(NULL, 4), -BANYAN_ENOTSUP);
    /* A library that is none of ours. */
    cfg.module = "libm.so.6";
    cr_expect_eq(try_create(&cfg, 4), -BANYAN_EVERSION);
    cr_expect(strstr(banyan_last_error(), "one build"), "%s", banyan_last_error());
}
