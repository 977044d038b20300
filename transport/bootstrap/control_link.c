/* SPDX-License-Identifier: BSD-3-Clause */
/* The life of a control link: connect, prove, exchange records, end. What an end means is told
 * at the top of control.c. */
#include "transport/bootstrap/control.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"

#define MS         1000000u
#define CONNECT_NS (10000ull * MS)
/* Of one address, while there is another; doubles up to 16 s. */
#define SILENCE_NS   (500ull * MS)
#define REFUSALS_MAX 6
#define ATTEMPTS_MAX 40

/* ---- records ---- */

void control_add(struct bny_control *c, const struct bny_failure *f, int source)
{
    if (!bny_failures_add(&c->known, f, bny_now_ns(), source))
        return;
    c->busy = 1;
    atomic_store_explicit(&c->suspect, 1, memory_order_release);
    bny_info("failure known (from rank %d): %s", source < 0 ? c->rank : source, f->text);
}

void control_push(struct bny_control *c, struct link *l)
{
    while (l->state == LINK_UP && l->next_record < c->known.count) {
        const struct bny_record *r = &c->known.list[l->next_record++];
        struct bny_failure f = r->f;

        if (r->source == l->peer)
            continue;
        l->told_world |= f.comm == 0;
        if (bny_conn_send(l->conn, CONTROL_RECORD, &f,
                          offsetof(struct bny_failure, text) + strlen(f.text)) != 0) {
            l->next_record--;
            return;
        }
    }
}

static void own_failure(struct bny_control *c, enum bny_cause cause, enum banyan_error code,
                        int blamed, const char *text)
{
    struct bny_failure f = {
        .cause = cause, .code = (uint32_t)code, .blamed = blamed, .reporter = c->rank
    };

    snprintf(f.text, sizeof f.text, "%s", text);
    control_add(c, &f, -1);
}

void control_record_death(struct bny_control *c, int peer)
{
    char text[128];

    /* The same words on every rank that sees it: neighbours add their own before they hear of
     * others'. */
    snprintf(text, sizeof text, "rank %d died: its process ended without leaving the job",
             peer);
    own_failure(c, BNY_CAUSE_DEATH, BANYAN_ERANKDEAD, peer, text);
}

/* ---- the life of a link ---- */

static void link_gone(struct link *l)
{
    bny_conn_free(l->conn);
    l->conn = NULL;
    l->state = LINK_GONE;
}

/* An established link has ended. */
static void link_ended(struct bny_control *c, struct link *l)
{
    int left = l->left;

    link_gone(l);
    if (left)
        return;
    if (bny_failures_blames(&c->known, BNY_CAUSE_RESET, l->peer))
        control_record_death(c, l->peer);
    else if (l->told_world)
        bny_debug("rank %d left after the failure", l->peer);
    else if (l->told_comm)
        l->death_ns = bny_now_ns() + 2 * BNY_GRACE_NS;
    else
        control_record_death(c, l->peer);
}

void link_up(struct link *l, struct bny_conn *conn)
{
    int one = 1, idle = 5, every = 2, times = 3, limit_ms = 12000;

    /* A host that vanished sends no end of stream: ask it. */
    setsockopt(conn->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(conn->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(conn->fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    setsockopt(conn->fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
    setsockopt(conn->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
    l->conn = conn;
    l->state = LINK_UP;
}

/* The failure of connecting at all. */
static void link_failed(struct bny_control *c, struct link *l, const char *why)
{
    char text[300], at[BNY_ADDR_TEXT];

    link_gone(l);
    snprintf(text, sizeof text,
             "rank %d cannot connect to rank %d at %s: %s; is it running, does a "
             "firewall block the port (BANYAN_PORT_RANGE), is it the right interface "
             "(BANYAN_IFNAME)?",
             c->rank, l->peer, bny_addr_text(&l->addr[0], at), why);
    own_failure(c, BNY_CAUSE_RESET, BANYAN_ERANKDEAD, l->peer, text);
}

static void link_retry(struct bny_control *c, struct link *l, const char *why, int err)
{
    uint64_t now = bny_now_ns(), wait = 5u * MS << (l->attempts < 6 ? l->attempts : 6);

    bny_conn_free(l->conn);
    l->conn = NULL;
    l->by_interface = !l->by_interface;
    l->attempts++;
    l->refusals += err == ECONNREFUSED;
    if (l->refusals > REFUSALS_MAX || l->attempts > ATTEMPTS_MAX ||
        (err && now - l->since_ns > CONNECT_NS)) {
        link_failed(c, l, why);
        return;
    }
    l->retry_ns = now + wait;
}

/* Accepted and not answered: the peer is slow; or it has a network namespace of its own on this
 * host, and at its port of our loopback listens somebody else, perhaps we ourselves. Its other
 * address tells. */
static void link_silent(struct link *l)
{
    bny_conn_free(l->conn);
    l->conn = NULL;
    l->by_interface = !l->by_interface;
    l->attempts = l->refusals = 0;
    l->silences += l->silences < 5;
    l->since_ns = bny_now_ns();
}

static void link_try(struct bny_control *c, struct link *l)
{
    const struct bny_addr *a = &l->addr[0];
    int fd;

    if (bny_now_ns() < l->retry_ns)
        return;
    if (l->addr[1].family && !l->by_interface)
        a = &l->addr[1];
    fd = bny_net_connect(a);
    if (fd < 0) {
        link_retry(c, l, strerror(-fd), -fd);
        return;
    }
    l->attempt_ns = bny_now_ns();
    l->conn = bny_conn_new(fd, c->epfd, 1, a, &c->self, sizeof(struct bny_failure));
    if (!l->conn)
        link_failed(c, l, "no memory");
}

void link_connect(struct bny_control *c, struct link *l)
{
    int rc;

    if (!l->conn)
        link_try(c, l);
    if (!l->conn)
        return;
    rc = bny_conn_progress(l->conn);
    if (rc == 1 && l->conn->theirs.rank != l->peer)
        link_retry(c, l, "another rank answers there", 0);
    else if (rc == 1)
        link_up(l, l->conn);
    else if (rc < 0)
        link_retry(c, l, l->conn->err ? strerror(l->conn->err) : l->conn->why, l->conn->err);
    else if (l->conn->state == BNY_CONN_CONNECTING && bny_now_ns() - l->attempt_ns > CONNECT_NS)
        link_retry(c, l, "no answer within 10 s", ETIMEDOUT);
    else if (l->conn->state != BNY_CONN_CONNECTING && l->addr[1].family &&
             bny_now_ns() - l->attempt_ns > SILENCE_NS << l->silences)
        link_silent(l);
}

static void take_record(struct bny_control *c, struct link *l, const uint8_t *data, size_t len)
{
    struct bny_failure f = { 0 };
    char text[100];

    if (len < sizeof f && len >= offsetof(struct bny_failure, text))
        memcpy(&f, data, len);
    if (!bny_failure_valid(&f, c->nranks)) {
        snprintf(text, sizeof text, "rank %d sent a broken failure record to rank %d", l->peer,
                 c->rank);
        link_gone(l);
        own_failure(c, BNY_CAUSE_RESET, BANYAN_EPROTO, l->peer, text);
        return;
    }
    l->told_world |= f.comm == 0;
    l->told_comm |= f.comm != 0;
    control_add(c, &f, l->peer);
}

void link_read(struct bny_control *c, struct link *l)
{
    uint32_t type;
    const uint8_t *data;
    size_t len;
    int rc = 0;

    while (l->state == LINK_UP && (rc = bny_conn_next(l->conn, &type, &data, &len)) == 1) {
        if (type == CONTROL_RECORD)
            take_record(c, l, data, len);
        else if (type == CONTROL_FAREWELL)
            l->left = 1;
    }
    if (l->state == LINK_UP && rc < 0)
        link_ended(c, l);
}
