/* SPDX-License-Identifier: BSD-3-Clause */
/* BNY_ASSERT: what is false ends the process in builds with checks; in others nothing of the
 * condition runs. */
#include <criterion/criterion.h>
#include <signal.h>

#include "base/assert.h"

static int evaluated;

static int answer(int value)
{
    evaluated++;
    return value;
}

Test(assert, what_holds_goes_on)
{
    BNY_ASSERT(answer(1));
    cr_assert_eq(evaluated, BNY_CHECKS);
}

#if BNY_CHECKS
Test(assert, what_does_not_hold_aborts, .signal = SIGABRT)
{
    BNY_ASSERT(answer(0));
}
#else
Test(assert, release_does_not_evaluate)
{
    BNY_ASSERT(answer(0));
    cr_assert_eq(evaluated, 0);
}
#endif
