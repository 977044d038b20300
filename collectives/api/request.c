/* SPDX-License-Identifier: BSD-3-Clause */
/* Persistent requests: start, test, wait, free. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "base/sized.h"
#include "base/text.h"
#include "collectives/api/arguments.h"
#include "collectives/plan/budget_choice.h"
#include "collectives/progress/progress.h"
#include "collectives/sequence/sequence.h"

#define TRANSPORTS_TEXT (BNY_MAX_TPS * 17)

#define MARK 0x73716572u

static struct bny_handles handles = BNY_HANDLES(MARK, struct banyan_request);

struct banyan_request *bny_request_new(const struct banyan_comm *comm)
{
    struct banyan_request *r = bny_handle_new(&handles);

    if (r)
        r->comm_serial = comm->handle.serial;
    return r;
}

void bny_request_drop(struct banyan_request *req)
{
    bny_handle_free(&handles, &req->handle);
}

/* Its communicator was destroyed, whose memory may be another one's by now. */
static int is_orphan(const struct banyan_request *req)
{
    return req->op.comm->handle.serial != req->comm_serial;
}

static int request_check(const struct banyan_request *req, const char *what)
{
    int rc = bny_inside_refuses(what);

    if (rc)
        return rc;
    if (!req)
        return bny_fail(BANYAN_EINVAL, "%s: the request must not be NULL", what);
    if (!bny_handle_is(&req->handle, MARK))
        return bny_fail(BANYAN_EINVAL, "%s: the request was freed already", what);
    if (is_orphan(req))
        return bny_fail(
            BANYAN_EINVAL,
            "%s: the request's communicator was finalized or destroyed already; free "
            "requests before",
            what);
    return bny_comm_check(req->op.comm, what);
}

/* The request whose completion function runs, while that neither frees nor starts it. */
static _Thread_local const struct banyan_request *told;

static int is_active(const struct banyan_request *req)
{
    return req != told && bny_op_is_under_way(&req->op);
}

/* For calls that ask whether it is complete. */
static int check_test(const struct banyan_request *req, const char *what)
{
    int rc = request_check(req, what);

    if (rc == 0 && req->is_once && req->done && req != told)
        rc = bny_fail(BANYAN_EINVAL,
                      "%s: this request frees itself behind its completion function; only that "
                      "can tell its end",
                      what);
    return rc;
}

/* For calls that wait for a request. */
static int check_wait(const struct banyan_request *req, const char *what)
{
    int rc = bny_inside_may_wait(what);

    return rc ? rc : check_test(req, what);
}

/* 0; -BANYAN_EBUSY: neither a wait, nor a test, nor its completion function has said that it is
 * complete. Failed ones are over. */
static int check_heard(struct banyan_request *req, const char *what)
{
    if (is_active(req))
        return bny_fail(BANYAN_EBUSY, "%s: this request is in flight; wait for it first", what);
    if (!req->done && bny_op_is_done(&req->op) && !req->op.result)
        return bny_fail(BANYAN_EBUSY,
                        "%s: this request was started before and nobody waited for it; call "
                        "banyan_wait or banyan_test first",
                        what);
    return 0;
}

/* The sentence of its failure, for this thread. */
static void explain(struct banyan_request *req)
{
    if (req->kind)
        req->kind->explain(req);
    else
        bny_comm_error(req->op.comm);
}

/* Frees it; its communicator is there. */
static void request_end(struct banyan_request *req)
{
    struct bny_world *w = req->op.comm->world;

    if (req == told)
        told = NULL;
    if (req->kind)
        req->kind->free(req);
    bny_world_lock(w); /* the thread that completed it may not be out of it yet: another thread,
                          by progress of all worlds */
    bny_op_finish(&req->op);
    bny_world_unlock(w);
    bny_request_drop(req);
}

/* Gives back what needs no world: that may be gone, with its devices. */
static void drop_orphan(struct banyan_request *req)
{
    if (req == told)
        told = NULL;
    bny_completed_hold();
    bny_completed_drop(&req->op);
    bny_completed_release();
    if (req->kind)
        req->kind->free(req);
    bny_op_finish_orphan(&req->op);
    bny_request_drop(req);
}

/* The result of a request that is not active any more. It may be started again; one that was
 * started once is freed. */
static int harvest(struct banyan_request *req)
{
    int rc = req->op.result, was = BNY_OP_DONE;

    if (rc)
        explain(req);
    if (req == told)
        return rc;
    if (req->is_once)
        request_end(req);
    else /* another thread that waited for it may have been first */
        atomic_compare_exchange_strong(&req->op.state, &was, BNY_OP_IDLE);
    return rc;
}

static int request_start(struct banyan_request *req, int once, const char *what)
{
    struct bny_world *w;
    int rc = request_check(req, what), is_told, was_started;

    if (rc == 0 && req->op.call.state)
        rc = bny_state_check(req->op.call.state, "banyan_start: opts.codec_state");
    if (rc)
        return rc;
    rc = check_heard(req, what); /* some ranks may have got here sooner */
    if (rc)
        return rc;
    if (!req->done && bny_op_is_done(&req->op))
        return harvest(req);
    is_told = req == told;
    if (is_told)
        told = NULL;
    was_started = req->was_started;
    req->started_by = &told;
    req->was_started = 1; /* its function may run on another thread before this returns */
    req->is_once = (uint8_t)once;
    w = req->op.comm->world;
    bny_world_lock(w);
    if (!req->kind)
        bny_world_poll_membership_before(&req->op);
    rc = req->kind ? req->kind->start(req) : bny_op_start(&req->op);
    if (rc) {
        req->is_once = 0;
        req->was_started = (uint8_t)was_started;
        told = is_told ? req : told;
    }
    bny_world_unlock(w);
    bny_completed_call();
    return rc;
}

int banyan_start(struct banyan_request *req)
{
    return request_start(req, 0, "banyan_start");
}

int banyan_start_once(struct banyan_request *req)
{
    return request_start(req, 1, "banyan_start_once");
}

/* ---- completion functions ---- */

static void request_done(struct bny_op *op)
{
    struct banyan_request *req = BNY_LINK_OF(op, struct banyan_request, op);
    int rc = op->result;

    if (rc && is_orphan(req))
        bny_fail((enum banyan_error) - rc, "the communicator was destroyed");
    else if (rc)
        explain(req);
    told = req;
    req->done(req->done_ctx, req, rc);
    if (told && req->is_once && is_orphan(req))
        drop_orphan(req);
    else if (told && req->is_once)
        request_end(req);
    else if (told)
        atomic_store_explicit(&op->state, BNY_OP_DONE, memory_order_release);
    told = NULL;
}

int banyan_request_on_done(struct banyan_request *req, banyan_done_fn fn, void *ctx)
{
    int rc = request_check(req, "banyan_request_on_done");

    if (rc == 0)
        rc = check_heard(req, "banyan_request_on_done");
    if (rc)
        return rc;
    if (req == told) /* its function runs: a start or a free is next */
        told = NULL;
    atomic_store_explicit(&req->op.state, BNY_OP_IDLE, memory_order_relaxed);
    req->done = fn;
    req->done_ctx = ctx;
    req->op.on_done = fn ? request_done : NULL;
    return 0;
}

/* ---- test and wait ---- */

int banyan_test(struct banyan_request *req, int *done)
{
    int rc = check_test(req, "banyan_test");

    if (rc)
        return rc;
    if (!done)
        return bny_fail(BANYAN_EINVAL, "banyan_test: done must not be NULL");
    if (is_active(req))
        bny_world_poll(req->op.comm->world);
    *done = !is_active(req);
    return *done ? harvest(req) : 0;
}

int banyan_wait(struct banyan_request *req, double timeout_s)
{
    int rc = check_wait(req, "banyan_wait");

    if (rc == 0)
        rc = bny_check_seconds("banyan_wait: timeout_s", timeout_s);
    if (rc)
        return rc;
    if (is_active(req))
        bny_op_wait(&req->op, timeout_s < 0 ? 0 : bny_deadline_in(timeout_s));
    return harvest(req);
}

int banyan_wait_for(struct banyan_request *req, double seconds, int *done)
{
    int rc = check_wait(req, "banyan_wait_for");

    if (rc == 0)
        rc = bny_check_seconds("banyan_wait_for: seconds", seconds);
    if (rc)
        return rc;
    if (!done)
        return bny_fail(BANYAN_EINVAL, "banyan_wait_for: done must not be NULL");
    if (is_active(req))
        bny_world_poll(req->op.comm->world);
    *done = !is_active(req) ||
            (seconds > 0 &&
             bny_op_wait_until(&req->op, bny_deadline_in(seconds), req->started_by != &told));
    return *done ? harvest(req) : 0;
}

int banyan_wait_all(struct banyan_request *const *reqs, size_t n, double timeout_s)
{
    uint64_t deadline = timeout_s < 0 ? 0 : bny_deadline_in(timeout_s);
    int rc = bny_check_seconds("banyan_wait_all: timeout_s", timeout_s);

    if (rc)
        return rc;
    if (!reqs && n)
        return bny_fail(BANYAN_EINVAL, "banyan_wait_all: reqs must not be NULL");
    for (size_t i = 0; i < n; i++) {
        int r = check_wait(reqs[i], "banyan_wait_all");
        if (r == 0 && is_active(reqs[i]))
            bny_op_wait(&reqs[i]->op, deadline);
        if (r == 0)
            r = harvest(reqs[i]);
        if (rc == 0)
            rc = r;
    }
    return rc;
}

int banyan_wait_any(struct banyan_request *const *reqs, size_t n, double timeout_s,
                    size_t *index)
{
    uint64_t deadline = timeout_s < 0 ? 0 : bny_deadline_in(timeout_s);
    struct bny_waiter wt;
    int rc = bny_check_seconds("banyan_wait_any: timeout_s", timeout_s);
    size_t active = 0;

    if (rc)
        return rc;
    if (!reqs || !index)
        return bny_fail(BANYAN_EINVAL, "banyan_wait_any: reqs and index must not be NULL");
    for (size_t i = 0; i < n; i++) {
        rc = check_wait(reqs[i], "banyan_wait_any");
        if (rc)
            return rc;
        active += atomic_load(&reqs[i]->op.state) != BNY_OP_IDLE;
    }
    if (active == 0)
        return bny_fail(BANYAN_EINVAL, "banyan_wait_any: none of the %zu requests is active",
                        n);
    bny_wait_init(&wt);
    for (size_t i = 0; i < n; i++)
        if (is_active(reqs[i]))
            bny_op_set_deadline(&reqs[i]->op, deadline);
    for (;;) {
        for (size_t i = 0; i < n; i++) {
            struct bny_op *op = &reqs[i]->op;
            if (bny_op_is_done(op) && !is_active(reqs[i])) {
                *index = i;
                return harvest(reqs[i]);
            }
        }
        for (active = 0; active < n && !is_active(reqs[active]); active++)
            ;
        if (active == n) /* completion functions, or other threads, have seen their ends */
            return bny_fail(BANYAN_EINVAL,
                            "banyan_wait_any: none of the %zu requests is active any more", n);
        bny_world_poll(reqs[active]->op.comm->world);
        bny_wait_turn(&wt, reqs[active]->op.comm->world, reqs[active]->op.comm);
    }
}

int banyan_request_stats(struct banyan_request *req, struct banyan_request_stats *out)
{
    struct banyan_request_stats s = { 0 };
    int rc = request_check(req, "banyan_request_stats");

    if (rc == 0)
        rc = bny_sized_check(out, "banyan_request_stats");
    if (rc == 0)
        rc = check_heard(req, "banyan_request_stats");
    if (rc)
        return rc;
    s.wire_bytes = req->op.wire_bytes;
    s.start_ns = req->op.start_ns;
    s.end_ns = req->op.end_ns;
    req->op.is_timed = 1;
    bny_sized_give(out, &s, sizeof s);
    return 0;
}

int banyan_request_source(struct banyan_request *req, size_t *bytes)
{
    const struct bny_op *op;
    int rc = request_check(req, "banyan_request_source");

    if (rc == 0)
        rc = check_heard(req, "banyan_request_source");
    if (rc)
        return rc;
    op = &req->op;
    if (req->kind || op->call.collective != BNY_SENDRECV || op->call.is_send)
        return bny_fail(BANYAN_EINVAL, "banyan_request_source: the request is no receive");
    if (!req->was_started || op->call.root < 0 || op->result)
        return bny_fail(BANYAN_EINVAL, "banyan_request_source: it has received nothing yet");
    if (bytes)
        *bytes = op->call.count * op->esz;
    return op->call.root;
}

int banyan_request_free(struct banyan_request *req)
{
    int rc;

    if (!req)
        return 0;
    rc = request_check(req, "banyan_request_free");
    if (rc) {
        if (rc == -BANYAN_EINVAL && bny_handle_is(&req->handle, MARK) && is_orphan(req))
            drop_orphan(req);
        return rc;
    }
    rc = check_heard(req, "banyan_request_free");
    if (rc)
        return rc;
    request_end(req);
    return 0;
}

/* Names of the transports that this rank's peers are reached by, in the order of the world's
 * list. */
static void transports_of(const struct banyan_comm *comm, char out[TRANSPORTS_TEXT])
{
    size_t at = 0;

    snprintf(out, TRANSPORTS_TEXT, "none");
    for (int i = 0; i < comm->world->ntps; i++)
        for (int r = 0; r < comm->n; r++)
            if (comm->peers[r].ep && comm->peers[r].ep->tp == comm->world->tps[i]) {
                at += (size_t)snprintf(out + at, TRANSPORTS_TEXT - at, "%s%s", at ? "+" : "",
                                       comm->world->tps[i]->ops->name);
                break;
            }
}

int banyan_comm_plan(struct banyan_comm *comm, const char *collective, size_t count,
                     enum banyan_dtype dtype, char *buf, size_t cap)
{
    struct bny_call call;
    struct bny_plan plan;
    char transports[TRANSPORTS_TEXT], refused[160] = "", levels[160];
    const char *now = NULL;
    enum bny_collective c;
    int rc = bny_comm_enter(comm, "banyan_comm_plan");

    if (rc)
        return rc;
    if (!collective || !buf || (unsigned)dtype >= BNY_DTYPE_COUNT)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_comm_plan: collective, buf must not be NULL, dtype a type");
    if (!bny_collective_find(&c, collective))
        return bny_fail(BANYAN_EINVAL, "collective: \"%s\" is unknown", collective);
    rc = bny_call_begin(&call, c, "banyan_comm_plan", comm, NULL);
    if (bny_collective_row(c)->rooted || c == BNY_SENDRECV)
        call.root = 0;
    call.dtype = c == BNY_BARRIER ? BANYAN_U8 : dtype; /* as banyan_barrier() */
    call.count = c == BNY_BARRIER ? 1 : count;
    if (rc == 0)
        rc = bny_check_extent(comm, &call);
    if (rc == 0)
        rc = bny_check_codec(&call, comm, NULL);
    if (rc)
        return rc;
    if (c == BNY_REDUCE_SCATTER)
        bny_call_order(&call, comm, 0, count, count * (size_t)comm->n);
    bny_world_lock(comm->world);
    rc = bny_plan_get(&comm->scope, &call, &plan);
    if (rc == 0)
        bny_budget_tell(levels, sizeof levels, &comm->scope, &call, &plan);
    if (rc == 0 && plan.weighs)
        now = bny_weighed_tell(comm, &call, &plan);
    bny_world_unlock(comm->world);
    if (rc)
        return rc;
    transports_of(comm, transports);
    if (plan.refused_s > 0)
        bny_snprintf(refused, sizeof refused, " (%.40s refused: predicted %.3g us)",
                     call.codec->spec, plan.refused_s * 1e6);
    if (plan.breaks_budget)
        snprintf(refused, sizeof refused, " (none keeps %.60s)", call.codec->spec);
    if (plan.weighs)
        snprintf(refused, sizeof refused, " (where it pays, as measured%s%.100s)",
                 now ? ": " : "", now ? now : "");
    bny_snprintf(
        buf, cap, "schedule %s, transport %s, chunk %zu, codec %s%s, predicted %.3g us%s",
        plan.schedule, transports, plan.chunk_bytes, plan.codec ? plan.codec->spec : "none",
        refused, plan.predicted_s * 1e6, levels);
    bny_world_lock(comm->world);
    bny_plan_drop(&plan);
    bny_world_unlock(comm->world);
    return 0;
}
