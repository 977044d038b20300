/* SPDX-License-Identifier: BSD-3-Clause */
/* train_digits, elastic_train: examples to learn from. */
#ifndef DATA_H
#define DATA_H

#include <stdint.h>

enum { INPUTS = 64, CLASSES = 10 };

struct example {
    float x[INPUTS];
    int label;
};

/* Reads "p0,...,p63,label" lines of pixels 0 to 16, which become 0 to 1, and mixes them, as the
 * file is sorted by writer: a fifth at the end is of everybody's, the same whatever the seed.
 * *out is the caller's to free. Returns the number of images, or -1 after a message on stderr.
 */
int digits_load(const char *path, struct example **out);
/* n Gaussian vectors of TEACHER_INPUTS numbers (the others are 0), with the class that a random
 * network sees in each. The same for the same seed. Returns n or -1. */
enum { TEACHER_INPUTS = 48 };
int teacher_make(int n, uint64_t seed, struct example **out);

/* Uniform in [0, n): splitmix64. */
uint64_t random_below(uint64_t *state, uint64_t n);
/* Uniform in [-1, 1). */
float random_unit(uint64_t *state);
/* Another order of the n examples, the same for the same state. */
void shuffle(int *order, int n, uint64_t *state);

#endif
