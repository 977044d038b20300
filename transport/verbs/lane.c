/* SPDX-License-Identifier: BSD-3-Clause */
/* Replaces the queue pair of a lane if it breaks. Slabs, credits and all requests in flight
 * stay; only the route changes, possibly to another rail if the lane's own does not work
 * (verbs_join.c tries all). First either end processes all completions of the old queue pair,
 * so nothing more can come. Then each reports in its hello the number of immediates that it
 * has, and the other posts the later ones again. Nothing is lost, as requests are kept until
 * acknowledged, and nothing comes twice, as only immediates announce a write. If it takes too
 * long, or breaks again and again without progress, the peer is down; with iWARP at once, where
 * a request completes as soon as TCP has it: what the peer lacks may be gone. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "transport/verbs/lane.h"

#define DRAIN_S 1.0 /* time limit for a device to flush */
/* Nothing is flushed from a shared receive queue: time for the message in transit. */
#define SRQ_DRAIN_S 0.1
#define LOSSES_MAX  4 /* consecutive ones */

static void leave(struct vb_lane *c)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    struct vb_ep *e = c->e;

    c->lost = 1;
    c->drained = 0;
    c->drain_ns = bny_deadline_in(c->rail->shared.srq ? SRQ_DRAIN_S : DRAIN_S);
    e->state = VB_DRAINING;
    e->main->lanes_open &= ~(1u << e->lane);
    e->tries = e->refused = e->busy = 0;
    e->deadline_ns = bny_deadline_in((double)bny_param_int("BANYAN_VERBS=replace"));
    c->t->joining++;
    c->t->fn->ibv_modify_qp(c->id->qp, &attr, IBV_QP_STATE);
}

int bny_verbs_serves(const struct vb_ep *e)
{
    return e->conn && !e->conn->lost && !e->conn->dead;
}

void bny_verbs_leave(struct vb_lane *c, const struct vb_rail *rail)
{
    snprintf(c->e->broke, sizeof c->e->broke, "left device %s for %s", c->rail->device,
             rail->device);
    leave(c);
}

void bny_verbs_lost(struct vb_lane *c, const char *fmt, ...)
{
    double seconds = (double)bny_param_int("BANYAN_VERBS=replace");
    struct vb_ep *e = c->e;
    char reason[sizeof e->broke];
    va_list ap;

    if (c->lost || c->dead)
        return;
    va_start(ap, fmt);
    bny_vsnprintf(reason, sizeof reason, fmt, ap);
    va_end(ap);
    if (e->main->left || seconds == 0 || bny_verbs_is_iwarp(c->rail) ||
        ++c->losses > LOSSES_MAX) {
        bny_verbs_down(e, "%s", reason);
        return;
    }
    memcpy(e->broke, reason, sizeof reason);
    bny_warn("verbs: rank %d %s; making another connection", e->ep.peer, reason);
    if (e->trial) /* a connection that may be better: made while this one worked, it lacks what
                     follows */
        bny_verbs_conn_close(e->trial);
    leave(c);
}

int bny_verbs_heard_out(struct vb_lane *c)
{
    if (c->drained || !bny_deadline_passed(c->drain_ns))
        return c->drained;
    if (c->rail->shared.srq) { /* a rank that slept this long has not polled since */
        bny_verbs_cq_sweep(c->cq);
        return !bny_verbs_cq_has(c);
    }
    return 1;
}

int bny_verbs_port_is_down(const struct vb_tp *t, const struct vb_rail *rail)
{
    struct ibv_port_attr port = { .state = IBV_PORT_ACTIVE };

    return t->fn->ibv_query_port(rail->ctx, rail->listener->port_num,
                                 (struct _compat_ibv_port_attr *)&port) == 0 &&
           port.state != IBV_PORT_ACTIVE;
}

/* The device's connection manager notifies the peer of a connection's end. With rxe (Linux
 * 6.1), a message over an interface that is down makes that manager fail for good, for every
 * process: no lane could ever come home. So connections over such a port are kept until a lane
 * is home there. 1: kept. */
static int park(struct vb_lane *c)
{
    struct vb_parked *p;

    if (!c->id || c->t->how == VB_HOW_QP || c->rail->down == 2 ||
        !bny_verbs_port_is_down(c->t, c->rail))
        return 0;
    p = malloc(sizeof *p);
    if (!p)
        return 0;
    *p = (struct vb_parked){ .id = c->id,
                             .established = c->established,
                             .next = c->rail->parked };
    c->rail->parked = p;
    c->id->context = NULL; /* its events are ignored */
    return 1;
}

void bny_verbs_unpark(const struct vb_fn *fn, struct vb_rail *rail)
{
    while (rail->parked) {
        struct vb_parked *p = rail->parked;

        rail->parked = p->next;
        if (p->established)
            fn->rdma_disconnect(p->id);
        fn->rdma_destroy_id(p->id);
        free(p);
    }
}

void bny_verbs_lane_close(struct vb_lane *c)
{
    const struct vb_fn *fn = c->t->fn;
    int parked = park(c);

    if (c->established && !parked)
        fn->rdma_disconnect(c->id);
    bny_verbs_srq_leave(c);
    if (c->has_qp)
        fn->rdma_destroy_qp(c->id);
    bny_verbs_cq_leave(c);
    if (c->id && !parked)
        fn->rdma_destroy_id(c->id);
    c->id = NULL;
    c->established = c->has_qp = 0;
    if (c->lost && !c->dead)
        c->e->state = VB_IDLE; /* verbs_join.c requests it */
}

/* The peer has received `delivered` immediates: which ones does it lack? 0: impossible. */
static int find_rest(const struct vb_lane *c, uint32_t delivered, uint32_t *from)
{
    uint32_t k = c->done;

    if ((int32_t)(c->imm_sent - delivered) < 0)
        return 0;
    if (c->done && c->posted - c->done < VB_SENDS &&
        (int32_t)(delivered - (c->sent[(c->done - 1) % VB_SENDS].seq -
                               !c->sent[(c->done - 1) % VB_SENDS].has_imm)) < 0)
        return 0;
    while (k != c->posted && (int32_t)(delivered - c->sent[k % VB_SENDS].seq) >= 0)
        k++;
    *from = k;
    return 1;
}

/* The queue pair of `fresh`, which is freed, becomes that of c. */
static void take_over(struct vb_lane *c, struct vb_lane *fresh)
{
    c->id = fresh->id;
    c->id->context = c;
    bny_verbs_cq_pass(fresh, c);
    c->has_qp = c->established = 1;
    c->inline_max = fresh->inline_max;
    c->notify = fresh->notify;
    c->recvs_posted = fresh->recvs_posted;
    c->recvs_due = 0;
    c->share = fresh->share;
    c->epoch++;
    bny_verbs_page_free(c);
    c->page = fresh->page;
    c->mr_page = fresh->mr_page;
    c->rail = fresh->rail;
    free(fresh);
}

void bny_verbs_resume(struct vb_lane *c, struct vb_lane *fresh, const struct vb_hello *h)
{
    const struct vb_rail *before = c->rail;
    struct vb_ep *e = c->e;
    uint32_t from;

    take_over(c, fresh);
    c->rkey = h->rkey;
    c->lost = c->drained = 0;
    e->gone = 0; /* the old one was gone */
    c->t->joining--;
    e->state = VB_OPEN;
    e->deadline_ns = 0;
    if (!find_rest(c, h->delivered, &from)) {
        bny_verbs_down(e, "reports %u messages received of %u; some are lost", h->delivered,
                       c->imm_sent);
        return;
    }
    if (!e->lane && h->eager_most != c->peer->eager_most) {
        bny_verbs_down(e, "accepts %u messages in flight, %u before", h->eager_most,
                       c->peer->eager_most);
        return;
    }
    if (!e->lane && !h->delivered) { /* it may never have been open there: another slab */
        bny_verbs_relocate(c, from, h->addr);
    } else if (!e->lane && h->addr != c->peer->remote_addr) {
        bny_verbs_down(e, "has a different slab than before; messages are lost");
        return;
    }
    bny_counter_add(&c->t->tp.replaced, 1);
    if (c->rail != before) {
        bny_counter_add(&c->t->tp.moved, 1);
        bny_verbs_rekey(c, from);
        bny_verbs_has_moved(c);
    }
    if (c->rail != before && c->rail == bny_verbs_home(e)) {
        c->losses =
            0; /* else a port that goes up and down would use up the attempts of an idle lane */
        bny_info("verbs: rank %d: lane %u is back on device %s after %s; %u requests are "
                 "posted again",
                 e->ep.peer, e->lane, c->rail->device, before->device, c->posted - from);
    } else if (c->rail != before) {
        bny_warn("verbs: rank %d: lane %u goes on over device %s instead of %s; %u requests "
                 "are posted again; lanes moved "
                 "so far: %llu",
                 e->ep.peer, e->lane, c->rail->device, before->device, c->posted - from,
                 (unsigned long long)bny_counter_read(&c->t->tp.moved));
    } else {
        bny_info(
            "verbs: rank %d has another connection, number %u; %u requests are posted again",
            e->ep.peer, c->epoch + 1, c->posted - from);
    }
    c->done = c->to_post = c->ended = from;
    if (e->lane) {
        c->reported = from;
        c->imm_done = h->delivered;
        e->main->lanes_open |= 1u << e->lane;
    }
    if (bny_verbs_post(c) == 0 && e->state == VB_OPEN && !e->lane)
        bny_verbs_tell_credits(c->peer);
}
