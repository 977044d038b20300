/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside libbanyan-dpdk.so, the only part of banyan that includes and links DPDK. eal.c: the EAL and its memory; port.c:
 * ports; io.c: packets. It knows nothing of ranks and messages (driver.h is all that the library sees). */
#ifndef BNY_DPDK_MODULE_H
#define BNY_DPDK_MODULE_H

#include <stdint.h>

#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>

#include "transport/dpdk/driver.h"

struct bny_dpdk_port {
    uint16_t id;
    unsigned caps;
    enum bny_dpdk_kind kind;
    int started, was_up;
    uint64_t tried_ns;
    struct rte_mempool *pool;       /* receive buffers, and whole frames that are copied */
    struct rte_ring *rings[2];      /* ring: to receive, to send */
    char name[64];                  /* of the vdev; empty: none to remove */
    uint64_t refused;               /* frames in several segments, or without memory */
};

/* eal.c */
int bny_eal_start(const char *args, const char *device, char *text);
void *bny_eal_alloc(size_t bytes);
void bny_eal_release(void *mem);
int bny_eal_owns(const void *mem, size_t bytes);
/* Calls fn(arg) in the EAL's interrupt thread and waits for it. memif handles its connections in that thread without
 * locks: whoever opens or closes a port elsewhere pulls descriptors from under it (seen: PANIC in eal_intr_thread_main). */
void bny_eal_call(void (*fn)(void *), void *arg);
struct rte_mempool *bny_eal_heads(void); /* short buffers: headers, and what points to attached memory */

/* port.c */
int bny_port_open(const struct bny_dpdk_conf *conf, struct bny_dpdk_port **out, struct bny_dpdk_info *info, char *text);
void bny_port_close(struct bny_dpdk_port *port);
int bny_port_link_up(struct bny_dpdk_port *port);
uint64_t bny_port_missed(struct bny_dpdk_port *port);

/* io.c */
int bny_io_tx(struct bny_dpdk_port *port, const struct bny_dpdk_tx *tx, int n);
int bny_io_rx(struct bny_dpdk_port *port, struct bny_dpdk_rx *rx, int n);
void bny_io_free(void *const *bufs, int n);
void bny_io_reclaim(struct bny_dpdk_port *port);
void bny_io_ref_init(struct bny_dpdk_ref *ref);
int bny_io_ref_busy(const struct bny_dpdk_ref *ref);

#define say(text, ...) snprintf(text, BNY_DPDK_TEXT, __VA_ARGS__)

#endif
