/* SPDX-License-Identifier: BSD-3-Clause */
/* Handles are rarely made and freed: a lock and a queue suffice. */
#include "base/handle.h"

#include <stdlib.h>
#include <string.h>

#include "base/memcheck.h"

/* The address sanitizer still finds reads of a freed handle, except of its mark. */
#if BNY_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#define POISON(p, n)   ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define POISON(p, n)   ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

static atomic_uint_fast64_t serials;

/* The queue may be half changed: its memory is not reused. */
void bny_handles_in_child(struct bny_lock *l)
{
    struct bny_handles *kind =
        (struct bny_handles *)(void *)((char *)l - offsetof(struct bny_handles, lock));

    kind->first = kind->last = NULL;
    kind->nfreed = 0;
}

static struct bny_handle *oldest(struct bny_handles *kind)
{
    struct bny_handle *h = NULL;

    bny_lock_take(&kind->lock);
    if (kind->nfreed > BNY_HANDLES_KEPT) {
        h = kind->first;
        kind->first = h->next;
        kind->nfreed--;
    }
    bny_lock_give(&kind->lock);
    return h;
}

void *bny_handle_new(struct bny_handles *kind)
{
    struct bny_handle *h = oldest(kind);

    if (h)
        UNPOISON(h + 1, kind->bytes - sizeof *h);
    else
        h = calloc(1, kind->bytes);
    if (!h)
        return NULL;
    h->next = NULL;
    h->serial = atomic_fetch_add(&serials, 1) + 1;
    atomic_store(&h->mark, kind->mark);
    return h;
}

void bny_handle_free(struct bny_handles *kind, struct bny_handle *h)
{
    atomic_store(&h->mark, 0);
    h->serial = 0;
    h->next = NULL;
    memset(h + 1, 0, kind->bytes - sizeof *h);
    POISON(h + 1, kind->bytes - sizeof *h);
    bny_lock_take(&kind->lock);
    if (kind->nfreed++)
        kind->last->next = h;
    else
        kind->first = h;
    kind->last = h;
    bny_lock_give(&kind->lock);
}
