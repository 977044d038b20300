/* SPDX-License-Identifier: BSD-3-Clause */
/* Failures where they are seen: handed to the control plane, which floods them and agrees on
 * them. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "collectives/world/comm.h"

void bny_report(struct bny_world *w, struct banyan_comm *comm, enum bny_cause cause,
                enum banyan_error code, int blamed, const char *fmt, ...)
{
    struct bny_failure f;
    va_list ap;

    BNY_ASSERT_LOCKED(w);
    if (comm && atomic_load(&comm->failed))
        return;
    memset(&f, 0, sizeof f);
    f.cause = cause;
    f.code = code;
    f.blamed = blamed;
    f.reporter = w->rank;
    f.comm = comm ? comm->id : 0;
    va_start(ap, fmt);
    bny_vsnprintf(f.text, sizeof f.text, fmt, ap);
    va_end(ap);
    bny_debug("reports: %s", f.text);
    if (w->control) {
        bny_control_report(w->control, &f);
    } else if (!w->has_local_failure) {
        w->has_local_failure = 1;
        w->local_failure = f;
    }
}

void bny_comm_note_told(struct banyan_comm *comm)
{
    if (atomic_load_explicit(&comm->failed, memory_order_relaxed))
        atomic_store_explicit(&comm->is_failure_told, 1, memory_order_relaxed);
    if (comm->world->control)
        atomic_store_explicit(&comm->told, bny_control_logged(comm->world->control),
                              memory_order_relaxed);
}

int bny_comm_error(struct banyan_comm *comm)
{
    int code = atomic_load_explicit(&comm->failed, memory_order_acquire);

    if (code)
        bny_comm_note_told(comm);
    return code ? bny_fail((enum banyan_error) - code, "%s", comm->failure_text) : 0;
}
