/* SPDX-License-Identifier: BSD-3-Clause */
/* Cards as differences. A peer info is a sequence of runs: the number of bytes equal to the
 * peer info before (zeros for the first), the number that differ, and these; until its bytes
 * are complete. A number is a byte, or 255 and u16. */
#include "transport/bootstrap/wire_pack.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

#define HEAD 3 /* shorter runs of equal bytes do not pay for two lengths, mostly 2 bytes */
#define LONG 255

static const uint8_t zero;

/* HEAD equal bytes follow a run with different bytes, unless it is the last. */
size_t bny_cards_packed_max(size_t n, size_t info_bytes)
{
    return n * (info_bytes + 2 * (info_bytes / (HEAD + 1) + 2) + 2 * (info_bytes / LONG + 1));
}

static int is_same(const uint8_t *before, const uint8_t *info, size_t at)
{
    return info[at] == (before ? before[at] : zero);
}

/* End of the different bytes: before HEAD equal ones, or the end of the peer info. */
static size_t end_of_run(const uint8_t *before, const uint8_t *info, size_t at, size_t bytes)
{
    size_t alike = 0;

    while (at < bytes && alike < HEAD)
        alike = is_same(before, info, at++) ? alike + 1 : 0;
    return at - alike;
}

static uint8_t *wire_pack_put(uint8_t *out, size_t value)
{
    uint16_t wide = (uint16_t)value;

    if (value < LONG) {
        *out = (uint8_t)value;
        return out + 1;
    }
    *out = LONG;
    memcpy(out + 1, &wide, 2);
    return out + 3;
}

/* Returns the bytes that it takes, 0: there are too few. */
static size_t wire_pack_get(const uint8_t *in, size_t len, size_t *value)
{
    uint16_t wide;

    if (len < 1 || (*in == LONG && len < 3))
        return 0;
    *value = *in;
    if (*in != LONG)
        return 1;
    memcpy(&wide, in + 1, 2);
    *value = wide;
    return 3;
}

size_t bny_peer_info_pack(const uint8_t *before, const uint8_t *info, size_t info_bytes,
                          uint8_t *out)
{
    uint8_t *begin = out;

    for (size_t at = 0; at < info_bytes;) {
        size_t from = at, to;

        while (from < info_bytes && is_same(before, info, from))
            from++;
        to = end_of_run(before, info, from, info_bytes);
        out = wire_pack_put(out, from - at);
        out = wire_pack_put(out, to - from);
        memcpy(out, info + from, to - from);
        out += to - from;
        at = to;
    }
    return (size_t)(out - begin);
}

size_t bny_peer_info_unpack(const uint8_t *before, uint8_t *info, size_t info_bytes,
                            const uint8_t *in, size_t len)
{
    const uint8_t *begin = in;

    if (before && before != info)
        memcpy(info, before, info_bytes);
    else if (!before)
        memset(info, 0, info_bytes);
    for (size_t at = 0; at < info_bytes;) {
        size_t alike = 0, differ = 0, took = wire_pack_get(in, len, &alike);
        size_t more = took ? wire_pack_get(in + took, len - took, &differ) : 0;

        if (!more)
            return 0;
        in += took + more;
        len -= took + more;
        if (alike + differ == 0 || alike + differ > info_bytes - at || differ > len)
            return 0;
        at += alike;
        memcpy(info + at, in, differ);
        at += differ;
        in += differ;
        len -= differ;
    }
    return (size_t)(in - begin);
}

size_t bny_cards_pack(const uint8_t *table, size_t n, size_t info_bytes, uint8_t *out)
{
    size_t len = 0;

    for (size_t i = 0; i < n; i++) {
        const uint8_t *info = table + i * info_bytes;

        len += bny_peer_info_pack(i ? info - info_bytes : NULL, info, info_bytes, out + len);
    }
    return len;
}

int bny_cards_unpack(uint8_t *table, size_t n, size_t info_bytes, const uint8_t *in, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t *info = table + i * info_bytes;
        size_t took =
            bny_peer_info_unpack(i ? info - info_bytes : NULL, info, info_bytes, in, len);

        if (!took)
            return -1;
        in += took;
        len -= took;
    }
    return len == 0 ? 0 : -1;
}

int bny_peer_table_open(struct bny_peer_table *d, const uint8_t *packed, size_t len, size_t n,
                        size_t info_bytes)
{
    *d = (struct bny_peer_table){
        .packed = packed, .len = len, .n = n, .info_bytes = info_bytes
    };
    d->info = malloc(info_bytes);
    return d->info ? 0 : bny_fail(BANYAN_ENOMEM, "no memory for a peer info");
}

void bny_peer_table_rewind(struct bny_peer_table *d)
{
    d->at = d->next = 0;
}

const void *bny_peer_table_next(struct bny_peer_table *d)
{
    size_t took = 0;

    if (d->next < d->n)
        took = bny_peer_info_unpack(d->next ? d->info : NULL, d->info, d->info_bytes,
                                    d->packed + d->at, d->len - d->at);
    d->at += took;
    d->next += took != 0;
    return took ? d->info : NULL;
}

int bny_peer_table_valid(struct bny_peer_table *d)
{
    int valid;

    bny_peer_table_rewind(d);
    while (bny_peer_table_next(d))
        ;
    valid = d->next == d->n && d->at == d->len;
    bny_peer_table_rewind(d);
    return valid;
}

void bny_peer_table_close(struct bny_peer_table *d)
{
    free(d->info);
    d->info = NULL;
}
