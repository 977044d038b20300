/* SPDX-License-Identifier: BSD-3-Clause */
/* Cells: what a rank shows of a short operation, in one line where that is enough. Each rank
 * has some in its area, one for each of the latest operations; a cell's word has the
 * operation's number and, together with `what`, says exactly which operation it is. Data come
 * before the word: up to BNY_CELL_INLINE bytes right behind it, longer ones in one of a few
 * slots. A rank that finds the number for which it waits has the data.
 *
 * A cell is used anew when all ranks are done with the operation that it was for: each rank
 * tells up to which number it is. So a line has one writer, and a rank waits only if it is
 * BNY_CELLS operations ahead, or BNY_CELL_SLOTS with longer data. */
#ifndef BNY_COLLECTIVES_CELLS_H
#define BNY_COLLECTIVES_CELLS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/wire.h"

#define BNY_CELL_BYTES 16384u /* the most that a rank shows */

#define BNY_CELLS      64u /* operations that a rank may be ahead */
#define BNY_CELL_SLOTS 32u /* of these, such as have longer data */
/* Neighbours do not begin in the same set of an L1 cache. */
#define BNY_CELL_INLINE 304u
#define BNY_CELL_SLOT   (BNY_CELL_BYTES + 1024u)

struct bny_cell {
    _Alignas(64) _Atomic uint64_t word; /* number << 32 | collective, type, op, hash */
    uint64_t what;                      /* root_tag << 32 | history << 16 | count */
    char payload[BNY_CELL_INLINE];
};
_Static_assert(sizeof(struct bny_cell) == 320, "a cell is five lines");

struct bny_cells {                       /* of an area; its owner writes, all others read */
    _Alignas(128) _Atomic uint32_t done; /* all before this number are over here */
    _Atomic uint32_t passes_done;        /* the same of those that have entries instead */
    _Alignas(128) struct bny_cell cell[BNY_CELLS];
    _Alignas(64) char slot[BNY_CELL_SLOTS][BNY_CELL_SLOT];
};

/* An operation as its cell says it. `history` is a hash of all operations in cells before it:
 * ranks that called different ones earlier, of which none had to look at the other, differ in
 * it. */
struct bny_cell_key {
    uint64_t word, what;
};

static inline struct bny_cell_key bny_cell_key(uint32_t seq, const struct bny_sig *sig,
                                               uint16_t history)
{
    return (struct bny_cell_key){
        .word = (uint64_t)seq << 32 | (uint32_t)sig->collective << 24 |
                (uint32_t)sig->dtype << 16 | (uint32_t)sig->op << 8 | sig->codec_sched,
        .what = (uint64_t)sig->root_tag << 32 | (uint32_t)history << 16 | (uint16_t)sig->count
    };
}

/* The history after an operation. */
static inline uint16_t bny_cell_history(const struct bny_cell_key *k)
{
    uint64_t h = (k->word ^ k->what * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu;

    return (uint16_t)(h >> 48);
}

/* A key's parts; of a peer's key they are foreign input. */
static inline struct bny_sig bny_cell_sig(const struct bny_cell_key *k)
{
    return (struct bny_sig){ .count = (uint16_t)k->what,
                             .root_tag = (uint32_t)(k->what >> 32),
                             .collective = (uint8_t)(k->word >> 24),
                             .dtype = (uint8_t)(k->word >> 16),
                             .op = (uint8_t)(k->word >> 8),
                             .codec_sched = (uint8_t)k->word };
}

static inline struct bny_cell *bny_cell_of(struct bny_cells *all, uint32_t seq)
{
    return &all->cell[seq % BNY_CELLS];
}

/* Where operation seq has its `bytes` in all. */
static inline char *bny_cell_payload(struct bny_cells *all, uint32_t seq, size_t bytes)
{
    return bytes <= BNY_CELL_INLINE ? all->cell[seq % BNY_CELLS].payload
                                    : all->slot[seq % BNY_CELL_SLOTS];
}

/* Has the owner shown operation seq? */
static inline int bny_cell_has(const struct bny_cell *c, uint32_t seq)
{
    return (uint32_t)(atomic_load_explicit(&c->word, memory_order_acquire) >> 32) == seq;
}

/* Shows it; its data are there. */
static inline void bny_cell_show(struct bny_cell *c, const struct bny_cell_key *k)
{
    c->what = k->what;
    atomic_store_explicit(&c->word, k->word, memory_order_release);
}

/* Whatever is there. */
static inline struct bny_cell_key bny_cell_read(const struct bny_cell *c)
{
    return (struct bny_cell_key){ .word = atomic_load_explicit(&c->word, memory_order_acquire),
                                  .what = *(const volatile uint64_t *)&c->what };
}

/* New cells: each has a number that belongs into another one. */
static inline void bny_cells_init(struct bny_cells *all)
{
    for (uint32_t i = 0; i < BNY_CELLS; i++)
        atomic_store_explicit(&all->cell[i].word, (uint64_t)(i ^ 1) << 32,
                              memory_order_relaxed);
}

#endif
