/* SPDX-License-Identifier: BSD-3-Clause */
/* The route to a peer's device, its user settings, and how rdma_cm gets it (tcp_cm.c needs none
 * of this). Over RoCE, rdma_cm uses the MTU of our own interface, and so does the peer's
 * kernel: if the peer's is smaller, long packets are lost silently, and short ones arrive. So
 * both ends exchange their active MTU at init, and the smaller one goes into rdma_cm's path.
 * Over InfiniBand the subnet manager knows the path; over iWARP TCP does. */
#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/sa.h>

#include "base/err.h"
#include "base/log.h"
#include "base/param.h"
#include "transport/verbs/lane.h"

#define HOPS     255u /* each router decrements it */
#define ANY_PKEY 0xffffu
#define EXACTLY  0x80u /* selector: equal to */
#define LIFETIME 18u   /* 4.096 us * 2^18, like the kernel's own RoCE paths */

struct vb_path bny_verbs_path_settings(void)
{
    return (struct vb_path){
        .tc = (int)bny_param_int("BANYAN_VERBS=tc"),
        .sl = (int)bny_param_int("BANYAN_VERBS=sl"),
        .timeout = (int)bny_param_int("BANYAN_VERBS=timeout"),
        .retry = (int)bny_param_int("BANYAN_VERBS=retry"),
        .gid_index = (int)bny_param_int("BANYAN_VERBS=gid_index"),
        .pkey = (int)bny_param_int("BANYAN_VERBS=pkey"),
    };
}

void bny_verbs_path_options(const struct vb_tp *t, struct rdma_cm_id *id)
{
    uint8_t tc = (uint8_t)t->path.tc, timeout = (uint8_t)t->path.timeout;

    t->fn->rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout,
                           sizeof timeout);
    if (t->path.tc >= 0 &&
        t->fn->rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tc, sizeof tc) != 0)
        bny_warn("verbs: rank %d: rdma_cm does not take the traffic class %u "
                 "(BANYAN_VERBS=tc)",
                 t->tp.rank, tc);
}

unsigned bny_verbs_mtu_bytes(unsigned code)
{
    return code ? 128u << code : 0;
}

/* The peer's, for the same rail; 0: unknown. */
static unsigned theirs(const struct vb_lane *c)
{
    return c->e->main->blob.rail[c->rail->index].mtu;
}

unsigned bny_verbs_path_mtu(const struct vb_lane *c)
{
    unsigned mine = c->rail->mtu, other = theirs(c);

    return other && other < mine ? other : mine;
}

/* As cma_resolve_iboe_route() of Linux (drivers/infiniband/core/cma.c), except for the MTU. The
 * kernel adds link attributes. */
static int set_path(struct vb_lane *c, unsigned mtu)
{
    const struct rdma_addr *a = &c->id->route.addr;
    struct ibv_path_data path = { .flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY |
                                           IBV_PATH_FLAG_BIDIRECTIONAL };

    path.path.dgid = a->addr.ibaddr.dgid;
    path.path.sgid = a->addr.ibaddr.sgid;
    path.path.flowlabel_hoplimit = htobe32(HOPS);
    path.path.reversible_numpath = IBV_PATH_RECORD_REVERSIBLE | 1;
    path.path.pkey = htobe16(ANY_PKEY);
    path.path.mtu = (uint8_t)(EXACTLY | mtu);
    path.path.tclass = (uint8_t)(c->t->path.tc >= 0 ? c->t->path.tc : 0);
    path.path.qosclass_sl = htobe16((uint16_t)(c->t->path.sl >= 0 ? c->t->path.sl : 0));
    path.path.packetlifetime = EXACTLY | LIFETIME;
    return c->t->fn->rdma_set_option(c->id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path,
                                     sizeof path);
}

int bny_verbs_resolve_route(struct vb_lane *c, int ms)
{
    unsigned mtu = bny_verbs_path_mtu(c);
    int sl = c->t->path.sl >= 0;

    if (c->t->how == VB_HOW_QP)
        return c->t->fn->rdma_resolve_route(c->id, ms);
    if (c->rail->ethernet && mtu && (mtu != c->rail->mtu || sl) && set_path(c, mtu) == 0)
        return 0;
    if (sl)
        bny_warn("verbs: rank %d: %s (BANYAN_VERBS=sl=%d)", c->t->tp.rank,
                 c->rail->ethernet ? "rdma_cm does not take a service level"
                                   : "the subnet manager gives the service level, by its QoS",
                 c->t->path.sl);
    return c->t->fn->rdma_resolve_route(c->id, ms); /* bny_verbs_mtu_fits() reports it */
}

int bny_verbs_mtu_fits(const struct vb_lane *c, char *why, size_t cap)
{
    unsigned most = bny_verbs_path_mtu(c);
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;

    if (!c->rail->mtu || !theirs(c) ||
        c->t->fn->ibv_query_qp(c->id->qp, &attr, IBV_QP_PATH_MTU, &init) != 0 ||
        (unsigned)attr.path_mtu <= most)
        return 1;
    snprintf(why, cap,
             "has an active MTU of %u bytes on its device %.31s, ours is %u on device %s, and "
             "rdma_cm takes the longer one (%u): give both interfaces one MTU (ip link set "
             "INTERFACE mtu 9000, and every switch between them), or update the kernel",
             bny_verbs_mtu_bytes(theirs(c)), c->e->main->blob.rail[c->rail->index].device,
             bny_verbs_mtu_bytes(c->rail->mtu), c->rail->at,
             bny_verbs_mtu_bytes((unsigned)attr.path_mtu));
    return 0;
}
