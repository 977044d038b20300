/* SPDX-License-Identifier: BSD-3-Clause */
/* ARP, neighbour discovery, "packet too big" (neighbour.h). */
#include "transport/datagram/neighbour.h"

#include <string.h>

#define ETH_IP    0x0800u
#define ETH_ARP   0x0806u
#define ETH_IP6   0x86ddu
#define ARP_FRAME 60u /* the minimum of Ethernet */
#define ICMP6     58u
#define TOO_BIG   2u
#define ASKS      135u /* neighbour solicitation */
#define TELLS     136u /* ... advertisement */
#define IP6_LEAST 1280u

/* ---- IPv4 ---- */

static uint32_t arp_write(uint8_t *f, int answer, const struct bny_dgram_addr *self,
                          const struct bny_dgram_addr *other)
{
    memset(f, 0, ARP_FRAME);
    if (answer)
        memcpy(f, other->mac, 6);
    else
        memset(f, 0xff, 6);
    memcpy(f + 6, self->mac, 6);
    bny_dgram_put16(f + 12, ETH_ARP);
    bny_dgram_put16(f + 14, 1);
    bny_dgram_put16(f + 16, ETH_IP);
    f[18] = 6;
    f[19] = 4;
    bny_dgram_put16(f + 20, answer ? 2 : 1);
    memcpy(f + 22, self->mac, 6);
    memcpy(f + 28, self->ip.at + BNY_DGRAM_IP4_AT, 4);
    if (answer)
        memcpy(f + 32, other->mac, 6);
    memcpy(f + 38, other->ip.at + BNY_DGRAM_IP4_AT, 4);
    return ARP_FRAME;
}

static int arp_read(const uint8_t *f, uint32_t len, const struct bny_dgram_addr *self,
                    struct bny_dgram_addr *other)
{
    uint32_t op;

    if (len < 42 || bny_dgram_get16(f + 14) != 1 || bny_dgram_get16(f + 16) != ETH_IP ||
        f[18] != 6 || f[19] != 4 || !bny_dgram_ip_is4(&self->ip) ||
        memcmp(f + 38, self->ip.at + BNY_DGRAM_IP4_AT, 4) != 0)
        return 0;
    op = bny_dgram_get16(f + 20);
    memcpy(other->mac, f + 22, 6);
    other->ip = (struct bny_dgram_ip)BNY_DGRAM_IP4(0);
    memcpy(other->ip.at + BNY_DGRAM_IP4_AT, f + 28, 4);
    return op == 1 ? 1 : op == 2 ? 2 : 0;
}

/* ---- IPv6 ---- */

void bny_dgram_group_mac(uint8_t mac[6], const struct bny_dgram_ip *ip)
{
    mac[0] = mac[1] = 0x33;
    mac[2] = 0xff;
    memcpy(mac + 3, ip->at + 13, 3);
}

/* For `len` bytes of ICMPv6 behind the IPv6 header at ip. */
static uint16_t icmp_sum(const uint8_t *ip, uint32_t len)
{
    uint8_t more[8] = { 0 };

    bny_dgram_put16(more + 2, len);
    more[7] = ICMP6;
    return bny_dgram_sum_end(
        bny_dgram_sum(bny_dgram_sum(bny_dgram_sum(0, ip + 8, 32), more, 8), ip + 40, len));
}

/* A solicitation or an advertisement with one option, our MAC. */
static uint32_t nd_write(uint8_t *f, unsigned type, const uint8_t mac[6],
                         const struct bny_dgram_addr *self, const struct bny_dgram_ip *to,
                         const struct bny_dgram_ip *target)
{
    uint8_t *ip = f + 14, *icmp = f + 54;

    memset(f, 0, BNY_DGRAM_ASK);
    memcpy(f, mac, 6);
    memcpy(f + 6, self->mac, 6);
    bny_dgram_put16(f + 12, ETH_IP6);
    ip[0] = 0x60;
    bny_dgram_put16(ip + 4, 32);
    ip[6] = ICMP6;
    ip[7] = 255; /* proves that no router forwarded it */
    memcpy(ip + 8, &self->ip, 16);
    memcpy(ip + 24, to, 16);
    icmp[0] = (uint8_t)type;
    memcpy(icmp + 8, target, 16);
    icmp[24] = type == TELLS ? 2 : 1; /* owner of the MAC: target, sender */
    icmp[25] = 1;                     /* in units of 8 bytes */
    memcpy(icmp + 26, self->mac, 6);
    return BNY_DGRAM_ASK;
}

static uint32_t nd_finish(uint8_t *f, uint32_t bytes)
{
    uint16_t sum = icmp_sum(f + 14, bytes - 54);

    memcpy(f + 56, &sum, 2);
    return bytes;
}

static uint32_t nd_ask(uint8_t *f, const struct bny_dgram_addr *self,
                       const struct bny_dgram_addr *whom)
{
    struct bny_dgram_ip group = { { 0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff } };
    uint8_t mac[6];

    memcpy(group.at + 13, whom->ip.at + 13, 3);
    bny_dgram_group_mac(mac, &whom->ip);
    return nd_finish(f, nd_write(f, ASKS, mac, self, &group, &whom->ip));
}

static uint32_t nd_answer(uint8_t *f, const struct bny_dgram_addr *self,
                          const struct bny_dgram_addr *other)
{
    static const struct bny_dgram_ip all = { { 0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                               1 } };
    static const uint8_t all_mac[6] = { 0x33, 0x33, 0, 0, 0, 1 };
    int is_known = !bny_dgram_ip_none(&other->ip);

    nd_write(f, TELLS, is_known ? other->mac : all_mac, self, is_known ? &other->ip : &all,
             &self->ip);
    f[58] = is_known ? 0x60 : 0x20; /* solicited; and override */
    return nd_finish(f, BNY_DGRAM_ASK);
}

/* 1: an ICMPv6 message with a correct checksum; *bytes: its length. */
static int icmp_open(const uint8_t *f, uint32_t len, uint32_t *bytes)
{
    const uint8_t *ip = f + 14;

    if (len < 54 || ip[0] >> 4 != 6 || ip[6] != ICMP6)
        return 0;
    *bytes = bny_dgram_get16(ip + 4);
    return *bytes >= 8 && *bytes <= len - 54 && icmp_sum(ip, *bytes) == 0;
}

/* The MAC of this option, or NULL. *bad: malformed options. */
static const uint8_t *mac_option(const uint8_t *at, uint32_t len, unsigned type, int *bad)
{
    const uint8_t *mac = NULL;

    *bad = 0;
    while (len && !*bad) {
        uint32_t n = len >= 2 ? at[1] * 8u : 0;

        *bad = n == 0 || n > len;
        if (!*bad && at[0] == type && n == 8)
            mac = at + 2;
        at += n;
        len -= *bad ? 0 : n;
    }
    return *bad ? NULL : mac;
}

static int nd_read(const uint8_t *f, uint32_t len, const struct bny_dgram_addr *self,
                   struct bny_dgram_addr *other)
{
    const uint8_t *ip = f + 14, *icmp = f + 54, *mac;
    uint32_t bytes;
    int bad;

    if (!icmp_open(f, len, &bytes) || ip[7] != 255 || icmp[1] != 0 || bytes < 24 ||
        icmp[8] == 0xff)
        return 0;
    mac = mac_option(icmp + 24, bytes - 24, icmp[0] == ASKS ? 1 : 2, &bad);
    if (bad)
        return 0;
    if (icmp[0] == ASKS && !memcmp(icmp + 8, &self->ip, 16)) {
        memcpy(&other->ip, ip + 8, 16); /* none: it checks whether the address is free */
        memcpy(other->mac, mac ? mac : f + 6, 6);
        return 1;
    }
    if (icmp[0] == TELLS && mac) {
        memcpy(&other->ip, icmp + 8, 16);
        memcpy(other->mac, mac, 6);
        return 2;
    }
    return 0;
}

uint32_t bny_dgram_too_big(const uint8_t *f, uint32_t len, const struct bny_dgram_addr *self,
                           struct bny_dgram_addr *to)
{
    const uint8_t *icmp = f + 54, *inner = icmp + 8;
    uint32_t bytes, mtu;

    if (len < 14 || bny_dgram_get16(f + 12) != ETH_IP6 || !icmp_open(f, len, &bytes) ||
        icmp[0] != TOO_BIG || memcmp(f + 38, &self->ip, 16) != 0 || bytes < 8 + 48 ||
        inner[0] >> 4 != 6 || inner[6] != 17 || memcmp(inner + 8, &self->ip, 16) != 0)
        return 0;
    memcpy(&to->ip, inner + 24, 16);
    to->port = (uint16_t)bny_dgram_get16(inner + 42);
    mtu = bny_dgram_get16(icmp + 4) << 16 | bny_dgram_get16(icmp + 6);
    return mtu < IP6_LEAST || mtu > 65535 ? 0 : mtu + 14;
}

/* ---- either ---- */

uint32_t bny_dgram_neighbour_ask(uint8_t f[BNY_DGRAM_ASK], const struct bny_dgram_addr *self,
                                 const struct bny_dgram_addr *whom)
{
    return bny_dgram_ip_is4(&self->ip) ? arp_write(f, 0, self, whom) : nd_ask(f, self, whom);
}

uint32_t bny_dgram_neighbour_answer(uint8_t f[BNY_DGRAM_ASK], const struct bny_dgram_addr *self,
                                    const struct bny_dgram_addr *other)
{
    return bny_dgram_ip_is4(&self->ip) ? arp_write(f, 1, self, other)
                                       : nd_answer(f, self, other);
}

int bny_dgram_neighbour_read(const uint8_t *f, uint32_t len, const struct bny_dgram_addr *self,
                             struct bny_dgram_addr *other)
{
    if (len < 14)
        return 0;
    if (bny_dgram_get16(f + 12) == ETH_ARP)
        return arp_read(f, len, self, other);
    return bny_dgram_get16(f + 12) == ETH_IP6 ? nd_read(f, len, self, other) : 0;
}
