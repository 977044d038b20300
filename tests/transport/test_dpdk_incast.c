/* SPDX-License-Identifier: BSD-3-Clause */
/* Many senders to one port of the dpdk transport, in virtual time, on the transport's own flow
 * and grants: the port is busy, its queue short, next to nothing lost, and all have their
 * share. A switch with a drop-tail buffer, senders' links as fast as the port's, polls by the
 * microsecond. Seeds are printed. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "transport/datagram/flow.h"
#include "transport/datagram/grant.h"

#define STEP    1000u  /* ns */
#define RING    8192u  /* a sender's frames under way */
#define ACKS    1024u  /* a sender's answers under way */
#define RING_NS 4000u  /* of a sender's link: what its card holds */
#define OVER    100u   /* bytes of a frame that are not payload */
#define HELLO   20000u /* ns between the senders' first words */
#define MS      1000000ull
#define ASK     500000u /* ns between a sender's questions for credit */

struct row {
    char name[40];
    uint64_t seed;
    int senders;
    uint32_t frame;
    double gbps;
    uint64_t rtt, buffer; /* ns; bytes of the switch's port */
    double loss, ack_loss;
    uint64_t poll, nap, every; /* ns; senders are away for nap ns about once in `every` */
    int held;                  /* senders whose own link is slow */
    double held_share;         /* of the port's rate */
    uint64_t far;              /* ns: round trip of half of the senders; 0: as the others' */
    uint64_t warm, count;      /* ns */
    /* asked for */
    double goodput, lost, queue_us, least, most;
};

struct frame {
    uint64_t due;
    uint32_t seq, time, used;
    uint16_t demand, base, wait;
    uint8_t ask, gone;
};

struct answer {
    uint64_t due;
    uint32_t cum, echo, grant;
    struct bny_dgram_sack sack;
};

struct sender {
    struct bny_flow_tx tx;
    struct bny_flow_packet pk[BNY_DGRAM_WIDEST];
    struct frame *wire; /* those before the switch from `switched` on */
    uint32_t first, switched, end;
    struct answer answers[ACKS];
    uint32_t first_answer, end_answer;
    uint64_t link_free, next_look, asked, ask_wait, one_way;
    double rate;
    /* the receiver's end */
    struct bny_flow_rx rx;
    struct bny_grant grant;
    uint32_t unanswered, echo;
    uint64_t since;
    int tell;
    uint64_t counted;
};

struct world {
    const struct row *p;
    uint64_t rng, now, port_free, sent, lost, samples;
    double rate, queued; /* bytes a ns; ns: sum over samples */
    int on, counting;    /* on: all have something to send, for ever */
    double most_queued;
    struct bny_grant_pool pool;
    struct sender *senders;
    uint32_t turn;
};

static void ignore(void *ctx, struct bny_flow_packet *p)
{
}

/* Onto the sender's link. */
static void transmit(struct world *w, struct sender *s, struct frame f)
{
    double bytes = f.ask && w->on ? 100 : w->p->frame;

    s->link_free =
        (s->link_free > w->now ? s->link_free : w->now) + (uint64_t)(bytes / s->rate);
    f.due = s->link_free + s->one_way / 2;
    w->sent += !f.ask;
    cr_assert_lt(s->end - s->first, RING);
    s->wire[s->end++ % RING] = f;
}

/* What came to the switch goes through it, or is dropped. */
static void through(struct world *w, struct sender *s)
{
    struct frame *f = &s->wire[s->switched++ % RING];
    uint64_t start = w->port_free > f->due ? w->port_free : f->due;
    double bytes = f->ask && w->on ? 100 : w->p->frame, queue = (double)(start - f->due);

    f->gone = queue * w->rate + bytes > (double)w->p->buffer;
    if (f->gone) {
        w->lost += !f->ask;
        return;
    }
    w->port_free = start + (uint64_t)(bytes / w->rate);
    f->due = w->port_free + s->one_way / 2;
    if (w->counting) {
        w->queued += queue;
        w->samples++;
        w->most_queued = queue > w->most_queued ? queue : w->most_queued;
    }
    f->gone = bny_rng_unit(&w->rng) < w->p->loss;
}

/* In the order in which they came. */
static void forward(struct world *w)
{
    for (;;) {
        struct sender *next = NULL;
        uint64_t least = w->now + 1;

        for (int i = 0; i < w->p->senders; i++) {
            struct sender *s = &w->senders[i];

            if (s->switched != s->end && s->wire[s->switched % RING].due < least) {
                least = s->wire[s->switched % RING].due;
                next = s;
            }
        }
        if (!next)
            return;
        through(w, next);
    }
}

static struct frame head(const struct world *w, struct sender *s)
{
    uint64_t base = s->tx.min_rtt / 250;

    return (struct frame){ .time = (uint32_t)(w->now >> 6),
                           .used = s->tx.used,
                           .demand = w->on ? UINT16_MAX : 0,
                           .base = (uint16_t)(base < UINT16_MAX ? base : UINT16_MAX),
                           .wait = (uint16_t)(s->tx.wait_us < UINT16_MAX ? s->tx.wait_us
                                                                         : UINT16_MAX) };
}

/* A sender's poll. */
static void look(struct world *w, struct sender *s)
{
    uint32_t seq;

    for (; s->first_answer != s->end_answer && s->answers[s->first_answer % ACKS].due <= w->now;
         s->first_answer++) {
        const struct answer *a = &s->answers[s->first_answer % ACKS];
        uint64_t rtt = a->echo ? (uint64_t)((uint32_t)(w->now >> 6) - a->echo) << 6 : 0;

        rtt = rtt > a->sack.delay ? rtt - a->sack.delay : 0;
        bny_flow_granted(&s->tx, a->grant, w->now);
        cr_assert_eq(
            bny_flow_ack(&s->tx, a->cum, BNY_DGRAM_WIDEST, &a->sack, rtt, w->now, ignore, NULL),
            0);
        if (w->on)
            s->ask_wait = ASK;
    }
    cr_assert_geq(bny_flow_tick(&s->tx, w->now), 0);
    while (w->on && s->link_free < w->now + RING_NS + 2 * w->p->poll) {
        struct frame f;

        if (!bny_flow_resend(&s->tx, &seq, w->now)) {
            if (!bny_flow_may_send(&s->tx))
                break;
            seq = bny_flow_send(&s->tx, NULL, 0, w->p->frame - OVER, w->now);
        }
        f = head(w, s);
        f.seq = seq;
        transmit(w, s, f);
    }
    if (!s->tx.flying && s->asked + s->ask_wait <= w->now) {
        struct frame f = head(w, s);

        f.ask = 1;
        transmit(w, s, f);
        s->asked = w->now;
        s->ask_wait = w->on ? 2 * s->ask_wait : 10 * MS;
    }
    s->next_look = w->now + w->p->poll / 2 + bny_rng_below(&w->rng, w->p->poll + 1);
    if (w->p->nap && bny_rng_below(&w->rng, w->p->every) < w->p->poll)
        s->next_look += w->p->nap;
}

static void answer(struct world *w, struct sender *s)
{
    struct answer a = { .due = w->now + s->one_way,
                        .cum = s->rx.cum,
                        .echo = s->unanswered ? s->echo : 0,
                        .grant = s->grant.limit };

    bny_flow_sack(&s->rx, &a.sack);
    a.sack.delay = (uint32_t)(w->now - s->since);
    s->unanswered = 0;
    s->tell = 0;
    if (bny_rng_unit(&w->rng) < w->p->ack_loss)
        return;
    cr_assert_lt(s->end_answer - s->first_answer, ACKS);
    s->answers[s->end_answer++ % ACKS] = a;
}

static void tell(struct bny_grant *g, void *ctx)
{
    ((struct sender *)g->user)->tell = 1;
}

static void receive(struct world *w)
{
    for (int i = 0; i < w->p->senders; i++) {
        struct sender *s = &w->senders[i];

        for (; s->first != s->switched && s->wire[s->first % RING].due <= w->now; s->first++) {
            const struct frame *f = &s->wire[s->first % RING];
            int gap = bny_flow_gap(&s->rx);

            if (f->gone)
                continue;
            bny_grant_heard(&w->pool, &s->grant, f->used, f->demand, f->base, f->wait, w->now);
            if (s->unanswered++ == 0) {
                s->since = w->now;
                s->echo = f->time;
            }
            if (f->ask) {
                s->unanswered = 8;
                continue;
            }
            s->counted += bny_flow_arrived(&s->rx, f->seq) == 1 && w->counting;
            if (bny_flow_gap(&s->rx) != gap)
                s->unanswered = 8;
        }
    }
    bny_grant_run(&w->pool, w->now, tell, NULL);
    for (int i = 0; i < w->p->senders; i++) {
        struct sender *s = &w->senders[i];

        if (s->tell || s->unanswered >= 8 || (s->unanswered && w->now - s->since >= 20000))
            answer(w, s);
    }
}

static void run_until(struct world *w, uint64_t end)
{
    for (; w->now < end; w->now += STEP, w->turn++) {
        forward(w);
        receive(w);
        for (int k = 0; k < w->p->senders; k++) {
            struct sender *s = &w->senders[(w->turn + (uint32_t)k) % (uint32_t)w->p->senders];

            if (w->now >= s->next_look)
                look(w, s);
        }
    }
}

static struct world *world_new(const struct row *p)
{
    struct world *w = calloc(1, sizeof *w);

    w->p = p;
    w->rng = p->seed;
    w->now = 1 * MS;
    w->rate = p->gbps / 8;
    w->senders = calloc((size_t)p->senders, sizeof *w->senders);
    bny_grant_init(&w->pool, w->rate, p->frame, (uint32_t)p->senders);
    for (int i = 0; i < p->senders; i++) {
        struct sender *s = &w->senders[i];

        s->wire = calloc(RING, sizeof *s->wire);
        s->one_way = (p->far && i % 2 ? p->far : p->rtt) / 2;
        s->rate = w->rate * (i < p->held ? p->held_share : 1);
        s->grant.user = s;
        s->asked = w->now + (uint64_t)i * HELLO; /* whole frames, on an idle path */
        s->rx.size = BNY_DGRAM_WIDEST;
        bny_grant_begin(&w->pool, &s->grant);
        bny_flow_tx_init(&s->tx, 0, BNY_DGRAM_WIDEST, p->frame);
        bny_flow_widen(&s->tx, s->pk, BNY_DGRAM_WIDEST);
        bny_flow_grants(&s->tx, s->grant.limit, OVER);
    }
    return w;
}

static void world_free(struct world *w)
{
    for (int i = 0; i < w->p->senders; i++)
        free(w->senders[i].wire);
    free(w->senders);
    free(w);
}

#define US 1000u
#define MB 4000000u

static const struct row rows[] = {
    { "1", 1, 1, 9000, 100, 10 * US, MB,  0,    0,  US,  0,
      0,   0, 0, 0,    MS,  4 * MS,  .97, .001, 25, .95, 1.05 },
    { "8", 2, 8, 9000, 100, 10 * US, MB,  0,    0,  US,  0,
      0,   0, 0, 0,    MS,  4 * MS,  .97, .001, 25, .95, 1.05 },
    { "16", 3, 16, 9000, 100, 10 * US, MB,  0,    0,  US,  0,
      0,    0, 0,  0,    MS,  4 * MS,  .97, .001, 25, .95, 1.05 },
    { "32", 4, 32, 9000, 100, 10 * US, MB,  0,    0,  US,  0,
      0,    0, 0,  0,    MS,  8 * MS,  .97, .001, 25, .95, 1.05 },
    { "64", 5, 64, 9000, 100, 10 * US, MB,  0,    0,  US,  0,
      0,    0, 0,  0,    MS,  8 * MS,  .97, .001, 25, .95, 1.05 },
    { "250", 6, 250, 9000, 100, 10 * US, MB,  0,    0,  US,  0,
      0,     0, 0,   0,    MS,  20 * MS, .97, .001, 25, .95, 1.05 },
    { "64, a buffer of 256 KB",
      7,
      64,
      9000,
      100,
      10 * US,
      256000,
      0,
      0,
      US,
      0,
      0,
      0,
      0,
      0,
      MS,
      8 * MS,
      .97,
      .001,
      25,
      .95,
      1.05 },
    { "1, 1500 B, 100 us",
      8,
      1,
      1500,
      100,
      100 * US,
      MB,
      0,
      0,
      US,
      0,
      0,
      0,
      0,
      0,
      2 * MS,
      4 * MS,
      .95,
      .001,
      25,
      .95,
      1.05 },
    { "1, 400 Gbit/s, 40 us",
      9,
      1,
      9000,
      400,
      40 * US,
      MB,
      0,
      0,
      US,
      0,
      0,
      0,
      0,
      0,
      2 * MS,
      4 * MS,
      .95,
      .001,
      25,
      .95,
      1.05 },
    { "8, 1500 B, 100 us",
      10,
      8,
      1500,
      100,
      100 * US,
      MB,
      0,
      0,
      US,
      0,
      0,
      0,
      0,
      0,
      2 * MS,
      4 * MS,
      .97,
      .001,
      25,
      .95,
      1.05 },
    { "64, 1500 B, 100 us",
      11,
      64,
      1500,
      100,
      100 * US,
      MB,
      0,
      0,
      US,
      0,
      0,
      0,
      0,
      0,
      2 * MS,
      8 * MS,
      .97,
      .001,
      25,
      .95,
      1.05 },
    { "16, 1 % lost by chance",
      12,
      16,
      9000,
      100,
      10 * US,
      MB,
      .01,
      0,
      US,
      0,
      0,
      0,
      0,
      0,
      MS,
      8 * MS,
      .95,
      .001,
      25,
      .9,
      1.1 },
    { "64, 1 % and 5 % of answers lost",
      13,
      64,
      9000,
      100,
      10 * US,
      MB,
      .01,
      .05,
      US,
      0,
      0,
      0,
      0,
      0,
      MS,
      8 * MS,
      .95,
      .001,
      25,
      .9,
      1.1 },
    { "16, half of them far",
      14,
      16,
      9000,
      100,
      10 * US,
      MB,
      0,
      0,
      US,
      0,
      0,
      0,
      0,
      100 * US,
      2 * MS,
      4 * MS,
      .97,
      .001,
      45,
      .95,
      1.05 },
    { "1 of 8 held to 2 %",
      15,
      8,
      9000,
      100,
      10 * US,
      MB,
      0,
      0,
      US,
      0,
      0,
      1,
      .02,
      0,
      2 * MS,
      8 * MS,
      .95,
      .001,
      31,
      0,
      1.2 },
    { "4 of 8 held to 5 %",
      16,
      8,
      9000,
      100,
      10 * US,
      MB,
      0,
      0,
      US,
      0,
      0,
      4,
      .05,
      0,
      2 * MS,
      8 * MS,
      .95,
      .001,
      31,
      0,
      1.7 },
    { "64, away 500 of 2500 us",
      17,
      64,
      9000,
      100,
      10 * US,
      MB,
      0,
      0,
      US,
      500 * US,
      2500 * US,
      0,
      0,
      0,
      2 * MS,
      20 * MS,
      .95,
      .001,
      25,
      .8,
      1.2 },
    { "64, polls each 10 us",
      18,
      64,
      9000,
      100,
      10 * US,
      MB,
      0,
      0,
      10 * US,
      0,
      0,
      0,
      0,
      0,
      MS,
      8 * MS,
      .97,
      .001,
      25,
      .95,
      1.05 },
};

ParameterizedTestParameters(dpdk_incast, a_port_is_shared)
{
    return cr_make_param_array(struct row, (void *)(uintptr_t)rows,
                               sizeof rows / sizeof rows[0]);
}

ParameterizedTest(struct row *p, dpdk_incast, a_port_is_shared, .timeout = 100)
{
    const char *own = getenv("BANYAN_TEST_SEED");
    struct world *w;
    double least = 1e9, most = 0, goodput, lost, queue;
    uint64_t all = 0, start = 1 * MS + (uint64_t)p->senders * HELLO + 1 * MS;

    if (own)
        p->seed = strtoull(own, NULL, 0);
    w = world_new(p);
    run_until(w, start);
    w->on = 1;
    for (int i = 0; i < p->senders; i++)
        w->senders[i].ask_wait = 0;
    run_until(w, start + p->warm);
    w->counting = 1;
    run_until(w, start + p->warm + p->count);
    for (int i = 0; i < p->senders; i++)
        all += w->senders[i].counted;
    for (int i = 0; i < p->senders; i++) {
        double share = (double)w->senders[i].counted * p->senders / (double)all;

        least = share < least ? share : least;
        most = share > most ? share : most;
    }
    goodput = (double)all * p->frame / w->rate / (double)p->count;
    lost = (double)w->lost / (double)(w->sent ? w->sent : 1);
    queue = w->queued / (double)(w->samples ? w->samples : 1) / 1000;
    fprintf(stderr,
            "# %s: seed %llu: %.3f of the rate, %.4f lost, queue %.1f us (most %.1f), shares "
            "%.2f to %.2f\n",
            p->name, (unsigned long long)p->seed, goodput, lost, queue, w->most_queued / 1000,
            least, most);
    cr_expect_geq(goodput, p->goodput, "%s: %.3f of the rate", p->name, goodput);
    cr_expect_leq(lost, p->lost, "%s: %.4f lost", p->name, lost);
    cr_expect_leq(queue, p->queue_us, "%s: a queue of %.1f us", p->name, queue);
    cr_expect(least >= p->least && most <= p->most, "%s: shares of %.2f to %.2f", p->name,
              least, most);
    world_free(w);
}
