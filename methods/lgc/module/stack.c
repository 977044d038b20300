/* SPDX-License-Identifier: BSD-3-Clause */
/* Layers one after another, forward and backward (stack.h). */
#include "methods/lgc/module/stack.h"

#include <stdlib.h>
#include <string.h>

#include "methods/lgc/lgc_net.h"

float *bny_stack_floats(size_t n)
{
    size_t bytes = (n * sizeof(float) + 63) / 64 * 64;
    float *p = aligned_alloc(64, bytes ? bytes : 64);

    if (p)
        memset(p, 0, bytes);
    return p;
}

static size_t outputs(const struct bny_conv_shape *s)
{
    size_t length = (size_t)(s->up ? s->length : s->length / s->stride);

    return (size_t)s->batch * length * (size_t)(s->up ? s->wide : s->narrow);
}

/* The shape of layer l; *length is that of its input, then of its output. */
static void shape_layer(struct bny_conv_shape *s, const int *channels, int l, int *length)
{
    int last = !s->up && channels[l + 1] == BNY_LGC_CODE;

    s->wide = channels[s->up ? l + 1 : l];
    s->narrow = channels[s->up ? l : l + 1];
    s->taps = last ? 1 : 3;
    s->stride = last ? 1 : 2;
    s->length = s->up ? *length * s->stride : *length;
    *length = s->up ? s->length : s->length / s->stride;
}

int bny_stack_init(struct bny_stack *s, const int *channels, int layers, size_t length,
                   const struct bny_conv_shape *like, dnnl_engine_t engine,
                   dnnl_stream_t stream)
{
    struct bny_conv_shape shape = *like;
    int at = (int)(like->up ? length / BNY_LGC_SHORTER : length), rc = 0;

    memset(s, 0, sizeof *s);
    s->count[0] = (size_t)like->batch * (size_t)at * (size_t)channels[0];
    for (int l = 0; l < layers && !rc; l++) {
        shape_layer(&shape, channels, l, &at);
        rc = bny_conv_init(&s->conv[l], &shape, engine, stream);
        s->layers = l + 1;
        s->count[l + 1] = outputs(&shape);
        s->at[l + 1] = s->at[l] + bny_conv_weights(&shape) + (size_t)channels[l + 1];
        s->out[l + 1] = bny_stack_floats(s->count[l + 1]);
        if (!rc && !s->out[l + 1])
            rc = dnnl_out_of_memory;
    }
    for (int l = 0; l <= layers && like->trains && !rc; l++) {
        s->diff[l] = bny_stack_floats(s->count[l]);
        if (!s->diff[l])
            rc = dnnl_out_of_memory;
    }
    return rc;
}

void bny_stack_finish(struct bny_stack *s)
{
    for (int l = 0; l <= s->layers; l++) {
        if (l < s->layers)
            bny_conv_finish(&s->conv[l]);
        free(s->out[l]);
        free(s->diff[l]);
    }
    memset(s, 0, sizeof *s);
}

int bny_stack_pack(struct bny_stack *s, int set, const float *weights)
{
    int rc = 0;

    for (int l = 0; l < s->layers && !rc; l++)
        rc = bny_conv_pack(&s->conv[l], set, weights + s->at[l]);
    return rc;
}

static size_t channels_out(const struct bny_conv_shape *s)
{
    return (size_t)(s->up ? s->wide : s->narrow);
}

/* x[n][channels]: adds the bias, then the leaky ReLU: the larger of v and v * slope. */
static void activate(float *restrict x, const float *restrict bias, size_t n, size_t channels)
{
    for (size_t i = 0; i < n; i++, x += channels)
        for (size_t c = 0; c < channels; c++) {
            float v = x[c] + bias[c], low = v * BNY_LGC_SLOPE;

            x[c] = v > low ? v : low;
        }
}

/* d[n][channels], by outputs y, becomes by the inputs of the ReLU; bias: its gradient. A leaky
 * ReLU keeps the sign, so y's tells which side it was. */
static void deactivate(float *restrict d, const float *restrict y, float *restrict bias,
                       size_t n, size_t channels)
{
    memset(bias, 0, channels * sizeof *bias);
    for (size_t i = 0; i < n; i++, d += channels, y += channels)
        for (size_t c = 0; c < channels; c++) {
            float by_input = d[c] * (y[c] > 0 ? 1 : BNY_LGC_SLOPE);

            d[c] = by_input;
            bias[c] += by_input;
        }
}

int bny_stack_forward(struct bny_stack *s, int set, const float *weights, const float *in)
{
    int rc = 0;

    for (int l = 0; l < s->layers && !rc; l++) {
        struct bny_conv *c = &s->conv[l];
        size_t channels = channels_out(&c->shape);
        const float *from = l ? s->out[l] : in;

        rc = c->shape.up ? bny_conv_up(c, set, from, s->out[l + 1])
                         : bny_conv_down(c, set, from, s->out[l + 1]);
        activate(s->out[l + 1], weights + s->at[l + 1] - channels, s->count[l + 1] / channels,
                 channels);
    }
    return rc;
}

int bny_stack_backward(struct bny_stack *s, int set, const float *in, float *gradient,
                       int by_input)
{
    int rc = 0;

    for (int l = s->layers - 1; l >= 0 && !rc; l--) {
        struct bny_conv *c = &s->conv[l];
        size_t channels = channels_out(&c->shape);
        const float *from = l ? s->out[l] : in;
        float *d = s->diff[l + 1];

        deactivate(d, s->out[l + 1], gradient + s->at[l + 1] - channels,
                   s->count[l + 1] / channels, channels);
        if (c->shape.up)
            rc = bny_conv_grad(c, d, from, gradient + s->at[l]);
        else
            rc = bny_conv_grad(c, from, d, gradient + s->at[l]);
        if (rc || (l == 0 && !by_input))
            break;
        rc = c->shape.up ? bny_conv_down(c, set, d, s->diff[l])
                         : bny_conv_up(c, set, d, s->diff[l]);
    }
    return rc;
}
