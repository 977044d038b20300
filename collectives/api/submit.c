/* SPDX-License-Identifier: BSD-3-Clause */
/* A checked call becomes an operation: it runs, waits in a group, or is kept as a request. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "collectives/api/group.h"
#include "collectives/api/job.h"
#include "collectives/local/local.h"
#include "collectives/local/memory_kind.h"

/* ---- preparing ---- */

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

/* From the pool, planned. NULL, and *rc: an error. */
static struct bny_op *take_prepared(struct banyan_comm *comm, const struct bny_call *call,
                                    int *rc)
{
    struct bny_op *op = bny_op_take(comm, call);

    *rc = op ? submit_prepare(op, comm, call) : -BANYAN_ENOMEM;
    if (*rc == 0)
        return op;
    if (op) {
        op->comm = comm;
        bny_op_give(op);
    }
    return NULL;
}

/* ---- submitting ---- */

/* The operations of n calls, to run together in this order; NULL: *rc. */
static struct bny_op *take_all(struct banyan_comm *comm, const struct bny_call *calls, size_t n,
                               int *rc)
{
    struct bny_op *first = NULL, *op;

    *rc = 0;
    while (n-- > 0 && *rc == 0)
        if ((op = take_prepared(comm, &calls[n], rc))) {
            op->behind = first;
            first = op;
        }
    while (*rc && (op = first)) {
        first = op->behind;
        bny_op_give(op);
    }
    return first;
}

static int submit_run(struct banyan_comm *comm, const struct bny_call *calls, size_t n)
{
    struct bny_op *first;
    int rc = bny_inside_may_wait(bny_call_name(calls));

    if (rc)
        return rc;
    bny_world_lock(comm->world);
    first = take_all(comm, calls, n, &rc);
    if (first && !bny_group_depth)
        return bny_run(first);
    bny_world_unlock(comm->world);
    if (first)
        bny_group_add(first);
    else if (atomic_load(&comm->failed))
        bny_comm_error(comm);
    return bny_group_lacks(rc);
}

static int make_request(struct banyan_comm *comm, const struct bny_call *call,
                        struct banyan_request **req)
{
    struct banyan_request *r;
    int rc;

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

int bny_submit(struct banyan_comm *comm, const struct bny_call *calls, size_t n,
               struct banyan_request **req)
{
    return req == BNY_RUN ? submit_run(comm, calls, n) : make_request(comm, calls, req);
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
