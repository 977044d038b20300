/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared memory in any mixture, device memory, nothing named left behind, little memory
 * used, and the quiet path. */
#include <stdio.h>

#include "tests/mp/table.h"

static struct mp_row memory[] = {
    { "mem_mixed", "shm", 1 }, { "mem_mixed", "shm", 2 }, { "mem_mixed", "shm", 4 },
    { "mem_mixed", "tcp", 2 }, { "footprint", "shm", 2 }, { "footprint", "tcp", 3 },
};
MP_TABLE(memory, shared_memory_in_any_mixture, memory)

static struct mp_row device[] = {
    { "device_pointer", "shm", 2 },
    { "device_pointer", "shm", 3 },
    { "device_pointer", "tcp", 2 },
};
MP_TABLE(memory, device_pointers_in_any_call, device)

static struct mp_row quiet[] = {
    { "no_allocation", "shm", 2 },
    { "no_allocation", "shm", 3 },
    { "no_syscall", "shm", 2 },
};
MP_TABLE(memory, the_small_path_is_quiet, quiet)

static struct mp_row one_cpu[] = {
    { "one_cpu", "shm", 2 },
    { "one_cpu", "tcp", 3 },
};
MP_TABLE(memory, ranks_on_one_cpu_learn_to_yield, one_cpu)

struct resident {
    char transport[8];
};
static struct resident residents[] = { { "shm" }, { "tcp" } };

ParameterizedTestParameters(memory, a_rank_needs_little_besides_the_buffers)
{
    return MP_ROWS(struct resident, residents);
}

ParameterizedTest(struct resident *p, memory, a_rank_needs_little_besides_the_buffers,
                  .timeout = 100)
{
    static struct mp_shared out;
    struct mp mp = { .n = 4, .case_name = "resident", .transport = p->transport, .out = &out };

    MP_CHECK(mp_run(&mp));
    for (int r = 0; r < mp.n; r++)
        fprintf(stderr, "# %s rank %d: %llu KiB after init, %llu after 4 B, %llu after 1 MiB\n",
                p->transport, r, (unsigned long long)atomic_load(&out.value[r][0]) >> 10,
                (unsigned long long)atomic_load(&out.value[r][1]) >> 10,
                (unsigned long long)atomic_load(&out.value[r][2]) >> 10);
}
