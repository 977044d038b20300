/* SPDX-License-Identifier: BSD-3-Clause */
/* tags: matching of sends and receives of 4 bytes between 2 ranks, by their tags.
 *
 *   banyan_run -n 2 build/perf/tags pingpong|ahead one|new N, or reversed new N
 *
 * With one tag, or a new one for each message. pingpong: half a round trip and the rank's
 * memory, in ten parts of N rounds. ahead: N blocking sends, the first receive LATE_US later;
 * the sender's time counts its waiting for room. reversed (new): N sends are started, then
 * received, the last one first. Each rank binds itself to a CPU.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "banyan/banyan.h"

#define LATE_US 200000.0

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* A line of /proc/self/status in KiB; 0 when it cannot be read. */
static long status_kib(const char *name)
{
    char line[256];
    long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");

    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':')
            kib = strtol(line + strlen(name) + 1, NULL, 10);
    if (f)
        fclose(f);
    return kib;
}

static void must(int rc)
{
    if (rc) {
        fprintf(stderr, "tags: %s\n", banyan_last_error());
        exit(1);
    }
}

static void send_to(struct banyan_comm *comm, int peer, int32_t value, uint32_t tag)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;

    o.tag = tag;
    must(banyan_send(&value, 1, BANYAN_I32, peer, comm, &o));
}

static void recv_from(struct banyan_comm *comm, int peer, int32_t value, uint32_t tag)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    int32_t got = -1;

    o.tag = tag;
    must(banyan_recv(&got, 1, BANYAN_I32, peer, comm, &o));
    if (got != value) {
        fprintf(stderr, "tags: tag %u carried %d instead of %d\n", tag, got, value);
        exit(1);
    }
}

static void report(const char *what, int rank, int n, double us)
{
    printf("%s, %s, %d messages: %.3f us each, RSS at most %ld KiB\n", what,
           rank == 0 ? "sender" : "receiver", n, us / n, status_kib("VmHWM"));
}

static void pingpong(struct banyan_comm *comm, int fresh, int rounds)
{
    int rank = banyan_comm_rank(comm), part = rounds >= 10 ? rounds / 10 : 1;
    double t;

    must(banyan_barrier(comm, NULL));
    t = now_us();
    for (int i = 0; i < rounds; i++) {
        uint32_t tag = fresh ? (uint32_t)i : 7;

        if (rank == 0)
            send_to(comm, 1, i, tag);
        recv_from(comm, !rank, i, tag);
        if (rank == 1)
            send_to(comm, 0, i, tag);
        if ((i + 1) % part == 0) {
            printf("pingpong %s, rank %d, %d rounds: %.3f us, RSS %ld KiB\n",
                   fresh ? "new" : "one", rank, i + 1, (now_us() - t) / part / 2,
                   status_kib("VmRSS"));
            t = now_us();
        }
    }
}

/* The library is at work, but nothing is received: what has come waits. */
static void linger(struct banyan_comm *comm)
{
    for (double t = now_us(); now_us() - t < LATE_US;)
        if (banyan_progress(comm) < 0)
            must(-1);
}

static void ahead(struct banyan_comm *comm, int fresh, int n)
{
    int rank = banyan_comm_rank(comm);
    double t;

    must(banyan_barrier(comm, NULL));
    if (rank == 1)
        linger(comm);
    t = now_us();
    for (int i = 0; i < n; i++)
        if (rank == 0)
            send_to(comm, 1, i, fresh ? (uint32_t)i : 7);
        else
            recv_from(comm, 0, i, fresh ? (uint32_t)i : 7);
    report(fresh ? "ahead new" : "ahead one", rank, n, now_us() - t);
}

/* All sends are started; the receives come one by one, the last one first. */
static void reversed(struct banyan_comm *comm, int n)
{
    struct banyan_request **req = calloc((size_t)n, sizeof *req);
    int32_t *data = calloc((size_t)n, sizeof *data);
    struct banyan_opts o = BANYAN_OPTS_INIT;
    int rank = banyan_comm_rank(comm);
    double t;

    if (!req || !data) {
        fprintf(stderr, "tags: no memory for %d messages\n", n);
        exit(1);
    }
    for (int i = 0; rank == 0 && i < n; i++) {
        o.tag = (uint32_t)i;
        data[i] = i;
        must(banyan_send_init(&data[i], 1, BANYAN_I32, 1, comm, &o, &req[i]));
    }
    must(banyan_barrier(comm, NULL));
    t = now_us();
    for (int i = 0; rank == 0 && i < n; i++)
        must(banyan_start(req[i]));
    if (rank == 0) {
        must(banyan_wait_all(req, (size_t)n, 250));
    } else {
        linger(comm);
        t = now_us();
        for (int i = n - 1; i >= 0; i--)
            recv_from(comm, 0, i, (uint32_t)i);
    }
    report("reversed new", rank, n, now_us() - t);
    for (int i = 0; rank == 0 && i < n; i++)
        must(banyan_request_free(req[i]));
    free(req);
    free(data);
}

int main(int argc, char **argv)
{
    struct banyan_comm *comm;
    cpu_set_t set;
    int n = argc == 4 ? atoi(argv[3]) : 0;

    if (n < 1 || (strcmp(argv[2], "one") && strcmp(argv[2], "new")) ||
        (strcmp(argv[1], "pingpong") && strcmp(argv[1], "ahead") &&
         (strcmp(argv[1], "reversed") || strcmp(argv[2], "new")))) {
        fprintf(stderr,
                "usage: banyan_run -n 2 tags pingpong|ahead one|new N, or reversed new N\n");
        return 2;
    }
    must(banyan_comm_init_env(&comm, NULL));
    if (banyan_comm_count(comm) != 2) {
        fprintf(stderr, "tags: there must be 2 ranks: banyan_run -n 2 tags ...\n");
        return 2;
    }
    CPU_ZERO(&set);
    CPU_SET((size_t)banyan_comm_rank(comm) % (size_t)sysconf(_SC_NPROCESSORS_ONLN), &set);
    if (sched_setaffinity(0, sizeof set, &set))
        fprintf(stderr, "tags: rank %d stays unbound\n", banyan_comm_rank(comm));
    if (!strcmp(argv[1], "pingpong"))
        pingpong(comm, !strcmp(argv[2], "new"), n);
    else if (!strcmp(argv[1], "ahead"))
        ahead(comm, !strcmp(argv[2], "new"), n);
    else
        reversed(comm, n);
    must(banyan_comm_finalize(comm));
    return 0;
}
