/* SPDX-License-Identifier: BSD-3-Clause */
/* The control plane: whatever one rank reports or suffers, every survivor agrees on the same
 * first cause; who says farewell is no failure. All ranks are driven by one thread. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "support.h"
#include "transport/bootstrap/control.h"
#include "transport/bootstrap/id.h"

TestSuite(control, .timeout = 60);

#define RANKS_MAX 64
#define BLOB      64

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
 * takes longer than the grace to be heard cannot be agreed upon. */
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

            told[i] = failure(1 + (int)bny_rng_below(&seed, 5),
                              (int)bny_rng_below(&seed, (uint64_t)s->n), 0);
            bny_control_report(w.c[who], &told[i]);
            cr_assert_eq(bny_control_suspect(w.c[who]), 1);
        }
        best = first_cause(told, reports);
        start = bny_now_ns() - start;
        longest = world_settle(&w) + start;
        if (longest > BNY_GRACE_NS / 6 &&
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
    char words[32];

    world_new(&w, s->n);
    world_expect_healthy(&w, 20);
    bny_control_destroy(w.c[victim]);
    w.c[victim] = NULL;
    got = world_agreed(&w);
    cr_assert_eq(got.cause, BNY_CAUSE_DEATH);
    cr_assert_eq(got.code, BANYAN_ERANKDEAD);
    cr_assert_eq(got.blamed, victim);
    snprintf(words, sizeof words, "rank %d died", victim);
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

    test_catch_log("no rank of this job");
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

Test(control, a_broken_card_is_an_error)
{
    struct world w;

    world_create(&w, 3, "lo");
    memset(w.blobs + BLOB, 0xee, BLOB);
    cr_assert_eq(bny_control_connect(w.c[0], w.blobs, BLOB, w.same_host), -BANYAN_EPROTO);
    cr_assert(strstr(banyan_last_error(), "card of rank 1"), "%s", banyan_last_error());
    world_free(&w);
}

static void *report_all(void *arg)
{
    struct world *w = arg;
    struct bny_failure out;

    for (int i = 0; i < 200; i++) {
        struct bny_failure f = failure(1 + i % 5, i % w->n, (uint32_t)(i % 3));

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
        if (longest <= BNY_GRACE_NS / 6 ||
            tries == 40) /* else: not heard within the grace, nothing to agree on */
            world_agreed(&w);
        world_free(&w);
        if (longest <= BNY_GRACE_NS / 6 || tries == 40)
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
    f = good, f.cause = BNY_CAUSE_LEFT + 1;
    cr_assert(!bny_failure_valid(&f, 2));
    f = good, f.code = BANYAN_ERROR_COUNT;
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

Test(control, the_winner_is_the_smallest_within_the_grace)
{
    struct bny_failures t;
    struct bny_failure reset = failure(BNY_CAUSE_RESET, 1, 0),
                       abort_ = failure(BNY_CAUSE_ABORT, 2, 0),
                       death = failure(BNY_CAUSE_DEATH, 3, 0);

    cr_assert_eq(bny_failures_init(&t, 4), 0);
    cr_assert_null(bny_failures_winner(&t, 0, 1000, 30));
    cr_assert_eq(bny_failures_add(&t, &reset, 100, -1), 1);
    cr_assert_eq(bny_failures_add(&t, &reset, 110, 2), 0, "known already");
    cr_assert_eq(bny_failures_add(&t, &abort_, 130, -1), 1);
    cr_assert_eq(bny_failures_add(&t, &death, 131, -1), 1);
    cr_assert_null(bny_failures_winner(&t, 0, 129, 30), "the grace runs");
    cr_assert_eq(bny_failures_winner(&t, 0, 130, 30)->cause, BNY_CAUSE_ABORT);
    cr_assert_eq(bny_failures_winner(&t, 0, 9000, 30)->cause, BNY_CAUSE_ABORT,
                 "too late to count");
    bny_failures_finish(&t);
}

Test(control, the_end_of_a_rank_that_aborted_is_no_cause)
{
    struct bny_failure ends[] = { failure(BNY_CAUSE_DEATH, 1, 0),
                                  failure(BNY_CAUSE_LEFT, 1, 0) };

    for (int i = 0; i < 4; i++) { /* in either order */
        struct bny_failures t;
        struct bny_failure abort_ = failure(BNY_CAUSE_ABORT, 1, 0),
                           other = failure(BNY_CAUSE_DEATH, 2, 0);

        abort_.comm = 7;
        cr_assert_eq(bny_failures_init(&t, 4), 0);
        cr_assert_eq(bny_failures_add(&t, i % 2 ? &ends[i / 2] : &abort_, 100, -1), 1);
        cr_assert_eq(bny_failures_add(&t, i % 2 ? &abort_ : &ends[i / 2], 110, 2), 1);
        cr_assert_eq(bny_failures_winner(&t, 7, 140, 30)->cause, BNY_CAUSE_ABORT);
        cr_assert_eq(bny_failures_winner(&t, 8, 140, 30)->cause, ends[i / 2].cause,
                     "another communicator was not aborted");
        cr_assert_eq(bny_failures_add(&t, &other, 120, 2), 1);
        cr_assert_eq(bny_failures_winner(&t, 7, 140, 30)->blamed, 2,
                     "another rank's death is one");
        bny_failures_finish(&t);
    }
}
