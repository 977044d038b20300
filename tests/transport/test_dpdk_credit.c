/* SPDX-License-Identifier: BSD-3-Clause */
/* Two ranks of the dpdk transport, whole, over a simulated wire in virtual time: who keeps to
 * the credit is never refused, who does not holds no more buffers than that; and a message that
 * found no memory is reported without another frame. Seeds are printed. */
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

#define STEP     5000u  /* ns between two turns of the world */
#define ONE_WAY  20000u /* ns */
#define WIRE     2048u  /* frames under way */
#define MESSAGES 400u   /* each way */
#define LONGEST  60000u /* bytes */
#define HELD     1024u  /* messages of a channel that wait for their reader */
#define SEEDS    6
#define MS       1000000ull

extern const struct bny_transport_ops bny_dpdk_ops;

/* ---- time and memory ---- */

static uint64_t virtual_ns; /* 0: the real time */
static uint32_t refused;    /* allocations */
static double short_of;     /* share of allocations of a message's size that are refused */
static uint64_t memory_rng;

int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);
void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);

int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
    if (!virtual_ns)
        return __real_clock_gettime(id, ts);
    ts->tv_sec = (time_t)(virtual_ns / 1000000000u);
    ts->tv_nsec = (long)(virtual_ns % 1000000000u);
    return 0;
}

void *__wrap_malloc(size_t n)
{
    if (short_of > 0 && n > 1500 && n <= DP_EAGER_MAX && bny_rng_unit(&memory_rng) < short_of) {
        refused++;
        return NULL;
    }
    return __real_malloc(n);
}

/* ---- the wire ---- */

struct frame {
    uint64_t due;
    uint32_t len;
    struct buf *buf;
};

struct buf { /* of the port that received it */
    struct bny_dgram_port *port;
    uint8_t bytes[2048];
};

struct bny_dgram_port {
    char link[64];
    struct bny_dgram_port *other;
    struct frame frames[WIRE];       /* on their way here, by time */
    uint32_t nframes, out, most_out; /* out: buffers that are lent */
};

static struct wire {
    double loss, twice, late;
    int lossless, cut; /* cut: the link is down */
    uint64_t rng;
    struct bny_dgram_port ports[2];
} wire;

static int start(const char *args, const char *device, int loud, char *text)
{
    return 0;
}

static int open_port(const struct bny_dgram_conf *c, struct bny_dgram_port **out,
                     struct bny_dgram_info *info, char *text)
{
    struct bny_dgram_port *p = &wire.ports[wire.ports[0].link[0] != 0];

    snprintf(p->link, sizeof p->link, "%s", c->link);
    p->other = &wire.ports[p == wire.ports];
    *info = (struct bny_dgram_info){ .caps = BNY_DGRAM_PAIR |
                                             (wire.lossless ? BNY_DGRAM_LOSSLESS : 0u),
                                     .frame_max = c->frame_max,
                                     .queues = 1 };
    memcpy(info->mac, c->mac, sizeof info->mac);
    *out = p;
    return 0;
}

static void close_port(struct bny_dgram_port *p)
{
    for (uint32_t i = 0; i < p->nframes; i++)
        free(p->frames[i].buf);
    p->nframes = 0;
}

static int link_up(struct bny_dgram_port *p)
{
    return p->other->link[0] != 0 && !wire.cut;
}

static void carry(struct bny_dgram_port *to, const struct bny_dgram_tx *tx)
{
    struct frame f = { .due = virtual_ns + ONE_WAY,
                       .len = tx->head_len + tx->body_len,
                       .buf = __real_malloc(sizeof *f.buf) };
    uint32_t at = to->nframes;

    cr_assert(f.len <= sizeof f.buf->bytes && f.buf);
    f.buf->port = to;
    memcpy(f.buf->bytes, tx->head, tx->head_len);
    if (tx->body_len)
        memcpy(f.buf->bytes + tx->head_len, tx->body, tx->body_len);
    if (bny_rng_unit(&wire.rng) < wire.late)
        f.due += bny_rng_below(&wire.rng, 300000);
    for (; at > 0 && to->frames[at - 1].due > f.due; at--)
        to->frames[at] = to->frames[at - 1];
    to->frames[at] = f;
    to->nframes++;
}

static int transmit(struct bny_dgram_port *p, const struct bny_dgram_tx *tx, int n)
{
    for (int i = 0; i < n; i++) {
        int copies = 1 + (bny_rng_unit(&wire.rng) < wire.twice);

        if (p->other->nframes + 2 > WIRE)
            return i;
        if (wire.cut || bny_rng_unit(&wire.rng) < wire.loss)
            copies = 0;
        while (copies-- > 0)
            carry(p->other, &tx[i]);
    }
    return n;
}

static int receive(struct bny_dgram_port *p, struct bny_dgram_rx *rx, int n)
{
    uint32_t got = 0;

    while (got < (uint32_t)n && got < p->nframes && p->frames[got].due <= virtual_ns) {
        const struct frame *f = &p->frames[got];

        rx[got++] =
            (struct bny_dgram_rx){ .buf = f->buf, .data = f->buf->bytes, .len = f->len };
    }
    p->nframes -= got;
    memmove(p->frames, p->frames + got, p->nframes * sizeof *p->frames);
    p->out += got;
    p->most_out = p->out > p->most_out ? p->out : p->most_out;
    return (int)got;
}

static void give_back(void *const *bufs, int n)
{
    for (int i = 0; i < n; i++) {
        ((struct buf *)bufs[i])->port->out--;
        free(bufs[i]);
    }
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

/* ---- two ranks ---- */

struct rank {
    struct bny_tp *tp;
    struct bny_ep *ep;
    struct dp_ep *dp;
    uint64_t next_look;
    uint32_t next[BNY_CHANNELS], expect[BNY_CHANNELS]; /* numbers of messages */
    uint32_t sent, done, credit_gone;
    uint64_t started;
    struct queue { /* messages that were reported, in order; the first is being read */
        struct bny_msg *msg[HELD];
        uint32_t first, end, viewed;
        uint64_t ready;
    } in[BNY_CHANNELS];
};

static struct world {
    struct rank rank[2];
    uint64_t rng, hold,
        nap;   /* ns: a message waits for its reader at most so long; a rank looks so rarely */
    int keeps; /* readers read nothing */
} w;

static uint8_t source[LONGEST + 256];

static uint8_t byte_at(uint32_t msg, uint32_t off)
{
    return source[msg % 256 + off];
}

static void set_up(uint64_t seed)
{
    static const uint8_t secret[32] = "secret";
    uint8_t blob[2][BNY_ADDR_MAX];
    int len[2];

    memset(&w, 0, sizeof w);
    memset(wire.ports, 0, sizeof wire.ports);
    refused = 0;
    w.rng = wire.rng = memory_rng = seed;
    virtual_ns = 1000 * MS;
    for (size_t i = 0; i < sizeof source; i++)
        source[i] = (uint8_t)bny_rng_next(&w.rng);
    setenv("BANYAN_DPDK_PORT", "ring", 1);
    set_key("BANYAN_DPDK=mtu", "1500");
    bny_dpdk_driver_set(&driver);
    for (int r = 0; r < 2; r++) {
        struct bny_tp_config cfg = {
            .rank = r, .nranks = 2, .secret = secret, .ifname = "", .port_range = ""
        };

        cr_assert_eq(bny_dpdk_ops.create(&w.rank[r].tp, &cfg), 0, "%s", banyan_last_error());
        len[r] = bny_dpdk_ops.address(w.rank[r].tp, blob[r], sizeof blob[r]);
    }
    for (int r = 0; r < 2; r++) {
        cr_assert_eq(
            bny_dpdk_ops.connect(w.rank[r].tp, !r, blob[!r], (size_t)len[!r], &w.rank[r].ep),
            0);
        w.rank[r].dp = (struct dp_ep *)w.rank[r].ep;
    }
}

static void tear_down(void)
{
    for (int r = 0; r < 2; r++)
        bny_dpdk_ops.destroy(w.rank[r].tp);
    for (int i = 0; i < 2; i++) /* what the last one sent to an end that was closed */
        close_port(&wire.ports[i]);
    cr_assert_eq(wire.ports[0].out + wire.ports[1].out, 0, "buffers are lost");
    bny_dpdk_driver_set(NULL);
    virtual_ns = 0;
    short_of = 0;
}

static uint64_t drops_of(int r, enum bny_dgram_drop why)
{
    return ((struct dp_tp *)w.rank[r].tp)->drops[why];
}

/* Message `next` of a channel; 0: not now. */
static int send_one(struct rank *k, int chan, uint32_t len)
{
    uint32_t n = k->next[chan];
    struct bny_hdr hdr = { .kind = BNY_MSG_DATA, .chan = (uint8_t)chan, .seq = n, .len = len };
    int rc = len <= k->ep->eager_max ? bny_dgram_eager(k->ep, &hdr, source + n % 256)
                                     : bny_dgram_send(k->ep, &hdr, source + n % 256, NULL);

    cr_assert(rc == 0 || rc == BNY_AGAIN, "%s", banyan_last_error());
    if (rc)
        return 0;
    k->next[chan]++;
    k->sent++;
    return 1;
}

static void reported(struct rank *k, struct bny_msg *m)
{
    struct queue *q = &k->in[m->hdr.chan];

    cr_assert_eq(m->hdr.seq, k->expect[m->hdr.chan]++, "out of order");
    cr_assert_lt(q->end - q->first, HELD);
    if (q->first == q->end)
        q->ready = virtual_ns + bny_rng_below(&w.rng, w.hold + 1);
    q->msg[q->end++ % HELD] = m;
}

/* Reads what there is of the first message. 1: it is done. */
static int read_some(struct queue *q)
{
    struct bny_msg *m = q->msg[q->first % HELD];

    while (q->viewed < m->hdr.len) {
        const void *ptr = m->data;
        long n = m->hdr.len;

        if (!ptr)
            n = bny_dgram_view(m, q->viewed, m->hdr.len - q->viewed, NULL, &ptr);
        if (n == BNY_AGAIN)
            return 0;
        cr_assert_gt(n, 0);
        for (long i = 0; i < n; i += 61)
            cr_assert_eq(((const uint8_t *)ptr)[i],
                         byte_at(m->hdr.seq, q->viewed + (uint32_t)i), "another's bytes");
        q->viewed += (uint32_t)n;
    }
    bny_dgram_release(m);
    return 1;
}

static void look(struct rank *k)
{
    struct bny_event ev[32];
    int n = bny_dpdk_ops.poll(k->tp, ev, 32);

    cr_assert_geq(n, 0);
    for (int i = 0; i < n; i++) {
        cr_assert_neq(ev[i].kind, BNY_EV_DOWN, "%s", ev[i].reason);
        if (ev[i].kind == BNY_EV_MSG)
            reported(k, ev[i].msg);
    }
    for (int c = 0; c < BNY_CHANNELS && !w.keeps; c++) {
        struct queue *q = &k->in[c];

        while (q->first != q->end && virtual_ns >= q->ready && read_some(q)) {
            q->first++;
            q->viewed = 0;
            k->done++;
            q->ready = virtual_ns + bny_rng_below(&w.rng, w.hold + 1);
        }
    }
    k->credit_gone += k->dp->tx.next == k->dp->tx.limit;
    k->next_look = virtual_ns + bny_rng_below(&w.rng, w.nap + 1);
}

/* ---- honest peers ---- */

struct link {
    char name[32];
    uint64_t seed;
    double loss, twice, late;
    int lossless;
    uint64_t hold, nap;
    double short_of;
    uint32_t longest; /* message */
};

static const struct link links[] = {
    { "clean", 1, 0, 0, 0, 0, 300000, 0, 0, LONGEST },
    { "slow readers", 2, 0, 0, 0, 0, 4 * MS, 0, 0, LONGEST },
    { "lossless, slow readers", 3, 0, 0, 0, 1, 4 * MS, 2 * MS, 0, LONGEST },
    { "loses 5 %", 4, .05, 0, 0, 0, 2 * MS, 0, 0, LONGEST },
    { "doubles", 5, 0, .3, 0, 0, 2 * MS, 0, 0, LONGEST },
    { "reorders", 6, 0, 0, .3, 0, 2 * MS, 0, 0, LONGEST },
    { "all of it, naps", 7, .05, .2, .2, 0, 2 * MS, 1 * MS, 0, LONGEST },
    { "short messages, naps", 8, .05, .2, .2, 0, 2 * MS, 1 * MS, 0, 2 * DP_EAGER_MAX },
    { "little memory", 9, .05, .2, .2, 0, 1 * MS, 0, .7, 2 * DP_EAGER_MAX },
    { "lossless, little memory", 10, 0, 0, 0, 1, 1 * MS, 0, .7, 2 * DP_EAGER_MAX },
};

ParameterizedTestParameters(dpdk_credit, honest_peers_are_never_refused)
{
    return cr_make_param_array(struct link, (void *)(uintptr_t)links,
                               sizeof links / sizeof links[0]);
}

static void send_some(struct rank *k, const struct link *p)
{
    while (k->sent < MESSAGES) {
        uint64_t kind = bny_rng_below(&w.rng, 4), most = kind == 0   ? 64
                                                         : kind == 1 ? DP_EAGER_MAX
                                                                     : p->longest;

        if (!send_one(k, (int)bny_rng_below(&w.rng, BNY_CHANNELS),
                      (uint32_t)bny_rng_below(&w.rng, most + 1)))
            return;
    }
}

static void run(const struct link *p)
{
    uint64_t end = virtual_ns + 60000 * MS;

    while (w.rank[0].done < MESSAGES || w.rank[1].done < MESSAGES || w.rank[0].dp->queued ||
           w.rank[1].dp->queued) {
        for (int r = 0; r < 2; r++)
            if (virtual_ns >= w.rank[r].next_look) {
                send_some(&w.rank[r], p);
                look(&w.rank[r]);
                cr_assert_leq(w.rank[r].dp->held, DP_BUDGET);
            }
        virtual_ns += STEP;
        cr_assert_lt(virtual_ns, end, "seed %llu: %u and %u messages after a minute",
                     (unsigned long long)p->seed, w.rank[0].done, w.rank[1].done);
    }
}

ParameterizedTest(struct link *p, dpdk_credit, honest_peers_are_never_refused, .timeout = 100)
{
    const char *own = getenv("BANYAN_TEST_SEED");

    if (own)
        p->seed = strtoull(own, NULL, 0);
    for (int i = 0; i < SEEDS; i++, p->seed += 100) {
        wire.loss = p->loss;
        wire.twice = p->twice;
        wire.late = p->late;
        wire.lossless = p->lossless;
        set_up(p->seed);
        w.hold = p->hold;
        w.nap = p->nap;
        short_of = p->short_of;
        run(p);
        fprintf(stderr,
                "# %s: seed %llu: %.1f ms, no credit left at %u and %u looks, most buffers %u "
                "and %u, %u allocations refused\n",
                p->name, (unsigned long long)p->seed, (double)virtual_ns / 1e6 - 1000,
                w.rank[0].credit_gone, w.rank[1].credit_gone, wire.ports[0].most_out,
                wire.ports[1].most_out, refused);
        for (int r = 0; r < 2; r++)
            for (int why = 1; why < BNY_DGRAM_DROPS; why++)
                cr_assert_eq(
                    drops_of(r, why), 0, "seed %llu: rank %d dropped %llu frames for reason %d",
                    (unsigned long long)p->seed, r, (unsigned long long)drops_of(r, why), why);
        if (p->hold > 1 * MS)
            cr_assert(w.rank[0].credit_gone && w.rank[1].credit_gone,
                      "the credit was never used up: nothing was tested");
        cr_assert_eq(refused > 0, p->short_of > 0);
        tear_down();
    }
}

/* ---- others ---- */

/* Rank 0 speaks the protocol, and takes the credit for unlimited. */
static void exceed(uint32_t len)
{
    uint32_t messages = 3000;

    wire.loss = wire.twice = wire.late = 0;
    wire.lossless = 0;
    set_up(17);
    w.keeps = 1;
    for (int i = 0; i < 20000; i++, virtual_ns += STEP) {
        w.rank[0].dp->tx.limit = w.rank[0].dp->tx.next + BNY_DGRAM_WINDOW;
        while (w.rank[0].sent < messages && send_one(&w.rank[0], 0, len))
            continue;
        look(&w.rank[0]);
        look(&w.rank[1]);
        cr_assert_leq(w.rank[1].dp->held, DP_BUDGET, "%u buffers are held", w.rank[1].dp->held);
        cr_assert_leq(wire.ports[1].most_out, DP_BUDGET + BNY_DGRAM_BURST);
    }
    cr_assert_eq(w.rank[1].dp->held, DP_BUDGET);
    cr_assert_gt(drops_of(1, BNY_DGRAM_NO_CREDIT), 0);
    w.keeps = 0; /* it did no harm to what it sent */
    for (int i = 0; i < 2000000 && (w.rank[0].sent < messages || w.rank[1].done < messages);
         i++, virtual_ns += STEP) {
        w.rank[0].dp->tx.limit = w.rank[0].dp->tx.next + BNY_DGRAM_WINDOW;
        while (w.rank[0].sent < messages && send_one(&w.rank[0], 0, len))
            continue;
        look(&w.rank[0]);
        look(&w.rank[1]);
    }
    cr_assert_eq(w.rank[1].done, messages);
    tear_down();
}

Test(dpdk_credit, who_exceeds_it_holds_no_more_buffers_with_short_messages, .timeout = 60)
{
    exceed(64);
}

Test(dpdk_credit, who_exceeds_it_holds_no_more_buffers_with_long_messages, .timeout = 60)
{
    exceed(20000);
}

/* ---- the end of an operation ---- */

/* One user message in one packet, and whatever `len` bytes of an eager one follow it (0: none):
 * rank 1 reads them and is not heard of again. */
static void ends(int lossless, uint32_t first, uint32_t second)
{
    const struct bny_hdr hdr = { .kind = BNY_MSG_DATA, .chan = 1, .len = first };
    uint32_t messages = second ? 2 : 1;
    uint64_t end;

    wire.loss = wire.twice = wire.late = 0;
    wire.lossless = lossless;
    set_up(29);
    for (int i = 0; i < 100; i++, virtual_ns += STEP) { /* links come up */
        look(&w.rank[0]);
        look(&w.rank[1]);
    }
    cr_assert_eq(bny_dgram_send(w.rank[0].ep, &hdr, source, NULL), 0);
    if (second)
        cr_assert(send_one(&w.rank[0], 2, second));
    for (int i = 0; i < 1000 && w.rank[1].done < messages; i++, virtual_ns += STEP) {
        look(&w.rank[0]);
        look(&w.rank[1]);
    }
    cr_assert_eq(w.rank[1].done, messages);
    cr_assert(second == 0 || w.rank[0].dp->queued > 0, "it was acknowledged on the way");
    end = virtual_ns + 3 * ONE_WAY;
    for (; virtual_ns < end; virtual_ns += STEP)
        look(&w.rank[0]);
    cr_assert_eq(w.rank[0].dp->queued, 0,
                 "%u and %u bytes%s: who waits for its memory waits for the peer's next call",
                 first, second, lossless ? ", lossless" : "");
    tear_down();
}

Test(dpdk_credit, what_ends_an_operation_is_acknowledged_at_once, .timeout = 60)
{
    for (int lossless = 0; lossless < 2; lossless++) {
        ends(lossless, 1000, 0);
        ends(lossless, 20000, 0);
        ends(lossless, 1000, 64);
        ends(lossless, 20000, 64);
    }
}

/* Nobody waits for these: their acknowledgements go along with other packets. */
Test(dpdk_credit, messages_with_memory_of_their_own_ask_for_nothing, .timeout = 60)
{
    wire.loss = wire.twice = wire.late = 0;
    wire.lossless = 0;
    set_up(31);
    for (int i = 0; i < 100; i++, virtual_ns += STEP) {
        look(&w.rank[0]);
        look(&w.rank[1]);
    }
    cr_assert(send_one(&w.rank[0], 1, 64));
    while (w.rank[1].done < 1) {
        look(&w.rank[1]);
        cr_assert_eq(wire.ports[0].nframes, 0, "an acknowledgement for each short message");
        virtual_ns += STEP;
    }
    tear_down();
}

/* ---- links ---- */

/* A cable that is out for a while costs that while. */
Test(dpdk_credit, a_link_that_comes_back_has_killed_nobody, .timeout = 60)
{
    static const uint64_t away[] = { 20 * MS, 8000 * MS, 280000 * MS };

    for (size_t k = 0; k < sizeof away / sizeof away[0]; k++) {
        const struct link p = { .name = "cut", .longest = LONGEST };
        uint64_t end;

        wire.loss = wire.twice = wire.late = 0;
        wire.lossless = 0;
        set_up(37 + k);
        w.hold = w.nap = 0;
        for (; w.rank[0].done < 60 || w.rank[1].done < 60; virtual_ns += STEP)
            for (int r = 0; r < 2; r++) {
                send_some(&w.rank[r], &p);
                look(&w.rank[r]);
            }
        cr_assert(w.rank[0].dp->queued && w.rank[1].dp->queued, "nothing is under way");
        wire.cut = 1;
        for (end = virtual_ns + away[k]; virtual_ns < end; virtual_ns += away[k] / 4000)
            for (int r = 0; r < 2; r++)
                look(&w.rank[r]);
        wire.cut = 0;
        end = virtual_ns;
        run(&p);
        fprintf(stderr, "# away for %.0f ms: all is there %.1f ms later\n",
                (double)away[k] / 1e6, (double)(virtual_ns - end) / 1e6);
        cr_assert_lt(virtual_ns - end, 100 * MS, "it is slow to see that the link is back");
        tear_down();
    }
}

/* ---- no memory ---- */

Test(dpdk_credit, no_frame_need_come_again_when_memory_does, .timeout = 60)
{
    for (int lossless = 0; lossless < 2; lossless++) {
        struct rank *k;

        wire.loss = wire.twice = wire.late = 0;
        wire.lossless = lossless;
        set_up(19);
        k = &w.rank[1];
        w.keeps = 1;
        short_of = 1;
        cr_assert(send_one(&w.rank[0], 2, DP_EAGER_MAX));
        cr_assert(send_one(&w.rank[0], 1, 100));
        for (int i = 0; i < 4000; i++, virtual_ns += STEP) {
            look(&w.rank[0]);
            look(k);
        }
        cr_assert_gt(refused, 0);
        cr_assert_eq(w.rank[0].dp->queued, 0, "all that there is was sent and acknowledged");
        cr_assert(k->expect[2] == 0 && k->expect[1] == 1, "another channel does not wait");
        cr_assert_eq(wire.ports[1].nframes, 0, "nothing more comes");
        short_of = 0;
        look(k); /* the peer is silent */
        cr_assert_eq(k->expect[2], 1, "the message stands still though there is memory");
        cr_assert_eq(wire.ports[1].out, 1, "the pieces are given back");
        w.keeps = 0;
        for (int i = 0; i < 100 && k->done < 2; i++, virtual_ns += STEP)
            look(k);
        cr_assert_eq(k->done, 2);
        tear_down();
    }
}

/* Messages without payload hold no buffers, but they wait, too. */
Test(dpdk_credit, what_waits_for_memory_is_bounded, .timeout = 60)
{
    const uint32_t messages = 3000;

    wire.loss = wire.twice = wire.late = 0;
    wire.lossless = 0;
    set_up(23);
    short_of = 1;
    cr_assert(send_one(&w.rank[0], 2, DP_EAGER_MAX));
    for (int i = 0; i < 200000 && w.rank[1].done < messages; i++, virtual_ns += STEP) {
        while (w.rank[0].sent < messages && send_one(&w.rank[0], 2, 0))
            continue;
        look(&w.rank[0]);
        look(&w.rank[1]);
        if (i < 10000)
            cr_assert_eq(w.rank[1].done, 0);
        cr_assert_leq(w.rank[1].dp->rx.cum - w.rank[1].done, 2 * BNY_DGRAM_WINDOW,
                      "more and more messages wait");
        short_of = i < 10000;
    }
    cr_assert_eq(w.rank[1].done, messages);
    cr_assert_eq(drops_of(1, BNY_DGRAM_BAD_PLACE) + drops_of(1, BNY_DGRAM_NO_CREDIT), 0);
    tear_down();
}
