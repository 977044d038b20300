/* SPDX-License-Identifier: BSD-3-Clause */
/* What MPI programs do besides collectives of MPI_COMM_WORLD: many communicators, many
 * non-blocking calls, threads, messages. Usage: mpi_programs CASE; rank 0 prints the time of
 * the slowest rank in milliseconds (the best of the case's repeats: many short ones for
 * messages, as a burst of 0.1 ms is often left alone by a busy machine, one of 20 ms is not),
 * and MiB that its memory grew by. Exit status 77: this MPI has not what the case is about. Run
 * by mpi_programs.py, plain and with the interposer. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 4

static int rank, nranks;

static double resident_mib(void)
{
    long pages = 0, unused;
    FILE *f = fopen("/proc/self/statm", "r");

    if (f && fscanf(f, "%ld %ld", &unused, &pages) != 2)
        pages = 0;
    if (f)
        fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1048576.0;
}

static void sums(MPI_Comm comm, int calls)
{
    int n;

    MPI_Comm_size(comm, &n);
    for (int i = 0; i < calls; i++) {
        int x = i, y = 0;
        MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, comm);
        if (y != n * i) {
            fprintf(stderr, "wrong sum: %d\n", y);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
}

static void split(void)
{
    for (int i = 0; i < 100; i++) {
        MPI_Comm comm;
        MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &comm);
        sums(comm, 40);
        MPI_Comm_free(&comm);
    }
}

static void dups(void)
{
    static MPI_Comm comms[300];

    for (int i = 0; i < 300; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
        sums(comms[i], 20);
    }
    for (int i = 0; i < 300; i++)
        MPI_Comm_free(&comms[i]);
}

static void iallreduce(void)
{
    static int x[1000], y[1000];
    static MPI_Request reqs[1000];

    for (int i = 0; i < 1000; i++)
        MPI_Iallreduce(&x[i], &y[i], 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &reqs[i]);
    MPI_Waitall(1000, reqs, MPI_STATUSES_IGNORE);
}

static MPI_Comm of_thread[THREADS]; /* made by the first run */
static int has_comms;
static pthread_barrier_t together;

static void *worker(void *arg)
{
    pthread_barrier_wait(&together);
    sums(*(MPI_Comm *)arg, 1000);
    return NULL;
}

static void threads(void)
{
    pthread_t t[THREADS];

    pthread_barrier_init(&together, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        if (!has_comms)
            MPI_Comm_dup(MPI_COMM_WORLD, &of_thread[i]);
        pthread_create(&t[i], NULL, worker, &of_thread[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    has_comms = 1;
    pthread_barrier_destroy(&together);
}

static void one_thread(void)
{
    sums(MPI_COMM_WORLD, 4000);
}

static void ping_pong(int bytes, int times)
{
    static char buf[1 << 20];
    int peer = rank ^ 1;

    if (rank > 1)
        return;
    for (int i = 0; i < times; i++) {
        if (rank == 0)
            MPI_Send(buf, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
        MPI_Recv(buf, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 1)
            MPI_Send(buf, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
    }
}

static void ping_4(void)
{
    ping_pong(4, 100);
}

static void ping_8k(void)
{
    ping_pong(8192, 20);
}

static void ping_1m(void)
{
    ping_pong(1 << 20, 2);
}

/* Sends and receives in windows, as RandomAccess does. */
static void windows(void)
{
    enum { WINDOW = 64 };
    static int in[WINDOW], out[WINDOW];
    MPI_Request reqs[2 * WINDOW];

    for (int i = 0; i < 5 && rank < 2; i++) {
        for (int k = 0; k < WINDOW; k++) {
            MPI_Irecv(&in[k], 1, MPI_INT, rank ^ 1, 1, MPI_COMM_WORLD, &reqs[2 * k]);
            MPI_Isend(&out[k], 1, MPI_INT, rank ^ 1, 1, MPI_COMM_WORLD, &reqs[2 * k + 1]);
        }
        for (int k = 0; k < 2 * WINDOW; k++) {
            int done = 0;
            while (!done)
                MPI_Test(&reqs[k], &done, MPI_STATUS_IGNORE);
        }
    }
}

#if MPI_VERSION >= 4
static void persistent(void)
{
    static MPI_Request req = MPI_REQUEST_NULL;
    static int x = 1, y;

    if (req == MPI_REQUEST_NULL)
        MPI_Allreduce_init(&x, &y, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &req);
    for (int i = 0; i < 100; i++) {
        MPI_Start(&req);
        MPI_Wait(&req, MPI_STATUS_IGNORE);
    }
}
#endif

static const struct {
    const char *name;
    void (*run)(void);
    int level, repeats;
} cases[] = {
    { "split", split, MPI_THREAD_SINGLE, 30 },
    { "dups", dups, MPI_THREAD_SINGLE, 20 },
    { "iallreduce", iallreduce, MPI_THREAD_SINGLE, 50 },
    { "threads", threads, MPI_THREAD_MULTIPLE, 5 },
    { "one_thread", one_thread, MPI_THREAD_MULTIPLE, 50 },
#if MPI_VERSION >= 4
    { "persistent", persistent, MPI_THREAD_SINGLE, 200 },
#endif
    { "ping_4", ping_4, MPI_THREAD_SINGLE, 1000 },
    { "ping_8k", ping_8k, MPI_THREAD_SINGLE, 1000 },
    { "ping_1m", ping_1m, MPI_THREAD_SINGLE, 200 },
    { "windows", windows, MPI_THREAD_SINGLE, 500 },
};

int main(int argc, char **argv)
{
    size_t n = sizeof cases / sizeof cases[0], which = 0;
    double best = 1e30, before, grown, worst;
    int level;

    while (which < n && (argc < 2 || strcmp(argv[1], cases[which].name) != 0))
        which++;
    if (which == n)
        return argc > 1 && !strcmp(argv[1], "persistent") ? 77 : 2;
    MPI_Init_thread(&argc, &argv, cases[which].level, &level);
    if (level < cases[which].level)
        return 77;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    sums(MPI_COMM_WORLD, 10);
    before = resident_mib();
    for (int i = 0; i < cases[which].repeats; i++) {
        double t;
        MPI_Barrier(MPI_COMM_WORLD);
        t = MPI_Wtime();
        cases[which].run();
        t = (MPI_Wtime() - t) * 1e3;
        MPI_Reduce(&t, &worst, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        best = worst < best ? worst : best;
    }
    grown = resident_mib() - before;
    if (rank == 0)
        printf("%.6f %.2f\n", best, grown);
    MPI_Finalize();
    return 0;
}
