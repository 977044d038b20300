/* SPDX-License-Identifier: BSD-3-Clause */
/* The direct exchange (direct.h) by eager messages: one message delay, and (n - 1) messages
 * of S bytes a rank. For small messages between few ranks nothing has less latency. Messages
 * are combined straight from the transport's memory.
 *
 * Where one contribution goes to several peers by shared memory, it is copied once, to a board
 * that all of them read, instead of once into each peer's ring. Where all boards are still
 * being read, by ranks that compute perhaps, it goes by rings, or by slots where it is too long
 * for these: who is late for one operation holds up no other. */
#include <stdlib.h>
#include <string.h>

#include "collectives/direct/direct.h"
#include "collectives/direct/messages.h"
#include "collectives/op/op_cookie.h"
#include "collectives/plan/cost.h"

#define BOARDS 16
/* The longest contribution that one copy for all serves. */
#define BOARD_BYTES (32u << 10)
/* Below, a copy into each ring costs less than the bookkeeping. */
#define BOARD_BYTES_MIN 1024u

struct shots {           /* the way's state */
    struct bny_msg **of; /* [n] messages held */
    int missing;
    int sent;    /* peers served so far */
    char *board; /* shared memory that holds our contribution for all peers; or NULL */
    uint32_t *board_readers;
    const char *own; /* our own operand: the user's, or in: */
    char *tile;
    size_t tile_cap;
};

static struct shots *shots_of(const struct bny_op *op)
{
    return op->of_way[BNY_WAY_ONESHOT];
}

struct bny_boards {
    char *mem; /* [BOARDS * BOARD_BYTES], the transport's: gone with it */
    uint32_t readers[BOARDS];
    uint32_t next;
};

static struct bny_boards *boards_of(struct bny_world *w)
{
    void *mem;

    if (w->boards_tried)
        return w->boards;
    w->boards_tried = 1;
    for (int i = 0; i < w->ntps && !w->boards; i++) {
        struct bny_tp *tp = w->tps[i];
        if (!(tp->ops->caps & BNY_TP_MEM) ||
            tp->ops->mem_alloc(tp, BOARDS * BOARD_BYTES, &mem) != 0)
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
    struct shots *s = shots_of(op);
    size_t bytes = bny_direct_bytes(op);
    struct bny_boards *b;
    uint32_t i;

    s->board = NULL;
    if (!bny_call_takes_part(&op->call, op->comm->rank) || op->comm->n < 3 ||
        !op->comm->scope.shares_memory || bytes < BOARD_BYTES_MIN || bytes > BOARD_BYTES ||
        (op->call.collective != BNY_ALLREDUCE && op->call.collective != BNY_ALLGATHER))
        return;
    b = boards_of(op->comm->world);
    for (i = 0; b && i < BOARDS && b->readers[b->next % BOARDS]; i++)
        b->next++;
    if (!b || i == BOARDS)
        return;
    i = b->next++ % BOARDS;
    s->board = b->mem + (size_t)i * BOARD_BYTES;
    s->board_readers = &b->readers[i];
    bny_local_place(s->board, op->in, bytes);
}

static int oneshot_init(struct bny_op *op)
{
    struct shots *s = shots_of(op);

    if (!s)
        s = op->of_way[BNY_WAY_ONESHOT] = calloc(1, sizeof *s);
    if (s && !s->of)
        s->of = calloc((size_t)op->comm->n, sizeof(struct bny_msg *));
    if (!s || !s->of)
        return bny_fail(BANYAN_ENOMEM, "no memory for an operation");
    return bny_grow(&s->tile, &s->tile_cap, op->call.count * op->esz + 64, 1,
                    "a small operation");
}

static void shots_free(struct bny_op *op)
{
    struct shots *s = shots_of(op);

    free(s->of);
    free(s->tile);
    free(s);
    op->of_way[BNY_WAY_ONESHOT] = NULL;
}

static int oneshot_start(struct bny_op *op)
{
    struct shots *s = shots_of(op);
    int n = op->comm->n, me = op->comm->rank;

    use_board(op);
    s->missing = 0;
    s->sent = 0;
    for (int r = 0; r < n; r++) {
        s->of[r] = NULL;
        s->missing += bny_call_sends(&op->call, r, me);
    }
    return 0;
}

/* Of a sum in place the result is written before the own operand has its turn. */
static void save_own(struct bny_op *op)
{
    struct shots *s = shots_of(op);
    int me = op->comm->rank;

    s->own = op->in;
    if (me < 2 || op->in != op->out || !bny_call_row(&op->call)->reduces ||
        !bny_call_takes_part(&op->call, me) ||
        (op->call.collective == BNY_REDUCE && me != op->call.root))
        return;
    bny_local_place(s->tile, op->in, bny_direct_bytes(op));
    s->own = s->tile;
}

static const char *from(const struct bny_op *op, int r)
{
    const struct shots *s = shots_of(op);

    return r == op->comm->rank ? s->own : s->of[r]->data;
}

static int shoot(struct bny_op *op, struct bny_ep *ep, const struct bny_hdr *h, int to)
{
    struct shots *s = shots_of(op);
    struct bny_cookie *ck;
    int rc;

    if (!s->board && h->len > ep->eager_max) {
        rc = bny_tp_send_copy(ep, h, bny_direct_payload(op, to), h->len);
        return rc == 1 ? 0 : rc;
    }
    if (!s->board)
        return ep->ops->eager(ep, h, bny_direct_payload(op, to));
    ck = bny_cookie_take(op->comm->world, NULL, 0);
    if (!ck)
        return -BANYAN_ENOMEM;
    rc = ep->ops->send(ep, h, s->board, ck);
    if (rc != 0) {
        bny_cookie_give(op->comm->world, ck);
        return rc;
    }
    ck->readers = s->board_readers;
    ++*s->board_readers;
    return 0;
}

/* To all who need it, starting behind ourselves, so that ranks do not all hit rank 0. 1: moved
 * something. */
static int shoot_all(struct bny_op *op)
{
    struct shots *s = shots_of(op);
    int n = op->comm->n, me = op->comm->rank, moved = 0;
    struct bny_hdr h;

    bny_op_header(op, &h, BNY_MSG_DATA);
    h.len = h.codec_len_raw = (uint32_t)bny_direct_bytes(op);
    for (; s->sent < n - 1; s->sent++) {
        int to = me + 1 + s->sent < n ? me + 1 + s->sent : me + 1 + s->sent - n;
        int rc =
            bny_call_sends(&op->call, me, to) ? shoot(op, op->comm->peers[to].ep, &h, to) : 0;

        if (rc == BNY_AGAIN)
            bny_op_mark_runnable(op);
        else if (rc < 0)
            bny_op_send_failed(op, to, rc, "");
        if (rc != 0)
            break;
        op->wire_bytes += bny_call_sends(&op->call, me, to) ? h.len : 0;
        moved = 1;
    }
    return moved;
}

static void oneshot_drop(struct bny_op *op, int result)
{
    struct shots *s = shots_of(op);

    for (int r = 0; r < op->comm->n; r++)
        if (s->of[r]) {
            bny_msg_release(&op->comm->world->held, s->of[r]);
            s->of[r] = NULL;
        }
}

static int oneshot_advance(struct bny_op *op)
{
    const struct shots *s = shots_of(op);
    int moved = 0;

    if (s->sent < op->comm->n - 1)
        moved = shoot_all(op);
    if (s->sent < op->comm->n - 1 || s->missing)
        return moved;
    save_own(op);
    bny_direct_combine(op, from);
    bny_op_complete(op, 0);
    return 1;
}

static void oneshot_message(struct bny_op *op, int from, struct bny_msg *msg)
{
    struct shots *s = shots_of(op);
    struct bny_buffer_pool *pool = &op->comm->world->held;

    bny_op_mark_runnable(op);
    if (msg->hdr.kind != BNY_MSG_DATA || msg->hdr.len != bny_direct_bytes(op) || s->of[from] ||
        !bny_call_sends(&op->call, from, op->comm->rank)) {
        bny_report(op->comm->world, op->comm, BNY_CAUSE_MISMATCH, BANYAN_EMISMATCH,
                   op->comm->peers[from].world_rank,
                   "rank %d sent %u bytes for %s, rank %d expects %zu", from, msg->hdr.len,
                   bny_call_name(&op->call), op->comm->rank, bny_direct_bytes(op));
        bny_msg_release(pool, msg);
        return;
    }
    if (!msg->data && msg->hdr.len) { /* a transport that lends no eager memory: fetch it */
        msg = bny_msg_hold(pool, msg);
        if (!msg || !msg->data || bny_msg_is_draining(msg)) {
            bny_report(op->comm->world, op->comm, BNY_CAUSE_RESET, BANYAN_EPROTO,
                       op->comm->peers[from].world_rank,
                       "rank %d: an eager message of rank %d did not come as one",
                       op->comm->rank, from);
            if (msg)
                bny_msg_release(pool, msg);
            return;
        }
    }
    s->of[from] = msg;
    s->missing--;
}

/* ---- who is waited for ---- */

static int waits_on(const struct bny_op *op, int r)
{
    const struct shots *s = shots_of(op);
    int n = op->comm->n, me = op->comm->rank;
    int turn = r > me ? r - me - 1 : r - me - 1 + n; /* peers are served in this order */

    if (r == me)
        return 0;
    return (!s->of[r] && bny_call_sends(&op->call, r, me)) ||
           (turn >= s->sent && bny_call_sends(&op->call, me, r));
}

static unsigned oneshot_pending(const struct bny_op *op, int r)
{
    const struct shots *s = shots_of(op);

    return (waits_on(op, r) ? BNY_PENDING_WAITS : 0) | (s->of[r] ? 0 : BNY_PENDING_MESSAGE) |
           (bny_call_sends(&op->call, op->comm->rank, r) ? BNY_PENDING_SENDS : 0) |
           (s->sent == op->comm->n - 1 ? 0 : BNY_PENDING_UNSENT);
}

/* ---- choice ---- */

#define RANKS_MAX 64

/* Longest contribution: what the rings take, or a board where one copy serves several peers. */
static size_t bytes_max(const struct bny_scope *s, const struct bny_call *call)
{
    return s->shares_memory && s->n > 2 &&
                   (call->collective == BNY_ALLREDUCE || call->collective == BNY_ALLGATHER)
               ? BOARD_BYTES
               : s->eager_max;
}

static const char *cannot(const struct bny_scope *s, const struct bny_call *call)
{
    size_t bytes = call->count * banyan_dtype_bytes(call->dtype);

    if (!bny_call_row(call)->oneshot)
        return "it does not serve this collective";
    if (call->vector)
        return "it needs the same count on all ranks";
    if (call->codec)
        return "it takes no codec";
    if (s->n > RANKS_MAX)
        return "it is for up to 64 ranks";
    return bytes > bytes_max(s, call) || call->count > bytes + 1
               ? "a contribution has to fit into one message"
               : NULL;
}

/* One message delay; each rank combines n - 1 messages, which are copied into a ring each or,
 * from 3 ranks on, to one board for all. */
static double seconds(struct bny_scope *s, const struct bny_call *call, double most,
                      char *schedule)
{
    double bytes = (double)call->count * (double)banyan_dtype_bytes(call->dtype), per_byte;
    struct bny_cost_model m = bny_cost_model_of(s);

    per_byte = s->shares_memory && s->n > 2 ? 0.8 * m.beta : m.beta + 1.3 * m.gamma;
    return m.alpha_s / 3 + (s->n - 1) * (0.05e-6 + bytes * per_byte);
}

static int plan_oneshot(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    plan->chunk_bytes = s->eager_max;
    return 0;
}

const struct bny_way bny_way_oneshot = {
    .traits = BNY_WAY_SENDS | BNY_WAY_LOOKS,
    .cannot = cannot,
    .seconds = seconds,
    .plan = plan_oneshot,
    .init = oneshot_init,
    .start = oneshot_start,
    .advance = oneshot_advance,
    .message = oneshot_message,
    .drop = oneshot_drop,
    .pending = oneshot_pending,
    .free = shots_free,
};
