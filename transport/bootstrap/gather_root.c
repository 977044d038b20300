/* SPDX-License-Identifier: BSD-3-Clause */
/* The all-gather's root: accepts every rank whatever else connects, collects the cards, sends
 * the table. */
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
#include "transport/bootstrap/id.h"
#include "transport/bootstrap/pack.h"
#include "transport/wire.h"

#define MS         1000000u
#define HALF_EXTRA 256          /* connections without a card, besides the ranks expected */
#define ACCEPTS    64           /* per progress */
#define PROOF_NS   (200u * MS)  /* what a rank may take for it where room is short */
#define LINGER_NS  (2000u * MS) /* to tell late ranks of a failure */
#define EVENTS     256          /* connections looked at per progress */
#define QUEUE_MAX  (4u * GATHER_PIECE) /* bytes of the table queued per rank */

/* Binds the id's address when the listening socket was not made by this process. */
static int bind_root(struct bny_bootstrap *b)
{
    struct bny_addr addr;
    char text[BNY_ADDR_TEXT];
    int span = b->id.span ? b->id.span : 1, fd = -EADDRINUSE;

    bny_id_addr(&b->id, &addr);
    for (int i = 0; i < span && fd == -EADDRINUSE; i++) {
        addr.port = (uint16_t)(b->id.port + i);
        fd = bny_net_listen_at(&addr, BNY_ID_BACKLOG);
    }
    if (fd >= 0)
        return fd;
    addr.port = b->id.port;
    bny_addr_text(&addr, text);
    if (fd == -EADDRNOTAVAIL)
        return bny_fail(BANYAN_ECONFIG,
                        "rank 0: the job's root address %s is not of this host; rank 0 must be "
                        "the process that made the id, or run where the launcher says",
                        text);
    if (fd == -EADDRINUSE)
        return bny_fail(BANYAN_EPROTO,
                        "rank 0: another process listens at the root address %s; was rank 0 "
                        "started twice? Else choose another port",
                        text);
    errno = -fd;
    return bny_fail_errno("rank 0: cannot listen at %s", text);
}

int gather_root_start(struct bny_bootstrap *b)
{
    struct gather_root *r = &b->root;
    struct epoll_event ev = { .events = EPOLLIN };
    size_t n = (size_t)b->nranks;

    r->listen_fd = bny_id_take_fd(&b->id);
    if (r->listen_fd < 0)
        r->listen_fd = bind_root(b);
    if (r->listen_fd < 0)
        return r->listen_fd;
    r->half_cap = b->nranks + HALF_EXTRA;
    r->leaving_cap = b->nranks + HALF_EXTRA;
    r->half = calloc((size_t)r->half_cap, sizeof *r->half);
    r->leaving = calloc((size_t)r->leaving_cap, sizeof *r->leaving);
    r->ranks = calloc(n, sizeof *r->ranks);
    r->told = calloc(n, 1);
    r->sent = calloc(n, sizeof *r->sent);
    r->strange = calloc(n, sizeof *r->strange);
    r->ready = calloc(n, 1);
    if (!r->half || !r->leaving || !r->ranks || !r->told || !r->sent || !r->strange ||
        !r->ready)
        return bny_fail(BANYAN_ENOMEM, "rank 0: no memory for %d connections", b->nranks);
    r->first_deadline = b->deadline_ns;
    if (epoll_ctl(b->epfd, EPOLL_CTL_ADD, r->listen_fd, &ev) != 0)
        return bny_fail_errno("rank 0: epoll_ctl");
    return 0;
}

static void stop_listening(struct gather_root *r)
{
    if (r->listen_fd >= 0)
        close(r->listen_fd);
    r->listen_fd = -1;
}

void gather_root_finish(struct bny_bootstrap *b)
{
    struct gather_root *r = &b->root;

    stop_listening(r);
    for (int i = 0; i < r->nhalf; i++)
        bny_conn_free(r->half[i]);
    for (int i = 0; i < r->nleaving; i++)
        bny_conn_free(r->leaving[i]);
    for (int i = 0; r->ranks && i < b->nranks; i++)
        bny_conn_free(r->ranks[i]);
    free(r->half);
    free(r->leaving);
    free(r->ranks);
    free(r->told);
    free(r->sent);
    free(r->strange);
    free(r->ready);
    free(r->packed);
}

/* ---- arrivals ---- */

static void half_remove(struct gather_root *r, int i)
{
    memmove(r->half + i, r->half + i + 1, (size_t)(r->nhalf - i - 1) * sizeof *r->half);
    r->nhalf--;
}

static void half_drop(struct gather_root *r, int i, const char *why)
{
    struct bny_conn *c = r->half[i];

    /* A rank that went away while it waited for us retries: nothing foreign about it. */
    if (c->known && c->eof && c->err == 0 && c->state == BNY_CONN_PROOF && !c->in_len)
        bny_debug("a rank closed its connection before it joined");
    else
        bny_foreign_drop(&r->foreign, c, why);
    half_remove(r, i);
    bny_conn_free(c);
}

/* Which to drop for want of room: the oldest is the likeliest to be foreign. -1: all have
 * proven that they are ranks. */
static int oldest_stranger(const struct gather_root *r)
{
    for (int i = 0; i < r->nhalf; i++)
        if (r->half[i]->state != BNY_CONN_READY)
            return i;
    return -1;
}

static void accept_all(struct bny_bootstrap *b)
{
    struct gather_root *r = &b->root;

    for (int i = 0; i < ACCEPTS && r->listen_fd >= 0; i++) {
        struct bny_addr peer;
        struct bny_conn *c;
        int fd = bny_net_accept(r->listen_fd, &peer), old = oldest_stranger(r);

        if (fd == -EMFILE || fd == -ENFILE) {
            /* A rank needs a moment for its proof: it may be the last one we have room for. */
            if (old >= 0 && bny_now_ns() - r->half[old]->since_ns < PROOF_NS)
                return;
            if (old >= 0)
                half_drop(r, old,
                          "too many open files, and it was the oldest one without proof");
            else
                gather_fail(b, BANYAN_ESYSTEM,
                            "rank 0: too many open files for %d ranks; raise "
                            "ulimit -n",
                            b->nranks);
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
                         BNY_CARD_MAX + sizeof(struct gather_card));
        if (!c)
            return;
        r->half[r->nhalf++] = c;
    }
}

/* Where the root listens, as text[BNY_ADDR_TEXT]. */
static const char *root_text(const struct bny_bootstrap *b, char *text)
{
    struct bny_addr addr;

    bny_id_addr(&b->id, &addr);
    if (b->root.listen_fd >= 0)
        bny_net_bound(b->root.listen_fd, &addr);
    return bny_addr_text(&addr, text);
}

/* Sends the failure to one rank; it leaves the tables. */
static void tell(struct bny_bootstrap *b, struct bny_conn *c)
{
    struct gather_root *r = &b->root;
    uint8_t frame[4 + GATHER_TEXT];

    if (c->theirs.rank > 0 && c->theirs.rank < b->nranks)
        r->told[c->theirs.rank] = 1;
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

/* Checks what a rank that has proven itself says of itself. Returns 0, or the failure's
 * code. */
static int check_hello(struct bny_bootstrap *b, const struct bny_conn *c)
{
    const struct bny_hello *h = &c->theirs;
    char at[BNY_ADDR_TEXT], other[BNY_ADDR_TEXT], v1[24], v2[24];

    bny_addr_text(&c->peer, at);
    if (h->wire != c->mine.wire || h->version / 100 != c->mine.version / 100)
        return gather_fail(b, BANYAN_EVERSION,
                           "rank %d (%s) runs banyan %s with wire version %u, rank 0 %s "
                           "with %u; install the same version on every host",
                           h->rank, at, version_text(h->version, v1, sizeof v1), h->wire,
                           version_text(c->mine.version, v2, sizeof v2), c->mine.wire);
    if (h->nranks != b->nranks)
        return gather_fail(b, BANYAN_EPROTO,
                           "rank %d (%s) was started in a job of %d ranks, rank 0 in one of "
                           "%d; start every rank with the same number",
                           h->rank, at, h->nranks, b->nranks);
    if (h->rank < 0 || h->rank >= b->nranks)
        return gather_fail(b, BANYAN_EPROTO,
                           "rank %d (%s) is out of range: this job has ranks 0 to %d", h->rank,
                           at, b->nranks - 1);
    if (h->rank == 0)
        return gather_fail(b, BANYAN_EPROTO,
                           "two processes joined as rank 0: the root at %s and %s; give each "
                           "process its own rank",
                           root_text(b, other), at);
    if (b->root.ranks[h->rank])
        return gather_fail(b, BANYAN_EPROTO,
                           "two processes joined as rank %d: %s and %s; give each process "
                           "its own rank",
                           h->rank, bny_addr_text(&b->root.ranks[h->rank]->peer, other), at);
    return 0;
}

static void take_card(struct bny_bootstrap *b, struct bny_conn *c, const uint8_t *data,
                      size_t len)
{
    struct gather_root *r = &b->root;
    struct gather_card head = { 0 };
    int rank = c->theirs.rank;

    if (len >= sizeof head)
        memcpy(&head, data, sizeof head);
    if (len < sizeof head || head.bytes != b->card_bytes || len != sizeof head + head.bytes) {
        gather_fail(b, BANYAN_EPROTO,
                    "rank %d sent a card of %u bytes, rank 0 expects %zu; start the same "
                    "program with the same settings everywhere",
                    rank, head.bytes, b->card_bytes);
        tell(b, c);
        return;
    }
    memcpy(b->table + (size_t)rank * b->card_bytes, data + sizeof head, head.bytes);
    r->ranks[rank] = c;
    c->slot = rank;
    r->arrived++;
    if (head.remaining_ms) {
        uint64_t theirs = bny_now_ns() + (uint64_t)head.remaining_ms * MS;

        if (!r->first_deadline || theirs < r->first_deadline)
            r->first_deadline = theirs;
    }
}

/* A rank, or who started it, says that it will not join. */
static void take_abort(struct bny_bootstrap *b, const struct bny_conn *c, const uint8_t *data,
                       size_t len)
{
    struct gather_root *r = &b->root;

    if (r->went)
        return; /* all have joined: what comes now is told by the control connections */
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

/* What a rank that has joined says: that it is ready, or not coming; or its end. */
static void watch_rank(struct bny_bootstrap *b, struct bny_conn *c)
{
    struct gather_root *r = &b->root;
    int rank = c->slot, rc = 0;
    uint32_t type;
    const uint8_t *data;
    size_t len;

    while (!b->error && (rc = bny_conn_next(c, &type, &data, &len)) == 1) {
        if (type == GATHER_ABORT) {
            take_abort(b, c, data, len);
        } else if (type == GATHER_READY && r->packed && r->sent[rank] == r->npacked &&
                   !r->ready[rank]) {
            r->ready[rank] = 1;
            r->nready++;
        } else {
            gather_fail(b, BANYAN_EPROTO, "rank %d sent a second card", rank);
        }
    }
    if (r->ready[rank] && c->err)
        return; /* its control connections stand: they tell of its end, which a reset is not */
    if (rc < 0 && !r->went && (!r->packed || r->sent[rank] < r->npacked || r->settling))
        rank_left(b, c);
}

/* A connection that says that our secret is another one. Of strangers nothing is believed; but
 * where the secret is the user's affair, a rank that comes again and again is most likely one
 * that has none of ours, and waiting for it is in vain. */
static void note_strange(struct bny_bootstrap *b, const struct bny_conn *c)
{
    struct gather_root *r = &b->root;
    int rank = c->theirs.rank;
    char at[BNY_ADDR_TEXT], here[BNY_ADDR_TEXT];

    if (b->id.key_from == BNY_KEY_DRAWN || rank < 1 || rank >= b->nranks || r->ranks[rank] ||
        !gather_strange(&r->strange[rank], c, GATHER_STRANGE_ROOT_NS))
        return;
    gather_fail(b, BANYAN_ECONFIG, "rank %d (%s) has another secret than rank 0 (%s): %s", rank,
                bny_addr_text(&c->peer, at), root_text(b, here), gather_strange_remedy(&b->id));
}

/* One connection without a card, the i-th: has it joined, is it dead? */
static void look_at_half(struct bny_bootstrap *b, int i)
{
    struct gather_root *r = &b->root;
    struct bny_conn *c = r->half[i];
    uint32_t type;
    const uint8_t *data;
    size_t len;
    int rc = bny_conn_progress(c);

    if (rc == 1 &&
        (b->error || (c->theirs.purpose != BNY_CONN_ABORT && check_hello(b, c) != 0))) {
        half_remove(r, i);
        tell(b, c);
        return;
    }
    if (rc == 1)
        rc = bny_conn_next(c, &type, &data, &len);
    if (rc == 1 && type == GATHER_ABORT) {
        half_remove(r, i);
        take_abort(b, c, data, len);
        tell(b, c);
    } else if (rc == 1 && type == GATHER_CARD && c->theirs.purpose == BNY_CONN_BOOTSTRAP) {
        half_remove(r, i);
        take_card(b, c, data, len);
        if (!b->error)
            watch_rank(b, c); /* what came behind the card is told by no event */
    } else if (rc < 0 && c->state == BNY_CONN_READY) {
        if (c->theirs.purpose == BNY_CONN_BOOTSTRAP)
            rank_left(b, c);
        half_remove(r, i);
        bny_conn_free(c);
    } else if (rc != 0) {
        if (c->differs && !b->error)
            note_strange(b, c);
        half_drop(r, i, rc < 0 ? c->why : "it sent no card");
    }
}

static void expire_half(struct gather_root *r)
{
    uint64_t now = bny_now_ns();

    for (int i = 0; i < r->nhalf; i++)
        if (r->half[i]->state != BNY_CONN_READY &&
            now - r->half[i]->since_ns >= GATHER_ATTEMPT_NS)
            half_drop(r, i--, "it did not prove itself within 5 s");
}

/* A connection to which something happened. Asking all of them each time would cost a large
 * job's root a system call for each pair of ranks. */
static void happened(struct bny_bootstrap *b, struct bny_conn *c)
{
    struct gather_root *r = &b->root;

    for (int i = 0; i < r->nhalf; i++)
        if (r->half[i] == c) {
            look_at_half(b, i);
            return;
        }
    if (c->slot > 0 && r->ranks[c->slot] == c)
        watch_rank(b, c);
}

/* ---- the table, and failures ---- */

static int pack(struct bny_bootstrap *b)
{
    struct gather_root *r = &b->root;
    size_t n = (size_t)b->nranks;
    uint8_t *less;

    r->packed = malloc(bny_cards_packed_max(n, b->card_bytes));
    if (!r->packed)
        return gather_fail(b, BANYAN_ENOMEM, "rank 0: no memory to send the cards");
    r->npacked = bny_cards_pack(b->table, n, b->card_bytes, r->packed);
    less = realloc(r->packed, r->npacked);
    r->packed = less ? less : r->packed;
    return 0;
}

static void serve(struct bny_bootstrap *b)
{
    struct gather_root *r = &b->root;
    int served = 0;

    if (!r->packed && pack(b) != 0)
        return;
    for (int rank = 1; rank < b->nranks; rank++) {
        struct bny_conn *c = r->ranks[rank];

        while (r->sent[rank] < r->npacked && bny_conn_unsent(c) <= QUEUE_MAX) {
            struct gather_all head = { (uint32_t)r->npacked, (uint32_t)r->sent[rank] };
            uint8_t frame[sizeof head + GATHER_PIECE];
            size_t piece = r->npacked - r->sent[rank];

            if (piece > GATHER_PIECE)
                piece = GATHER_PIECE;
            memcpy(frame, &head, sizeof head);
            memcpy(frame + sizeof head, r->packed + head.offset, piece);
            if (bny_conn_send(c, GATHER_ALL, frame, sizeof head + piece) != 0) {
                gather_fail(b, BANYAN_ENOMEM, "rank 0: no memory to send the cards");
                return;
            }
            r->sent[rank] += piece;
        }
        bny_conn_progress(c);
        served += r->sent[rank] == r->npacked && !bny_conn_unsent(c);
    }
    r->served = served;
    b->done = served == b->nranks - 1;
}

static int is_there(const struct gather_root *r, int rank)
{
    return r->settling ? r->ready[rank] : r->ranks[rank] != NULL;
}

/* "2, 5-7" */
static void missing_text(const struct bny_bootstrap *b, char *text, size_t cap)
{
    size_t at = 0;

    text[0] = '\0';
    for (int i = 1; i < b->nranks; i++) {
        int first = i;

        if (is_there(&b->root, i))
            continue;
        while (i + 1 < b->nranks && !is_there(&b->root, i + 1))
            i++;
        if (at + 30 > cap) {
            snprintf(text + at, cap - at, ", ...");
            return;
        }
        at += (size_t)snprintf(text + at, cap - at, i > first ? "%s%d-%d" : "%s%d",
                               at ? ", " : "", first, i);
    }
}

static void check_deadline(struct bny_bootstrap *b)
{
    struct gather_root *r = &b->root;
    uint64_t now = bny_now_ns(), margin, all = r->first_deadline - b->start_ns;
    char missing[120], foreign[100] = "", at[BNY_ADDR_TEXT];
    int count = b->nranks - 1 - (r->settling ? r->nready : r->arrived);

    if (!r->first_deadline)
        return;
    /* Early enough that those already here can still hear of it before their own deadline. */
    margin = all / 10 < 200u * MS ? all / 10 : 200u * MS;
    if (now + margin < r->first_deadline)
        return;
    root_text(b, at);
    missing_text(b, missing, sizeof missing);
    if (r->foreign.total)
        snprintf(foreign, sizeof foreign,
                 "; %llu connections did not prove themselves (other id or "
                 "secret?)",
                 (unsigned long long)r->foreign.total);
    if (r->settling)
        gather_fail(b, BANYAN_ETIMEDOUT,
                    "rank%s %s of %d did not connect to the other ranks within %.1f s; is a "
                    "firewall in the way of BANYAN_PORT_RANGE?",
                    count > 1 ? "s" : "", count ? missing : "0", b->nranks,
                    (double)(now - b->start_ns) / 1e9);
    else if (count == 0)
        gather_fail(b, BANYAN_ETIMEDOUT,
                    "the root could not send all cards within %.1f s: %d of %d ranks "
                    "took them",
                    (double)(now - b->start_ns) / 1e9, r->served, b->nranks - 1);
    else
        gather_fail(b, BANYAN_ETIMEDOUT,
                    "rank%s %s of %d did not reach the root at %s within %.1f s%s; check "
                    "that they run, and firewall, BANYAN_IFNAME and BANYAN_PORT_RANGE",
                    count > 1 ? "s" : "", missing, b->nranks, at,
                    (double)(now - b->start_ns) / 1e9, foreign);
}

/* Tells everybody who is here or still comes. 1: all were told, or time is up. */
static int fail_everybody(struct bny_bootstrap *b)
{
    struct gather_root *r = &b->root;
    uint64_t now = bny_now_ns();
    int told = 0;

    if (!r->linger_until) {
        r->linger_until = now + LINGER_NS;
        if (r->first_deadline && r->first_deadline < r->linger_until)
            r->linger_until = r->first_deadline;
    }
    for (int rank = 1; rank < b->nranks; rank++) {
        if (r->ranks[rank])
            tell(b, r->ranks[rank]);
        r->ranks[rank] = NULL;
        told += r->told[rank];
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
    return (told == b->nranks - 1 && r->nleaving == 0) || now >= r->linger_until;
}

/* Who has come, spoken, ended. */
static void look_around(struct bny_bootstrap *b)
{
    struct epoll_event ev[EVENTS];
    int n = epoll_wait(b->epfd, ev, EVENTS, 0);

    for (int i = 0; i < n; i++) /* none of them frees another one's connection */
        if (ev[i].data.ptr)
            happened(b, ev[i].data.ptr);
    expire_half(&b->root);
    accept_all(b);
}

int gather_root_progress(struct bny_bootstrap *b)
{
    if (b->done)
        return 1;
    look_around(b);
    if (!b->error && b->has_card && b->root.arrived == b->nranks - 1)
        serve(b);
    if (!b->error && !b->done)
        check_deadline(b);
    if (b->error)
        return fail_everybody(b);
    return b->done;
}

static void let_go(struct bny_bootstrap *b)
{
    struct gather_root *r = &b->root;

    for (int rank = 1; rank < b->nranks && !b->error; rank++)
        if (bny_conn_send(r->ranks[rank], GATHER_GO, NULL, 0) != 0)
            gather_fail(b, BANYAN_ENOMEM, "rank 0: no memory to let the ranks go");
    if (b->error)
        return;
    r->went = 1;
    stop_listening(r);
}

int gather_root_settle(struct bny_bootstrap *b, int ready)
{
    struct gather_root *r = &b->root;

    if (b->settled)
        return 1;
    if (!r->settling) {
        r->settling = 1;
        /* What came when it did not count is told by no event. */
        for (int rank = 1; rank < b->nranks && !b->error; rank++)
            watch_rank(b, r->ranks[rank]);
    }
    look_around(b);
    if (!b->error && !r->went && ready && r->nready == b->nranks - 1)
        let_go(b);
    if (!b->error && !r->went)
        check_deadline(b);
    if (b->error)
        return fail_everybody(b);
    b->settled = r->went;
    for (int rank = 1; rank < b->nranks && b->settled; rank++) {
        bny_conn_progress(r->ranks[rank]);
        b->settled = !bny_conn_unsent(r->ranks[rank]);
    }
    return b->settled;
}

int gather_root_tell(struct bny_bootstrap *b)
{
    look_around(b);
    return fail_everybody(b);
}
