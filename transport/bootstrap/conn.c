/* SPDX-License-Identifier: BSD-3-Clause */
/* One TCP connection between two processes of a job: mutual authentication, then frames. */
#include "transport/bootstrap/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/secret.h"
#include "transport/proof.h"
#include "transport/wire.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire format is little endian"
#endif

#define HEADER        8
#define TAG           crypto_aead_chacha20poly1305_ietf_ABYTES
#define HANDSHAKE_MAX 128 /* payload bytes of a frame before the peer has proven itself */

enum frame_type { FRAME_HELLO = 0x796e6201, FRAME_PROOF, FRAME_AUTH, FRAME_DIFFERS };

static const char other_secret[] = "it does not know the job's secret";

void bny_conn_self_init(struct bny_conn_self *self, enum bny_conn_purpose purpose,
                        const uint8_t *secret, const uint8_t *job, int rank, int nranks)
{
    *self = (struct bny_conn_self){
        .secret = secret,
        .rank = rank,
        .nranks = nranks,
        .purpose = (uint16_t)purpose,
        .wire = BNY_WIRE_VERSION,
        .version =
            BANYAN_VERSION_MAJOR * 10000 + BANYAN_VERSION_MINOR * 100 + BANYAN_VERSION_PATCH,
    };
    memcpy(self->job, job, sizeof self->job);
}

static int ended(struct bny_conn *c, const char *why, int err)
{
    c->eof = 1;
    if (!c->why) {
        c->why = why;
        c->err = err;
    }
    return -1;
}

/* Asks epoll for input always, and for output while some is queued. */
static void arm(struct bny_conn *c)
{
    uint32_t want = c->eof ? 0 : EPOLLIN;

    if (c->state == BNY_CONN_CONNECTING || (bny_conn_unsent(c) && !c->mute))
        want |= EPOLLOUT;
    if (want == c->armed)
        return;
    struct epoll_event ev = { .events = want, .data.ptr = c };

    if (epoll_ctl(c->epfd,
                  !want      ? EPOLL_CTL_DEL
                  : c->armed ? EPOLL_CTL_MOD
                             : EPOLL_CTL_ADD,
                  c->fd, &ev) == 0)
        c->armed = want;
}

struct bny_conn *bny_conn_new(int fd, int epfd, int client, const struct bny_addr *peer,
                              const struct bny_conn_self *self, uint32_t frame_max)
{
    struct bny_conn *c = calloc(1, sizeof *c);

    if (!c) {
        close(fd);
        return NULL;
    }
    c->fd = bny_fd_own(fd);
    c->epfd = epfd;
    c->client = (uint8_t)client;
    c->peer = *peer;
    c->self = self;
    c->frame_max = frame_max;
    c->state = client ? BNY_CONN_CONNECTING : BNY_CONN_HELLO;
    c->since_ns = bny_now_ns();
    c->slot = c->expects = -1;
    memcpy(c->mine.magic, "bnyH", 4);
    c->mine.wire = self->wire;
    c->mine.purpose = self->purpose;
    c->mine.version = self->version;
    c->mine.rank = self->rank;
    c->mine.nranks = self->nranks;
    memcpy(c->mine.job, self->job, sizeof c->mine.job);
    randombytes_buf(c->mine.nonce, sizeof c->mine.nonce);
    arm(c);
    return c;
}

void bny_conn_free(struct bny_conn *c)
{
    char rest[4096];

    if (!c)
        return;
    for (int i = 0; i < 64 && recv(c->fd, rest, sizeof rest, MSG_DONTWAIT) > 0; i++)
        ;
    if (c->armed) /* in a child of fork the socket, and so its events, may outlive this */
        epoll_ctl(c->epfd, EPOLL_CTL_DEL, c->fd, NULL);
    bny_fd_close(c->fd);
    free(c->in);
    free(c->out);
    bny_secret_free(c->tx_key);
    free(c);
}

void bny_conn_break(struct bny_conn *c)
{
    struct linger at_once = { .l_onoff = 1 };

    if (c)
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    bny_conn_free(c);
}

/* ---- frames ---- */

static void frame_nonce(uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES],
                        uint64_t count)
{
    memset(nonce, 0, crypto_aead_chacha20poly1305_ietf_NPUBBYTES);
    memcpy(nonce, &count, sizeof count);
}

/* In place: len bytes of payload behind the header; the tag's room is behind them. */
static void frame_seal(struct bny_conn *c, uint8_t *frame, size_t len)
{
    uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];

    frame_nonce(nonce, c->tx_count++);
    crypto_aead_chacha20poly1305_ietf_encrypt(frame + HEADER, NULL, frame + HEADER, len, frame,
                                              HEADER, NULL, nonce, c->tx_key);
}

/* 0: the peer sent it, and the payload is plain now. */
static int frame_open(struct bny_conn *c, uint8_t *frame, size_t len)
{
    uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];

    frame_nonce(nonce, c->rx_count++);
    return crypto_aead_chacha20poly1305_ietf_decrypt(
        frame + HEADER, NULL, NULL, frame + HEADER, len + TAG, frame, HEADER, nonce, c->rx_key);
}

size_t bny_conn_unsent(const struct bny_conn *c)
{
    return c->out_len - c->out_at;
}

static void flush(struct bny_conn *c)
{
    while (!c->mute && c->out_at < c->out_len) {
        ssize_t n = send(c->fd, c->out + c->out_at, c->out_len - c->out_at,
                         MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n > 0)
            c->out_at += (size_t)n;
        else if (n < 0 && errno == EINTR)
            continue;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        else { /* the peer's earlier input is still readable; next() finds the end */
            c->mute = 1;
            c->mute_err = errno == EPIPE ? 0 : errno; /* the kernel reports it only once */
        }
    }
    if (c->mute || c->out_at == c->out_len)
        c->out_at = c->out_len = 0;
}

static int append(struct bny_conn *c, const void *data, size_t len)
{
    if (c->out_len + len > c->out_cap) {
        size_t cap = 2 * (c->out_len + len);
        uint8_t *more = realloc(c->out, cap);

        if (!more)
            return bny_fail(BANYAN_ENOMEM, "no memory for %zu bytes of output", cap);
        c->out = more;
        c->out_cap = cap;
    }
    if (len)
        memcpy(c->out + c->out_len, data, len);
    c->out_len += len;
    return 0;
}

static void conn_count(const struct bny_conn *c, size_t bytes)
{
    if (!c->self->tally)
        return;
    c->self->tally->frames++;
    c->self->tally->bytes += bytes;
}

static int put_parts(struct bny_conn *c, uint32_t type, const void *first, size_t first_len,
                     const void *data, size_t len, int sealed)
{
    size_t start = c->out_len, both = first_len + len;
    static const uint8_t room[TAG];
    uint32_t head[2] = { (uint32_t)both, type };
    int rc = append(c, head, HEADER);

    if (rc == 0)
        rc = append(c, first, first_len);
    if (rc == 0)
        rc = append(c, data, len);
    if (rc == 0 && sealed)
        rc = append(c, room, TAG);
    if (rc != 0) {
        c->out_len = start;
        return rc;
    }
    if (sealed)
        frame_seal(c, c->out + start, both);
    conn_count(c, c->out_len - start);
    flush(c);
    arm(c);
    return 0;
}

static int put_frame(struct bny_conn *c, uint32_t type, const void *data, size_t len,
                     int sealed)
{
    return put_parts(c, type, NULL, 0, data, len, sealed);
}

int bny_conn_is_hello(const void *bytes, size_t len)
{
    const uint32_t head[2] = { sizeof(struct bny_hello), FRAME_HELLO };

    return len >= sizeof head && memcmp(bytes, head, sizeof head) == 0;
}

int bny_conn_send_parts(struct bny_conn *c, uint32_t type, const void *head, size_t head_len,
                        const void *data, size_t len)
{
    return c->mute ? 0 : put_parts(c, type, head, head_len, data, len, 1);
}

int bny_conn_send(struct bny_conn *c, uint32_t type, const void *data, size_t len)
{
    return bny_conn_send_parts(c, type, NULL, 0, data, len);
}

/* Reads more input. 1: some came, 0: none now, -1: the end. */
static int conn_fill(struct bny_conn *c, size_t want)
{
    ssize_t n;

    if (c->in_at) {
        memmove(c->in, c->in + c->in_at, c->in_len - c->in_at);
        c->in_len -= c->in_at;
        c->in_at = 0;
    }
    if (want > c->in_cap) {
        uint8_t *more = realloc(c->in, want);

        if (!more)
            return ended(c, "no memory for its frame", ENOMEM);
        c->in = more;
        c->in_cap = want;
    }
    do
        n = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n > 0) {
        c->in_len += (size_t)n;
        return 1;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    c->fin = n == 0 && !c->mute;
    return ended(c, n == 0 ? "it closed the connection" : "the connection broke",
                 n < 0 ? errno : c->mute_err);
}

/* The next whole frame; sealed: whether it is. Results as bny_conn_next. */
static int get_frame(struct bny_conn *c, int sealed, uint32_t max, uint32_t *type,
                     const uint8_t **data, size_t *len)
{
    c->in_at += c->in_used;
    c->in_used = 0;
    for (;;) {
        size_t have = c->in_len - c->in_at, need = HEADER;
        uint32_t head[2];
        int rc;

        if (have >= HEADER) {
            memcpy(head, c->in + c->in_at, HEADER);
            if (head[0] > max)
                return ended(c, "it sent a frame that is too long (no banyan rank?)", 0);
            need = HEADER + head[0] + (sealed ? TAG : 0);
            if (have >= need) {
                uint8_t *frame = c->in + c->in_at;

                if (sealed && frame_open(c, frame, head[0]) != 0)
                    return ended(c, "it sent a frame that was altered in transit", 0);
                *type = head[1];
                *data = frame + HEADER;
                *len = head[0];
                c->in_used = need;
                conn_count(c, need);
                return 1;
            }
        }
        if (c->eof)
            return -1;
        rc = conn_fill(c, need > 256 ? need : 256);
        if (rc == 0)
            return 0;
        /* At the end loop once more: no whole frame can be left, and the check above returns
         * -1. */
    }
}

int bny_conn_next(struct bny_conn *c, uint32_t *type, const uint8_t **data, size_t *len)
{
    int rc = get_frame(c, 1, c->frame_max, type, data, len);

    if (rc < 0)
        arm(c);
    return rc;
}

/* ---- handshake ---- */

static struct bny_transcript said(const struct bny_conn *c)
{
    return (struct bny_transcript){ .secret = c->self->secret,
                                    .asked = c->client ? &c->mine : &c->theirs,
                                    .asked_len = sizeof c->mine,
                                    .answered = c->client ? &c->theirs : &c->mine,
                                    .answered_len = sizeof c->mine };
}

static int become_ready(struct bny_conn *c)
{
    struct bny_transcript t = said(c);

    c->tx_key = bny_secret_new();
    if (!c->tx_key)
        return ended(c, "no memory", ENOMEM);
    c->rx_key = c->tx_key + BNY_PROOF_BYTES;
    bny_proof_make(c->client ? c->tx_key : c->rx_key, &t, BNY_PROOF_KEY_OF_ASKER);
    bny_proof_make(c->client ? c->rx_key : c->tx_key, &t, BNY_PROOF_KEY_OF_ANSWERER);
    bny_secret_forget();
    c->state = BNY_CONN_READY;
    return 0;
}

static int service(int purpose)
{
    return purpose == BNY_CONN_ABORT ? BNY_CONN_BOOTSTRAP : purpose;
}

static int take_hello(struct bny_conn *c, const uint8_t *data)
{
    memcpy(&c->theirs, data, sizeof c->theirs);
    if (memcmp(c->theirs.magic, "bnyH", 4) != 0)
        return ended(c, "it does not speak banyan's protocol", 0);
    if (memcmp(c->theirs.job, c->self->job, sizeof c->theirs.job) != 0)
        return ended(c, "it belongs to another job", 0);
    c->astray = service(c->theirs.purpose) != service(c->self->purpose);
    if (c->astray)
        return ended(c, "it came for another service of this job", 0);
    c->known = 1;
    return 0;
}

/* The server has another secret. This frame tells it so; otherwise it would see only a client
 * that left. The server ends the connection; until then its kernel can report our user to it,
 * and ours reports the server's user to us before that end. */
static int differs(struct bny_conn *c)
{
    if (c->look)
        c->others = (uint8_t)bny_conn_is_another_users(c);
    if (c->differs || put_frame(c, FRAME_DIFFERS, NULL, 0, 0) != 0)
        return ended(c, other_secret, 0);
    c->differs = 1;
    c->why = other_secret;
    return 0;
}

static int on_frame(struct bny_conn *c, uint32_t type, const uint8_t *data, size_t len)
{
    uint8_t reply[sizeof c->mine + BNY_PROOF_BYTES];
    struct bny_transcript t;

    if (!c->client && c->state == BNY_CONN_HELLO) {
        if (type != FRAME_HELLO || len != sizeof c->theirs)
            return ended(c, "it does not speak banyan's protocol", 0);
        if (take_hello(c, data) != 0)
            return -1;
        memcpy(reply, &c->mine, sizeof c->mine);
        t = said(c);
        bny_proof_make(reply + sizeof c->mine, &t, BNY_PROOF_ANSWERER);
        c->state = BNY_CONN_PROOF;
        return put_frame(c, FRAME_PROOF, reply, sizeof reply, 0) == 0
                   ? 0
                   : ended(c, "no memory", ENOMEM);
    }
    if (c->client) {
        if (type != FRAME_PROOF || len != sizeof c->theirs + BNY_PROOF_BYTES)
            return ended(c, "it does not speak banyan's protocol", 0);
        if (take_hello(c, data) != 0)
            return -1;
        t = said(c);
        if (c->differs || !bny_proof_is_good(data + sizeof c->theirs, BNY_PROOF_BYTES, &t,
                                             BNY_PROOF_ANSWERER))
            return differs(c);
        /* Checked before our proof: until then the server does not know us, and we may
         * close. */
        if (c->expects >= 0 && c->theirs.rank != c->expects)
            return ended(c, "another rank answers there", 0);
        bny_proof_make(reply, &t, BNY_PROOF_ASKER);
        if (put_frame(c, FRAME_AUTH, reply, BNY_PROOF_BYTES, 0) != 0)
            return ended(c, "no memory", ENOMEM);
        return become_ready(c);
    }
    t = said(c);
    c->differs = type == FRAME_DIFFERS;
    if (type != FRAME_AUTH || !bny_proof_is_good(data, len, &t, BNY_PROOF_ASKER))
        return ended(c, other_secret, 0);
    return become_ready(c);
}

/* Is the connection made? 1: yes, 0: not yet, -1: it failed. */
static int conn_connected(struct bny_conn *c)
{
    int err = 0;
    socklen_t len = sizeof err;
    struct sockaddr_storage ss;

    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0)
        err = errno;
    if (err)
        return ended(c, "connecting failed", err);
    len = sizeof ss;
    return getpeername(c->fd, (struct sockaddr *)&ss, &len) == 0;
}

static int shake_hands(struct bny_conn *c)
{
    uint32_t type;
    const uint8_t *data;
    size_t len;
    int rc;

    if (c->state == BNY_CONN_CONNECTING) {
        rc = conn_connected(c);
        if (rc <= 0)
            return rc;
        c->state = BNY_CONN_HELLO;
        if (put_frame(c, FRAME_HELLO, &c->mine, sizeof c->mine, 0) != 0)
            return ended(c, "no memory", ENOMEM);
    }
    while (c->state != BNY_CONN_READY) {
        rc = get_frame(c, 0, HANDSHAKE_MAX, &type, &data, &len);
        if (rc <= 0)
            return rc;
        if (on_frame(c, type, data, len) != 0)
            return -1;
    }
    return 0;
}

int bny_conn_progress(struct bny_conn *c)
{
    int rc = 0;

    if (c->state != BNY_CONN_READY)
        rc = shake_hands(c);
    flush(c);
    arm(c);
    return rc < 0 ? -1 : c->state == BNY_CONN_READY;
}

int bny_conn_is_another_users(const struct bny_conn *c)
{
    uid_t uid;
    int rc = bny_net_peer_uid(c->fd, &uid);

    return rc == 1 || (rc == 0 && uid != geteuid());
}

void bny_foreign_drop(struct bny_foreign *f, const struct bny_conn *c, const char *why)
{
    uint64_t now = bny_now_ns();
    char text[BNY_ADDR_TEXT];

    if (c->astray) { /* ranks look for the root at several ports */
        bny_debug("ended a connection from %s: %s", bny_addr_text(&c->peer, text), why);
        return;
    }
    f->total++;
    if (f->last_ns && now - f->last_ns < 1000000000u) {
        f->held++;
        return;
    }
    if (f->held)
        bny_warn("dropped %llu more foreign connections", (unsigned long long)f->held);
    bny_warn("dropped a connection from %s, which did not prove to be a rank of this job: %s",
             bny_addr_text(&c->peer, text), why);
    f->held = 0;
    f->last_ns = now;
}
