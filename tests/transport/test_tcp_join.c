/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks that are slow to connect, or to be connected to, in virtual time: whoever is only slow
 * is waited for, whatever it is that it does not do; who is not there is told of. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "tests/support/cut.h"
#include "transport/tcp/tcp.h"

#define SECOND 1000000000ull
#define AWAY   100        /* seconds */
#define LONG   (4u << 20) /* a message that nobody views, and the socket does not hold */

extern const struct bny_transport_ops bny_tcp_ops;

TestSuite(tcp_join, .timeout = 60);

static uint64_t virtual_ns; /* 0: the real time */

int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);

int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
    if (!virtual_ns)
        return __real_clock_gettime(id, ts);
    ts->tv_sec = (time_t)(virtual_ns / SECOND);
    ts->tv_nsec = (long)(virtual_ns % SECOND);
    return 0;
}

static int starving = -1;   /* the rank that finds no memory */
static size_t starved_size; /* of one allocation; 0: of any */
static int looking = -1;    /* the rank that looks now */

void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);

void *__wrap_calloc(size_t n, size_t bytes)
{
    if (looking >= 0 && looking == starving && (!starved_size || n * bytes == starved_size))
        return NULL;
    return __real_calloc(n, bytes);
}

static struct rank {
    struct bny_tp *tp;
    struct bny_ep *ep;
    struct tcp_blob blob;
    int got, down, error;
    char reason[200];
} ranks[2];

static void look(int r)
{
    struct bny_event ev[8];
    int n;

    looking = r;
    n = bny_tcp_ops.poll(ranks[r].tp, ev, 8);
    looking = -1;
    if (n < 0)
        ranks[r].error = n;
    cr_assert(n >= 0 || starving == r, "%s", banyan_last_error());
    for (int i = 0; i < n; i++) {
        if (ev[i].kind == BNY_EV_MSG) {
            ranks[r].got++;
            if (ev[i].msg->hdr.len < LONG)
                bny_tcp_ops.release(ev[i].msg);
        } else if (ev[i].kind == BNY_EV_DOWN) {
            ranks[r].down = 1;
            snprintf(ranks[r].reason, sizeof ranks[r].reason, "%s", ev[i].reason);
        }
    }
}

/* The kernel has its own time: it gets some between two looks. */
static void look_often(int r)
{
    uint64_t end;
    struct timespec ts;

    __real_clock_gettime(CLOCK_MONOTONIC, &ts);
    end = (uint64_t)ts.tv_sec * SECOND + (uint64_t)ts.tv_nsec + 2000000;
    do {
        look(r);
        __real_clock_gettime(CLOCK_MONOTONIC, &ts);
    } while ((uint64_t)ts.tv_sec * SECOND + (uint64_t)ts.tv_nsec < end);
}

/* Seconds in which only rank r looks. */
static void pass(int r, int seconds)
{
    for (int i = 0; i < seconds; i++) {
        virtual_ns += SECOND;
        look_often(r);
    }
}

static void set_up_of(int nranks)
{
    static const uint8_t secret[32] = "a secret of these tests";

    virtual_ns = 100 * SECOND;
    memset(ranks, 0, sizeof ranks);
    for (int r = 0; r < 2; r++) {
        struct bny_tp_config cfg = {
            .rank = r, .nranks = nranks, .secret = secret, .ifname = "lo", .port_range = ""
        };

        cr_assert_eq(bny_tcp_ops.create(&ranks[r].tp, &cfg), 0, "%s", banyan_last_error());
        cr_assert_eq(bny_tcp_ops.address(ranks[r].tp, &ranks[r].blob, sizeof ranks[r].blob),
                     (int)sizeof ranks[r].blob);
        ranks[r].blob.count = 1;
    }
}

static void set_up(void)
{
    set_up_of(2);
}

static void tear_down(void)
{
    for (int r = 0; r < 2; r++)
        bny_tcp_ops.destroy(ranks[r].tp);
    virtual_ns = 0;
    starving = -1;
}

static void join(int from)
{
    cr_assert_eq(bny_tcp_ops.connect(ranks[from].tp, !from, &ranks[!from].blob,
                                     sizeof ranks[0].blob, &ranks[from].ep),
                 0);
}

static int send_from(int r)
{
    struct bny_hdr hdr = { .kind = BNY_MSG_DATA };
    int rc = bny_tcp_ops.eager(ranks[r].ep, &hdr, NULL);

    cr_assert(rc == 0 || rc == BNY_AGAIN, "%s", banyan_last_error());
    return rc;
}

/* A message from rank 0 arrives within a few (virtual) seconds. */
static void expect_message(void)
{
    int sent = 0;

    for (int i = 0; i < 200 && !ranks[1].got; i++) {
        virtual_ns += SECOND / 20;
        sent = sent || send_from(0) == 0;
        look_often(0);
        look_often(1);
        cr_assert_not(ranks[0].down || ranks[1].down, "%s", ranks[ranks[1].down].reason);
    }
    cr_assert_eq(ranks[1].got, 1);
}

static int stage(void) /* of the connection of rank 0 */
{
    const struct tcp_conn *c = ((struct tcp_ep *)ranks[0].ep)->out[0];

    return c ? (int)c->state : TCP_IDLE;
}

Test(tcp_join, a_rank_that_does_not_look_is_waited_for)
{
    set_up();
    join(0);
    join(1);
    cr_assert_eq(send_from(0), BNY_AGAIN);
    pass(0, AWAY);
    cr_assert_not(ranks[0].down, "%s", ranks[0].reason);
    expect_message();
    tear_down();
}

/* The same, with two addresses, neither of which answers: any may be a stranger's. */
Test(tcp_join, a_rank_of_two_addresses_that_does_not_look_is_waited_for)
{
    set_up();
    ranks[1].blob.count = 2;
    ranks[1].blob.addrs[1] = ranks[1].blob.addrs[0];
    join(0);
    join(1);
    cr_assert_eq(send_from(0), BNY_AGAIN);
    pass(0, AWAY);
    cr_assert_not(ranks[0].down, "%s", ranks[0].reason);
    expect_message();
    tear_down();
}

struct away {
    int looks; /* of rank 0, with rank 1's between them, before it goes away */
};

static const struct away aways[] = { { 0 }, { 1 }, { 2 }, { 3 } };

ParameterizedTestParameters(tcp_join, whoever_was_away_goes_on)
{
    return cr_make_param_array(struct away, (void *)(uintptr_t)aways,
                               sizeof aways / sizeof aways[0]);
}

ParameterizedTest(struct away *p, tcp_join, whoever_was_away_goes_on, .timeout = 60)
{
    set_up();
    join(0);
    join(1);
    cr_assert_eq(send_from(0), BNY_AGAIN);
    for (int i = 0; i < p->looks; i++) {
        look(0);
        look_often(1);
    }
    fprintf(stderr, "# away in state %d\n", stage());
    pass(1, AWAY);
    expect_message();
    tear_down();
}

/* Both are away, and each comes back to more than it can look at. */
Test(tcp_join, both_were_away)
{
    set_up();
    join(0);
    join(1);
    cr_assert_eq(send_from(0), BNY_AGAIN);
    for (int i = 0; i < 3; i++) {
        look_often(0);
        virtual_ns += AWAY * SECOND;
        look(1);
        virtual_ns += AWAY * SECOND;
    }
    expect_message();
    tear_down();
}

static struct bny_addr silent(int *fd) /* somebody listens, and says nothing */
{
    struct bny_addr a = bny_addr_loopback(0);

    *fd = bny_net_listen_at(&a, 64);
    cr_assert_geq(*fd, 0);
    return a;
}

Test(tcp_join, a_silent_stranger_is_passed_over)
{
    int fd;

    set_up();
    ranks[1].blob.count = 2;
    ranks[1].blob.addrs[1] = ranks[1].blob.addrs[0];
    ranks[1].blob.addrs[0] = silent(&fd);
    join(0);
    join(1);
    expect_message();
    close(fd);
    tear_down();
}

/* Connections that wait for rank 1 to accept them, and the most that may. */
static void waiting(uint32_t *now, uint32_t *most)
{
    struct tcp_info info = { 0 };
    socklen_t len = sizeof info;

    cr_assert_eq(getsockopt(((struct tcp_tp *)ranks[1].tp)->listeners[0], IPPROTO_TCP, TCP_INFO,
                            &info, &len),
                 0);
    *now = info.tcpi_unacked;
    *most = info.tcpi_sacked;
}

static int call_rank_1(void)
{
    int fd = bny_net_connect(&ranks[1].blob.addrs[0]);

    cr_assert_geq(fd, 0, "%s", strerror(-fd));
    return fd;
}

static int warned; /* that a rank does not answer, with what to do */

static void see(void *unused, enum banyan_log_level level, const char *text)
{
    (void)unused;
    warned += level == BANYAN_LOG_WARN && strstr(text, "op_timeout_s") &&
              strstr(text, "BANYAN_PORT_RANGE");
}

/* The kernel of a rank that computes answers nobody then. */
static void fill_queue_of_rank_1(void)
{
    uint32_t now = 0, most = 1;

    for (int i = 0; i < 8192 && now <= most; i++) {
        close(call_rank_1());
        waiting(&now, &most);
    }
    cr_assert_gt(now, most, "the queue has room");
}

Test(tcp_join, a_rank_whose_queue_strangers_filled_is_waited_for)
{
    banyan_set_log(see, NULL, BANYAN_LOG_WARN);
    set_up();
    join(0);
    join(1);
    fill_queue_of_rank_1();
    cr_assert_eq(send_from(0), BNY_AGAIN);
    pass(0, AWAY);
    cr_assert_eq(stage(), TCP_CONNECTING);
    cr_assert_eq(warned, 1);
    cr_assert_not(ranks[0].down, "%s", ranks[0].reason);
    expect_message();
    tear_down();
}

/* It computes for longer than a lost connection may take to be replaced. */
Test(tcp_join, a_lost_connection_to_a_rank_whose_queue_strangers_filled_is_replaced)
{
    const struct tcp_tp *t;

    banyan_set_log(see, NULL, BANYAN_LOG_WARN);
    set_up();
    join(0);
    join(1);
    expect_message();
    t = (const struct tcp_tp *)ranks[0].tp;
    cr_assert_lt(t->replace_ns, AWAY * SECOND);
    fill_queue_of_rank_1();
    cr_assert_eq(cut(((struct tcp_ep *)ranks[0].ep)->out[0]->fd), 0);
    pass(0, AWAY);
    cr_assert_not(ranks[0].down, "%s", ranks[0].reason);
    cr_assert_eq(warned, 1);
    ranks[1].got = 0;
    expect_message();
    cr_assert_eq(bny_counter_read(&t->tp.replaced), 1);
    tear_down();
}

/* More silent strangers than there are places, and no time passes: they delay nobody. */
Test(tcp_join, silent_strangers_do_not_delay_a_rank)
{
    enum { STRANGERS = 500 };
    int fds[STRANGERS];

    set_up();
    join(0);
    join(1);
    for (int i = 0; i < STRANGERS; i++)
        fds[i] = call_rank_1();
    send_from(0);
    for (int i = 0, sent = 0; i < 50 && !ranks[1].got; i++) {
        sent = sent || send_from(0) == 0;
        look_often(0);
        look_often(1);
    }
    cr_assert_eq(ranks[1].got, 1, "strangers keep a rank out");
    cr_assert_leq(((struct tcp_tp *)ranks[1].tp)->nhalf, TCP_HALF_MAX);
    for (int i = 0; i < STRANGERS; i++)
        close(fds[i]);
    tear_down();
}

/* One byte a second: the time is that of the whole handshake, however often there is something
 * to read. */
Test(tcp_join, a_stranger_that_sends_a_byte_a_second_is_dropped)
{
    const struct tcp_hello h = { .magic = "bnyT", .wire = BNY_WIRE_VERSION, .to = 1 };
    const struct tcp_tp *t;
    int fd, held = 0;

    set_up();
    t = (const struct tcp_tp *)ranks[1].tp;
    fd = call_rank_1();
    for (int i = 0; i < 20; i++) {
        (void)!send(fd, (const char *)&h + i, 1, MSG_NOSIGNAL);
        pass(1, 1);
        held += t->nhalf == 1;
    }
    cr_assert(held && held < 6, "held for %d s", held);
    cr_assert_eq(t->nhalf, 0);
    close(fd);
    tear_down();
}

/* A rank connects, and computes before it says who it is; strangers come meanwhile. */
Test(tcp_join, strangers_take_no_place_of_a_rank_that_has_just_connected)
{
    enum { STRANGERS = 20 };
    int fds[STRANGERS];

    set_up();
    join(0);
    join(1);
    send_from(0);
    for (int i = 0; i < STRANGERS; i++)
        fds[i] = call_rank_1();
    look_often(1);
    cr_assert_eq(((struct tcp_tp *)ranks[1].tp)->nhalf, 1 + STRANGERS);
    expect_message();
    for (int i = 0; i < STRANGERS; i++)
        close(fds[i]);
    tear_down();
}

/* The same, but it computes longer than a hello takes, each time. */
Test(tcp_join, a_rank_that_loses_its_place_often_is_waited_for)
{
    enum { STRANGERS = 20, ROUNDS = 12 };
    int fds[STRANGERS * ROUNDS], lost = 0;

    set_up();
    join(0);
    join(1);
    send_from(0);
    for (int i = 0; i < ROUNDS; i++) {
        look_often(1);
        virtual_ns += SECOND / 10;
        for (int k = 0; k < STRANGERS; k++)
            fds[i * STRANGERS + k] = call_rank_1();
        look_often(1);
        for (int k = 0; k < 100 && stage() != TCP_BACKOFF; k++)
            look_often(0);
        lost += stage() == TCP_BACKOFF;
        virtual_ns += SECOND;
        look(0); /* connects again */
        cr_assert_not(ranks[0].down, "%s", ranks[0].reason);
    }
    cr_assert_gt(lost, ROUNDS / 2);
    expect_message();
    for (int i = 0; i < STRANGERS * ROUNDS; i++)
        close(fds[i]);
    tear_down();
}

/* All ranks but rank 1 connect to it, and say who they are when all have connected. */
Test(tcp_join, many_ranks_take_no_place_of_each_other)
{
    enum { RANKS = 65 };
    const struct tcp_tp *t;
    struct tcp_hello h = { .magic = "bnyT", .wire = BNY_WIRE_VERSION, .to = 1 };
    char answer[sizeof(struct tcp_answer) + 32];
    int fds[RANKS];

    set_up_of(RANKS);
    t = (const struct tcp_tp *)ranks[1].tp;
    h.integrity = (uint8_t)t->integrity;
    h.ciphers = (uint8_t)t->ciphers;
    memcpy(h.instance, ranks[1].blob.instance, sizeof h.instance);
    for (int r = 0; r < RANKS; r++, look_often(r % 16 ? 0 : 1), virtual_ns += SECOND / 50)
        fds[r] = r == 1 ? -1 : call_rank_1();
    look_often(1);
    cr_assert_eq(t->nhalf, RANKS - 1);
    for (int r = 0; r < RANKS; r++) {
        h.from = r;
        cr_assert(r == 1 || write(fds[r], &h, sizeof h) == sizeof h);
    }
    look_often(1);
    look_often(1);
    for (int r = 0; r < RANKS; r++) {
        cr_assert(r == 1 || recv(fds[r], answer, sizeof answer, MSG_WAITALL) == sizeof answer,
                  "rank %d lost its place", r);
        close(fds[r]);
    }
    tear_down();
}

Test(tcp_join, nobody_there_is_told_at_once)
{
    int fd;

    set_up();
    ranks[1].blob.addrs[0] = silent(&fd);
    close(fd);
    join(0);
    cr_assert_eq(send_from(0), BNY_AGAIN);
    for (int i = 0; i < 1000 && !ranks[0].down; i++) {
        virtual_ns += SECOND / 100;
        look_often(0);
    }
    cr_assert(ranks[0].down, "a port that nobody has is asked for ever");
    cr_assert(strstr(ranks[0].reason, "refused"), "%s", ranks[0].reason);
    tear_down();
}

struct want {
    size_t bytes;  /* of what rank 1 has no memory for; 0: of anything */
    int steps;     /* of 50 ms, in which it has none */
    int fails;     /* it says so itself, that long it is */
    int knows;     /* it has connected to rank 0, too */
    int protected; /* by a MAC */
};

#define CONN sizeof(struct tcp_conn)
#define EP   sizeof(struct tcp_ep)
#define SEC  sizeof(struct tcp_secure)

static const struct want wants[] = {
    { CONN, 34, 0, 1, 0 }, { CONN, 60, 1, 1, 0 }, { EP, 34, 0, 0, 0 }, { EP, 60, 1, 0, 0 },
    { SEC, 34, 0, 1, 1 },  { SEC, 60, 1, 1, 1 },  { 0, 34, 0, 1, 1 },  { 0, 60, 1, 0, 0 },
};

ParameterizedTestParameters(tcp_join, who_lacks_memory_to_accept_is_waited_for)
{
    return cr_make_param_array(struct want, (void *)(uintptr_t)wants,
                               sizeof wants / sizeof wants[0]);
}

/* Steps of 50 ms; rank 0 sends once it can. */
static void pass_both(int steps)
{
    for (int i = 0; i < steps; i++) {
        virtual_ns += SECOND / 20;
        look_often(0);
        look_often(1);
        if (stage() == TCP_OPEN)
            send_from(0);
        cr_assert_not(ranks[0].down || ranks[1].down, "step %d: %s", i,
                      ranks[ranks[1].down].reason);
    }
}

/* For 2 s; then it says itself that it has none, and nobody takes it for dead. */
ParameterizedTest(struct want *w, tcp_join, who_lacks_memory_to_accept_is_waited_for,
                  .timeout = 60)
{
    setenv("BANYAN_INTEGRITY", w->protected ? "mac" : "plain", 1);
    set_up();
    join(0);
    if (w->knows)
        join(1);
    starving = 1;
    starved_size = w->bytes;
    cr_assert_eq(send_from(0), BNY_AGAIN);
    pass_both(w->steps);
    cr_assert_eq(ranks[1].error, w->fails ? -BANYAN_ENOMEM : 0);
    starving = -1;
    if (!w->knows)
        join(1);
    pass_both(40);
    cr_assert_gt(ranks[1].got, 0);
    tear_down();
}

/* Its own failure, too, is no death of the other. */
Test(tcp_join, who_lacks_memory_to_connect_says_so)
{
    setenv("BANYAN_INTEGRITY", "mac", 1);
    set_up();
    join(0);
    join(1);
    starving = 0;
    starved_size = SEC;
    cr_assert_eq(send_from(0), BNY_AGAIN);
    pass_both(60);
    cr_assert_eq(ranks[0].error, -BANYAN_ENOMEM);
    cr_assert_not(ranks[0].down || ranks[1].down || ranks[1].error);
    tear_down();
}

/* Until rank 0 has so many messages of rank 1. */
static void receive(int n)
{
    for (int i = 0; i < 200 && ranks[0].got < n; i++) {
        virtual_ns += SECOND / 1000;
        look_often(1);
        look_often(0);
    }
    cr_assert_eq(ranks[0].got, n);
}

/* A rank dies in the middle of a message that its receiver cannot use yet: what lies behind it
 * is never read, and the receiver hears of the death all the same, not after the 2 s that a
 * reader may take. */
Test(tcp_join, a_message_that_nobody_views_does_not_hide_a_death)
{
    struct bny_hdr hdr = { .kind = BNY_MSG_DATA, .chan = 1 };
    static char data[LONG];
    uint64_t died;

    set_up();
    join(0);
    join(1);
    for (int i = 0; i < 2; i++, hdr.chan = 0) { /* a connection for each lane */
        for (int k = 0; k < 200 && bny_tcp_ops.eager(ranks[1].ep, &hdr, NULL) != 0; k++) {
            look_often(0);
            look_often(1);
        }
        receive(i + 1);
    }
    hdr.len = LONG;
    cr_assert_eq(bny_tcp_ops.send(ranks[1].ep, &hdr, data, NULL), 0, "%s", banyan_last_error());
    receive(3);
    bny_tcp_ops.destroy(ranks[1].tp);
    ranks[1].tp = NULL;
    died = virtual_ns;
    while (!ranks[0].down && virtual_ns < died + AWAY * SECOND) {
        virtual_ns += SECOND / 20;
        look_often(0);
    }
    cr_assert(ranks[0].down);
    cr_assert_lt(virtual_ns - died, SECOND, "%.3f s", (double)(virtual_ns - died) / SECOND);
    bny_tcp_ops.destroy(ranks[0].tp);
    virtual_ns = 0;
}
