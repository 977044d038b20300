/* SPDX-License-Identifier: BSD-3-Clause */
/* Ports: made when asked for (hot-plugged), configured with one queue each way, removed with their transport. The
 * table of drivers says what was found to be true of them; what they report about themselves is wrong in places. */
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <rte_bus_vdev.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>

#include "transport/dpdk/module/module.h"

#define ETHER        14u
#define PAIR_FRAMES  128u /* of a memif ring */
#define DEVICE_DESC  512u
#define CACHE        64u
#define HANDSHAKE_MS 50
#define RETRY_NS     1000000u /* between two tries of a client to find its server */

/* By the start of the driver's name. frame 0: what the port says; else its limit in bytes of a frame. */
static const struct {
    const char *driver;
    unsigned caps;
    uint32_t frame;
} drivers[] = {
    { "net_memif", BNY_DPDK_GATHER | BNY_DPDK_EXT_ANY | BNY_DPDK_PAIR | BNY_DPDK_LOSSLESS | BNY_DPDK_LINK_TELLS, 65000 },
    { "net_ring", BNY_DPDK_PAIR | BNY_DPDK_LOSSLESS, 65000 },
    { "net_af_packet", BNY_DPDK_GATHER | BNY_DPDK_EXT_ANY | BNY_DPDK_KERNEL_IP, 60000 },
    /* memory of malloc: delivers nothing and wedges the queue */
    { "net_virtio_user", BNY_DPDK_GATHER | BNY_DPDK_EXT_EAL, 9018 },
    /* several segments: sends the first only. External memory: sends garbage. */
    { "net_af_xdp", BNY_DPDK_KERNEL_IP, 3000 },
    { "net_tap", BNY_DPDK_KERNEL_IP, 1514 },
};

static atomic_uint serial;

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void look_up(const char *driver, struct bny_dpdk_info *info, uint32_t *limit)
{
    for (size_t i = 0; i < sizeof drivers / sizeof drivers[0]; i++)
        if (!strncmp(driver, drivers[i].driver, strlen(drivers[i].driver))) {
            info->caps = drivers[i].caps;
            *limit = drivers[i].frame;
            return;
        }
    info->caps = 0;
    *limit = 65000;
}

/* ---- making devices --------------------------------------------------------------------------- */

static int plug(struct bny_dpdk_port *p, const char *args, char *text)
{
    int rc = rte_vdev_init(p->name, args);

    if (rc != 0) {
        say(text, "DPDK makes no port %s,%.120s: %s", p->name, args, rte_strerror(rc < 0 ? -rc : rte_errno));
        p->name[0] = '\0';
        return -1;
    }
    if (rte_eth_dev_get_port_by_name(p->name, &p->id) != 0) {
        say(text, "DPDK made %s, which is no Ethernet port", p->name);
        return -1;
    }
    return 0;
}

/* Not with the driver's zero copy, which (22.11) overwrites slots in flight when more than 4 packets of 2 segments meet a full
 * ring, closes the EAL's own memory descriptor with its link, and is slower where the receiver adds: 4.2 instead of 5.8 GB/s
 * from 64 MiB buffers. Copying, the driver gathers from any memory. 128 slots stay in the L2 cache, 256 do not: 6.2 and 5.1 GB/s. */
static int make_memif(struct bny_dpdk_port *p, const struct bny_dpdk_conf *c, char *text)
{
    char args[400];

    snprintf(p->name, sizeof p->name, "net_memif_bny%u", atomic_fetch_add(&serial, 1));
    snprintf(args, sizeof args,
             "role=%s,id=%d,socket=%s,socket-abstract=yes,secret=%s,bsize=%u,rsize=7,"
             "mac=%02x:%02x:%02x:%02x:%02x:%02x",
             c->server ? "server" : "client", c->id, c->link, c->secret, c->frame_max, c->mac[0], c->mac[1], c->mac[2],
             c->mac[3], c->mac[4], c->mac[5]);
    return plug(p, args, text);
}

/* Both ends are in this process; whoever comes first makes the two rings. */
static int make_ring(struct bny_dpdk_port *p, const struct bny_dpdk_conf *c, char *text)
{
    char name[2][RTE_RING_NAMESIZE];

    for (int i = 0; i < 2; i++) {
        struct rte_ring *r;

        snprintf(name[i], sizeof name[i], "b%.24s.%d", c->link + 3, i);
        r = rte_ring_lookup(name[i]);
        if (!r)
            r = rte_ring_create(name[i], 2 * PAIR_FRAMES, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
        if (!r) {
            say(text, "DPDK makes no ring %s: %s", name[i], rte_strerror(rte_errno));
            return -1;
        }
        p->rings[i ^ (c->server ? 1 : 0)] = r;
    }
    snprintf(p->name, sizeof p->name, "bny%u", atomic_fetch_add(&serial, 1));
    rte_errno = 0;
    if (rte_eth_from_rings(p->name, &p->rings[0], 1, &p->rings[1], 1, SOCKET_ID_ANY) < 0) {
        say(text, "DPDK makes no port of rings: %s", rte_strerror(rte_errno));
        p->name[0] = '\0';
        return -1;
    }
    snprintf(p->name, sizeof p->name, "net_ring_bny%u", atomic_load(&serial) - 1);
    return rte_eth_dev_get_port_by_name(p->name, &p->id);
}

/* The frame that fits the interface's MTU, or 0. */
static uint32_t interface_frame(const char *name)
{
    struct ifreq r;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), rc;

    memset(&r, 0, sizeof r);
    snprintf(r.ifr_name, sizeof r.ifr_name, "%s", name);
    rc = fd < 0 ? -1 : ioctl(fd, SIOCGIFMTU, &r);
    if (fd >= 0)
        close(fd);
    return rc == 0 && r.ifr_mtu > 0 ? (uint32_t)r.ifr_mtu + ETHER : 0;
}

/* Bytes of a slot of af_packet's rings. */
static uint32_t ring_frame(uint32_t frame_max)
{
    return frame_max + 64 > 2048 ? (frame_max + 64 + 4095) & ~4095u : 2048;
}

static int make_af_packet(struct bny_dpdk_port *p, const struct bny_dpdk_conf *c, struct bny_dpdk_info *info, char *text)
{
    uint32_t size = ring_frame(info->frame_max), block = size < 4096 ? 4096 : size;
    char args[200];

    snprintf(p->name, sizeof p->name, "net_af_packet_bny%u", atomic_fetch_add(&serial, 1));
    snprintf(args, sizeof args, "iface=%s,framesz=%u,blocksz=%u,framecnt=512", c->device, size, block);
    if (plug(p, args, text) == 0)
        return 0;
    say(text, "DPDK opens no port on interface %s: a packet socket needs CAP_NET_RAW (root, or a network namespace of "
        "your own), and memory for %u frames of %u bytes", c->device, 512u, size);
    return -1;
}

static int make_device(struct bny_dpdk_port *p, const struct bny_dpdk_conf *c, char *text)
{
    if (c->kind == BNY_DPDK_VDEV) {
        const char *comma = strchr(c->device, ',');

        snprintf(p->name, sizeof p->name, "%.*s", (int)(comma ? comma - c->device : 60), c->device);
        return plug(p, comma ? comma + 1 : "", text);
    }
    if (rte_eth_dev_get_port_by_name(c->device, &p->id) != 0 &&
        (rte_dev_probe(c->device) != 0 || rte_eth_dev_get_port_by_name(c->device, &p->id) != 0)) {
        say(text, "DPDK finds no port %s: bind it to vfio-pci (dpdk-devbind.py -b vfio-pci %s; Mellanox cards keep "
            "their driver), see that it is yours to open and in no other process's use", c->device, c->device);
        return -1;
    }
    return 0;
}

/* ---- setting up ------------------------------------------------------------------------------- */

static int start(struct bny_dpdk_port *p)
{
    if (!p->started && rte_eth_dev_start(p->id) == 0)
        p->started = 1;
    return p->started;
}

static void start_there(void *p)
{
    start(p);
}

static int set_up(struct bny_dpdk_port *p, const struct bny_dpdk_conf *c, struct bny_dpdk_info *info, char *text)
{
    struct rte_eth_conf conf = { 0 }; /* rxmode.mtu 0: vdevs refuse any other than 1500, and pass larger frames */
    struct rte_eth_dev_info dev;
    uint16_t rx = p->kind == BNY_DPDK_MEMIF ? PAIR_FRAMES : DEVICE_DESC, tx = rx;
    uint32_t count = c->bufs + rx + 2 * tx + 2 * CACHE;
    /* af_packet wants room for as much as its ring's frames hold */
    uint32_t room = RTE_PKTMBUF_HEADROOM + (p->kind == BNY_DPDK_AF_PACKET ? ring_frame(info->frame_max) : info->frame_max + 64);
    char name[RTE_MEMPOOL_NAMESIZE];
    int rc;

    if (rte_eth_dev_info_get(p->id, &dev) != 0) {
        say(text, "port %s does not describe itself", p->name);
        return -1;
    }
    snprintf(info->driver, sizeof info->driver, "%.31s", dev.driver_name);
    if (p->kind == BNY_DPDK_PCI) {
        conf.rxmode.mtu = info->frame_max > 1514 ? info->frame_max - ETHER : 0;
        if (conf.rxmode.mtu > dev.max_mtu)
            conf.rxmode.mtu = dev.max_mtu;
        info->frame_max = conf.rxmode.mtu ? conf.rxmode.mtu + ETHER : 1514;
        if (dev.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MULTI_SEGS) {
            info->caps |= BNY_DPDK_GATHER | BNY_DPDK_EXT_EAL;
            conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
        }
    }
    snprintf(name, sizeof name, "bny_rx%u", atomic_fetch_add(&serial, 1));
    p->pool = rte_pktmbuf_pool_create(name, count, CACHE, 0, (uint16_t)room, SOCKET_ID_ANY);
    if (!p->pool) {
        say(text, "DPDK has no memory for %u frames of %u bytes (%s); give it more (BANYAN_DPDK_ARGS=\"-m MIB\", or "
            "hugepages) or make frames smaller (BANYAN_DPDK_MTU)", count, info->frame_max, rte_strerror(rte_errno));
        return -1;
    }
    rc = rte_eth_dev_configure(p->id, 1, 1, &conf);
    if (rc == 0)
        rte_eth_dev_adjust_nb_rx_tx_desc(p->id, &rx, &tx);
    if (rc == 0)
        rc = rte_eth_rx_queue_setup(p->id, 0, rx, SOCKET_ID_ANY, NULL, p->pool);
    if (rc == 0)
        rc = rte_eth_tx_queue_setup(p->id, 0, tx, SOCKET_ID_ANY, NULL);
    if (rc != 0) {
        say(text, "port %.40s refuses to be set up: %s; another program may use it", info->driver,
            rte_strerror(rc < 0 ? -rc : rc));
        return -1;
    }
    start(p);
    if (!p->started && p->kind != BNY_DPDK_MEMIF) { /* a client starts when its server is there */
        say(text, "port %.40s does not start; another program may use it", info->driver);
        return -1;
    }
    if (p->kind == BNY_DPDK_PCI || p->kind == BNY_DPDK_VDEV)
        rte_eth_promiscuous_disable(p->id);
    if (!(info->caps & BNY_DPDK_PAIR)) {
        struct rte_ether_addr mac;

        rte_eth_macaddr_get(p->id, &mac);
        memcpy(info->mac, mac.addr_bytes, 6);
    } else {
        memcpy(info->mac, c->mac, 6);
    }
    return 0;
}

struct opening {
    struct bny_dpdk_port *p;
    const struct bny_dpdk_conf *c;
    struct bny_dpdk_info *info;
    char *text;
    int rc;
};

static void make(void *arg)
{
    struct opening *o = arg;
    struct bny_dpdk_port *p = o->p;

    o->rc = p->kind == BNY_DPDK_MEMIF       ? make_memif(p, o->c, o->text)
            : p->kind == BNY_DPDK_RING      ? make_ring(p, o->c, o->text)
            : p->kind == BNY_DPDK_AF_PACKET ? make_af_packet(p, o->c, o->info, o->text)
                                            : make_device(p, o->c, o->text);
    if (o->rc == 0)
        o->rc = set_up(p, o->c, o->info, o->text);
}

int bny_port_open(const struct bny_dpdk_conf *c, struct bny_dpdk_port **out, struct bny_dpdk_info *info, char *text)
{
    struct bny_dpdk_port *p = calloc(1, sizeof *p);
    struct opening o = { p, c, info, text, -1 };
    uint32_t limit;

    *out = NULL;
    memset(info, 0, sizeof *info);
    if (!p) {
        say(text, "no memory for a port");
        return -1;
    }
    p->kind = c->kind;
    look_up(c->kind == BNY_DPDK_MEMIF       ? "net_memif"
            : c->kind == BNY_DPDK_RING      ? "net_ring"
            : c->kind == BNY_DPDK_AF_PACKET ? "net_af_packet"
                                            : c->device,
            info, &limit);
    info->frame_max = c->frame_max < limit ? c->frame_max : limit;
    if (c->kind == BNY_DPDK_AF_PACKET) {
        limit = interface_frame(c->device);
        if (limit == 0) {
            say(text, "there is no interface %s here (ip link lists them); check BANYAN_DPDK_PORT", c->device);
            free(p);
            return -1;
        }
        info->frame_max = info->frame_max < limit ? info->frame_max : limit;
    }
    if (p->kind == BNY_DPDK_MEMIF)
        bny_eal_call(make, &o);
    else
        make(&o);
    if (o.rc != 0) {
        bny_port_close(p);
        return -1;
    }
    p->caps = info->caps;
    *out = p;
    return 0;
}

static void unmake(void *arg)
{
    struct bny_dpdk_port *p = arg;

    if (p->started)
        rte_eth_dev_stop(p->id);
    if (p->name[0])
        rte_vdev_uninit(p->name);
}

/* A memif whose peer goes away in the middle of the handshake makes the driver panic: who leaves lets it end first. */
static void await_handshake(struct bny_dpdk_port *p)
{
    struct timespec ms = { .tv_nsec = 1000000 };

    for (int i = 0; i < HANDSHAKE_MS && p->started && !bny_port_link_up(p); i++)
        nanosleep(&ms, NULL);
}

/* Rings stay for the other end, and are used again by the next pair of that name. */
void bny_port_close(struct bny_dpdk_port *p)
{
    if (p->kind == BNY_DPDK_MEMIF && !p->was_up)
        await_handshake(p);
    if (p->kind == BNY_DPDK_MEMIF)
        bny_eal_call(unmake, p);
    else
        unmake(p);
    if (p->kind == BNY_DPDK_MEMIF || p->kind == BNY_DPDK_AF_PACKET)
        rte_mempool_free(p->pool); /* of others, frames may still be under way */
    free(p);
}

int bny_port_link_up(struct bny_dpdk_port *p)
{
    struct rte_eth_link link;

    if (!p->started && now_ns() - p->tried_ns > RETRY_NS) {
        bny_eal_call(start_there, p);
        p->tried_ns = now_ns();
    }
    if (!p->started)
        return 0;
    if (p->kind == BNY_DPDK_RING)
        return 1;
    memset(&link, 0, sizeof link);
    if (rte_eth_link_get_nowait(p->id, &link) != 0 || link.link_status != RTE_ETH_LINK_UP)
        return 0;
    p->was_up = 1;
    return 1;
}

uint64_t bny_port_missed(struct bny_dpdk_port *p)
{
    struct rte_eth_stats s;

    memset(&s, 0, sizeof s);
    rte_eth_stats_get(p->id, &s);
    return p->refused + s.imissed + s.rx_nombuf;
}
