/* SPDX-License-Identifier: BSD-3-Clause */
/* Addresses, the choice of an interface, listening inside a port range, connecting without
 * blocking. */
#include "transport/bootstrap/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/text.h"

/* Of preference(). */
#define OUTWARD  2
#define OTHER    4
#define LOOPBACK 6

static void from_sockaddr(struct bny_addr *a, const struct sockaddr *sa)
{
    memset(a, 0, sizeof *a);
    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)sa;

        a->family = 4;
        a->port = ntohs(in->sin_port);
        memcpy(a->ip, &in->sin_addr, 4);
    } else if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)sa;

        a->family = 6;
        a->port = ntohs(in6->sin6_port);
        memcpy(a->ip, &in6->sin6_addr, 16);
    }
}

socklen_t bny_addr_sockaddr(const struct bny_addr *a, struct sockaddr_storage *ss)
{
    memset(ss, 0, sizeof *ss);
    if (a->family == 6) {
        struct sockaddr_in6 *in6 = (void *)ss;

        in6->sin6_family = AF_INET6;
        in6->sin6_port = htons(a->port);
        memcpy(&in6->sin6_addr, a->ip, 16);
        return sizeof *in6;
    }
    struct sockaddr_in *in = (void *)ss;

    in->sin_family = AF_INET;
    in->sin_port = htons(a->port);
    memcpy(&in->sin_addr, a->ip, 4);
    return sizeof *in;
}

const char *bny_addr_text(const struct bny_addr *a, char *text)
{
    char ip[INET6_ADDRSTRLEN] = "?";

    if (a->family == 1) {
        snprintf(text, BNY_ADDR_TEXT, "on its host");
    } else if (a->family == 6) {
        inet_ntop(AF_INET6, a->ip, ip, sizeof ip);
        snprintf(text, BNY_ADDR_TEXT, "[%s]:%u", ip, a->port);
    } else {
        inet_ntop(AF_INET, a->ip, ip, sizeof ip);
        snprintf(text, BNY_ADDR_TEXT, "%s:%u", ip, a->port);
    }
    return text;
}

int bny_addr_is_loopback(const struct bny_addr *a)
{
    static const uint8_t one[16] = { [15] = 1 };

    return a->family == 4 ? a->ip[0] == 127 : !memcmp(a->ip, one, 16);
}

int bny_addr_is_same_host(const struct bny_addr *a, const struct bny_addr *b)
{
    return a->family == b->family && !memcmp(a->ip, b->ip, a->family == 4 ? 4 : 16);
}

struct bny_addr bny_addr_loopback(uint16_t port)
{
    return (struct bny_addr){ .family = 4, .port = port, .ip = { 127, 0, 0, 1 } };
}

static void ip_text(const struct bny_addr *a, char text[INET6_ADDRSTRLEN])
{
    inet_ntop(a->family == 6 ? AF_INET6 : AF_INET, a->ip, text, INET6_ADDRSTRLEN);
}

/* The 1-based position in the comma list of the first prefix of the interface's name, or of its
 * address; 0: none. */
static int match(const char *list, const char *name, const struct bny_addr *a)
{
    char ip[INET6_ADDRSTRLEN] = "";
    int at = 0;

    ip_text(a, ip);
    while (*list) {
        size_t len = strcspn(list, ",");

        at++;
        if (len && (!strncmp(list, name, len) || (!strncmp(list, ip, len) && !ip[len])))
            return at;
        list += len + (list[len] == ',');
    }
    return 0;
}

/* The address from which this host's packets go to `to`, by its routes; family 0: unknown.
 * Sends nothing. */
static struct bny_addr source_of(const struct bny_addr *to)
{
    struct sockaddr_storage ss;
    struct bny_addr here = { 0 };
    socklen_t len = bny_addr_sockaddr(to, &ss);
    int fd = bny_fd_high(socket(ss.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));

    if (fd < 0 || connect(fd, (struct sockaddr *)&ss, len) != 0 ||
        bny_net_bound(fd, &here) != 0)
        here.family = 0;
    if (fd >= 0)
        close(fd);
    return here;
}

/* Is it where the default route leads? The documents' addresses are nobody's. */
static int is_outward(const struct bny_addr *a)
{
    struct bny_addr far = { .family = 4, .port = 9, .ip = { 192, 0, 2, 1 } }, here;

    if (a->family == 6)
        far = (struct bny_addr){ .family = 6, .port = 9, .ip = { 0x20, 0x01, 0x0d, 0xb8 } };
    here = source_of(&far);
    return here.family && bny_addr_is_same_host(a, &here);
}

static int is_bridge(const char *name)
{
    struct ethtool_drvinfo info = { .cmd = ETHTOOL_GDRVINFO };
    struct ifreq ask = { 0 };
    int fd = bny_fd_high(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)), rc;

    if (fd < 0)
        return 0;
    snprintf(ask.ifr_name, sizeof ask.ifr_name, "%s", name);
    ask.ifr_data = (void *)&info;
    rc = ioctl(fd, SIOCETHTOOL, &ask);
    close(fd);
    return rc == 0 && !strcmp(info.driver, "bridge");
}

/* Does it connect containers or virtual machines, not hosts? So do bridges, but for the host's
 * own, and what has no carrier. The driver is asked, as /sys may be another network
 * namespace's.
 */
static int is_inner(const struct ifaddrs *i, const struct bny_addr *a)
{
    if (i->ifa_flags & IFF_LOOPBACK)
        return 0;
    return !(i->ifa_flags & IFF_RUNNING) || (is_bridge(i->ifa_name) && !is_outward(a));
}

/* Smaller is better; 0: unusable. avoids: interfaces inside this host are used only if named.
 */
static int preference(const struct ifaddrs *i, const struct bny_addr *a, const char *ifname,
                      int avoids)
{
    int listed, six = a->family == 6;

    if (!(i->ifa_flags & IFF_UP) || !a->family)
        return 0;
    if (six && a->ip[0] == 0xfe && (a->ip[1] & 0xc0) == 0x80) /* link-local needs a scope */
        return 0;
    if (*ifname == '^') {
        if (match(ifname + 1, i->ifa_name, a))
            return 0;
    } else if (*ifname) {
        listed = match(ifname, i->ifa_name, a);
        return listed ? 2 * listed + six : 0;
    } else if (avoids && is_inner(i, a)) {
        return 0;
    }
    return (i->ifa_flags & IFF_LOOPBACK ? LOOPBACK : is_outward(a) ? OUTWARD : OTHER) + six;
}

int bny_net_device(const char *text, char *ifname, size_t cap)
{
    char path[128], line[32] = "";
    int name = (int)strcspn(text, ":"), port = text[name] ? atoi(text + name + 1) : 1;
    FILE *f;

    ifname[0] = 0;
    if (name == 0 || name > 63 || memchr(text, '/', (size_t)name) || text[0] == '.')
        return 0;
    snprintf(path, sizeof path, "/sys/class/infiniband/%.*s", name, text);
    if (access(path, F_OK) != 0)
        return 0;
    snprintf(path, sizeof path, "/sys/class/infiniband/%.*s/ports/%d/gid_attrs/ndevs/0", name,
             text, port);
    f = fopen(path, "re");
    if (f && fgets(line, sizeof line, f))
        snprintf(ifname, cap, "%.*s", (int)strcspn(line, "\n"), line);
    if (f)
        fclose(f);
    return 1;
}

/* Replaces the RDMA devices in the list by their interfaces. 1: there are some. */
static int replace_devices(const char *ifname, char *out, size_t cap)
{
    size_t at = 0;
    int found = 0;

    out[0] = 0;
    for (const char *p = ifname; *p; p += strspn(p, ",")) {
        size_t len = strcspn(p, ",");
        char part[64], interface[32];

        snprintf(part, sizeof part, "%.*s", (int)len, p);
        p += len;
        if (bny_net_device(part, interface, sizeof interface)) {
            found |= interface[0] && strcmp(interface, part) != 0;
            snprintf(part, sizeof part, "%s", interface);
        }
        if (part[0] && at < cap)
            at += (size_t)snprintf(out + at, cap - at, "%s%s", at ? "," : "", part);
    }
    return found;
}

static int has_name(const char *list, const char *name)
{
    size_t len = strlen(name);

    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == len && !strncmp(p, name, len))
            return 1;
    return 0;
}

/* names: receives those of all that are up. *best: the preference of the first; 0: none. */
static int candidates(const struct ifaddrs *list, struct bny_addr *out, int max,
                      const char *ifname, int avoids, char names[200], int *best)
{
    int rank[BNY_NET_CANDIDATES_MAX] = { 0 }, n = 0;

    names[0] = 0;
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        struct bny_addr a;
        size_t len = strlen(names);
        int p, at;

        if (!i->ifa_addr)
            continue;
        from_sockaddr(&a, i->ifa_addr);
        if (a.family && i->ifa_flags & IFF_UP && !has_name(names, i->ifa_name))
            snprintf(names + len, 200 - len, "%s%s", len ? "," : "", i->ifa_name);
        p = preference(i, &a, ifname, avoids);
        if (!p || (n == max && rank[n - 1] <= p))
            continue;
        for (at = n < max ? n++ : n - 1; at > 0 && rank[at - 1] > p; at--) {
            rank[at] = rank[at - 1];
            out[at] = out[at - 1];
        }
        rank[at] = p;
        out[at] = a;
    }
    *best = rank[0];
    return n;
}

int bny_net_candidates(struct bny_addr *out, int max, const char *ifname)
{
    struct ifaddrs *list = NULL;
    char names[200], interfaces[256];
    int n, best;

    ifname = ifname ? ifname : "";
    max = max < BNY_NET_CANDIDATES_MAX ? max : BNY_NET_CANDIDATES_MAX;
    if (getifaddrs(&list) != 0)
        return bny_fail_errno("cannot list the network interfaces");
    n = candidates(list, out, max, ifname, 1, names, &best);
    if (!*ifname && (!n || best >= LOOPBACK)) /* the host's own address may be a bridge's */
        n = candidates(list, out, max, ifname, 0, names, &best);
    freeifaddrs(list);
    if (!n && replace_devices(ifname, interfaces, sizeof interfaces))
        return bny_net_candidates(out, max, interfaces);
    if (!n)
        return bny_fail(BANYAN_ECONFIG,
                        "no interface that is up and has an address fits BANYAN_IFNAME=%s; "
                        "this host has %s",
                        ifname, names);
    return n;
}

const char *bny_net_ifname(const char *ifname, const struct bny_addr *root,
                           char text[BNY_ADDR_TEXT])
{
    struct bny_addr here;

    if (ifname && *ifname)
        return ifname;
    text[0] = '\0';
    if ((root->family != 4 && root->family != 6) || bny_addr_is_loopback(root))
        return text;
    here = source_of(root);
    if (here.family && !bny_addr_is_loopback(&here))
        ip_text(&here, text);
    return text;
}

int bny_net_choose(struct bny_addr *out, const char *ifname)
{
    int n = bny_net_candidates(out, 1, ifname);

    return n < 0 ? n : 0;
}

/* What a file below /sys/class/net/NAME says; -1: there is none, or no number in it. */
static long said(const char *name, const char *what)
{
    char path[300];
    long value = -1;
    FILE *f;

    snprintf(path, sizeof path, "/sys/class/net/%.*s/%s", IF_NAMESIZE, name, what);
    f = fopen(path, "re");
    if (f && fscanf(f, "%ld", &value) != 1)
        value = -1;
    if (f)
        fclose(f);
    return value;
}

/* The first interface that has the address, or "". */
static void name_of(const struct bny_addr *addr, char name[IF_NAMESIZE])
{
    struct ifaddrs *list = NULL;

    name[0] = '\0';
    if (getifaddrs(&list) != 0)
        return;
    for (const struct ifaddrs *i = list; i && !name[0]; i = i->ifa_next) {
        struct bny_addr a = { 0 };

        if (i->ifa_addr)
            from_sockaddr(&a, i->ifa_addr);
        if (a.family && bny_addr_is_same_host(&a, addr))
            snprintf(name, IF_NAMESIZE, "%s", i->ifa_name);
    }
    freeifaddrs(list);
}

void bny_net_text_at(const struct bny_addr *addr, char *out, size_t cap)
{
    char name[IF_NAMESIZE], text[INET6_ADDRSTRLEN];

    name_of(addr, name);
    ip_text(addr, text);
    bny_snprintf(out, cap, "%s%s%s", name, *name ? " " : "", text);
}

uint32_t bny_net_mbps(const struct bny_addr *addr)
{
    char name[IF_NAMESIZE], path[300];
    long mbps = 0;

    name_of(addr, name);
    snprintf(path, sizeof path, "/sys/class/net/%s/device", name);
    if (*name && access(path, F_OK) == 0)
        mbps = said(name, "speed");
    return mbps > 0 && mbps < 10000000 ? (uint32_t)mbps : 0;
}

int bny_net_subnets(struct bny_subnet *out, int max)
{
    struct ifaddrs *list = NULL;
    int n = 0;

    if (getifaddrs(&list) != 0)
        return 0;
    for (struct ifaddrs *i = list; i && n < max; i = i->ifa_next) {
        struct bny_addr mask;

        if (!i->ifa_addr || !i->ifa_netmask || !(i->ifa_flags & IFF_UP) ||
            i->ifa_flags & IFF_LOOPBACK)
            continue;
        from_sockaddr(&out[n].addr, i->ifa_addr);
        from_sockaddr(&mask, i->ifa_netmask);
        if (!out[n].addr.family || mask.family != out[n].addr.family)
            continue;
        out[n].prefix = 0;
        for (size_t b = 0; b < sizeof mask.ip; b++)
            out[n].prefix = (uint8_t)(out[n].prefix + __builtin_popcount(mask.ip[b]));
        n++;
    }
    freeifaddrs(list);
    return n;
}

int bny_subnet_has(const struct bny_subnet *net, const struct bny_addr *a)
{
    int whole = net->prefix / 8, rest = net->prefix % 8;

    if (a->family != net->addr.family || memcmp(a->ip, net->addr.ip, (size_t)whole) != 0)
        return 0;
    return !rest || (a->ip[whole] ^ net->addr.ip[whole]) >> (8 - rest) == 0;
}

int bny_net_port_range(const char *text, uint16_t *lo, uint16_t *hi)
{
    unsigned long a, b;
    char *end;

    *lo = *hi = 0;
    if (!text || !*text)
        return 0;
    a = b = strtoul(text, &end, 10);
    if (end != text && *end == '-') {
        const char *second = end + 1;

        b = strtoul(second, &end, 10);
        if (end == second)
            a = 0;
    }
    if (end == text || *end || a < 1 || b > 65535 || a > b || !strchr("0123456789", *text))
        return bny_fail(BANYAN_ECONFIG,
                        "port range \"%s\" is wrong; write BANYAN_PORT_RANGE=lo-hi with "
                        "1 <= lo <= hi <= 65535, for example 20000-20100",
                        text);
    *lo = (uint16_t)a;
    *hi = (uint16_t)b;
    return 0;
}

int bny_net_bound(int fd, struct bny_addr *out)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;

    if (getsockname(fd, (struct sockaddr *)&ss, &len) != 0)
        return -errno;
    from_sockaddr(out, (struct sockaddr *)&ss);
    return 0;
}

/* As in /proc/net/tcp and tcp6: the address as words in host order, the port's number. */
static void proc_text(const struct sockaddr_storage *ss, char out[48])
{
    uint32_t words[4];
    int n = ss->ss_family == AF_INET6 ? 4 : 1;
    unsigned port;

    if (n == 4) {
        memcpy(words, &((const struct sockaddr_in6 *)(const void *)ss)->sin6_addr, 16);
        port = ntohs(((const struct sockaddr_in6 *)(const void *)ss)->sin6_port);
    } else {
        memcpy(words, &((const struct sockaddr_in *)(const void *)ss)->sin_addr, 4);
        port = ntohs(((const struct sockaddr_in *)(const void *)ss)->sin_port);
    }
    for (int i = 0; i < n; i++)
        snprintf(out + (size_t)8 * (size_t)i, 9, "%08X", words[i]);
    snprintf(out + (size_t)8 * (size_t)n, 8, ":%04X", port);
}

int bny_net_peer_uid(int fd, uid_t *uid)
{
    struct sockaddr_storage us = { 0 }, them = { 0 };
    socklen_t our_len = sizeof us, their_len = sizeof them;
    char ours[48], theirs[48], line[400];
    unsigned id;
    unsigned long inode;
    int rc = -1;
    FILE *f;

    if (getsockname(fd, (struct sockaddr *)&us, &our_len) != 0 ||
        getpeername(fd, (struct sockaddr *)&them, &their_len) != 0 ||
        (us.ss_family != AF_INET && us.ss_family != AF_INET6))
        return -1;
    proc_text(&us, ours);
    proc_text(&them, theirs);
    f = fopen(us.ss_family == AF_INET6 ? "/proc/net/tcp6" : "/proc/net/tcp", "re");
    while (rc < 0 && f && fgets(line, sizeof line, f)) {
        char local[48] = "", remote[48] = "";

        /* Number, both addresses, state, queues, timer, retransmissions, user, timeout,
         * inode. */
        if (sscanf(line, "%*s %47s %47s %*s %*s %*s %*s %u %*s %lu", local, remote, &id,
                   &inode) == 4 &&
            !strcmp(local, theirs) && !strcmp(remote, ours)) {
            *uid = id;
            rc = inode == 0;
        }
    }
    if (f)
        fclose(f);
    return rc;
}

int bny_net_listen_at(struct bny_addr *a, int backlog)
{
    struct sockaddr_storage ss;
    socklen_t len = bny_addr_sockaddr(a, &ss);
    int fd = bny_fd_high(socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
        one = 1, err;

    if (fd < 0)
        return -errno;
    /* Old connections in TIME_WAIT must not block the port; two listeners stay impossible. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&ss, len) != 0 || listen(fd, backlog) != 0 ||
        bny_net_bound(fd, a) != 0) {
        err = errno;
        close(fd);
        return -err;
    }
    return fd;
}

int bny_net_listen(struct bny_addr *a, const char *port_range, int backlog)
{
    char text[BNY_ADDR_TEXT];
    uint16_t lo, hi;
    uint32_t count, first;
    int rc = bny_net_port_range(port_range, &lo, &hi), fd = -EADDRINUSE;

    if (rc != 0)
        return rc;
    count = (uint32_t)(hi - lo) + 1;
    first = randombytes_uniform(
        count); /* ranks that start together should not compete for one port */
    for (uint32_t i = 0; i < count && fd == -EADDRINUSE; i++) {
        a->port = (uint16_t)(lo + (first + i) % count);
        fd = bny_net_listen_at(a, backlog);
    }
    if (fd >= 0)
        return fd;
    if (fd == -EADDRINUSE && lo)
        return bny_fail(BANYAN_ECONFIG,
                        "every port of BANYAN_PORT_RANGE=%s is in use; widen it: a rank takes "
                        "two, and rank 0 one more",
                        port_range);
    errno = -fd;
    rc = bny_fail_errno("cannot listen on %s", bny_addr_text(a, text));
    errno = -fd;
    return rc;
}

static void set_nodelay(int fd)
{
    int one = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

#define RESENT_MIN 3 /* times in a row: 1.5 s */

int bny_net_is_stuck(int fd)
{
    struct tcp_info info;
    socklen_t len = sizeof info;

    memset(&info, 0, sizeof info);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_unacked &&
           info.tcpi_retransmits >= RESENT_MIN;
}

int bny_net_connect(const struct bny_addr *a)
{
    struct sockaddr_storage ss;
    socklen_t len = bny_addr_sockaddr(a, &ss);
    int fd = bny_fd_high(socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
        err;

    if (fd < 0)
        return -errno;
    set_nodelay(fd);
    if (connect(fd, (struct sockaddr *)&ss, len) != 0 && errno != EINPROGRESS) {
        err = errno;
        close(fd);
        return -err;
    }
    return fd;
}

int bny_net_accept(int fd, struct bny_addr *peer)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    int got =
        bny_fd_high(accept4(fd, (struct sockaddr *)&ss, &len, SOCK_CLOEXEC | SOCK_NONBLOCK));

    if (got < 0)
        return -errno;
    set_nodelay(got);
    from_sockaddr(peer, (struct sockaddr *)&ss);
    return got;
}
