/* SPDX-License-Identifier: BSD-3-Clause */
/* Requests that are complete and whose program has a function to be called then. Under a
 * world's lock nothing of the program may be called, so they wait here for a thread that holds
 * no lock, in the order in which they completed. One thread at a time calls. */
#include <sched.h>
#include <stdatomic.h>

#include "base/fork.h"
#include "base/thread_context.h"
#include "collectives/op/op.h"

static struct bny_op *last;
static int has_caller; /* a thread is at it */

_Atomic(struct bny_op *) bny_completed_first;

static void completed_in_child(struct bny_lock *l)
{
    atomic_store(&bny_completed_first, NULL); /* the parent's are not ours */
    has_caller = 0;
}

static struct bny_lock lock = BNY_LOCK(completed_in_child);

/* before NULL: op becomes the first. */
static void put_behind(struct bny_op *before, struct bny_op *op)
{
    if (before)
        before->behind = op;
    else
        atomic_store(&bny_completed_first, op);
}

void bny_completed_add(struct bny_op *op)
{
    op->behind = NULL;
    bny_lock_take(&lock);
    put_behind(atomic_load(&bny_completed_first) ? last : NULL, op);
    last = op;
    bny_lock_give(&lock);
}

void bny_completed_drop(const struct bny_op *op)
{
    struct bny_op *before = NULL, *at;

    bny_lock_take(&lock);
    for (at = atomic_load(&bny_completed_first); at && at != op; at = at->behind)
        before = at;
    if (at) {
        put_behind(before, at->behind);
        last = at == last ? before : last;
    }
    bny_lock_give(&lock);
}

/* The next one; NULL: there is none, or another thread is calling. */
static struct bny_op *completed_take(int was_caller)
{
    struct bny_op *op = NULL;

    bny_lock_take(&lock);
    if (was_caller || !has_caller) {
        op = atomic_load(&bny_completed_first);
        has_caller = op != NULL;
    }
    if (op)
        atomic_store(&bny_completed_first, op->behind);
    bny_lock_give(&lock);
    return op;
}

void bny_completed_hold(void)
{
    int is_mine = bny_inside == BNY_IN_DONE_FN; /* this thread is calling */

    while (!is_mine) {
        bny_lock_take(&lock);
        is_mine = !has_caller;
        has_caller = 1;
        bny_lock_give(&lock);
        if (!is_mine)
            sched_yield();
    }
}

void bny_completed_release(void)
{
    if (bny_inside == BNY_IN_DONE_FN)
        return;
    bny_lock_take(&lock);
    has_caller = 0;
    bny_lock_give(&lock);
}

/* A call that a completion function makes leaves the others to the loop that it is in. */
void bny_completed_call_now(void)
{
    struct bny_op *op;

    if (bny_inside)
        return;
    op = completed_take(0);
    while (op) {
        bny_inside = BNY_IN_DONE_FN;
        op->on_done(op);
        bny_inside = 0;
        op = completed_take(1);
    }
}
