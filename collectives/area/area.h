/* SPDX-License-Identifier: BSD-3-Clause */
/* The areas of a communicator: made and told by the first operation that wants them, there
 * until the communicator is freed. Operations get a place in this rank's in the order of their
 * start. */
#ifndef BNY_COLLECTIVES_AREA_H
#define BNY_COLLECTIVES_AREA_H

#include "base/ring.h"
#include "collectives/area/cells.h"
#include "collectives/area/slots.h"
#include "collectives/op/op.h"

struct bny_areas { /* of a communicator: */
    enum bny_area which;
    int n, rank; /* who has it; this rank's place among them */
    int *ranks;  /* [n] their ranks in the communicator */
    struct bny_area_shape shape;
    struct bny_tp *tp;    /* through which all ranks share memory */
    uint32_t id;          /* of this rank's area */
    int untold, unmapped; /* peers */
    struct bny_area_peer {
        struct bny_area_head *area; /* NULL: not mapped yet */
        struct bny_cells *cells;    /* in it */
        uint32_t done, passes_done; /* what it has told in them, when they were looked at */
        uint8_t told, said;         /* the transport has been told, and the peer in a message */
        uint8_t copies;             /* it can read and write this process's memory, it says */
    } * peers;                      /* [n] */
    struct bny_cells *own;
    struct bny_link queue;    /* operations without a place, in order */
    uint32_t entries, slices; /* in use: bit masks */
    struct bny_area_use {
        uint32_t seq; /* for which operation it was used last; */
        int used;     /* 0: for none */
    } entry_use[BNY_AREA_ENTRIES], slice_use[BNY_AREA_SLICES]; /* slices: that others read on */
    uint32_t passes_next; /* the number after the latest one's that has a place */
    /* Short operations (direct/cells.c), which have cells instead */
    struct bny_link shown; /* under way, in order */
    uint32_t shown_next;   /* the number after the latest one's */
    struct bny_area_use cell_use[BNY_CELLS], slot_use[BNY_CELL_SLOTS]; /* ours */
    uint16_t history; /* of all that have begun */
};

/* A rank's loan to another one for an operation: a window over its output, and over its
 * input where that is other memory (else in.bytes is 0). */
struct bny_area_loan {
    _Alignas(128) struct bny_window out, in;
};

/* The loan of the owner of an area to rank r, of operation number seq. */
static inline struct bny_area_loan *
bny_area_loan(const struct bny_area_shape *s, struct bny_area_head *area, uint32_t seq, int r)
{
    struct bny_area_loan *loans = (struct bny_area_loan *)(void *)(area + 1);

    return &loans[(size_t)(seq % BNY_AREA_ENTRIES) * (size_t)s->n + (size_t)r];
}

/* To the i-th of the ranks that have it. */
static inline struct bny_ep *bny_area_ep(const struct bny_areas *w, const struct banyan_comm *c,
                                         int i)
{
    return c->peers[w->ranks[i]].ep;
}

/* The communicator's, made when there is none. NULL: an error. */
struct bny_areas *bny_area_get(struct banyan_comm *comm, enum bny_area which);
/* Tells peers that do not know it yet, under the operation's header. 1: all peers' are mapped,
 * 0: not yet, or an error, of *rank. */
int bny_area_meet(struct bny_areas *w, struct bny_op *op, int *rank);
/* A peer's message about its area: one that makes no sense is reported. Takes msg. */
void bny_area_message(struct bny_op *op, int from, struct bny_msg *msg);
/* A place for operation number seq, whose link stands first in the queue, which it leaves: 1
 * and *slice; 0: none is free. */
int bny_area_claim(struct bny_areas *w, struct bny_link *link, uint32_t seq, uint32_t *slice);
/* A hash of the operations before this one, which is one of them from now on. */
uint32_t bny_area_history(struct bny_areas *w, const struct bny_op *op);
/* is_read_on: others may read the slice until they tell that they are done. */
void bny_area_release(struct bny_areas *w, uint32_t seq, uint32_t slice, int is_read_on);
/* Reports that this rank and rank r called different operations before op: in one where neither
 * needed anything of the other, or one of them would have seen it then. */
void bny_area_differed(struct bny_op *op, int r);
/* Frees a communicator's areas; its operations are over. Lock held. */
void bny_areas_end(struct banyan_comm *comm);

#endif
