/* SPDX-License-Identifier: BSD-3-Clause */
/* The part of a chunk's life that a codec sees, and what it remembers of each step: an array of
 * its own beside the engine's. ahead.c: encoding threads run ahead of the wire. */
#ifndef BNY_COLLECTIVES_CODED_H
#define BNY_COLLECTIVES_CODED_H

#include "collectives/engine/engine.h"

struct bny_job;
struct bny_workers;

#define BNY_AHEAD 4 /* chunks of a step: half of a pair's send slots */

struct bny_coded_step {
    uint8_t travels;  /* its chunks travel encoded; KEEP: are encoded */
    uint8_t thins;    /* RECV_ADD: our own part is made sparse before this, the first encoded
                       * one, is added */
    uint8_t is_union; /* SEND, KEEP of such a sum: its elements travel as they are, no residual
                       * has a part in it */
    uint8_t awaits;   /* the next chunk is still with an encoding thread */
    uint32_t nsum;    /* contributions summed in what it encodes */
    uint32_t pend_len;
    uint32_t raw_next;    /* SEND: 1 + the chunk that the codec has declined; 0: none */
    uint32_t ahead;       /* the first chunk that no job was made of */
    char *pend;           /* SEND: a small message that is encoded but found no room, pend_len
                           * bytes of it */
    char *kept;           /* RECV_COPY, KEEP that is forwarded: wire bytes, by chunk */
    uint32_t *kept_len;   /* BNY_LEN_RAW: the chunk goes on as it is, from its final place */
    struct bny_job *jobs; /* SEND: [BNY_AHEAD], chunk c in c % BNY_AHEAD; NULL: nobody runs
                             ahead */
    size_t stats_at; /* its first chunk's number among this rank's encodings, in order of index
                      */
};

struct bny_coded_block { /* counters while steps are prepared */
    uint32_t added, thinned;
    size_t encodings;
};

struct bny_coded {
    struct bny_coded_step *steps;   /* [program->nsteps] */
    struct bny_coded_block *blocks; /* [program->nblocks] */
    size_t steps_cap, blocks_cap;
    char *memory; /* kept chunks, small messages, jobs */
    size_t memory_cap;
    struct bny_tp *memory_tp; /* the device that knows it, or NULL */
    char *decoded;            /* a chunk of an exact codec, to be reduced */
    size_t decoded_cap;
    char *stats; /* [nencodings * stats_bytes] */
    size_t stats_cap, nencodings;
    struct bny_workers *workers;     /* that encode for it, or NULL */
    struct banyan_codec_state *lent; /* to this operation, while it is active; or NULL */
    uint32_t codec_step;             /* of encodings */
};

#define BNY_LEN_RAW UINT32_MAX

static inline struct bny_coded_step *bny_coded_step(const struct bny_op *op, uint32_t i)
{
    return &bny_engine_of(op)->coded->steps[i];
}

/* The codec of step i; NULL: its data is raw. */
static inline const struct bny_codec *bny_coded_codec(const struct bny_op *op, uint32_t i)
{
    return bny_plan_codec(&op->plan, bny_engine_of(op)->program->steps[i].code);
}

/* Do the chunks of step i travel encoded (KEEP: are they encoded)? */
static inline int bny_coded_travels(const struct bny_op *op, uint32_t i)
{
    return bny_engine_of(op)->is_coded && bny_coded_step(op, i)->travels;
}

static inline int bny_coded_awaits(const struct bny_op *op, uint32_t i)
{
    return bny_coded_travels(op, i) && bny_coded_step(op, i)->awaits;
}

/* coded.c */
void bny_coded_free(struct bny_engine *e, int has_devices);
int bny_coded_start(struct bny_op *op);            /* steps are prepared. 0 or an error */
void bny_coded_end(struct bny_op *op, int result); /* gives the state back; idempotent */
/* Of a step that is encoded: the largest message of n elements, raw or not; may a message be a
 * chunk of n elements? */
size_t bny_coded_most(const struct bny_op *op, uint32_t i, size_t n);
int bny_coded_fits(const struct bny_op *op, uint32_t i, const struct bny_hdr *h, size_t n);
/* Encodes or forwards chunk h->chunk and sends it; as bny_engine_send. */
int bny_coded_send(struct bny_op *op, uint32_t i, struct bny_hdr *h);
/* Applies an encoded chunk of n elements. 0 or an error; nothing is written then. */
int bny_coded_apply(struct bny_op *op, uint32_t i, const void *wire, size_t len, uint32_t c,
                    size_t n);
/* Chunk c came raw, as its codec declined it; data NULL: not in one piece, which only checksums
 * need. 0 or an error. */
int bny_coded_declined(struct bny_op *op, uint32_t i, const struct bny_msg *msg,
                       const void *data, uint32_t c);
/* KEEP: encodes what others will decode, and keeps the decode. 0 or an error. */
int bny_coded_keep(struct bny_op *op, uint32_t i, uint32_t c);
/* The inputs of encoding chunk c as `rank`, but for where it goes. */
void bny_coded_inputs(const struct bny_op *op, uint32_t i, uint32_t c, uint32_t rank,
                      struct bny_enc *e);

/* ahead.c */
/* Started on first use; NULL: none. Lock held */
struct bny_workers *bny_ahead_workers(struct bny_world *w);
void bny_ahead_prepare(struct bny_op *op); /* the workers and the steps' jobs are set */
/* Sends chunk h->chunk of a step with jobs, which needs up to `most` bytes, and lets threads
 * encode those behind it. As bny_engine_send; -BANYAN_ENOTSUP: the codec declines. */
int bny_ahead_send(struct bny_op *op, uint32_t i, struct bny_hdr *h, size_t most);
void bny_ahead_stop(struct bny_op *op); /* no thread touches the operation any more; idempotent
                                         */

#endif
