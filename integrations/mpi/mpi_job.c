/* SPDX-License-Identifier: BSD-3-Clause */
/* One collective call on banyan: run now, or launched as a generalised request. */
#include <stdlib.h>
#include <string.h>

#include "integrations/mpi/mpi_job.h"

void shim_job_start(struct shim_job *j, enum shim_call call, struct shim_comm *c)
{
    j->call = call;
    j->c = c;
    j->vec = NULL;
    j->temp[0] = j->temp[1] = NULL;
    j->r.user = NULL;
    j->out = 0;
    j->out_counts = NULL;
    j->move_bytes = 0;
    j->bytes = 0;
}

int shim_job_vec(struct shim_job *j, int arrays)
{
    j->vec = calloc((size_t)arrays * (size_t)j->c->n, sizeof *j->vec);
    return j->vec ? 0 : -1;
}

void *shim_job_temp(struct shim_job *j, int i, size_t bytes)
{
    j->temp[i] = malloc(bytes ? bytes : 1);
    return j->temp[i];
}

void shim_job_drop(struct shim_job *j)
{
    shim_redop_done(&j->r);
    free(j->vec);
    free(j->temp[0]);
    free(j->temp[1]);
    j->vec = NULL;
    j->temp[0] = j->temp[1] = NULL;
}

static int mpi_job_unpack(const struct shim_job *j)
{
    const char *from = j->temp[1];
    int rc = MPI_SUCCESS;

    if (!j->out_counts)
        return shim_unpack(from, j->out_base, j->out_count, &j->out_type);
    for (int r = 0; r < j->c->n && rc == MPI_SUCCESS; r++) {
        rc = shim_unpack(from, j->out_base + j->out_displs[r] * j->out_type.extent,
                         j->out_counts[r], &j->out_type);
        from += j->out_counts[r] * j->out_type.size;
    }
    return rc;
}

int shim_job_finish(struct shim_job *j, int rc)
{
    int code = shim_code(rc);

    if (rc < 0 && !j->c->said) {
        j->c->said = 1;
        shim_say("%s", banyan_last_error());
    }
    if (rc == 0 && j->move_bytes)
        memmove(j->move_to, j->move_from, j->move_bytes);
    if (rc == 0 && j->out)
        code = mpi_job_unpack(j);
    if (j->vec || j->temp[0] || j->temp[1] || j->r.user)
        shim_job_drop(j);
    return code;
}

int shim_job_call(struct shim_job *j, struct banyan_request **req)
{
    struct banyan_comm *b = j->c->banyan;
    const enum banyan_dtype dt = j->r.dtype, u8 = BANYAN_U8;

/* The blocking function, or the one that makes a request. */
#define CALL(name, ...)                                                                        \
    (req ? banyan_##name##_init(__VA_ARGS__, b, NULL, req)                                     \
         : banyan_##name(__VA_ARGS__, b, NULL))
    switch (j->call) {
    case SHIM_ALLREDUCE: return CALL(allreduce, j->send, j->recv, j->count, dt, j->r.op);
    case SHIM_REDUCE: return CALL(reduce, j->send, j->recv, j->count, dt, j->r.op, j->root);
    case SHIM_BCAST: return CALL(broadcast, j->recv, j->count, u8, j->root);
    case SHIM_REDUCE_SCATTER:
        return CALL(reduce_scatterv, j->send, j->recv, j->scounts, dt, j->r.op);
    case SHIM_REDUCE_SCATTER_BLOCK:
        return CALL(reduce_scatter, j->send, j->recv, j->count, dt, j->r.op);
    case SHIM_ALLGATHER: return CALL(allgather, j->send, j->recv, j->count, u8);
    case SHIM_ALLGATHERV: return CALL(allgatherv, j->send, j->recv, j->rcounts, j->rdispls, u8);
    case SHIM_GATHER: return CALL(gather, j->send, j->recv, j->count, u8, j->root);
    case SHIM_GATHERV:
        return CALL(gatherv, j->send, j->count, j->recv, j->rcounts, j->rdispls, u8, j->root);
    case SHIM_SCATTER: return CALL(scatter, j->send, j->recv, j->count, u8, j->root);
    case SHIM_SCATTERV:
        return CALL(scatterv, j->send, j->scounts, j->sdispls, j->recv, j->count, u8, j->root);
    case SHIM_ALLTOALL: return CALL(alltoall, j->send, j->recv, j->count, u8);
    case SHIM_ALLTOALLV:
        return CALL(alltoallv, j->send, j->scounts, j->sdispls, j->recv, j->rcounts, j->rdispls,
                    u8);
    case SHIM_BARRIER: return req ? banyan_barrier_init(b, NULL, req) : banyan_barrier(b, NULL);
    case SHIM_SCAN: return CALL(scan, j->send, j->recv, j->count, dt, j->r.op);
    case SHIM_EXSCAN: return CALL(exscan, j->send, j->recv, j->count, dt, j->r.op);
    case SHIM_CALLS: break;
    }
#undef CALL
    return -BANYAN_EINVAL;
}

/* Were the user's inputs left as they are, so that the MPI can have the call? */
static int is_repeatable(const struct shim_job *j)
{
    return j->call == SHIM_BCAST || j->call == SHIM_BARRIER || j->send != j->recv;
}

int shim_job_lose(struct shim_job *j)
{
    struct shim_comm *c = j->c;
    int rc = banyan_barrier(c->banyan, NULL), code; /* fails at once */

    shim_lock();
    shim_job_drop(j);
    code = shim_code(rc);
    shim_unlock();
    if (--c->lost == 0)
        c->state = SHIM_PASS;
    return shim_raise(c->handle, code);
}

/* The call failed, as ranks differ: in this one or in one before. 1: it is the MPI's. */
static int is_mpis_now(struct shim_job *j)
{
    struct shim_comm *c = j->c;
    int again = is_repeatable(j);

    c->done += !again;
    shim_comm_differs(c);
    if (again && c->state == SHIM_PASS)
        return 1;
    if (again && --c->lost == 0)
        c->state = SHIM_PASS;
    return 0;
}

int shim_job_run(struct shim_job *j)
{
    MPI_Comm comm = j->c->handle;
    double start = 0;
    int rc, code;

    if (j->c->state == SHIM_LOST)
        return shim_job_lose(j);
    if (shim.stats) {
        shim_count_codec(j);
        start = shim_now();
    }
    rc = shim_job_call(j, NULL); /* banyan has locks of its own, and lets go while it waits */
    if (rc == -BANYAN_EMISMATCH && is_mpis_now(j)) {
        shim_job_drop(j);
        return SHIM_AGAIN;
    }
    j->c->done += rc == 0;
    shim_lock();
    code = shim_job_finish(j, rc);
    shim_unlock();
    if (shim.stats)
        shim_count(j->call, SHIM_BLOCKING, 1, shim_now() - start, j->bytes);
    return code == MPI_SUCCESS ? code : shim_raise(comm, code);
}
