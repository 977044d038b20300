/* SPDX-License-Identifier: BSD-3-Clause */
/* One machine as seen by hwloc: cores with the resources that they share, devices with their
 * locality. Plain arrays, made once and independent of hwloc, so a machine is read-only data
 * for any thread. */
#ifndef BNY_TOPO_MACHINE_H
#define BNY_TOPO_MACHINE_H

#include <stddef.h>

#include "topo/graph.h"

#define BNY_MACHINE_PUS_MAX 8 /* most hardware threads kept per core */

struct bny_machine_core {
    int pu[BNY_MACHINE_PUS_MAX], npus; /* the system's numbers of its hardware threads */
    int cache, numa,
        package; /* its outermost shared cache (-1: none), memory, socket: 0, 1, ... */
    int nic;     /* the best device for its traffic, or -1 */
};

enum bny_device_kind { BNY_DEVICE_NETWORK, BNY_DEVICE_OPENFABRICS, BNY_DEVICE_GPU };

struct bny_machine_device {
    enum bny_device_kind kind; /* a NIC that is both: OPENFABRICS */
    char name[32];             /* mlx5_0, eth0, card0 */
    char netdev[32];           /* the interface of an OPENFABRICS device, or "" */
    char bus[20];              /* 0000:17:00.0, or "" */
    int numa, package;         /* nearest; -1: all are equally far */
    int bridge;                /* devices below the same PCIe switch share a number; -1: none */
    double GBps;               /* of its PCI link; 0: unknown */
};

struct bny_machine {
    char source[64]; /* "this machine", a file's name, "synthetic" */
    int ncores, ncaches, nnumas, npackages, ndevices;
    struct bny_machine_core *cores; /* in hwloc's logical order: neighbours share most */
    struct bny_machine_device *devices;
};

/* This machine, or the one of HWLOC_XMLFILE or HWLOC_SYNTHETIC. Returns 0, -BANYAN_ENOMEM,
 * -BANYAN_ESYSTEM. */
int bny_machine_live(struct bny_machine **out);
/* From `lstopo file.xml` of hwloc 2 or 3: len bytes, a 0 behind them. file: for errors. Own
 * reader (machine_xml.c): foreign files crash hwloc 2.9. Returns 0 or -BANYAN_EINVAL. */
int bny_machine_xml(struct bny_machine **out, const char *file, const char *xml, size_t len);
/* From hwloc's description, e.g. "package:2 numa:2 core:8 pu:2". */
int bny_machine_synthetic(struct bny_machine **out, const char *text);
void bny_machine_free(struct bny_machine *m); /* takes NULL */

/* The core of each of n ranks (core[n]): distributed evenly over packages, memories and caches,
 * and in their order, so that neighbouring ranks share the most. With more ranks than cores
 * neighbours share a core. */
void bny_machine_place(const struct bny_machine *m, int n, int *core);

struct bny_machine_threads {
    int rank;     /* hardware thread for the caller */
    int progress; /* and for a progress thread: the core's next thread, or a free core with the
                     same cache, or memory; -1: none is free */
    int encode[BNY_MACHINE_PUS_MAX],
        nencode; /* free cores with the same memory, for encoding threads */
};
/* Advice for one of the ranks that bny_machine_place put on core[n]. */
void bny_machine_threads(const struct bny_machine *m, int n, const int *core, int rank,
                         struct bny_machine_threads *out);

/* n ranks (0: one per core) and the resources that connect them: caches, memories, packages,
 * NICs. Capacities are estimates (machine_graph.c) until banyan_topo probe measures them. Not
 * frozen. Returns 0 or an error. */
int bny_machine_graph(struct bny_graph *g, const struct bny_machine *m, int n);

/* For code that fills in a machine (machine.c, machine_xml.c): devices with one bus address
 * become one NIC or GPU; at the end every core gets its NIC. */
#define BNY_MACHINE_CORES_MAX   8192
#define BNY_MACHINE_DEVICES_MAX 256
void bny_machine_add_device(struct bny_machine *m, const struct bny_machine_device *d);
void bny_machine_finish(struct bny_machine *m);

#endif
