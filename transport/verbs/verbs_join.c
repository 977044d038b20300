/* SPDX-License-Identifier: BSD-3-Clause */
/* How two ranks connect a queue pair. rdma_cm finds device, path, MTU and packet numbers; both
 * ends prove that they know the job's secret before either learns the address of the other's
 * memory.
 *
 * R: the request (ranks, nonce of the asking rank); N: nonce of the accepting rank; L: address
 * of a slab. The proofs (transport/proof.h) cover R and N, those of hellos also L, the
 * request's only R: who has none gets no queue pair; who repeats one learns no address.
 *   request R, its own proof      acceptance N, proof of the answerer
 *   hello L, proof of the asker      hello L, proof of the opener
 *
 * One connection serves both directions. If both ranks ask at once, the lower one's request
 * wins: that rank rejects the other's, and the other waits for it.
 *
 * A rank that computes, or has no CPU, answers nothing, but its kernel queues our request. So
 * silence after a request is no failure, nor is an attempt that expired while we were away: the
 * operation's deadline bounds the wait, and a dying peer closes its connections. So is a first
 * TCP connection that nobody answers: the queue may be full. Networks of rdma_cm that drop the
 * request are failures: the kernel gives up after about a minute. */
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
#include "transport/verbs/lane.h"

#define RESOLVE_MS  2000
#define AGAIN_NS    50000000u /* between two attempts to replace a queue pair */
#define BUSY_NS     20000000u /* between two requests to a busy peer; doubles each time */
#define BUSY_DOUBLE 5         /* number of doublings */
#define ATTEMPT_S   3.0       /* of one attempt, if another rail may work better */
#define REJ_CLOSED  28 /* status: the other end gave up the attempt; 8 if nobody listens */

struct bny_transcript bny_verbs_said(const struct vb_lane *c)
{
    return (struct bny_transcript){ .secret = c->t->secret,
                                    .asked = &c->request,
                                    .asked_len = sizeof c->request,
                                    .answered = c->nonce,
                                    .answered_len = sizeof c->nonce };
}

struct greeted { /* what a hello's proof covers */
    uint8_t nonce[16];
    struct vb_hello hello; /* without its proof */
};
_Static_assert(sizeof(struct greeted) == 16 + sizeof(struct vb_hello), "no padding");

/* Fills *g, which the transcript borrows. */
static struct bny_transcript greeting(const struct vb_lane *c, const struct vb_hello *h,
                                      struct greeted *g)
{
    struct bny_transcript t = bny_verbs_said(c);

    memcpy(g->nonce, c->nonce, sizeof g->nonce);
    g->hello = *h;
    memset(g->hello.proof, 0, sizeof g->hello.proof);
    t.answered = g;
    t.answered_len = sizeof *g;
    return t;
}

/* ---- asking ---- */

struct rdma_conn_param bny_verbs_param(const struct vb_tp *t, const void *data, size_t len)
{
    return (struct rdma_conn_param){ .private_data = data,
                                     .private_data_len = (uint8_t)len,
                                     .responder_resources = 1,
                                     .initiator_depth = 1,
                                     .flow_control = 1,
                                     .retry_count = (uint8_t)t->path.retry,
                                     .rnr_retry_count =
                                         (uint8_t)bny_param_int("BANYAN_VERBS=rnr") };
}

/* If a queue pair works while a better one is being made, the state describes the one that
 * works. */
static void step(struct vb_ep *e, enum vb_state state)
{
    if (!bny_verbs_serves(e))
        e->state = state;
}

static void ask_failed(struct vb_lane *c, const char *what)
{
    struct vb_ep *e = c->e;
    char remedy[VB_REMEDY];

    if (e->trial != c)
        return;
    bny_verbs_conn_close(c);
    if (bny_verbs_serves(e)) {
        bny_info("verbs: rank %d: lane %u does not go back to device %s yet: %s", e->ep.peer,
                 e->lane, c->rail->device, what);
        return;
    }
    e->tries++;
    if (!e->conn && bny_deadline_passed(e->deadline_ns) &&
        (e->patient || c->t->away_ns > c->born_ns)) {
        e->patient = 0;
        e->deadline_ns = bny_deadline_in(VB_JOIN_S);
    }
    if (!bny_deadline_passed(e->deadline_ns)) {
        if (e->state != VB_DRAINING)
            e->state =
                VB_IDLE; /* retried at the next send, or for a replacement after a while */
        e->again_ns = bny_now_ns() + AGAIN_NS;
        return;
    }
    if (e->conn)
        bny_verbs_down(e, "%s; no other connection came about (%s)", e->broke, what);
    else
        bny_verbs_down(e, "does not answer to device %s (%s): %s", c->rail->at, what,
                       bny_verbs_path_remedy(e, c->rail, remedy));
}

/* A local resource is missing. It may be there at the next attempt. */
static void wait_for_want(struct vb_ep *e)
{
    if (e->state != VB_DRAINING)
        e->state = VB_IDLE;
    e->again_ns = bny_now_ns() + AGAIN_NS;
}

/* No attempt, for lack of memory or descriptors: err. */
static void no_attempt(struct vb_ep *e, const struct vb_rail *rail, int err)
{
    struct vb_tp *t = (struct vb_tp *)e->ep.tp;

    if (e->lane && !e->conn) {
        bny_verbs_down(e, "is not reached: device %s: %s", rail->at, strerror(err));
        return;
    }
    bny_verbs_lacks(t, err, "device %s: %s", rail->at, strerror(err));
    wait_for_want(e);
}

void bny_verbs_ask(struct vb_ep *e)
{
    struct vb_tp *t = (struct vb_tp *)e->ep.tp;
    struct sockaddr_storage from, to;
    struct vb_rail *rail;
    struct bny_addr mine;
    struct vb_lane *c;

    if (!e->main->claimed)
        return;
    rail = bny_verbs_rail_next(e);
    if (!e->deadline_ns && !bny_verbs_serves(e))
        e->deadline_ns = bny_deadline_in(VB_JOIN_S);
    e->attempt_ns = bny_deadline_in(ATTEMPT_S);
    if (!t->joining)
        t->seen_ns = bny_now_ns(); /* frequent polls were not needed until now */
    mine = rail->addr;
    mine.port = 0;
    c = bny_verbs_conn_new(t, e, NULL, 1);
    if (!c) {
        if (!bny_verbs_serves(e))
            no_attempt(e, rail, ENOMEM);
        return;
    }
    c->rail = rail;
    if (t->fn->rdma_create_id(t->events, &c->id, c, RDMA_PS_TCP) != 0) {
        int err = errno;

        c->id = NULL;
        if (bny_verbs_serves(e) || bny_verbs_is_lack(err))
            bny_verbs_conn_close(c);
        if (bny_verbs_serves(e))
            return;
        if (bny_verbs_is_lack(err))
            no_attempt(e, rail, err);
        else
            bny_verbs_down(e, "is not reached: device %s has no connection left: %s", rail->at,
                           strerror(err));
        return;
    }
    bny_verbs_path_options(t, c->id);
    step(e, VB_ADDR);
    if (t->fn->rdma_resolve_addr(c->id, bny_verbs_sockaddr(&mine, &from),
                                 bny_verbs_sockaddr(&e->main->blob.rail[rail->index].addr, &to),
                                 RESOLVE_MS) != 0) {
        int err = errno;

        if (bny_verbs_is_lack(err) && !bny_verbs_serves(e) && !e->lane)
            bny_verbs_lacks(t, err, "device %s: %s", rail->at, strerror(err));
        ask_failed(c, strerror(err));
    }
}

static void resolved_addr(struct vb_lane *c)
{
    c->e->unheard = 0;
    step(c->e, VB_ROUTE);
    if (bny_verbs_resolve_route(c, RESOLVE_MS) != 0)
        ask_failed(c, strerror(errno));
}

/* The route, or the connection, failed. */
static void unreached(struct vb_lane *c, enum rdma_cm_event_type type, int status)
{
    struct vb_ep *e = c->e;
    int by_tcp = c->t->how == VB_HOW_QP;

    /* Strangers may have filled its queue while it computes. If it has ended, the control plane
     * knows. */
    if (by_tcp && status == -ETIMEDOUT && !e->conn) {
        if (!e->unheard)
            bny_warn("verbs: rank %d at device %s: %s; this rank waits for it, up to "
                     "op_timeout_s",
                     e->ep.peer, c->rail->at, c->t->fn->rdma_event_str(type));
        e->unheard = 1;
        e->deadline_ns = bny_deadline_in(VB_SILENCE_S);
    }
    if (!by_tcp || type != RDMA_CM_EVENT_UNREACHABLE) /* an earlier connection proves little */
        e->patient = 0;
    ask_failed(c, c->t->fn->rdma_event_str(type));
}

static void resolved_route(struct vb_lane *c)
{
    struct rdma_conn_param p;
    struct vb_ep *e = c->e;
    int rc =
        bny_verbs_conn_prepare(c, e->main->conn ? e->main->conn->peer : NULL, e->conn != NULL);

    if (rc) {
        if (bny_verbs_serves(e) || (e->conn && bny_verbs_rail_others(e, c->rail))) {
            ask_failed(c, banyan_last_error());
        } else if ((rc == -BANYAN_ENOMEM || rc == -BANYAN_ESYSTEM) && (!e->lane || e->conn)) {
            bny_verbs_lacks(c->t, rc == -BANYAN_ENOMEM ? ENOMEM : EIO, "%s",
                            banyan_last_error());
            bny_verbs_conn_close(c);
            wait_for_want(e);
        } else
            bny_verbs_down(e, "is not reached: %s", banyan_last_error());
        return;
    }
    memcpy(c->request.magic, "bnyV", 4);
    c->request.wire = BNY_WIRE_VERSION;
    c->request.resumes = e->conn != NULL;
    c->request.notify = (uint8_t)c->notify;
    c->request.from = c->t->tp.rank;
    c->request.to = e->ep.peer;
    c->request.lane = (uint8_t)e->lane;
    c->request.rail = (uint8_t)c->rail->index;
    randombytes_buf(c->request.nonce, sizeof c->request.nonce);
    bny_verbs_request_prove(c->t, &c->request);
    p = bny_verbs_param(c->t, &c->request, sizeof c->request);
    step(e, VB_ASKING);
    if (c->t->fn->rdma_connect(c->id, &p) != 0)
        ask_failed(c, strerror(errno));
}

/* For the connection `lasting`; c is its queue pair, or a new one. */
static void fill_hello(const struct vb_lane *c, const struct vb_lane *lasting,
                       enum bny_proof_role role, struct vb_hello *h)
{
    struct bny_transcript t;
    struct greeted g;

    *h = (struct vb_hello){ .slab_bytes = c->t->slab.bytes,
                            .eager_slots = c->t->slab.eager,
                            .eager_most = c->t->depth.eager,
                            .bulk_slots = c->t->slab.bulk };
    h->addr = (uintptr_t)c->peer->slab;
    h->rkey = c->peer->mr_in[c->rail->index]->rkey;
    h->delivered = lasting->imm_taken;
    t = greeting(c, h, &g);
    bny_proof_make(h->proof, &t, role);
}

static void say_hello(struct vb_lane *c)
{
    struct vb_hello h;

    fill_hello(c, c->e->conn ? c->e->conn : c, BNY_PROOF_ASKER, &h);
    c->e->state = VB_HELLO;
    c->e->attempt_ns = bny_deadline_in(ATTEMPT_S); /* it may have been silent for long */
    if (bny_verbs_post_hello(c, &h) != 0)
        ask_failed(c, "the hello cannot be sent");
}

/* The peer is busy with too many requests. It lives, so its deadline restarts. Retrying too
 * early makes it worse: half of the wait is random, so that simultaneous askers separate. */
static void busy_there(struct vb_lane *c)
{
    struct vb_ep *e = c->e;
    uint32_t wait = BUSY_NS << (e->busy < BUSY_DOUBLE ? e->busy : BUSY_DOUBLE);

    bny_verbs_conn_close(c);
    e->busy++;
    e->patient = e->unheard = 0;
    if (!e->conn) /* a queue pair to replace has its own, BANYAN_VERBS=replace */
        e->deadline_ns = bny_deadline_in(VB_JOIN_S);
    if (e->state != VB_DRAINING)
        e->state = VB_IDLE;
    e->again_ns = bny_now_ns() + wait + randombytes_uniform(wait);
}

/* The peer accepted: checks its proof, then sends the hello; if another queue pair works so
 * far, processes that one's completions first. */
static void accepted(struct vb_lane *c, const uint8_t *data, size_t len)
{
    struct vb_accept a;
    struct vb_ep *e = c->e;
    struct bny_transcript said;
    char why[sizeof e->reason];
    int good;

    c->established = 1;
    if (!bny_verbs_mtu_fits(c, why, sizeof why)) {
        if (bny_verbs_serves(e) || bny_verbs_rail_others(e, c->rail))
            ask_failed(c, why);
        else
            bny_verbs_down(e, "%s", why);
        return;
    }
    if (len < sizeof a && bny_verbs_serves(e)) {
        ask_failed(c, "it accepts without a proof");
        return;
    }
    if (len < sizeof a) {
        bny_verbs_down(c->e, "accepts without a proof: it is no rank of this job");
        return;
    }
    memcpy(&a, data, sizeof a);
    memcpy(c->nonce, a.nonce, sizeof c->nonce);
    said = bny_verbs_said(c);
    good = bny_proof_is_good(a.proof, sizeof a.proof, &said, BNY_PROOF_ANSWERER);
    if (!bny_verbs_serves(e)) {
        if (!good)
            bny_verbs_down(
                e, "does not know the job's secret: another process listens at its address");
        else
            say_hello(c);
    } else if (!good || e->main->left || e->main->gone || e->main->farewell_sent) {
        ask_failed(c, "it is not better");
    } else {
        e->attempt_ns = bny_deadline_in(ATTEMPT_S);
        bny_verbs_leave(e->conn, c->rail); /* advance() continues */
    }
}

/* The peer may have ended, or lost a device: another rail will show. 1: all were tried. */
static int refused_everywhere(struct vb_ep *e, const struct vb_rail *rail)
{
    const struct vb_tp *t = (struct vb_tp *)e->ep.tp;

    e->refused |= 1u << rail->index;
    for (int i = 0; i < e->main->nrails; i++)
        if (!t->rails[i].down && !(e->refused >> i & 1))
            return 0;
    return 1;
}

static void lane_is_refused(struct vb_lane *c)
{
    struct vb_ep *e = c->e;

    if (e->lane)
        e->main->gone = 1; /* completions of the first lane, and its next error, show why */
    if (e->lane || !refused_everywhere(e, c->rail))
        ask_failed(c, "it let nobody in");
    else
        bny_verbs_down(
            e,
            "closed its connection to device %s: it has ended or was killed; its log says why",
            c->rail->at);
}

static void rejected(struct vb_lane *c, const uint8_t *data, size_t len, int status)
{
    struct vb_ep *e = c->e;
    int why = len > 0 ? data[0] : 0;

    if (e->trial != c)
        return;
    if (bny_verbs_serves(e)) {
        ask_failed(c, "it was turned away");
        return;
    }
    /* the other end closed it before its connection manager saw ours as open: it may or may not
     * live */
    if (why == 0 && (c->established || (e->conn && status == REJ_CLOSED))) {
        ask_failed(c, "it was closed at once");
        return;
    }
    if (why == VB_TURNED_AWAY && e->ep.peer < c->t->tp.rank) {
        bny_verbs_conn_close(c);
        e->state = VB_YIELDED;
        e->again_ns = bny_now_ns() + 20u * AGAIN_NS;
        return;
    }
    if (why == VB_BUSY)
        busy_there(c);
    else if (why == VB_NOT_NOW)
        ask_failed(c, "it is not ready there");
    else if (why == VB_NO_DESCRIPTOR) /* the next poll and the log report this if it lasts */
        ask_failed(c, "it has no descriptor left: ulimit -n 65536 there");
    else if (why == VB_NO_MEMORY)
        ask_failed(c, "it has no memory that its device may lock for a connection: raise the "
                      "limit of locked memory there (ulimit -l unlimited)");
    else if (why == VB_OTHER_VERSION)
        bny_verbs_down(e,
                       "runs another version of banyan, with another connection protocol "
                       "(ours: wire version %d): install the same on all hosts",
                       BNY_WIRE_VERSION);
    else if (e->conn && why == VB_GIVEN_UP)
        bny_verbs_down(e, "%s; it gave this connection up", e->broke);
    else if (e->conn && (why == 0 || why == VB_TURNED_AWAY))
        lane_is_refused(c);
    else if (why == VB_NOT_ABLE)
        bny_verbs_down(e, "cannot take the connection of device %s; see its log", c->rail->at);
    else
        bny_verbs_down(e,
                       "refuses the connection on device %s (status %d): it has ended, or has "
                       "another secret, that of another job",
                       c->rail->at, status);
}

/* ---- hellos ---- */

/* Checks the first input. 1: the peer is authenticated. */
static int hello_is_good(struct vb_lane *c, uint32_t len)
{
    const struct vb_hello *h = bny_verbs_hello_in(c);
    struct greeted g;
    struct bny_transcript t = greeting(c, h, &g);

    if (len == sizeof *h &&
        bny_proof_is_good(h->proof, sizeof h->proof, &t,
                          c->active ? BNY_PROOF_OPENER : BNY_PROOF_ASKER) &&
        h->slab_bytes == c->t->slab.bytes && h->eager_slots == c->t->slab.eager &&
        h->bulk_slots == c->t->slab.bulk && h->eager_most >= VB_EAGER_LEAST &&
        h->eager_most <= c->t->slab.eager)
        return 1;
    bny_warn("verbs: a connection that claims to be rank %d has no valid proof; dropped",
             c->active ? c->request.to : c->request.from);
    if (c->e)
        bny_verbs_down(c->e, "does not know the job's secret, or runs another version");
    else
        bny_verbs_conn_close(c);
    return 0;
}

/* Is this the hello? With a shared receive queue it may be in any entry. */
static int is_hello(struct vb_lane *c, const struct ibv_wc *wc)
{
    const void *came;

    if (!c->rail->shared.srq || !(wc->wr_id & VB_WR_RECV))
        return wc->status == IBV_WC_SUCCESS && wc->wr_id == VB_WR_HELLO;
    came = bny_verbs_srq_take(c->rail, wc);
    if (wc->status != IBV_WC_SUCCESS || wc->opcode != IBV_WC_RECV)
        return 0;
    memcpy(bny_verbs_hello_in(c), came, sizeof(struct vb_hello));
    return 1;
}

/* The passive side answers; then its endpoint owns the connection. 0: not yet, or never. */
static int answer_hello(struct vb_lane *c)
{
    struct vb_ep *e = bny_verbs_lane_ep(c->t, c->request.from, c->request.lane);
    struct vb_hello mine;

    if (!e || e->main->down || e->main->left || (e->lane && !e->main->conn) ||
        (e->conn != NULL) != c->another || (e->trial && c->t->tp.rank < e->ep.peer)) {
        bny_verbs_conn_close(c);
        return 0;
    }
    if (e->conn && e->state == VB_OPEN && e->conn->rail != c->rail &&
        c->rail == bny_verbs_home(e))
        bny_verbs_leave(e->conn, c->rail);
    else if (e->conn && e->state == VB_OPEN)
        bny_verbs_lost(e->conn, "has lost its connection to device %s", e->conn->rail->at);
    if (e->main->down || (e->conn && e->state == VB_DRAINING))
        return 0;
    if (e->trial)
        bny_verbs_conn_close(e->trial); /* our own attempt; the lower rank's wins */
    fill_hello(c, e->conn ? e->conn : c, BNY_PROOF_OPENER, &mine);
    /* from here on it may send up to its credits */
    if ((c->share && bny_verbs_srq_share(c, c->t->depth.recvs + 1) != 0) ||
        bny_verbs_post_hello(c, &mine) != 0) {
        bny_verbs_conn_close(c);
        return 0;
    }
    c->e = e;
    return 1;
}

static void open_up(struct vb_lane *c)
{
    struct vb_hello h = *bny_verbs_hello_in(c);
    struct vb_ep *e = c->e;

    bny_verbs_made(c);
    if (e->conn) {
        bny_verbs_resume(e->conn, c, &h);
        return;
    }
    if (h.delivered) {
        bny_verbs_down(e, "reports %u messages over a connection that never came up",
                       h.delivered);
        return;
    }
    if (c->peer->first == c) {
        c->peer->e = e;
        c->peer->remote_addr = h.addr;
        c->peer->eager_most = h.eager_most;
    }
    c->rkey = h.rkey;
    e->conn = c;
    e->state = VB_OPEN;
    e->deadline_ns = 0;
    e->tries = e->refused = e->busy = 0;
    e->patient = 0;
    bny_verbs_describe(c, e->ep.peer);
    c->t->joining -= e->growing;
    e->growing = 0;
    if (e->lane) {
        bny_verbs_lane_opened(e);
    } else {
        bny_verbs_tell_owed(e);
        bny_verbs_grow(e);
    }
}

static void hear_hello(struct vb_lane *c)
{
    struct ibv_wc wc;

    if (!c->established || !c->cq)
        return;
    if (!c->hello_seen && bny_verbs_cq_next(c, &wc)) {
        if (is_hello(c, &wc)) {
            if (!hello_is_good(c, wc.byte_len))
                return;
            c->hello_seen = 1;
        } else if (c->active) {
            c->e->patient = 0; /* it has answered: the network is at fault */
            ask_failed(c, "the connection broke at once");
            return;
        } else {
            bny_verbs_conn_close(c);
            return;
        }
    }
    if (c->hello_seen && (c->active || answer_hello(c)))
        open_up(c);
    else if (!c->active && !c->dead && bny_deadline_passed(c->deadline_ns))
        bny_verbs_conn_close(c);
}

/* ---- events ---- */

struct cm_event {
    enum rdma_cm_event_type type;
    int status;
    struct rdma_cm_id *id;
    uint8_t data[196];
    size_t len;
};

static void gone(struct vb_lane *c)
{
    struct vb_ep *e = c->e;

    if (!e) {
        bny_verbs_conn_close(c);
        return;
    }
    /* the peer may have opened it, sent, and lost it again: its messages are here, behind its
     * hello */
    if (e->trial == c) {
        if (c->cq)
            bny_verbs_cq_sweep(c->cq);
        hear_hello(c);
        if (e->trial == c)
            ask_failed(c, "it closed the connection");
        else if (e->state == VB_OPEN)
            e->gone = 1;
    } else if (e->conn == c) {
        e->gone = 1; /* its earlier messages are still in the queue: poll() ends it */
    }
}

static void verbs_join_handle(struct vb_tp *t, const struct cm_event *ev)
{
    struct vb_lane *c = ev->id->context;
    char why[128];

    if (ev->type == RDMA_CM_EVENT_CONNECT_REQUEST) {
        bny_verbs_requested(t, ev->id, ev->data, ev->len);
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
        /* an open connection: the neighbour's hardware address changed or is unknown */
        if (c->e && c->e->conn == c)
            bny_verbs_lost(c,
                           "is not reached over device %s any more: %s; check that the ports "
                           "of both ends are up",
                           c->rail->at, t->fn->rdma_event_str(ev->type));
        else if (c->active)
            unreached(c, ev->type, ev->status);
        else
            bny_verbs_conn_close(c);
        break;
    case RDMA_CM_EVENT_REJECTED:
        if (c->active)
            rejected(c, ev->data, ev->len, ev->status);
        break;
    case RDMA_CM_EVENT_ESTABLISHED:
        if (c->active && c->e->trial == c)
            accepted(c, ev->data, ev->len);
        break;
    case RDMA_CM_EVENT_DISCONNECTED: gone(c); break;
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        snprintf(why, sizeof why, "device %s was removed", c->rail->device);
        bny_verbs_rail_down(t, c->rail, 2, why);
        if (c->e && c->e->trial == c &&
            (bny_verbs_serves(c->e) || bny_verbs_rail_others(c->e, c->rail)))
            ask_failed(c, why);
        else if (c->e && c->e->trial == c)
            bny_verbs_down(c->e, "is not reached any more: %s", why);
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

/* For the first connection, after its deadline. 1: the peer is slow, not the network. */
static int waits_out(struct vb_ep *e)
{
    char remedy[VB_REMEDY];

    if (e->state == VB_YIELDED) { /* the request that ours yielded to is lost, or to come: sends
                                     ours again */
        e->state = VB_IDLE;
        e->deadline_ns = bny_deadline_in(VB_JOIN_S);
        return 1;
    }
    if (!e->trial || (e->state != VB_ASKING && e->state != VB_HELLO))
        return 0;
    if (!e->patient)
        bny_info("verbs: rank %d has not answered over device %s for %.0f s; waiting for it. "
                 "If it does not compute: %s",
                 e->ep.peer, e->trial->rail->at, VB_JOIN_S,
                 bny_verbs_path_remedy(e, e->trial->rail, remedy));
    e->patient = 1;
    return 1;
}

/* The request is queued in the peer's kernel, which answers TCP: no other device would be
 * better. */
static int is_kept(const struct vb_ep *e)
{
    return ((struct vb_tp *)e->ep.tp)->how == VB_HOW_QP && e->state == VB_ASKING && !e->conn;
}

/* One lane that is being made, or whose queue pair is being replaced. */
static void verbs_join_advance(struct vb_ep *e)
{
    int late;

    if (e->trial)
        hear_hello(e->trial);
    if (e->trial && bny_verbs_serves(e) && bny_deadline_passed(e->attempt_ns))
        ask_failed(e->trial, "no answer");
    if (e->trial && e->trial->established && e->state == VB_IDLE)
        say_hello(e->trial);
    if (!e->deadline_ns || e->state == VB_OPEN || e->state == VB_CLOSED)
        return;
    if (e->state == VB_IDLE && !e->conn && !e->lane) /* retried at the next send */
        return;
    late = bny_deadline_passed(e->deadline_ns);
    if (late && e->conn)
        bny_verbs_down(e, "%s; no other connection came about in time (BANYAN_VERBS=replace)",
                       e->broke);
    else if (late && !waits_out(e))
        bny_verbs_down(e, "did not connect over device %s within %.0f s; is it still alive?",
                       bny_verbs_rail_next(e)->at, VB_JOIN_S);
    else if (e->trial && bny_deadline_passed(e->attempt_ns) && !is_kept(e) &&
             bny_verbs_rail_others(e, e->trial->rail))
        ask_failed(e->trial, "no answer");
    else if ((e->conn || e->lane) && (e->state == VB_IDLE || e->state == VB_YIELDED) &&
             bny_now_ns() >= e->again_ns)
        bny_verbs_ask(e);
}

void bny_verbs_cm_progress(struct vb_tp *t)
{
    uint64_t now = bny_now_ns();
    struct cm_event ev;

    if (t->seen_ns && now - t->seen_ns >= 1000000000u)
        t->away_ns = now;
    t->seen_ns = now;
    while (take_event(t, &ev))
        verbs_join_handle(t, &ev);
    bny_verbs_async(t);
    bny_verbs_go_home(t);
    for (struct vb_lane *c = t->half, *next; c; c = next) {
        next = c->next;
        hear_hello(c);
    }
    for (int r = 0; r < t->tp.nranks; r++) { /* a rank that gave way has none in progress */
        struct vb_ep *e = t->eps[r];

        if (e)
            verbs_join_advance(e);
        for (uint32_t k = 1; e && k < e->nlanes; k++)
            if (e->lanes[k])
                verbs_join_advance(e->lanes[k]);
    }
}
