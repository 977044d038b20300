/* SPDX-License-Identifier: BSD-3-Clause */
/* Frames and acknowledgements of the dpdk transport, over IPv4 and IPv6: nothing is read beyond
 * the frame, and a flow's counts hold whatever a peer acknowledges. The input is a list of
 * frames: two bytes of length, then the bytes from our header on. Each is read as a frame of
 * ARP, neighbour discovery and ICMPv6, too: from its type on, and with a checksum that is
 * right. */
#include <stdlib.h>
#include <string.h>

#include "transport/datagram/flow.h"
#include "transport/datagram/neighbour.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ignore(void *ctx, struct bny_flow_packet *p)
{
}

static const struct bny_dgram_addr ends[2][2] = {
    { { { 2 }, 1, BNY_DGRAM_IP4(1) }, { { 4 }, 2, BNY_DGRAM_IP4(2) } },
    { { { 2 }, 1, { { 0xfd, 1 } } }, { { 4 }, 2, { { 0xfd, 2 } } } },
};

/* What anybody on the link may send. */
static void hear(const uint8_t *f, uint32_t n, const struct bny_dgram_addr *self)
{
    struct bny_dgram_addr who;
    uint32_t frame;
    int what = bny_dgram_neighbour_read(f, n, self, &who);

    if (what < 0 || what > 2)
        abort();
    frame = bny_dgram_too_big(f, n, self, &who);
    if (frame && (frame < 1294 || what))
        abort();
}

static void on_link(const uint8_t *body, uint32_t n)
{
    static const uint8_t types[2][2] = { { 8, 6 }, { 0x86, 0xdd } };

    for (int is6 = 0; is6 < 2; is6++) {
        uint8_t *f = malloc(12 + n + !n);
        uint16_t sum;

        if (!f)
            return;
        memset(f, 2, 12);
        memcpy(f + 12, body, n);
        if (n >= 2)
            memcpy(f + 12, types[is6], 2);
        hear(f, 12 + n, &ends[is6][1]);
        if (is6 && n >= 12 + 54) { /* as if the sender had known the address and the sum */
            uint8_t more[8] = { 0, 0, f[18], f[19], 0, 0, 0, 58 };
            uint32_t bytes = (uint32_t)f[18] << 8 | f[19];

            f[14] = 0x60;
            f[20] = 58;
            memcpy(f + 38, &ends[1][1].ip, 16);
            memset(f + 56, 0, 2);
            if (bytes <= 12 + n - 54) {
                sum = bny_dgram_sum_end(bny_dgram_sum(
                    bny_dgram_sum(bny_dgram_sum(0, f + 22, 32), more, 8), f + 54, bytes));
                memcpy(f + 56, &sum, 2);
            }
            hear(f, 12 + n, &ends[1][1]);
        }
        free(f);
    }
}

static void one(struct bny_flow_tx *tx, struct bny_flow_rx *rx, int is6, const uint8_t *body,
                uint32_t n)
{
    const struct bny_dgram_addr *from = &ends[is6][0], *to = &ends[is6][1];
    uint32_t eth = bny_dgram_eth_bytes(&to->ip);
    /* exactly as long: a sanitizer sees one byte too many */
    uint8_t *f = malloc((eth > BNY_DGRAM_ETH6 ? eth : BNY_DGRAM_ETH6) + n),
            *exact = malloc(eth + n);
    struct bny_dgram_packet p;

    if (!f || !exact)
        abort();
    bny_dgram_eth_init(f, from, to);
    memcpy(f + eth, body, n);
    bny_dgram_eth_length(f, eth + n);
    memcpy(exact, f, eth + n);
    free(f);
    f = exact;
    if (!is6 && bny_dgram_parse_bare(f, eth + n, &p) == BNY_DGRAM_OK &&
        p.payload + p.len != f + eth + n)
        abort();
    if (bny_dgram_parse(f, eth + n, to, &p) == BNY_DGRAM_OK) {
        if (p.payload + p.len != f + eth + n || bny_dgram_udp_sum_ok(f))
            abort();
        bny_dgram_udp_sum(f, eth, f + eth, n);
        if (!bny_dgram_udp_sum_ok(f))
            abort();
        bny_flow_ack(tx, p.head.ack, p.head.credit,
                     p.head.type == BNY_DGRAM_ACK ? &p.sack : NULL, p.head.echo, 1000, ignore,
                     NULL);
        if (bny_flow_before(tx->next, tx->una) || tx->flying + tx->lost > BNY_DGRAM_WINDOW)
            abort();
        if (p.head.type == BNY_DGRAM_DATA)
            bny_flow_arrived(rx, p.head.seq);
        if (rx->bits[0] & 1)
            abort();
    }
    free(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bny_flow_tx tx;
    struct bny_flow_rx rx = { 0 };
    uint32_t seq;

    bny_flow_tx_init(&tx, 0, BNY_DGRAM_WINDOW, 9000);
    for (uint32_t i = 0; bny_flow_may_send(&tx); i++)
        bny_flow_send(&tx, &tx, i, 1, 10);
    while (size >= 2) {
        uint32_t n = (uint32_t)data[0] | (uint32_t)data[1] << 8;

        data += 2;
        size -= 2;
        n = n < size ? n : (uint32_t)size;
        one(&tx, &rx, 0, data, n);
        one(&tx, &rx, 1, data, n);
        on_link(data, n);
        data += n;
        size -= n;
        bny_flow_tick(&tx, 100000000);
        while (bny_flow_resend(&tx, &seq, 100000000))
            continue;
        if (bny_flow_may_send(&tx))
            bny_flow_send(&tx, &tx, 0, 1, 100000000);
    }
    return 0;
}
