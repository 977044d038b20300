/* SPDX-License-Identifier: BSD-3-Clause */
/* The simulated device: queue pairs that are connected by ibv_modify_qp() alone, as strictly as
 * the standard has it. A packet arrives only where all that both ends were told fits: numbers
 * of queue pairs and of packets, kinds of GIDs, partition keys; else it is lost, as it is where
 * the other end is not ready yet. */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <string.h>

#include "tests/support/verbs_sim_inside.h"

#define GIDS 4

static int devices_open[SIM_DEVICES];

static struct ibv_context *open_device(struct ibv_device *device)
{
    if (sim_fails("ibv_open_device", EACCES))
        return NULL;
    for (int i = 0; i < SIM_DEVICES; i++)
        if (sim_context[i].device == device) {
            devices_open[i]++;
            verbs_sim.open++;
            return &sim_context[i];
        }
    return NULL;
}

static int close_device(struct ibv_context *ctx)
{
    devices_open[ctx - sim_context]--;
    verbs_sim.open--;
    return 0;
}

static int query_pkey(struct ibv_context *ctx, uint8_t port, int index, __be16 *pkey)
{
    uint16_t key = index < 4 ? verbs_sim.pkeys[index] : 0;

    (void)ctx;
    (void)port;
    if (sim_fails("ibv_query_pkey", EIO))
        return -1;
    if (index == 0 && !verbs_sim.pkeys[0])
        key = 0xffff;
    *pkey = htons(key);
    return 0;
}

static int is_empty(const uint8_t raw[16])
{
    static const uint8_t none[16];

    return memcmp(raw, none, 16) == 0;
}

/* Entry `index` of a device's table; 0: it is empty. */
static int gid_at(const struct ibv_context *ctx, unsigned index, struct ibv_gid_entry *e)
{
    uint8_t device = (uint8_t)(ctx - sim_context);
    int own = 0;

    memset(e, 0, sizeof *e);
    if (index >= GIDS)
        return 0;
    for (int i = 0; i < GIDS; i++)
        own |= !is_empty(verbs_sim.gids[i].raw);
    e->gid_index = index;
    e->port_num = 1;
    e->ndev_ifindex = if_nametoindex("lo");
    if (own) {
        memcpy(e->gid.raw, verbs_sim.gids[index].raw, 16);
        e->gid_type = (uint32_t)verbs_sim.gids[index].type;
        if (verbs_sim.gids[index].netdev)
            e->ndev_ifindex = (uint32_t)verbs_sim.gids[index].netdev;
        return !is_empty(e->gid.raw);
    }
    e->gid_type = index & 1 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
    if (index < 2)
        memcpy(e->gid.raw,
               (uint8_t[]){ 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1 }, 16);
    else
        memcpy(e->gid.raw,
               (uint8_t[]){ 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1 }, 16);
    e->gid.raw[14] = (uint8_t)(e->gid.raw[14] + device);
    return 1;
}

static ssize_t query_gid_table(struct ibv_context *ctx, struct ibv_gid_entry *out, size_t max,
                               uint32_t flags, size_t entry_size)
{
    size_t n = 0;

    if (flags || entry_size != sizeof *out)
        return -EINVAL;
    if (sim_fails("ibv_query_gid_table", EIO))
        return -EIO;
    for (unsigned i = 0; i < GIDS && n < max; i++)
        n += (size_t)gid_at(ctx, i, &out[n]);
    return (ssize_t)n;
}

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
    struct sim_qp *q = sim_qp_new(pd, a);

    if (!q)
        return NULL;
    q->by_hand = 1;
    q->sort = a->qp_type == IBV_QPT_UD       ? SIM_UD
              : a->qp_type == IBV_QPT_DRIVER ? SIM_SRD
                                             : SIM_CONNECTED;
    q->qp.state = IBV_QPS_RESET;
    return &q->qp;
}

static int destroy_qp(struct ibv_qp *qp)
{
    sim_qp_free((struct sim_qp *)qp);
    return 0;
}

static int to_init(struct sim_qp *q, const struct ibv_qp_attr *a, int mask)
{
    __be16 key;

    if (mask != (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
        q->qp.state != IBV_QPS_RESET || a->port_num != 1 ||
        query_pkey(q->qp.context, 1, a->pkey_index, &key) != 0 || !ntohs(key))
        return EINVAL;
    q->pkey = ntohs(key);
    verbs_sim.used_pkey = a->pkey_index;
    q->qp.state = IBV_QPS_INIT;
    return 0;
}

static int to_rtr(struct sim_qp *q, const struct ibv_qp_attr *a, int mask)
{
    struct ibv_gid_entry e;
    int global = a->ah_attr.is_global;

    if (verbs_sim.no_rtr)
        return verbs_sim.no_rtr;
    if (mask != (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ||
        q->qp.state != IBV_QPS_INIT || a->rq_psn > 0xffffff || a->path_mtu < IBV_MTU_256 ||
        a->path_mtu > IBV_MTU_4096 || a->ah_attr.port_num != 1 ||
        (!global && (!verbs_sim.link_ib || !a->ah_attr.dlid)) ||
        (global &&
         (!gid_at(q->qp.context, a->ah_attr.grh.sgid_index, &e) || !a->ah_attr.grh.hop_limit ||
          !a->ah_attr.grh.flow_label || a->ah_attr.grh.flow_label > 0xfffff)))
        return EINVAL;
    q->dest = a->dest_qp_num;
    q->rq_psn = a->rq_psn;
    q->sgid = a->ah_attr.grh.sgid_index;
    q->dgid = a->ah_attr.grh.dgid;
    q->mtu = 128u << a->path_mtu;
    verbs_sim.used_sgid = global ? q->sgid : -1;
    verbs_sim.used_hops = a->ah_attr.grh.hop_limit;
    verbs_sim.used_flow = a->ah_attr.grh.flow_label;
    verbs_sim.tc = a->ah_attr.grh.traffic_class;
    verbs_sim.sl = a->ah_attr.sl;
    q->qp.state = IBV_QPS_RTR;
    return 0;
}

int sim_hand_modify(struct sim_qp *q, const struct ibv_qp_attr *a, int mask)
{
    if (!q->by_hand)
        return EINVAL;
    if (q->sort != SIM_CONNECTED)
        return sim_ud_modify(q, a, mask);
    if (a->qp_state == IBV_QPS_INIT)
        return to_init(q, a, mask);
    if (a->qp_state == IBV_QPS_RTR)
        return to_rtr(q, a, mask);
    if (a->qp_state != IBV_QPS_RTS || q->qp.state != IBV_QPS_RTR || a->sq_psn > 0xffffff ||
        a->timeout > 31 || a->retry_cnt > 7 || a->rnr_retry > 7 ||
        mask != (IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
        return EINVAL;
    q->sq_psn = a->sq_psn;
    q->rnr_retry = a->rnr_retry;
    verbs_sim.timeout = a->timeout;
    verbs_sim.retry = a->retry_cnt;
    verbs_sim.by_hand++;
    q->qp.state = IBV_QPS_RTS;
    return 0;
}

/* On the network of `ctx`, which is its own or that of all. */
struct sim_qp *sim_hand_number(const struct ibv_context *ctx, uint32_t qpn)
{
    for (struct sim_qp *q = sim_qps; q; q = q->next)
        if (q->by_hand && q->qp.qp_num == qpn &&
            (q->qp.context == ctx || verbs_sim.one_network))
            return q;
    return NULL;
}

int sim_hand_has_gid(const struct ibv_context *ctx, const struct ibv_context *other,
                     unsigned index, const uint8_t raw[16])
{
    struct ibv_gid_entry mine, theirs;

    if (!gid_at(other, index, &theirs))
        return 0;
    for (unsigned i = 0; i < GIDS; i++)
        if (gid_at(ctx, i, &mine) && mine.gid_type == theirs.gid_type &&
            !memcmp(mine.gid.raw, raw, 16))
            return 1;
    return 0;
}

struct sim_qp *sim_hand_peer(const struct sim_qp *q)
{
    struct sim_qp *to = sim_hand_number(q->qp.context, q->dest);
    struct ibv_gid_entry mine, theirs;

    if (!to || to->qp.state == IBV_QPS_RESET || to->qp.state == IBV_QPS_INIT) {
        verbs_sim.early += to != NULL;
        return NULL;
    }
    if (to->dest != q->qp.qp_num || to->rq_psn != q->sq_psn || (q->pkey ^ to->pkey) & 0x7fff ||
        !((q->pkey | to->pkey) & 0x8000))
        return NULL;
    if (verbs_sim.used_sgid < 0)
        return to;
    return gid_at(q->qp.context, q->sgid, &mine) && gid_at(to->qp.context, to->sgid, &theirs) &&
                   mine.gid_type == theirs.gid_type && !memcmp(q->dgid.raw, theirs.gid.raw, 16)
               ? to
               : NULL;
}

void sim_hand_functions(struct vb_fn *fn)
{
    fn->ibv_open_device = open_device;
    fn->ibv_close_device = close_device;
    fn->ibv_query_pkey = query_pkey;
    fn->query_gid_table = query_gid_table;
    fn->ibv_create_qp = create_qp;
    fn->ibv_destroy_qp = destroy_qp;
}
