/* SPDX-License-Identifier: BSD-3-Clause */
/* The reliability of the dpdk transport over a simulated link in virtual time: every packet
 * arrives exactly once, the receiver's state is that of a trivial model; time and packets stay
 * near what the link allows, as losses cost round trips, not timeouts. Seeds are printed. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "transport/datagram/flow.h"

#define PACKETS 6000u
#define ONE_WAY 20000u /* ns */
#define GAP     1000u  /* ns between two packets on the wire */
#define QUEUE   4096
#define SEEDS   4
#define NAPS    4000000u

struct link {
    char name[24];
    uint64_t seed;
    double loss, twice, late;
    int lossless;
    uint64_t nap; /* ns of NAPS in which the receiver looks at nothing: it has not its CPU for
                     itself */
    double most_time, most_sent; /* as shares of what the link needs at least, and of the
                                    packets; virtual time */
};

struct flying { /* a packet or an acknowledgement */
    uint64_t due;
    uint32_t seq, time, cum;
    struct bny_dgram_sack sack;
    int is_ack, used;
};

struct world {
    const struct link *p;
    uint64_t rng, now, wire_free;
    struct bny_flow_tx tx;
    struct bny_flow_rx rx;
    struct flying *queue;
    uint8_t got[PACKETS]; /* the model */
    uint32_t sent, acked, received, unacked;
    uint32_t newest_time;
};

static void count_acked(void *ctx, struct bny_flow_packet *p)
{
    struct world *w = ctx;

    cr_assert_eq((uintptr_t)p->msg, p->off + 1, "seed %llu: another packet's message",
                 (unsigned long long)w->p->seed);
    w->acked++;
}

static void put(struct world *w, struct flying f)
{
    int copies = 1 + (bny_rng_unit(&w->rng) < w->p->twice);

    if (bny_rng_unit(&w->rng) < w->p->loss)
        return;
    while (copies-- > 0) {
        int i = 0;

        while (i < QUEUE && w->queue[i].used)
            i++;
        cr_assert_lt(i, QUEUE, "the link holds more than any window");
        f.used = 1;
        f.due = (w->wire_free > w->now ? w->wire_free : w->now) + ONE_WAY;
        if (bny_rng_unit(&w->rng) < w->p->late)
            f.due += bny_rng_below(&w->rng, 10 * GAP);
        if (!f.is_ack && f.due % NAPS < w->p->nap)
            f.due += w->p->nap - f.due % NAPS;
        w->wire_free = (w->wire_free > w->now ? w->wire_free : w->now) + (f.is_ack ? 0 : GAP);
        w->queue[i] = f;
    }
}

static void acknowledge(struct world *w)
{
    struct flying f = { .is_ack = 1, .cum = w->rx.cum, .time = w->newest_time };

    memcpy(f.sack.bits, w->rx.bits, sizeof f.sack.bits);
    f.sack.twice = w->rx.twice;
    w->unacked = 0;
    put(w, f);
}

/* cum and bits say what the model says. */
static void compare(const struct world *w)
{
    for (uint32_t s = 0; s < w->rx.cum; s++)
        if (!w->got[s])
            cr_assert_fail("seed %llu: %u is acknowledged and did not arrive",
                           (unsigned long long)w->p->seed, s);
    for (uint32_t i = 0; i < BNY_DGRAM_WINDOW && w->rx.cum + i < PACKETS; i++)
        cr_assert_eq(w->rx.bits[i / 64] >> (i % 64) & 1, w->got[w->rx.cum + i],
                     "seed %llu: bit %u", (unsigned long long)w->p->seed, i);
}

static void arrive(struct world *w, const struct flying *f)
{
    int fresh;

    if (f->is_ack) {
        uint64_t rtt = w->now - ((uint64_t)f->time << 6);

        cr_assert_eq(bny_flow_ack(&w->tx, f->cum, BNY_DGRAM_WINDOW, &f->sack, rtt, w->now,
                                  count_acked, w),
                     0);
        return;
    }
    fresh = bny_flow_arrived(&w->rx, f->seq);
    cr_assert_eq(fresh, !w->got[f->seq], "seed %llu: packet %u", (unsigned long long)w->p->seed,
                 f->seq);
    w->received += fresh == 1;
    w->got[f->seq] = 1;
    w->newest_time = f->time;
    if (w->received % 64 == 0)
        compare(w);
    if (++w->unacked >= 8 || bny_flow_gap(&w->rx) || !fresh)
        acknowledge(w);
}

static void send_some(struct world *w)
{
    uint32_t seq;

    for (;;) {
        if (!bny_flow_resend(&w->tx, &seq, w->now)) {
            if (w->sent == PACKETS || !bny_flow_may_send(&w->tx))
                return;
            seq = bny_flow_send(&w->tx, (void *)(uintptr_t)(w->sent + 1), w->sent, 1, w->now);
            cr_assert_eq(seq, w->sent);
            w->sent++;
        }
        cr_assert_leq(w->tx.flying + w->tx.lost, BNY_DGRAM_WINDOW);
        put(w, (struct flying){ .seq = seq, .time = (uint32_t)(w->now >> 6) });
    }
}

static const struct link links[] = {
    { "clean", 1, 0, 0, 0, 0, 0, 1.6, 1 },
    { "lossless", 2, 0, 0, 0, 1, 0, 1.8, 1 },
    { "loses 0.1 %", 9, .001, 0, 0, 0, 0, 1.6, 1.01 },
    { "loses 1 %", 3, .01, 0, 0, 0, 0, 1.6, 1.03 },
    { "loses 5 %", 4, .05, 0, 0, 0, 0, 1.8, 1.11 },
    { "loses 30 %", 5, .3, 0, 0, 0, 0, 60, 1.7 },
    { "doubles", 6, 0, .1, 0, 0, 0, 1.8, 1.01 },
    { "reorders", 7, 0, 0, .1, 0, 0, 1.6, 1.02 },
    { "all of it", 8, .05, .1, .2, 0, 0, 2.5, 1.15 },
    { "naps", 10, 0, 0, 0, 0, 1500000, 4, 1.03 },
    { "naps and loses 1 %", 11, .01, 0, 0, 0, 1500000, 4, 1.06 },
    { "sleeps", 12, 0, 0, 0, 0, 3900000, 100, 1.1 },
    { "sleeps and loses 5 %", 13, .05, 0, 0, 0, 3900000, 100, 1.2 },
};

ParameterizedTestParameters(dpdk_flow, everything_arrives_once)
{
    return cr_make_param_array(struct link, (void *)(uintptr_t)links,
                               sizeof links / sizeof links[0]);
}

/* Until everything is acknowledged. */
static void run(struct world *w)
{
    w->now = 1000000;
    bny_flow_tx_init(&w->tx, w->p->lossless, BNY_DGRAM_WINDOW, 9000);
    while (w->acked < PACKETS) {
        uint64_t next = w->now + 10000;

        send_some(w);
        for (int i = 0; i < QUEUE; i++)
            if (w->queue[i].used && w->queue[i].due < next)
                next = w->queue[i].due;
        w->now = next > w->now ? next : w->now + 1;
        for (int i = 0; i < QUEUE; i++)
            if (w->queue[i].used && w->queue[i].due <= w->now) {
                struct flying f = w->queue[i];

                w->queue[i].used = 0;
                arrive(w, &f);
            }
        if (w->unacked)
            acknowledge(w); /* late, as a poll would */
        cr_assert_geq(bny_flow_tick(&w->tx, w->now), 0);
        cr_assert_lt(w->now, 60000000000ull, "seed %llu: %u of %u acknowledged after a minute",
                     (unsigned long long)w->p->seed, w->acked, PACKETS);
    }
}

ParameterizedTest(struct link *p, dpdk_flow, everything_arrives_once, .timeout = 60)
{
    const char *own = getenv("BANYAN_TEST_SEED");

    if (own)
        p->seed = strtoull(own, NULL, 0);
    for (int i = 0; i < SEEDS; i++, p->seed += 100) {
        struct world *w = calloc(1, sizeof *w);
        double least = (double)PACKETS * GAP / (1 - p->loss), time, sent;

        w->queue = calloc(QUEUE, sizeof *w->queue);
        w->p = p;
        w->rng = p->seed;
        run(w);
        compare(w);
        cr_assert_eq(w->received, PACKETS);
        cr_assert_eq(w->acked, PACKETS);
        time = (double)(w->now - 1000000) / least;
        sent = 1 + (double)w->tx.resent / PACKETS;
        fprintf(stderr,
                "# %s: seed %llu: %.2f times the wire's time, %.4f times the packets, %llu "
                "timeouts, %llu probes\n",
                p->name, (unsigned long long)p->seed, time, sent,
                (unsigned long long)w->tx.timeouts, (unsigned long long)w->tx.probes);
        cr_assert_lt(time, p->most_time, "seed %llu: losses stop the flow",
                     (unsigned long long)p->seed);
        cr_assert_leq(sent, p->most_sent, "seed %llu: sent again without need",
                      (unsigned long long)p->seed);
        free(w->queue);
        free(w);
    }
}

Test(dpdk_flow, numbers_wrap)
{
    struct bny_flow_rx rx = { .cum = UINT32_MAX - 3 };

    for (uint32_t i = 0; i < 10; i++)
        cr_assert_eq(bny_flow_arrived(&rx, UINT32_MAX - 3 + i), 1);
    cr_assert_eq(rx.cum, 6);
    cr_assert_eq(bny_flow_arrived(&rx, UINT32_MAX), 0);
    cr_assert_eq(bny_flow_arrived(&rx, 6 + BNY_DGRAM_WINDOW), -1);
    cr_assert_eq(bny_flow_arrived(&rx, 7), 1);
    cr_assert_eq(bny_flow_gap(&rx), 1);
}

static void ignore(void *ctx, struct bny_flow_packet *p)
{
}

Test(dpdk_flow, hostile_acknowledgements_change_nothing)
{
    struct bny_flow_tx tx;
    struct bny_dgram_sack sack = { .twice = 0 };
    uint64_t rng = 11;

    bny_flow_tx_init(&tx, 0, BNY_DGRAM_WINDOW, 9000);
    for (uint32_t i = 0; i < 20; i++)
        bny_flow_send(&tx, &tx, i, 1, 1000);
    cr_assert_eq(bny_flow_ack(&tx, 21, 0, NULL, 0, 2000, ignore, NULL), -1,
                 "more than was sent");
    sack.bits[0] = 1u << 21;
    cr_assert_eq(bny_flow_ack(&tx, 0, 0, &sack, 0, 2000, ignore, NULL), -1, "a bit beyond");
    cr_assert_eq(bny_flow_ack(&tx, UINT32_MAX, 0, &sack, 0, 2000, ignore, NULL), 0,
                 "an old one");
    cr_assert(tx.una == 0 && tx.flying == 20);
    for (int i = 0; i < 10000; i++) {
        for (int k = 0; k < 4; k++)
            sack.bits[k] = bny_rng_next(&rng) & bny_rng_next(&rng);
        bny_flow_ack(&tx, (uint32_t)bny_rng_below(&rng, 40), (uint32_t)bny_rng_below(&rng, 600),
                     i & 1 ? &sack : NULL, bny_rng_next(&rng), 3000, ignore, NULL);
        cr_assert_leq(tx.flying + tx.lost, 20);
        cr_assert(!bny_flow_before(tx.next, tx.una));
    }
}
