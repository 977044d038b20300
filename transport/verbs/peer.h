/* SPDX-License-Identifier: BSD-3-Clause */
/* The state between two ranks, independent of the number of lanes: slabs, credits, message
 * order, and messages longer than a slot. read.c and most of arrive.c use only this; it sends
 * through the first lane. verbs.h has the design. */
#ifndef BNY_VERBS_PEER_H
#define BNY_VERBS_PEER_H

#include "transport/verbs/verbs.h"

struct vb_long { /* an outgoing message longer than a slot */
    struct bny_hdr hdr;
    const char *buf;
    void *cookie;
    uint32_t off;
    char *own; /* a copy of buf from there on, if its owner took it back; or NULL */
    uint32_t from;
    int is_short; /* a message committed behind a long one of its channel: in `own` */
};

struct vb_arrival { /* an immediate that waits for stripes, or for one that does */
    uint32_t imm, bytes;
};

/* Made and freed with the first lane's connection; further lanes, and connections that will
 * replace a queue pair, borrow it. */
struct vb_peer {
    struct vb_tp *t;
    struct vb_ep *e;       /* NULL: not authenticated */
    struct vb_lane *first; /* its owner */
    struct vb_slab shape;
    char *slab; /* [2 * shape.bytes]: receive half, send half */
    struct ibv_mr *mr_in[VB_RAILS], *mr_out[VB_RAILS];
    uint64_t remote_addr; /* the peer's slab */
    /* sending */
    struct bny_hdr shapes_out[VB_SHAPES];
    uint32_t shapes_out_set; /* bits */
    uint32_t shapes_next;
    uint32_t eager_sent, eager_freed, eager_taken; /* counts */
    uint8_t order_out[VB_EAGER_SLOTS];             /* slot of message n: [n % shape.eager] */
    uint32_t eager_most; /* limit of sent minus taken; shape.eager: taking is not reported */
    uint32_t bulk_busy;  /* bits: a message or reservation uses the peer's slot */
    const void *lent[VB_BULK_SLOTS]; /* cookie of user memory that is being written there */
    struct vb_long longs[VB_WAITING];
    uint32_t longs_queued, longs_done;
    /* receiving */
    struct bny_hdr shapes_in[VB_SHAPES];
    uint32_t shapes_in_set;     /* bits */
    struct vb_msg *streaming;   /* a long message with pieces still to come */
    struct vb_arrival *waiting; /* [VB_RECVS], a ring; NULL: one lane */
    uint32_t waits_first, waits_end;
    uint32_t eager_next, eager_told,
        taken_told;      /* counts: received; freed and reported; received and reported */
    uint32_t eager_idle; /* freed, not reported yet */
    uint32_t tell_at[VB_EAGER_TELLS],
        oldest; /* eager_told before each of the latest reports; the oldest of them */
    uint8_t order_in[VB_EAGER_SLOTS];
    uint8_t eager_held[VB_EAGER_SLOTS]; /* 1: received and not released */
    uint32_t bulk_held;                 /* bits: received and not released */
    uint32_t credits_due;               /* bits: released bulk slots not reported yet */
    struct vb_further *further; /* [VB_FURTHER] keys of its regions; NULL: it sent none */
};

struct vb_msg {
    struct bny_msg msg;
    struct vb_peer *peer; /* owner of its slots */
    uint32_t slot;
    int bulk;
    /* of messages longer than a slot, which come in pieces */
    int is_long, dropped; /* dropped: released before it was complete */
    uint32_t parts, parts_freed;
    uint8_t part_slot[VB_BULK_SLOTS];
    char seam[64]; /* bytes around the boundary of two pieces */
    struct vb_msg *all;
};

/* peer.c */
struct vb_peer *bny_verbs_peer_new(struct vb_lane *first); /* NULL: no memory */
/* Registers the slabs with this device. Returns 0; -1 with errno. */
int bny_verbs_peer_register(struct vb_peer *p, const struct vb_fn *fn,
                            const struct vb_rail *rail);
void bny_verbs_peer_deregister(struct vb_peer *p,
                               const struct vb_fn *fn); /* no queue pair is left */
void bny_verbs_peer_free(struct vb_peer *p);
/* Moves eager slots of messages [freed + skip, freed + skip + n), which are free again, before
 * those of the `skip` messages ahead of them: the caller adds n to `freed`, and they are then
 * at the order's end. skip + n <= slots. */
void bny_verbs_free_order(uint8_t *order, uint32_t slots, uint32_t freed, uint32_t skip,
                          uint32_t n);

/* arrive.c */
int bny_verbs_message(struct vb_peer *p, uint32_t imm, uint32_t bytes,
                      struct bny_event *ev); /* 1: *ev is set */

/* stripe.c */
/* Queues a message's immediate that must wait. */
void bny_verbs_wait(struct vb_peer *p, uint32_t imm, uint32_t bytes);
void bny_verbs_further_arrived(struct vb_peer *p,
                               const struct vb_further *f); /* validates it */
int bny_verbs_poll_waiting(struct vb_peer *p, struct bny_event *ev, int n);

/* mem.c */
void bny_verbs_closing_arrived(struct vb_ep *e, const struct vb_closing *c); /* validates it */
void bny_verbs_answer_closing(struct vb_ep *e); /* as far as there is room to send */

/* verbs_path.c */
int bny_verbs_push_longs(struct vb_peer *p);

/* read.c */
char *bny_verbs_bulk_in(const struct vb_peer *p, uint32_t slot); /* address of our bulk slot */
void bny_verbs_give_msg(struct vb_tp *t, struct vb_msg *m);
void bny_verbs_free_bulk(struct vb_peer *p, uint32_t slot);
void bny_verbs_free_eager(struct vb_peer *p, uint32_t slot);
void bny_verbs_tell_credits(struct vb_peer *p); /* as far as there is room to send */

#endif
