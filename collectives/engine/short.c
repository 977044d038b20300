/* SPDX-License-Identifier: BSD-3-Clause */
/* Short messages of blocking calls, without a program: a send goes at once where nothing is in
 * its way, and a receive is looked for a few times (progress/try.c). Peers see no difference. A
 * message that cannot be sent or received at once becomes an ordinary operation. */
#include "collectives/engine/engine.h"
#include "collectives/op/trace.h"

/* Longer ones may have to be announced; on shared memory one that a slot holds has not. */
#define SHORT_BYTES 4096u

static struct bny_ep *ep_of(const struct bny_op *op)
{
    return op->comm->peers[op->call.root].ep;
}

static size_t bytes_of(const struct bny_op *op)
{
    return op->call.count * op->esz;
}

/* Ranks that share CPUs gain from it as far as eager messages go (4 ranks on 2 CPUs, 8 and 16
 * KiB 1.1), and lose with longer ones (.87). */
static size_t short_bytes(const struct bny_op *op, const struct bny_ep *ep)
{
    size_t most = op->comm->world->oversubscribed ? ep->eager_max : ep->slot_max;

    if (!ep->ops->shared)
        most = ep->eager_max < SHORT_BYTES ? ep->eager_max : SHORT_BYTES;
    return most < op->plan.chunk_bytes ? most : op->plan.chunk_bytes;
}

static int is_short(const struct bny_op *op)
{
    const struct bny_ep *ep;

    if (op->call.collective != BNY_SENDRECV || op->plan.codec || bny_trace_is_on(op) ||
        op->comm->world->held.draining)
        return 0;
    ep = ep_of(op);
    return ep && bytes_of(op) <= short_bytes(op, ep) &&
           !((ep->ops->caps & BNY_TP_DESC) && bytes_of(op) >= ep->zcopy_min);
}

/* 1: sent. Memory that the peer can reach is lent, which takes an operation. */
static int say(const struct bny_op *op, struct bny_ep *ep, struct bny_hdr *h)
{
    const void *ptr = op->in;

    if (h->len <= ep->eager_max)
        return ep->ops->eager(ep, h, ptr) == 0;
    return !ep->ops->shared->is_shared(ep->tp, ptr, h->len) &&
           bny_tp_send_copy(ep, h, ptr, h->len) == 1;
}

/* 1: sent. */
static int send(struct bny_op *op)
{
    struct bny_hdr h = { .comm = op->comm->id,
                         .kind = BNY_MSG_DATA,
                         .sig = op->sig,
                         .len = (uint32_t)bytes_of(op),
                         .codec_len_raw = (uint32_t)bytes_of(op) };
    struct bny_ep *ep = ep_of(op);

    if (!bny_match_next_send(op->comm->match, op->call.root, &op->sig, h.len, &h) ||
        !say(op, ep, &h))
        return 0;
    bny_match_sent(op->comm->match, op->call.root, h.len, &h);
    return 1;
}

int bny_short_try(struct bny_op *op, uint32_t seq, int tries)
{
    if (!is_short(op))
        return 0;
    if (op->call.is_send)
        return send(op);
    op->expected = (struct bny_expected){
        .sig = &op->sig, .to = op->out, .len = (uint32_t)bytes_of(op), .peer = op->call.root
    };
    return bny_match_expect(op->comm->match, &op->expected) ? BNY_AGAIN : 0;
}
