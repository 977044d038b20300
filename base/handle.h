/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory of the handles that programs hold. It is never returned to the system, and reused only
 * after many others of its kind were freed: a call with a freed handle reads a cleared mark and
 * can report it, instead of reading foreign memory. The check is one load and one
 * comparison. */
#ifndef BNY_BASE_HANDLE_H
#define BNY_BASE_HANDLE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/fork.h"

#define BNY_HANDLES_KEPT 64 /* freed ones of a kind that are not reused yet */

struct bny_handle {   /* the first member of the object */
    atomic_uint mark; /* of its kind; 0: freed */
    uint64_t serial;  /* unique in the process */
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
/* Takes a live handle's memory and clears all of it but the handle. Any thread. */
void bny_handle_free(struct bny_handles *kind, struct bny_handle *h);

static inline int bny_handle_is(const struct bny_handle *h, unsigned mark)
{
    return atomic_load_explicit(&h->mark, memory_order_relaxed) == mark;
}

#endif
