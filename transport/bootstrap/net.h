/* SPDX-License-Identifier: BSD-3-Clause */
/* Addresses, the choice of an interface, listening inside a port range, connecting without
 * blocking. */
#ifndef BNY_BOOTSTRAP_NET_H
#define BNY_BOOTSTRAP_NET_H

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

/* 20 bytes, as in peer infos; port in host order (little endian everywhere). */
struct bny_addr {
    uint8_t family; /* 4 or 6; 0: none; 1: a Unix socket (host_tree.h), never on the wire */
    uint8_t pad;
    uint16_t port;
    uint8_t ip[16]; /* the first 4 bytes for family 4 */
};
_Static_assert(sizeof(struct bny_addr) == 20, "wire format");

#define BNY_ADDR_TEXT 64

/* "10.0.0.1:4711" or "[fd00::1]:4711" into text[BNY_ADDR_TEXT]; returns text. */
const char *bny_addr_text(const struct bny_addr *a, char *text);
/* As a socket address; returns its length. */
socklen_t bny_addr_sockaddr(const struct bny_addr *a, struct sockaddr_storage *ss);
int bny_addr_is_loopback(const struct bny_addr *a);
/* The same address, whatever the port. */
int bny_addr_is_same_host(const struct bny_addr *a, const struct bny_addr *b);
/* 127.0.0.1 with a port. */
struct bny_addr bny_addr_loopback(uint16_t port);

/* 1 if text names an RDMA device, "mlx5_0" or "mlx5_0:1" (its port); ifname is then its network
 * interface, or "" if it has none (InfiniBand). bny_net_candidates accepts such names, also in
 * lists, in place of interfaces. */
int bny_net_device(const char *text, char *ifname, size_t cap);

/* The address to listen on: ifname is a list of prefixes in order of preference ("eth0,ib"), or
 * addresses, an exclusion ("^lo,docker"), or "": the interface of the default route, else the
 * first that is up, has a carrier and is no bridge, else a bridge, else loopback. Returns 0,
 * -BANYAN_ECONFIG (names the interfaces there are), -BANYAN_ESYSTEM. */
int bny_net_choose(struct bny_addr *out, const char *ifname);
/* ifname, unless it is NULL or "": then, in text, the address from which this host's packets go
 * to the job's root, by its routes; "": that is loopback, or unknown. Sends nothing. */
const char *bny_net_ifname(const char *ifname, const struct bny_addr *root,
                           char text[BNY_ADDR_TEXT]);
/* "eth0 10.1.2.3": the address, and the interface that has it, or the address alone. */
void bny_net_text_at(const struct bny_addr *addr, char *out, size_t cap);
/* Megabits a second of the device that has the address; 0: unknown. A virtual one says a number
 * that means nothing. */
uint32_t bny_net_mbps(const struct bny_addr *addr);
/* All such addresses, best first, at most max (and BNY_NET_CANDIDATES_MAX); loopback last
 * unless ifname prefers it. Returns their number, at least 1, or an error as bny_net_choose. */
#define BNY_NET_CANDIDATES_MAX 8
int bny_net_candidates(struct bny_addr *out, int max, const char *ifname);

/* A network to which an interface of this host is attached. */
struct bny_subnet {
    struct bny_addr addr;
    uint8_t prefix; /* bits */
};
/* The networks of all interfaces that are up, without loopback; at most max. Returns their
 * number. */
int bny_net_subnets(struct bny_subnet *out, int max);
int bny_subnet_has(const struct bny_subnet *net, const struct bny_addr *a);

/* "20000-20100", "20000", or "" (any: both 0). Returns 0 or -BANYAN_ECONFIG. */
int bny_net_port_range(const char *text, uint16_t *lo, uint16_t *hi);
/* Listens on a->ip, without blocking, at a->port (0: any), which is set. Returns the fd, or
 * -errno without a sentence. */
int bny_net_listen_at(struct bny_addr *a, int backlog);
/* Listens on a->ip at a port of the range. Returns the fd, -BANYAN_ECONFIG or -BANYAN_ESYSTEM;
 * errno has the cause. */
int bny_net_listen(struct bny_addr *a, const char *port_range, int backlog);
/* Does the peer not acknowledge what was sent several times over this connection? If short
 * messages went through before, long packets are lost on the way. */
int bny_net_is_stuck(int fd);
/* A sentence of its own, and a part of one. */
#define BNY_NET_DOCTOR "banyan_doctor under the same launcher tells more"
#define BNY_NET_MTU                                                                            \
    "Long packets may be lost: check that all hosts and switches on the way have one MTU "     \
    "(ip link; ping -M do -s 1472 HOST); " BNY_NET_DOCTOR
/* Starts to connect. Returns the fd, or -errno. */
int bny_net_connect(const struct bny_addr *a);
/* Accepts one connection without blocking. Returns the fd, or -errno (-EAGAIN: none). */
int bny_net_accept(int fd, struct bny_addr *peer);
/* Owner of the socket at the other end of connection fd. Returns 0; 1: none, as its process has
 * closed or not yet accepted it (Linux then reports user 0); -1: it is on another host or
 * network namespace, or Linux does not report it. */
int bny_net_peer_uid(int fd, uid_t *uid);
/* The address and port a socket is bound to. Returns 0 or -errno. */
int bny_net_bound(int fd, struct bny_addr *out);

#endif
