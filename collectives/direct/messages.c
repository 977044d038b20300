/* SPDX-License-Identifier: BSD-3-Clause */
/* Contributions as eager messages: one message delay, and (n - 1) messages of S bytes a rank.
 * For small messages between few ranks that share no memory nothing has less latency. They are
 * combined straight from the transport's memory. */
#include <math.h>

#include "collectives/direct/direct.h"
#include "collectives/plan/cost.h"
#include "collectives/plan/tuning.h"

/* ---- choice ---- */

static const char *cannot(const struct bny_scope *s, const struct bny_call *call)
{
    size_t bytes = call->count * banyan_dtype_bytes(call->dtype);

    if (!bny_call_row(call)->direct)
        return "it does not serve this collective";
    if (call->vector)
        return "it needs the same count on all ranks";
    if (call->codec)
        return "it takes no codec";
    if (s->n > BNY_DIRECT_RANKS_MAX)
        return "it is for up to 64 ranks";
    return bytes > s->eager_max || call->count > bytes + 1
               ? "a contribution has to fit into one message"
               : NULL;
}

/* One message delay; each rank combines n - 1 messages, which are copied into a ring each.
 * Where ranks share a port all send at once to each rank of the others. */
static double seconds(const struct bny_scope *s, const struct bny_call *call)
{
    double bytes = (double)call->count * (double)banyan_dtype_bytes(call->dtype);
    double ports = s->shares_memory ? 1 : bny_cost_ports(s);
    struct bny_cost_model m = bny_cost_model_of(s);

    if (call->collective == BNY_REDUCE_SCATTER && s->n > BNY_DIRECT_SCATTERS)
        return INFINITY;
    if (ports > 1)
        return m.alpha_s / 3 +
               (s->n - ports) * (bny_cost_work(s, BNY_NET_MESSAGE_S) + ports * bytes * m.beta);
    return m.alpha_s / 3 + (s->n - 1) * (0.05e-6 + bytes * (m.beta + 1.3 * m.gamma));
}

/* ---- giving ---- */

/* A sum in place writes the result before the own operand has its turn. */
static void save_own(const struct bny_op *op, struct bny_direct *s)
{
    int me = op->comm->rank;

    s->own = bny_direct_payload(op, me);
    if (me < 2 || s->own != op->out || !bny_call_row(&op->call)->reduces ||
        !bny_call_takes_part(&op->call, me) ||
        (op->call.collective == BNY_REDUCE && me != op->call.root))
        return;
    bny_local_place(s->tile, s->own, s->bytes);
    s->own = s->tile;
}

/* To all who need it, starting behind ourselves, so that ranks do not all hit rank 0. */
static int give(struct bny_op *op)
{
    struct bny_direct *s = bny_direct_of(op);
    int n = op->comm->n, me = op->comm->rank, moved = 0;
    struct bny_hdr h;

    bny_op_header(op, &h, BNY_MSG_DATA);
    h.len = h.codec_len_raw = (uint32_t)s->bytes;
    for (; s->sent < n - 1; s->sent++) {
        int to = me + 1 + s->sent < n ? me + 1 + s->sent : me + 1 + s->sent - n, rc;
        struct bny_ep *ep = op->comm->peers[to].ep;

        if (!bny_call_sends(&op->call, me, to))
            continue;
        rc = ep->ops->eager(ep, &h, bny_direct_payload(op, to));
        if (rc == BNY_AGAIN)
            bny_op_mark_runnable(op);
        else if (rc < 0)
            bny_op_send_failed(op, to, rc, "");
        if (rc != 0)
            return moved;
        op->wire_bytes += h.len;
        moved = 1;
    }
    save_own(op, s);
    s->is_given = 1;
    return 1;
}

/* ---- taking ---- */

static const char *from(const struct bny_op *op, int r)
{
    const struct bny_direct *s = bny_direct_of(op);

    return r == op->comm->rank ? s->own : s->of[r]->data;
}

static void combine(struct bny_op *op)
{
    bny_direct_combine(op, from);
}

/* A message that stays in its transport's memory stops those behind it, so only the last one
 * may stay, of an operation whose own are all sent: it is used at once. Else ranks with many
 * operations in flight could wait for each other for ever, each without room for a message that
 * another needs before it gives room back. */
static int may_stay(const struct bny_op *op)
{
    const struct bny_direct *s = bny_direct_of(op);

    return s->is_given && s->missing == 1;
}

/* msg: as bny_msg_hold() returned it. */
static void cannot_hold(struct bny_op *op, int from, struct bny_msg *msg)
{
    struct bny_world *w = op->comm->world;

    if (!msg) {
        bny_report(w, op->comm, BNY_CAUSE_RESET, BANYAN_ENOMEM, w->rank,
                   "rank %d: no memory to hold a message", op->comm->rank);
        return;
    }
    bny_report(w, op->comm, BNY_CAUSE_RESET, BANYAN_EPROTO, op->comm->peers[from].world_rank,
               "rank %d: an eager message of rank %d did not come as one", op->comm->rank,
               from);
    bny_msg_release(&w->held, msg);
}

static void message(struct bny_op *op, int from, struct bny_msg *msg)
{
    struct bny_direct *s = bny_direct_of(op);
    struct bny_buffer_pool *pool = &op->comm->world->held;

    bny_op_mark_runnable(op);
    if (msg->hdr.kind != BNY_MSG_DATA || msg->hdr.len != s->bytes || s->of[from] ||
        !bny_call_sends(&op->call, from, op->comm->rank)) {
        bny_report(op->comm->world, op->comm, BNY_CAUSE_MISMATCH, BANYAN_EMISMATCH,
                   op->comm->peers[from].world_rank,
                   "rank %d sent %u bytes for %s, rank %d expects %zu", from, msg->hdr.len,
                   bny_call_name(&op->call), op->comm->rank, s->bytes);
        bny_msg_release(pool, msg);
        return;
    }
    /* A transport that lends no eager memory has it fetched, too. */
    if ((!msg->data && msg->hdr.len) || !may_stay(op)) {
        msg = bny_msg_hold(pool, msg);
        if (!msg || (!msg->data && msg->hdr.len)) {
            cannot_hold(op, from, msg);
            return;
        }
    }
    s->of[from] = msg;
    s->missing--;
}

static int end(struct bny_op *op, int result)
{
    struct bny_direct *s = bny_direct_of(op);

    for (int r = 0; r < op->comm->n; r++)
        if (s->of[r]) {
            bny_msg_release(&op->comm->world->held, s->of[r]);
            s->of[r] = NULL;
        }
    return 0;
}

/* ---- the ranks that it waits for ---- */

static int waits_on(const struct bny_op *op, int r)
{
    const struct bny_direct *s = bny_direct_of(op);
    int n = op->comm->n, me = op->comm->rank;
    int turn = r > me ? r - me - 1 : r - me - 1 + n; /* peers are served in this order */

    if (r == me)
        return 0;
    return (!s->of[r] && bny_call_sends(&op->call, r, me)) ||
           (turn >= s->sent && bny_call_sends(&op->call, me, r));
}

static unsigned pending(const struct bny_op *op, int r)
{
    return (waits_on(op, r) ? BNY_PENDING_WAITS : 0) |
           (bny_direct_of(op)->of[r] ? 0 : BNY_PENDING_MESSAGE) |
           (bny_call_sends(&op->call, op->comm->rank, r) ? BNY_PENDING_SENDS : 0);
}

const struct bny_carrier bny_carrier_messages = {
    .traits = BNY_WAY_SENDS | BNY_WAY_LOOKS,
    .cannot = cannot,
    .seconds = seconds,
    .give = give,
    .combine = combine,
    .message = message,
    .end = end,
    .pending = pending,
};
