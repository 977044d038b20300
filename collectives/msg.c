/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages that must wait, and the cookies that tie a borrowed send buffer to its step.
 *
 * A transport lends a message's memory. Holding it for long would stop what comes behind it (a
 * ring position, a socket), so a message that cannot be used yet is spilled: copied to the heap
 * and released. How much can be spilled is bounded by what peers may send before we started an
 * operation (eager messages) and by the operation's own size (bulk, sent only after our READY).
 */
#include "collectives/internal.h"

#include <stdlib.h>
#include <string.h>

struct bny_spill {
    struct bny_msg msg;            /* first: what holders see */
    struct bny_msg *inner;         /* still draining from the transport */
    struct bny_spill *next, *prev; /* world's draining list */
    uint32_t got;
    int size_class; /* BNY_SPILL_CLASSES: of its own size */
    char bytes[];
};

/* Small buffers are kept when they are released, and some are made at init, so that repeated
 * calls allocate nothing: how many are needed at a time, and whether any, varies with how far
 * peers happen to run ahead. */
static const struct {
    uint32_t bytes;
    uint16_t keep, first; /* buffers: kept at most; made at init */
} classes[BNY_SPILL_CLASSES] = { { 256, 64, 32 }, { 4096, 64, 16 }, { 16384, 16, 8 } };

static char spill_mark; /* msg.user of spilled messages */

static int is_spill(const struct bny_msg *msg)
{
    return msg->user == &spill_mark;
}

static struct bny_spill *spill_alloc(uint32_t bytes, int size_class)
{
    struct bny_spill *sp = malloc(sizeof *sp + bytes);

    if (sp)
        sp->size_class = size_class;
    return sp;
}

static void spill_free(struct bny_world *w, struct bny_spill *sp)
{
    int k = sp->size_class;

    if (k == BNY_SPILL_CLASSES || w->spills[k].kept == classes[k].keep) {
        free(sp);
        return;
    }
    sp->next = w->spills[k].first;
    w->spills[k].first = sp;
    w->spills[k].kept++;
}

static struct bny_spill *spill_take(struct bny_world *w, uint32_t bytes)
{
    struct bny_spill *sp;
    int k = 0;

    while (k < BNY_SPILL_CLASSES && bytes > classes[k].bytes)
        k++;
    if (k == BNY_SPILL_CLASSES)
        return spill_alloc(bytes, k);
    sp = w->spills[k].first;
    if (!sp)
        return spill_alloc(classes[k].bytes, k);
    w->spills[k].first = sp->next;
    w->spills[k].kept--;
    return sp;
}

void bny_spills_make(struct bny_world *w)
{
    for (int k = 0; k < BNY_SPILL_CLASSES; k++)
        while (w->spills[k].kept < classes[k].first) {
            struct bny_spill *sp = spill_alloc(classes[k].bytes, k);
            if (!sp)
                return;
            spill_free(w, sp);
        }
}

void bny_spills_free(struct bny_world *w)
{
    for (int k = 0; k < BNY_SPILL_CLASSES; k++)
        while (w->spills[k].first) {
            struct bny_spill *sp = w->spills[k].first;
            w->spills[k].first = sp->next;
            free(sp);
        }
}

static struct bny_spill *spill_new(struct bny_world *w, const struct bny_hdr *hdr,
                                   struct bny_ep *ep)
{
    struct bny_spill *sp = spill_take(w, hdr->len);
    int size_class;

    if (!sp)
        return NULL;
    size_class = sp->size_class;
    memset(sp, 0, sizeof *sp);
    sp->size_class = size_class;
    sp->msg.ep = ep;
    sp->msg.hdr = *hdr;
    sp->msg.user = &spill_mark;
    return sp;
}

struct bny_msg *bny_msg_make(struct bny_world *w, const struct bny_hdr *hdr,
                             const void *payload)
{
    struct bny_spill *sp = spill_new(w, hdr, NULL);

    if (!sp)
        return NULL;
    if (hdr->len)
        memcpy(sp->bytes, payload, hdr->len);
    sp->msg.data = sp->bytes;
    return &sp->msg;
}

static void drain_unlink(struct bny_world *w, struct bny_spill *sp)
{
    if (sp->prev)
        sp->prev->next = sp->next;
    else
        w->draining = sp->next;
    if (sp->next)
        sp->next->prev = sp->prev;
}

/* 1: something moved. */
static int drain_one(struct bny_world *w, struct bny_spill *sp)
{
    const void *ptr;
    long n = sp->inner->ep->ops->view(sp->inner, sp->got, sp->msg.hdr.len - sp->got,
                                      sp->bytes + sp->got, &ptr);

    if (n == BNY_AGAIN)
        return 0;
    if (n > 0) {
        sp->got += (uint32_t)n;
        if (sp->got < sp->msg.hdr.len)
            return 1;
        sp->msg.data = sp->bytes;
    }
    /* complete, or broken: then the endpoint's DOWN fails whoever waits for it */
    sp->inner->ep->ops->release(sp->inner);
    sp->inner = NULL;
    drain_unlink(w, sp);
    return 1;
}

int bny_msg_drain(struct bny_world *w)
{
    int moved = 0;

    for (struct bny_spill *sp = w->draining, *next; sp; sp = next) {
        next = sp->next;
        moved |= drain_one(w, sp);
    }
    return moved;
}

int bny_msg_is_draining(const struct bny_msg *msg)
{
    return is_spill(msg) && !msg->data;
}

struct bny_msg *bny_msg_spill(struct bny_world *w, struct bny_msg *msg)
{
    struct bny_spill *sp;

    if (is_spill(msg) || msg->descriptor)
        return msg;
    sp = spill_new(w, &msg->hdr, msg->ep);
    if (!sp) {
        msg->ep->ops->release(msg);
        return NULL;
    }
    if (msg->data) {
        memcpy(sp->bytes, msg->data, msg->hdr.len);
        sp->msg.data = sp->bytes;
        msg->ep->ops->release(msg);
        return &sp->msg;
    }
    sp->inner = msg;
    sp->next = w->draining;
    if (w->draining)
        w->draining->prev = sp;
    w->draining = sp;
    drain_one(w, sp);
    return &sp->msg;
}

void bny_msg_release(struct bny_world *w, struct bny_msg *msg)
{
    struct bny_spill *sp = (struct bny_spill *)msg;

    if (!is_spill(msg)) {
        msg->ep->ops->release(msg);
        return;
    }
    if (sp->inner) {
        sp->inner->ep->ops->release(sp->inner);
        drain_unlink(w, sp);
    }
    spill_free(w, sp);
}

/* ---- cookies ---- */

#define COOKIES_PER_SLAB 256

struct bny_cookie_slab {
    struct bny_cookie_slab *next;
    struct bny_cookie cookies[COOKIES_PER_SLAB];
};

struct bny_cookie *bny_cookie_take(struct bny_world *w, struct bny_op *op, uint32_t step)
{
    struct bny_cookie *ck;

    if (!w->cookies) {
        struct bny_cookie_slab *slab = calloc(1, sizeof *slab);
        if (!slab)
            return NULL;
        slab->next = w->cookie_slabs;
        w->cookie_slabs = slab;
        for (int i = 0; i < COOKIES_PER_SLAB; i++) {
            slab->cookies[i].next = w->cookies;
            w->cookies = &slab->cookies[i];
        }
    }
    ck = w->cookies;
    w->cookies = ck->next;
    ck->op = op;
    ck->step = step;
    ck->readers = NULL;
    ck->prev = ck->next = NULL;
    if (!op)
        return ck;
    ck->next = op->cookies;
    if (op->cookies)
        op->cookies->prev = ck;
    op->cookies = ck;
    return ck;
}

void bny_cookie_give(struct bny_world *w, struct bny_cookie *ck)
{
    if (ck->op) {
        if (ck->prev)
            ck->prev->next = ck->next;
        else
            ck->op->cookies = ck->next;
        if (ck->next)
            ck->next->prev = ck->prev;
    }
    ck->op = NULL;
    ck->next = w->cookies;
    w->cookies = ck;
}

void bny_cookies_free(struct bny_world *w)
{
    while (w->cookie_slabs) {
        struct bny_cookie_slab *slab = w->cookie_slabs;
        w->cookie_slabs = slab->next;
        free(slab);
    }
    w->cookies = NULL;
}
