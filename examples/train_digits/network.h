/* SPDX-License-Identifier: BSD-3-Clause */
/* train_digits: a network of full layers with ReLU between them and softmax at the end. It does
 * not know that there are several ranks. */
#ifndef NETWORK_H
#define NETWORK_H

#include <stddef.h>
#include <stdint.h>

#include "data.h"

enum { LAYERS_MAX = 4, WIDTH_MAX = 1024 };

/* Parameters lie in one array, gradients in another of the same shape: the layers' matrices
 * [inputs][outputs] one after the other, then all biases. */
struct network {
    int nlayers;
    int width[LAYERS_MAX + 1];                      /* inputs, hidden ones, CLASSES */
    size_t weights[LAYERS_MAX], biases[LAYERS_MAX]; /* where they start */
    size_t n;
    float *param;
};

/* The same start on every rank: a function of the seed. Returns 0 or -1 when out of memory. */
int network_init(struct network *net, uint64_t seed);
/* Adds the gradient of one example's cross-entropy loss to grad[n]; returns the loss. */
float network_gradient(const struct network *net, const struct example *e, float *grad);
/* The class the network sees. */
int network_predict(const struct network *net, const struct example *e);

#endif
