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
/* From a peer; before is not card. Returns how much of in it took, or 0: it is no card. */
size_t bny_card_unpack(const uint8_t *before, uint8_t *card, size_t card_bytes,
                       const uint8_t *in, size_t len);

#endif
