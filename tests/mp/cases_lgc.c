/* SPDX-License-Identifier: BSD-3-Clause */
/* Learned gradient compression: phases, ways of exchange against a second implementation, the
 * gate, bytes, saved states, failures. The argument of most cases is the instance, ring or
 * server. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/methods.h"
#include "base/rng.h"
#include "tests/mp/case.h"
#include "methods/lgc/lgc.h"

#define TENSORS 5
#define LONGEST 4800

/* By the defaults' rules: first dense, last and its bias top-k, but biases are too short. */
static const struct {
    const char *name;
    int ndim;
    int64_t shape[2];
    size_t count;
} described[TENSORS] = {
    { "first.w", 2, { 40, 32 }, 1280 },   { "mid.w", 2, { 64, 50 }, 3200 },
    { "wide.w", 2, { 96, 50 }, LONGEST }, { "last.w", 2, { 60, 40 }, 2400 },
    { "last.b", 1, { 60 }, 60 },
};
#define DENSE_ELEMENTS (1280 + 60)
#define ALL_ELEMENTS   (DENSE_ELEMENTS + 3200 + 4800 + 2400)
#define DELTA          .02
#define KEPT           (64 + 96 + 48)
#define MU             (64 + 96)

struct model {
    struct banyan_tensor tensor[TENSORS];
    float *grad[TENSORS];
    double share; /* of the gradients' variance that all ranks have in common */
};

static void model_make(struct model *m, double share)
{
    for (int i = 0; i < TENSORS; i++) {
        m->grad[i] = case_malloc(described[i].count * sizeof(float));
        m->tensor[i] = (struct banyan_tensor){ .name = described[i].name,
                                               .dtype = BANYAN_F32,
                                               .ndim = described[i].ndim,
                                               .shape = described[i].shape,
                                               .grad = m->grad[i] };
    }
    m->share = share;
}

static void model_free(struct model *m)
{
    for (int i = 0; i < TENSORS; i++)
        free(m->grad[i]);
}

/* Laplace with variance 1. */
static double laplace(uint64_t *state)
{
    double u = bny_rng_unit(state) - .5;

    return (u < 0 ? 1 : -1) * log(1 - 2 * fabs(u) + 1e-12) * .7071;
}

/* Gradients of a step: a common part that drifts from step to step, and each rank's own. */
static void model_fill(const struct test *t, struct model *m, uint64_t step)
{
    for (int i = 0; i < TENSORS; i++) {
        uint64_t slow = t->seed + (uint64_t)i * 77 + step / 50 * 1000,
                 own = t->seed ^ ((step * 64 + (uint64_t)t->rank) * 64 + (uint64_t)i + 1) << 20;

        for (size_t j = 0; j < described[i].count; j++)
            m->grad[i][j] =
                (float)(sqrt(m->share) * laplace(&slow) + sqrt(1 - m->share) * laplace(&own));
    }
}

static uint64_t model_hash(const struct model *m)
{
    uint64_t h = 0;

    for (int i = 0; i < TENSORS; i++)
        h = h * 31 + case_hash(m->grad[i], described[i].count * sizeof(float));
    return h;
}

static struct banyan_lgc_config settings(const struct test *t)
{
    struct banyan_lgc_config cfg = BANYAN_LGC_CONFIG_INIT;

    cfg.instance = !strcmp(t->arg, "server") ? BANYAN_LGC_SERVER : BANYAN_LGC_RING;
    cfg.delta = DELTA;
    cfg.delta_innovation = .001;
    cfg.seed = t->seed;
    return cfg;
}

static struct banyan_lgc *make(const struct test *t, const struct model *m,
                               const struct banyan_lgc_config *cfg)
{
    struct banyan_lgc *lgc;

    CHECK_OK(t, banyan_lgc_create(&lgc, t->comm, m->tensor, TENSORS, cfg));
    return lgc;
}

static struct banyan_lgc_stats stats(const struct test *t, struct banyan_lgc *lgc)
{
    struct banyan_lgc_stats s = { .size = sizeof s };

    CHECK_OK(t, banyan_lgc_get_stats(lgc, &s));
    return s;
}

static void steps(const struct test *t, struct banyan_lgc *lgc, struct model *m, uint64_t first,
                  uint64_t end)
{
    for (uint64_t s = first; s < end; s++) {
        model_fill(t, m, s);
        CHECK_OK(t, banyan_lgc_step(lgc));
    }
}

/* Without oneDNN the build has no module; elsewhere its absence is a failure. */
#ifdef BNY_HAVE_LGC
#define HAVE_LGC 1
#else
#define HAVE_LGC 0
#endif

static int without_lgc(void)
{
    return case_skip("built without oneDNN (libdnnl-dev)");
}

/* ---- against a second implementation ---- */
struct entry {
    float value;
    uint32_t index;
};

static int by_magnitude(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    if (fabsf(x->value) != fabsf(y->value))
        return fabsf(x->value) < fabsf(y->value) ? 1 : -1;
    return x->index < y->index ? -1 : 1;
}

static int by_index(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    return x->index < y->index ? -1 : 1;
}

/* The k largest of x[n], by sorting all. */
static void largest(const float *x, size_t n, size_t k, struct entry *out)
{
    struct entry *all = case_malloc(n * sizeof *all);

    for (size_t i = 0; i < n; i++)
        all[i] = (struct entry){ x[i], (uint32_t)i };
    qsort(all, n, sizeof *all, by_magnitude);
    qsort(all, k, sizeof *all, by_index);
    memcpy(out, all, k * sizeof *out);
    free(all);
}

/* Plain top-k with feedback of one tensor: grad becomes the mean, e what was not sent. */
static void reference_topk(const struct test *t, float *grad, float *e, size_t n, size_t k)
{
    struct entry *mine = case_malloc(k * sizeof *mine);
    struct entry *all = case_malloc(k * sizeof *all * (size_t)t->n);
    float share = 1 / (float)t->n;

    for (size_t i = 0; i < n; i++)
        grad[i] += e[i];
    largest(grad, n, k, mine);
    memcpy(e, grad, n * sizeof *e);
    memset(grad, 0, n * sizeof *grad);
    for (size_t i = 0; i < k; i++)
        e[mine[i].index] = 0;
    CHECK_OK(t, banyan_allgather(mine, all, k * sizeof *mine, BANYAN_U8, t->comm, NULL));
    for (size_t i = 0; i < k * (size_t)t->n; i++)
        grad[all[i].index] += all[i].value * share;
    free(mine);
    free(all);
}

static uint64_t wire_of(const struct test *t, const void *send, void *recv, size_t words)
{
    struct banyan_stats before = { .size = sizeof before }, after = before;

    CHECK_OK(t, banyan_comm_stats(t->comm, &before));
    CHECK_OK(t, banyan_allgather(send, recv, words, BANYAN_U32, t->comm, NULL));
    CHECK_OK(t, banyan_comm_stats(t->comm, &after));
    after.wire_bytes -= before.wire_bytes;
    CHECK_OK(t, banyan_allreduce(&after.wire_bytes, &after.wire_bytes, 1, BANYAN_U64,
                                 BANYAN_SUM, t->comm, NULL));
    return after.wire_bytes;
}

/* What a step with the gate shut sends is the top-k of all ranks and nothing more. */
static void check_topk_bytes(const struct test *t, const struct banyan_lgc_stats *a,
                             const struct banyan_lgc_stats *b, uint64_t done)
{
    uint64_t n = (uint64_t)t->n, one;
    uint32_t *send = case_malloc(2 * KEPT * 4), *recv = case_malloc(n * 2 * KEPT * 4);

    memset(send, 0, 2 * KEPT * 4);
    one = wire_of(t, send, recv, 2 * KEPT);
    CHECK(t, b->sent[BANYAN_LGC_INDICES] - a->sent[BANYAN_LGC_INDICES] == done * n * KEPT * 4,
          "indices");
    CHECK(t, b->sent[BANYAN_LGC_VALUES] - a->sent[BANYAN_LGC_VALUES] == done * n * KEPT * 4,
          "values");
    CHECK(t,
          b->sent[BANYAN_LGC_DENSE] - a->sent[BANYAN_LGC_DENSE] ==
              done * n * DENSE_ELEMENTS * 4,
          "dense");
    for (int k = BANYAN_LGC_CODES; k <= BANYAN_LGC_GATE; k++)
        CHECK(t, a->sent[k] == b->sent[k] && a->wire[k] == b->wire[k], "bytes of kind %d", k);
    CHECK(t,
          b->wire[BANYAN_LGC_INDICES] + b->wire[BANYAN_LGC_VALUES] -
                  a->wire[BANYAN_LGC_INDICES] - a->wire[BANYAN_LGC_VALUES] ==
              done * one,
          "on the wire %llu bytes in %llu steps, an allgather has %llu",
          (unsigned long long)(b->wire[BANYAN_LGC_INDICES] + b->wire[BANYAN_LGC_VALUES] -
                               a->wire[BANYAN_LGC_INDICES] - a->wire[BANYAN_LGC_VALUES]),
          (unsigned long long)done, (unsigned long long)one);
    free(send);
    free(recv);
}

/* With the gate shut: plain top-k, bit for bit and byte for byte. */
static int lgc_shut(struct test *t)
{
    struct banyan_lgc_config cfg = settings(t);
    struct banyan_lgc_stats before, after;
    struct model m, ref;
    float *e[TENSORS];
    struct banyan_lgc *lgc;

    if (!HAVE_LGC)
        return without_lgc();
    cfg.dense_steps = 2;
    cfg.train_steps = 3;
    cfg.gate = 2;
    model_make(&m, .8);
    model_make(&ref, .8);
    lgc = make(t, &m, &cfg);
    steps(t, lgc, &m, 0, 5);
    before = stats(t, lgc);
    CHECK(t, before.phase == 3 && !before.open && before.kept == KEPT, "kept %llu",
          (unsigned long long)before.kept);
    for (int i = 0; i < TENSORS; i++) {
        e[i] = case_malloc(described[i].count * sizeof(float));
        if (i > 0 && i < 4)
            memcpy(e[i], lgc->part[i].residual, described[i].count * sizeof(float));
    }
    for (uint64_t s = 5; s < 12; s++) {
        model_fill(t, &ref, s);
        for (int i = 0; i < TENSORS; i++)
            if (i > 0 && i < 4)
                reference_topk(t, ref.grad[i], e[i], described[i].count,
                               (size_t)((double)described[i].count * DELTA + .5));
            else
                CHECK_OK(t, banyan_allreduce(ref.grad[i], ref.grad[i], described[i].count,
                                             BANYAN_F32, BANYAN_AVG, t->comm, &case_exact));
        steps(t, lgc, &m, s, s + 1);
        for (int i = 0; i < TENSORS; i++)
            CHECK(t, !memcmp(m.grad[i], ref.grad[i], described[i].count * sizeof(float)),
                  "step %d: %s differs from top-k", (int)s, described[i].name);
    }
    after = stats(t, lgc);
    check_topk_bytes(t, &before, &after, 7);
    CHECK(t, after.coded == 0, "coded");
    for (int i = 0; i < TENSORS; i++)
        free(e[i]);
    banyan_lgc_free(lgc);
    model_free(&m);
    model_free(&ref);
    return 0;
}

/* ---- phases ---- */
/* 200 and 300 steps by default; sums in the first, only top-k after it. */
static int lgc_phases(struct test *t)
{
    struct banyan_lgc_config cfg = settings(t);
    uint64_t n = (uint64_t)t->n;
    struct banyan_lgc_stats s;
    struct model m;
    struct banyan_lgc *lgc;
    float *mean;

    if (!HAVE_LGC)
        return without_lgc();
    mean = case_malloc(LONGEST * sizeof *mean);
    cfg.gate = -2;
    model_make(&m, .8);
    lgc = make(t, &m, &cfg);
    model_fill(t, &m, 0);
    CHECK_OK(t, banyan_allreduce(m.grad[2], mean, LONGEST, BANYAN_F32, BANYAN_AVG, t->comm,
                                 &case_exact));
    steps(t, lgc, &m, 0, 1);
    CHECK(t, !memcmp(m.grad[2], mean, LONGEST * sizeof *mean), "phase 1 is no average");
    steps(t, lgc, &m, 1, 199);
    CHECK(t, stats(t, lgc).phase == 1, "step 199");
    steps(t, lgc, &m, 199, 200);
    s = stats(t, lgc);
    CHECK(t, s.phase == 2 && s.sent[BANYAN_LGC_DENSE] == 200 * n * ALL_ELEMENTS * 4,
          "step 200: phase %d", s.phase);
    CHECK(t, s.sent[BANYAN_LGC_DENSE] == s.sent_dense, "dense steps are dense");
    steps(t, lgc, &m, 200, 499);
    CHECK(t, stats(t, lgc).phase == 2, "step 499");
    steps(t, lgc, &m, 499, 500);
    s = stats(t, lgc);
    CHECK(t, s.phase == 3 && s.open && s.coded == 0, "step 500: phase %d", s.phase);
    CHECK(t, s.sent[BANYAN_LGC_CODES] == 0 && s.sent[BANYAN_LGC_WEIGHTS] == 0, "too early");
    CHECK(t, s.mu == MU && s.code == MU / 4, "mu %d", (int)s.mu);
    steps(t, lgc, &m, 500, 504);
    s = stats(t, lgc);
    CHECK(t, s.coded == 4, "coded %d", (int)s.coded);
    /* mu/4 numbers of 4 bytes: of every rank, or of the leader. */
    CHECK(t, s.sent[BANYAN_LGC_CODES] == 4 * (lgc->server ? 1 : n) * (MU * 4 / 4), "codes");
    CHECK(t,
          s.sent[BANYAN_LGC_WEIGHTS] ==
              4 + 4 * (lgc->server ? lgc->net->nencoder : lgc->net->nweights),
          "weights travel once");
    CHECK(t, lgc->net->nencoder == 172996, "the encoder has %zu weights", lgc->net->nencoder);
    case_check_agree(t, t->comm, model_hash(&m), "gradients");
    banyan_lgc_free(lgc);
    model_free(&m);
    free(mean);
    return 0;
}

/* ---- coded steps ---- */
static void take_sum(const struct test *t, struct banyan_lgc *lgc, const struct model *m,
                     float *acc[TENSORS])
{
    for (int i = 1; i < 4; i++)
        for (size_t j = 0; j < described[i].count; j++)
            acc[i][j] = m->grad[i][j] + lgc->part[i].residual[j];
}

/* The leader's frame, from its own sums. */
static void reference_frame(const struct test *t, struct banyan_lgc *lgc, int leader,
                            float *acc[TENSORS], uint32_t *frame)
{
    struct entry top[MU];

    largest(acc[1], described[1].count, 64, top);
    largest(acc[2], described[2].count, 96, top + 64);
    for (int i = 0; i < MU; i++)
        frame[i] = top[i].index;
    CHECK_OK(t, banyan_broadcast(frame, MU, BANYAN_U32, leader, t->comm, NULL));
    CHECK(t, !memcmp(frame, lgc->frame + 1, MU * sizeof *frame), "another frame");
}

/* What the autoencoder makes of all ranks' vectors xs [n][MU], by its own functions. */
static void reference_mean(const struct test *t, struct banyan_lgc *lgc, int leader,
                           const float *xs, float *mean)
{
    float codes[MP_RANKS_MAX][MU / 4], code[MU / 4] = { 0 }, y[MU];
    struct entry top[MU];

    memset(mean, 0, MU * sizeof *mean);
    for (int r = 0; r < t->n; r++) {
        CHECK_OK(t, lgc->ops->encode(lgc->net, xs + r * MU, codes[r]));
        for (int i = 0; i < MU / 4; i++)
            code[i] += codes[r][i] / (float)t->n;
    }
    if (!lgc->server)
        CHECK_OK(t, lgc->ops->decode(lgc->net, 0, code, NULL, mean));
    for (int r = 0; lgc->server && r < t->n; r++) {
        float news[MU] = { 0 };

        largest(xs + r * MU, MU, lgc->ninnovation, top);
        for (size_t i = 0; i < lgc->ninnovation; i++)
            news[top[i].index] = top[i].value;
        CHECK_OK(t, lgc->ops->decode(lgc->net, r, codes[leader], news, y));
        for (int i = 0; i < MU; i++)
            mean[i] += y[i] / (float)t->n;
    }
}

static void check_coded_step(const struct test *t, struct banyan_lgc *lgc,
                             const struct model *m, int leader, float *acc[TENSORS])
{
    float x[MU], xs[MP_RANKS_MAX * MU], mean[MU], worst = 0, most = 0;
    uint32_t frame[MU];

    reference_frame(t, lgc, leader, acc, frame);
    for (int i = 0; i < MU; i++)
        x[i] = acc[i < 64 ? 1 : 2][frame[i]] / lgc->scale;
    CHECK_OK(t, banyan_allgather(x, xs, MU, BANYAN_F32, t->comm, &case_exact));
    reference_mean(t, lgc, leader, xs, mean);
    for (int i = 0; i < MU; i++) {
        float want = mean[i] * lgc->scale, got = m->grad[i < 64 ? 1 : 2][frame[i]];

        acc[i < 64 ? 1 : 2][frame[i]] = 0;
        m->grad[i < 64 ? 1 : 2][frame[i]] = 0;
        worst = fmaxf(worst, fabsf(want - got));
        most = fmaxf(most, fabsf(want));
    }
    /* A server alone has all decoders' trained weights. */
    if (!lgc->server || t->rank == lgc->cfg.root)
        CHECK(t, most > 0 && worst < 1e-4f * most, "off by %g of %g", (double)worst,
              (double)most);
    for (int i = 1; i < 3; i++) {
        CHECK(t, !memcmp(acc[i], lgc->part[i].residual, described[i].count * sizeof(float)),
              "the residual of %s is not what was not sent", described[i].name);
        for (size_t j = 0; j < described[i].count; j++)
            CHECK(t, m->grad[i][j] == 0, "%s[%zu] beside the frame", described[i].name, j);
    }
}

static int lgc_coded(struct test *t)
{
    struct banyan_lgc_config cfg = settings(t);
    struct banyan_lgc *lgc;
    struct banyan_lgc_stats s;
    float *acc[TENSORS];
    struct model m;

    if (!HAVE_LGC)
        return without_lgc();
    cfg.dense_steps = 0;
    cfg.train_steps = 6;
    cfg.gate = -2;
    cfg.root = t->n - 1;
    model_make(&m, .8);
    lgc = make(t, &m, &cfg);
    steps(t, lgc, &m, 0, 6);
    for (int i = 0; i < TENSORS; i++)
        acc[i] = case_malloc(described[i].count * sizeof(float));
    for (uint64_t step = 6; step < 6 + 2 * (uint64_t)t->n; step++) {
        model_fill(t, &m, step);
        take_sum(t, lgc, &m, acc);
        CHECK_OK(t, banyan_lgc_step(lgc));
        case_check_agree(t, t->comm, model_hash(&m), "gradients");
        check_coded_step(t, lgc, &m, (int)(step % (uint64_t)t->n), acc);
    }
    case_check_agree(t, t->comm,
                     case_hash(lgc->net->weights, lgc->net->nencoder * sizeof(float)),
                     "encoders");
    s = stats(t, lgc);
    CHECK(t, s.encode_us > 0 || lgc->server, "no time was taken");
    fprintf(stderr, "# rank %d: encoding %.0f us, decoding %.0f us, training %.0f us\n",
            t->rank, s.encode_us, s.decode_us, s.train_us);
    for (int i = 0; i < TENSORS; i++)
        free(acc[i]);
    banyan_lgc_free(lgc);
    model_free(&m);
    return 0;
}

/* ---- the gate ---- */
static int lgc_gate(struct test *t)
{
    struct banyan_lgc_config cfg = settings(t);
    struct banyan_lgc *lgc;
    struct banyan_lgc_stats s;
    struct model m;
    int was_open = 0, was_shut = 0;

    if (!HAVE_LGC)
        return without_lgc();
    cfg.dense_steps = 0;
    cfg.train_steps = 8;
    cfg.gate_every = 4;
    cfg.gate_sample = 100;
    model_make(&m, .95);
    lgc = make(t, &m, &cfg);
    for (uint64_t step = 0; step < 256; step++) {
        uint64_t coded = lgc->v.coded;
        int open = lgc->v.open && step >= 8;

        m.share = step < 32 || step >= 192 ? .95 : 0; /* residuals keep it for a while */
        steps(t, lgc, &m, step, step + 1);
        CHECK(t, lgc->v.coded == coded + (uint64_t)open, "step %d", (int)step);
        if (step < 8 || step % 4 != 3)
            continue;
        s = stats(t, lgc);
        CHECK(t, s.open == (s.correlation > .5), "step %d: correlation %g, open %d", (int)step,
              s.correlation, s.open);
        was_open += s.open;
        was_shut += !s.open;
        case_check_agree(t, t->comm, case_hash(&s.correlation, sizeof s.correlation), "gates");
    }
    s = stats(t, lgc);
    if (t->n > 1) {
        CHECK(t, was_shut > 0, "it never shut");
        CHECK(t, s.sent[BANYAN_LGC_GATE] > 0, "nothing was measured");
    }
    CHECK(t, was_open > 0, "it never opened");
    CHECK(t, lgc->v.shipped, "no weights were shipped");
    fprintf(stderr, "# open %d, shut %d times, correlation at the end %.3f\n", was_open,
            was_shut, s.correlation);
    banyan_lgc_free(lgc);
    model_free(&m);
    return 0;
}

/* Pairs of ranks: known correlations. */
static int lgc_correlation(struct test *t)
{
    struct banyan_lgc_config cfg = settings(t);
    struct banyan_lgc *lgc;
    struct model m;
    double want = 0;

    if (!HAVE_LGC)
        return without_lgc();
    cfg.dense_steps = 0;
    cfg.train_steps = 1;
    model_make(&m, 1);
    lgc = make(t, &m, &cfg);
    model_fill(t, &m, 0); /* all ranks alike; then odd ranks the other way round */
    for (int i = 0; i < TENSORS; i++)
        for (size_t j = 0; t->rank % 2 && j < described[i].count; j++)
            m.grad[i][j] = -m.grad[i][j];
    CHECK_OK(t, banyan_lgc_step(lgc));
    for (int a = 0; a < t->n; a++)
        for (int b = 0; b < t->n; b++)
            want += a == b ? 0 : (a + b) % 2 ? -1 : 1;
    want = t->n > 1 ? want / (t->n * (t->n - 1)) : 1;
    CHECK(t, fabs(stats(t, lgc).correlation - want) < 1e-5, "correlation %g, expected %g",
          stats(t, lgc).correlation, want);
    banyan_lgc_free(lgc);
    model_free(&m);
    return 0;
}

/* ---- training ---- */
/* The loss falls by a tenth between steps 100 and 500 (means of 40 steps). */
static int lgc_learns(struct test *t)
{
    struct banyan_lgc_config cfg = settings(t);
    struct banyan_lgc_stats s;
    struct banyan_lgc *lgc;
    double early = 0, late = 0;
    struct model m;

    if (!HAVE_LGC)
        return without_lgc();
    cfg.dense_steps = 0;
    cfg.train_steps = 520;
    model_make(&m, .8);
    lgc = make(t, &m, &cfg);
    for (uint64_t step = 0; step < 520; step++) {
        steps(t, lgc, &m, step, step + 1);
        if (step >= 80 && step < 120)
            early += stats(t, lgc).loss / 40;
        if (step >= 480)
            late += stats(t, lgc).loss / 40;
    }
    s = stats(t, lgc);
    fprintf(stderr, "# loss %.4f at step 100, %.4f at 500; error %.3f, largest quarter %.3f\n",
            early, late, s.error, s.error_largest);
    CHECK(t, early > 0 && late < .9 * early, "loss %g, then %g", early, late);
    banyan_lgc_free(lgc);
    model_free(&m);
    return 0;
}

/* ---- states ---- */
static void *save(const struct test *t, const struct banyan_lgc *lgc, size_t *bytes)
{
    void *buf;

    *bytes = banyan_lgc_bytes(lgc);
    buf = case_malloc(*bytes);
    CHECK_RC(t, -BANYAN_EINVAL, banyan_lgc_save(lgc, buf, *bytes - 1));
    CHECK_OK(t, banyan_lgc_save(lgc, buf, *bytes));
    return buf;
}

/* Saved in phase `at`, loaded into another object, both go on to the end alike. */
static void continues(const struct test *t, struct model *m, uint64_t at)
{
    struct banyan_lgc_config cfg = settings(t);
    struct banyan_lgc *a, *b;
    struct banyan_lgc_stats s, u;
    size_t bytes, also;
    void *state, *end_a, *end_b;

    cfg.dense_steps = 2;
    cfg.train_steps = 6;
    cfg.gate_every = 3;
    cfg.gate = .3;
    a = make(t, m, &cfg);
    steps(t, a, m, 0, at);
    state = save(t, a, &bytes);
    b = make(t, m, &cfg);
    CHECK_OK(t, banyan_lgc_load(b, state, bytes));
    for (uint64_t step = at; step < 16; step++) {
        uint64_t hash;

        steps(t, a, m, step, step + 1);
        hash = model_hash(m);
        steps(t, b, m, step, step + 1);
        CHECK(t, model_hash(m) == hash, "saved at step %d, step %d differs", (int)at,
              (int)step);
    }
    s = stats(t, a);
    u = stats(t, b);
    CHECK(t, s.coded == u.coded && s.coded > 0 && s.loss == u.loss, "numbers differ");
    CHECK(t, !memcmp(s.sent, u.sent, sizeof s.sent), "bytes differ");
    memcpy(b->v.wire, a->v.wire, sizeof a->v.wire); /* what transports count may vary */
    end_a = save(t, a, &bytes);
    end_b = save(t, b, &also);
    CHECK(t, bytes == also && !memcmp(end_a, end_b, bytes), "states differ at the end");
    free(state);
    free(end_a);
    free(end_b);
    banyan_lgc_free(a);
    banyan_lgc_free(b);
}

static void refuses_states(const struct test *t, const struct model *m)
{
    struct banyan_lgc_config cfg = settings(t);
    struct banyan_lgc *a = make(t, m, &cfg), *other;
    uint64_t id = a->v.id;
    unsigned char *state;
    size_t bytes;

    state = save(t, a, &bytes);
    CHECK_RC(t, -BANYAN_EINVAL, banyan_lgc_load(a, state, bytes - 1));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_lgc_load(a, state, 10));
    state[bytes / 2] ^= 1;
    CHECK_RC(t, -BANYAN_EINVAL, banyan_lgc_load(a, state, bytes));
    CHECK_HAS(t, banyan_last_error(), "checksum");
    state[bytes / 2] ^= 1;
    cfg.learning_rate = .5;
    other = make(t, m, &cfg);
    CHECK_RC(t, -BANYAN_EINVAL, banyan_lgc_load(other, state, bytes));
    CHECK_HAS(t, banyan_last_error(), "settings");
    CHECK(t, a->v.id == id && other->v.step == 0, "changed");
    CHECK_OK(t, banyan_lgc_load(a, state, bytes));
    free(state);
    banyan_lgc_free(a);
    banyan_lgc_free(other);
}

static int lgc_states(struct test *t)
{
    struct model m;

    if (!HAVE_LGC)
        return without_lgc();
    model_make(&m, .9);
    continues(t, &m, 1);
    continues(t, &m, 5);
    continues(t, &m, 8);
    continues(t, &m, 11);
    refuses_states(t, &m);
    model_free(&m);
    return 0;
}

/* ---- mistakes ---- */
static void bad_gradients(const struct test *t, struct model *m)
{
    struct banyan_lgc_config cfg = settings(t);
    struct banyan_lgc *lgc;
    char who[32];
    uint64_t hash;

    cfg.dense_steps = 1;
    cfg.train_steps = 1;
    lgc = make(t, m, &cfg);
    snprintf(who, sizeof who, "rank %d", t->n - 1);
    for (uint64_t step = 0; step < 4; step++) {
        model_fill(t, m, step);
        if (t->rank == t->n - 1)
            m->grad[2][1234] = step % 2 ? NAN : INFINITY;
        hash = model_hash(m);
        CHECK_RC(t, -BANYAN_EINVAL, banyan_lgc_step(lgc));
        CHECK_HAS(t, banyan_last_error(), "wide.w");
        CHECK_HAS(t, banyan_last_error(), who);
        CHECK(t, model_hash(m) == hash && lgc->v.step == step, "something happened");
        steps(t, lgc, m, step, step + 1);
    }
    banyan_lgc_free(lgc);
}

/* One rank has something else: an error at all ranks that says what. */
static void unlike(const struct test *t, struct model *m)
{
    struct banyan_lgc_config cfg = settings(t);
    struct banyan_lgc *lgc;
    int last = t->n - 1;

    if (t->rank == last)
        m->tensor[1].name = "another";
    CHECK_RC(t, -BANYAN_EMISMATCH, banyan_lgc_create(&lgc, t->comm, m->tensor, TENSORS, &cfg));
    CHECK_HAS(t, banyan_last_error(), "another");
    CHECK(t, lgc == NULL, "an object after a failure");
    m->tensor[1].name = described[1].name;
    if (t->rank == last)
        cfg.gate_every++;
    CHECK_RC(t, -BANYAN_EMISMATCH, banyan_lgc_create(&lgc, t->comm, m->tensor, TENSORS, &cfg));
    CHECK_HAS(t, banyan_last_error(), t->rank == last ? "gate_every" : "rank ");
    cfg = settings(t);
    if (t->rank == last)
        cfg.module = "/nowhere/libbanyan-lgc.so";
    CHECK_RC(t, -BANYAN_ENOTSUP, banyan_lgc_create(&lgc, t->comm, m->tensor, TENSORS, &cfg));
    CHECK_HAS(t, banyan_last_error(), t->rank == last ? "libdnnl" : "rank ");
    case_check_works(t, t->comm);
}

/* Ranks that loaded states of different steps. */
static void apart(const struct test *t, struct model *m)
{
    struct banyan_lgc_config cfg = settings(t);
    struct banyan_lgc *lgc = make(t, m, &cfg);

    steps(t, lgc, m, 0, 1);
    if (t->rank == 0)
        lgc->v.step++;
    model_fill(t, m, 1);
    CHECK_RC(t, -BANYAN_EMISMATCH, banyan_lgc_step(lgc));
    CHECK_HAS(t, banyan_last_error(), "steps");
    banyan_lgc_free(lgc);
}

static int lgc_mistakes(struct test *t)
{
    struct model m;

    if (!HAVE_LGC)
        return without_lgc();
    model_make(&m, .8);
    bad_gradients(t, &m);
    unlike(t, &m);
    apart(t, &m);
    model_free(&m);
    return 0;
}

/* Training that diverges is noticed, and the gate stays shut. */
static int lgc_diverges(struct test *t)
{
    struct banyan_lgc_config cfg = settings(t);
    struct banyan_lgc *lgc;
    struct banyan_lgc_stats s;
    struct model m;

    if (!HAVE_LGC)
        return without_lgc();
    cfg.dense_steps = 0;
    cfg.train_steps = 20;
    cfg.gate = -2;
    cfg.learning_rate = 900;
    cfg.optimiser = BANYAN_LGC_SGD;
    model_make(&m, .8);
    lgc = make(t, &m, &cfg);
    steps(t, lgc, &m, 0, 25);
    s = stats(t, lgc);
    CHECK(t, s.phase == 3 && !s.open && s.coded == 0, "coded %d", (int)s.coded);
    for (size_t i = 0; i < LONGEST; i++)
        CHECK(t, isfinite(m.grad[2][i]), "element %zu", i);
    banyan_lgc_free(lgc);
    model_free(&m);
    return 0;
}

/* Steps until the harness has killed a rank. */
static int lgc_death(struct test *t)
{
    struct banyan_lgc_config cfg = settings(t);
    struct banyan_lgc *lgc;
    struct model m;
    int rc = 0;

    if (!HAVE_LGC)
        return without_lgc();
    cfg.dense_steps = 1;
    cfg.train_steps = 2;
    cfg.gate = -2;
    model_make(&m, .8);
    lgc = make(t, &m, &cfg);
    for (uint64_t step = 0; rc == 0; step++) {
        model_fill(t, &m, step);
        rc = banyan_lgc_step(lgc);
        atomic_fetch_add(&t->shared->marker[t->rank], 1);
    }
    CHECK(t, rc == -BANYAN_ERANKDEAD, "returned %d", rc);
    CHECK_HAS(t, banyan_last_error(), "rank 1");
    CHECK_RC(t, -BANYAN_ERANKDEAD, banyan_lgc_step(lgc));
    banyan_lgc_free(lgc);
    model_free(&m);
    return 0;
}

/* ---- a steady step ---- */
static int lgc_steady(struct test *t)
{
    struct banyan_lgc_config cfg = settings(t);
    struct banyan_lgc *lgc;
    unsigned long before;
    struct model m;

    if (!HAVE_LGC)
        return without_lgc();
    cfg.dense_steps = 1;
    cfg.train_steps = 2;
    cfg.gate_every = 4;
    cfg.gate = .01;
    model_make(&m, .9);
    lgc = make(t, &m, &cfg);
    steps(t, lgc, &m, 0, 40);
    before = case_allocations();
    steps(t, lgc, &m, 40, 80);
    CHECK(t, case_allocations() == before, "%lu allocations in 40 steps",
          case_allocations() - before);
    CHECK(t, lgc->v.coded > 40, "only %d steps were coded", (int)lgc->v.coded);
    banyan_lgc_free(lgc);
    CHECK(t, case_allocations() > before, "the counter does not count");
    model_free(&m);
    return 0;
}

const struct mp_case cases_lgc[] = {
    { "lgc_shut", lgc_shut, 0 },
    { "lgc_phases", lgc_phases, 0 },
    { "lgc_coded", lgc_coded, 0 },
    { "lgc_gate", lgc_gate, 0 },
    { "lgc_correlation", lgc_correlation, 0 },
    { "lgc_learns", lgc_learns, 0 },
    { "lgc_states", lgc_states, 0 },
    { "lgc_mistakes", lgc_mistakes, 0 },
    { "lgc_diverges", lgc_diverges, 0 },
    { "lgc_death", lgc_death, CASE_FAILS },
    { "lgc_steady", lgc_steady, CASE_NO_THREADS },
    { 0 },
};
