/* SPDX-License-Identifier: BSD-3-Clause */
/* Shall a sum of schedule auto run in order of arrival? All ranks must decide alike without
 * asking each other, and a sum for which no rank is late must not wait for an answer.
 *
 * All ranks number the sums whose plan allows both (plan.late_s) as they begin. Every eighth
 * sum, and every sum that runs in order of arrival, has a coordinator (coordinator.c), whose
 * answers report alike to all ranks whether a rank was late. So all ranks have the same record
 * of the same sums, and decide from it: sums 8e to 8e + 7 run in order of arrival if a rank was
 * late for one of the eight sums before 8e - 4; else they run their schedule. The four sums
 * between are for calls that do not wait for each other. A call that is further ahead waits
 * until the sums that it needs are settled.
 *
 * A sum that only asks begins before the answer comes: it costs some short messages. */
#ifndef BNY_COLLECTIVES_LATENESS_H
#define BNY_COLLECTIVES_LATENESS_H

#include "collectives/world/comm.h"

#define BNY_LATENESS_EVERY 8u
#define BNY_LATENESS_AHEAD 4u

enum bny_lateness_how {
    BNY_LATENESS_UNKNOWN, /* ask again when another sum is settled */
    BNY_LATENESS_STATIC,  /* it runs its schedule */
    BNY_LATENESS_ASKS,    /* the same, and its coordinator reports whether a rank was late */
    BNY_LATENESS_ARRIVAL, /* its coordinator assigns slots */
};

/* How sum k runs, which has begun and is not settled. */
enum bny_lateness_how bny_lateness_of(const struct bny_lateness *l, uint32_t k);
/* Records, once for sum k, whether a rank was late: the coordinator reports it to all alike. */
void bny_lateness_settle(struct bny_lateness *l, uint32_t k, int was_late);

#endif
