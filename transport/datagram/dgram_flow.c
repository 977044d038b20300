/* SPDX-License-Identifier: BSD-3-Clause */
/* Numbers, acknowledgements, losses, window, timers (flow.h). */
#include "transport/datagram/flow.h"

#include <string.h>

#define SLOT(f, seq)  (&(f)->pk[(seq) % (f)->size])
#define THRESHOLD_MAX 64u
#define CALM          16u /* round trips after which the threshold falls by one */

void bny_flow_tx_init(struct bny_flow_tx *f, int lossless, uint32_t credit, uint32_t frame)
{
    memset(f, 0, sizeof *f);
    f->pk = f->few;
    f->size = BNY_DGRAM_WINDOW;
    f->most = f->size / 2; /* the rest is for lost packets, which go again without a pause */
    f->limit = credit;
    f->threshold = BNY_FLOW_REORDER;
    f->lossless = lossless;
    f->rto = BNY_FLOW_RTO_START;
    f->floor = BNY_FLOW_FLOOR / (frame ? frame : 1);
    if (f->floor > BNY_DGRAM_WINDOW / 4)
        f->floor = BNY_DGRAM_WINDOW / 4;
    if (f->floor < BNY_FLOW_LEAST)
        f->floor = BNY_FLOW_LEAST;
    f->cwnd = lossless ? BNY_FLOW_LOSSLESS : BNY_FLOW_START;
}

void bny_flow_widen(struct bny_flow_tx *f, struct bny_flow_packet *pk, uint32_t size)
{
    memset(pk, 0, size * sizeof *pk);
    f->pk = pk;
    f->size = size;
    f->most = size / 2;
}

void bny_flow_at_most(struct bny_flow_tx *f, uint32_t packets)
{
    f->most = packets < f->most ? packets : f->most;
    f->cwnd = f->cwnd < f->most ? f->cwnd : f->most;
    f->floor = f->floor < f->most / 2 ? f->floor : f->most / 2;
}

void bny_flow_unordered(struct bny_flow_tx *f)
{
    f->unordered = 1;
    f->rto = BNY_FLOW_LATE_NS;
}

void bny_flow_grants(struct bny_flow_tx *f, uint32_t units, uint32_t over)
{
    f->granted = 1;
    f->grant = units;
    f->over = over;
    f->cwnd = f->most; /* the receiver sets the pace; delay in the core shrinks it */
}

void bny_flow_granted(struct bny_flow_tx *f, uint32_t grant, uint64_t now)
{
    if (!bny_flow_before(f->grant, grant))
        return;
    f->grant = grant;
    if (f->end_came - f->first_came == BNY_FLOW_GRANTS ||
        (f->end_came != f->first_came &&
         f->came[(f->end_came - 1) % BNY_FLOW_GRANTS].ns == now))
        f->end_came--; /* merged with the one before */
    else
        f->came[f->end_came % BNY_FLOW_GRANTS].ns = now;
    f->came[f->end_came++ % BNY_FLOW_GRANTS].upto = grant;
}

/* Consumes `units` of the grant. */
static void use(struct bny_flow_tx *f, uint32_t units, uint64_t now)
{
    uint64_t since;

    while (f->first_came != f->end_came &&
           !bny_flow_before(f->used, f->came[f->first_came % BNY_FLOW_GRANTS].upto))
        f->first_came++;
    f->wait_us = 0;
    if (f->first_came != f->end_came) {
        since = f->came[f->first_came % BNY_FLOW_GRANTS].ns;
        since = since < f->busy_ns ? f->busy_ns : since;
        f->wait_us = now > since ? (uint32_t)((now - since) / 1000) : 0;
    }
    f->used += units;
}

/* A frame may exceed the grant by less than its length: grants are whole frames, and unusable
 * rests would add up. */
static int window_open(const struct bny_flow_tx *f)
{
    return f->flying < (uint32_t)f->cwnd && (!f->granted || bny_flow_before(f->used, f->grant));
}

int bny_flow_may_send(const struct bny_flow_tx *f)
{
    return f->next - f->una < f->size && bny_flow_before(f->next, f->limit) && window_open(f);
}

static void launch(struct bny_flow_tx *f, struct bny_flow_packet *p, uint64_t now)
{
    if (f->flying == 0) {
        f->last_ack_ns = now; /* silence counts from here */
        f->probed = 0;
    }
    p->order = ++f->order;
    use(f, bny_flow_units(p->len + f->over), now);
    p->state = BNY_FLOW_FLYING;
    p->sent_ns = f->last_sent_ns = now;
    if (p->tries < 255)
        p->tries++;
    f->flying++;
    if (f->flying > f->round_peak)
        f->round_peak = f->flying;
}

uint32_t bny_flow_send(struct bny_flow_tx *f, void *msg, uint32_t off, uint32_t len,
                       uint64_t now)
{
    struct bny_flow_packet *p = SLOT(f, f->next);

    *p = (struct bny_flow_packet){ .msg = msg, .off = off, .len = len };
    launch(f, p, now);
    return f->next++;
}

int bny_flow_resend(struct bny_flow_tx *f, uint32_t *seq, uint64_t now)
{
    if (!f->lost || !(window_open(f) || f->urgent))
        return 0;
    for (uint32_t s = f->una; s != f->next; s++) {
        struct bny_flow_packet *p = SLOT(f, s);

        if (p->state != BNY_FLOW_LOST)
            continue;
        f->lost--;
        f->urgent = 0;
        f->resent += p->tries > 0;
        launch(f, p, now);
        *seq = s;
        return 1;
    }
    return 0;
}

void bny_flow_unsend(struct bny_flow_tx *f, uint32_t seq)
{
    struct bny_flow_packet *p = SLOT(f, seq);

    p->state = BNY_FLOW_LOST;
    f->used -= bny_flow_units(p->len + f->over);
    p->tries--;
    f->flying--;
    f->lost++;
    f->urgent |= !window_open(f); /* it was set by a timer */
}

/* ---- acknowledgements ---- */

static void dpdk_flow_measure(struct bny_flow_tx *f, uint64_t rtt)
{
    uint64_t diff;

    if (!f->min_rtt || rtt < f->min_rtt)
        f->min_rtt = rtt;
    if (!f->srtt) {
        f->srtt = rtt;
        f->rttvar = rtt / 2;
    } else {
        diff = rtt > f->srtt ? rtt - f->srtt : f->srtt - rtt;
        f->rttvar += diff / 4 - f->rttvar / 4;
        f->srtt += rtt / 8;
        f->srtt -= f->srtt / 8;
    }
    if (!f->round_delay || rtt < f->round_delay)
        f->round_delay = rtt;
}

/* Target delay; more means a queue. */
static uint64_t target_ns(const struct bny_flow_tx *f)
{
    return f->granted ? f->min_rtt + BNY_FLOW_CORE_NS
                      : f->min_rtt + f->min_rtt / 2 + BNY_FLOW_TARGET_NS;
}

static uint64_t base_rto(const struct bny_flow_tx *f)
{
    uint64_t rto = f->srtt ? 4 * f->srtt + 2 * f->rttvar : BNY_FLOW_RTO_START,
             least = f->unordered ? BNY_FLOW_LATE_NS : BNY_FLOW_RTO_MIN;

    rto = rto < least ? least : rto;
    return rto > BNY_FLOW_RTO_MAX ? BNY_FLOW_RTO_MAX : rto;
}

static void dpdk_flow_shrink(struct bny_flow_tx *f, double part, double least)
{
    if (f->cwnd > least)
        f->cwnd = f->cwnd * (1 - part) > least ? f->cwnd * (1 - part) : least;
}

/* Once a round trip. */
static void adjust(struct bny_flow_tx *f)
{
    uint64_t target = target_ns(f);
    double lost = f->round_lost / (f->round_acked + f->round_lost + 1.0);

    if (f->round_delay > target && f->cwnd > f->floor) {
        double over = (double)(f->round_delay - target) / (double)f->round_delay;

        dpdk_flow_shrink(f, over < 0.5 ? over : 0.5, f->floor);
    } else if (f->round_delay > target) {
        /* A window that losses made smaller than the floor grows back, or others' queues would
         * keep the share. */
        if (lost <= BNY_FLOW_RANDOM)
            f->cwnd = 1 + f->cwnd * 5 / 4 < f->floor ? 1 + f->cwnd * 5 / 4 : f->floor;
    } else if (2 * f->round_peak >= f->cwnd) { /* only the used part is known to be good */
        f->cwnd += f->round_delay < target / 2 ? 2 + f->cwnd / 4 : 2;
    }
    if (lost > BNY_FLOW_RANDOM)
        dpdk_flow_shrink(f, 0.5 * (lost - BNY_FLOW_RANDOM), BNY_FLOW_LEAST);
    if (f->cwnd > f->most)
        f->cwnd = f->most;
    if (f->threshold > BNY_FLOW_REORDER && ++f->calm % CALM == 0)
        f->threshold--;
    f->round_end = f->order;
    f->round_acked = f->round_lost = 0;
    f->round_peak = f->flying;
    f->round_delay = 0;
}

static void acked(struct bny_flow_tx *f, struct bny_flow_packet *p, uint64_t now,
                  bny_flow_acked_fn *fn, void *ctx)
{
    if (p->state == BNY_FLOW_FLYING)
        f->flying--;
    else
        f->lost--;
    /* If a packet was sent twice, the latest copy can only have arrived when there was time for
     * it. Without these rounds only timers would detect the loss of a retransmission: with a
     * full window nothing new follows it. */
    if (bny_flow_before(f->newest, p->order) && p->state == BNY_FLOW_FLYING &&
        (p->tries <= 1 || (f->min_rtt && now - p->sent_ns >= f->min_rtt)))
        f->newest = p->order;
    p->state = BNY_FLOW_ACKED;
    f->round_acked++;
    fn(ctx, p);
}

static void mark_lost(struct bny_flow_tx *f, struct bny_flow_packet *p)
{
    p->state = BNY_FLOW_LOST;
    f->flying--;
    f->lost++;
}

/* A packet is lost if it was sent `threshold` packets before one that arrived, or fewer and
 * long ago. */
static void find_losses(struct bny_flow_tx *f, uint64_t now)
{
    uint64_t patience =
        f->srtt + f->srtt / 8 * f->threshold + 2 * f->rttvar + BNY_FLOW_REORDER_NS;

    f->suspect_ns = 0;
    for (uint32_t s = f->una; bny_flow_before(s, f->highest); s++) {
        struct bny_flow_packet *p = SLOT(f, s);

        if (p->state != BNY_FLOW_FLYING || !bny_flow_before(p->order, f->newest))
            continue;
        if (bny_flow_before(f->newest, p->order + f->threshold) &&
            now < p->sent_ns + patience) {
            if (!f->suspect_ns || p->sent_ns + patience < f->suspect_ns)
                f->suspect_ns = p->sent_ns + patience;
            continue;
        }
        mark_lost(f, p);
        f->round_lost++;
        f->judged++;
    }
}

/* n more packets arrived twice. Those that a timer sent were guesses. Those declared lost were
 * late; the network duplicated the others. */
static void came_twice(struct bny_flow_tx *f, uint32_t n)
{
    uint32_t guessed = n < f->guessed ? n : f->guessed;

    f->guessed -= guessed;
    n -= guessed;
    if (n && f->judged) {
        f->judged -= n < f->judged ? n : f->judged;
        f->threshold += f->threshold / 2;
        if (f->threshold > THRESHOLD_MAX)
            f->threshold = THRESHOLD_MAX;
    }
}

int bny_flow_ack(struct bny_flow_tx *f, uint32_t ack, uint32_t credit,
                 const struct bny_dgram_sack *sack, uint64_t rtt_ns, uint64_t now,
                 bny_flow_acked_fn *fn, void *ctx)
{
    uint32_t una = f->una, moved = 0;

    if (bny_flow_before(f->next, ack))
        return -1;
    if (bny_flow_before(ack, una))
        return 0; /* overtaken */
    for (uint32_t w = 0; sack && w < BNY_DGRAM_WINDOW / 64; w++)
        if (sack->bits[w] &&
            bny_flow_before(f->next, ack + sack->first + w * 64 + 64 -
                                         (uint32_t)__builtin_clzll(sack->bits[w])))
            return -1;
    for (; f->una != ack; f->una++) {
        struct bny_flow_packet *p = SLOT(f, f->una);

        if (p->state != BNY_FLOW_ACKED) {
            acked(f, p, now, fn, ctx);
            moved = 1;
        }
        p->state = BNY_FLOW_FREE;
    }
    for (uint32_t w = 0; sack && w < BNY_DGRAM_WINDOW / 64; w++)
        for (uint64_t bits = sack->bits[w]; bits; bits &= bits - 1) {
            uint32_t s = ack + sack->first + w * 64 + (uint32_t)__builtin_ctzll(bits);

            if (bny_flow_before(f->highest, s + 1))
                f->highest = s + 1;
            if (SLOT(f, s)->state != BNY_FLOW_ACKED) {
                acked(f, SLOT(f, s), now, fn, ctx);
                moved = 1;
            }
        }
    if (bny_flow_before(f->limit, ack + credit))
        f->limit = ack + credit;
    if (rtt_ns)
        dpdk_flow_measure(f, rtt_ns);
    if (moved || sack) { /* the peer is there */
        f->last_ack_ns = now;
        f->probed = 0;
        f->rto = base_rto(f);
    }
    if (sack && sack->twice != f->twice) {
        came_twice(f, sack->twice - f->twice);
        f->twice = sack->twice;
    }
    if (bny_flow_before(f->highest, f->una))
        f->highest = f->una;
    if (f->lossless)
        return 0;
    if (bny_flow_before(f->una, f->highest) && !f->unordered)
        find_losses(f, now);
    if (bny_flow_before(f->round_end, f->newest) && f->round_delay)
        adjust(f);
    return 0;
}

/* ---- timers ---- */

/* If all packets are late the newest is as good as any, and its acknowledgement shows which
 * others are lost. */
static int send_newest(struct bny_flow_tx *f)
{
    for (uint32_t s = f->next; s != f->una; s--)
        if (SLOT(f, s - 1)->state == BNY_FLOW_FLYING) {
            mark_lost(f, SLOT(f, s - 1));
            f->guessed++;
            return 1;
        }
    return 0;
}

static int send_oldest(struct bny_flow_tx *f)
{
    for (uint32_t s = f->una; s != f->next; s++)
        if (SLOT(f, s)->state == BNY_FLOW_FLYING) {
            mark_lost(f, SLOT(f, s));
            f->guessed++;
            return 1;
        }
    return 0;
}

int bny_flow_tick(struct bny_flow_tx *f, uint64_t now)
{
    uint64_t silent, since,
        usual = f->srtt < target_ns(f) || f->patient ? f->srtt : target_ns(f);

    if (!f->flying || f->lossless)
        return 0;
    if (f->suspect_ns && now >= f->suspect_ns) {
        find_losses(f, now);
        if (f->lost)
            return 1;
    }
    since = f->last_ack_ns > f->last_sent_ns ? f->last_ack_ns : f->last_sent_ns;
    silent = now > since ? now - since : 0;
    if (now > f->last_ack_ns && now - f->last_ack_ns > BNY_FLOW_DEAD_NS)
        return -1;
    if (!f->probed && f->srtt && !f->unordered && silent > 2 * usual + BNY_FLOW_RTO_MIN / 4 &&
        silent < f->rto) {
        f->probed = 1;
        f->probes++;
        f->urgent = 1;
        return send_newest(f);
    }
    if (silent < f->rto)
        return 0;
    /* Two may be a peer without CPU, or a tail. */
    if (f->rto > 2 * base_rto(f))
        dpdk_flow_shrink(f, 0.5, BNY_FLOW_LEAST);
    f->rto = 2 * f->rto < BNY_FLOW_RTO_MAX ? 2 * f->rto : BNY_FLOW_RTO_MAX;
    f->timeouts++;
    f->urgent = 1;
    return send_oldest(f);
}

void bny_flow_resume(struct bny_flow_tx *f, uint64_t now)
{
    f->last_ack_ns = now;
    f->probed = 0;
    if (f->lossless)
        return;
    f->rto = f->unordered ? BNY_FLOW_LATE_NS : BNY_FLOW_RTO_MIN;
    if (f->cwnd > BNY_FLOW_START)
        f->cwnd = BNY_FLOW_START;
}

/* ---- receiver ---- */

static uint32_t width(const struct bny_flow_rx *f)
{
    return f->size ? f->size : BNY_DGRAM_WINDOW;
}

int bny_flow_is_new(const struct bny_flow_rx *f, uint32_t seq)
{
    uint32_t at = seq - f->cum;

    if (bny_flow_before(seq, f->cum))
        return 0;
    if (at >= width(f))
        return -1;
    return !(f->bits[at / 64] >> (at % 64) & 1);
}

int bny_flow_arrived(struct bny_flow_rx *f, uint32_t seq)
{
    uint32_t at = seq - f->cum, n = 0, words;
    int fresh = bny_flow_is_new(f, seq);

    if (fresh != 1) {
        f->twice += fresh == 0;
        return fresh;
    }
    f->bits[at / 64] |= (uint64_t)1 << (at % 64);
    if (f->span <= at)
        f->span = at + 1;
    while (n < f->span && (f->bits[n / 64] >> (n % 64) & 1))
        n++;
    if (n == 0)
        return 1;
    words = (f->span + 63) / 64;
    f->cum += n;
    f->span -= n;
    for (uint32_t w = 0; w < words; w++) { /* shifts all of it down by n */
        uint32_t from = w + n / 64, bit = n % 64;
        uint64_t low = from < words ? f->bits[from] : 0,
                 high = from + 1 < words ? f->bits[from + 1] : 0;

        f->bits[w] = bit ? low >> bit | high << (64 - bit) : low;
    }
    return 1;
}

int bny_flow_gap(const struct bny_flow_rx *f)
{
    return f->span != 0;
}

void bny_flow_sack(struct bny_flow_rx *f, struct bny_dgram_sack *sack)
{
    const uint32_t words = BNY_DGRAM_WINDOW / 64;
    uint32_t used = (f->span + 63) / 64, first = 0;

    if (used > words && f->told++ % 4 != 3)
        first = used - words;
    *sack = (struct bny_dgram_sack){ .twice = f->twice, .first = first * 64 };
    memcpy(sack->bits, f->bits + first, sizeof sack->bits);
}
