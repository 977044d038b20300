/* SPDX-License-Identifier: BSD-3-Clause */
/* The network's arithmetic, an example at a time. */
#include "network.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int network_init(struct network *net, uint64_t seed)
{
    size_t at = 0;

    for (int l = 0; l < net->nlayers; l++) {
        net->weights[l] = at;
        at += (size_t)net->width[l] * (size_t)net->width[l + 1];
    }
    for (int l = 0; l < net->nlayers; l++) {
        net->biases[l] = at;
        at += (size_t)net->width[l + 1];
    }
    net->n = at;
    net->param = calloc(at, sizeof(float));
    if (!net->param)
        return -1;
    for (int l = 0; l < net->nlayers; l++) {
        float range = sqrtf(6.0f / (float)net->width[l]);
        size_t n = (size_t)net->width[l] * (size_t)net->width[l + 1];

        for (size_t i = 0; i < n; i++)
            net->param[net->weights[l] + i] = range * random_unit(&seed);
    }
    return 0;
}

/* One layer: out = bias + in w. */
static void apply(const struct network *net, int l, const float *in, float *out)
{
    int n = net->width[l + 1];
    const float *w = net->param + net->weights[l];

    memcpy(out, net->param + net->biases[l], (size_t)n * sizeof *out);
    for (int i = 0; i < net->width[l]; i++, w += n)
        if (in[i] != 0)
            for (int o = 0; o < n; o++)
                out[o] += in[i] * w[o];
}

/* out[l] is what layer l gives, after ReLU; the last is before softmax. */
static void forward(const struct network *net, const struct example *e, float (*out)[WIDTH_MAX])
{
    for (int l = 0; l < net->nlayers; l++) {
        apply(net, l, l ? out[l - 1] : e->x, out[l]);
        for (int o = 0; l + 1 < net->nlayers && o < net->width[l + 1]; o++)
            out[l][o] = out[l][o] > 0 ? out[l][o] : 0;
    }
}

static void softmax(float *v)
{
    float top = -INFINITY, sum = 0;

    for (int c = 0; c < CLASSES; c++)
        top = v[c] > top ? v[c] : top;
    for (int c = 0; c < CLASSES; c++)
        sum += v[c] = expf(v[c] - top);
    for (int c = 0; c < CLASSES; c++)
        v[c] /= sum;
}

/* In lanes, which compilers make vectors of. */
static float dot(const float *a, const float *b, int n)
{
    float lane[16] = { 0 }, sum = 0;
    int i = 0;

    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++)
            lane[k] += a[i + k] * b[i + k];
    for (int k = 0; k < 16; k++)
        sum += lane[k];
    for (; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* delta: the loss's derivative by what layer l gives; in: what it got. Fills below with that by
 * in, where ReLU let it pass. */
static void back(const struct network *net, int l, const float *in, const float *delta,
                 float *below, float *grad)
{
    int n = net->width[l + 1];
    const float *w = net->param + net->weights[l];
    float *g = grad + net->weights[l], *bias = grad + net->biases[l];

    for (int o = 0; o < n; o++)
        bias[o] += delta[o];
    for (int i = 0; i < net->width[l]; i++, w += n, g += n) {
        below[i] = 0;
        if (in[i] == 0)
            continue;
        for (int o = 0; o < n; o++)
            g[o] += in[i] * delta[o];
        if (l > 0)
            below[i] = dot(w, delta, n);
    }
}

float network_gradient(const struct network *net, const struct example *e, float *grad)
{
    float out[LAYERS_MAX][WIDTH_MAX], two[2][WIDTH_MAX];
    float *delta = out[net->nlayers - 1], loss;

    forward(net, e, out);
    softmax(delta);
    loss = -logf(delta[e->label] < 1e-30f ? 1e-30f : delta[e->label]); /* NaN stays NaN */
    delta[e->label] -= 1;
    for (int l = net->nlayers - 1; l >= 0; l--) {
        back(net, l, l ? out[l - 1] : e->x, delta, two[l & 1], grad);
        delta = two[l & 1];
    }
    return loss;
}

int network_predict(const struct network *net, const struct example *e)
{
    float out[LAYERS_MAX][WIDTH_MAX];
    const float *v = out[net->nlayers - 1];
    int best = 0;

    forward(net, e, out);
    for (int c = 1; c < CLASSES; c++)
        best = v[c] > v[best] ? c : best;
    return best;
}
