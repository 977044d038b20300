/* SPDX-License-Identifier: BSD-3-Clause */
/* Which way bytes go. */
#include "collectives/xfer/xfer.h"

#include <string.h>

#include "collectives/local/local.h"

/* Credit is for the first chunk of a message; the others do not become its receiver's heap. */
static int is_later(const struct bny_op *op, const struct bny_hdr *h)
{
    return h->chunk && op->call.collective == BNY_SENDRECV;
}

int bny_xfer_eager(struct bny_op *op, struct bny_ep *ep, const struct bny_xfer *peer,
                   struct bny_hdr *h, const void *ptr, uint32_t len)
{
    int rc;

    BNY_ASSERT(len <= ep->eager_max);
    if (!peer->cts_seen && (is_later(op, h) || !bny_op_has_credit(op)))
        return BNY_WAITS_FOR_CTS;
    h->len = len;
    rc = ep->ops->eager(ep, h, ptr);
    if (rc != 0)
        return rc;
    bny_op_account_sent(op, h);
    return 1;
}

/* 2, BNY_AGAIN, -BANYAN_ENOTSUP or an error; 1 where the put is done when it returns. */
static int xfer_put(const struct bny_xfer_send *s, struct bny_hdr *h)
{
    struct bny_ep *ep = s->ep;
    int sync = ep->ops->shared != NULL, rc;
    struct bny_cookie *ck = sync ? NULL : bny_cookie_take(s->op->comm->world, s->op, s->step);

    if (!sync && !ck)
        return -BANYAN_ENOMEM;
    h->kind = BNY_MSG_PUT;
    h->len = 0;
    rc = ep->ops->put(ep, h, s->ptr, s->len, &s->peer->theirs, s->offset, ck);
    if (rc != 0 && ck)
        bny_cookie_give(s->op->comm->world, ck);
    return rc == 0 ? sync ? 1 : 2 : rc;
}

static int by_reference(const struct bny_xfer_send *s, struct bny_hdr *h)
{
    struct bny_cookie *ck = bny_cookie_take(s->op->comm->world, s->op, s->step);
    int rc;

    if (!ck)
        return -BANYAN_ENOMEM;
    rc = s->ep->ops->send(s->ep, h, s->ptr, ck);
    if (rc != 0)
        bny_cookie_give(s->op->comm->world, ck);
    return rc == 0 ? 2 : rc;
}

/* A put into memory that both map is a copy, any other on shared memory the kernel's, which may
 * cost more than one through a slot. */
static int put_pays(const struct bny_xfer_send *s)
{
    return !s->ep->ops->shared || s->peer->theirs.segment || s->len >= s->ep->zcopy_min;
}

/* A root's blocks, which all others can read by the kernel at once, each on a CPU of its own,
 * where the root would copy all of them alone. It does not matter here that a pair of ranks
 * copies faster through slots. */
#define READERS       4                 /* ranks */
#define READERS_LEAST (4.0 * (1 << 20)) /* bytes of all blocks */

static int many_read(const struct bny_xfer_send *s)
{
    const struct bny_scope *scope = &s->op->comm->scope;
    const struct bny_call *call = &s->op->call;

    return call->collective == BNY_SCATTER && !call->vector && scope->shares_memory &&
           !scope->oversubscribed && scope->n >= READERS &&
           (double)(call->count * s->op->esz) * scope->n >= READERS_LEAST &&
           s->ep->zcopy_min != UINT32_MAX;
}

static int reference_pays(const struct bny_xfer_send *s)
{
    struct bny_ep *ep = s->ep;

    return s->len >= ep->zcopy_min || s->len > ep->slot_max || many_read(s) ||
           (ep->ops->shared && ep->ops->shared->is_shared(ep->tp, s->ptr, s->len));
}

static int bulk(const struct bny_xfer_send *s, struct bny_hdr *h)
{
    struct bny_ep *ep = s->ep;

    if (ep->ops->use)
        bny_op_use(s->op, ep->tp);
    if (s->placeable && s->peer->theirs.bytes && s->prefers_put && put_pays(s)) {
        uint8_t kind = h->kind;
        int rc = xfer_put(s, h);
        if (rc != -BANYAN_ENOTSUP)
            return rc;
        h->kind = kind; /* this memory is not registered: as any other message */
        h->len = s->len;
    }
    if (reference_pays(s)) {
        int rc = by_reference(s, h);
        if (rc != -BANYAN_ENOTSUP || s->len > ep->slot_max)
            return rc;
    }
    return bny_tp_send_copy(ep, h, s->ptr, s->len);
}

static int waits_for_ready(const struct bny_xfer_send *s, const struct bny_hdr *h)
{
    return bny_xfer_needs_cts(s->ep, s->len, s->placeable) ||
           (is_later(s->op, h) && (s->ep->ops->caps & BNY_TP_DESC) &&
            s->len < s->ep->zcopy_min);
}

int bny_xfer_send(const struct bny_xfer_send *s, struct bny_hdr *h)
{
    int rc;

    h->len = h->codec_len_raw = s->len;
    if (!bny_xfer_is_bulk(s->ep, s->len))
        return bny_xfer_eager(s->op, s->ep, s->peer, h, s->ptr, s->len);
    if (!s->peer->cts_seen && (waits_for_ready(s, h) || !bny_op_has_credit(s->op)))
        return BNY_WAITS_FOR_CTS;
    rc = bulk(s, h);
    if (rc > 0)
        bny_op_account_sent(s->op, h);
    return rc;
}

/* ---- CTS and windows ---- */

int bny_xfer_announce(struct bny_op *op, struct bny_ep *ep, struct bny_xfer *x, void *memory,
                      size_t bytes)
{
    struct bny_hdr h;
    int rc;

    BNY_ASSERT(x->cts_wanted && !x->cts_sent);
    if (x->window_wanted && !x->ours.bytes && ep->ops->use)
        bny_op_use(op, ep->tp);
    if (x->window_wanted && !x->ours.bytes &&
        ep->ops->window_open(ep, memory, bytes, &x->ours) != 0) {
        memset(&x->ours, 0, sizeof x->ours); /* none: the peer sends by another way */
        x->window_wanted = 0;
    }
    bny_op_header(op, &h, BNY_MSG_CTS);
    h.len = h.codec_len_raw = sizeof x->ours;
    rc = ep->ops->eager(ep, &h, &x->ours);
    if (rc != 0)
        return rc;
    bny_op_account_sent(op, &h);
    x->cts_sent = 1;
    return 1;
}

void bny_xfer_announced(struct bny_xfer *x, const struct bny_msg *msg, size_t bytes)
{
    if (msg->hdr.len == sizeof x->theirs && msg->data) {
        memcpy(&x->theirs, msg->data, sizeof x->theirs);
        if (x->theirs.bytes < bytes)
            memset(&x->theirs, 0, sizeof x->theirs);
    }
    x->cts_seen = 1;
}

int bny_xfer_close(struct bny_ep *ep, struct bny_xfer *x, int fence)
{
    if (!x->ours.bytes)
        return 0;
    if (fence && ep->ops->fence)
        ep->ops->fence(ep, &x->ours);
    if (ep->ops->window_close(ep, &x->ours) == BNY_AGAIN)
        return BNY_AGAIN;
    memset(&x->ours, 0, sizeof x->ours);
    return 0;
}

/* ---- memory ---- */

struct bny_tp *bny_xfer_register(struct bny_world *w, void *at, size_t bytes)
{
    for (int i = 0; i < w->ntps; i++)
        if ((w->tps[i]->ops->caps & BNY_TP_ATTACH) &&
            w->tps[i]->ops->attach(w->tps[i], at, bytes) == 0)
            return w->tps[i];
    return NULL;
}

void bny_xfer_deregister(struct bny_tp **tp, void *at)
{
    if (*tp)
        (*tp)->ops->detach(*tp, at);
    *tp = NULL;
}
