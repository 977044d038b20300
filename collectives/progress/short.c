/* SPDX-License-Identifier: BSD-3-Clause */
/* Short messages of blocking calls, without an operation's life: a send goes at once where
 * nothing is in its way, a receive looks for its message a few times. Peers see no difference.
 * A message that cannot be sent or received at once becomes an ordinary operation. */
#include "base/cpu.h"
#include "collectives/op/trace.h"
#include "collectives/progress/progress.h"

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

/* Is it a short message, and its communicator at rest? */
static int is_short(const struct bny_op *op)
{
    const struct banyan_comm *c = op->comm;
    const struct bny_ep *ep;

    if (op->call.collective != BNY_SENDRECV || op->plan.codec || op->is_timed ||
        bny_op_is_staged(op) || bny_trace_is_on(op) || c->active_first ||
        c->world->held.draining || bny_comm_has_failed(c))
        return 0;
    ep = ep_of(op);
    return ep && bytes_of(op) <= short_bytes(op, ep) &&
           !((ep->ops->caps & BNY_TP_DESC) && bytes_of(op) >= ep->zcopy_min) &&
           !bny_match_has_early(c->match) && !bny_match_is_busy(c->match);
}

/* 1: sent. Memory that the peer can reach is lent, which takes an operation. */
static int say(const struct bny_op *op, struct bny_ep *ep, struct bny_hdr *h)
{
    const void *ptr = op->call.sendbuf;

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
    bny_op_done_inline(op);
    return 1;
}

static void short_look(struct banyan_comm *c, struct bny_expected *x, int n, int tries)
{
    struct bny_event ev[4];
    int missing = n;

    for (int k = 0; k < tries && missing && !bny_comm_has_failed(c); k++) {
        for (int i = 0; i < n; i++) {
            struct bny_ep *ep = c->peers[x[i].peer].ep;
            int got = x[i].got ? 0 : ep->ops->poll_ep(ep, ev, 4);

            for (int e = 0; e < got; e++)
                bny_world_event(c->world, &ev[e]);
        }
        missing = 0;
        for (int i = 0; i < n; i++)
            missing += !x[i].got;
        if (missing)
            bny_pause();
    }
}

int bny_short_receive(struct bny_op *const *ops, int n, uint8_t *done, int tries)
{
    struct bny_expected x[BNY_SHORT_MAX];
    struct banyan_comm *c = ops[0]->comm;
    int all = 1;

    BNY_ASSERT_LOCKED(c->world);
    BNY_ASSERT(n <= BNY_SHORT_MAX);
    for (int i = 0; i < n; i++) {
        const struct bny_op *op = ops[i];

        x[i] = (struct bny_expected){ .sig = &op->sig,
                                      .to = op->call.recvbuf,
                                      .len = (uint32_t)bytes_of(op),
                                      .peer = op->call.root };
        if (op->comm != c || op->call.is_send || !is_short(op) ||
            !bny_match_expect(c->match, &x[i])) {
            bny_match_give_up_expected(c->match);
            return 0;
        }
    }
    short_look(c, x, n, tries);
    bny_match_give_up_expected(c->match);
    for (int i = 0; i < n; i++) {
        done[i] = x[i].got;
        all &= x[i].got;
        if (x[i].got)
            bny_op_done_inline(ops[i]);
    }
    if (bny_match_is_busy(c->match))
        bny_comm_flush_control(c);
    return all;
}

int bny_short_send(struct bny_op *op)
{
    BNY_ASSERT_LOCKED(op->comm->world);
    return op->call.is_send && is_short(op) && send(op);
}
