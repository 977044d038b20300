/* SPDX-License-Identifier: BSD-3-Clause */
/* The control plane: links to a few neighbours that detect dead processes, flood failure
 * records and carry the agreement on them.
 *
 * Overlay: all other ranks up to 8 ranks, else those at distance +-2^k and the next live rank
 * in either direction. So survivors stay connected whichever ranks die, and no rank is special.
 * The lower rank of a pair connects.
 *
 * A stream that ends in order without a farewell, or a refusal by the peer's listener, means
 * that the peer's process is dead. A link that breaks otherwise is reconnected; a peer that
 * cannot be reached for BANYAN_SILENT_S counts as dead too. */
#include "transport/bootstrap/control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/param.h"
#include "base/text.h"
#include "transport/bootstrap/id.h"

#define MS           1000000u
#define HALF_NS      (5000u * MS)    /* for unknown peers */
#define UNREACHED_NS (5000ull * MS)  /* until a warning names the rank */
#define KNOWN_NS     (60000ull * MS) /* for peers that know the job: they may be computing */

/* ---- accepting ---- */

static void half_remove(struct bny_control *c, int i, const char *why)
{
    if (why && !c->half[i]->known)
        bny_foreign_drop(&c->foreign, c->half[i], why);
    if (why)
        bny_conn_free(c->half[i]);
    memmove(c->half + i, c->half + i + 1, (size_t)(c->nhalf - i - 1) * sizeof c->half[0]);
    c->nhalf--;
}

/* Which connection loses its place to a new one: the oldest stranger's, else the oldest of
 * those that name the job, which strangers may know, too, without a proof. -1: there is room.
 */
static int half_loser(const struct bny_control *c)
{
    int oldest = -1, strangers = 0, unproven = 0;

    for (int i = c->nhalf - 1; i >= 0; i--) {
        if (c->half[i]->state != BNY_CONN_READY)
            unproven = i;
        if (!c->half[i]->known) {
            oldest = i;
            strangers++;
        }
    }
    if (strangers < HALF_STRANGERS && c->nhalf < HALF_MAX)
        return -1;
    return oldest >= 0 ? oldest : unproven;
}

static void half_make_room(struct bny_control *c)
{
    for (int i = half_loser(c); i >= 0; i = half_loser(c)) {
        bny_conn_progress(c->half[i]); /* its input that has arrived counts */
        if (half_loser(c) != i)
            continue;
        half_remove(c, i, "too many connections without proof; it was the oldest");
        return;
    }
}

static int links_pending(const struct bny_control *c)
{
    int pending = 0;

    for (int i = 0; i < c->nlinks; i++)
        pending += c->links[i].state == LINK_WAITING || c->links[i].state == LINK_TRYING;
    return pending;
}

static void accept_all(struct bny_control *c)
{
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < HALF_MAX && c->listen_fd[k] >= 0; i++) {
            struct bny_addr peer;
            struct bny_conn *conn;
            int fd = bny_net_accept(c->listen_fd[k], &peer);

            if (fd == -EMFILE || fd == -ENFILE)
                c->starved = !c->nhalf;
            if (fd < 0)
                break;
            c->starved = 0;
            half_make_room(c);
            conn = bny_conn_new(fd, c->epfd, 0, &peer, &c->self, control_frame_max(c));
            if (conn)
                c->half[c->nhalf++] = conn;
        }
    }
}

struct link *control_link_to(struct bny_control *c, int peer)
{
    for (int i = 0; i < c->nlinks; i++)
        if (c->links[i].peer == peer && c->links[i].state != LINK_GONE)
            return &c->links[i];
    return NULL;
}

/* Gives an authenticated connection to its link, whose own connection may be lost without our
 * notice, or which may be new because ranks between are dead. Returns 0 if it matches no
 * link. */
static int assign(struct bny_control *c, struct bny_conn *conn)
{
    int peer = conn->theirs.rank;
    struct link *l;

    if (conn->theirs.nranks != c->nranks || conn->theirs.wire != conn->mine.wire || peer < 0 ||
        peer >= c->nranks)
        return 0;
    if (bny_bit(c->agree.gone, peer)) { /* it does not know yet that it was excluded */
        bny_conn_send(conn, CONTROL_EXCLUDED, NULL, 0);
        return 0;
    }
    l = control_link_to(c, peer);
    if (peer >= c->rank) {
        if (l)
            link_asked(c, l);
        return 0;
    }
    if (!l)
        l = control_add_link(c, peer);
    if (!l || l->left)
        return 0;
    bny_conn_break(l->conn);
    link_up(c, l, conn);
    return 1;
}

static void sweep_half(struct bny_control *c)
{
    uint64_t now = bny_now_ns();

    for (int i = 0; i < c->nhalf; i++) {
        struct bny_conn *conn = c->half[i];
        int rc = bny_conn_progress(conn);

        if (rc == 1 && !c->connected)
            continue; /* a fast neighbour; we have no links yet */
        if (rc == 1)
            half_remove(c, i--, assign(c, conn) ? NULL : "its rank is not expected here");
        else if (rc < 0 || now - conn->since_ns > (conn->known ? KNOWN_NS : HALF_NS))
            half_remove(c, i--, rc < 0 ? conn->why : "it did not prove itself within 5 s");
    }
}

/* ---- progress ---- */

/* Reads before it sends, so that new input is forwarded in the same call. */
static void sweep_links(struct bny_control *c)
{
    for (int i = 0; i < c->nlinks; i++) {
        struct link *l = &c->links[i];

        if (l->state == LINK_TRYING)
            link_connect(c, l);
        else if (l->state == LINK_WAITING && c->connected)
            link_wait(c, l);
        if (l->state == LINK_UP)
            link_read(c, l);
    }
    view_run(c);
    c->busy = c->nhalf > 0 || c->view_due_ns || view_active(c);
    view_hold(c);
    for (int i = 0; i < c->nlinks; i++) {
        struct link *l = &c->links[i];

        control_push(c, l);
        if (l->state == LINK_UP)
            bny_conn_progress(l->conn);
        c->busy |=
            l->state == LINK_TRYING || l->state == LINK_WAITING ||
            (l->state == LINK_UP && (bny_conn_unsent(l->conn) || control_has_news(c, l)));
    }
    view_sent(c);
}

void control_progress_locked(struct bny_control *c)
{
    struct epoll_event ev[8];
    uint64_t count;
    int n = c->epfd < 0 ? 0 : epoll_wait(c->epfd, ev, 8, 0);

    if (n <= 0 && !c->busy)
        return;
    for (int i = 0; i < n; i++)
        c->watcher_due |= ev[i].data.ptr == c;
    if (c->wake_fd >= 0 && read(c->wake_fd, &count, sizeof count) < 0 && errno != EAGAIN)
        bny_debug("rank %d: an eventfd cannot be read", c->rank);
    accept_all(c);
    sweep_half(c);
    sweep_links(c);
    c->ready |= c->connected && !links_pending(c);
}

int bny_control_hear(struct bny_control *c)
{
    int more;

    pthread_mutex_lock(&c->lock);
    control_progress_locked(c);
    more = c->busy | c->watcher_due;
    pthread_mutex_unlock(&c->lock);
    if (more && c->has_thread) /* it may sleep, and this call consumed its wake-up */
        bny_control_wake(c);
    return atomic_load_explicit(&c->seen.logged, memory_order_acquire) != 0;
}

void bny_control_here(struct bny_control *c)
{
    atomic_store_explicit(&c->here_ns, bny_now_ns(), memory_order_relaxed);
}

int bny_control_progress(struct bny_control *c)
{
    uint64_t count;

    if (!c->has_thread)
        bny_control_hear(c);
    if (atomic_load_explicit(&c->seen.told, memory_order_relaxed) &&
        atomic_exchange(&c->seen.told, 0) && read(c->told_fd, &count, sizeof count) < 0)
        bny_debug("rank %d: an eventfd cannot be read", c->rank);
    return atomic_load_explicit(&c->seen.logged, memory_order_acquire) != 0;
}

int bny_control_news(struct bny_control *c)
{
    if (!c->has_thread)
        bny_control_hear(c);
    return bny_control_logged(c);
}

/* A link has not come up for long, and this rank is the one to connect: said once. */
static void tell_unreached(struct bny_control *c)
{
    char at[BNY_ADDR_TEXT], there[BNY_WHERE_TEXT];

    for (int i = 0; i < c->nlinks && !c->unreached_told; i++) {
        const struct link *l = &c->links[i];

        if (l->state != LINK_TRYING || bny_now_ns() - l->since_ns < UNREACHED_NS)
            continue;
        c->unreached_told = 1;
        bny_warn("init goes on: rank %d has no answer from rank %d%s at %s for %d s; does a "
                 "firewall block the port (BANYAN_PORT_RANGE), is it the right interface "
                 "(BANYAN_IFNAME)?",
                 c->rank, l->peer, bny_control_where(c, l->peer, there),
                 bny_addr_text(&l->addr[0], at), (int)(UNREACHED_NS / MS / 1000));
    }
}

int bny_control_ready(struct bny_control *c)
{
    int ready, starved;

    pthread_mutex_lock(&c->lock);
    ready = c->ready || (c->connected && !links_pending(c));
    starved = c->connected && c->starved;
    if (!ready)
        tell_unreached(c);
    pthread_mutex_unlock(&c->lock);
    if (!ready && starved)
        return bny_fail(
            BANYAN_ESYSTEM,
            "rank %d has too many open files to connect to all ranks; raise ulimit -n",
            c->rank);
    return ready;
}

/* A transport detected the end of a rank. Its last decision may still be unread in its link,
 * and nothing is accepted from a dead rank. It may have acted on that decision, so this rank
 * must too. */
static void hear_last_words(struct bny_control *c, const struct bny_failure *f)
{
    struct link *l = f->cause == BNY_CAUSE_DEATH ? control_link_to(c, f->blamed) : NULL;

    if (l && l->state == LINK_UP && !bny_bit(c->agree.gone, l->peer))
        link_read(c, l);
}

void bny_control_report(struct bny_control *c, const struct bny_failure *f)
{
    struct bny_failure copy = *f;

    copy.text[sizeof copy.text - 1] = '\0';
    pthread_mutex_lock(&c->lock);
    hear_last_words(c, f);
    copy.reporter = c->rank;
    control_add(c, &copy, -1);
    for (int i = 0; i < c->nlinks; i++)
        control_push(c, &c->links[i]);
    pthread_mutex_unlock(&c->lock);
    bny_control_wake(c);
}

/* ---- the beginning and the end ---- */

static int open_listeners(struct bny_control *c, const char *ifname, const char *port_range)
{
    struct epoll_event ev = { .events = EPOLLIN };
    struct bny_addr loop = bny_addr_loopback(0);
    int rc = bny_net_choose(&c->addr, ifname);

    if (rc != 0)
        return rc;
    c->listen_fd[0] = bny_fd_own(bny_net_listen(&c->addr, port_range, HALF_MAX));
    if (c->listen_fd[0] < 0)
        return c->listen_fd[0];
    if (!bny_addr_is_loopback(&c->addr)) {
        /* Neighbours on this host use loopback, so their links survive a failing interface. */
        c->listen_fd[1] = bny_fd_own(bny_net_listen(&loop, port_range, HALF_MAX));
        if (c->listen_fd[1] >= 0)
            c->loop_port = loop.port;
        else if (c->listen_fd[1] != -BANYAN_ESYSTEM || control_is_lack(errno))
            return c->listen_fd[1];
        else
            bny_warn("there is no loopback here (ip link set lo up): ranks of one network "
                     "namespace cannot reach each other by tcp");
    }
    c->wake_fd = bny_fd_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    c->told_fd = bny_fd_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (c->wake_fd < 0 || c->told_fd < 0 ||
        epoll_ctl(c->epfd, EPOLL_CTL_ADD, c->wake_fd, &ev) != 0)
        return bny_fail_errno("rank %d: eventfd", c->rank);
    for (int k = 0; k < 2; k++)
        if (c->listen_fd[k] >= 0 &&
            epoll_ctl(c->epfd, EPOLL_CTL_ADD, c->listen_fd[k], &ev) != 0)
            return bny_fail_errno("rank %d: epoll_ctl", c->rank);
    return 0;
}

/* Ranks that a view needs if some are silent; 0: majority; -1: any. */
static int read_quorum(int nranks, int *out)
{
    const char *text = bny_param_str("BANYAN_QUORUM");
    char *end;
    long n;

    *out = 0;
    if (!text || !*text || strcmp(text, "majority") == 0)
        return 0;
    *out = -1;
    if (strcmp(text, "any") == 0)
        return 0;
    n = strtol(text, &end, 10);
    if (*end || n < 1 || n > nranks)
        return bny_fail(BANYAN_ECONFIG,
                        "BANYAN_QUORUM=%s: must be majority, any, or a number of ranks from 1 "
                        "to %d",
                        text, nranks);
    *out = (int)n;
    return 0;
}

int bny_control_create(struct bny_control **out, int rank, int nranks, const uint8_t *secret,
                       const uint8_t *job, const char *ifname, const char *port_range)
{
    struct bny_control *c;
    int rc = bny_id_sodium();

    *out = NULL;
    if (rc != 0)
        return rc;
    c = calloc(1, sizeof *c);
    if (!c)
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for the control plane", rank);
    pthread_mutex_init(&c->lock, NULL);
    c->rank = rank;
    c->nranks = nranks;
    c->epfd = c->listen_fd[0] = c->listen_fd[1] = c->wake_fd = c->told_fd = -1;
    c->awake_ns = 3600ull * 1000 * MS; /* any value larger than a silence */
    c->silent_ns = (uint64_t)(bny_param_real("BANYAN_SILENT_S") * 1e9);
    bny_conn_self_init(&c->self, BNY_CONN_CONTROL, secret, job, rank, nranks);
    rc = read_quorum(nranks, &c->quorum);
    if (rc == 0)
        rc = bny_failures_init(&c->known, nranks);
    if (rc == 0)
        rc = view_init(c);
    c->peers = rc == 0 ? calloc((unsigned)nranks, sizeof *c->peers) : NULL;
    if (rc == 0 && !c->peers)
        rc = bny_fail(BANYAN_ENOMEM, "rank %d: no memory for the control plane", rank);
    if (rc == 0 && nranks > 1) {
        c->epfd = bny_fd_own(epoll_create1(EPOLL_CLOEXEC));
        rc = c->epfd < 0 ? bny_fail_errno("rank %d: epoll_create1", rank)
                         : open_listeners(c, ifname, port_range);
    }
    if (rc != 0) {
        bny_control_destroy(c);
        return rc;
    }
    *out = c;
    return 0;
}

int bny_control_address(struct bny_control *c, void *blob, size_t cap)
{
    struct control_blob b = { .addr = c->addr,
                              .loop_port = c->loop_port,
                              .pid = (uint32_t)getpid() };
    char name[256] = "";

    gethostname(name, sizeof name - 1);
    snprintf(b.host, sizeof b.host, "%.*s", (int)sizeof b.host - 1, name);

    if (cap < sizeof b)
        return bny_fail(BANYAN_EINVAL, "a control address needs %zu bytes, not %zu", sizeof b,
                        cap);
    memcpy(blob, &b, sizeof b);
    return sizeof b;
}

const char *bny_control_where(const struct bny_control *c, int rank, char *text)
{
    const struct control_blob *at = &c->peers[rank].at;

    text[0] = '\0';
    if (at->pid)
        snprintf(text, BNY_WHERE_TEXT, " (pid %u on %s)", at->pid, at->host);
    return text;
}

static void link_addresses(const struct bny_control *c, struct link *l)
{
    const struct control_peer *p = &c->peers[l->peer];

    l->addr[0] = p->at.addr;
    if (p->same_host && p->at.loop_port)
        l->addr[1] = bny_addr_loopback(p->at.loop_port);
}

struct link *control_add_link(struct bny_control *c, int peer)
{
    struct link *l = control_link_to(c, peer);
    int at = 0;

    if (l || peer == c->rank)
        return l;
    while (at < c->nlinks && !(c->links[at].state == LINK_GONE && c->ready))
        at++;
    if (at == LINKS_MAX)
        return NULL;
    c->nlinks += at == c->nlinks;
    l = &c->links[at];
    *l = (struct link){
        .peer = peer,
        .state = peer > c->rank ? LINK_TRYING : LINK_WAITING,
        .since_ns = bny_now_ns(),
    };
    link_addresses(c, l);
    c->busy = 1;
    return l;
}

static void choose_neighbours(struct bny_control *c)
{
    int n = c->nranks;

    if (n <= FULL_MESH) {
        for (int i = 0; i < n; i++)
            control_add_link(c, i);
        return;
    }
    for (int d = 1; d < n && d > 0; d *= 2) {
        control_add_link(c, (c->rank + d) % n);
        control_add_link(c, (c->rank - d + n) % n);
    }
}

/* One rank's peer info. */
static int take_address(struct bny_control *c, int r, const void *blob, int same_host)
{
    struct control_peer *p = &c->peers[r];

    memcpy(&p->at, blob, sizeof p->at);
    p->at.host[sizeof p->at.host - 1] = '\0';
    bny_text_printable(p->at.host);
    p->same_host = (uint8_t)same_host;
    if (r == c->rank)
        return 0;
    if ((p->at.addr.family != 4 && p->at.addr.family != 6) || !p->at.addr.port)
        return bny_fail(BANYAN_EPROTO,
                        "rank %d: the peer info of rank %d has no control address", c->rank, r);
    if (bny_addr_is_loopback(&p->at.addr) && !same_host)
        return bny_fail(BANYAN_ECONFIG,
                        "rank %d runs on another host than rank %d, or in another network "
                        "namespace, but gives a loopback address; set BANYAN_IFNAME to the "
                        "interface that joins them",
                        r, c->rank);
    return 0;
}

int bny_control_connect(struct bny_control *c, const void *blobs, size_t stride,
                        const uint8_t *same_host)
{
    int rc = 0;

    pthread_mutex_lock(&c->lock);
    for (int r = 0; r < c->nranks && rc == 0 && c->nranks > 1; r++)
        rc = take_address(c, r, (const uint8_t *)blobs + (size_t)r * stride, same_host[r]);
    if (rc == 0) {
        choose_neighbours(c);
        c->connected = c->busy = 1;
        control_progress_locked(c);
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* Queues farewells. Returns how many links still have something to send. */
static int say_farewell(struct bny_control *c)
{
    int open = 0;

    c->agree.leaving = 1;
    for (int i = 0; i < c->nlinks; i++) {
        struct link *l = &c->links[i];

        if (l->state != LINK_UP)
            continue;
        control_push(c, l);
        if (!l->said_farewell && l->next_record == c->known.count &&
            bny_conn_send(l->conn, CONTROL_FAREWELL, c->frame,
                          view_farewell_make(c, c->frame)) == 0)
            l->said_farewell = 1;
        open += !l->said_farewell || bny_conn_unsent(l->conn) > 0;
    }
    return open;
}

int bny_control_farewell(struct bny_control *c)
{
    int open;

    pthread_mutex_lock(&c->lock);
    control_progress_locked(c);
    open = say_farewell(c);
    /* A neighbour that is still connecting would take our absence for a failure. */
    if (!c->known.count)
        open += links_pending(c);
    pthread_mutex_unlock(&c->lock);
    return open ? BNY_AGAIN : 0;
}

int bny_control_fds(struct bny_control *c, int *fds, int cap)
{
    if (c->epfd < 0 || cap < 1)
        return 0;
    /* Readable when something was agreed on, or when any of the sockets is ready. */
    fds[0] = c->has_thread ? c->told_fd : c->epfd;
    return 1;
}

void bny_control_destroy(struct bny_control *c)
{
    if (!c)
        return;
    control_stop(c);
    /* After a failure our exit is its consequence, not another failure. */
    if (c->known.count && c->frame)
        say_farewell(c);
    for (int i = 0; i < c->nlinks; i++)
        link_close(&c->links[i]);
    for (int i = 0; i < c->nhalf; i++)
        bny_conn_free(c->half[i]);
    for (int k = 0; k < 2; k++)
        if (c->listen_fd[k] >= 0)
            bny_fd_close(c->listen_fd[k]);
    if (c->wake_fd >= 0)
        bny_fd_close(c->wake_fd);
    if (c->told_fd >= 0)
        bny_fd_close(c->told_fd);
    if (c->epfd >= 0)
        bny_fd_close(c->epfd);
    view_finish(c);
    survey_finish(c);
    free(c->peers);
    bny_failures_finish(&c->known);
    pthread_mutex_destroy(&c->lock);
    sodium_memzero(c, sizeof *c);
    free(c);
}
