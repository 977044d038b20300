/* SPDX-License-Identifier: BSD-3-Clause */
/* The devices of a rank: opening them, which ones work, and their asynchronous events. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "transport/verbs/lane.h"

#define HOME_NS 1000000000u /* how long a port must have been up */
/* Between two attempts if no event reports the port as usable. */
#define HOME_MAX_NS 64000000000ull

int bny_verbs_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ? -1 : 0;
}

/* Megabits a second, from the standard's codes; 0: unknown. */
static uint32_t rate(const struct ibv_port_attr *a)
{
    static const struct {
        uint8_t code;
        uint32_t value;
    } speeds[] = { { 1, 2500 },   { 2, 5000 },   { 4, 10000 },  { 8, 10000 },
                   { 16, 14000 }, { 32, 25000 }, { 64, 50000 }, { 128, 100000 } },
      widths[] = { { 1, 1 }, { 2, 4 }, { 4, 8 }, { 8, 12 }, { 16, 2 } };
    uint32_t speed = 0, width = 0;

    for (size_t i = 0; i < sizeof speeds / sizeof speeds[0]; i++)
        if (speeds[i].code == a->active_speed)
            speed = speeds[i].value;
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        if (widths[i].code == a->active_width)
            width = widths[i].value;
    return speed * width;
}

int bny_verbs_is_iwarp(const struct vb_rail *rail)
{
    return rail->ctx->device->transport_type == IBV_TRANSPORT_IWARP;
}

enum choice { AUTO, OFF, ON };

int bny_verbs_apart(const struct vb_tp *t)
{
    enum choice ar = (enum choice)bny_param_choice("BANYAN_VERBS=ar");

    return !t->notify && (ar == ON || (ar == AUTO && !t->rails[0].ethernet));
}

int bny_verbs_relaxed(struct vb_tp *t)
{
    enum choice relaxed = (enum choice)bny_param_choice("BANYAN_VERBS=relaxed_ordering");

    if (relaxed == ON && !t->fn->reg_mr_iova2)
        return bny_fail(BANYAN_ENOTSUP,
                        "rank %d: BANYAN_VERBS=relaxed_ordering=1 needs rdma-core 28: update "
                        "it, or choose auto",
                        t->tp.rank);
    t->relaxed = relaxed != OFF && t->fn->reg_mr_iova2;
    return 0;
}

/* Opens one part of the list. */
static int open_rail(struct vb_tp *t, const char *name)
{
    struct vb_rail *rail = &t->rails[t->nrails];
    struct ibv_port_attr port = { .max_msg_sz = 0 };
    uint32_t max_msg = 1u << 20;
    int rc = bny_verbs_listen(t, rail, name);

    if (rc)
        return rc;
    rail->index = t->nrails++;
    if (bny_verbs_is_iwarp(rail) != bny_verbs_is_iwarp(&t->rails[0])) {
        t->fn->rdma_destroy_id(rail->listener);
        *rail = (struct vb_rail){ .listener = NULL };
        t->nrails--;
        return bny_fail(BANYAN_ENOTSUP,
                        "device %s is of another kind of network than device %s", rail->device,
                        t->rails[0].device);
    }
    rail->pd = t->fn->ibv_alloc_pd(rail->ctx);
    rail->channel = rail->pd ? t->fn->ibv_create_comp_channel(rail->ctx) : NULL;
    if (!rail->channel || bny_verbs_nonblocking(rail->channel->fd) != 0)
        return bny_fail_errno(
            "rank %d: device %s gives no protection domain or completion channel", t->tp.rank,
            rail->device);
    if (rail->ctx->async_fd >= 0)
        bny_verbs_nonblocking(rail->ctx->async_fd);
    if (t->fn->ibv_query_port(rail->ctx, rail->listener->port_num,
                              (struct _compat_ibv_port_attr *)&port) == 0) {
        rail->mbps = rate(&port);
        if (!bny_verbs_is_iwarp(rail))
            rail->mtu = (uint8_t)port.active_mtu;
        rail->ethernet =
            !bny_verbs_is_iwarp(rail) && port.link_layer == IBV_LINK_LAYER_ETHERNET;
        if (port.max_msg_sz >= VB_BULK_STRIDE)
            max_msg = port.max_msg_sz < VB_LONG_MAX ? port.max_msg_sz : VB_LONG_MAX;
    }
    if (rail->index == 0 || max_msg < t->max_msg)
        t->max_msg = max_msg;
    return 0;
}

/* A list without exclusions: a rail for each part with a device. */
static int open_list(struct vb_tp *t, const char *list)
{
    char part[64];
    int rc = 0;

    for (const char *p = list; *p; p += strspn(p, ",")) {
        int len = (int)strcspn(p, ",");

        snprintf(part, sizeof part, "%.*s", len, p);
        p += len;
        if (len == 0)
            continue;
        if (t->nrails == VB_RAILS) {
            bny_warn("verbs: %s of BANYAN_IFNAME is left out: a rank uses at most %u devices",
                     part, VB_RAILS);
            continue;
        }
        rc = open_rail(t, part);
        if (rc && rc != -BANYAN_ENOTSUP && rc != -BANYAN_ECONFIG)
            return rc;
        if (rc)
            bny_warn("verbs: %s of BANYAN_IFNAME is left out: %s", part, banyan_last_error());
    }
    return t->nrails ? 0 : rc;
}

/* None was named. */
static int open_near(struct vb_tp *t, const char *ifname)
{
    int most = (int)bny_param_int("BANYAN_VERBS=devices"), n = 0, rc = 0;
    char names[VB_RAILS][VB_NEAR_NAME];

    most = most < (int)VB_RAILS ? most : (int)VB_RAILS;
    if (most > 0)
        n = (t->how == VB_HOW_QP ? bny_verbs_port_near : bny_verbs_cm_near)(t, ifname, names,
                                                                            most);
    for (int i = 0; i < n && !rc; i++)
        rc = open_rail(t, names[i]);
    return n ? rc : open_rail(t, ifname);
}

int bny_verbs_rails_open(struct vb_tp *t, const char *ifname)
{
    struct vb_blob *b = &t->blob;
    int named = ifname[0] && ifname[0] != '^', rc = !named ? open_near(t, ifname)
                                                    : strchr(ifname, ',')
                                                        ? open_list(t, ifname)
                                                        : open_rail(t, ifname);

    if (rc)
        return rc;
    memcpy(b->magic, "vrb6", 4);
    b->rank = t->tp.rank;
    b->nrails = (uint8_t)t->nrails;
    for (int i = 0; i < t->nrails; i++) {
        struct vb_place *p = &b->rail[i];

        p->addr = t->rails[i].addr;
        p->mbps = t->rails[i].mbps;
        t->tp.mbps += p->mbps;
        bny_snprintf(t->tp.at + strlen(t->tp.at), sizeof t->tp.at - strlen(t->tp.at), "%s%s",
                     i ? "," : "", t->rails[i].device);
        p->mtu = t->rails[i].mtu;
        p->how = (uint8_t)t->how;
        p->pkey = t->rails[i].port.pkey;
        for (int g = 0; g < t->rails[i].port.ngids; g++)
            p->kinds |= (uint8_t)(1u << t->rails[i].port.gids[g].type);
        p->transport = (uint8_t)t->rails[i].ctx->device->transport_type;
        snprintf(p->device, sizeof p->device, "%.27s", t->rails[i].device);
    }
    return 0;
}

void bny_verbs_rails_close(struct vb_tp *t)
{
    for (int i = 0; i < (int)VB_RAILS; i++) {
        struct vb_rail *rail = &t->rails[i];

        bny_verbs_unpark(t->fn, rail);
        bny_verbs_cqs_close(rail);
        bny_verbs_srq_close(t, rail);
        if (rail->channel)
            t->fn->ibv_destroy_comp_channel(rail->channel);
        if (rail->pd)
            t->fn->ibv_dealloc_pd(rail->pd);
        if (rail->listener)
            t->fn->rdma_destroy_id(rail->listener);
    }
}

struct vb_rail *bny_verbs_rail_of(struct vb_tp *t, const struct rdma_cm_id *id)
{
    for (int i = 0; i < t->nrails; i++)
        if (t->rails[i].ctx == id->verbs && t->rails[i].listener->port_num == id->port_num)
            return &t->rails[i];
    return NULL;
}

/* Over rdma_cm, addresses must be of one family; otherwise they only carry the offers. */
static int is_common(const struct vb_place *mine, const struct vb_place *theirs)
{
    if (!theirs->addr.port || theirs->how != mine->how || theirs->transport != mine->transport)
        return 0;
    return mine->how == VB_HOW_CM
               ? theirs->addr.family == mine->addr.family
               : (theirs->kinds & mine->kinds) && !((theirs->pkey ^ mine->pkey) & 0x7fff);
}

/* The reason, from the first devices of both: each end lacks what the other has. */
static void why_apart(const struct vb_place *mine, const struct vb_place *theirs, char *out,
                      size_t cap)
{
    if (!theirs->addr.port)
        snprintf(out, cap, "its address is broken");
    else if (theirs->how != mine->how)
        snprintf(out, cap,
                 "it connects queue pairs by %s, we by %s: set BANYAN_VERBS=connect=cm on all "
                 "hosts, or install one version of rdma-core on all (qp needs 33)",
                 theirs->how == VB_HOW_CM ? "rdma_cm" : "itself",
                 mine->how == VB_HOW_CM ? "rdma_cm" : "ourselves");
    else if (theirs->transport != mine->transport)
        snprintf(out, cap, "one device is of iWARP, the other of InfiniBand or RoCE");
    else if (mine->how == VB_HOW_CM)
        snprintf(out, cap, "one device has an IPv4 address, the other an IPv6 one");
    else if (!(theirs->kinds & mine->kinds))
        snprintf(out, cap,
                 "they have no GID of one type (InfiniBand, RoCE v1, RoCE v2): see "
                 "BANYAN_VERBS=gid_index");
    else
        snprintf(out, cap, "their partition keys are %04x and %04x: see BANYAN_VERBS=pkey",
                 mine->pkey, theirs->pkey);
}

void bny_verbs_rails_apart(struct vb_tp *t, int peer, const struct vb_blob *b)
{
    char why[256];

    if (t->told_apart++) /* once for all: the others differ alike */
        return;
    why_apart(&t->blob.rail[0], &b->rail[0], why, sizeof why);
    bny_warn("rank %d: device %s does not reach rank %d by verbs: %s", t->tp.rank,
             t->rails[0].device, peer, why);
}

int bny_verbs_rails_common(const struct vb_tp *t, const struct vb_blob *b)
{
    int n = 0;

    while (n < t->nrails && n < b->nrails && is_common(&t->blob.rail[n], &b->rail[n]))
        n++;
    return n;
}

/* ---- which serve ---- */

struct vb_rail *bny_verbs_rail_next(const struct vb_ep *e)
{
    struct vb_tp *t = (struct vb_tp *)e->ep.tp;
    uint32_t n = (uint32_t)e->main->nrails, first = e->lane + e->tries;

    if (!e->conn && e->lane) /* a lane without a connection is made at home or not at all */
        return &t->rails[e->lane % n];
    for (uint32_t i = 0; i < n; i++)
        if (!t->rails[(first + i) % n].down)
            return &t->rails[(first + i) % n];
    return &t->rails[first % n];
}

int bny_verbs_rail_others(const struct vb_ep *e, const struct vb_rail *rail)
{
    const struct vb_tp *t = (const struct vb_tp *)e->ep.tp;
    int n = 0;

    for (int i = 0; i < e->main->nrails; i++)
        n += &t->rails[i] != rail && !t->rails[i].down;
    return n;
}

/* ---- back home ---- */

struct vb_rail *bny_verbs_home(const struct vb_ep *e)
{
    return &((struct vb_tp *)e->ep.tp)->rails[e->lane % (uint32_t)e->main->nrails];
}

/* A path that lets a lane come home but no more must not be tried again and again. */
static void wait_longer(struct vb_tp *t)
{
    t->home_wait = !t->home_wait                    ? HOME_NS
                   : 2 * t->home_wait < HOME_MAX_NS ? 2 * t->home_wait
                                                    : HOME_MAX_NS;
}

static int is_away(const struct vb_ep *e)
{
    return e && !e->main->left && !e->main->down && e->conn && !e->conn->dead &&
           e->conn->rail != bny_verbs_home(e) && bny_verbs_home(e)->down != 2;
}

/* The lower rank tries, one lane of a peer after another. Meanwhile the existing queue pair is
 * used. */
void bny_verbs_go_home(struct vb_tp *t)
{
    int away = 0;

    if (!t->home_ns || !bny_deadline_passed(t->home_ns))
        return;
    for (int r = t->tp.rank + 1; r < t->tp.nranks; r++) {
        struct vb_ep *e = t->eps[r];
        int asked = 0;

        for (uint32_t k = 0; e && k < e->nlanes && !asked; k++) {
            struct vb_ep *l = k ? e->lanes[k] : e;

            if (!is_away(l))
                continue;
            away = 1;
            asked = l->trial != NULL;
            if (asked || l->state != VB_OPEN || e->gone || e->farewell_sent ||
                bny_verbs_home(l)->down)
                continue;
            l->tries = 0;
            bny_verbs_ask(l);
            asked = 1;
        }
    }
    if (away && !t->came_home)
        wait_longer(t);
    t->came_home = 0;
    t->home_ns = away ? bny_now_ns() + t->home_wait : 0;
}

void bny_verbs_has_moved(struct vb_lane *c)
{
    struct vb_tp *t = c->t;

    t->came_home = c->rail == bny_verbs_home(c->e);
    if (t->came_home) {
        bny_verbs_unpark(t->fn, c->rail);
        t->home_ns = bny_now_ns(); /* for the next lane */
    } else if (!t->home_ns) {
        wait_longer(t);
        t->home_ns = bny_now_ns() + t->home_wait;
    }
}

static void rail_down_for(struct vb_ep *e, const struct vb_rail *rail, const char *why)
{
    struct vb_lane *c = e->conn;

    if (!c || c->dead || c->rail != rail)
        return;
    if (bny_verbs_rail_others(e, rail))
        bny_verbs_lost(c, "is not reached any more: %s", why);
    else if (rail->down == 2)
        bny_verbs_down(e, "is not reached any more: %s", why);
}

void bny_verbs_rail_down(struct vb_tp *t, struct vb_rail *rail, int how, const char *why)
{
    if (rail->down >= how)
        return;
    rail->down = how;
    for (int r = 0; r < t->tp.nranks; r++) {
        struct vb_ep *e = t->eps[r];

        if (!e || e->state == VB_CLOSED)
            continue;
        rail_down_for(e, rail, why);
        for (uint32_t k = 1; k < e->nlanes; k++)
            if (e->lanes[k])
                rail_down_for(e->lanes[k], rail, why);
    }
}

/* ---- asynchronous events ---- */

static struct vb_lane *lane_of(const struct vb_ep *e, const struct ibv_qp *qp)
{
    struct vb_lane *c = e ? e->conn : NULL;

    return c && !c->dead && c->id && c->has_qp && c->id->qp == qp ? c : NULL;
}

/* The device reports a queue pair in error. Its completions have the cause, but there are none
 * if nothing is sent or flushed (a shared receive queue, an idle sender). */
static void queue_pair_failed(struct vb_tp *t, const struct ibv_qp *qp, const char *how)
{
    for (int r = 0; r < t->tp.nranks; r++) {
        struct vb_ep *e = t->eps[r];

        for (uint32_t k = 0; e && k < e->nlanes; k++) {
            struct vb_lane *c = lane_of(k ? e->lanes[k] : e, qp);

            if (!c)
                continue;
            if (c->cq) /* earlier input, possibly a farewell */
                bny_verbs_cq_sweep(c->cq);
            if (!bny_verbs_cq_has(c))
                bny_verbs_lost(c, "has a queue pair in error (%s) on device %s; see dmesg", how,
                               c->rail->at);
            return;
        }
    }
}

/* Completions report most errors of a queue pair; a new LID or GID breaks the connections that
 * use it, which are remade from the addresses. Rails may be two ports of one device: an event
 * belongs to the rail of its port. */
static void rail_handle(struct vb_tp *t, struct vb_rail *rail, enum ibv_event_type type,
                        int port)
{
    char why[128];

    switch (type) {
    case IBV_EVENT_PORT_ERR:
        snprintf(why, sizeof why, "port %d of device %s is down", port, rail->device);
        bny_warn("verbs: %s", why);
        bny_verbs_rail_down(t, rail, 1, why);
        break;
    case IBV_EVENT_PORT_ACTIVE:
        bny_info("verbs: port %d of device %s is up", port, rail->device);
        rail->down &= 2;
        bny_verbs_port_renew(t, rail, rail->listener->port_num);
        if (t->home_ns) {
            t->home_wait = HOME_NS;
            t->home_ns = bny_now_ns() + HOME_NS;
        }
        break;
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
        bny_info("verbs: port %d of device %s has another LID, GID or key; connections that "
                 "this breaks are made anew",
                 port, rail->device);
        bny_verbs_port_renew(t, rail, rail->listener->port_num);
        break;
    case IBV_EVENT_DEVICE_FATAL:
        snprintf(why, sizeof why, "device %s has failed; see dmesg", rail->device);
        for (int i = 0; i < t->nrails; i++)
            if (t->rails[i].ctx == rail->ctx)
                bny_verbs_rail_down(t, &t->rails[i], 2, why);
        break;
    case IBV_EVENT_CQ_ERR:
        snprintf(why, sizeof why, "a completion queue of device %s has failed; see dmesg",
                 rail->device);
        bny_verbs_rail_down(t, rail, 2, why);
        break;
    case IBV_EVENT_SRQ_ERR:
        snprintf(why, sizeof why, "the shared receive queue of device %s has failed; see dmesg",
                 rail->device);
        bny_verbs_rail_down(t, rail, 2, why);
        break;
    default: break;
    }
}

static const char *event_text(enum ibv_event_type type)
{
    return type == IBV_EVENT_QP_FATAL     ? "fatal"
           : type == IBV_EVENT_QP_REQ_ERR ? "an invalid request"
                                          : "access that is not allowed";
}

/* NULL: not ours. The device may serve others in this process, too. */
static struct vb_rail *rail_of_event(struct vb_tp *t, struct vb_rail *rail,
                                     const struct ibv_async_event *ev)
{
    int of_srq = ev->event_type == IBV_EVENT_SRQ_ERR,
        of_cq = ev->event_type == IBV_EVENT_CQ_ERR;

    for (int i = 0; i < t->nrails; i++)
        if (t->rails[i].ctx == rail->ctx &&
            (of_srq  ? t->rails[i].shared.srq == ev->element.srq
             : of_cq ? bny_verbs_cq_is_of(&t->rails[i], ev->element.cq)
                     : t->rails[i].listener->port_num == ev->element.port_num))
            return &t->rails[i];
    return of_srq || of_cq ? NULL : rail;
}

void bny_verbs_async(struct vb_tp *t)
{
    struct ibv_async_event ev;

    for (int i = 0; i < t->nrails; i++)
        while (t->fn->ibv_get_async_event(t->rails[i].ctx, &ev) == 0) {
            enum ibv_event_type type = ev.event_type;
            struct vb_rail *rail = rail_of_event(t, &t->rails[i], &ev);
            int port = ev.element.port_num;

            if (type == IBV_EVENT_QP_LAST_WQE_REACHED) /* before it may be destroyed */
                bny_verbs_srq_last(t, ev.element.qp);
            t->fn->ibv_ack_async_event(&ev);
            if (type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
                type == IBV_EVENT_QP_ACCESS_ERR) /* its end waits for the acknowledgement */
                queue_pair_failed(t, ev.element.qp, event_text(type));
            else if (rail)
                rail_handle(t, rail, type, port);
        }
}
