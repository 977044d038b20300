/* SPDX-License-Identifier: BSD-3-Clause */
/* The failures a rank knows of, from itself or from neighbours. Pure bookkeeping; the owner
 * locks. Which of them counts is agreed on: control_view.c. */
#ifndef BNY_BOOTSTRAP_FAILURES_H
#define BNY_BOOTSTRAP_FAILURES_H

#include "transport/bootstrap/bootstrap.h"

#define BNY_ALL_COMMS UINT32_MAX

struct bny_record {
    struct bny_failure f;
    uint64_t known_ns;
    int source; /* neighbour it came from; -1: our own */
    int told;   /* it is in a view */
};

struct bny_failures {
    struct bny_record *list;
    int count, cap;
};

/* Returns 0 or -BANYAN_ENOMEM. */
int bny_failures_init(struct bny_failures *t, int nranks);
void bny_failures_finish(struct bny_failures *t);
/* 1: it was new. 0: known already. -BANYAN_ENOMEM: it is not, and will not be. As many as there
 * are: each communicator that is given up leaves one of each member that does, for good, since
 * it may come again from a rank that heard of it late. */
int bny_failures_add(struct bny_failures *t, const struct bny_failure *f, uint64_t now,
                     int source);
/* Does it concern this communicator, as far as its number tells? BNY_ALL_COMMS: any. */
static inline int bny_failure_concerns(const struct bny_failure *f, uint32_t comm)
{
    return f->cause != BNY_CAUSE_NOT_MADE &&
           (comm == BNY_ALL_COMMS || f->comm == 0 || f->comm == comm);
}
/* Two reports of one thing? */
static inline int bny_failure_same(const struct bny_failure *a, const struct bny_failure *b)
{
    return a->cause == b->cause && a->blamed == b->blamed && a->comm == b->comm &&
           a->call == b->call;
}
/* Foreign bytes: is this a failure that a rank of nranks may report? */
int bny_failure_valid(const struct bny_failure *f, int nranks);

#endif
