/* SPDX-License-Identifier: BSD-3-Clause */
/* How ranks of one host find each other at init without a server: the launcher gives their
 * number and each one's index, and each rank with others below it listens at an abstract Unix
 * socket, whose name follows from the job's secret and its index. */
#ifndef BNY_BOOTSTRAP_HOST_TREE_H
#define BNY_BOOTSTRAP_HOST_TREE_H

#include <stdint.h>

struct bny_id;
struct bny_addr;

struct bny_near {
    int rank, count; /* this process among those of its host; count 0: unknown */
    uint32_t group;  /* distinguishes such groups on a host; equal within one */
};

/* The launcher's information, if it started this process as rank of nranks. */
void bny_near_get(struct bny_near *out, int rank, int nranks);

/* The tree: the parent of a rank (0 has none), and the number of ranks below it. */
static inline int bny_near_above(int rank)
{
    return (rank - 1) / 2;
}
int bny_near_below(const struct bny_near *near);
/* Number of its children. */
static inline int bny_near_direct(const struct bny_near *near)
{
    return (2 * (int64_t)near->rank + 1 < near->count) +
           (2 * (int64_t)near->rank + 2 < near->count);
}

/* Listens for the children, without blocking. Returns the fd, or -errno. */
int bny_near_listen(const struct bny_near *near, const struct bny_id *id);
/* Connects to the parent. Returns the fd, or -errno; -ECONNREFUSED: it does not listen. */
int bny_near_connect(const struct bny_near *near, const struct bny_id *id);
/* Accepts a connection; peer becomes an address of family 1. Refuses other users' processes
 * (-EPERM). Returns the fd, or -errno. */
int bny_near_accept(int fd, struct bny_addr *peer);

#endif
