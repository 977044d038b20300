/* SPDX-License-Identifier: BSD-3-Clause */
/* The simulated device: what it says of itself, memory, and what writes bring before it is
 * visible. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/verbs_sim_inside.h"

static struct sim_mr *mrs;
static uint32_t next_key = 0x100;
#define DEVICE(i)                                                                              \
    {                                                                                          \
        .name = "sim" #i, .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB         \
    }
static struct ibv_device devices[SIM_DEVICES] = { DEVICE(0), DEVICE(1), DEVICE(2), DEVICE(3),
                                                  DEVICE(4), DEVICE(5), DEVICE(6), DEVICE(7) };
#define CONTEXT(i, vectors)                                                                    \
    {                                                                                          \
        .device = &devices[i], .async_fd = -1, .num_comp_vectors = vectors                     \
    }
struct ibv_context sim_context[SIM_DEVICES] = { CONTEXT(0, 3), CONTEXT(1, 1), CONTEXT(2, 3),
                                                CONTEXT(3, 1), CONTEXT(4, 3), CONTEXT(5, 1),
                                                CONTEXT(6, 3), CONTEXT(7, 1) };

static struct ibv_device **get_device_list(int *num)
{
    struct ibv_device **list =
        sim_fails("ibv_get_device_list", ENOMEM) ? NULL : calloc(SIM_DEVICES + 1, sizeof *list);

    *num = verbs_sim.no_device ? 0 : sim_devices();
    for (int i = 0; i < SIM_DEVICES; i++)
        devices[i].transport_type = verbs_sim.no_immediates ? IBV_TRANSPORT_IWARP
                                    : verbs_sim.srd         ? IBV_TRANSPORT_UNSPECIFIED
                                                            : IBV_TRANSPORT_IB;
    for (int i = 0; list && i < *num; i++)
        list[i] = &devices[i];
    return list;
}

static void free_device_list(struct ibv_device **list)
{
    free(list);
}

int sim_devices(void)
{
    return verbs_sim.devices ? verbs_sim.devices : 1;
}

int sim_max_cqe(void)
{
    return verbs_sim.max_cqe ? verbs_sim.max_cqe : 4194303;
}

int sim_max_send_wr(void)
{
    return verbs_sim.max_send_wr ? verbs_sim.max_send_wr : 8192;
}

static int query_device(struct ibv_context *ctx, struct ibv_device_attr *a)
{
    (void)ctx;
    if (sim_fails("ibv_query_device", EIO))
        return EIO;
    memset(a, 0, sizeof *a);
    a->max_qp = verbs_sim.max_qp ? verbs_sim.max_qp : 131072;
    a->max_qp_wr = sim_max_send_wr();
    a->max_cqe = sim_max_cqe();
    a->max_sge = verbs_sim.max_sge ? verbs_sim.max_sge : 30;
    a->max_srq = verbs_sim.max_srq_wr < 0 ? 0 : 8388608;
    a->max_srq_wr = verbs_sim.max_srq_wr < 0 ? 0
                    : verbs_sim.max_srq_wr   ? verbs_sim.max_srq_wr
                                             : 32767;
    a->max_mr = 16777216;
    a->max_mr_size = verbs_sim.max_mr_size ? verbs_sim.max_mr_size : UINT64_MAX;
    a->phys_port_cnt = 1;
    return 0;
}

static unsigned ports_asked;

static int query_port(struct ibv_context *ctx, uint8_t port, struct _compat_ibv_port_attr *out)
{
    struct ibv_port_attr *a = (struct ibv_port_attr *)out;

    (void)port;
    if (sim_fails("ibv_query_port", EIO))
        return EIO;
    memset(a, 0, sizeof *a);
    a->state = verbs_sim.port_down || sim_is_dead(ctx) ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
    a->active_mtu = verbs_sim.mtu[0] ? verbs_sim.mtu[ports_asked++ % 2] : IBV_MTU_4096;
    a->link_layer = verbs_sim.link_ib ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
    a->lid = verbs_sim.link_ib ? verbs_sim.lid : 0;
    a->pkey_tbl_len = 4;
    a->max_mtu = IBV_MTU_4096;
    a->max_msg_sz = verbs_sim.srd ? SIM_SRD_MAX : SIM_MSG_MAX;
    a->active_speed = ctx == &sim_context[1] ? 32 : 4; /* 25 and 10 Gbit/s */
    a->active_width = 1;
    return 0;
}

static struct ibv_pd *alloc_pd(struct ibv_context *ctx)
{
    struct ibv_pd *pd = sim_fails("ibv_alloc_pd", ENOMEM) ? NULL : calloc(1, sizeof *pd);

    if (pd)
        pd->context = ctx;
    verbs_sim.open += pd != NULL;
    return pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
    free(pd);
    verbs_sim.open--;
    return 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
    struct sim_mr *m;

    if (access & IBV_ACCESS_RELAXED_ORDERING)
        verbs_sim.relaxed++;
    else
        verbs_sim.strict += (access & IBV_ACCESS_REMOTE_WRITE) != 0;

    if (sim_fails("ibv_reg_mr", ENOMEM))
        return NULL;
    if (verbs_sim.registrations && verbs_sim.registered >= (uint64_t)verbs_sim.registrations) {
        errno = ENOMEM;
        return NULL;
    }
    if (verbs_sim.max_mr_size && len > verbs_sim.max_mr_size) {
        errno = EINVAL;
        return NULL;
    }
    m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    verbs_sim.open++;
    verbs_sim.registered++;
    verbs_sim.registered_bytes += len;
    m->mr = (struct ibv_mr){ .context = pd->context,
                             .pd = pd,
                             .addr = addr,
                             .length = len,
                             .lkey = next_key,
                             .rkey = next_key + 1 };
    next_key += 0x100;
    m->access = access;
    m->next = mrs;
    mrs = m;
    return &m->mr;
}

static struct ibv_mr *reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova,
                                   unsigned int access)
{
    if (iova != (uintptr_t)addr ||
        (verbs_sim.no_relaxed && (access & IBV_ACCESS_RELAXED_ORDERING))) {
        errno = EINVAL;
        return NULL;
    }
    return reg_mr(pd, addr, len, (int)access);
}

struct sim_mr *sim_find_mr(const struct ibv_context *ctx, uint32_t key, int remote,
                           uint64_t addr, uint64_t len)
{
    for (struct sim_mr *m = mrs; m; m = m->next) {
        uint64_t base = (uintptr_t)m->mr.addr;

        if (m->mr.context == ctx && (remote ? m->mr.rkey : m->mr.lkey) == key)
            return addr >= base && len <= m->mr.length && addr - base <= m->mr.length - len
                       ? m
                       : NULL;
    }
    return NULL;
}

/* ---- what writes bring ---- */

void sim_place(struct sim_qp *q, uint64_t upto)
{
    while (q->hidden && q->placed < upto) {
        struct sim_data *d = q->hidden;

        memcpy(d->dst, d->bytes, d->len);
        q->hidden = d->next;
        if (!q->hidden)
            q->hidden_end = &q->hidden;
        free(d);
        q->placed++;
    }
}

void sim_hide(struct sim_qp *q, char *dst, const char *bytes, size_t len)
{
    struct sim_data *d = malloc(sizeof *d + len);

    if (!d)
        abort();
    d->dst = dst;
    d->len = len;
    d->next = NULL;
    memcpy(d->bytes, bytes, len);
    *q->hidden_end = d;
    q->hidden_end = &d->next;
    q->brought++;
}

static int dereg_mr(struct ibv_mr *mr)
{
    for (struct sim_qp *q = sim_qps; q; q = q->next)
        sim_place(q, UINT64_MAX); /* memory may go away: it is here now at the latest */
    for (struct sim_mr **p = &mrs; *p; p = &(*p)->next)
        if (&(*p)->mr == mr) {
            struct sim_mr *m = *p;

            *p = m->next;
            verbs_sim.registered_bytes -= mr->length;
            free(m);
            verbs_sim.open--;
            return 0;
        }
    return EINVAL;
}

static enum ibv_fork_status fork_status(void)
{
    return verbs_sim.no_fork ? IBV_FORK_DISABLED : IBV_FORK_UNNEEDED;
}

static int get_async_event(struct ibv_context *ctx, struct ibv_async_event *ev)
{
    for (struct sim_qp *q = sim_qps; q; q = q->next)
        if (q->last_due && q->qp.context == ctx) {
            q->last_due = 0;
            verbs_sim.last_told++;
            *ev = (struct ibv_async_event){ .event_type = IBV_EVENT_QP_LAST_WQE_REACHED,
                                            .element.qp = &q->qp };
            return 0;
        }
    if (verbs_sim.broken_qp && ((struct ibv_qp *)verbs_sim.broken_qp)->context == ctx) {
        *ev = (struct ibv_async_event){ .event_type =
                                            (enum ibv_event_type)verbs_sim.broken_qp_event,
                                        .element.qp = verbs_sim.broken_qp };
        verbs_sim.broken_qp = NULL;
        return 0;
    }
    if (verbs_sim.broken_srq && ((struct ibv_srq *)verbs_sim.broken_srq)->context == ctx) {
        *ev = (struct ibv_async_event){ .event_type = IBV_EVENT_SRQ_ERR,
                                        .element.srq = verbs_sim.broken_srq };
        verbs_sim.broken_srq = NULL;
        return 0;
    }
    if (verbs_sim.broken_cq && ((struct ibv_cq *)verbs_sim.broken_cq)->context == ctx) {
        *ev = (struct ibv_async_event){ .event_type = IBV_EVENT_CQ_ERR,
                                        .element.cq = verbs_sim.broken_cq };
        verbs_sim.broken_cq = NULL;
        return 0;
    }
    if (!verbs_sim.event || ctx != &sim_context[verbs_sim.event_device]) {
        errno = EAGAIN;
        return -1;
    }
    *ev = (struct ibv_async_event){ .event_type = (enum ibv_event_type)(verbs_sim.event - 1),
                                    .element.port_num = 1 };
    verbs_sim.event = 0;
    return 0;
}

static void ack_async_event(struct ibv_async_event *ev)
{
    (void)ev;
}

void sim_mem_functions(struct vb_fn *fn)
{
    fn->ibv_get_device_list = get_device_list;
    fn->ibv_free_device_list = free_device_list;
    fn->ibv_query_device = query_device;
    fn->ibv_query_port = query_port;
    fn->ibv_alloc_pd = alloc_pd;
    fn->ibv_dealloc_pd = dealloc_pd;
    fn->ibv_get_async_event = get_async_event;
    fn->ibv_ack_async_event = ack_async_event;
    fn->ibv_reg_mr = reg_mr;
    fn->reg_mr_iova2 = verbs_sim.no_iova2 ? NULL : reg_mr_iova2;
    fn->ibv_dereg_mr = dereg_mr;
    fn->fork_status = fork_status;
}
