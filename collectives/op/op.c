/* SPDX-License-Identifier: BSD-3-Clause */
/* Life of an operation: planned, started, completed. */
#include "collectives/op/op.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "collectives/op/op_cookie.h"
#include "collectives/op/recorder.h"
#include "collectives/plan/cost.h"

/* ---- init ---- */

/* Of a participation set, in 16 bits: the set itself up to 15 ranks; 0: none. */
static uint64_t set_sign(const struct bny_call *c, int n)
{
    uint64_t x = c->set_key[0];

    if (!c->has_set)
        return 0;
    if (n > 15) {
        x = (x ^ c->set_key[1]) * 0x9e3779b97f4a7c15u;
        x ^= x >> 32;
        x ^= x >> 16;
    }
    return (x & 0x7fff) | 0x8000;
}

/* Of a v-variant: its counts, where all ranks know them all (their sum, and a sign of them);
 * else 0. */
static uint64_t counts_sign(const struct bny_call *c, int n)
{
    const size_t *counts = c->collective == BNY_ALLGATHER        ? c->rcounts
                           : c->collective == BNY_REDUCE_SCATTER ? c->scounts
                                                                 : NULL;
    uint64_t sum = 0, x = 0;

    if (!counts)
        return 0;
    for (int r = 0; r < n; r++) {
        sum += counts[r];
        x = (x ^ counts[r]) * 0x9e3779b97f4a7c15u;
        x ^= x >> 32;
    }
    return (x | 0x8000) << 48 | (sum & BNY_SIG_COUNT_BITS);
}

static void make_sig(struct bny_op *op)
{
    const struct bny_call *c = &op->call;

    memset(&op->sig, 0, sizeof op->sig);
    op->sig.collective = c->collective;
    op->sig.dtype = (uint8_t)c->dtype;
    op->sig.op = c->redop.wire;
    op->sig.codec_sched = op->plan.hash;
    op->sig.count = c->vector                      ? counts_sign(c, op->comm->n)
                    : c->collective == BNY_BARRIER ? 0
                                                   : c->count;
    op->sig.count |= set_sign(c, op->comm->n) << 48;
    op->sig.root_tag = c->collective == BNY_SENDRECV ? c->tag
                                                     : (uint32_t)(c->root < 0 ? 0 : c->root) ^
                                                           (c->tag << 16 | c->tag >> 16);
}

static void tell_refused(const struct bny_op *op)
{
    const struct bny_scope *s = &op->comm->scope;
    char why[160];

    bny_codec_figures(why, sizeof why, op->plan.refused_s, op->plan.predicted_s,
                      1 / bny_cost_model_of(s).beta);
    bny_codec_unused(op->comm, &op->call,
                     s->shares_memory ? "ranks share memory, which is faster than any codec"
                                      : why,
                     BNY_CODEC_INSISTS);
}

int bny_op_init(struct bny_op *op, struct banyan_comm *comm, const struct bny_call *call)
{
    size_t quantum;
    int rc;

    BNY_ASSERT_LOCKED(comm->world);
    if (op->planned && op->comm == comm && !call->vector &&
        (op->is_for_call || bny_call_same(&op->call, call))) {
        int same_tag = op->call.tag == call->tag;
        op->is_for_call = 0;
        if (!same_tag)
            bny_record_run_end(op);
        memcpy((char *)&op->call + BNY_CALL_KEY_BYTES, (const char *)call + BNY_CALL_KEY_BYTES,
               sizeof *call - BNY_CALL_KEY_BYTES);
        if (!same_tag)
            make_sig(op);
        return 0;
    }
    op->planned = op->is_for_call = 0;
    bny_record_run_end(op);
    op->record = 0;
    bny_plan_drop(&op->plan);
    op->comm = comm;
    op->call = *call;
    op->esz = banyan_dtype_bytes(call->dtype);
    op->is_any_source = 0;
    if (call->collective == BNY_SENDRECV && call->root == BANYAN_ANY_SOURCE) {
        bny_any_source_init(op);
        return 0;
    }
    rc = bny_plan_get(&comm->scope, call, &op->plan);
    if (rc)
        return rc;
    if (op->plan.refused_s > 0)
        tell_refused(op);
    if (op->plan.breaks_budget && (rc = bny_budget_unkept(comm, call)) != 0)
        return rc;
    if (op->plan.is_substitute)
        bny_schedule_unused(comm, call);
    op->ways = comm->scope.ways;
    op->way = op->ways[op->plan.way];
    op->traits = op->way->traits;
    make_sig(op);
    if (!op->asked) {
        op->asked = calloc((size_t)comm->n, sizeof *op->asked);
        if (!op->asked)
            return bny_fail(BANYAN_ENOMEM, "no memory for an operation");
    }
    quantum = bny_redop_quantum(&call->redop);
    op->chunk_elems = (op->plan.late_s > 0 ? op->plan.arrival_chunk : op->plan.chunk_bytes) /
                      op->esz / quantum * quantum;
    if (op->chunk_elems == 0)
        op->chunk_elems = quantum;
    op->numbers = 0;
    rc = op->way->init ? op->way->init(op) : 0;
    op->planned = rc == 0;
    return rc;
}

/* Only written under the lock: no locked instruction, which would wait for all stores before
 * it. */
static void count_done(struct banyan_comm *c)
{
    atomic_store_explicit(&c->ops_done,
                          atomic_load_explicit(&c->ops_done, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

/* ---- start ---- */

static void link_active(struct bny_op *op)
{
    struct banyan_comm *c = op->comm;

    op->next = NULL;
    op->prev = c->active_last;
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

    *(op->prev ? &op->prev->next : &c->active_first) = op->next;
    *(op->next ? &op->next->prev : &c->active_last) = op->prev;
    bny_link_out(&op->runnable);
}

void bny_op_take_early(struct bny_op *op)
{
    struct banyan_comm *c = op->comm;
    struct bny_msg_list early = bny_match_take(c->match, &op->match);
    struct bny_msg *msg;

    while ((msg = bny_msg_list_pop_front(&early)))
        bny_comm_message(c, msg->ep ? bny_rank_of(&c->ranks, msg->ep->peer) : c->rank, msg);
}

/* For others that ask where we are. Numbers go round. */
static void note_begun(const struct bny_op *op)
{
    struct bny_position *p = &op->comm->position;
    uint32_t next = bny_op_seq(op) + 1;

    if (op->call.collective != BNY_SENDRECV &&
        (int32_t)(next - atomic_load_explicit(&p->started, memory_order_relaxed)) > 0)
        atomic_store_explicit(&p->started, next, memory_order_relaxed);
}

/* It has its number. */
static int op_begin(struct bny_op *op)
{
    struct banyan_comm *c = op->comm;
    int rc = 0;

    note_begun(op);
    bny_record_begin(op);
    op->in = op->call.sendbuf;
    op->out = op->call.recvbuf;
    op->out_kind = &bny_mem_host;
    if (bny_op_is_staged(op))
        rc = bny_op_stage(op);
    if (rc == 0)
        rc = op->way->start(op);
    if (rc) { /* others wait for us in vain: tell them why */
        bny_match_close(c->match, &op->match, 0);
        c->begin_failed = 1;
        bny_report(c->world, c, BNY_CAUSE_RESET, (enum banyan_error) - rc, c->world->rank,
                   "rank %d: %s", c->rank, bny_why(rc));
        return rc;
    }
    link_active(op);
    if (bny_match_has_early(c->match) && op->match.is_open)
        bny_op_take_early(op);
    if (bny_op_is_active(op)) {
        bny_link_out(&op->runnable);
        if (bny_op_advance(op) && bny_op_is_active(op))
            bny_op_mark_runnable(op);
    }
    if (bny_match_is_busy(c->match))
        bny_comm_flush_control(c);
    if (c->world->progress_fd >= 0 && bny_op_is_active(op))
        bny_world_due(c->world);
    return 0;
}

static int may_start(struct bny_op *op)
{
    struct banyan_comm *c = op->comm;
    int rc = bny_comm_error(c);

    BNY_ASSERT_LOCKED(c->world);
    BNY_ASSERT(op->planned && !op->match.is_open);
    if (rc == 0 && op->plan.codec && op->call.state && op->call.state->busy &&
        op->call.is_child != BNY_CHILD_CODED)
        rc = bny_fail(BANYAN_EBUSY,
                      "codec_state: another operation uses it; wait for that one first");
    if (rc)
        return rc;
    op->result = 0;
    op->word_ns = 0;
    op->deadline_ns = 0; /* set at the first tick: reading the clock costs more than a small
                            operation may */
    op->probe_ns = 0;
    op->wire_bytes = 0;
    op->start_ns = op->is_timed ? bny_now_ns() : 0;
    op->end_ns = 0;
    op->cookies = NULL;
    if (op->has_asked)
        memset(op->asked, 0, (size_t)c->n * sizeof *op->asked);
    op->has_asked = op->is_used = 0;
    return 0;
}

int bny_op_start(struct bny_op *op)
{
    const struct bny_call *call = &op->call;
    int rc;

    if (op->is_any_source)
        bny_any_source_init(op);
    rc = may_start(op);
    if (rc)
        return rc;
    op->parent = NULL;
    if (call->collective != BNY_SENDRECV)
        rc = bny_match_open(op->comm->match, &op->match, &op->sig, op->numbers);
    else if (!op->is_any_source)
        rc = bny_match_open_p2p(op->comm->match, &op->match, call->root, call->tag,
                                call->is_send, call->count * op->esz);
    if (op->comm->any_sources) /* the message behind this one's may be theirs */
        bny_any_source_wake(op->comm);
    return rc ? rc : op_begin(op);
}

int bny_op_start_child(struct bny_op *op, struct bny_op *parent, uint32_t seq)
{
    int rc = may_start(op);

    if (rc)
        return rc;
    op->parent = parent;
    bny_match_open_kept(op->comm->match, &op->match, &op->sig, seq);
    return op_begin(op);
}

void bny_op_end_unstarted(struct bny_op *op, int result)
{
    op->result = result;
    atomic_store_explicit(&op->state, BNY_OP_DONE, memory_order_relaxed);
}

void bny_op_done_inline(struct bny_op *op)
{
    bny_op_end_unstarted(op, 0);
    bny_record_at_once(op);
    count_done(op->comm);
}

/* Early messages and announcements are left to operations that begin as usual. */
int bny_op_try(struct bny_op *op, int tries)
{
    struct banyan_comm *c = op->comm;
    int rc;

    BNY_ASSERT_LOCKED(c->world);
    if (!op->way->try_now || c->active_first || bny_comm_has_failed(c) || op->is_timed ||
        op->call.contributors || bny_op_is_staged(op) || bny_match_has_early(c->match) ||
        bny_match_is_busy(c->match) || c->world->trace)
        return 0;
    op->in = op->call.sendbuf;
    op->out = op->call.recvbuf;
    rc = op->way->try_now(op, bny_match_number(c->match), tries);
    if (rc != 1)
        return rc;
    if (op->call.collective != BNY_SENDRECV) {
        note_begun(op);
        bny_match_pass(c->match, &op->sig);
    }
    bny_op_done_inline(op);
    return 1;
}

/* ---- completion ---- */

/* Does a message for rank r of a collective still need our progress? A rank that waits for it
 * would wait until this rank happens to call the library again, which may be never. So the
 * operation is not complete before. Its receiver takes part and reads, so this ends. The
 * receiver of a point-to-point message need not have called yet, so that one does not wait: a
 * small send may return before the receiver calls. */
static int is_unsent_to(const struct bny_op *op, int r)
{
    const struct bny_ep *ep = op->comm->peers[r].ep;

    return ep && ep->unsent && op->call.collective != BNY_SENDRECV &&
           (op->way->pending(op, r) & BNY_PENDING_SENDS);
}

static int is_unsent(const struct bny_op *op)
{
    const struct bny_world *w = op->comm->world;
    uint64_t any = 0;

    if (!(op->traits & BNY_WAY_SENDS))
        return 0;
    for (int i = 0; i < w->ntps; i++)
        any |= w->tps[i]->unsent;
    for (int r = 0; any && r < op->comm->n; r++)
        if (is_unsent_to(op, r))
            return 1;
    return 0;
}

/* A child is over: its parent goes on, or, when it waited for that to end, ends. */
static void tell_parent(struct bny_op *parent)
{
    bny_op_mark_runnable(parent);
    if (atomic_load_explicit(&parent->state, memory_order_relaxed) == BNY_OP_CLOSING)
        bny_op_complete(parent, parent->result);
}

void bny_op_set_done(struct bny_op *op)
{
    atomic_store_explicit(&op->state, op->on_done ? BNY_OP_ENDED : BNY_OP_DONE,
                          memory_order_release);
    if (op->on_done)
        bny_completed_add(op);
}

void bny_op_complete(struct bny_op *op, int result)
{
    struct banyan_comm *c = op->comm;

    BNY_ASSERT_LOCKED(c->world);
    if (result && op->result == 0)
        op->result = result;
    atomic_store_explicit(&op->state, BNY_OP_CLOSING, memory_order_relaxed);
    if (op->way->end && op->way->end(op, op->result) == BNY_AGAIN)
        return;
    if (op->result == 0 && is_unsent(op)) {
        bny_op_mark_runnable(op);
        return;
    }
    if (op->result == 0 && bny_op_is_staged(op) && bny_op_unstage(op) != 0) {
        op->result = -BANYAN_ESYSTEM;
        bny_report(c->world, c, BNY_CAUSE_RESET, BANYAN_ESYSTEM, c->world->rank, "rank %d: %s",
                   c->rank, banyan_last_error());
    }
    if (op->result == 0 && op->call.contributors && !(op->traits & BNY_WAY_LATE))
        for (int r = 0; r < c->n; r++) /* nobody was late */
            op->call.contributors[r] = (uint8_t)bny_call_takes_part(&op->call, r);
    unlink_active(op);
    if (op->numbers)
        bny_match_give_up(c->match, bny_op_seq(op) + 1, op->numbers);
    bny_match_close(c->match, &op->match, op->result == 0);
    if (op->parent)
        op->parent->wire_bytes += op->wire_bytes;
    else if (!op->free_detached)
        count_done(c);
    if (op->deadline_ns && !op->parent && op->result == 0 && !c->world->told_slow)
        bny_slow_look(op);
    bny_record_end(op);
    if (op->is_timed)
        op->end_ns = bny_now_ns();
    bny_op_set_done(op);
    if (op->parent)
        tell_parent(op->parent);
    else if (op->free_detached)
        op->free_detached(op);
}

void bny_op_finish(struct bny_op *op)
{
    if (op->comm) { /* devices may know its memory, others may hold its program */
        BNY_ASSERT_LOCKED(op->comm->world);
        bny_record_run_end(op);
    }
    for (int k = 0; k < BNY_WAY_COUNT; k++)
        if (op->of_way[k])
            op->ways[k]->free(op);
    free(op->asked);
    free(op->staging);
    free(op->foreign);
    free(op->vcounts);
    free(op->present);
    bny_plan_drop(&op->plan);
    memset(op, 0, sizeof *op);
}

void bny_op_finish_orphan(struct bny_op *op)
{
    op->comm = NULL;
    bny_op_finish(op);
}

#define POOL_LOOKS 4
#define POOL_BYTES (64u << 10) /* longer calls are not worth memory of their own */

/* Calls are often made by turns, a send and a recv, an allreduce and a barrier: each finds its
 * operation again, with its plan and tables. */
struct bny_op *bny_op_take(struct banyan_comm *comm, const struct bny_call *call)
{
    struct bny_op **at = NULL, *op;
    int seen = 0, same = 0;

    for (struct bny_op **i = &comm->pool; *i && seen < POOL_LOOKS && !same; seen++) {
        at = i; /* of those seen: the one that was not used for longest */
        same = (*i)->planned && bny_call_same(&(*i)->call, call);
        i = &(*i)->next;
    }
    op = at ? *at : NULL;
    if (!op || (!same && seen < POOL_LOOKS &&
                call->count <= POOL_BYTES / banyan_dtype_bytes(call->dtype))) {
        op = calloc(1, sizeof *op);
        if (!op)
            bny_fail(BANYAN_ENOMEM, "no memory for an operation");
        return op;
    }
    op->is_for_call = same;
    *at = op->next;
    return op;
}

void bny_op_give(struct bny_op *op)
{
    atomic_store_explicit(&op->state, BNY_OP_IDLE, memory_order_relaxed);
    op->next = op->comm->pool;
    op->comm->pool = op;
}

/* ---- the ranks that it waits for ---- */

int bny_op_waits_on(const struct bny_op *op, int r)
{
    if (atomic_load_explicit(&op->state, memory_order_relaxed) == BNY_OP_CLOSING &&
        (op->traits & BNY_WAY_SENDS))
        return is_unsent_to(op, r);
    return (op->way->pending(op, r) & BNY_PENDING_WAITS) != 0;
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
        snprintf(buf, cap, op->is_any_source ? "a message from any rank" : "no rank");
    else if (more)
        snprintf(buf, cap, "rank %d and %d more", first, more);
    else
        snprintf(buf, cap, "rank %d", first);
    return first;
}
