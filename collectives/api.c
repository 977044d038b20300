/* SPDX-License-Identifier: BSD-3-Clause */
/* The public collectives: arguments are checked and put into a struct bny_call, which then is run at once (blocking
 * calls), queued (inside a group) or kept (persistent requests). Chunks start their life here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/internal.h"

/* ---- checks --------------------------------------------------------------------------------------------------- */

/* What every call begins with. Returns 0 or an error. */
static int begin(struct bny_call *call, enum bny_collective collective, struct banyan_comm *comm,
                 const struct banyan_opts *opts)
{
    memset(call, 0, offsetof(struct bny_call, schedule));
    call->collective = (uint8_t)collective;
    call->root = -1;
    call->redop.commutative = 1;
    call->timeout_s = -1;
    memcpy(call->schedule, "auto", 5);
    call->chunk_bytes = 0;
    if (!comm)
        return bny_fail(BANYAN_EINVAL, "%s: comm must not be NULL", bny_collective_name(collective));
    if (comm->world->generation != bny_process_generation())
        return bny_fail(BANYAN_EFORK, "%s: this process was forked from the one that made the communicator; make "
                        "one of its own here", bny_collective_name(collective));
    if (comm->init)
        return bny_fail(BANYAN_EINVAL, "%s: the communicator is still joining; call banyan_comm_init_test until it is "
                        "done", bny_collective_name(collective));
    call->deterministic = comm->deterministic;
    call->codec = comm->codec_ops;
    call->state = NULL;
    call->rows = call->cols = 0;
    if (!opts)
        return 0;
    if (opts->size < offsetof(struct banyan_opts, tag) || opts->size > 4096)
        return bny_fail(BANYAN_EINVAL, "opts: size is %zu; start from BANYAN_OPTS_INIT", opts->size);
    if (opts->schedule) {
        if (strcmp(opts->schedule, "auto") != 0 && !bny_schedule_known(opts->schedule))
            return bny_fail(BANYAN_EINVAL, "schedule: \"%.32s\" is unknown; there are: auto, %s", opts->schedule,
                            bny_schedule_list());
        snprintf(call->schedule, sizeof call->schedule, "%s", opts->schedule);
    }
    if (opts->codec) {
        int rc = bny_codec_parse(&call->codec, opts->codec);
        if (rc)
            return rc;
        if (call->codec->ops->family == BNY_CODEC_RAW)
            call->codec = NULL;
    }
    call->timeout_s = opts->timeout_s;
    call->tag = opts->tag;
    if (opts->size > offsetof(struct banyan_opts, deterministic) && opts->deterministic >= 0)
        call->deterministic = opts->deterministic;
    if (opts->size > offsetof(struct banyan_opts, chunk_bytes))
        call->chunk_bytes = opts->chunk_bytes;
    if (opts->size > offsetof(struct banyan_opts, codec_state))
        call->state = opts->codec_state;
    return 0;
}

static int check_type(struct bny_call *call, enum banyan_dtype dtype)
{
    if ((unsigned)dtype >= BANYAN_DTYPE_COUNT)
        return bny_fail(BANYAN_EINVAL, "dtype: %d is not a data type", (int)dtype);
    call->dtype = dtype;
    return 0;
}

static int check_op(struct bny_call *call, banyan_op op)
{
    int rc = bny_redop_get(&call->redop, op, call->dtype);

    if (rc)
        return rc;
    if (call->redop.elem_bytes && call->count % call->redop.elem_bytes)
        return bny_fail(BANYAN_EINVAL, "count: %zu bytes is not a multiple of the operation's element of %zu bytes",
                        call->count, call->redop.elem_bytes);
    return 0;
}

static int check_root(const struct bny_call *call, const struct banyan_comm *comm, const char *what)
{
    if (call->root < 0 || call->root >= comm->n)
        return bny_fail(BANYAN_EINVAL, "%s: rank %d is not in [0, %d)", what, call->root, comm->n);
    return 0;
}

static int check_buffer(const void *ptr, size_t elems, const char *what)
{
    if (!ptr && elems)
        return bny_fail(BANYAN_EINVAL, "%s: must not be NULL for %zu elements", what, elems);
    return bny_device_check(ptr, what);
}

/* SIZE_MAX when the sum does not fit. */
static size_t sum_of(const size_t *counts, int n)
{
    size_t total = 0;

    for (int r = 0; r < n; r++)
        if (__builtin_add_overflow(total, counts[r], &total))
            return SIZE_MAX;
    return total;
}

/* Byte offsets must fit: nothing behind this checks them again. */
static int check_extent(const struct banyan_comm *comm, const struct bny_call *call)
{
    size_t most = PTRDIFF_MAX / banyan_dtype_bytes(call->dtype);
    const size_t *const counts[2] = { call->scounts, call->rcounts };

    if (call->count > most / (size_t)comm->n)
        return bny_fail(BANYAN_EINVAL, "count: %zu elements of %s for %d ranks are more than memory can hold", call->count,
                        banyan_dtype_name(call->dtype), comm->n);
    for (int i = 0; i < 2; i++)
        if (call->vector && counts[i] && sum_of(counts[i], comm->n) > most)
            return bny_fail(BANYAN_EINVAL, "counts: their sum is more than memory can hold");
    return 0;
}

static int is_sum(const struct bny_call *call)
{
    return !call->redop.user && (call->redop.kind == BANYAN_SUM || call->redop.kind == BANYAN_AVG);
}

/* Can the codec do this call? */
static int codec_fits(const struct bny_call *call)
{
    const struct bny_codec_ops *ops = call->codec->ops;

    if (ops->family == BNY_CODEC_EXACT)
        return call->collective != BNY_BARRIER && call->collective != BNY_SENDRECV &&
               ((ops->dtypes ? ops->dtypes : 1u << BANYAN_F32) >> call->dtype & 1);
    if (call->dtype != BANYAN_F32 || call->deterministic || call->vector)
        return 0;
    switch (call->collective) {
    case BNY_ALLREDUCE: return is_sum(call);
    case BNY_REDUCE:
    case BNY_REDUCE_SCATTER: return is_sum(call) && ops->family != BNY_CODEC_LINEAR;
    case BNY_BROADCAST:
    case BNY_ALLGATHER: return ops->family != BNY_CODEC_LINEAR;
    default: return 0;
    }
}

/* opts.shape: its first dimension are the rows. Without: as square as the count allows. */
static int matrix_of(struct bny_call *call, const struct banyan_opts *opts)
{
    int given = opts && opts->size > offsetof(struct banyan_opts, ndim) && opts->shape && opts->ndim > 0;
    int64_t count = (int64_t)call->count, rows = 1, all = 1;

    for (int i = 0; given && i < opts->ndim; i++)
        if (opts->shape[i] < 0 || __builtin_mul_overflow(all, opts->shape[i], &all))
            all = -1;
    if (given && all != count)
        return bny_fail(BANYAN_EINVAL, "shape: its %d dimensions make no tensor of %zu elements", opts->ndim,
                        call->count);
    if (given)
        rows = opts->shape[0];
    for (int64_t r = 2; !given && r * r <= count; r++)
        if (count % r == 0)
            rows = r;
    call->rows = rows;
    call->cols = rows ? count / rows : 0;
    return 0;
}

/* A codec that the call asked for must fit it; the communicator's default steps aside. */
static int check_codec(struct bny_call *call, const struct banyan_comm *comm, const struct banyan_opts *opts)
{
    int all = call->collective == BNY_REDUCE_SCATTER || call->collective == BNY_ALLGATHER;
    size_t count = all ? call->count * (size_t)comm->n : call->count;

    if (!call->codec)
        return 0;
    if (!codec_fits(call)) {
        if (opts && opts->codec && call->codec->ops->family == BNY_CODEC_EXACT)
            return bny_fail(BANYAN_ENOTSUP, "codec: %s does not take %s here; use none for this call",
                            call->codec->spec, banyan_dtype_name(call->dtype));
        if (opts && opts->codec)
            return bny_fail(BANYAN_ENOTSUP, "codec: %s encodes f32 data of allreduce%s; use none for this call",
                            call->codec->spec, call->codec->ops->family == BNY_CODEC_LINEAR ? " (sum, avg)"
                            : ", reduce, reduce_scatter (sum, avg), broadcast and allgather");
        call->codec = NULL;
    }
    if (call->codec && call->state && call->state->count != count)
        return bny_fail(BANYAN_EINVAL, "codec_state: made for %zu elements, this call has %zu", call->state->count,
                        count);
    return call->codec && call->codec->ops->linear ? matrix_of(call, opts) : 0;
}

/* Either runs the call (req BNY_RUN) or makes a request of it. */
static int submit(struct banyan_comm *comm, const struct bny_call *call, struct banyan_request **req)
{
    int rc = check_extent(comm, call);

    return rc ? rc : bny_submit(comm, call, req);
}

/* ---- collectives ----------------------------------------------------------------------------------------------------- */
/* Each is written once, as <name>_any, for both its forms. */

static int reduction(struct bny_call *call, const void *send, void *recv, size_t count,
                     enum banyan_dtype dtype, banyan_op op)
{
    int rc = check_type(call, dtype);

    call->sendbuf = send;
    call->recvbuf = recv;
    call->count = count;
    return rc ? rc : check_op(call, op);
}

static int allreduce_any(const void *send, void *recv, size_t count, enum banyan_dtype dtype,
                         banyan_op op, struct banyan_comm *comm, const struct banyan_opts *opts,
                         struct banyan_request **req)
{
    struct bny_call call;
    int rc = begin(&call, BNY_ALLREDUCE, comm, opts);

    if (rc == 0)
        rc = reduction(&call, send, recv, count, dtype, op);
    if (rc == 0)
        rc = check_buffer(send, count, "sendbuf");
    if (rc == 0)
        rc = check_buffer(recv, count, "recvbuf");
    if (rc == 0)
        rc = check_codec(&call, comm, opts);
    return rc ? rc : submit(comm, &call, req);
}

static int reduce_any(const void *send, void *recv, size_t count, enum banyan_dtype dtype,
                      banyan_op op, int root, struct banyan_comm *comm,
                      const struct banyan_opts *opts, struct banyan_request **req)
{
    struct bny_call call;
    int rc = begin(&call, BNY_REDUCE, comm, opts);

    if (rc == 0)
        rc = reduction(&call, send, recv, count, dtype, op);
    call.root = root;
    if (rc == 0)
        rc = check_root(&call, comm, "root");
    if (rc == 0)
        rc = check_buffer(send, count, "sendbuf");
    if (rc == 0 && comm->rank == root)
        rc = check_buffer(recv, count, "recvbuf");
    if (rc == 0)
        rc = check_codec(&call, comm, opts);
    return rc ? rc : submit(comm, &call, req);
}

static int broadcast_any(void *buf, size_t count, enum banyan_dtype dtype, int root,
                         struct banyan_comm *comm, const struct banyan_opts *opts,
                         struct banyan_request **req)
{
    struct bny_call call;
    int rc = begin(&call, BNY_BROADCAST, comm, opts);

    if (rc == 0)
        rc = check_type(&call, dtype);
    call.sendbuf = call.recvbuf = buf;
    call.count = count;
    call.root = root;
    if (rc == 0)
        rc = check_root(&call, comm, "root");
    if (rc == 0)
        rc = check_buffer(buf, count, "buf");
    if (rc == 0)
        rc = check_codec(&call, comm, opts);
    return rc ? rc : submit(comm, &call, req);
}

static int reduce_scatter_any(const void *send, void *recv, size_t count, const size_t *counts,
                              int vector, enum banyan_dtype dtype, banyan_op op,
                              struct banyan_comm *comm, const struct banyan_opts *opts,
                              struct banyan_request **req)
{
    struct bny_call call;
    size_t own, total;
    int rc = begin(&call, BNY_REDUCE_SCATTER, comm, opts);

    if (rc == 0 && vector && !counts)
        rc = bny_fail(BANYAN_EINVAL, "counts: must not be NULL");
    if (rc == 0)
        rc = reduction(&call, send, recv, count, dtype, op);
    if (rc)
        return rc;
    call.vector = (uint8_t)vector;
    call.scounts = (size_t *)counts;
    own = vector ? counts[comm->rank] : count;
    total = vector ? sum_of(counts, comm->n) : count;
    if (!vector && __builtin_mul_overflow(count, (size_t)comm->n, &total))
        total = SIZE_MAX; /* refused by check_extent */
    rc = check_buffer(send, total, "sendbuf");
    if (rc == 0)
        rc = check_buffer(recv, own, "recvbuf");
    if (rc == 0)
        rc = check_codec(&call, comm, opts);
    if (rc == 0 && comm->n > 1 && (!call.redop.commutative || call.deterministic)) {
        call.collective = BNY_ALLREDUCE; /* additions in rank order: no scattered schedule has that */
        call.via_allreduce = 1;
        call.own_at = vector ? sum_of(counts, comm->rank) : count * (size_t)comm->rank;
        call.own_count = own;
        call.count = total;
        call.vector = 0;
        call.scounts = NULL;
        memcpy(call.schedule, "auto", 5);
    }
    return rc ? rc : submit(comm, &call, req);
}

static int allgather_any(const void *send, void *recv, size_t count, const size_t *counts,
                         const size_t *displs, int vector, enum banyan_dtype dtype,
                         struct banyan_comm *comm, const struct banyan_opts *opts,
                         struct banyan_request **req)
{
    struct bny_call call;
    int rc = begin(&call, BNY_ALLGATHER, comm, opts);

    if (rc == 0 && vector && !counts)
        rc = bny_fail(BANYAN_EINVAL, "counts: must not be NULL");
    if (rc == 0)
        rc = check_type(&call, dtype);
    if (rc)
        return rc;
    call.sendbuf = send;
    call.recvbuf = recv;
    call.count = count;
    call.vector = (uint8_t)vector;
    call.rcounts = (size_t *)counts;
    call.rdispls = (size_t *)displs;
    rc = check_buffer(send, vector ? counts[comm->rank] : count, "sendbuf");
    if (rc == 0)
        rc = check_buffer(recv, vector ? sum_of(counts, comm->n) : count, "recvbuf");
    if (rc == 0)
        rc = check_codec(&call, comm, opts);
    return rc ? rc : submit(comm, &call, req);
}

static int gather_any(const void *send, size_t count, void *recv, const size_t *counts,
                      const size_t *displs, int vector, enum banyan_dtype dtype, int root,
                      struct banyan_comm *comm, const struct banyan_opts *opts,
                      struct banyan_request **req)
{
    struct bny_call call;
    int rc = begin(&call, BNY_GATHER, comm, opts);

    if (rc == 0)
        rc = check_type(&call, dtype);
    call.root = root;
    if (rc == 0)
        rc = check_root(&call, comm, "root");
    if (rc)
        return rc;
    call.sendbuf = send;
    call.recvbuf = recv;
    call.count = count;
    call.vector = (uint8_t)vector;
    if (comm->rank == root) {
        if (vector && !counts)
            return bny_fail(BANYAN_EINVAL, "counts: must not be NULL at the root");
        if (vector && counts[root] != count)
            return bny_fail(BANYAN_EINVAL, "counts: root %d sends %zu elements to itself but expects %zu", root,
                            count, counts[root]);
        call.rcounts = (size_t *)counts;
        call.rdispls = (size_t *)displs;
        rc = check_buffer(recv, vector ? sum_of(counts, comm->n) : count, "recvbuf");
        if (rc == 0 && !vector && send == (char *)recv + (size_t)root * count * banyan_dtype_bytes(dtype))
            call.sendbuf = send;
    }
    if (rc == 0)
        rc = check_buffer(send, count, "sendbuf");
    if (rc == 0)
        rc = check_codec(&call, comm, opts);
    return rc ? rc : submit(comm, &call, req);
}

static int scatter_any(const void *send, const size_t *counts, const size_t *displs, int vector,
                       void *recv, size_t count, enum banyan_dtype dtype, int root,
                       struct banyan_comm *comm, const struct banyan_opts *opts,
                       struct banyan_request **req)
{
    struct bny_call call;
    int rc = begin(&call, BNY_SCATTER, comm, opts);

    if (rc == 0)
        rc = check_type(&call, dtype);
    call.root = root;
    if (rc == 0)
        rc = check_root(&call, comm, "root");
    if (rc)
        return rc;
    call.sendbuf = send;
    call.recvbuf = recv;
    call.count = count;
    call.vector = (uint8_t)vector;
    if (comm->rank == root) {
        if (vector && !counts)
            return bny_fail(BANYAN_EINVAL, "counts: must not be NULL at the root");
        if (vector && counts[root] != count)
            return bny_fail(BANYAN_EINVAL, "counts: root %d sends %zu elements to itself but expects %zu", root,
                            counts[root], count);
        call.scounts = (size_t *)counts;
        call.sdispls = (size_t *)displs;
        rc = check_buffer(send, vector ? sum_of(counts, comm->n) : count, "sendbuf");
    }
    if (rc == 0)
        rc = check_buffer(recv, count, "recvbuf");
    if (rc == 0)
        rc = check_codec(&call, comm, opts);
    return rc ? rc : submit(comm, &call, req);
}

static int alltoall_any(const void *send, void *recv, size_t count, enum banyan_dtype dtype,
                        struct banyan_comm *comm, const struct banyan_opts *opts,
                        struct banyan_request **req)
{
    struct bny_call call;
    int rc = begin(&call, BNY_ALLTOALL, comm, opts);

    if (rc == 0)
        rc = check_type(&call, dtype);
    call.sendbuf = send;
    call.recvbuf = recv;
    call.count = count;
    if (rc == 0)
        rc = check_buffer(send, count, "sendbuf");
    if (rc == 0)
        rc = check_buffer(recv, count, "recvbuf");
    if (rc == 0)
        rc = check_codec(&call, comm, opts);
    return rc ? rc : submit(comm, &call, req);
}

static int alltoallv_any(const void *send, const size_t *scounts, const size_t *sdispls, void *recv,
                         const size_t *rcounts, const size_t *rdispls, enum banyan_dtype dtype,
                         struct banyan_comm *comm, const struct banyan_opts *opts,
                         struct banyan_request **req)
{
    struct bny_call call;
    int rc = begin(&call, BNY_ALLTOALL, comm, opts);

    if (rc == 0 && (!scounts || !rcounts))
        rc = bny_fail(BANYAN_EINVAL, "sendcounts, recvcounts: must not be NULL");
    if (rc == 0)
        rc = check_type(&call, dtype);
    if (rc == 0 && scounts[comm->rank] != rcounts[comm->rank])
        rc = bny_fail(BANYAN_EINVAL, "counts: rank %d sends %zu elements to itself but expects %zu", comm->rank,
                      scounts[comm->rank], rcounts[comm->rank]);
    if (rc)
        return rc;
    call.vector = 1;
    call.sendbuf = send;
    call.recvbuf = recv;
    call.scounts = (size_t *)scounts;
    call.sdispls = (size_t *)sdispls;
    call.rcounts = (size_t *)rcounts;
    call.rdispls = (size_t *)rdispls;
    rc = check_buffer(send, sum_of(scounts, comm->n), "sendbuf");
    if (rc == 0)
        rc = check_buffer(recv, sum_of(rcounts, comm->n), "recvbuf");
    if (rc == 0 && send == recv && send)
        rc = bny_fail(BANYAN_EINVAL, "recvbuf: alltoallv does not work in place");
    if (rc == 0)
        rc = check_codec(&call, comm, opts);
    return rc ? rc : submit(comm, &call, req);
}

static int barrier_any(struct banyan_comm *comm, const struct banyan_opts *opts,
                       struct banyan_request **req)
{
    struct bny_call call;
    int rc = begin(&call, BNY_BARRIER, comm, opts);

    call.dtype = BANYAN_U8;
    call.count = 1; /* a byte of scratch memory travels */
    call.codec = NULL;
    return rc ? rc : submit(comm, &call, req);
}

static int scan_any(enum bny_collective which, const void *send, void *recv, size_t count,
                    enum banyan_dtype dtype, banyan_op op, struct banyan_comm *comm,
                    const struct banyan_opts *opts, struct banyan_request **req)
{
    struct bny_call call;
    int rc = begin(&call, which, comm, opts);

    if (rc == 0)
        rc = reduction(&call, send, recv, count, dtype, op);
    if (rc == 0 && op == BANYAN_AVG)
        rc = bny_fail(BANYAN_EINVAL, "op: avg of a prefix is not defined; use sum");
    if (rc == 0)
        rc = check_buffer(send, count, "sendbuf");
    if (rc == 0)
        rc = check_buffer(recv, count, "recvbuf");
    if (rc == 0)
        rc = check_codec(&call, comm, opts);
    return rc ? rc : submit(comm, &call, req);
}

static int sendrecv_any(void *buf, size_t count, enum banyan_dtype dtype, int peer, int is_send,
                        struct banyan_comm *comm, const struct banyan_opts *opts,
                        struct banyan_request **req)
{
    struct bny_call call;
    int rc = begin(&call, BNY_SENDRECV, comm, opts);

    if (rc == 0)
        rc = check_type(&call, dtype);
    call.sendbuf = call.recvbuf = buf;
    call.count = count;
    call.root = peer;
    call.is_send = (uint8_t)is_send;
    call.codec = NULL;
    memcpy(call.schedule, "auto", 5);
    if (rc == 0)
        rc = check_root(&call, comm, "peer");
    if (rc == 0)
        rc = check_buffer(buf, count, "buf");
    if (rc == 0 && peer == comm->rank && req == BNY_RUN && !bny_in_group() && !is_send &&
        !comm->strays)
        rc = bny_fail(BANYAN_EINVAL, "peer: a blocking receive from oneself with nothing sent would never return; put "
                      "the pair into a group");
    return rc ? rc : submit(comm, &call, req);
}

/* ---- the public names ------------------------------------------------------------------------------------------------------ */

int banyan_allreduce(const void *sendbuf, void *recvbuf, size_t count, enum banyan_dtype dtype,
                     banyan_op op, struct banyan_comm *comm, const struct banyan_opts *opts)
{
    return allreduce_any(sendbuf, recvbuf, count, dtype, op, comm, opts, BNY_RUN);
}

int banyan_allreduce_init(const void *sendbuf, void *recvbuf, size_t count,
                          enum banyan_dtype dtype, banyan_op op, struct banyan_comm *comm,
                          const struct banyan_opts *opts, struct banyan_request **out)
{
    return allreduce_any(sendbuf, recvbuf, count, dtype, op, comm, opts, out);
}

int banyan_reduce(const void *sendbuf, void *recvbuf, size_t count, enum banyan_dtype dtype,
                  banyan_op op, int root, struct banyan_comm *comm, const struct banyan_opts *opts)
{
    return reduce_any(sendbuf, recvbuf, count, dtype, op, root, comm, opts, BNY_RUN);
}

int banyan_reduce_init(const void *sendbuf, void *recvbuf, size_t count, enum banyan_dtype dtype,
                       banyan_op op, int root, struct banyan_comm *comm,
                       const struct banyan_opts *opts, struct banyan_request **out)
{
    return reduce_any(sendbuf, recvbuf, count, dtype, op, root, comm, opts, out);
}

int banyan_broadcast(void *buf, size_t count, enum banyan_dtype dtype, int root,
                     struct banyan_comm *comm, const struct banyan_opts *opts)
{
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
    return reduce_scatter_any(sendbuf, recvbuf, recvcount, NULL, 0, dtype, op, comm, opts, BNY_RUN);
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
    return allgather_any(sendbuf, recvbuf, sendcount, NULL, NULL, 0, dtype, comm, opts, BNY_RUN);
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
    return gather_any(sendbuf, sendcount, recvbuf, NULL, NULL, 0, dtype, root, comm, opts, BNY_RUN);
}

int banyan_gather_init(const void *sendbuf, void *recvbuf, size_t sendcount,
                       enum banyan_dtype dtype, int root, struct banyan_comm *comm,
                       const struct banyan_opts *opts, struct banyan_request **out)
{
    return gather_any(sendbuf, sendcount, recvbuf, NULL, NULL, 0, dtype, root, comm, opts, out);
}

int banyan_gatherv(const void *sendbuf, size_t sendcount, void *recvbuf, const size_t *counts,
                   const size_t *displs, enum banyan_dtype dtype, int root,
                   struct banyan_comm *comm, const struct banyan_opts *opts)
{
    return gather_any(sendbuf, sendcount, recvbuf, counts, displs, 1, dtype, root, comm, opts,
                      BNY_RUN);
}

int banyan_gatherv_init(const void *sendbuf, size_t sendcount, void *recvbuf,
                        const size_t *counts, const size_t *displs, enum banyan_dtype dtype,
                        int root, struct banyan_comm *comm, const struct banyan_opts *opts,
                        struct banyan_request **out)
{
    return gather_any(sendbuf, sendcount, recvbuf, counts, displs, 1, dtype, root, comm, opts, out);
}

int banyan_scatter(const void *sendbuf, void *recvbuf, size_t recvcount, enum banyan_dtype dtype,
                   int root, struct banyan_comm *comm, const struct banyan_opts *opts)
{
    return scatter_any(sendbuf, NULL, NULL, 0, recvbuf, recvcount, dtype, root, comm, opts,
                       BNY_RUN);
}

int banyan_scatter_init(const void *sendbuf, void *recvbuf, size_t recvcount,
                        enum banyan_dtype dtype, int root, struct banyan_comm *comm,
                        const struct banyan_opts *opts, struct banyan_request **out)
{
    return scatter_any(sendbuf, NULL, NULL, 0, recvbuf, recvcount, dtype, root, comm, opts, out);
}

int banyan_scatterv(const void *sendbuf, const size_t *counts, const size_t *displs,
                    void *recvbuf, size_t recvcount, enum banyan_dtype dtype, int root,
                    struct banyan_comm *comm, const struct banyan_opts *opts)
{
    return scatter_any(sendbuf, counts, displs, 1, recvbuf, recvcount, dtype, root, comm, opts,
                       BNY_RUN);
}

int banyan_scatterv_init(const void *sendbuf, const size_t *counts, const size_t *displs,
                         void *recvbuf, size_t recvcount, enum banyan_dtype dtype, int root,
                         struct banyan_comm *comm, const struct banyan_opts *opts,
                         struct banyan_request **out)
{
    return scatter_any(sendbuf, counts, displs, 1, recvbuf, recvcount, dtype, root, comm, opts,
                       out);
}

int banyan_alltoall(const void *sendbuf, void *recvbuf, size_t count, enum banyan_dtype dtype,
                    struct banyan_comm *comm, const struct banyan_opts *opts)
{
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
    return alltoallv_any(sendbuf, sendcounts, sdispls, recvbuf, recvcounts, rdispls, dtype, comm,
                         opts, BNY_RUN);
}

int banyan_alltoallv_init(const void *sendbuf, const size_t *sendcounts, const size_t *sdispls,
                          void *recvbuf, const size_t *recvcounts, const size_t *rdispls,
                          enum banyan_dtype dtype, struct banyan_comm *comm,
                          const struct banyan_opts *opts, struct banyan_request **out)
{
    return alltoallv_any(sendbuf, sendcounts, sdispls, recvbuf, recvcounts, rdispls, dtype, comm,
                         opts, out);
}

int banyan_barrier(struct banyan_comm *comm, const struct banyan_opts *opts)
{
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

int banyan_exscan_init(const void *sendbuf, void *recvbuf, size_t count, enum banyan_dtype dtype,
                       banyan_op op, struct banyan_comm *comm, const struct banyan_opts *opts,
                       struct banyan_request **out)
{
    return scan_any(BNY_EXSCAN, sendbuf, recvbuf, count, dtype, op, comm, opts, out);
}

int banyan_send(const void *buf, size_t count, enum banyan_dtype dtype, int peer,
                struct banyan_comm *comm, const struct banyan_opts *opts)
{
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
    return sendrecv_any(buf, count, dtype, peer, 0, comm, opts, BNY_RUN);
}

int banyan_recv_init(void *buf, size_t count, enum banyan_dtype dtype, int peer,
                     struct banyan_comm *comm, const struct banyan_opts *opts,
                     struct banyan_request **out)
{
    return sendrecv_any(buf, count, dtype, peer, 0, comm, opts, out);
}
