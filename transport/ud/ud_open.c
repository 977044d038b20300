/* SPDX-License-Identifier: BSD-3-Clause */
/* Device, queue pair and memory of transport ud. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "transport/datagram/packet.h"
#include "transport/ud/ud.h"

/* ---- which device ---- */

/* As for verbs, but a single device. */
static int ud_open_choose(struct bny_dgram_port *p, const char *ifname)
{
    int named = ifname[0] && ifname[0] != '^', n = 0, rc;
    char near[1][VB_NEAR_NAME];

    if (named && strchr(ifname, ','))
        return bny_fail(BANYAN_EINVAL,
                        "rank %d: transport ud takes one device a rank, BANYAN_IFNAME=%.60s "
                        "names several",
                        p->vt.tp.rank, ifname);
    if (!named && bny_param_int("BANYAN_VERBS=devices") > 0)
        n = bny_verbs_port_near(&p->vt, ifname, near, 1);
    rc = bny_verbs_port_find(&p->vt, &p->rail, n ? near[0] : ifname, &p->number);
    return rc == VB_NO_PORT
               ? bny_fail(BANYAN_ENOTSUP,
                          "rank %d: transport ud: no RDMA device whose port is up belongs to "
                          "\"%.60s\"; see ibv_devices, rdma link and BANYAN_IFNAME; soft-RoCE: "
                          "rdma link add rxe0 type rxe netdev eth0",
                          p->vt.tp.rank, ifname)
               : rc;
}

static int find_device(struct bny_dgram_port *p, const struct bny_dgram_conf *conf)
{
    int rc;

    p->fn = bny_verbs_fn();
    if (!p->fn)
        return -BANYAN_ENOTSUP;
    if (!p->fn->query_gid_table)
        return bny_fail(BANYAN_ENOTSUP, "rank %d: transport ud needs rdma-core 33: update it",
                        conf->rank);
    p->vt.tp.rank = conf->rank;
    p->vt.tp.nranks = conf->nranks;
    p->vt.fn = p->fn;
    p->vt.datagrams = 1;
    p->vt.path = bny_verbs_path_settings();
    rc = bny_verbs_tcp_cm_open(&p->vt);
    return rc ? rc : ud_open_choose(p, conf->ifname);
}

/* ---- what it can do ---- */

static uint32_t ud_open_least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Frame size and number of frames, limited by pinnable memory and the device. */
static int ud_open_measure(struct bny_dgram_port *p, const struct bny_dgram_conf *conf)
{
    struct ibv_port_attr a = { .state = IBV_PORT_NOP };
    struct ibv_device_attr d = { .max_qp_wr = 0 };
    uint64_t memory = (uint64_t)bny_param_int("BANYAN_UD=memory"), places;
    uint32_t sends, recvs;

    if (p->fn->ibv_query_device(p->rail.ctx, &d) != 0 ||
        p->fn->ibv_query_port(p->rail.ctx, (uint8_t)p->number,
                              (struct _compat_ibv_port_attr *)&a) != 0)
        return bny_fail_errno("rank %d: device %s does not report its attributes",
                              p->vt.tp.rank, p->rail.at);
    p->srd = p->fn->efa_query && p->fn->efa_query(p->rail.ctx, &p->efa) == 0;
    p->payload = bny_verbs_mtu_bytes(a.active_mtu);
    if (p->srd) /* not limited to InfiniBand's sizes */
        p->payload = a.max_msg_sz;
    p->payload = ud_open_least(p->payload, conf->frame_max - BNY_DGRAM_ETH);
    sends =
        ud_open_least(p->srd ? p->efa.max_send : (uint32_t)d.max_qp_wr, (uint32_t)d.max_cqe);
    recvs =
        ud_open_least(p->srd ? p->efa.max_recv : (uint32_t)d.max_qp_wr, (uint32_t)d.max_cqe);
    p->sges = ud_open_least(2, p->srd ? p->efa.max_send_sge : (uint32_t)d.max_sge);
    p->stride = (UD_FRAME_AT + p->payload + 63) & ~63u;
    places = memory / p->stride;
    p->nouts = ud_open_least(ud_open_least(UD_SENDS, sends), (uint32_t)(places / 4));
    p->nplaces = (uint32_t)(places - p->nouts < recvs ? places - p->nouts : recvs);
    if (p->payload < 256 || p->nouts < BNY_DGRAM_BURST || p->nplaces < UD_LEAST || !p->sges)
        return bny_fail(BANYAN_ENOTSUP,
                        "rank %d: device %s has datagrams of %u bytes, %u requests to send and "
                        "%u to receive: transport ud needs 256 bytes, %u and %u; "
                        "BANYAN_UD=memory=%llu bounds them, too",
                        p->vt.tp.rank, p->rail.at, p->payload, p->nouts, p->nplaces,
                        BNY_DGRAM_BURST, UD_LEAST, (unsigned long long)memory);
    return 0;
}

/* ---- memory ---- */

/* 0, or errno. */
static int reg(struct bny_dgram_port *p, void *at, size_t bytes, int access, struct ibv_mr **mr)
{
    errno = 0;
    *mr = p->fn->ibv_reg_mr(p->rail.pd, at, bytes, access);
    return *mr ? 0 : errno ? errno : EIO;
}

/* A child process does not inherit it. */
static int make_pool(struct bny_dgram_port *p)
{
    int err;

    p->pool_bytes = (p->nouts + p->nplaces) * p->stride;
    p->pool =
        mmap(NULL, p->pool_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p->pool == MAP_FAILED)
        p->pool = NULL;
    p->outs = calloc(p->nouts, sizeof *p->outs);
    p->places = calloc(p->nplaces, sizeof *p->places);
    p->ways = calloc((size_t)p->nranks, sizeof *p->ways);
    if (!p->pool || !p->outs || !p->places || !p->ways)
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for transport ud", p->vt.tp.rank);
    madvise(p->pool, p->pool_bytes, MADV_DONTFORK);
    err = reg(p, p->pool, p->pool_bytes, IBV_ACCESS_LOCAL_WRITE, &p->mr);
    if (err)
        return bny_fail(BANYAN_ENOMEM,
                        "rank %d: device %s does not register %zu bytes: %s; ulimit -l "
                        "unlimited, or a smaller memory of BANYAN_UD",
                        p->vt.tp.rank, p->rail.at, p->pool_bytes, strerror(err));
    p->idle = UD_NONE;
    for (uint32_t i = p->nplaces; i-- > 0;) {
        p->places[i].port = p;
        bny_ud_give(p, i);
    }
    return 0;
}

int bny_ud_map(struct bny_dgram_port *p, void *mem, size_t bytes, char *text)
{
    struct ud_mem *m = malloc(sizeof *m);
    int err = m ? 0 : ENOMEM;

    if (m)
        err = reg(p, mem, bytes, 0, &m->mr);
    if (err) {
        free(m);
        snprintf(text, BNY_DGRAM_TEXT, "%s; ulimit -l unlimited", strerror(err));
        return -1;
    }
    m->at = mem;
    m->bytes = bytes;
    m->next = p->mems;
    p->mems = m;
    return 0;
}

void bny_ud_unmap(struct bny_dgram_port *p, void *mem, size_t bytes)
{
    for (struct ud_mem **at = &p->mems; *at; at = &(*at)->next) {
        struct ud_mem *m = *at;

        if (m->at != mem || m->bytes != bytes)
            continue;
        *at = m->next;
        p->latest = NULL;
        p->fn->ibv_dereg_mr(m->mr);
        free(m);
        return;
    }
}

/* ---- the queue pair ---- */

/* From RESET to ready to send. Returns 0, or errno. */
static int make_ready(struct bny_dgram_port *p)
{
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT,
                             .pkey_index = p->rail.port.pkey_index,
                             .port_num = (uint8_t)p->number,
                             .qkey = p->addr.qkey };
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    int err = p->fn->ibv_modify_qp(
        p->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);

    if (err == 0) {
        a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR };
        err = p->fn->ibv_modify_qp(p->qp, &a, IBV_QP_STATE);
    }
    if (err == 0) {
        a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS,
                                  .sq_psn = randombytes_uniform(1u << 24),
                                  .rnr_retry = 7 };
        if (p->srd && p->efa.retries_rnr)
            mask |= IBV_QP_RNR_RETRY;
        err = p->fn->ibv_modify_qp(p->qp, &a, mask);
    }
    return err < 0 ? errno : err;
}

static int make_qp(struct bny_dgram_port *p)
{
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UD };
    const char *what = "completion queues";
    int err = 0;

    p->channel = p->fn->ibv_create_comp_channel(p->rail.ctx);
    if (p->channel && bny_verbs_nonblocking(p->channel->fd) != 0) {
        p->fn->ibv_destroy_comp_channel(p->channel);
        p->channel = NULL;
    }
    p->scq = p->fn->ibv_create_cq(p->rail.ctx, (int)p->nouts, NULL, NULL, 0);
    p->rcq = p->fn->ibv_create_cq(p->rail.ctx, (int)p->nplaces, NULL, p->channel, 0);
    if (p->scq && p->rcq) {
        what = p->srd ? "an SRD queue pair" : "a UD queue pair";
        init.send_cq = p->scq;
        init.recv_cq = p->rcq;
        init.cap = (struct ibv_qp_cap){ .max_send_wr = p->nouts,
                                        .max_recv_wr = p->nplaces,
                                        .max_send_sge = p->sges,
                                        .max_recv_sge = 1 };
        p->qp = p->srd ? p->fn->efa_create_qp(p->rail.pd, &init)
                       : p->fn->ibv_create_qp(p->rail.pd, &init);
    }
    if (p->qp) {
        what = "a queue pair that is ready";
        randombytes_buf(&p->addr.qkey, sizeof p->addr.qkey);
        p->addr.qkey &= 0x7fffffff; /* the upper bit is for privileged ones */
        err = make_ready(p);
    }
    if (p->qp && !err)
        return 0;
    return bny_fail(BANYAN_ENOTSUP, "rank %d: device %s does not make %s: %s; see dmesg",
                    p->vt.tp.rank, p->rail.at, what, strerror(err ? err : errno));
}

static void announce(struct bny_dgram_port *p)
{
    struct ud_addr *a = &p->addr;

    memcpy(a->magic, "ud01", 4);
    a->srd = (uint8_t)p->srd;
    a->ngids = (uint8_t)p->rail.port.ngids;
    a->lid = p->rail.port.lid;
    a->lmc = p->rail.port.lmc;
    a->pkey = p->rail.port.pkey;
    a->qpn = p->qp->qp_num;
    memcpy(a->gids, p->rail.port.gids, sizeof a->gids);
    for (int i = 0; i < VB_GIDS; i++)
        a->gids[i].ifindex = 0;
}

static int open_all(struct bny_dgram_port *p, const struct bny_dgram_conf *conf)
{
    int rc = find_device(p, conf);

    if (rc == 0)
        rc = ud_open_measure(p, conf);
    if (rc)
        return rc;
    if (p->rail.ctx->async_fd >= 0)
        bny_verbs_nonblocking(p->rail.ctx->async_fd);
    p->rail.pd = p->fn->ibv_alloc_pd(p->rail.ctx);
    if (!p->rail.pd)
        return bny_fail_errno("rank %d: device %s makes no protection domain", p->vt.tp.rank,
                              p->rail.at);
    rc = make_pool(p);
    if (rc == 0)
        rc = make_qp(p);
    if (rc)
        return rc;
    announce(p);
    bny_ud_post(p);
    return p->posted ? 0
                     : bny_fail(BANYAN_ENOTSUP, "rank %d: device %s takes no receive requests",
                                p->vt.tp.rank, p->rail.at);
}

int bny_ud_open(const struct bny_dgram_conf *conf, struct bny_dgram_port **out,
                struct bny_dgram_info *info, char *text)
{
    struct bny_dgram_port *p = calloc(1, sizeof *p);

    *out = NULL;
    if (!p) {
        snprintf(text, BNY_DGRAM_TEXT, "no memory for transport ud");
        return -1;
    }
    p->nranks = conf->nranks;
    if (open_all(p, conf) != 0) {
        snprintf(text, BNY_DGRAM_TEXT, "%s", banyan_last_error());
        bny_ud_close(p);
        return -1;
    }
    *info = (struct bny_dgram_info){ .caps = BNY_DGRAM_EXT_EAL |
                                             (p->sges > 1 ? BNY_DGRAM_GATHER : 0) |
                                             (p->srd ? BNY_DGRAM_UNORDERED : 0),
                                     .frame_max = BNY_DGRAM_ETH + p->payload,
                                     .queues = 1,
                                     .ring = p->nplaces,
                                     .pinned = p->pool_bytes };
    snprintf(info->driver, sizeof info->driver, "%s", p->srd ? "SRD" : "UD");
    snprintf(info->name, sizeof info->name, "%s", p->rail.at);
    snprintf(info->notes, sizeof info->notes,
             "%s queue pair %u, %u places to send and %u to receive", info->driver,
             p->qp->qp_num, p->nouts, p->nplaces);
    *out = p;
    return 0;
}

/* The last frames leave before the queue pair ends. */
static void ud_open_finish(struct bny_dgram_port *p)
{
    uint64_t until = bny_now_ns() + UD_FINISH_NS;

    while (p->out_tail != p->out_head && !p->broken && !p->dead && bny_now_ns() < until)
        bny_ud_reclaim(p);
}

void bny_ud_close(struct bny_dgram_port *p)
{
    const struct vb_fn *fn = p->fn;

    if (p->missed || p->copied || p->restarts)
        bny_info("ud: %llu frames were missed, %llu copied as places were lent; the queue pair "
                 "was restarted %llu times",
                 (unsigned long long)p->missed, (unsigned long long)p->copied,
                 (unsigned long long)p->restarts);
    if (p->qp) {
        ud_open_finish(p);
        fn->ibv_destroy_qp(p->qp);
    }
    for (uint32_t i = 0; p->outs && i < p->nouts; i++)
        bny_ud_out_done(p, i);
    bny_ud_ways_close(p);
    if (p->scq)
        fn->ibv_destroy_cq(p->scq);
    if (p->rcq) {
        bny_ud_disarm(p);
        fn->ibv_destroy_cq(p->rcq);
    }
    if (p->channel)
        fn->ibv_destroy_comp_channel(p->channel);
    while (p->mems)
        bny_ud_unmap(p, (void *)(uintptr_t)p->mems->at, p->mems->bytes);
    if (p->mr)
        fn->ibv_dereg_mr(p->mr);
    if (p->rail.pd)
        fn->ibv_dealloc_pd(p->rail.pd);
    if (p->vt.events)
        p->vt.fn->rdma_destroy_event_channel(p->vt.events);
    if (p->pool)
        munmap(p->pool, p->pool_bytes);
    free(p->outs);
    free(p->places);
    free(p);
}

/* Fails for all peers (bny_ud_way_state). */
static void ud_open_give_up(struct bny_dgram_port *p, const char *why)
{
    if (!p->dead)
        bny_warn("rank %d: device %s: %s: nothing goes over it any more; see dmesg",
                 p->vt.tp.rank, p->rail.at, why);
    p->dead = 1;
}

static int is_active(struct bny_dgram_port *p)
{
    struct ibv_port_attr a = { .state = IBV_PORT_NOP };

    return p->fn->ibv_query_port(p->rail.ctx, (uint8_t)p->number,
                                 (struct _compat_ibv_port_attr *)&a) == 0 &&
           a.state == IBV_PORT_ACTIVE;
}

/* Later completions of its earlier requests do not count. */
void bny_ud_restart(struct bny_dgram_port *p)
{
    struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
    struct ibv_wc wc[16];
    char why[128];
    int err = p->fn->ibv_modify_qp(p->qp, &reset, IBV_QP_STATE);

    if (err == 0)
        err = make_ready(p);
    while (ibv_poll_cq(p->scq, 16, wc) > 0 || ibv_poll_cq(p->rcq, 16, wc) > 0)
        continue;
    for (uint32_t i = p->out_tail; i != p->out_head; i++)
        bny_ud_out_done(p, i);
    p->out_tail = p->out_head;
    p->posted = 0;
    for (uint32_t i = 0; i < p->nplaces; i++)
        if (p->places[i].is_posted)
            bny_ud_give(p, i);
    p->turn++;
    p->broken = 0;
    p->restarts++;
    if (err) {
        snprintf(why, sizeof why, "its queue pair does not restart (%s)",
                 strerror(err < 0 ? errno : err));
        ud_open_give_up(p, why);
    } else {
        bny_ud_post(p);
    }
}

/* While the port is down, or its address has no route yet, each frame breaks the queue pair. */
int bny_ud_ready(struct bny_dgram_port *p)
{
    uint64_t now;
    char why[128];

    if (!p->broken || p->dead)
        return !p->dead;
    now = bny_now_ns();
    if (p->futile && now - p->restarted_ns < UD_AGAIN_NS)
        return 0;
    p->restarted_ns = now;
    if (!is_active(p)) {
        p->futile = 1;
        p->futile_ns = now;
        return 0;
    }
    if (!p->futile++)
        p->futile_ns = now;
    if (now - p->futile_ns > UD_FUTILE_NS) {
        bny_snprintf(why, sizeof why, "its queue pair broke %d times in %.0f s", p->futile,
                     (double)(now - p->futile_ns) / 1e9);
        ud_open_give_up(p, why);
        return 0;
    }
    bny_ud_restart(p);
    return !p->broken && !p->dead;
}

/* Asynchronous events of the device, which others in this process may share. */
static void ud_open_hear(struct bny_dgram_port *p)
{
    struct ibv_async_event ev;

    while (p->fn->ibv_get_async_event(p->rail.ctx, &ev) == 0) {
        enum ibv_event_type type = ev.event_type;
        int is_our_qp = ev.element.qp == p->qp, port = ev.element.port_num,
            is_our_cq = ev.element.cq == p->scq || ev.element.cq == p->rcq;

        p->fn->ibv_ack_async_event(&ev);
        switch (type) {
        case IBV_EVENT_DEVICE_FATAL: ud_open_give_up(p, "it has failed"); break;
        case IBV_EVENT_CQ_ERR:
            if (is_our_cq)
                ud_open_give_up(p, "a completion queue has failed");
            break;
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR: p->broken |= is_our_qp; break;
        case IBV_EVENT_PORT_ACTIVE:
        case IBV_EVENT_LID_CHANGE:
        case IBV_EVENT_GID_CHANGE:
        case IBV_EVENT_PKEY_CHANGE: p->is_stale |= port == p->number; break;
        default: break;
        }
    }
    if (p->out_tail == p->out_head)
        bny_ud_ways_sweep(p);
    if (!p->is_stale)
        return;
    bny_info(
        "ud: port %d of device %s may have another LID, GID or key: address handles are remade",
        p->number, p->rail.device);
    bny_verbs_port_renew(&p->vt, &p->rail, p->number);
    bny_ud_ways_forget(p);
    p->is_stale = 0;
}

int bny_ud_link_up(struct bny_dgram_port *p)
{
    uint64_t now = bny_now_ns();

    if (p->dead)
        return 0;
    if (p->looked_ns && now - p->looked_ns < UD_LOOK_NS)
        return p->is_up;
    p->looked_ns = now;
    ud_open_hear(p);
    if (p->dead)
        return 0;
    p->is_up = is_active(p);
    return p->is_up;
}
