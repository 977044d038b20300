/* SPDX-License-Identifier: BSD-3-Clause */
/* Cards as differences. A card is a number of runs: u16 bytes that are those of the card before
 * (of zeros for the first), u16 bytes that differ, these; until its bytes are complete. */
#include "transport/bootstrap/pack.h"

#include <string.h>

#define HEAD 4 /* bytes of a run's two lengths: fewer alike bytes are not worth a run */

static const uint8_t zero;

/* A run with bytes that differ is followed by HEAD alike ones, or is the last. */
size_t bny_cards_packed_max(size_t n, size_t card_bytes)
{
    return n * (card_bytes + HEAD * (card_bytes / (HEAD + 1) + 2));
}

static int is_same(const uint8_t *before, const uint8_t *card, size_t at)
{
    return card[at] == (before ? before[at] : zero);
}

/* Where the bytes that differ end: before HEAD alike ones, or with the card. */
static size_t end_of_run(const uint8_t *before, const uint8_t *card, size_t at, size_t bytes)
{
    size_t alike = 0;

    while (at < bytes && alike < HEAD)
        alike = is_same(before, card, at++) ? alike + 1 : 0;
    return at - alike;
}

static uint8_t *put(uint8_t *out, uint16_t value)
{
    memcpy(out, &value, 2);
    return out + 2;
}

size_t bny_card_pack(const uint8_t *before, const uint8_t *card, size_t card_bytes,
                     uint8_t *out)
{
    uint8_t *begin = out;

    for (size_t at = 0; at < card_bytes;) {
        size_t from = at, to;

        while (from < card_bytes && is_same(before, card, from))
            from++;
        to = end_of_run(before, card, from, card_bytes);
        out = put(out, (uint16_t)(from - at));
        out = put(out, (uint16_t)(to - from));
        memcpy(out, card + from, to - from);
        out += to - from;
        at = to;
    }
    return (size_t)(out - begin);
}

size_t bny_card_unpack(const uint8_t *before, uint8_t *card, size_t card_bytes,
                       const uint8_t *in, size_t len)
{
    const uint8_t *begin = in;

    if (before)
        memcpy(card, before, card_bytes);
    else
        memset(card, 0, card_bytes);
    for (size_t at = 0; at < card_bytes;) {
        uint16_t run[2];

        if (len < sizeof run)
            return 0;
        memcpy(run, in, sizeof run);
        in += sizeof run;
        len -= sizeof run;
        if (run[0] + run[1] == 0 || (size_t)run[0] + run[1] > card_bytes - at || run[1] > len)
            return 0;
        at += run[0];
        memcpy(card + at, in, run[1]);
        at += run[1];
        in += run[1];
        len -= run[1];
    }
    return (size_t)(in - begin);
}

size_t bny_cards_pack(const uint8_t *table, size_t n, size_t card_bytes, uint8_t *out)
{
    size_t len = 0;

    for (size_t i = 0; i < n; i++) {
        const uint8_t *card = table + i * card_bytes;

        len += bny_card_pack(i ? card - card_bytes : NULL, card, card_bytes, out + len);
    }
    return len;
}

int bny_cards_unpack(uint8_t *table, size_t n, size_t card_bytes, const uint8_t *in, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t *card = table + i * card_bytes;
        size_t took = bny_card_unpack(i ? card - card_bytes : NULL, card, card_bytes, in, len);

        if (!took)
            return -1;
        in += took;
        len -= took;
    }
    return len == 0 ? 0 : -1;
}
