/* SPDX-License-Identifier: BSD-3-Clause */
/* What the interposer costs messages, within one pair of processes: the MPI library's own
 * functions and the program's (which are the interposer's, where it is preloaded) are called by
 * turns, in blocks whose order is drawn. So where the processes and their memory lie is the
 * same for both, which is not so between runs. Broadcasts and scatters of few bytes as well,
 * each after a barrier as IMB has them, but the same barrier for both: the MPI's, then the
 * program's. Usage: mpi_messages PAIRS; rank 0 prints of each case its name, the median us of a
 * step at the slower rank, plain and through the program's functions, and the median of the
 * pairs' ratios plain / interposed with its first and third quartile. Run by mpi_messages.py.
 */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTIONS(X)                                                                           \
    X(Send)                                                                                    \
    X(Recv)                                                                                    \
    X(Isend) X(Irecv) X(Waitall) X(Test) X(Sendrecv) X(Bcast) X(Scatter) X(Barrier)
#define WINDOW     64
#define PAIRS_MOST 10000

struct functions {
#define X(name) __typeof__(&MPI_##name) name;
    FUNCTIONS(X)
#undef X
};

static struct functions plain, ours;
static char *in, *out;
static MPI_Request reqs[2 * WINDOW];
static int rank;

static void find_functions(void)
{
    Dl_info info;
    void *lib;

    /* A function that no interposer replaces shows which library is the MPI. */
    if (!dladdr(dlsym(RTLD_DEFAULT, "PMPI_Get_library_version"), &info) ||
        !(lib = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)))
        MPI_Abort(MPI_COMM_WORLD, 1);
#define X(name)                                                                                \
    ours.name = MPI_##name;                                                                    \
    *(void **)&plain.name = dlsym(lib, "MPI_" #name);
    FUNCTIONS(X)
#undef X
}

static void ping_pong(const struct functions *f, int bytes)
{
    if (rank == 0)
        f->Send(out, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
    f->Recv(in, bytes, MPI_BYTE, !rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1)
        f->Send(out, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
}

static void exchange(const struct functions *f, int bytes)
{
    f->Sendrecv(out, bytes, MPI_BYTE, !rank, 0, in, bytes, MPI_BYTE, !rank, 0, MPI_COMM_WORLD,
                MPI_STATUS_IGNORE);
}

static void post(const struct functions *f, int bytes)
{
    for (int k = 0; k < WINDOW; k++) {
        f->Irecv(in, bytes, MPI_BYTE, !rank, 1, MPI_COMM_WORLD, &reqs[2 * k]);
        f->Isend(out, bytes, MPI_BYTE, !rank, 1, MPI_COMM_WORLD, &reqs[2 * k + 1]);
    }
}

static void window(const struct functions *f, int bytes)
{
    post(f, bytes);
    f->Waitall(2 * WINDOW, reqs, MPI_STATUSES_IGNORE);
}

/* As RandomAccess does. */
static void tested_window(const struct functions *f, int bytes)
{
    post(f, bytes);
    for (int k = 0; k < 2 * WINDOW; k++)
        for (int done = 0; !done;)
            f->Test(&reqs[k], &done, MPI_STATUS_IGNORE);
}

static void bcast(const struct functions *f, int bytes)
{
    f->Bcast(out, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
}

static void scatter(const struct functions *f, int bytes)
{
    f->Scatter(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
}

static const struct {
    const char *name;
    void (*step)(const struct functions *, int);
    int bytes, steps;
    const struct functions *barrier; /* before each step */
} cases[] = {
    { "ping_pong", ping_pong, 8, 400 },
    { "ping_pong", ping_pong, 64, 400 },
    { "ping_pong", ping_pong, 1024, 400 },
    { "ping_pong", ping_pong, 8192, 200 },
    { "ping_pong", ping_pong, 65536, 40 },
    { "ping_pong", ping_pong, 1 << 20, 6 },
    { "sendrecv", exchange, 8, 400 },
    { "sendrecv", exchange, 8192, 200 },
    { "window", window, 8, 20 },
    { "window", window, 1024, 20 },
    { "window", window, 65536, 2 },
    { "tested_window", tested_window, 8, 20 },
    { "tested_window", tested_window, 1024, 20 },
    { "bcast_after_the_MPI's_barrier", bcast, 4, 200, &plain },
    { "bcast_after_the_MPI's_barrier", bcast, 1024, 200, &plain },
    { "bcast_after_the_MPI's_barrier", bcast, 4096, 200, &plain },
    { "bcast_after_banyan's_barrier", bcast, 4, 200, &ours },
    { "bcast_after_banyan's_barrier", bcast, 1024, 200, &ours },
    { "bcast_after_banyan's_barrier", bcast, 4096, 200, &ours },
    { "scatter_after_the_MPI's_barrier", scatter, 4, 200, &plain },
    { "scatter_after_the_MPI's_barrier", scatter, 64, 200, &plain },
    { "scatter_after_banyan's_barrier", scatter, 4, 200, &ours },
    { "scatter_after_banyan's_barrier", scatter, 64, 200, &ours },
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* us of one step at the slower rank. Both begin together, by messages that are the MPI's own.
 */
static double block(size_t which, const struct functions *f)
{
    const int bytes = cases[which].bytes, steps = cases[which].steps;
    double t, other;

    plain.Sendrecv(out, 1, MPI_BYTE, !rank, 2, in, 1, MPI_BYTE, !rank, 2, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
    t = -MPI_Wtime();
    for (int i = 0; i < steps && !cases[which].barrier; i++)
        cases[which].step(f, bytes);
    t += MPI_Wtime();
    for (int i = 0; i < steps && cases[which].barrier; i++) {
        cases[which].barrier->Barrier(MPI_COMM_WORLD);
        t -= MPI_Wtime();
        cases[which].step(f, bytes);
        t += MPI_Wtime();
    }
    plain.Sendrecv(&t, 1, MPI_DOUBLE, !rank, 3, &other, 1, MPI_DOUBLE, !rank, 3, MPI_COMM_WORLD,
                   MPI_STATUS_IGNORE);
    return (other > t ? other : t) * 1e6 / steps;
}

static void measure(size_t which, int pairs)
{
    static double ratio[PAIRS_MOST], each[2][PAIRS_MOST];
    static unsigned seed = 20261127; /* the same order at both ranks */

    block(which, &plain);
    block(which, &ours);
    for (int i = 0; i < pairs; i++) {
        int first;
        seed = seed * 1103515245u + 12345u;
        first = seed >> 16 & 1;
        each[first][i] = block(which, first ? &ours : &plain);
        each[!first][i] = block(which, first ? &plain : &ours);
        ratio[i] = each[0][i] / each[1][i];
    }
    qsort(ratio, (size_t)pairs, sizeof *ratio, by_size);
    qsort(each[0], (size_t)pairs, sizeof **each, by_size);
    qsort(each[1], (size_t)pairs, sizeof **each, by_size);
    if (rank == 0)
        printf("%s %d %.4f %.4f %.4f %.4f %.4f\n", cases[which].name, cases[which].bytes,
               each[0][pairs / 2], each[1][pairs / 2], ratio[pairs / 2], ratio[pairs / 4],
               ratio[3 * pairs / 4]);
}

int main(int argc, char **argv)
{
    int pairs = argc > 1 ? atoi(argv[1]) : 0, n;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    in = calloc(1, 1 << 20);
    out = calloc(1, 1 << 20);
    if (n != 2 || pairs < 1 || pairs > PAIRS_MOST || !in || !out) {
        fprintf(stderr, "usage, with 2 ranks: mpi_messages PAIRS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    find_functions();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        measure(i, pairs);
    free(in);
    free(out);
    MPI_Finalize();
    return 0;
}
