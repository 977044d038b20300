/* SPDX-License-Identifier: BSD-3-Clause */
/* Cookies tie a borrowed send buffer to its step. */
#include "collectives/op/op_cookie.h"

#include <stdlib.h>

#define COOKIES_PER_SLAB 256

struct bny_cookie_pool {
    struct bny_cookie *idle;
    struct slab {
        struct slab *next;
        struct bny_cookie cookies[COOKIES_PER_SLAB];
    } * slabs;
};

static struct bny_cookie *op_cookie_grow(struct bny_world *w)
{
    struct slab *slab;

    if (!w->cookies)
        w->cookies = calloc(1, sizeof *w->cookies);
    slab = w->cookies ? calloc(1, sizeof *slab) : NULL;
    if (!slab)
        return NULL;
    slab->next = w->cookies->slabs;
    w->cookies->slabs = slab;
    for (int i = 0; i < COOKIES_PER_SLAB; i++) {
        slab->cookies[i].next = w->cookies->idle;
        w->cookies->idle = &slab->cookies[i];
    }
    return w->cookies->idle;
}

struct bny_cookie *bny_cookie_take(struct bny_world *w, struct bny_op *op, uint32_t step)
{
    struct bny_cookie *ck =
        w->cookies && w->cookies->idle ? w->cookies->idle : op_cookie_grow(w);

    if (!ck) {
        bny_fail(BANYAN_ENOMEM, "no memory for a message by reference");
        return NULL;
    }
    w->cookies->idle = ck->next;
    *ck = (struct bny_cookie){ .op = op, .step = step };
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
    ck->next = w->cookies->idle;
    w->cookies->idle = ck;
}

void bny_cookie_sent(struct bny_world *w, struct bny_cookie *ck)
{
    BNY_ASSERT_LOCKED(w);
    if (ck->readers)
        --*ck->readers;
    if (ck->op)
        ck->op->way->notify(ck->op, BNY_NOTICE_SENT, ck->step);
    bny_cookie_give(w, ck);
}

void bny_cookies_drop(struct bny_op *op)
{
    const struct bny_world *w = op->comm->world;

    for (struct bny_cookie *ck = op->cookies, *next; ck; ck = next) {
        next = ck->next;
        ck->op = NULL;
        for (int i = 0; i < w->ntps; i++)
            if (w->tps[i]->ops->recall)
                w->tps[i]->ops->recall(w->tps[i], ck);
    }
    op->cookies = NULL;
}

void bny_cookies_free(struct bny_world *w)
{
    while (w->cookies && w->cookies->slabs) {
        struct slab *slab = w->cookies->slabs;
        w->cookies->slabs = slab->next;
        free(slab);
    }
    free(w->cookies);
    w->cookies = NULL;
}
