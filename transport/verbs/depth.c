/* SPDX-License-Identifier: BSD-3-Clause */
/* Depth of queues: what the slots require (slab.c), fewer in larger jobs, or what the devices
 * of a rank allow. A receiver must have a request for all that its peer may send between its
 * polls. So the hello of a rank with short queues has a limit of messages in flight to it
 * (eager_most), and the rank reports how many it has taken (VB_IMM_TAKEN); the number of slots
 * stays the same, for held messages. The limits:
 *   max_qp_wr  sends and receives of a queue pair, each
 *   max_cqe    both together, as a queue pair that breaks completes all of them
 *   max_sge    1: header and payload are two writes, and the immediate follows alone
 * Inline data is what a queue pair gets (verbs_conn.c). */
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/param.h"
#include "transport/verbs/lane.h"

/* Of records: a message's piece and all bulk slots besides (verbs_path.c), those without a
 * completion, and control messages. */
#define LEAST_SENDS 20u
/* Besides eager messages: bulk slots, and their return; counts of freed eager slots and of
 * taken ones, one per quarter of them; a farewell. */
#define OTHER_RECVS (2 * VB_BULK_SLOTS + 5 + 5 + 1)
#define SHALLOW     128u /* receives: with fewer, small batches are posted again */
#define LEAST_RECVS (VB_EAGER_LEAST + OTHER_RECVS + 3)

static uint32_t depth_least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

uint32_t bny_verbs_depth_of(struct vb_depth *d, const struct vb_limits *l, uint32_t eager,
                            uint32_t requests)
{
    uint32_t sends = VB_SENDS_OF(eager), recvs = VB_RECVS_OF(eager), sq, rq, lag;

    d->sges = l->sge < 2 ? 1 : 2;
    d->requests = d->sges < 2 ? 3 : requests;
    sq = depth_least(d->requests * sends + 1, l->wr);
    rq = l->shared ? recvs + 1 : depth_least(recvs + 1, l->wr);
    if ((uint64_t)sq + rq > l->cqe) {
        rq = l->shared ? rq : depth_least(rq, l->cqe / 2);
        sq = l->cqe > rq ? depth_least(sq, l->cqe - rq) : 0;
    }
    d->sends = sq ? (sq - 1) / d->requests : 0;
    d->recvs = rq ? rq - 1 : 0;
    if (d->sends < LEAST_SENDS || d->recvs < LEAST_RECVS) {
        uint32_t need = LEAST_SENDS * d->requests + 1;

        return need < LEAST_RECVS + 1 ? LEAST_RECVS + 1 : need;
    }
    d->signal_every = d->sends / 10 < 16 ? d->sends / 10 : 16;
    d->spare = depth_least(32, d->sends - 1 - VB_BULK_SLOTS - d->signal_every);
    d->recv_batch = d->recvs < SHALLOW ? 4 : VB_RECV_BATCH;
    lag = OTHER_RECVS + d->recv_batch - 1;
    d->eager = eager;
    while (d->eager + lag > d->recvs)
        d->eager /= 2;
    return 0;
}

/* Minimum over all devices: a lane may move between them. */
static void read_limits(const struct vb_tp *t, struct vb_limits *l, const char **device)
{
    for (int i = 0; i < t->nrails; i++) {
        struct ibv_device_attr a;

        memset(&a, 0, sizeof a);
        if (t->fn->ibv_query_device(t->rails[i].ctx, &a) != 0)
            continue;
        if ((a.max_qp_wr > 0 && (uint32_t)a.max_qp_wr < l->wr) ||
            (a.max_cqe > 0 && (uint32_t)a.max_cqe < l->cqe))
            *device = t->rails[i].device;
        l->wr = a.max_qp_wr > 0 ? depth_least(l->wr, (uint32_t)a.max_qp_wr) : l->wr;
        l->cqe = a.max_cqe > 0 ? depth_least(l->cqe, (uint32_t)a.max_cqe) : l->cqe;
        l->sge = a.max_sge > 0 ? depth_least(l->sge, (uint32_t)a.max_sge) : l->sge;
    }
}

int bny_verbs_depth(struct vb_tp *t)
{
    struct vb_limits l = { .wr = UINT32_MAX,
                           .cqe = UINT32_MAX,
                           .sge = UINT32_MAX,
                           .shared = (int)bny_param_int("BANYAN_VERBS=srq") };
    const char *device = t->rails[0].device;
    uint32_t need;

    read_limits(t, &l, &device);
    need = bny_verbs_depth_of(&t->depth, &l, t->slab.eager, t->notify || t->apart ? 2 : 1);
    if (need && l.wr < need)
        return bny_fail(BANYAN_ENOTSUP,
                        "rank %d: device %s: a queue pair needs room for %u requests, the "
                        "device has %u (max_qp_wr of ibv_devinfo -v): use another device "
                        "(BANYAN_IFNAME), or BANYAN_TRANSPORT=tcp",
                        t->tp.rank, device, need, l.wr);
    if (need)
        return bny_fail(BANYAN_ENOTSUP,
                        "rank %d: device %s: a completion queue needs room for %u entries, the "
                        "device has %u (max_cqe of ibv_devinfo -v): use another device "
                        "(BANYAN_IFNAME), %sor BANYAN_TRANSPORT=tcp",
                        t->tp.rank, device,
                        l.shared
                            ? LEAST_SENDS * t->depth.requests + VB_RECVS_OF(t->slab.eager) + 2
                            : 2 * need,
                        l.cqe, l.shared ? "set BANYAN_VERBS=srq=0, " : "");
    if (t->depth.sends < VB_SENDS_OF(t->slab.eager) || t->depth.eager < t->slab.eager ||
        t->depth.sges < 2)
        bny_info("verbs: by the limits of device %s (max_qp_wr %u, max_cqe %u, max_sge %u) %u "
                 "requests are under way to a peer and %u short messages from it, not %u and "
                 "%u, and a message with payload of yours is %u requests",
                 device, l.wr, l.cqe, l.sge, t->depth.sends, t->depth.eager,
                 VB_SENDS_OF(t->slab.eager), t->slab.eager,
                 t->depth.sges < 2 ? 3 : t->depth.requests);
    return 0;
}
