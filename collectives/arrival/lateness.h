/* SPDX-License-Identifier: BSD-3-Clause */
/* Shall a sum of schedule auto run in order of arrival? All ranks must say the same without
 * asking for it, and a sum that nobody is late for must not wait for the answer.
 *
 * Sums whose plan allows both (plan.late_s) are counted as they begin, which is alike at all
 * ranks. Every eighth, and every one while the coordinator hands out places, has a coordinator
 * (coordinator.c), which tells all ranks in the same words whether one was late. So all ranks
 * know the same of the same sums, and what they do is a function of that: sums 8e to 8e + 7 go
 * in order of arrival if one of the eight sums before 8e - 4 had somebody late, else they run
 * what is built for ranks that are there. The four between are for calls that do not wait for
 * each other; a call that is further ahead waits until what it needs is known.
 *
 * A sum that only asks has begun before the answer comes: asking costs some short messages. */
#ifndef BNY_COLLECTIVES_LATENESS_H
#define BNY_COLLECTIVES_LATENESS_H

#include "collectives/world/comm.h"

#define BNY_LATENESS_EVERY 8u
#define BNY_LATENESS_AHEAD 4u

enum bny_lateness_how {
    BNY_LATENESS_UNKNOWN, /* to be asked again, as others settle */
    BNY_LATENESS_STATIC,  /* its schedule */
    BNY_LATENESS_ASKS,    /* the same, and its coordinator tells which ranks were late */
    BNY_LATENESS_ARRIVAL, /* its coordinator hands out places */
};

/* How sum k is run, of those begun and not settled. */
enum bny_lateness_how bny_lateness_of(const struct bny_lateness *l, uint32_t k);
/* The word to all ranks about sum k; once. */
void bny_lateness_settle(struct bny_lateness *l, uint32_t k, int was_late);

#endif
