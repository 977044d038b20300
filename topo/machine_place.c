/* SPDX-License-Identifier: BSD-3-Clause */
/* Placement of ranks and their threads on a machine (machine.h). */
#include <stdlib.h>
#include <string.h>

#include "topo/machine.h"

/* Cores are in hwloc's order, in which packages, memories and caches are contiguous, so even
 * steps through the list distribute evenly over all of them. */
void bny_machine_place(const struct bny_machine *m, int n, int *core)
{
    for (int r = 0; r < n; r++)
        core[r] = (int)((int64_t)r * m->ncores / n);
}

/* How much two cores share: 3 the cache, 2 the memory, 1 the package. */
static int shared(const struct bny_machine_core *a, const struct bny_machine_core *b)
{
    if (a->cache >= 0 && a->cache == b->cache)
        return 3;
    return a->numa == b->numa ? 2 : a->package == b->package;
}

void bny_machine_threads(const struct bny_machine *m, int n, const int *core, int rank,
                         struct bny_machine_threads *out)
{
    const struct bny_machine_core *own = &m->cores[core[rank]];
    int sharers = 0, before = 0, best = 1, progress_core = -1;

    memset(out, 0, sizeof *out);
    for (int r = 0; r < n; r++) {
        sharers += core[r] == core[rank];
        before += core[r] == core[rank] && r < rank;
    }
    out->rank = own->npus ? own->pu[before % own->npus] : -1;
    out->progress =
        sharers < own->npus
            ? own->pu[sharers + before < own->npus ? sharers + before : own->npus - 1]
            : -1;
    /* A free core belongs to the rank before it in the list, so no two ranks get the same
     * one. */
    for (int c = core[rank] + 1; c < m->ncores; c++) {
        int taken = 0;
        for (int r = 0; r < n; r++)
            taken |= core[r] == c;
        if (taken)
            break;
        if (rank + 1 < n && core[rank + 1] == core[rank])
            break;
        if (out->progress < 0 && shared(own, &m->cores[c]) > best) {
            best = shared(own, &m->cores[c]);
            progress_core = c;
        }
    }
    if (progress_core >= 0)
        out->progress = m->cores[progress_core].pu[0];
    for (int c = core[rank] + 1; c < m->ncores && out->nencode < BNY_MACHINE_PUS_MAX; c++) {
        if (rank + 1 < n && c >= core[rank + 1])
            break;
        if (c != progress_core && m->cores[c].numa == own->numa)
            out->encode[out->nencode++] = m->cores[c].pu[0];
    }
}
