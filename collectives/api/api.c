/* SPDX-License-Identifier: BSD-3-Clause */
/* The public collectives: arguments are checked (arguments.c) and put into a struct bny_call,
 * which then is run at once (blocking calls), queued (inside a group) or kept (persistent
 * requests). Chunks start their life here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "collectives/api/arguments.h"
#include "collectives/api/job.h"

/* ---- what they have in common ---- */

static int api_begin(struct bny_call *call, enum bny_collective which, struct banyan_comm *comm,
                     const struct banyan_opts *opts, const void *send, void *recv, size_t count,
                     enum banyan_dtype dtype)
{
    int rc = bny_call_begin(call, which, bny_collective_name(which), comm, opts);

    call->sendbuf = send;
    call->recvbuf = recv;
    call->count = count;
    return rc ? rc : bny_check_type(call, dtype);
}

/* Elements of all ranks' blocks: of counts, or (NULL) of `count` each. SIZE_MAX is refused by
 * bny_check_extent(). */
static size_t count_all(const struct banyan_comm *comm, const size_t *counts, size_t count)
{
    size_t all;

    if (counts)
        return bny_counts_sum(counts, comm->n);
    return __builtin_mul_overflow(count, (size_t)comm->n, &all) ? SIZE_MAX : all;
}

/* Either runs the call (req BNY_RUN) or makes a request of it. */
static int submit(struct banyan_comm *comm, struct bny_call *call, struct banyan_request **req)
{
    int rc = bny_check_extent(comm, call);

    if (rc)
        return rc;
    bny_call_even(call, comm);
    bny_call_set_shape(call, comm);
    return bny_submit(comm, call, 1, req);
}

/* The last checks, and submit. send and recv: NULL where the call ignores them. */
static int finish_call(struct bny_call *call, struct banyan_comm *comm,
                       const struct banyan_opts *opts, const void *send, size_t nsend,
                       const void *recv, size_t nrecv, struct banyan_request **req)
{
    int rc = bny_check_buffer(send, nsend, "sendbuf");

    call->takes_send |= nsend > 0;
    call->takes_recv |= nrecv > 0;
    if (rc == 0)
        rc = bny_check_buffer(recv, nrecv, "recvbuf");
    if (rc == 0)
        rc = bny_check_codec(call, comm, opts);
    return rc ? rc : submit(comm, call, req);
}

/* ---- collectives ---- */
/* Each is written once, as <name>_any, for both its forms. */

static int allreduce_any(const void *send, void *recv, size_t count, enum banyan_dtype dtype,
                         banyan_op op, struct banyan_comm *comm, const struct banyan_opts *opts,
                         struct banyan_request **req)
{
    struct bny_call call;
    int rc = api_begin(&call, BNY_ALLREDUCE, comm, opts, send, recv, count, dtype);

    if (rc == 0)
        rc = bny_check_op(&call, op);
    if (rc == 0)
        rc = bny_check_participants(&call, comm, opts);
    if (rc)
        return rc;
    return finish_call(&call, comm, opts, send,
                       bny_call_takes_part(&call, comm->rank) ? count : 0, recv, count, req);
}

static int reduce_any(const void *send, void *recv, size_t count, enum banyan_dtype dtype,
                      banyan_op op, int root, struct banyan_comm *comm,
                      const struct banyan_opts *opts, struct banyan_request **req)
{
    struct bny_call call;
    size_t nsend;
    int rc = api_begin(&call, BNY_REDUCE, comm, opts, send, recv, count, dtype);

    if (rc == 0)
        rc = bny_check_op(&call, op);
    call.root = root;
    if (rc == 0)
        rc = bny_check_root(&call, comm, "root");
    if (rc == 0)
        rc = bny_check_participants(&call, comm, opts);
    if (rc)
        return rc;
    nsend = bny_call_takes_part(&call, comm->rank) ? count : 0;
    return comm->rank == root ? finish_call(&call, comm, opts, send, nsend, recv, count, req)
                              : finish_call(&call, comm, opts, send, nsend, NULL, 0, req);
}

static int broadcast_any(void *buf, size_t count, enum banyan_dtype dtype, int root,
                         struct banyan_comm *comm, const struct banyan_opts *opts,
                         struct banyan_request **req)
{
    struct bny_call call;
    int rc = api_begin(&call, BNY_BROADCAST, comm, opts, buf, buf, count, dtype);

    call.root = root;
    call.takes_send = count > 0;
    if (rc == 0)
        rc = bny_check_root(&call, comm, "root");
    if (rc == 0)
        rc = bny_check_buffer(buf, count, "buf");
    return rc ? rc : finish_call(&call, comm, opts, NULL, 0, NULL, 0, req);
}

static int reduce_scatter_any(const void *send, void *recv, size_t count, const size_t *counts,
                              int vector, enum banyan_dtype dtype, banyan_op op,
                              struct banyan_comm *comm, const struct banyan_opts *opts,
                              struct banyan_request **req)
{
    struct bny_call call;
    size_t own, total;
    int rc = api_begin(&call, BNY_REDUCE_SCATTER, comm, opts, send, recv, count, dtype);

    if (rc == 0 && vector && !counts)
        rc = bny_fail(BANYAN_EINVAL, "counts: must not be NULL");
    if (rc == 0)
        rc = bny_check_op(&call, op);
    if (rc == 0 && vector)
        rc = bny_check_op_counts(&call, counts, comm->n);
    if (rc)
        return rc;
    call.vector = (uint8_t)vector;
    call.scounts = (size_t *)counts;
    own = vector ? counts[comm->rank] : count;
    total = count_all(comm, counts, count);
    call.takes_send = total > 0;
    call.takes_recv = own > 0;
    rc = bny_check_buffer(send, total, "sendbuf");
    if (rc == 0)
        rc = bny_check_buffer(recv, own, "recvbuf");
    if (rc == 0)
        rc = bny_check_codec(&call, comm, opts);
    if (rc)
        return rc;
    bny_call_order(&call, comm,
                   vector ? bny_counts_sum(counts, comm->rank) : count * (size_t)comm->rank,
                   own, total);
    return submit(comm, &call, req);
}

static int allgather_any(const void *send, void *recv, size_t count, const size_t *counts,
                         const size_t *displs, int vector, enum banyan_dtype dtype,
                         struct banyan_comm *comm, const struct banyan_opts *opts,
                         struct banyan_request **req)
{
    struct bny_call call;
    int rc = api_begin(&call, BNY_ALLGATHER, comm, opts, send, recv, count, dtype);

    if (rc == 0 && vector && !counts)
        rc = bny_fail(BANYAN_EINVAL, "counts: must not be NULL");
    if (rc)
        return rc;
    call.vector = (uint8_t)vector;
    call.rcounts = (size_t *)counts;
    call.rdispls = (size_t *)displs;
    return finish_call(&call, comm, opts, send, vector ? counts[comm->rank] : count, recv,
                       count_all(comm, counts, count), req);
}

/* Gather and scatter: the root has a block for each rank, every rank has one. */
static int rooted_any(enum bny_collective which, const void *send, void *recv, size_t count,
                      const size_t *counts, const size_t *displs, int vector,
                      enum banyan_dtype dtype, int root, struct banyan_comm *comm,
                      const struct banyan_opts *opts, struct banyan_request **req)
{
    int gathers = which == BNY_GATHER;
    const void *all = NULL;
    size_t total = 0;
    struct bny_call call;
    int rc = api_begin(&call, which, comm, opts, send, recv, count, dtype);

    call.root = root;
    if (rc == 0)
        rc = bny_check_root(&call, comm, "root");
    if (rc)
        return rc;
    call.vector = (uint8_t)vector;
    if (comm->rank == root) {
        if (vector && !counts)
            return bny_fail(BANYAN_EINVAL, "counts: must not be NULL at the root");
        if (vector && counts[root] != count)
            return bny_fail(
                BANYAN_EINVAL, "counts: root %d sends %zu elements to itself but expects %zu",
                root, gathers ? count : counts[root], gathers ? counts[root] : count);
        *(gathers ? &call.rcounts : &call.scounts) = (size_t *)counts;
        *(gathers ? &call.rdispls : &call.sdispls) = (size_t *)displs;
        all = gathers ? recv : send;
        total = count_all(comm, counts, count);
    }
    return gathers ? finish_call(&call, comm, opts, send, count, all, total, req)
                   : finish_call(&call, comm, opts, all, total, recv, count, req);
}

static int alltoall_any(const void *send, void *recv, size_t count, enum banyan_dtype dtype,
                        struct banyan_comm *comm, const struct banyan_opts *opts,
                        struct banyan_request **req)
{
    struct bny_call call;
    int rc = api_begin(&call, BNY_ALLTOALL, comm, opts, send, recv, count, dtype);
    size_t all = rc ? 0 : count_all(comm, NULL, count);

    return rc ? rc : finish_call(&call, comm, opts, send, all, recv, all, req);
}

static int alltoallv_any(const void *send, const size_t *scounts, const size_t *sdispls,
                         void *recv, const size_t *rcounts, const size_t *rdispls,
                         enum banyan_dtype dtype, struct banyan_comm *comm,
                         const struct banyan_opts *opts, struct banyan_request **req)
{
    struct bny_call call;
    int rc = api_begin(&call, BNY_ALLTOALL, comm, opts, send, recv, 0, dtype);

    if (rc == 0 && (!scounts || !rcounts))
        rc = bny_fail(BANYAN_EINVAL, "sendcounts, recvcounts: must not be NULL");
    if (rc == 0 && scounts[comm->rank] != rcounts[comm->rank])
        rc = bny_fail(BANYAN_EINVAL,
                      "counts: rank %d sends %zu elements to itself but expects %zu",
                      comm->rank, scounts[comm->rank], rcounts[comm->rank]);
    if (rc == 0 && send == recv && send)
        rc = bny_fail(BANYAN_EINVAL, "recvbuf: alltoallv does not work in place");
    if (rc)
        return rc;
    call.vector = 1;
    call.scounts = (size_t *)scounts;
    call.sdispls = (size_t *)sdispls;
    call.rcounts = (size_t *)rcounts;
    call.rdispls = (size_t *)rdispls;
    return finish_call(&call, comm, opts, send, bny_counts_sum(scounts, comm->n), recv,
                       bny_counts_sum(rcounts, comm->n), req);
}

static int barrier_any(struct banyan_comm *comm, const struct banyan_opts *opts,
                       struct banyan_request **req)
{
    struct bny_call call;
    int rc = bny_call_begin(&call, BNY_BARRIER, "barrier", comm, opts);

    call.dtype = BANYAN_U8;
    call.count = 1; /* a byte of scratch memory travels */
    if (rc == 0)
        rc = bny_check_codec(&call, comm, opts);
    return rc ? rc : submit(comm, &call, req);
}

static int scan_any(enum bny_collective which, const void *send, void *recv, size_t count,
                    enum banyan_dtype dtype, banyan_op op, struct banyan_comm *comm,
                    const struct banyan_opts *opts, struct banyan_request **req)
{
    struct bny_call call;
    int rc = api_begin(&call, which, comm, opts, send, recv, count, dtype);

    if (rc == 0)
        rc = bny_check_op(&call, op);
    if (rc == 0 && op == BANYAN_AVG)
        rc = bny_fail(BANYAN_EINVAL, "op: avg of a prefix is not defined; use sum");
    return rc ? rc : finish_call(&call, comm, opts, send, count, recv, count, req);
}

/* The rank whose message with this tag the next receive from peer would get; -1: none is here.
 */
static int next_source(struct banyan_comm *comm, int peer, uint32_t tag, size_t *bytes)
{
    const struct bny_msg *msg = NULL;
    int n = peer == BANYAN_ANY_SOURCE ? comm->n : 1, r = -1;

    bny_world_lock(comm->world); /* others make progress meanwhile */
    for (int i = 1; i <= n && !msg; i++) {
        r = peer == BANYAN_ANY_SOURCE ? (comm->any_latest + i) % n : peer;
        msg = bny_match_next(comm->match, r, tag);
    }
    if (msg && __builtin_mul_overflow(msg->hdr.sig.count,
                                      banyan_dtype_bytes((enum banyan_dtype)msg->hdr.sig.dtype),
                                      bytes))
        *bytes = SIZE_MAX; /* foreign input: no receive has so many */
    bny_world_unlock(comm->world);
    return msg ? r : -1;
}

/* Would a blocking receive from oneself find its message? */
static int has_sent_itself(struct banyan_comm *comm, uint32_t tag)
{
    size_t bytes;

    return next_source(comm, comm->rank, tag, &bytes) >= 0;
}

/* Shared by send and receive. */
static int begin_message(struct bny_call *call, int is_send, struct banyan_comm *comm,
                         const struct banyan_opts *opts)
{
    int rc = bny_call_begin(call, BNY_SENDRECV, is_send ? "send" : "recv", comm, opts);

    call->is_send = (uint8_t)is_send;
    bny_call_set_schedule(call, "auto");
    return rc;
}

/* And what has not; name: the buffer's. */
static int set_message(struct bny_call *call, struct banyan_comm *comm,
                       const struct banyan_opts *opts, void *buf, size_t count,
                       enum banyan_dtype dtype, int peer, const char *name)
{
    int rc = bny_check_type(call, dtype);

    call->sendbuf = call->recvbuf = buf;
    call->count = count;
    call->root = peer;
    call->takes_send = count > 0;
    if (rc == 0 && (call->is_send || peer != BANYAN_ANY_SOURCE))
        rc = bny_check_root(call, comm, "peer");
    if (rc == 0)
        rc = bny_check_buffer(buf, count, name);
    return rc ? rc : bny_check_codec(call, comm, opts);
}

static int sendrecv_any(void *buf, size_t count, enum banyan_dtype dtype, int peer, int is_send,
                        struct banyan_comm *comm, const struct banyan_opts *opts,
                        struct banyan_request **req)
{
    struct bny_call call;
    int rc = begin_message(&call, is_send, comm, opts);

    if (rc == 0)
        rc = set_message(&call, comm, opts, buf, count, dtype, peer, "buf");
    if (rc == 0 && peer == BANYAN_ANY_SOURCE && comm->n == 1)
        peer = 0;
    if (rc == 0 && peer == comm->rank && req == BNY_RUN && !bny_group_depth && !is_send &&
        !has_sent_itself(comm, call.tag))
        rc = bny_fail(
            BANYAN_EINVAL,
            "peer: a blocking receive from oneself with nothing sent would never return; put "
            "the pair into a group");
    return rc ? rc : submit(comm, &call, req);
}

/* ---- the public names ---- */

static struct bny_call_shape shape_of(enum bny_collective which, size_t count,
                                      enum banyan_dtype dtype, banyan_op op, int root)
{
    int is_known = op < BNY_OP_COUNT && (unsigned)dtype < BNY_DTYPE_COUNT;

    return (struct bny_call_shape){ .count = count,
                                    .root = root,
                                    .collective =
                                        (uint8_t)(is_known ? which : BNY_COLLECTIVE_COUNT),
                                    .dtype = (uint8_t)dtype,
                                    .op = (uint8_t)op };
}

int banyan_allreduce(const void *sendbuf, void *recvbuf, size_t count, enum banyan_dtype dtype,
                     banyan_op op, struct banyan_comm *comm, const struct banyan_opts *opts)
{
    struct bny_call_shape shape = shape_of(BNY_ALLREDUCE, count, dtype, op, -1);
    int rc;

    if (bny_cached_call(comm, opts, &shape, sendbuf, recvbuf, &rc))
        return rc;
    return allreduce_any(sendbuf, recvbuf, count, dtype, op, comm, opts, BNY_RUN);
}

int banyan_allreduce_init(const void *sendbuf, void *recvbuf, size_t count,
                          enum banyan_dtype dtype, banyan_op op, struct banyan_comm *comm,
                          const struct banyan_opts *opts, struct banyan_request **out)
{
    return allreduce_any(sendbuf, recvbuf, count, dtype, op, comm, opts, out);
}

int banyan_reduce(const void *sendbuf, void *recvbuf, size_t count, enum banyan_dtype dtype,
                  banyan_op op, int root, struct banyan_comm *comm,
                  const struct banyan_opts *opts)
{
    struct bny_call_shape shape = shape_of(BNY_REDUCE, count, dtype, op, root);
    int rc;

    if (bny_cached_call(comm, opts, &shape, sendbuf, recvbuf, &rc))
        return rc;
    return reduce_any(sendbuf, recvbuf, count, dtype, op, root, comm, opts, BNY_RUN);
}

int banyan_reduce_init(const void *sendbuf, void *recvbuf, size_t count,
                       enum banyan_dtype dtype, banyan_op op, int root,
                       struct banyan_comm *comm, const struct banyan_opts *opts,
                       struct banyan_request **out)
{
    return reduce_any(sendbuf, recvbuf, count, dtype, op, root, comm, opts, out);
}

int banyan_broadcast(void *buf, size_t count, enum banyan_dtype dtype, int root,
                     struct banyan_comm *comm, const struct banyan_opts *opts)
{
    struct bny_call_shape shape = shape_of(BNY_BROADCAST, count, dtype, 0, root);
    int rc;

    if (bny_cached_call(comm, opts, &shape, buf, buf, &rc))
        return rc;
    return broadcast_any(buf, count, dtype, root, comm, opts, BNY_RUN);
}

int banyan_broadcast_init(void *buf, size_t count, enum banyan_dtype dtype, int root,
                          struct banyan_comm *comm, const struct banyan_opts *opts,
                          struct banyan_request **out)
{
    return broadcast_any(buf, count, dtype, root, comm, opts, out);
}

int banyan_reduce_scatter(const void *sendbuf, void *recvbuf, size_t recvcount,
                          enum banyan_dtype dtype, banyan_op op, struct banyan_comm *comm,
                          const struct banyan_opts *opts)
{
    struct bny_call_shape shape = shape_of(BNY_REDUCE_SCATTER, recvcount, dtype, op, -1);
    int rc;

    if (bny_cached_call(comm, opts, &shape, sendbuf, recvbuf, &rc))
        return rc;
    return reduce_scatter_any(sendbuf, recvbuf, recvcount, NULL, 0, dtype, op, comm, opts,
                              BNY_RUN);
}

int banyan_reduce_scatter_init(const void *sendbuf, void *recvbuf, size_t recvcount,
                               enum banyan_dtype dtype, banyan_op op, struct banyan_comm *comm,
                               const struct banyan_opts *opts, struct banyan_request **out)
{
    return reduce_scatter_any(sendbuf, recvbuf, recvcount, NULL, 0, dtype, op, comm, opts, out);
}

int banyan_reduce_scatterv(const void *sendbuf, void *recvbuf, const size_t *counts,
                           enum banyan_dtype dtype, banyan_op op, struct banyan_comm *comm,
                           const struct banyan_opts *opts)
{
    return reduce_scatter_any(sendbuf, recvbuf, 0, counts, 1, dtype, op, comm, opts, BNY_RUN);
}

int banyan_reduce_scatterv_init(const void *sendbuf, void *recvbuf, const size_t *counts,
                                enum banyan_dtype dtype, banyan_op op, struct banyan_comm *comm,
                                const struct banyan_opts *opts, struct banyan_request **out)
{
    return reduce_scatter_any(sendbuf, recvbuf, 0, counts, 1, dtype, op, comm, opts, out);
}

int banyan_allgather(const void *sendbuf, void *recvbuf, size_t sendcount,
                     enum banyan_dtype dtype, struct banyan_comm *comm,
                     const struct banyan_opts *opts)
{
    struct bny_call_shape shape = shape_of(BNY_ALLGATHER, sendcount, dtype, 0, -1);
    int rc;

    if (bny_cached_call(comm, opts, &shape, sendbuf, recvbuf, &rc))
        return rc;
    return allgather_any(sendbuf, recvbuf, sendcount, NULL, NULL, 0, dtype, comm, opts,
                         BNY_RUN);
}

int banyan_allgather_init(const void *sendbuf, void *recvbuf, size_t sendcount,
                          enum banyan_dtype dtype, struct banyan_comm *comm,
                          const struct banyan_opts *opts, struct banyan_request **out)
{
    return allgather_any(sendbuf, recvbuf, sendcount, NULL, NULL, 0, dtype, comm, opts, out);
}

int banyan_allgatherv(const void *sendbuf, void *recvbuf, const size_t *counts,
                      const size_t *displs, enum banyan_dtype dtype, struct banyan_comm *comm,
                      const struct banyan_opts *opts)
{
    return allgather_any(sendbuf, recvbuf, 0, counts, displs, 1, dtype, comm, opts, BNY_RUN);
}

int banyan_allgatherv_init(const void *sendbuf, void *recvbuf, const size_t *counts,
                           const size_t *displs, enum banyan_dtype dtype,
                           struct banyan_comm *comm, const struct banyan_opts *opts,
                           struct banyan_request **out)
{
    return allgather_any(sendbuf, recvbuf, 0, counts, displs, 1, dtype, comm, opts, out);
}

int banyan_gather(const void *sendbuf, void *recvbuf, size_t sendcount, enum banyan_dtype dtype,
                  int root, struct banyan_comm *comm, const struct banyan_opts *opts)
{
    struct bny_call_shape shape = shape_of(BNY_GATHER, sendcount, dtype, 0, root);
    int rc;

    if (bny_cached_call(comm, opts, &shape, sendbuf, recvbuf, &rc))
        return rc;
    return rooted_any(BNY_GATHER, sendbuf, recvbuf, sendcount, NULL, NULL, 0, dtype, root, comm,
                      opts, BNY_RUN);
}

int banyan_gather_init(const void *sendbuf, void *recvbuf, size_t sendcount,
                       enum banyan_dtype dtype, int root, struct banyan_comm *comm,
                       const struct banyan_opts *opts, struct banyan_request **out)
{
    return rooted_any(BNY_GATHER, sendbuf, recvbuf, sendcount, NULL, NULL, 0, dtype, root, comm,
                      opts, out);
}

int banyan_gatherv(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *counts,
                   const size_t *displs, enum banyan_dtype dtype, int root,
                   struct banyan_comm *comm, const struct banyan_opts *opts)
{
    return rooted_any(BNY_GATHER, sendbuf, recvbuf, sendcount, counts, displs, 1, dtype, root,
                      comm, opts, BNY_RUN);
}

int banyan_gatherv_init(const void *sendbuf, size_t sendcount, void *recvbuf,
                        const size_t *counts, const size_t *displs, enum banyan_dtype dtype,
                        int root, struct banyan_comm *comm, const struct banyan_opts *opts,
                        struct banyan_request **out)
{
    return rooted_any(BNY_GATHER, sendbuf, recvbuf, sendcount, counts, displs, 1, dtype, root,
                      comm, opts, out);
}

int banyan_scatter(const void *sendbuf, void *recvbuf, size_t recvcount,
                   enum banyan_dtype dtype, int root, struct banyan_comm *comm,
                   const struct banyan_opts *opts)
{
    struct bny_call_shape shape = shape_of(BNY_SCATTER, recvcount, dtype, 0, root);
    int rc;

    if (bny_cached_call(comm, opts, &shape, sendbuf, recvbuf, &rc))
        return rc;
    return rooted_any(BNY_SCATTER, sendbuf, recvbuf, recvcount, NULL, NULL, 0, dtype, root,
                      comm, opts, BNY_RUN);
}

int banyan_scatter_init(const void *sendbuf, void *recvbuf, size_t recvcount,
                        enum banyan_dtype dtype, int root, struct banyan_comm *comm,
                        const struct banyan_opts *opts, struct banyan_request **out)
{
    return rooted_any(BNY_SCATTER, sendbuf, recvbuf, recvcount, NULL, NULL, 0, dtype, root,
                      comm, opts, out);
}

int banyan_scatterv(const void *sendbuf, const size_t *counts, const size_t *displs,
                    void *recvbuf, size_t recvcount, enum banyan_dtype dtype, int root,
                    struct banyan_comm *comm, const struct banyan_opts *opts)
{
    return rooted_any(BNY_SCATTER, sendbuf, recvbuf, recvcount, counts, displs, 1, dtype, root,
                      comm, opts, BNY_RUN);
}

int banyan_scatterv_init(const void *sendbuf, const size_t *counts, const size_t *displs,
                         void *recvbuf, size_t recvcount, enum banyan_dtype dtype, int root,
                         struct banyan_comm *comm, const struct banyan_opts *opts,
                         struct banyan_request **out)
{
    return rooted_any(BNY_SCATTER, sendbuf, recvbuf, recvcount, counts, displs, 1, dtype, root,
                      comm, opts, out);
}

int banyan_alltoall(const void *sendbuf, void *recvbuf, size_t count, enum banyan_dtype dtype,
                    struct banyan_comm *comm, const struct banyan_opts *opts)
{
    struct bny_call_shape shape = shape_of(BNY_ALLTOALL, count, dtype, 0, -1);
    int rc;

    if (bny_cached_call(comm, opts, &shape, sendbuf, recvbuf, &rc))
        return rc;
    return alltoall_any(sendbuf, recvbuf, count, dtype, comm, opts, BNY_RUN);
}

int banyan_alltoall_init(const void *sendbuf, void *recvbuf, size_t count,
                         enum banyan_dtype dtype, struct banyan_comm *comm,
                         const struct banyan_opts *opts, struct banyan_request **out)
{
    return alltoall_any(sendbuf, recvbuf, count, dtype, comm, opts, out);
}

int banyan_alltoallv(const void *sendbuf, const size_t *sendcounts, const size_t *sdispls,
                     void *recvbuf, const size_t *recvcounts, const size_t *rdispls,
                     enum banyan_dtype dtype, struct banyan_comm *comm,
                     const struct banyan_opts *opts)
{
    return alltoallv_any(sendbuf, sendcounts, sdispls, recvbuf, recvcounts, rdispls, dtype,
                         comm, opts, BNY_RUN);
}

int banyan_alltoallv_init(const void *sendbuf, const size_t *sendcounts, const size_t *sdispls,
                          void *recvbuf, const size_t *recvcounts, const size_t *rdispls,
                          enum banyan_dtype dtype, struct banyan_comm *comm,
                          const struct banyan_opts *opts, struct banyan_request **out)
{
    return alltoallv_any(sendbuf, sendcounts, sdispls, recvbuf, recvcounts, rdispls, dtype,
                         comm, opts, out);
}

int banyan_barrier(struct banyan_comm *comm, const struct banyan_opts *opts)
{
    struct bny_call_shape shape = shape_of(BNY_BARRIER, 1, BANYAN_U8, 0, -1);
    int rc;

    if (bny_cached_call(comm, opts, &shape, NULL, NULL, &rc))
        return rc;
    return barrier_any(comm, opts, BNY_RUN);
}

int banyan_barrier_init(struct banyan_comm *comm, const struct banyan_opts *opts,
                        struct banyan_request **out)
{
    return barrier_any(comm, opts, out);
}

int banyan_scan(const void *sendbuf, void *recvbuf, size_t count, enum banyan_dtype dtype,
                banyan_op op, struct banyan_comm *comm, const struct banyan_opts *opts)
{
    return scan_any(BNY_SCAN, sendbuf, recvbuf, count, dtype, op, comm, opts, BNY_RUN);
}

int banyan_scan_init(const void *sendbuf, void *recvbuf, size_t count, enum banyan_dtype dtype,
                     banyan_op op, struct banyan_comm *comm, const struct banyan_opts *opts,
                     struct banyan_request **out)
{
    return scan_any(BNY_SCAN, sendbuf, recvbuf, count, dtype, op, comm, opts, out);
}

int banyan_exscan(const void *sendbuf, void *recvbuf, size_t count, enum banyan_dtype dtype,
                  banyan_op op, struct banyan_comm *comm, const struct banyan_opts *opts)
{
    return scan_any(BNY_EXSCAN, sendbuf, recvbuf, count, dtype, op, comm, opts, BNY_RUN);
}

int banyan_exscan_init(const void *sendbuf, void *recvbuf, size_t count,
                       enum banyan_dtype dtype, banyan_op op, struct banyan_comm *comm,
                       const struct banyan_opts *opts, struct banyan_request **out)
{
    return scan_any(BNY_EXSCAN, sendbuf, recvbuf, count, dtype, op, comm, opts, out);
}

int banyan_send(const void *buf, size_t count, enum banyan_dtype dtype, int peer,
                struct banyan_comm *comm, const struct banyan_opts *opts)
{
    struct bny_call_shape shape = shape_of(BNY_SENDRECV, count, dtype, 0, peer);
    int rc;

    shape.is_send = 1;
    if (bny_cached_call(comm, opts, &shape, buf, (void *)buf, &rc))
        return rc;
    return sendrecv_any((void *)buf, count, dtype, peer, 1, comm, opts, BNY_RUN);
}

int banyan_send_init(const void *buf, size_t count, enum banyan_dtype dtype, int peer,
                     struct banyan_comm *comm, const struct banyan_opts *opts,
                     struct banyan_request **out)
{
    return sendrecv_any((void *)buf, count, dtype, peer, 1, comm, opts, out);
}

int banyan_recv(void *buf, size_t count, enum banyan_dtype dtype, int peer,
                struct banyan_comm *comm, const struct banyan_opts *opts)
{
    struct bny_call_shape shape = shape_of(BNY_SENDRECV, count, dtype, 0, peer);
    int rc;

    if (bny_cached_call(comm, opts, &shape, buf, buf, &rc))
        return rc;
    return sendrecv_any(buf, count, dtype, peer, 0, comm, opts, BNY_RUN);
}

int banyan_probe(struct banyan_comm *comm, int peer, uint32_t tag, int *source, size_t *bytes)
{
    struct bny_call call = { .root = peer };
    int rc = banyan_progress(comm), from;
    size_t len = 0;

    if (rc < 0)
        return rc;
    rc = peer == BANYAN_ANY_SOURCE ? 0 : bny_check_root(&call, comm, "peer");
    if (rc == 0)
        rc = bny_comm_error(comm);
    if (rc)
        return rc;
    from = next_source(comm, peer, tag, &len);
    if (from < 0)
        return 0;
    if (source)
        *source = from;
    if (bytes)
        *bytes = len;
    return 1;
}

int banyan_sendrecv(const void *sendbuf, size_t sendcount, enum banyan_dtype sendtype, int to,
                    void *recvbuf, size_t recvcount, enum banyan_dtype recvtype, int from,
                    struct banyan_comm *comm, const struct banyan_opts *opts)
{
    struct bny_call_shape there = shape_of(BNY_SENDRECV, sendcount, sendtype, 0, to);
    struct bny_call_shape here = shape_of(BNY_SENDRECV, recvcount, recvtype, 0, from);
    const struct bny_cached cached[] = { { &there, sendbuf, (void *)sendbuf },
                                         { &here, recvbuf, recvbuf } };
    struct bny_call calls[2];
    int rc;

    there.is_send = 1;
    if (bny_cached_pair(comm, opts, cached, &rc))
        return rc;
    rc = begin_message(&calls[0], 1, comm, opts);
    if (rc)
        return rc;
    calls[1] = calls[0];
    calls[1].is_send = 0;
    rc =
        set_message(&calls[0], comm, opts, (void *)sendbuf, sendcount, sendtype, to, "sendbuf");
    if (rc == 0)
        rc = set_message(&calls[1], comm, opts, recvbuf, recvcount, recvtype, from, "recvbuf");
    for (int i = 0; i < 2 && rc == 0; i++)
        rc = bny_check_extent(comm, &calls[i]);
    if (rc)
        return rc;
    for (int i = 0; i < 2; i++)
        bny_call_set_shape(&calls[i], comm);
    return bny_submit(comm, calls, 2, BNY_RUN);
}

int banyan_recv_init(void *buf, size_t count, enum banyan_dtype dtype, int peer,
                     struct banyan_comm *comm, const struct banyan_opts *opts,
                     struct banyan_request **out)
{
    return sendrecv_any(buf, count, dtype, peer, 0, comm, opts, out);
}
