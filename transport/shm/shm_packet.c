/* SPDX-License-Identifier: BSD-3-Clause */
/* One packet, with or without a descriptor, over a socket. */
#include "transport/shm/shm_impl.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"

int bny_shm_packet_send(int sock, const struct shm_packet *p, int fd)
{
    struct iovec iov = { (void *)(uintptr_t)p, sizeof *p };
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

    if (fd >= 0) {
        memset(&control, 0, sizeof control);
        m.msg_control = &control;
        m.msg_controllen = sizeof control.room;
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    }
    if (sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof *p)
        return 0;
    return errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS ? BNY_AGAIN : -1;
}

int bny_shm_packet_receive(int sock, struct shm_packet *p, int *fd)
{
    struct iovec iov = { p, sizeof *p };
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct msghdr m = { .msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = &control,
                        .msg_controllen = sizeof control };
    ssize_t n = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    *fd = -1;
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
        size_t fds = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < fds; i++) {
            int got;

            memcpy(&got, CMSG_DATA(h) + i * sizeof got, sizeof got);
            if (*fd < 0)
                *fd = bny_fd_high(got);
            else
                close(got);
        }
    }
    if (*fd < 0 && m.msg_flags & MSG_CTRUNC)
        *fd = SHM_FD_LOST;
    if (n != (ssize_t)sizeof *p || (m.msg_flags & MSG_TRUNC) || p->magic != SHM_MAGIC ||
        p->version != SHM_VERSION) {
        if (*fd >= 0)
            close(*fd);
        *fd = -1;
        return -1;
    }
    return 1;
}
