/* SPDX-License-Identifier: BSD-3-Clause */
/* The loop transport: ranks of one process, packets that may be lost, duplicated, delayed and
 * reordered by a seed (fabric.c), and a small reliability layer on top, so that messages arrive
 * exactly once, in any order.
 *
 * Sender: numbers each message per (peer, channel) and keeps it until acknowledged; sends it
 * again after a number of its own polls, but only if no copy is in flight. Receiver: cumulative
 * number and 64 bits beyond it; acknowledges once per poll and channel. It reads the payload
 * from the sender's memory when the packet arrives, which catches an engine that reuses
 * borrowed memory before SENT.
 *
 * loop_send.c is the sending half. This is the reference, written for reading: it allocates per
 * message, copies under one lock, and uses the contract's freedom on purpose: messages of
 * send() have no data pointer, and with faults view() returns BNY_AGAIN or less than
 * requested. */
#include "transport/loop/loop.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "transport/loop/reliable.h"

#define EAGER_MAX  4096u
#define ZCOPY_MIN  4096u
#define TILE       16384u
#define EVENTS_MAX 64 /* with so many pending events no more data is taken from the fabric */
#define IDLE_NS    100000u

struct loop_address {
    char magic[8];
    uint64_t fabric;
    int32_t rank;
    uint32_t reserved;
};

extern const struct bny_transport_ops bny_loop_ops;

/* ---- receiving ---- */

static void link_lent(struct loop_ep *e, struct received *r)
{
    r->prev = &e->lent;
    r->next = e->lent.next;
    r->next->prev = r;
    e->lent.next = r;
}

/* Makes the message from a packet. Without memory it counts as lost: not marked as arrived. */
static int deliver(struct loop_ep *e, const struct bny_loop_out *out)
{
    struct received *r = calloc(1, sizeof *r);
    struct bny_event ev = { .kind = BNY_EV_MSG, .ep = &e->ep };

    if (!r)
        return -1;
    r->bytes = malloc(out->hdr.len ? out->hdr.len : 1);
    ev.msg = &r->msg;
    if (!r->bytes || bny_loop_push_event(e, &ev) != 0) {
        free(r->bytes);
        free(r);
        return -1;
    }
    if (out->hdr.len)
        memcpy(r->bytes, out->buf, out->hdr.len);
    bny_counter_add(&e->ep.tp->copied_bytes, out->hdr.len);
    r->msg.ep = &e->ep;
    r->msg.hdr = out->hdr;
    r->msg.data = out->borrowed && out->hdr.len ? NULL : r->bytes;
    r->from_slot = out->from_slot;
    link_lent(e, r);
    return 0;
}

static void take_data(struct loop_ep *e, const struct bny_loop_packet *p)
{
    struct rx_channel *c = &e->rx[p->chan];
    uint64_t beyond = p->out->seq - c->cum; /* huge when it is below cum */

    c->ack = 1;
    /* A reservation may be beyond the window: it is sent again once the window has moved. */
    if (p->out->seq < c->cum || beyond >= BNY_LOOP_WINDOW || (c->bits >> beyond & 1))
        return;
    if (deliver(e, p->out) != 0)
        return;
    c->bits |= (uint64_t)1 << beyond;
    while (c->bits & 1) {
        c->bits >>= 1;
        c->cum++;
    }
}

static void send_acks(struct loop_ep *e)
{
    struct loop_tp *t = tp_of(&e->ep);

    for (int chan = 0; chan < BNY_CHANNELS; chan++) {
        struct rx_channel *c = &e->rx[chan];
        struct bny_loop_packet p = { .cum = c->cum, .bits = c->bits, .chan = (uint8_t)chan };

        if (!c->ack)
            continue;
        c->ack = 0;
        bny_loop_transmit(t->fabric, t->tp.rank, e->ep.peer, &p);
    }
}

/* One poll of one endpoint; the fabric's lock is held. */
static void pump(struct loop_ep *e)
{
    struct loop_tp *t = tp_of(&e->ep);
    struct bny_loop_fabric *f = t->fabric;
    enum bny_loop_state peer_state = f->states[e->ep.peer];
    struct bny_loop_packet p;

    if (f->states[t->tp.rank] == BNY_LOOP_DEAD)
        return;
    e->polls++;
    bny_loop_link(f, e->ep.peer, t->tp.rank)->polls++;
    while (bny_loop_take(f, e->ep.peer, t->tp.rank, e->nevents < EVENTS_MAX, &p)) {
        if (p.out) {
            take_data(e, &p);
            bny_loop_drop(p.out);
        } else {
            bny_loop_take_ack(e, &p);
        }
    }
    send_acks(e);
    if (peer_state != BNY_LOOP_ALIVE)
        bny_loop_finish_all(e);
    else
        bny_loop_retransmit(e);
    if (peer_state == BNY_LOOP_DEAD && !e->down_reported) {
        struct bny_event ev = { .kind = BNY_EV_DOWN, .ep = &e->ep, .reason = e->reason };

        e->down_reported = bny_loop_push_event(e, &ev) == 0;
    }
}

/* ---- set-up ---- */

static int loop_create(struct bny_tp **out, const struct bny_tp_config *cfg)
{
    struct bny_loop_fabric *f = cfg->fabric;
    struct loop_tp *t;

    *out = NULL;
    if (!f)
        return bny_fail(BANYAN_ENOTSUP, "transport loop joins ranks of one process only; "
                                        "use shm or tcp between processes");
    if (cfg->rank < 0 || cfg->rank >= cfg->nranks || cfg->nranks > f->nranks)
        return bny_fail(BANYAN_EINVAL, "transport loop: rank %d of %d in a fabric of %d",
                        cfg->rank, cfg->nranks, f->nranks);
    t = calloc(1, sizeof *t);
    if (t)
        t->eps = calloc((size_t)cfg->nranks, sizeof(void *));
    if (!t || !t->eps) {
        free(t);
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for transport loop", cfg->rank);
    }
    t->tp.ops = &bny_loop_ops;
    t->tp.rank = cfg->rank;
    t->tp.nranks = cfg->nranks;
    t->tp.integrity = BNY_NO_WIRE;
    t->tp.eager_max = EAGER_MAX;
    t->tp.slot_max = BNY_LOOP_SLOT_MAX;
    t->fabric = f;
    *out = &t->tp;
    return 0;
}

static void fill_address(struct loop_address *a, const struct bny_loop_fabric *f, int rank)
{
    memset(a, 0, sizeof *a);
    memcpy(a->magic, "bnyloop", 8);
    a->fabric = f->id;
    a->rank = rank;
}

static int loop_address(struct bny_tp *tp, void *blob, size_t cap)
{
    struct loop_address a;

    if (cap < sizeof a)
        return bny_fail(BANYAN_EINVAL, "loop address needs %zu bytes, has %zu", sizeof a, cap);
    fill_address(&a, ((struct loop_tp *)tp)->fabric, tp->rank);
    memcpy(blob, &a, sizeof a);
    return (int)sizeof a;
}

size_t bny_loop_fabric_address(const struct bny_loop_fabric *f, int rank, void *blob)
{
    struct loop_address a;

    fill_address(&a, f, rank);
    memcpy(blob, &a, sizeof a);
    return sizeof a;
}

static int loop_reachable(struct bny_tp *tp, int peer, const void *blob, size_t len)
{
    struct loop_address a;

    fill_address(&a, ((struct loop_tp *)tp)->fabric, peer);
    return len == sizeof a && peer >= 0 && peer < tp->nranks && !memcmp(blob, &a, sizeof a);
}

static int loop_connect(struct bny_tp *tp, int peer, const void *blob, size_t len,
                        struct bny_ep **out)
{
    struct loop_tp *t = (struct loop_tp *)tp;
    struct loop_ep *e;

    *out = NULL;
    if (!loop_reachable(tp, peer, blob, len) || peer == tp->rank || t->eps[peer])
        return bny_fail(BANYAN_EINVAL,
                        "rank %d: peer %d is not another rank of this fabric, or was "
                        "connected before",
                        tp->rank, peer);
    e = calloc(1, sizeof *e);
    if (!e)
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for the endpoint of rank %d",
                        tp->rank, peer);
    e->ep = (struct bny_ep){ .tp = tp,
                             .ops = tp->ops,
                             .peer = peer,
                             .eager_max = EAGER_MAX,
                             .slot_max = BNY_LOOP_SLOT_MAX,
                             .zcopy_min = ZCOPY_MIN };
    for (int c = 0; c < BNY_CHANNELS; c++)
        e->tx[c].tail = &e->tx[c].head;
    e->lent.prev = e->lent.next = &e->lent;
    e->events_tail = &e->events;
    e->rng = t->fabric->faults.seed ^ (uint64_t)(tp->rank * tp->nranks + peer);
    e->reason = "its end of the loop fabric died without a farewell";
    t->eps[peer] = e;
    *out = &e->ep;
    return 0;
}

static void free_ep(struct loop_ep *e)
{
    struct bny_event ev;

    while (bny_loop_pop_events(e, &ev, 1) == 1)
        continue;
    for (struct received *r = e->lent.next; r != &e->lent;) {
        struct received *next = r->next;

        free(r->bytes);
        free(r);
        r = next;
    }
    for (int c = 0; c < BNY_CHANNELS; c++) {
        for (struct bny_loop_out *o = e->tx[c].head; o;) {
            struct bny_loop_out *next = o->next;

            bny_loop_retire(o);
            o = next;
        }
        free(e->rx[c].tile);
    }
    free(e);
}

static void loop_destroy(struct bny_tp *tp)
{
    struct loop_tp *t = (struct loop_tp *)tp;

    if (!t)
        return;
    pthread_mutex_lock(&t->fabric->lock);
    if (t->fabric->states[tp->rank] != BNY_LOOP_LEFT)
        bny_loop_set_state(t->fabric, tp->rank, BNY_LOOP_DEAD);
    for (int i = 0; i < tp->nranks; i++)
        if (t->eps[i])
            free_ep(t->eps[i]);
    pthread_mutex_unlock(&t->fabric->lock);
    free(t->eps);
    free(t);
}

/* Leaves once every message is acknowledged, so that none is lost. */
static int loop_farewell(struct bny_tp *tp)
{
    struct loop_tp *t = (struct loop_tp *)tp;
    uint32_t unacked = 0;

    pthread_mutex_lock(&t->fabric->lock);
    for (int i = 0; i < tp->nranks; i++)
        if (t->eps[i]) {
            pump(t->eps[i]);
            unacked += t->eps[i]->unacked;
        }
    if (unacked == 0)
        bny_loop_set_state(t->fabric, tp->rank, BNY_LOOP_LEFT);
    pthread_mutex_unlock(&t->fabric->lock);
    return unacked == 0 ? 0 : BNY_AGAIN;
}

static int loop_poll(struct bny_tp *tp, struct bny_event *ev, int n)
{
    struct loop_tp *t = (struct loop_tp *)tp;
    int got = 0;

    pthread_mutex_lock(&t->fabric->lock);
    for (int i = 0; i < tp->nranks && got < n; i++)
        if (t->eps[i]) {
            pump(t->eps[i]);
            got += bny_loop_pop_events(t->eps[i], ev + got, n - got);
        }
    pthread_mutex_unlock(&t->fabric->lock);
    return got;
}

static int loop_poll_ep(struct bny_ep *ep, struct bny_event *ev, int n)
{
    struct loop_tp *t = tp_of(ep);
    int got;

    pthread_mutex_lock(&t->fabric->lock);
    pump((struct loop_ep *)ep);
    got = bny_loop_pop_events((struct loop_ep *)ep, ev, n);
    pthread_mutex_unlock(&t->fabric->lock);
    return got;
}

static long loop_view(struct bny_msg *msg, uint32_t off, uint32_t len, void *dst,
                      const void **ptr)
{
    struct loop_ep *e = (struct loop_ep *)msg->ep;
    struct rx_channel *c = &e->rx[msg->hdr.chan];
    const uint8_t *src = (const uint8_t *)((struct received *)msg)->bytes + off;
    uint32_t n = len;

    if (len == 0 || off > msg->hdr.len || len > msg->hdr.len - off)
        return bny_fail(BANYAN_EINVAL, "view of [%u, +%u) in a message of %u bytes", off, len,
                        msg->hdr.len);
    if (tp_of(&e->ep)->fabric->faulty) {
        if (bny_rng_below(&e->rng, 4) == 0)
            return BNY_AGAIN;
        if (n > 64 && bny_rng_below(&e->rng, 2))
            n = 64 * (1 + (uint32_t)bny_rng_below(&e->rng, n / 64));
    }
    if (!dst) {
        if (n > TILE)
            n = TILE;
        if (!c->tile)
            c->tile = malloc(TILE);
        if (!c->tile)
            return bny_fail(BANYAN_ENOMEM, "no memory for a tile");
        dst = c->tile;
    }
    memcpy(dst, src, n);
    bny_counter_add(&e->ep.tp->copied_bytes, n);
    *ptr = dst;
    return (long)n;
}

static void loop_release(struct bny_msg *msg)
{
    struct received *r = (struct received *)msg;
    struct loop_tp *t = tp_of(msg->ep);

    if (r->from_slot) {
        pthread_mutex_lock(&t->fabric->lock);
        bny_loop_link(t->fabric, msg->ep->peer, t->tp.rank)->slots_free++;
        pthread_mutex_unlock(&t->fabric->lock);
    }
    r->prev->next = r->next;
    r->next->prev = r->prev;
    free(r->bytes);
    free(r);
}

/* Nothing wakes a sleeper here, so the sleep is short; retransmission counts polls. */
static uint64_t loop_arm(struct bny_tp *tp, int *fds, int cap, int *nfds)
{
    struct loop_tp *t = (struct loop_tp *)tp;
    uint64_t sleep_ns = IDLE_NS;

    *nfds = 0;
    pthread_mutex_lock(&t->fabric->lock);
    for (int i = 0; i < tp->nranks; i++)
        if (t->eps[i] && (t->eps[i]->events || bny_loop_link(t->fabric, i, tp->rank)->head))
            sleep_ns = 0;
    pthread_mutex_unlock(&t->fabric->lock);
    return sleep_ns;
}

static void loop_disarm(struct bny_tp *tp)
{
}

const struct bny_transport_ops bny_loop_ops = {
    .name = "loop",
    .caps = BNY_TP_UNORDERED | BNY_TP_LOCAL,
    .create = loop_create,
    .address = loop_address,
    .reachable = loop_reachable,
    .connect = loop_connect,
    .destroy = loop_destroy,
    .farewell = loop_farewell,
    .eager = bny_loop_eager,
    .reserve = bny_loop_reserve,
    .commit = bny_loop_commit,
    .cancel = bny_loop_cancel,
    .send = bny_loop_send,
    .poll = loop_poll,
    .poll_ep = loop_poll_ep,
    .view = loop_view,
    .release = loop_release,
    .arm = loop_arm,
    .disarm = loop_disarm,
};
