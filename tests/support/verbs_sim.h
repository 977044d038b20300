/* SPDX-License-Identifier: BSD-3-Clause */
/* A simulated RDMA device behind the verbs transport's function table: ranks of one process,
 * one thread. For what no device gives on demand, and for machines without any.
 *
 * It is as hostile as the standard allows: requests of different queue pairs are executed in
 * random order; what a write brings is invisible until the completion that vouches for it is
 * polled, of that queue pair; source memory is read as late as possible (inline data at the
 * post); completions of unsuccessful requests have nothing right but wr_id, status and qp_num;
 * a send queue's place is free only once a completion of that request or a later one was
 * polled; a full completion queue breaks its queue pairs; what a destroyed queue pair left
 * there stays, and the next one may get its number; a missing receive request is an error after
 * rnr_retry attempts. */
#ifndef BNY_TESTS_VERBS_SIM_H
#define BNY_TESTS_VERBS_SIM_H

#include <stdint.h>

struct verbs_sim {
    /* what it does; zero: no limit, no fault */
    uint64_t seed;
    int no_device;
    int devices; /* sim0, sim1 ...; 0: one. Each is on a network of its own; listeners come by
                    turns */
    int one_network; /* all devices are on one, where queue pairs are connected by hand */
    int unnamed;     /* ranks are told no device */
    int uneven;      /* odd ranks use the first one only */
    int dead_device; /* 1 + its number: nothing goes over its network */
    int dead_below;  /* the same of all devices with lower numbers */
    int port_down;   /* all ports say so; what is sent goes on */
    int deafens;     /* as with rxe: ending a connection over a dead one makes its connection
                        manager deaf */
    int deaf;        /* bits: devices whose manager is */
    int max_qp;      /* 0: as mlx5 */
    uint64_t max_mr_size; /* 0: any */
    void *broken_qp;      /* the event that it is in error is told once, and nothing else */
    int broken_qp_event;  /* an ibv_event_type */
    int max_cqe, max_send_wr, max_sge; /* what the device can do at most; 0: as mlx5. Receive
                                          requests as well */
    int max_srq_wr;                    /* as well; -1: no shared receive queues */
    int srq_forgets; /* a queue pair that ends takes a request from one and tells nothing of it
                      */
    void *broken_srq, *broken_cq; /* the event that it failed is told once */
    const void *dead_cq;          /* each poll of it fails */
    int tells_last; /* it tells when a broken queue pair has taken its last request from one */
    uint32_t max_inline; /* 0: 220; UINT32_MAX: none */
    int registrations;   /* that succeed, then ENOMEM; 0: all */
    int no_immediates;   /* an iWARP device */
    uint64_t cut_after;  /* executed requests, then packets are lost for ever; 0: never */
    uint32_t lost_above; /* requests with more bytes than that get lost: the MTU is a smaller
                            one on the way; 0: none */
    int mtu[2];  /* enum ibv_mtu of the ranks' ports: the so many-th that is asked for one;
                    0: 4096 bytes. A queue pair has its asker's, unless that is told
                    another; packets beyond the smaller one get lost */
    int no_path; /* the connection manager takes no path */
    int tc, sl, timeout, retry; /* what it was told last; -1, where it was put: nothing */
    /* connected by hand */
    struct verbs_sim_gid {
        uint8_t raw[16];
        int type, netdev; /* enum ibv_gid_type; index of the interface, 0: lo */
    } gids[4]; /* of all devices, by index; all zero: link-local, v1 and v2, then IPv4, v1 and
                  v2 */
    uint16_t pkeys[4]; /* all 0: 0xffff */
    int link_ib;       /* the ports' link layer is InfiniBand's; lid is theirs then */
    uint16_t lid;
    int no_rtr;      /* errno of ibv_modify_qp() to RTR */
    int reorders;    /* a write's packets come in any order, and some are visible early */
    int steal_recvs; /* receive requests that vanish at each post: the credits' arithmetic is
                        wrong */
    int write_delay; /* 1: nothing is executed by polls until it is 0 again */
    int event;       /* an ibv_event_type + 1 that event_device tells once */
    int event_device;
    uint64_t fail_call; /* the so many-th call that may fail does; 0: none */
    /* datagrams: queue pairs that are connected to nobody */
    double ud_loss, ud_double, ud_late; /* shares of them that get lost, come twice, are
                                           overtaken */
    int srd;                            /* an Amazon EFA: its queue pairs are of SRD */
    int no_ah;                          /* errno of ibv_create_ah() */
    uint64_t ud_fail;                   /* the so many-th datagram breaks its queue pair */
    /* what happened */
    uint64_t ud_sent, ud_lost, ud_doubled, ud_overtaken, ud_no_room, ud_bad_key;
    uint64_t resets;
    int ahs_open;
    uint64_t long_imms, packets; /* writes of more than 8192 bytes with an immediate; of all
                        writes, where they are reordered */
    uint64_t early;              /* packets that met a queue pair which was not ready */
    uint64_t by_hand;            /* queue pairs that were made ready so */
    int used_sgid, used_hops, used_pkey; /* of the latest: index, hop limit, index */
    uint32_t used_flow;
    uint64_t executed, rnr, overflows, bad_keys, registered;
    uint64_t registered_bytes; /* now */
    uint64_t relaxed, strict;  /* registrations for peers to write to, so far */
    uint64_t vectors;          /* completion vectors that were asked for: bits */
    int no_fork;               /* a fork would take the device's pages from its parent */
    int no_iova2, no_relaxed;  /* rdma-core is old; a device refuses relaxed ordering */
    int open;                  /* objects of all kinds that were made and not destroyed */
    int srqs_open;
    uint64_t calls;     /* that may fail */
    const char *failed; /* the one that was made to; NULL: none yet */
    uint64_t srq_taken, last_told;
    uint64_t dropped; /* requests to connect that came to a full backlog; they are asked again
                         when it has a place */
    uint64_t polls;   /* calls of ibv_poll_cq */
};
extern struct verbs_sim verbs_sim;

/* Puts the device behind the transport (bny_verbs_fn_set). */
void verbs_sim_use(void);
struct rdma_cm_id;
/* The connection manager gives up asking: no answer of any kind. */
void verbs_sim_unreachable(struct rdma_cm_id *id);

#endif
