/* SPDX-License-Identifier: BSD-3-Clause */
/* The harness itself: failures, crashes and hangs are seen and ended, and the checks of the
 * cases can fail. */
#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "tests/mp/table.h"

static struct mp_row rows[] = {
    { "self_image", "shm", 1 },
    { "self_model", "shm", 1 },
};
MP_TABLE(harness, the_checks_themselves, rows)

Test(harness, a_good_run_passes, .timeout = 60)
{
    struct mp mp = { .n = 4,
                     .case_name = "self_pass",
                     .seed = 77,
                     .arg = "x y",
                     .env = { "@1 BANYAN_WORLD_SIZE" } };

    cr_assert_eq(mp_run(&mp), 0);
}

Test(harness, a_failed_check_fails_the_run_and_ends_the_others, .timeout = 60)
{
    struct mp mp = { .n = 3, .case_name = "self_misbehave", .arg = "check" };

    cr_assert_eq(mp_run(&mp), 1);
    mp.arg = "crash";
    cr_assert_eq(mp_run(&mp), 1);
}

Test(harness, a_hanging_run_is_ended_at_its_deadline, .timeout = 60)
{
    struct mp mp = { .n = 3, .case_name = "self_misbehave", .arg = "hang", .timeout_s = 0.3 };

    cr_assert_eq(mp_run(&mp), 1);
}

Test(harness, a_skip_says_why, .timeout = 60)
{
    struct mp mp = { .n = 3, .case_name = "self_skip" };

    cr_assert_eq(mp_run(&mp), MP_SKIP);
    cr_assert_str_eq(mp_skip_reason(), "this machine has 3 legs");
}

Test(harness, only_the_victim_may_die, .timeout = 60)
{
    static struct mp_shared out;
    struct mp mp = { .n = 3,
                     .case_name = "self_victim",
                     .out = &out,
                     .kill = { .signal = SIGKILL, .rank = 1, .marker = 1, .delay_us = 500 } };

    cr_assert_eq(mp_run(&mp), 0);
    cr_assert_gt(atomic_load(&out.signal_ns), 0u);
    mp.kill.signal = SIGSTOP;
    cr_assert_eq(mp_run(&mp), 0);
}

Test(harness, a_victim_that_is_never_ready_fails_the_run, .timeout = 60)
{
    struct mp mp = { .n = 2,
                     .case_name = "self_image",
                     .kill = { .signal = SIGKILL, .rank = 1, .marker = 1 } };

    cr_assert_eq(mp_run(&mp), 1);
}
