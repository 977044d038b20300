/* SPDX-License-Identifier: BSD-3-Clause */
/* The calls of a group: below those who check calls, and those who run them. */
#include "collectives/api/group.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/thread_context.h"

_Thread_local struct bny_group bny_group;
static pthread_key_t
    key; /* its value is this thread's bny_group.calls, freed with the thread */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void key_make(void)
{
    pthread_key_create(&key, free);
}

int bny_group_room(void)
{
    size_t cap = bny_group.cap ? 2 * bny_group.cap : 16;
    struct bny_group_call *more;

    if (bny_group.n < bny_group.cap)
        return 0;
    more = realloc(bny_group.calls, cap * sizeof *more);
    if (!more)
        return bny_fail(BANYAN_ENOMEM, "no memory for a group of %zu calls", cap);
    bny_group.calls = more;
    bny_group.cap = cap;
    pthread_once(&once, key_make);
    pthread_setspecific(key, more);
    return 0;
}

/* A refused call is refused at all ranks. The others run the call for which this rank lacks
 * memory. If this rank ran the rest of the group, they would take the next call for it. */
int bny_group_lacks(int rc)
{
    if (rc == -BANYAN_ENOMEM && bny_group_depth && !bny_group.lacks) {
        bny_group.lacks = rc;
        snprintf(bny_group.why, sizeof bny_group.why, "the group did not run: %.200s",
                 bny_why(rc));
    }
    return rc;
}
