/* SPDX-License-Identifier: BSD-3-Clause */
/* Newcomers to a running job: the rank that accepts them, and the newcomer's side. */
#include "transport/bootstrap/newcomers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/counts.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "transport/bootstrap/conn.h"
#include "transport/bootstrap/id.h"
#include "transport/wire.h"

#define MS          1000000u
#define EXTRA       64              /* connections besides those wanted */
#define PROVE_NS    (5000u * MS)    /* since it was accepted */
#define KNOWN_NS    (60000ull * MS) /* for newcomers that know the job */
#define FRAME_MAX   1024
#define TEXT        400
#define GONE_NS     (700u * MS) /* nobody listens for this long */
#define REFUSED_MAX 5           /* handshakes closed by the peer: it is another job */

#define PLACE_BYTES (8 + BNY_ID_BOX)

enum frame { FRAME_PLACE = 1, FRAME_REFUSE };

static int open_set(void)
{
    int fd = bny_fd_own(epoll_create1(EPOLL_CLOEXEC));

    return fd < 0 ? bny_fail_errno("newcomers: epoll_create1") : fd;
}

/* ---- the rank that made the id ---- */

struct bny_newcomers {
    struct bny_id id;
    struct bny_conn_self self;
    struct bny_foreign foreign;
    int listen_fd, epfd, wanted, come; /* come: number of authenticated newcomers */
    struct bny_conn **conn;            /* slot: order of arrival, -1: not authenticated yet */
    int nconn, cap;
    uint64_t start_ns, deadline_ns;
    int error;
    char text[TEXT];
};

int bny_newcomers_start(struct bny_newcomers **out, const struct bny_id *id, int wanted,
                        uint64_t deadline_ns)
{
    struct bny_newcomers *n = calloc(1, sizeof *n);
    int fd = bny_id_take_fd(id);

    *out = NULL;
    if (fd < 0 || !n) {
        if (fd >= 0)
            close(fd);
        free(n);
        return fd < 0 ? bny_fail(BANYAN_EINVAL, "the id was not made by this process, or was "
                                                "used: make another")
                      : bny_fail(BANYAN_ENOMEM, "no memory for %d newcomers", wanted);
    }
    n->id = *id;
    n->listen_fd = fd;
    n->wanted = wanted;
    n->cap = wanted + EXTRA;
    n->start_ns = bny_now_ns();
    n->deadline_ns = deadline_ns;
    n->conn = calloc((size_t)n->cap, sizeof(struct bny_conn *));
    bny_conn_self_init(&n->self, BNY_CONN_JOIN, n->id.secret, n->id.job, -1, 0);
    n->epfd = n->conn ? open_set() : bny_fail(BANYAN_ENOMEM, "no memory for newcomers");
    if (n->epfd < 0) {
        int rc = n->epfd;

        bny_newcomers_free(n);
        return rc;
    }
    *out = n;
    return 0;
}

static void newcomers_drop(struct bny_newcomers *n, int i)
{
    bny_conn_free(n->conn[i]);
    n->conn[i] = n->conn[--n->nconn];
}

/* The sentence travels before the end of the connection: its input is read first. */
static void refuse_one(struct bny_conn *c, enum banyan_error code, const char *text)
{
    uint8_t frame[4 + TEXT];
    uint32_t word = (uint32_t)code;
    size_t len = strlen(text) < TEXT ? strlen(text) : TEXT - 1;

    memcpy(frame, &word, 4);
    memcpy(frame + 4, text, len);
    bny_conn_send(c, FRAME_REFUSE, frame, 4 + len);
    bny_conn_progress(c);
}

void bny_newcomers_refuse(struct bny_newcomers *n, enum banyan_error code, const char *text)
{
    while (n->nconn > 0) {
        if (n->conn[0]->state == BNY_CONN_READY)
            refuse_one(n->conn[0], code, text);
        newcomers_drop(n, 0);
    }
}

static int newcomers_fail(struct bny_newcomers *n, int rc)
{
    n->error = rc;
    snprintf(n->text, sizeof n->text, "%s", banyan_last_error());
    bny_newcomers_refuse(n, (enum banyan_error) - rc, n->text);
    return rc;
}

/* Which connection loses its place to a new one: the oldest of those that have not named the
 * job, else of those without proof. -1: there is room. */
static int newcomers_loser(const struct bny_newcomers *n)
{
    int loser = -1;

    for (int i = 0; i < n->nconn && n->nconn == n->cap; i++) {
        const struct bny_conn *c = n->conn[i], *best = loser < 0 ? NULL : n->conn[loser];

        if (c->slot < 0 && (!best || c->known < best->known ||
                            (c->known == best->known && c->since_ns < best->since_ns)))
            loser = i;
    }
    return loser;
}

static void accept_all(struct bny_newcomers *n)
{
    struct bny_addr peer;

    /* Strangers may connect as fast as we accept: the rest stays for the next call. */
    for (int left = n->cap; left > 0; left--) {
        struct bny_conn *c;
        int fd = bny_net_accept(n->listen_fd, &peer);

        if (fd < 0)
            return;
        for (int i = newcomers_loser(n); i >= 0; i = newcomers_loser(n)) {
            bny_conn_progress(n->conn[i]); /* its input that has arrived counts */
            if (newcomers_loser(n) != i)
                continue;
            bny_foreign_drop(&n->foreign, n->conn[i],
                             "too many connections without proof; it was the oldest");
            newcomers_drop(n, i);
        }
        c = bny_conn_new(fd, n->epfd, 0, &peer, &n->self, FRAME_MAX);
        if (c)
            n->conn[n->nconn++] = c;
    }
}

/* The i-th is authenticated. Returns 1 if it is gone again. */
static int let_in(struct bny_newcomers *n, int i)
{
    struct bny_conn *c = n->conn[i];
    const struct bny_hello *h = &c->theirs;
    char at[BNY_ADDR_TEXT];

    bny_addr_text(&c->peer, at);
    if (h->wire != n->self.wire || h->version / 100 != n->self.version / 100)
        return bny_fail(BANYAN_EVERSION,
                        "a newcomer (%s) runs banyan %u.%u.%u with wire version %u, the job "
                        "%s with %u; install the same version on every host",
                        at, h->version / 10000, h->version / 100 % 100, h->version % 100,
                        h->wire, banyan_version_string(), n->self.wire);
    if (n->come == n->wanted) {
        refuse_one(c, BANYAN_EBUSY,
                   "the job grew by others that came first: join by its next "
                   "id");
        newcomers_drop(n, i);
        return 1;
    }
    c->slot = n->come++;
    bny_debug("newcomer %d of %d has come from %s", n->come, n->wanted, at);
    return 0;
}

/* Returns 0, 1 if the i-th is gone, or an error. */
static int newcomers_look_at(struct bny_newcomers *n, int i)
{
    struct bny_conn *c = n->conn[i];
    char at[BNY_ADDR_TEXT];
    const uint8_t *data;
    uint32_t type;
    size_t len;
    int rc;

    if (c->slot < 0) {
        rc = bny_conn_progress(c);
        if (rc == 1)
            return let_in(n, i);
        if (rc == 0 && bny_now_ns() - c->since_ns < (c->known ? KNOWN_NS : PROVE_NS))
            return 0;
        if (!c->known || !c->eof || c->err) /* else it stopped waiting */
            bny_foreign_drop(&n->foreign, c, rc < 0 ? c->why : "it did not prove itself");
        newcomers_drop(n, i);
        return 1;
    }
    rc = bny_conn_next(c, &type, &data, &len);
    if (rc == 0)
        return 0;
    bny_addr_text(&c->peer, at);
    return rc > 0
               ? bny_fail(BANYAN_EPROTO, "newcomer %d (%s) sent a frame of unknown type %u",
                          c->slot, at, type)
               : bny_fail(BANYAN_ERANKDEAD, "newcomer %d (%s) ended before all %d had come: %s",
                          c->slot, at, n->wanted, c->why);
}

int bny_newcomers_progress(struct bny_newcomers *n)
{
    char at[BNY_ADDR_TEXT];
    struct bny_addr addr;

    if (n->error) {
        bny_set_last_error(n->text);
        return n->error;
    }
    accept_all(n);
    for (int i = 0; i < n->nconn;) {
        int rc = newcomers_look_at(n, i);

        if (rc < 0)
            return newcomers_fail(n, rc);
        i += !rc;
    }
    if (n->come == n->wanted)
        return 1;
    if (!bny_deadline_passed(n->deadline_ns))
        return 0;
    bny_id_addr(&n->id, &addr);
    return newcomers_fail(
        n, bny_fail(BANYAN_ETIMEDOUT,
                    "%d of %d newcomers came to %s within %.1f s; do they run, with "
                    "the latest id? Is a firewall in the way of BANYAN_PORT_RANGE?",
                    n->come, n->wanted, bny_addr_text(&addr, at),
                    (double)(bny_now_ns() - n->start_ns) / 1e9));
}

int bny_newcomers_place(struct bny_newcomers *n, const struct bny_newcomer_place *first)
{
    for (int i = 0; i < n->nconn; i++) {
        int32_t where[2] = { first->rank + n->conn[i]->slot, first->nranks };
        uint8_t frame[PLACE_BYTES];
        int rc;

        if (n->conn[i]->slot < 0)
            continue;
        memcpy(frame, where, sizeof where);
        bny_id_seal(frame + sizeof where, &first->id, n->id.secret);
        rc = bny_conn_send(n->conn[i], FRAME_PLACE, frame, sizeof frame);
        if (rc)
            return rc;
        bny_conn_progress(n->conn[i]);
    }
    return 0;
}

void bny_newcomers_free(struct bny_newcomers *n)
{
    if (!n)
        return;
    while (n->nconn > 0)
        newcomers_drop(n, 0);
    close(n->listen_fd);
    if (n->epfd >= 0)
        bny_fd_close(n->epfd);
    free(n->conn);
    sodium_memzero(n, sizeof *n);
    free(n);
}

/* ---- a newcomer ---- */

struct bny_arrival {
    struct bny_id id;
    struct bny_conn_self self;
    struct bny_addr addr;
    struct bny_conn *conn;
    int epfd, refused; /* refused: handshakes that the peer closed */
    unsigned tries;
    uint64_t start_ns, deadline_ns, retry_ns;
    uint64_t nobody_ns; /* time of the first refused connection; 0: it listens */
};

int bny_arrival_start(struct bny_arrival **out, const struct bny_id *id, uint64_t deadline_ns)
{
    struct bny_arrival *a;
    int rc = bny_id_sodium();

    *out = NULL;
    if (rc == 0)
        rc = bny_id_check(id);
    if (rc == 0 && !id->port)
        rc = bny_fail(BANYAN_EINVAL,
                      "the id names no listening rank: it is not from banyan_comm_grow_id");
    if (rc)
        return rc;
    a = calloc(1, sizeof *a);
    if (!a)
        return bny_fail(BANYAN_ENOMEM, "no memory to join a job");
    a->id = *id;
    a->start_ns = bny_now_ns();
    a->deadline_ns = deadline_ns;
    bny_id_addr(id, &a->addr);
    bny_conn_self_init(&a->self, BNY_CONN_JOIN, a->id.secret, a->id.job, -1, 0);
    a->epfd = open_set();
    if (a->epfd < 0) {
        rc = a->epfd;
        free(a);
        return rc;
    }
    *out = a;
    return 0;
}

static void retry(struct bny_arrival *a)
{
    bny_conn_free(a->conn);
    a->conn = NULL;
    a->retry_ns = bny_now_ns() + ((uint64_t)5 * MS << (a->tries < 4 ? a->tries : 4));
    a->tries++;
}

static int connect_to(struct bny_arrival *a)
{
    int fd;

    if (bny_now_ns() < a->retry_ns)
        return 0;
    fd = bny_net_connect(&a->addr);
    if (fd == -EMFILE || fd == -ENFILE)
        return bny_fail(BANYAN_ESYSTEM, "too many open files; raise ulimit -n");
    if (fd < 0) {
        retry(a);
        return 0;
    }
    a->conn = bny_conn_new(fd, a->epfd, 1, &a->addr, &a->self, FRAME_MAX);
    return a->conn ? 0 : bny_fail(BANYAN_ENOMEM, "no memory for a connection");
}

/* Ended before the handshake was complete. A closed listener resets waiting connections. */
static int attempt_failed(struct bny_arrival *a)
{
    uint64_t now = bny_now_ns();
    char at[BNY_ADDR_TEXT];
    int err = a->conn->err, nobody = a->conn->state == BNY_CONN_CONNECTING;

    bny_addr_text(&a->addr, at);
    if (nobody && err == ECONNREFUSED && !a->nobody_ns)
        a->nobody_ns = now;
    else if (nobody && err == ECONNREFUSED && now - a->nobody_ns >= GONE_NS)
        return bny_fail(BANYAN_ERANKDEAD,
                        "nobody listens at %s: the id was used, or the rank that made it has "
                        "ended; ask the job for another",
                        at);
    if (!nobody && !err && ++a->refused >= REFUSED_MAX)
        return bny_fail(BANYAN_EPROTO,
                        "what answers at %s ended the handshake: %s; it does not know this id: "
                        "use one that banyan_comm_grow_id made, unchanged, and soon",
                        at, a->conn->why);
    retry(a);
    return 0;
}

/* The job's message, or its end. */
static int newcomers_hear(struct bny_arrival *a, struct bny_newcomer_place *out)
{
    uint32_t type, code = 0;
    const uint8_t *data;
    char at[BNY_ADDR_TEXT];
    size_t len;
    int rc = bny_conn_next(a->conn, &type, &data, &len);

    if (rc == 0)
        return 0;
    bny_addr_text(&a->addr, at);
    if (rc < 0)
        return bny_fail(BANYAN_ERANKDEAD,
                        "the rank at %s that made the id ended before this process had "
                        "joined: %s",
                        at, a->conn->why);
    if (type == FRAME_PLACE && len == PLACE_BYTES) {
        memcpy(&out->rank, data, 4);
        memcpy(&out->nranks, data + 4, 4);
        if (out->nranks > 1 && out->nranks <= 65536 && out->rank > 0 &&
            out->rank < out->nranks && bny_id_unseal(&out->id, data + 8, a->id.secret) == 0)
            return 1;
    } else if (type == FRAME_REFUSE && len >= 4) {
        memcpy(&code, data, 4);
        if (code > 0 && code < BNY_ERROR_COUNT)
            return bny_fail((enum banyan_error)code, "%.*s", (int)(len - 4), data + 4);
    }
    return bny_fail(BANYAN_EPROTO,
                    "the rank at %s sent an invalid frame of type %u and %zu bytes", at, type,
                    len);
}

int bny_arrival_progress(struct bny_arrival *a, struct bny_newcomer_place *out)
{
    char at[BNY_ADDR_TEXT];
    int rc = a->conn ? 0 : connect_to(a);

    if (rc < 0)
        return rc;
    if (a->conn) {
        rc = bny_conn_progress(a->conn);
        if (a->conn->state != BNY_CONN_CONNECTING)
            a->nobody_ns = 0;
        rc = rc == 1 ? newcomers_hear(a, out) : rc < 0 ? attempt_failed(a) : 0;
        if (rc)
            return rc;
    }
    if (!bny_deadline_passed(a->deadline_ns))
        return 0;
    return bny_fail(BANYAN_ETIMEDOUT,
                    a->conn && a->conn->state == BNY_CONN_READY
                        ? "not all newcomers came to %s within %.1f s"
                        : "the job at %s did not grow within %.1f s: its ranks call "
                          "banyan_comm_grow to let newcomers in",
                    bny_addr_text(&a->addr, at), (double)(bny_now_ns() - a->start_ns) / 1e9);
}

int bny_arrival_fd(const struct bny_arrival *a)
{
    return a->epfd;
}

void bny_arrival_free(struct bny_arrival *a)
{
    if (!a)
        return;
    bny_conn_free(a->conn);
    bny_fd_close(a->epfd);
    sodium_memzero(a, sizeof *a);
    free(a);
}
