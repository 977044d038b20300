/* SPDX-License-Identifier: BSD-3-Clause */
/* Queues of a port: their number, their memory, the spreading of frames over them (RSS by
 * addresses and UDP ports; af_packet's fan-out does the same), and the steering rule for our
 * frames (rte_flow). One thread polls all of them. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <rte_errno.h>
#include <rte_flow.h>
#include <rte_mbuf_pool_ops.h>

#include "transport/dpdk/module/dpdk_module.h"

#define ETHER       14u
#define PAIR_FRAMES 128u /* of a memif ring */
#define DEVICE_DESC 512u
#define CACHE       64u

uint32_t bny_queues_ring_frame(uint32_t frame_max)
{
    return frame_max + 64 > 2048 ? (frame_max + 64 + 4095) & ~4095u : 2048;
}

/* ---- steering ---- */

/* Drivers that share the card with the kernel: frames without a rule can go there. */
static int is_bifurcated(const char *driver)
{
    return !strcmp(driver, "mlx5_pci") || !strcmp(driver, "net_mlx4") ||
           !strcmp(driver, "net_mana");
}

/* Our frames: IPv4 or IPv6, and UDP to our address and port; to one queue, or spread over all.
 * NULL: the driver refuses the rule; why has the reason. */
static struct rte_flow *make_rule(struct bny_dgram_port *p, struct rte_flow_error *why)
{
    struct rte_flow_attr attr = { .ingress = 1 };
    struct rte_flow_item_ipv4 ip = { .hdr.version = 0 };
    struct rte_flow_item_ipv4 ip_mask = { .hdr.dst_addr = UINT32_MAX };
    struct rte_flow_item_ipv6 ip6 = { .hdr.vtc_flow = 0 }, ip6_mask = { .hdr.vtc_flow = 0 };
    struct rte_flow_item_udp udp = { .hdr.dst_port = rte_cpu_to_be_16(p->udp_port) };
    struct rte_flow_item_udp udp_mask = { .hdr.dst_port = UINT16_MAX };
    struct rte_flow_item_vlan tag = { .tci = rte_cpu_to_be_16(p->vlan) };
    struct rte_flow_item_vlan tag_mask = { .tci = RTE_BE16(0xfff) };
    struct rte_flow_item pattern[5] = { { .type = RTE_FLOW_ITEM_TYPE_ETH } }, *item = pattern;
    uint16_t queues[BNY_DGRAM_QUEUES];
    struct rte_flow_action_queue one = { .index = 0 };
    struct rte_flow_action_rss all = { .types = p->is4 ? RTE_ETH_RSS_NONFRAG_IPV4_UDP
                                                       : RTE_ETH_RSS_NONFRAG_IPV6_UDP,
                                       .queue_num = (uint32_t)p->queues,
                                       .queue = queues };
    struct rte_flow_action actions[] = {
        { .type = p->queues > 1 ? RTE_FLOW_ACTION_TYPE_RSS : RTE_FLOW_ACTION_TYPE_QUEUE,
          .conf = p->queues > 1 ? (const void *)&all : (const void *)&one },
        { .type = RTE_FLOW_ACTION_TYPE_END },
    };

    memcpy(&ip.hdr.dst_addr, p->ip.at + BNY_DGRAM_IP4_AT, 4);
    memcpy(ip6.hdr.dst_addr, p->ip.at, 16);
    memset(ip6_mask.hdr.dst_addr, 0xff, 16);
    for (int i = 0; i < p->queues; i++)
        queues[i] = (uint16_t)i;
    if (p->vlan)
        *++item = (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_VLAN,
                                          .spec = &tag,
                                          .mask = &tag_mask };
    *++item = p->is4 ? (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_IPV4,
                                               .spec = &ip,
                                               .mask = &ip_mask }
                     : (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_IPV6,
                                               .spec = &ip6,
                                               .mask = &ip6_mask };
    *++item = (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_UDP,
                                      .spec = &udp,
                                      .mask = &udp_mask };
    *++item = (struct rte_flow_item){ .type = RTE_FLOW_ITEM_TYPE_END };
    memset(why, 0, sizeof *why);
    if (rte_flow_validate(p->id, &attr, pattern, actions, why) != 0)
        return NULL;
    return rte_flow_create(p->id, &attr, pattern, actions, why);
}

static void queues_note(struct bny_dgram_info *info, const char *what, const char *more)
{
    size_t len = strlen(info->notes);

    snprintf(info->notes + len, sizeof info->notes - len, "%s%s%s", len ? ", " : "", what,
             more);
}

/* For a started port. Without a rule all frames come, and software drops foreign ones. */
static void steer(struct bny_dgram_port *p, const struct bny_dgram_conf *c,
                  struct bny_dgram_info *info)
{
    struct rte_flow_error why;

    if (!c->udp_port || bny_dgram_ip_none(&c->ip))
        return;
    p->ip = c->ip;
    p->udp_port = c->udp_port;
    p->rule = make_rule(p, &why);
    if (p->rule) {
        queues_note(info,
                    p->isolated
                        ? "an rte_flow rule takes our frames, all others are the kernel's"
                        : "an rte_flow rule takes our frames",
                    "");
        return;
    }
    queues_note(info,
                "no rte_flow rule: ", why.message ? why.message : rte_strerror(rte_errno));
    if (p->isolated && rte_eth_dev_stop(p->id) == 0) { /* else no frame would come */
        rte_flow_isolate(p->id, 0, &why);
        p->isolated = 0;
        p->started = rte_eth_dev_start(p->id) == 0;
    }
}

/* ---- set-up ---- */

/* Why a card cannot read payload in place; NULL: it can. The listed drivers keep attached
 * memory until their ring is nearly full, or send one segment per frame whatever they
 * report. */
static const char *why_copied(const struct rte_eth_dev_info *dev)
{
    static const char *const keepers[] = { "net_virtio", "net_netvsc", "net_vmxnet3" };

    for (size_t i = 0; i < sizeof keepers / sizeof keepers[0]; i++)
        if (!strncmp(dev->driver_name, keepers[i], strlen(keepers[i])))
            return "this driver is not trusted with attached memory";
    if (!(dev->tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS))
        return "the driver sends one segment a frame";
    if (dev->tx_desc_lim.nb_mtu_seg_max == 1 || dev->tx_desc_lim.nb_seg_max == 1)
        return "the card has one segment a frame";
    if (rte_eal_iova_mode() != RTE_IOVA_VA)
        return "addresses of DMA are physical (no IOMMU)";
    return NULL;
}

/* Header and payload as segments of one frame. MBUF_FAST_FREE is never requested: it promises
 * that no memory is attached. */
static void set_gather(const struct rte_eth_dev_info *dev, struct rte_eth_conf *conf,
                       struct bny_dgram_info *info)
{
    const char *why = why_copied(dev);

    queues_note(info, why ? "frames are copied: " : "zero-copy send", why ? why : "");
    if (why)
        return;
    conf->txmode.offloads |= RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
    info->caps |= BNY_DGRAM_GATHER | BNY_DGRAM_EXT_EAL;
}

/* The frame attributes that a card reports. */
static void set_card(const struct rte_eth_dev_info *dev, struct rte_eth_conf *conf,
                     struct bny_dgram_info *info)
{
    conf->rxmode.mtu = info->frame_max > 1514 ? info->frame_max - ETHER : 0;
    if (conf->rxmode.mtu > dev->max_mtu)
        conf->rxmode.mtu = dev->max_mtu;
    info->frame_max = conf->rxmode.mtu ? conf->rxmode.mtu + ETHER : 1514;
}

/* Highest speed of a card in megabits a second, as links come up late. */
static uint32_t fastest(const struct rte_eth_dev_info *dev)
{
    static const uint32_t speeds[] = { 400000, 200000, 100000, 56000, 50000, 40000,
                                       25000,  20000,  10000,  5000,  2500,  1000 };

    if (!strncmp(dev->driver_name, "net_virtio", 10))
        return 0; /* its host reports arbitrary speeds */
    for (size_t i = 0; i < sizeof speeds / sizeof speeds[0]; i++)
        if (dev->speed_capa & rte_eth_speed_bitflag(speeds[i], RTE_ETH_LINK_FULL_DUPLEX))
            return speeds[i];
    return 0;
}

/* Checksums that the port computes and verifies. IPv6's header has none. */
static void set_sums(struct bny_dgram_port *p, const struct rte_eth_dev_info *dev,
                     struct rte_eth_conf *conf, struct bny_dgram_info *info)
{
    const uint64_t rx = (p->is4 ? RTE_ETH_RX_OFFLOAD_IPV4_CKSUM : 0) |
                        RTE_ETH_RX_OFFLOAD_UDP_CKSUM,
                   tx = (p->is4 ? RTE_ETH_TX_OFFLOAD_IPV4_CKSUM : 0) |
                        RTE_ETH_TX_OFFLOAD_UDP_CKSUM;

    p->rx_sums = (dev->rx_offload_capa & rx) == rx;
    p->tx_sums = (dev->tx_offload_capa & tx) == tx;
    if (p->rx_sums) {
        conf->rxmode.offloads |= rx;
        info->caps |= BNY_DGRAM_VERIFIES;
    }
    if (p->tx_sums) {
        conf->txmode.offloads |= tx;
        info->caps |= BNY_DGRAM_CSUM;
    }
    queues_note(info,
                p->rx_sums && p->tx_sums ? "checksums by the port"
                : p->rx_sums             ? "checksums looked at by the port"
                : p->tx_sums             ? "checksums computed by the port"
                                         : "no checksums by the port",
                "");
}

static int choose_queues(struct bny_dgram_port *p, const struct bny_dgram_conf *c,
                         const struct rte_eth_dev_info *dev, struct rte_eth_conf *conf,
                         struct bny_dgram_info *info, char *text)
{
    int most =
        dev->max_rx_queues < dev->max_tx_queues ? dev->max_rx_queues : dev->max_tx_queues;
    uint64_t by_udp = p->is4 ? RTE_ETH_RSS_NONFRAG_IPV4_UDP : RTE_ETH_RSS_NONFRAG_IPV6_UDP;
    uint64_t spread = dev->flow_type_rss_offloads & by_udp;
    char number[24];

    p->queues = (info->caps & BNY_DGRAM_PAIR) || c->queues < 1 ? 1 : c->queues;
    if (p->queues > most) {
        say(text,
            "port %.60s (%.31s) has %d queue%s each way, BANYAN_DPDK=queues=%d asks for more: "
            "set it to %d at most",
            c->device, dev->driver_name, most, most == 1 ? "" : "s", p->queues, most);
        return -1;
    }
    if (!spread)
        spread = dev->flow_type_rss_offloads &
                 (p->is4 ? RTE_ETH_RSS_IPV4 : RTE_ETH_RSS_IPV6); /* by addresses alone */
    if (p->queues > 1 && spread) {
        conf->rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
        conf->rx_adv_conf.rss_conf.rss_hf = spread;
    }
    if (!(info->caps & BNY_DGRAM_PAIR)) {
        snprintf(number, sizeof number, "%d queue%s", p->queues, p->queues > 1 ? "s" : "");
        queues_note(info, number,
                    p->queues == 1                   ? ""
                    : p->kind == BNY_DGRAM_AF_PACKET ? " (PACKET_FANOUT by UDP ports)"
                    : spread & by_udp                ? " (RSS by UDP ports)"
                    : spread                         ? " (RSS by addresses)"
                             : " (the driver spreads frames as it likes)");
    }
    info->queues = p->queues;
    return 0;
}

/* net_af_xdp registers (number of buffers) x (size) bytes with the kernel, from the first
 * buffer on. With pages of 4 kB rte_pktmbuf_pool_create leaves gaps, as no buffer may cross a
 * page: those at the end are outside, get lost one by one, and in the end a free list is
 * overwritten. */
static struct rte_mempool *pool_without_gaps(const char *name, uint32_t count, uint16_t room)
{
    struct rte_pktmbuf_pool_private priv = { .mbuf_data_room_size = room };
    struct rte_mempool *mp =
        rte_mempool_create_empty(name, count, (unsigned)sizeof(struct rte_mbuf) + room, CACHE,
                                 sizeof priv, SOCKET_ID_ANY, RTE_MEMPOOL_F_NO_IOVA_CONTIG);

    if (!mp)
        return NULL;
    if (rte_mempool_set_ops_byname(mp, rte_mbuf_best_mempool_ops(), NULL) != 0) {
        rte_mempool_free(mp);
        return NULL;
    }
    rte_pktmbuf_pool_init(mp, &priv);
    if (rte_mempool_populate_default(mp) < 0) {
        rte_mempool_free(mp);
        return NULL;
    }
    rte_mempool_obj_iter(mp, rte_pktmbuf_init, NULL);
    return mp;
}

/* Memory of the port's NUMA node if it has some; a bus without nodes reports -1. */
static struct rte_mempool *pool_near(const char *name, uint32_t count, uint16_t room, int node)
{
    struct rte_mempool *mp = NULL;

    if (node >= 0)
        mp = rte_pktmbuf_pool_create(name, count, CACHE, 0, room, node);
    return mp ? mp : rte_pktmbuf_pool_create(name, count, CACHE, 0, room, SOCKET_ID_ANY);
}

static int make_pool(struct bny_dgram_port *p, const struct bny_dgram_conf *c,
                     const struct bny_dgram_info *info, uint32_t desc, char *text)
{
    static atomic_uint serial;
    uint32_t count = c->bufs + (uint32_t)p->queues * 3 * desc + 2 * CACHE;
    /* af_packet needs room for a whole slot of its ring */
    uint32_t room = RTE_PKTMBUF_HEADROOM + (p->kind == BNY_DGRAM_AF_PACKET
                                                ? bny_queues_ring_frame(info->frame_max)
                                                : info->frame_max + 64);
    uint64_t mib;
    char name[RTE_MEMPOOL_NAMESIZE];

    /* Cards have buffer sizes in steps of at most 1 KiB, and split a frame if the step below is
     * too short for it, its checksum and two tags. */
    if (p->kind == BNY_DGRAM_PCI)
        room = RTE_PKTMBUF_HEADROOM + ((info->frame_max + 12 + 1023) & ~1023u);
    if (room < RTE_MBUF_DEFAULT_BUF_SIZE)
        room = RTE_MBUF_DEFAULT_BUF_SIZE; /* below it some drivers split frames */
    snprintf(name, sizeof name, "bny_rx%u", atomic_fetch_add(&serial, 1));
    p->pool = !strcmp(info->driver, "net_af_xdp")
                  ? pool_without_gaps(name, count, (uint16_t)room)
                  : pool_near(name, count, (uint16_t)room, rte_eth_dev_socket_id(p->id));
    if (p->pool)
        return 0;
    mib = ((uint64_t)count * (room + sizeof(struct rte_mbuf) + RTE_CACHE_LINE_SIZE) >> 20) + 1;
    say(text,
        "DPDK has no memory for %u frames of %u bytes, which other ranks may send before we "
        "look (%s); give it %llu MiB more "
        "(BANYAN_DPDK_ARGS=\"-m MIB\", or hugepages) or make frames smaller (BANYAN_DPDK=mtu)",
        count, info->frame_max, rte_strerror(rte_errno), (unsigned long long)mib);
    return -1;
}

/* desc: receive places; updated to the actual number. */
static int configure(struct bny_dgram_port *p, const struct rte_eth_conf *conf, uint16_t *desc)
{
    uint16_t segments = conf->txmode.offloads & RTE_ETH_TX_OFFLOAD_MULTI_SEGS ? 2 : 1;
    uint16_t rx = *desc, tx = (uint16_t)((rx < DEVICE_DESC ? rx : DEVICE_DESC) * segments);
    unsigned node = (unsigned)p->pool->socket_id; /* a node with memory */
    int rc = rte_eth_dev_configure(p->id, (uint16_t)p->queues, (uint16_t)p->queues, conf);

    if (rc == 0)
        rte_eth_dev_adjust_nb_rx_tx_desc(p->id, &rx, &tx);
    for (int q = 0; rc == 0 && q < p->queues; q++) {
        rc = rte_eth_rx_queue_setup(p->id, (uint16_t)q, rx, node, NULL, p->pool);
        if (rc == 0)
            rc = rte_eth_tx_queue_setup(p->id, (uint16_t)q, tx, node, NULL);
    }
    *desc = rx;
    return rc;
}

int bny_queues_start(struct bny_dgram_port *p)
{
    if (!p->started && rte_eth_dev_start(p->id) == 0)
        p->started = 1;
    return p->started;
}

/* Queue by queue if the driver can, which loses no input; else the whole port, which drops its
 * rules. */
void bny_queues_flush(struct bny_dgram_port *p)
{
    struct rte_flow_error why;
    int rc = 0;

    for (int q = 0; rc == 0 && p->started && q < p->queues; q++) {
        rc = rte_eth_dev_tx_queue_stop(p->id, (uint16_t)q);
        if (rc == 0)
            rc = rte_eth_dev_tx_queue_start(p->id, (uint16_t)q);
    }
    if (rc == 0 || !p->started)
        return;
    if (p->rule)
        rte_flow_destroy(p->id, p->rule, &why);
    rte_eth_dev_stop(p->id);
    p->started = 0;
    if (bny_queues_start(p) && p->rule)
        p->rule = make_rule(p, &why);
}

void bny_queues_stop(struct bny_dgram_port *p)
{
    struct rte_flow_error why;

    if (p->rule)
        rte_flow_destroy(p->id, p->rule, &why);
    p->rule = NULL;
    if (p->started)
        rte_eth_dev_stop(p->id);
    p->started = 0;
    if (p->isolated)
        rte_flow_isolate(p->id, 0, &why);
    p->isolated = 0;
}

/* Neighbours ask for an IPv6 address through the multicast group of its last 24 bits (RFC 4291,
 * 2.7.1; its MAC: RFC 2464, 7); without a filter for it a port does not receive that group. */
static void join_group(struct bny_dgram_port *p, const struct bny_dgram_ip *ip)
{
    struct rte_ether_addr group = { { 0x33, 0x33, 0xff, ip->at[13], ip->at[14], ip->at[15] } };

    if (rte_eth_dev_set_mc_addr_list(p->id, &group, 1) != 0)
        rte_eth_allmulticast_enable(p->id);
}

void bny_queues_again(struct bny_dgram_port *p)
{
    struct rte_flow_error why;

    rte_eth_promiscuous_disable(p->id);
    if (!p->is4)
        join_group(p, &p->ip);
    if (p->rule)
        p->rule = make_rule(p, &why);
}

int bny_queues_reset(struct bny_dgram_port *p)
{
    struct rte_flow_error why;
    uint16_t desc = p->desc;
    int rc = rte_eth_dev_reset(p->id); /* removes its rules, too */

    p->started = 0;
    if (rc == 0 && p->isolated)
        p->isolated = rte_flow_isolate(p->id, 1, &why) == 0;
    if (rc == 0)
        rc = configure(p, &p->conf, &desc);
    if (rc != 0 || !bny_queues_start(p))
        return -1;
    bny_queues_again(p);
    return 0;
}

int bny_queues_set_up(struct bny_dgram_port *p, const struct bny_dgram_conf *c,
                      struct bny_dgram_info *info, char *text)
{
    struct rte_eth_conf conf = {
        0
    }; /* rxmode.mtu 0: vdevs refuse any other than 1500, but pass larger frames */
    uint16_t desc = p->kind == BNY_DGRAM_MEMIF                              ? PAIR_FRAMES
                    : p->kind == BNY_DGRAM_PCI || p->kind == BNY_DGRAM_VDEV ? (uint16_t)c->ring
                                                                            : DEVICE_DESC;
    struct rte_eth_dev_info dev;
    struct rte_flow_error why;
    int rc;

    if (rte_eth_dev_info_get(p->id, &dev) != 0) {
        say(text, "port %s does not describe itself", p->name);
        return -1;
    }
    snprintf(info->driver, sizeof info->driver, "%.31s", dev.driver_name);
    if (p->kind == BNY_DGRAM_PCI) {
        set_card(&dev, &conf, info);
        set_gather(&dev, &conf, info);
    }
    if (choose_queues(p, c, &dev, &conf, info, text) != 0)
        return -1;
    if (p->kind == BNY_DGRAM_PCI || !strcmp(info->driver, "net_tap"))
        set_sums(p, &dev, &conf, info);
    if (is_bifurcated(dev.driver_name) && c->udp_port && !bny_dgram_ip_none(&c->ip))
        p->isolated = rte_flow_isolate(p->id, 1, &why) == 0; /* required before configuration */
    if (make_pool(p, c, info, desc, text) != 0)
        return -1;
    rc = configure(p, &conf, &desc);
    p->conf = conf;
    p->desc = desc;
    p->ip = c->ip;
    if (rc != 0) {
        say(text, "port %.60s (%.31s) refuses to be set up: %s; another program may use it",
            c->device, info->driver, rte_strerror(rc < 0 ? -rc : rc));
        return -1;
    }
    if (p->kind == BNY_DGRAM_PCI || p->kind == BNY_DGRAM_VDEV)
        info->ring = desc; /* of one: the frames of a few senders may all come to one queue */
    if (p->kind == BNY_DGRAM_PCI)
        info->mbps = fastest(&dev);
    if (!bny_queues_start(p) &&
        p->kind != BNY_DGRAM_MEMIF) { /* a client starts when its server is there */
        say(text, "port %.60s (%.31s) does not start; another program may use it", c->device,
            info->driver);
        return -1;
    }
    if (p->kind == BNY_DGRAM_PCI || p->kind == BNY_DGRAM_VDEV) {
        bny_queues_again(p);
        steer(p, c, info);
        bny_events_open(p);
    }
    if (!(info->caps & BNY_DGRAM_PAIR)) {
        struct rte_ether_addr mac;

        rte_eth_macaddr_get(p->id, &mac);
        memcpy(info->mac, mac.addr_bytes, 6);
    } else {
        memcpy(info->mac, c->mac, 6);
    }
    return 0;
}
