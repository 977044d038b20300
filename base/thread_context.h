/* SPDX-License-Identifier: BSD-3-Clause */
/* A thread's context: some calls are not allowed in it. */
#ifndef BNY_BASE_THREAD_CONTEXT_H
#define BNY_BASE_THREAD_CONTEXT_H

/* It runs a function of the program. */
enum bny_inside {
    BNY_IN_USER_OP = 1, /* a user operation, and holds the lock of a world: a call that needs a
                         * lock would deadlock */
    BNY_IN_DONE_FN = 2, /* a request's completion function: it may start requests, not wait */
};
extern _Thread_local int bny_inside; /* enum bny_inside; 0: neither */
/* For calls that need a lock: 0, or -BANYAN_EBUSY in a user operation. */
int bny_inside_refuses(const char *what);
/* Number of open groups. */
extern _Thread_local int bny_group_depth;

/* For calls that wait: 0, or -BANYAN_EBUSY in a user operation or a completion function. */
int bny_inside_may_wait(const char *what);
/* For calls that wait for other ranks by operations of their own, which a group would only
 * queue: 0, or -BANYAN_EBUSY, also inside a group. what: the called function. */
int bny_place_may_wait(const char *what);

#endif
