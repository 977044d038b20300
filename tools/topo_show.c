/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_topo show: this machine, or the graph of --topo; with -o FILE.json the graph as own
 * JSON. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/param.h"
#include "tools/topo.h"
#include "topo/import.h"
#include "topo/machine.h"
#include "transport/shm/shm_tune.h"
#include "transport/verbs/device_choice.h"
#include "transport/verbs/slab.h"

static const char *const kinds[] = { "compute", "switch", "nic" };
static const char *const devices[] = { "network", "openfabrics", "gpu" };

static void graph_json(FILE *f, const struct bny_graph *g)
{
    fprintf(f, "{\"topo\":");
    topo_json_text(f, g->name);
    fprintf(f, ",\"ranks\":%d,\"nodes\":%d,\"links\":%d,\"unit_GBps\":%.9g}\n", g->nranks,
            g->nnodes, g->nlinks, g->unit_Bps / 1e9);
}

static void graph_text(FILE *f, const struct bny_graph *g)
{
    fprintf(f, "%s: %d ranks, %d nodes, %d links; capacity 1 is %.6g GB/s\n", g->name,
            g->nranks, g->nnodes, g->nlinks, g->unit_Bps / 1e9);
    for (int v = 0; v < g->nnodes; v++) {
        const struct bny_node *n = &g->nodes[v];
        fprintf(f, "%-16s %-7s", n->name, kinds[n->kind]);
        if (n->rank >= 0)
            fprintf(f, " rank %d", n->rank);
        for (int i = g->out_first[v]; i < g->out_first[v + 1]; i++)
            fprintf(f, "%s %s:%" PRId64, i == g->out_first[v] ? " ->" : "",
                    g->nodes[g->links[g->out[i]].to].name, g->links[g->out[i]].cap);
        fputc('\n', f);
    }
}

static int show_graph(const struct topo_opts *o)
{
    struct bny_graph *g;
    FILE *f;

    if (topo_graph(&g, o))
        return topo_failed(NULL);
    f = topo_open(o);
    if (!f) {
        bny_graph_free(g);
        return 1;
    }
    if (o->output)
        bny_graph_save(g, f, NULL);
    else if (o->json)
        graph_json(f, g);
    else
        graph_text(f, g);
    bny_graph_free(g);
    return topo_close(f, o);
}

static const char *nic_name(const struct bny_machine *m, int nic)
{
    return nic < 0 ? "-" : m->devices[nic].name;
}

/* The values that are kept for this host, or measured now. */
static void tune_json(void)
{
    struct shm_tune t;

    if (!bny_shm_tune(&t)) {
        printf(",\"shm\":null");
        return;
    }
    printf(",\"shm\":{\"hand_ns\":%" PRIu32 ",\"sizes\":[", t.hand_ns);
    for (int i = 0; i < SHM_TUNE_SIZES; i++)
        printf("%s{\"bytes\":%" PRIu32 ",\"ring_ns\":%" PRIu32 ",\"plain_ns\":%" PRIu32
               ",\"single_ns\":%" PRIu32 "}",
               i ? "," : "", bny_shm_tune_sizes[i], t.ring_ns[i], t.plain_ns[i],
               t.single_ns[i]);
    printf("],\"touches\":%s}", bny_shm_tune_touches(&t) ? "true" : "false");
}

static void tune_text(void)
{
    struct shm_tune t;
    uint32_t from;

    if (!bny_shm_tune(&t)) {
        printf("shared memory: not measured (BANYAN_TUNE)\n");
        return;
    }
    from = bny_shm_tune_zcopy_min(&t, 0);
    printf("shared memory, one way, us: a word %.2f", t.hand_ns * 1e-3);
    for (int i = 0; i < SHM_TUNE_SIZES; i++)
        printf("; %" PRIu32 " KiB %.2f through the ring, %.2f untouched, %.2f by single copy",
               bny_shm_tune_sizes[i] >> 10, t.ring_ns[i] * 1e-3, t.plain_ns[i] * 1e-3,
               t.single_ns[i] * 1e-3);
    printf("; lines are %stouched", bny_shm_tune_touches(&t) ? "" : "not ");
    if (from == SHM_TUNE_NEVER)
        printf("; always the ring\n");
    else
        printf("; single copy from %" PRIu32 " KiB on\n", from >> 10);
}

/* ---- which RDMA devices ranks take ---- */

#define NODES 256 /* NUMA nodes that are looked at */

/* Those whose ports are up, as ranks on this node see them. 0: no rank can run there. */
static int near_from(int node, struct vb_near *d, int n)
{
    cpu_set_t cpus;

    if (!bny_verbs_near_cpus(node, &cpus) || !CPU_COUNT(&cpus))
        return 0;
    for (int i = 0; i < n; i++)
        bny_verbs_near_look(&d[i], &cpus);
    return 1;
}

/* chosen[]: what the ranks of one node take in turn. Returns how many. */
static int taken_from(const struct vb_near *d, int n, int *chosen)
{
    int distance[VB_NEAR_MAX], equal = 1;

    for (int i = 0; i < n; i++)
        distance[i] = d[i].distance;
    for (int r = 0; r < equal; r++)
        bny_verbs_near_choose(distance, n, r, 1, &chosen[r], &equal);
    return equal;
}

static void near_text(void)
{
    struct vb_near d[VB_NEAR_MAX];
    int chosen[VB_NEAR_MAX], n = bny_verbs_near_list(d, VB_NEAR_MAX);
    char why[160];

    if (!n)
        printf("verbs: no RDMA device has a port that is up\n");
    for (int node = 0; n && node < NODES; node++) {
        int k = near_from(node, d, n) ? taken_from(d, n, chosen) : 0;

        if (!k)
            continue;
        printf("verbs: ranks on NUMA node %d take", node);
        for (int i = 0; i < k; i++)
            printf(" %s:%d", d[chosen[i]].name, d[chosen[i]].port);
        printf("%s (%s)\n", k > 1 ? " by turns" : "",
               bny_verbs_near_why(&d[chosen[0]], k, n, why, sizeof why));
    }
}

static void near_json(void)
{
    struct vb_near d[VB_NEAR_MAX];
    int chosen[VB_NEAR_MAX], n = bny_verbs_near_list(d, VB_NEAR_MAX), first = 1;

    printf(",\"verbs\":[");
    for (int node = 0; n && node < NODES; node++) {
        int k = near_from(node, d, n) ? taken_from(d, n, chosen) : 0;

        if (!k)
            continue;
        printf("%s{\"numa\":%d,\"distance\":%d,\"take\":[", first ? "" : ",", node,
               d[chosen[0]].distance);
        for (int i = 0; i < k; i++) {
            printf("%s{\"device\":", i ? "," : "");
            topo_json_text(stdout, d[chosen[i]].name);
            printf(",\"port\":%d}", d[chosen[i]].port);
        }
        printf("]}");
        first = 0;
    }
    printf("]");
}

/* ---- what verbs registers with each device ---- */

static const int job_sizes[] = { 2, 8, 64, 256, 1024, 4096 };

/* For a peer of a job of n ranks. */
static uint64_t peer_bytes(int n)
{
    struct vb_slab s = bny_verbs_slab(n, (uint64_t)bny_param_int("BANYAN_VERBS=memory"));

    return bny_verbs_peer_bytes(&s, 1);
}

static void pinned_text(void)
{
    printf("verbs: MiB that a rank registers with each device, for a peer, and for all peers:");
    for (size_t i = 0; i < sizeof job_sizes / sizeof job_sizes[0]; i++)
        printf("%s %d ranks %.2f, %.0f", i ? ";" : "", job_sizes[i],
               (double)peer_bytes(job_sizes[i]) / (1 << 20),
               (double)peer_bytes(job_sizes[i]) * (job_sizes[i] - 1) / (1 << 20));
    printf("\n");
}

static void pinned_json(void)
{
    printf(",\"verbs_memory\":[");
    for (size_t i = 0; i < sizeof job_sizes / sizeof job_sizes[0]; i++)
        printf("%s{\"ranks\":%d,\"peer_bytes\":%" PRIu64 "}", i ? "," : "", job_sizes[i],
               peer_bytes(job_sizes[i]));
    printf("]");
}

static void machine_json(const struct bny_machine *m)
{
    printf("{\"machine\":");
    topo_json_text(stdout, m->source);
    printf(",\"packages\":%d,\"numa\":%d,\"caches\":%d,\"cores\":[", m->npackages, m->nnumas,
           m->ncaches);
    for (int c = 0; c < m->ncores; c++) {
        const struct bny_machine_core *k = &m->cores[c];
        printf("%s{\"core\":%d,\"package\":%d,\"numa\":%d,\"cache\":%d,\"nic\":%d,\"pu\":[",
               c ? "," : "", c, k->package, k->numa, k->cache, k->nic);
        for (int i = 0; i < k->npus; i++)
            printf("%s%d", i ? "," : "", k->pu[i]);
        printf("]}");
    }
    printf("],\"devices\":[");
    for (int d = 0; d < m->ndevices; d++) {
        const struct bny_machine_device *k = &m->devices[d];
        printf("%s{\"name\":", d ? "," : "");
        topo_json_text(stdout, k->name);
        printf(",\"kind\":\"%s\",\"interface\":", devices[k->kind]);
        topo_json_text(stdout, k->netdev);
        printf(",\"bus\":");
        topo_json_text(stdout, k->bus);
        printf(",\"package\":%d,\"numa\":%d,\"bridge\":%d,\"pci_GBps\":%.6g}", k->package,
               k->numa, k->bridge, k->GBps);
    }
    printf("]");
    near_json();
    pinned_json();
    tune_json();
    printf("}\n");
}

static void machine_text(const struct bny_machine *m)
{
    int n = m->npackages > 1 ? m->npackages
            : m->ncores > 1  ? 2
                             : 1,
        *core = malloc((size_t)n * sizeof *core);

    printf("%s: %d cores; packages: %d, NUMA nodes: %d, shared caches: %d\n", m->source,
           m->ncores, m->npackages, m->nnumas, m->ncaches);
    printf("core  package  numa  cache  nearest NIC       hardware threads\n");
    for (int c = 0; c < m->ncores; c++) {
        const struct bny_machine_core *k = &m->cores[c];
        printf("%4d  %7d  %4d  %5d  %-16s ", c, k->package, k->numa, k->cache,
               nic_name(m, k->nic));
        for (int i = 0; i < k->npus; i++)
            printf(" %d", k->pu[i]);
        printf("\n");
    }
    for (int d = 0; d < m->ndevices; d++) {
        const struct bny_machine_device *k = &m->devices[d];
        printf("device %-12s %-11s %-13s package %d, numa %d", k->name, devices[k->kind],
               k->bus, k->package, k->numa);
        if (*k->netdev)
            printf(", interface %s", k->netdev);
        if (k->GBps > 0)
            printf(", PCI %.1f GB/s", k->GBps);
        printf("\n");
    }
    near_text();
    pinned_text();
    tune_text();
    for (int r = 0; core && r < n; r++) {
        struct bny_machine_threads t;
        bny_machine_place(m, n, core);
        bny_machine_threads(m, n, core, r, &t);
        printf("with %d ranks: rank %d on hardware thread %d", n, r, t.rank);
        if (t.progress >= 0)
            printf(", its progress on %d", t.progress);
        for (int i = 0; i < t.nencode; i++)
            printf("%s %d", i ? "" : ", encoding on", t.encode[i]);
        printf("%s\n", t.progress < 0 && !t.nencode ? ", no other near it is free" : "");
    }
    free(core);
}

static int topo_show_run(const struct topo_opts *o)
{
    struct bny_machine *m;

    if (o->nargs)
        return topo_failed_args(o);
    if (o->topo || o->output)
        return show_graph(o);
    if (bny_machine_live(&m))
        return topo_failed(NULL);
    if (o->json)
        machine_json(m);
    else
        machine_text(m);
    bny_machine_free(m);
    return 0;
}

const struct topo_command topo_show = {
    "show", "toJ", "this machine, or the graph of --topo; -o FILE writes it as JSON",
    topo_show_run
};
