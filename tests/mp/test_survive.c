/* SPDX-License-Identifier: BSD-3-Clause */
/* Going on after failures: the calls for it, and who is no obstacle. Faults at random moments:
 * soak.c. */
#include <string.h>

#include "tests/mp/table.h"

static struct mp_row calls[] = {
    { "revoke", "shm", 2 },
    { "revoke", "shm", 5 },
    { "revoke", "tcp", 3 },
    { "revoke", "tcp", 12 },
    { "revoke", "shm", 4, "", 20, { "BANYAN_CONTROL_THREAD=0" } },
    { "late_one_is_blamed", "shm", 2 },
    { "late_one_is_blamed", "shm", 6 },
    { "late_one_is_blamed", "tcp", 5 },
    { "late_one_is_blamed", "tcp", 12 },
    { "agree_without_one", "shm", 4 },
    { "agree_without_one", "tcp", 9 },
};
MP_TABLE(survive, calls, calls)

struct shape {
    char transport[8];
    int n;
};
static struct shape shapes[] = { { "shm", 4 }, { "tcp", 3 }, { "shm", 11 } };

ParameterizedTestParameters(survive, a_rank_that_computes_is_no_obstacle)
{
    return MP_ROWS(struct shape, shapes);
}

ParameterizedTest(struct shape *p, survive, a_rank_that_computes_is_no_obstacle, .timeout = 100)
{
    static struct mp_shared out;
    struct mp mp = { .n = p->n,
                     .case_name = "computes_meanwhile",
                     .transport = p->transport,
                     .timeout_s = 40,
                     .may_end = 1u << (p->n - 1),
                     .out = &out };
    uint64_t first = UINT64_MAX;

    MP_CHECK(mp_run(&mp));
    for (int r = 1; r < p->n - 1; r++) {
        uint64_t ns = atomic_load(&out.value[r][3]);

        first = ns < first ? ns : first;
    }
    cr_expect_lt(first, 1400000000u, "all waited for the rank that computes");
}
