/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks of one process over verbs: the simulated device, or a real one where
 * BANYAN_TEST_IFNAMES names two interfaces. */
#ifndef BNY_TESTS_VERBS_RANKS_H
#define BNY_TESTS_VERBS_RANKS_H

#include "tests/support/tpset.h"
#include "transport/verbs/lane.h"

int verbs_real_device(void);
int verbs_iwarp(const struct tpset *
                    s); /* which gives no second queue pair to a connection, and other errors */

/* Opens n ranks; a message has gone each way between any two. */
void verbs_joined(struct tpset *s, int n);

/* Closes them. The simulated device must have seen no breach of the rules by the transport. */
void verbs_left(struct tpset *s);

struct vb_lane *verbs_conn(struct tpset *s, int from, int to);
/* NULL: there is no such lane. */
struct vb_lane *verbs_lane_conn(struct tpset *s, int from, int to, uint32_t lane);
/* Steps until there are so many lanes between any two ranks, the first included. */
void verbs_lanes_joined(struct tpset *s, uint32_t lanes);

/* Puts the queue pair of the first lane into error. */
void verbs_break_pair(struct tpset *s, int from, int to);

struct verbs_stream {
    int breaks; /* of queue pairs of any lane, by chance, in the middle */
    uint64_t seed;
    void (*meddle)(struct tpset *s,
                   uint32_t heard); /* with each step; may be NULL. heard: messages of rank 0 */
};
/* A stream each way between ranks 0 and 1, in all ways to send. Everything arrives once, in
 * order and intact, and all borrowed memory comes back. Returns how many queue pairs were
 * broken: by chance perhaps none, where the stream is short. */
int verbs_stream(struct tpset *s, const struct verbs_stream *how);

/* `rank` is told once that a peer is down, for a reason with this part. */
void verbs_expect_down(struct tpset *s, int rank, const char *part);

/* Makes short times pass, those between attempts; all: also those in which peers must come to
 * terms. */
void verbs_travel(struct tpset *s, int all);

#endif
