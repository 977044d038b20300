/* SPDX-License-Identifier: BSD-3-Clause */
/* The packed table of all peer infos. Cards of a job differ only in some addresses and names,
 * least of all on one host: each is sent as its differences from the one before. So a rank
 * takes 40 to 130 bytes of the table, where a peer info has thousands. */
#ifndef BNY_BOOTSTRAP_WIRE_PACK_H
#define BNY_BOOTSTRAP_WIRE_PACK_H

#include <stddef.h>
#include <stdint.h>

/* Upper bound of the bytes of n packed peer infos. */
size_t bny_cards_packed_max(size_t n, size_t info_bytes);
/* card_bytes < 65536. Returns the length; out has room for the upper bound. */
size_t bny_cards_pack(const uint8_t *table, size_t n, size_t info_bytes, uint8_t *out);
/* Untrusted bytes. Returns 0, or -1: they are not n peer infos; the table is then undefined. */
int bny_cards_unpack(uint8_t *table, size_t n, size_t info_bytes, const uint8_t *in,
                     size_t len);

/* One peer info as its differences from the one before (NULL: zeros). out has room for
 * bny_cards_packed_max(1, card_bytes). Returns the length. */
size_t bny_peer_info_pack(const uint8_t *before, const uint8_t *info, size_t info_bytes,
                          uint8_t *out);
/* Untrusted bytes; before may be peer info itself. Returns the bytes of in that it used, or 0:
 * malformed. */
size_t bny_peer_info_unpack(const uint8_t *before, uint8_t *info, size_t info_bytes,
                            const uint8_t *in, size_t len);

/* Packed peer infos, read one by one: a large job's table is never unpacked as a whole. */
struct bny_peer_table {
    const uint8_t *packed; /* borrowed, [len] */
    size_t len, n, info_bytes;
    size_t at, next; /* offset of the next peer info, and its number */
    uint8_t *info;   /* [card_bytes] the current one */
};
/* 0, or -BANYAN_ENOMEM. */
int bny_peer_table_open(struct bny_peer_table *d, const uint8_t *packed, size_t len, size_t n,
                        size_t info_bytes);
void bny_peer_table_rewind(struct bny_peer_table *d);
/* The next peer info, lent until the next call; NULL after the last, or if it is malformed. */
const void *bny_peer_table_next(struct bny_peer_table *d);
/* 1: the peer table holds n peer infos and nothing else. Rewinds. */
int bny_peer_table_valid(struct bny_peer_table *d);
void bny_peer_table_close(struct bny_peer_table *d);

#endif
