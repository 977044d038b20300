/* SPDX-License-Identifier: BSD-3-Clause */
/* Frames and acknowledgements of the dpdk transport: nothing is read beyond the frame, and a
 * flow's counts hold whatever a peer acknowledges. The input is a list of frames: two bytes of
 * length, then the bytes from our header on. */
#include <stdlib.h>
#include <string.h>

#include "transport/dpdk/flow.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ignore(void *ctx, struct bny_flow_packet *p)
{
}

static void one(struct bny_flow_tx *tx, struct bny_flow_rx *rx, const uint8_t *body, uint32_t n)
{
    static const struct bny_dpdk_addr from = { { 2 }, 1, 1 }, to = { { 4 }, 2, 2 };
    uint8_t *f =
        malloc(BNY_DPDK_ETH + n); /* exactly as long: a sanitizer sees one byte too many */
    struct bny_dpdk_packet p;

    if (!f)
        return;
    bny_dpdk_eth_init(f, &from, &to);
    memcpy(f + BNY_DPDK_ETH, body, n);
    bny_dpdk_eth_length(f, BNY_DPDK_ETH + n);
    if (bny_dpdk_parse_bare(f, BNY_DPDK_ETH + n, &p) == BNY_DPDK_OK &&
        p.payload + p.len != f + BNY_DPDK_ETH + n)
        abort();
    if (bny_dpdk_parse(f, BNY_DPDK_ETH + n, &to, &p) == BNY_DPDK_OK) {
        if (p.payload + p.len != f + BNY_DPDK_ETH + n)
            abort();
        bny_flow_ack(tx, p.head.ack, p.head.credit,
                     p.head.type == BNY_DPDK_ACK ? &p.sack : NULL, p.head.echo, 1000, ignore,
                     NULL);
        if (bny_flow_before(tx->next, tx->una) || tx->flying + tx->lost > BNY_DPDK_WINDOW)
            abort();
        if (p.head.type == BNY_DPDK_DATA)
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

    bny_flow_tx_init(&tx, 0, BNY_DPDK_WINDOW, 9000);
    for (uint32_t i = 0; bny_flow_may_send(&tx); i++)
        bny_flow_send(&tx, &tx, i, 1, 10);
    while (size >= 2) {
        uint32_t n = (uint32_t)data[0] | (uint32_t)data[1] << 8;

        data += 2;
        size -= 2;
        n = n < size ? n : (uint32_t)size;
        one(&tx, &rx, data, n);
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
