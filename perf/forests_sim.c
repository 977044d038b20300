/* SPDX-License-Identifier: BSD-3-Clause */
/* forests_sim: what the simulator makes of published results, as JSON rows.
 *
 *   forests_sim table          contended times on tori and meshes in units of S/(nB), alpha 0
 *                              (table 1.6 of the design: MultiTree, Swing and their baselines)
 *   forests_sim curves TOPO    bus bandwidth against size, 32 KiB to 64 MiB, links of 16 GB/s
 *                              and 150 ns, one head flit in 17: MultiTree's figure; rows for
 *                              tools/banyan_plot
 *   forests_sim speed          seconds to plan, bound, repair, simulate and prove; rows for
 *                              perf/forests.py --speed
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "banyan/banyan.h"
#include "collectives/program/msccl.h"
#include "sim_baselines.h"
#include "topo/bound.h"
#include "topo/repair.h"

#define BOTH (BNY_SIM_REDUCE | BNY_SIM_SPREAD)

static int failed(const char *what)
{
    fprintf(stderr, "forests_sim: %s: %s\n", what, banyan_last_error());
    return 1;
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct bny_forest *forest(const struct bny_graph *g, const char *name)
{
    const struct bny_graph_builder_ops *on_graph = bny_graph_builder_find(name);
    struct bny_forest *f = NULL;

    if (!strcmp(name, "nccl_double_tree"))
        return sim_nccl_double_tree(g->nranks);
    if (!strcmp(name, "near_halving"))
        return sim_near_halving(g->nranks);
    if (on_graph)
        on_graph->build(&f, g, BNY_FOREST_ALLREDUCE, 0, NULL);
    return f;
}

/* A job of a named forest (kept in *f for as long as the job), or of the two-pass 2-d ring. */
static int job_of(struct bny_sim_job *job, struct bny_forest **f, const struct bny_graph *g,
                  const char *name, const struct bny_sim_opts *o)
{
    struct bny_grid grid;

    *f = NULL;
    bny_sim_job_init(job, g->nranks);
    if (strcmp(name, "ring_2d")) {
        *f = forest(g, name);
        return *f ? bny_sim_job_forest(job, *f, BOTH, o) : -1;
    }
    if (!bny_grid_of(&grid, g) || grid.ndims != 2 || !grid.wraps)
        return -1;
    sim_ring_2d(job, grid.dim[0], grid.dim[1], o->bytes);
    return 0;
}

static const char *const schedules[] = {
    "ordered_ring_uni", "ordered_ring", "near_halving", "nccl_double_tree",    "ring_2d",
    "torus_bucket",     "swing_uni",    "swing",        "multitree_reference", "multitree"
};
#define NSCHEDULES ((int)(sizeof schedules / sizeof schedules[0]))

static void table_row(const struct bny_graph *g, const char *name)
{
    struct bny_sim_opts o = { .bytes = g->nranks * g->unit_Bps,
                              .no_link_latency = 1,
                              .routing = BNY_ROUTE_AUTO };
    struct bny_sim_closed c;
    struct bny_sim_job job;
    struct bny_forest *f;
    struct bny_bound b;

    if (!job_of(&job, &f, g, name, &o) && !bny_sim_run_closed(&c, g, &job, &o) &&
        !bny_bound_rs_ag(&b, g)) {
        double units = strcmp(name, "nccl_double_tree") ? c.lockstep_s : c.steady_s;

        printf("{\"topo\":\"%s\",\"ranks\":%d,\"schedule\":\"%s\",\"units\":%.12g,\"bound_"
               "units\":%.12g}\n",
               g->name, g->nranks, name, units, bny_ratio_value(b.value) * g->nranks);
        bny_bound_free(&b);
    }
    bny_sim_job_free(&job);
    bny_forest_free(f);
}

static int table(void)
{
    static const char *const topos[] = { "torus:4x4", "torus:8x8", "torus:16x16",
                                         "mesh:4x4",  "mesh:8x8",  "mesh:16x16" };

    for (int i = 0; i < 6; i++) {
        struct bny_graph *g;

        if (bny_graph_make(&g, topos[i]))
            return failed(topos[i]);
        for (int k = 0; k < NSCHEDULES; k++)
            table_row(g, schedules[k]);
        bny_graph_free(g);
    }
    return 0;
}

/* bulk: one head for a whole message. */
static void curve(const struct bny_graph *g, const char *name, int bulk)
{
    for (double bytes = 32 * 1024; bytes <= 64 * 1024 * 1024; bytes *= 2) {
        struct bny_sim_opts o = { .bytes = bytes,
                                  .header = bulk ? 1 : 17.0 / 16,
                                  .order = BNY_SIM_PRIORITY };
        struct bny_sim_result r;
        struct bny_sim_job job;
        struct bny_forest *f;

        /* the double tree is the only one that pipelines: in pieces of its shards' size */
        o.chunks = strcmp(name, "nccl_double_tree") ? 1 : (int)fmin(64, fmax(1, bytes / 4096));
        if (!job_of(&job, &f, g, name, &o) && !bny_sim_run(&r, g, &job, &o)) {
            printf("{\"collective\":\"allreduce\",\"transport\":\"%s%s\",\"ranks\":%d,"
                   "\"bytes\":%.0f,"
                   "\"time_us\":%.6g,\"algbw_GBps\":%.6g,\"busbw_GBps\":%.6g}\n",
                   name, bulk ? " in bulk" : "", g->nranks, bytes, 1e6 * r.seconds,
                   1e-9 * bytes / r.seconds,
                   2e-9 * (g->nranks - 1) / g->nranks * bytes / r.seconds);
            bny_sim_result_free(&r);
        }
        bny_sim_job_free(&job);
        bny_forest_free(f);
    }
}

static int curves(const char *topo)
{
    static const char *const names[] = {
        "nccl_double_tree", "ordered_ring_uni", "ring_2d", "torus_bucket", "swing", "multitree"
    };
    struct bny_graph *g;

    if (bny_graph_make(&g, topo))
        return failed(topo);
    g->unit_Bps = 16e9;
    for (int l = 0; l < g->nlinks; l++)
        g->links[l].lat_ns = 150;
    for (int k = 0; k < 6; k++)
        curve(g, names[k], 0);
    curve(g, "multitree", 1);
    bny_graph_free(g);
    return 0;
}

static void row(const char *what, const char *topo, double s, double aim)
{
    printf("{\"what\":\"%s\",\"topo\":\"%s\",\"seconds\":%.4f,\"aim_s\":%.1f}\n", what, topo, s,
           aim);
    fflush(stdout);
}

/* Exact packing of an allgather: free k, the cut's bound reached. */
static int speed_of_packing(const char *topo, double aim)
{
    struct bny_forest *f = NULL;
    struct bny_graph *g;
    double start;

    if (bny_graph_make(&g, topo))
        return failed(topo);
    start = seconds();
    if (bny_graph_builder_find("packed")->build(&f, g, BNY_FOREST_SCATTERED, -1, NULL))
        return failed(topo);
    row("exact packing", topo, seconds() - start, aim);
    bny_forest_free(f);
    bny_graph_free(g);
    return 0;
}

static int speed_of_bound(const char *topo, double aim)
{
    struct bny_bound b;
    struct bny_graph *g;
    double start;

    if (bny_graph_make(&g, topo))
        return failed(topo);
    start = seconds();
    if (bny_bound_allgather(&b, g))
        return failed(topo);
    row("exact bound", topo, seconds() - start, aim);
    bny_bound_free(&b);
    bny_graph_free(g);
    return 0;
}

static int speed_of_repair(const char *topo, const char *loss, double aim)
{
    char less[80];
    struct bny_graph *before, *after;
    struct bny_forest *f, *r;
    double start;

    snprintf(less, sizeof less, "%s!%s", topo, loss);
    if (bny_graph_make(&before, topo) || bny_graph_make(&after, less) ||
        bny_graph_builder_find("packed")->build(&f, before, BNY_FOREST_SCATTERED, -1, NULL))
        return failed(less);
    start = seconds();
    if (bny_forest_repair(&r, f, before, after, BNY_FOREST_SCATTERED, -1, NULL))
        return failed(less);
    row("plan after a lost link", less, seconds() - start, aim);
    bny_forest_free(f);
    bny_forest_free(r);
    bny_graph_free(before);
    bny_graph_free(after);
    return 0;
}

/* What banyan_topo verify does: certificate, bound, and the programs of all ranks. */
static int speed_of_proof(const struct bny_graph *g, struct bny_forest *f, const char *topo,
                          double aim)
{
    struct bny_program_set set = { .collective = BNY_ALLREDUCE, .n = f->nranks };
    double start = seconds();
    char why[256];

    if (bny_forest_recheck(f, g, BNY_FOREST_ALLREDUCE, -1, why, sizeof why))
        return failed(why);
    set.p = calloc((size_t)set.n, sizeof *set.p);
    if (!set.p || bny_compile_all(set.p, f, BNY_ALLREDUCE, 1) ||
        bny_program_set_prove(&set, 4, why, sizeof why))
        return failed("proof");
    row("proof of a plan", topo, seconds() - start, aim);
    bny_program_set_free(&set);
    return 0;
}

static int speed_of_1024(void)
{
    struct bny_sim_opts o = { .bytes = 1e9, .alpha_s = 1e-6, .order = BNY_SIM_PRIORITY };
    static const char topo[] = "torus:32x32";
    struct bny_sim_result r;
    struct bny_forest *f;
    struct bny_graph *g;
    double start;
    int e;

    if (bny_graph_make(&g, topo))
        return failed(topo);
    start = seconds();
    if (bny_graph_builder_find("multitree")->build(&f, g, BNY_FOREST_ALLREDUCE, 0, NULL))
        return failed("multitree on torus:32x32");
    row("multitree", topo, seconds() - start, 2);
    start = seconds();
    if (bny_sim_forest(&r, g, f, BOTH, &o))
        return failed("simulation");
    row("simulation of 2.1 M chunks", topo, seconds() - start, 5);
    bny_sim_result_free(&r);
    e = speed_of_proof(g, f, topo, 5);
    bny_forest_free(f);
    bny_graph_free(g);
    return e;
}

static int speed(void)
{
    static const char *const of_64[] = { "torus:8x8", "mesh:8x8",   "dgx-a100:8",
                                         "mi250:4",   "fattree:64", "leafspine:8x8,over=4" };
    static const char *const of_256[] = { "torus:16x16", "dgx-h100:32", "random:256",
                                          "leafspine:16x16,over=4" };
    static const char *const of_1024[] = { "torus:32x32", "dgx-h100:128" };
    int e = 0;

    for (size_t i = 0; i < sizeof of_64 / sizeof *of_64 && !e; i++)
        e = speed_of_packing(of_64[i], 0.2);
    for (size_t i = 0; i < sizeof of_256 / sizeof *of_256 && !e; i++)
        e = speed_of_packing(of_256[i], 3);
    for (size_t i = 0; i < sizeof of_1024 / sizeof *of_1024 && !e; i++)
        e = speed_of_bound(of_1024[i], 10);
    if (!e)
        e = speed_of_repair("torus:16x16", "dead=0-1", 0.5);
    if (!e)
        e = speed_of_repair("dgx-h100:32", "dead=0", 0.5);
    return e ? e : speed_of_1024();
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "table"))
        return table();
    if (argc == 3 && !strcmp(argv[1], "curves"))
        return curves(argv[2]);
    if (argc == 2 && !strcmp(argv[1], "speed"))
        return speed();
    fprintf(stderr, "usage: forests_sim table | curves TOPO | speed\n");
    return 2;
}
