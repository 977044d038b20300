/* SPDX-License-Identifier: BSD-3-Clause */
/* How much ranks may send each other: windows, buffers and ring places of a port for its peers,
 * and grants (grant.h) among frames. Cards grant, as their speed is known; virtual ports report
 * arbitrary speeds, and their peers share the ring's places. */
#include <stdlib.h>

#include "base/err.h"
#include "transport/datagram/dgram.h"

static uint32_t peers(const struct dp_tp *t)
{
    return t->tp.nranks > 1 ? (uint32_t)t->tp.nranks - 1 : 1;
}

static uint32_t power_of_two(uint32_t least)
{
    uint32_t n = 1;

    while (n < least)
        n *= 2;
    return n;
}

/* Buffers beyond those that each peer has. */
static uint32_t spare(const struct dp_tp *t, uint32_t frame)
{
    uint32_t n = power_of_two(DP_SPARE_BYTES / frame + 1) / 2;

    if (t->set.kind != BNY_DGRAM_PCI)
        return 0;
    return n < DP_SPARE_MAX ? n : DP_SPARE_MAX;
}

/* All of them: with fewer, messages that wait for others could hold all buffers, and nothing
 * could arrive any more. */
uint32_t bny_dgram_bufs(const struct dp_tp *t)
{
    uint32_t all = DP_BUDGET * peers(t), more = spare(t, t->set.frame);

    return all > more ? all : more;
}

/* All frames that peers may have in flight. With grants this does not grow with their number:
 * twice the pool of a long path. */
uint32_t bny_dgram_ring(const struct dp_tp *t)
{
    uint32_t n = t->set.kind == BNY_DGRAM_PCI
                     ? 2 * BNY_DGRAM_WIDEST
                     : power_of_two(peers(t) * BNY_DGRAM_WINDOW / 2 * 5 / 4);

    if (t->set.kind == BNY_DGRAM_PCI && t->set.frame >= 4096)
        n = 1024;
    n = n < DP_RING_MIN ? DP_RING_MIN : n;
    return n < DP_RING_MAX ? n : DP_RING_MAX;
}

static double bytes_a_ns(uint32_t mbps)
{
    return mbps / 8000.0;
}

void bny_dgram_grants_open(struct dp_tp *t)
{
    uint32_t most = BNY_DGRAM_WINDOW / 2, share = t->info.ring / 5 * 4 / peers(t);

    if (t->info.mbps) {
        bny_grant_init(&t->grants, bytes_a_ns(t->info.mbps), t->info.frame_max + DP_WIRE,
                       peers(t));
        t->blob.grants = 1;
        t->blob.unasked = t->grants.unasked;
    } else if (t->info.ring && share < most) {
        t->blob.share = (uint16_t)(share > 2 ? share : 2);
    }
}

void bny_dgram_grants_speed(struct dp_tp *t)
{
    uint32_t mbps = t->grants.rate > 0 && t->port ? t->drv->mbps(t->port) : 0;

    if (mbps)
        bny_grant_rate(&t->grants, bytes_a_ns(mbps));
}

/* Four times what a long path holds: as much again may be lost, and as much unread. */
static uint32_t window(const struct dp_tp *t)
{
    double held = 4 * bytes_a_ns(t->info.mbps) * DP_FAR_NS / t->info.frame_max;
    uint32_t budget = DP_BUDGET;

    while (budget < held && 2 * budget * peers(t) <= spare(t, t->info.frame_max))
        budget *= 2;
    return budget / 2;
}

int bny_dgram_grants_new(struct dp_ep *e)
{
    struct dp_tp *t = dp_tp_of(e);
    uint32_t over = bny_dgram_fragment(t, 1, e->frame_wanted);

    if (!t->port)
        return 0;
    e->grant.user = e;
    if (t->grants.rate > 0) {
        bny_grant_begin(&t->grants, &e->grant);
        e->rx.size = window(t);
    }
    if (e->rx.size > BNY_DGRAM_WINDOW) {
        e->wide = calloc(e->rx.size, sizeof *e->wide);
        if (!e->wide)
            return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for the window to rank %d",
                            t->tp.rank, e->ep.peer);
        bny_flow_widen(&e->tx, e->wide, e->rx.size);
    }
    if (e->blob.grants)
        bny_flow_grants(&e->tx, e->blob.unasked, e->frame_wanted - over + DP_WIRE);
    else if (e->blob.share)
        bny_flow_at_most(&e->tx, e->blob.share);
    return 0;
}

void bny_dgram_grants_end(struct dp_ep *e)
{
    struct dp_tp *t = dp_tp_of(e);

    if (t->grants.rate > 0 && e->grant.user)
        bny_grant_end(&t->grants, &e->grant);
}

/* KiB, with headers. */
static uint32_t demand(const struct dp_ep *e)
{
    uint64_t bytes = e->backlog + (uint64_t)e->tx.lost * e->frame;

    bytes += bytes / e->frame * e->tx.over;
    bytes = (bytes + 1023) / 1024;
    return bytes < UINT16_MAX ? (uint32_t)bytes : UINT16_MAX;
}

void bny_dgram_grants_say(struct dp_ep *e, struct bny_dgram_head *h)
{
    uint64_t base = e->tx.min_rtt / 250;

    if (e->tx.granted) {
        e->demand_told = demand(e);
        h->used = e->tx.used;
        h->demand = (uint16_t)e->demand_told;
        h->base = (uint16_t)(base < UINT16_MAX ? base : UINT16_MAX);
        h->wait = (uint16_t)(e->tx.wait_us < UINT16_MAX ? e->tx.wait_us : UINT16_MAX);
    }
    h->grant = e->grant.limit;
}

void bny_dgram_grants_hear(struct dp_ep *e, const struct bny_dgram_head *h)
{
    struct dp_tp *t = dp_tp_of(e);

    if (t->grants.rate > 0)
        bny_grant_heard(&t->grants, &e->grant, h->used, h->demand, h->base, h->wait, t->now);
    if (e->tx.granted && bny_flow_before(e->tx.grant, h->grant)) {
        bny_flow_granted(&e->tx, h->grant, t->now);
        e->grant_wait = DP_ASK_NS;
    }
}

static void credit_tell(struct bny_grant *g, void *ctx)
{
    struct dp_ep *e = g->user;
    struct dp_tp *t = dp_tp_of(e);

    if (e->told)
        return;
    e->told = 1;
    e->next_told = t->told;
    t->told = e;
}

void bny_dgram_grants_run(struct dp_tp *t)
{
    bny_grant_run(&t->grants, t->now, credit_tell, NULL);
    while (t->told) {
        struct dp_ep *e = t->told;

        t->told = e->next_told;
        e->told = 0;
        if (e->up && !e->down && !e->link_lost_ns)
            bny_dgram_ack(e);
    }
}

/* At once if the receiver knows of no demand; otherwise the earlier notice, or the answer, is
 * lost. */
void bny_dgram_grants_ask(struct dp_ep *e)
{
    struct dp_tp *t = dp_tp_of(e);

    if (!e->tx.granted || !demand(e) || e->tx.flying ||
        bny_flow_before(e->tx.used, e->tx.grant))
        return;
    if (e->demand_told && t->now - e->grant_ns < e->grant_wait)
        return;
    e->grant_wait = e->grant_wait < DP_ASK_NS           ? DP_ASK_NS
                    : 2 * e->grant_wait < DP_ASK_MAX_NS ? 2 * e->grant_wait
                                                        : DP_ASK_MAX_NS;
    e->grant_ns = t->now;
    bny_dgram_control(e, BNY_DGRAM_PROBE, 0, 0);
}
