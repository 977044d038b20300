/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the simulated RDMA device. */
#ifndef BNY_TESTS_VERBS_SIM_INSIDE_H
#define BNY_TESTS_VERBS_SIM_INSIDE_H

#include "tests/support/verbs_sim.h"
#include "transport/verbs/ibv_symbols.h"

#define SIM_DEVICES 8
#define SIM_SGES    4
#define SIM_READY   64
#define SIM_SRD_MAX 8928       /* bytes of a datagram, as an EFA has it */
#define SIM_MSG_MAX (1u << 20) /* bytes of one request */

struct sim_mr {
    struct ibv_mr mr;
    int access;
    struct sim_mr *next;
};

struct sim_data { /* arrived, and not visible yet */
    char *dst;
    size_t len;
    struct sim_data *next;
    char bytes[];
};

struct sim_wqe {
    uint64_t wr_id, remote_addr;
    enum ibv_wr_opcode opcode;
    uint32_t imm, rkey, len;
    int signaled, nsge;
    struct ibv_sge sge[SIM_SGES];
    char *inlined;
    struct sim_ah *ah; /* of a datagram, as what follows */
    uint32_t to_qpn, to_qkey;
};

struct sim_ah {
    struct ibv_ah ah;
    struct ibv_ah_attr attr;
};

struct sim_rwqe {
    uint64_t wr_id;
    char *addr;
    uint32_t length;
};

struct sim_srq {
    struct ibv_srq srq;
    struct sim_rwqe *ring;
    uint32_t max, posted, taken;
};

struct sim_qp {
    struct ibv_qp qp;
    struct ibv_qp_cap cap;
    struct sim_qp *remote, *next;
    struct sim_wqe *sq;
    struct sim_rwqe *rq;
    uint32_t sq_posted, sq_done, sq_retired; /* retired: a completion says so */
    uint32_t rq_posted, rq_taken;
    struct sim_srq *srq; /* NULL: its own queue */
    int last_due;        /* the event that it took its last request is to be told */
    int rnr_retry, rnr_tries, lost_tries;
    struct sim_data *hidden, **hidden_end;
    uint64_t brought, placed;
    unsigned mtu; /* bytes */
    enum { SIM_CONNECTED, SIM_UD, SIM_SRD } sort;
    uint32_t qkey;
    /* of one that was connected by ibv_modify_qp() alone */
    int by_hand;
    uint32_t dest, rq_psn, sq_psn;
    uint8_t sgid, tclass;
    uint16_t pkey;
    union ibv_gid dgid;
};

struct sim_cqe {
    struct ibv_wc wc;
    struct sim_qp *qp;
    int send;
    uint32_t retire; /* send: requests that are out of the queue now */
    uint64_t apply;  /* receive: data that becomes visible */
};

struct sim_cq {
    struct ibv_cq cq;
    struct sim_cqe *ring;
    int head, count, armed;
    unsigned told, acked;
};

struct sim_channel {
    struct ibv_comp_channel ch;
    struct sim_cq *ready[SIM_READY];
    int n;
};

extern struct ibv_context sim_context[SIM_DEVICES];
extern struct sim_qp *sim_qps;

int sim_fd(void);
/* 1: this call is the one that must fail, with this errno. */
int sim_fails(const char *what, int err);
void sim_fd_set(int fd, int ready);
/* The next receive request that this queue pair takes; NULL: there is none. */
struct sim_rwqe *sim_recv_next(struct sim_qp *q);
void sim_recv_taken(struct sim_qp *q);
uint32_t sim_random(uint32_t n);
/* The head of a send queue fails. */
void sim_fail_head(struct sim_qp *q, enum ibv_wc_status status);
/* The request's bytes in one piece (freed by the caller); NULL: memory that is not registered.
 */
char *sim_collect(const struct sim_qp *q, const struct sim_wqe *w);
void sim_add_cqe(struct ibv_cq *cq, const struct sim_cqe *e);
/* What is in completion queues of it counts for nothing any more. */
void sim_orphan(const struct sim_qp *q);
/* Datagrams. */
int sim_ud_execute(struct sim_qp *q);
int sim_ud_modify(struct sim_qp *q, const struct ibv_qp_attr *a, int mask);
void sim_ud_run(int all); /* those that were overtaken arrive in the end; all: now */
void sim_ud_functions(struct vb_fn *fn);
struct sim_qp *sim_hand_number(const struct ibv_context *ctx, uint32_t qpn);
/* Has the device this GID, of the type of entry `index` of another one? */
int sim_hand_has_gid(const struct ibv_context *ctx, const struct ibv_context *other,
                     unsigned index, const uint8_t raw[16]);
void sim_srq_functions(struct vb_fn *fn);
struct sim_qp *sim_qp_new(struct ibv_pd *pd, struct ibv_qp_init_attr *a);
void sim_qp_free(struct sim_qp *q);
void sim_qp_error(struct sim_qp *q);
/* Makes visible what a queue pair's writes brought, up to the upto-th; keeps what one brings
 * until then. */
void sim_place(struct sim_qp *q, uint64_t upto);
void sim_hide(struct sim_qp *q, char *dst, const char *bytes, size_t len);
/* Of this device's memory. */
struct sim_mr *sim_find_mr(const struct ibv_context *ctx, uint32_t key, int remote,
                           uint64_t addr, uint64_t len);
int sim_devices(void);
int sim_is_dead(const struct ibv_context *ctx);
unsigned sim_mtu(void); /* bytes that the way takes; 0: any */
int sim_max_cqe(void);
int sim_max_send_wr(void);
void sim_mem_functions(struct vb_fn *fn);
void sim_cm_functions(struct vb_fn *fn);
void sim_hand_functions(struct vb_fn *fn);
/* ibv_modify_qp() on the way to RTS. */
int sim_hand_modify(struct sim_qp *q, const struct ibv_qp_attr *a, int mask);
/* Whom a packet of this queue pair meets; NULL: nobody, it is lost. */
struct sim_qp *sim_hand_peer(const struct sim_qp *q);

#endif
