/* SPDX-License-Identifier: BSD-3-Clause */
/* The all-gather gives every rank every peer info, foreign connections change nothing, and
 * every way to start a job wrongly ends with the same clear sentence everywhere. All ranks are
 * driven by one thread. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "support.h"
#include "transport/bootstrap/gather.h"
#include "transport/bootstrap/id.h"

/* One for all: Criterion loses a timeout among others that are shorter, and 48 bytes with it.
 */
/* A deadline beyond the time limit of a test: what waits for it does not pass. */
#define NEVER_S 3600

TestSuite(allgather, .timeout = 240);
TestSuite(settle, .timeout = 240);
TestSuite(abort, .timeout = 240);
TestSuite(tree, .timeout = 240);
TestSuite(hosts, .timeout = 240);

#define RANKS_MAX 64

struct job {
    struct bny_id id;
    int nranks; /* processes driven, not only ranks of the job */
    size_t bytes;
    struct bny_bootstrap *b[RANKS_MAX];
    int rc[RANKS_MAX];
    char text[RANKS_MAX][512];
    uint8_t *infos[RANKS_MAX], *got[RANKS_MAX];
};

static void job_new(struct job *j, size_t bytes)
{
    memset(j, 0, sizeof *j);
    j->bytes = bytes;
    cr_assert_eq(bny_id_create(&j->id, "lo", "", 1), 0, "%s", banyan_last_error());
}

/* Starts one more process as rank of nranks; with its own id when not NULL. */
static int job_start(struct job *j, int rank, int nranks, const struct bny_id *id,
                     double seconds)
{
    static uint64_t seed;
    int at = j->nranks++, rc;

    j->infos[at] = malloc(j->bytes);
    j->got[at] = calloc((size_t)nranks, j->bytes);
    test_fill(&seed, j->infos[at], j->bytes);
    rc = bny_bootstrap_start(&j->b[at], id ? id : &j->id, nranks, rank, j->infos[at], j->bytes,
                             "", "", bny_deadline_in(seconds));
    cr_assert_eq(rc, 0, "rank %d: %s", rank, banyan_last_error());
    return at;
}

/* Progresses everybody until all have ended or 20 s are over. Returns how many did not end. */
static int job_drive(struct job *j)
{
    uint64_t end = bny_deadline_in(200); /* which a machine that others use does not reach */
    int open;

    do {
        open = 0;
        for (int i = 0; i < j->nranks; i++) {
            if (j->rc[i])
                continue;
            j->rc[i] = bny_bootstrap_progress(j->b[i], j->got[i]);
            if (j->rc[i] < 0)
                snprintf(j->text[i], sizeof j->text[i], "%s", banyan_last_error());
            if (j->rc[i]) { /* as a caller would, at once */
                bny_bootstrap_destroy(j->b[i]);
                j->b[i] = NULL;
            }
            open += !j->rc[i];
        }
        test_round_over();
    } while (open && !bny_deadline_passed(end));
    return open;
}

static void job_free(struct job *j)
{
    for (int i = 0; i < j->nranks; i++) {
        bny_bootstrap_destroy(j->b[i]);
        free(j->infos[i]);
        free(j->got[i]);
    }
}

/* Every process ended well and has every peer info; process i is rank i. */
static void job_expect_peer_infos(struct job *j)
{
    for (int i = 0; i < j->nranks; i++) {
        cr_assert_eq(j->rc[i], 1, "rank %d: %d %s", i, j->rc[i], j->text[i]);
        for (int r = 0; r < j->nranks; r++)
            cr_assert_eq(memcmp(j->got[i] + (size_t)r * j->bytes, j->infos[r], j->bytes), 0,
                         "rank %d has a wrong peer info of rank %d", i, r);
    }
}

/* Every process ended with the code and one same sentence that contains all of the words. */
static void job_expect_failure(struct job *j, int code, const char *word1, const char *word2)
{
    for (int i = 0; i < j->nranks; i++) {
        cr_assert_eq(j->rc[i], -code, "process %d: %d %s", i, j->rc[i], j->text[i]);
        cr_assert_str_eq(j->text[i], j->text[0]);
    }
    cr_assert(strstr(j->text[0], word1), "\"%s\" lacks \"%s\"", j->text[0], word1);
    cr_assert(strstr(j->text[0], word2), "\"%s\" lacks \"%s\"", j->text[0], word2);
}

struct shape {
    int nranks;
    size_t bytes;
};

ParameterizedTestParameters(allgather, every_rank_gets_every_peer_info)
{
    static struct shape shapes[] = { { 1, 7 },   { 2, 1 },    { 2, 4096 }, { 3, 100 },
                                     { 4, 600 }, { 5, 33 },   { 6, 8 },    { 7, 4096 },
                                     { 8, 600 }, { 9, 1000 }, { 60, 4096 } };
    return cr_make_param_array(struct shape, shapes, sizeof shapes / sizeof shapes[0]);
}

ParameterizedTest(struct shape *s, allgather, every_rank_gets_every_peer_info)
{
    struct job j;

    job_new(&j, s->bytes);
    for (int r = 0; r < s->nranks; r++)
        job_start(&j, r, s->nranks, NULL, 20);
    cr_assert_eq(job_drive(&j), 0);
    job_expect_peer_infos(&j);
    job_free(&j);
}

Test(allgather, clients_may_start_before_the_root_listens)
{
    struct job j;
    int n = 4;

    job_new(&j, 50);
    close(bny_id_take_fd(&j.id)); /* now rank 0 has to bind the id's address itself */
    j.nranks = 1;
    for (int r = 1; r < n; r++)
        job_start(&j, r, n, NULL, 20);
    for (int i = 0; i < 1000; i++)
        for (int r = 1; r < n; r++)
            cr_assert_eq(bny_bootstrap_progress(j.b[r], j.got[r]), 0);
    j.nranks = 0;
    job_start(&j, 0, n, NULL, 20);
    j.nranks = n;
    cr_assert_eq(job_drive(&j), 0);
    job_expect_peer_infos(&j);
    job_free(&j);
}

Test(allgather, a_span_of_ports_is_searched)
{
    struct job j;
    struct bny_id other;
    int n = 3, fd[2];
    struct bny_addr a;

    /* Expect: the first port belongs to another job's root, the second to a silent server. */
    job_new(&j, 50);
    close(bny_id_take_fd(&j.id));
    other = j.id;
    other.job[0] ^= 1;
    for (j.id.port = 20000, fd[0] = fd[1] = -1; fd[0] < 0 || fd[1] < 0; j.id.port++) {
        for (int i = 0; i < 2; i++) /* both: the second stands where the first one goes now */
            if (fd[i] >= 0)
                close(fd[i]);
        for (int i = 0; i < 2; i++) {
            bny_id_addr(&j.id, &a);
            a.port = (uint16_t)(j.id.port + i);
            fd[i] = bny_net_listen_at(&a, 8);
        }
    }
    j.id.port--;
    j.id.span = 16;
    for (int r = 0; r < n; r++)
        job_start(&j, r, n, NULL, 20);
    cr_assert_eq(job_drive(&j), 0);
    job_expect_peer_infos(&j);
    close(fd[0]);
    close(fd[1]);
    job_free(&j);
}

Test(allgather, foreign_connections_change_nothing)
{
    struct job j;
    uint64_t seed = test_seed();
    uint8_t junk[600];
    int n = 4, fds[40];

    test_catch_log("did not prove to be a rank of this job");
    job_new(&j, 300);
    for (int i = 0; i < 40; i++) {
        fds[i] = test_raw_connect(&j.id);
        test_fill(&seed, junk, sizeof junk);
        if (i % 4 == 1) /* garbage */
            cr_assert_gt(
                send(fds[i], junk, 1 + bny_rng_below(&seed, sizeof junk), MSG_NOSIGNAL), 0);
        if (i % 4 == 2) { /* half of a plausible frame, then silence */
            uint32_t head[3] = { 64, 0x796e6201, 0 };
            cr_assert_gt(send(fds[i], head, sizeof head, MSG_NOSIGNAL), 0);
        }
        if (i % 4 == 3) /* a port scanner */
            close(fds[i]);
    }
    for (int r = 0; r < n; r++)
        job_start(&j, r, n, NULL, 20);
    cr_assert_eq(job_drive(&j), 0);
    job_expect_peer_infos(&j);
    cr_assert_geq(test_caught(), 1);
    for (int i = 0; i < 40; i++)
        if (i % 4 != 3)
            close(fds[i]);
    job_free(&j);
}

Test(allgather, a_flood_of_silent_connections_does_not_keep_ranks_out)
{
    struct job j;
    int n = 3, fds[500];

    test_catch_log("did not prove to be a rank of this job");
    job_new(&j, 16);
    job_start(&j, 0, n, NULL, 20);
    for (int i = 0; i < 500; i++) {
        fds[i] = test_raw_connect(&j.id);
        cr_assert_eq(bny_bootstrap_progress(j.b[0], j.got[0]), 0);
    }
    job_start(&j, 1, n, NULL, 20);
    job_start(&j, 2, n, NULL, 20);
    cr_assert_eq(job_drive(&j), 0);
    job_expect_peer_infos(&j);
    cr_assert_geq(test_caught(), 1);
    for (int i = 0; i < 500; i++)
        close(fds[i]);
    job_free(&j);
}

Test(allgather, a_wrong_secret_is_refused_and_the_job_goes_on)
{
    struct job j;
    struct bny_id wrong;
    int n = 3, bad;

    test_catch_log("secret");
    job_new(&j, 16);
    wrong = j.id;
    wrong.secret[5] ^= 0x40;
    job_start(&j, 0, n, NULL, 20);
    job_start(&j, 1, n, NULL, 20);
    bad = job_start(&j, 2, n, &wrong, 20);
    while (!j.rc[bad]) {
        cr_assert_eq(bny_bootstrap_progress(j.b[0], j.got[0]), 0);
        j.rc[bad] = bny_bootstrap_progress(j.b[bad], j.got[bad]);
    }
    cr_assert_eq(j.rc[bad], -BANYAN_EPROTO);
    cr_assert(strstr(banyan_last_error(), "rank 2") && strstr(banyan_last_error(), "secret"),
              "%s", banyan_last_error());
    bny_bootstrap_destroy(j.b[bad]);
    j.b[bad] = NULL;
    free(j.infos[bad]);
    free(j.got[bad]);
    j.rc[bad] = 0;
    j.nranks--;
    job_start(&j, 2, n, NULL, 20);
    cr_assert_eq(job_drive(&j), 0);
    job_expect_peer_infos(&j);
    job_free(&j);
}

/* Where the user gives the secret, a rank with another one is his slip: all are told, long
 * before init's deadline, and by what remedy. */
struct slip {
    enum bny_key_from from;
    char word[40];
    int rank; /* whose secret differs */
    int span;
};

ParameterizedTestParameters(allgather, another_secret_fails_everybody_soon)
{
    static struct slip slips[] = {
        { BNY_KEY_COOKIE, "copy ~/.banyan-cookie", 2, 1 },
        { BNY_KEY_COOKIE, "copy ~/.banyan-cookie", 1, 16 },
        { BNY_KEY_SECRET, "BANYAN_SECRET_FILE alike", 2, 16 },
        { BNY_KEY_WORDS, "BANYAN_INSECURE=1 on all", 1, 1 },
        { BNY_KEY_COOKIE, "copy ~/.banyan-cookie", 0, 16 },
    };
    return cr_make_param_array(struct slip, slips, sizeof slips / sizeof slips[0]);
}

ParameterizedTest(struct slip *s, allgather, another_secret_fails_everybody_soon)
{
    struct job j;
    struct bny_id wrong;

    job_new(&j, 16);
    j.id.key_from = (uint8_t)s->from;
    j.id.span = (uint8_t)s->span;
    wrong = j.id;
    wrong.secret[31] ^= 1;
    for (int r = 0; r < 3; r++)
        job_start(&j, r, 3, r == s->rank ? &wrong : NULL, NEVER_S);
    cr_assert_eq(job_drive(&j), 0);
    for (int r = 0; r < 3; r++) {
        cr_assert_eq(j.rc[r], -BANYAN_ECONFIG, "rank %d: %d %s", r, j.rc[r], j.text[r]);
        cr_assert(strstr(j.text[r], "has another secret than rank 0 (127.0.0.1:") ||
                      strstr(j.text[r], "has another secret than rank 0 ("),
                  "%s", j.text[r]);
        cr_assert(strstr(j.text[r], s->word), "\"%s\" lacks \"%s\"", j.text[r], s->word);
    }
    job_free(&j);
}

Test(allgather, a_duplicate_rank_fails_everybody_the_same)
{
    struct job j;
    const char *at;

    job_new(&j, 16);
    for (int i = 0; i < 5; i++)
        job_start(&j, (int[]){ 0, 1, 2, 2, 3 }[i], 5, NULL, 20);
    cr_assert_eq(job_drive(&j), 0);
    job_expect_failure(&j, BANYAN_EPROTO, "two processes joined as rank 2", "its own rank");
    /* Both addresses. */
    at = strstr(j.text[0], "127.0.0.1:");
    cr_assert(at && strstr(at + 1, "127.0.0.1:"), "%s", j.text[0]);
    job_free(&j);
}

Test(allgather, a_rank_of_a_larger_job_fails_everybody_the_same)
{
    struct job j;

    job_new(&j, 16);
    for (int i = 0; i < 3; i++)
        job_start(&j, i, i == 2 ? 4 : 3, NULL, 20);
    cr_assert_eq(job_drive(&j), 0);
    job_expect_failure(&j, BANYAN_EPROTO, "rank 2", "job of 4 ranks");
    job_free(&j);
}

Test(allgather, a_card_of_another_size_fails_everybody_the_same)
{
    struct job j;

    job_new(&j, 16);
    job_start(&j, 0, 3, NULL, 20);
    job_start(&j, 1, 3, NULL, 20);
    j.bytes = 12;
    job_start(&j, 2, 3, NULL, 20);
    cr_assert_eq(job_drive(&j), 0);
    job_expect_failure(&j, BANYAN_EPROTO, "rank 2 sent a peer info of 12 bytes", "16");
    job_free(&j);
}

Test(allgather, arguments_are_checked_before_anything_is_sent)
{
    struct bny_bootstrap *b = (void *)1;
    struct bny_id id, junk;
    char info[8] = "";

    cr_assert_eq(bny_id_create(&id, "lo", "", 1), 0);
    cr_assert_eq(bny_bootstrap_start(&b, &id, 4, 4, info, 8, "", "", 0), -BANYAN_EINVAL);
    cr_assert_null(b);
    cr_assert(strstr(banyan_last_error(), "rank 4") && strstr(banyan_last_error(), "0 to 3"),
              "%s", banyan_last_error());
    cr_assert_eq(bny_bootstrap_start(&b, &id, 4, -1, info, 8, "", "", 0), -BANYAN_EINVAL);
    cr_assert_eq(bny_bootstrap_start(&b, &id, 0, 0, info, 8, "", "", 0), -BANYAN_EINVAL);
    memset(&junk, 7, sizeof junk);
    cr_assert_eq(bny_bootstrap_start(&b, &junk, 2, 0, info, 8, "", "", 0), -BANYAN_EINVAL);
    cr_assert_eq(bny_id_create(&junk, "lo", "", 0), 0);
    cr_assert_eq(bny_bootstrap_start(&b, &junk, 2, 0, info, 8, "", "", 0), -BANYAN_EINVAL);
    close(bny_id_take_fd(&id));
}

/* Drives a hand-made member of the job through the handshake; returns it once ready. */
static struct bny_conn *join_by_hand(struct job *j, struct bny_conn_self *self)
{
    struct bny_addr addr;
    struct bny_conn *c;
    int rc;

    bny_id_addr(&j->id, &addr);
    c = bny_conn_new(bny_net_connect(&addr), -1, 1, &addr, self, 65536);
    while ((rc = bny_conn_progress(c)) == 0)
        cr_assert_eq(bny_bootstrap_progress(j->b[0], j->got[0]), 0);
    cr_assert_eq(rc, 1, "%s", c->why);
    return c;
}

/* A busy host: what it needs for its proof came at once, and it looks at it after 6 s. */
Test(allgather, a_rank_that_is_slow_to_prove_itself_joins)
{
    uint64_t end = bny_deadline_in(6);
    uint32_t info[2 + 4] = { 16, 0 };
    struct bny_conn_self self;
    struct bny_addr addr;
    struct bny_conn *c;
    struct job j;
    int rc;

    job_new(&j, 16);
    job_start(&j, 0, 2, NULL, 20);
    bny_conn_self_init(&self, BNY_CONN_BOOTSTRAP, j.id.secret, j.id.job, 1, 2);
    bny_id_addr(&j.id, &addr);
    c = bny_conn_new(bny_net_connect(&addr), -1, 1, &addr, &self, 65536);
    while (c->state == BNY_CONN_CONNECTING)
        cr_assert_eq(bny_conn_progress(c), 0);
    while (!bny_deadline_passed(end)) {
        cr_assert_eq(bny_bootstrap_progress(j.b[0], j.got[0]), 0);
        test_round_over();
    }
    while ((rc = bny_conn_progress(c)) == 0)
        cr_assert_eq(bny_bootstrap_progress(j.b[0], j.got[0]), 0);
    cr_assert_eq(rc, 1, "%s", c->why);
    cr_assert_eq(bny_conn_send(c, 1, info, sizeof info), 0);
    cr_assert_eq(job_drive(&j), 0);
    cr_assert_eq(j.rc[0], 1, "%s", j.text[0]);
    bny_conn_free(c);
    job_free(&j);
}

/* What the root tells a hand-made member. */
static void expect_told(struct job *j, struct bny_conn *c, uint32_t code, const char *words)
{
    uint32_t type, got;
    const uint8_t *data;
    size_t len;
    char text[512];
    int rc;

    while ((rc = bny_conn_next(c, &type, &data, &len)) == 0)
        if (!j->rc[0])
            j->rc[0] = bny_bootstrap_progress(j->b[0], j->got[0]);
    cr_assert_eq(rc, 1);
    memcpy(&got, data, 4);
    snprintf(text, sizeof text, "%.*s", (int)len - 4, data + 4);
    cr_assert_eq(got, code, "%s", text);
    cr_assert(strstr(text, words), "%s", text);
    bny_conn_free(c);
}

Test(allgather, another_version_fails_everybody_the_same)
{
    struct job j;
    struct bny_conn_self self;

    job_new(&j, 16);
    job_start(&j, 0, 3, NULL, 20);
    job_start(&j, 1, 3, NULL, 20);
    bny_conn_self_init(&self, BNY_CONN_BOOTSTRAP, j.id.secret, j.id.job, 2, 3);
    self.wire = 77;
    expect_told(&j, join_by_hand(&j, &self), BANYAN_EVERSION, "wire version 77");
    cr_assert_eq(job_drive(&j), 0);
    job_expect_failure(&j, BANYAN_EVERSION, "rank 2", "install the same version");
    job_free(&j);
}

Test(allgather, a_rank_out_of_range_fails_everybody_the_same)
{
    struct job j;
    struct bny_conn_self self;

    job_new(&j, 16);
    job_start(&j, 0, 3, NULL, 20);
    job_start(&j, 1, 3, NULL, 20);
    bny_conn_self_init(&self, BNY_CONN_BOOTSTRAP, j.id.secret, j.id.job, 7, 3);
    expect_told(&j, join_by_hand(&j, &self), BANYAN_EPROTO, "rank 7");
    cr_assert_eq(job_drive(&j), 0);
    job_expect_failure(&j, BANYAN_EPROTO, "rank 7", "out of range");
    job_free(&j);
}

Test(allgather, a_rank_that_leaves_is_named)
{
    struct job j;
    struct bny_conn_self self;
    struct bny_conn *c;
    uint32_t info[2 + 4] = { 16, 0 };

    job_new(&j, 16);
    job_start(&j, 0, 4, NULL, 20);
    job_start(&j, 1, 4, NULL, 20);
    bny_conn_self_init(&self, BNY_CONN_BOOTSTRAP, j.id.secret, j.id.job, 2, 4);
    c = join_by_hand(&j, &self);
    cr_assert_eq(bny_conn_send(c, 1, info, sizeof info), 0);
    bny_conn_free(c);
    cr_assert_eq(job_drive(&j), 0);
    job_expect_failure(&j, BANYAN_ERANKDEAD, "rank 2 left", "init");
    job_free(&j);
}

/* Its process ended before it had a peer info: proof is enough to be missed. */
Test(allgather, a_rank_that_leaves_without_a_card_is_named)
{
    struct job j;
    struct bny_conn_self self;

    job_new(&j, 16);
    job_start(&j, 0, 4, NULL, 20);
    job_start(&j, 1, 4, NULL, 20);
    bny_conn_self_init(&self, BNY_CONN_BOOTSTRAP, j.id.secret, j.id.job, 2, 4);
    bny_conn_free(join_by_hand(&j, &self));
    cr_assert_eq(job_drive(&j), 0);
    job_expect_failure(&j, BANYAN_ERANKDEAD, "rank 2 left", "init");
    job_free(&j);
}

/* ---- after the peer infos ---- */

/* As job_drive, but nobody is freed: until all have their peer infos. */
static void job_gather(struct job *j)
{
    uint64_t end = bny_deadline_in(20);
    int open;

    do {
        open = 0;
        for (int i = 0; i < j->nranks; i++) {
            if (j->rc[i] == 0)
                j->rc[i] = bny_bootstrap_progress(j->b[i], j->got[i]);
            open += j->rc[i] == 0;
        }
        test_round_over();
    } while (open && !bny_deadline_passed(end));
    for (int i = 0; i < j->nranks; i++) {
        cr_assert_eq(j->rc[i], 1);
        j->rc[i] = 0;
    }
}

/* Until all that have a bootstrap are settled or failed; bit i of ready: rank i is. Returns how
 * many are neither after the seconds. */
static int job_settle(struct job *j, uint64_t ready, double seconds)
{
    uint64_t end = bny_deadline_in(seconds);
    int open;

    do {
        open = 0;
        for (int i = 0; i < j->nranks; i++) {
            if (j->b[i] && !j->rc[i])
                j->rc[i] = bny_bootstrap_settle(j->b[i], (int)(ready >> i & 1));
            if (j->b[i] && j->rc[i] < 0)
                snprintf(j->text[i], sizeof j->text[i], "%s", banyan_last_error());
            open += j->b[i] && !j->rc[i];
        }
        test_round_over();
    } while (open && !bny_deadline_passed(end));
    return open;
}

/* All but rank `without` failed with the code and the words. */
static void job_expect_told(struct job *j, int without, int code, const char *words)
{
    for (int i = 0; i < j->nranks; i++) {
        if (i == without)
            continue;
        cr_assert_eq(j->rc[i], -code, "rank %d: %d %s", i, j->rc[i], j->text[i]);
        cr_assert(strstr(j->text[i], words), "rank %d: \"%s\" lacks \"%s\"", i, j->text[i],
                  words);
    }
}

static void job_of(struct job *j, int n)
{
    job_new(j, 16);
    for (int r = 0; r < n; r++)
        job_start(j, r, n, NULL, 20);
}

Test(settle, all_go_when_the_last_is_ready)
{
    struct job j;

    job_of(&j, 5);
    job_gather(&j);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(job_settle(&j, (unsigned[]){ 0, 0x4, 0xd, 0x1e }[i], 0.02), 5);
    cr_assert_eq(job_settle(&j, 0x1f, 20), 0);
    for (int r = 0; r < 5; r++)
        cr_assert_eq(j.rc[r], 1, "rank %d: %s", r, j.text[r]);
    job_free(&j);
}

/* A process that ends after the peer infos, before all are ready: with its own word or without.
 */
Test(settle, an_end_before_all_are_ready_is_told)
{
    for (int victim = 0; victim < 4; victim++) {
        struct job j;
        char name[20];

        job_of(&j, 4);
        job_gather(&j);
        cr_assert_eq(job_settle(&j, 0xe, 0.01), 4);
        bny_bootstrap_destroy(j.b[victim]);
        j.b[victim] = NULL;
        cr_assert_eq(job_settle(&j, 0xe, 20), 0, "rank %d", victim);
        snprintf(name, sizeof name, "rank %d", victim);
        job_expect_told(&j, victim, BANYAN_ERANKDEAD, name);
        job_free(&j);
    }
}

Test(settle, a_rank_that_cannot_join_tells_the_others)
{
    for (int victim = 1; victim < 4; victim++) {
        struct job j;

        job_of(&j, 4);
        job_gather(&j);
        cr_assert_eq(job_settle(&j, 0, 0.01), 4);
        bny_bootstrap_abort(j.b[victim], BANYAN_ENOMEM, "rank x has no room");
        bny_bootstrap_destroy(j.b[victim]);
        j.b[victim] = NULL;
        cr_assert_eq(job_settle(&j, 0, 20), 0, "rank %d", victim);
        job_expect_told(&j, victim, BANYAN_ENOMEM, "rank x has no room");
        job_free(&j);
    }
}

Test(settle, a_late_rank_is_named_at_the_deadline)
{
    struct job j;

    job_new(&j, 16);
    for (int r = 0; r < 4; r++)
        job_start(&j, r, 4, NULL, 1);
    job_gather(&j);
    cr_assert_eq(job_settle(&j, 0x5, 20), 0);
    job_expect_told(&j, -1, BANYAN_ETIMEDOUT, "ranks 1, 3 of 4 did not connect");
    job_free(&j);
}

/* ---- those who do not come ---- */

/* Other processes with the root, so that nobody waits for a thread of this one. */
static void abort_as(const struct bny_id *id, int rank, int report)
{
    struct bny_bootstrap *b;

    if (fork() != 0)
        return;
    if (report) {
        bny_bootstrap_report(id, 4, rank, BANYAN_ERANKDEAD, "rank x was killed",
                             bny_deadline_in(10));
        _exit(0);
    }
    if (bny_bootstrap_start(&b, id, 4, rank, NULL, 16, "", "", bny_deadline_in(10)) != 0)
        _exit(1);
    bny_bootstrap_abort(b, BANYAN_ENOMEM, "rank x has no room");
    bny_bootstrap_destroy(b);
    _exit(0);
}

Test(abort, ends_all_with_its_sentence)
{
    for (int report = 0; report < 2; report++) {
        struct job j;

        job_new(&j, 16);
        for (int r = 0; r < 3; r++)
            job_start(&j, r, 4, NULL, NEVER_S);
        abort_as(&j.id, 3, report);
        cr_assert_eq(job_drive(&j), 0);
        job_expect_failure(&j, report ? BANYAN_ERANKDEAD : BANYAN_ENOMEM,
                           report ? "rank x was killed" : "rank x has no room", "");
        job_free(&j);
    }
}

/* The launcher speaks of a rank that has been there. */
Test(abort, of_a_rank_that_had_joined)
{
    struct job j;

    job_new(&j, 16);
    for (int r = 0; r < 3; r++)
        job_start(&j, r, 4, NULL, 20);
    for (int i = 0; i < 200; i++)
        for (int r = 0; r < 3; r++)
            cr_assert_eq(bny_bootstrap_progress(j.b[r], j.got[r]), 0);
    abort_as(&j.id, 2, 1);
    cr_assert_eq(job_drive(&j), 0);
    job_expect_failure(&j, BANYAN_ERANKDEAD, "rank x was killed", "");
    job_free(&j);
}

Test(abort, of_the_root_reaches_all)
{
    struct job j;
    int told = 0;

    job_new(&j, 16);
    if (fork() == 0) { /* the root, whose listener it inherits */
        struct bny_bootstrap *b;

        if (bny_bootstrap_start(&b, &j.id, 4, 0, NULL, 16, "", "", bny_deadline_in(10)) == 0)
            bny_bootstrap_abort(b, BANYAN_ENOMEM, "rank 0 has no room");
        _exit(0);
    }
    close(bny_id_take_fd(&j.id));
    for (int r = 1; r < 4; r++)
        job_start(&j, r, 4, NULL, 20);
    cr_assert_eq(job_drive(&j), 0);
    for (int i = 0; i < 3; i++)
        told += j.rc[i] == -BANYAN_ENOMEM && strstr(j.text[i], "rank 0 has no room");
    cr_assert_eq(told, 3, "%d %s", j.rc[0], j.text[0]);
    job_free(&j);
}

/* A stranger's word ends nothing. */
Test(abort, of_a_stranger_is_nothing)
{
    struct job j;
    struct bny_id wrong;

    job_new(&j, 16);
    wrong = j.id;
    wrong.secret[0] ^= 1;
    for (int r = 0; r < 3; r++)
        job_start(&j, r, 4, NULL, 20);
    abort_as(&wrong, 3, 1);
    abort_as(&wrong, 1, 0);
    for (uint64_t end = bny_deadline_in(1); !bny_deadline_passed(end); test_round_over())
        for (int r = 0; r < 3; r++)
            cr_assert_eq(bny_bootstrap_progress(j.b[r], j.got[r]), 0);
    job_start(&j, 3, 4, NULL, 20);
    cr_assert_eq(job_drive(&j), 0);
    job_expect_peer_infos(&j);
    job_free(&j);
}

/* The root listened when the id was made, and does no more: it has ended, whatever time is
 * left. */
Test(abort, a_root_that_has_ended_is_not_waited_for)
{
    struct job j;

    job_new(&j, 16);
    close(bny_id_take_fd(&j.id));
    job_start(&j, 1, 2, NULL, NEVER_S);
    cr_assert_eq(job_drive(&j), 0);
    job_expect_failure(&j, BANYAN_ERANKDEAD, "rank 0 ended", "nobody listens");
    job_free(&j);
}

Test(allgather, missing_ranks_are_named_to_everybody)
{
    struct job j;

    job_new(&j, 16);
    for (int i = 0; i < 3; i++)
        job_start(&j, (int[]){ 0, 1, 4 }[i], 8, NULL, 0.3);
    cr_assert_eq(job_drive(&j), 0);
    job_expect_failure(&j, BANYAN_ETIMEDOUT, "ranks 2-3, 5-7 of 8", "BANYAN_IFNAME");
    job_free(&j);
}

/* 0 s are no deadline. */
Test(allgather, without_a_deadline_it_waits_for_who_does_not_come)
{
    struct job j;

    job_new(&j, 16);
    job_start(&j, 0, 3, NULL, 0);
    job_start(&j, 1, 3, NULL, 0);
    cr_assert_eq(j.b[0]->deadline_ns, 0);
    for (int i = 0; i < 2000; i++)
        for (int at = 0; at < 2; at++)
            cr_assert_eq(bny_bootstrap_progress(j.b[at], j.got[at]), 0, "%s",
                         banyan_last_error());
    job_start(&j, 2, 3, NULL, 0);
    cr_assert_eq(job_drive(&j), 0);
    job_expect_peer_infos(&j);
    job_free(&j);
}

Test(allgather, a_root_that_does_not_answer_is_named)
{
    struct job j;
    struct bny_addr addr;
    char at[BNY_ADDR_TEXT];

    job_new(&j, 16);
    close(bny_id_take_fd(&j.id));
    bny_id_addr(&j.id, &addr);
    job_start(&j, 1, 2, NULL, 0.3);
    cr_assert_eq(job_drive(&j), 0);
    job_expect_failure(&j, BANYAN_ETIMEDOUT, bny_addr_text(&addr, at), "MASTER_ADDR");
    cr_assert(strstr(j.text[0], "rank 1") && strstr(j.text[0], "refused"), "%s", j.text[0]);
    job_free(&j);
}

Test(allgather, a_root_that_is_not_in_init_is_named)
{
    struct job j;

    job_new(&j, 16);
    job_start(&j, 1, 2, NULL, 0.3);
    cr_assert_eq(job_drive(&j), 0);
    job_expect_failure(&j, BANYAN_ETIMEDOUT, "rank 1", "has rank 0 entered init");
    close(bny_id_take_fd(&j.id));
    job_free(&j);
}

Test(allgather, a_second_rank_0_is_told_so)
{
    struct job j;
    struct bny_bootstrap *b;
    char info[16] = "";

    job_new(&j, 16);
    job_start(&j, 0, 2, NULL, 20); /* took the listening socket */
    cr_assert_eq(bny_bootstrap_start(&b, &j.id, 2, 0, info, 16, "", "", 0), -BANYAN_EPROTO);
    cr_assert(strstr(banyan_last_error(), "rank 0 started twice") ||
                  strstr(banyan_last_error(), "was rank 0"),
              "%s", banyan_last_error());
    job_free(&j);
}

Test(allgather, a_root_on_another_host_is_a_setting_error)
{
    struct bny_id id;
    struct bny_bootstrap *b;
    char info[16] = "";

    cr_assert_eq(bny_id_create(&id, "lo", "", 0), 0);
    bny_id_set_addr(
        &id, &(struct bny_addr){ .family = 4, .port = 999, .ip = { 203, 0, 113, 9 } }, 1);
    cr_assert_eq(bny_bootstrap_start(&b, &id, 2, 0, info, 16, "", "", 0), -BANYAN_ECONFIG);
    cr_assert(strstr(banyan_last_error(), "203.0.113.9:999"), "%s", banyan_last_error());
}

/* ---- large jobs: of ranks alone on their hosts r is below r / 2 ---- */

static void tree_of(struct job *j, int n, double seconds)
{
    setenv("BANYAN_INIT_TREE", "2", 1);
    job_new(j, 400);
    for (int r = 0; r < n; r++)
        job_start(j, r, n, NULL, seconds);
}

/* Drives all but rank `without` until it holds for all of them, or 20 s are over. */
static void tree_until(struct job *j, int without, int (*holds)(const struct bny_bootstrap *b))
{
    uint64_t end = bny_deadline_in(20);
    int open;

    do {
        open = 0;
        for (int i = 0; i < j->nranks; i++) {
            if (i == without)
                continue;
            cr_assert_eq(bny_bootstrap_progress(j->b[i], j->got[i]), 0);
            open += !holds(j->b[i]);
        }
        test_round_over();
    } while (open && !bny_deadline_passed(end));
    cr_assert_eq(open, 0);
}

static int has_place(const struct bny_bootstrap *b)
{
    return b->rank == 0 || b->client.place == PLACE_ROOT ||
           (b->client.place == PLACE_UP && b->client.joined);
}

static int has_asked(const struct bny_bootstrap *b)
{
    return b->rank == 0 || b->client.place != PLACE_NONE;
}

Test(tree, no_rank_serves_many)
{
    struct job j;
    int most = 0, served = 0;

    tree_of(&j, 60, 20);
    job_gather(&j);
    for (int r = 0; r < 60; r++) {
        int n = j.b[r]->below.nmembers;

        served += n;
        most = n > most ? n : most;
        for (int i = 0; i < 60; i++)
            cr_assert_eq(memcmp(j.got[r] + (size_t)i * j.bytes, j.infos[i], j.bytes), 0);
    }
    cr_assert_eq(served, 59);
    cr_assert_lt(most, 30, "%d ranks took the table from one", most);
    job_free(&j);
}

/* Nobody listens where the root sends them: it serves them itself. */
Test(tree, who_does_not_reach_its_place_stays_with_the_root)
{
    struct job j;

    tree_of(&j, 12, 20);
    for (int r = 2; r < 4; r++)
        gather_stop_listening(&j.b[r]->below);
    cr_assert_eq(job_drive(&j), 0);
    job_expect_peer_infos(&j);
    job_free(&j);
}

static int in_the_middle[] = { 1, 2, 3, 4, 5 };

ParameterizedTestParameters(tree, a_rank_in_the_middle_that_dies_is_named_by_all)
{
    return cr_make_param_array(int, in_the_middle, 5);
}

ParameterizedTest(int *victim, tree, a_rank_in_the_middle_that_dies_is_named_by_all)
{
    struct job j;
    char words[40];

    setenv("BANYAN_INIT_TREE", "2", 1);
    job_new(&j, 400);
    for (int r = 0; r < 11; r++)
        job_start(&j, r, 12, NULL, 20);
    tree_until(&j, -1, has_place);
    bny_bootstrap_destroy(j.b[*victim]);
    j.rc[*victim] = 1;
    j.b[*victim] = NULL;
    cr_assert_eq(job_drive(&j), 0);
    snprintf(words, sizeof words, "rank %d left", *victim);
    job_expect_told(&j, *victim, BANYAN_ERANKDEAD, words);
    job_free(&j);
}

/* Stopped: the peer infos of those below it are with it, and yet it is the one. */
Test(tree, a_rank_in_the_middle_that_stops_is_named_alone)
{
    struct job j;

    tree_of(&j, 12, 3);
    tree_until(&j, -1, has_asked);
    for (uint64_t end = bny_deadline_in(20); !j.rc[0] && !bny_deadline_passed(end);
         test_round_over())
        for (int r = 0; r < 12; r++)
            if (r != 2 && !j.rc[r])
                j.rc[r] = bny_bootstrap_progress(j.b[r], j.got[r]);
    cr_assert_eq(j.rc[0], -BANYAN_ETIMEDOUT);
    bny_bootstrap_progress(j.b[0], j.got[0]);
    cr_assert(strstr(banyan_last_error(), "rank 2 of 12 reached the root"), "%s",
              banyan_last_error());
    job_free(&j);
}

Test(tree, who_is_not_ready_is_named_at_the_deadline)
{
    struct job j;

    tree_of(&j, 12, 6);
    job_gather(&j);
    cr_assert_eq(job_settle(&j, 0xfff & ~(1u << 2 | 1u << 5 | 1u << 9), 20), 0);
    job_expect_told(&j, -1, BANYAN_ETIMEDOUT, "ranks 2, 5, 9 of 12 did not connect");
    job_free(&j);
}

Test(tree, all_go_when_the_last_is_ready)
{
    struct job j;

    tree_of(&j, 12, 20);
    job_gather(&j);
    cr_assert_eq(job_settle(&j, 0xfff & ~(1u << 11), 0.05), 12);
    cr_assert_eq(job_settle(&j, 0xfff, 20), 0);
    for (int r = 0; r < 12; r++)
        cr_assert_eq(j.rc[r], 1, "rank %d: %s", r, j.text[r]);
    job_free(&j);
}

/* ---- large jobs, several ranks a host ---- */

static void hosts_of(struct job *j, int n, int hosts, int block, double seconds)
{
    setenv("BANYAN_INIT_TREE", "2", 1);
    job_new(j, 400);
    for (int r = 0; r < n; r++) {
        test_on_host(r, n, hosts, block);
        job_start(j, r, n, NULL, seconds);
    }
}

/* Only one of a host comes to the root, whatever the order of ranks. */
Test(hosts, one_of_each_speaks_with_the_root)
{
    static const int shapes[][3] = { { 24, 3, 8 },  { 24, 3, 0 },  { 23, 3, 8 }, { 25, 4, 0 },
                                     { 60, 1, 60 }, { 60, 30, 2 }, { 7, 1, 7 },  { 2, 1, 2 } };

    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        struct job j;
        int n = shapes[s][0], hosts = shapes[s][1], near = shapes[s][2] ? shapes[s][2] : 9;

        hosts_of(&j, n, hosts, shapes[s][2], 20);
        job_gather(&j);
        for (int r = 1, heads = 0; r < n; r++) {
            heads += j.b[0]->below.spots[r].asked;
            if (r == n - 1)
                cr_assert_eq(heads, hosts - 1, "shape %zu: %d heads", s, heads);
            cr_assert_lt(j.b[r]->tally.frames, (uint64_t)near + 40);
        }
        for (int r = 0; r < n; r++)
            for (int i = 0; i < n; i++)
                cr_assert_eq(memcmp(j.got[r] + (size_t)i * j.bytes, j.infos[i], j.bytes), 0);
        cr_assert_eq(job_settle(&j, UINT64_MAX, 20), 0);
        job_free(&j);
    }
}

/* Who is to be above a rank on its host never listens there (its own network namespace): the
 * root takes it in. */
Test(hosts, who_is_not_let_in_goes_to_the_root)
{
    struct job j;

    setenv("BANYAN_INIT_TREE", "2", 1);
    job_new(&j, 400);
    for (int r = 0; r < 12; r++) {
        test_on_host(r, 12, 2, 6);
        if (r == 7) /* host 1 has ranks 6 to 11; 9 and 10 come below 7 */
            setenv("GROUP_RANK", "9", 1);
        job_start(&j, r, 12, NULL, 20);
    }
    cr_assert_eq(job_drive(&j), 0);
    job_expect_peer_infos(&j);
    job_free(&j);
}

/* Below the root on its host; a head; below one; below a rank that is below one. Each hardly
 * begun, and behind 0.3 s. */
struct victim {
    int rank, rounds;
};
static struct victim victims[] = { { 1, 30 },   { 4, 30 },   { 5, 30 },   { 7, 30 },
                                   { 9, 30 },   { 1, 3000 }, { 4, 3000 }, { 5, 3000 },
                                   { 7, 3000 }, { 9, 3000 } };

ParameterizedTestParameters(hosts, a_rank_that_dies_is_named_by_all)
{
    return cr_make_param_array(struct victim, victims, sizeof victims / sizeof victims[0]);
}

/* Before its peer info has left its host, and behind that: all hear who it was. */
ParameterizedTest(struct victim *v, hosts, a_rank_that_dies_is_named_by_all)
{
    struct job j;
    char words[40];

    setenv("BANYAN_INIT_TREE", "2", 1);
    job_new(&j, 400);
    for (int r = 0; r < 11; r++) { /* the last is missing */
        test_on_host(r, 12, 3, 4);
        job_start(&j, r, 12, NULL, 20);
    }
    for (int i = 0; i < v->rounds; i++) {
        for (int r = 0; r < 11; r++)
            cr_assert_eq(bny_bootstrap_progress(j.b[r], j.got[r]), 0);
        test_round_over();
    }
    bny_bootstrap_destroy(j.b[v->rank]);
    j.rc[v->rank] = 1;
    j.b[v->rank] = NULL;
    cr_assert_eq(job_drive(&j), 0);
    snprintf(words, sizeof words, "rank %d left", v->rank);
    job_expect_told(&j, v->rank, BANYAN_ERANKDEAD, words);
    job_free(&j);
}

static int absent[] = { 3, 4, 6, 9 };

ParameterizedTestParameters(hosts, who_does_not_come_is_named)
{
    return cr_make_param_array(int, absent, sizeof absent / sizeof absent[0]);
}

ParameterizedTest(int *missing, hosts, who_does_not_come_is_named)
{
    struct job j;
    char words[60];

    setenv("BANYAN_INIT_TREE", "2", 1);
    job_new(&j, 400);
    for (int r = 0; r < 12; r++) {
        test_on_host(r, 12, 3, 4);
        if (r != *missing)
            job_start(&j, r, 12, NULL, 3);
    }
    cr_assert_eq(job_drive(&j), 0);
    snprintf(words, sizeof words, "rank %d of 12 did not reach the root", *missing);
    job_expect_told(&j, -1, BANYAN_ETIMEDOUT, words);
    job_free(&j);
}

Test(hosts, two_with_one_rank_are_told)
{
    struct job j;

    setenv("BANYAN_INIT_TREE", "2", 1);
    job_new(&j, 400);
    for (int r = 0; r < 12; r++) {
        test_on_host(r, 12, 3, 4);
        if (r == 9) {
            setenv("RANK", "5", 1);
            job_start(&j, 5, 12, NULL, 10);
        } else {
            job_start(&j, r, 12, NULL, 10);
        }
    }
    cr_assert_eq(job_drive(&j), 0);
    job_expect_told(&j, -1, BANYAN_EPROTO, "two processes joined as rank 5");
    job_free(&j);
}
