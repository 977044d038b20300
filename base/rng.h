/* SPDX-License-Identifier: BSD-3-Clause */
/* splitmix64: seeded, reproducible, not for secrets (those come from libsodium). */
#ifndef BNY_BASE_RNG_H
#define BNY_BASE_RNG_H

#include <stdint.h>

static inline uint64_t bny_rng_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [0, n), n > 0. */
static inline uint64_t bny_rng_below(uint64_t *state, uint64_t n)
{
    return (uint64_t)((__extension__(unsigned __int128) bny_rng_next(state) * n) >> 64);
}

/* Uniform in [0, 1). */
static inline double bny_rng_unit(uint64_t *state)
{
    return (double)(bny_rng_next(state) >> 11) * 0x1p-53;
}

#endif
