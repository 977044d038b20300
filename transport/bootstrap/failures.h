/* SPDX-License-Identifier: BSD-3-Clause */
/* The failures a rank knows of, and which of them counts. Pure bookkeeping; the owner locks.
 *
 * The one that counts for a communicator is the smallest (cause, blamed) of those that became
 * known within the grace after the first one. Later ones are consequences: ranks leaving
 * because of it. So is the end of a rank that aborted: it may leave without waiting for
 * anybody. */
#ifndef BNY_BOOTSTRAP_FAILURES_H
#define BNY_BOOTSTRAP_FAILURES_H

#include "transport/bootstrap/bootstrap.h"

#define BNY_GRACE_NS  30000000u
#define BNY_ALL_COMMS UINT32_MAX

struct bny_record {
    struct bny_failure f;
    uint64_t known_ns;
    int source; /* neighbour it came from; -1: our own */
};

struct bny_failures {
    struct bny_record *list;
    int count, cap;
};

/* Returns 0 or -BANYAN_ENOMEM. */
int bny_failures_init(struct bny_failures *t, int nranks);
void bny_failures_finish(struct bny_failures *t);
/* 1: it was new. 0: known already, or the table is full (it has room for every rank's
 * death). */
int bny_failures_add(struct bny_failures *t, const struct bny_failure *f, uint64_t now,
                     int source);
/* The failure that counts for comm (world failures included; BNY_ALL_COMMS: any), or NULL while
 * none is known or its grace runs. */
const struct bny_failure *bny_failures_winner(const struct bny_failures *t, uint32_t comm,
                                              uint64_t now, uint64_t grace_ns);
/* 1 when a record of this cause blames the rank. */
int bny_failures_blames(const struct bny_failures *t, enum bny_cause cause, int rank);
/* Foreign bytes: is this a failure that a rank of nranks may report? */
int bny_failure_valid(const struct bny_failure *f, int nranks);

#endif
