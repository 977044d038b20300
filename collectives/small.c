/* SPDX-License-Identifier: BSD-3-Clause */
/* The one-shot exchange: every rank sends its contribution to every rank that needs it, in one
 * eager message, and combines what it gets in rank order. One message delay; (n - 1) messages
 * of S bytes a rank. For small messages between few ranks nothing has less latency. Received
 * messages are combined straight from the transport's memory. All ranks associate in rank
 * order, so their bits agree and do not depend on size.
 *
 * Where one contribution goes to several peers by shared memory, it is copied once, to a board
 * that all of them read, instead of once into each peer's ring. */
#include <stdlib.h>
#include <string.h>

#include "collectives/internal.h"

#define BOARDS 16
#define BOARD_BYTES_MIN                                                                        \
    1024u /* below, a copy into each ring costs less than the bookkeeping                      \
           */

struct bny_boards {
    char *mem; /* [BOARDS * BNY_BOARD_BYTES], the transport's: gone with it */
    uint32_t readers[BOARDS];
    uint32_t next;
};

/* Does rank `from` send to rank `to`? */
static int sends(const struct bny_call *call, int from, int to)
{
    if (from == to)
        return 0;
    switch (call->collective) {
    case BNY_BROADCAST:
    case BNY_SCATTER: return from == call->root;
    case BNY_REDUCE:
    case BNY_GATHER: return to == call->root;
    default: return 1;
    }
}

static size_t payload_bytes(const struct bny_op *op)
{
    return op->call.collective == BNY_BARRIER ? 0 : op->call.count * op->esz;
}

static const char *payload(const struct bny_op *op, int to)
{
    const char *base = op->in;

    if (op->call.collective == BNY_BROADCAST)
        return op->out;
    if (op->call.collective == BNY_ALLTOALL || op->call.collective == BNY_SCATTER)
        return base + (size_t)to * payload_bytes(op);
    return base;
}

static struct bny_boards *boards_of(struct bny_world *w)
{
    void *mem;

    if (w->boards_tried)
        return w->boards;
    w->boards_tried = 1;
    for (int i = 0; i < w->ntps && !w->boards; i++) {
        struct bny_tp *tp = w->tps[i];
        if (!(tp->ops->caps & BNY_TP_MEM) ||
            tp->ops->mem_alloc(tp, BOARDS * BNY_BOARD_BYTES, &mem) != 0)
            continue;
        w->boards = calloc(1, sizeof *w->boards);
        if (w->boards)
            w->boards->mem = mem;
    }
    return w->boards;
}

void bny_boards_free(struct bny_world *w)
{
    free(w->boards);
    w->boards = NULL;
}

/* Puts the contribution on a free board, if it is one for boards. */
static void use_board(struct bny_op *op)
{
    size_t bytes = payload_bytes(op);
    struct bny_boards *b;
    uint32_t i;

    op->board = NULL;
    if (op->comm->n < 3 || !op->comm->scope.shares_memory || bytes < BOARD_BYTES_MIN ||
        bytes > BNY_BOARD_BYTES ||
        (op->call.collective != BNY_ALLREDUCE && op->call.collective != BNY_ALLGATHER))
        return;
    b = boards_of(op->comm->world);
    i = b ? b->next % BOARDS : 0;
    if (!b || b->readers[i])
        return; /* somebody is still reading: the rings have room */
    b->next++;
    op->board = b->mem + (size_t)i * BNY_BOARD_BYTES;
    op->board_readers = &b->readers[i];
    memcpy(op->board, op->in, bytes);
}

int bny_oneshot_start(struct bny_op *op)
{
    int n = op->comm->n, me = op->comm->rank;

    use_board(op);
    op->shots_missing = 0;
    op->shots_sent = 0;
    for (int r = 0; r < n; r++) {
        op->shots[r] = NULL;
        op->shots_missing += sends(&op->call, r, me);
    }
    op->dirty = 1;
    return 0;
}

static void combine_sum(struct bny_op *op)
{
    int n = op->comm->n, me = op->comm->rank;
    size_t count = op->call.count, bytes = count * op->esz;
    char *dst = op->out;
    const char *own = op->in, *acc = NULL;

    if (me >= 2 && own == dst && bytes) { /* dst is written before our own turn */
        memcpy(op->tile, own, bytes);
        own = op->tile;
    }
    for (int r = 0; r < n; r++) {
        const char *x = r == me ? own : op->shots[r]->data;
        if (!acc) {
            acc = x;
            continue;
        }
        bny_redop_run(&op->call.redop, op->call.dtype, dst, acc, x, count);
        acc = dst;
    }
    if (bny_call_averages(&op->call))
        bny_divide(dst, dst, count, op->call.dtype, n);
}

static void combine(struct bny_op *op)
{
    int n = op->comm->n, me = op->comm->rank;
    size_t bytes = payload_bytes(op);
    char *dst = op->out;

    switch (op->call.collective) {
    case BNY_BARRIER: return;
    case BNY_ALLREDUCE: combine_sum(op); return;
    case BNY_REDUCE:
        if (me == op->call.root)
            combine_sum(op);
        return;
    case BNY_BROADCAST:
    case BNY_SCATTER:
        if (me != op->call.root && bytes)
            memcpy(dst, op->shots[op->call.root]->data, bytes);
        else if (op->call.collective == BNY_SCATTER && bytes && dst != payload(op, me))
            memmove(dst, payload(op, me), bytes);
        return;
    default: break;
    }
    if (op->call.collective == BNY_GATHER && me != op->call.root)
        return;
    for (int r = 0; r < n && bytes; r++) { /* allgather, gather, alltoall */
        char *at = dst + (size_t)r * bytes;
        if (r != me)
            memcpy(at, op->shots[r]->data, bytes);
        else if (at != payload(op, me))
            memmove(at, payload(op, me), bytes);
    }
}

static int shoot(struct bny_op *op, struct bny_ep *ep, const struct bny_hdr *h, int to)
{
    struct bny_cookie *ck;
    int rc;

    if (!op->board)
        return ep->ops->eager(ep, h, payload(op, to));
    ck = bny_cookie_take(op->comm->world, NULL, 0);
    if (!ck)
        return -BANYAN_ENOMEM;
    rc = ep->ops->send(ep, h, op->board, ck);
    if (rc != 0) {
        bny_cookie_give(op->comm->world, ck);
        return rc;
    }
    ck->readers = op->board_readers;
    ++*op->board_readers;
    return 0;
}

int bny_oneshot_advance(struct bny_op *op)
{
    int n = op->comm->n, me = op->comm->rank, moved = 0;
    struct bny_hdr h;

    if (!op->board && payload_bytes(op) > op->comm->scope.eager_max) {
        use_board(op); /* too long for the rings */
        if (!op->board) {
            op->dirty = 1;
            return 0;
        }
    }
    if (op->shots_sent < n - 1) {
        memset(&h, 0, sizeof h);
        h.comm = op->comm->id;
        h.seq = op->seq;
        h.kind = BNY_MSG_DATA;
        h.sig = op->sig;
        h.len = h.codec_len_raw = (uint32_t)payload_bytes(op);
        h.started = op->comm->next_seq;
    }
    while (op->shots_sent <
           n - 1) { /* starting behind ourselves, so that ranks do not all hit rank 0 */
        int to = me + 1 + op->shots_sent;
        struct bny_ep *ep;
        int rc;
        if (to >= n)
            to -= n;
        ep = op->comm->peers[to].ep;
        rc = sends(&op->call, me, to) ? shoot(op, ep, &h, to) : 0;
        if (rc == BNY_AGAIN) {
            op->dirty = 1;
            return moved;
        }
        if (rc < 0) {
            if (rc == -BANYAN_ERANKDEAD && op->comm->world->control)
                bny_control_progress(
                    op->comm->world->control); /* why it left may be waiting there */
            bny_report(op->comm->world, rc == -BANYAN_ERANKDEAD ? NULL : op->comm,
                       rc == -BANYAN_ERANKDEAD ? BNY_CAUSE_LEFT : BNY_CAUSE_RESET,
                       (enum banyan_error) - rc, op->comm->peers[to].world_rank, "%s",
                       banyan_last_error());
            return moved;
        }
        op->shots_sent++;
        moved = 1;
    }
    if (op->shots_missing)
        return moved;
    combine(op);
    bny_oneshot_drop(op);
    bny_op_complete(op, 0);
    return 1;
}

void bny_oneshot_message(struct bny_op *op, int from, struct bny_msg *msg)
{
    op->dirty = 1;
    if (msg->hdr.kind != BNY_MSG_DATA || msg->hdr.len != payload_bytes(op) || op->shots[from] ||
        !sends(&op->call, from, op->comm->rank)) {
        bny_report(op->comm->world, op->comm, BNY_CAUSE_MISMATCH, BANYAN_EMISMATCH,
                   op->comm->peers[from].world_rank,
                   "rank %d sent %u bytes for %s, rank %d expects %zu", from, msg->hdr.len,
                   bny_call_name(&op->call), op->comm->rank, payload_bytes(op));
        bny_msg_release(op->comm->world, msg);
        return;
    }
    if (!msg->data && msg->hdr.len) { /* a transport that lends no eager memory: fetch it */
        msg = bny_msg_spill(op->comm->world, msg);
        if (!msg || bny_msg_is_draining(msg)) {
            bny_report(op->comm->world, op->comm, BNY_CAUSE_RESET, BANYAN_EPROTO,
                       op->comm->peers[from].world_rank,
                       "rank %d: an eager message of rank %d came in pieces", op->comm->rank,
                       from);
            if (msg)
                bny_msg_release(op->comm->world, msg);
            return;
        }
    }
    op->shots[from] = msg;
    op->shots_missing--;
}

void bny_oneshot_drop(struct bny_op *op)
{
    for (int r = 0; r < op->comm->n; r++)
        if (op->shots[r]) {
            bny_msg_release(op->comm->world, op->shots[r]);
            op->shots[r] = NULL;
        }
}

int bny_oneshot_sends_to(const struct bny_op *op, int r)
{
    return sends(&op->call, op->comm->rank, r);
}

int bny_oneshot_waits_elsewhere(const struct bny_op *op)
{
    int me = op->comm->rank;

    if (op->shots_sent < op->comm->n - 1)
        return 0;
    for (int r = 0; r < op->comm->n; r++) {
        const struct bny_ep *ep = op->comm->peers[r].ep;
        uint32_t cpu;

        if (op->shots[r] || !sends(&op->call, r, me))
            continue;
        cpu = ep->cpu ? atomic_load_explicit(ep->cpu, memory_order_relaxed) : 0;
        if (!cpu || cpu == op->comm->world->cpu)
            return 0;
    }
    return 1;
}

int bny_oneshot_waits_on(const struct bny_op *op, int r)
{
    int n = op->comm->n, me = op->comm->rank;
    int turn = r > me ? r - me - 1 : r - me - 1 + n; /* peers are served in this order */

    if (r == me)
        return 0;
    return (!op->shots[r] && sends(&op->call, r, me)) ||
           (turn >= op->shots_sent && sends(&op->call, me, r));
}
