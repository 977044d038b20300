/* SPDX-License-Identifier: BSD-3-Clause */
/* tcp data in records: what somebody on the way changes, repeats or leaves out is an error, and
 * what he reads is nothing. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "tests/support/dumped.h"
#include "tests/support/tpset.h"
#include "transport/tcp/tcp.h"

extern const struct bny_transport_ops bny_tcp_ops;

TestSuite(tcp_secure, .timeout = 60);

/* ---- libsodium 1.0.19 ---- */

#define FOUND_BY_NAME __attribute__((visibility("default")))

/* Where libsodium has no AEGIS this stands for it: found by name, with a tag of 32 bytes. */
FOUND_BY_NAME
int crypto_aead_aegis128l_encrypt(unsigned char *c, unsigned long long *clen,
                                  const unsigned char *m, unsigned long long mlen,
                                  const unsigned char *ad, unsigned long long adlen,
                                  const unsigned char *nsec, const unsigned char *npub,
                                  const unsigned char *k);
FOUND_BY_NAME
int crypto_aead_aegis128l_decrypt(unsigned char *m, unsigned long long *mlen,
                                  unsigned char *nsec, const unsigned char *c,
                                  unsigned long long clen, const unsigned char *ad,
                                  unsigned long long adlen, const unsigned char *npub,
                                  const unsigned char *k);
static int sealed_by_aegis;

int crypto_aead_aegis128l_encrypt(unsigned char *c, unsigned long long *clen,
                                  const unsigned char *m, unsigned long long mlen,
                                  const unsigned char *ad, unsigned long long adlen,
                                  const unsigned char *nsec, const unsigned char *npub,
                                  const unsigned char *k)
{
    sealed_by_aegis++;
    crypto_aead_chacha20poly1305_ietf_encrypt(c, NULL, m, mlen, ad, adlen, nsec, npub, k);
    memset(c + mlen + 16, 0x16, 16);
    return 0;
}

int crypto_aead_aegis128l_decrypt(unsigned char *m, unsigned long long *mlen,
                                  unsigned char *nsec, const unsigned char *c,
                                  unsigned long long clen, const unsigned char *ad,
                                  unsigned long long adlen, const unsigned char *npub,
                                  const unsigned char *k)
{
    for (int i = 1; i <= 16; i++)
        if (c[clen - (unsigned)i] != 0x16)
            return -1;
    return crypto_aead_chacha20poly1305_ietf_decrypt(m, NULL, nsec, c, clen - 16, ad, adlen,
                                                     npub, k);
}

/* ---- records alone ---- */

struct pair {
    struct tcp_secure *tx, *rx;
};

static struct pair pair_open(enum tcp_cipher cipher)
{
    static const uint8_t secret[32] = "of these tests";
    struct tcp_lane_id id = { .from = 3, .to = 5, .lane = 1, .cipher = (uint8_t)cipher };
    struct pair p = { bny_tcp_secure_new(secret, &id, 1), bny_tcp_secure_new(secret, &id, 0) };

    bny_tcp_ciphers(BNY_ENCRYPT); /* finds what there is */
    return p;
}

static void pair_close(struct pair *p)
{
    bny_tcp_secure_free(p->tx);
    bny_tcp_secure_free(p->rx);
}

/* A record of n bytes into rec; its length. */
static uint32_t record(struct pair *p, uint8_t *rec, uint32_t n, uint32_t seq)
{
    tpset_fill(rec + TCP_RECORD_HEAD, n, 0, 1, seq);
    return bny_tcp_seal(p->tx, rec, n);
}

static int give(struct pair *p, const uint8_t *rec, uint32_t len)
{
    p->rx->start = p->rx->nclear = 0;
    p->rx->end = len;
    memcpy(p->rx->raw, rec, len);
    return bny_tcp_has_record(p->rx) ? bny_tcp_open(p->rx) : 1;
}

static void each_cipher(void (*check)(enum tcp_cipher))
{
    unsigned have = bny_tcp_ciphers(BNY_ENCRYPT) | bny_tcp_ciphers(BNY_MAC);

    cr_assert(have >> TCP_POLY1305 & 1 && have >> TCP_CHACHA & 1);
    for (int c = TCP_POLY1305; c <= TCP_CHACHA; c++)
        if (have >> c & 1)
            check((enum tcp_cipher)c);
}

static void opens(enum tcp_cipher cipher)
{
    static const uint32_t lengths[] = { 1, 47, 48, 64, 1000, TCP_RECORD_MAX };
    static uint8_t rec[TCP_KEPT_BYTES];
    struct pair p = pair_open(cipher);

    for (uint32_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint32_t n = lengths[i], len = record(&p, rec, n, i);

        cr_assert(len <= sizeof rec && len == n + bny_tcp_record_extra(p.tx));
        cr_assert_eq(tpset_check(rec + TCP_RECORD_HEAD, n, 0, 1, i) == -1,
                     cipher == TCP_POLY1305, "%s, %u bytes", bny_tcp_cipher_name(cipher), n);
        cr_assert_eq(give(&p, rec, len - 1), 1, "it is not whole yet");
        cr_assert_eq(give(&p, rec, len), 0);
        cr_assert_eq(p.rx->nclear, n);
        cr_assert_eq(tpset_check(p.rx->raw + p.rx->clear, n, 0, 1, i), -1);
    }
    pair_close(&p);
}

Test(tcp_secure, records_open_as_they_were)
{
    each_cipher(opens);
}

static void flips(enum tcp_cipher cipher)
{
    uint8_t rec[300];
    struct pair p = pair_open(cipher);
    uint32_t len = record(&p, rec, 200, 1);

    for (uint32_t bit = 0; bit < len * 8; bit++) {
        rec[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_assert_neq(give(&p, rec, len), 0, "%s, bit %u", bny_tcp_cipher_name(cipher), bit);
        rec[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    cr_assert_eq(give(&p, rec, len), 0);
    pair_close(&p);
}

Test(tcp_secure, every_bit_counts)
{
    each_cipher(flips);
}

static void moves(enum tcp_cipher cipher)
{
    uint8_t rec[3][100];
    struct pair p = pair_open(cipher), other = pair_open(cipher);
    uint32_t len = 0;

    for (uint32_t i = 0; i < 3; i++)
        len = record(&p, rec[i], 50, 7); /* the same content */
    cr_assert_neq(memcmp(rec[0] + TCP_RECORD_HEAD + 50, rec[1] + TCP_RECORD_HEAD + 50, 16), 0,
                  "equal records have equal tags");
    cr_assert_eq(give(&p, rec[0], len), 0);
    cr_assert_neq(give(&p, rec[0], len), 0, "twice");
    cr_assert_neq(give(&p, rec[2], len), 0, "one is left out");
    cr_assert_eq(give(&p, rec[1], len), 0);
    memcpy(rec[2] + 4, (uint32_t[]){ 3 }, 4);
    p.rx->rx_number = 3;
    cr_assert_neq(give(&p, rec[2], len), 0, "another number");
    /* The way back has another key. */
    len = bny_tcp_seal(other.rx, rec[0], 50);
    cr_assert_neq(give(&other, rec[0], len), 0, "sent back");
    pair_close(&p);
    pair_close(&other);
}

Test(tcp_secure, none_is_moved_repeated_or_left_out)
{
    each_cipher(moves);
}

Test(tcp_secure, lanes_and_jobs_have_keys_of_their_own)
{
    static const uint8_t secret[32] = "of these tests", foreign[32] = "of others";
    const struct tcp_lane_id id = { .from = 3, .to = 5, .lane = 1, .cipher = TCP_CHACHA };
    struct tcp_lane_id ids[8] = { id, id, id, id, id, id, id, id };
    uint8_t keys[9][32];

    ids[0].asker[31] = 1;
    ids[1].from = 4;
    ids[2].to = 4;
    ids[3].lane = 0;
    ids[4].cipher = TCP_GCM;
    ids[6].answerer[31] = 1;
    ids[7].shared[31] = 1;
    for (int i = 0; i < 9; i++) {
        struct tcp_secure *s =
            bny_tcp_secure_new(i == 5 ? foreign : secret, i < 8 ? &ids[i] : &id, 1);

        memcpy(keys[i], s->tx_key, 32);
        cr_assert_neq(memcmp(s->tx_key, s->rx_key, 32), 0);
        for (int k = 0; k < i; k++)
            cr_assert_neq(memcmp(keys[k], keys[i], 32), 0, "%d and %d", k, i);
        bny_tcp_secure_free(s);
    }
}

/* Both ends, at the same record; what was sealed before is not opened with the new key. */
static void rekeys(enum tcp_cipher cipher)
{
    uint8_t rec[100], old[100], key[32];
    struct pair p = pair_open(cipher);
    uint32_t len;

    bny_tcp_rekey = 4;
    memcpy(key, p.tx->tx_key, sizeof key);
    for (uint32_t i = 0; i < 20; i++) {
        int same = memcmp(key, p.tx->tx_key, sizeof key) == 0;

        cr_assert_eq(same, i < 5, "record %u", i);
        len = record(&p, rec, 50, 7);
        if (i == 3)
            memcpy(old, rec, len);
        cr_assert_eq(give(&p, rec, len), 0, "record %u", i);
        cr_assert_eq(memcmp(p.tx->tx_key, p.rx->rx_key, 32), 0);
    }
    p.rx->rx_number = 3;
    cr_assert_neq(give(&p, old, record(&p, rec, 50, 7)), 0);
    pair_close(&p);
    bny_tcp_rekey = 1u << 24;
}

Test(tcp_secure, a_key_seals_so_many_records_and_no_more)
{
    cr_assert_eq(bny_tcp_rekey, 1u << 24);
    each_cipher(rekeys);
}

Test(tcp_secure, the_first_common_cipher_is_taken)
{
    unsigned all = 1u << TCP_AEGIS | 1u << TCP_GCM | 1u << TCP_CHACHA;

    cr_assert_eq(bny_tcp_cipher_choose(all, all), TCP_AEGIS);
    cr_assert_eq(bny_tcp_cipher_choose(all, all & ~(1u << TCP_AEGIS)), TCP_GCM);
    cr_assert_eq(bny_tcp_cipher_choose(1u << TCP_CHACHA, all), TCP_CHACHA);
    cr_assert_eq(bny_tcp_cipher_choose(1u << TCP_POLY1305, all), TCP_NO_CIPHER);
    cr_assert_eq(bny_tcp_ciphers(BNY_PLAIN), 0);
}

/* ---- on the way ---- */

/* What the ranks send of data goes through here. */
static struct {
    uint64_t seen, flip; /* bytes; this one is changed, from 1 on */
    uint8_t seek[16];    /* is it to be read? */
    int found;
} way;

ssize_t __real_sendmsg(int fd, const struct msghdr *m, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *m, int flags);

ssize_t __wrap_sendmsg(int fd, const struct msghdr *m, int flags)
{
    static uint8_t all[2 << 20];
    size_t len = 0;
    ssize_t put;

    for (size_t i = 0; i < (size_t)m->msg_iovlen && len < sizeof all; i++) {
        size_t n =
            m->msg_iov[i].iov_len < sizeof all - len ? m->msg_iov[i].iov_len : sizeof all - len;

        memcpy(all + len, m->msg_iov[i].iov_base, n);
        len += n;
    }
    way.found |= memmem(all, len, way.seek, sizeof way.seek) != NULL;
    if (way.flip > way.seen && way.flip <= way.seen + len)
        all[way.flip - way.seen - 1] ^= 4;
    put = send(fd, all, len, flags);
    way.seen += put > 0 ? (uint64_t)put : 0;
    return put;
}

static void open_with(struct tpset *s, const char *how)
{
    memset(&way, 0, sizeof way);
    setenv("BANYAN_INTEGRITY", how, 1);
    tpset_open(s, &bny_tcp_ops, 2, NULL);
}

/* A length that was changed is waited for: until there is more. */
static void more(struct tpset *s, int turn)
{
    static const uint8_t rest[16000];
    struct bny_hdr hdr = tpset_hdr(0, 99, sizeof rest);

    if (turn % 1000 == 999)
        s->ops->eager(s->ep[0][1], &hdr, rest);
}

/* Messages of `len` bytes until one is wrong (returns 1), the peer is down (2), or three were
 * right (0). */
static int exchange(struct tpset *s, uint32_t len, uint64_t flip)
{
    static uint8_t src[200000], dst[200000];
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
    struct bny_hdr hdr = tpset_hdr(0, 1, len);

    for (uint32_t seq = 0; seq < 3; seq++) {
        struct bny_msg *msg;
        uint32_t off = 0;
        const void *ptr;
        int turn = 0;

        tpset_fill(src, len, 0, 1, seq);
        if (seq == 1)
            way.flip = flip ? way.seen + flip : 0;
        hdr.seq = seq;
        tpset_send(s, 0, 1, &hdr, src, src);
        for (int i = 0; !tpset_count(s, 1, BNY_EV_MSG) && !tpset_count(s, 1, BNY_EV_DOWN);
             i++) {
            cr_assert(!bny_deadline_passed(deadline));
            more(s, i);
            tpset_step(s);
        }
        if (tpset_count(s, 1, BNY_EV_DOWN))
            return 2;
        msg = tpset_wait(s, 1, BNY_EV_MSG).msg;
        if (msg->data)
            memcpy(dst, msg->data, off = len);
        while (off < len) {
            long n = s->ops->view(msg, off, len - off, dst + off, &ptr);

            cr_assert(!bny_deadline_passed(deadline));
            if (n < 0 && n != BNY_AGAIN) {
                s->ops->release(msg);
                tpset_wait(s, 1, BNY_EV_DOWN);
                return 2;
            }
            off += n > 0 ? (uint32_t)n : 0;
            if (n == BNY_AGAIN) {
                more(s, turn++);
                tpset_step(s);
            }
        }
        s->ops->release(msg);
        if (memcmp(&msg->hdr, &hdr, sizeof hdr) != 0 || memcmp(src, dst, len) != 0)
            return 1;
    }
    return 0;
}

/* A byte of the second message, anywhere in it: it never arrives changed. Plain data does,
 * which shows that the test can tell. */
Test(tcp_secure, a_byte_that_is_changed_is_an_error)
{
    static const uint32_t lengths[] = { 300, 150000 };
    uint64_t rng = 5;

    for (int how = 0; how < 3; how++)
        for (int i = 0; i < 40; i++) {
            uint32_t len = lengths[i % 2];
            struct tpset s;
            int rc;

            open_with(&s, how == 0 ? "plain" : how == 1 ? "mac" : "encrypt");
            rc = exchange(&s, len, 1 + (how ? 0 : 48) + bny_rng_below(&rng, len));
            cr_assert_eq(rc, how == 0 ? 1 : 2, "mode %d, round %d: %d", how, i, rc);
            if (how)
                cr_assert(strstr(((struct tcp_ep *)s.ep[1][0])->reason, "altered"));
            tpset_close(&s);
        }
}

Test(tcp_secure, only_encrypted_data_cannot_be_read)
{
    for (int how = 0; how < 3; how++) {
        uint8_t known[16];
        struct tpset s;

        open_with(&s, how == 0 ? "plain" : how == 1 ? "mac" : "encrypt");
        tpset_fill(known, 16, 0, 1, 1);
        memcpy(way.seek, known, 16);
        cr_assert_eq(exchange(&s, 5000, 0), 0);
        cr_assert_eq(way.found, how != 2);
        tpset_close(&s);
    }
    if (crypto_aead_aes256gcm_is_available())
        cr_assert_gt(sealed_by_aegis, 0, "the fastest cipher was not taken");
}

/* The secret, with all that went over the wire, is not enough to read it later: the private
 * keys stay in their processes, and the sender's is gone once the lane is open. */
Test(tcp_secure, a_secret_that_leaks_later_opens_nothing)
{
    static const uint8_t zero[32];
    struct tcp_conn *out, *in;
    struct tcp_secure *guess;
    struct tcp_lane_id id;
    struct tpset s;
    uint8_t public[32];

    open_with(&s, "encrypt");
    cr_assert_eq(exchange(&s, 300, 0), 0);
    out = ((struct tcp_ep *)s.ep[0][1])->out[0];
    in = ((struct tcp_ep *)s.ep[1][0])->in[0];
    cr_assert_eq(memcmp(out->sec->tx_key, in->sec->rx_key, 32), 0);
    cr_assert_eq(memcmp(out->keys.secret, zero, 32), 0, "the lane's private key is kept");
    crypto_scalarmult_base(public, ((struct tcp_tp *)s.tp[1])->keys->secret);
    cr_assert_eq(memcmp(public, out->answer.key, 32), 0);
    id = (struct tcp_lane_id){ .from = 0, .to = 1, .cipher = (uint8_t)out->sec->cipher };
    memcpy(id.asker, out->hello.key, 32);
    memcpy(id.answerer, out->answer.key, 32);
    guess = bny_tcp_secure_new(((struct tcp_tp *)s.tp[0])->secret, &id, 1);
    cr_assert_neq(memcmp(guess->tx_key, out->sec->tx_key, 32), 0);
    cr_assert_eq(
        crypto_scalarmult(id.shared, ((struct tcp_tp *)s.tp[1])->keys->secret, id.asker), 0);
    bny_tcp_secure_free(guess);
    guess = bny_tcp_secure_new(((struct tcp_tp *)s.tp[0])->secret, &id, 1);
    cr_assert_eq(memcmp(guess->tx_key, out->sec->tx_key, 32), 0);
    bny_tcp_secure_free(guess);
    tpset_close(&s);
}

/* Nor is a core dump, with which somebody looks for the mistake. */
Test(tcp_secure, no_core_dump_has_a_lanes_keys)
{
    static const char *const settings[] = { "mac", "encrypt" };

    for (int i = 0; i < 2; i++) {
        struct tpset s;
        struct tcp_conn *out, *in;

        open_with(&s, settings[i]);
        cr_assert_eq(exchange(&s, 300, 0), 0);
        out = ((struct tcp_ep *)s.ep[0][1])->out[0];
        in = ((struct tcp_ep *)s.ep[1][0])->in[0];
        cr_assert_eq(dumped(out->sec->tx_key, 32), 0, "%s", settings[i]);
        cr_assert_eq(dumped(in->sec->tx_key, 32), 0, "%s", settings[i]);
        cr_assert_eq(dumped(((struct tcp_tp *)s.tp[1])->keys->secret, 32), 0);
        tpset_close(&s);
    }
}

/* Ranks compare their settings at init; whoever got past that finds no connection. */
Test(tcp_secure, another_setting_does_not_connect)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    struct tpset s;

    open_with(&s, "plain");
    ((struct tcp_tp *)s.tp[1])->integrity = BNY_MAC;
    ((struct tcp_tp *)s.tp[1])->ciphers = bny_tcp_ciphers(BNY_MAC);
    cr_assert_eq(bny_tcp_ops.eager(s.ep[0][1], &hdr, NULL), BNY_AGAIN);
    tpset_wait(&s, 0, BNY_EV_DOWN);
    cr_assert_eq(tpset_count(&s, 1, BNY_EV_MSG), 0);
    tpset_close(&s);
}
