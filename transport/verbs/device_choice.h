/* SPDX-License-Identifier: BSD-3-Clause */
/* Which devices are near a rank: read from the kernel's files, chosen by a pure function.
 * Independent of libibverbs, so that tools can use it. */
#ifndef BNY_VERBS_DEVICE_CHOICE_H
#define BNY_VERBS_DEVICE_CHOICE_H

#include <sched.h>
#include <stddef.h>

#define VB_NEAR_MAX  64 /* ports that are compared */
#define VB_FAR       -1 /* distance: the machine does not report it */
#define VB_NEAR_SAME 10 /* the kernel's distance of a NUMA node to itself */

struct vb_near { /* a port, as seen by a rank */
    char name[64];
    int port;
    int node;     /* its NUMA node; -1: none, or all are equally distant */
    int distance; /* the kernel's, from its node to the rank's nearest one; VB_FAR */
};

/* Which of n devices a rank uses, at most `most`: the nearest; the ranks of a host take equally
 * near ones in turn, `most` each. Devices of unknown distance come last. chosen[]: in order of
 * the list, so that ranks with the same devices number them alike. Returns the number; *equal:
 * how many are as near as the nearest. */
int bny_verbs_near_choose(const int *distance, int n, int local_rank, int most, int *chosen,
                          int *equal);

/* Sets node and distance of the device of this name, for a rank that runs on these CPUs. */
void bny_verbs_near_look(struct vb_near *d, const cpu_set_t *cpus);
/* Ports that are up according to the kernel's files, ordered by name. Returns the number. */
int bny_verbs_near_list(struct vb_near *out, int max);
/* The CPUs of a NUMA node. 0: there is no such node. */
int bny_verbs_near_cpus(int node, cpu_set_t *cpus);

/* A rank's index among those of its host, from its launcher; else its rank, which serves as
 * well if ranks fill one host after the other. */
int bny_verbs_near_local(int rank);

/* Reason for chosen device d, as "nearest of 4, NUMA node 1 as the rank"; out[cap]. */
const char *bny_verbs_near_why(const struct vb_near *d, int equal, int n, char *out,
                               size_t cap);

/* Replaces /sys as root, for tests; NULL: /sys. */
void bny_verbs_near_root(const char *path);

#endif
