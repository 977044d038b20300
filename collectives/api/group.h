/* SPDX-License-Identifier: BSD-3-Clause */
/* The calls that a thread's group keeps until it ends. submit.c runs them. */
#ifndef BNY_API_GROUP_H
#define BNY_API_GROUP_H

#include <stddef.h>
#include <stdint.h>

struct bny_op;

struct bny_group_call {
    struct bny_op *op;
    uint64_t comm_serial; /* of the communicator's handle */
};

struct bny_group {
    struct bny_group_call *calls;
    size_t n, cap;
    int lacks; /* of a call that could not be kept: the group does not run; < 0 */
    char why[256];
};
extern _Thread_local struct bny_group bny_group; /* base/thread_context.h has its depth */

/* Room for a call more: 0 or -BANYAN_ENOMEM. */
int bny_group_room(void);
/* rc, of a call: inside a group that found no memory for it the group will not run. */
int bny_group_lacks(int rc);

#endif
