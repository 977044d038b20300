/* SPDX-License-Identifier: BSD-3-Clause */
/* Measuring a cluster (probe.h): tournament, then borders. */
#include "topo/probe.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* The sum over more pairs counts as grown by this factor. */
#define GROWN 1.1

int bny_probe_round(int n, int r, int *a, int *b)
{
    int m = n + (n & 1), pairs = 0; /* odd: the last rank pauses */

    for (int i = 0; i < m / 2; i++) {
        /* Circle method: m - 1 stays, the others rotate. */
        int x = i ? (r + i) % (m - 1) : m - 1, y = (r + m - 1 - i) % (m - 1);
        if (x >= n || y >= n)
            continue;
        a[pairs] = x < y ? x : y;
        b[pairs++] = x < y ? y : x;
    }
    return pairs;
}

struct work {
    const struct bny_probe_fabric *f;
    struct bny_probe *p;
    int *a, *b;
    double *t, *t2, *sort;
};

static int probe_by_value(const void *x, const void *y)
{
    double p = *(const double *)x, q = *(const double *)y;

    return (p > q) - (p < q);
}

static struct bny_probe_stats stats(double *v, int n)
{
    struct bny_probe_stats s = { 0, 0, 0 };

    if (!n)
        return s;
    qsort(v, (size_t)n, sizeof *v, probe_by_value);
    s.min = v[0];
    s.median = v[n / 2];
    s.p95 = v[(int)(0.95 * (n - 1) + 0.5)];
    return s;
}

/* Bytes per second from the times of two sizes; if noise hides the difference, from the larger
 * one. */
static double rate(const struct bny_probe_fabric *f, double middle, double large)
{
    double d = large - middle;

    if (d > 0.2 * large)
        return (double)(f->large - f->middle) / d;
    return large > 0 ? (double)f->large / large : 0;
}

static int tournament(struct work *w)
{
    struct bny_probe *p = w->p;
    int n = p->n, e = 0;

    for (int r = 0; r < n - 1 + (n & 1) && !e; r++) {
        int pairs = bny_probe_round(n, r, w->a, w->b);
        e = w->f->run(w->f->ctx, w->a, w->b, pairs, w->f->small, 1, w->t);
        for (int i = 0; i < pairs && !e; i++)
            p->alpha[w->a[i] * n + w->b[i]] = p->alpha[w->b[i] * n + w->a[i]] = w->t[i];
        if (!e)
            e = w->f->run(w->f->ctx, w->a, w->b, pairs, w->f->middle, 0, w->t);
        if (!e)
            e = w->f->run(w->f->ctx, w->a, w->b, pairs, w->f->large, 0, w->t2);
        for (int i = 0; i < pairs && !e; i++)
            p->Bps[w->a[i] * n + w->b[i]] = p->Bps[w->b[i] * n + w->a[i]] =
                rate(w->f, w->t[i], w->t2[i]);
    }
    return e;
}

/* The smallest level at which two ranks are in one cluster. */
static int probe_meet(const struct bny_probe *p, int v, int w)
{
    int l = 0;

    while (l < p->nlevels - 1 && p->level[l].cluster[v] != p->level[l].cluster[w])
        l++;
    return l;
}

/* A rank's port: the upper median of its rates to the ranks of its finest cluster (to all, if
 * it is alone there), whose paths are the least shared. */
static void ports(struct work *w)
{
    struct bny_probe *p = w->p;

    for (int v = 0; v < p->n; v++) {
        int k = 0;
        for (int lowest = 0; !k && lowest < p->nlevels; lowest++)
            for (int o = 0; o < p->n; o++)
                if (o != v && probe_meet(p, v, o) == lowest)
                    w->sort[k++] = p->Bps[v * p->n + o];
        if (k)
            qsort(w->sort, (size_t)k, sizeof *w->sort, probe_by_value);
        p->port_Bps[v] = k ? w->sort[k * 3 / 4 < k ? k * 3 / 4 : k - 1] : 0;
    }
}

/* g pairs leaving cluster c of that level, with partners distributed over the other clusters
 * below the same parent. */
static int cross_pairs(struct work *w, int level, int c)
{
    const struct bny_probe_level *l = &w->p->level[level], *up = l + 1;
    int in = 0, out = 0, n = w->p->n, parent = -1;

    for (int v = 0; v < n; v++)
        if (l->cluster[v] == c) {
            w->a[in++] = v;
            parent = up->cluster[v];
        }
    /* The k-th ranks of all the other clusters, then the next ones. */
    for (int k = 0, more = 1; more && out < in; k++) {
        more = 0;
        for (int o = 0; o < l->nclusters && out < in; o++) {
            int seen = 0;
            for (int v = 0; o != c && v < n; v++) {
                if (l->cluster[v] != o || up->cluster[v] != parent || seen++ != k)
                    continue;
                w->b[out++] = v;
                more = 1;
                break;
            }
        }
    }
    return out < in ? out : in;
}

static int border(struct work *w, int level, int c, double *Bps)
{
    int most = cross_pairs(w, level, c), e = 0;
    double best = 0;

    for (int g = 1; most && !e;) {
        double sum = 0;
        e = w->f->run(w->f->ctx, w->a, w->b, g, w->f->middle, 0, w->t);
        if (!e)
            e = w->f->run(w->f->ctx, w->a, w->b, g, w->f->large, 0, w->t2);
        for (int i = 0; i < g && !e; i++)
            sum += rate(w->f, w->t[i], w->t2[i]);
        if (sum < GROWN * best || g == most) {
            /* Two measurements of a full border: their mean has less noise than their
             * maximum. */
            best = sum > GROWN * best || best == 0 ? sum : (sum + best) / 2;
            break;
        }
        best = sum;
        g = 2 * g < most ? 2 * g : most;
    }
    *Bps = best;
    return e;
}

static int borders(struct work *w)
{
    int e = 0;

    for (int l = 0; l < w->p->nlevels && !e; l++) {
        struct bny_probe_level *k = &w->p->level[l];
        int n = 0;
        k->border_Bps = calloc((size_t)k->nclusters, sizeof *k->border_Bps);
        if (!k->border_Bps)
            return bny_fail(BANYAN_ENOMEM, "no memory for %d clusters", k->nclusters);
        for (int c = 0; c < k->nclusters && l < w->p->nlevels - 1 && !e; c++)
            e = border(w, l, c, &k->border_Bps[c]);
        for (int v = 0; v < w->p->n; v++)
            for (int o = 0; o < v; o++)
                if (probe_meet(w->p, v, o) == l)
                    w->sort[n++] = w->p->alpha[v * w->p->n + o];
        k->alpha = stats(w->sort, n);
    }
    return e;
}

static int work(struct work *w)
{
    int e = tournament(w);

    if (!e)
        e = bny_probe_cluster(w->p);
    if (e)
        return e;
    ports(w);
    return borders(w);
}

int bny_probe_run(struct bny_probe **out, const struct bny_probe_fabric *f)
{
    size_t n = (size_t)f->n;
    struct bny_probe *p;
    struct work w = { .f = f };
    int e;

    *out = NULL;
    if (f->n < 2 || f->n > BNY_PROBE_RANKS_MAX)
        return bny_fail(BANYAN_EINVAL, "probing needs 2 to %d ranks, there are %d",
                        BNY_PROBE_RANKS_MAX, f->n);
    w.p = p = calloc(1, sizeof *p);
    if (!p)
        return bny_fail(BANYAN_ENOMEM, "no memory to probe %d ranks", f->n);
    p->n = f->n;
    p->host = f->host;
    p->alpha = calloc(n * n, sizeof *p->alpha);
    p->Bps = calloc(n * n, sizeof *p->Bps);
    p->port_Bps = calloc(n, sizeof *p->port_Bps);
    w.a = calloc(n, sizeof *w.a);
    w.b = calloc(n, sizeof *w.b);
    w.t = calloc(n, sizeof *w.t);
    w.t2 = calloc(n, sizeof *w.t2);
    w.sort = calloc(n * n, sizeof *w.sort);
    if (p->alpha && p->Bps && p->port_Bps && w.a && w.b && w.t && w.t2 && w.sort)
        e = work(&w);
    else
        e = bny_fail(BANYAN_ENOMEM, "no memory to probe %d ranks", f->n);
    free(w.a);
    free(w.b);
    free(w.t);
    free(w.t2);
    free(w.sort);
    if (e)
        bny_probe_free(p);
    else
        *out = p;
    return e;
}

void bny_probe_free(struct bny_probe *p)
{
    if (!p)
        return;
    for (int l = 0; l < BNY_PROBE_LEVELS_MAX; l++) {
        free(p->level[l].cluster);
        free(p->level[l].border_Bps);
    }
    free(p->alpha);
    free(p->Bps);
    free(p->port_Bps);
    free(p);
}
