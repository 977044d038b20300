/* SPDX-License-Identifier: BSD-3-Clause */
/* The flight recorder: the latest operations of each communicator, written to a file of
 * BANYAN_DUMP when the communicator fails, a deadline passes, or the process gets SIGUSR2. With
 * BANYAN_TRACE also the latest events of their chunks (trace.h), written when the job ends,
 * too. Off, a hook is a load and a branch that is never taken. */
#ifndef BNY_COLLECTIVES_RECORDER_H
#define BNY_COLLECTIVES_RECORDER_H

#include "collectives/op/op.h"

#define BNY_RECORDS 1024 /* of a communicator; a power of two */

struct bny_record {
    uint64_t number;       /* of the communicator's records, from 1; 0: none */
    uint64_t begun, ended; /* bny_recorder_ticks(); ended 0: not yet */
    size_t count;
    const char *codec; /* lives as long as the process; NULL: none */
    const char *name;
    uint32_t seq;
    int32_t root, result;
    uint8_t dtype, is_p2p, weighs, esz; /* esz: bytes of an element */
    char schedule[20];
};
struct bny_records { /* of a communicator */
    uint64_t n;
    struct bny_record of[BNY_RECORDS];
};

/* If BANYAN_DUMP is set: SIGUSR2 ends this process no more, from init on. */
void bny_recorder_heed_signal(void);
/* Begins to record the world's operations if BANYAN_DUMP names a folder, or BANYAN_TRACE a
 * file. Without memory, or if the folder cannot be made, it warns. */
void bny_recorder_open(struct bny_world *w);
/* Writes the trace: the last communicator ends. Lock held. */
void bny_recorder_finish(struct bny_world *w);
void bny_recorder_close(struct bny_world *w);
/* Writes the file, in place of an earlier one. why: the reason in words. Lock held. */
void bny_recorder_dump(struct bny_world *w, const char *why);
/* The same for a failure. Lock held. */
void bny_recorder_failed(struct bny_world *w, const char *why);
/* The same if SIGUSR2 has come since. Lock held. */
void bny_recorder_tick(struct bny_world *w);

uint64_t bny_recorder_ticks(void);
void bny_recorder_add(struct bny_op *op, uint64_t begun);
void bny_recorder_end(const struct bny_op *op);

static inline int bny_recorder_is_on(const struct bny_op *op)
{
    return __builtin_expect(op->comm->world->recorder != NULL, 0);
}

/* Hooks: the time, or 0 if nobody records; the operation has its number; it has its result. */
static inline uint64_t bny_record_clock(const struct bny_op *op)
{
    return bny_recorder_is_on(op) ? bny_recorder_ticks() : 0;
}

static inline void bny_record_begin(struct bny_op *op, uint64_t begun)
{
    if (bny_recorder_is_on(op))
        bny_recorder_add(op, begun);
}

static inline void bny_record_end(const struct bny_op *op)
{
    if (bny_recorder_is_on(op))
        bny_recorder_end(op);
}

#endif
