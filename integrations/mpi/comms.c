/* SPDX-License-Identifier: BSD-3-Clause */
/* Communicators. Each MPI communicator has an object of ours as an attribute, which its freeing
 * takes along. The banyan communicator is made in a blocking collective, because a non-blocking
 * call may wait for nobody: on MPI_COMM_WORLD in the first, on others when `after` collectives
 * have been called on it: it costs about a millisecond (two ranks), so a communicator that is
 * made for one broadcast should not have one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "integrations/mpi/shim.h"

/* At MPI_Finalize: for ranks that freed a communicator later than we did. */
#define CLOSE_S 20.0

struct shim_comm *shim_cache[SHIM_CACHE];
static struct shim_comm *all;
static int keyval = MPI_KEYVAL_INVALID;

/* ---- freeing ---- */

static void recycle(struct shim_comm *c)
{
    banyan_comm_destroy(c->banyan);
    c->banyan = NULL;
    c->state = SHIM_FRESH;
    c->handle = MPI_COMM_NULL;
}

/* The attribute's end: MPI_Comm_free was called here, perhaps not yet at other ranks, and
 * operations may be in flight. So nothing is torn down before a last barrier has completed,
 * which starts when our operations have: a rank that has left would look dead to one that still
 * completes them. Only marks: the MPI library may hold a lock of its own in this callback, and
 * shim_lock is taken before that one elsewhere. */
static int forget(MPI_Comm comm, int key, void *value, void *extra)
{
    struct shim_comm *c = value, **cached = &shim_cache[shim_hash((uintptr_t)comm)];

    if (*cached == c)
        *cached = NULL;
    if (c->state != SHIM_READY) {
        recycle(c);
        return MPI_SUCCESS;
    }
    c->state = SHIM_FREED;
    shim.in_flight++;
    shim.freed++;
    return MPI_SUCCESS;
}

void shim_comms_close(void)
{
    for (struct shim_comm *c = all; c && shim.freed; c = c->next)
        if (c->state == SHIM_FREED && c->in_flight == 0) {
            c->state = SHIM_CLOSING;
            shim.freed--;
            shim_close_start(c); /* counts as in flight itself */
            shim.in_flight--;
        }
}

void shim_comm_settle(struct shim_comm *c)
{
    if (c->state == SHIM_CLOSING && c->in_flight == 0)
        recycle(c);
}

/* ---- joining ---- */

static int gather(void *ctx, const void *in, void *out, size_t bytes)
{
    const struct shim_comm *c = ctx;
    MPI_Request req;

    if (real.Iallgather(in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, c->handle, &req) !=
        MPI_SUCCESS)
        return -1;
    return shim_wait_native(&req) == MPI_SUCCESS ? 0 : -1;
}

static int init(struct shim_comm *c)
{
    struct banyan_config cfg;
    unsigned turns = 0;
    int done = 0, rc;

    banyan_config_default(&cfg);
    cfg.codec = shim.codec;
    if (!getenv("BANYAN_OP_TIMEOUT"))
        cfg.op_timeout_s = 0; /* MPI waits for ever; a death is noticed by other means */
    cfg.allgather = gather;
    cfg.allgather_ctx = c;
    cfg.progress_hook = shim_drive_mpi;
    rc = banyan_comm_init_start(&c->banyan, NULL, c->n, c->rank, &cfg);
    while (rc == 0 && !done) {
        rc = banyan_comm_init_test(c->banyan, &done);
        if (rc == 0 && !done)
            shim_turn(&turns);
    }
    return rc;
}

/* All ranks are in the same call. First wait for the last of them, without a deadline, as the
 * call itself would; then join; then agree on whether every rank did. */
static void join(struct shim_comm *c)
{
    int ok = 0, worst = 0, rc;
    char why[400] = "";
    MPI_Request req;

    rc = real.Ibarrier(c->handle, &req);
    if (rc == MPI_SUCCESS)
        rc = shim_wait_native(&req);
    if (rc == MPI_SUCCESS) {
        ok = init(c) == 0;
        if (!ok)
            snprintf(why, sizeof why, "%s", banyan_last_error());
        rc = real.Iallreduce(&ok, &worst, 1, MPI_INT, MPI_MIN, c->handle, &req);
        if (rc == MPI_SUCCESS)
            rc = shim_wait_native(&req);
    }
    if (rc == MPI_SUCCESS && worst) {
        c->state = SHIM_READY;
        return;
    }
    if (!ok)
        shim_say("a communicator of %d ranks stays on MPI: %s", c->n, why);
    banyan_comm_destroy(c->banyan);
    c->banyan = NULL;
    c->state = SHIM_PASS;
}

/* ---- finding ---- */

static struct shim_comm *find(MPI_Comm comm)
{
    struct shim_comm *c;
    int found = 0, inter = 0;

    if (real.Comm_get_attr(comm, keyval, &c, &found) != MPI_SUCCESS)
        return NULL;
    if (found)
        return c;
    for (c = all; c && c->handle != MPI_COMM_NULL; c = c->next)
        ;
    if (!c) {
        c = calloc(1, sizeof *c);
        if (!c)
            return NULL;
        c->next = all;
        all = c;
    }
    c->handle = comm;
    c->state = SHIM_FRESH;
    c->calls = c->in_flight = c->said = 0;
    real.Comm_rank(comm, &c->rank);
    real.Comm_size(comm, &c->n);
    real.Comm_test_inter(comm, &inter);
    if (inter || c->n == 1)
        c->state = SHIM_PASS;
    if (real.Comm_set_attr(comm, keyval, c) != MPI_SUCCESS) {
        c->handle = MPI_COMM_NULL;
        return NULL;
    }
    return c;
}

struct shim_comm *shim_comm_slow(MPI_Comm comm, int blocking)
{
    struct shim_comm *c = shim_cache[shim_hash((uintptr_t)comm)];
    int due;

    if (!shim.ready || comm == MPI_COMM_NULL)
        return NULL;
    if (c && c->handle == comm && c->state == SHIM_PASS)
        return c;
    shim_lock();
    c = find(comm);
    if (c)
        shim_cache[shim_hash((uintptr_t)comm)] = c;
    due = c && c->state == SHIM_FRESH && blocking &&
          (++c->calls >= shim.after || comm == MPI_COMM_WORLD);
    shim_unlock();
    if (due)
        join(c);
    return c;
}

/* ---- start and end ---- */

int shim_comms_start(void)
{
    return real.Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &keyval, NULL) == MPI_SUCCESS
               ? 0
               : -1;
}

static int are_open(void)
{
    for (struct shim_comm *c = all; c; c = c->next)
        if (c->state == SHIM_FREED || c->state == SHIM_CLOSING)
            return 1;
    return 0;
}

/* Communicators that the program never freed are closed like the others: their ranks are all in
 * MPI_Finalize. */
void shim_comms_stop(void)
{
    double until = shim_now() + CLOSE_S;
    unsigned turns = 0;

    memset(shim_cache, 0, sizeof shim_cache);
    for (struct shim_comm *c = all; c; c = c->next) {
        MPI_Comm comm = c->handle;
        if (comm != MPI_COMM_NULL && c->state != SHIM_FREED && c->state != SHIM_CLOSING)
            real.Comm_delete_attr(comm, keyval);
    }
    while (are_open() && shim_now() < until)
        shim_turn(&turns);
    if (are_open())
        shim_say("MPI_Finalize: other ranks have not freed a communicator or not completed an "
                 "operation that this "
                 "rank has left; going on without them");
    real.Comm_free_keyval(&keyval);
}
