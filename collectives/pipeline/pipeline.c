/* SPDX-License-Identifier: BSD-3-Clause */
/* The write-back allreduce, and what else is a pass (pass.h), as a way: where an operation
 * begins, waits for a place in its area, runs there and ends.
 *
 * Ranks that share memory write into each other's areas (area/) and look at them: no message
 * is sent but the first one of a communicator, by which areas become known. So nothing marks
 * such an operation; it is looked at whenever its rank waits. An operation's description stands
 * beside its first count in the area, and is compared as a message's signature would be. An
 * area is its communicator's alone, and a communicator with a failed operation runs no other
 * one: a peer that has not heard of the failure yet writes into memory that nobody reads.
 *
 * An operation of the ranks of each host (a part of a sum of several hosts) has an area of its
 * own for the first part and one for the last: places in an area are given in the order in
 * which operations start, and the last part of a sum comes after the first part of the next. */
#include <stdlib.h>
#include <string.h>

#include "collectives/area/area.h"
#include "collectives/local/local.h"
#include "collectives/pipeline/pass.h"
#include "collectives/pipeline/pipeline_choice.h"

_Static_assert(BNY_PIPELINE_RANKS_MAX == BNY_PASS_RANKS_MAX, "a list of their inputs");
_Static_assert(BNY_PIPELINE_ELEM_MAX == BNY_PASS_TILE, "an element passes through a tile");

struct pipeline { /* the way's state of an operation */
    struct bny_pass pass;
    struct bny_link link; /* of the queue for a place */
    struct bny_areas *area;
    uint64_t counted; /* of pass.handed */
    uint8_t has_areas, has_place, failed;
    size_t tile_cap;
    struct bny_area_loan *loans; /* [n] windows that are open for others; out.bytes 0: none */
    struct bny_pass_peer peers[];
};

static struct pipeline *pipeline_of(const struct bny_op *op)
{
    return op->of_way[BNY_WAY_PIPELINE];
}

static int pipeline_init(struct bny_op *op)
{
    struct pipeline *s = pipeline_of(op);
    int n = op->comm->n;

    if (!s)
        s = op->of_way[BNY_WAY_PIPELINE] =
            calloc(1, sizeof *s + (size_t)n * sizeof s->peers[0]);
    if (!s)
        return bny_fail(BANYAN_ENOMEM, "no memory for an operation");
    return bny_grow(&s->pass.tile, &s->tile_cap, BNY_PASS_TILE, 1, "a tile of a sum");
}

static void pipeline_free(struct bny_op *op)
{
    struct pipeline *s = pipeline_of(op);

    free(s->pass.tile);
    free(s->loans);
    free(s);
    op->of_way[BNY_WAY_PIPELINE] = NULL;
}

/* ---- lending: buffers that others can reach ---- */

/* Closes what is open. 0, or BNY_AGAIN while somebody writes. */
static int close_loans(struct bny_op *op)
{
    struct pipeline *s = pipeline_of(op);
    int again = 0;

    for (int r = 0; s->loans && r < s->area->n; r++) {
        struct bny_ep *ep = bny_area_ep(s->area, op->comm, r);
        struct bny_window *w[2] = { &s->loans[r].out, &s->loans[r].in };

        for (int i = 0; i < 2; i++) {
            if (!w[i]->bytes)
                continue;
            if (ep->ops->window_close(ep, w[i]) == BNY_AGAIN)
                again = 1;
            else
                w[i]->bytes = 0;
        }
    }
    return again ? BNY_AGAIN : 0;
}

static int is_gather(const struct bny_pass *p)
{
    return p->kind == BNY_PASS_BLOCKS && p->root >= 0 && !p->from_root;
}

static int open_window(struct bny_ep *ep, const char *at, size_t bytes, struct bny_window *w)
{
    if (ep->ops->window_open(ep, (void *)(uintptr_t)at, bytes, w) != 0) {
        w->bytes = 0;
        return -1;
    }
    return 0;
}

/* The windows for rank r, as it will find them. 0 or -1. */
static int lend_to(struct bny_op *op, int r, size_t in_bytes, size_t out_bytes)
{
    struct pipeline *s = pipeline_of(op);
    struct bny_ep *ep = bny_area_ep(s->area, op->comm, r);
    struct bny_area_loan *l = &s->loans[r];
    const char *out = bny_out_at(op->out, is_gather(&s->pass) ? (size_t)r * out_bytes : 0);

    if ((out_bytes && open_window(ep, out, out_bytes, &l->out) != 0) ||
        (in_bytes && open_window(ep, op->in, in_bytes, &l->in) != 0))
        return -1;
    *bny_area_loan(s->pass.shape, s->peers[s->area->rank].area, s->pass.seq, r) = *l;
    return 0;
}

/* Do others store into what rank r lends, beside reading it? */
static int lends_both(const struct bny_pass *p, int r)
{
    return p->kind == BNY_PASS_ALLREDUCE || (p->kind == BNY_PASS_REDUCE && r == p->root);
}

static int lends_output(const struct bny_pass *p, int r)
{
    return lends_both(p, r) || (p->direct && r == p->root) ||
           (p->kind == BNY_PASS_BLOCKS && bny_blocks_stores(p) && r != p->root);
}

/* Bytes of input and output that others reach in a loan. The input alone of an exchange, where
 * our own results leave it as it is, of a block, and of what is added for a root. */
static void loan_bytes(const struct bny_op *op, size_t *in, size_t *out)
{
    const struct bny_pass *p = &pipeline_of(op)->pass;
    size_t bytes = op->call.count * op->esz, all = p->same ? bytes : bytes * (size_t)p->n;

    *out = *in = 0;
    if (lends_both(p, p->rank)) {
        *out = bytes;
        *in = op->in != op->out ? bytes : 0;
        return;
    }
    if (p->kind == BNY_PASS_REDUCE) {
        *in = bytes;
        return;
    }
    if (p->kind == BNY_PASS_BLOCKS) {
        *in = bny_blocks_gives(p, p->rank) && !p->direct ? all : 0;
        *out = lends_output(p, p->rank) ? bytes : 0;
        return;
    }
    *in = p->adds && op->out != op->in + bytes * (size_t)p->rank && op->out + bytes > op->in &&
                  op->out < op->in + all
              ? 0
              : all;
}

/* The root of a gather, whose ranks can all write there by the kernel: each copies its block on
 * a CPU of its own, where the root would copy all of them. The kernel's copy of less costs
 * more. */
#define COPIED_RANKS 4
#define COPIED_BYTES (4u << 20)

static int lends_copies(const struct bny_op *op)
{
    const struct bny_pass *p = &pipeline_of(op)->pass;

    if (!p->direct || p->rank != p->root || p->n < COPIED_RANKS || !p->shape->lag ||
        (size_t)p->n * op->call.count * op->esz < COPIED_BYTES)
        return 0;
    for (int r = 0; r < p->n; r++)
        if (r != p->rank && !pipeline_of(op)->area->peers[r].copies)
            return 0;
    return 1;
}

static int is_shared(const struct bny_op *op, size_t in, size_t out)
{
    struct bny_tp *tp = pipeline_of(op)->area->tp;

    if (is_gather(&pipeline_of(op)->pass))
        out *= (size_t)pipeline_of(op)->area->n;
    return (!out || tp->ops->shared->is_shared(tp, op->out, out)) &&
           (!in || tp->ops->shared->is_shared(tp, op->in, in));
}

/* Lends the vector where all of it is shared memory, or others copy; else it is copied here. */
static enum bny_pass_loan pipeline_lend(struct bny_op *op)
{
    struct pipeline *s = pipeline_of(op);
    enum bny_pass_loan loan = BNY_PASS_LENDS;
    size_t in, out;

    loan_bytes(op, &in, &out);
    if (in + out && !is_shared(op, in, out))
        loan = lends_copies(op) ? BNY_PASS_LENDS_COPIES : BNY_PASS_KEEPS;
    if (!(in + out) || loan == BNY_PASS_KEEPS)
        return BNY_PASS_KEEPS;
    if (!s->loans)
        s->loans = aligned_alloc(128, (size_t)op->comm->n * sizeof *s->loans);
    if (!s->loans)
        return BNY_PASS_KEEPS;
    memset(s->loans, 0, (size_t)op->comm->n * sizeof *s->loans);
    for (int r = 0; r < s->area->n; r++)
        if (r != s->area->rank &&
            (s->pass.kind != BNY_PASS_BLOCKS || bny_blocks_reaches(&s->pass, r)) &&
            lend_to(op, r, in, out) != 0) {
            close_loans(op); /* nobody has heard of them */
            return BNY_PASS_KEEPS;
        }
    return loan;
}

static void loan_of(const struct bny_op *op, int r, struct bny_area_loan *l)
{
    struct pipeline *s = pipeline_of(op);

    memcpy(l, bny_area_loan(s->pass.shape, s->peers[r].area, s->pass.seq, s->area->rank),
           sizeof *l);
}

/* Rank r's description of its loan is foreign input: map() checks it, and that it is still
 * open.
 */
static int borrow(void *ctx, int r, size_t at, size_t len, const char **src, char **dst)
{
    struct bny_op *op = ctx;
    struct pipeline *s = pipeline_of(op);
    struct bny_ep *ep = bny_area_ep(s->area, op->comm, r);
    struct bny_area_loan l;

    loan_of(op, r, &l);
    if (l.in.bytes) {
        *src = ep->ops->shared->map(ep, &l.in, at, (uint32_t)len);
        if (!*src)
            return -1;
        ep->ops->shared->unmap(ep); /* nothing is written there */
    }
    if (!lends_output(&s->pass, r))
        return l.in.bytes ? 0 : -1;
    *dst = ep->ops->shared->map(ep, &l.out, at, (uint32_t)len);
    if (!l.in.bytes)
        *src = *dst;
    return *dst ? 0 : -1;
}

static void pipeline_give_back(void *ctx, int r)
{
    const struct bny_op *op = ctx;
    struct bny_ep *ep = bny_area_ep(pipeline_of(op)->area, op->comm, r);

    ep->ops->shared->unmap(ep);
}

static int store(void *ctx, int r, size_t at, const char *src, size_t len)
{
    struct bny_op *op = ctx;
    struct pipeline *s = pipeline_of(op);
    struct bny_ep *ep = bny_area_ep(s->area, op->comm, r);
    struct bny_area_loan l;
    int rc;

    loan_of(op, r, &l);
    rc = ep->ops->shared->store(ep, &l.out, at, src, (uint32_t)len);
    if (rc < 0 && rc != BNY_AGAIN && !s->failed) {
        s->failed = 1;
        bny_op_send_failed(op, s->area->ranks[r], rc, "");
    }
    return rc == 0 ? 0 : -1;
}

/* ---- beginning ---- */

/* In a shorter gather givers need not wait for the root. */
#define DIRECT_BYTES (64u << 10)

static void set_kind(struct bny_pass *p, const struct bny_call *call)
{
    enum bny_collective c = (enum bny_collective)call->collective;

    p->adds = c == BNY_REDUCE_SCATTER;
    p->same = c == BNY_ALLGATHER || c == BNY_BROADCAST || c == BNY_GATHER;
    p->from_root = c == BNY_BROADCAST || c == BNY_SCATTER;
    p->root = bny_collective_row(c)->rooted ? call->root : -1;
    if (c == BNY_ALLREDUCE)
        p->kind = BNY_PASS_ALLREDUCE;
    else if (c == BNY_REDUCE)
        p->kind = BNY_PASS_REDUCE;
    else if (p->root >= 0 || (c == BNY_ALLGATHER && p->n > 2))
        p->kind = BNY_PASS_BLOCKS;
    else
        p->kind = BNY_PASS_EXCHANGE;
    p->direct = is_gather(p) && p->n > 2 &&
                (size_t)p->n * call->count * banyan_dtype_bytes(call->dtype) >= DIRECT_BYTES;
}

/* Several ranks read less than that once for all from a cache that they share. */
#define STORED_LONG (2u << 20)

static enum bny_area which_area(const struct bny_call *call)
{
    if (call->among != BNY_AMONG_HOST)
        return BNY_AREA_ALL;
    return call->collective == BNY_REDUCE_SCATTER ? BNY_AREA_HOST_FIRST : BNY_AREA_HOST_LAST;
}

static int pipeline_start(struct bny_op *op)
{
    struct pipeline *s = pipeline_of(op);
    struct bny_areas *w = bny_area_get(op->comm, which_area(&op->call));
    struct bny_pass *p = &s->pass;

    if (!w)
        return -BANYAN_ENOMEM;
    s->area = w;
    s->counted = 0;
    s->has_areas = s->has_place = s->failed = 0;
    p->n = w->n;
    p->rank = w->rank;
    p->shape = &w->shape;
    p->touches = w->tp->touches != 0;
    p->peers = s->peers;
    p->redop = op->call.redop;
    p->dtype = op->call.dtype;
    p->esz = op->esz;
    p->seq = bny_op_seq(op);
    p->sig = op->sig;
    p->history = bny_area_history(w, op);
    set_kind(p, &op->call);
    p->stores_from = p->n == 2 ? 0 : STORED_LONG;
    p->averages = bny_call_averages(&op->call);
    p->in = op->in;
    p->out = op->out;
    p->count = op->call.count;
    p->borrow = borrow;
    p->give_back = pipeline_give_back;
    p->store = store;
    p->ctx = op;
    bny_pass_cut(p, op->plan.chunk_bytes);
    bny_link_in(&w->queue, &s->link);
    return 0;
}

/* ---- a place ---- */

/* Has it one? The pass begins there. */
static int pipeline_take_place(struct bny_op *op)
{
    struct pipeline *s = pipeline_of(op);
    int rank = 0, rc;

    if (s->has_place || s->failed)
        return s->has_place;
    rc = s->has_areas ? 1 : bny_area_meet(s->area, op, &rank);
    if (rc < 0) {
        s->failed = 1;
        bny_op_send_failed(op, rank, rc, "");
    }
    if (rc != 1)
        return 0;
    for (int i = 0; i < s->area->n && !s->has_areas; i++)
        s->peers[i].area = s->area->peers[i].area;
    s->has_areas = 1;
    if (!bny_area_claim(s->area, &s->link, bny_op_seq(op), &s->pass.slice))
        return 0;
    s->has_place = 1;
    s->pass.lends = pipeline_lend(op);
    bny_pass_begin(&s->pass);
    return 1;
}

/* Gives up its place, or its place in the queue. Idempotent. */
static void pipeline_leave(const struct bny_op *op)
{
    struct pipeline *s = pipeline_of(op);

    bny_link_out(&s->link);
    if (s->has_place)
        bny_area_release(s->area, bny_op_seq(op), s->pass.slice, bny_pass_is_read_on(&s->pass));
    s->has_place = 0;
}

/* ---- going on ---- */

/* Wakes ranks that sleep, for what the pass has written since the last time, and counts it. */
static void publish_counts(struct bny_op *op)
{
    struct pipeline *s = pipeline_of(op);
    struct bny_areas *w = s->area;
    uint64_t handed = s->pass.handed - s->counted;

    s->pass.told = 0;
    s->counted = s->pass.handed;
    op->wire_bytes += handed;
    bny_counter_add(&w->tp->messages, (uint64_t)w->n - 1);
    bny_counter_add(&w->tp->wire_bytes, handed);
    bny_counter_add(&w->tp->copied_bytes, s->pass.copied);
    s->pass.copied = 0;
    for (int i = 0; i < w->n; i++)
        if (i != w->rank)
            bny_ep_wake(bny_area_ep(w, op->comm, i));
}

/* Does a peer's entry have another operation than this one? 1: this rank has reported it. */
static int has_mismatch(struct bny_op *op)
{
    const struct pipeline *s = pipeline_of(op);

    for (int i = 0; i < s->area->n; i++)
        if (s->peers[i].differs) {
            struct bny_msg msg = { .hdr = { .comm = op->comm->id,
                                            .seq = bny_op_seq(op),
                                            .kind = BNY_MSG_DATA,
                                            .sig = s->peers[i].theirs } };

            if (memcmp(&msg.hdr.sig, &op->sig, sizeof op->sig) != 0)
                bny_mismatch_report(op, s->area->ranks[i], &msg);
            else
                bny_area_differed(op, s->area->ranks[i]);
            return 1;
        }
    return 0;
}

static int pipeline_advance(struct bny_op *op)
{
    struct pipeline *s = pipeline_of(op);
    int moved = 0, is_done = 0;

    if (pipeline_take_place(op)) {
        moved = bny_pass_go(&s->pass);
        is_done = bny_pass_is_done(&s->pass);
    }
    if (is_done)
        pipeline_leave(op); /* before other ranks wake, which may wait for that */
    if (s->pass.told)
        publish_counts(op);
    if (is_done) {
        bny_op_complete(op, 0);
        return 1;
    }
    if (!moved && s->has_place && !s->failed)
        s->failed = (uint8_t)has_mismatch(op);
    bny_op_mark_runnable(op);
    return moved;
}

static int pipeline_end(struct bny_op *op, int result)
{
    int rc;

    pipeline_leave(op);
    rc = close_loans(op);
    if (rc)
        bny_op_mark_runnable(op);
    return rc;
}

static unsigned pipeline_pending(const struct bny_op *op, int r)
{
    const struct pipeline *s = pipeline_of(op);
    int i = 0, waits;

    while (i < s->area->n && s->area->ranks[i] != r)
        i++;
    if (i == s->area->n || i == s->area->rank)
        return 0;
    if (!s->has_areas)
        waits = !s->area->peers[i].area || !s->area->peers[i].said;
    else
        waits = !s->has_place || bny_pass_lacks(&s->pass, i);
    return waits ? BNY_PENDING_WAITS : 0;
}

const struct bny_way bny_way_pipeline = {
    .traits = BNY_WAY_SHARES | BNY_WAY_POLLED | BNY_WAY_AMONG,
    .cannot = bny_pipeline_cannot,
    .seconds = bny_pipeline_seconds,
    .plan = bny_pipeline_plan,
    .init = pipeline_init,
    .start = pipeline_start,
    .advance = pipeline_advance,
    .message = bny_area_message,
    .end = pipeline_end,
    .pending = pipeline_pending,
    .free = pipeline_free,
};
