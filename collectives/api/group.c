/* SPDX-License-Identifier: BSD-3-Clause */
/* Groups: a thread's calls between banyan_group_start() and banyan_group_end(), which run
 * together. */
#include "collectives/api/group.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "collectives/api/job.h"

static _Thread_local struct {
    struct bny_op *first, *last; /* by ->behind */
    int lacks; /* of a call that could not be kept: the group does not run; < 0 */
    char why[256];
} group;

void bny_group_add(struct bny_op *first)
{
    *(group.first ? &group.last->behind : &group.first) = first;
    for (; first; first = first->behind) {
        first->comm_serial = first->comm->handle.serial;
        group.last = first;
    }
}

/* A refused call is refused at all ranks. The others run the call for which this rank lacks
 * memory. If this rank ran the rest of the group, they would take the next call for it. */
int bny_group_lacks(int rc)
{
    if (rc == -BANYAN_ENOMEM && bny_group_depth && !group.lacks) {
        group.lacks = rc;
        snprintf(group.why, sizeof group.why, "the group did not run: %.200s", bny_why(rc));
    }
    return rc;
}

int banyan_group_start(void)
{
    int rc = bny_inside_may_wait("banyan_group_start");

    bny_group_depth += rc == 0;
    return rc;
}

/* May it run? Else it is dropped, or left to the parent whose it is. */
static int check_call(struct bny_op *op)
{
    int rc;

    if (op->comm->handle.serial == op->comm_serial)
        return bny_comm_check(op->comm, "banyan_group_end");
    rc = bny_fail(BANYAN_EINVAL,
                  "banyan_group_end: %s did not run: its communicator was destroyed before the "
                  "group's end",
                  bny_call_name(&op->call));
    bny_op_finish_orphan(op);
    free(op);
    return rc;
}

/* Ends the group: the list of its calls that may run. */
static struct bny_op *take_calls(struct bny_first_error *error)
{
    struct bny_op *op, *next, *first = NULL, **at = &first;

    for (op = group.first; op; op = next) {
        int rc;

        next = op->behind;
        rc = check_call(op);
        bny_first_error_note(error, rc);
        if (rc)
            continue;
        *at = op;
        at = &op->behind;
    }
    *at = NULL;
    group.first = group.last = NULL;
    return first;
}

/* None of them has begun: the group may be tried again. */
static int drop_calls(struct bny_op *op)
{
    int rc = group.lacks;

    while (op) {
        struct bny_op *next = op->behind;
        struct bny_world *w = op->comm->world;

        bny_world_lock(w);
        bny_op_give(op);
        bny_world_unlock(w);
        op = next;
    }
    group.lacks = 0;
    return bny_fail((enum banyan_error) - rc, "%s", group.why);
}

int banyan_group_end(void)
{
    struct bny_first_error error;
    struct bny_op *first;
    int rc = bny_inside_may_wait("banyan_group_end");

    if (rc)
        return rc;
    if (bny_group_depth == 0)
        return bny_fail(BANYAN_EINVAL, "banyan_group_end without banyan_group_start");
    if (--bny_group_depth)
        return 0;
    error.rc = 0;
    first = take_calls(&error);
    if (group.lacks) /* this error comes before what else is wrong with calls */
        return drop_calls(first);
    if (first) {
        bny_world_lock(first->comm->world);
        bny_first_error_note(&error, bny_run(first));
    }
    return bny_first_error_return(&error);
}
