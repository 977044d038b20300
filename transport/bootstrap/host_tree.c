/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks of one host find each other at init. */
#include "transport/bootstrap/host_tree.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <sodium.h>

#include "base/fd.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/launch.h"
#include "transport/bootstrap/net.h"

#define BACKLOG 8 /* two are expected */

/* The number in a variable; -1: none. */
static int host_tree_number(const char *name)
{
    const char *text = name ? bny_launch_get(name) : NULL;
    char *end;
    long v;

    if (!text)
        return -1;
    v = strtol(text, &end, 10);
    return end != text && *end == '\0' && v >= 0 && v < 1 << 20 ? (int)v : -1;
}

/* "4(x2),3": number of tasks on node `node`; -1: the text does not have it. */
static int tasks_of_node(const char *text, int node)
{
    while (text && *text) {
        char *end;
        long tasks = strtol(text, &end, 10), times = 1;

        if (end == text)
            return -1;
        if (!strncmp(end, "(x", 2)) {
            times = strtol(end + 2, &end, 10);
            end += *end == ')';
        }
        if (node < times)
            return (int)tasks;
        node -= (int)times;
        text = *end == ',' ? end + 1 : NULL;
    }
    return -1;
}

void bny_near_get(struct bny_near *out, int rank, int nranks)
{
    static const struct {
        const char *rank, *nranks, *near, *count, *group;
    } kinds[] = {
        { "BANYAN_RANK", "BANYAN_WORLD_SIZE", "BANYAN_LOCAL_RANK", "BANYAN_LOCAL_SIZE", NULL },
        { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE", NULL },
        { "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL },
        { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK" },
        { "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, "SLURM_NODEID" },
    };

    *out = (struct bny_near){ 0 };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && !out->count; i++) {
        int group = host_tree_number(kinds[i].group), near = host_tree_number(kinds[i].near);
        int count = kinds[i].count
                        ? host_tree_number(kinds[i].count)
                        : tasks_of_node(bny_launch_get("SLURM_STEP_TASKS_PER_NODE"), group);

        /* Else it is of another job than the launcher's. */
        if (host_tree_number(kinds[i].rank) != rank ||
            host_tree_number(kinds[i].nranks) != nranks)
            continue;
        if (near >= 0 && near < count && count <= nranks)
            *out = (struct bny_near){ near, count, group > 0 ? (uint32_t)group : 0 };
    }
}

int bny_near_below(const struct bny_near *near)
{
    int64_t lo = near->rank, hi = near->rank, n = near->count, sum = 0;

    for (; lo < n; lo = 2 * lo + 1, hi = 2 * hi + 2)
        sum += (hi < n ? hi : n - 1) - lo + 1;
    return sum ? (int)sum - 1 : 0;
}

/* A process without the secret cannot take this name first. */
static socklen_t name(struct sockaddr_un *un, const struct bny_near *near,
                      const struct bny_id *id, int rank)
{
    struct {
        char what[12];
        uint32_t group;
        int32_t count, rank;
        uint8_t job[8];
    } of = { "banyan near", near->group, near->count, rank, { 0 } };
    uint8_t hash[16];
    char hex[33];
    int len;

    memcpy(of.job, id->job, sizeof of.job);
    crypto_generichash(hash, sizeof hash, (const uint8_t *)&of, sizeof of, id->secret,
                       sizeof id->secret);
    sodium_bin2hex(hex, sizeof hex, hash, sizeof hash);
    memset(un, 0, sizeof *un);
    un->sun_family = AF_UNIX;
    len = snprintf(un->sun_path + 1, sizeof un->sun_path - 1, "banyan-init-%s", hex);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
}

int bny_near_listen(const struct bny_near *near, const struct bny_id *id)
{
    struct sockaddr_un un;
    socklen_t len = name(&un, near, id, near->rank);
    int fd = bny_fd_high(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), err;

    if (fd < 0)
        return -errno;
    if (bind(fd, (struct sockaddr *)&un, len) != 0 || listen(fd, BACKLOG) != 0) {
        err = errno;
        close(fd);
        return -err;
    }
    return fd;
}

/* Does the process at the other end belong to this user, according to the kernel? */
static int is_ours(int fd)
{
    struct ucred c;
    socklen_t len = sizeof c;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &len) == 0 && c.uid == geteuid();
}

int bny_near_connect(const struct bny_near *near, const struct bny_id *id)
{
    struct sockaddr_un un;
    socklen_t len = name(&un, near, id, bny_near_above(near->rank));
    int fd = bny_fd_high(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
        err = 0;

    if (fd < 0)
        return -errno;
    if (connect(fd, (struct sockaddr *)&un, len) != 0)
        err = errno;
    else if (!is_ours(fd))
        err = EPERM;
    if (!err)
        return fd;
    close(fd);
    return -err;
}

int bny_near_accept(int fd, struct bny_addr *peer)
{
    int got = bny_fd_high(accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));

    if (got < 0)
        return -errno;
    *peer = (struct bny_addr){ .family = 1 };
    if (is_ours(got))
        return got;
    close(got);
    return -EPERM;
}
