/* SPDX-License-Identifier: BSD-3-Clause */
/* Where an arrival reduction begins and ends: memory, the coordinator's answers, completion. */
#include "collectives/arrival/arrival.h"
#include "collectives/arrival/arrival_choice.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/arrival/lateness.h"
#include "collectives/plan/arrival_tree.h"

/* ---- messages of coordinators ---- */

void bny_arrival_wrong(struct bny_op *op, int from, const char *what)
{
    struct banyan_comm *c = op->comm;

    bny_report(c->world, c, BNY_CAUSE_RESET, BANYAN_EPROTO, c->peers[from].world_rank,
               "rank %d: %s (operation %u): of rank %d: %s", c->rank, bny_call_name(&op->call),
               bny_op_seq(op), from, what);
}

void bny_coord_outbox_add(struct bny_op *op, struct bny_coord_outbox *box, int to, uint32_t seq,
                          const struct bny_coord_msg *msg)
{
    if (box->n == box->cap) {
        size_t cap = box->cap ? 2 * box->cap : 8;
        struct bny_coord_posted *more = realloc(box->at, cap * sizeof *more);

        if (!more) {
            bny_op_send_failed(op, -1, bny_fail(BANYAN_ENOMEM, "no memory for a message"), "");
            return;
        }
        box->at = more;
        box->cap = cap;
    }
    box->at[box->n++] = (struct bny_coord_posted){ .to = to, .seq = seq, .msg = *msg };
    /* A coordinator adds messages before it begins: its first advance() sends them. */
    if (atomic_load_explicit(&op->state, memory_order_relaxed) != BNY_OP_IDLE)
        bny_op_mark_runnable(op);
}

/* Does the message name a parent that has not been sent its own slot yet? Sums that reach the
 * parent before its slot only delay that: the message may need a new connection, which then
 * queues behind the sums. */
static int needs_slot_first(const struct bny_coord_posted *p,
                            const struct bny_coord_outbox *box, size_t kept)
{
    for (size_t i = 0; p->msg.kind == BNY_COORD_PARENT && i < kept; i++)
        if (box->at[i].to == p->msg.rank &&
            (box->at[i].msg.kind & ~BNY_COORD_WAS_LATE) == BNY_COORD_SLOT)
            return 1;
    return 0;
}

int bny_coord_outbox_flush(struct bny_op *op, struct bny_coord_outbox *box)
{
    size_t kept = 0, before = box->n;
    struct bny_hdr h;

    for (size_t i = 0; i < before; i++) {
        struct bny_coord_posted *p = &box->at[i];
        struct bny_ep *ep = op->comm->peers[p->to].ep;
        int rc;

        if (needs_slot_first(p, box, kept)) {
            box->at[kept++] = *p;
            continue;
        }
        if (p->to == op->comm->rank) {
            bny_coordinator_deliver_own(op, &p->msg);
            continue;
        }
        bny_op_header(op, &h, p->msg.kind <= BNY_COORD_VOTE ? BNY_MSG_ARRIVE : BNY_MSG_DATA);
        h.seq = p->seq;
        h.step = BNY_ARRIVAL_COORD;
        h.chan = 1; /* it does not queue behind this rank's sums */
        h.len = h.codec_len_raw = sizeof p->msg;
        rc = ep->ops->eager(ep, &h, &p->msg);
        if (rc == BNY_AGAIN)
            box->at[kept++] = *p;
        else if (rc < 0)
            bny_op_send_failed(op, p->to, rc, "");
    }
    box->n = kept;
    if (kept)
        bny_op_mark_runnable(op);
    return kept != before;
}

int bny_coord_msg_read(const struct bny_msg *msg, struct bny_coord_msg *out)
{
    if (msg->hdr.step != BNY_ARRIVAL_COORD || msg->hdr.len != sizeof *out || !msg->data)
        return 0;
    memcpy(out, msg->data, sizeof *out);
    return 1;
}

/* ---- a slot ---- */

/* below: the slots of this one's subtree, itself included. */
static int children_of(const struct bny_coord_msg *w, int *parent, int *children, int *below)
{
    int *parents = malloc((size_t)w->slots * sizeof *parents);

    if (!parents)
        return bny_fail(BANYAN_ENOMEM, "no memory for %d slots", w->slots);
    bny_arrival_tree_parents(w->slots, w->depth, parents);
    *parent = parents[w->slot];
    *children = 0;
    for (int s = 0; s < w->slots; s++)
        *children += parents[s] == w->slot;
    *below = bny_arrival_tree_below(w->slots, parents, w->slot);
    free(parents);
    return 0;
}

static int make_children(struct bny_arrival *a, int n)
{
    size_t nfeeds =
        n ? (size_t)n : 1; /* the first slot of a chain has no child, and one feed */

    if (nfeeds > a->children_cap) {
        struct bny_source *more = realloc(a->children, nfeeds * sizeof *more);
        struct bny_feed *feeds = realloc(a->feeds, nfeeds * sizeof *feeds);

        a->children = more ? more : a->children;
        a->feeds = feeds ? feeds : a->feeds;
        if (!more || !feeds)
            return bny_fail(BANYAN_ENOMEM, "no memory for %d children", n);
        memset(more + a->children_cap, 0, (nfeeds - a->children_cap) * sizeof *more);
        a->children_cap = nfeeds;
    }
    for (int i = 0; i < n; i++) {
        struct bny_source *s = &a->children[i];

        s->seen = s->seen ? s->seen : malloc((size_t)a->nchunks + 1);
        if (!s->seen)
            return bny_fail(BANYAN_ENOMEM, "no memory for a child's chunks");
        memset(s->seen, 0, a->nchunks);
        s->rank = -1;
        s->left = a->nchunks;
        s->view_off = s->has_set = 0;
    }
    return 0;
}

/* 0 or an error. */
static int take_slot(struct bny_op *op, const struct bny_coord_msg *w)
{
    struct bny_arrival *a = bny_arrival_of(op);
    int me = op->comm->rank, wants = bny_arrival_wants_result(op), parent = 0, below = 1, rc;

    rc = children_of(w, &parent, &a->nchildren, &below);
    if (rc == 0 && (parent == BNY_SHAPE_TOP) != (w->rank == BNY_NO_PARENT))
        rc = bny_fail(BANYAN_EPROTO, "rank %d got a slot that has another parent", me);
    if (rc == 0)
        rc = make_children(a, a->nchildren);
    if (rc == 0 && !wants && a->nchildren)
        rc = bny_grow(&a->scratch, &a->scratch_cap, op->call.count * op->esz + 64, 1,
                      "a partial sum");
    if (rc)
        return rc;
    a->acc = wants ? op->out : a->scratch;
    a->slot = w->slot;
    a->slots = w->slots;
    if (parent == BNY_SHAPE_TOP && (a->parent >= 0 || !wants))
        return bny_fail(BANYAN_EPROTO, "rank %d cannot be the top", me);
    if (a->parent < 0)
        a->parent = parent == BNY_SHAPE_TOP ? BNY_NO_PARENT : w->rank;
    a->has_slot = 1;
    /* The result of a chain goes round. If it came back the same way, the last rank but one
     * would send the sum up and the result down, each of full length, at the same time. */
    a->is_chain = w->depth == 0;
    a->is_last =
        (uint8_t)bny_arrival_is_last(&op->call, op->comm->n, w->slot, w->slots, w->depth);
    a->feeds_due = op->call.collective != BNY_ALLREDUCE ? 0
                   : !a->is_chain                       ? a->nchildren
                                  : w->slots > 1 && w->slot != w->slots - 2;
    a->set[me / 64] |= 1ull << me % 64;
    rc = bny_arrival_coded_takes_part(op, below);
    if (rc)
        return rc;
    for (uint32_t c = 0; a->nchildren == 0 && c < a->nchunks; c++)
        bny_stream_added(op, c);
    return 0;
}

static int is_slot(const struct bny_op *op, const struct bny_coord_msg *w)
{
    int n = op->comm->n;

    return (w->slots == bny_arrival_slots(&op->call, n) || w->slots == n) && w->slot >= 0 &&
           w->slot < w->slots && w->depth >= BNY_SHAPE_STAR &&
           w->depth <= bny_arrival_tree_depth_max(w->slots) && w->rank >= BNY_NO_PARENT &&
           w->rank < n && w->rank != op->comm->rank;
}

static void take_early(struct bny_op *op)
{
    struct bny_arrival *a = bny_arrival_of(op);
    struct bny_msg_list early = bny_msg_list_take(&a->early);
    struct bny_msg *msg;

    while ((msg = bny_msg_list_pop_front(&early)))
        bny_stream_message(op, bny_rank_of(&op->comm->ranks, msg->ep->peer), msg);
}

/* Wakes calls that wait to know how they run. */
static void wake_others(struct bny_op *op)
{
    for (struct bny_op *o = op->comm->active_first; o; o = o->next)
        if (o->plan.late_s > 0 && bny_op_is_active(o) && !bny_arrival_of(o)->begun)
            bny_op_mark_runnable(o);
}

/* Records whether a rank was late for this sum; all ranks record the same. */
static void arrival_settle(struct bny_op *op, int was_late)
{
    bny_arrival_of(op)->is_settled = 1;
    bny_lateness_settle(&op->comm->lateness, bny_arrival_of(op)->number, was_late);
    wake_others(op);
}

/* For statistics. Only written under the lock. */
static void arrival_count(atomic_uint_fast64_t *n)
{
    atomic_store_explicit(n, atomic_load_explicit(n, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

/* Acts on the coordinator's answer that names the next rank of the line. */
static void take_next(struct bny_op *op)
{
    struct bny_arrival *a = bny_arrival_of(op);
    int rc = 0;

    if (!a->is_last)
        bny_arrival_wrong(op, a->server,
                          "it sent an answer that is for the last rank of a line");
    else if (a->next != BNY_NEXT_NONE)
        rc = bny_coordinator_feed(op, a->next);
    a->is_last = a->next_is_due = 0;
    if (rc)
        bny_op_send_failed(op, -1, rc, "");
}

static int is_other(const struct bny_op *op, int r)
{
    return r >= 0 && r < op->comm->n && r != op->comm->rank;
}

void bny_arrival_answer(struct bny_op *op, int from, const struct bny_coord_msg *w)
{
    struct bny_arrival *a = bny_arrival_of(op);
    int n = op->comm->n, is_new = !a->has_slot && !a->late && !a->together;
    int is_coordinator =
        a->server < 0 ? from == 0 || (from == 1 && n >= BNY_COORDINATORS) : from == a->server;
    uint32_t kind = op->plan.late_s > 0 ? w->kind & ~(uint32_t)BNY_COORD_WAS_LATE : w->kind;

    bny_op_mark_runnable(op);
    if (is_coordinator && is_new && a->begun && kind == BNY_COORD_SLOT && is_slot(op, w)) {
        int rc = take_slot(op, w);
        if (rc)
            bny_op_send_failed(op, -1, rc, "");
        a->server = from;
        if (op->plan.late_s > 0) {
            arrival_count(&op->comm->sums_by_arrival);
            arrival_settle(op, w->kind != kind);
        }
    } else if (is_coordinator && is_new && kind == BNY_COORD_LATE &&
               bny_arrival_slots(&op->call, n) < n &&
               (op->call.collective == BNY_REDUCE || is_other(op, w->rank))) {
        int rc = bny_arrival_coded_is_late(op);
        if (rc)
            bny_op_send_failed(op, -1, rc, "");
        a->late = 1;
        a->is_last = op->call.collective == BNY_ALLREDUCE;
        a->late_from = w->rank;
        a->server = from;
    } else if (is_coordinator && (is_new || (a->asks && !a->is_settled)) && a->begun &&
               kind == BNY_COORD_TOGETHER) {
        a->together = 1;
        a->server = from;
        if (op->plan.late_s > 0)
            arrival_settle(op, w->kind != kind);
    } else if (is_coordinator && kind == BNY_COORD_PARENT && !a->late && !a->together &&
               a->parent == BNY_NO_PARENT_YET && w->rank >= 0 && w->rank < n &&
               w->rank != op->comm->rank) {
        a->parent = w->rank; /* messages may overtake each other: this one its slot */
        a->server = from;
    } else if (is_coordinator && !a->together && a->next == BNY_NEXT_UNKNOWN &&
               a->is_last != is_new &&
               (kind == BNY_COORD_LINE_ENDS ||
                (kind == BNY_COORD_FEED && is_other(op, w->rank)))) {
        a->next = kind == BNY_COORD_FEED ? w->rank : BNY_NEXT_NONE;
        a->next_is_due = 1; /* it may overtake the slot, too */
        a->server = from;
    } else {
        bny_arrival_wrong(op, from, "it sent an answer that is not valid in this state");
        return;
    }
    if (a->has_slot || a->late)
        take_early(op);
    if (a->next_is_due && (a->has_slot || a->late))
        take_next(op);
}

/* ---- life ---- */

static int make_marks(struct bny_op *op)
{
    struct bny_arrival *a = bny_arrival_of(op);
    size_t n = a->nchunks;
    int rc = bny_grow(&a->marks, &a->marks_cap, 5 * n + 8, 1, "an operation's chunks");

    if (rc == 0)
        rc = bny_grow(&a->set, &a->set_cap, 2 * bny_arrival_set_bytes(op), 1, "two sets");
    a->added = (uint16_t *)(void *)a->marks;
    a->is_freed = a->marks + 2 * n;
    a->have = a->marks + 3 * n;
    a->result.seen = a->marks + 4 * n;
    return rc ? rc : bny_arrival_coded_init(op);
}

static int arrival_init(struct bny_op *op)
{
    struct bny_arrival *a = bny_arrival_of(op);

    if (!a)
        a = op->of_way[BNY_WAY_ARRIVAL] = calloc(1, sizeof *a);
    if (!a)
        return bny_fail(BANYAN_ENOMEM, "no memory for an operation");
    for (size_t i = 0; i < a->children_cap; i++) /* their lengths are another plan's */
        bny_source_free(&a->children[i]);
    a->nchunks = bny_arrival_chunks(op);
    op->numbers = 2; /* the coordinator's, and the child's */
    return make_marks(op);
}

static void arrival_free(struct bny_op *op)
{
    struct bny_arrival *a = bny_arrival_of(op);

    if (bny_is_coordinator(op)) {
        bny_coordinator_free(op);
        return;
    }
    for (size_t i = 0; i < a->children_cap; i++)
        bny_source_free(&a->children[i]);
    free(a->children);
    free(a->feeds);
    free(a->out.at);
    free(a->marks);
    free(a->set);
    free(a->scratch);
    bny_arrival_coded_free(&a->coded);
    free(a->result.tile);
    bny_child_free(&a->child, op);
    free(a);
    op->of_way[BNY_WAY_ARRIVAL] = NULL;
}

static int arrival_start(struct bny_op *op)
{
    struct bny_arrival *a = bny_arrival_of(op);

    if (bny_is_coordinator(op))
        return 0;
    memset(a->marks, 0, 5 * (size_t)a->nchunks);
    memset(a->set, 0, 2 * bny_arrival_set_bytes(op));
    a->begun = a->has_slot = a->late = a->is_reported = 0;
    a->child.runs = 0;
    a->together = a->asks = a->is_last = a->next_is_due = 0;
    a->next = BNY_NEXT_UNKNOWN;
    a->is_settled = op->plan.late_s <= 0;
    if (!a->is_settled)
        a->number = op->comm->lateness.begun++;
    a->up_set_sent = a->has_result_set = 0;
    a->server = -1;
    a->parent = BNY_NO_PARENT_YET;
    a->nchildren = a->nknown = a->nfeeds = a->feeds_due = a->nsets = 0;
    a->up_next = a->up_freed = a->nhave = 0;
    a->result.rank = -1;
    a->result.left = a->nchunks;
    a->result.view_off = a->result.has_set = 0;
    a->acc = op->out;
    a->out.n = 0;
    bny_arrival_coded_start(op);
    return 0;
}

/* Not in start(): the coordinator may answer at once, and the operation has to be active by
 * then. */
static void announce_arrival(struct bny_op *op)
{
    struct bny_arrival *a = bny_arrival_of(op);
    static const struct bny_coord_msg here = { .kind = BNY_COORD_ARRIVED };
    int n = op->comm->n, me = op->comm->rank,
        coordinators = n < BNY_COORDINATORS ? 1 : BNY_COORDINATORS, rc = 0;

    a->begun = 1;
    for (int r = 0; r < (coordinators < 2 ? 1 : 2); r++)
        if (r != me)
            bny_coord_outbox_add(op, &a->out, r, bny_op_seq(op) + 1, &here);
    if (me < coordinators)
        rc = bny_coordinator_open(op);
    if (rc)
        bny_op_send_failed(op, -1, rc, "");
}

/* Returns 1 if it has begun. */
static int arrival_begin(struct bny_op *op)
{
    struct bny_arrival *a = bny_arrival_of(op);
    enum bny_lateness_how how = op->plan.late_s > 0
                                    ? bny_lateness_of(&op->comm->lateness, a->number)
                                    : BNY_LATENESS_ARRIVAL;

    if (how == BNY_LATENESS_UNKNOWN)
        return 0;
    if (op->plan.late_s > 0 && how != BNY_LATENESS_STATIC)
        arrival_count(&op->comm->sums_asked);
    a->together = how != BNY_LATENESS_ARRIVAL;
    a->asks = how == BNY_LATENESS_ASKS;
    if (how == BNY_LATENESS_STATIC) {
        a->begun = 1;
        arrival_settle(op, 0);
    } else {
        announce_arrival(op);
    }
    return 1;
}

static void set_contributors(const struct bny_op *op)
{
    const struct bny_arrival *a = bny_arrival_of(op);
    int me = op->comm->rank, n = op->comm->n;

    if (!op->call.contributors)
        return;
    memset(op->call.contributors, 0, (size_t)n);
    op->call.contributors[me] = a->has_slot;
    if (a->together)
        memset(op->call.contributors, 1, (size_t)n);
    if (a->together)
        return;
    for (int r = 0; bny_arrival_wants_result(op) && r < n; r++)
        op->call.contributors[r] = a->set[r / 64] >> r % 64 & 1;
}

/* 0 or an error. */
static int start_child(struct bny_op *op)
{
    struct bny_arrival *a = bny_arrival_of(op);
    struct bny_call call = op->call;
    int rc;

    call.sendbuf = op->in;
    call.recvbuf = op->out;
    call.contributors = NULL;
    call.first = 0; /* all inputs count */
    bny_call_set_schedule(&call, "static");
    rc = bny_child_init(&a->child, op, &call);
    if (rc)
        return rc;
    if (a->child.op.plan.codec)
        bny_arrival_coded_release(op);
    else
        bny_arrival_coded_end(
            op, 0); /* the child runs raw, which is faster; the state counts the step */
    return bny_child_start(&a->child, op, 2);
}

static void advance_child(struct bny_op *op)
{
    struct bny_arrival *a = bny_arrival_of(op);
    int rc = 0;

    if (!a->child.runs && !a->is_reported) {
        rc = start_child(op);
        if (rc)
            bny_op_send_failed(op, -1, rc, "");
        a->is_reported |= rc != 0;
    }
    if (!a->is_reported && a->is_settled && !bny_child_is_busy(&a->child) &&
        !a->child.op.result && !a->out.n &&
        !(a->coordinator && bny_coordinator_is_needed(a->coordinator))) {
        set_contributors(op);
        bny_op_complete(op, 0);
    }
}

static int arrival_advance(struct bny_op *op)
{
    struct bny_arrival *a = bny_arrival_of(op);
    int moved;

    if (bny_is_coordinator(op))
        return bny_coordinator_advance(op);
    moved = !a->begun;
    if (!a->begun && !arrival_begin(op))
        return 0;
    if (a->out.n)
        moved |= bny_coord_outbox_flush(op, &a->out);
    if (a->together) {
        advance_child(op);
        return moved;
    }
    moved |= bny_stream_advance(op);
    if (!bny_op_is_active(op) || bny_comm_has_failed(op->comm))
        return moved;
    if (bny_stream_is_done(op) &&
        !(a->coordinator && bny_coordinator_is_needed(a->coordinator))) {
        set_contributors(op);
        bny_op_complete(op, 0);
    }
    return moved;
}

static void arrival_message(struct bny_op *op, int from, struct bny_msg *msg)
{
    struct bny_arrival *a = bny_arrival_of(op);
    struct bny_coord_msg w;

    if (bny_is_coordinator(op)) {
        bny_coordinator_message(op, from, msg);
        return;
    }
    bny_op_mark_runnable(op);
    if (msg->hdr.kind == BNY_MSG_CTS) {
        bny_msg_release(&op->comm->world->held, msg);
    } else if (bny_coord_msg_read(msg, &w)) {
        bny_msg_release(&op->comm->world->held, msg);
        bny_arrival_answer(op, from, &w);
    } else if (a->has_slot || a->late) {
        bny_stream_message(op, from, msg);
    } else { /* the answer with its slot may be behind this message */
        msg = bny_msg_hold(&op->comm->world->held, msg);
        if (msg)
            bny_msg_list_push_back(&a->early, msg);
        else
            bny_op_send_failed(op, -1, bny_fail(BANYAN_ENOMEM, "no memory for a message"), "");
    }
}

/* Notes the ranks to which messages of this call are to be sent before it ends. A coordinator
 * that serves sends to the ranks that have arrived; others may take long to arrive. */
static void note_served_ranks(struct bny_op *op)
{
    struct bny_arrival *a = bny_arrival_of(op);
    uint64_t *served = a->set + bny_arrival_set_bytes(op) / 8;

    for (int r = 0; r < op->comm->n; r++) {
        int is = r == a->server || r == a->parent ||
                 (a->coordinator && bny_coordinator_serves(a->coordinator, r));

        for (int i = 0; i < a->nfeeds; i++)
            is |= a->feeds[i].to == r;
        served[r / 64] |= (uint64_t)(is && r != op->comm->rank) << r % 64;
    }
}

/* After a failure the child may still be closing: it completes its parent when it has. */
static int arrival_end(struct bny_op *op, int result)
{
    struct bny_arrival *a = bny_arrival_of(op);
    struct bny_buffer_pool *pool = &op->comm->world->held;

    if (bny_is_coordinator(op)) {
        bny_coordinator_end(op, result);
        return 0;
    }
    note_served_ranks(op);
    bny_arrival_coded_end(op, result);
    bny_msg_list_release(pool, &a->early);
    bny_msg_list_release(pool, &a->result.arrived);
    for (int i = 0; i < a->nknown; i++)
        bny_msg_list_release(pool, &a->children[i].arrived);
    if (result)
        bny_cookies_drop(op);
    if (a->coordinator)
        bny_coordinator_member_ended(a->coordinator);
    if (a->feeder)
        bny_coordinator_member_ended(a->feeder);
    a->coordinator = a->feeder = NULL;
    return bny_child_is_busy(&a->child) ? BNY_AGAIN : 0;
}

/* ---- the ranks that it waits for ---- */

static int waits_on(const struct bny_op *op, int r)
{
    const struct bny_arrival *a = bny_arrival_of(op);

    if (r == op->comm->rank)
        return 0;
    if (a->coordinator && bny_coordinator_awaits(a->coordinator, r))
        return 1;
    if (bny_child_is_busy(&a->child))
        return bny_op_waits_on(&a->child.op, r);
    if (a->server < 0)
        return r == 0 || (r == 1 && op->comm->n >= BNY_COORDINATORS);
    for (int i = 0; i < a->nknown; i++)
        if (a->children[i].rank == r && a->children[i].left)
            return 1;
    return r == a->server || r == a->parent || (a->late && r == a->late_from);
}

static int sends_to(const struct bny_op *op, int r)
{
    const uint64_t *served = bny_arrival_of(op)->set + bny_arrival_set_bytes(op) / 8;

    return served[r / 64] >> r % 64 & 1;
}

/* A call also waits for the ranks that its coordinator waits for. */
static unsigned arrival_pending(const struct bny_op *op, int r)
{
    if (bny_is_coordinator(op))
        return 0;
    return (waits_on(op, r) ? BNY_PENDING_WAITS : 0) |
           (sends_to(op, r) ? BNY_PENDING_SENDS : 0);
}

static void arrival_notify(struct bny_op *op, enum bny_notice what, uint32_t step)
{
    if (bny_is_coordinator(op))
        bny_coordinator_sent(op, step);
    else
        bny_stream_sent(op, step);
}

const struct bny_way bny_way_arrival = {
    .traits = BNY_WAY_BY_NAME | BNY_WAY_SENDS | BNY_WAY_LATE,
    .cannot = bny_arrival_cannot,
    .seconds = bny_arrival_seconds,
    .plan = bny_arrival_plan,
    .init = arrival_init,
    .start = arrival_start,
    .advance = arrival_advance,
    .message = arrival_message,
    .notify = arrival_notify,
    .end = arrival_end,
    .pending = arrival_pending,
    .free = arrival_free,
};
