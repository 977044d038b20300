/* SPDX-License-Identifier: BSD-3-Clause */
/* The topology XML of NCCL and RCCL (NCCL_TOPO_DUMP_FILE, NCCL_TOPO_FILE): system > cpu > pci >
 * gpu, nic > net; nvlink, xgmi and c2c below a gpu, pcilink below a pci. GPUs are the ranks, in
 * the order of their rank attributes if all have one (the file of a job's second host begins
 * with its first rank); if no gpu is listed, as in files from clouds, PCI devices of a GPU's
 * class are. Capacities in MB/s, as in NCCL's and RCCL's tables: a PCI link has GT/s x width /
 * 8 (raw rate); an NVLink 18 GB/s before sm 70, 12 for sm 86, 40 from sm 100 on, else 20; an
 * xGMI link 24, 36 (gfx90a) or 48 (gfx94 and later); c2c its attribute; two sockets 16; a NIC
 * its speed. All sockets of a host are connected pairwise. host_hash identifies hosts: the NICs
 * of several share a network, those of a single one lead nowhere. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/text.h"
#include "topo/import_xml.h"

#define DEPTH_MAX  64
#define LATER_MAX  16384
#define CPUS_MAX   1024
#define PCIS_MAX   4096
#define LOCAL_MBPS 5000000 /* within a device */
#define LAT_PCI    500
#define LAT_NVLINK 300
#define LAT_SOCKET 200
#define LAT_NET    2000

enum target { TO_DEVICE, TO_SWITCH, TO_CPU };

struct nccl {
    int at[DEPTH_MAX + 1]; /* the node of each open element, or of the enclosing one; -1 */
    int host, cpu;         /* of the open cpu element */
    int gpu, shares;       /* the open gpu, or -1; shares: it is not the first of its device */
    int64_t nvlink, xgmi;  /* MB/s of its links */
    struct {
        int node, host;
    } cpus[CPUS_MAX];
    int ncpus;
    uint64_t hashes[CPUS_MAX];
    int nhosts;
    struct {
        int from, host, line;
        int64_t cap;
        enum target kind;
        char target[32];
    } later[LATER_MAX]; /* links whose targets may follow later */
    int nlater;
    struct {
        int node;
        enum bny_node_kind kind;
    } pcis[PCIS_MAX]; /* devices of the class of a GPU or a NIC */
    int npcis, ngpus;
    struct {
        int node;
        int64_t cap;
    } nets[PCIS_MAX];
    int nnets;
};

static int nccl_sniff(const char *text, size_t len)
{
    return bny_xml_root_is(text, len, "system");
}

/* A whole number from an attribute; `otherwise` if there is none. */
static int nccl_whole(struct bny_xml *x, const char **attr, const char *name, int64_t otherwise,
                      int64_t max, int64_t *out)
{
    const char *text = bny_xml_attr(attr, name);
    char *end;

    *out = otherwise;
    if (!text || !*text)
        return 0;
    *out = strtol(text, &end, 10);
    if (*end || *out < -1 || *out > max)
        return bny_import_fail(x->im, x->line, "%s=\"%.30s\" is no whole number up to %" PRId64,
                               name, text, max);
    return 0;
}

/* "16.0 GT/s PCIe", "8 GT/s". Virtual machines do not report it: 16 lanes of 750 MB/s, as
 * NCCL. */
static int64_t pci_cap(const char **attr)
{
    const char *speed = bny_xml_attr(attr, "link_speed"),
               *width = bny_xml_attr(attr, "link_width");
    double gt = speed ? bny_strtod(speed, NULL) : 0,
           lanes = width ? bny_strtod(width, NULL) : 0;

    if (!(lanes > 0 && lanes <= 64))
        lanes = 16;
    return (int64_t)(lanes * (gt > 0 && gt < 1e4 ? gt * 125 : 750));
}

static int both(struct bny_xml *x, int a, int b, int64_t mbps, int64_t lat)
{
    struct bny_ratio cap = { mbps, 1 };
    int e = bny_import_link(x->im, a, b, cap, lat, x->line);

    return e ? e : bny_import_link(x->im, b, a, cap, lat, x->line);
}

/* The graph's name for a name in the file: those of a second host end with @1. */
static void name_of(char *buf, size_t cap, const char *name, int host)
{
    if (host)
        snprintf(buf, cap, "%.30s@%d", name, host);
    else
        snprintf(buf, cap, "%s", name);
}

/* Adds a node of that name, linked to the enclosing one. again: an existing node of that name
 * is a different one. Returns its index or an error. */
static int below(struct bny_xml *x, const char *name, int again, int64_t cap)
{
    struct nccl *m = x->arg;
    char own[64];
    int v, e;

    name_of(own, sizeof own, name, m->host);
    for (int i = 2; again && bny_import_find(x->im, own) >= 0; i++) {
        char other[48];
        snprintf(other, sizeof other, "%.20s#%d", name, i);
        name_of(own, sizeof own, other, m->host);
    }
    if (bny_import_find(x->im, own) >= 0)
        return bny_import_fail(x->im, x->line, "%.40s is there twice", own);
    v = bny_import_node(x->im, own, x->line);
    if (v < 0)
        return v;
    x->im->g->nodes[v].kind = BNY_NODE_SWITCH;
    x->im->g->nodes[v].host = m->host;
    if (m->at[x->depth - 1] < 0 || cap <= 0)
        return v;
    e = both(x, v, m->at[x->depth - 1], cap, LAT_PCI);
    return e ? e : v;
}

/* A bridge or NIC with a known bus address is another one: some switches appear with one
 * address at several places. */
static int start_pci(struct bny_xml *x, const char **attr)
{
    struct nccl *m = x->arg;
    const char *busid = bny_xml_attr(attr, "busid"), *class = bny_xml_attr(attr, "class");
    int bridge = class && !strncmp(class, "0x06", 4), nic = class && !strncmp(class, "0x02", 4),
        gpu = class && (!strncmp(class, "0x03", 4) || !strncmp(class, "0x12", 4) ||
                        !strncmp(class, "0x13", 4));
    int v;

    if (!busid)
        return bny_import_fail(x->im, x->line, "a pci element without busid");
    v = below(x, busid, bridge || nic, pci_cap(attr));
    if (v < 0 || !(gpu || nic))
        return v;
    if (m->npcis == PCIS_MAX)
        return bny_import_fail(x->im, x->line, "more than %d GPUs and NICs", PCIS_MAX);
    m->pcis[m->npcis].node = v;
    m->pcis[m->npcis++].kind = gpu ? BNY_NODE_COMPUTE : BNY_NODE_NIC;
    return v;
}

/* "gfx90a:sramecc+:xnack-", or the same as 910. */
static int64_t xgmi_rate(const char *gcn)
{
    gcn = gcn && !strncmp(gcn, "gfx", 3) ? gcn + 3 : gcn;
    if (!gcn || *gcn != '9')
        return 24000;
    return !strncmp(gcn, "90a", 3) || !strncmp(gcn, "910", 3) ? 36000
           : gcn[1] == '4' || gcn[1] == '5'                   ? 48000
                                                              : 24000;
}

/* Another gpu element of the same device is another rank on it, and shares the device's
 * links. */
static int share_gpu(struct bny_xml *x, int device)
{
    struct nccl *m = x->arg;
    char name[40];
    int v, e;

    memcpy(name, x->im->g->nodes[device].name, sizeof name);
    name[strcspn(name, "@")] = 0;
    v = below(x, name, 1, 0);
    if (v < 0)
        return v;
    m->shares = 1;
    e = both(x, v, device, LOCAL_MBPS, 0);
    return e ? e : v;
}

static int start_gpu(struct bny_xml *x, const char **attr)
{
    struct nccl *m = x->arg;
    int64_t rank, sm;
    int v = m->at[x->depth - 1], e = nccl_whole(x, attr, "rank", -1, 100000000, &rank);

    if (!e)
        e = nccl_whole(x, attr, "sm", 70, 100000, &sm);
    if (e)
        return e;
    m->shares = 0;
    if (v < 0 || v == m->cpu || m->gpu >= 0)
        return bny_import_fail(x->im, x->line, "a gpu that is not below a pci element");
    if (x->im->g->nodes[v].kind == BNY_NODE_COMPUTE)
        v = share_gpu(x, v);
    if (v < 0)
        return v;
    x->im->g->nodes[v].kind = BNY_NODE_COMPUTE;
    x->im->g->nodes[v].rank = (int)rank;
    m->gpu = v;
    m->ngpus++;
    m->nvlink = sm < 70 ? 18000 : sm == 86 ? 12000 : sm < 100 ? 20000 : 40000;
    m->xgmi = xgmi_rate(bny_xml_attr(attr, "gcn"));
    return v;
}

/* A link to the target device; or to the host's or hosts' NVSwitches, which count as one, or to
 * the GPU's own CPU (POWER9). */
static int add_later(struct bny_xml *x, const char **attr, int from, int64_t cap)
{
    struct nccl *m = x->arg;
    const char *target = bny_xml_attr(attr, "target"), *class = bny_xml_attr(attr, "tclass");
    int n = m->nlater;

    if (n == LATER_MAX)
        return bny_import_fail(x->im, x->line, "more than %d links of devices", LATER_MAX);
    if (from < 0 || !target || strlen(target) >= sizeof m->later[0].target || cap <= 0)
        return bny_import_fail(x->im, x->line,
                               "an nvlink, xgmi or pcilink outside of its device, or without "
                               "target or count");
    m->later[n].from = from;
    m->later[n].host = m->host;
    m->later[n].line = x->line;
    m->later[n].cap = cap;
    m->later[n].kind = !class || strncmp(class, "0x0680", 6) ? TO_DEVICE
                       : !strcmp(class, "0x068001")          ? TO_CPU
                                                             : TO_SWITCH;
    strcpy(m->later[m->nlater++].target, target);
    if (m->later[n].kind == TO_CPU && m->cpu >= 0) {
        m->nlater--;
        return both(x, from, m->cpu, cap, LAT_NVLINK);
    }
    return 0;
}

static int start_link(struct bny_xml *x, const char *name, const char **attr)
{
    struct nccl *m = x->arg;
    int64_t count, bw;
    int e = nccl_whole(x, attr, "count", 1, 1024, &count);

    if (!e)
        e = nccl_whole(x, attr, "bw", 0, 100000000, &bw);
    if (e)
        return e;
    if (!strcmp(name, "pcilink")) /* two halves of one switch */
        return add_later(x, attr, m->at[x->depth - 1], LOCAL_MBPS);
    if (m->gpu >= 0 && m->shares)
        return 0;
    if (!strcmp(name, "xgmi"))
        return add_later(x, attr, m->gpu, count * m->xgmi);
    if (!strcmp(name, "nvlink"))
        return add_later(x, attr, m->gpu, count * m->nvlink);
    if (m->gpu < 0 || m->cpu < 0)
        return bny_import_fail(x->im, x->line, "a c2c outside of a gpu");
    return count * bw > 0 ? both(x, m->gpu, m->cpu, count * bw, LAT_NVLINK) : 0;
}

/* Files of one host have no host_hash. */
static int host_of(struct bny_xml *x, const char **attr)
{
    struct nccl *m = x->arg;
    const char *text = bny_xml_attr(attr, "host_hash");
    uint64_t hash = text ? strtoull(text, NULL, 16) : 0;

    m->host = 0;
    while (m->host < m->nhosts && m->hashes[m->host] != hash)
        m->host++;
    if (m->host == CPUS_MAX)
        return bny_import_fail(x->im, x->line, "more than %d hosts", CPUS_MAX);
    if (m->host == m->nhosts)
        m->hashes[m->nhosts++] = hash;
    return 0;
}

static int start_cpu(struct bny_xml *x, const char **attr)
{
    struct nccl *m = x->arg;
    const char *numa = bny_xml_attr(attr, "numaid");
    char name[40];
    int v, e = host_of(x, attr);

    if (e)
        return e;
    snprintf(name, sizeof name, "cpu%.20s", numa ? numa : "0");
    if (m->ncpus == CPUS_MAX)
        return bny_import_fail(x->im, x->line, "more than %d cpus", CPUS_MAX);
    v = below(x, name, 0, 0);
    for (int i = 0; i < m->ncpus && v >= 0; i++) {
        e = m->cpus[i].host == m->host ? both(x, m->cpus[i].node, v, 16000, LAT_SOCKET) : 0;
        if (e)
            return e;
    }
    if (v >= 0) {
        m->cpus[m->ncpus].host = m->host;
        m->cpus[m->ncpus++].node = m->cpu = v;
    }
    return v;
}

static int start_net(struct bny_xml *x, const char **attr)
{
    struct nccl *m = x->arg;
    const char *name = bny_xml_attr(attr, "name");
    int64_t mbits;
    int v = nccl_whole(x, attr, "speed", 10000, 1000000000, &mbits);

    if (!v)
        v = below(x, name && *name ? name : "net", 1, mbits > 8 ? mbits / 8 : 1);
    if (v < 0)
        return v;
    if (m->nnets == PCIS_MAX)
        return bny_import_fail(x->im, x->line, "more than %d NICs", PCIS_MAX);
    x->im->g->nodes[v].kind = BNY_NODE_NIC;
    m->nets[m->nnets].node = v;
    m->nets[m->nnets++].cap = mbits > 8 ? mbits / 8 : 1;
    return v;
}

static int nccl_start(struct bny_xml *x, const char *name, const char **attr)
{
    struct nccl *m = x->arg;
    int v;

    v = m->at[x->depth] = x->depth > 1 ? m->at[x->depth - 1] : -1;
    if (!strcmp(name, "cpu"))
        v = start_cpu(x, attr);
    else if (!strcmp(name, "pci"))
        v = start_pci(x, attr);
    else if (!strcmp(name, "gpu"))
        v = start_gpu(x, attr);
    else if (!strcmp(name, "net"))
        v = start_net(x, attr);
    else
        return !strcmp(name, "nvlink") || !strcmp(name, "xgmi") || !strcmp(name, "c2c") ||
                       !strcmp(name, "pcilink")
                   ? start_link(x, name, attr)
                   : 0;
    m->at[x->depth] = v;
    return v < 0 ? v : 0;
}

static int nccl_end(struct bny_xml *x, const char *name, const char *text)
{
    struct nccl *m = x->arg;

    if (!strcmp(name, "gpu"))
        m->gpu = -1;
    else if (!strcmp(name, "cpu"))
        m->cpu = -1;
    return 0;
}

/* Each GPU of a pair lists the link itself. Links to GPUs outside the file (not used by the
 * job) and to the GPU itself (in virtual machines) lead nowhere; NCCL ignores them as well. */
static int add_links(struct bny_import *im, struct nccl *m)
{
    int left_out = 0, line = 0, e = 0;

    for (int i = 0; i < m->nlater && !e; i++) {
        struct bny_ratio cap = { m->later[i].cap, 1 };
        char name[64];
        int to;
        name_of(name, sizeof name, m->later[i].target, m->later[i].host);
        to = m->later[i].kind == TO_SWITCH ? bny_import_node(im, "nvswitch", m->later[i].line)
                                           : bny_import_find(im, name);
        if (to < 0 || to == m->later[i].from) {
            line = left_out++ ? line : m->later[i].line;
            continue;
        }
        e = bny_import_link(im, m->later[i].from, to, cap, LAT_NVLINK, m->later[i].line);
        if (m->later[i].kind == TO_SWITCH && !e) {
            im->g->nodes[to].kind = BNY_NODE_SWITCH;
            e = bny_import_link(im, to, m->later[i].from, cap, LAT_NVLINK, m->later[i].line);
        }
    }
    if (left_out)
        bny_warn("%s:%d: %d link%s left out, to a device that is not in the file, or to the "
                 "device itself",
                 im->file, line, left_out, left_out > 1 ? "s are" : " is");
    return e;
}

static int nccl_join(struct bny_import *im, int a, int b, int64_t mbps)
{
    struct bny_ratio cap = { mbps, 1 };
    int e = bny_import_link(im, a, b, cap, LAT_NET, 0);

    return e ? e : bny_import_link(im, b, a, cap, LAT_NET, 0);
}

static int has_nic(const struct bny_import *im, const struct nccl *m, int host)
{
    for (int i = 0; i < m->nnets; i++)
        if (im->g->nodes[m->nets[i].node].host == host)
            return 1;
    return 0;
}

static int has_nvswitch(const struct nccl *m, int host)
{
    for (int i = 0; i < m->nlater; i++)
        if (m->later[i].host == host && m->later[i].kind == TO_SWITCH)
            return 1;
    return 0;
}

/* NCCL assumes that every NIC reaches every other. Unless all share an NVSwitch a host without
 * any gets one of 10 Gbit/s, like a net element without a speed. */
static int add_network(struct bny_import *im, struct nccl *m)
{
    int shared = 1, without = 0, v, e = 0;

    for (int h = 0; h < m->nhosts; h++)
        shared &= has_nvswitch(m, h);
    if (m->nhosts < 2 || (shared && !m->nnets))
        return 0;
    v = bny_import_node(im, "network", 0);
    if (v < 0)
        return v;
    im->g->nodes[v].kind = BNY_NODE_SWITCH;
    for (int i = 0; i < m->nnets && !e; i++)
        e = nccl_join(im, m->nets[i].node, v, m->nets[i].cap);
    for (int h = 0; h < m->nhosts && !shared && !e; h++) {
        int cpu = 0;
        while (m->cpus[cpu].host != h)
            cpu++;
        if (has_nic(im, m, h))
            continue;
        without++;
        e = nccl_join(im, m->cpus[cpu].node, v, 1250);
    }
    if (without)
        bny_warn("%s: %d of %d hosts name no NIC; one of 10 Gbit/s is taken to join each with "
                 "the others",
                 im->file, without, m->nhosts);
    return e;
}

static int by_rank(const void *a, const void *b)
{
    const struct bny_node *const *x = a, *const *y = b;

    return ((*x)->rank > (*y)->rank) - ((*x)->rank < (*y)->rank);
}

/* Ranks from the file, from 0 on; in order of appearance unless all GPUs have one. */
static int number_ranks(struct bny_import *im)
{
    struct bny_node **gpus = calloc((size_t)im->g->nnodes + 1, sizeof(struct bny_node *));
    int n = 0, given = 0, e = 0;

    if (!gpus)
        return bny_fail(BANYAN_ENOMEM, "no memory for the ranks of %s", im->file);
    for (int v = 0; v < im->g->nnodes; v++)
        if (im->g->nodes[v].kind == BNY_NODE_COMPUTE) {
            gpus[n++] = &im->g->nodes[v];
            given += im->g->nodes[v].rank >= 0;
        }
    if (given == n)
        qsort(gpus, (size_t)n, sizeof(struct bny_node *), by_rank);
    for (int i = 1; i < n && given == n && !e; i++)
        if (gpus[i]->rank == gpus[i - 1]->rank)
            e = bny_import_fail(im, 0, "the gpus %s and %s both have rank %d",
                                gpus[i - 1]->name, gpus[i]->name, gpus[i]->rank);
    for (int i = 0; i < n; i++)
        gpus[i]->rank = i;
    free(gpus);
    if (!n)
        return bny_import_fail(im, 0,
                               "neither a gpu element nor a PCI device of a GPU's class, so no "
                               "rank");
    return e;
}

static int nccl_parse(struct bny_import *im)
{
    struct nccl *m = calloc(1, sizeof *m);
    struct bny_xml x = { .im = im, .arg = m, .start = nccl_start, .end = nccl_end };
    int e;

    if (!m)
        return bny_fail(BANYAN_ENOMEM, "no memory for %s", im->file);
    m->gpu = m->cpu = -1;
    memset(m->at, 0xff, sizeof m->at);
    im->unit_Bps = 1e6;
    im->reduce = 1;
    e = bny_xml_parse(&x);
    if (!e)
        e = add_links(im, m);
    if (!e)
        e = add_network(im, m);
    for (int i = 0; i < m->npcis && !e && !m->ngpus; i++)
        im->g->nodes[m->pcis[i].node].kind = m->pcis[i].kind;
    free(m);
    return e ? e : number_ranks(im);
}

const struct bny_importer bny_import_nccl = { "nccl", nccl_sniff, nccl_parse };
