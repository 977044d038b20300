/* SPDX-License-Identifier: BSD-3-Clause */
/* An operation: one call in flight. Its life is init, start, advance as often as needed,
 * complete; how it does its work is its way's business (plan/way.h). */
#ifndef BNY_COLLECTIVES_OP_H
#define BNY_COLLECTIVES_OP_H

#include "collectives/call/call.h"
#include "collectives/local/memory_kind.h"
#include "collectives/match/match.h"
#include "collectives/plan/way.h"
#include "collectives/world/comm.h"

enum bny_op_state {
    BNY_OP_IDLE,
    BNY_OP_ACTIVE,
    BNY_OP_CLOSING,
    BNY_OP_ENDED, /* a request's: its completion function is to be called */
    BNY_OP_DONE
};

struct bny_record;
struct bny_asked {  /* of a peer: mismatch.c */
    uint8_t told;   /* our plan, because its differs */
    uint8_t probed; /* in this round of probes */
};

struct bny_op {
    struct banyan_comm *comm;
    struct bny_call call;
    struct bny_plan plan;
    const struct bny_way *way;
    unsigned traits;                   /* its way's, and what that added for this call */
    const struct bny_way *const *ways; /* the communicator's */
    void *of_way[BNY_WAY_COUNT];       /* each way's own; kept from operation to operation */
    int is_for_call;  /* it was taken from the pool for a call that is the same as `call` */
    int planned;      /* plan and tables fit `call` as it is */
    atomic_int state; /* enum bny_op_state */
    int result;
    struct bny_op *behind;     /* the next one of those that run together: api/run.c; of those
                                * that are complete: completed.c */
    uint64_t comm_serial;      /* in a group: of its communicator's handle */
    struct bny_receiver match; /* its number is match.seq */
    struct bny_sig sig;
    struct bny_expected expected; /* of bny_op_try() */
    uint64_t wire_bytes;          /* payload handed to transports so far, its children's too */
    uint64_t start_ns, end_ns;    /* 0: not taken */
    int is_timed;                 /* they are taken: banyan_request_stats() */
    uint64_t deadline_ns, allowed_ns; /* 0: none so far; what of it was left when it was set */
    uint64_t word_ns;    /* when this rank reports whom it waits for; 0: not set yet */
    uint64_t seen_ns;    /* word_ns is set: when that was, soon after it began */
    uint64_t probe_ns;   /* when peers that it waits for are asked; 0: not set yet */
    struct bny_op *next; /* active list, or pool */
    struct bny_op *prev; /* active list */
    const char *in;      /* the user's buffers or staging */
    char *out;
    struct bny_link runnable; /* something happened: it is to be advanced */
    size_t esz;               /* bytes of the datatype */
    size_t chunk_elems;
    uint8_t has_asked;     /* something of it is set */
    uint8_t is_used;       /* a transport knows which memory it works on */
    uint8_t is_any_source; /* a receive from any rank; call.root is the one that it is from */
    uint32_t numbers;      /* of operations, that it takes beside its own */
    /* Not NULL: nobody's call. It goes on when a call has ended, and is freed by this. */
    void (*free_detached)(struct bny_op *op);
    /* A request's, which has a completion function, by bny_completed_call(); NULL: none. */
    void (*on_done)(struct bny_op *op);
    struct bny_asked *asked;    /* [n] */
    struct bny_cookie *cookies; /* of sends in flight */
    char *staging;
    size_t staging_cap;
    char *foreign;                  /* copies of buffers in other kinds of memory */
    size_t foreign_cap, staged_out; /* bytes that go back to the user, to memory of: */
    const struct bny_mem_kind *out_kind;
    uint64_t record;        /* op/recorder.h: the number of its record; 0: none */
    struct bny_record *run; /* the same: its next call counts in it; NULL: in a new one */
    struct bny_op *parent;  /* this is a child of it, with a number that it kept; or NULL */
    size_t vcap;
    size_t *vcounts;  /* storage of call's four arrays */
    uint8_t *present; /* [n] and of its set */
};

/* ---- life ---- */

/* Plans the call; nothing when the operation has the plan already. 0 or an error. */
int bny_op_init(struct bny_op *op, struct banyan_comm *comm, const struct bny_call *call);
/* Warns, at rank 0 and once for a communicator and codec, that a call runs without the codec
 * that was asked for. unused.c. Lock held. */
void bny_codec_unused(struct banyan_comm *comm, const struct bny_call *call, const char *why,
                      const char *remedy);
/* The same where no codec of the call's budget keeps it. 0, or -BANYAN_ENOTSUP: the call itself
 * insists. */
int bny_budget_unkept(struct banyan_comm *comm, const struct bny_call *call);
/* Why, where it is predicted to lose: seconds with it, and raw, on a port of so many bytes a
 * second; and the remedy. */
void bny_codec_figures(char *why, size_t cap, double coded, double raw, double Bps);
#define BNY_CODEC_INSISTS "force=1 among its parameters insists"
/* The same where the communicator's schedule cannot serve the call. */
void bny_schedule_unused(struct banyan_comm *comm, const struct bny_call *call);
/* 0, or an error: then it has not begun. Lock held, as for all below. */
int bny_op_start(struct bny_op *op);
/* The same for a child of `parent`, with a number that the parent kept. */
int bny_op_start_child(struct bny_op *op, struct bny_op *parent, uint32_t seq);
/* The whole of a blocking call, if its way can do that at once. 1: it is done; 0: it has yet to
 * start; BNY_AGAIN: a message for op->expected is all that is missing. */
int bny_op_try(struct bny_op *op, int tries);
/* The message that it expected is here: it is done. */
void bny_op_done_inline(struct bny_op *op);
/* Hands it the messages that came before it began. */
void bny_op_take_early(struct bny_op *op);
/* It will not start: it is done, with result 0 or an error. */
void bny_op_end_unstarted(struct bny_op *op, int result);
/* Idempotent while memory is in use and messages are unsent: progress calls it again. */
void bny_op_complete(struct bny_op *op, int result);
/* The last step of that, and of whoever borrows an operation's state: it is done, or its
 * completion function is to be called. */
void bny_op_set_done(struct bny_op *op);
void bny_op_finish(struct bny_op *op); /* frees its memory */
/* The same where its communicator is gone: devices that knew the memory are, too. No lock. */
void bny_op_finish_orphan(struct bny_op *op);
/* From the pool, the one that ran this call where there is such. NULL: no memory. */
struct bny_op *bny_op_take(struct banyan_comm *comm, const struct bny_call *call);
void bny_op_give(struct bny_op *op); /* back to the pool */

/* Something happened to an active operation: progress advances it. */
static inline void bny_op_mark_runnable(struct bny_op *op)
{
    BNY_ASSERT(atomic_load_explicit(&op->state, memory_order_relaxed) == BNY_OP_ACTIVE ||
               atomic_load_explicit(&op->state, memory_order_relaxed) == BNY_OP_CLOSING);
    bny_link_in(&op->comm->runnable, &op->runnable);
    op->comm->world->has_work = 1;
}

static inline int bny_op_advance(struct bny_op *op)
{
    return op->way->advance(op);
}

static inline int bny_op_is_active(const struct bny_op *op)
{
    return atomic_load_explicit(&op->state, memory_order_relaxed) == BNY_OP_ACTIVE;
}

static inline int bny_op_is_done(const struct bny_op *op)
{
    return atomic_load_explicit(&op->state, memory_order_acquire) >= BNY_OP_ENDED;
}

/* For those that wait for it: has it started, and is not over, completion function and all? */
static inline int bny_op_is_under_way(const struct bny_op *op)
{
    int state = atomic_load_explicit(&op->state, memory_order_acquire);

    return state != BNY_OP_IDLE && state != BNY_OP_DONE;
}

static inline uint32_t bny_op_seq(const struct bny_op *op)
{
    return op->match.seq;
}

/* Does the operation need something of rank r of its communicator, or is something for it not
 * sent yet? */
int bny_op_waits_on(const struct bny_op *op, int r);
/* Ranks the operation is still waiting for, as text: "rank 3" or "rank 1 and 5 more"; the first
 * such rank, or -1. */
int bny_op_waiting_for(const struct bny_op *op, char *buf, size_t cap);

/* It is over, and the clock was read while it ran: does it take much longer than predicted?
 * slow.c */
void bny_slow_look(const struct bny_op *op);

/* ---- completion functions: completed.c ---- */

/* op, a request's, is complete, and op->on_done is to be called. Any lock may be held. */
void bny_completed_add(struct bny_op *op);
void bny_completed_drop(const struct bny_op *op); /* it is not to be called, if it was */
/* From here on, until it is released, no other thread is in a completion function: what those
 * may use goes. No lock of a world held. */
void bny_completed_hold(void);
void bny_completed_release(void);
extern _Atomic(struct bny_op *) bny_completed_first;
void bny_completed_call_now(void);
/* Calls for those that are complete. Every call that makes progress does so behind it. No lock
 * held. */
static inline void bny_completed_call(void)
{
    if (atomic_load_explicit(&bny_completed_first, memory_order_relaxed))
        bny_completed_call_now();
}

/* ---- receives from any rank: any_source.c ---- */

/* Makes an operation, which is not active, one. */
void bny_any_source_init(struct bny_op *op);
/* A message has come that no operation awaits. */
void bny_any_source_wake(struct banyan_comm *c);

/* ---- messages: deliver.c ---- */

/* Every message of the operation carries it. */
void bny_op_header(const struct bny_op *op, struct bny_hdr *h, enum bny_msg_kind kind);
/* It is on its way: matching keeps account. */
static inline void bny_op_account_sent(struct bny_op *op, const struct bny_hdr *h)
{
    if (op->call.collective == BNY_SENDRECV)
        bny_match_stamped(op->comm->match, &op->match, h);
}
/* May it send what its receiver did not ask for? */
static inline int bny_op_has_credit(struct bny_op *op)
{
    return op->call.collective != BNY_SENDRECV ||
           bny_match_has_credit(op->comm->match, &op->match);
}
/* A message for this communicator. Takes msg. */
void bny_comm_message(struct banyan_comm *comm, int from, struct bny_msg *msg);
/* Does what matching asks for: its own messages, operations whose number or credit changed. */
void bny_comm_flush_control(struct banyan_comm *comm);
/* An endpoint refused: to any rank, dead or with an error. */
void bny_op_send_failed(struct bny_op *op, int to, int rc, const char *what);

/* ---- mismatch.c: ranks that call different operations ---- */

/* A message for an operation in flight here says that its sender runs another one. */
void bny_mismatch_report(struct bny_op *op, int from, const struct bny_msg *msg);
/* A message for an operation that is finished here. */
void bny_mismatch_past(struct banyan_comm *c, int from, const struct bny_msg *msg);
/* Asks the peers of an operation that has waited for long whether they run the same one. */
void bny_probe_if_due(struct bny_op *op, uint64_t now_ns);

/* ---- staging.c: calls that run on a private copy ---- */

/* Makes *pp (a pointer to memory of malloc) hold `need` items of `unit` bytes; keeps it when it
 * does. Returns 0 or -BANYAN_ENOMEM naming `what`. */
int bny_grow(void *pp, size_t *cap, size_t need, size_t unit, const char *what);
/* Elements of rank r's part on the send or receive side. */
size_t bny_part_count(const struct bny_call *call, const size_t *counts, int r);
/* Most calls have neither. */
static inline int bny_op_is_staged(const struct bny_op *op)
{
    const struct bny_call *c = &op->call;

    return c->redop.wire == 0xfd || c->via_allreduce || c->spread || bny_mem_has_others() ||
           (c->collective == BNY_ALLTOALL && c->sendbuf == c->recvbuf);
}
/* Sets op->in and op->out: the user's buffers, or a private copy. 0 or an error. */
int bny_op_stage(struct bny_op *op);
/* Tells a transport that has use() which memory the operation works on; once. */
void bny_op_use(struct bny_op *op, struct bny_tp *tp);
/* The result is complete: to where the user wants it. 0 or an error. */
int bny_op_unstage(struct bny_op *op);

#endif
