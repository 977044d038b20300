/* SPDX-License-Identifier: BSD-3-Clause */
/* Handwritten digits from a file, and vectors that a random network has labelled. */
#include "data.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse_line(char *line, struct example *e)
{
    char *p = line, *end;

    for (int i = 0; i <= INPUTS; i++) {
        long v = strtol(p, &end, 10);

        if (end == p || v < 0 || v > (i < INPUTS ? 16 : CLASSES - 1))
            return -1;
        if (i < INPUTS)
            e->x[i] = (float)v / 16;
        else
            e->label = (int)v;
        p = end + (*end == ',');
    }
    return 0;
}

uint64_t random_below(uint64_t *state, uint64_t n)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % n;
}

float random_unit(uint64_t *state)
{
    return (float)random_below(state, 1 << 24) / (1 << 23) - 1;
}

void shuffle(int *order, int n, uint64_t *state)
{
    for (int i = n - 1; i > 0; i--) {
        int j = (int)random_below(state, (uint64_t)i + 1), keep = order[i];

        order[i] = order[j];
        order[j] = keep;
    }
}

static void mix(struct example *all, int n)
{
    uint64_t state = 0;

    for (int i = n - 1; i > 0; i--) {
        int j = (int)random_below(&state, (uint64_t)i + 1);
        struct example keep = all[i];

        all[i] = all[j];
        all[j] = keep;
    }
}

int digits_load(const char *path, struct example **out)
{
    FILE *f = fopen(path, "r");
    struct example *all = NULL;
    char line[1024];
    int n = 0, cap = 0;

    if (!f) {
        fprintf(stderr, "cannot open %s: %s; name the file with --data\n", path,
                strerror(errno));
        return -1;
    }
    while (fgets(line, sizeof line, f)) {
        if (n == cap) {
            struct example *more = realloc(all, (size_t)(cap += 1024) * sizeof *all);

            if (!more)
                goto fail;
            all = more;
        }
        if (parse_line(line, &all[n]) != 0) {
            fprintf(stderr, "%s:%d: not 64 pixels (0-16) and a digit\n", path, n + 1);
            goto fail;
        }
        n++;
    }
    fclose(f);
    mix(all, n);
    *out = all;
    return n;

fail:
    fclose(f);
    free(all);
    return -1;
}

/* Close to a Gaussian of variance 1. */
static float random_gauss(uint64_t *state)
{
    float sum = 0;

    for (int i = 0; i < 12; i++)
        sum += random_unit(state);
    return sum / 2;
}

enum { TEACHER_HIDDEN = 64 };

struct teacher {
    float w1[TEACHER_INPUTS][TEACHER_HIDDEN], w2[TEACHER_HIDDEN][CLASSES];
};

static int teacher_label(const struct teacher *t, const float *x)
{
    float hidden[TEACHER_HIDDEN] = { 0 }, score[CLASSES] = { 0 };
    int best = 0;

    for (int i = 0; i < TEACHER_INPUTS; i++)
        for (int h = 0; h < TEACHER_HIDDEN; h++)
            hidden[h] += x[i] * t->w1[i][h];
    for (int h = 0; h < TEACHER_HIDDEN; h++)
        for (int c = 0; c < CLASSES; c++)
            score[c] += tanhf(hidden[h]) * t->w2[h][c];
    for (int c = 1; c < CLASSES; c++)
        best = score[c] > score[best] ? c : best;
    return best;
}

int teacher_make(int n, uint64_t seed, struct example **out)
{
    struct example *all = calloc((size_t)n, sizeof *all);
    struct teacher *t = calloc(1, sizeof *t);
    uint64_t state = seed ^ 0x7eac4e50;

    if (!all || !t) {
        free(all);
        free(t);
        fprintf(stderr, "no memory for %d examples\n", n);
        return -1;
    }
    for (int i = 0; i < TEACHER_INPUTS; i++)
        for (int h = 0; h < TEACHER_HIDDEN; h++)
            t->w1[i][h] = random_gauss(&state) / sqrtf(TEACHER_INPUTS);
    for (int h = 0; h < TEACHER_HIDDEN; h++)
        for (int c = 0; c < CLASSES; c++)
            t->w2[h][c] = random_gauss(&state);
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < TEACHER_INPUTS; i++)
            all[k].x[i] = random_gauss(&state);
        all[k].label = teacher_label(t, all[k].x);
    }
    free(t);
    *out = all;
    return n;
}
