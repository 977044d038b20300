/* SPDX-License-Identifier: BSD-3-Clause */
/* What random calls do not reach: who progresses whom, communicators and handles that end early, threads, lost ranks.
 * Usage: cases NAME [FILE]; prints "ok" from rank 0. test_mpi.py bounds the time of each. */
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BIG (1 << 20) /* floats: far beyond what any MPI sends without its receiver */

static int rank, n;
static const char *results;
static float *a, *b, *c;

static void check(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "rank %d: %s\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void check_sum(const float *sum)
{
    for (int i = 0; i < BIG; i += 1000)
        check(sum[i] == (float)(n * (n - 1) / 2 + n * (i % 100)), "wrong sum");
}

/* Rank 1's send waits for rank 0, which is in a collective by then. */
static void rendezvous(void)
{
    MPI_Request req;

    MPI_Barrier(MPI_COMM_WORLD);
    for (int k = 0; k < 5; k++) {
        if (rank == 0)
            MPI_Irecv(c, BIG, MPI_FLOAT, 1, 3, MPI_COMM_WORLD, &req);
        if (rank == 1)
            MPI_Send(a, BIG, MPI_FLOAT, 0, 3, MPI_COMM_WORLD);
        MPI_Allreduce(a, b, BIG, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        check_sum(b);
        if (rank == 0)
            MPI_Wait(&req, MPI_STATUS_IGNORE);
        check(rank != 0 || c[5] == 6, "wrong message");
    }
}

/* The other way: rank 1 completes a collective that rank 0 has started before it blocked in MPI. */
static void blocked(int how)
{
    MPI_Request req[2];
    MPI_Comm dup;
    MPI_Win win;

    MPI_Barrier(MPI_COMM_WORLD);
    for (int k = 0; k < 5; k++) {
        memset(b, 0, BIG * sizeof *b);
        MPI_Iallreduce(a, b, BIG, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &req[0]);
        if (rank != 0)
            MPI_Wait(&req[0], MPI_STATUS_IGNORE);
        switch (how) {
        case 0:
            if (rank == 0)
                MPI_Recv(c, 1, MPI_FLOAT, 1, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (rank == 1)
                MPI_Send(a, 1, MPI_FLOAT, 0, 4, MPI_COMM_WORLD);
            break;
        case 1:
            MPI_Comm_dup(MPI_COMM_WORLD, &dup);
            MPI_Comm_free(&dup);
            break;
        case 2:
            MPI_Win_create(c, 64, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
            MPI_Win_fence(0, win);
            MPI_Win_free(&win);
            break;
        case 3: /* a mixed pair of requests */
            MPI_Irecv(c, 1, MPI_FLOAT, (rank + n - 1) % n, 5, MPI_COMM_WORLD, &req[1]);
            MPI_Send(a, 1, MPI_FLOAT, (rank + 1) % n, 5, MPI_COMM_WORLD);
            if (rank == 0)
                MPI_Waitall(2, req, MPI_STATUSES_IGNORE);
            else
                MPI_Wait(&req[1], MPI_STATUS_IGNORE);
            break;
        }
        MPI_Wait(&req[0], MPI_STATUS_IGNORE);
        check_sum(b);
    }
}

static void blocked_recv(void)
{
    blocked(0);
}

static void blocked_dup(void)
{
    blocked(1);
}

static void blocked_window(void)
{
    blocked(2);
}

static void mixed(void)
{
    blocked(3);
}

static void twice(void *in, void *inout, int *count, MPI_Datatype *type)
{
    for (int i = 0; i < *count; i++)
        ((float *)inout)[i] += ((float *)in)[i];
}

/* Everything that an operation in flight uses is freed, and one request is never waited for. */
static void freed_in_flight(void)
{
    MPI_Datatype gaps;
    MPI_Request req[3];
    MPI_Comm dup;
    MPI_Op op;

    for (int k = 0; k < 10; k++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &dup);
        MPI_Barrier(dup);
        MPI_Op_create(twice, 1, &op);
        MPI_Type_vector(BIG / 4, 1, 2, MPI_FLOAT, &gaps);
        MPI_Type_commit(&gaps);
        MPI_Iallreduce(a, b, BIG, MPI_FLOAT, op, dup, &req[0]);
        memcpy(c, a, BIG * sizeof *c);
        MPI_Ibcast(c, 1, gaps, 0, dup, &req[1]);
        MPI_Ibarrier(dup, &req[2]);
        MPI_Op_free(&op);
        MPI_Type_free(&gaps);
        MPI_Request_free(&req[2]);
        MPI_Comm_free(&dup);
        check(dup == MPI_COMM_NULL && op == MPI_OP_NULL && gaps == MPI_DATATYPE_NULL, "handles");
        MPI_Waitall(2, req, MPI_STATUSES_IGNORE);
        check_sum(b);
        check(c[2] == a[2] - (float)rank && c[3] == a[3], "wrong broadcast");
    }
}

/* In place at another root than 0, which MPICH 4.0.2 itself cannot. */
static void reduce_in_place(void)
{
    int root = n - 1;

    memcpy(b, a, BIG * sizeof *b);
    MPI_Reduce(rank == root ? MPI_IN_PLACE : a, b, BIG, MPI_FLOAT, MPI_SUM, root, MPI_COMM_WORLD);
    if (rank == root)
        check_sum(b);
}

static void *worker(void *arg)
{
    MPI_Comm comm = *(MPI_Comm *)arg;
    int x, y, z;
    MPI_Request req[2];

    for (int i = 0; i < 300; i++) {
        x = i + rank;
        MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, comm);
        check(y == n * i + n * (n - 1) / 2, "wrong sum in a thread");
        MPI_Iallreduce(&x, &z, 1, MPI_INT, MPI_MAX, comm, &req[0]);
        MPI_Ibarrier(comm, &req[1]);
        MPI_Waitall(2, req, MPI_STATUSES_IGNORE);
        check(z == i + n - 1, "wrong maximum in a thread");
    }
    return NULL;
}

static void threads(void)
{
    MPI_Comm comms[3];
    pthread_t t[3];

    for (int i = 0; i < 3; i++)
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    for (int i = 0; i < 3; i++)
        pthread_create(&t[i], NULL, worker, &comms[i]);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < 3; i++)
        MPI_Comm_free(&comms[i]);
}

/* What the survivors see goes to files, because launchers end a job with a lost rank in their own ways. */
static void lost(void)
{
    char text[MPI_MAX_ERROR_STRING], path[600];
    int rc = MPI_SUCCESS, len;
    FILE *f;

    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == n - 1)
        raise(SIGKILL);
    for (int i = 0; i < 1000 && rc == MPI_SUCCESS; i++)
        rc = MPI_Allreduce(a, b, BIG, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    check(rc != MPI_SUCCESS, "no error");
    MPI_Error_string(rc, text, &len);
    snprintf(path, sizeof path, "%s.%d", results, rank);
    f = fopen(path, "w");
    if (f) {
        fprintf(f, "%s\n", text);
        fclose(f);
    }
    _exit(0);
}

/* The wrong count at one rank: an error, not a wrong sum. */
static void mismatch(void)
{
    int rc;

    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Barrier(MPI_COMM_WORLD);
    rc = MPI_Allreduce(a, b, rank ? 100 : 101, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    check(rc != MPI_SUCCESS, "no error");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        { "rendezvous", rendezvous }, { "blocked_recv", blocked_recv }, { "blocked_dup", blocked_dup },
        { "blocked_window", blocked_window }, { "mixed", mixed },
        { "freed_in_flight", freed_in_flight }, { "reduce_in_place", reduce_in_place },
        { "threads", threads }, { "lost", lost }, { "mismatch", mismatch },
    };
    const char *name = argc > 1 ? argv[1] : "";
    int level;

    results = argc > 2 ? argv[2] : "";
    MPI_Init_thread(&argc, &argv, strcmp(name, "threads") ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    a = malloc(BIG * sizeof *a);
    b = calloc(BIG, sizeof *b);
    c = calloc(BIG, sizeof *c);
    for (int i = 0; i < BIG; i++)
        a[i] = (float)(rank + i % 100);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (!strcmp(cases[i].name, name))
            cases[i].run();
    MPI_Finalize();
    if (rank == 0)
        printf("ok\n");
    return 0;
}
