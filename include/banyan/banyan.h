/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan: collective communication along forests of trees.
 *
 * The public API. Compiles alone as C11 and as C++17.
 *
 * Conventions
 *   Errors     every function returns 0 (or a count) on success and a negative BANYAN_E* code
 *              on failure; banyan_last_error() has the sentence for a person: rank, argument,
 *              remedy.
 *   Counts     are elements of the call's datatype, size_t, and may exceed 2^31. Zero is legal.
 *   Threads    one thread at a time per communicator. Different communicators are independent.
 *              A thread that waits also progresses what other communicators of the process have
 *              in flight (and then calls their user operations).
 *              banyan_abort, banyan_async_error, banyan_comm_failed, _revoke, _rank, _count and
 *              _stats: any thread, any time.
 *   Sizes      structs begin with the caller's sizeof: it tells which members there are. One
 *              that no version has (it ends inside a member) is refused with -BANYAN_EINVAL.
 *   Ownership  "borrows": until the call returns (blocking) or the request completes.
 *              Handles are freed by the caller with the matching _free / _destroy, which take
 *              NULL. A call with a communicator, request or codec state that was freed returns
 *              -BANYAN_EINVAL and says so (freeing one again too; where that returns nothing,
 *              the first time in a process is a warning), until 64 more of its kind were
 *              freed: memory is then used again.
 *   Buffers    host memory of any alignment. In place: the same pointer for send and receive
 *              where a call's comment says so. Overlap otherwise is an error of the caller.
 *   Failure    a communicator that failed stays failed: later calls return the first cause.
 *   fork       a child that inherits a communicator gets -BANYAN_EFORK from every call on it
 *              and on its requests; banyan_comm_destroy does nothing there.
 */
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
    BANYAN_EINVAL = 1,    /* an argument is wrong; nothing was sent */
    BANYAN_ENOMEM = 2,    /* memory or another local resource is exhausted */
    BANYAN_ETIMEDOUT = 3, /* the deadline passed; the communicator has failed */
    BANYAN_ERANKDEAD = 4, /* a rank died or its connection was lost; the message names it */
    BANYAN_EMISMATCH = 5, /* ranks disagree on operation, count, type, op, root or order */
    BANYAN_EABORTED = 6,  /* banyan_abort was called, here or at another rank */
    BANYAN_EPROTO = 7,    /* a peer sent bytes that break the protocol */
    BANYAN_ENOTSUP = 8,   /* not supported on this machine or by this build */
    BANYAN_ESYSTEM = 9,   /* a system call failed; the message has its errno text */
    BANYAN_EFORK = 10,    /* called in a forked child */
    BANYAN_EBUSY = 11,    /* in use: a request already started, a communicator with operations
                           * in flight */
    BANYAN_EVERSION = 12, /* ranks run incompatible library versions */
    BANYAN_ECONFIG = 13,  /* settings are wrong, or differ between ranks */
    BANYAN_ERROR_COUNT
};

/* A short constant English phrase for a code (sign ignored); never NULL. Any thread. */
BANYAN_API const char *banyan_strerror(int code);
/* The calling thread's latest failure as one sentence; "" when none. Valid until its next
 * failure. */
BANYAN_API const char *banyan_last_error(void);
/* The library's version as "major.minor.patch" and as major*10000+minor*100+patch. Any thread.
 */
BANYAN_API const char *banyan_version_string(void);
BANYAN_API int banyan_version(void);

enum banyan_log_level { BANYAN_LOG_ERROR, BANYAN_LOG_WARN, BANYAN_LOG_INFO, BANYAN_LOG_DEBUG };
/* Called with one line without newline; may be called from any thread, must not call banyan. */
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
    BANYAN_DTYPE_COUNT
};
/* Bytes of one element; 0 for an unknown type. */
BANYAN_API size_t banyan_dtype_bytes(enum banyan_dtype dtype);
BANYAN_API const char *banyan_dtype_name(enum banyan_dtype dtype);

/* Reduction operations. f16 and bf16 are added in f32 and rounded once per step. Integer sums
 * wrap. AVG is the sum divided by the number of ranks (integers: truncated; floats: times the
 * number's reciprocal, so within a unit in the last place of the quotient). Bitwise ops:
 * integers only. min/max of floats: when exactly one operand is NaN the other one is the
 * result. All arithmetic, that of user operations and codecs included, is done in the default
 * floating-point mode (to nearest, subnormals kept, no traps), whatever mode the calling thread
 * has, which it keeps: a progress thread may have another, and all ranks get the same bits. */
enum banyan_op_kind {
    BANYAN_SUM,
    BANYAN_AVG,
    BANYAN_MIN,
    BANYAN_MAX,
    BANYAN_PROD,
    BANYAN_BAND,
    BANYAN_BOR,
    BANYAN_BXOR,
    BANYAN_OP_BUILTIN_COUNT
};
/* An operation: a built-in kind, or a handle made by the functions below. */
typedef uint32_t banyan_op;

/* inout[i] = in[i] (op) inout[i]; n elements of elem_bytes each; ranks' order is in before
 * inout. It may be called by any call that waits, and must not make calls that do: all that
 * take a communicator or a request, that make one, and groups return -BANYAN_EBUSY in it, but
 * for banyan_comm_rank, _count, _stats, banyan_async_error and banyan_abort. Operations and
 * codec states may be made and freed there, those that are in use excepted. */
typedef void (*banyan_user_fn)(void *ctx, const void *in, void *inout, size_t n,
                               enum banyan_dtype dtype);
/* Makes a user operation. elem_bytes: 0 to use it with the built-in types as they are, or the
 * size of an opaque element: a call's count then counts BANYAN_U8 bytes and must be a multiple
 * of it; pieces are cut on multiples only. alignment: of the pointers fn is given (power of
 * two, 0 for elem size). commutative: 0 keeps rank order 0 o 1 o 2 ... (slower: one tree).
 * Borrows ctx until banyan_op_free. Returns 0, -EINVAL, -ENOMEM. Any thread. */
BANYAN_API int banyan_op_create_user(banyan_user_fn fn, void *ctx, size_t elem_bytes,
                                     size_t alignment, int commutative, banyan_op *out);
/* sum over ranks of scalar_r * x_r; the scalar may differ by rank (floats only). */
BANYAN_API int banyan_op_create_premul_sum(double scalar, banyan_op *out);
/* Returns 0, or -EINVAL when op is no created operation. No operation that uses it may be in
 * flight. */
BANYAN_API int banyan_op_free(banyan_op op);

/* ---------------------------------------------------------------------------------------------
 * Communicators.
 */
struct banyan_comm;    /* opaque */
struct banyan_request; /* opaque */

/* Names one job: where its root listens, and the secret that proves membership. Keep it as
 * private as the job: whoever has it can join. Plain bytes: copy it, send it by any side
 * channel. */
struct banyan_id {
    unsigned char bytes[128];
};
/* Makes an id and starts listening for the job's ranks in this process, which must become rank
 * 0. Honours BANYAN_IFNAME and BANYAN_PORT_RANGE. Returns 0, -ESYSTEM, -ECONFIG. Any thread. */
BANYAN_API int banyan_id_create(struct banyan_id *out);

/* Caller's own all-gather for the bootstrap: every rank contributes `bytes` bytes at `in`, and
 * gets nranks*bytes at `out` in rank order. Returns 0 or non-zero on failure. Called from init
 * only. */
typedef int (*banyan_allgather_fn)(void *ctx, const void *in, void *out, size_t bytes);

/* Settings of a communicator. Always start from banyan_config_default(). Members may be added
 * at the end; `size` tells the library which ones the caller knew. */
struct banyan_config {
    size_t size;            /* sizeof(struct banyan_config) of the caller */
    double init_timeout_s;  /* deadline of init; default 60; 0: none, it waits for ranks that do
                               not come for ever. The earliest of all ranks counts */
    double op_timeout_s;    /* deadline of an operation without its own; default 300; 0: none */
    const char *transport;  /* "auto", "shm", "verbs", "ud", "dpdk", "tcp", "loop"; default
                               BANYAN_TRANSPORT or auto */
    const char *schedule;   /* default schedule: "auto", "static", a name of
                               banyan_schedule_name(), or the path of a plan (JSON or MSCCL XML)
                             */
    const char *codec;      /* default codec: "none" or a codec's name */
    const char *ifname;     /* interface(s) for TCP and verbs: "eth0,ib", or "^lo,docker" to
                             * exclude; for verbs also an RDMA device: "mlx5_0:1" */
    const char *port_range; /* "20000-20100"; default: any */
    size_t chunk_bytes;     /* 0: chosen by size */
    int progress_thread;    /* 1: a thread of the library progresses this communicator */
    int progress_cpu;       /* CPU to bind that thread to; -1: unbound */
    int deterministic; /* 1: same bits whatever size and schedule (one canonical association) */
    void (*progress_hook)(
        void *ctx); /* called from wait loops, to drive the caller's own progress */
    void *progress_hook_ctx;
    banyan_allgather_fn
        allgather; /* replaces the TCP bootstrap when not NULL; id may then be NULL */
    void *allgather_ctx;
    const char *topology; /* the cluster graph: a generator ("torus:8x8") or a file, see
                           * banyan_topo --help; NULL or "": BANYAN_TOPO, or none. Its ranks are
                           * this job's, or its hosts in order of their lowest ranks */
};
BANYAN_API void banyan_config_default(struct banyan_config *cfg);

/* Joins the job `id` as `rank` of `nranks`. Blocks until all ranks are there or the deadline
 * passes. Settings that must agree (version, transport, schedule, topology, codec, chunk,
 * deterministic, and the variables that docs/environment.md names) are compared. cfg may be
 * NULL. Returns 0 and *out, or -EINVAL, -ETIMEDOUT (names the missing ranks), -EPROTO
 * (duplicate rank, rank out of range, other job), -EVERSION, -ECONFIG, -ESYSTEM, -ENOMEM. */
BANYAN_API int banyan_comm_init(struct banyan_comm **out, const struct banyan_id *id,
                                int nranks, int rank, const struct banyan_config *cfg);
/* The same, not blocking: *out is usable only after banyan_comm_init_test says done. */
BANYAN_API int banyan_comm_init_start(struct banyan_comm **out, const struct banyan_id *id,
                                      int nranks, int rank, const struct banyan_config *cfg);
/* Sets *done to 1 when init has finished. Returns 0, or init's error (then destroy the comm).
 */
BANYAN_API int banyan_comm_init_test(struct banyan_comm *comm, int *done);
/* Joins the job described by the environment: banyan_run, torchrun (RANK, WORLD_SIZE,
 * MASTER_ADDR, MASTER_PORT), PMIx, Open MPI, MPICH/PMI, Slurm. Without any of them: one rank
 * alone. Returns as banyan_comm_init, and -ECONFIG naming the variable that is missing or
 * wrong. */
BANYAN_API int banyan_comm_init_env(struct banyan_comm **out, const struct banyan_config *cfg);
/* A communicator of the same ranks with its own order of operations; shares connections.
 * Collective. */
BANYAN_API int banyan_comm_dup(struct banyan_comm *comm, struct banyan_comm **out);
/* Ranks with the same color >= 0 form a communicator ordered by (key, rank); color < 0: *out =
 * NULL. Collective. */
BANYAN_API int banyan_comm_split(struct banyan_comm *comm, int color, int key,
                                 struct banyan_comm **out);
/* A barrier: every rank has finished its operations and calls no more of them; then destroys.
 * -EBUSY, and comm lives on, when an operation of this rank is in flight or inside a group:
 * wait for its request and call again. Otherwise comm is gone in any case. Returns 0, or the
 * failure that came to light by then: ranks that called different operations in which they only
 * sent hear of it here, if not before. A communicator that had failed is only destroyed, and 0
 * returned: its failure was told by the calls before. */
BANYAN_API int banyan_comm_finalize(struct banyan_comm *comm);
/* Frees local resources without asking anybody; takes NULL. What this rank has sent is on its
 * way to the others before the last communicator of a job is gone: it waits for that, 10 s at
 * most. Peers that still need this rank, or whose operation with it is in flight here, see it
 * as gone. Requests of comm must be freed before. Its calls in a group that has not ended are
 * dropped: banyan_group_end then returns -EINVAL. */
BANYAN_API void banyan_comm_destroy(struct banyan_comm *comm);
BANYAN_API int banyan_comm_rank(const struct banyan_comm *comm);
BANYAN_API int banyan_comm_count(const struct banyan_comm *comm);
/* Fails the communicator everywhere with -BANYAN_EABORTED. Returns at once. Any thread, also
 * while another one is in banyan_comm_finalize. */
BANYAN_API int banyan_abort(struct banyan_comm *comm, const char *reason);
/* 0 while healthy, else the first cause; *blamed (may be NULL) is the rank at fault or -1; text
 * into buf (may be NULL). It looks at what the ranks have agreed on by now, so a thread that
 * watches hears of a death while others compute, or wait; it makes no other progress, and never
 * waits. Any thread, also while another one is in banyan_comm_finalize. */
BANYAN_API int banyan_async_error(struct banyan_comm *comm, int *blamed, char *buf, size_t cap);

/* Going on after failures (docs/failures.md): these work on communicators that have failed.
 *
 * The ranks of comm that are dead or have left, as all survivors have agreed: ascending, the
 * first cap of them into ranks (NULL when cap is 0). Returns how many there are. What is agreed
 * on a little later is not in it yet: banyan_comm_agree gives all the same. Local; any thread.
 */
BANYAN_API int banyan_comm_failed(struct banyan_comm *comm, int *ranks, int cap);
/* Gives the communicator up at all ranks: what is in flight and every later operation fails
 * with -BANYAN_EABORTED and these words. Any member may, for itself: to bring others who wait
 * for it to where it is. Returns at once. Any thread. */
BANYAN_API int banyan_comm_revoke(struct banyan_comm *comm, const char *why);
/* All live members call it, as often and in the same order, and get the same: *bits (may be
 * NULL) is the AND of theirs; dead[cap] the ranks that are dead or have left, as in
 * banyan_comm_failed; returned is their number. Ranks that die meanwhile do not hinder it. Use
 * it to learn whether an operation succeeded everywhere. -BANYAN_ETIMEDOUT, at all, when a live
 * member has not called it within twice the communicator's op_timeout_s: it may first wait for
 * the end of an operation, as long as that may take; -BANYAN_ERANKDEAD when the
 * others took this rank for dead. Blocks. */
BANYAN_API int banyan_comm_agree(struct banyan_comm *comm, uint64_t *bits, int *dead, int cap);

/* A communicator of the members of comm that live, in their order, with its settings: all of
 * them call it, when an operation has failed or when one of them wants it, and get the same
 * members (in one round of agreement; banyan_comm_rank and _count say which they are). comm is
 * given up first, as by banyan_comm_revoke: whoever still waits in it comes here, and
 * afterwards it can only be destroyed. Nobody died: as a dup. Connections and memory of
 * banyan_mem_alloc stay; plans are made for the ranks that are left, on the graph without the
 * others. Codec states can be used with it (banyan_codec_state_undo); the residuals of the dead
 * are lost. Returns 0; -BANYAN_ETIMEDOUT at all when a live member did not come within comm's
 * op_timeout_s twice. But where comm has failed by a missed deadline, or a call that agrees has
 * ended like that before, such members are left out, after 2 s those who do not answer at all,
 * if those who came are most (BANYAN_QUORUM). -BANYAN_ERANKDEAD when the others took this rank
 * for dead, or left it out; -BANYAN_EINVAL, -BANYAN_EBUSY, -BANYAN_ENOMEM. Blocks. */
BANYAN_API int banyan_comm_shrink(struct banyan_comm *comm, struct banyan_comm **out);
/* All the communicators of a rank that have failed, n at least 1, at once: out[i] is what is
 * left of comms[i]. Ranks that are in several communicators, each with other ranks, need no
 * order among them, where banyan_comm_shrink of one after the other wants the same order
 * everywhere: two ranks that shrink two communicators crosswise wait for each other until a
 * deadline. Every live member of comms[i] passes it, to this call or to banyan_comm_shrink.
 * Returns 0, or the error of the first that was not made, as of banyan_comm_shrink; where
 * out[i] is not NULL it was. -BANYAN_EINVAL also where one is there twice, with nothing given
 * up. Blocks. */
BANYAN_API int banyan_comm_shrink_many(struct banyan_comm *const *comms, int n,
                                       struct banyan_comm **out);

/* Growing: newcomers, processes that are restarted ones or new, become ranks of a job that
 * runs. What grew is a world of its own, as if its members had just been started: with its own
 * secret and connections, which takes as long as joining a job. comm lives on beside it, until
 * it is finalized or destroyed; communicators made of it stay in the old world. No byte of an
 * earlier life of a rank can be taken for one of its present life, and a rank may die and come
 * back as often as it likes. What newcomers have to know of the computation the program sends
 * them (banyan_broadcast).
 *
 * An id by which newcomers join comm: send it to them by any side channel, and keep it as
 * private as the job. One member makes it, any; from now on newcomers may come, and wait, while
 * the members compute. It serves one banyan_comm_grow, succeed or fail, and ends with comm.
 * Where banyan_run restarts ranks those who wait get the latest id by themselves. Honours
 * BANYAN_IFNAME and BANYAN_PORT_RANGE. Returns 0, -EINVAL, -ESYSTEM, -ECONFIG, comm's failure.
 */
BANYAN_API int banyan_comm_grow_id(struct banyan_comm *comm, struct banyan_id *id);
/* A communicator of the members of comm, with their numbers, and of `newcomers` (at least 1)
 * processes that join, with the next numbers in the order in which they come. Collective over
 * comm, which must not have failed: shrink it first. id: at the member that made it; NULL at
 * the others. cfg: of the new communicator, and how long newcomers are waited for
 * (init_timeout_s); as in banyan_comm_init, and alike at newcomers; NULL: defaults. All or
 * nobody: where a newcomer does not come, dies meanwhile or has other settings all members get
 * the same error, with a sentence that says so, newcomers that came get one too, and comm works
 * on. Where a member dies comm fails as ever. Blocks. Returns 0; -ETIMEDOUT, -ERANKDEAD,
 * -ECONFIG, -EVERSION, -EPROTO as said; -EINVAL: an argument is wrong at any member, or the id
 * was used; -EBUSY inside a group; -ENOMEM, -ESYSTEM. */
BANYAN_API int banyan_comm_grow(struct banyan_comm *comm, const struct banyan_id *id,
                                int newcomers, const struct banyan_config *cfg,
                                struct banyan_comm **out);
/* A newcomer's part: joins by an id of banyan_comm_grow_id; banyan_comm_rank and _count tell
 * its place afterwards. Blocks until the members grow, for init_timeout_s at most. id NULL: of
 * a process that banyan_run --restart has started again: waits for ids of the members and tries
 * one after the other, as long as there are members. Returns 0; -ERANKDEAD: the id was used, or
 * who made it has ended, as may be with any member; -EPROTO: it is another id; -EBUSY: others
 * came first; -ETIMEDOUT; what made banyan_comm_grow fail; -EINVAL, -ENOMEM, -ESYSTEM. */
BANYAN_API int banyan_comm_join(struct banyan_comm **out, const struct banyan_id *id,
                                const struct banyan_config *cfg);
/* Under banyan_run --restart: how many restarted processes wait in banyan_comm_join(out, NULL,
 * ...) at this moment. Other members may see another number: agree on it, with a MIN, before
 * banyan_comm_grow. 0 elsewhere. Any thread. */
BANYAN_API int banyan_job_waiting(void);
/* How often banyan_run --restart has started this rank again: where it is not 0, call
 * banyan_comm_join(out, NULL, ...) instead of banyan_comm_init_env. Any thread. */
BANYAN_API int banyan_job_restarts(void);

/* A communicator of the n ranks of comm that are listed, in that order, with comm's settings.
 * Only they call it, with the same ranks and tag, this rank among them; the others may compute,
 * be dead, or make other groups at the same time. Calls with the same ranks and tag meet in the
 * order in which each rank makes them; threads of a rank use different tags. comm may have
 * failed. Returns 0, or at all members alike: -BANYAN_ERANKDEAD when one of them has died or
 * left; -BANYAN_ETIMEDOUT when one has not called it within comm's op_timeout_s, or when comm
 * is revoked or aborted while others wait for it, or was before, and no call on comm has told
 * one of them yet.
 * -BANYAN_ERANKDEAD when the others took this rank for dead; -BANYAN_EINVAL, -BANYAN_EBUSY,
 * -BANYAN_ENOMEM. Blocks; a rank of the world that is stopped delays it by 2 s. */
BANYAN_API int banyan_comm_create_group(struct banyan_comm *comm, const int *ranks, int n,
                                        int tag, struct banyan_comm **out);

/* Counters since init, for tools. Any thread, a user's operation too; what calls that have
 * returned sent is in them. Members may be added at the end, and only those that the caller's
 * size has are written. */
struct banyan_stats {
    size_t size;  /* sizeof of the caller; set before the call. 0: up to sleeps */
    uint64_t ops; /* operations completed */
    uint64_t
        wire_bytes; /* payload bytes this rank handed to transports (puts and pulls included) */
    uint64_t messages; /* messages this rank sent; news for a peer in shared memory are one */
    uint64_t copied_bytes; /* payload bytes copied by the CPU besides the reduction itself */
    uint64_t sleeps;       /* times a wait slept in the kernel */
    uint64_t replaced; /* connections (verbs: queue pairs) of this rank that were replaced, with
                          nothing lost */
    uint64_t moved;    /* of these, those that went on over another network device */
    uint64_t staged_bytes; /* of copied_bytes: copied before they were sent, to where the
                              network or the peer reads them */
    uint64_t pinned_bytes; /* registered with network devices now, for slots and queues of the
                              peers so far (verbs); memory that you registered is not in it */
    uint64_t sums_asked; /* allreduces of schedule "auto" in which ranks told when they came */
    uint64_t sums_by_arrival; /* of these, run in order of arrival, as ranks had been late */
};
BANYAN_API int banyan_comm_stats(struct banyan_comm *comm, struct banyan_stats *out);
/* One line: the plan chosen for such a call: schedule, transport ("shm+tcp" when peers differ,
 * "none" alone), chunk, codec, predicted microseconds. */
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
/* Tells the library that [ptr, ptr+bytes) is a shared mapping of fd at offset (memfd or tmpfs),
 * or, with fd = -1, memory to register with network devices. Borrows until deregistered. */
BANYAN_API int banyan_mem_register(struct banyan_comm *comm, void *ptr, size_t bytes, int fd,
                                   uint64_t offset);
BANYAN_API int banyan_mem_deregister(struct banyan_comm *comm, void *ptr);

/* ---------------------------------------------------------------------------------------------
 * Codec states: what a lossy codec keeps of one tensor between operations (opts.codec_state):
 * the residual, an f32 an element, which takes what an operation lost and is added by the next
 * one; thresholds and matrices of codecs that have them. For every element, whatever schedule,
 * codec, parameters and number of ranks:
 *     inputs + old residuals = result + new residuals
 * where all but the result are sums over the ranks, and AVG's result is taken times their
 * number. (Codec dgc adds its momentum, kept in the state too, to the left side.) Residuals
 * stay bounded: unbiased codecs send less than they draw where they have a state. A state
 * serves one operation at a time, of the thread that owns the communicator. An operation that
 * runs without a codec (a type or an op that it cannot do, or refused because it would lose)
 * leaves it alone. When an operation fails, elements that were encoded already have their new
 * residuals, others the old ones: the state can be used, but what the failed operation took
 * from it is lost; to be exact undo it, or load a saved one.
 */
struct banyan_codec_state; /* opaque */
/* A state of a tensor of count elements: allreduce, reduce, broadcast: the call's count;
 * reduce_scatter and allgather: of all ranks' blocks together. seed: any number, the same on
 * all ranks, for codecs that choose at random. Returns 0, -EINVAL, -ENOMEM. Freed by the
 * caller; takes NULL. Not while an operation uses it. */
BANYAN_API int banyan_codec_state_create(struct banyan_codec_state **out, size_t count,
                                         uint64_t seed);
BANYAN_API void banyan_codec_state_free(struct banyan_codec_state *st);
/* As new. These return 0, -EINVAL, -EBUSY while an operation uses it. */
BANYAN_API int banyan_codec_state_reset(struct banyan_codec_state *st);
/* The next operation multiplies residuals by factor: the ratio of learning rates, old to new,
 * where the inputs are gradients. Several calls multiply. */
BANYAN_API int banyan_codec_state_scale(struct banyan_codec_state *st, double factor);
/* Adds src's residuals [src_at, +count) to dst's [dst_at, +count) and clears them in src:
 * re-bucketing. */
BANYAN_API int banyan_codec_state_move(struct banyan_codec_state *dst, size_t dst_at,
                                       struct banyan_codec_state *src, size_t src_at,
                                       size_t count);
/* The residuals [count], borrowed from the state until it is used next. */
BANYAN_API const float *banyan_codec_state_residual(const struct banyan_codec_state *st);
/* Writes all of it to buf, of at least banyan_codec_state_bytes. The format has a version and a
 * checksum. */
BANYAN_API size_t banyan_codec_state_bytes(const struct banyan_codec_state *st);
BANYAN_API int banyan_codec_state_save(const struct banyan_codec_state *st, void *buf,
                                       size_t cap);
/* -EINVAL and unchanged unless buf is a whole saved state of as many elements. */
BANYAN_API int banyan_codec_state_load(struct banyan_codec_state *st, const void *buf,
                                       size_t bytes);

/* The number of operations that used it, or were to be used: the same on all ranks, but after a
 * failure, which may have come before one of them began. Returns 0, -EINVAL. */
BANYAN_API int banyan_codec_state_step(const struct banyan_codec_state *st, uint32_t *step);
/* on: from now on each operation keeps a copy of what it finds, so that it can be undone: as
 * much memory again, and one more pass over it an operation. Returns 0, -EINVAL, -EBUSY,
 * -ENOMEM. */
BANYAN_API int banyan_codec_state_keep_undo(struct banyan_codec_state *st, int on);
/* Back to what the state was at `step`, whether the operation since then failed, succeeded, or
 * never began: ask for the step before an operation, and where it failed at any rank (see
 * banyan_comm_agree) undo it on all. Only the latest operation can be undone. Returns 0;
 * -EINVAL: nothing is kept of that step, or the state was reset, scaled, moved or loaded since;
 * -EBUSY, -ENOMEM. */
BANYAN_API int banyan_codec_state_undo(struct banyan_codec_state *st, uint32_t step);

/* A codec of the program's own: pure functions, called from any thread, several at a time. It
 * is used like the library's fixed-rate ones, with residuals where a state is given, which grow
 * without end where it leaves out more than there is; name:force=1 insists on it. */
struct banyan_codec {
    size_t size;      /* sizeof(struct banyan_codec) of the caller */
    const char *name; /* up to 15 letters; copied */
    void *ctx;        /* handed to the functions; borrowed for as long as the process lives */
    size_t (*bound)(
        void *ctx,
        size_t n); /* most bytes that encode writes for n elements; at most 4 n + 64 */
    /* src[n] to wire[cap], cap >= bound(n); returns the bytes written. Negative: the chunk
     * travels as it is. */
    long (*encode)(void *ctx, void *wire, size_t cap, const float *src, size_t n);
    /* wire[len] comes from a peer and may be anything: returns 0, or non-zero when it cannot be
     * of n elements. */
    int (*decode)(void *ctx, float *dst, const void *wire, size_t len, size_t n);
};
/* On all ranks, before it is named. Stays for the process's life. Returns 0, -EINVAL (the name
 * is taken, a member missing), -ENOMEM (there are 16). Any thread. */
BANYAN_API int banyan_codec_register(const struct banyan_codec *codec);

/* ---------------------------------------------------------------------------------------------
 * Collectives. Every one exists as a blocking call and as <name>_init, which makes a persistent
 * request: start it, wait, start it again. All ranks call the same collectives in the same
 * order.
 */
struct banyan_opts {
    size_t size;          /* sizeof(struct banyan_opts) of the caller */
    const char *schedule; /* NULL: the communicator's; else "static", or a name of
                           * banyan_schedule_name() */
    const char *codec;    /* NULL: the communicator's; else "none", or name:param=value,...: may
                           * be used where it is predicted to gain; force=1 insists. -ENOTSUP:
                           * it cannot do this call, or, with force=1, not shorten it. Where one
                           * is not used a warning says why, once for a communicator and codec;
                           * of the communicator's own for calls of 64 KiB and more */
    double timeout_s;     /* < 0: the communicator's; 0: none */
    uint32_t tag;      /* collectives: checked to agree; send/recv: matched. Where both root and
                        * tag differ, a tag beyond 65535 may hide it: use smaller ones */
    int deterministic; /* < 0: the communicator's; of reductions it must agree between ranks */
    size_t chunk_bytes;   /* 0: the communicator's; must agree between ranks. Send, recv: at
                             least 32 KiB are taken */
    const int64_t *shape; /* tensor shape for codecs that use it; may be NULL */
    int ndim;
    struct banyan_codec_state
        *codec_state; /* what the codec keeps of this tensor; NULL: nothing. On all ranks or
                       * on none, of the same seed, used equally often */
    const uint8_t *participants; /* [ranks of comm] 1: this rank's input counts, 0: it does not;
                                  * NULL: all count. Allreduce and reduce; see below. Borrowed
                                  * for the call, copied by the functions that make requests */
    int at_least;          /* schedule arrival: how many ranks' inputs the result needs, at
                            * least; 0: all; see below */
    uint8_t *contributors; /* [ranks of comm] or NULL: allreduce and reduce set [r] to 1 where
                            * rank r's input is in the result, else to 0. Borrowed until the
                            * call or request is over */
};
#define BANYAN_OPTS_INIT                                                                       \
    {                                                                                          \
        sizeof(struct banyan_opts), NULL, NULL, -1.0, 0, -1, 0, NULL, 0, NULL, NULL, 0, NULL   \
    }

/* Participation sets (opts.participants, allreduce and reduce): the result is that of the ranks
 * in the set alone, in order of their ranks where order matters, and all ranks that would get
 * it do. All ranks call, with the same set: where sets differ the call fails with -EMISMATCH,
 * told apart surely up to 15 ranks, beyond by a hash of 23 bits. A rank that is not in the set
 * has no input: sendbuf is not read and may be NULL, it sends no payload but finished results
 * that it passes on (none at all where half of the ranks or more are in the set, nor in a
 * reduce), and the residuals of its codec_state stay as they are. AVG divides by the number of
 * ranks in the set. The empty set: zeros for sums and averages, which then send nothing;
 * -EINVAL for other operations. Schedules: oneshot and the forests that are built for any
 * ranks, over the ranks in the set; plans of a network are for all ranks (-ENOTSUP when the
 * call asks for one, "auto" where the communicator does). */

/* Reductions in order of arrival (opts.schedule "arrival", allreduce and reduce; Hoplite,
 * Zhuang et al., SIGCOMM 2021): ranks take the places of a tree as they come, and sums flow
 * through it at once, chunk by chunk, so that who is late holds up nobody but its own data.
 * Results are bit-identical on all ranks of a call, but not from run to run: additions follow
 * the order of arrival. Refused with -ENOTSUP: deterministic, operations that do not commute,
 * linear codecs, participation sets. With any other codec each rank encodes its sum once; a
 * rank whose input does not count keeps its residuals as they are. Without at_least and codec a
 * short sum, of some 10 KiB, runs the schedule that "static" gives it where that needs less
 * time even after the last rank has come. Else who has come is known to rank 0 or 1 (of ranks
 * 0, 1 and 2, two must be there, of two ranks, rank 0; before, nobody's sums flow); in a reduce
 * that rank stays until all whose inputs count have come. A failure is as that of any call: all
 * get its error.
 *
 * at_least k, 0 < k <= ranks, the same on all: the result is that of the first k ranks to come,
 * or, of a long sum, of all where they come within 2 ms; they return without waiting for the
 * others. (k = ranks: all, and in order of arrival whatever the length.) In a reduce the root
 * is always one of them. AVG divides by the number of inputs. Who comes later gets the same
 * result, and finds its own entry in contributors 0: its input is in no sum, and it may be kept
 * for the next call. In an allreduce contributors is the same set on all ranks; in a reduce it
 * is whole at the root, and elsewhere only [own rank] is set. Who is late is answered by rank 0
 * or 1, when that one calls the library, or by its progress thread; of so many calls as 8
 * results are kept for late ranks, the next call waits for all ranks. Finalize such a
 * communicator, do not destroy it: that takes the results from ranks that are still to come.
 * -EINVAL without schedule "arrival".
 *
 * Schedule "auto" does this by itself for long allreduces (predicted to take 5 ms or more) of 3
 * or more ranks with a network port each, without a codec, while ranks are late by so much that
 * it pays; all ranks change over and back at the same call (sums_asked and sums_by_arrival of
 * struct banyan_stats). Such sums have the same bits on all ranks, but not from run to run:
 * where that matters ask for deterministic, for a schedule by name, or for "static", which
 * chooses as "auto" does for ranks that are there. */

/* recvbuf = op over all ranks of sendbuf, [count] elements, on every rank; bit-identical on all
 * ranks. In place when sendbuf == recvbuf. */
BANYAN_API int banyan_allreduce(const void *sendbuf, void *recvbuf, size_t count,
                                enum banyan_dtype dtype, banyan_op op, struct banyan_comm *comm,
                                const struct banyan_opts *opts);
/* The same, to root only; recvbuf is ignored elsewhere (may be NULL). In place at root: same
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
/* recvbuf [nranks*sendcount] of root = all ranks' sendbuf in rank order; recvbuf is ignored
 * elsewhere (may be NULL). */
BANYAN_API int banyan_gather(const void *sendbuf, void *recvbuf, size_t sendcount,
                             enum banyan_dtype dtype, int root, struct banyan_comm *comm,
                             const struct banyan_opts *opts);
/* counts and displs are read at root only, sendcount everywhere. */
BANYAN_API int banyan_gatherv(const void *sendbuf, size_t sendcount, void *recvbuf,
                              const size_t *counts, const size_t *displs,
                              enum banyan_dtype dtype, int root, struct banyan_comm *comm,
                              const struct banyan_opts *opts);
/* Block r of root's sendbuf [nranks*recvcount] to recvbuf of rank r; sendbuf is ignored
 * elsewhere (may be NULL). */
BANYAN_API int banyan_scatter(const void *sendbuf, void *recvbuf, size_t recvcount,
                              enum banyan_dtype dtype, int root, struct banyan_comm *comm,
                              const struct banyan_opts *opts);
/* counts and displs are read at root only, recvcount everywhere. */
BANYAN_API int banyan_scatterv(const void *sendbuf, const size_t *counts, const size_t *displs,
                               void *recvbuf, size_t recvcount, enum banyan_dtype dtype,
                               int root, struct banyan_comm *comm,
                               const struct banyan_opts *opts);
/* Block p of sendbuf to rank p, which stores it as block `rank`; count elements a block. In
 * place when sendbuf == recvbuf (staged). */
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
 * a few KiB may return before the receiver has called, but not any number of them: messages
 * that nobody asked for yet are bounded, to about 1000 short ones or 1 MiB for each pair of
 * ranks of a communicator. Beyond that a send waits until some were received, or until its own
 * receive has begun: tags may be received in any order. Messages to oneself are copied and not
 * bounded. */
BANYAN_API int banyan_send(const void *buf, size_t count, enum banyan_dtype dtype, int peer,
                           struct banyan_comm *comm, const struct banyan_opts *opts);
BANYAN_API int banyan_recv(void *buf, size_t count, enum banyan_dtype dtype, int peer,
                           struct banyan_comm *comm, const struct banyan_opts *opts);

/* A send and a receive at once, as in a group of their own and at less cost: to and from any
 * ranks, with counts and types of their own; opts (its tag, too) is for both. The buffers may
 * not overlap. Nothing is sent where an argument of either is wrong. */
BANYAN_API int banyan_sendrecv(const void *sendbuf, size_t sendcount,
                               enum banyan_dtype sendtype, int to, void *recvbuf,
                               size_t recvcount, enum banyan_dtype recvtype, int from,
                               struct banyan_comm *comm, const struct banyan_opts *opts);

/* Between these, blocking calls of this thread only queue (and return 0, -EINVAL or -ENOMEM);
 * group_end runs them together and returns the first error. Where one could not be queued for
 * want of memory none runs, and group_end returns -ENOMEM: the group may be tried again. Groups
 * nest. Needed for several send/recv that depend on each other. Calls that wait for other ranks
 * and are none of these collectives, as those that make communicators and all of objects.h,
 * training.h and methods.h that communicate, return -EBUSY inside a group. */
BANYAN_API int banyan_group_start(void);
BANYAN_API int banyan_group_end(void);

/* Persistent requests: arguments as the blocking call's. The request is inactive until started.
 */
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
 * active: from here until a wait or a test has said that it is complete, or has failed. (One
 * that failed meanwhile, which nobody has heard of yet, is not: starting it returns its error.)
 */
BANYAN_API int banyan_start(struct banyan_request *req);
/* Progresses; *done = 1 when complete or failed (the error is returned then). Never blocks. */
BANYAN_API int banyan_test(struct banyan_request *req, int *done);
/* Waits until complete. timeout_s < 0: the operation's own deadline; passing it fails the comm.
 */
BANYAN_API int banyan_wait(struct banyan_request *req, double timeout_s);
BANYAN_API int banyan_wait_all(struct banyan_request *const *reqs, size_t n, double timeout_s);
/* *index = one of the active requests that completed; -EINVAL when none is active. */
BANYAN_API int banyan_wait_any(struct banyan_request *const *reqs, size_t n, double timeout_s,
                               size_t *index);
/* What a request's latest operation cost this rank. Members may be added at the end, and only
 * those that the caller's size has are written. */
struct banyan_request_stats {
    size_t size;         /* sizeof of the caller; set before the call */
    uint64_t wire_bytes; /* payload bytes this rank handed to transports for it */
    uint64_t start_ns;   /* CLOCK_MONOTONIC: when it was started; 0: no times were taken */
    uint64_t end_ns;     /* when it was complete, whoever's progress that was; 0: not yet */
};
/* Times cost two looks at the clock an operation: they are taken of operations that start after
 * the first call of this function for the request. 0, -EINVAL; -EBUSY while it is active. */
BANYAN_API int banyan_request_stats(struct banyan_request *req,
                                    struct banyan_request_stats *out);
/* Takes NULL. -EBUSY while it is active. */
BANYAN_API int banyan_request_free(struct banyan_request *req);

/* Progresses everything of comm once; returns the number of events handled or an error. */
BANYAN_API int banyan_progress(struct banyan_comm *comm);
/* A descriptor for event loops, readable when banyan_progress has work or should be called
 * again, and quiet otherwise: poll it, then call banyan_progress, which alone clears it, then
 * look at the requests (banyan_test). While an operation runs it is readable at least every
 * millisecond; with none every .1 s, and when something comes. Owned by the library. -ESYSTEM
 * when the process can open no more. */
BANYAN_API int banyan_progress_fd(struct banyan_comm *comm);

/* Lists, for tools: the i-th name, or NULL past the end. Any thread. */
BANYAN_API const char *banyan_schedule_name(size_t i);
BANYAN_API const char *banyan_codec_name(size_t i);
BANYAN_API const char *banyan_transport_name(size_t i);
/* The i-th environment variable: name, type, default, what it does; 0, or -EINVAL past the end.
 */
BANYAN_API int banyan_param(size_t i, const char **name, const char **type, const char **def,
                            const char **doc);

#ifdef __cplusplus
}
#endif
#endif
