/* SPDX-License-Identifier: BSD-3-Clause */
/* The flight recorder: the latest operations of each communicator, written to a file of
 * BANYAN_DUMP when the communicator fails, a deadline passes, or the process gets SIGUSR2. With
 * BANYAN_TRACE also the latest events of their chunks (trace.h), written when the job ends,
 * too. And the counts of all operations, for BANYAN_METRICS.
 *
 * A blocking call that completes at once is too short to be described anew each time. The first
 * one gets a record; as long as the communicator runs nothing else, those that follow by the
 * same operation only count in it (a run). A trace has each of them, so with one no call
 * completes at once. Off, a hook is a load and a branch that is never taken. */
#ifndef BNY_COLLECTIVES_RECORDER_H
#define BNY_COLLECTIVES_RECORDER_H

#include "collectives/op/op.h"

#define BNY_RECORDS 1024 /* of a communicator; a power of two */

struct bny_record {
    uint64_t number;       /* of the communicator's records, from 1; 0: none */
    uint64_t begun, ended; /* bny_recorder_ticks(); ended 0: not yet; of a run: the latest */
    uint64_t again;        /* operations of a run after the first one */
    uint64_t counted;      /* of `again`, those that are in the recorder's counts */
    size_t count;
    const char *codec; /* lives as long as the process; NULL: none */
    const char *name;
    uint32_t seq;
    int32_t root, result;
    uint8_t dtype, is_p2p, weighs, esz; /* esz: bytes of an element */
    uint8_t kind;                       /* enum bny_recorded */
    uint8_t is_at_once;                 /* complete within one call; begun is not measured */
    char schedule[20];
};
struct bny_records { /* of a communicator */
    uint64_t n;
    struct bny_op *run; /* whose calls count in the latest record: its ->run; NULL: none */
    struct bny_record of[BNY_RECORDS];
};

/* What is counted together: each collective, messages sent, messages received. */
enum bny_recorded { BNY_RECORDED_RECV = BNY_COLLECTIVE_COUNT, BNY_RECORDED_COUNT };
struct bny_count {
    uint64_t done, failed;
    uint64_t bytes; /* count times type, of those that are done */
    uint64_t ticks; /* in operations that were not complete at once */
};
#define BNY_CODEC_COUNTS 8
struct bny_codec_count { /* operations with a codec */
    const char *spec;    /* NULL: no more follow */
    uint64_t raw, wire;  /* bytes of the calls; bytes that this rank handed to transports */
};
struct bny_counts {
    struct bny_count of[BNY_RECORDED_COUNT];
    struct bny_codec_count codecs[BNY_CODEC_COUNTS]; /* the last has those of all others */
    double ns_per_tick;
};

/* If BANYAN_DUMP is set: SIGUSR2 ends this process no more, from init on. */
void bny_recorder_heed_signal(void);
/* Begins to record the world's operations if BANYAN_DUMP names a folder, BANYAN_TRACE a file,
 * or BANYAN_METRICS is set. Without memory, or if the folder cannot be made, it warns. */
void bny_recorder_open(struct bny_world *w);
/* Writes the trace: the last communicator ends. Lock held. */
void bny_recorder_finish(struct bny_world *w);
void bny_recorder_close(struct bny_world *w);
/* The communicator, which is not the last one, ends: a trace keeps its operations. Lock held.
 */
void bny_recorder_ended(const struct banyan_comm *c);
/* Writes the file, in place of an earlier one. why: the reason in words. Lock held. */
void bny_recorder_dump(struct bny_world *w, const char *why);
/* The same for a failure. Lock held. */
void bny_recorder_failed(struct bny_world *w, const char *why);
/* The same if SIGUSR2 has come since. Lock held. */
void bny_recorder_tick(struct bny_world *w);
/* The control plane's thread was woken, by a signal or a failure perhaps. No lock held. */
void bny_recorder_aside(struct bny_world *w);

/* Of all operations so far that are complete. The world has a recorder. Lock held. */
const struct bny_counts *bny_recorder_counts(struct bny_world *w);
/* Seconds since an operation in flight began; < 0: unknown. Lock held. */
double bny_recorder_age(const struct bny_op *op);

void bny_recorder_add(struct bny_op *op);
void bny_recorder_end(const struct bny_op *op);
void bny_recorder_at_once(struct bny_op *op);
void bny_recorder_run_end(struct bny_op *op);

/* A counter that a 4 B call can afford to read. */
static inline uint64_t bny_recorder_ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t t;

    __asm__ __volatile__("mrs %0, cntvct_el0" : "=r"(t));
    return t;
#else
    return bny_now_ns();
#endif
}

static inline int bny_recorder_is_on(const struct bny_op *op)
{
    return __builtin_expect(op->comm->world->recorder != NULL, 0);
}

/* Hooks: the operation has its number; it has its result. */
static inline void bny_record_begin(struct bny_op *op)
{
    if (bny_recorder_is_on(op))
        bny_recorder_add(op);
}

/* It was complete at once. */
static inline void bny_record_at_once(struct bny_op *op)
{
    struct bny_record *r = op->run;

    if (r) {
        r->again++;
        r->ended = bny_recorder_ticks();
    } else if (bny_recorder_is_on(op)) {
        bny_recorder_at_once(op);
    }
}

/* It is to run another call, or to be freed. */
static inline void bny_record_run_end(struct bny_op *op)
{
    if (op->run)
        bny_recorder_run_end(op);
}

static inline void bny_record_end(const struct bny_op *op)
{
    if (bny_recorder_is_on(op))
        bny_recorder_end(op);
}

#endif
