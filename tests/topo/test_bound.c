/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of bounds: exact as rationals on every topology of the zoo; each proven by a cut
 * that a brute-force search over all sets confirms on small random graphs; joint allreduce
 * bounds reach those of the literature; wrong certificates and wrong claims are refused;
 * hostile graphs get an error. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "tests/topo/zoo.h"
#include "topo/bound.h"
#include "topo/cuts.h"
#include "topo/joint_lp.h"

static struct bny_graph *make(const char *text)
{
    struct bny_graph *g = NULL;

    cr_assert_eq(bny_graph_make(&g, text), 0, "%s: %s", text, banyan_last_error());
    return g;
}

static struct bny_ratio ratio(const char *text)
{
    struct bny_ratio r;

    cr_assert_eq(bny_ratio_parse(&r, text), 0);
    return r;
}

static void expect_ratio(struct bny_ratio r, const char *want, const char *what)
{
    char text[48];

    cr_assert_eq(bny_ratio_cmp(r, ratio(want)), 0, "%s: %s instead of %s", what,
                 bny_ratio_text(r, text, sizeof text), want);
}

Test(bound, numbers_are_read_exactly_or_refused)
{
    static const char *const equal[][2] = {
        { "12.5", "25/2" },
        { "-0.50", "-1/2" },
        { ".25", "1/4" },
        { "1.", "1/1" },
        { "123456789.12345678", "12345678912345678/100000000" },
        { "9223372036854775807", "9223372036854775807/1" },
        /* Decimals beyond the eighth do not count, however many there are. */
        { "12.444444444444444444444444444444444444444445", "1244444444/100000000" },
    };
    static const char *const none[] = { "",
                                        "-",
                                        ".",
                                        "1/",
                                        "/2",
                                        "1/0",
                                        "1/0000",
                                        "1 ",
                                        "+1",
                                        "1e3",
                                        "1.5/2",
                                        "0x1",
                                        "1234567890.5",
                                        "9223372036854775808",
                                        "1/9223372036854775808" };
    struct bny_ratio r;

    for (size_t i = 0; i < sizeof equal / sizeof *equal; i++)
        expect_ratio(ratio(equal[i][0]), equal[i][1], equal[i][0]);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        cr_assert_eq(bny_ratio_parse(&r, none[i]), -BANYAN_EINVAL, "\"%s\"", none[i]);
}

Test(bound, zoo_has_the_known_allgather_bounds)
{
    for (int i = 0; i < ZOO_ENTRIES; i++) {
        struct bny_graph *g = make(zoo[i].topo);
        struct bny_bound b;

        cr_assert_eq(g->nranks, zoo[i].ranks, "%s", zoo[i].topo);
        cr_assert_eq(bny_bound_allgather(&b, g), 0, "%s: %s", zoo[i].topo, banyan_last_error());
        expect_ratio(b.shard, zoo[i].shard, zoo[i].topo);
        expect_ratio(bny_ratio_of(bny_cut_ranks(g, b.cut, 1), bny_cut_out(g, b.cut, 1, 0)),
                     zoo[i].shard, "its cut");
        bny_bound_free(&b);
        cr_assert_eq(bny_bound_reduce_scatter(&b, g), 0);
        expect_ratio(b.shard, zoo[i].shard, zoo[i].topo);
        bny_bound_free(&b);
        bny_graph_free(g);
    }
}

/* A connected graph of ranks and switches with random directed links. */
static struct bny_graph *random_graph(unsigned *seed, int ranks, int switches)
{
    struct bny_graph *g = bny_graph_alloc("random");
    int n = ranks + switches;

    for (int v = 0; v < n; v++)
        bny_graph_node(g, v < ranks ? BNY_NODE_COMPUTE : BNY_NODE_SWITCH, -1, NULL);
    for (int v = 0; v < n; v++)
        bny_graph_link(g, v, (v + 1) % n, 1 + rand_r(seed) % 9, 1);
    for (int i = 0; i < 2 * n; i++) {
        int a = rand_r(seed) % n, b = rand_r(seed) % n;

        if (a != b)
            bny_graph_link(g, a, b, 1 + rand_r(seed) % 9, 1);
    }
    cr_assert_eq(bny_graph_freeze(g), 0, "%s", banyan_last_error());
    return g;
}

struct brute {
    struct bny_ratio out, in, split, broadcast; /* broadcast: root 0 */
};

static struct bny_ratio larger(struct bny_ratio a, struct bny_ratio b)
{
    return bny_ratio_cmp(a, b) > 0 ? a : b;
}

static struct brute search(const struct bny_graph *g)
{
    struct brute best = { { 0, 1 }, { 0, 1 }, { 0, 1 }, { 0, 1 } };
    uint8_t cut[16];

    for (unsigned set = 1; set < 1u << g->nnodes; set++) {
        int ranks;
        int64_t out, in;

        for (int v = 0; v < g->nnodes; v++)
            cut[v] = set >> v & 1;
        ranks = bny_cut_ranks(g, cut, 1);
        if (ranks == 0 || ranks == g->nranks)
            continue;
        out = bny_cut_out(g, cut, 1, 0);
        in = bny_cut_out(g, cut, 1, 1);
        best.out = larger(best.out, bny_ratio_of(ranks, out));
        best.in = larger(best.in, bny_ratio_of(ranks, in));
        best.split = larger(best.split, bny_ratio_of(1, out));
        if (cut[g->rank_node[0]])
            best.broadcast = larger(best.broadcast, bny_ratio_of(1, out));
    }
    return best;
}

Test(bound, equals_the_search_over_all_cuts_of_random_graphs)
{
    unsigned seed = 20260611;

    for (int i = 0; i < 150; i++) {
        unsigned was = seed;
        struct bny_graph *g = random_graph(&seed, 2 + i % 5, i % 4);
        struct brute want = search(g);
        struct bny_bound b;

        cr_assert_eq(bny_bound_allgather(&b, g), 0);
        cr_assert_eq(bny_ratio_cmp(b.shard, want.out), 0, "allgather, seed %u", was);
        bny_bound_free(&b);
        cr_assert_eq(bny_bound_reduce_scatter(&b, g), 0);
        cr_assert_eq(bny_ratio_cmp(b.shard, want.in), 0, "reduce-scatter, seed %u", was);
        bny_bound_free(&b);
        cr_assert_eq(bny_bound_rs_ag(&b, g), 0);
        cr_assert_eq(bny_ratio_cmp(b.shard, bny_ratio_add(want.in, want.out)), 0,
                     "both, seed %u", was);
        bny_bound_free(&b);
        cr_assert_eq(bny_bound_rooted(&b, g, 0, 0), 0);
        cr_assert_eq(bny_ratio_cmp(b.value, want.broadcast), 0, "broadcast, seed %u", was);
        bny_bound_free(&b);
        cr_assert_eq(bny_bound_allreduce(&b, g), 0, "seed %u: %s", was, banyan_last_error());
        cr_assert(bny_ratio_cmp(b.value, want.split) >= 0,
                  "allreduce below a single cut, seed %u", was);
        bny_bound_free(&b);
        bny_graph_free(g);
    }
}

/* The program's optimum is attainable, its dual proves it: both meet, and reduce-scatter +
 * allgather never does better. */
Test(bound, joint_program_and_its_proof_meet)
{
    unsigned seed = 77;

    for (int i = 0; i < 40; i++) {
        unsigned was = seed;
        struct bny_graph *g = random_graph(&seed, 2 + i % 7, i % 4);
        struct bny_joint j;
        struct bny_bound apart;
        double proven;

        cr_assert_eq(bny_joint_solve(&j, g), 0, "seed %u: %s", was, banyan_last_error());
        cr_assert_eq(bny_bound_rs_ag(&apart, g), 0);
        proven = bny_ratio_value(bny_dual_value(j.dual, g));
        cr_assert_float_eq(proven, j.time, 1e-5 * j.time, "seed %u: proves %g of %g", was,
                           proven, j.time);
        cr_assert_leq(proven, bny_ratio_value(apart.value) * 1.000001, "seed %u", was);
        bny_bound_free(&apart);
        bny_joint_free(&j);
        bny_graph_free(g);
    }
}

static void expect_allreduce(const char *topo, const char *want)
{
    struct bny_graph *g = make(topo);
    struct bny_bound b;

    cr_assert_eq(bny_bound_allreduce(&b, g), 0, "%s: %s", topo, banyan_last_error());
    expect_ratio(b.value, want, topo);
    bny_bound_free(&b);
    bny_graph_free(g);
}

/* 8 hosts, half of them four times as fast: 0.04 S instead of 0.07 S. One host of p at half
 * bandwidth (OptCC, arXiv 2606.01680): 2 S / B against 2 (p-1)/p S / B, a factor of p/(p-1). */
Test(bound, allreduce_reaches_the_known_joint_bounds)
{
    expect_allreduce("star:4x100+4x25", "1/25");
    expect_allreduce("star:1x1+7x2", "1");
    expect_allreduce("star:1x1+15x2", "1");
    expect_allreduce("star:1x1+63x2", "1");
    expect_allreduce("star:8x2", "7/8");
    expect_allreduce("torus:8x8", "63/128");
    expect_allreduce("mesh:8x8", "9/16");
    expect_allreduce("dgx-a100:2", "3/520");
    expect_allreduce("dgx-a100:4", "3/400");
    expect_allreduce("mi250:2", "15/2656");
    expect_allreduce("mi250:2,dies=8", "1/128");
}

Test(bound, a_single_rank_needs_nothing)
{
    struct bny_graph *g = bny_graph_alloc("one");
    struct bny_bound b;

    bny_graph_node(g, BNY_NODE_COMPUTE, 0, NULL);
    cr_assert_eq(bny_graph_freeze(g), 0, "%s", banyan_last_error());
    cr_assert_eq(bny_bound_allgather(&b, g), 0);
    cr_assert_eq(b.value.num, 0);
    bny_bound_free(&b);
    cr_assert_eq(bny_bound_allreduce(&b, g), 0);
    cr_assert_eq(b.value.num, 0);
    bny_bound_free(&b);
    bny_graph_free(g);
}

Test(bound, capacities_beyond_64_bits_are_refused_in_one_sentence)
{
    struct bny_graph *g = bny_graph_alloc("huge");
    struct bny_bound b;

    for (int v = 0; v < 4; v++)
        bny_graph_node(g, BNY_NODE_COMPUTE, -1, NULL);
    for (int v = 0; v < 4; v++)
        bny_graph_both(g, v, (v + 1) % 4, INT64_MAX / 8 - v * v * 3 - 1, 1);
    cr_assert_eq(bny_graph_freeze(g), 0, "%s", banyan_last_error());
    cr_assert_eq(bny_bound_allgather(&b, g), -BANYAN_ENOTSUP);
    cr_assert(strstr(banyan_last_error(), "huge"), "%s", banyan_last_error());
    cr_assert_eq(bny_bound_rooted(&b, g, 0, 0), -BANYAN_ENOTSUP);
    cr_assert_eq(bny_bound_rooted(&b, g, 4, 0), -BANYAN_EINVAL);
    bny_graph_free(g);
}

/* A ring both ways as a forest by hand: half of each shard to the left, half to the right; even
 * n. */
static struct bny_forest *ring_forest(const struct bny_graph *g)
{
    int n = g->nranks;
    struct bny_forest *f = bny_forest_alloc("by hand", n, 2 * n);

    for (int t = 0; t < 2 * n; t++) {
        struct bny_tree *tree = &f->trees[t];

        tree->root = t / 2;
        tree->up = calloc((size_t)n, sizeof *tree->up);
        for (int i = 1; i < n; i++) {
            int v = t % 2 ? (t / 2 + i) % n : (t / 2 - i + n) % n,
                p = t % 2 ? (v - 1 + n) % n : (v + 1) % n;

            tree->parent[v] = p;
            tree->step[v] = (uint32_t)(n - 1 - i);
            tree->up[v].links = malloc(sizeof(int));
            tree->up[v].nlinks = 1;
            for (int k = g->out_first[v]; k < g->out_first[v + 1]; k++)
                if (g->links[g->out[k]].to == p)
                    tree->up[v].links[0] = g->out[k];
        }
    }
    f->nsteps = (uint32_t)n - 1;
    return f;
}

static void expect_refused(struct bny_forest *f, const struct bny_graph *g,
                           enum bny_forest_use use, const char *what)
{
    char why[256] = "";

    cr_assert_eq(bny_forest_recheck(f, g, use, -1, why, sizeof why), -BANYAN_EINVAL,
                 "%s accepted", what);
    cr_assert_neq(why[0], 0);
}

#define REFUSED(lvalue, wrong, use, what)                                                      \
    do {                                                                                       \
        __typeof__(lvalue) good = lvalue;                                                      \
        lvalue = wrong;                                                                        \
        expect_refused(f, g, use, what);                                                       \
        lvalue = good;                                                                         \
    } while (0)

/* A route in circles with weights of a large common denominator: loads that fit in no number.
 */
Test(bound, a_route_in_circles_overflows_nothing)
{
    enum { P = 4194301, Q = 4194299, ROUNDS = 1 << 16 };
    static const uint32_t weights[][2] = {
        { 1, P }, { P - 4, 4 * P }, { 1, Q }, { Q - 4, 4 * Q }
    };
    struct bny_graph *g = make("ring:8");
    struct bny_forest *f = ring_forest(g);
    struct bny_route *r = &f->trees[1].up[4];
    int there = r->links[0];
    char why[256] = "";

    for (int t = 0; t < f->ntrees; t++) {
        f->trees[t].weight_num = t < 4 ? weights[t][0] : 1;
        f->trees[t].weight_den = t < 4 ? weights[t][1] : 24;
    }
    free(r->links);
    r->nlinks = 2 * ROUNDS + 1;
    r->links = malloc((size_t)r->nlinks * sizeof *r->links);
    for (int i = 0; i < r->nlinks; i++)
        r->links[i] = i % 2 ? g->reverse[there] : there;
    cr_assert_eq(bny_forest_recheck(f, g, BNY_FOREST_ALLREDUCE, -1, why, sizeof why),
                 -BANYAN_EINVAL);
    cr_assert_not_null(strstr(why, "too often"), "%s", why);
    bny_forest_free(f);
    bny_graph_free(g);
}

Test(bound, certificates_hold_and_mutants_are_refused)
{
    struct bny_graph *g = make("ring:8"), *other = make("ring:6");
    struct bny_forest *f = ring_forest(g);
    const enum bny_forest_use scattered = BNY_FOREST_SCATTERED,
                              allreduce = BNY_FOREST_ALLREDUCE;

    cr_assert_eq(bny_forest_certify(f, g, scattered, -1, 0), 0, "%s", banyan_last_error());
    expect_ratio(f->claim.time, "7/16", "time");
    expect_ratio(f->claim.bound, "7/16", "bound");
    cr_assert_eq(bny_forest_recheck(f, g, scattered, -1, NULL, 0), 0, "%s",
                 banyan_last_error());
    REFUSED(f->claim.time, ratio("6/16"), scattered, "a better time");
    REFUSED(f->claim.time, ratio("8/16"), scattered, "a worse time");
    REFUSED(f->claim.bound, ratio("8/16"), scattered, "a larger bound");
    REFUSED(f->claim.time.den, 0, scattered, "an infinite time");
    REFUSED(f->claim.cut_nodes, 7, scattered, "a cut of another graph");
    REFUSED(f->claim.cut_kind, BNY_CUT_PORTS, scattered, "a cut of another use");
    REFUSED(f->claim.cut_kind, 99, scattered, "a cut of no kind");
    REFUSED(f->claim.cut_kind, BNY_CUT_LP, allreduce, "a program without its dual");
    REFUSED(f->trees[3].up[4].links[0], f->trees[3].up[4].links[0] ^ 1, scattered,
            "a path the other way");
    REFUSED(f->trees[3].up[4].links[0], 16, scattered, "a link out of range");
    REFUSED(f->trees[3].up[4].nlinks, 0, scattered, "a path of no links");
    REFUSED(f->trees[3].up, NULL, scattered, "a tree without paths");
    REFUSED(f->trees[3].weight_num, 2, scattered, "other weights");
    for (int v = 0; v < g->nnodes; v++)
        REFUSED(f->claim.cut[v], !f->claim.cut[v], scattered, "a cut with one node changed");
    expect_refused(f, other, scattered, "a forest for another graph");
    cr_assert_eq(bny_forest_certify(f, g, allreduce, -1, 0), 0);
    cr_assert_eq(f->claim.cut_kind, BNY_CUT_OUT_IN);
    expect_ratio(f->claim.time, "7/8", "time of both phases");
    cr_assert_eq(bny_forest_recheck(f, g, allreduce, -1, NULL, 0), 0, "%s",
                 banyan_last_error());
    cr_assert_eq(bny_forest_certify(f, g, allreduce, -1, 1), 0);
    expect_ratio(f->claim.bound, "7/8", "joint bound");
    cr_assert_eq(bny_forest_recheck(f, g, allreduce, -1, NULL, 0), 0, "%s",
                 banyan_last_error());
    bny_forest_free(f);
    bny_graph_free(g);
    bny_graph_free(other);
}

/* Any numbers prove something true or nothing; a dual whose set holds all ranks would prove
 * anything. */
Test(bound, duals_of_wrong_form_prove_nothing)
{
    struct bny_graph *g = make("star:3x4+2x1");
    struct bny_joint j;
    struct bny_ratio value;

    cr_assert_eq(bny_joint_solve(&j, g), 0);
    value = bny_dual_value(j.dual, g);
    expect_ratio(value, "1", "the slow hosts' cut");
    for (int s = 0; s < j.dual->nsets; s++) {
        j.dual->times[s] += 3;
        cr_assert(bny_ratio_cmp(bny_dual_value(j.dual, g), value) <= 0);
        j.dual->times[s] = -j.dual->times[s];
        cr_assert(!bny_ratio_ok(bny_dual_value(j.dual, g)));
        j.dual->times[s] = -j.dual->times[s] - 3;
    }
    memset(j.dual->in, 1, (size_t)g->nnodes);
    cr_assert(!bny_ratio_ok(bny_dual_value(j.dual, g)));
    memset(j.dual->in, 0, (size_t)g->nnodes);
    j.dual->down_pot[g->rank_node[0]] = 1;
    cr_assert(!bny_ratio_ok(bny_dual_value(j.dual, g)));
    bny_joint_free(&j);
    bny_graph_free(g);
}
