/* SPDX-License-Identifier: BSD-3-Clause */
/* Address resolution on our link: ARP (RFC 826) for IPv4, neighbour discovery (RFC 4861) for
 * IPv6; and an IPv6 router's report of frames too long for its next link (RFC 4443, 3.2). Pure
 * functions; all input is untrusted. */
#ifndef BNY_DGRAM_NEIGHBOUR_H
#define BNY_DGRAM_NEIGHBOUR_H

#include "transport/datagram/packet.h"

#define BNY_DGRAM_ASK 86u /* the longest of these frames */

/* Both write a frame and return its length. ask: requests the MAC of whom->ip. answer: tells
 * other (its MAC, and its address; none: all) that we have ours. */
uint32_t bny_dgram_neighbour_ask(uint8_t f[BNY_DGRAM_ASK], const struct bny_dgram_addr *self,
                                 const struct bny_dgram_addr *whom);
uint32_t bny_dgram_neighbour_answer(uint8_t f[BNY_DGRAM_ASK], const struct bny_dgram_addr *self,
                                    const struct bny_dgram_addr *other);
/* 1: *other asks for us; 2: it has *other's MAC; 0: neither. */
int bny_dgram_neighbour_read(const uint8_t *f, uint32_t len, const struct bny_dgram_addr *self,
                             struct bny_dgram_addr *other);
/* The longest frame that passes a router on the path to *to, after we sent a longer one; 0: not
 * such a message. */
uint32_t bny_dgram_too_big(const uint8_t *f, uint32_t len, const struct bny_dgram_addr *self,
                           struct bny_dgram_addr *to);
/* The multicast group of all hosts that may have this address, as a MAC (RFC 2464, 7). */
void bny_dgram_group_mac(uint8_t mac[6], const struct bny_dgram_ip *ip);

#endif
