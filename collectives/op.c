/* SPDX-License-Identifier: BSD-3-Clause */
/* Life of an operation: plan and tables (init), start, messages, completion. Waiting is in
 * wait.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/internal.h"

/* ---- init ---- */

static int reduces(const struct bny_call *c)
{
    return c->collective == BNY_ALLREDUCE || c->collective == BNY_REDUCE ||
           c->collective == BNY_REDUCE_SCATTER || c->collective == BNY_SCAN ||
           c->collective == BNY_EXSCAN;
}

static void make_sig(struct bny_op *op)
{
    const struct bny_call *c = &op->call;
    unsigned hash = op->plan.sched_hash;

    memset(&op->sig, 0, sizeof op->sig);
    op->sig.collective = c->collective;
    op->sig.dtype = (uint8_t)c->dtype;
    op->sig.op = c->redop.wire;
    /* Ranks must agree on it also where the plan is the same with and without. */
    op->sig.codec_sched = (uint8_t)(c->deterministic && reduces(c) ? hash ^ 0xa5 : hash);
    op->sig.count = c->vector ? 0 : c->count;
    op->sig.root_tag = c->collective == BNY_SENDRECV ? c->tag
                                                     : (uint32_t)(c->root < 0 ? 0 : c->root) ^
                                                           (c->tag << 16 | c->tag >> 16);
    if (c->collective == BNY_BARRIER)
        op->sig.count = 0;
}

static int same_plan(const struct bny_call *a, const struct bny_call *b)
{
    return a->collective == b->collective && a->count == b->count && a->dtype == b->dtype &&
           a->root == b->root && !a->vector && !b->vector && a->redop.wire == b->redop.wire &&
           a->redop.kind == b->redop.kind && a->redop.user == b->redop.user &&
           a->redop.elem_bytes == b->redop.elem_bytes &&
           a->redop.commutative == b->redop.commutative && a->codec == b->codec &&
           a->deterministic == b->deterministic && a->chunk_bytes == b->chunk_bytes &&
           a->is_send == b->is_send && a->tag == b->tag && a->rows == b->rows &&
           a->via_allreduce == b->via_allreduce && !strcmp(a->schedule, b->schedule);
}

int bny_op_init(struct bny_op *op, struct banyan_comm *comm, const struct bny_call *call)
{
    size_t n = (size_t)comm->n, piece;
    int rc;

    if (op->planned && op->comm == comm && same_plan(&op->call, call)) {
        op->call = *call;
        return 0;
    }
    op->planned = 0;
    op->comm = comm;
    op->call = *call;
    op->esz = banyan_dtype_bytes(call->dtype);
    rc = bny_plan_get(comm, call, &op->plan);
    if (rc)
        return rc;
    op->program = op->plan.program;
    make_sig(op);
    if (!op->peers) {
        op->peers = calloc(n, sizeof *op->peers);
        op->shots = calloc(n, sizeof *op->shots);
        if (!op->peers || !op->shots)
            return bny_fail(BANYAN_ENOMEM, "no memory for an operation");
    }
    if (op->plan.path == BNY_PATH_STAGES) {
        rc = bny_linear_init(op);
    } else if (op->plan.path == BNY_PATH_ONESHOT) {
        rc = bny_grow(&op->tile, &op->tile_cap, call->count * op->esz + 64, 1,
                      "a small operation");
    } else if (op->program) {
        rc = bny_grow(&op->steps, &op->steps_cap, op->program->nsteps, sizeof *op->steps,
                      "steps");
        if (rc == 0)
            rc = bny_grow(&op->blocks, &op->blocks_cap, op->program->nblocks,
                          sizeof *op->blocks, "blocks");
    }
    if (rc)
        return rc;
    piece = op->call.redop.elem_bytes > 1 ? op->call.redop.elem_bytes : 1;
    op->chunk_elems = op->plan.chunk_bytes / op->esz / piece * piece;
    if (op->chunk_elems == 0)
        op->chunk_elems = piece;
    op->planned = 1;
    return 0;
}

/* ---- start ---- */

static void link_active(struct bny_op *op)
{
    struct banyan_comm *c = op->comm;

    op->next = NULL;
    if (c->active_last)
        c->active_last->next = op;
    else
        c->active_first = op;
    c->active_last = op;
    atomic_store_explicit(&op->state, BNY_OP_ACTIVE, memory_order_relaxed);
}

static void unlink_active(struct bny_op *op)
{
    struct banyan_comm *c = op->comm;
    struct bny_op *prev = NULL;

    for (struct bny_op *o = c->active_first; o; prev = o, o = o->next)
        if (o == op) {
            if (prev)
                prev->next = o->next;
            else
                c->active_first = o->next;
            if (c->active_last == o)
                c->active_last = prev;
            return;
        }
}

/* One rank alone: the collective is a copy. */
static void run_alone(struct bny_op *op)
{
    const struct bny_call *c = &op->call;
    size_t in = 0, out = 0, n = c->count;

    if (c->collective == BNY_BARRIER || c->collective == BNY_EXSCAN ||
        c->collective == BNY_BROADCAST)
        return;
    if (c->vector) {
        n = c->scounts ? c->scounts[0] : c->rcounts ? c->rcounts[0] : c->count;
        in = c->sdispls ? c->sdispls[0] : 0;
        out = c->rdispls ? c->rdispls[0] : 0;
    }
    if (n && op->in + in * op->esz != op->out + out * op->esz)
        memmove(op->out + out * op->esz, op->in + in * op->esz, n * op->esz);
}

/* Only written under the lock: no locked instruction, which would wait for all stores before
 * it. */
static void count_done(struct banyan_comm *c)
{
    atomic_store_explicit(&c->ops_done,
                          atomic_load_explicit(&c->ops_done, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

/* Point to point: is a message for the side that sends the data? */
static int is_for_sender(const struct bny_hdr *h)
{
    return h->kind == BNY_MSG_READY || (h->kind == BNY_MSG_PROBE && h->step == 0);
}

static int matches_stray(const struct bny_op *op, int from, const struct bny_msg *msg)
{
    const struct bny_hdr *h = &msg->hdr;

    if (op->call.collective != BNY_SENDRECV)
        return h->sig.collective != BNY_SENDRECV && h->seq == op->seq;
    return h->sig.collective == BNY_SENDRECV && h->seq == op->seq && from == op->call.root &&
           h->sig.root_tag == op->call.tag && is_for_sender(h) == op->call.is_send;
}

static int sender_of(const struct banyan_comm *comm, const struct bny_msg *msg)
{
    return msg->ep ? comm->rank_of_world[msg->ep->peer] : comm->rank;
}

/* Messages that came before we started this operation. */
static void take_strays(struct bny_op *op)
{
    struct banyan_comm *c = op->comm;
    struct bny_msg *msg = c->strays, *next;

    c->strays = c->strays_last = NULL;
    for (; msg; msg = next) {
        next = msg->next;
        msg->next = NULL;
        if (matches_stray(op, sender_of(c, msg), msg)) {
            bny_comm_message(c, sender_of(c, msg), msg);
            continue;
        }
        if (c->strays_last)
            c->strays_last->next = msg;
        else
            c->strays = msg;
        c->strays_last = msg;
    }
}

static struct bny_stream *stream_of(struct banyan_comm *c, int peer, uint32_t tag)
{
    for (size_t i = 0; i < c->nstreams; i++)
        if (c->streams[i].peer == peer && c->streams[i].tag == tag)
            return &c->streams[i];
    if (bny_grow(&c->streams, &c->streams_cap, c->nstreams + 1, sizeof *c->streams,
                 "message streams"))
        return NULL;
    c->streams[c->nstreams] = (struct bny_stream){ .peer = peer, .tag = tag };
    return &c->streams[c->nstreams++];
}

/* To oneself: the messages are made here, chunk by chunk as the receiving side expects them,
 * and take the way of all messages. */
static int send_to_self(struct bny_op *op)
{
    struct banyan_comm *comm = op->comm;
    struct bny_msg *first = NULL, **last = &first, *msg;
    size_t count = op->call.count, piece = op->chunk_elems;
    struct bny_hdr h;

    memset(&h, 0, sizeof h);
    h.comm = comm->id;
    h.seq = op->seq;
    h.kind = BNY_MSG_DATA;
    h.sig = op->sig;
    for (size_t at = 0; at == 0 || at < count; at += piece, h.chunk++) {
        h.len = (uint32_t)((count - at < piece ? count - at : piece) * op->esz);
        msg = bny_msg_make(comm->world, &h, (const char *)op->in + at * op->esz);
        if (!msg) {
            while ((msg = first)) {
                first = msg->next;
                bny_msg_release(comm->world, msg);
            }
            return bny_fail(BANYAN_ENOMEM, "no memory for a message to oneself");
        }
        msg->next = NULL;
        *last = msg;
        last = &msg->next;
    }
    bny_op_complete(op, 0);
    while ((msg = first)) {
        first = msg->next;
        bny_comm_message(comm, comm->rank, msg);
    }
    return 0;
}

static int start_engine(struct bny_op *op)
{
    int rc = bny_operands_fill(op);

    return rc ? rc : bny_engine_start(op);
}

int bny_op_start(struct bny_op *op)
{
    struct banyan_comm *c = op->comm;
    int rc = bny_comm_error(c);

    if (rc == 0 && op->plan.codec && op->call.state && op->call.state->busy)
        rc = bny_fail(BANYAN_EBUSY,
                      "codec_state: another operation uses it; wait for that one first");
    if (rc)
        return rc;
    op->result = 0;
    op->deadline_ns =
        0; /* set at the first tick: reading the clock costs more than a small operation may */
    op->probe_ns = 0;
    op->close_ns = 0;
    op->cookies = NULL;
    for (int r = 0; r < c->n; r++)
        op->peers[r].told = 0;
    if (op->call.collective == BNY_SENDRECV) {
        struct bny_stream *st = stream_of(c, op->call.root, op->call.tag);
        if (!st)
            return -BANYAN_ENOMEM;
        op->seq = op->call.is_send ? st->sent++ : st->received++;
    } else {
        if (!op->parent)
            op->seq = c->next_seq++;
        c->past[op->seq % BNY_PAST] = op->sig;
        c->next_seq += c->n > 1 ? bny_linear_numbers(op) : 0;
    }
    rc = bny_operands_stage(op);
    if (rc == 0 && c->n == 1 && op->call.collective != BNY_SENDRECV) {
        run_alone(op);
        atomic_store_explicit(&op->state, BNY_OP_DONE, memory_order_release);
        count_done(c);
        return 0;
    }
    if (rc == 0)
        rc = op->plan.path == BNY_PATH_ONESHOT  ? bny_oneshot_start(op)
             : op->plan.path == BNY_PATH_STAGES ? bny_linear_start(op)
                                                : start_engine(op);
    if (rc) { /* others wait for us in vain: tell them why */
        bny_report(c->world, c, BNY_CAUSE_RESET, (enum banyan_error) - rc, c->world->rank,
                   "rank %d: %s", c->rank, banyan_last_error());
        return rc;
    }
    link_active(op);
    if (op->call.collective == BNY_SENDRECV && op->call.root == c->rank && op->call.is_send)
        return send_to_self(op);
    if (c->strays)
        take_strays(op);
    if (atomic_load_explicit(&op->state, memory_order_relaxed) != BNY_OP_ACTIVE)
        return 0;
    bny_op_advance(op);
    return 0;
}

int bny_op_advance(struct bny_op *op)
{
    switch (op->plan.path) {
    case BNY_PATH_ONESHOT: return bny_oneshot_advance(op);
    case BNY_PATH_STAGES: return bny_linear_advance(op);
    default: return bny_engine_advance(op);
    }
}

/* ---- messages ---- */

static struct bny_op *find_op(struct banyan_comm *c, int from, const struct bny_msg *msg)
{
    for (struct bny_op *op = c->active_first; op; op = op->next)
        if (matches_stray(op, from, msg))
            return op;
    return NULL;
}

/* A stage of an operation in flight, whose turn has not come here. */
static int is_to_come(const struct banyan_comm *c, uint32_t seq)
{
    for (const struct bny_op *op = c->active_first; op; op = op->next)
        if (op->plan.path == BNY_PATH_STAGES && bny_linear_expects(op, seq))
            return 1;
    return 0;
}

/* Has this rank already finished the operation that a message is for? */
static int is_past(const struct banyan_comm *c, int from, const struct bny_hdr *h)
{
    if (h->sig.collective != BNY_SENDRECV)
        return (int32_t)(h->seq - c->next_seq) < 0 && !is_to_come(c, h->seq);
    for (size_t i = 0; i < c->nstreams; i++)
        if (c->streams[i].peer == from && c->streams[i].tag == h->sig.root_tag)
            return (int32_t)(h->seq - (is_for_sender(h) ? c->streams[i].sent
                                                        : c->streams[i].received)) < 0;
    return 0;
}

/* A rank that waits for us asks again and again: one such message is enough. */
static int has_probe(const struct banyan_comm *c, const struct bny_msg *msg)
{
    for (const struct bny_msg *m = c->strays; m; m = m->next)
        if (m->hdr.kind == BNY_MSG_PROBE && m->ep == msg->ep && m->hdr.seq == msg->hdr.seq &&
            m->hdr.step == msg->hdr.step &&
            !memcmp(&m->hdr.sig, &msg->hdr.sig, sizeof m->hdr.sig))
            return 1;
    return 0;
}

static void keep_stray(struct banyan_comm *c, struct bny_msg *msg)
{
    if (msg->hdr.kind == BNY_MSG_PROBE && has_probe(c, msg)) {
        bny_msg_release(c->world, msg);
        return;
    }
    msg = bny_msg_spill(c->world, msg);
    if (!msg)
        return;
    msg->next = NULL;
    if (c->strays_last)
        c->strays_last->next = msg;
    else
        c->strays = msg;
    c->strays_last = msg;
}

void bny_comm_message(struct banyan_comm *c, int from, struct bny_msg *msg)
{
    struct bny_op *op;

    if (atomic_load_explicit(&c->failed, memory_order_relaxed) || from < 0) {
        bny_msg_release(c->world, msg);
        return;
    }
    op = find_op(c, from, msg);
    if (!op) {
        if (!is_past(c, from, &msg->hdr)) {
            keep_stray(c, msg);
            return;
        }
        bny_mismatch_past(c, from, msg);
        bny_msg_release(c->world, msg);
        return;
    }
    if (memcmp(&op->sig, &msg->hdr.sig, sizeof op->sig) != 0) {
        bny_mismatch_report(op, from, msg);
        bny_msg_release(c->world, msg);
        return;
    }
    if (msg->hdr.kind == BNY_MSG_PROBE || op->plan.path == BNY_PATH_STAGES ||
        atomic_load_explicit(&op->state, memory_order_relaxed) != BNY_OP_ACTIVE)
        bny_msg_release(c->world, msg);
    else if (op->plan.path == BNY_PATH_ONESHOT)
        bny_oneshot_message(op, from, msg);
    else
        bny_engine_message(op, from, msg);
}

/* ---- completion ---- */

/* Does a message for rank r of a collective still need our progress? Who waits for it would
 * wait until this rank happens to call the library again, which may be never: the operation is
 * not complete before. Its receiver takes part and reads, so this ends. The receiver of a
 * point-to-point message need not have called yet, so that one does not wait: a small send may
 * return before the receiver calls. */
static int is_unsent_to(const struct bny_op *op, int r)
{
    const struct bny_ep *ep = op->comm->peers[r].ep;
    const struct bny_program *p = op->program;

    if (!ep || !ep->unsent || op->call.collective == BNY_SENDRECV)
        return 0;
    if (op->plan.path == BNY_PATH_ONESHOT)
        return bny_oneshot_sends_to(op, r);
    for (uint32_t i = 0; i < p->nsteps; i++)
        if (p->steps[i].peer == r &&
            (p->steps[i].kind == BNY_SEND || p->steps[i].kind == BNY_FORWARD))
            return 1;
    return 0;
}

static int is_unsent(const struct bny_op *op)
{
    const struct bny_world *w = op->comm->world;
    uint64_t any = 0;

    for (int i = 0; i < w->ntps; i++)
        any |= w->tps[i]->unsent;
    for (int r = 0; any && r < op->comm->n; r++)
        if (is_unsent_to(op, r))
            return 1;
    return 0;
}

/* Idempotent while windows are closing and messages are unsent: progress calls it again. */
void bny_op_complete(struct bny_op *op, int result)
{
    if (result && op->result == 0)
        op->result = result;
    if (atomic_load_explicit(&op->state, memory_order_relaxed) == BNY_OP_ACTIVE) {
        if (op->plan.path == BNY_PATH_ONESHOT)
            bny_oneshot_drop(op);
        else if (result && op->plan.path == BNY_PATH_ENGINE)
            bny_engine_drop(op);
        bny_coded_end(op, result);
        atomic_store_explicit(&op->state, BNY_OP_CLOSING, memory_order_relaxed);
    }
    if (op->plan.path == BNY_PATH_ENGINE && bny_engine_close(op) == BNY_AGAIN) {
        op->dirty = 1;
        return;
    }
    if (op->plan.path == BNY_PATH_STAGES && bny_linear_is_busy(op))
        return; /* a failure: the stage calls again when it has closed */
    if (op->result == 0 && op->plan.path != BNY_PATH_STAGES && is_unsent(op)) {
        op->dirty = 1;
        return;
    }
    if (op->call.via_allreduce && op->result == 0 && op->call.own_count)
        memcpy(op->call.recvbuf, op->staging + op->call.own_at * op->esz,
               op->call.own_count * op->esz);
    unlink_active(op);
    if (!op->parent)
        count_done(op->comm);
    atomic_store_explicit(&op->state, BNY_OP_DONE, memory_order_release);
    if (op->parent)
        bny_linear_child_done(op->parent);
}

void bny_op_finish(struct bny_op *op)
{
    bny_linear_free(op);
    free(op->steps);
    free(op->blocks);
    free(op->peers);
    free(op->shots);
    free(op->scratch);
    free(op->scratch2);
    free(op->staging);
    free(op->tile);
    bny_coded_free(op);
    free(op->decoded);
    free(op->stats);
    free(op->vcounts);
    memset(op, 0, sizeof *op);
}

struct bny_op *bny_op_take(struct banyan_comm *comm)
{
    struct bny_op *op = comm->pool;

    if (op) {
        comm->pool = op->next;
        return op;
    }
    op = calloc(1, sizeof *op);
    if (!op)
        bny_fail(BANYAN_ENOMEM, "no memory for an operation");
    return op;
}

void bny_op_give(struct bny_op *op)
{
    op->next = op->comm->pool;
    op->comm->pool = op;
}

int bny_op_is_done(struct bny_op *op)
{
    return atomic_load_explicit(&op->state, memory_order_acquire) == BNY_OP_DONE;
}

int bny_op_waits_on(const struct bny_op *op, int r)
{
    const struct bny_program *p = op->program;

    if (op->plan.path == BNY_PATH_STAGES)
        return bny_linear_child(op) && bny_op_waits_on(bny_linear_child(op), r);
    if (atomic_load_explicit(&op->state, memory_order_relaxed) == BNY_OP_CLOSING)
        return is_unsent_to(op, r);
    if (op->plan.path == BNY_PATH_ONESHOT)
        return bny_oneshot_waits_on(op, r);
    for (uint32_t i = 0; r != op->comm->rank && i < p->nsteps; i++)
        if (p->steps[i].peer == r && op->steps[i].done < op->steps[i].nchunks &&
            !op->steps[i].arrived)
            return 1;
    return 0;
}

int bny_op_waiting_for(const struct bny_op *op, char *buf, size_t cap)
{
    int first = -1, more = 0;

    for (int r = 0; r < op->comm->n; r++) {
        int waits = bny_op_waits_on(op, r);
        if (waits && first < 0)
            first = r;
        else
            more += waits;
    }
    if (first < 0)
        snprintf(buf, cap, "no rank");
    else if (more)
        snprintf(buf, cap, "rank %d and %d more", first, more);
    else
        snprintf(buf, cap, "rank %d", first);
    return first;
}
