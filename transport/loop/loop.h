/* SPDX-License-Identifier: BSD-3-Clause */
/* The in-process reference transport: all ranks share a fabric; a seed causes faults. */
#ifndef BNY_TRANSPORT_LOOP_H
#define BNY_TRANSPORT_LOOP_H

#include <stddef.h>
#include <stdint.h>

struct bny_loop_fabric;

struct bny_loop_faults {
    uint64_t seed;
    double loss, duplicate, reorder; /* probability per packet, 0..0.5 */
    uint32_t delay_polls_max;        /* a packet waits 0..max polls of the receiver */
    uint32_t
        queue_max; /* packets in flight per direction; 0: 64. Short queues make BNY_AGAIN */
};

/* Creates a fabric for nranks ranks (threads or one thread). faults may be NULL. Returns NULL
 * on no memory. */
struct bny_loop_fabric *bny_loop_fabric_create(int nranks,
                                               const struct bny_loop_faults *faults);
/* Every bny_tp on it must be destroyed before. Takes NULL. */
void bny_loop_fabric_destroy(struct bny_loop_fabric *f);
/* The address blob of rank's transport (at most BNY_ADDR_MAX bytes): ranks of one process need
 * not exchange them. Returns its length. */
size_t bny_loop_fabric_address(const struct bny_loop_fabric *f, int rank, void *blob);
/* Test hook: the rank's process "dies": peers get DOWN, and none of its data arrives any
 * more. */
void bny_loop_fabric_kill(struct bny_loop_fabric *f, int rank);

#endif
