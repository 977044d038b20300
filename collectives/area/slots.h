/* SPDX-License-Identifier: BSD-3-Clause */
/* The layout of an area: the counts of the operations that are under way, and the slots through
 * which their chunks go (pipeline/pass.h). Short operations have cells instead (cells.h). */
#ifndef BNY_COLLECTIVES_SLOTS_H
#define BNY_COLLECTIVES_SLOTS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "transport/wire.h"

#define BNY_AREA_ENTRIES 16 /* operations that may be under way, by their number */
#define BNY_AREA_SLICES  4  /* of these, so many have slots */
#define BNY_AREA_LINE    64u

/* A rank's counts of an operation. A count is the operation's number << 32 | chunks: what is
 * left of an older operation is no count of this one. */
struct bny_area_entry {
    _Alignas(128) _Atomic uint64_t filled; /* chunks that are in */
    struct bny_sig sig;                    /* written before the first, as is: */
    uint32_t slice;                        /* which it has taken for this operation */
    uint32_t lends;                        /* its vector: enum bny_pass_loan */
    uint32_t history;                      /* a hash of its operations before this one */
    _Atomic uint64_t met; /* number << 32 | 1: the four above are written, before any count */
    _Alignas(128) _Atomic uint64_t added; /* chunks of its own part that are added */
};

/* How the areas of a communicator look: the same on all ranks. */
struct bny_area_shape {
    int n;
    uint32_t slots, lag;
    size_t chunk_max;   /* bytes of a part */
    size_t slice_bytes; /* slots * (n - 1) * chunk_max */
    size_t slices_at;   /* in an area: behind its head, and what is between them */
    size_t area_bytes;
};

/* The beginning of an area; its slices follow. */
struct bny_area_head {
    struct bny_area_entry entries[BNY_AREA_ENTRIES];
};
_Static_assert(sizeof(struct bny_area_head) == 4096, "a page, then slices");

/* For n ranks, `between` bytes of the caller's behind the head; crowded: more ranks than CPUs.
 */
void bny_area_shape_init(struct bny_area_shape *s, int n, int crowded, size_t between);

#endif
