/* SPDX-License-Identifier: BSD-3-Clause */
/* CPU limits of control groups (quota.h). */
#include "base/quota.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PATH_MAX_HERE 1024

static int read_text(const char *folder, const char *file, char *text, size_t cap)
{
    char path[PATH_MAX_HERE + 32];
    FILE *f;
    size_t n;

    snprintf(path, sizeof path, "%s/%s", folder, file);
    f = fopen(path, "re");
    if (!f)
        return 0;
    n = fread(text, 1, cap - 1, f);
    fclose(f);
    text[n] = '\0';
    return n > 0;
}

/* CPUs that a group grants; 0: no limit. */
static int limit_of(const char *folder, int v2)
{
    char text[64], *end;
    long long quota, period;

    if (!read_text(folder, v2 ? "cpu.max" : "cpu.cfs_quota_us", text, sizeof text))
        return 0;
    quota = strtoll(text, &end, 10);
    if (end == text || quota <= 0) /* "max", -1 */
        return 0;
    if (!v2 && !read_text(folder, "cpu.cfs_period_us", text, sizeof text))
        return 0;
    period = strtoll(v2 ? end : text, NULL, 10);
    if (period <= 0 || quota / period >= INT_MAX)
        return 0;
    return (int)((quota + period - 1) / period);
}

/* Checks the folder and all above it, up to `top` bytes of its name. */
static int narrowest(char *folder, size_t top, int v2, uint64_t *group)
{
    int least = 0;

    for (;;) {
        int limit = limit_of(folder, v2);
        struct stat st;
        char *slash;

        if (limit && (!least || limit <= least) && stat(folder, &st) == 0) {
            least = limit;
            *group = (uint64_t)st.st_dev << 48 ^ (uint64_t)st.st_ino;
        }
        slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < top)
            return least;
        *slash = '\0';
    }
}

/* A line of /proc/self/cgroup: "4:cpu,cpuacct:/pods/a", or "0::/pods/a" of v2. In a namespace
 * of its own a container sees its path as the root. */
static int limit_of_line(char *line, const char *mount, uint64_t *group)
{
    char *controllers = strchr(line, ':'), *path, folder[PATH_MAX_HERE];
    size_t top;
    int v2;

    path = controllers ? strchr(++controllers, ':') : NULL;
    if (!path)
        return 0;
    *path++ = '\0';
    v2 = *controllers == '\0';
    if (!v2) {
        int has = 0;

        for (char *at, *name = strtok_r(controllers, ",", &at); name;
             name = strtok_r(NULL, ",", &at))
            has |= !strcmp(name, "cpu");
        if (!has)
            return 0;
    }
    top = (size_t)snprintf(folder, sizeof folder, "%s%s", mount, v2 ? "" : "/cpu");
    if (top + strlen(path) >= sizeof folder)
        return 0;
    strcpy(folder + top, path);
    for (size_t n = strlen(folder); n > top && folder[n - 1] == '/';)
        folder[--n] = '\0';
    return narrowest(folder, top, v2, group);
}

int bny_cpu_quota_in(const char *membership, const char *mount, uint64_t *group)
{
    FILE *f = fopen(membership, "re");
    char line[PATH_MAX_HERE];
    int least = 0;

    *group = 0;
    while (f && fgets(line, sizeof line, f)) {
        uint64_t its = 0;
        int limit;

        line[strcspn(line, "\n")] = '\0';
        limit = limit_of_line(line, mount, &its);
        if (limit && (!least || limit < least)) {
            least = limit;
            *group = its;
        }
    }
    if (f)
        fclose(f);
    return least;
}

int bny_cpu_quota(uint64_t *group)
{
    return bny_cpu_quota_in("/proc/self/cgroup", "/sys/fs/cgroup", group);
}
