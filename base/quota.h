/* SPDX-License-Identifier: BSD-3-Clause */
/* CPU time that this process's control groups grant (Linux, cgroups v1 and v2): containers get
 * a number of CPUs' time, but see all CPUs of the host. */
#ifndef BNY_BASE_QUOTA_H
#define BNY_BASE_QUOTA_H

#include <stdint.h>

/* CPUs' time, rounded up, of the narrowest group that contains this process, itself or an
 * ancestor; 0: no limit, or unknown. *group: an id of that group, equal for all processes in it
 * and hardly ever for other groups. */
int bny_cpu_quota(uint64_t *group);

/* The same with other files instead of /proc/self/cgroup and /sys/fs/cgroup, for tests. */
int bny_cpu_quota_in(const char *membership, const char *mount, uint64_t *group);

#endif
