/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan: collective communication along forests of trees.
 *
 * The public API. Compiles alone as C11 and as C++17.
 *
 * Conventions
 *   Errors     every function returns 0 (or a count) on success and a negative BANYAN_E* code
 *              on failure; banyan_last_error() has a sentence for the user: rank, argument,
 *              remedy.
 *   Counts     are elements of the call's datatype, size_t, and may exceed 2^31. Zero is legal.
 *   Threads    one thread at a time per communicator, except that functions of requests
 *              (_init, start, test, wait) may be called by any thread at any time, for one
 *              request by one thread at a time, but for waits. The order in which
 *              operations start is the order that must be the same on all ranks. Different
 *              communicators are independent. A waiting thread also progresses the
 *              operations of the process's other communicators (and then calls their user
 *              operations). banyan_abort, banyan_async_error, banyan_comm_failed, _revoke,
 *              _rank, _count and _stats: any thread, any time.
 *   Sizes      structs that may grow begin with `size`, the caller's sizeof: X_INIT sets it
 *              in struct X of settings, and the caller sets it in structs that a call
 *              fills. Settings of an older program, which are shorter, have the defaults
 *              beyond its size. Of a newer program, whose are longer, members that the
 *              library does not know must be 0, which is always their default; filled
 *              structs get 0 there. Else, or with a size that no version has (it ends
 *              inside a member), a call returns -BANYAN_EINVAL.
 *   Ownership  "borrows": until the call returns (blocking) or the request completes. The
 *              caller frees handles with the matching _free / _destroy, which return 0,
 *              also for NULL, or an error and free nothing. A call with a handle that was
 *              freed, also a second free, returns -BANYAN_EINVAL until 64 more of its kind
 *              were freed: then its memory is reused.
 *   Buffers    host memory of any alignment. In place: the same pointer for send and
 *              receive, if the call's comment allows it. Any other overlap is an error of
 *              the caller. Buffers of collectives and messages may also be in CUDA memory,
 *              if the process had loaded the driver when it made the communicator or a
 *              request: they are copied through pinned host memory. Wait for the stream
 *              that writes them before the call starts; results are there when it has
 *              completed. With the driver in the process every call asks it where its
 *              buffers are, also those of the host, and loses the fast path of calls that
 *              repeat; a copy holds a lock of the process. Never run on a GPU.
 *   Failure    a communicator that failed stays failed: later calls return the first cause.
 *   fork       a child that inherits a communicator gets -BANYAN_EFORK from every call on
 *              it and on its requests; banyan_comm_destroy does nothing there, and returns
 *              0. */
#ifndef BANYAN_BANYAN_H
#define BANYAN_BANYAN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BANYAN_VERSION_MAJOR 0
#define BANYAN_VERSION_MINOR 1
#define BANYAN_VERSION_PATCH 0

#if defined(__GNUC__)
#define BANYAN_API __attribute__((visibility("default")))
#else
#define BANYAN_API
#endif

/* ---------------------------------------------------------------------------------------------
 * Errors. Returned negative: -BANYAN_EINVAL. The values are stable.
 */
enum banyan_error {
    BANYAN_OK = 0,
    BANYAN_EINVAL = 1,    /* an argument is invalid; nothing was sent */
    BANYAN_ENOMEM = 2,    /* memory or another local resource is exhausted */
    BANYAN_ETIMEDOUT = 3, /* the deadline passed; the communicator has failed */
    BANYAN_ERANKDEAD = 4, /* a rank died or its connection was lost; the message names it */
    BANYAN_EMISMATCH = 5, /* ranks disagree on operation, count, type, op, root or order */
    BANYAN_EABORTED = 6,  /* banyan_abort was called, here or at another rank */
    BANYAN_EPROTO = 7,    /* a peer sent bytes that break the protocol */
    BANYAN_ENOTSUP = 8,   /* not supported on this machine or by this build */
    BANYAN_ESYSTEM = 9,   /* a system call failed; the sentence has its errno text */
    BANYAN_EFORK = 10,    /* called in a forked child */
    BANYAN_EBUSY = 11,    /* in use: a request already started, a communicator with operations
                           * in flight */
    BANYAN_EVERSION = 12, /* ranks run incompatible library versions */
    BANYAN_ECONFIG = 13   /* settings are invalid, or differ between ranks */
};

/* A short constant English phrase for a code (sign ignored); never NULL. Any thread. */
BANYAN_API const char *banyan_strerror(int code);
/* The calling thread's latest failure as one sentence; "" if none. Valid until its next
 * failure. */
BANYAN_API const char *banyan_last_error(void);
/* The library's version as "major.minor.patch" and as major*10000+minor*100+patch. Any thread.
 */
BANYAN_API const char *banyan_version_string(void);
BANYAN_API int banyan_version(void);

enum banyan_log_level { BANYAN_LOG_ERROR, BANYAN_LOG_WARN, BANYAN_LOG_INFO, BANYAN_LOG_DEBUG };
/* Receives one line without newline; any thread may call it; it must not call banyan. */
typedef void (*banyan_log_fn)(void *ctx, enum banyan_log_level level, const char *line);
/* Replaces the log sink of the process (default: stderr, level from BANYAN_DEBUG). NULL
 * restores it. Any thread. */
BANYAN_API void banyan_set_log(banyan_log_fn fn, void *ctx, enum banyan_log_level max_level);

/* ---------------------------------------------------------------------------------------------
 * Data types and reduction operations.
 */
enum banyan_dtype {
    BANYAN_F32,
    BANYAN_F64,
    BANYAN_F16,
    BANYAN_BF16,
    BANYAN_I8,
    BANYAN_U8,
    BANYAN_I32,
    BANYAN_U32,
    BANYAN_I64,
    BANYAN_U64,
    BANYAN_BOOL, /* a byte: 0 is false, any other value true. Sums of several ranks are 0
                  * or 1 */
    BANYAN_I16,
    BANYAN_U16,
    BANYAN_C64,    /* complex: two f32, the real part first */
    BANYAN_C128,   /* two f64 */
    BANYAN_F8E4M3, /* without infinities, 0x7f is NaN (OCP, "e4m3fn") */
    BANYAN_F8E5M2
};
/* Bytes of one element; 0 for an unknown type. */
BANYAN_API size_t banyan_dtype_bytes(enum banyan_dtype dtype);
BANYAN_API const char *banyan_dtype_name(enum banyan_dtype dtype);

/* Reduction operations. f16, bf16 and f8 are added in f32 and rounded once per step; a finite
 * f8 result beyond the largest number becomes that, also AVG's sum before its division. Of
 * bool, sum, max and bor are the logical or, prod, min and band the logical and, and avg is not
 * defined. Complex types have sum, avg and prod. Integer sums wrap. AVG is the sum divided by
 * the number of ranks (integers: truncated; floats: times the number's reciprocal, so within a
 * unit in the last place of the quotient). Bitwise ops: integers and bool. min/max of floats:
 * if exactly one operand is NaN the result is the other one. All arithmetic, including user
 * operations and codecs, uses the default floating-point mode (round to nearest, subnormals
 * kept, no traps), whatever the calling thread's mode, which is restored: so a progress thread
 * with another mode gets the same bits, as do all ranks. */
enum banyan_op_kind {
    BANYAN_SUM,
    BANYAN_AVG,
    BANYAN_MIN,
    BANYAN_MAX,
    BANYAN_PROD,
    BANYAN_BAND,
    BANYAN_BOR,
    BANYAN_BXOR
};
/* An operation: a built-in kind, or a handle made by the functions below. */
typedef uint32_t banyan_op;

/* inout[i] = in[i] (op) inout[i]; n elements of elem_bytes each; in rank order in precedes
 * inout. Any waiting call may call it, and it must not make a waiting call: in it, calls that
 * take a communicator or a request, that make one, and groups return -BANYAN_EBUSY, except
 * banyan_comm_rank, _count, _stats, banyan_async_error and banyan_abort. It may make and free
 * operations and codec states that are not in use. */
typedef void (*banyan_user_fn)(void *ctx, const void *in, void *inout, size_t n,
                               enum banyan_dtype dtype);
/* Makes a user operation. elem_bytes: 0 for the built-in types, or the size of an opaque
 * element: a call's count is then in BANYAN_U8 bytes and must be a multiple of it; pieces are
 * cut on multiples only. alignment: of the pointers that fn gets (power of two, 0 for elem
 * size). commutative: 0 keeps rank order 0 o 1 o 2 ... (slower: one tree). Borrows ctx until
 * banyan_op_free. Returns 0, -EINVAL, -ENOMEM. Any thread. */
BANYAN_API int banyan_op_create_user(banyan_user_fn fn, void *ctx, size_t elem_bytes,
                                     size_t alignment, int commutative, banyan_op *out);
/* sum over ranks of scalar_r * x_r; the scalar may differ by rank (f32, f64, f16, bf16). */
BANYAN_API int banyan_op_create_premul_sum(double scalar, banyan_op *out);
/* No operation in flight may use it. Returns 0, or -EINVAL if op was not created. */
BANYAN_API int banyan_op_free(banyan_op op);

/* ---------------------------------------------------------------------------------------------
 * Communicators.
 */
struct banyan_comm;    /* opaque */
struct banyan_request; /* opaque */

/* Identifies one job: its root's address, and the secret that proves membership. Keep it as
 * private as the job: any process that has it can join. Plain bytes: copy it, send it by any
 * side channel. */
struct banyan_id {
    unsigned char bytes[128];
};
/* Makes an id and starts listening for the job's ranks in this process, which must become rank
 * 0. Honours BANYAN_IFNAME and BANYAN_PORT_RANGE. Returns 0, -ESYSTEM, -ECONFIG. Any thread. */
BANYAN_API int banyan_id_create(struct banyan_id *out);

/* The caller's own all-gather for the bootstrap: every rank contributes `bytes` bytes at `in`,
 * and gets nranks*bytes at `out` in rank order. Returns 0, or non-zero on failure. Only init
 * calls it. */
typedef int (*banyan_allgather_fn)(void *ctx, const void *in, void *out, size_t bytes);

/* Settings of a communicator: start from BANYAN_CONFIG_INIT. NULL, and a number below 0, stand
 * for the variable of docs/environment.md, or else for its default, which is told here. */
struct banyan_config {
    size_t size;            /* sizeof(struct banyan_config) of the caller */
    double init_timeout_s;  /* deadline of init; default 60; 0: none, so it waits for missing
                               ranks for ever. The earliest of all ranks counts */
    double op_timeout_s;    /* deadline of an operation without its own; default 300; 0: none */
    const char *transport;  /* "auto" (default), "shm", "verbs", "ud", "dpdk", "tcp", "loop" */
    const char *schedule;   /* of calls without their own: "auto" (default), "static", a name of
                               banyan_schedule_name(), or the path of a plan (JSON or MSCCL
                               XML). A call that it cannot serve runs as with "auto"; for calls
                               of 64 KiB and more a warning gives the reason, once for each
                               communicator */
    const char *codec;      /* the same: "none" (default) or a codec's name */
    const char *ifname;     /* interface(s) for TCP and verbs, or their addresses: "eth0,ib", or
                             * "^lo,docker" to exclude; for verbs also an RDMA device:
                             * "mlx5_0:1"; "": any, first the one that leads to the root */
    const char *port_range; /* "20000-20100"; "" (default): any */
    size_t chunk_bytes;     /* 0: BANYAN_CHUNK, or chosen by size */
    int progress_thread;    /* 1: a thread of the library progresses this communicator */
    int progress_cpu;       /* CPU to bind that thread to; -1: unbound */
    int deterministic; /* 1: same bits for any size and schedule (one canonical association); 0
                          (default): not */
    void (*progress_hook)(
        void *ctx); /* called in wait loops, to drive the caller's own progress */
    void *progress_hook_ctx;
    banyan_allgather_fn
        allgather; /* replaces the TCP bootstrap when not NULL; id may then be NULL */
    void *allgather_ctx;
    const char *topology; /* the cluster graph: a generator ("torus:8x8") or a file, see
                             banyan_topo --help; NULL or "": BANYAN_TOPO, or none. Its ranks are
                             this job's, or its hosts in order of their lowest ranks */
};
#define BANYAN_CONFIG_INIT                                                                     \
    {                                                                                          \
        sizeof(struct banyan_config), -1.0, -1.0, NULL, NULL, NULL, NULL, NULL, 0, 0, -1, -1,  \
            NULL, NULL, NULL, NULL, NULL                                                       \
    }

/* Joins the job `id` as `rank` of `nranks`. Blocks until all ranks have joined or the deadline
 * passes. Compares settings that must agree (version, transport, schedule, topology, codec,
 * chunk, deterministic, and the variables listed in docs/environment.md). cfg may be NULL.
 * Returns 0 and *out, or -EINVAL, -ETIMEDOUT (names the missing ranks), -EPROTO (duplicate
 * rank, rank out of range, other job), -EVERSION, -ECONFIG, -ESYSTEM, -ENOMEM. */
BANYAN_API int banyan_comm_init(struct banyan_comm **out, const struct banyan_id *id,
                                int nranks, int rank, const struct banyan_config *cfg);
/* The same without blocking: *out is usable only after banyan_comm_init_test sets *done. */
BANYAN_API int banyan_comm_init_start(struct banyan_comm **out, const struct banyan_id *id,
                                      int nranks, int rank, const struct banyan_config *cfg);
/* Sets *done to 1 when init has finished. Returns 0, or init's error (then destroy the comm).
 */
BANYAN_API int banyan_comm_init_test(struct banyan_comm *comm, int *done);
/* Joins the job that the environment describes: banyan_run, torchrun (RANK, WORLD_SIZE,
 * MASTER_ADDR, MASTER_PORT), PMIx, Open MPI, MPICH/PMI, Slurm. Without any of them: one rank
 * alone. Returns as banyan_comm_init, and -ECONFIG with the variable that is missing or
 * wrong. */
BANYAN_API int banyan_comm_init_env(struct banyan_comm **out, const struct banyan_config *cfg);
/* A communicator of the same ranks with its own order of operations; it shares connections.
 * Collective. */
BANYAN_API int banyan_comm_dup(struct banyan_comm *comm, struct banyan_comm **out);
/* In place of a color: the ranks of each host form a communicator. With equal keys a rank's
 * number in it is its local rank. Two network namespaces of one machine are two hosts. */
#define BANYAN_SPLIT_HOST INT32_MIN
/* Ranks with the same color >= 0, or with BANYAN_SPLIT_HOST on the same host, form a
 * communicator ordered by (key, rank); any other color < 0: *out = NULL. Collective. */
BANYAN_API int banyan_comm_split(struct banyan_comm *comm, int color, int key,
                                 struct banyan_comm **out);
/* A barrier, after which no rank calls operations on comm; then destroys it. Returns -EBUSY,
 * and comm lives on, if an operation of this rank is in flight or inside a group: wait for its
 * request and call again. Otherwise comm is destroyed in any case. Returns 0, or a failure
 * found by then: ranks that called different operations in which they only sent learn of it
 * here at the latest. A communicator whose failure an earlier call returned is only destroyed,
 * with 0. */
BANYAN_API int banyan_comm_finalize(struct banyan_comm *comm);
/* The same for programs that must end: the barrier, and what of this rank's data is still on
 * its way, take so many seconds each at most, and comm is destroyed also if they fail. Returns
 * also -ETIMEDOUT, which names ranks that did not come, and -EABORTED: operations of this rank
 * were in flight, and were cut off as by banyan_comm_destroy. comm lives on only behind -EINVAL
 * (no number above 0) and -EBUSY (inside a group, a user operation or a completion function).
 */
BANYAN_API int banyan_comm_finalize_within(struct banyan_comm *comm, double seconds);
/* Frees local resources without synchronisation; takes NULL. Before the last communicator of a
 * job is gone it waits, at most 10 s, until the data that this rank sent is on its way. Peers
 * that still need this rank, or whose operation with it is in flight here, see it as gone. Free
 * comm's requests before. Its calls in an open group are dropped: banyan_group_end then returns
 * -EINVAL. Returns 0; -EINVAL: it was freed; -EBUSY inside a user operation or a completion
 * function. */
BANYAN_API int banyan_comm_destroy(struct banyan_comm *comm);
BANYAN_API int banyan_comm_rank(const struct banyan_comm *comm);
BANYAN_API int banyan_comm_count(const struct banyan_comm *comm);
/* Fails the communicator on all ranks with -BANYAN_EABORTED. Returns at once. Any thread, also
 * while another one is in banyan_comm_finalize. */
BANYAN_API int banyan_abort(struct banyan_comm *comm, const char *reason);
/* Returns 0 while healthy, else the first cause; *blamed (may be NULL) is the rank at fault or
 * -1; buf (may be NULL) gets the text. It checks what the ranks have agreed on so far, so a
 * watching thread learns of a death while others compute or wait; it makes no other progress,
 * and never waits. Any thread, also while another one is in banyan_comm_finalize. */
BANYAN_API int banyan_async_error(struct banyan_comm *comm, int *blamed, char *buf, size_t cap);

/* Recovery after failures (docs/failures.md): these calls work on communicators that have
 * failed.
 *
 * The ranks of comm that are dead or have left, as all survivors have agreed: ascending, the
 * first cap of them into ranks (NULL if cap is 0). Returns their number. Ranks may see a new
 * agreement at different times: banyan_comm_agree returns the same to all. Local; any
 * thread. */
BANYAN_API int banyan_comm_failed(struct banyan_comm *comm, int *ranks, int cap);
/* Revokes the communicator on all ranks: operations in flight and all later ones fail with
 * -BANYAN_EABORTED and this text. Any member may call it alone, to bring ranks that wait for it
 * to the same point. Returns at once. Any thread. */
BANYAN_API int banyan_comm_revoke(struct banyan_comm *comm, const char *why);
/* All live members call it, equally often and in the same order, and get the same: *bits (may
 * be NULL) is the AND of theirs; dead[cap] the ranks that are dead or have left, as in
 * banyan_comm_failed; it returns their number. Ranks that die meanwhile do not block it. Use it
 * to learn whether an operation succeeded on all ranks. -BANYAN_ETIMEDOUT, on all, if a live
 * member has not called it within twice the communicator's op_timeout_s: that member may first
 * have to wait for the end of an operation, which may take as long; -BANYAN_ERANKDEAD if the
 * others consider this rank dead. Blocks. */
BANYAN_API int banyan_comm_agree(struct banyan_comm *comm, uint64_t *bits, int *dead, int cap);

/* A communicator of the live members of comm, in their order, with its settings: all of them
 * call it, after an operation has failed or because one wants it, and get the same members (in
 * one round of agreement; see banyan_comm_rank and _count). comm is revoked first, as by
 * banyan_comm_revoke, so ranks that still wait in it come here; afterwards it can only be
 * destroyed. If no rank died it acts as a dup. Connections and memory of banyan_mem_alloc stay;
 * plans are made for the remaining ranks, on the graph without the others. Codec states can be
 * used with it (banyan_codec_state_undo); the residuals of the dead are lost. Returns 0;
 * -BANYAN_ETIMEDOUT on all if a live member did not call within twice comm's op_timeout_s. But
 * if comm has failed by a missed deadline, or an earlier call that agrees ended so, such
 * members are left out, after 2 s those that do not answer at all, provided that the others are
 * a majority (BANYAN_QUORUM). -BANYAN_ERANKDEAD if the others consider this rank dead, or left
 * it out; -BANYAN_EINVAL, -BANYAN_EBUSY, -BANYAN_ENOMEM. Blocks. */
BANYAN_API int banyan_comm_shrink(struct banyan_comm *comm, struct banyan_comm **out);
/* The same for all failed communicators of a rank at once, n >= 1: out[i] replaces comms[i].
 * Ranks that are in several communicators with different ranks need no common order, whereas
 * repeated banyan_comm_shrink needs the same order on all ranks: two ranks that shrink two
 * communicators crosswise wait for each other until a deadline. Every live member of comms[i]
 * passes it to this call or to banyan_comm_shrink. Returns 0, or the error, as from
 * banyan_comm_shrink, of the first that was not made; those with out[i] not NULL were.
 * -BANYAN_EINVAL also if one is listed twice; then none is revoked. Blocks. */
BANYAN_API int banyan_comm_shrink_many(struct banyan_comm *const *comms, int n,
                                       struct banyan_comm **out);

/* Growing: newcomers, restarted or new processes, become ranks of a running job. The grown
 * communicator is a world of its own, as if its members had just been started: it has its own
 * secret and connections, and takes as long to make as joining a job. comm lives on beside it,
 * until it is finalized or destroyed; communicators made of it stay in the old world. No byte
 * of a rank's earlier life can be taken for one of its present life, and a rank may die and
 * return any number of times. The program itself sends newcomers the state of the computation
 * (banyan_broadcast).
 *
 * Makes an id by which newcomers join comm: send it to them by any side channel, and keep it as
 * private as the job. Any one member makes it; from then on newcomers may connect and wait
 * while the members compute. It serves one banyan_comm_grow, successful or not, and ends with
 * comm. Waiting ranks that banyan_run restarted get the latest id by themselves. Honours
 * BANYAN_IFNAME and BANYAN_PORT_RANGE. Returns 0, -EINVAL, -ESYSTEM, -ECONFIG, comm's
 * failure. */
BANYAN_API int banyan_comm_grow_id(struct banyan_comm *comm, struct banyan_id *id);
/* A communicator of the members of comm, with their ranks, and of `newcomers` (at least 1)
 * processes that join, with the next ranks in the order of arrival. Collective over comm, which
 * must not have failed: shrink it first. id: on the member that made it; NULL on the others.
 * cfg: settings of the new communicator, and the time limit for newcomers (init_timeout_s); as
 * in banyan_comm_init, and equal on newcomers; NULL: defaults. All or nothing: if a newcomer
 * does not come, dies meanwhile or has other settings all members get the same error, with a
 * sentence, as do the newcomers that came, and comm stays usable. If a member dies comm fails
 * as usual. Blocks. Returns 0; -ETIMEDOUT, -ERANKDEAD, -ECONFIG, -EVERSION, -EPROTO for these
 * cases; -EINVAL: an argument is invalid on any member, or the id was used; -EBUSY inside a
 * group; -ENOMEM, -ESYSTEM. */
BANYAN_API int banyan_comm_grow(struct banyan_comm *comm, const struct banyan_id *id,
                                int newcomers, const struct banyan_config *cfg,
                                struct banyan_comm **out);
/* The newcomer's side: joins by an id from banyan_comm_grow_id; banyan_comm_rank and _count
 * then give its place. Blocks until the members grow, at most init_timeout_s. id NULL, for a
 * process that banyan_run --restart has restarted: waits for the members' ids and tries one
 * after another, as long as there are members. Returns 0; -ERANKDEAD: the id was used, or the
 * rank that made it has ended, which may happen to any member; -EPROTO: the id is wrong;
 * -EBUSY: others came first; -ETIMEDOUT; the error of banyan_comm_grow; -EINVAL, -ENOMEM,
 * -ESYSTEM. */
BANYAN_API int banyan_comm_join(struct banyan_comm **out, const struct banyan_id *id,
                                const struct banyan_config *cfg);
/* Under banyan_run --restart: the number of restarted processes that wait in
 * banyan_comm_join(out, NULL, ...) now. Other members may see another number: agree on it, with
 * a MIN, before banyan_comm_grow. 0 otherwise. Any thread. */
BANYAN_API int banyan_job_waiting(void);
/* Number of times that banyan_run --restart has restarted this rank: if it is not 0, call
 * banyan_comm_join(out, NULL, ...) instead of banyan_comm_init_env. Any thread. */
BANYAN_API int banyan_job_restarts(void);

/* A communicator of the n listed ranks of comm, in that order, with comm's settings. Only they
 * call it, with the same ranks and tag, this rank among them; the others may compute, be dead,
 * or make other groups at the same time. Calls with the same ranks and tag match in each rank's
 * order of calls; threads of a rank use different tags. comm may have failed. Returns 0, or the
 * same on all members: -BANYAN_ERANKDEAD if one of them has died or left; -BANYAN_ETIMEDOUT if
 * one has not called it within comm's op_timeout_s, or if comm is revoked or aborted during the
 * wait, or was before and one member does not know it from a call on comm yet.
 * -BANYAN_ERANKDEAD if the others consider this rank dead; -BANYAN_EINVAL, -BANYAN_EBUSY,
 * -BANYAN_ENOMEM. Blocks; a stopped rank of the world delays it by 2 s. */
BANYAN_API int banyan_comm_create_group(struct banyan_comm *comm, const int *ranks, int n,
                                        int tag, struct banyan_comm **out);
/* The same with a limit of its own in place of comm's op_timeout_s; 0: none. */
BANYAN_API int banyan_comm_create_group_within(struct banyan_comm *comm, const int *ranks,
                                               int n, int tag, double timeout_s,
                                               struct banyan_comm **out);

/* Counters since init, for tools. They include all that calls which have returned sent. Any
 * thread, also a user operation. */
struct banyan_stats {
    size_t size;  /* sizeof of the caller; set before the call */
    uint64_t ops; /* operations completed */
    uint64_t
        wire_bytes; /* payload bytes this rank handed to transports (puts and pulls included) */
    uint64_t messages; /* messages that this rank sent; a notification in shared memory counts
                          as one */
    uint64_t copied_bytes; /* payload bytes copied by the CPU besides the reduction itself */
    uint64_t sleeps;       /* times a wait slept in the kernel */
    uint64_t replaced;     /* connections (verbs: queue pairs) of this rank that were replaced,
                              without loss */
    uint64_t moved;        /* of these, those that moved to another network device */
    uint64_t staged_bytes; /* of copied_bytes: copied before sending, to memory that the network
                              or the peer reads */
    uint64_t pinned_bytes; /* now registered with network devices, for slots and queues of the
                              peers so far (verbs), without memory that you registered */
    uint64_t
        sums_asked; /* allreduces of schedule "auto" in which ranks reported their arrival */
    uint64_t sums_by_arrival; /* of these, those that ran in order of arrival, as ranks had been
                                 late */
};
/* Returns 0, -EINVAL. */
BANYAN_API int banyan_comm_stats(struct banyan_comm *comm, struct banyan_stats *out);
/* One line: the plan for such a call: schedule, transport ("shm+tcp" if peers differ, "none"
 * alone), chunk, codec, predicted microseconds; with a codec the codecs of both directions,
 * what is lost at most where that is known (nmse: mean squared error over the energy of the
 * result; max: over the largest values of the ranks' inputs), and cpu, the part of that time in
 * which a core works for them. A codec "where it pays, as measured" is decided on by each call;
 * after such calls the line tells what the latest one was decided to be ("as measured: int8",
 * "as measured: raw data" or "as measured: int8 on 9/16, raw data beside"), and what it takes
 * by what was measured. */
BANYAN_API int banyan_comm_plan(struct banyan_comm *comm, const char *collective, size_t count,
                                enum banyan_dtype dtype, char *buf, size_t cap);

/* ---------------------------------------------------------------------------------------------
 * Memory. Ordinary memory always works; memory from here (or registered) moves with fewer
 * copies.
 */
/* Memory that other local ranks can map, 4096-aligned, zeroed. Returns 0, -ENOMEM. */
BANYAN_API int banyan_mem_alloc(struct banyan_comm *comm, size_t bytes, void **out);
/* Takes NULL. No operation that uses it may be in flight. Returns 0, -EINVAL. */
BANYAN_API int banyan_mem_free(struct banyan_comm *comm, void *ptr);
/* Registers [ptr, ptr+bytes), a shared mapping of fd at offset, or, with fd = -1, memory for
 * network devices. Borrows until deregistered. Ranks of the host map a memfd that was made with
 * MFD_ALLOW_SEALING; this seals it against shrinking, so that none can harm the others. Memory
 * of other files is sent like any other. */
BANYAN_API int banyan_mem_register(struct banyan_comm *comm, void *ptr, size_t bytes, int fd,
                                   uint64_t offset);
BANYAN_API int banyan_mem_deregister(struct banyan_comm *comm, void *ptr);

/* ---------------------------------------------------------------------------------------------
 * Codec states: what a lossy codec keeps of one tensor between operations (opts.codec_state):
 * the residual, an f32 per element, which holds what an operation lost and which the next one
 * adds; thresholds and matrices of codecs that have them. For every element, and any schedule,
 * codec, parameters and number of ranks:
 *     inputs + old residuals = result + new residuals
 * where all but the result are sums over the ranks, and AVG's result is multiplied by their
 * number. (Codec dgc adds its momentum, also kept in the state, to the left side.) Residuals
 * stay bounded: with a state unbiased codecs send less than they draw. A state serves one
 * operation at a time, called by the thread that owns the communicator. An operation that runs
 * without a codec (a type or an op that it does not support, or refused because it would lose
 * time) does not change it. If an operation fails, elements that were encoded already have
 * their new residuals, others the old ones: the state stays usable, but what the failed
 * operation took from it is lost; for exactness undo it, or load a saved one. */
struct banyan_codec_state; /* opaque */
/* Makes a state for a tensor of count elements: allreduce, reduce, broadcast: the call's count;
 * reduce_scatter and allgather: the count of all ranks' blocks together. seed: any number, the
 * same on all ranks, for codecs that choose at random. Returns 0, -EINVAL, -ENOMEM. The caller
 * frees it. */
BANYAN_API int banyan_codec_state_create(struct banyan_codec_state **out, size_t count,
                                         uint64_t seed);
/* Takes NULL. Returns 0, -EINVAL, -EBUSY while an operation uses it. */
BANYAN_API int banyan_codec_state_free(struct banyan_codec_state *st);
/* Resets it to new. These return 0, -EINVAL, -EBUSY while an operation uses it. */
BANYAN_API int banyan_codec_state_reset(struct banyan_codec_state *st);
/* The next operation multiplies residuals by factor: the ratio of learning rates, old to new,
 * if the inputs are gradients. Several calls multiply. */
BANYAN_API int banyan_codec_state_scale(struct banyan_codec_state *st, double factor);
/* Adds src's residuals [src_at, +count) to dst's [dst_at, +count) and clears them in src:
 * re-bucketing. */
BANYAN_API int banyan_codec_state_move(struct banyan_codec_state *dst, size_t dst_at,
                                       struct banyan_codec_state *src, size_t src_at,
                                       size_t count);
/* The residuals [count], borrowed from the state until its next use. */
BANYAN_API const float *banyan_codec_state_residual(const struct banyan_codec_state *st);
/* Writes the whole state to buf, of at least banyan_codec_state_bytes. The format has a version
 * and a checksum. */
BANYAN_API size_t banyan_codec_state_bytes(const struct banyan_codec_state *st);
BANYAN_API int banyan_codec_state_save(const struct banyan_codec_state *st, void *buf,
                                       size_t cap);
/* -EINVAL, with no change, unless buf is a whole saved state for the same number of
 * elements. */
BANYAN_API int banyan_codec_state_load(struct banyan_codec_state *st, const void *buf,
                                       size_t bytes);

/* The number of operations that used it, or were to use it: the same on all ranks, except after
 * a failure before one of them began. Returns 0, -EINVAL. */
BANYAN_API int banyan_codec_state_step(const struct banyan_codec_state *st, uint32_t *step);
/* on: from now on each operation keeps a copy of the state before it, so that it can be undone:
 * this doubles the memory and adds one pass over it per operation. Returns 0, -EINVAL, -EBUSY,
 * -ENOMEM. */
BANYAN_API int banyan_codec_state_keep_undo(struct banyan_codec_state *st, int on);
/* Restores the state at `step`, whether the operation since then failed, succeeded, or never
 * began: query the step before an operation, and if that failed on any rank (see
 * banyan_comm_agree) undo it on all. Only the latest operation can be undone. Returns 0;
 * -EINVAL: no copy of that step, or the state was reset, scaled, moved or loaded since; -EBUSY,
 * -ENOMEM. */
BANYAN_API int banyan_codec_state_undo(struct banyan_codec_state *st, uint32_t step);

/* A codec of the program: pure functions, called from any thread, several at a time. It works
 * like the library's fixed-rate ones, with residuals if a state is given, which grow without
 * bound if it omits more than its inputs add; name:force=1 insists on it. */
struct banyan_codec {
    size_t size;      /* sizeof(struct banyan_codec) of the caller */
    const char *name; /* up to 15 letters; copied */
    void *ctx;        /* passed to the functions; borrowed for the life of the process */
    size_t (*bound)(
        void *ctx,
        size_t n); /* most bytes that encode writes for n elements; at most 4 n + 64 */
    /* src[n] to wire[cap], cap >= bound(n); returns the bytes written. Negative: the chunk is
     * sent unencoded. */
    long (*encode)(void *ctx, void *wire, size_t cap, const float *src, size_t n);
    /* wire[len] comes from a peer and may be anything: returns 0, or non-zero if it is not an
     * encoding of n elements. */
    int (*decode)(void *ctx, float *dst, const void *wire, size_t len, size_t n);
};
#define BANYAN_CODEC_INIT                                                                      \
    {                                                                                          \
        sizeof(struct banyan_codec), NULL, NULL, NULL, NULL, NULL                              \
    }
/* Registers it, on all ranks, before it is named; for the life of the process. Returns 0,
 * -EINVAL (the name is taken, a member missing), -ENOMEM (there are 16). Any thread. */
BANYAN_API int banyan_codec_register(const struct banyan_codec *codec);

/* ---------------------------------------------------------------------------------------------
 * Collectives. Every one exists as a blocking call and as <name>_init, which makes a persistent
 * request: start it, wait, start it again. All ranks call the same collectives in the same
 * order.
 */
/* Which ranks' inputs are in the result: of allreduce and reduce alone (opts.reduce). */
struct banyan_reduce_opts {
    size_t size;                 /* sizeof(struct banyan_reduce_opts) of the caller */
    const uint8_t *participants; /* [ranks of comm] 1: this rank's input counts, 0: it does not;
                                    NULL: all count; see below. Borrowed for the call; functions
                                    that make requests copy it */
    uint8_t *contributors;       /* [ranks of comm] or NULL: the call sets [r] to 1 if rank r's
                                    input is in the result, else to 0. Borrowed until the call
                                    or request is over */
    int at_least; /* schedule arrival: least number of ranks' inputs in the result; 0: all; see
                     below */
};
#define BANYAN_REDUCE_OPTS_INIT                                                                \
    {                                                                                          \
        sizeof(struct banyan_reduce_opts), NULL, NULL, 0                                       \
    }

/* Options of any call. */
struct banyan_opts {
    size_t size;          /* sizeof(struct banyan_opts) of the caller */
    const char *schedule; /* NULL: the communicator's; else "static", or a name of
                           * banyan_schedule_name() */
    const char *codec;    /* NULL: the communicator's; else "none"; name:param=value,...;
                           * levels:up=name,down=name, of contributions and of results; or what
                           * may be lost, auto:max=1e-2 (docs/compression.md): used if it is
                           * predicted to gain; force=1 insists. -ENOTSUP: it does not support
                           * this call, or, with force=1, does not shorten it, or no codec
                           * keeps the budget. If it is not used a warning gives the reason,
                           * once for each communicator and codec; for the communicator's own
                           * only for calls of 64 KiB and more */
    double timeout_s;     /* < 0: the communicator's; 0: none */
    uint32_t tag; /* collectives: checked for agreement; send/recv: matched. If both root and
                     tag differ, a tag beyond 65535 may hide it: use smaller ones */
    int deterministic; /* < 0: the communicator's; for reductions it must agree between ranks */
    size_t chunk_bytes; /* 0: the communicator's; must agree between ranks. Send, recv: at least
                           32 KiB */
    const int64_t *shape; /* tensor shape for codecs that use it; may be NULL */
    int ndim;
    struct banyan_codec_state
        *codec_state; /* the codec's state for this tensor; NULL: none. On all ranks or on none,
                         with the same seed, used equally often */
    const struct banyan_reduce_opts *reduce; /* allreduce and reduce; NULL, also for all other
                                                calls: all inputs. Borrowed for the call */
};
#define BANYAN_OPTS_INIT                                                                       \
    {                                                                                          \
        sizeof(struct banyan_opts), NULL, NULL, -1.0, 0, -1, 0, NULL, 0, NULL, NULL            \
    }

/* Participation sets (participants of opts.reduce): the result is that of the ranks in the set
 * alone, in rank order if order matters, and goes to all ranks that usually get it. All ranks
 * call, with the same set: if sets differ the call fails with -EMISMATCH, detected surely up to
 * 15 ranks, beyond by a hash of 23 bits. A rank outside the set has no input: its
 * sendbuf is not read and may be NULL, it sends no payload but finished results that it
 * forwards (none at all if at least half of the ranks are in the set, nor in a reduce), and its
 * codec_state's residuals do not change. AVG divides by the number of ranks in the set. The
 * empty set: zeros for sums and averages, without any payload; -EINVAL for other operations.
 * Schedules: direct and the forests built for any ranks, over the ranks in the set; plans of a
 * network are for all ranks (-ENOTSUP if the call requests one, "auto" if the communicator
 * does). */

/* Reductions in order of arrival (opts.schedule "arrival", allreduce and reduce; Hoplite,
 * Zhuang et al., SIGCOMM 2021): ranks take the places of a tree as they arrive, and sums flow
 * through it at once, chunk by chunk, so that a late rank delays only its own data. Results are
 * bit-identical on all ranks of a call, but not from run to run: additions follow the order of
 * arrival. -ENOTSUP: deterministic, operations that do not commute, linear codecs,
 * participation sets. With any other codec each rank encodes its sum once; a rank whose input
 * does not count keeps its residuals. Without at_least and codec a short sum, of some 10 KiB,
 * runs the schedule of "static" if that takes less time even after the last arrival. Otherwise
 * rank 0 or 1 tracks arrivals (of ranks 0, 1 and 2, two must have arrived, of two ranks, rank
 * 0; before that no sums flow); in a reduce that rank stays until all counting ranks have
 * arrived. A failure acts as in any call: all ranks get its error.
 *
 * at_least k, 0 < k <= ranks, equal on all: the result is that of the first k ranks to arrive,
 * or, for a long sum, of all if they arrive within 2 ms; these return without waiting for the
 * others. (k = ranks: all, in order of arrival for any length.) In a reduce the root is always
 * one of them. AVG divides by the number of inputs. A later rank gets the same result, and
 * finds its own entry in contributors 0: its input is in no sum, and may be kept for the next
 * call. In an allreduce contributors is the same set on all ranks; in a reduce the root has all
 * of it, and other ranks only [own rank]. Rank 0 or 1 answers late ranks when it calls the
 * library, or by its progress thread; it keeps the results of up to 8 calls for late ranks, and
 * the next call waits for all ranks. Finalize such a communicator, do not destroy it, as that
 * drops the results that late ranks need. -EINVAL without schedule "arrival".
 *
 * Schedule "auto" does this by itself for long allreduces (predicted at 5 ms or more) of 3 or
 * more ranks with a network port each, without a codec, while ranks are so late that it pays;
 * all ranks switch at the same call (sums_asked and sums_by_arrival of struct banyan_stats).
 * Such sums have the same bits on all ranks, but not from run to run: if that matters request
 * deterministic, a schedule by name, or "static", which chooses as "auto" does for punctual
 * ranks. */

/* recvbuf = op over all ranks of sendbuf, [count] elements, on every rank; bit-identical on all
 * ranks. In place if sendbuf == recvbuf. */
BANYAN_API int banyan_allreduce(const void *sendbuf, void *recvbuf, size_t count,
                                enum banyan_dtype dtype, banyan_op op, struct banyan_comm *comm,
                                const struct banyan_opts *opts);
/* The same, to root only; other ranks' recvbuf is ignored (may be NULL). In place on root: same
 * pointer. */
BANYAN_API int banyan_reduce(const void *sendbuf, void *recvbuf, size_t count,
                             enum banyan_dtype dtype, banyan_op op, int root,
                             struct banyan_comm *comm, const struct banyan_opts *opts);
/* buf of root to buf of every rank. */
BANYAN_API int banyan_broadcast(void *buf, size_t count, enum banyan_dtype dtype, int root,
                                struct banyan_comm *comm, const struct banyan_opts *opts);
/* sendbuf [nranks*recvcount]; rank r gets block r reduced. In place: recvbuf == sendbuf +
 * r*recvcount elements. sendbuf's other blocks are then left unchanged. */
BANYAN_API int banyan_reduce_scatter(const void *sendbuf, void *recvbuf, size_t recvcount,
                                     enum banyan_dtype dtype, banyan_op op,
                                     struct banyan_comm *comm, const struct banyan_opts *opts);
/* As above with counts[nranks] elements for each rank, blocks one after another in sendbuf. */
BANYAN_API int banyan_reduce_scatterv(const void *sendbuf, void *recvbuf, const size_t *counts,
                                      enum banyan_dtype dtype, banyan_op op,
                                      struct banyan_comm *comm, const struct banyan_opts *opts);
/* recvbuf [nranks*sendcount] = all ranks' sendbuf in rank order. In place: sendbuf == recvbuf +
 * rank*sendcount elements. */
BANYAN_API int banyan_allgather(const void *sendbuf, void *recvbuf, size_t sendcount,
                                enum banyan_dtype dtype, struct banyan_comm *comm,
                                const struct banyan_opts *opts);
/* counts[nranks] must agree between ranks; displs[nranks] (elements into recvbuf) may differ,
 * NULL: packed. In place: sendbuf == recvbuf + displs[rank]. */
BANYAN_API int banyan_allgatherv(const void *sendbuf, void *recvbuf, const size_t *counts,
                                 const size_t *displs, enum banyan_dtype dtype,
                                 struct banyan_comm *comm, const struct banyan_opts *opts);
/* recvbuf [nranks*sendcount] of root = all ranks' sendbuf in rank order; other ranks' recvbuf
 * is ignored (may be NULL). */
BANYAN_API int banyan_gather(const void *sendbuf, void *recvbuf, size_t sendcount,
                             enum banyan_dtype dtype, int root, struct banyan_comm *comm,
                             const struct banyan_opts *opts);
/* counts and displs are read on root only, sendcount on all ranks. */
BANYAN_API int banyan_gatherv(const void *sendbuf, size_t sendcount, void *recvbuf,
                              const size_t *counts, const size_t *displs,
                              enum banyan_dtype dtype, int root, struct banyan_comm *comm,
                              const struct banyan_opts *opts);
/* Block r of root's sendbuf [nranks*recvcount] to recvbuf of rank r; other ranks' sendbuf is
 * ignored (may be NULL). */
BANYAN_API int banyan_scatter(const void *sendbuf, void *recvbuf, size_t recvcount,
                              enum banyan_dtype dtype, int root, struct banyan_comm *comm,
                              const struct banyan_opts *opts);
/* counts and displs are read on root only, recvcount on all ranks. */
BANYAN_API int banyan_scatterv(const void *sendbuf, const size_t *counts, const size_t *displs,
                               void *recvbuf, size_t recvcount, enum banyan_dtype dtype,
                               int root, struct banyan_comm *comm,
                               const struct banyan_opts *opts);
/* Block p of sendbuf to rank p, which stores it as block `rank`; count elements per block. In
 * place if sendbuf == recvbuf (staged). */
BANYAN_API int banyan_alltoall(const void *sendbuf, void *recvbuf, size_t count,
                               enum banyan_dtype dtype, struct banyan_comm *comm,
                               const struct banyan_opts *opts);
/* displs NULL: packed. Not in place. */
BANYAN_API int banyan_alltoallv(const void *sendbuf, const size_t *sendcounts,
                                const size_t *sdispls, void *recvbuf, const size_t *recvcounts,
                                const size_t *rdispls, enum banyan_dtype dtype,
                                struct banyan_comm *comm, const struct banyan_opts *opts);
/* Returns after all ranks have called it. */
BANYAN_API int banyan_barrier(struct banyan_comm *comm, const struct banyan_opts *opts);
/* Inclusive / exclusive prefix over ranks. exscan leaves rank 0's recvbuf unchanged. In place:
 * same ptr. op: not AVG (-EINVAL). */
BANYAN_API int banyan_scan(const void *sendbuf, void *recvbuf, size_t count,
                           enum banyan_dtype dtype, banyan_op op, struct banyan_comm *comm,
                           const struct banyan_opts *opts);
BANYAN_API int banyan_exscan(const void *sendbuf, void *recvbuf, size_t count,
                             enum banyan_dtype dtype, banyan_op op, struct banyan_comm *comm,
                             const struct banyan_opts *opts);
/* Point to point; the k-th send to a peer with a tag matches that peer's k-th recv with it.
 * Count and type of both must be equal, else both fail with -BANYAN_EMISMATCH. A send of up to
 * a few KiB may return before the receiver has called, but unreceived messages are bounded, to
 * about 1000 short ones or 1 MiB for each pair of ranks of a communicator. Beyond that a send
 * waits until some were received, or until its own receive has begun: tags may be received in
 * any order. Messages to oneself are copied and not bounded. */
BANYAN_API int banyan_send(const void *buf, size_t count, enum banyan_dtype dtype, int peer,
                           struct banyan_comm *comm, const struct banyan_opts *opts);
BANYAN_API int banyan_recv(void *buf, size_t count, enum banyan_dtype dtype, int peer,
                           struct banyan_comm *comm, const struct banyan_opts *opts);

/* In place of a receive's peer: the first message with its tag, of whatever rank, that no other
 * receive awaits. Such a receive waits for no rank in particular: ranks that leave do not fail
 * it. A receive and a probe find a long message about a millisecond after its send, or within a
 * second if its receiver makes the communicator later. */
#define BANYAN_ANY_SOURCE (-1)
/* Progresses, then looks for a message with this tag from peer, or BANYAN_ANY_SOURCE, that a
 * receive which is called now would get. Returns 1, *source (its rank) and *bytes (either may
 * be NULL); 0: there is none so far; or the communicator's error. Never waits. */
BANYAN_API int banyan_probe(struct banyan_comm *comm, int peer, uint32_t tag, int *source,
                            size_t *bytes);

/* A send and a receive at once, as in a group of their own but cheaper: to and from any ranks,
 * with separate counts and types; opts, including its tag, is for both. The buffers must not
 * overlap. Nothing is sent if an argument of either is invalid. */
BANYAN_API int banyan_sendrecv(const void *sendbuf, size_t sendcount,
                               enum banyan_dtype sendtype, int to, void *recvbuf,
                               size_t recvcount, enum banyan_dtype recvtype, int from,
                               struct banyan_comm *comm, const struct banyan_opts *opts);

/* Between these, blocking calls of this thread only queue (and return 0, -EINVAL or -ENOMEM);
 * group_end runs them together and returns the first error. If memory is lacking to queue one,
 * none runs, and group_end returns -ENOMEM: the group may be retried. Groups nest. Needed for
 * several send/recv that depend on each other. Calls that wait for other ranks and are not
 * collectives listed here, such as those that make communicators and all communicating calls of
 * training.h, methods.h and objects.h, return -EBUSY inside a group. */
BANYAN_API int banyan_group_start(void);
BANYAN_API int banyan_group_end(void);

/* Persistent requests: arguments as in the blocking call. The request is inactive until
 * started. */
BANYAN_API int banyan_allreduce_init(const void *sendbuf, void *recvbuf, size_t count,
                                     enum banyan_dtype dtype, banyan_op op,
                                     struct banyan_comm *comm, const struct banyan_opts *opts,
                                     struct banyan_request **out);
BANYAN_API int banyan_reduce_init(const void *sendbuf, void *recvbuf, size_t count,
                                  enum banyan_dtype dtype, banyan_op op, int root,
                                  struct banyan_comm *comm, const struct banyan_opts *opts,
                                  struct banyan_request **out);
BANYAN_API int banyan_broadcast_init(void *buf, size_t count, enum banyan_dtype dtype, int root,
                                     struct banyan_comm *comm, const struct banyan_opts *opts,
                                     struct banyan_request **out);
BANYAN_API int banyan_reduce_scatter_init(const void *sendbuf, void *recvbuf, size_t recvcount,
                                          enum banyan_dtype dtype, banyan_op op,
                                          struct banyan_comm *comm,
                                          const struct banyan_opts *opts,
                                          struct banyan_request **out);
BANYAN_API int banyan_reduce_scatterv_init(const void *sendbuf, void *recvbuf,
                                           const size_t *counts, enum banyan_dtype dtype,
                                           banyan_op op, struct banyan_comm *comm,
                                           const struct banyan_opts *opts,
                                           struct banyan_request **out);
BANYAN_API int banyan_allgather_init(const void *sendbuf, void *recvbuf, size_t sendcount,
                                     enum banyan_dtype dtype, struct banyan_comm *comm,
                                     const struct banyan_opts *opts,
                                     struct banyan_request **out);
BANYAN_API int banyan_allgatherv_init(const void *sendbuf, void *recvbuf, const size_t *counts,
                                      const size_t *displs, enum banyan_dtype dtype,
                                      struct banyan_comm *comm, const struct banyan_opts *opts,
                                      struct banyan_request **out);
BANYAN_API int banyan_gather_init(const void *sendbuf, void *recvbuf, size_t sendcount,
                                  enum banyan_dtype dtype, int root, struct banyan_comm *comm,
                                  const struct banyan_opts *opts, struct banyan_request **out);
BANYAN_API int banyan_gatherv_init(const void *sendbuf, size_t sendcount, void *recvbuf,
                                   const size_t *counts, const size_t *displs,
                                   enum banyan_dtype dtype, int root, struct banyan_comm *comm,
                                   const struct banyan_opts *opts, struct banyan_request **out);
BANYAN_API int banyan_scatter_init(const void *sendbuf, void *recvbuf, size_t recvcount,
                                   enum banyan_dtype dtype, int root, struct banyan_comm *comm,
                                   const struct banyan_opts *opts, struct banyan_request **out);
BANYAN_API int banyan_scatterv_init(const void *sendbuf, const size_t *counts,
                                    const size_t *displs, void *recvbuf, size_t recvcount,
                                    enum banyan_dtype dtype, int root, struct banyan_comm *comm,
                                    const struct banyan_opts *opts,
                                    struct banyan_request **out);
BANYAN_API int banyan_alltoall_init(const void *sendbuf, void *recvbuf, size_t count,
                                    enum banyan_dtype dtype, struct banyan_comm *comm,
                                    const struct banyan_opts *opts,
                                    struct banyan_request **out);
BANYAN_API int banyan_alltoallv_init(const void *sendbuf, const size_t *sendcounts,
                                     const size_t *sdispls, void *recvbuf,
                                     const size_t *recvcounts, const size_t *rdispls,
                                     enum banyan_dtype dtype, struct banyan_comm *comm,
                                     const struct banyan_opts *opts,
                                     struct banyan_request **out);
BANYAN_API int banyan_barrier_init(struct banyan_comm *comm, const struct banyan_opts *opts,
                                   struct banyan_request **out);
BANYAN_API int banyan_scan_init(const void *sendbuf, void *recvbuf, size_t count,
                                enum banyan_dtype dtype, banyan_op op, struct banyan_comm *comm,
                                const struct banyan_opts *opts, struct banyan_request **out);
BANYAN_API int banyan_exscan_init(const void *sendbuf, void *recvbuf, size_t count,
                                  enum banyan_dtype dtype, banyan_op op,
                                  struct banyan_comm *comm, const struct banyan_opts *opts,
                                  struct banyan_request **out);
BANYAN_API int banyan_send_init(const void *buf, size_t count, enum banyan_dtype dtype,
                                int peer, struct banyan_comm *comm,
                                const struct banyan_opts *opts, struct banyan_request **out);
BANYAN_API int banyan_recv_init(void *buf, size_t count, enum banyan_dtype dtype, int peer,
                                struct banyan_comm *comm, const struct banyan_opts *opts,
                                struct banyan_request **out);

/* Starts an inactive request; buffers are borrowed until it completes. -EBUSY while it is
 * active: from here until a wait or test has reported completion or failure. (If it failed and
 * no call has reported that yet, starting it returns its error.) */
BANYAN_API int banyan_start(struct banyan_request *req);
/* The same for once, so that banyan_X_init and this make a call that does not block: the
 * request frees itself. With a completion function that happens when the function returns, and
 * nobody may wait for it or test it (-EINVAL); without one the test or the wait that reports
 * its end frees it. A request that did not start is not freed. */
BANYAN_API int banyan_start_once(struct banyan_request *req);
/* Progresses; sets *done = 1 if complete or failed (and returns the error then). Never
 * blocks. */
BANYAN_API int banyan_test(struct banyan_request *req, int *done);
/* Called once when an operation that banyan_start has started is complete or has failed (rc <
 * 0, with its sentence in banyan_last_error), by whichever thread makes the progress: one that
 * is in banyan_start, in a test or a wait, in any blocking call, or the progress thread.
 * Functions are called one at a time, in the order of completion, with no lock of the library
 * held. It may start requests, also this one, test and free them; calls that wait, and
 * banyan_comm_destroy, return -BANYAN_EBUSY. An event loop writes to an eventfd of its own
 * here. */
typedef void (*banyan_done_fn)(void *ctx, struct banyan_request *req, int rc);
/* Sets the function of a request; NULL: none. With one, a request that is complete may be
 * started again and freed without a wait: by the function itself, or when it has returned;
 * until then other threads get -EBUSY. A wait or a test returns behind the function; nobody may
 * wait for a request that its function frees. Borrows ctx. Returns 0, -EINVAL; -EBUSY while the
 * request is active. */
BANYAN_API int banyan_request_on_done(struct banyan_request *req, banyan_done_fn fn, void *ctx);
/* Waits until complete, at most so many seconds: *done says whether it is. It fails nothing,
 * and several threads may wait for one request, which none of them starts or frees before all
 * have returned. A thread that did not start the request takes little of the processor that the
 * others compute on: it sleeps where banyan_wait would spin. Returns 0, or the operation's
 * error. */
BANYAN_API int banyan_wait_for(struct banyan_request *req, double seconds, int *done);
/* Waits until complete. timeout_s < 0: the operation's own deadline; passing it fails the comm.
 */
BANYAN_API int banyan_wait(struct banyan_request *req, double timeout_s);
BANYAN_API int banyan_wait_all(struct banyan_request *const *reqs, size_t n, double timeout_s);
/* *index = one of the active requests that completed; -EINVAL if none is active. */
BANYAN_API int banyan_wait_any(struct banyan_request *const *reqs, size_t n, double timeout_s,
                               size_t *index);
/* The cost of a request's latest operation to this rank. */
struct banyan_request_stats {
    size_t size;         /* sizeof of the caller; set before the call */
    uint64_t wire_bytes; /* payload bytes this rank handed to transports for it */
    uint64_t start_ns;   /* CLOCK_MONOTONIC: when it was started; 0: not measured */
    uint64_t end_ns;     /* when it completed, in any thread's progress; 0: not yet */
};
/* Times cost two clock reads per operation: they are measured for operations that start after
 * the first call of this function for the request. Returns 0, -EINVAL; -EBUSY while it is
 * active. */
BANYAN_API int banyan_request_stats(struct banyan_request *req,
                                    struct banyan_request_stats *out);
/* The rank that a completed receive was from, and its bytes (may be NULL). Returns it, or
 * -EINVAL; -EBUSY while the request is active. */
BANYAN_API int banyan_request_source(struct banyan_request *req, size_t *bytes);
/* Takes NULL. -EBUSY while it is active. */
BANYAN_API int banyan_request_free(struct banyan_request *req);

/* Progresses everything of comm once; returns the number of events handled or an error. */
BANYAN_API int banyan_progress(struct banyan_comm *comm);
/* A descriptor for event loops, readable if banyan_progress has work or should be called again,
 * and quiet otherwise: poll it, then call banyan_progress, which alone clears it, then check
 * the requests (banyan_test). It is readable at least every millisecond while an operation
 * runs, otherwise every .1 s, and when data arrives. Owned by the library. -ESYSTEM if the
 * process can open no more. */
BANYAN_API int banyan_progress_fd(struct banyan_comm *comm);

/* Lists, for tools: the i-th name, or NULL past the end. Any thread. */
BANYAN_API const char *banyan_schedule_name(size_t i);
BANYAN_API const char *banyan_codec_name(size_t i);
BANYAN_API const char *banyan_transport_name(size_t i);
/* The i-th environment variable, or key of one ("BANYAN_VERBS=qps"): name, type, default,
 * description; 0, or -EINVAL past the end. */
BANYAN_API int banyan_param(size_t i, const char **name, const char **type, const char **def,
                            const char **doc);

#ifdef __cplusplus
}
#endif
#endif
