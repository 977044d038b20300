/* SPDX-License-Identifier: BSD-3-Clause */
/* Fragments of the dpdk transport that contradict their message, in any order: no byte is
 * stored outside of it, and every buffer is given back. The frames are put before the receiver
 * by hand, without a driver. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "base/rng.h"
#include "transport/datagram/dgram.h"

#define PEER 1u

static int bufs_out; /* lent to the receiver */

static void give_back(void *const *bufs, int n)
{
    for (int i = 0; i < n; i++)
        free(bufs[i]);
    bufs_out -= n;
}

static const struct bny_dgram_driver driver = { .free = give_back };

struct here {
    struct dp_tp t;
    struct dp_ep e, *eps[2];
    uint32_t seq;
};

static void set_up(struct here *h)
{
    static uint8_t key[32];

    memset(h, 0, sizeof *h);
    h->e.key = key;
    h->t.tp.nranks = 2;
    h->t.drv = &driver;
    h->t.eth = BNY_DGRAM_ETH;
    h->t.blob.udp_port = 4000;
    h->t.eps = h->eps;
    h->eps[PEER] = &h->e;
    h->e.ep = (struct bny_ep){ .tp = &h->t.tp, .peer = PEER, .eager_max = DP_EAGER_MAX };
    h->e.tag_in = 7;
    h->e.limit_told = BNY_DGRAM_WINDOW;
    bny_flow_tx_init(&h->e.tx, 0, 0, 1500);
    bufs_out = 0;
}

static void tear_down(struct here *h)
{
    bny_dgram_forget(&h->e);
    cr_assert_eq(bufs_out, 0, "%d buffers are lost", bufs_out);
    while (h->t.all_msgs) {
        struct dp_msg *m = h->t.all_msgs;

        h->t.all_msgs = m->all;
        free(m);
    }
    while (h->t.blocks) {
        struct dp_block *b = h->t.blocks;

        h->t.blocks = b->next;
        free(b);
    }
}

/* len bytes at off of message `msg`, which has `whole` bytes (where flags say FIRST). 1: taken.
 */
static int frame(struct here *h, uint32_t msg, uint32_t off, uint32_t len, uint8_t flags,
                 uint32_t whole)
{
    static const struct bny_dgram_addr from = { { 2 }, 5000, BNY_DGRAM_IP4(1) },
                                       to = { { 4 }, 4000, BNY_DGRAM_IP4(2) };
    struct bny_hdr hdr = { .kind = BNY_MSG_DATA, .len = whole };
    uint32_t head = BNY_DGRAM_HEAD + (flags & BNY_DGRAM_FIRST ? (uint32_t)sizeof hdr : 0);
    struct bny_dgram_head d = { .magic = BNY_DGRAM_MAGIC,
                                .type = BNY_DGRAM_DATA,
                                .flags = flags,
                                .tag = 7,
                                .seq = h->seq,
                                .length = (uint8_t)head,
                                .msg = msg,
                                .off = off,
                                .from = PEER };
    uint8_t *f = malloc(BNY_DGRAM_ETH + head + len);
    struct bny_dgram_rx rx = { .buf = f, .data = f, .len = BNY_DGRAM_ETH + head + len };
    uint64_t before = h->t.drops[BNY_DGRAM_BAD_PLACE];

    cr_assert_not_null(f);
    bny_dgram_eth_init(f, &from, &to);
    memcpy(f + BNY_DGRAM_ETH, &d, sizeof d);
    if (flags & BNY_DGRAM_FIRST)
        memcpy(f + BNY_DGRAM_ETH + sizeof d, &hdr, sizeof hdr);
    memset(f + BNY_DGRAM_ETH + head, (int)(off / 64), len);
    bny_dgram_eth_length(f, rx.len);
    bufs_out++;
    if (!bny_dgram_frame(&h->t, &h->e, &rx))
        give_back(&rx.buf, 1);
    if (h->t.drops[BNY_DGRAM_BAD_PLACE] != before)
        return 0;
    h->seq++;
    return 1;
}

/* A packet with the MAC that fits now; of data: the sender's last one, whose header is 0. All
 * packets below `ack` have arrived. */
static uint32_t sealed(struct here *h, uint8_t *f, uint8_t type, uint32_t seq, uint32_t ack)
{
    static const struct bny_dgram_addr from = { { 2 }, 5000, BNY_DGRAM_IP4(1) },
                                       to = { { 4 }, 4000, BNY_DGRAM_IP4(2) };
    uint32_t head = BNY_DGRAM_HEAD + BNY_DGRAM_CHECK +
                    (type == BNY_DGRAM_DATA ? (uint32_t)sizeof(struct bny_hdr) : 0);
    struct bny_dgram_head d = { .magic = BNY_DGRAM_MAGIC,
                                .type = type,
                                .flags = BNY_DGRAM_CHECKED,
                                .tag = 7,
                                .seq = seq,
                                .ack = ack,
                                .length = (uint8_t)head,
                                .from = PEER };
    uint64_t v;

    if (type == BNY_DGRAM_DATA)
        d.flags |= BNY_DGRAM_FIRST | BNY_DGRAM_LAST | BNY_DGRAM_BYE;
    memset(f, 0, BNY_DGRAM_ETH + head);
    bny_dgram_eth_init(f, &from, &to);
    memcpy(f + BNY_DGRAM_ETH, &d, sizeof d);
    v = bny_dgram_check(BNY_DGRAM_MAC, h->e.key, bny_dgram_high(&h->e, &d, 0),
                        f + BNY_DGRAM_ETH, head, NULL, 0);
    memcpy(f + BNY_DGRAM_ETH + BNY_DGRAM_HEAD, &v, sizeof v);
    bny_dgram_eth_length(f, BNY_DGRAM_ETH + head);
    return BNY_DGRAM_ETH + head;
}

struct kind {
    int kind; /* enum bny_dgram_kind */
};

struct record {
    uint8_t type;
};

static struct record records[] = { { BNY_DGRAM_PROBE }, { BNY_DGRAM_DATA } };

ParameterizedTestParameters(dpdk_place, a_packet_that_was_recorded_is_not_taken_again)
{
    return cr_make_param_array(struct record, records, sizeof records / sizeof records[0]);
}

/* 2^32 packets later its numbers are right again: the probe's in one direction, that of data,
 * which has arrived already, in the other one. */
ParameterizedTest(struct record *r, dpdk_place, a_packet_that_was_recorded_is_not_taken_again)
{
    struct here h;
    uint8_t first[256], f[256];
    struct bny_dgram_rx rx = { .data = first }, later = { .data = f };
    int data = r->type == BNY_DGRAM_DATA;

    set_up(&h);
    h.t.set.checks = BNY_DGRAM_MAC;
    h.e.rx.cum = 1;
    rx.len = sealed(&h, first, r->type, 0, 0);
    bny_dgram_frame(&h.t, &h.e, &rx);
    cr_assert_eq(h.t.drops[BNY_DGRAM_BAD_CHECK], 0u);
    for (int i = 0; i < 4; i++) { /* as after so many packets */
        if (data)
            h.e.rx.cum += 1u << 30;
        else
            h.e.tx.una = h.e.tx.next += 1u << 30;
        later.len = sealed(&h, f, r->type, data ? h.e.rx.cum - 1 : 0, h.e.tx.una);
        bny_dgram_frame(&h.t, &h.e, &later);
    }
    for (int i = 0; i < BNY_DGRAM_DROPS; i++)
        cr_assert_eq(h.t.drops[i], 0u);
    cr_assert_eq(data ? h.e.rx.cum : h.e.tx.una + 1, 1u);
    cr_assert_neq(memcmp(f, first, rx.len), 0);
    bny_dgram_frame(&h.t, &h.e, &rx);
    cr_assert_eq(h.t.drops[BNY_DGRAM_BAD_CHECK], 1u, "it is taken again");
    tear_down(&h);
}

/* Half of a tag is not enough. */
Test(dpdk_place, tags_have_64_bits)
{
    struct here h;

    set_up(&h);
    h.e.tag_in = 7 + (1ull << 40);
    frame(&h, 0, 0, 64, BNY_DGRAM_FIRST | BNY_DGRAM_LAST, 64);
    cr_assert_eq(h.t.drops[BNY_DGRAM_BAD_TAG], 1u);
    tear_down(&h);
}

/* Packets with all tags but the right one, which claim to be the peer's and may
 * well come from its address: they are counted and told, each time that they have doubled, and
 * the peer loses nothing, whatever they say. */
ParameterizedTestParameters(dpdk_place, no_rank_suffers_for_what_others_send_in_its_name)
{
    static struct kind kinds[] = { { BNY_DGRAM_PCI }, { BNY_DGRAM_UD } };

    return cr_make_param_array(struct kind, kinds, sizeof kinds / sizeof kinds[0]);
}

static int told;

static void hear(void *unused, enum banyan_log_level level, const char *text)
{
    (void)unused;
    told += level == BANYAN_LOG_WARN && strstr(text, "packets with wrong tags");
}

ParameterizedTest(struct kind *k, dpdk_place, no_rank_suffers_for_what_others_send_in_its_name)
{
    enum { FORGED = 100000 }; /* told at 1024, 2048 and so on to 65536 */
    static const uint8_t types[] = { BNY_DGRAM_DATA, BNY_DGRAM_PROBE, BNY_DGRAM_PROBED,
                                     BNY_DGRAM_ABORT };
    struct bny_dgram_head d;
    struct bny_flow_tx tx;
    uint64_t rng = 17;
    uint8_t f[256];
    struct here h;

    banyan_set_log(hear, NULL, BANYAN_LOG_WARN);
    set_up(&h);
    h.t.set.kind = k->kind;
    h.t.tp.ops = bny_transport_find(k->kind == BNY_DGRAM_UD ? "ud" : "dpdk");
    h.e.tag_in = 7 + (1ull << 40);
    tx = h.e.tx;
    for (int i = 0; i < FORGED; i++) {
        struct bny_dgram_rx rx = { .data = f };

        rx.len = sealed(&h, f, types[bny_rng_below(&rng, sizeof types)], 0, 0);
        memcpy(&d, f + BNY_DGRAM_ETH, sizeof d);
        d.tag = bny_rng_below(&rng, 2) ? 7 : (uint32_t)bny_rng_next(&rng);
        d.tag_rest = d.tag == 7 ? 1u << (i % 8) : 1u << 8;
        d.ack = (uint32_t)bny_rng_next(&rng);
        memcpy(f + BNY_DGRAM_ETH, &d, sizeof d);
        cr_assert_eq(bny_dgram_frame(&h.t, &h.e, &rx), 0);
    }
    cr_assert_eq(h.t.drops[BNY_DGRAM_BAD_TAG], (uint64_t)FORGED);
    cr_assert_eq(told, 7);
    cr_assert(!h.e.down && !h.e.left && !h.e.heard && bny_msg_list_is_empty(&h.e.ready));
    cr_assert_eq(memcmp(&tx, &h.e.tx, sizeof tx), 0);
    h.e.tag_in = 7;
    cr_assert(frame(&h, 0, 0, 64, BNY_DGRAM_FIRST | BNY_DGRAM_LAST, 64));
    cr_assert_not(bny_msg_list_is_empty(&h.e.ready), "the peer is not heard any more");
    tear_down(&h);
}

Test(dpdk_place, nothing_lies_beyond_the_end_that_is_told_later)
{
    struct here h;

    set_up(&h);
    cr_assert(frame(&h, 0, 1 << 20, 64, 0, 0));
    cr_assert_not(frame(&h, 0, 0, 64, BNY_DGRAM_FIRST, 128),
                  "a fragment is far behind the end of 128 bytes");
    cr_assert(bny_msg_list_is_empty(&h.e.ready));
    tear_down(&h);

    set_up(&h);
    cr_assert(frame(&h, 0, 1 << 20, 64, 0, 0));
    frame(&h, 0, 64, 128, BNY_DGRAM_LAST, 0);
    cr_assert_not(frame(&h, 0, 0, 64, BNY_DGRAM_FIRST, 192),
                  "the same, with the end told before");
    cr_assert(bny_msg_list_is_empty(&h.e.ready));
    tear_down(&h);
}

Test(dpdk_place, no_message_is_further_away_than_packets_lead_to)
{
    struct here h;

    set_up(&h);
    cr_assert_not(frame(&h, 2 * BNY_DGRAM_WINDOW, 0, 64, BNY_DGRAM_FIRST | BNY_DGRAM_LAST, 64));
    cr_assert_not(frame(&h, UINT32_MAX, 0, 64, BNY_DGRAM_FIRST | BNY_DGRAM_LAST, 64));
    cr_assert(frame(&h, 2 * BNY_DGRAM_WINDOW - 1, 0, 64, BNY_DGRAM_FIRST | BNY_DGRAM_LAST, 64));
    tear_down(&h);
}

/* Takes what is reported as the engine would. */
static void use(struct here *h, uint64_t *rng)
{
    while (!bny_msg_list_is_empty(&h->e.ready)) {
        struct dp_msg *m = (struct dp_msg *)bny_msg_list_pop_front(&h->e.ready);
        uint8_t out[4096 + 64];
        uint32_t at = 0, sum = 0;

        if (m->msg.data)
            for (uint32_t i = 0; i < m->msg.hdr.len; i++)
                sum += ((const uint8_t *)m->msg.data)[i];
        while (!m->msg.data && at < m->msg.hdr.len) {
            uint32_t want = m->msg.hdr.len - at < 4096 ? m->msg.hdr.len - at : 4096;
            const void *ptr;
            long n =
                bny_dgram_view(&m->msg, at, want, bny_rng_below(rng, 2) ? out : NULL, &ptr);

            if (n <= 0)
                break;
            cr_assert(n <= (long)want);
            for (long i = 0; i < n; i++)
                sum += ((const uint8_t *)ptr)[i];
            at += (uint32_t)n;
        }
        cr_assert(sum != UINT32_MAX); /* so that the bytes are read */
        bny_dgram_release(&m->msg);
    }
}

Test(dpdk_place, random_fragments_stay_in_their_buffers) /* the sanitizers watch */
{
    uint64_t rng = 11;

    for (int round = 0; round < 3000; round++) {
        struct here h;

        set_up(&h);
        for (int i = 0; i < 40; i++) {
            uint32_t off = (uint32_t)bny_rng_below(&rng, 8) * 64,
                     len = (uint32_t)bny_rng_below(&rng, 5) * 64;
            uint32_t whole = (uint32_t)bny_rng_below(&rng, 10) * 64 +
                             (uint32_t)bny_rng_below(&rng, 2) * DP_EAGER_MAX;
            uint8_t flags = (uint8_t)(off ? 0 : BNY_DGRAM_FIRST);

            if (bny_rng_below(&rng, 4) == 0 || (!off && len >= whole))
                flags |= BNY_DGRAM_LAST;
            frame(&h, (uint32_t)bny_rng_below(&rng, 3), off, len, flags,
                  flags == 3 ? len : whole);
            use(&h, &rng);
        }
        tear_down(&h);
    }
}
