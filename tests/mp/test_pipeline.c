/* SPDX-License-Identifier: BSD-3-Clause */
/* The write-back allreduce and other passes in jobs of 2 to 8 processes; with more ranks than
 * CPUs, too. */
#include "tests/mp/table.h"

static struct mp_row in_flight[] = {
    { "many_in_flight", "shm", 2, "sums" },
    { "many_in_flight", "shm", 3, "sums" },
    { "many_in_flight", "shm", 4, "sums" },
    { "many_in_flight", "shm", 5, "sums" },
    { "many_in_flight", "shm", 8, "sums", 120 },
    { "many_in_flight", "shm", 5, "sums", 0, { "BANYAN_TEST_CPUS=16" } },
    { "many_in_flight", "shm", 2, "sums", 0, { "BANYAN_TEST_SEED=random" } },
    { "many_in_flight", "shm", 3, "sums", 0, { "BANYAN_TEST_SEED=random", "BANYAN_CMA=0" } },
};
MP_TABLE(pipeline, many_in_flight_are_right, in_flight)

static struct mp_row differs[] = {
    { "pipeline_differs", "shm", 2, "count" },
    { "pipeline_differs", "shm", 2, "type" },
    { "pipeline_differs", "shm", 3, "op" },
    { "pipeline_differs", "shm", 2, "chunk" },
    { "pipeline_differs", "shm", 3, "schedule" },
    { "pipeline_differs", "shm", 2, "collective" },
    { "pipeline_differs", "shm", 4, "count" },
};
MP_TABLE(pipeline, ranks_that_differ_are_told, differs)

static struct mp_row exchanges[] = {
    { "many_in_flight", "shm", 2, "passes" },
    { "many_in_flight", "shm", 3, "passes" },
    { "many_in_flight", "shm", 4, "passes" },
    { "many_in_flight", "shm", 7, "passes", 120 },
    { "many_in_flight", "shm", 4, "passes", 0, { "BANYAN_TEST_CPUS=16" } },
    { "many_in_flight", "shm", 6, "passes", 120, { "BANYAN_TEST_CPUS=16" } },
    { "many_in_flight", "shm", 2, "passes", 0, { "BANYAN_TEST_SEED=random" } },
    { "many_in_flight", "shm", 3, "passes", 0, { "BANYAN_TEST_SEED=random" } },
};
MP_TABLE(pipeline, exchanges_are_right, exchanges)

static struct mp_row exchanges_differ[] = {
    { "exchange_differs", "shm", 2, "count" },
    { "exchange_differs", "shm", 3, "chunk" },
    { "exchange_differs", "shm", 2, "op" },
    { "exchange_differs", "shm", 3, "collective" },
};
MP_TABLE(pipeline, exchanges_that_differ_are_told, exchanges_differ)

static struct mp_row races[] = {
    { "ahead", "shm", 5 },
    { "ahead", "shm", 8 },
    { "race", "shm", 2 },
    { "race", "shm", 3 },
    { "race", "shm", 5 },
    { "race", "shm", 8, "", 120 },
    { "race", "shm", 6, "", 120, { "BANYAN_TEST_CPUS=16" } },
    { "race", "shm", 4, "", 0, { "BANYAN_TEST_SEED=random" } },
};
MP_TABLE(pipeline, ranks_that_are_ahead_are_right, races)

static struct mp_row rooted_differ[] = {
    { "roots_differ", "shm", 2, "root" },       { "roots_differ", "shm", 4, "root" },
    { "roots_differ", "shm", 3, "count" },      { "roots_differ", "shm", 2, "op" },
    { "roots_differ", "shm", 3, "collective" },
};
MP_TABLE(pipeline, rooted_ones_that_differ_are_told, rooted_differ)

static struct mp_row gathers[] = {
    { "gathers", "shm", 4 },
    { "gathers", "shm", 5, "mem" },
    { "gathers", "shm", 3, "mem", 0, { "BANYAN_TEST_SEED=random" } },
    { "gathers", "shm", 4, "", 0, { "BANYAN_TEST_SEED=random" } },
    { "gathers", "shm", 4, "mem", 0, { "BANYAN_CMA=0" } },
    { "gather_meets", "shm", 3 },
    { "gather_meets", "shm", 4 },
};
MP_TABLE(pipeline, gathers_into_the_root_are_right, gathers)

static struct mp_row given_up[] = {
    { "gather_given_up", "shm", 4 },
};
MP_TABLE(pipeline, late_givers_write_nowhere, given_up)
