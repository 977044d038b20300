/* SPDX-License-Identifier: BSD-3-Clause */
/* Exchanges of blocks as passes (pass.h): allgather, alltoall, reduce_scatter. Each rank has a
 * block for each other one. Its first half goes by a slot of its sender, its second half by one
 * of its receiver, whose first half came in it:
 *   in    each rank copies chunk c of the first halves of its blocks into its slots
 *   swap  each takes, or adds, what lies in the others' slots for it, and puts chunk c of the
 *         second halves in its place
 *   out   each takes, or adds, what the others have left in its own slots
 * Sums are of all ranks' blocks in the order of the ranks, whichever way they came.
 *
 * Who lends its input puts nothing into slots: the others take both halves from it in swap,
 * after which nobody reads it. Where blocks are added, both halves are added in swap if all
 * ranks lend; else none does. */
#include "collectives/local/local.h"
#include "collectives/pipeline/pass.h"

#define SWAP_TILE 4096u /* bytes that are taken before their place is used */

void bny_exchange_cut(struct bny_pass *p, size_t chunk)
{
    size_t unit = bny_pass_unit(p);

    p->share = ((p->count + 1) / 2 + unit - 1) / unit * unit;
    if (p->share == 0)
        p->share = unit; /* no element: ranks meet all the same */
    if (!chunk && p->count * p->esz <= BNY_PASS_SHORT_BYTES && p->shape->lag)
        chunk = BNY_PASS_SHORT_CHUNK;
    bny_pass_cut_steps(p, chunk);
}

/* Elements [at, at + return) of a block are chunk c of its first or second half. */
static size_t chunk_of(const struct bny_pass *p, int second, uint32_t c, size_t *at)
{
    size_t from = second ? p->share : 0, to = second ? p->count : p->share, len;

    if (to > p->count)
        to = p->count;
    *at = from + p->step * c;
    if (from >= to || *at >= to)
        return 0;
    len = to - *at;
    return len < p->step ? len : p->step;
}

/* Our block for rank q. */
static const char *block_for(const struct bny_pass *p, int q)
{
    return bny_in_at(p->in, p->same ? 0 : (size_t)q * p->count * p->esz);
}

/* Where rank r's block for us goes. */
static char *exchange_place_of(const struct bny_pass *p, int r)
{
    return bny_out_at(p->out, (size_t)r * p->count * p->esz);
}

/* ---- in ---- */

void bny_exchange_in(struct bny_pass *p, uint32_t c)
{
    size_t at, len = chunk_of(p, 0, c, &at) * p->esz, at2,
               len2 = chunk_of(p, 1, c, &at2) * p->esz;

    for (int i = 1; i < p->n && !p->lends; i++) {
        int q = bny_pass_nth(p, i);

        bny_local_place(bny_pass_slot(p, p->rank, c, q), block_for(p, q) + at * p->esz, len);
        p->copied += len;
    }
    p->handed += len * ((size_t)p->n - 1);
    if (p->adds)
        return;
    bny_local_copy(exchange_place_of(p, p->rank) + at * p->esz,
                   block_for(p, p->rank) + at * p->esz, len);
    bny_local_copy(exchange_place_of(p, p->rank) + at2 * p->esz,
                   block_for(p, p->rank) + at2 * p->esz, len2);
}

/* ---- swap ---- */

/* Chunk [at, at + len) of the block that rank r has lent to us. NULL: not now. */
static const char *lent(struct bny_pass *p, int r, size_t at, size_t len)
{
    size_t from = p->same ? at : (size_t)p->rank * p->count + at;
    const char *src = NULL;
    char *unused;

    if (p->borrow(p->ctx, r, from * p->esz, len * p->esz, &src, &unused) != 0)
        return NULL;
    return src;
}

/* A piece of both halves of a block: len elements from at on, len2 from at2 on. */
struct piece {
    size_t at, len, at2, len2;
};

static struct piece piece_of(const struct bny_pass *p, uint32_t c)
{
    struct piece k;

    k.len = chunk_of(p, 0, c, &k.at);
    k.len2 = chunk_of(p, 1, c, &k.at2);
    return k;
}

/* From chunk c on what can be taken at once: one chunk, or more where none is in a slot. */
static uint32_t run_of(const struct bny_pass *p, uint32_t c, struct piece *k)
{
    uint32_t next = c + 1;

    *k = piece_of(p, c);
    for (int r = 0; r < p->n; r++)
        if (r == p->rank ? !p->lends : !p->peers[r].lends)
            return next;
    for (; !p->adds && next < p->nchunks && (k->len + k->len2) * p->esz < BNY_PASS_RUN_MAX;
         next++) {
        struct piece more = piece_of(p, next);

        k->len += more.len;
        k->len2 += more.len2;
    }
    return next;
}

/* Where all others have a piece; 0: not now. */
static int exchange_find(struct bny_pass *p, uint32_t c, const struct piece *k)
{
    for (int r = 0; r < p->n; r++) {
        struct bny_pass_peer *peer = &p->peers[r];

        if (r == p->rank)
            continue;
        peer->src = bny_pass_slot(p, r, c, p->rank);
        peer->src2 = bny_pass_slot(p, p->rank, c, r);
        if (!peer->lends || (p->adds && !p->lends))
            continue;
        if (k->len && !(peer->src = lent(p, r, k->at, k->len)))
            return 0;
        if (k->len2 && !(peer->src2 = lent(p, r, k->at2, k->len2)))
            return 0;
    }
    return 1;
}

/* `out` of `len` bytes from the slot, and `in` of len2 into it. */
static void swap(char *out, char *slot, size_t len, const char *in, size_t len2)
{
    size_t both = len < len2 ? len : len2, at = 0;

    for (; at + SWAP_TILE <= both; at += SWAP_TILE) {
        memcpy(out + at, slot + at, SWAP_TILE);
        memcpy(slot + at, in + at, SWAP_TILE);
    }
    bny_local_place(out + at, slot + at, len - at);
    bny_local_place(slot + at, in + at, len2 - at);
}

static void swap_blocks(struct bny_pass *p, uint32_t c, const struct piece *k)
{
    size_t at = k->at, len = k->len * p->esz, at2 = k->at2, len2 = k->len2 * p->esz;

    for (int i = 1; i < p->n; i++) {
        int r = bny_pass_nth(p, i);
        const struct bny_pass_peer *peer = &p->peers[r];
        char *to = exchange_place_of(p, r);

        if (peer->lends) {
            bny_local_place(to + at * p->esz, peer->src, len);
            bny_local_place(to + at2 * p->esz, peer->src2, len2);
            if (!p->lends)
                bny_local_place(bny_pass_slot(p, r, c, p->rank), block_for(p, r) + at2 * p->esz,
                                len2);
        } else {
            swap(to + at * p->esz, bny_pass_slot(p, r, c, p->rank), len,
                 block_for(p, r) + at2 * p->esz, p->lends ? 0 : len2);
        }
        p->copied += len + (peer->lends ? len2 : 0) + (p->lends ? 0 : len2);
    }
}

/* ---- sums ---- */

/* Of `len` elements that begin at src or, second, at src2 of all ranks. `out` may be our own.
 */
static void sum(struct bny_pass *p, char *out, size_t len, int second)
{
    size_t tile = p->n == 2 ? len : p->tile_elems;
    const void *in[BNY_PASS_RANKS_MAX];

    for (size_t from = 0; from < len; from += tile) {
        size_t n = len - from < tile ? len - from : tile, off = from * p->esz;

        for (int r = 0; r < p->n; r++)
            in[r] = (second ? p->peers[r].src2 : p->peers[r].src) + off;
        bny_local_reduce_all(&p->redop, p->dtype, out + off, p->tile, in, p->n, n);
        if (p->averages)
            bny_divide(out + off, out + off, n, p->dtype, p->n);
    }
}

/* Chunk c of the first or the second half. */
static void sum_half(struct bny_pass *p, int second, uint32_t c)
{
    size_t at, len = chunk_of(p, second, c, &at);
    const char *own = block_for(p, p->rank) + at * p->esz;

    if (second)
        p->peers[p->rank].src2 = own;
    else
        p->peers[p->rank].src = own;
    sum(p, bny_out_at(p->out, at * p->esz), len, second);
}

static void swap_sums(struct bny_pass *p, uint32_t c)
{
    size_t at, len = chunk_of(p, 1, c, &at) * p->esz;

    sum_half(p, 0, c);
    if (p->lends) {
        sum_half(p, 1, c);
        return;
    }
    for (int i = 1; i < p->n; i++) {
        int r = bny_pass_nth(p, i);

        bny_local_place(bny_pass_slot(p, r, c, p->rank), block_for(p, r) + at * p->esz, len);
        p->copied += len;
    }
}

int bny_exchange_swap(struct bny_pass *p, uint32_t c)
{
    struct piece k;
    uint32_t next = run_of(p, c, &k);

    if (!exchange_find(p, c, &k))
        return 0;
    if (p->adds)
        swap_sums(p, c);
    else
        swap_blocks(p, c, &k);
    p->handed += k.len2 * p->esz * ((size_t)p->n - 1);
    bny_pass_tell_added(p, next);
    return 1;
}

/* ---- out ---- */

void bny_exchange_out(struct bny_pass *p, uint32_t c)
{
    struct piece k = piece_of(p, c);
    size_t at = k.at2, len = k.len2 * p->esz;

    if (p->adds) {
        if (!p->lends && exchange_find(p, c, &k))
            sum_half(p, 1, c);
        return;
    }
    for (int i = 1; i < p->n; i++) {
        int r = bny_pass_nth(p, i);

        if (p->peers[r].lends)
            continue;
        bny_local_place(exchange_place_of(p, r) + at * p->esz, bny_pass_slot(p, p->rank, c, r),
                        len);
        p->copied += len;
    }
}
