/* SPDX-License-Identifier: BSD-3-Clause */
/* How long a rank that leaves waits until all have heard it: who leaves too early looks dead.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "collectives/api/job.h"
#include "transport/bootstrap/failures.h"

static const uint8_t secret[32] = "a secret of the tests, 32 bytes", job[8] = "farewel";

static struct bny_world *world_new(double op_timeout_s)
{
    struct bny_world *w = bny_world_new(2, 0);

    cr_assert(w);
    w->op_timeout_s = op_timeout_s;
    cr_assert_eq(bny_control_create(&w->control, 0, 2, secret, job, "lo", ""), 0, "%s",
                 banyan_last_error());
    return w;
}

static void report(struct bny_world *w, uint32_t comm)
{
    struct bny_failure f = { .cause = BNY_CAUSE_DEADLINE,
                             .code = BANYAN_ETIMEDOUT,
                             .blamed = 1,
                             .comm = comm,
                             .text = "rank 1 is late" };

    bny_control_report(w->control, &f);
}

/* Ranks that are slow get as long as their operations may take, within bounds. */
Test(farewell, is_bounded_by_the_deadline_of_operations)
{
    static const struct {
        double timeout_s, seconds;
    } of[] = { { 60, 60 }, { 300, 300 }, { 1, 10 }, { 0, 300 }, { 1e9, 300 } };

    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        struct bny_world *w = world_new(of[i].timeout_s);

        cr_assert_eq(bny_farewell_ns(w), (uint64_t)(of[i].seconds * 1e9), "%g s",
                     of[i].timeout_s);
        bny_world_free(w);
    }
}

/* What failed was a communicator; the others go on, and so do their goodbyes. */
Test(farewell, a_communicator_that_failed_does_not_hurry_the_world)
{
    struct bny_world *w = world_new(60);

    report(w, 7);
    cr_assert(bny_control_suspect(w->control));
    cr_assert_eq(bny_farewell_ns(w), 60000000000u);
    report(w, 0);
    cr_assert_eq(bny_farewell_ns(w), 500000000u, "the world failed: all leave");
    bny_world_free(w);
}
