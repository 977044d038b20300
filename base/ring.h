/* SPDX-License-Identifier: BSD-3-Clause */
/* Rings: lists from which an item is removed without a search. A zeroed link is in none, and a
 * zeroed head is an empty ring. */
#ifndef BNY_BASE_RING_H
#define BNY_BASE_RING_H

#include <stddef.h>

struct bny_link {
    struct bny_link *prev, *next;
};

static inline int bny_ring_is_empty(const struct bny_link *head)
{
    return !head->next || head->next == head;
}

static inline int bny_link_is_in(const struct bny_link *l)
{
    return l->next != NULL;
}

/* No effect if it is in none. */
static inline void bny_link_out(struct bny_link *l)
{
    if (!l->next)
        return;
    l->prev->next = l->next;
    l->next->prev = l->prev;
    *l = (struct bny_link){ 0 };
}

/* Appends to the ring of head; no effect if it is in it. */
static inline void bny_link_in(struct bny_link *head, struct bny_link *l)
{
    if (l->next)
        return;
    if (!head->next)
        head->prev = head->next = head;
    *l = (struct bny_link){ .prev = head->prev, .next = head };
    head->prev->next = l;
    head->prev = l;
}

/* Moves all of `from` into the empty ring `to`. */
static inline void bny_ring_move(struct bny_link *to, struct bny_link *from)
{
    *to = (struct bny_link){ 0 };
    if (!bny_ring_is_empty(from)) {
        *to = *from;
        to->prev->next = to;
        to->next->prev = to;
    }
    *from = (struct bny_link){ 0 };
}

/* The object that contains a link. */
#define BNY_LINK_OF(link, type, member)                                                        \
    ((type *)(void *)((char *)(link)-offsetof(type, member)))

#endif
