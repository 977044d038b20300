/* SPDX-License-Identifier: BSD-3-Clause */
/* The machine by hwloc (machine.h). */
#include "topo/machine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/lazy_hwloc.h"
#include "base/privileged.h"

/* hwloc 3 has a set of kinds for each device, hwloc 2 one kind. */
#if HWLOC_API_VERSION >= 0x00030000
#define DEVICE_IS(o, t) (((o)->attr->osdev.types & HWLOC_OBJ_OSDEV_##t) != 0)
#else
#define DEVICE_IS(o, t) ((o)->attr->osdev.type == HWLOC_OBJ_OSDEV_##t)
#endif

/* The outermost cache above a core that it can share: not the first level. */
static hwloc_obj_t outer_cache(hwloc_obj_t o)
{
    hwloc_obj_t found = NULL;

    for (o = o->parent; o; o = o->parent)
        if (hwloc_obj_type_is_dcache(o->type) && o->type != HWLOC_OBJ_L1CACHE)
            found = o;
    return found;
}

/* Index of *o among those seen, in order of appearance. */
static int machine_number(hwloc_obj_t *seen, int *n, hwloc_obj_t o)
{
    int i = 0;

    if (!o)
        return -1;
    while (i < *n && seen[i] != o)
        i++;
    if (i == *n)
        seen[(*n)++] = o;
    return i;
}

static void read_core(struct bny_machine_core *c, hwloc_obj_t o)
{
    int pu;

    c->npus = 0;
    hwloc_bitmap_foreach_begin(pu, o->cpuset) if (c->npus < BNY_MACHINE_PUS_MAX)
        c->pu[c->npus++] = pu;
    hwloc_bitmap_foreach_end();
    c->nic = -1;
}

/* Cores, or hardware threads if cores are unknown. */
static int cores_depth(hwloc_topology_t t)
{
    int depth = hwloc_get_type_depth(t, HWLOC_OBJ_CORE);

    return depth >= 0 ? depth : hwloc_get_type_depth(t, HWLOC_OBJ_PU);
}

/* The memory of that number, or NULL. */
static hwloc_obj_t numa_at(hwloc_topology_t t, int os)
{
    int depth = HWLOC_TYPE_DEPTH_NUMANODE;

    for (unsigned i = 0; os >= 0 && i < hwloc_get_nbobjs_by_depth(t, depth); i++)
        if (hwloc_get_obj_by_depth(t, depth, i)->os_index == (unsigned)os)
            return hwloc_get_obj_by_depth(t, depth, i);
    return NULL;
}

static int read_cores(struct bny_machine *m, hwloc_topology_t t)
{
    int depth = cores_depth(t), n = (int)hwloc_get_nbobjs_by_depth(t, depth);
    hwloc_obj_t *seen;

    if (n < 1 || n > BNY_MACHINE_CORES_MAX)
        return bny_fail(BANYAN_EINVAL, "%s has %d cores; 1 to %d are possible", m->source, n,
                        BNY_MACHINE_CORES_MAX);
    seen = calloc(3 * (size_t)n, sizeof *seen);

    m->cores = calloc((size_t)n, sizeof *m->cores);
    if (!m->cores || !seen) {
        free(seen);
        return bny_fail(BANYAN_ENOMEM, "no memory for %d cores", n);
    }
    for (int i = 0; i < n; i++) {
        hwloc_obj_t o = hwloc_get_obj_by_depth(t, depth, (unsigned)i);
        hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(t, HWLOC_OBJ_PACKAGE, o);
        struct bny_machine_core *c = &m->cores[i];
        int numa = o->nodeset ? hwloc_bitmap_first(o->nodeset) : -1;
        read_core(c, o);
        c->cache = machine_number(seen, &m->ncaches, outer_cache(o));
        c->numa = machine_number(seen + n, &m->nnumas, numa_at(t, numa));
        c->package = machine_number(seen + 2 * n, &m->npackages,
                                    package ? package : hwloc_get_obj_by_depth(t, 0, 0));
        if (c->numa < 0)
            c->numa = 0;
    }
    if (!m->nnumas)
        m->nnumas = 1;
    m->ncores = n;
    free(seen);
    return 0;
}

/* The common package or memory of a device's near cores; -1 if they have several. */
static int near(const struct bny_machine *m, hwloc_const_cpuset_t set, int package)
{
    int found = -1;

    for (int i = 0; i < m->ncores; i++) {
        int at = package ? m->cores[i].package : m->cores[i].numa;
        if (!m->cores[i].npus || !hwloc_bitmap_isset(set, (unsigned)m->cores[i].pu[0]))
            continue;
        if (found >= 0 && found != at)
            return -1;
        found = at;
    }
    return found;
}

/* The outermost PCI-to-PCI bridge below the host bridge: devices below it share a link. */
static int bridge_of(hwloc_obj_t o)
{
    int found = -1;

    for (; o; o = o->parent)
        if (o->type == HWLOC_OBJ_BRIDGE &&
            o->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI)
            found = (int)o->logical_index;
    return found;
}

/* The PCI bus address, "" for a device without one. */
static void bus_of(char *buf, size_t cap, hwloc_obj_t pci)
{
    const struct hwloc_pcidev_attr_s *a = pci ? &pci->attr->pcidev : NULL;

    buf[0] = 0;
    if (a)
        snprintf(buf, cap, "%04x:%02x:%02x.%01x", (unsigned)a->domain, a->bus, a->dev, a->func);
}

static void read_device(struct bny_machine *m, hwloc_topology_t t, hwloc_obj_t o)
{
    hwloc_obj_t pci = o->parent, at = hwloc_get_non_io_ancestor_obj(t, o);
    struct bny_machine_device one = { .kind = BNY_DEVICE_GPU, .bridge = bridge_of(o) };

    if (DEVICE_IS(o, NETWORK))
        one.kind = BNY_DEVICE_NETWORK;
    else if (DEVICE_IS(o, OPENFABRICS))
        one.kind = BNY_DEVICE_OPENFABRICS;
    else if (!DEVICE_IS(o, GPU) && !DEVICE_IS(o, COPROC))
        return;
    while (pci && pci->type != HWLOC_OBJ_PCI_DEVICE)
        pci = pci->parent;
    bus_of(one.bus, sizeof one.bus, pci);
    one.GBps = pci && pci->attr->pcidev.linkspeed > 0 ? (double)pci->attr->pcidev.linkspeed : 0;
    one.numa = at && at->cpuset ? near(m, at->cpuset, 0) : -1;
    one.package = at && at->cpuset ? near(m, at->cpuset, 1) : -1;
    snprintf(one.name, sizeof one.name, "%s", o->name ? o->name : "device");
    bny_machine_add_device(m, &one);
}

static int read_machine(struct bny_machine **out, hwloc_topology_t t, const char *source)
{
    struct bny_machine *m = calloc(1, sizeof *m);
    int e;

    if (!m)
        return bny_fail(BANYAN_ENOMEM, "no memory for the machine");
    snprintf(m->source, sizeof m->source, "%s", source);
    e = read_cores(m, t);
    m->devices = e ? NULL : calloc(BNY_MACHINE_DEVICES_MAX, sizeof *m->devices);
    if (!e && !m->devices)
        e = bny_fail(BANYAN_ENOMEM, "no memory for the machine's devices");
    for (unsigned i = 0; !e && i < hwloc_get_nbobjs_by_depth(t, HWLOC_TYPE_DEPTH_OS_DEVICE);
         i++)
        read_device(m, t, hwloc_get_obj_by_depth(t, HWLOC_TYPE_DEPTH_OS_DEVICE, i));
    if (e) {
        bny_machine_free(m);
        return e;
    }
    bny_machine_finish(m);
    *out = m;
    return 0;
}

/* synthetic: hwloc's description, or NULL for the machine that hwloc detects. */
static int machine_load(struct bny_machine **out, const char *synthetic)
{
    const char *source = synthetic ? "synthetic" : "this machine";
    hwloc_topology_t t;
    int e = 0;

    *out = NULL;
    if (bny_privileged()) /* HWLOC_PLUGINS_PATH and others */
        return bny_fail(BANYAN_ENOTSUP,
                        "hwloc reads its caller's environment, and this program is set-uid or "
                        "has file capabilities: the machine is not looked at");
    e = bny_lazy_hwloc();
    if (e)
        return e;
    if (hwloc_topology_init(&t))
        return bny_fail(BANYAN_ENOMEM, "hwloc cannot start: no memory");
    errno = 0;
    if (synthetic)
        e = hwloc_topology_set_synthetic(t, synthetic);
    /* Without libpciaccess, which never frees its table of names (hwloc reads PCI from sysfs as
     * well), and without querying a graphics server. The call has no effect if there is no such
     * component. */
    hwloc_topology_set_components(t, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "pci");
    hwloc_topology_set_components(t, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "gl");
    errno = 0;
    if (!e)
        e = hwloc_topology_set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (!e)
        e = hwloc_topology_load(t);
    e = e ? bny_fail(synthetic ? BANYAN_EINVAL : BANYAN_ESYSTEM,
                     "hwloc cannot read %s %.100s%s%s", source, synthetic ? synthetic : "",
                     errno ? ": " : "", errno ? strerror(errno) : "")
          : read_machine(out, t, source);
    hwloc_topology_destroy(t);
    return e;
}

int bny_machine_live(struct bny_machine **out)
{
    return machine_load(out, NULL);
}

int bny_machine_synthetic(struct bny_machine **out, const char *text)
{
    return machine_load(out, text);
}
