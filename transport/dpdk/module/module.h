/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside libbanyan-dpdk.so, the only part of banyan that includes and links DPDK. eal.c: the
 * EAL and its memory; port.c: ports; memif.c: the end of memif's links; events.c: what drivers
 * tell of ports; queues.c: queues, and what comes to them; io.c: packets. It knows nothing of
 * ranks and messages (driver.h is all that the library sees). */
#ifndef BNY_DPDK_MODULE_H
#define BNY_DPDK_MODULE_H

#include <stdatomic.h>
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
    int started, was_up, queues;
    unsigned turn; /* queue that is read first */
    uint64_t tried_ns;
    struct rte_mempool *pool;  /* receive buffers, and whole frames that are copied */
    struct rte_ring *rings[2]; /* ring: to receive, to send */
    struct rte_flow *rule;     /* that brings our frames to us; NULL: none */
    int try_fd; /* net_af_packet: for frames longer than any before (bny_port_try); -1: none */
    int group_fd;          /* net_af_packet: keeps its fan-out group from others; -1: none */
    uint32_t taken;        /* longest frame that the interface has taken */
    int rx_sums, tx_sums;  /* it looks at checksums; computes them */
    int is4;               /* its address is IPv4, or not known */
    int isolated;          /* all other frames are the kernel's */
    struct bny_dpdk_ip ip; /* ours, which the rule steers by */
    uint16_t udp_port;
    uint16_t vlan;  /* of all frames; 0: they have no tag */
    uint64_t owner; /* devices: our number as the port's owner; 0: not yet */
    char iface[16]; /* the kernel's interface behind it; empty: none */
    int iface_up;
    uint64_t looked_ns;       /* at iface_up, or the end of link_fd */
    char link[64];            /* memif: the abstract name of its control socket */
    int server;               /* memif: ours is the end that listened */
    int link_fd;              /* memif: the control socket, once it is up; -1: the driver's */
    int ended;                /* memif: the peer's end of it is closed */
    char name[64];            /* of the vdev; empty: none to remove */
    struct rte_eth_conf conf; /* devices: as it was configured, and the places to receive */
    uint16_t desc;
    atomic_uint events;  /* bits: what was told since it was last looked at */
    int hears, recovers; /* recovers: by itself; until then nothing is asked of it */
    const char *gone;    /* why nothing goes over it any more; NULL: it works */
    char device[64];
    uint64_t refused; /* frames in several segments, without memory, or damaged */
};

/* eal.c */
int bny_eal_start(const char *args, const char *device, int loud, char *text);
void bny_eal_hear(const char *line, size_t len); /* of DPDK, or of what it uses */
void bny_eal_forget_lines(void);
void bny_eal_explain(char *text); /* adds the first line since then */
void *bny_eal_alloc(size_t bytes);
void bny_eal_release(void *mem);
int bny_eal_owns(const void *mem, size_t bytes);
/* Calls fn(arg) in the EAL's interrupt thread and waits for it. memif handles its connections
 * in that thread without locks: whoever opens or closes a port elsewhere pulls descriptors from
 * under it (seen: PANIC in eal_intr_thread_main). */
void bny_eal_call(void (*fn)(void *), void *arg);
struct rte_mempool *
bny_eal_heads(void); /* short buffers: headers, and what points to attached memory */

/* port.c */
int bny_port_open(const struct bny_dpdk_conf *conf, struct bny_dpdk_port **out,
                  struct bny_dpdk_info *info, char *text);
void bny_port_close(struct bny_dpdk_port *port);
int bny_port_link_up(struct bny_dpdk_port *port);
uint64_t bny_port_missed(struct bny_dpdk_port *port);
uint32_t bny_port_mbps(struct bny_dpdk_port *port);
int bny_port_map(struct bny_dpdk_port *port, void *mem, size_t bytes, char *text);
void bny_port_unmap(struct bny_dpdk_port *port, void *mem, size_t bytes);
/* Sends a frame past net_af_packet's ring, and remembers that frames of its length are taken.
 * In the ring, one that the other end of a veth does not take (its MTU is smaller) would be
 * tried again for ever, and nothing behind it. */
void bny_port_try(struct bny_dpdk_port *port, const struct bny_dpdk_tx *tx);

/* memif.c. In the interrupt thread: takes the control socket of a port that is up from
 * the driver; without descriptors it stays the driver's, which then unmaps the rings when it
 * likes. */
void bny_memif_take(void *port);
void bny_memif_drain(void); /* in the interrupt thread: when ports were closed */
int bny_memif_ended(const struct bny_dpdk_port *p);

/* queues.c: of a port that is stopped; configures it, starts it when that can be done now */
int bny_queues_set_up(struct bny_dpdk_port *p, const struct bny_dpdk_conf *c,
                      struct bny_dpdk_info *info, char *text);
int bny_queues_start(struct bny_dpdk_port *p);
/* Has the driver give back every frame that it was given to send. */
void bny_queues_flush(struct bny_dpdk_port *p);
void bny_queues_stop(struct bny_dpdk_port *p);
/* When its driver wants it to: as it was opened. 0 or -1. */
int bny_queues_reset(struct bny_dpdk_port *p);
void bny_queues_again(struct bny_dpdk_port *p); /* groups and rules of one that started anew */
/* Bytes of a slot of af_packet's rings. */
uint32_t bny_queues_ring_frame(uint32_t frame_max);

/* events.c */
void bny_events_open(struct bny_dpdk_port *p);
void bny_events_close(struct bny_dpdk_port *p);
void bny_events_run(struct bny_dpdk_port *p);
int bny_events_way(struct bny_dpdk_port *p, int rank, char *text); /* driver.h: way() */

/* io.c */
int bny_io_tx(struct bny_dpdk_port *port, const struct bny_dpdk_tx *tx, int n);
int bny_io_rx(struct bny_dpdk_port *port, struct bny_dpdk_rx *rx, int n);
void bny_io_free(void *const *bufs, int n);
void bny_io_reclaim(struct bny_dpdk_port *port);
void bny_io_ref_init(struct bny_dpdk_ref *ref);
int bny_io_ref_busy(const struct bny_dpdk_ref *ref);

#define say(text, ...) snprintf(text, BNY_DPDK_TEXT, __VA_ARGS__)

#endif
