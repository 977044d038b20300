/* SPDX-License-Identifier: BSD-3-Clause */
/* Connections of tcp that are lost: the lanes go on, nothing is missing or comes twice. Run
 * once with each BANYAN_INTEGRITY. */
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "tests/support/cut.h"
#include "tests/support/key.h"
#include "tests/support/tpset.h"
#include "transport/tcp/tcp.h"

extern const struct bny_transport_ops bny_tcp_ops;

TestSuite(tcp_resume, .timeout = 120);

static uint64_t seed_of_tests(void)
{
    const char *text = getenv("BANYAN_TEST_SEED");

    return text ? strtoull(text, NULL, 0) : 20261122;
}

static struct tcp_conn *out_of(struct tpset *s, int from, int lane)
{
    return ((struct tcp_ep *)s->ep[from][!from])->out[lane];
}

static struct tcp_conn *in_of(struct tpset *s, int at, int lane)
{
    return ((struct tcp_ep *)s->ep[at][!at])->in[lane];
}

/* ---- a handshake that is lost at a byte ---- */

/* The next send() of `len` bytes, a message of the handshake, loses all but its first `at`. */
static struct {
    size_t len, at;
    int armed; /* so often */
} harm;

ssize_t __real_send(int fd, const void *data, size_t len, int flags);
ssize_t __wrap_send(int fd, const void *data, size_t len, int flags);

ssize_t __wrap_send(int fd, const void *data, size_t len, int flags)
{
    if (!harm.armed || len != harm.len)
        return __real_send(fd, data, len, flags);
    harm.armed--;
    if (harm.at)
        cr_assert_eq(__real_send(fd, data, harm.at, flags), (ssize_t)harm.at);
    cr_assert_eq(cut(fd), 0);
    return (ssize_t)len;
}

/* ---- paths that are gone ---- */

/* No packet of its peer reaches the socket any more; they are dropped before TCP sees them. */
static void drop_packets(int fd)
{
    struct sock_filter none = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog prog = { .len = 1, .filter = &none };

    cr_assert_eq(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof prog), 0);
}

static int away;      /* new connections get no packet: no answer, no refusal */
static int at_port_0; /* attempts there meanwhile */

int __real_connect(int fd, const struct sockaddr *sa, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *sa, socklen_t len);

int __wrap_connect(int fd, const struct sockaddr *sa, socklen_t len)
{
    if (away) {
        drop_packets(fd);
        at_port_0 += ((const struct sockaddr_in *)(const void *)sa)->sin_port == 0;
    }
    return __real_connect(fd, sa, len);
}

/* ---- traffic ---- */

#define LONGEST 400000u

struct way {
    uint64_t rng;
    uint32_t sent, came[TCP_LANES], all; /* came: the latest of a lane */
    uint32_t out;                        /* sends by reference without SENT */
    uint8_t *buf[64];
    struct bny_msg *reading;
    uint32_t viewed;
    uint8_t *to;
};

struct load {
    struct tpset s;
    struct way way[2]; /* by sender */
    uint64_t rng;
};

static uint32_t length_of(uint32_t seq)
{
    static const uint32_t tops[] = { 1, 60, 3000, TCP_EAGER_MAX, 70000, LONGEST };
    uint64_t rng = seq * 77u + 1;
    uint32_t top = tops[bny_rng_below(&rng, 6)];

    return 1 + (uint32_t)bny_rng_below(&rng, top);
}

static int sink(struct tpset *s, int rank, const struct bny_event *ev)
{
    struct load *l = s->user;

    if (ev->kind == BNY_EV_SENT) {
        struct way *w = &l->way[rank];
        size_t i = (size_t)(uintptr_t)ev->cookie - 1;

        cr_assert(w->buf[i]);
        memset(w->buf[i], 0xaa, LONGEST); /* it is ours again: who sends it now sends this */
        free(w->buf[i]);
        w->buf[i] = NULL;
        w->out--;
        return 1;
    }
    return 0;
}

/* One more message, if one goes. */
static void send_one(struct load *l, int from)
{
    struct way *w = &l->way[from];
    uint32_t seq = w->sent, len = length_of(seq);
    struct bny_hdr hdr = tpset_hdr((int)(seq * 7 / 3 % BNY_CHANNELS), seq, len);
    struct bny_ep *ep = l->s.ep[from][!from];
    struct bny_slot slot;
    size_t i = 0;
    int rc;

    while (w->buf[i])
        if (++i == 64)
            return;
    if (len <= TCP_EAGER_MAX) {
        uint8_t small[TCP_EAGER_MAX + 8];

        tpset_fill(small, len, from, !from, seq);
        rc = l->s.ops->eager(ep, &hdr, small);
    } else if (seq % 2 && len <= TCP_SLOT_MAX) {
        rc = l->s.ops->reserve(ep, len, &slot);
        if (rc == 0) {
            tpset_fill(slot.mem, len, from, !from, seq);
            cr_assert_eq(l->s.ops->commit(ep, &slot, &hdr), 0);
        }
    } else {
        w->buf[i] = malloc(LONGEST + 8);
        tpset_fill(w->buf[i], len, from, !from, seq);
        rc = l->s.ops->send(ep, &hdr, w->buf[i], (void *)(uintptr_t)(i + 1));
        if (rc == 0) {
            w->out++;
        } else {
            free(w->buf[i]);
            w->buf[i] = NULL;
        }
    }
    cr_assert(rc == 0 || rc == BNY_AGAIN, "%s", banyan_last_error());
    w->sent += rc == 0;
}

static void check(struct load *l, int from, const struct bny_msg *m, const uint8_t *data)
{
    struct way *w = &l->way[from];
    uint32_t *last = &w->came[m->hdr.chan % TCP_LANES];

    cr_assert(*last == 0 || m->hdr.seq + 1 > *last, "%u after %u", m->hdr.seq, *last - 1);
    *last = m->hdr.seq + 1;
    cr_assert_eq(m->hdr.len, length_of(m->hdr.seq));
    cr_assert_eq(tpset_check(data, m->hdr.len, from, !from, m->hdr.seq), -1, "message %u",
                 m->hdr.seq);
    w->all++;
}

/* Some of what has come to the other end; a long message piece by piece. */
static void receive(struct load *l, int from)
{
    struct way *w = &l->way[from];
    const void *ptr;

    while (!w->reading && tpset_count(&l->s, !from, BNY_EV_MSG)) {
        struct bny_msg *m = tpset_wait(&l->s, !from, BNY_EV_MSG).msg;

        if (m->data) {
            check(l, from, m, m->data);
            l->s.ops->release(m);
        } else {
            w->reading = m;
            w->viewed = 0;
        }
    }
    if (w->reading) {
        uint32_t left = w->reading->hdr.len - w->viewed;
        long n = l->s.ops->view(w->reading, w->viewed, left < 9000 ? left : 9000,
                                w->to + w->viewed, &ptr);

        cr_assert(n > 0 || n == BNY_AGAIN, "%s; %s", ((struct tcp_ep *)l->s.ep[0][1])->reason,
                  ((struct tcp_ep *)l->s.ep[1][0])->reason);
        w->viewed += n > 0 ? (uint32_t)n : 0;
        if (w->viewed == w->reading->hdr.len) {
            check(l, from, w->reading, w->to);
            l->s.ops->release(w->reading);
            w->reading = NULL;
        }
    }
}

static struct load *load_open(void)
{
    struct load *l = calloc(1, sizeof *l);

    bny_tcp_rekey = 3; /* across losses */
    tpset_open(&l->s, &bny_tcp_ops, 2, NULL);
    l->s.sink = sink;
    l->s.user = l;
    l->rng = seed_of_tests();
    for (int from = 0; from < 2; from++)
        l->way[from].to = malloc(LONGEST + 8);
    return l;
}

static void load_turn(struct load *l, uint32_t messages)
{
    for (int from = 0; from < 2; from++) {
        if (l->way[from].sent < messages)
            send_one(l, from);
        if (bny_rng_below(&l->rng, 4))
            receive(l, from);
    }
    tpset_step(&l->s);
    cr_assert_eq(tpset_count(&l->s, 0, BNY_EV_DOWN) + tpset_count(&l->s, 1, BNY_EV_DOWN), 0,
                 "%s", ((struct tcp_ep *)l->s.ep[0][1])->reason);
}

static int load_done(const struct load *l, uint32_t messages)
{
    return l->way[0].all == messages && l->way[1].all == messages && !l->way[0].out &&
           !l->way[1].out;
}

static void load_finish(struct load *l, uint32_t messages)
{
    uint64_t deadline = bny_deadline_in(60);

    while (!load_done(l, messages)) {
        cr_assert(!bny_deadline_passed(deadline), "%u and %u of %u messages", l->way[0].all,
                  l->way[1].all, messages);
        load_turn(l, messages);
    }
    /* Not one byte more or less, on either lane. */
    for (int from = 0; from < 2; from++)
        for (int lane = 0; lane < TCP_LANES; lane++) {
            const struct tcp_conn *in = in_of(&l->s, !from, lane),
                                  *out = out_of(&l->s, from, lane);

            cr_assert_eq(in ? in->got : 0, out ? out->put : 0);
            cr_assert(!out || out->pos == out->put);
        }
}

static void load_close(struct load *l)
{
    tpset_close(&l->s);
    for (int from = 0; from < 2; from++)
        free(l->way[from].to);
    free(l);
}

/* ---- the tests ---- */

/* Each connection in turn, from either end, at random moments in the middle of messages. */
Test(tcp_resume, resets_of_every_connection)
{
    enum { MESSAGES = 6000 };
    struct load *l = load_open();
    uint64_t deadline = bny_deadline_in(100);
    uint32_t next = 50, cuts = 0, turn = 0;

    fprintf(stderr, "# BANYAN_TEST_SEED=%llu\n", (unsigned long long)seed_of_tests());
    while (!load_done(l, MESSAGES)) {
        cr_assert(!bny_deadline_passed(deadline), "%u and %u messages", l->way[0].all,
                  l->way[1].all);
        load_turn(l, MESSAGES);
        if (++turn >= next) {
            uint32_t which = cuts % 8;
            struct tcp_conn *c = which & 4 ? in_of(&l->s, which & 1, which >> 1 & 1)
                                           : out_of(&l->s, which & 1, which >> 1 & 1);

            /* A receiver's socket only as ss -K does: its data is acknowledged. */
            if (c && c->state == TCP_OPEN && c->fd >= 0)
                which & 4 ? cut_kill(c->fd) : cut(c->fd);
            next = turn + 1 + (uint32_t)bny_rng_below(&l->rng, 100);
            cuts++;
        }
    }
    load_finish(l, MESSAGES);
    fprintf(stderr, "# %u cuts, %llu + %llu replaced\n", cuts,
            (unsigned long long)bny_counter_read(&l->s.tp[0]->replaced),
            (unsigned long long)bny_counter_read(&l->s.tp[1]->replaced));
    cr_assert_gt(
        bny_counter_read(&l->s.tp[0]->replaced) + bny_counter_read(&l->s.tp[1]->replaced), 20);
    load_close(l);
}

/* All that the receiver's kernel has acknowledged is read after the reset, and no more. */
Test(tcp_resume, a_reset_with_unread_data)
{
    for (int round = 0; round < 10; round++) {
        struct load *l = load_open();
        int unread = 0;

        load_finish(l, 0);
        for (uint32_t i = 0; i < 10; i++)
            load_turn(l, 8); /* connected */
        load_finish(l, 8);
        l->s.paused[1] = 1;
        for (int i = 0; i < 3000; i++) {
            send_one(l, 0);
            tpset_step(&l->s);
        }
        cr_assert_eq(ioctl(in_of(&l->s, 1, 0)->fd, SIOCINQ, &unread), 0);
        cr_assert_gt(unread, 1000);
        cr_assert_eq(cut(out_of(&l->s, 0, 0)->fd), 0);
        if (round % 2)
            cr_assert_eq(cut(out_of(&l->s, 0, 1)->fd), 0);
        if (round % 3 == 0)
            for (int i = 0; i < 1000; i++)
                tpset_step(&l->s); /* the sender alone */
        l->s.paused[1] = 0;
        while (l->way[1].sent < l->way[0].sent)
            load_turn(l, l->way[0].sent);
        load_finish(l, l->way[0].sent);
        cr_assert_geq(bny_counter_read(&l->s.tp[0]->replaced), 1u + (unsigned)round % 2);
        load_close(l);
    }
}

/* The handshake of a lost connection is lost as well, at each of its bytes. */
Test(tcp_resume, a_handshake_cut_at_every_byte)
{
    static const size_t parts[] = { sizeof(struct tcp_hello), sizeof(struct tcp_answer) + 32,
                                    32 };
    struct load *l = load_open();
    uint32_t messages = 20;

    load_finish(l, messages);
    for (size_t part = 0; part < 3; part++)
        for (size_t at = 0; at <= parts[part]; at++) {
            uint64_t before = bny_counter_read(&l->s.tp[0]->replaced);

            harm.len = parts[part];
            harm.at = at;
            harm.armed = 1;
            cr_assert_eq(cut(out_of(&l->s, 0, (int)at % TCP_LANES)->fd), 0);
            messages += 3;
            load_finish(l, messages);
            while (bny_counter_read(&l->s.tp[0]->replaced) == before ||
                   out_of(&l->s, 0, 0)->state != TCP_OPEN ||
                   out_of(&l->s, 0, 1)->state != TCP_OPEN)
                load_turn(l, messages);
            cr_assert_not(harm.armed, "no message of %zu bytes was sent", parts[part]);
        }
    load_close(l);
}

/* A network that loses what it has acknowledged (a proxy) is told of, not guessed over. */
Test(tcp_resume, acknowledged_bytes_that_are_lost_are_an_error)
{
    struct load *l = load_open();
    uint64_t acked;
    int unread = 0;

    load_finish(l, 8);
    l->s.paused[1] = 1;
    for (int i = 0; i < 500; i++) {
        send_one(l, 0);
        tpset_step(&l->s);
    }
    cr_assert_eq(ioctl(in_of(&l->s, 1, 0)->fd, SIOCINQ, &unread), 0);
    cr_assert_gt(unread, 1000);
    acked = out_of(&l->s, 0, 0)->acked;
    for (int i = 0; i < 2000 && out_of(&l->s, 0, 0)->acked == acked; i++) {
        usleep(1000); /* the kernel may acknowledge later */
        bny_tcp_ask_acked(out_of(&l->s, 0, 0));
    }
    cr_assert_eq(cut_reset(in_of(&l->s, 1, 0)->fd), 0); /* what it had is gone */
    l->s.paused[1] = 0;
    cr_assert(strstr(tpset_wait(&l->s, 0, BNY_EV_DOWN).reason, "lost"));
    for (size_t i = 0; i < 64; i++)
        free(l->way[0].buf[i]);
    load_close(l);
}

/* Memory that is taken back while the connection is down: the message arrives as it was. */
Test(tcp_resume, recalled_memory_is_copied)
{
    struct bny_hdr hdr = tpset_hdr(0, 5, 300000);
    uint8_t *src = malloc(300000), *dst = malloc(300000);
    struct bny_msg *msg;
    struct tpset s;

    tpset_open(&s, &bny_tcp_ops, 2, NULL);
    tpset_fill(src, 300000, 0, 1, 5);
    tpset_send(&s, 0, 1, &hdr, src, src);
    msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;
    s.paused[1] = 1;
    tpset_step(&s);
    cr_assert_eq(cut(out_of(&s, 0, 0)->fd), 0);
    tpset_step(&s);
    bny_tcp_ops.recall(s.tp[0], src);
    memset(src, 0x55, 300000);
    free(src);
    s.paused[1] = 0;
    tpset_read(&s, msg, dst, 1 << 16, 1);
    cr_assert_eq(tpset_check(dst, 300000, 0, 1, 5), -1);
    s.ops->release(msg);
    cr_assert_eq(tpset_wait(&s, 0, BNY_EV_SENT).cookie, src);
    free(dst);
    tpset_close(&s);
}

/* Rank 0 has sent; then the sender or the receiver dies, which the other learns by a reset: who
 * dies with unread data sends one. */
static void die_with_a_reset(struct tpset *s, int sender_dies)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, 100);
    uint8_t buf[100] = { 0 };

    tpset_open(s, &bny_tcp_ops, 2, NULL);
    tpset_eager(s, 0, 1, &hdr, buf);
    s->ops->release(tpset_wait(s, 1, BNY_EV_MSG).msg);
    if (sender_dies) {
        cr_assert_eq(cut(out_of(s, 0, 0)->fd), 0);
    } else {
        s->paused[1] = 1;
        tpset_eager(s, 0, 1, &hdr, buf);
    }
    tpset_destroy_rank(s, sender_dies ? 0 : 1);
}

/* Then nobody listens any more, unless it is somebody else by now. Both ends of a lane find
 * that out, also who only receives. */
Test(tcp_resume, a_dead_peer_refuses)
{
    for (int sender_dies = 0; sender_dies < 2; sender_dies++) {
        struct tpset s;
        struct bny_event ev;

        die_with_a_reset(&s, sender_dies);
        ev = tpset_wait(&s, sender_dies ? 1 : 0, BNY_EV_DOWN);
        cr_assert(strstr(ev.reason, "refused") || strstr(ev.reason, "listens there"), "%s",
                  ev.reason);
        tpset_close(&s);
    }
}

/* The dead peer's port is another process's, who has the same secret and number, and knows
 * nothing of the lane: it does not answer for the dead. */
Test(tcp_resume, another_process_at_the_port_is_not_the_peer)
{
    for (int sender_dies = 0; sender_dies < 2; sender_dies++) {
        uint64_t end = bny_deadline_in(TPSET_DEADLINE_S);
        int dead = !sender_dies;
        struct bny_tp *other = NULL;
        const struct tcp_blob *blob;
        struct bny_event ev[4];
        struct tpset s;
        char range[16];

        die_with_a_reset(&s, sender_dies);
        blob = (const void *)s.blob[dead];
        snprintf(range, sizeof range, "%u-%u", blob->addrs[0].port, blob->addrs[0].port);
        while (!other && !bny_deadline_passed(end))
            other = tpset_another(&s, dead, range);
        cr_assert(other, "%s", banyan_last_error());
        while (!tpset_count(&s, !dead, BNY_EV_DOWN)) {
            cr_assert(!bny_deadline_passed(end), "nobody is told dead");
            cr_assert_eq(s.ops->poll(other, ev, 4), 0);
            tpset_step(&s);
        }
        ev[0] = tpset_wait(&s, !dead, BNY_EV_DOWN);
        /* At its other addresses nobody listens. */
        cr_assert(strstr(ev[0].reason, "another process listens there") ||
                      strstr(ev[0].reason, "refused"),
                  "%s", ev[0].reason);
        s.ops->destroy(other);
        tpset_close(&s);
    }
}

/* Farewell in the middle of it: who leaves stays until the others have all. */
Test(tcp_resume, nobody_leaves_with_a_lane_that_is_down)
{
    uint64_t deadline = bny_deadline_in(20);
    struct bny_hdr hdr = tpset_hdr(0, 1, 100);
    struct bny_event ev[4];
    uint8_t buf[100];
    struct bny_msg *msg;
    struct tpset s;
    int rc;

    tpset_open(&s, &bny_tcp_ops, 2, NULL);
    for (uint32_t seq = 0; seq < 2; seq++) {
        hdr.seq = seq;
        tpset_fill(buf, 100, 0, 1, seq);
        tpset_eager(&s, 0, 1, &hdr, buf);
        if (seq == 0) {
            s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
            s.paused[1] = 1;
            cr_assert_eq(cut(out_of(&s, 0, 0)->fd), 0);
        }
    }
    for (int i = 0; i < 100; i++)
        cr_assert_eq(s.ops->farewell(s.tp[0]), BNY_AGAIN, "it went, and a message with it");
    s.paused[1] = 0;
    while ((rc = s.ops->farewell(s.tp[0])) == BNY_AGAIN) {
        cr_assert(!bny_deadline_passed(deadline));
        tpset_step(&s);
    }
    cr_assert_eq(rc, 0);
    tpset_destroy_rank(&s, 0);
    msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;
    cr_assert_eq(tpset_check(msg->data, 100, 0, 1, 1), -1);
    s.ops->release(msg);
    for (int i = 0; i < 200; i++)
        cr_assert_eq(s.ops->poll(s.tp[1], ev, 4), 0);
    tpset_close(&s);
}

/* BANYAN_TCP=replace=0: a reset is the end, as a closed connection is. */
Test(tcp_resume, it_can_be_switched_off)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, 100);
    uint8_t buf[100] = { 0 };
    struct tpset s;

    set_key("BANYAN_TCP=replace", "0");
    tpset_open(&s, &bny_tcp_ops, 2, NULL);
    tpset_eager(&s, 0, 1, &hdr, buf);
    s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
    cr_assert_eq(cut(out_of(&s, 0, 0)->fd), 0);
    tpset_wait(&s, 0, BNY_EV_DOWN);
    tpset_wait(&s, 1, BNY_EV_DOWN);
    cr_assert_eq(bny_counter_read(&s.tp[0]->replaced), 0);
    tpset_close(&s);
}

/* Connections that come about and are lost at once, again and again. */
Test(tcp_resume, losses_without_a_byte_have_an_end)
{
    struct load *l = load_open();

    load_finish(l, 20);
    drop_packets(in_of(&l->s, 1, 0)->fd);
    while (out_of(&l->s, 0, 0)->put == in_of(&l->s, 1, 0)->got)
        send_one(l, 0);
    harm.len = harm.at = 32; /* the last message of the handshake arrives, nothing after it */
    harm.armed = 100;
    cut(out_of(&l->s, 0, 0)->fd);
    cr_assert(strstr(tpset_wait(&l->s, 0, BNY_EV_DOWN).reason, "without a byte"), "%s",
              ((struct tcp_ep *)l->s.ep[0][1])->reason);
    cr_assert_gt(harm.armed, 90);
    for (size_t i = 0; i < 64; i++)
        free(l->way[0].buf[i]);
    load_close(l);
}

/* ---- paths ---- */

/* Only one connection's path: others of the two ranks work, nothing else would tell. */
Test(tcp_resume, a_path_that_is_gone_is_found)
{
    for (int both = 0; both < 2; both++) {
        struct load *l = load_open();
        uint64_t since;

        load_finish(l, 40);
        drop_packets(in_of(&l->s, 1, 0)->fd);
        if (both)
            drop_packets(out_of(&l->s, 0, 0)->fd);
        since = bny_now_ns();
        load_finish(l, 80);
        fprintf(stderr, "# found and replaced in %.1f s\n",
                (double)(bny_now_ns() - since) * 1e-9);
        cr_assert_eq(bny_counter_read(&l->s.tp[0]->replaced), 1);
        cr_assert_eq(bny_counter_read(&l->s.tp[1]->replaced), 0, "its connection works");
        load_close(l);
    }
}

/* No way to it comes back, and port 0 does not answer either: given up after
 * BANYAN_TCP=replace. */
Test(tcp_resume, a_path_that_stays_away_is_given_up)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, 100);
    uint8_t buf[100] = { 0 };
    struct bny_event ev;
    struct tpset s;

    set_key("BANYAN_TCP=replace", "1");
    tpset_open(&s, &bny_tcp_ops, 2, NULL);
    tpset_eager(&s, 0, 1, &hdr, buf);
    s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
    away = 1;
    cr_assert_eq(cut(out_of(&s, 0, 0)->fd), 0);
    ev = tpset_wait(&s, 0, BNY_EV_DOWN);
    cr_assert(strstr(ev.reason, "no answer"), "%s", ev.reason);
    cr_assert_gt(at_port_0, 0);
    tpset_close(&s);
}

/* A rank that computes reads nothing, and all buffers on the way to it are full: its kernel
 * answers, so that is no loss. After 6 s the answers are more than 3 s apart.
 * BANYAN_TEST_SCALE=10 makes it longer than a minute. */
Test(tcp_resume, a_peer_that_computes_is_no_loss)
{
    const char *scale = getenv("BANYAN_TEST_SCALE");
    double seconds = 8 * (scale ? atof(scale) : 1);
    struct load *l = load_open();
    uint64_t deadline;
    int small = 65536;

    load_finish(l, 40);
    for (int lane = 0; lane < TCP_LANES; lane++) {
        setsockopt(out_of(&l->s, 0, lane)->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
        setsockopt(in_of(&l->s, 1, lane)->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    }
    l->s.paused[1] = 1;
    deadline = bny_deadline_in(seconds);
    while (!bny_deadline_passed(deadline)) {
        send_one(l, 0);
        tpset_step(&l->s);
        usleep(1000);
    }
    cr_assert(bny_tcp_pending(out_of(&l->s, 0, 0)), "the buffers are not full");
    l->s.paused[1] = 0;
    while (l->way[1].sent < l->way[0].sent)
        load_turn(l, l->way[0].sent);
    load_finish(l, l->way[0].sent);
    cr_assert_eq(
        bny_counter_read(&l->s.tp[0]->replaced) + bny_counter_read(&l->s.tp[1]->replaced), 0);
    load_close(l);
}

/* Our own farewell finds the connection reset: what had come over it is read all the same. */
Test(tcp_resume, a_farewell_that_fails_loses_nothing)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, 100);
    uint64_t deadline = bny_deadline_in(20);
    struct bny_event ev[4];
    uint8_t buf[100];
    struct bny_msg *msg;
    struct tpset s;
    int rc;

    tpset_open(&s, &bny_tcp_ops, 2, NULL);
    for (uint32_t seq = 0; seq < 2; seq++) {
        hdr.seq = seq;
        tpset_fill(buf, 100, 0, 1, seq);
        tpset_eager(&s, 0, 1, &hdr, buf);
        if (seq == 0)
            s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
        s.paused[1] = 1;
    }
    while ((rc = s.ops->farewell(s.tp[0])) == BNY_AGAIN)
        cr_assert(!bny_deadline_passed(deadline));
    rc = cut_kill(in_of(&s, 1, 0)->fd);
    if (rc != 0)
        cr_skip_test("sockets cannot be destroyed here: %s", strerror(-rc));
    tpset_destroy_rank(&s, 0);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(s.ops->farewell(s.tp[1]), BNY_AGAIN);
    s.paused[1] = 0;
    msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;
    cr_assert_eq(tpset_check(msg->data, 100, 0, 1, 1), -1);
    s.ops->release(msg);
    while (s.ops->farewell(s.tp[1]) == BNY_AGAIN) {
        cr_assert(!bny_deadline_passed(deadline));
        cr_assert_eq(s.ops->poll(s.tp[1], ev, 4), 0, "it left in order");
    }
    tpset_close(&s);
}
