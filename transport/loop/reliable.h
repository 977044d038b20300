/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the loop transport: its endpoints, and the interface of loop_send.c for loop.c. The
 * fabric's lock guards everything but tiles. */
#ifndef BNY_LOOP_RELIABLE_H
#define BNY_LOOP_RELIABLE_H

#include "transport/loop/fabric.h"
#include "transport/transport.h"

#define BNY_LOOP_SLOT_MAX 65536u
#define BNY_LOOP_WINDOW   64u /* messages of one channel beyond the oldest unacknowledged one */

struct tx_channel {
    struct bny_loop_out *head, **tail; /* unacknowledged, by number */
    uint64_t next;
};

struct rx_channel {
    uint64_t cum, bits; /* all below cum arrived, and cum + i where bit i is set */
    int ack;            /* an acknowledgement is due */
    void *tile;         /* [TILE] lent by view(), made on first use */
};

struct received {
    struct bny_msg msg;
    struct received *prev, *next; /* all that are lent or wait in events */
    void *bytes;
    int from_slot;
};

struct queued_event {
    struct queued_event *next;
    struct bny_event ev;
};

struct loop_ep {
    struct bny_ep ep;
    struct tx_channel tx[BNY_CHANNELS];
    struct rx_channel rx[BNY_CHANNELS];
    struct received lent; /* list head */
    struct queued_event *events, **events_tail;
    uint64_t polls, rng;
    uint32_t unacked, nevents;
    int down_reported;
    const char *reason;
};

struct loop_tp {
    struct bny_tp tp;
    struct bny_loop_fabric *fabric;
    struct loop_ep **eps; /* [nranks], NULL where not connected */
};

static inline struct loop_tp *tp_of(struct bny_ep *ep)
{
    return (struct loop_tp *)ep->tp;
}

static inline struct bny_loop_link *link_to(struct loop_tp *t, int peer)
{
    return bny_loop_link(t->fabric, t->tp.rank, peer);
}

/* Queues a copy of the event. 0, or -1 without memory. */
int bny_loop_push_event(struct loop_ep *e, const struct bny_event *ev);
int bny_loop_pop_events(struct loop_ep *e, struct bny_event *ev, int n);
/* Removes acknowledged messages from the list. */
void bny_loop_take_ack(struct loop_ep *e, const struct bny_loop_packet *p);
/* Sends lost messages again. */
void bny_loop_retransmit(struct loop_ep *e);
/* The peer will acknowledge nothing any more: returns all borrowed memory to the caller. */
void bny_loop_finish_all(struct loop_ep *e);

int bny_loop_eager(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf);
int bny_loop_send(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf, void *cookie);
int bny_loop_reserve(struct bny_ep *ep, uint32_t cap, struct bny_slot *slot);
int bny_loop_commit(struct bny_ep *ep, struct bny_slot *slot, const struct bny_hdr *hdr);
void bny_loop_cancel(struct bny_ep *ep, struct bny_slot *slot);

#endif
