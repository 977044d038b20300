/* SPDX-License-Identifier: BSD-3-Clause */
/* forests_sim: what the simulator makes of published results, as JSON rows.
 *
 *   forests_sim table          contended times on tori and meshes in units of S/(nB), alpha 0
 * (table 1.6 of the design: MultiTree, Swing and their baselines) forests_sim curves TOPO bus
 * bandwidth against size, 32 KiB to 64 MiB, links of 16 GB/s and 150 ns, one head flit in 17:
 * MultiTree's figure; rows for tools/banyan_plot forests_sim speed          seconds for
 * MultiTree on a 32x32 torus: building, and simulating 2.1 M chunks */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "banyan/banyan.h"
#include "sim_baselines.h"
#include "topo/bound.h"

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

static int speed(void)
{
    struct bny_sim_opts o = { .bytes = 1e9, .alpha_s = 1e-6, .order = BNY_SIM_PRIORITY };
    double start = seconds(), built;
    struct bny_sim_result r;
    struct bny_forest *f;
    struct bny_graph *g;

    if (bny_graph_make(&g, "torus:32x32") ||
        bny_graph_builder_find("multitree")->build(&f, g, BNY_FOREST_ALLREDUCE, 0, NULL))
        return failed("multitree on torus:32x32");
    built = seconds();
    if (bny_sim_forest(&r, g, f, BOTH, &o))
        return failed("simulation");
    printf("{\"topo\":\"torus:32x32\",\"schedule\":\"multitree\",\"steps\":%u,\"build_s\":%.3f,"
           "\"simulate_s\":%.3f,"
           "\"messages\":%llu,\"events\":%llu}\n",
           f->nsteps, built - start, seconds() - built, (unsigned long long)r.messages,
           (unsigned long long)r.events);
    bny_sim_result_free(&r);
    bny_forest_free(f);
    bny_graph_free(g);
    return 0;
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
