/* SPDX-License-Identifier: BSD-3-Clause */
/* Transport ud: the dpdk transport's messages (transport/datagram/dgram.h) over one unconnected
 * queue pair of an RDMA device, for all peers: UD, or SRD of an Amazon EFA. This is a driver as
 * described in transport/datagram/driver.h. tp_ud.c: the driver's table; ud_open.c: device,
 * queue pair and memory; way.c: addresses; ud_io.c: frames.
 *
 * A frame is sent without its first 42 bytes (Ethernet, IPv4, UDP): the network has its own
 * headers. Their destination MAC contains the rank. A frame lies at FRAME_AT of its place, so
 * that payload is aligned as over Ethernet; UD's global routing header precedes it there.
 *
 *   sends     a ring of places. A head is copied there; a body in registered memory is read in
 *             place (the request's second piece), any other is copied behind its head.
 *   receives  a pool of places, posted or lent. If more than half of it is lent, frames are
 *             copied to memory of their own, and their place is posted again at once: unread
 *             messages never keep the rank from receiving. */
#ifndef BNY_UD_UD_H
#define BNY_UD_UD_H

#include "transport/datagram/driver.h"
#include "transport/verbs/verbs.h"

#define UD_GRH       40u
#define UD_FRAME_AT  42u /* 2 + UD_GRH = BNY_DGRAM_ETH */
#define UD_NONE      UINT32_MAX
#define UD_SENDS     512u        /* most places */
#define UD_LEAST     64u         /* of receives */
#define UD_LOOK_NS   50000000u   /* between two checks of the port's state */
#define UD_FINISH_NS 50000000u   /* time for the last frames to leave */
#define UD_AGAIN_NS  10000000u   /* before a retry of an address handle or a queue pair */
#define UD_FUTILE_NS 5000000000u /* of failed restarts: then it is given up */

struct ud_addr { /* of a rank, behind its struct dp_blob */
    char magic[4];
    uint8_t srd, ngids, lmc, reserved;
    uint16_t lid, pkey;
    uint32_t qpn, qkey;
    struct vb_gid gids[VB_GIDS];
};
_Static_assert(sizeof(struct ud_addr) == 20 + 24 * VB_GIDS, "wire format");

struct ud_way {           /* route to a rank */
    struct ud_addr *addr; /* NULL: unknown */
    struct ibv_ah *ah;    /* made for the first frame */
    uint64_t tried_ns;
    int err; /* errno of the latest attempt */
};

struct ud_old { /* an address handle that is no longer used */
    struct ud_old *next;
    struct ibv_ah *ah;
};

struct ud_mem { /* registered */
    struct ud_mem *next;
    const uint8_t *at;
    size_t bytes;
    struct ibv_mr *mr;
};

struct ud_place {
    struct bny_dgram_port *port;
    uint32_t next; /* free list */
    int is_posted;
    uint8_t *outside; /* a copy in memory of its own, outside the pool */
};

struct ud_out {
    struct bny_dgram_ref *ref;
    int done;
};

struct bny_dgram_port {
    struct vb_tp vt; /* settings, and the devices */
    struct vb_rail rail;
    int number;
    const struct vb_fn *fn;
    struct vb_efa efa;
    int srd;
    struct ud_addr addr;
    struct ibv_cq *scq, *rcq;
    struct ibv_comp_channel *channel; /* rcq's; NULL: no wake-ups */
    struct ibv_qp *qp;
    uint32_t payload; /* bytes of a datagram */
    uint32_t sges;
    size_t stride; /* of places */
    uint8_t *pool;
    size_t pool_bytes;
    struct ibv_mr *mr;
    struct ud_out *outs;
    uint32_t nouts, out_head, out_tail; /* free-running */
    struct ud_place *places;
    uint32_t nplaces, idle, nidle, posted;
    uint32_t turn; /* generation of the queue pair: completions of others do not count */
    struct ud_mem *mems, *latest;
    struct ud_way *ways; /* [nranks] */
    struct ud_old *olds;
    int nranks, broken, dead;
    uint64_t looked_ns;
    int is_up, is_stale; /* is_stale: its addresses may have changed */
    uint64_t missed, copied, restarts;
    int futile; /* failed restarts since a frame came, while the port was up */
    uint64_t restarted_ns, futile_ns; /* the latest attempt, and the first failed one */
};

/* ud_open.c */
int bny_ud_open(const struct bny_dgram_conf *conf, struct bny_dgram_port **out,
                struct bny_dgram_info *info, char *text);
void bny_ud_close(struct bny_dgram_port *p);
/* Restarts the queue pair. Requests in flight are lost. */
void bny_ud_restart(struct bny_dgram_port *p);
/* 1: the queue pair accepts requests. Restarts a broken one, at once, or UD_AGAIN_NS after a
 * failed restart, if the port is up. */
int bny_ud_ready(struct bny_dgram_port *p);
int bny_ud_map(struct bny_dgram_port *p, void *mem, size_t bytes, char *text);
void bny_ud_unmap(struct bny_dgram_port *p, void *mem, size_t bytes);
int bny_ud_link_up(struct bny_dgram_port *p);

/* way.c */
int bny_ud_address(struct bny_dgram_port *p, void *out, size_t cap);
int bny_ud_reaches(struct bny_dgram_port *p, const void *addr, size_t len);
int bny_ud_peer(struct bny_dgram_port *p, int rank, const void *addr, size_t len, char *text);
int bny_ud_way_state(struct bny_dgram_port *p, int rank, char *text);
struct ud_way *bny_ud_way(struct bny_dgram_port *p, uint32_t rank); /* NULL: none */
/* Remakes all address handles. The old ones stay for requests in flight. */
void bny_ud_ways_forget(struct bny_dgram_port *p);
void bny_ud_ways_sweep(struct bny_dgram_port *p); /* no requests are in flight */
void bny_ud_ways_close(struct bny_dgram_port *p);

/* ud_io.c */
int bny_ud_tx(struct bny_dgram_port *p, const struct bny_dgram_tx *tx, int n);
int bny_ud_rx(struct bny_dgram_port *p, struct bny_dgram_rx *rx, int n);
void bny_ud_free(void *const *bufs, int n);
void bny_ud_reclaim(struct bny_dgram_port *p);
int bny_ud_arm(struct bny_dgram_port *p);
void bny_ud_disarm(struct bny_dgram_port *p);
void bny_ud_post(struct bny_dgram_port *p);             /* all free places */
void bny_ud_give(struct bny_dgram_port *p, uint32_t i); /* frees place i */
void bny_ud_out_done(struct bny_dgram_port *p, uint32_t i);

#endif
