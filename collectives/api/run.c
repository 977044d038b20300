/* SPDX-License-Identifier: BSD-3-Clause */
/* Blocking calls run: one, a pair, or a group are a list of prepared operations. An operation
 * that can be complete at once has no life of its own: a collective that its way runs by
 * itself, or a short message; expected messages are looked for together. Peers see no
 * difference. The rest of the list starts, and is waited for. */
#include "base/cpu.h"
#include "base/err.h"
#include "collectives/api/job.h"
#include "collectives/progress/progress.h"

/* ---- at once ---- */

/* Calls that never wait look at nothing but their own peers: once in a while at the others,
 * too, and at deadlines and the control plane. */
#define LOOK_EVERY  4096u
#define QUICK_LOOKS 100
#define FEW_LOOKS   4 /* until the hook, where that is urgent, has its turn */
#define LOOK_MAX    8 /* messages that are looked for together */

static int quick_looks(const struct banyan_comm *comm)
{
    return comm->world->oversubscribed ? 1 : bny_hook_is_urgent(comm) ? FEW_LOOKS : QUICK_LOOKS;
}

static void was_quick(struct bny_world *w)
{
    if (++w->quick_calls % LOOK_EVERY == 0) {
        bny_world_progress(w);
        bny_world_tick(w);
    }
}

/* Messages come by the endpoints of their senders. 1: all are here. */
static int look_for(struct bny_op **ops, int n, int tries)
{
    struct banyan_comm *c = ops[0]->comm;
    struct bny_event ev[4];

    for (int k = 0; k < tries && n && !bny_comm_has_failed(c); k++) {
        for (int i = n; i-- > 0;) {
            const struct bny_expected *x = &ops[i]->expected;
            struct bny_ep *ep = c->peers[x->peer].ep;
            int got = ep->ops->poll_ep(ep, ev, 4);

            for (int e = 0; e < got; e++)
                bny_world_event(c->world, &ev[e]);
            if (!x->got)
                continue;
            bny_op_done_inline(ops[i]);
            ops[i] = ops[--n];
        }
        if (n)
            bny_pause();
    }
    return n == 0;
}

/* Messages are tried up to the first that cannot go or be expected at once, as those of a tag
 * have an order. A collective that others follow or precede starts as usual. 1: all are done.
 */
static int run_try(struct bny_op *first, int tries)
{
    struct bny_op *wanted[LOOK_MAX], *op = first;
    struct banyan_comm *c = first->comm;
    int rc, n = 0, all;

    if (first->behind && first->call.collective != BNY_SENDRECV)
        return 0;
    do {
        bny_world_poll_membership_before(op);
        rc = bny_op_try(op, tries);
        if (rc == BNY_AGAIN)
            wanted[n++] = op;
        op = op->behind;
    } while (op && rc && n < LOOK_MAX && op->comm == c && op->call.collective == BNY_SENDRECV);
    all = rc && !op;
    if (!n)
        return all;
    all = all && look_for(wanted, n, tries);
    bny_match_give_up_expected(c->match);
    if (bny_match_is_busy(c->match))
        bny_comm_flush_control(c);
    return all;
}

/* ---- as usual ---- */

/* A group may be of several worlds: one lock at a time. */
static void move_lock(struct bny_world **held, struct bny_world *to)
{
    if (*held == to)
        return;
    bny_world_unlock(*held);
    bny_world_lock(to);
    *held = to;
}

/* A reported failure is agreed on soon. */
static void await_failure(struct banyan_comm *comm)
{
    uint64_t deadline = bny_deadline_after(bny_now_ns(), comm->op_timeout_s);
    struct bny_waiter wt;

    bny_wait_init(&wt);
    while (!bny_comm_has_failed(comm) && !bny_deadline_passed(deadline)) {
        bny_wait_turn(&wt, comm->world, comm);
        if (bny_world_poll(comm->world) > 0)
            bny_wait_found(&wt, comm->world);
    }
}

/* The list has begun, here or elsewhere, and this operation found no memory. None of its
 * communicator may start behind it, of this list or a later one: it would take that one's
 * number, and be taken for it. */
static void lack_memory(struct bny_op *op)
{
    struct banyan_comm *comm = op->comm;
    struct bny_world *w = comm->world;

    bny_report(w, comm, BNY_CAUSE_RESET, BANYAN_ENOMEM, w->rank, "rank %d: %s", comm->rank,
               bny_why(-BANYAN_ENOMEM));
    bny_world_unlock(w);
    await_failure(comm);
    bny_world_lock(w);
    while ((op = op->behind))
        if (op->comm == comm && !bny_op_is_done(op))
            bny_op_end_unstarted(op, 0);
}

/* An operation's own error, or the failure that it met. */
static void note_failure(struct bny_first_error *first, struct banyan_comm *comm, int rc)
{
    if (rc && atomic_load(&comm->failed))
        bny_comm_error(comm);
    bny_first_error_note(first, rc);
}

/* Starts those that are not done. Returns the last one under way; NULL: none is. */
static struct bny_op *start_rest(struct bny_op *first, struct bny_world **held,
                                 struct bny_first_error *error)
{
    struct bny_op *last = NULL;

    for (struct bny_op *op = first; op; op = op->behind) {
        int rc;

        if (bny_op_is_done(op))
            continue;
        move_lock(held, op->comm->world);
        bny_world_poll_membership_before(op);
        rc = bny_op_start(op);
        note_failure(error, op->comm, rc);
        if (rc)
            bny_op_end_unstarted(op, rc);
        else
            last = op;
        if (rc == -BANYAN_ENOMEM && (op != first || op->behind))
            lack_memory(op);
    }
    return last;
}

/* Small operations are usually complete before the lock is given back: looking at the peers for
 * as long as their message may take (a microsecond or two) saves two lock operations of about
 * 20 ns each. */
static int run_rest(struct bny_op *first, struct bny_world **held)
{
    struct bny_first_error error;
    struct bny_op *last;

    error.rc = 0;
    last = start_rest(first, held, &error);
    if (last && !bny_op_is_done(last)) {
        move_lock(held, last->comm->world);
        bny_op_look(last, quick_looks(last->comm));
    }
    for (struct bny_op *op = first; op; op = op->behind) {
        if (!bny_op_is_done(op)) {
            bny_world_unlock(*held);
            bny_op_wait(op, 0);
            bny_world_lock(*held);
        }
        note_failure(&error, op->comm, op->result);
    }
    return bny_first_error_return(&error);
}

/* To their pools, in their order: the first is the first that the next call looks for. */
static void run_give(struct bny_op *first, struct bny_world **held)
{
    struct bny_op *next;

    for (struct bny_op *op = first; op; op = next) {
        next = op->behind;
        move_lock(held, op->comm->world);
        bny_op_give(op);
    }
}

/* A failure that was agreed on meanwhile is the next call's. */
int bny_run(struct bny_op *first)
{
    struct banyan_comm *comm = first->comm;
    struct bny_world *held = comm->world;
    int rc = 0, quick = run_try(first, quick_looks(comm));

    if (quick)
        was_quick(held);
    else
        rc = run_rest(first, &held);
    run_give(first, &held);
    bny_world_poll_membership(held);
    bny_world_unlock(held);
    bny_completed_call();
    if (quick && comm->progress_hook)
        bny_wait_skipped(comm);
    return rc;
}
