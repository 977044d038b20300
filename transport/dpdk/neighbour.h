/* SPDX-License-Identifier: BSD-3-Clause */
/* Who on our link has an address: ARP (RFC 826) for IPv4, neighbour discovery (RFC 4861) for
 * IPv6; and what an IPv6 router says of frames that are too long for its next link (RFC 4443,
 * 3.2). Pure functions; everything that is read is foreign input. */
#ifndef BNY_DPDK_NEIGHBOUR_H
#define BNY_DPDK_NEIGHBOUR_H

#include "transport/dpdk/packet.h"

#define BNY_DPDK_ASK 86u /* bytes of the longest of these frames */

/* Both write a frame and return its length. ask: who has whom->ip? answer: other (its MAC, and
 * its address; none: everybody) is told that we have ours. */
uint32_t bny_dpdk_neighbour_ask(uint8_t f[BNY_DPDK_ASK], const struct bny_dpdk_addr *self,
                                const struct bny_dpdk_addr *whom);
uint32_t bny_dpdk_neighbour_answer(uint8_t f[BNY_DPDK_ASK], const struct bny_dpdk_addr *self,
                                   const struct bny_dpdk_addr *other);
/* 1: somebody, *other, asks for us; 2: *other's MAC is told; 0: neither. */
int bny_dpdk_neighbour_read(const uint8_t *f, uint32_t len, const struct bny_dpdk_addr *self,
                            struct bny_dpdk_addr *other);
/* The longest frame that passes a router on the way to *to, whom we sent a longer one; 0: this
 * is no such news. */
uint32_t bny_dpdk_too_big(const uint8_t *f, uint32_t len, const struct bny_dpdk_addr *self,
                          struct bny_dpdk_addr *to);
/* The group of all who might have this address, as a MAC (RFC 2464, 7). */
void bny_dpdk_group_mac(uint8_t mac[6], const struct bny_dpdk_ip *ip);

#endif
