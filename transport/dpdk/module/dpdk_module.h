/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside libbanyan-dpdk.so, the only part of banyan that includes and links DPDK. eal.c: the
 * EAL and its memory; dpdk_port.c: ports; memif.c: the end of memif links; events.c: drivers'
 * events; queues.c: queues and steering; dpdk_io.c: packets. It knows nothing of ranks and
 * messages (the library sees only driver.h). */
#ifndef BNY_DGRAM_DPDK_MODULE_H
#define BNY_DGRAM_DPDK_MODULE_H

#include <stdatomic.h>
#include <stdint.h>

#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_ring.h>

#include "transport/datagram/driver.h"

struct bny_dgram_port {
    uint16_t id;
    unsigned caps;
    enum bny_dgram_kind kind;
    int started, was_up, queues;
    unsigned turn; /* queue to read first */
    uint64_t tried_ns;
    struct rte_mempool *pool;  /* receive buffers, and whole frames that are copied */
    struct rte_ring *rings[2]; /* ring: to receive, to send */
    struct rte_flow *rule;     /* steers our frames to us; NULL: none */
    int try_fd;     /* net_af_packet: for longer frames than before (bny_port_try); -1: none */
    int group_fd;   /* net_af_packet: reserves its fan-out group; -1: none */
    uint32_t taken; /* longest frame that the interface has accepted */
    int rx_sums, tx_sums;   /* it verifies checksums; computes them */
    int is4;                /* its address is IPv4, or unknown */
    int isolated;           /* the kernel gets all other frames */
    struct bny_dgram_ip ip; /* our address, for the rule */
    uint16_t udp_port;
    uint16_t vlan;  /* of all frames; 0: no tag */
    uint64_t owner; /* devices: our owner number; 0: none yet */
    char iface[16]; /* the kernel's interface behind it; empty: none */
    int iface_up;
    uint64_t looked_ns;       /* of iface_up, or the end of link_fd */
    char link[64];            /* memif: the abstract name of its control socket */
    int server;               /* memif: our end listened */
    int link_fd;              /* memif: the control socket, once up; -1: the driver's */
    int ended;                /* memif: the peer closed its end */
    char name[64];            /* of the vdev; empty: none to remove */
    struct rte_eth_conf conf; /* devices: its configuration, and the receive places */
    uint16_t desc;
    atomic_uint events;  /* bits: events since the last check */
    int hears, recovers; /* recovers: by itself; until then it gets no calls */
    const char *gone;    /* why it does not work any more; NULL: it works */
    char device[64];
    uint64_t refused; /* frames in several segments, without memory, or damaged */
};

/* eal.c */
int bny_eal_start(const char *args, const char *device, int loud, char *text);
void bny_eal_hear(const char *line, size_t len); /* a line from DPDK, or from its libraries */
void bny_eal_forget_lines(void);
void bny_eal_explain(char *text); /* adds the first line since then */
void *bny_eal_alloc(size_t bytes);
void bny_eal_release(void *mem);
int bny_eal_owns(const void *mem, size_t bytes);
/* Calls fn(arg) in the EAL's interrupt thread and waits for it. memif handles its connections
 * in that thread without locks: opening or closing a port in another thread pulls descriptors
 * from under it (seen: PANIC in eal_intr_thread_main). */
void bny_eal_call(void (*fn)(void *), void *arg);
struct rte_mempool *
bny_eal_heads(void); /* short buffers: headers, and references to attached memory */

/* dpdk_port.c */
int bny_port_open(const struct bny_dgram_conf *conf, struct bny_dgram_port **out,
                  struct bny_dgram_info *info, char *text);
void bny_port_close(struct bny_dgram_port *port);
int bny_port_link_up(struct bny_dgram_port *port);
uint64_t bny_port_missed(struct bny_dgram_port *port);
uint32_t bny_port_mbps(struct bny_dgram_port *port);
int bny_port_map(struct bny_dgram_port *port, void *mem, size_t bytes, char *text);
void bny_port_unmap(struct bny_dgram_port *port, void *mem, size_t bytes);
/* Sends a frame past net_af_packet's ring, and records that frames of its length pass. In the
 * ring, a frame that the other end of a veth refuses (its MTU is smaller) would be retried for
 * ever, and block all behind it. */
void bny_port_try(struct bny_dgram_port *port, const struct bny_dgram_tx *tx);

/* memif.c. In the interrupt thread: takes the control socket of a port that is up from the
 * driver; without descriptors the driver keeps it, and may unmap the rings at any time. */
void bny_memif_take(void *port);
void bny_memif_drain(void); /* in the interrupt thread: after ports were closed */
int bny_memif_ended(const struct bny_dgram_port *p);

/* queues.c: for a stopped port; configures it, and starts it if possible now */
int bny_queues_set_up(struct bny_dgram_port *p, const struct bny_dgram_conf *c,
                      struct bny_dgram_info *info, char *text);
int bny_queues_start(struct bny_dgram_port *p);
/* Makes the driver return every frame that it was to send. */
void bny_queues_flush(struct bny_dgram_port *p);
void bny_queues_stop(struct bny_dgram_port *p);
/* Resets it at its driver's request, as it was opened. Returns 0 or -1. */
int bny_queues_reset(struct bny_dgram_port *p);
void bny_queues_again(struct bny_dgram_port *p); /* groups and rules after a restart */
/* Slot size of af_packet's rings. */
uint32_t bny_queues_ring_frame(uint32_t frame_max);

/* events.c */
void bny_events_open(struct bny_dgram_port *p);
void bny_events_close(struct bny_dgram_port *p);
void bny_events_run(struct bny_dgram_port *p);
int bny_events_way(struct bny_dgram_port *p, int rank, char *text); /* driver.h: way() */

/* dpdk_io.c */
int bny_io_tx(struct bny_dgram_port *port, const struct bny_dgram_tx *tx, int n);
int bny_io_rx(struct bny_dgram_port *port, struct bny_dgram_rx *rx, int n);
void bny_io_free(void *const *bufs, int n);
void bny_io_reclaim(struct bny_dgram_port *port);
void bny_io_ref_init(struct bny_dgram_ref *ref);
int bny_io_ref_busy(const struct bny_dgram_ref *ref);

#define say(text, ...) snprintf(text, BNY_DGRAM_TEXT, __VA_ARGS__)

#endif
