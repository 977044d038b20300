/* SPDX-License-Identifier: BSD-3-Clause */
/* What random calls do not reach: who progresses whom, communicators and handles that end
 * early, threads, lost ranks. Usage: cases NAME [FILE]; prints "ok" from rank 0. test_mpi.py
 * bounds the time of each. */
#include <dirent.h>
#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bad_arguments.h"

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

/* The other way: rank 1 completes a collective that rank 0 has started before it blocked in
 * MPI. */
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

/* Rank 0 has completed its access before the second barrier: what the others know then. */
static void window_tested(void)
{
    MPI_Group all, zero;
    MPI_Win win;
    int flag;

    MPI_Win_create(b, BIG * sizeof *b, sizeof *b, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Win_get_group(win, &all);
    MPI_Group_incl(all, 1, &(int){ 0 }, &zero);
    MPI_Group_excl(all, 1, &(int){ 0 }, &all);
    for (int k = 0; k < 20; k++) {
        if (rank == 0) {
            MPI_Win_start(all, 0, win);
            MPI_Barrier(MPI_COMM_WORLD);
            MPI_Win_complete(win);
            MPI_Barrier(MPI_COMM_WORLD);
            continue;
        }
        MPI_Win_post(zero, 0, win);
        MPI_Win_test(win, &flag);
        check(!flag, "too early");
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_test(win, &flag);
        check(flag, "not complete behind a barrier");
    }
    MPI_Win_free(&win);
}

/* ---- passive targets ---- */

#define PUTS 2000

/* How often this thread has slept. */
static long sleeps(void)
{
    struct rusage used;

    getrusage(RUSAGE_THREAD, &used);
    return used.ru_nvcsw;
}

/* Rank 0 reaches into the windows of the others, which wait in a collective: each flush may
 * need the target's MPI, which sleeping targets do not drive. */
static void reach(MPI_Win win, MPI_Aint at)
{
    const int target = n - 1;
    float got = 0, one = 1, sum = 0;
    long before = sleeps();

    if (rank == 0) {
        MPI_Win_lock_all(0, win);
        for (int i = 0; i < PUTS; i++) {
            float x = (float)i;
            MPI_Put(&x, 1, MPI_FLOAT, target, at, 1, MPI_FLOAT, win);
            MPI_Win_flush(target, win);
            MPI_Get(&got, 1, MPI_FLOAT, target, at, 1, MPI_FLOAT, win);
            MPI_Win_flush(target, win);
            check(got == x, "another number than was put");
        }
        MPI_Accumulate(&one, 1, MPI_FLOAT, target, at, 1, MPI_FLOAT, MPI_SUM, win);
        MPI_Win_unlock_all(win);
    }
    MPI_Allreduce(&one, &sum, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == target) {
        long slept = sleeps() - before;
        float there;

        MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, win);
        MPI_Get(&there, 1, MPI_FLOAT, rank, at, 1, MPI_FLOAT, win);
        MPI_Win_unlock(rank, win);
        check(there == PUTS && sum == (float)n, "wrong data");
        check(slept < PUTS / 10, "the target slept in the collective");
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void reach_dynamic(void)
{
    MPI_Aint at, all[16];
    MPI_Win win;

    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Win_attach(win, b, sizeof *b);
    MPI_Get_address(b, &at);
    MPI_Allgather(&at, 1, MPI_AINT, all, 1, MPI_AINT, MPI_COMM_WORLD);
    reach(win, all[n - 1]);
    MPI_Win_detach(win, b);
    MPI_Win_free(&win);
}

/* A window of each call that makes one, and behind it the plain kind again: one that the
 * interposer had forgotten to count would have it think that there is none. */
static void passive(void)
{
    int (*create)(void *, MPI_Aint, MPI_Aint, MPI_Info, MPI_Comm, MPI_Win *);
    int (*allocate)(MPI_Aint, MPI_Aint, MPI_Info, MPI_Comm, void *, MPI_Win *);
    MPI_Win win;
    void *mem;

    *(void **)&create = dlsym(RTLD_DEFAULT, "MPI_Win_create_c");
    *(void **)&allocate = dlsym(RTLD_DEFAULT, "MPI_Win_allocate_c");
    for (int how = 0; how < 5; how++) {
        if (how == 0)
            MPI_Win_allocate(sizeof *b, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &mem, &win);
        else if (how == 1)
            MPI_Win_allocate_shared(sizeof *b, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &mem, &win);
        else if (how == 2 && create)
            create(b, sizeof *b, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
        else if (how == 3 && allocate)
            allocate(sizeof *b, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &mem, &win);
        else
            MPI_Win_create(b, sizeof *b, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
        reach(win, 0);
        MPI_Win_free(&win);
    }
    reach_dynamic();
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
        check(dup == MPI_COMM_NULL && op == MPI_OP_NULL && gaps == MPI_DATATYPE_NULL,
              "handles");
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
    MPI_Reduce(rank == root ? MPI_IN_PLACE : a, b, BIG, MPI_FLOAT, MPI_SUM, root,
               MPI_COMM_WORLD);
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

/* Prints the best time of 1000 sums, in microseconds. */
static void sums(void)
{
    double best = 1e9;
    int x = rank, y;

    for (int k = 0; k < 10; k++) {
        double t = MPI_Wtime();
        for (int i = 0; i < 1000; i++)
            MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        t = MPI_Wtime() - t;
        best = t < best ? t : best;
    }
    check(y == n * (n - 1) / 2, "wrong sum");
    if (rank == 0)
        printf("1000 sums: %.0f us\n", best * 1e6);
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

/* What the survivors see goes to files, because launchers end a job with a lost rank in their
 * own ways. */
static void lost(void)
{
    char text[MPI_MAX_ERROR_STRING], path[600], whole[600];
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
    snprintf(path, sizeof path, "%s.%d.part", results, rank);
    snprintf(whole, sizeof whole, "%s.%d", results, rank);
    f = fopen(path, "w");
    if (f) { /* the launcher may kill us at any time */
        fprintf(f, "%s\n", text);
        fclose(f);
        rename(path, whole);
    }
    _exit(0);
}

/* The wrong count at one rank: an error, not a wrong sum. */
static void mismatch(void)
{
    char text[MPI_MAX_ERROR_STRING];
    int rc, len;

    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Barrier(MPI_COMM_WORLD);
    rc = MPI_Allreduce(a, b, rank ? 100 : 101, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    check(rc != MPI_SUCCESS, "no error");
    MPI_Error_string(rc, text, &len);
    check(rc == MPI_SUCCESS || strstr(text, "banyan: operation 1: rank 0 called allreduce"),
          text);
    for (int i = 0; i < 20; i++) { /* what was wrong is over */
        rc = MPI_Allreduce(a, b, BIG, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        check(rc == MPI_SUCCESS, "the next right call fails too");
        check_sum(b);
    }
}

/* A root is calls ahead of what the others find wrong. In place, what banyan had begun is an
 * error at all; else the call is the MPI's. Whatever became of it, it became at all ranks. */
static void mismatch_behind(void)
{
    int rc, failed, all, some;

    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Barrier(MPI_COMM_WORLD);
    rc = MPI_Bcast(c, rank ? 101 : 100, MPI_FLOAT, 0, MPI_COMM_WORLD);
    check(rank == 0 || rc != MPI_SUCCESS, "no error");
    for (int i = 0; i < 5; i++)
        MPI_Bcast(c, 100, MPI_FLOAT, 0, MPI_COMM_WORLD);
    memcpy(b, a, BIG * sizeof *b);
    failed = MPI_Allreduce(MPI_IN_PLACE, b, BIG, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) != 0;
    if (!failed)
        check_sum(b);
    for (int i = 0; i < 20; i++) {
        rc = MPI_Allreduce(a, b, BIG, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        check(rc == MPI_SUCCESS, "a later right call fails");
        check_sum(b);
    }
    MPI_Allreduce(&failed, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&failed, &some, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    check(all == some, "a call failed at some ranks alone");
}

/* The value of rank r at i: some spread over magnitudes, the same wherever it is computed. */
static float rough(int r, int i)
{
    unsigned h = (unsigned)(i * 7 + r + 1) * 2654435761u;

    return (float)((double)(h >> 8) / (1 << 24) - 0.5) * (float)(1 + i / 64 % 5);
}

/* BANYAN_MPI_CODEC=int8: sums of MPI_FLOAT within the bound, the same bits on all ranks; all
 * else exact. */
static void codec(void)
{
    int differs = 0, hash = 0, most, least, whole[100], sums[100];
    double x[100], y[100];

    for (int i = 0; i < BIG; i++)
        a[i] = rough(rank, i);
    MPI_Allreduce(a, b, BIG, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < BIG; i++) {
        double sum = 0, bound;
        int bits;
        for (int r = 0; r < n; r++)
            sum += rough(r, i);
        /* Each contribution, and then the sum, is rounded to a step of its block's largest
         * value / 127. */
        bound = 2.5 * 2 * n / 127.0 * 0.5 + 1e-5;
        check(b[i] - sum <= bound && sum - b[i] <= bound, "beyond the codec's bound");
        differs += b[i] - sum > 1e-4 || sum - b[i] > 1e-4;
        memcpy(&bits, &b[i], sizeof bits);
        hash = (int)((unsigned)hash * 31u + (unsigned)bits);
    }
    check(differs > BIG / 10, "nothing was encoded");
    MPI_Allreduce(&hash, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(&hash, &least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    check(most == least, "ranks have different sums");
    MPI_Allreduce(a, c, BIG, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
    for (int i = 0; i < BIG; i += 100) {
        float max = rough(0, i);
        for (int r = 1; r < n; r++)
            max = rough(r, i) > max ? rough(r, i) : max;
        check(c[i] == max, "a maximum was encoded");
    }
    MPI_Bcast(a, BIG, MPI_FLOAT, 0, MPI_COMM_WORLD);
    for (int i = 0; i < BIG; i += 100)
        check(a[i] == rough(0, i), "a broadcast was encoded");
    for (int i = 0; i < 100; i++) {
        whole[i] = i + rank;
        x[i] = 0.001 * (i + rank);
    }
    MPI_Allreduce(whole, sums, 100, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(x, y, 100, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < 100; i++)
        check(sums[i] == n * i + n * (n - 1) / 2 && y[i] - 0.001 * sums[i] < 1e-12 &&
                  0.001 * sums[i] - y[i] < 1e-12,
              "a sum of whole numbers or of doubles was encoded");
}

/* Buffers by their absolute addresses. MPICH's MPI_Pack refuses them. */
static void bottom(void)
{
    MPI_Aint at[2];
    int lengths[2] = { BIG / 2, 7 };
    MPI_Datatype type;
    MPI_Request req;

    MPI_Get_address(b, &at[0]);
    MPI_Get_address(c + 3, &at[1]);
    MPI_Type_create_hindexed(2, lengths, at, MPI_FLOAT, &type);
    MPI_Type_commit(&type);
    for (int root = 0; root < 2 * n; root++) {
        memset(b, 0, BIG * sizeof *b);
        memset(c, 0, BIG * sizeof *c);
        if (rank == root % n) {
            memcpy(b, a, BIG * sizeof *b);
            memcpy(c, a, BIG * sizeof *c);
        }
        if (root < n) {
            MPI_Bcast(MPI_BOTTOM, 1, type, root, MPI_COMM_WORLD);
        } else {
            MPI_Ibcast(MPI_BOTTOM, 1, type, root - n, MPI_COMM_WORLD, &req);
            MPI_Wait(&req, MPI_STATUS_IGNORE);
        }
        check(b[BIG / 2 - 1] == (float)(root % n + (BIG / 2 - 1) % 100) &&
                  c[9] == (float)(root % n + 9),
              "wrong data");
        check(rank == root % n || (b[BIG / 2] == 0 && c[2] == 0 && c[10] == 0),
              "more than the type names");
    }
    MPI_Type_free(&type);
}

/* One rank's layout is of absolute addresses, the others' is not. */
static void bottom_at_one_rank(void)
{
    const MPI_Aint at[2] = { (MPI_Aint)(intptr_t)b, (MPI_Aint)(intptr_t)c };
    const int one = 1;
    MPI_Datatype from, to;

    MPI_Type_create_hindexed(1, &one, &at[0], MPI_FLOAT, &from);
    MPI_Type_create_hindexed(1, &one, &at[1], MPI_FLOAT, &to);
    MPI_Type_create_resized(to, 0, sizeof(float), &to);
    MPI_Type_commit(&from);
    MPI_Type_commit(&to);
    for (int k = 0; k < 2 * n; k++) {
        b[0] = (float)(100 * k + rank);
        memset(c, 0, (size_t)n * sizeof *c);
        if (rank == k % n && k < n)
            MPI_Allgather(MPI_BOTTOM, 1, from, MPI_BOTTOM, 1, to, MPI_COMM_WORLD);
        else if (k < n)
            MPI_Allgather(b, 1, MPI_FLOAT, c, 1, MPI_FLOAT, MPI_COMM_WORLD);
        else if (rank == k % n)
            MPI_Alltoall(MPI_IN_PLACE, 1, to, MPI_BOTTOM, 1, to, MPI_COMM_WORLD);
        else
            MPI_Alltoall(MPI_IN_PLACE, 1, MPI_FLOAT, c, 1, MPI_FLOAT, MPI_COMM_WORLD);
        for (int r = 0; r < n; r++)
            check(c[r] == (k < n ? (float)(100 * k + r) : 0), "wrong data");
    }
    MPI_Type_free(&from);
    MPI_Type_free(&to);
}

/* Wrong, and done: the send buffer lies where the result goes. */
static void overlap(void)
{
    for (int k = 0; k < 10; k++) {
        for (int i = 0; i < n; i++)
            b[i] = (float)(i == rank ? 10 + rank : 0);
        MPI_Allgather(&b[rank], 1, MPI_FLOAT, b, 1, MPI_FLOAT, MPI_COMM_WORLD);
        for (int i = 0; i < n; i++)
            check(b[i] == (float)(10 + i), "wrong data");
    }
}

/* Who asks the dynamic linker for a function (mpi4py's wheels do) hears what the MPI has. The
 * interposer has no PMPI_*_c. */
static void large_counts(void)
{
    check(!dlsym(RTLD_DEFAULT, "MPI_Allreduce_c") == !dlsym(RTLD_DEFAULT, "PMPI_Allreduce_c"),
          "MPI_Allreduce_c is there without the MPI's, or the other way");
}

/* Wrong, and done (mpi4py's tests do): a non-blocking call and a blocking one in another order
 * at each rank. */
static void crossed(void)
{
    MPI_Request req;
    MPI_Comm dup;
    int x, y;

    MPI_Comm_dup(MPI_COMM_WORLD, &dup);
    MPI_Barrier(dup);
    for (int k = 0; k < 4 * n; k++) {
        MPI_Comm comm = k % 2 ? dup : MPI_COMM_WORLD;
        x = k + rank;
        if (rank != k % n)
            MPI_Barrier(comm);
        MPI_Iallreduce(&x, &y, 1, MPI_INT, MPI_SUM, comm, &req);
        if (rank == k % n)
            MPI_Barrier(comm);
        if (k == 4 * n - 1)
            MPI_Comm_free(&dup);
        MPI_Wait(&req, MPI_STATUS_IGNORE);
        check(y == n * k + n * (n - 1) / 2, "wrong sum");
    }
}

/* MPI 4's; Open MPI 4 has them by names of its own. */
static int (*allreduce_init)(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm,
                             MPI_Info, MPI_Request *);
static int (*bcast_init)(void *, int, MPI_Datatype, int, MPI_Comm, MPI_Info, MPI_Request *);
static int (*alltoall_init)(const void *, int, MPI_Datatype, void *, int, MPI_Datatype,
                            MPI_Comm, MPI_Info, MPI_Request *);

static void *init_of(const char *name)
{
    void *fn;
    char whole[40];

    snprintf(whole, sizeof whole, "MPI_%s_init", name);
    fn = dlsym(RTLD_DEFAULT, whole);
    if (fn)
        return fn;
    snprintf(whole, sizeof whole, "MPIX_%s_init", name);
    return dlsym(RTLD_DEFAULT, whole);
}

static int has_persistent(void)
{
    *(void **)&allreduce_init = init_of("Allreduce");
    *(void **)&bcast_init = init_of("Bcast");
    *(void **)&alltoall_init = init_of("Alltoall");
    if (!allreduce_init && rank == 0)
        printf("no persistent collectives\n");
    return allreduce_init && bcast_init && alltoall_init;
}

/* A sum by an operation, a broadcast of a type and blocks on a communicator that are all freed
 * before they are used, and messages; started in another order at each rank, completed in one
 * call. */
static void persistent(void)
{
    enum { SUM, BCAST, BLOCKS, RECV, SEND, REQS };
    int out[2] = { 0 }, in[2] = { 0 }, blocks[2][64];
    MPI_Request reqs[REQS];
    MPI_Datatype gaps;
    MPI_Comm dup;
    MPI_Op op;

    if (!has_persistent())
        return;
    MPI_Comm_dup(MPI_COMM_WORLD, &dup);
    MPI_Barrier(dup);
    MPI_Op_create(twice, 1, &op);
    MPI_Type_vector(BIG / 4, 1, 2, MPI_FLOAT, &gaps);
    MPI_Type_commit(&gaps);
    allreduce_init(a, b, BIG, MPI_FLOAT, op, MPI_COMM_WORLD, MPI_INFO_NULL, &reqs[SUM]);
    bcast_init(c, 1, gaps, n - 1, dup, MPI_INFO_NULL, &reqs[BCAST]);
    alltoall_init(blocks[0], 1, MPI_INT, blocks[1], 1, MPI_INT, dup, MPI_INFO_NULL,
                  &reqs[BLOCKS]);
    MPI_Recv_init(in, 2, MPI_INT, (rank + 1) % n, 6, MPI_COMM_WORLD, &reqs[RECV]);
    MPI_Send_init(out, 2, MPI_INT, (rank + n - 1) % n, 6, MPI_COMM_WORLD, &reqs[SEND]);
    MPI_Op_free(&op);
    MPI_Type_free(&gaps);
    MPI_Comm_free(&dup);
    for (int k = 0; k < 20; k++) {
        out[0] = k + rank;
        a[0] = (float)(k + rank);
        for (int i = 0; i < n; i++)
            blocks[0][i] = 100 * k + 10 * rank + i;
        memset(c, 0, BIG * sizeof *c);
        for (int i = 0; rank == n - 1 && i < BIG; i++)
            c[i] = (float)(i + k);
        if (k % 2)
            MPI_Startall(REQS, reqs);
        for (int i = 0; k % 2 == 0 && i < REQS; i++)
            MPI_Start(&reqs[(i + rank * 2) % REQS]);
        if (k % 3 == 2)
            MPI_Waitall(REQS, reqs, MPI_STATUSES_IGNORE);
        for (int left = k % 3 == 2 ? 0 : REQS, which, flag; left > 0;) {
            if (k % 3 == 0)
                flag = MPI_Waitany(REQS, reqs, &which, MPI_STATUS_IGNORE) == MPI_SUCCESS;
            else
                MPI_Testany(REQS, reqs, &which, &flag, MPI_STATUS_IGNORE);
            left -= flag;
            check(!flag || which != MPI_UNDEFINED, "more were started");
        }
        check(b[0] == (float)(n * k + n * (n - 1) / 2) &&
                  b[77] == (float)(n * (n - 1) / 2 + n * 77),
              "wrong sum");
        check(c[2] == (float)(2 + k) && (rank == n - 1 || c[3] == 0), "wrong broadcast");
        for (int i = 0; i < n; i++)
            check(blocks[1][i] == 100 * k + 10 * i + rank, "wrong block");
        check(in[0] == k + (rank + 1) % n, "wrong message");
        for (int i = 0; i < REQS; i++)
            check(reqs[i] != MPI_REQUEST_NULL, "a persistent request is gone");
    }
    for (int i = 0; i < REQS; i++)
        MPI_Request_free(&reqs[i]);
    check(reqs[SUM] == MPI_REQUEST_NULL, "a freed request is there");
}

/* A persistent collective of the MPI's beside an operation of ours. */
static void persistent_of_the_mpi(void)
{
    int (*barrier_init)(MPI_Comm, MPI_Info, MPI_Request *);
    MPI_Request reqs[2];

    *(void **)&barrier_init = init_of("Barrier");
    if (!barrier_init)
        return;
    barrier_init(MPI_COMM_WORLD, MPI_INFO_NULL, &reqs[1]);
    for (int k = 0; k < 20; k++) {
        MPI_Iallreduce(a, b, BIG, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &reqs[0]);
        MPI_Start(&reqs[1]);
        MPI_Waitall(2, reqs, MPI_STATUSES_IGNORE);
        check_sum(b);
    }
    MPI_Request_free(&reqs[1]);
}

/* More than a process may have lines: the rest are the MPI's. Twice, as what is freed serves
 * again. */
static void many_persistent(void)
{
    enum { MANY = 520 };
    static int x[MANY], y[MANY];
    static MPI_Request reqs[MANY];

    for (int k = 0; k < 2 && has_persistent(); k++) {
        for (int i = 0; i < MANY; i++) {
            x[i] = i + rank;
            allreduce_init(&x[i], &y[i], 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL,
                           &reqs[i]);
        }
        MPI_Startall(MANY, reqs);
        MPI_Waitall(MANY, reqs, MPI_STATUSES_IGNORE);
        for (int i = 0; i < MANY; i++) {
            check(y[i] == n * i + n * (n - 1) / 2, "wrong sum");
            MPI_Request_free(&reqs[i]);
        }
    }
}

static int raised;

static void count_errors(MPI_Comm *comm, int *code, ...)
{
    (void)comm;
    (void)code;
    raised++;
}

static void differ(void)
{
    MPI_Request req;

    allreduce_init(a, b, rank ? 100 : 101, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL,
                   &req);
    MPI_Start(&req);
    check(MPI_Wait(&req, MPI_STATUS_IGNORE) != MPI_SUCCESS, "no error");
    if (req != MPI_REQUEST_NULL) /* Open MPI 4 has freed it */
        MPI_Request_free(&req);
}

/* Ranks whose persistent sums differ: who waits hears of it, and what was not wrong goes on. */
static void persistent_mismatch(void)
{
    MPI_Errhandler handler;
    MPI_Request reqs[4];
    int got[4];

    if (!has_persistent())
        return;
    MPI_Comm_create_errhandler(count_errors, &handler);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
    differ();
    for (int i = 0; i < 4; i++) /* one may have the handle of the freed one */
        MPI_Recv_init(&got[i], 1, MPI_INT, 0, i, MPI_COMM_SELF, &reqs[i]);
    for (int i = 0; i < 4; i++) {
        MPI_Start(&reqs[i]);
        MPI_Send(&i, 1, MPI_INT, 0, i, MPI_COMM_SELF);
        check(MPI_Wait(&reqs[i], MPI_STATUS_IGNORE) == MPI_SUCCESS, "another request fails");
        check(got[i] == i, "another request's message is wrong");
    }
    for (int i = 0; i < 4; i++)
        MPI_Request_free(&reqs[i]);
    for (int i = 0; i < 2; i++) {
        MPI_Allreduce(a, b, BIG, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        check_sum(b);
        check(raised == i + 1, "not one error for each call that differs");
        if (i == 0)
            differ(); /* the end comes upon its handle */
    }
    MPI_Errhandler_free(&handler);
}

static int descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;

    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

static double resident_mib(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long pages = 0;

    check(f && fscanf(f, "%*s %ld", &pages) == 1, "no statm");
    fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1048576.0;
}

static void sum_on(MPI_Comm comm)
{
    int x = rank, sum = -1;

    MPI_Allreduce(&x, &sum, 1, MPI_INT, MPI_SUM, comm);
    check(sum == n * (n - 1) / 2, "wrong sum");
}

/* More than go to banyan, at once, and then others. All share connections and segments. */
static void many_comms(void)
{
    enum { COMMS = 600, COUNTED = 300 };
    static MPI_Comm comms[COMMS];
    double before;
    int open;

    sum_on(MPI_COMM_WORLD);
    open = descriptors();
    before = resident_mib();
    for (int i = 0; i < COMMS; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
        sum_on(comms[i]);
        if (i == COUNTED - 1)
            check(resident_mib() - before < 40,
                  "too much memory"); /* 26; 232 with a world each */
    }
    for (int i = 0; i < COMMS; i++)
        sum_on(comms[i]);
    check(descriptors() == open, "communicators have descriptors of their own");
    for (int i = 0; i < COMMS; i++)
        MPI_Comm_free(&comms[i]);
    MPI_Comm_dup(MPI_COMM_WORLD, &comms[0]);
    sum_on(comms[0]);
    MPI_Comm_free(&comms[0]);
}

static void wrong_arguments(void)
{
    check(bad_arguments(results, rank, n),
          "the communicator does not work after wrong arguments");
}

/* What MPI_Init has left to be polled. */
static void callbacks(void)
{
    const int *now = dlsym(RTLD_DEFAULT, "progress_callbacks");

    printf("%d callbacks\n", now ? *now : -1);
}

/* MPI_Init as the MPI library has it, past any interposer: as programs find it that load their
 * MPI themselves. */
static void init_by_lookup(void)
{
    int (*init)(int *, char ***);
    Dl_info mpi;
    void *lib;

    dladdr(dlsym(RTLD_DEFAULT, "PMPI_Get_version"), &mpi);
    lib = dlopen(mpi.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    *(void **)&init = dlsym(lib, "MPI_Init");
    init(NULL, NULL);
}

/* A library's destructor frees it behind MPI_Finalize. */
static MPI_Comm late = MPI_COMM_NULL;
static void freed_behind_the_end(void)
{
    MPI_Comm_dup(MPI_COMM_WORLD, &late);
    MPI_Allreduce(a, b, 10, MPI_FLOAT, MPI_SUM, late);
    check(b[0] == (float)(n * (n - 1) / 2), "sum on the communicator");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        { "rendezvous", rendezvous },
        { "blocked_recv", blocked_recv },
        { "blocked_dup", blocked_dup },
        { "blocked_window", blocked_window },
        { "mixed", mixed },
        { "callbacks", callbacks },
        { "window_tested", window_tested },
        { "passive", passive },
        { "freed_in_flight", freed_in_flight },
        { "reduce_in_place", reduce_in_place },
        { "threads", threads },
        { "sums", sums },
        { "sums_threads", sums },
        { "lost", lost },
        { "mismatch", mismatch },
        { "mismatch_behind", mismatch_behind },
        { "codec", codec },
        { "bottom", bottom },
        { "bottom_at_one_rank", bottom_at_one_rank },
        { "overlap", overlap },
        { "found_init", mixed },
        { "large_counts", large_counts },
        { "crossed", crossed },
        { "persistent_of_the_mpi", persistent_of_the_mpi },
        { "persistent", persistent },
        { "many_persistent", many_persistent },
        { "persistent_mismatch", persistent_mismatch },
        { "many_comms", many_comms },
        { "wrong_arguments", wrong_arguments },
        { "freed_behind_the_end", freed_behind_the_end },
    };
    const char *name = argc > 1 ? argv[1] : "";
    int level, done = 0;

    results = argc > 2 ? argv[2] : "";
    if (strcmp(name, "found_init") != 0)
        MPI_Init_thread(&argc, &argv,
                        strstr(name, "threads") ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE,
                        &level);
    else
        init_by_lookup();
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    a = malloc(BIG * sizeof *a);
    b = calloc(BIG, sizeof *b);
    c = calloc(BIG, sizeof *c);
    for (int i = 0; i < BIG; i++)
        a[i] = (float)(rank + i % 100);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (!strcmp(cases[i].name, name)) {
            cases[i].run();
            done = 1;
        }
    check(done, "no such case");
    MPI_Finalize();
    if (late != MPI_COMM_NULL) {
        MPI_Comm_free(&late);
        check(late == MPI_COMM_NULL, "the handle is left");
    }
    if (rank == 0)
        printf("ok\n");
    return 0;
}
