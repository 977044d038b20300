/* SPDX-License-Identifier: BSD-3-Clause */
/* The record of late ranks, and the decision from it. lateness.h explains both. */
#include "collectives/arrival/lateness.h"

#define EVERY BNY_LATENESS_EVERY
#define AHEAD BNY_LATENESS_AHEAD
/* The record has the bits of so many sums before the first one that is not settled, and of as
 * many from that one on. */
#define KEPT 32u

static uint64_t bit(uint32_t k)
{
    return 1ull << k % 64;
}

enum bny_lateness_how bny_lateness_of(const struct bny_lateness *l, uint32_t k)
{
    uint32_t end = k - k % EVERY - AHEAD; /* counts wrap around */
    uint64_t late = 0;

    if (k - l->known >= KEPT || (int32_t)(end - l->known) > 0)
        return BNY_LATENESS_UNKNOWN;
    for (uint32_t i = end - EVERY; i != end; i++)
        late |= l->late & bit(i);
    if (late)
        return BNY_LATENESS_ARRIVAL;
    return k % EVERY ? BNY_LATENESS_STATIC : BNY_LATENESS_ASKS;
}

void bny_lateness_settle(struct bny_lateness *l, uint32_t k, int was_late)
{
    l->settled |= bit(k);
    if (was_late)
        l->late |= bit(k);
    for (; l->settled & bit(l->known); l->known++) {
        l->settled &= ~bit(l->known);
        l->late &= ~bit(l->known + KEPT); /* the bit of the sum 64 before it */
    }
}
