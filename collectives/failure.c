/* SPDX-License-Identifier: BSD-3-Clause */
/* Failures: reported where they are seen, flooded by the control plane, adopted by every
 * communicator they concern when the grace has passed, so that all survivors name the same
 * first cause. */
#include <stdio.h>
#include <string.h>

#include "collectives/internal.h"

void bny_comm_set_failure(struct banyan_comm *comm, const struct bny_failure *f)
{
    if (atomic_load_explicit(&comm->failed, memory_order_relaxed))
        return;
    comm->blamed =
        f->blamed >= 0 && f->blamed < comm->world->nranks ? comm->rank_of_world[f->blamed] : -1;
    snprintf(comm->failure_text, sizeof comm->failure_text, "%s", f->text);
    atomic_store_explicit(&comm->failed,
                          f->code > 0 && f->code < BANYAN_ERROR_COUNT ? -(int)f->code
                                                                      : -BANYAN_EPROTO,
                          memory_order_release);
    bny_info("communicator %u failed: %s", comm->id, comm->failure_text);
    for (struct bny_op *op = comm->active_first, *next; op; op = next) {
        next = op->next;
        bny_op_complete(
            op, atomic_load(
                    &comm->failed)); /* while a window is closing, progress goes on with it */
    }
    while (comm->strays) {
        struct bny_msg *msg = comm->strays;
        comm->strays = msg->next;
        bny_msg_release(comm->world, msg);
    }
    comm->strays_last = NULL;
}

static int concerns(const struct banyan_comm *comm, const struct bny_failure *f)
{
    if (f->comm)
        return f->comm == comm->id;
    return f->blamed < 0 || f->blamed >= comm->world->nranks ||
           comm->rank_of_world[f->blamed] >= 0;
}

void bny_failure_adopt(struct bny_world *w)
{
    int local = w->has_local_failure;

    w->has_local_failure = 0;
    for (struct banyan_comm *c = w->comms; c; c = c->next_comm) {
        struct bny_failure f = w->local_failure;
        if (!local && !(w->control && bny_control_failure_of(w->control, c->id, &f)))
            continue;
        f.text[sizeof f.text - 1] = '\0';
        if (concerns(c, &f))
            bny_comm_set_failure(c, &f);
    }
}

void bny_report(struct bny_world *w, struct banyan_comm *comm, enum bny_cause cause,
                enum banyan_error code, int blamed, const char *fmt, ...)
{
    struct bny_failure f;
    va_list ap;

    if (comm && atomic_load(&comm->failed))
        return;
    memset(&f, 0, sizeof f);
    f.cause = cause;
    f.code = code;
    f.blamed = blamed;
    f.reporter = w->rank;
    f.comm = comm ? comm->id : 0;
    va_start(ap, fmt);
    vsnprintf(f.text, sizeof f.text, fmt, ap);
    va_end(ap);
    bny_debug("reports: %s", f.text);
    if (w->control) {
        bny_control_report(w->control, &f);
    } else if (!w->has_local_failure) {
        w->has_local_failure = 1;
        w->local_failure = f;
    }
}

int bny_comm_error(struct banyan_comm *comm)
{
    int code = atomic_load_explicit(&comm->failed, memory_order_acquire);

    if (code)
        bny_set_last_error(comm->failure_text);
    return code;
}

int banyan_async_error(struct banyan_comm *comm, int *blamed, char *buf, size_t cap)
{
    int code = bny_comm_check(comm, "banyan_async_error");

    if (code)
        return code;
    code = atomic_load_explicit(&comm->failed, memory_order_acquire);
    if (blamed)
        *blamed = code ? comm->blamed : -1;
    if (buf && cap)
        snprintf(buf, cap, "%s", code ? comm->failure_text : "");
    return code;
}
