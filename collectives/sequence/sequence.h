/* SPDX-License-Identifier: BSD-3-Clause */
/* A sequence: an operation that is a list of other operations, its children (op/child.h), each
 * begun when the one before it is done, or beside it. sequence.c runs a list; linear_codec.c,
 * hierarchical.c and weighed.c make one, and know its children. */
#ifndef BNY_COLLECTIVES_SEQUENCE_H
#define BNY_COLLECTIVES_SEQUENCE_H

#include "collectives/op/child.h"
#include "collectives/sequence/weighing.h"

#define BNY_SEQUENCE_MAX 5 /* children of a list */

/* A list's answer about its next child. */
enum bny_sequence_next {
    BNY_SEQUENCE_NOTHING, /* there is nothing to do in its place, at any rank */
    BNY_SEQUENCE_CHILD,
    BNY_SEQUENCE_BESIDE, /* those behind it need not wait for it */
};

/* A kind of list. */
struct bny_list {
    const char *name; /* in plans */
    /* Predicted seconds of a call that it can serve. */
    double (*seconds)(struct bny_scope *s, const struct bny_call *call);
    /* Memory for a plan: so many children, the same at all ranks, or an error. */
    int (*init)(struct bny_op *op);
    /* 0 or an error: the operation has not begun. May be NULL. */
    int (*start)(struct bny_op *op);
    /* The call of child i, those before it are done: enum bny_sequence_next; BNY_AGAIN: not
     * yet, and the operation will be runnable; or an error. bny_sequence_call() made the call;
     * the list adds type, reduction, buffers and count. */
    int (*next)(struct bny_op *op, int i, struct bny_call *call);
    /* All are done. 0 or an error. May be NULL. */
    int (*finish)(struct bny_op *op);
    /* The operation is over. Idempotent. May be NULL. */
    void (*end)(struct bny_op *op);
    /* Frees what init() made, if it did. May be NULL. */
    void (*free)(struct bny_op *op);
};

/* A sum of all ranks as a child of this call. */
void bny_sequence_call(const struct bny_call *parent, struct bny_call *call);

extern const struct bny_list bny_list_linear, bny_list_hierarchical, bny_list_weighed;
/* As bny_way.cannot, of hierarchical; linear serves all linear codecs. */
const char *bny_hierarchical_cannot(const struct bny_scope *s, const struct bny_call *call);

/* ---- weighed.c ---- */

struct bny_weighed { /* of an operation: plan.weighs */
    struct bny_weighing *of;
    uint32_t nth;       /* whose answer counts: the nth call that asks, from 1 */
    uint32_t turn;      /* of its size: it may run the other way; 0: it may not */
    uint8_t asks;       /* this one asks */
    uint8_t has_answer; /* answer is that of all ranks */
    uint8_t is_weighed; /* parts is set */
    uint8_t parts;      /* so many of BNY_MIXED_PARTS have the codec: */
    uint8_t is_trial;   /* the verdict was another way */
    const struct bny_codec *codec;
    uint8_t runs; /* it is being measured */
    struct bny_measured answer;
};

/* May the call's codec be weighed when it runs? Of the choice: a function of both alone. */
int bny_weighed_can(const struct bny_scope *s, const struct bny_call *call);
/* The operation begins: lends the codec's state to it, and numbers it. 0 or an error. */
int bny_weighed_start(struct bny_op *op);
/* Gives the state back, when no child runs any more. Idempotent. */
void bny_weighed_end(struct bny_op *op);
/* The call of the child that asks, of index bny_sequence.asked; or BNY_SEQUENCE_NOTHING. */
int bny_weighed_ask(struct bny_op *op, struct bny_call *call);
/* Of the part that runs with the operation's codec: sets its state, or takes the codec out if
 * it does not pay. 0, BNY_AGAIN: not known yet, the operation will be runnable; or an error.
 * weighed.parts then says how much of it has the codec: all or none, where it is no whole call.
 */
int bny_weighed_codec(struct bny_op *op, struct bny_call *part);
void bny_weighed_begin(struct bny_op *op);            /* it is measured from here; idempotent */
void bny_weighed_done(struct bny_op *op, int result); /* and to here; idempotent */
/* What the latest call like this one was decided to be, and takes: plan->predicted_s. NULL:
 * there was none. */
const char *bny_weighed_tell(struct banyan_comm *c, const struct bny_call *call,
                             struct bny_plan *plan);

struct bny_linear_state; /* linear_codec.c's */

struct bny_sequence { /* the way's state of an operation */
    const struct bny_list *list;
    struct bny_child children[BNY_SEQUENCE_MAX];
    int n, next;     /* children; the one that is to begin */
    int inner;       /* children of the last child; set by init() */
    unsigned beside; /* a bit for each that others need not wait for */
    uint8_t is_told; /* an error was reported: nothing is tried again until the communicator has
                      * failed of it */
    struct banyan_codec_state
        *lent;         /* weighed.c: to this operation while it is active; or NULL */
    uint8_t has_begun; /* its step has */
    int asked;         /* weighed.c: the child that asks */
    struct bny_weighed weighed;
    struct bny_linear_state *linear; /* NULL: it had no such list yet */
};

static inline struct bny_sequence *bny_sequence_of(const struct bny_op *op)
{
    return op->of_way[BNY_WAY_SEQUENCE];
}

#endif
