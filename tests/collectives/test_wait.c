/* SPDX-License-Identifier: BSD-3-Clause */
/* Who waits with more ranks than CPUs looks at the control plane once in many turns, each of
 * which may be milliseconds; when something was decided it looks in the next. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "collectives/api/job.h"
#include "collectives/progress/progress.h"

#define TICK_US 1000 /* longer than two looks at the control plane are apart */
#define BLOB    64

static const uint8_t secret[32] = "a secret of the tests, 32 bytes", job[8] = "waiting";

static void connect_two(struct bny_control *c[2])
{
    uint8_t blobs[2 * BLOB], same_host[2] = { 1, 1 };
    uint64_t end = bny_deadline_in(20);

    for (int r = 0; r < 2; r++) {
        cr_assert_eq(bny_control_create(&c[r], r, 2, secret, job, "lo", ""), 0, "%s",
                     banyan_last_error());
        cr_assert_gt(bny_control_address(c[r], blobs + r * BLOB, BLOB), 0);
    }
    for (int r = 0; r < 2; r++)
        cr_assert_eq(bny_control_connect(c[r], blobs, BLOB, same_host), 0);
    while (!bny_control_ready(c[0]) || !bny_control_ready(c[1])) {
        cr_assert_not(bny_deadline_passed(end));
        bny_control_hear(c[0]);
        bny_control_hear(c[1]);
    }
}

/* As their threads do it. */
static void decide(struct bny_control *c[2])
{
    struct bny_failure f = {
        .cause = BNY_CAUSE_ABORT, .code = BANYAN_EABORTED, .blamed = 1, .text = "a test"
    };
    uint64_t end = bny_deadline_in(20);

    bny_control_report(c[1], &f);
    while (!bny_control_hear(c[0])) {
        cr_assert_not(bny_deadline_passed(end));
        bny_control_hear(c[1]);
    }
}

Test(wait, a_decision_is_looked_at_in_the_next_turn, .timeout = 60)
{
    struct bny_world *w = bny_world_new(2, 0);
    struct bny_control *c[2];
    struct bny_waiter wt;
    uint64_t before;

    connect_two(c);
    w->control = c[0];
    w->oversubscribed = 1;
    w->spin_us = -1;
    bny_wait_init(&wt);
    usleep(TICK_US);
    before = w->tick_ns;
    bny_wait_turn(&wt, w, NULL);
    cr_assert_eq(w->tick_ns, before, "it looks at every turn");
    decide(c);
    usleep(TICK_US);
    bny_wait_turn(&wt, w, NULL);
    cr_assert_neq(w->tick_ns, before, "it was not looked at");
    cr_assert_not(bny_control_told(w->control));
    bny_control_destroy(c[1]);
    bny_world_free(w);
}
