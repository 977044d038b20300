/* SPDX-License-Identifier: BSD-3-Clause */
/* How a connection opens: connect or accept, then both ends prove that they know the job's
 * secret before anything else is trusted. Nothing blocks, every half-open connection has a
 * deadline, and their number is bounded, so that port scanners and garbage cost a log line.
 *
 * A rank that computes, or has no CPU, neither answers nor sends a hello, but its kernel
 * connects and accepts, until its queue is full: then it does not answer either. So silence is
 * no failure of a first connection, nor is an attempt that expired while this rank was away:
 * the control plane detects a dead process or host, the operation's deadline bounds the wait.
 * Nor is an early end of a first connection: the peer needed its place for another. Refusals
 * are failures; a lost connection must be replaced in time (resume.c). Silence takes none of
 * that time if the host refuses an attempt at port 0, where nobody can listen: then only the
 * queue is full, since a path that is gone carries no refusal. Firewalls mislead us. One that
 * drops attempts at port 0 lets a full queue take that time. One that drops attempts at our
 * ports and rejects others makes us wait up to the operation's deadline.
 *
 * Strangers may connect all the time. A connection is a stranger's until its hello has the
 * random number of our card. A rank's may be one for as long as its hello takes, so all others
 * may connect at once. Beyond that, the oldest stranger loses its place to a new connection if
 * it had time for a hello, or if no place at all is left.
 *
 * H: the hello (ranks, lane, epoch, the addressed process, fresh nonce of the connecting rank),
 * A: the answer (fresh nonce of the accepting rank, how much of the lane it has, or that it is
 * another process: the port of an ended process may belong to any process that has the secret).
 * The proofs (transport/proof.h) are those of asker and answerer.
 *   -> H      <- A, proof of the answerer      -> proof of the asker */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "transport/proof.h"
#include "transport/bootstrap/conn.h"
#include "transport/tcp/tcp.h"

#define CONNECT_AGAIN_NS                                                                       \
    500000000u /* for a lost connection, or after silence: the peer may be back at any moment  \
                */
#define ROUNDS_MAX       6 /* times that all addresses of a peer may fail */
#define ROUNDS_MIN       2 /* however late it is: we may have been away since the first */
#define BACKOFF_NS       20000000u /* after the first round; doubles */
#define AGAIN_SHIFT_MAX  3         /* limit of that for a lost connection */
#define ACCEPTS_PER_POLL 64
#define STARVED_LOOK_NS  1000000u
#define HELLO_NS         50000000u /* a connected rank's hello takes less, or is late */

static struct bny_transcript said(const struct tcp_conn *c)
{
    return (struct bny_transcript){ .secret = c->tp->secret,
                                    .asked = &c->hello,
                                    .asked_len = sizeof c->hello,
                                    .answered = &c->answer,
                                    .answered_len = sizeof c->answer };
}

/* Only who knows the secret can tell `got` of the answer from a random number. */
static uint64_t pad_of(const struct tcp_conn *c)
{
    struct bny_transcript t = said(c);
    uint8_t bytes[BNY_PROOF_BYTES];
    uint64_t pad;

    t.answered = c->answer.nonce;
    t.answered_len = sizeof c->answer.nonce;
    bny_proof_make(bytes, &t, BNY_PROOF_PAD);
    memcpy(&pad, bytes, sizeof pad);
    return pad;
}

/* A handshake message is far smaller than an empty socket buffer, so a short write is an
 * error. */
static int send_all(struct tcp_conn *c, const void *data, size_t len)
{
    ssize_t n;

    do
        n = send(c->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)len ? 0 : -1;
}

/* Collects exactly len bytes in c->hs. 1: complete. 0: not yet. -1: the end. */
static int recv_all(struct tcp_conn *c, uint32_t len)
{
    while (c->hs_have < len) {
        ssize_t n = recv(c->fd, c->hs + c->hs_have, len - c->hs_have, MSG_DONTWAIT);

        if (n > 0)
            c->hs_have += (uint32_t)n;
        else if (n < 0 && errno == EINTR)
            continue;
        else
            return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : -1;
    }
    c->hs_have = 0;
    return 1;
}

static void become_open(struct tcp_conn *c)
{
    c->state = TCP_OPEN;
    c->readable = c->writable = 1; /* the handshake consumed all earlier edges */
    bny_tcp_activate(c);
}

void bny_tcp_keys_make(const struct tcp_tp *t, struct tcp_keys *k)
{
    memset(k->secret, 0, sizeof k->secret);
    randombytes_buf(k->public, sizeof k->public);
    if (t->integrity == BNY_PLAIN)
        return;
    randombytes_buf(k->secret, sizeof k->secret);
    crypto_scalarmult_base(k->public, k->secret);
    bny_secret_forget();
}

/* What both ends alone know, from the keys of the handshake. -1: the peer's is no key. */
static int share(const struct tcp_conn *c, uint8_t shared[32])
{
    const uint8_t *secret = c->outgoing ? c->keys.secret : c->tp->keys->secret,
                  *other = c->outgoing ? c->answer.key : c->hello.key;

    if (c->sec || c->tp->integrity == BNY_PLAIN)
        return 0;
    return crypto_scalarmult(shared, secret, other);
}

/* Makes the lane's key, if it has one. Wipes shared. -1: no memory. */
static int secure(struct tcp_conn *c, uint8_t shared[32])
{
    struct tcp_lane_id id = { .from = c->hello.from,
                              .to = c->hello.to,
                              .lane = c->hello.lane,
                              .cipher = c->answer.cipher };

    if (c->sec || c->tp->integrity == BNY_PLAIN)
        return 0;
    memcpy(id.asker, c->hello.key, sizeof id.asker);
    memcpy(id.answerer, c->answer.key, sizeof id.answerer);
    memcpy(id.shared, shared, sizeof id.shared);
    c->sec = bny_tcp_secure_new(c->tp->secret, &id, c->outgoing);
    sodium_memzero(id.shared, sizeof id.shared);
    sodium_memzero(shared, sizeof id.shared);
    if (c->sec)
        sodium_memzero(c->keys.secret, sizeof c->keys.secret);
    if (c->sec && !c->tp->told++)
        bny_info("tcp: data are protected by %s", bny_tcp_cipher_name(c->sec->cipher));
    return c->sec ? 0 : -1;
}

/* ---- connecting ---- */

static void try_candidate(struct tcp_conn *c);

void bny_tcp_join_begin(struct tcp_conn *c)
{
    struct tcp_tp *t = c->tp;

    c->next_connecting = t->connecting;
    c->at_connecting = &t->connecting;
    if (t->connecting)
        t->connecting->at_connecting = &c->next_connecting;
    t->connecting = c;
}

void bny_tcp_join_end(struct tcp_conn *c)
{
    if (!c->at_connecting)
        return;
    if (c->tp->timers_next == c)
        c->tp->timers_next = c->next_connecting;
    *c->at_connecting = c->next_connecting;
    if (c->next_connecting)
        c->next_connecting->at_connecting = c->at_connecting;
    c->at_connecting = NULL;
}

static int gives_up(const struct tcp_conn *c, uint64_t now)
{
    if (c->resuming) /* an operation waits: shorter than for a network failure */
        return bny_tcp_resume_gives_up(c, now) ||
               (c->lacks_ns && now - c->lacks_ns > TCP_STARVED_NS);
    return c->round >= ROUNDS_MAX || (now >= c->give_up_ns && c->round >= ROUNDS_MIN);
}

/* Errors of this process, not of the peer. */
static int is_ours(int err)
{
    return err == EMFILE || err == ENFILE || err == ENOMEM || err == ENOBUFS;
}

static void tcp_join_give_up(struct tcp_conn *c)
{
    char text[BNY_ADDR_TEXT], reason[180];

    bny_tcp_join_end(c);
    if (c->lacks) { /* the next poll reports it; the peer is well */
        c->tp->lacks = c->lacks;
        c->state = TCP_CLOSED;
        return;
    }
    snprintf(reason, sizeof reason, "cannot connect to it %sat %s: %s",
             c->resuming ? "again " : "", bny_addr_text(&c->addr, text), c->why);
    c->state = TCP_CLOSED;
    bny_tcp_gone(c->ep, reason);
}

/* The attempt failed (why; NULL: there was none): tries the next address, later the next round,
 * until the peer is down. */
static void try_next(struct tcp_conn *c, const char *why)
{
    uint64_t now = bny_now_ns();
    int wait;

    if (why)
        snprintf(c->why, sizeof c->why, "%s", why);
    if (c->fd >= 0)
        bny_tcp_abort(c->fd);
    c->fd = -1;
    c->hs_have = 0;
    if (++c->candidate < (int)c->ep->naddrs) {
        try_candidate(c);
        return;
    }
    if (c->spared)
        c->give_up_ns = now + (c->resuming ? c->tp->replace_ns : TCP_CONNECT_NS);
    else
        c->round++;
    c->refusals += c->tried && c->tried == c->refused;
    if (gives_up(c, now)) {
        tcp_join_give_up(c);
        return;
    }
    wait = c->resuming && c->round > AGAIN_SHIFT_MAX ? AGAIN_SHIFT_MAX : c->round;
    c->candidate = c->spared = c->tried = c->refused = 0;
    c->state = TCP_BACKOFF;
    c->retry_ns = now + ((uint64_t)BACKOFF_NS << wait);
}

/* The addresses in the order of the blob; on our own host loopback first, else without
 * loopback. */
static const struct bny_addr *candidate(const struct tcp_ep *e, int index)
{
    int n = (int)e->naddrs, nth = 0;

    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n; i++) {
            int loopback = bny_addr_is_loopback(&e->addrs[i]);

            if (loopback != (pass == (e->same_host ? 0 : 1)) || (loopback && !e->same_host))
                continue;
            if (nth++ == index)
                return &e->addrs[i];
        }
    return NULL;
}

/* Warns that this rank waits for an answer: the peer's queue of connections is full, or a
 * firewall drops attempts. */
static void tell_unheard(struct tcp_conn *c)
{
    char text[BNY_ADDR_TEXT];

    bny_warn("tcp: rank %d at %s does not answer connection attempts; this rank waits for "
             "it, up to op_timeout_s. If rank %d does not compute, a firewall may drop the "
             "attempts: open the ports of BANYAN_PORT_RANGE",
             c->ep->ep.peer, bny_addr_text(&c->addr, text), c->ep->ep.peer);
}

/* An attempt to connect, or one at port 0, failed with err, or in silence: ETIMEDOUT. */
static void failed(struct tcp_conn *c, int err)
{
    int refused = err == ECONNREFUSED;

    if (!c->sounding) {
        c->refused += refused;
        try_next(c, strerror(err));
        return;
    }
    c->sounding = 0;
    c->spared |= refused;
    if (refused && c->unheard++ == 0)
        tell_unheard(c);
    try_next(c, refused || err == ETIMEDOUT ? "no answer" : strerror(err));
}

static void try_candidate(struct tcp_conn *c)
{
    const struct bny_addr *a = candidate(c->ep, c->candidate);
    struct bny_addr at;
    uint64_t now = bny_now_ns();

    if (!a) {
        c->candidate = (int)c->ep->naddrs;
        try_next(c, NULL);
        return;
    }
    at = c->addr = *a;
    if (c->sounding)
        at.port = 0;
    c->tried += !c->sounding;
    c->lacks = 0;
    c->fd = bny_fd_own(bny_net_connect(&at));
    if (c->fd < 0) {
        int err = -c->fd;

        c->fd = -1;
        c->lacks = is_ours(err) ? err : 0;
        c->lacks_ns = !c->lacks ? 0 : c->lacks_ns ? c->lacks_ns : now;
        failed(c, err);
        return;
    }
    c->lacks_ns = 0;
    c->state = TCP_CONNECTING;
    c->begun_ns = now;
    c->deadline_ns = now + (c->resuming || c->unheard ? CONNECT_AGAIN_NS : TCP_HANDSHAKE_NS);
    bny_tcp_watch(c);
}

/* The connection ended in the handshake. The other end needed its place for another, or gave it
 * up after 5 s, possibly because of us. */
static void cut_short(struct tcp_conn *c, const char *why)
{
    c->spared |= !c->resuming || bny_now_ns() - c->begun_ns >= TCP_HANDSHAKE_NS - 1000000000u;
    try_next(c, why);
}

/* No answer came in 5 s. Its kernel's queue of connections may be full, of strangers' if it has
 * never accepted one. */
static void not_answered(struct tcp_conn *c)
{
    char text[BNY_ADDR_TEXT];

    c->spared |= c->silences > 0 || !c->resuming;
    if (c->state == TCP_CONNECTING && !c->resuming && c->unheard++ == (int)c->ep->naddrs)
        tell_unheard(c);
    if (c->state == TCP_CONNECTING && c->resuming) {
        if (c->sounding) {
            failed(c, ETIMEDOUT);
            return;
        }
        bny_tcp_abort(c->fd);
        c->sounding = 1;
        try_candidate(c);
        return;
    }
    if (c->state == TCP_CHALLENGE) {
        if (c->silences++ == 0)
            bny_info("tcp: rank %d at %s accepts connections and does not answer yet; waiting "
                     "for it",
                     c->ep->ep.peer, bny_addr_text(&c->addr, text));
        c->spared = 1;
        if (!candidate(c->ep, 1)) { /* else it may be foreign, and another address the rank's */
            c->deadline_ns = UINT64_MAX;
            return;
        }
    }
    try_next(c, c->resuming ? "no answer" : "no answer in 5 s");
}

void bny_tcp_start_connect(struct tcp_conn *c)
{
    c->candidate = c->round = c->spared = c->silences = c->unheard = 0;
    c->tried = c->refused = 0;
    bny_tcp_keys_make(c->tp, &c->keys);
    snprintf(c->why, sizeof c->why, "none of its addresses is of use here");
    c->give_up_ns = bny_now_ns() + TCP_CONNECT_NS;
    bny_tcp_join_begin(c);
    try_candidate(c);
}

static void tcp_join_connected(struct tcp_conn *c)
{
    int err = 0;
    socklen_t len = sizeof err;
    struct sockaddr_storage ss;

    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0)
        err = errno;
    if (!c->sounding && (err == ECONNRESET || err == EPIPE)) { /* it was connected */
        cut_short(c, strerror(err));
        return;
    }
    if (err) {
        failed(c, err);
        return;
    }
    len = sizeof ss;
    if (getpeername(c->fd, (struct sockaddr *)&ss, &len) != 0)
        return;
    if (c->sounding) { /* a proxy has all ports */
        failed(c, ETIMEDOUT);
        return;
    }
    c->epoch += c->resuming;
    memset(&c->hello, 0, sizeof c->hello);
    c->hello.epoch = c->epoch;
    c->hello.integrity = (uint8_t)c->tp->integrity;
    c->hello.ciphers = (uint8_t)c->tp->ciphers;
    memcpy(c->hello.key, c->keys.public, sizeof c->hello.key);
    memcpy(c->hello.magic, "bnyT", 4);
    c->hello.wire = BNY_WIRE_VERSION;
    c->hello.lane = (uint16_t)c->lane;
    c->hello.from = c->tp->tp.rank;
    c->hello.to = c->ep->ep.peer;
    memcpy(c->hello.instance, c->ep->instance, sizeof c->hello.instance);
    randombytes_buf(c->hello.nonce, sizeof c->hello.nonce);
    c->state = TCP_CHALLENGE;
    c->deadline_ns = bny_now_ns() + (TCP_HANDSHAKE_NS << (c->silences < 2 ? c->silences : 2));
    if (send_all(c, &c->hello, sizeof c->hello) != 0)
        cut_short(c, "the connection broke in the handshake");
}

static int cipher_fits(const struct tcp_conn *c)
{
    if (c->tp->integrity == BNY_PLAIN)
        return c->answer.cipher == TCP_NO_CIPHER;
    if (c->sec)
        return c->answer.cipher == c->sec->cipher;
    return c->answer.cipher <= TCP_CHACHA && c->tp->ciphers >> c->answer.cipher & 1;
}

static void challenged(struct tcp_conn *c)
{
    uint8_t mine[BNY_PROOF_BYTES], shared[32], more;
    struct bny_transcript t;
    int rc = recv_all(c, sizeof c->answer + BNY_PROOF_BYTES);

    if (rc < 0)
        cut_short(c,
                  "it closed the connection in the handshake; does it have the same secret?");
    if (rc <= 0)
        return;
    memcpy(&c->answer, c->hs, sizeof c->answer);
    c->answer.got ^= pad_of(c);
    t = said(c);
    if (!bny_proof_is_good(c->hs + sizeof c->answer, BNY_PROOF_BYTES, &t, BNY_PROOF_ANSWERER)) {
        c->refused++;
        try_next(c, "the process that listens there does not know the job's secret");
        return;
    }
    if (c->answer.got == TCP_NOT_ME) {
        c->refused++;
        try_next(c, "another process listens there, or another BANYAN_INTEGRITY");
        return;
    }
    if (!cipher_fits(c)) {
        try_next(c, "it chose a cipher that was not offered");
        return;
    }
    if (share(c, shared) != 0) {
        try_next(c, "it sent no key");
        return;
    }
    if (secure(c, shared) != 0) {
        c->lacks = ENOMEM;
        try_next(c, strerror(ENOMEM));
        return;
    }
    bny_proof_make(mine, &t, BNY_PROOF_ASKER);
    /* A connection that the peer gave up would open, and its end would look like a death. */
    if (recv(c->fd, &more, 1, MSG_PEEK | MSG_DONTWAIT) == 0 ||
        send_all(c, mine, sizeof mine) != 0) {
        cut_short(c, "the connection broke in the handshake");
        return;
    }
    if (bny_tcp_resumed(c) != 0)
        return;
    bny_tcp_join_end(c);
    become_open(c);
}

void bny_tcp_join_lost(struct tcp_conn *c)
{
    try_next(c, "its path is gone");
}

/* ---- accepting ---- */

static void no_half(struct tcp_conn *c)
{
    struct tcp_tp *t = c->tp;

    for (int i = 0; i < t->nhalf; i++)
        if (t->half[i] == c)
            t->half[i] = t->half[--t->nhalf];
}

/* Freed after the batch of socket events, which may still refer to it. */
static void bury(struct tcp_conn *c)
{
    if (c->fd >= 0) {
        /* In a child of fork the socket may outlive this, and so would its events. */
        epoll_ctl(c->tp->epfd, EPOLL_CTL_DEL, c->fd, NULL);
        /* A peer that considers it open gets a reset, since an orderly end would mean our
         * death. */
        bny_tcp_abort(c->fd);
    }
    c->fd = -1;
    c->state = TCP_CLOSED;
    c->next_active = c->tp->grave;
    c->tp->grave = c;
}

/* why NULL: it may be a rank that gave up, or one that probes ports. */
static void drop_half(struct tcp_conn *c, const char *why)
{
    struct tcp_tp *t = c->tp;
    uint64_t now = bny_now_ns();
    char text[BNY_ADDR_TEXT];

    no_half(c);
    if (c->starved)
        t->unopened_ns = 0;
    if (!why && c->state == TCP_HELLO) {
        bny_info("tcp: %s probed this port", bny_addr_text(&c->addr, text));
    } else if (!why) {
        bny_info("tcp: %s, which claims to be rank %d, gave up on its connection",
                 bny_addr_text(&c->addr, text), c->hello.from);
    } else if (now - t->foreign_log_ns >= 1000000000u || t->foreign_log_ns == 0) {
        bny_warn("tcp: dropped a connection from %s, which did not prove to be a rank of this "
                 "job: %s%s",
                 bny_addr_text(&c->addr, text), why,
                 t->foreign_held ? " (and others in the last second)" : "");
        t->foreign_log_ns = now;
        t->foreign_held = 0;
    } else {
        t->foreign_held++;
    }
    bury(c);
}

/* The oldest half-open connection of a stranger, or of a process that has named us; NULL: none.
 * Counts these. */
static struct tcp_conn *oldest_half(const struct tcp_tp *t, int names_us, int *count)
{
    struct tcp_conn *oldest = NULL;

    *count = 0;
    for (int i = 0; i < t->nhalf; i++) {
        struct tcp_conn *c = t->half[i];

        if (c->names_us != names_us)
            continue;
        ++*count;
        if (!oldest || c->deadline_ns < oldest->deadline_ns)
            oldest = c;
    }
    return oldest;
}

/* Since its accept, or its hello. */
static uint64_t age_ns(const struct tcp_conn *c)
{
    return bny_now_ns() + TCP_HANDSHAKE_NS - c->deadline_ns;
}

/* All ranks may be strangers at the same time. */
static int places_of_strangers(const struct tcp_tp *t)
{
    return t->tp.nranks > TCP_STRANGERS_MIN ? t->tp.nranks : TCP_STRANGERS_MIN;
}

/* The connection that loses its place to a new one; NULL: there is room. */
static struct tcp_conn *loser(const struct tcp_tp *t)
{
    int strangers, ranks;
    struct tcp_conn *stranger = oldest_half(t, 0, &strangers);

    if (t->nhalf == TCP_HALF_MAX)
        return stranger ? stranger : oldest_half(t, 1, &ranks);
    return strangers >= places_of_strangers(t) && age_ns(stranger) >= HELLO_NS ? stranger
                                                                               : NULL;
}

/* An honest handshake takes milliseconds; allow a burst of them one second. */
static int may_lose(const struct tcp_conn *c)
{
    return !c || !c->names_us || age_ns(c) >= 1000000000u;
}

static void make_room(struct tcp_tp *t)
{
    for (struct tcp_conn *c = loser(t); c; c = loser(t)) {
        bny_tcp_join_event(c); /* its input that has arrived counts */
        if (loser(t) != c)
            continue;
        drop_half(c, "too many half-open connections");
        return;
    }
}

void bny_tcp_accept(struct tcp_tp *t, int listener)
{
    for (int i = 0; i < ACCEPTS_PER_POLL && may_lose(loser(t)); i++) {
        struct bny_addr addr;
        struct tcp_conn *c;
        int fd;

        if (!t->spare)
            t->spare = calloc(1, sizeof *t->spare);
        c = t->spare; /* before the accept: closing an accepted connection costs a try */
        fd = c ? bny_net_accept(listener, &addr) : -ENOMEM;
        t->starved_by = is_ours(-fd) ? -fd : 0;
        t->starved_ns = !t->starved_by ? 0 : t->starved_ns ? t->starved_ns : bny_now_ns();
        if (fd < 0)
            return;
        make_room(t);
        t->spare = NULL;
        c->fd = bny_fd_own(fd);
        c->tp = t;
        c->addr = addr;
        c->state = TCP_HELLO;
        c->deadline_ns = bny_now_ns() + TCP_HANDSHAKE_NS;
        t->half[t->nhalf++] = c;
        bny_tcp_watch(c);
        bny_tcp_join_event(c);
    }
}

/* The peer considers it open, and closing it would be a loss. The proof stays in the socket
 * until the next poll. */
static void wait_for_memory(struct tcp_conn *c)
{
    struct tcp_tp *t = c->tp;

    c->hs_have = BNY_PROOF_BYTES;
    c->starved = 1;
    t->unopened_ns = t->unopened_ns ? t->unopened_ns : bny_now_ns();
}

/* The peer had the same address, or has ended and its port is ours now; or it has another
 * setting than we: an answer tells it, since it tries again after a mere end. */
static int means_another(const struct tcp_conn *c)
{
    return memcmp(c->hello.instance, c->tp->blob.instance, sizeof c->hello.instance) != 0 ||
           c->hello.integrity != c->tp->integrity;
}

static void take_proof(struct tcp_conn *c)
{
    struct tcp_tp *t = c->tp;
    struct bny_transcript said_here;
    struct tcp_conn *in;
    struct tcp_ep *e;
    uint8_t shared[32];
    int rc = recv_all(c, BNY_PROOF_BYTES);

    if (rc < 0)
        drop_half(c, NULL);
    if (rc <= 0)
        return;
    said_here = said(c);
    if (!bny_proof_is_good(c->hs, BNY_PROOF_BYTES, &said_here, BNY_PROOF_ASKER)) {
        drop_half(c, "it does not know the job's secret");
        return;
    }
    if (!c->names_us) {
        drop_half(c, "it looks for another process");
        return;
    }
    e = bny_tcp_ep(t, c->hello.from);
    in = e ? e->in[c->hello.lane] : NULL;
    if (e && (e->down || (in ? c->hello.epoch <= in->epoch : c->answer.got != 0))) {
        drop_half(c, "that rank is connected already, or has died");
        return;
    }
    if (!in && share(c, shared) != 0) {
        drop_half(c, "it sent no key");
        return;
    }
    if (!e || (!in && secure(c, shared) != 0)) {
        wait_for_memory(c);
        return;
    }
    if (in && bny_tcp_follow(in, c) != 0) {
        drop_half(c, NULL);
        return;
    }
    no_half(c);
    if (c->starved)
        t->unopened_ns = c->starved = 0;
    if (in) {
        bury(c);
        return;
    }
    c->ep = e;
    c->lane = c->hello.lane;
    c->epoch = c->hello.epoch;
    e->in[c->lane] = c;
    e->ep.coming++;
    become_open(c);
}

void bny_tcp_join_half(struct tcp_tp *t, int rank)
{
    for (int i = 0; i < t->nhalf; i++) {
        struct tcp_conn *c = t->half[i];

        if (c->state != TCP_PROOF || c->hello.from != rank)
            continue;
        take_proof(c);
        i = c->state == TCP_PROOF ? i : -1; /* the table has changed */
    }
}

/* How much of the lane is here, including connections whose proof has arrived but is unread. */
static uint64_t announce(struct tcp_conn *c)
{
    struct tcp_tp *t = c->tp;
    const struct tcp_ep *e;

    if (!c->hello.epoch)
        return 0;
    bny_tcp_join_half(t, c->hello.from);
    e = t->eps[c->hello.from];
    return e && e->in[c->hello.lane] ? bny_tcp_announce(e->in[c->hello.lane]) : 0;
}

/* The lane has too many unread sockets: the rank must retry. */
static int is_behind(const struct tcp_conn *c)
{
    const struct tcp_ep *e = c->tp->eps[c->hello.from];

    return e && e->in[c->hello.lane] && e->in[c->hello.lane]->nnext == TCP_NEXT_MAX;
}

/* A hello to this process. 1: dropped. */
static int refuses(struct tcp_conn *c)
{
    const struct tcp_hello *h = &c->hello;

    if (h->to != c->tp->tp.rank || h->from < 0 || h->from >= c->tp->tp.nranks ||
        h->from == h->to || h->lane >= TCP_LANES)
        drop_half(c, "its ranks do not match this job");
    else if (is_behind(c))
        drop_half(c, NULL);
    else
        return 0;
    return 1;
}

/* A root that probes its ports for another root (gather_root.c), or any program that connects
 * and sends nothing. */
static int is_probe(const struct tcp_conn *c)
{
    return !c->hs_have || bny_conn_is_hello(c->hs, c->hs_have);
}

static void take_hello(struct tcp_conn *c)
{
    uint8_t answer[sizeof c->answer + BNY_PROOF_BYTES];
    struct bny_transcript t;
    int rc = recv_all(c, sizeof c->hello);
    const struct tcp_hello *h = &c->hello;
    uint64_t pad;

    if (rc < 0)
        drop_half(c, is_probe(c) ? NULL : "it closed the connection within its hello");
    if (rc <= 0)
        return;
    memcpy(&c->hello, c->hs, sizeof c->hello);
    if (memcmp(h->magic, "bnyT", 4) != 0 || h->wire != BNY_WIRE_VERSION) {
        drop_half(c, "it does not speak this protocol");
        return;
    }
    c->names_us = !means_another(c);
    if (c->names_us && refuses(c))
        return;
    randombytes_buf(c->answer.nonce, sizeof c->answer.nonce);
    memcpy(c->answer.key, c->tp->keys->public, sizeof c->answer.key);
    c->answer.cipher = (uint8_t)bny_tcp_cipher_choose(c->tp->ciphers, h->ciphers);
    c->answer.got = c->names_us ? announce(c) : TCP_NOT_ME;
    pad = pad_of(c);
    t = said(c);
    c->answer.got ^= pad;
    memcpy(answer, &c->answer, sizeof c->answer);
    c->answer.got ^= pad;
    bny_proof_make(answer + sizeof c->answer, &t, BNY_PROOF_ANSWERER);
    c->state = TCP_PROOF;
    c->deadline_ns = bny_now_ns() + TCP_HANDSHAKE_NS;
    if (send_all(c, answer, sizeof answer) != 0)
        drop_half(c, "the connection broke in the handshake");
    else
        bny_tcp_join_event(c);
}

void bny_tcp_join_event(struct tcp_conn *c)
{
    switch (c->state) {
    case TCP_CONNECTING: tcp_join_connected(c); break;
    case TCP_CHALLENGE: challenged(c); break;
    case TCP_HELLO: take_hello(c); break;
    case TCP_PROOF: take_proof(c); break;
    default: break;
    }
}

/* ---- deadlines ---- */

/* If this rank was away, more events may wait than one pass handles: all input that has arrived
 * counts. 1: it is too late even so. */
static int too_late(struct tcp_conn *c, uint64_t now)
{
    if (now < c->deadline_ns)
        return 0;
    bny_tcp_join_event(c);
    return now >= c->deadline_ns;
}

static int asks(const struct tcp_conn *c)
{
    return c->state == TCP_CONNECTING || c->state == TCP_CHALLENGE;
}

void bny_tcp_join_timers(struct tcp_tp *t)
{
    uint64_t now;

    if (t->nhalf == 0 && !t->connecting)
        return;
    now = bny_now_ns();
    for (int i = t->nhalf - 1; i >= 0; i--) {
        struct tcp_conn *c = t->half[i];

        if (c->starved)
            take_proof(c);
        else if (too_late(c, now) && (c->state == TCP_HELLO || c->state == TCP_PROOF))
            drop_half(c, "it did not finish the handshake in 5 s");
    }
    t->timers_next = t->connecting;
    while (t->timers_next) { /* any may leave the list meanwhile */
        struct tcp_conn *c = t->timers_next;

        t->timers_next = c->next_connecting;
        if (c->state == TCP_BACKOFF && now >= c->retry_ns)
            try_candidate(c);
        else if (asks(c) && too_late(c, now) && asks(c))
            not_answered(c);
    }
}

uint64_t bny_tcp_join_next_ns(const struct tcp_tp *t)
{
    uint64_t next = UINT64_MAX;

    for (int i = 0; i < t->nhalf; i++) {
        const struct tcp_conn *c = t->half[i];
        uint64_t at = c->starved ? bny_now_ns() + STARVED_LOOK_NS : c->deadline_ns;

        next = at < next ? at : next;
    }
    for (const struct tcp_conn *c = t->connecting; c; c = c->next_connecting) {
        uint64_t at = c->state == TCP_BACKOFF ? c->retry_ns : c->deadline_ns;

        if (at < next)
            next = at;
    }
    return next;
}
