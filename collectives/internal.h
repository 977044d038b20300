/* SPDX-License-Identifier: BSD-3-Clause */
/* Objects of the collectives folder, from the outside in: a world (this process's place in a
 * job: transports, endpoints, control plane), communicators on it, plans (which program, which
 * chunk), operations in flight. Everything here is guarded by the world's lock unless a comment
 * says atomic. */
#ifndef BNY_COLLECTIVES_INTERNAL_H
#define BNY_COLLECTIVES_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan/banyan.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/handle.h"
#include "base/log.h"
#include "collectives/program.h"
#include "compress/codec.h"
#include "compress/reduce.h"
#include "compress/state.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/transport.h"

#define BNY_MAX_TPS       4
#define BNY_SETTINGS_MAX  256
#define BNY_NAME_MAX      32
#define BNY_SPILL_CLASSES 3 /* sizes of buffers that msg.c keeps */

/* ---- reduction operations ---- */
struct bny_redop {
    uint8_t wire; /* built-in kind, or 0xfd premul, 0xfe user: goes into the signature */
    uint8_t kind; /* enum banyan_op_kind that the built-in kernels run (premul: SUM) */
    uint8_t commutative;
    banyan_user_fn user; /* NULL: built-in */
    void *user_ctx;
    size_t elem_bytes, alignment; /* of a user's opaque element; 0: the datatype */
    double scalar;                /* premul */
};
/* Looks an op up for a type. Returns 0 or -BANYAN_EINVAL. Any thread. */
int bny_redop_get(struct bny_redop *out, banyan_op op, enum banyan_dtype dtype);
const char *bny_redop_name(unsigned wire);
/* The kernel that stores its sums twice; NULL when the operation has none. */
bny_reduce2_fn bny_redop_twice(const struct bny_redop *op, enum banyan_dtype dtype);
/* dst = a (op) b, n elements; a's ranks come before b's. dst may be a or b. */
void bny_redop_run(const struct bny_redop *op, enum banyan_dtype dtype, void *dst,
                   const void *a, const void *b, size_t n);
/* This thread runs a user's function, and holds the lock of a world: a call that needs a lock
 * would wait for itself. */
extern _Thread_local int bny_in_user_op;
int bny_user_op_refuse(const char *what); /* -BANYAN_EBUSY */

/* ---- world ---- */
struct bny_card; /* what a rank tells all others at init: join.c */

enum bny_order { BNY_ORDER_AUTO, BNY_ORDER_STEP, BNY_ORDER_CHUNK };

struct bny_world {
    int rank, nranks;
    atomic_int refs;     /* communicators */
    atomic_flag lock;    /* progress and every change of state */
    unsigned generation; /* of the process: a forked child has another */
    struct bny_tp *tps[BNY_MAX_TPS];
    int ntps;
    struct bny_ep **eps; /* [nranks]; NULL for this rank */
    uint8_t *same_host;  /* [nranks] */
    int any_shm;         /* some pair of ranks may talk by shared memory: agreed */
    int nhosts;          /* groups of ranks with one kernel and network stack, agreed */
    struct bny_topology *topology; /* topology.h; NULL: nothing is known that matters */
    struct bny_control *control;   /* NULL when alone, and in bny_comm_loop of tests */
    struct banyan_comm *comms;     /* list by ->next_comm */
    struct banyan_comm *last_comm; /* of the latest message: most messages are for it */
    struct bny_msg *strays,
        *strays_last;           /* messages for communicators that do not exist here yet */
    struct bny_spill *draining; /* msg.c */
    struct {
        struct bny_spill *first; /* free buffers */
        uint16_t kept;           /* their number */
    } spills[BNY_SPILL_CLASSES];
    struct bny_plain *plain;    /* memory.c: without a transport that shares memory */
    struct bny_cookie *cookies; /* free ones */
    struct bny_boards *boards;  /* small.c */
    int boards_tried;
    struct bny_cookie_slab *cookie_slabs;
    uint32_t comm_ids;  /* this rank's part of the latest id that it has drawn: comm.c */
    int comm_ids_again; /* they have begun anew: some may be in use */
    int comm_id_bits;   /* of that part */
    struct bny_world *next_world; /* of this process; world.c */
    int nlocal;                   /* ranks on this host */
    int codec_crc;                /* encoded chunks carry checksums: agreed */
    int codec_force; /* codecs are used even where they are predicted to lose: agreed */
    long long encode_threads;    /* BANYAN_ENCODE_THREADS */
    struct bny_workers *workers; /* workers.h; NULL: none yet, or none at all */
    int workers_tried;
    uint32_t jobs_out;      /* jobs of operations in flight that have not been collected */
    double link_Bps;        /* the user's word on a rank's link; 0: none. Agreed */
    int oversubscribed;     /* more local ranks than CPUs, on any host: agreed by all ranks */
    uint32_t cpu;           /* then: 1 + the CPU that this rank was on after its latest yield */
    int all_local, any_tcp; /* agreed */
    uint64_t tick_ns;       /* last slow tick */
    int has_local_failure;  /* without a control plane: adopted at the end of progress */
    struct bny_failure local_failure;
    int orderly; /* nothing was destroyed, not finalized, since all ranks finalized one */
    struct bny_loop_fabric *fabric; /* loop between threads: shared, world.c counts */
    uint8_t job[8];
    int progress_fd; /* -1 until asked for */
    atomic_uint_fast64_t sleeps, wakeups;
    uint64_t due_ns; /* the earliest time at which a paced send may go, 0: none; since a nap
                        looked last */
    atomic_uint_fast64_t wire_bytes, messages, copied_bytes, replaced,
        moved;            /* copies: bny_world_count */
    int progressing;      /* inside progress: the hook or a user function must not re-enter */
    int64_t spin_us;      /* BANYAN_SPIN_US */
    int pace, lockstep;   /* BANYAN_PACE, BANYAN_LOCKSTEP */
    enum bny_order order; /* BANYAN_ORDER */
    struct bny_trace *trace; /* trace.h; NULL: nobody asked */
    pthread_t thread;        /* progress thread */
    int has_thread;
    atomic_int stop_thread;
    int thread_cpu;
};

/* ---- plans ---- */
enum bny_path { BNY_PATH_ENGINE, BNY_PATH_ONESHOT, BNY_PATH_STAGES /* linear.c */ };

struct bny_plan {
    /* key */
    uint8_t valid, collective, dtype, redop_wire, ordered, vector, is_send;
    int root;
    size_t count;                  /* elements of the call (v-variants: 0) */
    const struct bny_codec *asked; /* the call's codec; NULL: none */
    char forced[BNY_NAME_MAX];     /* schedule asked for; "auto" */
    size_t forced_chunk;
    /* result */
    enum bny_path path;
    const struct bny_program *program; /* owned by the communicator's program cache */
    const struct bny_codec *codec; /* NULL: none, or refused because it is predicted to lose: */
    double refused_s;              /* its prediction; 0 */
    size_t chunk_bytes;
    double predicted_s;
    double pace_s; /* > 0: a step's chunks are sent evenly over so many seconds */
    double step_s; /* > 0: lock-step, a time step of the program takes so long */
    int by_chunk;  /* sends to a peer: the oldest chunk first, few at a time */
    char schedule[BNY_NAME_MAX];
    uint8_t sched_hash;
};

/* ---- communicator ---- */
struct bny_peer {
    struct bny_ep *ep; /* NULL for this rank */
    int world_rank;
};

struct bny_stream { /* counters of point-to-point messages with one peer and tag */
    int peer;
    uint32_t tag, sent, received;
};

struct bny_op;

#define BNY_PAST 64 /* signatures of collectives that a communicator remembers */

struct banyan_comm {
    struct bny_handle handle;
    struct bny_world *world;
    uint32_t id;
    int rank, n;
    struct bny_peer *peers; /* [n] */
    int *rank_of_world;     /* [world->nranks] this communicator's rank, or -1 */
    uint32_t next_seq;      /* of the next collective */
    struct bny_op *active_first, *active_last; /* started, not complete; in order of start */
    struct bny_op *pool;                       /* idle operations of blocking calls */
    struct bny_msg *strays,
        *strays_last; /* messages of operations not started here yet, by ->next */
    struct bny_stream *streams;
    size_t nstreams, streams_cap;
    struct bny_plan *plans; /* [64], direct mapped */
    uint32_t eager_agreed;  /* largest payload that every pair of ranks here may send eagerly */
    int all_shm;            /* every pair talks by shared memory: agreed */
    uint32_t chunk_max; /* largest chunk that every endpoint of every rank can carry: agreed */
    uint32_t coded_max; /* largest that arrives in one piece: for encoded ones */
    int small_slots;    /* a chunk beyond that may be impossible to send as it is: agreed */
    struct bny_programs *programs; /* cache, select.c */
    /* settings, agreed by all ranks */
    char schedule[BNY_NAME_MAX], codec[64];
    const struct bny_codec *codec_ops; /* NULL: none */
    size_t chunk_bytes;
    int deterministic;
    double op_timeout_s; /* this rank's own */
    void (*progress_hook)(void *);
    void *progress_hook_ctx;
    uint32_t hook_turns; /* yields in waits, of which some call the hook */
    /* failure: code is set last, release */
    atomic_int failed; /* negative code, 0 while healthy */
    int blamed;
    char failure_text[320];
    struct bny_init *init; /* while not joined yet: join.c */
    atomic_uint_fast64_t ops_done;
    struct banyan_comm *next_comm;
    int finalized;
    struct bny_sig past[BNY_PAST]; /* of the latest collectives started here, by seq */
};

/* ---- operations ---- */
/* One collective call, as the user gave it, checked. */
struct bny_call {
    uint8_t collective; /* enum bny_collective */
    uint8_t vector;     /* v-variant: counts are per rank */
    uint8_t is_send;    /* SENDRECV: direction */
    enum banyan_dtype dtype;
    struct bny_redop redop;
    const void *sendbuf;
    void *recvbuf;
    size_t
        count; /* elements: of the whole (allreduce...), of a block (allgather, alltoall...) */
    int root;  /* or the peer of SENDRECV; -1 */
    uint32_t tag;
    size_t *scounts, *sdispls, *rcounts, *rdispls; /* [n], owned by the op; vector only */
    uint8_t via_allreduce; /* an ordered reduce_scatter: allreduce into staging, then copy the
                              own block */
    size_t own_at, own_count;
    char schedule[BNY_NAME_MAX];
    const struct bny_codec *codec;
    struct banyan_codec_state *state; /* or NULL */
    int64_t rows, cols;               /* the matrix that a linear codec takes the tensor for */
    double timeout_s;                 /* < 0: the communicator's */
    int deterministic;
    size_t chunk_bytes;
};

struct bny_block { /* one row of the table a program's blocks index */
    const char *in;
    char *out, *scratch, *scratch2;
    size_t count; /* elements */
    size_t pos;   /* elements before it, for contiguous programs */
    /* with a codec: counters of coded.c while it prepares steps */
    uint32_t added, thinned;
    size_t encodings;
};

struct bny_step_state {
    const char *src;
    char *dst;
    size_t count; /* elements */
    size_t pos;   /* in contiguous coordinates */
    uint32_t nchunks;
    uint32_t posted; /* sends: chunks handed to the transport */
    uint32_t done;   /* chunks applied (receives, keep) or whose memory is free again (sends); a
                      * send that was   copied at once counts only when the borrowed ones before
                      * it   are back: in order */
    uint32_t early;  /* sends: such copies that do not count yet */
    uint32_t twin; /* RECV_ADD: the FORWARD whose chunks it may store at the peer as it adds; or
                      UINT32_MAX */
    uint32_t stored;    /* such a FORWARD: chunks that lie at the peer already */
    uint64_t credit_ns; /* sends: since when the next chunk waits for the transport; 0: it does
                           not, or nobody traces */
    uint32_t view_off;  /* receives: bytes of the current message already applied */
    struct bny_msg *arrived; /* receives: waiting messages in order of chunk, by ->next */
    /* with a codec: coded.c */
    uint8_t encodes; /* SEND, KEEP: its chunks are encoded; sends and receives: they travel
                        encoded */
    uint32_t nsum;   /* contributions summed in what it encodes */
    uint8_t thins; /* RECV_ADD: our own part is made sparse before this, the first encoded one,
                      is added */
    uint8_t is_union; /* SEND/KEEP of such a sum: its elements travel as they are, no residual
                         has a part in it */
    char *coded;      /* RECV_COPY/KEEP that is forwarded: wire bytes, by chunk */
    uint32_t *coded_len; /* BNY_LEN_RAW: the chunk goes on as it is, from its final place */
    char *pend; /* SEND: a small message that is encoded but found no room, pend_len bytes of it
                 */
    uint32_t pend_len;
    uint32_t raw_next; /* SEND: 1 + the chunk that the codec has declined; 0: none */
    size_t
        stats_at; /* its first chunk's number among this rank's encodings, in order of index */
    struct bny_job
        *jobs;      /* SEND: [BNY_AHEAD], chunk c in c % BNY_AHEAD; NULL: nobody runs ahead */
    uint32_t ahead; /* the first chunk that no job was made of */
    uint8_t awaits; /* the next chunk is still with an encoding thread */
};

enum bny_op_state { BNY_OP_IDLE, BNY_OP_ACTIVE, BNY_OP_CLOSING, BNY_OP_DONE };

struct bny_op_peer {      /* per peer of the operation's communicator */
    uint8_t ready_wanted; /* we must send READY to it */
    uint8_t ready_sent;
    uint8_t window_open;
    uint8_t ready_seen; /* it has started this operation */
    uint8_t told;       /* our plan, because its differs: mismatch.c */
    uint8_t probed;     /* in this round of probes: mismatch.c */
    uint32_t borrowed;  /* chunks that the transport has by reference */
    uint32_t candidate; /* of a pass: the send with the oldest chunk; UINT32_MAX: none */
    struct bny_window ours, theirs;
};

struct bny_op {
    struct banyan_comm *comm;
    struct bny_call call;
    struct bny_plan plan; /* a copy: the cache may forget its own */
    int planned;          /* plan and tables fit `call` as it is */
    const struct bny_program *program;
    atomic_int state; /* enum bny_op_state */
    int result;
    int persistent;
    uint32_t seq;
    struct bny_sig sig;
    uint64_t deadline_ns, allowed_ns; /* 0: none so far; what of it was left when it was set */
    uint64_t start_ns;                /* of the engine, where the plan has a pace */
    uint64_t close_ns; /* a failed operation waits for its windows until then; 0: not set yet */
    uint64_t probe_ns; /* when peers that it waits for are asked; 0: not set yet */
    struct bny_op *next; /* active list, or pool */
    const char *in;      /* what the tables point at: the user's buffers or staging */
    char *out;
    int dirty;  /* something happened: advance it */
    size_t esz; /* bytes of the datatype */
    /* engine */
    size_t chunk_elems;
    uint32_t open_first; /* first unfinished step */
    uint32_t steps_left;
    struct bny_step_state *steps;
    size_t steps_cap;
    struct bny_block *blocks;
    size_t blocks_cap;
    struct bny_op_peer *peers;  /* [n] */
    struct bny_cookie *cookies; /* of sends in flight */
    uint32_t sends_in_flight;   /* transport still borrows memory */
    char *scratch, *scratch2, *staging, *tile, *coded;
    size_t scratch_cap, scratch2_cap, staging_cap, tile_cap, coded_cap;
    struct bny_tp *coded_tp;              /* the device that knows coded, or NULL */
    const struct bny_step_state *tile_of; /* whose message is partly in the tile; NULL: none */
    char *decoded;                        /* a chunk of an exact codec, to be reduced */
    size_t decoded_cap;
    struct bny_workers *workers; /* that encode for it, or NULL */
    char *stats;                 /* [nencodings * stats_bytes] */
    size_t stats_cap, nencodings;
    struct banyan_codec_state *lent; /* to this operation, while it is active; or NULL */
    uint32_t codec_step;             /* of encodings */
    struct bny_stages *stages;       /* of a linear codec; kept */
    struct bny_op
        *parent; /* this is one of its stages, of a number that was given before; or NULL */
    /* one-shot */
    struct bny_msg **shots; /* [n] messages held */
    int shots_missing;
    int shots_sent; /* peers served so far */
    char *board;    /* shared memory that holds our contribution for all peers; or NULL */
    uint32_t *board_readers;
    size_t vcap;
    size_t *vcounts; /* storage of call's four arrays */
};

struct banyan_request {
    struct bny_handle handle;
    uint64_t comm_serial; /* of the communicator's handle */
    struct bny_op op;
};

/* world.c */
void bny_world_lock(struct bny_world *w);
int bny_world_trylock(struct bny_world *w);
void bny_world_unlock(struct bny_world *w);
/* Progresses everything once; lock held. Returns the number of events. */
int bny_world_progress(struct bny_world *w);
/* Deadlines, control plane, failures; makes system calls; about once a millisecond. Lock held.
 */
void bny_world_tick(struct bny_world *w);
/* Copies the transports' counters to where any thread may read them. With the lock. */
void bny_world_count(struct bny_world *w);
/* The same for the other worlds of this process in which nobody waits. What a call left behind
 * in one (an eager message that waits for a connection) must reach its peers while this process
 * waits in another. No lock held but, perhaps, that of `except`. */
void bny_worlds_progress(const struct bny_world *except);
/* One turn for callers that come often: progress, and a tick when it is due. Lock not held. */
int bny_world_poll(struct bny_world *w);
void bny_world_unref(struct bny_world *w);
/* For join.c. NULL: no memory. */
struct bny_world *bny_world_new(int nranks, int rank);
void bny_world_free(struct bny_world *w); /* nobody has joined it */
void bny_worlds_add(struct bny_world *w); /* it has joined */
struct bny_loop_fabric *bny_fabric_join(const uint8_t *job, int nranks);
/* Handles one transport event; lock held. */
void bny_world_event(struct bny_world *w, struct bny_event *ev);
/* join.c */
/* World over a loop fabric, for tests: one rank's communicator, no bootstrap, no control plane.
 */
struct bny_loop_fabric;
int bny_comm_loop(struct banyan_comm **out, struct bny_loop_fabric *fabric, int nranks,
                  int rank, const struct banyan_config *cfg);

/* Joins: allocates a communicator that is not usable until bny_init_progress says 1. */
int bny_init_start(struct banyan_comm **out, const struct bny_id *id, int nranks, int rank,
                   const struct banyan_config *cfg);
int bny_init_progress(struct banyan_comm *comm); /* 1 done, 0 not yet, or an error */
int bny_init_fds(struct banyan_comm *comm, int *fds, int cap);
void bny_init_free(struct bny_init *init); /* takes NULL */
unsigned bny_process_generation(void);

/* failure.c */
/* Fails one communicator (not the others of its world), at once. Lock held. */
void bny_comm_set_failure(struct banyan_comm *comm, const struct bny_failure *f);
/* Something went wrong: floods it; the communicators concerned fail when the grace has passed.
 * Lock held. */
void bny_report(struct bny_world *w, struct banyan_comm *comm, enum bny_cause cause,
                enum banyan_error code, int blamed, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
/* Adopts what the control plane agreed on. Lock held. */
void bny_failure_adopt(struct bny_world *w);
/* The communicator's failure as this thread's error; 0 when healthy. Any thread. */
int bny_comm_error(struct banyan_comm *comm);

/* comm.c */
struct banyan_comm *bny_comm_alloc(struct bny_world *w, uint32_t id, int n, int rank,
                                   const int *world_ranks);
void bny_comm_free(struct banyan_comm *comm);
#define BNY_COMM_MARK 0x6d6d6f63u
/* Of a communicator that a program hands us: 0, or -BANYAN_EINVAL when it is NULL or was
 * finalized or destroyed. what: the function called. Any thread. */
int bny_comm_refuse(const struct banyan_comm *comm, const char *what);
static inline int bny_comm_check(const struct banyan_comm *comm, const char *what)
{
    return comm && bny_handle_is(&comm->handle, BNY_COMM_MARK) ? 0
                                                               : bny_comm_refuse(comm, what);
}
/* The same for calls that need a lock: -BANYAN_EBUSY inside a user operation. */
static inline int bny_comm_enter(const struct banyan_comm *comm, const char *what)
{
    return bny_in_user_op ? bny_user_op_refuse(what) : bny_comm_check(comm, what);
}
/* Endpoints are known: derives what depends on them, and delivers messages that came before. */
void bny_comm_settle(struct banyan_comm *comm);

/* select.c */
/* Chooses the plan for a call into *out; cached. Returns 0, -BANYAN_EINVAL (unknown schedule),
 * -BANYAN_ENOTSUP (a schedule or codec asked for that cannot do this), -BANYAN_ENOMEM. Lock
 * held. */
int bny_plan_get(struct banyan_comm *comm, const struct bny_call *call, struct bny_plan *out);

/* submit.c */
#define BNY_RUN                                                                                \
    ((struct banyan_request **)1) /* in place of a request's address: run the call now */
/* Runs a checked call (req BNY_RUN; inside a group it waits for the group's end), or makes a
 * request of it. 0 or an error. */
int bny_submit(struct banyan_comm *comm, const struct bny_call *call,
               struct banyan_request **req);
/* An inactive request, or NULL; request.c. */
struct banyan_request *bny_request_new(const struct banyan_comm *comm);
void bny_request_drop(struct banyan_request *req); /* its memory; its operation's is freed */
int bny_in_group(void); /* this thread is between banyan_group_start and _end */

/* programs.c */
/* The communicator's program of this schedule, made at its first use and kept. 0 or an error;
 * -BANYAN_ENOTSUP when the schedule cannot serve the collective. coalesce: as for bny_compile.
 */
int bny_program_get(struct banyan_comm *comm, enum bny_collective coll, const char *schedule,
                    int root, int coalesce, const struct bny_program **out);
/* 1 and the use of forests that serves a collective, or 0: no forest does. */
int bny_collective_use(enum bny_collective coll, enum bny_forest_use *use);
/* The program of a point-to-point operation. */
const struct bny_program *bny_plan_sendrecv(struct banyan_comm *comm, int peer, int is_send);
void bny_plans_free(struct banyan_comm *comm);
int bny_schedule_known(const char *name);
const char *bny_schedule_list(void); /* "ring, star, ..." for messages */

/* operands.c: where an operation's data lies */
/* Makes *pp (a pointer to memory of malloc) hold `need` items of `unit` bytes; keeps it when it
 * does. Returns 0 or -BANYAN_ENOMEM naming `what`. */
int bny_grow(void *pp, size_t *cap, size_t need, size_t unit, const char *what);
/* Sets op->in and op->out: the user's buffers, or a private copy. Before bny_operands_fill. 0
 * or an error. */
int bny_operands_stage(struct bny_op *op);
/* Fills the block table and the scratch memory. 0 or an error. */
int bny_operands_fill(struct bny_op *op);

/* op.c: life of an operation */
int bny_op_init(struct bny_op *op, struct banyan_comm *comm, const struct bny_call *call);
int bny_op_start(struct bny_op *op);                  /* lock held */
int bny_op_advance(struct bny_op *op);                /* lock held. 1: made progress */
void bny_op_complete(struct bny_op *op, int result);  /* lock held */
void bny_op_finish(struct bny_op *op);                /* frees its memory */
struct bny_op *bny_op_take(struct banyan_comm *comm); /* from the pool; lock held */
void bny_op_give(struct bny_op *op);                  /* back to the pool; lock held */
/* A message for this communicator; lock held. Takes msg. */
void bny_comm_message(struct banyan_comm *comm, int from, struct bny_msg *msg);
/* Does the operation need something of rank r of its communicator, or is something for it not
 * sent yet? */
int bny_op_waits_on(const struct bny_op *op, int r);
/* Ranks the operation is still waiting for, as text: "rank 3" or "ranks 1, 2 and 5 more". */
int bny_op_waiting_for(const struct bny_op *op, char *buf,
                       size_t cap); /* the first such rank */
int bny_op_is_done(struct bny_op *op);

/* mismatch.c: ranks that call different operations; lock held */
/* A message for an operation in flight here says that its sender runs another one. */
void bny_mismatch_report(struct bny_op *op, int from, const struct bny_msg *msg);
/* A chunk that the operation does not expect. */
void bny_mismatch_chunk(struct bny_op *op, int from, const struct bny_msg *msg);
/* A message for an operation that is finished here. */
void bny_mismatch_past(struct banyan_comm *c, int from, const struct bny_msg *msg);
/* Asks the peers of an operation that has waited for long whether they run the same one. */
void bny_probe_if_due(struct bny_op *op, uint64_t now_ns);

/* engine.c: the life of a chunk; engine_open.c: where an operation begins and ends */
int bny_engine_start(struct bny_op *op);
int bny_engine_advance(struct bny_op *op); /* 1: made progress */
void bny_engine_sent(struct bny_op *op,
                     uint32_t step); /* the transport has given a send's memory back */
void bny_engine_message(struct bny_op *op, int from, struct bny_msg *msg);
void bny_engine_drop(struct bny_op *op); /* failed: releases everything held */
int bny_engine_close(struct bny_op *op); /* closes windows; 0 or BNY_AGAIN */

/* Hands len bytes to the transport by the way that suits them. 1: sent and ptr is free again;
 * 2: sent, ptr is borrowed; BNY_AGAIN; or an error. */
int bny_engine_send(struct bny_op *op, uint32_t index, struct bny_hdr *h, const char *ptr,
                    uint32_t len, uint64_t put_offset);
size_t bny_engine_chunk(const struct bny_op *op, const struct bny_step_state *st,
                        uint32_t c); /* its elements */

/* memory.c: memory of an operation that goes out by reference. The device that knows it now, or
 * NULL: it is copied. */
struct bny_tp *bny_device_learns(struct bny_world *w, void *at, size_t bytes);
void bny_device_forgets(struct bny_tp **tp, void *at);

/* coded.c: the part of a chunk's life that a codec sees */
#define BNY_LEN_RAW UINT32_MAX
void bny_coded_free(struct bny_op *op);            /* the store of encoded chunks */
int bny_coded_start(struct bny_op *op);            /* steps are prepared. 0 or an error */
void bny_coded_end(struct bny_op *op, int result); /* gives the state back; idempotent */
size_t bny_coded_most(const struct bny_op *op,
                      size_t n); /* largest message of n elements, raw or not */
/* May a message be chunk of n elements of this step? */
int bny_coded_fits(const struct bny_op *op, const struct bny_step_state *st,
                   const struct bny_hdr *h, size_t n);
/* Encodes or forwards chunk h->chunk and sends it; as bny_engine_send. */
int bny_coded_send(struct bny_op *op, uint32_t index, struct bny_hdr *h);
/* Applies an encoded chunk of n elements. 0 or an error; nothing is written then. */
int bny_coded_apply(struct bny_op *op, const struct bny_step *s, struct bny_step_state *st,
                    const void *wire, size_t len, uint32_t c, size_t n);
/* KEEP: encodes what others will decode, and keeps the decode. 0 or an error. */
int bny_coded_keep(struct bny_op *op, struct bny_step_state *st, uint32_t c);
/* The codec leaves the result to be divided by the number of ranks? */
int bny_averages(const struct bny_op *op);

/* The inputs of encoding chunk c as `rank`, but for where it goes. */
void bny_coded_inputs(const struct bny_op *op, const struct bny_step_state *st, uint32_t c,
                      uint32_t rank, struct bny_enc *e);

/* ahead.c: encoding threads run ahead of the wire */
#define BNY_AHEAD 4 /* chunks of a step: half of a pair's send slots */
struct bny_workers *
bny_ahead_workers(struct bny_world *w);    /* started on first use; NULL: none. Lock held */
void bny_ahead_prepare(struct bny_op *op); /* op->workers and the steps' jobs are set */
/* Sends chunk h->chunk of a step with jobs, which needs up to `most` bytes, and lets threads
 * encode those behind it. As bny_engine_send; -BANYAN_ENOTSUP: the codec declines. */
int bny_ahead_send(struct bny_op *op, uint32_t index, struct bny_hdr *h, size_t most);
void bny_ahead_stop(
    struct bny_op *op); /* no thread touches the operation any more; idempotent */
int bny_engine_is_ready(const struct bny_op *op, uint32_t index,
                        uint32_t c); /* may chunk c of a SEND be encoded? */

/* linear.c: operations of linear codecs, path STAGES */
int bny_linear_init(struct bny_op *op);
void bny_linear_free(struct bny_op *op);
uint32_t bny_linear_numbers(
    const struct bny_op *op); /* that the operation takes beside its own; 0: not of this path */
int bny_linear_start(struct bny_op *op);
int bny_linear_advance(struct bny_op *op); /* 1: made progress */
int bny_linear_expects(const struct bny_op *op,
                       uint32_t seq);            /* is it of a stage still to be started? */
int bny_linear_is_busy(const struct bny_op *op); /* a stage runs */
const struct bny_op *bny_linear_child(const struct bny_op *op); /* that stage, or NULL */
void bny_linear_child_done(struct bny_op *parent);

/* small.c: the one-shot exchange */
#define BNY_BOARD_BYTES (32u << 10) /* the longest contribution that a board holds */
int bny_oneshot_start(struct bny_op *op);
int bny_oneshot_advance(struct bny_op *op);
void bny_oneshot_message(struct bny_op *op, int from, struct bny_msg *msg);
void bny_oneshot_drop(struct bny_op *op);
void bny_boards_free(struct bny_world *w);
int bny_oneshot_waits_on(const struct bny_op *op, int r);
/* 1: all that it waits for is messages of ranks that run on other CPUs, as far as is known. */
int bny_oneshot_waits_elsewhere(const struct bny_op *op);
int bny_oneshot_sends_to(const struct bny_op *op, int r);

/* device.c */
void bny_device_look(void); /* is a CUDA driver in this process by now? */
int bny_device_check(const void *ptr, const char *argument); /* 0 or -BANYAN_ENOTSUP */

/* wait.c */
int bny_op_wait(struct bny_op *op, uint64_t deadline_ns);
/* The operation fails when it is not done by then; 0 keeps the communicator's deadline. Takes
 * the lock. */
void bny_op_set_deadline(struct bny_op *op, uint64_t deadline_ns);
/* Progresses, looking up to `tries` times at the peers of a one-shot; lock held. Returns > 0
 * when something moved. */
int bny_op_look(struct bny_op *op, int tries);
struct bny_waiter {
    uint32_t spins, yields, yields_max, finds;
    int napped;
    uint64_t last_tick_ns;
};
void bny_wait_init(struct bny_waiter *wt);
/* A progress found something: waiting begins anew. */
void bny_wait_found(struct bny_waiter *wt, struct bny_world *w);
/* One turn of a wait loop after a progress that found nothing. Lock not held. */
void bny_wait_turn(struct bny_waiter *wt, struct bny_world *w, struct banyan_comm *comm);

/* memory.c */
void bny_plain_free(struct bny_world *w);

/* msg.c: holding messages, and the cookies of sends */
/* Moves a message out of the transport's memory, so that it may be held for long without
 * stopping others behind it. Descriptors are returned as they are; data that has not all
 * arrived is drained by bny_msg_drain. Returns the message to hold from now on (data NULL while
 * draining), or NULL when memory is exhausted (msg is released). */
struct bny_msg *bny_msg_spill(struct bny_world *w, struct bny_msg *msg);
/* A message made here (to oneself), with a copy of the payload. NULL on no memory. */
struct bny_msg *bny_msg_make(struct bny_world *w, const struct bny_hdr *hdr,
                             const void *payload);
void bny_msg_release(struct bny_world *w, struct bny_msg *msg); /* of any sort */
void bny_spills_make(struct bny_world *w);                      /* as many as mostly suffice */
void bny_spills_free(struct bny_world *w);
int bny_msg_is_draining(const struct bny_msg *msg);
int bny_msg_drain(
    struct bny_world *w); /* all of them a little; returns 1 when something moved */

/* Names (operation, step) to a transport that borrows its memory. op is NULL once the operation
 * failed. */
struct bny_cookie {
    struct bny_op *op;
    uint32_t step;
    struct bny_cookie *next; /* free list; or of the operation's */
    struct bny_cookie *prev;
    uint32_t *readers; /* of a board (small.c): counted down; op is NULL then */
};
struct bny_cookie *bny_cookie_take(struct bny_world *w, struct bny_op *op, uint32_t step);
void bny_cookie_give(struct bny_world *w, struct bny_cookie *ck);
void bny_cookies_free(struct bny_world *w);

#endif
