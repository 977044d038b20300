/* SPDX-License-Identifier: BSD-3-Clause */
/* What results lose is what the plan claims: random hosts and graphs, ranks, schedules, pairs
 * of codecs and budgets, on data of Gauss and Laplace and on blocks that codecs like least. All
 * ranks hold the same bits; max is never exceeded, in f64; nmse is within 1.05 of the claim for
 * Gauss and Laplace; and the claim is proven of the programs that ran. BANYAN_TEST_SEED repeats
 * a run, BANYAN_TEST_SCALE makes so many times as many. */
#include <math.h>

#include "collectives/plan/budget_choice.h"
#include "collectives/plan/topology.h"
#include "compress/speed.h"
#include "tests/collectives/coded_rig.h"

#define COUNT  12000
#define MANY   120000 /* of Gauss and Laplace: the means of 469 blocks */
#define ROUNDS 200
#define TILE   256 /* a codec's block lies in three of them */

enum data { GAUSS, LAPLACE, SPIKES, MIDPOINTS, CANCELLING, RANGE, DATA };

static const char *const data_names[DATA] = { "Gauss",     "Laplace",    "spikes",
                                              "midpoints", "cancelling", "wide range" };

static double gauss(uint64_t *rng)
{
    return sqrt(-2 * log(1 - bny_rng_unit(rng))) * cos(6.283185307179586 * bny_rng_unit(rng));
}

static double element(uint64_t *rng, enum data data, int rank, size_t i)
{
    double u = bny_rng_unit(rng);

    switch (data) {
    case GAUSS: return gauss(rng);
    case LAPLACE: return (bny_rng_below(rng, 2) ? 1 : -1) * -log(1 - u);
    case SPIKES: return i % 100 == 7 ? 1e6 * (rank + 1) : u - .5;
    case MIDPOINTS: return i % 64 ? ((double)bny_rng_below(rng, 254) - 126.5) / 127 : 1;
    case CANCELLING: return (rank % 2 ? -1 : 1) * (1e3 * cos((double)i) + 1e-3 * u);
    default: /* to the end of f32: 2^127 bounds the sum of 6 ranks */
        return ldexp(u - .5, (int)(i / 300 % 40) * 213 / 39 - 88);
    }
}

static void fill_with(struct rig *g, enum data data)
{
    for (int r = 0; r < g->n; r++)
        for (size_t i = 0; i < g->count; i++)
            g->in[r][i] = (float)element(&g->rng, data, r, i);
}

/* ---- what is drawn ---- */

static const char *const codecs[] = { "raw", "lossless", "bf16", "e4m3", "int8", "int4" };

/* A budget, or a pair. */
static void draw_codec(struct rig *g, char *text, size_t cap)
{
    double nmse = pow(10, -1 - 5 * bny_rng_unit(&g->rng)),
           max = pow(10, -3 * bny_rng_unit(&g->rng));
    size_t n = sizeof codecs / sizeof *codecs, i = bny_rng_below(&g->rng, n),
           j = bny_rng_below(&g->rng, n);
    const char *a = codecs[i], *b = codecs[j];

    switch (bny_rng_below(&g->rng, 4)) {
    case 0: snprintf(text, cap, "auto:max=%.3g", max); break;
    case 1:
        snprintf(text, cap, "auto:nmse=%.3g,from=%s%s%s", nmse, a, i == j ? "" : "+",
                 i == j ? "" : b);
        break;
    case 2:
        snprintf(text, cap, "auto:nmse=%.3g,max=%.3g,from=raw+bf16+e4m3+int8+int4", nmse, max);
        break;
    default: snprintf(text, cap, "levels:up=%s,down=%s", a, b);
    }
}

/* Ranks on hosts, perhaps on a graph; the schedule for a pair. */
static const char *draw_network(struct rig *g, struct bny_topology **t, int is_budget)
{
    static const char *const plain[] = { "star",     "ring",      "double_binary_tree",
                                         "binomial", "host_star", "host_ring",
                                         "host_tree" },
                             *const on_graph[] = { "packed", "multitree" };
    int host_of[MAX_N] = { 0 }, nhosts = 1, graph = bny_rng_below(&g->rng, 3) == 0;
    char text[32] = "";

    if (graph)
        snprintf(text, sizeof text, "%s:%d", bny_rng_below(&g->rng, 2) ? "ring" : "star", g->n);
    for (int r = 1; r < g->n; r++) {
        int h = (int)bny_rng_below(&g->rng, (uint64_t)nhosts + 1);

        host_of[r] = h;
        nhosts += h == nhosts;
    }
    cr_assert_eq(bny_topology_load(t, text, "auto"), 0, "%s", banyan_last_error());
    cr_assert_eq(bny_topology_settle(*t, host_of, g->n), 0);
    for (int r = 0; r < g->n; r++) {
        g->comm[r]->scope.topology = *t;
        g->comm[r]->scope.near = 0;
        g->comm[r]->scope.link_Bps = pow(10, 6.5 + 4 * (double)(g->rng % 64) / 64);
    }
    return is_budget ? NULL
           : graph   ? on_graph[bny_rng_below(&g->rng, 2)]
                     : plain[bny_rng_below(&g->rng, 7)];
}

/* ---- the claim ---- */

/* Of the plans of all ranks: what the steps lose, proven; of a star what the choice went by. */
static struct bny_loss claim_of(struct rig *g, const char *what)
{
    const struct bny_plan *plan = &g->req[0]->op.plan;
    struct bny_loss code[BNY_CODES] = { { 0, 0 } }, claim, found;
    struct bny_program *programs[MAX_N];
    struct bny_call call = g->req[0]->op.call;
    char why[256];

    if (!plan->codec)
        return (struct bny_loss){ 0, 0 };
    cr_assert_eq(plan->way, BNY_WAY_PROGRAM, "%s", what);
    call.codec = plan->codec;
    bny_codec_loss(plan->codec->up, &code[BNY_CODE_UP].nmse, &code[BNY_CODE_UP].max);
    bny_codec_loss(plan->codec->down, &code[BNY_CODE_DOWN].nmse, &code[BNY_CODE_DOWN].max);
    claim = bny_budget_loss(&call, g->n);
    for (int r = 0; r < g->n; r++) {
        programs[r] = (struct bny_program *)g->req[r]->op.plan.program;
        cr_assert_eq(g->req[r]->op.plan.codec, plan->codec, "%s: rank %d", what, r);
    }
    cr_assert_eq(bny_program_verify_codes(programs, g->n, code,
                                          bny_budget_serves(plan->schedule) ? &claim : NULL,
                                          &found, why, sizeof why),
                 0, "%s: %s", what, why);
    return found;
}

/* ---- the result ---- */

/* The largest values of all ranks around each tile, added. */
static double *largest_of(const struct rig *g)
{
    size_t tiles = g->count / TILE + 3;
    double *sum = calloc(tiles, sizeof *sum), *one = calloc(tiles, sizeof *one);

    for (int r = 0; r < g->n; r++) {
        memset(one, 0, tiles * sizeof *one);
        for (size_t i = 0; i < g->count; i++)
            for (size_t k = i / TILE; k < i / TILE + 3; k++)
                one[k] = fmax(one[k], fabs((double)g->in[r][i]));
        for (size_t k = 0; k < tiles; k++)
            sum[k] += one[k];
    }
    free(one);
    return sum;
}

static void check_result(const struct rig *g, struct bny_loss claim, enum data data,
                         int averages, const char *what)
{
    double *largest = largest_of(g), error = 0, energy = 0, rounding = (g->n + 4) * 0x1p-23,
           sampling = 1 + 1 / sqrt((double)g->count / TILE);

    for (size_t i = 0; i < g->count; i++) {
        double exact = 0, off, may = largest[i / TILE + 1] * (claim.max + rounding);

        for (int r = 0; r < g->n; r++)
            exact += (double)g->in[r][i];
        off = (double)g->out[0][i] * (averages ? g->n : 1) - exact;
        if (!(fabs(off) <= may)) /* also NaN */
            cr_assert_fail("%s: element %zu is off by %g, may be by %g", what, i, off, may);
        error += off * off;
        energy += exact * exact;
    }
    if (data <= LAPLACE)
        cr_assert_leq(error / energy, 1.05 * sampling * claim.nmse + rounding * rounding,
                      "%s: nmse %g, claimed %g", what, error / energy, claim.nmse);
    free(largest);
}

/* 1: it ran with a codec. */
static int one(uint64_t seed, int n)
{
    enum data data = (enum data)(seed % DATA);
    banyan_op op = seed % 5 ? BANYAN_SUM : BANYAN_AVG;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    struct bny_topology *t;
    struct bny_loss claim;
    char codec[96], what[256];
    struct rig g;
    int coded;

    rig_open(&g, n, data <= LAPLACE ? MANY : COUNT, NULL);
    g.rng = seed * 0x9e3779b97f4a7c15u;
    draw_codec(&g, codec, sizeof codec);
    o.codec = codec;
    o.schedule = draw_network(&g, &t, codec[0] == 'a');
    o.chunk_bytes = seed % 3 ? 0 : 8192;
    fill_with(&g, data);
    snprintf(what, sizeof what, "seed %llu: %d ranks, %s, codec %s, schedule %s",
             (unsigned long long)seed, n, data_names[data], codec,
             o.schedule ? o.schedule : "auto");
    for (int r = 0; r < n; r++) {
        int rc = banyan_allreduce_init(g.in[r], g.out[r], g.count, BANYAN_F32, op, g.comm[r],
                                       &o, &g.req[r]);

        if (rc == -BANYAN_ENOTSUP && r == 0) { /* a schedule for several hosts */
            n = 0;
            break;
        }
        cr_assert_eq(rc, 0, "%s: %s", what, banyan_last_error());
    }
    coded = n && g.req[0]->op.plan.codec;
    if (n) {
        claim = claim_of(&g, what);
        cr_assert_eq(drive(&g, what), 0, "%s: %s", what, banyan_last_error());
        for (int r = 1; r < n; r++)
            cr_assert_eq(memcmp(g.out[0], g.out[r], 4 * g.count), 0, "%s: rank %d differs",
                         what, r);
        check_result(&g, claim, data, op == BANYAN_AVG, what);
    }
    rig_part(&g);
    rig_close(&g);
    bny_topology_free(t);
    return coded;
}

Test(loss, is_what_the_plan_claims, .timeout = 300)
{
    const char *scale = getenv("BANYAN_TEST_SCALE");
    int rounds = (int)(ROUNDS * (scale ? atof(scale) : 1)), coded = 0;
    uint64_t seed = seed_of_run();

    fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
    for (int k = 0; k < rounds; k++)
        coded += one(seed + (uint64_t)k, 2 + k % (MAX_N - 1));
    cr_expect_gt(coded, rounds / 2, "%d of %d", coded, rounds);
}
