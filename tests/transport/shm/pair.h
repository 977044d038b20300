/* SPDX-License-Identifier: BSD-3-Clause */
/* Two shared-memory ends in one process, and the few helpers all tests of this folder need. */
#ifndef TESTS_SHM_PAIR_H
#define TESTS_SHM_PAIR_H

#include <stdint.h>

#include "transport/shm/shm.h"
#include "transport/shm/shm_impl.h"

#define PAIR_DEADLINE_S 15.0 /* of every wait */

struct pair {
    struct bny_tp *tp[2];
    struct bny_ep *ep[2]; /* ep[i]: of tp[i], to the other */
};

extern const uint8_t pair_secret[32];

/* Asserts that everything works. cma: value of BANYAN_CMA. */
void pair_open(struct pair *p, const char *cma);
void pair_close(struct pair *p);
/* One end of `nranks`. */
struct bny_tp *end_open(int rank, int nranks);
/* Polls tp until it has an event, or the deadline. Returns 1, or 0 at the deadline. */
int next_event(struct bny_tp *tp, struct bny_event *ev);
/* A header with a payload length and a number in `chunk`. */
struct bny_hdr header(uint32_t len, uint32_t number);
/* Bytes that belong to a message number. */
void fill(void *buf, uint32_t len, uint32_t number);
int is_filled(const void *buf, uint32_t off, uint32_t len, uint32_t number);

#endif
