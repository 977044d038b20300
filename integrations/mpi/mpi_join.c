/* SPDX-License-Identifier: BSD-3-Clause */
/* The job's banyan world, joined in MPI_Init, where all ranks are. Every communicator whose
 * ranks are the job's shares its connections and segments (comms.c).
 *
 * A join may fail on one rank alone: a file that only it cannot read, descriptors that only it
 * lacks. Then no rank may be left waiting in it. So the ranks count the failed ones before each
 * all-gather of the join and at its end. A failed rank sends every other rank a message, which
 * those look for while they wait for its connections. */
#include <dirent.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/err.h"
#include "collectives/world/comm.h"
#include "integrations/mpi/shim.h"

/* Descriptors for each other rank, and for this one. Some are opened at the first message. */
#define FDS_PER_PEER 4
#define FDS_OWN      8
/* The largest that every MPI has; nobody else has sent anything yet. */
#define TAG_FAILED 32767

struct banyan_comm *shim_world;
MPI_Comm shim_joining = MPI_COMM_WORLD;
static int failed; /* ranks that failed by themselves; then all know */

/* All ranks. Nonzero: some have failed (or the MPI library), nobody joins. */
static int count_failed(int own)
{
    MPI_Request req;

    if (real.Iallreduce(&own, &failed, 1, MPI_INT, MPI_SUM, shim_joining, &req) !=
            MPI_SUCCESS ||
        shim_wait_native(&req) != MPI_SUCCESS)
        failed = 1;
    return failed;
}

static int mpi_join_gather(void *unused, const void *in, void *out, size_t bytes)
{
    MPI_Request req;

    if (count_failed(0) || real.Iallgather(in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE,
                                           shim_joining, &req) != MPI_SUCCESS)
        return -1;
    return shim_wait_native(&req) == MPI_SUCCESS ? 0 : -1;
}

/* A rank that runs out of them later looks dead to the others. */
static int check_descriptors(void)
{
    long need = FDS_PER_PEER * (shim.n - 1L) + FDS_OWN, open = 0;
    DIR *fds = opendir("/proc/self/fd");
    struct rlimit limit;

    while (fds && readdir(fds))
        open++;
    if (fds)
        closedir(fds);
    if (!fds || getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        (long)limit.rlim_cur - open >= need)
        return 0;
    return bny_fail(BANYAN_ESYSTEM,
                    "it needs %ld descriptors for %d ranks and can open %ld more: ulimit -n "
                    "%ld",
                    need, shim.n, (long)limit.rlim_cur - open, open + need);
}

static int heard_of_a_failure(void)
{
    int flag = 0;

    real.Iprobe(MPI_ANY_SOURCE, TAG_FAILED, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    return flag;
}

/* 0, or banyan's error, or 1: another rank has failed. */
static int mpi_join_init(void)
{
    struct banyan_config cfg;
    unsigned turns = 0;
    int done = 0, rc = check_descriptors();

    if (rc)
        return rc;
    cfg = (struct banyan_config)BANYAN_CONFIG_INIT;
    cfg.codec = shim.codec;
    if (!getenv("BANYAN_SCHEDULE"))
        cfg.schedule = "static"; /* MPI wants the same bits in each run (advice of 6.9.1) */
    if (!getenv("BANYAN_OP_TIMEOUT"))
        cfg.op_timeout_s = 0; /* MPI waits for ever; a death is noticed by other means */
    cfg.allgather = mpi_join_gather;
    cfg.progress_hook = shim_drive_mpi;
    rc = banyan_comm_init_start(&shim_world, NULL, shim.n, shim.rank, &cfg);
    while (rc == 0 && !done) {
        rc = banyan_comm_init_test(shim_world, &done);
        if (rc == 0 && !done && heard_of_a_failure())
            return 1;
        if (rc == 0 && !done)
            shim_turn(&turns);
    }
    return rc && failed ? 1 : rc;
}

/* Whoever failed by itself tells it, by one message to each, and all take those. */
static void mpi_join_settle(int own)
{
    MPI_Request *sent = own ? calloc((size_t)shim.n, sizeof *sent) : NULL;

    for (int r = 0; r < shim.n && sent; r++) {
        sent[r] = MPI_REQUEST_NULL;
        if (r != shim.rank)
            real.Isend(NULL, 0, MPI_BYTE, r, TAG_FAILED, MPI_COMM_WORLD, &sent[r]);
    }
    if (!failed)
        count_failed(own);
    for (int i = own; i < failed; i++)
        real.Recv(NULL, 0, MPI_BYTE, MPI_ANY_SOURCE, TAG_FAILED, MPI_COMM_WORLD,
                  MPI_STATUS_IGNORE);
    for (int r = 0; r < shim.n && sent; r++)
        real.Wait(&sent[r], MPI_STATUS_IGNORE);
    free(sent);
}

/* Open MPI polls for non-blocking collectives in every call, a twelfth of what MPI_Test takes,
 * from a communicator's first one until that is freed: so it is one of our own, made the only
 * way that has no such collective of MPI_COMM_WORLD in it. */
static void open_joining(void)
{
    MPI_Group all;

    if (!shim.open_mpi)
        return;
    real.Comm_group(MPI_COMM_WORLD, &all);
    real.Comm_create_group(MPI_COMM_WORLD, all, TAG_FAILED, &shim_joining);
    real.Group_free(&all);
}

void shim_world_join(void)
{
    int rc;

    if (shim.n == 1)
        return;
    failed = 0;
    open_joining();
    rc = mpi_join_init();
    if (rc < 0)
        shim_say("MPI_Init: every communicator stays on MPI, as this rank cannot join the "
                 "others: %s",
                 banyan_last_error());
    mpi_join_settle(rc < 0);
    if (failed) {
        banyan_comm_destroy(shim_world);
        shim_world = NULL;
    }
    shim_lock();
    shim_tell_windows(); /* a session may have some */
    shim_unlock();
}

void shim_tell_windows(void)
{
    if (shim_world)
        atomic_store(&shim_world->world->hook_urgent, shim.windows > 0);
}

void shim_world_joined(void)
{
    if (shim_joining != MPI_COMM_WORLD)
        real.Comm_free(&shim_joining);
    shim_joining = MPI_COMM_WORLD;
}

/* The ranks are all in MPI_Finalize when its barrier is passed: the MPI's, as a wrong call may
 * have ended the world's own order. Not after a death, which it might wait for. */
void shim_world_leave(double until)
{
    MPI_Request req;
    unsigned turns = 0;
    int done = 0, rc;

    if (!shim_world)
        return;
    rc = real.Ibarrier(MPI_COMM_WORLD, &req);
    while (rc == MPI_SUCCESS && !done && shim_now() < until) {
        int code = banyan_async_error(shim_world, NULL, NULL, 0);
        if (code && code != -BANYAN_EMISMATCH)
            break;
        rc = real.Test(&req, &done, MPI_STATUS_IGNORE);
        banyan_progress(shim_world);
        shim_comms_differ(); /* others may wait for that */
        shim_turn(&turns);
    }
    if (shim_now() >= until)
        shim_say("MPI_Finalize: other ranks have not come to it, or have not completed an "
                 "operation that this rank has left; going on without them");
    shim_comms_free();
    banyan_comm_destroy(shim_world);
    shim_world = NULL;
}
