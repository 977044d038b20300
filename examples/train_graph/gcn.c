/* SPDX-License-Identifier: BSD-3-Clause */
/* Graph convolutions, forward and back. */
#include "gcn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Where the parts of param lie. */
static size_t bias0(const struct gcn *m)
{
    return (size_t)FEATURES * (size_t)m->hidden;
}

static size_t weight1(const struct gcn *m)
{
    return bias0(m) + (size_t)m->hidden;
}

static size_t bias1(const struct gcn *m)
{
    return weight1(m) + (size_t)m->hidden * CLASSES;
}

static float *rows(int n, int width)
{
    return calloc((size_t)n * (size_t)width + 1, sizeof(float));
}

int gcn_init(struct gcn *m, const struct graph *g, const struct part *p, int hidden,
             uint64_t seed)
{
    uint64_t state = seed + 77;

    memset(m, 0, sizeof *m);
    m->graph = g;
    m->part = p;
    m->hidden = hidden;
    m->n = bias1(m) + CLASSES;
    m->param = calloc(m->n, sizeof *m->param);
    m->ax = rows(p->own, FEATURES);
    m->h = rows(p->own, hidden);
    m->remote = rows(p->halo, hidden);
    m->mixed = rows(p->own, hidden);
    m->z = rows(p->own, CLASSES);
    m->dh = rows(p->own, hidden);
    m->dremote = rows(p->halo, hidden);
    if (!m->param || !m->ax || !m->h || !m->remote || !m->mixed || !m->z || !m->dh ||
        !m->dremote)
        return -1;
    for (size_t i = 0; i < bias1(m); i++) {
        float range =
            sqrtf(6.0f / (float)(i < bias0(m) ? FEATURES + hidden : hidden + CLASSES));

        state = state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
        if (i < bias0(m) || i >= weight1(m))
            m->param[i] = range * ((float)(state >> 40) * 0x1p-23f - 1);
    }
    for (int v = 0; v < p->own; v++)
        for (int e = p->first[v]; e < p->first[v + 1]; e++) {
            int c = p->to[e], node = c < p->own ? p->begin + c : p->node[c - p->own];

            for (int f = 0; f < FEATURES; f++)
                m->ax[v * FEATURES + f] += p->weight[e] * g->x[node * FEATURES + f];
        }
    return 0;
}

void gcn_free(struct gcn *m)
{
    free(m->param);
    free(m->ax);
    free(m->h);
    free(m->remote);
    free(m->mixed);
    free(m->z);
    free(m->dh);
    free(m->dremote);
}

/* out = bias + x w, of n rows. */
static void apply(float *out, const float *x, const float *w, const float *bias, int n, int in,
                  int width)
{
    for (int v = 0; v < n; v++, x += in, out += width) {
        memcpy(out, bias, (size_t)width * sizeof *out);
        for (int i = 0; i < in; i++)
            for (int o = 0; o < width && x[i] != 0; o++)
                out[o] += x[i] * w[i * width + o];
    }
}

/* Gradients of w and bias by the derivative d of what apply() gave; below, if wanted: by x. */
static void back(float *gw, float *gbias, float *below, const float *x, const float *d,
                 const float *w, int n, int in, int width)
{
    for (int v = 0; v < n; v++, x += in, d += width) {
        for (int o = 0; o < width; o++)
            gbias[o] += d[o];
        for (int i = 0; i < in; i++) {
            float sum = 0;

            for (int o = 0; o < width; o++) {
                gw[i * width + o] += x[i] * d[o];
                sum += w[i * width + o] * d[o];
            }
            if (below)
                below[v * in + i] = sum;
        }
    }
}

void gcn_first(struct gcn *m)
{
    size_t n = (size_t)m->part->own * (size_t)m->hidden;

    apply(m->h, m->ax, m->param, m->param + bias0(m), m->part->own, FEATURES, m->hidden);
    for (size_t i = 0; i < n; i++)
        m->h[i] = m->h[i] > 0 ? m->h[i] : 0;
}

/* z becomes the loss's derivative by it. */
static double softmax(float *z, int label)
{
    double sum = 0, top = -INFINITY, p;

    for (int c = 0; c < CLASSES; c++)
        top = (double)z[c] > top ? (double)z[c] : top;
    for (int c = 0; c < CLASSES; c++)
        sum += exp((double)z[c] - top);
    p = exp((double)z[label] - top) / sum;
    for (int c = 0; c < CLASSES; c++)
        z[c] = (float)(exp((double)z[c] - top) / sum) - (float)(c == label);
    return -log(p > 1e-30 ? p : 1e-30);
}

static int best(const float *z)
{
    int c = 0;

    for (int k = 1; k < CLASSES; k++)
        c = z[k] > z[c] ? k : c;
    return c;
}

void gcn_second(struct gcn *m, double *loss, int64_t *counts)
{
    const struct part *p = m->part;

    memset(m->mixed, 0, (size_t)p->own * (size_t)m->hidden * sizeof *m->mixed);
    for (int v = 0; v < p->own; v++)
        for (int e = p->first[v]; e < p->first[v + 1]; e++) {
            int c = p->to[e];
            const float *from =
                c < p->own ? m->h + c * m->hidden : m->remote + (c - p->own) * m->hidden;

            for (int i = 0; i < m->hidden; i++)
                m->mixed[v * m->hidden + i] += p->weight[e] * from[i];
        }
    apply(m->z, m->mixed, m->param + weight1(m), m->param + bias1(m), p->own, m->hidden,
          CLASSES);
    for (int v = 0; v < p->own; v++) {
        float *z = m->z + v * CLASSES;
        int label = m->graph->label[p->begin + v], trained = m->graph->train[p->begin + v];

        counts[0] += !trained;
        counts[1] += !trained && best(z) == label;
        if (trained)
            *loss += softmax(z, label);
        else
            memset(z, 0, CLASSES * sizeof *z);
    }
}

void gcn_back_second(struct gcn *m, float scale, float *grad)
{
    const struct part *p = m->part;
    size_t width = (size_t)m->hidden;

    for (int i = 0; i < p->own * CLASSES; i++)
        m->z[i] *= scale;
    /* mixed is used up: its own derivative takes its place, row by row */
    memset(m->dh, 0, (size_t)p->own * width * sizeof *m->dh);
    memset(m->dremote, 0, (size_t)p->halo * width * sizeof *m->dremote);
    back(grad + weight1(m), grad + bias1(m), m->mixed, m->mixed, m->z, m->param + weight1(m),
         p->own, m->hidden, CLASSES);
    for (int v = 0; v < p->own; v++)
        for (int e = p->first[v]; e < p->first[v + 1]; e++) {
            int c = p->to[e];
            float *into =
                c < p->own ? m->dh + c * m->hidden : m->dremote + (c - p->own) * m->hidden;

            for (int i = 0; i < m->hidden; i++)
                into[i] += p->weight[e] * m->mixed[v * m->hidden + i];
        }
}

void gcn_add(struct gcn *m, const float *came)
{
    for (size_t k = 0; k < m->part->sends; k++)
        for (int i = 0; i < m->hidden; i++)
            m->dh[(int)m->part->send_rows[k] * m->hidden + i] += *came++;
}

void gcn_back_first(struct gcn *m, float *grad)
{
    size_t n = (size_t)m->part->own * (size_t)m->hidden;

    for (size_t i = 0; i < n; i++)
        m->dh[i] = m->h[i] > 0 ? m->dh[i] : 0;
    back(grad, grad + bias0(m), NULL, m->ax, m->dh, m->param, m->part->own, FEATURES,
         m->hidden);
}
