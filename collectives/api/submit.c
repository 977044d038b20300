/* SPDX-License-Identifier: BSD-3-Clause */
/* A checked call becomes an operation: it runs, waits in a group, or is kept as a request. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "collectives/api/group.h"
#include "collectives/api/job.h"
#include "collectives/local/local.h"
#include "collectives/local/memory_kind.h"
#include "collectives/progress/progress.h"

/* ---- groups ---- */

/* The first error of a group, with its sentence. */
struct first_error {
    int rc;
    char text[512];
};

/* ---- running ---- */

static int copy_vectors(struct bny_op *op, int n)
{
    struct bny_call *c = &op->call;
    size_t **arrays[] = { &c->scounts, &c->sdispls, &c->rcounts, &c->rdispls, &c->spread };
    size_t narrays = sizeof arrays / sizeof arrays[0], need = narrays * (size_t)n, *at;

    if (!c->vector && !c->spread)
        return 0;
    if (op->vcap < need) {
        free(op->vcounts);
        op->vcounts = malloc(need * sizeof *op->vcounts);
        op->vcap = op->vcounts ? need : 0;
        if (!op->vcounts)
            return bny_fail(BANYAN_ENOMEM, "no memory for counts of %d ranks", n);
    }
    at = op->vcounts;
    for (size_t i = 0; i < narrays; i++, at += n)
        if (*arrays[i]) {
            bny_local_place(at, *arrays[i], (size_t)n * sizeof *at);
            *arrays[i] = at;
        }
    return 0;
}

static int copy_set(struct bny_op *op, int n)
{
    if (!op->call.has_set)
        return 0;
    if (!op->present)
        op->present = malloc((size_t)n);
    if (!op->present)
        return bny_fail(BANYAN_ENOMEM, "no memory for a participation set of %d ranks", n);
    memcpy(op->present, op->call.present, (size_t)n);
    op->call.present = op->present;
    return 0;
}

static int submit_prepare(struct bny_op *op, struct banyan_comm *comm,
                          const struct bny_call *call)
{
    int rc = bny_op_init(op, comm, call);

    if (rc == 0)
        rc = copy_vectors(op, comm->n);
    if (rc == 0)
        rc = copy_set(op, comm->n);
    if (rc)
        op->call.present = NULL; /* the caller's */
    return rc;
}

static int keep_call(struct banyan_comm *comm, const struct bny_call *call)
{
    struct bny_op *op;
    int rc = bny_group_room();

    if (rc)
        return rc;
    bny_world_lock(comm->world);
    op = bny_op_take(comm, call);
    rc = op ? submit_prepare(op, comm, call) : -BANYAN_ENOMEM;
    if (rc && op) {
        op->comm = comm;
        bny_op_give(op);
    }
    bny_world_unlock(comm->world);
    if (rc == 0)
        bny_group.calls[bny_group.n++] = (struct bny_group_call){ op, comm->handle.serial };
    return rc;
}

/* Calls that never wait look at nothing but their own peers: once in a while at the others,
 * too, and at deadlines and the control plane. */
#define LOOK_EVERY  4096u
#define QUICK_LOOKS 100
#define FEW_LOOKS   4 /* until the hook, where that is urgent, has its turn */

static void look_round(struct bny_world *w)
{
    bny_world_progress(w);
    bny_world_tick(w);
}

static int quick_looks(const struct banyan_comm *comm)
{
    return comm->world->oversubscribed ? 1 : bny_hook_is_urgent(comm) ? FEW_LOOKS : QUICK_LOOKS;
}

/* 1: it is complete. */
static int is_quick(struct bny_op *op)
{
    int tries = quick_looks(op->comm);
    uint8_t done;

    if (op->call.collective != BNY_SENDRECV)
        return bny_op_quick(op, tries);
    return op->call.is_send ? bny_short_send(op) : bny_short_receive(&op, 1, &done, tries);
}

static struct bny_op *take_prepared(struct banyan_comm *comm, const struct bny_call *call,
                                    int *rc)
{
    struct bny_op *op = bny_op_take(comm, call);

    *rc = op ? submit_prepare(op, comm, call) : -BANYAN_ENOMEM;
    return op;
}

static void submit_give(struct bny_op *op, struct banyan_comm *comm)
{
    if (!op)
        return;
    op->comm = comm;
    bny_op_give(op);
}

static void was_quick(struct bny_world *w)
{
    if (++w->quick_calls % LOOK_EVERY == 0)
        look_round(w);
}

/* The lock is given back meanwhile where that takes long. */
static int run_op(struct bny_op *op)
{
    struct bny_world *w = op->comm->world;
    int rc = bny_op_start(op);

    if (rc)
        return rc;
    if (!bny_op_is_done(op))
        bny_op_look(op, quick_looks(op->comm));
    if (bny_op_is_done(op))
        return op->result;
    bny_world_unlock(w);
    rc = bny_op_wait(op, 0);
    bny_world_lock(w);
    return rc;
}

/* Small ones are usually complete before the lock is given back: looking at the peers for as
 * long as their message may take (a microsecond or two) saves two lock operations of about 20
 * ns each. A failure that was agreed on meanwhile is the next call's. */
int bny_run_taken(struct bny_op *op)
{
    struct banyan_comm *comm = op->comm;
    struct bny_world *w = comm->world;
    int rc = 0, quick;

    bny_world_poll_membership_before(op);
    quick = is_quick(op);
    if (quick)
        was_quick(w);
    else
        rc = run_op(op);
    bny_op_give(op);
    bny_world_poll_membership(w);
    bny_world_unlock(w);
    if (quick && comm->progress_hook)
        bny_wait_skipped(comm);
    if (rc && atomic_load(&comm->failed))
        bny_comm_error(comm);
    return rc;
}

/* A blocking call. */
static int submit_run(struct banyan_comm *comm, const struct bny_call *call)
{
    struct bny_op *op;
    int rc;

    if (bny_group_depth)
        return bny_group_lacks(keep_call(comm, call));
    bny_world_lock(comm->world);
    op = take_prepared(comm, call, &rc);
    if (rc == 0)
        return bny_run_taken(op);
    submit_give(op, comm);
    bny_world_unlock(comm->world);
    if (atomic_load(&comm->failed))
        bny_comm_error(comm);
    return rc;
}

int bny_run_taken_pair(struct bny_op *send, struct bny_op *recv, int *rc)
{
    struct banyan_comm *comm = send->comm;
    struct bny_world *w = comm->world;

    bny_world_poll_membership_before(send);
    if (!bny_short_send(send))
        return 0;
    if (is_quick(recv))
        was_quick(w);
    else
        *rc = run_op(recv);
    bny_op_give(recv);
    bny_op_give(send); /* the first that the next call looks for */
    bny_world_poll_membership(w);
    bny_world_unlock(w);
    if (*rc && atomic_load(&comm->failed))
        bny_comm_error(comm);
    return 1;
}

/* 1: the send is short, and has gone; *rc is the pair's result. Steps that may lack memory come
 * before that. */
static int run_short_pair(struct banyan_comm *comm, const struct bny_call *send,
                          const struct bny_call *recv, int *rc)
{
    struct bny_op *there, *here = NULL;

    bny_world_lock(comm->world);
    there = take_prepared(comm, send, rc);
    if (*rc == 0)
        here = take_prepared(comm, recv, rc);
    if (*rc == 0 && bny_run_taken_pair(there, here, rc))
        return 1;
    submit_give(here, comm);
    submit_give(there, comm);
    bny_world_unlock(comm->world);
    return 0;
}

int bny_submit_pair(struct banyan_comm *comm, const struct bny_call *send,
                    const struct bny_call *recv)
{
    int rc, end;

    if (!bny_group_depth && run_short_pair(comm, send, recv, &rc))
        return rc;
    rc = banyan_group_start();
    if (rc)
        return rc;
    rc = submit_run(comm, send);
    if (rc == 0)
        rc = submit_run(comm, recv);
    end = banyan_group_end();
    return rc ? rc : end;
}

int bny_submit(struct banyan_comm *comm, const struct bny_call *call,
               struct banyan_request **req)
{
    struct banyan_request *r;
    int rc;

    if (req == BNY_RUN)
        return submit_run(comm, call);
    if (!req)
        return bny_fail(BANYAN_EINVAL, "banyan_%s_init: out must not be NULL",
                        bny_call_name(call));
    *req = NULL;
    bny_device_look();
    r = bny_request_new(comm);
    if (!r)
        return bny_fail(BANYAN_ENOMEM, "no memory for a request");
    bny_world_lock(comm->world);
    rc = submit_prepare(&r->op, comm, call);
    if (rc)
        bny_op_finish(&r->op);
    bny_world_unlock(comm->world);
    if (rc) {
        bny_request_drop(r);
        return rc;
    }
    *req = r;
    return 0;
}

int banyan_comm_may_wait(const struct banyan_comm *comm, const char *what)
{
    int rc = bny_comm_enter(comm, what);

    if (rc == 0 && comm->init)
        rc = bny_fail(
            BANYAN_EINVAL,
            "%s: the communicator is still joining; call banyan_comm_init_test until it is "
            "done",
            what);
    return rc ? rc : bny_place_may_wait(what);
}

int banyan_group_start(void)
{
    if (bny_in_user_op)
        return bny_user_op_refuse("banyan_group_start");
    bny_group_depth++;
    return 0;
}

static void note_error(struct first_error *first, int rc)
{
    if (rc == 0 || first->rc)
        return;
    first->rc = rc;
    snprintf(first->text, sizeof first->text, "%s", banyan_last_error());
}

/* May it run? Else it is dropped, or left to the parent whose it is, and g->op NULL. */
static int check_call(struct bny_group_call *g)
{
    struct bny_op *op = g->op;
    int rc;

    if (op->comm->handle.serial == g->comm_serial) {
        rc = bny_comm_check(op->comm, "banyan_group_end");
        g->op = rc ? NULL : op;
        return rc;
    }
    rc = bny_fail(BANYAN_EINVAL,
                  "banyan_group_end: %s did not run: its communicator was destroyed before the "
                  "group's end",
                  bny_call_name(&op->call));
    bny_op_finish_orphan(op);
    free(op);
    g->op = NULL;
    return rc;
}

static void give_call(struct bny_group_call *g)
{
    bny_op_give(g->op);
    g->op = NULL;
}

static int start_call(struct bny_op *op)
{
    struct bny_world *w = op->comm->world;
    int rc;

    bny_world_lock(w);
    bny_world_poll_membership(w);
    rc = bny_op_start(op);
    if (rc == -BANYAN_ENOMEM)
        bny_report(w, op->comm, BNY_CAUSE_RESET, BANYAN_ENOMEM, w->rank, "rank %d: %s",
                   op->comm->rank, bny_why(rc));
    bny_world_unlock(w);
    return rc;
}

/* It has not begun. */
static void drop_call(struct bny_group_call *g)
{
    struct bny_world *w = g->op->comm->world;

    bny_world_lock(w);
    give_call(g);
    bny_world_unlock(w);
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

/* The group has begun, here or elsewhere. Behind a call that found no memory none of its
 * communicator may start, of this group or a later one: it would take that one's number, and be
 * taken for it. */
static void start_calls(struct first_error *first)
{
    for (size_t i = 0; i < bny_group.n; i++) {
        const struct bny_op *op = bny_group.calls[i].op;
        int rc = op ? start_call(bny_group.calls[i].op) : 0;

        note_error(first, rc);
        if (rc == -BANYAN_ENOMEM)
            await_failure(op->comm);
        for (size_t k = i + 1; k < bny_group.n && rc == -BANYAN_ENOMEM; k++)
            if (bny_group.calls[k].op && bny_group.calls[k].op->comm == op->comm)
                drop_call(&bny_group.calls[k]);
    }
}

static int is_receive(const struct bny_op *op)
{
    return op->call.collective == BNY_SENDRECV && !op->call.is_send;
}

/* The calls of a group that are short messages, where all are of one communicator: sends up to
 * the first that is none, as those of a tag have an order; receives, if nothing else is left.
 */
static void run_short(struct banyan_comm *comm)
{
    struct bny_op *receives[BNY_SHORT_MAX];
    struct bny_group_call *of[BNY_SHORT_MAX];
    struct bny_world *w = comm->world;
    uint8_t done[BNY_SHORT_MAX] = { 0 };
    int n = 0, alone = 1;

    bny_world_lock(w);
    for (size_t i = 0; alone && i < bny_group.n; i++) {
        struct bny_group_call *g = &bny_group.calls[i];

        if (g->op && is_receive(g->op) && n < BNY_SHORT_MAX) {
            of[n] = g;
            receives[n++] = g->op;
        } else if (g->op) {
            bny_world_poll_membership_before(g->op);
            alone = bny_short_send(g->op);
            if (alone)
                give_call(g);
        }
    }
    if (alone && n)
        bny_short_receive(receives, n, done, quick_looks(comm));
    for (int i = 0; i < n; i++)
        if (done[i])
            give_call(of[i]);
    was_quick(w);
    bny_world_poll_membership(w);
    bny_world_unlock(w);
}

static int end_call(struct bny_op *op)
{
    struct bny_world *w = op->comm->world;
    int rc = atomic_load(&op->state) == BNY_OP_IDLE ? 0 : bny_op_wait(op, 0);

    bny_world_lock(w);
    bny_op_give(op);
    bny_world_unlock(w);
    return rc;
}

/* None of them has begun: the group may be tried again. */
static int drop_calls(void)
{
    int rc = bny_group.lacks;

    for (size_t i = 0; i < bny_group.n; i++)
        if (bny_group.calls[i].op)
            drop_call(&bny_group.calls[i]);
    bny_group.n = 0;
    bny_group.lacks = 0;
    return bny_fail((enum banyan_error) - rc, "%s", bny_group.why);
}

int banyan_group_end(void)
{
    struct first_error first = { 0 };
    struct banyan_comm *comm = NULL;
    int is_one = 1;

    if (bny_in_user_op)
        return bny_user_op_refuse("banyan_group_end");
    if (bny_group_depth == 0)
        return bny_fail(BANYAN_EINVAL, "banyan_group_end without banyan_group_start");
    if (--bny_group_depth)
        return 0;
    for (size_t i = 0; i < bny_group.n; i++) {
        note_error(&first, check_call(&bny_group.calls[i]));
        if (bny_group.calls[i].op && comm && bny_group.calls[i].op->comm != comm)
            is_one = 0;
        if (bny_group.calls[i].op)
            comm = bny_group.calls[i].op->comm;
    }
    if (bny_group.lacks) {
        first.rc = 0; /* it comes before what else is wrong with calls */
        note_error(&first, drop_calls());
        comm = NULL;
    }
    if (comm && is_one)
        run_short(comm);
    start_calls(&first);
    for (size_t i = 0; i < bny_group.n; i++)
        if (bny_group.calls[i].op)
            note_error(&first, end_call(bny_group.calls[i].op));
    bny_group.n = 0;
    if (first.rc)
        bny_set_last_error(first.text);
    return first.rc;
}
