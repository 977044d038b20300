/* SPDX-License-Identifier: BSD-3-Clause */
/* Short operations in cells, in jobs of 2 to 8 processes; with more ranks than CPUs, too. */
#include "tests/mp/table.h"

static struct mp_row in_flight[] = {
    { "many_in_flight", "shm", 2, "cells" },
    { "many_in_flight", "shm", 3, "cells" },
    { "many_in_flight", "shm", 4, "cells" },
    { "many_in_flight", "shm", 8, "cells", 120 },
    { "many_in_flight", "shm", 2, "cells", 0, { "BANYAN_TEST_SEED=random" } },
    { "many_in_flight", "shm", 5, "cells", 0, { "BANYAN_TEST_SEED=random" } },
};
MP_TABLE(cells, many_in_flight_are_right, in_flight)

static struct mp_row ahead[] = {
    { "cells_ahead", "shm", 2 },
    { "cells_ahead", "shm", 3, "", 0, { "BANYAN_TEST_SEED=random" } },
    { "cells_ahead", "shm", 5, "", 120 },
};
MP_TABLE(cells, who_runs_ahead_overwrites_nothing, ahead)

static struct mp_row differs[] = {
    { "cells_differs", "shm", 2, "count" },    { "cells_differs", "shm", 2, "type" },
    { "cells_differs", "shm", 3, "op" },       { "cells_differs", "shm", 2, "tag" },
    { "cells_differs", "shm", 3, "schedule" }, { "cells_differs", "shm", 2, "collective" },
    { "cells_differs", "shm", 4, "count" },    { "cells_differs", "shm", 2, "roots" },
    { "cells_differs", "shm", 3, "roots" },    { "cells_differs", "shm", 2, "barrier" },
};
MP_TABLE(cells, ranks_that_differ_are_told, differs)
