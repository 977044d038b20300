/* SPDX-License-Identifier: BSD-3-Clause */
/* The control plane: links to a few neighbours that notice dead processes and flood failure
 * records.
 *
 * Overlay: every other rank up to 8 ranks, else those at distance +-2^k: the flood needs at
 * most log2(n) hops and no rank is special. The lower rank of a pair connects.
 *
 * A link whose peer ends without a farewell means that the peer's process is dead. Two ends are
 * only consequences and no new failure: of a peer that already exchanged a failure of the world
 * with us (it leaves because of that), and of one that told us of a failure of a communicator
 * (its death counts only after the grace of that one). A peer whose data connection was reset
 * is the exception: its death explains the reset. */
#include "transport/bootstrap/control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/err.h"
#include "transport/bootstrap/id.h"

#define MS        1000000u
#define FULL_MESH 8
#define HALF_NS   (5000u * MS)    /* for strangers */
#define KNOWN_NS  (60000ull * MS) /* for those that know the job: it may compute */

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

static void accept_all(struct bny_control *c)
{
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < HALF_MAX && c->listen_fd[k] >= 0; i++) {
            struct bny_addr peer;
            struct bny_conn *conn;
            int fd = bny_net_accept(c->listen_fd[k], &peer);

            if (fd < 0)
                break;
            if (c->nhalf == HALF_MAX)
                half_remove(c, 0, "too many connections without proof; it was the oldest");
            conn = bny_conn_new(fd, c->epfd, 0, &peer, &c->self, sizeof(struct bny_failure));
            if (conn)
                c->half[c->nhalf++] = conn;
        }
    }
}

/* Gives a connection that has proven itself to the link that waits for it. Returns 0 when there
 * is none. */
static int assign(struct bny_control *c, struct bny_conn *conn)
{
    if (conn->theirs.nranks != c->nranks || conn->theirs.wire != conn->mine.wire)
        return 0;
    for (int i = 0; i < c->nlinks; i++) {
        struct link *l = &c->links[i];

        if (l->peer == conn->theirs.rank && l->state == LINK_WAITING) {
            link_up(l, conn);
            return 1;
        }
    }
    return 0;
}

static void sweep_half(struct bny_control *c)
{
    uint64_t now = bny_now_ns();

    for (int i = 0; i < c->nhalf; i++) {
        struct bny_conn *conn = c->half[i];
        int rc = bny_conn_progress(conn);

        if (rc == 1 && !c->connected)
            continue; /* a quick neighbour; we have no links yet */
        if (rc == 1)
            half_remove(c, i--, assign(c, conn) ? NULL : "its rank is not expected here");
        else if (rc < 0 || now - conn->since_ns > (conn->known ? KNOWN_NS : HALF_NS))
            half_remove(c, i--, rc < 0 ? conn->why : "it did not prove itself within 5 s");
    }
}

static void stop_listening(struct bny_control *c)
{
    for (int k = 0; k < 2; k++) {
        if (c->listen_fd[k] >= 0)
            close(c->listen_fd[k]);
        c->listen_fd[k] = -1;
    }
}

/* ---- progress ---- */

static int links_pending(const struct bny_control *c)
{
    int pending = 0;

    for (int i = 0; i < c->nlinks; i++)
        pending += c->links[i].state == LINK_WAITING || c->links[i].state == LINK_TRYING;
    return pending;
}

/* Reads first and sends after, so that a record that came in goes out in the same call. */
static void sweep_links(struct bny_control *c)
{
    for (int i = 0; i < c->nlinks; i++) {
        struct link *l = &c->links[i];

        if (l->state == LINK_TRYING)
            link_connect(c, l);
        if (l->state == LINK_UP)
            link_read(c, l);
        if (l->death_ns && bny_now_ns() >= l->death_ns) {
            l->death_ns = 0;
            control_record_death(c, l->peer);
        }
    }
    c->busy = c->nhalf > 0;
    for (int i = 0; i < c->nlinks; i++) {
        struct link *l = &c->links[i];

        control_push(c, l);
        if (l->state == LINK_UP)
            bny_conn_progress(l->conn);
        c->busy |= l->state == LINK_TRYING || l->death_ns ||
                   (l->state == LINK_UP &&
                    (bny_conn_unsent(l->conn) || l->next_record < c->known.count));
    }
}

static void progress_locked(struct bny_control *c)
{
    struct epoll_event ev[8];

    if (c->epfd < 0)
        return;
    if (epoll_wait(c->epfd, ev, 8, 0) <= 0 && !c->busy)
        return;
    accept_all(c);
    sweep_half(c);
    sweep_links(c);
    if (c->connected && !links_pending(c))
        stop_listening(c);
}

static uint64_t grace(const struct bny_control *c)
{
    return c->nranks > 1 ? BNY_GRACE_NS : 0;
}

int bny_control_progress(struct bny_control *c)
{
    int failed;

    pthread_mutex_lock(&c->lock);
    progress_locked(c);
    failed = c->known.count &&
             bny_failures_winner(&c->known, BNY_ALL_COMMS, bny_now_ns(), grace(c)) != NULL;
    pthread_mutex_unlock(&c->lock);
    return failed;
}

int bny_control_ready(struct bny_control *c)
{
    int ready;

    pthread_mutex_lock(&c->lock);
    ready = c->connected && !links_pending(c);
    pthread_mutex_unlock(&c->lock);
    return ready;
}

int bny_control_failure_of(struct bny_control *c, uint32_t comm, struct bny_failure *out)
{
    const struct bny_failure *f;

    if (!bny_control_suspect(c))
        return 0;
    pthread_mutex_lock(&c->lock);
    f = bny_failures_winner(&c->known, comm, bny_now_ns(), grace(c));
    if (f)
        *out = *f;
    pthread_mutex_unlock(&c->lock);
    return f != NULL;
}

int bny_control_pending(struct bny_control *c, uint32_t comm)
{
    uint64_t now = bny_now_ns();
    int pending;

    if (!bny_control_suspect(c))
        return 0;
    pthread_mutex_lock(&c->lock);
    pending = bny_failures_winner(&c->known, comm, now, 0) &&
              !bny_failures_winner(&c->known, comm, now, grace(c));
    pthread_mutex_unlock(&c->lock);
    return pending;
}

int bny_control_failure(struct bny_control *c, struct bny_failure *out)
{
    return bny_control_failure_of(c, BNY_ALL_COMMS, out);
}

int bny_control_suspect(struct bny_control *c)
{
    return atomic_load_explicit(&c->suspect, memory_order_acquire);
}

void bny_control_report(struct bny_control *c, const struct bny_failure *f)
{
    struct bny_failure copy = *f;

    copy.text[sizeof copy.text - 1] = '\0';
    pthread_mutex_lock(&c->lock);
    copy.reporter = c->rank;
    control_add(c, &copy, -1);
    for (int i = 0; i < c->nlinks; i++)
        control_push(c, &c->links[i]);
    pthread_mutex_unlock(&c->lock);
}

/* ---- the beginning and the end ---- */

static int open_listeners(struct bny_control *c, const char *ifname, const char *port_range)
{
    struct epoll_event ev = { .events = EPOLLIN };
    struct bny_addr loop = bny_addr_loopback(0);
    int rc = bny_net_choose(&c->addr, ifname);

    if (rc != 0)
        return rc;
    c->listen_fd[0] = bny_net_listen(&c->addr, port_range, HALF_MAX);
    if (c->listen_fd[0] < 0)
        return c->listen_fd[0];
    if (!bny_addr_is_loopback(&c->addr)) {
        /* Neighbours on this host come this way, so their links survive what happens to the
         * interface. */
        c->listen_fd[1] = bny_net_listen(&loop, port_range, HALF_MAX);
        if (c->listen_fd[1] < 0)
            return c->listen_fd[1];
        c->loop_port = loop.port;
    }
    for (int k = 0; k < 2; k++)
        if (c->listen_fd[k] >= 0 &&
            epoll_ctl(c->epfd, EPOLL_CTL_ADD, c->listen_fd[k], &ev) != 0)
            return bny_fail_errno("rank %d: epoll_ctl", c->rank);
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
    c->epfd = c->listen_fd[0] = c->listen_fd[1] = -1;
    memcpy(c->secret, secret, sizeof c->secret);
    bny_conn_self_init(&c->self, BNY_CONN_CONTROL, c->secret, job, rank, nranks);
    rc = bny_failures_init(&c->known, nranks);
    if (rc == 0 && nranks > 1) {
        c->epfd = epoll_create1(EPOLL_CLOEXEC);
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
    struct control_blob b = { .addr = c->addr, .loop_port = c->loop_port };

    if (cap < sizeof b)
        return bny_fail(BANYAN_EINVAL, "a control address needs %zu bytes, not %zu", sizeof b,
                        cap);
    memcpy(blob, &b, sizeof b);
    return sizeof b;
}

static void add_link(struct bny_control *c, int peer)
{
    for (int i = 0; i < c->nlinks; i++)
        if (c->links[i].peer == peer)
            return;
    if (peer == c->rank || c->nlinks == LINKS_MAX)
        return;
    c->links[c->nlinks++] = (struct link){
        .peer = peer,
        .state = peer > c->rank ? LINK_TRYING : LINK_WAITING,
        .since_ns = bny_now_ns(),
    };
}

static void choose_neighbours(struct bny_control *c)
{
    int n = c->nranks;

    if (n <= FULL_MESH) {
        for (int i = 0; i < n; i++)
            add_link(c, i);
        return;
    }
    for (int d = 1; d < n && d > 0; d *= 2) {
        add_link(c, (c->rank + d) % n);
        add_link(c, (c->rank - d + n) % n);
    }
}

int bny_control_connect(struct bny_control *c, const void *blobs, size_t stride,
                        const uint8_t *same_host)
{
    int rc = 0;

    pthread_mutex_lock(&c->lock);
    choose_neighbours(c);
    for (int i = 0; i < c->nlinks && rc == 0; i++) {
        struct link *l = &c->links[i];
        struct control_blob b;

        memcpy(&b, (const uint8_t *)blobs + (size_t)l->peer * stride, sizeof b);
        if ((b.addr.family != 4 && b.addr.family != 6) || !b.addr.port)
            rc = bny_fail(BANYAN_EPROTO, "rank %d: the card of rank %d has no control address",
                          c->rank, l->peer);
        l->addr[0] = b.addr;
        if (same_host[l->peer] && b.loop_port)
            l->addr[1] = bny_addr_loopback(b.loop_port);
        else if (bny_addr_is_loopback(&b.addr) && !same_host[l->peer])
            rc = bny_fail(BANYAN_ECONFIG,
                          "rank %d runs on another host than rank %d but gives a loopback "
                          "address; set BANYAN_IFNAME to the interface that joins the hosts",
                          l->peer, c->rank);
    }
    if (rc == 0) {
        c->connected = c->busy = 1;
        progress_locked(c);
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* Queues farewells. Returns how many links still have something to send. */
static int say_farewell(struct bny_control *c)
{
    int open = 0;

    for (int i = 0; i < c->nlinks; i++) {
        struct link *l = &c->links[i];

        if (l->state != LINK_UP)
            continue;
        control_push(c, l);
        if (!l->said_farewell && l->next_record == c->known.count &&
            bny_conn_send(l->conn, CONTROL_FAREWELL, NULL, 0) == 0)
            l->said_farewell = 1;
        open += !l->said_farewell || bny_conn_unsent(l->conn) > 0;
    }
    return open;
}

int bny_control_farewell(struct bny_control *c)
{
    int open;

    pthread_mutex_lock(&c->lock);
    progress_locked(c);
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
    fds[0] = c->epfd; /* readable when any of the sockets is ready */
    return 1;
}

void bny_control_destroy(struct bny_control *c)
{
    if (!c)
        return;
    /* After a failure our going is its consequence, and the others should not take it for the
     * cause. */
    if (bny_failures_winner(&c->known, 0, UINT64_MAX, 0))
        say_farewell(c);
    stop_listening(c);
    for (int i = 0; i < c->nlinks; i++)
        bny_conn_free(c->links[i].conn);
    for (int i = 0; i < c->nhalf; i++)
        bny_conn_free(c->half[i]);
    if (c->epfd >= 0)
        close(c->epfd);
    bny_failures_finish(&c->known);
    pthread_mutex_destroy(&c->lock);
    sodium_memzero(c, sizeof *c);
    free(c);
}
