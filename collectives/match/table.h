/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside matching: between the table of receivers and unexpected messages (match.c) and what
 * two ranks count of each other (flow.c). */
#ifndef BNY_COLLECTIVES_TABLE_H
#define BNY_COLLECTIVES_TABLE_H

#include "collectives/match/match.h"

struct bny_tags { /* how often each tag was used in this epoch: open addressing */
    struct bny_tag_count {
        uint32_t tag, count; /* count 0: free */
    } * at;
    uint32_t cap, used; /* cap: 0 or a power of two, at least twice used */
};

struct bny_flow { /* messages between this rank and a peer */
    struct {
        struct bny_tags tags;
        uint32_t carried;     /* tags that the epoch began with: of sends that wait */
        uint32_t sent, acked; /* units, ever */
        uint16_t epoch;
        uint8_t crowded;   /* too many tags: nothing goes without CTS before the next epoch */
        uint8_t say_epoch; /* the peer is to be told of the epoch */
        uint8_t say_ask;   /* and asked for credit; 2: it was */
        struct bny_link waiting; /* sends without credit, in order */
    } tx;
    struct {
        struct bny_tags tags;
        uint32_t received, told; /* units, ever */
        uint32_t held;           /* units that wait here unexpected */
        uint16_t epoch;
        uint8_t announce_all; /* the peer waits for its next epoch */
        uint8_t say_credit;
    } rx;
};

struct bny_unexpected { /* messages of one operation that has not begun here */
    struct bny_unexpected *next;
    struct bny_receiver key;
    struct bny_msg_list msgs;
};

struct bny_kept_numbers { /* of an operation in stages: seq .. seq + n - 1 are still to begin */
    struct bny_kept_numbers *next;
    uint32_t seq, n;
};

struct bny_match {
    struct bny_match_news news; /* first: bny_match_is_busy() and others */
    struct bny_buffer_pool *pool;
    int n, rank;
    struct bny_kept_numbers *kept, *spare; /* spare: for those to come */
    uint32_t mask;                         /* of both tables */
    uint32_t nreceivers;
    struct bny_receiver **receivers;
    struct bny_unexpected **unexpected;
    struct bny_unexpected *idle; /* free entries */
    uint32_t nidle;
    struct bny_flow **flows; /* [n] NULL: never used; NULL: none was */
};

static inline uint32_t bny_match_bucket(const struct bny_match *m,
                                        const struct bny_receiver *key)
{
    uint32_t h = key->seq * 0x9e3779b1u;

    if (key->side != BNY_SIDE_ALL)
        h ^= ((uint32_t)key->peer * 4 + key->side) * 0x85ebca77u ^ key->tag * 0xc2b2ae3du;
    return (h ^ h >> 15) & m->mask;
}

static inline int bny_match_same(const struct bny_receiver *a, const struct bny_receiver *b)
{
    return a->seq == b->seq && a->side == b->side &&
           (a->side == BNY_SIDE_ALL ||
            (a->tag == b->tag && a->peer == b->peer && a->epoch == b->epoch));
}

/* match.c */
void bny_match_insert(struct bny_match *m, struct bny_receiver *rc);
void bny_match_remove(struct bny_match *m, struct bny_receiver *rc);
/* Drops what waits unexpected for this side of a peer's older epochs. */
void bny_match_drop_stale(struct bny_match *m, int peer, enum bny_side side, uint16_t epoch);

/* flow.c */
uint32_t bny_tags_get(const struct bny_tags *t, uint32_t tag);     /* its count */
struct bny_flow *bny_flow_of(const struct bny_match *m, int peer); /* NULL: none yet */
void bny_flows_free(struct bny_match *m);
/* A point-to-point message: its key, or how it ends here. FOUND: go on with *key. EARLY: no
 * memory to know. */
enum bny_verdict bny_flow_key(struct bny_match *m, int from, const struct bny_hdr *hdr,
                              struct bny_receiver *key);
/* Is the receiver with this key finished? */
int bny_flow_is_past(const struct bny_match *m, const struct bny_receiver *key);
/* A message with this key waits (1) or has been taken (-1). -BANYAN_EPROTO: it must not. */
int bny_flow_held(struct bny_match *m, const struct bny_receiver *key,
                  const struct bny_hdr *hdr, int change);

#endif
