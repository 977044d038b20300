/* SPDX-License-Identifier: BSD-3-Clause */
/* A checked call becomes an operation: it runs, waits in a group, or is kept as a request. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "collectives/api/job.h"
#include "collectives/local/local.h"
#include "collectives/local/memory_kind.h"
#include "collectives/progress/progress.h"

/* ---- groups ---- */

static _Thread_local struct {
    int depth;
    struct bny_op **ops;
    size_t n, cap;
    int rc;
    char text[512];
} group;
static pthread_key_t
    group_key; /* its value is this thread's group.ops, freed with the thread */
static pthread_once_t group_once = PTHREAD_ONCE_INIT;

static void group_key_make(void)
{
    pthread_key_create(&group_key, free);
}
/* ---- running ---- */

static int copy_vectors(struct bny_op *op, int n)
{
    struct bny_call *c = &op->call;
    size_t need = 4 * (size_t)n, *at;
    size_t **arrays[4] = { &c->scounts, &c->sdispls, &c->rcounts, &c->rdispls };

    if (!c->vector)
        return 0;
    if (op->vcap < need) {
        free(op->vcounts);
        op->vcounts = malloc(need * sizeof *op->vcounts);
        op->vcap = op->vcounts ? need : 0;
        if (!op->vcounts)
            return bny_fail(BANYAN_ENOMEM, "no memory for counts of %d ranks", n);
    }
    at = op->vcounts;
    for (int i = 0; i < 4; i++, at += n)
        if (*arrays[i]) {
            bny_local_place(at, *arrays[i], (size_t)n * sizeof *at);
            *arrays[i] = at;
        }
    return 0;
}

static int prepare(struct bny_op *op, struct banyan_comm *comm, const struct bny_call *call)
{
    int rc = bny_op_init(op, comm, call);

    return rc ? rc : copy_vectors(op, comm->n);
}

static int group_add(struct banyan_comm *comm, const struct bny_call *call)
{
    struct bny_op *op;
    int rc;

    if (group.n == group.cap) {
        size_t cap = group.cap ? 2 * group.cap : 16;
        struct bny_op **more = realloc(group.ops, cap * sizeof *more);
        if (!more)
            return bny_fail(BANYAN_ENOMEM, "no memory for a group of %zu calls", cap);
        group.ops = more;
        group.cap = cap;
        pthread_once(&group_once, group_key_make);
        pthread_setspecific(group_key, more);
    }
    bny_world_lock(comm->world);
    op = bny_op_take(comm, call);
    rc = op ? prepare(op, comm, call) : -BANYAN_ENOMEM;
    if (rc && op) {
        op->comm = comm;
        bny_op_give(op);
    }
    bny_world_unlock(comm->world);
    if (rc == 0)
        group.ops[group.n++] = op;
    return rc;
}

/* A blocking call. Small ones are usually complete before the lock is given back: looking at
 * the peers for as long as their message may take (a microsecond or two) saves two lock
 * operations of about 20 ns each. */
static int run(struct banyan_comm *comm, const struct bny_call *call)
{
    struct bny_world *w = comm->world;
    struct bny_op *op;
    int rc, done;

    if (group.depth)
        return group_add(comm, call);
    bny_world_lock(w);
    op = bny_op_take(comm, call);
    rc = op ? prepare(op, comm, call) : -BANYAN_ENOMEM;
    if (rc == 0)
        rc = bny_op_start(op);
    if (rc == 0 && !bny_op_is_done(op))
        bny_op_look(op, 100);
    done = rc || bny_op_is_done(op);
    if (!done) {
        bny_world_unlock(w);
        rc = bny_op_wait(op, 0);
        bny_world_lock(w);
    } else if (rc == 0) {
        rc = op->result;
    }
    if (op) {
        op->comm = comm;
        bny_op_give(op);
    }
    bny_world_unlock(w);
    if (rc && atomic_load(&comm->failed))
        bny_comm_error(comm);
    return rc;
}

int bny_submit(struct banyan_comm *comm, const struct bny_call *call,
               struct banyan_request **req)
{
    struct banyan_request *r;
    int rc;

    if (req == BNY_RUN)
        return run(comm, call);
    if (!req)
        return bny_fail(BANYAN_EINVAL, "%s_init: out must not be NULL",
                        bny_collective_name((enum bny_collective)call->collective));
    *req = NULL;
    bny_device_look();
    r = bny_request_new(comm);
    if (!r)
        return bny_fail(BANYAN_ENOMEM, "no memory for a request");
    bny_world_lock(comm->world);
    rc = prepare(&r->op, comm, call);
    r->op.persistent = 1;
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

int bny_in_group(void)
{
    return group.depth > 0;
}

int banyan_group_start(void)
{
    if (bny_in_user_op)
        return bny_user_op_refuse("banyan_group_start");
    group.depth++;
    return 0;
}

int banyan_group_end(void)
{
    int rc = 0;
    char text[512] = "";

    if (bny_in_user_op)
        return bny_user_op_refuse("banyan_group_end");
    if (group.depth == 0)
        return bny_fail(BANYAN_EINVAL, "banyan_group_end without banyan_group_start");
    if (--group.depth)
        return 0;
    for (size_t i = 0; i < group.n; i++) {
        struct bny_op *op = group.ops[i];
        int r;
        bny_world_lock(op->comm->world);
        r = bny_op_start(op);
        bny_world_unlock(op->comm->world);
        if (r && rc == 0) {
            rc = r;
            snprintf(text, sizeof text, "%s", banyan_last_error());
        }
    }
    for (size_t i = 0; i < group.n; i++) {
        struct bny_op *op = group.ops[i];
        struct bny_world *w = op->comm->world;
        int r = atomic_load(&op->state) == BNY_OP_IDLE ? 0 : bny_op_wait(op, 0);
        if (r && rc == 0) {
            rc = r;
            snprintf(text, sizeof text, "%s", banyan_last_error());
        }
        bny_world_lock(w);
        bny_op_give(op);
        bny_world_unlock(w);
    }
    group.n = 0;
    if (rc)
        bny_set_last_error(text);
    return rc;
}
