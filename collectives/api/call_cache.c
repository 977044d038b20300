/* SPDX-License-Identifier: BSD-3-Clause */
/* The call cache. A blocking call that differs from a previous one only in its buffers takes
 * that call's operation from the communicator's pool: its arguments are checked, its plan and
 * tables are made. Of a small call these are a quarter of the time (perf/RESULTS.md).
 *
 * Only calls with ordinary options: no codec, set, state or schedule by name. Whatever is not
 * as before, or wrong, is left to the long way, which has the sentences. */
#include <string.h>

#include "collectives/api/job.h"
#include "collectives/local/memory_kind.h"

#define LOOKS 4 /* operations of the pool that are looked at: those used last */

static int is_same(const struct bny_call_shape *a, const struct bny_call_shape *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Have they no more than a tag, a deadline, and what is anyway? */
static int is_ordinary(const struct banyan_opts *o, const struct banyan_comm *comm)
{
    if (!o)
        return !comm->scope.codec;
    return o->size == sizeof *o && (!o->schedule || strcmp(o->schedule, "auto") == 0) &&
           (o->codec ? strcmp(o->codec, "none") == 0 : !comm->scope.codec) &&
           o->timeout_s == o->timeout_s && !o->chunk_bytes && !o->codec_state && !o->reduce;
}

/* Completes `shape`. 1: such a call may be among those that were made. */
static int call_cache_complete(const struct banyan_comm *comm, const struct banyan_opts *opts,
                               struct bny_call_shape *shape)
{
    shape->is_set = 1;
    shape->tag = opts ? opts->tag : 0;
    shape->deterministic = (opts && opts->deterministic >= 0 ? opts->deterministic
                                                             : comm->scope.deterministic) != 0;
    return shape->collective < BNY_COLLECTIVE_COUNT;
}

static int may_run(const struct banyan_comm *comm, const struct banyan_opts *opts)
{
    return !bny_inside && !bny_group_depth && bny_comm_is_usable(comm) &&
           !bny_mem_has_others() && is_ordinary(opts, comm);
}

/* From the pool, with its new buffers; NULL: it is elsewhere, or lacks a buffer. */
static struct bny_op *call_cache_take(struct banyan_comm *comm, const struct banyan_opts *opts,
                                      const struct bny_cached *call)
{
    struct bny_op **at = &comm->pool, *op;

    for (int i = 0; i < LOOKS && *at && !is_same(&(*at)->call.shape, call->shape); i++)
        at = &(*at)->next;
    op = *at;
    if (!op || !op->planned || !is_same(&op->call.shape, call->shape) ||
        (op->call.takes_send && !call->send) || (op->call.takes_recv && !call->recv))
        return NULL;
    *at = op->next;
    op->call.sendbuf = call->send;
    op->call.recvbuf = call->recv;
    op->call.timeout_s = opts ? opts->timeout_s : -1;
    return op;
}

/* A receive from itself returns if there is a message: the long way looks. */
static int is_from_itself(const struct banyan_comm *comm, const struct bny_call_shape *shape)
{
    return shape->collective == BNY_SENDRECV && !shape->is_send && shape->root == comm->rank;
}

/* Inlined for each n, which saves 3 ns of 130. */
static inline __attribute__((always_inline)) int cached_run(struct banyan_comm *comm,
                                                            const struct banyan_opts *opts,
                                                            const struct bny_cached *calls,
                                                            int n, int *rc)
{
    struct bny_op *first = NULL;

    if (!may_run(comm, opts))
        return 0;
    for (int i = 0; i < n; i++)
        if (!call_cache_complete(comm, opts, calls[i].shape) ||
            is_from_itself(comm, calls[i].shape))
            return 0;
    bny_world_lock(comm->world);
    for (int i = n; i-- > 0;) {
        struct bny_op *op = call_cache_take(comm, opts, &calls[i]);

        if (!op) {
            if (first)
                bny_op_give(first);
            bny_world_unlock(comm->world);
            return 0;
        }
        op->behind = first;
        first = op;
    }
    *rc = bny_run(first);
    return 1;
}

int bny_cached_call(struct banyan_comm *comm, const struct banyan_opts *opts,
                    struct bny_call_shape *shape, const void *send, void *recv, int *rc)
{
    return cached_run(comm, opts, &(struct bny_cached){ shape, send, recv }, 1, rc);
}

int bny_cached_pair(struct banyan_comm *comm, const struct banyan_opts *opts,
                    const struct bny_cached calls[2], int *rc)
{
    return cached_run(comm, opts, calls, 2, rc);
}
