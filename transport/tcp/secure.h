/* SPDX-License-Identifier: BSD-3-Clause */
/* Records: the format of a lane's bytes if BANYAN_INTEGRITY is mac or encrypt.
 *
 *   u32 length of the payload, at most TCP_RECORD_MAX; u32 lower half of the record's number
 *   payload: plain (mac) or encrypted
 *   tag over head and payload
 *
 * A record's number, from 0, is its nonce, so none can be left out, repeated or moved. The key
 * belongs to one lane and direction: a keyed BLAKE2b, under the job's secret, of an X25519 key
 * of the sender for the lane, one of the receiver's process, what both make of these, both
 * ranks, lane, direction and cipher. The private keys never leave their processes, so who
 * learns the secret later cannot read what was recorded before. The key stays the same when a
 * lost connection is replaced, which then carries the same bytes again. Every 2^24 records a
 * hash of it takes its place: AES-GCM should not seal more with one key.
 *   mac      Poly1305; its key is the first 32 bytes of the ChaCha20 stream for the number
 *   encrypt  an AEAD with the head as additional data: AEGIS-128L if libsodium has it (1.0.19),
 *            AES-256-GCM, both only if the CPU has AES, else ChaCha20-Poly1305
 * The receiver chooses the first of these that both ends have; the proofs of the handshake
 * cover offer and choice. */
#ifndef BNY_TCP_SECURE_H
#define BNY_TCP_SECURE_H

#include <stddef.h>
#include <stdint.h>

#include "transport/transport.h"

enum tcp_cipher { TCP_NO_CIPHER, TCP_POLY1305, TCP_AEGIS, TCP_GCM, TCP_CHACHA };

#define TCP_RECORD_HEAD 8u
#define TCP_TAG_MAX     32u
#define TCP_RECORD_MAX  16304u /* with head and tag one block of keep.c */
#define TCP_RAW         131072u

extern uint64_t bny_tcp_rekey; /* records of one key; only tests change it */

struct tcp_secure {
    enum tcp_cipher cipher;
    uint8_t *tx_key, *rx_key; /* [32] each, of one bny_secret_new() */
    uint64_t tx_number, rx_number;
    /* Socket input: [start, end) of raw; [clear, clear + nclear) of it is the rest of a
     * verified record. */
    uint8_t *raw;
    uint32_t cap, start, end, clear, nclear;
};

const char *bny_tcp_cipher_name(enum tcp_cipher cipher);
/* Bits of the ciphers available here for it. */
unsigned bny_tcp_ciphers(enum bny_integrity integrity);
/* The preferred cipher that both have; TCP_NO_CIPHER: none. */
enum tcp_cipher bny_tcp_cipher_choose(unsigned ours, unsigned theirs);

/* Input of a lane's key, besides the secret. */
struct tcp_lane_id {
    uint8_t asker[32], answerer[32]; /* public keys of sender and receiver */
    uint8_t shared[32];              /* what both make of them, and nobody else */
    int32_t from, to;
    uint16_t lane;
    uint8_t cipher, back; /* back: the reverse direction, which carries only farewells */
    uint32_t zero;
};
_Static_assert(sizeof(struct tcp_lane_id) == 112, "hashed as it is");

/* sends: this end sends on the lane. Returns NULL: no memory. */
struct tcp_secure *bny_tcp_secure_new(const uint8_t *secret, const struct tcp_lane_id *lane,
                                      int sends);
void bny_tcp_secure_free(struct tcp_secure *s); /* takes NULL */

/* Bytes of a record besides its payload. */
uint32_t bny_tcp_record_extra(const struct tcp_secure *s);
/* Makes the next record of len bytes at rec + TCP_RECORD_HEAD, in place. Returns its size. */
uint32_t bny_tcp_seal(struct tcp_secure *s, uint8_t *rec, uint32_t len);
/* The connection was replaced: discards the input of the reverse direction. */
void bny_tcp_secure_restart_rx(struct tcp_secure *s);
/* Is a whole record in raw? */
int bny_tcp_has_record(const struct tcp_secure *s);
/* Opens the record. Returns 0, or -1: the peer did not send it. Requires nclear 0. */
int bny_tcp_open(struct tcp_secure *s);

#endif
