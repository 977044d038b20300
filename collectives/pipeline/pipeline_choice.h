/* SPDX-License-Identifier: BSD-3-Clause */
/* What the ways over shared memory can serve, and what they cost: pipeline_choice.c. */
#ifndef BNY_COLLECTIVES_PIPELINE_PIPELINE_CHOICE_H
#define BNY_COLLECTIVES_PIPELINE_PIPELINE_CHOICE_H

#include "collectives/plan/way.h"

/* Of a pass: longest element that must stay whole. */
#define BNY_PIPELINE_ELEM_MAX  4096u
#define BNY_PIPELINE_RANKS_MAX 64

/* Of a short operation in lines: the most that a rank shows; of more than two ranks, with which
 * longer ones were not measured. */
#define BNY_LINES_BYTES      16384u
#define BNY_LINES_MANY_BYTES 4096u

/* A part for one rank, where ranks have several. Longer ones begin in a line of their own. */
static inline size_t bny_lines_part(size_t bytes)
{
    size_t unit = bytes < 64 ? 8 : 64;

    return (bytes + unit - 1) & ~(unit - 1);
}

/* What a rank of n shows, at most, of a collective whose count is `bytes`. */
size_t bny_lines_bytes(enum bny_collective collective, int n, size_t bytes);

const char *bny_pipeline_cannot(const struct bny_scope *s, const struct bny_call *call);
const char *bny_lines_cannot(const struct bny_scope *s, const struct bny_call *call);
double bny_pipeline_seconds(struct bny_scope *s, const struct bny_call *call, double most,
                            char *schedule);
double bny_lines_seconds(struct bny_scope *s, const struct bny_call *call, double most,
                         char *schedule);
int bny_pipeline_plan(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan);
int bny_lines_plan(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan);

#endif
