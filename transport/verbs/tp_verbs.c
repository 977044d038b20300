/* SPDX-License-Identifier: BSD-3-Clause */
/* The verbs transport: the table, polling, life and death of endpoints. verbs.h has the design.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/param.h"
#include "transport/verbs/cache.h"
#include "transport/verbs/lane.h"

/* Polls between two checks of connection events, if none is expected. */
#define CM_EVERY 1024
#define JOIN_NAP 1000000u /* ns: hellos do not wake a sleeper */

extern const struct bny_transport_ops bny_verbs_ops;

/* ---- set-up ---- */

static void verbs_destroy(struct bny_tp *tp);

static int look_for_devices(const struct vb_fn *fn, int rank)
{
    int n = 0;
    struct ibv_device **list = fn->ibv_get_device_list(&n);

    if (list)
        fn->ibv_free_device_list(list);
    if (list && n > 0)
        return 0;
    return bny_fail(
        BANYAN_ENOTSUP,
        "rank %d: this machine has no RDMA device (ibv_devices lists none); load its driver "
        "(modprobe), or make a soft-RoCE one: rdma link add rxe0 type rxe netdev eth0",
        rank);
}

/* Does any device have queue pairs that we can connect? */
static int can_connect(const struct vb_fn *fn)
{
    int n = 0, can = 0;
    struct ibv_device **list = fn->query_gid_table ? fn->ibv_get_device_list(&n) : NULL;

    for (int i = 0; list && i < n; i++)
        can |= list[i]->transport_type == IBV_TRANSPORT_IB;
    if (list)
        fn->ibv_free_device_list(list);
    return can;
}

/* Selects the way to connect queue pairs. Returns 0, or an error. */
static int open_events(struct vb_tp *t)
{
    enum { AUTO, QP } chosen = bny_param_choice("BANYAN_VERBS=connect");

    t->how = chosen == QP || (chosen == AUTO && can_connect(t->fn)) ? VB_HOW_QP : VB_HOW_CM;
    if (t->how == VB_HOW_QP && !t->fn->query_gid_table)
        return bny_fail(
            BANYAN_ENOTSUP,
            "rank %d: BANYAN_VERBS=connect=qp needs rdma-core 33: update it, or set cm "
            "on all hosts",
            t->tp.rank);
    if (t->how == VB_HOW_QP)
        return bny_verbs_tcp_cm_open(t);
    if (!t->fn->rdma_create_event_channel)
        return bny_fail(BANYAN_ENOTSUP,
                        "rank %d: librdmacm is not installed: apt-get install librdmacm1%s",
                        t->tp.rank, chosen == AUTO ? "" : ", or BANYAN_VERBS=connect=auto");
    t->events = t->fn->rdma_create_event_channel();
    if (!t->events || bny_verbs_nonblocking(t->events->fd) != 0)
        return bny_fail(BANYAN_ENOTSUP,
                        "rank %d: rdma_cm does not start (%s): modprobe rdma_ucm, and see that "
                        "/dev/infiniband/rdma_cm is yours to open",
                        t->tp.rank, strerror(errno));
    return 0;
}

static int verbs_start(struct vb_tp *t, const struct bny_tp_config *cfg)
{
    int rc = open_events(t);

    if (rc)
        return rc;
    rc = bny_verbs_rails_open(t, cfg->ifname ? cfg->ifname : "");
    if (rc)
        return rc;
    t->notify = bny_verbs_is_iwarp(&t->rails[0]) || bny_param_int("BANYAN_VERBS=notify");
    t->apart = bny_verbs_apart(t);
    rc = bny_verbs_relaxed(t);
    if (rc == 0)
        rc = bny_verbs_depth(t);
    if (rc)
        return rc;
    t->blob.qps = (uint8_t)bny_param_int("BANYAN_VERBS=qps");
    t->blob.slab = t->slab.number;
    rc = bny_verbs_srqs_open(t);
    if (rc)
        return rc;
    for (int i = 0; i < t->nrails; i++)
        bny_info("verbs: device %s (%s), listening for %s", t->rails[i].device,
                 t->notify ? "without immediates: notes" : "InfiniBand or RoCE",
                 t->how == VB_HOW_QP ? "ranks" : "rdma_cm");
    return 0;
}

static int verbs_create(struct bny_tp **out, const struct bny_tp_config *cfg)
{
    const struct vb_fn *fn = bny_verbs_fn();
    struct vb_tp *t;
    int rc;

    *out = NULL;
    if (!fn)
        return -BANYAN_ENOTSUP;
    if (sodium_init() < 0)
        return bny_fail(BANYAN_ESYSTEM, "rank %d: libsodium does not start", cfg->rank);
    rc = look_for_devices(fn, cfg->rank);
    if (rc)
        return rc;
    t = calloc(1, sizeof *t);
    if (t)
        t->eps = calloc((size_t)cfg->nranks, sizeof(void *));
    if (!t || !t->eps) {
        free(t);
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for transport verbs", cfg->rank);
    }
    t->tp.ops = &bny_verbs_ops;
    t->tp.rank = cfg->rank;
    t->tp.nranks = cfg->nranks;
    t->tp.eager_max = VB_EAGER_MAX;
    t->slab = bny_verbs_slab(cfg->nranks, (uint64_t)bny_param_int("BANYAN_VERBS=memory"));
    t->tp.slot_max = t->slab.slot_max;
    t->fn = fn;
    t->port_range = cfg->port_range;
    t->secret = cfg->secret;
    t->path = bny_verbs_path_settings();
    rc = verbs_start(t, cfg);
    if (rc == 0)
        rc = bny_verbs_cache_open(t);
    t->port_range = NULL;
    if (rc) {
        verbs_destroy(&t->tp);
        return rc;
    }
    *out = &t->tp;
    return 0;
}

static size_t blob_bytes(int nrails)
{
    return offsetof(struct vb_blob, rail) + (size_t)nrails * sizeof(struct vb_place);
}

static int verbs_address(struct bny_tp *tp, void *blob, size_t cap)
{
    const struct vb_tp *t = (struct vb_tp *)tp;
    size_t bytes = blob_bytes(t->nrails);

    if (cap < bytes)
        return bny_fail(BANYAN_EINVAL, "verbs address needs %zu bytes, has %zu", bytes, cap);
    memcpy(blob, &t->blob, bytes);
    return (int)bytes;
}

static int blob_check(const struct vb_tp *t, int peer, const void *blob, size_t len,
                      struct vb_blob *out)
{
    *out = (struct vb_blob){ .rank = -1 };
    if (len < blob_bytes(1) || len > sizeof *out)
        return 0;
    memcpy(out, blob, len);
    return !memcmp(out->magic, "vrb6", 4) && out->rank == peer && peer >= 0 &&
           peer < t->tp.nranks && out->nrails && out->nrails <= VB_RAILS &&
           len == blob_bytes(out->nrails) && out->qps && out->slab < VB_SLAB_SHAPES &&
           (out->rail[0].addr.family == 4 || out->rail[0].addr.family == 6);
}

/* If init did not compare settings. */
#define OTHER_SLOTS                                                                            \
    "rank %d has slots of another size than rank %d: set BANYAN_VERBS=memory to the same on "  \
    "all ranks"

static int verbs_reachable(struct bny_tp *tp, int peer, const void *blob, size_t len)
{
    struct vb_tp *t = (struct vb_tp *)tp;
    struct vb_blob b;

    if (!blob_check(t, peer, blob, len, &b))
        return 0;
    if (b.slab != t->slab.number) {
        bny_warn("verbs: " OTHER_SLOTS, tp->rank, peer);
        return 0;
    }
    if (bny_verbs_rails_common(t, &b) > 0)
        return 1;
    bny_verbs_rails_apart(t, peer, &b);
    return 0;
}

/* Sets the number of rails and queue pairs to the peer, and each rail's share. */
static void pair_up(struct vb_ep *e, const struct vb_blob *b)
{
    const struct vb_tp *t = (struct vb_tp *)e->ep.tp;
    int known = 1;

    e->blob = *b;
    e->claimed = 1;
    e->nrails = bny_verbs_rails_common(t, b);
    e->qps = b->qps < t->blob.qps ? b->qps : t->blob.qps;
    for (int i = 0; i < e->nrails; i++) {
        e->weight[i] = b->rail[i].mbps < t->rails[i].mbps ? b->rail[i].mbps : t->rails[i].mbps;
        known &= e->weight[i] != 0;
    }
    for (int i = 0; i < e->nrails && !known; i++)
        e->weight[i] = 1;
    if (e->nrails != t->nrails || e->nrails != b->nrails)
        bny_info("verbs: %d devices are used with rank %d: we have %d, it has %d, and device i "
                 "of one serves device i of the "
                 "other where both are of one kind of network and address",
                 e->nrails, e->ep.peer, t->nrails, b->nrails);
}

static int verbs_connect(struct bny_tp *tp, int peer, const void *blob, size_t len,
                         struct bny_ep **out)
{
    struct vb_tp *t = (struct vb_tp *)tp;
    struct vb_blob b;
    struct vb_ep *e;

    *out = NULL;
    if (!blob_check(t, peer, blob, len, &b) || !bny_verbs_rails_common(t, &b) ||
        peer == tp->rank)
        return bny_fail(
            BANYAN_EINVAL,
            "rank %d: the verbs address of rank %d is broken, or of another kind of network "
            "than device %s",
            tp->rank, peer, t->rails[0].device);
    if (b.slab != t->slab.number)
        return bny_fail(BANYAN_ECONFIG, OTHER_SLOTS, tp->rank, peer);
    e = bny_verbs_ep(t, peer);
    if (!e)
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for the endpoint of rank %d",
                        tp->rank, peer);
    if (e->claimed)
        return bny_fail(BANYAN_EINVAL, "rank %d: rank %d was connected before", tp->rank, peer);
    pair_up(e, &b);
    bny_verbs_grow(e);
    *out = &e->ep;
    return 0;
}

static void ep_free(struct vb_ep *e)
{
    if (!e)
        return;
    if (e->trial)
        bny_verbs_conn_close(e->trial);
    if (e->conn)
        bny_verbs_conn_close(e->conn);
    for (uint32_t k = 1; k < VB_LANES; k++)
        ep_free(e->lanes[k]);
    free(e);
}

static void verbs_destroy(struct bny_tp *tp)
{
    struct vb_tp *t = (struct vb_tp *)tp;

    if (!t)
        return;
    if (bny_counter_read(&tp->replaced))
        bny_info("verbs: %llu queue pairs were replaced, %llu of them by one on another device",
                 (unsigned long long)bny_counter_read(&tp->replaced),
                 (unsigned long long)bny_counter_read(&tp->moved));
    while (t->half)
        bny_verbs_conn_close(t->half);
    for (int r = 0; r < tp->nranks; r++)
        ep_free(t->eps[r]);
    free(t->eps);
    while (t->dead) {
        struct vb_lane *c = t->dead;

        t->dead = c->next;
        bny_verbs_conn_free(c);
    }
    while (t->all_msgs) {
        struct vb_msg *m = t->all_msgs;

        t->all_msgs = m->all;
        free(m);
    }
    bny_verbs_cache_close(t);
    bny_verbs_regions_free(t);
    bny_verbs_rails_close(t);
    if (t->events)
        t->fn->rdma_destroy_event_channel(t->events);
    free(t);
}

/* Does the peer's device lack some of the data of further lanes? */
static int lanes_busy(const struct vb_ep *e)
{
    for (uint32_t k = 1; k < e->nlanes; k++) {
        const struct vb_lane *l = e->lanes[k] ? e->lanes[k]->conn : NULL;

        if (l && !l->dead && l->done != l->posted)
            return 1;
    }
    return 0;
}

/* Does a message wait for slots that the peer may still free? */
static int is_sending(const struct vb_ep *e)
{
    return !e->left && e->conn->peer->longs_done != e->conn->peer->longs_queued;
}

/* The farewell follows everything sent; its completion proves that the peer's device has all of
 * it. */
static int verbs_farewell(struct bny_tp *tp)
{
    struct vb_tp *t = (struct vb_tp *)tp;
    int waiting = 0;

    bny_verbs_cm_progress(t);
    for (int r = 0; r < tp->nranks; r++) {
        struct vb_ep *e = t->eps[r];

        if (e && e->conn && e->conn->lost && !e->conn->dead && !e->left)
            waiting++; /* its next queue pair must carry it */
        if (!e || e->state != VB_OPEN || !e->conn)
            continue;
        if (!e->farewell_sent && !is_sending(e) &&
            bny_verbs_tell(e->conn, VB_IMM_FAREWELL, 0) == 0)
            e->farewell_sent = 1;
        /* A peer that sent its farewell need not receive ours, but may still poll for other
         * peers. */
        waiting += e->state == VB_OPEN && !e->left &&
                   (!e->farewell_sent || e->conn->done != e->conn->posted || lanes_busy(e));
    }
    return waiting ? BNY_AGAIN : 0;
}

/* ---- polling ---- */

static int take_down(struct vb_ep *e, struct bny_event *ev)
{
    if (e->down != 1 || !e->claimed || (e->conn && e->conn->reported != e->conn->done))
        return 0;
    e->down = 2;
    *ev = (struct bny_event){ .kind = BNY_EV_DOWN, .ep = &e->ep, .reason = e->reason };
    return 1;
}

static int poll_one(struct vb_ep *e, struct bny_event *ev, int n)
{
    struct vb_lane *c = e->conn;
    int got = 0;

    if (!e->claimed)
        return 0;
    if (c && (c->has_qp || c->reported != c->done))
        got = bny_verbs_poll_conn(e, ev, n);
    if (e->nlanes > 1)
        bny_verbs_poll_lanes(e);
    if (e->gone && c && c->cq) /* its earlier input */
        bny_verbs_cq_sweep(c->cq);
    if (e->gone && bny_verbs_may_end(e) && got < n && c && !c->dead && !bny_verbs_cq_has(c)) {
        e->gone = 0;
        bny_verbs_lost(c, "closed its connection to device %s", c->rail->at);
    }
    if (got < n)
        got += take_down(e, ev + got);
    return got;
}

static int verbs_poll(struct bny_tp *tp, struct bny_event *ev, int n)
{
    struct vb_tp *t = (struct vb_tp *)tp;
    int got = 0;

    bny_verbs_cqs_poll(t);
    if (t->joining || ++t->turns % CM_EVERY == 0)
        bny_verbs_cm_progress(t);
    for (int i = 0; i < tp->nranks && got < n; i++) {
        struct vb_ep *e = t->eps[(t->first + i) % tp->nranks];

        if (e)
            got += poll_one(e, ev + got, n - got);
    }
    t->first = (t->first + 1) % tp->nranks; /* round-robin */
    return got ? got : bny_verbs_lack(t);
}

static int verbs_poll_ep(struct bny_ep *ep, struct bny_event *ev, int n)
{
    struct vb_tp *t = (struct vb_tp *)ep->tp;

    bny_verbs_cqs_poll(t);
    if (t->joining || ++t->turns % CM_EVERY == 0)
        bny_verbs_cm_progress(t);
    return poll_one((struct vb_ep *)ep, ev, n);
}

/* 1: there is work that no completion will report. */
static int has_work(const struct vb_ep *e)
{
    const struct vb_lane *c = e->conn;

    if (e->down == 1 || e->gone)
        return e->claimed && e->down < 2 && e->state != VB_CLOSED;
    if (c && c->reported != c->done &&
        (c->dead || !bny_verbs_stripes_due(c, c->sent[c->reported % VB_SENDS].stripes)))
        return 1;
    if (e->nlanes > 1 && bny_verbs_lanes_ready(e))
        return 1;
    if (!c || c->dead || !c->has_qp)
        return 0;
    return (e->claimed && bny_verbs_cq_has(c)) || c->drained ||
           (c->peer->credits_due && !c->lost);
}

static uint64_t verbs_arm(struct bny_tp *tp, int *fds, int cap, int *nfds)
{
    struct vb_tp *t = (struct vb_tp *)tp;
    int expects = t->joining;

    *nfds = 0;
    if (cap < 1 + 2 * t->nrails)
        return 0;
    for (int r = 0; r < tp->nranks; r++) {
        if (t->eps[r] && has_work(t->eps[r]))
            return 0;
        /* no event wakes a rank that gave way, or that asks a busy peer again */
        expects |= t->eps[r] && (t->eps[r]->state == VB_YIELDED ||
                                 (t->eps[r]->state == VB_IDLE && t->eps[r]->busy));
    }
    if (bny_verbs_cqs_arm(t)) /* completions before the request raise no event */
        return 0;
    fds[(*nfds)++] = t->events->fd;
    for (int i = 0; i < t->nrails; i++) {
        fds[(*nfds)++] = t->rails[i].channel->fd;
        if (t->rails[i].ctx->async_fd >= 0)
            fds[(*nfds)++] = t->rails[i].ctx->async_fd;
    }
    return expects ? JOIN_NAP : UINT64_MAX;
}

static void verbs_disarm(struct bny_tp *tp)
{
    struct vb_tp *t = (struct vb_tp *)tp;

    bny_verbs_cqs_disarm(t);
    t->turns = CM_EVERY - 1; /* a connection event may have caused the wake-up */
}

const struct bny_transport_ops bny_verbs_ops = {
    .name = "verbs",
    .caps = BNY_TP_PUT | BNY_TP_ATTACH,
    .create = verbs_create,
    .address = verbs_address,
    .reachable = verbs_reachable,
    .connect = verbs_connect,
    .destroy = verbs_destroy,
    .farewell = verbs_farewell,
    .eager = bny_verbs_eager,
    .reserve = bny_verbs_reserve,
    .commit = bny_verbs_commit,
    .cancel = bny_verbs_cancel,
    .send = bny_verbs_send,
    .window_open = bny_verbs_window_open,
    .window_close = bny_verbs_window_close,
    .put = bny_verbs_put,
    .poll = verbs_poll,
    .poll_ep = verbs_poll_ep,
    .view = bny_verbs_view,
    .release = bny_verbs_release,
    .recall = bny_verbs_recall,
    .arm = verbs_arm,
    .disarm = verbs_disarm,
    .attach = bny_verbs_attach,
    .detach = bny_verbs_detach,
    .use = bny_verbs_use,
    .fence = bny_verbs_fence,
};
