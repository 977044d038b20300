/* SPDX-License-Identifier: BSD-3-Clause */
/* Queries the kernel about an interface: for the library and for its module, which share no
 * code. */
#ifndef BNY_DGRAM_IFACE_H
#define BNY_DGRAM_IFACE_H

#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/datagram/driver.h"

/* what: SIOCGIF*. 0: r has the answer; -1: no such interface or value; 1: no descriptor
 * left. */
static inline int bny_dgram_ask_iface(const char *name, unsigned long what, struct ifreq *r)
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

#define BNY_IFA_UNUSABLE  0x08u /* IFA_F_DADFAILED of linux/if_addr.h */
#define BNY_IFA_TENTATIVE 0x40u

/* IPv6: sets *prefix to the prefix length of *ip; if that is none, also the address: a global
 * one before a link-local one. 0; 1: the only one is still tentative; -1: there is none. */
static inline int bny_dgram_iface_ip6(const char *name, struct bny_dgram_ip *ip, int *prefix)
{
    FILE *f = fopen("/proc/net/if_inet6", "re");
    char line[200], hex[33], at[20];
    unsigned index, bits, scope, flags;
    int is_told = !bny_dgram_ip_none(ip), rc = -1;

    while (f && fgets(line, sizeof line, f)) {
        struct bny_dgram_ip a;

        if (sscanf(line, "%32s %x %x %x %x %19s", hex, &index, &bits, &scope, &flags, at) !=
                6 ||
            strcmp(at, name) != 0 || bits > 128 || flags & BNY_IFA_UNUSABLE)
            continue;
        for (int i = 0; i < 16; i++) {
            unsigned v = 0;

            sscanf(hex + 2 * i, "%2x", &v);
            a.at[i] = (uint8_t)v;
        }
        if (is_told ? !bny_dgram_ip_is(&a, ip)
                    : rc == 0 && !(bny_dgram_ip_is_local(ip) && !bny_dgram_ip_is_local(&a)))
            continue;
        if (!is_told && flags & BNY_IFA_TENTATIVE) {
            rc = rc == 0 ? 0 : 1;
            continue;
        }
        *ip = a;
        *prefix = (int)bits;
        rc = 0;
    }
    if (f)
        fclose(f);
    return rc;
}

#endif
