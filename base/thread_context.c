/* SPDX-License-Identifier: BSD-3-Clause */
/* A thread's context. */
#include "base/thread_context.h"

#include "base/err.h"

_Thread_local int bny_in_user_op, bny_group_depth;

int bny_user_op_refuse(const char *what)
{
    return bny_fail(BANYAN_EBUSY,
                    "%s: called from inside a user operation, which may only compute, query "
                    "rank, count, stats and errors, and abort",
                    what);
}

int bny_place_may_wait(const char *what)
{
    if (bny_in_user_op)
        return bny_user_op_refuse(what);
    return bny_group_depth ? bny_fail(BANYAN_EBUSY,
                                      "%s: called inside a group, whose calls run only at its "
                                      "end; call banyan_group_end first",
                                      what)
                           : 0;
}
