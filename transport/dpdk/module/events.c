/* SPDX-License-Identifier: BSD-3-Clause */
/* Drivers' events for a port, in the EAL's interrupt thread: it needs a reset (a VF, after its
 * PF), was removed, or recovers from an error. The thread that uses the port handles them when
 * it checks the link. */
#include "transport/dpdk/module/dpdk_module.h"

static const enum rte_eth_event_type heard[] = {
    RTE_ETH_EVENT_INTR_RESET,       RTE_ETH_EVENT_INTR_RMV,        RTE_ETH_EVENT_ERR_RECOVERING,
    RTE_ETH_EVENT_RECOVERY_SUCCESS, RTE_ETH_EVENT_RECOVERY_FAILED,
};
#define NHEARD (sizeof heard / sizeof heard[0])

static int events_hear(uint16_t id, enum rte_eth_event_type type, void *arg, void *ret)
{
    struct bny_dgram_port *p = arg;

    atomic_fetch_or(&p->events, 1u << type);
    return 0;
}

void bny_events_open(struct bny_dgram_port *p)
{
    for (size_t i = 0; i < NHEARD; i++)
        rte_eth_dev_callback_register(p->id, heard[i], events_hear, p);
    p->hears = 1;
}

void bny_events_close(struct bny_dgram_port *p)
{
    for (size_t i = 0; i < NHEARD && p->hears; i++)
        rte_eth_dev_callback_unregister(p->id, heard[i], events_hear, p);
    p->hears = 0;
}

static int events_has(unsigned events, enum rte_eth_event_type type)
{
    return events >> type & 1;
}

void bny_events_run(struct bny_dgram_port *p)
{
    unsigned events = atomic_exchange(&p->events, 0);

    if (!events || p->gone)
        return;
    if (events_has(events, RTE_ETH_EVENT_ERR_RECOVERING))
        p->recovers = 1;
    if (events_has(events, RTE_ETH_EVENT_RECOVERY_SUCCESS)) {
        p->recovers = 0;
        bny_queues_again(p);
    }
    if (events_has(events, RTE_ETH_EVENT_INTR_RESET) && bny_queues_reset(p) != 0)
        p->gone = "its driver asked for a reset, and it does not start again";
    if (events_has(events, RTE_ETH_EVENT_INTR_RMV))
        p->gone = "it was removed";
    if (events_has(events, RTE_ETH_EVENT_RECOVERY_FAILED))
        p->gone = "it does not recover from an error";
    if (!p->gone)
        return;
    p->rule = NULL; /* the reset removed it */
    p->isolated = 0;
    bny_queues_stop(p); /* returns the frames that it was to send */
}

int bny_events_way(struct bny_dgram_port *p, int rank, char *text)
{
    if (!p->gone)
        return 0;
    say(text, "port %s failed: %s; see dmesg", p->device, p->gone);
    return -2;
}
