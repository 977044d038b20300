/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of collectives: one row each, read wherever collectives differ. A new collective is
 * an enumerator, a row, its public functions and its program. */
#ifndef BNY_COLLECTIVES_COLLECTIVE_H
#define BNY_COLLECTIVES_COLLECTIVE_H

#include <stdint.h>

#include "topo/forest.h"

enum bny_collective {
    BNY_ALLREDUCE,
    BNY_REDUCE,
    BNY_BROADCAST,
    BNY_REDUCE_SCATTER,
    BNY_ALLGATHER,
    BNY_GATHER,
    BNY_SCATTER,
    BNY_ALLTOALL,
    BNY_BARRIER,
    BNY_SCAN,
    BNY_EXSCAN,
    BNY_SENDRECV,
    BNY_COLLECTIVE_COUNT
};

enum bny_collective_codecs { /* which codecs can serve it */
                             BNY_CODECS_EXACT = 1 << 0,
                             BNY_CODECS_LOSSY = 1 << 1,
                             BNY_CODECS_LINEAR = 1 << 2,
};

struct bny_collective_row {
    const char *name;
    uint8_t reduces;  /* it has a reduction operation */
    uint8_t averages; /* and may divide by the number of ranks */
    uint8_t rooted;   /* it has a root */
    uint8_t per_rank; /* its count is of one rank's block: the whole is n times as much */
    uint8_t direct;   /* contributions go straight to who needs them when it is short */
    uint8_t pipeline; /* passes over shared memory serve it when it is longer */
    uint8_t has_use;  /* forests serve it, and: */
    enum bny_forest_use use;
    unsigned codecs;     /* enum bny_collective_codecs */
    const char *only;    /* the schedule of a collective that has one alone; else NULL */
    const char *ordered; /* that adds in order of ranks; NULL: none is needed */
};

extern const struct bny_collective_row bny_collective_rows[BNY_COLLECTIVE_COUNT];
/* c is a collective: not of a peer's message, which may hold any number. */
static inline const struct bny_collective_row *bny_collective_row(enum bny_collective c)
{
    return &bny_collective_rows[c];
}
/* "unknown" for what is no collective. */
const char *bny_collective_name(enum bny_collective c);
/* 1 and the collective of a name, or 0. */
int bny_collective_find(enum bny_collective *out, const char *name);
/* As bny_collective_row(), of a number that a peer sent; NULL: it is none. */
const struct bny_collective_row *bny_collective_of_wire(unsigned number);

#endif
