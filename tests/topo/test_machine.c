/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of machines: files and descriptions give the cores, memories and devices that they
 * have; neighbouring ranks share the most; advice for threads never names a busy core; two
 * machines give two certified plans. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "topo/bound.h"
#include "topo/import.h"
#include "topo/machine.h"

static char *file(const char *name, size_t *len)
{
    char path[512], *text = malloc(1 << 20);
    FILE *f;

    snprintf(path, sizeof path, "%s/%s.xml", MACHINES, name);
    f = fopen(path, "r");
    cr_assert_not_null(f, "%s", path);
    *len = fread(text, 1, (1 << 20) - 1, f);
    text[*len] = 0;
    fclose(f);
    return text;
}

static struct bny_machine *machine(const char *name)
{
    struct bny_machine *m;
    size_t len;
    char *text = file(name, &len);

    cr_assert_eq(bny_machine_xml(&m, name, text, len), 0, "%s", banyan_last_error());
    free(text);
    return m;
}

static struct bny_graph *graph(const char *name)
{
    struct bny_graph *g;
    char path[512];

    snprintf(path, sizeof path, "%s/%s.xml", MACHINES, name);
    cr_assert_eq(bny_graph_make(&g, path), 0, "%s", banyan_last_error());
    return g;
}

Test(machine, xml_has_cores_memories_and_devices)
{
    struct bny_machine *m = machine("two-sockets-four-numa");

    cr_assert(m->ncores == 16 && m->nnumas == 4 && m->npackages == 2 && m->ndevices == 2);
    cr_assert(m->cores[5].npus == 2 && m->cores[5].pu[0] == 10 && m->cores[5].pu[1] == 11);
    cr_assert(m->cores[5].numa == 1 && m->cores[5].package == 0 && m->cores[15].numa == 3);
    cr_assert(m->devices[0].kind == BNY_DEVICE_OPENFABRICS &&
              !strcmp(m->devices[0].name, "mlx5_0"));
    cr_assert_str_eq(m->devices[0].netdev, "ib0");
    cr_assert_str_eq(m->devices[1].bus, "0000:65:00.0");
    cr_assert(m->devices[0].package == 0 && m->devices[1].package == 1 &&
              m->devices[1].numa == -1);
    cr_assert(m->cores[3].nic == 0 && m->cores[12].nic == 1);
    cr_assert(m->devices[1].GBps > 31 && m->devices[1].GBps < 32);
    bny_machine_free(m);
    m = machine("one-socket-four-caches");
    cr_assert(m->ncores == 16 && m->ncaches == 4 && m->nnumas == 1 && m->ndevices == 2);
    cr_assert(m->devices[1].kind == BNY_DEVICE_GPU && m->cores[9].nic == 0 &&
              m->cores[9].cache == 2);
    cr_assert_str_eq(m->devices[0].netdev, "enp193s0",
                     "the adapter is known by both its names");
    bny_machine_free(m);
    m = machine("four-sockets");
    cr_assert(m->ncores == 8 && m->npackages == 4 && m->ndevices == 2);
    cr_assert(m->cores[6].nic == 0 && m->cores[7].nic == 1, "ports near both cores take turns");
    bny_machine_free(m);
    m = machine("virtual-two-cores");
    cr_assert(m->ncores == 2 && m->ncaches == 1 && m->ndevices == 1 && m->cores[1].nic == 0);
    bny_machine_free(m);
}

Test(machine, live_and_synthetic_machines_are_read_by_hwloc)
{
    struct bny_machine *m;

    cr_assert_eq(bny_machine_synthetic(&m, "package:2 numa:2 l3:2 core:3 pu:2"), 0, "%s",
                 banyan_last_error());
    cr_assert(m->ncores == 24 && m->npackages == 2 && m->nnumas == 4 && m->ncaches == 8);
    bny_machine_free(m);
    cr_assert_eq(bny_machine_synthetic(&m, "package:2 rubbish:9"), -BANYAN_EINVAL);
    cr_assert_null(m);
    setenv("HWLOC_SYNTHETIC", "package:3 core:2 pu:1", 1);
    cr_assert_eq(bny_machine_live(&m), 0, "%s", banyan_last_error());
    cr_assert(m->ncores == 6 && m->npackages == 3);
    bny_machine_free(m);
    unsetenv("HWLOC_SYNTHETIC");
    cr_assert_eq(bny_machine_live(&m), 0, "%s", banyan_last_error());
    cr_assert(m->ncores >= 1 && m->cores[0].npus >= 1);
    bny_machine_free(m);
}

Test(machine, hwloc_and_our_reader_agree_on_the_cores)
{
    static const char *const names[] = { "two-sockets-four-numa", "one-socket-four-caches",
                                         "four-sockets", "virtual-two-cores" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct bny_machine *ours = machine(names[i]), *theirs;
        char path[512];
        snprintf(path, sizeof path, "%s/%s.xml", MACHINES, names[i]);
        setenv("HWLOC_XMLFILE", path, 1);
        cr_assert_eq(bny_machine_live(&theirs), 0, "%s", banyan_last_error());
        cr_assert(ours->ncores == theirs->ncores && ours->npackages == theirs->npackages, "%s",
                  names[i]);
        cr_assert_eq(ours->nnumas, theirs->nnumas, "%s", names[i]);
        for (int c = 0; c < ours->ncores; c++)
            cr_assert_eq(memcmp(&ours->cores[c], &theirs->cores[c], sizeof ours->cores[c]), 0,
                         "%s core %d", names[i], c);
        cr_assert_eq(ours->ndevices, theirs->ndevices, "%s: %d, hwloc %d", names[i],
                     ours->ndevices, theirs->ndevices);
        for (int d = 0; d < ours->ndevices; d++) {
            cr_assert_str_eq(ours->devices[d].name, theirs->devices[d].name);
            cr_assert_str_eq(ours->devices[d].bus, theirs->devices[d].bus);
            cr_assert(ours->devices[d].numa == theirs->devices[d].numa, "%s", names[i]);
            cr_assert(ours->devices[d].package == theirs->devices[d].package, "%s", names[i]);
        }
        bny_machine_free(ours);
        bny_machine_free(theirs);
    }
}

Test(machine, ranks_are_spread_evenly)
{
    struct bny_machine *m = machine("two-sockets-four-numa");
    int core[32];

    for (int n = 1; n <= 32; n++) {
        int used[4] = { 0 };
        bny_machine_place(m, n, core);
        for (int r = 0; r < n; r++) {
            cr_assert(core[r] >= 0 && core[r] < 16 && (!r || core[r] >= core[r - 1]));
            used[m->cores[core[r]].numa]++;
        }
        for (int i = 0; i < 4; i++)
            cr_assert(used[i] == n / 4 || used[i] == (n + 3) / 4, "n=%d: %d on memory %d", n,
                      used[i], i);
    }
    bny_machine_free(m);
}

/* No two ranks, and no thread of another rank, on one hardware thread, as long as there are
 * enough. */
Test(machine, advice_for_threads_never_names_a_busy_one)
{
    static const char *const names[] = { "two-sockets-four-numa", "one-socket-four-caches",
                                         "four-sockets" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct bny_machine *m = machine(names[i]);
        for (int n = 1; n <= m->ncores; n++) {
            int core[16], used[64] = { 0 };
            bny_machine_place(m, n, core);
            for (int r = 0; r < n; r++) {
                struct bny_machine_threads t;
                bny_machine_threads(m, n, core, r, &t);
                cr_assert(t.rank >= 0 && !used[t.rank]++, "%s n=%d rank %d", names[i], n, r);
                cr_assert(t.progress < 0 || !used[t.progress]++, "%s n=%d rank %d", names[i], n,
                          r);
                cr_assert(t.progress >= 0 || n > m->ncores / 2, "%s n=%d rank %d", names[i], n,
                          r);
                for (int k = 0; k < t.nencode; k++)
                    cr_assert(!used[t.encode[k]]++, "%s n=%d rank %d", names[i], n, r);
            }
        }
        bny_machine_free(m);
    }
}

Test(machine, more_ranks_than_cores_share_them)
{
    struct bny_machine *m = machine("virtual-two-cores");
    struct bny_graph *g = bny_graph_alloc("two");
    int core[6];

    bny_machine_place(m, 6, core);
    cr_assert(core[0] == 0 && core[2] == 0 && core[3] == 1 && core[5] == 1);
    cr_assert_eq(bny_machine_graph(g, m, 6), 0);
    cr_assert_eq(bny_graph_freeze(g), 0, "%s", banyan_last_error());
    cr_assert_eq(g->nranks, 6);
    bny_graph_free(g);
    bny_machine_free(m);
}

static struct bny_forest *plan(const struct bny_graph *g, const char *name)
{
    struct bny_forest *f;
    char why[200];

    cr_assert_eq(
        bny_graph_builder_find("multitree")->build(&f, g, BNY_FOREST_ALLREDUCE, 0, NULL), 0,
        "%s: %s", name, banyan_last_error());
    cr_assert_eq(bny_forest_certify(f, g, BNY_FOREST_ALLREDUCE, 0, 0), 0, "%s",
                 banyan_last_error());
    cr_assert_eq(bny_forest_recheck(f, g, BNY_FOREST_ALLREDUCE, 0, why, sizeof why), 0,
                 "%s: %s", name, why);
    return f;
}

Test(machine, two_machines_give_two_certified_plans)
{
    struct bny_graph *a = graph("two-sockets-four-numa"), *b = graph("one-socket-four-caches");
    struct bny_forest *p = plan(a, "a"), *q = plan(b, "b");
    int same = 1;

    cr_assert(a->nranks == 16 && b->nranks == 16);
    for (int t = 0; same && t < p->ntrees && t < q->ntrees; t++)
        same = !memcmp(p->trees[t].parent, q->trees[t].parent, 16 * sizeof *p->trees[t].parent);
    cr_assert(!same, "the trees are equal");
    bny_forest_free(p);
    bny_forest_free(q);
    bny_graph_free(a);
    bny_graph_free(b);
}

static struct bny_machine *read_text(const char *text)
{
    struct bny_machine *m;

    cr_assert_eq(bny_machine_xml(&m, "m.xml", text, strlen(text)), 0, "%s",
                 banyan_last_error());
    return m;
}

#define PU1(n, set)                                                                            \
    "<object type='Core'><object type='PU' os_index='" n "' cpuset='" set "'/></object>"

/* Memories are around the sockets, and caches have their depth apart. */
Test(machine, version_1)
{
    struct bny_machine *m = read_text(
        "<topology>\n<object type='Machine' cpuset='0x7' nodeset='0x3'>"
        "<object type='NUMANode' os_index='0' nodeset='0x1'>"
        "<object type='Socket' os_index='0' nodeset='0x1'>"
        "<object type='Cache' depth='3' cache_type='0' nodeset='0x1'>"
        "<object type='Cache' depth='1' cache_type='1' nodeset='0x1'>"
        "<object type='Core' nodeset='0x1'><object type='PU' os_index='0'/></object></object>"
        "<object type='Core' nodeset='0x1'><object type='PU' os_index='1'/></object>"
        "</object></object></object>"
        "<object type='NUMANode' os_index='1' nodeset='0x2'>"
        "<object type='Socket' os_index='1' nodeset='0x2'>"
        "<object type='Core' nodeset='0x2'><object type='PU' os_index='2'/></object>"
        "</object></object></object></topology>");

    cr_assert(m->ncores == 3 && m->npackages == 2 && m->nnumas == 2 && m->ncaches == 1);
    cr_assert(m->cores[0].cache == 0 && m->cores[1].cache == 0 && m->cores[2].cache == -1);
    cr_assert(m->cores[1].package == 0 && m->cores[2].package == 1 && m->cores[2].numa == 1);
    bny_machine_free(m);
}

/* Package 0 has none that is allowed, package 1 one of two, and there is a memory alone. */
Test(machine, processors_that_are_not_allowed)
{
    static const char text[] =
        "<topology version='2.0'><object type='Machine' allowed_cpuset='0x1,,0x00000004' "
        "nodeset='0x7'><object type='NUMANode' os_index='0' nodeset='0x1'/>"
        "<object type='Package' nodeset='0x2'>" PU1(
            "0", "0x1") "</object>"
                        "<object type='Package' nodeset='0x4'>" PU1("1", "0x2") PU1("2", "0x4")
                            PU1("64",
                                "0x1,,0x0") "<object type='Bridge'><object "
                                            "type='Bridge'><object type='PCIDev' "
                                            "pci_busid='0000:01:00.0'><object type='OSDev' "
                                            "name='eth0' osdev_type='2'/></object>"
                                            "</object></object></object></object></topology>";
    struct bny_machine *m = read_text(text);
    struct bny_graph *g;

    cr_assert(m->ncores == 2 && m->npackages == 1 && m->cores[0].pu[0] == 2 &&
              m->cores[1].pu[0] == 64);
    cr_assert(m->devices[0].package == 0 && m->cores[0].nic == 0);
    bny_machine_free(m);
    cr_assert_eq(bny_graph_parse(&g, "m.xml", text, sizeof text - 1), 0);
    cr_assert(g->nranks == 2 && g->nnodes == 4);
    bny_graph_free(g);
    /* A package whose processors the file leaves out. */
    m = read_text("<topology version='3.0'><object type='Machine' nodeset='0x3'>"
                  "<object type='Package' nodeset='0x1' cpuset='0x0'>"
                  "<object type='NUMANode' os_index='0' nodeset='0x1'/></object>"
                  "<object type='Package' nodeset='0x2'>" PU1(
                      "8", "0x100") "</object></object></topology>");
    cr_assert(m->ncores == 1 && m->npackages == 1 && m->nnumas == 1);
    cr_assert(m->cores[0].package == 0 && m->cores[0].numa == 0);
    bny_machine_free(m);
}

Test(machine, wrong_documents_are_refused)
{
    static const char *const bad[] = {
        "<topology/>",
        "<topology><object/></topology>",
        "<topology><object type='Core'/></topology>",
        "<topology><object type='PU'/></topology>",
        "<topology><object type='PU' os_index='-1'/></topology>",
        "<topology><object type='PU' os_index='1x'/></topology>",
        ("<!DOCTYPE topology [<!ENTITY a 'b'>]><topology><object type='PU' "
         "os_index='0'/></topology>"),
        "<topology><object type='PU' os_index='0'></topology>",
        "<topology version='2.0'><object type='Machine' allowed_cpuset='0x0'><object type='PU' "
        "os_index='0'/></object></topology>",
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct bny_graph *g;
        cr_assert_eq(bny_graph_parse(&g, "m.xml", bad[i], strlen(bad[i])), -BANYAN_EINVAL, "%s",
                     bad[i]);
        cr_assert(!strncmp(banyan_last_error(), "m.xml:", 6), "%s", banyan_last_error());
    }
}
