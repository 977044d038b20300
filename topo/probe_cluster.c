/* SPDX-License-Identifier: BSD-3-Clause */
/* Clusters of ranks by latency (probe.h): single linkage, cut at jumps of the merging
 * latency. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/probe.h"

/* A level ends if the next merge costs this much more: above noise, below the cost of a
 * switch. */
#define GAP 1.3
/* Levels whose clusters are not clearly separate are dropped: mean silhouette (Rousseeuw
 * 1987). */
#define SILHOUETTE_MIN 0.2

struct merge {
    double alpha;
    int a, b;
};

static int by_alpha(const void *x, const void *y)
{
    const struct merge *p = x, *q = y;

    return (p->alpha > q->alpha) - (p->alpha < q->alpha);
}

/* Prim's minimum spanning tree: its edges in order of length are the merges of single linkage.
 */
static void spanning_tree(const struct bny_probe *p, struct merge *m, double *near, int *to)
{
    for (int v = 0; v < p->n; v++) {
        near[v] = p->alpha[v];
        to[v] = 0;
    }
    near[0] = -1; /* in the tree */
    for (int i = 0; i < p->n - 1; i++) {
        int best = -1;
        for (int v = 0; v < p->n; v++)
            if (near[v] >= 0 && (best < 0 || near[v] < near[best]))
                best = v;
        m[i] = (struct merge){ near[best], to[best], best };
        near[best] = -1;
        for (int v = 0; v < p->n; v++)
            if (near[v] > p->alpha[best * p->n + v]) {
                near[v] = p->alpha[best * p->n + v];
                to[v] = best;
            }
    }
    qsort(m, (size_t)p->n - 1, sizeof *m, by_alpha);
}

static int probe_cluster_find(int *parent, int v)
{
    while (parent[v] != v)
        v = parent[v] = parent[parent[v]];
    return v;
}

/* Clusters after the first `merges` merges, numbered by their first rank. */
static int clusters(const struct bny_probe *p, const struct merge *m, int merges, int *cluster,
                    int *parent)
{
    int n = 0;

    for (int v = 0; v < p->n; v++)
        parent[v] = v;
    for (int i = 0; i < merges; i++) {
        int a = probe_cluster_find(parent, m[i].a), b = probe_cluster_find(parent, m[i].b);
        parent[a > b ? a : b] = a > b ? b : a;
    }
    for (int v = 0; v < p->n; v++)
        cluster[v] =
            probe_cluster_find(parent, v) == v ? n++ : cluster[probe_cluster_find(parent, v)];
    return n;
}

/* Of one rank: (b - a) / max(a, b), where a is its mean latency within its cluster and b that
 * to the nearest other. */
static double silhouette(const struct bny_probe *p, const int *cluster, int n, double *sum,
                         int *count, int v)
{
    double a, b = -1;

    memset(sum, 0, (size_t)n * sizeof *sum);
    memset(count, 0, (size_t)n * sizeof *count);
    for (int w = 0; w < p->n; w++)
        if (w != v) {
            sum[cluster[w]] += p->alpha[v * p->n + w];
            count[cluster[w]]++;
        }
    if (!count[cluster[v]])
        return 0;
    a = sum[cluster[v]] / count[cluster[v]];
    for (int c = 0; c < n; c++)
        if (c != cluster[v] && count[c] && (b < 0 || sum[c] / count[c] < b))
            b = sum[c] / count[c];
    return b < 0 || (a <= 0 && b <= 0) ? 0 : (b - a) / (a > b ? a : b);
}

static int keep_level(struct bny_probe *p, const struct merge *m, int merges, int *scratch,
                      double *sum)
{
    struct bny_probe_level *l = &p->level[p->nlevels];
    double mean = 0;

    l->cluster = malloc((size_t)p->n * sizeof *l->cluster);
    if (!l->cluster)
        return bny_fail(BANYAN_ENOMEM, "no memory for clusters of %d ranks", p->n);
    l->nclusters = clusters(p, m, merges, l->cluster, scratch);
    for (int v = 0; v < p->n; v++)
        mean += silhouette(p, l->cluster, l->nclusters, sum, scratch, v) / p->n;
    if (l->nclusters > 1 && mean < SILHOUETTE_MIN) {
        free(l->cluster);
        l->cluster = NULL;
        return 0;
    }
    p->nlevels++;
    return 0;
}

int bny_probe_cluster(struct bny_probe *p)
{
    struct merge *m = malloc((size_t)p->n * sizeof *m);
    double *near = malloc((size_t)p->n * sizeof *near);
    int *scratch = malloc((size_t)p->n * sizeof *scratch), e = 0;

    p->nlevels = 0;
    if (!m || !near || !scratch)
        e = bny_fail(BANYAN_ENOMEM, "no memory for clusters of %d ranks", p->n);
    if (!e)
        spanning_tree(p, m, near, scratch);
    for (int i = 1; !e && i < p->n - 1 && p->nlevels < BNY_PROBE_LEVELS_MAX - 1; i++)
        if (m[i].alpha > GAP * m[i - 1].alpha)
            e = keep_level(p, m, i, scratch, near);
    if (!e)
        e = keep_level(p, m, p->n - 1, scratch, near);
    free(m);
    free(near);
    free(scratch);
    return e;
}
