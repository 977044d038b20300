/* SPDX-License-Identifier: BSD-3-Clause */
/* Operations in flight: each is a banyan request and, for the user, a generalised MPI request
 * that we complete. The MPI library does not progress ours and banyan does not progress MPI's,
 * so what may block here is a loop over both. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "integrations/mpi/mpi_job.h"

#define SPINS 200 /* turns before the CPU is offered to others */

struct flight {
    struct shim_flight flight; /* must be first */
    MPI_Request handle;
    int code;       /* for the status */
    atomic_int end; /* enum end: the later of both frees it */
};

/* MPICH calls free_fn in MPI_Request_free already, Open MPI after completion. */
enum end { FLYING, LANDED, RELEASED };

static struct shim_flight *first, **last = &first;
/* A receive that nothing matches before the end: to test it makes the MPI library progress.
 * (MPI_Iprobe does not always: MPICH leaves a rendezvous of other communicators alone in it.)
 */
MPI_Comm shim_self = MPI_COMM_NULL;
static MPI_Request pump_handle;

/* Handles that the user freed while an operation in flight needed them. */
struct later {
    MPI_Op op;
    MPI_Datatype type;
    struct later *next;
};
static struct later *laters;

/* ---- handles that must outlive their freeing ---- */

static int uses(MPI_Op op, MPI_Datatype type)
{
    for (const struct shim_flight *f = first; f; f = f->next) {
        if (op != MPI_OP_NULL && shim_user_has_op(f->job.r.user, op))
            return 1;
        if (type != MPI_DATATYPE_NULL && (shim_user_has_type(f->job.r.user, type) ||
                                          (f->job.out && f->job.out_type.handle == type)))
            return 1;
    }
    return shim_persistent_uses(op, type);
}

static int mpi_progress_keep(MPI_Op op, MPI_Datatype type)
{
    struct later *l = NULL;

    shim_lock();
    if (uses(op, type) && (l = malloc(sizeof *l))) {
        *l = (struct later){ op, type, laters };
        laters = l;
    }
    shim_unlock();
    return l != NULL;
}

int shim_free_op_later(MPI_Op op)
{
    return op != MPI_OP_NULL && mpi_progress_keep(op, MPI_DATATYPE_NULL);
}

int shim_free_type_later(MPI_Datatype type)
{
    return type != MPI_DATATYPE_NULL && mpi_progress_keep(MPI_OP_NULL, type);
}

/* Lock held. */
static void free_laters(void)
{
    struct later **at = &laters, *l;

    while ((l = *at)) {
        if (uses(l->op, l->type)) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        if (l->op != MPI_OP_NULL)
            real.Op_free(&l->op);
        else
            real.Type_free(&l->type);
        free(l);
    }
}

void shim_free_laters(void)
{
    shim_lock();
    if (laters)
        free_laters();
    shim_unlock();
}

/* ---- generalised requests ---- */

static int query(void *extra, MPI_Status *status)
{
    const struct flight *f = extra;

    real.Status_set_elements(status, MPI_BYTE, 0);
    real.Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    return f->code;
}

static int mpi_progress_release(void *extra)
{
    struct flight *f = extra;

    if (atomic_exchange(&f->end, RELEASED) == LANDED)
        free(f);
    return MPI_SUCCESS;
}

static int cancel(void *extra, int complete)
{
    return MPI_SUCCESS; /* collectives cannot be cancelled: it completes */
}

static void landed(struct shim_flight *flight, int rc)
{
    struct flight *f = (struct flight *)flight;
    struct shim_comm *c = flight->job.c;
    MPI_Request handle = f->handle;

    banyan_request_free(flight->req);
    f->code = shim_job_finish(&flight->job, rc);
    if (atomic_exchange(&f->end, LANDED) == RELEASED)
        free(f);
    real.Grequest_complete(handle); /* f may be gone afterwards */
    shim_comm_settle(c);
}

void shim_progress(void)
{
    struct shim_flight **at = &first, *f;
    int any = 0;

    while ((f = *at)) {
        int done = 0, rc = banyan_test(f->req, &done);
        if (!done && rc == 0) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        if (!f->next)
            last = at;
        shim.in_flight--;
        f->job.c->in_flight--;
        f->landed(f, rc);
        any = 1;
    }
    if (any && laters)
        free_laters();
}

/* ---- the library that gets calls which may complete something ---- */

static void (*lead)(int here);
static pthread_mutex_t leading = PTHREAD_MUTEX_INITIALIZER; /* the last to be taken */

void bny_mpi_take_switch(void (*fn)(int here))
{
    lead = fn;
}

static void come_here(void)
{
    if (!lead || shim.led_here)
        return;
    if (shim.multiple)
        pthread_mutex_lock(&leading);
    lead(1);
    shim.led_here = 1;
    if (shim.multiple)
        pthread_mutex_unlock(&leading);
}

/* Not as soon as the last operation is complete, as a program that starts one after another
 * would lead all calls to and fro. Another thread may start one now: either it finds led_here 0
 * and waits for the mutex, or its operation is seen here. */
void shim_go_straight(void)
{
    if (!shim.led_here)
        return;
    if (shim.multiple)
        pthread_mutex_lock(&leading);
    shim.led_here = 0;
    if (shim.in_flight)
        shim.led_here = 1;
    else
        lead(0);
    if (shim.multiple)
        pthread_mutex_unlock(&leading);
}

void shim_flight_add(struct shim_flight *f)
{
    f->next = NULL;
    *last = f;
    last = &f->next;
    shim.in_flight++;
    f->job.c->in_flight++;
    come_here();
}

int shim_job_launch(struct shim_job *j, MPI_Request *req)
{
    struct flight *f = calloc(1, sizeof *f);
    double start = shim.stats ? shim_now() : 0;
    MPI_Comm comm = j->c->handle;
    int rc, code;

    if (j->c->state == SHIM_LOST) {
        free(f);
        return shim_job_lose(j);
    }
    if (!f) {
        shim_job_drop(j);
        return shim_raise(comm, MPI_ERR_NO_MEM);
    }
    f->flight.job = *j;
    f->flight.landed = landed;
    shim_lock();
    rc = shim_job_call(&f->flight.job, &f->flight.req);
    if (rc == 0)
        rc = banyan_start(f->flight.req);
    code = rc ? shim_job_finish(&f->flight.job, rc)
              : real.Grequest_start(query, mpi_progress_release, cancel, f, &f->handle);
    if (rc == 0 && code == MPI_SUCCESS) {
        *req = f->handle;
        j->c->done++;
        shim_flight_add(&f->flight);
    } else {
        banyan_request_free(f->flight.req);
        free(f);
    }
    shim_unlock();
    if (shim.stats) {
        shim_count(j->call, SHIM_NONBLOCKING, 1, shim_now() - start, j->bytes);
        shim_count_codec(j);
    }
    return code == MPI_SUCCESS ? code : shim_raise(comm, code);
}

int shim_launch_nothing(MPI_Comm comm, MPI_Request *req)
{
    struct flight *f = calloc(1, sizeof *f);
    int code =
        f ? real.Grequest_start(query, mpi_progress_release, cancel, f, req) : MPI_ERR_NO_MEM;

    if (code != MPI_SUCCESS) {
        free(f);
        return shim_raise(comm, code);
    }
    atomic_store(&f->end, LANDED);
    return real.Grequest_complete(*req);
}

/* Below MPI_THREAD_MULTIPLE the caller's thread is inside the MPI library now, so nobody else
 * is here. */
void shim_drive_banyan(void)
{
    shim_lock();
    if (shim_world)
        banyan_progress(shim_world);
    shim_unlock();
}

/* ---- waiting ---- */

/* Two threads may not test one request at the same time: a thread that finds another one at it
 * leaves it to that thread. */
void shim_drive_mpi(void *unused)
{
    static atomic_flag busy = ATOMIC_FLAG_INIT;
    int flag;

    if (shim.multiple && atomic_flag_test_and_set_explicit(&busy, memory_order_acquire))
        return;
    real.Test(&pump_handle, &flag, MPI_STATUS_IGNORE);
    if (shim.multiple)
        atomic_flag_clear_explicit(&busy, memory_order_release);
}

void shim_turn(unsigned *turns)
{
    shim_lock();
    shim_progress();
    shim_unlock();
    shim_raise_now();
    if (++*turns > SPINS)
        sched_yield();
}

int shim_wait_native(MPI_Request *req)
{
    unsigned turns = 0;
    int done = 0, rc;

    for (;;) {
        rc = real.Test(req, &done, MPI_STATUS_IGNORE);
        if (rc != MPI_SUCCESS || done)
            return rc;
        shim_turn(&turns);
    }
}

void shim_drain(MPI_Comm comm)
{
    struct shim_comm *c = shim_comm_of(comm, 0);
    unsigned turns = 0;

    while (c && c->in_flight) {
        shim_turn(&turns);
        shim_drive_mpi(NULL);
    }
}

int shim_progress_start(void)
{
    if (real.Comm_dup(MPI_COMM_SELF, &shim_self) != MPI_SUCCESS ||
        real.Comm_set_errhandler(shim_self, MPI_ERRORS_RETURN) != MPI_SUCCESS)
        return -1;
    return real.Irecv(NULL, 0, MPI_BYTE, 0, 0, shim_self, &pump_handle) == MPI_SUCCESS ? 0 : -1;
}

void shim_progress_stop(void)
{
    real.Send(NULL, 0, MPI_BYTE, 0, 0, shim_self);
    real.Wait(&pump_handle, MPI_STATUS_IGNORE);
    real.Comm_free(&shim_self);
}
