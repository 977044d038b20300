/* SPDX-License-Identifier: BSD-3-Clause */
/* Cards as they travel: what is packed comes back, in no more room than promised, and nothing
 * that a peer sends is unpacked beyond the table. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "transport/bootstrap/wire_pack.h"

/* n peer infos; each differs from the one before in about so many of 1000 bytes. */
static uint8_t *some_peer_infos(uint64_t *rng, size_t n, size_t bytes, unsigned differ)
{
    uint8_t *table = malloc(n * bytes);

    cr_assert(table);
    for (size_t i = 0; i < n * bytes; i++)
        table[i] = i >= bytes && bny_rng_below(rng, 1000) >= differ
                       ? table[i - bytes]
                       : (uint8_t)bny_rng_below(rng, 256);
    return table;
}

Test(pack, comes_back)
{
    static const unsigned differ[] = { 0, 3, 30, 200, 1000 };
    uint64_t rng = 14;

    for (size_t k = 0; k < 200; k++) {
        size_t n = 1 + bny_rng_below(&rng, 9), bytes = 1 + bny_rng_below(&rng, 700), len;
        uint8_t *table = some_peer_infos(&rng, n, bytes, differ[k % 5]);
        uint8_t *packed = malloc(bny_cards_packed_max(n, bytes)), *back = malloc(n * bytes);

        cr_assert(packed && back);
        len = bny_cards_pack(table, n, bytes, packed);
        cr_assert_leq(len, bny_cards_packed_max(n, bytes));
        memset(back, 0xa5, n * bytes);
        cr_assert_eq(bny_cards_unpack(back, n, bytes, packed, len), 0, "case %zu", k);
        cr_assert_arr_eq(back, table, n * bytes, "case %zu", k);
        free(table);
        free(packed);
        free(back);
    }
}

/* The worst: alike bytes just too few for a run of their own, and just enough. */
Test(pack, the_most_is_enough)
{
    enum { BYTES = 1000 };
    static uint8_t table[2 * BYTES];

    for (size_t gap = 1; gap < 12; gap++) {
        uint8_t *packed = malloc(bny_cards_packed_max(2, BYTES)); /* ASan watches its end */

        cr_assert(packed);
        for (size_t i = 0; i < BYTES; i++) {
            table[i] = i % (gap + 1) == 0;
            table[BYTES + i] = (uint8_t)(table[i] ^ (i % (gap + 1) == gap));
        }
        cr_assert_leq(bny_cards_pack(table, 2, BYTES, packed), bny_cards_packed_max(2, BYTES));
        free(packed);
    }
}

/* 128 peer infos of one host: a name, an address and a port differ. */
Test(pack, alike_cards_are_short)
{
    enum { N = 128, BYTES = 2600 };
    uint64_t rng = 7;
    uint8_t *table = some_peer_infos(&rng, N, BYTES, 0), *packed;
    size_t len;

    packed = malloc(bny_cards_packed_max(N, BYTES));
    cr_assert(packed);
    for (size_t r = 0; r < N; r++)
        for (size_t i = 0; i < 48; i++)
            table[r * BYTES + 1000 + i] = (uint8_t)bny_rng_below(&rng, 256);
    len = bny_cards_pack(table, N, BYTES, packed);
    cr_assert_lt(len, BYTES + 50 + N * 64u, "%zu bytes", len);
    free(table);
    free(packed);
}

Test(pack, broken_cards_are_refused)
{
    enum { N = 5, BYTES = 90 };
    uint64_t rng = 3;
    uint8_t *table = some_peer_infos(&rng, N, BYTES, 100);
    uint8_t *packed = malloc(bny_cards_packed_max(N, BYTES));
    uint8_t *back = malloc((size_t)N * BYTES); /* ASan watches its end */
    size_t len, refused = 0;

    cr_assert(packed && back);
    len = bny_cards_pack(table, N, BYTES, packed);
    for (size_t cut = 0; cut < len; cut++) {
        uint8_t *less = malloc(cut + 1);

        cr_assert(less);
        memcpy(less, packed, cut);
        cr_assert_eq(bny_cards_unpack(back, N, BYTES, less, cut), -1, "cut at %zu", cut);
        free(less);
    }
    for (int k = 0; k < 5000; k++) {
        size_t at = bny_rng_below(&rng, len);
        uint8_t was = packed[at];

        packed[at] = (uint8_t)bny_rng_below(&rng, 256);
        refused += bny_cards_unpack(back, N, BYTES, packed, len) != 0;
        packed[at] = was;
    }
    cr_assert_gt(refused, 0u);
    cr_assert_eq(bny_cards_unpack(back, N, BYTES, packed, len), 0);
    free(table);
    free(packed);
    free(back);
}
