/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls with wrong arguments, the same on all ranks, where errors are returned. What class of
 * error each gives goes to a file; test_mpi.py compares the files of runs with and without the
 * interposer. What an MPI itself crashes or hangs on (MPICH 4.0.2, Open MPI 4.1.4) is left out.
 */
#include <mpi.h>
#include <stdio.h>

#include "bad_arguments.h"

#define MANY 64 /* elements a rank */

static FILE *out;
static MPI_Comm comm; /* errors return; on MPI_COMM_WORLD too */
static int a[8 * MANY], b[8 * MANY];

static void tell(const char *call, const char *what, int rc)
{
    int class = 0;

    if (rc != MPI_SUCCESS)
        MPI_Error_class(rc, &class);
    fprintf(out, "%s %s: %d\n", call, what, class);
    fflush(out);
}

static int complete(int rc, MPI_Request *req)
{
    return rc == MPI_SUCCESS ? MPI_Wait(req, MPI_STATUS_IGNORE) : rc;
}

/* Both forms of a collective, which are called alike but for the request. */
#define TRY(name, iname, what, ...)                                                            \
    do {                                                                                       \
        tell(#name, what, MPI_##name(__VA_ARGS__));                                            \
        TRY_LATER(iname, what, __VA_ARGS__);                                                   \
    } while (0)
#define TRY_LATER(iname, what, ...)                                                            \
    do {                                                                                       \
        MPI_Request req_ = MPI_REQUEST_NULL;                                                   \
        tell(#iname, what, complete(MPI_##iname(__VA_ARGS__, &req_), &req_));                  \
    } while (0)
#ifdef MPICH_VERSION
#define TRY_REDUCTION(name, iname, what, ...)                                                  \
    TRY_LATER(iname, what, __VA_ARGS__) /* MPICH's blocking ones crash */
#else
#define TRY_REDUCTION(name, iname, what, ...) TRY(name, iname, what, __VA_ARGS__)
#endif

static void roots(int n)
{
    const int wrong[] = { -1, -99, n, 1 << 30 };
    char what[40];

    for (int i = 0; i < 4; i++) {
        snprintf(what, sizeof what, "root %d", wrong[i]);
        TRY(Bcast, Ibcast, what, a, MANY, MPI_INT, wrong[i], comm);
        TRY(Reduce, Ireduce, what, a, b, MANY, MPI_INT, MPI_SUM, wrong[i], comm);
        TRY(Gather, Igather, what, a, MANY, MPI_INT, b, MANY, MPI_INT, wrong[i], comm);
        TRY(Scatter, Iscatter, what, a, MANY, MPI_INT, b, MANY, MPI_INT, wrong[i], comm);
        snprintf(what, sizeof what, "root %d, no data", wrong[i]);
        TRY(Bcast, Ibcast, what, a, 0, MPI_INT, wrong[i], comm);
        TRY(Reduce, Ireduce, what, a, b, 0, MPI_INT, MPI_SUM, wrong[i], comm);
    }
}

static void counts(int n)
{
    int good[8], wrong[8], at[8];

    for (int i = 0; i < n; i++) {
        good[i] = wrong[i] = MANY;
        at[i] = i * MANY;
    }
    wrong[n - 1] = -1;
    TRY_REDUCTION(Allreduce, Iallreduce, "count -1", a, b, -1, MPI_INT, MPI_SUM, comm);
    TRY_REDUCTION(Scan, Iscan, "count -1", a, b, -1, MPI_INT, MPI_SUM, comm);
    TRY_REDUCTION(Exscan, Iexscan, "count -1", a, b, -1, MPI_INT, MPI_SUM, comm);
    TRY_REDUCTION(Reduce, Ireduce, "count -1", a, b, -1, MPI_INT, MPI_SUM, 0, comm);
    TRY_REDUCTION(Reduce_scatter_block, Ireduce_scatter_block, "count -1", a, b, -1, MPI_INT,
                  MPI_SUM, comm);
    TRY(Reduce_scatter, Ireduce_scatter, "a count -1", a, b, wrong, MPI_INT, MPI_SUM, comm);
    TRY(Bcast, Ibcast, "count -1", a, -1, MPI_INT, 0, comm);
    TRY(Gather, Igather, "counts -1", a, -1, MPI_INT, b, -1, MPI_INT, 0, comm);
    TRY(Scatter, Iscatter, "counts -1", a, -1, MPI_INT, b, -1, MPI_INT, 0, comm);
    TRY(Allgather, Iallgather, "counts -1", a, -1, MPI_INT, b, -1, MPI_INT, comm);
    TRY(Allgather, Iallgather, "receive count -1", a, MANY, MPI_INT, b, -1, MPI_INT, comm);
    TRY(Allgather, Iallgather, "send count -1", a, -1, MPI_INT, b, MANY, MPI_INT, comm);
    TRY(Alltoall, Ialltoall, "counts -1", a, -1, MPI_INT, b, -1, MPI_INT, comm);
#ifdef MPICH_VERSION
    TRY(Allgatherv, Iallgatherv, "a receive count -1", a, MANY, MPI_INT, b, wrong, at, MPI_INT,
        comm);
#endif
    TRY(Allgatherv, Iallgatherv, "send count -1", a, -1, MPI_INT, b, good, at, MPI_INT, comm);
    TRY(Alltoallv, Ialltoallv, "a receive count -1", a, good, at, MPI_INT, b, wrong, at,
        MPI_INT, comm);
    TRY(Alltoallv, Ialltoallv, "a send count -1", a, wrong, at, MPI_INT, b, good, at, MPI_INT,
        comm);
}

static void types(int n)
{
    MPI_Datatype loose, gaps;
    int many[8], at[8];

    for (int i = 0; i < n; i++) {
        many[i] = MANY;
        at[i] = i * MANY;
    }
    MPI_Type_contiguous(1, MPI_INT, &loose); /* never committed */
    MPI_Type_vector(2, 1, 2, MPI_INT, &gaps);
#define EACH(what, type, count)                                                                \
    TRY(Allreduce, Iallreduce, what, a, b, count, type, MPI_SUM, comm);                        \
    TRY(Reduce, Ireduce, what, a, b, count, type, MPI_SUM, 0, comm);                           \
    if (count) /* MPICH's crashes on no type for no data */                                    \
        TRY(Bcast, Ibcast, what, a, count, type, 0, comm);                                     \
    TRY(Allgather, Iallgather, what, a, count, type, b, count, type, comm);                    \
    TRY(Alltoall, Ialltoall, what, a, count, type, b, count, type, comm)
    EACH("MPI_DATATYPE_NULL", MPI_DATATYPE_NULL, MANY);
    EACH("MPI_DATATYPE_NULL, no data", MPI_DATATYPE_NULL, 0);
    EACH("a type that is not committed", loose, 4);
    EACH("a type with gaps that is not committed", gaps, 4);
    TRY(Gather, Igather, "MPI_DATATYPE_NULL", a, MANY, MPI_DATATYPE_NULL, b, MANY,
        MPI_DATATYPE_NULL, 0, comm);
    TRY(Scatter, Iscatter, "MPI_DATATYPE_NULL", a, MANY, MPI_DATATYPE_NULL, b, MANY,
        MPI_DATATYPE_NULL, 0, comm);
    TRY(Allgatherv, Iallgatherv, "MPI_DATATYPE_NULL", a, MANY, MPI_INT, b, many, at,
        MPI_DATATYPE_NULL, comm);
    TRY(Alltoallv, Ialltoallv, "MPI_DATATYPE_NULL", a, many, at, MPI_DATATYPE_NULL, b, many, at,
        MPI_INT, comm);
    MPI_Type_free(&loose);
    MPI_Type_free(&gaps);
}

static void operations(void)
{
    const struct {
        const char *what;
        MPI_Op op;
        MPI_Datatype type;
    } wrong[] = {
        { "MPI_OP_NULL", MPI_OP_NULL, MPI_INT },
        { "MPI_BAND of MPI_FLOAT", MPI_BAND, MPI_FLOAT },
        { "MPI_MAXLOC of MPI_INT", MPI_MAXLOC, MPI_INT },
        { "MPI_SUM of MPI_2INT", MPI_SUM, MPI_2INT },
        { "MPI_MAX of MPI_C_FLOAT_COMPLEX", MPI_MAX, MPI_C_FLOAT_COMPLEX },
        { "MPI_REPLACE", MPI_REPLACE, MPI_INT },
        { "MPI_NO_OP", MPI_NO_OP, MPI_INT },
    };
    char what[80];

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        for (int count = MANY; count >= 0; count -= MANY) {
            snprintf(what, sizeof what, "%s%s", wrong[i].what, count ? "" : ", no data");
            TRY(Allreduce, Iallreduce, what, a, b, count, wrong[i].type, wrong[i].op, comm);
            TRY(Reduce, Ireduce, what, a, b, count, wrong[i].type, wrong[i].op, 0, comm);
            TRY(Scan, Iscan, what, a, b, count, wrong[i].type, wrong[i].op, comm);
            TRY(Reduce_scatter_block, Ireduce_scatter_block, what, a, b, count, wrong[i].type,
                wrong[i].op, comm);
        }
}

static void buffers(void)
{
    TRY(Allreduce, Iallreduce, "the same buffer twice", a, a, MANY, MPI_INT, MPI_SUM, comm);
    TRY(Alltoall, Ialltoall, "the same buffer twice", a, MANY, MPI_INT, a, MANY, MPI_INT, comm);
    TRY(Reduce_scatter_block, Ireduce_scatter_block, "the same buffer twice", a, a, MANY,
        MPI_INT, MPI_SUM, comm);
#ifdef MPICH_VERSION /* Open MPI reads and writes there */
    TRY(Allreduce, Iallreduce, "no send buffer", NULL, b, MANY, MPI_INT, MPI_SUM, comm);
    TRY(Allreduce, Iallreduce, "no receive buffer", a, NULL, MANY, MPI_INT, MPI_SUM, comm);
    TRY(Bcast, Ibcast, "no buffer", NULL, MANY, MPI_INT, 0, comm);
    TRY(Allgather, Iallgather, "no receive buffer", a, MANY, MPI_INT, NULL, MANY, MPI_INT,
        comm);
#endif
    TRY(Allreduce, Iallreduce, "receive in place", a, MPI_IN_PLACE, MANY, MPI_INT, MPI_SUM,
        comm);
    TRY(Scan, Iscan, "receive in place", a, MPI_IN_PLACE, MANY, MPI_INT, MPI_SUM, comm);
    TRY(Alltoall, Ialltoall, "receive in place", a, MANY, MPI_INT, MPI_IN_PLACE, MANY, MPI_INT,
        comm);
    TRY(Allgather, Iallgather, "receive in place", a, MANY, MPI_INT, MPI_IN_PLACE, MANY,
        MPI_INT, comm);
    TRY(Reduce_scatter_block, Ireduce_scatter_block, "receive in place", a, MPI_IN_PLACE, MANY,
        MPI_INT, MPI_SUM, comm);
}

static void no_communicator(void)
{
    comm = MPI_COMM_NULL;
    tell("Barrier", "MPI_COMM_NULL", MPI_Barrier(comm));
    TRY(Allreduce, Iallreduce, "MPI_COMM_NULL", a, b, MANY, MPI_INT, MPI_SUM, comm);
    TRY(Bcast, Ibcast, "MPI_COMM_NULL", a, MANY, MPI_INT, 0, comm);
    TRY(Reduce, Ireduce, "MPI_COMM_NULL", a, b, MANY, MPI_INT, MPI_SUM, 0, comm);
    TRY(Gather, Igather, "MPI_COMM_NULL", a, MANY, MPI_INT, b, MANY, MPI_INT, 0, comm);
    TRY(Alltoall, Ialltoall, "MPI_COMM_NULL", a, MANY, MPI_INT, b, MANY, MPI_INT, comm);
    TRY(Allreduce, Iallreduce, "MPI_COMM_NULL, no data", a, b, 0, MPI_INT, MPI_SUM, comm);
}

#ifdef MPICH_VERSION
/* A block that is sent from, or received to, where the root or everybody has it among all: an
 * error there alone. Where only the root gets one it then does what the others did. */
static void aliases(int rank)
{
    int *own = b + rank * MANY, rc;

    TRY(Allgather, Iallgather, "from its own block", own, MANY, MPI_INT, b, MANY, MPI_INT,
        comm);
    rc = MPI_Gather(rank ? a : own, MANY, MPI_INT, b, MANY, MPI_INT, 0, comm);
    tell("Gather", "from the root's own block", rc);
    if (rc != MPI_SUCCESS)
        tell("Gather", "again", MPI_Gather(a, MANY, MPI_INT, b, MANY, MPI_INT, 0, comm));
    rc = MPI_Scatter(b, MANY, MPI_INT, rank ? a : own, MANY, MPI_INT, 0, comm);
    tell("Scatter", "to the root's own block", rc);
    if (rc != MPI_SUCCESS)
        tell("Scatter", "again", MPI_Scatter(b, MANY, MPI_INT, a, MANY, MPI_INT, 0, comm));
}
#endif

int bad_arguments(const char *path, int rank, int n)
{
    char name[600];
    int one = 1, sum = 0;
    MPI_Comm dup;

    snprintf(name, sizeof name, "%s.%d", path, rank);
    out = fopen(name, "w");
    if (!out)
        return 0;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_dup(MPI_COMM_WORLD, &dup);
    MPI_Barrier(dup);
    comm = dup;
    roots(n);
    counts(n);
    types(n);
    operations();
    buffers();
#ifdef MPICH_VERSION
    aliases(rank);
#endif
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, dup);
    no_communicator();
    MPI_Comm_free(&dup);
    fclose(out);
    return sum == n;
}
