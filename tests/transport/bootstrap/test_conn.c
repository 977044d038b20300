/* SPDX-License-Identifier: BSD-3-Clause */
/* Whatever bytes arrive, a connection ends cleanly and never hands out a frame that its peer
 * did not send. */
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/bootstrap/net.h"

#include <sodium.h>

#include "base/rng.h"
#include "support.h"
#include "tests/support/dumped.h"

TestSuite(conn, .timeout = 30);

#define FRAME_MAX 5000

static uint8_t secret[32], job[8];
static struct bny_conn_self self[2];
static const struct bny_addr nowhere = { .family = 4 };

static struct bny_conn *make(int fd, int client)
{
    if (!self[0].secret)
        cr_assert_geq(sodium_init(), 0);
    bny_conn_self_init(&self[client], BNY_CONN_CONTROL, secret, job, client, 2);
    return bny_conn_new(fd, -1, client, &nowhere, &self[client], FRAME_MAX);
}

/* Hands out all frames there are; returns the last result of next(). */
static int drain(struct bny_conn *c, int *frames)
{
    uint32_t type;
    const uint8_t *data;
    size_t len;
    int rc = bny_conn_progress(c);

    if (rc != 1)
        return rc;
    while ((rc = bny_conn_next(c, &type, &data, &len)) == 1) {
        cr_assert_leq(len, FRAME_MAX);
        for (size_t i = 0; i < len; i++)
            cr_assert_eq(data[i], (uint8_t)(type + i), "a changed frame was handed out");
        ++*frames;
    }
    return rc;
}

static void send_frame(struct bny_conn *c, uint32_t type, size_t len)
{
    uint8_t data[FRAME_MAX] = { 0 };

    for (size_t i = 0; i < len; i++)
        data[i] = (uint8_t)(type + i);
    cr_assert_eq(bny_conn_send(c, type, data, len), 0);
}

static int seen; /* a frame's content on the way */

static void look(const uint8_t *buf, size_t len)
{
    uint8_t known[16];

    for (unsigned i = 0; i < sizeof known; i++)
        known[i] = (uint8_t)(7 + i);
    seen |= memmem(buf, len, known, sizeof known) != NULL;
}

/* Moves bytes from one socket to another; flips one bit of byte number *flip_at when it passes.
 */
static void relay(int from, int to, long *flip_at, unsigned bit)
{
    uint8_t buf[700];
    ssize_t n = recv(from, buf, sizeof buf, MSG_DONTWAIT);

    if (n <= 0)
        return;
    look(buf, (size_t)n);
    if (*flip_at >= 0 && *flip_at < n)
        buf[*flip_at] ^= (uint8_t)(1u << bit);
    *flip_at -= n;
    cr_assert_eq(send(to, buf, (size_t)n, MSG_NOSIGNAL), n);
}

/* A handshake and two frames each way through a relay; direction 0: client to server. */
static void talk(int direction, long flip_at, unsigned bit, int ready[2], int frames[2])
{
    int a[2], b[2], sent[2] = { 0, 0 };
    long flips[2] = { -1, -1 };
    struct bny_conn *c[2];

    flips[direction] = flip_at;
    frames[0] = frames[1] = ready[0] = ready[1] = 0;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, a), 0);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, b), 0);
    c[0] = make(a[0], 1);
    c[1] = make(b[0], 0);
    for (int i = 0; i < 30; i++) {
        for (int k = 0; k < 2; k++) {
            int rc = drain(c[k], &frames[k]);

            ready[k] = c[k]->state == BNY_CONN_READY;
            if (rc == 0 && ready[k] && !sent[k]++) {
                send_frame(c[k], 7, 100);
                send_frame(c[k], 9, 0);
            }
        }
        relay(a[1], b[1], &flips[0], bit);
        relay(b[1], a[1], &flips[1], bit);
    }
    bny_conn_free(c[0]);
    bny_conn_free(c[1]);
    close(a[1]);
    close(b[1]);
}

Test(conn, a_clean_line_carries_every_frame)
{
    int ready[2], frames[2];

    talk(0, -1, 0, ready, frames);
    cr_assert(ready[0] && ready[1] && frames[0] == 2 && frames[1] == 2);
    cr_assert_not(seen, "cards and keys can be read on the way");
}

Test(conn, one_flipped_bit_anywhere_is_noticed)
{
    uint64_t seed = test_seed();

    /* Client to server: hello 72, auth 40, frames 124 and 24; server to client: proof 104,
     * frames. */
    for (int direction = 0; direction < 2; direction++) {
        int total = direction ? 104 + 148 : 72 + 40 + 148;

        for (int at = 0; at < total; at++) {
            unsigned bit = (unsigned)bny_rng_below(&seed, 8);
            int ready[2], frames[2];

            talk(direction, at, bit, ready, frames);
            cr_assert(frames[!direction] < 2, "direction %d byte %d bit %u passed", direction,
                      at, bit);
            if (at < (direction ? 104 : 72)) /* the first message: nobody trusts anybody */
                cr_assert(!ready[1], "direction %d byte %d bit %u", direction, at, bit);
        }
    }
}

Test(conn, random_bytes_end_it_before_it_is_ready)
{
    uint64_t seed = test_seed();

    for (int i = 0; i < 2000; i++) {
        int sp[2], frames = 0;
        uint8_t junk[1024];
        size_t len = bny_rng_below(&seed, sizeof junk);
        struct bny_conn *c;

        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sp), 0);
        c = make(sp[0], i % 2);
        test_fill(&seed, junk, len);
        if (i % 3 && len >= 12) { /* a plausible header leads deeper */
            uint32_t head[2] = { i % 2 ? 96 : 64, 0x796e6201u + (uint32_t)(i % 2) };

            memcpy(junk, head, sizeof head);
            if (i % 3 == 2)
                memcpy(junk + 8, "bnyH\1\0\2\0", 8);
        }
        cr_assert_eq(send(sp[1], junk, len, MSG_NOSIGNAL), (ssize_t)len);
        drain(c, &frames);
        cr_assert_neq(c->state, BNY_CONN_READY);
        shutdown(sp[1], SHUT_WR);
        cr_assert_eq(drain(c, &frames), -1);
        cr_assert_not_null(c->why);
        cr_assert_eq(frames, 0);
        bny_conn_free(c);
        close(sp[1]);
    }
}

Test(conn, no_core_dump_has_its_keys)
{
    struct bny_conn *c[2];
    int sp[2], frames = 0;

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sp), 0);
    c[0] = make(sp[0], 1);
    c[1] = make(sp[1], 0);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(drain(c[i & 1], &frames), 0);
    for (int k = 0; k < 2; k++)
        send_frame(c[k], 7, 100);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(drain(c[i & 1], &frames), 0);
    cr_assert_eq(frames, 2);
    cr_assert_eq(dumped(c[0]->tx_key, 32), 0);
    cr_assert_eq(dumped(c[0]->rx_key, 32), 0);
    bny_conn_free(c[0]);
    bny_conn_free(c[1]);
}

Test(conn, a_replayed_session_is_refused)
{
    int sp[2], frames = 0;
    uint8_t recorded[112];
    ssize_t got;
    struct bny_conn *c = NULL, *s = NULL;

    /* Record what a client sends in a good session: hello (72) and proof (40). */
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sp), 0);
    c = make(sp[0], 1);
    cr_assert_eq(bny_conn_progress(c), 0);
    got = recv(sp[1], recorded, 72, MSG_PEEK);
    cr_assert_eq(got, 72);
    s = make(sp[1], 0);
    cr_assert_eq(bny_conn_progress(s), 0);
    cr_assert_eq(bny_conn_progress(c), 1);
    got = recv(sp[1], recorded + 72, 40, MSG_PEEK);
    cr_assert_eq(got, 40);
    cr_assert_eq(bny_conn_progress(s), 1);
    bny_conn_free(c);
    bny_conn_free(s);

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sp), 0);
    s = make(sp[0], 0);
    cr_assert_eq(send(sp[1], recorded, sizeof recorded, MSG_NOSIGNAL),
                 (ssize_t)sizeof recorded);
    cr_assert_eq(drain(s, &frames), -1);
    cr_assert_neq(s->state, BNY_CONN_READY);
    bny_conn_free(s);
    close(sp[1]);
}

Test(conn, frames_before_the_end_are_not_lost)
{
    int sp[2], frames = 0;
    struct bny_conn *c, *s;

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sp), 0);
    c = make(sp[0], 1);
    s = make(sp[1], 0);
    for (int i = 0; i < 4; i++) {
        cr_assert_geq(bny_conn_progress(c), 0);
        cr_assert_geq(bny_conn_progress(s), 0);
    }
    for (int i = 0; i < 20; i++)
        send_frame(c, (uint32_t)i, FRAME_MAX);
    bny_conn_free(c);
    cr_assert_eq(drain(s, &frames), -1);
    cr_assert_eq(frames, 20);
    bny_conn_free(s);
}

/* Two ends of a connection of this host, both ready. */
static void tcp_pair(struct bny_conn *c[2])
{
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd[2], none = 0;

    cr_assert_eq(bind(listener, (struct sockaddr *)&at, len), 0);
    cr_assert_eq(listen(listener, 1), 0);
    cr_assert_eq(getsockname(listener, (struct sockaddr *)&at, &len), 0);
    fd[0] = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(connect(fd[0], (struct sockaddr *)&at, len), 0);
    fd[1] = accept(listener, NULL, NULL);
    close(listener);
    for (int k = 0; k < 2; k++)
        c[k] = make(fd[k], k == 0);
    for (int i = 0;
         i < 1000 && !(c[0]->state == BNY_CONN_READY && c[1]->state == BNY_CONN_READY); i++) {
        cr_assert_geq(drain(c[0], &none), 0);
        cr_assert_geq(drain(c[1], &none), 0);
        usleep(1000);
    }
    cr_assert_eq(c[1]->state, BNY_CONN_READY);
}

/* Whether a host is silent follows from how its connection ended, whoever was told: the one who
 * sent, or the one who read. */
Test(conn, how_it_ended_is_known_when_sending_found_it)
{
    for (int sends = 0; sends < 2; sends++) {
        struct linger reset = { .l_onoff = 1 };
        struct bny_conn *c[2];
        int rc = 0, none = 0;

        tcp_pair(c);
        setsockopt(c[1]->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        bny_conn_free(c[1]);
        usleep(10000);
        if (sends)
            send_frame(c[0], 7, 100);
        for (int i = 0; i < 100 && rc >= 0; i++)
            rc = drain(c[0], &none);
        cr_assert_lt(rc, 0);
        cr_assert_eq(c[0]->err, ECONNRESET, "sends %d: errno %d", sends, c[0]->err);
        cr_assert_eq(c[0]->fin, 0);
        bny_conn_free(c[0]);
    }
}

/* The kernel says user 0 of a socket that nobody holds: that is not root's. */
Test(conn, whose_the_other_end_is_shows_while_it_is_held)
{
    struct bny_addr at = { .family = 4, .ip = { 127, 0, 0, 1 } }, from;
    int listener = bny_net_listen(&at, NULL, 4), fd, accepted = -1;
    uid_t uid = (uid_t)-1;

    cr_assert_geq(listener, 0);
    fd = bny_net_connect(&at);
    cr_assert_geq(fd, 0);
    cr_assert_eq(bny_net_peer_uid(fd, &uid), 1, "not yet accepted");
    while (accepted < 0)
        accepted = bny_net_accept(listener, &from);
    cr_assert_eq(bny_net_peer_uid(fd, &uid), 0);
    cr_assert_eq(uid, geteuid());
    cr_assert_eq(bny_net_peer_uid(accepted, &uid), 0);
    cr_assert_eq(uid, geteuid());
    close(accepted);
    cr_assert_eq(bny_net_peer_uid(fd, &uid), 1, "closed");
    close(fd);
    close(listener);
}
