/* SPDX-License-Identifier: BSD-3-Clause */
/* CPU limits of control groups, of files made here. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/quota.h"

static char root[64], text[4096];

static void put(const char *path, const char *content)
{
    char full[256];
    FILE *f;

    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *at = full + sizeof "/tmp/"; (at = strchr(at, '/')); at++) {
        *at = '\0';
        mkdir(full, 0700);
        *at = '/';
    }
    f = fopen(full, "w");
    cr_assert(f, "%s", full);
    fputs(content, f);
    fclose(f);
}

static int quota(const char *membership, uint64_t *group)
{
    char path[128];

    put("cgroup", membership);
    snprintf(path, sizeof path, "%s/cgroup", root);
    return bny_cpu_quota_in(path, root, group);
}

static void begin(void)
{
    snprintf(root, sizeof root, "/tmp/banyan-quota-XXXXXX");
    cr_assert(mkdtemp(root));
}

static void end(void)
{
    snprintf(text, sizeof text, "rm -r %s", root);
    cr_assert_eq(system(text), 0);
}

Test(quota, the_narrowest_group_counts, .init = begin, .fini = end)
{
    uint64_t a, b, c;

    put("pods/a/cpu.max", "250000 100000\n");
    put("pods/b/cpu.max", "max 100000\n");
    put("pods/b/c/cpu.max", "400000 100000\n");
    cr_expect_eq(quota("0::/pods/a\n", &a), 3, "2.5 CPUs' time is of 3");
    cr_expect_eq(quota("0::/pods/b\n", &b), 0);
    cr_expect_eq(quota("0::/pods/b/c\n", &c), 4);
    cr_expect(a != c && a && c);
    put("pods/cpu.max", "200000 100000\n");
    cr_expect_eq(quota("0::/pods/b/c\n", &b), 2, "the one above is narrower");
    cr_expect_eq(quota("0::/pods/a\n", &a), 2);
    cr_expect_eq(a, b, "and they share it");
    cr_expect_eq(quota("0::/\n", &a), 0, "a namespace's root has no limit here");
    put("cpu.max", "50000 100000\n");
    cr_expect_eq(quota("0::/elsewhere/not/there\n", &a), 1);
}

Test(quota, version_1_is_read_too, .init = begin, .fini = end)
{
    uint64_t group;

    put("cpu/docker/x/cpu.cfs_quota_us", "150000\n");
    put("cpu/docker/x/cpu.cfs_period_us", "50000\n");
    put("cpu/docker/cpu.cfs_quota_us", "-1\n");
    cr_expect_eq(quota("12:pids:/docker/x\n4:cpuacct,cpu:/docker/x\n0::/\n", &group), 3);
    cr_expect_eq(quota("12:pids:/docker/x\n4:cpu:/docker\n", &group), 0);
    cr_expect_eq(quota("12:pids:/docker/x\n3:cpuset:/docker/x\n", &group), 0);
}

Test(quota, what_makes_no_sense_limits_nothing, .init = begin, .fini = end)
{
    static const char *const limits[] = { "",          "\n",   "max",
                                          "-5 100000", "7",    "7 0",
                                          "x 5",       "1 -1", "99999999999999999999 1" };
    static const char *const lines[] = {
        "", "0", "0:", "0::", "::", "0::a", "\n\n", ":cpu:/a"
    };
    uint64_t group;

    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        put("cpu.max", limits[i]);
        cr_expect_eq(quota("0::/\n", &group), 0, "limit %s", limits[i]);
    }
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        cr_expect_eq(quota(lines[i], &group), 0, "line %s", lines[i]);
    cr_expect_eq(bny_cpu_quota_in("/nonexistent", root, &group), 0);
}
