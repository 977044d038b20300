/* SPDX-License-Identifier: BSD-3-Clause */
/* Persistent collectives (MPI 4.0, section 6.13). The user's request is one of the MPI's own: a
 * persistent receive of nothing from this process itself, whose message is sent when banyan's
 * operation is complete. So it may stand in any call that waits or tests, beside others.
 *
 * The calls that make such requests come in the same order at all ranks and may wait for each
 * other, but the operations may be started in any order. So each request has a line (comms.c)
 * of its own: whichever of its operations is under way, it is the only one there. */
#include <stdlib.h>

#include "base/err.h"
#include "integrations/mpi/mpi_job.h"

/* Tags of shim_self that nothing else uses: types.c's are below, and every MPI has these. */
#define TAG_FIRST 30001
#define TAG_LAST  32767
#define CHAINS    64

struct persistent {
    struct shim_flight flight; /* must be first */
    struct shim_args args;
    MPI_Request handle;
    int tag;
    int is_active, is_freed; /* between start and end; MPI_Request_free was called */
    int is_kept;             /* flight.req serves the next start as well */
    int is_left;             /* the handle is the MPI's to free */
    struct shim_comm own;    /* its line, as a communicator of the job */
    struct shim_comm *of;    /* the user's, which lasts until this is freed */
    struct persistent *next; /* in its chain */
};

static struct persistent *chains[CHAINS];
static unsigned char tags[TAG_LAST - TAG_FIRST + 1]; /* in use */

static struct persistent **place_of(MPI_Request handle)
{
    return &chains[shim_hash((uintptr_t)handle) % CHAINS];
}

/* Lock held. */
static struct persistent *persist_find(MPI_Request handle)
{
    struct persistent *p = *place_of(handle);

    while (p && (p->handle != handle || p->is_freed))
        p = p->next;
    return p;
}

static int draw_tag(void)
{
    for (int i = 0; i <= TAG_LAST - TAG_FIRST; i++)
        if (!tags[i]) {
            tags[i] = 1;
            return TAG_FIRST + i;
        }
    return 0;
}

/* Lock held; it is not active, or was never used. */
static void persist_drop(struct persistent *p)
{
    struct persistent **at = place_of(p->handle);

    while (*at && *at != p)
        at = &(*at)->next;
    if (*at) {
        *at = p->next;
        shim.persistent--;
        p->of->holds--;
        shim_comm_settle(p->of);
    }
    banyan_request_free(p->flight.req);
    shim_line_put(&p->own);
    if (p->handle != MPI_REQUEST_NULL && !p->is_left)
        real.Request_free(&p->handle);
    if (p->tag)
        tags[p->tag - TAG_FIRST] = 0;
    free(p);
}

/* Open MPI 4 frees a persistent request when it tells its error, and its handle may be
 * another's from then on; others keep it. Found out by a request that fails. */
static int frees_what_failed(void)
{
    static int known, frees;
    MPI_Request probe = MPI_REQUEST_NULL;
    int flag = 0, tag = draw_tag();

    if (!known && tag &&
        real.Recv_init(NULL, 0, MPI_BYTE, 0, tag, shim_self, &probe) == MPI_SUCCESS) {
        known = 1;
        real.Start(&probe);
        real.Send("", 1, MPI_BYTE, 0, tag, shim_self);
        while (!flag && real.Test(&probe, &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS)
            ;
        frees = probe == MPI_REQUEST_NULL;
        if (!frees)
            real.Request_free(&probe);
    }
    if (tag)
        tags[tag - TAG_FIRST] = 0;
    return frees;
}

/* The end of one operation. The message is received at once: its receive is there. A message of
 * one byte is longer than that receive, which is an error for the rank that waits. */
static void landed(struct shim_flight *f, int rc)
{
    struct persistent *p = (struct persistent *)f;
    int code = shim_job_finish(&f->job, rc);

    if (!p->is_kept || rc) {
        banyan_request_free(f->req);
        f->req = NULL;
    }
    p->is_active = 0;
    real.Send("", code != MPI_SUCCESS, MPI_BYTE, 0, p->tag, shim_self);
    if (code != MPI_SUCCESS)
        shim_raise_soon(p->of->handle, code);
    p->is_left = code != MPI_SUCCESS && !p->is_freed && frees_what_failed();
    if (p->is_freed || p->is_left)
        persist_drop(p);
}

/* ---- making ---- */

/* Those gain at any size: 1.2 to 8 times as fast with 2 ranks and MPICH 4.0.2. A call that only
 * moves data loses at as many sizes as it gains at. The MPI library keeps it, unless the user
 * wants all calls here. */
static int is_reduction(const struct shim_args *args)
{
    return args->op != MPI_OP_NULL;
}

/* Lock held. Whether a request of these arguments is banyan's, as far as that is the same at
 * all ranks. */
static int is_ours(const struct shim_args *args, struct shim_comm *c)
{
    struct shim_job j;
    int ours;

    shim_job_start(&j, args->call, c);
    if (shim_prepare(&j, args))
        return 0;
    ours = is_reduction(args) || shim.nonblocking == 0;
    shim_job_drop(&j);
    return ours;
}

/* NULL: it cannot be had here. */
static struct persistent *persist_make(const struct shim_args *args, struct shim_comm *c)
{
    struct persistent *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->args = *args;
    p->of = c;
    p->handle = MPI_REQUEST_NULL;
    p->flight.landed = landed;
    p->tag = draw_tag();
    if (p->tag &&
        real.Recv_init(NULL, 0, MPI_BYTE, 0, p->tag, shim_self, &p->handle) == MPI_SUCCESS)
        return p;
    persist_drop(p);
    return NULL;
}

int shim_persistent_init(const struct shim_args *args, MPI_Comm comm, MPI_Request *request)
{
    struct shim_comm *c = shim_comm_of(comm, 1);
    struct persistent *p = NULL;
    double start = shim.stats ? shim_now() : 0;
    int ours;

    if (!c || c->state != SHIM_READY)
        return 0;
    shim_lock();
    ours = is_ours(args, c);
    if (ours)
        p = persist_make(args, c);
    shim_unlock();
    if (!ours)
        return 0;
    ours = shim_line_get(c, !p, p ? &p->own : NULL) == 0;
    shim_lock();
    if (ours) {
        struct persistent **at = place_of(p->handle);
        p->next = *at;
        *at = p;
        shim.persistent++;
        c->holds++;
        *request = p->handle;
    } else if (p) {
        persist_drop(p);
    }
    shim_unlock();
    if (ours && shim.stats)
        shim_count(args->call, SHIM_PERSISTENT, 1, shim_now() - start, 0);
    return ours;
}

/* ---- starting ---- */

/* The call uses the user's memory as it is, so its banyan request is good for the next start.
 */
static int is_direct(const struct shim_job *j)
{
    return !j->vec && !j->temp[0] && !j->temp[1] && !j->r.user && !j->out && !j->move_bytes;
}

/* Lock held. 0 or banyan's error. */
static int launch(struct persistent *p)
{
    struct shim_job *j = &p->flight.job;
    int rc = 0;

    if (!p->flight.req) {
        shim_job_start(j, p->args.call, &p->own);
        if (shim_prepare(j, &p->args)) /* all else was looked at when it was made */
            return bny_fail(BANYAN_ENOMEM, "no memory for a persistent call's copies");
        p->is_kept = is_direct(j);
        rc = shim_job_call(j, &p->flight.req);
    }
    return rc ? rc : banyan_start(p->flight.req);
}

static int persist_start(struct persistent *p)
{
    int rc = p->is_active ? MPI_ERR_REQUEST : real.Start(&p->handle);

    if (rc != MPI_SUCCESS)
        return rc;
    p->is_active = 1;
    rc = launch(p);
    if (rc)
        landed(&p->flight, rc);
    else
        shim_flight_add(&p->flight);
    return MPI_SUCCESS;
}

int MPI_Start(MPI_Request *request)
{
    struct persistent *p;
    int rc;

    if (!shim.persistent || shim_inside() || !request)
        return real.Start(request);
    shim_lock();
    p = persist_find(*request);
    rc = p ? persist_start(p) : MPI_SUCCESS;
    shim_unlock();
    if (!p)
        return real.Start(request);
    shim_raise_now();
    return rc == MPI_SUCCESS ? rc : shim_raise(p->of->handle, rc);
}

int MPI_Startall(int n, MPI_Request requests[])
{
    int rc = MPI_SUCCESS;

    if (!shim.persistent || shim_inside())
        return real.Startall(n, requests);
    for (int i = 0; i < n && rc == MPI_SUCCESS; i++)
        rc = MPI_Start(&requests[i]);
    return rc;
}

/* ---- freeing ---- */

int MPI_Request_free(MPI_Request *request)
{
    struct persistent *p = NULL;

    if (!shim.persistent || shim_inside() || !request)
        return real.Request_free(request);
    shim_lock();
    p = persist_find(*request);
    if (p && p->is_active)
        p->is_freed = 1;
    else if (p)
        persist_drop(p);
    shim_unlock();
    if (!p)
        return real.Request_free(request);
    *request = MPI_REQUEST_NULL;
    shim_free_laters();
    return MPI_SUCCESS;
}

int shim_persistent_uses(MPI_Op op, MPI_Datatype type)
{
    for (int i = 0; i < CHAINS; i++)
        for (const struct persistent *p = chains[i]; p; p = p->next)
            if ((op != MPI_OP_NULL && p->args.op == op) ||
                (type != MPI_DATATYPE_NULL && (p->args.stype == type || p->args.rtype == type)))
                return 1;
    return 0;
}

void shim_persistent_stop(void)
{
    for (int i = 0; i < CHAINS; i++)
        for (struct persistent *p = chains[i], *next; p; p = next) {
            next = p->next;
            if (!p->is_active)
                persist_drop(p);
        }
}
