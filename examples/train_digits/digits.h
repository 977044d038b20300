/* SPDX-License-Identifier: BSD-3-Clause */
/* train_digits: the data and the network. Neither knows that there are several ranks. */
#ifndef DIGITS_H
#define DIGITS_H

#include <stddef.h>
#include <stdint.h>

enum { PIXELS = 64, HIDDEN = 32, CLASSES = 10 };

struct image {
    float pixel[PIXELS]; /* 0 to 1 */
    int label;
};

/* Reads "p0,...,p63,label" lines; *out is the caller's to free. Returns the number of images,
 * or -1 after a message on stderr. */
int digits_load(const char *path, struct image **out);

/* Parameters, and gradients in the same shape: one array, so that one allreduce carries all of
 * them. */
struct network {
    float w1[HIDDEN][PIXELS], b1[HIDDEN];
    float w2[CLASSES][HIDDEN], b2[CLASSES];
};

/* The same start on every rank: a function of the seed. */
void network_init(struct network *net, uint64_t seed);
/* Adds the gradient of one image's cross-entropy loss to *grad; returns the loss. */
float network_gradient(const struct network *net, const struct image *im, struct network *grad);
/* The digit the network sees. */
int network_predict(const struct network *net, const struct image *im);
/* Momentum SGD: velocity = 0.9 velocity + grad * scale; net -= rate * velocity. */
void network_step(struct network *net, struct network *velocity, const struct network *grad,
                  float scale, float rate);

/* Uniform in [0, n): splitmix64. */
uint64_t digits_random(uint64_t *state, uint64_t n);

#endif
