/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages that must wait: copied to the heap, so that the transport's memory is free again. */
#ifndef BNY_COLLECTIVES_BUFFERED_H
#define BNY_COLLECTIVES_BUFFERED_H

#include "transport/msg_list.h"

#define BNY_BUFFERED_CLASSES 5 /* sizes of buffers that are kept for the next message */

struct bny_buffered;
struct bny_buffer_pool { /* of a world */
    struct bny_buffered *draining;
    struct {
        struct bny_buffered *first; /* free buffers */
        uint16_t kept;              /* their number */
    } classes[BNY_BUFFERED_CLASSES];
};

/* Moves a message out of the transport's memory, so that it may be held for long without
 * stopping others behind it. Descriptors are returned as they are; data that has not all
 * arrived is drained by bny_buffered_drain. Returns the message to hold from now on (data NULL
 * while draining), or NULL when memory is exhausted (msg is released). */
struct bny_msg *bny_msg_hold(struct bny_buffer_pool *pool, struct bny_msg *msg);
/* A message made here (to oneself), with a copy of the payload. NULL on no memory. */
struct bny_msg *bny_msg_make(struct bny_buffer_pool *pool, const struct bny_hdr *hdr,
                             const void *payload);
void bny_msg_release(struct bny_buffer_pool *pool, struct bny_msg *msg); /* of any sort */
void bny_msg_list_release(struct bny_buffer_pool *pool, struct bny_msg_list *list);
int bny_msg_is_draining(const struct bny_msg *msg);
/* All of them a little; returns 1 when something moved. */
int bny_buffered_drain(struct bny_buffer_pool *pool);
void bny_buffered_make(struct bny_buffer_pool *pool); /* as many buffers as mostly suffice */
void bny_buffered_free(struct bny_buffer_pool *pool);

#endif
