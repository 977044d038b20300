/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks of one host find each other at init without anybody's help: the launcher says how many
 * there are and which of them a process is, and each that has others below it listens at a Unix
 * socket of the abstract kind, whose name follows from the job's secret and its place. */
#ifndef BNY_BOOTSTRAP_NEAR_H
#define BNY_BOOTSTRAP_NEAR_H

#include <stdint.h>

struct bny_id;
struct bny_addr;

struct bny_near {
    int rank, count; /* this process among those of its host; count 0: nothing is known */
    uint32_t group;  /* tells several such groups of a host apart; the same in all of one */
};

/* What the launcher says, if it started this process as rank of nranks. */
void bny_near_get(struct bny_near *out, int rank, int nranks);

/* They are a tree: whom a process is below (not of 0), and how many are below it. */
static inline int bny_near_above(int rank)
{
    return (rank - 1) / 2;
}
int bny_near_below(const struct bny_near *near);
/* So many of them come to it. */
static inline int bny_near_direct(const struct bny_near *near)
{
    return (2 * (int64_t)near->rank + 1 < near->count) +
           (2 * (int64_t)near->rank + 2 < near->count);
}

/* Listens where those below come to, without blocking. Returns the fd, or -errno. */
int bny_near_listen(const struct bny_near *near, const struct bny_id *id);
/* Connects to who is above. Returns the fd, or -errno: -ECONNREFUSED, nobody listens there. */
int bny_near_connect(const struct bny_near *near, const struct bny_id *id);
/* Accepts one; peer becomes an address of family 1. Others than this user's processes are let
 * go (-EPERM). Returns the fd, or -errno. */
int bny_near_accept(int fd, struct bny_addr *peer);

#endif
