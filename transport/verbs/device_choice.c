/* SPDX-License-Identifier: BSD-3-Clause */
/* Distances are those between NUMA nodes (the firmware's table): from a device's
 * /sys/class/infiniband/NAME/device/numa_node to the nodes on which the rank may run. An
 * unbound rank has all nodes, so every device is equally near. hwloc reads the same files, but
 * costs every rank some 20 ms at start. */
#include "transport/verbs/device_choice.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *root = "/sys";

void bny_verbs_near_root(const char *path)
{
    root = path ? path : "/sys";
}

/* ---- the choice ---- */

static int device_choice_key_of(int distance)
{
    return distance < 0 ? INT_MAX : distance;
}

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

int bny_verbs_near_choose(const int *distance, int n, int local_rank, int most, int *chosen,
                          int *equal)
{
    int taken = 0, last = -1;

    *equal = 0;
    most = most < n ? most : n;
    while (taken < most) {
        int at[VB_NEAR_MAX], here = 0, now = INT_MAX, take;

        for (int i = 0; i < n; i++) /* the next distance */
            if (device_choice_key_of(distance[i]) > last &&
                device_choice_key_of(distance[i]) < now)
                now = device_choice_key_of(distance[i]);
        for (int i = 0; i < n; i++)
            if (device_choice_key_of(distance[i]) == now)
                at[here++] = i;
        if (!*equal)
            *equal = here;
        take = most - taken < here ? most - taken : here;
        for (int k = 0; k < take; k++)
            chosen[taken++] = at[(int)(((long long)local_rank * take + k) % here)];
        last = now;
        if (now == INT_MAX)
            break;
    }
    qsort(chosen, (size_t)taken, sizeof *chosen, by_number);
    return taken;
}

const char *bny_verbs_near_why(const struct vb_near *d, int equal, int n, char *out, size_t cap)
{
    char which[64], where[96];

    if (n == 1)
        snprintf(which, sizeof which, "the only one");
    else if (equal == n)
        snprintf(which, sizeof which, "all %d are equally near, its turn", n);
    else if (equal > 1)
        snprintf(which, sizeof which, "one of the %d nearest of %d, its turn", equal, n);
    else
        snprintf(which, sizeof which, "nearest of %d", n);
    if (d->distance == VB_FAR)
        snprintf(where, sizeof where, "distances are unknown");
    else if (d->distance == VB_NEAR_SAME)
        snprintf(where, sizeof where, "NUMA node %d, as the rank", d->node);
    else
        snprintf(where, sizeof where, "NUMA node %d, at distance %d", d->node, d->distance);
    snprintf(out, cap, "%s; %s", which, where);
    return out;
}

/* ---- what the launcher says ---- */

/* A job script has its own SLURM_LOCALID, which its children inherit: so banyan_run, which
 * fills one host, comes first. */
int bny_verbs_near_local(int rank)
{
    static const char *const names[] = { "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                         "PALS_LOCAL_RANKID", "LOCAL_RANK", "SLURM_LOCALID" };
    const char *own = secure_getenv("BANYAN_RANK");

    for (size_t i = 0; i < sizeof names / sizeof names[0] && !(own && *own); i++) {
        const char *text = secure_getenv(names[i]);
        char *end;
        long v = text ? strtol(text, &end, 10) : -1;

        if (v >= 0 && v < INT_MAX && end != text && !*end)
            return (int)v;
    }
    return rank;
}

/* ---- what the kernel says ---- */

static int read_line(char *out, size_t cap, const char *path)
{
    FILE *f = fopen(path, "re");

    out[0] = 0;
    if (!f)
        return 0;
    if (fgets(out, (int)cap, f))
        out[strcspn(out, "\n")] = 0;
    fclose(f);
    return out[0] != 0;
}

/* "0-3,8" as a set. The empty set if malformed. */
static void parse_list(const char *text, cpu_set_t *set)
{
    CPU_ZERO(set);
    while (*text) {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first;

        if (end == text)
            return;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (; first <= last && first < CPU_SETSIZE; first++)
            CPU_SET(first, set);
        text = end + (*end == ',');
        if (*end != ',')
            return;
    }
}

int bny_verbs_near_cpus(int node, cpu_set_t *cpus)
{
    char path[PATH_MAX], line[4096];

    CPU_ZERO(cpus);
    snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", root, node);
    if (!read_line(line, sizeof line, path))
        return 0;
    parse_list(line, cpus);
    return 1;
}

/* From one node to another; VB_FAR: unknown. The kernel lists online nodes. */
static int node_distance(int from, int to, const cpu_set_t *online)
{
    char path[PATH_MAX], line[4096], *at = line, *end;
    long v = VB_FAR;

    snprintf(path, sizeof path, "%s/devices/system/node/node%d/distance", root, from);
    if (!CPU_ISSET((size_t)to, online) || !read_line(line, sizeof line, path))
        return VB_FAR;
    for (int i = 0; i <= to; i++) {
        if (!CPU_ISSET((size_t)i, online))
            continue;
        v = strtol(at, &end, 10);
        if (end == at || v < 0 || v > 10000)
            return VB_FAR;
        at = end;
    }
    return (int)v;
}

void bny_verbs_near_look(struct vb_near *d, const cpu_set_t *cpus)
{
    char path[PATH_MAX], line[4096];
    cpu_set_t online;

    d->node = -1;
    d->distance = VB_FAR;
    snprintf(path, sizeof path, "%s/class/infiniband/%s/device/numa_node", root, d->name);
    if (!read_line(line, sizeof line, path) || line[0] == '-')
        return;
    d->node = atoi(line);
    snprintf(path, sizeof path, "%s/devices/system/node/online", root);
    if (d->node >= CPU_SETSIZE || !read_line(line, sizeof line, path)) {
        d->node = -1;
        return;
    }
    parse_list(line, &online);
    for (int node = 0; node < CPU_SETSIZE; node++) {
        cpu_set_t here;
        int v;

        if (!CPU_ISSET((size_t)node, &online) || !bny_verbs_near_cpus(node, &here))
            continue;
        CPU_AND(&here, &here, cpus);
        v = CPU_COUNT(&here) ? node_distance(node, d->node, &online) : VB_FAR;
        if (v != VB_FAR && (d->distance == VB_FAR || v < d->distance))
            d->distance = v;
    }
}

/* mlx5_2 before mlx5_10. */
static int by_name(const void *a, const void *b)
{
    const struct vb_near *p = a, *q = b;
    int c = strverscmp(p->name, q->name);

    return c ? c : p->port - q->port;
}

int bny_verbs_near_list(struct vb_near *out, int max)
{
    char path[PATH_MAX], line[64];
    struct dirent *e;
    DIR *all;
    int n = 0;

    snprintf(path, sizeof path, "%s/class/infiniband", root);
    all = opendir(path);
    while (all && (e = readdir(all)) != NULL)
        for (int port = 1; port <= 2 && e->d_name[0] != '.' && n < max; port++) {
            snprintf(path, sizeof path, "%s/class/infiniband/%.60s/ports/%d/state", root,
                     e->d_name, port);
            if (!read_line(line, sizeof line, path) || !strstr(line, "ACTIVE"))
                continue;
            out[n] = (struct vb_near){ .port = port, .node = -1, .distance = VB_FAR };
            snprintf(out[n++].name, sizeof out->name, "%.60s", e->d_name);
        }
    if (all)
        closedir(all);
    qsort(out, (size_t)n, sizeof *out, by_name);
    return n;
}
