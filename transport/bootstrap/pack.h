/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of all cards as it travels. Cards of a job are alike but for some addresses and
 * names, those of one host above all: each is sent as what differs from the one before. So the
 * table has some 40 to 130 bytes a rank, where cards have thousands. */
#ifndef BNY_BOOTSTRAP_PACK_H
#define BNY_BOOTSTRAP_PACK_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of n packed cards, at most. */
size_t bny_cards_packed_max(size_t n, size_t card_bytes);
/* card_bytes < 65536. Returns the length; out has room for the most. */
size_t bny_cards_pack(const uint8_t *table, size_t n, size_t card_bytes, uint8_t *out);
/* From a peer. 0, or -1 when it is not n cards; then the table has anything. */
int bny_cards_unpack(uint8_t *table, size_t n, size_t card_bytes, const uint8_t *in,
                     size_t len);

/* One card as what differs from the one before (NULL: zeros). out has room for
 * bny_cards_packed_max(1, card_bytes). Returns the length. */
size_t bny_card_pack(const uint8_t *before, const uint8_t *card, size_t card_bytes,
                     uint8_t *out);
/* From a peer; before may be card itself. Returns how much of in it took, or 0: it is no card.
 */
size_t bny_card_unpack(const uint8_t *before, uint8_t *card, size_t card_bytes,
                       const uint8_t *in, size_t len);

/* Packed cards, read one after the other: a large job's table is never all there at once. */
struct bny_deck {
    const uint8_t *packed; /* borrowed, [len] */
    size_t len, n, card_bytes;
    size_t at, next; /* where the next card begins, and its number */
    uint8_t *card;   /* [card_bytes] the latest */
};
/* 0, or -BANYAN_ENOMEM. */
int bny_deck_open(struct bny_deck *d, const uint8_t *packed, size_t len, size_t n,
                  size_t card_bytes);
void bny_deck_rewind(struct bny_deck *d);
/* The next card, lent until the next call; NULL behind the last, or where it is broken. */
const void *bny_deck_next(struct bny_deck *d);
/* 1: it is n cards and nothing else. Rewinds. */
int bny_deck_valid(struct bny_deck *d);
void bny_deck_close(struct bny_deck *d);

#endif
