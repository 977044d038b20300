/* SPDX-License-Identifier: BSD-3-Clause */
/* Matching: which operation a message is for, and the only owner of messages that nobody waits
 * for yet (unexpected messages).
 *
 * A collective is known by its number in the communicator. A message between two ranks is known
 * by (peer, tag, number): sends of one tag to one peer are numbered in their order, and so are
 * receives, so both ends count alike without asking. Counting every tag that was ever used
 * would take memory for ever, so numbers belong to an epoch of (sender, receiver): when a
 * sender sees that all it has sent was received and that it remembers many tags, it forgets
 * them, begins the next epoch at number 0, and says so. The receiver then forgets too; receives
 * that wait already are numbered again, and what they had announced (CTS) is announced again.
 *
 * Messages that a receiver did not ask for take its memory, so they need credit: of a sender,
 * at most BNY_CREDIT units may be on their way or waiting; a unit is a message and each KiB of
 * it. The receiver returns credit in whatever it sends, or by a message of its own. A send
 * without credit waits for credit or for the receiver's CTS, and a receiver that holds much
 * of a sender's credit announces every receive: so tags may be received in any order.
 *
 * All that waits here of a peer is bounded, or it could take all memory: to its share of the
 * memory (bny_kept_max) over all communicators, BNY_KEPT_COST for each message besides what it
 * brings. A correct peer stays far below. Its sends need credit; long data come after CTS, or
 * lie at the sender; CTS and probes are of operations that it has started, which cost it more
 * memory than us. Only short messages of collectives remain in which the sender waits for no
 * rank, such as a broadcast's root: eight million of them.
 *
 * Everything here is guarded by the world's lock. Headers are foreign input. */
#ifndef BNY_COLLECTIVES_MATCH_H
#define BNY_COLLECTIVES_MATCH_H

#include "base/ring.h"
#include "collectives/world/comm.h"

#define BNY_CREDIT     1024u /* units a sender may have outstanding */
#define BNY_KEPT_MAX   (4ull << 30)
#define BNY_KEPT_LEAST (64ull << 20)
#define BNY_KEPT_COST  512u
#define BNY_PAST_SIGS  64 /* signatures of collectives that are remembered */

/* Bytes that may wait of each peer, with so much memory in the host and so many ranks in the
 * job: together they do not take more than there is. */
static inline uint64_t bny_kept_max(uint64_t memory, int nranks)
{
    uint64_t share = memory / (uint64_t)nranks;

    return share > BNY_KEPT_MAX     ? BNY_KEPT_MAX
           : share < BNY_KEPT_LEAST ? BNY_KEPT_LEAST
                                    : share;
}

enum bny_side {
    BNY_SIDE_ALL,     /* a collective */
    BNY_SIDE_SENDS,   /* point to point: it sends, and gets CTS */
    BNY_SIDE_RECEIVES /* it receives */
};

/* An operation's part for matching. */
struct bny_receiver {
    struct bny_receiver *next; /* of a bucket */
    struct bny_link waits;     /* SENDS: for credit */
    struct bny_link changes;   /* to be looked at */
    uint32_t seq;              /* its number */
    uint32_t tag;              /* point to point */
    int32_t peer;              /* point to point; -1: a collective */
    uint16_t epoch;            /* point to point */
    uint8_t side;              /* enum bny_side */
    uint8_t is_open;
    uint8_t is_sent;  /* SENDS: something of it is on its way */
    uint8_t announce; /* RECEIVES: its sender may have no credit */
    uint8_t changed;  /* enum bny_change: bny_match_changed() */
    uint32_t units;
};

/* For rank of n ranks; borrows pool. NULL: no memory. */
struct bny_match *bny_match_create(struct bny_buffer_pool *pool, int n, int rank);
void bny_match_destroy(struct bny_match *m); /* takes NULL */
void bny_match_forget(struct bny_match *m);  /* releases all messages */

/* ---- receivers ---- */

/* Opens the receiver of the next collective, sig. `more`: numbers behind its own that it keeps
 * for later; bny_match_open_kept() opens their receivers. 0 or -BANYAN_ENOMEM. */
int bny_match_open(struct bny_match *m, struct bny_receiver *rc, const struct bny_sig *sig,
                   uint32_t more);
void bny_match_open_kept(struct bny_match *m, struct bny_receiver *rc,
                         const struct bny_sig *sig, uint32_t seq);
/* Numbers seq .. seq + n - 1 will not begin. */
void bny_match_give_up(struct bny_match *m, uint32_t seq, uint32_t n);
/* Of the next message with this tag to or from a peer. 0 or -BANYAN_ENOMEM. */
int bny_match_open_p2p(struct bny_match *m, struct bny_receiver *rc, int peer, uint32_t tag,
                       int is_send, size_t bytes);
/* The messages that came for it before it was opened, in order of arrival, to be handed to it.
 */
struct bny_msg_list bny_match_take(struct bny_match *m, struct bny_receiver *rc);
/* It is over. `received`: point to point, all of its message is here, and the sender's credit
 * may be returned. Idempotent. */
void bny_match_close(struct bny_match *m, struct bny_receiver *rc, int received);
/* The signature of a finished collective; NULL: too long ago. */
const struct bny_sig *bny_match_past(const struct bny_match *m, uint32_t seq);

/* ---- messages ---- */

enum bny_verdict {
    BNY_MATCH_FOUND,   /* *out is its receiver */
    BNY_MATCH_EARLY,   /* nobody waits for it yet: bny_match_keep() */
    BNY_MATCH_PAST,    /* its receiver is finished */
    BNY_MATCH_CONTROL, /* it was for matching itself; to be released */
    BNY_MATCH_STALE,   /* of numbers that are no more; to be released: it will be said again */
};
enum bny_verdict bny_match_find(struct bny_match *m, int from, const struct bny_hdr *hdr,
                                struct bny_receiver **out);
/* Takes msg. 0, -BANYAN_ENOMEM, or -BANYAN_EPROTO: its sender had no credit, or has too much
 * here. */
int bny_match_keep(struct bny_match *m, int from, struct bny_msg *msg);
/* The first message here from this peer, with this tag, that the next receive would get, which
 * may be a probe; NULL: none. */
const struct bny_msg *bny_match_next(struct bny_match *m, int peer, uint32_t tag);

/* ---- point to point: credit and epochs ---- */

/* May this send go without CTS? 0 also makes sure that the answer will change. */
int bny_match_has_credit(struct bny_match *m, struct bny_receiver *rc);
/* Fills in the members of a point-to-point message's header that matching needs, and counts the
 * message as sent. */
void bny_match_stamp(struct bny_match *m, const struct bny_receiver *rc, struct bny_hdr *hdr);
void bny_match_stamped(struct bny_match *m, struct bny_receiver *rc, const struct bny_hdr *hdr);

/* ---- point to point without a receiver: short messages of blocking calls ---- */

/* A receive that a rank looks for now, with the lock held until it is done: the next message
 * with this tag from this peer. It has no number of its own; a receive that gives up leaves it
 * to bny_match_open_p2p().
 */
struct bny_expected {
    struct bny_expected *next;
    const struct bny_sig *sig;
    void *to;
    uint32_t len, units, seq;
    int peer;
    uint16_t step; /* of the header: its epoch */
    uint8_t got;
};

/* A message of `bytes` may go at once: 1, and the header says which one it is; 0: open it as
 * any. */
int bny_match_next_send(struct bny_match *m, int peer, const struct bny_sig *sig, size_t bytes,
                        struct bny_hdr *hdr);
/* It is on its way. */
void bny_match_sent(struct bny_match *m, int peer, size_t bytes, const struct bny_hdr *hdr);
/* Expects the message that x->sig, x->to, x->len and x->peer say: 1, or 0: open it as any. One
 * of a peer at a time. */
int bny_match_expect(struct bny_match *m, struct bny_expected *x);
/* Nothing more. */
void bny_match_give_up_expected(struct bny_match *m);
/* The one that this message is, or NULL. Foreign input. */
struct bny_expected *bny_match_is_expected(const struct bny_match *m, int from,
                                           const struct bny_hdr *hdr);
/* It has been taken. */
void bny_match_met(struct bny_match *m, struct bny_expected *x, const struct bny_hdr *hdr);

enum bny_change {
    BNY_CHANGE_NUMBER = 1, /* another number: what both ends announced of it is void */
    BNY_CHANGE_ANNOUNCE,   /* a receive that is to be announced */
    BNY_CHANGE_CREDIT,     /* a send that may go now */
};
/* Receivers that are to be looked at because of what came: called until it returns NULL. */
struct bny_receiver *bny_match_changed(struct bny_match *m, enum bny_change *change);
/* A message of matching's own that is to be sent to rank *peer or a later one, which becomes
 * *peer; 0: none. bny_match_said() when it is sent. */
int bny_match_to_say(struct bny_match *m, int *peer, struct bny_hdr *hdr);
void bny_match_said(struct bny_match *m, int peer, const struct bny_hdr *hdr);
/* What inline functions need; the beginning of struct bny_match. */
struct bny_match_news {
    struct bny_link changed;       /* receivers, by ->changes */
    uint32_t nsay;                 /* things that flows have to say */
    uint32_t nunexpected;          /* operations that messages wait for */
    struct bny_receiver *latest;   /* collective that was opened, while it is open; or NULL */
    struct bny_expected *expected; /* messages that are looked for now */
    uint32_t next_seq;             /* of the next collective */
    struct bny_sig past[BNY_PAST_SIGS]; /* of the latest collectives, by number */
};
/* The number of the next collective. */
static inline uint32_t bny_match_number(const struct bny_match *m)
{
    return ((const struct bny_match_news *)(const void *)m)->next_seq;
}
/* The next collective, sig, is over already: it needed no message. */
static inline void bny_match_pass(struct bny_match *m, const struct bny_sig *sig)
{
    struct bny_match_news *news = (struct bny_match_news *)(void *)m;

    news->past[news->next_seq++ % BNY_PAST_SIGS] = *sig;
}
/* bny_match_find(), and its most frequent answer: the latest collective. */
static inline enum bny_verdict bny_match_ask(struct bny_match *m, int from,
                                             const struct bny_hdr *hdr,
                                             struct bny_receiver **out)
{
    struct bny_receiver *rc = ((const struct bny_match_news *)(const void *)m)->latest;

    if (!rc || rc->seq != hdr->seq || hdr->sig.collective == BNY_SENDRECV)
        return bny_match_find(m, from, hdr, out);
    *out = rc;
    return BNY_MATCH_FOUND;
}
/* Has something come early, for any operation? Else there is nothing to take. */
static inline int bny_match_has_early(const struct bny_match *m)
{
    return ((const struct bny_match_news *)(const void *)m)->nunexpected != 0;
}
/* Is any message looked for now? */
static inline int bny_match_expects(const struct bny_match *m)
{
    return ((const struct bny_match_news *)(const void *)m)->expected != NULL;
}
/* Is there anything for them? Asked at every look. */
static inline int bny_match_is_busy(const struct bny_match *m)
{
    const struct bny_match_news *news = (const struct bny_match_news *)(const void *)m;

    return news->nsay || !bny_ring_is_empty(&news->changed);
}

/* ---- communicators that do not exist here yet, or no more ---- */

/* Takes msg. 0, -BANYAN_ENOMEM, or -BANYAN_EPROTO: its sender has too much here. */
int bny_orphans_keep(struct bny_world *w, struct bny_msg *msg);
/* Those of a communicator that exists now. */
struct bny_msg_list bny_orphans_take(struct bny_world *w, uint32_t comm_id);
/* A communicator is no more here while others may still send for it: what is here for it, and
 * what comes, is dropped. The latest BNY_ENDED_MAX are remembered. */
void bny_orphans_end(struct bny_world *w, uint32_t comm_id);
/* Its id is given out anew: what comes for it is kept again. */
void bny_orphans_begin(struct bny_world *w, uint32_t comm_id);
int bny_orphans_has_ended(const struct bny_world *w, uint32_t comm_id);

#endif
