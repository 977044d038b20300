/* SPDX-License-Identifier: BSD-3-Clause */
/* Reductions in order of arrival (Hoplite, SIGCOMM 2021): a path on which ranks take the slots
 * of a tree as they come, and sums flow through it at once, chunk by chunk. A late rank holds
 * up only the ranks that need its data, and only for one hop. arrival_tree.c: the tree.
 * coordinator.c: the slots of the ranks. stream.c: chunks. arrival_coded.c: their codec.
 * arrival.c: where an operation begins and ends.
 *
 * The coordinator is a rank that knows which ranks have come. Every rank sends it a word; it
 * answers with a slot, and tells each rank its parent as soon as there is one. It has to be
 * there itself, so that one late rank does not hold up all, there are two: ranks 0 and 1; rank
 * 2 is the third whose voice decides. Rank 0 is for itself. Rank 1 and rank 2 are for rank 0 if
 * they hear of it first, else for rank 1 (each of the two hears of the other). So of three
 * voices two agree whichever two are there, and never on both.
 *
 * Where all come within plan.together_s the coordinator says so, and the call runs a static
 * schedule, as a child under the second number behind its own. Then all inputs count, whatever
 * at_least asks for.
 *
 * A coordinator is an operation of its own, under the number behind that of the call: it
 * outlives the call where others are still to come, for whom it keeps the result
 * (at_least).
 *
 * Who is late has the result from the last one in a line, whose port sends nothing else: first
 * from the end of the chain in which the result goes round, as long as it does, then from the
 * coordinator; and is last in that line then, for the next one (Hoplite's chains of receivers).
 * The last one keeps what it passes on, as the coordinator does, and its call waits for
 * nobody's receiving; only for the coordinator's word that nobody, or who, comes behind it. */
#ifndef BNY_COLLECTIVES_ARRIVAL_H
#define BNY_COLLECTIVES_ARRIVAL_H

#include "collectives/op/child.h"
#include "collectives/plan/way.h"
#include "collectives/xfer/xfer.h"

/* Schedule auto takes this path for sums that would be faster so if ranks are late: lateness.h
 * says when they are. */

#define BNY_COORDINATORS 3 /* ranks that have one: two that may serve, and the third voice */

/* The kind of a message of this way: hdr.step. */
enum bny_arrival_step {
    BNY_ARRIVAL_WORD,     /* struct bny_arrival_word */
    BNY_ARRIVAL_UP,       /* a chunk of a sum, to a parent */
    BNY_ARRIVAL_UP_SET,   /* whose inputs are in it: a bit for each rank */
    BNY_ARRIVAL_DOWN,     /* a chunk of the result */
    BNY_ARRIVAL_DOWN_SET, /* whose inputs are in that */
};

enum bny_arrival_said {
    BNY_SAID_HERE = 1,    /* to a coordinator: its sender has come */
    BNY_SAID_COORDINATOR, /* between coordinators: its sender's is open */
    BNY_SAID_VOICE,       /* between coordinators: its sender is for `rank` */
    BNY_SAID_SLOT,        /* to a rank: its slot; rank: its parent, or one of these */
    BNY_SAID_PARENT,      /* to a rank: its parent is `rank` */
    BNY_SAID_LATE,     /* to a rank: its input does not count; the result comes from `rank` */
    BNY_SAID_TOGETHER, /* to a rank: all have come, a static schedule runs */
    BNY_SAID_FEED,     /* to the last one in a line: rank `rank` has the result from it */
    BNY_SAID_ENDS,     /* to the last one in a line: nobody has, and it is free to go */
    /* Beside SLOT or TOGETHER of a sum that asks: somebody was late by what pays. */
    BNY_SAID_WAS_LATE = 0x100,
};
#define BNY_NO_PARENT_YET (-1)
#define BNY_NO_PARENT     (-2) /* the top */
#define BNY_NEXT_UNSAID   (-2)
#define BNY_NEXT_NONE     (-1)

struct bny_arrival_word { /* wire format */
    uint32_t said;
    int32_t slot, slots, depth, rank;
};
_Static_assert(sizeof(struct bny_arrival_word) == 20, "wire format");

/* Words that are to go. A peer that cannot take one now does not hold up those for others. */
struct bny_outbox {
    struct bny_posted {
        int to;
        uint32_t seq;
        struct bny_arrival_word word;
    } * at;
    size_t n, cap;
};

#define BNY_ARRIVAL_RAW UINT32_MAX

/* A result: chunk c is `len[c]` bytes at coded + c * coded_stride, or, where that is
 * BNY_ARRIVAL_RAW, and everywhere when len is NULL, elements at raw + c * raw_stride. */
struct bny_kept {
    const char *raw, *coded;
    size_t raw_stride, coded_stride;
    const uint32_t *len;
};

/* A stream of result chunks to a rank. */
struct bny_feed {
    int to;
    uint32_t next, borrowed; /* chunks handed over; of these, the transport still has */
    uint8_t set_sent;
};

/* Of a peer that sends chunks: a child, or the rank that has the result. */
struct bny_source {
    int rank;                    /* -1: not known yet */
    uint32_t left;               /* chunks to come */
    uint32_t view_off;           /* bytes of the first message in `arrived` that are applied */
    uint8_t has_set;             /* its set has come */
    uint8_t *seen;               /* [nchunks] */
    struct bny_msg_list arrived; /* front to back, one at a time */
    char *tile;                  /* where a message must be in one piece */
    size_t tile_cap;
};

/* The codec's part: arrival_coded.c. */
struct bny_arrival_coded {
    char *wire;    /* [nchunks] of stride bytes: of our sum; then of the result */
    uint32_t *len; /* [nchunks] bytes there, BNY_ARRIVAL_RAW, or 0: not encoded yet */
    char *stats;   /* [nchunks] of ops->stats_bytes */
    char *part;    /* a chunk encoded, and behind that decoded */
    size_t wire_cap, len_cap, stats_cap, part_cap, stride, nencodings;
    struct banyan_codec_state *held; /* the call's, until it is known whether it takes part */
    struct banyan_codec_state *lent; /* to this operation; or NULL */
    uint32_t step, nsum;             /* inputs in our sum */
    uint8_t thins;                   /* our own part is made sparse before it is added */
};

struct bny_coordinator;

struct bny_arrival {
    struct bny_coordinator *coordinator; /* this rank's, while it is there; or NULL */
    struct bny_coordinator *feeder;      /* passes the result on to one who is late; or NULL */
    struct bny_outbox out;
    struct bny_child child; /* the static schedule's, where all came together */
    uint8_t together;
    uint8_t begun;      /* it has said that it is here, or need not */
    uint8_t asks;       /* it has begun, and its coordinator is to tell which ranks were late */
    uint8_t is_settled; /* what its coordinator has to tell of that is known, or nothing */
    uint32_t number;    /* of the sums of lateness.h */
    uint8_t has_slot, late;
    uint8_t told; /* an error was reported: nothing is tried again */
    int server;   /* whose coordinator answered; -1 */
    int slot, slots, parent, nchildren, nknown;
    size_t children_cap;
    struct bny_source *children; /* [nchildren], the first nknown are known */
    struct bny_feed *feeds;      /* [feeds_due] of an allreduce */
    int nfeeds, feeds_due;       /* so many it will have */
    uint8_t is_chain;            /* the result goes round: top, slot 0, 1, ... */
    uint8_t is_last;             /* in a line, and the coordinator has not said what follows */
    uint8_t next_is_due;         /* it has, and that is still to be heeded */
    int next;                    /* it has: a rank, BNY_NEXT_NONE; or BNY_NEXT_UNSAID */
    int late_from;               /* the rank that has the result for late ranks */
    struct bny_source result;
    uint32_t nchunks, up_next, up_freed, nhave;
    uint16_t *added;   /* [nchunks] children whose chunk is in the sum */
    uint8_t *is_freed; /* [nchunks] ours is at the parent */
    uint8_t *have;     /* [nchunks] of the result */
    uint8_t *marks;    /* memory of the three */
    uint64_t *set;     /* [n bits] whose inputs are in our sum; then in the result */
    int nsets;         /* children's sets that are in it */
    uint8_t up_set_sent, has_result_set;
    struct bny_msg_list early; /* held: before it had its slot */
    size_t marks_cap, set_cap;
    char *acc; /* the sum; the output where there is one */
    char *scratch;
    size_t scratch_cap;
    struct bny_arrival_coded coded;
};

/* Is it a coordinator's operation, which is nobody's call? */
static inline int bny_is_coordinator(const struct bny_op *op)
{
    return op->free_detached != NULL;
}

/* NULL: it is one. */
static inline struct bny_arrival *bny_arrival_of(const struct bny_op *op)
{
    return bny_is_coordinator(op) ? NULL : op->of_way[BNY_WAY_ARRIVAL];
}

static inline int bny_arrival_wants_result(const struct bny_op *op)
{
    return op->call.collective == BNY_ALLREDUCE || op->call.root == op->comm->rank;
}

static inline size_t bny_arrival_set_bytes(const struct bny_op *op)
{
    return ((size_t)op->comm->n + 63) / 64 * 8;
}

static inline size_t bny_arrival_chunk(const struct bny_op *op, uint32_t c)
{
    size_t left = op->call.count - (size_t)c * op->chunk_elems;

    return left < op->chunk_elems ? left : op->chunk_elems;
}

static inline uint32_t bny_arrival_chunks(const struct bny_op *op)
{
    return (uint32_t)((op->call.count + op->chunk_elems - 1) / op->chunk_elems);
}

/* How many ranks' inputs count. */
static inline int bny_arrival_slots(const struct bny_call *call, int n)
{
    return call->first && call->first < (size_t)n ? (int)call->first : n;
}

/* ---- arrival.c ---- */

/* Something that must not be was said by rank `from`: the communicator fails of it. */
void bny_arrival_wrong(struct bny_op *op, int from, const char *what);
/* Adds a word for rank `to` under operation number seq. */
void bny_outbox_add(struct bny_op *op, struct bny_outbox *box, int to, uint32_t seq,
                    const struct bny_arrival_word *word);
/* Sends what can go. 1: something went. */
int bny_outbox_flush(struct bny_op *op, struct bny_outbox *box);
/* The first bytes of a word; 0: it is none. Does not release msg. */
int bny_arrival_read_word(const struct bny_msg *msg, struct bny_arrival_word *out);
/* Does a slot end the line in which the result goes round, and may that get longer? */
static inline int bny_arrival_is_last(const struct bny_call *call, int n, int slot, int slots,
                                      int depth)
{
    return call->collective == BNY_ALLREDUCE && depth == 0 && slots >= 3 && slots < n &&
           slot == slots - 2;
}
/* A coordinator's answer, from whichever rank it is. */
void bny_arrival_word(struct bny_op *op, int from, const struct bny_arrival_word *word);

/* ---- stream.c ---- */

/* A chunk or a set of a peer; takes msg. The operation has its slot or is late. */
void bny_stream_message(struct bny_op *op, int from, struct bny_msg *msg);
/* Applies what has arrived, and sends what is ready. 1: moved something. */
int bny_stream_advance(struct bny_op *op);
/* Sends the chunks of a result that are there, and its set, under number seq. have [nchunks],
 * set NULL: not yet. 1: moved something. */
int bny_feed_advance(struct bny_op *op, struct bny_feed *feed, uint32_t cookie, uint32_t seq,
                     const struct bny_kept *result, const uint8_t *have, const uint64_t *set);
/* It needs nothing of anybody any more, and all that it sent is there. */
int bny_stream_is_done(const struct bny_op *op);
/* Chunk c needs nothing more to be the sum of this rank's tree. */
void bny_stream_added(struct bny_op *op, uint32_t c);
/* The transport has given memory back. */
void bny_stream_sent(struct bny_op *op, uint32_t cookie);
void bny_source_free(struct bny_source *s);

/* ---- arrival_coded.c: nothing where the plan has no codec ---- */

/* Memory, for a plan. 0 or an error. */
int bny_arrival_coded_init(struct bny_op *op);
/* Takes the call's codec state, for whatever comes. */
void bny_arrival_coded_start(struct bny_op *op);
/* This rank's input counts, and with its children's there are nsum of them in its sum. Its slot
 * and parent are known. 0 or an error. */
int bny_arrival_coded_takes_part(struct bny_op *op, int nsum);
/* Its input does not count: the state's step passes, residuals stay. 0 or an error. */
int bny_arrival_coded_is_late(struct bny_op *op);
/* Gives the state to the child. */
void bny_arrival_coded_release(struct bny_op *op);
/* It is over: the state's step has passed. Idempotent. */
void bny_arrival_coded_end(struct bny_op *op, int result);
void bny_arrival_coded_free(struct bny_arrival_coded *k);
/* Encodes chunk c of our sum, if that is yet to be done. 0 or an error. */
int bny_arrival_encode(struct bny_op *op, uint32_t c);
/* Encodes chunk c of the result, at the top; the output is what all others will decode. 0 or an
 * error. */
int bny_arrival_encode_result(struct bny_op *op, uint32_t c);
/* May a message be a chunk of n elements? */
int bny_arrival_coded_fits(const struct bny_op *op, const struct bny_hdr *h, size_t n);
/* Adds the chunk h->chunk of a child's sum, or places one of the result. data: all of it, of a
 * peer. 0, or an error: then nothing of it is written. */
int bny_arrival_apply_coded(struct bny_op *op, int from, int is_result, const struct bny_hdr *h,
                            const void *data);

/* ---- coordinator.c: of its own operation, as the way's ---- */

int bny_coordinator_advance(struct bny_op *op);
void bny_coordinator_message(struct bny_op *op, int from, struct bny_msg *msg);
void bny_coordinator_sent(struct bny_op *op, uint32_t cookie);
void bny_coordinator_end(struct bny_op *op, int result);
void bny_coordinator_free(struct bny_op *op);

/* ---- and of the call ---- */

/* Opens this rank's coordinator for the operation; of a call that asks it only tells when all
 * have come. 0 or an error. */
int bny_coordinator_open(struct bny_op *op);
/* A coordinator's word for its own rank. */
void bny_coordinator_own(struct bny_op *op, const struct bny_arrival_word *w);
/* A word for this rank's own. */
void bny_coordinator_word(struct bny_coordinator *coordinator, int from,
                          const struct bny_arrival_word *word);
/* Chunk c of the result is in its member's output: to be kept for those who are late. */
void bny_coordinator_keep(struct bny_coordinator *coordinator, uint32_t c);
void bny_coordinator_keep_set(struct bny_coordinator *coordinator);
/* Are its member's own sums to wait, as words to others would stand behind them? Not for long:
 * the member is to ask again then, and has been runnable for it. */
int bny_coordinator_goes_first(struct bny_coordinator *coordinator);
/* Passes op's result on to rank `to`, also when the call has ended. 0 or an error. */
int bny_coordinator_feed(struct bny_op *op, int to);
/* Must its member stay, as others still wait for what the coordinator says? */
int bny_coordinator_is_needed(const struct bny_coordinator *coordinator);
/* Its member has ended. */
void bny_coordinator_alone(struct bny_coordinator *coordinator);
/* Does it wait for rank r to come? */
int bny_coordinator_lacks(const struct bny_coordinator *coordinator, int r);
/* Has rank r come, and gets its answers here? */
int bny_coordinator_answers(const struct bny_coordinator *coordinator, int r);

#endif
