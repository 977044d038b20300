/* SPDX-License-Identifier: BSD-3-Clause */
/* Frames of the dpdk transport: what is written is read again, what is not right is told apart,
 * ARP. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "transport/dpdk/packet.h"

static const struct bny_dpdk_addr here = { { 2, 0, 0, 0, 0, 1 }, 4000, 0x0a000001 };
static const struct bny_dpdk_addr there = { { 2, 0, 0, 0, 0, 2 }, 5000, 0x0a000002 };

/* A first and last fragment of `len` bytes, checked by `how`. Returns the frame's length. */
static uint32_t make(uint8_t *f, uint32_t len, enum bny_dpdk_checks how)
{
    uint32_t extra = how ? BNY_DPDK_CHECK : 0, head_len = BNY_DPDK_HEAD + extra + 48;
    struct bny_dpdk_head h = { .magic = BNY_DPDK_MAGIC,
                               .type = BNY_DPDK_DATA,
                               .tag = 77,
                               .seq = 9,
                               .chan = 2,
                               .flags = BNY_DPDK_FIRST | BNY_DPDK_LAST,
                               .length = (uint8_t)head_len,
                               .from = 1 };
    struct bny_hdr hdr = { .chan = 2, .len = len, .seq = 5 };
    static const uint8_t key[32] = "key";
    uint64_t v;

    memset(f, 0, 2048);
    bny_dpdk_eth_init(f, &here, &there);
    if (how)
        h.flags |= BNY_DPDK_CHECKED;
    memcpy(f + 42, &h, sizeof h);
    memcpy(f + 42 + BNY_DPDK_HEAD + extra, &hdr, sizeof hdr);
    for (uint32_t i = 0; i < len; i++)
        f[42 + head_len + i] = (uint8_t)(i * 7);
    if (how) {
        v = bny_dpdk_check(how, key, f + 42, head_len, f + 42 + head_len, len);
        memcpy(f + 42 + BNY_DPDK_HEAD, &v, sizeof v);
    }
    bny_dpdk_eth_length(f, 42 + head_len + len);
    return 42 + head_len + len;
}

Test(dpdk_packet, what_is_written_is_read)
{
    uint8_t f[2048];
    struct bny_dpdk_packet p;
    uint32_t n = make(f, 1000, BNY_DPDK_NO_CHECK);

    cr_assert_eq(bny_dpdk_parse(f, n, &there, &p), BNY_DPDK_OK);
    cr_assert(p.head.tag == 77 && p.head.seq == 9 && p.hdr.len == 1000 && p.len == 1000 &&
              p.payload[3] == 21);
    cr_assert_eq(p.ip, here.ip);
    cr_assert_eq(bny_dpdk_parse(f, n + 30, &there, &p), BNY_DPDK_OK,
                 "padding of the link is not payload");
    cr_assert_eq(p.len, 1000);
    bny_dpdk_udp_sum(f, 42 + BNY_DPDK_HEAD + 48, f + 42 + BNY_DPDK_HEAD + 48, 1000);
    cr_assert_neq(f[40] << 8 | f[41], 0);
    cr_assert_eq(bny_dpdk_parse(f, n, &there, &p), BNY_DPDK_OK);
}

Test(dpdk_packet, strangers_and_cut_frames_are_told_apart)
{
    uint8_t f[2048];
    struct bny_dpdk_packet p;
    struct bny_dpdk_addr other = there;
    uint32_t n = make(f, 200, BNY_DPDK_NO_CHECK);

    for (uint32_t cut = 0; cut < n; cut++)
        cr_assert_neq(bny_dpdk_parse(f, cut, &there, &p), BNY_DPDK_OK, "cut to %u", cut);
    other.port = 5001;
    cr_assert_eq(bny_dpdk_parse(f, n, &other, &p), BNY_DPDK_FOREIGN);
    other = there;
    other.ip = 3;
    cr_assert_eq(bny_dpdk_parse(f, n, &other, &p), BNY_DPDK_FOREIGN);
    f[14 + 8] ^= 1; /* time to live: the header's sum is wrong now */
    cr_assert_eq(bny_dpdk_parse(f, n, &there, &p), BNY_DPDK_BAD_HEAD);
}

Test(dpdk_packet, impossible_fragments_are_refused)
{
    static const struct {
        const char *what;
        uint32_t at; /* of a byte in the frame */
        uint8_t value;
    } wrong[] = {
        { "channel", 42 + 19, 9 },
        { "offset without FIRST cleared", 42 + 32, 64 },
        { "odd offset", 42 + 32, 3 },
        { "header's length", 42 + 18, 20 },
        { "header beyond frame", 42 + 18, 255 },
        { "type", 42 + 2, 77 },
        { "not last, but whole", 42 + 3, BNY_DPDK_FIRST },
        { "magic", 42, 0 },
    };
    struct bny_dpdk_packet p;
    uint8_t f[2048];
    uint32_t n;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        n = make(f, 100, BNY_DPDK_NO_CHECK);
        f[wrong[i].at] = wrong[i].value;
        cr_assert_neq(bny_dpdk_parse(f, n, &there, &p), BNY_DPDK_OK, "%s", wrong[i].what);
    }
}

Test(dpdk_packet, checks_find_every_changed_bit)
{
    static const uint8_t key[32] = "key", wrong_key[32] = "kez";
    uint8_t f[2048];
    struct bny_dpdk_packet p;
    uint32_t n;

    for (enum bny_dpdk_checks how = BNY_DPDK_CRC; how <= BNY_DPDK_MAC; how++) {
        n = make(f, 100, how);
        cr_assert_eq(bny_dpdk_parse(f, n, &there, &p), BNY_DPDK_OK);
        cr_assert(bny_dpdk_check_ok(how, key, &p));
        cr_assert_eq(bny_dpdk_check_ok(how, wrong_key, &p), how == BNY_DPDK_CRC);
        for (uint32_t bit = 42 * 8; bit < n * 8; bit++) {
            f[bit / 8] ^= (uint8_t)(1u << bit % 8);
            if (bny_dpdk_parse(f, n, &there, &p) == BNY_DPDK_OK)
                cr_assert_not(bny_dpdk_check_ok(how, key, &p), "bit %u", bit);
            f[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        n = make(f, 100, BNY_DPDK_NO_CHECK);
        bny_dpdk_parse(f, n, &there, &p);
        cr_assert_not(bny_dpdk_check_ok(how, key, &p), "a packet without a check");
    }
}

Test(dpdk_packet, random_bytes_never_read_beyond_the_frame)
{
    uint64_t rng = 5;

    for (int i = 0; i < 200000; i++) { /* the sanitizers watch */
        uint32_t n = (uint32_t)bny_rng_below(&rng, 300);
        uint8_t *f = malloc(n + 1u), big[2048];
        struct bny_dpdk_packet p;

        make(big, 100, BNY_DPDK_NO_CHECK);
        memcpy(f, big, n);
        for (uint32_t k = 0; k < 4 && n; k++)
            f[bny_rng_below(&rng, n)] = (uint8_t)bny_rng_next(&rng);
        if (bny_dpdk_parse(f, n, &there, &p) == BNY_DPDK_OK)
            cr_assert(p.payload >= f && p.payload + p.len <= f + n);
        free(f);
    }
}

Test(dpdk_packet, arp_is_asked_and_answered)
{
    uint8_t f[BNY_DPDK_ARP];
    struct bny_dpdk_addr who;

    bny_dpdk_arp_write(f, 0, &here, &there);
    cr_assert_eq(bny_dpdk_arp_read(f, sizeof f, &there, &who), 1);
    cr_assert(who.ip == here.ip && !memcmp(who.mac, here.mac, 6));
    cr_assert_eq(bny_dpdk_arp_read(f, sizeof f, &here, &who), 0, "for somebody else");
    cr_assert_eq(bny_dpdk_arp_read(f, 30, &there, &who), 0, "cut");
    bny_dpdk_arp_write(f, 1, &there, &here);
    cr_assert_eq(bny_dpdk_arp_read(f, sizeof f, &here, &who), 2);
    cr_assert(who.ip == there.ip && !memcmp(who.mac, there.mac, 6));
}
