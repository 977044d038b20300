/* SPDX-License-Identifier: BSD-3-Clause */
/* Reports the end of a memif link to the thread that makes bursts. net_memif (22.11) unmaps the
 * rings in the EAL's interrupt thread as soon as the peer closes their control socket, even
 * during a burst: SIGSEGV inside the driver. Once a link is up that socket carries nothing but
 * its end. So we then replace it in the driver by one that stays silent: the rings stay mapped
 * until the port is closed, and the bursting thread polls the real socket (bny_memif_ended). */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <rte_interrupts.h>

#include "transport/dpdk/module/dpdk_module.h"

/* [0]: the drivers' replacement; [1] receives what they send: a message for each closed port.
 * Used in the interrupt thread alone. */
static int quiet[2] = { -1, -1 };

static void nothing(void *arg)
{
}

/* 1: this end of that link (abstract name). The server's accepted socket has the name; the
 * client's is connected to it. */
static int is_end(int fd, int server, const char *link)
{
    struct sockaddr_un a = { 0 };
    struct sockaddr *at = (struct sockaddr *)&a;
    socklen_t len = sizeof a, size = sizeof(int);
    int listens = 1;

    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens)
        return 0;
    if ((server ? getsockname(fd, at, &len) : getpeername(fd, at, &len)) != 0)
        return 0;
    return a.sun_family == AF_UNIX && a.sun_path[0] == '\0' &&
           !strncmp(a.sun_path + 1, link, sizeof a.sun_path - 1);
}

static int find_end(int server, const char *link)
{
    DIR *d = opendir("/proc/self/fd");
    const struct dirent *f;
    int found = -1;

    while (found < 0 && d && (f = readdir(d))) {
        char *end;
        long fd = strtol(f->d_name, &end, 10);

        if (*end == '\0' && is_end((int)fd, server, link))
            found = (int)fd;
    }
    if (d)
        closedir(d);
    return found;
}

/* The EAL's poll set refers to open files, not to their numbers: adding or removing a callback
 * rebuilds it. Returns 0 if it will be. */
static int renew_poll_set(void)
{
    struct rte_intr_handle *h = rte_intr_instance_alloc(RTE_INTR_INSTANCE_F_PRIVATE);
    int rc = -1;

    if (h && rte_intr_fd_set(h, quiet[1]) == 0 &&
        rte_intr_type_set(h, RTE_INTR_HANDLE_EXT) == 0)
        rc = rte_intr_callback_register(h, nothing, NULL);
    if (rc == 0)
        rte_intr_callback_unregister(h, nothing, NULL);
    rte_intr_instance_free(h);
    return rc;
}

void bny_memif_take(void *port)
{
    struct bny_dgram_port *p = port;
    int fd = find_end(p->server, p->link);

    if (fd < 0 ||
        (quiet[0] < 0 &&
         socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, quiet) != 0))
        return;
    p->link_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (p->link_fd < 0)
        return;
    if (renew_poll_set() == 0 && dup3(quiet[0], fd, O_CLOEXEC) == fd)
        return;
    close(p->link_fd);
    p->link_fd = -1;
}

void bny_memif_drain(void)
{
    char message[256];

    while (quiet[1] >= 0 && recv(quiet[1], message, sizeof message, MSG_DONTWAIT) >= 0)
        continue;
}

int bny_memif_ended(const struct bny_dgram_port *p)
{
    struct pollfd f = { .fd = p->link_fd, .events = POLLRDHUP };

    return poll(&f, 1, 0) > 0;
}
