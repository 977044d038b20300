/* SPDX-License-Identifier: BSD-3-Clause */
/* When each chunk was encoded, sent, received and added: a ring of events per world, for tools.
 * Off, a hook is a load and a branch that is never taken. */
#ifndef BNY_COLLECTIVES_TRACE_H
#define BNY_COLLECTIVES_TRACE_H

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
    uint64_t t0, t1;        /* CLOCK_MONOTONIC ns */
    uint32_t seq;           /* the operation's number */
    uint32_t step, ordinal; /* index in this rank's program; number among the messages of the
                               pair, which both ends know */
    uint32_t chunk, bytes;
    int32_t peer; /* of the communicator; -1: none (the owner's encoding) */
    uint32_t kind;
    uint32_t thread; /* ENCODE: 0, or the number of the encoding thread */
};
_Static_assert(sizeof(struct bny_trace_event) == 48,
               "ranks send events to each other as they are");

struct bny_trace {
    struct bny_trace_event *events; /* [cap], a ring */
    size_t cap;
    uint64_t n;          /* events so far; the latest cap of them are there */
    uint64_t encoded_ns; /* end of the latest encoding: a post begins after its own */
};

/* Begins to keep the latest `cap` events of all communicators of comm's world. 0, -EINVAL (it
 * does already), -ENOMEM. */
int bny_trace_begin(struct banyan_comm *comm, size_t cap);
/* Ends that. *events [*n] in order, for the caller to free(); *lost: how many earlier ones were
 * overwritten. 0, -EINVAL (not begun). */
int bny_trace_end(struct banyan_comm *comm, struct bny_trace_event **events, size_t *n,
                  uint64_t *lost);

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
