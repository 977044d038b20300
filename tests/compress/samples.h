/* SPDX-License-Identifier: BSD-3-Clause */
/* Data like gradients, from a seed. */
#ifndef TESTS_COMPRESS_SAMPLES_H
#define TESTS_COMPRESS_SAMPLES_H

#include <math.h>
#include <stddef.h>

#include "base/rng.h"

enum family { LAPLACE, GPD, STUDENT3, GAUSS, DGAMMA_HALF, DGAMMA_FIFTH, MIXTURE, FAMILIES };

static inline const char *family_name(enum family f)
{
    const char *names[] = { "Laplace",         "Pareto .2",       "Student 3",      "Gauss",
                            "double gamma .5", "double gamma .2", "5 % x10 mixture" };

    return names[f];
}

static inline double gauss(uint64_t *rng)
{
    double u = 1 - bny_rng_unit(rng), w = bny_rng_unit(rng);

    return sqrt(-2 * log(u)) * cos(6.283185307179586 * w);
}

static inline double laplace(uint64_t *rng)
{
    double u = 1 - bny_rng_unit(rng);

    return bny_rng_unit(rng) < 0.5 ? log(u) : -log(u);
}

/* Gamma below shape 1 (Marsaglia and Tsang's boost of shape + 1). */
static inline double small_gamma(uint64_t *rng, double shape)
{
    double d = shape + 2.0 / 3, c = 1 / sqrt(9 * d);

    for (;;) {
        double x = gauss(rng), v = 1 + c * x;

        v = v * v * v;
        if (v > 0 && log(1 - bny_rng_unit(rng)) < x * x / 2 + d - d * v + d * log(v))
            return d * v * pow(1 - bny_rng_unit(rng), 1 / shape);
    }
}

static inline double sample(enum family f, uint64_t *rng)
{
    double sign = bny_rng_unit(rng) < 0.5 ? -1 : 1, g;

    switch (f) {
    case LAPLACE: return laplace(rng);
    case GPD: return sign * (pow(1 - bny_rng_unit(rng), -0.2) - 1) / 0.2;
    case STUDENT3:
        g = 0;
        for (int i = 0; i < 3; i++) {
            double a = gauss(rng);

            g += a * a;
        }
        return gauss(rng) / sqrt(g / 3);
    case DGAMMA_HALF: return sign * small_gamma(rng, 0.5);
    case DGAMMA_FIFTH: return sign * small_gamma(rng, 0.2);
    case MIXTURE: return gauss(rng) * (bny_rng_unit(rng) < 0.05 ? 10 : 1);
    default: return gauss(rng);
    }
}

static inline void samples(float *x, size_t n, enum family f, double scale, uint64_t *rng)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(scale * sample(f, rng));
}

#endif
