/* SPDX-License-Identifier: BSD-3-Clause */
/* Common parts of the readers of machines (machine.h): one NIC per bus address, a NIC for each
 * core. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/machine.h"

void bny_machine_add_device(struct bny_machine *m, const struct bny_machine_device *one)
{
    struct bny_machine_device *d = NULL;

    for (int i = 0; *one->bus && i < m->ndevices && !d; i++)
        if (!strcmp(m->devices[i].bus, one->bus) &&
            (m->devices[i].kind == BNY_DEVICE_GPU) == (one->kind == BNY_DEVICE_GPU))
            d = &m->devices[i];
    if (!d) {
        if (m->ndevices < BNY_MACHINE_DEVICES_MAX)
            m->devices[m->ndevices++] = *one;
        return;
    }
    /* A GPU has several (CUDA, OpenCL, display): the first one names it. A NIC may have an RDMA
     * device and an interface. */
    if (d->kind == BNY_DEVICE_NETWORK && one->kind == BNY_DEVICE_OPENFABRICS) {
        char netdev[sizeof d->netdev];
        memcpy(netdev, d->name, sizeof netdev);
        *d = *one;
        memcpy(d->netdev, netdev, sizeof netdev);
    } else if (d->kind == BNY_DEVICE_OPENFABRICS && one->kind == BNY_DEVICE_NETWORK) {
        memcpy(d->netdev, one->name, sizeof d->netdev);
    }
}

/* The nearest NIC of each core: same memory before same package before any, RDMA before others;
 * cores take equally near ones in turn. Interfaces without a bus (lo, bridges) do not count. */
static int nearness(const struct bny_machine_core *c, const struct bny_machine_device *d)
{
    if (d->kind == BNY_DEVICE_GPU || !*d->bus)
        return -1;
    return 2 * (d->numa == c->numa ? 2 : d->package == c->package) +
           (d->kind == BNY_DEVICE_OPENFABRICS);
}

void bny_machine_finish(struct bny_machine *m)
{
    for (int i = 0; i < m->ncores; i++) {
        int best = -1, equal = 0, turn = 0;
        for (int d = 0; d < m->ndevices; d++) {
            int now = nearness(&m->cores[i], &m->devices[d]);
            equal = now > best ? 1 : equal + (now == best);
            best = now > best ? now : best;
        }
        for (int k = i - 1; k >= 0 && m->cores[k].numa == m->cores[i].numa; k--)
            turn++;
        if (best >= 0)
            turn %= equal;
        for (int d = 0; best >= 0 && d < m->ndevices; d++)
            if (nearness(&m->cores[i], &m->devices[d]) == best && turn-- == 0) {
                m->cores[i].nic = d;
                break;
            }
    }
}

void bny_machine_free(struct bny_machine *m)
{
    if (!m)
        return;
    free(m->cores);
    free(m->devices);
    free(m);
}
