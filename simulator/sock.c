/* SPDX-License-Identifier: BSD-3-Clause */
/* TCP sockets: streams in order without loss, with the buffers, the window and the ends that
 * the kernel's have. Data that are sent while the way is cut are sent again after 200 ms, 400
 * ms, and so on. Data that a reset finds unread can still be read, as in Linux. No congestion
 * control.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "simulator/sim.h"

#define SEGMENT     65536u
#define SNDBUF      (2u << 20)
#define RCVBUF      (2u << 20)
#define RTO_NS      (200ull * SIM_MS)
#define RTO_MAX_NS  (120ull * SIM_S)
#define RETRIES_MAX 15
#define SYN_NS      (1ull * SIM_S)
#define SYN_TRIES   6
#define PORTS_FIRST 32768u
#define PORTS       28232u
#define FRAME_BYTES 78u /* headers of Ethernet, IPv4, TCP, of every 1448 bytes */
#define MSS         1448u

struct segment {
    struct segment *next;
    uint64_t number;
    size_t len, at;
    unsigned char bytes[];
};

struct queue {
    struct segment *first, **last;
};

enum state { NEW, LISTENING, CONNECTING, OPEN, BROKEN };

struct sock {
    struct sim_file file;
    enum state state;
    int host, to_host, index;
    uint32_t ip, to_ip;
    uint16_t port, to_port;
    struct sock *next; /* of all sockets; of a bucket of listeners */
    struct sock *next_listener;
    /* listeners */
    int backlog, nwaiting;
    struct sock *waiting, **last_waiting, *next_waiting;
    /* streams */
    struct sock *peer;
    int err;
    int tries;
    struct queue rx, tx, flight;
    size_t unread, queued, inflight, outq; /* outq: taken from the program, not acknowledged */
    uint64_t numbers, acked, last_ack_ns;
    int wants_space, closing, fin_sent, fin_got, retrying, backoff;
    int keepalive, idle_s, every_s, times;
    unsigned user_timeout_ms;
    int aborts; /* SO_LINGER of no time: closing it resets it */
    uint64_t cut_since_ns;
};

static struct sock *all, *listeners[1024];
static int nsocks;
static uint32_t next_port;

/* ---- queues ---- */

static void sock_push(struct queue *q, struct segment *s)
{
    if (!q->first)
        q->last = &q->first;
    s->next = NULL;
    *q->last = s;
    q->last = &s->next;
}

static struct segment *shift(struct queue *q)
{
    struct segment *s = q->first;

    if (s)
        q->first = s->next;
    return s;
}

static void drop_all(struct queue *q)
{
    struct segment *s;

    while ((s = shift(q)))
        free(s);
}

static struct sock *sock_of(struct sim_file *f)
{
    return (struct sock *)(void *)f;
}

static struct sock *sock_alloc(void)
{
    struct sock *s = calloc(1, sizeof *s);

    if (!s)
        sim_no_memory();
    s->last_waiting = &s->waiting;
    s->file.fd = -1;
    s->index = nsocks++;
    s->next = all;
    all = s;
    return s;
}

int sim_sock_new(void)
{
    struct sim_rank *r = sim_self()->rank;
    struct sock *s = sock_alloc();

    s->host = r->host;
    return sim_file_open(&s->file, SIM_SOCK, r);
}

/* ---- addresses ---- */

static uint32_t host_ip(int host)
{
    return 0x0a000001u + (uint32_t)host;
}

static int host_of(uint32_t ip, int own)
{
    int h = (int)(ip - 0x0a000001u);

    if (ip >> 24 == 127)
        return own;
    return ip >> 24 == 10 && h < sim_net_nhosts() ? h : -1;
}

static struct sock *listener_at(int host, uint32_t ip, uint16_t port)
{
    struct sock *s = listeners[port % 1024];

    while (s && (s->host != host || s->port != port || (s->ip && s->ip != ip)))
        s = s->next_listener;
    return s;
}

static uint16_t free_port(int host)
{
    for (;;) {
        uint16_t port = (uint16_t)(PORTS_FIRST + next_port++ % PORTS);

        if (!listener_at(host, host_ip(host), port) && !listener_at(host, 0x7f000001u, port))
            return port;
    }
}

int sim_sock_bind(struct sim_file *f, const struct sockaddr *sa)
{
    struct sock *s = sock_of(f);
    const struct sockaddr_in *in = (const void *)sa;

    s->ip = ntohl(in->sin_addr.s_addr);
    s->port = ntohs(in->sin_port);
    errno = EADDRINUSE;
    if (s->port && listener_at(s->host, s->ip, s->port))
        return -1;
    s->port = s->port ? s->port : free_port(s->host);
    return 0;
}

int sim_sock_listen(struct sim_file *f, int backlog)
{
    struct sock *s = sock_of(f);

    s->backlog = backlog < 4096 ? backlog : 4096; /* net.core.somaxconn */
    if (s->state == LISTENING)
        return 0;
    s->state = LISTENING;
    s->next_listener = listeners[s->port % 1024];
    listeners[s->port % 1024] = s;
    return 0;
}

int sim_sock_name(struct sim_file *f, struct sockaddr *sa, unsigned *len, int of_peer)
{
    struct sock *s = sock_of(f);
    struct sockaddr_in in = { .sin_family = AF_INET };

    errno = ENOTCONN;
    if (of_peer && s->state != OPEN)
        return -1;
    in.sin_addr.s_addr = htonl(of_peer ? s->to_ip : s->ip);
    in.sin_port = htons(of_peer ? s->to_port : s->port);
    memcpy(sa, &in, *len < sizeof in ? *len : sizeof in);
    *len = sizeof in;
    return 0;
}

/* ---- streams ---- */

/* Data that this end sends are lost. */
static int out_is_cut(const struct sock *s)
{
    return sim_net_is_cut(s->host, s->to_host);
}

/* Data that the other end sends are lost, and its acknowledgements. */
static int in_is_cut(const struct sock *s)
{
    return sim_net_is_cut(s->to_host, s->host);
}

static int is_cut(const struct sock *s)
{
    return out_is_cut(s) || in_is_cut(s);
}

static void broken(struct sock *s, int err)
{
    if (s->state == BROKEN || s->state == NEW)
        return;
    s->state = BROKEN;
    s->err = err;
    drop_all(&s->tx);
    drop_all(&s->flight);
    s->queued = s->inflight = 0;
    if (s->peer)
        s->peer->peer = NULL;
    s->peer = NULL;
    sim_mix(((uint64_t)s->index << 8) + (uint64_t)err);
    if (s->file.fd >= 0)
        sim_file_changed(&s->file);
}

static void reset_arrives(void *a, uint64_t b)
{
    (void)b;
    broken(a, ECONNRESET);
}

/* A reset was lost on the way: keep-alives find it then. */
static void keeps_alive(void *a, uint64_t b)
{
    struct sock *s = a;

    (void)b;
    if (s->state != OPEN || s->peer)
        return;
    if (is_cut(s))
        sim_at(sim_now + (uint64_t)s->idle_s * SIM_S, keeps_alive, s, 0);
    else
        broken(s, ECONNRESET);
}

/* The other end hears of it after what is on its way. */
static void send_reset(struct sock *s)
{
    struct sock *peer = s->peer;

    if (!peer)
        return;
    peer->peer = NULL;
    s->peer = NULL;
    if (!out_is_cut(s))
        sim_net_send(s->host, s->to_host, FRAME_BYTES, reset_arrives, peer, 0);
    else if (peer->keepalive && peer->idle_s)
        sim_at(sim_now + (uint64_t)peer->idle_s * SIM_S, keeps_alive, peer, 0);
}

static void pump(struct sock *s);

static void again(void *a, uint64_t b)
{
    struct sock *s = a;

    (void)b;
    s->retrying = 0;
    if (s->state == OPEN)
        pump(s);
}

/* The way is cut: what is in flight goes back to what is to be sent. */
static void stall(struct sock *s)
{
    uint64_t wait = RTO_NS << (s->backoff < 10 ? s->backoff : 10);

    if (s->flight.first) {
        *s->flight.last = s->tx.first;
        if (!s->tx.first)
            s->tx.last = s->flight.last;
        s->tx.first = s->flight.first;
        s->flight.first = NULL;
        s->queued += s->inflight;
        s->inflight = 0;
    }
    if (s->retrying)
        return;
    s->retrying = 1;
    if (s->backoff++ >= RETRIES_MAX) {
        send_reset(s);
        broken(s, ETIMEDOUT);
        return;
    }
    sim_at(sim_now + (wait < RTO_MAX_NS ? wait : RTO_MAX_NS), again, s, 0);
}

/* Data that arrived without an acknowledgement reaching this end are sent again, and
 * acknowledged again, when their time comes. */
static void ack_arrives(void *a, uint64_t bytes)
{
    struct sock *s = a;

    if (s->state != OPEN || s->outq < bytes)
        return;
    if (in_is_cut(s)) {
        sim_at(sim_now + RTO_NS, ack_arrives, s, bytes);
        return;
    }
    s->outq -= bytes;
    s->acked += bytes;
    s->last_ack_ns = sim_now;
    s->backoff = 0;
    if (s->file.fd >= 0 && s->wants_space && SNDBUF - s->outq >= SNDBUF / 3) {
        s->wants_space = 0;
        sim_file_changed(&s->file);
    }
    pump(s);
}

static void arrives(void *a, uint64_t number)
{
    struct sock *s = a, *peer = s->peer;
    struct segment *seg = s->flight.first;

    if (s->state != OPEN || !seg || seg->number != number)
        return;
    if (out_is_cut(s)) {
        stall(s);
        return;
    }
    shift(&s->flight);
    s->inflight -= seg->len;
    if (!peer) { /* it was reset, which we have not heard: the way was cut */
        free(seg);
        sim_at(sim_now + sim_net_latency(s->to_host, s->host), reset_arrives, s, 0);
        return;
    }
    if (peer->file.fd < 0 && peer->closing) { /* closed: nobody will read it */
        free(seg);
        send_reset(peer);
        return;
    }
    sock_push(&peer->rx, seg);
    peer->unread += seg->len;
    sim_mix(((uint64_t)s->index << 32) + seg->len);
    if (peer->file.fd >= 0)
        sim_file_changed(&peer->file);
    sim_at(sim_now + sim_net_latency(s->to_host, s->host), ack_arrives, s, seg->len);
}

static void fin_arrives(void *a, uint64_t b)
{
    struct sock *s = a, *peer = s->peer;

    (void)b;
    if (out_is_cut(s) && peer) {
        sim_at(sim_now + RTO_NS, fin_arrives, s, 0);
        return;
    }
    if (!peer)
        return;
    peer->fin_got = 1;
    sim_mix((uint64_t)s->index + 1);
    if (peer->file.fd >= 0)
        sim_file_changed(&peer->file);
}

static size_t on_wire(size_t bytes)
{
    return bytes + (bytes + MSS - 1) / MSS * FRAME_BYTES;
}

static void pump(struct sock *s)
{
    if (s->state != OPEN || s->retrying)
        return;
    if (!s->peer) { /* reset at the other end while the way was cut: it is told when it sends */
        if (s->tx.first && is_cut(s))
            stall(s);
        else if (s->tx.first)
            sim_at(sim_now + 2 * sim_net_latency(s->host, s->to_host), reset_arrives, s, 0);
        return;
    }
    while (s->tx.first) {
        struct segment *seg = s->tx.first;

        if (s->peer->unread + s->inflight + seg->len > RCVBUF && s->peer->unread + s->inflight)
            return; /* no window */
        if (out_is_cut(s)) {
            stall(s);
            return;
        }
        shift(&s->tx);
        s->queued -= seg->len;
        sock_push(&s->flight, seg);
        s->inflight += seg->len;
        sim_net_send(s->host, s->to_host, on_wire(seg->len), arrives, s, seg->number);
    }
    if (s->closing && !s->fin_sent) {
        s->fin_sent = 1;
        sim_net_send(s->host, s->to_host, FRAME_BYTES, fin_arrives, s, 0);
    }
}

static int take_error(struct sock *s)
{
    errno = s->err ? s->err : EPIPE;
    s->err = 0;
    return -1;
}

long sim_sock_send(struct sim_file *f, const void *buf, size_t len)
{
    struct sock *s = sock_of(f);
    const unsigned char *from = buf;
    size_t n = SNDBUF - s->outq, done = 0;

    if (s->state == BROKEN || s->fin_sent || s->closing)
        return take_error(s);
    errno = s->state == OPEN ? EAGAIN : s->state == CONNECTING ? EAGAIN : ENOTCONN;
    if (s->state != OPEN || (n == 0 && len)) {
        s->wants_space = 1;
        return -1;
    }
    n = n < len ? n : len;
    while (done < n) {
        size_t part = n - done < SEGMENT ? n - done : SEGMENT;
        struct segment *seg = malloc(sizeof *seg + part);

        if (!seg)
            sim_no_memory();
        *seg = (struct segment){ .number = ++s->numbers, .len = part };
        memcpy(seg->bytes, from + done, part);
        sock_push(&s->tx, seg);
        done += part;
    }
    s->wants_space = n < len;
    s->queued += n;
    s->outq += n;
    f->rank->messages += n > 0;
    f->rank->bytes += n;
    pump(s);
    return (long)n;
}

static void window_opens(void *a, uint64_t b)
{
    (void)b;
    pump(a);
}

long sim_sock_recv(struct sim_file *f, void *buf, size_t len, int peek)
{
    struct sock *s = sock_of(f);
    struct segment *seg = s->rx.first;
    unsigned char *to = buf;
    size_t done = 0, before = s->unread;

    if (!seg && s->state == BROKEN && s->err)
        return take_error(s);
    if (!seg && (s->fin_got || s->state == BROKEN))
        return 0;
    errno = s->state == OPEN || s->state == CONNECTING ? EAGAIN : ENOTCONN;
    if (!seg)
        return -1;
    while (seg && done < len) {
        size_t n = seg->len - seg->at < len - done ? seg->len - seg->at : len - done;

        memcpy(to + done, seg->bytes + seg->at, n);
        done += n;
        if (peek) {
            seg = seg->next;
            continue;
        }
        seg->at += n;
        s->unread -= n;
        f->rank->bytes += n;
        if (seg->at == seg->len) {
            f->rank->messages++;
            free(shift(&s->rx));
        }
        seg = s->rx.first;
    }
    if (!peek && s->peer && s->peer->tx.first && before > RCVBUF / 2)
        sim_at(sim_now + sim_net_latency(s->host, s->to_host), window_opens, s->peer, 0);
    return (long)done;
}

/* ---- connecting ---- */

static void try_syn(void *a, uint64_t b);

static void refused(void *a, uint64_t b)
{
    struct sock *s = a;

    (void)b;
    if (s->state == CONNECTING)
        broken(s, ECONNREFUSED);
}

static void established(void *a, uint64_t b)
{
    struct sock *s = a;

    (void)b;
    if (s->state != CONNECTING)
        return;
    s->state = OPEN;
    if (s->file.fd >= 0)
        sim_file_changed(&s->file);
    pump(s);
}

static void accept_one(struct sock *l, struct sock *client)
{
    struct sock *s = sock_alloc();

    s->state = OPEN;
    s->host = l->host;
    s->to_host = client->host;
    s->ip = client->to_ip;
    s->port = client->to_port;
    s->to_ip = client->ip;
    s->to_port = client->port;
    s->peer = client;
    client->peer = s;
    *l->last_waiting = s;
    l->last_waiting = &s->next_waiting;
    l->nwaiting++;
    sim_file_changed(&l->file);
}

static void syn_arrives(void *a, uint64_t b)
{
    struct sock *s = a, *l;
    uint64_t back;

    (void)b;
    if (s->state != CONNECTING || s->peer)
        return;
    l = listener_at(s->to_host, s->to_ip, s->to_port);
    back = sim_now + sim_net_latency(s->to_host, s->host);
    if (!is_cut(s) && !l) {
        sim_at(back, refused, s, 0);
        return;
    }
    if (is_cut(s) || l->nwaiting > l->backlog) {
        sim_at(sim_now + (SYN_NS << s->tries), try_syn, s, 0);
        return;
    }
    accept_one(l, s);
    sim_at(back, established, s, 0);
}

static void try_syn(void *a, uint64_t b)
{
    struct sock *s = a;

    (void)b;
    if (s->state != CONNECTING)
        return;
    if (s->tries++ > SYN_TRIES)
        broken(s, ETIMEDOUT);
    else
        sim_at(sim_now + sim_net_latency(s->host, s->to_host), syn_arrives, s, 0);
}

int sim_sock_connect(struct sim_file *f, const struct sockaddr *sa)
{
    struct sock *s = sock_of(f);
    const struct sockaddr_in *in = (const void *)sa;

    s->to_ip = ntohl(in->sin_addr.s_addr);
    s->to_port = ntohs(in->sin_port);
    s->to_host = host_of(s->to_ip, s->host);
    errno = ENETUNREACH;
    if (s->to_host < 0)
        return -1;
    s->ip = s->to_host == s->host ? s->to_ip : host_ip(s->host);
    s->port = s->port ? s->port : free_port(s->host);
    s->state = CONNECTING;
    try_syn(s, 0);
    errno = EINPROGRESS;
    return -1;
}

int sim_sock_accept(struct sim_file *f, struct sockaddr *sa, unsigned *len)
{
    struct sock *l = sock_of(f), *s = l->waiting;
    int fd;

    errno = l->state == LISTENING ? EAGAIN : EINVAL;
    if (!s)
        return -1;
    fd = sim_file_open(&s->file, SIM_SOCK, l->file.rank);
    if (fd < 0)
        return -1;
    l->waiting = s->next_waiting;
    if (!l->waiting)
        l->last_waiting = &l->waiting;
    l->nwaiting--;
    if (sa)
        sim_sock_name(&s->file, sa, len, 1);
    return fd;
}

/* ---- the end ---- */

static void close_stream(struct sock *s)
{
    s->closing = 1;
    if (s->state == CONNECTING && !s->peer)
        s->state = NEW;
    if (s->unread || s->state == CONNECTING || s->aborts) {
        drop_all(&s->rx);
        send_reset(s);
        broken(s, ECONNRESET);
    } else if (s->state == OPEN) {
        pump(s);
    }
}

static void close_listener(struct sock *l)
{
    struct sock **at = &listeners[l->port % 1024];

    while (*at && *at != l)
        at = &(*at)->next_listener;
    if (*at)
        *at = l->next_listener;
    for (struct sock *s = l->waiting; s; s = s->next_waiting) {
        send_reset(s);
        broken(s, ECONNRESET);
    }
    l->waiting = NULL;
    l->state = NEW;
}

void sim_sock_close(struct sim_file *f)
{
    struct sock *s = sock_of(f);

    if (s->state == LISTENING)
        close_listener(s);
    else
        close_stream(s);
}

int sim_sock_shutdown(struct sim_file *f, int how)
{
    struct sock *s = sock_of(f);

    if (how != SHUT_RD) {
        s->closing = 1;
        pump(s);
    }
    return 0;
}

uint32_t sim_sock_ready(const struct sim_file *f)
{
    const struct sock *s = (const void *)f;
    uint32_t ready = 0;

    if (s->state == LISTENING)
        return s->waiting ? EPOLLIN : 0;
    if (s->state == CONNECTING)
        return 0;
    if (s->state == NEW)
        return EPOLLOUT | EPOLLHUP;
    if (s->state == BROKEN)
        return EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLHUP | (s->err ? EPOLLERR : 0);
    if (s->unread || s->fin_got)
        ready |= EPOLLIN;
    if (s->fin_got)
        ready |= EPOLLRDHUP | (s->fin_sent ? EPOLLHUP : 0);
    return ready | (SNDBUF - s->outq >= SNDBUF / 3 ? EPOLLOUT : 0);
}

/* ---- options ---- */

int sim_sock_queue(struct sim_file *f, unsigned long request, int *out)
{
    const struct sock *s = sock_of(f);

    errno = EINVAL;
    if (request != SIOCOUTQ && request != FIONREAD)
        return -1;
    *out = (int)(request == SIOCOUTQ ? s->outq : s->unread);
    return 0;
}

static void tell_info(const struct sock *s, struct tcp_info *i)
{
    uint64_t acked_ns = s->last_ack_ns;

    memset(i, 0, sizeof *i);
    i->tcpi_state = s->state == OPEN ? TCP_ESTABLISHED : TCP_CLOSE;
    i->tcpi_unacked = (uint32_t)((s->inflight + (s->retrying ? s->queued : 0) + MSS - 1) / MSS);
    i->tcpi_backoff = (uint8_t)s->backoff;
    i->tcpi_retransmits = (uint8_t)s->backoff;
    if (s->keepalive && !s->cut_since_ns)
        acked_ns = sim_now; /* it has just answered a question */
    else if (s->keepalive && s->cut_since_ns > acked_ns)
        acked_ns = s->cut_since_ns;
    i->tcpi_last_ack_recv = (uint32_t)((sim_now - acked_ns) / SIM_MS);
}

int sim_sock_get(struct sim_file *f, int level, int name, void *val, unsigned *len)
{
    struct sock *s = sock_of(f);
    struct tcp_info info;
    int value;

    if (level == IPPROTO_TCP && name == TCP_INFO) {
        tell_info(s, &info);
        *len = *len < sizeof info ? *len : (unsigned)sizeof info;
        memcpy(val, &info, *len);
        return 0;
    }
    switch (name) {
    case SO_ERROR:
        value = s->err;
        s->err = 0;
        break;
    case SO_ACCEPTCONN: value = s->state == LISTENING; break;
    case SO_SNDBUF: value = (int)SNDBUF; break;
    case SO_RCVBUF: value = (int)RCVBUF; break;
    case SO_DOMAIN: value = AF_INET; break;
    case SO_TYPE: value = SOCK_STREAM; break;
    default: errno = ENOPROTOOPT; return -1;
    }
    memcpy(val, &value, sizeof value);
    *len = sizeof value;
    return 0;
}

int sim_sock_set(struct sim_file *f, int level, int name, const void *val, unsigned len)
{
    struct sock *s = sock_of(f);
    int value = 0;

    memcpy(&value, val, len < sizeof value ? len : sizeof value);
    if (level == SOL_SOCKET && name == SO_LINGER && len >= sizeof(struct linger)) {
        struct linger l;

        memcpy(&l, val, sizeof l);
        s->aborts = l.l_onoff && l.l_linger == 0;
    } else if (level == SOL_SOCKET && name == SO_KEEPALIVE)
        s->keepalive = value;
    else if (level == IPPROTO_TCP && name == TCP_KEEPIDLE)
        s->idle_s = value;
    else if (level == IPPROTO_TCP && name == TCP_KEEPINTVL)
        s->every_s = value;
    else if (level == IPPROTO_TCP && name == TCP_KEEPCNT)
        s->times = value;
    else if (level == IPPROTO_TCP && name == TCP_USER_TIMEOUT)
        s->user_timeout_ms = (unsigned)value;
    return 0;
}

/* ---- faults ---- */

static int may_reset(const struct sock *s, const struct sim_rank *rank, int data)
{
    return s->file.fd >= 0 && s->file.rank == rank && s->state == OPEN &&
           (!data || (s->keepalive && !s->user_timeout_ms));
}

int sim_sock_reset(struct sim_rank *rank, uint64_t which, int data)
{
    struct sock *found = NULL;
    uint64_t n = 0;

    for (struct sock *s = all; s; s = s->next)
        n += (uint64_t)may_reset(s, rank, data);
    which = n ? which % n : 0;
    for (struct sock *s = all; s; s = s->next)
        if (may_reset(s, rank, data) && which-- == 0)
            found = s;
    if (!found)
        return 0;
    send_reset(found);
    broken(found, ECONNABORTED);
    return 1;
}

/* Does a connection that asks whether its peer is there still find nobody? */
static void ask(void *a, uint64_t since)
{
    struct sock *s = a;

    if (s->state == OPEN && s->cut_since_ns == since && is_cut(s)) {
        send_reset(s);
        broken(s, ETIMEDOUT);
    }
}

void sim_sock_cut_changed(void)
{
    for (struct sock *s = all; s; s = s->next) {
        uint64_t patience_ns = (uint64_t)s->idle_s * SIM_S;

        if (s->state != OPEN || (is_cut(s) != 0) == (s->cut_since_ns != 0))
            continue;
        s->cut_since_ns = is_cut(s) ? sim_now + 1 : 0;
        /* A user timeout is looked at when a probe is due, and the count is not. */
        patience_ns += s->user_timeout_ms ? (s->user_timeout_ms + 999) / 1000 * (uint64_t)SIM_S
                                          : (uint64_t)s->every_s * (uint64_t)s->times * SIM_S;
        if (s->cut_since_ns && s->keepalive)
            sim_at(sim_now + patience_ns, ask, s, s->cut_since_ns);
    }
}
