/* SPDX-License-Identifier: BSD-3-Clause */
/* Ports: made on demand (hot-plugged), removed with their transport. The table of drivers has
 * their observed abilities; their own reports are wrong in places. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <rte_bus_vdev.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>

#include "transport/datagram/iface.h"
#include "transport/dpdk/module/dpdk_module.h"

#define ETHER         14u
#define PAIR_FRAMES   128u        /* of net_ring */
#define AF_RING_BYTES (16u << 20) /* of each ring of net_af_packet, beyond 512 frames */
#define HANDSHAKE_MS  50
#define RETRY_NS      1000000u  /* between two attempts of a client to find its server */
#define LOOK_NS       10000000u /* ... two checks of an interface */
#define ENDED_NS      1000000u  /* ... two checks for the end of a memif link */

/* By the start of the driver's name. frame 0: the port's own limit; else the driver's largest
 * frame in bytes. */
static const struct {
    const char *driver;
    unsigned caps;
    uint32_t frame;
} drivers[] = {
    { "net_memif",
      BNY_DGRAM_GATHER | BNY_DGRAM_EXT_ANY | BNY_DGRAM_PAIR | BNY_DGRAM_LOSSLESS |
          BNY_DGRAM_LINK_TELLS,
      65000 },
    { "net_ring", BNY_DGRAM_PAIR | BNY_DGRAM_LOSSLESS, 65000 },
    { "net_af_packet", BNY_DGRAM_GATHER | BNY_DGRAM_EXT_ANY | BNY_DGRAM_KERNEL_IP, 60000 },
    /* Attached memory returns only when the ring is full: a message would wait for others to
     * follow it. */
    { "net_virtio_user", 0, 9018 },
    { "net_vhost", 0, 9018 },
    /* several segments: sends only the first. External memory: sends garbage. Takes ARP away
     * from the kernel. */
    { "net_af_xdp", 0, 3000 },
    { "net_tap", 0, 1514 },
};

static atomic_uint serial;

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void look_up(const char *driver, struct bny_dgram_info *info, uint32_t *limit)
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

/* ---- making devices ---- */

static int plug(struct bny_dgram_port *p, const char *args, char *text)
{
    int rc = rte_vdev_init(p->name, args);

    if (rc != 0) {
        say(text,
            "DPDK makes no port %s,%.120s: %s; see that this driver is installed, that its "
            "interface is there, yours "
            "to open and in no other process's use (BANYAN_DPDK_PORT)",
            p->name, args, rte_strerror(rc < 0 ? -rc : rte_errno));
        p->name[0] = '\0';
        return -1;
    }
    if (rte_eth_dev_get_port_by_name(p->name, &p->id) != 0) {
        say(text, "DPDK made %s, which is no Ethernet port", p->name);
        return -1;
    }
    return 0;
}

/* Without the driver's zero copy, which (22.11) overwrites slots in flight when more than 4
 * packets of 2 segments meet a full ring, closes the EAL's own memory descriptor with its link,
 * and is slower if the receiver adds: 4.2 instead of 5.8 GB/s from 64 MiB buffers. With copies,
 * the driver gathers from any memory. Fewer slots stay in the L2 cache: 128 6.2, 256 5.9, 1024
 * 4.7 GB/s. */
static int make_memif(struct bny_dgram_port *p, const struct bny_dgram_conf *c, char *text)
{
    char args[400];

    snprintf(p->name, sizeof p->name, "net_memif_bny%u", atomic_fetch_add(&serial, 1));
    snprintf(args, sizeof args,
             "role=%s,id=%d,socket=%s,socket-abstract=yes,secret=%s,bsize=%u,rsize=7,"
             "mac=%02x:%02x:%02x:%02x:%02x:%02x",
             c->server ? "server" : "client", c->id, c->link, c->secret, c->frame_max,
             c->mac[0], c->mac[1], c->mac[2], c->mac[3], c->mac[4], c->mac[5]);
    return plug(p, args, text);
}

/* Both ends are in this process; the first one makes the two rings. */
static int make_ring(struct bny_dgram_port *p, const struct bny_dgram_conf *c, char *text)
{
    char name[2][RTE_RING_NAMESIZE];

    for (int i = 0; i < 2; i++) {
        struct rte_ring *r;

        snprintf(name[i], sizeof name[i], "b%.24s.%d", c->link + 3, i);
        r = rte_ring_lookup(name[i]);
        if (!r)
            r = rte_ring_create(name[i], 2 * PAIR_FRAMES, SOCKET_ID_ANY,
                                RING_F_SP_ENQ | RING_F_SC_DEQ);
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

/* The largest frame for the interface's MTU, or 0. */
static uint32_t interface_frame(const char *name)
{
    struct ifreq r;

    return bny_dgram_ask_iface(name, SIOCGIFMTU, &r) == 0 && r.ifr_mtu > 0
               ? (uint32_t)r.ifr_mtu + ETHER
               : 0;
}

static int open_try(struct bny_dgram_port *p)
{
    struct sockaddr_ll at = { .sll_family = AF_PACKET,
                              .sll_ifindex = (int)if_nametoindex(p->iface) };

    p->try_fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK,
                       0); /* protocol 0: receives nothing */
    return p->try_fd < 0 ? -1 : bind(p->try_fd, (struct sockaddr *)&at, sizeof at);
}

void bny_port_try(struct bny_dgram_port *p, const struct bny_dgram_tx *tx)
{
    struct iovec parts[2] = { { (void *)(uintptr_t)tx->head, tx->head_len },
                              { (void *)(uintptr_t)tx->body, tx->body_len } };
    struct msghdr m = { .msg_iov = parts, .msg_iovlen = tx->body_len ? 2 : 1 };

    if (sendmsg(p->try_fd, &m, 0) == (ssize_t)(tx->head_len + tx->body_len))
        p->taken = tx->head_len + tx->body_len;
}

/* The driver puts its sockets into the kernel's fan-out group of this number, in our network
 * namespace, and members of a group share its frames: a second port of this process on the
 * interface, or of a process with the same number in another pid namespace, would take half of
 * ours; on another interface it cannot be made. An abstract socket name in that namespace,
 * which ends with this process, reserves the number; other DPDK programs do not check it. */
static int keep_group(struct bny_dgram_port *p, const char *iface, char *text)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    unsigned group = ((unsigned)getpid() ^ if_nametoindex(iface)) & 0xffff;
    size_t len = offsetof(struct sockaddr_un, sun_path) + 1;

    len += (size_t)snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "bny_fanout.%u", group);
    p->group_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (p->group_fd < 0 || bind(p->group_fd, (struct sockaddr *)&a, (socklen_t)len) == 0 ||
        errno != EADDRINUSE)
        return 0;
    say(text,
        "interface %s: another port in this network namespace has its fan-out group of packet "
        "sockets (%u, process "
        "number xor interface number), and would share its frames: give each rank and "
        "communicator an interface and a "
        "network namespace of its own, or start again (other process numbers)",
        iface, group);
    return -1;
}

static int make_af_packet(struct bny_dgram_port *p, const struct bny_dgram_conf *c,
                          struct bny_dgram_info *info, char *text)
{
    uint32_t size = bny_queues_ring_frame(info->frame_max), block = size < 4096 ? 4096 : size;
    uint32_t frames = c->ring;
    char args[200];
    int queues = c->queues > 1 ? c->queues : 1;

    while (frames > 512 && frames * (uint64_t)size > AF_RING_BYTES)
        frames /= 2;

    snprintf(p->name, sizeof p->name, "net_af_packet_bny%u", atomic_fetch_add(&serial, 1));
    snprintf(args, sizeof args, "iface=%s,framesz=%u,blocksz=%u,framecnt=%u,qpairs=%d",
             c->device, size, block, frames, queues);
    info->ring = frames;
    if (keep_group(p, c->device, text) != 0) {
        p->name[0] = '\0';
        return -1;
    }
    if (plug(p, args, text) == 0 && open_try(p) == 0)
        return 0;
    say(text,
        "DPDK opens no port on interface %s: a packet socket needs CAP_NET_RAW (root, or a "
        "network namespace of "
        "your own), and memory for %u frames of %u bytes",
        c->device, frames * (unsigned)queues, size);
    return -1;
}

/* Claims a port that may be in use: by the program that started DPDK, or another
 * communicator. */
static int own(struct bny_dgram_port *p, const char *name, char *text)
{
    struct rte_eth_dev_owner o = { .name = "banyan" }, other;

    if (rte_eth_dev_owner_new(&o.id) == 0 && rte_eth_dev_owner_set(p->id, &o) == 0) {
        p->owner = o.id;
        return 0;
    }
    if (rte_eth_dev_owner_get(p->id, &other) != 0)
        other.name[0] = '\0';
    say(text, "port %.60s is in use in this process, by %.40s: set BANYAN_DPDK_PORT to another",
        name, other.name[0] ? other.name : "somebody");
    return -1;
}

static int take_bpf_line(int level, const char *fmt, va_list ap)
{
    char line[300];
    int n = vsnprintf(line, sizeof line, fmt, ap);

    if (level == 0 && n > 0) /* warnings; below are explanations */
        bny_eal_hear(line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
    return n;
}

/* The libraries of net_af_xdp write to stderr by default. Both have a function of the same form
 * to change that. */
static void hear_bpf(const char *name)
{
    static const char *const libs[][2] = { { "libbpf.so.1", "libbpf_set_print" },
                                           { "libxdp.so.1", "libxdp_set_print" } };
    void *(*set)(int (*)(int, const char *, va_list));

    for (int i = 0; !strncmp(name, "net_af_xdp", 10) && i < 2; i++) {
        void *lib = dlopen(libs[i][0], RTLD_NOW | RTLD_NOLOAD),
             *symbol = lib ? dlsym(lib, libs[i][1]) : NULL;

        memcpy(&set, &symbol, sizeof set);
        if (symbol)
            set(take_bpf_line);
    }
}

/* Our close keeps a device that existed before. */
static int make_device(struct bny_dgram_port *p, const struct bny_dgram_conf *c, char *text)
{
    const char *comma = strchr(c->device, ',');
    char name[sizeof p->name];

    snprintf(name, sizeof name, "%.*s", (int)(comma ? comma - c->device : 60), c->device);
    if (rte_eth_dev_get_port_by_name(name, &p->id) == 0)
        return own(p, name, text);
    if (c->kind == BNY_DGRAM_VDEV) {
        snprintf(p->name, sizeof p->name, "%s", name);
        hear_bpf(name);
        return plug(p, comma ? comma + 1 : "", text) == 0 ? own(p, name, text) : -1;
    }
    if (rte_dev_probe(c->device) != 0 || rte_eth_dev_get_port_by_name(name, &p->id) != 0) {
        say(text,
            "DPDK finds no port %s: bind it to vfio-pci (dpdk-devbind.py -b vfio-pci %s; "
            "Mellanox cards keep "
            "their driver), see that it is yours to open and in no other process's use; what "
            "started DPDK before in this process must not have done so with "
            "--no-pci",
            name, name);
        return -1;
    }
    return own(p, name, text);
}

/* ---- setting up ---- */

static void start_there(void *p)
{
    bny_queues_start(p);
}

struct opening {
    struct bny_dgram_port *p;
    const struct bny_dgram_conf *c;
    struct bny_dgram_info *info;
    char *text;
    int rc;
};

static void dpdk_port_make(void *arg)
{
    struct opening *o = arg;
    struct bny_dgram_port *p = o->p;

    o->rc = p->kind == BNY_DGRAM_MEMIF       ? make_memif(p, o->c, o->text)
            : p->kind == BNY_DGRAM_RING      ? make_ring(p, o->c, o->text)
            : p->kind == BNY_DGRAM_AF_PACKET ? make_af_packet(p, o->c, o->info, o->text)
                                             : make_device(p, o->c, o->text);
    if (o->rc == 0)
        o->rc = bny_queues_set_up(p, o->c, o->info, o->text);
}

int bny_port_open(const struct bny_dgram_conf *c, struct bny_dgram_port **out,
                  struct bny_dgram_info *info, char *text)
{
    struct bny_dgram_port *p = calloc(1, sizeof *p);
    struct opening o = { p, c, info, text, -1 };
    uint32_t limit;

    *out = NULL;
    memset(info, 0, sizeof *info);
    if (!p) {
        say(text, "no memory for a port");
        return -1;
    }
    bny_eal_forget_lines();
    p->kind = c->kind;
    p->vlan = c->vlan;
    snprintf(p->device, sizeof p->device, "%.*s", (int)strcspn(c->device, ","), c->device);
    p->is4 = bny_dgram_ip_none(&c->ip) || bny_dgram_ip_is4(&c->ip);
    p->iface_up = 1;
    p->try_fd = p->group_fd = p->link_fd = -1;
    p->server = c->server;
    if (c->kind == BNY_DGRAM_MEMIF)
        snprintf(p->link, sizeof p->link, "%s", c->link);
    snprintf(p->iface, sizeof p->iface, "%s", c->iface ? c->iface : "");
    look_up(c->kind == BNY_DGRAM_MEMIF       ? "net_memif"
            : c->kind == BNY_DGRAM_RING      ? "net_ring"
            : c->kind == BNY_DGRAM_AF_PACKET ? "net_af_packet"
                                             : c->device,
            info, &limit);
    info->frame_max = c->frame_max < limit ? c->frame_max : limit;
    if (p->iface[0]) {
        limit = interface_frame(p->iface);
        if (limit == 0) {
            say(text,
                "there is no interface %s here (ip link lists them); check BANYAN_DPDK_PORT",
                p->iface);
            free(p);
            return -1;
        }
        info->frame_max = info->frame_max < limit ? info->frame_max : limit;
    }
    if (p->kind == BNY_DGRAM_MEMIF)
        bny_eal_call(dpdk_port_make, &o);
    else
        dpdk_port_make(&o);
    if (o.rc != 0) {
        bny_eal_explain(text);
        bny_port_close(p);
        return -1;
    }
    p->caps = info->caps;
    *out = p;
    return 0;
}

static void unmake(void *arg)
{
    struct bny_dgram_port *p = arg;

    bny_events_close(p);
    bny_queues_stop(p);
    if (p->owner)
        rte_eth_dev_owner_unset(p->id, p->owner);
    if (p->name[0])
        rte_vdev_uninit(p->name);
    if (p->kind == BNY_DGRAM_MEMIF)
        bny_memif_drain();
}

/* virtio_user writes to its socket when it is closed, and the other end may be gone. */
static void unmake_quietly(struct bny_dgram_port *p)
{
    const struct timespec now = { 0 };
    sigset_t pipe, before;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    unmake(p);
    while (!sigismember(&before, SIGPIPE) && sigtimedwait(&pipe, NULL, &now) == SIGPIPE)
        continue;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* A memif panics if its peer leaves during the handshake: the leaving rank waits for its
 * end. */
static void await_handshake(struct bny_dgram_port *p)
{
    struct timespec ms = { .tv_nsec = 1000000 };

    for (int i = 0; i < HANDSHAKE_MS && p->started && !bny_port_link_up(p); i++)
        nanosleep(&ms, NULL);
}

/* Rings stay for the other end, and the next pair of that name reuses them. */
void bny_port_close(struct bny_dgram_port *p)
{
    if (p->kind == BNY_DGRAM_MEMIF && !p->was_up)
        await_handshake(p);
    if (p->kind == BNY_DGRAM_MEMIF)
        bny_eal_call(unmake, p);
    else
        unmake_quietly(p);
    if (p->link_fd >= 0)
        close(p->link_fd); /* the peer sees this */
    if (p->pool &&
        rte_mempool_full(
            p->pool)) /* else the driver, or the other end of a ring, still has its frames */
        rte_mempool_free(p->pool);
    if (p->try_fd >= 0)
        close(p->try_fd);
    if (p->group_fd >= 0)
        close(p->group_fd);
    free(p);
}

/* net_af_packet always reports up, so this asks the interface. A removed one is down. */
static int interface_up(struct bny_dgram_port *p)
{
    struct ifreq r;
    int rc;

    if (now_ns() - p->looked_ns < LOOK_NS)
        return p->iface_up;
    p->looked_ns = now_ns();
    rc = bny_dgram_ask_iface(p->iface, SIOCGIFFLAGS, &r);
    if (rc <= 0)
        p->iface_up = rc == 0 && (r.ifr_flags & IFF_UP) && (r.ifr_flags & IFF_RUNNING);
    return p->iface_up;
}

/* For a memif link that came up once and was taken from the driver. */
static int is_open(struct bny_dgram_port *p)
{
    if (!p->ended && now_ns() - p->looked_ns > ENDED_NS) {
        p->looked_ns = now_ns();
        p->ended = bny_memif_ended(p);
    }
    return !p->ended;
}

int bny_port_link_up(struct bny_dgram_port *p)
{
    struct rte_eth_link link;

    if (p->link_fd >= 0)
        return is_open(p);
    bny_events_run(p);
    if (p->gone || p->recovers)
        return 0;
    if (!p->started && now_ns() - p->tried_ns > RETRY_NS) {
        bny_eal_call(start_there, p);
        p->tried_ns = now_ns();
    }
    if (!p->started)
        return 0;
    if (p->kind == BNY_DGRAM_RING)
        return 1;
    if (p->iface[0] && !interface_up(p))
        return 0;
    memset(&link, 0, sizeof link);
    if (rte_eth_link_get_nowait(p->id, &link) != 0 || link.link_status != RTE_ETH_LINK_UP)
        return 0;
    if (p->kind == BNY_DGRAM_MEMIF && !p->was_up)
        bny_eal_call(bny_memif_take, p);
    p->was_up = 1;
    return 1;
}

uint32_t bny_port_mbps(struct bny_dgram_port *p)
{
    struct rte_eth_link link;

    memset(&link, 0, sizeof link);
    if (p->kind != BNY_DGRAM_PCI || rte_eth_link_get_nowait(p->id, &link) != 0 ||
        link.link_status != RTE_ETH_LINK_UP || link.link_speed == RTE_ETH_SPEED_NUM_UNKNOWN)
        return 0;
    return link.link_speed;
}

/* Ordinary memory: in the caller's page size, whatever the kernel used. */
int bny_port_map(struct bny_dgram_port *p, void *mem, size_t bytes, char *text)
{
    struct rte_eth_dev_info dev;
    int rc = rte_eth_dev_info_get(p->id, &dev);

    if (rc == 0 && rte_extmem_register(mem, bytes, NULL, 0, 4096) != 0)
        rc = -rte_errno;
    if (rc != 0) {
        say(text, "DPDK does not register it: %s", rte_strerror(-rc));
        return -1;
    }
    if (rte_dev_dma_map(dev.device, mem, (uintptr_t)mem, bytes) == 0)
        return 0;
    say(text, "its bus does not map it for the card: %s%s", rte_strerror(rte_errno),
        rte_errno == ENOMEM ? " (ulimit -l)" : "");
    rte_extmem_unregister(mem, bytes);
    return -1;
}

void bny_port_unmap(struct bny_dgram_port *p, void *mem, size_t bytes)
{
    struct rte_eth_dev_info dev;

    if (rte_eth_dev_info_get(p->id, &dev) == 0)
        rte_dev_dma_unmap(dev.device, mem, (uintptr_t)mem, bytes);
    rte_extmem_unregister(mem, bytes);
}

uint64_t bny_port_missed(struct bny_dgram_port *p)
{
    struct rte_eth_stats s;

    memset(&s, 0, sizeof s);
    rte_eth_stats_get(p->id, &s);
    return p->refused + s.imissed + s.rx_nombuf;
}
