/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory of the handles that programs hold. It is never given back to the system, and not used
 * again before many others of its kind were freed after it: a call with a handle that was freed
 * reads a cleared mark, and can say so, where it would else read foreign memory. One load and
 * one comparison tell. */
#ifndef BNY_BASE_HANDLE_H
#define BNY_BASE_HANDLE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/fork.h"

#define BNY_HANDLES_KEPT 64 /* freed ones of a kind that are not used again yet */

struct bny_handle {   /* the first member of what a handle points to */
    atomic_uint mark; /* of its kind; 0: freed */
    uint64_t serial;  /* no two handles of a process have the same */
    struct bny_handle *next;
};

struct bny_handles { /* one kind */
    unsigned mark;
    size_t bytes;
    struct bny_lock lock;
    struct bny_handle *first, *last; /* freed, the oldest first */
    size_t nfreed;
};
void bny_handles_in_child(struct bny_lock *l);
#define BNY_HANDLES(mark_, type)                                                               \
    {                                                                                          \
        .mark = (mark_), .bytes = sizeof(type), .lock = BNY_LOCK(bny_handles_in_child)         \
    }

/* A live handle, all else zero; NULL: no memory. Any thread. */
void *bny_handle_new(struct bny_handles *kind);
/* Takes a live handle's memory; all of it but the handle is cleared. Any thread. */
void bny_handle_free(struct bny_handles *kind, struct bny_handle *h);

static inline int bny_handle_is(const struct bny_handle *h, unsigned mark)
{
    return atomic_load_explicit(&h->mark, memory_order_relaxed) == mark;
}

#endif
