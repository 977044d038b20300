/* SPDX-License-Identifier: BSD-3-Clause */
/* Numbers, acknowledgements, losses, window, timers (flow.h). */
#include "transport/dpdk/flow.h"

#include <string.h>

#define SLOT(f, seq) (&(f)->pk[(seq) % BNY_DPDK_WINDOW])
#define THRESHOLD_MAX 64u

void bny_flow_tx_init(struct bny_flow_tx *f, int lossless, uint32_t credit)
{
    memset(f, 0, sizeof *f);
    f->limit = credit;
    f->threshold = BNY_FLOW_REORDER;
    f->lossless = lossless;
    f->rto = BNY_FLOW_RTO_START;
    f->cwnd = lossless ? BNY_FLOW_LOSSLESS : 32;
}

static int window_open(const struct bny_flow_tx *f)
{
    return f->flying < (uint32_t)f->cwnd;
}

int bny_flow_may_send(const struct bny_flow_tx *f)
{
    return f->next - f->una < BNY_DPDK_WINDOW && bny_flow_before(f->next, f->limit) && window_open(f);
}

static void launch(struct bny_flow_tx *f, struct bny_flow_packet *p, uint64_t now)
{
    if (f->flying == 0) {
        f->last_ack_ns = now; /* silence counts from here */
        f->probed = 0;
    }
    p->order = ++f->order;
    p->state = BNY_FLOW_FLYING;
    p->sent_ns = f->last_sent_ns = now;
    if (p->tries < 255)
        p->tries++;
    f->flying++;
}

uint32_t bny_flow_send(struct bny_flow_tx *f, void *msg, uint32_t off, uint32_t len, uint64_t now)
{
    struct bny_flow_packet *p = SLOT(f, f->next);

    *p = (struct bny_flow_packet){ .msg = msg, .off = off, .len = len };
    launch(f, p, now);
    return f->next++;
}

int bny_flow_resend(struct bny_flow_tx *f, uint32_t *seq, uint64_t now)
{
    if (!f->lost || !window_open(f))
        return 0;
    for (uint32_t s = f->una; s != f->next; s++) {
        struct bny_flow_packet *p = SLOT(f, s);

        if (p->state != BNY_FLOW_LOST)
            continue;
        f->lost--;
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
    p->tries--;
    f->flying--;
    f->lost++;
}

/* ---- acknowledgements ------------------------------------------------------------------------ */

static void measure(struct bny_flow_tx *f, uint64_t rtt)
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
    if (rtt > f->round_delay)
        f->round_delay = rtt;
}

static uint64_t base_rto(const struct bny_flow_tx *f)
{
    uint64_t rto = f->srtt ? 4 * f->srtt + 2 * f->rttvar : BNY_FLOW_RTO_START;

    rto = rto < BNY_FLOW_RTO_MIN ? BNY_FLOW_RTO_MIN : rto;
    return rto > BNY_FLOW_RTO_MAX ? BNY_FLOW_RTO_MAX : rto;
}

/* Once a round trip. */
static void adjust(struct bny_flow_tx *f)
{
    uint64_t target = f->min_rtt + f->min_rtt / 2 + BNY_FLOW_TARGET_NS;
    uint32_t seen = f->round_acked + f->round_lost;

    if (f->round_delay > target) {
        double over = (double)(f->round_delay - target) / (double)f->round_delay;

        f->cwnd *= 1 - (over < 0.5 ? over : 0.5);
    } else {
        f->cwnd += 1 + f->cwnd / 16;
    }
    if (f->round_lost && seen)
        f->cwnd *= 1 - 0.5 * f->round_lost / seen;
    if (f->cwnd > BNY_DPDK_WINDOW)
        f->cwnd = BNY_DPDK_WINDOW;
    if (f->cwnd < 2)
        f->cwnd = 2;
    f->round_end = f->next;
    f->round_acked = f->round_lost = 0;
    f->round_delay = 0;
}

static void acked(struct bny_flow_tx *f, struct bny_flow_packet *p, bny_flow_acked_fn *fn, void *ctx)
{
    if (p->state == BNY_FLOW_FLYING)
        f->flying--;
    else
        f->lost--;
    p->state = BNY_FLOW_ACKED;
    f->round_acked++;
    /* Of a packet that was sent twice nobody knows which one arrived. */
    if (p->tries <= 1 && bny_flow_before(f->newest, p->order))
        f->newest = p->order;
    fn(ctx, p);
}

/* What was sent `threshold` packets before something that has arrived is lost. */
static void find_losses(struct bny_flow_tx *f, uint32_t highest)
{
    for (uint32_t s = f->una; s != highest; s++) {
        struct bny_flow_packet *p = SLOT(f, s);

        if (p->state == BNY_FLOW_FLYING && !bny_flow_before(f->newest, p->order + f->threshold)) {
            p->state = BNY_FLOW_LOST;
            f->flying--;
            f->lost++;
            f->round_lost++;
        }
    }
}

int bny_flow_ack(struct bny_flow_tx *f, uint32_t ack, uint32_t credit, const struct bny_dpdk_sack *sack,
                 uint64_t rtt_ns, uint64_t now, bny_flow_acked_fn *fn, void *ctx)
{
    uint32_t una = f->una, highest = f->una, moved = 0;

    if (bny_flow_before(f->next, ack))
        return -1;
    if (bny_flow_before(ack, una))
        return 0; /* overtaken */
    for (uint32_t w = 0; sack && w < BNY_DPDK_WINDOW / 64; w++)
        if (sack->bits[w] && bny_flow_before(f->next, ack + w * 64 + 64 - (uint32_t)__builtin_clzll(sack->bits[w])))
            return -1;
    for (; f->una != ack; f->una++) {
        struct bny_flow_packet *p = SLOT(f, f->una);

        if (p->state != BNY_FLOW_ACKED) {
            acked(f, p, fn, ctx);
            moved = 1;
        }
        p->state = BNY_FLOW_FREE;
    }
    for (uint32_t w = 0; sack && w < BNY_DPDK_WINDOW / 64; w++)
        for (uint64_t bits = sack->bits[w]; bits; bits &= bits - 1) {
            uint32_t s = ack + w * 64 + (uint32_t)__builtin_ctzll(bits);

            highest = s + 1;
            if (SLOT(f, s)->state != BNY_FLOW_ACKED) {
                acked(f, SLOT(f, s), fn, ctx);
                moved = 1;
            }
        }
    if (bny_flow_before(f->limit, ack + credit))
        f->limit = ack + credit;
    if (rtt_ns)
        measure(f, rtt_ns);
    if (moved || sack) { /* somebody is there */
        f->last_ack_ns = now;
        f->probed = 0;
        f->rto = base_rto(f);
    }
    /* Sent again, and both arrived: late, not lost. */
    if (sack && sack->twice != f->twice) {
        if (f->resent && f->threshold < THRESHOLD_MAX)
            f->threshold += f->threshold / 2;
        f->twice = sack->twice;
    }
    if (bny_flow_before(f->una, highest))
        find_losses(f, highest);
    if (!bny_flow_before(f->una, f->round_end) && !f->lossless)
        adjust(f);
    return 0;
}

/* ---- timers ---------------------------------------------------------------------------------- */

static void mark_lost(struct bny_flow_tx *f, struct bny_flow_packet *p)
{
    p->state = BNY_FLOW_LOST;
    f->flying--;
    f->lost++;
}

int bny_flow_tick(struct bny_flow_tx *f, uint64_t now)
{
    uint64_t silent, since;

    if (!f->flying || f->lossless)
        return 0;
    since = f->last_ack_ns > f->last_sent_ns ? f->last_ack_ns : f->last_sent_ns;
    silent = now > since ? now - since : 0;
    if (now > f->last_ack_ns && now - f->last_ack_ns > BNY_FLOW_DEAD_NS)
        return -1;
    if (!f->probed && f->srtt && silent > 2 * f->srtt + BNY_FLOW_RTO_MIN / 4 && silent < f->rto) {
        f->probed = 1;
        for (uint32_t s = f->next; s != f->una; s--) {
            struct bny_flow_packet *p = SLOT(f, s - 1);

            if (p->state == BNY_FLOW_FLYING) {
                mark_lost(f, p);
                return 1;
            }
        }
    }
    if (silent < f->rto)
        return 0;
    f->rto = 2 * f->rto < BNY_FLOW_RTO_MAX ? 2 * f->rto : BNY_FLOW_RTO_MAX;
    f->timeouts++;
    f->cwnd = f->cwnd / 2 < 2 ? 2 : f->cwnd / 2;
    for (uint32_t s = f->una; s != f->next; s++) {
        struct bny_flow_packet *p = SLOT(f, s);

        if (p->state == BNY_FLOW_FLYING) {
            mark_lost(f, p);
            return 1;
        }
    }
    return 0;
}

/* ---- receiver -------------------------------------------------------------------------------- */

int bny_flow_is_new(const struct bny_flow_rx *f, uint32_t seq)
{
    uint32_t at = seq - f->cum;

    if (bny_flow_before(seq, f->cum))
        return 0;
    if (at >= BNY_DPDK_WINDOW)
        return -1;
    return !(f->bits[at / 64] >> (at % 64) & 1);
}

int bny_flow_arrived(struct bny_flow_rx *f, uint32_t seq)
{
    uint32_t at = seq - f->cum, n = 0, words = BNY_DPDK_WINDOW / 64;
    int fresh = bny_flow_is_new(f, seq);

    if (fresh != 1) {
        f->twice += fresh == 0;
        return fresh;
    }
    f->bits[at / 64] |= (uint64_t)1 << (at % 64);
    while (n < BNY_DPDK_WINDOW && (f->bits[n / 64] >> (n % 64) & 1))
        n++;
    if (n == 0)
        return 1;
    f->cum += n;
    for (uint32_t w = 0; w < words; w++) { /* shifts all of it down by n */
        uint32_t from = w + n / 64, bit = n % 64;
        uint64_t low = from < words ? f->bits[from] : 0, high = from + 1 < words ? f->bits[from + 1] : 0;

        f->bits[w] = bit ? low >> bit | high << (64 - bit) : low;
    }
    return 1;
}

int bny_flow_gap(const struct bny_flow_rx *f)
{
    return (f->bits[0] | f->bits[1] | f->bits[2] | f->bits[3]) != 0;
}
