/* SPDX-License-Identifier: BSD-3-Clause */
/* The packed table of all cards. Cards of a job differ only in some addresses and names, least
 * of all on one host: each is sent as its differences from the one before. So a rank takes 40
 * to 130 bytes of the table, where a card has thousands. */
#ifndef BNY_BOOTSTRAP_PACK_H
#define BNY_BOOTSTRAP_PACK_H

#include <stddef.h>
#include <stdint.h>

/* Upper bound of the bytes of n packed cards. */
size_t bny_cards_packed_max(size_t n, size_t card_bytes);
/* card_bytes < 65536. Returns the length; out has room for the upper bound. */
size_t bny_cards_pack(const uint8_t *table, size_t n, size_t card_bytes, uint8_t *out);
/* Untrusted bytes. Returns 0, or -1: they are not n cards; the table is then undefined. */
int bny_cards_unpack(uint8_t *table, size_t n, size_t card_bytes, const uint8_t *in,
                     size_t len);

/* One card as its differences from the one before (NULL: zeros). out has room for
 * bny_cards_packed_max(1, card_bytes). Returns the length. */
size_t bny_card_pack(const uint8_t *before, const uint8_t *card, size_t card_bytes,
                     uint8_t *out);
/* Untrusted bytes; before may be card itself. Returns the bytes of in that it used, or 0:
 * malformed. */
size_t bny_card_unpack(const uint8_t *before, uint8_t *card, size_t card_bytes,
                       const uint8_t *in, size_t len);

/* Packed cards, read one by one: a large job's table is never unpacked as a whole. */
struct bny_deck {
    const uint8_t *packed; /* borrowed, [len] */
    size_t len, n, card_bytes;
    size_t at, next; /* offset of the next card, and its number */
    uint8_t *card;   /* [card_bytes] the current one */
};
/* 0, or -BANYAN_ENOMEM. */
int bny_deck_open(struct bny_deck *d, const uint8_t *packed, size_t len, size_t n,
                  size_t card_bytes);
void bny_deck_rewind(struct bny_deck *d);
/* The next card, lent until the next call; NULL after the last, or if it is malformed. */
const void *bny_deck_next(struct bny_deck *d);
/* 1: the deck holds n cards and nothing else. Rewinds. */
int bny_deck_valid(struct bny_deck *d);
void bny_deck_close(struct bny_deck *d);

#endif
