/* SPDX-License-Identifier: BSD-3-Clause */
/* Reliability between two ranks, as pure code: numbers, acknowledgements, losses, the window
 * and its timers. It sees neither bytes nor clocks; time is an argument.
 *
 * Sender. Packets are numbered; a number stands for the same part of the same message for ever.
 * Each transmission has an order number. A packet counts as lost when `threshold` packets that
 * were sent after it have arrived, or fewer and a time has passed; lost ones are sent again
 * first. That holds of what was sent again too: of a packet sent twice, the latest transmission
 * has arrived if there was time for it. Packets taken for lost that then come twice raise
 * threshold and time. When nothing is acknowledged for 2 round trips the newest packet is sent
 * again (tail probe), for 4 (at least 500 us) the oldest; that time doubles up to 200 ms. What
 * a timer sends again goes whatever the window says: a window full of lost packets would else
 * never send. Silence of 300 s: dead. On links that lose nothing there are no timers.
 *
 * Window. Never more than the receiver's credit, nor 256 packets (up to 2048 where there are
 * few peers) beyond the oldest unacknowledged. Where the receiver grants bytes (grant.h), never
 * more than these, but for what a timer sends again: no repair is needed for lost grants. On
 * lossy links also a window that, once a round trip, grows by a quarter while the least delay
 * is below half its target, by two packets below the target, and shrinks by the part by which
 * it is above (at most half). A process that is not scheduled looks like a queue, so delay
 * leaves 144 KiB, and a window that losses made smaller grows by a quarter up to that. Loss of
 * 6 % passes for chance, what is above shrinks the window by half of it, as do third timeouts
 * in a row: a queue that overflows shows as delay first.
 *
 * Receiver. Cumulative number and 256 bits: those of the newest packets, each fourth time those
 * from the oldest missing one on. */
#ifndef BNY_DPDK_FLOW_H
#define BNY_DPDK_FLOW_H

#include <stdint.h>

#include "transport/dpdk/packet.h"

#define BNY_FLOW_RTO_START 3000000u
#define BNY_FLOW_RTO_MIN   500000u
#define BNY_FLOW_RTO_MAX   200000000u
#define BNY_FLOW_LATE_NS   50000000u     /* least timeout of unordered paths */
#define BNY_FLOW_DEAD_NS   300000000000u /* a peer that computes acknowledges nothing */
/* Packets under way on a link that loses nothing. A memif ring has 128 places, each packet may
 * cause an acknowledgement: the ring is never full, and what is under way stays in a cache. */
#define BNY_FLOW_LOSSLESS  56u
#define BNY_FLOW_TARGET_NS 400000u /* delay above the smallest seen that the window aims at */
#define BNY_FLOW_START     32
/* Bytes: delay alone shrinks the window to no less, nor below 64 smaller packets. */
#define BNY_FLOW_FLOOR 147456u
#define BNY_FLOW_LEAST 4
/* As grants leave no queue at the receiver, delay is that of the network's core. */
#define BNY_FLOW_CORE_NS    50000u
#define BNY_FLOW_GRANTS     16u
#define BNY_FLOW_RANDOM     0.06 /* share of lost packets that is taken for chance */
#define BNY_FLOW_REORDER_NS 20000u
/* Threshold, raised up to 64 where packets prove to be late, not lost. */
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
    struct bny_flow_packet *pk; /* [size], by number modulo size: few, or bny_flow_widen's */
    uint32_t size;
    struct bny_flow_packet few[BNY_DPDK_WINDOW];
    uint32_t una, next; /* oldest unacknowledged; next new number */
    uint32_t limit;     /* numbers below may be sent */
    uint32_t flying, lost;
    uint32_t order, newest; /* newest: order of the latest transmission known to have arrived */
    uint32_t highest;       /* number after the highest that has arrived */
    uint32_t threshold, twice, calm;
    uint32_t guessed,
        judged;          /* sent again for a timer, as lost; less those that then came twice */
    uint64_t suspect_ns; /* when what was overtaken counts as lost; 0: nothing was */
    int lossless, unordered;
    int patient; /* a tail probe waits for round trips as they are, not as they should be: the
                    path loses little, and CPUs are shared; the caller's */
    double cwnd, floor, most;
    /* grants; UNITs */
    int granted;                /* the receiver says how much may be sent */
    uint32_t grant, used, over; /* over: bytes of a frame that are not payload */
    struct {
        uint32_t upto;
        uint64_t ns;
    } came[BNY_FLOW_GRANTS]; /* grants that are not used up, and when they came */
    uint32_t first_came, end_came;
    uint64_t busy_ns;               /* since when there is something to send; the caller's */
    uint32_t wait_us;               /* that the latest frame's credit waited for it */
    uint64_t srtt, rttvar, min_rtt; /* ns; 0: unknown */
    uint64_t rto, last_ack_ns, last_sent_ns;
    int probed;
    int urgent; /* a timer's packet goes though the window is full, of others that are lost as
                   well */
    /* per round trip */
    uint32_t round_end, round_acked, round_lost, round_peak;
    uint64_t round_delay;              /* least */
    uint64_t resent, timeouts, probes; /* counters */
};

struct bny_flow_rx {
    uint32_t cum;
    uint32_t size; /* of the window; 0: BNY_DPDK_WINDOW */
    uint32_t span; /* number after the highest that has arrived, less cum */
    uint32_t told; /* SACKs */
    uint64_t bits[BNY_DPDK_WIDEST / 64]; /* bit i: cum + i; bit 0 is never set */
    uint32_t twice;
};

typedef void bny_flow_acked_fn(void *ctx, struct bny_flow_packet *p);

static inline uint32_t bny_flow_units(uint32_t bytes)
{
    return (bytes + BNY_DPDK_UNIT - 1) / BNY_DPDK_UNIT;
}

static inline int bny_flow_before(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b) < 0;
}

/* frame: bytes of a full packet. */
void bny_flow_tx_init(struct bny_flow_tx *f, int lossless, uint32_t credit, uint32_t frame);
/* A wider window: pk[size], borrowed until the next init; size: a power of two up to
 * BNY_DPDK_WIDEST. Before the first packet. */
void bny_flow_widen(struct bny_flow_tx *f, struct bny_flow_packet *pk, uint32_t size);
/* The window of one whose ring has room for so many packets of ours. */
void bny_flow_at_most(struct bny_flow_tx *f, uint32_t packets);
/* The path repairs losses itself and keeps no order: what is overtaken is late, never lost, and
 * timers are a last resort. */
void bny_flow_unordered(struct bny_flow_tx *f);
/* The receiver grants what may be sent, from now on; units: before its first word. */
void bny_flow_grants(struct bny_flow_tx *f, uint32_t units, uint32_t over);
/* What it grants now. */
void bny_flow_granted(struct bny_flow_tx *f, uint32_t grant, uint64_t now);
/* 1: a new packet may be sent. */
int bny_flow_may_send(const struct bny_flow_tx *f);
/* Numbers a new packet and counts it as sent. */
uint32_t bny_flow_send(struct bny_flow_tx *f, void *msg, uint32_t off, uint32_t len,
                       uint64_t now);
/* The oldest lost packet is counted as sent again: *seq. 0: there is none, or the window is
 * closed. */
int bny_flow_resend(struct bny_flow_tx *f, uint32_t *seq, uint64_t now);
/* The packet was not sent after all: it comes next. */
void bny_flow_unsend(struct bny_flow_tx *f, uint32_t seq);
/* Takes an acknowledgement; sack NULL: the cumulative number only. acked() is called for each
 * packet that it names first. rtt_ns 0: unknown. -1: it acknowledges what was never sent. */
int bny_flow_ack(struct bny_flow_tx *f, uint32_t ack, uint32_t credit,
                 const struct bny_dpdk_sack *sack, uint64_t rtt_ns, uint64_t now,
                 bny_flow_acked_fn *acked, void *ctx);
/* The path was away, and timers did not run: silence counts from now, and what is under way is
 * asked for at once. The window begins anew: the path may be another one. */
void bny_flow_resume(struct bny_flow_tx *f, uint64_t now);
/* Timers. 1: something is to be sent again. -1: the peer is dead. */
int bny_flow_tick(struct bny_flow_tx *f, uint64_t now);

/* 1 new, 0 seen before, -1 outside of the window. */
int bny_flow_is_new(const struct bny_flow_rx *f, uint32_t seq);
/* The same, and remembers it. */
int bny_flow_arrived(struct bny_flow_rx *f, uint32_t seq);
/* What an acknowledgement says; delay is the caller's. */
void bny_flow_sack(struct bny_flow_rx *f, struct bny_dpdk_sack *sack);
/* 1: something is missing below something that has arrived. */
int bny_flow_gap(const struct bny_flow_rx *f);

#endif
