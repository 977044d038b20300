/* SPDX-License-Identifier: BSD-3-Clause */
/* hwloc's XML, versions 1 to 3, restricted to the needs of a machine (machine.h): objects nest
 * as in hwloc, the nodeset of cores identifies memories. Processors that the machine object
 * does not allow (lstopo --disallowed) are omitted, with objects that have no other. Not read
 * by hwloc: its 2.9 reads no version 3, and crashes if a set is missing. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "topo/import_xml.h"
#include "topo/machine.h"

#define LEVELS_MAX 64
#define NUMAS_MAX  1024

/* The objects around an element; -1: none. */
struct level {
    int package, cache, core, numa, bridge, pci;
};

struct reader {
    struct bny_machine *m;
    struct level at[LEVELS_MAX + 1];
    int cores_cap, nbridges, npci, machines;
    int numa_os[NUMAS_MAX]; /* the system's numbers, in order of appearance */
    char *allowed, *online; /* the machine's sets of processors; NULL: all */
    char bus[20];           /* of the open PCI device */
    double GBps;
};

/* Lowest bit of "0x1,0x00000003" (words of 32 bits, the lowest last), -1: none. *several: more
 * than one is set. */
static int lowest_bit(const char *set, int *several)
{
    int bit = -1, words = 1, count = 0;

    *several = 0;
    for (const char *s = set; *s; s++)
        words += *s == ',';
    for (const char *s = set; words-- > 0;) {
        unsigned long v = strtoul(s, NULL, 16);
        for (int i = 0; i < 32 && words < 1000; i++)
            if (v >> i & 1)
                count++;
        for (int i = 31; i >= 0 && words < 1000; i--)
            if (v >> i & 1)
                bit = words * 32 + i;
        s += strcspn(s, ",");
        s += *s == ',';
    }
    *several = count > 1;
    return bit;
}

/* Is the bit in the set? "0xf...f," at its begin: all above, too. */
static int has_bit(const char *set, int bit)
{
    int words = 1, all = !strncmp(set, "0xf...f", 7);

    for (const char *s = set; *s; s++)
        words += *s == ',';
    if (bit / 32 >= words - all)
        return all;
    for (int i = words - 1 - bit / 32; i > 0; i--)
        set += strcspn(set, ",") + 1;
    return (int)(strtoul(set, NULL, 16) >> bit % 32 & 1);
}

/* Its index in order of appearance; -1: none. */
static int numa_of(struct reader *r, const char **attr, int *several)
{
    const char *set = bny_xml_attr(attr, "nodeset");
    int os = set ? lowest_bit(set, several) : -1;

    for (int i = 0; os >= 0 && i < r->m->nnumas; i++)
        if (r->numa_os[i] == os)
            return i;
    if (os < 0 || r->m->nnumas == NUMAS_MAX)
        return -1;
    r->numa_os[r->m->nnumas] = os;
    return r->m->nnumas++;
}

static int new_core(struct bny_xml *x, struct level *l, const char **attr)
{
    struct reader *r = x->arg;
    int several, numa = numa_of(r, attr, &several);

    if (r->m->ncores == BNY_MACHINE_CORES_MAX)
        return bny_import_fail(x->im, x->line, "more than %d cores, which is the most",
                               BNY_MACHINE_CORES_MAX);
    if (r->m->ncores == r->cores_cap) {
        int cap = r->cores_cap ? 2 * r->cores_cap : 64;
        void *p = reallocarray(r->m->cores, (size_t)cap, sizeof *r->m->cores);
        if (!p)
            return bny_fail(BANYAN_ENOMEM, "no memory for the cores of %s", x->im->file);
        r->m->cores = p;
        r->cores_cap = cap;
    }
    l->core = r->m->ncores++;
    r->m->cores[l->core] =
        (struct bny_machine_core){ .cache = l->cache,
                                   .numa = numa > 0 ? numa : 0,
                                   .package = l->package > 0 ? l->package : 0,
                                   .nic = -1 };
    return 0;
}

static int new_pu(struct bny_xml *x, struct level *l, const char **attr)
{
    struct reader *r = x->arg;
    const char *os = bny_xml_attr(attr, "os_index");
    struct bny_machine_core *c;
    char *end;
    long v = os ? strtol(os, &end, 10) : -1;
    int e = l->core < 0 ? new_core(x, l, attr) : 0;

    if (e)
        return e;
    if (v < 0 || v > 1000000 || *end)
        return bny_import_fail(x->im, x->line, "a PU without a number as its os_index");
    if ((r->allowed && !has_bit(r->allowed, (int)v)) ||
        (r->online && !has_bit(r->online, (int)v)))
        return 0;
    c = &r->m->cores[l->core];
    if (c->npus < BNY_MACHINE_PUS_MAX)
        c->pu[c->npus++] = (int)v;
    return 0;
}

static void new_pci(struct reader *r, struct level *l, const char **attr)
{
    const char *bus = bny_xml_attr(attr, "pci_busid"),
               *speed = bny_xml_attr(attr, "pci_link_speed");

    l->pci = r->npci++;
    snprintf(r->bus, sizeof r->bus, "%s", bus ? bus : "");
    r->GBps = speed ? bny_strtod(speed, NULL) : 0;
    if (!(r->GBps > 0 && r->GBps < 1e5))
        r->GBps = 0;
}

/* Kinds are numbers in version 2 (1 GPU, 2 network, 3 OpenFabrics, 5 coprocessor), sets of bits
 * in version 3. */
static void new_device(struct reader *r, const struct level *l, const char **attr)
{
    const char *kind = bny_xml_attr(attr, "osdev_type"),
               *kinds = bny_xml_attr(attr, "osdev_types");
    const char *name = bny_xml_attr(attr, "name");
    unsigned long bits = kinds ? strtoul(kinds, NULL, 0) : 0;
    struct bny_machine_device d = {
        .kind = BNY_DEVICE_GPU, .numa = l->numa, .package = l->package, .bridge = l->bridge
    };

    if (kind && strlen(kind) == 1)
        bits = (unsigned long[]){ 0, 4, 16, 32, 0, 8, 0, 0, 0, 0 }[(*kind - '0') & 7];
    if (bits & 32)
        d.kind = BNY_DEVICE_OPENFABRICS;
    else if (bits & 16)
        d.kind = BNY_DEVICE_NETWORK;
    else if (!(bits & 12))
        return;
    snprintf(d.name, sizeof d.name, "%s", name && *name ? name : "device");
    for (char *s = d.name; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            *s = '?';
    if (l->pci >= 0) {
        memcpy(d.bus, r->bus, sizeof d.bus);
        d.GBps = r->GBps;
    }
    bny_machine_add_device(r->m, &d);
}

/* Version 1 has none. */
static int check_version(struct bny_xml *x, const char **attr)
{
    const char *version = bny_xml_attr(attr, "version");

    return !version || (*version >= '1' && *version <= '3' && version[1] == '.')
               ? 0
               : bny_import_fail(x->im, x->line,
                                 "version \"%.10s\" of hwloc's XML; 1 to 3 are known", version);
}

/* The outermost object's. */
static int take_sets(struct bny_xml *x, const char **attr)
{
    static const char *const names[] = { "allowed_cpuset", "online_cpuset" };
    struct reader *r = x->arg;
    char **to[] = { &r->allowed, &r->online };

    for (int i = 0; i < 2; i++) {
        const char *set = bny_xml_attr(attr, names[i]);
        if (set && *set && !*to[i] && !(*to[i] = strdup(set)))
            return bny_fail(BANYAN_ENOMEM, "no memory for the processors of %s", x->im->file);
    }
    return 0;
}

/* "L3Cache"; in version 1 "Cache" with a depth. The first level, and an instruction cache, is
 * private to the core. */
static int is_cache(const char *type, const char **attr)
{
    const char *depth = bny_xml_attr(attr, "depth"), *kind = bny_xml_attr(attr, "cache_type");

    if (!strcmp(type, "Cache"))
        return depth && *depth >= '2' && *depth <= '5' && (!kind || strcmp(kind, "2"));
    return type[0] == 'L' && type[1] >= '2' && type[1] <= '5' && !strcmp(type + 2, "Cache");
}

static int machine_xml_start(struct bny_xml *x, const char *name, const char **attr)
{
    struct reader *r = x->arg;
    struct level *l = &r->at[x->depth];
    const char *type = bny_xml_attr(attr, "type");
    int several = 0, numa, e = 0;

    *l = r->at[x->depth - 1];
    if (!strcmp(name, "topology"))
        return check_version(x, attr);
    if (strcmp(name, "object") || !type)
        return strcmp(name, "object")
                   ? 0
                   : bny_import_fail(x->im, x->line, "an object without type");
    if (!strcmp(type, "Core"))
        return new_core(x, l, attr);
    if (!strcmp(type, "PU"))
        return new_pu(x, l, attr);
    if (!strcmp(type, "Machine") && r->machines++)
        return bny_import_fail(x->im, x->line, "a second machine; one a file is read");
    if (x->depth == 2 && !r->allowed)
        e = take_sets(x, attr);
    if (!strcmp(type, "Package") || !strcmp(type, "Socket"))
        l->package = r->m->npackages++;
    else if (is_cache(type, attr))
        l->cache = l->cache < 0 ? r->m->ncaches++ : l->cache;
    else if (!strcmp(type, "Bridge"))
        l->bridge = l->bridge < 0 && l[-1].bridge == -1 ? -2
                    : l->bridge == -2                   ? r->nbridges++
                                                        : l->bridge;
    else if (!strcmp(type, "PCIDev"))
        new_pci(r, l, attr);
    else if (!strcmp(type, "OSDev"))
        new_device(r, l, attr);
    if (strcmp(type, "Bridge") && strcmp(type, "PCIDev") && strcmp(type, "OSDev")) {
        numa = numa_of(r, attr, &several);
        if (numa >= 0 || several)
            l->numa = several ? -1 : numa;
    }
    return e;
}

/* The new number of an object, the next one at first sight. */
static int renumber(int *map, int *n, int old)
{
    if (old < 0)
        return old;
    if (map[old] < 0)
        map[old] = (*n)++;
    return map[old];
}

/* Drops cores without a processor, and packages, caches and memories without a core: those of
 * processors that are not allowed, and separate memories (CXL). */
static int drop_empty(struct bny_import *im, struct bny_machine *m)
{
    int cores = m->ncores, all = m->npackages + m->ncaches + m->nnumas;
    int *package = malloc((size_t)all * sizeof *package), *cache, *numa;

    if (!package)
        return bny_fail(BANYAN_ENOMEM, "no memory for the machine in %s", im->file);
    memset(package, 0xff, (size_t)all * sizeof *package);
    cache = package + m->npackages;
    numa = cache + m->ncaches;
    m->ncores = m->npackages = m->ncaches = m->nnumas = 0;
    for (int i = 0; i < cores; i++) {
        struct bny_machine_core *c = &m->cores[m->ncores];
        if (!m->cores[i].npus)
            continue;
        *c = m->cores[i];
        c->package = renumber(package, &m->npackages, c->package);
        c->cache = renumber(cache, &m->ncaches, c->cache);
        c->numa = renumber(numa, &m->nnumas, c->numa);
        m->ncores++;
    }
    for (int d = 0; d < m->ndevices; d++) {
        struct bny_machine_device *k = &m->devices[d];
        k->package = k->package < 0 ? -1 : package[k->package];
        k->numa = k->numa < 0 ? -1 : numa[k->numa];
    }
    free(package);
    return 0;
}

/* Devices below the whole machine are nearest to its memory or package if there is only one. */
static int machine_xml_finish(struct bny_import *im, struct reader *r)
{
    struct bny_machine *m = r->m;
    int e;

    for (int c = 0; c < m->ncores && !r->allowed && !r->online; c++)
        if (!m->cores[c].npus)
            return bny_import_fail(im, 0, "core %d has no PU", c);
    m->npackages = m->npackages ? m->npackages : 1;
    m->nnumas = m->nnumas ? m->nnumas : 1;
    e = drop_empty(im, m);
    if (e)
        return e;
    if (!m->ncores)
        return bny_import_fail(im, 0, "a machine without cores that are allowed");
    for (int d = 0; d < m->ndevices; d++) {
        struct bny_machine_device *k = &m->devices[d];
        k->bridge = k->bridge < 0 ? -1 : k->bridge;
        if (m->npackages == 1)
            k->package = 0;
        if (m->nnumas == 1)
            k->numa = 0;
        for (int c = 0; k->package < 0 && k->numa >= 0 && c < m->ncores; c++)
            if (m->cores[c].numa == k->numa)
                k->package = m->cores[c].package;
    }
    bny_machine_finish(m);
    return 0;
}

int bny_machine_xml(struct bny_machine **out, const char *file, const char *xml, size_t len)
{
    const char *base = strrchr(file, '/');
    struct bny_import im = { .file = file, .text = xml, .len = len };
    struct reader *r = calloc(1, sizeof *r);
    struct bny_xml x = { .im = &im, .arg = r, .start = machine_xml_start, .bare_doctype = 1 };
    int e;

    *out = NULL;
    if (r)
        r->m = calloc(1, sizeof *r->m);
    if (r && r->m)
        r->m->devices = calloc(BNY_MACHINE_DEVICES_MAX, sizeof *r->m->devices);
    if (!r || !r->m || !r->m->devices) {
        bny_machine_free(r ? r->m : NULL);
        free(r);
        return bny_fail(BANYAN_ENOMEM, "no memory for the machine in %s", file);
    }
    snprintf(r->m->source, sizeof r->m->source, "%s", base ? base + 1 : file);
    r->at[0] = (struct level){ -1, -1, -1, -1, -1, -1 };
    e = bny_xml_parse(&x);
    if (!e)
        e = machine_xml_finish(&im, r);
    if (e)
        bny_machine_free(r->m);
    else
        *out = r->m;
    free(r->allowed);
    free(r->online);
    free(r);
    return e;
}
