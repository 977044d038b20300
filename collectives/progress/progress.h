/* SPDX-License-Identifier: BSD-3-Clause */
/* Drives a world: progress, waiting, failures. The only folder that sees all operations of
 * all communicators; nothing below calls up to it. */
#ifndef BNY_COLLECTIVES_PROGRESS_H
#define BNY_COLLECTIVES_PROGRESS_H

#include "collectives/op/op.h"

/* ---- progress.c ---- */

/* Progresses everything once; lock held. Returns the number of events. */
int bny_world_progress(struct bny_world *w);
/* Handles one transport event; lock held. */
void bny_world_event(struct bny_world *w, struct bny_event *ev);
/* Deadlines, control plane, failures; makes system calls; about once a millisecond. Lock held.
 */
void bny_world_tick(struct bny_world *w);
/* Was something agreed on that was not adopted yet? Calls that never wait would not notice. */
static inline int bny_world_has_news(const struct bny_world *w)
{
    return w->control && bny_control_logged(w->control) != w->heard;
}
static inline void bny_world_poll_membership(struct bny_world *w)
{
    if (bny_world_has_news(w))
        bny_world_tick(w);
}
/* Before an operation begins. A call that others cannot have ended without this rank fails with
 * the agreed error. A call that is complete at all others does not fail at a rank that only
 * came late; the next call gets the error. */
void bny_world_poll_membership_then(const struct bny_op *op);
static inline void bny_world_poll_membership_before(const struct bny_op *op)
{
    if (bny_world_has_news(op->comm->world))
        bny_world_poll_membership_then(op);
}
/* One turn for callers that come often: progress, and a tick when it is due. Lock not held. */
int bny_world_poll(struct bny_world *w);
/* banyan_progress_fd: the descriptor, or -BANYAN_ESYSTEM; with the lock. And bny_world_poll
 * where there is one: clears it, and it becomes readable when it should be called again. */
int bny_descriptor_open(struct bny_world *w);
int bny_descriptor_progress(struct bny_world *w);
/* Worlds of this process that have joined. */
void bny_worlds_add(struct bny_world *w);
void bny_worlds_remove(struct bny_world *w);
/* Calls f with the lock of each world that this process made, but of those in use. */
void bny_worlds_each(void (*f)(struct bny_world *w));
/* Progress for the other worlds of this process in which nobody waits. A message that a call
 * left behind in one world (it waits for a connection) must reach its peers while this process
 * waits in another. No lock held but, perhaps, that of `except`. */
void bny_worlds_progress(const struct bny_world *except);

/* ---- thread.c ---- */

/* A thread that progresses the world until it is freed, bound to a CPU (-1: unbound); nothing
 * where it has one. 0 or -BANYAN_ENOMEM. Lock held. */
int bny_world_thread(struct bny_world *w, int cpu);
/* Is the caller such a thread? */
int bny_world_is_thread(void);

/* ---- failure.c ---- */

/* Fails one communicator (not the others of its world), at once. Lock held. */
void bny_comm_set_failure(struct banyan_comm *comm, const struct bny_failure *f);
/* Uses what has come, before a failure is told: it may be all that an operation lacks which is
 * complete at the others, who sent it before they gave up. So a rank that slept between its
 * look at its peers and its look at clock or failures is told what they were. Lock held. */
void bny_world_look_once_more(struct bny_world *w);
/* Adopts what the control plane agreed on, behind what has come until now. Lock held. */
void bny_failure_adopt(struct bny_world *w);

/* ---- wait.c ---- */

int bny_op_wait(struct bny_op *op, uint64_t deadline_ns);
/* Waits until then; 0: as long as it takes. aside: another thread started it, and may compute.
 * 1: it is over. */
int bny_op_wait_until(struct bny_op *op, uint64_t until_ns, int aside);
/* The operation fails when it is not done by then; 0 keeps the communicator's deadline. Takes
 * the lock. */
void bny_op_set_deadline(struct bny_op *op, uint64_t deadline_ns);
/* Progresses, looking up to `tries` times at the peers of an operation that waits for messages
 * of known peers alone; lock held. Returns > 0 when something moved. */
int bny_op_look(struct bny_op *op, int tries);

/* For threads that sleep on descriptors: arms the transports, and gives up to
 * BNY_DESCRIPTORS_MAX descriptors that tell of work. *longest_ns: lowered to how long they
 * suffice; 0: something is here. Then bny_world_progress, as something may have come before.
 * Lock held. */
int bny_world_arm(struct bny_world *w, int *fds, uint64_t *longest_ns);
void bny_world_disarm(struct bny_world *w); /* behind the sleep; lock held */

struct bny_waiter {
    uint32_t spins, yields, yields_max, finds, nap_ns;
    int napped, yielded; /* yielded: in the turn before, as it spun */
    int aside;           /* other threads of the rank compute: it does not keep a CPU */
    uint64_t last_tick_ns;
};
void bny_wait_init(struct bny_waiter *wt);
/* A progress found something: waiting begins anew. */
void bny_wait_found(struct bny_waiter *wt, struct bny_world *w);
/* One turn of a wait loop after a progress that found nothing. Lock not held. */
void bny_wait_turn(struct bny_waiter *wt, struct bny_world *w, struct banyan_comm *comm);
/* A blocking call was complete without a turn: calls the hook, which comm has, where it is due.
 * Lock not held. */
void bny_wait_skipped(struct banyan_comm *comm);

/* Peers may need what the communicator's hook drives, at any time: see world.h. */
static inline int bny_hook_is_urgent(const struct banyan_comm *comm)
{
    return comm && comm->progress_hook &&
           atomic_load_explicit(&comm->world->hook_urgent, memory_order_relaxed);
}

#endif
