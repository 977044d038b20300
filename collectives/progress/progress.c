/* SPDX-License-Identifier: BSD-3-Clause */
/* Progress: what has happened at the transports is handed to communicators, operations advance,
 * now and then deadlines and the control plane are looked at. */
#include "collectives/progress/progress.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "collectives/op/op_cookie.h"
#include "collectives/op/op.h"
#include "collectives/op/recorder.h"

#define WORD_NS       10000000000u /* of an operation, until a word on whom it waits for */
#define WORLD_IDLE_NS 1000000u     /* since the last tick: nobody waits in that world */
/* Messages that a rank sent before it left in order are here by then, or never come. */
#define LEFT_NS    2000000000u
#define LEFT_LOOKS 100

/* ---- events ---- */

static void progress_message(struct bny_world *w, struct bny_msg *msg)
{
    struct banyan_comm *c = w->last_comm;

    if (!c || c->id != msg->hdr.comm) {
        for (c = w->comms; c && c->id != msg->hdr.comm; c = c->next_comm)
            ;
        if (!c) {
            int peer = msg->ep->peer, rc = bny_orphans_keep(w, msg);
            if (rc)
                bny_report(w, NULL, BNY_CAUSE_RESET, (enum banyan_error) - rc,
                           rc == -BANYAN_EPROTO ? peer : w->rank, "rank %d: %s", w->rank,
                           banyan_last_error());
            return;
        }
        w->last_comm = c;
    }
    bny_comm_message(c, bny_rank_of(&c->ranks, msg->ep->peer), msg);
}

/* The first operation in flight that waits for the communicator's rank r; NULL: none. */
static const struct bny_op *who_waits(const struct banyan_comm *c, int r)
{
    const struct bny_op *op = c->active_first;

    while (op && !bny_op_waits_on(op, r))
        op = op->next;
    return op;
}

/* Does anything in flight here wait for the rank? */
static int is_missed(const struct bny_world *w, int peer)
{
    for (const struct banyan_comm *c = w->comms; c; c = c->next_comm) {
        int r = bny_rank_of(&c->ranks, peer);

        if (r >= 0 && who_waits(c, r))
            return 1;
    }
    return 0;
}

/* On this host a process that is gone without a farewell died. Over a network a connection can
 * also break because its peer, having heard of a failure, left with our bytes unread: then the
 * failure counts, and a true death is told by the control plane. The control plane may also
 * report that the peer left in order: the peer could not wait for ever until this connection
 * had its farewell. */
static void down(struct bny_world *w, struct bny_ep *ep, const char *reason)
{
    int sure = (ep->ops->caps & BNY_TP_LOCAL) || !w->control;
    char at[BNY_WHERE_TEXT] = "";

    if (bny_members_has(&w->members, ep->peer))
        w->members.of[ep->peer].is_down = 1;
    if (!sure)
        bny_control_hear(w->control); /* what it left for may be waiting there */
    if (!sure && bny_control_left(w->control, ep->peer) && !is_missed(w, ep->peer))
        return;
    bny_report(w, NULL, sure ? BNY_CAUSE_DEATH : BNY_CAUSE_LEFT, BANYAN_ERANKDEAD, ep->peer,
               "rank %d%s is gone (seen by rank %d over %s: %s)", ep->peer,
               w->control ? bny_control_where(w->control, ep->peer, at) : at, w->rank,
               ep->ops->name, reason ? reason : "connection lost");
}

void bny_world_event(struct bny_world *w, struct bny_event *ev)
{
    switch (ev->kind) {
    case BNY_EV_MSG: progress_message(w, ev->msg); break;
    case BNY_EV_SENT:
        if (ev->cookie)
            bny_cookie_sent(w, ev->cookie);
        break;
    case BNY_EV_DOWN: down(w, ev->ep, ev->reason); break;
    }
}

/* A whole transport that does not work any more: a rank that needs it would wait for ever. */
static void transport_failed(struct bny_world *w, int i, int rc)
{
    if (w->broken) /* it fails at every look */
        return;
    snprintf(w->broken_why, sizeof w->broken_why, "rank %d: transport %s failed: %s", w->rank,
             w->tps[i]->ops->name, bny_why(rc));
    w->broken = rc;
    bny_report(w, NULL, BNY_CAUSE_RESET, (enum banyan_error) - rc, w->rank, "%s",
               w->broken_why);
}

/* ---- progress ---- */

/* 1: it moved, and is looked at again. */
static int advance_op(struct bny_op *op)
{
    if (!bny_op_is_active(op)) {
        bny_op_complete(op, op->result);
        return 0;
    }
    if (!bny_op_advance(op))
        return 0;
    if (bny_op_is_active(op))
        bny_op_mark_runnable(op);
    return 1;
}

/* Operations that something happened to; those that become runnable again wait for the
 * next pass. */
static int advance_comm(struct banyan_comm *c)
{
    struct bny_link todo = { 0 };
    int moved = 0;

    bny_ring_move(&todo, &c->runnable);
    while (!bny_ring_is_empty(&todo)) {
        struct bny_op *op = BNY_LINK_OF(todo.next, struct bny_op, runnable);
        bny_link_out(&op->runnable);
        moved |= advance_op(op);
    }
    if (bny_match_is_busy(c->match))
        bny_comm_flush_control(c);
    return moved;
}

static int advance_ops(struct bny_world *w, int all)
{
    int moved = 0;

    if (!w->has_work && !all)
        return 0;
    w->has_work = 0;
    for (struct banyan_comm *c = w->comms; c; c = c->next_comm) {
        for (struct bny_op *op = all ? c->active_first : NULL; op; op = op->next)
            bny_op_mark_runnable(op);
        if (!bny_ring_is_empty(&c->runnable) || bny_match_is_busy(c->match))
            moved |= advance_comm(c);
        if (c->service)
            moved |= c->service->ops->advance(c);
    }
    return moved;
}

int bny_world_progress(struct bny_world *w)
{
    struct bny_event ev[16];
    int total = 0, drained = 0;

    BNY_ASSERT_LOCKED(w);
    for (int i = 0; i < w->ntps; i++) {
        int n = w->tps[i]->ops->poll(w->tps[i], ev, 16);
        for (int k = 0; k < n; k++)
            bny_world_event(w, &ev[k]);
        if (n < 0)
            transport_failed(w, i, n);
        total += n > 0 ? n : 0;
    }
    if (w->held.draining)
        drained = bny_buffered_drain(&w->held);
    total += drained + advance_ops(w, drained);
    if (w->has_local_failure)
        bny_failure_adopt(w);
    return total;
}

/* Where this rank is in the communicator, for the control plane, which was asked. */
static void publish(struct banyan_comm *c)
{
    const struct bny_op *op = c->active_first, *waits;
    int first = -1;

    while (op && (op->call.collective == BNY_SENDRECV || op->free_detached))
        op = op->next;
    waits = op ? op : c->active_first; /* a message, if nothing else */
    for (int r = 0; waits && first < 0 && r < c->n; r++)
        if (r != c->rank && bny_op_waits_on(waits, r))
            first = c->peers[r].world_rank;
    atomic_store(&c->position.active, op ? bny_op_seq(op) + 1 : 0);
    atomic_store(&c->position.waits, (uint32_t)(first + 1));
    atomic_store(&c->position.wanted, 0);
    atomic_store(&c->position.fresh, 1);
}

/* A set of the world's ranks, for the caller to free; NULL: no memory. */
static uint64_t *members_of(const struct banyan_comm *c)
{
    uint64_t *members = calloc(((size_t)c->world->nranks + 63) / 64, sizeof *members);

    for (int r = 0; members && r < c->n; r++)
        members[c->peers[r].world_rank / 64] |= (uint64_t)1 << (c->peers[r].world_rank % 64);
    return members;
}

static int has_members(const struct banyan_comm *c, const struct bny_op *op)
{
    return c->world->control && op->call.collective != BNY_SENDRECV; /* that has one peer */
}

static void overdue(struct bny_world *w, struct banyan_comm *c, struct bny_op *op)
{
    uint64_t *members = has_members(c, op) ? members_of(c) : NULL;
    char what[128], who[64];
    int first;

    bny_snprintf(what, sizeof what, "the deadline of %s (operation %u, %.3g s) passed",
                 bny_call_name(&op->call), bny_op_seq(op), (double)op->allowed_ns * 1e-9);
    if (members) { /* they find out together whom it waits for */
        bny_control_blame(w->control, c->id, bny_op_seq(op), members, what);
        free(members);
        return;
    }
    first = bny_op_waiting_for(op, who, sizeof who);
    bny_report(w, c, BNY_CAUSE_DEADLINE, BANYAN_ETIMEDOUT,
               first >= 0 ? c->peers[first].world_rank : -1, "%s; rank %d was waiting for %s",
               what, c->rank, who);
}

static int is_oldest_collective(const struct bny_op *op)
{
    const struct bny_op *first = op->comm->active_first;

    while (first && first->call.collective == BNY_SENDRECV)
        first = first->next;
    return first == op;
}

/* 1: its members have been asked whom it waits for. Younger operations wait for the same. */
static int ask_members(const struct banyan_comm *c, const struct bny_op *op)
{
    uint64_t *members = is_oldest_collective(op) ? members_of(c) : NULL;
    char what[128];
    int asked;

    if (!members)
        return 0;
    snprintf(what, sizeof what, "%s (operation %u of communicator %u) has not ended after 10 s",
             bny_call_name(&op->call), bny_op_seq(op), c->id);
    asked = bny_control_ask_where(c->world->control, c->id, bny_op_seq(op), members, what);
    free(members);
    return asked;
}

/* Long before its deadline, and once. A message that has not come may be no fault: a worker
 * waits for work. */
static void early_word(const struct banyan_comm *c, struct bny_op *op, uint64_t now)
{
    char who[64];

    if (!op->word_ns) {
        op->seen_ns = now;
        op->word_ns = now + WORD_NS;
    }
    if (now < op->word_ns || bny_comm_has_failed(c))
        return;
    if (has_members(c, op)) {
        if (ask_members(c, op))
            op->word_ns = UINT64_MAX;
        return;
    }
    op->word_ns = UINT64_MAX;
    bny_op_waiting_for(op, who, sizeof who);
    bny_info("rank %d: %s (operation %u of communicator %u) has waited for 10 s; it waits for "
             "%s",
             c->rank, bny_call_name(&op->call), bny_op_seq(op), c->id, who);
}

/* A rank that leaves in order is no failure until another rank waits for it: then all must
 * agree that it is gone. An operation may begin behind the end of its connection, or wait for
 * one that never was. */
static void miss_who_left(struct bny_world *w, const struct banyan_comm *c, uint64_t now)
{
    for (int r = 0; r < c->n; r++) {
        int peer = c->peers[r].world_rank;
        const struct bny_op *op = r == c->rank ? NULL : who_waits(c, r);
        struct bny_member *m;

        if (!op || !bny_members_has(&w->members, peer) || !bny_control_left(w->control, peer))
            continue;
        m = &w->members.of[peer];
        m->missed_ns = m->missed_ns ? m->missed_ns : now;
        m->looks++;
        if (m->is_down || (now - m->missed_ns >= LEFT_NS && m->looks >= LEFT_LOOKS))
            bny_report(w, NULL, BNY_CAUSE_LEFT, BANYAN_ERANKDEAD, peer,
                       "rank %d has left, and %s (operation %u) waits for it", peer,
                       bny_call_name(&op->call), bny_op_seq(op));
    }
}

/* 1: an operation is overdue, which is not told before what has come was looked at: a rank that
 * was stopped, or had no CPU, finds there what others sent in time. */
static int check_deadlines(struct bny_world *w, uint64_t now, int has_looked)
{
    int may_have_left =
        w->control && (bny_control_suspect(w->control) || bny_control_some_left(w->control));

    for (struct banyan_comm *c = w->comms; c; c = c->next_comm) {
        if (may_have_left && c->active_first && !bny_comm_has_failed(c))
            miss_who_left(w, c, now);
        if (atomic_load_explicit(&c->position.wanted, memory_order_relaxed))
            publish(c);
        if (c->service)
            c->service->ops->tick(c, now);
        for (struct bny_op *op = c->active_first; op; op = op->next) {
            double timeout = op->call.timeout_s < 0 ? c->op_timeout_s : op->call.timeout_s;

            bny_probe_if_due(op, now);
            early_word(c, op, now);
            if (!op->deadline_ns) {
                op->deadline_ns = bny_deadline_after(now, timeout);
                op->allowed_ns = op->deadline_ns - now;
            }
            if (!op->deadline_ns || now < op->deadline_ns || bny_comm_has_failed(c))
                continue;
            if (!has_looked)
                return 1;
            overdue(w, c, op);
            break;
        }
    }
    return 0;
}

void bny_world_tick(struct bny_world *w)
{
    uint64_t now = bny_now_ns();

    BNY_ASSERT_LOCKED(w);
    w->tick_ns = now;
    if (w->recorder)
        bny_recorder_tick(w);
    if (w->control && !bny_world_is_thread())
        bny_control_here(w->control);
    if (check_deadlines(w, now, 0)) {
        bny_world_look_once_more(w);
        check_deadlines(w, now, 1);
    }
    if (w->control && bny_control_progress(w->control) == 1)
        bny_failure_adopt(w);
    if (w->has_local_failure)
        bny_failure_adopt(w);
}

/* ---- worlds side by side ---- */

/* All worlds of this process that have joined, by ->next_world. */
static struct bny_world *worlds;

static void progress_in_child(struct bny_lock *l)
{
    worlds = NULL; /* the parent's are not ours */
}

static struct bny_lock worlds_lock = BNY_LOCK(progress_in_child);

void bny_worlds_add(struct bny_world *w)
{
    bny_lock_take(&worlds_lock);
    w->next_world = worlds;
    worlds = w;
    bny_lock_give(&worlds_lock);
}

void bny_worlds_remove(struct bny_world *w)
{
    bny_lock_take(&worlds_lock);
    for (struct bny_world **at = &worlds; *at; at = &(*at)->next_world)
        if (*at == w) {
            *at = w->next_world;
            break;
        }
    bny_lock_give(&worlds_lock);
}

void bny_worlds_each(void (*f)(struct bny_world *w))
{
    if (!bny_lock_try(&worlds_lock)) /* exit() in a callback */
        return;
    for (struct bny_world *w = worlds; w; w = w->next_world)
        if (bny_world_trylock(w)) {
            f(w);
            bny_world_unlock(w);
        }
    bny_lock_give(&worlds_lock);
}

/* Locks inside worlds_lock are only tried: a thread may want that one while it holds a world's.
 */
void bny_worlds_progress(const struct bny_world *except)
{
    uint64_t now = bny_now_ns();

    if (!bny_lock_try(&worlds_lock))
        return;
    for (struct bny_world *w = worlds; w; w = w->next_world) {
        if (w == except || !bny_world_trylock(w))
            continue;
        if (now > w->tick_ns &&
            now - w->tick_ns >= WORLD_IDLE_NS) { /* else somebody waits in it */
            bny_world_progress(w);
            bny_world_tick(w);
        }
        bny_world_unlock(w);
    }
    bny_lock_give(&worlds_lock);
}

int bny_world_poll(struct bny_world *w)
{
    int n, ticked;

    if (!bny_world_trylock(w))
        return 0;
    n = bny_world_progress(w);
    ticked = bny_now_ns() - w->tick_ns > 500000;
    if (ticked)
        bny_world_tick(w);
    bny_world_unlock(w);
    if (ticked)
        bny_worlds_progress(w);
    bny_completed_call();
    return n;
}
