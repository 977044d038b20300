/* SPDX-License-Identifier: BSD-3-Clause */
/* Lanes: each has a queue pair, the requests in flight on it, recorded until the peer has them,
 * and the stripes that arrive on it. verbs_conn.c makes and ends lanes, lane.c replaces their
 * queue pairs, verbs_path.c and stripe.c send on them, arrive.c handles their completions. */
#ifndef BNY_VERBS_LANE_H
#define BNY_VERBS_LANE_H

#include "transport/verbs/peer.h"

/* A send request in flight, with all that is needed to post it again: we own its memory until
 * the peer has it. */
struct vb_sent {
    void *cookie; /* of the message that owns the memory it reads */
    uint64_t remote;
    struct ibv_sge sge[2];
    uint32_t rkey, imm;
    uint32_t seq;     /* number of its immediate, or of the next one */
    uint16_t stripes; /* bits of the lanes that carry stripes of its message */
    uint8_t nsge;
    uint8_t has_imm : 1;
    uint8_t tells : 1;   /* SENT(cookie) is due once it and its stripes are done */
    uint8_t signals : 1; /* its completion is needed */
};
_Static_assert(sizeof(struct vb_sent) == 64, "a line of the cache");

/* Replaces an immediate on devices without (iWARP). */
struct vb_note {
    uint32_t imm, bytes; /* imm: big endian, as immediates are; bytes: of the preceding write */
};

struct vb_keys { /* of a window: one for each rail, as in struct bny_window */
    uint64_t low, high;
    uint32_t segment;
};

/* The connection of one lane: a queue pair, and all that is in flight on it. Messages, slots
 * and credits are in its peer. */
struct vb_lane {
    struct vb_tp *t;
    struct vb_ep *e;      /* NULL: incoming, not authenticated */
    struct vb_peer *peer; /* NULL: not prepared yet */
    struct vb_rail *rail; /* of its queue pair */
    struct rdma_cm_id *id;
    struct vb_cq *cq; /* of its rail, with a place for its queue pair; NULL: none */
    uint32_t qp_num;  /* by which completions find it; 0: none yet */
    int has_qp, active, established, dead;
    int making;        /* in t->half, or e->trial */
    int another;       /* passive: replaces the queue pair of an open lane */
    int notify;        /* no immediates: uses notes */
    int lost, drained; /* the queue pair broke; and all its completions were processed */
    uint64_t drain_ns;
    uint32_t losses; /* consecutive ones */
    uint32_t epoch;  /* queue pairs before this one */
    uint32_t inline_max;
    struct vb_request request;
    uint8_t nonce[16]; /* of the accepting side */
    struct page *page; /* verbs_conn.c */
    struct ibv_mr *mr_page;
    uint64_t deadline_ns, born_ns;
    struct vb_lane *next; /* half open, or dead */
    uint32_t rkey;        /* for the peer's slab on this device */
    /* sending */
    struct vb_sent *sent; /* [VB_SENDS] */
    uint32_t posted, to_post, done,
        reported;           /* send requests; reported <= done <= to_post <= posted */
    uint32_t imm_sent;      /* immediates since the connection began */
    uint32_t imm_done;      /* immediates that the peer's device has */
    uint32_t stripes_told;  /* of the completed stripes: counted by their messages' SENT */
    uint32_t ended;         /* requests that a broken queue pair no longer holds */
    struct vb_copy *copies; /* recall.c */
    struct vb_keys *keys;   /* [VB_SENDS] of puts in flight; NULL: one rail */
    /* receiving */
    uint32_t recvs_posted, recvs_due; /* due: requests to post again */
    uint32_t share;         /* of the shared receive queue, in requests; 0: has none */
    uint32_t imm_taken;     /* immediates received since the connection began */
    uint32_t stripes_used;  /* stripes among them that messages have used; lanes other than the
                               first */
    uint32_t *stripe_bytes; /* [VB_RECVS] */
    int hello_seen;
    struct ibv_wc *stash; /* completions not processed yet: cq.c */
    uint32_t stashed, stash_at;
    int overrun; /* more of them arrived than credits allow */
};

/* verbs_conn.c */
struct vb_lane *bny_verbs_conn_new(struct vb_tp *t, struct vb_ep *e, struct rdma_cm_id *id,
                                   int active);
/* p: the peer that it is a lane of; NULL: makes one. */
int bny_verbs_conn_prepare(struct vb_lane *c, struct vb_peer *p, int resumes);
void bny_verbs_made(struct vb_lane *c);
void bny_verbs_page_free(struct vb_lane *c);
struct vb_hello *bny_verbs_hello_in(const struct vb_lane *c);
struct vb_hello *bny_verbs_hello_out(const struct vb_lane *c);
struct vb_note *bny_verbs_notes_in(const struct vb_lane *c);  /* [VB_RECVS] */
struct vb_note *bny_verbs_notes_out(const struct vb_lane *c); /* [VB_SENDS] */
void bny_verbs_conn_free(struct vb_lane *c);
/* Ends a connection: it delivers neither SENT nor messages any more. */
void bny_verbs_conn_close(struct vb_lane *c);
/* Marks the peer as down. A lane that never opened is given up instead. */
void bny_verbs_down(struct vb_ep *e, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Ends the connection for lack of memory for its input: not the peer's fault, so it does not
 * count as gone. */
void bny_verbs_deaf(struct vb_ep *e);

/* verbs_errors.c */
/* Does errno err concern a resource of this process rather than the peer? */
int bny_verbs_is_lack(int err);
/* This process lacks a resource that a connection needs, and fails. */
void bny_verbs_lacks(struct vb_tp *t, int err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* It cannot answer a peer, which will retry: it fails if this lasts. */
void bny_verbs_starves(struct vb_tp *t, int err, const char *why);
int bny_verbs_lack(const struct vb_tp *t); /* 0, or the failure that poll returns */

/* cq.c */
/* Polls each completion queue once and sorts completions by lane. A rail whose queue fails is
 * down. */
void bny_verbs_cqs_poll(struct vb_tp *t);
int bny_verbs_cqs_arm(struct vb_tp *t); /* requests events; 1: completions came meanwhile */
void bny_verbs_cqs_disarm(struct vb_tp *t);
int bny_verbs_cq_is_of(const struct vb_rail *rail, const struct ibv_cq *cq);
void bny_verbs_cqs_close(struct vb_rail *rail); /* after all queue pairs */
/* Polls until empty. Returns the number of completions. */
uint32_t bny_verbs_cq_sweep(struct vb_cq *q);
int bny_verbs_cq_next(struct vb_lane *c,
                      struct ibv_wc *wc); /* 1: the oldest one for this lane */
static inline int bny_verbs_cq_has(const struct vb_lane *c)
{
    return c->stash_at != c->stashed;
}
/* Reserves a place in a queue, before c's queue pair is made. Returns 0; -1 with errno. */
int bny_verbs_cq_join(struct vb_lane *c);
uint32_t bny_verbs_cq_least(const struct vb_lane *c); /* entries that its queue needs */
struct ibv_cq *bny_verbs_cq_of(const struct vb_lane *c);
void bny_verbs_cq_begin(struct vb_lane *c);                       /* the queue pair is made */
void bny_verbs_cq_pass(struct vb_lane *from, struct vb_lane *to); /* the queue pair moves */
void bny_verbs_cq_forget(struct vb_lane *c);                      /* drops its completions */
/* Its queue pair was destroyed, or never made. */
void bny_verbs_cq_leave(struct vb_lane *c);

/* current state */
int bny_verbs_port_is_down(const struct vb_tp *t, const struct vb_rail *rail); /* now */
/* 1: its broken queue pair delivers no more completions. */
int bny_verbs_heard_out(struct vb_lane *c);
/* Its queue pair is unusable: it gets another one, or its peer is down. */
void bny_verbs_lost(struct vb_lane *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The same for a working queue pair, as there is a better one on this rail. */
void bny_verbs_leave(struct vb_lane *c, const struct vb_rail *rail);
int bny_verbs_serves(const struct vb_ep *e); /* it has a queue pair that is not broken */
void bny_verbs_lane_close(struct vb_lane *c);
void bny_verbs_unpark(const struct vb_fn *fn,
                      struct vb_rail *rail); /* the port is surely up, or everything ends */
void bny_verbs_resume(struct vb_lane *c, struct vb_lane *fresh, const struct vb_hello *h);

/* recall.c */
void bny_verbs_copies_drop(struct vb_lane *c); /* those whose requests are done */

/* verbs_path.c */
void bny_verbs_record(struct vb_lane *c, struct vb_sent s); /* bny_verbs_post() posts it */
int bny_verbs_has_room(const struct vb_lane *c, uint32_t requests);
int bny_verbs_may_have_room(const struct vb_tp *t, uint32_t requests);
int bny_verbs_post_recvs(struct vb_lane *c, uint32_t n);
int bny_verbs_post_hello(struct vb_lane *c, const struct vb_hello *h);
/* Sends control data for the peer's transport in an eager slot. Returns 0, BNY_AGAIN, or an
 * error. */
int bny_verbs_tell_ahead(struct vb_lane *c, enum vb_imm kind, const void *what, size_t len);
int bny_verbs_post(struct vb_lane *c);
/* Sends an immediate without data. Returns 0, BNY_AGAIN, or an error. */
int bny_verbs_tell(struct vb_lane *c, enum vb_imm kind, uint32_t value);
/* arrive.c */
/* Events of one endpoint. */
int bny_verbs_poll_conn(struct vb_ep *e, struct bny_event *ev, int n);
int bny_verbs_complete(struct vb_lane *c, const struct ibv_wc *wc, struct bny_event *ev);

/* Bits of the lanes that carry stripes of an immediate's message. */
static inline uint32_t bny_verbs_lanes_of(uint32_t imm)
{
    uint32_t kind = imm >> 28;

    if (kind != VB_IMM_EAGER && kind != VB_IMM_BULK && kind != VB_IMM_LONG &&
        kind != VB_IMM_PART)
        return 0;
    return (imm & 0xfffffff) >> VB_LANES_AT;
}

/* stripe.c */
struct vb_span { /* source and target of a write */
    const char *from;
    const struct vb_region *user; /* contains from; NULL: our slab */
    void *cookie;                 /* of the user's memory */
    uint64_t to;                  /* in the peer's slab, or its window */
    const struct bny_window *win; /* NULL: the slab */
    uint32_t len;
};
/* Records stripes on further lanes. Returns bits of these lanes, 0: none; *first: bytes left,
 * counted from the beginning. */
uint32_t bny_verbs_stripe(struct vb_lane *c, const struct vb_span *span, uint32_t *first);
int bny_verbs_post_lanes(struct vb_lane *c,
                         uint32_t lanes); /* posts the records there and here */
void bny_verbs_record_put(struct vb_lane *c, struct vb_sent s, const struct bny_window *win);
uint32_t bny_verbs_window_key(const struct vb_lane *c, const struct bny_window *win);
/* Registers memory that peers write to. NULL: errno is set. */
struct ibv_mr *bny_verbs_register(const struct vb_tp *t, const struct vb_rail *rail, void *at,
                                  size_t bytes);
void bny_verbs_rekey(struct vb_lane *c,
                     uint32_t from); /* adapts requests from there on to another rail */
/* The same for the first lane, if the peer has another slab, at addr. */
void bny_verbs_relocate(struct vb_lane *c, uint32_t from, uint64_t addr);
int bny_verbs_stripes_due(
    const struct vb_lane *c,
    uint32_t lanes); /* 1: the oldest such message has unfinished stripes */
/* Are the stripes of the oldest such message done? Then they are counted. */
int bny_verbs_stripes_done(struct vb_lane *c, uint32_t lanes);
int bny_verbs_stripe_arrived(struct vb_lane *lane, uint32_t imm, uint32_t bytes);
int bny_verbs_may_end(
    const struct vb_ep *e); /* 0: a closed connection to this peer may be a leave in order */
void bny_verbs_lane_opened(struct vb_ep *lane);
void bny_verbs_poll_lanes(struct vb_ep *e);
int bny_verbs_lanes_ready(const struct vb_ep *e); /* 1: there is something to do */

#endif
