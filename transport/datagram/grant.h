/* SPDX-License-Identifier: BSD-3-Clause */
/* How much the senders of one port may send, granted by its receiver; pure code, time is an
 * argument. As SIRD (Prasopoulos and others, NSDI 2025) shares a receiver's link: all
 * outstanding grants are in one pool of rate x (base round trip + 10 us), so that the queue at
 * the port is 10 us long for any number of senders.
 *
 * Amounts are frames' bytes in UNITs (packet.h), counted from the connection's begin. Each
 * frame has the sender's `used` count, with that frame and retransmissions, and its waiting
 * `demand`; the receiver sends the `limit` of used. limit - used is outstanding. So a lost
 * frame frees its place when a later one arrives, and the next grant replaces a lost one:
 * nothing needs repair.
 *
 * Senders with demand get a quantum in turn, paced at 1.05 times the rate. If the next quantum
 * does not fit in the pool, all wait: skipping senders, or granting rests, makes shares
 * unequal. A silent sender with grants does not count against the pool until it is heard again.
 * A sender whose credit waits (for its own link, or for other receivers' pace) is capped by the
 * time that it waited. */
#ifndef BNY_DGRAM_GRANT_H
#define BNY_DGRAM_GRANT_H

#include <stdint.h>

#include "transport/datagram/packet.h"

#define BNY_GRANT_QUEUE_NS 10000u /* target */
#define BNY_GRANT_QUANTUM  8192u  /* bytes; whole frames */
#define BNY_GRANT_BASE_NS  20000u /* round trip of senders that have not reported one */
/* Most bytes that a sender may send without asking; the pool is divided among all. */
#define BNY_GRANT_UNASKED 65536u

struct bny_grant { /* a sender */
    uint32_t limit, used, want;
    uint32_t out;       /* its share of the pool */
    uint64_t since_ns;  /* it was last heard, or got the first outstanding grant */
    uint64_t base_ns;   /* 0: unknown */
    uint64_t round_ns;  /* start of its latest round trip */
    uint32_t cap, wait; /* most outstanding; least us that credit waited in this round */
    struct bny_grant *next, *prev; /* ring of those with demand; NULL: none */
    int silent;
    void *user;
};

struct bny_grant_pool {
    double rate;             /* bytes per ns; 0: no grants, all may send */
    uint32_t frame, quantum; /* UNITs */
    uint32_t unasked;        /* for each without asking */
    struct bny_grant *ring;  /* the next in turn */
    uint32_t asking;         /* ring size */
    double bases;            /* ns: sum over the ring */
    uint64_t out;
    double tokens;
    uint64_t now, paced_ns, looked_ns;
};

/* rate: bytes of frames per ns; frame: bytes; senders: most of them. */
void bny_grant_init(struct bny_grant_pool *p, double rate, uint32_t frame, uint32_t senders);
/* The port has a new rate. */
void bny_grant_rate(struct bny_grant_pool *p, double rate);
void bny_grant_begin(const struct bny_grant_pool *p, struct bny_grant *g);
/* A frame came: used, demand in KiB, base in us / 4 from its head; wait_us of its credit. */
void bny_grant_heard(struct bny_grant_pool *p, struct bny_grant *g, uint32_t used,
                     uint32_t demand, uint32_t base, uint32_t wait_us, uint64_t now);
/* The sender is gone. */
void bny_grant_end(struct bny_grant_pool *p, struct bny_grant *g);
/* Grants what is due; calls tell() for each limit to send, at least once. */
void bny_grant_run(struct bny_grant_pool *p, uint64_t now,
                   void (*tell)(struct bny_grant *g, void *ctx), void *ctx);

#endif
