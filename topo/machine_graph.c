/* SPDX-License-Identifier: BSD-3-Clause */
/* A machine as a cluster graph: a rank below its cache, the cache below its memory, that below
 * its package; packages are connected with each other; NICs at their locality. A level with a
 * single member below its parent is omitted. Capacities in GB/s are memcpy rates of current
 * processors, to the nearest power of two: they order the levels, and `banyan_topo probe`
 * measures the real ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/gen.h"
#include "topo/import.h"
#include "topo/import_xml.h"
#include "topo/machine.h"

enum { CORE_GBPS = 16, CACHE_GBPS = 64, NUMA_GBPS = 64, PACKAGE_GBPS = 32, NIC_GBPS = 12 };
enum { CORE_NS = 30, CACHE_NS = 50, NUMA_NS = 50, PACKAGE_NS = 100, NIC_NS = 500 };

struct levels {
    int *cache, *numa, *package; /* the node of each, or -1: omitted */
};

/* The parent of a core's cache: its memory, or its package if that has one memory or shares it
 * with others. */
static int above_cache(const struct levels *l, const struct bny_machine_core *k)
{
    return l->numa[k->numa] >= 0 ? l->numa[k->numa] : l->package[k->package];
}

/* Does the core's package have several memories, and this one alone? */
static int numa_counts(const struct bny_machine *m, const struct bny_machine_core *k)
{
    int several = 0;

    for (int o = 0; o < m->ncores; o++) {
        several |= m->cores[o].package == k->package && m->cores[o].numa != k->numa;
        if (m->cores[o].package != k->package && m->cores[o].numa == k->numa)
            return 0;
    }
    return several;
}

/* Is there another cache at the same memory of the same package? */
static int cache_counts(const struct bny_machine *m, const struct bny_machine_core *k)
{
    for (int o = 0; o < m->ncores; o++)
        if (m->cores[o].numa == k->numa && m->cores[o].package == k->package &&
            m->cores[o].cache != k->cache)
            return k->cache >= 0;
    return 0;
}

static int machine_graph_add(struct bny_graph *g, int *node, const char *what, int i, int x,
                             int y)
{
    char name[40];

    snprintf(name, sizeof name, "%s%d", what, i);
    *node = bny_gen_switch(g, name, x, y, 0);
    if (*node >= 0)
        g->nodes[*node].host = 0;
    return *node;
}

/* Adds switch nodes for levels with more than one member below the next; x: the middle of their
 * ranks. */
static int add_levels(struct bny_graph *g, struct levels *l, const struct bny_machine *m, int n)
{
    int e = 0;

    for (int c = 0; c < m->ncores && e >= 0; c++) {
        const struct bny_machine_core *k = &m->cores[c];
        int x = c * (n > m->ncores ? n : m->ncores) / m->ncores;
        if (l->package[k->package] < 0)
            e = machine_graph_add(g, &l->package[k->package], "package", k->package, x, 0);
        if (e >= 0 && l->numa[k->numa] < 0 && numa_counts(m, k)) {
            e = machine_graph_add(g, &l->numa[k->numa], "numa", k->numa, x, 1);
            if (e >= 0)
                e = bny_graph_both(g, e, l->package[k->package], NUMA_GBPS, NUMA_NS);
        }
        if (e >= 0 && cache_counts(m, k) && l->cache[k->cache] < 0) {
            e = machine_graph_add(g, &l->cache[k->cache], "cache", k->cache, x, 2);
            if (e >= 0)
                e = bny_graph_both(g, e, above_cache(l, k), CACHE_GBPS, CACHE_NS);
        }
    }
    for (int a = 0; a < m->npackages && e >= 0; a++)
        for (int b = 0; b < a && e >= 0; b++)
            e = bny_graph_both(g, l->package[a], l->package[b], PACKAGE_GBPS, PACKAGE_NS);
    return e;
}

static int add_nics(struct bny_graph *g, const struct levels *l, const struct bny_machine *m)
{
    int e = 0;

    for (int d = 0; d < m->ndevices && e >= 0; d++) {
        const struct bny_machine_device *k = &m->devices[d];
        char name[40];
        int v, at = k->numa >= 0 && l->numa[k->numa] >= 0
                        ? l->numa[k->numa]
                        : l->package[k->package >= 0 ? k->package : 0];
        if (k->kind == BNY_DEVICE_GPU || !*k->bus)
            continue;
        snprintf(name, sizeof name, "nic%d:%.24s", d, k->name);
        e = v = bny_graph_node(g, BNY_NODE_NIC, 0, name);
        if (v < 0)
            break;
        g->nodes[v].x = g->nodes[at].x + 1 + d;
        g->nodes[v].y = -1;
        e = bny_graph_both(g, v, at, k->GBps >= 1 ? (int64_t)k->GBps : NIC_GBPS, NIC_NS);
    }
    return e;
}

static int add_all(struct bny_graph *g, struct levels *l, const struct bny_machine *m, int n,
                   int *core)
{
    int e = 0;

    bny_machine_place(m, n, core);
    for (int r = 0; r < n && e >= 0; r++) {
        e = bny_gen_rank(g, 0, r * (n < m->ncores ? m->ncores : n) / n, 3, 0);
        if (e >= 0 && n <= m->ncores)
            snprintf(g->nodes[e].name, sizeof g->nodes[e].name, "core%d", core[r]);
    }
    if (e >= 0)
        e = add_levels(g, l, m, n);
    for (int r = 0; r < n && e >= 0; r++) {
        const struct bny_machine_core *k = &m->cores[core[r]];
        int up =
            k->cache >= 0 && l->cache[k->cache] >= 0 ? l->cache[k->cache] : above_cache(l, k);
        e = bny_graph_both(g, r, up, CORE_GBPS, CORE_NS);
    }
    return e < 0 ? e : add_nics(g, l, m);
}

int bny_machine_graph(struct bny_graph *g, const struct bny_machine *m, int n)
{
    size_t all = (size_t)(m->ncaches + m->nnumas + m->npackages);
    int *node = malloc((all + (size_t)(n ? n : m->ncores)) * sizeof *node), e;
    struct levels l = { node, node + m->ncaches, node + m->ncaches + m->nnumas };

    if (!node)
        return bny_fail(BANYAN_ENOMEM, "no memory for the graph of %s", m->source);
    memset(node, 0xff, all * sizeof *node);
    if (!n)
        n = m->ncores;
    e = add_all(g, &l, m, n, node + all);
    free(node);
    return e < 0 ? e : 0;
}

static int make_machine(struct bny_graph *g, const char *args)
{
    struct bny_machine *m;
    int n = 0, e = *args ? bny_gen_dims(&n, 1, args, bny_gen_machine.usage) : 0;

    if (e >= 0)
        e = bny_machine_live(&m);
    if (e < 0)
        return e;
    e = bny_machine_graph(g, m, n);
    bny_machine_free(m);
    return e;
}

static int machine_graph_sniff(const char *text, size_t len)
{
    return bny_xml_root_is(text, len, "topology");
}

static int machine_graph_parse(struct bny_import *im)
{
    struct bny_machine *m;
    int e = bny_machine_xml(&m, im->file, im->text, im->len);

    if (e)
        return e;
    e = bny_machine_graph(im->g, m, 0);
    bny_machine_free(m);
    return e;
}

const struct bny_importer bny_import_hwloc = { "hwloc", machine_graph_sniff,
                                               machine_graph_parse };

const struct bny_generator bny_gen_machine = {
    "machine",
    "machine[:N]  this machine with N ranks (one a core); HWLOC_XMLFILE and HWLOC_SYNTHETIC "
    "stand in for it",
    make_machine
};
