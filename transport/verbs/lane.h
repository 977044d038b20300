/* SPDX-License-Identifier: BSD-3-Clause */
/* Lanes: a queue pair each, the requests that are under way on it, recorded until the peer has
 * them, and the stripes that it brings. conn.c makes and ends them, lane.c gives them another
 * queue pair, path.c and stripe.c send on them, arrive.c takes what they complete. */
#ifndef BNY_VERBS_LANE_H
#define BNY_VERBS_LANE_H

#include "transport/verbs/peer.h"

/* A send request under way, and all it takes to post it once more: its memory is ours until the
 * peer has it. */
struct vb_sent {
    void *cookie; /* of the message whose memory it reads */
    uint64_t remote;
    struct ibv_sge sge[2];
    uint32_t rkey, imm;
    uint32_t seq;     /* number of its immediate, or of the next one */
    uint16_t stripes; /* lanes that carry some of its message, in bits */
    uint8_t nsge;
    uint8_t has_imm : 1;
    uint8_t tells : 1;   /* SENT(cookie) is due when it and its stripes are done */
    uint8_t signals : 1; /* its end is of interest */
};
_Static_assert(sizeof(struct vb_sent) == 64, "a line of the cache");

/* Takes the place of an immediate on devices without (iWARP). */
struct vb_note {
    uint32_t imm, bytes; /* imm: big endian, as immediates are; bytes: of the write before it */
};

struct vb_keys { /* of a window: one a rail, as struct bny_window has them */
    uint64_t low, high;
    uint32_t segment;
};

/* The connection of one lane: a queue pair, and all that is under way on it. What is about
 * messages, slots and credits is in its peer. */
struct vb_lane {
    struct vb_tp *t;
    struct vb_ep *e;      /* NULL: incoming, not proven */
    struct vb_peer *peer; /* NULL: not prepared yet */
    struct vb_rail *rail; /* that its queue pair is on */
    struct rdma_cm_id *id;
    struct vb_cq *cq; /* of its rail, where its queue pair has a place; NULL: none */
    uint32_t qp_num;  /* by which its completions are known; 0: it gets none yet */
    int has_qp, active, established, dead;
    int making;        /* in t->half, or e->trial */
    int another;       /* passive: was made for a lane that is open */
    int notify;        /* no immediates: notes */
    int lost, drained; /* the queue pair broke; and nothing comes from it any more */
    uint64_t drain_ns;
    uint32_t losses; /* in a row */
    uint32_t epoch;  /* queue pairs before this one */
    uint32_t inline_max;
    struct vb_request request;
    uint8_t nonce[16]; /* of the accepting side */
    struct page *page; /* conn.c */
    struct ibv_mr *mr_page;
    uint64_t deadline_ns, born_ns;
    struct vb_lane *next; /* half open, or dead ones */
    uint32_t rkey;        /* of the peer's slab, for this device */
    /* sending */
    struct vb_sent *sent; /* [VB_SENDS] */
    uint32_t posted, to_post, done,
        reported;      /* send requests; reported <= done <= to_post <= posted */
    uint32_t imm_sent; /* immediates, since the connection began */
    uint32_t imm_done; /* of these the peer's device has */
    uint32_t
        stripes_told; /* of the stripes that are done: accounted for by their messages' SENT */
    uint32_t ended;   /* requests that a queue pair which broke does not keep any more */
    struct vb_copy *copies; /* recall.c */
    struct vb_keys *keys;   /* [VB_SENDS] of puts under way; NULL: there is one rail */
    /* receiving */
    uint32_t recvs_posted, recvs_due; /* due: requests to be posted again */
    uint32_t share;                   /* of the shared receive queue, in requests; 0: of none */
    uint32_t imm_taken;               /* immediates that came, since the connection began */
    uint32_t stripes_used;  /* of them, stripes that their messages have; lanes but the first */
    uint32_t *stripe_bytes; /* [VB_RECVS] */
    int hello_seen;
    struct ibv_wc *stash; /* completions that nobody looked at yet: cq.c */
    uint32_t stashed, stash_at;
    int overrun; /* there were more of them than credits allow */
};

/* conn.c */
struct vb_lane *bny_verbs_conn_new(struct vb_tp *t, struct vb_ep *e, struct rdma_cm_id *id,
                                   int active);
/* p: that it is a lane of; NULL: a new one, and its own. */
int bny_verbs_conn_prepare(struct vb_lane *c, struct vb_peer *p, int resumes);
void bny_verbs_made(struct vb_lane *c);
void bny_verbs_page_free(struct vb_lane *c);
struct vb_hello *bny_verbs_hello_in(const struct vb_lane *c);
struct vb_hello *bny_verbs_hello_out(const struct vb_lane *c);
struct vb_note *bny_verbs_notes_in(const struct vb_lane *c);  /* [VB_RECVS] */
struct vb_note *bny_verbs_notes_out(const struct vb_lane *c); /* [VB_SENDS] */
void bny_verbs_conn_free(struct vb_lane *c);
/* Ends a connection: no SENT, no message comes from it any more. */
void bny_verbs_conn_close(struct vb_lane *c);
/* The peer is. A lane that never was: it is done without. */
void bny_verbs_down(struct vb_ep *e, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Ends the connection for want of memory to take what came over it: the peer is not at fault,
 * and is not said to be gone. */
void bny_verbs_deaf(struct vb_ep *e);

/* lack.c */
/* Does errno err say something of this process, and nothing of the peer? */
int bny_verbs_is_lack(int err);
/* This process lacks something that a connection needs, and fails by that. */
void bny_verbs_lacks(struct vb_tp *t, int err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* It cannot answer a peer, who will ask again: it fails where that lasts. */
void bny_verbs_starves(struct vb_tp *t, int err, const char *why);
int bny_verbs_lack(const struct vb_tp *t); /* 0, or that failure: poll's */

/* cq.c */
/* Polls each completion queue once; puts what came before its lane. A rail whose queue fails is
 * down. */
void bny_verbs_cqs_poll(struct vb_tp *t);
int bny_verbs_cqs_arm(struct vb_tp *t); /* asks for events; 1: something came meanwhile */
void bny_verbs_cqs_disarm(struct vb_tp *t);
int bny_verbs_cq_is_of(const struct vb_rail *rail, const struct ibv_cq *cq);
void bny_verbs_cqs_close(struct vb_rail *rail); /* after all queue pairs */
/* All that is there now. Returns how many completions. */
uint32_t bny_verbs_cq_sweep(struct vb_cq *q);
int bny_verbs_cq_next(struct vb_lane *c, struct ibv_wc *wc); /* 1: the oldest for this lane */
static inline int bny_verbs_cq_has(const struct vb_lane *c)
{
    return c->stash_at != c->stashed;
}
/* A place in a queue, before c's queue pair is made. 0; -1 with errno. */
int bny_verbs_cq_join(struct vb_lane *c);
uint32_t bny_verbs_cq_least(const struct vb_lane *c); /* entries that its queue must have */
struct ibv_cq *bny_verbs_cq_of(const struct vb_lane *c);
void bny_verbs_cq_begin(struct vb_lane *c);                       /* it is made */
void bny_verbs_cq_pass(struct vb_lane *from, struct vb_lane *to); /* the queue pair does */
void bny_verbs_cq_forget(struct vb_lane *c);                      /* all that came for it */
/* Its queue pair was destroyed, or never made. */
void bny_verbs_cq_leave(struct vb_lane *c);

/* lane.c */
int bny_verbs_port_is_down(const struct vb_tp *t, const struct vb_rail *rail); /* now */
/* 1: nothing comes from its queue pair, which broke, any more. */
int bny_verbs_heard_out(struct vb_lane *c);
/* Its queue pair is of no use any more. It gets another one, or its peer is down. */
void bny_verbs_lost(struct vb_lane *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The same of a queue pair that serves, because there is a better one on this rail. */
void bny_verbs_leave(struct vb_lane *c, const struct vb_rail *rail);
int bny_verbs_serves(const struct vb_ep *e); /* it has a queue pair that did not break */
void bny_verbs_lane_close(struct vb_lane *c);
void bny_verbs_unpark(const struct vb_fn *fn,
                      struct vb_rail *rail); /* the port is up for certain, or all ends */
void bny_verbs_resume(struct vb_lane *c, struct vb_lane *fresh, const struct vb_hello *h);

/* recall.c */
void bny_verbs_copies_drop(struct vb_lane *c); /* those whose requests are done */

/* path.c */
void bny_verbs_record(struct vb_lane *c,
                      struct vb_sent s); /* to be posted by bny_verbs_post() */
int bny_verbs_has_room(const struct vb_lane *c, uint32_t requests);
int bny_verbs_may_have_room(const struct vb_tp *t, uint32_t requests);
int bny_verbs_post_recvs(struct vb_lane *c, uint32_t n);
int bny_verbs_post_hello(struct vb_lane *c, const struct vb_hello *h);
/* In an eager slot, for the transport over there. 0, BNY_AGAIN, or an error. */
int bny_verbs_tell_ahead(struct vb_lane *c, enum vb_imm kind, const void *what, size_t len);
int bny_verbs_post(struct vb_lane *c);
/* An immediate without data. 0, BNY_AGAIN, or an error. */
int bny_verbs_tell(struct vb_lane *c, enum vb_imm kind, uint32_t value);
/* arrive.c */
/* Events of one endpoint. */
int bny_verbs_poll_conn(struct vb_ep *e, struct bny_event *ev, int n);
int bny_verbs_complete(struct vb_lane *c, const struct ibv_wc *wc, struct bny_event *ev);

/* Lanes that carry stripes of what an immediate tells of; bits. */
static inline uint32_t bny_verbs_lanes_of(uint32_t imm)
{
    uint32_t kind = imm >> 28;

    if (kind != VB_IMM_EAGER && kind != VB_IMM_BULK && kind != VB_IMM_LONG &&
        kind != VB_IMM_PART)
        return 0;
    return (imm & 0xfffffff) >> VB_LANES_AT;
}

/* stripe.c */
struct vb_span { /* what is to be written where */
    const char *from;
    const struct vb_region *user; /* that from is in; NULL: our slab */
    void *cookie;                 /* of the user's memory */
    uint64_t to;                  /* in the peer's slab, or its window */
    const struct bny_window *win; /* NULL: the slab */
    uint32_t len;
};
/* Records stripes on further lanes. Returns these lanes in bits, 0: none; *first: bytes from
 * the beginning that are left. */
uint32_t bny_verbs_stripe(struct vb_lane *c, const struct vb_span *span, uint32_t *first);
int bny_verbs_post_lanes(struct vb_lane *c,
                         uint32_t lanes); /* what was recorded there and here */
void bny_verbs_record_put(struct vb_lane *c, struct vb_sent s, const struct bny_window *win);
uint32_t bny_verbs_window_key(const struct vb_lane *c, const struct bny_window *win);
/* Memory that peers write to. NULL: errno says why. */
struct ibv_mr *bny_verbs_register(const struct vb_tp *t, const struct vb_rail *rail, void *at,
                                  size_t bytes);
void bny_verbs_rekey(struct vb_lane *c,
                     uint32_t from); /* requests from there on, for another rail */
/* The same of the first lane, for another slab of the peer, at addr. */
void bny_verbs_relocate(struct vb_lane *c, uint32_t from, uint64_t addr);
int bny_verbs_stripes_due(
    const struct vb_lane *c,
    uint32_t lanes); /* 1: those of the oldest such message are not all done */
/* Are the stripes of the oldest such message done? Then they are accounted for. */
int bny_verbs_stripes_done(struct vb_lane *c, uint32_t lanes);
int bny_verbs_stripe_arrived(struct vb_lane *lane, uint32_t imm, uint32_t bytes);
int bny_verbs_may_end(const struct vb_ep *e); /* 0: a closed connection of this peer's may be
                                                 its leaving in order */
void bny_verbs_lane_opened(struct vb_ep *lane);
void bny_verbs_poll_lanes(struct vb_ep *e);
int bny_verbs_lanes_ready(const struct vb_ep *e); /* 1: there is something to do */

#endif
