/* SPDX-License-Identifier: BSD-3-Clause */
/* When each chunk was encoded, sent, received and added: a ring of a world's latest events,
 * which BANYAN_TRACE writes and tools/banyan_trace merges. Off, a hook is a load and a branch
 * that is never taken. */
#ifndef BNY_COLLECTIVES_TRACE_H
#define BNY_COLLECTIVES_TRACE_H

#include <stdio.h>

#include "collectives/op/op.h"

enum bny_trace_kind {
    BNY_TRACE_ENCODE, /* a codec made the chunk's wire bytes; bytes: these, 0 where it declined
                       */
    BNY_TRACE_POST,   /* the transport took the chunk; bytes: as they travel */
    BNY_TRACE_CREDIT, /* ready to go, but the transport or the peer was not */
    BNY_TRACE_ARRIVE, /* all of it has arrived: t0 = t1. There may be a second, later one: the
                         first counts */
    BNY_TRACE_DECODE, /* decoded, added or copied; a raw chunk that comes in pieces has one for
                         each */
    BNY_TRACE_KINDS,
};

struct bny_trace_event {
    uint64_t t0, t1;              /* CLOCK_MONOTONIC ns */
    uint32_t comm, seq;           /* the communicator, the operation's number in it */
    uint32_t call_comm, call_seq; /* of the user's call, of which that operation is a part */
    uint32_t step, ordinal; /* index in this rank's program; number among the messages of the
                               pair, which both ends know */
    uint32_t chunk, bytes;
    int32_t peer;          /* of the job; -1: none (the owner's encoding) */
    uint16_t kind, thread; /* ENCODE: 0, or the number of the encoding thread */
};

#define BNY_TRACE_EVENTS 65536 /* that a world keeps */
struct bny_trace {
    uint64_t n;          /* events so far; the latest BNY_TRACE_EVENTS of them are there */
    uint64_t encoded_ns; /* end of the latest encoding: a post begins after its own */
    struct bny_trace_event events[BNY_TRACE_EVENTS];
};

/* Begins to keep events of all communicators of the world. 0 or -ENOMEM. */
int bny_trace_begin(struct bny_world *w);
void bny_trace_end(struct bny_world *w);
/* Writes the events as JSON: a list of lists, and how many earlier ones were overwritten. Times
 * are later by add_ns. Lock held. */
void bny_trace_write(FILE *f, const struct bny_world *w, int64_t add_ns);

/* In place of a step: a stage of a linear codec, by chunk. */
#define BNY_TRACE_STAGE UINT32_MAX
/* Adds an event of a step of the operation's program; the world's lock is held. */
void bny_trace_add(const struct bny_op *op, uint32_t step, enum bny_trace_kind kind,
                   uint32_t chunk, uint64_t t0, uint64_t t1, size_t bytes);

/* An ENCODE event of an encoding thread, or of this one (0), noted when the chunk is sent. */
void bny_trace_encoded(const struct bny_op *op, uint32_t step, uint32_t chunk, uint64_t t0,
                       uint64_t t1, size_t bytes, uint32_t thread);

static inline int bny_trace_is_on(const struct bny_op *op)
{
    return __builtin_expect(op->comm->world->trace != NULL, 0);
}

/* The time, or 0 when nobody traces. */
static inline uint64_t bny_trace_clock(const struct bny_op *op)
{
    return bny_trace_is_on(op) ? bny_now_ns() : 0;
}

/* A hook: t0 as bny_trace_clock() gave it. */
static inline void bny_trace(const struct bny_op *op, uint32_t step, enum bny_trace_kind kind,
                             uint32_t chunk, uint64_t t0, size_t bytes)
{
    if (__builtin_expect(t0 != 0, 0) && bny_trace_is_on(op))
        bny_trace_add(op, step, kind, chunk, t0, kind == BNY_TRACE_ARRIVE ? t0 : bny_now_ns(),
                      bytes);
}

#endif
