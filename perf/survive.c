/* SPDX-License-Identifier: BSD-3-Clause */
/* How long survivors need: one death a run.
 *   survive -P 8 [--transport tcp] [--seed 1] [--agrees 200] [--newcomers 1]
 * Ranks of this machine agree --agrees times, timed between barriers; then a rank, by the seed,
 * kills itself in a loop of allreduces (every other run in the middle of a long one), and those
 * who are left time: from the kill to the error, agree, shrink, and the first allreduce
 * thereafter; then grow, by processes that wait for it, and the first allreduce of all. One
 * line of JSON, microseconds: the agreements' median and 99th of a hundred, of the others the
 * slowest survivor's. */
#include <getopt.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "banyan/banyan.h"
#include "base/clock.h"
#include "base/rng.h"

#define RANKS_MAX 256
#define LONG      (4u << 20) /* elements */

struct shared { /* of all ranks */
    struct banyan_id id;
    _Atomic int has_id, has_grow_id;
    struct banyan_id grow_id;
    _Atomic uint64_t killed_ns;
    uint64_t error_ns[RANKS_MAX], agree_ns[RANKS_MAX], shrink_ns[RANKS_MAX], next_ns[RANKS_MAX],
        grow_ns[RANKS_MAX], grown_ns[RANKS_MAX];
    double agree_us[2]; /* rank 0's */
};

static struct {
    int n, agrees, newcomers;
    uint64_t seed;
    const char *transport;
} opt = { .n = 8, .agrees = 200, .newcomers = 1, .seed = 1 };

static struct shared *all;

static void ok(int rc, const char *what)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "survive: %s: %s\n", what, banyan_last_error());
    exit(1);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void time_agreements(struct banyan_comm *comm, int rank)
{
    double *us = calloc((size_t)opt.agrees + 1, sizeof *us);

    for (int i = 0; us && i < opt.agrees; i++) {
        uint64_t bits = 1, begin;

        ok(banyan_barrier(comm, NULL), "barrier");
        begin = bny_now_ns();
        ok(banyan_comm_agree(comm, &bits, NULL, 0), "agree");
        us[i] = (double)(bny_now_ns() - begin) * 1e-3;
    }
    if (us && rank == 0 && opt.agrees) {
        qsort(us, (size_t)opt.agrees, sizeof *us, by_size);
        all->agree_us[0] = us[opt.agrees / 2];
        all->agree_us[1] = us[opt.agrees * 99 / 100];
    }
    free(us);
}

static void die(void)
{
    atomic_store(&all->killed_ns, bny_now_ns());
    kill(getpid(), SIGKILL);
}

static void on_alarm(int signo)
{
    (void)signo;
    die();
}

static void until_death(struct banyan_comm *comm, int rank)
{
    uint64_t s = opt.seed;
    int victim = (int)bny_rng_below(&s, (uint64_t)opt.n), at = 5 + (int)bny_rng_below(&s, 20);
    uint32_t *x = calloc(LONG, sizeof *x);
    int rc = x ? 0 : -1;

    for (int i = 0; rc == 0; i++) {
        if (rank == victim && i == at && opt.seed % 2)
            die();
        if (rank == victim && i == at) {
            signal(SIGALRM, on_alarm);
            ualarm(1000, 0);
        }
        rc = banyan_allreduce(x, x, i < at ? 16 : LONG, BANYAN_U32, BANYAN_SUM, comm, NULL);
    }
    free(x);
}

static uint64_t count(struct banyan_comm *comm, int wanted)
{
    uint64_t begin = bny_now_ns();
    uint32_t one = 1, sum;

    ok(banyan_allreduce(&one, &sum, 1, BANYAN_U32, BANYAN_SUM, comm, NULL), "allreduce");
    if ((int)sum != wanted) {
        fprintf(stderr, "survive: %u ranks are there, not %d\n", sum, wanted);
        exit(1);
    }
    return bny_now_ns() - begin;
}

static struct banyan_config config(void)
{
    struct banyan_config cfg = BANYAN_CONFIG_INIT;

    if (opt.transport)
        cfg.transport = opt.transport;
    return cfg;
}

static void come(void)
{
    struct banyan_config cfg = config();
    struct banyan_comm *comm;

    while (!all->has_grow_id)
        usleep(1000);
    ok(banyan_comm_join(&comm, &all->grow_id, &cfg), "join");
    count(comm, opt.n - 1 + opt.newcomers);
    ok(banyan_comm_finalize(comm), "finalize");
}

static void get_back(struct banyan_comm *comm, int rank)
{
    struct banyan_config cfg = config();
    struct banyan_comm *grown;
    int makes = banyan_comm_rank(comm) == 0;
    uint64_t begin;

    if (makes) {
        ok(banyan_comm_grow_id(comm, &all->grow_id), "grow_id");
        all->has_grow_id = 1;
    }
    usleep(20000 *
           (useconds_t)opt.newcomers); /* they are there: what is timed is growing alone */
    ok(banyan_barrier(comm, NULL), "barrier");
    begin = bny_now_ns();
    ok(banyan_comm_grow(comm, makes ? &all->grow_id : NULL, opt.newcomers, &cfg, &grown),
       "grow");
    all->grow_ns[rank] = bny_now_ns() - begin;
    all->grown_ns[rank] = count(grown, opt.n - 1 + opt.newcomers);
    ok(banyan_comm_finalize(comm), "finalize");
    ok(banyan_comm_finalize(grown), "finalize");
}

static void go_on(struct banyan_comm *comm, int rank)
{
    uint64_t t[3] = { bny_now_ns() }, bits = 0;
    struct banyan_comm *next;

    ok(banyan_comm_agree(comm, &bits, NULL, 0), "agree");
    t[1] = bny_now_ns();
    ok(banyan_comm_shrink(comm, &next), "shrink");
    t[2] = bny_now_ns();
    all->next_ns[rank] = count(next, opt.n - 1);
    all->error_ns[rank] = t[0] - atomic_load(&all->killed_ns);
    all->agree_ns[rank] = t[1] - t[0];
    all->shrink_ns[rank] = t[2] - t[1];
    banyan_comm_destroy(comm);
    get_back(next, rank);
}

static void rank_main(int rank)
{
    struct banyan_config cfg = config();
    struct banyan_comm *comm;

    if (rank == 0) {
        ok(banyan_id_create(&all->id), "id");
        all->has_id = 1;
    }
    while (!all->has_id)
        usleep(1000);
    ok(banyan_comm_init(&comm, &all->id, opt.n, rank, &cfg), "init");
    time_agreements(comm, rank);
    until_death(comm, rank);
    go_on(comm, rank);
}

static double worst(const uint64_t *ns)
{
    uint64_t most = 0;

    for (int r = 0; r < opt.n; r++)
        most = ns[r] > most ? ns[r] : most;
    return (double)most * 1e-3;
}

static int wait_all(const pid_t *pid)
{
    int failed = 0, killed = 0, status;

    for (int r = 0; r < opt.n + opt.newcomers; r++) {
        waitpid(pid[r], &status, 0);
        killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        failed |= !(WIFEXITED(status) && WEXITSTATUS(status) == 0) &&
                  !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    return failed || killed != 1;
}

int main(int argc, char **argv)
{
    static const struct option options[] = { { "transport", 1, NULL, 't' },
                                             { "seed", 1, NULL, 's' },
                                             { "agrees", 1, NULL, 'a' },
                                             { "newcomers", 1, NULL, 'n' },
                                             { NULL, 0, NULL, 0 } };
    pid_t pid[2 * RANKS_MAX]; /* the last ones come later */
    int o;

    while ((o = getopt_long(argc, argv, "P:", options, NULL)) != -1) {
        if (o == 'P')
            opt.n = atoi(optarg);
        else if (o == 't')
            opt.transport = optarg;
        else if (o == 's')
            opt.seed = strtoull(optarg, NULL, 0);
        else if (o == 'a')
            opt.agrees = atoi(optarg);
        else if (o == 'n')
            opt.newcomers = atoi(optarg);
        else
            return 2;
    }
    if (opt.n < 2 || opt.n > RANKS_MAX || opt.newcomers < 1 || opt.newcomers > RANKS_MAX)
        return 2;
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int r = 0; r < opt.n + opt.newcomers; r++) {
        pid[r] = fork();
        if (pid[r] == 0) {
            if (r < opt.n)
                rank_main(r);
            else
                come();
            exit(0);
        }
    }
    if (wait_all(pid))
        return 1;
    printf("{\"ranks\":%d,\"transport\":\"%s\",\"seed\":%llu,\"agree_us\":%.1f,\"agree_p99_"
           "us\":%.1f,"
           "\"error_us\":%.1f,\"agree_after_us\":%.1f,\"shrink_us\":%.1f,\"next_us\":%.1f,"
           "\"grow_us\":%.1f,\"grown_us\":%.1f}\n",
           opt.n, opt.transport ? opt.transport : "auto", (unsigned long long)opt.seed,
           all->agree_us[0], all->agree_us[1], worst(all->error_ns), worst(all->agree_ns),
           worst(all->shrink_ns), worst(all->next_ns), worst(all->grow_ns),
           worst(all->grown_ns));
    return 0;
}
