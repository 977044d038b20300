/* SPDX-License-Identifier: BSD-3-Clause */
/* A connection's memory, queue pair and end. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "transport/verbs/lane.h"

/* Memory other than slots: hellos, and notes for immediates. */
struct page {
    struct vb_hello hello_in, hello_out;
    struct vb_note notes_in[VB_RECVS], notes_out[VB_SENDS];
};

_Static_assert(sizeof(struct page) <= VB_LANE_BYTES, "documented");

struct vb_hello *bny_verbs_hello_in(const struct vb_lane *c)
{
    return &c->page->hello_in;
}

struct vb_hello *bny_verbs_hello_out(const struct vb_lane *c)
{
    return &c->page->hello_out;
}

struct vb_note *bny_verbs_notes_in(const struct vb_lane *c)
{
    return c->page->notes_in;
}

struct vb_note *bny_verbs_notes_out(const struct vb_lane *c)
{
    return c->page->notes_out;
}

/* ---- the end ---- */

static void unlink_half(struct vb_lane *c)
{
    for (struct vb_lane **p = &c->t->half; *p; p = &(*p)->next)
        if (*p == c) {
            *p = c->next;
            c->t->nhalf--;
            return;
        }
}

/* It is complete: c->e is known, or c is closed. */
void bny_verbs_made(struct vb_lane *c)
{
    if (!c->making)
        return;
    c->making = 0;
    c->t->joining--;
    if (!c->active)
        unlink_half(c);
    else if (c->e->trial == c)
        c->e->trial = NULL;
}

void bny_verbs_page_free(struct vb_lane *c)
{
    if (c->mr_page) {
        c->t->fn->ibv_dereg_mr(c->mr_page);
        bny_counter_add(&c->t->tp.pinned_bytes, -(uint64_t)sizeof *c->page);
    }
    c->mr_page = NULL;
    free(c->page);
    c->page = NULL;
}

static int owns_peer(const struct vb_lane *c)
{
    return c->peer && c->peer->first == c;
}

static void memory_free(struct vb_lane *c)
{
    if (owns_peer(c))
        bny_verbs_peer_free(c->peer);
    c->peer = NULL;
    free(c->sent);
    free(c->keys);
    free(c->stripe_bytes);
    free(c->stash);
    c->stash = NULL;
    c->sent = NULL;
    c->keys = NULL;
    c->stripe_bytes = NULL;
}

/* Long messages that have not begun end like others: with SENT. */
static void end_longs(struct vb_lane *c, struct vb_peer *p)
{
    while (p->longs_done != p->longs_queued) {
        const struct vb_long *l = &p->longs[p->longs_done++ % VB_WAITING];

        free(l->own);
        if (l->is_short)
            continue;
        c->sent[c->posted++ % VB_SENDS] = (struct vb_sent){ .cookie = l->cookie, .tells = 1 };
    }
}

void bny_verbs_conn_close(struct vb_lane *c)
{
    struct vb_tp *t = c->t;

    if (c->dead)
        return;
    c->dead = 1;
    bny_verbs_made(c);
    t->joining -= c->lost != 0;
    bny_verbs_lane_close(c);
    bny_verbs_page_free(c);
    if (owns_peer(c)) {
        bny_verbs_peer_deregister(c->peer, t->fn);
        end_longs(c, c->peer);
    } else {
        c->peer = NULL;
    }
    c->done = c->to_post = c->posted; /* nobody reads the memory any more */
    bny_verbs_copies_drop(c);
    if (!c->e || c->e->conn != c) /* it was never open: nothing is lent */
        memory_free(c);
    c->next = t->dead;
    t->dead = c;
}

void bny_verbs_conn_free(struct vb_lane *c)
{
    memory_free(c);
    free(c);
}

static void close_lane(struct vb_ep *e)
{
    if (e->trial)
        bny_verbs_conn_close(e->trial);
    if (e->conn)
        bny_verbs_conn_close(e->conn);
    e->state = VB_CLOSED;
    e->deadline_ns = 0;
    ((struct vb_tp *)e->ep.tp)->joining -= e->growing;
    e->growing = 0;
}

/* Continues without a lane that never opened. */
static void verbs_conn_give_up(struct vb_ep *e, const char *why)
{
    const struct vb_tp *t = (struct vb_tp *)e->ep.tp;

    if (e->state == VB_CLOSED)
        return;
    close_lane(e);
    if (e->main->state == VB_OPEN && !e->main->left && !e->main->gone)
        bny_warn("verbs: rank %d %s; going on without connection %u to it, over device %s",
                 e->ep.peer, why, e->lane + 1,
                 t->rails[e->lane % (uint32_t)e->main->nrails].device);
}

void bny_verbs_down(struct vb_ep *e, const char *fmt, ...)
{
    char why[sizeof e->reason];
    va_list ap;

    va_start(ap, fmt);
    bny_vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    if (e->lane && !e->conn) {
        verbs_conn_give_up(e, why);
        return;
    }
    e = e->main;
    if (e->down)
        return;
    for (uint32_t k = 1; k < e->nlanes; k++)
        if (e->lanes[k])
            close_lane(e->lanes[k]);
    e->lanes_open = 0;
    close_lane(e);
    if (e->left)
        return;
    memcpy(e->reason, why, sizeof why);
    e->down = 1;
}

void bny_verbs_deaf(struct vb_ep *e)
{
    bny_verbs_down(e, "is cut off: no memory is left here for its messages");
    if (e->main->down == 1)
        e->main->down = 2;
}

/* ---- resources ---- */

struct vb_lane *bny_verbs_conn_new(struct vb_tp *t, struct vb_ep *e, struct rdma_cm_id *id,
                                   int active)
{
    struct vb_lane *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->t = t;
    c->e = e;
    c->id = id;
    c->active = active;
    c->deadline_ns = bny_deadline_in(VB_JOIN_S);
    c->born_ns = bny_now_ns();
    c->making = 1;
    t->joining++;
    if (active) {
        e->trial = c;
    } else {
        c->next = t->half;
        t->half = c;
        t->nhalf++;
    }
    return c;
}

static double peer_mib(const struct vb_lane *c)
{
    return (double)bny_verbs_peer_bytes(&c->t->slab, 1) / (1 << 20);
}

static int fails(const struct vb_lane *c, const char *what)
{
    int err = errno;

    if (err != ENOMEM)
        return bny_fail(BANYAN_ESYSTEM, "device %s: %s fails: %s", c->rail->at, what,
                        strerror(err));
    return bny_fail(BANYAN_ENOMEM,
                    "device %s: %s fails: %s (each peer takes %.2f MiB of every device; raise "
                    "the limit of locked memory: ulimit -l unlimited, or set a lower "
                    "BANYAN_VERBS=memory on all ranks)",
                    c->rail->at, what, strerror(err), peer_mib(c));
}

static uint32_t sends(const struct vb_lane *c)
{
    return c->t->depth.requests * c->t->depth.sends + 1;
}

/* No queue pair: two causes that the device does not distinguish, unless its limits decide. */
static int no_qp(const struct vb_lane *c)
{
    struct ibv_device_attr a;
    int err = errno;

    if (err == ENOMEM && c->t->fn->ibv_query_device(c->rail->ctx, &a) == 0)
        return bny_fail(
            BANYAN_ENOMEM,
            "device %s: creating a queue pair fails: %s: it has %d for all processes "
            "(rdma resource show tells who has them; fewer ranks, or "
            "BANYAN_VERBS=qps=1), or raise the limit of locked memory (each peer "
            "takes %.2f MiB of every device): ulimit -l unlimited",
            c->rail->at, strerror(err), a.max_qp, peer_mib(c));
    errno = err;
    return fails(c, "creating a queue pair");
}

/* The same for its completion queue. */
static int no_cq(const struct vb_lane *c)
{
    uint32_t least = bny_verbs_cq_least(c);
    struct ibv_device_attr a;
    int err = errno;

    if (c->t->fn->ibv_query_device(c->rail->ctx, &a) == 0 && a.max_cqe > 0 &&
        (uint32_t)a.max_cqe < least)
        return bny_fail(
            BANYAN_ENOTSUP,
            "device %s: a completion queue needs room for %u entries, the device has "
            "%d (max_cqe of ibv_devinfo -v): use another device (BANYAN_IFNAME), or "
            "BANYAN_TRANSPORT=tcp",
            c->rail->at, least, a.max_cqe);
    errno = err;
    return fails(c, "creating a completion queue");
}

/* Names the limit of the device that refused a queue pair; 0: none did. */
static int too_small(const struct vb_lane *c)
{
    uint32_t recvs = c->t->depth.recvs + 1, most = sends(c) > recvs ? sends(c) : recvs;
    struct ibv_device_attr a;
    int err = errno;

    if (c->t->fn->ibv_query_device(c->rail->ctx, &a) == 0) {
        if (a.max_qp_wr > 0 && (uint32_t)a.max_qp_wr < most)
            return bny_fail(BANYAN_ENOTSUP,
                            "device %s: a queue pair needs room for %u requests, the device "
                            "has %d (max_qp_wr of ibv_devinfo -v): use another device "
                            "(BANYAN_IFNAME), or BANYAN_TRANSPORT=tcp",
                            c->rail->at, most, a.max_qp_wr);
    }
    errno = err;
    return 0;
}

static int make_qp(struct vb_lane *c)
{
    static const uint32_t sizes[] = { VB_INLINE, 128, 64, 0 };
    int rc;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct ibv_qp_init_attr a = {
            .send_cq = bny_verbs_cq_of(c),
            .recv_cq = bny_verbs_cq_of(c),
            .qp_type = IBV_QPT_RC,
            .srq = c->rail->shared.srq,
            .cap = { .max_send_wr = sends(c),
                     .max_recv_wr = c->rail->shared.srq ? 0 : c->t->depth.recvs + 1,
                     .max_send_sge = c->t->depth.sges,
                     .max_recv_sge = 1,
                     .max_inline_data = sizes[i] }
        };

        if (c->t->fn->rdma_create_qp(c->id, c->rail->pd, &a) == 0) {
            c->has_qp = 1;
            bny_verbs_cq_begin(c);
            c->inline_max = a.cap.max_inline_data;
            return 0;
        }
    }
    rc = too_small(c);
    return rc ? rc : no_qp(c);
}

/* Memory that outlives queue pairs. */
static int make_rings(struct vb_lane *c, int further)
{
    c->sent = calloc(VB_SENDS, sizeof *c->sent);
    if (c->t->nrails > 1)
        c->keys = calloc(VB_SENDS, sizeof *c->keys);
    if (further)
        c->stripe_bytes = calloc(VB_RECVS, sizeof *c->stripe_bytes);
    else
        c->peer = bny_verbs_peer_new(c);
    if (c->sent && (c->keys || c->t->nrails == 1) &&
        (further ? c->stripe_bytes != NULL : c->peer != NULL))
        return 0;
    return bny_fail(BANYAN_ENOMEM, "no memory for the slabs of a connection");
}

/* Makes slab and rings (unless the connection has them), completion queue, queue pair, and
 * receive requests: the hello's, then those for immediates. */
int bny_verbs_conn_prepare(struct vb_lane *c, struct vb_peer *p, int resumes)
{
    struct vb_tp *t = c->t;
    struct ibv_sge sge;
    struct ibv_recv_wr wr = { .wr_id = VB_WR_HELLO, .sg_list = &sge, .num_sge = 1 }, *bad;
    int rc = 0;

    if (c->id->verbs != c->rail->ctx)
        return bny_fail(BANYAN_ENOTSUP, "the route to it goes over another device than %s",
                        c->rail->at);
    c->peer = p;
    if (!resumes)
        rc = make_rings(c, p != NULL);
    if (rc)
        return rc;
    if (bny_verbs_peer_register(c->peer, t->fn, c->rail) != 0)
        return fails(c, "registering memory");
    c->notify = t->notify;
    c->page = calloc(1, sizeof *c->page);
    if (!c->page)
        return bny_fail(BANYAN_ENOMEM, "no memory for a connection");
    c->mr_page =
        t->fn->ibv_reg_mr(c->rail->pd, c->page, sizeof *c->page, IBV_ACCESS_LOCAL_WRITE);
    if (!c->mr_page)
        return fails(c, "registering memory");
    bny_counter_add(&t->tp.pinned_bytes, sizeof *c->page);
    if (bny_verbs_cq_join(c) != 0)
        return no_cq(c);
    rc = make_qp(c);
    if (rc)
        return rc;
    if (c->rail->shared.srq) /* the requester sends a hello, and nothing more before our answer:
                                verbs_join.c */
        return bny_verbs_srq_share(c, c->active ? t->depth.recvs + 1 : 1);
    sge = (struct ibv_sge){ .addr = (uintptr_t)bny_verbs_hello_in(c),
                            .length = sizeof(struct vb_hello),
                            .lkey = c->mr_page->lkey };
    rc = ibv_post_recv(c->id->qp, &wr, &bad);
    if (rc == 0)
        rc = bny_verbs_post_recvs(c, t->depth.recvs);
    errno = rc;
    return rc ? fails(c, "posting receive requests") : 0;
}
