/* SPDX-License-Identifier: BSD-3-Clause */
/* The wires of the loop transport: one queue of packets for each ordered pair of ranks, which
 * loses, duplicates, delays and reorders by a seed. One mutex guards the whole fabric; the
 * caller holds it for every function below but create, destroy and kill (loop.h).
 *
 * Time is counted in polls of the receiver, so that a single-threaded run depends on the seed
 * alone. */
#ifndef BNY_LOOP_FABRIC_H
#define BNY_LOOP_FABRIC_H

#include <pthread.h>
#include <stdint.h>

#include "transport/loop/loop.h"
#include "transport/wire.h"

/* A message that its sender keeps until it is acknowledged and no packet refers to it. */
struct bny_loop_out {
    struct bny_loop_out *next;
    struct bny_hdr hdr;
    const void *buf;  /* payload: copy, or the caller's borrowed memory */
    void *copy;       /* owned payload, or NULL when buf is borrowed */
    void *cookie;     /* of SENT, when borrowed */
    uint64_t seq;     /* in its channel */
    uint64_t sent_at; /* sender's poll count at the latest transmission */
    uint32_t rto;     /* polls to wait for the acknowledgement */
    int flying;       /* packets in the fabric that refer to this */
    int acked;
    uint8_t borrowed;  /* made by send() */
    uint8_t from_slot; /* made by commit(): its release returns a credit */
};

struct bny_loop_packet {
    struct bny_loop_packet *next;
    struct bny_loop_out *out; /* data; NULL: an acknowledgement of channel chan */
    uint64_t due;             /* deliverable from this poll of the receiver on */
    uint64_t cum, bits; /* acknowledgement: all below cum, and cum + i where bit i is set */
    uint8_t chan;
};

enum bny_loop_state { BNY_LOOP_ALIVE, BNY_LOOP_LEFT, BNY_LOOP_DEAD };

struct bny_loop_link { /* one direction */
    struct bny_loop_packet *head, **tail;
    uint64_t rng, polls; /* polls: of the receiver */
    uint32_t count;
    uint32_t slots_free; /* credits of reserve(), returned by the receiver's release() */
};

struct bny_loop_fabric {
    uint64_t id; /* random: another process may have a fabric at the same address */
    pthread_mutex_t lock;
    struct bny_loop_faults faults;
    int nranks, faulty;          /* faulty: any probability or delay is set */
    enum bny_loop_state *states; /* [nranks] */
    struct bny_loop_link *links; /* [src * nranks + dst] */
};

#define BNY_LOOP_SLOTS 8

struct bny_loop_link *bny_loop_link(struct bny_loop_fabric *f, int src, int dst);
/* Puts a copy of packet into the link, or two, or loses it. Packets beyond the link's room are
 * lost: the sender's window normally prevents that. */
void bny_loop_transmit(struct bny_loop_fabric *f, int src, int dst,
                       const struct bny_loop_packet *packet);
/* Takes the next due packet; 0: none. With data == 0 takes acknowledgements only. The caller
 * owns the reference to out->flying and drops it with bny_loop_drop. */
int bny_loop_take(struct bny_loop_fabric *f, int src, int dst, int data,
                  struct bny_loop_packet *packet);
/* Drops one packet's reference; frees the message when it is acknowledged and this was the
 * last. */
void bny_loop_drop(struct bny_loop_out *out);
/* The sender no longer needs it. Frees it unless packets refer to it. */
void bny_loop_retire(struct bny_loop_out *out);
/* Sets rank's state; if it is dead, drops all packets in flight from and to it. */
void bny_loop_set_state(struct bny_loop_fabric *f, int rank, enum bny_loop_state state);

#endif
