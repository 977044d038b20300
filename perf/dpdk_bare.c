/* SPDX-License-Identifier: BSD-3-Clause */
/* What an ethdev port can do at best between two processes: a loop over rx_burst and tx_burst
 * that does no more than a transport must: frames out of a user's buffer, each with its offset,
 * added (or copied) into a user's buffer straight from the received mbuf, by the same kernel as
 * banyan's. No reliability; --window bounds what is under way, so that a receiver's ring does
 * not overflow. Idle polls yield the CPU. memif has rings of 64 slots: more, and the shared
 * buffers fall out of the L2 cache (1024: 4.7 instead of 6.6 GB/s).
 *
 *   dpdk_bare bw  [--port memif[:zero-copy=yes]|af_packet:iface=IF] [--frame 9000] [--bytes
 *                 67108864] [--op add|copy|none] [--ext 0|1] [--window FRAMES] [--seconds 1]
 *                 [--payload BYTES] [--pin 0|1]
 *   dpdk_bare lat [--port ...] [--bytes 64] [--count 20000]
 *
 * Rank 0 sends, rank 1 receives (variable RANK, as scripts/netns-cluster sets it); without RANK
 * it starts the other itself. --ext 1: external buffers on the user's memory (EAL memory, where
 * the port needs that). --frame: MTU, IP header included. The rank that measured prints a JSON
 * object. Exit status 0, 1, 77 (no such port here), 2. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_ip.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_udp.h>

#include "base/clock.h"
#include "compress/kernels/kernels.h"

#define BURST    32
#define HEAD     64u /* of a frame: the payload is aligned as the mbuf's room is */
#define MAGIC    0x62617265u
#define WAIT_S   10.0
#define STALL_NS 5000000u

enum kind { HELLO = 1, DATA, CREDIT, END, END_SEEN, PING };

/* Behind Ethernet, IPv4 and UDP; our own machine's byte order. */
struct note {
    uint32_t magic, kind;
    uint64_t at; /* DATA: offset in the buffer; CREDIT: frames received; END: rounds */
};

struct frame {
    struct rte_ether_hdr eth;
    struct rte_ipv4_hdr ip;
    struct rte_udp_hdr udp;
    struct note note;
} __attribute__((packed, aligned(2)));
_Static_assert(sizeof(struct frame) <= HEAD, "the payload starts at HEAD");

static struct {
    const char *what, *port, *op;
    int rank, ext, pin, frame;
    size_t bytes, payload; /* payload: of a DATA frame, a multiple of 64 */
    uint64_t window, count;
    double seconds;
    unsigned bufs,
        cache; /* of the pool: few that are used again at once stay in the L2 cache */
} o = { .bufs = 4095,
        .cache = 64,
        .port = "memif",
        .op = "add",
        .pin = 1,
        .frame = 9000,
        .bytes = 64 << 20,
        .count = 20000,
        .seconds = 1 };

static struct {
    uint16_t port;
    struct rte_mempool *pool, *refs; /* refs: mbufs without room, for external buffers */
    struct rte_ether_addr mine, peer;
    struct rte_mbuf_ext_shared_info shared;
    float *buf;
    uint64_t sent, credited, lost, received, end_seen, last_ns, first_ns, rounds;
    uint32_t heard; /* kinds of frames that came, a bit each */
} l;

static void die(int status, const char *what, int err)
{
    fprintf(stderr, "dpdk_bare: rank %d: %s: %s\n", o.rank, what,
            rte_strerror(err < 0 ? -err : err));
    exit(status);
}

/* ---- port ---- */

static void vdev_of(char *name, char *args, size_t cap, const char *socket)
{
    const char *more = strchr(o.port, ':');

    if (!strncmp(o.port, "memif", 5)) {
        strcpy(name, "net_memif0");
        snprintf(args, cap, "role=%s,id=0,bsize=%u,rsize=6,socket=%s,socket-abstract=no%s%s",
                 o.rank ? "server" : "client", RTE_ALIGN(o.frame + 14u + 100u, 1024u), socket,
                 more && !o.rank ? "," : "", more && !o.rank ? more + 1 : "");
    } else {
        strcpy(name, "net_af_packet0");
        snprintf(args, cap, "%s,%s", more ? more + 1 : "",
                 o.frame <= 1500 ? "framesz=2048,blocksz=65536,framecnt=2048"
                                 : "framesz=12288,blocksz=12288,framecnt=512");
    }
}

static void start_eal(void)
{
    char args[] = "dpdk_bare\0--no-huge\0--no-shconf\0--single-file-segments\0-m\0"
                  "512\0--no-pci\0--no-telemetry\0"
                  "--log-level=3\0--lcores\0";
    char lcores[32], *argv[16];
    int argc = 0;

    for (char *at = args; *at; at += strlen(at) + 1)
        argv[argc++] = at;
    snprintf(lcores, sizeof lcores, "0@(0-%ld)", sysconf(_SC_NPROCESSORS_ONLN) - 1);
    argv[argc++] = lcores;
    argv[argc] = NULL;
    if (rte_eal_init(argc, argv) < 0)
        die(77, "the EAL does not start", rte_errno);
}

static void open_port(const char *socket)
{
    struct rte_eth_conf conf = { 0 };
    char name[32], args[512];
    struct rte_eth_link link = { 0 };
    uint64_t deadline = bny_deadline_in(WAIT_S);
    int rc;

    vdev_of(name, args, sizeof args, socket);
    if ((rc = rte_eal_hotplug_add("vdev", name, args)) < 0 ||
        (rc = rte_eth_dev_get_port_by_name(name, &l.port)) < 0)
        die(77, args, rc);
    l.pool = rte_pktmbuf_pool_create("frames", o.bufs, o.cache, 0,
                                     (uint16_t)(o.frame <= 1500 ? 2048 + 128 : 12288 + 128), 0);
    l.refs = rte_pktmbuf_pool_create("refs", 4095, 256, 0, 0, 0);
    if (!l.pool || !l.refs)
        die(1, "no memory for mbufs", rte_errno);
    if ((rc = rte_eth_dev_configure(l.port, 1, 1, &conf)) < 0 ||
        (rc = rte_eth_rx_queue_setup(l.port, 0, 1024, 0, NULL, l.pool)) < 0 ||
        (rc = rte_eth_tx_queue_setup(l.port, 0, 1024, 0, NULL)) < 0)
        die(1, "the port's queues", rc);
    /* Memif's server may not be there yet, or listen before it knows its own port; a client
     * that it turned away does not try again. */
    while (!link.link_status && !bny_deadline_passed(deadline)) {
        rc = rte_eth_dev_start(l.port);
        for (int ms = 0; rc == 0 && ms < 50 && !link.link_status; ms++) {
            rte_eth_link_get_nowait(l.port, &link);
            usleep(1000);
        }
        if (!link.link_status && !o.rank) {
            rte_eth_dev_stop(l.port);
            usleep(1000);
        }
    }
    if (rc < 0)
        die(1, "the port does not start", rc);
    if (!link.link_status)
        die(1, "the link stays down", ETIMEDOUT);
    rte_eth_macaddr_get(l.port, &l.mine);
    memset(&l.peer, 0xff, sizeof l.peer);
}

/* ---- frames ---- */

static void fill_head(void *at, enum kind kind, uint64_t value, size_t payload)
{
    struct frame *f = at;
    uint16_t ip_len = (uint16_t)(HEAD - sizeof f->eth + payload);

    memset(f, 0, HEAD);
    f->eth.dst_addr = l.peer;
    f->eth.src_addr = l.mine;
    f->eth.ether_type = RTE_BE16(RTE_ETHER_TYPE_IPV4);
    /* Addresses of nobody: the kernel, which sees the frames of af_packet too, drops them at
     * once. */
    f->ip = (struct rte_ipv4_hdr){ .version_ihl = 0x45,
                                   .total_length = rte_cpu_to_be_16(ip_len),
                                   .time_to_live = 64,
                                   .next_proto_id = IPPROTO_UDP,
                                   .src_addr = RTE_BE32(0xc0000201),
                                   .dst_addr = RTE_BE32(0xc0000202) };
    f->ip.hdr_checksum = rte_ipv4_cksum(&f->ip);
    f->udp.src_port = f->udp.dst_port = RTE_BE16(4791);
    f->udp.dgram_len = rte_cpu_to_be_16((uint16_t)(ip_len - sizeof f->ip));
    f->note = (struct note){ .magic = MAGIC, .kind = kind, .at = value };
}

static struct rte_mbuf *make(enum kind kind, uint64_t value, const void *payload, size_t len)
{
    struct rte_mbuf *m = rte_pktmbuf_alloc(l.pool), *d;
    int ext = o.ext && len;

    if (!m)
        return NULL;
    fill_head(rte_pktmbuf_append(m, (uint16_t)(HEAD + (ext ? 0 : len))), kind, value, len);
    if (!ext) {
        if (len)
            memcpy(rte_pktmbuf_mtod_offset(m, void *, HEAD), payload, len);
        return m;
    }
    d = rte_pktmbuf_alloc(l.refs);
    if (!d) {
        rte_pktmbuf_free(m);
        return NULL;
    }
    rte_mbuf_ext_refcnt_update(&l.shared, 1);
    rte_pktmbuf_attach_extbuf(d, (void *)(uintptr_t)payload, RTE_BAD_IOVA, (uint16_t)len,
                              &l.shared);
    d->data_len = (uint16_t)len;
    d->pkt_len = (uint32_t)len;
    rte_pktmbuf_chain(m, d);
    return m;
}

static void buffer_unused(void *addr, void *opaque)
{
    (void)addr, (void)opaque;
}

/* Sends one frame, sooner or later. */
static void say(enum kind kind, uint64_t value)
{
    struct rte_mbuf *m = make(kind, value, NULL, 0);

    while (m && !rte_eth_tx_burst(l.port, 0, &m, 1))
        sched_yield();
}

static void take_data(struct rte_mbuf *m, uint64_t at)
{
    size_t len = m->data_len - HEAD;
    char *dst = (char *)l.buf + at;
    const void *src = rte_pktmbuf_mtod_offset(m, const void *, HEAD);

    if (at + len > o.bytes)
        return;
    if (o.op[0] == 'a')
        bny_kernels()->reduce[BANYAN_F32][BANYAN_SUM](dst, dst, src, len / 4);
    else if (o.op[0] == 'c')
        memcpy(dst, src, len);
    l.received += len;
}

/* Receives what is there. Returns frames. */
static unsigned turn(void)
{
    struct rte_mbuf *m[BURST];
    unsigned n = rte_eth_rx_burst(l.port, 0, m, BURST), data = 0;
    static uint64_t frames, told;

    for (unsigned i = 0; i < n; i++) {
        const struct frame *f = rte_pktmbuf_mtod(m[i], const struct frame *);

        if (m[i]->data_len >= HEAD && f->note.magic == MAGIC) {
            l.heard |= 1u << f->note.kind;
            l.peer = f->eth.src_addr;
            if (f->note.kind == DATA || f->note.kind == PING) {
                take_data(m[i], f->note.at);
                data++;
            } else if (f->note.kind == CREDIT && f->note.at > l.credited) {
                l.credited = f->note.at;
            } else if (f->note.kind == END) {
                l.rounds = f->note.at;
            }
        }
        rte_pktmbuf_free(m[i]);
    }
    if (data) {
        l.last_ns = bny_now_ns();
        if (!l.first_ns)
            l.first_ns = l.last_ns;
        frames += data;
        if (o.window && frames - told >= (o.window + 3) / 4)
            say(CREDIT, told = frames);
    }
    if (!n)
        sched_yield();
    return n;
}

/* Says kind until the peer answers with one of the kinds in bits. */
static void call(enum kind kind, uint64_t value, uint32_t bits)
{
    uint64_t deadline = bny_deadline_in(WAIT_S), next = 0;

    while (!(l.heard & bits)) {
        if (bny_now_ns() >= next) {
            say(kind, value);
            next = bny_now_ns() + 1000000;
        }
        turn();
        if (bny_deadline_passed(deadline))
            die(1, "the other process does not answer", ETIMEDOUT);
    }
}

/* ---- measuring ---- */

/* Room for a frame in the window; after a stall what is under way counts as lost. */
static int may_send(void)
{
    static uint64_t since, seen;

    if (!o.window || l.sent - l.credited - l.lost < o.window)
        return 1;
    if (seen != l.credited) {
        seen = l.credited;
        since = bny_now_ns();
    } else if (bny_now_ns() - since > STALL_NS) {
        l.lost = l.sent - l.credited;
        since = bny_now_ns();
    }
    return 0;
}

/* DPDK 22.11's memif with zero-copy: sending more than 4 packets of 2 segments at once to a
 * ring that fills up overwrites slots in flight (eth_memif_tx_zc looks at the free slots once
 * for 4 packets). */
static void push(struct rte_mbuf **m, unsigned n)
{
    unsigned done = 0, most = o.ext && strstr(o.port, "zero-copy") ? 4 : BURST;

    while (done < n) {
        unsigned k = rte_eth_tx_burst(l.port, 0, m + done, (uint16_t)RTE_MIN(n - done, most));

        done += k;
        if (!k)
            turn();
    }
    l.sent += n;
}

static uint64_t send_rounds(void)
{
    uint64_t end = bny_now_ns() + (uint64_t)(o.seconds * 1e9), rounds = 0;

    do {
        for (size_t at = 0; at < o.bytes;) {
            struct rte_mbuf *m[BURST];
            unsigned n = 0;

            while (!may_send())
                turn();
            for (; n < BURST && at < o.bytes &&
                   (n == 0 || !o.window || l.sent + n - l.credited - l.lost < o.window);
                 n++) {
                size_t len = RTE_MIN(o.payload, o.bytes - at);

                while (!(m[n] = make(DATA, at, (char *)l.buf + at, len)))
                    turn();
                at += len;
            }
            push(m, n);
            if (o.window)
                turn();
        }
        rounds++;
    } while (bny_now_ns() < end);
    return rounds;
}

static int check(uint64_t rounds)
{
    for (size_t i = 0; i < o.bytes / 4; i++)
        if (l.buf[i] != (float)(i % 13) * (float)(o.op[0] == 'a' ? rounds : 1))
            return 0;
    return 1;
}

static void bandwidth(void)
{
    uint64_t deadline, total;

    if (o.rank == 0) {
        call(END, send_rounds(), 1u << END_SEEN);
        return;
    }
    deadline = bny_deadline_in(o.seconds + WAIT_S);
    while (!(l.heard & 1u << END) && !bny_deadline_passed(deadline))
        turn();
    if (!l.received)
        die(1, "nothing arrived", ETIMEDOUT);
    total = l.received;
    for (int i = 0; i < 20; i++) {
        say(END_SEEN, 0);
        usleep(500);
        turn();
    }
    printf("{\"what\": \"bw\", \"port\": \"%s\", \"frame\": %d, \"bytes\": %zu, \"op\": "
           "\"%s\", \"ext\": %d, \"window\": %lu, "
           "\"GBps\": %.4f, \"us\": %.1f, \"rounds\": %lu, \"right\": %s, \"missing\": %lld}\n",
           o.port, o.frame, o.bytes, o.op, o.ext, (unsigned long)o.window,
           (double)total / (double)(l.last_ns - l.first_ns),
           (double)(l.last_ns - l.first_ns) * (double)o.bytes / (double)total / 1000,
           (unsigned long)l.rounds,
           total != l.rounds * o.bytes         ? "\"lossy\""
           : o.op[0] == 'n' || check(l.rounds) ? "true"
                                               : "false",
           (long long)(l.rounds * o.bytes - total));
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void latency(void)
{
    double *us = malloc(o.count * sizeof *us);
    uint64_t warm = o.count / 10 + 1, n = 0, again = 0;

    if (!us)
        die(1, "no memory", ENOMEM);
    for (uint64_t i = 0; i < o.count + warm; i++) {
        uint64_t t0 = bny_now_ns(), got = l.received;

        if (o.rank == 0)
            push(&(struct rte_mbuf *){ make(PING, 0, l.buf, o.bytes) }, 1);
        for (uint64_t t = t0; l.received == got;) {
            turn();
            if (o.rank == 0 && bny_now_ns() - t > 100000000u) {
                t = bny_now_ns();
                if (++again > 50)
                    die(1, "no answer", ETIMEDOUT);
                push(&(struct rte_mbuf *){ make(PING, 0, l.buf, o.bytes) }, 1);
            }
            if (bny_now_ns() - t0 > 5000000000u)
                die(1, "nothing arrives", ETIMEDOUT);
        }
        if (o.rank == 1)
            push(&(struct rte_mbuf *){ make(PING, 0, l.buf, o.bytes) }, 1);
        if (i >= warm)
            us[n++] = (double)(bny_now_ns() - t0) / 2000;
    }
    qsort(us, n, sizeof *us, by_value);
    if (o.rank == 0)
        printf("{\"what\": \"lat\", \"port\": \"%s\", \"frame\": %d, \"bytes\": %zu, \"lost\": "
               "%lu, \"us\": %.3f, \"min\": %.3f, "
               "\"p99\": %.3f, \"p999\": %.3f}\n",
               o.port, o.frame, o.bytes, (unsigned long)again, us[n / 2], us[0],
               us[n * 99 / 100], us[n * 999 / 1000]);
    free(us);
}

/* ---- start ---- */

static void prepare(void)
{
    size_t most = ((size_t)o.frame + sizeof(struct rte_ether_hdr) - HEAD) / 64 * 64;

    if (!o.payload || o.payload > most)
        o.payload = most;
    if (!strcmp(o.what, "lat"))
        o.op = "copy";
    if (o.ext && !o.rank && strstr(o.port, "zero-copy"))
        l.buf = rte_malloc(NULL, o.bytes, 4096);
    else if (posix_memalign((void **)&l.buf, 2 << 20, o.bytes + 64))
        l.buf = NULL;
    if (!l.buf)
        die(1, "no memory for the buffer", ENOMEM);
    if (!strstr(o.port, "zero-copy"))
        madvise(l.buf, o.bytes, MADV_HUGEPAGE);
    memset(l.buf, 0, o.bytes);
    for (size_t i = 0; i < o.bytes / 4 && o.rank == 0; i++)
        l.buf[i] = (float)(i % 13);
    l.shared.free_cb = buffer_unused;
    rte_mbuf_ext_refcnt_set(&l.shared, 1);
}

static size_t size_of(const char *s)
{
    char *end;
    size_t n = strtoul(s, &end, 0);

    return n << (*end == 'K' ? 10 : *end == 'M' ? 20 : 0);
}

static int options(int argc, char **argv)
{
    o.what = argc > 1 ? argv[1] : "";
    if (!strcmp(o.what, "lat"))
        o.bytes = 64;
    for (int i = 2; i + 1 < argc; i += 2) {
        const char *k = argv[i], *v = argv[i + 1];

        if (!strcmp(k, "--port"))
            o.port = v;
        else if (!strcmp(k, "--op"))
            o.op = v;
        else if (!strcmp(k, "--frame"))
            o.frame = atoi(v);
        else if (!strcmp(k, "--bytes"))
            o.bytes = size_of(v);
        else if (!strcmp(k, "--payload"))
            o.payload = size_of(v) / 64 * 64;
        else if (!strcmp(k, "--ext"))
            o.ext = atoi(v);
        else if (!strcmp(k, "--pin"))
            o.pin = atoi(v);
        else if (!strcmp(k, "--window"))
            o.window = size_of(v);
        else if (!strcmp(k, "--count"))
            o.count = size_of(v);
        else if (!strcmp(k, "--bufs"))
            o.bufs = (unsigned)size_of(v);
        else if (!strcmp(k, "--cache"))
            o.cache = (unsigned)size_of(v);
        else if (!strcmp(k, "--seconds"))
            o.seconds = strtod(v, NULL);
        else
            return 0;
    }
    return argc % 2 == 0 && (!strcmp(o.what, "bw") || !strcmp(o.what, "lat")) &&
           o.frame >= 576 && o.frame <= 9100 && o.bytes >= 4 && o.bytes % 4 == 0 &&
           o.count > 0 && strchr("acn", o.op[0]) &&
           (!strncmp(o.port, "memif", 5) || !strncmp(o.port, "af_packet:", 10)) &&
           (strcmp(o.what, "lat") || o.bytes <= (size_t)o.frame - 64);
}

/* Rank 1, which ends with us. */
static pid_t start_other(char **argv, const char *socket)
{
    extern char **environ;
    pid_t pid;

    setenv("RANK", "1", 1);
    setenv("DPDK_BARE_SOCKET", socket, 1);
    if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ))
        die(1, "cannot start the other process", errno);
    return pid;
}

int main(int argc, char **argv)
{
    const char *rank = getenv("RANK"), *socket = getenv("DPDK_BARE_SOCKET");
    char dir[] = "/tmp/dpdk_bare.XXXXXX", path[64] = "";
    int status = 0;
    pid_t other = 0;
    cpu_set_t cpu;

    if (!options(argc, argv)) {
        fprintf(stderr, "usage: dpdk_bare bw|lat [--port memif|af_packet:iface=IF] ...; see "
                        "the top of perf/dpdk_bare.c\n");
        return 2;
    }
    o.rank = rank ? atoi(rank) : 0;
    if (!rank) {
        if (!mkdtemp(dir))
            die(1, "mkdtemp", errno);
        snprintf(path, sizeof path, "%s/memif", dir);
        socket = path;
        other = start_other(argv, path);
    } else {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    }
    start_eal();
    prepare();
    open_port(socket ? socket : "/tmp/dpdk_bare.memif");
    CPU_ZERO(&cpu);
    CPU_SET(o.rank, &cpu);
    if (o.pin && sysconf(_SC_NPROCESSORS_ONLN) > 1)
        sched_setaffinity(0, sizeof cpu, &cpu);
    call(HELLO, 0, ~0u);
    say(HELLO, 0); /* the other may have missed those of before its start */
    if (!strcmp(o.what, "bw"))
        bandwidth();
    else
        latency();
    fflush(stdout);
    if (other && waitpid(other, &status, 0) == other && !rank) {
        unlink(path);
        rmdir(dir);
    }
    _exit(status ? 1 : 0); /* rte_eal_cleanup races memif's interrupt thread */
}
