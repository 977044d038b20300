/* SPDX-License-Identifier: BSD-3-Clause */
/* Participation sets in jobs of 1 to 7 processes over every local transport. */
#include <signal.h>
#include <stdio.h>

#include "base/rng.h"
#include "tests/mp/table.h"

static struct mp_row random_calls[] = {
    { "participants", "shm", 1 },
    { "participants", "shm", 2 },
    { "participants", "shm", 3 },
    { "participants", "shm", 4 },
    { "participants", "shm", 7, "120" },
    { "participants", "tcp", 2 },
    { "participants", "tcp", 3 },
    { "participants", "tcp", 5, "120" },
    { "participants", "shm", 3, "100", 0, { "BANYAN_TEST_SEED=random" } },
    { "participants", "tcp", 4, "100", 0, { "BANYAN_TOPO=torus:2x2" } },
    { "participants",
      "tcp",
      6,
      "80",
      0,
      { "BANYAN_TOPO=star:3x100+3x25", "BANYAN_SCHEDULE=packed" } },
};
MP_TABLE(participants, random_calls_are_right, random_calls)

static struct mp_row bytes[] = {
    { "set_bytes", "shm", 2 },
    { "set_bytes", "shm", 5 },
    { "set_bytes", "tcp", 4 },
    { "set_bytes", "tcp", 7 },
};
MP_TABLE(participants, absent_ranks_send_no_payload, bytes)

static struct mp_row codecs[] = {
    { "set_codecs", "shm", 2 },
    { "set_codecs", "shm", 4 },
    { "set_codecs", "tcp", 5 },
    { "set_codecs", "tcp", 3, "", 0, { "BANYAN_ENCODE_THREADS=2" } },
    { "set_scale", "shm", 3 },
};
MP_TABLE(participants, residuals_of_absent_ranks_stay, codecs)

static struct mp_row misuse[] = {
    { "set_misuse", "shm", 1 },
    { "set_misuse", "shm", 3 },
    { "set_misuse", "tcp", 4 },
};
MP_TABLE(participants, misuse_is_refused, misuse)

static struct mp_row mismatch[] = {
    { "set_mismatch", "shm", 3, "100" },     { "set_mismatch", "shm", 4, "100000" },
    { "set_mismatch", "tcp", 3, "100" },     { "set_mismatch", "tcp", 4, "100000" },
    { "set_mismatch", "tcp", 5, "2000000" }, { "set_mismatch", "shm", 16, "1000" },
};
MP_TABLE(participants, other_sets_are_an_error, mismatch)

struct death {
    char transport[8];
    int n, victim;
};
static struct death deaths[] = { { "shm", 3, 1 }, { "shm", 5, 0 }, { "tcp", 4, 2 } };

ParameterizedTestParameters(participants, a_dead_participant_is_named)
{
    return MP_ROWS(struct death, deaths);
}

ParameterizedTest(struct death *d, participants, a_dead_participant_is_named, .timeout = 300)
{
    uint64_t s = mp_seed();
    char arg[16];

    snprintf(arg, sizeof arg, "%d", d->victim);
    for (int run = 0; run < 3; run++) {
        struct mp mp = { .n = d->n,
                         .case_name = "set_death",
                         .transport = d->transport,
                         .arg = arg,
                         .seed = bny_rng_next(&s) | 1,
                         .kill = { .signal = SIGKILL,
                                   .rank = d->victim,
                                   .marker = 1 + (uint32_t)bny_rng_below(&s, 6),
                                   .delay_us = (uint32_t)bny_rng_below(&s, 30000) },
                         .timeout_s = 40 };
        MP_CHECK(mp_run(&mp));
    }
}
