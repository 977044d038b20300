/* SPDX-License-Identifier: BSD-3-Clause */
/* Rows between ranks: dense, cached, of variable rate; states, and how they fail. */
#include "tests/mp/table.h"

static struct mp_row arrive[] = {
    { "rows_arrive", "shm", 1 }, { "rows_arrive", "shm", 2 }, { "rows_arrive", "tcp", 3 },
    { "rows_arrive", "shm", 8 }, { "rows_vary", "shm", 1 },   { "rows_vary", "shm", 2 },
    { "rows_vary", "tcp", 5 },   { "rows_vary", "shm", 8 },   { "rows_adapt", "shm", 2 },
};
MP_TABLE(rows, do_as_the_reference, arrive)

static struct mp_row states[] = {
    { "rows_state", "shm", 1 }, { "rows_state", "shm", 3 }, { "rows_state", "tcp", 4 },
    { "rows_quiet", "shm", 1 }, { "rows_quiet", "shm", 2 }, { "rows_quiet", "shm", 4 },
};
MP_TABLE(rows, states_continue_bit_by_bit, states)

static struct mp_row wrong[] = {
    { "rows_disagree", "shm", 2 },
    { "rows_disagree", "tcp", 4 },
    { "rows_wrong", "shm", 2 },
    { "rows_wrong", "tcp", 5 },
};
MP_TABLE(rows, what_is_wrong_is_told, wrong)
