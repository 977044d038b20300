/* SPDX-License-Identifier: BSD-3-Clause */
/* The objects of training.h: what each begins with, and what every call with one asks first. */
#ifndef BNY_TRAINING_OBJECT_H
#define BNY_TRAINING_OBJECT_H

#include "base/handle.h"

struct banyan_comm;

struct bny_object { /* the first member */
    struct bny_handle handle;
    struct banyan_comm *comm;
};

/* Each _create begins with this: *out, a pointer to an object, becomes NULL. Returns an object,
 * all else of it zero. NULL and *rc: out or comm is NULL, comm was freed, has failed to come
 * about, or cannot be waited for here (a group, a user operation); or no memory. */
void *bny_object_new(struct bny_handles *kind, void *out, struct banyan_comm *comm,
                     const char *what, int *rc);
/* Each _free begins with this. 1: its members are to be freed, and the handle last; 0: it is
 * NULL; or -BANYAN_EINVAL: it was freed. */
int bny_object_may_free(const void *object, unsigned mark, const char *what);
/* For calls without communication: 0, or -BANYAN_EINVAL: NULL, or it was freed. */
int bny_object_check(const void *object, unsigned mark, const char *what);
/* For calls that communicate: also -BANYAN_EBUSY inside a group or a user operation, and what
 * is wrong with the communicator. */
int bny_object_enter(const void *object, unsigned mark, const char *what);

#endif
