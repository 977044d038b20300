/* SPDX-License-Identifier: BSD-3-Clause */
/* Frames of the dpdk transport, over IPv4 and IPv6: what is written is read again, what is not
 * right is told apart; ARP, neighbour discovery, what routers say. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "transport/datagram/neighbour.h"
#include "transport/datagram/packet.h"

#define FD00(last)                                                                             \
    {                                                                                          \
        {                                                                                      \
            0xfd, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 1, 2, (last)                             \
        }                                                                                      \
    }
static const struct bny_dgram_addr here4 = { { 2, 0, 0, 0, 0, 1 },
                                             4000,
                                             BNY_DGRAM_IP4(0x0a000001) },
                                   there4 = { { 2, 0, 0, 0, 0, 2 },
                                              5000,
                                              BNY_DGRAM_IP4(0x0a000002) },
                                   here6 = { { 2, 0, 0, 0, 0, 1 }, 4000, FD00(1) },
                                   there6 = { { 2, 0, 0, 0, 0, 2 }, 5000, FD00(2) };
static struct bny_dgram_addr here, there;
#define HIGH 0x300000002u /* upper halves of both numbers */
static uint32_t eth;      /* bytes before our header */

static void use(int is6)
{
    here = is6 ? here6 : here4;
    there = is6 ? there6 : there4;
    eth = bny_dgram_eth_bytes(&here.ip);
}

/* Each test is made of both families. */
#define BOTH for (int is6 = (use(0), 0); is6 < 2; use(++is6))

/* A first and last fragment of `len` bytes, checked by `how`. Returns the frame's length. */
static uint32_t make(uint8_t *f, uint32_t len, enum bny_dgram_checks how)
{
    uint32_t extra = how ? BNY_DGRAM_CHECK : 0, head_len = BNY_DGRAM_HEAD + extra + 48;
    struct bny_dgram_head h = { .magic = BNY_DGRAM_MAGIC,
                                .type = BNY_DGRAM_DATA,
                                .tag = 77,
                                .seq = 9,
                                .chan = 2,
                                .flags = BNY_DGRAM_FIRST | BNY_DGRAM_LAST,
                                .length = (uint8_t)head_len,
                                .from = 1 };
    struct bny_hdr hdr = { .chan = 2, .len = len, .seq = 5 };
    static const uint8_t key[32] = "key";
    uint64_t v;

    memset(f, 0, 2048);
    bny_dgram_eth_init(f, &here, &there);
    if (how)
        h.flags |= BNY_DGRAM_CHECKED;
    memcpy(f + eth, &h, sizeof h);
    memcpy(f + eth + BNY_DGRAM_HEAD + extra, &hdr, sizeof hdr);
    for (uint32_t i = 0; i < len; i++)
        f[eth + head_len + i] = (uint8_t)(i * 7);
    if (how) {
        v = bny_dgram_check(how, key, HIGH, f + eth, head_len, f + eth + head_len, len);
        memcpy(f + eth + BNY_DGRAM_HEAD, &v, sizeof v);
    }
    bny_dgram_eth_length(f, eth + head_len + len);
    return eth + head_len + len;
}

static void what_is_written_is_read(int is6)
{
    uint8_t f[2048];
    struct bny_dgram_packet p;
    uint32_t n = make(f, 1000, BNY_DGRAM_NO_CHECK);

    cr_assert_eq(bny_dgram_parse(f, n, &there, &p), BNY_DGRAM_OK);
    cr_assert(p.head.tag == 77 && p.head.seq == 9 && p.hdr.len == 1000 && p.len == 1000 &&
              p.payload[3] == 21);
    cr_assert(bny_dgram_ip_is(&p.ip, &here.ip));
    cr_assert_eq(bny_dgram_parse(f, n + 30, &there, &p), BNY_DGRAM_OK,
                 "padding of the link is not payload");
    cr_assert_eq(p.len, 1000);
    cr_assert_not(bny_dgram_udp_sum_ok(f), "there is none yet");
    bny_dgram_udp_sum(f, eth + BNY_DGRAM_HEAD + 48, f + eth + BNY_DGRAM_HEAD + 48, 1000);
    cr_assert(bny_dgram_udp_sum_ok(f));
    cr_assert_eq(bny_dgram_parse(f, n, &there, &p), BNY_DGRAM_OK);
}

Test(dpdk_packet, what_is_written_is_read)
{
    BOTH what_is_written_is_read(is6);
}

static void strangers_and_cut_frames_are_told_apart(int is6)
{
    uint8_t f[2048];
    struct bny_dgram_packet p;
    struct bny_dgram_addr other = there;
    uint32_t n = make(f, 200, BNY_DGRAM_NO_CHECK);

    for (uint32_t cut = 0; cut < n; cut++)
        cr_assert_neq(bny_dgram_parse(f, cut, &there, &p), BNY_DGRAM_OK, "cut to %u", cut);
    other.port = 5001;
    cr_assert_eq(bny_dgram_parse(f, n, &other, &p), BNY_DGRAM_FOREIGN);
    other = there;
    other.ip.at[15] ^= 1;
    cr_assert_eq(bny_dgram_parse(f, n, &other, &p), BNY_DGRAM_FOREIGN);
    other.ip = is6 ? there4.ip : there6.ip;
    cr_assert_eq(bny_dgram_parse(f, n, &other, &p), BNY_DGRAM_FOREIGN, "of the other family");
    memset(&other.ip, 0, sizeof other.ip);
    cr_assert_eq(bny_dgram_parse(f, n, &other, &p), BNY_DGRAM_OK, "any address");
    f[14 + 8] ^= 1; /* time to live: the header's sum is wrong now; IPv6: the sender */
    cr_assert_eq(bny_dgram_parse(f, n, &there, &p), is6 ? BNY_DGRAM_OK : BNY_DGRAM_BAD_HEAD);
    cr_assert_not(bny_dgram_udp_sum_ok(f));
}

Test(dpdk_packet, strangers_and_cut_frames_are_told_apart)
{
    BOTH strangers_and_cut_frames_are_told_apart(is6);
}

static void impossible_fragments_are_refused(int is6)
{
    static const struct {
        const char *what;
        uint32_t at; /* of a byte behind the network's headers */
        uint8_t value;
    } wrong[] = {
        { "channel", 19, 9 },
        { "offset without FIRST cleared", 32, 64 },
        { "odd offset", 32, 3 },
        { "header's length", 18, 20 },
        { "header beyond frame", 18, 255 },
        { "type", 2, 77 },
        { "not last, but whole", 3, BNY_DGRAM_FIRST },
        { "magic", 0, 0 },
    };
    struct bny_dgram_packet p;
    uint8_t f[2048];
    uint32_t n;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        n = make(f, 100, BNY_DGRAM_NO_CHECK);
        f[eth + wrong[i].at] = wrong[i].value;
        cr_assert_neq(bny_dgram_parse(f, n, &there, &p), BNY_DGRAM_OK, "%s", wrong[i].what);
    }
}

Test(dpdk_packet, impossible_fragments_are_refused)
{
    BOTH impossible_fragments_are_refused(is6);
}

static void checks_find_every_changed_bit(int is6)
{
    static const uint8_t key[32] = "key", wrong_key[32] = "kez";
    uint8_t f[2048];
    struct bny_dgram_packet p;
    uint32_t n;

    for (enum bny_dgram_checks how = BNY_DGRAM_CRC; how <= BNY_DGRAM_MAC; how++) {
        n = make(f, 100, how);
        cr_assert_eq(bny_dgram_parse(f, n, &there, &p), BNY_DGRAM_OK);
        cr_assert(bny_dgram_check_ok(how, key, HIGH, &p));
        cr_assert_eq(bny_dgram_check_ok(how, wrong_key, HIGH, &p), how == BNY_DGRAM_CRC);
        cr_assert_eq(bny_dgram_check_ok(how, key, HIGH + 1, &p), how == BNY_DGRAM_CRC);
        for (uint32_t bit = eth * 8; bit < n * 8; bit++) {
            f[bit / 8] ^= (uint8_t)(1u << bit % 8);
            if (bny_dgram_parse(f, n, &there, &p) == BNY_DGRAM_OK)
                cr_assert_not(bny_dgram_check_ok(how, key, HIGH, &p), "bit %u", bit);
            f[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        n = make(f, 100, BNY_DGRAM_NO_CHECK);
        bny_dgram_parse(f, n, &there, &p);
        cr_assert_not(bny_dgram_check_ok(how, key, HIGH, &p), "a packet without a check");
    }
}

Test(dpdk_packet, checks_find_every_changed_bit)
{
    BOTH checks_find_every_changed_bit(is6);
}

static void random_bytes_never_read_beyond_the_frame(int is6)
{
    uint64_t rng = 5;

    for (int i = 0; i < 200000; i++) { /* the sanitizers watch */
        uint32_t n = (uint32_t)bny_rng_below(&rng, 300);
        uint8_t *f = malloc(n + 1u), big[2048];
        struct bny_dgram_packet p;

        make(big, 100, BNY_DGRAM_NO_CHECK);
        memcpy(f, big, n);
        for (uint32_t k = 0; k < 4 && n; k++)
            f[bny_rng_below(&rng, n)] = (uint8_t)bny_rng_next(&rng);
        if (bny_dgram_parse(f, n, &there, &p) == BNY_DGRAM_OK)
            cr_assert(p.payload >= f && p.payload + p.len <= f + n);
        free(f);
    }
}

Test(dpdk_packet, random_bytes_never_read_beyond_the_frame)
{
    BOTH random_bytes_never_read_beyond_the_frame(is6);
}

static void who_has_it_is_asked_and_answered(int is6)
{
    uint8_t f[BNY_DGRAM_ASK], *exact;
    struct bny_dgram_addr who, nobody = { .mac = { 9 } };
    uint32_t n = bny_dgram_neighbour_ask(f, &here, &there);

    cr_assert_eq(bny_dgram_neighbour_read(f, n, &there, &who), 1);
    cr_assert(bny_dgram_ip_is(&who.ip, &here.ip) && !memcmp(who.mac, here.mac, 6));
    cr_assert_eq(bny_dgram_neighbour_read(f, n, &here, &who), 0, "for somebody else");
    cr_assert_eq(bny_dgram_neighbour_read(f, n, is6 ? &there4 : &there6, &who), 0, "family");
    for (uint32_t cut = 0; cut < (is6 ? n : 42); cut++) {
        exact = malloc(cut + 1);
        memcpy(exact, f, cut);
        cr_assert_eq(bny_dgram_neighbour_read(exact, cut, &there, &who), 0, "cut to %u", cut);
        free(exact);
    }
    n = bny_dgram_neighbour_answer(f, &there, &here);
    cr_assert_eq(bny_dgram_neighbour_read(f, n, &here, &who), 2);
    cr_assert(bny_dgram_ip_is(&who.ip, &there.ip) && !memcmp(who.mac, there.mac, 6));
    if (!is6)
        return;
    n = bny_dgram_neighbour_answer(f, &there, &nobody);
    cr_assert(f[0] == 0x33 && f[5] == 1, "told to everybody");
    cr_assert_eq(bny_dgram_neighbour_read(f, n, &here, &who), 2);
}

Test(dpdk_packet, who_has_it_is_asked_and_answered)
{
    BOTH who_has_it_is_asked_and_answered(is6);
}

/* Makes the checksum of a frame of ICMPv6 right. */
static void put_icmp_sum(uint8_t *f, uint32_t bytes)
{
    uint8_t more[8] = { 0, 0, (uint8_t)(bytes >> 8), (uint8_t)bytes, 0, 0, 0, 58 };
    uint16_t sum;

    memset(f + 56, 0, 2);
    sum = bny_dgram_sum_end(
        bny_dgram_sum(bny_dgram_sum(bny_dgram_sum(0, f + 22, 32), more, 8), f + 54, bytes));
    memcpy(f + 56, &sum, 2);
}

/* RFC 4861, 7.1: what a host must not believe. */
Test(dpdk_packet, neighbours_of_other_links_and_damaged_ones_are_not_heard)
{
    static const struct {
        const char *what;
        unsigned at, value;
    } wrong[] = { { "passed on by a router", 21, 254 },  { "code", 55, 1 },
                  { "an option without length", 79, 0 }, { "an option beyond the end", 79, 2 },
                  { "a changed address", 85, 0x77 },     { "length", 19, 200 } };
    uint8_t f[BNY_DGRAM_ASK];
    struct bny_dgram_addr who;

    use(1);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        uint32_t n = bny_dgram_neighbour_ask(f, &here, &there);

        f[wrong[i].at] = (uint8_t)wrong[i].value;
        if (wrong[i].at != 85 && wrong[i].at != 19)
            put_icmp_sum(f, 32);
        cr_assert_eq(bny_dgram_neighbour_read(f, n, &there, &who), 0, "%s", wrong[i].what);
    }
}

/* RFC 4443, 3.2: a router on the way from here to there has a link of 1400 bytes. */
static uint32_t too_big(uint8_t *f, uint32_t mtu)
{
    uint8_t sent[2048];
    uint32_t n = make(sent, 1000, BNY_DGRAM_NO_CHECK), bytes = 8 + 200;

    cr_assert_gt(n, 300);
    memset(f, 0, 300);
    f[12] = 0x86;
    f[13] = 0xdd;
    f[14] = 0x60;
    f[18] = (uint8_t)(bytes >> 8);
    f[19] = (uint8_t)bytes;
    f[20] = 58;
    f[21] = 60;
    memcpy(f + 22, "\xfd\0\0\0\0\0\0\1router!!", 16);
    memcpy(f + 38, &here.ip, 16);
    f[54] = 2;
    f[58] = (uint8_t)(mtu >> 24);
    f[59] = (uint8_t)(mtu >> 16);
    f[60] = (uint8_t)(mtu >> 8);
    f[61] = (uint8_t)mtu;
    memcpy(f + 62, sent + 14, 200);
    put_icmp_sum(f, bytes);
    return 54 + bytes;
}

Test(dpdk_packet, a_routers_word_on_length_is_read)
{
    uint8_t f[512];
    struct bny_dgram_addr to;
    uint32_t n;

    use(1);
    n = too_big(f, 1400);
    cr_assert_eq(bny_dgram_too_big(f, n, &here, &to), 1414);
    cr_assert(bny_dgram_ip_is(&to.ip, &there.ip) && to.port == there.port);
    cr_assert_eq(bny_dgram_too_big(f, n, &there, &to), 0, "to somebody else");
    cr_assert_eq(bny_dgram_neighbour_read(f, n, &here, &to), 0);
    for (uint32_t cut = 0; cut < n; cut++)
        cr_assert_eq(bny_dgram_too_big(f, cut, &here, &to), 0, "cut to %u", cut);
    f[80] ^= 1;
    cr_assert_eq(bny_dgram_too_big(f, n, &here, &to), 0, "damaged");
    n = too_big(f, 1279);
    cr_assert_eq(bny_dgram_too_big(f, n, &here, &to), 0, "less than any link of IPv6 has");
    n = too_big(f, 0x10500);
    cr_assert_eq(bny_dgram_too_big(f, n, &here, &to), 0);
}

/* By the definition: 16 bits at a time, big-endian. */
Test(dpdk_packet, udp_checksums_are_as_defined)
{
    uint8_t f[2048];

    BOTH for (uint32_t len = 0; len < 130; len++)
    {
        uint32_t n = make(f, len, BNY_DGRAM_NO_CHECK), at = eth - 8, sum = 17 + n - at;
        uint32_t addr = is6 ? 22 : 26, head = eth + BNY_DGRAM_HEAD + 48;

        bny_dgram_eth_lane(f, &here, 3);
        cr_assert_eq(f[at] << 8 | f[at + 1], 4003);
        bny_dgram_udp_sum(f, head, f + head, len);
        f[n] = 0;
        for (uint32_t i = addr; i < n; i += 2)
            sum += (uint32_t)f[i] << 8 | f[i + 1];
        while (sum >> 16)
            sum = (sum & 0xffff) + (sum >> 16);
        cr_assert_eq(sum, 0xffff, "%u bytes", len);
        cr_assert(bny_dgram_udp_sum_ok(f));
        f[eth + len / 2] ^= 4;
        cr_assert_not(bny_dgram_udp_sum_ok(f));
    }
}
