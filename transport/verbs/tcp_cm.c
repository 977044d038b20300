/* SPDX-License-Identifier: BSD-3-Clause */
/* Makes connections itself, instead of rdma_cm but with its calls and events, so that
 * verbs_join.c works with both. A TCP connection between the ranks, one for each queue pair,
 * carries what both ends must know of it:
 *
 *   asker: connects                         answerer: accepts, sends a nonce
 *   asker: sends its offer, with a proof    answerer: checks it, takes one of the offered GIDs,
 *          of the secret over both                    makes its queue pair ready to receive and
 *                                                     to send, and only then sends its own
 *                                                     offer, or a refusal
 *   asker: makes its own ready; both are connected
 *
 * So strangers get no queue pair and no locked memory, not even by repeating what they have
 * recorded. Over rdma_cm, whose first message is the request, that is all that they get.
 *
 * A packet for a queue pair that is not ready is lost silently, and retransmitted after the ack
 * timeout (1 s). This order avoids that, as the answerer sends nothing before the asker has.
 *
 * The TCP connection stays open as long as the queue pair: its end is the queue pair's end, and
 * the kernel closes it when a process dies in any way. Each costs a descriptor.
 *
 * Compared with rdma_cm: no subnet manager query for each path, no IPoIB, no
 * connection manager that a storm of requests or a down port can stop, and we choose GID,
 * partition key, flow label (one for each queue pair, for switches that hash it) and packet
 * numbers (random). iWARP has only rdma_cm.
 *
 * A computing rank accepts nothing, but its kernel does. So after TCP connected, the asker
 * waits through silence while the peer's kernel answers, and stays with this device: an attempt
 * that it gives up stays in that kernel's short queue.
 *
 * No input is trusted: an offer is checked, without its proof it opens nothing (verbs_join.c
 * has those that follow), and a connection without an offer is closed in time, at the latest
 * when others need its place. It is told to retry, but only after a last check for its offer:
 * both ends may have been away for longer than any timeout. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "transport/proof.h"
#include "transport/verbs/lane.h"

#define CONTEXTS_MAX  32
#define RINGING_MIN   128   /* connections without an offer yet; or VB_HALF_MAX */
#define RINGING_S     15.0  /* time limit for the offer: the asker may be computing */
#define UNANSWERED_MS 60000 /* TCP user timeout: then an end counts as unreachable */
#define WAITING_MS    10000 /* the same while an answer is expected */
#define LOOKS_MAX     256   /* events per call */
#define PRIVATE_MAX   64
#define REFUSED       8  /* status of a rejection, as rdma_cm's: nobody listens there */
#define SAID_NO       28 /* and: the listener refused */

struct vb_greeting { /* wire format */
    char magic[4];
    uint16_t wire;
    uint8_t reserved[2], nonce[24];
};
_Static_assert(sizeof(struct vb_greeting) == 32, "wire format");

enum offer_kind { OFFER_ASKS = 1, OFFER_ANSWERS, OFFER_REFUSES };

struct vb_offer { /* wire format */
    char magic[4];
    uint16_t wire;
    uint8_t kind, ngids;
    uint32_t qpn, psn;
    uint16_t lid, pkey;
    uint8_t lmc, mtu, lane;
    uint8_t gid, chosen; /* in an answer: index in its own GIDs, in the asker's */
    uint8_t private_len;
    uint8_t reserved[2];
    struct vb_gid gids[VB_GIDS];
    uint8_t private_data[PRIVATE_MAX];
    uint8_t proof[BNY_PROOF_BYTES]; /* of the asker; covers the rest and the greeting */
};
_Static_assert(sizeof(struct vb_offer) == 28 + VB_GIDS * 24 + PRIVATE_MAX + BNY_PROOF_BYTES,
               "wire format");

enum call_state {
    CALL_NEW,
    CALL_LISTENS,
    CALL_CONNECTS, /* asker: TCP is connecting */
    CALL_READY,    /* asker: TCP is connected */
    CALL_HEARS,    /* asker: waits for the greeting to send its offer */
    CALL_WAITS,    /* asker: sent its offer */
    CALL_RINGS,    /* answerer: waits for the offer */
    CALL_ASKED,    /* answerer: verbs_join.c decides */
    CALL_UP,
    CALL_OVER
};

struct call {
    struct rdma_cm_id id; /* verbs_join.c's handle */
    struct call *next;
    struct desk *desk;
    enum call_state state;
    int fd;
    uint32_t psn;
    uint64_t deadline_ns; /* CONNECTS, RINGS */
    struct bny_addr addr;
    struct vb_greeting greeting; /* of the answerer */
    struct vb_offer mine;        /* asker: to be sent */
    struct vb_offer theirs;
    size_t greeted, got; /* bytes of greeting and theirs received */
};

struct told {
    struct rdma_cm_event ev;
    uint8_t data[PRIVATE_MAX];
    char why[200];
    struct told *next;
};

struct desk {
    struct rdma_event_channel ch; /* fd: the epoll of all calls */
    struct vb_tp *t;
    const struct vb_fn *fn;
    int bell;        /* readable if events are pending */
    int spare;       /* reserve descriptor to refuse connections when no other is left */
    int timed;       /* calls with a deadline */
    uint32_t turned; /* refused for lack of a descriptor */
    struct call *calls;
    struct told *first, **end;
    struct ibv_context *contexts[CONTEXTS_MAX];
    int ncontexts;
};

static _Thread_local char last_why[200]; /* of the event returned last */

static struct desk *desk_of(const struct rdma_cm_id *id)
{
    return ((const struct call *)id)->desk;
}

/* ---- telling ---- */

static void tcp_cm_tell(struct call *c, enum rdma_cm_event_type type, int status,
                        const char *why)
{
    struct desk *d = c->desk;
    struct told *e = calloc(1, sizeof *e);
    uint64_t one = 1;

    if (!e) /* like a lost message: deadlines decide */
        return;
    e->ev.id = &c->id;
    e->ev.event = type;
    e->ev.status = status;
    if (type == RDMA_CM_EVENT_CONNECT_REQUEST || type == RDMA_CM_EVENT_ESTABLISHED ||
        (type == RDMA_CM_EVENT_REJECTED && status == SAID_NO)) {
        memcpy(e->data, c->theirs.private_data, sizeof e->data);
        e->ev.param.conn.private_data = e->data;
        e->ev.param.conn.private_data_len = c->theirs.private_len;
    }
    snprintf(e->why, sizeof e->why, "%s", why);
    if (!d->first)
        (void)!write(d->bell, &one, sizeof one);
    *d->end = e;
    d->end = &e->next;
}

static void forget(struct desk *d, const struct call *c)
{
    for (struct told **p = &d->first; *p;) {
        struct told *e = *p;

        if (e->ev.id != &c->id) {
            p = &e->next;
            continue;
        }
        *p = e->next;
        free(e);
    }
    d->end = &d->first;
    while (*d->end)
        d->end = &(*d->end)->next;
}

/* ---- calls ---- */

static struct call *call_new(struct desk *d)
{
    struct call *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->desk = d;
    c->fd = -1;
    c->id.channel = &d->ch;
    c->next = d->calls;
    d->calls = c;
    return c;
}

static int tcp_cm_watch(struct call *c, uint32_t events)
{
    struct epoll_event e = { .events = events, .data.ptr = c };

    return epoll_ctl(c->desk->ch.fd, EPOLL_CTL_ADD, c->fd, &e) == 0 ||
                   (errno == EEXIST && epoll_ctl(c->desk->ch.fd, EPOLL_CTL_MOD, c->fd, &e) == 0)
               ? 0
               : -1;
}

static void time_it(struct call *c, double seconds)
{
    c->desk->timed += (seconds > 0) - (c->deadline_ns != 0);
    c->deadline_ns = seconds > 0 ? bny_deadline_in(seconds) : 0;
}

static void hang_up(struct call *c)
{
    time_it(c, 0);
    c->state = CALL_OVER;
    if (c->fd < 0)
        return;
    epoll_ctl(c->desk->ch.fd, EPOLL_CTL_DEL, c->fd, NULL);
    shutdown(c->fd, SHUT_RDWR); /* even if a child process has it, too */
    close(c->fd);
    c->fd = -1;
}

static void call_free(struct call *c)
{
    struct desk *d = c->desk;

    hang_up(c);
    forget(d, c);
    for (struct call **p = &d->calls; *p; p = &(*p)->next)
        if (*p == c) {
            *p = c->next;
            break;
        }
    free(c);
}

/* Keepalive: the peer's kernel is probed while an answer is expected. */
static void keep_asking(const struct call *c, int on)
{
    int idle_s = 5, every_s = 1, ms = on ? WAITING_MS : UNANSWERED_MS;

    setsockopt(c->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
    setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* It ended before it was up. */
static void fails(struct call *c, enum rdma_cm_event_type type, int status, const char *why)
{
    hang_up(c);
    tcp_cm_tell(c, type, status, why);
}

/* ---- queue pairs ---- */

static const struct vb_rail *rail_of(const struct call *c)
{
    return ((const struct vb_lane *)c->id.context)->rail;
}

static uint8_t mtu_of(const struct vb_rail *rail, const struct vb_offer *theirs)
{
    return rail->mtu && rail->mtu < theirs->mtu ? rail->mtu : theirs->mtu;
}

/* The route. InfiniBand uses LIDs, except between subnets. */
static void address(const struct call *c, const struct vb_gid *mine, const struct vb_gid *other,
                    struct ibv_ah_attr *ah)
{
    const struct vb_rail *rail = rail_of(c);
    const struct vb_path *path = &c->desk->t->path;
    unsigned lane = c->theirs.lane;

    memset(ah, 0, sizeof *ah);
    ah->port_num = c->id.port_num;
    ah->sl = (uint8_t)(path->sl >= 0 ? path->sl : 0);
    if (mine->type == IBV_GID_TYPE_IB) {
        ah->dlid = (uint16_t)(c->theirs.lid + (lane & ((1u << c->theirs.lmc) - 1)));
        ah->src_path_bits = (uint8_t)(lane & ((1u << rail->port.lmc) - 1));
    }
    ah->is_global = mine->type != IBV_GID_TYPE_IB || memcmp(mine->raw, other->raw, 8) != 0;
    if (!ah->is_global)
        return;
    memcpy(ah->grh.dgid.raw, other->raw, sizeof other->raw);
    ah->grh.sgid_index = (uint8_t)mine->index;
    ah->grh.hop_limit = 255; /* each router decrements it */
    ah->grh.flow_label = 1 + randombytes_uniform(0xfffff);
    ah->grh.traffic_class = (uint8_t)(path->tc >= 0       ? path->tc
                                      : rail->port.tc > 0 ? rail->port.tc
                                                          : 0);
}

/* Makes it ready to receive and to send. Returns 0, or -1 with errno. */
static int make_ready(struct call *c, const struct rdma_conn_param *p, int mine, int other)
{
    const struct vb_rail *rail = rail_of(c);
    const struct desk *d = c->desk;
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR };
    int rc;

    a.path_mtu = (enum ibv_mtu)mtu_of(rail, &c->theirs);
    a.dest_qp_num = c->theirs.qpn;
    a.rq_psn = c->theirs.psn;
    a.max_dest_rd_atomic = 0; /* no RDMA reads */
    a.min_rnr_timer = 12;     /* 0.64 ms: a receiver that is not ready is a bug */
    address(c, &rail->port.gids[mine], &c->theirs.gids[other], &a.ah_attr);
    rc = d->fn->ibv_modify_qp(c->id.qp, &a,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                  IBV_QP_MIN_RNR_TIMER);
    if (rc == 0) {
        a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS,
                                  .sq_psn = c->psn,
                                  .timeout = (uint8_t)d->t->path.timeout,
                                  .retry_cnt = p->retry_count,
                                  .rnr_retry = p->rnr_retry_count };
        rc = d->fn->ibv_modify_qp(c->id.qp, &a,
                                  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                      IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                      IBV_QP_MAX_QP_RD_ATOMIC);
    }
    memcpy(&c->id.route.addr.addr.ibaddr.sgid, rail->port.gids[mine].raw, 16);
    memcpy(&c->id.route.addr.addr.ibaddr.dgid, c->theirs.gids[other].raw, 16);
    errno = rc > 0 ? rc : errno;
    return rc ? -1 : 0;
}

/* Cause of a refused queue pair, and the remedy. */
static const char *remedy(int err, char *out, size_t cap)
{
    snprintf(out, cap, "the queue pair cannot be connected (%s): %s", strerror(err),
             err == ETIMEDOUT ? "its hardware address is not resolved: ping it, check its VLAN"
             : err == EINVAL
                 ? "check show_gids, BANYAN_VERBS=gid_index and the MTU of both ends"
             : err == EPERM || err == EACCES ? "this user or container has no permission"
                                             : "see dmesg");
    return out;
}

static int create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct desk *d = desk_of(id);
    struct call *c = (struct call *)id;
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT,
                             .pkey_index = rail_of(c)->port.pkey_index,
                             .port_num = id->port_num,
                             .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
    struct ibv_qp *qp = d->fn->ibv_create_qp(pd, attr);
    int rc;

    if (!qp)
        return -1;
    rc = d->fn->ibv_modify_qp(
        qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (rc) {
        d->fn->ibv_destroy_qp(qp);
        errno = rc > 0 ? rc : errno;
        return -1;
    }
    c->psn = randombytes_random() & 0xffffff;
    id->qp = qp;
    return 0;
}

static void destroy_qp(struct rdma_cm_id *id)
{
    desk_of(id)->fn->ibv_destroy_qp(id->qp);
    id->qp = NULL;
}

/* ---- offers ---- */

static void tcp_cm_fill(const struct call *c, enum offer_kind kind, const void *data,
                        size_t len, struct vb_offer *o)
{
    *o = (struct vb_offer){ .wire = BNY_WIRE_VERSION, .kind = (uint8_t)kind };
    memcpy(o->magic, "bnyQ", 4);
    o->private_len = (uint8_t)(len < PRIVATE_MAX ? len : PRIVATE_MAX);
    if (o->private_len)
        memcpy(o->private_data, data, o->private_len);
    if (kind == OFFER_REFUSES)
        return;
    o->qpn = c->id.qp->qp_num;
    o->psn = c->psn;
    o->lid = rail_of(c)->port.lid;
    o->lmc = rail_of(c)->port.lmc;
    o->pkey = rail_of(c)->port.pkey;
    o->mtu = rail_of(c)->mtu;
    o->lane = ((const struct vb_lane *)c->id.context)->request.lane;
    o->ngids = (uint8_t)rail_of(c)->port.ngids;
    memcpy(o->gids, rail_of(c)->port.gids, sizeof o->gids);
    for (int i = 0; i < VB_GIDS; i++)
        o->gids[i].ifindex = 0;
}

/* An empty socket's buffer takes it whole. */
static int send_offer(const struct call *c, const struct vb_offer *o)
{
    ssize_t n = send(c->fd, o, sizeof *o, MSG_NOSIGNAL | MSG_DONTWAIT);

    if (n == (ssize_t)sizeof *o)
        return 0;
    errno = n < 0 ? errno : EIO;
    return -1;
}

static int is_sound(const struct vb_offer *o)
{
    if (memcmp(o->magic, "bnyQ", 4) != 0 || o->private_len > PRIVATE_MAX)
        return 0;
    if (o->kind == OFFER_REFUSES)
        return 1;
    for (int i = 0; i < o->ngids && i < VB_GIDS; i++)
        if (o->gids[i].bits > 128)
            return 0;
    return o->ngids && o->ngids <= VB_GIDS && o->qpn <= 0xffffff && o->psn <= 0xffffff &&
           o->mtu >= IBV_MTU_256 && o->mtu <= IBV_MTU_4096 && o->lmc <= 7 && o->lane < VB_LANES;
}

/* Bytes of the secret that an offer proves: proof.h. Fills *o, which the transcript borrows. */
static struct bny_transcript offer_said(const struct call *c, const struct vb_offer *sent,
                                        struct vb_offer *o)
{
    *o = *sent;
    memset(o->proof, 0, sizeof o->proof);
    return (struct bny_transcript){ .secret = c->desk->t->secret,
                                    .asked = o,
                                    .asked_len = sizeof *o,
                                    .answered = &c->greeting,
                                    .answered_len = sizeof c->greeting };
}

/* Completes a part of the input. 1: it is complete; -1: the other end is gone. */
static int receive_part(const struct call *c, void *part, size_t bytes, size_t *got)
{
    ssize_t n = recv(c->fd, (char *)part + *got, bytes - *got, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0) {
        errno = n ? errno : ECONNRESET;
        return -1;
    }
    *got += (size_t)n;
    return *got == bytes;
}

static int receive(struct call *c)
{
    return receive_part(c, &c->theirs, sizeof c->theirs, &c->got);
}

/* ---- asking ---- */

static int create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
                     enum rdma_port_space ps)
{
    struct call *c = call_new((struct desk *)channel);

    (void)ps;
    if (!c) {
        errno = ENOMEM;
        return -1;
    }
    c->id.context = context;
    *id = &c->id;
    return 0;
}

/* The peer's address has its listener: dst and src are unused. */
static int resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst,
                        int timeout_ms)
{
    struct call *c = (struct call *)id;
    const struct vb_ep *e = ((struct vb_lane *)id->context)->e->main;
    const struct vb_rail *rail = rail_of(c);
    int ms = UNANSWERED_MS;

    (void)src;
    (void)dst;
    id->verbs = rail->ctx;
    id->port_num = rail->listener->port_num;
    if (bny_verbs_port_is_down(c->desk->t, rail)) { /* TCP may find another path, and no lane
                                                       shall leave a working one for it */
        errno = ENETDOWN;
        return -1;
    }
    c->fd = bny_net_connect(&e->blob.rail[rail->index].addr);
    if (c->fd < 0) {
        errno = -c->fd;
        c->fd = -1;
        return -1;
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
    c->state = CALL_CONNECTS;
    /* half of it is random: askers that found the queue full must not all retry together */
    time_it(c, (timeout_ms + (int)randombytes_uniform((uint32_t)timeout_ms)) / 1e3);
    if (tcp_cm_watch(c, EPOLLOUT) == 0)
        return 0;
    hang_up(c);
    return -1;
}

static int resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
    (void)timeout_ms;
    tcp_cm_tell((struct call *)id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, "");
    return 0;
}

static void tcp_cm_connected(struct call *c)
{
    int err = 0;
    socklen_t len = sizeof err;

    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &len);
    time_it(c, 0);
    if (err == ECONNREFUSED) {
        fails(c, RDMA_CM_EVENT_REJECTED, REFUSED, "nobody listens there");
    } else if (err) {
        fails(c, RDMA_CM_EVENT_ADDR_ERROR, -err, strerror(err));
    } else {
        c->state = CALL_READY;
        tcp_cm_watch(c, EPOLLRDHUP);
        tcp_cm_tell(c, RDMA_CM_EVENT_ADDR_RESOLVED, 0, "");
    }
}

static int ask(struct rdma_cm_id *id, struct rdma_conn_param *p)
{
    struct call *c = (struct call *)id;

    if (c->state != CALL_READY) {
        errno = ENOTCONN;
        return -1;
    }
    tcp_cm_fill(c, OFFER_ASKS, p->private_data, p->private_data_len, &c->mine);
    c->state = CALL_HEARS;
    keep_asking(c, 1);
    return tcp_cm_watch(c, EPOLLIN | EPOLLRDHUP);
}

static int keys_fit(uint16_t a, uint16_t b)
{
    return (a & 0x7fff) == (b & 0x7fff) && ((a | b) & 0x8000);
}

static void answered(struct call *c)
{
    const struct vb_rail *rail = rail_of(c);
    const struct vb_offer *o = &c->theirs;
    struct rdma_conn_param p = bny_verbs_param(c->desk->t, NULL, 0);
    char why[200];

    if (!is_sound(o) || (o->kind != OFFER_ANSWERS && o->kind != OFFER_REFUSES) ||
        (o->kind == OFFER_ANSWERS &&
         (o->gid >= o->ngids || o->chosen >= rail->port.ngids ||
          o->gids[o->gid].type != rail->port.gids[o->chosen].type))) {
        fails(c, RDMA_CM_EVENT_CONNECT_ERROR, -EPROTO, "its answer is malformed");
        return;
    }
    if (o->kind == OFFER_REFUSES) {
        fails(c, RDMA_CM_EVENT_REJECTED, SAID_NO, "it said no");
        return;
    }
    c->theirs.lane = ((const struct vb_lane *)c->id.context)->request.lane;
    if (make_ready(c, &p, o->chosen, o->gid) != 0) {
        fails(c, RDMA_CM_EVENT_CONNECT_ERROR, -errno, remedy(errno, why, sizeof why));
        return;
    }
    c->state = CALL_UP;
    keep_asking(c, 0);
    tcp_cm_tell(c, RDMA_CM_EVENT_ESTABLISHED, 0, "");
}

/* ---- answering ---- */

static int bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
    struct call *c = (struct call *)id;
    const struct sockaddr_in *in = (const void *)addr;
    const struct sockaddr_in6 *in6 = (const void *)addr;

    c->addr = (struct bny_addr){ .family = addr->sa_family == AF_INET6 ? 6 : 4 };
    if (c->addr.family == 6)
        memcpy(c->addr.ip, &in6->sin6_addr, 16);
    else
        memcpy(c->addr.ip, &in->sin_addr, 4);
    return 0;
}

static int start_listening(struct rdma_cm_id *id, int backlog)
{
    struct call *c = (struct call *)id;

    const char *range = c->desk->t->port_range;

    c->fd = range && *range ? bny_net_listen(&c->addr, range, backlog)
                            : bny_net_listen_at(&c->addr, backlog);
    if (c->fd < 0) {
        errno = range && *range ? EADDRINUSE : -c->fd;
        c->fd = -1;
        return -1;
    }
    c->state = CALL_LISTENS;
    return tcp_cm_watch(c, EPOLLIN);
}

static __be16 get_src_port(struct rdma_cm_id *id)
{
    return htons(((struct call *)id)->addr.port);
}

/* An empty socket's buffer takes it; else the offer proves nothing. */
static void greet(struct call *c)
{
    c->greeting = (struct vb_greeting){ .wire = BNY_WIRE_VERSION };
    memcpy(c->greeting.magic, "bnyR", 4);
    randombytes_buf(c->greeting.nonce, sizeof c->greeting.nonce);
    (void)!send(c->fd, &c->greeting, sizeof c->greeting, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Refuses a connection whose offer is undecided, for this reason. */
static void say_no(struct call *c, enum vb_refusal why)
{
    struct vb_offer o;
    uint8_t byte = (uint8_t)why;

    tcp_cm_fill(c, OFFER_REFUSES, &byte, 1, &o);
    send_offer(c, &o);
}

static void asked(struct call *c)
{
    struct vb_offer o;
    struct bny_transcript t = offer_said(c, &c->theirs, &o);

    if (!is_sound(&c->theirs) || c->theirs.kind != OFFER_ASKS ||
        !bny_proof_is_good(c->theirs.proof, sizeof c->theirs.proof, &t, BNY_PROOF_ASKER)) {
        c->theirs.private_len = 0; /* counts as a request that is not from a rank of this job */
        c->theirs.ngids = 0;
    }
    time_it(c, 0);
    c->state = CALL_ASKED;
    tcp_cm_watch(c, 0); /* sending the answer reveals its end */
    tcp_cm_tell(c, RDMA_CM_EVENT_CONNECT_REQUEST, 0, "");
}

/* 1: still no offer. An asker that gave up has closed, and may be back on another
 * connection. */
static int hear_ringing(struct call *c)
{
    struct pollfd p = { .fd = c->fd, .events = POLLRDHUP };
    int rc = poll(&p, 1, 0) > 0 ? -1 : receive(c);

    if (rc == 0)
        return 1;
    if (rc < 0)
        call_free(c);
    else
        asked(c);
    return 0;
}

/* Waited long enough: refuses it, unless its offer is here now. */
static void send_away(struct call *c)
{
    if (!hear_ringing(c))
        return;
    say_no(c, VB_BUSY);
    call_free(c);
}

/* If too many wait, refuses the oldest, which retries. */
static void tcp_cm_make_room(struct desk *d)
{
    uint32_t n = 0, most = VB_HALF_MAX(d->t->tp.nranks);
    struct call *oldest = NULL;

    for (struct call *c = d->calls; c; c = c->next)
        if (c->state == CALL_RINGS) {
            n++;
            if (!oldest || c->deadline_ns < oldest->deadline_ns)
                oldest = c;
        }
    if (n >= (most < RINGING_MIN ? RINGING_MIN : most))
        send_away(oldest);
}

/* No descriptor is left: refuses the connection, or its event would repeat for ever. */
static void turn_away(struct desk *d, int listener)
{
    struct call c = { .desk = d };
    struct bny_addr from;

    close(d->spare);
    c.fd = bny_net_accept(listener, &from);
    if (c.fd >= 0) {
        greet(&c);
        say_no(&c, VB_NO_DESCRIPTOR);
        close(c.fd);
    }
    d->spare = bny_fd_high(open("/dev/null", O_RDONLY | O_CLOEXEC));
    bny_verbs_starves(d->t, EMFILE, "too many open files to accept them");
    d->turned++;
    if ((d->turned & (d->turned - 1)) == 0)
        bny_warn("verbs: rank %d has no descriptor left for another connection, which each "
                 "queue pair needs: ulimit -n 65536, or BANYAN_VERBS=connect=cm on all hosts",
                 d->t->tp.rank);
}

static void rings(struct call *listener)
{
    struct desk *d = listener->desk;
    struct bny_addr from;
    int fd = bny_net_accept(listener->fd, &from);
    struct call *c;

    if (fd == -EMFILE || fd == -ENFILE)
        turn_away(d, listener->fd);
    if (fd < 0)
        return;
    tcp_cm_make_room(d);
    c = call_new(d);
    if (!c) {
        bny_verbs_starves(d->t, ENOMEM, "no memory for a connection that a rank requests");
        close(fd);
        return;
    }
    c->fd = fd;
    c->id.verbs = listener->id.verbs;
    c->id.port_num = listener->id.port_num;
    c->state = CALL_RINGS;
    greet(c);
    time_it(c, RINGING_S);
    if (tcp_cm_watch(c, EPOLLIN | EPOLLRDHUP) != 0)
        call_free(c);
}

static int reject(struct rdma_cm_id *id, const void *data, uint8_t len)
{
    struct call *c = (struct call *)id;
    struct vb_offer o;

    if (c->state != CALL_ASKED)
        return 0;
    tcp_cm_fill(c, OFFER_REFUSES, data, len, &o);
    send_offer(c, &o);
    hang_up(c);
    return 0;
}

/* Why the two ports cannot connect; NULL: they can. */
static const char *misfit(const struct call *c, int *mine, int *other, char *out, size_t cap)
{
    const struct vb_rail *rail = rail_of(c);
    char ours[64], theirs[64];

    if (!keys_fit(rail->port.pkey, c->theirs.pkey)) {
        snprintf(
            out, cap,
            "its partition key is 0x%04x, ours 0x%04x: give both ends one BANYAN_VERBS=pkey, "
            "and at least one full membership (0x8000)",
            c->theirs.pkey, rail->port.pkey);
        return out;
    }
    if (bny_verbs_port_pair(rail, c->theirs.gids, c->theirs.ngids, mine, other))
        return NULL;
    snprintf(out, cap,
             "none of its GIDs has the type of one of ours (its first: %s, ours: %s): give "
             "both interfaces an address of one family, or name GIDs by BANYAN_VERBS=gid_index",
             bny_verbs_gid_text(&c->theirs.gids[0], theirs),
             bny_verbs_gid_text(&rail->port.gids[0], ours));
    return out;
}

static int answer(struct rdma_cm_id *id, struct rdma_conn_param *p)
{
    struct call *c = (struct call *)id;
    int mine = 0, other = 0, keep;
    struct vb_offer o;
    char why[400];

    if (c->state != CALL_ASKED || c->theirs.ngids == 0) {
        errno = ENOTCONN;
        return -1;
    }
    if (misfit(c, &mine, &other, why, sizeof why)) {
        bny_warn("verbs: rank %d and device %s: %s",
                 ((struct vb_lane *)id->context)->request.from, rail_of(c)->at, why);
        errno = EADDRNOTAVAIL;
        return -1;
    }
    if (make_ready(c, p, mine, other) != 0) {
        keep = errno;
        bny_warn("verbs: device %s: %s", rail_of(c)->at, remedy(keep, why, sizeof why));
        errno = keep;
        return -1;
    }
    tcp_cm_fill(c, OFFER_ANSWERS, p->private_data, p->private_data_len, &o);
    o.gid = (uint8_t)mine;
    o.chosen = (uint8_t)other;
    if (send_offer(c, &o) != 0)
        return -1;
    c->state = CALL_UP;
    return tcp_cm_watch(c, EPOLLIN | EPOLLRDHUP);
}

/* ---- the end ---- */

static int disconnect(struct rdma_cm_id *id)
{
    struct call *c = (struct call *)id;
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };

    if (id->qp)
        c->desk->fn->ibv_modify_qp(id->qp, &a, IBV_QP_STATE);
    if (c->state != CALL_LISTENS)
        hang_up(c);
    return 0;
}

static int destroy_id(struct rdma_cm_id *id)
{
    call_free((struct call *)id);
    return 0;
}

/* ---- looking ---- */

/* TCP got no answer for this long. */
static void silent(struct call *c)
{
    fails(
        c, RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT,
        "it does not answer over TCP: check for a firewall (BANYAN_PORT_RANGE), or its accept "
        "queue is full (net.core.somaxconn)");
}

/* The other end closed, or sent invalid input. */
static void cut(struct call *c)
{
    int was_up = c->state == CALL_UP;

    if (was_up)
        fails(c, RDMA_CM_EVENT_DISCONNECTED, 0, "");
    else
        fails(c, RDMA_CM_EVENT_UNREACHABLE, -ECONNRESET, "it closed before it answered");
}

/* The answer, or the greeting, that the offer has to wait for. */
static int hear(struct call *c)
{
    struct bny_transcript t;
    struct vb_offer o;
    int rc;

    if (c->state == CALL_WAITS)
        return receive(c);
    rc = receive_part(c, &c->greeting, sizeof c->greeting, &c->greeted);
    if (rc <= 0)
        return rc;
    if (memcmp(c->greeting.magic, "bnyR", 4) != 0 || c->greeting.wire != BNY_WIRE_VERSION) {
        errno = EPROTO;
        return -1;
    }
    c->state = CALL_WAITS;
    rc = receive(c); /* a refusal may have come with it */
    if (rc != 0)
        return rc;
    t = offer_said(c, &c->mine, &o);
    bny_proof_make(c->mine.proof, &t, BNY_PROOF_ASKER);
    return send_offer(c, &c->mine);
}

static void heard(struct call *c)
{
    int rc = hear(c);

    if (rc < 0 && errno == ETIMEDOUT)
        silent(c);
    else if (rc < 0 && errno == EPROTO)
        fails(c, RDMA_CM_EVENT_CONNECT_ERROR, -EPROTO, "its greeting is of another protocol");
    else if (rc < 0)
        cut(c);
    else if (rc)
        answered(c);
}

static void tcp_cm_look_at(struct call *c, uint32_t events)
{
    switch (c->state) {
    case CALL_LISTENS: rings(c); break;
    case CALL_CONNECTS: tcp_cm_connected(c); break;
    case CALL_HEARS:
    case CALL_WAITS: heard(c); break;
    case CALL_RINGS: hear_ringing(c); break;
    case CALL_ASKED: /* only EPOLLERR and EPOLLHUP are reported: its answer will fail */
        epoll_ctl(c->desk->ch.fd, EPOLL_CTL_DEL, c->fd, NULL);
        break;
    default:
        if (events)
            cut(c);
    }
}

/* TCP did not connect in time, unless it did and the event is still unread. */
static void end_connecting(struct call *c)
{
    struct pollfd p = { .fd = c->fd, .events = POLLOUT };

    if (poll(&p, 1, 0) > 0)
        tcp_cm_connected(c);
    else
        silent(c);
}

static void look_at_clock(struct desk *d)
{
    for (struct call *c = d->calls, *next; c && d->timed; c = next) {
        next = c->next;
        if (!c->deadline_ns || !bny_deadline_passed(c->deadline_ns))
            continue;
        if (c->state == CALL_RINGS)
            send_away(c);
        else
            end_connecting(c);
    }
}

static void tcp_cm_look(struct desk *d)
{
    struct epoll_event e;

    for (int i = 0; i < LOOKS_MAX && !d->first && epoll_wait(d->ch.fd, &e, 1, 0) == 1; i++)
        if (e.data.ptr)
            tcp_cm_look_at(e.data.ptr, e.events);
    look_at_clock(d);
}

static int get_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
    struct desk *d = (struct desk *)channel;
    struct told *e;
    uint64_t rung;

    if (!d->first)
        tcp_cm_look(d);
    e = d->first;
    if (!e) {
        errno = EAGAIN;
        return -1;
    }
    d->first = e->next;
    if (!d->first) {
        d->end = &d->first;
        (void)!read(d->bell, &rung, sizeof rung);
    }
    memcpy(last_why, e->why, sizeof last_why);
    *event = &e->ev;
    return 0;
}

static int ack_event(struct rdma_cm_event *event)
{
    free(event);
    return 0;
}

static const char *event_str(enum rdma_cm_event_type type)
{
    (void)type;
    return last_why;
}

static int set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t len)
{
    (void)id; /* make_ready() does what rdma_cm needs this for */
    (void)level;
    (void)name;
    (void)value;
    (void)len;
    return 0;
}

/* ---- the desk ---- */

int bny_verbs_tcp_cm_contexts(const struct vb_tp *t, struct ibv_context *const **out)
{
    const struct desk *d = (const struct desk *)t->events;

    *out = d->contexts;
    return d->ncontexts;
}

static void desk_close(struct rdma_event_channel *channel)
{
    struct desk *d = (struct desk *)channel;

    while (d->calls)
        call_free(d->calls);
    while (d->first) {
        struct told *e = d->first;

        d->first = e->next;
        free(e);
    }
    for (int i = 0; i < d->ncontexts; i++)
        d->fn->ibv_close_device(d->contexts[i]);
    if (d->spare >= 0)
        close(d->spare);
    if (d->bell >= 0)
        close(d->bell);
    if (d->ch.fd >= 0)
        close(d->ch.fd);
    free(d);
}

static void open_devices(struct desk *d)
{
    int n = 0;
    struct ibv_device **list = d->fn->ibv_get_device_list(&n);

    for (int i = 0; list && i < n && d->ncontexts < CONTEXTS_MAX; i++) {
        struct ibv_context *ctx;

        if (list[i]->transport_type != IBV_TRANSPORT_IB &&
            !(d->t->datagrams && list[i]->transport_type == IBV_TRANSPORT_UNSPECIFIED))
            continue; /* EFA has only the latter */
        ctx = d->fn->ibv_open_device(list[i]);
        if (ctx)
            d->contexts[d->ncontexts++] = ctx;
        else
            bny_warn("verbs: device %s does not open: %s; see that /dev/infiniband/uverbs* are "
                     "yours to read and write",
                     list[i]->name, strerror(errno));
    }
    if (list)
        d->fn->ibv_free_device_list(list);
}

static void own_functions(struct vb_fn *own, const struct vb_fn *fn)
{
    *own = *fn;
    own->rdma_create_event_channel = NULL; /* bny_verbs_tcp_cm_open() is */
    own->rdma_destroy_event_channel = desk_close;
    own->rdma_create_id = create_id;
    own->rdma_destroy_id = destroy_id;
    own->rdma_bind_addr = bind_addr;
    own->rdma_listen = start_listening;
    own->rdma_get_src_port = get_src_port;
    own->rdma_resolve_addr = resolve_addr;
    own->rdma_resolve_route = resolve_route;
    own->rdma_create_qp = create_qp;
    own->rdma_destroy_qp = destroy_qp;
    own->rdma_connect = ask;
    own->rdma_accept = answer;
    own->rdma_reject = reject;
    own->rdma_disconnect = disconnect;
    own->rdma_set_option = set_option;
    own->rdma_get_cm_event = get_event;
    own->rdma_ack_cm_event = ack_event;
    own->rdma_event_str = event_str;
}

int bny_verbs_tcp_cm_open(struct vb_tp *t)
{
    struct epoll_event e = { .events = EPOLLIN };
    struct desk *d = calloc(1, sizeof *d);

    if (!d)
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for transport verbs", t->tp.rank);
    d->t = t;
    d->fn = t->fn;
    d->end = &d->first;
    d->ch.fd = bny_fd_high(epoll_create1(EPOLL_CLOEXEC));
    d->bell = bny_fd_high(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    d->spare = bny_fd_high(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (d->ch.fd < 0 || d->bell < 0 || d->spare < 0 ||
        epoll_ctl(d->ch.fd, EPOLL_CTL_ADD, d->bell, &e) != 0) {
        int rc = bny_fail_errno("rank %d: no descriptors for transport verbs (ulimit -n)",
                                t->tp.rank);

        desk_close(&d->ch);
        return rc;
    }
    own_functions(&t->own, t->fn);
    t->fn = &t->own;
    t->events = &d->ch;
    open_devices(d);
    if (d->ncontexts)
        return 0;
    return bny_fail(
        BANYAN_ENOTSUP,
        "rank %d: no RDMA device with connected queue pairs can be opened: see "
        "ibv_devinfo, and ls -l /dev/infiniband; iWARP needs BANYAN_VERBS=connect=cm",
        t->tp.rank);
}
