/* SPDX-License-Identifier: BSD-3-Clause */
/* Asks the kernel about one of its interfaces: for the library and for its module, which share
 * no code. */
#ifndef BNY_DPDK_IFACE_H
#define BNY_DPDK_IFACE_H

#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* what: SIOCGIF*. 0: r has the answer; -1: there is no such interface, or it has none; 1: no
 * descriptor to ask with. */
static inline int bny_dpdk_ask_iface(const char *name, unsigned long what, struct ifreq *r)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), rc;

    memset(r, 0, sizeof *r);
    snprintf(r->ifr_name, sizeof r->ifr_name, "%.15s", name);
    if (fd < 0)
        return 1;
    rc = ioctl(fd, what, r);
    close(fd);
    return rc == 0 ? 0 : -1;
}

#endif
