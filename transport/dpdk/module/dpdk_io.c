/* SPDX-License-Identifier: BSD-3-Clause */
/* Packets in and out. */
#include <string.h>

#include <rte_ip.h>
#include <rte_udp.h>

#include "transport/dpdk/module/dpdk_module.h"

_Static_assert(sizeof(struct bny_dgram_ref) >= sizeof(struct rte_mbuf_ext_shared_info),
               "room for DPDK's counter");

#define TAG 4u /* size of a VLAN tag */

/* The owner's own reference prevents DPDK from ever calling this. */
static void nobody_left(void *addr, void *opaque)
{
}

void bny_io_ref_init(struct bny_dgram_ref *ref)
{
    struct rte_mbuf_ext_shared_info *s = (void *)ref;

    s->free_cb = nobody_left;
    s->fcb_opaque = NULL;
    rte_mbuf_ext_refcnt_set(s, 1);
}

int bny_io_ref_busy(const struct bny_dgram_ref *ref)
{
    return rte_mbuf_ext_refcnt_read(
               (const struct rte_mbuf_ext_shared_info *)(const void *)ref) > 1;
}

/* Head in one segment, body attached as another. */
static struct rte_mbuf *dpdk_io_gather(const struct bny_dgram_tx *t)
{
    struct rte_mbuf_ext_shared_info *s = (void *)t->ref;
    struct rte_mbuf *m[2];
    void *body = (void *)(uintptr_t)t->body;

    if (rte_pktmbuf_alloc_bulk(bny_eal_heads(), m, 2) != 0)
        return NULL;
    rte_memcpy(rte_pktmbuf_mtod(m[0], void *), t->head, t->head_len);
    rte_mbuf_ext_refcnt_update(s, 1);
    rte_pktmbuf_attach_extbuf(m[1], body, (rte_iova_t)(uintptr_t)body, (uint16_t)t->body_len,
                              s);
    m[0]->data_len = (uint16_t)t->head_len;
    m[1]->data_len = (uint16_t)t->body_len;
    m[0]->pkt_len = t->head_len + t->body_len;
    m[0]->next = m[1];
    m[0]->nb_segs = 2;
    return m[0];
}

/* Requests checksums from the port: the UDP field holds the sum of the pseudo header. tag:
 * bytes of a VLAN tag before the type. */
static void leave_sums(struct rte_mbuf *m, uint32_t tag)
{
    const rte_be16_t *type = rte_pktmbuf_mtod_offset(m, const rte_be16_t *, 12 + tag);
    struct rte_ipv4_hdr *ip = rte_pktmbuf_mtod_offset(m, struct rte_ipv4_hdr *, 14 + tag);
    struct rte_ipv6_hdr *ip6 = (struct rte_ipv6_hdr *)(void *)ip;
    struct rte_udp_hdr *udp = (struct rte_udp_hdr *)(ip + 1);

    m->l2_len = (14 + tag) & 0x7f;
    if (*type == rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV6) && ip6->proto == IPPROTO_UDP) {
        udp = (struct rte_udp_hdr *)(ip6 + 1);
        m->l3_len = sizeof *ip6;
        m->ol_flags |= RTE_MBUF_F_TX_IPV6 | RTE_MBUF_F_TX_UDP_CKSUM;
        udp->dgram_cksum = rte_ipv6_phdr_cksum(ip6, m->ol_flags);
        return;
    }
    if (*type != rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4))
        return;
    m->l3_len = sizeof *ip;
    m->ol_flags |= RTE_MBUF_F_TX_IPV4 | RTE_MBUF_F_TX_IP_CKSUM | RTE_MBUF_F_TX_UDP_CKSUM;
    ip->hdr_checksum = 0;
    udp->dgram_cksum = rte_ipv4_phdr_cksum(ip, m->ol_flags);
}

/* Damaged if the port says so; an undecided one is accepted. Drivers report arbitrary flags for
 * IPv6's header, which has no checksum. */
static int is_damaged(const struct bny_dgram_port *port, const struct rte_mbuf *m)
{
    return port->rx_sums &&
           ((m->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK) == RTE_MBUF_F_RX_L4_CKSUM_BAD ||
            (port->is4 &&
             (m->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK) == RTE_MBUF_F_RX_IP_CKSUM_BAD));
}

static struct rte_mbuf *copied(struct bny_dgram_port *port, const struct bny_dgram_tx *t)
{
    uint32_t len = t->head_len + t->body_len;
    struct rte_mbuf *m = rte_pktmbuf_alloc(len <= 512 ? bny_eal_heads() : port->pool);
    char *at;

    if (!m)
        return NULL;
    at = rte_pktmbuf_append(m, (uint16_t)len);
    if (!at) {
        rte_pktmbuf_free(m);
        return NULL;
    }
    memcpy(at, t->head, t->head_len);
    if (t->body_len)
        rte_memcpy(at + t->head_len, t->body, t->body_len);
    return m;
}

/* Hashes the first frame's UDP source port and destination: frames of one peer and channel
 * mostly stay in one queue, and in order. */
static uint16_t queue_of(const struct bny_dgram_port *port, const struct bny_dgram_tx *t)
{
    const uint8_t *head = t->head;
    uint32_t tag = port->vlan ? TAG : 0,
             at = tag + (t->head_len >= 14 + tag && head[12 + tag] == 0x86 ? 53 : 33);

    return port->queues > 1 && t->head_len >= at + 3
               ? (uint16_t)((head[at + 2] + head[at]) % port->queues)
               : 0;
}

#define HEAD_MOST 512u /* size of a head */

/* Inserts a tag behind the addresses (IEEE Std 802.1Q); to: room for n heads. Returns the
 * number of frames that have one: all before the first head that is too long. */
static int put_tags(const struct bny_dgram_port *p, const struct bny_dgram_tx *tx, int n,
                    struct bny_dgram_tx *tagged, uint8_t (*to)[HEAD_MOST + TAG])
{
    const uint8_t tag[TAG] = { 0x81, 0, (uint8_t)(p->vlan >> 8), (uint8_t)p->vlan };

    for (int i = 0; i < n; i++) {
        const uint8_t *head = tx[i].head;

        if (tx[i].head_len > HEAD_MOST)
            return i;
        memcpy(to[i], head, 12);
        memcpy(to[i] + 12, tag, sizeof tag);
        memcpy(to[i] + 16, head + 12, tx[i].head_len - 12);
        tagged[i] = tx[i];
        tagged[i].head = to[i];
        tagged[i].head_len += TAG;
    }
    return n;
}

/* 1: a frame of our VLAN, without its tag now. Cards that removed the tag report it. */
static int take_tag(const struct bny_dgram_port *p, struct rte_mbuf *m)
{
    const uint8_t *at = rte_pktmbuf_mtod(m, const uint8_t *);
    unsigned vlan;

    if (m->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED)
        return (m->vlan_tci & 0xfff) == p->vlan;
    if (m->data_len < 18 || at[12] != 0x81 || at[13] != 0)
        return 0;
    vlan = (at[14] & 0xfu) << 8 | at[15];
    return vlan == p->vlan && rte_vlan_strip(m) == 0;
}

/* A memif link belongs to the driver until it was seen up (memif.c). */
static int is_ready(const struct bny_dgram_port *p)
{
    return p->started && (p->was_up || p->kind != BNY_DGRAM_MEMIF);
}

static int send_burst(struct bny_dgram_port *port, const struct bny_dgram_tx *tx, int n);

int bny_io_tx(struct bny_dgram_port *port, const struct bny_dgram_tx *tx, int n)
{
    uint8_t heads[BNY_DGRAM_BURST][HEAD_MOST + TAG];
    struct bny_dgram_tx tagged[BNY_DGRAM_BURST];

    if (!port->vlan)
        return send_burst(port, tx, n);
    n = put_tags(port, tx, n, tagged, heads);
    return send_burst(port, tagged, n);
}

static int send_burst(struct bny_dgram_port *port, const struct bny_dgram_tx *tx, int n)
{
    struct rte_mbuf *m[BNY_DGRAM_BURST];
    uint16_t queue;
    int made = 0, sent;

    if (!is_ready(port) || !port->iface_up)
        return 0;
    if (port->try_fd >= 0 && n && tx[0].head_len + tx[0].body_len > port->taken) {
        bny_port_try(port, &tx[0]);
        return 1; /* accepted or lost: the rest comes at once */
    }
    for (; made < n; made++) {
        const struct bny_dgram_tx *t = &tx[made];

        if (port->try_fd >= 0 && t->head_len + t->body_len > port->taken)
            break;
        m[made] = t->ref && t->body_len && (port->caps & BNY_DGRAM_GATHER) ? dpdk_io_gather(t)
                                                                           : copied(port, t);
        if (!m[made])
            break;
        if (port->tx_sums)
            leave_sums(m[made], port->vlan ? TAG : 0);
    }
    if (!made) /* later versions of net_memif read the first even of none */
        return 0;
    queue = queue_of(port, &tx[0]);
    sent = made;
    if (port->tx_sums) /* Intel's need it */
        sent = rte_eth_tx_prepare(port->id, queue, m, (uint16_t)made);
    sent = rte_eth_tx_burst(port->id, queue, m, (uint16_t)sent);
    for (int i = sent; i < made; i++)
        rte_pktmbuf_free(m[i]);
    return sent;
}

int bny_io_rx(struct bny_dgram_port *port, struct bny_dgram_rx *rx, int n)
{
    struct rte_mbuf *m[BNY_DGRAM_BURST];
    int got = 0, kept = 0;

    if (!is_ready(port))
        return 0;
    for (int i = 0; i < port->queues && got < n; i++) {
        uint16_t q = (uint16_t)((port->turn + (unsigned)i) % (unsigned)port->queues);

        got += rte_eth_rx_burst(port->id, q, m + got, (uint16_t)(n - got));
    }
    port->turn++;
    for (int i = 0; i < got; i++) {
        if (m[i]->nb_segs != 1 || is_damaged(port, m[i]) ||
            (port->vlan && !take_tag(port, m[i]))) {
            port->refused++;
            rte_pktmbuf_free(m[i]);
            continue;
        }
        rte_prefetch0(rte_pktmbuf_mtod(m[i], void *));
        rx[kept].buf = m[i];
        rx[kept].data = rte_pktmbuf_mtod(m[i], const uint8_t *);
        rx[kept].summed = port->rx_sums && (m[i]->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK) ==
                                               RTE_MBUF_F_RX_L4_CKSUM_GOOD;
        rx[kept++].len = m[i]->data_len;
    }
    return kept;
}

void bny_io_free(void *const *bufs, int n)
{
    for (int i = 0; i < n; i++)
        rte_pktmbuf_free(bufs[i]);
}

void bny_io_reclaim(struct bny_dgram_port *port)
{
    struct rte_mbuf *none[1];

    for (int q = 0; port->started && q < port->queues; q++)
        if (rte_eth_tx_done_cleanup(port->id, (uint16_t)q, 0) < 0)
            rte_eth_tx_burst(port->id, (uint16_t)q, none, 0);
}
