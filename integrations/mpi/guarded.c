/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls that may block in the MPI library and have no testing form, or whose testing form the
 * other ranks' blocking form would not match. While something of ours is in flight, a thread
 * progresses it during such a call: a peer may need that before it comes to where this rank
 * waits. It only drives banyan; requests are completed by the thread that MPI knows. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#include "integrations/mpi/shim.h"

#define BUSY_TURNS 2000
#define NAP_NS     100000

static pthread_mutex_t work = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static pthread_t thread;
static int is_running, wanted, stop; /* by `work` */

static void *progress(void *unused)
{
    const struct timespec nap = { .tv_nsec = NAP_NS };
    unsigned turns = 0;

    pthread_mutex_lock(&work);
    while (!stop) {
        if (!wanted) {
            turns = 0;
            pthread_cond_wait(&wake, &work);
            continue;
        }
        shim_drive_banyan();
        pthread_mutex_unlock(&work);
        if (++turns < BUSY_TURNS)
            sched_yield();
        else
            nanosleep(&nap, NULL);
        pthread_mutex_lock(&work);
    }
    pthread_mutex_unlock(&work);
    return NULL;
}

void shim_guard_on(void)
{
    sigset_t all, was;

    pthread_mutex_lock(&work);
    wanted++;
    if (!is_running) {
        sigfillset(&all); /* signals are for the program's threads */
        pthread_sigmask(SIG_SETMASK, &all, &was);
        is_running = pthread_create(&thread, NULL, progress, NULL) == 0;
        pthread_sigmask(SIG_SETMASK, &was, NULL);
    }
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&work);
}

void shim_guard_off(void)
{
    pthread_mutex_lock(&work); /* it is not inside banyan then */
    wanted--;
    pthread_mutex_unlock(&work);
    shim_lock();
    shim_progress();
    shim_unlock();
}

void shim_guard_stop(void)
{
    pthread_mutex_lock(&work);
    stop = 1;
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&work);
    if (is_running)
        pthread_join(thread, NULL);
    is_running = 0;
}

#define GUARDED(name, parameters, arguments)                                                   \
    int MPI_##name parameters                                                                  \
    {                                                                                          \
        return SHIM_GUARD(real.name arguments);                                                \
    }

/* Which communicator it makes from which. */
#define MAKES_COMM(name, parameters, arguments, parent, child)                                 \
    int MPI_##name parameters                                                                  \
    {                                                                                          \
        return shim_comm_born(SHIM_GUARD(real.name arguments), parent, child);                 \
    }

/* Peers may reach into a window at any time, and may need this rank's MPI for it. */
static int count_windows(int rc, int more)
{
    if (rc != MPI_SUCCESS)
        return rc;
    shim_lock();
    shim.windows += more;
    shim_tell_windows();
    shim_unlock();
    return rc;
}

#define MAKES_WINDOW(name, parameters, arguments)                                              \
    int MPI_##name parameters                                                                  \
    {                                                                                          \
        return count_windows(SHIM_GUARD(real.name arguments), 1);                              \
    }

GUARDED(Sendrecv_replace,
        (void *a, int b, MPI_Datatype c, int d, int e, int f, int g, MPI_Comm h, MPI_Status *i),
        (a, b, c, d, e, f, g, h, i))
GUARDED(Bsend, (const void *a, int b, MPI_Datatype c, int d, int e, MPI_Comm f),
        (a, b, c, d, e, f))
GUARDED(Buffer_detach, (void *a, int *b), (a, b))
GUARDED(Alltoallw,
        (const void *a, const int b[], const int c[], const MPI_Datatype d[], void *e,
         const int f[], const int g[], const MPI_Datatype h[], MPI_Comm i),
        (a, b, c, d, e, f, g, h, i))
GUARDED(Neighbor_allgather,
        (const void *a, int b, MPI_Datatype c, void *d, int e, MPI_Datatype f, MPI_Comm g),
        (a, b, c, d, e, f, g))
GUARDED(Neighbor_allgatherv,
        (const void *a, int b, MPI_Datatype c, void *d, const int e[], const int f[],
         MPI_Datatype g, MPI_Comm h),
        (a, b, c, d, e, f, g, h))
GUARDED(Neighbor_alltoall,
        (const void *a, int b, MPI_Datatype c, void *d, int e, MPI_Datatype f, MPI_Comm g),
        (a, b, c, d, e, f, g))
GUARDED(Neighbor_alltoallv,
        (const void *a, const int b[], const int c[], MPI_Datatype d, void *e, const int f[],
         const int g[], MPI_Datatype h, MPI_Comm i),
        (a, b, c, d, e, f, g, h, i))
GUARDED(Neighbor_alltoallw,
        (const void *a, const int b[], const MPI_Aint c[], const MPI_Datatype d[], void *e,
         const int f[], const MPI_Aint g[], const MPI_Datatype h[], MPI_Comm i),
        (a, b, c, d, e, f, g, h, i))
MAKES_COMM(Comm_dup, (MPI_Comm a, MPI_Comm *b), (a, b), a, b)
MAKES_COMM(Comm_dup_with_info, (MPI_Comm a, MPI_Info b, MPI_Comm *c), (a, b, c), a, c)
MAKES_COMM(Comm_split, (MPI_Comm a, int b, int c, MPI_Comm *d), (a, b, c, d), a, d)
MAKES_COMM(Comm_split_type, (MPI_Comm a, int b, int c, MPI_Info d, MPI_Comm *e),
           (a, b, c, d, e), a, e)
MAKES_COMM(Comm_create, (MPI_Comm a, MPI_Group b, MPI_Comm *c), (a, b, c), a, c)
MAKES_COMM(Comm_create_group, (MPI_Comm a, MPI_Group b, int c, MPI_Comm *d), (a, b, c, d), a, d)
MAKES_COMM(Intercomm_create, (MPI_Comm a, int b, MPI_Comm c, int d, int e, MPI_Comm *f),
           (a, b, c, d, e, f), a, f)
MAKES_COMM(Intercomm_merge, (MPI_Comm a, int b, MPI_Comm *c), (a, b, c), a, c)
GUARDED(Comm_accept, (const char *a, MPI_Info b, int c, MPI_Comm d, MPI_Comm *e),
        (a, b, c, d, e))
GUARDED(Comm_connect, (const char *a, MPI_Info b, int c, MPI_Comm d, MPI_Comm *e),
        (a, b, c, d, e))
GUARDED(Comm_join, (int a, MPI_Comm *b), (a, b))
GUARDED(Comm_spawn,
        (const char *a, char *b[], int c, MPI_Info d, int e, MPI_Comm f, MPI_Comm *g, int h[]),
        (a, b, c, d, e, f, g, h))
GUARDED(Comm_spawn_multiple,
        (int a, char *b[], char **c[], const int d[], const MPI_Info e[], int f, MPI_Comm g,
         MPI_Comm *h, int i[]),
        (a, b, c, d, e, f, g, h, i))
MAKES_COMM(Cart_create, (MPI_Comm a, int b, const int c[], const int d[], int e, MPI_Comm *f),
           (a, b, c, d, e, f), a, f)
MAKES_COMM(Cart_sub, (MPI_Comm a, const int b[], MPI_Comm *c), (a, b, c), a, c)
MAKES_COMM(Graph_create, (MPI_Comm a, int b, const int c[], const int d[], int e, MPI_Comm *f),
           (a, b, c, d, e, f), a, f)
MAKES_COMM(Dist_graph_create,
           (MPI_Comm a, int b, const int c[], const int d[], const int e[], const int f[],
            MPI_Info g, int h, MPI_Comm *i),
           (a, b, c, d, e, f, g, h, i), a, i)
MAKES_COMM(Dist_graph_create_adjacent,
           (MPI_Comm a, int b, const int c[], const int d[], int e, const int f[],
            const int g[], MPI_Info h, int i, MPI_Comm *j),
           (a, b, c, d, e, f, g, h, i, j), a, j)
MAKES_WINDOW(Win_create, (void *a, MPI_Aint b, int c, MPI_Info d, MPI_Comm e, MPI_Win *f),
             (a, b, c, d, e, f))
MAKES_WINDOW(Win_allocate, (MPI_Aint a, int b, MPI_Info c, MPI_Comm d, void *e, MPI_Win *f),
             (a, b, c, d, e, f))
MAKES_WINDOW(Win_allocate_shared,
             (MPI_Aint a, int b, MPI_Info c, MPI_Comm d, void *e, MPI_Win *f),
             (a, b, c, d, e, f))
#if SHIM_HAS_LARGE
MAKES_WINDOW(Win_create_c,
             (void *a, MPI_Aint b, MPI_Aint c, MPI_Info d, MPI_Comm e, MPI_Win *f),
             (a, b, c, d, e, f))
MAKES_WINDOW(Win_allocate_c,
             (MPI_Aint a, MPI_Aint b, MPI_Info c, MPI_Comm d, void *e, MPI_Win *f),
             (a, b, c, d, e, f))
MAKES_WINDOW(Win_allocate_shared_c,
             (MPI_Aint a, MPI_Aint b, MPI_Info c, MPI_Comm d, void *e, MPI_Win *f),
             (a, b, c, d, e, f))
#endif
MAKES_WINDOW(Win_create_dynamic, (MPI_Info a, MPI_Comm b, MPI_Win *c), (a, b, c))

int MPI_Win_free(MPI_Win *win)
{
    return count_windows(SHIM_GUARD(real.Win_free(win)), -1);
}

GUARDED(Win_fence, (int a, MPI_Win b), (a, b))
GUARDED(Win_complete, (MPI_Win a), (a))
GUARDED(Win_wait, (MPI_Win a), (a))
GUARDED(Win_start, (MPI_Group a, int b, MPI_Win c), (a, b, c))
GUARDED(Win_lock, (int a, int b, int c, MPI_Win d), (a, b, c, d))
GUARDED(Win_lock_all, (int a, MPI_Win b), (a, b))
GUARDED(Win_unlock, (int a, MPI_Win b), (a, b))
GUARDED(Win_unlock_all, (MPI_Win a), (a))
GUARDED(Win_flush, (int a, MPI_Win b), (a, b))
GUARDED(Win_flush_all, (MPI_Win a), (a))
GUARDED(File_open, (MPI_Comm a, const char *b, int c, MPI_Info d, MPI_File *e), (a, b, c, d, e))
GUARDED(File_close, (MPI_File * a), (a))
GUARDED(File_set_size, (MPI_File a, MPI_Offset b), (a, b))
GUARDED(File_preallocate, (MPI_File a, MPI_Offset b), (a, b))
GUARDED(File_set_view,
        (MPI_File a, MPI_Offset b, MPI_Datatype c, MPI_Datatype d, const char *e, MPI_Info f),
        (a, b, c, d, e, f))
GUARDED(File_sync, (MPI_File a), (a))
GUARDED(File_read_all, (MPI_File a, void *b, int c, MPI_Datatype d, MPI_Status *e),
        (a, b, c, d, e))
GUARDED(File_write_all, (MPI_File a, const void *b, int c, MPI_Datatype d, MPI_Status *e),
        (a, b, c, d, e))
GUARDED(File_read_at_all,
        (MPI_File a, MPI_Offset b, void *c, int d, MPI_Datatype e, MPI_Status *f),
        (a, b, c, d, e, f))
GUARDED(File_write_at_all,
        (MPI_File a, MPI_Offset b, const void *c, int d, MPI_Datatype e, MPI_Status *f),
        (a, b, c, d, e, f))
GUARDED(File_read_ordered, (MPI_File a, void *b, int c, MPI_Datatype d, MPI_Status *e),
        (a, b, c, d, e))
GUARDED(File_write_ordered, (MPI_File a, const void *b, int c, MPI_Datatype d, MPI_Status *e),
        (a, b, c, d, e))
GUARDED(File_read_all_end, (MPI_File a, void *b, MPI_Status *c), (a, b, c))
GUARDED(File_write_all_end, (MPI_File a, const void *b, MPI_Status *c), (a, b, c))
GUARDED(File_read_at_all_end, (MPI_File a, void *b, MPI_Status *c), (a, b, c))
GUARDED(File_write_at_all_end, (MPI_File a, const void *b, MPI_Status *c), (a, b, c))
GUARDED(File_read_ordered_end, (MPI_File a, void *b, MPI_Status *c), (a, b, c))
GUARDED(File_write_ordered_end, (MPI_File a, const void *b, MPI_Status *c), (a, b, c))
GUARDED(File_seek_shared, (MPI_File a, MPI_Offset b, int c), (a, b, c))

/* Behind MPI_Finalize the MPI would abort the job for it: JAX does so in each job that ends
 * well. */
int MPI_Comm_free(MPI_Comm *comm)
{
    if (shim.ended && comm) {
        *comm = MPI_COMM_NULL;
        return MPI_SUCCESS;
    }
    if (comm)
        shim_comm_forgotten(*comm);
    return SHIM_GUARD(real.Comm_free(comm));
}

int MPI_Comm_disconnect(MPI_Comm *comm)
{
    if (comm)
        shim_comm_forgotten(*comm);
    if (shim.in_flight && comm && *comm != MPI_COMM_NULL)
        shim_drain(*comm);
    return SHIM_GUARD(real.Comm_disconnect(comm));
}
