/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared memory in any mixture, device memory refused, nothing named left behind, and the quiet
 * path. */
#include "tests/mp/table.h"

static struct mp_row memory[] = {
    { "mem_mixed", "shm", 1 }, { "mem_mixed", "shm", 2 }, { "mem_mixed", "shm", 4 },
    { "mem_mixed", "tcp", 2 }, { "footprint", "shm", 2 }, { "footprint", "tcp", 3 },
};
MP_TABLE(memory, shared_memory_in_any_mixture, memory)

static struct mp_row device[] = {
    { "device_pointer", "shm", 2 },
    { "device_pointer", "tcp", 1 },
};
MP_TABLE(memory, device_pointers_are_refused, device)

static struct mp_row quiet[] = {
    { "no_allocation", "shm", 2 },
    { "no_allocation", "shm", 3 },
    { "no_syscall", "shm", 2 },
};
MP_TABLE(memory, the_small_path_is_quiet, quiet)
