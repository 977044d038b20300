/* SPDX-License-Identifier: BSD-3-Clause */
/* The failures that a rank knows of, from itself or from neighbours. Pure bookkeeping; the
 * owner locks. membership.c agrees on the one that counts. */
#ifndef BNY_BOOTSTRAP_FAILURES_H
#define BNY_BOOTSTRAP_FAILURES_H

#include "transport/bootstrap/bootstrap.h"

#define BNY_ALL_COMMS UINT32_MAX

struct bny_record {
    struct bny_failure f;
    uint64_t known_ns;
    int source; /* neighbour that sent it; -1: this rank */
    int told;   /* it is in a view */
};

struct bny_failures {
    struct bny_record *list;
    int count, cap;
};

/* Returns 0 or -BANYAN_ENOMEM. */
int bny_failures_init(struct bny_failures *t, int nranks);
void bny_failures_finish(struct bny_failures *t);
/* Returns 1: it was new. 0: already known. -BANYAN_ENOMEM: it is not known, and will not be.
 * The list is unbounded: each communicator that is given up leaves one record for each member
 * that gives it up, for good, since a late rank may send it again. */
int bny_failures_add(struct bny_failures *t, const struct bny_failure *f, uint64_t now,
                     int source);
/* Does the failure concern this communicator, judged by its number? BNY_ALL_COMMS: any. */
static inline int bny_failure_concerns(const struct bny_failure *f, uint32_t comm)
{
    return f->cause != BNY_CAUSE_NOT_MADE &&
           (comm == BNY_ALL_COMMS || f->comm == 0 || f->comm == comm);
}
/* Do two reports describe the same failure? */
static inline int bny_failure_same(const struct bny_failure *a, const struct bny_failure *b)
{
    return a->cause == b->cause && a->blamed == b->blamed && a->comm == b->comm &&
           a->call == b->call;
}
/* Untrusted bytes: may a rank of nranks report this failure? */
int bny_failure_valid(const struct bny_failure *f, int nranks);

#endif
