/* SPDX-License-Identifier: BSD-3-Clause */
/* One pass: cut, in, add, out. */
#include "collectives/pipeline/pass.h"

#include <string.h>

#include "base/assert.h"
#include "collectives/local/local.h"

/* Bytes of all parts' chunks of a slot, of short vectors: a part has a few chunks at least. */
#define SLOT_SHORT (128u << 10)

/* ---- cut ---- */

/* Elements of whole cache lines, as far as they stay together. */
size_t bny_pass_unit(const struct bny_pass *p)
{
    size_t unit = bny_redop_quantum(&p->redop);

    while (unit * p->esz % BNY_AREA_LINE && unit * p->esz * 2 <= BNY_AREA_LINE)
        unit *= 2;
    return unit;
}

void bny_pass_cut_steps(struct bny_pass *p, size_t want)
{
    size_t quantum = bny_redop_quantum(&p->redop), longest, least = SLOT_SHORT / (size_t)p->n;

    if (!want && p->shape->lag) {
        want = p->share * p->esz / (p->kind == BNY_PASS_REDUCE ? 8 : 4);
        want = want < least ? least : want;
    }
    if (!want || want > p->shape->chunk_max)
        want = p->shape->chunk_max;
    longest = want / p->esz / quantum * quantum;
    if (longest == 0)
        longest = quantum;
    p->step = longest < p->share ? longest : p->share;
    p->nchunks = (uint32_t)((p->share + p->step - 1) / p->step);
    p->stride = bny_pass_round_up(p->step * p->esz, BNY_AREA_LINE);
    if (p->stride > p->shape->chunk_max) /* its last line is not whole */
        p->stride = p->shape->chunk_max;
    p->lag = p->shape->lag;
    p->tile_elems = BNY_PASS_TILE / p->esz / quantum * quantum;
    BNY_ASSERT(p->tile_elems && p->step * p->esz <= p->stride);
}

void bny_pass_cut_parts(struct bny_pass *p, int owners, size_t chunk)
{
    size_t unit = bny_pass_unit(p), n = (size_t)owners;

    if (p->count < unit * n)
        unit = bny_redop_quantum(&p->redop);
    p->share = bny_pass_round_up((p->count + n - 1) / n, unit);
    if (p->share == 0)
        p->share = unit; /* no element: a chunk all the same, in which ranks meet */
    if (!chunk && p->count * p->esz <= BNY_PASS_SHORT_BYTES && p->shape->lag)
        chunk = BNY_PASS_SHORT_CHUNK;
    bny_pass_cut_steps(p, chunk);
}

void bny_pass_cut(struct bny_pass *p, size_t chunk)
{
    switch (p->kind) {
    case BNY_PASS_ALLREDUCE: bny_pass_cut_parts(p, p->n, chunk); return;
    case BNY_PASS_EXCHANGE: bny_exchange_cut(p, chunk); return;
    case BNY_PASS_REDUCE: bny_reduce_cut(p, chunk); return;
    case BNY_PASS_BLOCKS: bny_blocks_cut(p, chunk); return;
    }
}

size_t bny_pass_chunk_of(const struct bny_pass *p, int q, uint32_t c, size_t *at)
{
    size_t from = p->share * (size_t)q, to = from + p->share, len;

    if (to > p->count)
        to = p->count;
    *at = from + p->step * c;
    if (from >= to || *at >= to)
        return 0;
    len = to - *at;
    return len < p->step ? len : p->step;
}

char *bny_pass_slot(const struct bny_pass *p, int r, uint32_t c, int q)
{
    size_t slot = c % p->shape->slots, nth = (size_t)(q < r ? q : q - 1);

    return p->peers[r].slice + (slot * ((size_t)p->n - 1) + nth) * p->stride;
}

/* ---- in, add, out ---- */

static struct bny_area_entry *entry_of(const struct bny_pass *p, int r)
{
    return &p->peers[r].area->entries[p->seq % BNY_AREA_ENTRIES];
}

/* The operation of this rank's counts. */
static void tell_sig(struct bny_pass *p)
{
    struct bny_area_entry *e = entry_of(p, p->rank);

    e->sig = p->sig;
    e->slice = p->slice;
    e->lends = (uint32_t)p->lends;
    e->history = p->history;
}

/* So many chunks are in; the first time with what they belong to. */
void bny_pass_tell_filled(struct bny_pass *p, uint32_t before, uint32_t now)
{
    struct bny_area_entry *e = entry_of(p, p->rank);

    if (before == 0 && !p->has_met)
        tell_sig(p);
    atomic_store_explicit(&e->filled, (uint64_t)p->seq << 32 | now, memory_order_release);
    p->told = 1;
}

void bny_pass_tell_added(struct bny_pass *p, uint32_t now)
{
    struct bny_area_entry *e = entry_of(p, p->rank);

    p->nadded = now;
    atomic_store_explicit(&e->added, (uint64_t)p->seq << 32 | now, memory_order_release);
    p->told = 1;
}

static void put_in(struct bny_pass *p, uint32_t c)
{
    size_t at, len;

    for (int i = 1; i < p->n; i++) {
        int q = bny_pass_nth(p, i);

        len = bny_pass_chunk_of(p, q, c, &at) * p->esz;
        bny_local_place(bny_pass_slot(p, p->rank, c, q), bny_in_at(p->in, at * p->esz), len);
        p->copied += len;
        p->handed += len;
    }
    bny_pass_tell_filled(p, c, c + 1);
}

static void pass_take_out(struct bny_pass *p, uint32_t c)
{
    size_t at, len;

    for (int i = 1; i < p->n; i++) {
        int q = bny_pass_nth(p, i);

        len = bny_pass_chunk_of(p, q, c, &at) * p->esz;
        bny_local_place(bny_out_at(p->out, at * p->esz), bny_pass_slot(p, p->rank, c, q), len);
        p->copied += len;
    }
}

/* len elements, which fit the tile, from `from` on: of all ranks in their order, to all. */
static void add_tile(struct bny_pass *p, size_t from, size_t len, int twice)
{
    const struct bny_pass_peer *peers = p->peers;
    size_t off = from * p->esz;
    char *out = peers[p->rank].dst + off;
    const void *in[BNY_PASS_RANKS_MAX];

    if (p->n == 2 && twice && !p->averages) {
        bny_redop_run_twice(&p->redop, p->dtype, out, peers[!p->rank].dst + off,
                            peers[0].src + off, peers[1].src + off, len);
        return;
    }
    for (int r = 0; r < p->n; r++)
        in[r] = peers[r].src + off;
    bny_local_reduce_all(&p->redop, p->dtype, out, p->tile, in, p->n, len);
    if (p->averages)
        bny_divide(out, out, len, p->dtype, p->n);
    for (int r = 0; r < p->n; r++)
        if (r != p->rank)
            bny_local_place(peers[r].dst + off, out, len * p->esz);
}

static void ungather(struct bny_pass *p, int n)
{
    for (int r = 0; r < n; r++)
        if (r != p->rank && p->peers[r].lends)
            p->give_back(p->ctx, r);
}

/* Where the inputs to `len` elements of our part are, and where their sums go. 0: not now. */
static int pass_gather(struct bny_pass *p, uint32_t c, size_t at, size_t len)
{
    for (int r = 0; r < p->n; r++) {
        struct bny_pass_peer *peer = &p->peers[r];

        if (r == p->rank) {
            peer->src = bny_in_at(p->in, at * p->esz);
            peer->dst = bny_out_at(p->out, at * p->esz);
        } else if (!peer->lends) {
            peer->src = peer->dst = bny_pass_slot(p, r, c, p->rank);
        } else if (p->borrow(p->ctx, r, at * p->esz, len * p->esz, &peer->src, &peer->dst)) {
            ungather(p, r);
            return 0;
        }
    }
    return 1;
}

/* Chunks from c on that can be added at once: one, or all in reach where none is in a slot. */
static uint32_t run_of(const struct bny_pass *p, uint32_t c, size_t *at, size_t *len)
{
    uint32_t next = c + 1;
    int all_lend = 1;
    size_t behind;

    *len = bny_pass_chunk_of(p, p->rank, c, at);
    for (int r = 0; r < p->n; r++)
        all_lend &= r == p->rank || p->peers[r].lends;
    for (; all_lend && next < p->nchunks && *len * p->esz < BNY_PASS_RUN_MAX; next++)
        *len += bny_pass_chunk_of(p, p->rank, next, &behind);
    return next - c;
}

/* 0: not now. */
static int pass_add(struct bny_pass *p, uint32_t c)
{
    int twice = bny_redop_twice(&p->redop, p->dtype);
    size_t at, len, tile = p->tile_elems;
    uint32_t next = c + run_of(p, c, &at, &len);

    if (p->n == 2 && twice && !p->averages)
        tile = p->shape->chunk_max;
    if (len && !pass_gather(p, c, at, len))
        return 0;
    for (size_t from = 0; from < len; from += tile)
        add_tile(p, from, len - from < tile ? len - from : tile, twice);
    if (len)
        ungather(p, p->n);
    p->handed += len * p->esz * ((size_t)p->n - 1);
    bny_pass_tell_added(p, next);
    return 1;
}

/* ---- what peers have told; foreign input ---- */

/* Chunks of this operation in a count; 0: it is another's. */
static uint32_t count_of(const struct bny_pass *p, uint64_t word)
{
    return (uint32_t)(word >> 32) == p->seq ? (uint32_t)word : 0;
}

/* The root of a gather alone lends what others copy into. */
static uint8_t loan_of(const struct bny_pass *p, int r, uint32_t lends)
{
    uint32_t most = p->direct && r == p->root ? BNY_PASS_LENDS_COPIES : BNY_PASS_LENDS;

    return p->borrow && lends <= most ? (uint8_t)lends : BNY_PASS_KEEPS;
}

/* The peer's first word: is it the same operation, and where are its slots? */
static int pass_meet(struct bny_pass *p, int r, const struct bny_area_entry *e)
{
    struct bny_pass_peer *peer = &p->peers[r];
    uint32_t slice = *(const volatile uint32_t *)&e->slice;

    if (peer->differs)
        return 0;
    memcpy(&peer->theirs, &e->sig, sizeof peer->theirs);
    if (memcmp(&peer->theirs, &p->sig, sizeof p->sig) != 0 || slice >= BNY_AREA_SLICES ||
        *(const volatile uint32_t *)&e->history != p->history) {
        peer->differs = 1;
        return 0;
    }
    peer->lends = loan_of(p, r, *(const volatile uint32_t *)&e->lends);
    peer->slice = (char *)peer->area + p->shape->slices_at + slice * p->shape->slice_bytes;
    return 1;
}

int bny_pass_has_filled(struct bny_pass *p, int r, uint32_t c)
{
    struct bny_pass_peer *peer = &p->peers[r];
    struct bny_area_entry *e = entry_of(p, r);
    uint32_t seen;

    if (r == p->rank || peer->filled > c)
        return 1;
    seen = count_of(p, atomic_load_explicit(&e->filled, memory_order_acquire));
    if (seen <= c || (!peer->slice && !pass_meet(p, r, e)))
        return 0;
    peer->filled = seen;
    return 1;
}

void bny_pass_tell_met(struct bny_pass *p)
{
    if (p->has_met)
        return;
    p->has_met = 1;
    tell_sig(p);
    atomic_store_explicit(&entry_of(p, p->rank)->met, (uint64_t)p->seq << 32 | 1,
                          memory_order_release);
    p->told = 1;
}

int bny_pass_has_met(struct bny_pass *p, int r)
{
    struct bny_area_entry *e = entry_of(p, r);

    return r == p->rank || p->peers[r].slice || bny_pass_has_filled(p, r, 0) ||
           (count_of(p, atomic_load_explicit(&e->met, memory_order_acquire)) &&
            pass_meet(p, r, e));
}

/* In sums, a rank that lends waits until it knows whether all do. 0: it does not know yet. */
static int knows_loans(struct bny_pass *p)
{
    int all = 1;

    if (!p->adds || !p->lends || p->stage)
        return 1;
    bny_pass_tell_met(p);
    for (int r = 0; r < p->n; r++) {
        if (r == p->rank)
            continue;
        if (!bny_pass_has_met(p, r))
            return 0;
        all &= p->peers[r].lends;
    }
    p->lends = all;
    return 1;
}

uint32_t bny_pass_added_of(struct bny_pass *p, int r)
{
    if (!p->peers[r].slice && !bny_pass_has_met(p, r))
        return 0;
    return count_of(p, atomic_load_explicit(&entry_of(p, r)->added, memory_order_acquire));
}

int bny_pass_has_added(struct bny_pass *p, int r, uint32_t c)
{
    struct bny_pass_peer *peer = &p->peers[r];

    if (r == p->rank || peer->added > c)
        return 1;
    peer->added = bny_pass_added_of(p, r);
    return peer->added > c;
}

/* ---- going on ---- */

enum { PHASE_IN, PHASE_ADD, PHASE_OUT };

void bny_pass_begin(struct bny_pass *p)
{
    for (int r = 0; r < p->n; r++) {
        struct bny_pass_peer *peer = &p->peers[r];

        peer->slice = NULL;
        peer->filled = peer->added = 0;
        peer->differs = peer->lends = 0;
    }
    p->peers[p->rank].slice =
        (char *)p->peers[p->rank].area + p->shape->slices_at + p->slice * p->shape->slice_bytes;
    p->stage = 0;
    p->phase = PHASE_IN;
    p->told = 0;
    p->copied = p->handed = 0;
    p->nadded = 0;
    p->has_met = 0;
    if (p->lends && p->kind == BNY_PASS_ALLREDUCE)
        bny_pass_tell_filled(p, 0, p->nchunks);
    if (p->kind == BNY_PASS_REDUCE)
        bny_reduce_begin(p);
    if (p->kind == BNY_PASS_BLOCKS)
        bny_blocks_begin(p);
}

/* Is it chunk c's turn, c = stage - behind? */
static int turn(const struct bny_pass *p, uint32_t behind, uint32_t *c)
{
    *c = p->stage - behind;
    return p->stage >= behind && *c < p->nchunks;
}

static int all(struct bny_pass *p, int (*has)(struct bny_pass *, int, uint32_t), uint32_t c)
{
    for (int r = 0; r < p->n; r++)
        if (!has(p, r, c))
            return 0;
    return 1;
}

static int in(struct bny_pass *p, uint32_t c)
{
    if (p->kind == BNY_PASS_EXCHANGE) {
        bny_exchange_in(p, c);
        bny_pass_tell_filled(p, c, c + 1);
        return 1;
    }
    if (p->lends)
        return 0;
    if (p->kind == BNY_PASS_REDUCE)
        bny_reduce_in(p, c);
    else
        put_in(p, c);
    return 1;
}

/* 0: not now. */
static int add_or_swap(struct bny_pass *p, uint32_t c)
{
    if (p->kind == BNY_PASS_REDUCE)
        return bny_reduce_add(p, c);
    if (p->kind == BNY_PASS_ALLREDUCE)
        return pass_add(p, c);
    return bny_exchange_swap(p, c);
}

static void out(struct bny_pass *p, uint32_t c)
{
    if (p->kind == BNY_PASS_EXCHANGE)
        bny_exchange_out(p, c);
    else if (p->kind == BNY_PASS_REDUCE)
        bny_reduce_out(p, c);
    else if (!p->lends)
        pass_take_out(p, c);
}

int bny_pass_go(struct bny_pass *p)
{
    int moved = 0;
    uint32_t c;

    if (p->kind == BNY_PASS_BLOCKS)
        return bny_blocks_go(p);
    for (; !bny_pass_is_done(p); p->stage++, p->phase = PHASE_IN) {
        if (p->phase == PHASE_IN) {
            if (!knows_loans(p))
                return moved;
            if (turn(p, 0, &c))
                moved |= in(p, c);
            p->phase = PHASE_ADD;
        }
        if (p->phase == PHASE_ADD) {
            if (turn(p, p->lag, &c) && c >= p->nadded) {
                if (!all(p, bny_pass_has_filled, c) || !add_or_swap(p, c))
                    return moved;
                moved = 1;
            }
            p->phase = PHASE_OUT;
        }
        if (turn(p, 2 * p->lag, &c)) {
            if (!all(p, bny_pass_has_added, c))
                return moved;
            out(p, c);
            moved = 1;
        }
    }
    return moved;
}

int bny_pass_is_read_on(const struct bny_pass *p)
{
    return p->kind == BNY_PASS_BLOCKS && !p->lends && bny_blocks_gives(p, p->rank);
}

int bny_pass_lacks(const struct bny_pass *p, int r)
{
    const struct bny_pass_peer *peer = &p->peers[r];
    uint32_t c;

    if (r == p->rank || bny_pass_is_done(p))
        return 0;
    if (p->kind == BNY_PASS_BLOCKS)
        return bny_blocks_lacks(p, r);
    if (p->phase == PHASE_IN)
        return !peer->slice;
    if (p->phase == PHASE_OUT)
        return turn(p, 2 * p->lag, &c) && peer->added <= c;
    return turn(p, p->lag, &c) && peer->filled <= c;
}
