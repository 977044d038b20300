/* SPDX-License-Identifier: BSD-3-Clause */
/* The control plane: whatever one rank reports or suffers, every survivor agrees on the same
 * first cause; who says farewell is no failure. All ranks are driven by one thread. */
#include <errno.h>
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/counts.h"
#include "base/rng.h"
#include "support.h"
#include "transport/bootstrap/conn.h"
#include "transport/bootstrap/control.h"
#include "transport/bootstrap/id.h"
#include "transport/bootstrap/net.h"

TestSuite(control, .timeout = 60);

#define RANKS_MAX 64
#define BLOB      64

/* Virtual time: it goes on by so much with each round, from now_ns; 0: the clock's own. */
static uint64_t round_ns, now_ns;

int __real_clock_gettime(clockid_t which, struct timespec *t);
int __wrap_clock_gettime(clockid_t which, struct timespec *t);
int __wrap_clock_gettime(clockid_t which, struct timespec *t)
{
    if (!round_ns)
        return __real_clock_gettime(which, t);
    t->tv_sec = (time_t)(now_ns / 1000000000u);
    t->tv_nsec = (long)(now_ns % 1000000000u);
    return 0;
}

struct world {
    int n;
    struct bny_id id;
    struct bny_control *c[RANKS_MAX];
    uint8_t blobs[RANKS_MAX * BLOB], same_host[RANKS_MAX];
};

static void world_create(struct world *w, int n, const char *ifname)
{
    memset(w, 0, sizeof *w);
    w->n = n;
    memset(w->same_host, 1, sizeof w->same_host);
    cr_assert_eq(bny_id_create(&w->id, "lo", "", 0), 0);
    for (int r = 0; r < n; r++) {
        cr_assert_eq(bny_control_create(&w->c[r], r, n, w->id.secret, w->id.job, ifname, ""), 0,
                     "%s", banyan_last_error());
        cr_assert_gt(bny_control_address(w->c[r], w->blobs + r * BLOB, BLOB), 0);
    }
}

static void world_connect(struct world *w)
{
    for (int r = 0; r < w->n; r++)
        cr_assert_eq(bny_control_connect(w->c[r], w->blobs, BLOB, w->same_host), 0, "%s",
                     banyan_last_error());
}

/* One round; returns how many ranks know an agreed failure. */
static int world_round(struct world *w)
{
    int failed = 0;

    now_ns += round_ns;
    for (int r = 0; r < w->n; r++)
        failed += w->c[r] && bny_control_progress(w->c[r]);
    return failed;
}

static int world_alive(const struct world *w)
{
    int alive = 0;

    for (int r = 0; r < w->n; r++)
        alive += w->c[r] != NULL;
    return alive;
}

static void world_until_ready(struct world *w)
{
    uint64_t end = bny_deadline_in(20);
    int ready;

    do {
        cr_assert_eq(world_round(w), 0);
        cr_assert(!bny_deadline_passed(end), "not connected after 20 s");
        ready = 0;
        for (int r = 0; r < w->n; r++)
            ready += !w->c[r] || bny_control_ready(w->c[r]);
    } while (ready < w->n);
}

static void world_new(struct world *w, int n)
{
    world_create(w, n, "lo");
    world_connect(w);
    world_until_ready(w);
}

static void world_free(struct world *w)
{
    for (int r = 0; r < w->n; r++)
        bny_control_destroy(w->c[r]);
}

/* Rounds until everybody who is left knows of a failure. Returns the longest one, in ns: what
 * takes longer than a view waits to be heard comes behind it. */
static uint64_t world_settle(struct world *w)
{
    uint64_t end = bny_deadline_in(20), at = bny_now_ns(), longest = 0;
    int know;

    do {
        uint64_t now;

        cr_assert(!bny_deadline_passed(end), "not everybody knows after 20 s");
        know = world_round(w);
        now = bny_now_ns();
        longest = now - at > longest ? now - at : longest;
        at = now;
    } while (know < world_alive(w));
    return longest;
}

/* Everybody who is left agrees on the same failure, words included. */
static struct bny_failure world_agreed(struct world *w)
{
    struct bny_failure first, f;
    int have = 0;

    world_settle(w);
    for (int r = 0; r < w->n; r++) {
        if (!w->c[r])
            continue;
        cr_assert_eq(bny_control_failure(w->c[r], &f), 1);
        if (!have++)
            first = f;
        cr_assert(f.cause == first.cause && f.blamed == first.blamed && f.comm == first.comm,
                  "rank %d: cause %u blamed %d (%s), another: cause %u blamed %d (%s)", r,
                  f.cause, f.blamed, f.text, first.cause, first.blamed, first.text);
    }
    return first;
}

static void world_expect_healthy(struct world *w, int rounds)
{
    for (int i = 0; i < rounds; i++)
        cr_assert_eq(world_round(w), 0);
    for (int r = 0; r < w->n; r++)
        cr_assert(!w->c[r] || !bny_control_suspect(w->c[r]), "rank %d suspects", r);
}

static struct bny_failure failure(enum bny_cause cause, int blamed, uint32_t comm)
{
    struct bny_failure f = {
        .cause = cause, .code = BANYAN_EABORTED, .blamed = blamed, .comm = comm
    };

    snprintf(f.text, sizeof f.text, "cause %d of rank %d", (int)cause, blamed);
    return f;
}

struct shape {
    int n;
};

static struct shape shapes[] = { { 2 }, { 5 }, { 9 }, { 12 }, { 33 } };
#define SHAPES cr_make_param_array(struct shape, shapes, sizeof shapes / sizeof shapes[0])

/* The smallest of them; but the end of a rank that aborted is none. */
static struct bny_failure first_cause(const struct bny_failure *f, int n)
{
    struct bny_failure best = { .cause = 99 };

    for (int i = 0; i < n; i++) {
        int follows = 0;

        for (int k = 0; k < n; k++)
            follows |= f[i].cause == BNY_CAUSE_DEATH && f[k].cause == BNY_CAUSE_ABORT &&
                       f[k].blamed == f[i].blamed;
        if (!follows && (f[i].cause < best.cause ||
                         (f[i].cause == best.cause && f[i].blamed < best.blamed)))
            best = f[i];
    }
    return best;
}

ParameterizedTestParameters(control, simultaneous_failures_have_one_winner)
{
    return SHAPES;
}

ParameterizedTest(struct shape *s, control, simultaneous_failures_have_one_winner)
{
    uint64_t seed = test_seed() + (uint64_t)s->n;

    for (int round = 0, stalls = 0; round < 4; round++) {
        struct world w;
        struct bny_failure told[5], best, got;
        int reports = 1 + (int)bny_rng_below(&seed, 5);
        uint64_t start, longest;

        world_new(&w, s->n);
        start = bny_now_ns();
        for (int i = 0; i < reports; i++) {
            int who = (int)bny_rng_below(&seed, (uint64_t)s->n);

            told[i] = failure(BNY_CAUSE_MISMATCH + (int)bny_rng_below(&seed, 4),
                              (int)bny_rng_below(&seed, (uint64_t)s->n), 0);
            bny_control_report(w.c[who], &told[i]);
            cr_assert_eq(bny_control_suspect(w.c[who]), 1);
        }
        best = first_cause(told, reports);
        start = bny_now_ns() - start;
        longest = world_settle(&w) + start;
        if (longest > 5000000u &&
            stalls++ < 40) { /* this process was not running: no test of anything */
            world_free(&w);
            round--;
            continue;
        }
        got = world_agreed(&w);
        cr_assert(got.cause == best.cause && got.blamed == best.blamed, "round %d of seed",
                  round);
        cr_assert_str_eq(got.text, best.text);
        cr_assert_eq(got.code, BANYAN_EABORTED);
        world_free(&w);
    }
}

ParameterizedTestParameters(control, an_end_without_farewell_is_a_death)
{
    return SHAPES;
}

ParameterizedTest(struct shape *s, control, an_end_without_farewell_is_a_death)
{
    uint64_t seed = test_seed() + 7 * (uint64_t)s->n;
    int victim = (int)bny_rng_below(&seed, (uint64_t)s->n);
    struct bny_failure got;
    struct world w;
    char words[64], host[36] = "";

    world_new(&w, s->n);
    world_expect_healthy(&w, 20);
    bny_control_destroy(w.c[victim]);
    w.c[victim] = NULL;
    got = world_agreed(&w);
    cr_assert_eq(got.cause, BNY_CAUSE_DEATH);
    cr_assert_eq(got.code, BANYAN_ERANKDEAD);
    cr_assert_eq(got.blamed, victim);
    gethostname(host, sizeof host - 1);
    snprintf(words, sizeof words, "rank %d (pid %d on %s) died", victim, (int)getpid(), host);
    cr_assert(strstr(got.text, words), "%s", got.text);
    world_free(&w);
}

ParameterizedTestParameters(control, a_farewell_is_no_failure)
{
    return SHAPES;
}

ParameterizedTest(struct shape *s, control, a_farewell_is_no_failure)
{
    struct world w;
    struct bny_failure f = failure(BNY_CAUSE_ABORT, 0, 0);
    int stay = s->n > 2 ? 2 : 1; /* the last ones */

    world_new(&w, s->n);
    for (int r = 0; r < s->n - stay; r++) {
        while (bny_control_farewell(w.c[r]) != 0)
            world_round(&w);
        bny_control_destroy(w.c[r]);
        w.c[r] = NULL;
        world_expect_healthy(&w, 3);
    }
    world_expect_healthy(&w, 50);
    /* The last two are neighbours and still hear each other. */
    bny_control_report(w.c[s->n - 1], &f);
    cr_assert_eq(world_agreed(&w).cause, BNY_CAUSE_ABORT);
    world_free(&w);
}

Test(control, everybody_may_leave_at_once)
{
    struct world w;
    int left = 0;

    world_create(&w, 12, "lo");
    world_connect(&w);
    /* Expect: farewell itself waits for the neighbours that are still connecting. */
    while (left < w.n) {
        for (int r = 0; r < w.n; r++) {
            if (!w.c[r] || bny_control_farewell(w.c[r]) != 0)
                continue;
            cr_assert_eq(bny_control_suspect(w.c[r]), 0);
            bny_control_destroy(w.c[r]);
            w.c[r] = NULL;
            left++;
        }
    }
}

Test(control, ranks_that_leave_after_a_failure_are_not_blamed)
{
    for (int first = 0; first < 5; first++) {
        struct world w;
        struct bny_failure f = failure(BNY_CAUSE_MISMATCH, 3, 0), got;

        world_new(&w, 5);
        bny_control_report(w.c[first], &f);
        /* One learns of it and goes at once, as an application does that exits on an error. */
        while (!bny_control_suspect(w.c[(first + 1) % 5]))
            world_round(&w);
        bny_control_destroy(w.c[(first + 1) % 5]);
        w.c[(first + 1) % 5] = NULL;
        got = world_agreed(&w);
        cr_assert(got.cause == BNY_CAUSE_MISMATCH && got.blamed == 3, "%s", got.text);
        world_free(&w);
    }
}

Test(control, a_death_explains_a_reset)
{
    struct world w;
    struct bny_failure f = failure(BNY_CAUSE_RESET, 2, 0);

    world_new(&w, 5);
    bny_control_report(w.c[0], &f);
    bny_control_destroy(w.c[2]);
    w.c[2] = NULL;
    cr_assert_eq(world_agreed(&w).cause, BNY_CAUSE_DEATH);
    world_free(&w);
}

Test(control, a_failure_of_one_communicator_leaves_the_others)
{
    struct world w;
    struct bny_failure f = failure(BNY_CAUSE_MISMATCH, 1, 7), got;

    world_new(&w, 5);
    bny_control_report(w.c[4], &f);
    world_agreed(&w);
    for (int r = 0; r < 5; r++) {
        cr_assert_eq(bny_control_failure_of(w.c[r], 7, &got), 1);
        cr_assert_eq(got.blamed, 1);
        cr_assert_eq(bny_control_failure_of(w.c[r], 8, &got), 0);
    }
    f = failure(BNY_CAUSE_DEADLINE, 2, 0);
    bny_control_report(w.c[0], &f);
    for (int r = 0; r < 5; r++) {
        while (!bny_control_failure_of(w.c[r], 8, &got))
            world_round(&w);
        cr_assert_eq(got.cause, BNY_CAUSE_DEADLINE);
        cr_assert_eq(bny_control_failure_of(w.c[r], 7, &got), 1);
        cr_assert_eq(got.cause, BNY_CAUSE_MISMATCH, "the first cause stays");
    }
    world_free(&w);
}

Test(control, a_report_before_the_links_are_up_is_not_lost)
{
    struct world w;
    struct bny_failure f = failure(BNY_CAUSE_ABORT, 1, 0);

    world_create(&w, 9, "lo");
    bny_control_report(w.c[4], &f);
    world_connect(&w);
    cr_assert_eq(world_agreed(&w).blamed, 1);
    world_free(&w);
}

Test(control, one_rank_alone_needs_no_sockets)
{
    struct world w;
    struct bny_failure f = failure(BNY_CAUSE_ABORT, 0, 0);
    int fd;

    world_create(&w, 1, "lo");
    world_connect(&w);
    cr_assert_eq(bny_control_ready(w.c[0]), 1);
    cr_assert_eq(bny_control_fds(w.c[0], &fd, 1), 0);
    cr_assert_eq(bny_control_progress(w.c[0]), 0);
    bny_control_report(w.c[0], &f);
    cr_assert_eq(bny_control_progress(w.c[0]), 1);
    cr_assert_eq(bny_control_farewell(w.c[0]), 0);
    world_free(&w);
}

Test(control, a_rank_that_died_before_connecting_is_found)
{
    struct world w;
    struct bny_failure got;

    world_create(&w, 4, "lo");
    bny_control_destroy(w.c[3]);
    w.c[3] = NULL;
    for (int r = 0; r < 3; r++)
        cr_assert_eq(bny_control_connect(w.c[r], w.blobs, BLOB, w.same_host), 0);
    got = world_agreed(&w);
    cr_assert_eq(got.cause, BNY_CAUSE_RESET);
    cr_assert_eq(got.blamed, 3);
    cr_assert(strstr(got.text, "BANYAN_IFNAME"), "%s", got.text);
    world_free(&w);
}

Test(control, foreign_connections_change_nothing)
{
    struct world w;
    uint64_t seed = test_seed();
    int fds[100];
    struct bny_addr addr;
    struct bny_id at;

    test_catch_log("did not prove to be a rank of this job");
    world_create(&w, 3, "lo");
    for (int i = 0; i < 100; i++) {
        uint8_t junk[200];

        memcpy(&addr, w.blobs + (1 + i % 2) * BLOB, sizeof addr);
        bny_id_set_addr(&at, &addr, 1);
        fds[i] = test_raw_connect(&at);
        test_fill(&seed, junk, sizeof junk);
        if (i % 3 == 1)
            cr_assert_gt(send(fds[i], junk, sizeof junk, MSG_NOSIGNAL), 0);
        if (i % 3 == 2)
            shutdown(fds[i], SHUT_RDWR);
        world_round(&w);
    }
    world_connect(&w);
    world_until_ready(&w);
    world_expect_healthy(&w, 50);
    cr_assert_geq(test_caught(), 1);
    for (int i = 0; i < 100; i++)
        close(fds[i]);
    world_free(&w);
}

/* Ranks try several ports for the root, where another service of their job may listen. */
Test(control, a_rank_that_looks_for_the_root_is_no_stranger)
{
    struct bny_conn_self self;
    struct bny_conn *c;
    struct bny_addr addr;
    struct world w;
    int epfd = epoll_create1(EPOLL_CLOEXEC);

    test_catch_log("did not prove to be a rank of this job");
    world_create(&w, 2, "lo");
    memcpy(&addr, w.blobs, sizeof addr);
    bny_conn_self_init(&self, BNY_CONN_BOOTSTRAP, w.id.secret, w.id.job, 1, 2);
    c = bny_conn_new(bny_net_connect(&addr), epfd, 1, &addr, &self, 1000);
    cr_assert(c);
    while (bny_conn_progress(c) == 0)
        world_round(&w);
    cr_assert(c->eof);
    bny_conn_free(c);
    close(epfd);
    world_connect(&w);
    world_until_ready(&w);
    world_expect_healthy(&w, 50);
    cr_assert_eq(test_caught(), 0);
    world_free(&w);
}

/* It has said who it is, and is slow to prove it, while more strangers come than there are
 * places; no time passes. */
Test(control, strangers_do_not_take_the_place_of_a_rank)
{
    enum { STRANGERS = 100 };
    struct bny_conn_self self;
    struct bny_conn *c;
    struct bny_addr addr;
    struct bny_id at;
    struct world w;
    int fds[STRANGERS], epfd = epoll_create1(EPOLL_CLOEXEC);

    round_ns = now_ns = 1;
    world_create(&w, 2, "lo");
    memcpy(&addr, w.blobs, sizeof addr);
    bny_id_set_addr(&at, &addr, 1);
    bny_conn_self_init(&self, BNY_CONN_CONTROL, w.id.secret, w.id.job, 1, 2);
    c = bny_conn_new(bny_net_connect(&addr), epfd, 1, &addr, &self, 1000);
    cr_assert(c);
    while (!w.c[0]->nhalf || !w.c[0]->half[0]->known) {
        cr_assert_eq(bny_conn_progress(c), 0);
        world_round(&w);
    }
    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = test_raw_connect(&at);
        world_round(&w);
    }
    cr_assert_leq(w.c[0]->nhalf, 1 + HALF_STRANGERS);
    while (bny_conn_progress(c) == 0)
        world_round(&w);
    cr_assert_eq(c->state, BNY_CONN_READY, "%s", c->why);
    cr_assert_not(c->eof, "%s", c->why);
    for (int i = 0; i < STRANGERS; i++)
        close(fds[i]);
    bny_conn_free(c);
    close(epfd);
    world_free(&w);
    round_ns = 0;
}

enum { LIARS = HALF_MAX + 6 }; /* who name the job, and do not know its secret */

static void call_liars(struct world *w, struct bny_conn *liars[LIARS], int epfd)
{
    static const uint8_t wrong[32] = { 1 };
    struct bny_conn_self liar;
    struct bny_addr addr;

    memcpy(&addr, w->blobs, sizeof addr);
    bny_conn_self_init(&liar, BNY_CONN_CONTROL, wrong, w->id.job, 1, 2);
    for (int i = 0; i < LIARS; i++) {
        liars[i] = bny_conn_new(bny_net_connect(&addr), epfd, 1, &addr, &liar, 1000);
        cr_assert(liars[i]);
        while (liars[i]->state == BNY_CONN_CONNECTING)
            cr_assert_eq(bny_conn_progress(liars[i]), 0);
        world_round(w);
    }
    cr_assert_eq(w->c[0]->nhalf, HALF_MAX);
}

/* The job's number is no secret where a launcher sets it: strangers fill all places with it. A
 * rank comes through, and keeps its place while it waits for this one's links; no time passes.
 */
Test(control, strangers_that_name_the_job_do_not_shut_the_door)
{
    struct bny_conn_self self;
    struct bny_conn *c, *liars[2][LIARS];
    struct bny_addr addr;
    struct world w;
    int epfd = epoll_create1(EPOLL_CLOEXEC), waiting = 0;

    round_ns = now_ns = 1;
    world_create(&w, 2, "lo");
    memcpy(&addr, w.blobs, sizeof addr);
    bny_conn_self_init(&self, BNY_CONN_CONTROL, w.id.secret, w.id.job, 1, 2);
    call_liars(&w, liars[0], epfd);
    c = bny_conn_new(bny_net_connect(&addr), epfd, 1, &addr, &self, 1000);
    for (int i = 0; i < 10000 && bny_conn_progress(c) == 0; i++)
        world_round(&w);
    cr_assert_eq(c->state, BNY_CONN_READY, "state %d: %s", c->state, c->why);
    world_round(&w); /* its proof arrives */
    call_liars(&w, liars[1], epfd);
    for (int i = 0; i < HALF_MAX; i++)
        waiting += w.c[0]->half[i]->state == BNY_CONN_READY;
    cr_assert_eq(waiting, 1, "a rank lost its place");
    bny_conn_free(c);
    for (int i = 0; i < LIARS; i++) {
        bny_conn_free(liars[0][i]);
        bny_conn_free(liars[1][i]);
    }
    close(epfd);
    world_free(&w);
    round_ns = 0;
}

Test(control, any_interface_works)
{
    struct world w;

    world_create(&w, 3, "");
    world_connect(&w);
    world_until_ready(&w);
    bny_control_destroy(w.c[1]);
    w.c[1] = NULL;
    cr_assert_eq(world_agreed(&w).blamed, 1);
    world_free(&w);
}

static void set_loop_port(struct world *w, int rank, uint16_t port)
{
    memcpy(w->blobs + rank * BLOB + offsetof(struct control_blob, loop_port), &port,
           sizeof port);
}

/* Each rank has a network namespace: at the port that is the peer's there somebody else listens
 * here, and says nothing. */
Test(control, a_stranger_at_the_port_of_the_peers_loopback)
{
    struct bny_addr stranger = bny_addr_loopback(0);
    int fd = bny_net_listen_at(&stranger, 8);
    struct world w;

    cr_assert_geq(fd, 0);
    world_create(&w, 3, "lo");
    for (int r = 0; r < 3; r++)
        set_loop_port(&w, r, stranger.port);
    world_connect(&w);
    world_until_ready(&w);
    world_expect_healthy(&w, 50);
    world_free(&w);
    close(fd);
}

/* Each rank has a network namespace, and at the port that is the peer's there another rank
 * listens here: whom it takes for its own link would see that end, and take it for a death.
 * late: rank 0, which is to connect, is asked at the port of a higher one whether it lives. */
static void meet_other_ranks(int late)
{
    enum { N = 4 };
    uint64_t end = bny_deadline_in(0.3);
    uint16_t port[N];
    struct world w;

    world_create(&w, N, "lo");
    for (int r = 0; r < N; r++)
        port[r] = w.c[r]->addr.port;
    for (int r = 0; r < N; r++)
        set_loop_port(&w, r, port[(r + N - 1) % N]);
    for (int r = late; r < N; r++)
        cr_assert_eq(bny_control_connect(w.c[r], w.blobs, BLOB, w.same_host), 0);
    while (late && !bny_deadline_passed(end)) {
        for (int r = late; r < N; r++)
            control_link_to(w.c[r], 0)->since_ns = 1;
        cr_assert_eq(world_round(&w), 0);
    }
    if (late)
        cr_assert_eq(bny_control_connect(w.c[0], w.blobs, BLOB, w.same_host), 0);
    world_until_ready(&w);
    world_expect_healthy(&w, 200);
    world_free(&w);
}

Test(control, another_rank_at_the_port_of_the_peers_loopback)
{
    meet_other_ranks(0);
    meet_other_ranks(1);
}

/* Its one address refuses, or is somebody else's, and at the other one it is too busy to
 * answer. */
Test(control, a_slow_peer_with_two_addresses_is_waited_for)
{
    struct bny_addr nobody = bny_addr_loopback(0);
    int fd = bny_net_listen_at(&nobody, 8), healthy = 0;
    struct world w;

    cr_assert_geq(fd, 0);
    close(fd);
    world_create(&w, 2, "lo");
    set_loop_port(&w, 1, nobody.port);
    cr_assert_eq(bny_control_connect(w.c[0], w.blobs, BLOB, w.same_host), 0);
    for (int turn = 0; turn < 30; turn++) { /* each as long as the longest silence */
        uint64_t end = bny_deadline_in(1);
        int silences = w.c[0]->links[0].silences;

        w.c[0]->links[0].attempt_ns = 1;
        while (w.c[0]->links[0].silences == silences && silences < 5 &&
               !bny_deadline_passed(end))
            healthy |= bny_control_progress(w.c[0]);
        healthy |= bny_control_progress(w.c[0]);
    }
    cr_assert_eq(healthy, 0, "it is given up");
    cr_assert_eq(bny_control_connect(w.c[1], w.blobs, BLOB, w.same_host), 0);
    world_until_ready(&w);
    world_expect_healthy(&w, 50);
    world_free(&w);
}

/* The same seen by the higher rank, which is to be connected to and asks whether the lower one
 * lives: nobody at its loopback's port, and no answer at its interface's, again and again. */
static void wait_for_a_slow_peer(int was_up)
{
    struct bny_addr nobody = bny_addr_loopback(0);
    int fd = bny_net_listen_at(&nobody, 8), failed = 0;
    struct world w;

    cr_assert_geq(fd, 0);
    close(fd);
    world_create(&w, 2, "lo");
    set_loop_port(&w, 0, nobody.port);
    cr_assert_eq(bny_control_connect(w.c[1], w.blobs, BLOB, w.same_host), 0);
    for (int turn = 0; turn < 20; turn++) {
        struct link *l = control_link_to(w.c[1], 0);
        uint64_t end = bny_deadline_in(0.02);

        cr_assert(l && !failed, "it is given up after %d turns", turn);
        if (was_up)
            l->lost_ns = w.c[1]->awake_ns;
        l->since_ns = l->attempt_ns = 1;
        l->retry_ns = 0;
        while (!failed && !bny_deadline_passed(end))
            failed |= bny_control_progress(w.c[1]);
    }
    cr_assert_eq(bny_control_connect(w.c[0], w.blobs, BLOB, w.same_host), 0);
    world_until_ready(&w);
    world_expect_healthy(&w, 50);
    world_free(&w);
}

Test(control, a_slow_peer_that_is_to_connect_is_waited_for)
{
    wait_for_a_slow_peer(0);
    wait_for_a_slow_peer(1);
}

Test(control, a_broken_card_is_an_error)
{
    struct world w;

    world_create(&w, 3, "lo");
    memset(w.blobs + BLOB, 0xee, BLOB);
    cr_assert_eq(bny_control_connect(w.c[0], w.blobs, BLOB, w.same_host), -BANYAN_EPROTO);
    cr_assert(strstr(banyan_last_error(), "peer info of rank 1"), "%s", banyan_last_error());
    world_free(&w);
}

static void *report_all(void *arg)
{
    struct world *w = arg;
    struct bny_failure out;

    for (int i = 0; i < 200; i++) {
        struct bny_failure f = failure(BNY_CAUSE_MISMATCH + i % 4, i % w->n, (uint32_t)(i % 3));

        bny_control_report(w->c[i % w->n], &f);
        bny_control_suspect(w->c[i % w->n]);
        bny_control_failure(w->c[i % w->n], &out);
    }
    return NULL;
}

Test(control, any_thread_may_report)
{
    pthread_t t[3];

    for (int tries = 0;; tries++) {
        struct world w;
        uint64_t start, longest;

        world_new(&w, 5);
        start = bny_now_ns();
        for (int i = 0; i < 3; i++)
            pthread_create(&t[i], NULL, report_all, &w);
        for (int i = 0; i < 3; i++)
            pthread_join(t[i], NULL);
        start = bny_now_ns() - start;
        longest = world_settle(&w) + start;
        if (longest <= 5000000u || tries == 40) /* else: it came in several views */
            world_agreed(&w);
        world_free(&w);
        if (longest <= 5000000u || tries == 40)
            break;
    }
}

Test(control, broken_records_are_refused)
{
    struct bny_failure good = failure(BNY_CAUSE_ABORT, 1, 0), f;

    good.reporter = 0;
    cr_assert(bny_failure_valid(&good, 2));
    f = good, f.cause = 0;
    cr_assert(!bny_failure_valid(&f, 2));
    f = good, f.cause = BNY_CAUSE_NOT_MADE + 1;
    cr_assert(!bny_failure_valid(&f, 2));
    f = good, f.code = BNY_ERROR_COUNT;
    cr_assert(!bny_failure_valid(&f, 2));
    f = good, f.blamed = 2;
    cr_assert(!bny_failure_valid(&f, 2));
    f = good, f.blamed = -2;
    cr_assert(!bny_failure_valid(&f, 2));
    f = good, f.reporter = -1;
    cr_assert(!bny_failure_valid(&f, 2));
    f = good;
    memset(f.text, 'x', sizeof f.text);
    cr_assert(!bny_failure_valid(&f, 2));
}

/* Of several failures in one view the smallest counts; what comes behind it does not. */
Test(control, the_smallest_of_a_view_counts)
{
    struct world w;
    struct bny_failure reset = failure(BNY_CAUSE_RESET, 1, 0),
                       abort_ = failure(BNY_CAUSE_ABORT, 2, 0),
                       death = failure(BNY_CAUSE_MISMATCH, 3, 0), got;

    world_new(&w, 4);
    bny_control_report(w.c[0], &reset);
    bny_control_report(w.c[3], &abort_);
    cr_assert_eq(world_agreed(&w).cause, BNY_CAUSE_ABORT);
    bny_control_report(w.c[0], &death);
    for (int r = 0; r < 4; r++)
        while (bny_control_pending(w.c[r], 0))
            world_round(&w);
    for (int r = 0; r < 4; r++) {
        cr_assert_eq(bny_control_failure(w.c[r], &got), 1);
        cr_assert_eq(got.cause, BNY_CAUSE_ABORT, "too late to count");
    }
    world_free(&w);
}

Test(control, the_end_of_a_rank_that_aborted_is_no_cause)
{
    for (int i = 0; i < 4; i++) { /* in either order */
        struct bny_failure end = failure(i / 2 ? BNY_CAUSE_LEFT : BNY_CAUSE_DEATH, 1, 0),
                           abort_ = failure(BNY_CAUSE_ABORT, 1, 0), got;
        struct world w;

        world_new(&w, 4);
        abort_.comm = 7;
        bny_control_report(w.c[i % 2 ? 0 : 2], i % 2 ? &end : &abort_);
        bny_control_report(w.c[i % 2 ? 2 : 0], i % 2 ? &abort_ : &end);
        bny_control_destroy(w.c[1]);
        w.c[1] = NULL;
        for (int r = 0; r < 4; r++)
            while (w.c[r] && bny_control_failure_of(w.c[r], 8, &got) == 0)
                world_round(&w);
        for (int r = 0; r < 4; r++) {
            if (!w.c[r])
                continue;
            cr_assert_eq(bny_control_failure_of(w.c[r], 7, &got), 1);
            cr_assert_eq(got.cause, BNY_CAUSE_ABORT, "%s", got.text);
            cr_assert_eq(bny_control_failure_of(w.c[r], 8, &got), 1);
            cr_assert(got.cause == BNY_CAUSE_DEATH || got.cause == BNY_CAUSE_LEFT,
                      "another communicator was not aborted: %s", got.text);
        }
        world_free(&w);
    }
}

/* ---- links that break, rings that are cut, ranks that sleep ---- */

/* Its end is a reset, as when a firewall forgets the connection. */
static void link_reset(struct bny_control *c, int peer)
{
    struct linger hard = { .l_onoff = 1 };
    struct link *l = control_link_to(c, peer);

    cr_assert(l && l->state == LINK_UP);
    cr_assert_eq(setsockopt(l->conn->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard), 0);
    bny_conn_free(l->conn);
    l->conn = NULL;
    l->state = peer > c->rank ? LINK_TRYING : LINK_WAITING;
    l->lost_ns = c->awake_ns;
    l->heard_ns = bny_now_ns();
    l->attempts = l->refusals[0] = l->refusals[1] = 0;
    l->retry_ns = 0;
    c->busy = 1;
}

ParameterizedTestParameters(control, a_link_that_breaks_is_made_anew)
{
    return SHAPES;
}

ParameterizedTest(struct shape *s, control, a_link_that_breaks_is_made_anew)
{
    uint64_t seed = test_seed() + 3 * (uint64_t)s->n;
    struct bny_failure f = failure(BNY_CAUSE_MISMATCH, 0, 0);
    struct world w;

    world_new(&w, s->n);
    for (int i = 0; i < 10; i++) {
        int r = (int)bny_rng_below(&seed, (uint64_t)s->n), up = 0;
        int q = (r + 1) % s->n;
        uint64_t end = bny_deadline_in(5);

        link_reset(w.c[r], q);
        while (up < 2 && !bny_deadline_passed(end)) {
            cr_assert_eq(world_round(&w), 0);
            up = (control_link_to(w.c[r], q)->state == LINK_UP) +
                 (control_link_to(w.c[q], r)->state == LINK_UP);
        }
        cr_assert_eq(up, 2, "ranks %d and %d are not connected again", r, q);
    }
    world_expect_healthy(&w, 50);
    /* What is reported while a link is broken is heard behind it. */
    link_reset(w.c[0], 1);
    bny_control_report(w.c[0], &f);
    cr_assert_eq(world_agreed(&w).cause, BNY_CAUSE_MISMATCH);
    world_free(&w);
}

/* Its kernel answers, it does not: it is stopped, or has no processor among a thousand. Whoever
 * lost the link to it waits on, and does not call it dead. */
Test(control, a_lost_peer_whose_kernel_answers_is_not_dead)
{
    for (int awake = 0; awake < 2; awake++) {
        uint64_t end;
        struct world w;

        world_create(&w, 2, "");
        w.same_host[0] = w.same_host[1] = 0; /* at the interface's address */
        world_connect(&w);
        world_until_ready(&w);
        w.c[awake]->silent_ns = 300u * 1000000;
        link_reset(w.c[awake], !awake);
        end = bny_deadline_in(1.5);
        while (!bny_deadline_passed(end))
            cr_assert_eq(bny_control_progress(w.c[awake]), 0, "it is given up");
        end = bny_deadline_in(5);
        while (!bny_deadline_passed(end) && !(control_link_to(w.c[0], 1)->state == LINK_UP &&
                                              control_link_to(w.c[1], 0)->state == LINK_UP))
            cr_assert_eq(world_round(&w), 0);
        cr_assert_eq(control_link_to(w.c[awake], !awake)->state, LINK_UP);
        world_expect_healthy(&w, 50);
        world_free(&w);
    }
}

/* Rank 1 has heard nothing of some others for so many eighths of the silence that it bears. */
static int is_over(int eighths, int nlost, int peer)
{
    struct bny_control *c = calloc(1, sizeof *c);
    int over;

    c->rank = 1;
    c->nlinks = nlost;
    c->silent_ns = 8;
    c->awake_ns = 1000;
    for (int i = 0; i < nlost; i++) {
        c->links[i].peer = i ? 1 + i : peer;
        c->links[i].state = LINK_TRYING;
        c->links[i].lost_ns = c->awake_ns - (uint64_t)eighths;
        c->links[i].addr[0] = (struct bny_addr){ .family = 4, .ip = { 10, 0, 0, (uint8_t)i } };
    }
    over = silence_is_over(c, &c->links[0]);
    free(c);
    return over;
}

/* Of two the lower one speaks first, and who misses several later than who misses one. */
Test(control, nobody_is_silent_before_the_time_that_was_set)
{
    for (int nlost = 1; nlost < 7; nlost++)
        for (int peer = 0; peer < 8; peer += 7) {
            int first = nlost == 1 ? 8 + (peer == 0) : 9 + (nlost < 5 ? nlost - 1 : 4);

            cr_assert_eq(is_over(first - 1, nlost, peer), 0, "%d lost", nlost);
            cr_assert_eq(is_over(first, nlost, peer), 1, "%d lost", nlost);
        }
}

/* ---- quorum ---- */

/* Rank `teller` says so of the ranks; what do those agree on who are left? */
static struct bny_failure told_of(int n, int teller, enum bny_cause cause, const char *ranks,
                                  uint32_t *call_rc)
{
    struct world w;
    struct bny_failure f, got = { 0 };
    struct bny_contribution mine = { .bits = 1 };
    struct bny_control *kept[8] = { NULL }; /* their connections do not end: they are silent */
    int nkept = 0;

    world_new(&w, n);
    for (const char *r = ranks; *r; r++) {
        f = failure(cause, *r - '0', 0);
        f.code = BANYAN_ERANKDEAD;
        bny_control_report(w.c[teller], &f);
        kept[nkept++] = w.c[*r - '0'];
        w.c[*r - '0'] = NULL;
    }
    got = world_agreed(&w);
    *call_rc = (uint32_t)-bny_control_agree_start(w.c[teller], 5, 1, &mine, 0);
    world_free(&w);
    while (nkept)
        bny_control_destroy(kept[--nkept]);
    return got;
}

Test(control, fewer_than_most_do_not_go_on_where_others_are_silent)
{
    static const struct {
        int n, teller;
        const char *quorum, *gone;
        int cut_off; /* when they are silent; when they are dead: nobody ever */
    } cases[] = {
        { 5, 0, "", "123", 1 },     { 5, 0, "", "34", 0 },   { 4, 0, "", "23", 0 },
        { 4, 2, "", "01", 1 },      { 4, 1, "", "02", 1 },   { 8, 7, "", "0123456", 1 },
        { 5, 0, "any", "1234", 0 }, { 5, 0, "2", "124", 0 }, { 5, 0, "majority", "123", 1 },
        { 5, 0, "4", "12", 1 },
    };

    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        int dead = (int)i % 2, cut = !dead && cases[i / 2].cut_off;
        struct bny_failure f;
        uint32_t rc;

        setenv("BANYAN_QUORUM", cases[i / 2].quorum, 1);
        f = told_of(cases[i / 2].n, cases[i / 2].teller,
                    dead ? BNY_CAUSE_DEATH : BNY_CAUSE_SILENT, cases[i / 2].gone, &rc);
        cr_assert_eq(rc, cut ? BANYAN_ERANKDEAD : 0, "case %zu: %s", i, f.text);
        cr_assert_eq(f.blamed, cut ? -1 : cases[i / 2].gone[0] - '0', "case %zu: %s", i,
                     f.text);
        cr_assert_eq(strstr(f.text, "is cut off from") != NULL, cut, "case %zu: %s", i, f.text);
    }
    unsetenv("BANYAN_QUORUM");
}

Test(control, a_quorum_that_is_none_is_refused)
{
    static const char *const wrong[] = { "most", "0", "6", "3 ranks", "-1" };
    struct bny_control *c;
    uint8_t secret[32] = { 1 }, job[8] = { 2 };

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        setenv("BANYAN_QUORUM", wrong[i], 1);
        cr_assert_eq(bny_control_create(&c, 0, 5, secret, job, "lo", NULL), -BANYAN_ECONFIG);
        cr_assert_not_null(strstr(banyan_last_error(), wrong[i]));
    }
    unsetenv("BANYAN_QUORUM");
}

/* Others count it as dead, and it has lost its links before it heard of that: it hears of it
 * where it connects again, or asks whether they live. */
Test(control, who_was_excluded_is_told_when_it_comes_back)
{
    for (int victim = 0; victim < 3; victim += 2) {
        struct bny_failure f = failure(BNY_CAUSE_SILENT, victim, 0);
        uint64_t end = bny_deadline_in(20);
        struct world w;

        world_new(&w, 3);
        for (int r = 0; r < 3; r++)
            if (r != victim)
                link_reset(w.c[victim], r);
        bny_control_report(w.c[1], &f);
        for (int know = 0; know < 2;) {
            know = 0;
            for (int r = 0; r < 3; r++)
                know += r != victim && bny_control_progress(w.c[r]);
            cr_assert(!bny_deadline_passed(end), "the others do not agree");
        }
        while (!w.c[victim]->agree.excluded) {
            world_round(&w);
            cr_assert(!bny_deadline_passed(end), "rank %d was not told", victim);
        }
        world_free(&w);
    }
}

/* Who is said to be dead, and is not, hears who said so. */
Test(control, who_was_said_to_be_dead_is_told_the_words)
{
    struct bny_failure f = failure(BNY_CAUSE_DEATH, 2, 0), got = { 0 };
    uint64_t end = bny_deadline_in(20);
    struct world w;

    world_new(&w, 3);
    bny_control_report(w.c[0], &f);
    while (!bny_control_failure(w.c[2], &got)) {
        world_round(&w);
        cr_assert(!bny_deadline_passed(end), "rank 2 was not told");
    }
    cr_assert(got.blamed == 2 && strstr(got.text, f.text), "%s", got.text);
    world_free(&w);
}

/* A rank without memory for its part is dead to the others, who go on; itself it knows why. */
Test(control, who_lacks_memory_ends_alone)
{
    for (int victim = 0; victim < 3; victim++) {
        struct bny_failure got;
        struct world w;

        world_new(&w, 3);
        pthread_mutex_lock(&w.c[victim]->lock);
        control_lack(w.c[victim], ENOMEM);
        pthread_mutex_unlock(&w.c[victim]->lock);
        cr_assert(bny_control_failure(w.c[victim], &got) && got.code == BANYAN_ENOMEM &&
                      strstr(got.text, "no memory for its links"),
                  "%s", got.text);
        bny_control_destroy(w.c[victim]);
        w.c[victim] = NULL;
        got = world_agreed(&w);
        cr_assert(got.cause == BNY_CAUSE_DEATH && got.blamed == victim &&
                      strstr(got.text, "no memory for its links"),
                  "%s", got.text);
        world_free(&w);
    }
}

/* It broke because the peer's process was killed with bytes unread: nobody listens any more.
 * That proves its death, unless it was last heard of long ago: then it may have gone on without
 * who finds that, and ended. */
Test(control, a_reset_by_the_dead_is_a_death)
{
    for (int i = 0; i < 6; i++) {
        int victim = i / 2, is_late = i % 2;
        enum bny_cause cause = is_late ? BNY_CAUSE_SILENT : BNY_CAUSE_DEATH;
        struct world w;
        struct bny_failure got;

        world_new(&w, 3);
        for (int r = 0; r < 3; r++)
            if (r != victim) {
                link_reset(w.c[r], victim);
                control_link_to(w.c[r], victim)->heard_ns -= is_late * 3000000000u;
            }
        for (int k = 0; k < w.c[victim]->nlinks; k++)
            w.c[victim]->links[k].left = 1;
        bny_control_destroy(w.c[victim]);
        w.c[victim] = NULL;
        got = world_agreed(&w);
        cr_assert(got.cause == cause && got.blamed == victim, "%s", got.text);
        world_free(&w);
    }
}

/* All neighbours of some are dead: the ring of survivors is repaired, and all agree on all. */
Test(control, survivors_stay_connected)
{
    uint64_t seed = test_seed();

    for (int round = 0; round < 6; round++) {
        uint64_t gone[1], dead = 0, end = bny_deadline_in(10);
        struct world w;
        int know;

        world_new(&w, 16);
        for (int k = 0; k < 11; k++) {
            int r = (int)bny_rng_below(&seed, 16);

            if (!w.c[r])
                continue;
            w.c[r]->known.count = 0; /* else it would say farewell */
            bny_control_destroy(w.c[r]);
            w.c[r] = NULL;
            dead |= (uint64_t)1 << r;
            for (int i = (int)bny_rng_below(&seed, 30); i > 0; i--)
                world_round(&w);
        }
        do {
            cr_assert(!bny_deadline_passed(end), "round %d: not all know of all dead", round);
            world_round(&w);
            know = 0;
            for (int r = 0; r < 16; r++)
                know += w.c[r] && bny_control_gone(w.c[r], gone) && gone[0] == dead;
        } while (know < world_alive(&w));
        world_agreed(&w);
        world_free(&w);
    }
}

/* Nothing is heard of a rank, which lives: a decision leaves it out, and it adopts it. */
Test(control, who_sleeps_is_left_out_and_adopts)
{
    struct bny_failure f = failure(BNY_CAUSE_MISMATCH, 0, 0), got;
    struct bny_control *asleep;
    uint64_t start, first, gone[1], end;
    struct world w;

    world_new(&w, 4);
    asleep = w.c[2];
    w.c[2] = NULL;
    now_ns = bny_now_ns();
    round_ns = 100000;
    start = bny_now_ns();
    bny_control_report(w.c[0], &f);
    cr_assert_eq(world_agreed(&w).cause, BNY_CAUSE_MISMATCH);
    first = bny_now_ns() - start;
    cr_assert_gt(first, 1000000000u, "it was not waited for");
    f = failure(BNY_CAUSE_DEADLINE, 1, 0);
    start = bny_now_ns();
    bny_control_report(w.c[1], &f);
    while (bny_control_pending(w.c[3], 0) || bny_control_pending(w.c[1], 0))
        world_round(&w);
    cr_assert_lt(bny_now_ns() - start, first / 2, "it is waited for as long again");
    w.c[2] = asleep;
    end = bny_deadline_in(100);
    while (!bny_control_failure(asleep, &got) || asleep->agree.view < w.c[0]->agree.view) {
        world_round(&w);
        cr_assert(!bny_deadline_passed(end), "it does not hear what was decided");
    }
    cr_assert_eq(got.cause, BNY_CAUSE_MISMATCH);
    cr_assert_eq(asleep->agree.excluded, 0);
    bny_control_gone(w.c[0], gone);
    cr_assert_eq(gone[0], 0, "nobody is dead");
    world_free(&w);
}

static int has_heard(const struct bny_control *c, int rank)
{
    const struct bny_instance *it =
        bny_consensus_find(&c->agree, (struct bny_consensus_id){ BNY_CONSENSUS_CALL, 7, 1 });

    return it && bny_bit(it->has, rank);
}

/* A rank decides a call, and ends. Its shared memory tells of that before its words were read:
 * they count all the same. */
Test(control, last_words_come_before_a_death)
{
    struct bny_contribution mine = { .bits = 5 };
    struct bny_failure death = failure(BNY_CAUSE_DEATH, 0, 0);
    uint64_t bits = 0, gone[1] = { 0 }, end = bny_deadline_in(5);
    struct bny_agreed out = { .bits = &bits, .gone = gone };
    struct world w;
    int rc;

    world_new(&w, 2);
    for (int r = 0; r < 2; r++)
        control_stop(w.c[r]);
    cr_assert_eq(bny_control_agree_start(w.c[0], 7, 1, &mine, 0), 0);
    while (!has_heard(w.c[1], 0) && !bny_deadline_passed(end))
        world_round(&w);
    cr_assert_eq(bny_control_agree_start(w.c[1], 7, 1, &mine, 0), 0);
    bny_control_progress(w.c[1]);
    /* It has locked, and does not look from now on, as rank 0 decides. */
    while ((rc = bny_control_agree_test(w.c[0], 7, 1, &out)) == 0) {
        cr_assert(!bny_deadline_passed(end));
        bny_control_progress(w.c[0]);
    }
    cr_assert_eq(rc, 1);
    cr_assert_eq(bny_control_agree_test(w.c[1], 7, 1, &out), 0, "it knows already");
    death.code = BANYAN_ERANKDEAD;
    bny_control_report(w.c[1], &death);
    bny_control_destroy(w.c[0]);
    w.c[0] = NULL;
    while ((rc = bny_control_agree_test(w.c[1], 7, 1, &out)) == 0) {
        cr_assert(!bny_deadline_passed(end));
        bny_control_progress(w.c[1]);
    }
    cr_assert_eq(rc, 1);
    cr_assert_eq(bits, 5u);
    cr_assert_eq(gone[0], 0u, "rank 0 is gone in a decision that it made while it lived");
    world_free(&w);
}

/* Ranks begin a call at one moment, none has heard of another, and no member that has not come
 * is waited for: for what is under way they wait all the same, or each would decide alone, and
 * all but one be excluded. */
static void begin_where_nobody_waits(uint32_t parent, uint64_t deadline_ns)
{
    struct bny_contribution mine = { .bits = 5, .parent = parent };
    struct bny_failure f = failure(BNY_CAUSE_ABORT, 1, 7);
    uint64_t bits, gone[1], has[1], late[1], end;
    struct bny_agreed out = { .bits = &bits, .gone = gone, .has = has, .late = late };
    struct world w;
    int rc;

    world_new(&w, 4);
    for (int r = 0; r < 4; r++)
        control_stop(w.c[r]);
    bny_control_report(w.c[1], &f);
    world_settle(&w);
    for (int r = 0; r < 4; r++)
        if (r != 1)
            cr_assert_eq(bny_control_agree_start(w.c[r], 7, 1, &mine, deadline_ns), 0);
    end = bny_deadline_in(20);
    for (int r = 0; r < 4; r++) {
        while (r != 1 && (rc = bny_control_agree_test(w.c[r], 7, 1, &out)) == 0) {
            cr_assert(!bny_deadline_passed(end), "rank %d has no answer", r);
            world_round(&w);
        }
        if (r == 1)
            continue;
        cr_assert_eq(rc, 1, "rank %d: %s", r, banyan_last_error());
        cr_assert(gone[0] == 0 && has[0] == 13 && late[0] == 2,
                  "rank %d: gone %#" PRIx64 ", has %#" PRIx64 ", late %#" PRIx64, r, gone[0],
                  has[0], late[0]);
    }
    for (int i = 0; i < 100; i++)
        world_round(&w);
    for (int r = 0; r < 4; r++)
        cr_assert(!w.c[r]->agree.excluded, "rank %d is excluded", r);
    world_free(&w);
}

Test(control, who_begins_at_once_is_heard_where_a_member_gave_up)
{
    begin_where_nobody_waits(7, 0);
}

Test(control, who_begins_at_once_is_heard_behind_the_deadline)
{
    begin_where_nobody_waits(0, 1);
}

/* ---- warnings of operations that take long ---- */

static struct told {
    int count;
    char text[400];
} told;

static void keep_told(void *ctx, enum banyan_log_level level, const char *text)
{
    struct told *t = ctx;

    t->count += level == BANYAN_LOG_WARN;
    if (level == BANYAN_LOG_WARN)
        snprintf(t->text, sizeof t->text, "%s", text);
}

enum where_case {
    IN_ANOTHER_CALL,
    WAITS_FOR_NO_RANK,
    COMPUTES,
    COMPUTES_BESIDE_ITS_THREAD,
    STOPPED
};

/* One round; rank 2 answers its control plane unless it is stopped. */
static void where_round(struct world *w, struct bny_position *at, enum where_case how,
                        int is_stopped)
{
    now_ns += 1000000u;
    for (int r = 0; r < w->n; r++) {
        if (r == 2 && is_stopped)
            continue;
        if (r != 2 || how <= WAITS_FOR_NO_RANK)
            bny_control_here(w->c[r]);
        if (atomic_load(&at[r].wanted) && (r != 2 || how != COMPUTES)) {
            atomic_store(&at[r].wanted, 0);
            atomic_store(&at[r].fresh, 1);
        }
        cr_assert_eq(bny_control_progress(w->c[r]), 0, "a warning failed the job");
    }
}

/* Ranks 0 and 1 have begun operation 5, rank 2 has not. The first of them and rank 2 warn,
 * whatever rank 2 does, and no rank is excluded by its answer. */
static void where_is_it(enum where_case how, const char *words)
{
    struct bny_position at[3] = { { 0 } };
    uint64_t members[1] = { 7 };
    char name[80], host[36] = "";
    struct world w;
    int asked = 0;

    world_new(&w, 3);
    now_ns = bny_now_ns();
    round_ns = 1000000u;
    told = (struct told){ 0 };
    banyan_set_log(keep_told, &told, BANYAN_LOG_WARN);
    for (int r = 0; r < 3; r++) {
        at[r].comm = 7;
        atomic_store(&at[r].started, r == 2 ? 5 : 6);
        atomic_store(&at[r].waits, r == 2 && how == WAITS_FOR_NO_RANK ? 1u << 31 : 0);
        bny_control_here(w.c[r]);
        bny_control_position_add(w.c[r], &at[r]);
    }
    now_ns += 3000000000u;
    for (int i = 0; i < 20000 && told.count < (how == STOPPED ? 1 : 2); i++) {
        for (int r = 0; r < 2 && !(asked >> r & 1); r++)
            asked |= bny_control_ask_where(w.c[r], 7, 5, members, "allreduce lasts") << r;
        where_round(&w, at, how, how == STOPPED);
    }
    for (int i = 0; i < 5000; i++)
        where_round(&w, at, how, 0);
    cr_assert_eq(told.count, 2, "%d warnings", told.count);
    gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "rank 2 (pid %d on %s)", (int)getpid(), host);
    cr_assert(strstr(told.text, "allreduce lasts; ") && strstr(told.text, name) &&
                  strstr(told.text, words),
              "%s", told.text);
    banyan_set_log(NULL, NULL, BANYAN_LOG_WARN);
    for (int r = 0; r < 3; r++) {
        cr_assert(!w.c[r]->agree.excluded, "rank %d is excluded", r);
        bny_control_position_remove(w.c[r], &at[r]);
    }
    round_ns = 0;
    world_free(&w);
}

Test(control, a_rank_in_another_call_is_named)
{
    where_is_it(IN_ANOTHER_CALL, "has not called it; it is in another call");
}

/* It says that it waits for a rank of a number that no job has. */
Test(control, a_rank_that_lies_about_whom_it_waits_for_is_named)
{
    where_is_it(WAITS_FOR_NO_RANK, "has not called it; it is in another call");
}

Test(control, a_rank_that_computes_is_named)
{
    where_is_it(COMPUTES, "has not called it, and last waited in the library 3");
}

/* Its progress thread answers for it, but does not wait for anything. */
Test(control, a_rank_that_computes_beside_its_progress_thread_is_named)
{
    where_is_it(COMPUTES_BESIDE_ITS_THREAD,
                "has not called it, and last waited in the library 3");
}

Test(control, a_stopped_rank_is_named_and_stays)
{
    where_is_it(STOPPED, "does not answer: its process is stopped");
}

/* ---- surveys ---- */

static long questions; /* that came over a link */

void __real_survey_asked(struct bny_control *c, const struct link *from, const uint8_t *data,
                         size_t len);
void __wrap_survey_asked(struct bny_control *c, const struct link *from, const uint8_t *data,
                         size_t len);
void __wrap_survey_asked(struct bny_control *c, const struct link *from, const uint8_t *data,
                         size_t len)
{
    questions++;
    __real_survey_asked(c, from, data, len);
}

/* All ranks but `silent` answer what they are asked, with their number in two lines. */
static void survey_round(struct world *w, int silent)
{
    struct bny_survey asked;
    char text[32];

    world_round(w);
    for (int r = 0; r < w->n; r++)
        while (r != silent && bny_control_survey_asked(w->c[r], &asked)) {
            int len = snprintf(text, sizeof text, "rank\n%d;", r);

            bny_control_survey_answer(w->c[r], &asked, text, (size_t)len);
        }
}

/* Adds what rank r has gathered to all; returns how many ranks it misses. */
static int survey_take(struct world *w, int r, char *all, size_t cap)
{
    size_t len, had = strlen(all);
    int missing;
    char *text = bny_control_survey_take(w->c[r], &len, &missing);

    cr_assert_lt(had + len, cap);
    if (text)
        memcpy(all + had, text, len);
    all[had + len] = '\0';
    free(text);
    return missing;
}

/* With 20 ranks most have no link to who asks. */
Test(control, a_survey_asks_all_ranks)
{
    char all[2][1000] = { "", "" }, line[32];
    struct world w;

    world_new(&w, 20);
    bny_control_survey_begin(w.c[7]);
    bny_control_survey_begin(w.c[19]);
    for (int left = 1; left >= 0; left--) /* rank 13 does not answer at first */
        for (int k = 0; k < 2; k++)
            while (survey_take(&w, k ? 19 : 7, all[k], sizeof all[k]) > left)
                survey_round(&w, left ? 13 : -1);
    for (int k = 0; k < 2; k++)
        for (int r = 0; r < w.n; r++) {
            const char *at;

            snprintf(line, sizeof line, "rank %d;\n", r);
            at = strstr(all[k], line);
            cr_assert(at && !strstr(at + 1, line), "%s in %s", line, all[k]);
        }
    world_free(&w);
}

/* Each question crosses a link at most once in each direction. */
Test(control, many_surveys_at_once_end)
{
    char all[4000];
    long links = 0, most;
    struct world w;

    world_new(&w, 20);
    for (int r = 0; r < w.n; r++)
        links += w.c[r]->nlinks;
    questions = 0;
    for (int number = 0; number < 3; number++) /* the latest counts */
        for (int r = 0; r < w.n; r++)
            bny_control_survey_begin(w.c[r]);
    most = 3 * w.n * links;
    for (int r = 0; r < w.n; r++) {
        all[0] = '\0';
        while (survey_take(&w, r, all, sizeof all)) {
            survey_round(&w, -1);
            cr_assert_leq(questions, most, "%ld questions came", questions);
        }
    }
    for (int i = 0; i < 200; i++)
        survey_round(&w, -1);
    cr_assert_leq(questions, most, "%ld questions came", questions);
    world_free(&w);
}

/* After 2^32 questions the numbers begin anew. */
Test(control, the_number_of_a_survey_wraps)
{
    struct bny_survey asked;
    char all[1000] = "";
    struct world w;

    world_new(&w, 3);
    bny_control_survey_begin(w.c[0]);
    while (survey_take(&w, 0, all, sizeof all))
        survey_round(&w, -1);
    for (int r = 0; r < w.n; r++)
        w.c[r]->surveys.seen[0].number = UINT32_MAX - 1;
    for (int i = 0; i < 3; i++) {
        int32_t old[3] = { 0, i - 3, 0 };

        all[0] = '\0';
        bny_control_survey_begin(w.c[0]);
        while (survey_take(&w, 0, all, sizeof all))
            survey_round(&w, -1);
        survey_asked(w.c[1], &w.c[1]->links[0], (const uint8_t *)old, sizeof old);
        cr_assert(!bny_control_survey_asked(w.c[1], &asked), "question %u is asked again",
                  asked.number);
    }
    world_free(&w);
}

Test(control, malformed_frames_of_a_survey_are_dropped)
{
    int32_t frame[3] = { 0, 1, 1 };
    uint8_t bytes[sizeof frame + BNY_SURVEY_TEXT + 1] = { 0 };
    char all[100] = "";
    struct bny_survey asked;
    struct world w;

    world_new(&w, 3);
    bny_control_survey_begin(w.c[0]);
    for (int wrong = 0; wrong < 5; wrong++) {
        int32_t f[3] = { 0, wrong == 0 ? 2 : 1, wrong == 1 ? -1 : wrong == 2 ? 3 : 1 };

        memcpy(bytes, f, sizeof f);
        survey_answered(w.c[0], bytes,
                        wrong == 3   ? sizeof f - 1
                        : wrong == 4 ? sizeof bytes
                                     : sizeof f + 4);
    }
    cr_assert_eq(survey_take(&w, 0, all, sizeof all), 3, "a malformed answer counts");
    memcpy(bytes, frame, sizeof frame);
    survey_answered(w.c[0], bytes, sizeof frame + 4);
    survey_answered(w.c[0], bytes, sizeof frame + 4);
    cr_assert_eq(survey_take(&w, 0, all, sizeof all), 2, "it counts once");
    for (int32_t by = -1; by <= 3; by += 4) {
        frame[0] = by;
        survey_asked(w.c[1], &w.c[1]->links[0], (const uint8_t *)frame, sizeof frame);
    }
    survey_asked(w.c[1], &w.c[1]->links[0], (const uint8_t *)frame, sizeof frame - 1);
    cr_assert(!bny_control_survey_asked(w.c[1], &asked), "rank %d asks", asked.by);
    world_free(&w);
}
