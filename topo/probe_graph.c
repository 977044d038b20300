/* SPDX-License-Identifier: BSD-3-Clause */
/* The graph and the statistics of a probe (probe.h). */
#include <math.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/text.h"
#include "topo/gen.h"
#include "topo/probe.h"

/* Values this close belong to equal resources, within the accuracy of a measurement. */
#define ALIKE 1.1

#define UNIT_BPS 1e5 /* of capacities: fine enough for 10 Mbit/s */

/* In units, two significant digits, at least 1. */
static int64_t rounded(double Bps)
{
    double units = Bps / UNIT_BPS, digit = units > 10 ? pow(10, floor(log10(units)) - 1) : 1;

    return units < 1 ? 1 : (int64_t)(floor(units / digit + 0.5) * digit);
}

/* Each value becomes the rounded median of the run of similar ones that contains it. */
static int even_out(const double *Bps, int64_t *out, int n)
{
    int *order = malloc((size_t)n * sizeof *order);

    if (!order)
        return bny_fail(BANYAN_ENOMEM, "no memory for %d capacities", n);
    for (int i = 0; i < n; i++) {
        int k = i;
        for (; k > 0 && Bps[order[k - 1]] > Bps[i]; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
    for (int i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && Bps[order[end]] <= ALIKE * Bps[order[end - 1]];)
            end++;
        for (int k = i; k < end; k++)
            out[order[k]] = rounded(Bps[order[i + (end - i) / 2]]);
    }
    free(order);
    return 0;
}

struct tree {
    struct bny_graph *g;
    const struct bny_probe *p;
    int64_t *cap; /* scratch */
    int *node;    /* [n] the node that represents a rank so far: itself, then its clusters */
};

/* Half of this level's part of the latency between two ranks, as each passes the link once. */
static int64_t link_ns(const struct bny_probe *p, int l)
{
    double a = p->level[l].alpha.median - (l ? p->level[l - 1].alpha.median : 0);

    return a > 0 ? (int64_t)(a * 1e9 / 2) : 0;
}

/* Adds the switches of a level above their members. A cluster with one member is omitted. */
static int add_level(struct tree *t, int l)
{
    const struct bny_probe_level *k = &t->p->level[l];
    int n = l ? k[-1].nclusters : t->p->n,
        e = even_out(l ? k[-1].border_Bps : t->p->port_Bps, t->cap, n);

    for (int c = 0; c < k->nclusters && e >= 0; c++) {
        int v, first = 0, several = 0;
        char name[40];
        while (k->cluster[first] != c)
            first++;
        for (int r = first + 1; r < t->p->n; r++)
            several |= k->cluster[r] == c && t->node[r] != t->node[first];
        if (!several)
            continue;
        snprintf(name, sizeof name, "l%d.%d", l, c);
        e = v = bny_gen_switch(t->g, name, first, -1 - l, 0);
        for (int r = first; r < t->p->n && e >= 0; r++) {
            int below = t->node[r];
            if (k->cluster[r] != c || below == v)
                continue;
            e = bny_graph_both(t->g, below, v, t->cap[l ? k[-1].cluster[r] : r],
                               link_ns(t->p, l));
            for (int o = r; o < t->p->n; o++)
                t->node[o] = t->node[o] == below ? v : t->node[o];
        }
    }
    return e;
}

int bny_probe_graph(struct bny_graph **out, const struct bny_probe *p)
{
    struct tree t = { bny_graph_alloc("probe"), p, malloc((size_t)p->n * sizeof *t.cap),
                      malloc((size_t)p->n * sizeof *t.node) };
    int e = t.g && t.cap && t.node
                ? 0
                : bny_fail(BANYAN_ENOMEM, "no memory for a graph of %d ranks", p->n);

    *out = NULL;
    for (int r = 0; r < p->n && e >= 0; r++)
        e = t.node[r] = bny_gen_rank(t.g, p->host ? p->host[r] : r, r, 0, 0);
    for (int l = 0; l < p->nlevels && e >= 0; l++)
        e = add_level(&t, l);
    if (e >= 0) {
        t.g->unit_Bps = UNIT_BPS;
        e = bny_graph_freeze(t.g);
    }
    free(t.cap);
    free(t.node);
    if (e < 0) {
        bny_graph_free(t.g);
        return e;
    }
    *out = t.g;
    return 0;
}

static int probe_graph_by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;

    return (a > b) - (a < b);
}

static void write_stats(FILE *f, const char *name, double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, probe_graph_by_value);
    bny_fprintf(f, "\"%s\": {\"min\": %.4g, \"median\": %.4g, \"p95\": %.4g}", name, v[0] / 1e9,
                v[n / 2] / 1e9, v[(int)(0.95 * (n - 1) + 0.5)] / 1e9);
}

int bny_probe_json(const struct bny_probe *p, FILE *f)
{
    double *v = malloc((size_t)p->n * (size_t)p->n * sizeof *v);
    int n = 0;

    if (!v)
        return bny_fail(BANYAN_ENOMEM, "no memory for the statistics of %d ranks", p->n);
    for (int a = 0; a < p->n; a++)
        for (int b = 0; b < a; b++)
            v[n++] = p->Bps[a * p->n + b];
    fprintf(f, ", \"probe\": {");
    write_stats(f, "pair_GBps", v, n);
    for (n = 0; n < p->n; n++)
        v[n] = p->port_Bps[n];
    fprintf(f, ", ");
    write_stats(f, "port_GBps", v, n);
    fprintf(f, ", \"levels\": [");
    for (int l = 0; l < p->nlevels; l++) {
        const struct bny_probe_level *k = &p->level[l];
        bny_fprintf(f,
                    "%s\n {\"clusters\": %d, \"alpha_us\": {\"min\": %.4g, \"median\": %.4g, "
                    "\"p95\": %.4g}",
                    l ? "," : "", k->nclusters, k->alpha.min * 1e6, k->alpha.median * 1e6,
                    k->alpha.p95 * 1e6);
        for (n = 0; n < k->nclusters; n++)
            v[n] = k->border_Bps[n];
        fprintf(f, ", ");
        write_stats(f, "border_GBps", v, n);
        fprintf(f, "}");
    }
    fprintf(f, "]}");
    free(v);
    return 0;
}
