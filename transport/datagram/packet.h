/* SPDX-License-Identifier: BSD-3-Clause */
/* A packet of the dpdk transport, from the Ethernet header on: building and checking. Pure
 * functions; all input is untrusted.
 *
 *   14  Ethernet      20  IPv4, no options, don't fragment; or 40  IPv6, no extensions
 *    8  UDP, checksum 0 with IPv4 unless the receiver's port verifies it
 *   56  struct bny_dgram_head      [8  check]      [48  struct bny_hdr, in a message's first
 *       fragment]      payload
 *
 * The header's length field gives the payload's offset; senders of long frames pad the header,
 * so that payload is aligned. */
#ifndef BNY_DGRAM_PACKET_H
#define BNY_DGRAM_PACKET_H

#include <stddef.h>
#include <stdint.h>

#include "transport/datagram/driver.h"
#include "transport/wire.h"

#define BNY_DGRAM_MAGIC    0x4e42u /* "BN"; the wire's version is compared at init */
#define BNY_DGRAM_ETH      42u     /* Ethernet, IPv4, UDP */
#define BNY_DGRAM_ETH6     62u     /* Ethernet, IPv6, UDP */
#define BNY_DGRAM_HEAD     56u
#define BNY_DGRAM_CHECK    8u
#define BNY_DGRAM_HEAD_MAX 192u /* everything before the payload, padded */
/* Packets beyond the oldest unacknowledged one, if neither memory nor speed requires more; bits
 * of a SACK. */
#define BNY_DGRAM_WINDOW 256u
#define BNY_DGRAM_WIDEST 2048u /* 100 Gbit/s, 1500 bytes, 100 us: 917 in flight */
#define BNY_DGRAM_UNIT   64u   /* bytes: of grants */

enum bny_dgram_type {
    BNY_DGRAM_DATA = 1,
    BNY_DGRAM_ACK,   /* struct bny_dgram_sack follows */
    BNY_DGRAM_PROBE, /* requests an ACK; with off > 0: a BNY_DGRAM_PROBED, for a frame padded to
                       that length */
    BNY_DGRAM_PROBED, /* off: the length of the frame that arrived */
    BNY_DGRAM_ABORT,  /* the sender's end is gone, without a farewell */
};

enum bny_dgram_flags {
    BNY_DGRAM_FIRST = 1, /* struct bny_hdr follows */
    BNY_DGRAM_LAST = 2,
    BNY_DGRAM_BYE = 4, /* no message: the sender leaves in order; all its earlier data has been
                         acknowledged */
    BNY_DGRAM_AGAIN = 8, /* sent before */
    BNY_DGRAM_CHECKED = 16,
    BNY_DGRAM_WAITS = 32, /* the sender has nothing more to send, and waits for memory that it
                            borrowed: acknowledge at once */
};

struct bny_dgram_head {
    uint16_t magic;
    uint8_t type, flags;
    uint32_t tag;    /* with tag_rest, of this direction of this pair in this job: packets of
                        others, and old ones, have another */
    uint32_t seq;    /* of the packet; DATA */
    uint32_t ack;    /* all packets below have arrived */
    uint16_t credit; /* packets from ack on that may be sent */
    uint8_t length;  /* from here to the payload */
    uint8_t chan;
    uint32_t time; /* ns >> 6, the sender's */
    uint32_t echo; /* ACK: time of the packet that caused it */
    uint32_t msg;  /* number of the message in its channel */
    uint32_t off;  /* of the payload in its message */
    uint16_t from; /* rank */
    /* grant.h, both ways; UNITs, counted from 0 on. Without grants all are 0. */
    uint16_t base;   /* the sender's smallest round trip, us / 4, at most 16 ms */
    uint32_t used;   /* units that the sender has sent, with this frame */
    uint16_t demand; /* KiB waiting beyond `used`, at most 64 MiB */
    uint32_t grant;  /* limit for the receiver of this frame */
    uint16_t wait;   /* us that this frame's credit waited for it */
    uint32_t tag_rest;
} __attribute__((packed));
_Static_assert(sizeof(struct bny_dgram_head) == BNY_DGRAM_HEAD, "wire format");

struct bny_dgram_sack {
    uint64_t bits[BNY_DGRAM_WINDOW / 64]; /* bit i: packet ack + first + i has arrived (packet
                                            ack: never) */
    uint32_t twice;                       /* packets received more than once so far */
    uint32_t delay;                       /* ns between that packet and this ACK */
    uint32_t first;                       /* a multiple of 64 */
    uint32_t reserved;
};
_Static_assert(sizeof(struct bny_dgram_sack) == 48, "wire format");

/* Kind of check. */
enum bny_dgram_checks { BNY_DGRAM_NO_CHECK, BNY_DGRAM_CRC, BNY_DGRAM_MAC };

struct bny_dgram_addr {
    uint8_t mac[6];
    uint16_t port; /* UDP, host order */
    struct bny_dgram_ip ip;
};

/* A packet that was read. Refers to the frame. */
struct bny_dgram_packet {
    struct bny_dgram_head head;
    struct bny_hdr hdr;         /* FIRST */
    struct bny_dgram_sack sack; /* ACK */
    const uint8_t *payload;
    uint32_t len;           /* of payload */
    struct bny_dgram_ip ip; /* the sender's */
    uint32_t udp_port;
};

/* Reasons for dropping a frame; each has a counter. */
enum bny_dgram_drop {
    BNY_DGRAM_OK,
    BNY_DGRAM_FOREIGN,  /* another protocol, port or address */
    BNY_DGRAM_SHORT,    /* truncated */
    BNY_DGRAM_BAD_HEAD, /* invalid values */
    BNY_DGRAM_BAD_TAG,
    BNY_DGRAM_BAD_CHECK,
    BNY_DGRAM_BAD_PLACE, /* a fragment that contradicts its message, or a packet outside of the
                           window */
    BNY_DGRAM_NO_CREDIT, /* a packet beyond the receiver's credit */
    BNY_DGRAM_DROPS
};

/* Bytes before struct bny_dgram_head, of frames from or to this address. */
static inline uint32_t bny_dgram_eth_bytes(const struct bny_dgram_ip *ip)
{
    return bny_dgram_ip_is4(ip) ? BNY_DGRAM_ETH : BNY_DGRAM_ETH6;
}

/* Writes the constant bytes; bny_dgram_eth_length() sets lengths. Both addresses are of one
 * family. */
void bny_dgram_eth_init(uint8_t eth[BNY_DGRAM_ETH6], const struct bny_dgram_addr *from,
                        const struct bny_dgram_addr *to);
/* Sets a UDP source port (IPv6: and flow label) for each lane, so that hashing over queues or
 * paths spreads the frames of one peer. */
void bny_dgram_eth_lane(uint8_t *eth, const struct bny_dgram_addr *from, unsigned lane);
/* Sets the frame's length. */
void bny_dgram_eth_length(uint8_t *eth, uint32_t bytes);
/* UDP checksum over head[head_len] (from the Ethernet header on) and body. */
void bny_dgram_udp_sum(uint8_t *head, uint32_t head_len, const void *body, uint32_t body_len);
/* 1: the frame, which bny_dgram_parse() accepted, has a correct UDP checksum. */
int bny_dgram_udp_sum_ok(const uint8_t *frame);

/* Reads a frame for `self` (no ip: any). Ignores tag, check and UDP checksum. */
enum bny_dgram_drop bny_dgram_parse(const uint8_t *frame, uint32_t len,
                                    const struct bny_dgram_addr *self,
                                    struct bny_dgram_packet *out);
/* The same for a frame without its first 42 bytes: the network has its own headers. */
enum bny_dgram_drop bny_dgram_parse_bare(const uint8_t *frame, uint32_t len,
                                         struct bny_dgram_packet *out);
/* The check of a packet: head from struct bny_dgram_head on, with zeros for the check's 8
 * bytes. high: what both ends know and the packet does not carry, the upper halves of its
 * numbers; a MAC covers it. */
uint64_t bny_dgram_check(enum bny_dgram_checks how, const uint8_t key[32], uint64_t high,
                         const uint8_t *head, uint32_t head_len, const void *body,
                         uint32_t body_len);
/* 1: the packet's check is correct (or none is requested). */
int bny_dgram_check_ok(enum bny_dgram_checks how, const uint8_t key[32], uint64_t high,
                       const struct bny_dgram_packet *p);

/* Ones' complement sum (RFC 1071) of bytes in memory order; the last byte of an odd length is
 * its word's first. */
uint64_t bny_dgram_sum(uint64_t sum, const void *at, size_t len);
/* The final checksum, ready to be copied into its field. */
uint16_t bny_dgram_sum_end(uint64_t sum);

/* Network order. */
static inline void bny_dgram_put16(uint8_t *at, uint32_t v)
{
    at[0] = (uint8_t)(v >> 8);
    at[1] = (uint8_t)v;
}

static inline uint32_t bny_dgram_get16(const uint8_t *at)
{
    return (uint32_t)at[0] << 8 | at[1];
}

#endif
