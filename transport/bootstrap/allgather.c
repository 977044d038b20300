/* SPDX-License-Identifier: BSD-3-Clause */
/* The all-gather of cards: the public functions, and the clients' side. The root's side is
 * gather_root.c. */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "transport/bootstrap/gather.h"
#include "transport/bootstrap/id.h"
#include "transport/bootstrap/pack.h"

#define MS          1000000u
#define REFUSED_MAX 8 /* handshakes it ends before we believe that it is not our root */
/* So long must nobody listen where the root did; the kernel may drop some of many that come at
 * once. */
#define GONE_NS (700ull * MS)
/* How long a failure waits for the root that it is for: nobody listens; it does not answer. */
#define TELL_REFUSED_NS (2000ull * MS)
#define TELL_SILENT_NS  (5000ull * MS)
#define ABORT_NOW_NS    (100ull * MS)

int gather_fail(struct bny_bootstrap *b, enum banyan_error code, const char *fmt, ...)
{
    va_list ap;

    if (b->error)
        return b->error;
    va_start(ap, fmt);
    vsnprintf(b->text, sizeof b->text, fmt, ap);
    va_end(ap);
    b->error = -(int)code;
    return b->error;
}

int gather_strange(struct gather_strange *s, const struct bny_conn *c, uint64_t patience_ns)
{
    uint64_t now = bny_now_ns();

    if (!s->times)
        s->first_ns = now;
    s->times += s->times < GATHER_STRANGE_TIMES;
    if (s->times < GATHER_STRANGE_TIMES || now - s->first_ns < patience_ns)
        return 0;
    s->times = 0; /* the kernel is asked now and then, however often they come */
    return !(c->client ? c->others : bny_conn_is_another_users(c));
}

const char *gather_strange_remedy(const struct bny_id *id)
{
    if (id->key_from == BNY_KEY_COOKIE)
        return "copy ~/.banyan-cookie of rank 0's host to the home on every host (mode 600), "
               "or "
               "set BANYAN_SECRET or BANYAN_SECRET_FILE alike on all ranks";
    if (id->key_from == BNY_KEY_WORDS)
        return "set BANYAN_INSECURE=1 on all ranks or on none";
    return "set BANYAN_SECRET or BANYAN_SECRET_FILE alike on all ranks";
}

/* ---- the client ---- */

static struct bny_addr candidate_addr(const struct bny_bootstrap *b)
{
    struct bny_addr a;

    bny_id_addr(&b->id, &a);
    a.port = (uint16_t)(a.port + b->client.candidate);
    return a;
}

static int client_scans(const struct bny_bootstrap *b)
{
    return b->id.span > 1;
}

/* One attempt is over without success: note why, and when to try next. */
static void client_retry(struct bny_bootstrap *b, const char *why)
{
    struct gather_client *k = &b->client;
    uint64_t wait = 5u * MS << (k->tries < 5 ? k->tries : 5);

    snprintf(k->last, sizeof k->last, "%s", why);
    bny_conn_free(k->conn);
    k->conn = NULL;
    if (client_scans(b)) {
        k->candidate = (k->candidate + 1) % b->id.span;
        if (k->candidate) /* wait only after a whole round */
            wait = 0;
        else
            k->tries++;
    } else {
        k->tries++;
    }
    k->retry_ns = bny_now_ns() + wait;
}

/* The attempt met another secret, which the user may have given wrongly? Before
 * client_retry(). */
static int client_strange(struct bny_bootstrap *b)
{
    struct gather_client *k = &b->client;
    char at[BNY_ADDR_TEXT];

    if (b->id.key_from == BNY_KEY_DRAWN || !k->conn->differs)
        return 0;
    if (gather_strange(&k->strange, k->conn, GATHER_STRANGE_CLIENT_NS))
        gather_fail(b, BANYAN_ECONFIG, "rank %d has another secret than rank 0 (%s): %s",
                    b->rank, bny_addr_text(&k->addr, at), gather_strange_remedy(&b->id));
    return 1;
}

static void client_connect(struct bny_bootstrap *b)
{
    struct gather_client *k = &b->client;
    uint64_t patience = client_scans(b) && k->tries < 4 ? (uint64_t)(1 + k->tries) * 1000 * MS
                                                        : GATHER_ATTEMPT_NS;
    int fd;

    if (bny_now_ns() < k->retry_ns)
        return;
    k->addr = candidate_addr(b);
    fd = bny_net_connect(&k->addr);
    if (fd == -EMFILE || fd == -ENFILE)
        gather_fail(b, BANYAN_ESYSTEM, "rank %d: too many open files; raise ulimit -n",
                    b->rank);
    if (fd < 0) {
        client_retry(b, strerror(-fd));
        return;
    }
    k->conn = bny_conn_new(fd, b->epfd, 1, &k->addr, &b->self, GATHER_FRAME_MAX);
    if (!k->conn)
        gather_fail(b, BANYAN_ENOMEM, "rank %d: no memory for a connection", b->rank);
    else
        k->conn->look = k->strange.times + 1 >= GATHER_STRANGE_TIMES;
    k->attempt_end_ns = bny_now_ns() + patience;
}

/* Connecting failed. Where the root listened before anybody could know of it, nobody listens
 * once it has ended. */
static void client_nobody(struct bny_bootstrap *b, int err, const char *at)
{
    struct gather_client *k = &b->client;
    uint64_t now = bny_now_ns();

    if (err != ECONNREFUSED)
        return;
    if (!k->refused_ns)
        k->refused_ns = now;
    else if (b->listening && now - k->refused_ns >= GONE_NS)
        gather_fail(b, BANYAN_ERANKDEAD,
                    "rank %d: rank 0 ended before all ranks had joined: nobody listens at %s "
                    "any more (or a firewall refuses it)",
                    b->rank, at);
}

/* The attempt ended before the handshake was through. */
static void client_attempt_failed(struct bny_bootstrap *b)
{
    struct gather_client *k = &b->client;
    char why[160], at[BNY_ADDR_TEXT];

    bny_addr_text(&k->addr, at);
    if (k->conn->state == BNY_CONN_CONNECTING) {
        client_nobody(b, k->conn->err, at);
        client_retry(b, strerror(k->conn->err));
        return;
    }
    k->refused_ns = 0;
    k->refused += !client_strange(b);
    snprintf(why, sizeof why, "what answers at %s ended the handshake: %s", at, k->conn->why);
    if (!client_scans(b) && k->refused >= REFUSED_MAX)
        gather_fail(b, BANYAN_EPROTO,
                    "rank %d: %s; it is no root of this job: give every rank the id "
                    "that rank 0 made for this run, and the same BANYAN_SECRET",
                    b->rank, why);
    client_retry(b, why);
}

/* The first piece says how long the packed table is. */
static int client_begin_all(struct bny_bootstrap *b, const struct gather_all *head)
{
    struct gather_client *k = &b->client;

    if (head->total == 0 ||
        head->total > bny_cards_packed_max((size_t)b->nranks, b->card_bytes))
        return gather_fail(b, BANYAN_EPROTO,
                           "rank %d: the root says that the cards of %d ranks take %u bytes",
                           b->rank, b->nranks, head->total);
    k->total = head->total;
    k->packed = malloc(k->total);
    return k->packed
               ? 0
               : gather_fail(b, BANYAN_ENOMEM, "rank %d: no memory for %zu bytes of cards",
                             b->rank, k->total);
}

static void client_take_all(struct bny_bootstrap *b, const uint8_t *data, size_t len)
{
    struct gather_client *k = &b->client;
    struct gather_all head;

    if (len < sizeof head) {
        gather_fail(b, BANYAN_EPROTO, "rank %d: the root sent a piece without its place",
                    b->rank);
        return;
    }
    memcpy(&head, data, sizeof head);
    len -= sizeof head;
    if (!k->packed && client_begin_all(b, &head) != 0)
        return;
    if (head.total != k->total || head.offset != k->got || len > k->total - k->got) {
        gather_fail(b, BANYAN_EPROTO,
                    "rank %d: the root sent %zu bytes at %u of cards of %u bytes, "
                    "%zu of %zu were there",
                    b->rank, len, head.offset, head.total, k->got, k->total);
        return;
    }
    memcpy(k->packed + k->got, data + sizeof head, len);
    k->got += len;
    if (k->got < k->total)
        return;
    if (bny_cards_unpack(b->table, (size_t)b->nranks, b->card_bytes, k->packed, k->total) != 0)
        gather_fail(b, BANYAN_EPROTO, "rank %d: the root sent broken cards", b->rank);
    else
        b->done = 1;
}

size_t gather_pack_failure(const struct bny_bootstrap *b, uint8_t frame[4 + GATHER_TEXT])
{
    uint32_t code = (uint32_t)-b->error;
    size_t len = strlen(b->text);

    memcpy(frame, &code, 4);
    memcpy(frame + 4, b->text, len);
    return 4 + len;
}

void gather_take_failure(struct bny_bootstrap *b, const uint8_t *data, size_t len)
{
    uint32_t code = BANYAN_EPROTO;

    if (len >= 4)
        memcpy(&code, data, 4);
    if (code == 0 || code >= BANYAN_ERROR_COUNT)
        code = BANYAN_EPROTO;
    gather_fail(b, code, "%.*s", len > 4 ? (int)(len - 4) : 0, (const char *)data + 4);
}

static void client_join(struct bny_bootstrap *b)
{
    struct gather_client *k = &b->client;
    struct gather_card head = { .bytes = (uint32_t)b->card_bytes };
    uint8_t frame[sizeof head + BNY_CARD_MAX];
    uint64_t now = bny_now_ns();

    if (b->deadline_ns)
        head.remaining_ms =
            b->deadline_ns > now + MS ? (uint32_t)((b->deadline_ns - now) / MS) : 1;
    memcpy(frame, &head, sizeof head);
    memcpy(frame + sizeof head, b->table + (size_t)b->rank * b->card_bytes, b->card_bytes);
    if (bny_conn_send(k->conn, GATHER_CARD, frame, sizeof head + b->card_bytes) != 0)
        gather_fail(b, BANYAN_ENOMEM, "rank %d: no memory for a frame", b->rank);
    k->joined = 1;
}

static void client_take_fail(struct bny_bootstrap *b, const uint8_t *data, size_t len)
{
    b->client.told = 1;
    gather_take_failure(b, data, len);
}

static void client_root_left(struct bny_bootstrap *b)
{
    b->client.told = 1;
    gather_fail(b, BANYAN_ERANKDEAD,
                "rank %d: the root (rank 0) left while init was in progress: %s", b->rank,
                b->client.conn->why);
}

static void client_read(struct bny_bootstrap *b)
{
    struct gather_client *k = &b->client;
    uint32_t type;
    const uint8_t *data;
    size_t len;
    int rc = 0;

    while (!b->done && !b->error && (rc = bny_conn_next(k->conn, &type, &data, &len)) == 1) {
        if (type == GATHER_ALL)
            client_take_all(b, data, len);
        else if (type == GATHER_FAIL)
            client_take_fail(b, data, len);
        else
            gather_fail(b, BANYAN_EPROTO, "rank %d: the root sent a frame of unknown type %u",
                        b->rank, type);
    }
    if (rc < 0)
        client_root_left(b);
}

static void client_deadline(struct bny_bootstrap *b)
{
    struct gather_client *k = &b->client;
    double seconds = (double)(bny_now_ns() - b->start_ns) / 1e9;
    char at[BNY_ADDR_TEXT], ports[32] = "";
    struct bny_addr addr;

    bny_id_addr(&b->id, &addr);
    bny_addr_text(&addr, at);
    if (client_scans(b))
        snprintf(ports, sizeof ports, " (and the next %d ports)", b->id.span - 1);
    if (k->joined)
        gather_fail(b, BANYAN_ETIMEDOUT,
                    "rank %d: joined the root at %s, but not every rank came within "
                    "%.1f s",
                    b->rank, at, seconds);
    else if (k->conn && k->conn->state != BNY_CONN_CONNECTING)
        gather_fail(b, BANYAN_ETIMEDOUT,
                    "rank %d: the root at %s accepted the connection but did not "
                    "answer within %.1f s; has rank 0 entered init?",
                    b->rank, at, seconds);
    else
        gather_fail(
            b, BANYAN_ETIMEDOUT,
            "rank %d: no answer from the root at %s%s within %.1f s (%s); is "
            "rank 0 running, does a firewall block the port (BANYAN_PORT_RANGE), is it the "
            "right interface (BANYAN_IFNAME on rank 0)?",
            b->rank, at, ports, seconds,
            *k->last ? k->last : "it does not accept the connection");
}

static void client_progress(struct bny_bootstrap *b)
{
    struct gather_client *k = &b->client;
    int rc;

    if (!k->conn)
        client_connect(b);
    if (k->conn && !b->error) {
        rc = bny_conn_progress(k->conn);
        if (rc < 0) {
            client_attempt_failed(b);
        } else if (rc == 1) {
            if (!k->joined && b->has_card)
                client_join(b);
            client_read(b);
        } else if (bny_now_ns() >= k->attempt_end_ns) {
            client_strange(b);
            client_retry(b, "it did not answer in time");
        }
    }
    if (!b->done && !b->error && bny_deadline_passed(b->deadline_ns))
        client_deadline(b);
}

static void client_settle(struct bny_bootstrap *b, int ready)
{
    struct gather_client *k = &b->client;
    uint32_t type;
    const uint8_t *data;
    size_t len;
    int rc = 0;

    if (ready && !k->said_ready) {
        if (bny_conn_send(k->conn, GATHER_READY, NULL, 0) != 0)
            gather_fail(b, BANYAN_ENOMEM, "rank %d: no memory for a frame", b->rank);
        k->said_ready = 1;
    }
    bny_conn_progress(k->conn);
    while (!b->settled && !b->error && (rc = bny_conn_next(k->conn, &type, &data, &len)) == 1) {
        if (type == GATHER_GO && k->said_ready)
            b->settled = 1;
        else if (type == GATHER_FAIL)
            client_take_fail(b, data, len);
        else
            gather_fail(b, BANYAN_EPROTO, "rank %d: the root sent a frame of unknown type %u",
                        b->rank, type);
    }
    if (rc < 0 && k->said_ready && k->conn->err)
        b->settled = 1; /* whatever was lost with it the control connections tell */
    else if (rc < 0)
        client_root_left(b);
    if (!b->settled && !b->error && bny_deadline_passed(b->deadline_ns))
        gather_fail(b, BANYAN_ETIMEDOUT,
                    "rank %d: %s before the deadline of init; is a firewall in the way of "
                    "BANYAN_PORT_RANGE?",
                    b->rank,
                    ready ? "not all ranks have connected to each other"
                          : "the control connections to other ranks did not come up");
}

/* Sends b->error as soon as the root answers. */
static void client_tell(struct bny_bootstrap *b, uint64_t deadline_ns, uint64_t silent_ns)
{
    struct gather_client *k = &b->client;
    uint64_t begun = bny_now_ns();
    uint8_t frame[4 + GATHER_TEXT];
    int said = 0, rc = 0;

    while (!bny_deadline_passed(deadline_ns) && k->refused < REFUSED_MAX &&
           bny_now_ns() - begun < (k->refused_ns ? TELL_REFUSED_NS : silent_ns)) {
        struct pollfd p = { .fd = b->epfd, .events = POLLIN };

        if (!k->conn)
            client_connect(b);
        rc = k->conn ? bny_conn_progress(k->conn) : 0;
        if (rc == 1 && !said)
            said =
                bny_conn_send(k->conn, GATHER_ABORT, frame, gather_pack_failure(b, frame)) == 0;
        if (rc == 1 && (!said || !bny_conn_unsent(k->conn)))
            return;
        if (rc < 0)
            client_attempt_failed(b);
        else if (k->conn && rc == 0 && bny_now_ns() >= k->attempt_end_ns)
            client_retry(b, "it did not answer in time");
        if (k->refused_ns && b->listening)
            return; /* it has ended, or needs nobody any more */
        poll(&p, 1, k->conn ? 50 : 5);
    }
}

/* ---- public ---- */

static int check_args(const struct bny_id *id, int nranks, int rank, size_t card_bytes)
{
    if (nranks < 1)
        return bny_fail(BANYAN_EINVAL, "a job has at least one rank, not %d", nranks);
    if (rank < 0 || rank >= nranks)
        return bny_fail(BANYAN_EINVAL, "rank %d is out of range: this job has ranks 0 to %d",
                        rank, nranks - 1);
    if (card_bytes < 1 || card_bytes > BNY_CARD_MAX)
        return bny_fail(BANYAN_EINVAL, "rank %d: a card has 1 to %d bytes, not %zu", rank,
                        BNY_CARD_MAX, card_bytes);
    if (nranks > 1 && bny_id_check(id) != 0)
        return -BANYAN_EINVAL;
    if (nranks > 1 && !id->port)
        return bny_fail(BANYAN_EINVAL,
                        "rank %d of %d: the id names no root; make it with banyan_id_create "
                        "in the process of rank 0",
                        rank, nranks);
    return 0;
}

static int start(struct bny_bootstrap **out, const struct bny_id *id, int nranks, int rank,
                 const void *card, size_t card_bytes, enum bny_conn_purpose purpose,
                 uint64_t deadline_ns)
{
    struct bny_bootstrap *b;
    int rc, fd;

    *out = NULL;
    rc = check_args(id, nranks, rank, card_bytes);
    if (rc == 0)
        rc = bny_id_sodium();
    if (rc != 0)
        return rc;
    b = calloc(1, sizeof *b);
    if (!b)
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for the bootstrap", rank);
    if (id) {
        b->id = *id;
        b->listening = bny_id_first_use(id) && id->listening;
    }
    b->nranks = nranks;
    b->rank = rank;
    b->card_bytes = card_bytes;
    b->start_ns = bny_now_ns();
    b->deadline_ns = deadline_ns;
    b->root.listen_fd = b->epfd = -1;
    b->table = calloc((size_t)nranks, card_bytes);
    if (!b->table) {
        rc = bny_fail(BANYAN_ENOMEM, "rank %d: no memory for %d cards", rank, nranks);
        goto fail;
    }
    if (card)
        bny_bootstrap_card(b, card);
    bny_conn_self_init(&b->self, purpose, b->id.secret, b->id.job, rank, nranks);
    if (nranks == 1) {
        fd = id ? bny_id_take_fd(id) : -1; /* nobody will come */
        if (fd >= 0)
            close(fd);
        b->done = 1;
        *out = b;
        return 0;
    }
    b->epfd = bny_fd_own(epoll_create1(EPOLL_CLOEXEC));
    if (b->epfd < 0) {
        rc = bny_fail_errno("rank %d: epoll_create1", rank);
        goto fail;
    }
    if (rank == 0)
        rc = gather_root_start(b);
    if (rc != 0)
        goto fail;
    if (rank != 0)
        client_progress(b);
    *out = b;
    return 0;
fail:
    bny_bootstrap_destroy(b);
    if (rank == 0 && (fd = bny_id_take_fd(id)) >= 0)
        close(fd); /* nobody answers there: the others shall not wait */
    return rc;
}

int bny_bootstrap_start(struct bny_bootstrap **out, const struct bny_id *id, int nranks,
                        int rank, const void *card, size_t card_bytes, const char *ifname,
                        const char *port_range, uint64_t deadline_ns)
{
    /* The root's address and ports stand in the id; clients let the kernel choose theirs. */
    (void)ifname;
    (void)port_range;
    return start(out, id, nranks, rank, card, card_bytes, BNY_CONN_BOOTSTRAP, deadline_ns);
}

void bny_bootstrap_card(struct bny_bootstrap *b, const void *card)
{
    memcpy(b->table + (size_t)b->rank * b->card_bytes, card, b->card_bytes);
    b->has_card = 1;
}

int bny_bootstrap_progress(struct bny_bootstrap *b, void *cards)
{
    int settled = b->done || b->error;

    if (b->nranks > 1 && b->rank == 0)
        settled = gather_root_progress(b);
    else if (!settled) {
        client_progress(b);
        settled = b->done || b->error;
    }
    if (!settled)
        return 0;
    if (b->error) {
        bny_set_last_error(b->text);
        return b->error;
    }
    memcpy(cards, b->table, (size_t)b->nranks * b->card_bytes);
    return 1;
}

int bny_bootstrap_settle(struct bny_bootstrap *b, int ready)
{
    int over = b->settled || b->nranks == 1;

    if (!over && b->rank == 0) {
        over = gather_root_settle(b, ready);
    } else if (!over) {
        if (!b->error)
            client_settle(b, ready);
        over = b->settled || b->error;
    }
    if (!over)
        return 0;
    if (b->error)
        bny_set_last_error(b->text);
    return b->error ? b->error : 1;
}

void bny_bootstrap_abort(struct bny_bootstrap *b, enum banyan_error code, const char *text)
{
    struct gather_client *k = &b->client;

    if (b->nranks == 1 || b->settled || k->told)
        return;
    if (b->rank == 0 && !b->error) { /* else all know of it */
        gather_fail(b, code, "%s", text);
        while (!gather_root_tell(b)) {
            struct pollfd p = { .fd = b->epfd, .events = POLLIN };

            poll(&p, 1, 20);
        }
    } else if (b->rank != 0 && (!b->error || (k->conn && k->conn->state == BNY_CONN_READY))) {
        gather_fail(b, code, "%s", text);
        client_tell(b, b->deadline_ns, TELL_SILENT_NS);
    }
    k->told = 1;
}

void bny_bootstrap_abort_now(struct bny_bootstrap *b, enum banyan_error code, const char *text)
{
    if (b->rank == 0 && !b->root.linger_until)
        b->root.linger_until = bny_now_ns() + ABORT_NOW_NS;
    bny_bootstrap_abort(b, code, text);
}

void bny_bootstrap_report(const struct bny_id *id, int nranks, int rank, enum banyan_error code,
                          const char *text, uint64_t deadline_ns)
{
    struct bny_bootstrap *b;

    /* Of another rank it is the root who listens. */
    if (rank == 0 || start(&b, id, nranks, rank, NULL, 1, BNY_CONN_ABORT, deadline_ns) != 0)
        return;
    gather_fail(b, code, "%s", text);
    client_tell(b, deadline_ns, UINT64_MAX);
    bny_bootstrap_destroy(b);
}

int bny_bootstrap_fds(struct bny_bootstrap *b, int *fds, int cap)
{
    if (b->epfd < 0 || cap < 1)
        return 0;
    fds[0] = b->epfd; /* readable when any of the sockets is ready */
    return 1;
}

void bny_bootstrap_destroy(struct bny_bootstrap *b)
{
    if (!b)
        return;
    gather_root_finish(b);
    bny_conn_free(b->client.conn);
    free(b->client.packed);
    if (b->epfd >= 0)
        bny_fd_close(b->epfd);
    free(b->table);
    sodium_memzero(b, sizeof *b);
    free(b);
}
