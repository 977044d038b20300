/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks of the dpdk transport, whole, each with a pretended card on one switch, in virtual
 * time: what many send to one is neither dropped by the switch nor by a ring whose rank
 * computes. The card's places, its speed and the switch's buffer are finite. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "base/rng.h"
#include "tests/support/key.h"
#include "transport/datagram/dgram.h"

#define STEP    1000u /* ns */
#define ONE_WAY 5000u
#define RANKS   65
#define LENGTH  60000u /* bytes of a message */
#define MS      1000000ull

extern const struct bny_transport_ops bny_dpdk_ops;

static uint64_t virtual_ns; /* 0: the real time */

int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);

int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
    if (!virtual_ns)
        return __real_clock_gettime(id, ts);
    ts->tv_sec = (time_t)(virtual_ns / 1000000000u);
    ts->tv_nsec = (long)(virtual_ns % 1000000000u);
    return 0;
}

/* ---- the switch and its cards ---- */

struct frame {
    struct frame *next;
    uint64_t due;
    uint32_t len;
    uint8_t bytes[];
};

struct bny_dgram_port {
    uint64_t in_free, out_free; /* when its link is free again: from it, to it */
    struct frame *first, **end; /* behind the switch, on their way to it */
    uint32_t waiting, most_waiting;
    uint64_t came, switch_drops, ring_drops;
};

struct row {
    char name[40];
    int ranks; /* all but 0 send to it */
    uint32_t mtu, mbps, ring;
    double gbps;     /* of every link */
    uint64_t buffer; /* bytes of the switch before each port */
    uint64_t nap;    /* ns that rank 0 computes, of each `every` */
    uint64_t every;
    double goodput; /* asked for; of the link */
    unsigned caps;
};

static struct {
    const struct row *p;
    struct bny_dgram_port ports[RANKS];
    int open;
} net;

static int start(const char *args, const char *device, int loud, char *text)
{
    return 0;
}

static int open_port(const struct bny_dgram_conf *c, struct bny_dgram_port **out,
                     struct bny_dgram_info *info, char *text)
{
    struct bny_dgram_port *p = &net.ports[net.open];

    p->end = &p->first;
    *info = (struct bny_dgram_info){ .caps = net.p->caps,
                                     .frame_max = c->frame_max,
                                     .queues = 1,
                                     .mbps = net.p->mbps,
                                     .ring = c->ring < net.p->ring ? c->ring : net.p->ring,
                                     .mac = { 2, 0, 0, 0, 0, (uint8_t)net.open } };
    net.open++;
    *out = p;
    return 0;
}

static void close_port(struct bny_dgram_port *p)
{
    while (p->first) {
        struct frame *f = p->first;

        p->first = f->next;
        free(f);
    }
    p->end = &p->first;
}

static int link_up(struct bny_dgram_port *p)
{
    return 1;
}

/* Of the IPv4 and UDP checksums of a frame that no card touches. */
static void check_sums(const uint8_t *f, uint32_t len)
{
    uint32_t sum = 17 + len - 34, udp = (uint32_t)f[40] << 8 | f[41];

    if (f[12] != 8 || f[13] != 0)
        return;
    for (uint32_t i = 26; i < len; i += 2)
        sum += (uint32_t)f[i] << 8 | (i + 1 < len ? f[i + 1] : 0);
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    if (net.p->caps == BNY_DGRAM_VERIFIES)
        cr_assert(udp && sum == 0xffff, "a checksum of %04x that is wrong by %04x", udp, sum);
    else
        cr_assert_eq(udp, 0, "a checksum that nobody looks at, or that the card computes");
}

static uint64_t wire_ns(uint32_t bytes)
{
    return (uint64_t)((bytes + DP_WIRE) * 8.0 / net.p->gbps);
}

/* Ranks are polled in turn within a step, so that frames come nearly in order. */
static int transmit(struct bny_dgram_port *p, const struct bny_dgram_tx *tx, int n)
{
    for (int i = 0; i < n; i++) {
        uint32_t len = tx[i].head_len + tx[i].body_len;
        const uint8_t *mac = tx[i].head;
        struct bny_dgram_port *to = mac[0] == 2 ? &net.ports[mac[5]] : NULL;
        uint64_t at = p->in_free > virtual_ns ? p->in_free : virtual_ns;
        struct frame *f;

        if (at > virtual_ns + 20 * STEP)
            return i; /* the card's own queue */
        p->in_free = at + wire_ns(len);
        if (!to || !to->end) /* ARP: nobody need answer */
            continue;
        at = p->in_free;
        if (to->out_free > at &&
            (double)(to->out_free - at) * net.p->gbps / 8 + len > (double)net.p->buffer) {
            to->switch_drops++;
            continue;
        }
        to->out_free = (to->out_free > at ? to->out_free : at) + wire_ns(len);
        f = malloc(sizeof *f + len);
        cr_assert(f);
        *f = (struct frame){ .due = to->out_free + ONE_WAY, .len = len };
        memcpy(f->bytes, tx[i].head, tx[i].head_len);
        if (tx[i].body_len)
            memcpy(f->bytes + tx[i].head_len, tx[i].body, tx[i].body_len);
        check_sums(f->bytes, len);
        *to->end = f;
        to->end = &f->next;
    }
    return n;
}

/* What came while nobody looked and found no place is gone. */
static void fill_ring(struct bny_dgram_port *p)
{
    struct frame **at = &p->first;

    p->waiting = 0;
    while (*at && (*at)->due <= virtual_ns) {
        struct frame *f = *at;

        if (p->waiting < net.p->ring) {
            p->waiting++;
            at = &f->next;
            continue;
        }
        *at = f->next;
        if (!*at)
            p->end = at;
        free(f);
        p->ring_drops++;
    }
    p->most_waiting = p->waiting > p->most_waiting ? p->waiting : p->most_waiting;
}

static int receive(struct bny_dgram_port *p, struct bny_dgram_rx *rx, int n)
{
    int got = 0;

    fill_ring(p);
    while (got < n && p->first && p->first->due <= virtual_ns) {
        struct frame *f = p->first;

        p->first = f->next;
        if (!p->first)
            p->end = &p->first;
        rx[got++] = (struct bny_dgram_rx){ .buf = f, .data = f->bytes, .len = f->len };
        p->came += f->len + DP_WIRE;
    }
    return got;
}

static void give_back(void *const *bufs, int n)
{
    for (int i = 0; i < n; i++)
        free(bufs[i]);
}

static void reclaim(struct bny_dgram_port *p)
{
}

static void ref_init(struct bny_dgram_ref *ref)
{
}

static int ref_busy(const struct bny_dgram_ref *ref)
{
    return 0;
}

static void *allocate(size_t bytes)
{
    return aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
}

static int owns(const void *mem, size_t bytes)
{
    return 0;
}

static uint64_t missed(struct bny_dgram_port *p)
{
    return p->ring_drops;
}

static uint32_t mbps(struct bny_dgram_port *p)
{
    return net.p->mbps;
}

static const struct bny_dgram_driver driver = {
    .version = BNY_DGRAM_DRIVER_VERSION,
    .start = start,
    .open = open_port,
    .close = close_port,
    .link_up = link_up,
    .tx = transmit,
    .rx = receive,
    .free = give_back,
    .reclaim = reclaim,
    .ref_init = ref_init,
    .ref_busy = ref_busy,
    .alloc = allocate,
    .release = free,
    .owns = owns,
    .missed = missed,
    .mbps = mbps,
};

/* ---- ranks ---- */

static struct rank {
    struct bny_tp *tp;
    struct bny_ep *to_0;
    uint32_t sent;
} ranks[RANKS];

static struct {
    struct bny_msg *msg[RANKS * BNY_CHANNELS * 16];
    uint32_t n;
    uint64_t bytes[RANKS];
} in;

static uint8_t source[LENGTH];

static void set_up(const struct row *p)
{
    static const uint8_t secret[32] = "secret";
    static uint8_t blobs[RANKS][BNY_ADDR_MAX];
    int len = 0;

    memset(&net, 0, sizeof net);
    memset(ranks, 0, sizeof ranks);
    memset(&in, 0, sizeof in);
    net.p = p;
    virtual_ns = 1000 * MS;
    bny_dpdk_driver_set(&driver);
    setenv("BANYAN_DPDK_PORT", "0000:03:00.0", 1);
    for (int r = 0; r < p->ranks; r++) {
        struct bny_tp_config cfg = {
            .rank = r, .nranks = p->ranks, .secret = secret, .ifname = "", .port_range = ""
        };
        char text[32];

        snprintf(text, sizeof text, "10.9.0.%d", r + 1);
        setenv("BANYAN_DPDK_ADDR", text, 1);
        snprintf(text, sizeof text, "%u", p->mtu);
        set_key("BANYAN_DPDK=mtu", text);
        cr_assert_eq(bny_dpdk_ops.create(&ranks[r].tp, &cfg), 0, "%s", banyan_last_error());
        len = bny_dpdk_ops.address(ranks[r].tp, blobs[r], sizeof blobs[r]);
    }
    for (int r = 1; r < p->ranks; r++) {
        struct bny_ep *back;

        cr_assert_eq(
            bny_dpdk_ops.connect(ranks[r].tp, 0, blobs[0], (size_t)len, &ranks[r].to_0), 0);
        cr_assert_eq(bny_dpdk_ops.connect(ranks[0].tp, r, blobs[r], (size_t)len, &back), 0);
    }
}

static void tear_down(void)
{
    for (uint32_t i = 0; i < in.n; i++)
        bny_dgram_release(in.msg[i]);
    for (int r = 0; r < net.p->ranks; r++)
        bny_dpdk_ops.destroy(ranks[r].tp);
    for (int r = 0; r < net.p->ranks; r++)
        close_port(&net.ports[r]);
    bny_dpdk_driver_set(NULL);
    virtual_ns = 0;
}

/* Always has something to send; without, one short message. */
static void send_some(int r, uint32_t messages)
{
    struct rank *k = &ranks[r];
    struct bny_event ev[32];
    int n;

    while (k->sent < messages) {
        struct bny_hdr hdr = { .kind = BNY_MSG_DATA,
                               .chan = (uint8_t)(k->sent % BNY_CHANNELS),
                               .seq = k->sent,
                               .len = k->sent ? LENGTH : 64 };
        int rc = k->sent ? bny_dgram_send(k->to_0, &hdr, source, NULL)
                         : bny_dgram_eager(k->to_0, &hdr, source);

        cr_assert(rc == 0 || rc == BNY_AGAIN, "%s", banyan_last_error());
        if (rc)
            break;
        k->sent++;
    }
    n = bny_dpdk_ops.poll(k->tp, ev, 32);
    for (int i = 0; i < n; i++)
        cr_assert_neq(ev[i].kind, BNY_EV_DOWN, "%s", ev[i].reason);
}

/* Rank 0 takes what there is. */
static void take_all(void)
{
    struct bny_event ev[64];
    int n = bny_dpdk_ops.poll(ranks[0].tp, ev, 64);

    for (int i = 0; i < n; i++) {
        cr_assert_eq(ev[i].kind, BNY_EV_MSG);
        cr_assert_lt(in.n, sizeof in.msg / sizeof in.msg[0]);
        ev[i].msg->user = NULL;
        in.msg[in.n++] = ev[i].msg;
    }
    for (uint32_t i = 0; i < in.n; i++) {
        struct bny_msg *m = in.msg[i];
        uintptr_t at = (uintptr_t)m->user;

        while (at < m->hdr.len) {
            const void *ptr = m->data;
            long got = m->hdr.len;

            if (!ptr)
                got = bny_dgram_view(m, (uint32_t)at, m->hdr.len - (uint32_t)at, NULL, &ptr);
            if (got == BNY_AGAIN)
                break;
            cr_assert_gt(got, 0);
            at += (uintptr_t)got;
            in.bytes[m->ep->peer] += (uint64_t)got;
        }
        m->user = (void *)at;
        if (at < m->hdr.len)
            continue;
        bny_dgram_release(m);
        in.msg[i--] = in.msg[--in.n];
    }
}

static void run(uint64_t ns, uint32_t messages)
{
    const struct row *p = net.p;
    uint64_t end = virtual_ns + ns;

    for (; virtual_ns < end; virtual_ns += STEP) {
        for (int r = 1; r < p->ranks; r++)
            send_some(r, messages);
        if (!p->nap || virtual_ns % p->every >= p->nap)
            take_all();
    }
}

static const struct row rows[] = {
    { "8 to 1", 9, 9000, 100000, 1024, 100, 4000000, 0, 0, .93, 0 },
    { "8 to 1, 1500 B", 9, 1500, 100000, 4096, 100, 4000000, 0, 0, .80, 0 },
    { "8 to 1, cards verify", 9, 9000, 100000, 1024, 100, 4000000, 0, 0, .93,
      BNY_DGRAM_VERIFIES },
    { "8 to 1, cards compute and verify", 9, 9000, 100000, 1024, 100, 4000000, 0, 0, .93,
      BNY_DGRAM_VERIFIES | BNY_DGRAM_CSUM },
    { "64 to 1", 65, 9000, 100000, 1024, 100, 4000000, 0, 0, .93, 0 },
    { "1 to 1, 1500 B", 2, 1500, 100000, 4096, 100, 4000000, 0, 0, .80, 0 },
    { "64 to 1 that computes", 65, 9000, 100000, 1024, 100, 4000000, 2 * MS, 3 * MS, .2, 0 },
    { "5 to 1 that computes, speed unknown", 6, 1500, 0, 512, 10, 40000000, 2 * MS, 3 * MS, .2,
      0 },
    { "40 to 1 that computes, speed unknown", 41, 1500, 0, 512, 10, 40000000, 2 * MS, 3 * MS,
      .2, 0 },
};

ParameterizedTestParameters(dpdk_device, many_send_to_one)
{
    return cr_make_param_array(struct row, (void *)(uintptr_t)rows,
                               sizeof rows / sizeof rows[0]);
}

ParameterizedTest(struct row *p, dpdk_device, many_send_to_one, .timeout = 100)
{
    uint64_t before[RANKS], ns = 6 * MS, all = 0, least = UINT64_MAX, most = 0, drops;
    const struct bny_dgram_port *at = &net.ports[0];
    double goodput;

    set_up(p);
    run(25 * MS, 1); /* paths and frames are known then */
    run(3 * MS, UINT32_MAX);
    memcpy(before, in.bytes, sizeof before);
    drops = at->switch_drops + at->ring_drops;
    run(ns, UINT32_MAX);
    for (int r = 1; r < p->ranks; r++) {
        uint64_t n = in.bytes[r] - before[r];

        all += n;
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    goodput = (double)all * 8 / p->gbps / (double)ns;
    drops = at->switch_drops + at->ring_drops;
    fprintf(stderr,
            "# %s: %.3f of the link, shares %.2f to %.2f, %llu dropped by the switch, %llu for "
            "want of places, at most %u in the ring\n",
            p->name, goodput, (double)least * (p->ranks - 1) / (double)all,
            (double)most * (p->ranks - 1) / (double)all, (unsigned long long)at->switch_drops,
            (unsigned long long)at->ring_drops, at->most_waiting);
    cr_expect_geq(goodput, p->goodput, "%s: %.3f of the link", p->name, goodput);
    cr_expect_eq(drops, 0, "%s: %llu frames were dropped", p->name, (unsigned long long)drops);
    tear_down();
}
