/* SPDX-License-Identifier: BSD-3-Clause */
/* Where a thread is: not every call may be made there. */
#ifndef BNY_BASE_PLACE_H
#define BNY_BASE_PLACE_H

/* It runs a user's function, and holds the lock of a world: a call that needs a lock would wait
 * for itself. */
extern _Thread_local int bny_in_user_op;
int bny_user_op_refuse(const char *what); /* -BANYAN_EBUSY */
/* How many groups it has started and not ended. */
extern _Thread_local int bny_group_depth;

/* Of calls that wait for other ranks by operations of their own, which a group would only keep:
 * 0, or -BANYAN_EBUSY inside a group or a user operation. what: the function called. */
int bny_place_may_wait(const char *what);

#endif
