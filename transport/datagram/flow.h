/* SPDX-License-Identifier: BSD-3-Clause */
/* Reliability between two ranks, as pure code: numbers, acknowledgements, losses, the window
 * and its timers. It sees neither bytes nor clocks; time is an argument.
 *
 * Sender. Packets are numbered; a number stands for the same part of the same message for ever.
 * Each transmission has an order number. A packet counts as lost when `threshold` packets sent
 * after it have arrived, or fewer and a time has passed; lost ones are sent again first. The
 * same holds for retransmissions: of a packet sent twice, the latest copy has arrived if there
 * was time for it. Packets that were declared lost and then come twice raise threshold and
 * time. Without acknowledgements the newest packet is sent again after 2 round trips (tail
 * probe), the oldest after 4 (at least 500 us); that time doubles up to 200 ms. Timers send
 * regardless of the window, which may be full of lost packets. Silence of 300 s: dead. Lossless
 * links have no timers.
 *
 * Window. Never more than the receiver's credit, nor 256 packets (up to 2048 if peers are few)
 * beyond the oldest unacknowledged. If the receiver grants bytes (grant.h), never more than
 * these, except for timers: so lost grants need no repair. On lossy links there is also a
 * window that, once per round trip, grows by a quarter while the least delay is below half its
 * target, by two packets below the target, and shrinks in proportion to the excess (at most by
 * half). A process without CPU looks like a queue, so delay leaves 144 KiB, and a window that
 * losses made smaller grows by a quarter up to that. Loss of 6 % counts as random, more shrinks
 * the window by half of the excess, as do third consecutive timeouts: an overflowing queue
 * shows as delay first.
 *
 * Receiver. Cumulative number and 256 bits: those of the newest packets, each fourth time those
 * from the oldest missing one on. */
#ifndef BNY_DGRAM_FLOW_H
#define BNY_DGRAM_FLOW_H

#include <stdint.h>

#include "transport/datagram/packet.h"

#define BNY_FLOW_RTO_START 3000000u
#define BNY_FLOW_RTO_MIN   500000u
#define BNY_FLOW_RTO_MAX   200000000u
#define BNY_FLOW_LATE_NS   50000000u     /* least timeout of unordered paths */
#define BNY_FLOW_DEAD_NS   300000000000u /* a peer that computes acknowledges nothing */
/* Packets in flight on a lossless link. A memif ring has 128 places, and each packet may cause
 * an acknowledgement: the ring is never full, and the packets stay in a cache. */
#define BNY_FLOW_LOSSLESS  56u
#define BNY_FLOW_TARGET_NS 400000u /* target of the delay above the smallest seen */
#define BNY_FLOW_START     32
/* Bytes: delay alone does not shrink the window below this, nor below 64 smaller packets. */
#define BNY_FLOW_FLOOR 147456u
#define BNY_FLOW_LEAST 4
/* With grants there is no queue at the receiver, so delay is that of the network's core. */
#define BNY_FLOW_CORE_NS    50000u
#define BNY_FLOW_GRANTS     16u
#define BNY_FLOW_RANDOM     0.06 /* share of lost packets that counts as random */
#define BNY_FLOW_REORDER_NS 20000u
/* Threshold, raised up to 64 if packets prove to be late, not lost. */
#define BNY_FLOW_REORDER 3u

enum bny_flow_state { BNY_FLOW_FREE, BNY_FLOW_FLYING, BNY_FLOW_LOST, BNY_FLOW_ACKED };

struct bny_flow_packet {
    void *msg;
    uint32_t off, len;
    uint32_t order; /* of the latest transmission */
    uint8_t state, tries;
    uint64_t sent_ns;
};

struct bny_flow_tx {
    struct bny_flow_packet
        *pk; /* [size], by number modulo size: the small array, or bny_flow_widen's */
    uint32_t size;
    struct bny_flow_packet few[BNY_DGRAM_WINDOW];
    uint32_t una, next; /* oldest unacknowledged; next new number */
    uint32_t limit;     /* numbers below may be sent */
    uint32_t flying, lost;
    uint32_t order, newest; /* newest: order of the latest transmission known to have arrived */
    uint32_t highest;       /* number after the highest that has arrived */
    uint32_t threshold, twice, calm;
    uint32_t guessed,
        judged; /* retransmissions by timer, as lost; less those that then came twice */
    uint64_t suspect_ns; /* when overtaken packets count as lost; 0: none was */
    int lossless, unordered;
    int patient; /* a tail probe waits for real round trips instead of ideal ones, as the path
                    loses little and CPUs are shared; set by the caller */
    double cwnd, floor, most;
    /* grants; UNITs */
    int granted;                /* the receiver grants how much may be sent */
    uint32_t grant, used, over; /* over: bytes of a frame that are not payload */
    struct {
        uint32_t upto;
        uint64_t ns;
    } came[BNY_FLOW_GRANTS]; /* unused grants, and their arrival times */
    uint32_t first_came, end_came;
    uint64_t busy_ns;               /* since when there is data to send; set by the caller */
    uint32_t wait_us;               /* time that the latest frame's credit waited for it */
    uint64_t srtt, rttvar, min_rtt; /* ns; 0: unknown */
    uint64_t rto, last_ack_ns, last_sent_ns;
    int probed;
    int urgent; /* a timer's packet goes despite a full window, as do other lost ones */
    /* per round trip */
    uint32_t round_end, round_acked, round_lost, round_peak;
    uint64_t round_delay;              /* smallest */
    uint64_t resent, timeouts, probes; /* counters */
};

struct bny_flow_rx {
    uint32_t cum;
    uint32_t size; /* of the window; 0: BNY_DGRAM_WINDOW */
    uint32_t span; /* number after the highest that has arrived, minus cum */
    uint32_t told; /* SACKs */
    uint64_t bits[BNY_DGRAM_WIDEST / 64]; /* bit i: cum + i; bit 0 is never set */
    uint32_t twice;
};

typedef void bny_flow_acked_fn(void *ctx, struct bny_flow_packet *p);

static inline uint32_t bny_flow_units(uint32_t bytes)
{
    return (bytes + BNY_DGRAM_UNIT - 1) / BNY_DGRAM_UNIT;
}

static inline int bny_flow_before(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b) < 0;
}

/* frame: bytes of a full packet. */
void bny_flow_tx_init(struct bny_flow_tx *f, int lossless, uint32_t credit, uint32_t frame);
/* A wider window: pk[size], borrowed until the next init; size: a power of two up to
 * BNY_DGRAM_WIDEST. Call it before the first packet. */
void bny_flow_widen(struct bny_flow_tx *f, struct bny_flow_packet *pk, uint32_t size);
/* The window for a peer whose ring has room for so many of our packets. */
void bny_flow_at_most(struct bny_flow_tx *f, uint32_t packets);
/* The path repairs losses itself and keeps no order: overtaken packets are late, never lost,
 * and timers are a last resort. */
void bny_flow_unordered(struct bny_flow_tx *f);
/* From now on the receiver grants how much may be sent; units: before its first grant. */
void bny_flow_grants(struct bny_flow_tx *f, uint32_t units, uint32_t over);
/* Its present grant. */
void bny_flow_granted(struct bny_flow_tx *f, uint32_t grant, uint64_t now);
/* 1: a new packet may be sent. */
int bny_flow_may_send(const struct bny_flow_tx *f);
/* Numbers a new packet and counts it as sent. */
uint32_t bny_flow_send(struct bny_flow_tx *f, void *msg, uint32_t off, uint32_t len,
                       uint64_t now);
/* Counts the oldest lost packet as sent again: *seq. 0: there is none, or the window is
 * closed. */
int bny_flow_resend(struct bny_flow_tx *f, uint32_t *seq, uint64_t now);
/* The packet was not sent after all: it is next. */
void bny_flow_unsend(struct bny_flow_tx *f, uint32_t seq);
/* Processes an acknowledgement; sack NULL: the cumulative number only. acked() is called for
 * each newly acknowledged packet. rtt_ns 0: unknown. -1: it acknowledges a packet never
 * sent. */
int bny_flow_ack(struct bny_flow_tx *f, uint32_t ack, uint32_t credit,
                 const struct bny_dgram_sack *sack, uint64_t rtt_ns, uint64_t now,
                 bny_flow_acked_fn *acked, void *ctx);
/* The path was down, and timers did not run: silence counts from now, and packets in flight are
 * probed at once. The window restarts, as the path may be another one. */
void bny_flow_resume(struct bny_flow_tx *f, uint64_t now);
/* Timers. 1: a packet must be sent again. -1: the peer is dead. */
int bny_flow_tick(struct bny_flow_tx *f, uint64_t now);

/* 1 new, 0 seen before, -1 outside of the window. */
int bny_flow_is_new(const struct bny_flow_rx *f, uint32_t seq);
/* The same, and records it. */
int bny_flow_arrived(struct bny_flow_rx *f, uint32_t seq);
/* Fills an acknowledgement; the caller sets delay. */
void bny_flow_sack(struct bny_flow_rx *f, struct bny_dgram_sack *sack);
/* 1: a packet below the highest one is missing. */
int bny_flow_gap(const struct bny_flow_rx *f);

#endif
