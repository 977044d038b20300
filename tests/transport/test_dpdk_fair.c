/* SPDX-License-Identifier: BSD-3-Clause */
/* Senders of the dpdk transport that share one queue, in virtual time: the link is kept busy,
 * and each has its share, also those that came late. Seeds are printed. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "transport/datagram/flow.h"

#define SENDERS  4
#define STEP     4000u /* ns */
#define ONE_WAY  20000u
#define LINK     0.125    /* bytes a ns: 1 Gbit/s */
#define QUEUE_NS 5000000u /* of the link's time; then it drops */
#define RING     2048u    /* packets, or one sender's acknowledgements, that are under way */
#define MS       1000000ull
/* Packets of each on the idle link, as first barriers send: they tell the round trip. */
#define HELLO 2
#define SEEDS 12

struct share {
    char name[32];
    uint64_t seed;
    int senders;
    uint32_t frame;
    uint64_t later; /* ns between two senders' starts */
    uint64_t poll;  /* ns between two looks of a sender, on average */
    double loss;
    double least, most, goodput; /* of a fair share; of the link */
};

struct data {
    uint64_t due;
    uint32_t seq, time;
    int from;
};

struct answer {
    uint64_t due;
    uint32_t cum, echo;
    struct bny_dgram_sack sack;
};

struct pair { /* a sender, and the receiver's end of it */
    struct bny_flow_tx tx;
    struct bny_flow_rx rx;
    struct answer answers[RING];
    uint32_t first_answer, end_answer;
    uint32_t unanswered, echo;
    uint64_t since, next_look;
    uint32_t counted; /* packets that arrived while it counts */
    uint32_t most;    /* packets that it may send */
};

struct world {
    const struct share *p;
    uint64_t rng, now, wire_free;
    struct data data[RING];
    uint32_t first, end;
    int counting;
    struct pair pairs[SENDERS];
};

static void ignore(void *ctx, struct bny_flow_packet *p)
{
}

static void transmit(struct world *w, int from, uint32_t seq)
{
    uint64_t start = w->wire_free > w->now ? w->wire_free : w->now;

    if (start - w->now > QUEUE_NS || bny_rng_unit(&w->rng) < w->p->loss)
        return;
    w->wire_free = start + (uint64_t)(w->p->frame / LINK);
    cr_assert_lt(w->end - w->first, RING);
    w->data[w->end++ % RING] =
        (struct data){ w->wire_free + ONE_WAY, seq, (uint32_t)(w->now >> 6), from };
}

static void answer(struct world *w, struct pair *e)
{
    struct answer a = { .due = w->now + ONE_WAY, .cum = e->rx.cum, .echo = e->echo };

    memcpy(a.sack.bits, e->rx.bits, sizeof a.sack.bits);
    a.sack.twice = e->rx.twice;
    a.sack.delay = (uint32_t)(w->now - e->since);
    cr_assert_lt(e->end_answer - e->first_answer, RING);
    e->answers[e->end_answer++ % RING] = a;
    e->unanswered = 0;
}

static void receive(struct world *w)
{
    for (; w->first != w->end && w->data[w->first % RING].due <= w->now; w->first++) {
        const struct data *d = &w->data[w->first % RING];
        struct pair *e = &w->pairs[d->from];
        int gap = bny_flow_gap(&e->rx);

        if (e->unanswered++ == 0) {
            e->since = w->now;
            e->echo = d->time;
        }
        e->counted += bny_flow_arrived(&e->rx, d->seq) == 1 && w->counting;
        if (e->unanswered >= 8 || bny_flow_gap(&e->rx) != gap)
            answer(w, e);
    }
    for (int i = 0; i < w->p->senders; i++)
        if (w->pairs[i].unanswered && w->now - w->pairs[i].since >= 20000)
            answer(w, &w->pairs[i]);
}

/* A sender's poll. */
static void look(struct world *w, int i)
{
    struct pair *e = &w->pairs[i];
    uint32_t seq;

    for (; e->first_answer != e->end_answer && e->answers[e->first_answer % RING].due <= w->now;
         e->first_answer++) {
        const struct answer *a = &e->answers[e->first_answer % RING];
        uint64_t rtt = (uint64_t)((uint32_t)(w->now >> 6) - a->echo) << 6;

        rtt = rtt > a->sack.delay ? rtt - a->sack.delay : 0;
        cr_assert_eq(
            bny_flow_ack(&e->tx, a->cum, BNY_DGRAM_WINDOW, &a->sack, rtt, w->now, ignore, NULL),
            0);
    }
    cr_assert_geq(bny_flow_tick(&e->tx, w->now), 0);
    for (;;) {
        if (!bny_flow_resend(&e->tx, &seq, w->now)) {
            if (e->tx.next >= e->most || !bny_flow_may_send(&e->tx))
                break;
            seq = bny_flow_send(&e->tx, NULL, 0, 1, w->now);
        }
        transmit(w, i, seq);
    }
    e->next_look = w->now + w->p->poll / 2 + bny_rng_below(&w->rng, w->p->poll + 1);
}

static void run_until(struct world *w, uint64_t end)
{
    for (uint64_t turn = 0; w->now < end; w->now += STEP, turn++) {
        receive(w);
        for (int k = 0; k < w->p->senders; k++) {
            int i = (int)((turn + (uint64_t)k) % (uint64_t)w->p->senders);

            if (w->now >= w->pairs[i].next_look)
                look(w, i);
        }
    }
}

static const struct share shares[] = {
    { "four, 9000 B", 1, 4, 9000, 0, 10000, 0, .9, 1.1, .9 },
    { "four, 1500 B", 2, 4, 1500, 0, 10000, 0, .9, 1.1, .95 },
    { "two, 9000 B", 3, 2, 9000, 0, 10000, 0, .9, 1.1, .95 },
    { "late, 9000 B", 4, 4, 9000, 40 * MS, 10000, 0, .9, 1.1, .9 },
    { "late, 1500 B", 5, 4, 1500, 40 * MS, 10000, 0, .9, 1.1, .95 },
    { "rare looks, 9000 B", 6, 4, 9000, 3 * MS, 1 * MS, 0, .9, 1.1, .95 },
    { "rare looks, 1500 B", 7, 4, 1500, 3 * MS, 1 * MS, 0, .9, 1.1, .95 },
    { "loses 1 %, 9000 B", 8, 4, 9000, 3 * MS, 10000, .01, .9, 1.1, .9 },
    { "loses 1 %, 1500 B", 9, 4, 1500, 3 * MS, 10000, .01, .9, 1.1, .9 },
};

ParameterizedTestParameters(dpdk_fair, senders_share_a_queue)
{
    return cr_make_param_array(struct share, (void *)(uintptr_t)shares,
                               sizeof shares / sizeof shares[0]);
}

ParameterizedTest(struct share *p, dpdk_fair, senders_share_a_queue, .timeout = 60)
{
    const char *own = getenv("BANYAN_TEST_SEED");

    if (own)
        p->seed = strtoull(own, NULL, 0);
    for (int k = 0; k < SEEDS; k++, p->seed += 100) {
        struct world *w = calloc(1, sizeof *w);
        uint64_t start = 2 * MS + (uint64_t)p->senders * p->later + 50 * MS, all = 0;
        double least = 1e9, most = 0, of_link;

        w->p = p;
        w->rng = p->seed;
        w->now = 1 * MS;
        for (int i = 0; i < p->senders; i++) {
            bny_flow_tx_init(&w->pairs[i].tx, 0, BNY_DGRAM_WINDOW, p->frame);
            w->pairs[i].most = HELLO;
        }
        for (int i = 0; i < p->senders; i++) { /* it always has something to send from here */
            run_until(w, 2 * MS + (uint64_t)i * p->later);
            w->pairs[i].most = UINT32_MAX;
        }
        run_until(w, start);
        w->counting = 1;
        run_until(w, start + 250 * MS);
        for (int i = 0; i < p->senders; i++)
            all += w->pairs[i].counted;
        for (int i = 0; i < p->senders; i++) {
            double share = (double)w->pairs[i].counted * p->senders / (double)all;

            least = share < least ? share : least;
            most = share > most ? share : most;
        }
        of_link = (double)all * p->frame / LINK / (double)(250 * MS);
        fprintf(stderr, "# %s: seed %llu: shares %.2f to %.2f, %.3f of the link\n", p->name,
                (unsigned long long)p->seed, least, most, of_link);
        cr_assert(least >= p->least && most <= p->most, "seed %llu: shares of %.2f to %.2f",
                  (unsigned long long)p->seed, least, most);
        cr_assert_geq(of_link, p->goodput, "seed %llu: %.3f of the link",
                      (unsigned long long)p->seed, of_link);
        free(w);
    }
}
