/* SPDX-License-Identifier: BSD-3-Clause */
/* What is special about tcp: strangers on its ports, secrets, interfaces and port ranges. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <signal.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "tests/support/tpset.h"
#include "transport/bootstrap/conn.h"
#include "transport/tcp/tcp.h"

extern const struct bny_transport_ops bny_tcp_ops;

static const uint8_t secret[32] = "a secret of the tests, 32 bytes"; /* tpset's */

TestSuite(tcp, .timeout = 60);

static int make(struct bny_tp **tp, int rank, const uint8_t *key, const char *ifname,
                const char *range)
{
    struct bny_tp_config cfg = {
        .rank = rank, .nranks = 2, .secret = key, .ifname = ifname, .port_range = range
    };

    return bny_tcp_ops.create(tp, &cfg);
}

static void blob_of(struct bny_tp *tp, struct tcp_blob *blob)
{
    cr_assert_eq(bny_tcp_ops.address(tp, blob, sizeof *blob), (int)sizeof *blob);
}

/* A stranger's blocking socket, connected to where rank 1 listens on 127.0.0.1. Reads give up
 * after 8 s. */
static int stranger(const struct tcp_blob *blob)
{
    struct timeval limit = { .tv_sec = 8 };

    for (uint32_t i = 0; i < blob->count; i++) {
        struct sockaddr_in in = { .sin_family = AF_INET,
                                  .sin_port = htons(blob->addrs[i].port) };
        int fd;

        if (blob->addrs[i].family != 4)
            continue;
        memcpy(&in.sin_addr, blob->addrs[i].ip, 4);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        cr_assert_eq(connect(fd, (struct sockaddr *)&in, sizeof in), 0, "%s", strerror(errno));
        return fd;
    }
    cr_skip_test("this machine has no IPv4 address");
    return -1;
}

static void expect_traffic(struct tpset *s, uint32_t seq)
{
    for (int from = 0; from < 2; from++) {
        struct bny_hdr hdr = tpset_hdr((int)seq % BNY_CHANNELS, seq, 100);
        uint8_t buf[100];
        struct bny_msg *msg;

        tpset_fill(buf, 100, from, !from, seq);
        tpset_eager(s, from, !from, &hdr, buf);
        msg = tpset_wait(s, !from, BNY_EV_MSG).msg;
        cr_assert_eq(tpset_check(msg->data, 100, from, !from, seq), -1);
        s->ops->release(msg);
    }
}

/* Steps until the other end of fd is closed. */
static void expect_closed(struct tpset *s, int fd)
{
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
    char byte[64];

    for (;;) {
        ssize_t n = recv(fd, byte, sizeof byte, MSG_DONTWAIT);

        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            break;
        cr_assert(!bny_deadline_passed(deadline), "the stranger's connection is never closed");
        tpset_step(s);
    }
    close(fd);
}

Test(tcp, garbage_is_dropped_and_hurts_nobody)
{
    struct tpset s;
    uint64_t rng = 11;

    tpset_open(&s, &bny_tcp_ops, 2, NULL);
    for (uint32_t i = 0; i < 20; i++) {
        int fd = stranger((struct tcp_blob *)s.blob[1]);
        uint8_t junk[200];

        for (size_t k = 0; k < sizeof junk; k++)
            junk[k] = (uint8_t)bny_rng_next(&rng);
        if (i % 2) /* a plausible begin */
            memcpy(junk,
                   &(struct tcp_hello){ .magic = "bnyT",
                                        .wire = BNY_WIRE_VERSION,
                                        .to = 1,
                                        .from = i % 4 == 1 ? 0 : 7 },
                   sizeof(struct tcp_hello));
        cr_assert_gt(send(fd, junk, i ? sizeof junk : 10, MSG_NOSIGNAL), 0);
        if (i == 0)
            shutdown(fd, SHUT_WR);
        expect_traffic(&s, i);
        expect_closed(&s, fd);
    }
    cr_assert_eq(tpset_count(&s, 0, BNY_EV_DOWN) + tpset_count(&s, 1, BNY_EV_DOWN), 0);
    tpset_close(&s);
}

static void count_warnings(void *ctx, enum banyan_log_level level, const char *line)
{
    *(int *)ctx += level == BANYAN_LOG_WARN && strstr(line, "did not prove to be a rank");
}

/* The job's root probes ports where another root may listen (probe_ports() in gather_root.c).
 */
Test(tcp, a_probe_is_no_warning)
{
    enum { NOTHING, ROOT, OTHER, KINDS };
    struct bny_addr at = { 0 };
    struct bny_conn_self self;
    struct tpset s;
    int warnings = 0, epfd = epoll_create1(EPOLL_CLOEXEC);

    bny_conn_self_init(&self, BNY_CONN_CONTROL, (const uint8_t[32]){ 1 },
                       (const uint8_t[8]){ 2 }, 0, 2);
    tpset_open(&s, &bny_tcp_ops, 2, NULL);
    banyan_set_log(count_warnings, &warnings, BANYAN_LOG_INFO);
    for (int kind = 0; kind < KINDS; kind++) {
        int fd = stranger((struct tcp_blob *)s.blob[1]), seen = dup(fd);
        struct bny_conn *root = kind == ROOT ? bny_conn_new(fd, epfd, 1, &at, &self, 0) : NULL;

        cr_assert(!root || bny_conn_progress(root) == 0);
        cr_assert(kind != OTHER || send(fd, "bnyT", 4, MSG_NOSIGNAL) == 4);
        shutdown(fd, SHUT_WR);
        expect_closed(&s, seen);
        cr_assert_eq(warnings, kind == OTHER, "kind %d", kind);
        bny_conn_free(root);
        if (!root)
            close(fd);
    }
    close(epfd);
    expect_traffic(&s, 0);
    tpset_close(&s);
}

/* More silent strangers than there is room for; ranks still find each other, and the strangers
 * are thrown out. */
Test(tcp, half_open_strangers_do_not_keep_ranks_out)
{
    enum { N = TCP_HALF_MAX + 40 };
    struct tpset s;
    int fds[N];

    tpset_open(&s, &bny_tcp_ops, 2, NULL);
    for (int i = 0; i < N; i++) {
        fds[i] = stranger((struct tcp_blob *)s.blob[1]);
        tpset_step(&s);
    }
    expect_traffic(&s, 1);
    for (int i = 0; i < N; i++)
        expect_closed(&s, fds[i]);
    expect_traffic(&s, 2);
    tpset_close(&s);
}

Test(tcp, wrong_secret_never_connects)
{
    static const uint8_t other[32] = "another secret of the tests, 32";
    struct tpset s = { .ops = &bny_tcp_ops, .n = 2 };
    struct tcp_blob blob[2];
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    struct bny_event ev;

    for (int r = 0; r < 2; r++) {
        cr_assert_eq(make(&s.tp[r], r, r ? other : secret, "lo", ""), 0, "%s",
                     banyan_last_error());
        s.events[r] = calloc(TPSET_EVENTS, sizeof *s.events[r]);
        blob_of(s.tp[r], &blob[r]);
    }
    for (int r = 0; r < 2; r++)
        cr_assert_eq(bny_tcp_ops.connect(s.tp[r], !r, &blob[!r], sizeof blob[0], &s.ep[r][!r]),
                     0);
    cr_assert_eq(bny_tcp_ops.eager(s.ep[0][1], &hdr, NULL), BNY_AGAIN); /* starts to connect */
    ev = tpset_wait(&s, 0, BNY_EV_DOWN);
    cr_assert(strstr(ev.reason, "secret"), "%s", ev.reason);
    cr_assert_eq(tpset_count(&s, 1, BNY_EV_MSG) + tpset_count(&s, 1, BNY_EV_DOWN), 0);
    tpset_close(&s);
}

static void prove(const struct tcp_hello *hello, const void *answer, char role, uint8_t out[32])
{
    crypto_auth_hmacsha512256_state st;

    crypto_auth_hmacsha512256_init(&st, secret, 32);
    crypto_auth_hmacsha512256_update(&st, (const uint8_t *)&role, 1);
    crypto_auth_hmacsha512256_update(&st, (const uint8_t *)hello, sizeof *hello);
    crypto_auth_hmacsha512256_update(&st, answer, sizeof(struct tcp_answer));
    crypto_auth_hmacsha512256_final(&st, out);
}

/* Takes the pad off an answer's count, as proof.h defines it. */
static void unmask(const struct tcp_hello *hello, struct tcp_answer *answer)
{
    crypto_auth_hmacsha512256_state st;
    uint8_t pad[32];
    uint64_t word;

    crypto_auth_hmacsha512256_init(&st, secret, 32);
    crypto_auth_hmacsha512256_update(&st, (const uint8_t *)"p", 1);
    crypto_auth_hmacsha512256_update(&st, (const uint8_t *)hello, sizeof *hello);
    crypto_auth_hmacsha512256_update(&st, answer->nonce, sizeof answer->nonce);
    crypto_auth_hmacsha512256_final(&st, pad);
    memcpy(&word, pad, sizeof word);
    answer->got ^= word;
}

struct answered {
    struct tcp_answer answer;
    uint8_t proof[32];
};

/* Asks rank 1, as rank 0 on lane 0. What comes back, as it comes. */
static int ask_rank_1(struct tpset *s, uint32_t epoch, struct tcp_hello *hello,
                      struct answered *a)
{
    int fd = stranger((struct tcp_blob *)s->blob[1]);
    size_t have = 0;
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);

    *hello = (struct tcp_hello){
        .magic = "bnyT", .wire = BNY_WIRE_VERSION, .to = 1, .epoch = epoch
    };
    memcpy(hello->instance, ((struct tcp_blob *)s->blob[1])->instance, sizeof hello->instance);
    randombytes_buf(hello->nonce, sizeof hello->nonce);
    cr_assert_eq(send(fd, hello, sizeof *hello, MSG_NOSIGNAL), (ssize_t)sizeof *hello);
    while (have < sizeof *a) {
        ssize_t n = recv(fd, (uint8_t *)a + have, sizeof *a - have, MSG_DONTWAIT);

        have += n > 0 ? (size_t)n : 0;
        cr_assert(n != 0 && !bny_deadline_passed(deadline));
        tpset_step(s);
    }
    return fd;
}

/* How far the job is, by the bytes of a lane. */
Test(tcp, a_stranger_does_not_learn_what_a_lane_has_carried)
{
    struct bny_hdr hdr = tpset_hdr(0, 5, 0);
    struct tcp_hello hello;
    struct answered a[2];
    struct tpset s;
    int fds[2];

    tpset_open(&s, &bny_tcp_ops, 2, NULL);
    tpset_eager(&s, 0, 1, &hdr, NULL);
    s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
    for (int i = 0; i < 2; i++)
        fds[i] = ask_rank_1(&s, 1, &hello, &a[i]);
    cr_assert_neq(a[0].answer.got, sizeof hdr);
    cr_assert_neq(a[0].answer.got, a[1].answer.got);
    unmask(&hello, &a[1].answer);
    cr_assert_eq(a[1].answer.got, sizeof hdr);
    for (int i = 0; i < 2; i++)
        close(fds[i]);
    tpset_close(&s);
}

/* A member of the job, as rank 0 on lane 0, but with a mind of its own after the handshake. */
static int member(struct tpset *s)
{
    struct tcp_hello hello;
    struct answered a;
    int fd = ask_rank_1(s, 0, &hello, &a);
    uint8_t mac[32];

    unmask(&hello, &a.answer);
    prove(&hello, &a.answer, 'S', mac);
    cr_assert_eq(memcmp(mac, a.proof, 32), 0, "the rank proves that it knows the secret");
    prove(&hello, &a.answer, 'C', mac);
    cr_assert_eq(send(fd, mac, 32, MSG_NOSIGNAL), 32);
    return fd;
}

Test(tcp, a_member_that_breaks_the_protocol_is_down)
{
    static const struct bny_hdr bad[] = {
        { .kind = 0, .len = 4 },                                  /* no such kind */
        { .kind = BNY_MSG_DATA, .len = 0xffffffff },              /* longer than any message */
        { .kind = BNY_MSG_DATA, .chan = BNY_CHANNELS, .len = 4 }, /* no such channel */
        { .kind = BNY_MSG_DATA, .chan = 1, .len = 4 }, /* a channel of the other lane */
        { .kind = TCP_KIND_FAREWELL, .len = 4 },
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct bny_hdr good = tpset_hdr(0, 5, 0);
        struct tpset s;
        int fd;

        tpset_open(&s, &bny_tcp_ops, 2, NULL);
        fd = member(&s);
        cr_assert_eq(send(fd, &good, sizeof good, MSG_NOSIGNAL), (ssize_t)sizeof good);
        s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
        cr_assert_eq(send(fd, &bad[i], sizeof bad[i], MSG_NOSIGNAL), (ssize_t)sizeof bad[i]);
        cr_assert(strstr(tpset_wait(&s, 1, BNY_EV_DOWN).reason, "protocol"), "case %zu", i);
        close(fd);
        tpset_close(&s);
    }
}

/* ---- random bytes of a member ---- */

#define STREAM_BYTES 300000u
#define HELD_MAX     16

struct stream {
    uint64_t rng;
    uint8_t bytes[STREAM_BYTES];
    size_t len, sent;
    uint32_t good; /* messages before the first broken byte */
    int whole;     /* not cut off */
};

/* Frames of every size; perhaps broken headers among them, then junk at the end; perhaps cut
 * off anywhere. */
static void stream_make(struct stream *st)
{
    static const uint32_t tops[] = { 1, 9, 100, 5000, TCP_EAGER_MAX + 1, 60000 };
    int broken = 0;

    st->len = st->sent = st->good = 0;
    st->whole = 0;
    for (uint32_t seq = 0; seq < 40; seq++) {
        uint32_t len = (uint32_t)bny_rng_below(&st->rng, tops[bny_rng_below(&st->rng, 6)]);
        struct bny_hdr hdr = tpset_hdr(2 * (int)bny_rng_below(&st->rng, 2), seq, len);
        uint64_t harm = bny_rng_below(&st->rng, 60);

        if (st->len + sizeof hdr + len + 15 > STREAM_BYTES)
            break;
        broken |= harm < 2;
        st->good += !broken;
        if (harm == 0) /* any field: most often only the content, sometimes the frame */
            ((uint8_t *)&hdr)[bny_rng_below(&st->rng, sizeof hdr)] ^=
                (uint8_t)(1 + bny_rng_below(&st->rng, 255));
        if (hdr.kind == TCP_KIND_FAREWELL) /* after that an end is in order */
            hdr.kind = 0;
        if (harm == 1) /* where the next frame begins */
            hdr.len ^= (uint32_t)1 << bny_rng_below(&st->rng, 17);
        memcpy(st->bytes + st->len, &hdr, sizeof hdr);
        st->len += sizeof hdr;
        tpset_fill(st->bytes + st->len, len, 0, 1, seq);
        memset(st->bytes + st->len + len, 0, tcp_pad(len));
        st->len += len + tcp_pad(len);
    }
    for (int i = broken ? 0 : 256; i < 256 && st->len + 8 <= STREAM_BYTES; i++, st->len += 8) {
        uint64_t junk = bny_rng_next(&st->rng);
        memcpy(st->bytes + st->len, &junk, 8);
    }
    if (!bny_rng_below(&st->rng, 4))
        st->len = 1 + bny_rng_below(&st->rng, st->len);
    else
        st->whole = 1;
}

/* Sends the next piece; at the end the connection is cut. */
static void stream_step(struct stream *st, int *fd)
{
    size_t piece = 1 + bny_rng_below(&st->rng, bny_rng_below(&st->rng, 4) ? 40000 : 70);
    ssize_t n;

    piece = piece < st->len - st->sent ? piece : st->len - st->sent;
    n = *fd >= 0 && piece ? send(*fd, st->bytes + st->sent, piece, MSG_NOSIGNAL | MSG_DONTWAIT)
                          : -1;
    st->sent += n > 0 ? (size_t)n : 0;
    if (*fd >= 0 && (st->sent == st->len || (n < 0 && errno != EAGAIN))) {
        close(*fd);
        *fd = -1;
    }
}

/* Views the message as far as it goes, or only the beginning. Returns 1 when all bytes are in
 * buf. */
static int read_some(struct tpset *s, struct stream *st, int *fd, struct bny_msg *msg,
                     uint8_t *buf)
{
    uint32_t off = 0, stop = msg->hdr.len, turns = 0;

    if (msg->data) {
        memcpy(buf, msg->data, msg->hdr.len);
        return 1;
    }
    if (!bny_rng_below(&st->rng, 4))
        stop = (uint32_t)bny_rng_below(&st->rng, stop);
    while (off < stop && turns < 100000) {
        uint32_t want = 1 + (uint32_t)bny_rng_below(&st->rng, 20000);
        const void *ptr;
        int to_dst = (int)bny_rng_below(&st->rng, 2);
        long n;

        want = want < msg->hdr.len - off ? want : msg->hdr.len - off;
        n = s->ops->view(msg, off, want, to_dst ? buf + off : NULL, &ptr);
        if (n < 0)
            return 0;
        if (n > 0 && !to_dst)
            memcpy(buf + off, ptr, (size_t)n);
        cr_assert(n <= (long)want && off + (uint32_t)n <= msg->hdr.len);
        off += (uint32_t)n;
        turns = n > 0 ? 0 : turns + 1;
        if (n == BNY_AGAIN)
            stream_step(st, fd);
    }
    return off == msg->hdr.len;
}

/* Whoever proves the secret can still send anything: what came before the harm arrives whole,
 * everything else is dropped or delivered as what it claims to be, the end is DOWN. */
Test(tcp, random_bytes_of_a_member_never_hurt)
{
    static struct stream st;
    static uint8_t buf[1u << 20];
    const char *text = getenv("BANYAN_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : 20261122;

    for (int round = 0; round < 60; round++) {
        uint64_t one = seed + (uint64_t)round, deadline = bny_deadline_in(TPSET_DEADLINE_S);
        struct bny_msg *held[HELD_MAX];
        int fd, nheld = 0;
        uint32_t got = 0;
        struct tpset s;

        fprintf(stderr, "# BANYAN_TEST_SEED=%llu\n", (unsigned long long)one);
        st.rng = one;
        stream_make(&st);
        tpset_open(&s, &bny_tcp_ops, 2, NULL);
        s.paused[0] = 1;
        fd = member(&s);
        while (!tpset_count(&s, 1, BNY_EV_DOWN) || tpset_count(&s, 1, BNY_EV_MSG)) {
            struct bny_msg *msg;

            cr_assert(!bny_deadline_passed(deadline), "neither end nor error; seed %llu",
                      (unsigned long long)one);
            stream_step(&st, &fd);
            tpset_step(&s);
            if (!tpset_count(&s, 1, BNY_EV_MSG))
                continue;
            msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;
            cr_assert_leq(msg->hdr.len, TCP_PAYLOAD_MAX);
            if (msg->hdr.len <= sizeof buf && read_some(&s, &st, &fd, msg, buf) &&
                got < st.good)
                cr_assert(msg->hdr.seq == got && tpset_check(buf, msg->hdr.len, 0, 1, got) < 0,
                          "message %u; seed %llu", got, (unsigned long long)one);
            got++;
            if (msg->data && bny_rng_below(&st.rng, 2) && nheld < HELD_MAX)
                held[nheld++] = msg;
            else
                s.ops->release(msg);
        }
        cr_assert(got >= st.good || !st.whole, "%u of %u messages; seed %llu", got, st.good,
                  (unsigned long long)one);
        while (nheld)
            s.ops->release(held[--nheld]);
        if (fd >= 0)
            close(fd);
        tpset_close(&s);
    }
}

/* A large message that arrives byte by byte, and is cut off in the middle. */
Test(tcp, partial_arrival_accumulates_to_whole_64s)
{
    struct bny_hdr hdr = tpset_hdr(0, 5, TCP_EAGER_MAX + 4000);
    uint8_t src[TCP_EAGER_MAX + 4000], dst[TCP_EAGER_MAX + 4000];
    uint32_t sent = 0, viewed = 0;
    struct bny_msg *msg;
    struct tpset s;
    const void *ptr;
    long n;
    int fd;

    tpset_fill(src, sizeof src, 0, 1, 5);
    tpset_open(&s, &bny_tcp_ops, 2, NULL);
    fd = member(&s);
    cr_assert_eq(send(fd, &hdr, sizeof hdr, MSG_NOSIGNAL), (ssize_t)sizeof hdr);
    msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;
    cr_assert_null(msg->data);
    for (uint32_t turn = 0; viewed < 15000; turn++) {
        uint32_t piece = 1 + turn * 7 % 50,
                 want = sizeof src - viewed < 1000 ? sizeof src - viewed : 1000;

        if (sent + piece < 19000) {
            cr_assert_eq(send(fd, src + sent, piece, MSG_NOSIGNAL), (ssize_t)piece);
            sent += piece;
        }
        n = s.ops->view(msg, viewed, want, turn % 2 ? dst + viewed : NULL, &ptr);
        cr_assert(n == BNY_AGAIN || (n > 0 && (n % 64 == 0 || n == (long)want)), "%ld", n);
        if (n > 0 && !(turn % 2))
            memcpy(dst + viewed, ptr, (size_t)n);
        viewed += n > 0 ? (uint32_t)n : 0;
        cr_assert_lt(turn, 1000000u);
    }
    cr_assert_eq(memcmp(src, dst, viewed), 0);
    close(fd);
    do
        n = s.ops->view(msg, viewed, 64, NULL, &ptr);
    while (n > 0 && (viewed += (uint32_t)n) < sizeof src - 64);
    for (int turn = 0; n == BNY_AGAIN && turn < 1000000; turn++)
        n = s.ops->view(msg, viewed, 64, NULL, &ptr);
    cr_assert_eq(n, -BANYAN_ERANKDEAD);
    tpset_wait(&s, 1, BNY_EV_DOWN);
    s.ops->release(msg);
    tpset_close(&s);
}

/* Rank 0 says of n messages whether more follow. */
static void say(struct tpset *s, uint32_t *seq, int n, uint32_t len, int more)
{
    static uint8_t buf[TCP_EAGER_MAX];

    for (int i = 0; i < n; i++) {
        struct bny_hdr hdr = tpset_hdr(1, *seq, len);

        tpset_fill(buf, len, 0, 1, (*seq)++);
        s->tp[0]->more = (uint8_t)more;
        cr_assert_eq(s->ops->eager(s->ep[0][1], &hdr, buf), 0);
        s->tp[0]->more = 0;
    }
}

static void expect_messages(struct tpset *s, uint32_t *from, uint32_t to, uint32_t len)
{
    for (; *from < to; (*from)++) {
        struct bny_msg *msg = tpset_wait(s, 1, BNY_EV_MSG).msg;

        cr_assert_eq(msg->hdr.seq, *from);
        cr_assert_eq(tpset_check(msg->data, len, 0, 1, *from), -1);
        s->ops->release(msg);
    }
}

/* Bytes that rank 0 has given to the kernel. */
static uint64_t given(const struct tpset *s)
{
    return ((const struct tcp_ep *)s->ep[0][1])->out[1 % TCP_LANES]->put;
}

/* With the last one, with a poll, or as soon as they are many. */
Test(tcp, messages_of_which_more_follow_go_together)
{
    enum { LEN = 9000 };
    const uint64_t frame = sizeof(struct bny_hdr) + LEN + tcp_pad(LEN);
    uint32_t seq = 2, from = 2;
    uint64_t before;
    struct tpset s;

    tpset_open(&s, &bny_tcp_ops, 2, NULL);
    expect_traffic(&s, 1);
    before = given(&s);
    say(&s, &seq, 3, LEN, 1);
    cr_assert_eq(given(&s), before, "the first ones went alone");
    say(&s, &seq, 1, LEN, 0);
    cr_assert_eq(given(&s), before + 4 * frame, "the last one did not take them along");
    expect_messages(&s, &from, seq, LEN);
    say(&s, &seq, 2, LEN, 1);
    expect_messages(&s, &from, seq, LEN);
    before = given(&s);
    say(&s, &seq, 8, LEN, 1);
    cr_assert_geq(given(&s), before + 7 * frame, "as many as that wait for nothing");
    say(&s, &seq, 1, LEN, 0);
    expect_messages(&s, &from, seq, LEN);
    tpset_close(&s);
}

Test(tcp, exhausted_port_range_is_named)
{
    struct sockaddr_in in = { .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof in;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct bny_tp *tp;
    char range[32];

    cr_assert_eq(bind(fd, (struct sockaddr *)&in, sizeof in), 0);
    cr_assert_eq(listen(fd, 1), 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&in, &len), 0);
    snprintf(range, sizeof range, "%u-%u", ntohs(in.sin_port), ntohs(in.sin_port));
    cr_assert_eq(make(&tp, 0, secret, "lo", range), -BANYAN_ECONFIG);
    cr_assert(strstr(banyan_last_error(), range), "%s", banyan_last_error());
    cr_assert_eq(make(&tp, 0, secret, "lo", "9-1"), -BANYAN_ECONFIG);
    cr_assert_eq(make(&tp, 0, secret, "lo", "many"), -BANYAN_ECONFIG);
    cr_assert_null(tp);
    close(fd);
}

Test(tcp, port_range_is_kept)
{
    struct bny_tp *tp;
    struct tcp_blob blob;

    cr_assert_eq(make(&tp, 0, secret, "lo", "21000-23999"), 0, "%s", banyan_last_error());
    blob_of(tp, &blob);
    for (uint32_t i = 0; i < blob.count; i++)
        cr_assert(blob.addrs[i].port >= 21000 && blob.addrs[i].port <= 23999);
    bny_tcp_ops.destroy(tp);
}

Test(tcp, interface_choice_is_kept)
{
    struct bny_tp *tp;
    struct tcp_blob blob;
    int rc;

    cr_assert_eq(make(&tp, 0, secret, "lo", ""), 0, "%s", banyan_last_error());
    blob_of(tp, &blob);
    for (uint32_t i = 0; i < blob.count; i++)
        cr_assert(bny_addr_is_loopback(&blob.addrs[i]));
    bny_tcp_ops.destroy(tp);
    rc = make(&tp, 0, secret, "^lo", "");
    if (rc == 0) {
        blob_of(tp, &blob);
        for (uint32_t i = 0; i < blob.count; i++)
            cr_assert(!bny_addr_is_loopback(&blob.addrs[i]));
        bny_tcp_ops.destroy(tp);
    } else {
        cr_assert_eq(rc, -BANYAN_ECONFIG, "a machine with loopback only");
    }
    cr_assert_eq(make(&tp, 0, secret, "nosuch", ""), -BANYAN_ECONFIG);
    cr_assert(strstr(banyan_last_error(), "nosuch"), "%s", banyan_last_error());
}

Test(tcp, loopback_of_another_host_is_not_reachable)
{
    struct bny_tp *tp[2];
    struct tcp_blob blob;

    for (int r = 0; r < 2; r++)
        cr_assert_eq(make(&tp[r], r, secret, "lo", ""), 0, "%s", banyan_last_error());
    blob_of(tp[1], &blob);
    cr_assert_eq(bny_tcp_ops.reachable(tp[0], 1, &blob, sizeof blob), 1);
    cr_assert_eq(bny_tcp_ops.reachable(tp[0], 0, &blob, sizeof blob), 0,
                 "that is another rank's");
    blob.host[0] ^= 1;
    cr_assert_eq(bny_tcp_ops.reachable(tp[0], 1, &blob, sizeof blob), 0);
    for (int r = 0; r < 2; r++)
        bny_tcp_ops.destroy(tp[r]);
}

#if BNY_CHECKS
/* The second time it may be somebody else's already. */
Test(tcp, a_slot_is_given_back_once, .signal = SIGABRT)
{
    struct bny_slot slot;
    struct tpset s;

    tpset_open(&s, &bny_tcp_ops, 2, NULL);
    tpset_reserve(&s, 0, 1, 5000, &slot);
    s.ops->cancel(s.ep[0][1], &slot);
    s.ops->cancel(s.ep[0][1], &slot);
}
#endif

/* It leaves while a peer connects, which has its answer and takes the connection for open. */
Test(tcp, leaving_in_the_middle_of_a_handshake_is_no_death)
{
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    struct bny_event ev[4];
    const struct tcp_tp *leaver;
    struct tpset s;
    int rc;

    tpset_open(&s, bny_transport_find("tcp"), 2, NULL);
    leaver = (struct tcp_tp *)s.tp[1];
    rc = s.ops->eager(s.ep[0][1], &hdr, NULL);
    cr_assert(rc == 0 || rc == BNY_AGAIN);
    while (leaver->nhalf != 1 || leaver->half[0]->state != TCP_PROOF) {
        cr_assert(!bny_deadline_passed(deadline), "nobody connects");
        if (leaver->nhalf == 0)
            cr_assert_eq(s.ops->poll(s.tp[0], ev, 4), 0);
        cr_assert_eq(s.ops->poll(s.tp[1], ev, 4), 0);
    }
    cr_assert_eq(s.ops->farewell(s.tp[1]), BNY_AGAIN, "it goes without a word");
    while (s.ops->farewell(s.tp[1]) == BNY_AGAIN) {
        cr_assert(!bny_deadline_passed(deadline), "it never leaves");
        cr_assert_eq(s.ops->poll(s.tp[0], ev, 4), 0);
    }
    tpset_destroy_rank(&s, 1);
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(s.ops->poll(s.tp[0], ev, 4), 0, "an event of kind %d: %s", ev[0].kind,
                     ev[0].kind == BNY_EV_DOWN ? ev[0].reason : "");
    tpset_close(&s);
}

/* What a connection needs is there while it is needed: of a thousand peers most are idle. */
Test(tcp, memory_is_taken_by_use)
{
    enum { LARGE = 200000 };
    static uint8_t buf[LARGE], got[LARGE];
    struct bny_hdr small = tpset_hdr(0, 1, 100), large = tpset_hdr(0, 2, LARGE);
    const struct tcp_ep *to, *unused;
    const struct tcp_conn *in;
    struct bny_msg *msg;
    struct tpset s;

    cr_assert_leq(sizeof(struct tcp_ep), 256);
    tpset_open(&s, &bny_tcp_ops, 3, NULL);
    to = (struct tcp_ep *)s.ep[0][1];
    unused = (struct tcp_ep *)s.ep[0][2];
    cr_assert_not(to->out[0] || to->out[1] || to->slots);
    tpset_fill(buf, 100, 0, 1, 1);
    tpset_eager(&s, 0, 1, &small, buf);
    cr_assert(to->out[0] && !to->out[0]->copy && !to->out[1]);
    msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;
    in = ((struct tcp_ep *)s.ep[1][0])->in[0];
    cr_assert_eq(tpset_check(msg->data, 100, 0, 1, 1), -1);
    cr_assert_not_null(in->chunk);
    s.ops->release(msg);
    cr_assert_null(in->chunk);
    tpset_fill(buf, LARGE, 0, 1, 2);
    tpset_send(&s, 0, 1, &large, buf, buf);
    msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;
    cr_assert_not_null(in->tile);
    tpset_read(&s, msg, got, 65536, 0);
    cr_assert_eq(tpset_check(got, LARGE, 0, 1, 2), -1);
    s.ops->release(msg);
    tpset_wait(&s, 0, BNY_EV_SENT);
    for (int i = 0; i < 100; i++)
        tpset_step(&s);
    cr_assert_not(in->tile || in->chunk || to->out[0]->copy);
    cr_assert_not(unused->out[0] || unused->in[0]);
    tpset_close(&s);
}
