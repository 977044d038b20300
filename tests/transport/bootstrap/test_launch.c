/* SPDX-License-Identifier: BSD-3-Clause */
/* Every launcher's environment leads to one id on all ranks and a finished all-gather; every
 * wrong one to -BANYAN_ECONFIG with the variable, its value and a remedy. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sodium.h>

#include "base/clock.h"
#include "support.h"
#include "transport/bootstrap/cookie.h"
#include "transport/bootstrap/id.h"
#include "transport/bootstrap/launch.h"

extern char **environ;

#define FREE_PORT 29400 /* candidates above it are tried until one is free */

static char home[] = "/tmp/banyan-home-XXXXXX";

/* The name of a file in the test's home, which is HOME. */
static const char *in_home(const char *name)
{
    static char path[100];

    snprintf(path, sizeof path, "%s/%s", home, name);
    return path;
}

static void move_in(void)
{
    cr_assert(mkdtemp(home));
    setenv("HOME", home, 1);
}

static void move_out(void)
{
    unlink(in_home(".banyan-cookie"));
    cr_expect_eq(rmdir(home), 0, "something besides the cookie is left in HOME");
}

TestSuite(launch, .init = move_in, .fini = move_out);

/* ---- in this process ---- */

/* "A=1 B=2": sets these, after removing what a launcher of this test may have set. */
static void set_env(const char *list)
{
    static const char *const launcher[] = { "RANK",
                                            "WORLD_SIZE",
                                            "MASTER_ADDR",
                                            "MASTER_PORT",
                                            "TORCHELASTIC_RUN_ID",
                                            "PMI_FD",
                                            "PMI_RANK",
                                            "PMI_SIZE",
                                            "PMIX_RANK",
                                            "PMIX_NAMESPACE",
                                            "SLURM_PROCID",
                                            "OMPI_COMM_WORLD_RANK" };
    char copy[1000], *save = NULL;

    for (size_t i = 0; i < sizeof launcher / sizeof launcher[0]; i++)
        unsetenv(launcher[i]);
    snprintf(copy, sizeof copy, "%s", list);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *eq = strchr(word, '=');

        *eq = '\0';
        setenv(word, eq + 1, 1);
    }
}

static int launch(struct bny_launch *l, const char *env)
{
    set_env(env);
    return bny_launch_env(l, "", "", bny_deadline_in(5));
}

struct wrong {
    char env[200], word1[40], word2[40];
};

ParameterizedTestParameters(launch, a_wrong_environment_names_variable_and_value)
{
    static struct wrong w[] = {
        { "RANK=abc WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1", "RANK=abc", "torchrun" },
        { "RANK=2 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1", "RANK=2", "WORLD_SIZE=2" },
        { "RANK=-1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1", "RANK=-1", "torchrun" },
        { "RANK=0 WORLD_SIZE=0 MASTER_ADDR=localhost MASTER_PORT=1", "WORLD_SIZE=0",
          "torchrun" },
        { "RANK=0 WORLD_SIZE=2x MASTER_ADDR=localhost MASTER_PORT=1", "WORLD_SIZE=2x",
          "torchrun" },
        { "WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1", "RANK is not set", "torchrun" },
        { "RANK=1 MASTER_ADDR=localhost MASTER_PORT=1", "WORLD_SIZE is not set", "torchrun" },
        { "RANK=0 WORLD_SIZE=2 MASTER_PORT=1", "MASTER_ADDR is not set", "torchrun" },
        { "RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost", "MASTER_PORT is not set", "torchrun" },
        { "RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=70000", "MASTER_PORT=70000",
          "65535" },
        { "RANK=0 WORLD_SIZE=2 MASTER_ADDR=no..host MASTER_PORT=1", "no..host", "resolve" },
        { "RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1 "
          "BANYAN_SECRET_FILE=/nonexistent",
          "BANYAN_SECRET_FILE=/nonexistent", "read" },
        { "RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1 "
          "BANYAN_SECRET=fifteen-letters",
          "15 characters", "openssl rand" },
        { "BANYAN_RANK=0 BANYAN_WORLD_SIZE=2", "BANYAN_ID is not set", "banyan_run" },
        { "BANYAN_ID=12 BANYAN_RANK=0 BANYAN_WORLD_SIZE=2", "BANYAN_ID=12", "banyan_run" },
        { "BANYAN_ID=12 BANYAN_RANK=5 BANYAN_WORLD_SIZE=2", "BANYAN_RANK=5", "ranks 0 to 1" },
        { "BANYAN_ID=12 BANYAN_WORLD_SIZE=2", "BANYAN_RANK is not set", "banyan_run" },
        { "SLURM_PROCID=7 SLURM_NTASKS=4", "SLURM_PROCID=7", "srun" },
        { "SLURM_PROCID=0", "SLURM_NTASKS is not set", "srun" },
        { "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=1 SLURM_STEP_ID=0", "SLURM_STEP_NODELIST",
          "srun" },
        { "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=1 SLURM_NODELIST=n1", "SLURM_STEP_ID",
          "alone" },
        { "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_NODELIST=n[x",
          "n[x", "node list" },
        { "PMI_FD=6 PMI_RANK=0", "PMI_SIZE is not set", "mpirun" },
        { "PMI_FD=x PMI_RANK=0 PMI_SIZE=1", "PMI_FD=x", "mpirun" },
        { "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_RANK=3", "libpmix2" },
    };
    return cr_make_param_array(struct wrong, w, sizeof w / sizeof w[0]);
}

ParameterizedTest(struct wrong *w, launch, a_wrong_environment_names_variable_and_value)
{
    struct bny_launch l;

    cr_assert_eq(launch(&l, w->env), -BANYAN_ECONFIG, "%s", w->env);
    cr_assert(strstr(banyan_last_error(), w->word1), "\"%s\" lacks \"%s\"", banyan_last_error(),
              w->word1);
    cr_assert(strstr(banyan_last_error(), w->word2), "\"%s\" lacks \"%s\"", banyan_last_error(),
              w->word2);
}

/* What was said to torchrun is not said to its workers; else MPI's launcher counts, and a
 * contradiction is told. */
Test(launch, of_two_launchers_the_inner_one_counts)
{
    const char *pmi = "PMI_FD=6 PMI_RANK=0 PMI_SIZE=1 RANK=1 WORLD_SIZE=2 "
                      "MASTER_ADDR=localhost MASTER_PORT=1 BANYAN_SECRET=x-x-x-x-x-x-x-x-x";
    char env[300];
    struct bny_launch l;

    test_catch_log("RANK=1 and WORLD_SIZE=2 are ignored");
    cr_assert_eq(launch(&l, pmi), 0, "%s", banyan_last_error());
    cr_assert(l.rank == 0 && l.nranks == 1 && !strcmp(l.how, "mpich"), "%s", l.how);
    cr_assert_eq(test_caught(), 1);
    snprintf(env, sizeof env, "%s TORCHELASTIC_RUN_ID=none", pmi);
    cr_assert_eq(launch(&l, env), 0, "%s", banyan_last_error());
    cr_assert(l.rank == 1 && l.nranks == 2 && !strcmp(l.how, "torchrun"), "%s", l.how);
    cr_assert_eq(test_caught(), 1);
}

Test(launch, nothing_means_one_rank_alone)
{
    struct bny_launch l;

    cr_assert_eq(launch(&l, ""), 0, "%s", banyan_last_error());
    cr_assert(l.rank == 0 && l.nranks == 1);
    cr_assert_str_eq(l.how, "single");
}

Test(launch, torchrun_ranks_derive_the_same_id)
{
    struct bny_launch a, b, c, d;

    cr_assert_eq(launch(&a, "RANK=0 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"), 0,
                 "%s", banyan_last_error());
    cr_assert_eq(launch(&b, "RANK=3 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"), 0);
    cr_assert(a.rank == 0 && b.rank == 3 && a.nranks == 4);
    cr_assert_str_eq(a.how, "torchrun");
    cr_assert_eq(memcmp(&a.id, &b.id, sizeof a.id), 0);
    cr_assert(a.id.port == 29501 && a.id.span == 16);
    cr_assert_eq(launch(&c, "RANK=3 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 "
                            "BANYAN_SECRET=hush-hush-hush-hush"),
                 0);
    cr_assert_neq(memcmp(a.id.secret, c.id.secret, 32), 0, "the secret matters");
    cr_assert_eq(launch(&d, "RANK=3 WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=65535"), 0);
    cr_assert_eq(d.id.port + d.id.span, 65536);
    cr_assert_neq(memcmp(a.id.job, d.id.job, 8), 0);
}

Test(launch, a_secret_file_counts_without_its_newline)
{
    char path[] = "/tmp/banyan-test-XXXXXX", env[300];
    struct bny_launch a, b;
    int fd = mkstemp(path);

    cr_assert_eq(write(fd, "hush-hush-hush-hush\n", 20), 20);
    close(fd);
    snprintf(env, sizeof env,
             "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=5 "
             "BANYAN_SECRET_FILE=%s",
             path);
    cr_assert_eq(launch(&a, env), 0, "%s", banyan_last_error());
    unlink(path);
    cr_assert_eq(launch(&b, "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=5 "
                            "BANYAN_SECRET=hush-hush-hush-hush"),
                 0);
    cr_assert_eq(memcmp(a.id.secret, b.id.secret, 32), 0);
}

Test(launch, a_secret_file_that_others_can_read_is_refused)
{
    char path[] = "/tmp/banyan-test-XXXXXX", env[300];
    struct bny_launch l;
    int fd = mkstemp(path);

    cr_assert_eq(write(fd, "hush-hush-hush-hush\n", 20), 20);
    snprintf(env, sizeof env,
             "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=5 "
             "BANYAN_SECRET_FILE=%s",
             path);
    cr_assert_eq(fchmod(fd, 0644), 0);
    cr_expect_eq(launch(&l, env), -BANYAN_ECONFIG);
    cr_expect(strstr(banyan_last_error(), "mode 644"), "%s", banyan_last_error());
    cr_assert_eq(fchmod(fd, 0440), 0); /* a mounted secret of root's */
    cr_expect_eq(launch(&l, env), geteuid() == 0 ? 0 : -BANYAN_ECONFIG);
    cr_assert_eq(fchmod(fd, 0400), 0);
    cr_expect_eq(launch(&l, env), 0, "%s", banyan_last_error());
    if (geteuid() == 0 && fchown(fd, 12345, 0) == 0) {
        cr_expect_eq(launch(&l, env), -BANYAN_ECONFIG);
        cr_expect(strstr(banyan_last_error(), "owner 12345"), "%s", banyan_last_error());
    }
    close(fd);
    unlink(path);
}

/* As long as a key it is used as one; a shorter text costs who guesses it. */
Test(launch, a_short_secret_is_stretched)
{
    static const char key[] = "banyan job secret, version 1", *const secrets[] = {
        "hush-hush-hush-hush", "0123456789abcdef0123456789abcdef"
    };

    for (int k = 0; k < 2; k++) {
        const char *job = "torchrun 127.0.0.1 5  ";
        char env[300];
        uint8_t plain[32];
        crypto_generichash_state st;
        struct bny_launch l;

        snprintf(env, sizeof env,
                 "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=5 BANYAN_SECRET=%s",
                 secrets[k]);
        cr_assert_eq(launch(&l, env), 0, "%s", banyan_last_error());
        crypto_generichash_init(&st, (const uint8_t *)key, sizeof key - 1, 32);
        crypto_generichash_update(&st, (const uint8_t *)job, strlen(job) + 1);
        crypto_generichash_update(&st, (const uint8_t *)secrets[k], strlen(secrets[k]));
        crypto_generichash_final(&st, plain, 32);
        cr_expect_eq(memcmp(plain, l.id.secret, 32) == 0, k == 1, "secret %d", k);
    }
}

/* ---- cookies ---- */

#define JOB "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"

static void write_cookie(const char *text, mode_t mode)
{
    int fd = open(in_home(".banyan-cookie"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    cr_assert_eq(fchmod(fd, mode), 0);
    close(fd);
}

static void refused(const char *word)
{
    struct bny_launch l;

    cr_assert_eq(launch(&l, JOB), -BANYAN_ECONFIG);
    cr_assert(strstr(banyan_last_error(), word), "\"%s\" lacks \"%s\"", banyan_last_error(),
              word);
    cr_assert(strstr(banyan_last_error(), in_home(".banyan-cookie")) &&
                  strstr(banyan_last_error(), "BANYAN_SECRET_FILE"),
              "%s", banyan_last_error());
}

#define DIGITS_64 "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"

Test(launch, without_a_secret_it_is_the_users_cookie)
{
    struct bny_launch a, b;
    struct stat st;

    cr_assert_eq(launch(&a, JOB), 0, "%s", banyan_last_error());
    cr_assert_eq(stat(in_home(".banyan-cookie"), &st), 0, "made at first use");
    cr_assert(S_ISREG(st.st_mode) && (st.st_mode & 0777) == 0600 && st.st_size == 65,
              "mode %o, %d bytes", (unsigned)st.st_mode, (int)st.st_size);
    cr_assert_eq(launch(&b, JOB), 0);
    cr_assert_eq(memcmp(&a.id, &b.id, sizeof a.id), 0, "and read from then on");
    cr_assert_eq(a.id.key_from, BNY_KEY_COOKIE);
    cr_assert_eq(unlink(in_home(".banyan-cookie")), 0);
    cr_assert_eq(launch(&b, JOB), 0);
    cr_assert_neq(memcmp(a.id.secret, b.id.secret, 32), 0, "the secret is the cookie");
    cr_assert_eq(memcmp(a.id.job, b.id.job, 8), 0);
    write_cookie(DIGITS_64, 0400);
    cr_assert_eq(launch(&a, JOB), 0, "%s", banyan_last_error());
    write_cookie(DIGITS_64 "\n", 0600);
    cr_assert_eq(launch(&b, JOB), 0, "%s", banyan_last_error());
    cr_assert_eq(memcmp(&a.id, &b.id, sizeof a.id), 0);
}

Test(launch, a_cookie_that_others_may_know_is_refused)
{
    struct bny_launch l;

    write_cookie(DIGITS_64 "\n", 0640);
    refused("mode 640");
    write_cookie(DIGITS_64 "\n", 0602);
    refused("mode 602");
    for (size_t i = 0; i < 5; i++) {
        write_cookie(
            (const char *[]){ "", "00", DIGITS_64 "0", DIGITS_64 "\n\n", "x" DIGITS_64 }[i],
            0600);
        refused("64 hexadecimal digits");
    }
    cr_assert_eq(unlink(in_home(".banyan-cookie")), 0);
    cr_assert_eq(symlink("/dev/zero", in_home(".banyan-cookie")), 0);
    refused("symbolic link");
    cr_assert_eq(unlink(in_home(".banyan-cookie")), 0);
    cr_assert_eq(mkfifo(in_home(".banyan-cookie"), 0600), 0);
    refused("no ordinary file");
    cr_assert_eq(unlink(in_home(".banyan-cookie")), 0);
    /* A secret needs no cookie. */
    cr_assert_eq(launch(&l, JOB " BANYAN_SECRET=hush-hush-hush-hush"), 0, "%s",
                 banyan_last_error());
    cr_assert_eq(l.id.key_from, BNY_KEY_SECRET);
    unsetenv("BANYAN_SECRET");
    cr_assert_eq(launch(&l, JOB " BANYAN_INSECURE=1"), 0, "%s", banyan_last_error());
    cr_assert_eq(l.id.key_from, BNY_KEY_WORDS);
    cr_assert_neq(access(in_home(".banyan-cookie"), F_OK), 0, "none was made");
}

Test(launch, a_cookie_of_another_user_is_refused)
{
    write_cookie(DIGITS_64 "\n", 0600);
    if (chown(in_home(".banyan-cookie"), 65534, 65534) != 0)
        cr_skip_test("only root can give files away");
    refused("belongs to uid 65534");
}

/* Containers: no home, or one that is somebody else's. */
Test(launch, without_a_home_the_cookie_lies_in_tmp)
{
    static const char *const homes[] = { "/nonexistent", "relative", "" };
    uint8_t first[BNY_COOKIE_BYTES], again[BNY_COOKIE_BYTES];
    char path[BNY_COOKIE_PATH], want[60];
    int there;

    snprintf(want, sizeof want, "/tmp/.banyan-cookie-%u", (unsigned)geteuid());
    there = access(want, F_OK) == 0; /* then a user's, who shall keep it */
    for (size_t i = 0; i < 3; i++) {
        setenv("HOME", homes[i], 1);
        cr_assert_eq(bny_cookie_read(i ? again : first, path), 0, "%s", banyan_last_error());
        cr_assert_str_eq(path, want);
        cr_assert(!i || !memcmp(first, again, sizeof again));
    }
    setenv("HOME", home, 1);
    if (chown(home, 65534, 65534) == 0) {
        cr_assert_eq(bny_cookie_read(again, path), 0, "%s", banyan_last_error());
        cr_assert_str_eq(path, want);
    }
    if (!there)
        unlink(want);
}

/* Ranks that start together make it together; and one removes it all the time. */
Test(launch, a_cookie_is_one_however_many_make_it, .timeout = 60)
{
    enum { N = 12, ROUNDS = 40 };

    for (int round = 0; round < ROUNDS; round++) {
        uint8_t got[N][BNY_COOKIE_BYTES];
        char path[BNY_COOKIE_PATH];
        int go[2], out[2], status;

        cr_assert_eq(pipe(go), 0);
        cr_assert_eq(pipe(out), 0);
        for (int i = 0; i < N; i++)
            if (fork() == 0) {
                char c;

                close(go[1]);
                (void)!read(go[0], &c, 1); /* until all are there */
                if (bny_cookie_read(got[0], path) != 0)
                    memset(got[0], i + 1, sizeof got[0]);
                (void)!write(out[1], got[0], sizeof got[0]);
                _exit(0);
            }
        close(go[0]);
        close(go[1]);
        for (int i = 0; i < N; i++) {
            cr_assert_eq(read(out[0], got[i], sizeof got[i]), (ssize_t)sizeof got[i]);
            cr_assert_eq(memcmp(got[i], got[0], sizeof got[0]), 0, "round %d", round);
        }
        while (wait(&status) > 0)
            ;
        close(out[0]);
        close(out[1]);
        unlink(in_home(".banyan-cookie"));
    }
}

Test(launch, slurm_ranks_derive_the_same_id)
{
    struct bny_launch a, b;

    cr_assert_eq(launch(&a, "SLURM_PROCID=0 SLURM_NTASKS=3 SLURM_JOB_ID=77 SLURM_STEP_ID=2 "
                            "SLURM_STEP_NODELIST=localhost"),
                 0, "%s", banyan_last_error());
    cr_assert_eq(launch(&b, "SLURM_PROCID=2 SLURM_NTASKS=9 SLURM_STEP_NUM_TASKS=3"), 0, "%s",
                 banyan_last_error());
    cr_assert(a.rank == 0 && b.rank == 2 && b.nranks == 3);
    cr_assert_eq(memcmp(&a.id, &b.id, sizeof a.id), 0);
    cr_assert_geq(a.id.port, 20000);
    setenv("SLURM_STEP_ID", "3", 1);
    cr_assert_eq(bny_launch_env(&b, "", "40000-40007", 0), 0);
    cr_assert_neq(memcmp(a.id.job, b.id.job, 8), 0, "another step is another job");
    cr_assert(b.id.port == 40000 && b.id.span == 8);
}

/* Answers of a launcher that has gone mad, or says nothing. */
struct answer {
    char text[80];
    int code;
};

ParameterizedTestParameters(launch, a_broken_pmi_ends_with_an_error)
{
    static struct answer a[] = {
        { "cmd=nonsense\n", BANYAN_ESYSTEM },
        { "cmd=response_to_init rc=-1\n", BANYAN_ESYSTEM },
        { "\n", BANYAN_ESYSTEM },
        { "cmd=response_to_init rc=0\ncmd=maxes vallen_max=10\n", BANYAN_ENOTSUP },
        { "cmd=response_to_init rc=0\ncmd=maxes\n", BANYAN_ENOTSUP },
        { "cmd=response_to_init rc=0\ncmd=maxes vallen_max=999\ncmd=my_kvsname\n",
          BANYAN_ESYSTEM },
        { "cmd=response_to_init rc=0\ncmd=ma", BANYAN_ETIMEDOUT },
        { "", BANYAN_ETIMEDOUT },
    };
    return cr_make_param_array(struct answer, a, sizeof a / sizeof a[0]);
}

ParameterizedTest(struct answer *a, launch, a_broken_pmi_ends_with_an_error)
{
    struct bny_launch l;
    char env[60];
    int sp[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, sp), 0);
    cr_assert_eq(write(sp[1], a->text, strlen(a->text)), (ssize_t)strlen(a->text));
    snprintf(env, sizeof env, "PMI_FD=%d PMI_RANK=1 PMI_SIZE=2", sp[0]);
    set_env(env);
    cr_assert_eq(
        bny_launch_env(&l, "", "", bny_deadline_in(a->code == BANYAN_ETIMEDOUT ? 0.2 : 20)),
        -a->code, "%s: %s", a->text, banyan_last_error());
    cr_assert(strstr(banyan_last_error(), "rank 1"), "%s", banyan_last_error());
    close(sp[1]);
    close(sp[0]);
}

struct list {
    char list[60], first[40];
};

ParameterizedTestParameters(launch, slurm_lists_begin_with_their_first_host)
{
    static struct list lists[] = {
        { "n1", "n1" },
        { "n1,n2", "n1" },
        { "node[03-05,7]", "node03" },
        { "node[7]", "node7" },
        { "a[10,12-14],b[1-2]", "a10" },
        { "rack-2[08-09]-ib,x", "rack-208-ib" },
        { "r[1-2]n[30-31]", "r1n30" },
        { "", "" },
        { ",a", "" },
        { "n[", "" },
        { "n[]", "" },
        { "n[3-", "" },
        { "n[x]", "" },
    };
    return cr_make_param_array(struct list, lists, sizeof lists / sizeof lists[0]);
}

ParameterizedTest(struct list *l, launch, slurm_lists_begin_with_their_first_host)
{
    char host[64] = "";
    int rc = bny_slurm_first_host(l->list, host, sizeof host);

    cr_assert_eq(rc, *l->first ? 0 : -1, "%s", l->list);
    if (rc == 0)
        cr_assert_str_eq(host, l->first);
    cr_assert_eq(bny_slurm_first_host(l->list, host, 2), -1, "%s fits into no two bytes",
                 l->list);
}

Test(launch, ids_survive_their_text)
{
    struct bny_id id, back;
    char hex[BNY_ID_HEX];

    cr_assert_eq(bny_id_create(&id, "lo", "", 1), 0);
    cr_assert_geq(bny_id_listen_fd(&id), 0);
    bny_id_to_hex(&id, hex);
    cr_assert_eq(strlen(hex), BNY_ID_HEX - 1);
    cr_assert_eq(bny_id_from_hex(&back, hex), 0);
    cr_assert_eq(memcmp(&id, &back, sizeof id), 0);
    hex[3] = 'z';
    cr_assert_eq(bny_id_from_hex(&back, hex), -BANYAN_EINVAL);
    cr_assert_eq(bny_id_from_hex(&back, "00"), -BANYAN_EINVAL);
    close(bny_id_take_fd(&id));
    cr_assert_eq(bny_id_listen_fd(&id), -1);
}

/* Started by something that closed it, as services are. */
Test(launch, the_listener_is_no_standard_input)
{
    struct bny_id id;

    close(0);
    cr_assert_eq(bny_id_create(&id, "lo", "", 1), 0, "%s", banyan_last_error());
    cr_assert_geq(bny_id_listen_fd(&id), 3);
    close(bny_id_take_fd(&id));
}

Test(launch, interfaces_and_ports_are_chosen_as_told)
{
    struct bny_id id;
    struct bny_addr a;

    cr_assert_eq(bny_id_create(&id, "nosuch,lo", "", 1), 0);
    bny_id_addr(&id, &a);
    cr_assert(bny_addr_is_loopback(&a));
    close(bny_id_take_fd(&id));
    cr_assert_eq(bny_id_create(&id, "nosuch", "", 1), -BANYAN_ECONFIG);
    cr_assert(strstr(banyan_last_error(), "BANYAN_IFNAME=nosuch") &&
                  strstr(banyan_last_error(), "lo"),
              "%s", banyan_last_error());
    cr_assert_eq(bny_id_create(&id, "lo", "50100-50140", 1), 0, "%s", banyan_last_error());
    cr_assert(id.port >= 50100 && id.port <= 50140);
    bny_id_addr(&id, &a);
    {
        char one[20];
        struct bny_id other;

        snprintf(one, sizeof one, "%u", a.port);
        cr_assert_eq(bny_id_create(&other, "lo", one, 1), -BANYAN_ECONFIG);
        cr_assert(strstr(banyan_last_error(), "BANYAN_PORT_RANGE"), "%s", banyan_last_error());
    }
    close(bny_id_take_fd(&id));
    for (int i = 0; i < 6; i++)
        cr_assert_eq(
            bny_id_create(&id, "lo",
                          (const char *[]){ "x", "0-5", "9-8", "1-70000", "5-", "-5" }[i], 1),
            -BANYAN_ECONFIG);
    /* An exclusion leaves something else, or nothing; never what it excludes. */
    if (bny_id_create(&id, "^lo", "", 1) == 0) {
        bny_id_addr(&id, &a);
        cr_assert(!bny_addr_is_loopback(&a));
        close(bny_id_take_fd(&id));
    }
}

/* ---- with worker processes ---- */

struct child {
    pid_t pid;
    int out;
};

static int worker_path(char *path, size_t cap)
{
    const char *dir = getenv("BANYAN_TEST_BIN");

    if (!dir)
        return -1;
    snprintf(path, cap, "%s/bootstrap_launch_worker", dir);
    return access(path, X_OK);
}

static struct child spawn(const char *const argv[])
{
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t attr;
    struct child c;
    int p[2];

    cr_assert_eq(pipe2(p, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, p[1], 1);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP);
    cr_assert_eq(
        posix_spawnp(&c.pid, argv[0], &fa, &attr, (char *const *)(uintptr_t)argv, environ), 0,
        "%s", argv[0]);
    posix_spawn_file_actions_destroy(&fa);
    posix_spawnattr_destroy(&attr);
    close(p[1]);
    c.out = p[0];
    return c;
}

/* Appends its output to text, and returns its exit status; its group is killed after 30 s. */
static int finish(struct child c, char *text, size_t cap)
{
    uint64_t end = bny_deadline_in(30);
    size_t at = strlen(text);
    struct pollfd p = { .fd = c.out, .events = POLLIN };
    int status;

    for (;;) {
        ssize_t n;

        if (poll(&p, 1, 1000) == 0 && bny_deadline_passed(end)) {
            kill(-c.pid, SIGKILL);
            break;
        }
        if (!p.revents)
            continue;
        n = read(c.out, text + at, cap - at - 1);
        if (n <= 0)
            break;
        at += (size_t)n;
        text[at] = '\0';
    }
    close(c.out);
    cr_assert_eq(waitpid(c.pid, &status, 0), c.pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void expect_ranks(const char *text, const char *how, int n)
{
    for (int r = 0; r < n; r++) {
        char line[40];

        snprintf(line, sizeof line, "%s %d %d\n", how, r, n);
        cr_assert(strstr(text, line), "no line \"%s %d %d\" in \"%s\"", how, r, n, text);
    }
}

static void run_under(const char *mpirun, const char *how, const char *const argv[])
{
    char path[600], text[4000] = "", probe[200];
    int rc;

    snprintf(probe, sizeof probe, "/usr/bin/%s", mpirun);
    if (access(probe, X_OK) != 0)
        cr_skip_test("%s is not installed", probe);
    cr_assert_eq(worker_path(path, sizeof path), 0,
                 "run by meson test, which sets BANYAN_TEST_BIN");
    set_env("");
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* libpmix keeps memory until exit */
    rc = finish(spawn(argv), text, sizeof text);
    cr_assert_eq(rc, 0, "exit status %d: %s", rc, text);
    expect_ranks(text, how, 3);
}

Test(launch, openmpi_starts_it, .timeout = 60)
{
    char path[600] = "";
    const char *argv[] = {
        "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "3", path, NULL
    };

    worker_path(path, sizeof path);
#ifndef BNY_HAVE_PMIX
    cr_skip_test("built without PMIx (libpmix-dev)");
#endif
    run_under("mpirun.openmpi", "openmpi", argv);
}

Test(launch, mpich_starts_it, .timeout = 60)
{
    char path[600] = "";
    const char *argv[] = { "mpirun.mpich", "-n", "3", path, NULL };

    worker_path(path, sizeof path);
    run_under("mpirun.mpich", "mpich", argv);
}

/* Starts n workers as set by env with "%d" for the rank, and expects them all to be well. */
static void run_workers(const char *how, int n, void (*env)(int rank, int n))
{
    char path[600], text[4000] = "";
    const char *argv[] = { path, NULL };
    struct child c[8];

    cr_assert_eq(worker_path(path, sizeof path), 0,
                 "run by meson test, which sets BANYAN_TEST_BIN");
    for (int r = n - 1; r >= 0; r--) {
        env(r, n);
        c[r] = spawn(argv);
    }
    for (int r = 0; r < n; r++)
        cr_assert_eq(finish(c[r], text, sizeof text), 0, "rank %d: %s", r, text);
    expect_ranks(text, how, n);
}

static void env_torchrun(int rank, int n)
{
    char env[200];

    /* The run's name keeps apart two runs of this test at the same ports. */
    snprintf(
        env, sizeof env,
        "RANK=%d WORLD_SIZE=%d MASTER_ADDR=127.0.0.1 MASTER_PORT=%d TORCHELASTIC_RUN_ID=%d",
        rank, n, FREE_PORT, (int)getpid());
    set_env(env);
}

Test(launch, torchrun_starts_it, .timeout = 60)
{
    run_workers("torchrun", 4, env_torchrun);
}

static void env_slurm(int rank, int n)
{
    char env[200];

    snprintf(env, sizeof env,
             "SLURM_PROCID=%d SLURM_NTASKS=%d SLURM_JOB_ID=%d SLURM_STEP_ID=0 "
             "SLURM_STEP_NODELIST=localhost",
             rank, n, (int)getpid());
    set_env(env);
}

Test(launch, slurm_starts_it, .timeout = 60)
{
    run_workers("slurm", 3, env_slurm);
}

static struct bny_id run_id;

static void env_run(int rank, int n)
{
    char env[500], hex[BNY_ID_HEX];

    bny_id_to_hex(&run_id, hex);
    snprintf(env, sizeof env,
             "BANYAN_ID=%s BANYAN_RANK=%d BANYAN_WORLD_SIZE=%d BANYAN_LISTEN_FD=%d", hex, rank,
             n, bny_id_listen_fd(&run_id));
    set_env(env);
    /* As banyan_run does: only rank 0, which is started last here, inherits the listener. */
    if (rank == 0)
        fcntl(bny_id_listen_fd(&run_id), F_SETFD, 0);
}

Test(launch, banyan_run_starts_it, .timeout = 60)
{
    cr_assert_eq(bny_id_create(&run_id, "lo", "", 1), 0);
    char path[600], text[4000] = "";
    const char *argv[] = { path, NULL };
    struct child c[3];

    cr_assert_eq(worker_path(path, sizeof path), 0,
                 "run by meson test, which sets BANYAN_TEST_BIN");
    for (int r = 2; r >= 0; r--) {
        env_run(r, 3);
        c[r] = spawn(argv);
    }
    close(bny_id_take_fd(&run_id)); /* rank 0 has it now */
    for (int r = 0; r < 3; r++)
        cr_assert_eq(finish(c[r], text, sizeof text), 0, "rank %d: %s", r, text);
    expect_ranks(text, "banyan_run", 3);
}
