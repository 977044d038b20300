/* SPDX-License-Identifier: BSD-3-Clause */
/* Records of a lane; see secure.h. */
#include "transport/tcp/secure.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "base/assert.h"
#include "base/err.h"
#include "base/param.h"
#include "base/secret.h"

/* As in libsodium's declarations of "combined mode". */
typedef int (*seal_fn)(unsigned char *c, unsigned long long *clen, const unsigned char *m,
                       unsigned long long mlen, const unsigned char *ad,
                       unsigned long long adlen, const unsigned char *nsec,
                       const unsigned char *npub, const unsigned char *k);
typedef int (*open_fn)(unsigned char *m, unsigned long long *mlen, unsigned char *nsec,
                       const unsigned char *c, unsigned long long clen, const unsigned char *ad,
                       unsigned long long adlen, const unsigned char *npub,
                       const unsigned char *k);

static struct {
    seal_fn seal;
    open_fn open;
    uint32_t tag;
} aeads[] = {
    [TCP_AEGIS] = { NULL, NULL, 32 }, /* Debian 12's libsodium lacks it: found by name */
    [TCP_GCM] = { crypto_aead_aes256gcm_encrypt, crypto_aead_aes256gcm_decrypt,
                  crypto_aead_aes256gcm_ABYTES },
    [TCP_CHACHA] = { crypto_aead_chacha20poly1305_ietf_encrypt,
                     crypto_aead_chacha20poly1305_ietf_decrypt,
                     crypto_aead_chacha20poly1305_ietf_ABYTES },
};

static pthread_once_t once = PTHREAD_ONCE_INIT;

uint64_t bny_tcp_rekey = 1u << 24;

static void find_aegis(void)
{
    void *seal = dlsym(RTLD_DEFAULT, "crypto_aead_aegis128l_encrypt"),
         *open = dlsym(RTLD_DEFAULT, "crypto_aead_aegis128l_decrypt");

    if (!seal || !open)
        return;
    memcpy(&aeads[TCP_AEGIS].seal, &seal, sizeof seal);
    memcpy(&aeads[TCP_AEGIS].open, &open, sizeof open);
}

const char *bny_tcp_cipher_name(enum tcp_cipher cipher)
{
    static const char *const names[] = { "none", "Poly1305", "AEGIS-128L", "AES-256-GCM",
                                         "ChaCha20-Poly1305" };

    return names[cipher];
}

unsigned bny_tcp_ciphers(enum bny_integrity integrity)
{
    unsigned bits = 1u << TCP_CHACHA;

    if (integrity != BNY_ENCRYPT)
        return integrity == BNY_MAC ? 1u << TCP_POLY1305 : 0;
    pthread_once(&once, find_aegis);
    if (crypto_aead_aes256gcm_is_available())
        bits |= 1u << TCP_GCM | (aeads[TCP_AEGIS].seal ? 1u << TCP_AEGIS : 0);
    return bits;
}

enum tcp_cipher bny_tcp_cipher_choose(unsigned ours, unsigned theirs)
{
    for (int c = TCP_POLY1305; c <= TCP_CHACHA; c++)
        if (ours & theirs & 1u << c)
            return (enum tcp_cipher)c;
    return TCP_NO_CIPHER;
}

struct tcp_secure *bny_tcp_secure_new(const uint8_t *secret, const struct tcp_lane_id *lane,
                                      int sends)
{
    struct tcp_secure *s = calloc(1, sizeof *s);
    struct tcp_lane_id id = *lane;

    if (!s)
        return NULL;
    s->cipher = (enum tcp_cipher)lane->cipher;
    s->cap = sends ? 256 : TCP_RAW;
    s->raw = malloc(s->cap);
    s->tx_key = bny_secret_new();
    if (!s->raw || !s->tx_key) {
        bny_tcp_secure_free(s);
        return NULL;
    }
    s->rx_key = s->tx_key + 32;
    for (int back = 0; back < 2; back++) {
        id.back = (uint8_t)back;
        crypto_generichash(back == sends ? s->rx_key : s->tx_key, 32, (const uint8_t *)&id,
                           sizeof id, secret, 32);
    }
    sodium_memzero(&id, sizeof id);
    bny_secret_forget();
    return s;
}

void bny_tcp_secure_free(struct tcp_secure *s)
{
    if (!s)
        return;
    bny_secret_free(s->tx_key);
    free(s->raw);
    free(s);
}

/* ---- one record ---- */

static uint32_t tag_bytes(const struct tcp_secure *s)
{
    return s->cipher == TCP_POLY1305 ? 16 : aeads[s->cipher].tag;
}

uint32_t bny_tcp_record_extra(const struct tcp_secure *s)
{
    return TCP_RECORD_HEAD + tag_bytes(s);
}

/* As long as any cipher's nonce; the number first, little endian. */
static void nonce_of(uint8_t nonce[32], uint64_t number)
{
    memset(nonce, 0, 32);
    memcpy(nonce, &number, sizeof number);
}

static void one_time_mac(uint8_t tag[16], const uint8_t key[32], uint64_t number,
                         const uint8_t *data, size_t len)
{
    uint8_t nonce[32], once_key[32];

    nonce_of(nonce, number);
    crypto_stream_chacha20(once_key, sizeof once_key, nonce, key);
    crypto_onetimeauth_poly1305(tag, data, len, once_key);
    sodium_memzero(once_key, sizeof once_key);
}

/* Before the record of this number: its key is new. */
static void rekey(uint8_t key[32], uint64_t number)
{
    static const uint8_t what[] = "the next key";
    uint8_t next[32];

    if (number == 0 || number % bny_tcp_rekey != 0)
        return;
    crypto_generichash(next, sizeof next, what, sizeof what, key, 32);
    memcpy(key, next, sizeof next);
    sodium_memzero(next, sizeof next);
    bny_secret_forget();
}

uint32_t bny_tcp_seal(struct tcp_secure *s, uint8_t *rec, uint32_t len)
{
    uint32_t head[2] = { len, (uint32_t)s->tx_number };
    uint8_t *data = rec + TCP_RECORD_HEAD, nonce[32];

    BNY_ASSERT(len > 0 && len <= TCP_RECORD_MAX);
    rekey(s->tx_key, s->tx_number);
    memcpy(rec, head, sizeof head);
    if (s->cipher == TCP_POLY1305) {
        one_time_mac(data + len, s->tx_key, s->tx_number, rec, TCP_RECORD_HEAD + len);
    } else {
        nonce_of(nonce, s->tx_number);
        aeads[s->cipher].seal(data, NULL, data, len, rec, TCP_RECORD_HEAD, NULL, nonce,
                              s->tx_key);
    }
    s->tx_number++;
    return bny_tcp_record_extra(s) + len;
}

void bny_tcp_secure_restart_rx(struct tcp_secure *s)
{
    s->rx_number = 0;
    s->start = s->end = s->nclear = 0;
}

static uint32_t payload_of(const struct tcp_secure *s)
{
    uint32_t len;

    memcpy(&len, s->raw + s->start, sizeof len);
    return len;
}

/* A record that is too long is complete once its length is there, so that it gets refused. */
int bny_tcp_has_record(const struct tcp_secure *s)
{
    uint32_t have = s->end - s->start, len;

    if (have < TCP_RECORD_HEAD)
        return 0;
    len = payload_of(s);
    return len > TCP_RECORD_MAX || len + bny_tcp_record_extra(s) > s->cap ||
           have >= len + bny_tcp_record_extra(s);
}

int bny_tcp_open(struct tcp_secure *s)
{
    uint8_t *rec = s->raw + s->start, *data = rec + TCP_RECORD_HEAD, tag[16], nonce[32];
    uint32_t len = payload_of(s), number;

    BNY_ASSERT(bny_tcp_has_record(s) && !s->nclear);
    memcpy(&number, rec + 4, sizeof number);
    if (len == 0 || len > TCP_RECORD_MAX || len + bny_tcp_record_extra(s) > s->cap ||
        number != (uint32_t)s->rx_number)
        return -1;
    rekey(s->rx_key, s->rx_number);
    if (s->cipher == TCP_POLY1305) {
        one_time_mac(tag, s->rx_key, s->rx_number, rec, TCP_RECORD_HEAD + len);
        if (sodium_memcmp(tag, data + len, sizeof tag) != 0)
            return -1;
    } else {
        nonce_of(nonce, s->rx_number);
        if (aeads[s->cipher].open(data, NULL, NULL, data, len + tag_bytes(s), rec,
                                  TCP_RECORD_HEAD, nonce, s->rx_key) != 0)
            return -1;
    }
    s->rx_number++;
    s->clear = s->start + TCP_RECORD_HEAD;
    s->nclear = len;
    s->start += len + bny_tcp_record_extra(s);
    return 0;
}
