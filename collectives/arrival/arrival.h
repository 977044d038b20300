/* SPDX-License-Identifier: BSD-3-Clause */
/* Reductions in order of arrival (Hoplite, SIGCOMM 2021): ranks take the slots of a tree as
 * they arrive, and sums flow through the tree at once, chunk by chunk. A late rank delays only
 * the ranks that need its data, and only for one hop. arrival_tree.c has the tree,
 * coordinator.c the assignment of slots, stream.c the chunks, arrival_coded.c their codec, and
 * arrival.c the beginning and the end of an operation.
 *
 * The coordinator is a rank that knows which ranks have arrived. Every rank sends it a message
 * on arrival. The coordinator answers with a slot, and sends each rank its parent as soon as
 * the parent has a slot. Ranks 0 and 1 both open a coordinator, so that one late rank does not
 * delay all; ranks 0, 1 and 2 vote for the one that serves. Rank 0 votes for itself. Ranks 1
 * and 2 vote for rank 0 if its message reaches them first, else for rank 1 (on a message of
 * each other). So two of the three votes agree, whichever two ranks are there, and never two
 * for each coordinator.
 *
 * If all ranks arrive within plan.together_s, the coordinator's answer is TOGETHER: the call
 * runs a static schedule, as a child under the second number behind its own. Then all inputs
 * count, whatever at_least asks for.
 *
 * A coordinator is an operation of its own, under the number behind the call's. It outlives the
 * call where other ranks are still to arrive, and keeps the result for them (at_least).
 *
 * Late ranks form a line. A late rank receives the result from the last rank of the line, whose
 * port sends nothing else, and becomes the last one itself (Hoplite's chains of receivers). The
 * first line begins at the end of the chain in which the result goes round; when that has ended
 * the next line begins at the coordinator. The last rank of a line keeps what it forwards, as
 * the coordinator does. So its call does not wait until the next rank has received, but only
 * for the coordinator's message that names the next rank, or that there is none. */
#ifndef BNY_COLLECTIVES_ARRIVAL_H
#define BNY_COLLECTIVES_ARRIVAL_H

#include "collectives/op/child.h"
#include "collectives/plan/way.h"
#include "collectives/xfer/xfer.h"

/* Schedule auto also runs long sums this way while ranks are late: lateness.h. */

#define BNY_COORDINATORS 3 /* ranks that have one: two may serve, the third only votes */

/* What a message of this way has: hdr.step. */
enum bny_arrival_step {
    BNY_ARRIVAL_COORD,    /* struct bny_coord_msg */
    BNY_ARRIVAL_UP,       /* a chunk of a sum, to a parent */
    BNY_ARRIVAL_UP_SET,   /* the contributors of that sum: a bit for each rank */
    BNY_ARRIVAL_DOWN,     /* a chunk of the result */
    BNY_ARRIVAL_DOWN_SET, /* the contributors of the result */
};

/* Messages to, from and between coordinators. */
enum bny_coord_kind {
    /* To a coordinator. */
    BNY_COORD_ARRIVED = 1, /* the sender has arrived */
    BNY_COORD_OPEN,        /* the sender's coordinator is open */
    BNY_COORD_VOTE,        /* the sender votes for coordinator `rank` */
    /* To a rank: its coordinator's answers. */
    BNY_COORD_SLOT,      /* its slot; `rank`: its parent, or BNY_NO_PARENT... */
    BNY_COORD_PARENT,    /* its parent is `rank` */
    BNY_COORD_LATE,      /* its input does not count; `rank` sends it the result */
    BNY_COORD_TOGETHER,  /* all ranks have arrived: it runs the static schedule */
    BNY_COORD_FEED,      /* to the last rank of a line: it sends the result to `rank` */
    BNY_COORD_LINE_ENDS, /* to the last rank of a line: no rank follows, its call may end */
    /* A flag of SLOT and TOGETHER, of a sum that asks: a rank was late enough to matter. */
    BNY_COORD_WAS_LATE = 0x100,
};
#define BNY_NO_PARENT_YET (-1)
#define BNY_NO_PARENT     (-2) /* it is the top */
#define BNY_NEXT_UNKNOWN  (-2)
#define BNY_NEXT_NONE     (-1)

struct bny_coord_msg { /* wire format */
    uint32_t kind;
    int32_t slot, slots, depth, rank;
};
_Static_assert(sizeof(struct bny_coord_msg) == 20, "wire format");

/* Messages that are still to be sent. A peer that cannot take one now does not delay those to
 * other peers. */
struct bny_coord_outbox {
    struct bny_coord_posted {
        int to;
        uint32_t seq;
        struct bny_coord_msg msg;
    } * at;
    size_t n, cap;
};

#define BNY_ARRIVAL_RAW UINT32_MAX

/* A sum or a result that this rank sends. Chunk c is `len[c]` bytes at coded + c *
 * coded_stride. If len is NULL, or len[c] is BNY_ARRIVAL_RAW, it is elements at raw + c *
 * raw_stride. */
struct bny_kept {
    const char *raw, *coded;
    size_t raw_stride, coded_stride;
    const uint32_t *len;
};

/* A stream of result chunks to a rank. */
struct bny_feed {
    int to;
    uint32_t next, borrowed; /* chunks sent; of these, the transport still borrows */
    uint8_t set_sent;
};

/* A peer that sends chunks: a child, or the rank that has the result. */
struct bny_source {
    int rank;                    /* -1: not known yet */
    uint32_t left;               /* chunks to come */
    uint32_t view_off;           /* bytes of the first message in `arrived` that are applied */
    uint8_t has_set;             /* its set of contributors has arrived */
    uint8_t *seen;               /* [nchunks] */
    struct bny_msg_list arrived; /* applied one at a time, in this order */
    char *tile;                  /* for a message that has to be in one piece */
    size_t tile_cap;
};

/* The codec's part: arrival_coded.c. */
struct bny_arrival_coded {
    char *wire;    /* [nchunks] of stride bytes: this rank's sum; then the result */
    uint32_t *len; /* [nchunks] bytes there, BNY_ARRIVAL_RAW, or 0: not encoded yet */
    char *stats;   /* [nchunks] of ops->stats_bytes */
    char *part;    /* a chunk, encoded, and behind that decoded */
    size_t wire_cap, len_cap, stats_cap, part_cap, stride, nencodings;
    struct banyan_codec_state *held; /* the call's, until this rank has its slot or is late */
    struct banyan_codec_state *lent; /* it works for this operation; or NULL */
    uint32_t step, nsum;             /* inputs in this rank's sum */
    uint8_t sparsifies; /* this rank's own part is made sparse before it is added */
};

struct bny_coordinator;

struct bny_arrival {
    struct bny_coordinator *coordinator; /* this rank's, until it has ended; or NULL */
    struct bny_coordinator *feeder;      /* forwards the result to a late rank; or NULL */
    struct bny_coord_outbox out;
    struct bny_child child; /* the static schedule, if all arrived together */
    uint8_t together;
    uint8_t begun;      /* it has announced its arrival, or need not */
    uint8_t asks;       /* its coordinator only reports whether a rank was late */
    uint8_t is_settled; /* the coordinator has reported that, or need not */
    uint32_t number;    /* among the sums of lateness.h */
    uint8_t has_slot, late;
    uint8_t is_reported; /* an error was reported: nothing is tried again */
    int server;          /* the rank whose coordinator answered; -1: none yet */
    int slot, slots, parent, nchildren, nknown;
    size_t children_cap;
    struct bny_source *children; /* [nchildren], the first nknown are known */
    struct bny_feed *feeds;      /* [feeds_due] of an allreduce */
    int nfeeds, feeds_due;       /* feeds that it will have */
    uint8_t is_chain;            /* the result goes round: top, slot 0, 1, ... */
    uint8_t is_last;     /* of a line; the coordinator has not named the next rank yet */
    uint8_t next_is_due; /* it has, and this rank has not acted on it yet */
    int next;            /* in the line: a rank, BNY_NEXT_NONE or BNY_NEXT_UNKNOWN */
    int late_from;       /* the rank that sends this late rank the result */
    struct bny_source result;
    uint32_t nchunks, up_next, up_freed, nhave;
    uint16_t *added;   /* [nchunks] children whose chunk is in the sum */
    uint8_t *is_freed; /* [nchunks] the transport has given back this rank's chunk */
    uint8_t *have;     /* [nchunks] of the result */
    uint8_t *marks;    /* the memory of these three */
    uint64_t *set;     /* [n bits] contributors of this rank's sum; then of the result */
    int nsets;         /* children whose set is in it */
    uint8_t up_set_sent, has_result_set;
    struct bny_msg_list early; /* held: they came before this rank had its slot */
    size_t marks_cap, set_cap;
    char *acc; /* the sum: the output, or scratch */
    char *scratch;
    size_t scratch_cap;
    struct bny_arrival_coded coded;
};

/* Is it a coordinator's operation, which is no rank's call? */
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

/* The number of ranks whose inputs count. */
static inline int bny_arrival_slots(const struct bny_call *call, int n)
{
    return call->first && call->first < (size_t)n ? (int)call->first : n;
}

/* ---- arrival.c ---- */

/* Rank `from` sent something that breaks the protocol: the communicator fails. */
void bny_arrival_wrong(struct bny_op *op, int from, const char *what);
/* Adds a message to rank `to`, under operation number seq. */
void bny_coord_outbox_add(struct bny_op *op, struct bny_coord_outbox *box, int to, uint32_t seq,
                          const struct bny_coord_msg *msg);
/* Sends what the transports take now. 1: something was sent. */
int bny_coord_outbox_flush(struct bny_op *op, struct bny_coord_outbox *box);
/* Reads a coordinator's message; 0: msg is none. Does not release msg. */
int bny_coord_msg_read(const struct bny_msg *msg, struct bny_coord_msg *out);
/* Does the slot end the chain in which the result goes round, and may late ranks join there? */
static inline int bny_arrival_is_last(const struct bny_call *call, int n, int slot, int slots,
                                      int depth)
{
    return call->collective == BNY_ALLREDUCE && depth == 0 && slots >= 3 && slots < n &&
           slot == slots - 2;
}
/* Handles a coordinator's answer. */
void bny_arrival_answer(struct bny_op *op, int from, const struct bny_coord_msg *msg);

/* ---- stream.c ---- */

/* Handles a chunk or a set of a peer; takes msg. The operation has its slot or is late. */
void bny_stream_message(struct bny_op *op, int from, struct bny_msg *msg);
/* Applies the chunks that have arrived, and sends those that are ready. 1: made progress. */
int bny_stream_advance(struct bny_op *op);
/* Sends the chunks of the result that this rank has (`have` [nchunks]) and its set (NULL: this
 * rank does not have it yet), under number seq. 1: made progress. */
int bny_feed_advance(struct bny_op *op, struct bny_feed *feed, uint32_t cookie, uint32_t seq,
                     const struct bny_kept *result, const uint8_t *have, const uint64_t *set);
/* It needs nothing more of its peers, and the transports have given back all that it sent. */
int bny_stream_is_done(const struct bny_op *op);
/* Chunk c is complete: the sum of this rank's subtree. */
void bny_stream_added(struct bny_op *op, uint32_t c);
/* The transport has given memory back. */
void bny_stream_sent(struct bny_op *op, uint32_t cookie);
void bny_source_free(struct bny_source *s);

/* ---- arrival_coded.c: nothing where the plan has no codec ---- */

/* Memory, for a plan. 0 or an error. */
int bny_arrival_coded_init(struct bny_op *op);
/* Takes the call's codec state. */
void bny_arrival_coded_start(struct bny_op *op);
/* This rank's input counts; with those of its subtree its sum has nsum inputs. It knows its
 * slot and parent. 0 or an error. */
int bny_arrival_coded_takes_part(struct bny_op *op, int nsum);
/* This rank's input does not count: the state counts the step, and residuals stay. 0 or an
 * error. */
int bny_arrival_coded_is_late(struct bny_op *op);
/* Releases the state, for the child. */
void bny_arrival_coded_release(struct bny_op *op);
/* The operation ends: the state counts the step. Idempotent. */
void bny_arrival_coded_end(struct bny_op *op, int result);
void bny_arrival_coded_free(struct bny_arrival_coded *k);
/* Encodes chunk c of this rank's sum, unless it is encoded already. 0 or an error. */
int bny_arrival_encode(struct bny_op *op, uint32_t c);
/* Encodes chunk c of the result, at the top. The output gets what all other ranks will decode.
 * 0 or an error. */
int bny_arrival_encode_result(struct bny_op *op, uint32_t c);
/* Can a message with this header be a chunk of n elements? */
int bny_arrival_coded_fits(const struct bny_op *op, const struct bny_hdr *h, size_t n);
/* Adds chunk h->chunk of a child's sum, or places it if it is one of the result. data: the
 * whole message, which a peer wrote. 0, or an error: then nothing is written. */
int bny_arrival_apply_coded(struct bny_op *op, int from, int is_result, const struct bny_hdr *h,
                            const void *data);

/* ---- coordinator.c: its own operation, as the functions of the way ---- */

int bny_coordinator_advance(struct bny_op *op);
void bny_coordinator_message(struct bny_op *op, int from, struct bny_msg *msg);
void bny_coordinator_sent(struct bny_op *op, uint32_t cookie);
void bny_coordinator_end(struct bny_op *op, int result);
void bny_coordinator_free(struct bny_op *op);

/* ---- coordinator.c: for the call ---- */

/* Opens this rank's coordinator for the operation. For a call that asks, it answers only when
 * all ranks have arrived. 0 or an error. */
int bny_coordinator_open(struct bny_op *op);
/* Delivers a coordinator's answer to its own rank. */
void bny_coordinator_deliver_own(struct bny_op *op, const struct bny_coord_msg *w);
/* Handles a message to this coordinator. */
void bny_coordinator_receive(struct bny_coordinator *coordinator, int from,
                             const struct bny_coord_msg *msg);
/* Keeps chunk c of the result, which is in its member's output, for late ranks; and its set. */
void bny_coordinator_keep(struct bny_coordinator *coordinator, uint32_t c);
void bny_coordinator_keep_set(struct bny_coordinator *coordinator);
/* Must its member's own sums wait, because answers to other ranks would queue behind them? Not
 * for long: the member is marked runnable, and asks again. */
int bny_coordinator_has_priority(struct bny_coordinator *coordinator);
/* Forwards op's result to rank `to`, also after the call has ended. 0 or an error. */
int bny_coordinator_feed(struct bny_op *op, int to);
/* Must its call go on, because other ranks still wait for the coordinator's answers? */
int bny_coordinator_is_needed(const struct bny_coordinator *coordinator);
/* The call has ended. */
void bny_coordinator_member_ended(struct bny_coordinator *coordinator);
/* Does it wait for the arrival of rank r? */
int bny_coordinator_awaits(const struct bny_coordinator *coordinator, int r);
/* Has rank r arrived, and does it get its answers from here? */
int bny_coordinator_serves(const struct bny_coordinator *coordinator, int r);

#endif
