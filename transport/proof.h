/* SPDX-License-Identifier: BSD-3-Clause */
/* Proofs that whoever is at the other end of a connection knows the job's secret. All that
 * connects ranks uses them: bootstrap and control connections, tcp, verbs, shm.
 *
 * One end asks, the other answers; k is the secret:
 *     proof(role) = HMAC-SHA-512-256(k, role, asked, answered)
 *   asked     all that the asking end said first. Begins with the protocol's own four letters,
 *             has the length that these stand for, and holds ranks and a fresh nonce
 *   answered  what the answering end said then, as long for each protocol and role; holds a
 *             fresh nonce of its own
 *   role      who proves, or what for: a proof that is sent back proves nothing
 * So a proof stands for one connection, in one direction, of one protocol; each end has put a
 * nonce into it, so that none can be replayed; and nothing that was said in clear can be
 * changed. shm's listener chooses its nonce when it is made, and publishes it: its name.
 *
 * The formula does not change with wire versions: bootstrap compares these after the proof. */
#ifndef BNY_TRANSPORT_PROOF_H
#define BNY_TRANSPORT_PROOF_H

#include <stddef.h>
#include <stdint.h>

#define BNY_SECRET_BYTES 32
#define BNY_PROOF_BYTES  32

enum bny_proof_role {
    BNY_PROOF_ASKER = 'C',
    BNY_PROOF_ANSWERER = 'S',
    BNY_PROOF_OPENER = 'P', /* the answerer once more, for what it says at last (verbs) */
    /* No proofs but keys, of what is sent afterwards; never on the wire. */
    BNY_PROOF_KEY_OF_ASKER = 'x',
    BNY_PROOF_KEY_OF_ANSWERER = 'y',
};

struct bny_transcript {    /* borrows all of it */
    const uint8_t *secret; /* [BNY_SECRET_BYTES] */
    const void *asked, *answered;
    size_t asked_len, answered_len;
};

void bny_proof_make(uint8_t out[BNY_PROOF_BYTES], const struct bny_transcript *t,
                    enum bny_proof_role role);
/* 1: these bytes, which the peer sent, are that proof; else 0. Takes as long wherever they
 * differ. */
int bny_proof_is_good(const void *got, size_t len, const struct bny_transcript *t,
                      enum bny_proof_role role);

#endif
