/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of probing, on a simulated fabric whose flows share links fairly: every pair meets
 * once; clusters are found exactly under noise; the capacity of a shared border, which no pair
 * can see, comes out within 10 %. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "base/rng.h"
#include "topo/import.h"
#include "topo/probe.h"

#define MAX_RANKS 64

/* Leaves of `hosts` ranks, spread over the ranks by `shuffle`; ports of 1 GB/s, `up` GB/s out
 * of a leaf and into it. */
struct fabric {
    int leaves, hosts, leaf[MAX_RANKS];
    double up, noise;
    uint64_t rng;
};

static double noisy(struct fabric *f, double v)
{
    return v * (1 + f->noise * (2 * bny_rng_unit(&f->rng) - 1));
}

/* Max-min fair rates of flows of which each crosses a leaf's border or not; every rank has one
 * flow, so ports never share. Progressive filling with one kind of shared link: the most
 * crowded leaf first. */
static void fair(const struct fabric *f, const int *a, const int *b, int n, double *rate)
{
    double left[MAX_RANKS];
    int fixed[MAX_RANKS] = { 0 };

    for (int l = 0; l < f->leaves; l++)
        left[l] = f->up;
    for (int done = 0; !done;) {
        int tight = -1;
        double share = 1e9;
        done = 1;
        for (int l = 0; l < f->leaves; l++) {
            int users = 0;
            for (int i = 0; i < n; i++)
                users += !fixed[i] && f->leaf[a[i]] != f->leaf[b[i]] &&
                         (f->leaf[a[i]] == l || f->leaf[b[i]] == l);
            if (users && left[l] / users < share) {
                share = left[l] / users;
                tight = l;
            }
        }
        for (int i = 0; i < n; i++) {
            int crosses = f->leaf[a[i]] != f->leaf[b[i]];
            if (fixed[i] ||
                (crosses && share < 1 && f->leaf[a[i]] != tight && f->leaf[b[i]] != tight)) {
                done &= fixed[i];
                continue;
            }
            fixed[i] = 1;
            rate[i] = crosses && share < 1 ? share : 1;
            if (crosses) {
                left[f->leaf[a[i]]] -= rate[i];
                left[f->leaf[b[i]]] -= rate[i];
            }
        }
    }
}

static int run(void *ctx, const int *a, const int *b, int n, size_t bytes, int pingpong,
               double *seconds)
{
    struct fabric *f = ctx;
    double rate[MAX_RANKS];

    fair(f, a, b, n, rate);
    for (int i = 0; i < n; i++) {
        double alpha = f->leaf[a[i]] == f->leaf[b[i]] ? 2e-6 : 4e-6;
        seconds[i] = noisy(f, alpha + (double)bytes / (rate[i] * 1e9));
    }
    return 0;
}

static void make(struct fabric *f, int leaves, int hosts, double up, double noise,
                 uint64_t seed)
{
    *f = (struct fabric){
        .leaves = leaves, .hosts = hosts, .up = up, .noise = noise, .rng = seed
    };
    for (int r = 0; r < leaves * hosts; r++)
        f->leaf[r] = r / hosts;
    for (int r = leaves * hosts - 1; r > 0; r--) {
        int o = (int)bny_rng_below(&f->rng, (uint64_t)r + 1), t = f->leaf[r];
        f->leaf[r] = f->leaf[o];
        f->leaf[o] = t;
    }
}

static struct bny_probe *probe(struct fabric *f)
{
    struct bny_probe_fabric fabric = { .n = f->leaves * f->hosts,
                                       .run = run,
                                       .ctx = f,
                                       .small = 8,
                                       .middle = 1 << 16,
                                       .large = 1 << 22 };
    struct bny_probe *p;

    cr_assert_eq(bny_probe_run(&p, &fabric), 0, "%s", banyan_last_error());
    return p;
}

Test(probe, every_pair_meets_once)
{
    for (int n = 2; n <= 33; n++) {
        int met[33][33] = { { 0 } }, a[33], b[33];
        for (int r = 0; r < n - 1 + (n & 1); r++) {
            int busy[33] = { 0 }, pairs = bny_probe_round(n, r, a, b);
            cr_assert_eq(pairs, n / 2);
            for (int i = 0; i < pairs; i++) {
                cr_assert(a[i] < b[i] && b[i] < n && !busy[a[i]]++ && !busy[b[i]]++,
                          "n=%d round %d", n, r);
                met[a[i]][b[i]]++;
            }
        }
        for (int x = 0; x < n; x++)
            for (int y = x + 1; y < n; y++)
                cr_assert_eq(met[x][y], 1, "n=%d: %d and %d", n, x, y);
    }
}

/* A15: four leaves of eight hosts, 4:1, 5 % noise. */
Test(probe, finds_four_leaves_and_their_borders_under_noise)
{
    for (uint64_t seed = 1; seed <= 30; seed++) {
        struct fabric f;
        struct bny_probe *p;
        make(&f, 4, 8, 2, 0.05, seed);
        p = probe(&f);
        cr_assert_eq(p->nlevels, 2, "seed %d: %d levels", (int)seed, p->nlevels);
        cr_assert(p->level[0].nclusters == 4 && p->level[1].nclusters == 1, "seed %d",
                  (int)seed);
        for (int v = 0; v < 32; v++)
            for (int w = 0; w < v; w++)
                cr_assert_eq(p->level[0].cluster[v] == p->level[0].cluster[w],
                             f.leaf[v] == f.leaf[w], "seed %d: ranks %d and %d", (int)seed, v,
                             w);
        for (int c = 0; c < 4; c++)
            cr_assert_float_eq(p->level[0].border_Bps[c], 2e9, 0.2e9,
                               "seed %d: border %d has %g", (int)seed, c,
                               p->level[0].border_Bps[c]);
        for (int v = 0; v < 32; v++)
            cr_assert_float_eq(p->port_Bps[v], 1e9, 0.1e9, "seed %d: rank %d has %g", (int)seed,
                               v, p->port_Bps[v]);
        bny_probe_free(p);
    }
}

Test(probe, full_borders_and_one_cluster_are_seen_as_such)
{
    struct fabric f;
    struct bny_probe *p;

    make(&f, 3, 4, 4, 0.05, 7);
    p = probe(&f);
    cr_assert(p->nlevels == 2 && p->level[0].nclusters == 3);
    for (int c = 0; c < 3; c++)
        cr_assert_float_eq(p->level[0].border_Bps[c], 4e9, 0.4e9, "%g",
                           p->level[0].border_Bps[c]);
    bny_probe_free(p);
    make(&f, 1, 9, 4, 0.05, 7);
    p = probe(&f);
    cr_assert(p->nlevels == 1 && p->level[0].nclusters == 1);
    bny_probe_free(p);
    make(&f, 2, 1, 1, 0.05, 7);
    p = probe(&f);
    cr_assert_eq(p->nlevels, 1, "two ranks are one cluster");
    bny_probe_free(p);
}

Test(probe, graph_has_the_measured_tree_and_survives_its_file)
{
    struct fabric f;
    struct bny_probe *p;
    struct bny_graph *g, *h;
    char *extra, *text;
    size_t len;
    FILE *m;

    make(&f, 4, 8, 2, 0.02, 3);
    p = probe(&f);
    cr_assert_eq(bny_probe_graph(&g, p), 0, "%s", banyan_last_error());
    cr_assert(g->nranks == 32 && g->nnodes == 37 && g->nlinks == 2 * 36);
    for (int l = 0; l < g->nlinks; l++) {
        int rank = g->nodes[g->links[l].from].rank >= 0 || g->nodes[g->links[l].to].rank >= 0;
        double want = rank ? 1000 : 2000;
        cr_assert_float_eq((double)g->links[l].cap * g->unit_Bps / 1e6, want, 0.06 * want);
        cr_assert_eq(g->links[l].cap, g->links[g->reverse[l]].cap);
        cr_assert_float_eq((double)g->links[l].lat_ns, 1000, 100, "%d",
                           (int)g->links[l].lat_ns);
    }
    m = open_memstream(&extra, &len);
    cr_assert_eq(bny_probe_json(p, m), 0);
    fclose(m);
    m = open_memstream(&text, &len);
    bny_graph_save(g, m, extra);
    fclose(m);
    cr_assert_eq(bny_graph_parse(&h, "probe.json", text, len), 0, "%s\n%s", banyan_last_error(),
                 text);
    cr_assert_eq(h->nlinks, g->nlinks);
    free(extra);
    free(text);
    bny_graph_free(g);
    bny_graph_free(h);
    bny_probe_free(p);
}

Test(probe, refuses_too_few_ranks)
{
    struct bny_probe_fabric fabric = { .n = 1, .run = run };
    struct bny_probe *p;

    cr_assert_eq(bny_probe_run(&p, &fabric), -BANYAN_EINVAL);
    cr_assert_null(p);
}
