/* SPDX-License-Identifier: BSD-3-Clause */
/* Frames: Ethernet, IPv4, UDP, our header, ARP (packet.h). */
#include "transport/dpdk/packet.h"

#include <arpa/inet.h>
#include <string.h>

#include <sodium.h>

#include "base/crc32c.h"

#define ETH_IP  0x0800u
#define ETH_ARP 0x0806u

static void put16(uint8_t *at, uint32_t v)
{
    at[0] = (uint8_t)(v >> 8);
    at[1] = (uint8_t)v;
}

static void put32(uint8_t *at, uint32_t v)
{
    put16(at, v >> 16);
    put16(at + 2, v & 0xffff);
}

static uint32_t get16(const uint8_t *at)
{
    return (uint32_t)at[0] << 8 | at[1];
}

static uint32_t get32(const uint8_t *at)
{
    return get16(at) << 16 | get16(at + 2);
}

/* Ones' complement sum of big-endian words; the last byte of an odd length counts as its word's
 * high half. */
static uint64_t sum16(uint64_t sum, const uint8_t *at, size_t len)
{
    for (; len >= 2; at += 2, len -= 2)
        sum += get16(at);
    return len ? sum + ((uint64_t)at[0] << 8) : sum;
}

static uint32_t fold(uint64_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint32_t)~sum & 0xffff;
}

void bny_dpdk_eth_init(uint8_t eth[BNY_DPDK_ETH], const struct bny_dpdk_addr *from,
                       const struct bny_dpdk_addr *to)
{
    uint8_t *ip = eth + 14, *udp = eth + 34;

    memset(eth, 0, BNY_DPDK_ETH);
    memcpy(eth, to->mac, 6);
    memcpy(eth + 6, from->mac, 6);
    put16(eth + 12, ETH_IP);
    ip[0] = 0x45;
    ip[6] = 0x40; /* don't fragment */
    ip[8] = 64;
    ip[9] = 17;
    put32(ip + 12, from->ip);
    put32(ip + 16, to->ip);
    put16(udp, from->port);
    put16(udp + 2, to->port);
}

void bny_dpdk_eth_lane(uint8_t eth[BNY_DPDK_ETH], const struct bny_dpdk_addr *from,
                       unsigned lane)
{
    put16(eth + 34, (from->port + lane) & 0xffff);
}

void bny_dpdk_eth_length(uint8_t eth[BNY_DPDK_ETH], uint32_t bytes)
{
    uint8_t *ip = eth + 14;

    put16(ip + 2, bytes - 14);
    put16(ip + 10, 0);
    put16(ip + 10, fold(sum16(0, ip, 20)));
    put16(eth + 38, bytes - 34);
    put16(eth + 40, 0);
}

void bny_dpdk_udp_sum(uint8_t *head, uint32_t head_len, const void *body, uint32_t body_len)
{
    uint64_t sum = 17 + head_len - 34 + body_len;
    uint32_t v;

    put16(head + 40, 0);
    sum = sum16(sum, head + 26, 8);             /* addresses */
    sum = sum16(sum, head + 34, head_len - 34); /* of even length: headers are */
    v = fold(sum16(sum, body, body_len));
    put16(head + 40, v ? v : 0xffff);
}

/* The frame's UDP payload, or NULL. */
static const uint8_t *unwrap(const uint8_t *f, uint32_t len, const struct bny_dpdk_addr *self,
                             uint32_t *bytes, struct bny_dpdk_packet *out,
                             enum bny_dpdk_drop *why)
{
    const uint8_t *ip = f + 14, *udp = f + 34;
    uint32_t ip_len, udp_len;

    *why = BNY_DPDK_FOREIGN;
    if (len < BNY_DPDK_ETH || get16(f + 12) != ETH_IP || ip[0] != 0x45 || ip[9] != 17 ||
        (get16(ip + 6) & 0x3fff) || get16(udp + 2) != self->port ||
        (self->ip && get32(ip + 16) != self->ip))
        return NULL;
    *why = BNY_DPDK_SHORT;
    ip_len = get16(ip + 2);
    udp_len = get16(udp + 4);
    if (ip_len > len - 14 || ip_len < 28 || udp_len != ip_len - 20)
        return NULL;
    *why = BNY_DPDK_BAD_HEAD;
    if (fold(sum16(0, ip, 20)) != 0)
        return NULL;
    out->ip = get32(ip + 12);
    out->udp_port = get16(udp);
    *bytes = udp_len - 8;
    return f + BNY_DPDK_ETH;
}

static int plausible(const struct bny_dpdk_packet *p)
{
    const struct bny_dpdk_head *h = &p->head;

    if (h->type == BNY_DPDK_DATA) {
        if (h->chan >= BNY_CHANNELS || h->off % 64 ||
            !(h->flags & BNY_DPDK_FIRST) != (h->off != 0) ||
            (!(h->flags & BNY_DPDK_LAST) && (p->len % 64 || p->len == 0)) ||
            p->len > UINT32_MAX - h->off)
            return 0;
        if (h->flags & BNY_DPDK_BYE)
            return p->len == 0 && (h->flags & BNY_DPDK_FIRST) && (h->flags & BNY_DPDK_LAST);
        if (!(h->flags & BNY_DPDK_FIRST))
            return p->len > 0;
        return p->hdr.chan == h->chan && p->len <= p->hdr.len &&
               !(h->flags & BNY_DPDK_LAST) == (p->len < p->hdr.len);
    }
    if (h->type == BNY_DPDK_ACK)
        return (p->sack.first || !(p->sack.bits[0] & 1)) && p->sack.first % 64 == 0 &&
               p->sack.first <= BNY_DPDK_WIDEST - BNY_DPDK_WINDOW &&
               h->credit <= BNY_DPDK_WIDEST;
    return h->type >= BNY_DPDK_PROBE && h->type <= BNY_DPDK_ABORT;
}

/* What is behind the network's headers. */
static enum bny_dpdk_drop read_packet(const uint8_t *u, uint32_t bytes,
                                      struct bny_dpdk_packet *p)
{
    uint32_t need = BNY_DPDK_HEAD, at;

    if (bytes < BNY_DPDK_HEAD)
        return BNY_DPDK_SHORT;
    memcpy(&p->head, u, BNY_DPDK_HEAD);
    if (p->head.magic != BNY_DPDK_MAGIC)
        return BNY_DPDK_FOREIGN;
    if (p->head.flags & BNY_DPDK_CHECKED)
        need += BNY_DPDK_CHECK;
    at = need;
    if (p->head.type == BNY_DPDK_DATA && (p->head.flags & BNY_DPDK_FIRST))
        need += (uint32_t)sizeof p->hdr;
    else if (p->head.type == BNY_DPDK_ACK)
        need += (uint32_t)sizeof p->sack;
    if (p->head.length < need)
        return BNY_DPDK_BAD_HEAD;
    if (p->head.length > bytes)
        return BNY_DPDK_SHORT;
    if (p->head.type == BNY_DPDK_ACK)
        memcpy(&p->sack, u + at, sizeof p->sack);
    else if (need - at == sizeof p->hdr)
        memcpy(&p->hdr, u + at, sizeof p->hdr);
    p->payload = u + p->head.length;
    p->len = bytes - p->head.length;
    return plausible(p) ? BNY_DPDK_OK : BNY_DPDK_BAD_HEAD;
}

enum bny_dpdk_drop bny_dpdk_parse(const uint8_t *frame, uint32_t len,
                                  const struct bny_dpdk_addr *self, struct bny_dpdk_packet *p)
{
    enum bny_dpdk_drop why;
    uint32_t bytes = 0;
    const uint8_t *u = unwrap(frame, len, self, &bytes, p, &why);

    return u ? read_packet(u, bytes, p) : why;
}

enum bny_dpdk_drop bny_dpdk_parse_bare(const uint8_t *frame, uint32_t len,
                                       struct bny_dpdk_packet *p)
{
    p->ip = p->udp_port = 0;
    return len < BNY_DPDK_ETH ? BNY_DPDK_SHORT
                              : read_packet(frame + BNY_DPDK_ETH, len - BNY_DPDK_ETH, p);
}

uint64_t bny_dpdk_check(enum bny_dpdk_checks how, const uint8_t key[32], const uint8_t *head,
                        uint32_t head_len, const void *body, uint32_t body_len)
{
    static const uint8_t zero[BNY_DPDK_CHECK];
    const uint8_t *rest = head + BNY_DPDK_HEAD + BNY_DPDK_CHECK;
    uint32_t rest_len = head_len - BNY_DPDK_HEAD - BNY_DPDK_CHECK, crc;
    crypto_generichash_state st;
    uint8_t out[16];
    uint64_t v;

    if (how == BNY_DPDK_CRC) {
        crc = bny_crc32c(0, head, BNY_DPDK_HEAD);
        crc = bny_crc32c(crc, rest, rest_len);
        return body_len ? bny_crc32c(crc, body, body_len) : crc;
    }
    crypto_generichash_init(&st, key, 32, sizeof out);
    crypto_generichash_update(&st, head, BNY_DPDK_HEAD);
    crypto_generichash_update(&st, zero, sizeof zero);
    crypto_generichash_update(&st, rest, rest_len);
    if (body_len)
        crypto_generichash_update(&st, body, body_len);
    crypto_generichash_final(&st, out, sizeof out);
    memcpy(&v, out, sizeof v);
    return v;
}

int bny_dpdk_check_ok(enum bny_dpdk_checks how, const uint8_t key[32],
                      const struct bny_dpdk_packet *p)
{
    const uint8_t *head = p->payload - p->head.length;
    uint64_t v;

    if (how == BNY_DPDK_NO_CHECK)
        return 1;
    if (!(p->head.flags & BNY_DPDK_CHECKED))
        return 0;
    memcpy(&v, head + BNY_DPDK_HEAD, sizeof v);
    return v == bny_dpdk_check(how, key, head, p->head.length, p->payload, p->len);
}

void bny_dpdk_arp_write(uint8_t f[BNY_DPDK_ARP], int answer, const struct bny_dpdk_addr *self,
                        const struct bny_dpdk_addr *other)
{
    memset(f, 0, BNY_DPDK_ARP);
    if (answer)
        memcpy(f, other->mac, 6);
    else
        memset(f, 0xff, 6);
    memcpy(f + 6, self->mac, 6);
    put16(f + 12, ETH_ARP);
    put16(f + 14, 1);
    put16(f + 16, ETH_IP);
    f[18] = 6;
    f[19] = 4;
    put16(f + 20, answer ? 2 : 1);
    memcpy(f + 22, self->mac, 6);
    put32(f + 28, self->ip);
    if (answer)
        memcpy(f + 32, other->mac, 6);
    put32(f + 38, other->ip);
}

int bny_dpdk_arp_read(const uint8_t *f, uint32_t len, const struct bny_dpdk_addr *self,
                      struct bny_dpdk_addr *other)
{
    uint32_t op;

    if (len < 42 || get16(f + 12) != ETH_ARP || get16(f + 14) != 1 || get16(f + 16) != ETH_IP ||
        f[18] != 6 || f[19] != 4 || get32(f + 38) != self->ip)
        return 0;
    op = get16(f + 20);
    memcpy(other->mac, f + 22, 6);
    other->ip = get32(f + 28);
    return op == 1 ? 1 : op == 2 ? 2 : 0;
}
