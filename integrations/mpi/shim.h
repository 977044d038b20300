/* SPDX-License-Identifier: BSD-3-Clause */
/* The interposer's own objects. One thread at a time changes them: below MPI_THREAD_MULTIPLE
 * because MPI says so, else by shim_lock, which is never held across a wait. Banyan moves the
 * data of a collective call under a lock of its own. */
#ifndef BNY_MPI_SHIM_H
#define BNY_MPI_SHIM_H

#pragma GCC visibility push(default) /* MPICH's header has none, and we define its functions   \
                                      */
#include <mpi.h>
#pragma GCC visibility pop
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan/banyan.h"
#include "integrations/mpi/names.h"

#ifdef MPICH_VERSION
#define SHIM_BUILT_FOR "MPICH"
#define SHIM_FAMILY    "mpich"
#define SHIM_HAS_LARGE 1
#elif defined(OPEN_MPI)
#define SHIM_BUILT_FOR "Open MPI"
#define SHIM_FAMILY    "openmpi"
#define SHIM_HAS_LARGE 0
#else
#define SHIM_BUILT_FOR "MPI 5's standard interface"
#define SHIM_FAMILY    "abi"
#define SHIM_HAS_LARGE 1
#endif

#if SHIM_HAS_LARGE
#define SHIM_NAMES(X)                                                                          \
    BNY_MPI_COMMON(X)                                                                          \
    BNY_MPI_ASKED(X) BNY_MPI_PERSISTENT(X) BNY_MPI_SESSIONS(X) BNY_MPI_LARGE(X)
#else
#define SHIM_NAMES(X)                                                                          \
    BNY_MPI_COMMON(X) BNY_MPI_ASKED(X) BNY_MPI_PERSISTENT(X) BNY_MPI_SESSIONS(X)
#endif

/* MPI 4's, which the header of Open MPI 4 has not, though the library may be Open MPI 5's; Open
 * MPI 4's library has them as MPIX_. */
#define SHIM_DECLARE(name, ...)                                                                \
    int MPI_##name(__VA_ARGS__, MPI_Comm, MPI_Info, MPI_Request *);                            \
    int MPIX_##name(__VA_ARGS__, MPI_Comm, MPI_Info, MPI_Request *);                           \
    int PMPI_##name(__VA_ARGS__, MPI_Comm, MPI_Info, MPI_Request *);
#pragma GCC visibility push(default)
/* clang-format off */
SHIM_DECLARE(Allreduce_init, const void *, void *, int, MPI_Datatype, MPI_Op)
SHIM_DECLARE(Reduce_init, const void *, void *, int, MPI_Datatype, MPI_Op, int)
SHIM_DECLARE(Reduce_scatter_block_init, const void *, void *, int, MPI_Datatype, MPI_Op)
SHIM_DECLARE(Bcast_init, void *, int, MPI_Datatype, int)
SHIM_DECLARE(Allgather_init, const void *, int, MPI_Datatype, void *, int, MPI_Datatype)
SHIM_DECLARE(Alltoall_init, const void *, int, MPI_Datatype, void *, int, MPI_Datatype)
SHIM_DECLARE(Gather_init, const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int)
SHIM_DECLARE(Scatter_init, const void *, int, MPI_Datatype, void *, int, MPI_Datatype, int)
/* clang-format on */
#undef SHIM_DECLARE
#define SHIM_DECLARE(name, ...)                                                                \
    int MPI_##name(__VA_ARGS__);                                                               \
    int PMPI_##name(__VA_ARGS__);
SHIM_DECLARE(Comm_create_from_group, MPI_Group, const char *, MPI_Info, MPI_Errhandler,
             MPI_Comm *)
SHIM_DECLARE(Intercomm_create_from_groups, MPI_Group, int, MPI_Group, int, const char *,
             MPI_Info, MPI_Errhandler, MPI_Comm *)
SHIM_DECLARE(Comm_idup_with_info, MPI_Comm, MPI_Info, MPI_Comm *, MPI_Request *)
#pragma GCC visibility pop
#undef SHIM_DECLARE

/* ---- real.c: the MPI library's own functions ---- */
/* Called by pointer: choose.c also takes the names PMPI_*, for Open MPI's Fortran functions
 * call those; and the library may have any name, or be in no scope that we see. Filled when
 * this library is loaded; older MPIs may lack some of the functions that are replaced, which
 * their programs do not call then. */
struct shim_real {
#define X(name) __typeof__(&PMPI_##name) name;
    SHIM_NAMES(X)
#undef X
};
extern struct shim_real real;
/* At MPI_Init, for a library that was preloaded directly: ends the process with a line when the
 * MPI library here is not of the family that this was built for. */
void shim_real_find(void);
/* Why `real` cannot be used, for choose.c; NULL: it can. */
__attribute__((visibility("default"))) const char *bny_mpi_refused(void);
/* choose.c's function that leads the calls of BNY_MPI_STRAIGHT here (1), or straight to the MPI
 * library (0, as at first). A library that was preloaded directly gets none, because all calls
 * come here. */
__attribute__((visibility("default"))) void bny_mpi_take_switch(void (*lead)(int here));

/* ---- life.c ---- */
struct shim_state {
    int ready; /* between MPI_Init and MPI_Finalize, and all ranks have the same interposer */
    int ended; /* MPI_Finalize was called while it was ready */
    int open_mpi; /* else MPICH or what follows it; the interface may be MPI 5's of either */
    int multiple; /* MPI_THREAD_MULTIPLE */
    int stats;    /* BANYAN_MPI=stats */
    int after;    /* BANYAN_MPI=after */
    size_t nonblocking;    /* BANYAN_MPI=nonblocking, bytes */
    int rank, n;           /* in MPI_COMM_WORLD */
    atomic_int in_flight;  /* our operations that are not complete */
    atomic_int nested;     /* calls into the MPI library that any thread is in */
    atomic_int persistent; /* persistent requests of ours */
    atomic_int raise;      /* shim_raise_soon was called */
    atomic_int led_here;   /* see bny_mpi_take_switch */
    atomic_int windows;    /* of the program */
    char codec[64];
};
extern struct shim_state shim;

/* Calls into the MPI library that this thread is in. Costs a call to look at, so only while any
 * thread is in one. */
extern _Thread_local int shim_nested;

static inline int shim_inside(void)
{
    return atomic_load_explicit(&shim.nested, memory_order_relaxed) && shim_nested;
}

void shim_lock(void);
void shim_unlock(void);
/* One line on stderr, with the rank in MPI_COMM_WORLD. */
void shim_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* banyan's error as an MPI error code with banyan's sentence; printed once a communicator.
 * Calls no handler. */
int shim_code(int banyan_rc);
/* Gives an MPI error code to the communicator's error handler and returns it. */
int shim_raise(MPI_Comm comm, int code);
/* The same as soon as the lock is free, as a handler may call anything. One at a time: of those
 * that come together the last. */
void shim_raise_soon(MPI_Comm comm, int code);
void shim_raise_late(void);
static inline void shim_raise_now(void)
{
    if (shim.raise)
        shim_raise_late();
}

/* ---- comms.c ---- */
enum shim_comm_state {
    SHIM_FRESH, /* on MPI until `after` collectives have been called */
    SHIM_PASS,  /* on MPI for ever: inter-communicators, one rank, no line for more, or its
                   ranks have called different things */
    SHIM_READY, /* on banyan */
    SHIM_LOST,  /* its ranks have called different things: the next `lost` calls are errors, as
                   other ranks have returned from theirs; then SHIM_PASS */
    SHIM_FREED  /* the MPI communicator is freed, operations are in flight */
};

struct line; /* comms.c */

struct shim_comm {
    MPI_Comm handle; /* MPI_COMM_NULL: free for use */
    enum shim_comm_state state;
    int rank, n, calls;
    struct banyan_comm *banyan; /* the world's, or its line's */
    struct line *line;
    unsigned done, lost; /* calls that banyan has had and the user has back; see SHIM_LOST */
    int in_flight;       /* requests of it */
    int holds;           /* persistent ones, active or not */
    int said;            /* its failure was told */
    /* Its non-blocking calls, which have a line of their own: ranks that call one of these and
     * a blocking one in another order are wrong, but no MPI minds. NULL in that object, whose
     * `of` this is. */
    struct shim_comm *later, *of;
    struct shim_comm *next; /* of all; never given back to the heap, so that a look at `handle`
                               is always legal */
};

#define SHIM_CACHE 64
extern _Atomic(struct shim_comm *) shim_cache[SHIM_CACHE]; /* read without the lock */
/* Makes what is missing; `blocking` calls may join the ranks. */
struct shim_comm *shim_comm_slow(MPI_Comm comm, int blocking);
int shim_comms_start(void); /* at MPI_Init; 0 or -1 */
void shim_comms_first(
    void);                  /* all ranks, when they have joined: MPI_COMM_WORLD is made ready */
void shim_comms_stop(void); /* at MPI_Finalize: waits for the other ranks, a bounded time */
void shim_comms_free(void); /* all that are left, and what no operation uses any more */
/* Ranks have called different things on it (banyan says so), which some noticed when they had
 * returned from later calls already: how many calls are lost is agreed on, and what comes
 * behind them is the MPI's. Waits for all ranks of it to come to a call, or to MPI_Finalize. */
void shim_comm_differs(struct shim_comm *c);
void shim_comms_differ(void); /* that of all communicators, where it is due */
static inline int shim_comm_has_differed(struct shim_comm *c)
{
    return banyan_async_error(c->banyan, NULL, NULL, 0) == -BANYAN_EMISMATCH;
}
/* After a request of a freed communicator completed, or was freed. */
void shim_comm_settle(struct shim_comm *c);
/* A line for the ranks of c, all of which call this together: `own`, a communicator's object
 * that only the caller knows. cannot: this rank does not want one any more (own may be NULL).
 * 0, or -1 at all ranks. Waits; lock not held. */
int shim_line_get(const struct shim_comm *c, int cannot, struct shim_comm *own);
void shim_line_put(struct shim_comm *own); /* lock held; it may have none */

/* ---- sessions.c: communicators that stay with the MPI library ---- */
int shim_is_of_session(MPI_Comm comm);
/* After a call that makes one communicator from another; returns rc. */
int shim_comm_born(int rc, MPI_Comm parent, const MPI_Comm *child);
void shim_comm_forgotten(MPI_Comm comm); /* before it is freed */

/* ---- mpi_join.c ---- */
extern struct banyan_comm *shim_world; /* all ranks of the job; NULL: all stays on MPI */
void shim_world_join(void);            /* all ranks, in MPI_Init */
/* All ranks, until shim_world_joined(): for what MPI_Init agrees on. */
extern MPI_Comm shim_joining;
void shim_world_joined(void);
void shim_world_leave(double until); /* all ranks, in MPI_Finalize; a bounded time */
/* While there are windows, waits give the MPI library each of their turns. Lock held. */
void shim_tell_windows(void);

/* ---- comms.c, again ---- */
static inline unsigned shim_hash(uintptr_t handle)
{
    return (unsigned)((handle ^ handle >> 5 ^ handle >> 11) % SHIM_CACHE);
}

/* The communicator's object; NULL: the call is MPI's. All ranks get the same answer, because it
 * depends only on the communicator and on the number of collectives called on it. */
static inline struct shim_comm *shim_comm_of(MPI_Comm comm, int blocking)
{
    struct shim_comm *c = shim_cache[shim_hash((uintptr_t)comm)];

    if (shim_inside())
        return NULL;
    if (!c || c->handle != comm || c->state != SHIM_READY)
        c = shim_comm_slow(comm, blocking);
    if (c && !blocking)
        c = c->later;
    if (!c || (c->state != SHIM_READY && c->state != SHIM_LOST))
        return NULL;
    if (c->state == SHIM_READY && shim_comm_has_differed(c))
        shim_comm_differs(c);
    return c->state == SHIM_PASS ? NULL : c;
}

/* ---- types.c ---- */
struct shim_type {
    MPI_Datatype handle;
    size_t size; /* bytes of data */
    MPI_Aint extent;
    uint8_t plain;  /* memory holds the data in the signature's order, without gaps */
    uint8_t cls;    /* SHIM_CLASS_* for reductions; 0: no predefined type */
    uint8_t index;  /* of a predefined type, for the table of operations */
    uint8_t native; /* 1 + enum banyan_dtype, or 0 */
};
#define SHIM_TYPES_MAX 128

enum { /* the reductions that a rank may make: the table in chapter 5 of the standard */
       SHIM_CLASS_INT = 1,
       SHIM_CLASS_FINT = 2,
       SHIM_CLASS_FLOAT = 4,
       SHIM_CLASS_LOGICAL = 8,
       SHIM_CLASS_COMPLEX = 16,
       SHIM_CLASS_BYTE = 32,
       SHIM_CLASS_MULTI = 64,
       SHIM_CLASS_PAIR = 128
};

void shim_types_start(void);
/* 0, or -1: nothing we know to handle (the call is MPI's, also to raise the error). */
int shim_type_get(MPI_Datatype type, struct shim_type *out);
/* MPI_Reduce_local of one element, without calling an error handler. */
int shim_reduce_quietly(const void *in, void *inout, MPI_Datatype type, MPI_Op op);
/* Copies count elements to or from packed bytes. 0 or an MPI error code. */
int shim_pack(const void *from, size_t count, const struct shim_type *t, void *to);
int shim_unpack(const void *from, void *to, size_t count, const struct shim_type *t);

/* ---- ops.c ---- */
struct shim_redop {
    enum banyan_dtype dtype;
    banyan_op op;
    size_t unit;            /* banyan elements of one MPI element */
    struct shim_user *user; /* made for this call: shim_redop_done frees it. NULL: lasts */
};
/* 1: handled; 0: MPI's. All ranks pass the same op and type, so all get the same answer. */
int shim_redop_get(MPI_Op op, const struct shim_type *t, struct shim_redop *out);
void shim_redop_done(struct shim_redop *r);
int shim_user_has_op(const struct shim_user *u, MPI_Op op);
int shim_user_has_type(const struct shim_user *u, MPI_Datatype type);

/* ---- mpi_job.c: one collective call ---- */
enum shim_call {
    SHIM_ALLREDUCE,
    SHIM_REDUCE,
    SHIM_BCAST,
    SHIM_REDUCE_SCATTER,
    SHIM_REDUCE_SCATTER_BLOCK,
    SHIM_ALLGATHER,
    SHIM_ALLGATHERV,
    SHIM_GATHER,
    SHIM_GATHERV,
    SHIM_SCATTER,
    SHIM_SCATTERV,
    SHIM_ALLTOALL,
    SHIM_ALLTOALLV,
    SHIM_BARRIER,
    SHIM_SCAN,
    SHIM_EXSCAN,
    SHIM_CALLS
};

struct shim_job {
    enum shim_call call;
    struct shim_comm *c;
    const void *send;
    void *recv;
    size_t count;
    struct shim_redop r;
    int root;
    size_t *scounts, *sdispls, *rcounts, *rdispls; /* in `vec` */
    size_t *vec;                                   /* owned */
    void *temp[2]; /* owned: packed copies, [1] is what is unpacked */
    /* afterwards: blocks of temp[1] go where the user wants them */
    int out;
    char *out_base;
    struct shim_type out_type;
    size_t out_count;   /* elements, when they lie one after another */
    size_t *out_counts; /* or of each rank's block, in `vec` */
    ptrdiff_t *out_displs;
    /* or one move */
    void *move_to;
    const void *move_from;
    size_t move_bytes;
    size_t bytes; /* for the report */
};

void shim_job_start(struct shim_job *j, enum shim_call call, struct shim_comm *c);
/* A vec of `arrays` times the number of ranks; 0 or -1. */
int shim_job_vec(struct shim_job *j, int arrays);
/* `bytes` bytes as temp[i]; NULL without memory. */
void *shim_job_temp(struct shim_job *j, int i, size_t bytes);
/* A call that banyan could not serve, as its ranks had called different things before: the
 * MPI's. */
#define SHIM_AGAIN (-1)
/* Runs it, and frees what the job owns. Returns an MPI error code, after the error handler, or
 * SHIM_AGAIN. */
int shim_job_run(struct shim_job *j);
/* Starts it; *req is a generalised request. Takes the job. Returns an MPI error code, after the
 * error handler. */
int shim_job_launch(struct shim_job *j, MPI_Request *req);
/* A request that is complete: a call without data. */
int shim_launch_nothing(MPI_Comm comm, MPI_Request *req);
/* Frees what a job owns that did not start. */
void shim_job_drop(struct shim_job *j);

/* ---- persist.c ---- */
/* The arguments of a collective whose blocks are of one size. A function that it lacks is NULL.
 */
struct shim_args {
    enum shim_call call;
    const void *send;
    void *recv;
    int scount, rcount; /* the one that it has is scount; the buffer of a broadcast is recv */
    MPI_Datatype stype, rtype;
    MPI_Op op;
    int root;
};
/* Collective and waiting, as the call that makes such a request may be. 1: *request is made;
 * 0: it is the MPI's, at all ranks. Lock not held. */
int shim_persistent_init(const struct shim_args *args, MPI_Comm comm, MPI_Request *request);
int shim_persistent_uses(MPI_Op op, MPI_Datatype type); /* lock held */
void shim_persistent_stop(void);                        /* at MPI_Finalize */
/* calls.c: the job of these arguments, on the job's communicator. 0; or -1: there is none, and
 * the job owns nothing. Lock held. */
int shim_prepare(struct shim_job *j, const struct shim_args *args);

/* ---- mpi_progress.c ---- */
/* Tests everything of ours in flight. Lock held. */
void shim_progress(void);
/* Nothing of ours is in flight: the next calls of BNY_MPI_STRAIGHT need not come here. */
void shim_go_straight(void);
/* The same from a loop that waits, then leaves the CPU to others for a moment. Lock not held.
 */
void shim_turn(unsigned *turns);
/* Progress of what is in flight, without completing any request. From guarded.c's thread. */
void shim_drive_banyan(void);
/* A little progress of the MPI library: banyan calls it while it waits. */
void shim_drive_mpi(void *unused);
/* Waits for an MPI request of ours, progressing both. */
int shim_wait_native(MPI_Request *req);
/* Frees an op or a type once nothing in flight uses it. 0: nothing does, the caller frees it.
 */
int shim_free_op_later(MPI_Op op);
int shim_free_type_later(MPI_Datatype type);
void shim_free_laters(void); /* those that nothing uses any more */
/* Completes what is in flight on a communicator. */
void shim_drain(MPI_Comm comm);
int shim_progress_start(void);
/* A duplicate of MPI_COMM_SELF. Tag 0 is mpi_progress.c's, up to 30000 types.c's, then
 * persist.c's.
 */
extern MPI_Comm shim_self;
void shim_progress_stop(void);

/* ---- guarded.c: a thread progresses while MPI blocks ---- */
void shim_guard_on(void);
void shim_guard_off(void);
void shim_guard_stop(void);

/* Runs an expression that may block inside the MPI library. The calls that the MPI library
 * makes in turn stay with it, on all ranks alike. (MPI-IO uses collectives by names that are
 * ours now.) */
#define SHIM_GUARD(expression)                                                                 \
    __extension__({                                                                            \
        int guarded_ = shim.in_flight > 0, code_;                                              \
        if (guarded_)                                                                          \
            shim_guard_on();                                                                   \
        shim.nested++;                                                                         \
        shim_nested++;                                                                         \
        code_ = (expression);                                                                  \
        shim_nested--;                                                                         \
        shim.nested--;                                                                         \
        if (guarded_)                                                                          \
            shim_guard_off();                                                                  \
        code_;                                                                                 \
    })

/* ---- stats.c ---- */
double shim_now(void);
enum shim_form { SHIM_BLOCKING, SHIM_NONBLOCKING, SHIM_PERSISTENT, SHIM_FORMS };
void shim_count(enum shim_call call, enum shim_form form, int handled, double seconds,
                size_t bytes);
/* Whether the call, if it is a sum that BANYAN_MPI_CODEC is for, was encoded. */
void shim_count_codec(const struct shim_job *j);
void shim_report(void); /* collective over MPI_COMM_WORLD */

#endif
