/* SPDX-License-Identifier: BSD-3-Clause */
/* The tcp transport: the table, polling, life and death of endpoints. tcp.h has the design.
 *
 * Polling. All sockets are in one edge-triggered epoll set; an edge sets readable or writable
 * and puts the connection into the active list, where it stays while it can progress without a
 * new edge. poll() calls epoll once and serves the list; poll_ep() polls the sockets of one
 * peer directly. */
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/param.h"
#include "base/secret.h"
#include "transport/tcp/tcp.h"

#define EPOLL_BATCH 32
#define HOLD_NS     1000000u
#define WATCH_EVERY 64 /* polls of all sockets between clock reads, if nothing waits */
#define SERVE_EVERY 16 /* idle poll_ep() calls between two full polls */

extern const struct bny_transport_ops bny_tcp_ops;

/* ---- attention ---- */

void bny_tcp_activate(struct tcp_conn *c)
{
    struct tcp_tp *t = c->tp;

    if (c->active)
        return;
    c->active = 1;
    c->next_active = NULL;
    *t->active_tail = c;
    t->active_tail = &c->next_active;
}

static struct tcp_conn *pop_active(struct tcp_tp *t)
{
    struct tcp_conn *c = t->active_head;

    t->active_head = c->next_active;
    if (!t->active_head)
        t->active_tail = &t->active_head;
    c->active = 0;
    return c;
}

/* Can it progress now, or does an event wait? */
static int wants_attention(const struct tcp_conn *c)
{
    if (c->reported != c->written && !c->resuming)
        return 1;
    if (c->state != TCP_OPEN)
        return 0;
    if (c->outgoing)
        return c->readable || (c->writable && bny_tcp_pending(c));
    return c->ep->claimed && !c->streaming && !c->stalled && (c->readable || c->more);
}

static int progress(struct tcp_conn *c, struct bny_event *ev, int n)
{
    if (!c->outgoing)
        return c->ep->claimed ? bny_tcp_deliver(c, ev, n) : 0;
    if (c->readable && c->state == TCP_OPEN)
        bny_tcp_read_control(c);
    bny_tcp_flush(c);
    return bny_tcp_take_sent(c, ev, n);
}

void bny_tcp_watch(struct tcp_conn *c)
{
    int one = 1, idle = 5, every = 1, times = 3;
    struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                              .data.ptr = c };

    if (epoll_ctl(c->tp->epfd, EPOLL_CTL_ADD, c->fd, &ev) != 0)
        bny_fail_errno("cannot watch a socket"); /* the handshake's deadline ends the attempt */
    /* A vanished host ends no stream. Without a user timeout, which would end a connection
     * whose peer only computes. */
    setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
}

/* One pass over all sockets: new edges, new connections, handshakes, deadlines. */
static void tcp_serve(struct tcp_tp *t)
{
    struct epoll_event evs[EPOLL_BATCH];
    int n = epoll_wait(t->epfd, evs, EPOLL_BATCH, 0);

    for (int i = 0; i < n; i++) {
        struct tcp_conn *c = evs[i].data.ptr;

        if (evs[i].data.u64 < TCP_ADDRS) {
            bny_tcp_accept(t, t->listeners[evs[i].data.u64]);
        } else if (c->state == TCP_OPEN) {
            c->readable |= (evs[i].events & ~(uint32_t)EPOLLOUT) != 0;
            c->writable |= (evs[i].events & EPOLLOUT) != 0;
            bny_tcp_activate(c);
        } else {
            bny_tcp_join_event(c);
        }
    }
    bny_tcp_join_timers(t);
    if (t->tp.unsent || t->serves++ % WATCH_EVERY == 0)
        bny_tcp_watch_paths(t);
    while (t->grave) {
        struct tcp_conn *c = t->grave;

        t->grave = c->next_active;
        free(c);
    }
}

/* ---- the end of connections and peers ---- */

void bny_tcp_shut(struct tcp_conn *c)
{
    if (!c->outgoing && c->state == TCP_OPEN)
        c->ep->ep.coming--;
    bny_tcp_join_end(c);
    bny_tcp_close(c);
    c->state = TCP_CLOSED;
    c->readable = c->resuming = 0;
    if (c->outgoing) {
        bny_tcp_finish_items(c); /* nobody reads the memory any more */
        bny_tcp_activate(c);
    }
}

void bny_tcp_down(struct tcp_ep *e, const char *why)
{
    struct tcp_tp *t = (struct tcp_tp *)e->ep.tp;

    for (int lane = 0; lane < TCP_LANES; lane++) {
        if (e->out[lane])
            bny_tcp_shut(e->out[lane]);
        if (e->in[lane])
            bny_tcp_shut(e->in[lane]);
    }
    t->nends -= e->ends.since_ns != 0;
    e->ends.since_ns = 0;
    if (e->down || e->left)
        return;
    if (!e->reason)
        e->reason = strdup(why);
    e->down = 1;
    t->ndown++;
}

void bny_tcp_gone(struct tcp_ep *e, const char *why)
{
    struct tcp_tp *t = (struct tcp_tp *)e->ep.tp;

    if (e->ends.since_ns || e->down)
        return;
    bny_tcp_join_half(t, e->ep.peer);
    for (int lane = 0; lane < TCP_LANES; lane++)
        if (e->out[lane])
            bny_tcp_shut(e->out[lane]);
    if (!e->ep.coming || e->left) {
        bny_tcp_down(e, why);
        return;
    }
    e->reason = strdup(why);
    bny_last_reads_go_on(&e->ends, &e->ep, bny_now_ns());
    t->nends++;
}

/* Ended peers whose input is complete or overdue. */
static void end_peers(struct tcp_tp *t)
{
    uint64_t now = bny_now_ns();

    for (int r = 0; r < t->tp.nranks && t->nends; r++) {
        struct tcp_ep *e = t->eps[r];

        if (e && e->ends.since_ns && !bny_last_reads_go_on(&e->ends, &e->ep, now))
            bny_tcp_down(e, "it ended");
    }
}

/* DOWN comes after every SENT of the endpoint. */
static int take_down(struct tcp_ep *e, struct bny_event *ev)
{
    for (int lane = 0; lane < TCP_LANES; lane++)
        if (e->out[lane] && e->out[lane]->reported != e->out[lane]->written)
            return 0;
    if (e->down != 1 || !e->claimed)
        return 0;
    e->down = 2;
    ((struct tcp_tp *)e->ep.tp)->ndown--;
    *ev = (struct bny_event){ .kind = BNY_EV_DOWN, .ep = &e->ep, .reason = tcp_reason(e) };
    return 1;
}

/* ---- set-up ---- */

static void tcp_destroy(struct bny_tp *tp);

static int tcp_create(struct bny_tp **out, const struct bny_tp_config *cfg)
{
    struct tcp_tp *t;
    int rc;

    *out = NULL;
    if (cfg->rank < 0 || cfg->rank >= cfg->nranks || !cfg->secret)
        return bny_fail(BANYAN_EINVAL, "transport tcp: rank %d of %d, or no secret", cfg->rank,
                        cfg->nranks);
    if (sodium_init() < 0)
        return bny_fail(BANYAN_ESYSTEM, "rank %d: libsodium does not start", cfg->rank);
    t = calloc(1, sizeof *t);
    if (t)
        t->eps = calloc((size_t)cfg->nranks, sizeof(void *));
    if (t && t->eps)
        t->keys = bny_secret_new();
    if (!t || !t->keys) {
        free(t ? t->eps : NULL);
        free(t);
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for transport tcp", cfg->rank);
    }
    t->tp.ops = &bny_tcp_ops;
    t->tp.rank = cfg->rank;
    t->tp.nranks = cfg->nranks;
    t->tp.eager_max = TCP_EAGER_MAX;
    t->tp.slot_max = TCP_SLOT_MAX;
    t->active_tail = &t->active_head;
    t->integrity = bny_param_choice("BANYAN_INTEGRITY");
    t->tp.integrity = (uint8_t)t->integrity;
    t->ciphers = bny_tcp_ciphers((enum bny_integrity)t->integrity);
    bny_tcp_keys_make(t, t->keys);
    t->replace_ns = (uint64_t)bny_param_int("BANYAN_TCP=replace") * 1000000000u;
    t->secret = cfg->secret;
    t->epfd = bny_fd_own(epoll_create1(EPOLL_CLOEXEC));
    rc = t->epfd < 0 ? bny_fail_errno("rank %d: epoll_create1", cfg->rank)
                     : bny_tcp_listen(t, cfg->ifname, cfg->port_range);
    if (rc != 0) {
        tcp_destroy(&t->tp);
        return rc;
    }
    *out = &t->tp;
    return 0;
}

static int tcp_address(struct bny_tp *tp, void *blob, size_t cap)
{
    const struct tcp_tp *t = (struct tcp_tp *)tp;

    if (cap < sizeof t->blob)
        return bny_fail(BANYAN_EINVAL, "tcp address needs %zu bytes, has %zu", sizeof t->blob,
                        cap);
    memcpy(blob, &t->blob, sizeof t->blob);
    return (int)sizeof t->blob;
}

static int tcp_reachable(struct bny_tp *tp, int peer, const void *blob, size_t len)
{
    struct tcp_blob b;
    int same_host;

    return bny_tcp_blob_check((struct tcp_tp *)tp, peer, blob, len, &b, &same_host);
}

struct tcp_ep *bny_tcp_ep(struct tcp_tp *t, int peer)
{
    struct tcp_ep *e = t->eps[peer];

    if (e)
        return e;
    e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->ep = (struct bny_ep){ .tp = &t->tp,
                             .ops = t->tp.ops,
                             .peer = peer,
                             .eager_max = TCP_EAGER_MAX,
                             .slot_max = TCP_SLOT_MAX,
                             .zcopy_min = TCP_ZCOPY_MIN };
    t->eps[peer] = e;
    return e;
}

static int tcp_connect(struct bny_tp *tp, int peer, const void *blob, size_t len,
                       struct bny_ep **out)
{
    struct tcp_tp *t = (struct tcp_tp *)tp;
    struct tcp_blob b;
    struct tcp_ep *e;
    int same_host;

    *out = NULL;
    if (!bny_tcp_blob_check(t, peer, blob, len, &b, &same_host) || peer == tp->rank)
        return bny_fail(BANYAN_EINVAL,
                        "rank %d: the tcp address of rank %d cannot be reached from here; its "
                        "host offers loopback only, or the address is broken",
                        tp->rank, peer);
    e = bny_tcp_ep(t, peer);
    if (e && e->claimed)
        return bny_fail(BANYAN_EINVAL, "rank %d: rank %d was connected before", tp->rank, peer);
    if (e)
        e->addrs = malloc(b.count * sizeof *e->addrs);
    if (!e || !e->addrs)
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for the endpoint of rank %d",
                        tp->rank, peer);
    bny_tcp_prefer_adjacent(t, &b);
    memcpy(e->addrs, b.addrs, b.count * sizeof *e->addrs);
    memcpy(e->instance, b.instance, sizeof e->instance);
    e->naddrs = b.count;
    e->same_host = same_host;
    e->claimed = 1;
    for (int lane = 0; lane < TCP_LANES; lane++)
        if (e->in[lane])
            bny_tcp_activate(e->in[lane]);
    *out = &e->ep;
    return 0;
}

static void free_conn(struct tcp_conn *c)
{
    bny_tcp_close(c);
    bny_tcp_drop_kept(c);
    for (uint32_t pos = c->reported; pos != c->queued; pos++)
        free(c->items[pos & (TCP_ITEMS - 1)].own);
    bny_tcp_secure_free(c->sec);
    sodium_memzero(&c->keys, sizeof c->keys);
    free(c->items);
    free(c->copy);
    free(c->little);
    free(c->tile);
}

static void free_ep(struct tcp_ep *e)
{
    for (int lane = 0; lane < TCP_LANES; lane++) {
        if (e->out[lane])
            free_conn(e->out[lane]);
        if (e->in[lane])
            free_conn(e->in[lane]);
        free(e->out[lane]);
        free(e->in[lane]);
    }
    for (int i = 0; e->slots && i < TCP_SLOTS; i++)
        free(e->slots[i]);
    free(e->slots);
    free(e->addrs);
    free(e->reason);
    free(e);
}

static void tcp_destroy(struct bny_tp *tp)
{
    struct tcp_tp *t = (struct tcp_tp *)tp;

    if (!t)
        return;
    for (int i = 0; i < t->nlisten; i++)
        bny_fd_close(t->listeners[i]);
    for (int i = 0; i < t->nhalf; i++) {
        bny_fd_close(t->half[i]->fd);
        free(t->half[i]);
    }
    for (int r = 0; r < tp->nranks; r++)
        if (t->eps[r])
            free_ep(t->eps[r]);
    while (t->all_chunks) {
        struct tcp_chunk *k = t->all_chunks;

        t->all_chunks = k->all;
        free(k);
    }
    while (t->free_tiles) {
        uint8_t *tile = t->free_tiles;

        memcpy(&t->free_tiles, tile, sizeof t->free_tiles);
        free(tile);
    }
    while (t->free_items) {
        struct tcp_item *items = t->free_items;

        t->free_items = items->own;
        free(items);
    }
    while (t->free_kept) {
        struct tcp_kept *k = t->free_kept;

        t->free_kept = k->next;
        free(k);
    }
    while (t->all_msgs) {
        struct tcp_msg *m = t->all_msgs;

        t->all_msgs = m->all;
        free(m);
    }
    free(t->spare);
    if (t->epfd >= 0)
        bny_fd_close(t->epfd);
    free(t->eps);
    bny_secret_free(t->keys);
    free(t);
}

/* In the reverse direction. Each connection begins it anew, with the same bytes. */
static size_t farewell_words(struct tcp_conn *c, uint8_t *words)
{
    const struct bny_hdr hdr = { .kind = TCP_KIND_FAREWELL };

    memcpy(words + (c->sec ? TCP_RECORD_HEAD : 0), &hdr, sizeof hdr);
    if (!c->sec)
        return sizeof hdr;
    c->sec->tx_number = 0;
    return bny_tcp_seal(c->sec, words, sizeof hdr);
}

/* Sends a farewell on one connection. 1: the peer's kernel has everything, 0: not yet. */
static int part(struct tcp_conn *c)
{
    struct bny_hdr hdr;
    int unsent = 0;

    if (c->outgoing && c->state == TCP_OPEN && c->readable)
        bny_tcp_read_control(c);
    if (c->resuming || (c->state == TCP_OPEN && c->fd < 0))
        return c->ep->left;
    if (c->outgoing && !c->farewell_sent) {
        if (c->state == TCP_IDLE || (c->state != TCP_OPEN && !bny_tcp_pending(c)))
            return 1;
        if (c->state != TCP_OPEN || bny_tcp_push_farewell(c) != 0)
            return 0;
    }
    if (c->state != TCP_OPEN)
        return 1;
    if (c->outgoing) {
        if (bny_tcp_flush(c) != 0)
            return !c->resuming;
    } else if (!c->farewell_sent) {
        uint8_t words[TCP_RECORD_HEAD + sizeof hdr + TCP_TAG_MAX];
        ssize_t n = send(c->fd, words, farewell_words(c, words), MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        c->farewell_sent = 1;
        if (n < 0) { /* nobody listens, or a loss: the read side reports it after the input */
            c->err = errno;
            c->readable = 1;
            bny_tcp_activate(c);
        }
    }
    if (bny_tcp_pending(c) || (c->err && c->ep->claimed))
        return 0;
    /* Closing a socket with unread input sends a reset, which overtakes output in transit. */
    return ioctl(c->fd, SIOCOUTQ, &unsent) != 0 || unsent == 0;
}

/* A peer that has read our answer considers the connection open, so its end without a farewell
 * would be a death. The handshake's deadline bounds this wait. */
static int answered(const struct tcp_tp *t)
{
    int n = 0;

    for (int i = 0; i < t->nhalf; i++) {
        const struct tcp_conn *c = t->half[i];
        const struct tcp_ep *e = c->state == TCP_PROOF ? t->eps[c->hello.from] : NULL;

        n += e && !e->left && !e->down;
    }
    return n;
}

static int tcp_farewell(struct bny_tp *tp)
{
    struct tcp_tp *t = (struct tcp_tp *)tp;
    int waiting = 0;

    tcp_serve(t);
    waiting = answered(t);
    for (int r = 0; r < tp->nranks; r++) {
        struct tcp_ep *e = t->eps[r];

        for (int lane = 0; e && !e->down && lane < TCP_LANES; lane++) {
            int open = e->out[lane] && !part(e->out[lane]);

            open += e->in[lane] && !part(e->in[lane]);
            /* A peer that sent its farewell need not receive ours, but may still poll for other
             * peers. */
            waiting += e->left ? 0 : open;
        }
    }
    return waiting ? BNY_AGAIN : 0;
}

/* ---- polling ---- */

/* A waiting connection may be foreign, and the rank that we lack a descriptor for may come
 * later. */
static int lacks(struct tcp_tp *t)
{
    uint64_t since = t->starved_ns ? t->starved_ns : t->unopened_ns;
    int err = t->lacks ? t->lacks : t->starved_ns ? t->starved_by : ENOMEM;

    if (!t->lacks && (!since || bny_now_ns() - since <= TCP_STARVED_NS))
        return 0;
    return bny_fail(err == ENOMEM ? BANYAN_ENOMEM : BANYAN_ESYSTEM,
                    "no connections to other ranks: %s%s", strerror(err),
                    err == ENOMEM || err == ENOBUFS ? "" : "; raise ulimit -n");
}

static int tcp_poll(struct bny_tp *tp, struct bny_event *ev, int n)
{
    struct tcp_tp *t = (struct tcp_tp *)tp;
    struct tcp_conn *c, *last;
    int got = 0;

    tcp_serve(t);
    last = t->active_head ? (struct tcp_conn *)((char *)t->active_tail -
                                                offsetof(struct tcp_conn, next_active))
                          : NULL;
    for (c = NULL; c != last && got < n;) {
        c = pop_active(t);
        got += progress(c, ev + got, n - got);
        if (wants_attention(c))
            bny_tcp_activate(c);
    }
    if (t->nends)
        end_peers(t);
    for (int r = 0; r < tp->nranks && t->ndown && got < n; r++)
        if (t->eps[r])
            got += take_down(t->eps[r], ev + got);
    return got ? got : lacks(t);
}

static int tcp_poll_ep(struct bny_ep *ep, struct bny_event *ev, int n)
{
    struct tcp_ep *e = (struct tcp_ep *)ep;
    int got = 0, open = 0;

    for (int lane = 0; lane < TCP_LANES && got < n; lane++) {
        struct tcp_conn *in = e->in[lane], *out = e->out[lane];

        if (in && in->state == TCP_OPEN) {
            open++;
            in->readable = 1;
            got += progress(in, ev + got, n - got);
            if (wants_attention(in))
                bny_tcp_activate(in);
        }
        if (got < n && out && (out->reported != out->queued || out->resend)) {
            out->writable = out->state == TCP_OPEN;
            got += progress(out, ev + got, n - got);
            if (wants_attention(out))
                bny_tcp_activate(out);
        }
    }
    if (got < n && e->down == 1)
        got += take_down(e, ev + got);
    if (got == 0 && (!open || ++e->idle_polls % SERVE_EVERY == 0))
        tcp_serve((struct tcp_tp *)ep->tp);
    return got;
}

/* It waits for an acknowledgement, or for room to keep bytes, and no descriptor reports
 * either. */
static int only_holds(struct tcp_conn *c)
{
    uint64_t before = c->acked;

    if (!c->outgoing || c->state != TCP_OPEN || c->readable)
        return 0;
    if (!c->full && (c->looks <= TCP_LOOKS || (c->writable && bny_tcp_pending(c))))
        return 0;
    bny_tcp_ask_acked(c);
    return c->acked == before;
}

static uint64_t tcp_arm(struct bny_tp *tp, int *fds, int cap, int *nfds)
{
    struct tcp_tp *t = (struct tcp_tp *)tp;
    uint64_t next, now;

    *nfds = 0;
    for (struct tcp_conn *c = t->active_head; c; c = c->next_active)
        if (!only_holds(c))
            return 0;
    if (t->ndown || cap < 1)
        return 0;
    fds[(*nfds)++] = t->epfd;
    next = bny_tcp_join_next_ns(t);
    now = next == UINT64_MAX ? 0 : bny_now_ns();
    if (next != UINT64_MAX)
        next = next > now ? next - now : 0;
    return (t->active_head || t->nends) && next > HOLD_NS ? HOLD_NS : next;
}

static void tcp_disarm(struct bny_tp *tp)
{
}

const struct bny_transport_ops bny_tcp_ops = {
    .name = "tcp",
    .create = tcp_create,
    .address = tcp_address,
    .reachable = tcp_reachable,
    .connect = tcp_connect,
    .destroy = tcp_destroy,
    .farewell = tcp_farewell,
    .eager = bny_tcp_eager,
    .reserve = bny_tcp_reserve,
    .commit = bny_tcp_commit,
    .cancel = bny_tcp_cancel,
    .send = bny_tcp_send,
    .poll = tcp_poll,
    .poll_ep = tcp_poll_ep,
    .view = bny_tcp_view,
    .release = bny_tcp_release,
    .recall = bny_tcp_recall,
    .arm = tcp_arm,
    .disarm = tcp_disarm,
    .traffic = bny_tcp_traffic,
};
