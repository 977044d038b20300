/* SPDX-License-Identifier: BSD-3-Clause */
/* Sketched updates between ranks: against a reference, states, and how they fail. Whole numbers
 * divide exactly by 1, 2, 4 and 8 ranks. */
#include "tests/mp/table.h"

static struct mp_row reference[] = {
    { "sketch_reference", "shm", 1 }, { "sketch_reference", "shm", 2 },
    { "sketch_reference", "tcp", 4 }, { "sketch_reference", "shm", 8 },
    { "sketch_agrees", "shm", 3 },    { "sketch_agrees", "tcp", 5 },
};
MP_TABLE(sketch, does_as_the_reference, reference)

static struct mp_row states[] = {
    { "sketch_state", "shm", 1 }, { "sketch_state", "shm", 2 }, { "sketch_state", "tcp", 3 },
    { "sketch_quiet", "shm", 1 }, { "sketch_quiet", "shm", 3 },
};
MP_TABLE(sketch, states_continue_bit_by_bit, states)

static struct mp_row wrong[] = {
    { "sketch_disagrees", "shm", 2 },
    { "sketch_disagrees", "tcp", 3 },
    { "sketch_wrong", "shm", 2 },
    { "sketch_wrong", "tcp", 4 },
};
MP_TABLE(sketch, what_is_wrong_is_told, wrong)
