/* SPDX-License-Identifier: BSD-3-Clause */
/* A thread's context. */
#include "base/thread_context.h"

#include "base/err.h"

_Thread_local int bny_inside, bny_group_depth;

int bny_inside_refuses(const char *what)
{
    return bny_inside != BNY_IN_USER_OP
               ? 0
               : bny_fail(BANYAN_EBUSY,
                          "%s: called from inside a user operation, which may only compute, "
                          "query rank, count, stats and errors, and abort",
                          what);
}

int bny_inside_may_wait(const char *what)
{
    if (bny_inside == BNY_IN_DONE_FN)
        return bny_fail(
            BANYAN_EBUSY,
            "%s: called from inside a completion function, which may start requests "
            "but must not wait",
            what);
    return bny_inside_refuses(what);
}

int bny_place_may_wait(const char *what)
{
    int rc = bny_inside_may_wait(what);

    if (rc || !bny_group_depth)
        return rc;
    return bny_fail(BANYAN_EBUSY,
                    "%s: called inside a group, whose calls run only at its end; call "
                    "banyan_group_end first",
                    what);
}
