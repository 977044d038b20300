/* SPDX-License-Identifier: BSD-3-Clause */
/* What is special about tcp: strangers on its ports, secrets, interfaces and port ranges. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "tests/support/tpset.h"
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
    tpset_eager(&s, 0, 1, &hdr, NULL);
    ev = tpset_wait(&s, 0, BNY_EV_DOWN);
    cr_assert(strstr(ev.reason, "secret"), "%s", ev.reason);
    cr_assert_eq(tpset_count(&s, 1, BNY_EV_MSG) + tpset_count(&s, 1, BNY_EV_DOWN), 0);
    tpset_close(&s);
}

static void prove(const struct tcp_hello *hello, const uint8_t *nonce, char role,
                  uint8_t out[32])
{
    crypto_auth_hmacsha512256_state st;

    crypto_auth_hmacsha512256_init(&st, secret, 32);
    crypto_auth_hmacsha512256_update(&st, (const uint8_t *)&role, 1);
    crypto_auth_hmacsha512256_update(&st, (const uint8_t *)hello, sizeof *hello);
    crypto_auth_hmacsha512256_update(&st, nonce, 32);
    crypto_auth_hmacsha512256_final(&st, out);
}

/* A member of the job, as rank 0 on lane 0, but with a mind of its own after the handshake. */
static int member(struct tpset *s)
{
    struct tcp_hello hello = { .magic = "bnyT", .wire = BNY_WIRE_VERSION, .to = 1 };
    int fd = stranger((struct tcp_blob *)s->blob[1]);
    uint8_t answer[64], mac[32];
    size_t have = 0;
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);

    randombytes_buf(hello.nonce, sizeof hello.nonce);
    cr_assert_eq(send(fd, &hello, sizeof hello, MSG_NOSIGNAL), (ssize_t)sizeof hello);
    while (have < sizeof answer) {
        ssize_t n = recv(fd, answer + have, sizeof answer - have, MSG_DONTWAIT);

        have += n > 0 ? (size_t)n : 0;
        cr_assert(n != 0 && !bny_deadline_passed(deadline));
        tpset_step(s);
    }
    prove(&hello, answer, 'S', mac);
    cr_assert_eq(memcmp(mac, answer + 32, 32), 0, "the rank proves that it knows the secret");
    prove(&hello, answer, 'C', mac);
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

/* A large message that arrives byte by byte, and is cut off in the middle. */
Test(tcp, partial_arrival_accumulates_to_whole_64s)
{
    struct bny_hdr hdr = tpset_hdr(0, 5, 20000);
    uint8_t src[20000], dst[20000];
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
    while (n > 0 && (viewed += (uint32_t)n) < 20000 - 64);
    for (int turn = 0; n == BNY_AGAIN && turn < 1000000; turn++)
        n = s.ops->view(msg, viewed, 64, NULL, &ptr);
    cr_assert_eq(n, -BANYAN_ERANKDEAD);
    tpset_wait(&s, 1, BNY_EV_DOWN);
    s.ops->release(msg);
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
