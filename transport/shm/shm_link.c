/* SPDX-License-Identifier: BSD-3-Clause */
/* The sockets: each direction's segment travels in a hello over a unix SEQPACKET connection
 * from its sender to the receiver's listener in the abstract namespace. Connections stay open:
 * their end reveals a death. So does a pidfd, even if a forked child keeps the connection open.
 * One epoll set has all descriptors, so one system call polls all peers. */
#include "transport/shm/shm_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/filesize.h"
#include "base/log.h"
#include "base/text.h"

#define STRANGERS_MAX 64          /* accepted connections without a hello */
#define STRANGER_NS   5000000000u /* time limit for that */
#define LACKS_NS      2000000000u /* how long a connecting peer waits for our memory */
#define EVENTS        32
#define FOREIGN_MAX   64 /* connections of other users that one call drops */

enum conn_kind { CONN_LISTEN, CONN_STRANGER, CONN_IN, CONN_OUT, CONN_PID };
struct shm_conn {
    enum conn_kind kind;
    int fd;
    pid_t pid;
    struct shm_ep *ep;
    uint64_t deadline_ns;
    struct shm_conn *next;
};

/* ---- connections ---- */

/* Takes fd and c, which may be NULL. Returns NULL: no memory. */
static struct shm_conn *conn_begin(struct shm_tp *tp, struct shm_conn *c, enum conn_kind kind,
                                   int fd, struct shm_ep *ep)
{
    struct epoll_event e = { .events = EPOLLIN };

    if (c) {
        c->kind = kind;
        c->fd = bny_fd_own(fd);
        c->ep = ep;
        e.data.ptr = c;
        if (epoll_ctl(tp->epfd, EPOLL_CTL_ADD, fd, &e) == 0) {
            c->next = tp->conns;
            tp->conns = c;
            return c;
        }
        free(c);
    }
    bny_fd_close(fd);
    return NULL;
}

/* Takes fd. Returns NULL: no memory. */
static struct shm_conn *conn_add(struct shm_tp *tp, enum conn_kind kind, int fd,
                                 struct shm_ep *ep)
{
    return conn_begin(tp, calloc(1, sizeof(struct shm_conn)), kind, fd, ep);
}

/* Closes; the memory stays until the end of service(), whose batch of events may refer to
 * it. */
static void conn_close(struct shm_tp *tp, struct shm_conn *c)
{
    struct shm_conn **at = &tp->conns;

    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    /* In a child of fork the socket may outlive this, and so would its events. */
    epoll_ctl(tp->epfd, EPOLL_CTL_DEL, c->fd, NULL);
    bny_fd_close(c->fd);
    c->fd = -1;
    if (c->ep) {
        if (c->ep->in_conn == c)
            c->ep->in_conn = NULL;
        if (c->ep->out_conn == c)
            c->ep->out_conn = NULL;
        if (c->ep->pid_conn == c)
            c->ep->pid_conn = NULL;
    }
    c->next = tp->closed;
    tp->closed = c;
}

static void free_list(struct shm_conn **list)
{
    while (*list) {
        struct shm_conn *c = *list;

        *list = c->next;
        free(c);
    }
}

static socklen_t name_address(struct sockaddr_un *a, const char *name)
{
    size_t len = strlen(name);

    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    memcpy(a->sun_path + 1, name, len);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + len);
}

int bny_shm_listen(struct shm_tp *tp)
{
    struct sockaddr_un a;
    uint8_t random[12];
    socklen_t len;
    int fd;

    memcpy(tp->name, "banyan-", 7);
    randombytes_buf(random, sizeof random);
    sodium_bin2hex(tp->name + 7, sizeof tp->name - 7, random, sizeof random);
    randombytes_buf(tp->nonce, sizeof tp->nonce);
    tp->epfd = bny_fd_own(epoll_create1(EPOLL_CLOEXEC));
    if (tp->epfd < 0)
        return bny_fail_errno("shm: epoll_create1");
    fd = bny_fd_high(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd < 0)
        return bny_fail_errno("shm: unix socket");
    len = name_address(&a, tp->name);
    if (bind(fd, (struct sockaddr *)&a, len) != 0 || listen(fd, SOMAXCONN) != 0) {
        int rc = bny_fail_errno("shm: listening on an abstract unix socket");

        close(fd);
        return rc;
    }
    tp->listener = conn_add(tp, CONN_LISTEN, fd, NULL);
    return tp->listener ? 0 : bny_fail(BANYAN_ENOMEM, "shm: no memory for the listener");
}

/* ---- peers ---- */

/* Records have their own pages, most of which only connected peers touch. Neighbours' records
 * start at different lines, so that they use all sets of a cache. */
#define EP_COLOURS 16
#define EP_BYTES   (sizeof(struct shm_ep) + EP_COLOURS * 64)

void bny_shm_peer_free(struct shm_ep *ep)
{
    munmap((uint8_t *)ep - ep->base.peer % EP_COLOURS * 64, EP_BYTES);
}

void bny_shm_enlist(struct shm_ep *ep)
{
    struct shm_tp *tp = (struct shm_tp *)ep->base.tp;

    if (ep->listed || !ep->opened || (!ep->in && !ep->out && ep->fate == SHM_ALIVE))
        return;
    ep->listed = 1;
    tp->eps[tp->neps++] = ep;
}

struct shm_ep *bny_shm_peer(struct shm_tp *tp, int rank)
{
    struct shm_ep *ep = tp->peers[rank];
    uint8_t *page;

    if (ep)
        return ep;
    page = mmap(NULL, EP_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return NULL;
    madvise(page, EP_BYTES, MADV_NOHUGEPAGE);
    ep = (struct shm_ep *)(page + rank % EP_COLOURS * 64);
    ep->tiles = mmap(NULL, (size_t)BNY_CHANNELS * SHM_TILE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (ep->tiles == MAP_FAILED) {
        munmap(page, EP_BYTES);
        return NULL;
    }
    ep->data_bytes = tp->base.nranks <= SHM_RANKS_FEW ? SHM_DATA : SHM_DATA_MANY;
    ep->base.tp = &tp->base;
    ep->base.ops = tp->base.ops;
    ep->base.peer = rank;
    ep->base.eager_max = SHM_EAGER_MAX;
    ep->base.slot_max = SHM_SLOT_BYTES;
    ep->base.zcopy_min = UINT32_MAX;
    ep->slots_free = (1u << SHM_SLOTS) - 1;
    for (uint32_t i = 0; i < SHM_RING; i++)
        ep->free_sends[i] = (uint8_t)i;
    tp->peers[rank] = ep;
    return ep;
}

int bny_shm_starves(const struct shm_tp *tp)
{
    if (!tp->starved)
        return 0;
    return tp->starved == ENOMEM
               ? bny_fail(BANYAN_ENOMEM, "no memory to answer the ranks of this host")
               : bny_fail(BANYAN_ESYSTEM, "too many open files to answer the ranks of this "
                                          "host; raise ulimit -n");
}

int bny_shm_ep_fail(struct shm_ep *ep, int code, const char *fmt, ...)
{
    const struct shm_tp *tp = (const struct shm_tp *)ep->base.tp;
    char text[160];
    va_list ap;

    /* A packet that seems invalid may refer to one that we could not receive. */
    if (code == BANYAN_EPROTO && tp->starved)
        return bny_shm_starves(tp);
    va_start(ap, fmt);
    bny_vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (ep->fate != SHM_DEAD) {
        ep->fate = SHM_DEAD;
        ep->liar = code == BANYAN_EPROTO;
        ep->ended |= !ep->liar;
        snprintf(ep->reason, sizeof ep->reason, "shm: rank %d %s", ep->base.peer, text);
        bny_shm_enlist(ep);
        bny_info("%s", ep->reason);
    }
    return bny_fail((enum banyan_error)code, "%s", ep->reason);
}

int bny_shm_ep_gone(struct shm_ep *ep)
{
    if (ep->fate == SHM_LEFT)
        return bny_fail(BANYAN_ERANKDEAD, "shm: rank %d has left the job", ep->base.peer);
    return bny_fail(ep->liar ? BANYAN_EPROTO : BANYAN_ERANKDEAD, "%s", ep->reason);
}

/* The peer's connection or process ended: did it say farewell? */
static void ep_ended(struct shm_ep *ep, const char *how)
{
    int left = (ep->in && atomic_load_explicit(&ep->in->tx_left, memory_order_acquire)) ||
               (ep->out && atomic_load_explicit(&ep->out->rx_left, memory_order_acquire));

    ep->ended = 1;
    if (ep->fate != SHM_ALIVE)
        return;
    if (left)
        ep->fate = SHM_LEFT;
    else
        bny_shm_ep_fail(ep, BANYAN_ERANKDEAD, "died (pid %d: %s)", (int)ep->pid, how);
}

int bny_shm_ep_process_gone(struct shm_ep *ep)
{
    ep_ended(ep, "its process is gone");
    return bny_shm_ep_gone(ep);
}

int bny_shm_ep_check(struct shm_ep *ep, pid_t pid)
{
    if (ep->copy == SHM_COPY_NONE || pid == ep->card_pid)
        return 0;
    ep->copy = SHM_COPY_NONE;
    return bny_shm_ep_fail(ep, BANYAN_EPROTO,
                           "is process %d, but its address names the memory of process %d",
                           (int)pid, (int)ep->card_pid);
}

/* Records the peer's process and watches it. */
static void ep_watch(struct shm_ep *ep, pid_t pid)
{
    struct shm_tp *tp = (struct shm_tp *)ep->base.tp;
    int fd;

    if (pid > 0)
        ep->pid = pid;
    if (ep->pid_conn || pid <= 0 || pid == getpid())
        return;
    fd = bny_fd_high((int)syscall(SYS_pidfd_open, pid, 0));
    if (fd >= 0) /* kernels before 5.3 lack it: then only the socket reports */
        ep->pid_conn = conn_add(tp, CONN_PID, fd, ep);
}

/* ---- packets ---- */

int bny_shm_packet(struct shm_ep *ep, struct shm_packet *p, int fd)
{
    struct bny_tp *tp = ep->base.tp;

    if (!ep->out_conn)
        return -1;
    p->magic = SHM_MAGIC;
    p->version = SHM_VERSION;
    p->from = tp->rank;
    p->to = ep->base.peer;
    return bny_shm_packet_send(ep->out_conn->fd, p, fd);
}

void bny_shm_doorbell(struct shm_ep *ep)
{
    struct shm_packet p = { .magic = SHM_MAGIC,
                            .version = SHM_VERSION,
                            .type = SHM_PKT_DOORBELL,
                            .from = ep->base.tp->rank,
                            .to = ep->base.peer };
    struct shm_conn *c = ep->out_conn ? ep->out_conn : ep->in_conn;

    /* One doorbell suffices; clear both flags, whichever was set. */
    if (ep->out)
        atomic_store_explicit(&ep->out->rx_sleeping, 0, memory_order_relaxed);
    if (ep->in)
        atomic_store_explicit(&ep->in->tx_sleeping, 0, memory_order_relaxed);
    if (c)
        bny_shm_packet_send(c->fd, &p, -1);
}

/* A process that knows the job's secret and the listener's name, which is its nonce, can send a
 * hello. *said: the hello without its proof, filled here. */
static struct bny_transcript hello_said(const struct shm_tp *tp, const struct shm_packet *p,
                                        const char *name, struct shm_packet *said)
{
    *said = *p;
    memset(said->proof, 0, sizeof said->proof);
    return (struct bny_transcript){ .secret = tp->secret,
                                    .asked = said,
                                    .asked_len = sizeof *said,
                                    .answered = name,
                                    .answered_len = SHM_NAME_BYTES };
}

/* Populates the pages of the rings: otherwise the first lap faults on every fourth message, on
 * both sides (256 B: 1.3 us instead of 0.4). In small jobs also the data area; slots stay
 * untouched until used. On older kernels pages are populated on first touch. */
static void populate(struct shm_seg *seg, const struct shm_tp *tp)
{
#ifdef MADV_POPULATE_WRITE
    madvise(seg,
            tp->base.nranks <= SHM_RANKS_FEW ? offsetof(struct shm_seg, slots)
                                             : offsetof(struct shm_seg, data),
            MADV_POPULATE_WRITE);
#else
    (void)seg;
    (void)tp;
#endif
}

/* Takes fd. Returns NULL, or why the hello is refused. */
static const char *hello(struct shm_tp *tp, struct shm_conn *c, const struct shm_packet *p,
                         int fd)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
    struct shm_seg *seg;
    struct shm_ep *ep;
    struct stat st;
    struct shm_packet without;
    struct bny_transcript t = hello_said(tp, p, tp->name, &without);
    int have;

    if (p->type != SHM_PKT_HELLO ||
        !bny_proof_is_good(p->proof, sizeof p->proof, &t, BNY_PROOF_ASKER))
        return "it does not know the job's secret";
    if (p->to != tp->base.rank || p->from < 0 || p->from >= tp->base.nranks)
        return "its ranks are out of range";
    ep = bny_shm_peer(tp, p->from);
    if (ep && ep->in)
        return "its rank is connected already";
    if (!ep || fd < 0) { /* no memory or descriptor; the connection stays */
        tp->starved = ep ? EMFILE : ENOMEM;
        return NULL;
    }
    if (bny_shm_ep_check(ep, c->pid) != 0)
        return "it is another process than its rank's address names";
    have = fcntl(fd, F_GET_SEALS);
    if (have < 0 || (have & seals) != seals || fstat(fd, &st) != 0 ||
        st.st_size != (off_t)sizeof *seg)
        return "its segment is not sealed or has another size";
    seg = mmap(NULL, sizeof *seg, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (seg == MAP_FAILED)
        return "its segment cannot be mapped";
    if (seg->magic != SHM_MAGIC || seg->version != SHM_VERSION) {
        munmap(seg, sizeof *seg);
        return "its segment has another layout";
    }
    populate(seg, tp);
    ep->in = seg;
    bny_shm_enlist(ep);
    ep->base.cpu = &seg->tx_cpu;
    c->kind = CONN_IN;
    c->ep = ep;
    ep->in_conn = c;
    ep_watch(ep, c->pid);
    return NULL;
}

/* One packet of an authenticated peer. Takes fd. */
static void packet(struct shm_ep *ep, const struct shm_packet *p, int fd)
{
    int shares = p->type == SHM_PKT_ARENA || p->type == SHM_PKT_AREA, rc;

    if (shares && fd >= 0) {
        rc = p->type == SHM_PKT_AREA ? bny_shm_area_packet(ep, p, fd)
                                     : bny_shm_arena_packet(ep, p, fd);
        if (rc == ENOMEM)
            ((struct shm_tp *)ep->base.tp)->starved = ENOMEM;
        else if (rc)
            bny_shm_ep_fail(ep, BANYAN_EPROTO, "shared memory that cannot be mapped");
        return;
    }
    if (shares && fd == SHM_FD_LOST) {
        ((struct shm_tp *)ep->base.tp)->starved = EMFILE;
        return;
    }
    if (fd >= 0)
        close(fd);
    if (p->type == SHM_PKT_ARENA_GONE)
        bny_shm_arena_gone(ep, p->id);
    else if (p->type != SHM_PKT_DOORBELL)
        bny_shm_ep_fail(ep, BANYAN_EPROTO, "sent an unknown control packet");
}

/* Any process on the host may connect to an abstract name: at most one line per second, as in
 * bny_foreign_drop. */
static void foreign_drop(struct shm_tp *tp, uid_t uid, pid_t pid, const char *why)
{
    uint64_t now = bny_now_ns();

    if (tp->dropped_ns && now - tp->dropped_ns < 1000000000u) {
        tp->dropped++;
        return;
    }
    if (tp->dropped)
        bny_warn("shm: dropped %u more foreign connections", tp->dropped);
    bny_warn("shm: dropped a connection of uid %u, pid %d: %s", (unsigned)uid, (int)pid, why);
    tp->dropped = 0;
    tp->dropped_ns = now;
}

static void stranger(struct shm_tp *tp, struct shm_conn *c)
{
    struct shm_packet p;
    const char *wrong;
    int fd, rc;

    if (tp->starved) /* input after a hello that we could not receive is invalid */
        return;
    rc = bny_shm_packet_receive(c->fd, &p, &fd);
    if (rc == 0)
        return;
    wrong = rc < 0 ? "it sent no hello" : hello(tp, c, &p, fd);
    if (fd >= 0)
        close(fd);
    if (wrong) {
        foreign_drop(tp, geteuid(), c->pid, wrong);
        conn_close(tp, c);
    }
}

/* Reads an authenticated connection until it is empty or has ended. */
static void conn_read(struct shm_tp *tp, struct shm_conn *c)
{
    struct shm_ep *ep = c->ep;
    struct shm_packet p;
    int fd, rc;

    while ((rc = bny_shm_packet_receive(c->fd, &p, &fd)) > 0)
        packet(ep, &p, fd);
    if (rc < 0) {
        conn_close(tp, c);
        ep_ended(ep, "its connection ended");
    }
}

void bny_shm_drain(struct shm_ep *ep)
{
    if (ep->in_conn)
        conn_read((struct shm_tp *)ep->base.tp, ep->in_conn);
}

/* ---- accepting ---- */

/* May the waiting connection be a peer's, whose hello is missing? */
static int peer_waits(const struct shm_tp *tp)
{
    for (int r = 0; r < tp->base.nranks; r++) {
        const struct shm_ep *ep = tp->peers[r];

        if (ep && ep->opened && !ep->in && ep->fate == SHM_ALIVE)
            return 1;
    }
    return 0;
}

/* Closing a connection for lack of memory would look like our death to the peer, so it
 * waits. */
static int may_accept(struct shm_tp *tp)
{
    if (!tp->spare)
        tp->spare = calloc(1, sizeof *tp->spare);
    if (tp->spare) {
        tp->lacks_ns = 0;
        return 1;
    }
    if (!tp->lacks_ns)
        tp->lacks_ns = bny_now_ns();
    if (bny_now_ns() - tp->lacks_ns >= LACKS_NS)
        tp->starved = ENOMEM;
    return 0;
}

static void accept_all(struct shm_tp *tp)
{
    int strangers = 0, foreign = 0;

    for (struct shm_conn *c = tp->conns; c; c = c->next)
        strangers += c->kind == CONN_STRANGER;
    /* Others may connect as fast as we accept: the rest stays for the next call. */
    while (strangers < STRANGERS_MAX && foreign < FOREIGN_MAX && may_accept(tp)) {
        struct ucred who = { 0 };
        socklen_t len = sizeof who;
        struct shm_conn *c;
        int fd =
            bny_fd_high(accept4(tp->listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));

        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && !strangers)
            tp->starved = peer_waits(tp) ? EMFILE : 0;
        if (fd < 0)
            return;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0 || who.uid != geteuid()) {
            foreign_drop(tp, who.uid, who.pid, "it is another user's");
            close(fd);
            foreign++;
            continue;
        }
        c = conn_begin(tp, tp->spare, CONN_STRANGER, fd, NULL);
        tp->spare = NULL;
        if (!c) {
            tp->starved = ENOMEM;
            return;
        }
        c->pid = who.pid;
        c->deadline_ns = bny_now_ns() + STRANGER_NS;
        strangers++;
        stranger(tp, c); /* its hello has mostly arrived */
    }
}

static void expire_strangers(struct shm_tp *tp)
{
    for (struct shm_conn *c = tp->conns, *next; c; c = next) {
        next = c->next;
        if (c->kind == CONN_STRANGER && bny_deadline_passed(c->deadline_ns)) {
            foreign_drop(tp, geteuid(), c->pid, "it sent no hello");
            conn_close(tp, c);
        }
    }
}

int bny_shm_service(struct shm_tp *tp)
{
    struct epoll_event ev[EVENTS];
    int n = epoll_wait(tp->epfd, ev, EVENTS, 0);

    for (int i = 0; i < n; i++) {
        struct shm_conn *c = ev[i].data.ptr;

        if (c->fd < 0)
            continue;
        switch (c->kind) {
        case CONN_LISTEN: accept_all(tp); break;
        case CONN_STRANGER: stranger(tp, c); break;
        case CONN_PID: {
            struct shm_ep *ep = c->ep;

            conn_close(tp, c);
            ep_ended(ep, "its process ended");
            break;
        }
        default: conn_read(tp, c);
        }
    }
    if (tp->gone_pending)
        bny_shm_arena_flush(tp);
    expire_strangers(tp);
    free_list(&tp->closed);
    return n > 0 ? n : 0;
}

/* ---- our own direction ---- */

/* Returns a descriptor of a new segment, mapped at *out, or an error. */
static int segment_create(struct shm_seg **out, const struct shm_tp *tp)
{
    int fd = bny_fd_high(memfd_create("banyan", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    struct shm_seg *seg;

    if (fd < 0)
        return bny_fail_errno("shm: memfd_create");
    if (bny_file_resize(fd, sizeof *seg) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
        (seg = mmap(NULL, sizeof *seg, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) ==
            MAP_FAILED) {
        int err = errno,
            rc = bny_fail(BANYAN_ESYSTEM, "shm: making a segment of %zu bytes: %s%s",
                          sizeof *seg, strerror(err), bny_file_remedy(err));

        close(fd);
        return rc;
    }
    populate(seg, tp);
    seg->magic = SHM_MAGIC;
    seg->version = SHM_VERSION;
    seg->bytes = sizeof *seg;
    *out = seg;
    return fd;
}

/* Connects to the peer's listener: a descriptor, BNY_AGAIN or an error. */
static int dial(struct shm_ep *ep, pid_t *pid)
{
    struct sockaddr_un a;
    struct ucred who = { 0 };
    socklen_t len = sizeof who;
    int fd = bny_fd_high(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), e;

    if (fd < 0)
        return bny_fail_errno("shm: unix socket");
    if (connect(fd, (struct sockaddr *)&a, name_address(&a, ep->name)) != 0) {
        e = errno;
        close(fd);
        if (e == EAGAIN || e == EINTR)
            return BNY_AGAIN; /* its backlog is full */
        if (e == ECONNREFUSED || e == ENOENT) {
            /* A peer that has sent everything may have left: then its hello, with its farewell,
             * waits at our listener. */
            if (!ep->in)
                bny_shm_service((struct shm_tp *)ep->base.tp);
            ep_ended(ep, "nobody listens there");
            return bny_shm_ep_gone(ep);
        }
        errno = e;
        return bny_fail_errno("shm: connecting to rank %d", ep->base.peer);
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0 || who.uid != geteuid()) {
        close(fd);
        return bny_shm_ep_fail(ep, BANYAN_EPROTO, "listens as another user (uid %d)",
                               (int)who.uid);
    }
    *pid = who.pid;
    e = bny_shm_ep_check(ep, who.pid);
    if (e == 0)
        return fd;
    close(fd);
    return e;
}

int bny_shm_open_out(struct shm_ep *ep)
{
    struct shm_tp *tp = (struct shm_tp *)ep->base.tp;
    struct shm_packet p = { .magic = SHM_MAGIC,
                            .version = SHM_VERSION,
                            .type = SHM_PKT_HELLO,
                            .from = tp->base.rank,
                            .to = ep->base.peer,
                            .bytes = sizeof(struct shm_seg) },
                      without;
    struct bny_transcript t;
    struct shm_seg *seg = NULL;
    pid_t pid = 0;
    int sock = dial(ep, &pid), fd, rc;

    if (sock < 0)
        return sock;
    fd = segment_create(&seg, tp);
    if (fd < 0) {
        close(sock);
        return fd;
    }
    t = hello_said(tp, &p, ep->name, &without);
    bny_proof_make(p.proof, &t, BNY_PROOF_ASKER);
    /* Before the hello: once the peer has that, it takes the connection's end for our death. */
    ep->out_conn = conn_add(tp, CONN_OUT, sock, ep);
    if (!ep->out_conn) {
        close(fd);
        munmap(seg, sizeof *seg);
        return bny_fail(BANYAN_ENOMEM, "shm: no memory for the connection to rank %d",
                        ep->base.peer);
    }
    rc = bny_shm_packet_send(sock, &p, fd);
    close(fd);
    if (rc != 0) {
        conn_close(tp, ep->out_conn);
        munmap(seg, sizeof *seg);
        return rc == BNY_AGAIN
                   ? rc
                   : bny_shm_ep_fail(ep, BANYAN_ERANKDEAD, "died (it closed the connection)");
    }
    ep->out = seg;
    ep->base.asleep = &seg->rx_sleeping;
    bny_shm_enlist(ep);
    ep_watch(ep, pid);
    return 0;
}

void bny_shm_link_destroy(struct shm_tp *tp)
{
    while (tp->conns)
        conn_close(tp, tp->conns);
    free_list(&tp->closed);
    free(tp->spare);
    if (tp->epfd >= 0)
        bny_fd_close(tp->epfd);
}
