/* SPDX-License-Identifier: BSD-3-Clause */
/* Ports and addresses; and events that become due without a packet. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/secret.h"
#include "transport/datagram/dgram.h"
#include "transport/datagram/iface.h"
#include "transport/datagram/neighbour.h"
#include "transport/proof.h"

#define PAIR_PORT 47474u
#define ASK_NS    10000000u
#define ASKS      5u

#define ASK_LATE_NS 1000000000u

/* ---- addresses ---- */

int bny_dgram_place(enum bny_dgram_kind kind, uint8_t out[16])
{
    static uint64_t process; /* unique to each process, and after each fork */
    static pid_t pid;
    char text[200] = { 0 };
    FILE *f;

    memset(out, 0, 16);
    if (kind == BNY_DGRAM_RING) {
        if (!process || pid != getpid()) {
            randombytes_buf(&process, sizeof process);
            pid = getpid();
        }
        memcpy(out, &process, sizeof process);
    } else if (kind ==
               BNY_DGRAM_MEMIF) { /* the network namespace has the name of the link's socket */
        f = fopen("/proc/sys/kernel/random/boot_id", "re");
        if (!f || !fgets(text, 64, f))
            gethostname(text, 64);
        if (f)
            fclose(f);
        if (readlink("/proc/self/ns/net", text + 100, 99) < 0)
            text[100] = 0;
        crypto_generichash(out, 16, (const unsigned char *)text, sizeof text, NULL, 0);
    }
    return 0;
}

static void digest(const struct dp_ep *e, const char *what, int from, int to, void *out,
                   size_t len)
{
    const struct dp_tp *t = (const struct dp_tp *)e->ep.tp;
    int low = e->ep.peer < t->tp.rank;
    struct {
        char what[8];
        uint64_t nonce[2];
        int32_t rank[2];
    } in;
    uint8_t hash[32];

    memset(&in, 0, sizeof in);
    snprintf(in.what, sizeof in.what, "%s", what);
    in.nonce[low] = t->blob.nonce;
    in.nonce[!low] = e->blob.nonce;
    in.rank[0] = from;
    in.rank[1] = to;
    crypto_generichash(hash, sizeof hash, (const unsigned char *)&in, sizeof in, t->secret,
                       BNY_SECRET_BYTES);
    memcpy(out, hash, len);
    sodium_memzero(hash, sizeof hash);
}

/* If there is none: contains the rank. */
static void mac_of(uint8_t mac[6], int32_t rank)
{
    mac[0] = 2;
    mac[1] = 0;
    memcpy(mac + 2, &rank, 4);
}

void bny_dgram_derive(struct dp_ep *e)
{
    const struct dp_tp *t = (const struct dp_tp *)e->ep.tp;
    int me = t->tp.rank, peer = e->ep.peer, low = me < peer ? me : peer,
        high = me < peer ? peer : me;

    digest(e, "tag", me, peer, &e->tag_out, sizeof e->tag_out);
    digest(e, "tag", peer, me, &e->tag_in, sizeof e->tag_in);
    digest(e, "key", low, high, e->key, 32);
    bny_secret_forget();
    e->self = (struct bny_dgram_addr){ .ip = t->blob.ip, .port = t->blob.udp_port };
    memcpy(e->self.mac, t->blob.mac, 6);
    e->other = (struct bny_dgram_addr){ .ip = e->blob.ip, .port = e->blob.udp_port };
    memcpy(e->other.mac, e->blob.mac, 6);
    if (t->set.kind == BNY_DGRAM_UD)
        mac_of(e->other.mac, peer);
    e->is_routed = !bny_dgram_ip_none(&t->set.gateway) && !bny_dgram_ip_is_local(&e->blob.ip) &&
                   !bny_dgram_ip_shares(&e->blob.ip, &t->blob.ip, t->set.prefix);
    e->via = e->is_routed ? t->set.gateway : e->blob.ip;
    bny_dgram_eth_init(e->eth, &e->self, &e->other);
}

/* ---- ports ---- */

int bny_dgram_open_pair(struct dp_ep *e)
{
    struct dp_tp *t = dp_tp_of(e);
    int server = t->tp.rank < e->ep.peer, high = server ? e->ep.peer : t->tp.rank,
        low = server ? t->tp.rank : e->ep.peer;
    char link[64] = "bny", secret[25], text[BNY_DGRAM_TEXT] = "";
    uint8_t bytes[12], name[16];
    struct bny_dgram_conf c = { .kind = t->set.kind,
                                .device = t->set.device,
                                .link = link,
                                .secret = secret,
                                .id = high,
                                .server = server,
                                .frame_max = t->blob.frame,
                                .bufs = DP_BUDGET };

    if (e->blob.frame < c.frame_max)
        c.frame_max = e->blob.frame;
    /* A socket for each pair: a client that finds no socket retries, but a refusal by another
     * pair's socket would be final. A process without the secret cannot take its name first:
     * the client does not know who listens there, and hands over its memory. */
    digest(e, "socket", low, high, name, sizeof name);
    sodium_bin2hex(link + 3, sizeof link - 3, name, sizeof name);
    digest(e, "link", low, high, bytes, sizeof bytes);
    sodium_bin2hex(secret, sizeof secret, bytes, sizeof bytes);
    memcpy(c.mac, t->blob.mac, 6);
    if (t->drv->open(&c, &e->port, &e->info, text) != 0)
        return bny_fail(BANYAN_ESYSTEM, "rank %d: no DPDK port to rank %d: %s", t->tp.rank,
                        e->ep.peer, text);
    e->frame = e->frame_wanted = e->info.frame_max;
    return 0;
}

const char *bny_dgram_ip_text(const struct bny_dgram_ip *ip, char text[BNY_DGRAM_IP_TEXT])
{
    int is4 = bny_dgram_ip_is4(ip);

    if (!inet_ntop(is4 ? AF_INET : AF_INET6, ip->at + (is4 ? BNY_DGRAM_IP4_AT : 0), text,
                   BNY_DGRAM_IP_TEXT))
        text[0] = '\0';
    return text;
}

/* what: SIOCGIFADDR or SIOCGIFNETMASK. */
static int interface_ip4(const char *name, unsigned long what, struct bny_dgram_ip *ip)
{
    struct ifreq r;

    if (bny_dgram_ask_iface(name, what, &r) != 0)
        return -1;
    *ip = (struct bny_dgram_ip)BNY_DGRAM_IP4(0);
    memcpy(ip->at + BNY_DGRAM_IP4_AT,
           &((struct sockaddr_in *)(void *)&r.ifr_addr)->sin_addr.s_addr, 4);
    return 0;
}

/* Address and subnet of the kernel's interface, if the settings have none: IPv4 before IPv6,
 * unless the gateway is an IPv6 one. */
static void ask_interface(struct dp_tp *t)
{
    struct bny_dgram_ip mask, gateway = t->set.gateway, *ip = &t->set.ip;
    int prefix = 0, is_told = !bny_dgram_ip_none(ip),
        may4 = bny_dgram_ip_none(&gateway) || bny_dgram_ip_is4(&gateway),
        may6 = bny_dgram_ip_none(&gateway) || !bny_dgram_ip_is4(&gateway);

    if (!is_told && may4)
        interface_ip4(t->set.iface, SIOCGIFADDR, ip);
    if (bny_dgram_ip_none(ip) ? may6 : !bny_dgram_ip_is4(ip)) {
        t->tentative = bny_dgram_iface_ip6(t->set.iface, ip, &prefix) == 1;
    } else if (interface_ip4(t->set.iface, SIOCGIFNETMASK, &mask) == 0) {
        for (prefix = 96; prefix < 128 && mask.at[prefix / 8] >> (7 - prefix % 8) & 1;)
            prefix++;
    }
    if (!t->set.prefix)
        t->set.prefix = prefix;
}

/* The kernel sees the packets too: a socket prevents its "port unreachable" answers. Its filter
 * drops all input. */
static int guard(struct dp_tp *t)
{
    struct sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog prog = { .len = 1, .filter = &none };
    int is4 = bny_dgram_ip_is4(&t->blob.ip);
    struct sockaddr_in a = { .sin_family = AF_INET };
    struct sockaddr_in6 a6 = { .sin6_family = AF_INET6 };
    struct sockaddr *at = is4 ? (struct sockaddr *)&a : (struct sockaddr *)&a6;
    socklen_t len = is4 ? sizeof a : sizeof a6;

    memcpy(&a.sin_addr, t->blob.ip.at + BNY_DGRAM_IP4_AT, 4);
    memcpy(&a6.sin6_addr, t->blob.ip.at, 16);
    if (bny_dgram_ip_is_local(&t->blob.ip))
        a6.sin6_scope_id = if_nametoindex(t->set.iface);
    t->guard = bny_fd_own(socket(at->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (t->guard < 0 ||
        setsockopt(t->guard, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof prog) != 0 ||
        bind(t->guard, at, len) != 0 || getsockname(t->guard, at, &len) != 0)
        return bny_fail_errno("rank %d: no UDP port on %s for transport dpdk (BANYAN_DPDK_ADDR "
                              "must be an address of "
                              "this interface)%s",
                              t->tp.rank, t->set.device,
                              is4 ? "" : "; a new IPv6 address takes some seconds, or nodad");
    t->blob.udp_port = ntohs(is4 ? a.sin_port : a6.sin6_port);
    return 0;
}

/* The network has its own addresses. */
static int open_ud(struct dp_tp *t, const char *ifname)
{
    char text[BNY_DGRAM_TEXT] = "";
    struct bny_dgram_conf c = { .kind = t->set.kind,
                                .device = "",
                                .iface = "",
                                .frame_max = t->set.frame,
                                .queues = 1,
                                .rank = t->tp.rank,
                                .nranks = t->tp.nranks,
                                .ifname = ifname };

    if (t->drv->open(&c, &t->port, &t->info, text) != 0)
        return bny_fail(BANYAN_ENOTSUP, "%s", text);
    snprintf(t->set.device, sizeof t->set.device, "%s", t->info.name);
    t->blob.frame = t->info.frame_max;
    bny_counter_add(&t->tp.pinned_bytes, t->info.pinned);
    bny_dgram_grants_open(t);
    return 0;
}

/* For pairs: visible on their own link only; of the family that is set. */
static void set_pair_ip(struct dp_tp *t)
{
    t->blob.ip = (struct bny_dgram_ip)BNY_DGRAM_IP4(0x0a000001u + (uint32_t)t->tp.rank);
    if (t->set.kind == BNY_DGRAM_UD || bny_dgram_ip_none(&t->set.ip) ||
        bny_dgram_ip_is4(&t->set.ip))
        return;
    memset(t->blob.ip.at, 0, BNY_DGRAM_IP4_AT);
    t->blob.ip.at[0] = 0xfd;
    t->eth = BNY_DGRAM_ETH6;
}

static int no_address(const struct dp_tp *t)
{
    if (t->tentative)
        return bny_fail(BANYAN_ENOTSUP,
                        "rank %d: the kernel has not yet seen that the IPv6 address of %s is "
                        "free: wait for some seconds, or ip addr add ADDRESS/64 dev INTERFACE "
                        "nodad",
                        t->tp.rank, t->set.device);
    return bny_fail(BANYAN_ENOTSUP, "rank %d: port %s has no IPv4 and no IPv6 address: %s",
                    t->tp.rank, t->set.device,
                    t->set.iface[0]
                        ? "ip addr add ADDRESS/24 dev INTERFACE, or set BANYAN_DPDK_ADDR"
                        : "set BANYAN_DPDK_ADDR");
}

int bny_dgram_open_device(struct dp_tp *t, const char *ifname)
{
    char text[BNY_DGRAM_TEXT] = "";
    struct bny_dgram_conf c = { .kind = t->set.kind,
                                .device = t->set.device,
                                .iface = t->set.iface,
                                .frame_max = t->set.frame,
                                .bufs = bny_dgram_bufs(t),
                                .ring = bny_dgram_ring(t),
                                .queues = t->set.queues,
                                .vlan = t->set.vlan };

    t->blob.udp_port = PAIR_PORT;
    t->blob.frame = t->set.frame;
    set_pair_ip(t);
    mac_of(t->blob.mac, t->tp.rank);
    if (t->set.kind == BNY_DGRAM_MEMIF || t->set.kind == BNY_DGRAM_RING)
        return 0;
    if (t->set.kind == BNY_DGRAM_UD)
        return open_ud(t, ifname);
    if (t->set.kind != BNY_DGRAM_AF_PACKET)
        c.udp_port = t->blob.udp_port = (uint16_t)(0xc000 | (t->blob.nonce & 0x3fff));
    if (t->set.iface[0])
        ask_interface(t);
    c.ip = t->blob.ip = t->set.ip;
    t->eth = bny_dgram_ip_none(&c.ip) ? BNY_DGRAM_ETH : bny_dgram_eth_bytes(&c.ip);
    if (t->eth == BNY_DGRAM_ETH6 && t->set.frame < DP_SAFE_FRAME6)
        return bny_fail(BANYAN_EINVAL,
                        "rank %d: BANYAN_DPDK=mtu=%u: IPv6 wants packets of 1280 bytes at "
                        "least",
                        t->tp.rank, t->set.frame - 14);
    if (t->drv->open(&c, &t->port, &t->info, text) != 0)
        return bny_fail(BANYAN_ENOTSUP, "rank %d: %s", t->tp.rank, text);
    memcpy(t->blob.mac, t->info.mac, 6);
    t->blob.frame = t->info.frame_max;
    t->blob.queues = (uint16_t)t->info.queues;
    t->blob.verifies = (t->info.caps & BNY_DGRAM_VERIFIES) != 0;
    bny_dgram_grants_open(t);
    if (bny_dgram_ip_none(&t->blob.ip))
        return no_address(t);
    return t->set.kind == BNY_DGRAM_AF_PACKET ? guard(t) : 0;
}

/* ---- events without a packet ---- */

/* From a router: limits our probes for longer frames. Sent frames keep their length, so a
 * length known to pass stays. */
static void hear_too_big(struct dp_tp *t, const struct bny_dgram_addr *to, uint32_t frame)
{
    for (int r = 0; r < t->tp.nranks; r++) {
        struct dp_ep *e = t->eps[r];

        if (!e || !bny_dgram_ip_is(&e->other.ip, &to->ip) || e->other.port != to->port ||
            frame >= e->frame_wanted || frame < e->frame || e->frame == e->frame_wanted)
            continue;
        bny_debug("rank %d: a router passes frames of %u bytes to rank %d, not of %u",
                  t->tp.rank, frame, r, e->frame_wanted);
        e->frame_wanted = frame;
        e->asks = 0;
    }
}

void bny_dgram_hear(struct dp_tp *t, const uint8_t *frame, uint32_t len)
{
    struct bny_dgram_addr self = { .ip = t->blob.ip }, other = { .port = 0 };
    uint8_t answer[BNY_DGRAM_ASK];
    struct bny_dgram_tx tx = { .head = answer };
    uint32_t fits;
    int what;

    memcpy(self.mac, t->blob.mac, 6);
    what = bny_dgram_neighbour_read(frame, len, &self, &other);
    for (int r = 0; what && r < t->tp.nranks; r++) {
        struct dp_ep *e = t->eps[r];

        if (!e || !bny_dgram_ip_is(&e->via, &other.ip) || e->resolved)
            continue;
        if (e->is_routed) {
            memcpy(e->other.mac, other.mac, 6);
            bny_dgram_eth_init(e->eth, &e->self, &e->other);
            e->resolved = 1;
            continue;
        }
        if (what != 2 || !e->asks)
            continue;
        /* The peer's card has its MAC. Another answer may come from another interface of its
         * host, so it counts only if none confirms the first. */
        e->resolved = !memcmp(other.mac, e->blob.mac, 6);
        memcpy(e->answered, other.mac, 6);
        e->has_answer = 1;
    }
    if (what == 1 && !(t->info.caps & BNY_DGRAM_KERNEL_IP)) {
        tx.head_len = bny_dgram_neighbour_answer(answer, &self, &other);
        t->drv->tx(t->port, &tx, 1);
    }
    fits = what ? 0 : bny_dgram_too_big(frame, len, &self, &other);
    if (fits)
        hear_too_big(t, &other, fits);
}

/* Nothing confirmed the peer's own MAC and no packet arrived: the answering device is in
 * between (a cloud's router). */
static void believe_answer(struct dp_ep *e)
{
    if (e->resolved || !e->has_answer || e->tx.una)
        return;
    memcpy(e->other.mac, e->answered, 6);
    bny_dgram_eth_init(e->eth, &e->self, &e->other);
    e->resolved = 1;
}

/* Asks for the MAC of the peer's address, or the gateway's. */
static void ask_mac(struct dp_ep *e)
{
    uint8_t frame[BNY_DGRAM_ASK];
    struct bny_dgram_tx tx = { .head = frame };
    struct bny_dgram_addr whom = { .ip = e->via };

    tx.head_len = bny_dgram_neighbour_ask(frame, &e->self, &whom);
    dp_tp_of(e)->drv->tx(e->port, &tx, 1);
}

/* Less and less often. */
static void ask_gateway(struct dp_ep *e)
{
    struct dp_tp *t = dp_tp_of(e);
    unsigned slower = e->asks / 8 < 6 ? e->asks / 8 : 6;
    char text[BNY_DGRAM_IP_TEXT];

    if (e->used && t->now - e->first_ns > DP_JOIN_NS) {
        bny_dgram_down(e,
                       "is not reached: nobody answers %s for the gateway (%s, "
                       "BANYAN_DPDK_GATEWAY)",
                       t->eth == BNY_DGRAM_ETH ? "ARP" : "neighbour solicitations",
                       bny_dgram_ip_text(&e->via, text));
        return;
    }
    if (t->now - e->asked_ns < ASK_NS << slower)
        return;
    e->asked_ns = t->now;
    e->asks++;
    ask_mac(e);
}

/* A device's link does not reveal the peer's state, which the control connections do. While it
 * is down packet timers stop: only the operation's deadline bounds a wait. */
static void weather(struct dp_ep *e, int up)
{
    struct dp_tp *t = dp_tp_of(e);

    if (!up && e->was_up && !e->link_lost_ns) {
        e->link_lost_ns = t->now;
    } else if (!up && e->link_lost_ns && !e->link_told && e->used &&
               t->now - e->link_lost_ns > DP_LINK_NS) {
        e->link_told = 1;
        bny_warn("rank %d: the link of %s has been down for 5 s (cable, switch, ip link set "
                 "INTERFACE up); rank %d is waited for until the operation's deadline "
                 "(BANYAN_OP_TIMEOUT)",
                 t->tp.rank, t->set.device, e->ep.peer);
    } else if (up && e->link_lost_ns) {
        if (e->link_told)
            bny_warn("rank %d: the link of %s is up again, after %.0f s", t->tp.rank,
                     t->set.device, (double)(t->now - e->link_lost_ns) / 1e9);
        e->link_lost_ns = 0;
        e->link_told = 0;
        bny_flow_resume(&e->tx, t->now);
        bny_dgram_grants_speed(t);
    }
}

static void watch_link(struct dp_ep *e)
{
    struct dp_tp *t = dp_tp_of(e);
    int up = t->drv->link_up(e->port);

    if (up && !e->was_up)
        bny_dgram_grants_speed(t);
    if (up)
        e->was_up = 1;
    if (e->was_up && !up && (e->info.caps & BNY_DGRAM_LINK_TELLS)) {
        if (e->left)
            bny_dgram_give_up(e);
        else
            bny_dgram_down(e, "ended: its end of the link is closed");
    }
    if (!(e->info.caps & BNY_DGRAM_LINK_TELLS))
        weather(e, up);
    e->up = up || (e->up && !(e->info.caps & BNY_DGRAM_LINK_TELLS));
    if (!e->was_up && e->used && t->now - e->first_ns > DP_JOIN_NS && !e->down)
        bny_dgram_down(e,
                       e->info.caps & BNY_DGRAM_LINK_TELLS
                           ? "did not open its end of the link within 15 s"
                           : "is not reached: the link of %s is down (cable, ip link set up)",
                       t->set.device);
}

/* A driver may lack a route to a rank, for a while or for good. */
static void watch_way(struct dp_ep *e)
{
    struct dp_tp *t = dp_tp_of(e);
    char text[BNY_DGRAM_TEXT] = "";
    int state = t->drv->way(e->port, e->ep.peer, text);

    if (state == -2 || (state == -1 && e->used && !e->tx.una && t->now > e->first_ns &&
                        t->now - e->first_ns > DP_JOIN_NS))
        bny_dgram_down(e, "is not reached: %.150s", text);
}

/* Retry a MAC request, or the probe of a longer frame? With datagrams (ud) many ranks may ask
 * one at the same time, and overflow it: they ask less and less often, without end. */
static int asks_again(const struct dp_ep *e)
{
    const struct dp_tp *t = (const struct dp_tp *)e->ep.tp;
    int is_ud = t->set.kind == BNY_DGRAM_UD;
    uint64_t since = t->now - e->asked_ns;

    if (e->port_is_own || !e->used || (e->resolved && e->frame >= e->frame_wanted))
        return 0;
    if (e->asks == ASKS)
        return is_ud && since >= ASK_LATE_NS;
    return !is_ud || since >= ASK_NS << e->asks;
}

/* IPv6 uses the least size until then: if no router reported a size, tries that of ordinary
 * Ethernet. */
static void frame_is_lost(struct dp_ep *e)
{
    const struct dp_tp *t = (const struct dp_tp *)e->ep.tp;

    bny_warn("rank %d: frames of %u bytes do not reach rank %d over %s, of %u do: check the "
             "MTU of every switch and interface on the path%s",
             t->tp.rank, e->frame_wanted, e->ep.peer, t->set.device, e->frame,
             t->set.kind == BNY_DGRAM_UD ? "" : ", or set BANYAN_DPDK=mtu");
    if (e->frame < DP_SAFE_FRAME && e->frame_wanted > DP_SAFE_FRAME) {
        e->frame_wanted = DP_SAFE_FRAME;
        e->asks = 0;
    }
}

void bny_dgram_watch(struct dp_ep *e)
{
    struct dp_tp *t = dp_tp_of(e);

    if (e->down)
        return;
    watch_link(e);
    if (t->drv->way && !e->down)
        watch_way(e);
    if (e->is_routed && !e->resolved && e->up && !e->down) {
        e->up = 0;
        ask_gateway(e);
        return;
    }
    if (!e->up || e->down || t->now - e->asked_ns < ASK_NS)
        return;
    if (!e->tx.lossless && e->tx.next == e->tx.limit && e->queued &&
        !e->tx.flying) { /* the message with more credit may be lost */
        e->asked_ns = t->now;
        bny_dgram_control(e, BNY_DGRAM_PROBE, 0, 0);
    } else if (asks_again(e)) {
        e->asked_ns = t->now;
        if (!e->resolved)
            ask_mac(e);
        if (e->frame < e->frame_wanted)
            bny_dgram_control(e, BNY_DGRAM_PROBE, e->frame_wanted, e->frame_wanted);
        if (e->ever_heard && !e->heard) /* it does not poll now: its silence proves nothing */
            return;
        e->heard = 0;
        if (e->asks == ASKS)
            return;
        if (++e->asks == ASKS)
            believe_answer(e);
        if (e->asks == ASKS && e->frame < e->frame_wanted && e->ever_heard)
            frame_is_lost(e);
    }
}
