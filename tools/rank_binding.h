/* SPDX-License-Identifier: BSD-3-Clause */
/* Which CPUs each rank of this machine should have, by what cores share (topo/machine.h). */
#ifndef BNY_TOOLS_RANK_BINDING_H
#define BNY_TOOLS_RANK_BINDING_H

#include <sched.h>

struct bny_rank_binding {
    cpu_set_t set; /* the rank's CPU, and free ones near it for its threads: no other rank has
                      those */
    char text[96]; /* for people */
};

/* out[n], for free(). Ranks are spread evenly over packages, memories and caches, neighbours
 * side by side; more ranks than CPUs share them. Only CPUs that this process may use, but for
 * HWLOC_SYNTHETIC and HWLOC_XMLFILE, which describe another machine. NULL: the reason is the
 * thread's error. */
struct bny_rank_binding *bny_rank_bindings(int n);

#endif
