/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages of operations: what each carries, which operation gets it. */
#include <string.h>

#include "collectives/local/local.h"
#include "collectives/op/op.h"

void bny_op_header(const struct bny_op *op, struct bny_hdr *h, enum bny_msg_kind kind)
{
    memset(h, 0, sizeof *h);
    h->comm = op->comm->id;
    h->seq = bny_op_seq(op);
    h->kind = (uint8_t)kind;
    h->sig = op->sig;
    if (op->call.collective == BNY_SENDRECV)
        bny_match_stamp(op->comm->match, &op->match, h);
    else
        h->started = bny_match_number(op->comm->match);
}

static struct bny_op *op_of(struct bny_receiver *rc)
{
    return (struct bny_op *)(void *)((char *)rc - offsetof(struct bny_op, match));
}

static void hand_over(struct bny_op *op, int from, struct bny_msg *msg)
{
    struct bny_buffer_pool *pool = &op->comm->world->held;

    if (memcmp(&op->sig, &msg->hdr.sig, sizeof op->sig) != 0) {
        bny_mismatch_report(op, from, msg);
        bny_msg_release(pool, msg);
        return;
    }
    if (msg->hdr.kind == BNY_MSG_PROBE || !op->way->message || !bny_op_is_active(op)) {
        bny_msg_release(pool, msg);
        return;
    }
    if (op->call.collective == BNY_SENDRECV)
        msg->hdr.step = 0; /* it said the epoch */
    op->way->message(op, from, msg);
}

static void deliver_keep(struct banyan_comm *c, int from, struct bny_msg *msg)
{
    int rc = bny_match_keep(c->match, from, msg);

    if (rc == 0 && c->any_sources)
        bny_any_source_wake(c);

    if (rc)
        bny_report(c->world, c, BNY_CAUSE_RESET, (enum banyan_error) - rc,
                   rc == -BANYAN_EPROTO ? c->peers[from].world_rank : c->world->rank,
                   "rank %d: %s", c->rank, bny_why(rc));
}

/* Somebody looks for it now: 1, it is his. */
static int deliver_meet(struct banyan_comm *c, int from, struct bny_msg *msg)
{
    struct bny_expected *x =
        bny_match_expects(c->match) ? bny_match_is_expected(c->match, from, &msg->hdr) : NULL;

    if (!x || (!msg->data && x->len))
        return 0;
    bny_local_place(x->to, msg->data, x->len);
    bny_counter_add(&msg->ep->tp->copied_bytes, x->len);
    bny_match_met(c->match, x, &msg->hdr);
    bny_msg_release(&c->world->held, msg);
    return 1;
}

void bny_comm_message(struct banyan_comm *c, int from, struct bny_msg *msg)
{
    struct bny_receiver *rc;

    BNY_ASSERT_LOCKED(c->world);
    if (c->service && from >= 0) {
        c->service->ops->message(c, from, msg);
        return;
    }
    if (bny_comm_has_failed(c) || from < 0) {
        bny_msg_release(&c->world->held, msg);
        return;
    }
    if (deliver_meet(c, from, msg))
        return;
    switch (bny_match_ask(c->match, from, &msg->hdr, &rc)) {
    case BNY_MATCH_FOUND: hand_over(op_of(rc), from, msg); break;
    case BNY_MATCH_EARLY: deliver_keep(c, from, msg); break;
    case BNY_MATCH_PAST:
        bny_mismatch_past(c, from, msg);
        bny_msg_release(&c->world->held, msg);
        break;
    case BNY_MATCH_CONTROL:
    case BNY_MATCH_STALE: bny_msg_release(&c->world->held, msg); break;
    }
    if (bny_match_is_busy(c->match))
        bny_comm_flush_control(c);
}

static enum bny_notice notice_of(enum bny_change what)
{
    return what == BNY_CHANGE_NUMBER     ? BNY_NOTICE_NUMBER
           : what == BNY_CHANGE_ANNOUNCE ? BNY_NOTICE_ANNOUNCE
                                         : BNY_NOTICE_CREDIT;
}

void bny_comm_flush_control(struct banyan_comm *c)
{
    struct bny_receiver *rc;
    enum bny_change what;
    struct bny_hdr h;
    int peer = 0;

    while ((rc = bny_match_changed(c->match, &what))) {
        struct bny_op *op = op_of(rc);
        bny_op_mark_runnable(op);
        if (bny_op_is_active(op) && op->way->notify)
            op->way->notify(op, notice_of(what), 0);
    }
    while (bny_match_to_say(c->match, &peer, &h)) {
        struct bny_ep *ep = c->peers[peer].ep;
        h.comm = c->id;
        if (ep->ops->eager(ep, &h, &h) != BNY_AGAIN) {
            bny_match_said(c->match, peer, &h); /* a rank that is gone needs no credit */
        } else {
            c->world->has_work = 1; /* progress calls again */
            peer++;
        }
    }
}

/* A peer's true death is told by the transport and the control plane; that it left is less than
 * any cause that made it leave, which we may be about to hear. */
void bny_op_send_failed(struct bny_op *op, int to, int rc, const char *what)
{
    struct bny_world *w = op->comm->world;
    int gone = rc == -BANYAN_ERANKDEAD;

    if (gone && w->control)
        bny_control_hear(w->control);
    bny_report(w, gone ? NULL : op->comm, gone ? BNY_CAUSE_LEFT : BNY_CAUSE_RESET,
               (enum banyan_error) - rc, to >= 0 ? op->comm->peers[to].world_rank : w->rank,
               "%s: %s%s%s", bny_call_name(&op->call), what, *what ? ": " : "", bny_why(rc));
}
