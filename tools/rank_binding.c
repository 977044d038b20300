/* SPDX-License-Identifier: BSD-3-Clause */
/* CPUs for ranks (rank_binding.h). */
#include "tools/rank_binding.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "banyan/banyan.h"
#include "topo/machine.h"

/* Leaves the hardware threads that this process may use. */
static void keep_allowed(struct bny_machine *m, const cpu_set_t *allowed)
{
    int kept = 0;

    for (int c = 0; c < m->ncores; c++) {
        struct bny_machine_core core = m->cores[c];
        int npus = 0;

        for (int k = 0; k < core.npus; k++)
            if (core.pu[k] < CPU_SETSIZE && CPU_ISSET((size_t)core.pu[k], allowed))
                core.pu[npus++] = core.pu[k];
        core.npus = npus;
        if (npus)
            m->cores[kept++] = core;
    }
    m->ncores = kept;
}

static void rank_binding_add(struct bny_rank_binding *b, int cpu, size_t *at)
{
    if (cpu < 0 || cpu >= CPU_SETSIZE || CPU_ISSET((size_t)cpu, &b->set))
        return;
    CPU_SET((size_t)cpu, &b->set);
    if (*at < sizeof b->text)
        *at +=
            (size_t)snprintf(b->text + *at, sizeof b->text - *at, "%s%d",
                             *at ? CPU_COUNT(&b->set) == 2 ? ", near it " : "," : "CPU ", cpu);
}

static void rank_binding_fill(struct bny_rank_binding *b, const struct bny_machine *m, int n,
                              const int *core, int rank)
{
    const struct bny_machine_core *c = &m->cores[core[rank]];
    struct bny_machine_threads t;
    size_t at = 0;

    bny_machine_threads(m, n, core, rank, &t);
    CPU_ZERO(&b->set);
    rank_binding_add(b, t.rank, &at);
    rank_binding_add(b, t.progress, &at);
    for (int i = 0; i < t.nencode; i++)
        rank_binding_add(b, t.encode[i], &at);
    if (at < sizeof b->text)
        snprintf(b->text + at, sizeof b->text - at, " (package %d, memory %d%s%s)", c->package,
                 c->numa, c->nic >= 0 ? ", " : "", c->nic >= 0 ? m->devices[c->nic].name : "");
}

struct bny_rank_binding *bny_rank_bindings(int n)
{
    int here = !getenv("HWLOC_SYNTHETIC") && !getenv("HWLOC_XMLFILE"),
        *core = malloc((size_t)n * sizeof *core);
    struct bny_rank_binding *out = calloc((size_t)n, sizeof *out);
    struct bny_machine *m = NULL;
    cpu_set_t allowed;
    int e = core && out ? bny_machine_live(&m)
                        : bny_fail(BANYAN_ENOMEM, "no memory for the places of %d ranks", n);

    if (!e && here && sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        keep_allowed(m, &allowed);
    if (!e && m->ncores == 0)
        e = bny_fail(BANYAN_ESYSTEM, "no CPU that this process may use was found");
    if (!e) {
        bny_machine_place(m, n, core);
        for (int r = 0; r < n; r++)
            rank_binding_fill(&out[r], m, n, core, r);
    }
    bny_machine_free(m);
    free(core);
    if (e) {
        free(out);
        return NULL;
    }
    return out;
}
