/* SPDX-License-Identifier: BSD-3-Clause */
/* Whose memory is whose while a driver holds frames that point to it: two ranks, each with a
 * pretended card whose driver gives back when the test says so. In virtual time. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "tests/support/key.h"
#include "transport/datagram/dgram.h"

#define STEP  1000u /* ns */
#define MS    1000000ull
#define PAGE  4096u
#define BYTES 50000u

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

/* ---- the pretended driver ---- */

struct frame {
    struct frame *next;
    uint32_t len;
    uint8_t bytes[];
};

struct bny_dgram_port {
    struct frame *first, **end; /* that came */
    int refs;                   /* frames that it holds, of memory that is attached */
    struct bny_dgram_ref *ref[4096];
    unsigned frames, nudges, flushes, reclaims;
    int lose;                  /* frames with payload, from now on */
    unsigned free_after;       /* further frames until all is given back; 0: it keeps them */
    int keeps;                 /* even when it is flushed */
    uint8_t *mapped, *map_end; /* by map() */
};

static struct bny_dgram_port ports[2];
static int opened, map_refused;

static int start(const char *args, const char *device, int loud, char *text)
{
    return 0;
}

static int open_port(const struct bny_dgram_conf *c, struct bny_dgram_port **out,
                     struct bny_dgram_info *info, char *text)
{
    *out = &ports[opened];
    (*out)->end = &(*out)->first;
    *info = (struct bny_dgram_info){ .caps = BNY_DGRAM_GATHER | BNY_DGRAM_EXT_EAL,
                                     .frame_max = c->frame_max,
                                     .queues = 1,
                                     .mac = { 2, 0, 0, 0, 0, (uint8_t)opened } };
    opened++;
    return 0;
}

static void give_back(struct bny_dgram_port *p)
{
    for (int i = 0; i < p->refs; i++)
        p->ref[i]->opaque[0]--;
    p->refs = 0;
}

static void close_port(struct bny_dgram_port *p)
{
    give_back(p);
}

static int link_up(struct bny_dgram_port *p)
{
    return 1;
}

static void deliver(struct bny_dgram_port *from, const struct bny_dgram_tx *tx)
{
    const uint8_t *mac = tx->head;
    struct frame *f = malloc(sizeof *f + tx->head_len + tx->body_len);
    struct bny_dgram_port *to = &ports[mac[5] & 1];

    cr_assert(f);
    if (mac[0] != 2 || to == from) { /* ARP, and what is meant for nobody */
        from->nudges += mac[12] == 0x88 && mac[13] == 0xb5;
        free(f);
        return;
    }
    *f = (struct frame){ .len = tx->head_len + tx->body_len };
    memcpy(f->bytes, tx->head, tx->head_len);
    if (tx->body_len)
        memcpy(f->bytes + tx->head_len, tx->body, tx->body_len);
    *to->end = f;
    to->end = &f->next;
}

static int transmit(struct bny_dgram_port *p, const struct bny_dgram_tx *tx, int n)
{
    for (int i = 0; i < n; i++) {
        p->frames++;
        if (tx[i].ref) {
            cr_assert_lt(p->refs, 4096);
            p->ref[p->refs++] = tx[i].ref;
            tx[i].ref->opaque[0]++;
        }
        if (!p->lose || !tx[i].body_len)
            deliver(p, &tx[i]);
        if (p->free_after && --p->free_after == 0)
            give_back(p);
    }
    return n;
}

static int receive(struct bny_dgram_port *p, struct bny_dgram_rx *rx, int n)
{
    int got = 0;

    for (; got < n && p->first; got++) {
        struct frame *f = p->first;

        p->first = f->next;
        if (!p->first)
            p->end = &p->first;
        rx[got] = (struct bny_dgram_rx){ .buf = f, .data = f->bytes, .len = f->len };
    }
    return got;
}

static void free_frames(void *const *bufs, int n)
{
    for (int i = 0; i < n; i++)
        free(bufs[i]);
}

static void reclaim(struct bny_dgram_port *p)
{
    p->reclaims++;
}

static void flush(struct bny_dgram_port *p)
{
    p->flushes++;
    if (!p->keeps)
        give_back(p);
}

static void ref_init(struct bny_dgram_ref *ref)
{
    ref->opaque[0] = 0;
}

static int ref_busy(const struct bny_dgram_ref *ref)
{
    return ref->opaque[0] > 0;
}

#define OURS (64u << 20)
static uint8_t *ours, *next; /* memory of alloc() */

static void *allocate(size_t bytes)
{
    uint8_t *at = next;

    next += (bytes + PAGE - 1) & ~(size_t)(PAGE - 1);
    return next <= ours + OURS ? at : NULL;
}

static unsigned released;

static void release(void *mem)
{
    released++;
}

static int owns(const void *mem, size_t bytes)
{
    const uint8_t *at = mem;

    return at >= ours && at + bytes <= ours + OURS;
}

static int map(struct bny_dgram_port *p, void *mem, size_t bytes, char *text)
{
    if (map_refused) {
        snprintf(text, BNY_DGRAM_TEXT, "no more of it");
        return -1;
    }
    cr_assert_eq((uintptr_t)mem % PAGE, 0);
    cr_assert_eq(bytes % PAGE, 0);
    cr_assert_null(p->mapped);
    p->mapped = mem;
    p->map_end = p->mapped + bytes;
    return 0;
}

static void unmap(struct bny_dgram_port *p, void *mem, size_t bytes)
{
    cr_assert_eq(p->mapped, mem);
    cr_assert_eq(p->map_end, p->mapped + bytes);
    cr_assert_eq(p->refs, 0, "memory is taken away under %d frames", p->refs);
    p->mapped = p->map_end = NULL;
}

static uint64_t missed(struct bny_dgram_port *p)
{
    return 0;
}

static uint32_t mbps(struct bny_dgram_port *p)
{
    return 0;
}

static const struct bny_dgram_driver driver = {
    .version = BNY_DGRAM_DRIVER_VERSION,
    .start = start,
    .open = open_port,
    .close = close_port,
    .link_up = link_up,
    .tx = transmit,
    .rx = receive,
    .free = free_frames,
    .reclaim = reclaim,
    .flush = flush,
    .ref_init = ref_init,
    .ref_busy = ref_busy,
    .alloc = allocate,
    .release = release,
    .owns = owns,
    .map = map,
    .unmap = unmap,
    .page = PAGE,
    .missed = missed,
    .mbps = mbps,
};

/* ---- two ranks ---- */

static struct bny_tp *tp[2];
static struct bny_ep *ep[2];
static unsigned sent, down, came;

static void set_up(void)
{
    static const uint8_t secret[32] = "secret";
    static uint8_t blobs[2][BNY_ADDR_MAX];
    int len = 0;

    virtual_ns = 1000 * MS;
    ours = next = aligned_alloc(PAGE, OURS);
    cr_assert(ours);
    bny_dpdk_driver_set(&driver);
    setenv("BANYAN_DPDK_PORT", "0000:03:00.0", 1);
    set_key("BANYAN_DPDK=mtu", "9000");
    for (int r = 0; r < 2; r++) {
        struct bny_tp_config cfg = {
            .rank = r, .nranks = 2, .secret = secret, .ifname = "", .port_range = ""
        };

        setenv("BANYAN_DPDK_ADDR", r ? "10.9.0.2" : "10.9.0.1", 1);
        cr_assert_eq(bny_dpdk_ops.create(&tp[r], &cfg), 0, "%s", banyan_last_error());
        len = bny_dpdk_ops.address(tp[r], blobs[r], sizeof blobs[r]);
    }
    for (int r = 0; r < 2; r++)
        cr_assert_eq(bny_dpdk_ops.connect(tp[r], !r, blobs[!r], (size_t)len, &ep[r]), 0);
}

static void poll_both(uint64_t ns)
{
    struct bny_event ev[32];

    for (uint64_t end = virtual_ns + ns; virtual_ns < end; virtual_ns += STEP)
        for (int r = 0; r < 2; r++) {
            int n = tp[r] ? bny_dpdk_ops.poll(tp[r], ev, 32) : 0;

            for (int i = 0; i < n; i++) {
                sent += ev[i].kind == BNY_EV_SENT;
                down += ev[i].kind == BNY_EV_DOWN;
                came += ev[i].kind == BNY_EV_MSG;
                if (ev[i].kind == BNY_EV_MSG)
                    bny_dpdk_ops.release(ev[i].msg);
            }
        }
}

static void send_from(const void *buf, uint32_t bytes)
{
    struct bny_hdr hdr = { .kind = BNY_MSG_DATA, .len = bytes };

    cr_assert_eq(bny_dpdk_ops.send(ep[0], &hdr, buf, &tp), 0, "%s", banyan_last_error());
}

static void tear_down(void)
{
    for (int r = 0; r < 2; r++)
        if (tp[r])
            bny_dpdk_ops.destroy(tp[r]);
    bny_dpdk_driver_set(NULL);
    virtual_ns = 0;
    free(ours);
}

static uint64_t copied(void)
{
    return bny_counter_read(&tp[0]->copied_bytes);
}

/* Frames are long from the first message on. */
static void warm_up(void)
{
    static uint8_t word[64];
    struct bny_hdr hdr = { .kind = BNY_MSG_DATA, .len = sizeof word };

    cr_assert_eq(bny_dpdk_ops.eager(ep[0], &hdr, word), 0);
    poll_both(50 * MS);
    cr_assert_eq(came, 1);
}

static void *mine(void)
{
    void *mem;

    cr_assert_eq(bny_dpdk_ops.mem_alloc(tp[0], BYTES, &mem), 0, "%s", banyan_last_error());
    return mem;
}

Test(dpdk_held, what_was_acknowledged_is_sent_though_the_driver_holds_it)
{
    uint64_t before;

    set_up();
    warm_up();
    before = copied();
    send_from(mine(), BYTES);
    poll_both(5 * MS);
    cr_assert_eq(came, 2);
    cr_assert_gt(ports[0].refs, 0);
    cr_assert_eq(sent, 1);
    cr_assert_eq(copied(), before, "%llu bytes copied",
                 (unsigned long long)(copied() - before));
    cr_assert_eq(ports[0].nudges + ports[0].flushes, 0);
    tear_down();
}

Test(dpdk_held, memory_is_freed_when_the_driver_gave_it_back)
{
    void *mem;

    set_up();
    warm_up();
    mem = mine();
    send_from(mem, BYTES);
    poll_both(5 * MS);
    cr_assert_gt(ports[0].refs, 0);
    ports[0].free_after = 200; /* of further frames */
    cr_assert_eq(bny_dpdk_ops.mem_free(tp[0], mem), 0, "%s", banyan_last_error());
    cr_assert_eq(released, 1);
    cr_assert_eq(ports[0].refs, 0);
    cr_assert_geq(ports[0].nudges, 190);
    cr_assert_eq(ports[0].flushes, 0);
    tear_down();
}

Test(dpdk_held, memory_that_a_driver_keeps_is_not_freed)
{
    void *mem;

    set_up();
    warm_up();
    mem = mine();
    send_from(mem, BYTES);
    poll_both(5 * MS);
    ports[0].keeps = 1;
    cr_assert_eq(bny_dpdk_ops.mem_free(tp[0], mem), -BANYAN_ETIMEDOUT);
    cr_assert(strstr(banyan_last_error(), "stays borrowed"), "%s", banyan_last_error());
    cr_assert_eq(released, 0);
    cr_assert_eq(ports[0].flushes, 1);
    ports[0].keeps = 0;
    cr_assert_eq(bny_dpdk_ops.mem_free(tp[0], mem), 0, "%s", banyan_last_error());
    cr_assert_eq(released, 1);
    tear_down();
}

/* Of two copies of a packet the second may be read after the first was acknowledged. */
Test(dpdk_held, what_was_sent_twice_waits_for_the_driver)
{
    set_up();
    warm_up();
    ports[0].lose = 1;
    send_from(mine(), BYTES);
    poll_both(1 * MS);
    ports[0].lose = 0;
    poll_both(300 * MS); /* again, and acknowledged */
    cr_assert_eq(came, 2);
    cr_assert_eq(sent, 0, "sent, while the driver holds %d frames", ports[0].refs);
    cr_assert_gt(ports[0].nudges, 0);
    ports[0].free_after = 40;
    poll_both(5 * MS);
    cr_assert_eq(sent, 1);
    cr_assert_eq(ports[0].flushes, 0);
    tear_down();
}

/* The peer is gone: nobody acknowledges, and the card may yet read. Its end is told when it
 * cannot. */
Test(dpdk_held, a_peers_end_is_told_when_the_driver_gave_all_back)
{
    set_up();
    warm_up();
    ports[0].lose = 1;
    send_from(mine(), BYTES);
    poll_both(1 * MS);
    bny_dpdk_ops.destroy(tp[1]); /* without a farewell */
    tp[1] = NULL;
    poll_both(500 * MS);
    cr_assert_eq(sent + down, 0);
    poll_both(1000 * MS); /* the port is stopped and started */
    cr_assert_eq(ports[0].flushes, 1);
    cr_assert_eq(sent, 1);
    cr_assert_eq(down, 1);
    tear_down();
}

/* Whole pages of registered memory are attached; what lies before and behind is copied. */
Test(dpdk_held, registered_memory_is_mapped_page_by_page)
{
    uint8_t *mem = aligned_alloc(PAGE, 40 * PAGE), *at = mem + 100;
    uint64_t before;

    cr_assert(mem);
    set_up();
    warm_up();
    memset(mem, 5, 40 * PAGE);
    cr_assert_eq(bny_dpdk_ops.attach(tp[0], at, 30 * PAGE), 0);
    cr_assert_eq(ports[0].mapped, mem + PAGE);
    cr_assert_eq(ports[0].map_end, mem + 30 * PAGE);
    before = copied();
    send_from(at, 30 * PAGE);
    poll_both(5 * MS);
    cr_assert_eq(sent, 1);
    cr_assert_gt(ports[0].refs, 0);
    cr_assert_gt(copied(), before);
    cr_assert_leq(copied() - before, 2 * 9000, "%llu bytes copied",
                  (unsigned long long)(copied() - before));
    ports[0].free_after = 100;
    cr_assert_eq(bny_dpdk_ops.detach(tp[0], at), 0, "%s", banyan_last_error());
    cr_assert_null(ports[0].mapped);
    before = copied();
    send_from(at, 30 * PAGE);
    poll_both(5 * MS);
    cr_assert_eq(copied() - before, 30 * PAGE);
    tear_down();
    free(mem);
}

Test(dpdk_held, registered_memory_that_cannot_be_mapped_is_copied)
{
    uint8_t *mem = aligned_alloc(PAGE, 40 * PAGE);
    uint64_t before;

    cr_assert(mem);
    map_refused = 1;
    set_up();
    warm_up();
    memset(mem, 5, 40 * PAGE);
    cr_assert_eq(bny_dpdk_ops.attach(tp[0], mem, 40 * PAGE), -BANYAN_ENOMEM);
    before = copied();
    send_from(mem, 40 * PAGE);
    poll_both(5 * MS);
    cr_assert_eq(sent, 1);
    cr_assert_eq(ports[0].refs, 0);
    cr_assert_eq(copied() - before, 40 * PAGE);
    cr_assert_eq(bny_dpdk_ops.detach(tp[0], mem), 0);
    tear_down();
    free(mem);
}
