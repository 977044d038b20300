/* SPDX-License-Identifier: BSD-3-Clause */
/* The calls that a thread's group keeps until it ends. base/thread_context.h has its depth. */
#ifndef BNY_API_GROUP_H
#define BNY_API_GROUP_H

struct bny_op;

/* Adds prepared operations, which are linked by ->behind, to the open group. */
void bny_group_add(struct bny_op *first);
/* rc, of a call: inside a group that found no memory for it the group will not run. */
int bny_group_lacks(int rc);

#endif
