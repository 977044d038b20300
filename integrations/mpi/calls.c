/* SPDX-License-Identifier: BSD-3-Clause */
/* The collectives: a call's arguments become a job, or the call is handed to the MPI library.
 * All ranks decide alike, because they decide by values that are equal on all of them: the
 * communicator, for reductions operation and type, and for the rest nothing, because any layout
 * is packed into its signature's bytes. (Wrong arguments are handed on too: the MPI library has
 * the errors for them.) */
#include <stdlib.h>
#include <string.h>

#include "integrations/mpi/shim.h"

enum how {
    GO,      /* the job is ready */
    NOTHING, /* no data on any rank */
    MPIS,    /* for the MPI library */
    NO_MEMORY
};

#define UNWRAP(...) __VA_ARGS__

/* A call that stays with the MPI library. */
#define PASS(which, form, expression)                                                          \
    __extension__({                                                                            \
        double start_ = shim.stats ? shim_now() : 0;                                           \
        int rc_ = (form) == SHIM_NONBLOCKING ? (expression) : SHIM_GUARD(expression);          \
        if (shim.stats)                                                                        \
            shim_count(which, form, 0, shim_now() - start_, 0);                                \
        rc_;                                                                                   \
    })

static enum how prepared(struct shim_job *j, enum how how)
{
    if (how != GO)
        shim_job_drop(j);
    return how;
}

/* A non-blocking call moves equal amounts on all ranks. In these collectives each rank knows
 * only its own part. */
static int is_for_mpi(const struct shim_job *j)
{
    if (shim.nonblocking == 0)
        return 0;
    return j->call == SHIM_GATHERV || j->call == SHIM_SCATTERV || j->call == SHIM_ALLTOALLV ||
           j->bytes < shim.nonblocking;
}

static int is_root(const struct shim_job *j, int root)
{
    return j->c->rank == root;
}

/* Buffers that overlap are wrong, but MPIs take many of them: then a copy is sent. */
static enum how apart(struct shim_job *j, size_t sbytes, const void *recv, size_t rbytes)
{
    uintptr_t s = (uintptr_t)j->send, r = (uintptr_t)recv;

    if (j->temp[0] || s >= r + rbytes || r >= s + sbytes)
        return GO;
    if (!shim_job_temp(j, 0, sbytes))
        return NO_MEMORY;
    memcpy(j->temp[0], j->send, sbytes);
    j->send = j->temp[0];
    return GO;
}

/* Element-wise reductions of equal counts. */
static enum how elementwise(struct shim_job *j, const void *send, void *recv, size_t count,
                            MPI_Datatype type, MPI_Op op)
{
    struct shim_type t;

    if (shim_type_get(type, &t) || !shim_redop_get(op, &t, &j->r))
        return MPIS;
    j->send = send;
    j->recv = recv;
    j->count = count * j->r.unit;
    j->bytes = count * t.size;
    return GO;
}

/* A reduction of no elements. Its type and operation may be wrong nevertheless. */
static enum how nothing_of(MPI_Datatype type, MPI_Op op)
{
    struct shim_redop r = { 0 };
    struct shim_type t;

    if (shim_type_get(type, &t) || !shim_redop_get(op, &t, &r))
        return MPIS;
    shim_redop_done(&r);
    return NOTHING;
}

/* The memory to send: the user's, or temp[0] with a packed copy. NULL without memory. */
static const void *sent(struct shim_job *j, const void *buf, size_t count,
                        const struct shim_type *t)
{
    if (t->plain)
        return buf;
    if (!shim_job_temp(j, 0, count * t->size) ||
        shim_pack(buf, count, t, j->temp[0]) != MPI_SUCCESS)
        return NULL;
    return j->temp[0];
}

/* Where `count` elements arrive: the user's memory, or temp[1], which is unpacked afterwards.
 */
static void *received(struct shim_job *j, void *buf, size_t count, const struct shim_type *t)
{
    if (t->plain)
        return buf;
    j->out = 1;
    j->out_base = buf;
    j->out_type = *t;
    j->out_count = count;
    return shim_job_temp(j, 1, count * t->size);
}

/* MPI wants a reduce_scatter's result at recvbuf's start, and the rest as it was (which
 * programs rely on); banyan leaves the result in its block, which `before` elements precede. */
static enum how scattered_in_place(struct shim_job *j, void *recv, size_t before, size_t bytes)
{
    j->send = j->recv = recv;
    if (before == 0 || bytes == 0)
        return GO;
    j->recv = shim_job_temp(j, 1, bytes);
    j->move_to = recv;
    j->move_from = j->recv;
    j->move_bytes = bytes;
    return j->recv ? GO : NO_MEMORY;
}

#define COUNT    int
#define DISPL    int
#define FN(name) name
#include "integrations/mpi/collectives.h"

#if SHIM_HAS_LARGE
#undef COUNT
#undef DISPL
#undef FN
#define COUNT    MPI_Count
#define DISPL    MPI_Aint
#define FN(name) name##_c
#include "integrations/mpi/collectives.h"
#endif

/* ---- persistent ---- */

static enum how persistent(struct shim_job *j, const struct shim_args *a)
{
    MPI_Comm comm = j->c->handle;

    switch (a->call) {
    case SHIM_ALLREDUCE:
        return allreduce(j, a->send, a->recv, a->scount, a->stype, a->op, comm);
    case SHIM_REDUCE:
        return reduce(j, a->send, a->recv, a->scount, a->stype, a->op, a->root, comm);
    case SHIM_REDUCE_SCATTER_BLOCK:
        return reduce_scatter_block(j, a->send, a->recv, a->scount, a->stype, a->op, comm);
    case SHIM_BCAST: return bcast(j, a->recv, a->scount, a->stype, a->root, comm);
    case SHIM_ALLGATHER:
        return allgather(j, a->send, a->scount, a->stype, a->recv, a->rcount, a->rtype, comm);
    case SHIM_ALLTOALL:
        return alltoall(j, a->send, a->scount, a->stype, a->recv, a->rcount, a->rtype, comm);
    case SHIM_GATHER:
        return gather(j, a->send, a->scount, a->stype, a->recv, a->rcount, a->rtype, a->root,
                      comm);
    case SHIM_SCATTER:
        return scatter(j, a->send, a->scount, a->stype, a->recv, a->rcount, a->rtype, a->root,
                       comm);
    default: return MPIS;
    }
}

int shim_prepare(struct shim_job *j, const struct shim_args *args)
{
    return prepared(j, persistent(j, args)) == GO ? 0 : -1;
}

/* By an alias, because a call could go to choose.c's jump, which Open MPI 4 has nothing for. */
#ifdef OPEN_MPI
#define ALSO_X(name)                                                                           \
    __typeof__(MPI_##name##_init) MPIX_##name##_init                                           \
        __attribute__((alias("MPI_" #name "_init")));
#else
#define ALSO_X(name)
#endif
#define INIT(name, which, parameters, arguments, ...)                                          \
    int MPI_##name##_init(UNWRAP parameters, MPI_Comm comm, MPI_Info info,                     \
                          MPI_Request *request)                                                \
    {                                                                                          \
        const struct shim_args args = { .call = which, __VA_ARGS__ };                          \
        if (shim_persistent_init(&args, comm, request))                                        \
            return MPI_SUCCESS;                                                                \
        return PASS(which, SHIM_PERSISTENT,                                                    \
                    real.name##_init(UNWRAP arguments, comm, info, request));                  \
    }                                                                                          \
    ALSO_X(name)
#define SUM .send = send, .recv = recv, .scount = count, .stype = type, .rtype = type, .op = op
#define BLOCKS                                                                                 \
    .send = send, .scount = scount, .stype = stype, .recv = recv, .rcount = rcount,            \
    .rtype = rtype, .op = MPI_OP_NULL
#define BLOCK_PARAMETERS                                                                       \
    const void *send, int scount, MPI_Datatype stype, void *recv, int rcount, MPI_Datatype rtype

INIT(Allreduce, SHIM_ALLREDUCE,
     (const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op),
     (send, recv, count, type, op), SUM)
INIT(Reduce_scatter_block, SHIM_REDUCE_SCATTER_BLOCK,
     (const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op),
     (send, recv, count, type, op), SUM)
INIT(Reduce, SHIM_REDUCE,
     (const void *send, void *recv, int count, MPI_Datatype type, MPI_Op op, int root),
     (send, recv, count, type, op, root), SUM, .root = root)
INIT(Bcast, SHIM_BCAST, (void *buf, int count, MPI_Datatype type, int root),
     (buf, count, type, root), .recv = buf, .scount = count, .stype = type, .rtype = type,
     .op = MPI_OP_NULL, .root = root)
INIT(Allgather, SHIM_ALLGATHER, (BLOCK_PARAMETERS), (send, scount, stype, recv, rcount, rtype),
     BLOCKS)
INIT(Alltoall, SHIM_ALLTOALL, (BLOCK_PARAMETERS), (send, scount, stype, recv, rcount, rtype),
     BLOCKS)
INIT(Gather, SHIM_GATHER, (BLOCK_PARAMETERS, int root),
     (send, scount, stype, recv, rcount, rtype, root), BLOCKS, .root = root)
INIT(Scatter, SHIM_SCATTER, (BLOCK_PARAMETERS, int root),
     (send, scount, stype, recv, rcount, rtype, root), BLOCKS, .root = root)

/* ---- without data ---- */

int MPI_Barrier(MPI_Comm comm)
{
    struct shim_comm *c = shim_comm_of(comm, 1);
    struct shim_job j;
    int code = SHIM_AGAIN;

    if (c) {
        shim_job_start(&j, SHIM_BARRIER, c);
        code = shim_job_run(&j);
    }
    return code == SHIM_AGAIN ? PASS(SHIM_BARRIER, SHIM_BLOCKING, real.Barrier(comm)) : code;
}

int MPI_Ibarrier(MPI_Comm comm, MPI_Request *request)
{
    struct shim_comm *c = shim.nonblocking ? NULL : shim_comm_of(comm, 0);
    struct shim_job j;

    if (!c)
        return PASS(SHIM_BARRIER, SHIM_NONBLOCKING, real.Ibarrier(comm, request));
    shim_job_start(&j, SHIM_BARRIER, c);
    return shim_job_launch(&j, request);
}
