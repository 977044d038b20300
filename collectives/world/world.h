/* SPDX-License-Identifier: BSD-3-Clause */
/* A world: this process's place in a job. Its lock, its transports, the members of the job, the
 * agreements of all ranks, and the failure that was seen first. It knows no communicator and no
 * operation: what happens in it is driven from above (progress/). Everything is guarded by its
 * lock unless a comment says atomic. */
#ifndef BNY_COLLECTIVES_WORLD_H
#define BNY_COLLECTIVES_WORLD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fork.h"
#include "base/log.h"
#include "collectives/plan/scope.h"
#include "collectives/world/buffered.h"
#include "collectives/world/members.h"
#include "transport/bootstrap/bootstrap.h"
#include "transport/msg_list.h"
#include "transport/transport.h"

#define BNY_MAX_TPS         4
#define BNY_ENDED_MAX       256u
#define BNY_DESCRIPTORS_MAX 64

struct banyan_comm;

/* Limits that hold for all pairs of ranks. */
struct bny_limits {
    uint32_t eager_max, slot_max, whole_max; /* the least of any pair */
    uint32_t at_once;      /* eager_max of pairs that share no memory; UINT32_MAX: none */
    uint8_t shares_memory; /* every pair talks by shared memory */
    uint8_t small_slots;   /* some pair may not be able to send more than slot_max at once */
};

/* Memory of banyan_mem_alloc or banyan_mem_register, without a transport that shares it. */
struct bny_plain {
    struct bny_plain *next;
    void *ptr;
    int owned; /* of banyan_mem_alloc; else registered */
};

/* The recent cost of yields. */
struct bny_yields {
    _Atomic uint32_t dear;     /* of the latest ones, a bit each: it took long */
    atomic_int are_dear;       /* then waits sleep instead */
    _Atomic uint64_t trial_ns; /* until then; the latest time that was set */
    _Atomic uint64_t pause_ns; /* from the trial before */
};

#define BNY_SAMPLES 8
struct bny_samples { /* the latest ones; 0: none */
    double of[BNY_SAMPLES];
    unsigned n;
};

struct bny_weighing;

#define BNY_PORT_GROUPS 8 /* of calls in a period */

/* What a rank measures of its host's port, from the beginning of a call that is weighed until
 * none is under way any more; of short periods and of long ones. */
struct bny_port {
    uint32_t active; /* calls */
    uint8_t kinds;   /* of those in this period: 1 raw, 2 coded, 4 failed */
    uint64_t begun_ns, sent;
    struct bny_port_group {
        struct bny_weighing *of;
        int kind, size;
        int is_trial; /* they run the way that was not chosen */
        double bytes; /* of calls */
    } groups[BNY_PORT_GROUPS];
    int ngroups;                 /* more than BNY_PORT_GROUPS: not all are here */
    struct bny_samples rates[2]; /* bytes a second, raw; */
    struct bny_samples coded[2]; /* and with a codec */
};

struct bny_world {
    int rank, nranks;
    atomic_flag lock;    /* progress and every change of state */
    atomic_int locked;   /* by whom: only to assert; BNY_CHECKS */
    unsigned generation; /* of the process: a forked child has another */
    struct bny_tp *tps[BNY_MAX_TPS];
    int ntps;
    struct bny_members members;
    struct bny_control *control; /* NULL when alone, and in bny_comm_loop of tests */
    struct bny_buffer_pool held;
    uint8_t job[8];
    /* [32] the job's, in no swap and no core dump; NULL in bny_comm_loop of tests */
    uint8_t *secret;
    /* Agreed by all ranks at init, from all peer infos */
    struct bny_limits agreed, /* of all pairs */
        in_memory;            /* of those that share memory */
    int *memory_of; /* [nranks] who shares memory with whom: numbers, < 0: with nobody. NULL:
                     * as agreed.shares_memory says */
    int *on_memory; /* [numbers] where memory_of is there: to count in, lock held */
    struct bny_topology *topology;
    int all_local;      /* one host */
    int oversubscribed; /* ranks that share a CPU, on the fullest host; 0: none do */
    int codec_crc;      /* encoded chunks carry checksums */
    int codec_force;    /* codecs are used even where they are predicted to lose */
    double link_Bps;    /* the user's word on a rank's link; 0: none */
    double device_Bps;  /* the slowest rank's device, as it says; 0: not all of them say it */
    /* This rank's own */
    int nlocal;               /* ranks on this host */
    uint32_t cpu;             /* oversubscribed: 1 + the CPU that this rank was on after its
                               * latest yield */
    long long encode_threads; /* BANYAN_ENCODE_THREADS */
    struct bny_port port;     /* sequence/weighed.c */
    int64_t spin_us;          /* BANYAN_SPIN_US */
    /* Failures: report.c */
    int heard;             /* of bny_control_logged(): what was adopted */
    int has_local_failure; /* without a control plane: adopted at the end of progress */
    struct bny_failure local_failure;
    int broken; /* a transport of this rank does not work any more: its code, < 0; else 0 */
    char broken_why[300];
    /* Owned by folders above, which name them */
    struct banyan_comm *comms;       /* by ->next_comm */
    uint64_t ops_before;             /* of communicators that are gone */
    struct banyan_comm *last_comm;   /* of the latest message: most messages are for it */
    struct bny_msg_list unclaimed;   /* match/: for communicators that do not exist here yet */
    uint32_t ended[BNY_ENDED_MAX];   /* match/: ids of those that others may still send for */
    uint32_t nended;                 /* so far; the latest overwrite the first */
    struct bny_cookie_pool *cookies; /* op/ */
    struct bny_trace *trace;         /* op/trace.h; NULL: nobody asked */
    struct bny_recorder *recorder;   /* op/recorder.h; NULL: nobody asked */
    struct bny_observer *observer;   /* op/observe.h; NULL: not yet */
    struct bny_workers *workers;     /* local/workers.h; NULL: none yet, or none at all */
    int workers_tried;
    uint32_t jobs_out;       /* jobs of operations in flight that have not been collected */
    struct bny_plain *plain; /* api/memory.c */
    uint32_t comm_ids;  /* this rank's part of the latest id that it has drawn: comm_core.c */
    int comm_ids_again; /* they have begun anew: some may be in use */
    int comm_id_bits;   /* of that part */
    atomic_int refs;    /* communicators */
    /* How it leaves: 1 in order; 2 the same, though others may need this rank yet, as a
     * communicator at rest was destroyed, not finalized; 0 without a word: one was destroyed
     * with operations in flight, since all ranks finalized one */
    int orderly;
    double op_timeout_s;            /* config's: what a goodbye may take */
    double within_s;                /* banyan_comm_finalize_within's for that; 0: none */
    struct bny_loop_fabric *fabric; /* loop between threads: shared, api/job.c counts */
    int progress_fd;                /* progress/descriptor.c; -1 until asked for */
    int progress_timer;
    int descriptors[BNY_DESCRIPTORS_MAX], ndescriptors; /* watched beside the timer */
    int descriptor_armed; /* one of the nappers is banyan_progress_fd's reader */
    /* Driving: progress/ */
    struct bny_world *next_world; /* of this process */
    uint64_t tick_ns;             /* last slow tick */
    uint64_t slow_ns;             /* op/slow.c: operations that took too long; */
    int told_slow;                /* one was told */
    int has_work;    /* some communicator has operations to advance, or something to say */
    uint64_t due_ns; /* the earliest time at which a paced send may go, 0: none; since a nap
                        looked last */
    uint32_t quick_calls;         /* that were complete at once; goes round */
    int nappers;                  /* threads that sleep on the armed transports */
    atomic_int waiters;           /* threads in bny_op_wait */
    _Atomic uint32_t yield_often; /* spinning waits: wait.c */
    struct bny_yields yields;     /* progress/wait.c */
    atomic_uint_fast64_t sleeps;
    /* Peers may need what the progress hook drives at any time: waits call it in each turn. */
    atomic_int hook_urgent;
    pthread_t thread; /* progress thread */
    int has_thread;
    atomic_int stop_thread;
    int thread_cpu;
};

/* world.c */
struct bny_world *bny_world_new(int nranks, int rank); /* NULL: no memory */
/* Frees what world.c made; the rest has been freed by those that made it. */
void bny_world_delete(struct bny_world *w);
/* Of the descriptor of event loops, where there is one: it becomes readable in ns, or at once;
 * until then only by what it watches. With the lock. */
void bny_world_rest(struct bny_world *w, uint64_t ns);
void bny_world_due(struct bny_world *w);
void bny_world_close_descriptor(struct bny_world *w);

static inline struct bny_ep *bny_world_ep(const struct bny_world *w, int rank)
{
    return bny_members_ep(&w->members, rank);
}

/* Every function "with the lock" relies on it. */
#define BNY_ASSERT_LOCKED(w)                                                                   \
    BNY_ASSERT(atomic_load_explicit(&(w)->locked, memory_order_relaxed))

/* 1: the caller holds the lock. */
static inline int bny_world_trylock(struct bny_world *w)
{
    if (atomic_flag_test_and_set_explicit(&w->lock, memory_order_acquire))
        return 0;
    if (BNY_CHECKS)
        atomic_store_explicit(&w->locked, 1, memory_order_relaxed);
    return 1;
}
void bny_world_lock_contended(struct bny_world *w); /* world.c: another thread holds it */
static inline void bny_world_lock(struct bny_world *w)
{
    if (!bny_world_trylock(w))
        bny_world_lock_contended(w);
}
static inline void bny_world_unlock(struct bny_world *w)
{
    BNY_ASSERT_LOCKED(w);
    if (BNY_CHECKS)
        atomic_store_explicit(&w->locked, 0, memory_order_relaxed);
    atomic_flag_clear_explicit(&w->lock, memory_order_release);
}

/* report.c: something went wrong: floods it; the communicators concerned fail when all
 * survivors have agreed on it (progress/failure.c). comm: that it concerns; NULL: all with the
 * rank blamed. Lock held. */
void bny_report(struct bny_world *w, struct banyan_comm *comm, enum bny_cause cause,
                enum banyan_error code, int blamed, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));

#endif
