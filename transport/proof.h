/* SPDX-License-Identifier: BSD-3-Clause */
/* Proofs that the other end of a connection knows the job's secret. All connections between
 * ranks use them: bootstrap and control connections, tcp, verbs, shm.
 *
 * One end asks, the other answers; k is the secret:
 *     proof(role) = HMAC-SHA-512-256(k, role, asked, answered)
 *   asked     all bytes that the asker sends first. They begin with the protocol's own four
 *             letters, which fix their length, and contain ranks and a fresh nonce
 *   answered  the answerer's reply, of fixed length for each protocol and role; contains a
 *             fresh nonce of its own
 *   role      the prover, or the purpose: a reflected proof proves nothing
 * So a proof holds for one connection, in one direction, of one protocol; both ends contribute
 * a nonce, so none can be replayed; and no cleartext can be changed. shm's listener chooses its
 * nonce when it is created, and publishes it as its name. BNY_PROOF_REQUEST alone can be
 * replayed: it only opens the exchange of the others.
 *
 * The formula is the same in all wire versions: bootstrap compares these after the proof. */
#ifndef BNY_TRANSPORT_PROOF_H
#define BNY_TRANSPORT_PROOF_H

#include <stddef.h>
#include <stdint.h>

#define BNY_SECRET_BYTES 32
#define BNY_PROOF_BYTES  32

enum bny_proof_role {
    BNY_PROOF_ASKER = 'C',
    BNY_PROOF_ANSWERER = 'S',
    BNY_PROOF_OPENER = 'P',  /* the answerer again, for its last message (verbs) */
    BNY_PROOF_REQUEST = 'R', /* the asker, before it knows any nonce of the answerer (verbs) */
    /* Not proofs but keys for the data sent afterwards; never on the wire. */
    BNY_PROOF_KEY_OF_ASKER = 'x',
    BNY_PROOF_KEY_OF_ANSWERER = 'y',
    BNY_PROOF_PAD = 'p', /* hides a number of the answerer's (tcp) from strangers */
};

struct bny_transcript {    /* borrows all members */
    const uint8_t *secret; /* [BNY_SECRET_BYTES] */
    const void *asked, *answered;
    size_t asked_len, answered_len;
};

void bny_proof_make(uint8_t out[BNY_PROOF_BYTES], const struct bny_transcript *t,
                    enum bny_proof_role role);
/* 1: the peer's bytes are that proof; else 0. Takes constant time. */
int bny_proof_is_good(const void *got, size_t len, const struct bny_transcript *t,
                      enum bny_proof_role role);

#endif
