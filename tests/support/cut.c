/* SPDX-License-Identifier: BSD-3-Clause */
/* Resets of TCP connections; see cut.h. */
#include "tests/support/cut.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef SOCK_DESTROY
#define SOCK_DESTROY 21
#endif

static void fill(struct inet_diag_sockid *id, const struct sockaddr_storage *ss, int peer)
{
    const struct sockaddr_in *in = (const void *)ss;
    const struct sockaddr_in6 *in6 = (const void *)ss;
    void *addr = peer ? id->idiag_dst : id->idiag_src;

    if (ss->ss_family == AF_INET)
        memcpy(addr, &in->sin_addr, 4);
    else
        memcpy(addr, &in6->sin6_addr, 16);
    *(peer ? &id->idiag_dport : &id->idiag_sport) =
        ss->ss_family == AF_INET ? in->sin_port : in6->sin6_port;
}

int cut_kill(int fd)
{
    struct sockaddr_storage here = { 0 }, there = { 0 };
    socklen_t nhere = sizeof here, nthere = sizeof there;
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 req;
    } ask = { .head = { .nlmsg_len = sizeof ask,
                        .nlmsg_type = SOCK_DESTROY,
                        .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK } };
    struct {
        struct nlmsghdr head;
        struct nlmsgerr err;
    } answer;
    int nl, rc;

    if (getsockname(fd, (struct sockaddr *)&here, &nhere) != 0 ||
        getpeername(fd, (struct sockaddr *)&there, &nthere) != 0)
        return -errno;
    ask.req.sdiag_family = (uint8_t)here.ss_family;
    ask.req.sdiag_protocol = IPPROTO_TCP;
    ask.req.idiag_states = ~0u;
    ask.req.id.idiag_cookie[0] = ask.req.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
    fill(&ask.req.id, &here, 0);
    fill(&ask.req.id, &there, 1);
    nl = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (nl < 0)
        return -errno;
    rc = send(nl, &ask, sizeof ask, 0) < 0 ? -errno : 0;
    if (rc == 0)
        rc = recv(nl, &answer, sizeof answer, 0) < (ssize_t)sizeof answer ? -EPROTO
                                                                          : answer.err.error;
    close(nl);
    return rc;
}

int cut_reset(int fd)
{
    struct sockaddr none = { .sa_family = AF_UNSPEC };

    return connect(fd, &none, sizeof none) == 0 ? 0 : -errno;
}

int cut(int fd)
{
    const char *how = getenv("BANYAN_TEST_CUT"); /* "reset": as where the first cannot be */
    int rc = how && !strcmp(how, "reset") ? -EPERM : cut_kill(fd);

    return rc == -EPERM || rc == -EOPNOTSUPP || rc == -EACCES ? cut_reset(fd) : rc;
}
