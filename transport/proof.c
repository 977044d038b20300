/* SPDX-License-Identifier: BSD-3-Clause */
/* Proofs that a peer knows the job's secret. */
#include "transport/proof.h"

#include <sodium.h>

#include "base/assert.h"

_Static_assert(crypto_auth_hmacsha512256_BYTES == BNY_PROOF_BYTES, "all of the HMAC");

void bny_proof_make(uint8_t out[BNY_PROOF_BYTES], const struct bny_transcript *t,
                    enum bny_proof_role role)
{
    const uint8_t letter = (uint8_t)role;
    crypto_auth_hmacsha512256_state st;

    BNY_ASSERT(t->asked_len > 4 && t->answered_len >= 16);
    crypto_auth_hmacsha512256_init(&st, t->secret, BNY_SECRET_BYTES);
    crypto_auth_hmacsha512256_update(&st, &letter, 1);
    crypto_auth_hmacsha512256_update(&st, t->asked, t->asked_len);
    crypto_auth_hmacsha512256_update(&st, t->answered, t->answered_len);
    crypto_auth_hmacsha512256_final(&st, out);
    sodium_memzero(&st, sizeof st);
}

int bny_proof_is_good(const void *got, size_t len, const struct bny_transcript *t,
                      enum bny_proof_role role)
{
    uint8_t want[BNY_PROOF_BYTES];
    int good;

    if (len != sizeof want)
        return 0;
    bny_proof_make(want, t, role);
    good = sodium_memcmp(want, got, sizeof want) == 0;
    sodium_memzero(want, sizeof want);
    return good;
}
