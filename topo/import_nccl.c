/* SPDX-License-Identifier: BSD-3-Clause */
/* NCCL's topology XML (NCCL_TOPO_DUMP_FILE): system > cpu > pci > gpu, nic > net; nvlink and
 * c2c below a gpu. GPUs are the ranks, in the order of their rank attributes where all have
 * one. Capacities in MB/s: a PCI link has GT/s x width / 8 (raw rate); an NVLink 18 GB/s before
 * sm 70, 20 from then on; two sockets 16; a NIC its speed. Every two sockets are joined; the
 * NICs of a box lead to no network here. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "topo/import_xml.h"

#define DEPTH_MAX  64
#define NVLINK_MAX 4096
#define CPUS_MAX   64
#define LAT_PCI    500
#define LAT_SOCKET 200

struct nccl {
    int at[DEPTH_MAX + 1]; /* the node of each open element, or of the element around it; -1 */
    int gpu, sm;           /* the gpu that is open, or -1 */
    int cpus[CPUS_MAX], ncpus;
    struct {
        int from, line;
        int64_t cap;
        int is_switch;
        char target[32];
    } nvlinks[NVLINK_MAX];
    int nnvlinks;
};

static int sniff(const char *text, size_t len)
{
    return bny_xml_root_is(text, len, "system");
}

/* A whole number of an attribute; `otherwise` where there is none. */
static int whole(struct bny_xml *x, const char **attr, const char *name, int64_t otherwise,
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

/* "16.0 GT/s PCIe", "8 GT/s". 0 where the speed is not known. */
static int64_t pci_cap(const char **attr)
{
    const char *speed = bny_xml_attr(attr, "link_speed"),
               *width = bny_xml_attr(attr, "link_width");
    double gt = speed ? bny_strtod(speed, NULL) : 0,
           lanes = width ? bny_strtod(width, NULL) : 0;

    return gt > 0 && gt < 1e4 && lanes > 0 && lanes <= 64 ? (int64_t)(gt * lanes * 125) : 0;
}

static int both(struct bny_xml *x, int a, int b, int64_t mbps, int64_t lat)
{
    struct bny_ratio cap = { mbps, 1 };
    int e = bny_import_link(x->im, a, b, cap, lat, x->line);

    return e ? e : bny_import_link(x->im, b, a, cap, lat, x->line);
}

/* A new node of that name, joined with the one around it. Its index or an error. */
static int below(struct bny_xml *x, const char *name, enum bny_node_kind kind, int64_t cap,
                 int64_t lat)
{
    struct nccl *m = x->arg;
    int v, e;

    if (bny_import_find(x->im, name) >= 0)
        return bny_import_fail(x->im, x->line, "%.40s is there twice", name);
    v = bny_import_node(x->im, name, x->line);
    if (v < 0)
        return v;
    x->im->g->nodes[v].kind = kind;
    x->im->g->nodes[v].host = 0;
    if (m->at[x->depth - 1] < 0 || cap <= 0)
        return v;
    e = both(x, v, m->at[x->depth - 1], cap, lat);
    return e ? e : v;
}

static int start_gpu(struct bny_xml *x, const char **attr)
{
    struct nccl *m = x->arg;
    int64_t rank, sm, dev;
    int v = m->at[x->depth - 1], e = whole(x, attr, "rank", -1, 100000, &rank);

    if (!e)
        e = whole(x, attr, "sm", 70, 100000, &sm);
    if (!e)
        e = whole(x, attr, "dev", 0, 100000, &dev);
    if (e)
        return e;
    if (v < 0 || x->im->g->nodes[v].kind != BNY_NODE_SWITCH || m->gpu >= 0)
        return bny_import_fail(x->im, x->line,
                               "a gpu that is not below a pci element of its own");
    x->im->g->nodes[v].kind = BNY_NODE_COMPUTE;
    x->im->g->nodes[v].rank = (int)rank;
    m->gpu = v;
    m->sm = (int)sm;
    return v;
}

static int start_nvlink(struct bny_xml *x, const char **attr)
{
    struct nccl *m = x->arg;
    const char *target = bny_xml_attr(attr, "target"), *class = bny_xml_attr(attr, "tclass");
    int64_t count;
    int e = whole(x, attr, "count", 1, 1024, &count);

    if (e)
        return e;
    if (m->gpu < 0 || !target || strlen(target) >= sizeof m->nvlinks[0].target || count < 1)
        return bny_import_fail(x->im, x->line,
                               "an nvlink outside of a gpu, or without target or count");
    if (m->nnvlinks == NVLINK_MAX)
        return bny_import_fail(x->im, x->line, "more than %d nvlinks", NVLINK_MAX);
    m->nvlinks[m->nnvlinks].from = m->gpu;
    m->nvlinks[m->nnvlinks].line = x->line;
    m->nvlinks[m->nnvlinks].cap = count * (m->sm < 70 ? 18000 : 20000);
    m->nvlinks[m->nnvlinks].is_switch = class && !strncmp(class, "0x0680", 6);
    strcpy(m->nvlinks[m->nnvlinks++].target, target);
    return 0;
}

static int start_cpu(struct bny_xml *x, const char **attr)
{
    struct nccl *m = x->arg;
    const char *numa = bny_xml_attr(attr, "numaid");
    char name[40];
    int v;

    snprintf(name, sizeof name, "cpu%.20s", numa ? numa : "0");
    if (m->ncpus == CPUS_MAX)
        return bny_import_fail(x->im, x->line, "more than %d cpus", CPUS_MAX);
    v = below(x, name, BNY_NODE_SWITCH, 0, 0);
    for (int i = 0; i < m->ncpus && v >= 0; i++) {
        int e = both(x, m->cpus[i], v, 16000, LAT_SOCKET);
        if (e)
            return e;
    }
    if (v >= 0)
        m->cpus[m->ncpus++] = v;
    return v;
}

static int start(struct bny_xml *x, const char *name, const char **attr)
{
    struct nccl *m = x->arg;
    const char *busid = bny_xml_attr(attr, "busid"), *dev = bny_xml_attr(attr, "name");
    int64_t speed;
    int v;

    v = m->at[x->depth] = x->depth > 1 ? m->at[x->depth - 1] : -1;
    if (!strcmp(name, "cpu")) {
        v = start_cpu(x, attr);
    } else if (!strcmp(name, "pci")) {
        int64_t cap = pci_cap(attr);
        if (!busid)
            return bny_import_fail(x->im, x->line, "a pci element without busid");
        v = below(x, busid, BNY_NODE_SWITCH, cap ? cap : 12000, LAT_PCI);
    } else if (!strcmp(name, "gpu")) {
        v = start_gpu(x, attr);
    } else if (!strcmp(name, "nvlink")) {
        return start_nvlink(x, attr);
    } else if (!strcmp(name, "net") && dev) {
        v = whole(x, attr, "speed", 10000, 100000000, &speed);
        if (!v)
            v = below(x, dev, BNY_NODE_NIC, speed > 8 ? speed / 8 : 1, LAT_PCI);
    } else {
        return 0;
    }
    m->at[x->depth] = v;
    return v < 0 ? v : 0;
}

static int end(struct bny_xml *x, const char *name, const char *text)
{
    struct nccl *m = x->arg;

    if (!strcmp(name, "gpu"))
        m->gpu = -1;
    return 0;
}

/* Targets may stand after the links to them. One end of a pair of GPUs lists it for itself. */
static int add_nvlinks(struct bny_import *im, struct nccl *m)
{
    for (int i = 0; i < m->nnvlinks; i++) {
        int to = m->nvlinks[i].is_switch ? bny_import_node(im, "nvswitch", m->nvlinks[i].line)
                                         : bny_import_find(im, m->nvlinks[i].target);
        struct bny_ratio cap = { m->nvlinks[i].cap, 1 };
        int e;
        if (to < 0)
            return bny_import_fail(im, m->nvlinks[i].line, "there is no gpu \"%s\"",
                                   m->nvlinks[i].target);
        e = bny_import_link(im, m->nvlinks[i].from, to, cap, 300, m->nvlinks[i].line);
        if (m->nvlinks[i].is_switch && !e) {
            im->g->nodes[to].kind = BNY_NODE_SWITCH;
            e = bny_import_link(im, to, m->nvlinks[i].from, cap, 300, m->nvlinks[i].line);
        }
        if (e)
            return e;
    }
    return 0;
}

static int parse(struct bny_import *im)
{
    struct nccl *m = calloc(1, sizeof *m);
    struct bny_xml x = { .im = im, .arg = m, .start = start, .end = end };
    int e, given = 0, gpus = 0;

    if (!m)
        return bny_fail(BANYAN_ENOMEM, "no memory for %s", im->file);
    m->gpu = -1;
    memset(m->at, 0xff, sizeof m->at);
    im->unit_Bps = 1e6;
    im->reduce = 1;
    e = bny_xml_parse(&x);
    if (!e)
        e = add_nvlinks(im, m);
    free(m);
    for (int v = 0; v < im->g->nnodes; v++) {
        gpus += im->g->nodes[v].kind == BNY_NODE_COMPUTE;
        given += im->g->nodes[v].rank >= 0;
    }
    for (int v = 0; given < gpus && v < im->g->nnodes; v++)
        im->g->nodes[v].rank = -1;
    return e;
}

const struct bny_importer bny_import_nccl = { "nccl", sniff, parse };
