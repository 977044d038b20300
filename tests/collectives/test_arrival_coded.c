/* SPDX-License-Identifier: BSD-3-Clause */
/* Codecs in reductions in order of arrival, all ranks in one thread over the loop transport:
 * random calls whose ranks come at random moments. The contributors are those that the call
 * asks for; what they gave is in the result and in their residuals, each input once; who is
 * late keeps its residuals and gets the same bits; exact codecs give the sums of the model; and
 * all states have counted the same steps. BANYAN_TEST_SEED repeats a run. */
#include <criterion/criterion.h>
#include <math.h>

#include "tests/collectives/coded_rig.h"

#define COUNT_MAX 6000

/* A call, the same on all ranks. */
struct call {
    const struct bny_codec_ops *codec;
    char spec[48];
    enum banyan_dtype dtype;
    int reduce, root, in_place, at_least, has_state;
    banyan_op op;
    size_t count, chunk;
};

static const struct bny_codec_ops *draw_codec(uint64_t *s)
{
    size_t n = 0;

    while (bny_codecs[n])
        n++;
    for (;;) {
        size_t i = bny_rng_below(s, n);
        if (!coded_is_linear(i))
            return bny_codecs[i];
    }
}

static void draw(struct call *c, int n, uint64_t *s)
{
    static const size_t counts[] = { 0, 1, 3, 255, 257, 1000, COUNT_MAX };
    static const enum banyan_dtype types[] = { BANYAN_F32, BANYAN_F64, BANYAN_I32, BANYAN_U8 };
    static const banyan_op lossy[] = { BANYAN_SUM, BANYAN_AVG },
                           exact[] = { BANYAN_SUM, BANYAN_MAX };
    int is_exact;

    memset(c, 0, sizeof *c);
    c->codec = draw_codec(s);
    is_exact = c->codec->family == BNY_CODEC_EXACT;
    snprintf(c->spec, sizeof c->spec, "%s", c->codec->name);
    if (c->codec->family == BNY_CODEC_SPARSE && bny_rng_below(s, 2) &&
        !strcmp(c->codec->name, "topk"))
        snprintf(c->spec, sizeof c->spec, "topk:delta=0.1,reselect=1");
    c->dtype = is_exact ? types[bny_rng_below(s, 4)] : BANYAN_F32;
    if (!((c->codec->dtypes ? c->codec->dtypes : 1u << BANYAN_F32) >> c->dtype & 1))
        c->dtype = BANYAN_F32;
    c->op = is_exact ? exact[bny_rng_below(s, 2)] : lossy[bny_rng_below(s, 2)];
    c->reduce = (int)bny_rng_below(s, 3) == 0;
    c->root = (int)bny_rng_below(s, (uint64_t)n);
    c->in_place = (int)bny_rng_below(s, 2);
    c->at_least = (int)bny_rng_below(s, 2) ? 1 + (int)bny_rng_below(s, (uint64_t)n) : 0;
    c->has_state = (int)bny_rng_below(s, 3) > 0;
    c->count = counts[bny_rng_below(s, sizeof counts / sizeof counts[0])];
    c->chunk = bny_rng_below(s, 2) ? 1024 : 0;
}

struct job {
    struct rig g;
    struct call c;
    struct banyan_codec_state *state[MAX_N]; /* of c.count elements */
    float *before[MAX_N];                    /* residuals */
    float scale[MAX_N];                      /* that they are to be taken by */
    char *in[MAX_N], *out[MAX_N];            /* [count] of the type */
    uint8_t in_sum[MAX_N][MAX_N];
    char text[256];
};

/* Whole numbers, many of them zero: sums are exact in any order. */
static double put(enum banyan_dtype dtype, void *at, size_t i, uint64_t *s, int is_whole)
{
    double x = is_whole ? (double)(bny_rng_below(s, 4) ? 0 : bny_rng_below(s, 30))
                        : (bny_rng_unit(s) - 0.5) * (double)(1 + i % 7);

    switch (dtype) {
    case BANYAN_F32: ((float *)at)[i] = (float)x; return (double)((float *)at)[i];
    case BANYAN_F64: ((double *)at)[i] = x; return x;
    case BANYAN_I32: ((int32_t *)at)[i] = (int32_t)x; return x;
    default: ((uint8_t *)at)[i] = (uint8_t)x; return x;
    }
}

static double get(enum banyan_dtype dtype, const void *at, size_t i)
{
    switch (dtype) {
    case BANYAN_F32: return (double)((const float *)at)[i];
    case BANYAN_F64: return ((const double *)at)[i];
    case BANYAN_I32: return ((const int32_t *)at)[i];
    default: return ((const uint8_t *)at)[i];
    }
}

static int gets_result(const struct call *c, int r)
{
    return !c->reduce || r == c->root;
}

/* Ranks come at random turns, some when others are long through. */
static void run(struct job *j)
{
    struct rig *g = &j->g;
    const struct call *c = &j->c;
    long comes[MAX_N];
    int done[MAX_N] = { 0 }, begun[MAX_N] = { 0 }, left = g->n;
    struct banyan_reduce_opts inputs = BANYAN_REDUCE_OPTS_INIT;
    struct banyan_opts o = BANYAN_OPTS_INIT;

    o.schedule = "arrival";
    o.codec = c->spec;
    o.reduce = &inputs;
    inputs.at_least = c->at_least;
    o.chunk_bytes = c->chunk;
    for (int r = 0; r < g->n; r++) {
        const void *in = c->in_place && gets_result(c, r) ? j->out[r] : j->in[r];
        int rc;

        o.codec_state = c->has_state ? j->state[r] : NULL;
        inputs.contributors = j->in_sum[r];
        comes[r] = (long)bny_rng_below(&g->rng, bny_rng_below(&g->rng, 3) ? 20 : 20000);
        rc = c->reduce ? banyan_reduce_init(in, j->out[r], c->count, c->dtype, c->op, c->root,
                                            g->comm[r], &o, &g->req[r])
                       : banyan_allreduce_init(in, j->out[r], c->count, c->dtype, c->op,
                                               g->comm[r], &o, &g->req[r]);
        cr_assert_eq(rc, 0, "%s: %s", j->text, banyan_last_error());
    }
    for (long turn = 0; left > 0; turn++) {
        int r = (int)bny_rng_below(&g->rng, (uint64_t)g->n), d = 0;

        cr_assert_lt(turn, 3000000, "%s: stuck", j->text);
        if (!begun[r] && turn >= comes[r]) {
            begun[r] = 1;
            cr_assert_eq(banyan_start(g->req[r]), 0, "%s: %s", j->text, banyan_last_error());
        } else if (begun[r] && done[r]) {
            banyan_progress(g->comm[r]);
        } else if (begun[r]) {
            cr_assert_eq(banyan_test(g->req[r], &d), 0, "%s: %s", j->text, banyan_last_error());
            done[r] = d;
            left -= d;
        }
    }
    for (int r = 0; r < g->n; r++)
        cr_assert_eq(banyan_request_free(g->req[r]), 0);
}

/* Who is in the result: as the call says; the same set at all who get it. Returns how many. */
static int check_contributors(const struct job *j, int at)
{
    int n = j->g.n, want = j->c.at_least ? j->c.at_least : n, m = 0;

    for (int r = 0; r < n; r++)
        m += j->in_sum[at][r];
    cr_assert(m == want || m == n, "%s: %d contributed", j->text, m);
    for (int r = 0; r < n; r++) {
        cr_assert_eq(j->in_sum[r][r], j->in_sum[at][r], "%s: rank %d disagrees", j->text, r);
        if (!j->c.reduce)
            cr_assert_eq(memcmp(j->in_sum[r], j->in_sum[at], (size_t)n), 0, "%s: sets differ",
                         j->text);
    }
    return m;
}

static int keeps_law(const struct call *c)
{
    return c->has_state && c->codec->family != BNY_CODEC_EXACT &&
           (c->codec->flags & BNY_CODEC_FEEDBACK) && c->codec->elem_floats == 0;
}

static void check_values(const struct job *j, int at, int m)
{
    const struct call *c = &j->c;

    for (size_t i = 0; i < c->count; i++) {
        double given = 0, most = 0, got = get(c->dtype, j->out[at], i), left = 0;

        for (int r = 0; r < j->g.n; r++) {
            const float *ef = banyan_codec_state_residual(j->state[r]);
            double x = get(c->dtype, j->in[r], i);

            if (!j->in_sum[at][r]) {
                cr_assert_eq(memcmp(&ef[i], &j->before[r][i], 4), 0,
                             "%s: rank %d was late, its residual %zu changed", j->text, r, i);
                continue;
            }
            given += x + (keeps_law(c) ? (double)(j->scale[r] * j->before[r][i]) : 0);
            left += keeps_law(c) ? (double)ef[i] : 0;
            most = fmax(most, x);
        }
        got *= c->op == BANYAN_AVG ? m : 1;
        if (c->codec->family == BNY_CODEC_EXACT)
            cr_assert_eq(got, c->op == BANYAN_MAX ? most : given, "%s: element %zu is %g",
                         j->text, i, got);
        else if (keeps_law(c))
            cr_assert_lt(fabs(given - got - left), 2e-5 * (10 + fabs(given)),
                         "%s: element %zu: %g, not %g", j->text, i, got, given - left);
    }
}

static void one(struct job *j)
{
    struct call *c = &j->c;
    size_t bytes;
    int at, m;

    draw(c, j->g.n, &j->g.rng);
    bytes = c->count * banyan_dtype_bytes(c->dtype);
    snprintf(
        j->text, sizeof j->text,
        "%s of %zu %s, op %d, %s, at least %d of %d, root %d, in place %d, chunk %zu, state %d",
        c->reduce ? "reduce" : "allreduce", c->count, banyan_dtype_name(c->dtype), (int)c->op,
        c->spec, c->at_least, j->g.n, c->root, c->in_place, c->chunk, c->has_state);
    for (int r = 0; r < j->g.n; r++) {
        j->in[r] = calloc(bytes + 1, 1);
        j->out[r] = calloc(bytes + 1, 1);
        j->before[r] = calloc(c->count + 1, 4);
        cr_assert_eq(banyan_codec_state_create(&j->state[r], c->count, 99), 0);
    }
    for (int step = 0; step < 3; step++) {
        for (int r = 0; r < j->g.n; r++) {
            for (size_t i = 0; i < c->count; i++)
                put(c->dtype, j->in[r], i, &j->g.rng, c->codec->family == BNY_CODEC_EXACT);
            if (step == 1)
                j->state[r]->ef_scale = 0.5f;
            j->scale[r] = j->state[r]->ef_scale;
            memcpy(j->out[r], j->in[r], bytes);
            memcpy(j->before[r], banyan_codec_state_residual(j->state[r]), 4 * c->count);
        }
        run(j);
        at = c->reduce ? c->root : 0;
        m = check_contributors(j, at);
        check_values(j, at, m);
        for (int r = 0; r < j->g.n; r++) {
            cr_assert_eq(j->state[r]->step, j->state[0]->step, "%s: steps differ", j->text);
            cr_assert(!j->state[r]->busy);
            if (!c->reduce)
                cr_assert_eq(memcmp(j->out[r], j->out[0], bytes), 0, "%s: rank %d differs",
                             j->text, r);
        }
    }
    for (int r = 0; r < j->g.n; r++) {
        banyan_codec_state_free(j->state[r]);
        free(j->in[r]);
        free(j->out[r]);
        free(j->before[r]);
    }
}

static void many(int calls, const struct bny_loop_faults *faults)
{
    for (int n = 2; n <= MAX_N; n++) {
        struct job j;

        memset(&j, 0, sizeof j);
        rig_open(&j.g, n, 1, faults);
        fprintf(stderr, "seed %llu\n", (unsigned long long)seed_of_run());
        for (int i = 0; i < calls; i++)
            one(&j);
        rig_close(&j.g);
    }
}

Test(arrival_coded, each_input_is_once_in_result_and_residuals, .timeout = 120)
{
    many(120, NULL);
}

Test(arrival_coded, the_same_under_faults, .timeout = 120)
{
    struct bny_loop_faults f = faults_of_run();

    many(20, &f);
}

/* What cannot serve says so, whatever the codec is predicted to gain. */
Test(arrival_coded, linear_codecs_are_refused)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    struct rig g;

    rig_open(&g, 3, 100, NULL);
    o.schedule = "arrival";
    o.codec = "powersgd";
    cr_assert_eq(banyan_allreduce_init(g.in[0], g.out[0], 100, BANYAN_F32, BANYAN_SUM,
                                       g.comm[0], &o, &g.req[0]),
                 -BANYAN_ENOTSUP);
    cr_assert(strstr(banyan_last_error(), "linear codecs"), "%s", banyan_last_error());
    rig_close(&g);
}
