/* SPDX-License-Identifier: BSD-3-Clause */
/* libibverbs and librdmacm, loaded at run time: the library works without them (without
 * librdmacm only tcp_cm.c makes connections), and tests put a simulated device behind the same
 * table. Calls that the headers inline (ibv_post_send, ibv_poll_cq ...) go through the device
 * context's own operations and need no entry. */
#ifndef BNY_VERBS_IBV_SYMBOLS_H
#define BNY_VERBS_IBV_SYMBOLS_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#undef ibv_reg_mr
#undef ibv_query_port

/* return type, name, parameters */
#define VERBS_FUNCTIONS(X)                                                                     \
    X(struct ibv_device **, ibv_get_device_list, (int *num))                                   \
    X(struct ibv_context *, ibv_open_device, (struct ibv_device * device))                     \
    X(int, ibv_close_device, (struct ibv_context * context))                                   \
    X(int, ibv_query_pkey,                                                                     \
      (struct ibv_context * context, uint8_t port, int index, __be16 *pkey))                   \
    X(struct ibv_qp *, ibv_create_qp, (struct ibv_pd * pd, struct ibv_qp_init_attr * attr))    \
    X(int, ibv_destroy_qp, (struct ibv_qp * qp))                                               \
    X(struct ibv_ah *, ibv_create_ah, (struct ibv_pd * pd, struct ibv_ah_attr * attr))         \
    X(int, ibv_destroy_ah, (struct ibv_ah * ah))                                               \
    X(void, ibv_free_device_list, (struct ibv_device * *list))                                 \
    X(int, ibv_query_device, (struct ibv_context * context, struct ibv_device_attr * attr))    \
    X(int, ibv_query_port,                                                                     \
      (struct ibv_context * context, uint8_t port, struct _compat_ibv_port_attr * attr))       \
    X(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context * context))                           \
    X(int, ibv_dealloc_pd, (struct ibv_pd * pd))                                               \
    X(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd * pd, void *addr, size_t len, int access))   \
    X(int, ibv_dereg_mr, (struct ibv_mr * mr))                                                 \
    X(struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context * context))      \
    X(int, ibv_destroy_comp_channel, (struct ibv_comp_channel * channel))                      \
    X(struct ibv_cq *, ibv_create_cq,                                                          \
      (struct ibv_context * context, int cqe, void *cq_context,                                \
       struct ibv_comp_channel *channel, int comp_vector))                                     \
    X(int, ibv_destroy_cq, (struct ibv_cq * cq))                                               \
    X(struct ibv_srq *, ibv_create_srq, (struct ibv_pd * pd, struct ibv_srq_init_attr * attr)) \
    X(int, ibv_destroy_srq, (struct ibv_srq * srq))                                            \
    X(int, ibv_get_cq_event,                                                                   \
      (struct ibv_comp_channel * channel, struct ibv_cq * *cq, void **cq_context))             \
    X(void, ibv_ack_cq_events, (struct ibv_cq * cq, unsigned int nevents))                     \
    X(int, ibv_get_async_event,                                                                \
      (struct ibv_context * context, struct ibv_async_event * event))                          \
    X(void, ibv_ack_async_event, (struct ibv_async_event * event))                             \
    X(int, ibv_modify_qp, (struct ibv_qp * qp, struct ibv_qp_attr * attr, int mask))           \
    X(int, ibv_query_qp,                                                                       \
      (struct ibv_qp * qp, struct ibv_qp_attr * attr, int mask,                                \
       struct ibv_qp_init_attr *init))                                                         \
    X(const char *, ibv_wc_status_str, (enum ibv_wc_status status))

/* of librdmacm */
#define VERBS_CM_FUNCTIONS(X)                                                                  \
    X(struct rdma_event_channel *, rdma_create_event_channel, (void))                          \
    X(void, rdma_destroy_event_channel, (struct rdma_event_channel * channel))                 \
    X(int, rdma_create_id,                                                                     \
      (struct rdma_event_channel * channel, struct rdma_cm_id * *id, void *context,            \
       enum rdma_port_space ps))                                                               \
    X(int, rdma_destroy_id, (struct rdma_cm_id * id))                                          \
    X(int, rdma_bind_addr, (struct rdma_cm_id * id, struct sockaddr * addr))                   \
    X(int, rdma_listen, (struct rdma_cm_id * id, int backlog))                                 \
    X(__be16, rdma_get_src_port, (struct rdma_cm_id * id))                                     \
    X(int, rdma_resolve_addr,                                                                  \
      (struct rdma_cm_id * id, struct sockaddr * src, struct sockaddr * dst, int timeout_ms))  \
    X(int, rdma_resolve_route, (struct rdma_cm_id * id, int timeout_ms))                       \
    X(int, rdma_create_qp,                                                                     \
      (struct rdma_cm_id * id, struct ibv_pd * pd, struct ibv_qp_init_attr * attr))            \
    X(void, rdma_destroy_qp, (struct rdma_cm_id * id))                                         \
    X(int, rdma_connect, (struct rdma_cm_id * id, struct rdma_conn_param * param))             \
    X(int, rdma_accept, (struct rdma_cm_id * id, struct rdma_conn_param * param))              \
    X(int, rdma_reject, (struct rdma_cm_id * id, const void *data, uint8_t len))               \
    X(int, rdma_disconnect, (struct rdma_cm_id * id))                                          \
    X(int, rdma_set_option,                                                                    \
      (struct rdma_cm_id * id, int level, int optname, void *optval, size_t optlen))           \
    X(int, rdma_get_cm_event,                                                                  \
      (struct rdma_event_channel * channel, struct rdma_cm_event * *event))                    \
    X(int, rdma_ack_cm_event, (struct rdma_cm_event * event))                                  \
    X(const char *, rdma_event_str, (enum rdma_cm_event_type event))

/* Attributes of an Amazon EFA's SRD queue pairs: messages arrive once, in any order. */
struct vb_efa {
    uint32_t max_send, max_recv, max_send_sge;
    int retries_rnr; /* it retries if the receiver has posted no request */
};

struct vb_fn {
#define VERBS_MEMBER(type, name, args) type(*name) args;
    VERBS_FUNCTIONS(VERBS_MEMBER)
    VERBS_CM_FUNCTIONS(VERBS_MEMBER) /* all NULL: no librdmacm */
#undef VERBS_MEMBER
    /* as ibv_query_gid_table(), which is inline; NULL: rdma-core is older than 33 */
    ssize_t (*query_gid_table)(struct ibv_context *context, struct ibv_gid_entry *entries,
                               size_t max, uint32_t flags, size_t entry_size);
    /* as ibv_reg_mr(), which is a macro, with flags that the device may ignore; NULL: rdma-core
     * is older than 28 */
    struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova,
                                   unsigned int access);
    /* as ibv_is_fork_initialized(); NULL: rdma-core is older than 35 */
    enum ibv_fork_status (*fork_status)(void);
    /* from libefa, for struct vb_efa; NULL: not installed */
    int (*efa_query)(struct ibv_context *context, struct vb_efa *out);
    struct ibv_qp *(*efa_create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
    int loopback; /* 1: accepts addresses of lo (simulated devices) */
};

/* Adds libefa's functions if it is installed. */
void bny_verbs_efa_load(struct vb_fn *fn);
/* The table; NULL if a library is missing: the thread's error has the sentence
 * (-BANYAN_ENOTSUP). Loaded once per process and never unloaded. Any thread. */
const struct vb_fn *bny_verbs_fn(void);
/* Replaces the table, for tests; NULL: the real one again. No transport may exist. */
void bny_verbs_fn_set(const struct vb_fn *fn);

#endif
