/* SPDX-License-Identifier: BSD-3-Clause */
/* Frames: Ethernet, IPv4 or IPv6, UDP, our header (packet.h). */
#include "transport/datagram/packet.h"

#include <string.h>

#include <sodium.h>

#include "base/crc32c.h"

#define ETH_IP  0x0800u
#define ETH_IP6 0x86ddu
#define UDP     17u

/* Carries are added at the end: 2^16 is 1 in this arithmetic, so 32-bit words work as well. */
uint64_t bny_dgram_sum(uint64_t sum, const void *at, size_t len)
{
    const uint8_t *p = at;
    uint32_t w, last = 0;

    for (; len >= 4; p += 4, len -= 4) {
        memcpy(&w, p, 4);
        sum += w;
    }
    memcpy(&last, p, len);
    return sum + last;
}

uint16_t bny_dgram_sum_end(uint64_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

static int is_6(const uint8_t *eth)
{
    return eth[14] >> 4 == 6;
}

/* Offset of the UDP header. */
static uint32_t udp_at(const uint8_t *eth)
{
    return is_6(eth) ? 54 : 34;
}

/* RFC 6437: a well distributed number for the flow; never 0. */
static void put_flow_label(uint8_t *ip, uint32_t from, uint32_t to)
{
    uint32_t label = ((from << 16 | to) * 0x9e3779b1u) >> 12 | 1;

    ip[1] = (uint8_t)(label >> 16);
    bny_dgram_put16(ip + 2, label & 0xffff);
}

void bny_dgram_eth_init(uint8_t eth[BNY_DGRAM_ETH6], const struct bny_dgram_addr *from,
                        const struct bny_dgram_addr *to)
{
    int is4 = bny_dgram_ip_is4(&from->ip);
    uint8_t *ip = eth + 14, *udp = eth + bny_dgram_eth_bytes(&from->ip) - 8;

    memset(eth, 0, BNY_DGRAM_ETH6);
    memcpy(eth, to->mac, 6);
    memcpy(eth + 6, from->mac, 6);
    bny_dgram_put16(eth + 12, is4 ? ETH_IP : ETH_IP6);
    if (is4) {
        ip[0] = 0x45;
        ip[6] = 0x40; /* don't fragment */
        ip[8] = 64;
        ip[9] = UDP;
        memcpy(ip + 12, from->ip.at + BNY_DGRAM_IP4_AT, 4);
        memcpy(ip + 16, to->ip.at + BNY_DGRAM_IP4_AT, 4);
    } else {
        ip[0] = 0x60;
        put_flow_label(ip, from->port, to->port);
        ip[6] = UDP;
        ip[7] = 64;
        memcpy(ip + 8, from->ip.at, 16);
        memcpy(ip + 24, to->ip.at, 16);
    }
    bny_dgram_put16(udp, from->port);
    bny_dgram_put16(udp + 2, to->port);
}

void bny_dgram_eth_lane(uint8_t *eth, const struct bny_dgram_addr *from, unsigned lane)
{
    uint32_t port = (from->port + lane) & 0xffff;

    bny_dgram_put16(eth + udp_at(eth), port);
    if (is_6(eth))
        put_flow_label(eth + 14, port, bny_dgram_get16(eth + udp_at(eth) + 2));
}

void bny_dgram_eth_length(uint8_t *eth, uint32_t bytes)
{
    uint8_t *ip = eth + 14, *udp = eth + udp_at(eth);
    uint16_t sum = 0;

    if (is_6(eth)) {
        bny_dgram_put16(ip + 4, bytes - 54);
    } else {
        bny_dgram_put16(ip + 2, bytes - 14);
        memcpy(ip + 10, &sum, 2);
        sum = bny_dgram_sum_end(bny_dgram_sum(0, ip, 20));
        memcpy(ip + 10, &sum, 2);
    }
    bny_dgram_put16(udp + 4, bytes - udp_at(eth));
    bny_dgram_put16(udp + 6, 0);
}

/* Sum of addresses, protocol and length for UDP's checksum. */
static uint64_t pseudo_sum(const uint8_t *eth, uint32_t udp_len)
{
    uint8_t more[8] = { 0 };

    bny_dgram_put16(more, udp_len >> 16);
    bny_dgram_put16(more + 2, udp_len & 0xffff);
    more[7] = UDP;
    return bny_dgram_sum(bny_dgram_sum(0, eth + (is_6(eth) ? 22 : 26), is_6(eth) ? 32 : 8),
                         more, sizeof more);
}

void bny_dgram_udp_sum(uint8_t *head, uint32_t head_len, const void *body, uint32_t body_len)
{
    uint32_t at = udp_at(head);
    uint64_t sum = pseudo_sum(head, head_len - at + body_len);
    uint16_t v;

    bny_dgram_put16(head + at + 6, 0);
    sum = bny_dgram_sum(sum, head + at, head_len - at); /* even length, as headers have */
    v = bny_dgram_sum_end(body_len ? bny_dgram_sum(sum, body, body_len) : sum);
    if (!v)
        v = 0xffff;
    memcpy(head + at + 6, &v, 2);
}

int bny_dgram_udp_sum_ok(const uint8_t *frame)
{
    const uint8_t *udp = frame + udp_at(frame);
    uint32_t len = bny_dgram_get16(udp + 4);

    return bny_dgram_get16(udp + 6) &&
           bny_dgram_sum_end(bny_dgram_sum(pseudo_sum(frame, len), udp, len)) == 0;
}

/* The frame's UDP payload, or NULL. */
static const uint8_t *unwrap4(const uint8_t *f, uint32_t len, const struct bny_dgram_addr *self,
                              uint32_t *bytes, struct bny_dgram_packet *out,
                              enum bny_dgram_drop *why)
{
    const uint8_t *ip = f + 14, *udp = f + 34;
    uint32_t ip_len, udp_len;

    if (len < BNY_DGRAM_ETH || ip[0] != 0x45 || ip[9] != UDP ||
        (bny_dgram_get16(ip + 6) & 0x3fff) || bny_dgram_get16(udp + 2) != self->port ||
        (!bny_dgram_ip_none(&self->ip) &&
         (!bny_dgram_ip_is4(&self->ip) ||
          memcmp(ip + 16, self->ip.at + BNY_DGRAM_IP4_AT, 4) != 0)))
        return NULL;
    *why = BNY_DGRAM_SHORT;
    ip_len = bny_dgram_get16(ip + 2);
    udp_len = bny_dgram_get16(udp + 4);
    if (ip_len > len - 14 || ip_len < 28 || udp_len != ip_len - 20)
        return NULL;
    *why = BNY_DGRAM_BAD_HEAD;
    if (bny_dgram_sum_end(bny_dgram_sum(0, ip, 20)) != 0)
        return NULL;
    out->ip = (struct bny_dgram_ip)BNY_DGRAM_IP4(0);
    memcpy(out->ip.at + BNY_DGRAM_IP4_AT, ip + 12, 4);
    *bytes = udp_len - 8;
    return f + BNY_DGRAM_ETH;
}

static const uint8_t *unwrap6(const uint8_t *f, uint32_t len, const struct bny_dgram_addr *self,
                              uint32_t *bytes, struct bny_dgram_packet *out,
                              enum bny_dgram_drop *why)
{
    const uint8_t *ip = f + 14, *udp = f + 54;
    uint32_t udp_len;

    if (len < BNY_DGRAM_ETH6 || ip[0] >> 4 != 6 || ip[6] != UDP ||
        bny_dgram_get16(udp + 2) != self->port ||
        (!bny_dgram_ip_none(&self->ip) && memcmp(ip + 24, &self->ip, 16) != 0))
        return NULL;
    *why = BNY_DGRAM_SHORT;
    udp_len = bny_dgram_get16(udp + 4);
    if (udp_len != bny_dgram_get16(ip + 4) || udp_len > len - 54 || udp_len < 8)
        return NULL;
    memcpy(&out->ip, ip + 8, 16);
    *bytes = udp_len - 8;
    return f + BNY_DGRAM_ETH6;
}

static const uint8_t *unwrap(const uint8_t *f, uint32_t len, const struct bny_dgram_addr *self,
                             uint32_t *bytes, struct bny_dgram_packet *out,
                             enum bny_dgram_drop *why)
{
    const uint8_t *payload;

    *why = BNY_DGRAM_FOREIGN;
    if (len < BNY_DGRAM_ETH ||
        (bny_dgram_get16(f + 12) != ETH_IP && bny_dgram_get16(f + 12) != ETH_IP6))
        return NULL;
    payload =
        (bny_dgram_get16(f + 12) == ETH_IP ? unwrap4 : unwrap6)(f, len, self, bytes, out, why);
    if (payload)
        out->udp_port = bny_dgram_get16(payload - 8);
    return payload;
}

static int plausible(const struct bny_dgram_packet *p)
{
    const struct bny_dgram_head *h = &p->head;

    if (h->type == BNY_DGRAM_DATA) {
        if (h->chan >= BNY_CHANNELS || h->off % 64 ||
            !(h->flags & BNY_DGRAM_FIRST) != (h->off != 0) ||
            (!(h->flags & BNY_DGRAM_LAST) && (p->len % 64 || p->len == 0)) ||
            p->len > UINT32_MAX - h->off)
            return 0;
        if (h->flags & BNY_DGRAM_BYE)
            return p->len == 0 && (h->flags & BNY_DGRAM_FIRST) && (h->flags & BNY_DGRAM_LAST);
        if (!(h->flags & BNY_DGRAM_FIRST))
            return p->len > 0;
        return p->hdr.chan == h->chan && p->len <= p->hdr.len &&
               !(h->flags & BNY_DGRAM_LAST) == (p->len < p->hdr.len);
    }
    if (h->type == BNY_DGRAM_ACK)
        return (p->sack.first || !(p->sack.bits[0] & 1)) && p->sack.first % 64 == 0 &&
               p->sack.first <= BNY_DGRAM_WIDEST - BNY_DGRAM_WINDOW &&
               h->credit <= BNY_DGRAM_WIDEST;
    return h->type >= BNY_DGRAM_PROBE && h->type <= BNY_DGRAM_ABORT;
}

/* Reads what follows the network's headers. */
static enum bny_dgram_drop read_packet(const uint8_t *u, uint32_t bytes,
                                       struct bny_dgram_packet *p)
{
    uint32_t need = BNY_DGRAM_HEAD, at;

    if (bytes < BNY_DGRAM_HEAD)
        return BNY_DGRAM_SHORT;
    memcpy(&p->head, u, BNY_DGRAM_HEAD);
    if (p->head.magic != BNY_DGRAM_MAGIC)
        return BNY_DGRAM_FOREIGN;
    if (p->head.flags & BNY_DGRAM_CHECKED)
        need += BNY_DGRAM_CHECK;
    at = need;
    if (p->head.type == BNY_DGRAM_DATA && (p->head.flags & BNY_DGRAM_FIRST))
        need += (uint32_t)sizeof p->hdr;
    else if (p->head.type == BNY_DGRAM_ACK)
        need += (uint32_t)sizeof p->sack;
    if (p->head.length < need)
        return BNY_DGRAM_BAD_HEAD;
    if (p->head.length > bytes)
        return BNY_DGRAM_SHORT;
    if (p->head.type == BNY_DGRAM_ACK)
        memcpy(&p->sack, u + at, sizeof p->sack);
    else if (need - at == sizeof p->hdr)
        memcpy(&p->hdr, u + at, sizeof p->hdr);
    p->payload = u + p->head.length;
    p->len = bytes - p->head.length;
    return plausible(p) ? BNY_DGRAM_OK : BNY_DGRAM_BAD_HEAD;
}

enum bny_dgram_drop bny_dgram_parse(const uint8_t *frame, uint32_t len,
                                    const struct bny_dgram_addr *self,
                                    struct bny_dgram_packet *p)
{
    enum bny_dgram_drop why;
    uint32_t bytes = 0;
    const uint8_t *u = unwrap(frame, len, self, &bytes, p, &why);

    return u ? read_packet(u, bytes, p) : why;
}

enum bny_dgram_drop bny_dgram_parse_bare(const uint8_t *frame, uint32_t len,
                                         struct bny_dgram_packet *p)
{
    memset(&p->ip, 0, sizeof p->ip);
    p->udp_port = 0;
    return len < BNY_DGRAM_ETH ? BNY_DGRAM_SHORT
                               : read_packet(frame + BNY_DGRAM_ETH, len - BNY_DGRAM_ETH, p);
}

uint64_t bny_dgram_check(enum bny_dgram_checks how, const uint8_t key[32], uint64_t high,
                         const uint8_t *head, uint32_t head_len, const void *body,
                         uint32_t body_len)
{
    static const uint8_t zero[BNY_DGRAM_CHECK];
    const uint8_t *rest = head + BNY_DGRAM_HEAD + BNY_DGRAM_CHECK;
    uint32_t rest_len = head_len - BNY_DGRAM_HEAD - BNY_DGRAM_CHECK, crc;
    crypto_generichash_state st;
    uint8_t out[16];
    uint64_t v;

    if (how == BNY_DGRAM_CRC) {
        crc = bny_crc32c(0, head, BNY_DGRAM_HEAD);
        crc = bny_crc32c(crc, rest, rest_len);
        return body_len ? bny_crc32c(crc, body, body_len) : crc;
    }
    crypto_generichash_init(&st, key, 32, sizeof out);
    crypto_generichash_update(&st, (const uint8_t *)&high, sizeof high);
    crypto_generichash_update(&st, head, BNY_DGRAM_HEAD);
    crypto_generichash_update(&st, zero, sizeof zero);
    crypto_generichash_update(&st, rest, rest_len);
    if (body_len)
        crypto_generichash_update(&st, body, body_len);
    crypto_generichash_final(&st, out, sizeof out);
    memcpy(&v, out, sizeof v);
    return v;
}

int bny_dgram_check_ok(enum bny_dgram_checks how, const uint8_t key[32], uint64_t high,
                       const struct bny_dgram_packet *p)
{
    const uint8_t *head = p->payload - p->head.length;
    uint64_t v;

    if (how == BNY_DGRAM_NO_CHECK)
        return 1;
    if (!(p->head.flags & BNY_DGRAM_CHECKED))
        return 0;
    memcpy(&v, head + BNY_DGRAM_HEAD, sizeof v);
    return v == bny_dgram_check(how, key, high, head, p->head.length, p->payload, p->len);
}
