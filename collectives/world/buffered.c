/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages that must wait.
 *
 * A transport lends a message's memory. Holding it for long would stop what comes behind it (a
 * ring position, a socket), so a message that cannot be used yet is copied to the heap and
 * released. How much that can be is bounded: what peers may send before an operation has
 * started here by credit and a limit (match/), the rest by the operation's own size (bulk is
 * sent only after our CTS). */
#include "collectives/world/buffered.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

struct bny_buffered {
    struct bny_msg msg;               /* first: what holders see */
    struct bny_msg *inner;            /* still draining from the transport */
    struct bny_buffered *next, *prev; /* pool->draining */
    uint32_t got;
    int size_class; /* BNY_BUFFERED_CLASSES: of its own size */
    char bytes[];
};

/* Buffers are kept when they are released, and some small ones are made at init, so that
 * repeated calls allocate nothing: how many are needed at a time, and whether any, varies with
 * how far peers happen to run ahead. The large ones are chunks that came before their step. */
static const struct {
    uint32_t bytes;
    uint16_t keep, first; /* buffers: kept at most; made at init */
} sizes[BNY_BUFFERED_CLASSES] = {
    { 256, 64, 32 }, { 4096, 64, 16 }, { 16384, 16, 8 }, { 65536, 16, 0 }, { 262144, 4, 0 }
};

static char held_mark; /* msg.user of held messages */

static int is_held(const struct bny_msg *msg)
{
    return msg->user == &held_mark;
}

static struct bny_buffered *held_alloc(uint32_t bytes, int size_class)
{
    struct bny_buffered *held = malloc(sizeof *held + bytes);

    if (held)
        held->size_class = size_class;
    return held;
}

static void held_free(struct bny_buffer_pool *pool, struct bny_buffered *held)
{
    int k = held->size_class;

    if (k == BNY_BUFFERED_CLASSES || pool->classes[k].kept == sizes[k].keep) {
        free(held);
        return;
    }
    held->next = pool->classes[k].first;
    pool->classes[k].first = held;
    pool->classes[k].kept++;
}

static struct bny_buffered *held_take(struct bny_buffer_pool *pool, uint32_t bytes)
{
    struct bny_buffered *held;
    int k = 0;

    while (k < BNY_BUFFERED_CLASSES && bytes > sizes[k].bytes)
        k++;
    if (k == BNY_BUFFERED_CLASSES)
        return held_alloc(bytes, k);
    held = pool->classes[k].first;
    if (!held)
        return held_alloc(sizes[k].bytes, k);
    pool->classes[k].first = held->next;
    pool->classes[k].kept--;
    return held;
}

void bny_buffered_make(struct bny_buffer_pool *pool)
{
    for (int k = 0; k < BNY_BUFFERED_CLASSES; k++)
        while (pool->classes[k].kept < sizes[k].first) {
            struct bny_buffered *held = held_alloc(sizes[k].bytes, k);
            if (!held)
                return;
            held_free(pool, held);
        }
}

void bny_buffered_free(struct bny_buffer_pool *pool)
{
    for (int k = 0; k < BNY_BUFFERED_CLASSES; k++)
        while (pool->classes[k].first) {
            struct bny_buffered *held = pool->classes[k].first;
            pool->classes[k].first = held->next;
            free(held);
        }
}

static struct bny_buffered *held_new(struct bny_buffer_pool *pool, const struct bny_hdr *hdr,
                                     struct bny_ep *ep)
{
    struct bny_buffered *held = held_take(pool, hdr->len);
    int size_class;

    if (!held)
        return NULL;
    size_class = held->size_class;
    memset(held, 0, sizeof *held);
    held->size_class = size_class;
    held->msg.ep = ep;
    held->msg.hdr = *hdr;
    held->msg.user = &held_mark;
    return held;
}

struct bny_msg *bny_msg_make(struct bny_buffer_pool *pool, const struct bny_hdr *hdr,
                             const void *payload)
{
    struct bny_buffered *held = held_new(pool, hdr, NULL);

    if (!held)
        return NULL;
    if (hdr->len)
        memcpy(held->bytes, payload, hdr->len);
    held->msg.data = held->bytes;
    return &held->msg;
}

static void drain_unlink(struct bny_buffer_pool *pool, struct bny_buffered *held)
{
    if (held->prev)
        held->prev->next = held->next;
    else
        pool->draining = held->next;
    if (held->next)
        held->next->prev = held->prev;
}

/* 1: something moved. */
static int drain_one(struct bny_buffer_pool *pool, struct bny_buffered *held)
{
    const void *ptr;
    long n = held->inner->ep->ops->view(held->inner, held->got, held->msg.hdr.len - held->got,
                                        held->bytes + held->got, &ptr);

    if (n == BNY_AGAIN)
        return 0;
    if (n > 0) {
        held->got += (uint32_t)n;
        if (held->got < held->msg.hdr.len)
            return 1;
        held->msg.data = held->bytes;
    }
    /* complete, or broken: then the endpoint's DOWN fails the operations that wait for it */
    held->inner->ep->ops->release(held->inner);
    held->inner = NULL;
    drain_unlink(pool, held);
    return 1;
}

int bny_buffered_drain(struct bny_buffer_pool *pool)
{
    int moved = 0;

    for (struct bny_buffered *held = pool->draining, *next; held; held = next) {
        next = held->next;
        moved |= drain_one(pool, held);
    }
    return moved;
}

int bny_msg_is_draining(const struct bny_msg *msg)
{
    return is_held(msg) && !msg->data;
}

struct bny_msg *bny_msg_hold(struct bny_buffer_pool *pool, struct bny_msg *msg)
{
    struct bny_buffered *held;

    if (is_held(msg) || msg->descriptor)
        return msg;
    held = held_new(pool, &msg->hdr, msg->ep);
    if (!held) {
        msg->ep->ops->release(msg);
        return NULL;
    }
    if (msg->data) {
        memcpy(held->bytes, msg->data, msg->hdr.len);
        held->msg.data = held->bytes;
        msg->ep->ops->release(msg);
        return &held->msg;
    }
    held->inner = msg;
    held->next = pool->draining;
    if (pool->draining)
        pool->draining->prev = held;
    pool->draining = held;
    drain_one(pool, held);
    return &held->msg;
}

void bny_msg_release(struct bny_buffer_pool *pool, struct bny_msg *msg)
{
    struct bny_buffered *held = (struct bny_buffered *)msg;

    if (!is_held(msg)) {
        msg->ep->ops->release(msg);
        return;
    }
    if (held->inner) {
        held->inner->ep->ops->release(held->inner);
        drain_unlink(pool, held);
    }
    held_free(pool, held);
}

void bny_msg_list_release(struct bny_buffer_pool *pool, struct bny_msg_list *list)
{
    struct bny_msg *msg;

    while ((msg = bny_msg_list_pop_front(list)))
        bny_msg_release(pool, msg);
}
