/* SPDX-License-Identifier: BSD-3-Clause */
/* A stochastic block model, and its parts. */
#include "graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t next(uint64_t *state) /* splitmix64 */
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double unit(uint64_t *state)
{
    return (double)(next(state) >> 11) * 0x1p-53;
}

/* Box and Muller; of two numbers one is used. */
static double gaussian(uint64_t *state)
{
    double u = 1 - unit(state), v = unit(state);

    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static int labels(struct graph *g, int mixed, uint64_t *state)
{
    for (int v = 0; v < g->n; v++)
        g->label[v] = (int)((long)v * CLASSES / g->n);
    for (int v = g->n - 1; v > 0 && mixed; v--) {
        int w = (int)(unit(state) * (v + 1)), keep = g->label[v];

        g->label[v] = g->label[w];
        g->label[w] = keep;
    }
    for (int v = 0; v < g->n; v++)
        g->train[v] = unit(state) < 0.1;
    return 0;
}

/* Every pair is an edge by the chance that its communities give. Twice with the same numbers:
 * to count, and to fill. */
static int edges(struct graph *g, double inside, double outside, uint64_t seed)
{
    double p = inside * CLASSES / g->n, q = outside * CLASSES / (g->n * (CLASSES - 1.0));
    int *at = calloc((size_t)g->n + 1, sizeof *at);

    if (!at)
        return -1;
    for (int fill = 0; fill < 2; fill++) {
        uint64_t state = seed;

        for (int v = 0; v < g->n; v++)
            for (int w = v + 1; w < g->n; w++) {
                if (unit(&state) >= (g->label[v] == g->label[w] ? p : q))
                    continue;
                if (fill) {
                    g->to[at[v]++] = w;
                    g->to[at[w]++] = v;
                } else {
                    g->first[v + 1]++;
                    g->first[w + 1]++;
                }
            }
        if (fill)
            break;
        for (int v = 0; v < g->n; v++) {
            g->first[v + 1] += g->first[v];
            at[v] = g->first[v];
        }
        g->to = malloc(((size_t)g->first[g->n] + 1) * sizeof *g->to);
        if (!g->to)
            break;
    }
    free(at);
    return g->to ? 0 : -1;
}

int graph_make(struct graph *g, int n, double inside, double outside, double noise, int mixed,
               uint64_t seed)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15u;
    float mean[CLASSES][FEATURES];

    memset(g, 0, sizeof *g);
    g->n = n;
    g->first = calloc((size_t)n + 1, sizeof *g->first);
    g->label = malloc((size_t)n * sizeof *g->label);
    g->train = malloc((size_t)n);
    g->x = malloc((size_t)n * FEATURES * sizeof *g->x);
    if (!g->first || !g->label || !g->train || !g->x || labels(g, mixed, &state) < 0 ||
        edges(g, inside, outside, next(&state)) < 0)
        return -1;
    for (int c = 0; c < CLASSES; c++)
        for (int f = 0; f < FEATURES; f++)
            mean[c][f] = (float)gaussian(&state);
    for (int v = 0; v < n; v++)
        for (int f = 0; f < FEATURES; f++)
            g->x[v * FEATURES + f] = mean[g->label[v]][f] + (float)(noise * gaussian(&state));
    return 0;
}

void graph_free(struct graph *g)
{
    free(g->first);
    free(g->to);
    free(g->label);
    free(g->train);
    free(g->x);
}

/* ---- parts ---- */

static int begin_of(const struct graph *g, int rank, int ranks)
{
    return (int)((long)g->n * rank / ranks);
}

/* Marks the nodes that rank `whose` needs of others: its halo. */
static void mark(const struct graph *g, int whose, int ranks, unsigned char *needed)
{
    int begin = begin_of(g, whose, ranks), end = begin_of(g, whose + 1, ranks);

    memset(needed, 0, (size_t)g->n);
    for (int e = g->first[begin]; e < g->first[end]; e++)
        if (g->to[e] < begin || g->to[e] >= end)
            needed[g->to[e]] = 1;
}

static void halo(struct part *p, const struct graph *g, int rank, int ranks,
                 unsigned char *needed)
{
    mark(g, rank, ranks, needed);
    for (int q = 0; q < ranks; q++)
        for (int v = begin_of(g, q, ranks); v < begin_of(g, q + 1, ranks); v++)
            if (needed[v]) {
                p->node[p->halo++] = v;
                p->recv_counts[q]++;
            }
    for (int q = 0; q < ranks; q++) {
        mark(g, q, ranks, needed);
        for (int v = p->begin; v < p->end && q != rank; v++)
            if (needed[v]) {
                p->send_rows[p->sends++] = (uint32_t)(v - p->begin);
                p->send_counts[q]++;
            }
    }
}

static void columns(struct part *p, const struct graph *g, int *column)
{
    int at = 0;

    for (int k = 0; k < p->halo; k++)
        column[p->node[k]] = p->own + k;
    for (int v = p->begin; v < p->end; v++)
        column[v] = v - p->begin;
    for (int v = p->begin; v < p->end; v++) {
        double own = g->first[v + 1] - g->first[v] + 1;

        p->weight[at] = (float)(1 / own);
        p->to[at++] = v - p->begin;
        for (int e = g->first[v]; e < g->first[v + 1]; e++) {
            int w = g->to[e];

            p->weight[at] = (float)(1 / sqrt(own * (g->first[w + 1] - g->first[w] + 1)));
            p->to[at++] = column[w];
        }
        p->first[v - p->begin + 1] = at;
    }
}

int part_make(struct part *p, const struct graph *g, int rank, int ranks)
{
    size_t n = (size_t)g->n, entries = (size_t)g->first[g->n] + n;
    unsigned char *needed = malloc(n);
    int *column = malloc(n * sizeof *column);

    memset(p, 0, sizeof *p);
    p->begin = begin_of(g, rank, ranks);
    p->end = begin_of(g, rank + 1, ranks);
    p->own = p->end - p->begin;
    p->node = malloc(n * sizeof *p->node);
    p->first = calloc((size_t)p->own + 1, sizeof *p->first);
    p->to = malloc(entries * sizeof *p->to);
    p->weight = malloc(entries * sizeof *p->weight);
    p->send_counts = calloc((size_t)ranks, sizeof *p->send_counts);
    p->recv_counts = calloc((size_t)ranks, sizeof *p->recv_counts);
    p->send_rows = malloc((size_t)p->own * (size_t)ranks * sizeof *p->send_rows + 1);
    if (needed && column && p->node && p->first && p->to && p->weight && p->send_counts &&
        p->recv_counts && p->send_rows) {
        halo(p, g, rank, ranks, needed);
        columns(p, g, column);
    }
    free(needed);
    free(column);
    return p->first && p->first[p->own] ? 0 : -1;
}

void part_free(struct part *p)
{
    free(p->node);
    free(p->first);
    free(p->to);
    free(p->weight);
    free(p->send_counts);
    free(p->recv_counts);
    free(p->send_rows);
}
