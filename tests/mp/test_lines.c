/* SPDX-License-Identifier: BSD-3-Clause */
/* Short operations in lines, in jobs of 2 to 8 processes; with more ranks than CPUs, too. */
#include "tests/mp/table.h"

static struct mp_row in_flight[] = {
    { "lines", "shm", 2 },
    { "lines", "shm", 3 },
    { "lines", "shm", 4 },
    { "lines", "shm", 8, "", 120 },
    { "lines", "shm", 2, "", 0, { "BANYAN_TEST_SEED=random" } },
    { "lines", "shm", 5, "", 0, { "BANYAN_TEST_SEED=random" } },
};
MP_TABLE(lines, many_in_flight_are_right, in_flight)

static struct mp_row ahead[] = {
    { "lines_ahead", "shm", 2 },
    { "lines_ahead", "shm", 3, "", 0, { "BANYAN_TEST_SEED=random" } },
    { "lines_ahead", "shm", 5, "", 120 },
};
MP_TABLE(lines, who_runs_ahead_overwrites_nothing, ahead)

static struct mp_row differs[] = {
    { "lines_differs", "shm", 2, "count" },    { "lines_differs", "shm", 2, "type" },
    { "lines_differs", "shm", 3, "op" },       { "lines_differs", "shm", 2, "tag" },
    { "lines_differs", "shm", 3, "schedule" }, { "lines_differs", "shm", 2, "collective" },
    { "lines_differs", "shm", 4, "count" },    { "lines_differs", "shm", 2, "roots" },
    { "lines_differs", "shm", 3, "roots" },    { "lines_differs", "shm", 2, "barrier" },
};
MP_TABLE(lines, ranks_that_differ_are_told, differs)
