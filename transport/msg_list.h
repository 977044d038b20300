/* SPDX-License-Identifier: BSD-3-Clause */
/* Lists of messages by their `next`, which is the holder's: a message is in one list at most.
 * A list of zeros is empty, and nothing is allocated. Walk one with
 *     for (const struct bny_msg *m = list->first; m; m = m->next)
 * The lists borrow messages: whoever takes one out must release it, or hold it. No lock of
 * their own. */
#ifndef BNY_TRANSPORT_MSG_LIST_H
#define BNY_TRANSPORT_MSG_LIST_H

#include "base/assert.h"
#include "transport/transport.h"

struct bny_msg_list {
    struct bny_msg *first;
    struct bny_msg *last; /* means something only where first is not NULL */
};

static inline void bny_msg_list_init(struct bny_msg_list *list)
{
    *list = (struct bny_msg_list){ 0 };
}

static inline int bny_msg_list_is_empty(const struct bny_msg_list *list)
{
    return !list->first;
}

/* Behind `after`, which is in the list; NULL: in front of all. */
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

/* Takes the first one out; NULL: there is none. */
static inline struct bny_msg *bny_msg_list_pop_front(struct bny_msg_list *list)
{
    struct bny_msg *msg = list->first;

    if (msg) {
        list->first = msg->next;
        msg->next = NULL;
    }
    return msg;
}

/* Takes all out, in their order: to go through them while others may come in again. */
static inline struct bny_msg_list bny_msg_list_take(struct bny_msg_list *list)
{
    struct bny_msg_list all = *list;

    bny_msg_list_init(list);
    return all;
}

/* Moves all of `from` behind those of `list`. */
static inline void bny_msg_list_append(struct bny_msg_list *list, struct bny_msg_list *from)
{
    if (from->first) {
        *(list->first ? &list->last->next : &list->first) = from->first;
        list->last = from->last;
    }
    bny_msg_list_init(from);
}

#endif
