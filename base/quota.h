/* SPDX-License-Identifier: BSD-3-Clause */
/* How much CPU time this process's control groups grant (Linux, cgroups v1 and v2): containers
 * are given so many CPUs' time, and yet see all CPUs of the host. */
#ifndef BNY_BASE_QUOTA_H
#define BNY_BASE_QUOTA_H

#include <stdint.h>

/* CPUs' time, rounded up, of the narrowest group that this process is in, itself or above; 0:
 * none limits it, or nothing is known. *group: that group, the same for all processes in it and
 * hardly ever for those of another one. */
int bny_cpu_quota(uint64_t *group);

/* The same with other files in place of /proc/self/cgroup and /sys/fs/cgroup, for tests. */
int bny_cpu_quota_in(const char *membership, const char *mount, uint64_t *group);

#endif
