/* SPDX-License-Identifier: BSD-3-Clause */
/* A small causal transformer on characters: forward, loss and gradient, for one rank. Blocks of
 * "pre-norm" form with ReLU (Vaswani et al. 2017; Radford et al. 2019), matrices by BLAS. */
#ifndef TRANSFORMER_H
#define TRANSFORMER_H

#include <stddef.h>
#include <stdint.h>

struct shape {
    int vocab, context, width, layers, heads;
};

struct parameter {
    char name[64];
    int64_t dims[2];
    int ndim;
    size_t at, count; /* in param and grad */
};

struct transformer {
    struct shape shape;
    int batch; /* sequences of a step */
    struct parameter *parameter;
    int nparameters;
    size_t n; /* floats in param and grad */
    float *param, *grad;
    struct activations *act;
};

/* Called by transformer_backward when a parameter's gradient is complete. */
typedef int (*gradient_ready)(void *ctx, int parameter);

/* 0, or -1: no memory. The same seed gives the same parameters everywhere. */
int transformer_init(struct transformer *t, const struct shape *shape, int batch,
                     uint64_t seed);
void transformer_free(struct transformer *t);
/* Mean loss in nats a character of `batch` sequences; in and want: [batch * context]
 * characters, want being what follows. */
float transformer_forward(struct transformer *t, const unsigned char *in,
                          const unsigned char *want);
/* Of the forward pass before: adds to grad, from the last layer to the first, and tells what is
 * complete. Returns 0, or at once what ready returned. */
int transformer_backward(struct transformer *t, const unsigned char *in,
                         const unsigned char *want, gradient_ready ready, void *ctx);

#endif
