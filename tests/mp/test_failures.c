/* SPDX-License-Identifier: BSD-3-Clause */
/* Death, stop, abort, fork: every survivor gets the same cause, soon, and nothing stays behind.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "tests/mp/table.h"

/* Files that a job might leave, by the names it might use. */
static int count_leftovers(void)
{
    static const char *const dirs[] = { "/dev/shm", "/tmp", "/run/user/0" };
    int n = 0;

    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
        DIR *d = opendir(dirs[i]);
        struct dirent *e;
        while (d && (e = readdir(d)))
            n += strstr(e->d_name, "bny") == e->d_name || strstr(e->d_name, "sem.bny") ||
                 strstr(e->d_name, "banyan.") == e->d_name;
        if (d)
            closedir(d);
    }
    return n;
}

/* Whoever waits for one of them is not done when the run ends. */
#define NO_DEADLINES "BANYAN_OP_TIMEOUT=3600", "BANYAN_SILENT_S=3600"

struct death {
    char transport[8], work[16];
    int n, victim, runs;
};

static struct death deaths[] = {
    { "shm", "large", 2, 1, 3 },       { "shm", "large", 3, 0, 3 },
    { "shm", "large", 4, 2, 3 },       { "tcp", "large", 2, 0, 3 },
    { "tcp", "large", 3, 1, 3 },       { "tcp", "large", 4, 3, 2 },
    { "shm", "small", 2, 0, 2 },       { "shm", "small", 4, 3, 2 },
    { "tcp", "small", 3, 2, 2 },       { "shm", "mixed", 5, 1, 3 },
    { "tcp", "mixed", 3, 0, 2 },       { "shm", "small child", 3, 1, 1 },
    { "tcp", "small child", 2, 0, 1 }, { "tcp", "large child", 3, 2, 1 },
};

ParameterizedTestParameters(failures, a_killed_rank_is_named_by_all_survivors)
{
    return MP_ROWS(struct death, deaths);
}

/* The promise is 100 ms on an idle machine, and is printed; what is asserted is that no rank
 * waits for a deadline: none ends within the test. */
ParameterizedTest(struct death *d, failures, a_killed_rank_is_named_by_all_survivors,
                  .timeout = 300)
{
    static struct mp_shared out;
    uint64_t s = mp_seed();
    int before = count_leftovers();
    char arg[32];

    snprintf(arg, sizeof arg, "%d %s", d->victim, d->work);
    for (int run = 0; run < d->runs; run++) {
        int late = 0;
        uint64_t worst = 0, seed = bny_rng_next(&s) | 1;
        struct mp_signal kill = { .signal = SIGKILL,
                                  .rank = d->victim,
                                  .marker = 1 + (uint32_t)bny_rng_below(&s, 3),
                                  .delay_us = (uint32_t)bny_rng_below(&s, 60000) };
        struct mp mp = { .n = d->n,
                         .case_name = "until_death",
                         .transport = d->transport,
                         .arg = arg,
                         .seed = seed,
                         .kill = kill,
                         .out = &out,
                         .env = { NO_DEADLINES } };
        MP_CHECK(mp_run(&mp));
        for (int r = 0; r < d->n; r++) {
            uint64_t ns = r == d->victim ? 0 : atomic_load(&out.value[r][0]);
            worst = ns > worst ? ns : worst;
            late += ns > 100000000u;
        }
        fprintf(stderr,
                "# %s %s n=%d: the last survivor knew after %.1f ms, %d of %d after more than "
                "100 ms\n",
                d->transport, d->work, d->n, (double)worst * 1e-6, late, d->n - 1);
    }
    cr_expect_eq(count_leftovers(), before, "files were left in /dev/shm or /tmp");
}

static struct death leaving[] = {
    { "shm", "", 3, 0, 10 },
    { "shm", "", 4, 3, 10 },
    { "tcp", "", 3, 2, 10 },
    { "tcp", "", 5, 0, 10 },
};

ParameterizedTestParameters(failures, who_dies_while_all_leave_holds_up_nobody)
{
    return MP_ROWS(struct death, leaving);
}

/* Leaving takes a millisecond or two. Nobody waits for a deadline, or the run does not end; of
 * a death that nobody is harmed by some may hear, and whoever does hears of that one. */
ParameterizedTest(struct death *d, failures, who_dies_while_all_leave_holds_up_nobody,
                  .timeout = 300)
{
    static struct mp_shared out;
    int before = count_leftovers(), heard = 0;
    uint64_t s = mp_seed();
    char arg[32];

    for (int run = 0; run < d->runs; run++) {
        int delay = (int)bny_rng_below(&s, 2000);
        struct mp mp = { .n = d->n,
                         .case_name = "dies_while_leaving",
                         .transport = d->transport,
                         .arg = arg,
                         .may_die = 1u << d->victim,
                         .out = &out,
                         .env = { NO_DEADLINES } };

        snprintf(arg, sizeof arg, "%d %d", d->victim, delay);
        MP_CHECK(mp_run(&mp));
        for (int r = 0; r < d->n; r++) {
            if (r == d->victim)
                continue;
            heard += atomic_load(&out.value[r][1]) != 0;
        }
    }
    fprintf(stderr, "# %s n=%d: %d of %d ranks heard of it\n", d->transport, d->n, heard,
            d->runs * (d->n - 1));
    cr_expect_eq(count_leftovers(), before, "files were left in /dev/shm or /tmp");
}

struct stop {
    char transport[8];
    int n, victim;
};
static struct stop stops[] = {
    { "shm", 2, 1 },
    { "shm", 3, 0 },
    { "tcp", 2, 0 },
    { "tcp", 3, 2 },
};

static struct mp_row late[] = { { "early_word", "shm", 3 },
                                { "early_word", "tcp", 2 },
                                { "early_words", "tcp", 3 } };
MP_TABLE(failures, whom_an_operation_waits_for_is_said_early, late)

/* Longer than the library waits for a host that says nothing; BANYAN_TEST_SCALE=7.5 makes
 * it a minute. */
static struct mp_row computing[] = {
    { "computes", "shm", 3, "8", 100 },
    { "computes", "tcp", 3, "8", 100 },
    { "computes", "tcp", 2, "8", 100, { "BANYAN_CONTROL_THREAD=0" } },
};
MP_TABLE(failures, who_computes_is_waited_for, computing)

ParameterizedTestParameters(failures, a_stopped_rank_ends_in_the_deadline_without_spinning)
{
    return MP_ROWS(struct stop, stops);
}

ParameterizedTest(struct stop *p, failures,
                  a_stopped_rank_ends_in_the_deadline_without_spinning, .timeout = 100)
{
    struct mp mp = {
        .n = p->n,
        .case_name = "until_stopped",
        .transport = p->transport,
        .timeout_s = 40,
        .kill = { .signal = SIGSTOP, .rank = p->victim, .marker = 20, .delay_us = 1000 }
    };

    MP_CHECK(mp_run(&mp));
}

static struct mp_row resets[] = {
    { "resets", "tcp", 2, "400" },
    { "resets", "tcp", 3, "300" },
    { "resets", "tcp", 5, "150" },
    { "resets", "tcp", 3, "150", 60, { "BANYAN_TEST_CUT=reset" } },
    { "resets", "tcp", 3, "150", 60, { "BANYAN_INTEGRITY=mac" } },
    { "resets", "tcp", 3, "150", 60, { "BANYAN_INTEGRITY=encrypt" } },
};
MP_TABLE(failures, a_reset_connection_is_replaced, resets)

static struct mp_row others[] = {
    { "deadline", "shm", 2 },
    { "deadline", "shm", 4 },
    { "deadline", "tcp", 3 },
    { "finalize_within", "shm", 2 },
    { "finalize_within", "tcp", 3 },
    { "abort_other_thread", "shm", 2 },
    { "abort_other_thread", "shm", 3, "large" },
    { "abort_other_thread", "tcp", 3 },
    { "abort_other_thread", "tcp", 2, "large" },
    { "finalize_aborted", "shm", 3 },
    { "finalize_aborted", "tcp", 4 },
    { "abort_one_of_two", "shm", 3 },
    { "abort_one_of_two", "tcp", 2 },
    { "abort_one_of_two", "shm", 2, "", 20, { "BANYAN_TEST_ONE_CPU=1" } },
    { "abort_one_of_two", "tcp", 3, "", 20, { "BANYAN_TEST_ONE_CPU=1" } },
    { "abort_and_end", "shm", 2, "exit" },
    { "abort_and_end", "shm", 4, "destroy" },
    { "abort_and_end", "tcp", 3, "exit" },
    { "abort_and_end", "tcp", 2, "destroy" },
    { "fork_child", "shm", 2 },
    { "fork_child", "tcp", 2 },
    { "fork_locked", "shm", 2 },
    { "fork_locked", "tcp", 3 },
    { "fork_busy", "shm", 1 },
    { "codec_refuses", "shm", 2, "ebint:force=1" },
    { "codec_refuses", "tcp", 3, "maxnorm:width=4,force=1" },
    { "leave_early", "shm", 2 },
    { "leave_early", "shm", 4 },
    { "leave_early", "tcp", 3 },
};
MP_TABLE(failures, deadlines_aborts_and_forks, others)

static struct mp_row told_by_asking[] = {
    { "told_by_asking", "shm", 2 },
    { "told_by_asking", "shm", 4, "idle" },
    { "told_by_asking", "tcp", 3 },
    { "told_by_asking", "tcp", 3, "idle" },
    { "told_by_asking", "shm", 4, "", .env = { "BANYAN_CONTROL_THREAD=0" } },
    { "told_by_asking", "tcp", 3, "idle", .env = { "BANYAN_CONTROL_THREAD=0" } },
    { "asked_to_the_end", "shm", 2 },
    { "asked_to_the_end", "tcp", 3 },
    { "asked_to_the_end", "tcp", 2, "", .env = { "BANYAN_CONTROL_THREAD=0" } },
};
MP_TABLE(failures, who_asks_is_told, told_by_asking)

static struct mp_row senders[] = {
    { "sender_left", "tcp", 3, "send 1 destroy" },
    { "sender_left", "tcp", 3, "send 1000 destroy" },
    { "sender_left", "tcp", 3, "send 100000 destroy" },
    { "sender_left", "tcp", 3, "send 2000000 destroy" },
    { "sender_left", "tcp", 2, "send 1 exit" },
    { "sender_left", "tcp", 2, "send 1000 exit" },
    { "sender_left", "tcp", 2, "send 2000000 exit" },
    { "sender_left", "tcp", 3, "broadcast 1 destroy" },
    { "sender_left", "tcp", 3, "broadcast 1000 destroy" },
    { "sender_left", "tcp", 3, "broadcast 100000 destroy" },
    { "sender_left", "tcp", 3, "broadcast 2000000 destroy" },
    { "sender_left", "tcp", 2, "broadcast 1 exit" },
    { "sender_left", "tcp", 2, "broadcast 1000 exit" },
    { "sender_left", "tcp", 2, "broadcast 2000000 exit" },
    { "sender_left", "shm", 3, "send 1 destroy" },
    { "sender_left", "shm", 3, "send 1000 destroy" },
    { "sender_left", "shm", 3, "send 100000 destroy" },
    { "sender_left", "shm", 3, "send 2000000 destroy" },
    { "sender_left", "shm", 2, "send 1 exit" },
    { "sender_left", "shm", 2, "send 1000 exit" },
    { "sender_left", "shm", 2, "send 2000000 exit" },
    { "sender_left", "shm", 3, "broadcast 1 destroy" },
    { "sender_left", "shm", 3, "broadcast 1000 destroy" },
    { "sender_left", "shm", 3, "broadcast 100000 destroy" },
    { "sender_left", "shm", 3, "broadcast 2000000 destroy" },
    { "sender_left", "shm", 2, "broadcast 1 exit" },
    { "sender_left", "shm", 2, "broadcast 1000 exit" },
    { "sender_left", "shm", 2, "broadcast 2000000 exit" },
    { "sender_left", "tcp", 2, "send 1000 exit", .env = { "BANYAN_INTEGRITY=encrypt" } },
};
MP_TABLE(failures, what_was_sent_comes_before_the_end, senders)

static struct mp_row left_behind[] = {
    { "left_behind", "tcp", 2, "1" }, { "left_behind", "tcp", 4, "1" },
    { "left_behind", "tcp", 2, "0" }, { "left_behind", "tcp", 5, "0" },
    { "left_behind", "shm", 3, "1" }, { "left_behind", "shm", 3, "0" },
};
MP_TABLE(failures, who_left_is_not_waited_for_by_what_begins_later, left_behind)

static struct mp_row resets_no_descriptors[] = {
    { "resets_no_descriptors", "tcp", 2 },
    { "resets_no_descriptors", "tcp", 4 },
};
MP_TABLE(failures, who_cannot_connect_again_says_so, resets_no_descriptors)
