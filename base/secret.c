/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/secret.h"

#include <stdatomic.h>
#include <string.h>

#include <sodium.h>

#include "base/assert.h"

/* They and libsodium's 16 bytes before them fill 4 KiB, to whose end they reach. */
#define PLACES 63
#define BYTES  ((size_t)PLACES * BNY_SECRET_ROOM)
#define ROUND  4096u

struct page { /* the first place of its own */
    struct page *next;
    _Atomic uint64_t taken; /* a bit a place */
};
_Static_assert(sizeof(struct page) <= BNY_SECRET_ROOM && BYTES + 16 <= ROUND, "it has a place");

/* No page is given back. Without a lock, as a fork may copy any state of one. */
static _Atomic(struct page *) pages, latest; /* latest: with which was dealt; may be NULL */
static _Atomic size_t left;                  /* places of all pages */

static void *place_of(struct page *p)
{
    uint64_t taken = p ? atomic_load(&p->taken) : ~(uint64_t)0;

    while (~taken)
        if (atomic_compare_exchange_weak(&p->taken, &taken, taken | (taken + 1))) {
            atomic_store(&latest, p);
            atomic_fetch_sub(&left, 1);
            return (uint8_t *)p + (size_t)__builtin_ctzll(~taken) * BNY_SECRET_ROOM;
        }
    return NULL;
}

void *bny_secret_new(void)
{
    void *place = place_of(atomic_load(&latest));
    struct page *p;

    for (p = atomic_load(&pages); p && !place && atomic_load(&left); p = p->next)
        place = place_of(p);
    if (place)
        return place;
    p = sodium_init() < 0 ? NULL : sodium_malloc(BYTES);
    if (!p)
        return NULL;
    memset(p, 0, BYTES);
    atomic_init(&p->taken, ~(uint64_t)0 << PLACES | 3); /* its own, and the caller's */
    atomic_fetch_add(&left, PLACES - 2);
    p->next = atomic_load(&pages);
    while (!atomic_compare_exchange_weak(&pages, &p->next, p))
        ;
    atomic_store(&latest, p);
    return (uint8_t *)p + BNY_SECRET_ROOM;
}

void bny_secret_forget(void)
{
    sodium_stackzero(ROUND);
}

void bny_secret_free(void *secret)
{
    uintptr_t off = (uintptr_t)secret % ROUND - (ROUND - BYTES);
    uint64_t bit = (uint64_t)1 << off / BNY_SECRET_ROOM % 64;
    struct page *p;

    if (!secret)
        return;
    p = (struct page *)((uint8_t *)secret - off);
    BNY_ASSERT(atomic_load(&p->taken) & bit);
    sodium_memzero(secret, BNY_SECRET_ROOM);
    atomic_fetch_and(&p->taken, ~bit);
    atomic_fetch_add(&left, 1);
    atomic_store(&latest, p);
}
