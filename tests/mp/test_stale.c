/* SPDX-License-Identifier: BSD-3-Clause */
/* Stale and K-of-n updates: which gradients come when; states; what is wrong. */
#include "tests/mp/table.h"

static struct mp_row reference[] = {
    { "stale_reference", "shm", 1 },         { "stale_reference", "shm", 2 },
    { "stale_reference", "tcp", 3 },         { "stale_reference", "shm", 5 },
    { "stale_reference", "shm", 8, "star" }, { "stale_reference", "tcp", 4, "star" },
};
MP_TABLE(stale, does_as_the_reference, reference)

static struct mp_row states[] = {
    { "stale_state", "shm", 1 }, { "stale_state", "shm", 2 }, { "stale_state", "tcp", 4 },
    { "stale_quiet", "shm", 1 }, { "stale_quiet", "shm", 3 },
};
MP_TABLE(stale, states_continue_bit_by_bit, states)

static struct mp_row wrong[] = {
    { "stale_wrong", "shm", 3 },
    { "stale_wrong", "tcp", 5 },
};
MP_TABLE(stale, what_is_wrong_is_told, wrong)
