/* SPDX-License-Identifier: BSD-3-Clause */
/* Failures: reported where they are seen, agreed on by the control plane, adopted by every
 * communicator they concern, so that all survivors name the same first cause. */
#include <stdio.h>
#include <string.h>

#include "base/counts.h"
#include "collectives/op/recorder.h"
#include "collectives/progress/progress.h"

void bny_comm_set_failure(struct banyan_comm *comm, const struct bny_failure *f)
{
    if (atomic_load_explicit(&comm->failed, memory_order_relaxed))
        return;
    comm->blamed = bny_rank_of(&comm->ranks, f->blamed);
    snprintf(comm->failure_text, sizeof comm->failure_text, "%s", f->text);
    atomic_store_explicit(&comm->failed,
                          f->code > 0 && f->code < BNY_ERROR_COUNT ? -(int)f->code
                                                                   : -BANYAN_EPROTO,
                          memory_order_release);
    bny_info("communicator %u failed: %s", comm->id, comm->failure_text);
    bny_recorder_failed(comm->world, comm->failure_text);
    for (struct bny_op *op = comm->active_first, *next; op; op = next) {
        next = op->next;
        bny_op_complete(
            op, atomic_load(
                    &comm->failed)); /* while a window is closing, progress goes on with it */
    }
    bny_match_forget(comm->match);
}

static int concerns(const struct banyan_comm *comm, const struct bny_failure *f)
{
    if (f->comm)
        return f->comm == comm->id;
    return f->blamed < 0 || f->blamed >= comm->world->nranks ||
           bny_rank_of(&comm->ranks, f->blamed) >= 0;
}

static int has_rank(const void *comm, int rank)
{
    return bny_rank_of(&((const struct banyan_comm *)comm)->ranks, rank) >= 0;
}

/* Does another rank wait for something of this one? A reduction in order of arrival may do
 * without it. */
static int is_needed(const struct bny_op *op)
{
    int needed = 0;

    if (op->call.collective == BNY_SENDRECV)
        return op->call.is_send;
    if (op->traits & BNY_WAY_LATE)
        return 0;
    for (int r = 0; r < op->comm->n && !needed; r++)
        needed = bny_call_sends(&op->call, op->comm->rank, r);
    return needed;
}

void bny_world_poll_membership_then(const struct bny_op *op)
{
    BNY_ASSERT_LOCKED(op->comm->world);
    if (is_needed(op))
        bny_world_tick(op->comm->world);
}

/* The messages that a rank sent before its death are at hand, and may be all that others need
 * of it. They read those first. */
static int is_being_read(struct bny_world *w, const struct bny_failure *f)
{
    struct bny_member *m;

    if (f->cause != BNY_CAUSE_DEATH || !bny_members_has(&w->members, f->blamed))
        return 0;
    m = &w->members.of[f->blamed];
    return m->ep && m->ep->coming && bny_last_reads_go_on(&m->last, m->ep, bny_now_ns());
}

#define LAST_LOOKS 64

void bny_world_look_once_more(struct bny_world *w)
{
    for (int i = 0; i < LAST_LOOKS && bny_world_progress(w) > 0; i++)
        continue;
}

void bny_failure_adopt(struct bny_world *w)
{
    int local = w->has_local_failure;

    if (!local && bny_world_has_news(w)) {
        w->heard = bny_control_logged(w->control);
        bny_world_look_once_more(w);
    }
    w->has_local_failure = 0;
    for (struct banyan_comm *c = w->comms; c; c = c->next_comm) {
        struct bny_failure f = w->local_failure;

        if (atomic_load_explicit(&c->failed, memory_order_relaxed))
            continue;
        if (local ? concerns(c, &f)
                  : w->control &&
                        (bny_control_failure_among(w->control, c->id, has_rank, c, &f) ||
                         bny_control_not_made(w->control, c->parent_id, c->parent_call, &f)) &&
                        !is_being_read(w, &f)) {
            f.text[sizeof f.text - 1] = '\0';
            bny_comm_set_failure(c, &f);
        }
    }
}
