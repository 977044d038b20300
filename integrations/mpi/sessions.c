/* SPDX-License-Identifier: BSD-3-Clause */
/* Communicators of MPI 4's sessions, which may be there before MPI_Init and after MPI_Finalize,
 * and be used by another thread meanwhile. How many calls such a one has had when this rank
 * comes out of MPI_Init is not the same at all ranks. So it stays with the MPI library, and so
 * does what is made from it. All ranks agree on who these are. */
#include <pthread.h>
#include <stdlib.h>

#include "integrations/mpi/shim.h"

static struct born {
    MPI_Comm comm;
    struct born *next;
} * all;
static atomic_int count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the last to be taken */

int shim_is_of_session(MPI_Comm comm)
{
    struct born *b;

    if (!count)
        return 0;
    pthread_mutex_lock(&lock);
    for (b = all; b && b->comm != comm; b = b->next)
        ;
    pthread_mutex_unlock(&lock);
    return b != NULL;
}

/* Without memory for it the job ends, as other ranks have noted theirs. */
static void sessions_note(MPI_Comm comm)
{
    struct born *b = malloc(sizeof *b);

    if (!b)
        real.Abort(comm, MPI_ERR_NO_MEM);
    pthread_mutex_lock(&lock);
    *b = (struct born){ comm, all };
    all = b;
    count++;
    pthread_mutex_unlock(&lock);
}

void shim_comm_forgotten(MPI_Comm comm)
{
    struct born **at = &all, *b;

    if (!count)
        return;
    pthread_mutex_lock(&lock);
    while ((b = *at) && b->comm != comm)
        at = &b->next;
    if (b) {
        *at = b->next;
        count--;
    }
    pthread_mutex_unlock(&lock);
    free(b);
}

int shim_comm_born(int rc, MPI_Comm parent, const MPI_Comm *child)
{
    if (rc == MPI_SUCCESS && *child != MPI_COMM_NULL && shim_is_of_session(parent))
        sessions_note(*child);
    return rc;
}

int MPI_Comm_create_from_group(MPI_Group group, const char *tag, MPI_Info info,
                               MPI_Errhandler errors, MPI_Comm *comm)
{
    int rc = SHIM_GUARD(real.Comm_create_from_group(group, tag, info, errors, comm));

    if (rc == MPI_SUCCESS && *comm != MPI_COMM_NULL)
        sessions_note(*comm);
    return rc;
}

int MPI_Intercomm_create_from_groups(MPI_Group local, int leader, MPI_Group remote,
                                     int remote_leader, const char *tag, MPI_Info info,
                                     MPI_Errhandler errors, MPI_Comm *comm)
{
    int rc = SHIM_GUARD(real.Intercomm_create_from_groups(local, leader, remote, remote_leader,
                                                          tag, info, errors, comm));

    if (rc == MPI_SUCCESS && *comm != MPI_COMM_NULL)
        sessions_note(*comm);
    return rc;
}

/* These are known before they are complete: no call may use one until then. */
int MPI_Comm_idup(MPI_Comm parent, MPI_Comm *comm, MPI_Request *request)
{
    return shim_comm_born(real.Comm_idup(parent, comm, request), parent, comm);
}

int MPI_Comm_idup_with_info(MPI_Comm parent, MPI_Info info, MPI_Comm *comm,
                            MPI_Request *request)
{
    return shim_comm_born(real.Comm_idup_with_info(parent, info, comm, request), parent, comm);
}
