/* SPDX-License-Identifier: BSD-3-Clause */
/* A sequence: an operation that is a list of other operations, its children (op/child.h), each
 * begun when the one before it is done. sequence.c runs a list; linear_codec.c and
 * hierarchical.c make one, and know its children. */
#ifndef BNY_COLLECTIVES_SEQUENCE_H
#define BNY_COLLECTIVES_SEQUENCE_H

#include "collectives/op/child.h"

#define BNY_SEQUENCE_MAX 4 /* children of a list */

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

extern const struct bny_list bny_list_linear, bny_list_hierarchical;
/* As bny_way.cannot, of the second; the first serves all linear codecs. */
const char *bny_hierarchical_cannot(const struct bny_scope *s, const struct bny_call *call);

struct bny_linear_state; /* linear_codec.c's */

struct bny_sequence { /* the way's state of an operation */
    const struct bny_list *list;
    struct bny_child children[BNY_SEQUENCE_MAX];
    int n, next;     /* children; the one that is to begin */
    unsigned beside; /* a bit for each that others need not wait for */
    uint8_t is_told; /* an error was reported: nothing is tried again until the communicator has
                      * failed of it */
    struct banyan_codec_state *lent; /* hierarchical.c: to this operation while it is active,
                                      * for its rail; or NULL */
    struct bny_linear_state *linear; /* NULL: it had no such list yet */
};

static inline struct bny_sequence *bny_sequence_of(const struct bny_op *op)
{
    return op->of_way[BNY_WAY_SEQUENCE];
}

#endif
