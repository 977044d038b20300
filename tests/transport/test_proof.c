/* SPDX-License-Identifier: BSD-3-Clause */
/* Proofs of the job's secret: good with the right secret only, for one transcript and one role,
 * and whole. */
#include <criterion/criterion.h>
#include <sodium.h>
#include <string.h>

#include "transport/proof.h"

#define ROLES 5

static const enum bny_proof_role roles[ROLES] = { BNY_PROOF_ASKER, BNY_PROOF_ANSWERER,
                                                  BNY_PROOF_OPENER, BNY_PROOF_KEY_OF_ASKER,
                                                  BNY_PROOF_KEY_OF_ANSWERER };

static uint8_t secret[BNY_SECRET_BYTES], asked[64] = "bnyX", answered[32];

static struct bny_transcript transcript(void)
{
    for (size_t i = 0; i < sizeof secret; i++)
        secret[i] = (uint8_t)(i * 7 + 1);
    for (size_t i = 4; i < sizeof asked; i++)
        asked[i] = (uint8_t)i;
    for (size_t i = 0; i < sizeof answered; i++)
        answered[i] = (uint8_t)(200 - i);
    return (struct bny_transcript){ secret, asked, answered, sizeof asked, sizeof answered };
}

/* Older and newer builds must understand each other so far. */
Test(proof, is_the_documented_hmac)
{
    struct bny_transcript t = transcript();
    uint8_t text[1 + sizeof asked + sizeof answered], want[BNY_PROOF_BYTES],
        got[BNY_PROOF_BYTES];

    for (int r = 0; r < ROLES; r++) {
        text[0] = (uint8_t) "CSPxy"[r];
        memcpy(text + 1, asked, sizeof asked);
        memcpy(text + 1 + sizeof asked, answered, sizeof answered);
        crypto_auth_hmacsha512256(want, text, sizeof text, secret);
        bny_proof_make(got, &t, roles[r]);
        cr_assert_arr_eq(got, want, sizeof got, "role %d", r);
        cr_assert(bny_proof_is_good(got, sizeof got, &t, roles[r]));
    }
}

Test(proof, wrong_secret_proves_nothing)
{
    struct bny_transcript t = transcript(), other = t;
    uint8_t forged[BNY_SECRET_BYTES], proof[BNY_PROOF_BYTES];

    other.secret = forged;
    for (size_t bit = 0; bit < 8 * sizeof forged; bit++) {
        memcpy(forged, secret, sizeof forged);
        forged[bit / 8] ^= (uint8_t)(1 << bit % 8);
        bny_proof_make(proof, &other, BNY_PROOF_ASKER);
        cr_assert_not(bny_proof_is_good(proof, sizeof proof, &t, BNY_PROOF_ASKER), "bit %zu",
                      bit);
    }
}

/* Sent back to whoever made it: as another role's, and with the two parts exchanged. */
Test(proof, reflected_proves_nothing)
{
    struct bny_transcript t = transcript(), turned = t;
    uint8_t proof[BNY_PROOF_BYTES];

    turned.asked_len = turned.answered_len = sizeof answered;
    turned.answered = asked;
    turned.asked = answered;
    t.asked_len = sizeof answered;
    for (int made = 0; made < ROLES; made++) {
        bny_proof_make(proof, &t, roles[made]);
        for (int taken = 0; taken < ROLES; taken++)
            cr_assert_eq(bny_proof_is_good(proof, sizeof proof, &t, roles[taken]),
                         made == taken, "roles %d and %d", made, taken);
        cr_assert_not(bny_proof_is_good(proof, sizeof proof, &turned, roles[made]));
    }
}

/* In another connection something of the transcript differs, if only a nonce by a bit. */
Test(proof, replayed_proves_nothing)
{
    struct bny_transcript t = transcript(), other = t;
    uint8_t a[sizeof asked], b[sizeof answered], proof[BNY_PROOF_BYTES];

    bny_proof_make(proof, &t, BNY_PROOF_ANSWERER);
    other.asked = a;
    other.answered = b;
    for (size_t bit = 0; bit < 8 * (sizeof a + sizeof b); bit++) {
        size_t byte = bit / 8;

        memcpy(a, asked, sizeof a);
        memcpy(b, answered, sizeof b);
        *(byte < sizeof a ? &a[byte] : &b[byte - sizeof a]) ^= (uint8_t)(1 << bit % 8);
        cr_assert_not(bny_proof_is_good(proof, sizeof proof, &other, BNY_PROOF_ANSWERER),
                      "bit %zu", bit);
    }
}

Test(proof, truncated_or_damaged_proves_nothing)
{
    struct bny_transcript t = transcript();
    uint8_t proof[BNY_PROOF_BYTES + 1] = { 0 };

    bny_proof_make(proof, &t, BNY_PROOF_ASKER);
    for (size_t len = 0; len <= sizeof proof; len++)
        cr_assert_eq(bny_proof_is_good(proof, len, &t, BNY_PROOF_ASKER), len == BNY_PROOF_BYTES,
                     "%zu bytes", len);
    for (size_t bit = 0; bit < 8 * BNY_PROOF_BYTES; bit++) {
        proof[bit / 8] ^= (uint8_t)(1 << bit % 8);
        cr_assert_not(bny_proof_is_good(proof, BNY_PROOF_BYTES, &t, BNY_PROOF_ASKER), "bit %zu",
                      bit);
        proof[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}
