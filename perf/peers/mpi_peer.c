/* SPDX-License-Identifier: BSD-3-Clause */
/* The benchmark loop over MPI; built once with Open MPI and once with MPICH. */
#include <mpi.h>

#include "peer_loop.h"

static void barrier(struct peer *p)
{
    (void)p;
    MPI_Barrier(MPI_COMM_WORLD);
}

static int run(struct peer *p, const struct peer_call *c)
{
    void *in = c->inplace ? MPI_IN_PLACE : (void *)c->send;
    int n = (int)c->count, next = (p->rank + 1) % p->nranks;
    MPI_Comm w = MPI_COMM_WORLD;

    if (peer_is(c, "allreduce"))
        return MPI_Allreduce(in, c->recv, n, MPI_FLOAT, MPI_SUM, w);
    if (peer_is(c, "reduce"))
        return MPI_Reduce(p->rank ? c->send : in, c->recv, n, MPI_FLOAT, MPI_SUM, 0, w);
    if (peer_is(c, "broadcast"))
        return MPI_Bcast(c->recv, n, MPI_FLOAT, 0, w);
    if (peer_is(c, "reduce_scatter"))
        return MPI_Reduce_scatter_block(in, c->recv, n, MPI_FLOAT, MPI_SUM, w);
    if (peer_is(c, "allgather"))
        return MPI_Allgather(c->send, n, MPI_FLOAT, c->recv, n, MPI_FLOAT, w);
    if (peer_is(c, "alltoall"))
        return MPI_Alltoall(in, n, MPI_FLOAT, c->recv, n, MPI_FLOAT, w);
    if (peer_is(c, "gather"))
        return MPI_Gather(c->send, n, MPI_FLOAT, c->recv, n, MPI_FLOAT, 0, w);
    if (peer_is(c, "scatter"))
        return MPI_Scatter(c->send, n, MPI_FLOAT, c->recv, n, MPI_FLOAT, 0, w);
    if (peer_is(c, "barrier"))
        return MPI_Barrier(w);
    if (peer_is(c, "sendrecv"))
        return MPI_Sendrecv(c->send, n, MPI_FLOAT, next, 0, c->recv, n, MPI_FLOAT,
                            (p->rank + p->nranks - 1) % p->nranks, 0, w, MPI_STATUS_IGNORE);
    return -1;
}

static void max_times(struct peer *p, double *us, int n)
{
    MPI_Reduce(p->rank ? us : MPI_IN_PLACE, us, n, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    struct peer p = {
        .name = PEER_NAME, .barrier = barrier, .run = run, .max_times = max_times
    };
    int rc;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p.nranks);
    rc = peer_main(&p, argc, argv);
    MPI_Finalize();
    return rc;
}
