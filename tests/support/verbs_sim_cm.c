/* SPDX-License-Identifier: BSD-3-Clause */
/* The simulated device: how its queue pairs come to be connected. Events are told in order, per
 * channel. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/sa.h>

#include "tests/support/verbs_sim_inside.h"

enum {
    REQUEST_BYTES = 56,
    ACCEPT_BYTES = 196,
    REJECT_BYTES = 148
}; /* InfiniBand pads private data to these */

struct sim_event {
    struct rdma_cm_event ev;
    uint8_t data[ACCEPT_BYTES];
    struct sim_event *next;
};

struct sim_events {
    struct rdma_event_channel ch;
    struct sim_event *first, **end;
    unsigned number; /* the so many-th that was made */
    unsigned binds;  /* its identifiers are of the devices by turns */
};

struct sim_id {
    struct rdma_cm_id id;
    struct sim_id *peer, *next;
    uint16_t port; /* listening, or asked for */
    int listening, connected;
    int backlog, waiting;         /* of a listener: requests that nobody took yet */
    struct rdma_conn_param asked; /* where dropped: what it asks with */
    uint8_t asked_data[REQUEST_BYTES];
    int dropped; /* the listener had no place for its request; it is sent again */
    int rnr_retry;
    int mtu; /* enum ibv_mtu, of the path; 0: the interface's */
};

static struct sim_id *ids;
static uint16_t next_port = 40000;
static unsigned channels;

static void push(struct sim_id *to, enum rdma_cm_event_type type, int status, const void *data,
                 size_t len, size_t padded)
{
    struct sim_events *ch = (struct sim_events *)to->id.channel;
    struct sim_event *e = calloc(1, sizeof *e);

    if (!e)
        abort();
    e->ev.id = &to->id;
    e->ev.event = type;
    e->ev.status = status;
    if (padded) {
        if (len)
            memcpy(e->data, data, len);
        e->ev.param.conn.private_data = e->data;
        e->ev.param.conn.private_data_len = (uint8_t)padded;
    }
    if (!ch->first)
        sim_fd_set(ch->ch.fd, 1);
    *ch->end = e;
    ch->end = &e->next;
}

static struct rdma_event_channel *create_event_channel(void)
{
    struct sim_events *ch =
        sim_fails("rdma_create_event_channel", EACCES) ? NULL : calloc(1, sizeof *ch);

    if (!ch)
        return NULL;
    verbs_sim.open++;
    ch->number = channels++;
    ch->ch.fd = sim_fd();
    ch->end = &ch->first;
    return &ch->ch;
}

static void taken(struct sim_id *child);

static int get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
    struct sim_events *ch = (struct sim_events *)channel;
    struct sim_event *e = ch->first;

    if (!e) {
        errno = EAGAIN;
        return -1;
    }
    ch->first = e->next;
    if (!ch->first) {
        ch->end = &ch->first;
        sim_fd_set(channel->fd, 0);
    }
    *event = &e->ev;
    if (e->ev.event == RDMA_CM_EVENT_CONNECT_REQUEST)
        taken((struct sim_id *)e->ev.id);
    return 0;
}

static int ack_cm_event(struct rdma_cm_event *event)
{
    free(event);
    return 0;
}

static struct sim_id *new_id(struct rdma_event_channel *channel, void *context)
{
    struct sim_id *s = calloc(1, sizeof *s);

    if (!s)
        abort();
    s->id.channel = channel;
    s->id.context = context;
    s->next = ids;
    ids = s;
    verbs_sim.open++;
    return s;
}

static int create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
                     enum rdma_port_space ps)
{
    (void)ps;
    if (sim_fails("rdma_create_id", ENOMEM))
        return -1;
    *id = &new_id(channel, context)->id;
    return 0;
}

static void forget_events(struct sim_id *s)
{
    struct sim_events *ch = (struct sim_events *)s->id.channel;

    for (struct sim_event **p = &ch->first; *p;) {
        struct sim_event *e = *p;

        if (e->ev.id == &s->id) {
            *p = e->next;
            free(e);
        } else {
            p = &e->next;
        }
    }
    ch->end = &ch->first;
    while (*ch->end)
        ch->end = &(*ch->end)->next;
}

static int disconnect(struct rdma_cm_id *id)
{
    struct sim_id *s = (struct sim_id *)id;

    if (s->connected && verbs_sim.deafens && sim_is_dead(id->verbs))
        verbs_sim.deaf |= 1 << (id->verbs - sim_context);
    if (id->qp)
        sim_qp_error((struct sim_qp *)id->qp);
    if (s->connected && s->peer && s->peer->connected)
        push(s->peer, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0, 0);
    s->connected = 0;
    return 0;
}

static int destroy_id(struct rdma_cm_id *id)
{
    struct sim_id *s = (struct sim_id *)id;

    disconnect(id);
    forget_events(s);
    for (struct sim_id **p = &ids; *p; p = &(*p)->next)
        if (*p == s) {
            *p = s->next;
            break;
        }
    if (s->peer)
        s->peer->peer = NULL;
    free(s);
    verbs_sim.open--;
    return 0;
}

static int do_reject(struct rdma_cm_id *id, const void *data, uint8_t len)
{
    struct sim_id *s = (struct sim_id *)id;

    if (s->peer)
        push(s->peer, RDMA_CM_EVENT_REJECTED, 28, data, len, REJECT_BYTES);
    return 0;
}

/* Requests that nobody took end with it; the kernel turns them away. */
static void destroy_event_channel(struct rdma_event_channel *channel)
{
    struct sim_events *ch = (struct sim_events *)channel;

    while (ch->first) {
        struct sim_event *e = ch->first;
        struct rdma_cm_id *id = e->ev.event == RDMA_CM_EVENT_CONNECT_REQUEST ? e->ev.id : NULL;

        ch->first = e->next;
        if (!ch->first)
            ch->end = &ch->first;
        free(e);
        if (id) {
            do_reject(id, NULL, 0);
            destroy_id(id);
        }
    }
    close(channel->fd);
    free(ch);
    verbs_sim.open--;
}

/* All devices have one address: the port decides. */
static struct ibv_context *device_of(uint16_t port)
{
    return &sim_context[port % sim_devices()];
}

/* 198.51.100.1 and on are addresses of one device each, on one network; -1: another one. */
static int addressed(const struct sockaddr *addr)
{
    uint32_t ip = addr && addr->sa_family == AF_INET
                      ? ntohl(((const struct sockaddr_in *)(const void *)addr)->sin_addr.s_addr)
                      : 0;

    return verbs_sim.one_network && ip >> 8 == 0xc63364 && (ip & 255)
               ? (int)((ip & 255) - 1) % sim_devices()
               : -1;
}

static int bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
    struct sim_events *ch = (struct sim_events *)id->channel;
    struct sim_id *s = (struct sim_id *)id;
    int device;

    if (sim_fails("rdma_bind_addr", EIO))
        return -1;
    if (addr->sa_family != AF_INET) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    device = addressed(addr);
    if (device < 0)
        device = (int)(ch->binds++ % (unsigned)sim_devices());
    while (next_port % sim_devices() != device)
        next_port++;
    s->port = next_port++;
    id->verbs = device_of(s->port);
    id->port_num = 1;
    return 0;
}

static int do_listen(struct rdma_cm_id *id, int backlog)
{
    if (sim_fails("rdma_listen", EADDRINUSE))
        return -1;
    ((struct sim_id *)id)->listening = 1;
    ((struct sim_id *)id)->backlog = backlog;
    return 0;
}

static __be16 get_src_port(struct rdma_cm_id *id)
{
    return htons(((struct sim_id *)id)->port);
}

static int resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst,
                        int timeout_ms)
{
    struct sim_id *s = (struct sim_id *)id;

    if (sim_fails("rdma_resolve_addr", ENETUNREACH))
        return -1;
    (void)timeout_ms;
    s->port = ntohs(((struct sockaddr_in *)dst)->sin_port);
    id->verbs = addressed(src) < 0 ? device_of(s->port) : &sim_context[addressed(src)];
    id->port_num = 1;
    push(s, sim_is_dead(id->verbs) ? RDMA_CM_EVENT_ADDR_ERROR : RDMA_CM_EVENT_ADDR_RESOLVED, 0,
         NULL, 0, 0);
    return 0;
}

static int resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
    (void)timeout_ms;
    if (sim_fails("rdma_resolve_route", EHOSTUNREACH))
        return -1;
    push((struct sim_id *)id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL, 0, 0);
    return 0;
}

static int create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
    struct sim_qp *q = sim_qp_new(pd, a);

    if (!q)
        return -1;
    id->qp = &q->qp;
    return 0;
}

static void destroy_qp(struct rdma_cm_id *id)
{
    sim_qp_free((struct sim_qp *)id->qp);
    id->qp = NULL;
}

static struct sim_id *listener_at(uint16_t port)
{
    struct sim_id *l = ids;

    while (l && !(l->listening && l->port == port))
        l = l->next;
    return l;
}

static void request(struct sim_id *s, struct sim_id *l, const struct rdma_conn_param *p)
{
    struct sim_id *child = new_id(l->id.channel, l->id.context);

    child->id.verbs = l->id.verbs;
    child->id.port_num = 1;
    child->port = l->port;
    child->peer = s;
    s->peer = child;
    l->waiting++;
    push(child, RDMA_CM_EVENT_CONNECT_REQUEST, 0, p->private_data, p->private_data_len,
         REQUEST_BYTES);
}

/* The listener has a place again, for one that asks once more. */
static void taken(struct sim_id *child)
{
    struct sim_id *l = listener_at(child->port), *s = ids;

    if (!l)
        return;
    l->waiting--;
    while (s && !(s->dropped && s->port == l->port))
        s = s->next;
    if (!s)
        return;
    s->dropped = 0;
    request(s, l, &s->asked);
}

static int do_connect(struct rdma_cm_id *id, struct rdma_conn_param *p)
{
    struct sim_id *s = (struct sim_id *)id, *l = listener_at(s->port);

    if (sim_fails("rdma_connect", EINVAL))
        return -1;
    s->rnr_retry = p->rnr_retry_count;
    verbs_sim.retry = p->retry_count;
    if (verbs_sim.deaf >> (s->id.verbs - sim_context) & 1)
        return 0; /* no answer comes */
    if (!l) {
        push(s, RDMA_CM_EVENT_REJECTED, 8, NULL, 0, REJECT_BYTES);
        return 0;
    }
    if (l->waiting < l->backlog) {
        request(s, l, p);
        return 0;
    }
    memcpy(s->asked_data, p->private_data, p->private_data_len);
    s->asked = *p;
    s->asked.private_data = s->asked_data;
    s->dropped = 1;
    verbs_sim.dropped++;
    return 0;
}

static int mtu_of(const struct sim_id *s)
{
    const struct sim_events *ch = (const struct sim_events *)s->id.channel;

    return s->mtu ? s->mtu : verbs_sim.mtu[0] ? verbs_sim.mtu[ch->number % 2] : IBV_MTU_4096;
}

/* Both ends have what the asker said. */
static void ready(struct sim_id *s, int rnr_retry, int mtu)
{
    struct sim_qp *q = (struct sim_qp *)s->id.qp;

    q->remote = s->peer ? (struct sim_qp *)s->peer->id.qp : NULL;
    q->rnr_retry = rnr_retry;
    q->mtu = 128u << mtu;
    if (q->qp.state == IBV_QPS_INIT)
        q->qp.state = IBV_QPS_RTS;
    s->connected = 1;
}

static int do_accept(struct rdma_cm_id *id, struct rdma_conn_param *p)
{
    struct sim_id *s = (struct sim_id *)id;

    if (sim_fails("rdma_accept", EINVAL))
        return -1;
    if (!s->peer || !s->peer->id.qp) {
        errno = EINVAL;
        return -1;
    }
    ready(s, s->peer->rnr_retry, mtu_of(s->peer));
    ready(s->peer, p->rnr_retry_count, mtu_of(s->peer));
    push(s->peer, RDMA_CM_EVENT_ESTABLISHED, 0, p->private_data, p->private_data_len,
         ACCEPT_BYTES);
    push(s, RDMA_CM_EVENT_ESTABLISHED, 0, NULL, 0, 0);
    return 0;
}

static int set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t len)
{
    const struct ibv_path_data *path = value;

    if (level == RDMA_OPTION_ID && name == RDMA_OPTION_ID_TOS)
        verbs_sim.tc = *(uint8_t *)value;
    if (level == RDMA_OPTION_ID && name == RDMA_OPTION_ID_ACK_TIMEOUT)
        verbs_sim.timeout = *(uint8_t *)value;
    if (level != RDMA_OPTION_IB || name != RDMA_OPTION_IB_PATH)
        return 0;
    if (verbs_sim.no_path || len != sizeof *path || path->path.mtu >> 6 != 2 ||
        path->flags !=
            (IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL)) {
        errno = EINVAL;
        return -1;
    }
    ((struct sim_id *)id)->mtu = path->path.mtu & 63;
    verbs_sim.sl = ntohs(path->path.qosclass_sl) & 15;
    push((struct sim_id *)id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL, 0, 0);
    return 0;
}

void verbs_sim_unreachable(struct rdma_cm_id *id)
{
    push((struct sim_id *)id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, NULL, 0, 0);
}

static const char *event_str(enum rdma_cm_event_type event)
{
    return event == RDMA_CM_EVENT_UNREACHABLE ? "unreachable" : "a simulated event";
}

void sim_cm_functions(struct vb_fn *fn)
{
    fn->rdma_create_event_channel = create_event_channel;
    fn->rdma_destroy_event_channel = destroy_event_channel;
    fn->rdma_create_id = create_id;
    fn->rdma_destroy_id = destroy_id;
    fn->rdma_bind_addr = bind_addr;
    fn->rdma_listen = do_listen;
    fn->rdma_get_src_port = get_src_port;
    fn->rdma_resolve_addr = resolve_addr;
    fn->rdma_resolve_route = resolve_route;
    fn->rdma_create_qp = create_qp;
    fn->rdma_destroy_qp = destroy_qp;
    fn->rdma_connect = do_connect;
    fn->rdma_accept = do_accept;
    fn->rdma_reject = do_reject;
    fn->rdma_disconnect = disconnect;
    fn->rdma_set_option = set_option;
    fn->rdma_get_cm_event = get_cm_event;
    fn->rdma_ack_cm_event = ack_cm_event;
    fn->rdma_event_str = event_str;
}
