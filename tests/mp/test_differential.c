/* SPDX-License-Identifier: BSD-3-Clause */
/* Any call gives what the local model says, and writes nothing else: collective, type, op,
 * count, root, placement, alignment, memory, schedule, chunk and way of calling are random.
 * BANYAN_TEST_SEED repeats a run. */
#include "tests/mp/table.h"

static struct mp_row shm[] = {
    { "differential", "shm", 1, "calls=1500" },
    { "differential", "shm", 2, "calls=2500" },
    { "differential", "shm", 2, "calls=300 max=4194304" },
    { "differential", "shm", 3, "calls=2000" },
    { "differential", "shm", 4, "calls=1500" },
    { "differential", "shm", 5, "calls=1000" },
    { "differential", "shm", 7, "calls=700" },
    { "differential", "shm", 8, "calls=600" },
};
MP_TABLE(differential, any_call_matches_the_model_on_shm, shm)

static struct mp_row tcp[] = {
    { "differential", "tcp", 1, "calls=500" },
    { "differential", "tcp", 2, "calls=2000" },
    { "differential", "tcp", 2, "calls=300 max=4194304" },
    { "differential", "tcp", 3, "calls=1500" },
    { "differential", "tcp", 4, "calls=1000" },
    { "differential", "tcp", 5, "calls=700" },
    { "differential", "tcp", 7, "calls=500" },
    { "differential", "tcp", 8, "calls=400" },
};
MP_TABLE(differential, any_call_matches_the_model_on_tcp, tcp)

/* memory=2: banyan_mem_alloc, 4: registered, chosen anew by each rank for each call. */
static struct mp_row memory[] = {
    { "differential", "shm", 2, "calls=1500 memory=6" },
    { "differential", "shm", 2, "calls=300 max=4194304 memory=6" },
    { "differential", "shm", 3, "calls=1000 memory=6" },
    { "differential", "shm", 4, "calls=800 memory=6" },
    { "differential", "tcp", 3, "calls=300 memory=6" },
};
MP_TABLE(differential, any_call_matches_the_model_in_any_memory, memory)

/* Without single-copy reads, as on machines that forbid ptrace. */
static struct mp_row no_cma[] = {
    { "differential", "shm", 2, "calls=800 max=1048576", 0, { "BANYAN_CMA=0" } },
    { "differential", "shm", 4, "calls=400 max=1048576", 0, { "BANYAN_CMA=0" } },
};
MP_TABLE(differential, any_call_matches_the_model_without_cma, no_cma)

static struct mp_row automatic[] = {
    { "differential", "", 2, "calls=500" },
    { "differential", "auto", 3, "calls=500" },
};
MP_TABLE(differential, any_call_matches_the_model_with_auto, automatic)

/* More CPUs than there are, the library believes: what it does where each rank has its own. */
static struct mp_row cpus[] = {
    { "differential", "shm", 3, "calls=800", 0, { "BANYAN_TEST_CPUS=16" } },
    { "differential",
      "shm",
      4,
      "calls=100 max=4194304 memory=6",
      0,
      { "BANYAN_TEST_CPUS=16" } },
    { "differential", "shm", 7, "calls=300 memory=6", 0, { "BANYAN_TEST_CPUS=16" } },
    { "differential", "tcp", 5, "calls=200", 0, { "BANYAN_TEST_CPUS=16" } },
};
MP_TABLE(differential, any_call_matches_the_model_with_a_cpu_each, cpus)
