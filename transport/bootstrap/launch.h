/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside launch_*.c: one function for each kind of launcher, and what they share. */
#ifndef BNY_BOOTSTRAP_LAUNCH_H
#define BNY_BOOTSTRAP_LAUNCH_H

#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/net.h"

struct bny_launch_in {
    const char *ifname, *port_range;
    uint64_t deadline_ns;
};

/* Each returns 1 and fills out if its launcher started this process, 0 if not, else an
 * error. */
int bny_launch_run(struct bny_launch *out, const struct bny_launch_in *in);
int bny_launch_pmix(struct bny_launch *out, const struct bny_launch_in *in);
int bny_launch_pmi1(struct bny_launch *out, const struct bny_launch_in *in);
int bny_launch_torchrun(struct bny_launch *out, const struct bny_launch_in *in);
int bny_launch_slurm(struct bny_launch *out, const struct bny_launch_in *in);

/* The variable's text; NULL if it is not set or empty. */
const char *bny_launch_get(const char *name);
/* A whole number in [min, max] from variable name. Missing or wrong: -BANYAN_ECONFIG, which
 * names variable, value and remedy (a clause: "start the ranks with torchrun"). */
int bny_launch_int(const char *name, int64_t min, int64_t max, const char *remedy, int *out);
/* Rank and number of ranks from two variables, checked against each other. */
int bny_launch_ranks(const char *rank_name, const char *size_name, const char *remedy,
                     struct bny_launch *out);
/* An id that every rank derives alike: job names the run (the same text on every rank); rank 0
 * will listen at host:port (one of span ports). */
int bny_launch_derive(struct bny_launch *out, const struct bny_launch_in *in, const char *job,
                      const char *host, int port, int span);
/* A hash that is equal on all ranks. */
uint32_t bny_launch_hash(const char *text);
/* Rank 0's interface if the launcher carries the id: loopback if all ranks share this host. */
const char *bny_launch_ifname(const struct bny_launch_in *in, const char *local_size_name,
                              int nranks);
/* The first host of a Slurm node list: "node[03-05,7],x1" -> "node03". Returns 0, or -1: not a
 * list. */
int bny_slurm_first_host(const char *list, char *out, size_t cap);

#define BNY_LAUNCH_SPAN 16 /* candidate ports if none is agreed */

#endif
