/* SPDX-License-Identifier: BSD-3-Clause */
/* BANYAN_MPI=stats=1: which calls ran where, counted per process and summed at MPI_Finalize. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/text.h"
#include "integrations/mpi/shim.h"

enum { CALLS, SECONDS, BYTES, FIELDS };

/* [form][on banyan]; kept as doubles, so that one MPI_Reduce sums them. */
static double counts[SHIM_CALLS][SHIM_FORMS][2][FIELDS];

static const char *const names[SHIM_CALLS] = {
    "allreduce", "reduce",     "bcast",     "reduce_scatter", "reduce_scatter_block",
    "allgather", "allgatherv", "gather",    "gatherv",        "scatter",
    "scatterv",  "alltoall",   "alltoallv", "barrier",        "scan",
    "exscan"
};

/* Sums of MPI_FLOAT with BANYAN_MPI_CODEC: encoded, and raw because the codec is predicted to
 * gain nothing. */
static double coded[2];

double shim_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

void shim_count(enum shim_call call, enum shim_form form, int handled, double seconds,
                size_t bytes)
{
    double *at = counts[call][form][handled];

    shim_lock();
    at[CALLS] += 1;
    at[SECONDS] += seconds;
    at[BYTES] += (double)bytes;
    shim_unlock();
}

void shim_count_codec(const struct shim_job *j)
{
    static const char *const banyans[] = { "allreduce", "reduce", NULL, "reduce_scatter",
                                           "reduce_scatter" };
    char plan[300];

    if (!strcmp(shim.codec, "none") || j->call >= sizeof banyans / sizeof banyans[0] ||
        !banyans[j->call] || j->r.dtype != BANYAN_F32 || j->r.op != BANYAN_SUM)
        return;
    shim_lock();
    if (banyan_comm_plan(j->c->banyan, banyans[j->call], j->count, BANYAN_F32, plan,
                         sizeof plan) == 0)
        coded[strstr(plan, "codec none") != NULL] += 1;
    shim_unlock();
}

static void line(const char *prefix, const char *name, double ours[FIELDS], double mpi[FIELDS])
{
    if (ours[CALLS] + mpi[CALLS] == 0)
        return;
    bny_fprintf(stderr, "banyan-mpi: %s%-21s %10.0f %12.3f %10.2f %10.0f %12.3f\n", prefix,
                name, ours[CALLS], ours[SECONDS] * 1e3, ours[BYTES] / 1e6, mpi[CALLS],
                mpi[SECONDS] * 1e3);
}

void shim_report(void)
{
    static double sum[SHIM_CALLS][SHIM_FORMS][2][FIELDS];
    static const char *const prefixes[SHIM_FORMS] = { " ", "i", "p" };
    double coded_sum[2];

    if (real.Reduce(counts, sum, (int)(sizeof sum / sizeof(double)), MPI_DOUBLE, MPI_SUM, 0,
                    MPI_COMM_WORLD) != MPI_SUCCESS ||
        real.Reduce(coded, coded_sum, 2, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD) !=
            MPI_SUCCESS ||
        shim.rank != 0)
        return;
    fprintf(
        stderr,
        "banyan-mpi: sums over %d ranks       on banyan: calls, ms, MB     on " SHIM_BUILT_FOR
        ": calls, ms\n",
        shim.n);
    for (int c = 0; c < SHIM_CALLS; c++)
        for (int form = 0; form < SHIM_FORMS; form++)
            line(prefixes[form], names[c], sum[c][form][1], sum[c][form][0]);
    if (strcmp(shim.codec, "none") != 0)
        bny_fprintf(stderr,
                    "banyan-mpi: codec %s: %.0f sums of MPI_FLOAT were encoded; of %.0f it was "
                    "predicted to gain "
                    "nothing\n",
                    shim.codec, coded_sum[0], coded_sum[1]);
    fprintf(stderr, "banyan-mpi: (i...: non-blocking calls, the time to start them; p...: "
                    "persistent requests, the time to make them)\n");
}
