/* SPDX-License-Identifier: BSD-3-Clause */
/* The all-gather's side towards the ranks above: the root and, in large jobs, the rank that the
 * root names. Sends them peer infos, receives the table and finally GO. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/counts.h"
#include "base/err.h"
#include "base/log.h"
#include "base/text.h"
#include "transport/bootstrap/gather.h"
#include "transport/bootstrap/id.h"
#include "transport/bootstrap/wire_pack.h"

#define MS          1000000u
#define REFUSED_MAX 8 /* refused handshakes before we believe that it is not our root */
/* Nobody listens at the root's address for this long: the kernel may drop some of many
 * simultaneous connections. */
#define GONE_NS (700ull * MS)
/* How long a failure waits for its root while nobody listens. */
#define TELL_REFUSED_NS (2000ull * MS)
#define TELL_UP_NS      (200ull * MS)
/* Cards from below are sent up when all have come, or after this, then after twice as long. */
#define GIVE_NS     (250ull * MS)
#define GIVE_MAX_NS (2000ull * MS)
#define GIVE_CARDS  4096u /* in one frame */
#define BACKLOG     16
#define HERE_RANKS  16384u /* in one frame */
/* The rank above on our host may start this much later; else it has another network
 * namespace. */
#define NEAR_NS       (1000ull * MS)
#define NEAR_RETRY_NS (5ull * MS)

/* ---- those below ---- */

int gather_near_start(struct bny_bootstrap *b)
{
    int fd;

    if (!b->tree || !bny_near_below(&b->near))
        return -1;
    fd = bny_near_listen(&b->near, &b->id);
    if (fd < 0)
        bny_info("rank %d serves no rank of its host at init: %s", b->rank, strerror(-fd));
    return fd;
}

int gather_client_start(struct bny_bootstrap *b, const char *ifname, const char *port_range)
{
    struct gather_client *k = &b->client;
    struct bny_addr at = { 0 };
    char text[BNY_ADDR_TEXT];
    int fd = -1, near_fd = gather_near_start(b), alone = b->near.count < 2;

    if (!b->tree)
        return 0;
    k->expected = bny_near_below(&b->near);
    if (!alone && b->near.rank > 0) {
        k->place = PLACE_NEAR;
        k->near_end_ns = bny_now_ns() + NEAR_NS;
    } else if (!alone || 2 * (int64_t)b->rank < b->nranks) {
        bny_id_addr(&b->id, &at);
        if (bny_addr_is_loopback(&at) ||
            bny_net_choose(&at, bny_net_ifname(ifname, &at, text)) == 0)
            fd = bny_net_listen(&at, port_range ? port_range : "", BACKLOG);
        if (fd < 0)
            bny_info("rank %d serves no other host at init: %s", b->rank, banyan_last_error());
        else
            k->here.addr = at;
    }
    if (fd < 0 && near_fd < 0)
        return 0;
    k->gave = calloc((size_t)b->nranks, 1);
    k->said = calloc((size_t)b->nranks, 1);
    if (!k->gave || !k->said) {
        if (fd >= 0)
            close(fd);
        if (near_fd >= 0)
            close(near_fd);
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for %d ranks", b->rank, b->nranks);
    }
    return gather_below_start(b, fd, near_fd);
}

static int serves(const struct bny_bootstrap *b)
{
    return b->below.ranks != NULL;
}

static uint32_t remaining_ms(const struct bny_bootstrap *b)
{
    uint64_t now = bny_now_ns(), at = b->deadline_ns;

    if (serves(b) && b->below.first_deadline)
        at = b->below.first_deadline;
    return !at ? 0 : at > now + MS ? (uint32_t)((at - now) / MS) : 1;
}

/* ---- the root ---- */

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

/* One attempt has failed: notes the reason and schedules the next. */
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

/* The attempt met another secret: may the user have set it wrongly? Before client_retry(). */
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

/* Connecting failed. A root that listened before its id was known is refused only after its
 * end. */
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

/* The attempt ended before the handshake was complete. */
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

/* ---- peer infos ---- */

static void give_own(struct bny_bootstrap *b, struct bny_conn *to)
{
    struct gather_peer_info head = { .bytes = (uint32_t)b->info_bytes,
                                     .remaining_ms = remaining_ms(b) };

    if (bny_conn_send_parts(to, GATHER_CARD, &head, sizeof head,
                            b->table + (size_t)b->rank * b->info_bytes, b->info_bytes) != 0)
        gather_fail(b, BANYAN_ENOMEM, "rank %d: no memory for a frame", b->rank);
    b->client.joined = 1;
}

/* A frame of peer infos under construction. */
struct batch {
    struct gather_peer_infos head;
    uint32_t ranks[GIVE_CARDS];
    const uint8_t *before;
    size_t len;
    uint8_t packed[]; /* GATHER_PIECE, and one peer info */
};

static int give_batch(struct bny_bootstrap *b, struct bny_conn *to, struct batch *f)
{
    int rc = 0;

    if (f->head.count)
        rc = bny_conn_send_parts(to, GATHER_CARDS, f,
                                 sizeof f->head + f->head.count * sizeof f->ranks[0], f->packed,
                                 f->len);
    f->head.count = 0;
    f->before = NULL;
    f->len = 0;
    if (rc != 0)
        gather_fail(b, BANYAN_ENOMEM, "rank %d: no memory for a frame", b->rank);
    return rc;
}

static int give_one(struct bny_bootstrap *b, struct bny_conn *to, struct batch *f, int rank)
{
    const uint8_t *info = b->table + (size_t)rank * b->info_bytes;

    f->ranks[f->head.count++] = (uint32_t)rank;
    f->len += bny_peer_info_pack(f->before, info, b->info_bytes, f->packed + f->len);
    f->before = info;
    return f->head.count == GIVE_CARDS || f->len >= GATHER_PIECE ? give_batch(b, to, f) : 0;
}

/* Sends the new peer infos from below, after our own. */
static void give_all(struct bny_bootstrap *b, struct bny_conn *to)
{
    struct gather_client *k = &b->client;
    size_t most = bny_cards_packed_max(1, b->info_bytes);
    struct batch *f = malloc(sizeof *f + GATHER_PIECE + most);
    int rc = 0;

    if (!f) {
        gather_fail(b, BANYAN_ENOMEM, "rank %d: no memory for a frame", b->rank);
        return;
    }
    f->head = (struct gather_peer_infos){ .bytes = (uint32_t)b->info_bytes,
                                          .remaining_ms = remaining_ms(b) };
    f->before = NULL;
    f->len = 0;
    if (!k->joined)
        rc = give_one(b, to, f, b->rank);
    k->joined = 1;
    for (int r = 1; r < b->nranks && rc == 0; r++)
        if (b->below.via[r] >= 0 && !k->gave[r]) {
            k->gave[r] = 1;
            k->given++;
            rc = give_one(b, to, f, r);
        }
    if (rc == 0)
        give_batch(b, to, f);
    free(f);
}

/* Have all expected peer infos come, or is it time to send those that have? */
static int is_due(struct bny_bootstrap *b)
{
    struct gather_client *k = &b->client;
    uint64_t now = bny_now_ns(), end = b->deadline_ns, wait;

    if (b->below.arrived >= k->expected)
        return 1;
    if (!k->give_ns) {
        k->give_wait_ns = GIVE_NS;
        k->give_ns = now + GIVE_NS;
    }
    if (now < k->give_ns)
        return 0;
    k->give_wait_ns = k->give_wait_ns < GIVE_MAX_NS ? 2 * k->give_wait_ns : GIVE_MAX_NS;
    wait = k->give_wait_ns;
    if (b->below.first_deadline && serves(b))
        end = b->below.first_deadline;
    if (end > now &&
        (end - now) / 8 < wait) /* the root must know at the deadline which ranks are here */
        wait = (end - now) / 8;
    k->give_ns = now + wait;
    return 1;
}

static void gather_client_give(struct bny_bootstrap *b, struct bny_conn *to, int due)
{
    struct gather_client *k = &b->client;

    if (!b->has_peer_info || b->full || b->error)
        return;
    if (!serves(b)) {
        if (!k->joined)
            give_own(b, to);
        return;
    }
    if (due && (!k->joined || k->given != b->below.arrived))
        give_all(b, to);
}

/* For a head: reports the new ranks of its host to the root. */
static void say_here(struct bny_bootstrap *b, int due)
{
    struct gather_client *k = &b->client;
    uint32_t *list = NULL;
    int rc = 0;

    if (!due || (k->place != PLACE_NONE && k->looked == b->below.arrived))
        return;
    k->here.count = 0;
    k->looked = b->below.arrived;
    if (k->looked)
        list = malloc((size_t)k->looked * sizeof *list);
    for (int r = 1; list && r < b->nranks; r++) {
        int via = b->below.via[r];

        if (via < 0 || k->said[r] || !b->below.ranks[via] ||
            b->below.ranks[via]->peer.family != 1 || k->here.count == HERE_RANKS)
            continue;
        k->said[r] = 1;
        list[k->here.count++] = (uint32_t)r;
    }
    if (k->here.count == HERE_RANKS)
        k->looked = -1; /* there may be more */
    if (k->place == PLACE_NONE || k->here.count)
        rc = bny_conn_send_parts(k->conn, GATHER_HERE, &k->here, sizeof k->here, list,
                                 k->here.count * sizeof *list);
    free(list);
    if (rc != 0)
        gather_fail(b, BANYAN_ENOMEM, "rank %d: no memory for a frame", b->rank);
    if (k->place == PLACE_NONE)
        k->place = PLACE_ASKED;
}

/* The first piece has the length of the packed table. */
static int begin_all(struct bny_bootstrap *b, const struct gather_all *head, int from)
{
    if (head->total == 0 ||
        head->total > bny_cards_packed_max((size_t)b->nranks, b->info_bytes))
        return gather_fail(b, BANYAN_EPROTO,
                           "rank %d: rank %d announced peer infos of %d ranks in %u bytes",
                           b->rank, from, b->nranks, head->total);
    b->packed = malloc(head->total);
    if (!b->packed)
        return gather_fail(b, BANYAN_ENOMEM, "rank %d: no memory for %u bytes of peer infos",
                           b->rank, head->total);
    b->npacked = head->total;
    return 0;
}

static void take_all(struct bny_bootstrap *b, int from, const uint8_t *data, size_t len)
{
    struct gather_all head;
    struct bny_peer_table table;

    if (len < sizeof head) {
        gather_fail(b, BANYAN_EPROTO,
                    "rank %d: rank %d sent a piece of the peer infos without its offset",
                    b->rank, from);
        return;
    }
    memcpy(&head, data, sizeof head);
    len -= sizeof head;
    if (!b->packed && begin_all(b, &head, from) != 0)
        return;
    if (head.total != b->npacked || head.offset != b->have || len > b->npacked - b->have) {
        gather_fail(
            b, BANYAN_EPROTO,
            "rank %d: rank %d sent %zu bytes at offset %u of peer infos of %u bytes, %zu of "
            "%zu were there",
            b->rank, from, len, head.offset, head.total, b->have, b->npacked);
        return;
    }
    memcpy(b->packed + b->have, data + sizeof head, len);
    b->have += len;
    if (b->have < b->npacked)
        return;
    if (bny_bootstrap_peer_table(b, &table) != 0)
        gather_fail(b, BANYAN_ENOMEM, "rank %d: no memory for a peer info", b->rank);
    else if (!bny_peer_table_valid(&table))
        gather_fail(b, BANYAN_EPROTO, "rank %d: rank %d sent malformed peer infos", b->rank,
                    from);
    else
        b->full = 1;
    bny_peer_table_close(&table);
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
    if (code == 0 || code >= BNY_ERROR_COUNT)
        code = BANYAN_EPROTO;
    gather_fail(b, code, "%.*s", len > 4 ? (int)(len - 4) : 0, (const char *)data + 4);
}

static void client_take_fail(struct bny_bootstrap *b, const uint8_t *data, size_t len)
{
    b->client.told = 1;
    gather_take_failure(b, data, len);
}

/* ---- frames from above ---- */

/* A rank above has ended. */
static void left(struct bny_bootstrap *b, int from, const struct bny_conn *c)
{
    b->client.told |= from == 0;
    if (from == 0)
        gather_fail(b, BANYAN_ERANKDEAD,
                    "rank %d: the root (rank 0) left while init was in progress: %s", b->rank,
                    c->why);
    else
        gather_fail(b, BANYAN_ERANKDEAD, "rank %d left while init was in progress: %s", from,
                    c->why);
}

static void take_place(struct bny_bootstrap *b, const uint8_t *data, size_t len)
{
    struct gather_client *k = &b->client;
    struct gather_place there;
    int fd;

    if (len != sizeof there || k->place != PLACE_ASKED) {
        gather_fail(b, BANYAN_EPROTO, "rank %d: the root sent a malformed place", b->rank);
        return;
    }
    memcpy(&there, data, sizeof there);
    k->place = PLACE_ROOT;
    if (there.below < (uint32_t)b->nranks)
        k->expected += (int)there.below;
    if (there.rank < 1 || there.rank >= b->nranks || there.rank == b->rank ||
        (there.addr.family != 4 && there.addr.family != 6))
        return;
    k->up_addr = there.addr;
    k->up_rank = there.rank;
    fd = bny_net_connect(&k->up_addr);
    if (fd >= 0)
        k->up = bny_conn_new(fd, b->epfd, 1, &k->up_addr, &b->self, GATHER_FRAME_MAX);
    if (!k->up)
        return;
    k->up->expects = there.rank;
    k->place = PLACE_UP;
    k->up_end_ns = bny_now_ns() + GATHER_ATTEMPT_NS;
}

/* Reads until the table is complete; from: 0 the root, else the rank above us. -1: the
 * connection has ended. */
static int read_from(struct bny_bootstrap *b, struct bny_conn *c, int from)
{
    int serves_us = (b->client.place == PLACE_UP) == (c == b->client.up), rc = 0;
    uint32_t type;
    const uint8_t *data;
    size_t len;

    while (!b->full && !b->error && (rc = bny_conn_next(c, &type, &data, &len)) == 1) {
        if (type == GATHER_ALL && serves_us)
            take_all(b, from, data, len);
        else if (type == GATHER_FAIL)
            client_take_fail(b, data, len);
        else if (type == GATHER_PLACE && c == b->client.conn && b->tree)
            take_place(b, data, len);
        else
            gather_fail(b, BANYAN_EPROTO, "rank %d: rank %d sent a frame of unknown type %u",
                        b->rank, from, type);
    }
    return rc;
}

/* The authenticated connection to the root. */
static void root_progress(struct bny_bootstrap *b, int due)
{
    struct gather_client *k = &b->client;

    if (b->tree)
        say_here(b, due);
    if (!b->tree || k->place == PLACE_ROOT)
        gather_client_give(b, k->conn, due);
    if (read_from(b, k->conn, 0) >= 0)
        return;
    if (k->place != PLACE_UP || !k->joined) {
        left(b, 0, k->conn);
        return;
    }
    bny_conn_free(k->conn); /* its end propagates down the tree; the root may have finished */
    k->conn = NULL;
}

/* Connects to the rank above on our host. */
static void near_connect(struct bny_bootstrap *b)
{
    struct gather_client *k = &b->client;
    uint64_t now = bny_now_ns();
    int fd;

    if (now < k->retry_ns)
        return;
    fd = bny_near_connect(&b->near, &b->id);
    k->up_addr = (struct bny_addr){ .family = 1 };
    k->up_rank = -1;
    if (fd >= 0)
        k->up = bny_conn_new(fd, b->epfd, 1, &k->up_addr, &b->self, GATHER_FRAME_MAX);
    k->retry_ns = now + NEAR_RETRY_NS;
    if (k->up) {
        k->place = PLACE_UP;
        k->up_end_ns = now + GATHER_ATTEMPT_NS;
    } else if (now >= k->near_end_ns) {
        bny_info("rank %d: nobody listens above it on its host: it joins at the root", b->rank);
        k->place = PLACE_NONE;
    }
}

/* Our place on this host, or the one that the root sent. If the rank there cannot be reached,
 * or ends before it has our peer infos, we go back to the root, which serves us. */
static void up_progress(struct bny_bootstrap *b, int due)
{
    struct gather_client *k = &b->client;
    int rc = bny_conn_progress(k->up), near = k->up_addr.family == 1;

    if (rc == 1 && k->up_rank < 0)
        k->up_rank = k->up->theirs.rank;

    if (rc == 1 && k->up->theirs.rank != k->up_rank)
        rc = -1;
    if (rc == 1) {
        gather_client_give(b, k->up, due);
        if (read_from(b, k->up, k->up_rank) >= 0)
            return;
        if (k->joined) {
            left(b, k->up_rank, k->up);
            return;
        }
        rc = -1;
    }
    if (rc == 0 && bny_now_ns() < k->up_end_ns)
        return;
    bny_info("rank %d cannot reach rank %d: it stays with the root", b->rank, k->up_rank);
    bny_conn_free(k->up);
    k->up = NULL;
    k->place = near ? PLACE_NONE : PLACE_ROOT;
    if (!k->conn && !near)
        left(b, k->up_rank, &(struct bny_conn){ .why = "it was not reached" });
}

/* What init has waited for until now. Returns 1 if the root knows it as well. */
static int client_waits_for(const struct bny_bootstrap *b, char text[GATHER_TEXT])
{
    const struct gather_client *k = &b->client;
    double seconds = (double)(bny_now_ns() - b->start_ns) / 1e9;
    char at[BNY_ADDR_TEXT], ports[32] = "";
    struct bny_addr addr;

    bny_id_addr(&b->id, &addr);
    bny_addr_text(&addr, at);
    if (client_scans(b))
        snprintf(ports, sizeof ports, " (and the next %d ports)", b->id.span - 1);
    if (k->joined && k->conn && bny_net_is_stuck(k->conn->fd)) {
        bny_snprintf(text, GATHER_TEXT,
                     "rank %d: its peer info does not get through to the root at %s, though "
                     "the connection has stood for %.1f s. " BNY_NET_MTU,
                     b->rank, at, seconds);
        return 0;
    }
    if (k->joined)
        bny_snprintf(text, GATHER_TEXT,
                     "rank %d: joined the root at %s, but not every rank came within %.1f s",
                     b->rank, at, seconds);
    else if (k->up && k->up_addr.family == 1)
        bny_snprintf(text, GATHER_TEXT,
                     "rank %d: process %d of this host, through which it joins, did not "
                     "answer within %.1f s; has it entered init?",
                     b->rank, bny_near_above(b->near.rank), seconds);
    else if (k->conn && k->conn->state != BNY_CONN_CONNECTING)
        bny_snprintf(text, GATHER_TEXT,
                     "rank %d: the root at %s accepted the connection but did not answer "
                     "within %.1f s; has rank 0 entered init?",
                     b->rank, at, seconds);
    else
        bny_snprintf(
            text, GATHER_TEXT,
            "rank %d: no answer from the root at %s%s within %.1f s (%s); is rank 0 running, "
            "%s",
            b->rank, at, ports, seconds,
            *k->last ? k->last : "it does not accept the connection",
            bny_addr_is_loopback(&addr)
                ? "and on this host? Every host and container has a loopback of its own: if "
                  "ranks run in several, give an address that all reach (MASTER_ADDR)"
                : "does a firewall block the port (BANYAN_PORT_RANGE), is it the right "
                  "interface (BANYAN_IFNAME on rank 0)? " BNY_NET_DOCTOR);
    return k->joined;
}

static void client_deadline(struct bny_bootstrap *b)
{
    char text[GATHER_TEXT];
    int is_known;

    if (bny_deadline_passed(b->deadline_ns)) {
        client_waits_for(b, text);
        gather_fail(b, BANYAN_ETIMEDOUT, "%s", text);
    } else if (gather_word_due(b)) {
        is_known = client_waits_for(b, text);
        banyan_log(is_known ? BANYAN_LOG_INFO : BANYAN_LOG_WARN, "init goes on: %s", text);
    }
}

static void connection_progress(struct bny_bootstrap *b, int due)
{
    struct gather_client *k = &b->client;
    int rc = bny_conn_progress(k->conn);

    if (rc < 0) {
        client_attempt_failed(b);
    } else if (rc == 1) {
        root_progress(b, due);
    } else if (bny_now_ns() >= k->attempt_end_ns) {
        client_strange(b);
        client_retry(b, "it did not answer in time");
    }
}

void gather_client_progress(struct bny_bootstrap *b)
{
    struct gather_client *k = &b->client;
    int due = is_due(b);

    if (k->place == PLACE_NEAR && !b->full)
        near_connect(b);
    if (!k->conn && !b->full && k->place != PLACE_UP && k->place != PLACE_NEAR)
        client_connect(b);
    if (k->conn && !b->full && !b->error)
        connection_progress(b, due);
    if (k->up && !b->full && !b->error)
        up_progress(b, due);
    if (serves(b) && !b->error) {
        gather_look_around(b);
        b->done = !b->error && gather_serve(b) && b->full;
    } else {
        b->done = b->full;
    }
    if (b->full && k->place == PLACE_UP && k->conn) {
        bny_conn_free(k->conn);
        k->conn = NULL;
    }
    if (!b->done && !b->error)
        client_deadline(b);
}

/* ---- until all are ready ---- */

/* Ready, with all ranks whose peer infos we brought; near the deadline the ranks that are. */
static void say_ready(struct bny_bootstrap *b, struct bny_conn *to, int ready)
{
    struct gather_client *k = &b->client;
    int nready = ready + b->below.nready, n = 0, rc = 0;
    uint64_t all = b->deadline_ns - b->start_ns;
    uint32_t *list;

    if (nready == 1 + b->below.arrived) {
        rc = bny_conn_send(to, GATHER_READY, NULL, 0);
        k->said_ready = 1;
    } else if (nready > k->nready_said && b->deadline_ns &&
               bny_now_ns() > b->start_ns + all / 4 * 3) {
        list = malloc((size_t)nready * sizeof *list);
        if (list && ready)
            list[n++] = (uint32_t)b->rank;
        for (int r = 0; list && r < b->nranks && serves(b); r++)
            if (b->below.ready[r])
                list[n++] = (uint32_t)r;
        rc = bny_conn_send(to, GATHER_READY, list, (size_t)n * sizeof *list);
        free(list);
        k->nready_said = nready;
    }
    if (rc != 0)
        gather_fail(b, BANYAN_ENOMEM, "rank %d: no memory for a frame", b->rank);
}

static void settle_above(struct bny_bootstrap *b, struct bny_conn *c, int ready)
{
    struct gather_client *k = &b->client;
    uint32_t type;
    const uint8_t *data;
    size_t len;
    int rc = 0, went = 0;

    if (!k->said_ready)
        say_ready(b, c, ready);
    bny_conn_progress(c);
    while (!went && !b->error && (rc = bny_conn_next(c, &type, &data, &len)) == 1) {
        if (type == GATHER_GO && k->said_ready)
            went = 1;
        else if (type == GATHER_FAIL)
            client_take_fail(b, data, len);
        else
            gather_fail(b, BANYAN_EPROTO, "rank %d: rank %d sent a frame of unknown type %u",
                        b->rank, k->up_rank, type);
    }
    if (rc < 0 && k->said_ready && c->err)
        went = 1; /* the control connections report any failure lost with it */
    else if (rc < 0)
        left(b, c == k->up ? k->up_rank : 0, c);
    if (went && !b->error)
        gather_let_go(b);
}

void gather_client_settle(struct bny_bootstrap *b, int ready)
{
    struct gather_client *k = &b->client;

    if (serves(b)) {
        gather_settle_begin(b);
        gather_look_around(b);
    }
    if (!b->error && !b->below.went)
        settle_above(b, k->up ? k->up : k->conn, ready);
    b->settled = !b->error && b->below.went && gather_went(b);
    if (!b->settled && !b->error && bny_deadline_passed(b->deadline_ns))
        gather_fail(b, BANYAN_ETIMEDOUT,
                    "rank %d: %s before the deadline of init; is a firewall in the way of "
                    "BANYAN_PORT_RANGE?",
                    b->rank,
                    ready ? "not all ranks have connected to each other"
                          : "the control connections to other ranks did not come up");
}

/* ---- failures ---- */

int gather_client_reaches(const struct bny_bootstrap *b)
{
    const struct gather_client *k = &b->client;

    return (k->conn && k->conn->state == BNY_CONN_READY) ||
           (k->up && k->up->state == BNY_CONN_READY);
}

/* To the rank above us; what that does not accept in time goes to the root. */
static int tell_up(struct bny_bootstrap *b)
{
    struct gather_client *k = &b->client;
    uint64_t begun = bny_now_ns();
    uint8_t frame[4 + GATHER_TEXT];

    if (!k->up || k->up->state != BNY_CONN_READY ||
        bny_conn_send(k->up, GATHER_ABORT, frame, gather_pack_failure(b, frame)) != 0)
        return 0;
    while (bny_conn_unsent(k->up) && bny_now_ns() - begun < TELL_UP_NS) {
        struct pollfd p = { .fd = b->epfd, .events = POLLIN };

        poll(&p, 1, 5);
        bny_conn_progress(k->up);
    }
    return !bny_conn_unsent(k->up);
}

void gather_client_tell(struct bny_bootstrap *b, uint64_t deadline_ns, uint64_t silent_ns)
{
    struct gather_client *k = &b->client;
    uint64_t begun = bny_now_ns();
    uint8_t frame[4 + GATHER_TEXT];
    int said = 0, rc = 0;

    if (tell_up(b) && !k->conn)
        return;
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
            return; /* it has ended, or needs no rank any more */
        poll(&p, 1, k->conn ? 50 : 5);
    }
}

void gather_client_finish(struct bny_bootstrap *b)
{
    bny_conn_free(b->client.up);
    bny_conn_free(b->client.conn);
    free(b->client.gave);
    free(b->client.said);
}
