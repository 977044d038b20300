/* SPDX-License-Identifier: BSD-3-Clause */
/* Sweeps over what a random test may miss: all ops on all types, all counts of interest, all
 * schedules; inexact floats; counts beyond 2^31. */
#include "tests/mp/table.h"

static struct mp_row sweeps[] = {
    { "sweep", "shm", 1 }, { "sweep", "shm", 2 }, { "sweep", "shm", 3 }, { "sweep", "shm", 4 },
    { "sweep", "shm", 7 }, { "sweep", "tcp", 2 }, { "sweep", "tcp", 3 }, { "sweep", "tcp", 5 },
};
MP_TABLE(collectives, counts_of_interest_in_and_out_of_place, sweeps)

static struct mp_row ops[] = {
    { "ops", "shm", 1 },
    { "ops", "shm", 2 },
    { "ops", "shm", 5 },
    { "ops", "tcp", 3 },
    { "ops", "shm", 3, "", 0, { "BANYAN_CPU_MASK=0" } },
};
MP_TABLE(collectives, every_op_on_every_type, ops)

static struct mp_row schedules[] = {
    { "schedules", "shm", 1 }, { "schedules", "shm", 2 }, { "schedules", "shm", 3 },
    { "schedules", "shm", 4 }, { "schedules", "shm", 6 }, { "schedules", "shm", 8 },
    { "schedules", "tcp", 4 }, { "schedules", "tcp", 5 },
};
MP_TABLE(collectives, every_schedule_on_every_collective, schedules)

static struct mp_row identical[] = {
    { "identical", "shm", 2 }, { "identical", "shm", 3 }, { "identical", "shm", 4 },
    { "identical", "shm", 7 }, { "identical", "shm", 8 }, { "identical", "tcp", 3 },
};
MP_TABLE(collectives, all_ranks_hold_the_same_bits, identical)

static struct mp_row fp_modes[] = {
    { "fp_modes", "shm", 2 },
    { "fp_modes", "shm", 2, "progress" },
    { "fp_modes", "shm", 3 },
    { "fp_modes", "tcp", 3, "progress", 0, { "BANYAN_ENCODE_THREADS=1" } },
};
MP_TABLE(collectives, same_bits_in_any_floating_point_mode, fp_modes)

static struct mp_row codecs[] = {
    { "codecs", "shm", 1 },
    { "codecs", "shm", 2 },
    { "codecs", "shm", 5 },
    { "codecs", "tcp", 3 },
};
MP_TABLE(collectives, codecs_keep_their_bound_and_same_bits, codecs)

static struct mp_row stateful[] = {
    { "stateful", "shm", 1 },
    { "stateful", "shm", 2 },
    { "stateful", "shm", 3 },
    { "stateful", "tcp", 4 },
};
MP_TABLE(collectives, linear_codecs_with_a_state_lose_nothing, stateful)

static struct mp_row unused[] = {
    { "codec_unused", "shm", 2, "", 0, { "BANYAN_CODEC=int8:force=1" } },
};
MP_TABLE(collectives, codecs_that_are_not_used_are_told, unused)

static struct mp_row conservation[] = {
    { "conservation", "shm", 3 },
    { "conservation", "tcp", 4, "", 0, { "BANYAN_ENCODE_THREADS=2" } },
};
MP_TABLE(collectives, codecs_with_feedback_lose_nothing_on_splits_either, conservation)

static struct mp_row vector_codecs[] = {
    { "vector_codecs", "shm", 2 },
    { "vector_codecs", "shm", 3 },
    { "vector_codecs", "tcp", 3, "", 0, { "BANYAN_LINK_GBPS=1" } },
    { "vector_codecs", "tcp", 3, "", 0, { "BANYAN_CODEC=lossless", "BANYAN_LINK_GBPS=1" } },
};
MP_TABLE(collectives, blocks_of_any_length_with_exact_codecs, vector_codecs)

static struct mp_row deterministic[] = {
    { "deterministic", "shm", 2 },
    { "deterministic", "shm", 3 },
    { "deterministic", "shm", 6 },
    { "deterministic", "tcp", 4 },
};
MP_TABLE(collectives, deterministic_mode_gives_the_same_bits_always, deterministic)

static struct mp_row ragged[] = {
    { "ragged_in_place", "shm", 2 },
    { "ragged_in_place", "shm", 3 },
    { "ragged_in_place", "shm", 4 },
    { "ragged_in_place", "tcp", 3 },
};
MP_TABLE(collectives, in_place_with_a_short_last_chunk, ragged)

static struct mp_row handles[] = {
    { "user_handles", "shm", 2 },
    { "user_handles", "tcp", 3 },
};
MP_TABLE(collectives, operation_handles_are_checked, handles)

static struct mp_row huge[] = {
    { "huge", "shm", 2, "", 240, .is_dear = 1 },
};
MP_TABLE(collectives, counts_beyond_two_to_the_31, huge)
