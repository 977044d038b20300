/* SPDX-License-Identifier: BSD-3-Clause */
/* Lists of messages linked by their `next`, which the holder owns: a message is in at most one
 * list. A zeroed list is empty, and nothing is allocated. Walk one with
 *     for (const struct bny_msg *m = list->first; m; m = m->next)
 * Lists borrow messages: the caller that takes one out must release or hold it. Lists have no
 * lock. */
#ifndef BNY_TRANSPORT_MSG_LIST_H
#define BNY_TRANSPORT_MSG_LIST_H

#include "base/assert.h"
#include "transport/transport.h"

struct bny_msg_list {
    struct bny_msg *first;
    struct bny_msg *last; /* valid only if first is not NULL */
};

static inline void bny_msg_list_init(struct bny_msg_list *list)
{
    *list = (struct bny_msg_list){ 0 };
}

static inline int bny_msg_list_is_empty(const struct bny_msg_list *list)
{
    return !list->first;
}

/* Inserts after `after`, which is in the list; NULL: at the front. */
static inline void bny_msg_list_insert(struct bny_msg_list *list, struct bny_msg *after,
                                       struct bny_msg *msg)
{
    struct bny_msg **at = after ? &after->next : &list->first;

    BNY_ASSERT(msg != after && msg != *at);
    msg->next = *at;
    *at = msg;
    if (!msg->next)
        list->last = msg;
}

static inline void bny_msg_list_push_front(struct bny_msg_list *list, struct bny_msg *msg)
{
    bny_msg_list_insert(list, NULL, msg);
}

static inline void bny_msg_list_push_back(struct bny_msg_list *list, struct bny_msg *msg)
{
    bny_msg_list_insert(list, list->first ? list->last : NULL, msg);
}

/* Takes out the first one; NULL: empty. */
static inline struct bny_msg *bny_msg_list_pop_front(struct bny_msg_list *list)
{
    struct bny_msg *msg = list->first;

    if (msg) {
        list->first = msg->next;
        msg->next = NULL;
    }
    return msg;
}

/* Takes out all, in order: to process them while others may be added. */
static inline struct bny_msg_list bny_msg_list_take(struct bny_msg_list *list)
{
    struct bny_msg_list all = *list;

    bny_msg_list_init(list);
    return all;
}

/* Moves all of `from` to the end of `list`. */
static inline void bny_msg_list_append(struct bny_msg_list *list, struct bny_msg_list *from)
{
    if (from->first) {
        *(list->first ? &list->last->next : &list->first) = from->first;
        list->last = from->last;
    }
    bny_msg_list_init(from);
}

#endif
