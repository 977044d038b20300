/* SPDX-License-Identifier: BSD-3-Clause */
/* The transformer's arithmetic. Rows are characters: x[rows][width], row-major. */
#include "transformer.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The parameters of a layer, in order; before them stand two, behind them three. */
enum {
    NORM1,
    NORM1_BIAS,
    QKV,
    QKV_BIAS,
    PROJ,
    PROJ_BIAS,
    NORM2,
    NORM2_BIAS,
    UP,
    UP_BIAS,
    DOWN,
    DOWN_BIAS,
    PER_LAYER
};
enum { TOKEN, POSITION, BEFORE_LAYERS };

struct norm {                 /* of one layer norm */
    float *unit, *rdev, *out; /* [rows][width] before gain and bias, [rows], [rows][width] */
};

struct layer {
    struct norm norm1, norm2;
    float *qkv, *weight, *mixed, *mid; /* [rows][3 width], [batch][heads][context][context],
                                          [rows][width], [rows][width] after attention */
    float *up;                         /* [rows][4 width], after ReLU */
};

struct activations {
    struct layer *layer;
    struct norm last;
    float **x;                              /* [layers + 1]: what a layer gets, [rows][width] */
    float *prob;                            /* [rows][vocab] */
    float *dx, *dy, *dmid, *dbig, *dweight; /* gradients on the way down */
    float *all;
};

static int rows_of(const struct transformer *t)
{
    return t->batch * t->shape.context;
}

static int index_of(int layer, int which)
{
    return BEFORE_LAYERS + layer * PER_LAYER + which;
}

static float *value(const struct transformer *t, int parameter)
{
    return t->param + t->parameter[parameter].at;
}

static float *slope(const struct transformer *t, int parameter)
{
    return t->grad + t->parameter[parameter].at;
}

/* ---- making ---- */

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Close to a Gaussian of that deviation. */
static void fill_random(float *x, size_t n, float deviation, uint64_t *state)
{
    for (size_t i = 0; i < n; i++) {
        float sum = 0;

        for (int k = 0; k < 4; k++)
            sum += (float)(next_random(state) >> 40) / (1 << 24) - 0.5f;
        x[i] = sum * deviation * sqrtf(3);
    }
}

static void add_parameter(struct transformer *t, const char *name, int layer, int64_t rows,
                          int64_t cols)
{
    struct parameter *p = &t->parameter[t->nparameters++];

    if (layer < 0)
        snprintf(p->name, sizeof p->name, "%s", name);
    else
        snprintf(p->name, sizeof p->name, "layer%d.%s", layer, name);
    p->ndim = cols ? 2 : 1;
    p->dims[0] = rows;
    p->dims[1] = cols;
    p->count = (size_t)(cols ? rows * cols : rows);
    p->at = t->n;
    t->n += p->count;
}

static void list_parameters(struct transformer *t)
{
    static const struct {
        const char *name;
        int rows, cols; /* in widths; rows 0: a vector */
    } in_layer[PER_LAYER] = {
        { "norm1.gain", 0, 1 }, { "norm1.bias", 0, 1 }, { "qkv", 1, 3 },
        { "qkv.bias", 0, 3 },   { "proj", 1, 1 },       { "proj.bias", 0, 1 },
        { "norm2.gain", 0, 1 }, { "norm2.bias", 0, 1 }, { "up", 1, 4 },
        { "up.bias", 0, 4 },    { "down", 4, 1 },       { "down.bias", 0, 1 },
    };
    int width = t->shape.width;

    add_parameter(t, "token", -1, t->shape.vocab, width);
    add_parameter(t, "position", -1, t->shape.context, width);
    for (int l = 0; l < t->shape.layers; l++)
        for (int k = 0; k < PER_LAYER; k++)
            add_parameter(t, in_layer[k].name, l,
                          (in_layer[k].rows ? in_layer[k].rows : in_layer[k].cols) * width,
                          in_layer[k].rows ? in_layer[k].cols * width : 0);
    add_parameter(t, "norm.gain", -1, width, 0);
    add_parameter(t, "norm.bias", -1, width, 0);
    add_parameter(t, "head", -1, width, t->shape.vocab);
}

static void fill_parameters(struct transformer *t, uint64_t seed)
{
    float deep = 1 / sqrtf(2 * (float)t->shape.layers);

    for (int i = 0; i < t->nparameters; i++) {
        const struct parameter *p = &t->parameter[i];
        size_t len = strlen(p->name);
        int down = strstr(p->name, ".proj") || strstr(p->name, ".down");

        if (p->ndim == 2)
            fill_random(value(t, i), p->count,
                        i < BEFORE_LAYERS ? 0.02f
                                          : (down ? deep : 1) / sqrtf((float)p->dims[0]),
                        &seed);
        else
            for (size_t k = 0; k < p->count; k++)
                value(t, i)[k] = len > 5 && !strcmp(p->name + len - 5, ".gain");
    }
}

static float *take(float **at, size_t n)
{
    float *p = *at;

    *at += (n + 15) & ~(size_t)15;
    return p;
}

static void take_norm(struct norm *norm, float **at, size_t rows, size_t width)
{
    norm->unit = take(at, rows * width);
    norm->rdev = take(at, rows);
    norm->out = take(at, rows * width);
}

/* Deals out the floats from base on; returns how many. */
static size_t lay_out(struct transformer *t, float *base)
{
    struct activations *a = t->act;
    size_t rows = (size_t)rows_of(t), width = (size_t)t->shape.width;
    size_t weights = rows * (size_t)t->shape.heads * (size_t)t->shape.context;
    float *at = base;

    for (int l = 0; l < t->shape.layers; l++) {
        struct layer *layer = &a->layer[l];

        take_norm(&layer->norm1, &at, rows, width);
        take_norm(&layer->norm2, &at, rows, width);
        layer->qkv = take(&at, 3 * rows * width);
        layer->weight = take(&at, weights);
        layer->mixed = take(&at, rows * width);
        layer->mid = take(&at, rows * width);
        layer->up = take(&at, 4 * rows * width);
    }
    take_norm(&a->last, &at, rows, width);
    for (int l = 0; l <= t->shape.layers; l++)
        a->x[l] = take(&at, rows * width);
    a->prob = take(&at, rows * (size_t)t->shape.vocab);
    a->dx = take(&at, rows * width);
    a->dy = take(&at, rows * width);
    a->dmid = take(&at, rows * width);
    a->dbig = take(&at, 4 * rows * width);
    a->dweight = take(&at, (size_t)t->shape.context * (size_t)t->shape.context);
    return (size_t)(at - base);
}

int transformer_init(struct transformer *t, const struct shape *shape, int batch, uint64_t seed)
{
    static float nothing[1];
    struct activations *a;

    memset(t, 0, sizeof *t);
    t->shape = *shape;
    t->batch = batch;
    t->parameter =
        calloc((size_t)(BEFORE_LAYERS + shape->layers * PER_LAYER + 3), sizeof *t->parameter);
    t->act = a = calloc(1, sizeof *a);
    if (!t->parameter || !a)
        return -1;
    list_parameters(t);
    a->layer = calloc((size_t)shape->layers, sizeof *a->layer);
    a->x = calloc((size_t)shape->layers + 1, sizeof *a->x);
    t->param = calloc(t->n, sizeof(float));
    t->grad = calloc(t->n, sizeof(float));
    if (!a->layer || !a->x || !t->param || !t->grad)
        return -1;
    a->all = calloc(lay_out(t, nothing), sizeof(float));
    if (!a->all)
        return -1;
    lay_out(t, a->all);
    fill_parameters(t, seed);
    return 0;
}

void transformer_free(struct transformer *t)
{
    if (t->act) {
        free(t->act->layer);
        free(t->act->x);
        free(t->act->all);
    }
    free(t->act);
    free(t->parameter);
    free(t->param);
    free(t->grad);
    memset(t, 0, sizeof *t);
}

/* ---- forward ---- */

/* y = x w + bias; bias NULL: none. */
static void linear(const float *x, const float *w, const float *bias, float *y, int rows,
                   int in, int out)
{
    for (int r = 0; bias && r < rows; r++)
        memcpy(y + (size_t)r * (size_t)out, bias, (size_t)out * sizeof *y);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, out, in, 1, x, in, w, out,
                bias ? 1 : 0, y, out);
}

static void normalise(struct norm *norm, const float *x, const float *gain, const float *bias,
                      int rows, int width)
{
    for (int r = 0; r < rows; r++) {
        const float *from = x + (size_t)r * (size_t)width;
        float *unit = norm->unit + (size_t)r * (size_t)width;
        float *out = norm->out + (size_t)r * (size_t)width;
        float mean = 0, square = 0;

        for (int i = 0; i < width; i++)
            mean += from[i];
        mean /= (float)width;
        for (int i = 0; i < width; i++)
            square += (from[i] - mean) * (from[i] - mean);
        norm->rdev[r] = 1 / sqrtf(square / (float)width + 1e-5f);
        for (int i = 0; i < width; i++) {
            unit[i] = (from[i] - mean) * norm->rdev[r];
            out[i] = unit[i] * gain[i] + bias[i];
        }
    }
}

static void softmax(float *v, int n)
{
    float top = v[0], sum = 0;

    for (int i = 1; i < n; i++)
        top = v[i] > top ? v[i] : top;
    for (int i = 0; i < n; i++)
        sum += v[i] = expf(v[i] - top);
    for (int i = 0; i < n; i++)
        v[i] /= sum;
}

/* One head of one sequence: each character looks at itself and those before it. */
static void attend(const struct transformer *t, struct layer *layer, int b, int h)
{
    int n = t->shape.context, width = t->shape.width, part = width / t->shape.heads;
    const float *q = layer->qkv + (size_t)b * (size_t)n * 3 * (size_t)width + h * part;
    float *weight =
        layer->weight + ((size_t)b * (size_t)t->shape.heads + (size_t)h) * (size_t)(n * n);

    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, part, 1 / sqrtf((float)part), q,
                3 * width, q + width, 3 * width, 0, weight, n);
    for (int i = 0; i < n; i++) {
        softmax(weight + i * n, i + 1);
        memset(weight + i * n + i + 1, 0, (size_t)(n - i - 1) * sizeof *weight);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, part, n, 1, weight, n,
                q + 2 * width, 3 * width, 0,
                layer->mixed + (size_t)b * (size_t)n * (size_t)width + h * part, width);
}

static void add_to(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void layer_forward(struct transformer *t, int l)
{
    struct layer *layer = &t->act->layer[l];
    int rows = rows_of(t), width = t->shape.width;
    size_t n = (size_t)rows * (size_t)width;
    const float *x = t->act->x[l];
    float *y = t->act->x[l + 1];

    normalise(&layer->norm1, x, value(t, index_of(l, NORM1)), value(t, index_of(l, NORM1_BIAS)),
              rows, width);
    linear(layer->norm1.out, value(t, index_of(l, QKV)), value(t, index_of(l, QKV_BIAS)),
           layer->qkv, rows, width, 3 * width);
    for (int b = 0; b < t->batch; b++)
        for (int h = 0; h < t->shape.heads; h++)
            attend(t, layer, b, h);
    linear(layer->mixed, value(t, index_of(l, PROJ)), value(t, index_of(l, PROJ_BIAS)),
           layer->mid, rows, width, width);
    add_to(layer->mid, x, n);
    normalise(&layer->norm2, layer->mid, value(t, index_of(l, NORM2)),
              value(t, index_of(l, NORM2_BIAS)), rows, width);
    linear(layer->norm2.out, value(t, index_of(l, UP)), value(t, index_of(l, UP_BIAS)),
           layer->up, rows, width, 4 * width);
    for (size_t i = 0; i < 4 * n; i++)
        layer->up[i] = layer->up[i] > 0 ? layer->up[i] : 0;
    linear(layer->up, value(t, index_of(l, DOWN)), value(t, index_of(l, DOWN_BIAS)), y, rows,
           4 * width, width);
    add_to(y, layer->mid, n);
}

float transformer_forward(struct transformer *t, const unsigned char *in,
                          const unsigned char *want)
{
    struct activations *a = t->act;
    int rows = rows_of(t), width = t->shape.width, vocab = t->shape.vocab;
    int last = BEFORE_LAYERS + t->shape.layers * PER_LAYER;
    double loss = 0;

    for (int r = 0; r < rows; r++)
        for (int i = 0; i < width; i++)
            a->x[0][(size_t)r * (size_t)width + (size_t)i] =
                value(t, TOKEN)[in[r] * width + i] +
                value(t, POSITION)[r % t->shape.context * width + i];
    for (int l = 0; l < t->shape.layers; l++)
        layer_forward(t, l);
    normalise(&a->last, a->x[t->shape.layers], value(t, last), value(t, last + 1), rows, width);
    linear(a->last.out, value(t, last + 2), NULL, a->prob, rows, width, vocab);
    for (int r = 0; r < rows; r++) {
        float *prob = a->prob + (size_t)r * (size_t)vocab;

        softmax(prob, vocab);
        loss -= log(prob[want[r]] < 1e-30f ? 1e-30 : (double)prob[want[r]]);
    }
    return (float)(loss / rows);
}

/* ---- backward ---- */

/* Of linear(): adds to the slopes of w and bias; dx = dy w^T. */
static void linear_backward(const struct transformer *t, const float *x, int w, const float *dy,
                            float *dx, int rows, int in, int out, int biased)
{
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, in, out, rows, 1, x, in, dy, out, 1,
                slope(t, w), out);
    for (int r = 0; biased && r < rows; r++)
        add_to(slope(t, w + 1), dy + (size_t)r * (size_t)out, (size_t)out);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, in, out, 1, dy, out, value(t, w),
                out, 0, dx, in);
}

/* Of normalise(): adds to the slopes of gain and bias, and to dx what dy gives. */
static void norm_backward(const struct transformer *t, const struct norm *norm, int gain,
                          const float *dy, float *dx)
{
    int width = t->shape.width;
    const float *g = value(t, gain);
    float *dgain = slope(t, gain), *dbias = slope(t, gain + 1);

    for (int r = 0; r < rows_of(t); r++) {
        const float *unit = norm->unit + (size_t)r * (size_t)width;
        const float *d = dy + (size_t)r * (size_t)width;
        float *to = dx + (size_t)r * (size_t)width, mean = 0, along = 0;

        for (int i = 0; i < width; i++) {
            mean += d[i] * g[i];
            along += d[i] * g[i] * unit[i];
            dgain[i] += d[i] * unit[i];
            dbias[i] += d[i];
        }
        mean /= (float)width;
        along /= (float)width;
        for (int i = 0; i < width; i++)
            to[i] += (d[i] * g[i] - mean - unit[i] * along) * norm->rdev[r];
    }
}

/* Of attend(): dmixed to dqkv. */
static void attend_backward(const struct transformer *t, const struct layer *layer, int b,
                            int h, const float *dmixed, float *dqkv)
{
    int n = t->shape.context, width = t->shape.width, part = width / t->shape.heads;
    size_t at = (size_t)b * (size_t)n * 3 * (size_t)width + (size_t)(h * part);
    const float *q = layer->qkv + at, *k = q + width, *v = q + 2 * width;
    const float *dy = dmixed + (size_t)b * (size_t)n * (size_t)width + h * part;
    const float *weight =
        layer->weight + ((size_t)b * (size_t)t->shape.heads + (size_t)h) * (size_t)(n * n);
    float *dq = dqkv + at, *dw = t->act->dweight, scale = 1 / sqrtf((float)part);

    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, part, n, 1, weight, n, dy, width, 0,
                dq + 2 * width, 3 * width);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, part, 1, dy, width, v, 3 * width,
                0, dw, n);
    for (int i = 0; i < n; i++) {
        float along = 0;

        for (int j = 0; j <= i; j++)
            along += dw[i * n + j] * weight[i * n + j];
        for (int j = 0; j < n; j++)
            dw[i * n + j] = weight[i * n + j] * (dw[i * n + j] - along);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, part, n, scale, dw, n, k,
                3 * width, 0, dq, 3 * width);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, part, n, scale, dw, n, q, 3 * width,
                0, dq + width, 3 * width);
}

static int tell(gradient_ready ready, void *ctx, int first, int n)
{
    int rc = 0;

    for (int i = 0; ready && i < n && rc == 0; i++)
        rc = ready(ctx, first + i);
    return rc;
}

/* dx: of what the layer gives on entry, of what it got on return. */
static int layer_backward(struct transformer *t, int l, gradient_ready ready, void *ctx)
{
    struct activations *a = t->act;
    struct layer *layer = &a->layer[l];
    int rows = rows_of(t), width = t->shape.width, rc;
    size_t n = (size_t)rows * (size_t)width;

    linear_backward(t, layer->up, index_of(l, DOWN), a->dx, a->dbig, rows, 4 * width, width, 1);
    rc = tell(ready, ctx, index_of(l, DOWN), 2);
    for (size_t i = 0; i < 4 * n; i++)
        a->dbig[i] = layer->up[i] > 0 ? a->dbig[i] : 0;
    linear_backward(t, layer->norm2.out, index_of(l, UP), a->dbig, a->dy, rows, width,
                    4 * width, 1);
    if (rc == 0)
        rc = tell(ready, ctx, index_of(l, UP), 2);
    norm_backward(t, &layer->norm2, index_of(l, NORM2), a->dy, a->dx);
    if (rc == 0)
        rc = tell(ready, ctx, index_of(l, NORM2), 2);
    linear_backward(t, layer->mixed, index_of(l, PROJ), a->dx, a->dmid, rows, width, width, 1);
    if (rc == 0)
        rc = tell(ready, ctx, index_of(l, PROJ), 2);
    for (int b = 0; b < t->batch; b++)
        for (int h = 0; h < t->shape.heads; h++)
            attend_backward(t, layer, b, h, a->dmid, a->dbig);
    linear_backward(t, layer->norm1.out, index_of(l, QKV), a->dbig, a->dy, rows, width,
                    3 * width, 1);
    if (rc == 0)
        rc = tell(ready, ctx, index_of(l, QKV), 2);
    norm_backward(t, &layer->norm1, index_of(l, NORM1), a->dy, a->dx);
    return rc ? rc : tell(ready, ctx, index_of(l, NORM1), 2);
}

int transformer_backward(struct transformer *t, const unsigned char *in,
                         const unsigned char *want, gradient_ready ready, void *ctx)
{
    struct activations *a = t->act;
    int rows = rows_of(t), width = t->shape.width, vocab = t->shape.vocab, rc;
    int last = BEFORE_LAYERS + t->shape.layers * PER_LAYER;

    for (int r = 0; r < rows; r++) {
        a->prob[(size_t)r * (size_t)vocab + want[r]] -= 1;
        for (int i = 0; i < vocab; i++)
            a->prob[(size_t)r * (size_t)vocab + (size_t)i] /= (float)rows;
    }
    linear_backward(t, a->last.out, last + 2, a->prob, a->dy, rows, width, vocab, 0);
    rc = tell(ready, ctx, last + 2, 1);
    memset(a->dx, 0, (size_t)rows * (size_t)width * sizeof *a->dx);
    norm_backward(t, &a->last, last, a->dy, a->dx);
    if (rc == 0)
        rc = tell(ready, ctx, last, 2);
    for (int l = t->shape.layers - 1; l >= 0 && rc == 0; l--)
        rc = layer_backward(t, l, ready, ctx);
    for (int r = 0; r < rows && rc == 0; r++) {
        add_to(slope(t, TOKEN) + in[r] * width, a->dx + (size_t)r * (size_t)width,
               (size_t)width);
        add_to(slope(t, POSITION) + r % t->shape.context * width,
               a->dx + (size_t)r * (size_t)width, (size_t)width);
    }
    return rc ? rc : tell(ready, ctx, TOKEN, 2);
}
