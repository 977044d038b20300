/* SPDX-License-Identifier: BSD-3-Clause */
/* Operations in which no other rank takes part: a collective of one rank, which is a copy, or
 * of none, which is zeros; and a message to oneself. */
#include <string.h>

#include "collectives/direct/direct.h"

static const char *cannot(const struct bny_scope *s, const struct bny_call *call)
{
    return bny_call_is_local(s, call) ? NULL : "other ranks take part";
}

static double seconds(const struct bny_scope *s, const struct bny_call *call)
{
    return 0;
}

/* ---- one rank, or an empty participation set ---- */

static void copy(struct bny_op *op)
{
    const struct bny_call *c = &op->call;
    size_t in = 0, out = 0, n = c->count;
    int has_result = c->collective != BNY_BARRIER && c->collective != BNY_EXSCAN &&
                     c->collective != BNY_BROADCAST;

    if (c->has_set) { /* of one rank or more, none takes part */
        if (n && (c->collective != BNY_REDUCE || c->root == op->comm->rank))
            memset(op->out, 0, n * op->esz);
        return;
    }
    if (c->vector) {
        n = c->scounts ? c->scounts[0] : c->rcounts ? c->rcounts[0] : c->count;
        in = c->sdispls ? c->sdispls[0] : 0;
        out = c->rdispls ? c->rdispls[0] : 0;
    }
    if (has_result && n)
        bny_local_copy(op->out + out * op->esz, op->in + in * op->esz, n * op->esz);
}

/* ---- to oneself ---- */

/* The messages are made here, chunk by chunk as the receiving side expects them, and take the
 * way of all messages. */
static int make_messages(struct bny_op *op, struct bny_msg_list *out)
{
    struct bny_buffer_pool *pool = &op->comm->world->held;
    size_t count = op->call.count, piece = op->chunk_elems;
    struct bny_msg *msg;
    struct bny_hdr h;

    bny_op_header(op, &h, BNY_MSG_DATA);
    for (size_t at = 0; at == 0 || at < count; at += piece, h.chunk++) {
        h.len = h.codec_len_raw =
            (uint32_t)((count - at < piece ? count - at : piece) * op->esz);
        msg = bny_msg_make(pool, &h, bny_in_at(op->in, at * op->esz));
        if (!msg) {
            bny_msg_list_release(pool, out);
            return bny_fail(BANYAN_ENOMEM, "no memory for a message to oneself");
        }
        bny_msg_list_push_back(out, msg);
    }
    bny_op_account_sent(op, &h);
    return 0;
}

static int send_to_self(struct bny_op *op)
{
    struct banyan_comm *comm = op->comm;
    struct bny_msg_list made = { 0 };
    struct bny_msg *msg;
    int rc = make_messages(op, &made);

    if (rc) {
        bny_op_send_failed(op, comm->rank, rc, "");
        return 0;
    }
    while ((msg = bny_msg_list_pop_front(&made)))
        bny_comm_message(comm, comm->rank, msg);
    return 1;
}

static int give(struct bny_op *op)
{
    struct bny_direct *s = bny_direct_of(op);

    if (op->call.collective != BNY_SENDRECV)
        copy(op);
    else if (!send_to_self(op))
        return 0;
    s->missing = 0;
    s->is_given = 1;
    return 1;
}

const struct bny_carrier bny_carrier_alone = {
    .cannot = cannot,
    .seconds = seconds,
    .give = give,
};
