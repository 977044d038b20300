/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_comm_grow and banyan_comm_join in jobs of up to 8 processes. */
#include <stdio.h>

#include "tests/mp/table.h"

static struct mp_row steps[] = {
    { "grow_steps", "shm", 6 },
    { "grow_steps", "tcp", 6 },
    { "grow_steps", "", 8 },
    { "grow_steps", "shm", 3 },
    { "grow_steps", "tcp", 5, "", 0, { "BANYAN_CONTROL_THREAD=0" } },
};
MP_TABLE(grow, newcomers_join, steps)

static struct mp_row refused[] = {
    { "grow_refused", "shm", 4 }, { "grow_refused", "tcp", 4 }, { "grow_starved", "shm", 3 },
    { "grow_starved", "tcp", 3 }, { "grow_left", "shm", 3 },    { "grow_left", "tcp", 4 },
};
MP_TABLE(grow, wrong_newcomers_are_refused, refused)

static struct mp_row again[] = {
    { "grow_again", "shm", 4, "50", 120 },
    { "grow_again", "tcp", 4, "50", 120 },
    { "grow_newcomer_dies", "shm", 4, "12", 120 },
    { "grow_newcomer_dies", "tcp", 5, "12", 120 },
};
MP_TABLE(grow, newcomers_die_and_come_again, again)

struct death {
    char transport[8];
    int victim, runs;
};

static struct death deaths[] = {
    { "shm", 0, 4 }, { "shm", 1, 4 }, { "shm", 2, 4 },
    { "tcp", 0, 4 }, { "tcp", 1, 4 }, { "tcp", 2, 4 },
};

ParameterizedTestParameters(grow, members_die)
{
    return MP_ROWS(struct death, deaths);
}

/* Of four members, and a newcomer. */
ParameterizedTest(struct death *p, grow, members_die, .timeout = 400)
{
    uint64_t seed = mp_seed();

    for (int run = 0; run < p->runs; run++) {
        char arg[16];
        struct mp mp = { .n = 5,
                         .case_name = "grow_member_dies",
                         .transport = p->transport,
                         .seed = seed + 100 * (uint64_t)p->victim + (uint64_t)run,
                         .may_die = 1u << p->victim,
                         .arg = arg };

        snprintf(arg, sizeof arg, "%d", p->victim);
        MP_CHECK(mp_run(&mp));
    }
}
