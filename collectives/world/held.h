/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages that must wait: copied to the heap, so that the transport's memory is free again. */
#ifndef BNY_COLLECTIVES_HELD_H
#define BNY_COLLECTIVES_HELD_H

#include "transport/msg_list.h"

#define BNY_HELD_CLASSES 5 /* sizes of buffers that are kept for the next message */

struct bny_held;
struct bny_held_pool { /* of a world */
    struct bny_held *draining;
    struct {
        struct bny_held *first; /* free buffers */
        uint16_t kept;          /* their number */
    } classes[BNY_HELD_CLASSES];
};

/* Moves a message out of the transport's memory, so that it may be held for long without
 * stopping others behind it. Descriptors are returned as they are; data that has not all
 * arrived is drained by bny_held_drain. Returns the message to hold from now on (data NULL
 * while draining), or NULL when memory is exhausted (msg is released). */
struct bny_msg *bny_msg_hold(struct bny_held_pool *pool, struct bny_msg *msg);
/* A message made here (to oneself), with a copy of the payload. NULL on no memory. */
struct bny_msg *bny_msg_make(struct bny_held_pool *pool, const struct bny_hdr *hdr,
                             const void *payload);
void bny_msg_release(struct bny_held_pool *pool, struct bny_msg *msg); /* of any sort */
void bny_msg_list_release(struct bny_held_pool *pool, struct bny_msg_list *list);
int bny_msg_is_draining(const struct bny_msg *msg);
/* All of them a little; returns 1 when something moved. */
int bny_held_drain(struct bny_held_pool *pool);
void bny_held_make(struct bny_held_pool *pool); /* as many buffers as mostly suffice */
void bny_held_free(struct bny_held_pool *pool);

#endif
