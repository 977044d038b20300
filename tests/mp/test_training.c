/* SPDX-License-Identifier: BSD-3-Clause */
/* The training layer between ranks: tensors that differ, Accordion's decisions, outer,
 * shared masks, states that are saved in the middle. */
#include "tests/mp/table.h"

static struct mp_row model[] = {
    { "tensors_agree", "shm", 2 },
    { "tensors_agree", "tcp", 3 },
};
MP_TABLE(training, tensors_that_differ_are_told, model)

static struct mp_row accordion[] = {
    { "accordion_table", "shm", 1 },     { "accordion_table", "shm", 3 },
    { "accordion_window", "shm", 2 },    { "accordion_batch", "shm", 2 },
    { "accordion_disagrees", "shm", 2 }, { "accordion_disagrees", "tcp", 4 },
};
MP_TABLE(training, accordion_decides_by_the_table, accordion)

static struct mp_row states[] = {
    { "training_states", "shm", 1 },
    { "training_states", "shm", 2 },
    { "training_states", "tcp", 3 },
};
MP_TABLE(training, states_continue_bit_by_bit, states)

static struct mp_row quiet[] = {
    { "training_quiet", "shm", 1 },
    { "training_quiet", "shm", 2 },
};
MP_TABLE(training, a_steady_step_allocates_nothing, quiet)

static struct mp_row outer[] = {
    { "outer_local_sgd", "shm", 1 },  { "outer_local_sgd", "shm", 3 },
    { "outer_overlapped", "shm", 2 }, { "outer_overlapped", "tcp", 4 },
    { "outer_adaptive", "shm", 2 },   { "outer_adaptive", "tcp", 3 },
    { "outer_formula", "shm", 3 },    { "outer_formula", "tcp", 2 },
    { "outer_powersgd", "shm", 2 },   { "outer_nonfinite", "tcp", 3 },
    { "outer_weights", "shm", 3 },    { "outer_nobody", "shm", 2 },
    { "outer_grows", "tcp", 4 },
};
MP_TABLE(training, outer_averages, outer)

Test(training, outer_survives_a_death)
{
    for (int n = 2; n < 5; n++) {
        struct mp mp = { .n = n,
                         .case_name = "outer_survives",
                         .transport = n == 3 ? "tcp" : "shm",
                         .may_die = 1u << (n - 1) };

        MP_CHECK(mp_run(&mp));
    }
}

static struct mp_row mask[] = {
    { "mask_conserves", "shm", 1 },
    { "mask_conserves", "shm", 4 },
    { "mask_nonfinite", "tcp", 3 },
};
MP_TABLE(training, shared_masks_lose_nothing, mask)
