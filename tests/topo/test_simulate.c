/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of the simulator: the closed forms of the literature, exactly; the published orders
 * and ratios of MultiTree, Swing and badly ordered rings; each part of the model alone against
 * its formula. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../perf/sim_baselines.h"
#include "banyan/banyan.h"
#include "topo/bound.h"

#define BOTH (BNY_SIM_REDUCE | BNY_SIM_SPREAD)
#define MIB  1048576.0

static int small_scale(void)
{
    const char *scale = getenv("BANYAN_TEST_SCALE");

    return scale && atof(scale) < 1;
}

static struct bny_graph *graph(const char *text)
{
    struct bny_graph *g;
    int e = bny_graph_make(&g, text);

    cr_assert_eq(e, 0, "%s: %s", text, banyan_last_error());
    return g;
}

/* A forest of either registry, or one of the baselines. */
static struct bny_forest *forest(const struct bny_graph *g, const char *name)
{
    const struct bny_graph_builder_ops *on_graph = bny_graph_builder_find(name);
    struct bny_forest *f = NULL;
    int e = 0;

    if (!strcmp(name, "nccl_double_tree"))
        f = sim_nccl_double_tree(g->nranks);
    else if (!strcmp(name, "near_halving"))
        f = sim_near_halving(g->nranks);
    else if (on_graph)
        e = on_graph->build(&f, g, BNY_FOREST_ALLREDUCE, 0, NULL);
    else
        e = bny_builder_find(name)->build(&f, g->nranks, BNY_FOREST_ALLREDUCE, 0);
    cr_assert(f, "%s on %s: %d %s", name, g->name, e, banyan_last_error());
    return f;
}

static double simulate(const struct bny_graph *g, const struct bny_forest *f,
                       const struct bny_sim_opts *o)
{
    struct bny_sim_result r;
    int e = bny_sim_forest(&r, g, f, BOTH, o);

    cr_assert_eq(e, 0, "%s on %s: %s", f->name, g->name, banyan_last_error());
    bny_sim_result_free(&r);
    return r.seconds;
}

static struct bny_sim_closed closed(const struct bny_graph *g, const struct bny_forest *f,
                                    const struct bny_sim_opts *o)
{
    struct bny_sim_closed c;
    int e = bny_sim_forest_closed(&c, g, f, BOTH, o);

    cr_assert_eq(e, 0, "%s on %s: %s", f->name, g->name, banyan_last_error());
    return c;
}

static void same(double got, double want, const char *what, const char *topo)
{
    cr_assert(fabs(got - want) <= 1e-9 * want, "%s on %s: %.12g, not %.12g", what, topo, got,
              want);
}

/* In these options a time is in units of S / (n B). */
static struct bny_sim_opts units(const struct bny_graph *g)
{
    return (struct bny_sim_opts){ .bytes = g->nranks * g->unit_Bps,
                                  .no_link_latency = 1,
                                  .routing = BNY_ROUTE_AUTO };
}

/* ---- closed forms -------------------------------------------------------------------------
 */

static const char *const grids[] = { "torus:4x4", "torus:8x8", "torus:16x16",
                                     "mesh:4x4",  "mesh:8x8",  "mesh:16x16" };

static const struct row {
    const char *name;
    double value[6]; /* 0: not in the table */
    int steady;      /* 1: the worst load in all; 0: step by step */
} table[] = {
    { "ordered_ring_uni", { 30, 126, 510, 30, 126, 510 }, 0 },
    { "ordered_ring", { 15, 63, 255, 15, 63, 255 }, 0 },
    { "near_halving", { 30, 180, 952, 40, 216, 1088 }, 0 },
    { "nccl_double_tree", { 28, 128, 768, 40, 160, 896 }, 1 },
    { "torus_bucket", { 7.5, 31.5, 127.5, 0, 0, 0 }, 0 },
    { "swing_uni", { 30, 132, 546, 36, 162, 684 }, 0 },
    { "swing", { 7.5, 34.5, 145.5, 15, 69, 291 }, 0 },
    { "multitree_reference", { 10, 34, 128, 20, 66, 0 }, 0 },
    { "multitree", { 10, 34, 128, 16, 64, 256 }, 0 },
};

Test(simulate, contended_times_on_grids_are_those_of_the_literature)
{
    for (int i = 0; i < 6; i++) {
        struct bny_graph *g = graph(grids[i]);
        struct bny_sim_opts o = units(g);

        for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
            struct bny_forest *f;
            struct bny_sim_closed c;

            if (table[k].value[i] == 0)
                continue;
            f = forest(g, table[k].name);
            c = closed(g, f, &o);
            same(table[k].steady ? c.steady_s : c.lockstep_s, table[k].value[i], table[k].name,
                 grids[i]);
            bny_forest_free(f);
        }
        bny_graph_free(g);
    }
}

/* The event-driven run agrees where a step has no contention, or shares links fairly. */
Test(simulate, events_in_lock_step_take_the_closed_time)
{
    for (int i = 0; i < 6; i++) {
        struct bny_graph *g = graph(grids[i]);
        struct bny_sim_opts o = units(g);

        o.lockstep = 1;
        for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
            int swings =
                !strncmp(table[k].name, "swing", 5) || !strcmp(table[k].name, "near_halving");
            struct bny_forest *f;

            if (table[k].value[i] == 0 || table[k].steady ||
                (i % 3 == 2 && (swings || small_scale())))
                continue;
            f = forest(g, table[k].name);
            o.order = swings ? BNY_SIM_FAIR : BNY_SIM_FIFO;
            /* on meshes flows of different lengths do not all end together, even at fair rates
             */
            if (swings && i >= 3)
                cr_assert_geq(simulate(g, f, &o), table[k].value[i] * (1 - 1e-9));
            else
                same(simulate(g, f, &o), table[k].value[i], table[k].name, grids[i]);
            bny_forest_free(f);
        }
        bny_graph_free(g);
    }
}

Test(simulate, two_pass_2d_ring_takes_the_published_time)
{
    static const struct {
        const char *topo;
        int p;
        double units;
    } all[] = { { "torus:4x4", 4, 12 }, { "torus:8x8", 8, 56 }, { "torus:16x16", 16, 240 } };

    for (int i = 0; i < 3; i++) {
        struct bny_graph *g = graph(all[i].topo);
        struct bny_sim_opts o = units(g);
        struct bny_sim_closed c;
        struct bny_sim_result r;
        struct bny_sim_job job;

        bny_sim_job_init(&job, g->nranks);
        sim_ring_2d(&job, all[i].p, all[i].p, o.bytes);
        cr_assert_eq(bny_sim_run_closed(&c, g, &job, &o), 0);
        same(c.lockstep_s, all[i].units, "2d-ring", g->name);
        cr_assert_eq(bny_sim_run(&r, g, &job, &o), 0);
        same(r.seconds, all[i].units, "2d-ring", g->name);
        bny_sim_result_free(&r);
        bny_sim_job_free(&job);
        bny_graph_free(g);
    }
}

Test(simulate, ring_on_a_star_is_exact_with_alpha)
{
    for (int n = 2; n <= 33; n = 2 * n - 1) {
        char text[16];
        struct bny_graph *g;
        struct bny_forest *f;
        double alpha = 3e-6, bytes = 5e6, want;

        snprintf(text, sizeof text, "star:%d", n);
        g = graph(text);
        f = forest(g, "ring_uni");
        want = 2 * (n - 1) * (alpha + bytes / n / g->unit_Bps);
        for (int lockstep = 0; lockstep < 2; lockstep++) {
            struct bny_sim_opts o = {
                .bytes = bytes, .alpha_s = alpha, .no_link_latency = 1, .lockstep = lockstep
            };

            same(simulate(g, f, &o), want, "ring", text);
            same(closed(g, f, &o).lockstep_s, want, "ring", text);
            o.alpha_s = 0; /* the same wait spent in two hops */
            o.hop_s = alpha / 2;
            same(simulate(g, f, &o), want, "ring with hops", text);
            o.hop_s = 0;
            o.overhead_s = alpha; /* or at the sender */
            same(simulate(g, f, &o), want, "ring with overhead", text);
        }
        bny_forest_free(f);
        bny_graph_free(g);
    }
}

Test(simulate, multitree_in_lock_step_is_two_t_messages)
{
    struct bny_graph *g = graph("torus:8x8");
    struct bny_forest *f = forest(g, "multitree");
    struct bny_sim_opts o = {
        .bytes = 64e6, .alpha_s = 2e-6, .no_link_latency = 1, .lockstep = 1, .header = 17.0 / 16
    };

    same(simulate(g, f, &o), 34 * (2e-6 + 17.0 / 16 * 1e6 / g->unit_Bps), "multitree", g->name);
    bny_forest_free(f);
    bny_graph_free(g);
}

/* ---- parts of the model alone -------------------------------------------------------------
 */

/* Three ranks in a row, links of 1 GB/s and 1 us. */
static struct bny_graph *row_of_three(void)
{
    struct bny_graph *g = bny_graph_alloc("row");

    for (int r = 0; r < 3; r++)
        bny_graph_node(g, BNY_NODE_COMPUTE, r, NULL);
    bny_graph_both(g, 0, 1, 1, 1000);
    bny_graph_both(g, 1, 2, 1, 1000);
    cr_assert_eq(bny_graph_freeze(g), 0);
    return g;
}

static struct bny_sim_result run_transfers(const struct bny_graph *g,
                                           const struct bny_transfer *t, int n,
                                           const struct bny_sim_opts *o)
{
    struct bny_sim_job job;
    struct bny_sim_result r;

    bny_sim_job_init(&job, g->nranks);
    for (int i = 0; i < n; i++)
        bny_sim_add(&job, &t[i]);
    cr_assert_eq(bny_sim_run(&r, g, &job, o), 0, "%s", banyan_last_error());
    bny_sim_job_free(&job);
    return r;
}

static void check_time(const struct bny_graph *g, const struct bny_transfer *t, int n,
                       const struct bny_sim_opts *o, double want, const char *what)
{
    struct bny_sim_result r = run_transfers(g, t, n, o);

    same(r.seconds, want, what, g->name);
    bny_sim_result_free(&r);
}

Test(simulate, each_part_of_the_model_follows_its_formula)
{
    struct bny_graph *g = row_of_three();
    struct bny_transfer far = { 0, 2, 0, 0, 0, 1e6, NULL, 0, 0, 0 };
    struct bny_transfer two[] = { { 0, 2, 0, 0, 0, 1e6, NULL, 0, 0, 0 },
                                  { 1, 2, 1, 1, 0, 2e6, NULL, 0, 0, 0 } };
    struct bny_transfer near[] = { { 0, 1, 1, 1, 0, 1e6, NULL, 0, 0, 0 },
                                   { 0, 1, 0, 1, 0, 3e6, NULL, 0, 0, 0 } };
    /* Each is sent at 5 ms and there at 6; rank 1 sends again until 10. */
    struct bny_transfer there_and_back[] = { { 0, 1, 0, 0, 0, 1e6, NULL, 0, 0, 0 },
                                             { 1, 0, 0, 0, 0, 1e6, NULL, 0, 0, 0 },
                                             { 1, 2, 0, 0, 0, 1e6, NULL, 0, 0, 0 } };
    struct bny_sim_opts o = { 0 };
    struct bny_sim_result r;

    check_time(g, &far, 1, &o, 1e-3 + 2e-6, "cut-through pays the bytes once");
    o.chunks = 4;
    check_time(g, &far, 1, &o, 1e-3 + 2e-6, "chunks of one message follow without gaps");
    o.slots = 1;
    check_time(g, &far, 1, &o, 1e-3 + 4 * 2e-6,
               "one slot: each chunk waits for the one before");
    o = (struct bny_sim_opts){ .port_cap = 0.5 };
    check_time(g, &far, 1, &o, 2e-3 + 2e-6, "ports of half the speed");
    o = (struct bny_sim_opts){ .gamma_s_per_byte = 1e-9 };
    check_time(g, near, 2, &o, 7e-3 + 1e-6, "the second sum waits for link and adder");
    o = (struct bny_sim_opts){ .send_s = 1e-3, .recv_s = 2e-3, .copy_s_per_byte = 1e-9 };
    check_time(g, &far, 1, &o, 6e-3 + 2e-6, "work and a copy at either end");
    o = (struct bny_sim_opts){ .send_s = 5e-3, .recv_s = 5e-3 };
    check_time(g, there_and_back, 3, &o, 16e-3 + 1e-6, "a rank sends twice, and another takes");
    o = (struct bny_sim_opts){ 0 };
    check_time(g, two, 2, &o, 3e-3 + 1e-6, "fifo: both share the second link");
    o.order = BNY_SIM_FAIR;
    check_time(g, two, 2, &o, 3e-3 + 1e-6, "fair: the link is never idle");
    r = run_transfers(g, two, 2, &o);
    cr_assert(fabs(r.utilisation - 3e-3 / r.seconds) < 1e-9);
    bny_sim_result_free(&r);
    bny_graph_free(g);
}

/* All roots of a star of all with all have their sums at once: where each sent to rank 0 first,
 * the others' ports would stand idle. */
Test(simulate, what_is_ready_at_once_goes_in_the_order_of_its_steps)
{
    struct bny_graph *g = graph("star:16");
    struct bny_forest *f = forest(g, "multitree");
    struct bny_sim_opts o = units(g);

    o.order = BNY_SIM_FIFO;
    cr_assert_lt(simulate(g, f, &o), 1.02 * 2 * 15.0 / 16 * o.bytes / g->unit_Bps);
    bny_forest_free(f);
    bny_graph_free(g);
}

/* Half of the vector is joined into one message in the first step of a butterfly: where it
 * waits as a whole in each step, a rank stands idle while it comes. */
Test(simulate, joined_messages_are_sent_on_by_parts)
{
    struct bny_graph *g = graph("torus:8x8");
    struct bny_forest *f = forest(g, "swing");
    struct bny_sim_opts o = units(g);
    double whole, by_parts;

    o.order = BNY_SIM_FIFO;
    o.copy_s_per_byte = 1 / g->unit_Bps;
    whole = simulate(g, f, &o);
    o.joined = o.bytes / 64 * 2;
    by_parts = simulate(g, f, &o);
    cr_assert_lt(by_parts, 0.9 * whole, "%g and %g s", by_parts, whole);
    o.joined = o.bytes;
    cr_assert_eq(simulate(g, f, &o), whole);
    bny_forest_free(f);
    bny_graph_free(g);
}

/* One long flow and two short ones: 2/3 and 1/3 of the second link (Bertsekas and Gallager). */
Test(simulate, fair_rates_are_max_min)
{
    struct bny_graph *g = row_of_three();
    struct bny_transfer t[] = { { 0, 1, 0, 0, 0, 1e6, NULL, 0, 0, 0 },
                                { 0, 1, 0, 0, 0, 1e6, NULL, 0, 0, 0 },
                                { 0, 2, 0, 0, 0, 1e6, NULL, 0, 0, 0 },
                                { 1, 2, 0, 0, 0, 2e6, NULL, 0, 0, 0 } };
    struct bny_sim_opts o = { .order = BNY_SIM_FAIR, .no_link_latency = 1 };
    struct bny_sim_result r = run_transfers(g, t, 4, &o);

    /* three thirds on the first link until 3 ms, when the last flow has had 2/3 of the second:
     * 2 MB */
    same(r.seconds, 3e-3, "max-min", g->name);
    bny_sim_result_free(&r);
    bny_graph_free(g);
}

Test(simulate, earlier_steps_go_first_where_asked)
{
    struct bny_graph *g = row_of_three();
    struct bny_transfer t[] = { { 0, 1, 5, 0, 0, 1e6, NULL, 0, 0, 0 },
                                { 0, 1, 4, 0, 0, 1e6, NULL, 0, 0, 0 },
                                { 0, 1, 3, 0, 0, 1e6, NULL, 0, 0, 0 } };
    struct bny_sim_opts o = { .no_link_latency = 1 };

    for (int order = BNY_SIM_FIFO; order <= BNY_SIM_PRIORITY; order++) {
        struct bny_transfer after = { 1, 2, 6, 0, 0, 5e6, NULL, 0, 0, 0 };
        struct bny_sim_job job;
        struct bny_sim_result r;

        bny_sim_job_init(&job, 3);
        for (int i = 0; i < 3; i++)
            bny_sim_add(&job, &t[i]);
        bny_sim_after(&job, bny_sim_add(&job, &after), 2); /* waits for step 3 */
        o.order = (enum bny_sim_order)order;
        cr_assert_eq(bny_sim_run(&r, g, &job, &o), 0);
        same(r.seconds, order == BNY_SIM_FIFO ? 8e-3 : 7e-3, "priority", "row");
        cr_assert_eq(r.max_queue, 2);
        bny_sim_result_free(&r);
        bny_sim_job_free(&job);
    }
    bny_graph_free(g);
}

Test(simulate, a_cycle_of_waits_is_told_and_so_is_a_wrong_forest)
{
    struct bny_graph *g = row_of_three();
    struct bny_transfer t = { 0, 1, 0, 0, 0, 1, NULL, 0, 0, 0 };
    struct bny_sim_opts o = { 0 };
    struct bny_sim_job job;
    struct bny_sim_result r;
    struct bny_forest *f;

    bny_sim_job_init(&job, 3);
    bny_sim_after(&job, bny_sim_add(&job, &t), 1);
    bny_sim_after(&job, bny_sim_add(&job, &t), 0);
    cr_assert_eq(bny_sim_run(&r, g, &job, &o), -BANYAN_EINVAL);
    cr_assert(strstr(banyan_last_error(), "stall"));
    o.order = BNY_SIM_FAIR;
    cr_assert_eq(bny_sim_run(&r, g, &job, &o), -BANYAN_EINVAL);
    bny_sim_job_free(&job);
    cr_assert_eq(bny_builder_find("star")->build(&f, 4, BNY_FOREST_ALLREDUCE, 0), 0);
    cr_assert_eq(bny_sim_forest(&r, g, f, BOTH, &o), -BANYAN_EINVAL);
    bny_forest_free(f);
    bny_graph_free(g);
}

Test(simulate, one_run_is_like_the_other)
{
    struct bny_graph *g = graph("fattree:64,over=2");
    struct bny_forest *f = forest(g, "multitree");
    struct bny_sim_opts o = { .bytes = 1e7,
                              .alpha_s = 1e-6,
                              .chunks = 3,
                              .slots = 2,
                              .routing = BNY_ROUTE_ECMP,
                              .seed = 7 };
    double first = simulate(g, f, &o);

    cr_assert_eq(simulate(g, f, &o), first);
    o.seed = 8;
    cr_assert_neq(simulate(g, f, &o), first);
    bny_forest_free(f);
    bny_graph_free(g);
}

/* ---- published results --------------------------------------------------------------------
 */

/* MultiTree's evaluation: 16 GB/s links, 150 ns; packets carry one head flit in 17. */
static double r1_time(const struct bny_graph *g, const char *name, double bytes, int bulk)
{
    struct bny_sim_opts o = { .bytes = bytes,
                              .header = bulk ? 1 : 17.0 / 16,
                              .routing = BNY_ROUTE_PLAN };
    struct bny_sim_job job;
    struct bny_sim_result r;
    struct bny_forest *f = NULL;

    bny_sim_job_init(&job, g->nranks);
    if (!strcmp(name, "ring_2d")) {
        int p = (int)lrint(sqrt(g->nranks));

        sim_ring_2d(&job, p, p, bytes);
    } else {
        f = forest(g, name);
        o.order = !strcmp(name, "multitree") ? BNY_SIM_PRIORITY : BNY_SIM_FIFO;
        o.chunks = !strcmp(name, "nccl_double_tree") ? 64 : 1;
        cr_assert_eq(bny_sim_job_forest(&job, f, BOTH, &o), 0);
    }
    cr_assert_eq(bny_sim_run(&r, g, &job, &o), 0, "%s", banyan_last_error());
    bny_sim_result_free(&r);
    bny_sim_job_free(&job);
    bny_forest_free(f);
    return r.seconds;
}

static void near(double got, double want, double part, const char *what)
{
    cr_assert(fabs(got - want) <= part * want, "%s: %g, not %g", what, got, want);
}

Test(simulate, multitree_beats_the_rings_as_published)
{
    for (int p = 4; p <= 8; p += 4) {
        struct bny_graph *g = graph(p == 4 ? "torus:4x4" : "torus:8x8");
        double bytes = 64 * MIB, mt, bulk, ring, ring_2d, dbt;

        g->unit_Bps = 16e9;
        cr_assert_eq(g->links[0].lat_ns, 150);
        mt = r1_time(g, "multitree", bytes, 0);
        bulk = r1_time(g, "multitree", bytes, 1);
        ring = r1_time(g, "ordered_ring_uni", bytes, 0);
        ring_2d = r1_time(g, "ring_2d", bytes, 0);
        dbt = r1_time(g, "nccl_double_tree", bytes, 0);
        cr_assert(bulk < mt && mt < ring_2d && ring_2d < ring, "%g %g %g %g", bulk, mt, ring_2d,
                  ring);
        if (p == 8)
            cr_assert_leq(ring, dbt * 1.01, "ring %g, double tree %g", ring, dbt);
        near(ring / mt, p == 8 ? 3.71 : 3.0, 0.05, "ring / multitree");
        near(ring_2d / mt, p == 8 ? 1.65 : 1.2, 0.05, "2d-ring / multitree");
        if (p == 8) {
            near(ring / bulk, 3.94, 0.05, "ring / multitree in bulk");
            near(ring_2d / bulk, 1.75, 0.05, "2d-ring / multitree in bulk");
        }
        bny_graph_free(g);
    }
}

/* With one port a host all are bound by it at large sizes; MultiTree's trees are lower. */
Test(simulate, one_port_hosts_gain_at_small_sizes_only)
{
    static const char *const topos[] = { "fattree:64", "bigraph:4x8", "bigraph:4x16" };

    for (int i = 0; i < 3; i++) {
        struct bny_graph *g = graph(topos[i]);

        g->unit_Bps = 16e9;
        near(r1_time(g, "ordered_ring_uni", 64 * MIB, 0) / r1_time(g, "multitree", 64 * MIB, 0),
             1, 0.05, topos[i]);
        cr_assert_lt(r1_time(g, "multitree", 32 * 1024, 0),
                     0.9 * r1_time(g, "ordered_ring_uni", 32 * 1024, 0), "%s", topos[i]);
        bny_graph_free(g);
    }
}

Test(simulate, eight_rail_rings_on_two_boxes_take_what_eight_nics_give)
{
    struct bny_graph *g = graph("dgx-a100:2");
    struct bny_forest *f = sim_rail_rings(2, 8);
    struct bny_sim_opts o = { .bytes = 1e9, .no_link_latency = 1 };
    char why[128] = "";

    cr_assert_eq(bny_forest_check(f, BNY_FOREST_ALLREDUCE, 0, why, sizeof why), 0, "%s", why);
    near(1 / simulate(g, f, &o), 106.67, 0.01, "rail rings");
    near(1 / closed(g, f, &o).steady_s, 106.67, 1e-4, "rail rings");
    bny_forest_free(f);
    bny_graph_free(g);
}

/* 99 % of what the cut allows, with four slots a channel, when the oldest chunks go first. */
Test(simulate, a_packed_forest_on_two_boxes_reaches_the_bound)
{
    struct bny_graph *g = graph("dgx-a100:2");
    struct bny_forest *f = forest(g, "packed");
    struct bny_sim_opts o = { .bytes = 1e10,
                              .chunks = small_scale() ? 64 : 1024,
                              .slots = 4,
                              .order = BNY_SIM_PRIORITY };
    double GBps = 1e-9 * o.bytes / simulate(g, f, &o);

    cr_assert_geq(GBps, small_scale() ? 160 : 171.6, "%g GB/s", GBps);
    cr_assert_leq(GBps, 173.34);
    bny_forest_free(f);
    bny_graph_free(g);
}

/* Equal shards, one phase after the other, take 0.07 S; roots at the fast hosts and both phases
 * at once 0.04 S. */
Test(simulate, the_joint_plan_on_fast_and_slow_hosts_takes_four_sevenths)
{
    struct bny_graph *g = graph("star:4x100+4x25");
    struct bny_forest *f = forest(g, "joint"), *even = forest(g, "star");
    struct bny_sim_opts o = {
        .bytes = 1e9, .chunks = 1024, .slots = 4, .order = BNY_SIM_PRIORITY
    };
    double joint = simulate(g, f, &o);

    cr_assert(joint <= 0.0404 && joint >= 0.04, "%g", joint);
    o.lockstep = o.no_link_latency = 1;
    same(closed(g, even, &o).lockstep_s, 0.07, "equal shards", g->name);
    bny_forest_free(even);
    bny_forest_free(f);
    bny_graph_free(g);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* 8 leaves of 8 hosts, 2 uplinks each, hashed: 5 to 7 times the ordered ring's load, 6 in the
 * middle. */
Test(simulate, a_ring_in_random_order_is_six_times_slower_on_a_4_to_1_leaf_spine)
{
    struct bny_graph *g = graph("leafspine:8x8,over=4");
    struct bny_forest *f = forest(g, "ordered_ring_uni");
    struct bny_sim_opts o = units(g);
    double ordered = closed(g, f, &o).lockstep_s, ratio[41];
    uint64_t seed = 20261121;

    same(ordered, 2 * 63, "ordered ring", g->name);
    bny_forest_free(f);
    for (int i = 0; i < 41; i++) {
        int order[64];

        for (int r = 0; r < 64; r++) {
            int at = (int)((seed = seed * 6364136223846793005u + 1442695040888963407u) >> 33) %
                     (r + 1);

            order[r] = order[at];
            order[at] = r;
        }
        f = sim_ring_through(order, 64);
        o.routing = BNY_ROUTE_ECMP;
        o.seed = (uint64_t)i;
        ratio[i] = closed(g, f, &o).lockstep_s / ordered;
        bny_forest_free(f);
    }
    qsort(ratio, 41, sizeof *ratio, by_value);
    cr_assert(ratio[20] >= 5 && ratio[20] <= 7, "median %g", ratio[20]);
    cr_assert(ratio[2] >= 4 && ratio[38] <= 8, "%g to %g", ratio[2], ratio[38]);
    bny_graph_free(g);
}

/* Ranks are numbered at random; a ring through places does not mind. */
Test(simulate, ranks_in_random_places_cost_the_planner_nothing)
{
    struct bny_graph *g = graph("leafspine:8x8,over=4");
    struct bny_sim_opts o;
    struct bny_forest *f;
    double bound;
    uint64_t seed = 20261122;

    for (int r = 0; r < 64; r++) {
        int other =
            (int)((seed = seed * 6364136223846793005u + 1442695040888963407u) >> 33) % (r + 1);
        int a = g->rank_node[r], b = g->rank_node[other];

        g->rank_node[r] = b;
        g->rank_node[other] = a;
    }
    for (int r = 0; r < 64; r++)
        g->nodes[g->rank_node[r]].rank = r;
    o = units(g);
    o.routing = BNY_ROUTE_PLAN;
    f = forest(g, "ordered_ring");
    bound = bny_ratio_value(f->claim.bound) * 64;
    cr_assert_leq(simulate(g, f, &o), 1.01 * bound);
    bny_forest_free(f);
    bny_graph_free(g);
}

/* ---- work ---------------------------------------------------------------------------------
 */

static double run_job(const struct bny_graph *g, const struct bny_sim_job *job,
                      const struct bny_sim_opts *o, struct bny_sim_result *r)
{
    int e = bny_sim_run(r, g, job, o);

    cr_assert_eq(e, 0, "%s", banyan_last_error());
    return r->seconds;
}

/* Two things that a processor does one after the other, one of another, and what takes time of
 * none; a message between them. */
Test(simulate, work_takes_its_turn_on_a_processor)
{
    struct bny_graph *g = row_of_three();
    struct bny_sim_opts o = { .spans = 1, .no_link_latency = 1 };
    struct bny_sim_result r;
    struct bny_sim_job job;
    struct bny_transfer one = { .work_s = 2e-3, .processor = 1 }, other = one, none = one;
    struct bny_transfer way = { 0, 1, 0, 0, 0, 1e6, NULL, 0, 0, 0 };
    struct bny_transfer end = { .from = 1, .to = 1, .work_s = 1e-3, .processor = 2 };

    other.processor = 2;
    none.processor = 0;
    none.work_s = 3e-3;
    bny_sim_job_init(&job, 3);
    job.nprocessors = 2;
    bny_sim_add(&job, &one);
    bny_sim_add(&job, &one);
    bny_sim_add(&job, &other);
    bny_sim_add(&job, &none);
    bny_sim_add(&job, &way);
    bny_sim_add(&job, &end);
    bny_sim_after(&job, 4, 1); /* the message when the second is done, then the end */
    bny_sim_after(&job, 5, 4);
    same(run_job(g, &job, &o, &r), 6e-3, "work", "row");
    same(r.spans[1].began_s, 2e-3, "second", "row");
    same(r.spans[1].ended_s, 4e-3, "second", "row");
    same(r.spans[2].ended_s, 2e-3, "other", "row");
    same(r.spans[3].ended_s, 3e-3, "none", "row");
    same(r.spans[4].began_s, 4e-3, "message", "row");
    same(r.spans[5].ended_s, 6e-3, "end", "row");
    bny_sim_result_free(&r);
    bny_sim_job_free(&job);
    bny_graph_free(g);
}

/* What is last begins when a chain of small things, each of which leads to the next, has ended.
 */
Test(simulate, last_work_waits_for_what_others_lead_to)
{
    struct bny_graph *g = row_of_three();
    struct bny_transfer work = { .work_s = 1e-3, .processor = 1 }, last = work;
    struct bny_sim_opts o = { .spans = 1, .no_link_latency = 1 };
    struct bny_sim_result r;
    struct bny_sim_job job;

    last.is_last = 1;
    bny_sim_job_init(&job, 3);
    job.nprocessors = 1;
    bny_sim_add(&job, &work);
    bny_sim_add(&job, &last);
    for (uint32_t i = 2; i < 5; i++) {
        bny_sim_add(&job, &work);
        bny_sim_after(&job, i, i == 2 ? 0 : i - 1);
    }
    same(run_job(g, &job, &o, &r), 5e-3, "chain", "row");
    same(r.spans[1].began_s, 4e-3, "last", "row");
    bny_sim_result_free(&r);
    job.transfers[2].processor = 2;
    cr_assert_eq(bny_sim_run(&r, g, &job, &o), -BANYAN_EINVAL);
    cr_assert(strstr(banyan_last_error(), "processor 2"), "%s", banyan_last_error());
    job.transfers[2].processor = 1;
    o.order = BNY_SIM_FAIR;
    cr_assert_eq(bny_sim_run(&r, g, &job, &o), -BANYAN_EINVAL);
    bny_sim_job_free(&job);
    bny_graph_free(g);
}

/* A shaped link lets pass at once what it saved up, and no more: 1 ms, then its rate. */
Test(simulate, shaped_links_begin_with_a_burst)
{
    struct bny_graph *g = row_of_three();
    struct bny_transfer way = { 0, 1, 0, 0, 0, 1e6, NULL, 0, 0, 0 };
    struct bny_sim_opts o = { .burst_s = 1e-3, .no_link_latency = 1 };
    struct bny_sim_result r;
    struct bny_sim_job job;

    bny_sim_job_init(&job, 3);
    for (int i = 0; i < 4; i++)
        bny_sim_add(&job, &way);
    same(run_job(g, &job, &o, &r), 3e-3, "burst", "row");
    bny_sim_result_free(&r);
    o.burst_s = 0;
    same(run_job(g, &job, &o, &r), 4e-3, "no burst", "row");
    bny_sim_result_free(&r);
    o.burst_s = -1;
    cr_assert_eq(bny_sim_run(&r, g, &job, &o), -BANYAN_EINVAL);
    bny_sim_job_free(&job);
    bny_graph_free(g);
}
