/* SPDX-License-Identifier: BSD-3-Clause */
/* loop_ranks: CPU time of the engine with many ranks. All ranks are in one process and one
 * thread, over the loop transport: no kernel, no scheduler and no other process's turn is
 * measured, only what ranks, messages and steps cost.
 *
 *   loop_ranks [--ranks 2,16,64,256] [--ms 400] [--ops N] [--only TEXT] [--json]
 *
 * --ms: CPU time to spend on each row; --ops: or so many operations, whose instructions
 * callgrind counts (the difference of two numbers of operations leaves out the start); --only:
 * rows whose name contains TEXT. Each row runs in a process of its own. Columns: messages and
 * polls of all ranks in one operation; CPU time of one operation, and of one message; that of
 * an idle poll, which looks at every peer of the fabric; and of one message when as many idle
 * polls are taken off. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "banyan/banyan.h"
#include "transport/loop/loop.h"

/* collectives/; said here too, so that this file builds in trees whose headers lie elsewhere.
 */
int bny_comm_loop(struct banyan_comm **out, struct bny_loop_fabric *fabric, int nranks,
                  int rank, const struct banyan_config *cfg);

enum what { ALLTOALL, ALLREDUCE, BROADCAST };

struct row {
    const char *name;
    enum what what;
    const char *schedule;
    size_t bytes; /* alltoall: of a block */
};

static const struct row rows[] = {
    { "allreduce 4 B", ALLREDUCE, NULL, 4 },
    { "allreduce 1 KiB", ALLREDUCE, NULL, 1024 },
    { "alltoall 64 B", ALLTOALL, NULL, 64 },
    { "alltoall 4 KiB", ALLTOALL, NULL, 4096 },
    { "allreduce ring 64 KiB", ALLREDUCE, "ring", 65536 },
    { "allreduce ring 1 MiB", ALLREDUCE, "ring", 1 << 20 },
    { "allreduce double_binary_tree 64 KiB", ALLREDUCE, "double_binary_tree", 65536 },
    { "allreduce double_binary_tree 1 MiB", ALLREDUCE, "double_binary_tree", 1 << 20 },
    { "broadcast 1 KiB, a new root each time", BROADCAST, NULL, 1024 },
};

struct job {
    const struct row *row;
    int n;
    struct banyan_comm **comm;
    struct banyan_request **req;
    int32_t **in, **out;
    size_t elems; /* of a rank's buffer */
    uint64_t polls;
};

static double cpu_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void must(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "loop_ranks: %s: %s\n", what, banyan_last_error());
        _exit(1);
    }
}

static void *zeroed(size_t count, size_t bytes)
{
    void *p = calloc(count, bytes);

    if (!p) {
        fprintf(stderr, "loop_ranks: no memory for %zu bytes\n", count * bytes);
        _exit(1);
    }
    return p;
}

static void open_job(struct job *j, const struct row *row, int n)
{
    struct bny_loop_fabric *fabric = bny_loop_fabric_create(n, NULL);

    memset(j, 0, sizeof *j);
    j->row = row;
    j->n = n;
    j->elems = row->bytes / 4 * (row->what == ALLTOALL ? (size_t)n : 1);
    j->comm = zeroed((size_t)n, sizeof(struct banyan_comm *));
    j->req = zeroed((size_t)n, sizeof(struct banyan_request *));
    j->in = zeroed((size_t)n, sizeof(int32_t *));
    j->out = zeroed((size_t)n, sizeof(int32_t *));
    if (!fabric) {
        fprintf(stderr, "loop_ranks: no fabric for %d ranks\n", n);
        _exit(1);
    }
    for (int r = 0; r < n; r++) {
        must(bny_comm_loop(&j->comm[r], fabric, n, r, NULL), "bny_comm_loop");
        j->in[r] = zeroed(j->elems, 4);
        j->out[r] = zeroed(j->elems, 4);
    }
}

/* The value of element i that rank r gives; sums of 256 ranks fit. */
static int32_t given(int r, size_t i)
{
    return (int32_t)((size_t)r * 1000 + i % 999);
}

static void prepare(struct job *j, int r, int root)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    size_t count = j->row->bytes / 4;
    int rc = 0;

    o.schedule = j->row->schedule;
    switch (j->row->what) {
    case ALLTOALL:
        rc = banyan_alltoall_init(j->in[r], j->out[r], count, BANYAN_I32, j->comm[r], &o,
                                  &j->req[r]);
        break;
    case ALLREDUCE:
        rc = banyan_allreduce_init(j->in[r], j->out[r], count, BANYAN_I32, BANYAN_SUM,
                                   j->comm[r], &o, &j->req[r]);
        break;
    case BROADCAST:
        rc = banyan_broadcast_init(r == root ? j->in[r] : j->out[r], count, BANYAN_I32, root,
                                   j->comm[r], &o, &j->req[r]);
        break;
    }
    must(rc, j->row->name);
}

/* One operation of all ranks: each is polled in turn until all are done. A broadcast makes its
 * requests anew, as a blocking call does. */
static void operate(struct job *j, int root)
{
    int left = j->n;
    char done_of[256] = { 0 };

    for (int r = 0; r < j->n; r++) {
        if (!j->req[r])
            prepare(j, r, root);
        must(banyan_start(j->req[r]), "banyan_start");
    }
    while (left)
        for (int r = 0; r < j->n; r++) {
            int done = 0;

            if (done_of[r]) { /* its queues must drain for others to end */
                must(banyan_progress(j->comm[r]), "banyan_progress");
            } else {
                must(banyan_test(j->req[r], &done), j->row->name);
                done_of[r] = (char)done;
                left -= done;
            }
            j->polls++;
        }
    for (int r = 0; j->row->what == BROADCAST && r < j->n; r++) {
        must(banyan_request_free(j->req[r]), "banyan_request_free");
        j->req[r] = NULL;
    }
}

static int32_t expected(const struct job *j, int r, size_t i, int root)
{
    size_t block = j->row->bytes / 4;
    int32_t sum = 0;

    if (j->row->what == BROADCAST)
        return given(root, i);
    if (j->row->what == ALLTOALL)
        return given((int)(i / block), (size_t)r * block + i % block);
    for (int q = 0; q < j->n; q++)
        sum += given(q, i);
    return sum;
}

static void check(struct job *j)
{
    int root = j->n - 1;

    for (int r = 0; r < j->n; r++)
        for (size_t i = 0; i < j->elems; i++)
            j->in[r][i] = given(r, i);
    operate(j, root);
    for (int r = 0; r < j->n; r++)
        for (size_t i = 0; i < j->elems; i += 61)
            if (!(j->row->what == BROADCAST && r == root) &&
                j->out[r][i] != expected(j, r, i, root)) {
                fprintf(stderr, "loop_ranks: %s: %d ranks: rank %d has a wrong element %zu\n",
                        j->row->name, j->n, r, i);
                _exit(1);
            }
}

static uint64_t messages(const struct job *j)
{
    uint64_t sum = 0;

    for (int r = 0; r < j->n; r++) {
        struct banyan_stats s = { .size = sizeof s };

        must(banyan_comm_stats(j->comm[r], &s), "banyan_comm_stats");
        sum += s.messages;
    }
    return sum;
}

static double idle_poll_us(struct job *j)
{
    int times = 200000 / (j->n * j->n) + 20;
    double t;

    for (int i = 0; i < 10; i++) /* what is left of the last operation */
        for (int r = 0; r < j->n; r++)
            must(banyan_progress(j->comm[r]), "banyan_progress");
    t = cpu_us();
    for (int i = 0; i < times; i++)
        for (int r = 0; r < j->n; r++)
            must(banyan_progress(j->comm[r]), "banyan_progress");
    return (cpu_us() - t) / times / j->n;
}

static void measure(const struct row *row, int n, double budget_us, int most, int json)
{
    struct job j;
    double t, us, idle, m, polls;
    uint64_t before;
    int ops = 0;

    open_job(&j, row, n);
    check(&j);
    operate(&j, 0);
    idle = idle_poll_us(&j);
    before = messages(&j);
    j.polls = 0;
    t = cpu_us();
    do
        operate(&j, ops++ % n);
    while (most ? ops < most : cpu_us() - t < budget_us);
    us = (cpu_us() - t) / ops;
    m = (double)(messages(&j) - before) / ops;
    polls = (double)j.polls / ops;
    if (json)
        printf("{\"row\":\"%s\",\"ranks\":%d,\"ops\":%d,\"us\":%.3f,\"messages\":%.1f,"
               "\"polls\":%.1f,\"idle_poll_us\":%.4f}\n",
               row->name, n, ops, us, m, polls, idle);
    else
        printf("| %s | %d | %.0f | %.0f | %.2f | %.3f | %.3f | %.3f |\n", row->name, n, m,
               polls, us, us / m, idle, (us - polls * idle) / m);
    fflush(stdout);
    _exit(0); /* one thread cannot wait for the farewells of its own ranks */
}

static int usage(void)
{
    fprintf(stderr,
            "usage: loop_ranks [--ranks LIST] [--ms N] [--ops N] [--only TEXT] [--json]\n");
    return 2;
}

static int run_rows(const char *ranks, double budget_us, int most, const char *only, int json)
{
    int failed = 0;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (const char *p = ranks; strstr(rows[i].name, only) && *p;) {
            char *end;
            long n = strtol(p, &end, 10);
            int status = 0;
            pid_t pid;

            if (end == p || n < 2 || n > 256 || (*end && *end != ','))
                return usage();
            p = *end ? end + 1 : end;
            fflush(stdout);
            pid = fork();
            if (pid == 0)
                measure(&rows[i], (int)n, budget_us, most, json);
            if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
                fprintf(stderr, "loop_ranks: %s with %ld ranks failed\n", rows[i].name, n);
                failed = 1;
            }
        }
    return failed;
}

int main(int argc, char **argv)
{
    const char *ranks = "2,16,64,256", *only = "";
    double ms = 400;
    int most = 0, json = 0;

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            json = 1;
        else if (i + 1 < argc && !strcmp(argv[i], "--ranks"))
            ranks = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--only"))
            only = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--ms"))
            ms = strtod(argv[++i], NULL);
        else if (i + 1 < argc && !strcmp(argv[i], "--ops"))
            most = atoi(argv[++i]);
        else
            return usage();
    }
    if (!json)
        printf("| operation | ranks | messages | polls | us | us a message | us an idle poll | "
               "us a message without idle polls |\n|---|---:|---:|---:|---:|---:|---:|---:|\n");
    return run_rows(ranks, ms * 1000, most, only, json);
}
