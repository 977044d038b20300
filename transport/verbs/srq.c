/* SPDX-License-Identifier: BSD-3-Clause */
/* One receive queue for all queue pairs of a device (BANYAN_VERBS=srq=1).
 *
 * A completion has the number of its queue pair (cq.c) and the queue entry that it used. Any
 * entry may receive a hello, a note or an immediate, so each has memory for the longest, a
 * hello. A completion frees its entry, and free entries are posted again in batches.
 *
 * Any connection may use the next entry. So that there always is one, the queue holds what all
 * connections may have in flight at once: each has a share, as large as its own queue would be
 * (a requesting connection: one, for the hello; the requester sends no more before our answer).
 * A share ends with its queue pair, after all of its completions are counted. A queue pair uses
 * entries one by one, one for each message: at its end at most one is neither in the queue nor
 * completed, that of the message in transit. The standard requires a flush for it; a device
 * that omits this costs one entry. So one more is posted for each queue pair that ended, up to
 * VB_SRQ_SPARE, and every share exceeds the credits a little (depth.c): even such a device
 * leaves enough entries for hundreds of breaks.
 *
 * A broken queue pair flushes nothing here that would mark its end. The device may report by an
 * event that its last entry was used (so even an idle connection's break is noticed); else a
 * short time decides (lane.c). Correctness depends on neither: the queue pair is in error, its
 * completion queue is found empty after that, and its messages are counted before their number
 * is reported to the peer. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/param.h"
#include "transport/verbs/lane.h"

/* Space for all connections that this rank may have over one device: all lanes may end up on
 * it. */
static int open_one(struct vb_tp *t, struct vb_rail *rail)
{
    unsigned lanes = (unsigned)t->nrails * t->blob.qps < VB_LANES
                         ? (unsigned)t->nrails * t->blob.qps
                         : VB_LANES;
    unsigned long long n = VB_SRQ_ENTRIES((unsigned)t->tp.nranks, lanes, t->depth.recvs);
    struct vb_srq *s = &rail->shared;
    struct ibv_srq_init_attr init = { .attr = { .max_wr = (uint32_t)n, .max_sge = 1 } };
    struct ibv_device_attr attr;

    memset(&attr, 0, sizeof attr);
    if (t->fn->ibv_query_device(rail->ctx, &attr) != 0 || attr.max_srq <= 0)
        return bny_fail(
            BANYAN_ECONFIG,
            "rank %d: device %s has no shared receive queues: set BANYAN_VERBS=srq=0",
            t->tp.rank, rail->device);
    if (attr.max_srq_wr < 0 || n > (unsigned)attr.max_srq_wr)
        return bny_fail(BANYAN_ECONFIG,
                        "rank %d: a shared receive queue of device %s has %d requests at most, "
                        "and %d ranks "
                        "with %u queue pairs to each other need %llu: set BANYAN_VERBS=srq=0",
                        t->tp.rank, rail->device, attr.max_srq_wr, t->tp.nranks, lanes, n);
    s->n = (uint32_t)n;
    s->bytes = calloc(s->n, sizeof *s->bytes);
    s->idle = calloc(s->n, sizeof *s->idle);
    if (!s->bytes || !s->idle)
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for a shared receive queue",
                        t->tp.rank);
    while (s->nidle < s->n) {
        s->idle[s->nidle] = s->nidle;
        s->nidle++;
    }
    s->mr =
        t->fn->ibv_reg_mr(rail->pd, s->bytes, s->n * sizeof *s->bytes, IBV_ACCESS_LOCAL_WRITE);
    bny_counter_add(&t->tp.pinned_bytes, s->mr ? s->n * sizeof *s->bytes : 0);
    s->srq = s->mr ? t->fn->ibv_create_srq(rail->pd, &init) : NULL;
    if (s->srq)
        return 0;
    return bny_fail(errno == ENOMEM ? BANYAN_ENOMEM : BANYAN_ESYSTEM,
                    "rank %d: device %s: making a shared receive queue of "
                    "%llu requests fails: %s; raise the limit of locked memory (ulimit -l "
                    "unlimited), or set "
                    "BANYAN_VERBS=srq=0",
                    t->tp.rank, rail->device, n, strerror(errno));
}

int bny_verbs_srqs_open(struct vb_tp *t)
{
    int rc = 0;

    if (!bny_param_int("BANYAN_VERBS=srq"))
        return 0;
    for (int i = 0; i < t->nrails && rc == 0; i++)
        rc = open_one(t, &t->rails[i]);
    return rc;
}

void bny_verbs_srq_close(struct vb_tp *t, struct vb_rail *rail)
{
    struct vb_srq *s = &rail->shared;

    if (s->srq)
        t->fn->ibv_destroy_srq(s->srq);
    if (s->mr) {
        t->fn->ibv_dereg_mr(s->mr);
        bny_counter_add(&t->tp.pinned_bytes, -(uint64_t)(s->n * sizeof *s->bytes));
    }
    free(s->bytes);
    free(s->idle);
    *s = (struct vb_srq){ .srq = NULL };
}

int bny_verbs_srq_fill(struct vb_rail *rail, uint32_t least)
{
    struct vb_srq *s = &rail->shared;
    uint32_t due = s->wanted + s->ended - (s->n - s->nidle);

    while ((int32_t)due >= (int32_t)least) {
        struct ibv_recv_wr wrs[VB_RECV_BATCH], *bad = wrs;
        struct ibv_sge sge[VB_RECV_BATCH];
        uint32_t m = due < VB_RECV_BATCH ? due : VB_RECV_BATCH;
        int rc;

        for (uint32_t i = 0; i < m; i++) {
            uint32_t k = s->idle[s->nidle - 1 - i];

            sge[i] = (struct ibv_sge){ .addr = (uintptr_t)s->bytes[k],
                                       .length = sizeof s->bytes[k],
                                       .lkey = s->mr->lkey };
            wrs[i] = (struct ibv_recv_wr){ .wr_id = VB_WR_RECV | k,
                                           .next = i + 1 < m ? &wrs[i + 1] : NULL,
                                           .sg_list = &sge[i],
                                           .num_sge = 1 };
        }
        rc = ibv_post_srq_recv(s->srq, wrs, &bad);
        s->nidle -= rc ? (uint32_t)(bad - wrs) : m;
        if (rc)
            return -BANYAN_ESYSTEM;
        due -= m;
    }
    return 0;
}

int bny_verbs_srq_share(struct vb_lane *c, uint32_t share)
{
    struct vb_srq *s = &c->rail->shared;

    if (s->wanted + share - c->share > s->n - VB_SRQ_SPARE)
        return bny_fail(
            BANYAN_ESYSTEM,
            "device %s: there are more connections than its shared receive queue has room for",
            c->rail->at);
    s->wanted += share - c->share;
    c->share = share;
    if (bny_verbs_srq_fill(c->rail, 1) != 0)
        return bny_fail(BANYAN_ESYSTEM, "device %s: it refuses receive requests", c->rail->at);
    return 0;
}

const void *bny_verbs_srq_take(struct vb_rail *rail, const struct ibv_wc *wc)
{
    struct vb_srq *s = &rail->shared;
    uint32_t k = (uint32_t)wc->wr_id;

    BNY_ASSERT(k < s->n && s->nidle < s->n);
    s->idle[s->nidle++] = k;
    return s->bytes[k];
}

void bny_verbs_srq_leave(struct vb_lane *c)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    struct vb_srq *s = &c->rail->shared;

    if (!c->share)
        return;
    c->t->fn->ibv_modify_qp(c->id->qp, &attr, IBV_QP_STATE);
    bny_verbs_cq_forget(c);
    s->wanted -= c->share;
    c->share = 0;
    s->ended += s->ended < VB_SRQ_SPARE;
}

/* ---- asynchronous events ---- */

static void last_of(struct vb_ep *e, const struct ibv_qp *qp)
{
    struct vb_lane *c = e ? e->conn : NULL;

    if (!c || c->dead || !c->id || c->id->qp != qp)
        return;
    if (c->lost)
        c->drain_ns = bny_now_ns();
    else if (e->state == VB_OPEN)
        e->gone = 1; /* it broke while idle; poll() first checks for a farewell */
}

void bny_verbs_srq_last(struct vb_tp *t, const struct ibv_qp *qp)
{
    for (int r = 0; r < t->tp.nranks; r++) {
        struct vb_ep *e = t->eps[r];

        last_of(e, qp);
        for (uint32_t k = 1; e && k < e->nlanes; k++)
            last_of(e->lanes[k], qp);
    }
}
