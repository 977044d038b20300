/* SPDX-License-Identifier: BSD-3-Clause */
/* Learned gradient compression between ranks: exchanges equal a second implementation's, bytes
 * are those of the formulas, the gate follows the correlation, states continue, mistakes and
 * deaths are told. */
#include <signal.h>

#include "tests/mp/table.h"

static struct mp_row exchanges[] = {
    { "lgc_shut", "shm", 1, "ring" },        { "lgc_shut", "shm", 2, "ring" },
    { "lgc_shut", "shm", 4, "server" },      { "lgc_shut", "tcp", 3, "server" },
    { "lgc_coded", "shm", 1, "ring" },       { "lgc_coded", "shm", 2, "ring" },
    { "lgc_coded", "shm", 4, "ring" },       { "lgc_coded", "shm", 1, "server" },
    { "lgc_coded", "shm", 2, "server" },     { "lgc_coded", "shm", 5, "server" },
    { "lgc_coded", "tcp", 3, "ring" },       { "lgc_coded", "tcp", 3, "server" },
    { "lgc_correlation", "shm", 1, "ring" }, { "lgc_correlation", "shm", 2, "ring" },
    { "lgc_correlation", "shm", 5, "ring" },
};
MP_TABLE(lgc, exchanges_are_those_of_a_second_implementation, exchanges)

static struct mp_row phases[] = {
    { "lgc_phases", "shm", 2, "ring" }, { "lgc_phases", "shm", 3, "server" },
    { "lgc_gate", "shm", 1, "ring" },   { "lgc_gate", "shm", 4, "ring" },
    { "lgc_gate", "shm", 3, "server" }, { "lgc_diverges", "shm", 2, "ring" },
};
MP_TABLE(lgc, phases_have_their_lengths_and_the_gate_its_correlation, phases)

static struct mp_row learns[] = {
    { "lgc_learns", "shm", 4, "ring" },
    { "lgc_learns", "shm", 2, "server" },
};
MP_TABLE(lgc, the_autoencoder_learns, learns)

static struct mp_row states[] = {
    { "lgc_states", "shm", 1, "ring" },   { "lgc_states", "shm", 3, "ring" },
    { "lgc_states", "shm", 3, "server" }, { "lgc_steady", "shm", 2, "ring" },
    { "lgc_steady", "shm", 3, "server" },
};
MP_TABLE(lgc, states_continue_and_steps_allocate_nothing, states)

static struct mp_row mistakes[] = {
    { "lgc_mistakes", "shm", 2, "ring" },
    { "lgc_mistakes", "shm", 3, "server" },
    { "lgc_mistakes", "tcp", 2, "ring" },
};
MP_TABLE(lgc, mistakes_are_told_at_all_ranks, mistakes)

static struct mp_row deaths[] = {
    { "lgc_death", "shm", 3, "ring" },
    { "lgc_death", "tcp", 3, "server" },
};

ParameterizedTestParameters(lgc, a_rank_lost_in_a_step_ends_it_everywhere)
{
    return MP_ROWS(struct mp_row, deaths);
}

ParameterizedTest(struct mp_row *row, lgc, a_rank_lost_in_a_step_ends_it_everywhere,
                  .timeout = 100)
{
    struct mp mp = { .n = row->n,
                     .case_name = row->case_name,
                     .transport = row->transport,
                     .arg = row->arg,
                     .kill = { .signal = SIGKILL, .rank = 1, .marker = 20, .delay_us = 300 } };

    MP_CHECK(mp_run(&mp));
}
