/* SPDX-License-Identifier: BSD-3-Clause */
/* BANYAN_MPI_STATS=1: which calls ran where, counted per process and summed at MPI_Finalize. */
#include <stdio.h>
#include <time.h>

#include "integrations/mpi/shim.h"

enum { CALLS, SECONDS, BYTES, FIELDS };

/* [non-blocking][on banyan]; kept as doubles, so that one MPI_Reduce sums them. */
static double counts[SHIM_CALLS][2][2][FIELDS];

static const char *const names[SHIM_CALLS] = {
    "allreduce", "reduce", "bcast", "reduce_scatter", "reduce_scatter_block", "allgather",
    "allgatherv", "gather", "gatherv", "scatter", "scatterv", "alltoall", "alltoallv", "barrier",
    "scan", "exscan"
};

double shim_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

void shim_count(enum shim_call call, int nonblocking, int handled, double seconds, size_t bytes)
{
    double *at = counts[call][nonblocking][handled];

    shim_lock();
    at[CALLS] += 1;
    at[SECONDS] += seconds;
    at[BYTES] += (double)bytes;
    shim_unlock();
}

static void line(const char *prefix, const char *name, double ours[FIELDS], double mpi[FIELDS])
{
    if (ours[CALLS] + mpi[CALLS] == 0)
        return;
    fprintf(stderr, "banyan-mpi: %s%-21s %10.0f %12.3f %10.2f %10.0f %12.3f\n", prefix, name,
            ours[CALLS], ours[SECONDS] * 1e3, ours[BYTES] / 1e6, mpi[CALLS], mpi[SECONDS] * 1e3);
}

void shim_report(void)
{
    static double sum[SHIM_CALLS][2][2][FIELDS];

    if (real.Reduce(counts, sum, (int)(sizeof sum / sizeof(double)), MPI_DOUBLE, MPI_SUM, 0,
                    MPI_COMM_WORLD) != MPI_SUCCESS || shim.rank != 0)
        return;
    fprintf(stderr, "banyan-mpi: sums over %d ranks       on banyan: calls, ms, MB     on " SHIM_BUILT_FOR
            ": calls, ms\n", shim.n);
    for (int c = 0; c < SHIM_CALLS; c++) {
        line(" ", names[c], sum[c][0][1], sum[c][0][0]);
        line("i", names[c], sum[c][1][1], sum[c][1][0]);
    }
    fprintf(stderr, "banyan-mpi: (of i..., the time to start them)\n");
}
