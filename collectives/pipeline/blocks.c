/* SPDX-License-Identifier: BSD-3-Clause */
/* Blocks as passes (pass.h): broadcast, gather, scatter, allgather. The giver of a block copies
 * a chunk of it into a slot of its own, once for all ranks that need the same one, and those
 * copy it out. Slots are used in turn, anew when all who take from them have told that they
 * did. Data in slots stays there for ranks that come later.
 *
 * In a gather (direct) givers ask first whether the root lends its output: then each stores its
 * block there, all at once, and the root takes nothing.
 *
 * Who lends its input puts nothing into slots: others take it from there. In a broadcast each
 * rank that lends its output as well takes only the chunks before p->taken_to; the root stores
 * the others there, a rank after the other, and tells for whom it has. */
#include "collectives/local/local.h"
#include "collectives/pipeline/pass.h"
#include "transport/transport.h"

#define CHUNK      (32u << 10)
#define SLOTS_MAX  8u
#define LONG_BYTES (1u << 20) /* of several ranks */
#define LONG_PAIR  (256u << 10)
#define LONG_CHUNK (64u << 10) /* where several ranks wait for each other */
#define AHEAD      3u          /* chunks that a rank gives before it takes */
#define STORED_MAX 32          /* ranks: bits of what the root tells */
#define TILE       16384u      /* bytes that are read, then written: bny_touch() */

int bny_blocks_gives(const struct bny_pass *p, int r)
{
    return p->root < 0 || (r == p->root) == p->from_root;
}

static int takes(const struct bny_pass *p, int r)
{
    return p->root < 0 || (r == p->root) != p->from_root;
}

int bny_blocks_stores(const struct bny_pass *p)
{
    return p->from_root && p->same && p->n <= 1 + STORED_MAX;
}

int bny_blocks_reaches(const struct bny_pass *p, int r)
{
    if (p->direct)
        return p->rank == p->root;
    return (bny_blocks_gives(p, p->rank) && takes(p, r)) ||
           (bny_blocks_stores(p) && r == p->root);
}

/* Do givers store their blocks in the root's output? They know when they have met it. */
static int root_lends(const struct bny_pass *p)
{
    return p->direct && (p->rank == p->root ? p->lends : p->peers[p->root].lends);
}

/* Slots side by side for one chunk. */
static size_t width(const struct bny_pass *p)
{
    return p->same ? 1 : (size_t)p->n - 1;
}

/* All ranks' areas have the same shape, so all cut alike. */
void bny_blocks_cut(struct bny_pass *p, size_t chunk)
{
    size_t room = p->shape->slice_bytes / width(p) & ~(size_t)(BNY_AREA_LINE - 1),
           bytes = p->count * p->esz;

    if (!chunk && p->shape->lag && bytes <= BNY_PASS_SHORT_BYTES)
        chunk = BNY_PASS_SHORT_CHUNK;
    if (!chunk && p->shape->lag &&
        bytes * (p->root < 0 ? (size_t)p->n : 1) >= (p->n == 2 ? LONG_PAIR : LONG_BYTES))
        chunk = LONG_CHUNK;
    if (!chunk) /* with more ranks than CPUs each wait lets another one run */
        chunk = p->shape->lag ? CHUNK : room / 2;
    if (chunk > room)
        chunk = room;
    p->step = chunk / p->esz ? chunk / p->esz : 1;
    p->share = p->count ? p->count : 1; /* no element: a chunk all the same */
    if (p->step > p->share)
        p->step = p->share;
    p->nchunks = (uint32_t)((p->share + p->step - 1) / p->step);
    p->stride = bny_pass_round_up(p->step * p->esz, BNY_AREA_LINE);
    if (p->stride > room)
        p->stride = room;
    p->nslots = (uint32_t)(room / p->stride);
    if (p->nslots > SLOTS_MAX)
        p->nslots = SLOTS_MAX;
    p->lag = 0;
    p->tile_elems = 0; /* nothing is added */
    p->taken_to = p->nchunks;
    if (bny_blocks_stores(p) && bytes >= p->stores_from) /* so that all copy as much */
        p->taken_to -= p->nchunks / (uint32_t)p->n;
}

void bny_blocks_begin(struct bny_pass *p)
{
    p->nin = p->stored = 0;
    p->stores_for = 0;
    p->nstored = p->taken_to;
    if (!bny_blocks_gives(p, p->rank))
        bny_pass_tell_met(p);
    else if (p->lends)
        bny_pass_tell_filled(p, 0, p->nchunks);
}

/* Where rank r has chunk c of its block for rank q. */
static char *slot_of(const struct bny_pass *p, int r, uint32_t c, int q)
{
    size_t nth = p->same ? 0 : (size_t)(q < r ? q : q - 1);

    return p->peers[r].slice + (c % p->nslots * width(p) + nth) * p->stride;
}

/* Elements of chunk c, from *at on in its block. */
static size_t chunk_of(const struct bny_pass *p, uint32_t c, size_t *at)
{
    *at = p->step * c;
    if (*at >= p->count)
        return 0;
    return p->count - *at < p->step ? p->count - *at : p->step;
}

/* Elements of the chunks from c to `to`, as many as go at once, and how many these are. */
static uint32_t run_to(const struct bny_pass *p, uint32_t c, uint32_t to, size_t *at,
                       size_t *len)
{
    uint32_t next = c + 1;
    size_t behind;

    *len = chunk_of(p, c, at);
    for (; next < to && *len * p->esz < BNY_PASS_RUN_MAX; next++)
        *len += chunk_of(p, next, &behind);
    return next;
}

/* Bytes of a giver's input before its block for rank q. */
static size_t block_at(const struct bny_pass *p, int q)
{
    return p->same ? 0 : (size_t)q * p->count * p->esz;
}

static char *blocks_place_of(const struct bny_pass *p, int r)
{
    return bny_out_at(p->out, p->from_root ? 0 : (size_t)r * p->count * p->esz);
}

/* Our block for ourselves; a broadcast has none. */
static void keep_own(const struct bny_pass *p, size_t at, size_t len)
{
    if (p->root < 0 || (p->rank == p->root && !(p->from_root && p->same)))
        bny_local_copy(bny_out_at(blocks_place_of(p, p->rank), at),
                       bny_in_at(p->in, block_at(p, p->rank) + at), len);
}

/* ---- giving ---- */

static int all_have_taken(struct bny_pass *p, uint32_t c)
{
    for (int i = 1; i < p->n; i++)
        if (takes(p, bny_pass_nth(p, i)) && !bny_pass_has_added(p, bny_pass_nth(p, i), c))
            return 0;
    return 1;
}

static int blocks_give(struct bny_pass *p, uint32_t c)
{
    size_t at, len = chunk_of(p, c, &at) * p->esz;

    at *= p->esz;
    p->handed += len * (p->root < 0 || p->from_root ? (size_t)p->n - 1 : 1);
    for (int i = 1; i < p->n && !p->lends; i++) {
        int q = bny_pass_nth(p, i);

        if (!takes(p, q))
            continue;
        bny_local_place(slot_of(p, p->rank, c, q), bny_in_at(p->in, block_at(p, q) + at), len);
        p->copied += len;
        if (p->same)
            break;
    }
    if (p->root < 0 || !takes(p, p->rank))
        keep_own(p, at, len);
    if (!p->lends)
        bny_pass_tell_filled(p, c, c + 1);
    p->nin = c + 1;
    return 1;
}

/* Into the root's output. 0: not now. */
static int give_to_root(struct bny_pass *p)
{
    size_t at, len;
    uint32_t next = run_to(p, p->nin, p->nchunks, &at, &len);

    at *= p->esz;
    len *= p->esz;
    if (len && p->store(p->ctx, p->root, at, bny_in_at(p->in, at), len) != 0)
        return 0;
    p->handed += len;
    bny_pass_tell_filled(p, p->nin, next);
    p->nin = next;
    return 1;
}

/* ---- storing ---- */

static uint32_t bit_of(const struct bny_pass *p, int r)
{
    return 1u << ((r < p->root ? r : r - 1) & (STORED_MAX - 1));
}

/* Does the root store chunks for rank r? Both know it once they have heard from each other. */
static int stores_for(const struct bny_pass *p, int r)
{
    int root = p->rank == p->root ? p->lends : p->peers[p->root].lends;
    int other = p->rank == r ? p->lends : p->peers[r].lends;

    return p->taken_to < p->nchunks && root && other;
}

/* The next rank that waits for what we store; 0: none does yet, or ever. */
static int next_stored(struct bny_pass *p)
{
    for (int i = 1; i < p->n; i++) {
        int r = bny_pass_nth(p, i);

        if (!(p->stored & bit_of(p, r)) && bny_pass_has_met(p, r) && stores_for(p, r))
            return i;
    }
    return 0;
}

static int store(struct bny_pass *p)
{
    const char *unused;
    size_t at, len;
    uint32_t next;
    char *to;
    int r;

    if (!p->stores_for)
        p->stores_for = next_stored(p);
    if (!p->stores_for)
        return 0;
    r = bny_pass_nth(p, p->stores_for);
    next = run_to(p, p->nstored, p->nchunks, &at, &len);
    if (p->borrow(p->ctx, r, at * p->esz, len * p->esz, &unused, &to) != 0)
        return 0;
    bny_local_place(to, bny_in_at(p->in, at * p->esz), len * p->esz);
    p->give_back(p->ctx, r);
    p->copied += len * p->esz;
    p->nstored = next;
    if (next == p->nchunks) {
        p->stored |= bit_of(p, r);
        bny_pass_tell_added(p, p->stored);
        p->stores_for = 0;
        p->nstored = p->taken_to;
    }
    return 1;
}

/* We have taken our chunks: has the root stored the others? */
static int has_stored(struct bny_pass *p)
{
    if (!(bny_pass_added_of(p, p->root) & bit_of(p, p->rank)))
        return 0;
    bny_pass_tell_added(p, p->nchunks);
    return 1;
}

/* ---- taking ---- */

/* Where all blocks for us have [at, at + len), from chunk c on. 0: not now. */
static int blocks_find(struct bny_pass *p, uint32_t c, size_t at, size_t len)
{
    for (int i = 1; i < p->n; i++) {
        int r = bny_pass_nth(p, i);
        struct bny_pass_peer *peer = &p->peers[r];
        char *unused;

        if (!bny_blocks_gives(p, r))
            continue;
        peer->src = slot_of(p, r, c, p->rank);
        if (peer->lends && len &&
            p->borrow(p->ctx, r, block_at(p, p->rank) + at, len, &peer->src, &unused) != 0)
            return 0;
    }
    return 1;
}

/* A slot that only one rank reads changes hands faster if that one writes it, too. */
static void blocks_place(char *to, char *slot, size_t len)
{
    for (size_t at = 0, n; at < len; at += n) {
        n = len - at < TILE ? len - at : TILE;
        bny_local_place(to + at, slot + at, n);
        bny_touch(slot + at, n);
    }
}

/* Chunks from c on that can be taken at once: one, or more where none is in a slot. */
static uint32_t run_of(const struct bny_pass *p, uint32_t c, size_t *at, size_t *len)
{
    uint32_t to = bny_blocks_gives(p, p->rank)                     ? p->nin
                  : bny_blocks_stores(p) && stores_for(p, p->rank) ? p->taken_to
                                                                   : p->nchunks;

    for (int r = 0; r < p->n; r++)
        if (r != p->rank && bny_blocks_gives(p, r) && !p->peers[r].lends)
            to = c + 1;
    return run_to(p, c, to, at, len);
}

static int blocks_take(struct bny_pass *p, uint32_t c)
{
    size_t at, len;
    uint32_t next;
    int alone = p->n == 2 || !p->same || (p->root >= 0 && !p->from_root);

    for (int i = 1; i < p->n; i++)
        if (bny_blocks_gives(p, bny_pass_nth(p, i)) &&
            !bny_pass_has_filled(p, bny_pass_nth(p, i), c))
            return 0;
    if (bny_blocks_stores(p) && c == p->taken_to && stores_for(p, p->rank))
        return has_stored(p);
    if (root_lends(p)) {
        len = chunk_of(p, c, &at) * p->esz;
        keep_own(p, at * p->esz, len);
        bny_pass_tell_added(p, c + 1);
        return 1;
    }
    next = run_of(p, c, &at, &len);
    at *= p->esz;
    len *= p->esz;
    if (!blocks_find(p, c, at, len))
        return 0;
    for (int i = 1; i < p->n; i++) {
        int r = bny_pass_nth(p, i);
        const struct bny_pass_peer *peer = &p->peers[r];

        if (!bny_blocks_gives(p, r))
            continue;
        if (alone && p->touches && !peer->lends)
            blocks_place(blocks_place_of(p, r) + at, slot_of(p, r, c, p->rank), len);
        else
            bny_local_place(blocks_place_of(p, r) + at, peer->src, len);
        p->copied += len;
    }
    if (!bny_blocks_gives(p, p->rank))
        keep_own(p, at, len);
    bny_pass_tell_added(p, next);
    return 1;
}

/* ---- going on ---- */

/* A rank with a block of its own takes others' while it gives. */
static int may_give(struct bny_pass *p)
{
    uint32_t c = p->nin;

    if (!bny_blocks_gives(p, p->rank) || c == p->nchunks)
        return 0;
    if (p->direct && !bny_pass_has_met(p, p->root))
        return 0;
    return (!takes(p, p->rank) || c <= p->nadded + AHEAD) &&
           (p->lends || root_lends(p) || c < p->nslots || all_have_taken(p, c - p->nslots));
}

static int may_take(const struct bny_pass *p)
{
    return takes(p, p->rank) && p->nadded < p->nchunks &&
           (!bny_blocks_gives(p, p->rank) || p->nin > p->nadded);
}

int bny_blocks_go(struct bny_pass *p)
{
    int moved = 0, again = !bny_pass_is_done(p);

    while (again) {
        again = 0;
        if (may_give(p)) /* asked once: the root may come any moment */
            again = root_lends(p) ? give_to_root(p) : blocks_give(p, p->nin);
        if (p->lends && p->rank == p->root && bny_blocks_stores(p))
            again |= store(p);
        if (may_take(p))
            again |= blocks_take(p, p->nadded);
        moved |= again;
    }
    if (bny_pass_is_done(p) ||
        (bny_blocks_gives(p, p->rank) &&
         (p->nin < p->nchunks || (p->lends && !all_have_taken(p, p->nchunks - 1)))) ||
        (takes(p, p->rank) && p->nadded < p->nchunks))
        return moved;
    p->stage = p->nchunks;
    return 1;
}

int bny_blocks_lacks(const struct bny_pass *p, int r)
{
    const struct bny_pass_peer *peer = &p->peers[r];
    uint32_t before = p->nin < p->nchunks ? p->nslots - 1 : /* chunks that may be untaken */
                          p->lends ? 0
                                   : p->nchunks;

    if (takes(p, p->rank) && bny_blocks_gives(p, r) && p->nadded < p->nchunks &&
        (peer->filled <= p->nadded ||
         (bny_blocks_stores(p) && p->nadded == p->taken_to && stores_for(p, p->rank))))
        return 1;
    if (p->direct && r == p->root && p->nin < p->nchunks && (!peer->slice || peer->lends))
        return 1;
    return bny_blocks_gives(p, p->rank) && takes(p, r) && p->nin > before &&
           peer->added < p->nin - before;
}
