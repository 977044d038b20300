/* SPDX-License-Identifier: BSD-3-Clause */
/* Bytes on the sockets of the tcp transport. Byte 0:
 *   0  a stranger connects: it is never believed
 *   1  a stranger is connected to: the same
 *   2  a rank that knows the secret connects (with the next 96 bytes as its hello, of which
 *      magic, version and receiver are put right), and then sends frames. Each piece is one
 *      byte of how it is used, one of length, and the bytes
 *   3  the way back of a connection, on which nothing but a farewell may come
 *   4  as 2, and now and then the rank connects again, with another 96 bytes as its hello, and
 *      goes on there; or its connection is only cut
 *   5  as 4, in records that are checked, each piece one; or bytes as they are
 * Every byte that is lent is read; what is viewed comes front to back and is as long as its
 * header says. */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "input.h"

#include "base/clock.h"
#include "base/secret.h"
#include "transport/proof.h"
#include "transport/tcp/tcp.h"

#define NRANKS 3
#define HELD   8 /* messages, at most */

extern const struct bny_transport_ops bny_tcp_ops;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    banyan_set_log((banyan_log_fn)fuzz_no_log, NULL, BANYAN_LOG_ERROR);
    return sodium_init() < 0;
}

static const uint8_t secret[32];

/* As tcp_create makes it, without listeners. */
static struct tcp_tp *make(void)
{
    struct tcp_tp *t = calloc(1, sizeof *t);

    t->secret = secret;
    t->keys = bny_secret_new();
    EXPECT(t->keys);
    t->tp = (struct bny_tp){ .ops = &bny_tcp_ops, .rank = 1, .nranks = NRANKS };
    t->eps = calloc(NRANKS, sizeof(void *));
    t->active_tail = &t->active_head;
    t->replace_ns = 1000000000u;
    t->epfd = epoll_create1(EPOLL_CLOEXEC);
    EXPECT(t->epfd >= 0);
    return t;
}

/* An accepted connection; *fd is the peer's end. */
static struct tcp_conn *accepted(struct tcp_tp *t, int *fd)
{
    struct tcp_conn *c = calloc(1, sizeof *c);
    int fds[2];

    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    c->fd = fds[0];
    c->tp = t;
    c->state = TCP_HELLO;
    c->deadline_ns = bny_now_ns() + TCP_HANDSHAKE_NS;
    t->half[t->nhalf++] = c;
    bny_tcp_watch(c);
    *fd = fds[1];
    return c;
}

/* A connection that we opened, at the end of connecting; *fd is the peer's end. */
static struct tcp_conn *opened(struct tcp_tp *t, int *fd)
{
    struct tcp_ep *e = bny_tcp_ep(t, 0);
    struct tcp_conn *c = bny_tcp_out(e, 0);
    int fds[2];

    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    c->fd = fds[0];
    c->state = TCP_CONNECTING;
    c->deadline_ns = bny_now_ns() + TCP_HANDSHAKE_NS;
    c->give_up_ns = 0; /* an attempt that fails is the last */
    c->round = 100;
    bny_tcp_join_begin(c);
    e->claimed = 1;
    bny_tcp_watch(c);
    *fd = fds[1];
    return c;
}

static void proof(const struct tcp_tp *t, char role, const struct tcp_hello *h,
                  const void *answer, uint8_t out[32])
{
    crypto_auth_hmacsha512256_state st;

    crypto_auth_hmacsha512256_init(&st, t->secret, sizeof secret);
    crypto_auth_hmacsha512256_update(&st, (const uint8_t *)&role, 1);
    crypto_auth_hmacsha512256_update(&st, (const uint8_t *)h, sizeof *h);
    crypto_auth_hmacsha512256_update(&st, answer, sizeof(struct tcp_answer));
    crypto_auth_hmacsha512256_final(&st, out);
}

/* Puts the pad onto an answer's count, or takes it off. */
static void put_pad(const struct tcp_tp *t, const struct tcp_hello *h, uint8_t *answer)
{
    struct bny_transcript said = { .secret = t->secret,
                                   .asked = h,
                                   .asked_len = sizeof *h,
                                   .answered = answer,
                                   .answered_len = 32 };
    uint8_t pad[BNY_PROOF_BYTES];

    bny_proof_make(pad, &said, BNY_PROOF_PAD);
    for (int i = 0; i < 8; i++)
        answer[32 + i] ^= pad[i];
}

static void say(int fd, const void *data, size_t len)
{
    EXPECT(write(fd, data, len) == (ssize_t)len);
}

/* ---- strangers ---- */

static void stranger(struct input *in, struct tcp_tp *t, int connects)
{
    struct bny_event ev[4];
    int fd, gone = 0;

    if (connects)
        accepted(t, &fd);
    else
        opened(t, &fd);
    while (in->left && !gone) {
        size_t len;
        const uint8_t *at = input_take(in, 1 + input_byte(in), &len);

        say(fd, at, len);
        for (int i = 0; i < 3; i++) /* a step of the handshake each */
            bny_tcp_ops.poll(&t->tp, ev, 4);
        for (int r = 0; r < NRANKS; r++)
            for (int lane = 0; t->eps[r] && lane < TCP_LANES; lane++)
                EXPECT(!t->eps[r]->in[lane] &&
                       (!t->eps[r]->out[lane] || t->eps[r]->out[lane]->state != TCP_OPEN));
        gone = !t->nhalf && !t->connecting;
    }
    close(fd);
}

/* ---- a rank ---- */

static volatile unsigned sink;

static void read_all(const void *data, size_t len)
{
    const uint8_t *at = data;
    unsigned sum = 0;

    for (size_t i = 0; i < len; i++)
        sum += at[i];
    sink = sum;
}

struct held {
    struct bny_msg *msg[HELD];
    uint32_t viewed[HELD];
    int n;
};

static void release(struct held *h, int i)
{
    bny_tcp_release(h->msg[i]);
    h->n--;
    memmove(&h->msg[i], &h->msg[i + 1], (size_t)(h->n - i) * sizeof h->msg[0]);
    memmove(&h->viewed[i], &h->viewed[i + 1], (size_t)(h->n - i) * sizeof h->viewed[0]);
}

/* Bits of how: 0: release the first message, 1: the last; 2: view of the last; 3: into memory
 * of ours; 4-7: how much. */
static void use(struct held *h, unsigned how)
{
    static uint8_t place[1 << 16];
    int last = h->n - 1;

    if (last >= 0 && (how & 4) && !h->msg[last]->data) {
        uint32_t len = h->msg[last]->hdr.len - h->viewed[last], most = 64u << (how >> 4);
        const void *ptr;
        long n;

        most = most < sizeof place ? most : sizeof place;
        len = len < most ? len : most;
        n = len ? bny_tcp_view(h->msg[last], h->viewed[last], len, how & 8 ? place : NULL, &ptr)
                : 0;
        EXPECT(n <= (long)len);
        if (n > 0) {
            EXPECT(n % 64 == 0 || h->viewed[last] + (uint32_t)n == h->viewed[last] + len);
            read_all(ptr, (size_t)n);
            h->viewed[last] += (uint32_t)n;
        }
    }
    if (h->n && (how & 2))
        release(h, h->n - 1);
    if (h->n && ((how & 1) || h->n == HELD))
        release(h, 0);
}

static void take(struct tcp_tp *t, struct held *h)
{
    struct bny_event ev[HELD];
    int n = bny_tcp_ops.poll(&t->tp, ev, HELD - h->n);

    for (int i = 0; i < n; i++) {
        struct bny_msg *m = ev[i].msg;

        if (ev[i].kind != BNY_EV_MSG)
            continue;
        EXPECT(m->hdr.len <= TCP_PAYLOAD_MAX && m->hdr.chan < BNY_CHANNELS);
        EXPECT(m->data || m->hdr.len > TCP_EAGER_MAX);
        if (m->data)
            read_all(m->data, m->hdr.len);
        h->viewed[h->n] = 0;
        h->msg[h->n++] = m;
    }
}

/* Connects and proves itself. The lane that it is at the end of; NULL: it was refused. */
static struct tcp_conn *joined(struct input *in, struct tcp_tp *t, struct held *held, int *fd)
{
    struct tcp_hello hello;
    struct tcp_ep *e;
    uint8_t answer[sizeof(struct tcp_answer) + 32], mine[32];

    accepted(t, fd);
    input_copy(in, &hello, sizeof hello);
    memcpy(hello.magic, "bnyT", 4);
    hello.wire = BNY_WIRE_VERSION;
    hello.to = t->tp.rank;
    memcpy(hello.instance, t->blob.instance, sizeof hello.instance);
    hello.integrity = (uint8_t)t->integrity;
    hello.ciphers = (uint8_t)t->ciphers;
    crypto_scalarmult_base(hello.key, (const uint8_t[32]){ 7 });
    say(*fd, &hello, sizeof hello);
    take(t, held);
    if (read(*fd, answer, sizeof answer) != sizeof answer)
        return NULL;
    put_pad(t, &hello, answer);
    proof(t, 'C', &hello, answer, mine);
    say(*fd, mine, sizeof mine);
    take(t, held);
    e = t->eps[hello.from];
    EXPECT(e);
    e->claimed = 1;
    return e->in[hello.lane];
}

static struct tcp_secure *peer_of(const struct tcp_tp *t, const struct tcp_conn *c)
{
    struct tcp_lane_id id = { .from = c->hello.from,
                              .to = c->hello.to,
                              .lane = c->hello.lane,
                              .cipher = c->answer.cipher };

    memcpy(id.asker, c->hello.key, 32);
    memcpy(id.answerer, c->answer.key, 32);
    EXPECT(crypto_scalarmult(id.shared, t->keys->secret, c->hello.key) == 0);
    return bny_tcp_secure_new(t->secret, &id, 1);
}

static const uint8_t *sealed(struct tcp_secure *peer, const uint8_t *at, size_t *len)
{
    static uint8_t rec[TCP_KEPT_BYTES];

    memcpy(rec + TCP_RECORD_HEAD, at, *len);
    *len = bny_tcp_seal(peer, rec, (uint32_t)*len);
    return rec;
}

static void rank(struct input *in, struct tcp_tp *t, int again)
{
    struct held held = { .n = 0 };
    struct tcp_secure *peer = NULL;
    int fd[64], n = 1;
    struct tcp_conn *c = joined(in, t, &held, &fd[0]);

    EXPECT(c || t->nhalf == 0);
    while (c && in->left) {
        unsigned how = input_byte(in);
        size_t len;
        const uint8_t *at = input_take(in, input_byte(in), &len);
        uint64_t got = c->got;

        if (again && how % 16 == 3 && n < 64) {
            if (how & 16) {
                c->farewell_sent = 0;
                if (c->fd >= 0 && c->state == TCP_OPEN)
                    bny_tcp_lost(c, ECONNRESET);
            }
            joined(in, t, &held, &fd[n++]);
        }
        if (t->integrity && !peer && c->sec)
            peer = peer_of(t, c);
        if (peer && len && !(how & 32))
            at = sealed(peer, at, &len);
        if (send(fd[n - 1], at, len, MSG_NOSIGNAL) < 0 && !again)
            break; /* it broke the protocol */
        c->readable = 1;
        bny_tcp_activate(c);
        take(t, &held);
        use(&held, how);
        EXPECT(c->got >= got && (!c->ends || c->got < c->until));
    }
    while (held.n)
        release(&held, 0);
    while (n)
        close(fd[--n]);
    bny_tcp_secure_free(peer);
    for (int i = 0; i < 4; i++)
        take(t, &held);
}

static void way_back(struct input *in, struct tcp_tp *t)
{
    struct tcp_hello hello;
    struct tcp_conn *c;
    struct bny_event ev[4];
    uint8_t answer[sizeof(struct tcp_answer) + 32] = { 1 }, theirs[32];
    int fd;

    c = opened(t, &fd);
    bny_tcp_ops.poll(&t->tp, ev, 4);
    EXPECT(read(fd, &hello, sizeof hello) == sizeof hello);
    memset(answer + 32, 0, 8);
    answer[offsetof(struct tcp_answer, key)] = 9;
    proof(t, 'S', &hello, answer, answer + sizeof(struct tcp_answer));
    put_pad(t, &hello, answer);
    say(fd, answer, sizeof answer);
    bny_tcp_ops.poll(&t->tp, ev, 4);
    EXPECT(read(fd, theirs, sizeof theirs) == sizeof theirs && c->state == TCP_OPEN);
    while (in->left) {
        size_t len;
        const uint8_t *at = input_take(in, 1 + input_byte(in), &len);

        if (send(fd, at, len, MSG_NOSIGNAL) < 0)
            break;
        for (int i = 0, n = bny_tcp_ops.poll(&t->tp, ev, 4); i < n; i++)
            EXPECT(ev[i].kind == BNY_EV_DOWN);
    }
    close(fd);
    bny_tcp_ops.poll(&t->tp, ev, 4);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    struct tcp_tp *t = make();

    switch (input_byte(&in) % 6) {
    case 0: stranger(&in, t, 1); break;
    case 1: stranger(&in, t, 0); break;
    case 2: rank(&in, t, 0); break;
    case 4: rank(&in, t, 1); break;
    case 5:
        t->integrity = BNY_MAC;
        t->ciphers = bny_tcp_ciphers(BNY_MAC);
        rank(&in, t, 1);
        break;
    default: way_back(&in, t);
    }
    bny_tcp_ops.destroy(&t->tp);
    return 0;
}
