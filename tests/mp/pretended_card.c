/* SPDX-License-Identifier: BSD-3-Clause */
/* A card that only pretends, for ranks that are linked with this file: a port of net_af_packet
 * behind functions of DPDK that are found before its own. It does what cards do, and virtual
 * ports do not: it reads payload late, out of order and in its own time; its driver gives
 * frames back out of order and when it likes; it takes frames of few segments, from memory that
 * was mapped for it and from no other; it loses some. A byte that changes between the moment
 * when the driver takes a frame and that when the card reads it ends the process, as does any
 * other breach. One case is none: another copy of that packet has left the card unchanged, and
 * its receiver knows the number; engines may then have the answer already, and put it there.
 *
 *   BANYAN_TEST_CARD=INTERFACE,KIND[,LOSS]
 *     prompt      gives back what was read when asked (tx_done_cleanup), or with the next burst
 *     lazy        only when its ring is three quarters full
 *     flat        one segment a frame: nothing can be attached
 *     physical    addresses for DMA are not those of the process
 *     LOSS        of 1000 frames
 *   BANYAN_TEST_VLAN=N     frames that are not of this VLAN do not pass */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rte_bus_vdev.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

#define EXPORT   __attribute__((visibility("default")))
#define RING     256u /* descriptors; one a segment */
#define MAPS     64
#define FRAME    9130u
#define SEGMENTS 3u

enum { PROMPT, LAZY, FLAT, PHYSICAL };

struct slot {
    struct rte_mbuf *m; /* NULL: free */
    uint8_t *bytes;     /* as they were when the driver took it */
    uint64_t due_ns;    /* to be read by the card */
    uint64_t serial;
    int is_read;
};

static struct {
    pthread_mutex_t lock;
    pthread_t card;
    int kind, on;
    unsigned loss, vlan, mtu;
    unsigned long fails; /* frames until it tells `event`, and is deaf; 0: never */
    int event, is_deaf, is_begun;
    struct {
        enum rte_eth_event_type type;
        rte_eth_dev_cb_fn fn;
        void *arg;
    } hearers[8];
    int nhearers;
    uint16_t id;
    uint64_t seed, serial, used; /* used: descriptors */
    struct slot slots[RING];
    struct {
        uintptr_t at, end;
    } maps[MAPS];
    struct rte_mempool *pool;
    eth_tx_burst_t send; /* of net_af_packet */
    void *queue;
    uint64_t left[1 << 16]; /* packets that left the card whole: by a hash of their number */
    unsigned long frames, attached, lost, late, resets;
} c = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void breach(const char *what, const void *at, unsigned len)
{
    fprintf(stderr, "pretended card: %s (%p, %u bytes)\n", what, at, len);
    fflush(stderr);
    _exit(99); /* cut short: the library must not clean up behind it */
}

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static uint64_t dice(void) /* xorshift64*, Vigna 2016 */
{
    c.seed ^= c.seed >> 12;
    c.seed ^= c.seed << 25;
    c.seed ^= c.seed >> 27;
    return c.seed * 2685821657736338717u;
}

/* ---- the card ---- */

static int is_mapped(const void *at, uint32_t len)
{
    const struct rte_memseg_list *l = rte_mem_virt2memseg_list(at);
    uintptr_t from = (uintptr_t)at;

    if (l && !l->external)
        return from + len <= (uintptr_t)l->base_va + l->len;
    for (int i = 0; i < MAPS; i++)
        if (c.maps[i].at <= from && from + len <= c.maps[i].end)
            return 1;
    return 0;
}

static uint32_t copy_out(const struct rte_mbuf *m, uint8_t *to)
{
    uint32_t n = 0;

    for (; m; m = m->next) {
        const void *at = rte_pktmbuf_mtod(m, const void *);

        if (!is_mapped(at, m->data_len))
            breach("reads memory that is not mapped for it", at, m->data_len);
        if (n + m->data_len > FRAME)
            breach("a frame that is too long", at, m->data_len);
        memcpy(to + n, at, m->data_len);
        n += m->data_len;
    }
    return n;
}

/* Of a packet of the library's with payload: who sends it to whom, and its number
 * (transport/datagram/packet.h); 0: it is another. */
static uint64_t number_of(const uint8_t *f, uint32_t len)
{
    uint64_t id;

    if (len > 4 && f[12] == 0x81 && f[13] == 0) {
        f += 4;
        len -= 4;
    }
    if (len > 20 && f[12] == 0x86 && f[13] == 0xdd) { /* IPv6's header has 20 bytes more */
        f += 20;
        len -= 20;
    } else if (len < 14 || f[12] != 8 || f[13]) {
        return 0;
    }
    if (len < 100 || f[42] != 0x42 || f[43] != 0x4e || f[44] != 1)
        return 0;
    memcpy(&id, f + 46, sizeof id);
    return id;
}

static uint64_t *place_of(uint64_t id)
{
    return &c.left[id * 0x9e3779b97f4a7c15u >> 48];
}

static int is_same(const struct slot *s, const uint8_t *bytes, uint32_t len, uint64_t id)
{
    if (!memcmp(bytes, s->bytes, len))
        return 1;
    if (!id || *place_of(id) != id)
        breach("a byte changed under a frame in flight", s->m, len);
    c.late++;
    return 0;
}

static int passes(const uint8_t *f)
{
    return !c.vlan || (f[12] == 0x81 && f[13] == 0 && ((f[14] & 15u) << 8 | f[15]) == c.vlan);
}

/* One frame, as DMA does: what stands there now. */
static void read_one(struct slot *s)
{
    uint8_t bytes[FRAME];
    uint32_t len = copy_out(s->m, bytes);
    uint64_t id = number_of(s->bytes, len);
    int same = is_same(s, bytes, len, id);
    struct rte_mbuf *out;
    char *to;

    s->is_read = 1;
    if (c.is_deaf) {
        c.lost++;
        return;
    }
    if (dice() % 1000 < c.loss || !passes(bytes)) {
        c.lost++;
        return;
    }
    out = rte_pktmbuf_alloc(c.pool);
    to = out ? rte_pktmbuf_append(out, (uint16_t)len) : NULL;
    if (!to) {
        rte_pktmbuf_free(out);
        return;
    }
    memcpy(to, bytes, len);
    if (c.send(c.queue, &out, 1) != 1)
        rte_pktmbuf_free(out);
    else if (id && same)
        *place_of(id) = id;
}

/* Once, and from another thread than the library's, as the EAL's is. */
static void tell_event(void)
{
    if (!c.fails || c.frames < c.fails || c.is_deaf)
        return;
    c.is_deaf = 1;
    c.fails = 0;
    for (int i = 0; i < c.nhearers; i++)
        if ((int)c.hearers[i].type == c.event)
            c.hearers[i].fn(c.id, c.hearers[i].type, c.hearers[i].arg, NULL);
}

static void *run_card(void *arg)
{
    const struct timespec nap = { .tv_nsec = 20000 };

    for (;;) {
        pthread_mutex_lock(&c.lock);
        for (unsigned i = 0, from = (unsigned)dice(); c.on && i < RING; i++) {
            struct slot *s = &c.slots[(from + i) % RING];

            if (s->m && !s->is_read && now_ns() >= s->due_ns)
                read_one(s);
        }
        tell_event();
        pthread_mutex_unlock(&c.lock);
        nanosleep(&nap, NULL);
    }
    return NULL;
}

/* ---- its driver ---- */

static void give_back(struct slot *s)
{
    c.used -= s->m->nb_segs;
    rte_pktmbuf_free(s->m);
    free(s->bytes);
    memset(s, 0, sizeof *s);
}

/* Up to `most` of what was read, from anywhere in the ring. */
static int collect(int most)
{
    int n = 0;

    for (unsigned i = 0, from = (unsigned)dice(); i < RING && n < most; i++) {
        struct slot *s = &c.slots[(from + i) % RING];

        if (s->m && s->is_read) {
            give_back(s);
            n++;
        }
    }
    return n;
}

static void check(const struct rte_mbuf *m)
{
    uint32_t len = 0;
    unsigned n = 0;

    for (const struct rte_mbuf *s = m; s; s = s->next, n++) {
        len += s->data_len;
        c.attached += RTE_MBUF_HAS_EXTBUF(s) != 0;
        if (RTE_MBUF_HAS_EXTBUF(s) &&
            rte_mbuf_iova_get(s) + s->data_off != (uintptr_t)s->buf_addr + s->data_off)
            breach("an address for DMA that is not the process's", s->buf_addr, s->data_len);
    }
    if (n != m->nb_segs || len != m->pkt_len)
        breach("segments that do not add up", m, len);
    if (n > (c.kind == FLAT || c.kind == PHYSICAL ? 1 : SEGMENTS))
        breach("more segments than the card has for a frame", m, n);
}

static uint16_t take(void *queue, struct rte_mbuf **m, uint16_t n)
{
    uint16_t taken = 0;

    pthread_mutex_lock(&c.lock);
    if (c.kind != LAZY || c.used > RING / 4 * 3)
        collect(c.kind == LAZY ? 32 : RING);
    for (; taken < n; taken++) {
        struct slot *s = NULL;

        check(m[taken]);
        for (unsigned i = 0; i < RING && !s; i++)
            s = c.slots[i].m ? NULL : &c.slots[i];
        if (!s || c.used + m[taken]->nb_segs > RING)
            break;
        s->bytes = malloc(FRAME);
        if (!s->bytes)
            break;
        s->m = m[taken];
        copy_out(s->m, s->bytes);
        s->serial = c.serial++;
        s->due_ns = now_ns() + dice() % 60000 * (dice() % 50 ? 1 : 40);
        c.used += s->m->nb_segs;
        c.frames++;
    }
    pthread_mutex_unlock(&c.lock);
    return taken;
}

static void *real(const char *name)
{
    void *f = dlsym(RTLD_NEXT, name);

    if (!f)
        breach(name, NULL, 0);
    return f;
}

/* A pointer to a function of DPDK's own, of the same type as the one here. */
#define REAL(name) __typeof__(&name) f = (__typeof__(&name))(uintptr_t)real(#name)

static int is_card(uint16_t port)
{
    return c.pool && port == c.id;
}

EXPORT int rte_eth_dev_get_port_by_name(const char *name, uint16_t *port)
{
    REAL(rte_eth_dev_get_port_by_name);

    if (c.pool && !strcmp(name, "0000:03:00.0")) {
        *port = c.id;
        return 0;
    }
    return f(name, port);
}

EXPORT int rte_eth_dev_info_get(uint16_t port, struct rte_eth_dev_info *info)
{
    REAL(rte_eth_dev_info_get);
    int rc = f(port, info);

    if (rc != 0 || !is_card(port))
        return rc;
    info->driver_name = "net_pretended";
    info->max_mtu = FRAME - 14;
    info->speed_capa = RTE_ETH_LINK_SPEED_10G;
    info->tx_offload_capa = RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
    if (c.kind != FLAT)
        info->tx_offload_capa |= RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
    info->tx_desc_lim.nb_max = RING;
    info->tx_desc_lim.nb_mtu_seg_max = SEGMENTS;
    return 0;
}

EXPORT int rte_eth_dev_configure(uint16_t port, uint16_t rx, uint16_t tx,
                                 const struct rte_eth_conf *conf)
{
    REAL(rte_eth_dev_configure);
    struct rte_eth_conf plain = *conf;

    if (!is_card(port))
        return f(port, rx, tx, conf);
    if (conf->txmode.offloads & RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE)
        breach("was promised that no memory is attached", NULL, 0);
    if (conf->rxmode.mtu > FRAME - 14)
        breach("was asked for an MTU that it has not", NULL, conf->rxmode.mtu);
    c.mtu = conf->rxmode.mtu ? conf->rxmode.mtu : 1500;
    plain.txmode.offloads = plain.rxmode.offloads = 0;
    plain.rxmode.mtu = 0;
    return c.is_begun ? 0 : f(port, rx, tx, &plain); /* the port below goes on */
}

/* As ixgbe: a buffer has whole KiB, and what does not fit comes in pieces. */
EXPORT int rte_eth_rx_queue_setup(uint16_t port, uint16_t queue, uint16_t desc, unsigned node,
                                  const struct rte_eth_rxconf *conf, struct rte_mempool *pool)
{
    REAL(rte_eth_rx_queue_setup);
    uint32_t room = (rte_pktmbuf_data_room_size(pool) - RTE_PKTMBUF_HEADROOM) & ~1023u;

    if (is_card(port) && room < c.mtu + 14 + 4 + 8)
        breach("frames would come in pieces", pool, room);
    return is_card(port) && c.is_begun ? 0 : f(port, queue, desc, node, conf, pool);
}

EXPORT int rte_eth_tx_queue_setup(uint16_t port, uint16_t queue, uint16_t desc, unsigned node,
                                  const struct rte_eth_txconf *conf)
{
    REAL(rte_eth_tx_queue_setup);

    return is_card(port) && c.is_begun ? 0 : f(port, queue, desc, node, conf);
}

EXPORT int rte_eth_dev_callback_register(uint16_t port, enum rte_eth_event_type type,
                                         rte_eth_dev_cb_fn fn, void *arg)
{
    REAL(rte_eth_dev_callback_register);

    if (is_card(port) && c.nhearers < 8) {
        c.hearers[c.nhearers].type = type;
        c.hearers[c.nhearers].fn = fn;
        c.hearers[c.nhearers++].arg = arg;
    }
    return f(port, type, fn, arg);
}

EXPORT enum rte_iova_mode rte_eal_iova_mode(void)
{
    REAL(rte_eal_iova_mode);

    return c.kind == PHYSICAL && c.pool ? RTE_IOVA_PA : f();
}

EXPORT int rte_eth_dev_start(uint16_t port)
{
    REAL(rte_eth_dev_start);
    int rc = is_card(port) && c.is_begun ? 0 : f(port);

    if (rc != 0 || !is_card(port))
        return rc;
    pthread_mutex_lock(&c.lock);
    if (!c.is_begun) {
        c.send = rte_eth_fp_ops[port].tx_pkt_burst;
        c.queue = rte_eth_fp_ops[port].txq.data[0];
    }
    rte_eth_fp_ops[port].tx_pkt_burst = take;
    c.on = 1;
    pthread_mutex_unlock(&c.lock);
    return 0;
}

/* What was not read is lost. */
static void drop_all(void)
{
    pthread_mutex_lock(&c.lock);
    for (unsigned i = 0; i < RING; i++)
        if (c.slots[i].m)
            give_back(&c.slots[i]);
    pthread_mutex_unlock(&c.lock);
}

/* As a VF's: it must be configured and started again. */
EXPORT int rte_eth_dev_reset(uint16_t port)
{
    REAL(rte_eth_dev_reset);

    if (!is_card(port))
        return f(port);
    pthread_mutex_lock(&c.lock);
    c.on = 0;
    c.is_deaf = 0;
    c.is_begun = 1;
    c.resets++;
    pthread_mutex_unlock(&c.lock);
    drop_all();
    return 0;
}

EXPORT int rte_eth_dev_stop(uint16_t port)
{
    REAL(rte_eth_dev_stop);

    if (is_card(port)) {
        pthread_mutex_lock(&c.lock);
        c.on = 0;
        pthread_mutex_unlock(&c.lock);
        drop_all();
    }
    return f(port);
}

EXPORT int rte_eth_dev_tx_queue_stop(uint16_t port, uint16_t queue)
{
    REAL(rte_eth_dev_tx_queue_stop);

    if (!is_card(port))
        return f(port, queue);
    if (c.kind == LAZY)
        return -ENOTSUP;
    c.resets++;
    drop_all();
    return 0;
}

EXPORT int rte_eth_dev_tx_queue_start(uint16_t port, uint16_t queue)
{
    REAL(rte_eth_dev_tx_queue_start);

    return is_card(port) ? 0 : f(port, queue);
}

EXPORT int rte_eth_tx_done_cleanup(uint16_t port, uint16_t queue, uint32_t most)
{
    REAL(rte_eth_tx_done_cleanup);
    int n;

    if (!is_card(port))
        return f(port, queue, most);
    if (c.kind == LAZY)
        return -ENOTSUP;
    pthread_mutex_lock(&c.lock);
    n = collect(most ? (int)most : (int)RING);
    pthread_mutex_unlock(&c.lock);
    return n;
}

EXPORT int rte_dev_dma_map(struct rte_device *dev, void *addr, uint64_t iova, size_t len)
{
    uintptr_t at = (uintptr_t)addr;
    int rc = -1;

    pthread_mutex_lock(&c.lock);
    for (int i = 0; i < MAPS && rc != 0; i++)
        if (!c.maps[i].at && at % 4096 == 0 && len % 4096 == 0 && iova == at) {
            c.maps[i].at = at;
            c.maps[i].end = at + len;
            rc = 0;
        }
    pthread_mutex_unlock(&c.lock);
    if (rc != 0)
        rte_errno = ENOMEM;
    return rc;
}

EXPORT int rte_dev_dma_unmap(struct rte_device *dev, void *addr, uint64_t iova, size_t len)
{
    uintptr_t at = (uintptr_t)addr;

    pthread_mutex_lock(&c.lock);
    for (unsigned i = 0; i < RING; i++)
        for (const struct rte_mbuf *m = c.slots[i].m; m; m = m->next)
            if ((uintptr_t)m->buf_addr >= at && (uintptr_t)m->buf_addr < at + len)
                breach("memory is taken away under a frame", m->buf_addr, m->data_len);
    for (int i = 0; i < MAPS; i++)
        if (c.maps[i].at == at && c.maps[i].end == at + len) {
            c.maps[i].at = c.maps[i].end = 0;
            pthread_mutex_unlock(&c.lock);
            return 0;
        }
    breach("memory is taken away that was never mapped", addr, (unsigned)len);
    return -1;
}

/* ---- before main ---- */

static int kind_of(const char *name)
{
    static const char *const names[] = { "prompt", "lazy", "flat", "physical" };

    for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++)
        if (!strncmp(name, names[i], strlen(names[i])))
            return i;
    breach(name, NULL, 0);
    return 0;
}

static void tell(void)
{
    if (c.frames)
        fprintf(stderr,
                "pretended card: %lu frames, %lu segments attached, %lu lost, %lu changed "
                "after a copy had left, %lu resets\n",
                c.frames, c.attached, c.lost, c.late, c.resets);
}

/* One lcore, which may run wherever this thread may. */
static const char *lcores(char *out, size_t cap)
{
    cpu_set_t set;
    size_t len = (size_t)snprintf(out, cap, "0@(");

    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    for (int i = 0; i < CPU_SETSIZE && i < RTE_MAX_LCORE && len < cap - 8; i++)
        if (CPU_ISSET(i, &set))
            len += (size_t)snprintf(out + len, cap - len, "%d,", i);
    out[len - 1] = ')';
    return out;
}

static void start_eal(void)
{
    static char cores[4096];
    static const char *args[] = { "card",
                                  "--no-huge",
                                  "--no-shconf",
                                  "--single-file-segments",
                                  "-m",
                                  "1024",
                                  "--no-pci",
                                  "--no-telemetry",
                                  "--iova-mode=va",
                                  "--log-level=*:error",
                                  "--lcores",
                                  NULL };
    enum { N = sizeof args / sizeof args[0] };
    char *argv[N + 1] = { NULL };

    args[N - 1] = lcores(cores, sizeof cores);
    for (int i = 0; i < N; i++)
        argv[i] = strdup(args[i]); /* the EAL keeps them */
    if (rte_eal_init(N, argv) < 0)
        breach("the EAL does not start", NULL, 0);
}

__attribute__((constructor)) static void insert_card(void)
{
    char text[200], iface[32];
    const char *how = getenv("BANYAN_TEST_CARD"), *kind = how ? strchr(how, ',') : NULL;
    const char *loss = kind ? strchr(kind + 1, ',') : NULL;

    if (!kind)
        return;
    snprintf(iface, sizeof iface, "%.*s", (int)(kind - how), how);
    c.kind = kind_of(kind + 1);
    c.vlan = getenv("BANYAN_TEST_VLAN") ? (unsigned)atoi(getenv("BANYAN_TEST_VLAN")) : 0;
    c.event = getenv("BANYAN_TEST_EVENT") ? atoi(getenv("BANYAN_TEST_EVENT")) : 0;
    c.fails = c.event ? 200 : 0;
    c.loss = loss ? (unsigned)atoi(loss + 1) : 0;
    c.seed = (now_ns() ^ (uint64_t)getpid() << 32) | 1;
    snprintf(text, sizeof text, "iface=%s,framesz=9216,blocksz=36864,framecnt=512", iface);
    /* The driver takes frames to lie without gaps, in blocks of whole pages; and no more than
     * fits the buffers that the library makes for an MTU of 9110. */
    start_eal();
    if (rte_vdev_init("net_af_packet0", text) != 0 ||
        rte_eth_dev_get_port_by_name("net_af_packet0", &c.id) != 0)
        breach("no port on the interface", NULL, 0);
    c.pool = rte_pktmbuf_pool_create("card", 1023, 0, 0, 12288, SOCKET_ID_ANY);
    if (!c.pool || pthread_create(&c.card, NULL, run_card, NULL) != 0)
        breach("no memory", NULL, 0);
    pthread_detach(c.card);
    fprintf(stderr, "# pretended card: seed %llu\n", (unsigned long long)c.seed);
    atexit(tell);
}
