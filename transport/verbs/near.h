/* SPDX-License-Identifier: BSD-3-Clause */
/* Which devices are near to a rank: read from the kernel's files, chosen by a pure function.
 * Nothing of libibverbs, so that tools may ask, too. */
#ifndef BNY_VERBS_NEAR_H
#define BNY_VERBS_NEAR_H

#include <sched.h>
#include <stddef.h>

#define VB_NEAR_MAX  64 /* ports that are compared */
#define VB_FAR       -1 /* distance: the machine does not tell */
#define VB_NEAR_SAME 10 /* the kernel's distance of a NUMA node to itself */

struct vb_near { /* a port, where it is seen from a rank */
    char name[64];
    int port;
    int node;     /* its NUMA node; -1: none, or all are equally far */
    int distance; /* the kernel's, between its node and the rank's nearest one; VB_FAR */
};

/* Which of n devices a rank takes, at most `most` of them: the nearest; what is equally near is
 * dealt to the ranks of a host by turns, `most` each. Those whose distance is not known come
 * last. chosen[]: in order of the list, so that ranks that take the same ones agree on their
 * numbers. Returns how many; *equal: as many are as near as the nearest. */
int bny_verbs_near_choose(const int *distance, int n, int local_rank, int most, int *chosen,
                          int *equal);

/* Sets node and distance of the device of this name, for who may run on these CPUs. */
void bny_verbs_near_look(struct vb_near *d, const cpu_set_t *cpus);
/* Ports that are up by the kernel's files, in order of their names. Returns how many. */
int bny_verbs_near_list(struct vb_near *out, int max);
/* The CPUs of a NUMA node. 0: there is no such node. */
int bny_verbs_near_cpus(int node, cpu_set_t *cpus);

/* The number of a rank among those of its host, as its launcher tells it; else its rank, which
 * serves as well where ranks fill one host after the other. */
int bny_verbs_near_local(int rank);

/* "nearest of 4, NUMA node 1 as the rank": why chosen device d was; out[cap]. */
const char *bny_verbs_near_why(const struct vb_near *d, int equal, int n, char *out,
                               size_t cap);

/* Another root than /sys, for tests; NULL: /sys. */
void bny_verbs_near_root(const char *path);

#endif
