/* SPDX-License-Identifier: BSD-3-Clause */
/* The sending half of loop's reliability, and the queue of events. */
#include "transport/loop/reliable.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* ---- events ---- */

int bny_loop_push_event(struct loop_ep *e, const struct bny_event *ev)
{
    struct queued_event *q = malloc(sizeof *q);

    if (!q)
        return -1;
    q->ev = *ev;
    q->next = NULL;
    *e->events_tail = q;
    e->events_tail = &q->next;
    e->nevents++;
    return 0;
}

int bny_loop_pop_events(struct loop_ep *e, struct bny_event *ev, int n)
{
    int got = 0;

    while (got < n && e->events) {
        struct queued_event *q = e->events;

        ev[got++] = q->ev;
        e->events = q->next;
        e->nevents--;
        free(q);
    }
    if (!e->events)
        e->events_tail = &e->events;
    return got;
}

/* ---- sending ---- */

/* Removes an acknowledged message from the channel; *at is its place in the list. */
static void finish_out(struct loop_ep *e, struct tx_channel *c, struct bny_loop_out **at)
{
    struct bny_loop_out *out = *at;
    struct bny_event ev = { .kind = BNY_EV_SENT, .ep = &e->ep, .cookie = out->cookie };

    if (out->borrowed && bny_loop_push_event(e, &ev) != 0)
        return; /* no memory now: it stays until the next acknowledgement */
    *at = out->next;
    if (!*at)
        c->tail = at;
    e->unacked--;
    bny_loop_retire(out);
}

void bny_loop_take_ack(struct loop_ep *e, const struct bny_loop_packet *p)
{
    struct tx_channel *c = &e->tx[p->chan];

    for (struct bny_loop_out **at = &c->head; *at;) {
        struct bny_loop_out *out = *at;
        uint64_t beyond = out->seq - p->cum;

        if (out->seq < p->cum || (beyond < BNY_LOOP_WINDOW && (p->bits >> beyond & 1)))
            finish_out(e, c, at);
        if (*at == out)
            at = &out->next;
    }
}

static void transmit(struct loop_ep *e, struct bny_loop_out *out)
{
    struct loop_tp *t = tp_of(&e->ep);
    struct bny_loop_packet p = { .out = out, .chan = out->hdr.chan };

    out->sent_at = e->polls;
    bny_loop_transmit(t->fabric, t->tp.rank, e->ep.peer, &p);
}

void bny_loop_retransmit(struct loop_ep *e)
{
    for (int chan = 0; chan < BNY_CHANNELS; chan++)
        for (struct bny_loop_out *out = e->tx[chan].head; out; out = out->next)
            if (out->flying == 0 && e->polls - out->sent_at > out->rto) {
                if (out->rto < 1024)
                    out->rto *= 2;
                transmit(e, out);
            }
}

/* The peer will acknowledge nothing any more: returns all borrowed memory to the caller. */
void bny_loop_finish_all(struct loop_ep *e)
{
    for (int chan = 0; chan < BNY_CHANNELS; chan++)
        for (struct tx_channel *c = &e->tx[chan]; c->head;) {
            struct bny_loop_out *out = c->head;

            finish_out(e, c, &c->head);
            if (c->head == out)
                return;
        }
}

/* Returns 0 if a message may be sent on the channel now. */
static int may_send(struct loop_ep *e, const struct bny_hdr *hdr)
{
    struct loop_tp *t = tp_of(&e->ep);
    struct bny_loop_fabric *f = t->fabric;
    struct tx_channel *c = &e->tx[hdr->chan];

    if (f->states[t->tp.rank] != BNY_LOOP_ALIVE)
        return bny_fail(BANYAN_ERANKDEAD, "rank %d was killed by the test", t->tp.rank);
    if (f->states[e->ep.peer] == BNY_LOOP_DEAD)
        return bny_fail(BANYAN_ERANKDEAD, "rank %d is dead: %s", e->ep.peer, e->reason);
    if (f->states[e->ep.peer] == BNY_LOOP_LEFT)
        return bny_fail(BANYAN_ERANKDEAD, "rank %d has left the job", e->ep.peer);
    if (e->unacked >= f->faults.queue_max ||
        (c->head && c->next - c->head->seq >= BNY_LOOP_WINDOW))
        return BNY_AGAIN;
    return 0;
}

static int check_hdr(struct bny_ep *ep, const struct bny_hdr *hdr, uint32_t max)
{
    if (hdr->chan >= BNY_CHANNELS || hdr->len > max)
        return bny_fail(BANYAN_EINVAL,
                        "message to rank %d: channel %u (below %d), %u bytes (at most %u)",
                        ep->peer, hdr->chan, BNY_CHANNELS, hdr->len, max);
    return 0;
}

/* Numbers the message and sends it for the first time. copy is taken, or NULL when buf is
 * borrowed. */
static void launch(struct loop_ep *e, struct bny_loop_out *out, const struct bny_hdr *hdr,
                   const void *buf, void *copy)
{
    struct loop_tp *t = tp_of(&e->ep);
    struct tx_channel *c = &e->tx[hdr->chan];

    out->hdr = *hdr;
    out->buf = buf;
    out->copy = copy;
    out->seq = c->next++;
    out->rto = 8 + 4 * t->fabric->faults.delay_polls_max;
    out->next = NULL;
    *c->tail = out;
    c->tail = &out->next;
    e->unacked++;
    bny_counter_add(&t->tp.messages, 1);
    bny_counter_add(&t->tp.wire_bytes, hdr->len);
    transmit(e, out);
}

static int post(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf, void *cookie,
                int borrow)
{
    struct loop_ep *e = (struct loop_ep *)ep;
    struct loop_tp *t = tp_of(ep);
    struct bny_loop_out *out;
    void *copy = NULL;
    int rc;

    rc = check_hdr(ep, hdr, borrow ? UINT32_MAX : ep->eager_max);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&t->fabric->lock);
    rc = may_send(e, hdr);
    if (rc == 0) {
        out = calloc(1, sizeof *out);
        if (!borrow && hdr->len)
            copy = malloc(hdr->len);
        if (!out || (!borrow && hdr->len && !copy)) {
            free(out);
            rc = bny_fail(BANYAN_ENOMEM, "no memory for a message of %u bytes", hdr->len);
        } else {
            if (copy) {
                memcpy(copy, buf, hdr->len);
                bny_tp_staged(&t->tp, hdr->len);
            }
            out->cookie = cookie;
            out->borrowed = (uint8_t)borrow;
            launch(e, out, hdr, borrow ? buf : copy, copy);
        }
    }
    pthread_mutex_unlock(&t->fabric->lock);
    return rc;
}

int bny_loop_eager(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf)
{
    return post(ep, hdr, buf, NULL, 0);
}

int bny_loop_send(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf, void *cookie)
{
    return post(ep, hdr, buf, cookie, 1);
}

int bny_loop_reserve(struct bny_ep *ep, uint32_t cap, struct bny_slot *slot)
{
    struct loop_tp *t = tp_of(ep);
    struct bny_hdr probe = { .len = cap };
    int rc = check_hdr(ep, &probe, ep->slot_max);

    if (rc != 0)
        return rc;
    pthread_mutex_lock(&t->fabric->lock);
    rc = may_send((struct loop_ep *)ep, &probe);
    if (rc == 0 && link_to(t, ep->peer)->slots_free == 0)
        rc = BNY_AGAIN;
    if (rc == 0) {
        slot->mem = malloc(BNY_LOOP_SLOT_MAX);
        slot->impl = calloc(1, sizeof(struct bny_loop_out)); /* so that commit cannot fail */
        slot->cap = BNY_LOOP_SLOT_MAX;
        slot->index = 0;
        if (slot->mem && slot->impl) {
            link_to(t, ep->peer)->slots_free--;
        } else {
            free(slot->mem);
            free(slot->impl);
            rc = bny_fail(BANYAN_ENOMEM, "no memory for a send slot of %u bytes",
                          BNY_LOOP_SLOT_MAX);
        }
    }
    pthread_mutex_unlock(&t->fabric->lock);
    return rc;
}

void bny_loop_cancel(struct bny_ep *ep, struct bny_slot *slot)
{
    struct loop_tp *t = tp_of(ep);

    pthread_mutex_lock(&t->fabric->lock);
    link_to(t, ep->peer)->slots_free++;
    pthread_mutex_unlock(&t->fabric->lock);
    free(slot->mem);
    free(slot->impl);
}

int bny_loop_commit(struct bny_ep *ep, struct bny_slot *slot, const struct bny_hdr *hdr)
{
    struct loop_ep *e = (struct loop_ep *)ep;
    struct loop_tp *t = tp_of(ep);
    struct bny_loop_out *out = slot->impl;
    int rc = check_hdr(ep, hdr, slot->cap);

    if (rc == 0) {
        pthread_mutex_lock(&t->fabric->lock);
        rc = may_send(e, hdr);
        if (rc == 0 ||
            rc == BNY_AGAIN) { /* a reservation is beyond the window, but within slots */
            out->from_slot = 1;
            launch(e, out, hdr, slot->mem, slot->mem);
            rc = 0;
        }
        pthread_mutex_unlock(&t->fabric->lock);
    }
    if (rc != 0)
        bny_loop_cancel(ep, slot);
    return rc;
}
