/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by mpi_job.c and mpi_progress.c: the steps of a call. */
#ifndef BNY_MPI_MPI_JOB_H
#define BNY_MPI_MPI_JOB_H

#include "integrations/mpi/shim.h"

/* Calls banyan: blocking when req is NULL, else makes a request. Returns banyan's code. */
int shim_job_call(struct shim_job *j, struct banyan_request **req);
/* After the operation ended with banyan's code rc: moves results to where the user wants them,
 * frees. Returns an MPI error code. */
int shim_job_finish(struct shim_job *j, int rc);
/* A started operation. */
struct shim_flight {
    struct shim_job job;
    struct banyan_request *req;
    /* It has ended with banyan's code rc, and is in no list any more. Lock held; may free it.
     */
    void (*landed)(struct shim_flight *f, int rc);
    struct shim_flight *next;
};
/* Progresses it until it has landed. Lock held. */
void shim_flight_add(struct shim_flight *f);

/* A call on a communicator that is SHIM_LOST: banyan's error, after the error handler. */
int shim_job_lose(struct shim_job *j);

#endif
