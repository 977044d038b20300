/* SPDX-License-Identifier: BSD-3-Clause */
/* The engine: a path that runs a program, chunk by chunk. chunk.c: the life of a chunk;
 * order.c: when one may move; open.c: where an operation begins and ends; operands.c: where its
 * data lies; coded.c, ahead.c: the part that a codec has. Which way bytes go is xfer/'s
 * business. */
#ifndef BNY_COLLECTIVES_ENGINE_H
#define BNY_COLLECTIVES_ENGINE_H

#include "collectives/op/op.h"
#include "collectives/op/trace.h"
#include "collectives/xfer/xfer.h"

struct bny_block { /* one row of the table a program's blocks index */
    const char *in;
    char *out, *scratch, *scratch2;
    size_t count; /* elements */
    size_t pos;   /* elements before it, for contiguous programs */
};

struct bny_step_state {
    const char *src;
    char *dst;
    size_t count; /* elements */
    size_t pos;   /* in contiguous coordinates */
    uint32_t nchunks;
    uint32_t posted; /* sends: chunks handed to the transport */
    uint32_t done;   /* chunks applied (receives, keep) or whose memory is free again (sends):
                      * one that was copied at once counts when those before it are back */
    uint32_t early;  /* sends: such copies that do not count yet */
    uint32_t
        waiting_cts; /* sends: 1 + the next one that waits for its peer's CTS; 0: the last */
    uint8_t waits_for_cts; /* it does itself */
    uint32_t view_off;     /* receives: bytes of the current message already applied */
    uint64_t credit_ns; /* sends: since when the next chunk waits for the transport; 0: it does
                           not, or nobody traces */
    struct bny_msg_list arrived; /* receives: waiting messages in order of chunk */
};

struct bny_engine_peer {
    struct bny_xfer xfer; /* what both ends told each other */
    uint32_t waiting_cts; /* 1 + the first send that waits for its CTS; 0: none */
    uint8_t is_awaited;   /* counts in cts_missing */
};

struct bny_coded;

struct bny_engine {
    const struct bny_program *program; /* the plan's */
    struct bny_step_state *steps;      /* [program->nsteps] */
    uint64_t *ready;                   /* a bit a step: it may be able to move */
    struct bny_block *blocks;          /* [program->nblocks] */
    struct bny_engine_peer *peers;     /* [n] */
    size_t steps_cap, ready_cap, blocks_cap;
    uint32_t steps_left;
    uint32_t unannounced; /* peers that are to hear CTS and have not */
    uint32_t cts_missing; /* peers of which CTS is to come before the first sends go */
    uint64_t start_ns;    /* where the plan has a pace, or CTS is waited for */
    uint64_t close_ns;    /* a failed operation waits for its windows until then; 0: not set */
    char *scratch, *scratch2, *tile;
    size_t scratch_cap, scratch2_cap, tile_cap;
    const struct bny_step_state *tile_of; /* whose message is partly in the tile; NULL: none */
    struct bny_coded *coded;              /* coded.h; NULL: never had a codec */
    uint8_t is_coded;                     /* this operation has one */
};

static inline struct bny_engine *bny_engine_of(const struct bny_op *op)
{
    return op->of_way[BNY_WAY_PROGRAM];
}

static inline int bny_is_send(const struct bny_step *s)
{
    return s->kind == BNY_SEND || s->kind == BNY_FORWARD;
}

/* The elements of chunk c. */
static inline size_t bny_engine_chunk(const struct bny_op *op, const struct bny_step_state *st,
                                      uint32_t c)
{
    size_t left = st->count - (size_t)c * op->chunk_elems;

    BNY_ASSERT(c < st->nchunks);
    return left < op->chunk_elems ? left : op->chunk_elems;
}

/* Step i may be able to move: the next pass looks at it. */
static inline void bny_engine_wake_step(struct bny_op *op, uint32_t i)
{
    bny_engine_of(op)->ready[i / 64] |= 1ull << (i % 64);
    bny_op_mark_runnable(op);
}

/* chunk.c */
int bny_engine_advance(struct bny_op *op);
void bny_engine_message(struct bny_op *op, int from, struct bny_msg *msg);
void bny_engine_sent(struct bny_op *op, uint32_t step);
/* Sends len bytes at ptr as the chunk that h names, by the way that suits them: as
 * bny_xfer_send(). */
int bny_engine_send(struct bny_op *op, uint32_t i, struct bny_hdr *h, const char *ptr,
                    uint32_t len, uint64_t put_offset);

/* operands.c: fills the block table and the scratch memory. 0 or an error. */
int bny_engine_operands(struct bny_op *op);

/* order.c */
/* Are the elements of chunk c ready in all steps that step i depends on? */
int bny_engine_is_ready(const struct bny_op *op, uint32_t i, uint32_t c);
enum bny_may { BNY_MAY_NOT, BNY_MAY_LATER, BNY_MAY };
/* May a SEND's next chunk leave now? LATER: only time is missing, and runnable, and the world's
 * alarm are set. */
enum bny_may bny_engine_may_send(struct bny_op *op, uint32_t i);
/* Chunks of step i are done: those that depend on it are looked at. */
void bny_engine_wake_users(struct bny_op *op, uint32_t i);

/* short.c: try_now of the way, for messages between two ranks */
int bny_short_try(struct bny_op *op, uint32_t seq, int tries);

/* open.c */
/* May chunks of this step be put straight into the peer's output? Both ends decide alike. */
int bny_engine_placeable(const struct bny_op *op, uint32_t i);
/* Tells peers that will send bulk that we are ready. 1: something was sent. */
int bny_engine_announce(struct bny_op *op);
/* A peer told so. Gives the message back. */
void bny_engine_announced(struct bny_op *op, int from, struct bny_msg *msg);
/* A send waits for CTS of its peer. */
void bny_engine_park(struct bny_op *op, uint32_t i);

#endif
