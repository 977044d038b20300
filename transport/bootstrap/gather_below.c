/* SPDX-License-Identifier: BSD-3-Clause */
/* The all-gather's side towards the ranks below: accepts them among foreign connections, takes
 * their peer infos, sends them the table, watches them until all are ready. Used by the root
 * and, in large jobs, by every rank with others below it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "transport/bootstrap/gather.h"
#include "transport/bootstrap/wire_pack.h"

#define MS         1000000u
#define HALF_EXTRA 256         /* connections without a peer info, besides the ranks expected */
#define ACCEPTS    64          /* per progress */
#define PROOF_NS   (200u * MS) /* time for a proof if room is short */
#define LINGER_NS  (2000u * MS)        /* to send a failure to late ranks */
#define CLOSE_NS   (300u * MS)         /* for ranks that were sent a failure to close */
#define EVENTS     256                 /* connections looked at per progress */
#define QUEUE_MAX  (4u * GATHER_PIECE) /* bytes of the table queued per rank */

int gather_below_start(struct bny_bootstrap *b, int listen_fd, int near_fd)
{
    struct gather_below *r = &b->below;
    struct epoll_event ev = { .events = EPOLLIN };
    size_t n = (size_t)b->nranks;

    r->listen_fd = listen_fd;
    r->near_fd = near_fd;
    r->half_cap = (b->rank ? 2 : b->nranks) + HALF_EXTRA;
    r->leaving_cap = r->half_cap;
    r->half = calloc((size_t)r->half_cap, sizeof *r->half);
    r->leaving = calloc((size_t)r->leaving_cap, sizeof *r->leaving);
    r->ranks = calloc(n, sizeof *r->ranks);
    r->members = calloc(n, sizeof *r->members);
    r->via = malloc(n * sizeof *r->via);
    r->told = calloc(n, 1);
    r->sent = calloc(n, sizeof *r->sent);
    r->ready = calloc(n, 1);
    if (!r->half || !r->leaving || !r->ranks || !r->members || !r->via || !r->told ||
        !r->sent || !r->ready)
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for %d connections", b->rank,
                        b->nranks);
    memset(r->via, -1, n * sizeof *r->via);
    r->first_deadline = b->deadline_ns;
    if ((listen_fd >= 0 && epoll_ctl(b->epfd, EPOLL_CTL_ADD, listen_fd, &ev) != 0) ||
        (near_fd >= 0 && epoll_ctl(b->epfd, EPOLL_CTL_ADD, near_fd, &ev) != 0))
        return bny_fail_errno("rank %d: epoll_ctl", b->rank);
    return 0;
}

void gather_stop_listening(struct gather_below *r)
{
    if (r->listen_fd >= 0)
        close(r->listen_fd);
    if (r->near_fd >= 0)
        close(r->near_fd);
    r->listen_fd = r->near_fd = -1;
}

void gather_below_finish(struct bny_bootstrap *b)
{
    struct gather_below *r = &b->below;

    gather_stop_listening(r);
    for (int i = 0; i < r->nhalf; i++)
        bny_conn_free(r->half[i]);
    for (int i = 0; i < r->nleaving; i++)
        bny_conn_free(r->leaving[i]);
    for (int i = 0; r->ranks && i < b->nranks; i++)
        bny_conn_free(r->ranks[i]);
    free(r->half);
    free(r->leaving);
    free(r->ranks);
    free(r->members);
    free(r->via);
    free(r->told);
    free(r->sent);
    free(r->ready);
    free(r->spots);
    free(r->strange);
    gather_root_stop_probes(r);
    free(r->probes);
}

/* ---- arrivals ---- */

static void half_remove(struct gather_below *r, int i)
{
    memmove(r->half + i, r->half + i + 1, (size_t)(r->nhalf - i - 1) * sizeof *r->half);
    r->nhalf--;
}

static void half_drop(struct gather_below *r, int i, const char *why)
{
    struct bny_conn *c = r->half[i];

    /* A rank that left while it waited for us retries: it is not foreign. */
    if (c->known && c->eof && c->err == 0 && c->state == BNY_CONN_PROOF && !c->in_len)
        bny_debug("a rank closed its connection before it joined");
    else
        bny_foreign_drop(&r->foreign, c, why);
    half_remove(r, i);
    bny_conn_free(c);
}

/* The connection to drop for lack of room: the oldest is most likely foreign. -1: all are
 * authenticated. */
static int oldest_stranger(const struct gather_below *r)
{
    for (int i = 0; i < r->nhalf; i++)
        if (r->half[i]->state != BNY_CONN_READY)
            return i;
    return -1;
}

static void accept_from(struct bny_bootstrap *b, int listen_fd)
{
    struct gather_below *r = &b->below;

    for (int i = 0; i < ACCEPTS && listen_fd >= 0; i++) {
        struct bny_addr peer;
        struct bny_conn *c;
        int fd = listen_fd == r->near_fd ? bny_near_accept(listen_fd, &peer)
                                         : bny_net_accept(listen_fd, &peer);
        int old = oldest_stranger(r);

        if (fd == -EMFILE || fd == -ENFILE) {
            /* A rank needs a moment for its proof, and this may be the last one we have room
             * for. */
            if (old >= 0 && bny_now_ns() - r->half[old]->since_ns < PROOF_NS)
                return;
            if (old >= 0)
                half_drop(r, old,
                          "too many open files, and it was the oldest one without proof");
            else
                gather_fail(b, BANYAN_ESYSTEM,
                            "rank %d: too many open files for %d ranks; raise "
                            "ulimit -n",
                            b->rank, b->nranks);
            return;
        }
        if (fd < 0)
            return;
        if (r->nhalf == r->half_cap) {
            if (old < 0) { /* one rank joins again and again */
                close(fd);
                return;
            }
            half_drop(r, old, "too many connections without proof; it was the oldest");
        }
        c = bny_conn_new(fd, b->epfd, 0, &peer, &b->self,
                         b->tree ? GATHER_FRAME_MAX
                                 : BNY_PEER_INFO_MAX + sizeof(struct gather_peer_info));
        if (!c)
            return;
        r->half[r->nhalf++] = c;
    }
}

/* Sends the failure to one rank and removes it from the tables. */
static void gather_below_tell(struct bny_bootstrap *b, struct bny_conn *c)
{
    struct gather_below *r = &b->below;
    uint8_t frame[4 + GATHER_TEXT];

    if (c->theirs.rank > 0 && c->theirs.rank < b->nranks)
        r->told[c->theirs.rank] = 1;
    r->near_told += c->peer.family == 1;
    if (bny_conn_send(c, GATHER_FAIL, frame, gather_pack_failure(b, frame)) != 0 ||
        r->nleaving == r->leaving_cap) {
        bny_conn_free(c);
        return;
    }
    r->leaving[r->nleaving++] = c;
}

static const char *version_text(uint32_t v, char *text, size_t cap)
{
    snprintf(text, cap, "%u.%u.%u", v / 10000, v / 100 % 100, v % 100);
    return text;
}

/* Checks the hello of an authenticated rank. Returns 0, or the failure's code. */
static int check_hello(struct bny_bootstrap *b, const struct bny_conn *c)
{
    const struct bny_hello *h = &c->theirs;
    char at[BNY_ADDR_TEXT], other[BNY_ADDR_TEXT], v1[24], v2[24];

    bny_addr_text(&c->peer, at);
    if (h->wire != c->mine.wire || h->version / 100 != c->mine.version / 100)
        return gather_fail(b, BANYAN_EVERSION,
                           "rank %d (%s) runs banyan %s with wire version %u, rank %d %s "
                           "with %u; install the same version on every host",
                           h->rank, at, version_text(h->version, v1, sizeof v1), h->wire,
                           b->rank, version_text(c->mine.version, v2, sizeof v2), c->mine.wire);
    if (h->rank == 0) {
        gather_root_second(b, c);
        return b->error;
    }
    if (h->nranks != b->nranks)
        return gather_fail(b, BANYAN_EPROTO,
                           "rank %d (%s) was started in a job of %d ranks, rank %d in one "
                           "of %d; start every rank with the same number",
                           h->rank, at, h->nranks, b->rank, b->nranks);
    if (h->rank < 0 || h->rank >= b->nranks)
        return gather_fail(b, BANYAN_EPROTO,
                           "rank %d (%s) is out of range: this job has ranks 0 to %d", h->rank,
                           at, b->nranks - 1);
    if (b->below.ranks[h->rank] || b->below.via[h->rank] >= 0)
        return gather_fail(
            b, BANYAN_EPROTO,
            "two processes joined as rank %d: %s and %s; give each process its own rank%s",
            h->rank,
            b->below.ranks[h->rank] ? bny_addr_text(&b->below.ranks[h->rank]->peer, other)
                                    : "one that already has a place",
            at, b->id.span > 1 ? ", and each job a MASTER_PORT of its own" : "");
    return 0;
}

/* A peer info has come through that member, which is served from now on. */
static void came(struct bny_bootstrap *b, int rank, int from)
{
    struct gather_below *r = &b->below;

    if (rank == from)
        r->members[r->nmembers++] = rank;
    r->via[rank] = from;
    r->arrived++;
    if (b->rank == 0)
        gather_root_came(b, rank, from);
}

static void hurry(struct gather_below *r, uint32_t remaining_ms)
{
    uint64_t theirs = bny_now_ns() + (uint64_t)remaining_ms * MS;

    if (remaining_ms && (!r->first_deadline || theirs < r->first_deadline))
        r->first_deadline = theirs;
}

static void wrong_size(struct bny_bootstrap *b, int rank, uint32_t bytes)
{
    gather_fail(b, BANYAN_EPROTO,
                "rank %d sent a peer info of %u bytes, rank %d expects %zu; start the same "
                "program with the same settings everywhere",
                rank, bytes, b->rank, b->info_bytes);
}

static void take_peer_info(struct bny_bootstrap *b, const struct bny_conn *c,
                           const uint8_t *data, size_t len)
{
    struct gather_peer_info head = { 0 };
    int rank = c->theirs.rank;

    if (len >= sizeof head)
        memcpy(&head, data, sizeof head);
    if (b->below.via[rank] >= 0) {
        gather_fail(b, BANYAN_EPROTO, "rank %d sent a second peer info", rank);
        return;
    }
    if (len < sizeof head || head.bytes != b->info_bytes || len != sizeof head + head.bytes) {
        wrong_size(b, rank, head.bytes);
        return;
    }
    memcpy(b->table + (size_t)rank * b->info_bytes, data + sizeof head, head.bytes);
    came(b, rank, rank);
    hurry(&b->below, head.remaining_ms);
}

/* The peer infos of a frame; list: their ranks. Returns 0, or -1: malformed. */
static int unpack_peer_infos(struct bny_bootstrap *b, int from, const uint8_t *list,
                             uint32_t count, const uint8_t *packed, size_t len)
{
    struct gather_below *r = &b->below;
    const uint8_t *before = NULL;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t rank;
        uint8_t *info;
        size_t took;

        memcpy(&rank, list + 4 * (size_t)i, 4);
        if (rank < 1 || rank >= (uint32_t)b->nranks)
            return -1;
        if ((int)rank == b->rank || r->via[rank] >= 0)
            return gather_fail(b, BANYAN_EPROTO,
                               "two processes joined as rank %u, one of them through rank %d; "
                               "give each process its own rank",
                               rank, from);
        info = b->table + (size_t)rank * b->info_bytes;
        took = bny_peer_info_unpack(before, info, b->info_bytes, packed, len);
        if (!took)
            return -1;
        packed += took;
        len -= took;
        before = info;
        came(b, (int)rank, from);
    }
    return len ? -1 : 0;
}

/* A rank's peer info with those of ranks below it. Its own comes first. */
static void take_peer_infos(struct bny_bootstrap *b, const struct bny_conn *c,
                            const uint8_t *data, size_t len)
{
    struct gather_peer_infos head = { 0 };
    int rank = c->theirs.rank;
    size_t lists;

    if (len >= sizeof head)
        memcpy(&head, data, sizeof head);
    if (len >= sizeof head && head.bytes != b->info_bytes) {
        wrong_size(b, rank, head.bytes);
        return;
    }
    lists = 4 * (size_t)head.count;
    if (len < sizeof head || head.count < 1 || lists > len - sizeof head ||
        unpack_peer_infos(b, rank, data + sizeof head, head.count, data + sizeof head + lists,
                          len - sizeof head - lists) != 0 ||
        b->below.via[rank] != rank) {
        gather_fail(b, BANYAN_EPROTO, "rank %d sent malformed peer infos", rank);
        return;
    }
    hurry(&b->below, head.remaining_ms);
}

static void is_ready(struct gather_below *r, int rank)
{
    r->nready += !r->ready[rank];
    r->ready[rank] = 1;
}

/* For all peer infos that it brought, or for the ranks in a list. */
static void take_ready(struct bny_bootstrap *b, int rank, const uint8_t *data, size_t len)
{
    struct gather_below *r = &b->below;
    int before = r->nready;

    if (r->via[rank] != rank || !b->npacked || r->sent[rank] < b->npacked || len % 4) {
        gather_fail(b, BANYAN_EPROTO, "rank %d reports too early that it is ready", rank);
        return;
    }
    for (int i = 0; len == 0 && i < b->nranks; i++)
        if (r->via[i] == rank)
            is_ready(r, i);
    for (size_t at = 0; at < len; at += 4) {
        uint32_t other;

        memcpy(&other, data + at, 4);
        if (other < (uint32_t)b->nranks && r->via[other] == rank)
            is_ready(r, (int)other);
    }
    if (r->nready == before)
        gather_fail(b, BANYAN_EPROTO, "rank %d reports twice that it is ready", rank);
}

/* A rank, or the process that started it, reports that it will not join. */
static void take_abort(struct bny_bootstrap *b, const struct bny_conn *c, const uint8_t *data,
                       size_t len)
{
    struct gather_below *r = &b->below;

    if (r->went)
        return; /* all have joined: from now on the control connections report failures */
    gather_take_failure(b, data, len);
    if (c->theirs.rank > 0 && c->theirs.rank < b->nranks)
        r->told[c->theirs.rank] = 1;
}

static void rank_left(struct bny_bootstrap *b, const struct bny_conn *c)
{
    char at[BNY_ADDR_TEXT];

    gather_fail(b, BANYAN_ERANKDEAD, "rank %d left while init was in progress: %s (%s)",
                c->theirs.rank, c->why, bny_addr_text(&c->peer, at));
}

static void take_frame(struct bny_bootstrap *b, struct bny_conn *c, uint32_t type,
                       const uint8_t *data, size_t len)
{
    int rank = c->theirs.rank;

    if (type == GATHER_ABORT)
        take_abort(b, c, data, len);
    else if (type == GATHER_CARD)
        take_peer_info(b, c, data, len);
    else if (type == GATHER_CARDS)
        take_peer_infos(b, c, data, len);
    else if (type == GATHER_READY)
        take_ready(b, rank, data, len);
    else if (type == GATHER_HERE && b->rank == 0)
        gather_root_here(b, c, data, len);
    else
        gather_fail(b, BANYAN_EPROTO, "rank %d sent a frame of unknown type %u", rank, type);
}

/* Input of a rank that has joined: peer infos, READY, ABORT, or its end. */
static void watch_rank(struct bny_bootstrap *b, struct bny_conn *c)
{
    struct gather_below *r = &b->below;
    int rank = c->slot, rc = 0, served;
    uint32_t type;
    const uint8_t *data;
    size_t len;

    while (!b->error && (rc = bny_conn_next(c, &type, &data, &len)) == 1)
        take_frame(b, c, type, data, len);
    if (rc >= 0 || b->error)
        return;
    if (r->via[rank] >= 0 && r->via[rank] != rank) { /* another rank serves it */
        r->ranks[rank] = NULL;
        bny_conn_free(c);
        return;
    }
    if (r->ready[rank] && c->err)
        return; /* it has control connections: they report its end; a reset proves none */
    served = b->npacked && r->sent[rank] == b->npacked;
    if (!r->went && (!served || r->settling))
        rank_left(b, c);
}

/* First frame of an authenticated rank. Returns 1 if it is one of ours now. */
static int take_first(struct bny_bootstrap *b, struct bny_conn *c, uint32_t type,
                      const uint8_t *data, size_t len)
{
    if (type == GATHER_ABORT) {
        take_abort(b, c, data, len);
        gather_below_tell(b, c);
        return 0;
    }
    c->slot = c->theirs.rank;
    b->below.ranks[c->slot] = c;
    take_frame(b, c, type, data, len);
    return !b->error;
}

/* Only the root accepts an ABORT connection. */
static int is_elsewhere(const struct bny_bootstrap *b, const struct bny_conn *c)
{
    return b->rank != 0 && c->theirs.purpose != BNY_CONN_BOOTSTRAP;
}

/* The i-th connection without a purpose yet: is it a rank, or dead? */
static void look_at_half(struct bny_bootstrap *b, int i)
{
    struct gather_below *r = &b->below;
    struct bny_conn *c = r->half[i];
    uint32_t type;
    const uint8_t *data;
    size_t len;
    int rc = bny_conn_progress(c);

    if (rc == 1 && is_elsewhere(b, c)) {
        half_drop(r, i, "its place is elsewhere");
        return;
    }
    if (rc == 1 &&
        (b->error || (c->theirs.purpose != BNY_CONN_ABORT && check_hello(b, c) != 0))) {
        half_remove(r, i);
        gather_below_tell(b, c);
        return;
    }
    if (rc == 1)
        rc = bny_conn_next(c, &type, &data, &len);
    if (rc == 1 && type != GATHER_ABORT && c->theirs.purpose != BNY_CONN_BOOTSTRAP) {
        half_drop(r, i, "it sent no peer info");
    } else if (rc == 1) {
        half_remove(r, i);
        if (take_first(b, c, type, data, len))
            watch_rank(b, c); /* no event comes for frames behind the first */
    } else if (rc < 0 && c->state == BNY_CONN_READY) {
        /* Only the root knows of it, and for ranks of our host this rank. */
        if (c->theirs.purpose == BNY_CONN_BOOTSTRAP && (b->rank == 0 || c->peer.family == 1))
            rank_left(b, c);
        half_remove(r, i);
        bny_conn_free(c);
    } else if (rc != 0) {
        if (c->differs && !b->error && b->rank == 0)
            gather_root_strange(b, c);
        half_drop(r, i, rc < 0 ? c->why : "it sent no peer info");
    }
}

static void expire_half(struct gather_below *r)
{
    uint64_t now = bny_now_ns();

    for (int i = 0; i < r->nhalf; i++)
        if (r->half[i]->state != BNY_CONN_READY &&
            now - r->half[i]->since_ns >=
                (r->half[i]->known ? GATHER_KNOWN_NS : GATHER_ATTEMPT_NS))
            half_drop(r, i--, "it did not prove itself in time");
}

/* A connection with an event. Checking all of them each time would cost a large job's root a
 * system call for each pair of ranks. */
static void happened(struct bny_bootstrap *b, struct bny_conn *c)
{
    struct gather_below *r = &b->below;

    for (int i = 0; i < r->nhalf; i++)
        if (r->half[i] == c) {
            look_at_half(b, i);
            return;
        }
    if (c->slot > 0 && r->ranks[c->slot] == c)
        watch_rank(b, c);
}

void gather_look_around(struct bny_bootstrap *b)
{
    struct epoll_event ev[EVENTS];
    int n = epoll_wait(b->epfd, ev, EVENTS, 0);

    for (int i = 0; i < n; i++) /* none of them frees another one's connection */
        if (ev[i].data.ptr)
            happened(b, ev[i].data.ptr);
    expire_half(&b->below);
    accept_from(b, b->below.listen_fd);
    accept_from(b, b->below.near_fd);
}

/* ---- the table, and what comes after it ---- */

static int send_pieces(struct bny_bootstrap *b, int rank)
{
    struct gather_below *r = &b->below;
    struct bny_conn *c = r->ranks[rank];

    while (r->sent[rank] < b->have && bny_conn_unsent(c) <= QUEUE_MAX) {
        struct gather_all head = { (uint32_t)b->npacked, (uint32_t)r->sent[rank] };
        size_t piece = b->have - r->sent[rank];

        if (piece > GATHER_PIECE)
            piece = GATHER_PIECE;
        if (bny_conn_send_parts(c, GATHER_ALL, &head, sizeof head, b->packed + head.offset,
                                piece) != 0)
            return gather_fail(b, BANYAN_ENOMEM, "rank %d: no memory to send the peer infos",
                               b->rank);
        r->sent[rank] += piece;
    }
    bny_conn_progress(c);
    return 0;
}

int gather_serve(struct bny_bootstrap *b)
{
    struct gather_below *r = &b->below;

    r->served = 0;
    for (int i = 0; i < r->nmembers && !b->error; i++) {
        int rank = r->members[i];

        if (!r->ranks[rank] || send_pieces(b, rank) != 0)
            return 0;
        r->served += r->sent[rank] == b->npacked && !bny_conn_unsent(r->ranks[rank]);
    }
    return !b->error && r->served == r->nmembers;
}

void gather_settle_begin(struct bny_bootstrap *b)
{
    struct gather_below *r = &b->below;

    if (r->settling)
        return;
    r->settling = 1;
    for (int i = 0; i < r->nmembers && !b->error; i++)
        if (r->ranks[r->members[i]])
            watch_rank(b, r->ranks[r->members[i]]);
}

void gather_let_go(struct bny_bootstrap *b)
{
    struct gather_below *r = &b->below;

    for (int i = 0; i < r->nmembers && !b->error && !r->went; i++)
        if (bny_conn_send(r->ranks[r->members[i]], GATHER_GO, NULL, 0) != 0)
            gather_fail(b, BANYAN_ENOMEM, "rank %d: no memory to let the ranks go", b->rank);
    if (b->error)
        return;
    r->went = 1;
    gather_stop_listening(r);
}

int gather_went(struct bny_bootstrap *b)
{
    struct gather_below *r = &b->below;
    int went = 1;

    for (int i = 0; i < r->nmembers && went; i++) {
        bny_conn_progress(r->ranks[r->members[i]]);
        went = !bny_conn_unsent(r->ranks[r->members[i]]);
    }
    return went;
}

/* ---- failures ---- */

/* Has it got the failure, or will another rank send it? */
static int hears(const struct gather_below *r, int rank)
{
    return r->told[rank] || r->via[rank] >= 0 || (r->spots && r->spots[rank].here);
}

int gather_tell_all(struct bny_bootstrap *b)
{
    struct gather_below *r = &b->below;
    uint64_t now = bny_now_ns();
    int told = 0;

    if (!r->linger_until) {
        r->linger_until = now + (b->rank ? CLOSE_NS : LINGER_NS);
        if (r->first_deadline && r->first_deadline < r->linger_until)
            r->linger_until = r->first_deadline;
    }
    for (int rank = 1; rank < b->nranks; rank++) {
        if (r->ranks[rank])
            gather_below_tell(b, r->ranks[rank]);
        r->ranks[rank] = NULL;
        told += b->rank || hears(r, rank);
    }
    for (int i = 0; i < r->nleaving; i++) {
        uint32_t type;
        const uint8_t *data;
        size_t len;

        bny_conn_progress(r->leaving[i]);
        if (bny_conn_next(r->leaving[i], &type, &data, &len) < 0) {
            bny_conn_free(r->leaving[i]);
            r->leaving[i--] = r->leaving[--r->nleaving];
        }
    }
    if (r->near_fd >= 0 && r->near_told < bny_near_direct(&b->near))
        told = 0; /* ranks that come to us have no other */
    return (told == b->nranks - 1 && r->nleaving == 0) || now >= r->linger_until;
}
