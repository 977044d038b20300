/* SPDX-License-Identifier: BSD-3-Clause */
/* The way to a peer's device. Over RoCE, rdma_cm takes the MTU of our own interface and tells
 * the peer's kernel to do the same: where the peer's is smaller, what is long is lost without a
 * word, and what is short arrives. So both ends tell their active MTU at init, and the smaller
 * one goes into the path that rdma_cm is given. Over InfiniBand the subnet manager knows the
 * path; iWARP is TCP's. */
#include <endian.h>
#include <stdio.h>

#include <infiniband/sa.h>

#include "base/err.h"
#include "transport/verbs/lane.h"

#define HOPS     255u /* each router on the way takes one */
#define ANY_PKEY 0xffffu
#define EXACTLY  0x80u /* selector: equal to */
#define LIFETIME 18u   /* 4.096 us * 2^18, as the kernel's own paths over RoCE */

unsigned bny_verbs_mtu_bytes(unsigned code)
{
    return code ? 128u << code : 0;
}

/* The peer's, of the same rail; 0: it told none. */
static unsigned theirs(const struct vb_lane *c)
{
    return c->e->main->blob.rail[c->rail->index].mtu;
}

unsigned bny_verbs_path_mtu(const struct vb_lane *c)
{
    unsigned mine = c->rail->mtu, other = theirs(c);

    return other && other < mine ? other : mine;
}

/* As cma_resolve_iboe_route() of Linux fills it (drivers/infiniband/core/cma.c), but for the
 * MTU. The kernel adds what it knows of the link. */
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
    path.path.packetlifetime = EXACTLY | LIFETIME;
    return c->t->fn->rdma_set_option(c->id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &path,
                                     sizeof path);
}

int bny_verbs_resolve_route(struct vb_lane *c, int ms)
{
    unsigned mtu = bny_verbs_path_mtu(c);

    if (!c->rail->ethernet || mtu == c->rail->mtu || set_path(c, mtu) != 0)
        return c->t->fn->rdma_resolve_route(c->id, ms); /* bny_verbs_mtu_fits() tells */
    return 0;
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
