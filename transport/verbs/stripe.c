/* SPDX-License-Identifier: BSD-3-Clause */
/* Long payload over several lanes, out and in; and the keys of memory on a lane's device.
 * verbs.h explains why the n-th message that names a lane has the n-th stripe of that lane. */
#include <stdlib.h>

#include "base/clock.h"
#include "transport/verbs/lane.h"

/* Stripes begin at multiples of this: only the last packet may be shorter than the MTU. */
#define CUT 4096u
/* For stripes before a farewell: the peer's device has acknowledged them. */
#define LEAVING_S 2.0

/* ---- keys ---- */

uint32_t bny_verbs_window_key(const struct vb_lane *c, const struct bny_window *win)
{
    uint32_t i = (uint32_t)c->rail->index;

    if (i < VB_WINDOW_KEYS)
        return (uint32_t)((i < 2 ? win->key : win->offset) >> (i % 2 * 32));
    /* else an invalid key, which the peer's device refuses */
    return c->peer->further && win->segment && win->segment <= VB_FURTHER
               ? c->peer->further[win->segment - 1].key[i - VB_WINDOW_KEYS]
               : 0;
}

void bny_verbs_further_arrived(struct vb_peer *p, const struct vb_further *f)
{
    if (!p->further)
        p->further = calloc(VB_FURTHER, sizeof *p->further);
    if (!p->further) {
        bny_verbs_lacks(p->t, ENOMEM, "no memory for keys");
        bny_verbs_deaf(p->e);
    } else if (f->region >= VB_FURTHER)
        bny_verbs_down(p->e, "sends keys of region %u, of %u", f->region, VB_FURTHER);
    else
        p->further[f->region] = *f;
}

void bny_verbs_record_put(struct vb_lane *c, struct vb_sent s, const struct bny_window *win)
{
    if (c->keys)
        c->keys[c->posted % VB_SENDS] = (struct vb_keys){ win->key, win->offset, win->segment };
    bny_verbs_record(c, s);
}

static int is_in(const struct vb_peer *p, uint64_t at, uint64_t from)
{
    return at >= from && at - from < p->shape.bytes;
}

void bny_verbs_rekey(struct vb_lane *c, uint32_t from)
{
    const struct vb_peer *p = c->peer;

    for (uint32_t k = from; k != c->posted; k++) {
        struct vb_sent *s = &c->sent[k % VB_SENDS];
        const struct vb_keys *keys = &c->keys[k % VB_SENDS];
        struct bny_window win = { .key = keys->low,
                                  .offset = keys->high,
                                  .segment = keys->segment };

        for (uint8_t i = 0; i < s->nsge; i++) {
            uint64_t at = s->sge[i].addr;
            const struct vb_region *r;

            if (is_in(p, at, (uintptr_t)p->slab + p->shape.bytes)) {
                s->sge[i].lkey = p->mr_out[c->rail->index]->lkey;
                continue;
            }
            r = bny_verbs_region_before(c->t, (const void *)(uintptr_t)at, s->sge[i].length);
            s->sge[i].lkey = r && r->mr[c->rail->index] ? r->mr[c->rail->index]->lkey : 0;
        }
        s->rkey = s->nsge == 0 || is_in(p, s->remote, p->remote_addr)
                      ? c->rkey
                      : bny_verbs_window_key(c, &win);
    }
}

void bny_verbs_relocate(struct vb_lane *c, uint32_t from, uint64_t addr)
{
    uint64_t before = c->peer->remote_addr;

    for (uint32_t k = from; k != c->posted; k++) {
        struct vb_sent *s = &c->sent[k % VB_SENDS];

        if (s->nsge && !is_in(c->peer, s->remote, before)) /* a window has its own key */
            continue;
        s->remote = s->remote - before + addr;
        s->rkey = c->rkey;
    }
    c->peer->remote_addr = addr;
}

/* ---- out ---- */

static void record_stripe(struct vb_lane *l, const struct vb_span *span, uint32_t at,
                          uint32_t len)
{
    int rail = l->rail->index;
    uint32_t lkey = span->user ? span->user->mr[rail]->lkey : l->peer->mr_out[rail]->lkey;

    for (uint32_t end = at + len, n; at < end; at += n) {
        struct vb_sent s = { .remote = span->to + at,
                             .nsge = 1,
                             .cookie = span->cookie,
                             .imm = (uint32_t)VB_IMM_STRIPE << 28 };

        n = end - at < l->t->max_msg ? end - at : l->t->max_msg;
        s.sge[0] =
            (struct ibv_sge){ .addr = (uintptr_t)span->from + at, .length = n, .lkey = lkey };
        s.rkey = span->win ? bny_verbs_window_key(l, span->win) : l->rkey;
        s.has_imm = s.signals = at + n == end;
        if (span->win)
            bny_verbs_record_put(l, s, span->win);
        else
            bny_verbs_record(l, s);
    }
}

/* Lanes for `pieces` stripes, in turn. The first lane takes a share only if its rail has no
 * other. */
static uint32_t stripe_choose(struct vb_lane *c, const struct vb_span *span, uint32_t pieces,
                              uint32_t *chosen)
{
    struct vb_ep *e = c->e;
    uint32_t n = 0, first = e->next_lane;

    for (uint32_t i = 0; i < e->nlanes && n < pieces; i++) {
        uint32_t k = (first + i) % e->nlanes;
        const struct vb_lane *l = k ? NULL : c;

        if (k && e->lanes_open >> k & 1)
            l = e->lanes[k]->conn;
        if (!l || (k == 0 && (e->qps > 1 || e->state != VB_OPEN)) ||
            (k && !bny_verbs_has_room(l, 1 + span->len / c->t->max_msg)) ||
            (span->user && !span->user->mr[l->rail->index]))
            continue;
        chosen[n++] = k;
        e->next_lane = (k + 1) % e->nlanes;
    }
    return n;
}

uint32_t bny_verbs_stripe(struct vb_lane *c, const struct vb_span *span, uint32_t *first)
{
    struct vb_ep *e = c->e;
    uint32_t chosen[VB_LANES], lanes = 0, at = 0,
                               n = stripe_choose(c, span, span->len / VB_STRIPE_MIN, chosen);
    uint64_t total = 0, sum = 0;

    *first = span->len;
    for (uint32_t i = 0; i < n; i++) {
        if (chosen[i] == 0) { /* its share precedes its immediate, from the beginning on */
            chosen[i] = chosen[0];
            chosen[0] = 0;
        }
        total += e->weight[(chosen[i] ? e->lanes[chosen[i]]->conn : c)->rail->index];
    }
    if (n == 0 || (n == 1 && chosen[0] == 0))
        return 0;
    *first = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct vb_lane *l = chosen[i] ? e->lanes[chosen[i]]->conn : c;
        uint32_t end;

        sum += e->weight[l->rail->index];
        end = i + 1 == n ? span->len : (uint32_t)(span->len * sum / total) / CUT * CUT;
        if (chosen[i] == 0) {
            *first = end;
        } else if (end > at) {
            record_stripe(l, span, at, end - at);
            lanes |= 1u << chosen[i];
        }
        at = end;
    }
    return lanes;
}

int bny_verbs_post_lanes(struct vb_lane *c, uint32_t lanes)
{
    for (; lanes && !c->dead; lanes &= lanes - 1)
        bny_verbs_post(c->e->lanes[__builtin_ctz(lanes)]->conn);
    return bny_verbs_post(c);
}

int bny_verbs_stripes_due(const struct vb_lane *c, uint32_t lanes)
{
    for (uint32_t m = lanes; m; m &= m - 1) {
        const struct vb_lane *l = c->e->lanes[__builtin_ctz(m)]->conn;

        if (l->imm_done == l->stripes_told)
            return 1;
    }
    return 0;
}

int bny_verbs_stripes_done(struct vb_lane *c, uint32_t lanes)
{
    if (bny_verbs_stripes_due(c, lanes))
        return 0;
    for (uint32_t m = lanes; m; m &= m - 1)
        c->e->lanes[__builtin_ctz(m)]->conn->stripes_told++;
    return 1;
}

/* ---- in ---- */

int bny_verbs_stripe_arrived(struct vb_lane *lane, uint32_t imm, uint32_t bytes)
{
    if (imm != (uint32_t)VB_IMM_STRIPE << 28 ||
        lane->imm_taken - lane->stripes_used >= VB_RECVS) {
        bny_verbs_down(lane->e, "sends an immediate that means nothing on lane %u: %08x",
                       lane->e->lane, imm);
        return 0;
    }
    lane->stripe_bytes[lane->imm_taken++ % VB_RECVS] = bytes;
    return 0;
}

/* A lane that it names may still be in progress here: the peer has it already. */
void bny_verbs_wait(struct vb_peer *p, uint32_t imm, uint32_t bytes)
{
    struct vb_ep *e = p->e;

    for (uint32_t m = bny_verbs_lanes_of(imm); m; m &= m - 1)
        if (!e->lanes[__builtin_ctz(m)]) {
            bny_verbs_down(
                e, "sends an immediate that means nothing here: %08x (there is no such lane)",
                imm);
            return;
        }
    if (!p->waiting)
        p->waiting = calloc(VB_RECVS, sizeof *p->waiting);
    if (!p->waiting || p->waits_end - p->waits_first >= VB_RECVS) {
        bny_verbs_down(e, p->waiting ? "sends more than it has credits for"
                                     : "cannot be received from: no memory");
        return;
    }
    if (imm >> 28 == VB_IMM_FAREWELL)
        e->leaving_ns = bny_deadline_in(LEAVING_S);
    p->waiting[p->waits_end++ % VB_RECVS] = (struct vb_arrival){ imm, bytes };
}

int bny_verbs_may_end(const struct vb_ep *e)
{
    return !e->leaving_ns || e->left || bny_deadline_passed(e->leaving_ns);
}

/* Have all stripes of the first message in the queue arrived? */
static int is_whole(const struct vb_peer *p)
{
    for (uint32_t m = bny_verbs_lanes_of(p->waiting[p->waits_first % VB_RECVS].imm); m;
         m &= m - 1) {
        const struct vb_lane *l = p->e->lanes[__builtin_ctz(m)]->conn;

        if (!l || l->imm_taken == l->stripes_used)
            return 0;
    }
    return 1;
}

int bny_verbs_poll_waiting(struct vb_peer *p, struct bny_event *ev, int n)
{
    int got = 0;

    while (got < n && p->waits_first != p->waits_end && !p->first->dead && is_whole(p)) {
        struct vb_arrival a = p->waiting[p->waits_first++ % VB_RECVS];
        uint32_t lanes = bny_verbs_lanes_of(a.imm), kind = a.imm >> 28;

        for (uint32_t m = lanes; m; m &= m - 1) {
            struct vb_lane *l = p->e->lanes[__builtin_ctz(m)]->conn;
            uint32_t bytes = l->stripe_bytes[l->stripes_used++ % VB_RECVS];

            if (!bytes || !a.bytes) /* some of it came apart from its immediate */
                a.bytes = kind == VB_IMM_EAGER ? a.bytes : 0;
            else if (kind != VB_IMM_EAGER) /* of a put: its data are elsewhere */
                a.bytes = bytes > UINT32_MAX - a.bytes ? UINT32_MAX : a.bytes + bytes;
        }
        if (lanes)
            a.imm &= ~(((1u << VB_LANES) - 1) << VB_LANES_AT);
        got += bny_verbs_message(p, a.imm, a.bytes, &ev[got]);
    }
    return got;
}

/* ---- polling ---- */

void bny_verbs_lane_opened(struct vb_ep *lane)
{
    lane->main->lanes_open |= 1u << lane->lane;
}

static void sweep(const struct vb_lane *c)
{
    if (c && c->cq)
        bny_verbs_cq_sweep(c->cq);
}

static void poll_lane(struct vb_lane *l)
{
    struct bny_event none;
    struct ibv_wc wc;

    while (!l->dead && bny_verbs_cq_next(l, &wc))
        bny_verbs_complete(l, &wc, &none);
    if (l->overrun && !l->dead)
        bny_verbs_down(l->e, "sends more than it has credits for");
    if (l->dead || l->reported == l->done)
        return;
    l->imm_done =
        l->sent[(l->done - 1) % VB_SENDS].seq - !l->sent[(l->done - 1) % VB_SENDS].has_imm;
    l->reported = l->done;
    if (l->copies)
        bny_verbs_copies_drop(l);
}

void bny_verbs_poll_lanes(struct vb_ep *e)
{
    const struct vb_lane *c = e->conn;

    for (uint32_t k = 1; k < e->nlanes && !e->down; k++) {
        struct vb_lane *l = e->lanes[k] ? e->lanes[k]->conn : NULL;

        if (!l || l->dead)
            continue;
        if (e->lanes[k]->gone) { /* its earlier input */
            sweep(l);
            sweep(c);
        }
        if (l->cq)
            poll_lane(l);
        if (l->dead)
            return;
        /* the first lane's input so far was processed: it may have had a farewell */
        if (e->lanes[k]->gone && (!c || c->lost || !bny_verbs_cq_has(c)) &&
            bny_verbs_may_end(e)) {
            e->lanes[k]->gone = 0;
            bny_verbs_lost(l, "closed its connection to device %s", l->rail->at);
        }
        if (l->lost && !l->dead && l->cq && bny_verbs_heard_out(l))
            bny_verbs_lane_close(l);
    }
}

int bny_verbs_lanes_ready(const struct vb_ep *e)
{
    const struct vb_lane *c = e->conn;
    int ready =
        c && !c->dead && c->peer->waits_first != c->peer->waits_end && is_whole(c->peer);

    for (uint32_t k = 1; k < e->nlanes && !ready; k++) {
        const struct vb_lane *l = e->lanes[k] ? e->lanes[k]->conn : NULL;

        if (!l || l->dead || !l->has_qp)
            continue;
        ready = e->lanes[k]->gone || bny_verbs_cq_has(l) || l->drained;
    }
    return ready;
}
