/* SPDX-License-Identifier: BSD-3-Clause */
/* The data file, and a 64-32-10 network with ReLU and softmax. */
#include "digits.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse_line(char *line, struct image *im)
{
    char *p = line, *end;

    for (int i = 0; i <= PIXELS; i++) {
        long v = strtol(p, &end, 10);

        if (end == p || v < 0 || v > (i < PIXELS ? 16 : CLASSES - 1))
            return -1;
        if (i < PIXELS)
            im->pixel[i] = (float)v / 16;
        else
            im->label = (int)v;
        p = end + (*end == ',');
    }
    return 0;
}

int digits_load(const char *path, struct image **out)
{
    FILE *f = fopen(path, "r");
    struct image *all = NULL;
    char line[1024];
    int n = 0, cap = 0;

    if (!f) {
        fprintf(stderr, "train_digits: cannot open %s: %s; name the file with --data\n", path,
                strerror(errno));
        return -1;
    }
    while (fgets(line, sizeof line, f)) {
        if (n == cap) {
            struct image *more = realloc(all, (size_t)(cap += 1024) * sizeof *all);

            if (!more)
                goto fail;
            all = more;
        }
        if (parse_line(line, &all[n]) != 0) {
            fprintf(stderr, "train_digits: %s:%d: not 64 pixels (0-16) and a digit\n", path,
                    n + 1);
            goto fail;
        }
        n++;
    }
    fclose(f);
    *out = all;
    return n;

fail:
    fclose(f);
    free(all);
    return -1;
}

uint64_t digits_random(uint64_t *state, uint64_t n)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % n;
}

static void init_layer(float *w, size_t n, size_t inputs, uint64_t *state)
{
    float range = sqrtf(6.0f / (float)inputs);

    for (size_t i = 0; i < n; i++)
        w[i] = range * ((float)digits_random(state, 1 << 24) / (1 << 23) - 1);
}

void network_init(struct network *net, uint64_t seed)
{
    memset(net, 0, sizeof *net);
    init_layer(&net->w1[0][0], HIDDEN * PIXELS, PIXELS, &seed);
    init_layer(&net->w2[0][0], CLASSES * HIDDEN, HIDDEN, &seed);
}

/* hidden[] after ReLU, prob[] after softmax. */
static void forward(const struct network *net, const struct image *im, float *hidden,
                    float *prob)
{
    float top = -INFINITY, sum = 0;

    for (int h = 0; h < HIDDEN; h++) {
        float a = net->b1[h];

        for (int i = 0; i < PIXELS; i++)
            a += net->w1[h][i] * im->pixel[i];
        hidden[h] = a > 0 ? a : 0;
    }
    for (int c = 0; c < CLASSES; c++) {
        prob[c] = net->b2[c];
        for (int h = 0; h < HIDDEN; h++)
            prob[c] += net->w2[c][h] * hidden[h];
        top = prob[c] > top ? prob[c] : top;
    }
    for (int c = 0; c < CLASSES; c++)
        sum += prob[c] = expf(prob[c] - top);
    for (int c = 0; c < CLASSES; c++)
        prob[c] /= sum;
}

float network_gradient(const struct network *net, const struct image *im, struct network *grad)
{
    float hidden[HIDDEN], prob[CLASSES], back[HIDDEN] = { 0 }, loss;

    forward(net, im, hidden, prob);
    loss = -logf(prob[im->label] > 1e-30f ? prob[im->label] : 1e-30f);
    for (int c = 0; c < CLASSES; c++) {
        float d = prob[c] - (c == im->label);

        grad->b2[c] += d;
        for (int h = 0; h < HIDDEN; h++) {
            grad->w2[c][h] += d * hidden[h];
            back[h] += d * net->w2[c][h];
        }
    }
    for (int h = 0; h < HIDDEN; h++) {
        if (hidden[h] <= 0)
            continue;
        grad->b1[h] += back[h];
        for (int i = 0; i < PIXELS; i++)
            grad->w1[h][i] += back[h] * im->pixel[i];
    }
    return loss;
}

int network_predict(const struct network *net, const struct image *im)
{
    float hidden[HIDDEN], prob[CLASSES];
    int best = 0;

    forward(net, im, hidden, prob);
    for (int c = 1; c < CLASSES; c++)
        best = prob[c] > prob[best] ? c : best;
    return best;
}

void network_step(struct network *net, struct network *velocity, const struct network *grad,
                  float scale, float rate)
{
    float *w = (float *)net, *v = (float *)velocity;
    const float *g = (const float *)grad;

    for (size_t i = 0; i < sizeof *net / sizeof(float); i++) {
        v[i] = 0.9f * v[i] + g[i] * scale;
        w[i] -= rate * v[i];
    }
}
