/* SPDX-License-Identifier: BSD-3-Clause */
/* How two ranks come to share a queue pair. rdma_cm finds device, path, MTU and packet numbers; both ends prove that they
 * know the job's secret before either learns where it may write.
 *
 * R: the request (ranks, nonce of the asking rank); N: nonce of the accepting rank; k: secret; m: HMAC cut to 16 bytes
 *   request R      acceptance N, m(k, 'S' R N)      hello m(k, 'C' R N) + slab      hello m(k, 'P' R N) + slab
 *
 * One connection serves both directions. When both ranks ask at once, the lower one's request stands: it turns the
 * other's away, and the other waits for it. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/param.h"
#include "transport/verbs/verbs.h"

#define RESOLVE_MS  2000
#define TIMEOUT_EXP 18 /* 4.096 us * 2^18 = 1.07 s before a packet is sent again */
#define RETRIES     6  /* never 7: some devices take it for "for ever" */
#define SLAB_MAPPED (2 * (size_t)VB_SLAB_BYTES + 2 * sizeof(struct vb_hello))

/* First byte of a rejection's private data. */
enum { TURNED_AWAY = 1 /* both asked */, NO_MEMORY, NOT_ABLE };

/* ---- small things ------------------------------------------------------------------------ */

static void proof(const struct vb_conn *c, char role, uint8_t out[16])
{
    crypto_auth_hmacsha512256_state st;
    uint8_t full[32];

    crypto_auth_hmacsha512256_init(&st, c->t->secret, sizeof c->t->secret);
    crypto_auth_hmacsha512256_update(&st, (const uint8_t *)&role, 1);
    crypto_auth_hmacsha512256_update(&st, (const uint8_t *)&c->request, sizeof c->request);
    crypto_auth_hmacsha512256_update(&st, c->nonce, sizeof c->nonce);
    crypto_auth_hmacsha512256_final(&st, full);
    memcpy(out, full, 16);
}

struct vb_ep *bny_verbs_ep(struct vb_tp *t, int peer)
{
    struct vb_ep *e = t->eps[peer];

    if (e)
        return e;
    e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->ep = (struct bny_ep){ .tp = &t->tp,
                             .ops = t->tp.ops,
                             .peer = peer,
                             .eager_max = VB_EAGER_MAX,
                             .slot_max = VB_SLOT_MAX,
                             .zcopy_min = VB_ZCOPY_MIN };
    t->eps[peer] = e;
    return e;
}

/* ---- the end ------------------------------------------------------------------------------ */

static void unlink_half(struct vb_conn *c)
{
    for (struct vb_conn **p = &c->t->half; *p; p = &(*p)->next)
        if (*p == c) {
            *p = c->next;
            return;
        }
}

void bny_verbs_conn_close(struct vb_conn *c)
{
    struct vb_tp *t = c->t;

    if (c->dead)
        return;
    c->dead = 1;
    if (!c->e)
        unlink_half(c);
    if (!c->e || c->e->state != VB_OPEN)
        t->joining--;
    if (c->established)
        t->fn->rdma_disconnect(c->id);
    if (c->has_qp)
        t->fn->rdma_destroy_qp(c->id);
    if (c->cq) {
        if (c->events)
            t->fn->ibv_ack_cq_events(c->cq, c->events);
        t->fn->ibv_destroy_cq(c->cq);
    }
    if (c->id)
        t->fn->rdma_destroy_id(c->id);
    if (c->mr_in)
        t->fn->ibv_dereg_mr(c->mr_in);
    if (c->mr_out)
        t->fn->ibv_dereg_mr(c->mr_out);
    while (c->longs_done != c->longs_queued)
        c->sent[c->posted++ % VB_SENDS] =
            (struct vb_sent){ c->longs[c->longs_done++ % VB_LONGS].cookie, 1 };
    c->done = c->posted; /* nobody reads the memory any more */
    c->next = t->dead;
    t->dead = c;
}

void bny_verbs_conn_free(struct vb_conn *c)
{
    if (c->slab)
        munmap(c->slab, SLAB_MAPPED);
    free(c->sent);
    free(c);
}

void bny_verbs_down(struct vb_ep *e, const char *fmt, ...)
{
    va_list ap;

    if (e->down)
        return;
    if (e->conn)
        bny_verbs_conn_close(e->conn);
    e->state = VB_CLOSED;
    if (e->left)
        return;
    va_start(ap, fmt);
    vsnprintf(e->reason, sizeof e->reason, fmt, ap);
    va_end(ap);
    e->down = 1;
}

/* ---- resources of a connection ----------------------------------------------------------- */

static struct vb_conn *conn_new(struct vb_tp *t, struct vb_ep *e, struct rdma_cm_id *id, int active)
{
    struct vb_conn *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->t = t;
    c->e = e;
    c->id = id;
    c->active = active;
    c->deadline_ns = bny_deadline_in(VB_JOIN_S);
    t->joining++;
    return c;
}

static int fails(const struct vb_conn *c, const char *what)
{
    int err = errno;

    return bny_fail(err == ENOMEM ? BANYAN_ENOMEM : BANYAN_ESYSTEM, "device %s: %s fails: %s%s", c->t->device, what,
                    strerror(err),
                    err == ENOMEM ? " (each connection registers 6.3 MiB; raise the limit of locked memory: "
                                    "ulimit -l unlimited)" : "");
}

static int make_qp(struct vb_conn *c)
{
    static const uint32_t sizes[] = { VB_INLINE, 128, 64, 0 };

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct ibv_qp_init_attr a = { .send_cq = c->cq, .recv_cq = c->cq, .qp_type = IBV_QPT_RC,
                                      .cap = { .max_send_wr = VB_SENDS, .max_recv_wr = VB_RECVS + 1,
                                               .max_send_sge = 2, .max_recv_sge = 1,
                                               .max_inline_data = sizes[i] } };

        if (c->t->fn->rdma_create_qp(c->id, c->t->pd, &a) == 0) {
            c->has_qp = 1;
            c->inline_max = a.cap.max_inline_data;
            return 0;
        }
    }
    return fails(c, "creating a queue pair");
}

/* Slab, completion queue, queue pair, receive requests: the hello's, then those of immediates. */
static int conn_prepare(struct vb_conn *c)
{
    struct vb_tp *t = c->t;
    char *hello;
    struct ibv_sge sge;
    struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

    if (c->id->verbs != t->ctx)
        return bny_fail(BANYAN_ENOTSUP, "the way to it goes over another device than %s", t->device);
    c->sent = calloc(VB_SENDS, sizeof *c->sent);
    c->slab = mmap(NULL, SLAB_MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (c->slab == MAP_FAILED)
        c->slab = NULL;
    if (!c->sent || !c->slab)
        return bny_fail(BANYAN_ENOMEM, "no memory for the slabs of a connection");
    c->mr_in = t->fn->ibv_reg_mr(t->pd, c->slab, VB_SLAB_BYTES,
                                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    c->mr_out = c->mr_in ? t->fn->ibv_reg_mr(t->pd, c->slab + VB_SLAB_BYTES,
                                             SLAB_MAPPED - VB_SLAB_BYTES, IBV_ACCESS_LOCAL_WRITE)
                         : NULL;
    if (!c->mr_out)
        return fails(c, "registering memory");
    c->cq = t->fn->ibv_create_cq(t->ctx, (int)(VB_SENDS + VB_RECVS + 1), c, t->channel, 0);
    if (!c->cq)
        return fails(c, "creating a completion queue");
    if (make_qp(c) != 0)
        return -BANYAN_ESYSTEM;
    hello = c->slab + 2 * (size_t)VB_SLAB_BYTES;
    sge = (struct ibv_sge){ .addr = (uintptr_t)hello, .length = sizeof(struct vb_hello),
                            .lkey = c->mr_out->lkey };
    if (ibv_post_recv(c->id->qp, &wr, &bad) != 0 || bny_verbs_post_recvs(c, VB_RECVS) != 0)
        return fails(c, "posting receive requests");
    return 0;
}

static struct rdma_conn_param param_of(const void *data, size_t len)
{
    return (struct rdma_conn_param){ .private_data = data, .private_data_len = (uint8_t)len,
                                     .responder_resources = 1, .initiator_depth = 1,
                                     .flow_control = 1, .retry_count = RETRIES,
                                     .rnr_retry_count = (uint8_t)bny_param_int("BANYAN_VERBS_RNR") };
}

/* ---- asking ------------------------------------------------------------------------------- */

static void ask_failed(struct vb_conn *c, const char *what)
{
    struct vb_ep *e = c->e;

    if (e->conn != c)
        return;
    bny_verbs_conn_close(c);
    e->conn = NULL;
    if (!bny_deadline_passed(e->deadline_ns)) {
        e->state = VB_IDLE; /* asked again when somebody sends */
        return;
    }
    bny_verbs_down(e, "does not answer to device %s within %.0f s (%s): see that its port is up (ibv_devinfo there), and "
                   "ping its address from ours", c->t->device, VB_JOIN_S, what);
}

void bny_verbs_ask(struct vb_ep *e)
{
    struct vb_tp *t = (struct vb_tp *)e->ep.tp;
    struct sockaddr_storage from, to;
    struct bny_addr mine = t->blob.addr;
    uint8_t exp = TIMEOUT_EXP;

    if (!e->claimed)
        return;
    if (!e->deadline_ns)
        e->deadline_ns = bny_deadline_in(VB_JOIN_S);
    mine.port = 0;
    e->conn = conn_new(t, e, NULL, 1);
    if (!e->conn) {
        bny_verbs_down(e, "is not reached: no memory for a connection");
        return;
    }
    if (t->fn->rdma_create_id(t->events, &e->conn->id, e->conn, RDMA_PS_TCP) != 0) {
        e->conn->id = NULL;
        bny_verbs_down(e, "is not reached: device %s has no connection left: %s", t->device, strerror(errno));
        return;
    }
    t->fn->rdma_set_option(e->conn->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &exp, sizeof exp);
    e->state = VB_ADDR;
    if (t->fn->rdma_resolve_addr(e->conn->id, bny_verbs_sockaddr(&mine, &from),
                                 bny_verbs_sockaddr(&e->blob.addr, &to), RESOLVE_MS) != 0)
        ask_failed(e->conn, strerror(errno));
}

static void resolved_addr(struct vb_conn *c)
{
    c->e->state = VB_ROUTE;
    if (c->t->fn->rdma_resolve_route(c->id, RESOLVE_MS) != 0)
        ask_failed(c, strerror(errno));
}

static void resolved_route(struct vb_conn *c)
{
    struct rdma_conn_param p;

    if (conn_prepare(c) != 0) {
        bny_verbs_down(c->e, "is not reached: %s", banyan_last_error());
        return;
    }
    memcpy(c->request.magic, "bnyV", 4);
    c->request.wire = BNY_WIRE_VERSION;
    c->request.from = c->t->tp.rank;
    c->request.to = c->e->ep.peer;
    randombytes_buf(c->request.nonce, sizeof c->request.nonce);
    p = param_of(&c->request, sizeof c->request);
    c->e->state = VB_ASKING;
    if (c->t->fn->rdma_connect(c->id, &p) != 0)
        ask_failed(c, strerror(errno));
}

static void fill_hello(const struct vb_conn *c, char role, struct vb_hello *h)
{
    *h = (struct vb_hello){ .addr = (uintptr_t)c->slab, .rkey = c->mr_in->rkey,
                            .slab_bytes = VB_SLAB_BYTES, .eager_slots = VB_EAGER_SLOTS,
                            .bulk_slots = VB_BULK_SLOTS };
    proof(c, role, h->proof);
}

/* The peer accepted: check that it knows the secret, then say hello. */
static void accepted(struct vb_conn *c, const uint8_t *data, size_t len)
{
    struct vb_accept a;
    struct vb_hello h;
    uint8_t expect[16];

    c->established = 1;
    if (len < sizeof a) {
        bny_verbs_down(c->e, "accepts without a proof: it is no rank of this job");
        return;
    }
    memcpy(&a, data, sizeof a);
    memcpy(c->nonce, a.nonce, sizeof c->nonce);
    proof(c, 'S', expect);
    if (sodium_memcmp(expect, a.proof, 16) != 0) {
        bny_verbs_down(c->e, "does not know the job's secret: somebody else listens at its address");
        return;
    }
    fill_hello(c, 'C', &h);
    c->e->state = VB_HELLO;
    bny_verbs_post_hello(c, &h);
}

static void rejected(struct vb_conn *c, const uint8_t *data, size_t len, int status)
{
    struct vb_ep *e = c->e;

    if (e->conn != c)
        return;
    if (len > 0 && data[0] == TURNED_AWAY && e->ep.peer < c->t->tp.rank) {
        bny_verbs_conn_close(c);
        e->conn = NULL;
        e->state = VB_YIELDED;
        return;
    }
    if (len > 0 && data[0] == NO_MEMORY)
        bny_verbs_down(e, "has no memory that its device may lock for a connection with device %s: raise the limit of "
                       "locked memory there (ulimit -l unlimited)", c->t->device);
    else if (len > 0 && data[0] == NOT_ABLE)
        bny_verbs_down(e, "cannot take the connection of device %s; its log says why", c->t->device);
    else
        bny_verbs_down(e, "refuses the connection on device %s (status %d): it has ended, or is of another job",
                       c->t->device, status);
}

/* ---- accepting ---------------------------------------------------------------------------- */

static int in_the_making(const struct vb_ep *e)
{
    return e && e->conn && e->conn->active && e->state != VB_OPEN && e->state != VB_CLOSED;
}

static void requested(struct vb_tp *t, struct rdma_cm_id *id, const uint8_t *data, size_t len)
{
    static const uint8_t turned_away = TURNED_AWAY;
    struct vb_request r;
    struct vb_accept a;
    struct rdma_conn_param p;
    struct vb_conn *c;
    int halves = 0, rc;

    for (c = t->half; c; c = c->next)
        halves++;
    if (len >= sizeof r)
        memcpy(&r, data, sizeof r);
    if (len < sizeof r || memcmp(r.magic, "bnyV", 4) != 0 || r.wire != BNY_WIRE_VERSION ||
        r.to != t->tp.rank || r.from < 0 || r.from >= t->tp.nranks || r.from == r.to ||
        halves >= VB_HALF_MAX) {
        bny_warn("verbs: a connection request that is not from a rank of this job was turned away");
        t->fn->rdma_reject(id, NULL, 0);
        t->fn->rdma_destroy_id(id);
        return;
    }
    if (in_the_making(t->eps[r.from]) && t->tp.rank < r.from) {
        t->fn->rdma_reject(id, &turned_away, 1);
        t->fn->rdma_destroy_id(id);
        return;
    }
    c = conn_new(t, NULL, id, 0);
    if (!c) {
        t->fn->rdma_reject(id, NULL, 0);
        t->fn->rdma_destroy_id(id);
        return;
    }
    id->context = c;
    c->request = r;
    c->next = t->half;
    t->half = c;
    randombytes_buf(c->nonce, sizeof c->nonce);
    memcpy(a.nonce, c->nonce, sizeof a.nonce);
    proof(c, 'S', a.proof);
    p = param_of(&a, sizeof a);
    rc = conn_prepare(c);
    if (rc != 0 || t->fn->rdma_accept(id, &p) != 0) {
        uint8_t why = rc == -BANYAN_ENOMEM ? NO_MEMORY : NOT_ABLE;

        bny_warn("verbs: rank %d cannot be accepted: %s", r.from, rc ? banyan_last_error() : strerror(errno));
        t->fn->rdma_reject(id, &why, 1);
        bny_verbs_conn_close(c);
        return;
    }
    c->established = 1;
}

/* A connection that has proven itself becomes its endpoint's. */
static void adopt(struct vb_conn *c)
{
    struct vb_ep *e = bny_verbs_ep(c->t, c->request.from);

    if (!e || e->state == VB_OPEN || e->down) {
        bny_verbs_conn_close(c);
        return;
    }
    if (e->conn)
        bny_verbs_conn_close(e->conn); /* our own attempt; the lower rank's stands */
    unlink_half(c);
    c->e = e;
    e->conn = c;
}

/* The hello is the first thing that comes. */
void bny_verbs_hello_arrived(struct vb_conn *c, uint32_t len)
{
    struct vb_hello h, mine;
    uint8_t expect[16];
    int rank = c->active ? c->request.to : c->request.from;

    memcpy(&h, c->slab + 2 * (size_t)VB_SLAB_BYTES, sizeof h);
    proof(c, c->active ? 'P' : 'C', expect);
    c->hello_seen = 1;
    if (len != sizeof h || sodium_memcmp(expect, h.proof, 16) != 0 ||
        h.slab_bytes != VB_SLAB_BYTES || h.eager_slots != VB_EAGER_SLOTS ||
        h.bulk_slots != VB_BULK_SLOTS) {
        if (c->e)
            bny_verbs_down(c->e, "does not know the job's secret, or runs another version");
        else
            bny_verbs_conn_close(c);
        bny_warn("verbs: whoever says it is rank %d does not prove it; dropped", rank);
        return;
    }
    c->remote_addr = h.addr;
    c->rkey = h.rkey;
    if (!c->active) {
        adopt(c);
        if (c->dead)
            return;
        fill_hello(c, 'P', &mine);
        if (bny_verbs_post_hello(c, &mine) != 0)
            return;
    }
    c->e->state = VB_OPEN;
    c->e->deadline_ns = 0;
    c->t->joining--;
    bny_verbs_describe(c, rank);
}

/* ---- events ------------------------------------------------------------------------------- */

struct cm_event {
    enum rdma_cm_event_type type;
    int status;
    struct rdma_cm_id *id;
    uint8_t data[196];
    size_t len;
};

static void gone(struct vb_conn *c)
{
    struct vb_ep *e = c->e;

    if (!e) {
        bny_verbs_conn_close(c);
        return;
    }
    if (e->conn == c)
        e->gone = 1; /* what it sent before is still in the queue: poll() ends it */
}

static void handle(struct vb_tp *t, const struct cm_event *ev)
{
    struct vb_conn *c = ev->id->context;

    if (ev->type == RDMA_CM_EVENT_CONNECT_REQUEST) {
        requested(t, ev->id, ev->data, ev->len);
        return;
    }
    if (!c) /* the listener */
        return;
    switch (ev->type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED: resolved_addr(c); break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED: resolved_route(c); break;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_UNREACHABLE:
        /* of an open connection: the neighbour is known under another hardware address, or not at all */
        if (c->e && c->e->conn == c && c->e->state == VB_OPEN)
            bny_verbs_down(c->e, "is not reached over device %s any more: %s; see that the ports of both ends are up",
                           t->device, t->fn->rdma_event_str(ev->type));
        else if (c->active)
            ask_failed(c, t->fn->rdma_event_str(ev->type));
        else
            bny_verbs_conn_close(c);
        break;
    case RDMA_CM_EVENT_REJECTED:
        if (c->active)
            rejected(c, ev->data, ev->len, ev->status);
        break;
    case RDMA_CM_EVENT_ESTABLISHED:
        if (c->active && c->e->conn == c)
            accepted(c, ev->data, ev->len);
        break;
    case RDMA_CM_EVENT_DISCONNECTED: gone(c); break;
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        if (c->e && c->e->conn == c)
            bny_verbs_down(c->e, "is not reached any more: device %s was removed", t->device);
        break;
    default: break;
    }
}

static int take_event(struct vb_tp *t, struct cm_event *out)
{
    struct rdma_cm_event *ev;

    if (t->fn->rdma_get_cm_event(t->events, &ev) != 0)
        return 0;
    *out = (struct cm_event){ .type = ev->event, .status = ev->status, .id = ev->id };
    out->len = ev->param.conn.private_data ? ev->param.conn.private_data_len : 0;
    if (ev->event == RDMA_CM_EVENT_ADDR_RESOLVED || ev->event == RDMA_CM_EVENT_ROUTE_RESOLVED)
        out->len = 0;
    if (out->len > sizeof out->data)
        out->len = sizeof out->data;
    if (out->len)
        memcpy(out->data, ev->param.conn.private_data, out->len);
    t->fn->rdma_ack_cm_event(ev);
    return 1;
}

void bny_verbs_cm_progress(struct vb_tp *t)
{
    struct cm_event ev;

    while (take_event(t, &ev))
        handle(t, &ev);
    for (struct vb_conn *c = t->half, *next; c; c = next) {
        struct ibv_wc wc;

        next = c->next;
        if (ibv_poll_cq(c->cq, 1, &wc) == 1) {
            if (wc.status == IBV_WC_SUCCESS && (wc.opcode & IBV_WC_RECV))
                bny_verbs_hello_arrived(c, wc.byte_len);
            else
                bny_verbs_conn_close(c);
        } else if (bny_deadline_passed(c->deadline_ns)) {
            bny_verbs_conn_close(c);
        }
    }
    for (int r = 0; r < t->tp.nranks && t->joining; r++) {
        struct vb_ep *e = t->eps[r];

        if (e && e->deadline_ns && e->state != VB_OPEN && e->state != VB_CLOSED &&
            bny_deadline_passed(e->deadline_ns))
            bny_verbs_down(e, "does not come to terms with device %s within %.0f s; is it still alive?", t->device, VB_JOIN_S);
    }
}
