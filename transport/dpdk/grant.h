/* SPDX-License-Identifier: BSD-3-Clause */
/* What the senders of one port may send, as its receiver grants it; pure code, time is an
 * argument. As SIRD (Prasopoulos and others, NSDI 2025) shares a receiver's link: all that is
 * granted and has not arrived lies in one pool of rate x (base round trip + 10 us), so that the
 * queue before the port is 10 us long whatever the number of senders.
 *
 * Amounts are frames' bytes in UNITs (packet.h), counted from the connection's beginning on. A
 * sender tells with each frame what it has `used`, that frame included and what it sent again
 * too, and the `demand` that waits there; the receiver tells the `limit` of what may be used.
 * limit - used is out. So a lost frame frees its place when a later one arrives, and a lost
 * grant is told again with the next: nothing is ever repaired.
 *
 * Whoever has demand gets a quantum, in turns, paced at 1.05 times the rate. Where the next one
 * does not fit the pool, all wait: to go on to others, or to give rests, makes shares unequal.
 * Who is silent though it has been granted something does not count against the pool until it
 * is heard again. Who waits with credit (for its own link, or for other receivers' pace) is
 * capped by the time that its credit waited. */
#ifndef BNY_DPDK_GRANT_H
#define BNY_DPDK_GRANT_H

#include <stdint.h>

#include "transport/dpdk/packet.h"

#define BNY_GRANT_QUEUE_NS 10000u /* aim */
#define BNY_GRANT_QUANTUM  8192u  /* bytes; whole frames */
#define BNY_GRANT_BASE_NS  20000u /* round trip of those who have told none */
/* Bytes that one may send without asking, at most; the pool is divided among all. */
#define BNY_GRANT_UNASKED 65536u

struct bny_grant { /* a sender */
    uint32_t limit, used, want;
    uint32_t out;       /* as it counts in the pool */
    uint64_t since_ns;  /* it was heard, or got the first of what is out */
    uint64_t base_ns;   /* 0: unknown */
    uint64_t round_ns;  /* when its latest round trip began */
    uint32_t cap, wait; /* most that may be out; least us that credit waited there, of the round
                         */
    struct bny_grant *next, *prev; /* in the ring of those with demand; NULL: it has none */
    int silent;
    void *user;
};

struct bny_grant_pool {
    double rate;             /* bytes a ns; 0: nothing is granted, all may send */
    uint32_t frame, quantum; /* UNITs */
    uint32_t unasked;        /* what each may send without asking */
    struct bny_grant *ring;  /* the next in turn */
    uint32_t asking;         /* their number */
    double bases;            /* ns: sum of theirs */
    uint64_t out;
    double tokens;
    uint64_t now, paced_ns, looked_ns;
};

/* rate: bytes of frames a ns; frame: bytes; senders: that may come. */
void bny_grant_init(struct bny_grant_pool *p, double rate, uint32_t frame, uint32_t senders);
/* The port's rate is another one. */
void bny_grant_rate(struct bny_grant_pool *p, double rate);
void bny_grant_begin(const struct bny_grant_pool *p, struct bny_grant *g);
/* A frame came: used, demand in KiB, base in us / 4 as its head tells; wait_us of its credit.
 */
void bny_grant_heard(struct bny_grant_pool *p, struct bny_grant *g, uint32_t used,
                     uint32_t demand, uint32_t base, uint32_t wait_us, uint64_t now);
/* Nobody will hear of it. */
void bny_grant_end(struct bny_grant_pool *p, struct bny_grant *g);
/* Grants what is due; tell() is called for each whose limit is to be told, at least once. */
void bny_grant_run(struct bny_grant_pool *p, uint64_t now,
                   void (*tell)(struct bny_grant *g, void *ctx), void *ctx);

#endif
