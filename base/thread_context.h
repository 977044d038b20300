/* SPDX-License-Identifier: BSD-3-Clause */
/* A thread's context: some calls are not allowed in it. */
#ifndef BNY_BASE_THREAD_CONTEXT_H
#define BNY_BASE_THREAD_CONTEXT_H

/* It runs a user's function, and holds the lock of a world: a call that needs a lock would
 * deadlock. */
extern _Thread_local int bny_in_user_op;
int bny_user_op_refuse(const char *what); /* -BANYAN_EBUSY */
/* Number of open groups. */
extern _Thread_local int bny_group_depth;

/* For calls that wait for other ranks by operations of their own, which a group would only
 * queue: 0, or -BANYAN_EBUSY inside a group or a user operation. what: the called function. */
int bny_place_may_wait(const char *what);

#endif
